"""Hidden checks of attention: gradients, high temperatures, single positions, permutations."""

import torch
from torch import Tensor

from course_pkg.attention import (
    attention_matrix,
    basic_self_attention,
    causal_mask,
    dot_attention,
    merge_heads,
    padding_mask,
    scaled_dot_attention,
    soft_lookup,
    split_heads,
)
from course_pkg.checking.registry import check
from course_pkg.checks.attention import (
    back,
    both,
    one_query,
    query_and_table,
    rows_permuted,
    torchs,
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


@check(dot_attention, see="From distances to dot products")
def indifferent(attend, case):
    """returns the mean of the rows when the query is zero"""
    _, X, N, D = query_and_table(case)
    y, a = both(case, attend(torch.zeros(D).double(), X), (D,), (N,))
    case.equal(a, torch.full((N,), 1 / N), "a")
    case.equal(y, X.mean(dim=0), "y")


@check(scaled_dot_attention, see="Why divide by √D_Q")
def permuted(attend, case):
    """permutes the weights with the rows, and leaves the output as it is"""
    rows_permuted(case, attend)


@check(scaled_dot_attention, see="Why divide by √D_Q")
def gradients(attend, case):
    """passes gradients to q and X as torch's scaled_dot_product_attention does"""
    q, X, N, D = query_and_table(case)
    inputs = {"X": X.requires_grad_(), "q": q.requires_grad_()}
    y, _ = both(case, attend(q, X), (D,), (N,))
    back(case, y, case.randn(D), inputs, one_query(q, X)[0])


@check(attention_matrix, see="From one query to many")
def gradients(attend, case):
    """passes gradients to Q and X as torch's scaled_dot_product_attention does"""
    N_Q, N_X, D = case.sizes(3)
    Q, X = case.randn(1, N_Q, D).requires_grad_(), case.randn(1, N_X, D).requires_grad_()
    Y, _ = both(case, attend(Q, X), (1, N_Q, D), (1, N_Q, N_X), "YA")
    back(case, Y, case.randn(1, N_Q, D), {"Q": Q, "X": X}, torchs(Q, X, X)[0])


@check(basic_self_attention, see="From given queries to self-attention")
def alone(attend, case):
    """returns a single vector as it is"""
    (D,) = case.sizes(1, low=6)
    X = case.randn(1, D)
    Y, A = both(case, attend(X), (1, D), (1, 1), "YA")
    case.equal(Y, X, "Y")
    case.equal(A, torch.ones(1, 1), "A")


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
