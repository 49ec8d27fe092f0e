"""`python -m autograder report`: how a class did in an assignment, as a page and as a table."""

import argparse
import csv
import importlib
import io
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader
from sqlalchemy.exc import SQLAlchemyError

from autograder.assignment import ROOT, Assignment, course_folder
from autograder.bugs import BUGS
from autograder.classroom.reports.classroom import Classroom, Graded, read
from autograder.classroom.reports.statistics import FEWEST, statistics, stuck
from autograder.grade.errors import GradingError
from autograder.grade.submission import Course
from autograder.grade.verdict import write

TEMPLATES = Path(__file__).with_name("templates")


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
    except (GradingError, SQLAlchemyError, OSError) as error:
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
    page, table = place.with_suffix(".html"), place.with_suffix(".csv")
    write(page, _page(classroom, names, server))
    write(table, _table(classroom, names, server))
    return [page, table]


def _known_mistakes(assignment: str) -> dict[str, dict[str, str]]:
    """Name the known mistakes of each exercise, by the sentences that tell of them."""
    topic = Assignment(assignment).topic
    if not (ROOT / "autograder" / "bugs" / f"{topic}.py").exists():
        return {}  # whoever reads the course says that there is no such assignment
    importlib.import_module(f"autograder.bugs.{topic}")
    return {
        exercise.name: {bug.sentence: bug.name for bug in reversed(known)}
        for exercise, known in BUGS.items()
        if exercise.module == topic
    }


def _page(classroom: Classroom, names: dict[str, dict[str, str]], server: str) -> str:
    # matplotlib takes a second to import: too long for the other commands.
    from autograder.classroom.reports import figures

    described = statistics(classroom)
    lost = stuck(classroom)
    alike: dict[tuple[str, str], list[Graded]] = {}
    for graded in classroom.graded:
        if graded.incidents:
            what = ", ".join(sorted(graded.incidents)), graded.reason
            alike.setdefault(what, []).append(graded)
    seconds = [g.seconds for g in classroom.graded if g.seconds is not None]
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        classroom=classroom,
        described=described,
        mistakes=_mistakes(classroom, names),
        stuck=lost,
        empty=[g for g, names in lost if len(names) == len(classroom.exercises)],
        incidents=[g for g in classroom.graded if g.incidents],
        alike=sorted(alike.items(), key=lambda pair: -len(pair[1])),
        kinds=Counter(kind for g in classroom.graded for kind in sorted(g.incidents)),
        waiting=sum(s.waiting for s in described),
        quartiles=np.percentile([g.score for g in classroom.graded], [25, 50, 75]),
        seconds=seconds,
        slowest=sorted(classroom.graded, key=lambda g: g.seconds or 0)[-1],
        median_seconds=np.median(seconds) if seconds else None,
        figures=[figures.scores(classroom), figures.exercises(described)],
        fewest=FEWEST,
        now=datetime.now().astimezone(),
        server=server,
    )


def _mistakes(
    classroom: Classroom, names: dict[str, dict[str, str]]
) -> list[tuple[str, str, str, list[Graded]]]:
    """List exercise, name and sentence of the mistakes that occur, and who made them."""
    found: dict[tuple[str, str, str], list[Graded]] = {}
    for graded in classroom.graded:
        for exercise, sentences in graded.mistakes.items():
            for sentence in sorted(sentences):
                mistake = exercise, names[exercise][sentence], sentence
                found.setdefault(mistake, []).append(graded)
    return sorted(((*mistake, who) for mistake, who in found.items()), key=lambda m: -len(m[3]))


def _table(classroom: Classroom, names: dict[str, dict[str, str]], server: str) -> str:
    """Make the table, as CSV: a row for each student of the class."""
    rows = []
    stopped = {graded.student for graded, _ in stuck(classroom)}
    for graded in classroom.graded:
        mistakes = [
            f"{exercise}.{names[exercise][sentence]}"
            for exercise, sentences in graded.mistakes.items()
            for sentence in sorted(sentences)
        ]
        rows.append(
            {
                "student": graded.student,
                "state": "graded",
                "score": round(graded.score, 2),
                "max_score": classroom.points,
                **graded.scores,
                "stuck": "yes" if graded.student in stopped else "no",
                "mistakes": "; ".join(mistakes),
                "incidents": "; ".join(sorted(graded.incidents)),
                "seconds": graded.seconds,
                "submitted_utc": graded.submitted,
                "formgrader": f"{server}/formgrader/submissions/{graded.notebook}/",
            }
        )
    rows += [{"student": s, "state": "collected, not graded"} for s in classroom.collected]
    rows += [{"student": s, "state": "not submitted"} for s in classroom.missing]
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
