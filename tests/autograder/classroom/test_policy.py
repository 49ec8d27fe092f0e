"""Being late with nbgrader's own commands, from the file to grades, feedback, table and marks."""

import csv
from argparse import ArgumentParser
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup

from autograder.assignment import Assignment, CourseError
from autograder.classroom import marks, policy
from autograder.grade.batch import command as batch
from autograder.grade.late.policy import PLACE
from tests import course as toolbox
from tests.course import WORK

LSTM = Assignment("02_lstm")
POLICY = """\
timezone = "Europe/Berlin"
slip_days = 1
percent_per_day = 10
[due]
02_lstm = 2026-11-02T23:59:00
[extensions.02_lstm]
alan = 2026-11-09T12:00:00
nobody = 2026-11-09T12:00:00
"""
SUBMITTED = {
    "ada": "2026-11-05 11:00:00 UTC",
    "alan": "2026-11-05 11:00:00 UTC",
    "grace": "2026-11-02 11:00:00 UTC",
}
pytestmark = pytest.mark.xdist_group("late")


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course of one exercise in which three students are graded and have their feedback."""
    root = toolbox.new_course(tmp_path_factory.mktemp("late"), LSTM, toolbox.one_exercise)
    (root / PLACE).write_text(POLICY, encoding="utf-8")
    released = root / "notebooks" / LSTM.name / f"{LSTM.name}.ipynb"
    for student, when in SUBMITTED.items():
        nb = nbformat.read(released, as_version=4)
        for cell in nb.cells:
            if cell.id == "init_forget_bias":
                cell.source = toolbox.RIGHT_BIAS
        toolbox.submit(root, student, LSTM, nb)
        (root / WORK / "submitted" / student / LSTM.name / "timestamp.txt").write_text(when)
    toolbox.nbgrader(root, "autograde", LSTM.name)
    return root


def grade(root: Path) -> int:
    parser = ArgumentParser()
    batch.add_arguments(parser)
    return batch.main(parser.parse_args([LSTM.name, "--course", str(root)]))


def command(root: Path, *options: str) -> int:
    parser = ArgumentParser()
    policy.add_arguments(parser)
    return policy.main(parser.parse_args(["--course", str(root), *options]))


def test_autograding_takes_the_penalty_off(course):
    with toolbox.gradebook(course) as book:
        found = {s: book.find_submission(LSTM.name, s) for s in SUBMITTED}
        score = found["ada"].score
        assert score > 0
        lost = {student: each.late_submission_penalty for student, each in found.items()}
        assert lost == pytest.approx({"ada": score / 5, "alan": 0, "grace": 0})


def test_feedback_says_why(course):
    toolbox.nbgrader(course, "generate_feedback", LSTM.name)
    said = {}
    for student in SUBMITTED:
        path = course / WORK / "feedback" / student / LSTM.name / f"{LSTM.name}.html"
        page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        said[student] = " ".join(p.text for p in page.select(".summary p.late"))
    assert said["ada"].startswith(
        "Due 2026-11-02 23:59 CET, submitted 2026-11-05 12:00 CET: 3 days"
    )
    assert "1 day forgiven by slip days; 2 days charged: 20 % of" in said["ada"]
    assert "3 days forgiven by extension. Points lost: 0.00." in said["alan"]
    assert said["grace"] == ""


def test_the_command_prints_and_writes_a_table(course, tmp_path, capsys):
    assert command(course, "--to", str(tmp_path / "late.csv")) == 0
    printed = capsys.readouterr()
    with open(tmp_path / "late.csv", newline="", encoding="utf-8") as file:
        head, ada, alan = list(csv.reader(file))
    assert tuple(head) == policy.COLUMNS
    assert ada[:2] == ["ada", LSTM.name] and ada[4:6] == ["3", "1"] and float(ada[6]) > 0
    assert alan[2:] == [
        "2026-11-02 23:59 CET",
        "2026-11-05 12:00 CET",
        "3",
        "3",
        "0.00",
        "3 days forgiven by extension",
    ]
    lines = printed.out.splitlines()
    assert len(lines) == 3 and lines[1].startswith("ada ") and lines[1].endswith(ada[7])
    assert "extends 02_lstm for nobody, whom the gradebook does not know" in printed.err
    with pytest.raises(CourseError, match=r"late\.csv exists: remove it"):
        command(course, "--to", str(tmp_path / "late.csv"))


def test_exports_have_the_penalty(course, tmp_path):
    plain, moodle = tmp_path / "grades.csv", tmp_path / "moodle.csv"
    toolbox.nbgrader(course, "export", "--to", str(plain))
    exporter = "--exporter=autograder.classroom.marks.Moodle"
    toolbox.nbgrader(course, "export", exporter, "--to", str(moodle))
    rows = {row["student_id"]: row for row in csv.DictReader(plain.read_text().splitlines())}
    ada = {name: float(rows["ada"][name]) for name in ("raw_score", "score")}
    assert float(rows["ada"]["late_submission_penalty"]) == pytest.approx(ada["raw_score"] / 5)
    assert ada["score"] == pytest.approx(ada["raw_score"] * 4 / 5)
    rows = {row["ID number"]: row for row in csv.DictReader(moodle.read_text().splitlines())}
    assert float(rows["ada"]["02_lstm (Real)"]) == pytest.approx(ada["score"], abs=0.01)
    assert rows["ada"]["02_lstm (Feedback)"].startswith("Due 2026-11-02 23:59 CET")
    assert not rows["grace"]["02_lstm (Feedback)"].startswith("Due")


def test_without_the_file_being_late_costs_nothing(course, capsys):
    text = (course / PLACE).read_text(encoding="utf-8")
    (course / PLACE).unlink()
    try:
        assert command(course) == 0
        assert "being late costs nothing" in capsys.readouterr().out
        toolbox.nbgrader(course, "autograde", LSTM.name, "--student", "ada", "--force")
        with toolbox.gradebook(course) as book:
            assert book.find_submission(LSTM.name, "ada").late_submission_penalty == 0
    finally:
        (course / PLACE).write_text(text, encoding="utf-8")


def test_a_bad_file_stops_every_command(course, tmp_path):
    text = (course / PLACE).read_text(encoding="utf-8")
    (course / PLACE).write_text("slip_days = -1", encoding="utf-8")
    try:
        with pytest.raises(CourseError, match="slip_days is -1"):
            command(course)
        for exporter in (marks.Table, marks.Moodle):
            plugin = exporter(course=str(course), to=str(tmp_path / "marks.csv"))
            with toolbox.gradebook(course) as book, pytest.raises(SystemExit, match="slip_days is"):
                plugin.export(book)
        with pytest.raises(AssertionError, match=r"PolicyError: .*slip_days is -1"):
            toolbox.nbgrader(course, "generate_feedback", LSTM.name, "--force")
        if toolbox.HAS_SANDBOX:
            with pytest.raises(CourseError, match="slip_days is -1"):
                grade(course)
    finally:
        (course / PLACE).write_text(text, encoding="utf-8")
