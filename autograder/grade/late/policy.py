"""Read autograder/course/policy.toml, in which a teacher says what being late costs,
and what assistants may do."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from autograder.assignment import CourseError
from autograder.grade.submission.stamp import YEARS

MOST_SLIP_DAYS = 365
PLACE = Path("autograder") / "course" / "policy.toml"
ASSISTANTS = ("explain", "none", "free")  # what a class may allow; the first where it says nothing
KEYS = (
    "timezone",
    "assistants",
    "grace_minutes",
    "slip_days",
    "percent_per_day",
    "percent_at_most",
    "due",
    "extensions",
)


class PolicyError(CourseError):
    """policy.toml cannot be used; the text says what it has, what is expected, what to do."""


@dataclass(frozen=True)
class Policy:
    """What a teacher has decided.

    Args:
        due: when an assignment is due, by its name; each date has an offset.
        extensions: later due dates, by assignment and student.
        grace: how long after a due date a submission still counts as in time.
        slip_days: the late days that each student has free, over all assignments.
        per_day: the share of the points earned that a started day costs.
        at_most: the largest share that being late costs.
        assistants: what students' assistants are told that they may do, one of ASSISTANTS.
    """

    due: dict[str, datetime]
    extensions: dict[str, dict[str, datetime]]
    grace: timedelta = timedelta()
    slip_days: int = 0
    per_day: Fraction = Fraction(0)
    at_most: Fraction = Fraction(1)
    assistants: str = ASSISTANTS[0]

    def due_for(self, assignment: str, student: str) -> datetime:
        """When an assignment is due for one student: the extension's date, if there is one."""
        return self.extensions.get(assignment, {}).get(student, self.due[assignment])

    def share(self, days: int) -> Fraction:
        """The share of the points earned that so many days cost."""
        return min(self.per_day * days, self.at_most)


def read(root: Path) -> Policy | None:
    """Read the policy of a course; None if the course has no policy.toml.

    Args:
        root: the course's folder.
    Raises:
        PolicyError: the file cannot be read, or says something that cannot be meant.
    """
    try:
        text = (root / PLACE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"{PLACE} cannot be read: {error}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"{PLACE} is not TOML: {error}. docs/policy.toml is an example") from None
    return parse(table, {path.stem for path in (root / "solutions").glob("[0-9][0-9]_*")})


def parse(table: dict[str, Any], assignments: Iterable[str]) -> Policy:
    """Make a policy of a table that was read from TOML.

    Args:
        table: the table.
        assignments: the names of the course's assignments.
    Raises:
        PolicyError: it says something that cannot be meant.
    """
    known = sorted(assignments)
    for key in table:
        _demand_known(key, KEYS, "key")
    zone = _zone(table.get("timezone"))
    due = {}
    for name, given in _table(table.get("due", {}), "[due]").items():
        _demand_known(name, known, "assignment", " in [due]")
        due[name] = _date(given, zone, f"due.{name}")
    extensions = {}
    for name, students in _table(table.get("extensions", {}), "[extensions]").items():
        _demand_known(name, known, "assignment", " in [extensions]")
        if name not in due:
            raise PolicyError(f"{PLACE} extends {name}, which has no due date: add {name} to [due]")
        extensions[name] = {
            student: _extension(given, zone, due[name], f"extensions.{name}.{student}")
            for student, given in _table(students, f"[extensions.{name}]").items()
        }
    return Policy(
        due,
        extensions,
        timedelta(minutes=_number(table, "grace_minutes", 0)),
        _whole(table, "slip_days"),
        _percent(table, "percent_per_day", 0),
        _percent(table, "percent_at_most", 100),
        _assistants(table),
    )


def _assistants(table: dict[str, Any]) -> str:
    given = table.get("assistants", ASSISTANTS[0])
    if given not in ASSISTANTS:
        known = ", ".join(map(repr, ASSISTANTS))
        raise PolicyError(f"{PLACE} has assistants = {given!r}; it should be one of {known}")
    return given


def _demand_known(name: str, known: Iterable[str], kind: str, where: str = "") -> None:
    known = list(known)
    if name not in known:
        near = get_close_matches(name, known, n=3, cutoff=0.5) or known
        raise PolicyError(
            f"{PLACE} has {name!r}{where}, which is no {kind}; there is {', '.join(near)}: "
            "correct the name"
        )


def _table(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise PolicyError(f"{PLACE}: {where} is {given!r}; it must be a table of name = date")
    return given


def _zone(name: Any) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, TypeError, AttributeError, OSError):
        raise PolicyError(
            f"{PLACE}: timezone is {name!r}, which is no time zone that this machine knows; "
            'give a name such as "Europe/Berlin"'
        ) from None


def _date(given: Any, zone: tzinfo | None, where: str) -> datetime:
    if not isinstance(given, datetime):
        raise PolicyError(
            f"{PLACE}: {where} is {str(given)!r}; it must be a date with a time and without "
            "quotation marks, such as 2026-11-02T23:59:00"
        )
    if given.year not in YEARS:
        raise PolicyError(
            f"{PLACE}: {where} is {given.isoformat()}; a year must be {YEARS[0]} to {YEARS[-1]}: "
            "correct it"
        )
    if given.tzinfo is None and zone is None:
        raise PolicyError(
            f"{PLACE}: {where} is {given.isoformat()}, in no time zone; add an offset, such as "
            f"{given.isoformat()}+01:00, or set timezone for all dates"
        )
    if zone is None:
        return given
    # Of an offset alone it is not known when clocks change, which days late depend on.
    return given.astimezone(zone) if given.tzinfo else given.replace(tzinfo=zone)


def _extension(given: Any, zone: tzinfo | None, due: datetime, where: str) -> datetime:
    date = _date(given, zone, where)
    if date.timestamp() < due.timestamp():
        raise PolicyError(
            f"{PLACE}: {where} is {date.isoformat()}, before the due date {due.isoformat()}; "
            "an extension must be later: correct one of the two"
        )
    return date


def _number(table: dict[str, Any], key: str, default: float) -> float:
    given = table.get(key, default)
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not 0 <= given < 10**6:  # neither nan nor inf
        raise PolicyError(
            f"{PLACE}: {key} is {given!r}; it must be a number, 0 or more: correct it"
        )
    return given


def _whole(table: dict[str, Any], key: str) -> int:
    given = _number(table, key, 0)
    if not isinstance(given, int):
        raise PolicyError(f"{PLACE}: {key} is {given!r}; it must be a whole number: correct it")
    if given > MOST_SLIP_DAYS:
        raise PolicyError(
            f"{PLACE}: {key} is {given!r}; it must be 0 to {MOST_SLIP_DAYS}: correct it"
        )
    return given


def _percent(table: dict[str, Any], key: str, default: int) -> Fraction:
    given = _number(table, key, default)
    if given > 100:
        raise PolicyError(f"{PLACE}: {key} is {given!r}; it must be 0 to 100: correct it")
    return Fraction(str(given)) / 100
