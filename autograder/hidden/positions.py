"""Hidden checks of positions: gradients, single positions, masks, errors."""

import torch
from torch.nn import functional

from course_pkg.checking.registry import check
from course_pkg.checks.positions import (
    attended,
    learned_pair,
    rotary_oracle,
    rotary_pair,
    rotated,
    shaw_inputs,
    shaw_loop,
)
from course_pkg.positions import (
    LearnedPositions,
    RotaryAttention,
    interpolate_positions,
    linear_positions,
    rope_rotate,
    shaw_relative_attention,
    sinusoidal_positions,
)


@check(linear_positions, see="Number the positions")
def many(linear, case):
    """counts as far as T, however large"""
    (D,) = case.sizes(1)
    expected = torch.arange(300.0)[:, None].repeat(1, D)
    case.equal(linear(300, D), expected, "P")
    case.equal(linear(300, D, True), expected / 299, "P, normalised,")


@check(sinusoidal_positions, see="Clocks that run at different speeds")
def odd(sinusoidal, case):
    """raises ValueError when D is odd"""
    T, half = case.sizes(2, low=3)
    case.raises(ValueError, lambda: sinusoidal(T, 2 * half + 1), "D is odd")


@check(LearnedPositions, see="Learn a table")
def gradients(learned, case):
    """passes gradients to the rows that are used, and only to them"""
    B, T, D = case.sizes(3, low=3)
    module, P = learned_pair(case, learned, T + 2, D)
    grad_Y = case.randn(B, T, D)
    Y = module(torch.zeros(B, T, D, dtype=P.dtype))
    case.trains(Y, "Y")
    Y.backward(grad_Y)
    expected = torch.cat([grad_Y.sum(dim=0), torch.zeros(2, D)])
    case.gradient(dict(module.named_parameters())["P"], expected, "P")


@check(shaw_relative_attention, see="Keys that say how far away they are")
def gradients(attend, case):
    """passes gradients to both tables"""
    k, *sizes = case.sizes(6)
    ours = shaw_inputs(case, *sizes, k)
    theirs = [tensor.clone() for tensor in ours]
    for tensor in (*ours, *theirs):
        tensor.requires_grad_()
    Y, _ = case.unpack(attend(*ours), "Y", "A")
    case.trains(Y, "Y")
    seen = case.randn(*theirs[2].shape)
    expected, _ = shaw_loop(*theirs)
    case.shape(Y, tuple(expected.shape), "Y")
    gradients = torch.autograd.grad(expected, theirs, seen)
    Y.backward(seen)
    names = ("Q", "K", "V", "R_K", "R_V")
    for name, tensor, gradient in zip(names, ours, gradients, strict=True):
        case.gradient(tensor, gradient, name)


@check(shaw_relative_attention, see="Keys that say how far away they are")
def short_and_narrow(attend, case):
    """handles a single position, a table of one row, and input without a batch"""
    D_Q, D_V, T = case.sizes(3)
    for k, length in ((3, 1), (0, T)):
        inputs = shaw_inputs(case, 1, 1, length, D_Q, D_V, k)
        inputs = [inputs[0][0, 0], inputs[1][0, 0], inputs[2][0, 0], *inputs[3:]]
        attended(case, attend(*inputs), shaw_loop(*inputs))


@check(shaw_relative_attention, see="Keys that say how far away they are")
def nothing_allowed(attend, case):
    """gives zeros where a position may attend to nothing"""
    k, B, H, T, D_Q, D_V = case.sizes(6)
    inputs = shaw_inputs(case, B, H, T, D_Q, D_V, k)
    mask = (torch.arange(T) > 0)[:, None].expand(T, T)  # nothing for the first position
    Y, A = case.unpack(attend(*inputs, mask), "Y", "A")
    expected_Y, expected_A = shaw_loop(*inputs)
    expected_Y[..., 0, :], expected_A[..., 0, :] = 0, 0
    case.equal(A, expected_A, "A")
    case.equal(Y, expected_Y, "Y")


@check(rope_rotate, see="Turn the queries and the keys")
def gradients(rotate, case):
    """turns gradients back"""
    T, half = case.sizes(2, low=3)
    X, seen = case.randn(T, 2 * half).requires_grad_(), case.randn(T, 2 * half)
    (expected,) = torch.autograd.grad(rotated(X), X, seen)
    turned = rotate(X)
    case.shape(turned, tuple(X.shape), "turned X")
    case.trains(turned, "turned X")
    turned.backward(seen.to(turned.dtype))
    case.gradient(X, expected, "X")


@check(rope_rotate, see="Turn the queries and the keys")
def odd(rotate, case):
    """raises ValueError when D_h is odd"""
    T, half = case.sizes(2, low=3)
    X = case.randn(T, 2 * half + 1)
    case.raises(ValueError, lambda: rotate(X), "D_h is odd")


@check(RotaryAttention, see="Attention that turns")
def gradients(rotary, case):
    """passes the right gradients to X and to the weights of queries and values"""
    B, T, H, half = case.sizes(4)
    D = 2 * H * half
    module, weights = rotary_pair(case, rotary, D, H)
    X, seen = case.randn(B, T, D).requires_grad_(), case.randn(B, T, D)
    Y = module(X)
    case.shape(Y, tuple(X.shape), "Y")
    case.trains(Y, "Y")
    inputs = {"X": X, **{name: weights[name].requires_grad_() for name in ("W_Q", "W_V")}}
    expected = torch.autograd.grad(rotary_oracle(X, weights, H), list(inputs.values()), seen)
    Y.backward(seen)
    ours = {**dict(module.named_parameters()), "X": X}
    for name, gradient in zip(inputs, expected, strict=True):
        case.equal(ours[name].grad, gradient, f"gradient of {name}", rtol=1e-3, atol=1e-4)
        case.learns(module)


@check(interpolate_positions, see="Stretch a table")
def one_position(interpolate, case):
    """repeats a table that has one position"""
    T, D = case.sizes(2, low=3)
    P = case.randn(1, D)
    case.equal(interpolate(P, (T,)), P.expand(T, D), "P")


@check(interpolate_positions, see="Stretch a table")
def gradients(interpolate, case):
    """passes gradients to the table"""
    T, D = case.sizes(2, low=3)
    P, seen = case.randn(T, D).requires_grad_(), case.randn(2 * T, D)
    torchs = functional.interpolate(P.T[None], size=2 * T, mode="linear")[0].T
    (expected,) = torch.autograd.grad(torchs, P, seen)
    stretched = interpolate(P, (2 * T,))
    case.shape(stretched, (2 * T, D), "P")
    case.trains(stretched, "the result")
    stretched.backward(seen)
    case.gradient(P, expected, "P")


@check(interpolate_positions, see="Stretch a table")
def refuses(interpolate, case):
    """raises ValueError when size does not fit the table's axes"""
    T, D = case.sizes(2, low=3)
    P = case.randn(T, D)
    case.raises(ValueError, lambda: interpolate(P, (T, D)), "a line gets two sizes")
    grid = case.randn(T, T, D)
    case.raises(ValueError, lambda: interpolate(grid, (T,)), "a grid gets one size")
