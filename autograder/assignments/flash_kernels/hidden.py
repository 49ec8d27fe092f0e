"""Hidden checks of flash_kernels: gradients in parts, a black box."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.flash_kernels import (
    inputs,
    scores,
    torchs,
)
from course_pkg.flash_kernels import (
    flash_attention_backward,
    flash_attention_backward_fault,
)


@check(flash_attention_backward, weight=2, see="The backward pass without the weights")
def in_parts(backward, case):
    """takes s as given: the gradients of some keys are right without the other keys"""
    Q, K, V = inputs(case, 2, 1, 5, 9, 4)
    leaves = [X.clone().requires_grad_() for X in (Q, K, V)]
    Y = torchs(*leaves, False)
    dY = case.randn(*Y.shape)
    right = torch.autograd.grad(Y, leaves, dY)
    s = torch.logsumexp(scores(Q, K, False)[0], dim=-1)
    parts = []
    for keys in (slice(0, 4), slice(4, 9)):
        given = backward(Q, K[:, :, keys], V[:, :, keys], Y.detach(), s, dY, False, 2, 3)
        parts.append(case.unpack(given, "dQ", "dK", "dV"))
    for place, name in ((2, "dV"), (1, "dK")):
        case.equal(torch.cat([part[place] for part in parts], dim=2), right[place], name)
    case.equal(parts[0][0] + parts[1][0], right[0], "dQ")


@check(flash_attention_backward_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "A")
