"""The references of memory agree with sums written another way and with finite differences."""

import doctest
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from course_pkg.data import copying
from course_pkg.data.copying import copy_task
from course_pkg.memory import (
    DRAW,
    NTM,
    content_addressing,
    dnc_allocation,
    dnc_links,
    dnc_usage,
    gaussian_filterbank,
    location_addressing,
    ntm_write,
    sample_latent,
)

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
close = torch.testing.assert_close


@pytest.fixture(params=range(5))
def sizes(request) -> tuple[int, int, int, int]:
    """B, N, M and R, all different; also seeds torch."""
    torch.manual_seed(request.param)
    return tuple(random.Random(request.param).sample(range(2, 12), 4))


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64)


def focus(*shape: int) -> torch.Tensor:
    return torch.softmax(randn(*shape), dim=-1)


def gradcheck(function, *inputs: torch.Tensor) -> None:
    assert torch.autograd.gradcheck(function, [tensor.requires_grad_() for tensor in inputs])


# Writing


def test_write_is_erase_and_then_add(sizes):
    B, N, M, _ = sizes
    memory, w, erase, add = randn(B, N, M), focus(B, N), rand(B, M), randn(B, M)
    new = ntm_write(memory, w, erase, add)
    for n in range(B):
        expected = memory[n] * (1 - torch.outer(w[n], erase[n])) + torch.outer(w[n], add[n])
        close(new[n], expected, **CLOSE)


def test_what_is_written_to_one_row_stands_there_alone(sizes):
    B, N, M, _ = sizes
    w = functional.one_hot(torch.randint(N, (B,)), N).double()
    memory, add = randn(B, N, M), randn(B, M)
    new = ntm_write(memory, w, torch.ones(B, M, dtype=torch.float64), add)
    close((w[:, None] @ new)[:, 0], add, **CLOSE)
    close(new * (1 - w[:, :, None]), memory * (1 - w[:, :, None]), **CLOSE)


# Addressing


def test_content_addressing_is_attention_over_unit_vectors(sizes):
    B, N, M, _ = sizes
    memory, key = randn(B, N, M), randn(B, M)
    rows, query = functional.normalize(memory, dim=2), functional.normalize(key, dim=1)
    identity = torch.eye(N, dtype=torch.float64).expand(B, N, N)
    expected = functional.scaled_dot_product_attention(query[:, None], rows, identity, scale=3.5)
    given = content_addressing(memory, key, torch.full((B,), 3.5, dtype=torch.float64))
    close(given, expected[:, 0], **CLOSE)


def test_content_addressing_has_limits(sizes):
    B, N, M, _ = sizes
    memory = randn(B, N, M)
    key = memory[:, 0]
    close(
        content_addressing(memory, key, torch.zeros(B).double()), torch.full((B, N), 1 / N).double()
    )
    sharp = content_addressing(memory, key, torch.full((B,), 1e6).double())
    close(sharp, functional.one_hot(torch.zeros(B, dtype=torch.long), N).double())
    empty = content_addressing(0 * memory, key, torch.ones(B).double())
    close(empty, torch.full((B, N), 1 / N).double())


def ones(B: int) -> torch.Tensor:
    return torch.ones(B, dtype=torch.float64)


def still(B: int) -> torch.Tensor:
    """Shifts of which only that by 0 is made."""
    return torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64).expand(B, 3)


def test_the_gate_is_lerp(sizes):
    B, N, _, _ = sizes
    w_content, w_before, g = focus(B, N), focus(B, N), rand(B)
    expected = w_before.lerp(w_content, g[:, None])
    close(location_addressing(w_content, w_before, g, still(B), ones(B)), expected, **CLOSE)


@pytest.mark.parametrize("S", [1, 3, 5])
def test_the_shift_is_a_circular_convolution(sizes, S):
    B, N, _, _ = sizes
    N += 4  # so that no two shifts lead to the same row
    w, s = focus(B, N), focus(B, S)
    kernel = functional.pad(s, (0, N - S)).roll(-(S // 2), dims=1)
    expected = torch.fft.ifft(torch.fft.fft(w) * torch.fft.fft(kernel)).real
    close(location_addressing(w, w, rand(B), s, ones(B)), expected, **CLOSE)


def test_one_hot_shifts_roll_the_rows():
    w = focus(3, 7)
    s = torch.eye(3, dtype=torch.float64)
    moved = location_addressing(w, w, ones(3), s, ones(3))
    for n, step in enumerate((-1, 0, 1)):
        close(moved[n], w[n].roll(step), **CLOSE)


def test_the_shift_needs_a_middle():
    w = focus(2, 5)
    with pytest.raises(ValueError, match="the number of shifts must be odd, got 4"):
        location_addressing(w, w, ones(2), focus(2, 4), ones(2))


def test_sharpening_is_a_softmax_of_logarithms(sizes):
    B, N, _, _ = sizes
    w, gamma = focus(B, N), 1 + 5 * rand(B)
    expected = torch.softmax(gamma[:, None] * w.log(), dim=1)
    close(location_addressing(w, w, rand(B), still(B), gamma), expected, **CLOSE)


def test_infinite_sharpening_leaves_one_row(sizes):
    B, N, _, _ = sizes
    w = focus(B, N)
    expected = functional.one_hot(w.argmax(dim=1), N).double()
    close(location_addressing(w, w, ones(B), still(B), 1e6 * ones(B)), expected)


def test_a_head_goes_through_the_gate_then_the_shift_then_the_power(sizes):
    B, N, _, _ = sizes
    N += 4
    w_content, w_before, g, s = focus(B, N), focus(B, N), rand(B), focus(B, 3)
    gamma = 1 + 5 * rand(B)
    kernel = functional.pad(s, (0, N - 3)).roll(-1, dims=1)
    mixed = w_before.lerp(w_content, g[:, None])
    shifted = torch.fft.ifft(torch.fft.fft(mixed) * torch.fft.fft(kernel)).real
    expected = torch.softmax(gamma[:, None] * shifted.log(), dim=1)
    w = location_addressing(w_content, w_before, g, s, gamma)
    close(w, expected, **CLOSE)
    close(w.sum(dim=1), ones(B), **CLOSE)


# The machine


def machine(B: int, N: int, M: int) -> tuple[NTM, torch.Tensor, tuple]:
    net = NTM(D=3, D_Y=2, H=5, N=N, M=M).double()
    return net, randn(B, 4, 3), (randn(B, N, M), randn(B, M), focus(B, N), focus(B, N))


def test_machine_takes_its_steps_one_after_the_other(sizes):
    B, N, M, _ = sizes
    net, X, state = machine(B, N, M)
    outputs, end = net(X, state)
    for t in range(4):
        y, state = net.step(X[:, t], state)
        close(y, outputs[:, t], **CLOSE)
    assert all(torch.equal(a, b) for a, b in zip(state, end, strict=True))
    fresh, _ = net(X)
    close(fresh, net(X, net.start(B))[0], **CLOSE)


def test_machine_that_moves_on_and_goes_by_content_is_a_cache(sizes):
    """With weights set by hand the machine appends what it adds, and finds it again."""
    B, N, M, _ = sizes
    net, _, _ = machine(B, N, M)
    raw = torch.zeros(B, M + 6, dtype=torch.float64)
    raw[:, M + 1], raw[:, M + 5], raw[:, M + 2] = -50, 50, 5  # not by content, one row on, sharp
    w = net.start(B)[2]
    for t in range(1, N + 1):
        w = net.address(raw, randn(B, N, M), w)
        close(w, functional.one_hot(torch.full((B,), t % N), N).double())
    memory = randn(B, N, M)
    raw[:, :M], raw[:, M], raw[:, M + 1] = memory[:, -1], 1e5, 50  # by content alone …
    raw[:, M + 4], raw[:, M + 5] = 50, 0  # … and no shift
    close(net.address(raw, memory, w)[:, -1], torch.ones(B, dtype=torch.float64))


def test_machine_keeps_weights_that_sum_to_one(sizes):
    B, N, M, _ = sizes
    net, X, _ = machine(B, N, M)
    _, (_, _, w_write, w_read) = net(10 * X)
    for w in (w_write, w_read):
        assert (w >= 0).all()
        close(w.sum(dim=1), torch.ones(B, dtype=torch.float64), **CLOSE)


def test_machine_starts_with_an_empty_memory_in_its_own_precision():
    net = NTM(3, 2, 5, N=4, M=6)
    memory, r, w_write, w_read = net.start(2)
    assert memory.shape == (2, 4, 6) and (memory == 1e-6).all() and not r.any()
    assert w_write.tolist() == w_read.tolist() == [[1, 0, 0, 0]] * 2
    assert memory.dtype == torch.float32 and net.double().start(2)[0].dtype == torch.float64


def test_gradients_are_those_of_finite_differences():
    torch.manual_seed(0)
    B, N, M, R = 1, 4, 3, 2
    net, X, state = machine(B, N, M)
    gradcheck(lambda X, *state: net(X, state)[0], X[:, :2], *state)
    gradcheck(ntm_write, randn(B, N, M), focus(B, N), rand(B, M), randn(B, M))
    gradcheck(content_addressing, randn(B, N, M), randn(B, M), rand(B))
    gradcheck(location_addressing, focus(B, N), focus(B, N), rand(B), focus(B, 3), 1 + rand(B))
    gradcheck(dnc_usage, rand(B, N), focus(B, N), focus(B, R, N), rand(B, R))
    gradcheck(dnc_allocation, rand(B, N))
    gradcheck(dnc_links, *link_all(written(B, 3, N)), written(B, 1, N)[:, 0])
    gradcheck(sample_latent, *randn(3, B, M))
    gradcheck(lambda *aim: gaussian_filterbank(*aim, N, 7), 7 * rand(B), 1 + rand(B), 1 + rand(B))


# Allocation


def test_usage_is_a_probability(sizes):
    B, N, _, R = sizes
    usage, w_write, w_read, free = rand(B, N), focus(B, N), focus(B, R, N), rand(B, R)
    new = dnc_usage(usage, w_write, w_read, free)
    used, kept = torch.zeros(B, N).double(), torch.ones(B, N).double()
    for n in range(B):
        for i in range(N):
            used[n, i] = 1 - (1 - usage[n, i]) * (1 - w_write[n, i])
            for head in range(R):
                kept[n, i] *= 1 - free[n, head] * w_read[n, head, i]
    close(new, used * kept, **CLOSE)
    assert ((new >= 0) & (new <= 1)).all()


def test_allocation_gives_the_free_share_of_each_row_in_turn(sizes):
    B, N, _, _ = sizes
    usage = rand(B, N)
    a = dnc_allocation(usage)
    for n in range(B):
        left = 1.0
        for row in usage[n].argsort().tolist():
            assert a[n, row].item() == pytest.approx(left * (1 - usage[n, row].item()))
            left *= usage[n, row].item()
    close(a.sum(dim=1), 1 - usage.prod(dim=1), **CLOSE)


def test_rows_are_filled_one_after_the_other_and_reused_when_freed():
    usage, none = torch.zeros(1, 3).double(), torch.zeros(1, 1, 3).double()
    filled = []
    for _ in range(3):
        w = dnc_allocation(usage)
        filled.append(w.argmax().item())
        usage = dnc_usage(usage, w, none, torch.zeros(1, 1).double())
    assert sorted(filled) == [0, 1, 2]
    assert not dnc_allocation(usage).any()
    read = functional.one_hot(torch.tensor([[1]]), 3).double()
    usage = dnc_usage(usage, 0 * usage, read, torch.ones(1, 1).double())
    assert dnc_allocation(usage).tolist() == [[0, 1, 0]]


# Links in time


def written(B: int, T: int, N: int) -> torch.Tensor:
    """Draw the weights of T writes, each of which writes less than everything."""
    return torch.softmax(randn(B, T, N + 1), dim=2)[:, :, :N]


def link_all(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    B, T, N = w.shape
    links, precedence = torch.zeros(B, N, N).double(), torch.zeros(B, N).double()
    for t in range(T):
        links, precedence = dnc_links(links, precedence, w[:, t])
    return links, precedence


def test_links_are_the_formula_for_every_pair_of_rows(sizes):
    B, N, _, T = sizes
    w = written(B, T + 1, N)
    links, precedence = link_all(w[:, :T])
    new, last = dnc_links(links, precedence, w[:, T])
    for n in range(B):
        now = w[n, T]
        for i in range(N):
            for j in range(N):
                kept = (1 - now[i] - now[j]) * links[n, i, j]
                expected = 0 * kept if i == j else kept + now[i] * precedence[n, j]
                close(new[n, i, j], expected, **CLOSE)
        close(last[n], (1 - now.sum()) * precedence[n] + now, **CLOSE)


def test_links_are_the_sum_over_all_pairs_of_writes(sizes):
    """A write links to each earlier one, as far as none between has moved on or has cut it."""
    B, N, _, T = sizes
    w = written(B, T, N)
    links, precedence = link_all(w)
    expected, last = torch.zeros(B, N, N).double(), torch.zeros(B, N).double()
    for t in range(T):
        still_last = torch.ones(B, 1).double()
        for later in range(t + 1, T):
            kept = torch.ones(B, N, N).double()
            for cut in range(later + 1, T):
                kept = kept * (1 - w[:, cut, :, None] - w[:, cut, None])
            expected += kept * torch.einsum("bi,bj->bij", w[:, later], still_last * w[:, t])
            still_last = still_last * (1 - w[:, later].sum(dim=1, keepdim=True))
        last += still_last * w[:, t]
    close(links, expected * (1 - torch.eye(N)), **CLOSE)
    close(precedence, last, **CLOSE)


def test_links_and_precedence_are_shares(sizes):
    B, N, _, T = sizes
    links, precedence = link_all(written(B, T + 5, N))
    assert (links >= 0).all() and not torch.diagonal(links, dim1=1, dim2=2).any()
    most = 1 + 1e-12  # one, rounding aside
    assert (links.sum(dim=1) <= most).all() and (links.sum(dim=2) <= most).all()
    assert (precedence >= 0).all() and (precedence.sum(dim=1) <= most).all()


def test_a_sequence_is_read_back_in_both_directions(sizes):
    B, _, _, _ = sizes
    N, T = 13, 9
    order = torch.stack([torch.randperm(N)[:T] for _ in range(B)])
    w = functional.one_hot(order, N).double()
    links, precedence = link_all(w)
    close(precedence, w[:, -1])
    forward, backward = w @ links.mT, w @ links
    close(forward, torch.cat([w[:, 1:], torch.zeros(B, 1, N).double()], dim=1))
    close(backward, torch.cat([torch.zeros(B, 1, N).double(), w[:, :-1]], dim=1))
    again = w[:, 4]  # the row of write 4 is written again: its neighbours are not joined
    links, _ = dnc_links(links, precedence, again)
    forward, backward = w @ links.mT, w @ links
    assert not forward[:, 3].any() and not backward[:, 5].any()
    close(forward[:, T - 1], again)


# Glimpses


def test_filters_are_gaussians_around_their_points(sizes):
    B, N, size, _ = sizes
    centre, stride, sigma = size * rand(B), 0.5 + rand(B), 0.5 + rand(B)
    F = gaussian_filterbank(centre, stride, sigma, N, size)
    close(F.sum(dim=2), torch.ones(B, N, dtype=torch.float64), **CLOSE)
    pixel = torch.arange(size, dtype=torch.float64)
    for n in range(B):
        for i in range(N):
            mu = centre[n] + (i - (N - 1) / 2) * stride[n]
            density = torch.distributions.Normal(mu, sigma[n]).log_prob(pixel).exp()
            close(F[n, i], density / density.sum(), rtol=1e-9, atol=1e-12)


def test_filters_that_lie_far_outside_are_finite():
    far = torch.tensor([-1e6, 1e6])
    F = gaussian_filterbank(far, torch.ones(2), torch.full((2,), 0.1), 3, 5)
    assert torch.equal(F[0], torch.eye(5)[[0, 0, 0]]) and torch.equal(F[1], torch.eye(5)[[4, 4, 4]])


# Drawing


def test_latents_have_the_gaussians_quantiles(sizes):
    B, D_Z, _, _ = sizes
    mu, log_sigma, share = randn(B, D_Z), randn(B, D_Z), 0.01 + 0.98 * rand(B, D_Z)
    noise = torch.distributions.Normal(0, 1).icdf(share)
    expected = torch.distributions.Normal(mu, log_sigma.exp()).icdf(share)
    close(sample_latent(mu, log_sigma, noise)[0], expected, rtol=1e-10, atol=1e-10)


def test_kl_is_that_of_torch_summed(sizes):
    B, D_Z, _, _ = sizes
    mu, log_sigma = randn(B, D_Z), randn(B, D_Z)
    given = torch.distributions.Normal(mu, log_sigma.exp())
    prior = torch.distributions.Normal(0 * mu, torch.ones_like(mu))
    expected = torch.distributions.kl_divergence(given, prior).sum(dim=1)
    for noise in randn(2, B, D_Z):  # whatever the noise
        close(sample_latent(mu, log_sigma, noise)[1], expected, rtol=1e-10, atol=1e-10)


def test_kl_is_finite_where_sigma_is_zero_in_the_computer(sizes):
    B, D_Z, _, _ = sizes
    mu, log_sigma = randn(B, D_Z), torch.full((B, D_Z), -1000.0).double().requires_grad_()
    z, kl = sample_latent(mu, log_sigma, randn(B, D_Z))
    close(z, mu)
    close(kl, (mu**2).sum(dim=1) / 2 + D_Z * 999.5, **CLOSE)
    kl.sum().backward()
    close(log_sigma.grad, torch.full_like(log_sigma, -1))


def draw(sizes) -> tuple[DRAW, torch.Tensor, torch.Tensor]:
    """Make a DRAW, pictures and noise."""
    B, T, D_Z, H = sizes
    net = DRAW(A=7, N=3, D_Z=D_Z, H=H).double()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.7)
    return net, rand(B, 7, 7).round(), randn(B, T, D_Z)


def test_five_zeros_aim_at_the_whole_picture():
    net = DRAW(A=9, N=5, D_Z=2, H=3).double()
    F_Y, F_X, gamma = net.aim(torch.zeros(2, 5).double())
    whole = torch.full((2,), 4.0).double(), torch.full((2,), 2.0).double(), torch.ones(2).double()
    close(F_Y, gaussian_filterbank(*whole, 5, 9), **CLOSE)
    close(F_X, F_Y, **CLOSE)
    assert gamma.tolist() == [1, 1]


def glimpse(image, F_Y, F_X, gamma):
    return torch.einsum("b,biy,byx,bjx->bij", gamma, F_Y, image, F_X)


def test_a_moved_aim_sees_the_moved_picture():
    net = DRAW(A=12, N=3, D_Z=2, H=3).double()
    raw = torch.tensor([[0.1, -0.2, -1.5, -1.4, 0.3]]).double()
    moved = raw + torch.tensor([[2 * 2 / 13, 1 * 2 / 13, 0, 0, 0]]).double()  # right 2, down 1
    picture = functional.pad(rand(1, 4, 4), (4, 4, 4, 4))
    seen = glimpse(picture, *net.aim(raw))
    close(glimpse(picture.roll((1, 2), (1, 2)), *net.aim(moved)), seen, rtol=1e-6, atol=1e-6)


def test_the_machine_reads_and_paints_every_pixel_with_narrow_filters():
    A = 5
    net = DRAW(A=A, N=A, D_Z=2, H=3).double()
    with torch.no_grad():
        for aim in (net.read_aim, net.write_aim):
            aim.weight.zero_()
            aim.bias.copy_(torch.tensor([0, 0, -9, 0, 0.7]))
    x, error, h = randn(2, A, A), randn(2, A, A), randn(2, 3)
    gamma = net.aim(net.read_aim(h))[2][:, None]
    close(net.read(x, error, h), gamma * torch.cat([x, error], dim=1).flatten(1), **CLOSE)
    close(net.write(h), (net.patch(h) / gamma).view(2, A, A), **CLOSE)


def test_painting_is_the_transpose_of_reading(sizes):
    B, _, _, H = sizes
    net = DRAW(A=7, N=3, D_Z=2, H=H).double()
    net.write_aim = net.read_aim
    x, h = randn(B, 7, 7), randn(B, H)
    gamma = net.aim(net.read_aim(h))[2]
    seen = net.read(x, 0 * x, h)[:, :9]
    close((seen * net.patch(h)).sum(1) / gamma, (net.write(h) * x).sum((1, 2)) * gamma, **CLOSE)


def test_losses_are_those_of_the_codes_that_are_sent(sizes):
    """What `forward` paints is what `generate` paints from the same codes."""
    net, x, noise = draw(sizes)
    with torch.no_grad():
        net.code.weight.zero_()  # every code has the Gaussian of the bias
    mu, log_sigma = net.code.bias.chunk(2)
    reconstruction, kl = net(x, noise)
    pictures = net.generate(mu + log_sigma.exp() * noise)
    likelihood = torch.distributions.Bernoulli(pictures[:, -1]).log_prob(x)
    close(reconstruction, -likelihood.sum(dim=(1, 2)), rtol=1e-8, atol=1e-8)
    given = torch.distributions.Normal(mu, log_sigma.exp())
    one = torch.distributions.kl_divergence(given, torch.distributions.Normal(0, 1)).sum()
    close(kl, (noise.shape[1] * one).double().expand(len(x)), rtol=1e-10, atol=1e-10)


def test_the_encoder_is_told_what_the_canvas_lacks(sizes):
    """The first step again by hand, with torch's LSTM for a sequence of one."""
    net, x, noise = draw(sizes)
    B, H = len(x), net.H
    error = x - torch.sigmoid(net.blank)
    raw = net.read_aim.bias.expand(B, 5)
    F_Y, F_X, gamma = net.aim(raw)
    glimpses = [glimpse(part, F_Y, F_X, gamma).reshape(B, -1) for part in (x, error)]
    seen = torch.cat([*glimpses, torch.zeros(B, H)], 1)
    lstm = nn.LSTM(seen.shape[1], H, batch_first=True).double()
    lstm.load_state_dict({f"{name}_l0": w for name, w in net.encoder.state_dict().items()})
    mu, log_sigma = net.code(lstm(seen[:, None])[0][:, 0]).chunk(2, dim=1)
    _, kl = net(x, noise[:, :1])
    close(kl, sample_latent(mu, log_sigma, 0 * mu)[1], rtol=1e-10, atol=1e-10)


def test_drawings_grow_step_by_step(sizes):
    net, _, z = draw(sizes)
    pictures = net.generate(z)
    B, T, _ = z.shape
    assert pictures.shape == (B, T, 7, 7) and ((pictures > 0) & (pictures < 1)).all()
    close(net.generate(z[:, :1]), pictures[:, :1], **CLOSE)
    other = torch.cat([z[:, :-1], randn(B, 1, z.shape[2])], dim=1)
    close(net.generate(other)[:, :-1], pictures[:, :-1], **CLOSE)


# The copy task


def test_copy_task_asks_for_what_it_has_shown():
    X, Y = copy_task(B=5, L=6, generator=0, bits=3)
    assert X.shape == (5, 13, 4) and Y.shape == (5, 6, 3)
    assert set(Y.unique().tolist()) == {0, 1}
    assert torch.equal(X[:, :6, :3], 2 * Y - 1) and not X[:, 6:, :3].any()
    assert X[:, :, 3].tolist() == [[0] * 6 + [1] + [0] * 6] * 5


def test_copy_task_is_even_and_depends_on_its_generator_alone():
    _, Y = copy_task(B=400, L=9, generator=1)
    assert Y.mean().item() == pytest.approx(0.5, abs=0.02)
    before = torch.get_rng_state()
    again = copy_task(400, 9, torch.Generator().manual_seed(1))[1]
    assert torch.equal(Y, again) and torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(Y, copy_task(400, 9, 2)[1])


@pytest.mark.parametrize("name", ["B", "L", "bits"])
def test_copy_task_refuses_nonsensical_sizes(name):
    with pytest.raises(ValueError, match=f"must be at least 1, got .*{name}=0"):
        copy_task(**{"B": 2, "L": 3, "generator": 0, name: 0})


def test_the_example_of_the_copy_task_runs():
    found = doctest.testmod(copying)
    assert found.attempted and not found.failed
