"""Hidden checks of quantisation: sizes, layouts, axes, what was rejected."""

import math

import torch
from torch import Tensor

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks import quantisation as visible
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


@check(quantise, see="Nothing to divide by")
def sizes_of_numbers(quantise, case):
    """works with numbers of any size, and with a single one"""
    for factor in (1e-30, 1e-3, 1e25):
        X = visible.far_from_zero(case, 4, 7) * factor
        Q, scale, zero = case.unpack(quantise(X, 8, 1), "Q", "scale", "zero")
        expected = visible.by_slices(X, 8, (1,))
        case.equal(Q, expected[0], f"Q of numbers around {factor:g}")
        case.shape(scale, (4, 1), "scale")
        case.shape(zero, (4, 1), "zero point")
        case.equal(scale / factor, expected[1] / factor, "scale, divided by their size,")
        case.equal(zero / factor, expected[2] / factor, "zero point, divided by their size,")
    X = visible.far_from_zero(case, 5, 1)
    for options in ({}, {"symmetric": True}):
        expected = visible.by_slices(X, 8, (1,), **options)
        visible.demand_quantised(case, quantise(X, 8, 1, **options), expected, "of single numbers")


@check(quantise_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "E")


# Dequantise


@check(dequantise, see="And back")
def blocks(dequantise, case):
    """lets groups along several axes share scales"""
    Q = visible.drawn_integers(case, 4, 6, 2, 9).transpose(0, 1)
    shapes = (3, 2, 1, 3), (6, 1, 2, 1), (2, 4, 2, 9), (1, 1, 1, 1)
    visible.demand_restored(case, dequantise, Q, {f"with scales of shape {s}": s for s in shapes})


# Pack


@check(pack_int4, see="Two to a byte")
def signs(pack, case):
    """raises ValueError for a sign in any place, and for a vector of odd length"""
    for place in range(4):
        for dtype in (torch.int8, torch.int64):
            Q = case.integers(0, 16, 4).to(dtype)
            Q[place] = -3
            case.raises(ValueError, lambda Q=Q: pack(Q), f"integer {place} is -3")
    case.raises(ValueError, lambda: pack(torch.tensor([3])), "there is one integer")


@check(unpack_int4, see="Two to a byte")
def layouts(unpack, case):
    """takes bytes of any layout, and none at all"""
    digits = case.integers(0, 16, 4, 3, 5, 2)
    packed = visible.hexadecimal(digits.view(-1, 2).tolist()).view(4, 3, 5)
    expected = digits.to(torch.uint8).transpose(0, 1).flatten(2)
    visible.demand_bytes(
        case, unpack(packed.transpose(0, 1)), expected, "unpacked, transposed bytes"
    )
    one = unpack(packed[0, 0])
    visible.demand_bytes(
        case, one, digits[0, 0].flatten().to(torch.uint8), "an unpacked vector of bytes"
    )
    nothing = torch.zeros(3, 0, dtype=torch.uint8)
    visible.demand_bytes(case, unpack(nothing), nothing, "unpacked nothing")


# Cache


@check(QuantisedKVCache, weight=2, see="Cut within a group")
def rejected(cache, case):
    """survives many cuts, some of them within groups of which more come again"""
    for bits, group in ((8, 4), (4, 3), (8, 1), (8, 2)):
        visible.follow_cache(case, cache, bits, group, 25)


# Paged cache


@check(QuantisedPagedCache, see="Quantised blocks")
def axes(cache, case):
    """encodes and decodes vectors with any axes before the last"""
    ours = cache(1, 2, 3, 2, 6, 8, torch.float64)
    X = visible.vectors(case, 2, 5, 3, 6).transpose(0, 2)
    records = visible.recorded(X.reshape(-1, 6), 8).view(3, 5, 2, 10)
    visible.demand_bytes(case, ours.encode(X), records, "records")
    turned = records.transpose(0, 1)
    case.equal(ours.decode(turned), visible.read_back(X.transpose(0, 1), 8), "decoded records")
    ours, x = cache(1, 2, 3, 1, 2, 4, torch.float64), visible.vectors(case, 1, 1, 2)
    ours.write(0, torch.tensor([3]), x, -x)
    keys, values = case.unpack(ours.gather(0, [1], 1), "K", "V")
    case.equal(keys, visible.read_back(x, 4), "K of a single vector of two features")
    case.equal(values, visible.read_back(-x, 4), "V of a single vector of two features")


# Linear


@check(QuantisedLinear, see="Weights in eight bits")
def axes(linear, case):
    """multiplies a vector alone, and a matrix with a column of zeros"""
    W = visible.matrix(case, 5, 4)
    W[:, 2] = 0.0
    ours = linear(W.T.contiguous().T)
    for shape in ((5,), (2, 3, 5)):
        X = case.randn(*shape)
        case.equal(ours(X), X @ visible.rounded_matrix(W)[0], f"Y for X of shape {tuple(X.shape)}")


# Weights in four bits


@check(gptq, see="Weights in four bits")
def last_row(gptq, case):
    """gives the last row the best of all integers, once the others are as they are"""
    W, X = visible.matrix(case, 7, 5), visible.correlated(case, 20, 7)
    Q, scale = case.unpack(gptq(W, X), "Q", "scale")
    case.shape(Q, (7, 5), "Q")
    case.shape(scale, (1, 5), "scale")
    penalty = 0.01 * X.square().sum(dim=0).mean()
    losses = []
    for last in range(-7, 8):
        tried = Q.double().clone()
        tried[-1] = last
        error = tried * scale - W
        losses.append((X @ error).square().sum(dim=0) + penalty * error.square().sum(dim=0))
    best = torch.stack(losses).argmin(dim=0) - 7
    case.equal(Q[-1].long(), best, "the last row of Q")


@check(gptq, see="Weights in four bits")
def columns(gptq, case):
    """rounds each column as if it were alone, and takes a matrix that is transposed"""
    W, X = visible.matrix(case, 9, 6), visible.correlated(case, 30, 9)
    expected = visible.by_least_squares(W, X, 3, 0.05)
    visible.demand_rounded(case, gptq(W.T.contiguous().T, X, 3, 0.05), expected, "in 3 bits")
    for o in (0, 4):
        alone = gptq(W[:, o : o + 1], X, 3, 0.05)
        one = expected[0][:, o : o + 1], expected[1][:, o : o + 1]
        visible.demand_rounded(case, alone, one, f"of column {o} alone")


# Rotate


def twelve() -> Tensor:
    """Make a Hadamard matrix of size 12, from the squares modulo 11 (Paley 1933)."""
    signs = [0] + [1 if n in {m * m % 11 for m in range(1, 11)} else -1 for n in range(1, 11)]
    H = torch.eye(12)
    H[0, 1:], H[1:, 0] = 1, -1
    H[1:, 1:] += torch.tensor([[signs[(j - i) % 11] for j in range(11)] for i in range(11)])
    return H


@check(rotate, see="Turn the outliers away")
def sizes(rotate, case):
    """leaves a single feature alone, and works with a vector, a start alone, and many axes"""
    x = case.randn(3, 1)
    case.equal(rotate(x), x, "rotated X of one feature")
    x = case.randn(16)
    case.equal(rotate(x), x @ visible.hadamard(16) / 4, "a rotated vector")
    X = case.randn(2, 3, 8, 5).transpose(2, 3)
    case.equal(rotate(X), X @ visible.hadamard(8) / math.sqrt(8), "rotated X")
    X = case.randn(5, 4)
    case.equal(
        rotate(X, visible.four()), X @ visible.four().double() / 2, "rotated X, D being the start's"
    )
    X, begin = case.randn(5, 24), twelve()
    case.equal(
        rotate(X, begin), X @ visible.hadamard(24, begin) / math.sqrt(24), "rotated X, 24 = 12 · 2"
    )


@check(rotate, see="Where to begin")
def impossible(rotate, case):
    """raises ValueError for sizes that are no multiple, and for those that are an odd one"""
    for D, r in ((3, 1), (6, 1), (24, 1), (5, 4), (12, 4), (20, 4)):
        X, begin = case.randn(2, D), None if r == 1 else visible.four()
        call = (lambda X=X: rotate(X)) if begin is None else (lambda X=X: rotate(X, visible.four()))
        case.raises(ValueError, call, f"D is {D} and it starts at {r}")
