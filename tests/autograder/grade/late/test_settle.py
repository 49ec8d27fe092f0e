"""The gradebook follows the policy, over all assignments of a student."""

import os
import sys
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from autograder.grade.late.lateness import sentence
from autograder.grade.late.policy import Policy
from autograder.grade.late.settle import decide, settle, untimed
from tests.course import COURSE

DUE = {
    "01_rnn": datetime(2026, 10, 19, 21, 59, tzinfo=UTC),
    "02_lstm": datetime(2026, 11, 2, 22, 59, tzinfo=UTC),
}
POLICY = Policy(DUE, {}, slip_days=1, per_day=Fraction(1, 10))
LATE = timedelta(hours=30)


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A gradebook of two assignments with due dates, and one without."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}", COURSE) as book:
        book.add_student("ada")
        book.add_student("bob")
        for name in (*DUE, "03_seq2seq"):
            book.add_assignment(name, course_id=COURSE)
            book.add_notebook(name, name)
            book.add_grade_cell("check", name, name, max_score=50, cell_type="code")
        yield book


def hand_in(book, name, student, score, late=LATE):
    when = None if late is None else (DUE.get(name, DUE["01_rnn"]) + late).replace(tzinfo=None)
    submission = book.add_submission(name, student, timestamp=when)
    submission.notebooks[0].grades[0].auto_score = score
    submission.notebooks[0].grades[0].needs_manual_grade = False
    book.db.commit()


def penalties(book, student="ada"):
    book.db.expire_all()
    found = book.find_student(student).submissions
    return {each.name: each.late_submission_penalty for each in found}


def test_a_later_assignment_takes_slip_days_from_an_earlier_one(book):
    hand_in(book, "01_rnn", "ada", 10.0)
    hand_in(book, "03_seq2seq", "ada", 10.0)
    settle(book, POLICY)
    assert penalties(book) == {"01_rnn": 1.0, "03_seq2seq": 0.0}
    hand_in(book, "02_lstm", "ada", 40.0)
    settle(book, POLICY, "bob")
    assert penalties(book)["01_rnn"] == 1.0
    settle(book, POLICY, "ada")
    assert penalties(book) == {"01_rnn": 2.0, "02_lstm": 4.0, "03_seq2seq": 0.0}


def test_a_penalty_follows_the_points_that_a_person_gives(book):
    hand_in(book, "01_rnn", "ada", 10.0)
    settle(book, POLICY)
    book.find_submission("01_rnn", "ada").notebooks[0].grades[0].manual_score = 30.0
    book.db.commit()
    settle(book, POLICY)
    assert penalties(book) == {"01_rnn": 3.0}


def test_the_gradebook_has_the_due_dates_and_extensions(book):
    hand_in(book, "01_rnn", "ada", 10.0)
    extended = Policy(DUE, {"01_rnn": {"ada": DUE["01_rnn"] + timedelta(days=2)}})
    settle(book, extended)
    found = book.find_submission("01_rnn", "ada")
    assert found.assignment.duedate == datetime(2026, 10, 19, 21, 59)
    assert found.extension == timedelta(days=2) and found.total_seconds_late == 0
    settle(book, POLICY)
    assert found.extension is None and found.total_seconds_late == LATE.total_seconds()
    assert book.find_assignment("03_seq2seq").duedate is None


def test_deciding_changes_nothing(book):
    hand_in(book, "01_rnn", "ada", 10.0)
    hand_in(book, "01_rnn", "bob", 10.0, timedelta(hours=-1))
    assert [late.work.student for late in decide(book, POLICY)] == ["ada"]
    assert not book.db.dirty and book.find_assignment("01_rnn").duedate is None


def test_a_submission_without_a_time_counts_as_in_time(book):
    hand_in(book, "01_rnn", "ada", 10.0, None)
    assert settle(book, POLICY) == [] and untimed(book, POLICY) == [("ada", "01_rnn")]


@pytest.mark.parametrize("year", [1, 9999])
def test_an_impossible_time_counts_as_none_and_stops_nobody(book, year):
    hand_in(book, "01_rnn", "ada", 10.0, None)
    book.find_submission("01_rnn", "ada").timestamp = datetime(year, 12, 31, 23, 59)
    book.db.commit()
    hand_in(book, "01_rnn", "bob", 10.0)
    zone = timezone(timedelta(hours=14 if year > 1 else -14))
    here = Policy({name: due.astimezone(zone) for name, due in DUE.items()}, {})
    assert [sentence(late)[:3] for late in settle(book, here)] == ["Due"]
    assert untimed(book, here) == [("ada", "01_rnn")]
