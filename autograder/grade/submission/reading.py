"""Read submitted notebooks, whatever has happened to them: the texts and names of their cells."""

import contextlib
import gc
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

BYTES = 128 << 20  # of a notebook's file; most of a large one are pictures
PARTS = 8 << 20  # lists, objects and their items: each needs many times its bytes when it is read
CELLS = 5000
TEXT = 1 << 20  # characters of a cell
_KINDS = ("code", "markdown", "raw")
_SPACE = " \t\r\n\0"


class Unreadable(Exception):
    """A file is not a notebook; the text says why."""


@dataclass
class Submitted:
    """A cell as it was submitted: its kind, its text, and what it calls itself."""

    cell_type: str
    source: str
    name: str | None  # nbgrader's
    id: str | None  # Jupyter's
    attachments: dict | None = None


@dataclass
class Notebook:
    """A submitted notebook.

    Args:
        cells: its cells.
        doubts: why a person should look at how it was read, each in words.
        remarks: what else is worth saying about that.
    """

    cells: list[Submitted]
    doubts: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def read(data: bytes) -> Notebook:
    """Read a notebook of any version.

    Args:
        data: what its file holds.
    Raises:
        Unreadable: it is not a notebook.
    """
    if len(data) > BYTES:
        raise Unreadable(f"the notebook has more than {BYTES >> 20} MB")
    if not data.strip():
        raise Unreadable("the notebook is missing, or an empty file")
    if sum(map(data.count, (b"[", b"{", b","))) > PARTS:
        raise Unreadable("the notebook has too many parts to be read")
    text = _decode(data).lstrip(_SPACE)
    try:
        with _uncollected():
            found, end = json.JSONDecoder(object_hook=_without_outputs).raw_decode(text)
        cells = _cells(found)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the notebook is not JSON: {error!s:.100}") from None
    if cells is None:
        raise Unreadable("the file is not a notebook")
    doubts = ["there is text below the notebook's end"] if text[end:].strip(_SPACE) else []
    if len(cells) > CELLS:
        cells = [cell for cell in cells if isinstance(cell, dict) and cell.get("source")]
    if len(cells) > CELLS:
        doubts.append(f"only the first {CELLS} of {len(cells)} cells were graded")
    submitted = [cell for cell in map(_cell, cells[:CELLS]) if cell is not None]
    if any(len(cell.source) > TEXT for cell in submitted):
        doubts.append(f"a cell was cut after {TEXT:,} characters")
    if any("\ufffd" in cell.source for cell in submitted):
        doubts.append("some characters of its cells cannot be read")
    for cell in submitted:
        cell.source = cell.source[:TEXT]
    return Notebook(submitted, doubts)


def whole(text: str) -> str:
    """Replace halves of characters, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Spare the garbage collector what is being read: none of it refers to itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _without_outputs(found: dict) -> dict:
    """Forget what a cell has shown, while the rest is being read: it may be large."""
    found.pop("outputs", None)
    return found


def _decode(data: bytes) -> str:
    """Decode a file in which some bytes may be damaged."""
    encoding = json.detect_encoding(data)
    text = data.decode(encoding, "replace")
    damaged = text.count("\ufffd")
    if damaged and damaged > len(re.findall(r"[^\0-\x7f\ufffd]", text)):
        return data.decode("cp1252", "replace")  # as old editors write it
    return text


def _cells(found: object) -> list | None:
    match found:
        case {"cells": list(cells)}:
            return cells
        case {"worksheets": list(sheets)}:  # versions 2 and 3
            return [cell for sheet in sheets for cell in _cells(sheet) or []]
    return None


def _cell(found: object) -> Submitted | None:
    if not isinstance(found, dict):
        return None
    source = found.get("source", found.get("input", ""))
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    if not isinstance(source, str):
        return None
    metadata = found.get("metadata")
    grader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    name = grader.get("grade_id") if isinstance(grader, dict) else None
    return Submitted(
        _kind(found),
        whole(source).replace("\r\n", "\n"),
        name if isinstance(name, str) else None,
        found["id"] if isinstance(found.get("id"), str) else None,
        found["attachments"] if isinstance(found.get("attachments"), dict) else None,
    )


def _kind(found: dict) -> str:
    kind = found.get("cell_type")
    if kind in _KINDS:
        return kind
    if kind in ("heading", "html"):
        return "markdown"
    return "code" if "execution_count" in found or "input" in found else "raw"
