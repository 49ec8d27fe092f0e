"""What only the grader runs: hidden checks by assignment, and those that earn nothing alone."""

import functools
import importlib
import json
from pathlib import Path

from course_pkg.checking.registry import Exercise
from course_pkg.checking.telling.report import Report

ASSIGNMENTS = Path(__file__).parent / "assignments"


def folder(topic: str) -> Path:
    """Name the folder of what is known of an assignment's hidden checks."""
    return ASSIGNMENTS / topic / "data"


def load_hidden(exercise: Exercise) -> None:
    """Import the hidden checks of an exercise's assignment."""
    importlib.import_module(f"autograder.assignments.{exercise.module}.hidden")


@functools.cache
def unearned(exercise: Exercise) -> frozenset[str]:
    """Name the checks of an exercise that a solution passes which computes nothing."""
    found = {}
    for path in folder(exercise.module).glob(f"[0-9][0-9]_{exercise.module}.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
    return frozenset(found.get(exercise.name, []))


def passed(report: Report) -> set[str]:
    """Name the checks that have run and found nothing."""
    return {o.check.name for o in report.outcomes if o.failure is None and o.why_not is None}
