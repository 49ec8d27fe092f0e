"""The cells in which students predict the outcome of an experiment."""

import re
import textwrap
from pathlib import Path

from autograder.assignment import CourseError
from autograder.author.experiments import bound
from autograder.author.master import Code, ExerciseFence, Part, Prediction, Question

_WIDTH = 100 - len('    "",')  # what the formatter leaves of a line


def cell(question: str) -> str:
    """Write the code of a cell with a question and an empty prediction."""
    lines = textwrap.wrap(question, _WIDTH - 1, break_on_hyphens=False)  # - 1: the space at the end
    literals = [_quoted(f"{line} ") for line in lines[:-1]] + [_quoted(lines[-1])]
    text = "\n    ".join(literals)
    return f'predict(\n    {text},\n    "",  # your prediction, in one line\n)'


def _quoted(line: str) -> str:
    # Quoted as the formatter would do it: with double quotes unless the line holds them.
    return repr(line) if '"' in line else f'"{line}"'


def demand_outcomes(master: Path, parts: list[Part]) -> None:
    """Every prediction must have an experiment below it that shows it above its first claim.

    Raises:
        CourseError: there is none, or the notebook does not import `predict`.
    """
    predictions = [part for part in parts if isinstance(part, Prediction)]
    if predictions and not any(
        "predict" in bound(part.source) for part in parts if isinstance(part, Code)
    ):
        raise CourseError(
            f"{master}:{predictions[0].line}: predict is not imported; add it to the names after "
            "`from course_pkg import`"
        )
    waiting: Prediction | None = None
    for part in parts:
        if isinstance(part, Code) and re.search(r"\bclaim\(", part.source):
            waiting = None
        elif isinstance(part, (ExerciseFence, Prediction, Question)):
            _demand_none(master, waiting)
            waiting = part if isinstance(part, Prediction) else None
    _demand_none(master, waiting)


def _demand_none(master: Path, waiting: Prediction | None) -> None:
    if waiting is not None:
        raise CourseError(
            f"{master}:{waiting.line}: no experiment below this prediction ends in a claim, above "
            "which it is shown"
        )
