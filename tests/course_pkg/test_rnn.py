"""The references of rnn agree with torch, float64, on random shapes of different sizes."""

import random

import pytest
import torch
from torch import nn

from course_pkg import data
from course_pkg.rnn import (
    clip_grad_norm,
    gradient_norms,
    linear_rnn_gradient,
    rnn_backward,
    rnn_forward,
    rnn_step,
    truncated_bptt,
)

CLOSE = {"rtol": 1e-11, "atol": 1e-12}


@pytest.fixture(params=range(5))
def sizes(request) -> tuple[int, int, int, int]:
    """B, T, D and H, all different; also seeds torch."""
    torch.manual_seed(request.param)
    return tuple(random.Random(request.param).sample(range(1, 12), 4))


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def fused(rnn: nn.RNN) -> tuple[torch.Tensor, torch.Tensor]:
    """Our W and b from torch's weights, with a way back for gradients."""
    W = torch.cat([rnn.weight_hh_l0, rnn.weight_ih_l0], dim=1)
    return W.detach(), (rnn.bias_hh_l0 + rnn.bias_ih_l0).detach()


def test_rnn_step_is_torchs_cell(sizes):
    B, _, D, H = sizes
    cell = nn.RNNCell(D, H).double()
    x, h = randn(B, D), randn(B, H)
    W = torch.cat([cell.weight_hh, cell.weight_ih], dim=1)
    given = rnn_step(x, h, W, cell.bias_ih + cell.bias_hh)
    torch.testing.assert_close(given, cell(x, h), **CLOSE)


@pytest.mark.parametrize("with_state", [True, False])
def test_rnn_forward_is_torchs_rnn(sizes, with_state):
    B, T, D, H = sizes
    rnn = nn.RNN(D, H, batch_first=True).double()
    X, h_0 = randn(B, T, D), randn(B, H) if with_state else None
    expected, last = rnn(X, None if h_0 is None else h_0[None])
    outputs = rnn_forward(X, *fused(rnn), h_0)
    torch.testing.assert_close(outputs, expected, **CLOSE)
    torch.testing.assert_close(outputs[:, -1], last[0], **CLOSE)


def test_rnn_backward_is_autograd_through_torchs_rnn(sizes):
    B, T, D, H = sizes
    rnn = nn.RNN(D, H, batch_first=True).double()
    X, h_0 = randn(B, T, D).requires_grad_(), randn(B, H).requires_grad_()
    seen, (W, _) = randn(B, T, H), fused(rnn)
    outputs, _ = rnn(X, h_0[None])
    outputs.backward(seen)
    grad_X, grad_W, grad_b, grad_h_0 = rnn_backward(
        seen, outputs.detach(), X.detach(), W, h_0.detach()
    )
    torch.testing.assert_close(grad_X, X.grad, **CLOSE)
    torch.testing.assert_close(grad_W[:, :H], rnn.weight_hh_l0.grad, **CLOSE)
    torch.testing.assert_close(grad_W[:, H:], rnn.weight_ih_l0.grad, **CLOSE)
    torch.testing.assert_close(grad_b, rnn.bias_hh_l0.grad, **CLOSE)
    torch.testing.assert_close(grad_h_0, h_0.grad, **CLOSE)


def test_rnn_backward_passes_gradcheck():
    torch.manual_seed(0)

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx, X, W, b, h_0):
            outputs = rnn_forward(X, W, b, h_0)
            ctx.save_for_backward(outputs, X, W, h_0)
            return outputs

        @staticmethod
        def backward(ctx, grad_outputs):
            return rnn_backward(grad_outputs, *ctx.saved_tensors)

    arguments = randn(3, 5, 2), randn(4, 6), randn(4), randn(3, 4)
    assert torch.autograd.gradcheck(
        ByHand.apply, [argument.requires_grad_() for argument in arguments]
    )


@pytest.mark.parametrize("k", [1, 2, 3, 7, 12, 100])
def test_truncated_bptt_is_autograd_with_a_detached_state(sizes, k):
    B, T, D, H = sizes
    rnn = nn.RNN(D, H, batch_first=True).double()
    X, h_0 = randn(B, T, D).requires_grad_(), randn(B, H).requires_grad_()
    seen, (W, b) = randn(B, T, H), fused(rnn)
    h = h_0[None]
    for x, grad in zip(X.split(k, dim=1), seen.split(k, dim=1), strict=True):
        outputs, h = rnn(x, h)
        outputs.backward(grad)
        h = h.detach()
    given = truncated_bptt(seen, X.detach(), W, b, k, h_0.detach())
    grad_W = torch.cat([rnn.weight_hh_l0.grad, rnn.weight_ih_l0.grad], dim=1)
    for gradient, expected in zip(
        given, (X.grad, grad_W, rnn.bias_hh_l0.grad, h_0.grad), strict=True
    ):
        torch.testing.assert_close(gradient, expected, **CLOSE)


def test_truncated_bptt_refuses_empty_pieces():
    X, W, b = randn(2, 3, 1), randn(4, 5), randn(4)
    with pytest.raises(ValueError, match="k must be at least 1 step, got 0"):
        truncated_bptt(randn(2, 3, 4), X, W, b, 0)


def test_gradient_norms_are_those_of_autograd(sizes):
    B, T, D, H = sizes
    X, W, b, seen = randn(B, T, D), randn(H, H + D), randn(H), randn(B, H)
    h, states = torch.zeros(B, H, dtype=torch.float64, requires_grad=True), []
    for x in X.unbind(dim=1):
        h = rnn_step(x, h, W, b)
        states.append(h)
    gradients = torch.stack(torch.autograd.grad(h, states, seen), dim=1)
    given = gradient_norms(seen, torch.stack(states, dim=1).detach(), W)
    torch.testing.assert_close(given, gradients.norm(dim=2), **CLOSE)


@pytest.mark.parametrize("T", [0, 1, 2, 5, 40])
def test_linear_rnn_gradient_is_torchs_matrix_power(sizes, T):
    *_, H = sizes
    W = randn(H, H) / H**0.5
    torch.testing.assert_close(
        linear_rnn_gradient(W, T), torch.linalg.matrix_power(W, T), rtol=1e-9, atol=1e-12
    )


def test_linear_rnn_gradient_refuses_negative_lengths():
    with pytest.raises(ValueError, match="T must be at least 0 steps, got -1"):
        linear_rnn_gradient(randn(2, 2), -1)


@pytest.mark.parametrize("max_norm", [0.01, 1.0, 5.0, 1e6])
def test_clip_grad_norm_is_torchs(sizes, max_norm):
    B, T, D, H = sizes
    parameters = [nn.Parameter(randn(*shape)) for shape in ((B, T), (D,), (H, D, B), ())]
    for parameter in parameters:
        parameter.grad = randn(*parameter.shape)
    before = [parameter.grad.clone() for parameter in parameters]
    clipped, norm = clip_grad_norm(before, max_norm)
    expected_norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    torch.testing.assert_close(norm, expected_norm, **CLOSE)
    for given, parameter in zip(clipped, parameters, strict=True):  # torch adds 1e-6 to the norm
        torch.testing.assert_close(given, parameter.grad, rtol=2e-6, atol=1e-9)


def test_clip_grad_norm_keeps_its_input_and_refuses_zero():
    gradients = [randn(3, 4), randn(2)]
    before = [gradient.clone() for gradient in gradients]
    clip_grad_norm(gradients, 0.1)
    assert all(torch.equal(*pair) for pair in zip(gradients, before, strict=True))
    with pytest.raises(ValueError, match="max_norm must be positive, got 0"):
        clip_grad_norm(gradients, 0)


@pytest.mark.parametrize("delay", [0, 1, 5, 8])
def test_echo_asks_for_earlier_inputs(delay):
    X, y = data.echo(B=7, T=9, delay=delay, generator=0)
    assert X.shape == (7, 9, 1) and y.shape == (7, 9 - delay)
    assert torch.equal(X.abs(), torch.ones(7, 9, 1))
    for t in range(9 - delay):
        assert torch.equal(y[:, t], X[:, t, 0])


def test_latch_asks_for_the_bit_of_the_first_step():
    B, T = 20_000, 4
    X, y = data.latch(B, T, generator=3, noise=0.3)
    assert X.shape == (B, T, 1) and y.shape == (B, 1)
    assert torch.equal(y.abs(), torch.ones(B, 1))
    assert y.mean().item() == pytest.approx(0, abs=0.03)
    noise = X[:, :, 0] - torch.cat([y, torch.zeros(B, T - 1)], dim=1)
    torch.testing.assert_close(noise.std(dim=0), torch.full((T,), 0.3), rtol=0.03, atol=0)
    assert noise.mean(dim=0).abs().max() < 0.01


def test_bits_are_ones_half_of_the_time():
    X, _ = data.echo(B=1000, T=20, delay=3, generator=0)
    assert X.mean().item() == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize(
    "task",
    [
        lambda generator: data.echo(4, 6, 2, generator),
        lambda generator: data.latch(4, 6, generator),
    ],
    ids=["echo", "latch"],
)
def test_tasks_depend_on_their_generator_alone(task):
    before = torch.get_rng_state()
    first, again = task(11), task(torch.Generator().manual_seed(11))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], task(12)[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: data.echo(0, 5, 2, 0), "B must be at least 1, got 0"),
        (lambda: data.echo(3, 5, 5, 0), "T must be at least 6, got 5"),
        (lambda: data.echo(3, 5, -1, 0), "delay must be at least 0, got -1"),
        (lambda: data.latch(3, 0, 0), "T must be at least 1, got 0"),
        (lambda: data.latch(3, 5, 0, noise=-0.5), "noise must be at least 0, got -0.5"),
    ],
)
def test_tasks_refuse_impossible_sizes(make, message):
    with pytest.raises(ValueError, match=message):
        make()
