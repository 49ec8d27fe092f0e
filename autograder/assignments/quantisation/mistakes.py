"""Known wrong solutions of quantisation."""

import math

import torch

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.paged_attention import PagedKVCache
from course_pkg.quantisation import (
    QuantisedKVCache,
    QuantisedLinear,
    QuantisedPagedCache,
    dequantise,
    gptq,
    pack_int4,
    quantise,
    quantise_fault,
    rotate,
    unpack_int4,
)

mistakes(
    quantise,
    """
* levels: the range is divided by 2^bits, not by the steps between 2^bits integers
    low, high = 0, 2**bits - 1 → low, high = 0, 2**bits
one_more: max |X| is divided by 2^(bits-1), so that the largest number has no integer
    low, high = 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1
    → low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
levels_cut: the range is divided by 2^bits, not by the steps between 2^bits integers
    - zero) / high → - zero) / 2**bits
levels_of_both: the range is divided by 2^bits, not by the steps between 2^bits integers
    keepdim=True) / high → keepdim=True) / (high + 1)
    - zero) / high → - zero) / (high + 1)
* downwards: numbers are rounded down, not to the nearest integer
    torch.round( → torch.floor(
towards_zero: numbers are rounded towards zero, not to the nearest integer
    torch.round( → torch.trunc(
""",
)

changed(
    quantise,
    "divides_by_zero",
    "a scale of 0 is divided by, and not replaced by 1",
    ("    scale = torch.where(scale == 0, 1, scale)\n", ""),
    classic=True,
)

mistakes(
    quantise,
    """
epsilon: a small number is added to every scale, so that none is 0
    torch.where(scale == 0, 1, scale) → scale + 1e-5
""",
)

changed(
    quantise,
    "complement",
    "dims are taken for the axes that have scales of their own",
    (
        "    precise = X",
        "    else:\n"
        "        others = set(range(X.dim())) - {dim % X.dim() for dim in dims}\n"
        "        dims = tuple(others) or dims\n"
        "    precise = X",
    ),
    classic=True,
)

changed(
    quantise,
    "always_all",
    "there is one scale for the whole tensor, whatever dims says",
    ("    precise = X", "    else:\n        dims = tuple(range(X.dim()))\n    precise = X"),
)

mistakes(
    quantise,
    """
holds_zero: the range is made to hold 0, as torch's own types do
    precise.amin(dims, keepdim=True) → precise.amin(dims, keepdim=True).clamp(max=0)
whole_zero: the zero point is rounded to a whole number of steps
    scale = torch.where(scale == 0, 1, scale)
    #
    → scale = torch.where(scale == 0, 1, scale)
      zero = (zero / scale).round() * scale
      #
without_size: a symmetric scale is made of the largest number, not of the largest in size
    precise.abs().amax(dims, keepdim=True) → precise.amax(dims, keepdim=True)
no_sign: integers with a sign are kept in a dtype without one
    Q.to(torch.int8 if symmetric else torch.uint8) → Q.remainder(256).to(torch.uint8)
with_sign: integers from 0 to 255 are kept in int8, where those from 128 on become negative
    Q.to(torch.int8 if symmetric else torch.uint8)
    → Q.to(torch.int8 if symmetric else torch.uint8).view(torch.int8)
floats: the integers stay floating-point numbers
    Q.to(torch.int8 if symmetric else torch.uint8) → Q.to(X.dtype)
    says: should hold whole numbers
* far_apart: a group is made of numbers that are far apart, not of neighbours
    X.unflatten(axis, (shape[axis] // group, group)), (axis + 1,)
    → X.unflatten(axis, (group, shape[axis] // group)), (axis,)
    scale.squeeze(axis + 1), zero.squeeze(axis + 1) → scale.squeeze(axis), zero.squeeze(axis)
how_many: group is taken for how many groups there are
    (shape[axis] // group, group) → (group, shape[axis] // group)
no_groups: group is not used
    X, dims = X.unflatten(axis, (shape[axis] // group, group)), (axis + 1,) → group = None
""",
)

changed(
    quantise,
    "never_symmetric",
    "symmetric is not used: there always is a zero point",
    ("    if not 2 <= bits", "    symmetric = False\n    if not 2 <= bits"),
)

changed(
    quantise,
    "eight_bits",
    "there always are 8 bits",
    ("    shape, dims =", "    bits = 8\n    shape, dims ="),
)

changed(
    quantise,
    "unrounded",
    "q is computed with a scale that half precision does not hold",
    ("    scale, zero = scale.to(X.dtype), zero.to(X.dtype)\n", ""),
    (".reshape(shape), scale, zero", ".reshape(shape), scale.to(X.dtype), zero.to(X.dtype)"),
)


black_box(
    quantise,
    "whole_zero",
    curve="errors",
    label="root mean square of the error",
    over="bits, less one",
)


wrong_answers(quantise_fault, "E")
mistakes(
    quantise_fault,
    """
from_zero: the smallest number is 0
    [0.25, 3.25] → [0.0, 3.25]
    says: With these arguments the black box gives what is right
whole_steps: the smallest number is a whole number of steps from 0
    [0.25, 3.25] → [2.0, 5.0]
    says: With these arguments the black box gives what is right
symmetric: there is no zero point
    (X, 2, 0) → (X, 2, 0, None, True)
    says: With these arguments the black box gives what is right
alike: all numbers are alike, and whole
    [0.25, 3.25] → [3.0, 3.0]
    says: With these arguments the black box gives what is right
one_bit: an integer has one bit
    (X, 2, 0) → (X, 1, 0)
    says: quantise raised
no_axis: nothing says which numbers share a scale
    (X, 2, 0) → (X, 2)
    says: quantise raised
""",
)


# The same mistakes in the forms that differ in what keeps q within its range.
clamped = "clamp(low, high)"
not_kept = f".{clamped}", ""
below = clamped, "clamp(-high - 1 if symmetric else 0, high)"
guarded = "    scale = torch.where(scale == 0, 1, scale)\n", ""
in_size = "precise.abs().amax(dims, keepdim=True)", "precise.amax(dims, keepdim=True)"
more_steps = "keepdim=True) / high", "keepdim=True) / 2 ** (bits - 1)"
changed(quantise, "never_clamps", "q is not kept within its range", not_kept)
changed(
    quantise,
    "divides_by_zero_unclamped",
    "a scale of 0 is divided by, and not replaced by 1",
    guarded,
    not_kept,
    classic=True,
)
changed(
    quantise,
    "levels_unclamped",
    "the range is divided by 2^bits, not by the steps between 2^bits integers",
    ("- zero) / high", "- zero) / 2**bits"),
    more_steps,
    not_kept,
    classic=True,
)
changed(
    quantise,
    "one_more_clamped",
    "max |X| is divided by 2^(bits-1), so that the largest number has no integer",
    more_steps,
)
changed(
    quantise,
    "far_apart_unclamped",
    "a group is made of numbers that are far apart, not of neighbours",
    (
        "X.unflatten(axis, (shape[axis] // group, group)), (axis + 1,)",
        "X.unflatten(axis, (group, shape[axis] // group)), (axis,)",
    ),
    ("scale.squeeze(axis + 1), zero.squeeze(axis + 1)", "scale.squeeze(axis), zero.squeeze(axis)"),
    not_kept,
    classic=True,
)
for name, kept in (("unclamped", not_kept), ("clamped_below", below)):
    changed(
        quantise,
        f"without_size_{name}",
        "a symmetric scale is made of the largest number, not of the largest in size",
        in_size,
        kept,
    )
for name, kept in (("", (clamped, clamped)), ("_unclamped", not_kept)):
    changed(
        quantise,
        f"in_half{name}",
        "half precision is computed in half precision, not in float32",
        ("X.to(torch.promote_types(X.dtype, torch.float32))", "X"),
        kept,
    )

changed(
    quantise,
    "any_bits",
    "any number of bits is accepted",
    (
        "    if not 2 <= bits <= 8:\n"
        '        raise ValueError(f"an integer must have 2 to 8 bits, got {bits}")\n',
        "    bits = min(max(bits, 2), 8)\n",
    ),
    told_by="should raise ValueError when bits is",
)


equivalent(
    quantise,
    "precise = X.to(torch.promote_types(X.dtype, torch.float32)) → "
    "precise = X.to(torch.promote_types(torch.float32, X.dtype))",
    "the wider of two types is the same in either order",
)


# dequantise


mistakes(
    dequantise,
    """
* zero_first: the zero point is added to the integer, before the scale
    Q.to(scale.dtype) * scale + zero → (Q.to(scale.dtype) + zero) * scale
torchs: the zero point is subtracted from the integer, as in torch's own types
    Q.to(scale.dtype) * scale + zero → (Q.to(scale.dtype) - zero) * scale
minus_zero: the zero point is subtracted
    * scale + zero → * scale - zero
no_zero: the zero point is left out
    * scale + zero → * scale
divided: integers are divided by the scale
    * scale + zero → / scale + zero
* take_turns: the scales of the groups take turns, one integer after the other
    scale.repeat_interleave(size // parts, dim=axis)
    → torch.cat([scale] * (size // parts), dim=axis)
    zero.repeat_interleave(size // parts, dim=axis) → torch.cat([zero] * (size // parts), dim=axis)
zeros_take_turns: the scales of groups reach their neighbours, but the zero points take turns
    zero.repeat_interleave(size // parts, dim=axis) → torch.cat([zero] * (size // parts), dim=axis)
first_only: all groups get the scale and zero point of the first
    scale.repeat_interleave(size // parts, dim=axis) → scale.narrow(axis, 0, 1)
    zero.repeat_interleave(size // parts, dim=axis) → zero.narrow(axis, 0, 1)
without_sign: the sign of the integers is lost
    return Q.to
    → Q = Q.view(torch.uint8) if Q.dtype == torch.int8 else Q
      return Q.to
as_int8: integers from 128 on are read as negative
    return Q.to
    → Q = Q.view(torch.int8) if Q.dtype == torch.uint8 else Q
      return Q.to
""",
)


@bug(dequantise, "the result always is float32", told_by="X̂ should be torch.float64, yours is")
def always_single(Q, scale, zero):
    return dequantise(Q, scale, zero).float()


@bug(
    dequantise,
    "scales that cannot be shared equally are shared all the same",
    told_by="2 scales are for 7 integers",
)
def shares_anyway(Q, scale, zero):
    for axis, (size, parts) in enumerate(zip(Q.shape, scale.shape, strict=True)):
        if parts not in (1, size):
            times = -(-size // parts)
            scale, zero = (
                part.repeat_interleave(times, dim=axis).narrow(axis, 0, size)
                for part in (scale, zero)
            )
    return Q.to(scale.dtype) * scale + zero


equivalent(
    dequantise,
    "if parts not in (1, size): → if parts not in (size, 1):",
    "the order of what is compared with does not matter",
)


# pack_int4 and unpack_int4


mistakes(
    pack_int4,
    """
* high_first: the first of two neighbours is put into the high four bits
    Q[..., 0::2] | Q[..., 1::2] << 4 → Q[..., 0::2] << 4 | Q[..., 1::2]
* by_halves: an integer is packed with one half an axis away, not with its neighbour
    return Q[..., 0::2] | Q[..., 1::2] << 4
    → low, high = Q.chunk(2, dim=-1) if Q.shape[-1] else (Q, Q)
      return low | high << 4
not_shifted: the second of two neighbours is not shifted, and both lie in the low four bits
    ] << 4 → ]
fifteen: the second of two neighbours is multiplied by 15, not by 16
    | Q[..., 1::2] << 4 → + 15 * Q[..., 1::2]
drops_second: only the first of two neighbours is kept
    Q[..., 0::2] | Q[..., 1::2] << 4 → Q[..., 0::2].clone()
one_row: all bytes come in a single row
    Q[..., 0::2] | Q[..., 1::2] << 4 → (Q[..., 0::2] | Q[..., 1::2] << 4).flatten()
""",
)


@bug(pack_int4, "the bytes are kept in int64", told_by="should be torch.uint8, not torch.int64")
def wide_bytes(Q):
    return pack_int4(Q).long()


@bug(
    pack_int4,
    "an integer is added to a row of odd length",
    told_by="when the last axis has 7 integers",
)
def pads(Q):
    if Q.shape[-1] % 2:
        Q = torch.cat([Q, torch.zeros_like(Q[..., :1])], dim=-1)
    return pack_int4(Q)


@bug(
    pack_int4,
    "of larger integers the low four bits are kept",
    told_by="should raise ValueError when an integer is 16",
)
def masks(Q):
    if Q.shape[-1] % 2:
        raise ValueError("an odd length")
    return pack_int4(Q & 15)


@bug(
    pack_int4,
    "integers below 0 are accepted",
    told_by="should raise ValueError when an integer is -1",
)
def accepts_signs(Q):
    return pack_int4(torch.where(Q < 0, Q & 15, Q))


@bug(unpack_int4, "the high four bits come first", classic=True)
def high_bits_first(packed):
    return torch.stack([packed >> 4, packed & 15], dim=-1).flatten(-2)


@bug(unpack_int4, "all low halves of bytes come first, and then all high ones", classic=True)
def all_low_first(packed):
    return torch.cat([packed & 15, packed >> 4], dim=-1)


@bug(unpack_int4, "the high four bits are not shifted down")
def stays_high(packed):
    return torch.stack([packed & 15, packed & 240], dim=-1).flatten(-2)


@bug(unpack_int4, "the low four bits are not cut off from the byte")
def whole_byte(packed):
    return torch.stack([packed, packed >> 4], dim=-1).flatten(-2)


@bug(unpack_int4, "integers from 8 on are read as negative")
def signed_nibbles(packed):
    Q = unpack_int4(packed).to(torch.int8)
    return torch.where(Q > 7, Q - 16, Q)


@bug(unpack_int4, "the low four bits are read twice")
def low_twice(packed):
    return torch.stack([packed & 15, packed & 15], dim=-1).flatten(-2)


@bug(unpack_int4, "the bytes are divided by 15 and not by 16")
def fifteenths(packed):
    return torch.stack([packed % 15, packed // 15], dim=-1).flatten(-2)


@bug(unpack_int4, "the two integers of a byte get an axis of their own")
def own_axis(packed):
    return torch.stack([packed & 15, packed >> 4], dim=-1)


@bug(unpack_int4, "all integers come in a single row")
def one_long_row(packed):
    return unpack_int4(packed).flatten()


@bug(unpack_int4, "the integers are int64", told_by="should be torch.uint8, not torch.int64")
def wide_integers(packed):
    return unpack_int4(packed).long()


# QuantisedKVCache


class VariedQuantised(QuantisedKVCache):
    """A cache whose parts the bugs below vary; it keeps what would be read, and no integers."""

    def __init__(self, B, G, capacity, D_h, bits=8, group=32, dtype=torch.float16, device="cpu"):
        if bits not in (4, 8) or (bits == 4 and D_h % 2):
            raise ValueError("so few bits cannot be packed")
        self.bits, self.group, self.dtype = bits, group, dtype
        self.capacity, self.sizes, self.length = capacity, (B, G, D_h), 0
        self.keys = torch.zeros(B, G, capacity, D_h, dtype=dtype)
        self.values = torch.zeros(B, G, capacity, D_h, dtype=dtype)

    @property
    def bytes(self):
        B, G, _ = self.sizes
        return B * G * (self.integers() + self.dtype.itemsize * (self.scales() + self.rest()))

    def integers(self):
        groups = self.capacity // self.group * self.group
        return (self.capacity + groups) * self.sizes[2] * self.bits // 8

    def scales(self):
        return 2 * self.capacity + self.capacity // self.group * self.sizes[2] * 2

    def rest(self):
        return self.group * self.sizes[2]

    def demand(self, K, V):
        B, G, D_h = self.sizes
        T = K.shape[-2]
        if K.shape != (B, G, T, D_h) or V.shape != K.shape:
            raise ValueError("these have another shape")
        if self.length + T > self.capacity:
            raise ValueError("they do not fit")

    def key_scales(self, keys):
        return dequantise(*quantise(keys, self.bits, 2, self.group))

    def value_scales(self, V):
        return dequantise(*quantise(V, self.bits, 3))

    def plain(self, X):
        return X.detach().to(self.dtype)

    def append(self, K, V):
        self.demand(K, V)
        K, V = self.plain(K), self.plain(V)
        start, end = self.length, self.length + K.shape[2]
        self.values[:, :, start:end] = self.value_scales(V)
        self.keys[:, :, start:end] = K
        self.fill(start // self.group * self.group, end // self.group * self.group)
        self.length = end

    def fill(self, done, full):
        if full > done:
            self.keys[:, :, done:full] = self.key_scales(self.keys[:, :, done:full].clone())

    def read(self):
        return self.keys[:, :, : self.length].clone(), self.values[:, :, : self.length].clone()

    def truncate(self, length):
        if not 0 <= length <= self.length:
            raise ValueError("so many cannot be kept")
        self.length = length


@bug(QuantisedKVCache, "keys have a scale for each token, as values do", classic=True)
class KeysByToken(VariedQuantised):
    def key_scales(self, keys):
        return dequantise(*quantise(keys, self.bits, 3))


@bug(QuantisedKVCache, "values have a scale for each channel of what comes at once", classic=True)
class ValuesByChannel(VariedQuantised):
    def value_scales(self, V):
        return dequantise(*quantise(V, self.bits, 2)) if V.shape[2] else V


@bug(QuantisedKVCache, "a value vector shares its scale with the other heads")
class AcrossHeads(VariedQuantised):
    def value_scales(self, V):
        return dequantise(*quantise(V, self.bits, (1, 3)))


@bug(
    QuantisedKVCache, "the keys that come at once are a group, however many they are", classic=True
)
class GroupsThatCome(VariedQuantised):
    def append(self, K, V):
        length = self.length
        super().append(K, V)
        if K.shape[2]:
            new = dequantise(*quantise(self.plain(K), self.bits, 2))
            self.keys[:, :, length : self.length] = new

    def fill(self, done, full):
        pass


@bug(QuantisedKVCache, "the residual is quantised too, with a scale of its own")
class NoResidual(VariedQuantised):
    def read(self):
        K, V = super().read()
        full = self.length // self.group * self.group
        if full < self.length:
            K[:, :, full:] = dequantise(*quantise(K[:, :, full:], self.bits, 2))
        return K, V


@bug(QuantisedKVCache, "the channels of a key share one scale over the group")
class GroupsOfAll(VariedQuantised):
    def key_scales(self, keys):
        parts = [quantise(part, self.bits, (2, 3)) for part in keys.split(self.group, dim=2)]
        return torch.cat([dequantise(*part) for part in parts], dim=2)


@bug(QuantisedKVCache, "the groups of one call share a scale for each channel")
class OneScaleACall(VariedQuantised):
    def key_scales(self, keys):
        return dequantise(*quantise(keys, self.bits, 2))


@bug(QuantisedKVCache, "keys have symmetric scales, without a zero point")
class SymmetricKeys(VariedQuantised):
    def key_scales(self, keys):
        return dequantise(*quantise(keys, self.bits, 2, self.group, symmetric=True))


@bug(QuantisedKVCache, "values have symmetric scales, without a zero point")
class SymmetricValues(VariedQuantised):
    def value_scales(self, V):
        return dequantise(*quantise(V, self.bits, 3, symmetric=True))


@bug(QuantisedKVCache, "there always are 8 bits")
class AlwaysEight(VariedQuantised):
    def key_scales(self, keys):
        return dequantise(*quantise(keys, 8, 2, self.group))

    def value_scales(self, V):
        return dequantise(*quantise(V, 8, 3))


@bug(QuantisedKVCache, "the group is always one of 32")
class Always32(VariedQuantised):
    def __init__(self, B, G, capacity, D_h, bits=8, group=32, *others):
        super().__init__(B, G, capacity, D_h, bits, 32, *others)


@bug(QuantisedKVCache, "the residual is not read")
class WithoutResidual(VariedQuantised):
    def read(self):
        K, V = super().read()
        return K[:, :, : self.length // self.group * self.group], V


@bug(QuantisedKVCache, "the residual comes before the quantised keys")
class ResidualFirst(VariedQuantised):
    def read(self):
        K, V = super().read()
        full = self.length // self.group * self.group
        return torch.cat([K[:, :, full:], K[:, :, :full]], dim=2), V


@bug(QuantisedKVCache, "keys and values are mixed up")
class MixedUp(VariedQuantised):
    def read(self):
        return super().read()[::-1]


@bug(
    QuantisedKVCache,
    "after a cut within a group the residual still holds keys of other positions",
    classic=True,
)
class LengthOnly(QuantisedKVCache):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.residual.zero_()

    def truncate(self, length):
        if not 0 <= length <= self.length:
            raise ValueError("so many cannot be kept")
        self.length = length


@bug(
    QuantisedKVCache,
    "truncate goes back to the border of the group that is cut",
    told_by="length should be 6, yours is 4",
)
class ToTheBorder(VariedQuantised):
    def truncate(self, length):
        full = self.length // self.group * self.group
        super().truncate(length)
        if length < full:
            self.length = length // self.group * self.group


@bug(
    QuantisedKVCache,
    "truncate cuts nothing of a group that is full",
    told_by="length should be 6, yours is 8",
)
class KeepsTheGroup(VariedQuantised):
    def truncate(self, length):
        full = self.length // self.group * self.group
        super().truncate(length)
        if length < full and length % self.group:
            self.length = length // self.group * self.group + self.group


@bug(QuantisedKVCache, "a group that was cut and fills up again is not quantised again")
class NotAgain(VariedQuantised):
    full = 0

    def fill(self, done, full):
        done = max(done, self.full)
        super().fill(done, full)
        self.full = max(full, self.full)


@bug(
    QuantisedKVCache,
    "truncate takes how many positions to forget, not how many to keep",
    told_by="length should be 9, yours is 1",
)
class Forgets(VariedQuantised):
    def truncate(self, length):
        super().truncate(self.length - length)


@bug(QuantisedKVCache, "scales and zero points are not counted", classic=True)
class IntegersOnly(VariedQuantised):
    def scales(self):
        return 0


@bug(QuantisedKVCache, "zero points are not counted")
class HalfTheScales(VariedQuantised):
    def scales(self):
        return super().scales() // 2


@bug(QuantisedKVCache, "the residual is not counted")
class RestNotCounted(VariedQuantised):
    def rest(self):
        return 0


@bug(QuantisedKVCache, "integers of 4 bits take a byte each")
class NotPacked(VariedQuantised):
    def integers(self):
        return super().integers() * 8 // self.bits


@bug(QuantisedKVCache, "the keys of all positions have room as integers, also in no full group")
class RoomForAll(VariedQuantised):
    def integers(self):
        return 2 * self.capacity * self.sizes[2] * self.bits // 8


@bug(QuantisedKVCache, "all numbers are kept in float32, whatever dtype says")
class AlwaysSingle(VariedQuantised):
    def __init__(self, B, G, capacity, D_h, bits=8, group=32, dtype=None, device="cpu"):
        super().__init__(B, G, capacity, D_h, bits, group, torch.float32, device)


@bug(
    QuantisedKVCache,
    "the gradient history of the residual is kept",
    told_by="K should carry no gradient when it is read",
)
class KeepsHistory(QuantisedKVCache):
    def append(self, K, V):
        with torch.no_grad():
            super().append(K, V)
        full = self.length // self.group * self.group
        if K.requires_grad and (rest := min(self.length - full, K.shape[2])):
            self.residual = self.residual.clone()
            self.residual[:, :, self.length - full - rest : self.length - full] = K[:, :, -rest:]


@bug(
    QuantisedKVCache,
    "what fits is kept before the rest is refused",
    told_by="when 3 come and 2 fit",
)
class KeepsWhatFits(VariedQuantised):
    def append(self, K, V):
        room = self.capacity - self.length
        super().append(K[:, :, :room], V[:, :, :room])


@bug(
    QuantisedKVCache,
    "the keys and values of one text are used for all",
    told_by="should raise ValueError when one text comes instead of all",
)
class Broadcast(VariedQuantised):
    def append(self, K, V):
        if len(K) == len(V) == 1:
            K, V = (X.expand(self.sizes[0], -1, -1, -1) for X in (K, V))
        super().append(K, V)


@bug(
    QuantisedKVCache,
    "truncate makes a cache longer than what was read",
    told_by="when 1 of 0 positions is to be kept",
)
class Lengthens(VariedQuantised):
    def truncate(self, length):
        if not 0 <= length <= self.capacity + 1:
            raise ValueError("so many cannot be kept")
        self.length = length


equivalent(
    QuantisedKVCache,
    "if start < self.length // self.group * self.group: → "
    "if start <= self.length // self.group * self.group:",
    "the residual takes back what it holds",
)

mistakes(
    QuantisedKVCache,
    """
* KeysByTokenInTheirOwnRoom: keys have a scale for each token, as values do
    quantise(new, self.bits, dims=2, group=group) → quantise(new, self.bits, dims=3)
    self.K_scale, self.K_zero = room(groups, D_h), room(groups, D_h)
    → self.K_scale, self.K_zero = (room(groups * group, 1) for _ in range(2))
    self.K_scale[:, :, done:full], self.K_zero[:, :, done:full] = scale, zero
    → places = slice(done * group, full * group)
      self.K_scale[:, :, places], self.K_zero[:, :, places] = scale, zero
    self.K_scale[:, :, :full], self.K_zero[:, :, :full]
    → self.K_scale[:, :, : full * self.group], self.K_zero[:, :, : full * self.group]
""",
)


class KeepsCalls(QuantisedKVCache):
    """A cache that quantises what comes in a call, and keeps it in lists."""

    def __init__(self, B, G, capacity, D_h, bits=8, group=32, dtype=torch.float16, device="cpu"):
        super().__init__(B, G, capacity, D_h, bits, group, dtype, device)
        self.parts, self.capacity = [], capacity

    def of_keys(self, K):
        return dequantise(*quantise(K, self.bits, 2)) if K.shape[2] else K

    def of_values(self, V):
        return dequantise(*quantise(V, self.bits, 3))

    def append(self, K, V):
        B, G, _, D_h = self.residual.shape
        if K.shape != (B, G, K.shape[2], D_h) or V.shape != K.shape:
            raise ValueError("these have another shape")
        if self.length + K.shape[2] > self.capacity:
            raise ValueError("they do not fit")
        K, V = (X.detach().to(self.residual) for X in (K, V))
        self.parts.append((self.of_keys(K), self.of_values(V)))
        self.length += K.shape[2]

    def read(self):
        nothing = self.residual[:, :, :0]
        pairs = [(nothing, nothing), *self.parts]
        return tuple(torch.cat(each, dim=2) for each in zip(*pairs, strict=True))

    def truncate(self, length):
        if not 0 <= length <= self.length:
            raise ValueError("so many cannot be kept")
        self.parts = [tuple(X[:, :, :length] for X in self.read())]
        self.length = length


@bug(
    QuantisedKVCache, "the keys that come at once are a group, however many they are", classic=True
)
class CallsAreGroups(KeepsCalls):
    @property
    def bytes(self):
        numbers = self.V_scale.nbytes * 2 + self.K_scale.nbytes * 2
        return self.V.nbytes * 2 + numbers


mistakes(
    QuantisedKVCache,
    """
QuantisesFirst: values are quantised before they are rounded to the cache's dtype
    quantise(V.detach().to(self.residual), self.bits, dims=3)
    → quantise(V.detach(), self.bits, dims=3)
ReadsViews: what is read of the residual is a view, which changes when more comes
    return torch.cat([K, self.residual[:, :, : N - full * self.group]], dim=2), V
    → rest = self.residual[:, :, : N - full * self.group]
      return (torch.cat([K, rest], dim=2) if full else rest), V
    says: is it a view of what the cache keeps?
""",
)


# QuantisedPagedCache


mistakes(
    QuantisedPagedCache,
    """
* ScaleOfAllHeads: all heads of a token share a scale
    Q, scale, zero = quantise(X.half(), self.bits, dims=-1)
    → Q, scale, zero = quantise(X.half(), self.bits, dims=(-2, -1))
      scale, zero = (part.expand(*X.shape[:-1], 1) for part in (scale, zero))
* ScaleOfAWrite: all tokens that are written at once share a scale
    Q, scale, zero = quantise(X.half(), self.bits, dims=-1)
    → Q, scale, zero = quantise(X.half(), self.bits, dims=(0, -1))
      scale, zero = (part.expand(*X.shape[:-1], 1) for part in (scale, zero))
ZeroFirst: the zero point comes before the scale
    [scale, zero], dim → [zero, scale], dim
    scale, zero = numbers → zero, scale = numbers
NumbersFirst: scale and zero point stand before the integers
    [integers, torch.cat([scale, zero], dim=-1).view(torch.uint8)]
    → [torch.cat([scale, zero], dim=-1).view(torch.uint8), integers]
    integers, numbers = records.split([records.shape[-1] - 4, 4]
    → numbers, integers = records.split([4, records.shape[-1] - 4]
SymmetricRecords: scales are symmetric, and there is no zero point
    Q, scale, zero = quantise(X.half(), self.bits, dims=-1)
    → Q, scale, zero = quantise(X.half(), self.bits, dims=-1, symmetric=True)
      Q = Q.view(torch.uint8) & (15 if self.bits == 4 else 255)
ReadsNoZero: the zero point is left out when records are read
    else integers, scale, zero) → else integers, scale, 0 * zero)
NotHalved: the numbers are not rounded to float16 first
    X.half() → X
    [scale, zero], dim=-1) → [scale, zero], dim=-1).half()
BrainFloats: scale and zero point are kept in bfloat16
    [scale, zero], dim=-1) → [scale, zero], dim=-1).bfloat16()
    .view(torch.float16) → .view(torch.bfloat16)
""",
)


@bug(QuantisedPagedCache, "there always are 8 bits")
class EightBitRecords(QuantisedPagedCache):
    def __init__(self, L, blocks, block_size, G, D_h, bits=8, dtype=None, device=None):
        QuantisedPagedCache(L, blocks, block_size, G, D_h, bits)
        super().__init__(L, blocks, block_size, G, D_h, 8, dtype, device)


@bug(QuantisedPagedCache, "integers of 4 bits take a byte each")
class UnpackedRecords(QuantisedPagedCache):
    def __init__(self, L, blocks, block_size, G, D_h, bits=8, dtype=None, device=None):
        super().__init__(L, blocks, block_size, G, D_h, bits, dtype, device)
        if bits == 4:
            self.K, self.V = (
                torch.zeros(*part.shape[:-1], D_h + 4, dtype=torch.uint8)
                for part in (self.K, self.V)
            )

    def encode(self, X):
        Q, scale, zero = quantise(X.half(), self.bits, dims=-1)
        return torch.cat([Q, torch.cat([scale, zero], dim=-1).view(torch.uint8)], dim=-1)

    def decode(self, records):
        if self.bits == 8:
            return super().decode(records)
        packed = pack_int4(records[..., :-4] & 15)
        return super().decode(torch.cat([packed, records[..., -4:]], dim=-1))


@bug(QuantisedPagedCache, "keys and values are mixed up")
class GathersMixedUp(QuantisedPagedCache):
    def gather(self, layer, blocks, length):
        return super().gather(layer, blocks, length)[::-1]


@bug(QuantisedPagedCache, "keys and values are mixed up")
class WritesMixedUp(QuantisedPagedCache):
    def write(self, layer, slots, K, V):
        super().write(layer, slots, V, K)


@bug(QuantisedPagedCache, "keys and values of the first layer are read, whatever the layer")
class FirstLayer(QuantisedPagedCache):
    def gather(self, layer, blocks, length):
        return super().gather(0, blocks, length)


@bug(
    QuantisedPagedCache,
    "records are gathered, not what they hold",
    told_by="should hold real numbers",
)
class GathersRecords(QuantisedPagedCache):
    def gather(self, layer, blocks, length):
        return PagedKVCache.gather(self, layer, blocks, length)


mistakes(
    QuantisedPagedCache,
    """
KeysTwice: keys are stored in the place of values, too
    self.encode(K), self.encode(V)) → self.encode(K), self.encode(K))
StaysHalf: vectors are computed in float16 when they are read, whatever the cache's dtype
    numbers.to(self.dtype).split → numbers.split
""",
)


# QuantisedLinear


changed(
    QuantisedLinear,
    "ByRows",
    "each row of the matrix, an input, has a scale, not each column",
    (
        "        Q, scale, _ = quantise(W.detach(), 8, dims=0, group=group, symmetric=True)",
        "        quantise(W.detach(), 8, dims=0, group=group)\n"
        "        Q, scale, _ = quantise(W.detach(), 8, dims=1, symmetric=True)",
    ),
    classic=True,
)

mistakes(
    QuantisedLinear,
    """
* GroupsInRows: each row of the matrix, an input, has a scale, not each column
    dims=0 → dims=1
""",
)

changed(
    QuantisedLinear,
    "OneScale",
    "the whole matrix has one scale",
    (
        "        Q, scale, _ = quantise(W.detach(), 8, dims=0, group=group, symmetric=True)",
        "        quantise(W.detach(), 8, dims=0, group=group)\n"
        "        Q, scale, _ = quantise(W.detach(), 8, dims=(0, 1), symmetric=True)",
    ),
    classic=True,
)

mistakes(
    QuantisedLinear,
    """
WithZero: the columns have a zero point, which is used when multiplying
    scale, _ = → scale, self.zero =
    , symmetric=True →
    torch.zeros_like(self.scale) → self.zero
ForgetsZero: the columns have a zero point, which is forgotten when multiplying
    , symmetric=True →
NoGroups: group is not used
    , group=group →
""",
)

changed(
    QuantisedLinear,
    "ChecksTheGroup",
    "group is not used",
    (
        "        Q, scale, _ = quantise(W.detach(), 8, dims=0, group=group, symmetric=True)",
        "        quantise(W.detach(), 8, dims=0, group=group)\n"
        "        Q, scale, _ = quantise(W.detach(), 8, dims=0, symmetric=True)",
    ),
)

changed(
    QuantisedLinear,
    "HowManyGroups",
    "group is taken for how many groups there are",
    (
        "        Q, scale, _ =",
        "        quantise(W.detach(), 8, dims=0, group=group)\n"
        "        group = None if group is None else len(W) // group\n"
        "        Q, scale, _ =",
    ),
)

mistakes(
    QuantisedLinear,
    """
NoBias: the bias is left out
    bias.detach().clone() → 0 * bias.detach()
RoundedBias: the bias is quantised too
    bias.detach().clone() → dequantise(*quantise(bias.detach(), 8, 0, symmetric=True))
""",
)


@bug(QuantisedLinear, "the bias is added before the scale is multiplied")
class BiasFirst(QuantisedLinear):
    def forward(self, X):
        if self.bias is None or len(self.scale) > 1:
            return super().forward(X)
        Y = X @ self.Q.to(X.dtype) + self.bias.to(X.dtype)
        return Y * self.scale[0].to(X.dtype)


changed(
    QuantisedLinear,
    "RoundedInputs",
    "inputs are quantised too",
    (
        "        return X @ W",
        "        X = dequantise(*quantise(X, 8, -1, symmetric=True))\n        return X @ W",
    ),
)

changed(
    QuantisedLinear,
    "NotQuantised",
    "the matrix is not quantised when it multiplies",
    ("        Q, scale, _", "        self.W = W.detach().clone()\n        Q, scale, _"),
    ("dequantise(self.Q, self.scale, torch.zeros_like(self.scale))", "self.W"),
)

mistakes(
    QuantisedLinear,
    """
FourBits: there are only 4 bits
    W.detach(), 8, → W.detach(), 4,
NoScale: results do not depend on the scale
    dequantise(self.Q, self.scale, torch.zeros_like(self.scale)).to(X.dtype) → self.Q.to(X.dtype)
""",
)

changed(
    QuantisedLinear,
    "StoresBoth",
    "the dequantised matrix is stored as well",
    (
        '        self.register_buffer("scale", scale)\n',
        '        self.register_buffer("scale", scale)\n'
        '        self.register_buffer("W", dequantise(Q, scale, torch.zeros_like(scale)))\n',
    ),
    told_by="yours stores ['Q', 'W', 'scale']",
)

mistakes(
    QuantisedLinear,
    """
TrainsScales: the scales are parameters, which an optimiser would change
    self.register_buffer("scale", scale) → self.scale = nn.Parameter(scale)
    says: There should be no parameters, yours are ['scale']
TrainsBias: the bias is a parameter
    self.register_buffer("bias", None if bias is None else bias.detach().clone())
    → self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
    says: There should be no parameters, yours are ['bias']
""",
)


# gptq


mistakes(
    gptq,
    """
nearest: no row makes up for the error of another, and all are rounded to the nearest
    rows[i + 1 :] -= torch.outer(U[i, i + 1 :], error) → pass
* whole_inverse: every step uses P⁻¹ of all rows, also of those that are rounded already
    torch.linalg.cholesky(torch.linalg.inv(P), upper=True) → torch.linalg.inv(P)
* factor_of_p: the factor is that of P, not that of P⁻¹
    torch.linalg.cholesky(torch.linalg.inv(P), upper=True) → torch.linalg.cholesky(P, upper=True)
adds: the error is added to the rows that are left, which doubles it
    rows[i + 1 :] -= → rows[i + 1 :] +=
undivided: the error is not divided by the diagonal of U
    (rows[i] - Q[i] * s) / U[i, i] → rows[i] - Q[i] * s
divided_twice: the error is divided by the square of the diagonal of U
    / U[i, i] → / U[i, i] ** 2
absolute: damping itself is added to the diagonal, whatever the size of the inputs
    damping * P.diagonal().mean() → damping
sum: damping is multiplied by the sum of the diagonal, not by its mean
    P.diagonal().mean() → P.diagonal().sum()
centred: the means of the features are subtracted from the inputs
    X.double() → (X - X.mean(dim=0)).double()
in_steps: the error is measured in steps, not in the units of the weights
    (rows[i] - Q[i] * s) / → (rows[i] / s - Q[i]) /
one_more: the largest integer is 2^(bits-1)
    2 ** (bits - 1) - 1 → 2 ** (bits - 1)
downwards: numbers are rounded down, not to the nearest integer
    torch.round(rows[i] / s) → torch.floor(rows[i] / s)
clamped_later: the error is that of rounding alone, without what the integers' limits cut off
    error = (rows[i] - Q[i] * s) → error = (rows[i] - torch.round(rows[i] / s) * s)
of_the_original: the error is measured from the original row, not from the row that was moved
    error = (rows[i] - Q[i] * s) → error = (W[i] - Q[i] * s)
rounds_the_original: no row makes up for the error of another, and all are rounded to the nearest
    Q[i] = torch.round(rows[i] / s) → Q[i] = torch.round(W[i] / s)
in_place: W is changed in place
    W.to(torch.float64, copy=True) → W.double()
    says: changes its argument W in place
next_only: only the next row makes up for the error
    rows[i + 1 :] -= → rows[i + 1 : i + 2] -=
    outer(U[i, i + 1 :] → outer(U[i, i + 1 : i + 2]
one_scale: there is one scale for the whole matrix
    bits, 0, symmetric=True)[1] → bits, (0, 1), symmetric=True)[1].expand(1, W.shape[1])
* unclamped: integers are not kept within their range
    .clamp(-top, top) →
""",
)


@bug(gptq, "nothing is added to the diagonal of P")
def no_damping(W, X, bits=4, damping=0.01):
    return gptq(W, X, bits, 1e-12)


@bug(
    gptq,
    "inputs of any size are accepted",
    told_by="should raise ValueError when X has 5 features and W 6 rows",
)
def any_inputs(W, X, bits=4, damping=0.01):
    return gptq(W[: X.shape[-1]], X, bits, damping)


# rotate


def doubled(X, start):
    """Build the Hadamard matrix that the reference builds."""
    H = X.new_ones(1, 1) if start is None else start.to(X)
    while len(H) < X.shape[-1]:
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    if len(H) != X.shape[-1]:
        raise ValueError("no doubling leads there")
    return H


mistakes(
    rotate,
    """
* not_divided: the result is not divided by √D
    H / math.sqrt(D) → H
divided_by_D: the result is divided by D, not by √D
    math.sqrt(D) → D
all_ones: the signs of the last quarter are not turned: all of them are +1
    [H, -H] → [H, H]
other_quarter: the minus stands in another quarter: [[H, H], [-H, H]]
    [H, -H] → [-H, H]
* inwards: every number becomes four, in place of every matrix
    torch.cat([torch.cat([H, H], dim=1), torch.cat([H, -H], dim=1)])
    → torch.kron(H, torch.tensor([[1.0, 1], [1, -1]]).to(X))
from_the_left: vectors are multiplied by the transposed matrix
    X @ H → X @ H.T
without_start: the start is not used
    X.new_ones(1, 1) if start is None else start.to(X) → X.new_ones(1, 1)
start_not_counted: the start is not counted in what is divided by
    math.sqrt(D) → math.sqrt(D / (1 if start is None else len(start)))
""",
)


@bug(rotate, "positions are mixed, not features")
def along_positions(X, start=None):
    doubled(X, start)
    size = 1 << (X.shape[-2] - 1).bit_length() if X.dim() > 1 else 1
    H = doubled(X.new_zeros(size), None)[: X.shape[-2], : X.shape[-2]] if X.dim() > 1 else 1
    return H @ X / math.sqrt(size) if X.dim() > 1 else X


@bug(
    rotate,
    "a matrix that is too large is cut to D",
    told_by="should raise ValueError when D is 12 and it starts at 1",
)
def cuts(X, start=None):
    D, H = X.shape[-1], X.new_ones(1, 1) if start is None else start.to(X)
    if len(H) > D:
        raise ValueError("the start is too large")
    while len(H) < D:
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    return X @ H[:D, :D] / math.sqrt(D)
