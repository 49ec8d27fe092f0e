"""Predictions: what a student expects of an experiment, shown again beside its outcome."""

import html
import textwrap

from course_pkg.checking.telling.report import WIDTH

_predictions: dict[str, str] = {}  # by question
_asked: str | None = None  # the latest question that no outcome has answered yet
_answers: dict[str, tuple[str, str]] = {}  # by cell: which claim answers which question


def predict(question: str, prediction: str) -> None:
    """Note a prediction; the next experiment shows it above what came out.

    It is not graded, and nothing is printed. Run the cell again to replace it.

    Args:
        question: what the experiment will answer.
        prediction: your answer, in one line; an empty text when you have none.
    Raises:
        TypeError: the question or the prediction is not a text.
    """
    global _asked
    for name, value in (("question", question), ("prediction", prediction)):
        if not isinstance(value, str):
            raise TypeError(
                f"the {name} should be text between quotation marks, such as "
                f'"the first, by a factor of 10"; it is {value!r}, of type {type(value).__name__}'
            )
    _predictions[question] = " ".join(prediction.split())
    _asked = question


def prediction_for(cell: str, what: str) -> str:
    """Give the prediction to show above a claim, or an empty text if there is none.

    The first claim after a question answers it, and does so again when its cell is run again: such
    a claim leaves the question that waits to the experiment below. A cell that was changed is a new
    one.

    Args:
        cell: the file name under which Python knows the cell of the claim.
        what: what the claim is about.
    """
    global _asked
    if cell not in _answers:
        if _asked is None:
            return ""
        _answers[cell] = what, _asked
    answering, question = _answers[cell]
    if what != answering:
        return ""
    if question == _asked:
        _asked = None
    return _predictions[question]


def as_text(prediction: str) -> str:
    """Write the line that a terminal shows."""
    return textwrap.fill(f"You predicted: {prediction}", WIDTH, subsequent_indent="  ")


def as_html(prediction: str) -> str:
    """Write the line that a notebook shows."""
    return f"<div>You predicted: <em>{html.escape(prediction)}</em></div>"
