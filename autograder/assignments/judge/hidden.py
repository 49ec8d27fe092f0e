"""Hidden checks of judge: mistakes that no student has seen, each for its share of the points."""

import functools

from autograder.assignments.judge.bank import more_right_ones, unseen
from course_pkg.checking.case import Case
from course_pkg.checking.lending import Lent
from course_pkg.checking.telling.failure import Failure
from course_pkg.checks.judge import TESTED, add, counted, is_alarm, right_ones, verdicts


def solutions(reference) -> tuple[dict[str, Lent], dict[str, Lent]]:
    """Give all right solutions, and the wrong ones that students have not seen."""
    rights = {**right_ones(reference), **more_right_ones(reference)}
    return rights, {str(number): lent for number, lent in enumerate(unseen(reference), start=1)}


def demand_silence(test, case: Case, reference) -> None:
    """Demand that a test says nothing about right solutions."""
    verdicts(test, case, *solutions(reference))


def demand_alarm(test, case: Case, reference, number: int) -> None:
    """Demand that a test says nothing about right solutions, and catches an unseen mistake."""
    said = counted(test, case, *solutions(reference))
    if not is_alarm(said[str(number)]):
        missed = sum(not is_alarm(each) for each in said.values())
        raise Failure(f"{missed} of {len(said)} such mistakes get through, this one among them.")


for _reference in TESTED:
    _title = "says nothing about more right solutions"
    add(_reference, "still_silent", _title, demand_silence, __name__, 0)
    _count = len(unseen(_reference))
    for _number in range(1, _count + 1):
        _title = f"catches mistake {_number} of {_count} that you have not seen"
        _alarm = functools.partial(demand_alarm, number=_number)
        add(_reference, f"unseen_{_number}", _title, _alarm, __name__, 1)
