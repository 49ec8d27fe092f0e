"""The check that graded cells run: visible and hidden checks together, for points."""

from collections.abc import Callable

from autograder.grade.judging.points import earned, told
from autograder.hidden import load_hidden
from course_pkg.checking.registry import find
from course_pkg.checking.runner import run_here


def graded(points: float) -> Callable[[object], float]:
    """Make the check of a graded cell.

    Args:
        points: what the exercise is worth.
    Returns:
        A function that runs all checks of a solution, prints what they found and returns the points
        earned. nbgrader reads the number as the score.
    """

    def check(solution: object) -> float:
        exercise = find(getattr(solution, "__name__", str(solution)))
        load_hidden(exercise)
        report = run_here(exercise, solution, hidden=True)
        print(told(report))
        return earned(points, report)

    return check
