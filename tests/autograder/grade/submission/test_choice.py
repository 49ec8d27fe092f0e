"""Which notebook of a submission is graded, and what is said about it."""

import copy
import json
import zipfile
from pathlib import Path

import nbformat
import pytest

from autograder.assignment import Assignment
from autograder.grade.submission import choice
from autograder.grade.submission.choice import choose
from autograder.grade.submission.files import SET_ASIDE, clean
from autograder.grade.submission.mend import mend
from autograder.grade.submission.plan import Plan
from autograder.grade.submission.reading import BYTES
from tests import course as toolbox

LSTM = Assignment("02_lstm")
NOTEBOOK = f"{LSTM.name}.ipynb"
COPY = "02_lstm-Copy1.ipynb"


@pytest.fixture(scope="module")
def plan():
    return Plan.read(LSTM.solved)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The notebook untouched, with one exercise solved, and with all."""
    stub = nbformat.read(LSTM.student, as_version=4)
    one, solved = copy.deepcopy(stub), copy.deepcopy(stub)
    toolbox.solve(one, LSTM, ["gru_step"])
    toolbox.solve(solved, LSTM)
    return {n: nbformat.writes(nb) for n, nb in (("stub", stub), ("one", one), ("all", solved))}


@pytest.fixture
def chosen(tmp_path, plan, texts):
    """Clean a folder that holds these files, and choose; say how much of it is solved."""

    def run(files: dict[str, str | bytes]):
        folder = tmp_path / "submission"
        for name, data in files.items():
            data = texts.get(data, data) if isinstance(data, str) else data
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
        clean(folder, LSTM.name, tmp_path / "aside")
        found = choose(folder, LSTM.name, plan)
        clean(folder, LSTM.name, tmp_path / "aside")
        assert choose(folder, LSTM.name, plan) == found, "it should not depend on the first time"
        if not found.cells:
            return None, found.doubts, found.remarks
        sources = {cell.id: cell.source for cell in mend(found.cells, plan).cells}
        solved = [name for name in plan.exercises if "NotImplementedError" not in sources[name]]
        share = {0: "stub", 1: "one", len(plan.exercises): "all"}[len(solved)]
        return share, found.doubts, found.remarks

    return run


def zipped(files: dict[str, str | bytes], texts: dict[str, str], path: Path) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, texts.get(text, text))
    return path.read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "02_lstm.IPYNB",
        "02_lstm.ipynb.txt",
        "02_lstm (1).ipynb",
        "02_lstm.ipynb.json",
        "02_lstm.json",
        "02_lstm",
        "homework/02_lstm.ipynb",
        "Über √ 2.ipynb",
        "n" * 249 + ".ipynb",
        "<script>alert(1)<script>.ipynb",
    ],
)
def test_the_only_notebook_may_have_any_name(chosen, name):
    share, doubts, remarks = chosen({name: "all"})
    assert share == "all" and doubts == []
    assert len(remarks) == 1 and remarks[0].endswith(" was graded")
    assert "<" not in remarks[0] and len(remarks[0]) < 120


def test_the_right_name_needs_no_remark(chosen):
    assert chosen({NOTEBOOK: "all"}) == ("all", [], [])


def test_an_untouched_original_gives_way(chosen):
    assert chosen({NOTEBOOK: "stub", COPY: "all"}) == ("all", [], [f"{COPY} was graded"])


def test_names_that_look_the_same(chosen):
    assert chosen({NOTEBOOK: "stub", "02\1lstm.ipynb": "stub", "02\2lstm.ipynb": "all"})[0] == "all"


def test_an_untouched_copy_or_another_notebook_changes_nothing(chosen):
    other = json.dumps({"cells": [{"cell_type": "code", "source": "1"}]})
    files = {NOTEBOOK: "all", COPY: "stub", "backup.ipynb": "all", "scratch.ipynb": other}
    assert chosen(files) == ("all", [], [])


def test_of_two_with_work_the_one_with_more_is_graded_and_a_person_looks(chosen, texts):
    other = texts["one"].replace("def gru_step(", "def gru_step(  # another")
    doubt = f"{COPY} was graded, and there is other work in {NOTEBOOK}"
    assert chosen({NOTEBOOK: other, COPY: "all"}) == ("all", [doubt], [f"{COPY} was graded"])


def test_an_earlier_state_of_the_same_work_needs_nobody(chosen):
    assert chosen({NOTEBOOK: "all", COPY: "one"}) == ("all", [], [])
    assert chosen({NOTEBOOK: "one", COPY: "all"})[0] == "all"


def test_a_broken_original_beside_a_copy(chosen, texts):
    share, doubts, _ = chosen({NOTEBOOK: texts["all"][:-50], COPY: "all"})
    assert share == "all"
    assert len(doubts) == 1 and "the notebook is not JSON" in doubts[0]


def test_no_notebook(chosen):
    share, doubts, _ = chosen({"02_lstm.py": "x = 1", "scratch.ipynb": "{}"})
    reason = "the notebook is missing, or an empty file"
    assert share is None and doubts == [reason, "there is only 02_lstm.py, scratch.ipynb"]


def test_an_archive(chosen, texts, tmp_path):
    data = zipped({f"02_lstm/{NOTEBOOK}": "all"}, texts, tmp_path / "a.zip")
    remark = f"work.zip/02_lstm/{NOTEBOOK} was graded"
    assert chosen({"work.zip": data}) == ("all", [], [remark])


def test_an_archive_called_as_a_notebook(chosen, texts, tmp_path):
    assert chosen({NOTEBOOK: zipped({"a.ipynb": "all"}, texts, tmp_path / "a.zip")})[0] == "all"


def test_an_archive_with_other_files(chosen, texts, tmp_path):
    files = {NOTEBOOK: "all", "helpers.py": "x = 1", "__MACOSX/._02_lstm.ipynb": "x"}
    share, doubts, _ = chosen({"work.zip": zipped(files, texts, tmp_path / "a.zip")})
    assert share == "all" and doubts == ["of work.zip only notebooks were read"]


def test_archives_in_archives(chosen, texts, tmp_path):
    """As made by those who compress what was compressed already, and by Moodle."""
    inner = zipped({f"02_lstm/{NOTEBOOK}": "all"}, texts, tmp_path / "a.zip")
    outer = zipped({"__MACOSX/x": "", "in.ZIP": inner}, texts, tmp_path / "b.zip")
    remark = f"work.zip/in.ZIP/02_lstm/{NOTEBOOK} was graded"
    assert chosen({"work.zip": outer}) == ("all", [], [remark])
    more = zipped({"b.zip": outer, "notes.pdf": "?", "c.zip": "none"}, texts, tmp_path / "c.zip")
    share, doubts, remarks = chosen({"work.zip": more})
    assert share == "all" and doubts == ["of work.zip only notebooks were read"]
    assert remarks == [f"work.zip/b.zip/in.ZIP/02_lstm/{NOTEBOOK} was graded"]


def test_archives_in_archives_have_an_end(chosen, texts, tmp_path):
    data = zipped({NOTEBOOK: "all"}, texts, tmp_path / "0.zip")
    for number in range(choice.ARCHIVES):
        data = zipped({"in.zip": data}, texts, tmp_path / f"{number}.zip")
    share, doubts, _ = chosen({"work.zip": data})
    assert share is None and "there is only work.zip" in doubts


def test_an_archive_with_a_name_that_is_no_utf_8_is_none(chosen, texts, tmp_path):
    data = zipped({"aé.ipynb": "all"}, texts, tmp_path / "a.zip").replace("é".encode(), b"\xff\xfe")
    assert chosen({NOTEBOOK: "all", "work.zip": data})[0] == "all"


def test_bombs(chosen, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "BYTES", 2 << 20)
    bomb = zipped({f"{n}.ipynb": "0" * (1 << 20) for n in range(20)}, texts, tmp_path / "a.zip")
    many = zipped({f"{n}.ipynb": "{}" for n in range(1000)}, texts, tmp_path / "b.zip")
    broken = zipped({NOTEBOOK: "all"}, texts, tmp_path / "c.zip")[:-100]
    archives = {"bomb.zip": bomb, "many.zip": many, "broken.zip": broken}
    assert chosen({NOTEBOOK: "all", **archives}) == ("all", [], [])
    share, doubts, _ = chosen({NOTEBOOK: b"", **archives})
    assert share is None and "there is only bomb.zip, broken.zip, many.zip" in doubts


def test_a_notebook_that_is_too_large_is_said_to_be(tmp_path, plan):
    folder = tmp_path / "submission"
    folder.mkdir()
    with open(folder / NOTEBOOK, "wb") as file:
        file.truncate(BYTES + 1)
    clean(folder, LSTM.name, tmp_path / "aside")
    reasons = choose(folder, LSTM.name, plan).doubts
    assert f"{NOTEBOOK} was set aside: too large, or one too many" in reasons
    assert (folder / SET_ASIDE).exists()


def test_a_students_own_note_of_what_was_set_aside_is_harmless(chosen):
    share, doubts, _ = chosen(
        {NOTEBOOK: "all", SET_ASIDE: "\ud800<b>*".encode("utf-8", "replace") * 10_000}
    )
    assert share == "all" and len(doubts) == 1 and len(doubts[0]) <= 200


def test_all_notebooks_of_a_submission_have_one_bound(tmp_path, plan, texts, monkeypatch):
    folder = tmp_path / "submission"
    folder.mkdir()
    large = json.loads(texts["one"])
    text = {"cell_type": "markdown", "metadata": {}, "source": "A" * (1 << 20)}
    large["cells"] += [text] * 20
    for n in range(8):
        with zipfile.ZipFile(folder / f"{n}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.ipynb", json.dumps(large))
    reads, read = [], choice.read
    monkeypatch.setattr(choice, "read", lambda data: (reads.append(len(data)), read(data))[1])
    found = choose(folder, LSTM.name, plan)
    assert len(reads) == BYTES // reads[0] == 6
    assert any("not all notebooks were read" in doubt for doubt in found.doubts)
    (folder / NOTEBOOK).write_text(texts["all"])  # the one of the right name comes first
    assert choose(folder, LSTM.name, plan).cells[0].source
    assert reads[6] == len(texts["all"].encode())


def test_a_submission_has_so_many_notebooks(tmp_path, plan, texts):
    for n in range(choice.NOTEBOOKS + 5):
        (tmp_path / f"{n:03}.ipynb").write_text("{}")
    (tmp_path / NOTEBOOK).write_text(texts["all"])
    found = choose(tmp_path, LSTM.name, plan)
    assert found.cells and any("not all notebooks were read" in doubt for doubt in found.doubts)
