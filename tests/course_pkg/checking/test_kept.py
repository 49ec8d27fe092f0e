"""A module that keeps something between calls is noticed; one that does not is left alone."""

import pytest
import torch
from torch import nn

from course_pkg.checking.failure import Failure
from course_pkg.checking.guard import Guarded

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


class LoopsOnOtherInputs(Plain):
    def forward(self, X):
        while X[0, 0, 0] != 0:
            pass
        return X @ self.W


class Draws(Plain):
    def forward(self, X):
        return X @ self.W + torch.rand(2)


@pytest.mark.parametrize("module", [KeepsItsMask, KeepsItsResult, KeepsItsWeight])
def test_what_is_kept_and_used_is_noticed(module):
    with pytest.raises(Failure, match="M depends on an earlier call"):
        Guarded(module(), "M")(X)


@pytest.mark.parametrize("module", [Plain, Draws, LoopsOnOtherInputs])
def test_what_does_not_depend_on_earlier_calls_is_left_alone(module):
    torch.manual_seed(0)
    expected = module()(X)
    own = module()
    torch.manual_seed(0)
    assert torch.equal(Guarded(own, "M", 0.2)(X), expected)
    assert "seen" not in vars(own) or torch.equal(own.seen, expected)
