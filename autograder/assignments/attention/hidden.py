"""Hidden checks of attention: gradients, high temperatures, single positions, permutations."""

import torch
from torch import Tensor

from course_pkg.attention import (
    SelfAttention,
    causal_mask,
    merge_heads,
    padding_mask,
    scaled_dot_attention,
    soft_lookup,
    split_heads,
    split_heads_fault,
)
from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.attention import (
    asked,
    both,
    matrices,
    query_and_table,
    table,
    with_weights,
)


@check(soft_lookup, see="From exact to near")
def even(lookup, case):
    """returns the mean of the rows when the temperature is very high"""
    q, X, N, D = query_and_table(case)
    y, a = both(case, lookup(q, X, 1e9), (D,), (N,))
    case.equal(a, torch.full((N,), 1 / N), "a")
    case.equal(y, X.mean(dim=0), "y", atol=1e-6)


@check(soft_lookup, see="From exact to near")
def gradient(lookup, case):
    """moves with the query by the rows' weighted covariance: ∂y/∂q = Cov_a(X) / τ"""
    _, X, N, D = query_and_table(case)
    q = X[1].clone()  # at a distance of 0
    a = torch.softmax(-(torch.cdist(q[None], X)[0] ** 2) / 4, dim=0)
    covariance = torch.cov(X.T, aweights=a, correction=0)
    seen = case.randn(D)
    y, _ = both(case, lookup(q.requires_grad_(), X, 2.0), (D,), (N,))
    case.trains(y, "y")
    y.backward(seen)
    case.gradient(q, covariance @ seen / 2, "q")


@check(scaled_dot_attention, see="From one query to many")
def indifferent(attend, case):
    """returns the mean of the values for a query of zeros"""
    Q, K, V = table(case, *case.sizes(4))
    Y, A = asked(case, attend, 0 * Q, K, V)
    case.equal(A, torch.full(A.shape, 1 / len(K)), "A")
    case.equal(Y, V.mean(dim=0).expand_as(Y), "Y")


@check(SelfAttention, see="Three roles, three projections")
def alone(layer, case):
    """returns the value of a vector that is alone"""
    D_X, D_Q, D_V = case.sizes(3)
    W, X = matrices(case, D_X, D_Q, D_V), case.randn(1, D_X)
    ours = with_weights(case, layer, D_X, D_Q, D_V, **W)
    Y, A = both(case, ours(X), (1, D_V), (1, 1), "YA")
    case.equal(A, torch.ones(1, 1), "A")
    case.equal(Y, X @ W["W_V"], "Y")


@check(causal_mask, see="A mask says who may look at whom")
def smallest(mask, case):
    """allows a sequence of one position itself"""
    case.equal(mask(1), torch.ones(1, 1, dtype=torch.bool), "mask of one position alone")


@check(padding_mask, see="Padding is not there")
def with_causal(mask, case):
    """combines with a causal mask into one of shape (B, T, T)"""
    B, T = case.sizes(2, low=4)
    lengths, causal = case.lengths(B, T), torch.ones(T, T, dtype=torch.bool).tril()
    given = mask(lengths, T)
    case.that(
        isinstance(given, Tensor) and given.dtype == torch.bool and given.dim() == 3,
        "The mask should be boolean with three axes, yours is not.",
    )
    expected = torch.stack([causal & (torch.arange(T) < length) for length in lengths])
    case.equal(given & causal, expected, "both masks combined")


@check(split_heads, see="One vector, several heads")
def gradient(split, case):
    """passes the gradient back to where each part came from"""
    B, T, H, D_h = case.sizes(4)
    X, seen = case.randn(B, T, H * D_h).requires_grad_(), case.randn(B, T, H * D_h)
    heads = split(X, H)
    case.shape(heads, (B, H, T, D_h), "heads")
    case.trains(heads, "the heads")
    heads.backward(torch.stack(seen.split(D_h, dim=2), dim=1))
    case.gradient(X, seen, "X")


@check(split_heads_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "C")


@check(merge_heads, see="One vector, several heads")
def gradient(merge, case):
    """passes the gradient back to each part"""
    B, H, T, D_h = case.sizes(4)
    X, seen = case.randn(B, H, T, D_h).requires_grad_(), case.randn(B, T, H * D_h)
    merged = merge(X)
    case.shape(merged, (B, T, H * D_h), "merged")
    case.trains(merged, "the result")
    merged.backward(seen)
    case.gradient(X, torch.stack(seen.split(D_h, dim=2), dim=1), "X")
