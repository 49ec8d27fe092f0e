"""Checks of quantisation. Oracles: slices, number by number, tables of bytes, caches of numbers."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from course_pkg.checking.batched import of_each, together
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.memo import once
from course_pkg.checking.registry import check
from course_pkg.checking.telling.failure import Failure
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


@once
def by_slices(
    X: Tensor, bits: int, dims: tuple[int, ...], group: int | None = None, symmetric: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise slice by slice, number by number: Q, scale and zero point."""
    x = X.detach().double().numpy()
    parts = [
        ((size // group if group else 1) if axis in dims else size)
        for axis, size in enumerate(x.shape)
    ]
    steps = [size // max(n, 1) for size, n in zip(x.shape, parts, strict=True)]
    slices = {
        place: tuple(slice(p * n, p * n + n) for p, n in zip(place, steps, strict=True))
        for place in itertools.product(*map(range, parts))
    }
    top = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
    lowest, largest, Q = np.zeros(parts), np.zeros(parts), np.zeros(x.shape)
    for place, shared in slices.items():
        lowest[place] = 0.0 if symmetric else x[shared].min()
        largest[place] = np.abs(x[shared]).max() if symmetric else x[shared].max()
    scale = torch.from_numpy((largest - lowest) / top).to(X.dtype)
    scale[scale == 0] = 1
    s = scale.double().numpy()  # as X's dtype has rounded it
    for place, shared in slices.items():
        q = np.rint((x[shared] - lowest[place]) / s[place])
        Q[shared] = np.clip(q, -top, top)
    integers = torch.from_numpy(Q).to(torch.int8 if symmetric else torch.uint8)
    return integers, scale, torch.from_numpy(lowest).to(X.dtype)


def demand_quantised(case: Case, given: object, expected: tuple, what: str) -> None:
    """Demand integers of the right dtype, their scale and their zero point."""
    Q, scale, zero = case.unpack(given, "Q", "scale", "zero")
    case.equal(scale, expected[1], f"scale {what}")
    case.equal(zero, expected[2], f"zero point {what}")
    case.equal(Q, expected[0], f"Q {what}")
    case.that(Q.dtype == expected[0].dtype, f"Q should be {expected[0].dtype}, yours is {Q.dtype}.")


def demand_each(case: Case, quantise, X: Tensor, questions: list[tuple]) -> None:
    """Demand what a student's function gives for X by several bits, dims, groups; named last."""
    given = of_each(quantise, [(X, *settings) for *settings, _ in questions])
    for (*settings, what), found in zip(questions, given, strict=True):
        bits, dims, *rest = settings
        axes = tuple(axis % X.dim() for axis in ([dims] if isinstance(dims, int) else dims))
        demand_quantised(case, found, by_slices(X, bits, axes, *rest), what)


def far_from_zero(case: Case, *shape: int) -> Tensor:
    """Draw numbers most of which are positive: the range of a slice need not hold 0."""
    return case.randn(*shape) + 4 * case.rand(*shape) + 1


@check(quantise, weight=2, see="Who shares a scale", single={"T": 0, "C": 1})
def tensor(quantise, case):
    """gives a whole tensor one scale and one zero point"""
    T, C = case.sizes(2, low=4)
    X = far_from_zero(case, T, C)
    demand_quantised(case, quantise(X, 8, (0, 1)), by_slices(X, 8, (0, 1)), "of a tensor")


@check(quantise, weight=2, see="Who shares a scale", single={"T": 0, "C": 1})
def channels(quantise, case):
    """gives each channel, a column, a scale and a zero point of its own"""
    T, C = case.sizes(2, low=4)
    X = far_from_zero(case, T, C) * (1 + torch.arange(C))
    demand_quantised(case, quantise(X, 8, 0), by_slices(X, 8, (0,)), "of channels")


@check(quantise, weight=2, see="Who shares a scale", single={"T": 0, "C": 1})
def tokens(quantise, case):
    """gives each token, a row, a scale and a zero point of its own"""
    T, C = case.sizes(2, low=4)
    X = far_from_zero(case, T, C) * (1 + torch.arange(T)[:, None])
    demand_each(case, quantise, X, [(8, 1, "of tokens"), (8, -1, "with dims = -1")])


@check(quantise, weight=2, see="Who shares a scale", single={"B": 0, "C": 1})
def groups(quantise, case):
    """gives each group of neighbours along an axis a scale and a zero point of its own"""
    B, C = case.sizes(2, low=4)
    X = far_from_zero(case, B, 12, C) * (1 + torch.arange(12)[:, None])
    questions = [(8, 1, group, f"in groups of {group}") for group in (3, 4)]
    demand_each(case, quantise, X, questions)


@check(quantise, weight=2, see="Integers, a scale and a zero point")
def symmetric(quantise, case):
    """has a zero point of 0 and integers of both signs when it is symmetric"""
    T, C = case.sizes(2, low=4)
    X = case.randn(T, C)
    for dims in (0, 1):
        expected = by_slices(X, 8, (dims,), symmetric=True)
        given = quantise(X, 8, dims, symmetric=True)
        demand_quantised(case, given, expected, f"symmetric, dims = {dims},")


@check(quantise, see="Integers, a scale and a zero point")
def fewer_bits(quantise, case):
    """uses all integers that so many bits have, and no others"""
    X = far_from_zero(case, 9, 40)
    questions: list[tuple] = []
    for bits in (2, 3, 4, 7):
        questions.append((bits, 1, f"of {bits} bits"))
        questions.append((bits, 1, None, True, f"of {bits} bits, symmetric,"))
    demand_each(case, quantise, X, questions)


@check(quantise, see="Integers, a scale and a zero point")
def half_precision(quantise, case):
    """rounds the scale to half precision first, and then the numbers with that scale"""
    for dtype in (torch.float16, torch.bfloat16):
        X = (far_from_zero(case, 6, 50) * (1 + torch.arange(6)[:, None])).to(dtype)
        X[::2] = -X[::2]
        for options in ({}, {"symmetric": True}):
            given, expected = quantise(X, 8, 1, **options), by_slices(X, 8, (1,), **options)
            demand_quantised(case, given, expected, f"of {dtype}")
            for name, part in zip(("scale", "zero point"), given[1:], strict=True):
                case.that(part.dtype == dtype, f"{name} should be {dtype}, yours is {part.dtype}.")


@check(quantise, see="Integers, a scale and a zero point")
def half_a_step(quantise, case):
    """leaves no number further than half a step from where it was"""
    T, C = case.sizes(2, low=8)
    X = 3 * case.randn(T, C) - 5
    for options in ({}, {"symmetric": True}):
        Q, scale, zero = case.unpack(quantise(X, 4, 0, **options), "Q", "scale", "zero")
        case.shape(Q, (T, C), "Q")
        case.shape(scale, (1, C), "scale")
        case.shape(zero, (1, C), "zero point")
        error = (Q.double() * scale.double() + zero.double() - X).abs() / scale.double()
        worst = error.max().item()
        case.that(
            worst <= 0.5 + 1e-4,
            f"The error should be at most 0.5 steps, yours is {worst:.3f}.",
            observed=error,
        )


@check(quantise, weight=2, see="Nothing to divide by")
def constant(quantise, case):
    """gives equal numbers the scale 1, and loses nothing of them"""
    X = far_from_zero(case, 5, 6)
    X[1], X[3] = 2.75, 0.0
    for options in ({}, {"symmetric": True}):
        what = ", symmetric," if options else ""
        expected = by_slices(X, 8, (1,), **options)
        given = quantise(X, 8, 1, **options)
        for part in case.unpack(given, "Q", "scale", "zero"):
            finite = isinstance(part, Tensor) and part.double().isfinite().all()
            case.that(finite, "The result should be finite for equal numbers, yours is not.")
        demand_quantised(case, given, expected, f"of rows some of which are constant{what}")


@check(quantise, see="Who shares a scale")
def many_axes(quantise, case):
    """shares scales along any axes of four, counted from either end"""
    X = far_from_zero(case, 2, 3, 6, 5).transpose(1, 2)
    questions: list[tuple] = [
        (8, dims, f"with dims = {dims}") for dims in ((0, 2), (1, 2, 3), (1,), (3, 0), (-1, 0))
    ]
    for axis, group in ((-2, 3), (1, 2), (3, 5), (-1, 1)):
        what = f"along axis {axis} in groups of {group}"
        questions.append((8, axis, group, what))
        questions.append((4, axis, group, True, f"{what}, symmetric,"))
    demand_each(case, quantise, X, [*questions, (8, (2,), 3, "with dims = (2,)")])


@check(quantise, see="Who shares a scale")
def refuses(quantise, case):
    """raises ValueError for bits that there are not, and for groups that cannot be cut"""
    X = case.randn(4, 6)
    for bits in (1, 0, 9, 16):
        case.raises(ValueError, lambda bits=bits: quantise(X, bits, 0), f"bits is {bits}")
    case.raises(ValueError, lambda: quantise(X, 8, 1, 4), "groups of 4 are to be cut out of 6")
    case.raises(ValueError, lambda: quantise(X, 8, 0, 8), "groups of 8 are to be cut out of 4")
    case.raises(ValueError, lambda: quantise(X, 8, (0, 1), 2), "groups come with two axes")


def quantised(
    X: Tensor,
    bits: int,
    dims: int | tuple[int, ...],
    group: int | None = None,
    symmetric: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise what `quantise` takes, slice by slice."""
    axes = tuple(axis % X.dim() for axis in ([dims] if isinstance(dims, int) else dims))
    if bits not in range(2, 9) or (group and (len(axes) > 1 or X.shape[axes[0]] % group)):
        raise ValueError("there are no such bits or groups")
    return by_slices(X, bits, axes, group, symmetric)


# Dequantise


def drawn_integers(case: Case, *shape: int) -> Tensor:
    """Draw bytes, among them 255."""
    Q = case.integers(0, 256, *shape).to(torch.uint8)
    Q[(0,) * Q.dim()] = 255
    return Q


def spread(scale: Tensor, shape: torch.Size) -> Tensor:
    """Give each integer its scale, entry by entry."""
    places = [torch.arange(size) * n // size for size, n in zip(shape, scale.shape, strict=True)]
    return scale[torch.meshgrid(places, indexing="ij")]


def demand_restored(case: Case, dequantise, Q: Tensor, shapes: dict[str, tuple]) -> None:
    """Demand what a student's function makes of integers with drawn scales of several shapes."""
    drawn = [(case.rand(*shape) + 0.5, 9 * case.randn(*shape)) for shape in shapes.values()]
    found = of_each(dequantise, [(Q, *pair) for pair in drawn])
    for what, (scale, zero), given in zip(shapes, drawn, found, strict=True):
        expected = Q.double() * spread(scale, Q.shape) + spread(zero, Q.shape)
        case.equal(given, expected, f"X̂ {what}")


@check(dequantise, weight=2, see="And back", single={"T": 0, "C": 1})
def values(dequantise, case):
    """multiplies by the scale, and then adds the zero point"""
    T, C = case.sizes(2, low=3)
    Q = drawn_integers(case, T, C)
    shapes = (1, C), (T, 1), (1, 1), (T, C)
    demand_restored(case, dequantise, Q, {f"with scales of shape {s}": s for s in shapes})


@check(dequantise, weight=2, see="And back", single={"B": 0, "C": 1})
def groups(dequantise, case):
    """gives the integers of each group of neighbours their scale"""
    B, C = case.sizes(2, low=3)
    Q = drawn_integers(case, B, 12, C)
    shapes = {f"of {parts} groups": (B, parts, C) for parts in (2, 6)}
    demand_restored(case, dequantise, Q, shapes)


@check(dequantise, see="And back")
def signs(dequantise, case):
    """keeps the sign of symmetric integers, and gives numbers of the scale's dtype"""
    T, C = case.sizes(2, low=3)
    Q = case.integers(-127, 128, T, C).to(torch.int8)
    for dtype in (torch.float64, torch.float32, torch.float16):
        scale, zero = (case.rand(1, C) + 0.5).to(dtype), torch.zeros(1, C, dtype=dtype)
        found = dequantise(Q, scale, zero)
        expected = Q.double() * scale.double()
        case.equal(found, expected, "X̂", rtol=1e-3 if dtype == torch.float16 else 1e-5)
        case.that(found.dtype == dtype, f"X̂ should be {dtype}, yours is {found.dtype}.")


@check(dequantise, see="And back")
def refuses(dequantise, case):
    """raises ValueError when the scales cannot be shared equally, or have other axes"""
    Q, scale = drawn_integers(case, 7, 4), case.rand(2, 1)
    case.raises(ValueError, lambda: dequantise(Q, scale[0], scale[0]), "the scale has one axis")
    case.raises(ValueError, lambda: dequantise(Q, scale, scale), "2 scales are for 7 integers")


@check(dequantise, see="And back")
def other_integers(dequantise, case):
    """takes integers of any dtype, and refuses more scales than integers"""
    Q = case.integers(-99, 1000, 3, 5)
    scale, zero = case.rand(3, 1) + 0.5, case.randn(3, 1)
    for dtype in (torch.int64, torch.int32, torch.int16):
        given = dequantise(Q.to(dtype), scale, zero)
        case.equal(given, Q * scale + zero, f"X̂ of {dtype}")
    more = case.rand(6, 1)
    case.raises(ValueError, lambda: dequantise(Q, more, more), "6 scales are for 3 integers")
    few = case.rand(3, 2)
    case.raises(ValueError, lambda: dequantise(Q, few, few), "2 scales are for 5 integers")


# Pack


def hexadecimal(digits: list[list[int]]) -> Tensor:
    """Read pairs of integers as the two digits of a byte, the first one last."""
    return torch.tensor([int(f"{b:x}{a:x}", 16) for a, b in digits], dtype=torch.uint8)


PAIRS = [[a, b] for a in range(16) for b in range(16)]


def demand_bytes(case: Case, given: object, expected: Tensor, what: str) -> None:
    """Demand a tensor of uint8."""
    case.equal(given, expected, what)
    case.that(given.dtype == torch.uint8, f"{what} should be torch.uint8, not {given.dtype}.")


@check(pack_int4, weight=2, see="Two to a byte")
def values(pack, case):
    """puts the first of two neighbours into the low four bits, and the second into the high"""
    order = torch.randperm(256, generator=case.generator).tolist()
    pairs = [PAIRS[n] for n in order]
    given = pack(torch.tensor(pairs, dtype=torch.uint8))
    demand_bytes(case, given, hexadecimal(pairs)[:, None], "packed Q, one pair in each row,")


@check(pack_int4, weight=2, see="Two to a byte", single={"B": 0, "G": 1})
def rows(pack, case):
    """packs along the last axis, neighbours together, and keeps all other axes"""
    B, G, half = case.sizes(3, low=3)
    Q = case.integers(0, 16, B, G, 2 * half)
    expected = hexadecimal(Q.reshape(-1, 2).tolist()).view(B, G, half)
    demand_bytes(case, pack(Q), expected, "packed Q")
    demand_bytes(case, pack(Q.to(torch.uint8)), expected, "packed Q of uint8")


@check(pack_int4, see="Two to a byte")
def odd(pack, case):
    """raises ValueError when the last axis is odd"""
    Q = case.integers(0, 16, 4, 7).to(torch.uint8)
    case.raises(ValueError, lambda: pack(Q), "the last axis has 7 integers")


@check(pack_int4, see="Two to a byte")
def too_large(pack, case):
    """raises ValueError when an integer needs more than four bits, or has a sign"""
    for wrong in (16, 255, 256, -1):
        Q = case.integers(0, 16, 3, 6)
        Q[1, 4] = wrong
        case.raises(ValueError, lambda Q=Q: pack(Q), f"an integer is {wrong}")


@check(pack_int4, see="Two to a byte")
def kinds(pack, case):
    """takes integers of any dtype and layout, and none at all"""
    Q = case.integers(0, 16, 6, 5, 4).transpose(0, 2)
    expected = hexadecimal(Q.reshape(-1, 2).tolist()).view(4, 5, 3)
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
        demand_bytes(case, pack(Q.to(dtype)), expected, f"packed {dtype}")
    nothing = torch.zeros(3, 0, dtype=torch.uint8)
    demand_bytes(case, pack(nothing), nothing, "packed nothing")
    demand_bytes(case, pack(Q[:0].to(torch.uint8)), expected[:0], "packed rows of which are none")


@check(unpack_int4, weight=2, see="Two to a byte")
def every_byte(unpack, case):
    """takes the two integers out of each of the 256 bytes"""
    every = torch.tensor(PAIRS)
    given = unpack(hexadecimal(PAIRS)[:, None])
    demand_bytes(case, given, every.to(torch.uint8), "unpacked bytes, one in each row,")


@check(unpack_int4, weight=2, see="Two to a byte", single={"B": 0, "G": 1})
def rows(unpack, case):
    """unpacks along the last axis, and keeps all other axes"""
    B, G, half = case.sizes(3, low=3)
    Q = case.integers(0, 16, B, G, 2 * half).to(torch.uint8)
    packed = hexadecimal(Q.reshape(-1, 2).tolist()).view(B, G, half)
    demand_bytes(case, unpack(packed), Q, "unpacked bytes")


# Cache


@once
def restored(X: Tensor, bits: int, dim: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Quantise numbers of a dtype along one axis, and bring them back."""
    Q, scale, zero = by_slices(X.to(dtype), bits, (dim,))
    return Q.double() * scale.double() + zero.double()


@once
def expected_keys(K: Tensor, bits: int, group: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Quantise each full group of positions by channels, and leave the others as they are."""
    pieces = [
        restored(part, bits, 2, dtype) if part.shape[2] == group else part.to(dtype).double()
        for part in K.split(group, dim=2)
    ]
    return torch.cat(pieces, dim=2)


@together
def read_after(cache, pieces: list[tuple[Tensor, Tensor]], keep: int | None) -> tuple:
    """Append pieces to a cache, cut it if told to; read its length and what it holds."""
    for keys, values in pieces:
        cache.append(keys, values)
    if keep is not None:
        cache.truncate(keep)
    return cache.length, cache.read()


def kept_in(
    case: Case,
    cache,
    N: int,
    shape: tuple[int, int, int],
    pieces: Sequence[tuple[Tensor, Tensor]] = (),
    cut: bool = False,
) -> tuple[Tensor, Tensor]:
    """Append pieces to a cache, cut it if told to, and read it: it should hold N positions."""
    length, found = read_after(cache, list(pieces), N if cut else None)
    case.equal(length, torch.tensor(N), "length")
    K, V = case.unpack(found, "K", "V")
    B, G, D_h = shape
    case.shape(K, (B, G, N, D_h), "K")
    case.shape(V, (B, G, N, D_h), "V")
    return K, V


def tell_kept_values(
    case: Case, given: tuple, keys: Tensor, values: Tensor, group: int, when: str
) -> None:
    """Compare keys and values; the message says where in the cache the first wrong one lies."""
    N = keys.shape[2]
    full = N // group * group
    for name, one, right in (("K", given[0], keys), ("V", given[1], values)):
        try:
            case.equal(one, right, f"{name} {when}")
        except Failure as failure:
            if isinstance(one, Tensor) and one.shape == right.shape:
                wrong = ~torch.isclose(one.double(), right.double(), 1e-5, 1e-6)
                n = int(wrong.any(3).any(1).any(0).long().argmax())
                place = f"among the residual, from position {full} on"
                if n < full:
                    place = (
                        f"in a full group, {n // group * group} … {n // group * group + group - 1}"
                    )
                failure.message += (
                    f"\nPosition {n} of {N} is the first that is wrong: it lies {place}."
                )
            raise


def unlike(case: Case, B: int, G: int, T: int, D_h: int) -> tuple[Tensor, Tensor]:
    """Draw keys and values, whose channels and tokens differ in size."""
    K = (case.randn(B, G, T, D_h) + 2) * (1 + torch.arange(D_h)) * (1 + torch.arange(T)[:, None])
    return K, (case.randn(B, G, T, D_h) - 1) * (1 + torch.arange(T)[:, None] % 3)


@check(QuantisedKVCache, weight=2, see="Keys by channel, values by token", single={"B": 0, "G": 1})
def values(cache, case):
    """keeps each value vector in 8 bits, with a scale and a zero point of its own"""
    B, G, T, D_h = case.sizes(4)
    K, V = unlike(case, B, G, 2 * T, D_h)
    ours = cache(B, G, 2 * T + 1, D_h, 8, T, torch.float64)
    found = kept_in(case, ours, 2 * T, (B, G, D_h), [(K, V)])
    case.equal(found[1], restored(V, 8, 3), "V")


@check(QuantisedKVCache, weight=2, see="Keys by channel, values by token", single={"B": 0, "G": 1})
def keys(cache, case):
    """keeps the channels of each full group of positions in 8 bits, and the residual as it is"""
    B, G, group, D_h = case.sizes(4)
    N = 2 * group + max(group // 2, 1)
    K, V = unlike(case, B, G, N, D_h)
    ours = cache(B, G, N + 2, D_h, 8, group, torch.float64)
    found = kept_in(case, ours, N, (B, G, D_h), [(K, V)])[0]
    case.equal(found[:, :, 2 * group :], K[:, :, 2 * group :], "K of the residual")
    case.equal(found, expected_keys(K, 8, group), "K")


@check(QuantisedKVCache, weight=3, see="Keys by channel, values by token")
def pieces(cache, case):
    """is the same whether positions come together, one by one, or in pieces of any lengths"""
    B, G, D_h = 2, 3, 5
    for lengths in ([1] * 11, [3, 1, 6, 1], [2, 7, 2], [4, 4, 3], [9, 2]):
        K, V = unlike(case, B, G, 11, D_h)
        ours = cache(B, G, 13, D_h, 8, 4, torch.float64)
        parts = list(zip(K.split(lengths, dim=2), V.split(lengths, dim=2), strict=True))
        found = kept_in(case, ours, 11, (B, G, D_h), parts)
        when = f"after pieces of {', '.join(map(str, lengths))}"
        tell_kept_values(case, found, expected_keys(K, 8, 4), restored(V, 8, 3), 4, when)


@check(QuantisedKVCache, weight=2, see="Two to a byte")
def four_bits(cache, case):
    """keeps keys and values in 4 bits when told to"""
    B, G, half = 2, 3, 4
    K, V = unlike(case, B, G, 7, 2 * half)
    ours = cache(B, G, 9, 2 * half, 4, 3, torch.float64)
    parts = list(zip(K.split([2, 5], dim=2), V.split([2, 5], dim=2), strict=True))
    found = kept_in(case, ours, 7, (B, G, 2 * half), parts)
    tell_kept_values(case, found, expected_keys(K, 4, 3), restored(V, 4, 3), 3, "in 4 bits")


def cut(case: Case, cache, keep: int, more: int) -> None:
    """Fill a cache of groups of 4 with 10 positions, cut it, and append more."""
    B, G, D_h = 2, 3, 5
    K, V = unlike(case, B, G, 10, D_h)
    ours = cache(B, G, 16, D_h, 8, 4, torch.float64)
    ours.append(K, V)
    before = expected_keys(K, 8, 4), restored(V, 8, 3)
    found = kept_in(case, ours, keep, (B, G, D_h), cut=True)
    when = f"after 10 positions were cut to {keep}"
    tell_kept_values(case, found, before[0][:, :, :keep], before[1][:, :, :keep], 4, when)
    keys, values = unlike(case, B, G, more, D_h)
    found = kept_in(case, ours, keep + more, (B, G, D_h), [(keys, values)])
    joined = torch.cat([before[0][:, :, :keep], keys], dim=2)
    quantised, full = expected_keys(joined, 8, 4), keep // 4 * 4
    quantised[:, :, :full] = before[0][:, :, :full]
    given = torch.cat([before[1][:, :, :keep], restored(values, 8, 3)], dim=2)
    tell_kept_values(case, found, quantised, given, 4, f"{when}, and {more} more came")


@check(QuantisedKVCache, weight=2, see="Cut within a group")
def cut_residual(cache, case):
    """goes on in the residual when only some of that was cut"""
    cut(case, cache, 9, 4)
    cut(case, cache, 8, 3)


@check(QuantisedKVCache, weight=2, see="Cut within a group")
def cut_group(cache, case):
    """takes the rest of a group that was cut back into the residual, as it was read"""
    cut(case, cache, 6, 5)
    cut(case, cache, 3, 2)


@check(QuantisedKVCache, weight=2, see="Count the bytes")
def counts(cache, case):
    """counts the bytes of integers, scales, zero points and residual"""
    shapes = [  # B, G, capacity, D_h, bits, group
        (2, 3, 12, 10, 8, 4),
        (1, 5, 13, 6, 4, 4),
        (3, 1, 7, 4, 8, 8),
        (2, 2, 30, 14, 4, 5),
        (1, 1, 9, 3, 8, 2),
        (4, 2, 5, 12, 4, 6),
        (1, 3, 40, 2, 8, 7),
    ]
    dtypes = ("float16", "float32", "float64", "float16", "bfloat16", "float64", "float16")
    found, expected = [], []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        B, G, capacity, D_h, bits, group = shape
        kind = getattr(torch, dtype)
        ours = cache(*shape, kind)
        groups, each = capacity // group, D_h * bits // 8
        tensors = [(capacity, each), (groups * group, each)]
        numbers = [(capacity, 2), (groups, 2 * D_h), (group, D_h)]
        expected.append(
            sum(torch.empty(B, G, *size, dtype=torch.uint8).nbytes for size in tensors)
            + sum(torch.empty(B, G, *size, dtype=kind).nbytes for size in numbers)
        )
        found.append(float(ours.bytes))
    given = torch.tensor(found, dtype=torch.float64)
    case.equal(given, torch.tensor(expected).double(), "bytes of seven caches", rtol=0, atol=0)


@check(QuantisedKVCache, see="Keys by channel, values by token")
def fills(cache, case):
    """has room for capacity positions, and raises ValueError beyond that, with nothing changed"""
    B, G, D_h = 2, 3, 5
    K, V = unlike(case, B, G, 7, D_h)
    ours = cache(B, G, 7, D_h, 8, 3, torch.float64)
    ours.append(K[:, :, :5], V[:, :, :5])
    case.raises(ValueError, lambda: ours.append(K[:, :, :3], V[:, :, :3]), "3 come and 2 fit")
    found = kept_in(case, ours, 7, (B, G, D_h), [(K[:, :, 5:], V[:, :, 5:])])
    tell_kept_values(case, found, expected_keys(K, 8, 3), restored(V, 8, 3), 3, "of a full cache")


class PlainQuantised:
    """What a cache holds by the words of its docstring."""

    def __init__(self, B: int, G: int, capacity: int, D_h: int, bits: int, group: int):
        self.capacity, self.bits, self.group = capacity, bits, group
        self.keys = self.values = torch.zeros(B, G, 0, D_h, dtype=torch.float64)

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    def append(self, K: Tensor, V: Tensor) -> bool:
        """Add positions; say whether there was room."""
        if self.length + K.shape[2] > self.capacity:
            return False
        full = self.length // self.group * self.group  # groups that are full stay as they are
        joined = torch.cat([self.keys[:, :, full:], K], dim=2)
        new = expected_keys(joined, self.bits, self.group)
        self.keys = torch.cat([self.keys[:, :, :full], new], dim=2)
        self.values = torch.cat([self.values, restored(V, self.bits, 3)], dim=2)
        return True

    def truncate(self, length: int) -> bool:
        """Forget positions; say whether there are as many as are to be kept."""
        if not 0 <= length <= self.length:
            return False
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]
        return True


@together
def called_in_turn(cache, settings: tuple, calls: list[tuple]) -> list[tuple]:
    """Call one cache; after each call, whether it raised ValueError, the length, K and V.

    K and V come twice: as they were then, and as the same tensors are at the end.
    """
    one, found = cache(*settings), []
    for method, *arguments in calls:
        works = True
        try:
            getattr(one, method)(*arguments)
        except Failure as failure:
            if "ValueError" not in failure.kinds:
                raise
            works = False
        read = one.read()
        then = tuple(each.clone() if isinstance(each, Tensor) else each for each in read)
        found.append((works, one.length, then, read))
    return found


def follow_cache(case: Case, cache, bits: int, group: int, count: int) -> None:
    """Compare a cache after each of some drawn calls with what it should hold."""
    B, G, D_h, capacity = 2, 1, 2, 4 * group + 1
    plain, calls, works, kept = PlainQuantised(B, G, capacity, D_h, bits, group), [], [], []
    for _ in range(count):
        if float(case.rand(1)) < 0.35:
            length = int(case.integers(-1, plain.length + 2, 1))
            calls.append(("truncate", length))
        else:
            T = int(case.integers(0, 2 * group + 1, 1))
            calls.append(("append", *unlike(case, B, G, T, D_h)))
        works.append(getattr(plain, calls[-1][0])(*calls[-1][1:]))
        kept.append((plain.keys, plain.values))
    settings = B, G, capacity, D_h, bits, group, torch.float64
    found = called_in_turn(cache, settings, calls)
    told = f"{bits} bits, groups of {group}, room for {capacity}"
    for (method, *arguments), worked, right, (did, length, then, _) in zip(
        calls, works, kept, found, strict=True
    ):
        count = arguments[0].shape[2] if method == "append" else arguments[0]
        told += f"; {method} {count}"
        if did != worked:
            should = "work" if worked else "raise ValueError"
            text = (
                f"{told}: the last call should {should}, yours {'works' if did else 'raises it'}."
            )
            raise Failure(text, what=f"whether {method} works", observed=torch.tensor([did]))
        N = right[0].shape[2]
        text = f"{told}: then length should be {N}, yours is {length!r:.20}."
        case.that(length == N, text, torch.tensor([N]))
        given = case.unpack(then, "K", "V")
        tell_kept_values(case, given, *right, group, f"after these calls: {told}:")
    for _, _, then, later in found:
        for name, one, other in zip("KV", then, later, strict=True):
            text = (
                f"{name} that was read should stay as it is when more comes, yours changes: is it "
            )
            case.that(torch.equal(one, other), f"{text}a view of what the cache keeps?")


@check(QuantisedKVCache, weight=2, see="Cut within a group")
def calls(cache, case):
    """holds what it should after each of many calls, and what was read stays as it was"""
    for bits, group, count in ((8, 3, 6), (4, 2, 8), (8, 4, 8)):
        follow_cache(case, cache, bits, group, count)


@check(QuantisedKVCache, see="Keys by channel, values by token")
def no_gradient(cache, case):
    """keeps keys and values, the residual among them, without their gradient history"""
    B, G, D_h = 2, 3, 5
    K, V = unlike(case, B, G, 5, D_h)
    ours = cache(B, G, 6, D_h, 8, 3, torch.float64)
    found = kept_in(case, ours, 5, (B, G, D_h), [(K.requires_grad_(), V.requires_grad_())])
    for name, part in zip("KV", found, strict=True):
        case.that(
            not part.requires_grad,
            f"{name} should carry no gradient when it is read, yours does: every step of a text "
            "would be kept in memory.",
        )


@check(QuantisedKVCache, see="Keys by channel, values by token")
def by_default(cache, case):
    """keeps 8 bits, groups of 32 and float16 unless told otherwise"""
    K, V = unlike(case, 1, 2, 35, 6)
    ours = cache(1, 2, 40, 6)
    parts = (K[:, :, :33] / 40, V[:, :, :33]), (K[:, :, 33:] / 40, V[:, :, 33:])
    found = kept_in(case, ours, 35, (1, 2, 6), parts)
    expected = expected_keys(K / 40, 8, 32, torch.float16), restored(V, 8, 3, torch.float16)
    for name, part, wanted in zip("KV", found, expected, strict=True):
        case.equal(part, wanted, f"{name} by default", rtol=2e-3, atol=0.02)
        case.that(part.dtype == torch.float16, f"{name} should be float16, yours is {part.dtype}.")


@check(QuantisedKVCache, see="Keys by channel, values by token")
def half(cache, case):
    """rounds what comes to its dtype first, whatever the dtype is that it comes in"""
    B, G, D_h = 2, 3, 5
    K, V = unlike(case, B, G, 9, D_h)
    ours = cache(B, G, 9, D_h, 8, 4, torch.float32)
    pieces = (K[:, :, :6], V[:, :, :6]), (K[:, :, 6:].half(), V[:, :, 6:].half())
    joined = [torch.cat([a.double(), b.double()], dim=2) for a, b in zip(*pieces, strict=True)]
    found = kept_in(case, ours, 9, (B, G, D_h), pieces)
    case.equal(found[0], expected_keys(joined[0], 8, 4, torch.float32), "K", rtol=1e-4, atol=1e-5)
    case.equal(found[1], restored(joined[1], 8, 3, torch.float32), "V", rtol=1e-4, atol=1e-5)
    case.that(found[0].dtype == torch.float32, f"K should be float32, yours is {found[0].dtype}.")


@check(QuantisedKVCache, see="Keys by channel, values by token")
def shapes(cache, case):
    """raises ValueError for keys or values of another shape, with nothing changed"""
    B, G, D_h = 2, 3, 5
    K, V = unlike(case, B, G, 4, D_h)
    ours = cache(B, G, 16, D_h, 8, 3, torch.float64)
    ours.append(K, V)
    wrong = {
        "one text comes instead of all": (K[:1], V[:1]),
        "one head comes instead of all": (K[:, :1], V[:, :1]),
        "the heads have another size": (K[..., :1], V[..., :1]),
        "there are fewer values than keys": (K, V[:, :, :1]),
        "there are fewer texts of values than of keys": (K, V[:1]),
        "there are fewer texts of keys than of values": (K[:1], V),
        "positions come before heads": (K.transpose(1, 2), V.transpose(1, 2)),
    }
    for when, (keys, values) in wrong.items():
        case.raises(ValueError, lambda k=keys, v=values: ours.append(k, v), when)
        found = kept_in(case, ours, 4, (B, G, D_h))
        case.equal(found[0], expected_keys(K, 8, 3), f"K when {when}")
        case.equal(found[1], restored(V, 8, 3), f"V when {when}")


@check(QuantisedKVCache, see="Cut within a group")
def limits(cache, case):
    """keeps everything or nothing when told to, and raises ValueError for other lengths"""
    B, G, D_h = 2, 3, 5
    K, V = unlike(case, B, G, 8, D_h)
    ours = cache(B, G, 8, D_h, 8, 3, torch.float64)
    case.raises(ValueError, lambda: ours.truncate(1), "1 of 0 positions is to be kept")
    ours.append(K, V)
    for length in (9, -1):
        case.raises(ValueError, lambda n=length: ours.truncate(n), f"{length} of 8 are to be kept")
    for length in (8, 6, 3):
        found = kept_in(case, ours, length, (B, G, D_h), cut=True)
        case.equal(found[0], expected_keys(K, 8, 3)[:, :, :length], f"K cut to {length}")
        case.equal(found[1], restored(V, 8, 3)[:, :, :length], f"V cut to {length}")
    kept_in(case, ours, 0, (B, G, D_h), cut=True)
    found = kept_in(case, ours, 8, (B, G, D_h), [(V, K)])
    case.equal(found[0], expected_keys(V, 8, 3), "K of a second text")


@check(QuantisedKVCache, see="Keys by channel, values by token")
def nothing_yet(cache, case):
    """is empty at first, stays empty when nothing comes, and shares nothing with another cache"""
    B, G, D_h = 2, 3, 5
    ours, other = (cache(B, G, 6, D_h, 8, 3, torch.float64) for _ in range(2))
    kept_in(case, ours, 0, (B, G, D_h))
    kept_in(case, ours, 0, (B, G, D_h), [unlike(case, B, G, 0, D_h)])
    K, V = unlike(case, B, G, 4, D_h)
    ours.append(K, V)
    other.append(2 * K, 2 * V)
    found = kept_in(case, ours, 4, (B, G, D_h))
    case.equal(found[0], expected_keys(K, 8, 3), "K of the first of two caches")
    case.equal(found[1], restored(V, 8, 3), "V of the first of two caches")


@check(QuantisedKVCache, see="Two to a byte")
def refuses(cache, case):
    """raises ValueError for bits other than 8 and 4, and for an odd D_h with 4"""
    for bits in (2, 3, 5, 6, 16):
        case.raises(ValueError, lambda bits=bits: cache(1, 2, 8, 8, bits), f"bits is {bits}")
    case.raises(ValueError, lambda: cache(1, 2, 8, 7, 4), "bits is 4 and D_h is 7")
    K, V = unlike(case, 1, 2, 5, 7)
    ours = cache(1, 2, 8, 7, 8, 3, torch.float64)
    found = kept_in(case, ours, 5, (1, 2, 7), [(K, V)])
    case.equal(found[1], restored(V, 8, 3), "V of 7 features")


# Paged cache


@once
def recorded(X: Tensor, bits: int) -> Tensor:
    """Write the records of vectors, byte by byte."""
    rows = []
    for x in X.half().reshape(-1, X.shape[-1]):
        q, scale, zero = by_slices(x, bits, (0,))
        integers = q if bits == 8 else hexadecimal(q.reshape(-1, 2).tolist())
        numbers = torch.cat([scale, zero]).numpy().tobytes()
        rows.append(torch.tensor([*integers.tolist(), *numbers], dtype=torch.uint8))
    return torch.stack(rows).view(*X.shape[:-1], -1)


def read_back(X: Tensor, bits: int) -> Tensor:
    """Quantise vectors with scales in float16, and bring them back."""
    return restored(X, bits, X.dim() - 1, torch.float16)


def vectors(case: Case, *shape: int) -> Tensor:
    """Draw vectors of different lengths."""
    return (case.randn(*shape) + 1) * (1 + 5 * case.rand(*shape[:-1], 1))


@check(QuantisedPagedCache, weight=2, see="Quantised blocks", single={"M": 0, "G": 1})
def encodes(cache, case):
    """makes a record of each vector: its integers, s in float16, z in float16"""
    M, G, half = case.sizes(3, low=3)
    for bits in (8, 4):
        ours = cache(2, 3, 4, G, 2 * half, bits, torch.float64)
        X = vectors(case, M, G, 2 * half)
        demand_bytes(case, ours.encode(X), recorded(X, bits), f"records of {bits} bits")


@check(QuantisedPagedCache, weight=2, see="Quantised blocks", single={"M": 0, "G": 1})
def decodes(cache, case):
    """reads vectors out of their records, and zeros out of zeros"""
    M, G, half = case.sizes(3, low=3)
    for bits in (8, 4):
        ours = cache(2, 3, 4, G, 2 * half, bits, torch.float64)
        X = vectors(case, M, G, 2 * half)
        records = recorded(X, bits)
        found = ours.decode(records)
        case.equal(found, read_back(X, bits), f"decoded records of {bits} bits")
        case.that(
            found.dtype == torch.float64,
            f"decode should give the cache's dtype, float64, yours gives {found.dtype}.",
        )
        empty = torch.zeros(M, G, 2 * half * bits // 8 + 4, dtype=torch.uint8)
        case.equal(ours.decode(empty), torch.zeros(M, G, 2 * half), "decoded zeros")


@check(QuantisedPagedCache, see="Quantised blocks")
def room(cache, case):
    """has room for the records of all slots, and for nothing else"""
    L, N, S, G = case.sizes(4)
    for bits, D_h in ((8, 7), (4, 10)):
        ours = cache(L, N, S, G, D_h, bits)
        for name, part in (("K", ours.K), ("V", ours.V)):
            size = D_h * bits // 8 + 4
            expected = torch.zeros(L, G, N, S, size, dtype=torch.uint8)
            demand_bytes(case, part, expected, f"{name} of a new cache")


def slots_of(blocks: list[int], S: int, count: int) -> Tensor:
    """List the slots of the first positions in some blocks."""
    return torch.tensor([blocks[t // S] * S + t % S for t in range(count)])


@together
def gathered_after(cache, blocks: list[int], pieces: list[tuple[Tensor, Tensor, Tensor]]) -> list:
    """Gather from layer 1 after each piece that is written to it, and from layer 0 at the end."""
    found, N = [], 0
    for slots, keys, values in pieces:
        cache.write(1, slots, keys, values)
        N += len(slots)
        found.append(cache.gather(1, blocks, N))
    return [*found, cache.gather(0, blocks, N)]


@check(QuantisedPagedCache, weight=3, see="Quantised blocks", single={"G": 1})
def write_and_gather(cache, case):
    """gives back what was written into blocks, however far they are filled"""
    S, G, half = case.sizes(3)
    count = 2 * S + 1
    for bits in (8, 4):
        ours = cache(2, 6, S, G, 2 * half, bits, torch.float64)
        K, V = vectors(case, count, G, 2 * half), vectors(case, count, G, 2 * half)
        blocks = [4, 1, 5]
        parts, slots = torch.arange(count).split([S - 1, 1, S, 1]), slots_of(blocks, S, count)
        *filled, other = gathered_after(ours, blocks, [(slots[p], K[p], V[p]) for p in parts])
        for part, found in zip(parts, filled, strict=True):
            N = int(part[-1]) + 1
            keys, values = case.unpack(found, "K", "V")
            what = f"of {N} positions in {bits} bits"
            case.equal(keys, read_back(K[:N], bits), f"K {what}")
            case.equal(values, read_back(V[:N], bits), f"V {what}")
        keys, values = case.unpack(other, "K", "V")
        case.equal(keys, torch.zeros(count, G, 2 * half), "K of another layer")
        case.equal(values, torch.zeros(count, G, 2 * half), "V of another layer")


@check(QuantisedPagedCache, see="Quantised blocks")
def copies(cache, case):
    """copies a block byte by byte, and both go their own ways"""
    S, G, half = case.sizes(3, low=3)
    ours = cache(2, 5, S, G, 2 * half, 8, torch.float64)
    X, Y = vectors(case, S - 1, G, 2 * half), vectors(case, 2, G, 2 * half)
    for layer in (0, 1):
        ours.write(layer, slots_of([3], S, S - 1), X + layer, X - layer)
    ours.copy([(3, 0)])
    ours.write(0, slots_of([0], S, S)[-1:], Y[:1], -Y[:1])
    ours.write(0, slots_of([3], S, S)[-1:], Y[1:], -Y[1:])
    for block, last in ((0, Y[:1]), (3, Y[1:])):
        keys, values = case.unpack(ours.gather(0, [block], S), "K", "V")
        case.equal(keys, read_back(torch.cat([X, last]), 8), f"K of block {block}")
        case.equal(values, read_back(torch.cat([X, -last]), 8), f"V of block {block}")
    keys, values = case.unpack(ours.gather(1, [0], S - 1), "K", "V")
    case.equal(keys, read_back(X + 1, 8), "K of the other layer")
    case.equal(values, read_back(X - 1, 8), "V of the other layer")


@check(QuantisedPagedCache, see="Quantised blocks")
def refuses(cache, case):
    """raises ValueError for bits other than 8 and 4, and for an odd D_h with 4"""
    for bits in (2, 3, 5, 6, 16):
        case.raises(ValueError, lambda bits=bits: cache(1, 3, 4, 2, 8, bits), f"bits is {bits}")
    case.raises(ValueError, lambda: cache(1, 3, 4, 2, 7, 4), "bits is 4 and D_h is 7")


@check(QuantisedPagedCache, see="Quantised blocks")
def dtypes(cache, case):
    """gathers in the dtype that was asked for, or in torch's default, and 8 bits by default"""
    K, V = vectors(case, 3, 2, 6), vectors(case, 3, 2, 6)
    for dtype in (torch.float64, torch.float32, None):
        ours = cache(1, 2, 4, 2, 6) if dtype is None else cache(1, 2, 4, 2, 6, 8, dtype)
        ours.write(0, torch.tensor([4, 5, 6]), K.float(), V.float())
        found = case.unpack(ours.gather(0, [1], 3), "K", "V")
        for name, part, X in zip("KV", found, (K, V), strict=True):
            case.equal(part, read_back(X.float(), 8), name, rtol=1e-4, atol=1e-5)
            wanted = torch.float32 if dtype is None else dtype
            case.that(part.dtype == wanted, f"{name} should be {wanted}, yours is {part.dtype}.")


@check(QuantisedPagedCache, see="Quantised blocks")
def overwrites(cache, case):
    """overwrites single slots, in any order, and gradients do not stay"""
    ours = cache(1, 4, 3, 2, 4, 4, torch.float64)
    X = vectors(case, 6, 2, 4)
    slots = torch.tensor([10, 3, 5, 9, 4, 11])
    ours.write(0, slots, X, -X)
    ours.write(0, slots[[2, 0]], 3 * X[:2], X[:2].requires_grad_())
    keys, values = case.unpack(ours.gather(0, [3, 1], 6), "K", "V")
    order = [3, 0, 5, 1, 4, 2]
    K, V = X.detach().clone(), -X.detach()
    K[[2, 0]], V[[2, 0]] = 3 * X.detach()[:2], X.detach()[:2]
    case.equal(keys, read_back(K[order], 4), "K")
    case.equal(values, read_back(V[order], 4), "V")
    case.that(not values.requires_grad, "V should carry no gradient, yours does.")


# Linear


def matrix(case: Case, D_in: int, D_out: int) -> Tensor:
    """Draw a matrix whose rows and columns differ in size."""
    columns, rows = 1 + torch.arange(D_out), 1 + torch.arange(D_in)[:, None]
    return case.randn(D_in, D_out) * columns * rows / 9


def rounded_matrix(W: Tensor, group: int | None = None) -> tuple[Tensor, Tensor]:
    """Quantise a matrix by columns; return it dequantised, and the scale of each entry."""
    Q, scale, _ = by_slices(W, 8, (0,), group, symmetric=True)
    steps = spread(scale, W.shape)
    return Q.double() * steps, steps


@together
def multiplied(linear, settings: tuple, X: Tensor) -> Tensor:
    """Make a student's layer, and multiply by it."""
    return linear(*settings)(X)


@check(QuantisedLinear, weight=3, see="Weights in eight bits", single={"B": 0, "D_out": 3})
def values(linear, case):
    """multiplies by the matrix of integers and scales, each column having its own"""
    B, T, D_in, D_out = case.sizes(4, low=3)
    W, X = matrix(case, D_in, D_out), case.randn(B, T, D_in)
    case.equal(multiplied(linear, (W,), X), X @ rounded_matrix(W)[0], "Y")


@check(QuantisedLinear, weight=2, see="Weights in eight bits")
def groups(linear, case):
    """has a scale for each group of neighbours in a column"""
    B, D_out = case.sizes(2, low=3)
    W, X = matrix(case, 12, D_out), case.randn(B, 12)
    for group in (3, 6):
        given = multiplied(linear, (W, None, group), X)
        case.equal(given, X @ rounded_matrix(W, group)[0], f"Y with groups of {group}")


@check(QuantisedLinear, see="Weights in eight bits")
def bias(linear, case):
    """adds the bias, as nn.Linear does"""
    B, D_in, D_out = case.sizes(3, low=3)
    layer = nn.Linear(D_in, D_out).double()
    layer.load_state_dict({"weight": case.randn(D_out, D_in), "bias": 3 * case.randn(D_out)})
    W, b, X = layer.weight.detach().T, layer.bias.detach(), case.randn(B, D_in)
    case.equal(multiplied(linear, (W, b), X), X @ rounded_matrix(W)[0] + b, "Y with a bias")


@check(QuantisedLinear, weight=2, see="Weights in eight bits")
def bound(linear, case):
    """is no further from the layer in floating point than half a step for each entry allows"""
    B, D_in, D_out = case.sizes(3, low=8)
    W, X = matrix(case, D_in, D_out), case.randn(B, D_in)
    for group in (None, 1):
        Y = multiplied(linear, (W, None, group), X)
        case.shape(Y, (B, D_out), "Y")
        allowed = X.abs() @ rounded_matrix(W, group)[1] / 2
        excess = ((Y - X @ W).abs() / allowed).max().item()
        case.that(
            excess <= 1 + 1e-4,
            f"The error should be at most Σ_i |x_i| s_i / 2, yours is {excess:.2f} times that.",
            observed=Y,
        )


@check(QuantisedLinear, weight=2, see="Weights in eight bits")
def buffers(linear, case):
    """stores integers of one byte and their scales, and has nothing to train"""
    D_in, D_out = case.sizes(2, low=3)
    W = matrix(case, D_in, D_out)
    for bias in (None, case.randn(D_out)):
        ours = linear(W.clone().requires_grad_(), bias)
        state, parameters = dict(ours.state_dict()), dict(ours.named_parameters())
        case.that(not parameters, f"There should be no parameters, yours are {[*parameters]}.")
        names = {"Q", "scale"} | ({"bias"} if bias is not None else set())
        found = sorted(map(str, state))
        case.that(set(found) == names, f"It should store {sorted(names)}, yours stores {found}.")
        Q, scale, _ = by_slices(W, 8, (0,), symmetric=True)
        case.equal(state["Q"], Q, "Q")
        case.that(state["Q"].dtype == torch.int8, f"Q should be int8, is {state['Q'].dtype}.")
        case.equal(state["scale"], scale, "scale")


@check(QuantisedLinear, see="Weights in eight bits")
def refuses(linear, case):
    """raises ValueError when group does not divide D_in"""
    W = case.randn(6, 4)
    case.raises(ValueError, lambda: linear(W, None, 4), "groups of 4 are to be cut out of 6")


@check(QuantisedLinear, see="Weights in eight bits")
def stored(linear, case):
    """loads what another has stored, and keeps what was given when that changes"""
    B, D_in, D_out = case.sizes(3, low=3)
    W, b, X = matrix(case, D_in, D_out), case.randn(D_out), case.randn(B, D_in)
    expected = X @ rounded_matrix(W)[0] + b
    given = b.clone()
    ours = linear(W, given)
    given += 1
    learning = linear(W.clone().requires_grad_(), b.clone().requires_grad_())
    for name, buffer in dict(learning.named_buffers()).items():
        case.that(not buffer.requires_grad, f"{name} should need no gradient, yours does.")
    case.equal(ours(X), expected, "Y after the given bias has changed")
    other = linear(matrix(case, D_in, D_out), case.randn(D_out))
    other.load_state_dict(dict(ours.state_dict()))
    case.equal(other(X), expected, "Y of a layer that loads another's state")


@check(QuantisedLinear, see="Weights in eight bits")
def precision(linear, case):
    """gives results in X's dtype, and passes the gradient of X back"""
    B, D_in, D_out = case.sizes(3, low=3)
    W, b = matrix(case, D_in, D_out), case.randn(D_out)
    X, seen = case.randn(B, D_in).requires_grad_(), case.randn(B, D_out)
    ours, rounded = linear(W, b), rounded_matrix(W)[0]
    Y = ours(X)
    case.trains(Y, "Y")
    Y.backward(seen)
    case.gradient(X, seen @ rounded.T, "X")
    for dtype in (torch.float32, torch.float16):
        Y = ours(X.detach().to(dtype))
        what, near = f"Y of {dtype}", 1e-4 if dtype == torch.float32 else 0.02
        case.equal(Y, X.detach() @ rounded + b, what, rtol=near, atol=10 * near)
        case.that(Y.dtype == dtype, f"Y should be {dtype} as X is, yours is {Y.dtype}.")


# Weights in four bits


def correlated(case: Case, N: int, D_in: int) -> Tensor:
    """Draw inputs whose features go together, and are not 0 on average."""
    causes = case.randn(N, (D_in + 1) // 2) + 1 / 2
    return causes @ case.randn(causes.shape[1], D_in) + case.randn(N, D_in) / 3


@once
def by_least_squares(W: Tensor, X: Tensor, bits: int, damping: float) -> tuple[Tensor, Tensor]:
    """Round row by row; after each, find the best rows that are left by least squares.

    ‖X E‖² + λ ‖E‖² is ‖A E‖², with √λ times the unit matrix below X.
    """
    scale = by_slices(W, bits, (0,), symmetric=True)[1]
    s, top = scale[0].double(), 2 ** (bits - 1) - 1
    X, rest = X.double(), W.double()
    size = math.sqrt(damping * X.square().sum(dim=0).mean().item())
    A = torch.cat([X, size * torch.eye(len(W), dtype=torch.float64)])
    goal, Q = A @ rest, []
    for i in range(len(W)):
        Q.append(torch.round(rest[0] / s).clamp(-top, top))
        goal = goal - A[:, i : i + 1] * (Q[i] * s)
        if i + 1 < len(W):
            rest = torch.linalg.lstsq(A[:, i + 1 :], goal).solution
    return torch.stack(Q).to(torch.int8), scale


def demand_rounded(case: Case, given: object, expected: tuple[Tensor, Tensor], what: str) -> None:
    """Demand integers of one byte, and their scales."""
    Q, scale = case.unpack(given, "Q", "scale")
    case.equal(scale, expected[1], f"scale {what}")
    case.equal(Q, expected[0], f"Q {what}")
    case.that(Q.dtype == torch.int8, f"Q should be int8, yours is {Q.dtype}.")


@check(gptq, weight=4, see="Weights in four bits", single={"N": 0, "D_in": 1, "D_out": 2})
def values(gptq, case):
    """lets the rows that are left be, after each rounding, those of least squares"""
    N, D_in, D_out = case.sizes(3, low=5)
    W, X = matrix(case, D_in, D_out), correlated(case, N, D_in)
    demand_rounded(case, gptq(W, X), by_least_squares(W, X, 4, 0.01), "in 4 bits")


@check(gptq, see="Weights in four bits")
def uncorrelated(gptq, case):
    """rounds to the nearest where no two features of the inputs go together"""
    W = matrix(case, 6, 5)
    X = torch.linalg.qr(case.randn(11, 6)).Q * (1 + torch.arange(6))
    Q, scale, _ = by_slices(W, 4, (0,), symmetric=True)
    demand_rounded(case, gptq(W, X), (Q, scale), "where Xᵀ X is diagonal")


@check(gptq, weight=2, see="Weights in four bits")
def other_bits(gptq, case):
    """has as many integers as so many bits have, however far a row was moved"""
    W = matrix(case, 9, 4)
    X = correlated(case, 14, 9) / 2 ** torch.arange(9)  # small features make up for large ones
    settings = [(W, X, bits, 1e-4) for bits in (2, 3, 4, 8)]
    for setting, given in zip(settings, of_each(gptq, settings), strict=True):
        demand_rounded(case, given, by_least_squares(*setting), f"in {setting[2]} bits")


@check(gptq, weight=2, see="Weights in four bits")
def damped(gptq, case):
    """adds a share of the mean square of the features, also where some are 0 or the same"""
    W, X = matrix(case, 8, 4), correlated(case, 14, 8)
    X[:, 3], X[:, 6] = 0, X[:, 1]
    for size in (1e-3, 1, 1e3):
        settings = [(W, size * X, 4, damping) for damping in (0.01, 0.1, 1)]
        for setting, given in zip(settings, of_each(gptq, settings), strict=True):
            what = f"with damping {setting[3]} and inputs of size {size:g}"
            demand_rounded(case, given, by_least_squares(*setting), what)


@check(gptq, see="Weights in four bits")
def outputs(gptq, case):
    """changes the outputs of the layer less than rounding to the nearest does"""
    W = case.randn(24, 5)
    X = case.randn(60, 4) @ case.randn(4, 24) + case.randn(60, 24) / 10
    Q, scale = case.unpack(gptq(W, X), "Q", "scale")
    case.shape(Q, (24, 5), "Q")
    case.shape(scale, (1, 5), "scale")
    nearest, steps, _ = by_slices(W, 4, (0,), symmetric=True)
    lost, control = (
        (X @ (q.double() * s.double() - W)).norm().item() for q, s in ((Q, scale), (nearest, steps))
    )
    text = f"‖X Ŵ - X W‖ should be less than the {control:.3g} of rounding to the nearest"
    case.that(lost < control, f"{text}, yours is {lost:.3g}.", observed=Q)


@check(gptq, see="Weights in four bits")
def single_precision(gptq, case):
    """gives scales in W's dtype, and no gradient"""
    W, X = matrix(case, 5, 4).float(), correlated(case, 12, 5).float()
    expected = by_least_squares(W, X, 4, 0.01)
    Q, scale = case.unpack(gptq(W.clone().requires_grad_(), X), "Q", "scale")
    demand_rounded(case, (Q, scale), expected, "of a matrix in float32")
    case.that(scale.dtype == torch.float32, f"The scale should be float32, is {scale.dtype}.")
    case.that(not scale.requires_grad, "The scale should need no gradient, yours does.")


@check(gptq, see="Weights in four bits")
def refuses(gptq, case):
    """raises ValueError for inputs of another size, and for bits outside 2 to 8"""
    W, X = case.randn(6, 4), case.randn(9, 5)
    case.raises(ValueError, lambda: gptq(W, X), "X has 5 features and W 6 rows")
    X = case.randn(9, 6)
    for bits in (1, 9):
        case.raises(ValueError, lambda bits=bits: gptq(W, X, bits), f"bits is {bits}")


# Rotate


@once
def hadamard(D: int, start: Tensor | None = None) -> Tensor:
    """Build a Hadamard matrix entry by entry: a sign for each bit that two numbers share."""
    start = torch.ones(1, 1) if start is None else start
    r = len(start)
    rows = []
    for i in range(D):
        signs = [
            (-1) ** ((i // r) & (j // r)).bit_count() * start[i % r, j % r].item() for j in range(D)
        ]
        rows.append(signs)
    return torch.tensor(rows, dtype=torch.float64)


def four() -> Tensor:
    """Make a Hadamard matrix of size 4 that is not symmetric; anew, since students get it."""
    rows = [[1.0, -1, -1, 1], [1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1]]
    return torch.tensor(rows)


@check(rotate, weight=3, see="Turn the outliers away", single={"B": 0, "T": 1})
def values(rotate, case):
    """multiplies by the Hadamard matrix that comes of doubling, divided by √D"""
    B, T = case.sizes(2, low=3)
    given = [case.randn(B, T, D) for D in (8, 2, 32)]
    for X, found in zip(given, of_each(rotate, [(X,) for X in given]), strict=True):
        D = X.shape[-1]
        case.equal(found, X @ hadamard(D) / math.sqrt(D), f"rotated X of {D} features")


@check(rotate, see="Turn the outliers away")
def products(rotate, case):
    """keeps every product of two vectors, and so every score"""
    T, N = case.sizes(2, low=3)
    Q, K = case.randn(T, 16), case.randn(N, 16)
    q, k = of_each(rotate, [(Q,), (K,)])
    case.shape(q, (T, 16), "rotated X")
    case.shape(k, (N, 16), "rotated X")
    case.equal(q @ k.T, Q @ K.T, "products of rotated vectors")


@check(rotate, see="Turn the outliers away")
def spreads(rotate, case):
    """spreads a single number over all features in equal parts"""
    places = (0, 5, 15)
    rows = 12 * torch.eye(16, dtype=torch.float64)[list(places)]
    for place, turned in zip(places, of_each(rotate, [(x[None],) for x in rows]), strict=True):
        case.shape(turned, (1, 16), "rotated X")
        case.equal(turned.abs(), torch.full((1, 16), 3.0), f"|rotated X| of feature {place} alone")


@check(rotate, weight=2, see="Where to begin")
def start(rotate, case):
    """begins to double with the matrix that is given"""
    B = case.sizes(1, low=3)[0]
    given = [(case.randn(B, D), four().double()) for D in (4, 8, 16)]
    for (X, begin), found in zip(given, of_each(rotate, given), strict=True):
        D = X.shape[1]
        expected = X @ hadamard(D, begin) / math.sqrt(D)
        case.equal(found, expected, f"rotated X of {D} features with a start")


@check(rotate, see="Where to begin")
def refuses(rotate, case):
    """raises ValueError when no doubling leads to D"""
    X = case.randn(3, 12)
    case.raises(ValueError, lambda: rotate(X), "D is 12 and it starts at 1")
    case.raises(ValueError, lambda: rotate(X[:, :2], four()), "D is 2 and it starts at 4")


@check(rotate, see="Where to begin")
def dtypes(rotate, case):
    """gives results in X's dtype, whatever the start's is, and passes gradients back"""
    X = case.randn(3, 8)
    for kind in (torch.int64, torch.float32, torch.float64):
        given = rotate(X.float(), four().to(kind))
        case.equal(given, X @ hadamard(8, four().double()) / math.sqrt(8), f"rotated X, {kind}")
        case.that(given.dtype == torch.float32, f"It should be float32, yours is {given.dtype}.")
    X, seen = case.randn(3, 8).requires_grad_(), case.randn(3, 8)
    Y = rotate(X)
    case.trains(Y, "rotated X")
    Y.backward(seen)
    case.gradient(X, seen @ hadamard(8).T / math.sqrt(8), "X")


@check(quantise_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "quantise", quantised)
