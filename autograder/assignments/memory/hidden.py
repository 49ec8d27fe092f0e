"""Hidden checks of memory: gradients, limiting cases, symmetries, equal sizes, a black box."""

import math

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.guard import in_any_order
from course_pkg.checking.registry import check
from course_pkg.checks import memory as visible
from course_pkg.memory import (
    DRAW,
    content_addressing,
    dnc_allocation,
    dnc_links,
    dnc_usage,
    gaussian_filterbank,
    location_addressing,
    ntm_write,
    sample_latent,
    sample_latent_fault,
)


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


@check(location_addressing, see="By content or by place")
def square(locate, case):
    """gives each sequence its own gate, shifts and γ when B = N"""
    (B,) = case.sizes(1, low=4)
    inputs = visible.head_inputs(case, B, B)
    w = locate(*inputs)
    case.shape(w, (B, B), "w")
    alone = locate(*[part[1:2] for part in inputs])
    case.equal(alone, w[1:2], "w of a single sequence")
    case.equal(w, visible.located(*inputs), "w")


@check(location_addressing, see="Move on by a row")
def one_shift(locate, case):
    """mixes and sharpens only when the one shift is that by 0"""
    B, N = case.sizes(2, low=4)
    w_content, w_before, g, _, gamma = visible.head_inputs(case, B, N)
    mixed = (w_before.T.lerp(w_content.T, g)).T
    expected = torch.einsum("bn,b->bn", mixed.log(), gamma).softmax(dim=1)
    w = locate(w_content, w_before, g, visible.one(B)[:, None], gamma)
    case.equal(w, expected, "w")


@check(location_addressing, see="Against the blur")
def moves_on(locate, case):
    """goes round the circle and one row on in N + 1 steps, sharp again after each"""
    B, N = case.sizes(2, low=4)
    start = w = visible.on_one_row(case.integers(0, N, B), N)
    s = torch.tensor([[0.05, 0.15, 0.8]], dtype=torch.float64).expand(B, 3)
    for _ in range(N + 1):
        w = locate(start, w, 0 * visible.one(B), s, 60 * visible.one(B))
        case.shape(w, (B, N), "w")
    case.equal(w, start[:, [N - 1, *range(N - 1)]], f"w after {N + 1} moves")


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


@check(sample_latent, see="What a code costs")
def one_number(draw, case):
    """follows the closed form for each of μ and σ alone"""
    (B,) = case.sizes(1, low=3)
    some, zero = 5 * case.randn(B, 1), torch.zeros(B, 1, dtype=torch.float64)
    noise = case.randn(B, 1)
    z, kl = case.unpack(draw(some, zero, noise), *visible.LATENT)
    case.equal(z, torch.stack([m + e for m, e in zip(some, noise, strict=True)]), "z for σ = 1")
    case.equal(kl, some[:, 0] ** 2 / 2, "KL for σ = 1")
    z, kl = case.unpack(draw(zero, some, noise), *visible.LATENT)
    scaled = torch.distributions.Normal(zero, some.exp()).icdf(
        torch.distributions.Normal(0, 1).cdf(noise)
    )
    case.equal(z, scaled, "z for μ = 0")
    case.equal(kl, torch.expm1(2 * some[:, 0]) / 2 - some[:, 0], "KL for μ = 0")


@check(sample_latent, see="Pictures from noise")
def square(draw, case):
    """keeps pictures and numbers apart when B = D_Z"""
    (B,) = case.sizes(1, low=3)
    inputs = [case.randn(B, B) for _ in range(3)]
    z, kl = case.unpack(draw(*inputs), *visible.LATENT)
    case.shape(z, (B, B), "z")
    case.shape(kl, (B,), "KL")
    alone = case.unpack(draw(*[part[1:2] for part in inputs]), *visible.LATENT)
    case.equal(alone[0], z[1:2], "z of a single code")
    case.equal(alone[1], kl[1:2], "KL of a single code")


@check(DRAW, see="Take a glimpse")
def every_pixel(student, case):
    """reads and paints all pixels as they are when A = N and filters are narrow"""
    B, A = 2, 4
    ours, weights = visible.drawer(case, student, A, A, 2, 3)
    for name in ("read_aim", "write_aim"):
        weights[f"{name}.weight"] *= 0
        weights[f"{name}.bias"] = torch.tensor([0, 0, -9, 0, math.log(2)], dtype=torch.float64)
    ours.load_state_dict(weights)
    x, error, h = case.rand(B, A, A), case.randn(B, A, A), case.randn(B, 3)
    seen = torch.stack([x, error], dim=1).flatten(1)
    case.equal(ours.read(x, error, h), 2 * seen, "r for γ = 2")
    patch = torch.stack([visible.linear(weights, "patch", row) for row in h])
    case.equal(ours.write(h), patch.view(B, A, A) / 2, "painted for γ = 2")


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


@check(sample_latent_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "B")
