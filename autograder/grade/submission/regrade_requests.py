"""Regrade requests: Markdown cells of students that begin with these words."""

import re
import textwrap
from collections.abc import Iterable

from nbformat import NotebookNode

from autograder.grade.submission.reading import Submitted

_LONGEST = 300  # characters of a request that are shown
_MOST = 3  # requests of a student that are shown
_BEGINNING = re.compile(r"\W*regrade request\b\W*", re.IGNORECASE)


def is_request(cell: Submitted | NotebookNode) -> bool:
    """Say whether a cell asks for a regrade."""
    return cell.cell_type == "markdown" and _BEGINNING.match(cell.source) is not None


def request(cells: Iterable[Submitted]) -> str:
    """Read what a student asks for, as one line: the first requests, and how many more there are.

    Nothing if there is no request.

    Args:
        cells: of the notebook that was submitted.
    """
    asked = [_BEGINNING.sub("", cell.source, count=1) for cell in cells if is_request(cell)]
    shown = list(map(_line, asked[:_MOST]))
    more = [f"and {len(asked) - _MOST} more in the notebook"] if len(asked) > _MOST else []
    return " / ".join(shown + more)


def _line(text: str) -> str:
    """Put a text on one line of a terminal, which must not obey it."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return textwrap.shorten(shown, _LONGEST, placeholder=" …") or "(no reason given)"
