"""Points for what the checks of an exercise have found."""

from autograder.hidden import unearned
from course_pkg.checking.report import Report

HOLLOW = "No points: a solution that computes nothing passes what has a ✓ here, too."


def earned(points: float, report: Report) -> float:
    """Give the passed checks' share of an exercise's points.

    What a solution passes as well that computes nothing (its results are zeros, or it refuses
    every input) earns nothing by itself.
    """
    return 0.0 if is_hollow(report) else round(points * report.share, 2)


def is_hollow(report: Report) -> bool:
    """Tell whether a solution has passed some checks, and none that demands a computation."""
    passed = {o.check.name for o in report.outcomes if o.failure is None and o.why_not is None}
    return not report.passed and bool(passed) and passed <= unearned(report.exercise)
