"""After a check was wrong and is repaired: who failed it, and whose points change."""

import json
import sys
from collections.abc import Mapping
from difflib import get_close_matches

from autograder.grade.errors import GradingError
from autograder.grade.journal.scores import BY_CHECKS, BY_HAND, Place, Scores, exercise_of
from autograder.grade.judging.verdict import Verdict
from autograder.grade.kernel import sandbox
from autograder.grade.submission.plan import Plan
from autograder.grade.submission.submission import Course
from autograder.hidden import load_hidden
from course_pkg.checking.registry import CHECKS, find

KEY = "failed"  # in the metadata of a graded notebook, under "course"


class UnknownCheck(GradingError):
    """No check of the assignment has that name."""


class Repair:
    """A check that was wrong when submissions were graded.

    Args:
        course: the course.
        assignment: the assignment's name.
        check: the check's, as EXERCISE.CHECK.
    Raises:
        UnknownCheck: there is no such check; the text names those that are alike.
        GradingError: this machine has no sandbox, without which there are no verdicts.
    """

    def __init__(self, course: Course, assignment: str, check: str):
        if sandbox.is_off():
            raise GradingError(
                f"{sandbox.SWITCH}=off keeps no list of failed checks, as plain nbgrader does not; "
                "--since-check needs the sandbox"
            )
        self._course = course
        self._assignment = assignment
        self._plan = course.plan(assignment)
        self._check = check
        checks = all_checks(self._plan)
        known = [f"{exercise}.{name}" for exercise, names in checks.items() for name in names]
        if check not in known:
            alike = get_close_matches(check, known, n=3, cutoff=0.5) or known[:3]
            raise UnknownCheck(
                f"{assignment} has no check {check!r}; there is {', '.join(alike)}: name one as "
                "EXERCISE.CHECK"
            )

    def concerns(self, student: str) -> bool:
        """Say whether a student failed the check when the scores were written."""
        name = self._assignment
        path = self._course.work / "autograded" / student / name / f"{name}.ipynb"
        try:
            nb = json.loads(path.read_text(encoding="utf-8"))
            failed = nb["metadata"]["course"][KEY]
        except FileNotFoundError:
            return False  # not graded
        except (OSError, ValueError, KeyError):
            print(
                f"{student}: it is not known which checks failed, because an earlier version has "
                f"graded this; python -m autograder grade {name} {student} grades it anew",
                file=sys.stderr,
            )
            return False
        exercise, _, check = self._check.partition(".")
        return check in failed.get(exercise, ())

    def changes(self, verdicts: Mapping[str, Verdict], now: Scores) -> list[str]:
        """Tell whose points change.

        Args:
            verdicts: the new verdicts, by student.
            now: the scores in the gradebook.
        Returns:
            A line for each exercise; points given by hand stay, and the line says so.
        """
        lines = []
        for student, verdict in sorted(verdicts.items()):
            for cell in self._plan.cells.values():
                exercise = exercise_of(cell.name)
                before = now.get(Place(student, self._assignment, exercise, BY_CHECKS), 0.0)
                after = verdict.points.get(cell.name, 0.0)
                if cell.is_checked and before != after:
                    by_hand = now.get(Place(student, self._assignment, exercise, BY_HAND))
                    stays = "" if by_hand is None else f"; {by_hand:g} by hand stays"
                    lines.append(f"{student}: {exercise} {before:g} → {after:g}{stays}")
        return lines


def confirmed(question: str) -> bool:
    """Ask a person; where there is none, the answer is no."""
    try:
        return sys.stdin.isatty() and input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        return False


def all_checks(plan: Plan) -> dict[str, list[str]]:
    """Name all checks of an assignment, by exercise."""
    exercises = [find(name) for name in plan.exercises]
    for exercise in exercises:
        load_hidden(exercise)
    return {exercise.name: list(CHECKS[exercise]) for exercise in exercises}
