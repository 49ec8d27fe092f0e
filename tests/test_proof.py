"""Tests wait for their turn only while what they test is as it was when they passed."""

import pytest

from autograder.assignment import Assignment
from autograder.author import turns
from course_pkg.checking.registry import Exercise
from course_pkg.lstm import lstm_step
from tests import proof

LSTM, RNN = Assignment("02_lstm"), Assignment("01_rnn")


class Item:
    """As much of a test as is looked at."""

    nodeid = "test_it"

    def __init__(self, is_marked=True, **params):
        self.is_marked, self.marks = is_marked, []
        self.callspec = type("Spec", (), {"params": params})

    def get_closest_marker(self, name):
        return (self.is_marked and name == proof.MARKER) or None

    def add_marker(self, mark):
        self.marks.append(mark.name)


@pytest.fixture(autouse=True)
def lstm_is_proven(tmp_path, monkeypatch):
    for name in (proof.ONLY, proof.WAITING, turns.EVERYTHING):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(proof, "path", lambda each: tmp_path / f"{each.name}.txt")
    monkeypatch.setattr(turns, "is_due", lambda each: False)
    proof.path(LSTM).write_text(proof.code(LSTM) + "\n")


def test_an_exercise_belongs_to_its_assignment():
    assert proof.of(Item(assignment=LSTM)) == LSTM
    assert proof.of(Item(exercise=Exercise.of(lstm_step))) == LSTM
    assert proof.of(Item(is_marked=False, assignment=LSTM)) is None
    with pytest.raises(ValueError, match="test_it is marked in_turn"):
        proof.of(Item(number=3))


def test_only_what_is_proven_waits():
    items = [Item(assignment=LSTM), Item(assignment=RNN), Item(is_marked=False, assignment=LSTM)]
    assert proof.choose(items) == items
    assert [item.marks for item in items] == [["skip"], [], []]


def test_nothing_waits_in_its_turn(monkeypatch):
    monkeypatch.setattr(turns, "is_due", lambda each: True)
    assert not proof.waits(LSTM)


def test_nothing_waits_whose_notebook_or_graders_have_changed(monkeypatch, tmp_path):
    assert proof.waits(LSTM)
    with monkeypatch.context() as changed:
        changed.setattr(proof.record, "code", lambda each: "other graders")
        assert not proof.waits(LSTM)
    other = tmp_path / "02_lstm.ipynb"
    other.write_bytes(LSTM.student.read_bytes() + b"\n")
    monkeypatch.setattr(Assignment, "student", other)
    assert not proof.waits(LSTM)


def test_what_is_to_be_proven_is_all_that_is_run(monkeypatch):
    monkeypatch.setenv(proof.ONLY, "02_lstm 05_attention")
    items = [Item(assignment=LSTM), Item(assignment=RNN), Item(is_marked=False)]
    assert proof.choose(items) == items[:1]


def test_all_processes_of_a_run_decide_alike(monkeypatch):
    monkeypatch.setenv(proof.WAITING, "01_rnn")
    assert proof.waits(RNN) and not proof.waits(LSTM)


def test_what_fails_or_is_skipped_is_not_proven(monkeypatch):
    proof.path(LSTM).unlink()
    monkeypatch.setattr(proof.sys, "argv", ["proof", "02_lstm"])
    for status, skipped in ((1, 0), (0, 2), (0, 0)):
        done = type("Done", (), {"returncode": status})
        monkeypatch.setattr(proof.subprocess, "run", lambda *_, done=done, **__: done)
        monkeypatch.setattr(proof, "skipped_in", lambda _, skipped=skipped: skipped)
        assert proof.main() == int(status or skipped > 0)
        assert proof.holds(LSTM) == (not status and not skipped)


def test_skipped_tests_are_counted(tmp_path):
    results = tmp_path / "proof.xml"
    results.write_text('<testsuites><testsuite name="pytest" skipped="3"/></testsuites>')
    assert proof.skipped_in(results) == 3
