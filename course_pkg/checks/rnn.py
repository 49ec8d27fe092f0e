"""Checks of rnn. Oracles: torch.nn.RNNCell, RNN, autograd, clip_grad_norm_, matrix_power."""

import torch
from torch import Tensor, nn

from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.checking.rules.rules import RNN, forbid
from course_pkg.rnn import (
    clip_grad_norm,
    clip_grad_norm_fault,
    gradient_norms,
    linear_rnn_gradient,
    rnn_backward,
    rnn_forward,
    rnn_step,
    truncated_bptt,
)

forbid(rnn_step, RNN)
GRADIENTS = ("∂L/∂X", "∂L/∂W", "∂L/∂b", "∂L/∂h_0")


def weights(case: Case, D: int, H: int) -> tuple[Tensor, Tensor]:
    """Draw W and b of a cell."""
    return case.randn(H, H + D) / H**0.5, case.randn(H)


def torch_rnn(W: Tensor, b: Tensor) -> nn.RNN:
    """Make torch's RNN with our fused weights."""
    H = len(b)
    rnn = nn.RNN(W.shape[1] - H, H, batch_first=True).double()
    parts = [W[:, :H], W[:, H:], b, torch.zeros_like(b)]
    names = ["weight_hh_l0", "weight_ih_l0", "bias_hh_l0", "bias_ih_l0"]
    rnn.load_state_dict(dict(zip(names, parts, strict=True)))
    return rnn


def torch_gradients(
    grad_outputs: Tensor, X: Tensor, W: Tensor, b: Tensor, h_0: Tensor
) -> tuple[Tensor, ...]:
    """Let autograd go back through torch's RNN; gradients of X, W, b and h_0."""
    rnn = torch_rnn(W, b)
    X, h_0 = X.clone().requires_grad_(), h_0.clone().requires_grad_()
    rnn(X, h_0[None])[0].backward(grad_outputs)
    grad_W = torch.cat([rnn.weight_hh_l0.grad, rnn.weight_ih_l0.grad], dim=1)
    return X.grad, grad_W, rnn.bias_hh_l0.grad, h_0.grad


def four(case: Case, result: object, like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Split what a backward pass returns into its four gradients, and demand their shapes."""
    gradients = case.unpack(result, *GRADIENTS)
    for gradient, tensor, name in zip(gradients, like, GRADIENTS, strict=True):
        case.shape(gradient, tuple(tensor.shape), name)
    return gradients


def backward_case(case: Case, low: int = 3) -> tuple[tuple, tuple]:
    """Draw the arguments of `rnn_backward`, and find the gradients that it should return."""
    B, T, D, H = case.sizes(4, low=low)
    W, b = weights(case, D, H)
    X, h_0, seen = case.randn(B, T, D), case.randn(B, H), case.randn(B, T, H)
    outputs = torch_rnn(W, b)(X, h_0[None])[0].detach()
    return (seen, outputs, X, W, h_0), torch_gradients(seen, X, W, b, h_0)


@check(rnn_step, weight=2, see="One step")
def values(step, case):
    """agrees with torch.nn.RNNCell"""
    B, D, H = case.sizes(3)
    W, b = weights(case, D, H)
    x, h = case.randn(B, D), case.randn(B, H)
    expected = torch_rnn(W, b)(x[:, None], h[None])[0][:, 0]
    case.equal(step(x, h, W, b), expected, "h_t")


@check(rnn_step, see="Columns for h, columns for x")
def input_alone(step, case):
    """depends on x_t alone when the columns of W for h are zero"""
    B, D, H = case.sizes(3)
    W, b = weights(case, D, H)
    W = torch.cat([torch.zeros(H, H), W[:, H:]], dim=1)
    x = case.randn(B, D)
    h_t = step(x, case.randn(B, H), W, b)
    case.equal(h_t, torch.tanh(x @ W[:, H:].T + b), "h_t")


@check(rnn_step, see="One step")
def one_sequence(step, case):
    """keeps the axis of the batch when there is one sequence"""
    D, H = case.sizes(2)
    W, b = weights(case, D, H)
    x, h = case.randn(1, D), case.randn(1, H)
    case.equal(step(x, h, W, b), torch.tanh(torch.cat([h, x], dim=1) @ W.T + b), "h_t")


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


@check(rnn_forward, weight=3, see="The same step, T times")
def values(forward, case):
    """agrees with torch.nn.RNN"""
    B, T, D, H = case.sizes(4, low=3)
    W, b = weights(case, D, H)
    X, h_0 = case.randn(B, T, D), case.randn(B, H)
    expected, _ = torch_rnn(W, b)(X, h_0[None])
    case.equal(forward(X, W, b, h_0), expected, "outputs")


@check(rnn_forward, see="The same step, T times")
def from_zero(forward, case):
    """starts from h_0 = 0 when no state is given"""
    B, T, D, H = case.sizes(4, low=3)
    W, b = weights(case, D, H)
    X = case.randn(B, T, D)
    case.equal(forward(X, W, b), torch_rnn(W, b)(X)[0], "outputs")


@check(rnn_forward, see="The same step, T times")
def continues(forward, case):
    """gives the same when a sequence is cut in two and the state carried over"""
    B, T, D, H = case.sizes(4, low=3)
    W, b = weights(case, D, H)
    X = case.randn(B, 2 * T, D)
    expected, _ = torch_rnn(W, b)(X)
    first = forward(X[:, :T], W, b)
    case.shape(first, (B, T, H), "outputs")
    case.equal(forward(X[:, T:], W, b, first[:, -1]), expected[:, T:], "outputs of the second half")


@check(rnn_forward, weight=2, see="The same step, T times")
def gradients(forward, case):
    """lets gradients through all outputs, as torch.nn.RNN does"""
    B, T, D, H = case.sizes(4, low=3)
    W, b = weights(case, D, H)
    X, h_0, seen = case.randn(B, T, D), case.randn(B, H), case.randn(B, T, H)
    expected = torch_gradients(seen, X, W, b, h_0)
    inputs = [tensor.requires_grad_() for tensor in (X, W, b, h_0)]
    outputs = forward(X, W, b, h_0)
    case.shape(outputs, (B, T, H), "outputs")
    case.trains(outputs, "outputs")
    outputs.backward(seen)
    for name, tensor, gradient in zip(("X", "W", "b", "h_0"), inputs, expected, strict=True):
        case.gradient(tensor, gradient, name)


@check(rnn_forward, see="The same step, T times")
def starts_afresh(forward, case):
    """gives the same when called twice"""
    B, T, D, H = case.sizes(4, low=3)
    W, b = weights(case, D, H)
    X = case.randn(B, T, D)
    first = forward(X, W, b)
    case.shape(first, (B, T, H), "outputs of the first call")
    case.again(forward(X, W, b), first, "outputs of the second call")


@check(rnn_forward, see="The same step, T times")
def as_many_steps(forward, case):
    """goes from step to step, not from sequence to sequence, when there are as many of both"""
    B, D, H = case.sizes(3, low=3)
    W, b = weights(case, D, H)
    X = case.randn(B, B, D)
    case.equal(forward(X, W, b), torch_rnn(W, b)(X)[0], "outputs")


@check(rnn_forward, see="The same step, T times")
def one_step(forward, case):
    """agrees with torch.nn.RNN for sequences of one step, and for a batch of one"""
    B, T, D, H = case.sizes(4, low=3)
    W, b = weights(case, D, H)
    for name, X in (("one step", case.randn(B, 1, D)), ("one sequence", case.randn(1, T, D))):
        case.equal(forward(X, W, b), torch_rnn(W, b)(X)[0], f"outputs for {name}")


@check(rnn_backward, see="Backpropagation through time", single={"H": 2})
def last_step(backward, case):
    """for T = 1, is the chain rule through one tanh and one product"""
    B, D, H = case.sizes(3, low=3)
    W, b = weights(case, D, H)
    X, h_0, seen = case.randn(B, 1, D), case.randn(B, H), case.randn(B, 1, H)
    outputs = torch.tanh(torch.cat([h_0, X[:, 0]], dim=1) @ W.T + b)[:, None]
    expected = torch_gradients(seen, X, W, b, h_0)
    given = four(case, backward(seen, outputs, X, W, h_0), expected)
    for gradient, right, name in zip(given, expected, GRADIENTS, strict=True):
        case.equal(gradient, right, name)


@check(rnn_backward, weight=2, see="What arrives at a step")
def inputs(backward, case):
    """gives X the gradient that autograd finds through torch.nn.RNN"""
    arguments, expected = backward_case(case)
    case.equal(four(case, backward(*arguments), expected)[0], expected[0], "∂L/∂X")


@check(rnn_backward, weight=2, see="One weight, T places")
def shared_weights(backward, case):
    """gives W and b the gradients that autograd finds: sums over steps and sequences"""
    arguments, expected = backward_case(case)
    _, grad_W, grad_b, _ = four(case, backward(*arguments), expected)
    case.equal(grad_b, expected[2], "∂L/∂b")
    case.equal(grad_W, expected[1], "∂L/∂W")


@check(rnn_backward, see="Backpropagation through time")
def initial_state(backward, case):
    """gives h_0 the gradient that autograd finds, through all T steps"""
    arguments, expected = backward_case(case)
    case.equal(four(case, backward(*arguments), expected)[3], expected[3], "∂L/∂h_0")


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


def pieces_case(case: Case, k: int, T: int) -> tuple[tuple, tuple]:
    """Draw the arguments of `truncated_bptt`, and let autograd find what it should return."""
    B, D, H = case.sizes(3, low=3)
    W, b = weights(case, D, H)
    X, h_0, seen = case.randn(B, T, D), case.randn(B, H), case.randn(B, T, H)
    outputs = torch_rnn(W, b)(X, h_0[None])[0].detach()
    grad_X, grad_W, grad_b, grad_h_0 = [], 0, 0, None
    for start in range(0, T, k):
        piece = slice(start, start + k)
        h = outputs[:, start - 1] if start else h_0
        grads = torch_gradients(seen[:, piece], X[:, piece], W, b, h)
        grad_X.append(grads[0])
        grad_W, grad_b = grad_W + grads[1], grad_b + grads[2]
        grad_h_0 = grads[3] if start == 0 else grad_h_0
    return (seen, X, W, b, k, h_0), (torch.cat(grad_X, dim=1), grad_W, grad_b, grad_h_0)


@check(truncated_bptt, see="The state goes on, the gradient stops", single={"B": 0, "H": 2})
def nothing_to_cut(truncated, case):
    """equals full backpropagation when k = T"""
    arguments, expected = pieces_case(case, 6, 6)
    given = four(case, truncated(*arguments), expected)
    for gradient, right, name in zip(given, expected, GRADIENTS, strict=True):
        case.equal(gradient, right, name)


@check(truncated_bptt, weight=2, see="The state goes on, the gradient stops")
def cut_gradient(truncated, case):
    """gives each x_t the gradient of its own piece alone"""
    arguments, expected = pieces_case(case, 3, 9)
    case.equal(four(case, truncated(*arguments), expected)[0], expected[0], "∂L/∂X")


@check(truncated_bptt, weight=2, see="The state goes on, the gradient stops")
def sums_over_pieces(truncated, case):
    """adds up the gradients of W and b over the pieces"""
    arguments, expected = pieces_case(case, 3, 9)
    _, grad_W, grad_b, _ = four(case, truncated(*arguments), expected)
    case.equal(grad_b, expected[2], "∂L/∂b")
    case.equal(grad_W, expected[1], "∂L/∂W")


@check(truncated_bptt, see="The state goes on, the gradient stops")
def shorter_last_piece(truncated, case):
    """accepts a last piece that is shorter than k"""
    arguments, expected = pieces_case(case, 4, 9)
    grad_X, grad_W, *_ = four(case, truncated(*arguments), expected)
    case.equal(grad_X, expected[0], "∂L/∂X")
    case.equal(grad_W, expected[1], "∂L/∂W")


@check(truncated_bptt, see="The state goes on, the gradient stops")
def initial_state(truncated, case):
    """gives h_0 the gradient of the first piece, and starts from zeros when none is given"""
    (seen, X, W, b, k, h_0), expected = pieces_case(case, 2, 6)
    case.equal(four(case, truncated(seen, X, W, b, k, h_0), expected)[3], expected[3], "∂L/∂h_0")
    zero = torch.zeros_like(h_0)
    expected = torch_gradients(seen[:, :k], X[:, :k], W, b, zero)[3]
    given = four(case, truncated(seen, X, W, b, k), (X, W, b, h_0))
    case.equal(given[3], expected, "∂L/∂h_0 at zero")


@check(truncated_bptt, see="The state goes on, the gradient stops")
def every_step(truncated, case):
    """lets nothing pass from step to step when k = 1, but carries the state"""
    arguments, expected = pieces_case(case, 1, 7)
    given = four(case, truncated(*arguments), expected)
    for gradient, right, name in zip(given, expected, GRADIENTS, strict=True):
        case.equal(gradient, right, name)


@check(truncated_bptt, weight=0.5, see="The state goes on, the gradient stops")
def refuses(truncated, case):
    """raises ValueError for pieces without a step"""
    (seen, X, W, b, _, h_0), _ = pieces_case(case, 2, 6)
    case.raises(ValueError, lambda: truncated(seen, X, W, b, 0, h_0), "k is 0")
    case.raises(ValueError, lambda: truncated(seen, X, W, b, -2, h_0), "k is -2")


def norms_case(case: Case, low: int = 3) -> tuple[tuple, Tensor]:
    """Draw the arguments of `gradient_norms`, and let autograd find what it should return."""
    B, T, D, H = case.sizes(4, low=low)
    W, b = weights(case, D, H)
    X, seen = case.randn(B, T, D), case.randn(B, H)
    h, states = torch.zeros(B, H, dtype=torch.float64, requires_grad=True), []
    for x in X.unbind(dim=1):
        h = torch.tanh(torch.cat([h, x], dim=1) @ W.T + b)
        states.append(h)
    gradients = torch.autograd.grad(h, states, seen)
    outputs = torch.stack(states, dim=1).detach()
    return (seen, outputs, W), torch.stack(gradients, dim=1).norm(dim=2)


@check(gradient_norms, weight=3, see="How far the gradient reaches")
def values(norms, case):
    """agrees with the norms of the gradients that autograd finds"""
    arguments, expected = norms_case(case)
    case.equal(norms(*arguments), expected, "‖∂ℓ_T/∂h_t‖")


@check(gradient_norms, see="How far the gradient reaches", single="B")
def last_state(norms, case):
    """is the norm of what was given at t = T"""
    arguments, expected = norms_case(case)
    result = norms(*arguments)
    case.shape(result, tuple(expected.shape), "‖∂ℓ_T/∂h_t‖")
    case.equal(result[:, -1], arguments[0].norm(dim=1), "‖∂ℓ_T/∂h_T‖")


@check(gradient_norms, see="How far the gradient reaches")
def rotation(norms, case):
    """stays the same at every step when W_hh is a rotation and tanh has slope 1"""
    B, T, D, H = case.sizes(4, low=3)
    W = torch.cat([torch.linalg.qr(case.randn(H, H)).Q, case.randn(H, D)], dim=1)
    seen = case.randn(B, H)
    result = norms(seen, torch.zeros(B, T, H, dtype=torch.float64), W)
    case.equal(result, seen.norm(dim=1, keepdim=True).expand(B, T), "‖∂ℓ_T/∂h_t‖")


@check(gradient_norms, see="How far the gradient reaches")
def one_step(norms, case):
    """is the norm of what was given for sequences of one step"""
    B, D, H = case.sizes(3, low=3)
    W, _ = weights(case, D, H)
    seen, outputs = case.randn(B, H), case.rand(B, 1, H)
    case.equal(norms(seen, outputs, W), seen.norm(dim=1, keepdim=True), "‖∂ℓ_T/∂h_t‖")


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


@check(linear_rnn_gradient, weight=2, see="Without tanh: powers of a matrix", single="H")
def values(gradient, case):
    """agrees with torch.linalg.matrix_power"""
    (H,) = case.sizes(1, low=3)
    W = case.randn(H, H) / H**0.5
    case.equal(gradient(W, 6), torch.linalg.matrix_power(W, 6), "∂h_T/∂h_0")


@check(linear_rnn_gradient, see="Without tanh: powers of a matrix")
def autograd(gradient, case):
    """agrees with autograd through h_t = W_hh h_{t-1} + W_xh x_t"""
    D, H = case.sizes(2, low=3)
    W, W_x, X = case.randn(H, H) / H**0.5, case.randn(H, D), case.randn(5, D)

    def last(h):
        for x in X:
            h = W @ h + W_x @ x
        return h

    expected = torch.autograd.functional.jacobian(last, case.randn(H))
    case.equal(gradient(W, 5), expected, "∂h_T/∂h_0")


@check(linear_rnn_gradient, see="Without tanh: powers of a matrix")
def one_step_more(gradient, case):
    """is the identity at T = 0, and gains a factor W_hh with every step"""
    (H,) = case.sizes(1, low=3)
    W = case.randn(H, H) / H**0.5
    expected = torch.eye(H, dtype=W.dtype)
    for T in range(4):
        case.equal(gradient(W, T), expected, f"∂h_{T}/∂h_0")
        expected = W @ expected


@check(linear_rnn_gradient, see="Without tanh: powers of a matrix")
def refuses(gradient, case):
    """raises ValueError for a negative number of steps"""
    (H,) = case.sizes(1, low=3)
    case.raises(ValueError, lambda: gradient(case.randn(H, H), -1), "T is -1")


def gradients_of(case: Case) -> list[Tensor]:
    """Draw the gradients of four parameters of different shapes and sizes."""
    A, B, C = case.sizes(3, low=3)
    shapes = [(A, B), (B,), (C, A, B), ()]
    return [scale * case.randn(*shape) for scale, shape in zip((1, 5, 0.2, 3), shapes, strict=True)]


def torch_clip(gradients: list[Tensor], max_norm: float) -> tuple[list[Tensor], Tensor]:
    """Let torch clip copies of the gradients."""
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    return [parameter.grad for parameter in parameters], norm


def demand_clipped(case: Case, result: object, gradients: list[Tensor], max_norm: float) -> None:
    """Demand what torch's clipping gives."""
    expected, expected_norm = torch_clip(gradients, max_norm)
    clipped, norm = case.unpack(result, "gradients", "norm")
    clipped = case.unpack(clipped, *(f"gradient {n}" for n in range(len(expected))))
    for n, (given, right) in enumerate(zip(clipped, expected, strict=True)):
        case.equal(given, right, f"gradient {n}")
    case.equal(norm, expected_norm, "norm")


@check(clip_grad_norm, weight=3, see="One norm for all parameters")
def too_long(clip, case):
    """agrees with torch's clip_grad_norm_ when the gradient is too long"""
    gradients = gradients_of(case)
    demand_clipped(case, clip(gradients, 1.5), gradients, 1.5)


@check(clip_grad_norm, see="One norm for all parameters")
def short_enough(clip, case):
    """leaves a gradient that is short enough as it is"""
    gradients = gradients_of(case)
    demand_clipped(case, clip(gradients, 1000.0), gradients, 1000.0)
    longest = 1.25 * torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    demand_clipped(case, clip(gradients, longest), gradients, longest)


@check(clip_grad_norm, see="One norm for all parameters")
def same_direction(clip, case):
    """changes the length of the gradient to max_norm, but not its direction"""
    gradients = gradients_of(case)
    clipped, _ = case.unpack(clip(gradients, 0.5), "gradients", "norm")
    clipped = case.unpack(clipped, *(f"gradient {n}" for n in range(len(gradients))))
    for n, (given, gradient) in enumerate(zip(clipped, gradients, strict=True)):
        case.shape(given, tuple(gradient.shape), f"gradient {n}")
    before = torch.cat([gradient.flatten() for gradient in gradients])
    after = torch.cat([gradient.flatten() for gradient in clipped])
    case.equal(after, before * (0.5 / before.norm()), "all gradients, joined,")


@check(clip_grad_norm, weight=0.5, see="One norm for all parameters")
def refuses(clip, case):
    """raises ValueError when max_norm is zero or less"""
    gradients = gradients_of(case)
    case.raises(ValueError, lambda: clip(gradients, 0.0), "max_norm is 0")
    case.raises(ValueError, lambda: clip(gradients, -1.5), "max_norm is -1.5")


@check(clip_grad_norm, see="One norm for all parameters")
def transposed(clip, case):
    """accepts gradients that are transposed views of others"""
    gradients = [case.randn(4, 6).T, case.randn(3, 5, 2).transpose(0, 2)]
    demand_clipped(case, clip(gradients, 1.75), gradients, 1.75)


@check(clip_grad_norm, see="One norm for all parameters")
def zero(clip, case):
    """gives zeros, not NaN, where all gradients are zero, and a norm of zero"""
    gradients = [torch.zeros_like(gradient) for gradient in gradients_of(case)]
    demand_clipped(case, clip(gradients, 1.0), gradients, 1.0)
    others = gradients_of(case)
    demand_clipped(case, clip(others, 2.5), others, 2.5)


def torchs_clipping(gradients: list[Tensor], max_norm: float) -> tuple[list[Tensor], Tensor]:
    """Let torch clip, if the arguments are such as `clip_grad_norm` takes."""
    if not isinstance(gradients, list) or not gradients:
        raise TypeError("the gradients should be a list of tensors")
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive, got {max_norm}")
    return torch_clip(gradients, max_norm)


@check(clip_grad_norm_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "clip_grad_norm", torchs_clipping)
