"""Figures are kept for the code that they are of, and for no other."""

import pytest

from autograder.assignment import Assignment
from autograder.author import record, score

LSTM = Assignment("02_lstm")
ROW = {"exercise": "lstm_step", "bugs": 14, "caught": 14, "seconds": 0.7}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "path", lambda assignment: tmp_path / "data" / "score.json")
    return tmp_path / "data" / "score.json"


def test_figures_hold_while_the_code_is_the_same(place, monkeypatch):
    assert record.read(LSTM) is None
    record.write(LSTM, [ROW])
    assert record.read(LSTM) == [ROW]
    monkeypatch.setattr(record, "scores_depend_on", lambda topic: "other code")
    assert record.read(LSTM) is None


def test_what_is_known_of_mistakes_decides_too(place, monkeypatch):
    record.write(LSTM, [ROW])
    place.with_name("02_lstm.npz").write_bytes(b"other fingerprints")
    assert record.read(LSTM) is None


def test_a_run_that_took_another_time_changes_no_file(place):
    record.write(LSTM, [ROW])
    before = place.read_text()
    record.write(LSTM, [ROW | {"seconds": 9.9}])
    assert place.read_text() == before
    record.write(LSTM, [ROW | {"caught": 13}])
    assert record.read(LSTM) == [ROW | {"caught": 13}]


@pytest.mark.parametrize("is_due", [False, True])
def test_known_figures_are_taken_unless_it_is_the_assignments_turn(monkeypatch, is_due):
    known = score.Row("lstm_step", checks=5)
    monkeypatch.setattr(record, "read", lambda assignment: [vars(known)])
    monkeypatch.setattr(score, "is_due", lambda assignment: is_due)
    monkeypatch.setattr(score, "score", lambda topic: [score.Row("lstm_step", checks=6)])
    written = []
    monkeypatch.setattr(record, "write", lambda *given: written.append(given))
    rows, stale = score._score_and_check(
        LSTM, with_files=False, is_thorough=False, takes_known=True
    )
    assert rows[0].checks == (6 if is_due else 5)
    assert (stale, len(written)) == ([], is_due)


@pytest.mark.parametrize("fault", [{"problems": ["a bug passes"]}, {"why_not": "no Triton"}])
def test_figures_with_a_fault_are_not_kept(monkeypatch, fault):
    monkeypatch.setattr(record, "read", lambda assignment: None)
    monkeypatch.setattr(record, "write", lambda *_: pytest.fail("they are kept"))
    monkeypatch.setattr(score, "score", lambda topic: [score.Row("lstm_step", checks=5, **fault)])
    rows, _ = score._score_and_check(LSTM, with_files=False, is_thorough=False, takes_known=True)
    assert rows[0].checks == 5
