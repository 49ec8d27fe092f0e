"""Hidden checks of memory: gradients, limiting cases, symmetries, equal sizes."""

import math

import torch

from course_pkg.checking.guard import in_any_order
from course_pkg.checking.registry import check
from course_pkg.checks import memory as visible
from course_pkg.memory import (
    DRAW,
    circular_shift,
    content_addressing,
    dnc_allocation,
    dnc_follow,
    dnc_links,
    dnc_usage,
    draw_kl,
    draw_read,
    draw_write,
    gaussian_filterbank,
    interpolate,
    ntm_read,
    ntm_write,
    sharpen,
)


@check(ntm_read, see="Reading is attention")
def square(read, case):
    """reads rows, not columns, when N = M"""
    B, N = case.sizes(2)
    memory, rows = case.randn(B, N, N), case.integers(0, N, B)
    expected = torch.stack([memory[n, int(row)] for n, row in enumerate(rows)])
    case.equal(read(memory, visible.on_one_row(rows, N)), expected, "r")


@check(ntm_write, see="Erase, then add")
def only_erases(write, case):
    """multiplies every row by 1 - w when e = 1 and a = 0"""
    B, N, M = case.sizes(3)
    memory, w, erase, add = visible.write_inputs(case, B, N, M)
    new = write(memory, w, torch.ones_like(erase), torch.zeros_like(add))
    case.equal(new, torch.einsum("bnm,bn->bnm", memory, 1 - w), "memory")


@check(ntm_write, see="Erase, then add")
def square(write, case):
    """keeps rows and columns apart when N = M"""
    B, N = case.sizes(2)
    memory, w, erase, add = visible.write_inputs(case, B, N, N)
    factor = 1 - torch.einsum("bn,bm->bnm", w, erase)
    expected = torch.einsum("bnm,bnm->bnm", memory, factor) + torch.einsum("bn,bm->bnm", w, add)
    case.equal(write(memory, w, erase, add), expected, "memory")


@check(content_addressing, see="Find a row by its content")
def gradients(find, case):
    """passes gradients to the memory, the key and β"""
    B, N, M = case.sizes(3)
    inputs = [case.randn(B, N, M), case.randn(B, M), 1 + case.rand(B)]
    for vectors in inputs[:2]:  # none near zero, where the direction turns with the smallest change
        lengths = vectors.norm(dim=-1, keepdim=True)
        vectors *= (0.5 + lengths) / lengths

    def oracle(memory, key, beta):
        unit = memory / memory.norm(dim=2, keepdim=True), key / key.norm(dim=1, keepdim=True)
        heat = torch.einsum("bnm,bm,b->bn", *unit, beta).exp()
        return heat / heat.sum(dim=1, keepdim=True)

    visible.flow(case, find, oracle, inputs, "memory key beta")


@check(content_addressing, see="Find a row by its content")
def very_sharp(find, case):
    """finds the row that is the key, and no other, when β is very large"""
    B, N, M = case.sizes(3, low=3)
    memory, rows = case.randn(B, N, M), case.integers(0, N, B)
    key = 2.5 * torch.stack([memory[n, int(row)] for n, row in enumerate(rows)])
    w = find(memory, key, torch.full((B,), 1e5, dtype=torch.float64))
    case.equal(w, visible.on_one_row(rows, N), "w")


@check(interpolate, see="By content or by place")
def square(mix, case):
    """gives each sequence its own gate when B = N"""
    (B,) = case.sizes(1, low=3)
    w_content, w_before, g = visible.focus(case, B, B), visible.focus(case, B, B), case.rand(B)
    case.equal(mix(w_content, w_before, g), (w_before.T.lerp(w_content.T, g)).T, "w")


@check(circular_shift, see="Move on by a row")
def gradients(shift, case):
    """passes gradients to the weights and to the shifts"""
    B, N = case.sizes(2, low=4)
    visible.flow(
        case, shift, visible.shifted, [visible.focus(case, B, N), visible.focus(case, B, 3)], "w s"
    )


@check(circular_shift, see="Move on by a row")
def one_shift(shift, case):
    """multiplies by s when the only shift is that by 0"""
    B, N = case.sizes(2, low=4)
    w, s = visible.focus(case, B, N), case.rand(B, 1)
    case.equal(
        shift(w, s), torch.stack([row * share for row, share in zip(w, s, strict=True)]), "w"
    )


@check(sharpen, see="Against the blur")
def gradients(sharp, case):
    """passes gradients to the weights and to γ"""
    B, N = case.sizes(2)

    def oracle(w, gamma):
        return torch.einsum("bn,b->bn", w.log(), gamma).softmax(dim=1)

    visible.flow(case, sharp, oracle, [visible.focus(case, B, N), 1 + 2 * case.rand(B)], "w gamma")


@check(dnc_usage, see="What is in use")
def gradients(update, case):
    """passes gradients to everything that it depends on"""
    B, R, N = case.sizes(3)
    visible.flow(
        case, update, visible.used, visible.usage_inputs(case, B, R, N), "usage w_write w_read free"
    )


@check(dnc_usage, see="What is in use")
def one_head(update, case):
    """works with a single read head"""
    B, N = case.sizes(2)
    usage, w_write, w_read, free = visible.usage_inputs(case, B, 1, N)
    kept = 1 - torch.einsum("b,bn->bn", free[:, 0], w_read[:, 0])
    expected = (1 - (1 - usage) * (1 - w_write)) * kept
    case.equal(update(usage, w_write, w_read, free), expected, "usage")


@check(dnc_usage, see="What is in use")
def rests(update, case):
    """leaves the usage as it is when nothing is written or freed"""
    B, R, N = case.sizes(3)
    usage, w_write, w_read, free = visible.usage_inputs(case, B, R, N)
    case.equal(update(usage, 0 * w_write, w_read, 0 * free), usage, "usage")


@check(dnc_allocation, see="The row used least")
def follows_the_rows(allocate, case):
    """moves with the rows when they change places"""
    B, N = case.sizes(2, low=5)
    usage = case.rand(B, N)
    order = torch.randperm(N, generator=case.generator)
    a = allocate(usage)
    case.shape(a, (B, N), "a")
    case.equal(allocate(usage[:, order]), a[:, order], "a with the rows in another order")


@check(dnc_allocation, see="The row used least")
def total(allocate, case):
    """sums to 1 - Π u, even with equal usages"""
    B, N = case.sizes(2, low=4)
    usage = case.rand(B, 1).expand(B, N).clone()
    a = in_any_order(allocate)(usage)
    case.shape(a, (B, N), "a")
    case.equal(a.sum(dim=1), 1 - usage[:, 0] ** N, "sum of a")


@check(dnc_links, weight=2, see="In what order")
def history(update, case):
    """gives after five soft writes what the sum over all pairs of writes gives"""
    B, N, T = 2, 4, 5
    w = torch.stack([visible.focus(case, B, N + 1)[:, :N] for _ in range(T)], dim=1)
    links, precedence = torch.zeros(B, N, N).double(), torch.zeros(B, N).double()
    for t in range(T):
        links, precedence = case.unpack(update(links, precedence, w[:, t]), *visible.LINKS)
    expected = visible.linked(w)
    case.equal(links, expected[0], "links after five writes")
    case.equal(precedence, expected[1], "precedence after five writes")


@check(dnc_links, see="In what order")
def overwritten(update, case):
    """cuts the old links of a row that is written again, and leaves the others"""
    B, N = case.sizes(2, low=4)
    L, p, _ = visible.link_inputs(case, B, N)
    rows = case.integers(0, N, B)
    expected = L.clone()
    for n, row in enumerate(rows.tolist()):
        expected[n, :, row] = 0
        expected[n, row] = p[n]
        expected[n, row, row] = 0
    links, _ = case.unpack(update(L, p, visible.on_one_row(rows, N)), *visible.LINKS)
    case.equal(links, expected, "links")


@check(dnc_links, see="In what order")
def square(update, case):
    """treats each sequence on its own when B = N"""
    (B,) = case.sizes(1, low=3)
    L, p, w = visible.link_inputs(case, B, B)
    links, precedence = case.unpack(update(L, p, w), *visible.LINKS)
    case.shape(links, (B, B, B), "links")
    case.shape(precedence, (B, B), "precedence")
    alone = case.unpack(update(L[1:2], p[1:2], w[1:2]), *visible.LINKS)
    case.equal(alone[0], links[1:2], "links of a single sequence")
    case.equal(alone[1], precedence[1:2], "precedence of a single sequence")


@check(dnc_follow, see="There and back")
def square(follow, case):
    """keeps heads and rows apart when R = N"""
    B, N = case.sizes(2, low=3)
    links, _, _ = visible.link_inputs(case, B, N)
    w = torch.softmax(case.randn(B, N, N), dim=2)
    forward, backward = case.unpack(follow(links, w), "forward", "backward")
    case.equal(forward, torch.einsum("bij,brj->bri", links, w), "forward")
    case.equal(backward, torch.einsum("bij,bri->brj", links, w), "backward")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def gradients(make, case):
    """passes gradients to centre, stride and σ"""
    B, size = case.sizes(2, low=6)
    N = 5

    def oracle(centre, stride, sigma):
        place = torch.linspace(-(N - 1) / 2, (N - 1) / 2, N, dtype=torch.float64)
        mu = centre[:, None] + torch.outer(stride, place)
        heat = ((torch.arange(size) - mu[:, :, None]) / sigma[:, None, None]).square().div(-2).exp()
        return heat / heat.sum(dim=2, keepdim=True)

    def call(centre, stride, sigma):
        return make(centre, stride, sigma, N, size)

    visible.flow(case, call, oracle, visible.bank_inputs(case, B, size), "centre stride sigma")


@check(draw_read, see="Take a glimpse")
def square(look, case):
    """uses the vertical filters on rows, even for square images with N = Y = X, at any γ"""
    B, N = case.sizes(2, low=3)
    image, F_Y, F_X, gamma = visible.glimpse_inputs(case, B, N, N, N)
    gamma = gamma * torch.logspace(-1, 1, B)
    expected = torch.stack(
        [gamma[n] * F_Y[n] @ image[n] @ F_X[n].T for n in range(B)],
    )
    case.equal(look(image, F_Y, F_X, gamma), expected, "glimpse")


@check(draw_write, see="Paint where you look")
def square(paint, case):
    """uses the vertical filters on rows, even for square images with N = Y = X, at any γ"""
    B, N = case.sizes(2, low=3)
    _, F_Y, F_X, gamma = visible.glimpse_inputs(case, B, N, N, N)
    gamma = gamma * torch.logspace(-1, 1, B)
    patch = case.randn(B, N, N)
    expected = torch.stack([F_Y[n].T @ patch[n] @ F_X[n] / gamma[n] for n in range(B)])
    case.equal(paint(patch, F_Y, F_X, gamma), expected, "canvas")


@check(draw_kl, see="What a code costs")
def gradients(kl, case):
    """passes gradients to μ and to log σ"""
    B, T, D_Z = case.sizes(3)

    def oracle(mu, log_sigma):
        spread = torch.exp(2 * log_sigma)
        return torch.einsum("btd->b", (mu.square() + spread - 1) / 2 - log_sigma)

    visible.flow(case, kl, oracle, visible.codes(case, B, T, D_Z), "mu log_sigma")


@check(draw_kl, see="What a code costs")
def one_number(kl, case):
    """follows the closed form for each of μ and σ alone"""
    (B,) = case.sizes(1, low=3)
    some, zero = 5 * case.randn(B, 1, 1), torch.zeros(B, 1, 1, dtype=torch.float64)
    case.equal(kl(some, zero), some[:, 0, 0] ** 2 / 2, "KL for σ = 1")
    log_sigma = some[:, 0, 0]
    expected = torch.expm1(2 * log_sigma) / 2 - log_sigma
    case.equal(kl(zero, some), expected, "KL for μ = 0")


@check(DRAW, see="A machine that draws")
def in_the_middle(student, case):
    """spans the picture from its first pixel to its last when all five numbers are zero"""
    A, N = 9, 5
    ours, _ = visible.drawer(case, student, A, N, 2, 2)
    raw = torch.zeros(2, 5, dtype=torch.float64)
    raw[:, 2] = -9  # narrow: each filter is on one pixel
    F_Y, F_X, gamma = case.unpack(ours.aim(raw), "F_Y", "F_X", "gamma")
    expected = torch.eye(A, dtype=torch.float64)[::2].expand(2, N, A)
    case.equal(F_Y, expected, "F_Y")
    case.equal(F_X, expected, "F_X")
    case.equal(gamma, torch.ones(2, dtype=torch.float64), "gamma")


@check(DRAW, see="A machine that draws")
def right_of_the_middle(student, case):
    """moves to the right by the first number and up by the second, if that is negative"""
    A, N = 9, 3
    ours, _ = visible.drawer(case, student, A, N, 2, 2)
    raw = torch.zeros(1, 5, dtype=torch.float64)
    raw[0, 0], raw[0, 1] = 2 * 2 / (A + 1), -1 * 2 / (A + 1)  # two pixels, and one
    raw[0, 2], raw[0, 3] = -9, -math.log((A - 1) / (N - 1))  # narrow, one pixel apart
    F_Y, F_X, _ = case.unpack(ours.aim(raw), "F_Y", "F_X", "gamma")
    pixels = torch.eye(A, dtype=torch.float64)
    case.equal(F_X, pixels[None, [5, 6, 7]], "F_X")
    case.equal(F_Y, pixels[None, [2, 3, 4]], "F_Y")


@check(DRAW, see="A machine that draws")
def same_pictures(student, case):
    """draws alone what it draws with an encoder that sends the same codes"""
    T, D_Z, H = case.sizes(3)
    A, N, B = 6, 3, 3
    ours, weights = visible.drawer(case, student, A, N, D_Z, H)
    weights["code.weight"] *= 0  # so that all codes have one Gaussian, that of the bias
    ours.load_state_dict(weights)
    mu, log_sigma = weights["code.bias"].chunk(2)
    x, noise = case.rand(B, A, A).round(), case.randn(B, T, D_Z)
    reconstruction, _ = case.unpack(ours(x, noise), *visible.LOSSES)
    last = torch.stack(
        [visible.drawn(weights, mu + log_sigma.exp() * row, N, A)[-1] for row in noise]
    )
    expected = torch.nn.functional.binary_cross_entropy(last.sigmoid(), x, reduction="none")
    case.equal(reconstruction, expected.sum(dim=(1, 2)), "reconstruction")
