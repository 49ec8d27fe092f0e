"""`python -m autograder policy`: who is late, what it costs and why."""

import argparse
import sys
from pathlib import Path

from nbgrader.api import Gradebook

from autograder.assignment import course_folder
from autograder.classroom.gradebook import opened
from autograder.classroom.table import in_columns, write
from autograder.grade.journal.journal import journal_of
from autograder.grade.late.lateness import Late, date
from autograder.grade.late.policy import PLACE, Policy, read
from autograder.grade.late.settle import settle, untimed
from autograder.grade.submission.submission import Course

COLUMNS = (
    "student",
    "assignment",
    "due",
    "submitted",
    "days late",
    "days forgiven",
    "points lost",
    "why",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the table as CSV too")
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")


def main(arguments: argparse.Namespace) -> int:
    """Bring the gradebook in line with the policy and print who is late.

    Raises:
        CourseError: policy.toml or the gradebook cannot be used, or the file to write exists.
    """
    root = course_folder(arguments.course)
    policy = read(root)
    if policy is None:
        print(f"There is no {PLACE}: being late costs nothing. docs/policy.toml is an example.")
        return 0
    journal = journal_of(Course(root).work)
    with opened(root) as gradebook:
        journal.notice(gradebook)
        found = settle(gradebook, policy)
        journal.note(gradebook, "policy.toml")
        _warn(gradebook, policy)
    rows = [COLUMNS, *map(row, found)]
    if arguments.to:
        write(arguments.to, rows)
    print(in_columns(rows) if found else "Nobody is late.")
    return 0


def row(late: Late) -> tuple[str, ...]:
    """Give the table's row for a late submission."""
    return (
        late.work.student,
        late.work.assignment,
        date(late.due),
        date(late.submitted),
        str(late.days),
        str(late.forgiven),
        f"{late.lost:.2f}",
        late.why,
    )


def _warn(gradebook: Gradebook, policy: Policy) -> None:
    """Name what the policy could not be applied to."""
    students = {student.id for student in gradebook.students}
    for assignment, extended in policy.extensions.items():
        for student in sorted(set(extended) - students):
            print(
                f"{PLACE} extends {assignment} for {student}, whom the gradebook does not know: "
                "correct the id, unless this student has submitted nothing yet",
                file=sys.stderr,
            )
    for student, assignment in untimed(gradebook, policy):
        print(
            f"{assignment} of {student} has no time of submission, and counts as in time",
            file=sys.stderr,
        )
