"""The grade command: nothing is graded twice, and nothing is lost when it is killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from autograder.assignment import Assignment
from tests import course as toolbox
from tests.course import RIGHT_BIAS

LSTM = Assignment("02_lstm")
EXERCISE = "init_forget_bias"
STUDENTS = {
    "ada": (RIGHT_BIAS, 2.0),
    "alan": (RIGHT_BIAS.replace("value=1.0", "value=2.0"), 1.5),
    "grace": ("def init_forget_bias(b, value=1.0):\n    raise NotImplementedError", 0.0),
    "killer": ("import os\nos._exit(1)", 0.0),
}
pytestmark = [
    pytest.mark.xdist_group("batch"),
    toolbox.needs_sandbox,
]


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A course in which all have submitted and nothing is graded."""
    root = tmp_path_factory.mktemp("template")
    toolbox.new_course(root, LSTM, trim=toolbox.one_exercise)
    released = root / "notebooks" / LSTM.name / f"{LSTM.name}.ipynb"
    for student, (source, _) in STUDENTS.items():
        nb = nbformat.read(released, as_version=4)
        next(c for c in nb.cells if c.id == EXERCISE).source = source
        toolbox.submit(root, student, LSTM, nb)
    return root


@pytest.fixture
def course(template, tmp_path) -> Path:
    """A copy of it."""
    return shutil.copytree(template, tmp_path / "course")


def start(root: Path, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "autograder", "grade", LSTM.name, *options, "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    )


def grade(root: Path, *options: str, status: int = 0) -> dict[str, dict]:
    process = start(root, *options)
    out, err = process.communicate(timeout=1200)
    assert process.returncode == status, err
    return {line["student"]: line for line in map(json.loads, out.splitlines())}


def everything(root: Path) -> list[tuple]:
    """What the gradebook says."""
    with toolbox.gradebook(root) as book:
        return sorted(
            (s.student_id, g.name, g.auto_score, g.manual_score, g.needs_manual_grade)
            for s in book.assignment_submissions(LSTM.name)
            for n in s.notebooks
            for g in n.grades
        )


def test_grading_twice_and_by_kill(course, template, tmp_path):
    first = grade(course, "--workers", "1")
    assert {s: line["score"] for s, line in first.items()} == {
        s: score for s, (_, score) in STUDENTS.items()
    }
    expected = everything(course)
    again = grade(course)
    assert {line["state"] for line in again.values()} == {"unchanged"}
    assert everything(course) == expected

    killed = shutil.copytree(template, tmp_path / "killed")
    seconds = sum(line["seconds"] for line in first.values())
    for workers in (1, 1, 2):
        process = start(killed, "--workers", str(workers))
        time.sleep(random.uniform(2, 4 + seconds))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        time.sleep(1)
        assert not any(f"kernel-{process.pid}-" in line for line in toolbox.command_lines())
    grade(killed, "--workers", "1")
    assert everything(killed) == expected
    assert not list(Path("/tmp").glob(f"kernel-{process.pid}-*"))
