"""What a step of the report finds: rows, each printed as a line of JSON as soon as it is known."""

import contextlib
import json
import sys
import traceback
from collections.abc import Iterator

MARK = "ROW "


def row(what: str, value: float | str, unit: str = "", **more: float | str | None) -> None:
    """Print a row.

    Args:
        what: what was measured or tried.
        value: the number, or a word.
        unit: the number's unit.
        more: other columns; predicted is what a GPU should show.
    """
    print(MARK + json.dumps({"what": what, "value": value, "unit": unit, **more}), flush=True)


@contextlib.contextmanager
def attempt(what: str) -> Iterator[None]:
    """Try something; if it fails, print a row with all that a person needs, and go on."""
    try:
        yield
    except Exception:
        row(what, "failed", detail=traceback.format_exc(limit=-8))
        print(traceback.format_exc(), file=sys.stderr, flush=True)


def read(log: str) -> list[dict]:
    """List the rows in what a step has printed, up to where it was ended."""
    found = []
    for line in log.splitlines():
        _, mark, text = line.partition(MARK + "{")
        with contextlib.suppress(json.JSONDecodeError):
            found += [json.JSONDecoder().raw_decode("{" + text)[0]] if mark else []
    return found
