"""Do checks name only mistakes that were made? Tried on mutants, which nobody wrote."""

import itertools
import random
from collections.abc import Iterator

from autograder.author.examination import examine
from autograder.author.mutants import Mutant, changed, mutants
from autograder.mistakes import BUGS
from course_pkg.checking.registry import Exercise
from course_pkg.checking.telling import naming
from course_pkg.checking.telling.failure import NotRaised
from course_pkg.checking.telling.naming import Entry
from course_pkg.checking.telling.report import Report

PAIRS = 20  # of an exercise's recognised mutants, made at once in one solution
OTHER_INPUTS = 1


def wrong_names(exercise: Exercise) -> Iterator[str]:
    """Name every mutant, and some pairs; yield a sentence for each that has a name in error.

    A mutant that gets the name of a known mistake must be the same function as that mistake: it
    must give the same results for inputs other than those by which it was recognised, but for
    errors that it should raise and does not: messages tell these by themselves. One that gets two
    names must have been made of two that get one each.
    """
    found: list[tuple[int, str]] = []
    for mutant in mutants(exercise):
        names, wrong = _names(exercise, mutant)
        yield from wrong
        if len(names) == 1:
            found.append((*mutant.numbers, *names))
    pairs = [(a, b) for a, b in itertools.combinations(found, 2) if a[1] != b[1]]
    for (a, first), (b, second) in random.Random(0).sample(pairs, min(PAIRS, len(pairs))):
        if (mutant := changed(exercise, a, b)) is not None:
            yield from _names(exercise, mutant, {first, second})[1]


def at_home(report: Report) -> set[str]:
    """Give the names that a student sees, with the visible checks alone."""
    return _causes(report, hidden=False)


def _names(
    exercise: Exercise, mutant: Mutant, both: set[str] | None = None
) -> tuple[set[str], list[str]]:
    """Give a mutant's names, and say what is wrong about them."""
    report = examine(exercise, mutant.solution)
    wrong = []
    for hidden in (True, False):
        names = _causes(report, hidden)
        is_right = names == both or len(names) < 2
        if len(names) == 1:
            is_right = _is_same(exercise, mutant, *names, hidden=hidden)
        if not is_right:
            place = "in grading" if hidden else "at home"
            wrong.append(f"{mutant.name}: is told {place} {' and '.join(sorted(names))!r}")
    return _causes(report, hidden=True), wrong


def _causes(report: Report, hidden: bool) -> set[str]:
    ran = [outcome for outcome in report.outcomes if outcome.why_not is None]
    results = {o.check: o.failure for o in ran if hidden or not o.check.hidden}
    return set(naming.causes(results).values())


def _is_same(exercise: Exercise, mutant: Mutant, sentence: str, hidden: bool) -> bool:
    """Tell whether a mutant and a known mistake of that name agree on other inputs."""
    given = _evidence(exercise, mutant.solution, hidden)
    known = (bug.solution for bug in BUGS[exercise] if bug.sentence == sentence)
    return any(_agree(given, _evidence(exercise, solution, hidden)) for solution in known)


def _evidence(exercise: Exercise, solution: object, hidden: bool) -> dict[str, Entry]:
    report = examine(exercise, solution, inputs=OTHER_INPUTS)
    return {
        outcome.check.name: naming.entry(outcome.check, outcome.failure)
        for outcome in report.outcomes
        if outcome.failure is not None and (hidden or not outcome.check.hidden)
        if not isinstance(outcome.failure, NotRaised)  # the message says it, see naming.causes
    }


def _agree(a: dict[str, Entry], b: dict[str, Entry]) -> bool:
    return a.keys() == b.keys() and all(naming.same(a[name], b[name]) for name in a)
