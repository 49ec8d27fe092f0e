"""What checks have found in this session; it is kept nowhere else."""

from collections import Counter
from typing import TypedDict

from course_pkg.checking.notebook.outline import outline
from course_pkg.checking.telling.report import Report

FAILURES_TO_A_HINT = 3  # failures in a row, until a hint is named


class Found(TypedDict):
    """What the latest check of an exercise has found."""

    topic: str
    exercise: str
    share: float
    why_not: str | None


FOUND: dict[str, Found] = {}  # by exercise; the one that was checked last is the last
_failures: Counter[str] = Counter()


def remember(report: Report) -> Found:
    """Keep what a check has found; after failures in a row, let the report name a hint.

    An exercise that is still the stub was not tried: that is no failure.
    """
    exercise = report.exercise
    found: Found = {
        "topic": exercise.module,
        "exercise": exercise.name,
        "share": report.share,
        "why_not": report.why_not,
    }
    FOUND.pop(exercise.name, None)
    if not report.is_stub:
        FOUND[exercise.name] = found
    if report.passed:
        del _failures[exercise.name]
    elif not report.is_stub:
        _failures[exercise.name] += 1
        report.hint = _hint(report, _failures[exercise.name] - FAILURES_TO_A_HINT + 1)
    return found


def _hint(report: Report, number: int) -> str | None:
    """Name a hint, the last one if there are fewer; where a part is to blame, one of that part."""
    name = (report.broken_parts or [report.exercise.name])[0]
    outlined = outline(report.exercise.module).get(name)
    if number < 1 or outlined is None or not outlined["hints"]:
        return None
    number = min(number, outlined["hints"])
    return f'Stuck? Unfold "Hint {number} of {name}" above check({name}).'
