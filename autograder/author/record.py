"""The figures of an assignment on the scoreboard, kept with a hash of the code that decides them.

To score an assignment takes a minute, since hundreds of solutions run through its checks. While
nothing of the code has changed that decides the figures, they are the same.
"""

import hashlib
import json
from pathlib import Path

import torch

from autograder.assignment import ROOT, Assignment
from autograder.author.depends import scores_depend_on

DIFFERS = ("seconds",)  # from one run to the next


def path(assignment: Assignment) -> Path:
    """The file of the figures."""
    return ROOT / "autograder" / "assignments" / assignment.topic / "data" / "score.json"


def code(assignment: Assignment) -> str:
    """Hash all that decides the figures: code, what is known of mistakes, and torch's version."""
    known = [
        ROOT / "course_pkg" / "checks" / "data" / f"{assignment.name}.npz",
        path(assignment).with_name(f"{assignment.name}.npz"),
    ]
    parts = [scores_depend_on(assignment.topic), torch.__version__.partition("+")[0]]
    parts += [hashlib.sha256(each.read_bytes()).hexdigest() for each in known if each.exists()]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def read(assignment: Assignment) -> list[dict] | None:
    """Read the figures of each exercise; None if there are none, or of other code."""
    if not path(assignment).exists():
        return None
    kept = json.loads(path(assignment).read_text(encoding="utf-8"))
    return kept["rows"] if kept["code"] == code(assignment) else None


def write(assignment: Assignment, rows: list[dict]) -> None:
    """Keep the figures of each exercise, unless the same ones are kept for this code."""
    kept = read(assignment)
    if kept is not None and [*map(_figures, kept)] == [*map(_figures, rows)]:
        return
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    text = f'{{"code": "{code(assignment)}", "rows": [\n{lines}\n]}}\n'
    path(assignment).parent.mkdir(parents=True, exist_ok=True)
    path(assignment).write_text(text, encoding="utf-8")


def _figures(row: dict) -> dict:
    return {key: value for key, value in row.items() if key not in DIFFERS}
