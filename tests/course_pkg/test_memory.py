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


# Reading and writing


def test_read_is_attention_with_given_weights(sizes):
    B, N, M, _ = sizes
    memory, scores = randn(B, N, M), randn(B, N)
    one = torch.ones(B, 1, 1, dtype=torch.float64)
    expected = functional.scaled_dot_product_attention(one, scores[:, :, None], memory)[:, 0]
    close(ntm_read(memory, scores.softmax(dim=1)), expected, **CLOSE)


def test_write_is_erase_and_then_add(sizes):
    B, N, M, _ = sizes
    memory, w, erase, add = randn(B, N, M), focus(B, N), rand(B, M), randn(B, M)
    new = ntm_write(memory, w, erase, add)
    for n in range(B):
        expected = memory[n] * (1 - torch.outer(w[n], erase[n])) + torch.outer(w[n], add[n])
        close(new[n], expected, **CLOSE)


def test_what_is_written_to_one_row_is_read_from_it(sizes):
    B, N, M, _ = sizes
    w = functional.one_hot(torch.randint(N, (B,)), N).double()
    memory, add = randn(B, N, M), randn(B, M)
    new = ntm_write(memory, w, torch.ones(B, M, dtype=torch.float64), add)
    close(ntm_read(new, w), add, **CLOSE)
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


def test_interpolate_is_lerp(sizes):
    B, N, _, _ = sizes
    w_content, w_before, g = focus(B, N), focus(B, N), rand(B)
    close(interpolate(w_content, w_before, g), w_before.lerp(w_content, g[:, None]), **CLOSE)


@pytest.mark.parametrize("S", [1, 3, 5])
def test_circular_shift_is_a_circular_convolution(sizes, S):
    B, N, _, _ = sizes
    N += 4  # so that no two shifts lead to the same row
    w, s = focus(B, N), focus(B, S)
    kernel = functional.pad(s, (0, N - S)).roll(-(S // 2), dims=1)
    expected = torch.fft.ifft(torch.fft.fft(w) * torch.fft.fft(kernel)).real
    close(circular_shift(w, s), expected, **CLOSE)
    close(circular_shift(w, s).sum(dim=1), torch.ones(B, dtype=torch.float64), **CLOSE)


def test_one_hot_shifts_roll_the_rows():
    w = focus(3, 7)
    s = torch.eye(3, dtype=torch.float64)
    moved = circular_shift(w, s)
    for n, step in enumerate((-1, 0, 1)):
        close(moved[n], w[n].roll(step), **CLOSE)


def test_circular_shift_needs_a_middle():
    with pytest.raises(ValueError, match="the number of shifts must be odd, got 4"):
        circular_shift(focus(2, 5), focus(2, 4))


def test_sharpen_is_a_softmax_of_logarithms(sizes):
    B, N, _, _ = sizes
    w, gamma = focus(B, N), 1 + 5 * rand(B)
    close(sharpen(w, gamma), torch.softmax(gamma[:, None] * w.log(), dim=1), **CLOSE)
    close(sharpen(w, torch.ones(B).double()), w, **CLOSE)


def test_infinite_sharpening_leaves_one_row(sizes):
    B, N, _, _ = sizes
    w = focus(B, N)
    expected = functional.one_hot(w.argmax(dim=1), N).double()
    close(sharpen(w, torch.full((B,), 1e6).double()), expected, **CLOSE)


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
    gradcheck(circular_shift, focus(B, N), focus(B, 3))
    gradcheck(sharpen, focus(B, N), 1 + rand(B))
    gradcheck(dnc_usage, rand(B, N), focus(B, N), focus(B, R, N), rand(B, R))
    gradcheck(dnc_allocation, rand(B, N))
    gradcheck(dnc_links, *link_all(written(B, 3, N)), written(B, 1, N)[:, 0])
    gradcheck(draw_kl, randn(B, 2, M), randn(B, 2, M))
    gradcheck(reparameterise, *randn(3, B, M))
    gradcheck(dnc_follow, link_all(written(B, 3, N))[0], focus(B, R, N))
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
    forward, backward = dnc_follow(links, w)
    close(forward, torch.cat([w[:, 1:], torch.zeros(B, 1, N).double()], dim=1))
    close(backward, torch.cat([torch.zeros(B, 1, N).double(), w[:, :-1]], dim=1))
    again = w[:, 4]  # the row of write 4 is written again: its neighbours are not joined
    links, _ = dnc_links(links, precedence, again)
    forward, backward = dnc_follow(links, w)
    assert not forward[:, 3].any() and not backward[:, 5].any()
    close(forward[:, T - 1], again)


def test_heads_follow_every_link_as_far_as_it_goes(sizes):
    B, N, R, T = sizes
    links, _ = link_all(written(B, T, N))
    w = focus(B, R, N)
    forward, backward = dnc_follow(links, w)
    for n in range(B):
        for head in range(R):
            for i in range(N):
                after = sum(links[n, i, j] * w[n, head, j] for j in range(N))
                before = sum(links[n, j, i] * w[n, head, j] for j in range(N))
                close(forward[n, head, i], after, **CLOSE)
                close(backward[n, head, i], before, **CLOSE)


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


def test_a_glimpse_of_narrow_filters_is_the_image_itself():
    S = 9
    image = rand(2, S, S)
    middle, one = torch.full((2,), (S - 1) / 2).double(), torch.ones(2).double()
    F = gaussian_filterbank(middle, one, 0.01 * one, S, S)
    close(draw_read(image, F, F, one), image, **CLOSE)
    close(draw_write(image, F, F, one), image, **CLOSE)


def test_writing_is_the_transpose_of_reading(sizes):
    B, N, Y, X = sizes
    F_Y, F_X, gamma = focus(B, N, Y), focus(B, N, X), 0.5 + rand(B)
    image, patch = randn(B, Y, X), randn(B, N, N)
    seen = (draw_read(image, F_Y, F_X, gamma) * patch).sum(dim=(1, 2)) / gamma
    painted = (draw_write(patch, F_Y, F_X, gamma) * image).sum(dim=(1, 2)) * gamma
    close(seen, painted, **CLOSE)
    expected = torch.einsum("b,biy,byx,bjx->bij", gamma, F_Y, image, F_X)
    close(draw_read(image, F_Y, F_X, gamma), expected, **CLOSE)


# Drawing


def test_reparameterised_noise_has_the_gaussians_quantiles(sizes):
    B, T, D_Z, _ = sizes
    mu, log_sigma, share = randn(B, T, D_Z), randn(B, T, D_Z), 0.01 + 0.98 * rand(B, T, D_Z)
    noise = torch.distributions.Normal(0, 1).icdf(share)
    expected = torch.distributions.Normal(mu, log_sigma.exp()).icdf(share)
    close(reparameterise(mu, log_sigma, noise), expected, rtol=1e-10, atol=1e-10)


def test_kl_is_that_of_torch_summed(sizes):
    B, T, D_Z, _ = sizes
    mu, log_sigma = randn(B, T, D_Z), randn(B, T, D_Z)
    given = torch.distributions.Normal(mu, log_sigma.exp())
    prior = torch.distributions.Normal(0 * mu, torch.ones_like(mu))
    expected = torch.distributions.kl_divergence(given, prior)
    expected = torch.stack([picture.sum() for picture in expected])
    close(draw_kl(mu, log_sigma), expected, rtol=1e-10, atol=1e-10)


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


def test_a_moved_aim_sees_the_moved_picture():
    net = DRAW(A=12, N=3, D_Z=2, H=3).double()
    raw = torch.tensor([[0.1, -0.2, -1.5, -1.4, 0.3]]).double()
    moved = raw + torch.tensor([[2 * 2 / 13, 1 * 2 / 13, 0, 0, 0]]).double()  # right 2, down 1
    picture = functional.pad(rand(1, 4, 4), (4, 4, 4, 4))
    seen = draw_read(picture, *net.aim(raw))
    close(draw_read(picture.roll((1, 2), (1, 2)), *net.aim(moved)), seen, rtol=1e-6, atol=1e-6)


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
    glimpses = [torch.einsum("b,biy,byx,bjx->bij", gamma, F_Y, s, F_X) for s in (x, error)]
    seen = torch.cat([*(glimpse.reshape(B, -1) for glimpse in glimpses), torch.zeros(B, H)], 1)
    lstm = nn.LSTM(seen.shape[1], H, batch_first=True).double()
    lstm.load_state_dict({f"{name}_l0": w for name, w in net.encoder.state_dict().items()})
    mu, log_sigma = net.code(lstm(seen[:, None])[0][:, 0]).chunk(2, dim=1)
    _, kl = net(x, noise[:, :1])
    close(kl, draw_kl(mu[:, None], log_sigma[:, None]), rtol=1e-10, atol=1e-10)


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
