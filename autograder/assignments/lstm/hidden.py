"""Hidden checks of lstm: gradients, and the longest and shortest memories."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.lstm import (
    both,
    lstm_pair,
    run_lstm,
    step_inputs,
)
from course_pkg.lstm import (
    LSTM,
    additive_cell_step,
    chrono_bias,
    gru_step_fault,
)


@check(additive_cell_step, see="A cell that only adds")
def gradient_of_the_cell_path(step, case):
    """has ∂c_t/∂c_{t-1} = 1, the identity"""
    B, D, H = case.sizes(3)
    x, h, c, W, b = step_inputs(case, B, D, H, 1)
    c.requires_grad_()
    _, c_t = both(case, step(x, h, c, W, b), B, H)
    case.trains(c_t, "c_t")
    c_t.sum().backward()
    case.gradient(c, torch.ones(B, H), "c")


@check(LSTM, see="The LSTM over a sequence")
def gradients(lstm, case):
    """passes the same gradients to X, W and b as torch.nn.LSTM"""
    B, T, D, H = case.sizes(4)
    ours, torchs = lstm_pair(case, lstm, D, H)
    X, seen = case.randn(B, T, D).requires_grad_(), case.randn(B, T, H)
    (expected,) = torch.autograd.grad(torchs(X)[0], X, seen, retain_graph=True)
    torchs(X.detach())[0].backward(seen)
    outputs, _, _ = run_lstm(case, ours, X)
    case.trains(outputs, "outputs")
    outputs.backward(seen)
    case.gradient(X, expected, "X")
    parameters = dict(ours.named_parameters())
    grad_W = torch.cat([torchs.weight_hh_l0.grad, torchs.weight_ih_l0.grad], dim=1)
    for name, gradient in (("b", torchs.bias_hh_l0.grad), ("W", grad_W)):
        i, f, g, o = gradient.chunk(4)
        case.gradient(parameters[name], torch.cat([i, f, o, g]), name)
    case.learns(ours)


@check(gru_step_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "D")


@check(chrono_bias, see="Give each cell its own memory span")
def extremes(chrono, case):
    """spans the time constants from 2 to T_max"""
    (H,) = case.sizes(1, low=3)
    u = torch.linspace(0, 1, H, dtype=torch.float64)
    new = chrono(case.randn(4 * H), u, 17)
    case.shape(new, (4 * H,), "b")
    tau = 1 / (1 - torch.sigmoid(new[H : 2 * H]))
    case.equal(tau, torch.linspace(2, 17, H), "τ")
