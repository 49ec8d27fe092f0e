"""The references of judge: their tests tell right from wrong, also what they were not made for."""

import importlib

import pytest
import torch

from autograder.author.mutants import mutants
from autograder.mistakes import EQUIVALENT
from course_pkg.checking.guard import attempt
from course_pkg.checking.lending import Lent
from course_pkg.checking.registry import Exercise
from course_pkg.checking.runner import run_here
from course_pkg.checking.telling.failure import Failure
from course_pkg.checks.judge import TESTED, own
from course_pkg.data import judge as solutions
from course_pkg.judge import (
    assert_near,
    check_lstm_step,
    check_softmax,
    diagnose,
    finite_differences,
    metamorphic,
    shrink,
)

TESTS = [pytest.param(test, id=test.__name__) for test in TESTED]


def is_silent(test, solution) -> bool:
    try:
        attempt("solution", lambda: test(solution), 1.0)
    except Failure:
        return False
    return True


@pytest.mark.parametrize("test", TESTS)
def test_right_ones_pass_and_wrong_ones_do_not(test):
    name = test.__name__.removeprefix("check_")
    for solution in (own(*TESTED[test]), *solutions.RIGHT[name].values()):
        test(solution)
    for number, wrong in enumerate(solutions.WRONG[name]):
        assert not is_silent(test, solutions.wrong(name, number)), wrong.name


@pytest.mark.parametrize("test", TESTS)
def test_most_mutants_of_the_exercise_are_killed(test):
    """None of the tests was written with these in view."""
    module, name = TESTED[test]
    for each in ("course_pkg.checks", "autograder.assignments"):
        importlib.import_module(f"{each}.{module}" + (".mistakes" if "autograder" in each else ""))
    exercise = Exercise.of(own(module, name))
    excused = EQUIVALENT.get(exercise, {})
    known = [mutant for mutant in mutants(exercise) if mutant.name not in excused]
    killed = sum(not is_silent(test, mutant.solution) for mutant in known)
    assert killed >= 0.8 * len(known)


def test_a_wrong_solution_is_made_anew():
    X = torch.randn(2, 3, 4, dtype=torch.float64)
    keeps = [n for n, w in enumerate(solutions.WRONG["rope"]) if w.name == "keeps_angles"]
    first, second = (solutions.wrong("rope", keeps[0]) for _ in range(2))
    first(X, base=2.0)
    right = solutions.right("rope", 0)
    torch.testing.assert_close(second(X), right(X))
    assert not torch.allclose(first(X), right(X))
    with pytest.raises(ValueError, match="must occur once"):
        solutions.edited("fails", solutions.compared_mask, (("T", "t"),))


def test_near_is_as_near_as_isclose_says():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        expected = torch.randn(1, generator=generator, dtype=torch.float64) * 10
        given = expected * (1 + 2e-4 * torch.randn(1, generator=generator).double())
        wanted = bool(torch.isclose(given, expected, rtol=1e-4, atol=1e-5))
        assert is_silent(lambda pair: assert_near(*pair), (given, expected)) == wanted


def test_differences_agree_with_autograd():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def f(x):
        return x.softmax(dim=1).square().sum().sin()

    (expected,) = torch.autograd.grad(f(x), x)
    found = finite_differences(f, x.detach())
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def test_a_relation_that_a_sine_keeps():
    inputs = list(torch.linspace(-3, 3, 7, dtype=torch.float64))
    assert metamorphic(torch.sin, inputs, torch.neg, lambda a, b: torch.equal(a, -b)) == []
    assert metamorphic(torch.cos, inputs, torch.neg, lambda a, b: torch.equal(a, -b)) != []


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_fails_and_is_minimal(seed):
    generator = torch.Generator().manual_seed(seed)
    needed = set(torch.randperm(40, generator=generator)[: seed % 6].tolist())
    items = torch.randperm(40, generator=generator).tolist()
    found = shrink(lambda items: needed <= set(items), items)
    assert set(found) == needed and found == [item for item in items if item in needed]


def test_seven_calls_tell_128_apart():
    candidates = [lambda x, n=n: torch.tensor(n >> int(x) & 1) for n in range(128)]
    inputs = [torch.tensor(bit) for bit in range(7)]
    for number in (0, 1, 77, 127):
        assert diagnose(candidates[number], candidates, inputs) == number
    with pytest.raises(ValueError, match="candidates are left"):
        diagnose(candidates[7], candidates, inputs, calls=5)


def test_what_is_lent_raises_without_its_text_which_a_note_keeps():
    lent = Lent(own, "speculative", "accept_or_resample")
    with pytest.raises(ValueError, match="3 tokens") as caught:
        lent(*[torch.ones(3, 3)] * 4)
    (note,) = caught.value.__notes__
    assert str(caught.value) == ""
    assert "need 4 rows of p and u" in note


def step_in_another_type(step):
    x, h, c = (torch.ones(2, size) for size in (3, 4, 4))
    step(x, h, c, torch.ones(16, 7).double(), torch.ones(16).double())


def rows_sum_to_one(softmax):
    assert softmax(torch.ones(2, 2), torch.zeros(2, 2).bool()).sum() == 2


def tells_by_its_result(softmax):
    return True


def without_try(f, inputs, transform, relation):
    return [n for n, x in enumerate(inputs) if not relation(f(x.clone()), f(transform(x.clone())))]


def gives_inputs(f, inputs, transform, relation):
    return [x for x in inputs if not relation(f(x.clone()), f(transform(x.clone())))]


def single_items(fails, items):
    """Swallow what the check raises where it has been called too often."""
    items = [*items]
    for item in [*items]:
        try:
            if fails([each for each in items if each != item]):
                items.remove(item)
        except Exception:
            return items
    return items


def in_order(black_box, candidates, inputs, calls=10):
    def outcome(f, x):
        try:
            return repr(f(x.clone()).tolist())
        except Exception as error:
            return repr(error)

    left = dict(enumerate(candidates))
    for x in inputs:
        said = outcome(black_box, x)
        left = {n: f for n, f in left.items() if outcome(f, x) == said}
    return next(iter(left))


@pytest.mark.parametrize(
    ("reference", "solution", "said"),
    [
        (check_lstm_step, step_in_another_type, "have the same dtype"),
        (check_softmax, rows_sum_to_one, "no mistake counts as caught"),
        (check_softmax, tells_by_its_result, "It returns the value True"),
        (metamorphic, without_try, "should go on where f raises an exception"),
        (metamorphic, without_try, "IndexError: f refuses this input"),
        (metamorphic, gives_inputs, "should give a list of numbers of inputs"),
        (shrink, single_items, "calls fails more than 60 times"),
        (diagnose, in_order, "calls of the black box suffice"),
    ],
)
def test_a_message_says_what_is_wrong(reference, solution, said):
    report = run_here(Exercise.of(reference), solution)
    text = " ".join(report.text.split())
    assert said in text
    assert text.count("no mistake counts as caught") <= 1
