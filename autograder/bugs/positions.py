"""Known wrong solutions of positions."""

import math

import torch
from torch import nn
from torch.nn import functional

from autograder.bugs import bug, equivalent
from course_pkg.attention import masked_softmax, merge_heads, split_heads
from course_pkg.positions import (
    LearnedPositions,
    RotaryAttention,
    interpolate_positions,
    linear_positions,
    rope_rotate,
    shaw_relative_attention,
    sinusoidal_positions,
)


def numbered(t, D):
    return t.float()[:, None].repeat(1, D)


def linear(T, D, normalise=False):
    return linear_positions(T, D, normalise)


@bug(linear_positions, "positions are counted from 1")
def from_one(T, D, normalise=False):
    t = torch.arange(1, T + 1)
    return numbered(t / T if normalise else t, D)


@bug(linear_positions, "the features are numbered instead of the positions")
def features_numbered(T, D, normalise=False):
    return linear(D, T, normalise).T.contiguous()


@bug(linear_positions, "the numbers are divided by T, so that they end before 1")
def divided_by_T(T, D, normalise=False):
    return numbered(torch.arange(T) / T if normalise else torch.arange(T), D)


@bug(linear_positions, "the numbers are divided by T - 1 though normalise was not asked for")
def always_normalised(T, D, normalise=False):
    return linear(T, D, True)


@bug(linear_positions, "normalise is ignored")
def never_normalised(T, D, normalise=False):
    return linear(T, D)


@bug(linear_positions, "normalise means the opposite")
def inverted(T, D, normalise=False):
    return linear(T, D, not normalise)


@bug(linear_positions, "the numbers are centred, from -1 to 1")
def centred(T, D, normalise=False):
    P = linear(T, D, normalise)
    return 2 * P - 1 if normalise and T > 1 else P


@bug(linear_positions, "the numbers are divided by their sum")
def shares(T, D, normalise=False):
    t = torch.arange(T)
    return numbered(t / t.sum().clamp(min=1) if normalise else t, D)


@bug(linear_positions, "every entry of the table gets a number of its own")
def entries_numbered(T, D, normalise=False):
    P = torch.arange(T * D).view(T, D).float()
    return P / (T * D - 1) if normalise else P


@bug(linear_positions, "the last position comes first")
def reversed_order(T, D, normalise=False):
    return linear(T, D, normalise).flip(0)


@bug(
    linear_positions,
    "a single position is divided by zero",
    told_by="P, normalised, at [0, 0] should be 0, yours is nan",
    classic=True,
)
def zero_by_zero(T, D, normalise=False):
    t = torch.arange(T)
    return numbered(t / (T - 1) if normalise else t, D)


@bug(
    linear_positions,
    "the numbers are integers",
    told_by="should hold real numbers, yours holds whole numbers",
)
def integers(T, D, normalise=False):
    return linear(T, D, True) if normalise else torch.arange(T)[:, None].repeat(1, D)


@bug(
    linear_positions,
    "one number for each position is returned, not one vector",
    told_by="P should have shape",
)
def one_feature(T, D, normalise=False):
    return linear(T, D, normalise)[:, 0]


def even(D):
    if D % 2:
        raise ValueError("D is odd")


def waves(angles):
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


def angles(T, D, base, exponent=None):
    even(D)
    exponent = torch.arange(0, D, 2) / D if exponent is None else exponent
    return torch.arange(T)[:, None] * base**-exponent


@bug(sinusoidal_positions, "all sines come before all cosines instead of alternating with them")
def halves(T, D, base=10000.0):
    a = angles(T, D, base)
    return torch.cat([a.sin(), a.cos()], dim=1)


@bug(sinusoidal_positions, "sine and cosine are exchanged")
def cosine_first(T, D, base=10000.0):
    a = angles(T, D, base)
    return torch.stack([a.cos(), a.sin()], dim=2).flatten(1)


@bug(
    sinusoidal_positions,
    "each feature has a frequency of its own, instead of each pair",
    classic=True,
)
def unpaired(T, D, base=10000.0):
    even(D)
    a = torch.arange(T)[:, None] * base ** (-torch.arange(D) / D)
    return torch.where(torch.arange(D) % 2 == 0, a.sin(), a.cos())


@bug(sinusoidal_positions, "the exponent is i/D instead of 2i/D", classic=True)
def slow_growth(T, D, base=10000.0):
    return waves(angles(T, D, base, torch.arange(D // 2) / D))


@bug(sinusoidal_positions, "the exponent is 4i/D: 2i is doubled again")
def fast_growth(T, D, base=10000.0):
    return waves(angles(T, D, base, 2 * torch.arange(0, D, 2) / D))


@bug(sinusoidal_positions, "positions are multiplied by base^(2i/D) instead of divided")
def frequencies_grow(T, D, base=10000.0):
    return waves(angles(T, D, base, -torch.arange(0, D, 2) / D))


@bug(sinusoidal_positions, "positions are counted from 1")
def from_one(T, D, base=10000.0):
    return sinusoidal_positions(T + 1, D, base)[1:]


@bug(sinusoidal_positions, "the base is always 10000")
def fixed_base(T, D, base=10000.0):
    return sinusoidal_positions(T, D)


@bug(sinusoidal_positions, "the angles are multiplied by 2π")
def full_turns(T, D, base=10000.0):
    return waves(2 * math.pi * angles(T, D, base))


@bug(sinusoidal_positions, "all pairs have the frequency of the first")
def one_frequency(T, D, base=10000.0):
    return waves(angles(T, D, base, torch.zeros(D // 2)))


@bug(sinusoidal_positions, "the exponents run to 1 inclusive: i / (D/2 - 1)")
def inclusive(T, D, base=10000.0):
    return waves(angles(T, D, base, torch.linspace(0, 1, D // 2)))


@bug(sinusoidal_positions, "an odd D is accepted", told_by="should raise ValueError when D is odd")
def accepts_odd(T, D, base=10000.0):
    return sinusoidal_positions(T, D + D % 2, base)[:, :D]


class Table(LearnedPositions):
    """A table whose use the bugs below vary."""

    def refuse(self, X):
        if X.shape[1] > len(self.P):
            raise ValueError("too long")


@bug(LearnedPositions, "the last rows of the table are added instead of the first")
class LastRows(Table):
    def forward(self, X):
        self.refuse(X)
        return X + self.P[len(self.P) - X.shape[1] :]


@bug(LearnedPositions, "every sequence of the batch gets a row of the table, instead of every step")
class RowsBySequence(Table):
    def forward(self, X):
        self.refuse(X)
        rows = torch.arange(len(X)) % len(self.P)
        return X + self.P[rows][:, None]


@bug(LearnedPositions, "all positions get row 0")
class FirstRow(Table):
    def forward(self, X):
        self.refuse(X)
        return X + self.P[0]


@bug(LearnedPositions, "the rows are shifted by one: position t gets row t-1, the first the last")
class Shifted(Table):
    def forward(self, X):
        self.refuse(X)
        return X + self.P.roll(1, dims=0)[: X.shape[1]]


@bug(LearnedPositions, "the table is returned without X")
class TableOnly(Table):
    def forward(self, X):
        self.refuse(X)
        return self.P[: X.shape[1]].expand_as(X)


@bug(LearnedPositions, "X is multiplied by the table instead of added to it")
class Multiplied(Table):
    def forward(self, X):
        self.refuse(X)
        return X * self.P[: X.shape[1]]


@bug(LearnedPositions, "X is changed in place")
class InPlace(Table):
    def forward(self, X):
        self.refuse(X)
        with torch.no_grad():
            X += self.P[: X.shape[1]]
        return X


@bug(
    LearnedPositions,
    "a sequence as long as the table is refused",
    told_by="LearnedPositions raised ValueError: too long",
)
class OneTooShort(Table):
    def forward(self, X):
        if X.shape[1] >= len(self.P):
            raise ValueError("too long")
        return super().forward(X)


@bug(
    LearnedPositions,
    "positions beyond the table start again at its first row",
    told_by="should raise ValueError when the sequence is longer than the table",
    classic=True,
)
class StartsAgain(LearnedPositions):
    def forward(self, X):
        return X + self.P[torch.arange(X.shape[1]) % len(self.P)]


@bug(
    LearnedPositions,
    "positions beyond the table give torch's error",
    told_by="should raise ValueError when the sequence is longer than the table",
    classic=True,
)
class Unchecked(LearnedPositions):
    def forward(self, X):
        return X + self.P[: X.shape[1]]


@bug(LearnedPositions, "the table gets no gradient", told_by="No gradient goes back")
class Detached(LearnedPositions):
    def forward(self, X):
        return super().forward(X).detach()


@bug(
    LearnedPositions,
    "the table is not a parameter",
    told_by="There should be a parameter called P, yours is missing.",
    classic=True,
)
class Buffer(nn.Module):
    def __init__(self, T_max, D):
        super().__init__()
        self.register_buffer("P", torch.randn(T_max, D))

    forward = LearnedPositions.forward


@bug(
    LearnedPositions,
    "the table starts at zero",
    told_by="P should have mean 0 and standard deviation 1, yours has 0.000 and 0.000.",
)
class Zeros(LearnedPositions):
    def __init__(self, T_max, D):
        super().__init__(T_max, D)
        self.P.data.zero_()


def low(E, mask):
    """Set forbidden scores to -1e4, and the rows without a key to zero."""
    if mask is None:
        return torch.softmax(E, dim=-1)
    return torch.softmax(E.masked_fill(~mask, -1e4), -1).masked_fill(~mask.any(-1)[..., None], 0)


def replaced_late(E, mask):
    """Replace 0/0 in the rows without a key."""
    E = E if mask is None else E + torch.where(mask, 0, -torch.inf)
    return torch.softmax(E, dim=-1).nan_to_num(0)


LOW = "forbidden scores are set to -1e4, which allowed ones may lie below"
LATE = "the weights of a row without a key are replaced, its gradients stay NaN"


def shaw(Q, K, V, R_K, R_V, mask=None, *, r=None, scale=None, both=True, softmax=masked_softmax):
    """Shaw's attention with what the bugs below change."""
    T, D_Q = Q.shape[-2:]
    k = len(R_K) // 2
    t = torch.arange(T)
    r = (t - t[:, None]).clamp(-k, k) + k if r is None else r(t, k)
    E = Q @ K.mT + torch.einsum("...id,ijd->...ij", Q, R_K[r])
    A = softmax(E / (math.sqrt(D_Q) if scale is None else scale), mask)
    Y = A @ V
    return (Y + torch.einsum("...ij,ijd->...id", A, R_V[r]) if both else Y), A


@bug(
    shaw_relative_attention,
    "the distance is i - j, so that left and right are exchanged",
    classic=True,
)
def mirrored(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, mask, r=lambda t, k: (t[:, None] - t).clamp(-k, k) + k)


@bug(shaw_relative_attention, "R_K is read at i - j, though R_V is read at j - i")
def mirrored_keys(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K.flip(0), R_V, mask)


@bug(shaw_relative_attention, "R_V is read at i - j, though R_K is read at j - i")
def mirrored_values(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V.flip(0), mask)


@bug(shaw_relative_attention, "only distances are told apart, not left from right")
def no_sign(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, mask, r=lambda t, k: (t - t[:, None]).abs().clamp(max=k) + k)


@bug(shaw_relative_attention, "distances are taken modulo 2k+1 instead of clipped")
def wrapped(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, mask, r=lambda t, k: (t - t[:, None] + k) % (2 * k + 1))


@bug(shaw_relative_attention, "k is not added: negative distances count from the table's end")
def not_shifted(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, mask, r=lambda t, k: (t - t[:, None]).clamp(-k, k))


@bug(shaw_relative_attention, "distances are clipped at k - 1, so that the outer rows are unused")
def clipped_early(Q, K, V, R_K, R_V, mask=None):
    def r(t, k):
        reach = max(k - 1, 0)
        return (t - t[:, None]).clamp(-reach, reach) + k

    return shaw(Q, K, V, R_K, R_V, mask, r=r)


@bug(shaw_relative_attention, "R_K is added to the keys by their position, not by their distance")
def by_position(Q, K, V, R_K, R_V, mask=None):
    def r(t, k):
        return t.clamp(max=2 * k).expand(len(t), -1)

    return shaw(Q, K, V, R_K, R_V, mask, r=r)


@bug(shaw_relative_attention, "R_V is left out")
def keys_only(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, mask, both=False)


@bug(shaw_relative_attention, "R_K is left out")
def values_only(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, 0 * R_K, R_V, mask)


@bug(shaw_relative_attention, "the scores are not divided by √D_Q")
def unscaled(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, mask, scale=1)


@bug(shaw_relative_attention, "only Q Kᵀ is divided by √D_Q, not the part that comes from R_K")
def half_scaled(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K * math.sqrt(Q.shape[-1]), R_V, mask)


@bug(shaw_relative_attention, "the scores are divided by D_Q instead of its root")
def over_scaled(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, mask, scale=Q.shape[-1])


@bug(shaw_relative_attention, "R_K meets the keys instead of the queries")
def keys_with_table(Q, K, V, R_K, R_V, mask=None):
    T, D_Q = Q.shape[-2:]
    k, t = len(R_K) // 2, torch.arange(T)
    r = (t - t[:, None]).clamp(-k, k) + k
    E = (Q @ K.mT + torch.einsum("...jd,ijd->...ij", K, R_K[r])) / math.sqrt(D_Q)
    A = masked_softmax(E, mask)
    return A @ V + torch.einsum("...ij,ijd->...id", A, R_V[r]), A


@bug(shaw_relative_attention, "the mask is ignored")
def mask_ignored(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V)


@bug(shaw_relative_attention, LOW)
def not_low_enough(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, mask, softmax=low)


@bug(shaw_relative_attention, LATE)
def nan_gradients(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, mask, softmax=replaced_late)


@bug(
    shaw_relative_attention,
    "the mask gets an axis for the heads, though it comes in a shape that broadcasts",
    told_by="A should have shape",
)
def mask_unsqueezed(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, None if mask is None else mask.unsqueeze(-3))


@bug(shaw_relative_attention, "the mask is inverted")
def mask_inverted(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, None if mask is None else ~mask)


@bug(
    shaw_relative_attention, "a row that may attend to nothing becomes NaN", told_by="yours is nan"
)
def nan_rows(Q, K, V, R_K, R_V, mask=None):
    Y, A = shaw(Q, K, V, R_K, R_V, mask)
    if mask is None:
        return Y, A
    empty = ~mask.any(dim=-1, keepdim=True)
    return Y.masked_fill(empty, math.nan), A.masked_fill(empty, math.nan)


@bug(shaw_relative_attention, "A is returned before Y", told_by="A should have shape")
def weights_first(Q, K, V, R_K, R_V, mask=None):
    return shaw(Q, K, V, R_K, R_V, mask)[::-1]


def turn(X, positions, base, exponent=None, sign=1):
    T, D = X.shape[-2:]
    even(D)
    exponent = torch.arange(0, D, 2) / D if exponent is None else exponent
    positions = torch.arange(T) if positions is None else positions
    angle = sign * positions[:, None] * base**-exponent
    return angle.cos(), angle.sin()


def pairs_turned(x, y, cos, sin):
    return x * cos - y * sin, x * sin + y * cos


@bug(
    rope_rotate,
    "neighbours 2i and 2i+1 are paired: that is the layout of the RoPE paper",
    classic=True,
)
def interleaved(X, positions=None, base=10000.0):
    cos, sin = turn(X, positions, base)
    x, y = pairs_turned(X[..., ::2], X[..., 1::2], cos, sin)
    return torch.stack([x, y], dim=-1).flatten(-2).to(X.dtype)


@bug(
    rope_rotate,
    "the angles of a shape are kept for its later calls, whatever the base then",
    told_by="with the inputs of its first call without base",
)
def kept_angles(X, positions=None, base=10000.0, kept={}):  # noqa: B006  a dict that outlives the call is the mistake
    if positions is not None:
        return rope_rotate(X, positions, base)
    return rope_rotate(X, None, kept.setdefault(X.shape[-2:], base))


@bug(rope_rotate, "the pairs turn the other way round")
def clockwise(X, positions=None, base=10000.0):
    cos, sin = turn(X, positions, base, sign=-1)
    return torch.cat(pairs_turned(*X.chunk(2, -1), cos, sin), dim=-1).to(X.dtype)


@bug(rope_rotate, "both sines have the same sign, which is no rotation", classic=True)
def no_minus(X, positions=None, base=10000.0):
    cos, sin = turn(X, positions, base)
    x, y = X.chunk(2, dim=-1)
    return torch.cat([x * cos + y * sin, x * sin + y * cos], dim=-1).to(X.dtype)


@bug(rope_rotate, "the halves are not exchanged: x cos - x sin and y sin + y cos")
def own_half(X, positions=None, base=10000.0):
    cos, sin = turn(X, positions, base)
    x, y = X.chunk(2, dim=-1)
    return torch.cat([x * cos - x * sin, y * sin + y * cos], dim=-1).to(X.dtype)


@bug(rope_rotate, "the exponent is i/D_h instead of 2i/D_h")
def slow_growth(X, positions=None, base=10000.0):
    D = X.shape[-1]
    even(D)
    cos, sin = turn(X, positions, base, torch.arange(D // 2) / D)
    return torch.cat(pairs_turned(*X.chunk(2, -1), cos, sin), dim=-1).to(X.dtype)


@bug(rope_rotate, "all pairs turn at the same speed")
def one_frequency(X, positions=None, base=10000.0):
    cos, sin = turn(X, positions, base, torch.zeros(X.shape[-1] // 2))
    return torch.cat(pairs_turned(*X.chunk(2, -1), cos, sin), dim=-1).to(X.dtype)


@bug(rope_rotate, "positions are counted from 1")
def from_one(X, positions=None, base=10000.0):
    positions = torch.arange(1, X.shape[-2] + 1) if positions is None else positions
    return rope_rotate(X, positions, base)


@bug(rope_rotate, "the given positions are ignored")
def positions_ignored(X, positions=None, base=10000.0):
    return rope_rotate(X, None, base)


@bug(rope_rotate, "the base is always 10000")
def fixed_base(X, positions=None, base=10000.0):
    return rope_rotate(X, positions)


@bug(rope_rotate, "the sinusoidal encoding is added instead")
def added(X, positions=None, base=10000.0):
    even(X.shape[-1])
    cos, sin = turn(X, positions, base)
    return (X + torch.cat([sin, cos], dim=-1)).to(X.dtype)


@bug(rope_rotate, "positions are taken from the first axis of X instead of the last but one")
def wrong_axis(X, positions=None, base=10000.0):
    if positions is None and X.dim() > 2:
        positions = torch.arange(len(X))
        return rope_rotate(X.transpose(0, -2), positions, base).transpose(0, -2)
    return rope_rotate(X, positions, base)


@bug(
    rope_rotate,
    "the angles are computed in the type of X, too coarse in bfloat16",
    told_by="half_precision: keeps the type of its input",
)
def coarse(X, positions=None, base=10000.0):
    T, D = X.shape[-2:]
    even(D)
    positions = torch.arange(T) if positions is None else positions
    angle = positions.to(X.dtype)[:, None] * (base ** (-torch.arange(0, D, 2) / D)).to(X.dtype)
    return torch.cat(pairs_turned(*X.chunk(2, -1), angle.cos(), angle.sin()), dim=-1)


@bug(rope_rotate, "an odd D_h is accepted", told_by="should raise ValueError when D_h is odd")
def accepts_odd(X, positions=None, base=10000.0):
    if X.shape[-1] % 2:
        return functional.pad(rope_rotate(X[..., :-1], positions, base), (0, 1))
    return rope_rotate(X, positions, base)


class Rotary(RotaryAttention):
    """Rotary attention in parts, which the bugs below vary."""

    def forward(self, X, mask=None, return_weights=False):
        Q, K, V = (self.split(X @ W) for W in (self.W_Q, self.W_K, self.W_V))
        Q, K, V = self.turn(Q, K, V)
        E = Q @ K.mT / self.scale(Q)
        A = self.softmax(E, self.mask(mask))
        Y = self.join(A @ V)
        return (Y, A) if return_weights else Y

    def split(self, X):
        return split_heads(X, self.H)

    def turn(self, Q, K, V):
        return self.rotate(Q), self.rotate(K), V

    def rotate(self, X):
        return rope_rotate(X, base=self.base)

    def scale(self, Q):
        return math.sqrt(Q.shape[-1])

    def mask(self, mask):
        return None if mask is None else mask.unsqueeze(-3)

    def softmax(self, E, mask):
        return masked_softmax(E, mask)

    def join(self, Y):
        return merge_heads(Y) @ self.W_O


@bug(RotaryAttention, LOW)
class NotLowEnough(Rotary):
    def softmax(self, E, mask):
        return low(E, mask)


@bug(RotaryAttention, LATE, told_by="The gradient of X should be finite")
class NaNGradients(Rotary):
    def softmax(self, E, mask):
        return replaced_late(E, mask)


@bug(RotaryAttention, "a position that may attend to nothing gets equal weights, not zeros")
class EvenRows(Rotary):
    def softmax(self, E, mask):
        E = E if mask is None else E.masked_fill(~mask, torch.finfo(E.dtype).min)
        return torch.softmax(E, dim=-1)


UNTURNED = "nothing is turned, or everything by the same angle, whatever its position"


@bug(RotaryAttention, UNTURNED)
class Unturned(Rotary):
    def turn(self, Q, K, V):
        return Q, K, V


@bug(RotaryAttention, "only the queries are turned")
class QueriesOnly(Rotary):
    def turn(self, Q, K, V):
        return self.rotate(Q), K, V


@bug(RotaryAttention, "only the keys are turned")
class KeysOnly(Rotary):
    def turn(self, Q, K, V):
        return Q, self.rotate(K), V


@bug(RotaryAttention, "the values are also turned", classic=True)
class ValuesToo(Rotary):
    def turn(self, Q, K, V):
        return self.rotate(Q), self.rotate(K), self.rotate(V)


@bug(RotaryAttention, "X is turned before the projections instead of queries and keys")
class InputsTurned(Rotary):
    def forward(self, X, mask=None, return_weights=False):
        return super().forward(self.rotate(X), mask, return_weights)

    def turn(self, Q, K, V):
        return Q, K, V


@bug(RotaryAttention, "all features are turned at once, before they are split into heads")
class BeforeSplitting(Rotary):
    def turn(self, Q, K, V):
        Q, K = (split_heads(self.rotate(merge_heads(X)), self.H) for X in (Q, K))
        return Q, K, V


@bug(RotaryAttention, UNTURNED)  # the heads' axis is taken for the positions
class TurnedByHead(Rotary):
    def rotate(self, X):
        return super().rotate(X.transpose(1, 2)).transpose(1, 2)


@bug(RotaryAttention, "the scores are not divided by √D_h")
class Unscaled(Rotary):
    def scale(self, Q):
        return 1


@bug(RotaryAttention, "the scores are divided by √D instead of √D_h")
class ScaledByD(Rotary):
    def scale(self, Q):
        return math.sqrt(Q.shape[-1] * self.H)


@bug(RotaryAttention, "the base is always 10000")
class FixedBase(Rotary):
    def rotate(self, X):
        return rope_rotate(X)


@bug(RotaryAttention, "W_O is left out")
class NoOutputProduct(Rotary):
    def join(self, Y):
        return merge_heads(Y)


@bug(RotaryAttention, "the heads are joined by a view, without a transpose")
class Viewed(Rotary):
    def join(self, Y):
        B, H, T, D = Y.shape
        return Y.reshape(B, T, H * D) @ self.W_O


@bug(RotaryAttention, "the mask is ignored")
class MaskIgnored(Rotary):
    def mask(self, mask):
        return None


@bug(RotaryAttention, "the mask is inverted")
class MaskInverted(Rotary):
    def mask(self, mask):
        return None if mask is None else ~mask.unsqueeze(-3)


@bug(
    RotaryAttention,
    "the weights are averaged over the heads",
    told_by="A should have shape",
)
class AveragedWeights(Rotary):
    def forward(self, X, mask=None, return_weights=False):
        Y, A = super().forward(X, mask, True)
        return (Y, A.mean(dim=1)) if return_weights else Y


def resized(P, size, **options):
    """Torch's interpolation of a table whose features are last."""
    if len(size) != P.dim() - 1:
        raise ValueError("size does not fit")
    mode = options.pop("mode", "linear" if len(size) == 1 else "bilinear")
    moved = functional.interpolate(P.movedim(-1, 0)[None], size=size, mode=mode, **options)
    return moved[0].movedim(0, -1)


@bug(interpolate_positions, "the ends of the old and the new table are aligned, not the cells")
def corners(P, size):
    return resized(P, size, align_corners=True)


@bug(interpolate_positions, "the nearest old position is taken instead of a blend of two")
def nearest(P, size):
    return resized(P, size, mode="nearest")


def by_axis(P, size, at, blend=lambda w: w):
    if len(size) != P.dim() - 1:
        raise ValueError("size does not fit")
    for axis, T_new in enumerate(size):
        T = P.shape[axis]
        u = at(torch.arange(T_new, dtype=P.dtype), T, T_new).clamp(0, T - 1)
        left = u.long()
        w = blend(u - left).view(-1, *[1] * (P.dim() - axis - 1))
        right = (left + 1).clamp(max=T - 1)
        P = (1 - w) * P.index_select(axis, left) + w * P.index_select(axis, right)
    return P


@bug(interpolate_positions, "the half cell is forgotten: u = t T / T'", classic=True)
def no_half_cell(P, size):
    return by_axis(P, size, lambda t, T, T_new: t * T / T_new)


@bug(interpolate_positions, "half a cell is added, but not subtracted again")
def half_added(P, size):
    return by_axis(P, size, lambda t, T, T_new: (t + 0.5) * T / T_new)


@bug(interpolate_positions, "the weights of the left and the right neighbour are exchanged")
def exchanged(P, size):
    return by_axis(P, size, lambda t, T, T_new: (t + 0.5) * T / T_new - 0.5, lambda w: 1 - w)


@bug(interpolate_positions, "positions before the first and after the last are extrapolated")
def extrapolated(P, size):
    if len(size) != P.dim() - 1:
        raise ValueError("size does not fit")
    for axis, T_new in enumerate(size):
        T = P.shape[axis]
        if T == 1:
            P = P.repeat_interleave(T_new, dim=axis)
            continue
        u = (torch.arange(T_new, dtype=P.dtype) + 0.5) * T / T_new - 0.5
        left = u.floor().long().clamp(0, T - 2)
        w = (u - left).view(-1, *[1] * (P.dim() - axis - 1))
        P = (1 - w) * P.index_select(axis, left) + w * P.index_select(axis, left + 1)
    return P


@bug(interpolate_positions, "the new positions are filled with zeros")
def padded(P, size):
    if len(size) != P.dim() - 1:
        raise ValueError("size does not fit")
    new = P.new_zeros(*size, P.shape[-1])
    common = tuple(slice(min(a, b)) for a, b in zip(P.shape, size, strict=False))
    new[common] = P[common]
    return new


@bug(interpolate_positions, "the old table is repeated to fill the new one")
def tiled(P, size):
    if len(size) != P.dim() - 1:
        raise ValueError("size does not fit")
    for axis, T_new in enumerate(size):
        P = P.index_select(axis, torch.arange(T_new) % P.shape[axis])
    return P


@bug(
    interpolate_positions,
    "a grid is stretched as one long line, across the ends of its rows",
    classic=True,
)
def flattened(P, size):
    if len(size) != P.dim() - 1:
        raise ValueError("size does not fit")
    return resized(P.flatten(0, -2), (math.prod(size),)).unflatten(0, size)


@bug(
    interpolate_positions, "only the first axis of a grid is stretched", told_by="should have shape"
)
def first_axis_only(P, size):
    if len(size) != P.dim() - 1:
        raise ValueError("size does not fit")
    return (
        by_axis(P.flatten(1), size[:1], lambda t, T, n: (t + 0.5) * T / n - 0.5).unflatten(
            1, P.shape[1:]
        )
        if P.dim() > 2
        else interpolate_positions(P, size)
    )


@bug(interpolate_positions, "the table gets no gradient", told_by="No gradient goes back")
def detached(P, size):
    return interpolate_positions(P.detach(), size)


@bug(
    interpolate_positions,
    "sizes that do not fit are accepted",
    told_by="should raise ValueError when a grid gets one size",
)
def unchecked(P, size):
    if len(size) > P.dim() - 1:
        raise ValueError("too many sizes")
    return interpolate_positions(P, (*size, *P.shape[len(size) : -1]))


ON_CPU = "checks run on the CPU, where new tensors are made anyway"
equivalent(
    linear_positions,
    "t = t / max(T - 1, 1) → t = t / max(1, T - 1)",
    "a maximum does not depend on the order",
)
equivalent(
    shaw_relative_attention,
    "t = torch.arange(T, device=Q.device) → t = torch.arange(T)",
    ON_CPU,
)
equivalent(
    rope_rotate,
    "positions = torch.arange(T, device=X.device) → positions = torch.arange(T)",
    ON_CPU,
)
equivalent(
    rope_rotate,
    "omega = base ** (-torch.arange(0, D_h, 2, dtype=precise, device=X.device) / D_h) → "
    "omega = base ** (-torch.arange(0, D_h, 2, dtype=precise) / D_h)",
    ON_CPU,
)
equivalent(
    rope_rotate,
    "precise = torch.promote_types(X.dtype, torch.float32) → "
    "precise = torch.promote_types(torch.float32, X.dtype)",
    "promotion is symmetric",
)
equivalent(
    interpolate_positions,
    "t = torch.arange(T_new, dtype=P.dtype, device=P.device) → "
    "t = torch.arange(T_new, dtype=P.dtype)",
    ON_CPU,
)
