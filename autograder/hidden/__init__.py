"""What only the grader runs: a module of hidden checks for each assignment."""

import functools
import importlib
import json
from pathlib import Path

from course_pkg.checking.registry import Exercise

HOLLOW = Path(__file__).parent / "data"


def load_hidden(exercise: Exercise) -> None:
    """Import the hidden checks of an exercise's assignment."""
    importlib.import_module(f"autograder.hidden.{exercise.module}")


@functools.cache
def unearned(exercise: Exercise) -> frozenset[str]:
    """Name the checks of an exercise that a solution passes which computes nothing."""
    found = {}
    for path in HOLLOW.glob(f"[0-9][0-9]_{exercise.module}.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
    return frozenset(found.get(exercise.name, []))
