"""Hidden checks of rnn: gradients, default states, extreme lengths and values, errors."""

import torch

from course_pkg.checking.registry import check
from course_pkg.checks.rnn import (
    GRADIENTS,
    demand_clipped,
    four,
    gradients_of,
    norms_case,
    pieces_case,
    torch_gradients,
    torch_rnn,
    weights,
)
from course_pkg.rnn import (
    clip_grad_norm,
    gradient_norms,
    linear_rnn_gradient,
    rnn_backward,
    rnn_forward,
    rnn_step,
    truncated_bptt,
)


@check(rnn_step, see="One step")
def gradients(step, case):
    """passes the same gradients back as torch.nn.RNNCell"""
    B, D, H = case.sizes(3)
    W, b = weights(case, D, H)
    x, h, seen = case.randn(B, D), case.randn(B, H), case.randn(B, H)
    expected_x, *expected = torch_gradients(seen[:, None], x[:, None], W, b, h)
    inputs = [tensor.requires_grad_() for tensor in (x, W, b, h)]
    h_t = step(x, h, W, b)
    case.shape(h_t, (B, H), "h_t")
    case.trains(h_t, "h_t")
    h_t.backward(seen)
    expected = [expected_x[:, 0], *expected]
    for name, tensor, gradient in zip("xWbh", inputs, expected, strict=True):
        case.gradient(tensor, gradient, name)


@check(rnn_step, see="One step")
def one_sequence(step, case):
    """keeps the axis of the batch when there is one sequence"""
    D, H = case.sizes(2)
    W, b = weights(case, D, H)
    x, h = case.randn(1, D), case.randn(1, H)
    case.equal(step(x, h, W, b), torch.tanh(torch.cat([h, x], dim=1) @ W.T + b), "h_t")


@check(rnn_step, see="One step")
def saturated(step, case):
    """stays between -1 and 1, however large the input"""
    B, D, H = case.sizes(3)
    W, b = weights(case, D, H)
    x, h = 1e4 * case.randn(B, D), case.randn(B, H)
    case.equal(step(x, h, W, b), torch.tanh(torch.cat([h, x], dim=1) @ W.T + b), "h_t")


@check(rnn_forward, see="The same step, T times")
def one_step(forward, case):
    """agrees with torch.nn.RNN for sequences of one step, and for a batch of one"""
    B, T, D, H = case.sizes(4, low=3)
    W, b = weights(case, D, H)
    for name, X in (("one step", case.randn(B, 1, D)), ("one sequence", case.randn(1, T, D))):
        case.equal(forward(X, W, b), torch_rnn(W, b)(X)[0], f"outputs for {name}")


@check(rnn_forward, see="The same step, T times")
def starts_afresh(forward, case):
    """gives the same when called twice"""
    B, T, D, H = case.sizes(4, low=3)
    W, b = weights(case, D, H)
    X = case.randn(B, T, D)
    expected, _ = torch_rnn(W, b)(X)
    case.equal(forward(X, W, b), expected, "outputs of the first call")
    case.equal(forward(X, W, b), expected, "outputs of the second call")


@check(rnn_backward, see="Backpropagation through time")
def from_zero(backward, case):
    """starts from h_0 = 0 when no state is given"""
    B, T, D, H = case.sizes(4, low=3)
    W, b = weights(case, D, H)
    X, seen = case.randn(B, T, D), case.randn(B, T, H)
    outputs = torch_rnn(W, b)(X)[0].detach()
    expected = torch_gradients(seen, X, W, b, torch.zeros(B, H, dtype=torch.float64))
    given = four(case, backward(seen, outputs, X, W), expected)
    for gradient, right, name in zip(given, expected, GRADIENTS, strict=True):
        case.equal(gradient, right, name)


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
def every_step(truncated, case):
    """lets nothing pass from step to step when k = 1, but carries the state"""
    arguments, expected = pieces_case(case, 1, 7)
    given = four(case, truncated(*arguments), expected)
    for gradient, right, name in zip(given, expected, GRADIENTS, strict=True):
        case.equal(gradient, right, name)


@check(truncated_bptt, see="The state goes on, the gradient stops")
def longer_than_the_sequence(truncated, case):
    """equals full backpropagation when k is more than T"""
    arguments, expected = pieces_case(case, 20, 5)
    given = four(case, truncated(*arguments), expected)
    for gradient, right, name in zip(given, expected, GRADIENTS, strict=True):
        case.equal(gradient, right, name)


@check(truncated_bptt, weight=0.5, see="The state goes on, the gradient stops")
def refuses(truncated, case):
    """raises ValueError for pieces without a step"""
    (seen, X, W, b, _, h_0), _ = pieces_case(case, 2, 6)
    case.raises(ValueError, lambda: truncated(seen, X, W, b, 0, h_0), "k is 0")
    case.raises(ValueError, lambda: truncated(seen, X, W, b, -2, h_0), "k is -2")


@check(gradient_norms, see="How far the gradient reaches")
def one_step(norms, case):
    """is the norm of what was given for sequences of one step"""
    B, D, H = case.sizes(3, low=3)
    W, _ = weights(case, D, H)
    seen, outputs = case.randn(B, H), case.rand(B, 1, H)
    case.equal(norms(seen, outputs, W), seen.norm(dim=1, keepdim=True), "‖∂ℓ_T/∂h_t‖")


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


@check(gradient_norms, see="How far the gradient reaches")
def dead_end(norms, case):
    """is zero before a step whose units are all saturated, and only there"""
    (seen, outputs, W), _ = norms_case(case, low=5)
    t = outputs.shape[1] // 2
    outputs[:, t] = outputs[:, t].sign()
    result = norms(seen, outputs, W)
    case.shape(result, tuple(outputs.shape[:2]), "‖∂ℓ_T/∂h_t‖")
    case.that(
        (result[:, t:] > 0).all(), "The norm should not be zero after the saturated step, yours is."
    )
    case.equal(result[:, :t], torch.zeros(len(seen), t), "‖∂ℓ_T/∂h_t‖ before saturation")


@check(linear_rnn_gradient, see="Without tanh: powers of a matrix")
def shift(gradient, case):
    """dies out after H steps when W_hh only passes each unit's value to the next unit"""
    (H,) = case.sizes(1, low=4)
    W = torch.diag_embed(1 + case.rand(H - 1), offset=-1)  # every eigenvalue is zero
    expected = torch.zeros(H, H, dtype=torch.float64)
    expected[-1, 0] = W.diagonal(-1).prod()
    case.equal(gradient(W, H - 1), expected, "∂h_T/∂h_0 for T = H-1")
    case.equal(gradient(W, H), torch.zeros(H, H), "∂h_T/∂h_0 for T = H")


@check(linear_rnn_gradient, see="Without tanh: powers of a matrix")
def refuses(gradient, case):
    """raises ValueError for a negative number of steps"""
    (H,) = case.sizes(1, low=3)
    case.raises(ValueError, lambda: gradient(case.randn(H, H), -1), "T is -1")


@check(clip_grad_norm, see="One norm for all parameters")
def one_parameter(clip, case):
    """agrees with torch for a single gradient, and for one whose entries are all small"""
    gradients = [case.randn(5, 7)]
    demand_clipped(case, clip(gradients, 0.75), gradients, 0.75)
    gradients = [0.1 * case.randn(40, 30)]
    demand_clipped(case, clip(gradients, 0.5), gradients, 0.5)


@check(clip_grad_norm, see="One norm for all parameters")
def transposed(clip, case):
    """accepts gradients that are transposed views of others"""
    gradients = [case.randn(4, 6).T, case.randn(3, 5, 2).transpose(0, 2)]
    demand_clipped(case, clip(gradients, 1.75), gradients, 1.75)


@check(clip_grad_norm, see="One norm for all parameters")
def each_short_but_not_together(clip, case):
    """clips gradients that are short one by one, but too long together"""
    gradients = [gradient / gradient.norm() for gradient in gradients_of(case)]
    demand_clipped(case, clip(gradients, 1.25), gradients, 1.25)


@check(clip_grad_norm, see="One norm for all parameters")
def zero(clip, case):
    """gives zeros, not NaN, where all gradients are zero, and a norm of zero"""
    gradients = [torch.zeros_like(gradient) for gradient in gradients_of(case)]
    demand_clipped(case, clip(gradients, 1.0), gradients, 1.0)
    others = gradients_of(case)
    demand_clipped(case, clip(others, 2.5), others, 2.5)


@check(clip_grad_norm, weight=0.5, see="One norm for all parameters")
def refuses(clip, case):
    """raises ValueError when max_norm is zero or less"""
    gradients = gradients_of(case)
    case.raises(ValueError, lambda: clip(gradients, 0.0), "max_norm is 0")
    case.raises(ValueError, lambda: clip(gradients, -1.5), "max_norm is -1.5")
