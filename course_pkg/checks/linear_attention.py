"""Checks of linear_attention. Oracles: loops over pairs of steps, closed forms, torch."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from course_pkg.checking.batched import made, together
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.memo import once
from course_pkg.checking.registry import check
from course_pkg.checking.rules import rules
from course_pkg.checking.rules.rules import ATTENTION, forbid
from course_pkg.checking.telling.failure import Failure
from course_pkg.linear_attention import (
    HybridDecoder,
    TokenMixer,
    chunked_scan,
    chunked_scan_fault,
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

forbid(parallel_scan, rules.SCAN)
forbid(short_convolution, rules.CONVOLUTION)
forbid(TokenMixer, ATTENTION)
forbid(HybridDecoder, ATTENTION)

AXES = {"B": 0, "H": 1, "T": 2, "D": 3, "D_V": 4}


def triple(case: Case, B: int, H: int, T: int, D: int, D_V: int) -> list[Tensor]:
    """Draw queries and keys of about unit length, and values that float32 rounds little."""
    Q, K = (case.randn(B, H, T, D) / D**0.5 for _ in range(2))
    return [Q, K, 0.02 * case.randn(B, H, T, D_V)]


def phi(X: Tensor) -> Tensor:
    """Apply the kernel's feature map, in two pieces."""
    return torch.where(X > 0, X + 1, X.clamp(max=0).exp())


def attended(Q: Tensor, K: Tensor, V: Tensor, normalised: bool = True) -> Tensor:
    """Sum over all pairs of steps, pair by pair."""
    Q, K = phi(Q), phi(K)
    outputs = []
    for t in range(Q.shape[2]):
        a = [(Q[:, :, t] * K[:, :, s]).sum(dim=-1)[..., None] for s in range(t + 1)]
        y = sum(weight * V[:, :, s] for s, weight in enumerate(a))
        total = sum(a) if normalised else torch.ones_like(y)
        outputs.append(y / torch.where(total > 0, total, 1))
    return torch.stack(outputs, dim=2)


def allowed(given: object, Q: Tensor, K: Tensor, V: Tensor, last: int = 0) -> Tensor:
    """Give what is right and nearest to what is given: an ε of up to 1e-6 may be below the line.

    Args:
        given: outputs.
        Q, K, V: all queries, keys and values.
        last: to how many of the last steps the outputs belong; all when 0.
    """
    total = (phi(Q) * phi(K).cumsum(dim=2)).sum(dim=-1, keepdim=True)[:, :, -last:]
    expected = attended(Q, K, V)[:, :, -last:]
    if not isinstance(given, Tensor) or given.shape != expected.shape or given.is_meta:
        return expected
    smallest = expected * total / (total + 1e-6)
    low, high = torch.minimum(smallest, expected), torch.maximum(smallest, expected)
    given = given.detach().to(expected)
    return torch.where(given.isnan(), expected, given.clamp(low, high))


def demand_attended(case: Case, given: object, inputs: list[Tensor], what: str = "Y") -> None:
    """Demand the normalised outputs."""
    case.equal(given, allowed(given, *inputs), what)


@check(linear_attention, weight=3, see="A kernel in place of the softmax", single=AXES)
def values(attend, case):
    """agrees with a loop over all pairs of a step and one before it"""
    inputs = triple(case, *case.sizes(5))
    demand_attended(case, attend(*inputs), inputs)


@check(linear_attention, weight=2, see="A kernel in place of the softmax")
def not_normalised(attend, case):
    """leaves the sum as it is when normalised is False, and only then"""
    Q, K, V = triple(case, *case.sizes(5))
    case.equal(attend(Q, K, V, normalised=False), attended(Q, K, V, normalised=False), "Y")
    Y = attend(Q, K, V, normalised=True)
    demand_attended(case, Y, [Q, K, V], "Y with normalised=True")


@check(linear_attention, see="A kernel in place of the softmax")
def first_step(attend, case):
    """gives the first value itself at the first step"""
    Q, K, V = triple(case, *case.sizes(5))
    for lower in (0, 7):
        first = [part[:, :, :1] for part in (Q - lower, K - lower, V)]
        Y = attend(Q - lower, K - lower, V)
        case.shape(Y, tuple(V.shape), "Y")
        what = f"y_1{' of small φ(q) and φ(k)' if lower else ''}"
        demand_attended(case, Y[:, :, :1], first, what)


@check(linear_attention, see="A kernel in place of the softmax")
def causal(attend, case):
    """gives a step the same whatever comes after it"""
    B, H, T, D, D_V = case.sizes(5, low=3)
    Q, K, V = triple(case, B, H, T, D, D_V)
    before = attend(Q, K, V)
    case.shape(before, (B, H, T, D_V), "Y")
    K, V = K.clone(), V.clone()
    K[:, :, -1] += 1
    V[:, :, -1] += 2
    after = attend(Q, K, V)
    case.shape(after, (B, H, T, D_V), "Y")
    case.equal(after[:, :, :-1], before[:, :, :-1], "Y before a different last step")


@check(linear_attention, see="A kernel in place of the softmax")
def gradients(attend, case):
    """passes gradients to queries, keys and values"""
    inputs = triple(case, *case.sizes(5))
    flow(case, attend, attended, inputs, "Q K V")


def without_features(case: Case) -> list[Tensor]:
    """Draw inputs with some steps at which all keys so far, or the query, have no features left."""
    B, H, T, D, D_V = case.sizes(5)
    Q, K, V = triple(case, B, H, T + 3, D, D_V)
    K[:, :, :2] -= 1000
    Q[:, :, -1] -= 1000
    return [Q, K, V]


@check(linear_attention, see="A kernel in place of the softmax")
def nothing_to_weigh(attend, case):
    """gives 0, and gradients, where all weights are 0 because the features are so small"""
    inputs = without_features(case)
    demand_attended(case, attend(*inputs), inputs, "Y of steps some of which have no weights")
    flow(case, attend, attended, inputs, "Q K V")


@check(linear_attention, see="A kernel in place of the softmax")
def large(attend, case):
    """agrees for queries and keys of 100 and more"""
    Q, K, V = triple(case, *case.sizes(5))
    expected = attended(100 * Q, 100 * K, V, normalised=False)
    Y = attend(100 * Q, 100 * K, V, normalised=False)
    case.shape(Y, tuple(V.shape), "Y")
    what = "Y / 100 000 for queries and keys of 100 and more"
    case.equal(Y / 1e5, expected / 1e5, what)


def memorised(K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """Sum what linear attention remembers, over all steps at once."""
    K = phi(K)
    return torch.einsum("bhti,bhtj->bhij", K, V), torch.einsum("bhti->bhi", K)


RUN = ("Y", "S")


def demand_sums(case: Case, result: object, inputs: list[Tensor], last: int = 0) -> None:
    """Demand normalised outputs of all steps, or of the last ones, and a state of two parts."""
    given, state = case.unpack(result, "Y", "(S, z)")
    demand_state(case, state, inputs)
    case.equal(given, allowed(given, *inputs, last), "Y")


def demand_state(case: Case, state: object, inputs: list[Tensor]) -> None:
    """Demand a state of two parts."""
    for given, expected, name in zip(
        case.unpack(state, "S", "z"), memorised(*inputs[1:]), "Sz", strict=True
    ):
        case.equal(given, expected, name)


@check(recurrent_linear_attention, weight=3, see="The same as a recurrent network", single=AXES)
def values(attend, case):
    """agrees with a loop over all pairs of a step and one before it, and with the sums"""
    Q, K, V = inputs = triple(case, *case.sizes(5))
    demand_sums(case, attend(*inputs), inputs)
    small = [Q - 7, K - 7, V]
    demand_sums(case, attend(*small), small)


@check(recurrent_linear_attention, see="The same as a recurrent network")
def not_normalised(attend, case):
    """leaves the sum as it is when normalised is False, and only then"""
    inputs = triple(case, *case.sizes(5))
    given, state = case.unpack(attend(*inputs, normalised=False), "Y", "(S, z)")
    demand_state(case, state, inputs)
    case.equal(given, attended(*inputs, normalised=False), "Y")
    demand_sums(case, attend(*inputs, normalised=True), inputs)


@check(recurrent_linear_attention, see="The same as a recurrent network")
def nothing_to_weigh(attend, case):
    """gives 0, and gradients, where z · φ(q) is 0 because the features are so small"""
    inputs = without_features(case)
    demand_sums(case, attend(*inputs), inputs)

    def outputs(*given):
        return case.unpack(attend(*given), "Y", "(S, z)")[0]

    flow(case, outputs, attended, inputs, "Q K V")


@check(recurrent_linear_attention, weight=2, see="The same as a recurrent network")
def continues(attend, case):
    """goes on from the state of the steps before"""
    B, H, T, D, D_V = case.sizes(5)
    inputs = triple(case, B, H, T + 4, D, D_V)
    cut = [part[:, :, 4:] for part in inputs]
    state = memorised(*(part[:, :, :4] for part in inputs[1:]))
    demand_sums(case, attend(*cut, state), inputs, last=T)


@check(recurrent_linear_attention, see="The same as a recurrent network")
def gradients(attend, case):
    """passes gradients to queries, keys, values and the state"""
    B, H, T, D, D_V = case.sizes(5)
    past = [case.randn(B, H, 3, D), case.randn(B, H, 3, D_V)]
    inputs = [*triple(case, B, H, T, D, D_V), *memorised(*past)]

    def call(Q, K, V, S, z):
        return attend(Q, K, V, (S, z))

    def oracle(Q, K, V, S, z):
        own_S, own_z = memorised(K, V)
        Q, K = phi(Q), phi(K)
        A = torch.einsum("bhti,bhsi->bhts", Q, K).tril()
        top = torch.einsum("bhti,bhij->bhtj", Q, S) + torch.einsum("bhts,bhsj->bhtj", A, V)
        bottom = torch.einsum("bhti,bhi->bht", Q, z) + A.sum(dim=-1)
        return top / bottom[..., None], (S + own_S, z + own_z)

    flow(case, call, oracle, inputs, "Q K V S z", ("Y", "(S, z)"))


@check(recurrent_linear_attention, see="The same as a recurrent network")
def step_by_step(attend, case):
    """gives the same when every step is a call of its own"""
    B, H, T, D, D_V = case.sizes(5)
    Q, K, V = triple(case, B, H, T, D, D_V)
    state = None
    for t in range(T):
        step = (part[:, :, t : t + 1] for part in (Q, K, V))
        past = (part[:, :, : t + 1] for part in (Q, K, V))
        y, state = case.unpack(attend(*step, state), "Y", "(S, z)")
        case.equal(y, allowed(y, *past, last=1), f"y_{t + 1}, in a call of its own,")


@once
def replaced(
    Q: Tensor, K: Tensor, V: Tensor, beta: Tensor, S: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Multiply the state by (I - β k kᵀ) and add β k vᵀ, head by head."""
    B, H, T, D = K.shape
    rows, ends = [], []
    for b in range(B):
        for h in range(H):
            M = torch.zeros(D, V.shape[-1], dtype=V.dtype) if S is None else S[b, h]
            for t in range(T):
                k, share = K[b, h, t], beta[b, h, t]
                erase = torch.eye(D, dtype=V.dtype) - share * torch.outer(k, k)
                M = erase @ M + share * torch.outer(k, V[b, h, t])
                rows.append(Q[b, h, t] @ M)
            ends.append(M)
    Y = torch.stack(rows).reshape(V.shape)
    return Y, torch.stack(ends).reshape(B, H, D, V.shape[-1])


def demand_run(case: Case, result: object, expected: tuple[Tensor, Tensor]) -> None:
    """Demand outputs and a state."""
    Y, S = case.unpack(result, *RUN)
    case.equal(S, expected[1], "S")
    case.equal(Y, expected[0], "Y")


def delta_inputs(case: Case, B: int, H: int, T: int, D: int, D_V: int) -> list[Tensor]:
    """Draw queries, keys, values and β."""
    return [*triple(case, B, H, T, D, D_V), case.rand(B, H, T)]


@check(delta_rule, weight=3, see="Write the difference", single=AXES)
def values(write, case):
    """agrees with a product of matrices for each head"""
    given = delta_inputs(case, *case.sizes(5))
    demand_run(case, write(*given), replaced(*given))


@check(delta_rule, weight=2, see="Write the difference")
def continues(write, case):
    """goes on from a given state"""
    B, H, T, D, D_V = case.sizes(5)
    given, S = delta_inputs(case, B, H, T, D, D_V), 0.02 * case.randn(B, H, D, D_V)
    demand_run(case, write(*given, S), replaced(*given, S))


@check(delta_rule, weight=2, see="Write the difference")
def replaces(write, case):
    """gives back what was written last under a key of length one, when β = 1"""
    B, H, D, D_V = case.sizes(4)
    T = 5
    _, K, V = triple(case, B, H, T, D, D_V)
    K = functional.normalize(K, dim=-1)
    K = torch.cat([K, K], dim=2)  # every key comes twice
    V = torch.cat([V, 0.02 * case.randn(B, H, T, D_V)], dim=2)
    Y, _ = case.unpack(write(K, K, V, torch.ones(B, H, 2 * T, dtype=V.dtype)), *RUN)
    case.equal(Y, V, "Y, read with the key just written,")


@check(delta_rule, see="Write the difference")
def writes_nothing(write, case):
    """leaves the state as it is when β = 0"""
    B, H, T, D, D_V = case.sizes(5)
    Q, K, V, beta = delta_inputs(case, B, H, T, D, D_V)
    S = 0.02 * case.randn(B, H, D, D_V)
    demand_run(case, write(Q, K, V, 0 * beta, S), (Q @ S, S))


@check(delta_rule, see="Write the difference")
def gradients(write, case):
    """passes gradients to all inputs and to the state"""
    B, H, T, D, D_V = case.sizes(5)
    inputs = [*delta_inputs(case, B, H, T, D, D_V), 0.02 * case.randn(B, H, D, D_V)]
    flow(case, write, replaced, inputs, "Q K V beta S")


@once
def decayed(
    Q: Tensor, K: Tensor, V: Tensor, decay: Tensor, S: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum over all pairs of steps, each weighed by the product of the decays between them."""
    T = K.shape[2]
    decay = decay + torch.zeros_like(K)
    outputs = []
    for t in range(T):
        q = Q[:, :, t]
        left = [decay[:, :, s + 1 : t + 1].prod(dim=2) for s in range(t + 1)]
        a = [(q * left[s] * K[:, :, s]).sum(dim=-1, keepdim=True) for s in range(t + 1)]
        y = sum(a[s] * V[:, :, s] for s in range(t + 1))
        if S is not None:
            y = y + torch.einsum("bhi,bhi,bhij->bhj", q, decay[:, :, : t + 1].prod(dim=2), S)
        outputs.append(y)
    end = sum(
        torch.einsum("bhi,bhi,bhj->bhij", decay[:, :, s + 1 :].prod(dim=2), K[:, :, s], V[:, :, s])
        for s in range(T)
    )
    if S is not None:
        end = end + torch.einsum("bhi,bhij->bhij", decay.prod(dim=2), S)
    return torch.stack(outputs, dim=2), end


@check(gated_recurrence, weight=3, see="One line for all gates", single=AXES)
def values(run, case):
    """agrees with a loop over all pairs of steps, with a decay for each row (GLA)"""
    B, H, T, D, D_V = case.sizes(5)
    given = [*triple(case, B, H, T, D, D_V), case.rand(B, H, T, D)]
    demand_run(case, run(*given), decayed(*given))


@check(gated_recurrence, weight=2, see="One line for all gates")
def continues(run, case):
    """goes on from a given state, which decays at the first step too"""
    B, H, T, D, D_V = case.sizes(5)
    given = [*triple(case, B, H, T, D, D_V), case.rand(B, H, T, D), 0.02 * case.randn(B, H, D, D_V)]
    demand_run(case, run(*given), decayed(*given))


@check(gated_recurrence, see="One line for all gates")
def each_head(run, case):
    """takes one decay for each head (RetNet)"""
    B, H, T, D, D_V = case.sizes(5)
    given = [*triple(case, B, H, T, D, D_V), case.rand(H, 1, 1)]
    demand_run(case, run(*given), decayed(*given))


@check(gated_recurrence, see="One line for all gates")
def each_step(run, case):
    """takes one decay for each step and head (Mamba-2)"""
    B, H, T, D, D_V = case.sizes(5)
    given = [*triple(case, B, H, T, D, D_V), case.rand(B, H, T, 1)]
    demand_run(case, run(*given), decayed(*given))


@check(gated_recurrence, see="One line for all gates")
def forgets_all(run, case):
    """remembers only the present step when γ = 0"""
    Q, K, V = triple(case, *case.sizes(5))
    Y = (Q * K).sum(dim=-1, keepdim=True) * V
    S = torch.einsum("bhi,bhj->bhij", K[:, :, -1], V[:, :, -1])
    demand_run(case, run(Q, K, V, torch.zeros(1, dtype=V.dtype)), (Y, S))


@check(gated_recurrence, see="One line for all gates")
def gradients(run, case):
    """passes gradients to all inputs, the decay and the state"""
    B, H, T, D, D_V = case.sizes(5)
    inputs = [
        *triple(case, B, H, T, D, D_V),
        case.rand(B, H, T, D),
        0.02 * case.randn(B, H, D, D_V),
    ]
    flow(case, run, decayed, inputs, "Q K V decay S")


def stepped(delta: Tensor, A: Tensor, K: Tensor, exact: bool = True) -> tuple[Tensor, Tensor]:
    """Discretise step by step; the exact length is the integral of exp(A s) from 0 to Δ."""
    (B, T, D), N = delta.shape, A.shape[1]
    decays, writes = [], []
    for b in range(B):
        for t in range(T):
            length = torch.stack([delta[b, t]] * N, dim=1)  # (D, N)
            decays.append((length * A).exp())
            if exact:
                length = (decays[-1] - 1) / A
            writes.append(torch.einsum("dn,n->dn", length, K[b, t]))
    return torch.stack(decays).reshape(B, T, D, N), torch.stack(writes).reshape(B, T, D, N)


STEP = ("Ā", "K̄")
FOUR = {"B": 0, "T": 1, "D": 2, "N": 3}


def demand_step(case: Case, result: object, expected: tuple[Tensor, Tensor]) -> None:
    """Demand what a discretisation gives."""
    for given, right, name in zip(case.unpack(result, *STEP), expected, STEP, strict=True):
        case.equal(given, right, name)


def equation(case: Case, B: int, T: int, D: int, N: int) -> list[Tensor]:
    """Draw lengths of steps, rates and what is written with."""
    return [0.1 + case.rand(B, T, D), -0.2 - 2 * case.rand(D, N), case.randn(B, T, N)]


@check(discretise, weight=3, see="From an equation to steps", single=FOUR)
def values(step, case):
    """agrees with the exact solution, step by step"""
    given = equation(case, *case.sizes(4))
    demand_step(case, step(*given), stepped(*given))


@check(discretise, weight=2, see="From an equation to steps")
def first_order(step, case):
    """gives K̄ = Δ k when exact is False, and the same Ā"""
    given = equation(case, *case.sizes(4))
    demand_step(case, step(*given, exact=False), stepped(*given, exact=False))


@check(discretise, see="From an equation to steps")
def two_halves(step, case):
    """gives in two steps of Δ/2 what it gives in one of Δ, the input held"""
    delta, A, K = equation(case, *case.sizes(4))
    decay, write = case.unpack(step(delta / 2, A, K), *STEP)
    case.shape(decay, (*delta.shape, A.shape[1]), "Ā")
    case.shape(write, (*delta.shape, A.shape[1]), "K̄")
    demand_step(case, step(delta, A, K), (decay * decay, decay * write + write))


@check(discretise, see="From an equation to steps")
def slow(step, case):
    """keeps its digits when Δ A is tiny: K̄ is then Δ k"""
    delta, A, K = equation(case, *case.sizes(4))
    A = A * 1e-20
    result = step(delta, A, K)
    write = case.unpack(result, *STEP)[1]
    if isinstance(write, Tensor) and not write.any():
        raise Failure("K̄ should be Δ k, yours is 0: Δ A is so small that exp(Δ A) rounds to 1.")
    demand_step(case, result, stepped(delta, A, K, exact=False))


@check(discretise, see="From an equation to steps")
def gradients(step, case):
    """passes gradients to Δ, A and k, exact or not"""
    for exact in (True, False):
        inputs = equation(case, *case.sizes(4))

        def call(delta, A, K, exact=exact):
            return step(delta, A, K, exact=exact)

        def oracle(delta, A, K, exact=exact):
            return stepped(delta, A, K, exact)

        flow(case, call, oracle, inputs, "delta A K", STEP)


@check(discretise, see="From an equation to steps")
def slow_or_fast(step, case):
    """keeps its digits from Δ A near 1e-12 to Δ A near one"""
    delta, A, K = equation(case, *case.sizes(4))
    for power in range(-12, 1):
        slow = A * 10.0**power
        rate = delta[..., None] * slow
        terms = torch.stack([rate**n / math.factorial(n + 1) for n in range(20)])
        write = delta[..., None] * terms.sum(dim=0) * K[:, :, None]
        found = case.unpack(step(delta, slow, K), *STEP)[1]
        case.equal(found, write, f"K̄ where A is near 1e{power}")


@check(discretise, see="From an equation to steps")
def settles(step, case):
    """gives Ā = 0 and K̄ = -k / A after a very long step"""
    B, T, D, N = case.sizes(4)
    delta, A, K = equation(case, B, T, D, N)
    write = -K[:, :, None] / A
    demand_step(case, step(delta + 1e4, A, K), (torch.zeros_like(write), write.expand(B, T, D, N)))


def space(case: Case, B: int, T: int, D: int, N: int) -> list[Tensor]:
    """Draw all that a selective state space needs, without a state."""
    delta, A, K = equation(case, B, T, D, N)
    return [0.05 * case.randn(B, T, D), delta, A, K, case.randn(B, T, N), case.randn(D)]


def selected(
    X: Tensor,
    delta: Tensor,
    A: Tensor,
    K: Tensor,
    Q: Tensor,
    skip: Tensor,
    h: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum over all pairs of steps, with the time between them as the sum of the Δ."""
    outputs, T = [], X.shape[1]
    for t in range(T):
        state = 0 if h is None else h * (A * delta[:, : t + 1].sum(dim=1)[..., None]).exp()
        for s in range(t + 1):
            time = delta[:, s + 1 : t + 1].sum(dim=1)[..., None]  # (B, D, 1)
            written = (delta[:, s] * X[:, s])[..., None] * K[:, s, None]
            state = state + (A * time).exp() * written
        outputs.append((state * Q[:, t, None]).sum(dim=-1) + skip * X[:, t])
    return torch.stack(outputs, dim=1), state


def demand_states(case: Case, result: object, expected: tuple[Tensor, Tensor]) -> None:
    """Demand outputs and the state of a state space."""
    Y, h = case.unpack(result, "Y", "h")
    case.equal(h, expected[1], "h")
    case.equal(Y, expected[0], "Y")


@check(selective_state_space, weight=3, see="Select what to remember", single=FOUR)
def values(run, case):
    """agrees with a loop over all pairs of steps"""
    given = space(case, *case.sizes(4))
    demand_states(case, run(*given), selected(*given))


@check(selective_state_space, weight=2, see="Select what to remember")
def continues(run, case):
    """goes on from a given state, which decays at the first step too"""
    B, T, D, N = case.sizes(4)
    given, h = space(case, B, T, D, N), 0.05 * case.randn(B, D, N)
    demand_states(case, run(*given, h), selected(*given, h))


@check(selective_state_space, see="Select what to remember")
def skips(run, case):
    """leaves the state as it is at steps of length zero, and passes the input by"""
    B, T, D, N = case.sizes(4)
    X, delta, A, K, Q, skip = space(case, B, T, D, N)
    h = 0.05 * case.randn(B, D, N)
    Y = torch.einsum("bdn,btn->btd", h, Q) + skip * X
    demand_states(case, run(X, 0 * delta, A, K, Q, skip, h), (Y, h))


@check(selective_state_space, see="Select what to remember")
def resets(run, case):
    """forgets what came before a very long step"""
    B, T, D, N = case.sizes(4)
    X, delta, A, K, Q, skip = space(case, B, T, D, N)
    delta[:, -1] = 1e4
    expected = 1e4 * (K * Q)[:, -1].sum(dim=-1)[:, None] * X[:, -1] + skip * X[:, -1]
    Y, _ = case.unpack(run(X, delta, A, K, Q, skip), "Y", "h")
    case.shape(Y, (B, T, D), "Y")
    case.equal(Y[:, -1], expected, "y after a very long step")


@check(selective_state_space, see="Select what to remember")
def gradients(run, case):
    """passes gradients to all inputs, the weights and the state"""
    B, T, D, N = case.sizes(4)
    inputs = [*space(case, B, T, D, N), 0.05 * case.randn(B, D, N)]
    flow(case, run, selected, inputs, "X delta A K Q skip h", ("Y", "h"))


def scanned(a: Tensor, b: Tensor) -> Tensor:
    """Take one step after the other."""
    h, states = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        h = h * a[:, t] + b[:, t]
        states.append(h)
    return torch.stack(states, dim=1)


@check(parallel_scan, weight=3, see="All steps at once", single={"B": 0, "D": 1})
def values(scan, case):
    """agrees with one step after the other, for all T from 1 to 9"""
    B, D = case.sizes(2)
    for T in range(1, 10):
        a, b = case.rand(B, T, D), case.randn(B, T, D)
        case.equal(scan(a, b), scanned(a, b), f"h for T = {T}")


@check(parallel_scan, see="All steps at once")
def axes(scan, case):
    """takes states of any shape: (B, T, D, N), and (B, T)"""
    B, T, D, N = case.sizes(4)
    for shape in ((B, T, D, N), (B, T)):
        a, b = case.rand(*shape), case.randn(*shape)
        case.equal(scan(a, b), scanned(a, b), f"h for states of shape {shape}")


@check(parallel_scan, weight=2, see="All steps at once")
def forgets(scan, case):
    """starts anew where a is zero"""
    B, T, D = case.sizes(3, low=5)
    a, b = case.rand(B, T, D), case.randn(B, T, D)
    a[:, 2:4] = 0
    case.equal(scan(a, b), scanned(a, b), "h where a_3 and a_4 are zero")


@check(parallel_scan, weight=3, see="All steps at once")
def tree(scan, case):
    """adds 1 024 ones in bfloat16 as a tree, where one after the other stops at 256"""
    ones = torch.ones(2, 1024, 3, dtype=torch.bfloat16)
    expected = torch.arange(1.0, 1025)[:, None].expand(2, 1024, 3)
    case.equal(scan(ones, ones), expected, "h in bfloat16", rtol=0.03)


@check(parallel_scan, see="All steps at once")
def gradients(scan, case):
    """passes gradients to what remains and to what is added, also where a is zero"""
    B, T, D = case.sizes(3, low=4)
    a, b = case.rand(B, T, D), case.randn(B, T, D)
    a[0, 1:3] = 0
    flow(case, scan, scanned, [a, b], "a b")


@check(parallel_scan, see="All steps at once")
def any_number(scan, case):
    """takes numbers below zero and above one as well"""
    B, T, D = case.sizes(3, low=5)
    a, b = 1.5 * case.randn(B, T, D), case.randn(B, T, D)
    case.equal(scan(a, b), scanned(a, b), "h")


@check(parallel_scan, see="All steps at once")
def long(scan, case):
    """agrees over 300 steps, some of which keep almost nothing"""
    B, D = case.sizes(2)
    a, b = case.rand(B, 300, D), case.randn(B, 300, D)
    a[:, ::7] *= 1e-30
    case.equal(scan(a, b), scanned(a, b), "h over 300 steps")


def flat(case: Case, result: object, names: tuple[str, ...]) -> Tensor:
    """Join all tensors of a result, which may be nested, to one vector."""
    if isinstance(result, Tensor):
        return result.flatten()
    parts = case.unpack(result, *names)
    inner = ("its first part", "its second part")
    return torch.cat([flat(case, part, inner) for part in parts])


def flow(
    case: Case,
    call: Callable,
    oracle: Callable,
    inputs: list[Tensor],
    names: str,
    results: tuple[str, ...] = RUN,
) -> None:
    """Compare the gradients of all results of a student's function with those of an oracle."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    expected = flat(case, oracle(*inputs), results)
    seen = 0.1 * case.randn(*expected.shape)  # so that float32 rounds less than is seen
    gradients = torch.autograd.grad(expected, inputs, seen)
    given = flat(case, call(*inputs), results)
    case.shape(given, tuple(expected.shape), "all numbers of the results together")
    case.trains(given, "the results")
    given.backward(seen.to(given))
    for name, tensor, gradient in zip(names.split(), inputs, gradients, strict=True):
        case.gradient(tensor, gradient, name)


def chunk_inputs(case: Case, B: int, H: int, T: int, D: int, D_V: int) -> list[Tensor]:
    """Draw queries, keys, values and the logarithms of decays."""
    return [*triple(case, B, H, T, D, D_V), -case.rand(B, H, T)]


def in_chunks(case: Case, scan, given: list[Tensor], S: Tensor | None, chunk: int) -> None:
    """Demand of a chunked scan what a loop over all pairs of steps gives."""
    expected = decayed(*given[:3], given[3].exp()[..., None], S)
    demand_run(case, scan(*given, S, chunk=chunk), expected)


def demand_finite(case: Case, given: object, what: str, why: str) -> None:
    """Demand numbers; a failure says why there may be none."""
    if isinstance(given, Tensor):
        case.that(given.isfinite().all(), f"{what} should be finite, yours is not: {why}", given)


SCAN = "Matrix products inside, steps between"


@check(chunked_scan, weight=3, see=SCAN, single=AXES)
def values(scan, case):
    """agrees with a loop over all pairs of steps, in chunks of 3"""
    B, H, T, D, D_V = case.sizes(5)
    in_chunks(case, scan, chunk_inputs(case, B, H, T + 5 if T > 1 else 1, D, D_V), None, 3)


@check(chunked_scan, weight=2, see=SCAN)
def continues(scan, case):
    """goes on from a given state"""
    B, H, T, D, D_V = case.sizes(5)
    S = 0.02 * case.randn(B, H, D, D_V)
    in_chunks(case, scan, chunk_inputs(case, B, H, T + 5, D, D_V), S, 4)


@check(chunked_scan, weight=2, see=SCAN)
def any_chunk(scan, case):
    """gives the same for chunks of any size, from 1 to more than T"""
    B, H, D, D_V = case.sizes(4)
    given, S = chunk_inputs(case, B, H, 6, D, D_V), 0.02 * case.randn(B, H, D, D_V)
    for chunk in (1, 2, 4, 6, 9):
        in_chunks(case, scan, given, S, chunk)


@check(chunked_scan, weight=2, see=SCAN)
def strong_decay(scan, case):
    """gives numbers, and gradients, where the decay within a chunk is e^-1000 and less"""
    B, H, D, D_V = case.sizes(4)
    inputs = chunk_inputs(case, B, H, 20, D, D_V)
    inputs[3] = -64.0 * case.integers(0, 3, B, H, 20)  # exact in float32
    for given, name in zip(case.unpack(scan(*inputs, chunk=20), *RUN), RUN, strict=True):
        demand_finite(case, given, name, "is a factor above one computed, which overflows?")
    in_chunks(case, scan, inputs, None, 20)

    def oracle(Q, K, V, log_decay):
        return decayed(Q, K, V, log_decay.exp()[..., None])

    flow(case, lambda *given: scan(*given, chunk=20), oracle, inputs, "Q K V log_decay")


@together
def operations(call, inputs: list[tuple], **options) -> list[int]:
    """Count the operations of matrix products in each of several calls."""
    found = []
    for each in inputs:
        with FlopCounterMode(display=False) as counter:
            call(*each, **options)
        found.append(counter.get_total_flops())
    return found


@check(chunked_scan, weight=2, see=SCAN)
def twice_as_long(scan, case):
    """takes twice as many products for a text twice as long, in chunks of the same size"""
    # In float32: what is in float64 is tried once more, and would be counted again.
    inputs = [[x.float() for x in chunk_inputs(case, 1, 2, T, 3, 4)] for T in (32, 64)]
    short, long = operations(scan, list(map(tuple, inputs)), chunk=8)
    case.that(
        long <= 2.5 * short,
        "From 32 to 64 steps, in chunks of 8, the multiplications should double, yours grow by a "
        f"factor of {long / max(short, 1):.1f}: do weights span the whole text? Is `chunk` used?",
    )


@check(chunked_scan, see=SCAN)
def impossible(scan, case):
    """raises ValueError when a chunk has no steps"""
    given = chunk_inputs(case, *case.sizes(5))
    case.raises(ValueError, lambda: scan(*given, chunk=0), "chunk is 0")


@check(chunked_scan, see=SCAN)
def few_steps(scan, case):
    """takes steps from chunk to chunk only, and so loses nothing of 512 ones in bfloat16"""
    ones = torch.ones(2, 1, 512, 1, dtype=torch.bfloat16)
    _, S = case.unpack(scan(ones, ones, ones, 0 * ones[..., 0], chunk=64), *RUN)
    case.shape(S, (2, 1, 1, 1), RUN[1])
    found = sorted(set(S.flatten().tolist()))
    case.that(
        found == [512],
        f"{RUN[1]} should be 512, the sum of 512 products of ones, yours is {found[0]:g}. A "
        "bfloat16 has no 257: one by one, ones are lost from 256 on. Is a matrix product "
        "taken inside each chunk?",
    )


@check(chunked_scan, see=SCAN)
def usual_chunk(scan, case):
    """works when no size of chunk is given"""
    given = chunk_inputs(case, 2, 3, 35, 4, 5)
    demand_run(case, scan(*given), decayed(*given[:3], given[3].exp()[..., None]))


@check(chunked_scan, see=SCAN)
def negative(scan, case):
    """raises ValueError when chunk is negative"""
    given = chunk_inputs(case, *case.sizes(5))
    case.raises(ValueError, lambda: scan(*given, chunk=-2), "chunk is -2")


def by_all_pairs(
    Q: Tensor, K: Tensor, V: Tensor, log_decay: Tensor, S: Tensor | None = None, chunk: int = 16
) -> tuple[Tensor, Tensor]:
    """Compute what chunks of any size should give, from inputs that fit together."""
    if chunk < 1 or not log_decay.isfinite().all():
        raise ValueError("a chunk has at least one step, and log γ is finite")
    if not Q.shape == K.shape or not Q.shape[:3] == V.shape[:3] == log_decay.shape:
        raise ValueError("queries, keys, values and decays must have the same steps")
    return decayed(Q, K, V, log_decay.exp()[..., None], S)


def faded(
    R: Tensor,
    K: Tensor,
    V: Tensor,
    w: Tensor,
    u: Tensor,
    state: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Compute RWKV's weighted means pair by pair."""
    T, outputs = K.shape[1], []

    def sums(t: int) -> tuple[Tensor, Tensor]:
        """The sums of α v and of α over all s before step t, counted from 0."""
        top = bottom = torch.zeros_like(K[:, 0])
        if state is not None:
            bottom = (state[1] - t * w).exp()
            top = bottom * state[0]
        for s in range(t):
            a = (K[:, s] - (t - 1 - s) * w).exp()
            top, bottom = top + a * V[:, s], bottom + a
        return top, bottom

    for t in range(T):
        top, bottom = sums(t)
        now = (u + K[:, t]).exp()
        y = (top + now * V[:, t]) / (bottom + now)
        outputs.append(y / (1 + (-R[:, t]).exp()))
    top, bottom = sums(T)
    return torch.stack(outputs, dim=1), (top / bottom, bottom.log())


def rwkv_inputs(case: Case, B: int, T: int, D: int) -> list[Tensor]:
    """Draw receptances, keys, values, rates and what the present step gets."""
    return [*(case.randn(B, T, D) for _ in range(3)), 0.1 + case.rand(D), case.randn(D)]


def demand_mixed(case: Case, result: object, expected: tuple[Tensor, tuple]) -> None:
    """Demand outputs and the state of RWKV."""
    Y, state = case.unpack(result, "Y", "state")
    mean, log_weight = case.unpack(state, "mean", "log weight")
    case.equal(Y, expected[0], "Y")
    case.equal(mean, expected[1][0], "mean in the state")
    case.equal(log_weight, expected[1][1], "log weight in the state")


@check(
    rwkv_time_mixing,
    weight=3,
    see="Optional: RWKV, one of the family",
    single={"B": 0, "T": 1, "D": 2},
)
def values(mix, case):
    """agrees with the two sums of the equation, pair by pair"""
    given = rwkv_inputs(case, *case.sizes(3))
    demand_mixed(case, mix(*given), faded(*given))


@check(rwkv_time_mixing, weight=2, see="Optional: RWKV, one of the family")
def continues(mix, case):
    """goes on from a given state"""
    B, T, D = case.sizes(3)
    given, state = rwkv_inputs(case, B, T, D), (case.randn(B, D), case.randn(B, D))
    demand_mixed(case, mix(*given, state), faded(*given, state))


@check(rwkv_time_mixing, see="Optional: RWKV, one of the family")
def first_step(mix, case):
    """gives σ(r) v at the first step, whatever the keys are"""
    B, T, D = case.sizes(3)
    R, K, V, w, u = rwkv_inputs(case, B, T, D)
    Y, _ = case.unpack(mix(R, K, V, w, u), "Y", "state")
    case.shape(Y, (B, T, D), "Y")
    case.equal(Y[:, 0], torch.sigmoid(R[:, 0]) * V[:, 0], "y_1")


@check(rwkv_time_mixing, weight=2, see="Optional: RWKV, one of the family")
def large_keys(mix, case):
    """gives the same when all keys are larger by 1 000"""
    R, K, V, w, u = rwkv_inputs(case, *case.sizes(3))
    expected, (mean, log_weight) = faded(R, K, V, w, u)
    result = mix(R, K + 1000, V, w, u)
    Y, _ = case.unpack(result, "Y", "state")
    demand_finite(case, Y, "Y", "e^1000 is too large for any number of torch's.")
    demand_mixed(case, result, (expected, (mean, log_weight + 1000)))


@check(rwkv_time_mixing, see="Optional: RWKV, one of the family")
def gradients(mix, case):
    """passes gradients to all inputs, the weights and the state"""
    B, T, D = case.sizes(3)
    inputs = [*rwkv_inputs(case, B, T, D), case.randn(B, D), case.randn(B, D)]

    def call(*given):
        return mix(*given[:5], given[5:])

    def oracle(*given):
        return faded(*given[:5], given[5:])

    flow(case, call, oracle, inputs, "R K V w u mean log_weight", ("Y", "state"))


@check(rwkv_time_mixing, see="Optional: RWKV, one of the family")
def keys_far_apart(mix, case):
    """gives the last value alone where each key is 900 larger than the one before"""
    B, T, D = case.sizes(3)
    R, K, V, w, u = rwkv_inputs(case, B, T, D)
    K = K + 900 * torch.arange(T)[:, None]
    Y, _ = case.unpack(mix(R, K, V, w, u), "Y", "state")
    case.equal(Y, torch.sigmoid(R) * V, "Y where each key is 900 larger than the one before")


@check(rwkv_time_mixing, see="Optional: RWKV, one of the family")
def gradients_at_first(mix, case):
    """passes finite gradients when there is no state"""
    inputs = rwkv_inputs(case, *case.sizes(3))
    flow(case, mix, faded, inputs, "R K V w u", ("Y", "state"))


@check(rwkv_time_mixing, see="Optional: RWKV, one of the family")
def small_keys(mix, case):
    """gives the same when all keys are smaller by 2 000"""
    R, K, V, w, u = rwkv_inputs(case, *case.sizes(3))
    expected, (mean, log_weight) = faded(R, K, V, w, u)
    demand_mixed(case, mix(R, K - 2000, V, w, u), (expected, (mean, log_weight - 2000)))


def convolved(X: Tensor, taps: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sum tap by tap, step by step."""
    (B, T, D), W = X.shape, taps.shape[1]
    zeros = [torch.zeros(B, D, dtype=X.dtype)] * (W - 1)
    inputs = [*(zeros if past is None else past.unbind(1)), *X.unbind(1)]
    rows = [sum(taps[:, j] * inputs[t + j] for j in range(W)) for t in range(T)]
    kept = torch.stack(inputs[T:], dim=1) if W > 1 else X[:, :0]
    return torch.stack(rows, dim=1), kept


def small_taps(case: Case, D: int, W: int) -> Tensor:
    """Draw taps that make outputs so small that float32 rounds them little."""
    return 0.05 * case.randn(D, W)


def demand_convolved(case: Case, result: object, expected: tuple[Tensor, Tensor]) -> None:
    """Demand outputs, and the inputs that are kept."""
    Y, past = case.unpack(result, "Y", "past")
    case.equal(Y, expected[0], "Y")
    case.equal(past, expected[1], "past")


BACK = "A few steps back"


@check(short_convolution, weight=3, see=BACK, single={"B": 0, "T": 1, "D": 2, "W": 3})
def values(convolve, case):
    """agrees with a sum over all taps, and keeps the last inputs"""
    B, T, D, W = case.sizes(4)
    X, taps = case.randn(B, T, D), small_taps(case, D, W)
    demand_convolved(case, convolve(X, taps), convolved(X, taps))


@check(short_convolution, weight=2, see=BACK)
def continues(convolve, case):
    """goes on from the inputs before"""
    B, T, D, W = case.sizes(4)
    X, taps, past = case.randn(B, T, D), small_taps(case, D, W), case.randn(B, W - 1, D)
    demand_convolved(case, convolve(X, taps, past), convolved(X, taps, past))


@check(short_convolution, see=BACK)
def last_tap(convolve, case):
    """gives the inputs themselves when only the last tap is one"""
    B, T, D, W = case.sizes(4)
    X, taps = case.randn(B, T, D), torch.zeros(D, W, dtype=torch.float64)
    taps[:, -1] = 1
    demand_convolved(case, convolve(X, taps), (X, convolved(X, taps)[1]))


@check(short_convolution, see=BACK)
def short(convolve, case):
    """keeps inputs of before when there are fewer new ones than it keeps"""
    B, D = case.sizes(2)
    X, taps, past = case.randn(B, 2, D), small_taps(case, D, 6), case.randn(B, 5, D)
    demand_convolved(case, convolve(X, taps, past), convolved(X, taps, past))
    demand_convolved(case, convolve(X, taps), convolved(X, taps))


@check(short_convolution, see=BACK)
def gradients(convolve, case):
    """passes gradients to the inputs, the taps and the inputs before"""
    B, T, D, W = case.sizes(4)
    inputs = [case.randn(B, T, D), small_taps(case, D, W), case.randn(B, W - 1, D)]
    flow(case, convolve, convolved, inputs, "X taps past", ("Y", "past"))


Weights = dict[str, Tensor]
GATED = ("select", "delta")


def mixer_weights(case: Case, D: int, H: int, rule: str, width: int = 3) -> Weights:
    """Draw the weights of a mixer."""
    weights = {
        "W_QKV": 2 * case.randn(D, 3 * D) / D**0.5,
        "taps": case.randn(3 * D, width),
        "norm.weight": case.randn(D // H),
        "W_O": case.randn(D, D) / D**0.5,
    }
    if rule in GATED:
        weights |= {"W_gate": case.randn(D, H) / D**0.5, "b_gate": case.randn(H)}
    return weights | ({"log_a": case.randn(H)} if rule == "select" else {})


def mixer(case: Case, student, D: int, H: int, rule: str, width: int = 3) -> tuple:
    """Make a student's mixer with known weights; return both."""
    weights = mixer_weights(case, D, H, rule, width)
    ours = made(student, weights, D, H, rule, width)
    return ours, weights


def softmax_attended(
    Q: Tensor, K: Tensor, V: Tensor, memory: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attend causally, query by query, to what is kept and to what is new."""
    T, D_h = Q.shape[2:]
    memory = (
        torch.cat([K, V], dim=3)
        if memory is None
        else torch.cat([memory, torch.cat([K, V], dim=3)], dim=2)
    )
    past, rows = memory.shape[2] - T, []
    for t in range(T):
        K, V = memory[:, :, : past + t + 1].split(D_h, dim=3)
        weights = torch.einsum("bhd,bhsd->bhs", Q[:, :, t], K).div(D_h**0.5).exp()
        weights = weights / weights.sum(dim=-1, keepdim=True)
        rows.append(torch.einsum("bhs,bhsd->bhd", weights, V))
    return torch.stack(rows, dim=2), memory


def recurred(
    weights: Weights, rule: str, Q: Tensor, K: Tensor, V: Tensor, gate, S: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Apply one of the four recurrent rules by the loops of the other exercises' checks."""
    H = Q.shape[1]
    if rule == "add":
        return decayed(phi(Q), phi(K), V, torch.ones(1, dtype=V.dtype), S)
    if rule == "decay":
        gamma = torch.tensor([1 - 0.5 ** (5 + h) for h in range(H)], dtype=V.dtype)
        return decayed(Q, K, V, gamma[:, None, None], S)
    if rule == "select":
        delta = (1 + gate.exp()).log()[..., None]  # (B, H, T, 1)
        a = weights["log_a"].exp()[:, None, None]
        return decayed(Q, delta * K, V, (-a * delta).exp(), S)
    unit = K / K.square().sum(dim=-1, keepdim=True).sqrt()
    return replaced(Q, unit, V, 1 / (1 + (-gate).exp()), S)


def mixed(
    weights: Weights, rule: str, X: Tensor, H: int, state: tuple | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Apply a mixer with loops; the oracle of `forward`."""
    memory, past = state if state is not None else (None, None)
    D = X.shape[2]
    F, past = convolved(X @ weights["W_QKV"], weights["taps"], past)
    F = F / (1 + (-F).exp())
    Q, K, V = (
        torch.stack(F[..., start : start + D].chunk(H, dim=2), dim=1) for start in (0, D, 2 * D)
    )
    if rule == "softmax":
        Y, memory = softmax_attended(Q, K, V, memory)
    else:
        gate = None
        if rule in GATED:
            gate = torch.einsum("btd,dh->bht", X, weights["W_gate"]) + weights["b_gate"][:, None]
        Y, memory = recurred(weights, rule, Q, K, V, gate, memory)
    Y = Y / (Y.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weights["norm.weight"]
    return torch.cat(Y.unbind(1), dim=2) @ weights["W_O"], (memory, past)


def demand_layer(case: Case, result: object, expected: tuple[Tensor, tuple]) -> None:
    """Demand what a mixer returns."""
    Y, state = case.unpack(result, "Y", "state")
    memory, past = case.unpack(state, "memory", "past")
    case.equal(past, expected[1][1], "past")
    case.equal(memory, expected[1][0], "memory")
    case.equal(Y, expected[0], "Y")


RULES = "One layer, five rules"
MIXED = {"B": 0, "T": 1, "D_h": 2, "H": 3}


def demand_rule(case: Case, student, rule: str) -> None:
    """Demand the outputs and the state of a layer with a rule, at first and when it goes on."""
    B, T, D_h, H = case.sizes(4)
    D = D_h * H
    ours, weights = mixer(case, student, D, H, rule)
    X = case.randn(B, T + 2, D)
    expected = mixed(weights, rule, X, H)
    demand_layer(case, ours(X), expected)
    more = case.randn(B, T, D)
    demand_layer(case, ours(more, expected[1]), mixed(weights, rule, more, H, expected[1]))


@check(TokenMixer, weight=2, see=RULES, single=MIXED)
def softmax(student, case):
    """attends to keys and values that it keeps, with the rule softmax"""
    demand_rule(case, student, "softmax")


@check(TokenMixer, weight=2, see=RULES)
def add(student, case):
    """adds to a matrix, with the rule add"""
    demand_rule(case, student, "add")


@check(TokenMixer, weight=2, see=RULES)
def decay(student, case):
    """forgets at a rate of its own in each head, with the rule decay"""
    demand_rule(case, student, "decay")


@check(TokenMixer, weight=2, see=RULES, single=MIXED)
def select(student, case):
    """decides by the token what to forget and how much to write, with the rule select"""
    demand_rule(case, student, "select")


@check(TokenMixer, weight=2, see=RULES)
def delta(student, case):
    """writes the difference, with the rule delta"""
    demand_rule(case, student, "delta")


@check(TokenMixer, see=RULES)
def attends(student, case):
    """attends in `attend` as torch does"""
    B, T, D_h, H = case.sizes(4)
    ours, _ = mixer(case, student, D_h * H, H, "softmax")
    Q, K, V = (case.randn(B, H, T, D_h) for _ in range(3))
    Y, memory = case.unpack(ours.attend(Q, K, V, None), "Y", "memory")
    case.equal(memory, torch.cat([K, V], dim=3), "memory")
    case.equal(Y, functional.scaled_dot_product_attention(Q, K, V, is_causal=True), "Y")


@check(TokenMixer, see=RULES)
def large_scores(student, case):
    """attends in `attend` as torch does however large the scores are, and stays finite"""
    B, T, D_h, H = case.sizes(4)
    ours, _ = mixer(case, student, D_h * H, H, "softmax")
    Q, K, V = (case.randn(B, H, T, D_h) for _ in range(3))
    for factor in (100, 1_000_000):
        Y, _ = case.unpack(ours.attend(factor * Q, factor * K, V, None), "Y", "memory")
        expected = functional.scaled_dot_product_attention(
            factor * Q, factor * K, V, is_causal=True
        )
        case.equal(Y, expected, f"Y of queries and keys times {factor}", rtol=1e-4)


@check(TokenMixer, see=RULES)
def no_such_rule(student, case):
    """raises ValueError when there is no such rule"""
    case.raises(ValueError, lambda: student(6, 2, "sum"), "the rule is 'sum'")


def demand_gradients(
    case: Case, ours, given: object, leaves: Weights, expected: Tensor, what: str, where: str = ""
) -> None:
    """Go back from a module's result and from the expected one; compare what parameters get."""
    seen = case.randn(*expected.shape)
    found = torch.autograd.grad(expected, list(leaves.values()), seen)
    case.shape(given, tuple(expected.shape), what)
    case.trains(given, what)
    given.backward(seen)
    parameters = dict(ours.named_parameters())
    for name, gradient in zip(leaves, found, strict=True):
        case.gradient(parameters[name], gradient, name + where)
    case.learns(ours)


def asked_for_gradients(weights: Weights) -> Weights:
    """Copy weights, to compute with them what gradients they get."""
    return {name: weight.clone().requires_grad_() for name, weight in weights.items()}


@check(TokenMixer, weight=2, see=RULES)
def gradients(student, case):
    """passes gradients to all parameters, with each rule"""
    for rule in ("softmax", "add", "decay", "select", "delta"):
        B, T, D_h, H = case.sizes(4)
        ours, weights = mixer(case, student, D_h * H, H, rule)
        X, leaves = case.randn(B, T, D_h * H), asked_for_gradients(weights)
        expected, _ = mixed(leaves, rule, X, H)
        Y, _ = case.unpack(ours(X), "Y", "state")
        demand_gradients(case, ours, Y, leaves, expected, "Y", f" with the rule {rule}")


@check(TokenMixer, see=RULES)
def recurs(student, case):
    """applies the rules in `recur`, from a state that is given"""
    for rule in ("add", "decay", "select", "delta"):
        B, T, D_h, H = case.sizes(4)
        ours, weights = mixer(case, student, D_h * H, H, rule)
        Q, K, V, S = *(case.randn(B, H, T, D_h) for _ in range(3)), case.randn(B, H, D_h, D_h)
        gate = case.randn(B, H, T) if rule in GATED else None
        demand_run(case, ours.recur(Q, K, V, gate, S), recurred(weights, rule, Q, K, V, gate, S))


@check(TokenMixer, see=RULES)
def widths(student, case):
    """has as many taps as it is given, four when none are"""
    B, T, D_h, H = case.sizes(4)
    ours, weights = mixer(case, student, D_h * H, H, "softmax", 1)
    X = case.randn(B, T, D_h * H)
    demand_layer(case, ours(X), mixed(weights, "softmax", X, H))
    taps = student(6, 2, "delta").state_dict().get("taps")
    case.shape(taps, (18, 4), "taps of a new layer")


NET = {"V": 11, "D": 6, "H": 2}


def net_state(case: Case, L: int, rule: str, every: int | None, width: int = 4) -> Weights:
    """Draw the weights of a decoder of which some layers attend."""
    V, D, H = NET.values()
    F = 32  # what 6 features give
    state = {"token.weight": case.randn(V, D), "norm.weight": 1 + case.rand(D)}
    state["W_head"] = case.randn(D, V)
    for n in range(L):
        own = "softmax" if every and (n + 1) % every == 0 else rule
        for name, weight in mixer_weights(case, D, H, own, width).items():
            state[f"mixers.{n}.{name}"] = weight
        state[f"networks.{n}.W_gate"] = case.randn(D, F) / D**0.5
        state[f"networks.{n}.W_up"] = case.randn(D, F) / D**0.5
        state[f"networks.{n}.W_down"] = case.randn(F, D) / F**0.5
        for number in (2 * n, 2 * n + 1):
            state[f"norms.{number}.weight"] = 0.5 + case.rand(D)
    return state


def decoder(case: Case, student, L: int, rule: str, every: int | None) -> tuple:
    """Make a student's decoder with known weights; return both."""
    state = net_state(case, L, rule, every)
    ours = student(**NET, L=L, rule=rule, every=every).double()
    attending = [n for n in range(L) if every and (n + 1) % every == 0]
    given = {name for name in ours.state_dict() if name.endswith("gate") and "mixers" in name}
    found = [n for n in range(L) if not any(f"mixers.{n}." in name for name in given)]
    case.that(
        rule not in GATED or found == attending,
        f"With L = {L} and every = {every}, the layers of attention should be "
        f"{attending or 'none'}, yours are {found or 'none'}.",
    )
    ours.load_state_dict(state)
    return ours, state


def under(state: Weights, prefix: str) -> Weights:
    """Take the weights whose names begin so, and cut that off."""
    return {name[len(prefix) :]: w for name, w in state.items() if name.startswith(prefix)}


def normal(X: Tensor, weight: Tensor) -> Tensor:
    """Scale vectors to a root mean square of one, then by a weight."""
    return X / (X.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weight


def scored(
    state: Weights, L: int, rule: str, every: int | None, tokens: Tensor, states: list | None = None
) -> tuple[Tensor, list]:
    """Compute a decoder's logits and states with loops; the oracle of `forward`."""
    X, found = state["token.weight"][tokens], []
    for n in range(L):
        own = "softmax" if every and (n + 1) % every == 0 else rule
        before = None if states is None else states[n]
        given = normal(X, state[f"norms.{2 * n}.weight"])
        Y, after = mixed(under(state, f"mixers.{n}."), own, given, NET["H"], before)
        X = X + Y
        given, W = normal(X, state[f"norms.{2 * n + 1}.weight"]), under(state, f"networks.{n}.")
        X = X + (functional.silu(given @ W["W_gate"]) * (given @ W["W_up"])) @ W["W_down"]
        found.append(after)
    return normal(X, state["norm.weight"]) @ state["W_head"], found


def demand_scores(case: Case, result: object, expected: tuple[Tensor, list]) -> None:
    """Demand logits, and the states of all layers."""
    logits, states = case.unpack(result, "logits", "states")
    case.equal(logits, expected[0], "logits")
    states = case.unpack(states, *(f"state of layer {n}" for n in range(len(expected[1]))))
    for n, (given, right) in enumerate(zip(states, expected[1], strict=True)):
        parts = case.unpack(given, "memory", "past")
        for part, value, name in zip(parts, right, ("memory", "past"), strict=True):
            case.equal(part, value, f"{name} of layer {n}")


FEW = "One layer of attention in every few"


@check(HybridDecoder, weight=2, see=FEW)
def recurrent(student, case):
    """agrees with layers made of loops, without attention"""
    B, T = case.sizes(2)
    ours, state = decoder(case, student, 2, "select", None)
    tokens = case.integers(0, 11, B, T)
    demand_scores(case, ours(tokens), scored(state, 2, "select", None, tokens))


@check(HybridDecoder, weight=3, see=FEW, single={"B": 0, "T": 1})
def hybrid(student, case):
    """agrees with layers made of loops, the last of every two of them attention"""
    B, T = case.sizes(2)
    ours, state = decoder(case, student, 3, "select", 2)
    tokens = case.integers(0, 11, B, T)
    demand_scores(case, ours(tokens), scored(state, 3, "select", 2, tokens))


@check(HybridDecoder, weight=2, see=FEW)
def continues(student, case):
    """goes on from the states of the tokens before"""
    B, T = case.sizes(2)
    ours, state = decoder(case, student, 2, "delta", 2)
    tokens = case.integers(0, 11, B, T + 3)
    _, states = scored(state, 2, "delta", 2, tokens[:, :3])
    expected = scored(state, 2, "delta", 2, tokens[:, 3:], states)
    demand_scores(case, ours(tokens[:, 3:], states), expected)


@check(HybridDecoder, see=FEW)
def which_layers(student, case):
    """makes the last of every so many layers one of attention"""
    for L, every in ((6, 3), (5, 2), (4, 1), (3, 4), (2, None)):
        decoder(case, student, L, "select", every)


@check(HybridDecoder, weight=2, see=FEW)
def gradients(student, case):
    """passes gradients to all parameters"""
    B, T = case.sizes(2)
    ours, state = decoder(case, student, 2, "delta", 2)
    tokens, leaves = case.integers(0, 11, B, T), asked_for_gradients(state)
    expected, _ = scored(leaves, 2, "delta", 2, tokens)
    logits, _ = case.unpack(ours(tokens), "logits", "states")
    demand_gradients(case, ours, logits, leaves, expected, "logits")


KEPT = "What it keeps"
DECODERS = (
    {"T": 5, "D": 12, "H": 3, "L": 4},
    {"T": 7, "D": 12, "H": 3, "L": 8, "every": 3},
    {"T": 4, "D": 8, "H": 2, "L": 5, "every": 2, "width": 2, "size": 2},
    {"T": 9, "D": 10, "H": 5, "L": 3, "every": 1},
    {"T": 6, "D": 6, "H": 1, "L": 3, "every": 4},
    {"T": 1_000_000, "D": 64, "H": 4, "L": 12, "every": 6},
    {"T": 3, "D": 8, "H": 8, "L": 6, "every": 3, "width": 1},
)


def kept(
    T: int, D: int, H: int, L: int, every: int | None = None, width: int = 4, size: int = 4
) -> dict[str, int]:
    """Count layer by layer, by the shapes of what is kept."""
    found = {"state": 0, "cache": 0}
    for n in range(L):
        found["state"] += math.prod((width - 1, 3 * D, size))
        if every and n % every == every - 1:
            found["cache"] += math.prod((2, T, D, size))
        else:
            found["state"] += math.prod((H, D // H, D // H, size))
    return found


def demand_bytes(case: Case, count, name: str, decoders: tuple[dict, ...]) -> None:
    """Demand one of the two numbers for all these decoders."""
    found, expected = [], []
    for sizes in decoders:
        result = count(**sizes)
        number = result.get(name) if isinstance(result, dict) else None
        case.that(
            hasattr(number, "__index__"),
            f'The result should be a dict with an int at "{name}", yours is not.',
        )
        found.append(float(number))
        expected.append(float(kept(**sizes)[name]))
    wrong = [s for s, a, b in zip(decoders, found, expected, strict=True) if a != b]
    shown = ", ".join(f"{key} = {value}" for key, value in (wrong or decoders)[0].items())
    given = torch.tensor(found, dtype=torch.float64)
    right = torch.tensor(expected, dtype=torch.float64)
    case.equal(given, right, f"{name} for {shown}", rtol=0, atol=0)


@check(state_bytes, weight=2, see=KEPT)
def state(count, case):
    """counts the matrices of recurrent layers and the inputs that all convolutions keep"""
    demand_bytes(case, count, "state", DECODERS)


@check(state_bytes, weight=2, see=KEPT)
def cache(count, case):
    """counts the keys and values of the layers of attention alone"""
    demand_bytes(case, count, "cache", DECODERS)


@check(state_bytes, see=KEPT)
def impossible(count, case):
    """raises ValueError when H does not divide D"""
    case.raises(ValueError, lambda: count(3, 7, 2, 1), "D = 7 and H = 2")


@check(state_bytes, see=KEPT)
def more_heads(count, case):
    """raises ValueError when there are more heads than features"""
    case.raises(ValueError, lambda: count(3, 4, 8, 2), "D = 4 and H = 8")


@check(chunked_scan_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "chunked_scan", by_all_pairs)
