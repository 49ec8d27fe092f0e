"""Each assignment has its turn, whenever one looks."""

import datetime

from autograder.assignment import assignments
from autograder.author import turns

FIRST = datetime.date(2026, 12, 30)


def test_each_has_one_turn_in_so_many_days(monkeypatch):
    monkeypatch.delenv(turns.EVERYTHING, raising=False)
    for start in range(5):
        days = [FIRST + datetime.timedelta(start + n) for n in range(turns.DAYS)]
        for assignment in assignments():
            assert sum(turns.is_due(assignment, day) for day in days) == 1


def test_on_a_day_it_is_one_of_so_many(monkeypatch):
    monkeypatch.delenv(turns.EVERYTHING, raising=False)
    due = sum(turns.is_due(assignment, FIRST) for assignment in assignments())
    assert abs(due - len(assignments()) / turns.DAYS) < 1


def test_everything_can_be_asked_for(monkeypatch):
    monkeypatch.setenv(turns.EVERYTHING, "1")
    assert all(turns.is_due(assignment, FIRST) for assignment in assignments())
