"""Hidden checks of visual_attention: gradients, limiting cases, exact expectations, a black box."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.visual_attention import (
    decoder,
)
from course_pkg.visual_attention import (
    CaptionDecoder,
    doubly_stochastic_penalty,
    doubly_stochastic_penalty_fault,
    grid_features,
    reinforce_loss,
    update_baseline,
)


@check(grid_features, see="From feature maps to locations")
def gradients(grid, case):
    """passes the gradient of each location back to its place on the maps"""
    B, D, R, C = case.sizes(4)
    maps, seen = case.randn(B, D, R, C).requires_grad_(), case.randn(B, R * C, D)
    a = grid(maps)
    case.shape(a, (B, R * C, D), "a")
    case.trains(a, "a")
    a.backward(seen)
    case.gradient(maps, seen.view(B, R, C, D).permute(0, 3, 1, 2), "maps")


@check(doubly_stochastic_penalty, see="Look everywhere once")
def stares(penalty, case):
    """is L - 1 + (T - 1)² when a single location is looked at all the time"""
    B, T, L = case.sizes(3, low=3)
    p = torch.zeros(B, T, L, dtype=torch.float64)
    p[:, :, 1] = 1
    expected = float(L - 1 + (T - 1) ** 2)
    case.equal(penalty(p, torch.ones(B, T, dtype=torch.bool)), expected, "penalty")


@check(CaptionDecoder, see="The decoder over a caption")
def teacher_forcing(student, case):
    """sees no word before it has predicted it"""
    words, B, L, D, H, A, T = case.sizes(7, low=3)
    ours, _ = decoder(case, student, words, D, H, A)
    captions, a = case.integers(0, words, B, T + 1), case.randn(B, L, D)
    changed = captions.clone()
    changed[:, -2:] = (changed[:, -2:] + 1) % words
    before, _, _ = case.unpack(ours(a, captions), "scores", "p", "log_p")
    after, _, _ = case.unpack(ours(a, changed), "scores", "p", "log_p")
    case.shape(before, (B, T, words), "scores")
    case.shape(after, (B, T, words), "scores")
    case.equal(after[:, :-1], before[:, :-1], "scores before the changed words")
    case.that(
        not torch.allclose(after[:, -1], before[:, -1]),
        "Scores should depend on the previous word, yours do not.",
    )


@check(reinforce_loss, see="The REINFORCE estimate")
def exact_on_average(loss, case):
    """averaged over all choices of two locations, has the exact gradient of the expectation"""
    L, T, words = 3, 2, 2
    e = case.randn(T, L).requires_grad_()
    log_y = (-case.rand(L, L, words) - 0.1).requires_grad_()  # for each pair of locations
    log_p = torch.log_softmax(e, dim=1)
    pairs = [(i, j) for i in range(L) for j in range(L)]
    weight = torch.stack([(log_p[0, i] + log_p[1, j]).exp() for i, j in pairs])
    expected = (weight * log_y.sum(dim=2).flatten()).sum()
    wanted = torch.autograd.grad(expected, [e, log_y], retain_graph=True)
    mask, sums = torch.ones(1, T, dtype=torch.bool), [0, 0]
    for number, (i, j) in enumerate(pairs):
        choice = torch.stack([log_p[0, i], log_p[1, j]])[None]
        value, _ = case.unpack(loss(log_y[i, j][None], choice, mask, -0.7), "loss", "R")
        case.shape(value, (), "loss")
        case.trains(value, "loss")
        share = weight[number].detach()
        parts = torch.autograd.grad(value, [e, log_y], retain_graph=True, allow_unused=True)
        for n, part in enumerate(parts):
            sums[n] = sums[n] + (0 if part is None else share * part)
    case.that(all(torch.is_tensor(s) for s in sums), "No gradient reaches log_y or log_p.")
    case.equal(-sums[0], wanted[0], "mean gradient of the scores")
    case.equal(-sums[1], wanted[1], "mean gradient of log_y")


@check(update_baseline, see="A baseline")
def extreme_decays(update, case):
    """keeps b with a decay of 1, and forgets it with a decay of 0"""
    R = -10 * case.rand(*case.sizes(1, low=3))
    case.equal(update(-3.0, R, 1.0), -3.0, "b with decay 1")
    case.equal(update(-3.0, R, 0.0), R.mean(), "b with decay 0")


@check(doubly_stochastic_penalty_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "C")
