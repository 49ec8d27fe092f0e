"""Hidden checks of positions: gradients, many positions and one."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.positions import (
    rotary_oracle,
    rotary_pair,
    rotated,
    shaw_inputs,
    shaw_loop,
)
from course_pkg.positions import (
    RotaryAttention,
    interpolate_positions,
    linear_positions,
    rope_rotate,
    rope_rotate_fault,
    shaw_relative_attention,
)


@check(linear_positions, see="Number the positions")
def many(linear, case):
    """counts as far as T, however large"""
    (D,) = case.sizes(1)
    expected = torch.arange(300.0)[:, None].repeat(1, D)
    case.equal(linear(300, D), expected, "P")
    case.equal(linear(300, D, True), expected / 299, "P, normalised,")


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


@check(RotaryAttention, see="Attention with rotated queries and keys")
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


@check(rope_rotate_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "A")
