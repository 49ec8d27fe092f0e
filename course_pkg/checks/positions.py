"""Checks of positions. Oracles: closed forms, loops, complex numbers, torch's functional."""

import cmath
import math

import torch
from torch import Tensor
from torch.nn import functional

from course_pkg.checking.batched import made
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.positions import (
    LearnedPositions,
    RotaryAttention,
    interpolate_positions,
    linear_positions,
    rope_rotate,
    rope_rotate_fault,
    shaw_relative_attention,
    sinusoidal_positions,
)

ANGLES = {"rtol": 1e-4, "atol": 2e-5}  # for sines of angles that are computed in float32


@check(linear_positions, weight=2, see="Number the positions")
def values(linear, case):
    """gives position t the number t in every feature"""
    T, D = case.sizes(2, low=3)
    case.equal(linear(T, D), torch.outer(torch.arange(T), torch.ones(D)), "P")


@check(linear_positions, weight=2, see="Number the positions")
def normalised(linear, case):
    """runs from 0 to 1 when it is normalised"""
    T, D = case.sizes(2, low=3)
    expected = torch.outer(torch.linspace(0, 1, T), torch.ones(D))
    case.equal(linear(T, D, normalise=True), expected, "P")


@check(linear_positions, see="Number the positions")
def shortest(linear, case):
    """numbers one position 0 and two positions 0 and 1, normalised or not"""
    (D,) = case.sizes(1)
    for T in (1, 2):
        expected = torch.arange(T)[:, None].repeat(1, D).double()
        case.equal(linear(T, D), expected, "P")
        case.equal(linear(T, D, normalise=True), expected, "P, normalised,")


def clocks(T: int, D: int, base: float = 10000.0) -> Tensor:
    """The sinusoidal encoding, entry by entry: e^{i t ω} = cos(t ω) + i sin(t ω)."""
    rows = []
    for t in range(T):
        hands = [cmath.exp(1j * t / base ** (2 * i / D)) for i in range(D // 2)]
        rows.append([part for hand in hands for part in (hand.imag, hand.real)])
    return torch.tensor(rows, dtype=torch.float64)


@check(sinusoidal_positions, weight=3, see="Clocks that run at different speeds", single="T")
def values(sinusoidal, case):
    """agrees with the formula, entry by entry"""
    T, half = case.sizes(2, low=3)
    case.equal(sinusoidal(T, 2 * half), clocks(T, 2 * half), "P", **ANGLES)


@check(sinusoidal_positions, see="Clocks that run at different speeds")
def starts_at_zero(sinusoidal, case):
    """gives position 0 sines of 0 and cosines of 1, alternately"""
    T, half = case.sizes(2, low=3)
    P = sinusoidal(T, 2 * half)
    case.shape(P, (T, 2 * half), "P")
    case.equal(P[0], torch.tensor([0.0, 1.0]).repeat(half), "P[0]", **ANGLES)


@check(sinusoidal_positions, weight=2, see="A step is a rotation")
def turns(sinusoidal, case):
    """turns all pairs by the same angles from P[t] to P[t+k], whatever t is"""
    T, half, k = case.sizes(3, low=3)
    T, D = T + k, 2 * half
    P = sinusoidal(T, D)
    case.shape(P, (T, D), "P")
    P = P.double()
    hands = torch.complex(P[:, 1::2], P[:, ::2])  # (T, D/2)
    omega = torch.tensor([10000.0 ** (-i / half) for i in range(half)], dtype=torch.float64)
    turned = hands[:-k] * torch.polar(torch.ones_like(omega), k * omega)
    expected = torch.stack([turned.imag, turned.real], dim=2).flatten(1)
    case.equal(P[k:], expected, f"P[t+{k}]", **ANGLES)


@check(sinusoidal_positions, see="Clocks that run at different speeds")
def lengths(sinusoidal, case):
    """gives every position a vector of the same length, √(D/2)"""
    T, half = case.sizes(2, low=3)
    P = sinusoidal(T, 2 * half)
    case.shape(P, (T, 2 * half), "P")
    case.equal(P.norm(dim=1), torch.full((T,), math.sqrt(half)), "length of P[t]", **ANGLES)


@check(sinusoidal_positions, see="Clocks that run at different speeds")
def other_bases(sinusoidal, case):
    """accepts another base"""
    T, half = case.sizes(2, low=3)
    case.equal(sinusoidal(T, 2 * half, base=50.0), clocks(T, 2 * half, 50.0), "P", **ANGLES)


@check(sinusoidal_positions, see="Clocks that run at different speeds")
def odd(sinusoidal, case):
    """raises ValueError when D is odd"""
    T, half = case.sizes(2, low=3)
    case.raises(ValueError, lambda: sinusoidal(T, 2 * half + 1), "D is odd")


def table_of(case: Case, module) -> Tensor:
    """Find P among the parameters of a student's LearnedPositions."""
    parameters = dict(module.named_parameters())
    case.that("P" in parameters, "There should be a parameter called P, yours is missing.")
    return parameters["P"]


def learned_pair(case: Case, student, T_max: int, D: int) -> tuple:
    """Make a student's LearnedPositions with a random table, float64, and return both."""
    P = case.randn(T_max, D)
    table_of(case, student(T_max, D))
    module = made(student, {"P": P}, T_max, D)
    return module, P


@check(LearnedPositions, weight=2, see="Learn a table", single="B")
def values(learned, case):
    """adds row t of the table to the vector at position t"""
    B, T, D = case.sizes(3, low=3)
    module, P = learned_pair(case, learned, T + 2, D)
    X = case.randn(B, T, D)
    expected = torch.stack([X[:, t] + P[t] for t in range(T)], dim=1)
    case.equal(module(X), expected, "X + P")


@check(LearnedPositions, see="Learn a table")
def whole_table(learned, case):
    """takes a sequence as long as the table"""
    B, T, D = case.sizes(3, low=3)
    module, P = learned_pair(case, learned, T, D)
    case.equal(module(torch.zeros(B, T, D)), P.expand(B, T, D), "P")


@check(LearnedPositions, weight=2, see="Learn a table")
def refuses(learned, case):
    """raises ValueError for a sequence that is longer than the table"""
    B, T, D = case.sizes(3, low=3)
    module, _ = learned_pair(case, learned, T, D)
    X = case.randn(B, T + 1, D)
    case.raises(ValueError, lambda: module(X), "the sequence is longer than the table")


@check(LearnedPositions, see="Learn a table")
def starts_random(learned, case):
    """draws a fresh table from N(0, 1)"""
    P = table_of(case, learned(150, 80))
    case.shape(P, (150, 80), "P")
    mean, std = P.mean().item(), P.std().item()
    case.that(
        abs(mean) < 0.05 and abs(std - 1) < 0.05,
        f"P should have mean 0 and standard deviation 1, yours has {mean:.3f} and {std:.3f}.",
        P,
    )


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
    case.gradient(table_of(case, module), expected, "P")


def shaw_inputs(case: Case, B: int, H: int, T: int, D_Q: int, D_V: int, k: int) -> list[Tensor]:
    """Draw Q, K, V and both tables."""
    heads = [case.randn(B, H, T, D) for D in (D_Q, D_Q, D_V)]
    return [*heads, case.randn(2 * k + 1, D_Q), case.randn(2 * k + 1, D_V)]


def shaw_loop(Q, K, V, R_K, R_V, mask=None) -> tuple[Tensor, Tensor]:
    """Shaw's attention pair by pair."""
    T, D_Q = Q.shape[-2:]
    k = (len(R_K) - 1) // 2
    Y, A = [], []
    for i in range(T):
        rows = [min(max(j - i, -k), k) + k for j in range(T)]
        scores = [(Q[..., i, :] * (K[..., j, :] + R_K[r])).sum(-1) for j, r in enumerate(rows)]
        weights = (torch.stack(scores, dim=-1) / math.sqrt(D_Q)).exp()
        if mask is not None:
            weights = weights * mask[..., i, :]
        a = weights / weights.sum(-1, keepdim=True)
        A.append(a)
        Y.append(sum(a[..., j, None] * (V[..., j, :] + R_V[r]) for j, r in enumerate(rows)))
    return torch.stack(Y, dim=-2), torch.stack(A, dim=-2)


def attended(case: Case, result: object, expected: tuple[Tensor, Tensor]) -> None:
    """Compare what a student returns with the expected weights and outputs."""
    Y, A = case.unpack(result, "Y", "A")
    case.equal(A, expected[1], "A")
    case.equal(Y, expected[0], "Y")


@check(shaw_relative_attention, weight=3, see="Keys that say how far away they are")
def values(attend, case):
    """agrees with a loop over all pairs of positions"""
    k, B, H, D_Q, D_V = 2, *case.sizes(4)
    inputs = shaw_inputs(case, B, H, 3 * k + 1, D_Q, D_V, k)
    expected_Y, expected_A = shaw_loop(*inputs)
    Y, A = case.unpack(attend(*inputs), "Y", "A")
    case.equal(Y, expected_Y, "Y")  # first: only Y tells whether R_V is read wrongly as well
    case.equal(A, expected_A, "A")


@check(shaw_relative_attention, see="Keys that say how far away they are")
def without_tables(attend, case):
    """is scaled dot-product attention when both tables are zero"""
    k, *sizes = case.sizes(6)
    Q, K, V, R_K, R_V = shaw_inputs(case, *sizes, k)
    Y, _ = case.unpack(attend(Q, K, V, 0 * R_K, 0 * R_V), "Y", "A")
    case.equal(Y, functional.scaled_dot_product_attention(Q, K, V), "Y")


@check(shaw_relative_attention, see="The sign of the distance")
def next_key(attend, case):
    """attends to the next position when row k+1 of R_K fits the queries"""
    k, *sizes = case.sizes(6)
    Q, K, V, R_K, R_V = shaw_inputs(case, *sizes, k)
    Q = Q.abs() + 1
    R_K = torch.zeros_like(R_K)
    R_K[k + 1] = 1e3
    _, A = case.unpack(attend(Q, 0 * K, V, R_K, 0 * R_V), "Y", "A")
    T = Q.shape[-2]
    case.shape(A, (*Q.shape[:-1], T), "A")
    expected = torch.eye(T).roll(1, dims=1)[:-1].expand(*Q.shape[:2], T - 1, T)
    case.equal(A[..., :-1, :], expected, "A without its last row")


@check(shaw_relative_attention, see="Keys that say how far away they are")
def masks(attend, case):
    """gives no weight to keys that the mask forbids, one mask for all or one for each sequence"""
    k, *sizes = case.sizes(6)
    inputs = shaw_inputs(case, *sizes, k)
    B, _, T, _ = inputs[0].shape
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    for mask in (causal, causal & (torch.arange(T) < case.lengths(B, T)[:, None])[:, None, None]):
        attended(case, attend(*inputs, mask), shaw_loop(*inputs, mask))


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
    """gives zeros, and finite gradients, where a position may attend to nothing"""
    k, B, H, T, D_Q, D_V = case.sizes(6)
    inputs = shaw_inputs(case, B, H, T, D_Q, D_V, k)
    mask = (torch.arange(T) > 0)[:, None].expand(T, T)  # nothing for the first position
    expected_Y, expected_A = shaw_loop(*inputs)
    expected_Y[..., 0, :], expected_A[..., 0, :] = 0, 0
    inputs[0].requires_grad_()
    Y, A = case.unpack(attend(*inputs, mask), "Y", "A")
    case.equal(A, expected_A, "A")
    case.equal(Y, expected_Y, "Y")
    case.trains(Y, "Y")
    Y.sum().backward()
    case.finite_gradient(inputs[0], "Q")


@check(shaw_relative_attention, see="Keys that say how far away they are")
def large_scores(attend, case):
    """gives forbidden keys no weight, even where the allowed scores are far below zero"""
    k, *sizes = case.sizes(6)
    Q, K, V, R_K, R_V = shaw_inputs(case, *sizes, k)
    T = Q.shape[-2]
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    Q, R_K = Q.abs() + 1, torch.full_like(R_K, -1e5)
    _, A = case.unpack(attend(Q, K, V, R_K, R_V, mask), "Y", "A")
    case.shape(A, (*Q.shape[:-1], T), "A")
    case.equal(A[..., ~mask], torch.zeros_like(A[..., ~mask]), "A of forbidden keys", atol=0)
    case.equal(A.sum(dim=-1), torch.ones(Q.shape[:-1]), "sum of each row of A")


def rotated(X: Tensor, positions: Tensor | None = None, base: float = 10000.0) -> Tensor:
    """Turn pairs of features as complex numbers."""
    T, half = X.shape[-2], X.shape[-1] // 2
    positions = torch.arange(T) if positions is None else positions
    omega = torch.tensor([base ** (-i / half) for i in range(half)], dtype=torch.float64)
    turn = torch.polar(torch.ones(T, half, dtype=torch.float64), positions[:, None] * omega)
    pairs = torch.complex(X[..., :half], X[..., half:]) * turn
    return torch.cat([pairs.real, pairs.imag], dim=-1)


@check(rope_rotate, weight=3, see="Turn the queries and the keys", single="B")
def values(rotate, case):
    """agrees with a product of complex numbers"""
    B, H, T, half = case.sizes(4, low=3)
    X = case.randn(B, H, T, 2 * half)
    case.equal(rotate(X), rotated(X), "turned X", **ANGLES)


@check(rope_rotate, see="Turn the queries and the keys")
def given_positions(rotate, case):
    """turns by the given positions"""
    B, T, half = case.sizes(3, low=3)
    X, positions = case.randn(B, T, 2 * half), case.integers(0, 30, T)
    case.equal(rotate(X, positions), rotated(X, positions), "turned X", **ANGLES)


@check(rope_rotate, see="Turn the queries and the keys")
def lengths(rotate, case):
    """keeps the length of every vector"""
    B, T, half = case.sizes(3, low=3)
    X = case.randn(B, T, 2 * half)
    turned = rotate(X)
    case.shape(turned, tuple(X.shape), "turned X")
    case.equal(turned.norm(dim=-1), X.norm(dim=-1), "length", **ANGLES)


@check(rope_rotate, weight=2, see="Only the offset counts")
def offset_only(rotate, case):
    """gives two vectors the same product wherever they stand, if their distance is the same"""
    T, half, distance = case.sizes(3, low=3)
    q, k = case.randn(2 * half).expand(T, -1), case.randn(2 * half).expand(T, -1)
    places = torch.arange(T)
    turned_q, turned_k = rotate(q, places), rotate(k, places + distance)
    case.shape(turned_q, tuple(q.shape), "turned q")
    case.shape(turned_k, tuple(k.shape), "turned k")
    scores = (turned_q * turned_k).sum(dim=1)
    turn = rotated(k[:1], torch.tensor([distance]))
    expected = (q[:1] * turn).sum(dim=1).expand(T)
    case.equal(scores, expected, f"q · k at distance {distance}", **ANGLES)


@check(rope_rotate, see="Count in float32")
def half_precision(rotate, case):
    """keeps the type of its input, but computes the angles more precisely"""
    T, half = case.sizes(2, low=3)
    X = case.randn(T, 2 * half).bfloat16()
    positions = 300 + torch.arange(T)
    turned = rotate(X, positions)
    case.shape(turned, (T, 2 * half), "turned X")
    case.that(
        turned.dtype == torch.bfloat16,
        f"The result should have the type of X, torch.bfloat16, yours has {turned.dtype}.",
    )
    expected = rotated(X.double(), positions)
    case.equal(turned, expected, "turned X", rtol=0.02, atol=0.03)
    X = case.randn(300, 2).bfloat16()
    expected = rotated(X.double(), torch.arange(300))
    case.equal(rotate(X), expected, "turned X of 300 positions", rtol=0.02, atol=0.03)


@check(rope_rotate, see="Turn the queries and the keys")
def other_bases(rotate, case):
    """accepts another base, and positions that are not whole numbers"""
    T, half = case.sizes(2, low=3)
    X, positions = case.randn(T, 2 * half), 5 * case.rand(T)
    turned = rotate(X, positions, base=50.0)
    case.equal(turned, rotated(X, positions, 50.0), "turned X", **ANGLES)
    for base in (50.0, 7.0):  # one after the other: nothing of a call is left in the next
        given, expected = rotate(X, base=base), rotated(X, None, base)
        case.equal(given, expected, f"X turned with base {base:g}", **ANGLES)


@check(rope_rotate, see="Turn the queries and the keys")
def odd(rotate, case):
    """raises ValueError when D_h is odd"""
    T, half = case.sizes(2, low=3)
    X = case.randn(T, 2 * half + 1)
    case.raises(ValueError, lambda: rotate(X), "D_h is odd")


def rotary_pair(case: Case, student, D: int, H: int, **options) -> tuple:
    """Make a student's RotaryAttention with random weights, float64, and return both."""
    weights = {f"W_{name}": case.randn(D, D) / D**0.5 for name in "QKVO"}
    module = made(student, weights, D, H, **options)
    return module, weights


def rotary_oracle(
    X: Tensor,
    weights: dict[str, Tensor],
    H: int,
    mask: Tensor | None = None,
    base: float = 10000.0,
) -> Tensor:
    """Rotary attention by complex numbers and torch's own attention."""
    B, T, D = X.shape
    Q, K, V = ((X @ weights[f"W_{n}"]).view(B, T, H, D // H).transpose(1, 2) for n in "QKV")
    Q, K = rotated(Q, base=base), rotated(K, base=base)
    mask = mask if mask is None or mask.dim() == 2 else mask[:, None]
    Y = functional.scaled_dot_product_attention(Q, K, V, mask)
    return Y.transpose(1, 2).reshape(B, T, D) @ weights["W_O"]


@check(RotaryAttention, weight=3, see="Attention with rotated queries and keys")
def values(rotary, case):
    """agrees with torch's attention between turned queries and keys"""
    B, T, H, half = case.sizes(4)
    D = 2 * H * half
    module, weights = rotary_pair(case, rotary, D, H)
    X = case.randn(B, T, D)
    case.equal(module(X), rotary_oracle(X, weights, H), "Y", **ANGLES)


@check(RotaryAttention, see="Only the offset counts")
def starts_anywhere(rotary, case):
    """gives the same when the sequence begins some positions later"""
    B, T, H, half, late = case.sizes(5)
    D = 2 * H * half
    module, weights = rotary_pair(case, rotary, D, H)
    X = case.randn(B, late + T, D)
    mask = (torch.arange(late + T) >= late).expand(late + T, -1)
    Y = module(X, mask)
    case.shape(Y, tuple(X.shape), "Y")
    case.equal(Y[:, late:], rotary_oracle(X[:, late:], weights, H), "Y", **ANGLES)


@check(RotaryAttention, see="Attention with rotated queries and keys")
def masks(rotary, case):
    """lets nothing through a mask, whether one for all sequences or one for each"""
    B, T, H, half = case.sizes(4)
    D = 2 * H * half
    module, weights = rotary_pair(case, rotary, D, H)
    X = case.randn(B, T, D)
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    padding = (torch.arange(T) < case.lengths(B, T)[:, None])[:, None]
    for name, mask in (("causal", causal), ("padding", padding)):
        expected = rotary_oracle(X, weights, H, mask)
        case.equal(module(X, mask), expected, f"Y with a {name} mask", **ANGLES)


@check(RotaryAttention, see="Attention with rotated queries and keys")
def weights(rotary, case):
    """returns the weights of every head when asked, and their rows sum to one"""
    B, T, H, half = case.sizes(4)
    D = 2 * H * half
    module, own = rotary_pair(case, rotary, D, H)
    X = case.randn(B, T, D)
    result = module(X, return_weights=True)
    Y, A = case.unpack(result, "Y", "A")
    case.equal(Y, rotary_oracle(X, own, H), "Y", **ANGLES)
    case.shape(A, (B, H, T, T), "A")
    case.equal(A.sum(dim=-1), torch.ones(B, H, T), "sum of each row of A")
    V = (X @ own["W_V"]).view(B, T, H, -1).transpose(1, 2)
    again = (A.double() @ V).transpose(1, 2).reshape(B, T, D) @ own["W_O"]
    case.equal(again, Y, "Y, computed from A", **ANGLES)


@check(RotaryAttention, see="Attention with rotated queries and keys")
def nothing_allowed(rotary, case):
    """gives zero weights, and finite gradients, to a position that may attend to nothing"""
    B, T, H, half = case.sizes(4)
    D = 2 * H * half
    module, weights = rotary_pair(case, rotary, D, H)
    X, mask = case.randn(B, T, D), torch.ones(T, T, dtype=torch.bool)
    expected = rotary_oracle(X, weights, H)
    expected[:, 1], mask[1] = 0, False
    Y, A = case.unpack(module(X.requires_grad_(), mask, return_weights=True), "Y", "A")
    case.shape(A, (B, H, T, T), "A")
    case.equal(A[:, :, 1], torch.zeros(B, H, T), "A of that position")
    case.equal(Y, expected, "Y", **ANGLES)
    case.trains(Y, "Y")
    Y.sum().backward()
    case.finite_gradient(X, "X")


@check(RotaryAttention, see="Attention with rotated queries and keys")
def large_scores(rotary, case):
    """gives forbidden keys no weight, even where the allowed scores are far below zero"""
    B, T, H, half = case.sizes(4)
    D = 2 * H * half
    module, _ = rotary_pair(case, rotary, D, H)
    X, mask = 1e3 * case.randn(B, T, D), torch.ones(T, T, dtype=torch.bool).tril()
    _, A = case.unpack(module(X, mask, return_weights=True), "Y", "A")
    case.shape(A, (B, H, T, T), "A")
    case.equal(A[..., ~mask], torch.zeros(B, H, int((~mask).sum())), "A of forbidden keys", atol=0)
    case.equal(A.sum(dim=-1), torch.ones(B, H, T), "sum of each row of A")


@check(RotaryAttention, see="Attention with rotated queries and keys")
def other_bases(rotary, case):
    """hands its base on to the rotation"""
    B, T, H, half = case.sizes(4)
    D = 2 * H * half
    module, weights = rotary_pair(case, rotary, D, H, base=30.0)
    X = case.randn(B, T, D)
    case.equal(module(X), rotary_oracle(X, weights, H, base=30.0), "Y", **ANGLES)


@check(interpolate_positions, weight=2, see="Stretch a table", single={"D": 1})
def line(interpolate, case):
    """agrees with torch's linear interpolation of a sequence"""
    T, D, more = case.sizes(3, low=3)
    P = case.randn(T, D)
    expected = functional.interpolate(P.T[None], size=T + more, mode="linear")[0].T
    case.equal(interpolate(P, (T + more,)), expected, "P")


@check(interpolate_positions, weight=2, see="Stretch a table")
def grid(interpolate, case):
    """agrees with torch's bilinear interpolation of a grid"""
    rows, columns, D, more, others = case.sizes(5, low=3)
    P = case.randn(rows, columns, D)
    size = (rows + more, columns + others)
    expected = functional.interpolate(P.permute(2, 0, 1)[None], size=size, mode="bilinear")
    case.equal(interpolate(P, size), expected[0].permute(1, 2, 0), "P")


@check(interpolate_positions, see="Stretch a table")
def unchanged(interpolate, case):
    """leaves a table as it is when the size stays the same"""
    T, D = case.sizes(2, low=3)
    P = case.randn(T, D)
    case.equal(interpolate(P, (T,)), P, "P")


@check(interpolate_positions, see="Stretch a table")
def shrinks(interpolate, case):
    """shrinks a grid along one axis while the other grows"""
    rows, columns, D, more, fewer = case.sizes(5)
    rows = rows + fewer
    P = case.randn(rows, columns, D)
    size = (rows - fewer, columns + more)
    expected = functional.interpolate(P.permute(2, 0, 1)[None], size=size, mode="bilinear")
    case.equal(interpolate(P, size), expected[0].permute(1, 2, 0), "P")


@check(interpolate_positions, see="Stretch a table")
def refuses(interpolate, case):
    """raises ValueError when size does not fit the table's axes"""
    T, D = case.sizes(2, low=3)
    P = case.randn(T, D)
    case.raises(ValueError, lambda: interpolate(P, (T, D)), "a line gets two sizes")
    grid = case.randn(T, T, D)
    case.raises(ValueError, lambda: interpolate(grid, (T,)), "a grid gets one size")


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


@check(rope_rotate_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "rope_rotate", rotated)
