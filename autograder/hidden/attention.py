"""Hidden checks of attention: gradients, extremes, batches, empty rows, errors."""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_pkg.attention import (
    AttentionLayer,
    MultiHeadAttention,
    SelfAttention,
    attention_cost,
    attention_matrix,
    basic_self_attention,
    causal_mask,
    dot_attention,
    masked_softmax,
    merge_heads,
    padding_mask,
    scaled_dot_attention,
    soft_lookup,
    split_heads,
)
from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.checks.attention import (
    SIZES,
    both,
    convolution_products,
    demand_counts,
    keys_and_values,
    matrices,
    multi_head,
    one_query,
    query_and_table,
    rows_permuted,
    scores,
    sum_to_one,
    torchs,
    torchs_heads,
    with_weights,
)


def back(case: Case, y: Tensor, seen: Tensor, inputs: dict[str, Tensor], expected: Tensor) -> None:
    """Go back from the student's output, and compare the gradients with those of `expected`."""
    gradients = torch.autograd.grad(expected, list(inputs.values()), seen)
    case.trains(y, "the output")
    y.backward(seen)
    for (name, tensor), gradient in zip(inputs.items(), gradients, strict=True):
        case.gradient(tensor, gradient, name)


@check(soft_lookup, see="From exact to near")
def far(lookup, case):
    """still gives weights when the query is far from every row"""
    q, X, N, D = query_and_table(case)
    y, a = both(case, lookup(q + 100, X, 0.5), (D,), (N,))
    expected = torch.softmax(-(torch.cdist(q[None] + 100, X)[0] ** 2), dim=0)
    case.equal(a, expected, "a")
    case.equal(y, expected @ X, "y")


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


@check(soft_lookup, see="From exact to near")
def refuses(lookup, case):
    """raises ValueError for a temperature of zero or less"""
    q, X, _, _ = query_and_table(case)
    case.raises(ValueError, lambda: lookup(q, X, 0.0), "the temperature is 0")
    case.raises(ValueError, lambda: lookup(q, X, -1.0), "the temperature is -1")


@check(dot_attention, see="From distances to dot products")
def indifferent(attend, case):
    """returns the mean of the rows when the query is zero"""
    _, X, N, D = query_and_table(case)
    y, a = both(case, attend(torch.zeros(D).double(), X), (D,), (N,))
    case.equal(a, torch.full((N,), 1 / N), "a")
    case.equal(y, X.mean(dim=0), "y")


@check(dot_attention, see="From distances to dot products")
def loud(attend, case):
    """picks one row, and not NaN, when scores are in the thousands"""
    q, X, N, D = query_and_table(case)
    q = 1e4 * q
    y, a = both(case, attend(q, X), (D,), (N,))
    row = (X @ q).argmax()
    case.equal(a, F.one_hot(row, N).double(), "a")
    case.equal(y, X[row], "y")


@check(dot_attention, see="From distances to dot products")
def gradients(attend, case):
    """passes gradients to q and X as torch's scaled_dot_product_attention does"""
    q, X, N, D = query_and_table(case)
    inputs = {"X": X.requires_grad_(), "q": q.requires_grad_()}
    y, _ = both(case, attend(q, X), (D,), (N,))
    back(case, y, case.randn(D), inputs, one_query(q, X, scale=1.0)[0])


@check(scaled_dot_attention, see="Why divide by √D_Q")
def permuted(attend, case):
    """permutes the weights with the rows, and leaves the output as it is"""
    rows_permuted(case, attend)


@check(scaled_dot_attention, see="Why divide by √D_Q")
def loud(attend, case):
    """picks one row, and not NaN, when scores are in the thousands"""
    q, X, N, D = query_and_table(case)
    q = 1e5 * q
    y, a = both(case, attend(q, X), (D,), (N,))
    row = (X @ q).argmax()
    case.equal(a, F.one_hot(row, N).double(), "a")
    case.equal(y, X[row], "y")


@check(scaled_dot_attention, see="Why divide by √D_Q")
def gradients(attend, case):
    """passes gradients to q and X as torch's scaled_dot_product_attention does"""
    q, X, N, D = query_and_table(case)
    inputs = {"X": X.requires_grad_(), "q": q.requires_grad_()}
    y, _ = both(case, attend(q, X), (D,), (N,))
    back(case, y, case.randn(D), inputs, one_query(q, X)[0])


@check(scaled_dot_attention, see="Why divide by √D_Q")
def refuses(attend, case):
    """raises ValueError when q and X differ in D_Q"""
    q, X, _, D = query_and_table(case)
    long = case.randn(D + 1)
    case.raises(ValueError, lambda: attend(long, X), f"q has {D + 1} features and X {D}")
    case.raises(ValueError, lambda: attend(q[:1], X), f"q has 1 feature and X {D}")


@check(attention_matrix, see="From one query to many")
def gradients(attend, case):
    """passes gradients to Q and X as torch's scaled_dot_product_attention does"""
    N_Q, N_X, D = case.sizes(3)
    Q, X = case.randn(1, N_Q, D).requires_grad_(), case.randn(1, N_X, D).requires_grad_()
    Y, _ = both(case, attend(Q, X), (1, N_Q, D), (1, N_Q, N_X), "YA")
    back(case, Y, case.randn(1, N_Q, D), {"Q": Q, "X": X}, torchs(Q, X, X)[0])


@check(attention_matrix, see="From one query to many")
def loud(attend, case):
    """picks one row, and not NaN, when scores are in the thousands"""
    N_Q, N_X, D = case.sizes(3, low=3)
    Q, X = 1e5 * case.randn(N_Q, D), case.randn(N_X, D)
    Y, A = both(case, attend(Q, X), (N_Q, D), (N_Q, N_X), "YA")
    best = (Q @ X.T).argmax(dim=1)
    case.equal(A, F.one_hot(best, N_X).double(), "A")
    case.equal(Y, X[best], "Y")


@check(AttentionLayer, see="From rows to keys and values")
def loud(layer, case):
    """picks one value, and not NaN, when scores are in the thousands"""
    N_Q, N_X, D_X, D_Q, D_V = case.sizes(5, low=3)
    W, X = keys_and_values(case, D_X, D_Q, D_V), case.randn(N_X, D_X)
    Q = 1e5 * case.randn(N_Q, D_Q)
    ours = with_weights(case, layer, D_X, D_Q, D_V, **W)
    Y, A = both(case, ours(Q, X), (N_Q, D_V), (N_Q, N_X), "YA")
    best = (Q @ (X @ W["W_K"]).T).argmax(dim=1)
    case.equal(A, F.one_hot(best, N_X).double(), "A")
    case.equal(Y, (X @ W["W_V"])[best], "Y")


@check(AttentionLayer, see="From rows to keys and values")
def unbatched(layer, case):
    """agrees with torch for one query and no batch, and for a batch of two axes"""
    N_X, D_X, D_Q, D_V = case.sizes(4)
    W = keys_and_values(case, D_X, D_Q, D_V)
    ours = with_weights(case, layer, D_X, D_Q, D_V, **W)
    for shape, N_Q in [((), 1), ((2, 3), 4)]:
        Q, X = case.randn(*shape, N_Q, D_Q), case.randn(*shape, N_X, D_X)
        expected_Y, expected_A = torchs(Q[None], (X @ W["W_K"])[None], (X @ W["W_V"])[None])
        Y, A = both(case, ours(Q, X), (*shape, N_Q, D_V), (*shape, N_Q, N_X), "YA")
        case.equal(A, expected_A[0], "A")
        case.equal(Y, expected_Y[0], "Y")


@check(basic_self_attention, see="From given queries to self-attention")
def batch(attend, case):
    """keeps the members of a batch apart"""
    B, N, D = case.sizes(3)
    X = case.randn(B, N, D) / 2
    Y, A = both(case, attend(X), (B, N, D), (B, N, N), "YA")
    Y_one, A_one = both(case, attend(X[1]), (N, D), (N, N), "YA")
    case.equal(Y_one, Y[1], "Y of one member")
    case.equal(A_one, A[1], "A of one member")


@check(basic_self_attention, see="From given queries to self-attention")
def alone(attend, case):
    """returns a single vector as it is"""
    (D,) = case.sizes(1, low=6)
    X = case.randn(1, D)
    Y, A = both(case, attend(X), (1, D), (1, 1), "YA")
    case.equal(Y, X, "Y")
    case.equal(A, torch.ones(1, 1), "A")


@check(basic_self_attention, see="From given queries to self-attention")
def loud(attend, case):
    """picks one row, and not NaN, when scores are in the thousands"""
    N, D = case.sizes(2, low=3)
    X = 1e3 * case.randn(N, D)
    Y, A = both(case, attend(X), (N, D), (N, N), "YA")
    best = (X @ X.T).argmax(dim=1)
    case.equal(A, F.one_hot(best, N).double(), "A")
    case.equal(Y, X[best], "Y")


@check(basic_self_attention, see="From given queries to self-attention")
def gradient(attend, case):
    """passes gradients to X through queries, keys and values"""
    N, D = case.sizes(2)
    X = (case.randn(1, N, D) / 2).requires_grad_()
    Y, _ = both(case, attend(X), (1, N, D), (1, N, N), "YA")
    back(case, Y, case.randn(1, N, D), {"X": X}, torchs(X, X, X, scale=1.0)[0])


@check(SelfAttention, see="Three roles, three projections")
def batch(layer, case):
    """keeps the members of a batch apart, also of a batch of two axes"""
    B, N, D_X, D_Q, D_V = case.sizes(5)
    ours = with_weights(case, layer, D_X, D_Q, D_V, **matrices(case, D_X, D_Q, D_V))
    X = case.randn(B, N, D_X)
    Y, A = both(case, ours(X), (B, N, D_V), (B, N, N), "YA")
    case.equal(case.unpack(ours(X[:, None]), "Y", "A")[0], Y[:, None], "Y of a batch of two axes")
    Y_one, A_one = both(case, ours(X[1]), (N, D_V), (N, N), "YA")
    case.equal(Y_one, Y[1], "Y of one member")
    case.equal(A_one, A[1], "A of one member")


@check(SelfAttention, see="Three roles, three projections")
def loud(layer, case):
    """picks one value, and not NaN, when scores are in the thousands"""
    N, D_X, D_Q, D_V = case.sizes(4, low=3)
    W, X = matrices(case, D_X, D_Q, D_V), 1e3 * case.randn(N, D_X)
    ours = with_weights(case, layer, D_X, D_Q, D_V, **W)
    Y, A = both(case, ours(X), (N, D_V), (N, N), "YA")
    best = (X @ W["W_Q"] @ W["W_K"].T @ X.T).argmax(dim=1)
    case.equal(A, F.one_hot(best, N).double(), "A")
    case.equal(Y, (X @ W["W_V"])[best], "Y")


@check(causal_mask, see="A mask says who may look at whom")
def one_position(mask, case):
    """allows the newest position everything in a cache"""
    (past,) = case.sizes(1, low=6)
    case.equal(mask(1, past), torch.ones(1, past + 1, dtype=torch.bool), "mask of one position")


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


@check(masked_softmax, see="A row without an allowed key")
def gradients(softmax, case):
    """passes finite gradients back, and none through forbidden keys or empty rows"""
    E, mask = scores(case)
    mask[1, 2] = False
    expected = torch.where(mask, E, -torch.inf).softmax(dim=-1).nan_to_num(0)
    seen = case.randn(*E.shape)
    slope = expected * (seen - (expected * seen).sum(dim=-1, keepdim=True))
    A = softmax(E.requires_grad_(), mask)
    case.shape(A, tuple(E.shape), "A")
    case.trains(A, "A")
    A.backward(seen)
    case.gradient(E, slope, "E")


@check(masked_softmax, see="A row without an allowed key")
def anything(softmax, case):
    """ignores ∞ and NaN where a key is forbidden"""
    E, mask = scores(case)
    mask[1, 2] = False
    expected = torch.where(mask, E, -torch.inf).softmax(dim=-1).nan_to_num(0)
    for value in (torch.inf, -torch.inf, torch.nan):
        case.equal(
            softmax(torch.where(mask, E, value), mask),
            expected,
            f"A with forbidden scores of {value}",
        )


@check(masked_softmax, see="A mask comes before the softmax")
def far_below(softmax, case):
    """keeps its weights when all allowed scores are very low, or very high"""
    E, mask = scores(case)
    expected = torch.where(mask, E, -torch.inf).softmax(dim=-1)
    for shift in (-100, -1e4, -1e11, 1e4):
        given = softmax(torch.where(mask, E + shift, 0.0), mask)
        case.equal(given, expected, "A of shifted scores", rtol=2e-3, atol=1e-4)


@check(split_heads, see="One vector, several heads")
def refuses(split, case):
    """raises ValueError when the heads cannot share the features equally"""
    B, T, H, D_h = case.sizes(4)
    X = case.randn(B, T, H * D_h + 1)
    case.raises(ValueError, lambda: split(X, H), f"{H} heads are to share {H * D_h + 1} features")


@check(split_heads, see="One vector, several heads")
def one_head(split, case):
    """only adds an axis when H = 1, and gives each feature a head of its own when H = D"""
    B, T, D = case.sizes(3, low=3)
    X = case.randn(B, T, D)
    case.equal(split(X, 1), X[:, None], "heads when H = 1")
    case.equal(split(X, D), X.mT[..., None], "heads when H = D")


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
def one_head(merge, case):
    """only removes the axis of one head, in half precision too"""
    B, T, D = case.sizes(3, low=3)
    X = case.randn(B, 1, T, D)
    case.equal(merge(X), X[:, 0], "merged")
    half = merge(X.half())
    case.equal(half, X[:, 0].half(), "merged in half precision")
    message = f"merged should be torch.float16 as X is, yours is {half.dtype}."
    case.that(half.dtype == torch.float16, message)


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


@check(MultiHeadAttention, see="Several heads at once")
def one_head(attention, case):
    """agrees with torch.nn.MultiheadAttention for one head and for one sequence"""
    N_Q, N_X, D = case.sizes(3)
    ours, theirs = multi_head(case, attention, D, 1)
    X, memory = case.randn(1, N_Q, D), case.randn(1, N_X, D)
    case.equal(ours(X, memory), torchs_heads(theirs, X, memory)[0], "Y")
    memory = case.randn(1, N_Q, D)
    case.equal(ours(X, memory), torchs_heads(theirs, X, memory)[0], "Y from as many vectors")


@check(MultiHeadAttention, see="A row without an allowed key")
def nothing_allowed(attention, case):
    """gives b_O, not NaN, for a query that may attend to nothing, and finite gradients"""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, _ = multi_head(case, attention, H * D_h, H, bias=True)
    X, mask = case.randn(B, T, H * D_h).requires_grad_(), torch.ones(T, T, dtype=torch.bool)
    mask[1] = False
    Y, A = both(case, ours(X, mask=mask, return_weights=True), X.shape, (B, H, T, T), "YA")
    case.equal(A[:, :, 1], torch.zeros(B, H, T), "A of that query")
    own = dict(ours.named_parameters())
    case.equal(Y[:, 1], own["b_O"].expand(B, -1), "Y of that query")
    case.trains(Y, "Y")
    Y.sum().backward()
    case.that(X.grad is not None and X.grad.isfinite().all(), "The gradient should be finite.")
    case.learns(ours)


@check(MultiHeadAttention, see="A mask says who may look at whom")
def causal(attention, case):
    """under a causal mask, keeps what comes later out of every position, at all scores"""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, theirs = multi_head(case, attention, H * D_h, H)
    X, mask = case.randn(B, T, H * D_h), torch.ones(T, T, dtype=torch.bool).tril()
    whole = ours(X, mask=mask)
    case.shape(whole, tuple(X.shape), "Y")
    case.equal(ours(X[:, :2], mask=mask[:2, :2]), whole[:, :2], "Y of the first two positions")
    loud = 1e6 * X
    case.equal(ours(loud, mask=mask), torchs_heads(theirs, loud, loud, mask)[0], "Y of a loud X")


@check(MultiHeadAttention, see="Several heads at once")
def weights_on_demand(attention, case):
    """returns Y alone unless the weights are asked for"""
    B, T, H, D_h = case.sizes(4)
    ours, theirs = multi_head(case, attention, H * D_h, H)
    X = case.randn(B, T, H * D_h)
    case.equal(ours(X), torchs_heads(theirs, X, X)[0], "Y")
    _, A = both(case, ours(X, return_weights=True), tuple(X.shape), (B, H, T, T), "YA")
    sum_to_one(case, A, "A")


@check(attention_cost, see="Three layers, three costs")
def refuses(cost, case):
    """raises ValueError for a convolution that is even or too narrow"""
    case.raises(ValueError, lambda: cost(9, 5, 4), "k is 4")
    case.raises(ValueError, lambda: cost(9, 5, 1), "k is 1")
    case.raises(ValueError, lambda: cost(9, 5, -1), "k is -1")


@check(attention_cost, see="Three layers, three costs")
def default_width(cost, case):
    """uses convolutions of width 3 unless told otherwise"""
    expected = [convolution_products(T, D, 3) for T, D, _ in SIZES]
    demand_counts(case, lambda T, D, k: cost(T, D), "convolution", "multiply_adds", expected)
