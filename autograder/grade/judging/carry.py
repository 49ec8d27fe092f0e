"""Errors carried forward: one mistake costs once.

When an exercise fails, what builds on it fails as well. It is judged once more with right parts in
place of those that fail, and the better of both counts. The right parts never enter the sandbox:
the student's code calls stand-ins there, and the grader answers.
"""

import functools
import importlib
from dataclasses import dataclass

from nbformat import NotebookNode
from torch import nn

from autograder.assignment import reference
from autograder.hidden import load_hidden, passed, unearned
from course_pkg.checking.guard import Guarded
from course_pkg.checking.registry import CHECKS, Exercise
from course_pkg.checking.rules.uses import names_used
from course_pkg.checking.runner import run
from course_pkg.checking.telling.failure import Failure
from course_pkg.checking.telling.report import Report
from course_pkg.remote.messages import WireError

KEY = "carried"  # in the metadata of a graded notebook, under "course"


@dataclass(frozen=True)
class Carried:
    """An exercise that has earned more with right parts.

    Args:
        report: what its checks find then.
        parts: the exercises whose right solutions took the place of the student's.
    """

    report: Report
    parts: list[str]

    @property
    def sentence(self) -> str:
        """Say to the student what was counted."""
        name, parts = self.report.exercise.name, " and ".join(self.parts)
        right = f"With a right {parts} in place of yours,"
        begin = f"Begin with {parts}."
        if self.report.passed:
            return f"{right} all checks of your {name} pass: its points are counted. {begin}"
        return f"{right} more checks of your {name} pass, and these are counted. {begin}"


def carried_in(nb: NotebookNode) -> dict[str, str]:
    """Say of a graded notebook, by exercise, with whose right solutions it has its points."""
    found = nb.metadata.get("course", {}).get(KEY, {})
    return {exercise: " and ".join(parts) for exercise, parts in found.items()}


def wrong_parts(
    exercise: Exercise, sources: list[str], given: list[str], wrong: set[str]
) -> list[str]:
    """Name the wrong exercises that a solution builds on, as the reference does too.

    What only the student's solution builds on stays the student's: with a right one in its place,
    a line that calls it may be all that an exercise of the same result needs.

    Args:
        exercise: the exercise.
        sources: the cells that the student wrote, in order.
        given: the assignment's own cells.
        wrong: the exercises that fail by themselves.
    """
    if not (found := wrong & below(exercise)):
        return []
    found &= names_used(exercise.name, sources, given)
    return [each.name for each in CHECKS if each.name in found]


def needed_for(topic: str, parts: list[str]) -> list[str]:
    """Add to right parts the classes whose objects they make: these must be right ones, too."""
    exercises = {exercise.name: exercise for exercise in CHECKS if exercise.module == topic}
    used = set().union(*(below(exercises[part]) for part in parts))
    made = {name for name in used if exercises[name].is_class and not _is_module(exercises[name])}
    return [name for name in exercises if name in {*parts, *made}]


@functools.cache
def below(exercise: Exercise) -> frozenset[str]:
    """Name the exercises that the reference of an exercise builds on, at any depth."""
    names = {each.name for each in CHECKS if each.module == exercise.module}
    texts = [path.read_text(encoding="utf-8") for path in reference(exercise.module)]
    used = names_used(exercise.name, texts)
    return frozenset(names & used - {exercise.name})


def merged(first: Report, again: Report) -> Report:
    """Give the report that counts: the better one, if what could not be carried stays as it was.

    Args:
        first: what the checks have found.
        again: what they find with right parts; some of it may only say that a value cannot be sent.
    """
    known = {outcome.check: outcome for outcome in first.outcomes}
    found = [
        known[outcome.check] if _is_of_the_wire(outcome.failure) else outcome
        for outcome in again.outcomes
    ]
    better = Report(first.exercise, found)
    return better if better.share > first.share else first


def is_borrowed(report: Report, parts: list[str]) -> bool:
    """Tell whether a solution passes no more than right parts do in its place.

    A class that only derives from one does so, and so does what only calls one, or nothing at all:
    that is not the student's.
    """
    exercise = report.exercise
    free = unearned(exercise).union(*(_alone(exercise, part) for part in parts))
    return passed(report) <= free


@functools.cache
def _alone(exercise: Exercise, part: str) -> frozenset[str]:
    """Name the checks of an exercise that the reference of another one passes in its place."""
    right = getattr(importlib.import_module(f"course_pkg.{exercise.module}"), part)
    load_hidden(exercise)
    report = run(exercise, Guarded(right, exercise.name), hidden=True)
    return frozenset(passed(report))


def _is_of_the_wire(failure: Failure | None) -> bool:
    return failure is not None and WireError.__name__ in failure.kinds


def _is_module(exercise: Exercise) -> bool:
    module = importlib.import_module(f"course_pkg.{exercise.module}")
    return issubclass(getattr(module, exercise.name), nn.Module)
