"""Known wrong solutions of llama."""

import math

import torch
from torch import nn
from torch.nn import functional

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.llama import (
    GatedFeedForward,
    Llama,
    LlamaAttention,
    LlamaBlock,
    RMSNorm,
    llama_parameters,
    load_llama,
    pairs_to_halves,
    rope_rotate_pairs,
    sliding_window_mask,
    swiglu,
    swiglu_fault,
)
from course_pkg.positions import rope_rotate

# RMSNorm


mistakes(
    RMSNorm,
    """
* Centred: the mean is subtracted first, as LayerNorm does
    torch.float32))
    scale
    → torch.float32))
      precise = precise - precise.mean(dim=-1, keepdim=True)
      scale
* EpsOutside: ε is added outside the root
    torch.rsqrt(precise.square().mean(dim=-1, keepdim=True) + self.eps)
    → 1 / (precise.square().mean(dim=-1, keepdim=True).sqrt() + self.eps)
Deviation: the vectors are divided by their standard deviation, though they keep their mean
    precise.square().mean(dim=-1, keepdim=True) → precise.var(dim=-1, keepdim=True, unbiased=False)
SumOfSquares: the squares are added up and not averaged: every vector gets the length 1
    mean(dim=-1 → sum(dim=-1
NoRoot: the vectors are divided by the mean square, without a root
    torch.rsqrt( → torch.reciprocal(
OverAll: the mean is taken over all vectors together
    mean(dim=-1, keepdim=True) → mean()
MeanOfAbsolutes: the vectors are divided by the mean of their absolute values
    torch.rsqrt(precise.square() → torch.reciprocal(precise.abs()
WithoutWeight: the weight is not used
    ) * self.weight.to(X.dtype) → )
OnePlusWeight: the features are multiplied by 1 + weight, as in Gemma
    * self.weight.to(X.dtype) → * (1 + self.weight.to(X.dtype))
WeightFirst: the weight is applied before the root mean square is taken
    torch.float32)) → torch.float32)) * self.weight
    ) * self.weight.to(X.dtype) → )
SmallerEps: ε is 1e-6 by default
    1e-5 → 1e-6
NoEps: ε is not added to the mean square
    ) + self.eps → )
OwnEps: the ε that is given is not used
    self.eps = eps → self.eps = 1e-5
SingleAlways: float64 is computed in float32
    X.to(torch.promote_types(X.dtype, torch.float32)) → X.float()
    says: should change where feature 0 changes by 1e-9 of itself
StartsAtZero: the weight starts at zero
    torch.ones(D) → torch.zeros(D)
    says: weight[0] should be 1, yours is 0
""",
)


@bug(
    RMSNorm,
    "there is a bias as well, as in LayerNorm",
    told_by="weight, yours are ['bias', 'weight']",
)
class WithBias(RMSNorm):
    def __init__(self, D, eps=1e-5):
        super().__init__(D, eps)
        self.bias = nn.Parameter(torch.zeros(D))

    def load_state_dict(self, state):
        return super().load_state_dict(state, strict=False)

    def forward(self, X):
        return super().forward(X) + self.bias.to(X.dtype)


mistakes(
    RMSNorm,
    """
CoarseSquares: the squares are taken in float16, where they overflow
    X.to(torch.promote_types(X.dtype, torch.float32)) → X
    says: Y of large numbers in float16
StaysWide: float16 comes in and float32 goes out
    (precise * scale).to(X.dtype) * self.weight.to(X.dtype) → precise * scale * self.weight
    says: should be torch.float16 as X is
WeighedWide: a weight of float32 makes float32 of float16
    self.weight.to(X.dtype) → self.weight
    says: weight in float32, should be torch.float16 as X is
""",
)


# A gated network


@bug(swiglu, "the gate is a sigmoid alone, without x in front: GLU", classic=True)
def glu(X, W_gate, W_up, W_down):
    return (torch.sigmoid(X @ W_gate) * (X @ W_up)) @ W_down


@bug(swiglu, "gate and up are exchanged", classic=True)
def gate_and_up(X, W_gate, W_up, W_down):
    return swiglu(X, W_up, W_gate, W_down)


@bug(swiglu, "the gate is a ReLU: ReGLU")
def reglu(X, W_gate, W_up, W_down):
    return ((X @ W_gate).relu() * (X @ W_up)) @ W_down


mistakes(
    swiglu,
    """
geglu: the gate is a GELU: GEGLU
    .silu( → .gelu(
bilinear: the gate has no activation
    functional.silu( → (
added: gate and up are added and not multiplied
    * (X @ W_up)) → + X @ W_up)
""",
)


@bug(swiglu, "the activation is applied to the product of gate and up")
def silu_of_product(X, W_gate, W_up, W_down):
    return functional.silu((X @ W_gate) * (X @ W_up)) @ W_down


mistakes(
    swiglu,
    """
silu_of_both: the activation is applied to up as well
    * ( → * functional.silu(
""",
)


@bug(swiglu, "there is no W_up: a plain network with silu")
def plain_network(X, W_gate, W_up, W_down):
    return functional.silu(X @ W_gate) @ W_down


@bug(swiglu, "the gates are a softmax over the hidden features")
def softmax_gate(X, W_gate, W_up, W_down):
    return (torch.softmax(X @ W_gate, dim=-1) * (X @ W_up)) @ W_down


@bug(
    swiglu,
    "silu is computed as x eˣ / (1 + eˣ), which overflows",
    told_by="Y of very large vectors",
)
def overflowing_silu(X, W_gate, W_up, W_down):
    logits = X @ W_gate
    return (logits * logits.exp() / (1 + logits.exp()) * (X @ W_up)) @ W_down


@bug(
    swiglu,
    "silu is computed as x / (1 + e⁻ˣ), whose gradient is NaN far below zero",
    told_by="gradient of very large vectors",
)
def silu_by_quotient(X, W_gate, W_up, W_down):
    logits = X @ W_gate
    return (logits / (1 + (-logits).exp()) * (X @ W_up)) @ W_down


black_box(
    swiglu,
    "geglu",
    curve='at["window of 256"].tolist()',
    after="cures",
    label="loss, nats for each token",
    over="position in the text, %",
)

wrong_answers(swiglu_fault, "B")
mistakes(
    swiglu_fault,
    """
zero: X is 0
    (X, → (0 * X,
    says: With these arguments the black box gives what is right
wide_open: the gate is far above 0, where both are its argument
    (X, W_gate, → (X, 50 * W_gate,
    says: With these arguments the black box gives what is right
closed: the gate is far below 0
    (X, W_gate, → (X, -50 * W_gate,
    says: With these arguments the black box gives what is right
nothing_passes: W_up is 0
    W_up, W_down) → 0 * W_up, W_down)
    says: With these arguments the black box gives what is right
three_arguments: W_down is left out
    W_up, W_down) → W_up)
    says: swiglu raised
""",
)


# The width of the network


mistakes(
    GatedFeedForward,
    """
* FourTimes: the hidden layer has 4 D features, as in a plain network
    8 * D // 3 → 4 * D
* FourTimesExactly: the hidden layer has 4 D features, and they are not rounded up
    math.ceil(8 * D // 3 / multiple) * multiple → 4 * D
* RoundedDown: the width is rounded down to the multiple
    math.ceil(8 * D // 3 / multiple) → (8 * D // 3 // multiple)
Nearest: the width is rounded to the nearest multiple
    math.ceil(8 * D // 3 / multiple) → max(1, round(8 * D // 3 / multiple))
NoFloor: 8/3 D is not rounded down before it is rounded up to a multiple
    8 * D // 3 → 8 * D / 3
NoMultiple: the width is not rounded up to a multiple
    math.ceil(8 * D // 3 / multiple) * multiple → 8 * D // 3
OneMultipleMore: a width that is a multiple already gets one more
    math.ceil(8 * D // 3 / multiple) → (8 * D // 3 // multiple + 1)
TwoThirds: the width is 2/3 D and not 2/3 of 4 D
    8 * D // 3 → 2 * D // 3
Always32: the multiple that is given is not used
    math.ceil(8 * D // 3 / multiple) * multiple → math.ceil(8 * D // 3 / 32) * 32
By256: the multiple is 256 by default
    int = 32 → int = 256
""",
)


@bug(GatedFeedForward, "an F that is given is rounded up as well")
class RoundsTheGiven(GatedFeedForward):
    def __init__(self, D, F=None, multiple=32):
        super().__init__(D, None if F is None else -(-F // multiple) * multiple, multiple)

    def load_state_dict(self, state):
        for name, value in state.items():
            setattr(self, name, nn.Parameter(value.clone()))


mistakes(
    GatedFeedForward,
    """
Exchanged: gate and up are exchanged
    self.W_gate, self.W_up, → self.W_up, self.W_gate,
Plain: it is a plain network with silu, and W_up does nothing
    swiglu(X, self.W_gate, self.W_up, self.W_down) → functional.silu(X @ self.W_gate) @ self.W_down
SameDeviation: W_down is drawn with the deviation of the other two
    torch.randn(F, D) / math.sqrt(F) → torch.randn(F, D) / math.sqrt(D)
    says: standard deviation of W_down should be
""",
)


@bug(
    GatedFeedForward,
    "the weights are drawn from uniform distributions",
    told_by="share of W_gate within one standard deviation should be",
)
class Uniform(GatedFeedForward):
    def __init__(self, D, F=None, multiple=32):
        super().__init__(D, F, multiple)
        for weight in self.parameters():
            nn.init.uniform_(weight, *(side * (3 / len(weight)) ** 0.5 for side in (-1, 1)))


@bug(GatedFeedForward, "there are biases as well", told_by="There should be no other weights")
class WithBiases(GatedFeedForward):
    def __init__(self, D, F=None, multiple=32):
        super().__init__(D, F, multiple)
        self.b_down = nn.Parameter(torch.zeros(D))

    def load_state_dict(self, state):
        return super().load_state_dict(state, strict=False)


mistakes(
    GatedFeedForward,
    """
FloatSize: F is kept as a float, which is no size
    self.F = F → self.F = float(F)
    says: F should be a whole number, an int, yours is
""",
)


# Two layouts of one rotation


def hands(X, positions, base):
    """Cosines and sines for each position and pair."""
    T, D = X.shape[-2:]
    if D % 2:
        raise ValueError(f"{D} is odd")
    positions = torch.arange(T) if positions is None else positions
    turn = positions.double()[:, None] * base ** -(torch.arange(0, D, 2) / D).double()
    return turn.cos(), turn.sin()


def woven(X, cos, sin):
    """Turn neighbours, and put them side by side again."""
    x, y = X[..., ::2], X[..., 1::2]
    return torch.stack([x * cos - y * sin, x * sin + y * cos], dim=-1).flatten(-2).to(X.dtype)


@bug(
    rope_rotate_pairs,
    "features i and i + D_h/2 are paired: that is the layout of halves",
    classic=True,
)
def halves(X, positions=None, base=10000.0):
    return rope_rotate(X, positions, base)


mistakes(
    rope_rotate_pairs,
    """
clockwise: the pairs turn the other way round
    [X[..., 0::2], X[..., 1::2]] → [X[..., 1::2], X[..., 0::2]]
    turned.chunk(2, dim=-1) → turned.chunk(2, dim=-1)[::-1]
""",
)


@bug(rope_rotate_pairs, "both sines have the same sign, which is no rotation")
def no_minus(X, positions=None, base=10000.0):
    cos, sin = hands(X, positions, base)
    x, y = X[..., ::2], X[..., 1::2]
    return torch.stack([x * cos + y * sin, x * sin + y * cos], dim=-1).flatten(-2).to(X.dtype)


mistakes(
    rope_rotate_pairs,
    """
left_as_halves: the turned pairs are not put side by side again but left as halves
    torch.stack(turned.chunk(2, dim=-1), dim=-1).flatten(-2) → turned
""",
)


@bug(rope_rotate_pairs, "the angles are laid out as halves, though neighbours are paired")
def angles_as_halves(X, positions=None, base=10000.0):
    cos, sin = (torch.cat([part, part], dim=-1) for part in hands(X, positions, base))
    across = torch.stack([-X[..., 1::2], X[..., ::2]], dim=-1).flatten(-2)
    return (X * cos + across * sin).to(X.dtype)


@bug(rope_rotate_pairs, "the halves are exchanged, though the angles are laid out for neighbours")
def exchanged_as_halves(X, positions=None, base=10000.0):
    cos, sin = (part.repeat_interleave(2, dim=-1) for part in hands(X, positions, base))
    x, y = X.chunk(2, dim=-1)
    return (X * cos + torch.cat([-y, x], dim=-1) * sin).to(X.dtype)


mistakes(
    rope_rotate_pairs,
    """
slow_growth: the exponent is i/D_h and not 2i/D_h
    halves, positions, base) → halves, positions, base**0.5)
fast_growth: the exponent is 4i/D_h: i counts features and not pairs
    halves, positions, base) → halves, positions, base**2)
one_speed: all pairs turn at the same speed
    halves, positions, base) → halves, positions, 1.0)
""",
)


@bug(rope_rotate_pairs, "positions are counted from 1")
def from_one(X, positions=None, base=10000.0):
    positions = torch.arange(1, X.shape[-2] + 1) if positions is None else positions
    return rope_rotate_pairs(X, positions, base)


@bug(rope_rotate_pairs, "the given positions are ignored")
def positions_ignored(X, positions=None, base=10000.0):
    return rope_rotate_pairs(X, None, base)


@bug(rope_rotate_pairs, "the base is always 10000")
def fixed_base(X, positions=None, base=10000.0):
    return rope_rotate_pairs(X, positions)


@bug(
    rope_rotate_pairs,
    "the angles are computed in the type of X, too coarse in bfloat16",
    told_by="half_precision: keeps the type of its input",
)
def coarse(X, positions=None, base=10000.0):
    T, D = X.shape[-2:]
    if D % 2:
        raise ValueError(f"{D} is odd")
    positions = torch.arange(T) if positions is None else positions
    angle = positions.to(X.dtype)[:, None] * (base ** (-torch.arange(0, D, 2) / D)).to(X.dtype)
    return woven(X, angle.cos(), angle.sin())


@bug(rope_rotate_pairs, "an odd D_h is accepted", told_by="should raise ValueError when D_h is odd")
def accepts_odd(X, positions=None, base=10000.0):
    if X.shape[-1] % 2:
        return functional.pad(rope_rotate_pairs(X[..., :-1], positions, base), (0, 1))
    return rope_rotate_pairs(X, positions, base)


# Weights that change layout


mistakes(
    pairs_to_halves,
    """
* one_head: all columns are reordered together, as one head
    (H, -1, 2) → (1, -1, 2)
* to_pairs: the order is the reverse one, from halves to pairs
    (H, -1, 2) → (H, 2, -1)
rows_reordered: the rows are reordered and not the columns
    W.unflatten(1, (H, -1, 2)).mT.flatten(1) → torch.cat([W[0::2], W[1::2]])
heads_in_turns: the columns are read as D_h by H, as if the heads took turns
    (H, -1, 2)).mT → (-1, 2, H)).transpose(1, 2)
odd_first: columns 1, 3, 5, … come first, and then columns 0, 2, 4, …
    .mT → .flip(-1).mT
unchanged: the columns stay where they are
    W.unflatten(1, (H, -1, 2)).mT.flatten(1) → W.clone()
first_head: the first head alone is reordered
    return W.unflatten(1, (H, -1, 2)).mT.flatten(1)
    → heads = W.unflatten(1, (H, -1, 2))
      heads = [heads[:, :1].mT.flatten(2), heads[:, 1:].flatten(2)]
      return torch.cat(heads, dim=1).flatten(1)
folded: the second half of each head is in reverse order
    return W.unflatten(1, (H, -1, 2)).mT.flatten(1)
    → first, second = W.unflatten(1, (H, -1, 2)).unbind(-1)
      return torch.cat([first, second.flip(-1)], dim=-1).flatten(1)
even_of_all: the even columns of all heads come first, and then the odd ones of each head
    return W.unflatten(1, (H, -1, 2)).mT.flatten(1)
    → first, second = W.unflatten(1, (H, -1, 2)).unbind(-1)
      return torch.cat([first.flatten(1), second.transpose(1, 2).flatten(1)], dim=1)
""",
)


@bug(
    pairs_to_halves,
    "the columns are reordered in the matrix that is given",
    told_by="changes its argument W in place",
)
def in_place(W, H):
    new = pairs_to_halves(W, H)
    with torch.no_grad():
        W.copy_(new)
    return new


@bug(
    pairs_to_halves,
    "heads of an odd size are accepted",
    told_by="should raise ValueError when 9 columns are to be 3 heads",
)
def odd_heads(W, H):
    if W.shape[1] % H:
        raise ValueError("heads of different sizes")
    heads = W.unflatten(1, (H, -1))
    return torch.cat([heads[..., ::2], heads[..., 1::2]], dim=-1).flatten(1)


@bug(
    pairs_to_halves,
    "heads of an odd size are accepted if there is an even number of columns",
    told_by="should raise ValueError when 6 columns are to be 2 heads",
)
def even_columns(W, H):
    if W.shape[1] % H or W.shape[1] % 2:
        raise ValueError("heads of different sizes")
    heads = W.unflatten(1, (H, -1))
    return torch.cat([heads[..., ::2], heads[..., 1::2]], dim=-1).flatten(1)


@bug(
    pairs_to_halves,
    "columns that are left over stay at the end",
    told_by="should raise ValueError when 10 columns are to be 3 heads",
)
def left_over(W, H):
    size = W.shape[1] // (2 * H) * 2 * H
    return torch.cat([pairs_to_halves(W[:, :size], H), W[:, size:]], dim=1) if size else W.clone()


# Windows


mistakes(
    sliding_window_mask,
    """
* besides_itself: the window holds so many positions besides the position itself
    (n - s < window) | → (n - s <= window) |
""",
)

changed(
    sliding_window_mask,
    "window_without_past",
    "the window forgets the past: it is counted from the first of the new positions",
    ("(n - s < window) |", "(n - past - s < window) |"),
    classic=True,
)

mistakes(
    sliding_window_mask,
    """
* sinks_ahead: sinks are seen even by the positions before them
    if window is not None:
        allowed &= (n - s < window) | (s < sinks)
    return allowed
    → if window is not None:
          allowed &= n - s < window
      return allowed | (s < sinks)
both_sides: the future is not masked, but for what is a window away
    allowed = s <= n → allowed = torch.ones(T, past + T, dtype=torch.bool)
    (n - s < window) | → ((n - s).abs() < window) |
inverted: True stands for what is forbidden
    return allowed → return ~allowed
no_sinks: there are no sinks
    ) | (s < sinks) → )
wider: the sinks widen the window
    (n - s < window) | (s < sinks) → n - s < window + sinks
sinks_in_window: the sinks count as a part of the window, which becomes shorter
    (n - s < window) | → (n - s < max(1, window - sinks)) |
sinks_after_past: the sinks are the first of the new positions and not of the text
    | (s < sinks) → | ((s >= past) & (s < past + sinks))
no_columns: the past has no columns
    return allowed → return allowed[:, past:]
past_ignored: the past is ignored: the new positions see only the oldest ones
    torch.arange(past, past + T) → torch.arange(T)
blind: a position does not see itself
    allowed = s <= n → allowed = s < n
""",
)


@bug(sliding_window_mask, "without a window, only as many positions are seen as are new")
def as_many_as_new(T, window=None, sinks=0, past=0):
    return sliding_window_mask(T, T if window is None else window, sinks, past)


mistakes(
    sliding_window_mask,
    """
one_less: the window has one position less than it should
    (n - s < window) | → (n - s < max(1, window - 1)) |
""",
)


@bug(
    sliding_window_mask,
    "a window of 0 is no window",
    told_by="should raise ValueError when the window is 0",
)
def zero_is_none(T, window=None, sinks=0, past=0):
    return sliding_window_mask(T, window or None, sinks, past)


@bug(
    sliding_window_mask,
    "less than no sinks are accepted",
    told_by="should raise ValueError when sinks is -1",
)
def negative_sinks(T, window=None, sinks=0, past=0):
    return sliding_window_mask(T, window, max(0, sinks), past)


@bug(
    sliding_window_mask,
    "sinks are looked at only where there is a window",
    told_by="when there is no window and sinks is -1",
)
def sinks_unseen(T, window=None, sinks=0, past=0):
    return sliding_window_mask(T, window, 0 if window is None else sinks, past)


# Count before you build


mistakes(
    LlamaAttention,
    """
* TurnsFromZero: new positions are turned as if they began at 0 with every call
    torch.arange(past, past + T, → torch.arange(T,
* TurnsTwice: keys are turned again when they are read from the cache
    K, V = (part.to(Q.dtype) for part in cache.read())
    → K, V = cache.read()
      K, V = rope_rotate(K, None, self.base).to(Q.dtype), V.to(Q.dtype)
* TurnsTheOldAnew: keys are kept as they are, and the old ones are turned together with the new ones
    K = rope_rotate(split_heads(X @ self.W_K, self.G), positions, self.base)
    → K = split_heads(X @ self.W_K, self.G)
      K = rope_rotate(K, positions, self.base) if cache is None else K
    K, V = (part.to(Q.dtype) for part in cache.read())
    → K, V = cache.read()
      K = rope_rotate(K, past + torch.arange(K.shape[2]), self.base).to(Q.dtype)
      V = V.to(Q.dtype)
""",
)

changed(
    LlamaAttention,
    "TurnsAllInEveryCall",
    "keys are kept as they are, and all of them are turned in every call",
    (
        "K = rope_rotate(split_heads(X @ self.W_K, self.G), positions, self.base)",
        "K = split_heads(X @ self.W_K, self.G)",
    ),
    ("        mask =", "        K = rope_rotate(K, None, self.base)\n        mask ="),
    told_by="K in the cache at [",
)

mistakes(
    LlamaAttention,
    """
TurnsBothTwice: queries and keys are turned twice, by the same angles
    Q = rope_rotate( → Q = rope_rotate(rope_rotate(
    self.H), positions, self.base) → self.H), positions, self.base), positions, self.base)
    K = rope_rotate( → K = rope_rotate(rope_rotate(
    self.G), positions, self.base) → self.G), positions, self.base), positions, self.base)
TurnsKeysTwice: keys are turned when they are made and again before the scores, cache or not
    mask = sliding → K = rope_rotate(K, None, self.base); mask = sliding
TurnsTheOldAgain: old keys, which are turned already, are turned once more when they are read
    K, V = (part.to(Q.dtype) for part in cache.read())  # (B, G, N, D_h)
    → K, V = (part.to(Q.dtype) for part in cache.read())
      old = rope_rotate(K[:, :, :past], None, self.base) if past else K[:, :, :0]
      K = torch.cat([old, K[:, :, past:]], dim=2)
* TurnsValues: values are turned as well
    V = split_heads(X @ self.W_V, self.G)
    → V = rope_rotate(split_heads(X @ self.W_V, self.G), positions, self.base)
* TakesTurns: neighbouring queries get different key heads: h mod G, not h // (H/G)
    Q.unflatten(1, (self.G, -1)) → Q.unflatten(1, (-1, self.G)).transpose(1, 2)
    .flatten(1, 2) → .transpose(1, 2).flatten(1, 2)
TurnsQueriesOnly: queries are turned, and keys are not
    K = rope_rotate(split_heads(X @ self.W_K, self.G), positions, self.base)
    → K = split_heads(X @ self.W_K, self.G)
TurnsNothing: neither queries nor keys are turned
    Q = rope_rotate(split_heads(X @ self.W_Q, self.H), positions, self.base)
    → Q = split_heads(X @ self.W_Q, self.H)
    K = rope_rotate(split_heads(X @ self.W_K, self.G), positions, self.base)
    → K = split_heads(X @ self.W_K, self.G)
TurnsWhole: queries and keys are turned before they are cut into heads
    Q = rope_rotate(split_heads(X @ self.W_Q, self.H), positions, self.base)
    → Q = split_heads(rope_rotate(X @ self.W_Q, positions, self.base), self.H)
    K = rope_rotate(split_heads(X @ self.W_K, self.G), positions, self.base)
    → K = split_heads(rope_rotate(X @ self.W_K, positions, self.base), self.G)
TurnsNeighbours: neighbouring features are turned as pairs, as in Meta's layout
    Q = rope_rotate( → Q = rope_rotate_pairs(
    K = rope_rotate( → K = rope_rotate_pairs(
IgnoresBase: base is not used
    self.H), positions, self.base) → self.H), positions)
    self.G), positions, self.base) → self.G), positions)
RoundsPositions: positions are counted in X's dtype
    device=X.device) → device=X.device).to(X.dtype)
    says: Y at position 595 in bfloat16 is off by
OneTooFar: later positions are one too high
    device=X.device) → device=X.device) + (1 if past else 0)
SeesAhead: there is no mask: positions that come together see each other
    sliding_window_mask(T, self.window, self.sinks, past)
    → torch.ones(T, past + T, dtype=torch.bool)
MasksWithoutPast: the mask ignores the past: new positions see only the oldest ones
    sliding_window_mask(T, self.window, self.sinks, past)
    → sliding_window_mask(past + T, self.window, self.sinks)[:T]
MasksOnlyMany: a single new position sees the whole cache, whatever the window
    sliding_window_mask(T, self.window, self.sinks, past)
    → (sliding_window_mask(T, self.window, self.sinks, past) | (T == 1))
NoWindow: window and sinks are not used
    (T, self.window, self.sinks, past) → (T, past=past)
NoSinks: sinks are not used
    self.window, self.sinks, past) → self.window, past=past)
WindowOfTheOld: with old positions in the cache, window and sinks do not count from the beginning
    past).to(X.device)
    Q
    → past).to(X.device)
      if past:
          mask = sliding_window_mask(T, past=past)
          mask &= torch.arange(past + T) > past - (self.window or past + 1)
      Q
RootOfAll: the scores are divided by √D, not by √D_h
    math.sqrt(self.D_h) → math.sqrt(self.H * self.D_h)
WithoutRoot: the scores are not divided by √D_h
    mT / math.sqrt(self.D_h) → mT
""",
)

changed(
    LlamaAttention,
    "SeesTheNew",
    "new positions see only the new positions",
    ("            K, V = (part.to(Q.dtype) for part in cache.read())  # (B, G, N, D_h)\n", ""),
    ("self.sinks, past)", "self.sinks)"),
)

mistakes(
    LlamaAttention,
    """
MixesUp: keys and values are mixed up in the cache
    cache.append(K, V) → cache.append(V, K)
WithoutOutput: the outputs of the heads are not multiplied by W_O
    merge_heads(heads) @ self.W_O → merge_heads(heads)
""",
)

changed(
    LlamaAttention,
    "RoundedQueries",
    "queries are rounded to the precision of the cache",
    (
        "            cache.append(K, V)\n",
        "            cache.append(K, V)\n            Q = Q.to(cache.read()[0].dtype).to(Q.dtype)\n",
    ),
)

mistakes(
    LlamaAttention,
    """
MixedDtypes: keys come from the cache in a dtype that is not the queries'
    (part.to(Q.dtype) for part in cache.read()) → cache.read()
    says: raised RuntimeError: expected
""",
)


@bug(
    LlamaAttention,
    "a number of groups that does not divide the heads is accepted",
    told_by="should raise ValueError when 6 heads are to share 4 of keys",
)
class UnequalGroups(LlamaAttention):
    def __init__(self, D, H, G, *others, **options):
        super().__init__(D, H, math.gcd(H, G), *others, **options)


mistakes(
    LlamaBlock,
    """
* NormsLast: the norms come after the additions, as in the first transformer
    X + self.attention(self.norm_1(X), cache) → self.norm_1(X + self.attention(X, cache))
    X + self.feed_forward(self.norm_2(X)) → self.norm_2(X + self.feed_forward(X))
* SideBySide: the second half reads the block's input, and not what attention has added to it
    X = X + self.attention(self.norm_1(X), cache)
    return X +
    → return X + self.attention(self.norm_1(X), cache) +
AttentionAlone: attention is not added to what comes in, but takes its place
    X = X + self.attention → X = self.attention
NetworkAlone: the network is not added to what comes in, but takes its place
    return X + self → return self
AddsToTheNormal: attention is added to the normalised vectors
    X = X + self.attention → X = self.norm_1(X) + self.attention
ThinksFromTheNormal: the network is added to the normalised vectors
    return X + self → return self.norm_2(X) + self
OneNorm: norm_1 is used twice
    self.norm_2(X) → self.norm_1(X)
OtherNorms: the two norms change places
    attention(self.norm_1(X) → attention(self.norm_2(X)
    feed_forward(self.norm_2(X) → feed_forward(self.norm_1(X)
AttendsRaw: attention reads vectors that are not normalised
    self.norm_1(X) → X
ThinksRaw: the network reads vectors that are not normalised
    self.norm_2(X) → X
ThinksFirst: the network comes first, and then attention
    X = X + self.attention(self.norm_1(X), cache) → X = X + self.feed_forward(self.norm_2(X))
    return X + self.feed_forward(self.norm_2(X)) → return X + self.attention(self.norm_1(X), cache)
WithoutCache: the cache is not handed to attention
    self.norm_1(X), cache) → self.norm_1(X))
CacheForOne: the cache is handed on only when a single position comes
    self.norm_1(X), cache) → self.norm_1(X), cache if X.shape[1] == 1 else None)
""",
)

changed(
    LlamaBlock,
    "NoAttention",
    "only the network is applied",
    ("        X = X + self.attention(self.norm_1(X), cache)\n", ""),
)

mistakes(
    LlamaBlock,
    """
NoNetwork: only attention is applied
    return X + self.feed_forward(self.norm_2(X)) → return X
""",
)

mistakes(
    Llama,
    """
* NoLastNorm: there is no norm before the head
    self.norm(X) @ → X @
NormFirst: the norm comes before the blocks, and not after them
    self.token(tokens) → self.norm(self.token(tokens))
    self.norm(X) @ → X @
NormEachTime: the norm comes after every block
    X = block(X, None if caches is None else caches[number])
    → X = self.norm(block(X, None if caches is None else caches[number]))
    self.norm(X) @ → X @
ScaledEmbedding: the embedding is multiplied by √D, as in the first transformer
    self.token(tokens) → self.token(tokens) * math.sqrt(self.token.embedding_dim)
FromTheEmbedding: every block reads the embedding, and the last one decides
    X = self.token → X = first = self.token
    block(X, → block(first,
Backwards: the blocks are applied in reverse
    in enumerate(self.blocks) → in reversed(list(enumerate(self.blocks)))
FirstBlock: only the first block is applied
    enumerate(self.blocks) → enumerate(self.blocks[:1])
LastLeftOut: the last block is left out
    enumerate(self.blocks) → enumerate(self.blocks[:-1])
OneCacheForAll: all layers use the first cache
    caches[number] → caches[0]
    says: do not fit into a cache for
NoCaches: the caches are not handed to the blocks
    None if caches is None else caches[number] → None
CacheForTheFirst: only the first layer gets its cache
    if caches is None else caches[number] → if caches is None or number else caches[0]
CachesReversed: the caches are handed out in reverse, the last one to the first layer
    caches[number] → caches[-1 - number]
Probabilities: probabilities are returned, and not logits
    self.norm(X) @ W_head → torch.softmax(self.norm(X) @ W_head, dim=-1)
LogProbabilities: logarithms of probabilities are returned, and not logits
    self.norm(X) @ W_head → torch.log_softmax(self.norm(X) @ W_head, dim=-1)
AlwaysTied: the embedding is used to score the tokens even when the model is not tied
    self.token.weight.T if self.W_head is None else self.W_head → self.token.weight.T
LastToken: only the last token gets logits
    self.norm(X) @ → self.norm(X[:, -1:]) @
    says: logits should have shape
""",
)

mistakes(
    llama_parameters,
    """
* all_heads: keys and values are counted as if they had H heads
    L * 2 * D * (D + G * (D // H)) → L * 4 * D * D
* always_tied: head and embedding are counted once though they are not tied
    0 if tied else V * D → 0
never_tied: head and embedding are counted twice even where they are tied
    0 if tied else V * D → V * D
two_matrices: the network is counted as two matrices, as in a plain one
    3 * D * F → 2 * D * F
no_last_norm: the norm at the end is left out
    (2 * L + 1) * D → 2 * L * D
one_norm: a layer has one norm
    (2 * L + 1) → (L + 1)
norms_with_biases: the norms have biases as well, as LayerNorm has
    (2 * L + 1) → 2 * (2 * L + 1)
no_output: W_O is left out
    L * 2 * D * (D + G * (D // H)) → L * D * (D + 2 * G * (D // H))
values_of_all: keys have G heads, but values have H
    L * 2 * D * (D + G * (D // H)) → L * D * (3 * D + G * (D // H))
""",
)


@bug(llama_parameters, "one layer is counted")
def one_layer(L, **sizes):
    return llama_parameters(L=1, **sizes)


@bug(llama_parameters, "the numbers are floats", told_by="should be an int, yours is")
def as_floats(**sizes):
    return {name: float(number) for name, number in llama_parameters(**sizes).items()}


# The published weights


mistakes(
    load_llama,
    """
* not_turned: not all matrices are transposed
    value.T if transposed else value → value
""",
)

changed(
    load_llama,
    "halves_again",
    "W_Q and W_K are reordered, though files have them in the order of halves",
    (
        "        ours[prefix + place] =",
        '        if place in ("attention.W_Q", "attention.W_K"):\n'
        "            value = pairs_to_halves(value.T, 1).T\n"
        "        ours[prefix + place] =",
    ),
    classic=True,
)

mistakes(
    load_llama,
    """
* gates_from_up: gate_proj and up_proj are exchanged
    gate_proj.weight": "feed_forward.W_gate" → gate_proj.weight": "feed_forward.W_up"
    up_proj.weight": "feed_forward.W_up" → up_proj.weight": "feed_forward.W_gate"
head_not_turned: lm_head is not transposed
    place != "token.weight" → place not in ("token.weight", "W_head")
embedding_turned: the embedding is transposed like the matrices
    2 and place != "token.weight" → 2
keys_first: queries and keys are exchanged
    q_proj.weight": "attention.W_Q" → q_proj.weight": "attention.W_K"
    k_proj.weight": "attention.W_K" → k_proj.weight": "attention.W_Q"
values_first: keys and values are exchanged
    k_proj.weight": "attention.W_K" → k_proj.weight": "attention.W_V"
    v_proj.weight": "attention.W_V" → v_proj.weight": "attention.W_K"
norms_exchanged: the two norms of a layer are exchanged
    input_layernorm.weight": "norm_1 → input_layernorm.weight": "norm_2
    post_attention_layernorm.weight": "norm_2 → post_attention_layernorm.weight": "norm_1
""",
)

changed(
    load_llama,
    "first_layer",
    "every layer gets the weights of the first",
    (
        "return ours",
        'return {name: ours[re.sub(r"^blocks\\.\\d+", "blocks.0", name)] for name in ours}',
    ),
)

changed(
    load_llama,
    "order_of_text",
    "layers are sorted as text, so that 10 comes before 2",
    (
        "    ours = {}\n",
        '    layers = sorted({name.split(".")[2] for name in state if "model.layers." in name})\n'
        "    ours = {}\n",
    ),
    ('f"blocks.{layer[1]}."', 'f"blocks.{layers.index(layer[1])}."'),
)

changed(
    load_llama,
    "order_of_file",
    "layers are numbered in the order of the file, whatever their names say",
    (
        "    ours = {}\n",
        '    layers = [name.split(".")[2] for name in state if name.startswith("model.layers.")]\n'
        "    layers = list(dict.fromkeys(layers))\n"
        "    ours = {}\n",
    ),
    ('f"blocks.{layer[1]}."', 'f"blocks.{layers.index(layer[1])}."'),
)

mistakes(
    load_llama,
    """
head_from_embedding: a head is made of the embedding where lm_head is missing
    return ours → return {"W_head": ours["token.weight"].mT, **ours}
    says: W_head does not belong in your state
layers_of_others: layers of other models, whose names only end alike, are taken for ours
    re.match( → re.search(
    says: should raise ValueError when the state has vision_model
""",
)


@bug(load_llama, "only layers 0 to 9 are known", told_by="raised ValueError: layer of two digits")
def layers_of_one_digit(state):
    if any(name.startswith("model.layers.10.") for name in state):
        raise ValueError("layer of two digits")
    return load_llama(state)


@bug(load_llama, "a model without lm_head is refused", told_by="raised KeyError: 'lm_head.weight'")
def head_needed(state):
    head = state["lm_head.weight"]
    return {**load_llama(state), "W_head": head.mT}


@bug(load_llama, "the tables of frequencies are refused", told_by="ValueError: inv_freq")
def tables_refused(state):
    if any(name.endswith("inv_freq") for name in state):
        raise ValueError("inv_freq")
    return load_llama(state)


mistakes(
    load_llama,
    """
nothing_refused: names that are not known are silently left out
    raise ValueError(f"our Llama has no place for {name}") → continue
    says: should raise ValueError when the state has model.layers.0.self_attn.q_proj.bias
biases_taken: biases are taken for weights
    name.endswith("rotary_emb.inv_freq")
    → name.endswith("rotary_emb.inv_freq") or ("layers" in name and name.endswith(".bias"))
    says: should raise ValueError when the state has model.layers.0.self_attn.q_proj.bias
norm_biases_left_out: what a norm has besides its weight is left out
    name.endswith("rotary_emb.inv_freq") → name.endswith(("rotary_emb.inv_freq", "norm.bias"))
    says: should raise ValueError when the state has model.layers.0.input_layernorm.bias
""",
)


equivalent(
    GatedFeedForward,
    "F = math.ceil(8 * D // 3 / multiple) * multiple → "
    "F = vars(self).setdefault('F', math.ceil(8 * D // 3 / multiple) * multiple)",
    "a module is made once",
)


equivalent(
    RMSNorm,
    "precise = X.to(torch.promote_types(X.dtype, torch.float32)) → "
    "precise = X.to(torch.promote_types(torch.float32, X.dtype))",
    "promotion is symmetric",
)


places = "positions = torch.arange(past, past + T"


equivalent(
    LlamaAttention,
    f"{places}, device=X.device) → {places})",
    "checks compute on the CPU",
)
