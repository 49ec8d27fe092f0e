"""Run the known mistakes of an exercise through its graders, once for all that need the reports."""

import contextlib
import functools
import importlib
import io
from typing import NamedTuple

from autograder.hidden import load_hidden
from autograder.mistakes import BUGS, Bug
from course_pkg.checking.guard import SECONDS, Guarded
from course_pkg.checking.registry import CHECKS, Exercise
from course_pkg.checking.rules.rules import rule_of
from course_pkg.checking.runner import run
from course_pkg.checking.telling.report import Report


class Trial(NamedTuple):
    """A known mistake, and what all checks, visible and hidden, say about it."""

    bug: Bug
    report: Report


def exercises(topic: str) -> list[Exercise]:
    """List the exercises of an assignment, with its checks and known mistakes registered."""
    importlib.import_module(f"course_pkg.checks.{topic}")
    importlib.import_module(f"autograder.assignments.{topic}.mistakes")
    found = [exercise for exercise in CHECKS if exercise.module == topic]
    if found:
        load_hidden(found[0])
    return found


@functools.cache
def trials(exercise: Exercise) -> list[Trial]:
    """Run the checks of an exercise on each of its known mistakes."""
    return [Trial(bug, examine(exercise, bug.solution)) for bug in BUGS.get(exercise, [])]


@functools.cache
def of_reference(exercise: Exercise) -> Report:
    """Run the checks of an exercise on its reference."""
    module = importlib.import_module(f"course_pkg.{exercise.module}")
    return examine(exercise, getattr(module, exercise.name))


def examine(
    exercise: Exercise,
    solution: object,
    *,
    until_failure: bool = False,
    inputs: int = 0,
    seconds: float = SECONDS,
) -> Report:
    """Run all checks of an exercise on a solution, in silence."""
    with contextlib.redirect_stdout(io.StringIO()):
        student = Guarded(solution, exercise.name, seconds, rule=rule_of(exercise))
        return run(exercise, student, hidden=True, until_failure=until_failure, inputs=inputs)
