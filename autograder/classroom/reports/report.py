"""`python -m autograder report`: how a class did in an assignment, as a page and as a table."""

import argparse
import importlib
import sys
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from autograder.assignment import ROOT, Assignment, course_folder
from autograder.classroom.reports.rendering import page, table
from autograder.classroom.reports.results import read
from autograder.grade.batch.gradebook import sentence
from autograder.grade.errors import GradingError
from autograder.grade.judging.verdict import write
from autograder.grade.submission.submission import Course
from autograder.mistakes import BUGS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="NN_topic")
    parser.add_argument(
        "--server",
        default="http://localhost:8888",
        metavar="URL",
        help="where the formgrader runs, for the page's links; default: %(default)s",
    )
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")


def main(arguments: argparse.Namespace) -> int:
    """Write the page and the table; 1 if there is nothing to report on."""
    root = course_folder(arguments.course)
    try:
        paths = report(root, arguments.assignment, arguments.server.rstrip("/"))
    except SQLAlchemyError as error:
        print(f"There is no report: {sentence(error)}", file=sys.stderr)
        return 1
    except (GradingError, OSError) as error:
        print(f"There is no report: {error}", file=sys.stderr)
        return 1
    for path in paths:
        print(path.relative_to(root))
    return 0


def report(root: Path, assignment: str, server: str) -> list[Path]:
    """Write the report on an assignment.

    Args:
        root: the course's folder.
        assignment: the assignment.
        server: the address of the Jupyter server whose formgrader the page links to.
    Returns:
        The page and the table.
    Raises:
        GradingError: there is nothing to report on; the text says what to do.
        sqlalchemy.exc.SQLAlchemyError: the gradebook cannot be read.
    """
    names = _known_mistakes(assignment)
    sentences = {exercise: set(known) for exercise, known in names.items()}
    classroom = read(root, assignment, sentences)
    place = Course(root).work / f"report_{assignment}"
    texts = {".html": page(classroom, names, server), ".csv": table(classroom, names, server)}
    for suffix, text in texts.items():
        write(place.with_suffix(suffix), text)
    return [place.with_suffix(suffix) for suffix in texts]


def _known_mistakes(assignment: str) -> dict[str, dict[str, str]]:
    """Name the known mistakes of each exercise, by the sentences that describe them."""
    topic = Assignment(assignment).topic
    if not (ROOT / "autograder" / "assignments" / topic / "mistakes.py").exists():
        return {}  # reading the course will say that there is no such assignment
    importlib.import_module(f"autograder.assignments.{topic}.mistakes")
    return {
        exercise.name: {bug.sentence: bug.name for bug in reversed(known)}
        for exercise, known in BUGS.items()
        if exercise.module == topic
    }
