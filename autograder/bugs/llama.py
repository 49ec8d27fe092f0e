"""Known wrong solutions of llama."""

import math

import torch
from torch import nn
from torch.nn import functional
from torch.nn import functional as F

from autograder.bugs import bug, equivalent
from course_pkg.attention import masked_softmax, merge_heads, split_heads
from course_pkg.llama import (
    GatedFeedForward,
    Llama,
    LlamaAttention,
    LlamaBlock,
    LoRA,
    MixtureOfExperts,
    RMSNorm,
    llama_parameters,
    load_balancing_loss,
    load_llama,
    pairs_to_halves,
    rope_rotate_pairs,
    route_top_k,
    sliding_window_mask,
    swiglu,
)
from course_pkg.positions import rope_rotate

# RMSNorm


class VariedNorm(RMSNorm):
    """A norm whose parts the bugs below vary."""

    def centre(self, X):
        return X

    def root(self, X):
        return torch.sqrt(X.square().mean(dim=-1, keepdim=True) + self.eps)

    def weigh(self, Y):
        return Y * self.weight.to(Y.dtype)

    def forward(self, X):
        wide = self.centre(X.to(torch.promote_types(X.dtype, torch.float32)))
        return self.weigh((wide / self.root(wide)).to(X.dtype))


@bug(RMSNorm, "the mean is subtracted first, as LayerNorm does", classic=True)
class Centred(VariedNorm):
    def centre(self, X):
        return X - X.mean(dim=-1, keepdim=True)


@bug(RMSNorm, "ε is added outside the root", classic=True)
class EpsOutside(VariedNorm):
    def root(self, X):
        return X.square().mean(dim=-1, keepdim=True).sqrt() + self.eps


@bug(RMSNorm, "the vectors are divided by their standard deviation, though they keep their mean")
class Deviation(VariedNorm):
    def root(self, X):
        return torch.sqrt(X.var(dim=-1, keepdim=True, unbiased=False) + self.eps)


@bug(RMSNorm, "the squares are added up and not averaged: every vector gets the length 1")
class SumOfSquares(VariedNorm):
    def root(self, X):
        return torch.sqrt(X.square().sum(dim=-1, keepdim=True) + self.eps)


@bug(RMSNorm, "the vectors are divided by the mean square, without a root")
class NoRoot(VariedNorm):
    def root(self, X):
        return X.square().mean(dim=-1, keepdim=True) + self.eps


@bug(RMSNorm, "the mean is taken over all vectors together")
class OverAll(VariedNorm):
    def root(self, X):
        return torch.sqrt(X.square().mean() + self.eps)


@bug(RMSNorm, "the vectors are divided by the mean of their absolute values")
class MeanOfAbsolutes(VariedNorm):
    def root(self, X):
        return X.abs().mean(dim=-1, keepdim=True) + self.eps


@bug(RMSNorm, "the weight is not used")
class WithoutWeight(VariedNorm):
    def weigh(self, Y):
        return Y


@bug(RMSNorm, "the features are multiplied by 1 + weight, as in Gemma")
class OnePlusWeight(VariedNorm):
    def weigh(self, Y):
        return Y + super().weigh(Y)


@bug(RMSNorm, "the weight is applied before the root mean square is taken")
class WeightFirst(VariedNorm):
    def centre(self, X):
        return X * self.weight.to(X.dtype)

    def weigh(self, Y):
        return Y


@bug(RMSNorm, "ε is 1e-6 by default")
class SmallerEps(VariedNorm):
    def __init__(self, D, eps=1e-6):
        super().__init__(D, eps)


@bug(RMSNorm, "ε is not added to the mean square")
class NoEps(VariedNorm):
    def root(self, X):
        return X.square().mean(dim=-1, keepdim=True).sqrt()


@bug(RMSNorm, "the ε that is given is not used")
class OwnEps(VariedNorm):
    def __init__(self, D, eps=1e-5):
        super().__init__(D)


@bug(
    RMSNorm,
    "float64 is computed in float32",
    told_by="should change where feature 0 changes by 1e-9 of itself",
)
class SingleAlways(VariedNorm):
    def forward(self, X):
        return self.weigh((X.float() / self.root(X.float())).to(X.dtype))


@bug(RMSNorm, "the weight starts at zero", told_by="weight[0] should be 1, yours is 0")
class StartsAtZero(VariedNorm):
    def __init__(self, D, eps=1e-5):
        super().__init__(D, eps)
        nn.init.zeros_(self.weight)


@bug(
    RMSNorm,
    "there is a bias as well, as in LayerNorm",
    told_by="weight, yours are ['bias', 'weight']",
)
class WithBias(VariedNorm):
    def __init__(self, D, eps=1e-5):
        super().__init__(D, eps)
        self.bias = nn.Parameter(torch.zeros(D))

    def load_state_dict(self, state):
        return super().load_state_dict(state, strict=False)

    def weigh(self, Y):
        return super().weigh(Y) + self.bias.to(Y.dtype)


@bug(
    RMSNorm,
    "the squares are taken in float16, where they overflow",
    told_by="Y of large numbers in float16",
)
class CoarseSquares(VariedNorm):
    def forward(self, X):
        return self.weigh(X / self.root(X))


@bug(RMSNorm, "float16 comes in and float32 goes out", told_by="should be torch.float16 as X is")
class StaysWide(VariedNorm):
    def forward(self, X):
        wide = X.to(torch.promote_types(X.dtype, torch.float32))
        return self.weigh(wide / self.root(wide))


@bug(
    RMSNorm,
    "a weight of float32 makes float32 of float16",
    told_by="weight in float32, should be torch.float16 as X is",
)
class WeighedWide(VariedNorm):
    def weigh(self, Y):
        return Y * self.weight


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


@bug(swiglu, "the gate is a GELU: GEGLU")
def geglu(X, W_gate, W_up, W_down):
    return (functional.gelu(X @ W_gate) * (X @ W_up)) @ W_down


@bug(swiglu, "the gate has no activation")
def bilinear(X, W_gate, W_up, W_down):
    return ((X @ W_gate) * (X @ W_up)) @ W_down


@bug(swiglu, "gate and up are added and not multiplied")
def added(X, W_gate, W_up, W_down):
    return (functional.silu(X @ W_gate) + X @ W_up) @ W_down


@bug(swiglu, "the activation is applied to the product of gate and up")
def silu_of_product(X, W_gate, W_up, W_down):
    return functional.silu((X @ W_gate) * (X @ W_up)) @ W_down


@bug(swiglu, "the activation is applied to up as well")
def silu_of_both(X, W_gate, W_up, W_down):
    return (functional.silu(X @ W_gate) * functional.silu(X @ W_up)) @ W_down


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


# The width of the network


class VariedNetwork(GatedFeedForward):
    """A network whose parts the bugs below vary."""

    def width(self, D, multiple):
        return math.ceil(8 * D // 3 / multiple) * multiple

    def __init__(self, D, F=None, multiple=32):
        super().__init__(D, self.width(D, multiple) if F is None else F)


@bug(GatedFeedForward, "the hidden layer has 4 D features, as in a plain network", classic=True)
class FourTimes(VariedNetwork):
    def width(self, D, multiple):
        return math.ceil(4 * D / multiple) * multiple


@bug(GatedFeedForward, "the width is rounded down to the multiple", classic=True)
class RoundedDown(VariedNetwork):
    def width(self, D, multiple):
        return 8 * D // 3 // multiple * multiple


@bug(GatedFeedForward, "the width is rounded to the nearest multiple")
class Nearest(VariedNetwork):
    def width(self, D, multiple):
        return max(1, round(8 * D // 3 / multiple)) * multiple


@bug(GatedFeedForward, "8/3 D is not rounded down before it is rounded up to a multiple")
class NoFloor(VariedNetwork):
    def width(self, D, multiple):
        return math.ceil(8 * D / 3 / multiple) * multiple


@bug(GatedFeedForward, "the width is not rounded up to a multiple")
class NoMultiple(VariedNetwork):
    def width(self, D, multiple):
        return 8 * D // 3


@bug(GatedFeedForward, "a width that is a multiple already gets one more")
class OneMultipleMore(VariedNetwork):
    def width(self, D, multiple):
        return (8 * D // 3 // multiple + 1) * multiple


@bug(GatedFeedForward, "the width is 2/3 D and not 2/3 of 4 D")
class TwoThirds(VariedNetwork):
    def width(self, D, multiple):
        return math.ceil(2 * D // 3 / multiple) * multiple


@bug(GatedFeedForward, "the multiple that is given is not used")
class Always32(VariedNetwork):
    def width(self, D, multiple):
        return super().width(D, 32)


@bug(GatedFeedForward, "the multiple is 256 by default")
class By256(VariedNetwork):
    def __init__(self, D, F=None, multiple=256):
        super().__init__(D, F, multiple)


@bug(GatedFeedForward, "an F that is given is rounded up as well")
class RoundsTheGiven(VariedNetwork):
    def __init__(self, D, F=None, multiple=32):
        super().__init__(D, None if F is None else -(-F // multiple) * multiple, multiple)

    def load_state_dict(self, state):
        for name, value in state.items():
            setattr(self, name, nn.Parameter(value.clone()))


@bug(GatedFeedForward, "gate and up are exchanged")
class Exchanged(GatedFeedForward):
    def forward(self, X):
        return swiglu(X, self.W_up, self.W_gate, self.W_down)


@bug(GatedFeedForward, "it is a plain network with silu, and W_up does nothing")
class Plain(GatedFeedForward):
    def forward(self, X):
        return plain_network(X, self.W_gate, self.W_up, self.W_down)


@bug(
    GatedFeedForward,
    "W_down is drawn with the deviation of the other two",
    told_by="standard deviation of W_down should be",
)
class SameDeviation(GatedFeedForward):
    def __init__(self, D, F=None, multiple=32):
        super().__init__(D, F, multiple)
        with torch.no_grad():
            self.W_down.normal_(std=D**-0.5)


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


@bug(
    GatedFeedForward,
    "F is kept as a float, which is no size",
    told_by="F should be a whole number, an int, yours is",
)
class FloatSize(GatedFeedForward):
    def __init__(self, D, F=None, multiple=32):
        super().__init__(D, F, multiple)
        self.F = float(self.F)


# Two layouts of one rotation


def hands(X, positions, base, exponents=None, sign=1):
    """Cosines and sines for each position and pair."""
    T, D = X.shape[-2:]
    if D % 2:
        raise ValueError(f"{D} is odd")
    exponents = torch.arange(0, D, 2) / D if exponents is None else exponents
    positions = torch.arange(T) if positions is None else positions
    turn = positions.double()[:, None] * base ** -exponents.double()
    return turn.cos(), sign * turn.sin()


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


@bug(rope_rotate_pairs, "the pairs turn the other way round")
def clockwise(X, positions=None, base=10000.0):
    return woven(X, *hands(X, positions, base, sign=-1))


@bug(rope_rotate_pairs, "both sines have the same sign, which is no rotation")
def no_minus(X, positions=None, base=10000.0):
    cos, sin = hands(X, positions, base)
    x, y = X[..., ::2], X[..., 1::2]
    return torch.stack([x * cos + y * sin, x * sin + y * cos], dim=-1).flatten(-2).to(X.dtype)


@bug(rope_rotate_pairs, "the turned pairs are not put side by side again but left as halves")
def left_as_halves(X, positions=None, base=10000.0):
    turned = rope_rotate_pairs(X, positions, base)
    return torch.cat([turned[..., ::2], turned[..., 1::2]], dim=-1)


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


@bug(rope_rotate_pairs, "the exponent is i/D_h and not 2i/D_h")
def slow_growth(X, positions=None, base=10000.0):
    D = X.shape[-1]
    return woven(X, *hands(X, positions, base, torch.arange(D // 2) / D))


@bug(rope_rotate_pairs, "the exponent is 4i/D_h: i counts features and not pairs")
def fast_growth(X, positions=None, base=10000.0):
    D = X.shape[-1]
    return woven(X, *hands(X, positions, base, 4 * torch.arange(D // 2) / D))


@bug(rope_rotate_pairs, "all pairs turn at the same speed")
def one_speed(X, positions=None, base=10000.0):
    return woven(X, *hands(X, positions, base, torch.zeros(X.shape[-1] // 2)))


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


def demand_heads(W, H):
    """Raise what the right solution raises."""
    if W.shape[1] % (2 * H):
        raise ValueError("no equal and even heads")


@bug(pairs_to_halves, "all columns are reordered together, as one head", classic=True)
def one_head(W, H):
    demand_heads(W, H)
    return pairs_to_halves(W, 1)


@bug(pairs_to_halves, "the order is the reverse one, from halves to pairs", classic=True)
def to_pairs(W, H):
    demand_heads(W, H)
    return W.unflatten(1, (H, 2, -1)).mT.flatten(1)


@bug(pairs_to_halves, "the rows are reordered and not the columns")
def rows_reordered(W, H):
    demand_heads(W, H)
    return torch.cat([W[0::2], W[1::2]])


@bug(pairs_to_halves, "the columns are read as D_h by H, as if the heads took turns")
def heads_in_turns(W, H):
    demand_heads(W, H)
    return W.unflatten(1, (-1, 2, H)).transpose(1, 2).flatten(1)


@bug(pairs_to_halves, "columns 1, 3, 5, … come first, and then columns 0, 2, 4, …")
def odd_first(W, H):
    demand_heads(W, H)
    return W.unflatten(1, (H, -1, 2)).flip(-1).mT.flatten(1)


@bug(pairs_to_halves, "the columns stay where they are")
def unchanged(W, H):
    demand_heads(W, H)
    return W.clone()


@bug(pairs_to_halves, "the first head alone is reordered")
def first_head(W, H):
    demand_heads(W, H)
    size = W.shape[1] // H
    return torch.cat([pairs_to_halves(W[:, :size], 1), W[:, size:]], dim=1)


@bug(pairs_to_halves, "the second half of each head is in reverse order")
def folded(W, H):
    demand_heads(W, H)
    first, second = W.unflatten(1, (H, -1, 2)).unbind(-1)
    return torch.cat([first, second.flip(-1)], dim=-1).flatten(1)


@bug(
    pairs_to_halves, "the even columns of all heads come first, and then the odd ones of each head"
)
def even_of_all(W, H):
    demand_heads(W, H)
    first, second = W.unflatten(1, (H, -1, 2)).unbind(-1)
    return torch.cat([first.flatten(1), second.transpose(1, 2).flatten(1)], dim=1)


@bug(
    pairs_to_halves,
    "the columns are reordered in the matrix that is given",
    told_by="changes its input W in place",
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


def masked(T, window, sinks, past, allowed):
    """Ask a function of n and s; n is the row's place in the whole sequence."""
    if (window is not None and window < 1) or sinks < 0:
        raise ValueError("no such window")
    n, s = torch.arange(past, past + T)[:, None], torch.arange(past + T)
    return allowed(n, s, past + T if window is None else window)


@bug(
    sliding_window_mask,
    "the window holds so many positions besides the position itself",
    classic=True,
)
def besides_itself(T, window=None, sinks=0, past=0):
    return masked(T, window, sinks, past, lambda n, s, w: (s <= n) & ((n - s <= w) | (s < sinks)))


@bug(
    sliding_window_mask,
    "the window forgets the past: it is counted from the first of the new positions",
    classic=True,
)
def window_without_past(T, window=None, sinks=0, past=0):
    return masked(
        T, window, sinks, past, lambda n, s, w: (s <= n) & ((n - past - s < w) | (s < sinks))
    )


@bug(sliding_window_mask, "sinks are seen even by the positions before them", classic=True)
def sinks_ahead(T, window=None, sinks=0, past=0):
    return masked(T, window, sinks, past, lambda n, s, w: ((s <= n) & (n - s < w)) | (s < sinks))


@bug(sliding_window_mask, "the future is not masked, but for what is a window away")
def both_sides(T, window=None, sinks=0, past=0):
    return masked(T, window, sinks, past, lambda n, s, w: ((n - s).abs() < w) | (s < sinks))


@bug(sliding_window_mask, "True stands for what is forbidden")
def inverted(T, window=None, sinks=0, past=0):
    return ~sliding_window_mask(T, window, sinks, past)


@bug(sliding_window_mask, "there are no sinks")
def no_sinks(T, window=None, sinks=0, past=0):
    return masked(T, window, sinks, past, lambda n, s, w: (s <= n) & (n - s < w))


@bug(sliding_window_mask, "the sinks widen the window")
def wider(T, window=None, sinks=0, past=0):
    return masked(T, window, sinks, past, lambda n, s, w: (s <= n) & (n - s < w + sinks))


@bug(sliding_window_mask, "the sinks count as a part of the window, which becomes shorter")
def sinks_in_window(T, window=None, sinks=0, past=0):
    return masked(
        T,
        window,
        sinks,
        past,
        lambda n, s, w: (s <= n) & ((n - s < max(1, w - sinks)) | (s < sinks)),
    )


@bug(sliding_window_mask, "the sinks are the first of the new positions and not of the text")
def sinks_after_past(T, window=None, sinks=0, past=0):
    return masked(
        T,
        window,
        sinks,
        past,
        lambda n, s, w: (s <= n) & ((n - s < w) | ((s >= past) & (s < past + sinks))),
    )


@bug(sliding_window_mask, "the past has no columns")
def no_columns(T, window=None, sinks=0, past=0):
    return sliding_window_mask(T, window, sinks, past)[:, past:]


@bug(sliding_window_mask, "the past is ignored: the new positions see only the oldest ones")
def past_ignored(T, window=None, sinks=0, past=0):
    return masked(
        T,
        window,
        sinks,
        past,
        lambda n, s, w: (s <= n - past) & ((n - past - s < w) | (s < sinks)),
    )


@bug(sliding_window_mask, "a position does not see itself")
def blind(T, window=None, sinks=0, past=0):
    return masked(T, window, sinks, past, lambda n, s, w: (s < n) & ((n - s < w) | (s < sinks)))


@bug(sliding_window_mask, "without a window, only as many positions are seen as are new")
def as_many_as_new(T, window=None, sinks=0, past=0):
    return sliding_window_mask(T, T if window is None else window, sinks, past)


@bug(sliding_window_mask, "the window has one position less than it should")
def one_less(T, window=None, sinks=0, past=0):
    return masked(
        T,
        window,
        sinks,
        past,
        lambda n, s, w: (s <= n) & ((n - s < max(1, w - (window is not None))) | (s < sinks)),
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


def recounted(sizes, **changes):
    """Count, put other numbers in place of some parts, and add up again."""
    found = llama_parameters(**sizes)
    idle = found["total"] - found["active"]
    found |= changes
    found["total"] = sum(
        found[x] for x in ("embedding", "attention", "feed_forward", "norms", "head")
    )
    return found | {"active": found["total"] - idle}


class VariedLlama(LlamaAttention):
    """Llama's attention whose parts the bugs below vary."""

    def places(self, past, T):
        return torch.arange(past, past + T)

    def turn(self, X, places):
        return rope_rotate(X, places, self.base)

    def project(self, X, places):
        Q = self.turn(split_heads(X @ self.W_Q, self.H), places)
        K = self.turn(split_heads(X @ self.W_K, self.G), places)
        return Q, K, split_heads(X @ self.W_V, self.G)

    def extend(self, cache, K, V):
        cache.append(K, V)
        return cache.read()

    def widen(self, K):
        return K.repeat_interleave(self.H // self.G, dim=1)

    def allowed(self, T, past):
        return sliding_window_mask(T, self.window, self.sinks, past)

    def scores(self, Q, K):
        return Q @ K.mT / math.sqrt(self.D_h)

    def forward(self, X, cache=None):
        T, past = X.shape[1], 0 if cache is None else cache.length
        Q, K, V = self.project(X, self.places(past, T))
        if cache is not None:
            K, V = (part.to(Q.dtype) for part in self.extend(cache, K, V))
        A = masked_softmax(self.scores(Q, self.widen(K)), self.allowed(T, past))
        return merge_heads(A @ self.widen(V)) @ self.W_O


@bug(
    LlamaAttention,
    "new positions are turned as if they began at 0 with every call",
    classic=True,
)
class TurnsFromZero(VariedLlama):
    def places(self, past, T):
        return torch.arange(T)


@bug(
    LlamaAttention,
    "keys are turned again when they are read from the cache",
    classic=True,
)
class TurnsTwice(VariedLlama):
    def extend(self, cache, K, V):
        K, V = super().extend(cache, K, V)
        return self.turn(K, torch.arange(K.shape[2])), V


@bug(
    LlamaAttention,
    "keys are kept as they are, and the old ones are turned together with the new ones",
    classic=True,
)
class TurnsTheOldAnew(VariedLlama):
    """Turns what the cache holds from the position of the first new one on."""

    def project(self, X, places):
        self.now = places
        _, K, V = super().project(X, 0 * places)
        Q = self.turn(split_heads(X @ self.W_Q, self.H), places)
        return Q, (K if self.cached else self.turn(K, places)), V

    def extend(self, cache, K, V):
        K, V = super().extend(cache, K, V)
        return self.turn(K, self.now[0] + torch.arange(K.shape[2])), V

    def forward(self, X, cache=None):
        self.cached = cache is not None
        return super().forward(X, cache)


@bug(
    LlamaAttention,
    "keys are kept as they are, and all of them are turned in every call",
    told_by="K in the cache at [",
)
class TurnsAllInEveryCall(TurnsTheOldAnew):
    def extend(self, cache, K, V):
        self.now = torch.zeros(1)
        return super().extend(cache, K, V)


@bug(LlamaAttention, "values are turned as well", classic=True)
class TurnsValues(VariedLlama):
    def project(self, X, places):
        Q, K, V = super().project(X, places)
        return Q, K, self.turn(V, places)


@bug(
    LlamaAttention,
    "neighbouring queries get different key heads: h mod G, not h // (H/G)",
    classic=True,
)
class TakesTurns(VariedLlama):
    def widen(self, K):
        return K.repeat(1, self.H // self.G, 1, 1)


@bug(LlamaAttention, "queries are turned, and keys are not")
class TurnsQueriesOnly(VariedLlama):
    def project(self, X, places):
        Q, _, V = super().project(X, places)
        return Q, split_heads(X @ self.W_K, self.G), V


@bug(LlamaAttention, "neither queries nor keys are turned")
class TurnsNothing(VariedLlama):
    def turn(self, X, places):
        return X


@bug(LlamaAttention, "queries and keys are turned before they are cut into heads")
class TurnsWhole(VariedLlama):
    def project(self, X, places):
        Q, K = self.turn(X @ self.W_Q, places), self.turn(X @ self.W_K, places)
        V = split_heads(X @ self.W_V, self.G)
        return split_heads(Q, self.H), split_heads(K, self.G), V


@bug(LlamaAttention, "neighbouring features are turned as pairs, as in Meta's layout")
class TurnsNeighbours(VariedLlama):
    def turn(self, X, places):
        return rope_rotate_pairs(X, places, self.base)


@bug(LlamaAttention, "base is not used")
class IgnoresBase(VariedLlama):
    def turn(self, X, places):
        return rope_rotate(X, places)


@bug(
    LlamaAttention,
    "positions are counted in X's dtype",
    told_by="Y at position 595 in bfloat16 is off by",
)
class RoundsPositions(VariedLlama):
    def project(self, X, places):
        return super().project(X, places.to(X.dtype))


@bug(LlamaAttention, "later positions are one too high")
class OneTooFar(VariedLlama):
    def places(self, past, T):
        return torch.arange(past, past + T) + (1 if past else 0)


@bug(LlamaAttention, "there is no mask: positions that come together see each other")
class SeesAhead(VariedLlama):
    def allowed(self, T, past):
        return torch.ones(T, past + T) > 0


@bug(LlamaAttention, "the mask ignores the past: new positions see only the oldest ones")
class MasksWithoutPast(VariedLlama):
    def allowed(self, T, past):
        return sliding_window_mask(past + T, self.window, self.sinks)[:T]


@bug(LlamaAttention, "a single new position sees the whole cache, whatever the window")
class MasksOnlyMany(VariedLlama):
    def allowed(self, T, past):
        return super().allowed(T, past) | (T == 1)


@bug(LlamaAttention, "window and sinks are not used")
class NoWindow(VariedLlama):
    def allowed(self, T, past):
        return sliding_window_mask(T, past=past)


@bug(LlamaAttention, "sinks are not used")
class NoSinks(VariedLlama):
    def allowed(self, T, past):
        return sliding_window_mask(T, self.window, past=past)


@bug(
    LlamaAttention,
    "with old positions in the cache, window and sinks do not count from the beginning",
)
class WindowOfTheOld(VariedLlama):
    def allowed(self, T, past):
        everything = sliding_window_mask(T, past=past)
        if past == 0:
            return super().allowed(T, past)
        return everything & (torch.arange(past + T) > past - (self.window or past + 1))


@bug(LlamaAttention, "the scores are divided by √D, not by √D_h")
class RootOfAll(VariedLlama):
    def scores(self, Q, K):
        return Q @ K.mT / math.sqrt(self.H * self.D_h)


@bug(LlamaAttention, "the scores are not divided by √D_h")
class WithoutRoot(VariedLlama):
    def scores(self, Q, K):
        return Q @ K.mT


@bug(LlamaAttention, "new positions see only the new positions")
class SeesTheNew(VariedLlama):
    def extend(self, cache, K, V):
        cache.append(K, V)
        return K, V

    def allowed(self, T, past):
        return super().allowed(T, 0)


@bug(LlamaAttention, "keys and values are mixed up in the cache")
class MixesUp(VariedLlama):
    def extend(self, cache, K, V):
        cache.append(V, K)
        return cache.read()


@bug(LlamaAttention, "the outputs of the heads are not multiplied by W_O")
class WithoutOutput(VariedLlama):
    def forward(self, X, cache=None):
        W_O = self._parameters["W_O"]
        self._parameters["W_O"] = torch.eye(len(W_O), dtype=X.dtype)
        try:
            return super().forward(X, cache)
        finally:
            self._parameters["W_O"] = W_O


@bug(LlamaAttention, "queries are rounded to the precision of the cache")
class RoundedQueries(VariedLlama):
    def forward(self, X, cache=None):
        self.kind = X.dtype if cache is None else cache.read()[0].dtype
        return super().forward(X, cache)

    def scores(self, Q, K):
        return super().scores(Q.to(self.kind).to(Q.dtype), K)


@bug(
    LlamaAttention,
    "keys come from the cache in a dtype that is not the queries'",
    told_by="raised RuntimeError: expected",
)
class MixedDtypes(VariedLlama):
    def forward(self, X, cache=None):
        if cache is None:
            return super().forward(X)
        T, past = X.shape[1], cache.length
        Q, K, V = self.project(X, self.places(past, T))
        K, V = self.extend(cache, K, V)
        A = masked_softmax(self.scores(Q, self.widen(K)), self.allowed(T, past))
        return merge_heads(A @ self.widen(V)) @ self.W_O


@bug(
    LlamaAttention,
    "a number of groups that does not divide the heads is accepted",
    told_by="should raise ValueError when 6 heads are to share 4 of keys",
)
class UnequalGroups(VariedLlama):
    def __init__(self, D, H, G, *others, **options):
        super().__init__(D, H, math.gcd(H, G), *others, **options)


class VariedLayer(LlamaBlock):
    """A layer whose halves the bugs below vary."""

    def attend(self, X, cache):
        return X + self.attention(self.norm_1(X), cache)

    def think(self, X):
        return X + self.feed_forward(self.norm_2(X))

    def forward(self, X, cache=None):
        return self.think(self.attend(X, cache))


@bug(LlamaBlock, "the norms come after the additions, as in the first transformer", classic=True)
class NormsLast(VariedLayer):
    def attend(self, X, cache):
        return self.norm_1(X + self.attention(X, cache))

    def think(self, X):
        return self.norm_2(X + self.feed_forward(X))


@bug(
    LlamaBlock,
    "the second half reads the block's input, and not what attention has added to it",
    classic=True,
)
class SideBySide(VariedLayer):
    def forward(self, X, cache=None):
        return self.attend(X, cache) + self.think(X) - X


@bug(LlamaBlock, "attention is not added to what comes in, but takes its place")
class AttentionAlone(VariedLayer):
    def attend(self, X, cache):
        return self.attention(self.norm_1(X), cache)


@bug(LlamaBlock, "the network is not added to what comes in, but takes its place")
class NetworkAlone(VariedLayer):
    def think(self, X):
        return self.feed_forward(self.norm_2(X))


@bug(LlamaBlock, "attention is added to the normalised vectors")
class AddsToTheNormal(VariedLayer):
    def attend(self, X, cache):
        X = self.norm_1(X)
        return X + self.attention(X, cache)


@bug(LlamaBlock, "the network is added to the normalised vectors")
class ThinksFromTheNormal(VariedLayer):
    def think(self, X):
        X = self.norm_2(X)
        return X + self.feed_forward(X)


@bug(LlamaBlock, "norm_1 is used twice")
class OneNorm(VariedLayer):
    def think(self, X):
        return X + self.feed_forward(self.norm_1(X))


@bug(LlamaBlock, "the two norms change places")
class OtherNorms(VariedLayer):
    def attend(self, X, cache):
        return X + self.attention(self.norm_2(X), cache)

    def think(self, X):
        return X + self.feed_forward(self.norm_1(X))


@bug(LlamaBlock, "attention reads vectors that are not normalised")
class AttendsRaw(VariedLayer):
    def attend(self, X, cache):
        return X + self.attention(X, cache)


@bug(LlamaBlock, "the network reads vectors that are not normalised")
class ThinksRaw(VariedLayer):
    def think(self, X):
        return X + self.feed_forward(X)


@bug(LlamaBlock, "the network comes first, and then attention")
class ThinksFirst(VariedLayer):
    def forward(self, X, cache=None):
        return self.attend(self.think(X), cache)


@bug(LlamaBlock, "the cache is not handed to attention")
class WithoutCache(VariedLayer):
    def attend(self, X, cache):
        return super().attend(X, None)


@bug(LlamaBlock, "the cache is handed on only when a single position comes")
class CacheForOne(LlamaBlock):
    def forward(self, X, cache=None):
        X = X + self.attention(self.norm_1(X), cache if X.shape[1] == 1 else None)
        return X + self.feed_forward(self.norm_2(X))


@bug(LlamaBlock, "only the network is applied")
class NoAttention(VariedLayer):
    def attend(self, X, cache):
        return X


@bug(LlamaBlock, "only attention is applied")
class NoNetwork(VariedLayer):
    def think(self, X):
        return X


class VariedModel(Llama):
    """A model whose parts the bugs below vary."""

    def embed(self, tokens):
        return self.token(tokens)

    def cache(self, caches, number):
        return caches[number]

    def through(self, X, caches):
        for number, block in enumerate(self.blocks):
            X = block(X, None if caches is None else self.cache(caches, number))
        return X

    def head(self):
        return self.token.weight.T if self.W_head is None else self.W_head

    def score(self, X):
        return self.norm(X) @ self.head()

    def forward(self, tokens, caches=None):
        return self.score(self.through(self.embed(tokens), caches))


@bug(Llama, "there is no norm before the head", classic=True)
class NoLastNorm(VariedModel):
    def score(self, X):
        return X @ self.head()


@bug(Llama, "the norm comes before the blocks, and not after them")
class NormFirst(VariedModel):
    def embed(self, tokens):
        return self.norm(self.token(tokens))

    def score(self, X):
        return X @ self.head()


@bug(Llama, "the norm comes after every block")
class NormEachTime(VariedModel):
    def through(self, X, caches):
        for number, block in enumerate(self.blocks):
            X = self.norm(block(X, None if caches is None else caches[number]))
        return X

    def score(self, X):
        return X @ self.head()


@bug(Llama, "the embedding is multiplied by √D, as in the first transformer")
class ScaledEmbedding(VariedModel):
    def embed(self, tokens):
        return self.token(tokens) * math.sqrt(self.token.embedding_dim)


@bug(Llama, "every block reads the embedding, and the last one decides")
class FromTheEmbedding(VariedModel):
    def through(self, X, caches):
        found = [
            block(X, None if caches is None else caches[number])
            for number, block in enumerate(self.blocks)
        ]
        return found[-1]


@bug(Llama, "the blocks are applied in reverse")
class Backwards(VariedModel):
    def through(self, X, caches):
        for number in reversed(range(len(self.blocks))):
            X = self.blocks[number](X, None if caches is None else caches[number])
        return X


@bug(Llama, "only the first block is applied")
class FirstBlock(VariedModel):
    def through(self, X, caches):
        return self.blocks[0](X, None if caches is None else caches[0])


@bug(Llama, "the last block is left out")
class LastLeftOut(VariedModel):
    def through(self, X, caches):
        for number, block in enumerate(self.blocks[:-1]):
            X = block(X, None if caches is None else caches[number])
        return X


@bug(Llama, "all layers use the first cache", told_by="do not fit into a cache for")
class OneCacheForAll(VariedModel):
    def cache(self, caches, number):
        return caches[0]


@bug(Llama, "the caches are not handed to the blocks")
class NoCaches(VariedModel):
    def cache(self, caches, number):
        return None


@bug(Llama, "only the first layer gets its cache")
class CacheForTheFirst(VariedModel):
    def cache(self, caches, number):
        return None if number else caches[0]


@bug(Llama, "the caches are handed out in reverse, the last one to the first layer")
class CachesReversed(Llama):
    def forward(self, tokens, caches=None):
        return super().forward(tokens, None if caches is None else caches[::-1])


@bug(Llama, "probabilities are returned, and not logits")
class Probabilities(VariedModel):
    def score(self, X):
        return torch.softmax(super().score(X), dim=-1)


@bug(Llama, "logarithms of probabilities are returned, and not logits")
class LogProbabilities(VariedModel):
    def score(self, X):
        return torch.log_softmax(super().score(X), dim=-1)


@bug(Llama, "the embedding is used to score the tokens even when the model is not tied")
class AlwaysTied(VariedModel):
    def head(self):
        return self.token.weight.T


@bug(Llama, "only the last token gets logits", told_by="logits should have shape")
class LastToken(VariedModel):
    def score(self, X):
        return super().score(X[:, -1:])


def varied_route(logits, k, choose=None, share=None, largest=True):
    """Route as one should, with one part exchanged."""
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError("k is impossible")
    best, experts = logits.topk(k, dim=-1, largest=largest)
    if choose is not None:
        experts = choose(experts)
        best = logits.gather(-1, experts)
    return (torch.softmax(best, dim=-1) if share is None else share(best)), experts


@bug(
    route_top_k,
    "softmax is taken over all experts, and the weights do not sum to one",
    classic=True,
)
def over_all(logits, k):
    _, experts = varied_route(logits, k)
    return torch.softmax(logits, dim=-1).gather(-1, experts), experts


@bug(llama_parameters, "keys and values are counted as if they had H heads", classic=True)
def all_heads(**sizes):
    return recounted(sizes, attention=4 * sizes["L"] * sizes["D"] ** 2)


@bug(llama_parameters, "head and embedding are counted once though they are not tied", classic=True)
def always_tied(tied=False, **sizes):
    return llama_parameters(tied=True, **sizes)


@bug(llama_parameters, "all experts are counted as active", classic=True)
def all_active(**sizes):
    found = llama_parameters(**sizes)
    return found | {"active": found["total"]}


@bug(llama_parameters, "head and embedding are counted twice even where they are tied")
def never_tied(tied=False, **sizes):
    return llama_parameters(tied=False, **sizes)


@bug(llama_parameters, "the network is counted as two matrices, as in a plain one")
def two_matrices(**sizes):
    found = llama_parameters(**sizes)
    each = sizes["L"] * sizes["D"] * sizes["F"]
    E, k = sizes.get("experts") or 1, sizes.get("k", 2) if sizes.get("experts") else 1
    found["feed_forward"] -= each * E
    found["total"] -= each * E
    found["active"] -= each * k
    return found


@bug(llama_parameters, "the routers are left out")
def no_routers(**sizes):
    found = llama_parameters(**sizes)
    routers = sizes["L"] * sizes["D"] * (sizes.get("experts") or 0)
    return recounted(sizes, feed_forward=found["feed_forward"] - routers)


@bug(llama_parameters, "the norm at the end is left out")
def no_last_norm(**sizes):
    return recounted(sizes, norms=2 * sizes["L"] * sizes["D"])


@bug(llama_parameters, "a layer has one norm")
def one_norm(**sizes):
    return recounted(sizes, norms=(sizes["L"] + 1) * sizes["D"])


@bug(llama_parameters, "the norms have biases as well, as LayerNorm has")
def norms_with_biases(**sizes):
    return recounted(sizes, norms=2 * (2 * sizes["L"] + 1) * sizes["D"])


@bug(llama_parameters, "W_O is left out")
def no_output(**sizes):
    D, H, G, L = (sizes[x] for x in "DHGL")
    return recounted(sizes, attention=L * D * (D + 2 * G * (D // H)))


@bug(llama_parameters, "keys have G heads, but values have H")
def values_of_all(**sizes):
    D, H, G, L = (sizes[x] for x in "DHGL")
    return recounted(sizes, attention=L * D * (3 * D + G * (D // H)))


@bug(llama_parameters, "one layer is counted")
def one_layer(L, **sizes):
    return llama_parameters(L=1, **sizes)


@bug(llama_parameters, "one expert is active, whatever k is")
def one_expert(k=2, **sizes):
    return llama_parameters(k=1, **sizes)


@bug(llama_parameters, "the routers of the experts that a token does not get are idle as well")
def idle_routers(**sizes):
    found = llama_parameters(**sizes)
    E = sizes.get("experts")
    if E:
        found["active"] -= sizes["L"] * sizes["D"] * (E - sizes.get("k", 2))
    return found


@bug(llama_parameters, "the embedding is not counted as active")
def idle_embedding(**sizes):
    found = llama_parameters(**sizes)
    return found | {"active": found["active"] - found["embedding"]}


@bug(llama_parameters, "the total is what is active")
def active_total(**sizes):
    found = llama_parameters(**sizes)
    return found | {"total": found["active"]}


@bug(llama_parameters, "the numbers are floats", told_by="should be an int, yours is")
def as_floats(**sizes):
    return {name: float(number) for name, number in llama_parameters(**sizes).items()}


# The published weights


def converted(state, change):
    """Convert, and let a function change the name and the value of each weight."""
    changed = [change(name, value) for name, value in load_llama(state).items()]
    return {name: value for name, value in changed if name}


def exchanged(state, names):
    """Convert, and exchange names."""

    def change(name, value):
        for old, new in names.items():
            if old in name:
                return name.replace(old, new), value
        return name, value

    return converted(state, change)


@bug(load_llama, "not all matrices are transposed", classic=True)
def not_turned(state):
    return converted(state, lambda n, v: (n, v.mT if ".W_" in n or n == "W_head" else v))


@bug(
    load_llama,
    "W_Q and W_K are reordered, though files have them in the order of halves",
    classic=True,
)
def halves_again(state):
    def change(name, value):
        heads = value.shape[-1] // 2 if name.endswith(("W_Q", "W_K")) else 0
        return name, pairs_to_halves(value, 1) if heads else value

    return converted(state, change)


@bug(
    load_llama,
    "up and gate are exchanged: w3 and up_proj are read as the gates",
    classic=True,
)
def gates_from_up(state):
    return exchanged(state, {"W_gate": "W_up", "W_up": "W_gate"})


@bug(load_llama, "an expert's w3 is read as its gate, and w1 as up")
def experts_exchanged(state):
    def change(name, value):
        if value.dim() == 3:
            name = {"W_gate": name[:-6] + "W_up"}.get(name[-6:], name.replace("W_up", "W_gate"))
        return name, value

    return converted(state, change)


@bug(load_llama, "gate_proj and up_proj are exchanged, but not w1 and w3")
def dense_exchanged(state):
    def change(name, value):
        if value.dim() == 2:
            name = {"W_gate": name[:-6] + "W_up"}.get(name[-6:], name.replace("W_up", "W_gate"))
        return name, value

    return converted(state, change)


@bug(load_llama, "w1, w2 and w3 are read as gate, up and down")
def in_order(state):
    return (
        exchanged(state, {"W_up": "W_down", "W_down": "W_up"})
        if is_mixtral(state)
        else load_llama(state)
    )


def is_mixtral(state):
    return any("block_sparse_moe" in name for name in state)


@bug(load_llama, "lm_head is not transposed")
def head_not_turned(state):
    return converted(state, lambda n, v: (n, v.mT if n == "W_head" else v))


@bug(load_llama, "the embedding is transposed like the matrices")
def embedding_turned(state):
    return converted(state, lambda n, v: (n, v.mT if n == "token.weight" else v))


@bug(load_llama, "the routers are not transposed")
def routers_not_turned(state):
    return converted(state, lambda n, v: (n, v.mT if n.endswith("W_router") else v))


@bug(load_llama, "the experts' matrices are not transposed")
def experts_not_turned(state):
    return converted(state, lambda n, v: (n, v.mT if v.dim() == 3 else v))


@bug(load_llama, "queries and keys are exchanged")
def keys_first(state):
    return exchanged(state, {"W_Q": "W_K", "W_K": "W_Q"})


@bug(load_llama, "keys and values are exchanged")
def values_first(state):
    return exchanged(state, {"W_V": "W_K", "W_K": "W_V"})


@bug(load_llama, "the two norms of a layer are exchanged")
def norms_exchanged(state):
    return exchanged(state, {"norm_1": "norm_2", "norm_2": "norm_1"})


@bug(load_llama, "every layer gets the weights of the first")
def first_layer(state):
    ours = load_llama(state)

    def change(name, value):
        if name.startswith("blocks."):
            value = ours["blocks.0." + name.split(".", 2)[2]]
        return name, value

    return converted(state, change)


@bug(load_llama, "every expert gets the weights of the first")
def same_expert(state):
    return converted(state, lambda n, v: (n, v[:1].expand_as(v) if v.dim() == 3 else v))


@bug(load_llama, "layers are sorted as text, so that 10 comes before 2")
def order_of_text(state):
    numbers = sorted({n.split(".")[1] for n in load_llama(state) if n.startswith("blocks.")})

    def change(name, value):
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            name = f"blocks.{numbers.index(number)}.{rest}"
        return name, value

    return converted(state, change)


@bug(load_llama, "experts are sorted as text, so that 10 comes before 2")
def experts_as_text(state):
    def change(name, value):
        if value.dim() == 3:
            value = value[[int(e) for e in sorted(map(str, range(len(value))))]]
        return name, value

    return converted(state, change)


@bug(load_llama, "experts are stacked in the order in which the file has them")
def order_of_file(state):
    found = [name.split(".")[5] for name in state if ".experts." in name]
    order = [int(e) for e in dict.fromkeys(found)]
    return converted(state, lambda n, v: (n, v[order] if v.dim() == 3 else v))


@bug(
    load_llama,
    "a head is made of the embedding where lm_head is missing",
    told_by="W_head does not belong in your state",
)
def head_from_embedding(state):
    ours = load_llama(state)
    return {"W_head": ours["token.weight"].mT, **ours}


@bug(
    load_llama,
    "layers of other models, whose names only end alike, are taken for ours",
    told_by="should raise ValueError when the state has vision_model",
)
def layers_of_others(state):
    names = {name: name.removeprefix("vision_") for name in state}
    return load_llama({name: state[other] for other, name in names.items()})


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


@bug(
    load_llama,
    "names that are not known are silently left out",
    told_by="should raise ValueError when the state has model.layers.0.self_attn.q_proj.bias",
)
def nothing_refused(state):
    ours = {}
    for name, value in state.items():
        try:
            load_llama({name: value})
        except ValueError:
            continue
        ours[name] = value
    return load_llama(ours)


@bug(
    load_llama,
    "biases are taken for weights",
    told_by="should raise ValueError when the state has model.layers.0.self_attn.q_proj.bias",
)
def biases_taken(state):
    known = {n: v for n, v in state.items() if "layers" not in n or not n.endswith(".bias")}
    return load_llama(known)


@bug(
    load_llama,
    "what a norm has besides its weight is left out",
    told_by="should raise ValueError when the state has model.layers.0.input_layernorm.bias",
)
def norm_biases_left_out(state):
    return load_llama({n: v for n, v in state.items() if not n.endswith("norm.bias")})


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


@bug(route_top_k, "all chosen experts get the same weight")
def all_the_same(logits, k):
    return varied_route(logits, k, share=lambda best: torch.softmax(0 * best, dim=-1))


@bug(route_top_k, "the worst experts are chosen")
def worst(logits, k):
    return varied_route(logits, k, largest=False)


@bug(route_top_k, "the first k experts are chosen")
def first_ones(logits, k):
    return varied_route(logits, k, choose=lambda experts: torch.arange(k).expand_as(experts))


@bug(route_top_k, "the best expert comes last")
def best_last(logits, k):
    return varied_route(logits, k, choose=lambda experts: experts.flip(-1))


@bug(route_top_k, "the experts come in the order of their numbers")
def by_number(logits, k):
    return varied_route(logits, k, choose=lambda experts: experts.sort(dim=-1).values)


@bug(route_top_k, "softmax is taken over the tokens")
def over_tokens(logits, k):
    return varied_route(logits, k, share=lambda best: torch.softmax(best, dim=0))


@bug(route_top_k, "the logits themselves are divided by their sum")
def no_exponential(logits, k):
    return varied_route(logits, k, share=lambda best: best / best.sum(dim=-1, keepdim=True))


@bug(route_top_k, "the weights are sigmoids of the logits")
def sigmoids(logits, k):
    return varied_route(logits, k, share=torch.sigmoid)


@bug(route_top_k, "softmax is taken twice")
def twice(logits, k):
    return varied_route(torch.softmax(logits, dim=-1), k)


@bug(route_top_k, "the exponentials of large scores overflow", told_by="yours is nan")
def overflowing(logits, k):
    def share(best):
        return best.exp() / best.exp().sum(dim=-1, keepdim=True)

    return varied_route(logits, k, share=share)


@bug(
    route_top_k,
    "the experts come before the weights",
    told_by="should hold whole numbers, yours holds real numbers",
)
def other_way_round(logits, k):
    return varied_route(logits, k)[::-1]


@bug(route_top_k, "the weights pass no gradient back", told_by="No gradient goes back from")
def no_gradient(logits, k):
    return varied_route(logits.detach(), k)


@bug(
    route_top_k,
    "k may be more than there are experts",
    told_by="when k is 6 and there are 5 experts",
)
def more_than_all(logits, k):
    return varied_route(logits, min(k, logits.shape[-1]))


@bug(route_top_k, "no expert at all is accepted", told_by="should raise ValueError when k is 0")
def none_at_all(logits, k):
    if k > logits.shape[-1]:
        raise ValueError("k is impossible")
    best, experts = logits.topk(max(k, 0), dim=-1)
    return torch.softmax(best, dim=-1), experts


def loads(experts, E):
    """Count the tokens of each expert, for each token."""
    return F.one_hot(experts, E).sum(dim=1).double()  # (M, E)


@bug(
    load_balancing_loss,
    "the gradient goes through f, made of probabilities, and not through P",
    classic=True,
)
def through_f(logits, experts):
    p = torch.softmax(logits, dim=-1)
    f = (loads(experts, logits.shape[1]) + p - p.detach()).mean(dim=0)
    return logits.shape[1] * (f * p.detach().mean(dim=0)).sum()


@bug(load_balancing_loss, "P stands in the place of f as well: it is E Σ P²", classic=True)
def squared(logits, experts):
    P = torch.softmax(logits, dim=-1).mean(dim=0)
    return len(P) * (P * P).sum()


@bug(load_balancing_loss, "the sum is not multiplied by E", classic=True)
def without_E(logits, experts):
    return load_balancing_loss(logits, experts) / logits.shape[1]


@bug(load_balancing_loss, "f is divided by all k M choices, and not by M")
def per_choice(logits, experts):
    return load_balancing_loss(logits, experts) / experts.shape[1]


@bug(load_balancing_loss, "f, or P, is not divided by M")
def a_sum_for_a_mean(logits, experts):
    return load_balancing_loss(logits, experts) * len(logits)


@bug(load_balancing_loss, "only each token's first expert is counted")
def first_choice(logits, experts):
    return load_balancing_loss(logits, experts[:, :1])


@bug(load_balancing_loss, "each token is counted for its best expert, whatever experts says")
def best_by_logits(logits, experts):
    return load_balancing_loss(logits, logits.argmax(dim=1, keepdim=True))


@bug(load_balancing_loss, "the loads are squared: it is E Σ f²")
def loads_squared(logits, experts):
    f = loads(experts, logits.shape[1]).mean(dim=0)
    return len(f) * (f * f).sum() + 0 * logits.sum()


@bug(load_balancing_loss, "f and P are multiplied for each token, and averaged afterwards")
def token_by_token(logits, experts):
    E = logits.shape[1]
    return E * (loads(experts, E) * torch.softmax(logits, dim=-1)).sum(dim=1).mean()


@bug(load_balancing_loss, "P is a mean of the logits themselves")
def raw_logits(logits, experts):
    f = loads(experts, logits.shape[1]).mean(dim=0)
    return len(f) * (f * logits.mean(dim=0)).sum()


@bug(load_balancing_loss, "softmax is taken over the tokens")
def over_the_tokens(logits, experts):
    f = loads(experts, logits.shape[1]).mean(dim=0)
    return len(f) * (f * torch.softmax(logits, dim=0).mean(dim=0)).sum()


@bug(load_balancing_loss, "softmax is taken over the mean of the logits")
def softmax_of_the_mean(logits, experts):
    f = loads(experts, logits.shape[1]).mean(dim=0)
    return len(f) * (f * torch.softmax(logits.mean(dim=0), dim=0)).sum()


@bug(
    load_balancing_loss,
    "experts behind the last one that is used are not counted",
    told_by="raised RuntimeError: The size of tensor",
)
def used_ones(logits, experts):
    M, E = logits.shape
    f = torch.bincount(experts.flatten()).double() / M
    return E * (f * torch.softmax(logits, dim=-1).mean(dim=0)).sum()


@bug(load_balancing_loss, "the loss passes no gradient back", told_by="No gradient goes back from")
def detached(logits, experts):
    return load_balancing_loss(logits.detach(), experts)


class VariedMixture(MixtureOfExperts):
    """A mixture whose parts the bugs below vary."""

    def route(self, tokens):
        return route_top_k(tokens @ self.W_router, self.k)

    def full(self, rows, slots, weights):
        """Which of an expert's tokens it takes."""
        return torch.arange(len(rows)) < (len(rows) if self.capacity is None else self.capacity)

    def expert(self, e, X, w):
        return w * swiglu(X, self.W_gate[e], self.W_up[e], self.W_down[e])

    def add(self, Y, rows, out):
        return Y.index_add(0, rows, out)

    def forward(self, X):
        self.shape = X.shape
        tokens = X.reshape(-1, X.shape[-1])
        weights, experts = self.route(tokens)
        places = [torch.where(experts == e) for e in range(len(self.W_gate))]
        places = [(r[t], s[t]) for r, s in places for t in [self.full(r, s, weights)]]
        weights = self.after(weights, places)
        Y = torch.zeros_like(tokens)
        for e, (rows, slots) in enumerate(places):
            Y = self.add(Y, rows, self.expert(e, tokens[rows], weights[rows, slots, None]))
        return Y.view_as(X)

    def after(self, weights, places):
        """The weights after it is known which experts take which tokens."""
        return weights


@bug(MixtureOfExperts, "all of a token's experts get the weight 1/k", classic=True)
class Equal(VariedMixture):
    def route(self, tokens):
        weights, experts = super().route(tokens)
        return 0 * weights + 1 / self.k, experts


@bug(
    MixtureOfExperts,
    "a token's other weights are made to sum to one after an expert has dropped it",
    classic=True,
)
class Renormalised(VariedMixture):
    def after(self, weights, places):
        taken = torch.zeros_like(weights)
        for rows, slots in places:
            taken[rows, slots] = 1
        left = (weights * taken).sum(dim=1, keepdim=True)
        return weights / torch.where(left > 0, left, 1)


@bug(MixtureOfExperts, "the capacity holds for each sequence by itself", classic=True)
class SequenceBySequence(VariedMixture):
    def full(self, rows, slots, weights):
        if self.capacity is None or len(self.shape) < 3:
            return super().full(rows, slots, weights)
        sequence = rows // self.shape[-2]
        before = (sequence[:, None] == sequence).tril(-1).sum(dim=1)
        return before < self.capacity


@bug(MixtureOfExperts, "the weights come from a softmax over all experts")
class OverAllExperts(VariedMixture):
    def route(self, tokens):
        logits = tokens @ self.W_router
        _, experts = route_top_k(logits, self.k)
        return torch.softmax(logits, dim=1).gather(1, experts), experts


@bug(MixtureOfExperts, "what the experts return is added without weights")
class Unweighted(VariedMixture):
    def expert(self, e, X, w):
        return super().expert(e, X, torch.ones_like(w))


@bug(MixtureOfExperts, "the weights multiply what goes into the experts")
class WeightedInputs(VariedMixture):
    def expert(self, e, X, w):
        return super().expert(e, w * X, torch.ones_like(w))


@bug(MixtureOfExperts, "every expert counts as much as a token's best one")
class WeightOfTheBest(VariedMixture):
    def after(self, weights, places):
        return weights[:, :1].expand_as(weights)


@bug(MixtureOfExperts, "the expert with the highest number wins: what it returns is not added")
class Overwritten(VariedMixture):
    def add(self, Y, rows, out):
        return Y.index_put((rows,), out)


@bug(MixtureOfExperts, "capacity is not used")
class NoCapacity(VariedMixture):
    def full(self, rows, slots, weights):
        return torch.ones_like(rows, dtype=torch.bool)


@bug(MixtureOfExperts, "a capacity of 0 is no limit")
class ZeroIsNoLimit(MixtureOfExperts):
    def forward(self, X):
        self.capacity = self.capacity or None
        return super().forward(X)


@bug(
    MixtureOfExperts,
    "what the experts return is added up in float32, whatever X is",
    told_by="should be torch.bfloat16 as X is, yours is torch.float32",
)
class AddsInFloat32(MixtureOfExperts):
    def forward(self, X):
        return super().forward(X).float()


@bug(MixtureOfExperts, "an expert takes the tokens that come last")
class LastOnes(VariedMixture):
    def full(self, rows, slots, weights):
        return super().full(rows, slots, weights).flip(0)


@bug(MixtureOfExperts, "an expert takes the tokens for which it counts most")
class Heaviest(VariedMixture):
    def full(self, rows, slots, weights):
        order = weights[rows, slots].argsort(descending=True)
        return super().full(rows, slots, weights)[order.argsort()]


@bug(MixtureOfExperts, "first choices are served before second ones")
class FirstChoices(VariedMixture):
    def full(self, rows, slots, weights):
        order = (slots * len(weights) + rows).argsort()
        return super().full(rows, slots, weights)[order.argsort()]


@bug(MixtureOfExperts, "first and second choices are counted apart")
class CountedApart(VariedMixture):
    def full(self, rows, slots, weights):
        if self.capacity is None:
            return super().full(rows, slots, weights)
        before = (slots[:, None] == slots).tril(-1).sum(dim=1)
        return before < self.capacity


@bug(MixtureOfExperts, "an expert takes one token more than its capacity")
class OneMore(VariedMixture):
    def full(self, rows, slots, weights):
        taken = super().full(rows, slots, weights)
        return torch.cat([taken.new_ones(1), taken])[: len(rows)]


@bug(MixtureOfExperts, "tokens that all experts dropped stay as they are")
class Unchanged(VariedMixture):
    def forward(self, X):
        Y = super().forward(X)
        return torch.where((Y == 0).all(dim=-1, keepdim=True), X, Y)


@bug(MixtureOfExperts, "the first position of all sequences comes before the second of any")
class PositionByPosition(VariedMixture):
    def forward(self, X):
        return super().forward(X.transpose(0, -2)).transpose(0, -2) if X.dim() > 1 else X


@bug(MixtureOfExperts, "W_up makes the gates, and W_gate what passes through them")
class GateAndUp(VariedMixture):
    def expert(self, e, X, w):
        return w * swiglu(X, self.W_up[e], self.W_gate[e], self.W_down[e])


@bug(MixtureOfExperts, "every token passes through the first k experts")
class FirstExperts(VariedMixture):
    def route(self, tokens):
        weights, experts = super().route(tokens)
        return weights, torch.arange(self.k).expand_as(experts)


@bug(MixtureOfExperts, "the router gets no gradient", told_by="No gradient reaches W_router")
class NoRouter(VariedMixture):
    def route(self, tokens):
        weights, experts = super().route(tokens)
        return weights.detach(), experts


class Varied(LoRA):
    """An adapter whose parts the bugs below vary."""

    def forward(self, X):
        return X @ self.W + self.scale * ((X @ self.A) @ self.B)


@bug(LoRA, "B is drawn as A is, and does not start at zero", classic=True)
class RandomB(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        nn.init.normal_(self.B, std=len(W) ** -0.5)


@bug(LoRA, "what is added is scaled by alpha, not by alpha / r", classic=True)
class ScaledByAlpha(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        self.scale = alpha


@bug(LoRA, "what is added is scaled by alpha, not by alpha / r", classic=True)
class ScaledByAlphaDrawnElse(ScaledByAlpha):
    """The same with an A that is drawn by other means: it has no part in the mistake."""

    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        nn.init.normal_(self.A, std=len(W) ** -0.5)


@bug(
    LoRA, "W is a parameter, and trains", told_by="should be A, B, yours are A, B, W", classic=True
)
class TrainsW(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        del self.W
        self.W = nn.Parameter(W.detach().clone())


@bug(
    LoRA,
    "merge adds to W in place",
    told_by="It has changed W in place.",
    classic=True,
)
class InPlace(Varied):
    def merge(self):
        self.W += (self.scale * self.A @ self.B).detach()
        return self.W + 0 * (self.A @ self.B)


@bug(LoRA, "what is added is scaled by alpha / √r")
class RootOfRank(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        self.scale = alpha / math.sqrt(r)


@bug(LoRA, "what is added is scaled by r / alpha")
class UpsideDown(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        self.scale = r / alpha


@bug(LoRA, "what is added is not scaled")
class Unscaled(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        self.scale = 1.0


@bug(LoRA, "what is merged is not scaled")
class MergesUnscaled(Varied):
    def merge(self):
        return self.W + self.A @ self.B


@bug(LoRA, "merge gives what is added, without W")
class MergesTheRest(Varied):
    def merge(self):
        return self.scale * (self.A @ self.B)


@bug(LoRA, "merge gives W alone")
class MergesNothing(Varied):
    def merge(self):
        return self.W + 0 * (self.A @ self.B)


@bug(LoRA, "X is not multiplied by W, only by what is added")
class WithoutW(Varied):
    def forward(self, X):
        return self.scale * (X @ self.A @ self.B)


@bug(LoRA, "X W is scaled too")
class ScalesAll(Varied):
    def forward(self, X):
        return self.scale * (X @ self.W + X @ self.A @ self.B)


@bug(LoRA, "W is the given matrix itself and no copy, so that it changes when that does")
class NotCopied(LoRA):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        self.W = W.detach()


@bug(LoRA, "merge returns W itself as long as B is zero")
class MergesToItself(LoRA):
    def merge(self):
        return super().merge() if self.B.any() else self.W


@bug(
    LoRA,
    "merge returns what it has computed the first time, though A and B have changed",
    told_by="LoRA.merge depends on an earlier call",
)
class MergesOnce(LoRA):
    def merge(self):
        if not hasattr(self, "merged"):
            self.merged = super().merge()
        return self.merged


@bug(LoRA, "A and B are multiplied first", told_by="should be finite where (X A) B is finite")
class MergesFirst(Varied):
    def forward(self, X):
        return X @ self.merge()


@bug(LoRA, "A starts at zero, and B is drawn")
class ZeroA(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        nn.init.zeros_(self.A)
        nn.init.normal_(self.B, std=r**-0.5)


@bug(LoRA, "A starts at zero as well: nothing can train", told_by="standard deviation of A should")
class BothZero(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        nn.init.zeros_(self.A)


@bug(LoRA, "A is drawn from N(0, 1)")
class WideA(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        nn.init.normal_(self.A)


@bug(LoRA, "A is drawn from a uniform distribution", told_by="share of A within one standard")
class UniformA(LoRA):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        with torch.no_grad():
            self.A.uniform_(-1, 1).mul_(math.sqrt(3 / len(W)))


@bug(LoRA, "A is drawn from N(0, 1/r)")
class RankWideA(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        nn.init.normal_(self.A, std=r**-0.5)


@bug(LoRA, "W is not a buffer", told_by='Unexpected key(s) in state_dict: "W"')
class ForgetsW(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        del self.W
        self.W = W.detach().clone()


@bug(LoRA, "A and B are float32, whatever W is", told_by="as W is, yours is torch.float32")
class SinglePrecision(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        self.A = nn.Parameter(self.A.detach().float())
        self.B = nn.Parameter(self.B.detach().float())


@bug(LoRA, "a rank of 0 is accepted", told_by="should raise ValueError when r is 0")
class NoRank(Varied):
    def __init__(self, W, r, alpha):
        super().__init__(W, max(r, 1), alpha)


places = "positions = torch.arange(past, past + T"


equivalent(
    LlamaAttention,
    f"{places}, device=X.device) → {places})",
    "checks compute on the CPU",
)


add = "Y = Y.index_add(0, rows, weights[{}] * out)"


equivalent(
    MixtureOfExperts,
    f"{add.format('rows, slots, None')} → {add.format('rows, None, slots')}",
    "the same weights in the same column",
)
