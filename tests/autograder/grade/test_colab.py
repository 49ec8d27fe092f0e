"""A notebook that went through Colab and came back: it can be validated, and loses no point."""

import io
import json

import nbformat
import pytest
from nbgrader.validator import Validator

from autograder.assignment import Assignment
from autograder.handout.start import INSTALL
from tests import course
from tests.colab import saved_by_colab
from tests.course import WORK

ASSIGNMENTS = [Assignment("02_lstm"), Assignment("06_positions")]


def without_ids(nb: dict) -> None:
    """Keep of cells' metadata only nbgrader's."""
    for cell in nb["cells"]:
        cell["metadata"] = {k: v for k, v in cell["metadata"].items() if k == "nbgrader"}


def without_metadata(nb: dict) -> None:
    nb["metadata"] = {}
    for cell in nb["cells"]:
        cell["metadata"] = {}


def without_the_first_cell(nb: dict) -> None:
    nb["cells"] = [c for c in nb["cells"] if "find_spec" not in "".join(c["source"])]


LOSSES = {
    "as-saved": lambda nb: None,
    "without-ids": without_ids,
    "without-metadata": without_metadata,
    "without-the-first-cell": without_the_first_cell,
}


def perfect(assignment: Assignment) -> nbformat.NotebookNode:
    nb = nbformat.read(assignment.student, as_version=4)
    course.solve(nb, assignment)
    course.answer(nb)
    return nb


@pytest.mark.parametrize("assignment", ASSIGNMENTS, ids=lambda assignment: assignment.name)
def test_full_marks(assignment, tmp_path):
    root = course.new_course(tmp_path, assignment)
    for student, lose in LOSSES.items():
        nb = saved_by_colab(perfect(assignment))
        lose(nb)
        course.submit_json(root, student, assignment, nb)

    course.nbgrader(root, "autograde", assignment.name)

    questions = course.questions(assignment)
    full = {**course.points(assignment), **dict.fromkeys(questions)}
    for student in LOSSES:
        assert course.scores(root, student, assignment) == full, student
        folder = root / WORK / "autograded" / student / assignment.name
        graded = nbformat.read(folder / f"{assignment.name}.ipynb", as_version=4)
        answers = [cell.source for cell in graded.cells if cell.id in questions]
        assert len(answers) >= 2 and set(answers) == {"Because the equations say so."}, student
        assert [cell.id for cell in graded.cells].count(INSTALL) == 1, student


@pytest.mark.parametrize("loss", ["as-saved", "without-ids"])
def test_validated(loss, tmp_path, monkeypatch):
    nb = perfect(ASSIGNMENTS[0])
    kept = (INSTALL, "init_forget_bias", "check_init_forget_bias")
    nb.cells = [cell for cell in nb.cells if cell.id in kept or "course_pkg import" in cell.source]
    found = saved_by_colab(nb)
    LOSSES[loss](found)
    path = tmp_path / "02_lstm.ipynb"
    path.write_text(json.dumps(found))
    said = io.StringIO()
    monkeypatch.setattr(Validator, "stream", said)
    course.nbgrader(tmp_path, "validate", str(path))
    assert said.getvalue() == "Success! Your notebook passes all the tests.\n"
