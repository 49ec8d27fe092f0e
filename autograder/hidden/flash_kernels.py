"""Hidden checks of flash_kernels: extremes, borders, gradients in parts, stale blocks."""

import math

import torch

from course_pkg.checking.registry import check
from course_pkg.checks.flash_kernels import (
    check_kernel,
    compare_backward,
    compare_flash,
    compare_forward,
    compare_paged,
    compare_tiles,
    far_below,
    inputs,
    paged_inputs,
    scores,
    torchs,
)
from course_pkg.flash_kernels import (
    flash_attention_backward,
    flash_attention_forward,
    online_softmax,
    triton_flash_forward,
    triton_paged_decode,
)


@check(online_softmax, see="A tile that nobody sees")
def far_below_zero(online, case):
    """tells scores that are far below zero from those of keys that may not be seen"""
    E = 2 * case.randn(4, 8) - 30000
    E[0, :3] = -math.inf
    E[1, 3:] = -math.inf
    compare_tiles(case, online, E, case.randn(8, 3), [3, 2, 3])


@check(flash_attention_forward, see="When a larger score arrives")
def large_scores(forward, case):
    """neither overflows nor loses digits when scores are large"""
    compare_forward(case, forward, inputs(case, 2, 1, 5, 8, 3, scale=40), False, 2, 3)
    compare_forward(case, forward, inputs(case, 1, 2, 5, 8, 3, scale=40), True, 2, 3)


@check(flash_attention_forward, see="When a larger score arrives")
def small_scores(forward, case):
    """stays right when all scores are far below zero"""
    for causal in (False, True):
        compare_forward(case, forward, far_below(case, 1, 2, 5, 8, 200), causal, 2, 3)


@check(flash_attention_backward, weight=2, see="Back without the weights")
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


@check(flash_attention_backward, see="Back without the weights")
def large_scores(backward, case):
    """stays right when scores are large"""
    compare_backward(case, backward, inputs(case, 2, 1, 5, 8, 3, scale=12), False, 2, 3)


@check_kernel(triton_flash_forward, see="When a larger score arrives")
def large_scores(flash, case):
    """neither overflows nor loses digits when scores are large"""
    Q, K = (case.integers(-16, 17, 1, 1, N, 4).double() for N in (2, 19))  # exact in float32
    compare_flash(case, flash, [Q, K, case.randn(1, 1, 19, 4)], False)


@check_kernel(triton_flash_forward, see="When a larger score arrives")
def small_scores(flash, case):
    """stays right when all scores are far below zero"""
    compare_flash(case, flash, far_below(case, 1, 1, 2, 19, 20), False)


@check_kernel(triton_flash_forward, weight=2, see="Edges need masks")
def edges(flash, case):
    """stays inside its tensors, with full tiles and with heads wider than a tile is high"""
    compare_flash(case, flash, inputs(case, 1, 1, 16, 17, 18), True)


@check_kernel(triton_paged_decode, weight=2, see="Decode from a paged cache")
def stale(decode, case):
    """reads no table and no slot beyond the sequence's end, whatever is there"""
    given = paged_inputs(case, 2, 1, 3, 5, [6, 2], spare=1)
    while 0 in given[3][0, :2] or given[3][1, 0] == 0:  # block 0 is what a masked load names
        given = paged_inputs(case, 2, 1, 3, 5, [6, 2], spare=1)
    for X in given[1:3]:
        X[X > 25] = math.nan  # what no length reaches
    given[3][0, 2:], given[3][1, 1:] = 1 << 40, -(1 << 40)
    compare_paged(case, decode, given, 1)


@check_kernel(triton_paged_decode, see="When a larger score arrives")
def large_scores(decode, case):
    """neither overflows nor loses digits when the scores of some heads are large"""
    Q, K, V, *rest = paged_inputs(case, 3, 1, 4, 64, [19])
    Q = Q.round() * torch.tensor([10.0, 1.0, 5.0])[:, None]  # with whole K, exact in float32
    compare_paged(case, decode, [Q, (3 * K).round(), V, *rest], 1)


@check_kernel(triton_paged_decode, see="When a larger score arrives")
def small_scores(decode, case):
    """stays right when all scores are far below zero"""
    Q, K, V = far_below(case, 1, 2, 1, 6, 20)
    K, V = (X.reshape(2, 3, 2, 4) for X in (K, V))
    compare_paged(case, decode, [Q[:, :, 0], K, V, torch.tensor([[2, 0, 1]]), torch.tensor([5])], 1)
