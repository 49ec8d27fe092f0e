"""A mistake is named when all evidence agrees, and never otherwise."""

import numpy as np
import pytest
import torch

from autograder.author import names, other_inputs
from autograder.author.examination import examine, exercises
from autograder.author.names import at_home
from autograder.mistakes import BUGS, Bug
from course_pkg.checking.registry import Check, Exercise
from course_pkg.checking.telling import naming
from course_pkg.checking.telling.failure import Failure, NotRaised
from course_pkg.lstm import cell_gradient

STEP = Exercise("lstm", "step", is_class=False)
CHECKS = {
    name: Check(STEP, name, "", 1, None, False, lambda: None, lambda: None)
    for name in ("values", "long", "zeros", "errors")
}
FORGETS, TORCH = "f is forgotten", "the gates are in torch's order"


def failure(*values: float, what: str = "c_t") -> Failure:
    return Failure("c_t is wrong.", what=what, observed=torch.tensor(values, dtype=torch.float64))


def results(**found: Failure) -> dict[Check, Failure | None]:
    return {check: found.get(name) for name, check in CHECKS.items()}


def told(**found: Failure) -> dict[str, str]:
    return {check.name: cause for check, cause in naming.causes(results(**found)).items()}


@pytest.fixture
def known(monkeypatch):
    """Make these mistakes known: for each, its sentence, and what each check finds."""

    def know(*mistakes: tuple[str, dict[str, Failure]]) -> None:
        entries = [
            naming.entry(CHECKS[name], found, number, sentence)
            for number, (sentence, each) in enumerate(mistakes)
            for name, found in each.items()
        ]
        monkeypatch.setattr(naming, "_file", lambda check: "lstm.npz")
        monkeypatch.setattr(naming, "_known", lambda path: {"step": entries})

    return know


def test_a_mistake_that_explains_everything_is_named(known):
    known((FORGETS, {"values": failure(0.5, 2), "long": failure(0.25)}))
    assert told(values=failure(0.5, 2), long=failure(0.25)) == dict.fromkeys(
        ("values", "long"), FORGETS
    )


@pytest.mark.parametrize(
    "found",
    [
        {"values": failure(0.5, 2)},
        {"values": failure(0.5, 2), "long": failure(0.75)},
        {"values": failure(0.5, 2), "long": failure(0.25, what="h_t")},
        {"values": failure(0.5, 2), "long": Failure("it raised", kinds=("ValueError",))},
        {"values": failure(0.5, 2), "long": failure(0.25), "zeros": failure(0, 0)},
    ],
    ids=["it passes another", "other values", "another quantity", "it raises", "one more fails"],
)
def test_evidence_that_disagrees_leaves_it_unnamed(known, found):
    known((FORGETS, {"values": failure(0.5, 2), "long": failure(0.25)}))
    assert told(**found) == {}


def test_an_error_that_is_not_raised_needs_no_explanation(known):
    known((FORGETS, {"values": failure(0.5, 2)}))
    missing = NotRaised("should raise ValueError when the sizes differ, yours returns None.")
    assert told(values=failure(0.5, 2), errors=missing) == {"values": FORGETS}
    assert told(errors=missing) == {}


def test_values_that_come_from_anywhere_name_nothing_alone(known):
    known(
        (FORGETS, {"zeros": failure(0, 0)}), (TORCH, {"values": failure(0.5), "zeros": failure(0)})
    )
    assert told(zeros=failure(0, 0)) == {}
    assert told(values=failure(0.5), zeros=failure(0)) == dict.fromkeys(("values", "zeros"), TORCH)
    assert told(values=failure(0.5), zeros=failure(1e-16)) != {}  # zero but for rounding


@pytest.mark.parametrize("other", [TORCH, ""], ids=["another name", "told by its message"])
def test_two_names_for_the_same_values_are_none(known, other):
    known((FORGETS, {"values": failure(0.5)}), (other, {"values": failure(0.5)}))
    assert told(values=failure(0.5)) == {}


def test_two_mistakes_are_both_named_or_none(known):
    known(
        (FORGETS, {"values": failure(0.5), "zeros": failure(0.125)}),
        (TORCH, {"long": failure(0.25)}),
        ("the state is reset", {"long": failure(0.75), "zeros": failure(0.375)}),
    )
    both = told(values=failure(0.5), zeros=failure(0.125), long=failure(0.25))
    assert both == {"values": FORGETS, "zeros": FORGETS, "long": TORCH}
    assert told(values=failure(0.5), zeros=failure(0.125), long=failure(0.75)) == {}


def test_rounding_is_not_evidence():
    x = torch.tensor([1e-17, -3e-16], dtype=torch.float64)
    found = naming.entry(CHECKS["zeros"], Failure("", what="c_t", observed=x))
    assert not found.observed.any()
    assert not naming.identifies(found.observed)
    assert found.observed.dtype == np.float32


def test_float32_numbers_that_were_converted_are_compared_as_float32():
    """A weight as it was drawn differs between processors in the seventh digit."""
    drawn = torch.tensor([0.1, -0.7, 0.3]).double()
    elsewhere = (drawn * (1 + 2e-7)).float().double()
    assert not torch.equal(drawn, elsewhere)

    def entry(x):
        return naming.entry(CHECKS["values"], Failure("", what="W", observed=x))

    assert naming.same(entry(drawn), entry(elsewhere))
    wide = torch.tensor([0.1, -0.7, 0.3], dtype=torch.float64)
    assert not naming.same(entry(wide), entry(wide * (1 + 2e-5)))


@pytest.mark.parametrize(
    "name",
    [
        "own_units",
        "shared_units",
        "new_left",
        "only_centred",
        "per_image",
        "without_b",
        "one_deviation",
    ],
)
def test_a_mistake_is_named_wherever_a_search_stops(monkeypatch, name):
    found = next(each for each in exercises("mae") if each.name == "linear_probe")
    bug = next(bug for bug in BUGS[found] if bug.name == name)
    exact = torch.optim.LBFGS

    def coarse(*given, **settings):
        return exact(*given, tolerance_grad=1e-5, tolerance_change=1e-7, **settings)

    monkeypatch.setattr(torch.optim, "LBFGS", coarse)
    assert at_home(examine(found, bug.solution)) == {bug.sentence}


@pytest.fixture
def exercise() -> Exercise:
    return next(each for each in exercises("lstm") if each.name == "cell_gradient")


def test_no_mutant_of_an_exercise_is_told_a_mistake_that_it_does_not_make(exercise):
    assert list(names.wrong_names(exercise)) == []


def test_a_wrong_name_would_be_noticed(monkeypatch, exercise):
    sentence = "the gradient of c is passed on undiminished"
    monkeypatch.setattr(naming, "causes", lambda results: dict.fromkeys(results, sentence))
    found = list(names.wrong_names(exercise))
    assert found and all(sentence in line for line in found)


def test_a_mistake_that_some_inputs_hide_would_be_noticed(monkeypatch, exercise):
    hidden = Bug("nothing is wrong", cell_gradient, None)
    monkeypatch.setitem(BUGS, exercise, [hidden])
    found = list(other_inputs.other_inputs(exercise))
    assert len(found) == other_inputs.WRONG
    assert all("cell_gradient passes all checks with inputs" in line for line in found)
