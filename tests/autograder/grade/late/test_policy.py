"""policy.toml: what it can say, and what is said when it cannot be used."""

import re
import tomllib
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from autograder.assignment import ROOT, CourseError, assignments
from autograder.grade.late.policy import PLACE, Policy, PolicyError, parse, read

NAMES = ["01_rnn", "02_lstm"]
DUE = datetime(2026, 11, 2, 22, 59, tzinfo=UTC)


@pytest.fixture
def course(tmp_path):
    """A course of two assignments, whose policy a test writes."""
    (tmp_path / PLACE).parent.mkdir(parents=True)
    for name in NAMES:
        (tmp_path / "solutions" / name).mkdir(parents=True)

    def write(text: str) -> Policy | None:
        (tmp_path / PLACE).write_text(text, encoding="utf-8")
        return read(tmp_path)

    return write


def test_no_file_is_no_policy(tmp_path):
    assert read(tmp_path) is None


def test_a_file_of_comments_costs_nothing(course):
    policy = course("# later\n")
    assert policy == Policy({}, {}) and policy.share(100) == 0


def test_everything_that_it_can_say(course):
    policy = course("""
        timezone = "Europe/Berlin"
        grace_minutes = 7.5
        slip_days = 3
        percent_per_day = 12.5
        percent_at_most = 40
        [due]
        01_rnn = 2026-07-01T12:00:00
        02_lstm = 2026-11-02T17:59:00-05:00
        [extensions.02_lstm]
        ada = 2026-11-09T23:59:00
    """)
    assert policy.due["01_rnn"] == datetime(2026, 7, 1, 10, tzinfo=UTC)  # summer time
    assert policy.due["02_lstm"] == DUE
    assert str(policy.due["02_lstm"].tzinfo) == "Europe/Berlin"  # which knows when clocks change
    assert policy.due_for("02_lstm", "ada") == DUE + timedelta(days=7)
    assert policy.due_for("02_lstm", "bob") == DUE
    assert policy.grace == timedelta(minutes=7, seconds=30) and policy.slip_days == 3
    assert [policy.share(days) for days in (0, 1, 3, 4)] == [
        Fraction(0),
        Fraction(1, 8),
        Fraction(3, 8),
        Fraction(2, 5),
    ]


def test_the_example_can_be_used():
    text = (ROOT / "docs" / "policy.toml").read_text(encoding="utf-8")
    names = [assignment.name for assignment in assignments()]
    policy = parse(tomllib.loads(text), names)
    # It extends nothing: no gradebook has these students.
    assert policy.slip_days and policy.per_day and policy.due and not policy.extensions
    text = re.sub(r'^# (\[|\w+ = 2|")', r"\1", text, flags=re.M)
    assert len(parse(tomllib.loads(text), names).extensions["02_lstm"]) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slip_days = ", "is not TOML: .* is an example"),
        ("slip_day = 3", "has 'slip_day', which is no key; there is slip_days.*: correct"),
        ("slip_days = -1", "slip_days is -1; it must be a number, 0 or more: correct it"),
        ("slip_days = 1.5", "slip_days is 1.5; it must be a whole number"),
        ("slip_days = true", "slip_days is True; it must be a number"),
        ("grace_minutes = nan", "grace_minutes is nan; it must be a number"),
        ("percent_per_day = 110", "percent_per_day is 110; it must be 0 to 100"),
        ("percent_at_most = '50'", "percent_at_most is '50'; it must be a number"),
        ("timezone = 'Berlin'", "timezone is 'Berlin', which is no time zone"),
        ("timezone = 1", "timezone is 1, which is no time zone"),
        ("due = 1", r"\[due\] is 1; it must be a table"),
        ("[due]\n02_lsmt = 2026-11-02T12:00:00Z", "'02_lsmt' in .due., .*there is 02_lstm"),
        ("[due]\n02_lstm = 2026-11-02", "due.02_lstm is '2026-11-02'; it must be a date with a"),
        ("[due]\n02_lstm = '2026-11-02T12:00'", "02_lstm is '2026-11-02T12:00'; .*quotation"),
        ("[due]\n02_lstm = 2026-11-02T12:00:00", r"in no time zone; add an offset, such as .*\+01"),
        ("[due]\n02_lstm = 2026-02-30T12:00:00Z", "is not TOML"),
        ("[due]\n02_lstm = 0001-01-01T00:00:00+14:00", "a year must be 1900 to 2999"),
        ("[due]\n02_lstm = 9999-12-31T23:59:59-12:00", "a year must be 1900 to 2999"),
        ("slip_days = 999999", "slip_days is 999999; it must be 0 to 365"),
        ("[extensions.02_lstm]\nada = 2026-11-02T12:00:00Z", "has no due date: add 02_lstm to"),
        ("[extensions]\n02_lstn = 1", "'02_lstn' in .extensions., which is no assignment"),
        (
            "[due]\n02_lstm = 2026-11-02T12:00:00Z\n[extensions.02_lstm]\nada = 3",
            "extensions.02_lstm.ada is '3'; it must be a date",
        ),
        (
            "[due]\n02_lstm = 2026-11-02T12:00:00Z\n[extensions.02_lstm]\n"
            "ada = 2026-11-02T12:30:00+01:00",
            "before the due date .*; an extension must be later",
        ),
    ],
)
def test_what_cannot_be_meant_is_a_clear_error(course, text, message):
    with pytest.raises(PolicyError, match=message) as raised:
        course(text)
    assert isinstance(raised.value, CourseError) and str(raised.value).startswith(str(PLACE))


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / PLACE).mkdir(parents=True)
    with pytest.raises(PolicyError, match="cannot be read"):
        read(tmp_path)
