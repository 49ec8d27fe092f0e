"""Late days: how many there are, what forgives them, and where slip days save most."""

import itertools
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.grade.late.lateness import Late, Work, assess, sentence, spend
from autograder.grade.late.policy import Policy

DUE = datetime(2026, 11, 2, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def work(late: timedelta, score: float = 10.0, name: str = "02_lstm") -> Work:
    return Work("ada", name, DUE + late, score)


def policy(**rules) -> Policy:
    given = {"due": {"01_rnn": DUE, "02_lstm": DUE, "03_seq2seq": DUE}, "extensions": {}}
    return Policy(**{**given, "per_day": Fraction(1, 10), **rules})


def one(rules: Policy, handed_in: Work) -> Late | None:
    found = assess(rules, [handed_in])
    return found[0] if found else None


@pytest.mark.parametrize(
    ("late", "days"),
    [
        (-DAY, 0),
        (timedelta(), 0),
        (timedelta(microseconds=1000), 1),
        (DAY, 1),
        (DAY + timedelta(seconds=1), 2),
        (9.5 * DAY, 10),
    ],
)
def test_started_days_count(late, days):
    found = one(policy(), work(late))
    assert (found.days if found else 0) == days
    assert (found.lost if found else 0.0) == days


def test_what_has_no_due_date_is_never_late():
    assert assess(policy(), [work(DAY, name="04_attention")]) == []


def test_days_are_counted_from_the_end_of_the_grace_period():
    rules = policy(grace=timedelta(minutes=15))
    for minutes, charged, grace in ((15, 0, 1), (16, 1, 0), (24 * 60 + 15, 1, 1)):
        found = one(rules, work(timedelta(minutes=minutes)))
        assert (found.charged, found.grace) == (charged, grace)


def test_an_extension_is_a_later_due_date():
    rules = policy(extensions={"02_lstm": {"ada": DUE + 2 * DAY, "bob": DUE + 9 * DAY}})
    found = one(rules, work(3.5 * DAY))
    assert (found.days, found.extension, found.charged, found.lost) == (4, 2, 2, 2.0)
    assert found.why == "2 days forgiven by extension; 2 days charged: 20 % of 10 points"
    assert one(rules, work(2 * DAY)).lost == 0


def test_there_is_a_most_that_being_late_costs():
    rules = policy(at_most=Fraction(1, 4))
    assert [one(rules, work(n * DAY)).lost for n in (2, 3, 99)] == [2.0, 2.5, 2.5]
    assert [one(rules, work(n * DAY)).is_capped for n in (2, 3)] == [False, True]
    assert one(rules, work(3 * DAY)).why.endswith("points, the most that being late costs")


@pytest.mark.parametrize(
    ("zone", "due", "submitted", "days"),
    [
        # Clocks go back on 25 October 2026 at 03:00: this day has 25 hours.
        ("Europe/Berlin", "2026-10-24T12:00", "2026-10-25T10:30Z", 1),
        ("Europe/Berlin", "2026-10-24T23:59", "2026-10-25T22:58:59Z", 1),
        ("Europe/Berlin", "2026-10-24T23:59", "2026-10-25T22:59:01Z", 2),
        ("Europe/Berlin", "2026-10-24T23:59", "2026-10-24T22:00Z", 1),
        ("Europe/Berlin", "2026-10-18T23:59", "2026-10-25T22:58Z", 7),
        ("Europe/Berlin", "2026-10-25T02:30", "2026-10-25T00:30Z", 0),
        ("Europe/Berlin", "2026-10-25T02:30", "2026-10-25T01:20Z", 1),  # 02:20, a second time
        # They go forward on 29 March 2026 at 02:00: this day has 23.
        ("Europe/Berlin", "2026-03-28T23:59", "2026-03-29T21:58Z", 1),
        ("Europe/Berlin", "2026-03-28T23:59", "2026-03-29T22:00Z", 2),
        ("America/New_York", "2026-10-31T23:59", "2026-11-02T04:58Z", 1),
        ("America/New_York", "2026-10-31T23:59", "2026-11-02T05:00Z", 2),
        ("Australia/Lord_Howe", "2026-04-04T23:59", "2026-04-05T13:28Z", 1),  # by half an hour
        ("Australia/Lord_Howe", "2026-04-04T23:59", "2026-04-05T13:30Z", 2),
        ("Asia/Kolkata", "2026-10-24T23:59", "2026-10-25T18:28Z", 1),
        ("UTC", "2026-10-24T23:59", "2026-10-25T23:58:59Z", 1),
    ],
)
def test_a_day_ends_at_the_same_time_when_clocks_change(zone, due, submitted, days):
    rules = policy(due={"02_lstm": datetime.fromisoformat(due).replace(tzinfo=ZoneInfo(zone))})
    found = one(rules, Work("ada", "02_lstm", datetime.fromisoformat(submitted), 10.0))
    assert (found.days if found else 0) == days


def test_the_sentence_that_students_read():
    rules = policy(due={"02_lstm": DUE.astimezone(ZoneInfo("Europe/Berlin"))}, slip_days=1)
    assert sentence(one(rules, work(1.5 * DAY, 8.5))) == (
        "Due 2026-11-02 13:00 CET, submitted 2026-11-04 01:00 CET: 2 days late. 1 day forgiven by "
        "slip days; 1 day charged: 10 % of 8.5 points. Points lost: 0.85."
    )


def test_slip_days_go_where_they_save_most_although_the_first_saves_nothing():
    # 01 loses 5 points after one day or six, so only all of its days together save anything.
    rules = policy(slip_days=3, per_day=Fraction(1, 4), at_most=Fraction(1, 4))
    works = [work(3 * DAY, 20.0, "01_rnn"), work(DAY, 4.0), work(DAY, 4.0, "03_seq2seq")]
    assert [late.slip for late in assess(rules, works)] == [3, 0, 0]
    assert [late.slip for late in assess(rules, [work(4 * DAY, 20.0, "01_rnn"), *works[1:]])] == [
        0,
        1,
        1,
    ]


def test_slip_days_are_not_wasted_and_ties_go_to_the_earliest():
    rules = policy(slip_days=1)
    works = [work(DAY, 0.0, "01_rnn"), work(DAY), work(DAY, 10.0, "03_seq2seq")]
    for order in itertools.permutations(works):
        assert [late.slip for late in assess(rules, order)] == [0, 1, 0]


def cheapest(costs: list[list[Fraction]], slip_days: int) -> tuple[int, ...]:
    """Try all ways to spend slip days."""
    ways = itertools.product(*(range(len(cost)) for cost in costs))
    affordable = [way for way in ways if sum(way) <= slip_days]
    return min(
        affordable,
        key=lambda way: (
            sum(cost[slip] for cost, slip in zip(costs, way, strict=True)),
            sum(way),
            [-slip for slip in way],
        ),
    )


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), max_size=5),
    st.integers(0, 8),
    st.sampled_from([0, 5, 10, 25, 40]),
    st.sampled_from([0, 10, 15, 30, 100]),
)
def test_spending_agrees_with_trying_all_ways(handed_in, slip_days, per_day, at_most):
    rules = policy(per_day=Fraction(per_day, 100), at_most=Fraction(at_most, 100))
    costs = [
        [Fraction(score) / 2 * rules.share(late - slip) for slip in range(late + 1)]
        for late, score in handed_in
    ]
    assert spend(costs, slip_days) == cheapest(costs, slip_days)
