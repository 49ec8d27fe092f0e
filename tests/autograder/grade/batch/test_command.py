"""What the grade command does when something is not as it should be; no submission is run here."""

import errno
import fcntl
import functools
import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import nbformat
import pytest
from tqdm import tqdm

from autograder import __main__ as cli
from autograder.assignment import Assignment
from autograder.grade.batch import command as batch
from autograder.grade.batch import workers
from autograder.grade.batch.gradebook import Recorder
from autograder.grade.errors import EndedWorkers
from autograder.grade.judging.verdict import Store, Verdict
from autograder.grade.kernel import sandbox
from autograder.grade.late.policy import PLACE
from autograder.grade.submission import submission
from autograder.grade.submission.submission import Course, Submission, verdict_of
from tests import course as toolbox
from tests.course import WORK, needs_sandbox

LSTM = Assignment("02_lstm")
CHECK = "check_init_forget_bias"
pytestmark = [pytest.mark.xdist_group("command"), needs_sandbox]


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A course in which two students have submitted."""
    root = tmp_path_factory.mktemp("template")
    toolbox.new_course(root, LSTM, trim=toolbox.one_exercise)
    released = root / "notebooks" / LSTM.name / f"{LSTM.name}.ipynb"
    for student in ("ada", "alan"):
        nb = nbformat.read(released, as_version=4)
        nb.cells.append(nbformat.v4.new_code_cell(f"# by {student}"))
        toolbox.submit(root, student, LSTM, nb)
    return root


@pytest.fixture
def course(template, tmp_path, monkeypatch) -> Path:
    """A copy of it, in which judging takes no time and gives 1.5 points."""
    root = shutil.copytree(template, tmp_path / "course")
    monkeypatch.chdir(root)
    monkeypatch.setattr(submission.Judging, "judge", lambda self, found: fixed(found))
    monkeypatch.setattr(batch, "on_dask", here)
    return root


def here(tasks, *_options):
    """Judge in this process, in which judging is another."""
    for task in tasks:
        try:
            yield task, workers.run(task)
        except Exception as error:
            yield task, error


def fixed(found) -> Verdict:
    outputs = [[] for _ in found]
    outputs[-2] = [nbformat.v4.new_output("execute_result", data={"text/plain": "1.5"})]
    return Verdict(outputs, {CHECK: 1.5})


@pytest.fixture
def grade(course, capsys):
    """Run the command in this process; return its status, what it says of each, and stderr."""

    def run(*options: str) -> tuple[int, dict[str, dict], str]:
        parser = ArgumentParser()
        batch.add_arguments(parser)
        status = batch.main(parser.parse_args([LSTM.name, *options, "--workers", "1", "--json"]))
        out, err = capsys.readouterr()
        lines = map(json.loads, out.splitlines())
        return status, {line["student"]: line for line in lines}, err

    return run


def states(lines: dict[str, dict]) -> dict[str, str]:
    return {student: line["state"] for student, line in lines.items()}


def test_force_judges_again(grade, monkeypatch):
    status, lines, err = grade()
    assert status == 0 and states(lines) == {"ada": "graded", "alan": "graded"}
    assert {line["score"] for line in lines.values()} == {1.5}
    assert "2 graded" in err
    assert states(grade()[1]) == {"ada": "unchanged", "alan": "unchanged"}

    def better(self, found):
        verdict = fixed(found)
        verdict.outputs[-2][0]["data"]["text/plain"] = "2.0"
        return verdict

    monkeypatch.setattr(submission.Judging, "judge", better)
    assert states(grade()[1]) == {"ada": "unchanged", "alan": "unchanged"}
    _, lines, _ = grade("ada", "--force")
    assert {s: line["score"] for s, line in lines.items()} == {"ada": 2.0}


def test_a_verdict_that_the_gradebook_does_not_hold_is_written(grade, course):
    """As after a kill between the two."""
    grade()
    ada = Submission(Course(course), LSTM.name, "ada")
    found = ada.steps()
    verdict = fixed(found)
    verdict.outputs[-2][0]["data"]["text/plain"] = "0.5"
    ada.course.store.save(LSTM.name, ada.key(found), verdict)
    _, lines, _ = grade()
    assert states(lines) == {"ada": "graded", "alan": "unchanged"}
    assert lines["ada"]["score"] == 0.5


def test_a_change_is_graded_again(grade, course):
    grade()
    path = course / WORK / "submitted" / "ada" / LSTM.name / f"{LSTM.name}.ipynb"
    nb = nbformat.read(path, as_version=4)
    nb.cells.append(nbformat.v4.new_code_cell("# and one more"))
    nbformat.write(nb, path)
    assert states(grade()[1]) == {"ada": "graded", "alan": "unchanged"}


def test_warnings_about_nbgraders_session_are_not_shown(grade, recwarn):
    grade()
    grade("--force")
    assert not [each for each in recwarn if "not in session" in str(each.message)]


def test_unknown_students_are_an_error(grade):
    status, lines, err = grade("nobody")
    assert status == 1 and lines == {} and "nobody has not submitted 02_lstm" in err


def test_the_log_has_a_line_for_each(grade, course):
    grade()
    lines = (course / WORK / f"grade_{LSTM.name}.log").read_text().splitlines()
    assert [line.split()[2] for line in lines] == ["ada", "alan"]
    assert all('"state": "graded"' in line for line in lines)


def test_progress_on_a_terminal(grade, monkeypatch):
    monkeypatch.setattr(batch, "tqdm", lambda **options: tqdm(**options | {"disable": False}))
    _, _, err = grade()
    assert "2/2" in err and "graded=2" in err and "running=1" in err


def test_what_ended_two_workers_waits_for_a_person(grade, monkeypatch):
    def judge(self, found):
        if any("ada" in step.source for step in found):
            raise EndedWorkers
        return fixed(found)

    monkeypatch.setattr(submission.Judging, "judge", judge)
    status, lines, err = grade()
    assert status == 0 and states(lines) == {"ada": "person", "alan": "graded"}
    assert err.endswith("1 graded · 1 graded, to be checked by a person\n")
    assert "it ended the grader's process twice; grade it by hand" in lines["ada"]["reason"]
    assert lines["ada"]["needs_person"] and lines["ada"]["score"] == 0
    assert states(grade()[1]) == {"ada": "unchanged", "alan": "unchanged"}
    monkeypatch.setattr(submission.Judging, "judge", lambda self, found: fixed(found))
    assert grade("ada", "--force")[1]["ada"]["score"] == 1.5


def test_a_file_whose_name_is_not_utf_8(grade, course, monkeypatch):
    # nbgrader logs the name, and what is logged in a test must be UTF-8 to reach pytest-xdist.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    folder = course / WORK / "submitted" / "ada" / LSTM.name
    Path(os.fsdecode(bytes(folder) + b"/caf\xe9.txt")).write_text("coffee")
    os.link(folder / f"{LSTM.name}.ipynb", os.fsdecode(bytes(folder) + b"/caf\xe9.ipynb"))
    status, lines, _ = grade()
    assert status == 0 and states(lines) == {"ada": "graded", "alan": "graded"}
    assert states(grade()[1]) == {"ada": "unchanged", "alan": "unchanged"}


def test_whatever_happens_to_one_is_theirs(grade, monkeypatch):
    notebook = Submission.notebook

    def broken(self):
        if self.student == "ada":
            raise ZeroDivisionError("of all things")
        return notebook(self)

    monkeypatch.setattr(Submission, "notebook", broken)
    status, lines, _ = grade()
    assert status == 1 and states(lines) == {"ada": "failed", "alan": "graded"}
    assert "cannot be read: ZeroDivisionError: of all things" in lines["ada"]["reason"]


def test_an_open_way_to_a_scheduler_is_refused(grade, monkeypatch):
    monkeypatch.setattr(batch, "on_dask", workers.on_dask)
    monkeypatch.setattr("autograder.grade.batch.cluster.CONNECT_SECONDS", 1)
    far, near = ("--scheduler", "tcp://192.0.2.7:8786"), ("--scheduler", "tcp://127.0.0.1:9")
    status, _, err = grade(*far)
    assert status == 1 and "Grading stops: tcp://192.0.2.7:8786 is another machine" in err
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in grade(*near)[2]
    monkeypatch.setattr("autograder.grade.batch.cluster._is_this_machine", lambda host: False)
    assert "no Dask scheduler answers" in grade(*near, "--insecure")[2]


def test_one_command_at_a_time(grade, course):
    with open(course / WORK / f"grade_{LSTM.name}.log", "a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        status, lines, err = grade()
        assert status == 1 and lines == {}
        assert err == "Grading stops: another command is grading 02_lstm; wait until it has ended\n"
    assert grade()[0] == 0


def test_a_course_that_cannot_be_written(grade, course):
    (course / WORK / f"grade_{LSTM.name}.log").mkdir()
    status, lines, err = grade()
    assert status == 1 and lines == {}
    assert err.startswith("Grading stops: ") and err.count("\n") == 1


def test_a_full_disk(grade, monkeypatch):
    save = Store.save

    def full(self, assignment, key, verdict):
        monkeypatch.setattr(Store, "save", save)  # for the second student there is room again
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "save", full)
    status, lines, _ = grade()
    assert status == 1 and states(lines) == {"ada": "failed", "alan": "graded"}
    assert "the verdict cannot be kept" in lines["ada"]["reason"]
    assert "No space left on device" in lines["ada"]["reason"]
    status, lines, _ = grade()
    assert status == 0 and states(lines) == {"ada": "graded", "alan": "unchanged"}


def test_a_locked_gradebook_fails_one_and_says_so(course):
    root = Course(course)
    submission = Submission(root, LSTM.name, "ada")
    key = submission.key(submission.steps())
    points = {CHECK: 1.0}
    root.store.save(LSTM.name, key, Verdict([[] for _ in submission.steps()], points))
    recorder = Recorder(root, LSTM.name)
    with sqlite3.connect(course / WORK / "gradebook.db", isolation_level=None) as book:
        book.execute("begin exclusive")
        assert "the gradebook is locked by another program" in recorder.record(submission, key)
        assert not recorder.holds(submission, key)
        book.execute("rollback")
    assert recorder.record(submission, key) is None
    assert recorder.holds(submission, key)


def test_a_gradebook_that_is_gone(grade, course):
    book = course / WORK / "gradebook.db"
    book.rename(book.with_suffix(".away"))
    book.mkdir()
    status, lines, err = grade()
    assert status == 1 and lines == {}
    assert err == "Grading stops: the gradebook cannot be opened\n"
    book.rmdir()
    book.with_suffix(".away").rename(book)
    assert states(grade()[1]) == {"ada": "graded", "alan": "graded"}


def test_an_assignment_that_the_gradebook_does_not_know(grade, course, monkeypatch):
    """It is said before anybody is judged."""
    monkeypatch.setattr(submission.Judging, "judge", None)
    (course / WORK / "gradebook.db").unlink()
    status, lines, err = grade()
    assert status == 1 and lines == {}
    assert err == (
        "Grading stops: the gradebook does not know 02_lstm: run "
        "`nbgrader generate_assignment 02_lstm` first\n"
    )


def test_a_locked_gradebook_is_one_sentence(grade, course, monkeypatch, capsys):
    connect = functools.partial(sqlite3.connect, timeout=0.1)
    monkeypatch.setattr(sqlite3.dbapi2, "connect", connect)
    with sqlite3.connect(course / WORK / "gradebook.db", isolation_level=None) as book:
        book.execute("begin exclusive")
        said = "the gradebook is locked by another program: end it, and try again"
        assert grade() == (1, {}, f"Grading stops: {said}\n")
        for name in ("regrade", "journal", "policy", "report"):
            arguments = [LSTM.name, "ada"] if name == "regrade" else []
            arguments = [LSTM.name] if name == "report" else arguments
            (course / PLACE).write_text("slip_days = 1\n")
            monkeypatch.setattr(sys, "argv", ["autograder", name, *arguments])
            assert cli.main() == 1
            err = capsys.readouterr().err
            assert said in err and err.count("\n") == 1 and "SQL" not in err
        book.execute("rollback")


IDS = (
    *("[lab 3", "a]b", "star*", "?q=1", "{0}", "%s", "o'brien", 'the "ace"', "anna maria"),
    *("Zoë", "Zoe\u0308", "李雷", "a+b@x.org", "-x", "a\\b", "a,b", "a\rb", "a&b<c>"),
)


def test_whatever_a_student_is_called(grade, course):
    """An id is no pattern: that of one finds no other."""
    ada = course / WORK / "submitted" / "ada"
    for student in (*IDS, "stars"):
        shutil.copytree(ada, ada.with_name(student))
    assert grade("star*")[0] == 0
    with toolbox.gradebook(course) as book:
        assert [each.student_id for each in book.assignment_submissions(LSTM.name)] == ["star*"]
    everybody = {*IDS, "stars", "ada", "alan"}
    status, lines, _ = grade()
    assert states(lines) == dict.fromkeys(everybody, "graded") | {"star*": "unchanged"}
    assert status == 0
    toolbox.nbgrader(course, "generate_feedback", LSTM.name)
    pages = (course / WORK / "feedback").glob(f"*/{LSTM.name}/{LSTM.name}.html")
    assert {path.parts[-3] for path in pages} == everybody


def test_ids_that_cannot_be_written_are_named(grade, course):
    ada = course / WORK / "submitted" / "ada"
    latin = os.fsdecode(b"caf\xe9")
    for student in ("two\nlines", latin, "[lab] 3"):
        shutil.copytree(ada, ada.with_name(student))
    status, lines, _ = grade()
    assert status == 1 and states(lines) == {
        "ada": "graded",
        "alan": "graded",
        "two\nlines": "failed",
        latin: "failed",
        "[lab] 3": "failed",
    }
    for student, why in (
        ("two\nlines", r"the id 'two\nlines' has a line break, at which nbgrader stops reading it"),
        (latin, r"the id 'caf\udce9' is not written in UTF-8, as the gradebook is"),
        ("[lab] 3", "the id '[lab] 3' has [ and ], which nbgrader takes for a pattern"),
    ):
        assert lines[student]["reason"] == f"{why}: rename the student's folder"
    assert (course / WORK / f"grade_{LSTM.name}.log").read_text().count("\n") == 5


def test_a_course_whose_path_nbgrader_takes_for_a_pattern(course, tmp_path, monkeypatch, capsys):
    strange = shutil.copytree(course, tmp_path / "course [2026]")
    monkeypatch.chdir(strange)
    monkeypatch.setattr(sys, "argv", ["autograder", "grade", LSTM.name])
    assert cli.main() == 1
    assert capsys.readouterr().err == (
        f"Grading stops: nbgrader finds nothing in {strange}: its path has one of [*?\n"
    )


def test_options_may_stand_anywhere(grade, course, monkeypatch, capsys):
    grade()
    for arguments, state in (
        (["--force", "ada"], "graded"),
        (["ada", "--force"], "graded"),
        (["--workers", "1", "ada"], "unchanged"),
    ):
        monkeypatch.setattr(sys, "argv", ["autograder", "grade", LSTM.name, "--json", *arguments])
        assert cli.main() == 0
        line = json.loads(capsys.readouterr().out)
        assert (line["student"], line["state"]) == ("ada", state)


def test_a_gradebook_that_goes_meanwhile(grade, course, monkeypatch):
    def judge(self, found):
        book = course / WORK / "gradebook.db"
        if book.is_file():
            book.rename(book.with_suffix(".away"))
            book.mkdir()
        return fixed(found)

    monkeypatch.setattr(submission.Judging, "judge", judge)
    status, lines, _ = grade()
    assert status == 1 and states(lines) == {"ada": "failed", "alan": "failed"}
    assert lines["ada"]["reason"] == "the gradebook cannot be opened"


def test_a_submission_without_a_verdict_waits_for_a_person(grade, course, monkeypatch):
    def judge(self, found):
        if "# by ada" in found[-1].source:
            raise RuntimeError("two workers have died")
        return fixed(found)

    monkeypatch.setattr(submission.Judging, "judge", judge)
    status, lines, _ = grade()
    assert status == 0 and states(lines) == {"ada": "person", "alan": "graded"}
    assert "two workers have died" in lines["ada"]["reason"]
    assert lines["ada"]["score"] == 0 and lines["ada"]["needs_person"]
    with toolbox.gradebook(course) as book:
        notebook = book.find_submission_notebook(LSTM.name, LSTM.name, "ada")
        assert any("two workers have died" in str(c.auto_comment) for c in notebook.comments)
    # It is no verdict: neither the formgrader's button nor the next run takes it for one.
    ada = Submission(Course(course), LSTM.name, "ada")
    nb = submission.mend(ada.notebook().cells, ada.plan)
    monkeypatch.setattr(submission.Judging, "judge", lambda self, found: fixed(found))
    assert verdict_of(ada, nb).is_final
    _, lines, _ = grade()
    assert states(lines) == {"ada": "graded", "alan": "unchanged"}
    assert lines["ada"]["score"] == 1.5 and not lines["ada"]["needs_person"]


def test_without_bubblewrap_nothing_is_graded(course):
    environment = os.environ | {"PATH": str(Path(sys.executable).parent)}
    for command in (["autograder", "grade", LSTM.name], ["nbgrader", "autograde", LSTM.name]):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=course,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 1
        assert "bubblewrap (bwrap) is not installed" in done.stderr
        assert "sudo apt-get install bubblewrap" in done.stderr
    assert set(toolbox.scores(course, "ada", LSTM).values()) == {None}


def test_switched_off_it_says_so_loudly(grade, monkeypatch):
    monkeypatch.setenv(sandbox.SWITCH, "off")
    monkeypatch.setattr(sandbox, "problem", lambda: "bubblewrap needs Linux")
    recorded = []
    monkeypatch.setattr(Recorder, "record", lambda self, *what: recorded.append(what))
    monkeypatch.setattr(Recorder, "scores", lambda self, student: (1.0, 2.0, False))
    status, lines, err = grade()
    assert status == 0 and states(lines) == {"ada": "graded", "alan": "graded"}
    assert "!! AUTOGRADER_SANDBOX=off" in err
    assert [key for _, key in recorded] == [None, None]


def test_a_missing_notebook_has_a_row_by_either_command(grade, course):
    (course / WORK / "submitted" / "ada" / LSTM.name / f"{LSTM.name}.ipynb").unlink()
    toolbox.nbgrader_process(course, "autograde", LSTM.name)  # judging is another in this one
    assert toolbox.scores(course, "ada", LSTM) == {"init_forget_bias": 0}
    _, lines, _ = grade()
    assert lines["ada"]["needs_person"] and lines["ada"]["score"] == 0
