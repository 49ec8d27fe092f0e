"""A viva sheet asks about the student's own code, and its answers are what the checks find."""

import ast
import contextlib
import io
import re
from argparse import Namespace
from pathlib import Path

import nbformat
import pytest

from autograder.assignment import Assignment, CourseError
from autograder.author.mutants import changes
from autograder.classroom import viva
from autograder.grade.judging.verdict import Step
from autograder.grade.submission.submission import Course, Submission
from tests import course as toolbox

LSTM = Assignment("02_lstm")
# Right, and unlike the reference: line 4 is nobody else's.
OWN = """\
def init_forget_bias(b, value=1.0):
    n = len(b) // 4
    changed = b.detach().clone()
    changed[n : n + n] = value
    return changed
"""
pytestmark = [pytest.mark.xdist_group("viva"), toolbox.needs_sandbox]


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course in which ada has solved one exercise, bob three, and eve none."""
    root = tmp_path_factory.mktemp("course")
    toolbox.least_course(root, LSTM)
    solved = {"ada": [], "bob": ["lstm_step", "gru_step", "init_forget_bias"], "eve": []}
    for student, names in solved.items():
        nb = nbformat.read(LSTM.student, as_version=4)
        toolbox.solve(nb, LSTM, names)
        if student == "ada":
            next(cell for cell in nb.cells if cell.id == "init_forget_bias").source = OWN
        toolbox.submit(root, student, LSTM, nb)
    return root


@pytest.fixture(scope="module")
def printed(course) -> str:
    return asked(course, "bob")


def asked(course: Path, *students: str) -> str:
    arguments = Namespace(assignment=LSTM.name, students=students, workers=1, course=course)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert viva.main(arguments) == 0
    return text.getvalue()


def test_five_questions_about_several_exercises(printed, course):
    asked_of = re.findall(r"^\d\. (\w+), line (\d+) of your cell:$", printed, re.MULTILINE)
    assert len(asked_of) == viva.QUESTIONS == len(set(asked_of))
    names = {name for name, _ in asked_of}
    assert len(names) > 1 and names <= {"lstm_step", "gru_step", "init_forget_bias"}
    assert printed.count("→ no check fails") <= viva.HARMLESS
    page = (course / toolbox.WORK / f"viva_{LSTM.name}.html").read_text(encoding="utf-8")
    assert page.count("<section>") == 1 and page.count("Would a check fail?") == viva.QUESTIONS
    assert "<script" not in page and "src=" not in page


def test_the_same_submission_gets_the_same_questions(course):
    assert asked(course, "ada") == asked(course, "ada")


def test_answers_are_those_of_the_checks(course):
    task = viva._task(Submission(Course(course), LSTM.name, "ada"))
    (step,) = (step for step in task.steps if step.name == "init_forget_bias")
    found = list(changes(step.source, viva.own_lines(step, task.plan.cells[step.name])))
    (late,) = (each for each in found if each.after == "changed[n:n - n] = value")
    question = viva._ask(task, step, late)
    assert (question.line, question.before) == (4, "changed[n : n + n] = value")
    assert question.failed and not any("b as it is" in each for each in question.failed)
    (attached,) = (each for each in found if each.after == "changed = b.clone()")
    assert viva._ask(task, step, attached).failed == []


def test_everybody_has_a_sheet_and_one_without_a_solution_has_a_reason(course):
    text = asked(course)
    assert "eve: no exercise passes all of its checks, so there is nothing to ask" in text
    page = (course / toolbox.WORK / f"viva_{LSTM.name}.html").read_text(encoding="utf-8")
    assert re.findall(r"<h1>(\w+) ·", page) == ["ada", "bob", "eve"]


def test_who_has_not_submitted_cannot_be_asked(course):
    with pytest.raises(CourseError, match="mallory has not submitted 02_lstm; ada, bob, eve has"):
        asked(course, "mallory")


def test_only_a_students_own_lines_are_changed(course):
    plan = Course(course).plan(LSTM.name)
    given = plan.cells["LSTM"].released
    assert viva.own_lines(Step("LSTM", given), plan.cells["LSTM"]) == set()
    (own,) = viva.own_lines(Step("LSTM", f"{given}\n        return X, None"), plan.cells["LSTM"])
    assert own == len(given.splitlines()) + 1


def test_changes_are_code_and_say_what_has_changed():
    source = "def f(x, y):\n    a = x.exp() / x.sum(dim=1)\n    return a, y.clone()\n"
    found = list(changes(source, {2, 3}))
    assert all(ast.parse(each.source) and each.before != each.after for each in found)
    said = {(each.line, each.after) for each in found}
    assert {(2, ""), (2, "a = x.exp() * x.sum(dim=1)"), (3, "return (y.clone(), a)")} <= said
    assert list(changes(source, {1})) == []
