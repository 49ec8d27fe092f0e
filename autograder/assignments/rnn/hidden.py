"""Hidden checks of rnn: finite differences, extreme lengths and values."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.rnn import (
    GRADIENTS,
    demand_clipped,
    four,
    gradients_of,
    pieces_case,
    torch_gradients,
    torch_rnn,
    weights,
)
from course_pkg.rnn import (
    clip_grad_norm,
    clip_grad_norm_fault,
    gradient_norms,
    linear_rnn_gradient,
    rnn_backward,
    rnn_step,
    truncated_bptt,
)


@check(rnn_step, see="One step")
def saturated(step, case):
    """stays between -1 and 1, however large the input"""
    B, D, H = case.sizes(3)
    W, b = weights(case, D, H)
    x, h = 1e4 * case.randn(B, D), case.randn(B, H)
    case.equal(step(x, h, W, b), torch.tanh(torch.cat([h, x], dim=1) @ W.T + b), "h_t")


@check(rnn_backward, see="What arrives at a step")
def one_loss(backward, case):
    """lets the loss of one step reach all inputs up to that step, and none after it"""
    B, T, D, H = case.sizes(4, low=4)
    W, b = weights(case, D, H)
    X, h_0, seen = case.randn(B, T, D), case.randn(B, H), torch.zeros(B, T, H).double()
    seen[:, T // 2] = case.randn(B, H)
    outputs = torch_rnn(W, b)(X, h_0[None])[0].detach()
    expected = torch_gradients(seen, X, W, b, h_0)
    given = four(case, backward(seen, outputs, X, W, h_0), expected)
    case.equal(given[0], expected[0], "∂L/∂X")
    case.equal(given[3], expected[3], "∂L/∂h_0")


@check(rnn_backward, weight=2, see="One weight, T places")
def finite_differences(backward, case):
    """gives W the slope of the loss, measured by moving W a little"""
    B, T, D, H = case.sizes(4, low=3)
    W, b = weights(case, D, H)
    X, h_0, seen = case.randn(B, T, D), case.randn(B, H), case.randn(B, T, H)
    expected = torch.zeros_like(W)
    for index in range(W.numel()):
        step = 1e-5 * torch.eye(W.numel(), dtype=W.dtype)[index].view_as(W)
        losses = [(seen * torch_rnn(V, b)(X, h_0[None])[0]).sum() for V in (W + step, W - step)]
        expected.view(-1)[index] = (losses[0] - losses[1]).item() / 2e-5
    outputs = torch_rnn(W, b)(X, h_0[None])[0].detach()
    given = four(case, backward(seen, outputs, X, W, h_0), (X, W, b, h_0))
    case.equal(given[1], expected, "∂L/∂W", rtol=1e-4, atol=1e-5)


@check(truncated_bptt, see="The state goes on, the gradient stops")
def longer_than_the_sequence(truncated, case):
    """equals full backpropagation when k is more than T"""
    arguments, expected = pieces_case(case, 20, 5)
    given = four(case, truncated(*arguments), expected)
    for gradient, right, name in zip(given, expected, GRADIENTS, strict=True):
        case.equal(gradient, right, name)


@check(gradient_norms, see="How far the gradient reaches")
def very_small(norms, case):
    """is right in proportion where the gradient has almost vanished"""
    B, D, H = case.sizes(3, low=3)
    W, _ = weights(case, D, H)
    seen, outputs = case.randn(B, H), 0.9 + 0.1 * case.rand(B, 12, H)
    g, expected = seen, [seen]
    for t in range(11, 0, -1):
        jacobian = torch.diag_embed(1 - outputs[:, t].square()) @ W[:, :H]  # ∂h_t/∂h_{t-1}
        g = (g[:, None] @ jacobian)[:, 0]
        expected.append(g)
    expected = torch.stack(expected[::-1], dim=1).norm(dim=2)
    result = norms(seen, outputs, W)
    case.shape(result, (B, 12), "‖∂ℓ_T/∂h_t‖")
    case.equal(result / expected, torch.ones(B, 12), "‖∂ℓ_T/∂h_t‖ over its right value")


@check(linear_rnn_gradient, see="Without tanh: powers of a matrix")
def shift(gradient, case):
    """dies out after H steps when W_hh only passes each unit's value to the next unit"""
    (H,) = case.sizes(1, low=4)
    W = torch.diag_embed(1 + case.rand(H - 1), offset=-1)  # every eigenvalue is zero
    expected = torch.zeros(H, H, dtype=torch.float64)
    expected[-1, 0] = W.diagonal(-1).prod()
    case.equal(gradient(W, H - 1), expected, "∂h_T/∂h_0 for T = H-1")
    case.equal(gradient(W, H), torch.zeros(H, H), "∂h_T/∂h_0 for T = H")


@check(clip_grad_norm, see="One norm for all parameters")
def one_parameter(clip, case):
    """agrees with torch for a single gradient, and for one whose entries are all small"""
    gradients = [case.randn(5, 7)]
    demand_clipped(case, clip(gradients, 0.75), gradients, 0.75)
    gradients = [0.1 * case.randn(40, 30)]
    demand_clipped(case, clip(gradients, 0.5), gradients, 0.5)


@check(clip_grad_norm, see="One norm for all parameters")
def each_short_but_not_together(clip, case):
    """clips gradients that are short one by one, but too long together"""
    gradients = [gradient / gradient.norm() for gradient in gradients_of(case)]
    demand_clipped(case, clip(gradients, 1.25), gradients, 1.25)


@check(clip_grad_norm_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "C")
