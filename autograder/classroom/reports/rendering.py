"""The report on a class as a page and as a table."""

from collections import Counter
from datetime import datetime

import numpy as np

from autograder.classroom.reports.results import Classroom, Graded
from autograder.classroom.reports.statistics import FEWEST, statistics, stuck
from autograder.classroom.reports.templates import template
from autograder.classroom.table import as_csv


def page(classroom: Classroom, names: dict[str, dict[str, str]], server: str) -> str:
    """Make the report's page, which needs no other file.

    Args:
        classroom: what is known of the class.
        names: the names of the known mistakes of each exercise, by their sentences.
        server: the address of the Jupyter server whose formgrader it links to.
    """
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
    return template("report.html.j2").render(
        classroom=classroom,
        described=described,
        mistakes=_mistakes(classroom, names),
        carried=_carried(classroom),
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


def _carried(classroom: Classroom) -> list[tuple[str, str, list[Graded]]]:
    """List parts, what has earned its points with a right one of them, and whose."""
    found: dict[tuple[str, str], list[Graded]] = {}
    for graded in classroom.graded:
        for exercise, parts in graded.carried.items():
            found.setdefault((parts, exercise), []).append(graded)
    return sorted(((*pair, who) for pair, who in found.items()), key=lambda c: -len(c[2]))


def table(classroom: Classroom, names: dict[str, dict[str, str]], server: str) -> str:
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
                "carried": "; ".join(f"{e} with {part}" for e, part in graded.carried.items()),
                "incidents": "; ".join(sorted(graded.incidents)),
                "seconds": graded.seconds,
                "submitted_utc": graded.submitted,
                "formgrader": f"{server}/formgrader/submissions/{graded.notebook}/",
            }
        )
    rows += [{"student": s, "state": "collected, not graded"} for s in classroom.collected]
    rows += [{"student": s, "state": "not submitted"} for s in classroom.missing]
    columns = list(rows[0])
    return as_csv([columns, *([row.get(column) for column in columns] for row in rows)])
