"""The references of lstm agree with torch, float64, on random shapes of different sizes."""

import random

import pytest
import torch
from torch import nn

from course_pkg.lstm import (
    LSTM,
    additive_cell_step,
    cell_gradient,
    chrono_bias,
    convert_torch_lstm,
    gru_step,
    init_forget_bias,
    lstm_step,
)

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(params=range(5))
def sizes(request) -> tuple[int, int, int, int]:
    """B, T, D and H, all different; also seeds torch."""
    torch.manual_seed(request.param)
    return tuple(random.Random(request.param).sample(range(1, 12), 4))


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def test_additive_cell_step_adds_an_rnn_step(sizes):
    B, _, D, H = sizes
    x, h, c = randn(B, D), randn(B, H), randn(B, H)
    cell = nn.RNNCell(D, H).double()
    W = torch.cat([cell.weight_hh, cell.weight_ih], dim=1)
    h_t, c_t = additive_cell_step(x, h, c, W, cell.bias_ih + cell.bias_hh)
    torch.testing.assert_close(c_t, c + cell(x, h), **CLOSE)
    torch.testing.assert_close(h_t, torch.tanh(c_t), **CLOSE)


def test_lstm_step_is_torchs_cell(sizes):
    B, _, D, H = sizes
    x, h, c = randn(B, D), randn(B, H), randn(B, H)
    cell = nn.LSTMCell(D, H).double()
    ours = convert_torch_lstm({f"{name}_l0": value for name, value in cell.state_dict().items()})
    for given, expected in zip(
        lstm_step(x, h, c, ours["W"], ours["b"]), cell(x, (h, c)), strict=True
    ):
        torch.testing.assert_close(given, expected, **CLOSE)


@pytest.mark.parametrize("bias", [True, False])
def test_lstm_is_torchs_after_conversion(sizes, bias):
    B, T, D, H = sizes
    torchs = nn.LSTM(D, H, batch_first=True, bias=bias).double()
    ours = LSTM(D, H).double()
    ours.load_state_dict(convert_torch_lstm(torchs.state_dict()))
    X, state = randn(B, T, D), (randn(B, H), randn(B, H))
    outputs, (h, c) = ours(X, state)
    expected, (expected_h, expected_c) = torchs(X, tuple(part[None] for part in state))
    torch.testing.assert_close(outputs, expected, **CLOSE)
    torch.testing.assert_close(h, expected_h[0], **CLOSE)
    torch.testing.assert_close(c, expected_c[0], **CLOSE)


def test_lstm_with_lengths_is_torchs_packed(sizes):
    B, T, D, H = sizes
    torchs = nn.LSTM(D, H, batch_first=True).double()
    ours = LSTM(D, H).double()
    ours.load_state_dict(convert_torch_lstm(torchs.state_dict()))
    X, lengths = randn(B, T, D), torch.randint(1, T + 1, (B,))
    outputs, (h, c) = ours(X, lengths=lengths)
    packed = nn.utils.rnn.pack_padded_sequence(X, lengths, True, enforce_sorted=False)
    expected, (expected_h, expected_c) = torchs(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(expected, True, total_length=T)
    torch.testing.assert_close(outputs, expected, **CLOSE)
    torch.testing.assert_close(h, expected_h[0], **CLOSE)
    torch.testing.assert_close(c, expected_c[0], **CLOSE)


def test_lstm_starts_within_torchs_bounds():
    torch.manual_seed(0)
    lstm = LSTM(7, 64)
    for parameter in lstm.parameters():
        assert parameter.abs().max() <= 1 / 8
        assert parameter.abs().max() > 0.9 / 8
        assert parameter.std().item() == pytest.approx((1 / 8) / 3**0.5, rel=0.1)


def test_gru_step_is_torchs_cell_and_torchs_gru(sizes):
    B, T, D, H = sizes
    gru = nn.GRU(D, H, batch_first=True).double()
    X, h = randn(B, T, D), randn(B, H)
    expected, _ = gru(X, h[None])
    weights = gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0
    for t in range(T):
        h = gru_step(X[:, t], h, *weights)
        torch.testing.assert_close(h, expected[:, t], **CLOSE)


def test_cell_gradient_is_autograds_with_fixed_gates(sizes):
    B, T, D, H = sizes
    X, W, b = randn(B, T, D), randn(4 * H, H + D), randn(4 * H)
    h, states, gates = randn(B, H), [randn(B, H).requires_grad_()], []
    for t in range(T):
        a = torch.cat([h.detach(), X[:, t]], dim=1) @ W.T + b
        i, f, o, g = (part.detach() for part in a.chunk(4, dim=1))
        gates.append(f.sigmoid())
        states.append(f.sigmoid() * states[-1] + i.sigmoid() * g.tanh())
        states[-1].retain_grad()
        h = o.sigmoid() * states[-1].tanh()
    states[-1].sum().backward()
    expected = torch.stack([state.grad for state in states[1:]], dim=1)
    torch.testing.assert_close(cell_gradient(torch.stack(gates, dim=1)), expected, **CLOSE)


def test_one_step_of_the_cell_path_is_the_forget_gate(sizes):
    B, _, D, H = sizes
    x, h, c, W, b = randn(B, D), randn(B, H), randn(B, H), randn(4 * H, H + D), randn(4 * H)
    c.requires_grad_()
    _, c_t = lstm_step(x, h, c, W, b)
    (gradient,) = torch.autograd.grad(c_t.sum(), c)
    _, f, _, _ = (torch.cat([h, x], dim=1) @ W.T + b).chunk(4, dim=1)
    torch.testing.assert_close(gradient, torch.sigmoid(f), **CLOSE)


@pytest.mark.parametrize(
    "options",
    [{"num_layers": 2}, {"bidirectional": True}, {"proj_size": 2}],
    ids=lambda options: next(iter(options)),
)
def test_convert_refuses_what_it_cannot_keep(options):
    with pytest.raises(ValueError, match="expected one layer and one direction"):
        convert_torch_lstm(nn.LSTM(3, 4, **options).state_dict())


def test_biases_are_set_in_the_right_place_and_in_a_copy():
    b = randn(20)
    before = b.clone()
    torch.testing.assert_close(init_forget_bias(b, 3)[5:10], torch.full((5,), 3.0).double())
    torch.testing.assert_close(init_forget_bias(b, 3)[10:], b[10:])
    torch.testing.assert_close(init_forget_bias(b)[:5], b[:5])
    assert torch.equal(b, before)


def test_chrono_bias_spreads_time_constants_evenly():
    u = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    b = chrono_bias(torch.zeros(80_000, dtype=torch.float64), u, T_max=100)
    i, f, o, g = b.chunk(4)
    tau = 1 / (1 - torch.sigmoid(f))
    quantiles = torch.quantile(tau, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]).double())
    torch.testing.assert_close(
        quantiles, torch.tensor([2, 26.5, 51, 75.5, 100]).double(), rtol=0.02, atol=0.1
    )
    assert torch.equal(i, -f)
    assert not o.any() and not g.any()


def test_chrono_bias_refuses_a_range_without_memory():
    with pytest.raises(ValueError, match="T_max must be at least 2 steps, got 1"):
        chrono_bias(torch.zeros(8), torch.rand(2), T_max=1)
