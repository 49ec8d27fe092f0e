"""Submitted notebooks are put in order, and say nothing about themselves but the student's text."""

import copy
import json
import os
import shutil

import nbformat
import pytest
from nbgrader.utils import parse_utc

from autograder.assignment import Assignment
from autograder.author.notebook import notebook
from autograder.bounded import bounded_time
from autograder.grade.submission.files import SET_ASIDE, clean, walk
from autograder.grade.submission.mend import mend
from autograder.grade.submission.plan import Plan
from autograder.grade.submission.reading import Unreadable, read
from course_pkg.checking.rules import syntax
from tests import course as toolbox
from tests.hostile.accidents import UNREADABLE, code
from tests.hostile.course import as_json
from tests.hostile.forms import ACCIDENTS

LSTM = Assignment("02_lstm")
# In these, a check waits for its solution, or a stub gives way to it.
WAITING = {
    "two solutions merged",
    "a solution pasted at the end",
    "a solution pasted with what it needs",
    "a solution pasted and the metadata stripped",
    "a solution pasted below an attempt",
    "all solutions pasted at the end",
    "all solutions pasted at the top",
    "a solution of another name assigned below",
    "a solution pasted into its graded cell",
    "a solution pasted above its stub",
    "a solution pasted above all cells",
    "the texts of two solutions exchanged",
}


@pytest.fixture(scope="module")
def plan():
    return Plan.read(LSTM.solved)


@pytest.fixture(scope="module")
def stub():
    return nbformat.read(LSTM.student, as_version=4)


@pytest.fixture(scope="module")
def solved(stub):
    nb = copy.deepcopy(stub)
    toolbox.solve(nb, LSTM)
    return nb


def submitted(name: str, solved, stub) -> bytes:
    nb = as_json(solved, stub)
    result = ACCIDENTS[name](nb)
    return result if isinstance(result, bytes) else json.dumps(nb).encode()


@pytest.mark.parametrize("name", sorted(set(ACCIDENTS) - UNREADABLE))
def test_planned_cells_are_as_planned(name, plan, solved, stub):
    nb = mend(read(submitted(name, solved, stub)).cells, plan)
    nbformat.validate(nb)
    found = [c.metadata.nbgrader.grade_id for c in nb.cells if "nbgrader" in c.metadata]
    if name not in WAITING:
        assert found == [n for n in plan.cells if n in found]
    missing = set(plan.cells) - set(found)
    assert all(plan.cells[n].is_written_by_students for n in missing)
    for cell in nb.cells:
        if meta := cell.metadata.get("nbgrader"):
            planned = plan.cells[meta.grade_id]
            assert meta == planned.nbgrader and cell.cell_type == planned.cell_type
            if not planned.is_written_by_students:
                assert cell.source == planned.source
        else:
            assert cell.metadata == {}


@pytest.mark.parametrize("name", [name for name in ACCIDENTS if name.startswith("all code")])
def test_merged_code_comes_apart(name, plan, solved, stub):
    """Each exercise has its own cell again, and nothing given runs twice."""
    cells = mend(read(submitted(name, solved, stub)).cells, plan).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    sources = {c.metadata.nbgrader.grade_id: c.source for c in code if "nbgrader" in c.metadata}
    right = {cell.id: cell.source for cell in solved.cells}
    for exercise in plan.exercises:
        assert sources[exercise].replace("# In[ ]:", "").strip() == right[exercise]
    others = [c.source for c in code if "nbgrader" not in c.metadata]
    assert all("check(" not in source and "ready(" not in source for source in others)


def test_a_mistake_in_merged_code_costs_one_exercise(plan, solved, stub):
    nb = as_json(solved, stub)
    ACCIDENTS["all code merged into one"](nb)
    (merged,) = [cell for cell in nb["cells"] if cell["cell_type"] == "code"]
    merged["source"] = merged["source"].replace("def gru_step(", "def gru_step((")
    cells = mend(read(json.dumps(nb).encode()).cells, plan).cells
    found = {c.metadata.nbgrader.grade_id for c in cells if "nbgrader" in c.metadata}
    assert set(plan.exercises) - found == {"gru_step"}
    assert sum("def gru_step((" in cell.source for cell in cells) == 1


def test_given_code_in_a_string_stays_there(plan, solved, stub):
    nb = as_json(solved, stub)
    solution = next(cell for cell in nb["cells"] if cell["id"] == "gru_step")
    solution["source"] += '\n\n\n"""\ncheck(gru_step)\n"""'
    nb["cells"] = [cell for cell in nb["cells"] if cell["id"] != "check_gru_step"]
    cells = mend(read(json.dumps(nb).encode()).cells, plan).cells
    found = {c.metadata.nbgrader.grade_id: c for c in cells if "nbgrader" in c.metadata}
    assert found["gru_step"].source == solution["source"]


def test_a_released_notebook_stays_as_it_is(plan, stub):
    nb = mend(read(nbformat.writes(stub).encode()).cells, plan)
    assert [c.cell_type for c in nb.cells] == [c.cell_type for c in stub.cells]
    for cell, released in zip(nb.cells, stub.cells, strict=True):
        if cell.metadata.get("nbgrader", {"solution": True})["solution"]:
            assert cell.source == released.source


@pytest.mark.parametrize("written", [None, "the second"])
def test_a_prediction_is_the_students_and_need_not_be_there(written):
    built = notebook(LSTM)
    plan, nb = Plan(built), copy.deepcopy(built)
    number, cell = next((n, c) for n, c in enumerate(nb.cells) if c.id.startswith("predict-"))
    if written is None:
        del nb.cells[number]
    else:
        cell.source = cell.source.replace('""', f'"{written}"')
    mended = mend(read(nbformat.writes(nb).encode()).cells, plan)
    assert [c.source for c in mended.cells] == [c.source for c in nb.cells]


@pytest.mark.parametrize("above", ["all cells", "the imports"])
def test_code_above_the_imports_follows_them(plan, solved, stub, above):
    nb = as_json(solved, stub)
    kinds = [cell["cell_type"] for cell in nb["cells"]]
    imports = [n for n, kind in enumerate(kinds) if kind == "code"][1]
    assert "import torch" in "".join(nb["cells"][imports]["source"])
    nb["cells"].insert(0 if above == "all cells" else imports, code("half = torch.tensor(0.5)"))
    found = [c.source for c in mend(read(json.dumps(nb).encode()).cells, plan).cells]
    place = found.index("half = torch.tensor(0.5)")
    assert "from course_pkg import" in found[place - 1]


def test_too_much_code_is_not_parsed_and_stays_in_place(plan, solved, stub, monkeypatch):
    nb = as_json(solved, stub)
    long = "# long\n" * (syntax.READABLE // 6)
    nb["cells"].append(code(long))
    parsed = []
    monkeypatch.setattr(syntax, "parse", parsed.append)
    found = mend(read(json.dumps(nb).encode()).cells, plan).cells
    assert not parsed and found[-1].source == long and len(found) == len(nb["cells"])


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_unreadable(name, solved, stub):
    with pytest.raises(Unreadable):
        read(submitted(name, solved, stub))


def test_a_backup_by_hard_links_is_graded(tmp_path, solved):
    folder, backup = tmp_path / "submission", tmp_path / "backup"
    folder.mkdir()
    nbformat.write(solved, folder / "02_lstm.ipynb")
    shutil.copytree(folder, backup, copy_function=os.link)
    assert clean(folder, "02_lstm", tmp_path / "aside") == []
    (folder / "02_lstm.ipynb").write_text("changed")
    assert nbformat.read(backup / "02_lstm.ipynb", as_version=4) == solved
    assert len(list(folder.iterdir())) == 1


def test_cleaning_a_folder(tmp_path, solved):
    folder, aside = tmp_path / "submission", tmp_path / "aside"
    folder.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (folder / "data.txt").symlink_to(secret)
    (folder / "table.csv").write_text("1, 2")
    (folder / "timestamp.txt").write_text("yesterday, I think")
    nbformat.write(solved, folder / "Untitled.ipynb")
    done = clean(folder, "02_lstm", aside)
    assert len(done) == 3 and len(list(aside.iterdir())) == 2
    names = {"02_lstm.ipynb", "Untitled.ipynb", "table.csv", "timestamp.txt", SET_ASIDE}
    assert {path.name for path in folder.iterdir()} == names
    assert secret.read_text() == "secret"
    assert clean(folder, "02_lstm", aside) == []


def test_a_folder_too_deep_is_set_aside(tmp_path):
    folder = tmp_path / "submission"
    deepest = folder.joinpath(*["d"] * 300)
    deepest.mkdir(parents=True)
    (deepest / "a.txt").write_text("deep")
    (folder / "near" / "by").mkdir(parents=True)
    (folder / "near" / "by" / "b.txt").write_text("near")
    done = clean(folder, "02_lstm", tmp_path / "aside")
    assert "d was set aside: a folder too deep within others" in done
    assert sorted(path.name for path in walk(folder)) == ["02_lstm.ipynb", "b.txt", SET_ASIDE]
    assert clean(folder, "02_lstm", tmp_path / "aside") == []


def test_a_million_empty_lines_above_the_imports_are_mended_soon():
    cell = code("\n" * 1_000_000 + "%reset -f")
    nb = {"cells": [cell] * 20}
    with bounded_time(20):
        found = mend(read(json.dumps(nb).encode()).cells, Plan.read(LSTM.solved)).cells
    assert found[0].source.endswith("%reset -f")


@pytest.mark.parametrize(
    ("stamp", "is_time"),
    [
        (b"2026-10-01 12:00:00 UTC", True),
        (b"2999-12-31 23:59:59.999999 UTC", True),
        (b"1969-12-31 23:59:59 UTC", True),
        (b"", True),
        (b"0001-01-01 00:00:00 +1400", False),
        (b"9999-12-31 23:59:59 -1400", False),
        (b"0001-01-01 00:00:00 UTC", False),
        (b"9999-12-31 23:59:59 UTC", False),
        (b"2026-10-01 12:00:00 \xe9t\xe9", False),
        (b"9" * 10_000, False),
        (b"2026-10-01 12:00:00 UTC" + b" " * 200 + b"x", False),
        ("2026-10-01".encode("utf-16"), False),
        (b"\0", False),
    ],
)
def test_time_stamps(tmp_path, stamp, is_time):
    folder = tmp_path / "submission"
    folder.mkdir()
    (folder / "02_lstm.ipynb").write_text("{}")
    (folder / "timestamp.txt").write_bytes(stamp)
    done = clean(folder, "02_lstm", tmp_path / "aside")
    assert done == [] if is_time else "the time stamp was malformed" in done[0]
    text = (folder / "timestamp.txt").read_text().strip()
    assert not text or parse_utc(text)


@pytest.mark.parametrize(
    ("stamp", "meant"),
    [
        ("10/25/2026 2:30 PM", "2026-10-25 14:30:00"),
        ("2026-10-25 2:30:00 pm", "2026-10-25 14:30:00"),
        ("25.10.2026 12:05 AM", "2026-10-25 00:05:00"),
        ("10/25/2026, 2:30:00 PM", "2026-10-25 14:30:00"),
        ("Oct 25, 2026 2:30 PM", "2026-10-25 14:30:00"),
        ("Sun Oct 25 14:30:00 2026", "2026-10-25 14:30:00"),
        ("2026-10-11 14:30", "2026-10-11 14:30:00"),
        ("2026-10-25", "2026-10-25 00:00:00"),
        ("2026-10-25T14:30:00Z", "2026-10-25 14:30:00"),
        ("2026-10-25T14:30:00.5+02:00", "2026-10-25 12:30:00"),
        ("2026-10-25 14:30:00 +0200", "2026-10-25 12:30:00"),
        ("2026-10-25 14:30:00 UTC", "2026-10-25 14:30:00"),
        ("2026-10-25 14:30:00.123456 UTC", "2026-10-25 14:30:00"),
        ("2026-10-24 14:30:00 Europe/Berlin", "2026-10-24 12:30:00"),
        ("2026-10-25 14:30:00 Europe/Berlin", "2026-10-25 13:30:00"),
        ("2026-10-25 14:30:00 EST", "2026-10-25 19:30:00"),
        # No way to read it, or more than one: then the time counts at which the file came.
        ("10/11/2026 14:30", None),
        ("10.11.2026 14:30", None),
        ("14:30", None),
        ("2026-10-25 14:30:00 CEST", None),
        ("2026-10-25 14:30:00 IST", None),
        ("25 October", None),
        ("2026-02-30 12:00", None),
        ("tomorrow at 2 PM", None),
    ],
)
def test_a_time_stamp_is_what_it_says(tmp_path, stamp, meant):
    folder = tmp_path / "submission"
    folder.mkdir()
    (folder / "02_lstm.ipynb").write_text("{}")
    path = folder / "timestamp.txt"
    path.write_text(stamp)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    done = clean(folder, "02_lstm", tmp_path / "aside")
    read = parse_utc(path.read_text()).replace(microsecond=0)
    assert str(read) == (meant or "2023-11-14 22:13:20")
    if meant is None:
        assert done == ["the time stamp was malformed: the file came at 2023-11-14 22:13:20 UTC"]
    assert clean(folder, "02_lstm", tmp_path / "aside") == []
