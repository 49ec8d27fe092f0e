"""Hidden checks of visual_attention: gradients, extremes, sampling, single pictures."""

import torch

from course_pkg.checking.registry import check
from course_pkg.checks.visual_attention import (
    chosen,
    decoder,
    looked,
    one_step,
    rewards,
    unpack_step,
    weights_over_time,
)
from course_pkg.visual_attention import (
    CaptionDecoder,
    doubly_stochastic_penalty,
    grid_features,
    hard_attention,
    reinforce_loss,
    soft_attention,
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


@check(soft_attention, see="Soft attention")
def gradients(attend, case):
    """passes ∂z/∂e_l = p_l (a_l - z) back to the scores"""
    B, L, D = case.sizes(3)
    e, a = case.randn(B, L).requires_grad_(), case.randn(B, L, D).requires_grad_()
    seen = case.randn(B, D)
    z, _ = looked(case, attend(e, a), B, L, D)
    case.trains(z, "z")
    z.backward(seen)
    p = torch.softmax(e, dim=1).detach()
    mean = (p[:, :, None] * a.detach()).sum(dim=1, keepdim=True)
    along = ((a.detach() - mean) * seen[:, None]).sum(dim=2)
    case.gradient(e, p * along, "e")
    case.gradient(a, p[:, :, None] * seen[:, None], "a")


@check(soft_attention, see="Soft attention")
def gradient_of_p(attend, case):
    """passes ∂p_k/∂e_l = p_k ([k = l] - p_l) back to the scores"""
    B, L, D = case.sizes(3)
    e, a, seen = case.randn(B, L).requires_grad_(), case.randn(B, L, D), case.randn(B, L)
    _, p = looked(case, attend(e, a), B, L, D)
    case.trains(p, "p")
    p.backward(seen)
    expected = torch.softmax(e, dim=1).detach()
    case.gradient(e, expected * (seen - (expected * seen).sum(dim=1, keepdim=True)), "e")


@check(hard_attention, see="No gradient through a choice")
def gradient_of_z(attend, case):
    """passes the gradient of z to the chosen location alone, and none to e"""
    B, L, D = 20, *case.sizes(2, low=3)
    e, a = case.randn(B, L).requires_grad_(), case.randn(B, L, D).requires_grad_()
    seen = case.randn(B, D)
    z, _, _, s = chosen(case, attend(e, a), B, L, a)
    case.trains(z, "z")
    z.backward(seen)
    expected = torch.zeros(B, L, D, dtype=torch.float64)
    expected[torch.arange(B), s] = seen
    case.gradient(a, expected, "a")
    if e.grad is not None:
        case.equal(e.grad, torch.zeros(B, L), "gradient of e")


@check(hard_attention, see="Hard attention", single="B")
def only_one_location(attend, case):
    """takes the only location there is, with log p_s = 0"""
    B, D = case.sizes(2)
    e, a = case.randn(B, 1), case.randn(B, 1, D)
    for sample in (True, False):
        z, p, log_p = case.unpack(attend(e, a, sample), "z", "p", "log_p")
        case.equal(z, a[:, 0], "z")
        case.equal(p, torch.ones(B, 1), "p")
        case.equal(log_p, torch.zeros(B), "log_p")


@check(hard_attention, see="Hard attention")
def draws_anew(attend, case):
    """draws anew for each picture and in each call, from torch's generator"""
    B, L, D = 30, *case.sizes(2, low=4)
    e, a = torch.zeros(B, L, dtype=torch.float64), case.randn(1, L, D).expand(B, L, D).clone()
    state = torch.get_rng_state()
    *_, first = chosen(case, attend(e, a), B, L, a)
    *_, second = chosen(case, attend(e, a), B, L, a)
    case.that(len(first.unique()) > 1, "Pictures should have draws of their own, yours share one.")
    case.that(not torch.equal(first, second), "Each call should draw anew, yours repeats itself.")
    torch.set_rng_state(state)
    *_, again = chosen(case, attend(e, a), B, L, a)
    case.that(
        torch.equal(first, again),
        "Locations should repeat when torch's seed does, yours do not: does torch draw them?",
    )


@check(doubly_stochastic_penalty, see="Look everywhere once")
def gradients(penalty, case):
    """has the gradient -2 (1 - Σ_t p_tl) / B for words, and none for padding"""
    looks, mask = weights_over_time(case)
    expected = -2 * (1 - (looks * mask[:, :, None]).sum(dim=1, keepdim=True)) / len(looks)
    looks.requires_grad_()
    given = penalty(looks, mask)
    case.shape(given, (), "penalty")
    case.trains(given, "the penalty")
    given.backward()
    case.gradient(looks, expected * mask[:, :, None], "p")


@check(doubly_stochastic_penalty, see="Look everywhere once")
def stares(penalty, case):
    """is L - 1 + (T - 1)² when a single location is looked at all the time"""
    B, T, L = case.sizes(3, low=3)
    p = torch.zeros(B, T, L, dtype=torch.float64)
    p[:, :, 1] = 1
    expected = float(L - 1 + (T - 1) ** 2)
    case.equal(penalty(p, torch.ones(B, T, dtype=torch.bool)), expected, "penalty")


@check(CaptionDecoder, see="One step of the decoder")
def other_pictures(student, case):
    """keeps nothing of the pictures that it has seen before"""
    words, B, L, D, H, A = case.sizes(6)
    ours, weights = decoder(case, student, words, D, H, A)
    for name, count in (("the first pictures", B), ("other pictures", B), ("more pictures", B + 2)):
        word, a = case.integers(0, words, count), case.randn(count, L, D)
        h, c = case.randn(count, H), case.randn(count, H)
        expected = one_step(weights, word, h, c, a)
        scores, _, _, p, log_p = unpack_step(case, ours.step(word, (h, c), a))
        case.equal(p, expected[3], f"p of {name}")
        case.equal(scores, expected[0], f"scores of {name}")
        case.equal(log_p, torch.zeros(count), f"log_p of {name}")


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


@check(CaptionDecoder, see="The decoder over a caption")
def gradients(student, case):
    """passes gradients back through all steps to the picture and to the attention"""
    words, B, L, D, H, A, T = case.sizes(7)
    ours, weights = decoder(case, student, words, D, H, A)
    captions, a = case.integers(0, words, B, T + 1), case.randn(B, L, D).requires_grad_()
    leaves = {name: value.requires_grad_() for name, value in weights.items()}
    h, c = (
        (a.mean(dim=1) @ leaves[f"first_{part}.weight"].T + leaves[f"first_{part}.bias"]).tanh()
        for part in "hc"
    )
    for t in range(T):
        expected, h, c, _ = one_step_with_graph(leaves, captions[:, t], h, c, a)
    seen = case.randn(B, words)
    wanted = torch.autograd.grad(expected, [a, leaves["W_h.weight"]], seen)
    scores, p, _ = case.unpack(ours(a, captions), "scores", "p", "log_p")
    case.shape(scores, (B, T, words), "scores")
    case.trains(scores, "scores")
    case.trains(p, "p")
    scores[:, -1].backward(seen)
    case.gradient(a, wanted[0], "a")
    case.gradient(dict(ours.named_parameters())["W_h.weight"], wanted[1], "W_h")
    case.learns(ours)


def one_step_with_graph(weights, word, h, c, a):
    """A soft step from its equations, through which gradients reach the weights."""
    hidden = a @ weights["W_a.weight"].T
    hidden = hidden + (h @ weights["W_h.weight"].T + weights["W_h.bias"])[:, None]
    p = (hidden.tanh() @ weights["v.weight"][0]).softmax(dim=1)
    z = (p[:, :, None] * a).sum(dim=1)
    inputs = torch.cat([weights["embedding.weight"][word], z], dim=1)
    gates = inputs @ weights["lstm.weight_ih"].T + weights["lstm.bias_ih"]
    gates = gates + h @ weights["lstm.weight_hh"].T + weights["lstm.bias_hh"]
    i, f, g, o = gates.chunk(4, dim=1)  # torch's order
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    scores = torch.cat([h, z], dim=1) @ weights["output.weight"].T + weights["output.bias"]
    return scores, h, c, p


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


@check(reinforce_loss, see="Captions of different lengths")
def padding(loss, case):
    """gives the same whatever the padding holds"""
    log_y, log_p, mask = rewards(case)
    first, R = case.unpack(loss(log_y, log_p, mask, -2.0), "loss", "R")
    other = torch.where(mask, log_y, log_y - 100), torch.where(mask, log_p, log_p - 100)
    second, R_2 = case.unpack(loss(*other, mask, -2.0), "loss", "R")
    chosen = (log_p * mask).sum(dim=1)
    reward = (log_y * mask).sum(dim=1)
    expected = -(reward + (reward + 2.0) * chosen).mean()
    case.equal(first, expected, "loss")
    case.equal(second, expected, "loss with other padding")
    case.equal(R, reward, "R")
    case.equal(R_2, reward, "R with other padding")


@check(update_baseline, see="A baseline")
def extreme_decays(update, case):
    """keeps b with a decay of 1, and forgets it with a decay of 0"""
    R = -10 * case.rand(*case.sizes(1, low=3))
    case.equal(update(-3.0, R, 1.0), -3.0, "b with decay 1")
    case.equal(update(-3.0, R, 0.0), R.mean(), "b with decay 0")
