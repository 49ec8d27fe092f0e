"""How far a student is: which exercises pass, how many points that is, and what is next."""

import difflib
import html
import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

from course_pkg.checking.notebook.outline import outline, topics
from course_pkg.checking.telling.report import WIDTH, coloured
from course_pkg.checking.telling.session import FOUND, Found

_VISIBLE = (
    "These are the points for what the checks in the notebook find. The grader runs others as well,"
    " so they may differ. Questions are graded by hand and are not counted here. After a change,"
    " check again what uses it."
)
_LEGEND = {
    "○": "○ is not implemented, or has not been checked in this session.",
    "–": "– cannot be checked on this machine.",
}
_SAVED = "From checks of this session and, of other notebooks, those that they were saved with."


@dataclass(frozen=True)
class Standing:
    """An exercise, its points, and what a check has found, if it was checked."""

    name: str
    points: float
    found: Found | None

    @property
    def mark(self) -> str:
        if self.found is None:
            return "○"
        if self.found["why_not"]:
            return "–"
        return "✓" if self.found["share"] == 1 else "✗"

    @property
    def earned(self) -> float:
        return round(self.points * self.found["share"], 2) if self.found else 0.0


class Table:
    """A table that a notebook shows as HTML, and a terminal as text.

    Args:
        rows: the cells of each row; the first row is the head, the last one the sum.
        notes: sentences below it.
    """

    def __init__(self, rows: list[tuple[str, ...]], notes: list[str]):
        self.rows = rows
        self.notes = notes

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in self.rows
        ]
        return "\n".join([*lines, "", *(textwrap.fill(note, WIDTH) for note in self.notes)])

    def _repr_html_(self) -> str:
        head, *body = (_row(row) for row in self.rows)
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        table = f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"
        return table + notes


def _row(cells: tuple[str, ...]) -> str:
    left = "<td style='text-align: left'>"
    return f"<tr>{''.join(f'{left}{coloured(html.escape(cell))}</td>' for cell in cells)}</tr>"


def progress(topic: str | None = None, *, folder: str | Path | None = None) -> Table:
    """Show which exercises pass, how many points that is of how many, and what is next.

    It reads what checks have found in this session. With a folder it makes one table of all
    assignments in it, from the notebooks `NN_topic/NN_topic.ipynb`: what this session has not
    checked counts there as the saved outputs of the notebook show it.

    Args:
        topic: the assignment, such as "lstm"; the one that was checked last when None.
        folder: where the assignments are, such as "..".
    Raises:
        LookupError: there is no such assignment.
    """
    if folder is not None:
        return _of_folder(Path(folder))
    if topic is None:
        if not FOUND:  # as where a notebook is graded: that is no error
            note = 'Run a check, or name the assignment: course_pkg.progress("lstm").'
            return Table([("Nothing has been checked in this session.",)], [note])
        topic = [*FOUND.values()][-1]["topic"]
    outlined = outline(topic)
    if not outlined:
        alike = difflib.get_close_matches(topic, topics(), n=3)
        known = f"did you mean {', '.join(alike)}?" if alike else f"there are {', '.join(topics())}"
        raise LookupError(f"there is no assignment {topic!r}; {known}")
    standings = [Standing(name, one["points"], FOUND.get(name)) for name, one in outlined.items()]
    rows = [(one.mark, one.name, _points([one])) for one in standings]
    head, total = ("", "exercise", "points"), ("", "sum", _points(standings))
    marks = {one.mark for one in standings}
    legend = [text for mark, text in _LEGEND.items() if mark in marks]
    return Table([head, *rows, total], [f"Next: {_next(standings)}.", *legend, _VISIBLE])


def _of_folder(folder: Path) -> Table:
    paths = sorted(p for p in folder.glob("[0-9][0-9]_*/*.ipynb") if p.stem == p.parent.name)
    if not paths:
        return Table([(f"There is no NN_topic/NN_topic.ipynb in {folder.resolve()}.",)], [])
    read, notes = {}, [_SAVED, _VISIBLE]
    for path in paths:
        try:
            read[path.stem] = _saved(path)
        except (OSError, ValueError, KeyError):  # no notebook, or half of one
            notes.insert(0, f"{path.name} cannot be read.")
    everything = [one for standings in read.values() for one in standings]
    rows = [
        (name, _passed(standings), _points(standings), _next(standings))
        for name, standings in read.items()
    ]
    head = ("assignment", "exercises that pass", "points", "next")
    total = ("sum", _passed(everything), _points(everything), "")
    return Table([head, *rows, total], notes)


def _saved(path: Path) -> list[Standing]:
    """Read the exercises of a notebook, and what its saved outputs say of them."""
    standings = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        graded = cell["metadata"].get("nbgrader", {})
        if cell["cell_type"] == "code" and graded.get("grade"):
            name = graded["grade_id"].removeprefix("check_")
            shown = [output.get("metadata", {}).get("check") for output in cell["outputs"]]
            found = FOUND.get(name) or next(filter(None, shown), None)
            standings.append(Standing(name, graded["points"], found))
    return standings


def _passed(standings: list[Standing]) -> str:
    return f"{sum(one.mark == '✓' for one in standings)} of {len(standings)}"


def _points(standings: list[Standing]) -> str:
    earned = round(sum(one.earned for one in standings), 2)
    return f"{earned:g} of {sum(one.points for one in standings):g}"


def _next(standings: list[Standing]) -> str:
    return next((one.name for one in standings if one.mark in "○✗"), "the questions")
