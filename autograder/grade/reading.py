"""Read submitted notebooks, whatever has happened to them: the texts and names of their cells."""

import json
from dataclasses import dataclass
from pathlib import Path

import nbformat

BYTES = 64 << 20  # of a notebook's file
CELLS = 2000
TEXT = 1 << 20  # characters of a cell
_KINDS = ("code", "markdown", "raw")


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


def read(path: Path) -> list[Submitted]:
    """Read the cells of a notebook of any version.

    Raises:
        Unreadable: it is not a notebook.
    """
    try:
        if path.stat().st_size > BYTES:
            raise Unreadable(f"the notebook has more than {BYTES >> 20} MB")
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"the notebook cannot be opened: {error.strerror}") from None
    if not data.strip():
        raise Unreadable("the notebook is an empty file")
    try:
        found = json.loads(_decode(data))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the notebook is not JSON: {error!s:.100}") from None
    cells = _cells(found)
    if not isinstance(cells, list):
        raise Unreadable("the file is not a notebook")
    return [cell for cell in map(_cell, cells[:CELLS]) if cell is not None]


def _decode(data: bytes) -> str:
    for encoding in ("utf-8-sig", "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "ascii"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("cp1252", errors="replace")


def _cells(found: object) -> object:
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("cells"), list):
        return found["cells"]
    try:  # versions 1 to 3 keep cells elsewhere
        return nbformat.convert(nbformat.from_dict(found), 4)["cells"]
    except Exception:  # nbformat raises whatever a broken notebook makes it raise
        return None


def _cell(found: object) -> Submitted | None:
    if not isinstance(found, dict):
        return None
    kind = found.get("cell_type")
    kind = "markdown" if kind in ("heading", "html") else kind
    if kind not in _KINDS:
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
        kind,
        source[:TEXT].encode("utf-8", "replace").decode().replace("\r\n", "\n"),
        name if isinstance(name, str) else None,
        found["id"] if isinstance(found.get("id"), str) else None,
        found["attachments"] if isinstance(found.get("attachments"), dict) else None,
    )
