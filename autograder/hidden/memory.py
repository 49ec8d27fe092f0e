"""Hidden checks of memory: gradients, limiting cases, symmetries, numbers that overflow."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.checks.memory import (
    LINKS,
    LOSSES,
    bank,
    bank_inputs,
    codes,
    compare,
    drawer,
    drawn,
    focus,
    glimpse_inputs,
    link_inputs,
    linked,
    machine,
    on_one_row,
    shifted,
    usage_inputs,
    write_inputs,
)
from course_pkg.memory import (
    DRAW,
    NTM,
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
    reparameterise,
    sharpen,
)


def flow(case: Case, call: Callable, oracle: Callable, inputs: list[Tensor], names: str) -> None:
    """Compare the gradients of a student's function with those of sums written another way."""
    inputs = [tensor.requires_grad_() for tensor in inputs]
    expected = oracle(*inputs)
    seen = case.randn(*expected.shape)
    gradients = torch.autograd.grad(expected, inputs, seen)
    result = call(*inputs)
    case.shape(result, tuple(expected.shape), "the result")
    case.trains(result, "result")
    result.backward(seen.to(result))
    for name, tensor, gradient in zip(names.split(), inputs, gradients, strict=True):
        case.gradient(tensor, gradient, name)


@check(ntm_read, see="Reading is attention")
def gradients(read, case):
    """passes the row's share back to the memory, and the row itself to the weight"""
    B, N, M = case.sizes(3)
    inputs = [case.randn(B, N, M), focus(case, B, N)]
    flow(case, read, lambda memory, w: (memory * w[:, :, None]).sum(dim=1), inputs, "memory w")


@check(ntm_read, see="Reading is attention")
def square(read, case):
    """reads rows, not columns, when N = M"""
    B, N = case.sizes(2)
    memory, rows = case.randn(B, N, N), case.integers(0, N, B)
    expected = torch.stack([memory[n, int(row)] for n, row in enumerate(rows)])
    case.equal(read(memory, on_one_row(rows, N)), expected, "r")


@check(ntm_write, see="Erase, then add")
def gradients(write, case):
    """passes gradients to the memory, the weights, and what is erased and added"""
    B, N, M = case.sizes(3)

    def oracle(memory, w, erase, add):
        erased = torch.einsum("bnm,bn,bm->bnm", memory, w, erase)
        return memory - erased + torch.einsum("bn,bm->bnm", w, add)

    flow(case, write, oracle, write_inputs(case, B, N, M), "memory w erase add")


@check(ntm_write, see="Erase, then add")
def only_erases(write, case):
    """multiplies every row by 1 - w when e = 1 and a = 0"""
    B, N, M = case.sizes(3)
    memory, w, erase, add = write_inputs(case, B, N, M)
    new = write(memory, w, torch.ones_like(erase), torch.zeros_like(add))
    case.equal(new, torch.einsum("bnm,bn->bnm", memory, 1 - w), "memory")


@check(ntm_write, see="Erase, then add")
def square(write, case):
    """keeps rows and columns apart when N = M"""
    B, N = case.sizes(2)
    memory, w, erase, add = write_inputs(case, B, N, N)
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

    flow(case, find, oracle, inputs, "memory key beta")


@check(content_addressing, see="Find a row by its content")
def very_sharp(find, case):
    """finds the row that is the key, and no other, when β is very large"""
    B, N, M = case.sizes(3, low=3)
    memory, rows = case.randn(B, N, M), case.integers(0, N, B)
    key = 2.5 * torch.stack([memory[n, int(row)] for n, row in enumerate(rows)])
    w = find(memory, key, torch.full((B,), 1e5, dtype=torch.float64))
    case.equal(w, on_one_row(rows, N), "w")


@check(content_addressing, see="Find a row by its content")
def nothing_to_find(find, case):
    """weighs all rows equally when the key is zero"""
    B, N, M = case.sizes(3, low=3)
    w = find(case.randn(B, N, M), torch.zeros(B, M, dtype=torch.float64), 1 + case.rand(B))
    case.equal(w, torch.full((B, N), 1 / N), "w")


@check(content_addressing, see="Find a row by its content")
def almost_empty(find, case):
    """finds the same rows when all of them are 1000 times shorter"""
    B, N, M = case.sizes(3, low=3)
    memory, key, beta = case.randn(B, N, M), case.randn(B, M), 1 + case.rand(B)
    short, whole = find(memory / 1000, key, beta), find(memory, key, beta)
    case.shape(short, (B, N), "w of shorter rows")
    case.equal(short, whole, "w of shorter rows", rtol=1e-3)


@check(interpolate, see="By content or by place")
def gradients(mix, case):
    """passes gradients to both weights and to the gate"""
    B, N = case.sizes(2)
    inputs = [focus(case, B, N), focus(case, B, N), case.rand(B)]

    def oracle(w_content, w_before, g):
        return w_before + torch.einsum("b,bn->bn", g, w_content - w_before)

    flow(case, mix, oracle, inputs, "w_content w_before g")


@check(interpolate, see="By content or by place")
def square(mix, case):
    """gives each sequence its own gate when B = N"""
    (B,) = case.sizes(1, low=3)
    w_content, w_before, g = focus(case, B, B), focus(case, B, B), case.rand(B)
    case.equal(mix(w_content, w_before, g), (w_before.T.lerp(w_content.T, g)).T, "w")


@check(circular_shift, see="Move on by a row")
def gradients(shift, case):
    """passes gradients to the weights and to the shifts"""
    B, N = case.sizes(2, low=4)
    flow(case, shift, shifted, [focus(case, B, N), focus(case, B, 3)], "w s")


@check(circular_shift, see="Move on by a row")
def five_shifts(shift, case):
    """moves by up to two rows when S = 5"""
    B, N = case.sizes(2, low=6)
    w, s = focus(case, B, N), focus(case, B, 5)
    case.equal(shift(w, s), shifted(w, s), "w")


@check(circular_shift, see="Move on by a row")
def one_shift(shift, case):
    """multiplies by s when the only shift is that by 0"""
    B, N = case.sizes(2, low=4)
    w, s = focus(case, B, N), case.rand(B, 1)
    case.equal(
        shift(w, s), torch.stack([row * share for row, share in zip(w, s, strict=True)]), "w"
    )


@check(circular_shift, see="Move on by a row")
def refuses_two(shift, case):
    """raises ValueError when there are two shifts"""
    B, N = case.sizes(2, low=4)
    w, s = focus(case, B, N), focus(case, B, 2)
    case.raises(ValueError, lambda: shift(w, s), "there are two shifts")


@check(sharpen, see="Against the blur")
def gradients(sharp, case):
    """passes gradients to the weights and to γ"""
    B, N = case.sizes(2)

    def oracle(w, gamma):
        return torch.einsum("bn,b->bn", w.log(), gamma).softmax(dim=1)

    flow(case, sharp, oracle, [focus(case, B, N), 1 + 2 * case.rand(B)], "w gamma")


@check(sharpen, see="Against the blur")
def shares_the_largest(sharp, case):
    """shares the weight between two equally large ones when γ is very large"""
    w = torch.tensor([[0.1, 0.35, 0.2, 0.35], [0.5, 0.1, 0.4, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0, 0.5, 0, 0.5], [1, 0, 0, 0]], dtype=torch.float64)
    case.equal(sharp(w, torch.tensor([3e3, 4e3], dtype=torch.float64)), expected, "w")


@check(NTM, see="One step of the machine")
def starts_afresh(student, case):
    """gives the same when called twice"""
    D, D_Y, H, N, M = case.sizes(5)
    B, T = 2, 3
    ours, _ = machine(case, student, D, D_Y, H, N, M)
    X = case.randn(B, T, D)
    first = case.unpack(ours(X), "outputs", "state")
    compare(case, ours(X), first, "outputs of the second call")


@check(NTM, see="One step of the machine")
def alone(student, case):
    """gives each sequence the same output in a batch and on its own"""
    T, D, D_Y, H, N, M = case.sizes(6)
    ours, _ = machine(case, student, D, D_Y, H, N, M)
    X = case.randn(3, T, D)
    outputs, _ = case.unpack(ours(X), "outputs", "state")
    case.shape(outputs, (3, T, D_Y), "outputs")
    single, _ = case.unpack(ours(X[1:2]), "outputs", "state")
    case.equal(single, outputs[1:2], "outputs of a single sequence")


@check(dnc_usage, see="What is in use")
def gradients(update, case):
    """passes gradients to everything that it depends on"""
    B, R, N = case.sizes(3)

    def oracle(usage, w_write, w_read, free):
        kept = 1 - (1 - usage) * (1 - w_write)
        for head in range(R):
            kept = kept - torch.einsum("bn,bn,b->bn", kept, w_read[:, head], free[:, head])
        return kept

    flow(case, update, oracle, usage_inputs(case, B, R, N), "usage w_write w_read free")


@check(dnc_usage, see="What is in use")
def one_head(update, case):
    """works with a single read head"""
    B, N = case.sizes(2)
    usage, w_write, w_read, free = usage_inputs(case, B, 1, N)
    kept = 1 - torch.einsum("b,bn->bn", free[:, 0], w_read[:, 0])
    expected = (1 - (1 - usage) * (1 - w_write)) * kept
    case.equal(update(usage, w_write, w_read, free), expected, "usage")


@check(dnc_usage, see="What is in use")
def rests(update, case):
    """leaves the usage as it is when nothing is written or freed"""
    B, R, N = case.sizes(3)
    usage, w_write, w_read, free = usage_inputs(case, B, R, N)
    case.equal(update(usage, 0 * w_write, w_read, 0 * free), usage, "usage")


@check(dnc_allocation, see="The row used least")
def gradients(allocate, case):
    """passes gradients to the usage of every row"""
    B, N = case.sizes(2, low=4)

    def oracle(usage):
        others = usage[:, None].expand(B, N, N)  # at [n, i, j] the usage of row j
        less = others < usage[:, :, None]
        return (1 - usage) * torch.where(less, others, 1).prod(dim=2)

    flow(case, allocate, oracle, [case.rand(B, N)], "usage")


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
    a = allocate(usage)
    case.shape(a, (B, N), "a")
    case.equal(a.sum(dim=1), 1 - usage[:, 0] ** N, "sum of a")


@check(dnc_links, see="In what order")
def gradients(update, case):
    """passes gradients of both results to everything that they depend on"""
    B, N = case.sizes(2, low=3)
    others = 1 - torch.eye(N, dtype=torch.float64)

    def oracle(links, precedence, w):
        cut = torch.einsum("bi,bij->bij", w, links) + torch.einsum("bj,bij->bij", w, links)
        links = (links - cut + torch.einsum("bi,bj->bij", w, precedence)) * others
        left = precedence - torch.einsum("bi,bj->bj", w, precedence)
        return torch.cat([links, (left + w)[:, None]], dim=1)

    def call(links, precedence, w):
        links, precedence = case.unpack(update(links, precedence, w), *LINKS)
        case.shape(links, (B, N, N), "links")
        case.shape(precedence, (B, N), "precedence")
        return torch.cat([links, precedence[:, None]], dim=1)

    flow(case, call, oracle, link_inputs(case, B, N), "links precedence w_write")


@check(dnc_links, weight=2, see="In what order")
def history(update, case):
    """gives after five soft writes what the sum over all pairs of writes gives"""
    B, N, T = 2, 4, 5
    w = torch.stack([focus(case, B, N + 1)[:, :N] for _ in range(T)], dim=1)
    links, precedence = torch.zeros(B, N, N).double(), torch.zeros(B, N).double()
    for t in range(T):
        links, precedence = case.unpack(update(links, precedence, w[:, t]), *LINKS)
    expected = linked(w)
    case.equal(links, expected[0], "links after five writes")
    case.equal(precedence, expected[1], "precedence after five writes")


@check(dnc_links, see="In what order")
def overwritten(update, case):
    """cuts the old links of a row that is written again, and leaves the others"""
    B, N = case.sizes(2, low=4)
    L, p, _ = link_inputs(case, B, N)
    rows = case.integers(0, N, B)
    expected = L.clone()
    for n, row in enumerate(rows.tolist()):
        expected[n, :, row] = 0
        expected[n, row] = p[n]
        expected[n, row, row] = 0
    links, _ = case.unpack(update(L, p, on_one_row(rows, N)), *LINKS)
    case.equal(links, expected, "links")


@check(dnc_links, see="In what order")
def square(update, case):
    """treats each sequence on its own when B = N"""
    (B,) = case.sizes(1, low=3)
    L, p, w = link_inputs(case, B, B)
    links, precedence = case.unpack(update(L, p, w), *LINKS)
    case.shape(links, (B, B, B), "links")
    case.shape(precedence, (B, B), "precedence")
    alone = case.unpack(update(L[1:2], p[1:2], w[1:2]), *LINKS)
    case.equal(alone[0], links[1:2], "links of a single sequence")
    case.equal(alone[1], precedence[1:2], "precedence of a single sequence")


@check(dnc_follow, see="There and back")
def gradients(follow, case):
    """passes gradients of both results to the links and to the weights"""
    B, R, N = case.sizes(3)
    links, _, _ = link_inputs(case, B, N)

    def oracle(links, w):
        after = (links[:, None] * w[:, :, None]).sum(dim=3)
        return torch.stack([after, (links[:, None] * w[:, :, :, None]).sum(dim=2)])

    def call(links, w):
        forward, backward = case.unpack(follow(links, w), "forward", "backward")
        case.shape(forward, (B, R, N), "forward")
        case.shape(backward, (B, R, N), "backward")
        return torch.stack([forward, backward])

    flow(case, call, oracle, [links, torch.softmax(case.randn(B, R, N), dim=2)], "links w_read")


@check(dnc_follow, see="There and back")
def square(follow, case):
    """keeps heads and rows apart when R = N"""
    B, N = case.sizes(2, low=3)
    links, _, _ = link_inputs(case, B, N)
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

    flow(case, call, oracle, bank_inputs(case, B, size), "centre stride sigma")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def one_filter(make, case):
    """puts a single filter at the centre, whatever the stride"""
    B, size = case.sizes(2, low=4)
    centre, stride, sigma = bank_inputs(case, B, size)
    case.equal(make(centre, stride, sigma, 1, size), bank(centre, stride, sigma, 1, size), "F")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def nearest_pixel(make, case):
    """picks the pixel at the border when a narrow filter lies outside"""
    centre = torch.tensor([-80.0, 90.0], dtype=torch.float64)
    narrow = torch.full((2,), 0.4, dtype=torch.float64)
    F = make(centre, torch.full((2,), 2.0, dtype=torch.float64), narrow, 2, 6)
    expected = on_one_row(torch.tensor([[0, 0], [5, 5]]), 6)
    case.equal(F, expected, "F")


@check(draw_read, see="Take a glimpse")
def gradients(look, case):
    """passes gradients to the image, to both filters and to γ"""
    B, N, Y, X = case.sizes(4)

    def oracle(image, F_Y, F_X, gamma):
        return torch.einsum("b,biy,byx,bjx->bij", gamma, F_Y, image, F_X)

    flow(case, look, oracle, glimpse_inputs(case, B, N, Y, X), "image F_Y F_X gamma")


@check(draw_read, see="Take a glimpse")
def square(look, case):
    """uses the vertical filters on rows, even for square images with N = Y = X, at any γ"""
    B, N = case.sizes(2, low=3)
    image, F_Y, F_X, gamma = glimpse_inputs(case, B, N, N, N)
    gamma = gamma * torch.logspace(-1, 1, B)
    expected = torch.stack(
        [gamma[n] * F_Y[n] @ image[n] @ F_X[n].T for n in range(B)],
    )
    case.equal(look(image, F_Y, F_X, gamma), expected, "glimpse")


@check(draw_write, see="Paint where you look")
def gradients(paint, case):
    """passes gradients to the patch, to both filters and to γ"""
    B, N, Y, X = case.sizes(4)
    _, F_Y, F_X, gamma = glimpse_inputs(case, B, N, Y, X)

    def oracle(patch, F_Y, F_X, gamma):
        return torch.einsum("b,biy,bij,bjx->byx", 1 / gamma, F_Y, patch, F_X)

    flow(case, paint, oracle, [case.randn(B, N, N), F_Y, F_X, gamma], "patch F_Y F_X gamma")


@check(draw_write, see="Paint where you look")
def square(paint, case):
    """uses the vertical filters on rows, even for square images with N = Y = X, at any γ"""
    B, N = case.sizes(2, low=3)
    _, F_Y, F_X, gamma = glimpse_inputs(case, B, N, N, N)
    gamma = gamma * torch.logspace(-1, 1, B)
    patch = case.randn(B, N, N)
    expected = torch.stack([F_Y[n].T @ patch[n] @ F_X[n] / gamma[n] for n in range(B)])
    case.equal(paint(patch, F_Y, F_X, gamma), expected, "canvas")


@check(reparameterise, see="Pictures from noise")
def gradients(sample, case):
    """passes gradients to μ, to log σ and to the noise"""
    B, T, D_Z = case.sizes(3)

    def oracle(mu, log_sigma, noise):
        return mu + torch.einsum("btd,btd->btd", log_sigma.exp(), noise)

    inputs = [case.randn(B, T, D_Z), case.randn(B, T, D_Z), case.randn(B, T, D_Z)]
    flow(case, sample, oracle, inputs, "mu log_sigma noise")


@check(reparameterise, see="Pictures from noise")
def one_vector(sample, case):
    """works for numbers of any shape"""
    (D_Z,) = case.sizes(1)
    mu, log_sigma, noise = case.randn(D_Z), 5 * case.randn(D_Z), case.randn(D_Z)
    z = torch.distributions.Normal(mu, log_sigma.exp()).icdf(
        torch.distributions.Normal(0, 1).cdf(noise)
    )
    case.equal(sample(mu, log_sigma, noise), z, "z")


@check(draw_kl, see="What a code costs")
def gradients(kl, case):
    """passes gradients to μ and to log σ"""
    B, T, D_Z = case.sizes(3)

    def oracle(mu, log_sigma):
        spread = torch.exp(2 * log_sigma)
        return torch.einsum("btd->b", (mu.square() + spread - 1) / 2 - log_sigma)

    flow(case, kl, oracle, codes(case, B, T, D_Z), "mu log_sigma")


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
    ours, _ = drawer(case, student, A, N, 2, 2)
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
    ours, _ = drawer(case, student, A, N, 2, 2)
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
    ours, weights = drawer(case, student, A, N, D_Z, H)
    weights["code.weight"] *= 0  # so that all codes have one Gaussian, that of the bias
    ours.load_state_dict(weights)
    mu, log_sigma = weights["code.bias"].chunk(2)
    x, noise = case.rand(B, A, A).round(), case.randn(B, T, D_Z)
    reconstruction, _ = case.unpack(ours(x, noise), *LOSSES)
    last = torch.stack([drawn(weights, mu + log_sigma.exp() * row, N, A)[-1] for row in noise])
    expected = torch.nn.functional.binary_cross_entropy(last.sigmoid(), x, reduction="none")
    case.equal(reconstruction, expected.sum(dim=(1, 2)), "reconstruction")


@check(DRAW, see="A machine that draws")
def alone(student, case):
    """gives each picture the same losses in a batch and on its own, twice"""
    T, D_Z, H = case.sizes(3)
    A, N = 5, 2
    ours, _ = drawer(case, student, A, N, D_Z, H)
    x, noise = case.rand(3, A, A).round(), case.randn(3, T, D_Z)
    whole = case.unpack(ours(x, noise), *LOSSES)
    for rows in (slice(1, 2), slice(0, 3)):
        given = case.unpack(ours(x[rows], noise[rows]), *LOSSES)
        for part, other, name in zip(given, whole, LOSSES, strict=True):
            case.shape(other, (3,), name)
            case.equal(part, other[rows], f"{name} of pictures {rows.start} to {rows.stop - 1}")


@check(DRAW, see="A machine that draws")
def sure_and_wrong(student, case):
    """pays 200 nats for a black pixel where the canvas is 200, and less for a grey one"""
    A, N = 5, 2
    ours, weights = drawer(case, student, A, N, 2, 3)
    weights = {name: 0 * tensor for name, tensor in weights.items()}
    weights["blank"] = torch.tensor(200.0, dtype=torch.float64)
    ours.load_state_dict(weights)
    x = case.rand(4, A, A) ** 2
    reconstruction, _ = case.unpack(ours(x, case.randn(4, 1, 2)), *LOSSES)
    case.equal(reconstruction, 200 * (1 - x).sum(dim=(1, 2)), "reconstruction by a canvas of 200")
