"""Solved notebooks run in their time; in students' notebooks nothing fails but checks."""

import os
import re
import sys

import nbformat
import pytest

from autograder.assignment import Assignment, assignments
from autograder.author import build
from autograder.author.execution import execute
from autograder.handout.exercise import exercises
from tests import course as toolbox
from tests import patience, yardstick

BUDGET = 90  # seconds of computing for a solved notebook; more where a yardstick says so
LONGEST = 4 * BUDGET  # seconds of computing after which it is ended
FOREVER = 24 * 60 * 60  # seconds for a cell, on the clock: what the machine's other users do counts
ABSOLUTE = re.compile(r"(?<![\w.:/])/\w[\w.-]*/|\b[A-Z]:\\")  # a path of somebody's machine
BOUND = {"OMP_NUM_THREADS": "1", "COURSE_DEVICE": "cpu"}
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # pytest's other plugins take a second to load


def name(assignment: Assignment) -> str:
    return assignment.name


@pytest.mark.in_turn
@pytest.mark.parametrize("assignment", assignments(), ids=name)
def test_solved_notebook(assignment, record_property):
    command = [sys.executable, "-m", "pytest", "-p", "nbval.plugin", "-p", "no:cacheprovider"]
    command += ["--nbval-lax", f"--nbval-cell-timeout={FOREVER}", str(assignment.solved)]
    status, printed, seconds = patience.run(command, {**os.environ, **BOUND, **ALONE}, LONGEST)
    budget = BUDGET if seconds < BUDGET else BUDGET * yardstick.slowness()
    record_property("seconds", seconds)
    record_property("budget", budget)
    print(f"{assignment.name}: {seconds:.0f} s of {budget:.0f}")
    assert status == 0, printed[-6000:]
    cells = sum(cell.cell_type == "code" for cell in nbformat.read(assignment.solved, 4).cells)
    assert f"{cells} passed" in printed  # every cell is a test of its own
    assert seconds < budget


@pytest.mark.in_turn
@pytest.mark.parametrize("assignment", assignments(), ids=name)
def test_student_notebook_fails_in_checks_alone(assignment):
    nb = nbformat.read(assignment.student, as_version=4)
    execute(nb, allow_errors=True)
    unable, solutions = toolbox.without_checks(assignment), exercises(assignment.reference)
    for cell in nb.cells:
        if cell.cell_type == "code":
            errors = [output for output in cell.outputs if output.output_type == "error"]
            exercise = cell.id.removeprefix("check_")
            is_check = exercise != cell.id and cell.id not in solutions
            if is_check and exercise not in unable:
                assert [error.ename for error in errors] == ["CheckFailed"]
                toolbox.assert_unsolved(exercise, "\n".join(errors[0].traceback))
            else:
                assert not errors, cell.source + "\n".join(errors[0].traceback)
            assert not any(output.get("name") == "stderr" for output in cell.outputs), cell.source


@pytest.mark.parametrize("assignment", assignments(), ids=name)
def test_stored_outputs_are_fit_to_publish(assignment):
    nb = nbformat.read(assignment.solved, as_version=4)
    pictures = 0
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error" and output.get("name") != "stderr", cell.source
            data = output.get("data", {})
            picture = data.get("image/png", data.get("image/svg+xml", ""))
            assert len(picture) * 3 / 4 < 200_000, cell.source
            pictures += bool(picture)
            text = "".join(output.get("text", ""))
            assert not ABSOLUTE.search(text), cell.source
    assert pictures >= 2
    assert build.bounds_of_nothing(nb) == []


@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_what_nbval_compares_is_a_tag_of_the_cell(assignment):
    marked = assignment.master.read_text(encoding="utf-8").count("# NBVAL_CHECK_OUTPUT")
    for path in (assignment.solved, assignment.student):
        cells = nbformat.read(path, as_version=4).cells
        assert not any("NBVAL" in cell.source for cell in cells)
        tagged = [c for c in cells if "nbval-check-output" in c.metadata.get("tags", [])]
        assert len(tagged) == marked
