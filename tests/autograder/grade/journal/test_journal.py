"""The journal knows every change of a score, whoever made it."""

import os
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from nbgrader.utils import get_username
from sqlalchemy import event
from sqlalchemy.exc import SAWarning

from autograder.grade.journal import by_hand
from autograder.grade.journal.journal import NAME, NOBODY, Journal, journal_of
from autograder.grade.journal.scores import (
    BY_CHECKS,
    BY_HAND,
    EXTRA,
    LATE,
    Place,
    counted,
    read,
)
from tests.course import COURSE

LSTM = "02_lstm"


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A gradebook of one assignment, with the work of two students."""
    path = tmp_path_factory.mktemp("journal") / "gradebook.db"
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(action="ignore", category=SAWarning),  # nbgrader's own
    ):
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        fill(path)
    return path


def fill(path: Path) -> None:
    with Gradebook(f"sqlite:///{path}", COURSE) as book:
        book.add_assignment(LSTM, course_id=COURSE)
        book.add_notebook(LSTM, LSTM)
        for cell in ("check_lstm_step", "shortcut"):
            book.add_grade_cell(cell, LSTM, LSTM, max_score=5, cell_type="code")
        for student in ("ada", "bob"):
            book.add_student(student)
            book.add_submission(LSTM, student)


@pytest.fixture
def book(template, tmp_path):
    """A copy of it."""
    path = shutil.copy(template, tmp_path / "gradebook.db")
    with Gradebook(f"sqlite:///{path}", COURSE) as book:
        yield book


@pytest.fixture
def journal(tmp_path) -> Journal:
    return Journal(tmp_path / NAME)


def give(book, student, cell="check_lstm_step", **scores):
    grade = book.find_grade(cell, LSTM, LSTM, student)
    for name, score in scores.items():
        setattr(grade, name, score)
    book.db.commit()


def told(journal) -> list[tuple]:
    return [
        (e.who, e.student, e.exercise, e.kind, e.before, e.after, e.why) for e in journal.entries()
    ]


def test_a_change_has_a_line(book, journal):
    give(book, "ada", auto_score=3)
    journal.note(book, "graded", "ada", graded=LSTM)
    give(book, "ada", auto_score=4.5)
    journal.note(book, "regrade: the batch of one", "ada", graded=LSTM)
    me = get_username()
    assert told(journal) == [
        (me, "ada", "lstm_step", BY_CHECKS, None, 3, "graded"),
        (me, "ada", "lstm_step", BY_CHECKS, 3, 4.5, "regrade: the batch of one"),
    ]
    assert journal.entries()[0].when.endswith("+00:00")
    journal.note(book, "nothing has changed")
    assert len(journal.entries()) == 2


def test_points_given_elsewhere_are_found(book, journal):
    give(book, "ada", auto_score=3)
    journal.note(book, "graded", graded=LSTM)
    give(book, "ada", manual_score=5)
    give(book, "bob", "shortcut", manual_score=1)
    journal.note(book, "regrade", "ada", graded=LSTM)  # a grader has given points meanwhile
    journal.notice(book)
    given = "found later: given by hand"
    assert told(journal)[1:] == [
        (NOBODY, "ada", "lstm_step", BY_HAND, None, 5, given),
        (NOBODY, "bob", "shortcut", BY_HAND, None, 1, given),
    ]
    assert counted(read(book), "ada", LSTM, "lstm_step") == 5


def test_points_that_are_gone_are_found(book, journal):
    give(book, "ada", auto_score=3)
    journal.note(book, "graded", graded=LSTM)
    book.remove_submission(LSTM, "ada")
    journal.notice(book)
    assert [(e.before, e.after) for e in journal.entries()] == [(None, 3), (3, None)]


def test_a_penalty_is_a_score_of_the_whole_submission(book, journal):
    give(book, "ada", auto_score=4)
    book.find_submission_notebook(LSTM, LSTM, "ada").late_submission_penalty = 0.4
    book.db.commit()
    journal.note(book, "policy.toml")
    assert (get_username(), "ada", "", LATE, None, 0.4, "policy.toml") in told(journal)


def test_points_given_in_the_formgraders_server(book, tmp_path, monkeypatch):
    listen, registered = event.listen, []
    monkeypatch.setattr(by_hand.event, "listen", lambda *given: registered.append(given))
    by_hand.watch(tmp_path)
    listen(*registered[0])
    try:
        give(book, "ada", auto_score=3)
        give(book, "ada", manual_score="5")  # as the formgrader's page sends it
        give(book, "ada", manual_score=None, extra_credit=1)
    finally:
        event.remove(*registered[0])
    why = "given in the formgrader"
    assert told(journal_of(tmp_path)) == [
        (get_username(), "ada", "lstm_step", BY_HAND, None, 5, why),
        (get_username(), "ada", "lstm_step", BY_HAND, 5, None, why),
        (get_username(), "ada", "lstm_step", EXTRA, None, 1, why),
    ]


def test_a_line_that_was_cut_is_found_again(book, journal, tmp_path):
    """As after a kill, or a full disk."""
    give(book, "ada", auto_score=3)
    journal.note(book, "graded", graded=LSTM)
    path = tmp_path / NAME
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    other = Journal(path)
    other.notice(book)
    assert [(e.who, e.before, e.after) for e in other.entries()] == [(NOBODY, None, 3)]
    assert [(e.who, e.before, e.after) for e in Journal(path).entries()] == [(NOBODY, None, 3)]


def test_two_processes_write_no_line_twice(book, journal, tmp_path):
    other = Journal(tmp_path / NAME)
    give(book, "ada", auto_score=3)
    journal.note(book, "graded", graded=LSTM)
    other.note(book, "graded", graded=LSTM)
    other.change(Place("ada", LSTM, "lstm_step", BY_HAND), 4, "regrade")
    journal.change(Place("ada", LSTM, "lstm_step", BY_HAND), 4, "regrade")
    give(book, "ada", manual_score=4)
    journal.notice(book)
    assert [e.after for e in journal.entries()] == [3, 4]
    assert journal.entries() == other.entries()


def test_what_is_no_ascii_harms_no_line(book, journal, tmp_path):
    give(book, "ada", auto_score=3)
    why = "é\u2028\x85: a separator of lines"
    journal.note(book, why, graded=LSTM)
    assert [e.why for e in Journal(tmp_path / NAME).entries()] == [why]
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes() + "é".encode()[:1])  # a line of another program, cut
    assert [e.why for e in Journal(path).entries()] == [why]


def test_what_another_command_is_writing_is_left_to_it(book, journal):
    give(book, "ada", auto_score=3)
    journal.note(book, "policy.toml")
    journal.note(book, "regrade", "ada", graded="03_seq2seq")
    assert journal.entries() == []
    journal.note(book, "graded", "ada", graded=LSTM)
    assert [(e.after, e.why) for e in journal.entries()] == [(3, "graded")]
