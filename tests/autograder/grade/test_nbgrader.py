"""A whole cycle with nbgrader's own commands: what each kind of submission gets, to the point."""

import csv
import html
import json
import shutil
from pathlib import Path

import nbformat
import pytest

from autograder.assignment import Assignment
from autograder.author.build import linked
from tests import course as toolbox
from tests.course import WORK
from tests.course import nbgrader_process as nbgrader
from tests.server import serving
from tests.submissions import lstm

LSTM = Assignment("02_lstm")
POINTS = toolbox.points(LSTM)
QUESTIONS = toolbox.questions(LSTM)
HALF = ["additive_cell_step", "lstm_step", "convert_torch_lstm"]
# The tests share a course that takes long to make: all of them run on one worker.
pytestmark = pytest.mark.xdist_group("cycle")
STUDENTS = ["perfect", "untouched", "half", "buggy"]


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course in which the four students have submitted and everything is graded."""
    root = toolbox.new_course(tmp_path_factory.mktemp("course"), LSTM)
    nbgrader(root, "release_assignment", LSTM.name)
    for student in STUDENTS:
        desk = tmp_path_factory.mktemp(student)
        flags = ["--course", toolbox.COURSE, f"--Exchange.root={root / WORK / 'exchange'}"]
        flags += [f"--Exchange.cache={desk / 'cache'}"]
        nbgrader(desk, "fetch_assignment", LSTM.name, *flags)
        path = desk / LSTM.name / f"{LSTM.name}.ipynb"
        nbformat.write(work_of(student, nbformat.read(path, as_version=4)), path)
        nbgrader(desk, "submit", LSTM.name, *flags, "--student", student)
    nbgrader(root, "collect", LSTM.name)
    nbgrader(root, "autograde", LSTM.name)
    return root


def work_of(student: str, nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Do the assignment as a student does."""
    if student != "untouched":
        toolbox.solve(nb, LSTM, HALF if student == "half" else None)
    if student == "perfect":
        toolbox.answer(nb)
    if student == "buggy":
        toolbox.spoil(nb, LSTM)
    return nb


def exercise_scores(course: Path, student: str) -> dict[str, float]:
    """The scores of a student, without those of questions."""
    found = toolbox.scores(course, student, LSTM)
    return {name: found[name] for name in POINTS}


def test_student_notebook_is_what_the_command_makes(course):
    released = course / "notebooks" / LSTM.name / f"{LSTM.name}.ipynb"
    assert linked(released.read_bytes(), LSTM) == LSTM.student.read_bytes()


def test_perfect_submission_gets_all_points(course):
    assert exercise_scores(course, "perfect") == POINTS


def test_untouched_submission_gets_nothing(course):
    found = toolbox.scores(course, "untouched", LSTM)
    assert found == dict.fromkeys([*POINTS, *QUESTIONS], 0)


def test_half_done_submission_gets_its_half(course):
    expected = {name: points if name in HALF else 0 for name, points in POINTS.items()}
    assert exercise_scores(course, "half") == expected


def test_buggy_submission_loses_what_its_bugs_cost(course):
    assert exercise_scores(course, "buggy") == {**POINTS, **lstm.SCORES}


@pytest.fixture(scope="module")
def page(course):
    """Pages of a server that runs on the course."""
    with serving(course) as page:
        yield page


@toolbox.needs_sandbox
def test_the_formgraders_button_grades_as_the_command_does(course, page):
    shutil.rmtree(course / WORK / "verdicts")
    answer = json.loads(page(f"formgrader/api/submission/{LSTM.name}/buggy/autograde", b""))
    assert answer["success"], answer
    assert exercise_scores(course, "buggy") == {**POINTS, **lstm.SCORES}
    assert len(list((course / WORK / "verdicts" / LSTM.name).iterdir())) == 1


def test_questions_wait_for_a_grader_with_their_rubric(course, page):
    path = course / WORK / "autograded" / "perfect" / LSTM.name / f"{LSTM.name}.ipynb"
    nb = nbformat.read(path, as_version=4)
    rubrics = [cell.id for cell in nb.cells if "**Rubric**" in cell.source]
    assert rubrics == [f"question_{name}" for name in QUESTIONS]
    found = toolbox.scores(course, "perfect", LSTM)
    assert {found[name] for name in QUESTIONS} == {None}
    with toolbox.gradebook(course) as book:
        notebook = book.find_submission_notebook(LSTM.name, LSTM.name, "perfect")
        assert notebook.needs_manual_grade
        address = f"formgrader/submissions/{notebook.id}"
    shown = page(address)
    assert shown.count("<strong>Rubric</strong>") == len(QUESTIONS)
    assert "Because the equations say so." in shown
    assert "<math" in shown


@pytest.fixture(scope="module")
def feedback(course) -> dict[str, str]:
    """What each student gets after the answers of one have been graded by hand."""
    with toolbox.gradebook(course) as book:
        notebook = book.find_submission_notebook(LSTM.name, LSTM.name, "perfect")
        for grade in notebook.grades:
            if grade.auto_score is None:
                grade.manual_score, grade.needs_manual_grade = 2, False
        book.db.commit()
    nbgrader(course, "generate_feedback", LSTM.name)
    nbgrader(course, "release_feedback", LSTM.name)
    folder = course / WORK / "feedback"
    return {
        student: (folder / student / LSTM.name / f"{LSTM.name}.html").read_text(encoding="utf-8")
        for student in STUDENTS
    }


def test_feedback_is_released(course, feedback):
    released = course / WORK / "exchange" / toolbox.COURSE / "feedback"
    assert len(list(released.rglob("*.html"))) == len(STUDENTS)


def test_feedback_names_the_bugs(feedback):
    words = " ".join(html.unescape(feedback["buggy"]).split())
    assert "the cell state is replaced instead of added to" in words
    assert "z and 1 - z are mixed up" in words
    assert "the input gates' biases are set instead of the forget gates'" in words


def test_feedback_shows_no_hidden_test_and_no_rubric(feedback):
    for page in feedback.values():
        assert "BEGIN HIDDEN TESTS" not in page
        assert "from autograder.grade" not in page
        assert "MARK SCHEME" not in page and "Rubric" not in page


def test_export_holds_every_score(course, feedback):
    nbgrader(course, "export", "--to=grades.csv")
    with open(course / "grades.csv", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert set(rows) == set(STUDENTS)
    lost = sum(POINTS[name] - score for name, score in lstm.SCORES.items())
    expected = {
        "perfect": sum(POINTS.values()) + 2 * len(QUESTIONS),
        "untouched": 0,
        "half": sum(POINTS[name] for name in HALF),
        "buggy": sum(POINTS.values()) - lost,
    }
    assert {name: float(row["score"]) for name, row in rows.items()} == expected
    full = sum(POINTS.values()) + sum(QUESTIONS.values())
    assert {float(row["max_score"]) for row in rows.values()} == {full}
