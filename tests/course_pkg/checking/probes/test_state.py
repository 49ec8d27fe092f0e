"""What keeps something between calls is noticed; what does not is left alone."""

import pytest
import torch
from torch import nn

from course_pkg.checking.guard import Guarded
from course_pkg.checking.telling.failure import Failure

X = torch.arange(12.0).view(2, 3, 2)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.eye(2))

    def forward(self, X):
        self.seen = X @ self.W  # kept, but never used again
        return self.seen


class KeepsItsMask(Plain):
    mask = None

    def forward(self, X):
        if self.mask is None:
            self.mask = torch.ones(X.shape[1], X.shape[1]).tril()
        return self.mask @ X @ self.W


class KeepsItsResult(Plain):
    def forward(self, X):
        return vars(self).setdefault("result", X @ self.W)


class KeepsItsWeight(Plain):
    kept = None

    def forward(self, X):
        if self.kept is None:
            self.kept = self.W + 1
        return X @ self.kept


class KeepsInEvaluation(Plain):
    def forward(self, X):
        return X @ (self.W if self.training else vars(self).setdefault("kept", self.W + 1))


class KeepsWithoutGradients(Plain):
    def forward(self, X):
        if torch.is_grad_enabled():
            return X @ self.W
        return X @ vars(self).setdefault("kept", self.W + 1)


class KeepsInADict(Plain):
    def __init__(self):
        super().__init__()
        self.kept = {"W": [None]}

    def forward(self, X):
        if self.kept["W"][0] is None:
            self.kept["W"][0] = self.W + 1
        return X @ self.kept["W"][0]


class KnowsItsLastInput(Plain):
    last = None

    def forward(self, X):
        if self.last is None or self.last[0].shape != X.shape or not (self.last[0] == X).all():
            self.last = X.clone(), X @ self.W
        return self.last[1]


class KeepsItsState(Plain):
    state = None

    def forward(self, X, state=None):
        self.state = self.state if state is None else state
        return X @ self.W if self.state is None else X @ self.W + self.state

    def step(self, X, state=None):
        return self(X, state)


def keeps_by_shape(X, kept={}):  # noqa: B006  a dict that outlives the call is the mistake
    return kept.setdefault(X.shape, X + 1)


def keeps_what_is_right(n, kept={}):  # noqa: B006  a dict that outlives the call, and may
    return kept.setdefault(n, n + 1)


class IsOtherInEvaluation(Plain):
    def forward(self, X):
        return X @ self.W if self.training else X + 1


class LoopsOnOtherInputs(Plain):
    def forward(self, X):
        while X[0, 0, 0] != 0:
            pass
        return X @ self.W


class Draws(Plain):
    def forward(self, X):
        return X @ self.W + torch.rand(2)


class DrawsInTraining(Plain):
    def forward(self, X):
        return nn.functional.dropout(X @ self.W, training=self.training)


@pytest.mark.parametrize(
    "module",
    [
        *(KeepsItsMask, KeepsItsResult, KeepsItsWeight, KeepsInADict),
        *(KeepsInEvaluation, KeepsWithoutGradients, KnowsItsLastInput),
    ],
)
def test_what_is_kept_and_used_is_noticed(module):
    with pytest.raises(Failure, match="M depends on an earlier call"):
        Guarded(module(), "M")(X)


def test_a_parameter_that_a_call_changes_is_named():
    class Adds(Plain):
        def merge(self):
            self.W.data += 1
            return self.W.clone()

    with pytest.raises(Failure, match=r"M.merge depends .* It has changed W in place"):
        Guarded(Adds(), "M").merge()


def test_an_optional_input_of_an_earlier_call_is_noticed():
    module = Guarded(KeepsItsState(), "M")
    assert torch.equal(module(X), X)
    with pytest.raises(Failure, match="the inputs of its first call without state"):
        module(X, torch.ones(2))


def test_methods_are_tried_too():
    with pytest.raises(Failure, match=r"M.step depends on an earlier call"):
        Guarded(KeepsItsState(), "M").step(X, state=torch.ones(2))


def test_what_a_function_keeps_in_a_default_value_is_noticed():
    with pytest.raises(Failure, match="f depends on an earlier call: with other inputs than"):
        Guarded(keeps_by_shape, "f")(X)
    keeps = Guarded(keeps_what_is_right, "f")
    assert [keeps(1), keeps(2), keeps(1)] == [2, 3, 2]


def test_a_class_of_modules_is_tried_once_for_each_way_of_making_and_calling_it():
    calls = []

    class Counts(Plain):
        def __init__(self, size=1):
            super().__init__()

        def forward(self, X):
            calls.append(X)
            return super().forward(X)

    def count(*args):
        before = len(calls)
        M(*args)(X)
        return len(calls) - before

    M = Guarded(Counts, "M")
    assert count() > 1
    assert [count(), count(1) > 1, count(2), count(0) > 1] == [1, True, 1, True]


def test_what_its_calls_leave_as_it_was_is_called_in_float32_and_in_evaluation_only():
    calls = []

    class Notes(nn.Linear):
        def forward(self, X):
            calls.append((self.weight.dtype, self.training))
            return super().forward(X)

    Guarded(Notes(2, 2).double(), "M")(X.double())
    assert calls == [(torch.float64, True), (torch.float64, False), (torch.float32, True)]


def test_a_module_is_the_same_in_evaluation_if_it_draws_nothing():
    with pytest.raises(Failure, match="M returns something else in evaluation"):
        Guarded(IsOtherInEvaluation(), "M")(X)
    assert torch.equal(Guarded(IsOtherInEvaluation().eval(), "M")(X), X + 1)


@pytest.mark.parametrize("module", [Plain, Draws, DrawsInTraining, LoopsOnOtherInputs])
def test_what_does_not_depend_on_earlier_calls_is_left_alone(module):
    torch.manual_seed(0)
    expected = module()(X)
    own = module()
    torch.manual_seed(0)
    assert torch.equal(Guarded(own, "M", 0.2)(X), expected)
    assert "seen" not in vars(own) or torch.equal(own.seen, expected)
