"""Checks of visual_attention. Oracles: loops, torch's attention and LSTMCell, enumeration."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.visual_attention import (
    CaptionDecoder,
    doubly_stochastic_penalty,
    doubly_stochastic_penalty_fault,
    grid_features,
    hard_attention,
    reinforce_loss,
    soft_attention,
    update_baseline,
)


@check(grid_features, weight=2, see="From feature maps to locations", single="B")
def values(grid, case):
    """puts the features at (row, column) into row C · row + column, location by location"""
    B, D, R, C = case.sizes(4)
    maps = case.randn(B, D, R, C)
    rows = [maps[:, :, row, column] for row in range(R) for column in range(C)]
    case.equal(grid(maps), torch.stack(rows, dim=1), "a")


@check(grid_features, see="From feature maps to locations")
def one_feature(grid, case):
    """reads a single map as a page is read: row by row from the upper left"""
    B, R, C = case.sizes(3)
    maps = case.randn(B, 1, R, C)
    expected = torch.stack([torch.cat([page[0, row] for row in range(R)]) for page in maps])
    a = grid(maps)
    case.shape(a, (B, R * C, 1), "a")
    case.equal(a[:, :, 0], expected, "a")


def looked(case: Case, result: object, B: int, L: int, D: int) -> tuple[Tensor, Tensor]:
    """Split what soft attention returns into z and p, and demand their shapes."""
    z, p = case.unpack(result, "z", "p")
    case.shape(z, (B, D), "z")
    case.shape(p, (B, L), "p")
    return z, p


@check(soft_attention, weight=2, see="Soft attention", single="B")
def values(attend, case):
    """agrees with torch's scaled_dot_product_attention"""
    B, L, D = case.sizes(3)
    e, a = case.randn(B, L), case.randn(B, L, D)
    # A query of 1 and keys e have the scores e; torch divides them by √1.
    one, keys = torch.ones(B, 1, 1, dtype=e.dtype), e[:, :, None]
    expected = functional.scaled_dot_product_attention(one, keys, a)[:, 0]
    z, p = looked(case, attend(e, a), B, L, D)
    case.equal(p, torch.exp(e) / torch.exp(e).sum(dim=1, keepdim=True), "p")
    case.equal(z, expected, "z")


@check(soft_attention, see="Soft attention")
def sums_to_one(attend, case):
    """spreads a weight of one over the locations of each picture"""
    B, L, D = case.sizes(3)
    _, p = looked(case, attend(3 * case.randn(B, L), case.randn(B, L, D)), B, L, D)
    case.equal(p.sum(dim=1), torch.ones(B), "sum of p over the locations")
    case.that((p >= 0).all(), "p should not be negative, yours is.", p)


@check(soft_attention, see="Soft attention")
def equal_scores(attend, case):
    """gives the mean of the locations when all scores are equal"""
    B, L, D = case.sizes(3)
    a = case.randn(B, L, D)
    z, _ = looked(case, attend(torch.full((B, L), 2.0, dtype=a.dtype), a), B, L, D)
    case.equal(z, a.mean(dim=1), "z")


@check(soft_attention, see="Soft attention")
def large_scores(attend, case):
    """looks at one location where its score is far above the picture's others, without NaN"""
    B, L, D = case.sizes(3)
    a = case.randn(B, L, D)
    e = torch.zeros(B, L, dtype=a.dtype)
    e[:, 1] = 1000.0
    e = e - 3000 * torch.arange(B)[:, None]  # pictures far apart, too: each has its own softmax
    z, _ = looked(case, attend(e, a), B, L, D)
    case.equal(z, a[:, 1], "z")


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


def chosen(
    case: Case, result: object, B: int, L: int, a: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Split what hard attention returns; also find which location z is."""
    z, p, log_p = case.unpack(result, "z", "p", "log_p")
    case.shape(z, (B, a.shape[2]), "z")
    case.shape(p, (B, L), "p")
    case.shape(log_p, (B,), "log_p")
    distance = (a - z.detach()[:, None]).abs().amax(dim=2)  # (B, L)
    nearest = distance.argmin(dim=1)
    expected = a[torch.arange(B), nearest].detach()
    wrong = ~torch.isclose(z.detach().to(expected), expected, 1e-5, 1e-6).all(dim=1)
    case.that(
        not wrong.any(),
        f"z should be the features of one location; z of picture {int(wrong.long().argmax())} "
        f"is those of none.",
        z,
    )
    return z, p, log_p, nearest


@check(hard_attention, weight=2, see="Hard attention", single="B")
def best(attend, case):
    """takes the location with the largest weight when it does not sample"""
    B, L, D = case.sizes(3, low=3)
    e, a = case.randn(B, L), case.randn(B, L, D)
    s = e.argmax(dim=1)
    z, p, log_p = case.unpack(attend(e, a, sample=False), "z", "p", "log_p")
    case.equal(p, torch.softmax(e, dim=1), "p")
    case.equal(z, a[torch.arange(B), s], "z")
    case.equal(log_p, torch.log_softmax(e, dim=1)[torch.arange(B), s], "log_p")


@check(hard_attention, weight=2, see="Hard attention", single="B")
def one_location(attend, case):
    """returns the features of one location, and the logarithm of that location's weight"""
    B, L, D = case.narrowed([40, 5, 3])
    e, a = case.randn(B, L), case.randn(B, L, D)
    _, p, log_p, s = chosen(case, attend(e, a), B, L, a)
    case.equal(p, torch.softmax(e, dim=1), "p")
    case.equal(log_p, torch.log_softmax(e, dim=1)[torch.arange(B), s], "log_p")


@check(hard_attention, weight=2, see="Hard attention")
def frequencies(attend, case):
    """draws each location as often as its weight says"""
    B, (L, D) = 4000, case.sizes(2, low=3)
    order = torch.randperm(L, generator=case.generator)
    row, a = 1.5 * order + 0.2 * case.randn(1, L), case.randn(1, L, D)
    result = attend(row.expand(B, L).clone(), a.expand(B, L, D).clone())
    *_, s = chosen(case, result, B, L, a.expand(B, L, D))
    p = torch.softmax(row[0], dim=0)
    share = torch.bincount(s, minlength=L) / B
    sigma = (p * (1 - p) / B).sqrt()
    worst = int(((share - p).abs() / sigma).argmax())
    case.that(
        (share[worst] - p[worst]).abs() <= 5 * sigma[worst],
        f"Location {worst} should be drawn in a share of {p[worst]:.3f} of {B} draws, yours is "
        f"drawn in {share[worst]:.3f}.",
    )


@check(hard_attention, see="No gradient through a choice")
def gradient_of_log_p(attend, case):
    """passes a gradient to e through log p_s: one-hot(s) - p"""
    B, L, D = 20, *case.sizes(2, low=3)
    e, a = case.randn(B, L).requires_grad_(), case.randn(B, L, D)
    _, _, log_p, s = chosen(case, attend(e, a), B, L, a)
    case.trains(log_p, "log_p")
    log_p.sum().backward()
    expected = functional.one_hot(s, L) - torch.softmax(e, dim=1)
    case.gradient(e, expected, "e")


@check(hard_attention, see="Hard attention")
def rare_location(attend, case):
    """gives a finite log p_s, with a gradient, however far apart the scores are"""
    B, L, D = case.sizes(3, low=3)
    a = case.randn(B, L, D)
    e = -2000.0 * torch.arange(L, dtype=torch.float64).expand(B, L)
    e = e.clone().requires_grad_()
    _, p, log_p = case.unpack(attend(e, a, sample=False), "z", "p", "log_p")
    case.equal(log_p, torch.zeros(B), "log_p")
    case.trains(log_p, "log_p")
    log_p.sum().backward()
    case.gradient(e, torch.zeros(B, L), "e")
    case.equal(p.sum(dim=1), torch.ones(B), "sum of p")


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


def decoder(case: Case, student, words: int, D: int, H: int, A: int, hard: bool = False) -> tuple:
    """Make a student's decoder with random weights, float64; return it and its weights."""
    ours = student(words, D, H, A, hard).double()
    state = {name: 0.7 * case.randn(*value.shape) for name, value in ours.state_dict().items()}
    ours.load_state_dict(state)
    return ours, state


def one_step(state: dict, word: Tensor, h: Tensor, c: Tensor, a: Tensor, s=None) -> tuple:
    """What a step should give, by torch's LSTMCell; it looks at location s, or at all if None."""
    hidden = torch.einsum("bld,kd->blk", a, state["W_a.weight"])
    hidden = hidden + (h @ state["W_h.weight"].T + state["W_h.bias"])[:, None]
    p = torch.einsum("blk,k->bl", hidden.tanh(), state["v.weight"][0]).softmax(dim=1)
    z = torch.einsum("bl,bld->bd", p, a) if s is None else a[torch.arange(len(a)), s]
    H, D = h.shape[1], a.shape[2]
    cell = nn.LSTMCell(H + D, H).double()
    cell.load_state_dict({k[5:]: v for k, v in state.items() if k.startswith("lstm.")})
    h, c = cell(torch.cat([state["embedding.weight"][word], z], dim=1), (h, c))
    scores = torch.cat([h, z], dim=1) @ state["output.weight"].T + state["output.bias"]
    return scores, h, c, p


def unpack_step(case: Case, result: object) -> tuple:
    """Split what a step returns into scores, h, c, p and log_p."""
    scores, state, p, log_p = case.unpack(result, "scores", "(h, c)", "p", "log_p")
    return scores, *case.unpack(state, "h", "c"), p, log_p


@check(CaptionDecoder, weight=2, see="One step of the decoder", single={"B": 1, "L": 2})
def soft_step(student, case):
    """looks with h_{t-1} at all locations, then updates the LSTM, then scores the words"""
    words, B, L, D, H, A = case.sizes(6)
    ours, weights = decoder(case, student, words, D, H, A)
    word, a = case.integers(0, words, B), case.randn(B, L, D)
    h, c = case.randn(B, H), case.randn(B, H)
    expected = one_step(weights, word, h, c, a)
    scores, h_t, c_t, p, log_p = unpack_step(case, ours.step(word, (h, c), a))
    case.equal(p, expected[3], "p")
    case.equal(c_t, expected[2], "c_t")
    case.equal(h_t, expected[1], "h_t")
    case.equal(scores, expected[0], "scores")
    case.equal(log_p, torch.zeros(B), "log_p")


@check(CaptionDecoder, see="One step of the decoder")
def hard_step(student, case):
    """looks at the best location alone with hard attention in evaluation mode"""
    words, B, L, D, H, A = case.sizes(6)
    ours, weights = decoder(case, student, words, D, H, A, hard=True)
    ours.eval()
    word, a = case.integers(0, words, B), case.randn(B, L, D)
    h, c = case.randn(B, H), case.randn(B, H)
    p = one_step(weights, word, h, c, a)[3]
    expected = one_step(weights, word, h, c, a, p.argmax(dim=1))
    scores, h_t, c_t, p_t, log_p = unpack_step(case, ours.step(word, (h, c), a))
    case.equal(p_t, p, "p")
    case.equal(h_t, expected[1], "h_t")
    case.equal(c_t, expected[2], "c_t")
    case.equal(scores, expected[0], "scores")
    case.equal(log_p, p.amax(dim=1).log(), "log_p")
    case.trains(log_p, "log_p")


@check(CaptionDecoder, see="One step of the decoder")
def hard_step_in_training(student, case):
    """draws the location at random with hard attention in training mode"""
    words, L, D, H, A = case.sizes(5, low=3)
    B = 40
    ours, weights = decoder(case, student, words, D, H, A, hard=True)
    ours.train()
    word, a = case.integers(0, words, B), case.randn(B, L, D)
    h, c = case.randn(B, H), case.randn(B, H)
    scores, h_t, _, p, log_p = unpack_step(case, ours.step(word, (h, c), a))
    case.equal(p, one_step(weights, word, h, c, a)[3], "p")
    case.shape(h_t, (B, H), "h_t")
    case.shape(scores, (B, words), "scores")
    case.shape(log_p, (B,), "log_p")
    # Which location gives the student's h_t? Try all.
    tries = [one_step(weights, word, h, c, a, torch.full((B,), s)) for s in range(L)]
    distance = torch.stack([(h_t.detach() - h).abs().amax(dim=1) for _, h, _, _ in tries], dim=1)
    s = distance.argmin(dim=1)
    case.that(
        distance.amin(dim=1).max() < 1e-5, "h_t should come from one location, yours does not."
    )
    case.that((s != p.argmax(dim=1)).any(), "In training s should be drawn, yours is the best.")
    case.equal(log_p, p.detach()[torch.arange(B), s].log(), "log_p")
    case.equal(scores, torch.stack([t[0] for t in tries], dim=1)[torch.arange(B), s], "scores")


@check(CaptionDecoder, weight=2, see="The decoder over a caption", single={"T": 6})
def caption(student, case):
    """reads the true words y_0 … y_{T-1}, one step each, from the state of `start`"""
    words, B, L, D, H, A, T = case.sizes(7)
    ours, weights = decoder(case, student, words, D, H, A)
    captions, a = case.integers(0, words, B, T + 1), case.randn(B, L, D)
    h, c = (
        (a.mean(dim=1) @ weights[f"first_{part}.weight"].T + weights[f"first_{part}.bias"]).tanh()
        for part in "hc"
    )
    expected = []
    for t in range(T):
        scores, h, c, p = one_step(weights, captions[:, t], h, c, a)
        expected.append((scores, p))
    scores, p, log_p = case.unpack(ours(a, captions), "scores", "p", "log_p")
    case.equal(p, torch.stack([p for _, p in expected], dim=1), "p")
    case.equal(scores, torch.stack([scores for scores, _ in expected], dim=1), "scores")
    case.equal(log_p, torch.zeros(B, T), "log_p")


@check(CaptionDecoder, see="The decoder over a caption")
def hard_caption(student, case):
    """looks at the best location of each step with hard attention in evaluation mode"""
    words, B, L, D, H, A, T = case.sizes(7)
    ours, weights = decoder(case, student, words, D, H, A, hard=True)
    ours.eval()
    captions, a = case.integers(0, words, B, T + 1), case.randn(B, L, D)
    h, c = (
        (a.mean(dim=1) @ weights[f"first_{part}.weight"].T + weights[f"first_{part}.bias"]).tanh()
        for part in "hc"
    )
    expected = []
    for t in range(T):
        s = one_step(weights, captions[:, t], h, c, a)[3].argmax(dim=1)
        scores, h, c, p = one_step(weights, captions[:, t], h, c, a, s)
        expected.append((scores, p, p.amax(dim=1).log()))
    names = ("scores", "p", "log_p")
    given = case.unpack(ours(a, captions), *names)
    for name, part, each in zip(names, given, zip(*expected, strict=True), strict=True):
        case.equal(part, torch.stack(each, dim=1), name)
    case.trains(given[2], "log_p")


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


def weights_over_time(case: Case) -> tuple[Tensor, Tensor]:
    """Draw attention weights (B, T, L) and the mask of captions of different lengths."""
    B, T, L = case.sizes(3, low=3)
    p = torch.softmax(case.randn(B, T, L), dim=2)
    return p, torch.arange(T) < case.lengths(B, T)[:, None]


@check(doubly_stochastic_penalty, weight=2, see="Look everywhere once")
def values(penalty, case):
    """sums (1 - Σ_t p_tl)² over locations, and averages over pictures"""
    p, mask = weights_over_time(case)
    B, T, L = p.shape
    total = 0.0
    for n in range(B):
        for location in range(L):
            seen = sum(float(p[n, t, location]) for t in range(T) if mask[n, t])
            total += (1 - seen) ** 2
    case.equal(penalty(p, mask), total / B, "penalty")


@check(doubly_stochastic_penalty, see="Look everywhere once")
def nothing_to_penalise(penalty, case):
    """is zero when every location is looked at exactly once"""
    B, L = case.sizes(2, low=3)
    orders = [torch.randperm(L, generator=case.generator) for _ in range(B)]
    p = torch.stack([torch.eye(L, dtype=torch.float64)[order] for order in orders])
    case.equal(penalty(p, torch.ones(B, L, dtype=torch.bool)), 0.0, "penalty")


@check(doubly_stochastic_penalty, see="Look everywhere once")
def padding(penalty, case):
    """does not depend on the weights of padding"""
    p, mask = weights_over_time(case)
    other = torch.where(mask[:, :, None], p, 0 * p)
    expected = (1 - other.sum(dim=1)).square().sum() / len(p)
    case.equal(penalty(torch.where(mask[:, :, None], p, 50 + 0 * p), mask), expected, "penalty")


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


def rewards(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Draw log_y, log_p and the mask of captions of different lengths."""
    B, T = case.sizes(2, low=4)
    log_y, log_p = -case.rand(B, T) - 0.1, -2 * case.rand(B, T) - 0.1
    return log_y, log_p, torch.arange(T) < case.lengths(B, T)[:, None]


@check(reinforce_loss, weight=2, see="The REINFORCE estimate", single="B")
def values(loss, case):
    """agrees with a loop over pictures and words"""
    log_y, log_p, mask = rewards(case)
    b, total, expected_R = -1.3, 0.0, []
    for n in range(len(log_y)):
        words = [t for t in range(mask.shape[1]) if mask[n, t]]
        R = sum(float(log_y[n, t]) for t in words)
        total -= R + (R - b) * sum(float(log_p[n, t]) for t in words)
        expected_R.append(R)
    given, R = case.unpack(loss(log_y, log_p, mask, b), "loss", "R")
    case.equal(R, torch.tensor(expected_R, dtype=torch.float64), "R")
    case.equal(given, total / len(log_y), "loss")


@check(reinforce_loss, weight=2, see="The REINFORCE estimate")
def gradients(loss, case):
    """pushes log_p by R - b, and log_y by one: the reward is a number, not a path"""
    log_y, log_p, mask = rewards(case)
    b, B = -0.9, len(log_y)
    log_y.requires_grad_(), log_p.requires_grad_()
    given, R = case.unpack(loss(log_y, log_p, mask, b), "loss", "R")
    case.shape(given, (), "loss")
    case.trains(given, "loss")
    given.backward()
    advantage = ((log_y * mask).sum(dim=1, keepdim=True) - b).detach()
    case.gradient(log_p, -advantage * mask / B, "log_p")
    case.gradient(log_y, -mask.double() / B, "log_y")
    case.that(not R.requires_grad, "R should carry no gradient, yours does: detach it.")


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


@check(update_baseline, weight=2, see="A baseline")
def values(update, case):
    """keeps nine tenths of the old value unless told otherwise"""
    R = -10 * case.rand(*case.sizes(1, low=3))
    case.equal(update(-4.25, R), 0.9 * -4.25 + 0.1 * R.mean(), "b")


@check(update_baseline, see="A baseline")
def first(update, case):
    """starts from the mean reward of the first batch"""
    R = -10 * case.rand(*case.sizes(1, low=3))
    case.equal(update(None, R), R.mean(), "b")


@check(update_baseline, see="A baseline")
def zero(update, case):
    """goes on from a baseline of 0, which is not the same as none"""
    R = -10 * case.rand(*case.sizes(1, low=3))
    case.equal(update(0.0, R), 0.1 * R.mean(), "b after 0")


@check(update_baseline, see="A baseline")
def a_number(update, case):
    """is a plain number, without a graph that grows from batch to batch"""
    R = (-10 * case.rand(4)).requires_grad_()
    for before in (None, -2.5):
        b = update(before, R)
        case.that(
            isinstance(b, (int, float)),
            f"b should be a Python number, yours is {type(b).__name__}: use .item().",
        )
        case.that(math.isfinite(b), f"b should be finite, yours is {b}.")


@check(update_baseline, see="A baseline")
def decays(update, case):
    """accepts another decay"""
    R = -10 * case.rand(*case.sizes(1, low=3))
    case.equal(update(-3.0, R, decay=0.25), 0.25 * -3.0 + 0.75 * R.mean(), "b")


def penalised(p: Tensor, mask: Tensor) -> Tensor:
    """Add up the penalty location by location, if p and mask go together."""
    B, T, L = p.shape
    if mask.shape != (B, T) or mask.dtype != torch.bool:
        raise ValueError(f"the mask should hold truth values, {(B, T)}")
    total = sum(
        (1 - sum(p[b, t, place] for t in range(T) if mask[b, t])) ** 2
        for b in range(B)
        for place in range(L)
    )
    return torch.as_tensor(total / B)


@check(doubly_stochastic_penalty_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "doubly_stochastic_penalty", penalised)
