"""The course in which everybody has submitted: honest, unlucky, lazy and hostile students."""

import copy
import json
import os
import textwrap
import zipfile
from pathlib import Path

import nbformat

from autograder.assignment import ROOT, Assignment
from autograder.grade.submission.submission import INPUTS
from tests import course as toolbox
from tests.course import WORK
from tests.hostile.accidents import NONE, UNREADABLE
from tests.hostile.attacks import ATTACKS
from tests.hostile.empty_solutions import ALLOWED, FLAGGED, FORBIDDEN
from tests.hostile.forms import ACCIDENTS

LSTM = Assignment("02_lstm")
KEPT = ["cell_gradient", "init_forget_bias", "gru_step"]
POINTS = {name: points for name, points in toolbox.points(LSTM).items() if name in KEPT}
HONEST = "honest"
NOTEBOOK = f"{LSTM.name}.ipynb"


def _students(prefix: str, table) -> dict[str, str]:
    """Give submissions names that a student may have."""
    return {name: f"{prefix}-{'-'.join(name.lower().split())}".replace("'", "") for name in table}


ATTACKERS = _students("attack", ATTACKS)
VICTIMS = _students("accident", ACCIDENTS)
LAZY = _students("empty", FORBIDDEN)
SUSPECTS = _students("suspect", FLAGGED)
FAIR = _students("fair", ALLOWED)
FOLDERS = ["links", "renamed", "missing", "two-notebooks", "bad-timestamp", "large-file", "device"]
FOLDERS += ["not-utf-8", "archive", "copy-and-original", "two-solved", "long-names"]
FOLDERS += ["future", "before-1970", "year-1", "timestamp-in-latin-1"]
# Strange folders that a person should look at, and why.
DOUBTED = {
    "links": "book.db was set aside: a link; dangling was set aside: a link",
    "missing": "the notebook is missing, or an empty file; there is only scratch.json",
    "bad-timestamp": "the time stamp was malformed: the file came at ",
    "large-file": "data.bin was set aside: too large, or one too many",
    "device": "pipe was set aside: not a file",
    "two-solved": "02_lstm-Copy1.ipynb was graded, and there is other work in 02_lstm.ipynb",
    "long-names": "was set aside: a link",
    "year-1": "the time stamp was malformed: the file came at ",
    "timestamp-in-latin-1": "the time stamp was malformed: the file came at ",
}
TABLES = (ATTACKERS, VICTIMS, LAZY, SUSPECTS, FAIR)
EVERYBODY = [HONEST, *FOLDERS, *(student for table in TABLES for student in table.values())]


def make(root: Path, canary: Path, port: int) -> dict[str, dict[str, float | None]]:
    """Make the course and the submissions.

    Args:
        root: an empty folder.
        canary: a file of the instructor's that nobody may read or change.
        port: a port of this machine that nobody may reach.
    Returns:
        The points that each student should get; None for more than nothing and less than all.
    """
    toolbox.new_course(root, LSTM, trim=_trimmed)
    (root / WORK / INPUTS).unlink()  # the course draws its own
    stub = nbformat.read(root / "notebooks" / LSTM.name / NOTEBOOK, as_version=4)
    solved = copy.deepcopy(stub)
    toolbox.solve(solved, LSTM)
    expected = dict.fromkeys([HONEST, *FOLDERS], POINTS) | {"missing": NONE}
    for student in expected:
        toolbox.submit(root, student, LSTM, solved)
    _change_folders(root, canary, stub)
    words = {"WHERE": str(ROOT), "COURSE": str(root), "CANARY": str(canary), "HOST": str(port)}
    for name, source in ATTACKS.items():
        nb = copy.deepcopy(stub)
        for old, new in words.items():
            source = source.replace(old, new)
        nb.cells.insert(1, nbformat.v4.new_code_cell(textwrap.dedent(source).strip()))
        nb.cells = [c for c in nb.cells if c.id not in KEPT]  # what the attack defines stays
        toolbox.submit(root, ATTACKERS[name], LSTM, nb)
        expected[ATTACKERS[name]] = NONE
    for name, change in ACCIDENTS.items():
        expected[VICTIMS[name]] = _accident(root, name, change, solved, stub)
    right = next(cell for cell in solved.cells if cell.id == "gru_step").source
    solutions = {LAZY[name]: source for name, source in FORBIDDEN.items()}
    solutions |= {SUSPECTS[name]: right + source for name, source in FLAGGED.items()}
    solutions |= {FAIR[name]: source + right for name, source in ALLOWED.items()}
    for student, source in solutions.items():
        nb = copy.deepcopy(solved)
        next(cell for cell in nb.cells if cell.id == "gru_step").source = source
        toolbox.submit(root, student, LSTM, nb)
        expected[student] = POINTS | ({"gru_step": 0} if student in LAZY.values() else {})
    return expected


def scores(root: Path, student: str) -> dict[str, float | None]:
    """The points of a student, without those of the question."""
    found = toolbox.scores(root, student, LSTM)
    return {name: found[name] for name in KEPT}


def as_json(nb: nbformat.NotebookNode, stub: nbformat.NotebookNode) -> dict:
    """Give a notebook as JSON that an accident can change; with it, the unsolved cells."""
    found = json.loads(nbformat.writes(nb))
    for cell in found["cells"]:
        cell["source"] = "".join(cell["source"])
    return {**found, "stubs": {c.id: c.source for c in stub.cells}}


def _trimmed(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Keep three exercises and one question."""
    kept = [name for exercise in KEPT for name in (exercise, f"check_{exercise}")]
    question = list(toolbox.questions(LSTM))[-1]
    kept += [f"question_{question}", question]
    nb.cells = [c for c in nb.cells if c.id in kept or "course_pkg import" in c.source]
    return nb


def _accident(root: Path, name: str, change, solved, stub) -> dict[str, float | None]:
    nb = as_json(solved, stub)
    result = change(nb)
    data = result if isinstance(result, bytes) else json.dumps(nb).encode()
    folder = root / WORK / "submitted" / VICTIMS[name] / LSTM.name
    folder.mkdir(parents=True)
    (folder / NOTEBOOK).write_bytes(data)
    if name in UNREADABLE:
        return NONE
    return POINTS | (result if isinstance(result, dict) else {})


def _change_folders(root: Path, canary: Path, stub: nbformat.NotebookNode) -> None:
    """Make some submissions strange as folders."""
    places = {student: root / WORK / "submitted" / student / LSTM.name for student in FOLDERS}
    (places["links"] / "data.txt").symlink_to(canary)
    (places["links"] / "book.db").symlink_to(root / WORK / "gradebook.db")
    (places["links"] / "dangling").symlink_to("/nowhere")
    (places["links"] / "loop").symlink_to(".")
    (places["renamed"] / NOTEBOOK).rename(places["renamed"] / "Untitled (1).ipynb")
    (places["missing"] / NOTEBOOK).unlink()
    (places["missing"] / "scratch.json").write_text("{}")
    (places["two-notebooks"] / "scratch.ipynb").write_text("{}")
    (places["bad-timestamp"] / "timestamp.txt").write_text("yesterday, I think")
    with open(places["large-file"] / "data.bin", "wb") as file:
        file.truncate(1 << 30)
    os.mkfifo(places["device"] / "pipe")
    Path(os.fsdecode(bytes(places["not-utf-8"]) + b"/caf\xe9.txt")).write_text("coffee")
    with zipfile.ZipFile(places["archive"] / "02_lstm.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(places["archive"] / NOTEBOOK, f"02_lstm/{NOTEBOOK}")
    (places["archive"] / NOTEBOOK).unlink()
    for student in ("copy-and-original", "two-solved"):
        (places[student] / NOTEBOOK).rename(places[student] / "02_lstm-Copy1.ipynb")
        original = copy.deepcopy(stub)
        if student == "two-solved":
            next(c for c in original.cells if c.id == "gru_step").source = "gru_step = None"
        nbformat.write(original, places[student] / NOTEBOOK)
    (places["long-names"] / ("n" * 255)).symlink_to("t" * 4000)
    (places["long-names"] / ("d" * 255) / ("e" * 255)).mkdir(parents=True)
    (places["long-names"] / ("d" * 255) / ("e" * 255) / ("f" * 255)).write_text("deep")
    for student, stamp in {
        "future": b"2999-12-31 23:59:59.999999 UTC",
        "before-1970": b"1969-12-31 23:59:59 UTC",
        "year-1": b"0001-01-01 00:00:00 +1400",
        "timestamp-in-latin-1": b"2026-10-01 12:00:00 \xe9t\xe9",
    }.items():
        (places[student] / "timestamp.txt").write_bytes(stamp)
