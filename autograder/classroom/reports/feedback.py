"""Feedback to a student: nbgrader's page, with a summary of points and mistakes at its top."""

import re
from dataclasses import dataclass

from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets.config import Config

from autograder.classroom.reports.diagnosis import NOTE, Finding, findings, text_of
from autograder.classroom.reports.safety import ANCHOR
from autograder.classroom.reports.templates import FOLDER
from autograder.grade.late.plugin import LATENESS


class FeedbackExporter(HTMLExporter):
    """nbgrader's exporter with the course's template, which extends nbgrader's own."""

    def __init__(self, *, config: Config, **kwargs):
        """Put the template before nbgrader's, which nbgrader's converter has configured."""
        config = config.copy()
        theirs, ours = config.HTMLExporter, config.FeedbackExporter
        ours.template_name = "course_feedback"
        ours.extra_template_basedirs = [str(FOLDER), *theirs.extra_template_basedirs]
        ours.extra_template_paths = [*theirs.extra_template_paths, *theirs.extra_template_basedirs]
        super().__init__(config=config, **kwargs)


@dataclass(frozen=True)
class Row:
    """What the summary says of an exercise or a question.

    Args:
        name: its name.
        cell: the graded cell.
        score: the points earned; None while the answer waits for a grader.
        points: the points there are.
        findings: the failed checks.
        comment: what the grader wrote, in Markdown.
    """

    name: str
    cell: str
    score: float | None
    points: float
    findings: list[Finding]
    comment: str | None


class Summarise(NbGraderPreprocessor):
    """Collect points, failed checks and comments; nbgrader's GetGrades must have run."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Give the rows of the summary to the template."""
        waiting, problem = _gradebook(resources["nbgrader"])
        cells = {c.metadata.nbgrader.grade_id: c for c in nb.cells if "nbgrader" in c.metadata}
        rows = []
        for graded, cell in cells.items():
            meta = cell.metadata.nbgrader
            if not meta.grade:
                continue
            name = graded.removeprefix("check_")
            comment = cells.get(name, cell).metadata.nbgrader.get("comment")
            rows.append(
                Row(
                    name,
                    graded,
                    None if graded in waiting else meta.score,
                    meta.points,
                    findings(name, text_of(cell)) if cell.cell_type == "code" else [],
                    None if comment == problem else comment,
                )
            )
        resources["course"] = {
            "rows": rows,
            "headings": _headings(nb),
            "problem": problem,
            "late": resources.get(LATENESS, ""),
        }
        return nb, resources


def _gradebook(names: dict[str, str]) -> tuple[set[str], str | None]:
    """Look up which cells a person has yet to grade, and what went wrong while grading."""
    with Gradebook(names["db_url"]) as gradebook:
        found = gradebook.find_submission_notebook(
            names["notebook"], names["assignment"], names["student"]
        )
        waiting = {g.name for g in found.grades if g.auto_score is None and g.manual_score is None}
        comments = [comment.auto_comment or "" for comment in found.comments]
        return waiting, next((text for text in comments if text.startswith(NOTE)), None)


def _headings(nb: NotebookNode) -> dict[str, str]:
    """Say where the page has each heading: nbconvert makes the anchor from the text."""
    texts = [
        match[1].strip()
        for cell in nb.cells
        if cell.cell_type == "markdown"
        for match in re.finditer(r"^#+ (.+)$", cell.source, re.MULTILINE)
    ]
    return {text: ANCHOR + text.replace(" ", "-") for text in texts}
