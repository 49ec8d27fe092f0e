"""Known wrong solutions of linear_attention."""

import math

import torch
from torch.nn import functional

from autograder.bugs import bug, changed, equivalent
from course_pkg.attention import causal_mask, masked_softmax, merge_heads, split_heads
from course_pkg.linear_attention import (
    HybridDecoder,
    TokenMixer,
    chunked_scan,
    delta_rule,
    discretise,
    gated_recurrence,
    linear_attention,
    parallel_scan,
    recurrent_linear_attention,
    rwkv_time_mixing,
    selective_state_space,
    short_convolution,
    state_bytes,
)

sigmoid, softplus = torch.sigmoid, functional.softplus


def phi(X):
    return functional.elu(X) + 1


def one_for_none(total):
    """Replace sums of no weights, which nothing can be divided by."""
    return total.masked_fill(total == 0, 1)


def shared(A, dim=-1):
    """Divide weights by their sum."""
    return A / one_for_none(A.sum(dim, keepdim=True))


def attend(Q, K, V, normalised):
    """Attend with the features given."""
    A = (Q @ K.mT).tril()
    return (shared(A) if normalised else A) @ V


@bug(linear_attention, "φ is left out")
def no_features(Q, K, V, normalised=True):
    return attend(Q, K, V, normalised)


@bug(linear_attention, "φ is the elu alone, without + 1")
def elu_alone(Q, K, V, normalised=True):
    return attend(functional.elu(Q), functional.elu(K), V, normalised)


@bug(linear_attention, "φ is the exponential function")
def exponential(Q, K, V, normalised=True):
    return attend(Q.exp(), K.exp(), V, normalised)


@bug(linear_attention, "φ is relu(x) + 1")
def relu(Q, K, V, normalised=True):
    return attend(Q.relu() + 1, K.relu() + 1, V, normalised)


@bug(linear_attention, "φ is applied to the keys alone, not to the queries")
def keys_alone(Q, K, V, normalised=True):
    return attend(Q, phi(K), V, normalised)


@bug(linear_attention, "φ is applied to the values too")
def values_too(Q, K, V, normalised=True):
    return linear_attention(Q, K, phi(V), normalised)


@bug(linear_attention, "every step attends to all steps, those after it too", classic=True)
def not_causal(Q, K, V, normalised=True):
    A = phi(Q) @ phi(K).mT
    return (shared(A) if normalised else A) @ V


@bug(
    linear_attention, "the sum below the line runs over all steps, those after it too", classic=True
)
def future_in_the_sum(Q, K, V, normalised=True):
    A = phi(Q) @ phi(K).mT
    return (shared(A) if normalised else A).tril() @ V


@bug(linear_attention, "a step does not attend to itself")
def not_itself(Q, K, V, normalised=True):
    A = (phi(Q) @ phi(K).mT).tril(-1)
    return (A / A.sum(dim=-1, keepdim=True) if normalised else A) @ V


@bug(linear_attention, "a softmax normalises the weights")
def with_softmax(Q, K, V, normalised=True):
    A = phi(Q) @ phi(K).mT
    future = torch.ones_like(A, dtype=torch.bool).triu(1)
    weights = A.masked_fill(future, -math.inf).softmax(dim=-1) if normalised else A.tril()
    return weights @ V


@bug(linear_attention, "the weights of each key sum to one, not those of each query")
def over_queries(Q, K, V, normalised=True):
    A = (phi(Q) @ phi(K).mT).tril()
    return (shared(A, dim=-2) if normalised else A) @ V


@bug(linear_attention, "it is always normalised")
def always(Q, K, V, normalised=True):
    return linear_attention(Q, K, V)


@bug(linear_attention, "normalised is read the wrong way round")
def reversed_choice(Q, K, V, normalised=True):
    return linear_attention(Q, K, V, not normalised)


@bug(linear_attention, "it is never normalised")
def never(Q, K, V, normalised=True):
    return linear_attention(Q, K, V, normalised=False)


@bug(linear_attention, "the sum is divided by the number of steps")
def by_steps(Q, K, V, normalised=True):
    Y = linear_attention(Q, K, V, normalised=False)
    return Y / torch.arange(1, Q.shape[2] + 1, dtype=Y.dtype)[:, None] if normalised else Y


@bug(linear_attention, "where all weights are 0, their sum divides: 0/0 is NaN", told_by="is nan")
def divides_by_zero(Q, K, V, normalised=True):
    A = (phi(Q) @ phi(K).mT).tril()
    return (A / A.sum(dim=-1, keepdim=True) if normalised else A) @ V


@bug(linear_attention, "more than 1e-6 is added to the sum of the weights")
def large_epsilon(Q, K, V, normalised=True):
    A = (phi(Q) @ phi(K).mT).tril()
    return (A / (A.sum(dim=-1, keepdim=True) + 1e-3) if normalised else A) @ V


def outer(k, v):
    return k[..., :, None] * v[..., None, :]


def read(q, S):
    return (q[..., None, :] @ S)[..., 0, :]


def add_up(
    Q,
    K,
    V,
    state,
    normalised,
    late=False,
    write=lambda S, k, v: S + outer(k, v),
    weigh=lambda z, q, k: z + k,
    total=lambda q, z: one_for_none((q * z).sum(dim=-1, keepdim=True)),
):
    """Run linear attention with the features given."""
    B, H, _, D = K.shape
    S, z = state if state is not None else (K.new_zeros(B, H, D, V.shape[-1]), K.new_zeros(B, H, D))
    outputs = []
    for q, k, v in zip(Q.unbind(2), K.unbind(2), V.unbind(2), strict=True):
        before = S, z
        S, z = write(S, k, v), weigh(z, q, k)
        use_S, use_z = before if late else (S, z)
        y = read(q, use_S)
        outputs.append(y / total(q, use_z) if normalised else y)
    return torch.stack(outputs, dim=2), (S, z)


@bug(recurrent_linear_attention, "a step is read before it is written", classic=True)
def reads_first(Q, K, V, state=None, normalised=True):
    def total(q, z):
        return (q * z).sum(dim=-1, keepdim=True)  # 0 at the first step

    return add_up(phi(Q), phi(K), V, state, normalised, late=True, total=total)


@bug(
    recurrent_linear_attention, "S is read before the step is written, and z after it", classic=True
)
def reads_matrix_first(Q, K, V, state=None, normalised=True):
    Q, K = phi(Q), phi(K)
    Y, end = add_up(Q, K, V, state, normalised=False, late=True)
    z = K.cumsum(dim=2) + (0 if state is None else state[1][:, :, None])
    return Y / one_for_none((Q * z).sum(dim=-1, keepdim=True)) if normalised else Y, end


@bug(recurrent_linear_attention, "φ is left out")
def no_features(Q, K, V, state=None, normalised=True):
    return add_up(Q, K, V, state, normalised)


@bug(recurrent_linear_attention, "φ is left out of the queries")
def keys_alone(Q, K, V, state=None, normalised=True):
    return add_up(Q, phi(K), V, state, normalised)


@bug(recurrent_linear_attention, "the given state is not used: it starts from zeros", classic=True)
def starts_again(Q, K, V, state=None, normalised=True):
    return recurrent_linear_attention(Q, K, V, None, normalised)


@bug(recurrent_linear_attention, "z starts from zeros, whatever the given state says")
def z_starts_again(Q, K, V, state=None, normalised=True):
    state = None if state is None else (state[0], torch.zeros_like(state[1]))
    return recurrent_linear_attention(Q, K, V, state, normalised)


@bug(recurrent_linear_attention, "S holds the last step alone: nothing is added up")
def last_alone(Q, K, V, state=None, normalised=True):
    return add_up(phi(Q), phi(K), V, state, normalised, write=lambda S, k, v: outer(k, v))


@bug(recurrent_linear_attention, "z holds the last key alone: nothing is added up")
def last_key(Q, K, V, state=None, normalised=True):
    return add_up(phi(Q), phi(K), V, state, normalised, weigh=lambda z, q, k: k)


@bug(recurrent_linear_attention, "z adds up the queries, not the keys")
def adds_queries(Q, K, V, state=None, normalised=True):
    return add_up(phi(Q), phi(K), V, state, normalised, weigh=lambda z, q, k: z + q)


@bug(recurrent_linear_attention, "the output is divided by the sum of z, without φ(q)")
def sum_of_z(Q, K, V, state=None, normalised=True):
    def total(q, z):
        return one_for_none(z.sum(dim=-1, keepdim=True))

    return add_up(phi(Q), phi(K), V, state, normalised, total=total)


@bug(
    recurrent_linear_attention,
    "where all features are 0, z · φ(q) divides: 0/0 is NaN",
    told_by="is nan",
)
def divides_by_zero(Q, K, V, state=None, normalised=True):
    def total(q, z):
        return (q * z).sum(dim=-1, keepdim=True)

    return add_up(phi(Q), phi(K), V, state, normalised, total=total)


@bug(recurrent_linear_attention, "it is always normalised")
def always(Q, K, V, state=None, normalised=True):
    return recurrent_linear_attention(Q, K, V, state)


@bug(recurrent_linear_attention, "normalised is read the wrong way round")
def reversed_choice(Q, K, V, state=None, normalised=True):
    return recurrent_linear_attention(Q, K, V, state, not normalised)


@bug(recurrent_linear_attention, "it is never normalised")
def never(Q, K, V, state=None, normalised=True):
    return recurrent_linear_attention(Q, K, V, state, normalised=False)


@bug(recurrent_linear_attention, "the state is that before the last step")
def one_behind(Q, K, V, state=None, normalised=True):
    Y, _ = recurrent_linear_attention(Q, K, V, state, normalised)
    B, H, _, D = K.shape
    if K.shape[2] > 1:
        before = (part[:, :, :-1] for part in (Q, K, V))
        return Y, recurrent_linear_attention(*before, state)[1]
    return Y, state or (K.new_zeros(B, H, D, V.shape[-1]), K.new_zeros(B, H, D))


@bug(recurrent_linear_attention, "S is transposed: D_V × D", told_by="S should have shape")
def transposed(Q, K, V, state=None, normalised=True):
    Y, (S, z) = recurrent_linear_attention(Q, K, V, state, normalised)
    return Y, (S.mT, z)


@bug(recurrent_linear_attention, "the given state is changed in place")
def in_place(Q, K, V, state=None, normalised=True):
    Y, (S, z) = recurrent_linear_attention(Q, K, V, state, normalised)
    if state is not None:
        with torch.no_grad():
            S, z = state[0].copy_(S), state[1].copy_(z)
    return Y, (S, z)


@bug(recurrent_linear_attention, "the state is detached: no gradient passes from step to step")
def detached(Q, K, V, state=None, normalised=True):
    def write(S, k, v):
        return S.detach() + outer(k, v)

    return add_up(phi(Q), phi(K), V, state, normalised, write=write)


def replace(Q, K, V, beta, S, write, late=False):
    """Run a rule for writing; `write` gets S, k, v, β and q, all with axes for a matrix."""
    if S is None:
        S = K.new_zeros(*K.shape[:2], K.shape[-1], V.shape[-1])
    outputs = []
    for t in range(K.shape[2]):
        q, k, v = Q[:, :, t, None], K[:, :, t, :, None], V[:, :, t, None]
        before = S
        S = write(S, k, v, beta[:, :, t, None, None], q)
        outputs.append(q @ (before if late else S))
    return torch.cat(outputs, dim=2), S


def right(S, k, v, b, q):
    return S + b * k * (v - k.mT @ S)


@bug(delta_rule, "the new value is added to what is held, and nothing is erased", classic=True)
def only_adds(Q, K, V, beta, S=None):
    return replace(Q, K, V, beta, S, lambda S, k, v, b, q: S + b * k * v)


@bug(delta_rule, "what is held is added to the value instead of subtracted from it")
def wrong_sign(Q, K, V, beta, S=None):
    return replace(Q, K, V, beta, S, lambda S, k, v, b, q: S + b * k * (v + k.mT @ S))


@bug(delta_rule, "β is left out")
def no_beta(Q, K, V, beta, S=None):
    return delta_rule(Q, K, V, torch.ones_like(beta), S)


@bug(delta_rule, "β multiplies the value alone: all that is held is erased")
def erases_all(Q, K, V, beta, S=None):
    return replace(Q, K, V, beta, S, lambda S, k, v, b, q: S + k * (b * v - k.mT @ S))


@bug(delta_rule, "β multiplies what is held alone: all of the value is written")
def writes_all(Q, K, V, beta, S=None):
    return replace(Q, K, V, beta, S, lambda S, k, v, b, q: S + k * (v - b * (k.mT @ S)))


@bug(delta_rule, "the whole memory fades by 1 - β, whatever the key")
def fades(Q, K, V, beta, S=None):
    return replace(Q, K, V, beta, S, lambda S, k, v, b, q: (1 - b) * S + b * k * v)


@bug(delta_rule, "what is held is read with the query, not with the key", classic=True)
def reads_with_query(Q, K, V, beta, S=None):
    return replace(Q, K, V, beta, S, lambda S, k, v, b, q: S + b * k * (v - q @ S))


@bug(delta_rule, "a step is read before it is written")
def reads_first(Q, K, V, beta, S=None):
    return replace(Q, K, V, beta, S, right, late=True)


@bug(delta_rule, "the keys are made unit vectors, which they need not be")
def unit_keys(Q, K, V, beta, S=None):
    return delta_rule(Q, functional.normalize(K, dim=-1), V, beta, S)


@bug(delta_rule, "β goes through σ once more")
def sigmoid_again(Q, K, V, beta, S=None):
    return delta_rule(Q, K, V, sigmoid(beta), S)


@bug(delta_rule, "the given state is not used: it starts from zeros")
def starts_again(Q, K, V, beta, S=None):
    return delta_rule(Q, K, V, beta)


@bug(delta_rule, "the given state is changed in place")
def in_place(Q, K, V, beta, S=None):
    Y, end = delta_rule(Q, K, V, beta, S)
    if S is not None:
        with torch.no_grad():
            end = S.copy_(end)
    return Y, end


@bug(delta_rule, "what is held is detached: no gradient passes through it")
def detached(Q, K, V, beta, S=None):
    def write(S, k, v, b, q):
        return S + b * k * (v - (k.mT @ S).detach())

    return replace(Q, K, V, beta, S, write)


def gate(Q, K, V, decay, S, write=lambda S, g, k, v: g * S + k * v, late=False):
    """Run a gated recurrence; `write` gets S, γ, k and v with axes for a matrix."""
    decay = decay.expand(K.shape)
    if S is None:
        S = K.new_zeros(*K.shape[:2], K.shape[-1], V.shape[-1])
    outputs = []
    for t in range(K.shape[2]):
        before = S
        S = write(S, decay[:, :, t, :, None], K[:, :, t, :, None], V[:, :, t, None])
        outputs.append(Q[:, :, t, None] @ (before if late else S))
    return torch.cat(outputs, dim=2), S


@bug(gated_recurrence, "what is written decays at once: γ multiplies the new too", classic=True)
def new_decays(Q, K, V, decay, S=None):
    return gate(Q, K, V, decay, S, lambda S, g, k, v: g * (S + k * v))


@bug(gated_recurrence, "1 - γ of the new is written, as a mean would")
def moving_mean(Q, K, V, decay, S=None):
    return gate(Q, K, V, decay, S, lambda S, g, k, v: g * S + (1 - g) * k * v)


@bug(gated_recurrence, "γ is what is forgotten, not what remains", classic=True)
def forgets(Q, K, V, decay, S=None):
    return gated_recurrence(Q, K, V, 1 - decay, S)


@bug(gated_recurrence, "γ is what is forgotten, and γ of the new is written, as a mean would")
def other_mean(Q, K, V, decay, S=None):
    return gate(Q, K, V, decay, S, lambda S, g, k, v: (1 - g) * S + g * k * v)


@bug(gated_recurrence, "nothing decays")
def never_decays(Q, K, V, decay, S=None):
    return gated_recurrence(Q, K, V, torch.ones_like(decay), S)


@bug(gated_recurrence, "γ goes through σ")
def through_sigmoid(Q, K, V, decay, S=None):
    return gated_recurrence(Q, K, V, sigmoid(decay), S)


@bug(gated_recurrence, "γ is taken for the logarithm of a decay")
def taken_for_logarithm(Q, K, V, decay, S=None):
    return gated_recurrence(Q, K, V, decay.exp(), S)


@bug(gated_recurrence, "all rows of a head decay alike, by the mean of their γ")
def rows_alike(Q, K, V, decay, S=None):
    return gated_recurrence(Q, K, V, decay.mean(dim=-1, keepdim=True), S)


@bug(gated_recurrence, "γ of the first step is used at all steps")
def first_gate(Q, K, V, decay, S=None):
    return gated_recurrence(Q, K, V, decay.expand(K.shape)[:, :, :1], S)


@bug(gated_recurrence, "γ of the next step is used at each step")
def next_gate(Q, K, V, decay, S=None):
    return gated_recurrence(Q, K, V, decay.expand(K.shape).roll(-1, dims=2), S)


@bug(gated_recurrence, "the given state does not decay at the first step")
def first_state_stays(Q, K, V, decay, S=None):
    decay = decay.expand(K.shape).clone()
    decay[:, :, 0] = 1
    return gated_recurrence(Q, K, V, decay, S)


@bug(gated_recurrence, "a step is read before it is written")
def reads_first(Q, K, V, decay, S=None):
    return gate(Q, K, V, decay, S, late=True)


@bug(gated_recurrence, "the given state is not used: it starts from zeros")
def starts_again(Q, K, V, decay, S=None):
    return gated_recurrence(Q, K, V, decay)


@bug(gated_recurrence, "what is written is not added to what remains: it replaces it")
def nothing_remains(Q, K, V, decay, S=None):
    return gate(Q, K, V, decay, S, lambda S, g, k, v: k * v + 0 * S)


@bug(gated_recurrence, "the given state is changed in place")
def in_place(Q, K, V, decay, S=None):
    Y, end = gated_recurrence(Q, K, V, decay, S)
    if S is not None:
        with torch.no_grad():
            end = S.copy_(end)
    return Y, end


@bug(gated_recurrence, "no gradient passes to the decay", told_by="No gradient reaches decay:")
def detached(Q, K, V, decay, S=None):
    return gated_recurrence(Q, K, V, decay.detach(), S)


@bug(discretise, "K̄ is of first order, Δ k, where the exact one is asked for", classic=True)
def always_first_order(delta, A, K, exact=True):
    return discretise(delta, A, K, exact=False)


@bug(discretise, "exact is read the wrong way round")
def reversed_choice(delta, A, K, exact=True):
    return discretise(delta, A, K, not exact)


@bug(discretise, "K̄ is exact where first order is asked for")
def always_exact(delta, A, K, exact=True):
    return discretise(delta, A, K)


@bug(
    discretise,
    "one is subtracted from the exponential, which loses all digits",
    told_by="exp(Δ A) rounds to 1",
    classic=True,
)
def loses_digits(delta, A, K, exact=True):
    decay, write = discretise(delta, A, K, exact)
    return decay, (decay - 1) / A * K[:, :, None] if exact else write


@bug(discretise, "K̄ is of first order where Δ A is small, but not small enough")
def first_order_below(delta, A, K, exact=True):
    decay, write = discretise(delta, A, K, exact)
    rate, first = delta[..., None] * A, discretise(delta, A, K, exact=False)[1]
    return decay, torch.where(rate.abs() < 1e-2, first, write)


@bug(discretise, "Ā is of first order: 1 + Δ A")
def linear_decay(delta, A, K, exact=True):
    return 1 + delta[..., None] * A, discretise(delta, A, K, exact)[1]


@bug(discretise, "Ā is exp(A): Δ is left out")
def no_delta(delta, A, K, exact=True):
    decay, write = discretise(delta, A, K, exact)
    return A.exp().expand_as(decay), write


@bug(discretise, "the sign of A is reversed in Ā")
def grows(delta, A, K, exact=True):
    decay, write = discretise(delta, A, K, exact)
    return 1 / decay, write


@bug(discretise, "K̄ is not divided by A")
def not_divided(delta, A, K, exact=True):
    decay, write = discretise(delta, A, K, exact)
    return decay, write * A if exact else write


@bug(discretise, "K̄ is divided by Δ A instead of A")
def divided_twice(delta, A, K, exact=True):
    decay, write = discretise(delta, A, K, exact)
    return decay, write / delta[..., None] if exact else write


@bug(discretise, "k is left out of K̄")
def no_key(delta, A, K, exact=True):
    return discretise(delta, A, torch.ones_like(K), exact)


@bug(discretise, "K̄ is multiplied by Ā, as if the input came at the step's beginning")
def decays_at_once(delta, A, K, exact=True):
    decay, write = discretise(delta, A, K, exact)
    return decay, decay * write


@bug(discretise, "the bilinear rule gives Ā: (1 + Δ A / 2) / (1 - Δ A / 2)")
def bilinear(delta, A, K, exact=True):
    half = delta[..., None] * A / 2
    return (1 + half) / (1 - half), discretise(delta, A, K, exact)[1]


@bug(discretise, "Ā is of first order where K̄ is")
def both_first_order(delta, A, K, exact=True):
    decay, write = discretise(delta, A, K, exact)
    return decay if exact else 1 + delta[..., None] * A, write


@bug(discretise, "no gradient passes to A", told_by="No gradient reaches A:")
def detached(delta, A, K, exact=True):
    return discretise(delta, A.detach(), K, exact)


def select(X, delta, A, K, Q, skip, h, exact=False, late=False, write=None):
    """Run a selective state space."""
    decay, written = discretise(delta, A, K, exact)
    written = written if write is None else write
    if h is None:
        h = torch.zeros_like(decay[:, 0])
    outputs = []
    for t in range(X.shape[1]):
        before = h
        h = decay[:, t] * h + written[:, t] * X[:, t, :, None]
        outputs.append(torch.einsum("bdn,bn->bd", before if late else h, Q[:, t]) + skip * X[:, t])
    return torch.stack(outputs, dim=1), h


@bug(selective_state_space, "K̄ is the exact one, not that of first order")
def exact_write(X, delta, A, K, Q, skip, h=None):
    return select(X, delta, A, K, Q, skip, h, exact=True)


@bug(selective_state_space, "Δ is left out of what is written: K̄ = k", classic=True)
def no_delta(X, delta, A, K, Q, skip, h=None):
    write = K[:, :, None].expand(*delta.shape, -1)
    return select(X, delta, A, K, Q, skip, h, write=write)


@bug(selective_state_space, "the input does not pass by the state: skip is left out")
def no_skip(X, delta, A, K, Q, skip, h=None):
    return selective_state_space(X, delta, A, K, Q, 0 * skip, h)


@bug(selective_state_space, "skip is added as it is, not times the input")
def bare_skip(X, delta, A, K, Q, skip, h=None):
    Y, h = selective_state_space(X, delta, A, K, Q, 0 * skip, h)
    return Y + skip, h


@bug(selective_state_space, "the state is read before the step is written")
def reads_first(X, delta, A, K, Q, skip, h=None):
    return select(X, delta, A, K, Q, skip, h, late=True)


@bug(selective_state_space, "the given state is not used: it starts from zeros")
def starts_again(X, delta, A, K, Q, skip, h=None):
    return selective_state_space(X, delta, A, K, Q, skip)


@bug(selective_state_space, "nothing decays: Ā is one")
def never_decays(X, delta, A, K, Q, skip, h=None):
    return selective_state_space(X, delta, 0 * A, K, Q, skip, h)


@bug(selective_state_space, "what is written with and read with are exchanged")
def exchanged(X, delta, A, K, Q, skip, h=None):
    return selective_state_space(X, delta, A, Q, K, skip, h)


@bug(
    selective_state_space,
    "Δ of the first step is used at all steps: nothing is selected",
    classic=True,
)
def not_selective(X, delta, A, K, Q, skip, h=None):
    return selective_state_space(X, delta[:, :1].expand_as(delta), A, K, Q, skip, h)


@bug(selective_state_space, "Δ of the last step is used at all steps: nothing is selected")
def last_length(X, delta, A, K, Q, skip, h=None):
    return selective_state_space(X, delta[:, -1:].expand_as(delta), A, K, Q, skip, h)


@bug(selective_state_space, "all steps have the same length, the mean: nothing is selected")
def mean_length(X, delta, A, K, Q, skip, h=None):
    delta = delta.mean(dim=1, keepdim=True).expand_as(delta)
    return selective_state_space(X, delta, A, K, Q, skip, h)


@bug(selective_state_space, "all channels take steps of the same length, the mean")
def same_length(X, delta, A, K, Q, skip, h=None):
    delta = delta.mean(dim=2, keepdim=True).expand_as(delta)
    return selective_state_space(X, delta, A, K, Q, skip, h)


@bug(selective_state_space, "Δ does not enter the decay: Ā = exp(A)")
def constant_decay(X, delta, A, K, Q, skip, h=None):
    write = discretise(delta, A, K, exact=False)[1]
    return select(X, torch.ones_like(delta), A, K, Q, skip, h, write=write)


@bug(selective_state_space, "the numbers of the state are added up without being weighed by q")
def unweighted(X, delta, A, K, Q, skip, h=None):
    return selective_state_space(X, delta, A, K, torch.ones_like(Q), skip, h)


@bug(selective_state_space, "what is written decays at once: Ā multiplies the new too")
def new_decays(X, delta, A, K, Q, skip, h=None):
    decay, write = discretise(delta, A, K, exact=False)
    return select(X, delta, A, K, Q, skip, h, write=decay * write)


@bug(selective_state_space, "no gradient passes to Δ", told_by="No gradient reaches delta:")
def detached(X, delta, A, K, Q, skip, h=None):
    return selective_state_space(X, delta.detach(), A, K, Q, skip, h)


def levels(a, b, join, keep=None, grow=lambda step: 2 * step, enough=lambda step, T: step < T):
    """Scan in levels; `join` gets the earlier and the later entries."""
    step = 1
    while enough(step, a.shape[1]):
        first, second = (a[:, :-step], b[:, :-step]), (a[:, step:], b[:, step:])
        late_a, late_b = join(*first, *second)
        b = torch.cat([b[:, :step] if keep is None else keep(b[:, :step]), late_b], dim=1)
        a, step = torch.cat([a[:, :step], late_a], dim=1), grow(step)
    return b


def joined(a_1, b_1, a_2, b_2):
    return a_1 * a_2, a_2 * b_1 + b_2


@bug(parallel_scan, "the two entries are joined in the wrong order: a_1 b_2 + b_1", classic=True)
def wrong_order(a, b):
    return levels(a, b, lambda a_1, b_1, a_2, b_2: (a_1 * a_2, a_1 * b_2 + b_1))


@bug(parallel_scan, "the later b is multiplied by a_1, where a_2 should multiply the earlier one")
def earlier_a(a, b):
    return levels(a, b, lambda a_1, b_1, a_2, b_2: (a_1 * a_2, a_1 * b_1 + b_2))


@bug(parallel_scan, "the a are not multiplied from level to level", classic=True)
def same_a(a, b):
    return levels(a, b, lambda a_1, b_1, a_2, b_2: (a_2, a_2 * b_1 + b_2))


@bug(parallel_scan, "the a are joined before the b, which then meet the new ones")
def joins_a_first(a, b):
    return levels(a, b, lambda a_1, b_1, a_2, b_2: (a_1 * a_2, a_1 * a_2 * b_1 + b_2))


@bug(parallel_scan, "the distance grows by one from level to level, where it should double")
def grows_by_one(a, b):
    return levels(a, b, joined, grow=lambda step: step + 1)


@bug(parallel_scan, "one level too few is computed")
def too_few(a, b):
    return levels(a, b, joined, enough=lambda step, T: 2 * step < T)


@bug(parallel_scan, "the first entries of each level are left at zero")
def first_lost(a, b):
    return levels(a, b, joined, keep=lambda first: 0 * first)


@bug(
    parallel_scan,
    "one step is taken after the other, and rounding errors grow with T",
    classic=True,
)
def one_by_one(a, b):
    h, states = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, dim=1)


@bug(parallel_scan, "it divides by the product of all a, which may be zero", classic=True)
def by_division(a, b):
    product = a.cumprod(dim=1)
    return product * (b / product).cumsum(dim=1)


@bug(parallel_scan, "the a are left out: what is added is summed")
def plain_sum(a, b):
    return parallel_scan(torch.ones_like(a), b)


@bug(parallel_scan, "the states are those before each step: h_0 … h_{T-1}")
def exclusive(a, b):
    h = parallel_scan(a, b)
    return torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], dim=1)


@bug(parallel_scan, "it runs from the last step to the first")
def backwards(a, b):
    return parallel_scan(a.flip(1), b.flip(1)).flip(1)


@bug(parallel_scan, "a_t multiplies what is added too: h_t = a_t (h_{t-1} + b_t)")
def new_decays(a, b):
    return parallel_scan(a, a * b)


@bug(parallel_scan, "a of the step before is used")
def late_a(a, b):
    return parallel_scan(a.roll(1, dims=1), b)


@bug(parallel_scan, "no gradient passes to a", told_by="No gradient reaches a:")
def detached(a, b):
    return parallel_scan(a.detach(), b)


def inside(total):
    """The weights between the steps of a chunk."""
    between = total[..., :, None] - total[..., None, :]
    future = torch.ones_like(between, dtype=torch.bool).triu(1)
    return between.masked_fill(future, -math.inf).exp()


def by_chunks(
    Q,
    K,
    V,
    log_decay,
    S,
    chunk,
    weigh=inside,
    old=lambda total: total.exp(),
    left=lambda total: (total[..., -1:] - total).exp(),
    end=lambda total: total[..., -1:].exp(),
    total=lambda g: g.cumsum(dim=-1),
):
    """Scan in chunks."""
    if chunk < 1:
        raise ValueError("chunk")
    if S is None:
        S = K.new_zeros(*K.shape[:2], K.shape[-1], V.shape[-1])
    outputs = []
    parts = (part.split(chunk, dim=2) for part in (Q, K, V, log_decay))
    for q, k, v, g in zip(*parts, strict=True):
        sums = total(g)
        outputs.append(old(sums)[..., None] * (q @ S) + (weigh(sums) * (q @ k.mT)) @ v)
        S = end(sums)[..., None] * S + (left(sums)[..., None] * k).mT @ v
    return torch.cat(outputs, dim=2), S


@bug(chunked_scan, "e^l_t is divided by e^l_s, which overflow where decay is strong", classic=True)
def overflows(Q, K, V, log_decay, S=None, chunk=16):
    def weigh(total):
        return (total.exp()[..., :, None] * (-total).exp()[..., None, :]).tril()

    return by_chunks(Q, K, V, log_decay, S, chunk, weigh=weigh)


@bug(
    chunked_scan,
    "the steps to come are masked after the exponential, so that gradients are NaN",
    classic=True,
    told_by="yours is nan",
)
def masked_late(Q, K, V, log_decay, S=None, chunk=16):
    def weigh(total):
        return (total[..., :, None] - total[..., None, :]).exp().tril()

    return by_chunks(Q, K, V, log_decay, S, chunk, weigh=weigh)


@bug(chunked_scan, "every chunk begins with an empty state")
def no_state(Q, K, V, log_decay, S=None, chunk=16):
    return by_chunks(Q, K, V, log_decay, S, chunk, old=lambda total: 0 * total)


@bug(
    chunked_scan,
    "every step is taken by itself, as `gated_recurrence` does",
    told_by="Is a matrix product taken inside each chunk?",
)
def step_by_step(Q, K, V, log_decay, S=None, chunk=16):
    if chunk < 1:
        raise ValueError("no steps in a chunk")
    return gated_recurrence(Q, K, V, log_decay.exp()[..., None], S)


@bug(
    chunked_scan,
    "the state before a chunk does not decay inside it, where it is read",
    classic=True,
)
def old_stays(Q, K, V, log_decay, S=None, chunk=16):
    return by_chunks(Q, K, V, log_decay, S, chunk, old=torch.ones_like)


@bug(chunked_scan, "the state does not decay from chunk to chunk")
def end_stays(Q, K, V, log_decay, S=None, chunk=16):
    return by_chunks(
        Q, K, V, log_decay, S, chunk, end=lambda total: torch.ones_like(total[..., -1:])
    )


@bug(chunked_scan, "what a chunk writes does not decay until its end")
def writes_stay(Q, K, V, log_decay, S=None, chunk=16):
    return by_chunks(Q, K, V, log_decay, S, chunk, left=torch.ones_like)


@bug(chunked_scan, "the old state decays one step too little where it is read")
def one_too_few(Q, K, V, log_decay, S=None, chunk=16):
    def old(total):
        return functional.pad(total[..., :-1], (1, 0)).exp()

    return by_chunks(Q, K, V, log_decay, S, chunk, old=old)


@bug(chunked_scan, "a step does not see what it writes itself")
def not_itself(Q, K, V, log_decay, S=None, chunk=16):
    return by_chunks(Q, K, V, log_decay, S, chunk, weigh=lambda total: inside(total).tril(-1))


@bug(chunked_scan, "inside a chunk, steps see those after them")
def not_causal(Q, K, V, log_decay, S=None, chunk=16):
    def weigh(total):
        return (total[..., :, None] - total[..., None, :]).exp()

    return by_chunks(Q, K, V, log_decay, S, chunk, weigh=weigh)


@bug(chunked_scan, "inside a chunk, nothing decays")
def constant_inside(Q, K, V, log_decay, S=None, chunk=16):
    return by_chunks(
        Q, K, V, log_decay, S, chunk, weigh=lambda total: inside(torch.zeros_like(total))
    )


@bug(chunked_scan, "log γ is taken for γ: its exponential is summed")
def taken_for_decay(Q, K, V, log_decay, S=None, chunk=16):
    return chunked_scan(Q, K, V, log_decay.exp(), S, chunk)


@bug(chunked_scan, "log γ is not summed over the steps")
def not_summed(Q, K, V, log_decay, S=None, chunk=16):
    return by_chunks(Q, K, V, log_decay, S, chunk, total=lambda g: g)


@bug(chunked_scan, "the given state is not used: it starts from zeros")
def starts_again(Q, K, V, log_decay, S=None, chunk=16):
    return chunked_scan(Q, K, V, log_decay, None, chunk)


@bug(
    chunked_scan, "the steps after the last whole chunk are dropped", told_by="Y should have shape"
)
def rest_dropped(Q, K, V, log_decay, S=None, chunk=16):
    whole = max(len(Q[0, 0]) // max(chunk, 1) * chunk, 1)
    cut = (part[:, :, :whole] for part in (Q, K, V, log_decay))
    _, end = chunked_scan(Q, K, V, log_decay, S, chunk)
    return chunked_scan(*cut, S, chunk)[0], end


@bug(chunked_scan, "the whole text is one chunk", told_by="Is `chunk` used")
def one_chunk(Q, K, V, log_decay, S=None, chunk=16):
    return chunked_scan(Q, K, V, log_decay, S, max(chunk, Q.shape[2]) if chunk > 0 else chunk)


@bug(chunked_scan, "a chunk without steps is not refused", told_by="should raise ValueError")
def not_refused(Q, K, V, log_decay, S=None, chunk=16):
    return chunked_scan(Q, K, V, log_decay, S, max(chunk, 1))


def mix(R, K, V, w, u, state, now=None, fade=None, gate=sigmoid, key=None, add=torch.logaddexp):
    """Mix as RWKV does; `now` gets u, k and log Σ α."""
    if state is None:
        mean, total = torch.zeros_like(K[:, 0]), torch.full_like(K[:, 0], -math.inf)
    else:
        mean, total = state
    outputs = []
    for r, k, v in zip(R.unbind(1), K.unbind(1), V.unbind(1), strict=True):
        share = sigmoid(u + k - total) if now is None else now(u, k, total)
        outputs.append(gate(r) * (mean + share * (v - mean)))
        faded = total - w if fade is None else fade(total)
        k = k if key is None else key(k)
        mean = mean + sigmoid(k - faded) * (v - mean)
        total = add(faded, k)
    return torch.stack(outputs, dim=1), (mean, total)


def add_exponentials(R, K, V, w, u, sums, normalised=True, key=lambda k: k, read=lambda past: past):
    """Mix as RWKV does, with the two sums as they are; return them too."""
    top, bottom = (torch.zeros_like(K[:, 0]),) * 2 if sums is None else sums
    outputs = []
    for r, k, v in zip(R.unbind(1), K.unbind(1), V.unbind(1), strict=True):
        now = (u + k).exp()
        y = read(top) + now * v
        outputs.append(sigmoid(r) * (y / (read(bottom) + now) if normalised else y))
        weight = key(k).exp()
        top, bottom = (-w).exp() * top + weight * v, (-w).exp() * bottom + weight
    return torch.stack(outputs, dim=1), (top, bottom)


def naive(R, K, V, w, u, state, **changes):
    """Mix as RWKV does, with sums of exponentials as they are, and the state that is wanted."""
    sums = None if state is None else (state[1].exp() * state[0], state[1].exp())
    Y, (top, bottom) = add_exponentials(R, K, V, w, u, sums, **changes)
    return Y, (top / bottom, bottom.log())


@bug(
    rwkv_time_mixing,
    "the exponentials are summed as they are, and overflow",
    classic=True,
    told_by="e^1000 is too large",
)
def overflows(R, K, V, w, u, state=None):
    return naive(R, K, V, w, u, state)


@bug(rwkv_time_mixing, "the exponentials are summed as they are, and overflow", classic=True)
def sum_overflows(R, K, V, w, u, state=None):
    return mix(R, K, V, w, u, state, add=lambda total, k: (total.exp() + k.exp()).log())


@bug(
    rwkv_time_mixing,
    "the largest key of the whole sequence is subtracted: earlier steps become 0/0",
    told_by="yours is nan",
)
def one_maximum(R, K, V, w, u, state=None):
    most = K.amax(dim=1)
    given = None if state is None else (state[0], state[1] - most)
    Y, (mean, total) = naive(R, K - most[:, None], V, w, u, given)
    return Y, (mean, total + most)


@bug(rwkv_time_mixing, "the state is the two sums, not the mean and the logarithm of the weights")
def sums_as_state(R, K, V, w, u, state=None):
    return add_exponentials(R, K, V, w, u, state)


@bug(rwkv_time_mixing, "the sum of the values is not divided by that of the weights")
def not_divided(R, K, V, w, u, state=None):
    _, end = rwkv_time_mixing(R, K, V, w, u, state)
    return naive(R, K, V, w, u, state, normalised=False)[0], end


@bug(rwkv_time_mixing, "u is left out")
def no_bonus(R, K, V, w, u, state=None):
    return rwkv_time_mixing(R, K, V, w, 0 * u, state)


@bug(rwkv_time_mixing, "u enters the state too, not the present step alone", classic=True)
def bonus_stays(R, K, V, w, u, state=None):
    return mix(R, K, V, w, u, state, key=lambda k: k + u)


@bug(rwkv_time_mixing, "u enters the state too, not the present step alone", classic=True)
def bonus_stays_in_sums(R, K, V, w, u, state=None):
    return naive(R, K, V, w, u, state, key=lambda k: k + u)


@bug(
    rwkv_time_mixing, "the past has decayed once more where it is read: by (t - s) w", classic=True
)
def decays_early(R, K, V, w, u, state=None):
    return mix(R, K, V, w, u, state, now=lambda u, k, total: sigmoid(u + k - (total - w)))


@bug(
    rwkv_time_mixing, "the past has decayed once more where it is read: by (t - s) w", classic=True
)
def decays_early_in_sums(R, K, V, w, u, state=None):
    return naive(R, K, V, w, u, state, read=lambda past: (-w).exp() * past)


@bug(
    rwkv_time_mixing, "the past has decayed once more where it is read: by (t - s) w", classic=True
)
def new_decays(R, K, V, w, u, state=None):
    def add(total, k):
        return torch.logaddexp(total, k) - w

    return mix(R, K, V, w, u, state, fade=lambda total: total, add=add)


@bug(rwkv_time_mixing, "nothing decays: w is left out")
def never_decays(R, K, V, w, u, state=None):
    return rwkv_time_mixing(R, K, V, 0 * w, u, state)


@bug(rwkv_time_mixing, "the past grows by w at every step instead of fading")
def grows(R, K, V, w, u, state=None):
    return rwkv_time_mixing(R, K, V, -w, u, state)


@bug(rwkv_time_mixing, "w is taken for its own logarithm: e^w is subtracted")
def taken_for_logarithm(R, K, V, w, u, state=None):
    return rwkv_time_mixing(R, K, V, w.exp(), u, state)


@bug(rwkv_time_mixing, "w multiplies log Σ α instead of being subtracted from it")
def multiplied(R, K, V, w, u, state=None):
    return mix(R, K, V, w, u, state, fade=lambda total: total * w)


@bug(rwkv_time_mixing, "the receptance is left out")
def no_receptance(R, K, V, w, u, state=None):
    return mix(R, K, V, w, u, state, gate=torch.ones_like)


@bug(rwkv_time_mixing, "the receptance does not go through σ")
def raw_receptance(R, K, V, w, u, state=None):
    return mix(R, K, V, w, u, state, gate=lambda r: r)


@bug(rwkv_time_mixing, "the present step is left out of its own mean")
def not_itself(R, K, V, w, u, state=None):
    return mix(R, K, V, w, u, state, now=lambda u, k, total: torch.zeros_like(k))


@bug(rwkv_time_mixing, "the given state is not used: it starts anew")
def starts_again(R, K, V, w, u, state=None):
    return rwkv_time_mixing(R, K, V, w, u)


@bug(rwkv_time_mixing, "no gradient passes to the keys", told_by="No gradient reaches K:")
def detached(R, K, V, w, u, state=None):
    return rwkv_time_mixing(R, K.detach(), V, w, u, state)


@bug(short_convolution, "the taps are in reverse order: the first is for the present", classic=True)
def reversed_taps(X, taps, past=None):
    return short_convolution(X, taps.flip(1), past)


@bug(short_convolution, "it looks ahead: the zeros stand after the inputs", classic=True)
def looks_ahead(X, taps, past=None):
    T, W = X.shape[1], taps.shape[1]
    seen = functional.pad(X, (0, 0, 0, W - 1))
    Y = sum(taps[:, j] * seen[:, j : j + T] for j in range(W))
    return Y, short_convolution(X, taps, past)[1]


@bug(short_convolution, "it looks ahead: the zeros stand after the inputs", classic=True)
def looks_ahead_at_first(X, taps, past=None):
    return (looks_ahead if past is None else short_convolution)(X, taps, past)


@bug(short_convolution, "it looks ahead: the past stands after the inputs", classic=True)
def past_behind(X, taps, past=None):
    T, W = X.shape[1], taps.shape[1]
    if past is None:
        past = X.new_zeros(len(X), W - 1, X.shape[2])
    seen = torch.cat([X, past], dim=1)
    return sum(taps[:, j] * seen[:, j : j + T] for j in range(W)), past.clone()


@bug(short_convolution, "the given past is not used: zeros take its place")
def no_past(X, taps, past=None):
    return short_convolution(X, taps)


@bug(short_convolution, "the taps of the first feature are used for all")
def same_taps(X, taps, past=None):
    return short_convolution(X, taps[:1].expand_as(taps), past)


@bug(short_convolution, "the mean over the taps is taken")
def mean(X, taps, past=None):
    return short_convolution(X, taps / taps.shape[1], past)


@bug(short_convolution, "the outputs go through silu, which is the layer's work")
def activated(X, taps, past=None):
    Y, past = short_convolution(X, taps, past)
    return functional.silu(Y), past


@bug(short_convolution, "it is one step late: the present input is not used")
def late(X, taps, past=None):
    Y, end = short_convolution(X, taps, past)
    first = torch.zeros_like(X[:, :1]) if past is None else past[:, -1:]
    Y, _ = short_convolution(torch.cat([first, X[:, :-1]], dim=1), taps, past)
    return Y, end


@bug(short_convolution, "the first input is repeated before it, where zeros should stand")
def repeated(X, taps, past=None):
    if past is None:
        past = X[:, :1].expand(-1, taps.shape[1] - 1, -1)
    return short_convolution(X, taps, past)


@bug(short_convolution, "the first W-1 outputs are zero, as if they had no past")
def first_lost(X, taps, past=None):
    Y, end = short_convolution(X, taps, past)
    known = torch.arange(Y.shape[1]) >= taps.shape[1] - 1
    return Y * known[:, None], end


@bug(short_convolution, "what is kept are outputs, not inputs")
def keeps_outputs(X, taps, past=None):
    W = taps.shape[1]
    Y, _ = short_convolution(X, taps, past)
    before = X.new_zeros(len(X), W - 1, X.shape[2]) if past is None else past
    return Y, torch.cat([before, Y], dim=1)[:, X.shape[1] :]


@bug(short_convolution, "what is kept are the first inputs, not the last")
def keeps_the_first(X, taps, past=None):
    W = taps.shape[1]
    Y, _ = short_convolution(X, taps, past)
    before = X.new_zeros(len(X), W - 1, X.shape[2]) if past is None else past
    return Y, torch.cat([before, X], dim=1)[:, : W - 1]


@bug(short_convolution, "W inputs are kept, one too many", told_by="past should have shape")
def keeps_one_more(X, taps, past=None):
    Y, end = short_convolution(X, taps, past)
    before = torch.zeros_like(X[:, :1])
    return Y, torch.cat([before, end], dim=1)


@bug(
    short_convolution,
    "the past is forgotten where there are few new inputs",
    classic=True,
    told_by="past should have shape",
)
def keeps_too_few(X, taps, past=None):
    Y, end = short_convolution(X, taps, past)
    kept = min(X.shape[1], end.shape[1])
    return Y, X[:, X.shape[1] - kept :]


@bug(
    short_convolution,
    "where few inputs are new, zeros are kept in place of those before them",
    classic=True,
)
def keeps_zeros(X, taps, past=None):
    return short_convolution(X, taps, past)[0], short_convolution(X, taps)[1]


@bug(short_convolution, "no gradient passes to the taps", told_by="No gradient reaches taps:")
def detached(X, taps, past=None):
    return short_convolution(X, taps.detach(), past)


class Mixer(TokenMixer):
    """A layer whose steps can be changed one by one."""

    def features(self, X, past):
        F, past = short_convolution(X @ self.W_QKV, self.taps, past)
        return functional.silu(F), past

    def raw_gate(self, X):
        return (X @ self.W_gate + self.b_gate).mT

    def finish(self, Y):
        return merge_heads(self.norm(Y)) @ self.W_O

    def scores(self, Q, K):
        return Q @ K.mT / math.sqrt(Q.shape[-1])

    def allowed(self, T, past):
        return causal_mask(T, past)

    def attend(self, Q, K, V, memory):
        T, new = Q.shape[2], torch.cat([K, V], dim=-1)
        memory = new if memory is None else torch.cat([memory, new], dim=2)
        K, V = memory.chunk(2, dim=-1)
        return masked_softmax(self.scores(Q, K), self.allowed(T, K.shape[2] - T)) @ V, memory

    def key(self, K):
        return functional.normalize(K, dim=-1)

    def beta(self, gate):
        return sigmoid(gate)

    def phi(self, X):
        return phi(X)

    def gamma(self, Q):
        return 1 - 2 ** (-5 - torch.arange(self.H, dtype=Q.dtype))

    def length(self, gate):
        return softplus(gate)

    def rate(self):
        return self.log_a.exp()

    def write(self, delta, K):
        return delta[..., None] * K

    def recur(self, Q, K, V, gate, S):
        if self.rule == "delta":
            return delta_rule(Q, self.key(K), V, self.beta(gate), S)
        log_decay = torch.zeros_like(Q[..., 0])
        if self.rule == "add":
            Q, K = self.phi(Q), self.phi(K)
        elif self.rule == "decay":
            log_decay = log_decay + self.gamma(Q).log()[:, None]
        else:
            delta = self.length(gate)
            log_decay, K = -self.rate()[:, None] * delta, self.write(delta, K)
        return chunked_scan(Q, K, V, log_decay, S)

    def forward(self, X, state=None):
        memory, past = state if state is not None else (None, None)
        F, past = self.features(X, past)
        Q, K, V = (split_heads(part, self.H) for part in F.chunk(3, dim=-1))
        if self.rule == "softmax":
            Y, memory = self.attend(Q, K, V, memory)
        else:
            gate = self.raw_gate(X) if self.rule in ("select", "delta") else None
            Y, memory = self.recur(Q, K, V, gate, memory)
        return self.finish(Y), (memory, past)


@bug(TokenMixer, "the scores of attention are not divided by √D_h")
class Unscaled(Mixer):
    def scores(self, Q, K):
        return Q @ K.mT


@bug(TokenMixer, "the scores of attention are divided by √D, not by √D_h")
class ScaledByAll(Mixer):
    def scores(self, Q, K):
        return Q @ K.mT / math.sqrt(self.H * Q.shape[-1])


@bug(TokenMixer, "attention sees the steps after its own")
class NotCausal(Mixer):
    def allowed(self, T, past):
        return torch.ones(T, past + T, dtype=torch.bool)


@bug(TokenMixer, "the mask counts new steps from 0, though the memory is before them", classic=True)
class MaskWithoutPast(Mixer):
    def allowed(self, T, past):
        return torch.ones(T, past + T, dtype=torch.bool).tril()


@bug(TokenMixer, "keys and values of before are not kept", told_by="memory should have shape")
class ForgetfulAttention(Mixer):
    def attend(self, Q, K, V, memory):
        return super().attend(Q, K, V, None)


@bug(TokenMixer, "the rule add has no φ")
class AddWithoutFeatures(Mixer):
    def phi(self, X):
        return X


@bug(TokenMixer, "all heads decay alike, with γ = 1 - 2^-5")
class OneDecay(Mixer):
    def gamma(self, Q):
        return torch.full((self.H,), 1 - 2.0**-5, dtype=Q.dtype)


@bug(TokenMixer, "the heads are counted from 1 in γ = 1 - 2^(-5 - h)")
class DecayFromOne(Mixer):
    def gamma(self, Q):
        return 1 - 2 ** (-6 - torch.arange(self.H, dtype=Q.dtype))


@bug(TokenMixer, "γ is 2^(-5 - h): what remains and what is forgotten are exchanged")
class DecayExchanged(Mixer):
    def gamma(self, Q):
        return 1 - super().gamma(Q)


@bug(TokenMixer, "Δ does not multiply the key in the rule select", classic=True)
class KeyWithoutDelta(Mixer):
    def write(self, delta, K):
        return K


@bug(TokenMixer, "Δ goes through σ, not softplus")
class SigmoidDelta(Mixer):
    def length(self, gate):
        return sigmoid(gate)


@bug(TokenMixer, "log_a is taken for a: its exponential is left out")
class RateWithoutExp(Mixer):
    def rate(self):
        return self.log_a


@bug(TokenMixer, "the keys of the rule delta do not have length one", classic=True)
class LongKeys(Mixer):
    def key(self, K):
        return K


@bug(TokenMixer, "β does not go through σ")
class RawBeta(Mixer):
    def beta(self, gate):
        return gate


@bug(TokenMixer, "b_gate is left out")
class NoBias(Mixer):
    def raw_gate(self, X):
        return (X @ self.W_gate).mT


@bug(TokenMixer, "the features do not go through silu")
class NoSilu(Mixer):
    def features(self, X, past):
        return short_convolution(X @ self.W_QKV, self.taps, past)


@bug(TokenMixer, "silu comes before the convolution")
class SiluFirst(Mixer):
    def features(self, X, past):
        F, _ = short_convolution(functional.silu(X @ self.W_QKV), self.taps, past)
        return F, super().features(X, past)[1]


@bug(TokenMixer, "the features are not convolved")
class NoConvolution(Mixer):
    def features(self, X, past):
        return functional.silu(X @ self.W_QKV), super().features(X, past)[1]


@bug(TokenMixer, "the convolution starts from zeros, whatever the state says")
class NoPast(Mixer):
    def features(self, X, past):
        return super().features(X, None)[0], super().features(X, past)[1]


@bug(TokenMixer, "the outputs are not normalised")
class NoNorm(Mixer):
    def finish(self, Y):
        return merge_heads(Y * self.norm.weight) @ self.W_O


@bug(TokenMixer, "W_O is left out")
class NoOutput(Mixer):
    def finish(self, Y):
        return merge_heads(self.norm(Y))


@bug(TokenMixer, "the norm is taken over all heads together, not in each", classic=True)
class NormOverAll(Mixer):
    def finish(self, Y):
        scale = (Y.square().mean(dim=(1, 3), keepdim=True) + 1e-5).rsqrt()
        return merge_heads(Y * scale * self.norm.weight) @ self.W_O


@bug(TokenMixer, "the memory starts from zeros, whatever the state says")
class NoMemory(Mixer):
    def recur(self, Q, K, V, gate, S):
        return super().recur(Q, K, V, gate, None)


@bug(TokenMixer, "a rule that does not exist is not refused", told_by="should raise ValueError")
class AnyRule(TokenMixer):
    def __init__(self, D, H, rule, width=4):
        super().__init__(D, H, rule if rule in self.RULES else "add", width)


@bug(TokenMixer, "the state is not returned", told_by="should return (Y, state)")
class NoState(Mixer):
    def forward(self, X, state=None):
        return super().forward(X, state)[0]


ATTENDED = "        return masked_softmax(Q @ K.mT / math.sqrt(D_h), mask) @ V, memory\n"
changed(
    TokenMixer,
    "Overflows",
    "large scores overflow: their exponentials are computed as they are",
    (
        ATTENDED,
        "        powers = (Q @ K.mT / math.sqrt(D_h)).exp() * mask\n"
        "        return powers / powers.sum(dim=-1, keepdim=True) @ V, memory\n",
    ),
    told_by="Y of queries and keys times 100 at [0, 0, 0, 0]",
)
changed(
    TokenMixer,
    "MinusBillion",
    "the steps after its own get a score of -1e9, which others may lie below",
    (
        ATTENDED,
        "        E = (Q @ K.mT / math.sqrt(D_h)).masked_fill(~mask, -1e9)\n"
        "        return torch.softmax(E, dim=-1) @ V, memory\n",
    ),
)
changed(
    TokenMixer,
    "BillionLess",
    "-1e9 is added to the scores of the steps after its own, which may be larger than that",
    (
        ATTENDED,
        "        E = Q @ K.mT / math.sqrt(D_h) - 1e9 * ~mask\n"
        "        return torch.softmax(E, dim=-1) @ V, memory\n",
    ),
)


class Decoder(HybridDecoder):
    """A decoder whose steps can be changed one by one."""

    def attends(self, n, every):
        return (n + 1) % every == 0

    def __init__(self, V, D, H, L, rule="select", every=None):
        super().__init__(V, D, H, L, rule)
        for n in range(L):
            if every and self.attends(n, every):
                self.mixers[n] = TokenMixer(D, H, "softmax")

    def state_of(self, states, n):
        return None if states is None else states[n]

    def layer(self, X, n, state):
        Y, state = self.mixers[n](self.norms[2 * n](X), state)
        X = X + Y
        return X + self.networks[n](self.norms[2 * n + 1](X)), state

    def score(self, X):
        return self.norm(X) @ self.W_head

    def forward(self, tokens, states=None):
        X, found = self.token(tokens), []
        for n in range(len(self.mixers)):
            X, state = self.layer(X, n, self.state_of(states, n))
            found.append(state)
        return self.score(X), found


LAYERS = "the layers of attention should be"


@bug(
    HybridDecoder,
    "the first of every few layers attends, not the last",
    classic=True,
    told_by=LAYERS,
)
class FirstAttends(Decoder):
    def attends(self, n, every):
        return n % every == 0


@bug(HybridDecoder, "no layer attends", told_by=LAYERS)
class NoneAttends(Decoder):
    def attends(self, n, every):
        return False


@bug(HybridDecoder, "all layers attend but one in every few", told_by=LAYERS)
class OthersAttend(Decoder):
    def attends(self, n, every):
        return (n + 1) % every != 0


@bug(HybridDecoder, "the first L // every layers attend", told_by=LAYERS)
class FirstFewAttend(Decoder):
    def attends(self, n, every):
        return n < len(self.mixers) // every


@bug(HybridDecoder, "the mixer's input is not normalised")
class MixerWithoutNorm(Decoder):
    def layer(self, X, n, state):
        Y, state = self.mixers[n](X, state)
        X = X + Y
        return X + self.networks[n](self.norms[2 * n + 1](X)), state


@bug(HybridDecoder, "the network's input is not normalised")
class NetworkWithoutNorm(Decoder):
    def layer(self, X, n, state):
        Y, state = self.mixers[n](self.norms[2 * n](X), state)
        X = X + Y
        return X + self.networks[n](X), state


@bug(HybridDecoder, "the mixer's output replaces its input, which is not added")
class NoResidual(Decoder):
    def layer(self, X, n, state):
        X, state = self.mixers[n](self.norms[2 * n](X), state)
        return X + self.networks[n](self.norms[2 * n + 1](X)), state


@bug(HybridDecoder, "the network's output replaces its input, which is not added")
class NoSecondResidual(Decoder):
    def layer(self, X, n, state):
        Y, state = self.mixers[n](self.norms[2 * n](X), state)
        return self.networks[n](self.norms[2 * n + 1](X + Y)), state


@bug(HybridDecoder, "the network sees what the mixer sees, not what it gives")
class SideBySide(Decoder):
    def layer(self, X, n, state):
        Y, state = self.mixers[n](self.norms[2 * n](X), state)
        return X + Y + self.networks[n](self.norms[2 * n + 1](X)), state


@bug(HybridDecoder, "norms come after the mixer and the network, not before", classic=True)
class NormAfter(Decoder):
    def layer(self, X, n, state):
        Y, state = self.mixers[n](X, state)
        X = self.norms[2 * n](X + Y)
        return self.norms[2 * n + 1](X + self.networks[n](X)), state


@bug(
    HybridDecoder,
    "what the mixer and the network give is normalised, not what they get",
    classic=True,
)
class NormOfOutputs(Decoder):
    def layer(self, X, n, state):
        Y, state = self.mixers[n](X, state)
        X = X + self.norms[2 * n](Y)
        return X + self.norms[2 * n + 1](self.networks[n](X)), state


@bug(HybridDecoder, "both halves of a layer have the same norm")
class SameNorm(Decoder):
    def layer(self, X, n, state):
        Y, state = self.mixers[n](self.norms[2 * n](X), state)
        X = X + Y
        return X + self.networks[n](self.norms[2 * n](X)), state


@bug(HybridDecoder, "the norms of mixers come first in the list, then those of networks")
class NormsApart(Decoder):
    def layer(self, X, n, state):
        Y, state = self.mixers[n](self.norms[n](X), state)
        X = X + Y
        return X + self.networks[n](self.norms[len(self.mixers) + n](X)), state


@bug(HybridDecoder, "the last norm is left out")
class NoLastNorm(Decoder):
    def score(self, X):
        return X @ self.W_head


@bug(HybridDecoder, "the states of before are not used")
class NoStates(Decoder):
    def state_of(self, states, n):
        return None


@bug(
    HybridDecoder,
    "only the state of the last layer is returned",
    told_by="should return (state of layer 0",
)
class LastState(Decoder):
    def forward(self, tokens, states=None):
        logits, found = super().forward(tokens, states)
        return logits, found[-1:]


@bug(HybridDecoder, "only the logits are returned", told_by="should return (logits, states)")
class OnlyLogits(Decoder):
    def forward(self, tokens, states=None):
        return super().forward(tokens, states)[0]


@bug(state_bytes, "all layers keep keys and values, the recurrent ones too")
def all_cache(T, D, H, L, every=None, width=4, size=4):
    found = state_bytes(T, D, H, L, every, width, size)
    return found | {"cache": L * 2 * D * T * size}


@bug(state_bytes, "keys alone are counted, and not values", classic=True)
def keys_alone(T, D, H, L, every=None, width=4, size=4):
    found = state_bytes(T, D, H, L, every, width, size)
    return found | {"cache": found["cache"] // 2}


def changed(T, D, H, L, every, width, size, *, matrix=None, layers=None, inputs=None):
    """Count with another size of a head's matrices, or number of layers, or of inputs."""
    found = state_bytes(T, D, H, L, every, width, size)
    attention = L // every if every else 0
    matrix = H * (D // H) ** 2 if matrix is None else matrix
    layers = L - attention if layers is None else layers
    inputs = L * (width - 1) * 3 * D if inputs is None else inputs
    return found | {"state": (layers * matrix + inputs) * size}


@bug(state_bytes, "the matrix has D × D numbers, as if there were one head", classic=True)
def one_head(T, D, H, L, every=None, width=4, size=4):
    return changed(T, D, H, L, every, width, size, matrix=D**2)


@bug(state_bytes, "each head's matrix has D × D numbers, not D_h × D_h")
def large_heads(T, D, H, L, every=None, width=4, size=4):
    return changed(T, D, H, L, every, width, size, matrix=H * D**2)


@bug(state_bytes, "the matrix of one head is counted, not those of all")
def first_head(T, D, H, L, every=None, width=4, size=4):
    return changed(T, D, H, L, every, width, size, matrix=(D // H) ** 2)


@bug(state_bytes, "layers of attention keep a matrix too")
def matrices_everywhere(T, D, H, L, every=None, width=4, size=4):
    return changed(T, D, H, L, every, width, size, layers=L)


@bug(state_bytes, "the inputs of the convolution are left out")
def no_inputs(T, D, H, L, every=None, width=4, size=4):
    return changed(T, D, H, L, every, width, size, inputs=0)


@bug(state_bytes, "as many inputs are kept as there are taps, one too many")
def one_input_more(T, D, H, L, every=None, width=4, size=4):
    return changed(T, D, H, L, every, width, size, inputs=L * width * 3 * D)


@bug(state_bytes, "the convolution's inputs have D numbers, not 3 D")
def narrow_inputs(T, D, H, L, every=None, width=4, size=4):
    return changed(T, D, H, L, every, width, size, inputs=L * (width - 1) * D)


@bug(state_bytes, "only recurrent layers keep inputs of the convolution")
def inputs_of_recurrent(T, D, H, L, every=None, width=4, size=4):
    layers = L - (L // every if every else 0)
    return changed(T, D, H, L, every, width, size, inputs=layers * (width - 1) * 3 * D)


@bug(state_bytes, "the layers of attention are rounded up: ⌈L / every⌉")
def rounded_up(T, D, H, L, every=None, width=4, size=4):
    if not every:
        return state_bytes(T, D, H, L, every, width, size)
    return state_bytes(T, D, H, L + -L % every, every, width, size) | {
        "state": changed(T, D, H, L, every, width, size, layers=L - -(-L // every))["state"]
    }


@bug(state_bytes, "numbers have four bytes, whatever size says")
def four_bytes(T, D, H, L, every=None, width=4, size=4):
    return state_bytes(T, D, H, L, every, width)


@bug(state_bytes, "numbers are counted, not bytes")
def numbers(T, D, H, L, every=None, width=4, size=4):
    return state_bytes(T, D, H, L, every, width, 1)


@bug(state_bytes, "heads of unequal size are not refused", told_by="should raise ValueError")
def not_refused(T, D, H, L, every=None, width=4, size=4):
    return state_bytes(T, D - D % H if D >= H else H, H, L, every, width, size)


@bug(state_bytes, "the two numbers are added up", told_by="The result should be a dict")
def one_number(T, D, H, L, every=None, width=4, size=4):
    return sum(state_bytes(T, D, H, L, every, width, size).values())


axes = "an axis of size 1 stands in the same place"
equivalent(
    recurrent_linear_attention,
    "S = S + k[..., :, None] * v[..., None, :] → S = S + k[:, ..., None] * v[..., None, :]",
    "k[:, ..., None] is k[..., :, None]",
)
equivalent(
    delta_rule,
    "new = V[:, :, t, None] - held → new = V[:, :, None, t] - held",
    axes,
)
equivalent(
    delta_rule,
    "S = S + beta[:, :, t, None, None] * k * new → S = S + beta[:, :, None, t, None] * k * new",
    axes,
)
equivalent(
    delta_rule,
    "outputs.append(Q[:, :, t, None] @ S) → outputs.append(Q[:, :, None, t] @ S)",
    axes,
)
write = "S = decay[:, :, t, :, None] * S + K[:, :, t, :, None] * V[:, :, "
equivalent(gated_recurrence, f"{write}t, None] → {write}None, t]", axes)
equivalent(
    gated_recurrence,
    "outputs.append(Q[:, :, t, None] @ S) → outputs.append(Q[:, :, None, t] @ S)",
    axes,
)
equivalent(
    parallel_scan,
    "while step < a.shape[1]: → while step <= a.shape[1]:",
    "with step = T, the level joins nothing",
)
for strict in ("", ", strict=False"):
    equivalent(
        chunked_scan,
        f"for q, k, v, g in zip(*parts, strict=True): → for q, k, v, g in zip(*parts{strict}):",
        "all four have as many chunks",
    )
equivalent(
    chunked_scan,
    "between = total[..., :, None] - total[..., None, :] → "
    "between = total[:, ..., None] - total[..., None, :]",
    "total[:, ..., None] is total[..., :, None]",
)
equivalent(
    chunked_scan,
    "S = total[..., -1:, None].exp() * S + (left * k).mT @ v → "
    "S = total[..., None, -1:].exp() * S + (left * k).mT @ v",
    axes,
)
start = "mean, log_weight = (torch.{}_like(K[:, 0]), torch.full_like(K[:, 0], -math.inf))"
equivalent(
    rwkv_time_mixing,
    f"{start.format('zeros')} → {start.format('ones')}",
    "without steps before, the mean of their values has no weight",
)
equivalent(
    rwkv_time_mixing,
    "log_weight = torch.logaddexp(faded, k) → log_weight = torch.logaddexp(k, faded)",
    "the sum is the same either way",
)
heads = "torch.arange(self.H, dtype=Q.dtype, device=Q.device)"
equivalent(
    TokenMixer,
    f"heads = {heads} → heads = torch.arange(self.H, dtype=Q.dtype)",
    "checks run on a CPU, which is torch's default device",
)
equivalent(
    TokenMixer,
    f"heads = {heads} → heads = vars(self).setdefault('heads', {heads})",
    "a layer has the same heads in all calls",
)
equivalent(
    TokenMixer,
    "gated = self.rule in ('select', 'delta') → gated = self.rule in ('delta', 'select')",
    "the order does not count",
)
layers = "for n, (mixer, network) in enumerate(zip(self.mixers, self.networks{})):"
for strict in ("", ", strict=False"):
    equivalent(
        HybridDecoder,
        f"{layers.format(', strict=True')} → {layers.format(strict)}",
        "there are as many mixers as networks",
    )
rules = "['softmax' if every and n % every == 0 else rule for n in range(1, L + 1)]"
equivalent(
    HybridDecoder,
    f"rules = {rules} → rules = vars(self).setdefault('rules', {rules})",
    "a constructor is called once",
)
equivalent(
    short_convolution,
    "return (Y, seen[:, T:].clone()) → return (Y, (lambda same: same)(seen[:, T:]))",
    "the same values; only more memory stays in use",
)
equivalent(
    linear_attention,
    "A = A / total.masked_fill(total == 0, 1) → A = A / total.masked_fill(total == 0, 2)",
    "weights that are all 0 stay 0, whatever they are divided by",
)
equivalent(
    recurrent_linear_attention,
    "y = y / total.masked_fill(total == 0, 1) → y = y / total.masked_fill(total == 0, 2)",
    "0 stays 0, whatever it is divided by",
)
