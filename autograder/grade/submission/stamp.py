"""Read the time stamp of a submission; people write some by hand."""

import re
from datetime import UTC, datetime

from dateutil import parser
from dateutil.tz import gettz

_LONGEST = 200  # characters
YEARS = range(1900, 3000)  # at the ends of the calendar no clock can be changed
_ZONE = re.compile(r"(.* .*) ([A-Za-z]\w*(?:/[A-Za-z]\w*)*)")  # as nbgrader writes it
_YEAR_FIRST = re.compile(r"\d{4}\D")


def moment(text: str) -> datetime:
    """Read a time stamp, of which nbgrader takes three words for a date, a time and a zone.

    Args:
        text: the stamp.
    Returns:
        The moment, in UTC, which is also the zone of a stamp that names none.
    Raises:
        ValueError, OverflowError: it can be read in no way, or in two, or its year is none of ours.
    """
    if len(text) > _LONGEST:
        raise ValueError("it is too long")
    match = _ZONE.fullmatch(text)
    if match is None or match[2].upper() in ("AM", "PM"):
        return _utc(_parsed(text))
    return _utc(_parsed(match[1]).replace(tzinfo=_zone(match[2])))


def _parsed(text: str) -> datetime:
    """Read a date and a time; 10/11/2026 may be two, and a time alone is one of any day."""
    orders = (False,) if _YEAR_FIRST.match(text) else (False, True)
    defaults = (datetime(2000, 1, 1), datetime(2001, 2, 2))
    found = {
        parser.parse(text, dayfirst=order, default=default, tzinfos=_zone_of)
        for order in orders
        for default in defaults
    }
    if len(found) > 1:
        raise ValueError("it may be several times")
    return found.pop()


def _zone_of(name: str | None, offset: int | None):
    return offset if name is None or offset is not None else _zone(name)


def _zone(name: str):
    zone = gettz(name)
    if zone is None:
        raise ValueError(f"no time zone is called {name}")
    return zone


def _utc(found: datetime) -> datetime:
    if found.year not in YEARS:
        raise ValueError(f"no submission is of the year {found.year}")
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
