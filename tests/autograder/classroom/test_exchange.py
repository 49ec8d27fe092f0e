"""Feedback is released to all who can fetch it, whoever else has submitted by hand."""

import shutil
from pathlib import Path

import pytest
from nbgrader.apps.api import NbGraderAPI
from nbgrader.utils import notebook_hash
from traitlets.config import PyFileConfigLoader

from autograder.assignment import ROOT
from tests import course as toolbox
from tests.course import WORK

NAME = "02_lstm"
pytestmark = pytest.mark.xdist_group("exchange")


@pytest.fixture
def course(tmp_path) -> Path:
    """A course with feedback for four; two of them can fetch it."""
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    (tmp_path / WORK / "exchange").mkdir(parents=True)
    for student, files in {
        "ada": (),  # nothing at all: a file that was placed by hand
        "alan": ("timestamp.txt",),
        "grace": ("timestamp.txt", "submission_secret.txt"),
        "o'brien, [x] é": ("submission_secret.txt",),
    }.items():
        folder = tmp_path / WORK / "feedback" / student / NAME
        folder.mkdir(parents=True)
        (folder / f"{NAME}.html").write_text(f"for {student}")
        for name in files:
            (folder / name).write_text(student.ljust(64, "x"))
    return tmp_path


def released(course: Path) -> set[str]:
    folder = course / WORK / "exchange" / toolbox.COURSE / "feedback"
    return {path.name for path in folder.iterdir()}


def page(student: str) -> str:
    return f"{notebook_hash(secret=student.ljust(64, 'x'), notebook_id=NAME)}.html"


def test_those_who_submitted_by_hand_stop_nobody(course):
    log = toolbox.nbgrader(course, "release_feedback", NAME)
    assert released(course) == {page("grace"), page("o'brien, [x] é")}
    by_hand = [line for line in log.splitlines() if "by hand" in line]
    assert len(by_hand) == 1 and "ada, alan: submitted by hand" in by_hand[0]
    assert f"{course}/autograder/course/feedback/STUDENT/{NAME}" in by_hand[0]


def test_a_single_student(course):
    toolbox.nbgrader(course, "release_feedback", NAME, "--student", "o'brien, [x] é")
    assert released(course) == {page("o'brien, [x] é")}


def test_the_formgraders_button(course, monkeypatch):
    monkeypatch.chdir(course)
    config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
    result = NbGraderAPI(config=config).release_feedback(NAME)
    assert result["success"] and "ada, alan: submitted by hand" in result["log"]
    assert released(course) == {page("grace"), page("o'brien, [x] é")}


def test_before_feedback_is_written_nothing_is_released(course):
    shutil.rmtree(course / WORK / "feedback")
    log = toolbox.nbgrader(course, "release_feedback", NAME)
    assert f"run nbgrader generate_feedback {NAME}" in log and released(course) == set()
