"""What only the grader runs: a module of hidden checks for each assignment."""

import importlib

from course_pkg.checking.registry import Exercise


def load_hidden(exercise: Exercise) -> None:
    """Import the hidden checks of an exercise's assignment."""
    importlib.import_module(f"autograder.hidden.{exercise.module}")
