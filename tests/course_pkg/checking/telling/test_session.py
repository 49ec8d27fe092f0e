"""After three failures in a row a check names a hint, and the next one at each further failure."""

import importlib

import pytest
from bs4 import BeautifulSoup

from autograder.grade.judging.graded_cell import graded
from course_pkg import check
from course_pkg.checking import CheckFailed
from course_pkg.checking.notebook.outline import outline
from course_pkg.checking.telling import session
from course_pkg.lstm import LSTM
from course_pkg.lstm import lstm_step as right

HINTS = outline("lstm")["lstm_step"]["hints"]


@pytest.fixture(autouse=True)
def new_session():
    session.FOUND.clear()
    session._failures.clear()


def failed(solution) -> CheckFailed:
    with pytest.raises(CheckFailed) as caught:
        check(solution)
    return caught.value


def last_line(solution) -> str:
    return str(failed(solution)).splitlines()[-1]


def lstm_step(x, h, c, W, b):
    return h, c + 1


def stub(*args):
    raise NotImplementedError()


stub.__name__ = "lstm_step"


def hint(number: int, name: str = "lstm_step") -> str:
    return f'Stuck? Unfold "Hint {number} of {name}" above check({name}).'


def test_the_third_failure_in_a_row_names_the_first_hint_and_each_further_one_the_next():
    assert not [n for n in range(session.FAILURES_TO_A_HINT - 1) if "Stuck" in last_line(lstm_step)]
    expected = [hint(min(number, HINTS)) for number in range(1, HINTS + 3)]
    assert [last_line(lstm_step) for _ in expected] == expected


def test_a_notebook_shows_it_at_the_end():
    for _ in range(session.FAILURES_TO_A_HINT):
        report = failed(lstm_step).report
    shown = BeautifulSoup(report._repr_html_(), "html.parser").find_all("div")
    assert shown[-1].text == hint(1)


def test_a_pass_begins_anew_and_a_stub_is_no_attempt(capsys):
    for solution in (lstm_step, lstm_step, stub, stub, stub):
        assert "Stuck" not in str(failed(solution))
    assert last_line(lstm_step) == hint(1)
    check(right)
    for _ in range(session.FAILURES_TO_A_HINT - 1):
        assert "Stuck" not in last_line(lstm_step)


def test_other_exercises_are_counted_by_themselves():
    def init_forget_bias(b, value=1.0):
        return b

    for solution in (lstm_step, init_forget_bias) * (session.FAILURES_TO_A_HINT - 1):
        assert "Stuck" not in last_line(solution)
    assert last_line(init_forget_bias) == hint(1, "init_forget_bias")


def test_where_a_part_is_to_blame_its_hint_is_named(monkeypatch):
    monkeypatch.setattr(importlib.import_module("course_pkg.lstm"), "lstm_step", lstm_step)
    lines = [last_line(LSTM) for _ in range(session.FAILURES_TO_A_HINT)]
    assert "begin there" in lines[0] and lines[-1] == hint(1)


def test_a_course_without_hints_names_none(monkeypatch):
    without = {name: {**known, "hints": 0} for name, known in outline("lstm").items()}
    monkeypatch.setattr(session, "outline", lambda topic: without)
    assert not [n for n in range(4) if "Stuck" in last_line(lstm_step)]
    monkeypatch.setattr(session, "outline", lambda topic: {})
    assert "Stuck" not in last_line(lstm_step)


def test_grading_neither_counts_nor_names_a_hint(capsys):
    for _ in range(session.FAILURES_TO_A_HINT + 1):
        graded(points=5)(lstm_step)
    assert "Stuck" not in capsys.readouterr().out
    assert not session.FOUND and "Stuck" not in last_line(lstm_step)
