"""After a check was wrong: who failed it is judged anew, and nobody else; no submission is run."""

import json
import shutil
from argparse import ArgumentParser
from pathlib import Path

import pytest
from nbformat.v4 import new_output

from autograder.assignment import Assignment
from autograder.grade.batch import command as batch
from autograder.grade.errors import EndedWorkers
from autograder.grade.journal.journal import journal_of
from autograder.grade.journal.scores import BY_CHECKS
from autograder.grade.judging import repair, verdict
from autograder.grade.judging.repair import Repair
from autograder.grade.judging.verdict import Verdict
from autograder.grade.submission.submission import Course
from tests import course as toolbox
from tests.course import WORK, needs_sandbox

LSTM = Assignment("02_lstm")
CHECK = "gru_step.values"
POINTS = toolbox.points(LSTM)["gru_step"]
pytestmark = [pytest.mark.xdist_group("reports"), needs_sandbox]


@pytest.fixture
def course(graded, tmp_path, monkeypatch) -> Path:
    """A copy of the graded course, after a repair that gives `buggy` the points of gru_step."""
    root = shutil.copytree(graded, tmp_path / "course")
    monkeypatch.setattr(verdict, "versions", lambda assignment: {"checks": "repaired"})
    monkeypatch.setattr(batch, "on_dask", lambda tasks, *_: [(t, judged(root, t)) for t in tasks])
    return root


def judged(root: Path, task) -> Verdict:
    points = {
        f"check_{exercise}": score
        for exercise, score in toolbox.scores(root, task.student, LSTM).items()
        if exercise in toolbox.points(LSTM)
    }
    if task.student == "buggy":
        points["check_gru_step"] = POINTS
    outputs = [
        [new_output("execute_result", data={"text/plain": repr(points[step.name])})]
        if step.name in points
        else []
        for step in task.steps
    ]
    return Verdict(outputs, points)


@pytest.fixture
def grade(course, capsys):
    def run(*options: str, check: str = CHECK) -> tuple[int, str]:
        parser = ArgumentParser()
        batch.add_arguments(parser)
        given = [LSTM.name, *options, "--since-check", check, "--course", str(course)]
        status = batch.main(parser.parse_args(given))
        return status, capsys.readouterr().err

    return run


def changed(course: Path) -> list[tuple]:
    entries = journal_of(Course(course).work).entries()
    return [(e.student, e.exercise, e.before, e.after) for e in entries if "repaired" in e.why]


def test_a_graded_notebook_says_which_checks_failed(course):
    def failed(student):
        path = course / WORK / "autograded" / student / LSTM.name / f"{LSTM.name}.ipynb"
        return json.loads(path.read_text(encoding="utf-8"))["metadata"]["course"]["failed"]

    assert failed("perfect") == {}
    assert set(failed("buggy")) == {"additive_cell_step", "gru_step", "init_forget_bias"}
    assert "values" in failed("buggy")["gru_step"]
    assert "values" in failed("unlucky")["gru_step"]  # no check could run


def test_who_failed_is_judged_anew(course, grade, monkeypatch):
    seen = []

    def watched(tasks, *_options):
        for task in tasks:
            seen.append(task)
            yield task, judged(course, task)

    monkeypatch.setattr(batch, "on_dask", watched)
    status, err = grade("--yes")
    assert status == 0
    assert [task.student for task in seen] == ["buggy", "unlucky", "untouched"]
    assert f"buggy: gru_step 0 → {POINTS:g}" in err.splitlines()
    assert "→" not in err.replace(f"gru_step 0 → {POINTS:g}", "")
    assert toolbox.scores(course, "buggy", LSTM)["gru_step"] == POINTS
    assert changed(course) == [("buggy", "gru_step", 0, POINTS)]


def test_without_a_yes_nothing_is_written(course, grade, monkeypatch):
    answers = iter(["no", "y"])
    assert grade()[0] == 1  # nobody is there to answer
    monkeypatch.setattr(repair.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    status, err = grade()
    assert status == 1 and "Nothing was written" in err
    assert toolbox.scores(course, "buggy", LSTM)["gru_step"] == 0 and changed(course) == []
    assert grade()[0] == 0
    assert changed(course) == [("buggy", "gru_step", 0, POINTS)]


def test_points_by_hand_stay(course, grade):
    with toolbox.gradebook(course) as book:
        found = book.find_grade("check_gru_step", LSTM.name, LSTM.name, "buggy")
        found.manual_score = 1.5
        book.db.commit()
    _, err = grade("buggy", "--yes")
    assert f"buggy: gru_step 0 → {POINTS:g}; 1.5 by hand stays" in err
    with toolbox.gradebook(course) as book:
        found = book.find_grade("check_gru_step", LSTM.name, LSTM.name, "buggy")
        assert (found.auto_score, found.manual_score, found.score) == (POINTS, 1.5, 1.5)


def test_nobody_whose_points_change(course, grade):
    status, err = grade("unlucky", "--yes")
    assert status == 0 and "Nobody's points change." in err and changed(course) == []


def test_who_cannot_be_judged_keeps_the_points(course, grade, monkeypatch):
    monkeypatch.setattr(batch, "on_dask", lambda tasks, *_: [(t, EndedWorkers()) for t in tasks])
    before = toolbox.scores(course, "buggy", LSTM)
    status, err = grade("buggy", "--yes")
    assert status == 1 and "its points stay" in err
    assert toolbox.scores(course, "buggy", LSTM) == before


def test_who_could_not_be_judged_because_of_it_is_judged_anew(course, grade, monkeypatch):
    monkeypatch.setattr(batch, "on_dask", lambda tasks, *_: [(t, EndedWorkers()) for t in tasks])
    parser = ArgumentParser()
    batch.add_arguments(parser)
    given = [LSTM.name, "perfect", "--force", "--course", str(course)]
    assert batch.main(parser.parse_args(given)) == 0
    assert Repair(Course(course), LSTM.name, CHECK).concerns("perfect")


def test_what_an_earlier_version_graded_is_told(course, grade):
    path = course / WORK / "autograded" / "buggy" / LSTM.name / f"{LSTM.name}.ipynb"
    nb = json.loads(path.read_text(encoding="utf-8"))
    del nb["metadata"]["course"]
    path.unlink()
    path.write_text(json.dumps(nb), encoding="utf-8")
    _, err = grade("buggy", "--yes")
    assert "python -m autograder grade 02_lstm buggy grades it anew" in err
    assert changed(course) == []


@pytest.mark.parametrize(
    "name, alike", [("gru_step.value", "gru_step.values"), ("nothing", "additive_cell_step.")]
)
def test_unknown_checks_are_an_error(course, grade, name, alike):
    status, err = grade(check=name)
    assert status == 1 and f"02_lstm has no check '{name}'; there is {alike}" in err


def test_without_verdicts_it_says_so(course, grade, monkeypatch):
    monkeypatch.setattr(repair.sandbox, "is_off", lambda: True)
    status, err = grade()
    assert status == 1 and "--since-check needs the sandbox" in err


def test_a_regular_grading_is_written_down(course):
    entries = journal_of(Course(course).work).entries()
    first = [e for e in entries if e.student == "perfect" and e.exercise == "lstm_step"]
    assert [(e.kind, e.before, e.after, e.why) for e in first] == [
        (BY_CHECKS, None, toolbox.points(LSTM)["lstm_step"], "graded")
    ]
