"""Checks compute in float64; what works in float64 alone is noticed, and nothing else is."""

import pytest
import torch
from torch import nn

from course_pkg.checking import guard
from course_pkg.checking.guard import Guarded
from course_pkg.checking.telling.failure import Failure

X = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3)


def in_float64(X):
    return X @ torch.eye(3, dtype=torch.float64)


def too_large(X):
    return X.masked_fill(X > 5, -1e300)


def too_small(X):
    return (X - X) / (X - X + 1e-300)


@pytest.mark.parametrize(
    "wrong, told",
    [
        (in_float64, "raised RuntimeError: expected m1 and m2 to have the same dtype"),
        (too_large, "raised RuntimeError: value cannot be converted to type float"),
        (too_small, "gives NaN, with the same in float64 it does not."),
    ],
)
def test_what_works_in_float64_alone(wrong, told):
    with pytest.raises(Failure) as failure:
        Guarded(wrong, "f")(X)
    text = str(failure.value)
    assert text.startswith(f"In float32, f {told}")
    assert "Has each new tensor the type of the inputs" in text
    if "raised" in told:
        assert "in line" in text


@pytest.mark.parametrize(
    "right",
    [
        lambda X: X @ X.new_ones(3, 2),
        lambda X: X.double() @ torch.ones(3, 2, dtype=torch.float64),
        lambda X: X.float() @ torch.ones(3, 2),
        lambda X: X / torch.zeros(3),  # ∞ in both
        lambda X: torch.full_like(X, torch.nan),
        lambda X: torch.rand(2) * X[:, 0],
    ],
)
def test_other_types_are_right(right):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    given = Guarded(right, "f")(X)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    assert torch.equal(given.nan_to_num(), right(X).nan_to_num())
    assert torch.equal(torch.get_rng_state(), after)


def test_each_way_of_calling_is_tried_once():
    calls = []

    def counts(X, seen):
        calls.append(X.dtype)
        return X.sum()

    f = Guarded(counts, "f")
    f(X, [X])
    f(X, [X])
    assert calls == [torch.float64, torch.float32, torch.float64]


def test_a_way_of_calling_without_such_numbers_is_looked_at_a_few_times(monkeypatch):
    looked, copies = [], guard.devices.copies
    monkeypatch.setattr(guard.devices, "copies", lambda *a: looked.append(a) or copies(*a))
    add = Guarded(lambda a, b: a + b, "add")
    for number in range(guard.TRIALS + 2):
        assert add(number, 1) == number + 1
    assert len(looked) == guard.TRIALS
    refused = Guarded(lambda X: X.double() if len(X) else X.lacks, "refused")
    for _ in range(guard.TRIALS + 2):  # a call that fails says nothing about the others
        with pytest.raises(Failure):
            refused(torch.ones(0, dtype=torch.float64))
    looked.clear()
    refused(torch.ones(2, dtype=torch.float64))
    assert len(looked) == 1


class Layer(nn.Module):
    def __init__(self, dtype=None):
        super().__init__()
        self.W = nn.Parameter(torch.ones(3, 3, dtype=dtype))
        self.register_buffer("table", torch.ones(3, dtype=torch.float64))

    def forward(self, X):
        return X @ self.W + self.table.to(X)


def test_a_new_module_has_parameters_of_the_default_type():
    with pytest.raises(Failure, match=r"Layer makes W in torch.float64, with which inputs in"):
        Guarded(Layer, "Layer")(torch.float64)
    module = Guarded(Layer, "Layer")()
    assert module.double()(X).dtype == torch.float64
