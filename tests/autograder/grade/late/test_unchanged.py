"""A submission keeps its time as long as what is graded stays the same."""

from types import SimpleNamespace

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.grade.late.unchanged import keep_time
from autograder.grade.submission.files import SECRET, TIMESTAMP
from autograder.grade.submission.submission import Course, Submission
from tests.course import WORK

FIRST, LATER = "2026-11-02 11:00:00 UTC", "2026-11-09 11:00:00.5 UTC"
PLAN = SimpleNamespace(
    cells={
        "imports": SimpleNamespace(is_written_by_students=False),
        "lstm_step": SimpleNamespace(is_written_by_students=True),
        "shortcut": SimpleNamespace(is_written_by_students=True),
    }
)


@pytest.fixture
def ada(tmp_path, monkeypatch) -> Submission:
    monkeypatch.setattr(Course, "plan", lambda self, assignment: PLAN)
    (tmp_path / WORK / "submitted" / "ada" / "02_lstm").mkdir(parents=True)
    return Submission(Course(tmp_path), "02_lstm", "ada")


def cells() -> list:
    found = [
        new_code_cell("import torch"),
        new_code_cell("lstm_step = 1"),
        new_markdown_cell("It is a sum."),
    ]
    for cell, name in zip(found, PLAN.cells, strict=True):
        cell.metadata["nbgrader"] = {"grade_id": name}
    return found


def request():
    return new_markdown_cell("## Regrade request\nThe batch of one is right.")


def came(ada: Submission, when: str, found: list) -> str:
    """Say which time a submission has that came at a time."""
    (ada.folder / TIMESTAMP).write_text(when)
    keep_time(ada, new_notebook(cells=found))
    return (ada.folder / TIMESTAMP).read_text()


def test_a_request_changes_no_time(ada):
    assert came(ada, FIRST, cells()) == FIRST
    assert came(ada, LATER, [request(), *cells()]) == FIRST
    given, *own = cells()
    given.source = "import torch, numpy"
    assert came(ada, LATER, [given, *own]) == FIRST
    (ada.folder / SECRET).write_text("another one, as nbgrader gives every submission")
    assert came(ada, LATER, [*cells(), request()]) == FIRST


@pytest.mark.parametrize(
    "what",
    ["solution", "answer", "answer like a request", "own code", "own text", "file", "notebook"],
)
def test_other_work_has_its_own_time(ada, what):
    assert came(ada, FIRST, cells()) == FIRST
    found = [*cells(), request()]
    if what == "file":
        (ada.folder / "weights.pt").write_text("0.5")
    elif what == "notebook":
        (ada.folder / "other.ipynb").write_text("{}")
    elif what == "own code":
        found.append(new_code_cell("lstm_step = 2"))
    elif what == "own text":
        found.append(new_markdown_cell("It is a product."))
    elif what == "solution":
        found[1].source = "lstm_step = 2"
    else:
        found[2].source = "It is a product." if what == "answer" else "Regrade request: a product"
    assert came(ada, LATER, found) == LATER
    assert came(ada, LATER, [*found, request()]) == LATER


def test_without_a_time_there_is_none_to_keep(ada):
    assert keep_time(ada, new_notebook(cells=cells())) is None
    assert came(ada, "", cells()) == ""
