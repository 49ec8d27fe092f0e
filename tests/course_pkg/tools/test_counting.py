"""Operations of torch are counted as they are called, whatever they are made of."""

import torch
from torch.nn import functional

from course_pkg.tools.counting import calls


def test_an_operation_inside_another_is_not_counted_again():
    X = torch.ones(3, 4)
    assert calls(lambda: None) == 0
    assert calls(lambda: X + 1) == 1
    assert calls(lambda: [row + 1 for row in X]) == 1 + 3  # the rows are taken apart in one call
    assert calls(lambda: functional.layer_norm(X, (4,))) == 1


def test_no_gradients_are_kept():
    x, kept = torch.ones(2, requires_grad=True), []
    calls(lambda: kept.append(x * 2))
    assert not kept[0].requires_grad
