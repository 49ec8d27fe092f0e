"""Checks of experts. Oracles: sums and loops written out, in Python's numbers, and closed forms."""

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional

from course_pkg.checking.batched import made, of_each
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.memo import once
from course_pkg.checking.registry import check
from course_pkg.checking.telling.failure import describe
from course_pkg.checks.llama import demand_gradients, leaves_of, through_gates
from course_pkg.experts import (
    LoRA,
    MixtureOfExperts,
    balance_by_bias,
    load_balancing_loss,
    load_balancing_loss_fault,
    lora_parameters,
    route_top_k,
)


def ranked(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Route one token after the other, with Python's numbers."""
    weights, chosen = [], []
    for row in logits.tolist():
        best = sorted(range(len(row)), key=lambda e, row=row: -row[e])[:k]
        shares = [math.exp(row[e] - row[best[0]]) for e in best]
        weights.append([share / math.fsum(shares) for share in shares])
        chosen.append(best)
    return torch.tensor(weights, dtype=torch.float64), torch.tensor(chosen)


def demand_routes(case: Case, route, logits: Tensor, k: int, when: str) -> None:
    """Demand the weights and the numbers of the experts."""
    weights, chosen = ranked(logits, k)
    given, experts = case.unpack(route(logits, k), "weights", "experts")
    case.equal(experts, chosen, f"experts {when}")
    case.equal(given, weights, f"weights {when}")


@check(route_top_k, weight=3, see="Choose the experts", single="M")
def values(route, case):
    """agrees with a loop that sorts the experts of each token"""
    M, E, k = case.sizes(3)
    E = E + k + 2  # more than k
    demand_routes(case, route, 2 * case.randn(M, E), k, f"for k = {k}")


@check(route_top_k, see="Choose the experts")
def shares(route, case):
    """gives positive weights that sum to one, the largest first"""
    M, E, k = case.sizes(3)
    weights, _ = case.unpack(route(case.randn(M, E + k + 2), k), "weights", "experts")
    case.shape(weights, (M, k), "weights")
    case.equal(weights.sum(dim=1), torch.ones(M), "sum of the weights")
    ordered = (weights > 0).all() and (weights[:, 1:] <= weights[:, :-1]).all()
    case.that(ordered, "weights should be positive and fall from left to right.", weights)


@check(route_top_k, see="Choose the experts")
def one_or_all(route, case):
    """gives one expert all the weight, and all of them their softmax"""
    M, E = case.sizes(2, low=4)
    demand_routes(case, route, case.randn(M, E), 1, "for k = 1")
    demand_routes(case, route, case.randn(M, E), E, f"for k = E = {E}")


@check(route_top_k, see="Choose the experts")
def others_do_not_count(route, case):
    """gives the same weights whatever the scores of the experts that are not chosen"""
    M, E, k = case.sizes(3)
    E = E + k + 2
    logits = case.randn(M, E)
    _, chosen = ranked(logits, k)
    lower = (logits - 3).scatter(1, chosen, logits.gather(1, chosen))
    before, _ = case.unpack(route(logits, k), "weights", "experts")
    case.shape(before, (M, k), "weights")
    after, _ = case.unpack(route(lower, k), "weights", "experts")
    case.equal(after, before, "weights when the other experts' scores are lower")


@check(route_top_k, see="Choose the experts")
def impossible(route, case):
    """raises ValueError when k is less than 1 or more than E"""
    logits = case.randn(4, 5)
    case.raises(ValueError, lambda: route(logits, 0), "k is 0")
    case.raises(ValueError, lambda: route(logits, 6), "k is 6 and there are 5 experts")


@check(route_top_k, see="Choose the experts")
def gradient(route, case):
    """passes the gradient of softmax back to the chosen logits, and none to the others"""
    M, E, k = case.sizes(3)
    E = E + k + 2
    logits = case.randn(M, E).requires_grad_()
    weights, _ = case.unpack(route(logits, k), "weights", "experts")
    case.trains(weights, "the weights")
    case.shape(weights, (M, k), "weights")
    seen = case.randn(M, k)
    weights.backward(seen)
    p, chosen = ranked(logits.detach(), k)
    flow = p * (seen - (p * seen).sum(dim=1, keepdim=True))
    case.gradient(logits, torch.zeros(M, E).double().scatter(1, chosen, flow), "logits")


@check(route_top_k, see="Choose the experts")
def large(route, case):
    """copes with very large scores, and with very small ones"""
    M, E, k = case.sizes(3)
    E = E + k + 2
    spread = case.randn(M, E)
    for size in (1e4, -1e4):
        demand_routes(case, route, spread + size, k, f"for scores around {size:g}")
    # Not farther: to take the k largest of a softmax over all scores is right, until it underflows.
    demand_routes(case, route, 30 * spread, k, "for scores far apart")


def drawn_choices(case: Case, M: int, E: int, k: int) -> Tensor:
    """Draw k different experts for each token."""
    return case.rand(M, E).argsort(dim=1)[:, :k]


def counted_loss(logits: Tensor, experts: Tensor) -> Tensor:
    """Compute the loss with loops over tokens and experts."""
    M, E = logits.shape
    total = logits.new_zeros(())
    for e in range(E):
        load = sum(e in chosen for chosen in experts.tolist()) / M
        shares = [logits[m, e].exp() / logits[m].exp().sum() for m in range(M)]
        total = total + E * load * sum(shares) / M
    return total


@check(load_balancing_loss, weight=3, see="Keep all of them busy", single="M")
def values(loss, case):
    """agrees with loops over tokens and experts"""
    M, E, k = case.sizes(3)
    E = E + k + 1
    logits, experts = 2 * case.randn(M, E), drawn_choices(case, M, E, k)
    case.equal(loss(logits, experts), counted_loss(logits, experts), "L")


@check(load_balancing_loss, see="Keep all of them busy")
def equal_loads(loss, case):
    """is k when all experts have equal loads, whatever the logits"""
    E, k = 7, 3
    experts = (torch.arange(2 * E)[:, None] + torch.arange(k)) % E
    L = loss(2 * case.randn(2 * E, E), experts)
    case.equal(L, torch.tensor(float(k)), "L for equal loads and k = 3")


@check(load_balancing_loss, see="Keep all of them busy")
def one_has_all(loss, case):
    """is E when one expert has all tokens and all probability"""
    M, E = case.sizes(2, low=3)
    logits = torch.zeros(M, E, dtype=torch.float64)
    logits[:, 1] = 60
    experts = torch.ones(M, 1, dtype=torch.long)
    case.equal(loss(logits, experts), torch.tensor(float(E)), f"L where one of {E} has all")


@check(load_balancing_loss, see="Keep all of them busy")
def idle(loss, case):
    """counts the experts that no token goes to"""
    M, E = case.sizes(2, low=4)
    logits, experts = case.randn(M, E), drawn_choices(case, M, 3, 2)
    case.equal(loss(logits, experts), counted_loss(logits, experts), "L with idle experts")


@check(load_balancing_loss, see="Keep all of them busy")
def twice_as_many(loss, case):
    """does not change when every token comes twice"""
    M, E, k = case.sizes(3)
    E = E + k + 1
    logits, experts = case.randn(M, E), drawn_choices(case, M, E, k)
    once = loss(logits, experts)
    case.shape(once, (), "L")
    again = loss(logits.repeat(2, 1), experts.repeat(2, 1))
    case.equal(again, once, "L of every token twice")


@check(load_balancing_loss, weight=2, see="Keep all of them busy")
def gradient(loss, case):
    """sends its gradient through P alone, and so lowers the scores of busy experts"""
    M, E, k = case.sizes(3)
    E = E + k + 1
    logits, experts = case.randn(M, E).requires_grad_(), drawn_choices(case, M, E, k)
    L = loss(logits, experts)
    case.trains(L, "L")
    L.backward()
    loads = torch.stack([(experts == e).double().sum() for e in range(E)]) / M
    p = torch.softmax(logits.detach(), dim=1)
    expected = p * (loads - (p @ loads)[:, None]) * E / M
    case.gradient(logits, expected, "logits")


@check(load_balancing_loss, see="Keep all of them busy")
def large(loss, case):
    """copes with very large scores"""
    M, E, k = case.sizes(3)
    E = E + k + 1
    logits, experts = case.randn(M, E), drawn_choices(case, M, E, k)
    expected = counted_loss(logits, experts)
    case.equal(loss(logits + 5000, experts), expected, "L for scores around 5000")


def loss_of_rows(logits: Tensor, experts: Tensor) -> Tensor:
    """Compute the loss from a row of zeros and ones for each choice."""
    E = logits.shape[1]
    f = functional.one_hot(experts, E).sum(dim=1).to(logits).mean(dim=0)
    return E * (f @ logits.softmax(dim=1).mean(dim=0))


def biased(logits: Tensor, bias: Tensor, k: int, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Route one token after the other, and count loads, with Python's numbers."""
    M, E = logits.shape
    _, chosen = ranked(logits + bias, k)
    weights = []
    for row, own in zip(logits.tolist(), chosen.tolist(), strict=True):
        shares = [math.exp(row[e]) for e in own]
        weights.append([share / math.fsum(shares) for share in shares])
    moved = []
    for e, old in enumerate(bias.tolist()):
        excess = E * sum(e in own for own in chosen.tolist()) - M * k
        moved.append(old - gamma if excess > 0 else old + gamma if excess < 0 else old)
    wide = torch.float64
    return torch.tensor(weights, dtype=wide), chosen, torch.tensor(moved, dtype=wide)


def demand_balanced(
    case: Case, route, logits: Tensor, bias: Tensor, k: int, gamma: float, when: str
) -> Tensor:
    """Demand weights, experts and the new bias; give the new bias."""
    names = "weights", "experts", "bias"
    found = case.unpack(route(logits, bias, k, gamma), *names)
    expected = biased(logits, bias, k, gamma)
    for name in ("experts", "weights", "bias"):  # what follows from another comes after it
        at = names.index(name)
        case.equal(found[at], expected[at], f"{name} {when}")
    return expected[2]


def drawn_scores(case: Case) -> tuple[Tensor, Tensor, int]:
    """Draw scores of experts of which some are better than others, biases, and k."""
    M, E, k = case.sizes(3, low=3)
    E = E + k + 2
    return case.randn(3 * M, E) + case.randn(E), case.randn(E), k


@check(balance_by_bias, weight=2, see="Balance without a loss")
def chosen(route, case):
    """chooses the k experts with the largest sums of score and bias"""
    logits, bias, k = drawn_scores(case)
    _, experts, _ = case.unpack(route(logits, bias, k, 0.125), "weights", "experts", "bias")
    case.equal(experts, biased(logits, bias, k, 0.125)[1], "experts")


@check(balance_by_bias, weight=2, see="Balance without a loss")
def weighed(route, case):
    """weighs the chosen experts by a softmax of their scores, without the bias"""
    logits, bias, k = drawn_scores(case)
    weights, _, _ = case.unpack(route(logits, bias, k, 0.125), "weights", "experts", "bias")
    case.equal(weights, biased(logits, bias, k, 0.125)[0], "weights")


@check(balance_by_bias, weight=3, see="Balance without a loss")
def moved(route, case):
    """moves each bias by γ, down where the load is more than M k / E, up where it is less"""
    logits, bias, k = drawn_scores(case)
    for gamma in (0.125, 0.7):
        _, _, given = case.unpack(route(logits, bias, k, gamma), "weights", "experts", "bias")
        case.equal(given, biased(logits, bias, k, gamma)[2], f"bias for γ = {gamma:g}")


@check(balance_by_bias, see="Balance without a loss")
def at_rest(route, case):
    """keeps the bias of every expert that has exactly its share"""
    M, k = case.sizes(2, low=3)
    E = 2 * k + 1
    places = (torch.arange(M * E)[:, None] + torch.arange(k)) % E
    logits = case.rand(M * E, E).scatter_add(1, places, 9 * torch.ones(M * E, k).double())
    bias = 0.1 * case.randn(E)
    demand_balanced(case, route, logits, bias, k, 0.3, "when all loads are equal")
    logits[:E, 0] += 30  # expert 0 gets more, and those that it takes tokens from get fewer
    demand_balanced(case, route, logits, bias, k, 0.3, "when some loads are equal")


@check(balance_by_bias, see="Balance without a loss")
def idle(route, case):
    """moves up the experts that no token goes to, the last one among them"""
    M, E, k = case.sizes(3, low=3)
    E = E + k + 2
    logits = case.randn(M, E)
    logits[:, [0, -2, -1]] -= 20
    demand_balanced(case, route, logits, case.randn(E), k, 0.25, "when three experts are idle")


@check(balance_by_bias, see="Balance without a loss")
def step_by_step(route, case):
    """brings the load of a favourite down, call after call, and leaves the given bias as it is"""
    M, E, k = case.sizes(3, low=4)
    E = E + k + 1
    logits = case.randn(3 * M, E)
    logits[:, 1] += 2
    bias = torch.zeros(E).double()
    for step in range(6):
        bias = demand_balanced(case, route, logits, bias, k, 0.3, f"of call {step}")


@check(balance_by_bias, see="Balance without a loss")
def one_or_all(route, case):
    """sends a token to one expert, and to all of them"""
    M, E = case.sizes(2, low=4)
    logits, bias = case.randn(M, E) + case.randn(E), case.randn(E)
    for k in (1, E):
        demand_balanced(case, route, logits, bias, k, 0.2, f"for k = {k}")


@check(balance_by_bias, see="Balance without a loss")
def impossible(route, case):
    """raises ValueError when k is less than 1 or more than E"""
    logits, bias = case.randn(4, 5), case.randn(5)
    case.raises(ValueError, lambda: route(logits, bias, 0, 0.1), "k is 0")
    case.raises(ValueError, lambda: route(logits, bias, 6, 0.1), "k is 6 and there are 5 experts")


@check(balance_by_bias, see="Balance without a loss")
def gradient(route, case):
    """passes the gradient of the weights back to the chosen logits, and none to the others"""
    logits, bias, k = drawn_scores(case)
    leaf = logits.clone().requires_grad_()
    weights, _, _ = case.unpack(route(leaf, bias, k, 0.1), "weights", "experts", "bias")
    p, experts, _ = biased(logits, bias, k, 0.1)
    case.trains(weights, "the weights")
    case.shape(weights, tuple(p.shape), "weights")
    seen = case.randn(*p.shape)
    weights.backward(seen)
    flow = p * (seen - (p * seen).sum(dim=1, keepdim=True))
    case.gradient(leaf, torch.zeros_like(logits).scatter(1, experts, flow), "logits")


def experts_state(case: Case, D: int, hidden: int, E: int) -> dict[str, Tensor]:
    """Draw the weights of a mixture of experts."""
    shapes = {
        "router": (D, E),
        "gate": (E, D, hidden),
        "up": (E, D, hidden),
        "down": (E, hidden, D),
    }
    return {f"W_{n}": case.randn(*s) * 2 / s[-2] ** 0.5 for n, s in shapes.items()}


@once
def mixed(state: dict[str, Tensor], X: Tensor, k: int, capacity: int | None = None) -> Tensor:
    """Send one token after the other through its experts, one after the other."""
    D, E = state["W_router"].shape
    taken, rows = [0] * E, []
    for x in X.reshape(-1, D):
        logits = x @ state["W_router"]
        best = sorted(range(E), key=lambda e, logits=logits: -logits[e].item())[:k]
        total, y = sum(logits[e].exp() for e in best), 0 * x
        for e in best:
            taken[e] += 1
            if capacity is None or taken[e] <= capacity:
                expert = {name: W[e] for name, W in state.items() if name != "W_router"}
                y = y + logits[e].exp() / total * through_gates(x, **expert)
        rows.append(y)
    return torch.stack(rows).reshape(X.shape)


def mixture(case: Case, moe, D: int, E: int, k: int, capacity: int | None = None) -> tuple:
    """Make a student's mixture with drawn weights, and return it with its state."""
    state = experts_state(case, D, D + 4, E)
    ours = made(moe, state, D, D + 4, E, k, capacity)
    return ours, state


@check(MixtureOfExperts, weight=3, see="Experts in place of one network", single={"B": 0, "T": 1})
def values(moe, case):
    """agrees with loops over tokens and their experts"""
    B, T, D = case.sizes(3)
    ours, state = mixture(case, moe, D, 5, 2)
    X = case.randn(B, T, D)
    Y = ours(X)
    case.trains(Y, "Y")
    case.equal(Y, mixed(state, X, 2), "Y")


@check(MixtureOfExperts, see="Choose the experts")
def one_or_all(moe, case):
    """sends a token through one expert, and through all of them"""
    B, T, D = case.sizes(3)
    for k in (1, 4):
        ours, state = mixture(case, moe, D, 4, k)
        X = case.randn(B, T, D)
        case.equal(ours(X), mixed(state, X, k), f"Y for k = {k} of 4 experts")


@check(MixtureOfExperts, see="Experts in place of one network")
def alone(moe, case):
    """gives a token the same whatever comes with it, if there is no capacity"""
    B, T, D = case.sizes(3)
    ours, _ = mixture(case, moe, D, 5, 2)
    X = case.randn(B, T, D)
    together, one = ours(X), ours(X[-1:, -1:])
    case.shape(together, (B, T, D), "Y")
    case.shape(one, (1, 1, D), "Y")
    case.equal(one[0, 0], together[-1, -1], "Y of a token alone")


@check(MixtureOfExperts, weight=3, see="Experts in place of one network")
def capacity(moe, case):
    """drops what comes after an expert is full, and leaves the other weights as they are"""
    D = case.sizes(1, low=4)[0]
    for B, T, room in ((3, 5, 2), (2, 7, 4), (4, 3, 1)):
        ours, state = mixture(case, moe, D, 4, 2, room)
        X = case.randn(B, T, D)
        what = f"Y of {B} sequences of {T}, capacity {room},"
        case.equal(ours(X), mixed(state, X, 2, room), what)


@check(MixtureOfExperts, see="Experts in place of one network")
def dropped(moe, case):
    """gives zero where all experts dropped a token"""
    B, T, D = case.sizes(3)
    ours, state = mixture(case, moe, D, 4, 2, T - 1)
    X = case.randn(D) * (case.rand(B, T, 1) + 1)  # one direction, so the same experts for all
    Y = ours(X)
    case.shape(Y, (B, T, D), "Y")
    late = Y.flatten(0, 1)[T - 1 :]
    case.equal(late, torch.zeros(B * T - T + 1, D), f"Y of the tokens after the first {T - 1}")
    case.equal(Y, mixed(state, X, 2, T - 1), "Y")


@check(MixtureOfExperts, see="Experts in place of one network")
def axes(moe, case):
    """reads whatever axes there are before the last as tokens, in their order"""
    B, T, D = case.sizes(3)
    ours, state = mixture(case, moe, D, 4, 2, 3)
    X = case.randn(B, 2, T, D)
    case.equal(ours(X), mixed(state, X, 2, 3), f"Y for X of shape {tuple(X.shape)}")
    flat = X.flatten(0, 2)
    case.equal(ours(flat), mixed(state, flat, 2, 3), f"Y for X of shape {tuple(flat.shape)}")


@check(MixtureOfExperts, see="Experts in place of one network")
def gradient(moe, case):
    """passes gradients back to the router and to all experts, with a capacity and without"""
    B, T, D = case.sizes(3)
    for room in (None, 2):
        ours, state = mixture(case, moe, D, 4, 2, room)
        X, seen = case.randn(2, B, T, D)
        leaves = leaves_of(state)
        mixed(leaves, X, 2, room).backward(seen)
        ours(X).backward(seen)
        demand_gradients(case, ours, leaves)
        case.learns(ours)


@check(MixtureOfExperts, see="Experts in place of one network")
def input_gradient(moe, case):
    """passes gradients back to the vectors"""
    B, T, D = case.sizes(3)
    ours, state = mixture(case, moe, D, 5, 2, B + T - 2)
    X, seen = case.randn(2, B, T, D)
    given, expected = X.clone().requires_grad_(), X.clone().requires_grad_()
    mixed(state, expected, 2, B + T - 2).backward(seen)
    ours(given).backward(seen)
    case.gradient(given, expected.grad, "X")
    case.learns(ours)


@check(MixtureOfExperts, see="Experts in place of one network")
def no_room(moe, case):
    """drops every token where the capacity is 0"""
    B, T, D = case.sizes(3)
    ours, _ = mixture(case, moe, D, 4, 2, 0)
    case.equal(ours(case.randn(B, T, D)), torch.zeros(B, T, D), "Y, capacity 0,")


@check(MixtureOfExperts, see="Experts in place of one network")
def kinds(moe, case):
    """gives vectors of X's dtype, as the network does whose place it takes"""
    B, T, D = case.sizes(3)
    for room in (None, 2):
        ours, state = mixture(case, moe, D, 4, 4, room)
        rounded = {name: value.bfloat16().double() for name, value in state.items()}
        ours, X = ours.bfloat16(), case.randn(B, T, D).bfloat16()
        Y, what = ours(X), f"Y in bfloat16, capacity {room},"
        kind = torch.bfloat16
        case.shape(Y, (B, T, D), what)
        case.that(Y.dtype == kind, f"{what} should be {kind} as X is, yours is {Y.dtype}.")
        expected = mixed(rounded, X.double(), 4, room)
        case.equal(Y, expected, what, rtol=0.1, atol=0.05 * expected.abs().max().item())


def adapted(case: Case, lora, alpha: float, *sizes: int) -> tuple:
    """Make a student's adapter with drawn A and B; return it, W, and what is added to W."""
    D_in, r, D_out = sizes
    W, A, B = case.randn(D_in, D_out), case.randn(D_in, r), case.randn(r, D_out)
    ours = made(lora, {"W": W, "A": A, "B": B}, W, r, alpha)
    return ours, W, torch.einsum("ij,jk->ik", A, B) * (alpha / r)


def new_adapter(case: Case, lora, alpha: float, W: Tensor, r: int) -> tuple:
    """Make a student's adapter that only has another A than it has drawn; return it and A.

    How a student draws A is free. With a known A, a known mistake gives known numbers.
    """
    ours, A = lora(W, r, alpha).double(), case.randn(len(W), r)
    state = dict(ours.state_dict())
    case.shape(state.get("A"), (len(W), r), "A of a new adapter")
    ours.load_state_dict(state | {"A": A})
    return ours, A


def parameters_of(case: Case, ours) -> dict[str, Tensor]:
    """Take an adapter's parameters, and demand that they are A and B."""
    found = dict(ours.named_parameters())
    names = ", ".join(sorted(found)) or "none"
    case.that(names == "A, B", f"The parameters should be A, B, yours are {names}.")
    return found


@check(LoRA, weight=2, see="Adapt a little", single={"B": 0, "r": 2})
def values(lora, case):
    """agrees with X times W and what is added to it"""
    B, D_in, r, D_out = case.sizes(4)
    ours, W, added = adapted(case, lora, 4.5, D_in, r, D_out)
    X = case.randn(B, D_in)
    Y = ours(X)
    case.trains(Y, "Y")
    case.equal(Y, X @ W + X @ added, "Y")


@check(LoRA, weight=2, see="Adapt a little")
def starts(lora, case):
    """changes nothing at first, because B is zero"""
    D_in, D_out, r, M = case.sizes(4)
    W, X = case.randn(D_in, D_out), case.randn(M, D_in)
    ours = lora(W, r, 4.5).double()
    found = ours.state_dict()
    case.equal(found.get("B"), torch.zeros(r, D_out), "B of a new adapter")
    case.equal(found.get("W"), W, "W of a new adapter")
    case.shape(found.get("A"), (D_in, r), "A of a new adapter")
    case.equal(ours(X), X @ W, "Y of a new adapter")


@check(LoRA, see="Adapt a little")
def trains(lora, case):
    """learns A and B, and never W: its first gradient reaches B, and is zero for A"""
    D_in, D_out, r, M = case.sizes(4)
    ours, A = new_adapter(case, lora, 4.5, case.randn(D_in, D_out), r)
    X, seen = case.randn(M, D_in), case.randn(M, D_out)
    ours(X).backward(seen)
    found = parameters_of(case, ours)
    case.gradient(found["A"], torch.zeros(D_in, r), "A of a new adapter")
    case.gradient(found["B"], (X @ A).T @ seen * (4.5 / r), "B of a new adapter")
    case.learns(ours)


@check(LoRA, weight=2, see="Adapt a little", single={"D_in": 0, "D_out": 1})
def merges(lora, case):
    """merges into one matrix that does what the adapter does, and leaves W as it is"""
    D_in, D_out, r, M = case.sizes(4)
    ours, W, added = adapted(case, lora, 4.5, D_in, r, D_out)
    X = case.randn(M, D_in)
    for when in ("", " when merged again"):
        merged = ours.merge()
        case.equal(merged, W + added, f"merged matrix{when}")
        case.equal(ours(X), X @ merged, f"Y after merge{when}")
    case.equal(ours.state_dict().get("W"), W, "W after merge")
    A, B = case.randn(D_in, r), case.randn(r, D_out)
    ours.load_state_dict({"W": W, "A": A, "B": B})
    expected = W + A @ B * (4.5 / r)
    case.equal(ours.merge(), expected, "matrix merged anew, with another A and B,")


@check(LoRA, see="Adapt a little")
def copies(lora, case):
    """keeps a W of its own: neither the given matrix nor what merge returns is the same memory"""
    D_in, D_out, r = case.sizes(3)
    layer = lora(case.randn(D_in, D_out), r, 3.0)
    given = layer.A  # a parameter, as the matrix of any layer is
    expected = given.detach().clone()
    ours = lora(given, 2, 4.5)
    with torch.no_grad():
        given += 1
    case.equal(ours.state_dict().get("W"), expected, "W after the given matrix has changed")
    merged = ours.merge()
    case.equal(merged, expected, "merged matrix of a new adapter")
    merged.detach().add_(1)
    case.equal(ours.state_dict().get("W"), expected, "W after the merged matrix has changed")


@check(LoRA, see="Adapt a little")
def rank(lora, case):
    """adds a matrix of rank r"""
    D_in, D_out, r = (size + 3 for size in case.sizes(3))
    r = min(r, D_in - 2, D_out - 2)
    ours, W, _ = adapted(case, lora, 3.5, D_in, r, D_out)
    merged = ours.merge()
    case.shape(merged, (D_in, D_out), "merged matrix")
    found = int(torch.linalg.matrix_rank(merged.detach().double() - W, rtol=1e-5))
    case.that(found == r, f"The rank of what is added should be {r}, yours is {found}.")


@check(LoRA, see="Adapt a little")
def thin(lora, case):
    """multiplies by A first and then by B, and never makes A B"""
    D_in, D_out, r, M = case.sizes(4)
    W, A, B = case.randn(D_in, D_out), case.randn(D_in, r), case.randn(r, D_out)
    X, huge = case.randn(M, D_in), 2.0**600  # huge² is more than a float64 holds
    ours = made(lora, {"W": W, "A": A * huge, "B": B * huge}, W, r, 4.5)
    Y = ours(X / huge)
    case.shape(Y, (M, D_out), "Y")
    is_finite = Y.detach().isfinite().all()
    case.that(is_finite, "Y should be finite where (X A) B is finite and A B is not, yours is not.")
    case.equal(Y / huge, X @ A @ B * (4.5 / r), "Y / 2^600")


@check(LoRA, see="Adapt a little")
def no_rank(lora, case):
    """raises ValueError when r is less than 1"""
    W = case.randn(4, 3)
    case.raises(ValueError, lambda: lora(W, 0, 1.0), "r is 0")
    case.raises(ValueError, lambda: lora(W, -1, 1.0), "r is -1")


@check(LoRA, see="Adapt a little")
def gradient(lora, case):
    """passes gradients back to A, B and X through what it computes, and through what it merges"""
    D_in, D_out, r, M = case.sizes(4)
    X, seen = case.randn(M, D_in), case.randn(M, D_out)
    for way, is_new in itertools.product(("forward", "merge"), (False, True)):
        ours, W, _ = adapted(case, lora, 4.5, D_in, r, D_out)
        if is_new:
            ours, _ = new_adapter(case, lora, 4.5, W, r)
        leaves = leaves_of({n: p.detach() for n, p in parameters_of(case, ours).items()})
        (X @ leaves["A"] @ leaves["B"] * (4.5 / r)).backward(seen)
        Y = ours(X) if way == "forward" else X @ ours.merge()
        case.trains(Y, f"what comes of {way}{' as long as B is zero' * is_new}")
        Y.backward(seen)
        demand_gradients(case, ours, leaves)
        case.learns(ours)
    ours, W, added = adapted(case, lora, 4.5, D_in, r, D_out)
    ours(X.requires_grad_()).backward(seen)
    case.gradient(X, seen @ (W + added).T, "X")


@check(LoRA, see="Adapt a little")
def fresh(lora, case):
    """draws A from N(0, 1/D_in)"""
    D_in, r = 100, 48
    A = lora(case.randn(D_in, 5), r, 1.0).state_dict().get("A")
    case.shape(A, (D_in, r), "A")
    A = A.double()
    case.equal(A.std(), D_in**-0.5, "standard deviation of A", rtol=0.06)
    case.equal(A.mean(), 0.0, "mean of A", atol=5 * (D_in * r * D_in) ** -0.5)
    share = (A.abs() < D_in**-0.5).double().mean()
    case.equal(share, 0.683, "share of A within one standard deviation", rtol=0.06)


@check(LoRA, see="Adapt a little")
def precision(lora, case):
    """has A and B in W's dtype, and a W that needs no gradient even if the given one does"""
    for dtype in (torch.float64, torch.float32):
        W = case.randn(6, 5).to(dtype).requires_grad_()
        ours = lora(W, 2, 1.0)
        for name, value in parameters_of(case, ours).items():
            case.that(
                value.dtype == dtype, f"{name} should be {dtype} as W is, yours is {value.dtype}."
            )
        stored = dict(ours.named_buffers()).get("W")
        case.shape(stored, (6, 5), "the buffer W")
        case.that(not stored.requires_grad, "W should need no gradient, yours does.")


ADAPTED = [  # a Llama's sizes, and a rank
    {"D": 12, "H": 6, "G": 2, "L": 3, "F": 10, "r": 2},
    {"D": 24, "H": 4, "G": 4, "L": 2, "F": 19, "r": 5},
    {"D": 20, "H": 5, "G": 1, "L": 1, "F": 32, "r": 1},
    {"D": 6, "H": 3, "G": 1, "L": 5, "F": 8, "r": 7},
    {"D": 16, "H": 8, "G": 4, "L": 4, "F": 9, "r": 3},
    {"D": 18, "H": 3, "G": 3, "L": 2, "F": 14, "r": 4},
]


def thin_matrices(D: int, H: int, G: int, L: int, F: int, r: int) -> dict[str, int]:
    """Count what LoRA trains by the shapes of A and B, matrix by matrix."""
    narrow = G * (D // H)
    wide = {
        "attention": [(D, D), (D, narrow), (D, narrow), (D, D)],
        "feed_forward": [(D, F), (D, F), (F, D)],
    }
    counts = {
        part: sum(rows * r + r * columns for rows, columns in L * matrices)
        for part, matrices in wide.items()
    }
    return counts | {"total": sum(counts.values())}


def demand_trained(case: Case, count, name: str) -> None:
    """Demand one of the numbers for all sizes of ADAPTED."""
    found = []
    for result in of_each(count, ADAPTED):
        number = result.get(name) if isinstance(result, dict) else None
        is_number = isinstance(number, (int, float))
        case.that(
            is_number, f'The result should be a dict with a number at "{name}", yours is not.'
        )
        found.append(float(number))
    expected = [float(thin_matrices(**sizes)[name]) for sizes in ADAPTED]
    wrong = [m for m, a, b in zip(ADAPTED, found, expected, strict=True) if a != b] or ADAPTED[:1]
    what = f"{name} for {', '.join(f'{x} = {value}' for x, value in wrong[0].items())}"
    numbers = (torch.tensor(x, dtype=torch.float64) for x in (found, expected))
    case.equal(*numbers, what, rtol=0, atol=0)


@check(lora_parameters, weight=2, see="Count what is trained")
def attention(count, case):
    """counts adapters of four matrices, of which two have G heads"""
    demand_trained(case, count, "attention")


@check(lora_parameters, weight=2, see="Count what is trained")
def feed_forward(count, case):
    """counts adapters of three matrices in each layer"""
    demand_trained(case, count, "feed_forward")


@check(lora_parameters, see="Count what is trained")
def total(count, case):
    """adds up the two, as an int"""
    demand_trained(case, count, "total")
    number = count(**ADAPTED[0])["total"]
    is_whole = hasattr(number, "__index__")
    case.that(is_whole, f"total should be an int, yours is {describe(number)}.")


@check(lora_parameters, see="Count what is trained")
def no_rank(count, case):
    """raises ValueError when r is less than 1"""
    sizes = ADAPTED[0]
    for r in (0, -2):
        case.raises(ValueError, lambda r=r: count(**{**sizes, "r": r}), f"r is {r}")


@check(load_balancing_loss_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "load_balancing_loss", loss_of_rows)
