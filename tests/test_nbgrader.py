"""A whole cycle with nbgrader's own commands: what each kind of submission gets, to the point."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from autograder.exercise import exercises
from autograder.master import ROOT, Assignment

LSTM = Assignment("02_lstm")
COURSE = "sequence_models"
POINTS = {
    "additive_cell_step": 2,
    "lstm_step": 5,
    "LSTM": 6,
    "gru_step": 4,
    "cell_gradient": 3,
    "convert_torch_lstm": 4,
    "init_forget_bias": 2,
    "chrono_bias": 3,
}


def nbgrader(folder: Path, *arguments: str) -> str:
    """Run a command of nbgrader in a folder and return what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COURSE_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def solve(nb: nbformat.NotebookNode, names: list[str], changes: dict[str, tuple[str, str]]) -> None:
    """Write the solutions of some exercises, with a mistake in those that `changes` names."""
    solutions = exercises(ROOT / "course_pkg" / "lstm.py")
    for cell in nb.cells:
        if cell.id in names:
            right, wrong = changes.get(cell.id, ("", ""))
            assert right in solutions[cell.id]
            cell.source = solutions[cell.id].replace(right, wrong) if right else solutions[cell.id]


def answer(nb: nbformat.NotebookNode) -> None:
    """Answer the questions."""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and cell.source == "YOUR ANSWER HERE":
            cell.source = "Because the forget gate can still close."


SUBMISSIONS = {
    "perfect": (list(POINTS), {}),
    "untouched": ([], {}),
    "half": (["additive_cell_step", "lstm_step", "convert_torch_lstm"], {}),
    "buggy": (
        list(POINTS),
        {
            "additive_cell_step": ("c = c + candidate", "c = candidate"),
            "gru_step": ("(1 - z) * n + z * h", "z * n + (1 - z) * h"),
            "init_forget_bias": ("b[H : 2 * H] = value", "b[:H] = value"),
        },
    ),
}


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course in which the four students have submitted and everything is graded."""
    root = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "nbgrader_config.py", root)
    shutil.copytree(LSTM.solved.parent, root / "solutions" / LSTM.name)
    nbgrader(root, "generate_assignment", LSTM.name)
    nbgrader(root, "release_assignment", LSTM.name)
    exchange = f"--Exchange.root={root / 'autograder' / 'course' / 'exchange'}"
    for student, (names, changes) in SUBMISSIONS.items():
        desk = tmp_path_factory.mktemp(student)
        flags = ["--course", COURSE, exchange, f"--Exchange.cache={desk / 'cache'}"]
        nbgrader(desk, "fetch_assignment", LSTM.name, *flags)
        path = desk / LSTM.name / f"{LSTM.name}.ipynb"
        nb = nbformat.read(path, as_version=4)
        solve(nb, names, changes)
        if student == "perfect":
            answer(nb)
        nbformat.write(nb, path)
        nbgrader(desk, "submit", LSTM.name, *flags, "--student", student)
    nbgrader(root, "collect", LSTM.name)
    nbgrader(root, "autograde", LSTM.name)
    return root


def scores(course: Path, student: str) -> dict[str, float | None]:
    """The automatic scores of a student, by cell."""
    with Gradebook(f"sqlite:///{course}/autograder/course/gradebook.db", COURSE) as gradebook:
        notebook = gradebook.find_submission_notebook(LSTM.name, LSTM.name, student)
        return {grade.name.removeprefix("check_"): grade.auto_score for grade in notebook.grades}


def test_student_notebook_is_what_the_command_makes(course):
    released = course / "notebooks" / LSTM.name / f"{LSTM.name}.ipynb"
    assert released.read_bytes() == LSTM.student.read_bytes()


def test_perfect_submission_gets_all_points(course):
    found = scores(course, "perfect")
    assert {name: found[name] for name in POINTS} == POINTS


def test_untouched_submission_gets_nothing(course):
    assert set(scores(course, "untouched").values()) == {0}


def test_half_done_submission_gets_its_half(course):
    found = scores(course, "half")
    solved = SUBMISSIONS["half"][0]
    expected = {name: points if name in solved else 0 for name, points in POINTS.items()}
    assert {name: found[name] for name in POINTS} == expected


def test_buggy_submission_loses_what_its_bugs_cost(course):
    found = scores(course, "buggy")
    expected = {
        **POINTS,
        "additive_cell_step": 0,  # every property fails
        "gru_step": 0,
        "init_forget_bias": 0,
    }
    assert {name: found[name] for name in POINTS} == expected


def test_questions_wait_for_a_grader_with_their_rubric(course):
    path = course / "autograder" / "course" / "autograded" / "perfect" / LSTM.name
    nb = nbformat.read(path / f"{LSTM.name}.ipynb", as_version=4)
    rubrics = [cell for cell in nb.cells if "**Rubric**" in cell.source]
    questions = [cell for cell in nb.cells if cell.id.startswith("question_")]
    assert len(questions) >= 2 and rubrics == questions
    found = scores(course, "perfect")
    assert all(found[cell.id.removeprefix("question_")] is None for cell in questions)


@pytest.fixture(scope="module")
def feedback(course, tmp_path_factory) -> dict[str, str]:
    """What each student fetches after the questions of one have been graded by hand."""
    with Gradebook(f"sqlite:///{course}/autograder/course/gradebook.db", COURSE) as gradebook:
        notebook = gradebook.find_submission_notebook(LSTM.name, LSTM.name, "perfect")
        for grade in notebook.grades:
            if grade.auto_score is None:
                grade.manual_score, grade.needs_manual_grade = 2, False
        gradebook.db.commit()
    nbgrader(course, "generate_feedback", LSTM.name)
    nbgrader(course, "release_feedback", LSTM.name)
    pages = {}
    for student in SUBMISSIONS:
        folder = course / "autograder" / "course" / "feedback" / student / LSTM.name
        pages[student] = (folder / f"{LSTM.name}.html").read_text(encoding="utf-8")
    return pages


def test_feedback_names_the_bugs(feedback):
    words = " ".join(feedback["buggy"].split())
    assert "the cell state is replaced instead of added to" in words
    assert "z and 1 - z are mixed up" in words
    assert "the input gates&#39; biases are set" in words or "input gates' biases are set" in words


def test_feedback_shows_no_hidden_test_and_no_rubric(feedback):
    for page in feedback.values():
        assert "BEGIN HIDDEN TESTS" not in page
        assert "from autograder import grade" not in page
        assert "MARK SCHEME" not in page and "Rubric" not in page


def test_export_holds_every_score(course, feedback):
    nbgrader(course, "export", "--to=grades.csv")
    with open(course / "grades.csv", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    questions = sum(1 for name in scores(course, "perfect") if name not in POINTS)
    assert set(rows) == set(SUBMISSIONS)
    assert float(rows["perfect"]["score"]) == sum(POINTS.values()) + 2 * questions
    assert float(rows["untouched"]["score"]) == 0
    assert float(rows["half"]["score"]) == 2 + 5 + 4
    assert float(rows["buggy"]["score"]) == sum(POINTS.values()) - 2 - 4 - 2
    assert {float(row["max_score"]) for row in rows.values()} == {29 + 3 * questions}
