"""`python -m autograder journal`: who changed which score when, from what to what, and why."""

import argparse
from pathlib import Path

from autograder.assignment import CourseError, course_folder
from autograder.classroom.gradebook import opened
from autograder.classroom.table import in_columns, write
from autograder.grade.journal.journal import Entry, journal_of
from autograder.grade.submission.submission import Course

COLUMNS = (
    "when (UTC)",
    "who",
    "student",
    "assignment",
    "exercise",
    "points",
    "from",
    "to",
    "why",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="NN_topic", nargs="?", help="default: all")
    parser.add_argument("student", nargs="?", help="default: everybody")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the table as CSV too")
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")


def main(arguments: argparse.Namespace) -> int:
    """Add what has changed without the journal, and print it.

    Raises:
        CourseError: the gradebook or the journal cannot be used, or the file to write exists.
    """
    root = course_folder(arguments.course)
    journal = journal_of(Course(root).work)
    try:
        with opened(root) as gradebook:
            journal.notice(gradebook)
        entries = journal.entries()
    except OSError as error:
        raise CourseError(f"the journal cannot be used: {error}") from None
    found = [
        entry
        for entry in entries
        if arguments.assignment in (None, entry.assignment)
        and arguments.student in (None, entry.student)
    ]
    rows = [COLUMNS, *map(row, found)]
    if arguments.to:
        write(arguments.to, rows)
    print(in_columns(rows) if found else "No score has changed.")
    return 0


def row(entry: Entry) -> tuple[str, ...]:
    """Give the table's row for a change."""
    return (
        entry.when.removesuffix("+00:00").replace("T", " "),
        entry.who,
        entry.student,
        entry.assignment,
        entry.exercise,
        entry.kind,
        score(entry.before),
        score(entry.after),
        entry.why,
    )


def score(points: float | None) -> str:
    """Write points as people do; nothing where there are none."""
    return "" if points is None else f"{round(points, 2):g}"
