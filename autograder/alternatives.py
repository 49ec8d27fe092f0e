"""Correct solutions that differ from the reference; every one must get all points."""

from collections.abc import Callable

from course_pkg.checking.registry import Exercise

ALTERNATIVES: dict[Exercise, list[Callable]] = {}


def alternative(reference: Callable) -> Callable:
    """Register another correct solution of the exercise that `reference` solves."""

    def register(solution: Callable) -> Callable:
        ALTERNATIVES.setdefault(Exercise.of(reference), []).append(solution)
        return solution

    return register
