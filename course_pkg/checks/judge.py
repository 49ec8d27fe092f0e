"""Checks of judge. Oracles: right and wrong solutions, closed forms, functions that count calls."""

import functools
import importlib
import math
import weakref
from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor

from course_pkg.checking.case import Case
from course_pkg.checking.lending import Lent
from course_pkg.checking.registry import check
from course_pkg.checking.telling.failure import Failure, NotImplementedYet, describe
from course_pkg.data.judge import RIGHT, WRONG, right, wrong
from course_pkg.judge import (
    assert_near,
    check_acceptance,
    check_block_allocator,
    check_causal_mask,
    check_kv_cache,
    check_lstm_step,
    check_rope,
    check_scan,
    check_softmax,
    diagnose,
    finite_differences,
    metamorphic,
    shrink,
)

# The exercise that a test is for: its module and its name there.
TESTED = {
    check_softmax: ("attention", "masked_softmax"),
    check_causal_mask: ("attention", "causal_mask"),
    check_lstm_step: ("lstm", "lstm_step"),
    check_rope: ("positions", "rope_rotate"),
    check_scan: ("linear_attention", "parallel_scan"),
    check_acceptance: ("speculative", "accept_or_resample"),
    check_kv_cache: ("kv_cache", "KVCache"),
    check_block_allocator: ("paged_attention", "BlockAllocator"),
}
Verdicts = dict[str, Failure | None]
_known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by a student's test


def own(module: str, name: str) -> Callable:
    """Give the course's own solution of an exercise."""
    return getattr(importlib.import_module(f"course_pkg.{module}"), name)


def name_of(reference: Callable) -> str:
    """Name the exercise that a test is for, as the tables of solutions do."""
    return reference.__name__.removeprefix("check_")


def right_ones(reference: Callable) -> dict[str, Lent]:
    """Give the right solutions that students have, by what they do."""
    name = name_of(reference)
    others = {what: Lent(right, name, number) for number, what in enumerate(RIGHT[name])}
    return {"is the course's own": Lent(own, *TESTED[reference]), **others}


def wrong_ones(reference: Callable) -> dict[str, Lent]:
    """Give the wrong solutions that students have, by what they do."""
    name = name_of(reference)
    return {each.what: Lent(wrong, name, number) for number, each in enumerate(WRONG[name])}


def verdicts(test, case: Case, rights: dict[str, Lent], wrongs: dict[str, Lent]) -> Verdicts:
    """Try a student's test on right and wrong solutions, in random order; each is met once.

    So nothing but what a solution does tells it from others. All checks of a test share the
    verdicts, which they find by the solutions.

    Returns:
        For each of the wrong ones what came of it; None where the test has said nothing.
    Raises:
        Failure: the test does not stay silent about a right one.
    """
    known = _known.setdefault(test, {})
    key = (*rights, *wrongs)
    if key not in known:
        known[key] = _tried(test, case, {**rights, **wrongs}, rights.keys())
    found = known[key]
    if isinstance(found, Failure):
        raise Failure(found.message)
    return {what: found[what] for what in wrongs}


def is_alarm(verdict: Failure | None) -> bool:
    """Tell whether a test has raised an exception: to run out of time, say, is none."""
    return verdict is not None and "Exception" in verdict.kinds


def _tried(test, case: Case, solutions: dict[str, Lent], rights: Collection[str]):
    names = list(solutions)
    found: Verdicts = {}
    for number in torch.randperm(len(names), generator=case.generator).tolist():
        name = names[number]
        verdict = found[name] = _verdict(test, solutions[name])
        if name in rights and verdict is not None:
            what = "rejects" if is_alarm(verdict) else "is not silent about"
            text = f"{what} a right solution, one that {name}:\n{verdict.message}"
            return Failure(f"{text}\nUntil this is mended, no mistake counts as caught.")
    return found


def _verdict(test, solution: Lent) -> Failure | None:
    try:
        result = test(solution)
    except NotImplementedYet:
        raise
    except Failure as failure:
        failure.__context__ = None  # this and the traceback hold all that was lent
        return failure.with_traceback(None)
    if result is None:
        return None
    text = f"It returns {describe(result)}. A test returns nothing: it speaks by an exception."
    return Failure(text)


def demand_silence(test, case: Case, reference: Callable) -> None:
    """Demand that a test says nothing about the right solutions that students have."""
    verdicts(test, case, right_ones(reference), wrong_ones(reference))


def demand_alarm(test, case: Case, reference: Callable, what: str) -> None:
    """Demand that a test fails a wrong solution that students have."""
    verdict = counted(test, case, right_ones(reference), wrong_ones(reference))[what]
    if verdict is None:
        raise Failure("Yours says nothing about it.")
    if not is_alarm(verdict):
        raise Failure(verdict.message)


def counted(test, case: Case, rights: dict[str, Lent], wrongs: dict[str, Lent]) -> Verdicts:
    """Give the verdicts; what speaks against all of them is told by another check alone."""
    try:
        return verdicts(test, case, rights, wrongs)
    except NotImplementedYet:
        raise
    except Failure:
        raise Failure("") from None


def add(reference: Callable, name: str, title: str, run: Callable, module: str, weight: float):
    """Register a check of a test by a name, for which no function is written."""

    def checked(test, case):
        run(test, case, reference)

    checked.__name__, checked.__doc__, checked.__module__ = name, title, module
    check(reference, weight=weight)(checked)


# Points are for what hidden checks hold: the mistakes that students have not seen.
for _reference in TESTED:
    add(_reference, "silent", "says nothing about right solutions", demand_silence, __name__, 0)
    for _wrong in WRONG[name_of(_reference)]:
        _alarm = functools.partial(demand_alarm, what=_wrong.what)
        add(_reference, _wrong.name, f"catches a solution that {_wrong.what}", _alarm, __name__, 0)


@check(assert_near)
def agrees(near, case):
    """says nothing where all is as near as float32 allows"""
    for expected in (100 * case.randn(3, 4), torch.zeros(2, dtype=torch.float64), case.randn()):
        for share in (0.0, 0.9, -0.9):
            near(expected + share * (1e-5 + 1e-4 * expected.abs()), expected)
        near(expected.float(), expected)
        near(expected, expected.float())
    zeros = torch.zeros(2, dtype=torch.float64)
    near(zeros + 1e-5, zeros)


@check(assert_near, weight=2)
def differs(near, case):
    """fails where one entry differs by more"""
    for expected in (100 * case.randn(3, 4), torch.zeros(2, dtype=torch.float64), case.randn()):
        for share in (1.1, -1.1, 1000.0):
            given = expected.clone()
            last = given.view(-1)[-1:]
            last += share * (1e-5 + 1e-4 * last.abs())
            _demand_alarm(case, near, given, expected, "an entry differs by more than it may")


@check(assert_near)
def numbers(near, case):
    """fails for NaN and ∞"""
    for value in (torch.nan, torch.inf, -torch.inf):
        expected = case.randn(3)
        given = expected.clone()
        given[1] = value
        _demand_alarm(case, near, given, expected, f"an entry is {value}")


@check(assert_near)
def shapes(near, case):
    """fails for another shape, and for what is no tensor"""
    expected = torch.ones(3, 1, dtype=torch.float64)
    for given in (expected[0], expected.expand(3, 2), expected.flatten(), 1.0, None, [[1.0]] * 3):
        kind = describe(given)
        _demand_alarm(case, near, given, expected, f"{kind} comes where (3, 1) should")


def _demand_alarm(case: Case, near, given: object, expected: Tensor, when: str) -> None:
    case.raises(AssertionError, lambda: near(given, expected), when)


def cubes() -> Callable:
    """Make a function whose differences are known: those of x³ are 3 x² + step²."""
    return lambda x: (x**3).sum()


def weighted() -> Callable:
    """Make a function in which each entry counts otherwise; it gives a number."""

    def sum_of_all(x: Tensor) -> float:
        factors = torch.arange(1.0, x.numel() + 1, device=x.device)
        return float((x.flatten() * factors).sum())

    return sum_of_all


@check(finite_differences, weight=2)
def gradient(differences, case):
    """agrees with the gradient, entry by entry"""
    for x in (case.randn(2, 3), case.randn(3, 2).T, case.randn(4), case.randn()):
        case.equal(differences(Lent(cubes), x), 3 * x**2, "the gradient of Σ x³")
        expected = torch.arange(1.0, x.numel() + 1, dtype=torch.float64).view(x.shape)
        case.equal(differences(Lent(weighted), x), expected, "the gradient of Σ n x_n")


@check(finite_differences)
def central(differences, case):
    """goes one step to either side"""
    x = case.randn(2, 3)
    for step in (0.5, 0.125):
        expected = 3 * x**2 + step**2
        case.equal(differences(Lent(cubes), x, step), expected, "the differences of Σ x³")


@check(finite_differences)
def precision(differences, case):
    """refuses what is not of float64"""
    x = case.randn(3).float()
    case.raises(ValueError, lambda: differences(Lent(cubes), x), "x is of float32")


def doubling(broken: int = -1) -> Callable:
    """Make a function that doubles, but for an input that begins with a certain number."""

    def double(x: Tensor) -> Tensor:
        return 3 * x if x[0] == broken else 2 * x

    return double


def doubling_in_place() -> Callable:
    """Make a function that doubles its argument itself."""
    return lambda x: x.mul_(2)


def refusing(number: int) -> Callable:
    """Make a function that doubles, and refuses an input that begins with a certain number."""

    def double(x: Tensor) -> Tensor:
        if x[0] == number:
            raise IndexError("f refuses this input")
        return 2 * x

    return double


def halving() -> Callable:
    """Make a transformation."""
    return lambda x: x / 2


def halving_in_place() -> Callable:
    """Make a transformation that changes its argument."""
    return lambda x: x.div_(2)


def twice_as_large() -> Callable:
    """Make a relation: the first result is twice the second."""
    return lambda first, second: bool(torch.equal(first, 2 * second))


def _inputs() -> list[Tensor]:
    return [torch.tensor([n, n + 1], dtype=torch.float64) for n in (3, 5, 8, 11)]


@check(metamorphic, weight=2)
def broken_relation(find, case):
    """gives the inputs at which the relation does not hold"""
    functions = {
        f"with a function that is wrong at {broken}": (Lent(doubling, broken), expected)
        for broken, expected in ((-1, []), (3, [0]), (8, [2]), (4, [2]), (11, [3]))
    }
    _demand_numbers(case, find, functions)
    found = find(Lent(doubling), [], Lent(halving), Lent(twice_as_large))
    _demand_list(case, found, [], "without inputs")


@check(metamorphic)
def exceptions(find, case):
    """also those at which the function raises an exception"""
    functions = {
        f"with a function that refuses {number}": (Lent(refusing, number), expected)
        for number, expected in ((3, [0]), (5, [1]), (11, [3]), (4, [2]))
    }
    try:
        _demand_numbers(case, find, functions)
    except Failure as failure:
        if "IndexError" not in failure.kinds:
            raise
        text = "should go on where f raises an exception, and give the number of that input"
        raise Failure(f"{text}: {failure.message}") from None


def _demand_numbers(case: Case, find, functions: dict[str, tuple[Lent, list[int]]]) -> None:
    """Demand the numbers of the inputs at which each of some functions breaks a relation."""
    found = {}
    for when, (f, _) in functions.items():
        numbers = found[when] = find(f, _inputs(), Lent(halving), Lent(twice_as_large))
        if not isinstance(numbers, list) or not all(type(n) is int for n in numbers):
            raise Failure(f"{when}: should give a list of numbers of inputs, 0 for the first")
    at = torch.tensor([[n in numbers for n in range(4)] for numbers in found.values()])
    for when, (_, expected) in functions.items():
        _demand_list(case, found[when], expected, when, at)


@check(metamorphic)
def copies(find, case):
    """hands out copies: a change of an argument hides nothing"""
    for f, transform in ((doubling_in_place, halving), (doubling, halving_in_place)):
        found = find(Lent(f), _inputs(), Lent(transform), Lent(twice_as_large))
        _demand_list(case, found, [], "with a function that changes its argument")


def containing(wanted: str, most: int = 10_000) -> Callable:
    """Make a test that fails with lists in which some numbers are, and may be called so often."""
    numbers, calls = set(map(int, wanted.split())), [0]

    def fails(items: list) -> bool:
        calls[0] += 1
        if calls[0] > most:
            raise RuntimeError(f"fails was called more than {most} times")
        return numbers <= set(items)

    return fails


def summing(least: int) -> Callable:
    """Make a test that fails with lists whose sum is large enough."""
    return lambda items: sum(items) >= least


def depending() -> Callable:
    """Make a test that fails with lists in which there is a 7, and a 4 if there is a 3."""
    return lambda items: 7 in items and (4 in items or 3 not in items)


@check(shrink, weight=2)
def smallest(small, case):
    """leaves what the failure needs, in its order"""
    items = [5, 2, 9, 4, 7, 1, 8, 3, 6]
    for wanted in ("7", "5", "6", "5 6", "9 1 3", "2 9 4", "5 2 9 4 7 1 8 3 6", ""):
        expected = [item for item in items if str(item) in wanted.split()]
        _demand_list(case, small(Lent(containing, wanted), items), expected, f"needing {wanted!r}")


@check(shrink)
def no_single(small, case):
    """leaves no item that could be left out"""
    _demand_list(case, small(Lent(depending), [4, 3, 7]), [7], "needing 7, and 4 while 3 is there")
    items = [3, 1, 2, 1, 5, 1, 1, 4]
    for least in (6, 9, 12, 17):
        found = small(Lent(summing, least), items)
        is_list = isinstance(found, list) and bool(found)
        is_least = is_list and sum(found) >= least and sum(found) - min(found) < least
        case.that(is_least, f"for a sum of {least}, no item should be left over in {found}")
        kept = iter(items)
        in_order = all(item in kept for item in found)
        case.that(in_order, f"items should stay in their order, yours gives {found}")


MOST = 60  # calls of fails: halves first need some twenty, single items alone 129


@check(shrink)
def few_calls(small, case):
    """tries halves and quarters before single items"""
    items = list(range(128))
    for wanted in ("77", "3", "40 41"):
        expected = [int(number) for number in wanted.split()]
        when = f"of 128 items, needing {wanted}"
        try:
            _demand_list(case, small(Lent(containing, wanted, MOST), items), expected, when)
        except Failure:
            _demand_list(case, small(Lent(containing, wanted), items), expected, when)
            raise Failure(f"{when}: calls fails more than {MOST} times") from None


@check(shrink)
def no_failure(small, case):
    """refuses items with which nothing fails"""
    case.raises(ValueError, lambda: small(Lent(containing, "4"), [1, 2]), "the test does not fail")


def suspect(number: int, calls: int = 10_000) -> Callable:
    """Make one of sixteen functions of x, a tensor of one number m.

    For m below 4, the bit m of the function's number counts: it refuses x, or gives 0; for an odd
    m, it refuses x in another way. For others it gives NaN where m - 4 is its number, else 0.
    """
    left = [calls]

    def f(x: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError(f"the black box was called more than {calls} times")
        m = int(x)
        x += 1
        if m >= 4:
            return torch.tensor([math.nan if m == number + 4 else 0.0])
        if number >> m & 1:
            raise ValueError("refused")
        if m % 2:
            raise KeyError("refused")
        return torch.zeros(1)

    return f


def _demand_diagnosis(case: Case, name, suspects: list[int], inputs: Iterable[int], calls: int):
    """Demand that candidates are named by no more calls of the black box than are allowed.

    What comes after these, a solution may take for an answer. So where it goes wrong, it is asked
    again with as many calls as it likes: then it is known whether they are all that was missing.
    """
    candidates = [Lent(suspect, number) for number in suspects]
    values = [torch.tensor([float(m)]) for m in inputs]
    for place, number in [*enumerate(suspects)][:: max(len(suspects) // 2, 1)]:

        def demand(black_box: Lent, place=place, **options):
            found = name(black_box, candidates, [*values], **options)
            is_place = type(found) is int and found == place
            case.that(is_place, f"the number should be {place}, yours is {found!r:.60}")

        try:
            demand(Lent(suspect, number, calls))
        except Failure:
            demand(Lent(suspect, number), calls=len(values))
            text = f"{calls} calls of the black box suffice for {len(suspects)} candidates"
            raise Failure(f"{text}; yours makes more.") from None


@check(diagnose, weight=2)
def names_it(name, case):
    """names each of twelve candidates by ten calls"""
    order = torch.randperm(16, generator=case.generator).tolist()
    _demand_diagnosis(case, name, order[:12], range(19, -1, -1), 10)


@check(diagnose)
def calls_left(name, case):
    """needs about log₂(candidates) calls"""
    _demand_diagnosis(case, name, [9, 4, 14, 3, 7, 0, 12, 10], [13, 8, 18, 7, 0, 1, 2, 3], 3)
    _demand_diagnosis(case, name, [6], [4, 5], 0)
    _demand_diagnosis(case, name, [3, 1], [9, 2, 7], 1)


@check(diagnose)
def undecided(name, case):
    """refuses to guess where the calls do not suffice"""
    candidates = [Lent(suspect, number) for number in range(16)]
    inputs = [torch.tensor([float(m)]) for m in range(4)]
    found = name(Lent(suspect, 5, 4), candidates, inputs, calls=4)
    case.that(found == 5, f"with calls=4, the number should be 5, yours is {found!r:.60}")
    for calls in (0, 3):
        call = functools.partial(name, Lent(suspect, 5), candidates, inputs, calls=calls)
        case.raises(ValueError, call, f"{calls} calls leave several candidates")


def _demand_list(
    case: Case, found: object, expected: list, when: str, observed: Tensor | None = None
) -> None:
    text = f"{when}: should give {expected}, yours gives {found!r:.100}"
    case.that(isinstance(found, list) and found == expected, text, observed)
