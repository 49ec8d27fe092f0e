"""Points for what the checks of an exercise have found."""

from autograder.hidden import passed, unearned
from course_pkg.checking.telling.report import Report

_HOLLOW = "No points: a solution that computes nothing passes what has a ✓ here, too."


def earned(points: float, report: Report) -> float:
    """Give the passed checks' share of an exercise's points.

    What a solution passes as well that computes nothing (its results are zeros or ones, or it
    refuses every input) earns nothing by itself.
    """
    return 0.0 if is_hollow(report) else round(points * report.share, 2)


def told(report: Report) -> str:
    """Give the report's text, and why what has passed earns nothing, if that is so."""
    return f"{report.text}\n{_HOLLOW}" if is_hollow(report) else report.text


def is_hollow(report: Report) -> bool:
    """Tell whether a solution has passed some checks, and none that demands a computation."""
    names = passed(report)
    return not report.passed and bool(names) and names <= unearned(report.exercise)
