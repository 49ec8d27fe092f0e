"""Checks of attention. Oracles: torch's scaled_dot_product_attention, MultiheadAttention and
counter of operations, distributions.Normal, closed forms."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_pkg.attention import (
    MultiHeadAttention,
    SelfAttention,
    attention_cost,
    causal_mask,
    masked_softmax,
    merge_heads,
    padding_mask,
    scaled_dot_attention,
    soft_lookup,
    split_heads,
    split_heads_fault,
)
from course_pkg.checking.batched import made, of_each
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.checking.rules.rules import ATTENTION, forbid

for _exercise in (
    scaled_dot_attention,
    SelfAttention,
    MultiHeadAttention,
):
    forbid(_exercise, ATTENTION)


def both(case: Case, result: object, y: tuple, a: tuple, names: str = "ya") -> tuple:
    """Split what an exercise returns into outputs and weights, and demand their shapes."""
    outputs, weights = case.unpack(result, *names)
    case.shape(outputs, y, names[0])
    case.shape(weights, a, names[1])
    return outputs, weights


def sum_to_one(case: Case, weights: Tensor, what: str) -> None:
    """Demand shares: not negative, and summing to one along the last axis."""
    lowest = weights.min().item()
    case.that(lowest >= 0, f"{what} should not be negative, yours has {lowest:.4g}.", weights)
    rows = f"sums of {what}'s rows" if weights.dim() > 1 else f"sum of {what}"
    case.equal(weights.sum(dim=-1), torch.ones(weights.shape[:-1], dtype=torch.float64), rows)


def torchs(Q: Tensor, K: Tensor, V: Tensor, **options) -> tuple[Tensor, Tensor]:
    """Let torch attend: the outputs, and the weights, which are its outputs for V = I."""
    one_hot = torch.eye(K.shape[-2], dtype=V.dtype).expand(*K.shape[:-2], -1, -1)
    attend = F.scaled_dot_product_attention
    return attend(Q, K, V, **options), attend(Q, K, one_hot, **options)


def query_and_table(case: Case, low: int = 3) -> tuple[Tensor, Tensor, int, int]:
    """Draw q and X, and give N_X and D."""
    N, D = case.sizes(2, low)
    return case.randn(D), case.randn(N, D), N, D


def rows_permuted(case: Case, attend, **options) -> None:
    """Demand that weights follow the rows of a table, and that the output stays the same."""
    q, X, N, D = query_and_table(case)
    order = torch.randperm(N, generator=case.generator)
    y, a = both(case, attend(q, X, **options), (D,), (N,))
    y_new, a_new = both(case, attend(q, X[order], **options), (D,), (N,))
    sum_to_one(case, a, "a")
    case.equal(a_new, a[order], "a of the permuted rows")
    case.equal(y_new, y, "y of the permuted rows")


@check(soft_lookup, see="From exact to near", single={"N": 0, "D": 1})
def weights(lookup, case):
    """gives weights that are not negative and sum to one"""
    q, X, N, D = query_and_table(case)
    _, a = both(case, lookup(q, X), (D,), (N,))
    sum_to_one(case, a, "a")


@check(soft_lookup, see="From exact to near")
def nearest(lookup, case):
    """returns the row nearest to the query when the temperature is low"""
    q, X, N, D = query_and_table(case, low=5)
    y, a = both(case, lookup(q, X, 1e-6), (D,), (N,))
    row = torch.cdist(q[None], X)[0].argmin()
    case.equal(a, F.one_hot(row, N).double(), "a")
    case.equal(y, X[row], "y")


@check(soft_lookup, see="From exact to near")
def permuted(lookup, case):
    """permutes the weights with the rows, and leaves the output as it is"""
    rows_permuted(case, lookup, temperature=2.0)


@check(soft_lookup, weight=2, see="From exact to near")
def values(lookup, case):
    """weighs each row by a Gaussian of variance τ around it, taken at the query"""
    q, X, N, D = query_and_table(case, low=4)
    for options, variance, name in (
        ([3.0], 3.0, "at τ = 3"),
        ([], 1.0, "at the default τ"),
    ):
        densities = torch.distributions.Normal(X, variance**0.5).log_prob(q).sum(dim=1)
        expected = densities.softmax(dim=0)
        y, a = both(case, lookup(q, X, *options), (D,), (N,))
        case.equal(a, expected, f"a {name}")
        case.equal(y, (expected[:, None] * X).sum(dim=0), f"y {name}")


@check(soft_lookup, see="From exact to near")
def refuses(lookup, case):
    """raises ValueError for a temperature of zero or less"""
    q, X, _, _ = query_and_table(case)
    case.raises(ValueError, lambda: lookup(q, X, 0.0), "the temperature is 0")
    case.raises(ValueError, lambda: lookup(q, X, -1.0), "the temperature is -1")


@check(soft_lookup, see="From exact to near")
def gradients_at_a_row(lookup, case):
    """passes gradients back, not NaN, where the query is one of the rows"""
    _, X, N, D = query_and_table(case)
    q, seen = X[1].clone(), case.randn(D)
    inputs = {"q": q.requires_grad_(), "X": X.requires_grad_()}
    a = torch.distributions.Normal(X, 2.0**0.5).log_prob(q).sum(dim=1).softmax(dim=0)
    gradients = torch.autograd.grad(a @ X, list(inputs.values()), seen)
    y, _ = both(case, lookup(q, X, 2.0), (D,), (N,))
    case.trains(y, "y")
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


def back(case: Case, y: Tensor, seen: Tensor, inputs: dict[str, Tensor], expected: Tensor) -> None:
    """Go back from the student's output, and compare the gradients with those of `expected`."""
    gradients = torch.autograd.grad(expected, list(inputs.values()), seen)
    case.trains(y, "the output")
    y.backward(seen)
    for (name, tensor), gradient in zip(inputs.items(), gradients, strict=True):
        case.gradient(tensor, gradient, name)


SCALE, MANY, ROLES = "Why divide by √D_Q", "From one query to many", "From rows to keys and values"


def asked(case: Case, attend, Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """Let a student's function attend, and demand the shapes of Y and A."""
    outputs, weights = (*Q.shape[:-1], V.shape[-1]), (*Q.shape[:-1], K.shape[-2])
    return both(case, attend(Q, K, V), outputs, weights, "YA")


def table(case: Case, N_Q: int, N_X: int, D_Q: int, D_V: int, *batch: int) -> tuple[Tensor, ...]:
    """Draw queries, keys and values."""
    return (
        case.randn(*batch, N_Q, D_Q),
        case.randn(*batch, N_X, D_Q),
        case.randn(*batch, N_X, D_V),
    )


@check(scaled_dot_attention, see=SCALE)
def worked_example(attend, case):
    """gives the weights (0.88, 0.12) to dot products 112 and 96 of vectors of size 64"""
    q, K = case.randn(1, 64), case.randn(2, 64)
    K = K + (torch.tensor([112, 96]) - K @ q[0])[:, None] * q / (q @ q.T)
    _, A = asked(case, attend, q, K, case.randn(2, 5))
    case.equal(A[0], torch.tensor([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))]), "A[0]")


@check(scaled_dot_attention, see=SCALE)
def spread(attend, case):
    """has scores with a standard deviation near 1, whatever D_Q is"""
    for D in (16, 1024):
        q = case.randn(1, D)
        q = q / q.square().mean().sqrt()  # as long as a query is on average
        _, A = asked(case, attend, q, case.randn(50, D), case.randn(50, 3))
        std = A.log().std().item()
        message = f"log A should have a standard deviation near 1 at D_Q = {D}, yours has"
        case.that(0.5 < std < 2, f"{message} {std:.3g}.", A)


@check(scaled_dot_attention, see=MANY)
def rows(attend, case):
    """gives every query weights that sum to one"""
    B, *sizes = case.sizes(5)
    _, A = asked(case, attend, *table(case, *sizes, B))
    sum_to_one(case, A, "A")


@check(scaled_dot_attention, see=MANY)
def each_alone(attend, case):
    """gives a query the same answer whatever the other queries are"""
    Q, K, V = table(case, *case.sizes(4, low=3))
    Y, A = asked(case, attend, Q, K, V)
    others = torch.cat([Q[:1], 3 * case.randn(len(Q) - 1, Q.shape[1])])
    Y_new, A_new = asked(case, attend, others, K, V)
    case.equal(A_new[0], A[0], "A[0] with other queries")
    case.equal(Y_new[0], Y[0], "Y[0] with other queries")


@check(scaled_dot_attention, see=MANY)
def permuted(attend, case):
    """permutes outputs with the queries, and columns of A with keys and values"""
    Q, K, V = table(case, *case.sizes(4, low=4))
    queries = torch.randperm(len(Q), generator=case.generator)
    keys = torch.randperm(len(K), generator=case.generator)
    Y, A = asked(case, attend, Q, K, V)
    Y_new, A_new = asked(case, attend, Q[queries], K[keys], V[keys])
    case.equal(A_new, A[queries][:, keys], "A of the permuted inputs")
    case.equal(Y_new, Y[queries], "Y of the permuted inputs")


@check(scaled_dot_attention, see=ROLES)
def dictionary(attend, case):
    """works as a dictionary when keys are far apart: the value of the key that was asked for"""
    N, D_Q, D_V = sorted(case.sizes(3, low=3))
    keys = 200 * torch.eye(D_Q).double()[:N]
    values = case.randn(N, D_V)
    wanted = torch.randperm(N, generator=case.generator)[: N - 1]
    Y, A = asked(case, attend, torch.eye(D_Q).double()[wanted], keys, values)
    case.equal(A, F.one_hot(wanted, N).double(), "A")
    case.equal(Y, values[wanted], "Y")


@check(scaled_dot_attention, weight=3, see=MANY, single={"B": 0, "N_Q": 0, "N_X": 0, "D_Q": 1})
def values(attend, case):
    """agrees with torch's scaled_dot_product_attention"""
    B, N_Q, N_X, D_Q, D_V = case.sizes(5)
    Q, K, V = table(case, N_Q, N_X, D_Q, D_V, B)
    expected_Y, expected_A = torchs(Q, K, V)
    Y, A = asked(case, attend, Q, K, V)
    case.equal(A, expected_A, "A")
    case.equal(Y, expected_Y, "Y")


@check(scaled_dot_attention, see=MANY)
def single(attend, case):
    """agrees with torch for one query and no batch, and for a batch of two axes"""
    B, H, N_Q, *sizes = case.sizes(6)
    for batch, N in [((), 1), ((B, H), N_Q)]:
        Q, K, V = table(case, N, *sizes, *batch)
        expected, expected_A = torchs(Q[None], K[None], V[None])
        Y, A = asked(case, attend, Q, K, V)
        case.equal(A, expected_A[0], "A")
        case.equal(Y, expected[0], "Y")


@check(scaled_dot_attention, see=ROLES)
def refuses(attend, case):
    """raises ValueError when queries and keys differ in size, or keys and values in number"""
    Q, K, V = table(case, *case.sizes(4))
    D = K.shape[-1]
    long = torch.cat([Q, Q[:, :1]], dim=1)
    case.raises(ValueError, lambda: attend(long, K, V), f"queries have {D + 1} features, keys {D}")
    case.raises(ValueError, lambda: attend(Q[:, :1], K, V), f"queries have 1 feature, keys {D}")
    case.raises(
        ValueError, lambda: attend(Q, K, V[1:]), f"there are {len(K)} keys and {len(V) - 1} values"
    )


@check(scaled_dot_attention, see=MANY)
def loud(attend, case):
    """picks one row, and not NaN, when scores are in the thousands"""
    Q, K, V = table(case, *case.sizes(4, low=3))
    Q = 1e5 * Q
    Y, A = asked(case, attend, Q, K, V)
    best = (Q @ K.T).argmax(dim=1)
    case.equal(A, F.one_hot(best, len(K)).double(), "A")
    case.equal(Y, V[best], "Y")


@check(scaled_dot_attention, see=MANY)
def gradients(attend, case):
    """passes gradients to Q, K and V as torch's scaled_dot_product_attention does"""
    Q, K, V = (each.requires_grad_() for each in table(case, *case.sizes(4), 1))
    Y, _ = asked(case, attend, Q, K, V)
    back(case, Y, case.randn(*Y.shape), {"Q": Q, "K": K, "V": V}, torchs(Q, K, V)[0])


def with_weights(case: Case, student, *sizes: int, **weights: Tensor):
    """Make a student's module and give it the weights, float64."""
    return made(student, weights, *sizes)


def matrices(case: Case, D_X: int, D_Q: int, D_V: int) -> dict[str, Tensor]:
    """Draw W_Q, W_K and W_V."""
    sizes = {"W_Q": D_Q, "W_K": D_Q, "W_V": D_V}
    return {name: case.randn(D_X, size) / D_X**0.5 for name, size in sizes.items()}


def equivariant(case: Case, attend, N: int, D_X: int, D_Y: int) -> None:
    """Demand f(s(X)) = s(f(X)) for a permutation s that is not its own inverse."""
    X = case.randn(N, D_X) / 2
    order = torch.randperm(N, generator=case.generator).roll(1)
    Y, A = both(case, attend(X), (N, D_Y), (N, N), "YA")
    Y_new, A_new = both(case, attend(X[order]), (N, D_Y), (N, N), "YA")
    case.equal(A_new, A[order][:, order], "A of the permuted input")
    case.equal(Y_new, Y[order], "Y of the permuted input")


@check(SelfAttention, see="Three roles, three projections")
def rows(layer, case):
    """gives every vector weights that sum to one"""
    B, N, D_X, D_Q, D_V = case.sizes(5)
    ours = with_weights(case, layer, D_X, D_Q, D_V, **matrices(case, D_X, D_Q, D_V))
    _, A = both(case, ours(case.randn(B, N, D_X)), (B, N, D_V), (B, N, N), "YA")
    sum_to_one(case, A, "A")


@check(SelfAttention, see="Order is lost")
def permuted(layer, case):
    """permutes its outputs as its inputs are permuted: f(s(X)) = s(f(X))"""
    N, D_X, D_Q, D_V = case.sizes(4, low=4)
    ours = with_weights(case, layer, D_X, D_Q, D_V, **matrices(case, D_X, D_Q, D_V))
    equivariant(case, ours, N, D_X, D_V)


@check(SelfAttention, weight=3, see="Three roles, three projections")
def values(layer, case):
    """agrees with torch's scaled_dot_product_attention of X W_Q, X W_K and X W_V"""
    B, N, D_X, D_Q, D_V = case.sizes(5)
    W, X = matrices(case, D_X, D_Q, D_V), case.randn(B, N, D_X)
    expected_Y, expected_A = torchs(X @ W["W_Q"], X @ W["W_K"], X @ W["W_V"])
    result = with_weights(case, layer, D_X, D_Q, D_V, **W)(X)
    Y, A = both(case, result, (B, N, D_V), (B, N, N), "YA")
    case.equal(A, expected_A, "A")
    case.equal(Y, expected_Y, "Y")


@check(SelfAttention, see="Three roles, three projections")
def gradients(layer, case):
    """passes gradients to X and the three matrices as torch does"""
    N, D_X, D_Q, D_V = case.sizes(4)
    W, X = matrices(case, D_X, D_Q, D_V), case.randn(1, N, D_X).requires_grad_()
    ours = with_weights(case, layer, D_X, D_Q, D_V, **W)
    Y, _ = both(case, ours(X), (1, N, D_V), (1, N, N), "YA")
    own = {name: dict(ours.named_parameters())[name] for name in W}
    seen, W = case.randn(1, N, D_V), {n: w.requires_grad_() for n, w in W.items()}
    expected = torchs(X @ W["W_Q"], X @ W["W_K"], X @ W["W_V"])[0]
    gradients = torch.autograd.grad(expected, [X, *W.values()], seen)
    case.trains(Y, "Y")
    Y.backward(seen)
    for (name, tensor), gradient in zip({"X": X, **own}.items(), gradients, strict=True):
        case.gradient(tensor, gradient, name)
    case.learns(ours)


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


@check(causal_mask, see="A mask says who may look at whom")
def values(mask, case):
    """allows position t the positions 0 to t, itself included"""
    (T,) = case.sizes(1, low=4)
    expected = torch.tensor([[s <= t for s in range(T)] for t in range(T)])
    case.equal(mask(T), expected, "mask")


@check(causal_mask, see="A mask says who may look at whom")
def counts(mask, case):
    """allows position t exactly past + t + 1 positions"""
    T, past = case.sizes(2, low=6)
    given = mask(T, past)
    case.shape(given, (T, past + T), "mask")
    case.equal(given.sum(dim=1), past + 1 + torch.arange(T), "allowed positions of each row")


@check(causal_mask, weight=2, see="A mask says who may look at whom")
def last_rows(mask, case):
    """with a past, gives the last rows of the mask of the whole sequence"""
    T, past = case.sizes(2, low=3)
    expected = torch.tensor([[s <= past + t for s in range(past + T)] for t in range(T)])
    case.equal(mask(T, past), expected, "mask with past")


@check(causal_mask, see="A mask says who may look at whom")
def one_position(mask, case):
    """allows the newest position everything in a cache"""
    (past,) = case.sizes(1, low=6)
    case.equal(mask(1, past), torch.ones(1, past + 1, dtype=torch.bool), "mask of one position")


@check(padding_mask, see="Padding is not there")
def counts(mask, case):
    """allows every query as many positions as its sequence has"""
    B, T = case.sizes(2, low=6)
    lengths = case.lengths(B, T)
    given = mask(lengths, T)
    case.shape(given, (B, 1, T), "mask")
    case.equal(given.sum(dim=2), lengths[:, None], "allowed positions of each sequence")


@check(padding_mask, weight=2, see="Padding is not there")
def values(mask, case):
    """allows the first positions, up to each sequence's length"""
    B, T = case.sizes(2, low=4)
    lengths = case.lengths(B, T)
    expected = torch.tensor([[[s < length for s in range(T)]] for length in lengths.tolist()])
    case.equal(mask(lengths, T), expected, "mask")


@check(padding_mask, see="Padding is not there")
def longer(mask, case):
    """has T positions even when no sequence is that long, and may be empty"""
    B, T = case.sizes(2, low=4)
    lengths = case.lengths(B, T) - 1
    expected = torch.tensor([[[s < length for s in range(T + 2)]] for length in lengths.tolist()])
    case.equal(mask(lengths, T + 2), expected, "mask")


def scores(case: Case) -> tuple[Tensor, Tensor]:
    """Draw similarities of shape (B, N_Q, N_X) and a mask that allows each query some keys."""
    B, N_Q, N_X = case.sizes(3, low=3)
    mask = case.rand(B, N_Q, N_X) < 0.5
    mask.scatter_(-1, case.integers(0, N_X, B, N_Q, 1), True)
    return case.randn(B, N_Q, N_X), mask


@check(masked_softmax, see="A mask comes before the softmax", single="B")
def rows(softmax, case):
    """shares one among the allowed keys, and gives the others exactly zero, at all scores"""
    E, mask = scores(case)
    for shift in (0, -300):
        A = softmax(E + shift, mask)
        case.shape(A, tuple(E.shape), "A")
        case.equal(A[~mask], torch.zeros(int((~mask).sum())), "A of forbidden keys", atol=0)
        sum_to_one(case, A, "A" if shift == 0 else "A of low scores")


@check(masked_softmax, see="A mask comes before the softmax")
def forbidden(softmax, case):
    """gives the same weights whatever the scores of forbidden keys are"""
    E, mask = scores(case)
    A = softmax(E - 30, mask)
    case.shape(A, tuple(E.shape), "A")
    louder = softmax(torch.where(mask, E - 30, 1e3 * (1 + E.abs())), mask)
    case.equal(louder, A, "A with higher forbidden scores")


@check(masked_softmax, see="A row without an allowed key")
def empty_rows(softmax, case):
    """gives zeros, not NaN, to a query that may attend to nothing"""
    E, mask = scores(case)
    mask[1, 2] = False
    A = softmax(E, mask)
    case.shape(A, tuple(E.shape), "A")
    case.equal(A[1, 2], torch.zeros(E.shape[-1]), "A of an empty row")
    case.equal(softmax(E, mask & False), torch.zeros(E.shape), "A where nothing is allowed")


@check(masked_softmax, see="A mask comes before the softmax", single="B")
def no_mask(softmax, case):
    """is the softmax over the last axis when there is no mask"""
    E, _ = scores(case)
    A = softmax(E.requires_grad_())
    case.equal(A, E.exp() / E.exp().sum(dim=-1, keepdim=True), "A without a mask")
    case.trains(A, "A")


@check(masked_softmax, weight=2, see="A mask comes before the softmax")
def values(softmax, case):
    """is a softmax over the allowed keys alone"""
    E, mask = scores(case)
    expected = torch.zeros_like(E)
    for row in torch.cartesian_prod(*map(torch.arange, E.shape[:2])):
        b, n = row.tolist()
        expected[b, n, mask[b, n]] = E[b, n, mask[b, n]].softmax(dim=0)
    case.equal(softmax(E, mask), expected, "A")


def some_mask(case: Case, B: int, N_Q: int, N_X: int) -> Tensor:
    """Draw a mask (B, N_Q, N_X) that allows each query at least one key."""
    mask = case.rand(B, N_Q, N_X) < 0.5
    return mask.scatter(-1, case.integers(0, N_X, B, N_Q, 1), True)


@check(masked_softmax, see="A mask comes before the softmax")
def broadcasts(softmax, case):
    """accepts masks of shapes (N_Q, N_X) and (B, 1, N_X) for the scores of all heads"""
    B, H, N_Q, N_X = case.sizes(4, low=3)
    E = case.randn(B, H, N_Q, N_X)
    for mask in (some_mask(case, 1, N_Q, N_X)[0], some_mask(case, B, 1, N_X)[:, None]):
        expected = torch.where(mask, E, -torch.inf).softmax(dim=-1)
        case.equal(softmax(E, mask), expected, "A")


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


@check(split_heads, see="One vector, several heads")
def first_and_last(split, case):
    """gives head 0 the first features and the last head the last ones"""
    B, T, H, D_h = case.sizes(4)
    X = case.randn(B, T, H * D_h)
    heads = split(X, H)
    case.shape(heads, (B, H, T, D_h), "heads")
    case.equal(heads[:, 0], X[:, :, :D_h], "head 0")
    case.equal(heads[:, -1], X[:, :, -D_h:], "last head")


@check(split_heads, weight=2, see="One vector, several heads")
def values(split, case):
    """gives head h the features h D_h to (h+1) D_h - 1 of every position"""
    B, T, H, D_h = case.sizes(4)
    X = case.randn(B, T, H * D_h)
    expected = torch.stack([X[:, :, h * D_h : (h + 1) * D_h] for h in range(H)], dim=1)
    case.equal(split(X, H), expected, "heads")


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


def sliced(X: Tensor, H: int) -> Tensor:
    """Cut the features of three axes into H slices, and stack them."""
    _, _, D = X.shape
    if D % H:
        raise ValueError(f"{H} heads cannot share {D} features")
    return torch.stack(X.split(D // H, dim=2), dim=1)


@check(merge_heads, see="One vector, several heads", single="B")
def one_position(merge, case):
    """joins the parts of one position, and of no other"""
    B, H, T, D_h = case.sizes(4)
    X = case.randn(B, H, T, D_h)
    merged = merge(X)
    case.shape(merged, (B, T, H * D_h), "merged")
    case.equal(merged[0, 1], torch.cat([X[0, h, 1] for h in range(H)]), "features of position 1")


@check(merge_heads, weight=2, see="One vector, several heads")
def values(merge, case):
    """is the inverse of a split into heads"""
    B, T, H, D_h = case.sizes(4)
    X = case.randn(B, T, H * D_h)
    heads = torch.stack(X.split(D_h, dim=2), dim=1)
    case.equal(merge(heads), X, "merged")


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


def multi_head(case: Case, student, D: int, H: int, D_X: int | None = None, bias: bool = False):
    """Make a student's module and torch's with the same weights, float64."""
    source = D if D_X is None else D_X
    W = {"W_Q": case.randn(D, D), "W_K": case.randn(source, D), "W_V": case.randn(source, D)}
    W = {name: value / len(value) ** 0.5 for name, value in W.items()}
    W["W_O"] = case.randn(D, D) / D**0.5
    b = {f"b_{name}": case.randn(D) for name in "QKVO"} if bias else {}
    ours = made(student, {**W, **b}, D, H, D_X, bias)
    theirs = nn.MultiheadAttention(D, H, bias=bias, kdim=source, vdim=source, batch_first=True)
    joined = ["in_proj_weight"] if source == D else [f"{n}_proj_weight" for n in "qkv"]
    stacked = [W["W_Q"].T, W["W_K"].T, W["W_V"].T]
    stacked = [torch.cat(stacked)] if source == D else stacked
    state = dict(zip(joined, stacked, strict=True)) | {"out_proj.weight": W["W_O"].T}
    if bias:
        state["in_proj_bias"] = torch.cat([b["b_Q"], b["b_K"], b["b_V"]])
        state["out_proj.bias"] = b["b_O"]
    theirs.double().load_state_dict(state)
    return ours, theirs


def torchs_heads(theirs: nn.Module, X: Tensor, memory: Tensor, mask: Tensor | None = None):
    """Let torch's module attend; its masks are True where ours are False, one for each head."""
    if mask is not None:
        shape = (len(X), X.shape[1], memory.shape[1])
        mask = ~mask.expand(shape).repeat_interleave(theirs.num_heads, dim=0)
    return theirs(X, memory, memory, attn_mask=mask, average_attn_weights=False)


@check(MultiHeadAttention, see="Several heads at once")
def rows(attention, case):
    """gives every query, in every head, weights that sum to one"""
    B, T, H, D_h = case.sizes(4)
    ours, _ = multi_head(case, attention, H * D_h, H)
    result = ours(case.randn(B, T, H * D_h), return_weights=True)
    _, A = both(case, result, (B, T, H * D_h), (B, H, T, T), "YA")
    sum_to_one(case, A, "A")


@check(MultiHeadAttention, see="Order is lost")
def permuted(attention, case):
    """permutes its outputs as its inputs are permuted: f(s(X)) = s(f(X))"""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, _ = multi_head(case, attention, H * D_h, H)
    X, order = case.randn(B, T, H * D_h), torch.randperm(T, generator=case.generator).roll(1)
    Y = ours(X)
    case.shape(Y, tuple(X.shape), "Y")
    case.equal(ours(X[:, order]), Y[:, order], "Y of the permuted input")


@check(MultiHeadAttention, see="A mask says who may look at whom")
def masked_key(attention, case):
    """gives the same output whatever a forbidden key holds"""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, _ = multi_head(case, attention, H * D_h, H)
    X, mask = case.randn(B, T, H * D_h), torch.ones(T, T, dtype=torch.bool)
    mask[:-1, -1] = False
    Y = ours(X, mask=mask)
    case.shape(Y, tuple(X.shape), "Y")
    other = torch.cat([X[:, :-1], 3 * case.randn(B, 1, H * D_h)], dim=1)
    case.equal(ours(other, mask=mask)[:, :-1], Y[:, :-1], "Y with another forbidden key")


@check(MultiHeadAttention, weight=3, see="Several heads at once")
def self_attention(attention, case):
    """agrees with torch.nn.MultiheadAttention from X to X"""
    B, T, H, D_h = case.sizes(4)
    ours, theirs = multi_head(case, attention, H * D_h, H)
    X = case.randn(B, T, H * D_h)
    expected_Y, expected_A = torchs_heads(theirs, X, X)
    Y, A = both(case, ours(X, return_weights=True), tuple(X.shape), tuple(expected_A.shape), "YA")
    case.equal(A, expected_A, "A")
    case.equal(Y, expected_Y, "Y")


@check(MultiHeadAttention, weight=2, see="Several heads at once")
def cross_attention(attention, case):
    """agrees with torch.nn.MultiheadAttention from X to a memory of another size"""
    B, N_Q, N_X, D_X, H, D_h = case.sizes(6)
    ours, theirs = multi_head(case, attention, H * D_h, H, D_X)
    X, memory = case.randn(B, N_Q, H * D_h), case.randn(B, N_X, D_X)
    case.equal(ours(X, memory), torchs_heads(theirs, X, memory)[0], "Y")


@check(MultiHeadAttention, weight=2, see="Several heads at once")
def masks(attention, case):
    """agrees with torch.nn.MultiheadAttention under one mask, and under one for each sequence"""
    B, N_Q, N_X, H, D_h = case.sizes(5, low=3)
    ours, theirs = multi_head(case, attention, H * D_h, H)
    X, memory = case.randn(B, N_Q, H * D_h), case.randn(B, N_X, H * D_h)
    mask = some_mask(case, B, N_Q, N_X)
    shapes = [("for each sequence", mask), ("for all", mask[0]), ("of one row", mask[:, :1])]
    shapes.append(("of one sequence", mask[:1]))
    for name, shape in shapes:
        expected, _ = torchs_heads(theirs, X, memory, shape)
        case.equal(ours(X, memory, shape), expected, f"Y under a mask {name}")
    mask = some_mask(case, B, N_Q, N_Q)
    expected, _ = torchs_heads(theirs, X, X, mask)
    case.equal(ours(X, X, mask), expected, "Y when X is the memory too")


@check(MultiHeadAttention, weight=2, see="Several heads at once")
def biases(attention, case):
    """agrees with torch.nn.MultiheadAttention with biases and several masks"""
    B, N_Q, N_X, D_X, H, D_h = case.sizes(6)
    ours, theirs = multi_head(case, attention, H * D_h, H, D_X, bias=True)
    X, memory = case.randn(B, N_Q, H * D_h), case.randn(B, N_X, D_X)
    mask = some_mask(case, B, N_Q, N_X)
    expected_Y, expected_A = torchs_heads(theirs, X, memory, mask)
    result = ours(X, memory, mask=mask, return_weights=True)
    Y, A = both(case, result, tuple(X.shape), tuple(expected_A.shape), "YA")
    case.equal(A, expected_A, "A")
    case.equal(Y, expected_Y, "Y")


@check(MultiHeadAttention, see="Several heads at once")
def gradients(attention, case):
    """passes gradients to X, the memory and every matrix as torch's module does"""
    B, N_Q, N_X, H, D_h = case.sizes(5)
    D = H * D_h
    ours, theirs = multi_head(case, attention, D, H, bias=True)
    X, memory = case.randn(B, N_Q, D).requires_grad_(), case.randn(B, N_X, D).requires_grad_()
    seen = case.randn(B, N_Q, D)
    expected, _ = torchs_heads(theirs, X, memory)
    inputs = [X, memory, theirs.in_proj_weight, theirs.out_proj.weight]
    by_X, by_memory, in_proj, out_proj = torch.autograd.grad(expected, inputs, seen)
    Y = ours(X, memory)
    case.shape(Y, (B, N_Q, D), "Y")
    case.trains(Y, "Y")
    Y.backward(seen)
    own = dict(ours.named_parameters())
    by_Q, by_K, by_V = in_proj.chunk(3)
    tensors = [X, memory, own["W_Q"], own["W_K"], own["W_V"], own["W_O"]]
    names = ["X", "memory", "W_Q", "W_K", "W_V", "W_O"]
    wanted = [by_X, by_memory, by_Q.T, by_K.T, by_V.T, out_proj.T]
    for name, tensor, gradient in zip(names, tensors, wanted, strict=True):
        case.gradient(tensor, gradient, name)
    case.learns(ours)


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
    case.finite_gradient(X, "X")
    case.learns(ours)


@check(MultiHeadAttention, see="Several heads at once")
def one_head(attention, case):
    """agrees with torch.nn.MultiheadAttention for one head and for one sequence"""
    N_Q, N_X, D = case.sizes(3)
    ours, theirs = multi_head(case, attention, D, 1)
    X, memory = case.randn(1, N_Q, D), case.randn(1, N_X, D)
    case.equal(ours(X, memory), torchs_heads(theirs, X, memory)[0], "Y")
    memory = case.randn(1, N_Q, D)
    case.equal(ours(X, memory), torchs_heads(theirs, X, memory)[0], "Y from as many vectors")


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


SIZES = [(5, 3, 3), (12, 4, 5), (9, 10, 7), (30, 2, 3), (17, 6, 9), (2, 5, 3), (8, 7, 5)]  # T, D, k


def demand_counts(case: Case, cost, layer: str, count: str, expected: list[float]) -> None:
    """Demand one of the student's counts at all SIZES; name the first size where it is wrong."""
    found = []
    for result in of_each(cost, SIZES):
        row = result.get(layer) if isinstance(result, dict) else None
        value = row.get(count) if isinstance(row, dict) else None
        case.that(
            isinstance(value, (int, float)),
            f'The result should hold a number at ["{layer}"]["{count}"], yours does not.',
        )
        found.append(float(value))
    pairs = zip(SIZES, found, expected, strict=True)
    T, D, k = next((size for size, given, right in pairs if given != right), SIZES[0])
    what = f"{count} of {layer} for T, D, k = {T}, {D}, {k}"
    numbers = torch.tensor([found, expected], dtype=torch.float64)
    case.equal(numbers[0], numbers[1], what)


def products(run) -> float:
    """Let torch count the multiply-adds of what a function does."""
    from torch.utils.flop_counter import FlopCounterMode  # late: it takes half a second

    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() / 2


def rnn_products(T: int, D: int, k: int) -> float:
    W_x, W_h, x = torch.zeros(D, D), torch.zeros(D, D), torch.zeros(1, D)
    return T * products(lambda: [x @ W_x, x @ W_h])


def convolution_products(T: int, D: int, k: int) -> float:
    X, W = torch.zeros(1, D, T), torch.zeros(D, D, k)
    return products(lambda: F.conv1d(X, W, padding=k // 2))


def attention_products(T: int, D: int, k: int) -> float:
    X, W = torch.zeros(1, T, D), torch.zeros(3, D, D)
    return products(lambda: F.scaled_dot_product_attention(X @ W[0], X @ W[1], X @ W[2]))


def layers_to_the_end(T: int, k: int) -> int:
    """Count the convolutions until a signal has spread from the first position to the last."""
    reached, layers = F.one_hot(torch.tensor(0), T).double()[None], 0
    while not reached[0, -1]:
        reached, layers = F.max_pool1d(reached, k, stride=1, padding=k // 2), layers + 1
    return layers


@check(attention_cost, see="Three layers, three costs")
def rnn(cost, case):
    """counts the RNN's multiply-adds and memory"""
    demand_counts(case, cost, "rnn", "multiply_adds", [rnn_products(*size) for size in SIZES])
    demand_counts(case, cost, "rnn", "memory", [torch.empty(T, D).numel() for T, D, _ in SIZES])


@check(attention_cost, see="Three layers, three costs")
def convolution(cost, case):
    """counts the convolution's multiply-adds and memory"""
    expected = [convolution_products(*size) for size in SIZES]
    demand_counts(case, cost, "convolution", "multiply_adds", expected)
    demand_counts(
        case, cost, "convolution", "memory", [torch.empty(T, D).numel() for T, D, _ in SIZES]
    )


@check(attention_cost, weight=2, see="Three layers, three costs")
def self_attention(cost, case):
    """counts self-attention's multiply-adds, as torch does, and memory"""
    expected = [attention_products(*size) for size in SIZES]
    demand_counts(case, cost, "self-attention", "multiply_adds", expected)
    named = [(torch.empty(4, T, D), torch.empty(T, T)) for T, D, _ in SIZES]  # Q K V Y, A
    expected = [vectors.numel() + A.numel() for vectors, A in named]
    demand_counts(case, cost, "self-attention", "memory", expected)


@check(attention_cost, weight=2, see="Three layers, three costs")
def path_length(cost, case):
    """counts the applications between the first input and the last output"""
    demand_counts(case, cost, "rnn", "path_length", [T for T, _, _ in SIZES])
    expected = [layers_to_the_end(T, k) for T, _, k in SIZES]
    demand_counts(case, cost, "convolution", "path_length", expected)
    demand_counts(case, cost, "self-attention", "path_length", [1 for _ in SIZES])


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


@check(split_heads_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "split_heads", sliced)
