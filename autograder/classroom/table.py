"""Tables for teachers: in columns for a terminal, and as CSV to take elsewhere."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from autograder.assignment import CourseError


def write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write rows to a new file.

    Raises:
        CourseError: the file exists, or cannot be written.
    """
    try:
        with open(path, "x", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    except FileExistsError:
        raise CourseError(f"{path} exists: remove it, or name another file with --to") from None
    except OSError as error:
        raise CourseError(f"{path} cannot be written: {error.strerror}") from None


def in_columns(rows: Iterable[tuple[str, ...]]) -> str:
    """Write rows below each other, in columns; nothing in them can steer a terminal."""
    rows = [tuple(map(_printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
