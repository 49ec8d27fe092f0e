"""Tables for teachers: in columns for a terminal, and as CSV to take elsewhere."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from autograder.assignment import CourseError

_FORMULAS = tuple("=+-@＝＋－＠")  # what spreadsheets take for the beginning of a formula


def write(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows to a new file.

    Raises:
        CourseError: the file exists, or cannot be written.
    """
    try:
        with open(path, "x", newline="", encoding="utf-8") as file:
            file.write(as_csv(rows))
    except FileExistsError:
        raise CourseError(f"{path} exists: remove it, or name another file with --to") from None
    except OSError as error:
        raise CourseError(f"{path} cannot be written: {error.strerror}") from None


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Write rows as the text of a file, whose lines end with CR LF, as RFC 4180 says."""
    file = io.StringIO()
    csv.writer(file).writerows(map(harmless, row) for row in rows)
    return file.getvalue()


def harmless(value: object) -> object:
    """Keep a text from being a formula where a table is opened: an apostrophe makes it text."""
    if not isinstance(value, str) or value.lstrip()[:1] not in _FORMULAS or _is_number(value):
        return value
    return f"'{value}"


def in_columns(rows: Iterable[tuple[str, ...]]) -> str:
    """Write rows below each other, in columns; nothing in them can steer a terminal."""
    rows = [tuple(map(_printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
