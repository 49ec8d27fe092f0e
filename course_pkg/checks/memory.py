"""Checks of memory. Oracles: sums written as loops, closed forms, limiting cases."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from course_pkg.checking.batched import made
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.guard import in_any_order
from course_pkg.checking.memo import once
from course_pkg.checking.registry import check
from course_pkg.checking.rules.rules import Rule, forbid
from course_pkg.memory import (
    DRAW,
    NTM,
    content_addressing,
    dnc_allocation,
    dnc_links,
    dnc_usage,
    gaussian_filterbank,
    location_addressing,
    ntm_write,
    sample_latent,
    sample_latent_fault,
)

DIVERGENCE = Rule(
    (
        "torch.distributions.kl_divergence",
        "torch.distributions.kl.kl_divergence",
        "torch.distributions.kl._kl_normal_normal",  # to which that leads
        "torch.distributions.kl._kl_independent_independent",
    )
)
forbid(sample_latent, DIVERGENCE)


def focus(case: Case, B: int, N: int) -> Tensor:
    """Draw weights over N rows: positive, and summing to one."""
    return torch.softmax(case.randn(B, N), dim=1)


def on_one_row(rows: Tensor, N: int) -> Tensor:
    """Make the weights that lie on one row of each sequence."""
    return torch.eye(N, dtype=torch.float64)[rows]


def flow(case: Case, call: Callable, oracle: Callable, inputs: list[Tensor], names: str) -> None:
    """Compare the gradients of a student's function with those of sums written another way."""
    inputs = [tensor.requires_grad_() for tensor in inputs]
    expected = oracle(*inputs)
    seen = case.randn(*expected.shape)
    gradients = torch.autograd.grad(expected, inputs, seen)
    result = call(*inputs)
    case.shape(result, tuple(expected.shape), "the result")
    case.trains(result, "result")
    result.backward(seen.to(result))
    for name, tensor, gradient in zip(names.split(), inputs, gradients, strict=True):
        case.gradient(tensor, gradient, name)


def write_inputs(case: Case, B: int, N: int, M: int) -> list[Tensor]:
    """Draw a memory, weights, and what to erase and to add."""
    return [case.randn(B, N, M), focus(case, B, N), case.rand(B, M), case.randn(B, M)]


@check(ntm_write, weight=3, see="Erase, then add", single="B")
def values(write, case):
    """erases and adds in every row and column as a triple loop does"""
    B, N, M = case.sizes(3)
    memory, w, erase, add = write_inputs(case, B, N, M)
    expected = torch.zeros(B, N, M, dtype=torch.float64)
    for n in range(B):
        for i in range(N):
            for column in range(M):
                left = memory[n, i, column] - w[n, i] * erase[n, column] * memory[n, i, column]
                expected[n, i, column] = left + w[n, i] * add[n, column]
    case.equal(write(memory, w, erase, add), expected, "memory")


@check(ntm_write, see="Erase, then add")
def replaces(write, case):
    """replaces one row and leaves the others when its weight is 1 and all is erased"""
    B, N, M = case.sizes(3)
    memory, _, _, add = write_inputs(case, B, N, M)
    rows = case.integers(0, N, B)
    expected = memory.clone()
    for n, row in enumerate(rows.tolist()):
        expected[n, row] = add[n]
    new = write(memory, on_one_row(rows, N), torch.ones(B, M, dtype=torch.float64), add)
    case.equal(new, expected, "memory")


@check(ntm_write, see="Erase, then add")
def erases_nothing(write, case):
    """only adds when e = 0"""
    B, N, M = case.sizes(3)
    memory, w, erase, add = write_inputs(case, B, N, M)
    expected = memory + torch.stack([torch.outer(w[n], add[n]) for n in range(B)])
    case.equal(write(memory, w, 0 * erase, add), expected, "memory")


@check(ntm_write, see="Erase, then add")
def gradients(write, case):
    """passes gradients to the memory, the weights, and what is erased and added"""
    B, N, M = case.sizes(3)

    def oracle(memory, w, erase, add):
        erased = torch.einsum("bnm,bn,bm->bnm", memory, w, erase)
        return memory - erased + torch.einsum("bn,bm->bnm", w, add)

    flow(case, write, oracle, write_inputs(case, B, N, M), "memory w erase add")


def similarities(memory: Tensor, key: Tensor) -> list[float]:
    """Compute the cosine of the angle between a key and each row, number by number."""
    found = []
    for row in memory.tolist():
        product = sum(a * b for a, b in zip(row, key.tolist(), strict=True))
        lengths = math.hypot(*row) * math.hypot(*key.tolist())
        found.append(product / lengths if lengths else 0.0)
    return found


@check(content_addressing, weight=3, see="Find a row by its content", single="B")
def values(find, case):
    """weighs rows by exp(β cosine), as a loop over all numbers does"""
    B, N, M = case.sizes(3)
    memory, key, beta = case.randn(B, N, M), case.randn(B, M), 4 * case.rand(B)
    expected = []
    for n in range(B):
        powers = [math.exp(float(beta[n]) * cosine) for cosine in similarities(memory[n], key[n])]
        expected.append([power / sum(powers) for power in powers])
    case.equal(find(memory, key, beta), torch.tensor(expected, dtype=torch.float64), "w")


@check(content_addressing, see="Find a row by its content")
def length_does_not_count(find, case):
    """gives the same when key and rows are made longer or shorter"""
    B, N, M = case.sizes(3)
    memory, key, beta = case.randn(B, N, M), case.randn(B, M), 4 * case.rand(B)
    scaled = find(memory * (0.5 + case.rand(B, N, 1)), 3 * key, beta)
    case.shape(scaled, (B, N), "w")
    case.equal(scaled, find(memory, key, beta), "w")


@check(content_addressing, see="Find a row by its content")
def looks_at_all(find, case):
    """weighs all rows equally when β = 0"""
    B, N, M = case.sizes(3)
    w = find(case.randn(B, N, M), case.randn(B, M), torch.zeros(B, dtype=torch.float64))
    case.equal(w, torch.full((B, N), 1 / N), "w")


@check(content_addressing, see="Find a row by its content")
def large_beta(find, case):
    """shares one among the rows, however large β is"""
    B, N, M = case.sizes(3)
    w = find(case.randn(B, N, M), case.randn(B, M), torch.full((B,), 2e4, dtype=torch.float64))
    case.shape(w, (B, N), "w")
    case.equal(w.sum(dim=1), torch.ones(B), "sum of w")


@check(content_addressing, see="Find a row by its content")
def empty_rows(find, case):
    """takes the cosine with an empty row, all zero, to be zero"""
    B, N, M = case.sizes(3, low=3)
    memory, key, beta = case.randn(B, N, M), case.randn(B, M), 1 + case.rand(B)
    memory[:, 1] = 0
    expected = []
    for n in range(B):
        powers = [math.exp(float(beta[n]) * cosine) for cosine in similarities(memory[n], key[n])]
        expected.append([power / sum(powers) for power in powers])
    case.equal(find(memory, key, beta), torch.tensor(expected, dtype=torch.float64), "w")


@check(content_addressing, see="Find a row by its content")
def gradients_of_empty(find, case):
    """passes finite gradients back where a row, or the key, is all zero"""
    B, N, M = case.sizes(3, low=3)
    memory, key, beta = case.randn(B, N, M), case.randn(B, M), 1 + case.rand(B)
    memory[:, 1], key[0] = 0, 0
    inputs = {"memory": memory, "key": key, "beta": beta}
    w = find(*[tensor.requires_grad_() for tensor in inputs.values()])
    case.shape(w, (B, N), "w")
    case.trains(w, "w")
    w[:, 0].sum().backward()
    for name, tensor in inputs.items():
        case.finite_gradient(tensor, name)


@check(content_addressing, see="Find a row by its content")
def almost_empty(find, case):
    """finds the same rows when all of them are 1000 times shorter"""
    B, N, M = case.sizes(3, low=3)
    memory, key, beta = case.randn(B, N, M), case.randn(B, M), 1 + case.rand(B)
    short, whole = find(memory / 1000, key, beta), find(memory, key, beta)
    case.shape(short, (B, N), "w of shorter rows")
    case.equal(short, whole, "w of shorter rows", rtol=1e-3)


@check(content_addressing, see="Find a row by its content")
def nothing_to_find(find, case):
    """weighs all rows equally when the key is zero"""
    B, N, M = case.sizes(3, low=3)
    w = find(case.randn(B, N, M), torch.zeros(B, M, dtype=torch.float64), 1 + case.rand(B))
    case.equal(w, torch.full((B, N), 1 / N), "w")


def head_inputs(case: Case, B: int, N: int) -> list[Tensor]:
    """Draw both weights, the gate, three shifts and γ."""
    w_content, w_before, s = focus(case, B, N), focus(case, B, N), focus(case, B, 3)
    return [w_content, w_before, case.rand(B), s, 1 + 3 * case.rand(B)]


def still(B: int, S: int = 3) -> Tensor:
    """Make shifts of which only that by 0 is made."""
    return on_one_row(torch.full((B,), S // 2), S)


def one(B: int) -> Tensor:
    """Make a gate that goes by content alone, or a γ that changes nothing."""
    return torch.ones(B, dtype=torch.float64)


def shifted(w: Tensor, s: Tensor) -> Tensor:
    """Move weights by a double loop over rows and shifts."""
    (B, N), S = w.shape, s.shape[1]
    moved = torch.zeros(B, N, dtype=torch.float64)
    for n in range(B):
        for j in range(N):
            for number in range(S):
                moved[n, (j + number - (S - 1) // 2) % N] += w[n, j] * s[n, number]
    return moved


def located(w_content: Tensor, w_before: Tensor, g: Tensor, s: Tensor, gamma: Tensor) -> Tensor:
    """Mix, shift by a loop, and sharpen by a softmax of logarithms; no weight may be zero."""
    mixed = w_before + torch.einsum("b,bn->bn", g, w_content - w_before)
    return torch.einsum("bn,b->bn", shifted(mixed, s).log(), gamma).softmax(dim=1)


@check(location_addressing, weight=3, see="Against the blur", single="B")
def values(locate, case):
    """mixes, then shifts, then sharpens, as loops over rows and shifts do"""
    B, N = case.sizes(2, low=4)
    inputs = head_inputs(case, B, N)
    case.equal(locate(*inputs), located(*inputs), "w")


@check(location_addressing, weight=2, see="By content or by place")
def gate(locate, case):
    """mixes the two weights of every row, each sequence with its own gate"""
    B, N = case.sizes(2, low=4)
    w_content, w_before, g, _, _ = head_inputs(case, B, N)
    expected = torch.zeros(B, N, dtype=torch.float64)
    for n in range(B):
        for i in range(N):
            expected[n, i] = w_before[n, i] + g[n] * (w_content[n, i] - w_before[n, i])
    case.equal(locate(w_content, w_before, g, still(B), one(B)), expected, "w")


@check(location_addressing, see="By content or by place")
def open_and_closed(locate, case):
    """gives the content's weights for g = 1 and those of the step before for g = 0"""
    B, N = case.sizes(2, low=4)
    w_content, w_before, _, _, _ = head_inputs(case, B, N)
    g = torch.arange(B, dtype=torch.float64) % 2
    expected = torch.stack([w_content[n] if n % 2 else w_before[n] for n in range(B)])
    case.equal(locate(w_content, w_before, g, still(B), one(B)), expected, "w")


@check(location_addressing, weight=2, see="Move on by a row")
def shift(locate, case):
    """moves the weight of every row by every shift, as a loop does"""
    B, N = case.sizes(2, low=4)
    w, _, g, s, _ = head_inputs(case, B, N)
    case.equal(locate(w, w, g, s, one(B)), shifted(w, s), "w")


@check(location_addressing, see="Move on by a row")
def moves_up(locate, case):
    """moves one row up when s is one at +1, and from the last row to row 0"""
    N = 5
    w, s = on_one_row(torch.arange(N), N), on_one_row(torch.full((N,), 2), 3)
    w = locate(w, w, one(N), s, one(N))
    case.shape(w, (N, N), "w")
    case.equal(w, on_one_row(torch.tensor([1, 2, 3, 4, 0]), N), "w")


@check(location_addressing, see="Move on by a row")
def five_shifts(locate, case):
    """moves by up to two rows when S = 5"""
    B, N = case.sizes(2, low=6)
    w, s = focus(case, B, N), focus(case, B, 5)
    case.equal(locate(w, w, one(B), s, one(B)), shifted(w, s), "w")


@check(location_addressing, see="Move on by a row")
def refuses_even(locate, case):
    """raises ValueError when S is even: there would be no middle"""
    B, N = case.sizes(2, low=4)
    w_content, w_before, g, _, gamma = head_inputs(case, B, N)
    for S, number in ((4, "four"), (2, "two")):
        s = focus(case, B, S)
        case.raises(
            ValueError,
            lambda s=s: locate(w_content, w_before, g, s, gamma),
            f"there are {number} shifts",
        )


@check(location_addressing, weight=2, see="Against the blur")
def power(locate, case):
    """raises weights to the power γ and divides by their sum, as a loop does"""
    B, N = case.sizes(2, low=4)
    w, _, g, _, gamma = head_inputs(case, B, N)
    expected = []
    for row, exponent in zip(w.tolist(), gamma.tolist(), strict=True):
        total = sum(value**exponent for value in row)
        expected.append([value**exponent / total for value in row])
    expected = torch.tensor(expected, dtype=torch.float64)
    case.equal(locate(w, w, g, still(B), gamma), expected, "w")


@check(location_addressing, see="Against the blur")
def keeps_the_largest(locate, case):
    """leaves only the largest weight when γ is very large, without NaN"""
    B, N = case.sizes(2, low=4)
    w = focus(case, B, N)
    expected = on_one_row(w.argmax(dim=1), N)
    case.equal(locate(w, w, one(B), still(B), 5e4 * one(B)), expected, "w")


@check(location_addressing, see="Against the blur")
def shares_the_largest(locate, case):
    """shares the weight between two equally large ones when γ is very large"""
    w = torch.tensor([[0.1, 0.35, 0.2, 0.35], [0.5, 0.1, 0.4, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0, 0.5, 0, 0.5], [1, 0, 0, 0]], dtype=torch.float64)
    gamma = torch.tensor([3e3, 4e3], dtype=torch.float64)
    case.equal(locate(w, w, one(2), still(2), gamma), expected, "w")


@check(location_addressing, see="Against the blur")
def zeros(locate, case):
    """keeps weights of zero at zero, with finite gradients"""
    B, N = case.sizes(2, low=4)
    w_content, w_before, g, _, gamma = head_inputs(case, B, N)
    for w in (w_content, w_before):
        w[:, 1] = 0
        w /= w.sum(dim=1, keepdim=True)
    names = "w_content", "w_before", "g", "s", "gamma"
    inputs = dict(zip(names, (w_content, w_before, g, still(B), gamma + 0.5), strict=True))
    w = locate(*[tensor.requires_grad_() for tensor in inputs.values()])
    case.shape(w, (B, N), "w")
    case.equal(w[:, 1], torch.zeros(B), "w of the row without weight")
    w[:, 0].sum().backward()
    for name, tensor in inputs.items():
        case.finite_gradient(tensor, name)


@check(location_addressing, see="Against the blur")
def gradients(locate, case):
    """passes gradients to both weights, to the gate, to the shifts and to γ"""
    B, N = case.sizes(2, low=4)
    flow(case, locate, located, head_inputs(case, B, N), "w_content w_before g s gamma")


Weights = dict[str, Tensor]


def machine(case: Case, student, D: int, D_Y: int, H: int, N: int, M: int) -> tuple:
    """Make a student's NTM in float64 with known random weights; return both."""
    S = 3
    shapes = {
        "controller": (H, D + M),
        "write_head": (M + 3 + S, H),
        "read_head": (M + 3 + S, H),
        "erase": (M, H),
        "add": (M, H),
        "output": (D_Y, H + M),
    }
    weights = {}
    for name, (rows, columns) in shapes.items():
        weights[f"{name}.weight"] = 2 * case.randn(rows, columns) / columns**0.5
        weights[f"{name}.bias"] = case.randn(rows)
    ours = made(student, weights, D, D_Y, H, N, M)
    return ours, weights


def machine_state(case: Case, B: int, N: int, M: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw a memory, what was read from it, and where the heads were."""
    return case.randn(B, N, M), case.randn(B, M), focus(case, B, N), focus(case, B, N)


def new_focus(raw: Tensor, memory: Tensor, w: Tensor) -> Tensor:
    """Move the head of a single sequence, row by row; the oracle of `address`."""
    N, M = memory.shape
    k, s = raw[:M], raw[M + 3 :].exp()
    beta, gamma = ((1 + raw[M + place].exp()).log() for place in (0, 2))
    gate = 1 / (1 + (-raw[M + 1]).exp())
    heat = torch.stack([(beta * (row @ k) / row.norm() / k.norm()).exp() for row in memory])
    mixed = [gate * heat[i] / heat.sum() + (1 - gate) * w[i] for i in range(N)]
    moved = [
        (s[0] * mixed[(i + 1) % N] + s[1] * mixed[i] + s[2] * mixed[i - 1]) / s.sum()
        for i in range(N)
    ]
    power = torch.stack([value ** (1 + gamma) for value in moved])
    return power / power.sum()


def one_step(weights: Weights, x: Tensor, state: tuple) -> tuple[Tensor, tuple]:
    """Take a step of the machine for a single sequence; the oracle of `step`."""

    def apply(name: str, vector: Tensor) -> Tensor:
        return weights[f"{name}.weight"] @ vector + weights[f"{name}.bias"]

    memory, r, w_write, w_read = state
    h = apply("controller", torch.cat([x, r])).tanh()
    w_write = new_focus(apply("write_head", h), memory, w_write)
    e, a = 1 / (1 + (-apply("erase", h)).exp()), apply("add", h).tanh()
    memory = torch.stack(
        [row - w * e * row + w * a for row, w in zip(memory, w_write, strict=True)]
    )
    w_read = new_focus(apply("read_head", h), memory, w_read)
    r = sum(share * row for row, share in zip(memory, w_read, strict=True))
    return apply("output", torch.cat([h, r])), (memory, r, w_write, w_read)


def all_steps(weights: Weights, X: Tensor, state: tuple) -> tuple[Tensor, tuple]:
    """Run the machine over a batch, sequence by sequence; the oracle of `forward`."""
    outputs, ends = [], []
    for n in range(len(X)):
        own, found = tuple(part[n] for part in state), []
        for x in X[n]:
            y, own = one_step(weights, x, own)
            found.append(y)
        outputs.append(torch.stack(found))
        ends.append(own)
    return torch.stack(outputs), tuple(torch.stack(parts) for parts in zip(*ends, strict=True))


STATE = ("memory", "r", "w_write", "w_read")


def compare(case: Case, result: object, expected: tuple[Tensor, tuple], what: str) -> None:
    """Demand what a step or a run of the machine returns: outputs and the new state."""
    outputs, state = case.unpack(result, what, "state")
    state = case.unpack(state, *STATE)
    for name in ("w_write", "memory", "w_read", "r"):  # in the order in which a step makes them
        case.equal(state[STATE.index(name)], expected[1][STATE.index(name)], name)
    case.equal(outputs, expected[0], what)


@check(NTM, weight=3, see="Where a head goes")
def address(student, case):
    """finds by content, interpolates, shifts and sharpens, in this order"""
    B, N, M = case.sizes(3, low=3)
    ours, _ = machine(case, student, 2, 2, 2, N, M)
    raw, memory, w = case.randn(B, M + 6), case.randn(B, N, M), focus(case, B, N)
    expected = torch.stack([new_focus(raw[n], memory[n], w[n]) for n in range(B)])
    case.equal(ours.address(raw, memory, w), expected, "w")


@check(NTM, weight=3, see="One step of the machine")
def step(student, case):
    """writes first, then reads from the new memory, then answers"""
    B, D, D_Y, H, N, M = case.sizes(6)
    ours, weights = machine(case, student, D, D_Y, H, N, M)
    x, state = case.randn(B, D), machine_state(case, B, N, M)
    expected = all_steps(weights, x[:, None], state)
    compare(case, ours.step(x, state), (expected[0][:, 0], expected[1]), "y_t")


@check(NTM, weight=2, see="One step of the machine")
def sequence(student, case):
    """takes one step after the other, from an empty memory"""
    D, D_Y, H, N, M = case.sizes(5)
    B, T = 2, 3
    ours, weights = machine(case, student, D, D_Y, H, N, M)
    X = case.randn(B, T, D)
    w = on_one_row(torch.zeros(B, dtype=torch.long), N)
    first = torch.full((B, N, M), 1e-6, dtype=torch.float64), torch.zeros(B, M).double(), w, w
    compare(case, ours(X), all_steps(weights, X, first), "outputs")
    names = "memory", "r", "weights of the write head", "weights of the read head"
    for part, wanted, name in zip(case.unpack(ours.start(B), *names), first, names, strict=True):
        case.equal(part, wanted, f"{name} at the start")


@check(NTM, see="One step of the machine")
def continues(student, case):
    """goes on from a given state"""
    D, D_Y, H, N, M = case.sizes(5)
    B = T = 3  # a loop over the sequences goes on then, and is known by its values
    ours, weights = machine(case, student, D, D_Y, H, N, M)
    X, state = case.randn(B, T, D), machine_state(case, B, N, M)
    compare(case, ours(X, state), all_steps(weights, X, state), "outputs")


@check(NTM, weight=2, see="One step of the machine")
def gradients(student, case):
    """passes the same gradients back to the inputs and to every weight as the loops"""
    D, D_Y, H, N, M = case.sizes(5)
    B, T = 2, 3
    ours, weights = machine(case, student, D, D_Y, H, N, M)
    X, state = case.randn(B, T, D), machine_state(case, B, N, M)
    seen = case.randn(B, T, D_Y)
    mine = X.clone().requires_grad_()
    outputs, _ = case.unpack(ours(mine, state), "outputs", "state")
    case.shape(outputs, (B, T, D_Y), "outputs")
    case.trains(outputs, "outputs")
    outputs.backward(seen)
    leaves = {"X": X, **weights}
    for tensor in leaves.values():
        tensor.requires_grad_()
    expected, _ = all_steps(weights, X, state)
    found = torch.autograd.grad(expected, list(leaves.values()), seen)
    given = {"X": mine, **dict(ours.named_parameters())}
    for name, gradient in zip(leaves, found, strict=True):
        case.gradient(given[name], gradient, name)
    case.learns(ours)


@check(NTM, see="One step of the machine")
def alone(student, case):
    """gives each sequence the same output in a batch and on its own"""
    T, D, D_Y, H, N, M = case.sizes(6)
    ours, _ = machine(case, student, D, D_Y, H, N, M)
    X = case.randn(3, T, D)
    outputs, _ = case.unpack(ours(X), "outputs", "state")
    case.shape(outputs, (3, T, D_Y), "outputs")
    single, _ = case.unpack(ours(X[1:2]), "outputs", "state")
    case.equal(single, outputs[1:2], "outputs of a single sequence")


@check(NTM, see="One step of the machine")
def starts_afresh(student, case):
    """gives the same when called twice"""
    D, D_Y, H, N, M = case.sizes(5)
    B, T = 2, 3
    ours, _ = machine(case, student, D, D_Y, H, N, M)
    X = case.randn(B, T, D)
    first = case.unpack(ours(X), "outputs", "state")
    compare(case, ours(X), first, "outputs of the second call")


def usage_inputs(case: Case, B: int, R: int, N: int) -> list[Tensor]:
    """Draw usage, the write head's weights, the read heads' weights and their free gates."""
    w_read = torch.softmax(case.randn(B, R, N), dim=2)
    return [case.rand(B, N), focus(case, B, N), w_read, case.rand(B, R)]


@check(dnc_usage, weight=3, see="What is in use", single="B")
def values(update, case):
    """fills what was written and empties what was freed, row by row"""
    B, R, N = case.sizes(3)
    usage, w_write, w_read, free = usage_inputs(case, B, R, N)
    expected = torch.zeros(B, N, dtype=torch.float64)
    for n in range(B):
        for i in range(N):
            expected[n, i] = 1 - (1 - usage[n, i]) * (1 - w_write[n, i])
            for head in range(R):
                expected[n, i] -= expected[n, i] * free[n, head] * w_read[n, head, i]
    case.equal(update(usage, w_write, w_read, free), expected, "usage")


@check(dnc_usage, see="What is in use")
def written(update, case):
    """makes a row fully used when all is written to it, and leaves the others"""
    B, R, N = case.sizes(3)
    usage, _, w_read, free = usage_inputs(case, B, R, N)
    rows = case.integers(0, N, B)
    expected = usage.clone()
    for n, row in enumerate(rows.tolist()):
        expected[n, row] = 1
    new = update(usage, on_one_row(rows, N), w_read, 0 * free)
    case.equal(new, expected, "usage")


@check(dnc_usage, see="What is in use")
def freed(update, case):
    """frees a row that one head alone reads, with its free gate open"""
    B, R, N = case.sizes(3)
    usage, w_write, w_read, _ = usage_inputs(case, B, R, N)
    rows = case.integers(0, N, B)
    w_read[:, 0] = on_one_row(rows, N)
    free = on_one_row(torch.zeros(B, dtype=torch.long), R)
    expected = usage + w_write * (1 - usage)
    for n, row in enumerate(rows.tolist()):
        expected[n, row] = 0
    case.equal(update(usage, w_write, w_read, free), expected, "usage")


def used(usage: Tensor, w_write: Tensor, w_read: Tensor, free: Tensor) -> Tensor:
    """Fill what is written, and empty what is freed, head by head."""
    kept = 1 - (1 - usage) * (1 - w_write)
    for w, gate in zip(w_read.unbind(1), free.unbind(1), strict=True):
        kept = kept - torch.einsum("bn,bn,b->bn", kept, w, gate)
    return kept


@check(dnc_usage, see="What is in use")
def gradients_of_freed(update, case):
    """passes gradients back where rows are freed entirely, quite free, or fully in use"""
    B, R, N = case.sizes(3, low=3)
    usage, w_write, w_read, free = usage_inputs(case, B, R, N)
    usage[:, 0], usage[:, 1] = 0, 1
    w_read[:, 0] = on_one_row(case.integers(0, N, B), N)
    free[:, 0] = 1
    flow(case, update, used, [usage, w_write, w_read, free], "usage w_write w_read free")


@check(dnc_allocation, weight=3, see="The row used least", single="B")
def values(allocate, case):
    """gives each row (1 - u) times the product of the usages of all rows used less"""
    B, N = case.sizes(2, low=4)
    usage = case.rand(B, N)
    expected = torch.zeros(B, N, dtype=torch.float64)
    for n in range(B):
        own = usage[n].tolist()
        for i, u in enumerate(own):
            expected[n, i] = (1 - u) * math.prod(other for other in own if other < u)
    case.equal(allocate(usage), expected, "a")


@check(dnc_allocation, see="The row used least")
def one_free(allocate, case):
    """points at the only free row when the others are in use"""
    B, N = case.sizes(2, low=4)
    free = on_one_row(case.integers(0, N, B), N)
    case.equal(allocate(1 - free), free, "a")


@check(dnc_allocation, see="The row used least")
def none_free(allocate, case):
    """points nowhere when every row is fully in use"""
    B, N = case.sizes(2, low=4)
    case.equal(allocate(torch.ones(B, N, dtype=torch.float64)), torch.zeros(B, N), "a")


@check(dnc_allocation, see="The row used least")
def equally_used(allocate, case):
    """shares 1 - u^N among N rows that are all used by u"""
    B, N = case.sizes(2, low=4)
    for u in (0.0, 0.5):
        a = in_any_order(allocate)(torch.full((B, N), u, dtype=torch.float64))
        case.shape(a, (B, N), "a")
        what = f"sum of a where all rows are used by {u}"
        case.equal(a.sum(dim=1), torch.full((B,), 1 - u**N), what)


@check(dnc_allocation, see="The row used least")
def gradients(allocate, case):
    """passes gradients to the usage of every row"""
    B, N = case.sizes(2, low=4)

    def oracle(usage):
        others = usage[:, None].expand(B, N, N)  # at [n, i, j] the usage of row j
        less = others < usage[:, :, None]
        return (1 - usage) * torch.where(less, others, 1).prod(dim=2)

    usage = case.rand(B, N)
    usage[0, :2] = torch.tensor([1.0, 0.0])  # a row in use, and a free one
    flow(case, allocate, oracle, [usage], "usage")


def linked(history: Tensor) -> tuple[Tensor, Tensor]:
    """Add up, over all pairs of writes, what is left of their links and of the precedence.

    Args:
        history: the weights of all writes so far, (B, T, N).
    """
    B, T, N = history.shape
    links, precedence = history.new_zeros(B, N, N), history.new_zeros(B, N)
    for before in range(T):
        last = history[:, before]
        for t in range(before + 1, T):
            later = history[:, t + 1 :]
            kept = (1 - later[:, :, :, None] - later[:, :, None, :]).prod(dim=1)
            links += history[:, t, :, None] * last[:, None, :] * kept
            last = last * (1 - history[:, t].sum(dim=1, keepdim=True))
        precedence += last
    links.diagonal(dim1=1, dim2=2).zero_()
    return links, precedence


def link_inputs(case: Case, B: int, N: int, T: int = 3) -> list[Tensor]:
    """Draw the links and the precedence that some writes left behind, and a write's weights."""
    w = torch.stack([focus(case, B, N + 1)[:, :N] for _ in range(T + 1)], dim=1)
    return [*linked(w[:, :T]), w[:, T]]


LINKS = ("links", "precedence")


@check(dnc_links, weight=3, see="In what order", single="B")
def values(update, case):
    """links every pair of rows as the formula says, number by number"""
    B, N = case.sizes(2, low=3)
    L, p, w = link_inputs(case, B, N)
    expected = torch.zeros(B, N, N, dtype=torch.float64)
    for n, (old, before, now) in enumerate(zip(L.tolist(), p.tolist(), w.tolist(), strict=True)):
        for i in range(N):
            for j in range(N):
                if i != j:
                    kept = old[i][j] - (now[i] + now[j]) * old[i][j]
                    expected[n, i, j] = kept + now[i] * before[j]
    links, _ = case.unpack(update(L, p, w), *LINKS)
    case.equal(links, expected, "links")


@check(dnc_links, weight=2, see="In what order", single="B")
def last(update, case):
    """moves as much of the precedence as is written"""
    B, N = case.sizes(2, low=3)
    L, p, w = link_inputs(case, B, N)
    left = [1 - sum(row) for row in w.tolist()]
    expected = torch.stack([left[n] * p[n] + w[n] for n in range(B)])
    case.equal(case.unpack(update(L, p, w), *LINKS)[1], expected, "precedence")


@check(dnc_links, weight=2, see="In what order")
def replay(update, case):
    """links each row to the row written before it, when each is written once"""
    B, N = case.sizes(2, low=4)
    order = torch.stack([torch.randperm(N, generator=case.generator) for _ in range(B)])
    links, precedence = torch.zeros(B, N, N).double(), torch.zeros(B, N).double()
    expected = torch.zeros(B, N, N, dtype=torch.float64)
    for t in range(N):
        w = on_one_row(order[:, t], N)
        links, precedence = case.unpack(update(links, precedence, w), *LINKS)
        for n in range(B):
            if t > 0:
                expected[n, order[n, t], order[n, t - 1]] = 1
        case.equal(links, expected, f"links after {t + 1} writes")
        case.equal(precedence, w, f"precedence after {t + 1} writes")


@check(dnc_links, see="In what order")
def twice(update, case):
    """has no link from a row to itself, even if it is written twice in a row"""
    B, N = case.sizes(2, low=3)
    L, p, _ = link_inputs(case, B, N)
    w = on_one_row(case.integers(0, N, B), N)
    for _ in range(2):
        L, p = case.unpack(update(L, p, w), *LINKS)
    case.shape(L, (B, N, N), "links")
    case.equal(torch.diagonal(L, dim1=1, dim2=2), torch.zeros(B, N), "diagonal of the links")


@check(dnc_links, see="In what order")
def rests(update, case):
    """changes nothing when nothing is written"""
    B, N = case.sizes(2, low=3)
    L, p, w = link_inputs(case, B, N)
    links, precedence = case.unpack(update(L, p, 0 * w), *LINKS)
    case.equal(links, L, "links")
    case.equal(precedence, p, "precedence")


@check(dnc_links, see="In what order")
def gradients(update, case):
    """passes gradients of both results to everything that they depend on"""
    B, N = case.sizes(2, low=3)
    others = 1 - torch.eye(N, dtype=torch.float64)

    def oracle(links, precedence, w):
        cut = torch.einsum("bi,bij->bij", w, links) + torch.einsum("bj,bij->bij", w, links)
        links = (links - cut + torch.einsum("bi,bj->bij", w, precedence)) * others
        left = precedence - torch.einsum("bi,bj->bj", w, precedence)
        return torch.cat([links, (left + w)[:, None]], dim=1)

    def call(links, precedence, w):
        links, precedence = case.unpack(update(links, precedence, w), *LINKS)
        case.shape(links, (B, N, N), "links")
        case.shape(precedence, (B, N), "precedence")
        return torch.cat([links, precedence[:, None]], dim=1)

    flow(case, call, oracle, link_inputs(case, B, N), "links precedence w_write")


def bank_inputs(case: Case, B: int, size: int) -> list[Tensor]:
    """Draw centres inside an axis, strides and widths."""
    centre = (size - 1) * case.rand(B)
    return [centre, 0.5 + 2 * case.rand(B), 0.7 + case.rand(B)]


def bank(centre: Tensor, stride: Tensor, sigma: Tensor, N: int, size: int) -> Tensor:
    """Make the filters number by number."""
    filters = torch.zeros(len(centre), N, size, dtype=torch.float64)
    for n in range(len(centre)):
        for i in range(1, N + 1):  # the paper counts filters from 1
            mu = float(centre[n]) + (i - N / 2 - 0.5) * float(stride[n])
            for p in range(size):
                filters[n, i - 1, p] = math.exp(-((p - mu) ** 2) / (2 * float(sigma[n]) ** 2))
    return filters / filters.sum(dim=2, keepdim=True)


@check(gaussian_filterbank, weight=3, see="A row of Gaussian filters")
def values(make, case):
    """makes the filters of the formula, as a loop over all numbers does"""
    B, size = case.sizes(2, low=6)
    N = 5
    centre, stride, sigma = bank_inputs(case, B, size)
    given = make(centre, stride, sigma, N, size)
    case.equal(given, bank(centre, stride, sigma, N, size), "F")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def in_the_middle(make, case):
    """places the filters symmetrically around the centre, for even and odd N"""
    (B,) = case.sizes(1)
    size, middle = 9, torch.full((B,), 4.0, dtype=torch.float64)
    _, stride, sigma = bank_inputs(case, B, size)
    for N in (5, 4):
        F = make(middle, stride, sigma, N, size)
        case.shape(F, (B, N, size), "F")
        case.equal(F.flip(1, 2), F, f"F, mirrored, for N = {N},")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def narrow(make, case):
    """picks single pixels, a stride apart, when σ is very small"""
    two, three = (torch.tensor([float(n)] * 2, dtype=torch.float64) for n in (2, 3))
    F = make(
        torch.tensor([4.0, 6.0], dtype=torch.float64),
        torch.stack([two[0], three[0]]),
        torch.full((2,), 0.01, dtype=torch.float64),
        3,
        11,
    )
    expected = torch.stack([torch.eye(11)[[2, 4, 6]], torch.eye(11)[[3, 6, 9]]])
    case.equal(F, expected, "F")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def far_away(make, case):
    """gives filters that sum to one when the centre lies far outside the image"""
    N, size = 3, 7
    centre = torch.tensor([-200.0, 3.0, 500.0], dtype=torch.float64)
    F = make(centre, torch.ones(3).double(), torch.full((3,), 0.5, dtype=torch.float64), N, size)
    case.shape(F, (3, N, size), "F")
    case.equal(F.sum(dim=2), torch.ones(3, N), "sum of each filter")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def outside(make, case):
    """places filters where the equation says when the centre is outside the picture"""
    B, size = case.sizes(2, low=6)
    centre, stride, sigma = bank_inputs(case, B, size)
    for moved in (centre - size, centre + size):
        expected = bank(moved, stride, sigma, 5, size)
        case.equal(make(moved, stride, sigma, 5, size), expected, "F")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def one_filter(make, case):
    """puts a single filter at the centre, whatever the stride"""
    B, size = case.sizes(2, low=4)
    centre, stride, sigma = bank_inputs(case, B, size)
    case.equal(make(centre, stride, sigma, 1, size), bank(centre, stride, sigma, 1, size), "F")


@check(gaussian_filterbank, see="A row of Gaussian filters")
def nearest_pixel(make, case):
    """picks the pixel at the border when a narrow filter lies outside"""
    centre = torch.tensor([-80.0, 90.0], dtype=torch.float64)
    narrow = torch.full((2,), 0.4, dtype=torch.float64)
    F = make(centre, torch.full((2,), 2.0, dtype=torch.float64), narrow, 2, 6)
    expected = on_one_row(torch.tensor([[0, 0], [5, 5]]), 6)
    case.equal(F, expected, "F")


LATENT = ("z", "KL")


@check(sample_latent, weight=2, see="Pictures from noise", single="B")
def sample(draw, case):
    """stretches the noise by σ and moves it by μ, number by number"""
    B, D_Z = case.sizes(2)
    mu, log_sigma, noise = (case.randn(B, D_Z) for _ in range(3))
    z, _ = case.unpack(draw(mu, log_sigma, noise), *LATENT)
    numbers = zip(*(part.flatten().tolist() for part in (mu, log_sigma, noise)), strict=True)
    expected = torch.tensor([m + math.exp(s) * e for m, s, e in numbers], dtype=torch.float64)
    case.equal(z, expected.view(B, D_Z), "z")


@check(sample_latent, see="Pictures from noise")
def standard(draw, case):
    """returns the noise itself for μ = 0 and σ = 1, and μ where there is no noise"""
    B, D_Z = case.sizes(2)
    mu, log_sigma, noise = (case.randn(B, D_Z) for _ in range(3))
    zero = torch.zeros(B, D_Z, dtype=torch.float64)
    z, _ = case.unpack(draw(zero, zero, noise), *LATENT)
    case.equal(z, noise, "z for μ = 0 and σ = 1")
    z, _ = case.unpack(draw(mu, log_sigma, zero), *LATENT)
    case.equal(z, mu, "z without noise")


@check(sample_latent, weight=2, see="What a code costs", single={"B": 0, "D_Z": 1})
def cost_of_a_code(draw, case):
    """gives the KL of torch.distributions, summed over the numbers of a code"""
    B, D_Z = case.sizes(2)
    mu, log_sigma, noise = case.randn(B, D_Z), 0.7 * case.randn(B, D_Z), case.randn(B, D_Z)
    given, prior = (
        torch.distributions.Normal(mean, width)
        for mean, width in ((mu, log_sigma.exp()), (0 * mu, torch.ones_like(mu)))
    )
    expected = torch.distributions.kl_divergence(given, prior).sum(dim=1)
    _, kl = case.unpack(draw(mu, log_sigma, noise), *LATENT)
    case.equal(kl, expected, "KL")


@check(sample_latent, see="What a code costs")
def nothing_said(draw, case):
    """costs nothing when every Gaussian is the prior, whatever the noise"""
    B, D_Z = case.sizes(2)
    zero = torch.zeros(B, D_Z, dtype=torch.float64)
    _, kl = case.unpack(draw(zero, zero, case.randn(B, D_Z)), *LATENT)
    case.equal(kl, torch.zeros(B), "KL")


@check(sample_latent, see="What a code costs")
def very_narrow(draw, case):
    """gives a finite KL, with finite gradients, where σ is too small to be told from zero"""
    B, D_Z = case.sizes(2)
    mu, noise = case.randn(B, D_Z), case.randn(B, D_Z)
    inputs = {"mu": mu, "log_sigma": -500 - 500 * case.rand(B, D_Z), "noise": noise}
    expected = ((mu**2 - 1) / 2 - inputs["log_sigma"]).sum(dim=1)
    result = draw(*[tensor.requires_grad_() for tensor in inputs.values()])
    z, kl = case.unpack(result, *LATENT)
    case.equal(z, mu, "z for log σ below -500")
    case.equal(kl, expected, "KL for log σ below -500")
    case.trains(kl, "KL")
    (z.sum() + kl.sum()).backward()
    for name, tensor in inputs.items():
        case.finite_gradient(tensor, name)


@check(sample_latent, see="What a code costs")
def gradients(draw, case):
    """passes gradients of both results to μ, to log σ and to the noise"""
    B, D_Z = case.sizes(2)

    def oracle(mu, log_sigma, noise):
        z = mu + torch.einsum("bd,bd->bd", log_sigma.exp(), noise)
        kl = torch.einsum("bd->b", (mu.square() + torch.exp(2 * log_sigma) - 1) / 2 - log_sigma)
        return torch.cat([z, kl[:, None]], dim=1)

    def call(mu, log_sigma, noise):
        z, kl = case.unpack(draw(mu, log_sigma, noise), *LATENT)
        case.shape(z, (B, D_Z), "z")
        case.shape(kl, (B,), "KL")
        return torch.cat([z, kl[:, None]], dim=1)

    inputs = [case.randn(B, D_Z), 0.7 * case.randn(B, D_Z), case.randn(B, D_Z)]
    flow(case, call, oracle, inputs, "mu log_sigma noise")


def drawer(case: Case, student, A: int, N: int, D_Z: int, H: int) -> tuple:
    """Make a student's DRAW in float64 with known random weights; return both."""
    shapes = {"code": (2 * D_Z, H), "read_aim": (5, H), "write_aim": (5, H), "patch": (N**2, H)}
    weights = {"blank": case.randn()}
    for name, (rows, columns) in shapes.items():
        weights[f"{name}.weight"] = case.randn(rows, columns) / columns**0.5
        weights[f"{name}.bias"] = 0.3 * case.randn(rows)
    for name, columns in (("encoder", 2 * N**2 + H), ("decoder", D_Z)):
        for kind, width in (("ih", columns), ("hh", H)):
            weights[f"{name}.weight_{kind}"] = 2 * case.randn(4 * H, width) / width**0.5
            weights[f"{name}.bias_{kind}"] = case.randn(4 * H)
    ours = made(student, weights, A, N, D_Z, H)
    return ours, weights


def linear(weights: Weights, name: str, vector: Tensor) -> Tensor:
    """Apply a linear layer to one vector."""
    return weights[f"{name}.weight"] @ vector + weights[f"{name}.bias"]


def lstm(weights: Weights, name: str, x: Tensor, state: tuple) -> tuple[Tensor, Tensor]:
    """Take an LSTM's step for one vector, with torch's order of the gates."""
    h, c = state
    gates = weights[f"{name}.weight_ih"] @ x + weights[f"{name}.bias_ih"]
    gates = gates + weights[f"{name}.weight_hh"] @ h + weights[f"{name}.bias_hh"]
    i, f, g, o = gates.chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def aimed(raw: Tensor, N: int, A: int) -> tuple[Tensor, Tensor, Tensor]:
    """Make the filters of one picture, pixels counted from 1 as in the paper; and γ."""
    pixels = torch.arange(1, A + 1, dtype=torch.float64)
    filters = []
    for g in (raw[1], raw[0]):  # y, then x
        rows = []
        for i in range(1, N + 1):
            centre = (A + 1) / 2 * (g + 1)
            mu = centre + (i - N / 2 - 0.5) * (A - 1) / (N - 1) * raw[3].exp()
            rows.append(torch.softmax(-((pixels - mu) ** 2) / (2 * raw[2].exp()), dim=0))
        filters.append(torch.stack(rows))
    return filters[0], filters[1], raw[4].exp()


def looked(weights: Weights, x: Tensor, error: Tensor, h: Tensor, N: int) -> Tensor:
    """Take the glimpses of one picture and of one error."""
    F_Y, F_X, gamma = aimed(linear(weights, "read_aim", h), N, len(x))
    return torch.cat([(gamma * F_Y @ part @ F_X.T).reshape(-1) for part in (x, error)])


def painted(weights: Weights, h: Tensor, N: int, A: int) -> Tensor:
    """Paint the patch of one picture."""
    F_Y, F_X, gamma = aimed(linear(weights, "write_aim", h), N, A)
    patch = linear(weights, "patch", h).reshape(N, N)
    return torch.einsum("iy,ij,jx->yx", F_Y, patch, F_X) / gamma


@once
def drawn(weights: Weights, z: Tensor, N: int, A: int) -> list[Tensor]:
    """Draw one picture from its codes; give the canvas after each step, in logits."""
    H = weights["patch.weight"].shape[1]
    state = z.new_zeros(H), z.new_zeros(H)
    canvas, canvases = weights["blank"] + z.new_zeros(A, A), []
    for code in z:
        state = lstm(weights, "decoder", code, state)
        canvas = canvas + painted(weights, state[0], N, A)
        canvases.append(canvas)
    return canvases


@once
def cost(weights: Weights, x: Tensor, noise: Tensor, N: int) -> tuple[Tensor, Tensor]:
    """Compute both parts of the loss of one picture; the oracle of `forward`."""
    A, H = len(x), weights["patch.weight"].shape[1]
    zeros = x.new_zeros(H)
    encoder, sent, kl = (zeros, zeros), [], 0
    for epsilon in noise:
        canvas, h = weights["blank"] + x.new_zeros(A, A), zeros
        if sent:  # draw again what has been sent so far
            canvas = drawn(weights, torch.stack(sent), N, A)[-1]
            state = zeros, zeros
            for code in sent:
                state = lstm(weights, "decoder", code, state)
            h = state[0]
        r = looked(weights, x, x - 1 / (1 + (-canvas).exp()), h, N)
        encoder = lstm(weights, "encoder", torch.cat([r, h]), encoder)
        mu, log_sigma = linear(weights, "code", encoder[0]).chunk(2)
        sent.append(mu + log_sigma.exp() * epsilon)
        kl = kl + sum((mu**2 + log_sigma.exp() ** 2 - 1) / 2 - log_sigma)
    canvas = drawn(weights, torch.stack(sent), N, A)[-1]
    return (torch.logaddexp(canvas, 0 * canvas) - x * canvas).sum(), kl


LOSSES = ("reconstruction", "KL")


@check(DRAW, weight=2, see="A machine that draws", single="B")
def aim(student, case):
    """makes filters and γ from five numbers as the paper does"""
    (B,) = case.sizes(1)
    A, N = 7, 3
    ours, _ = drawer(case, student, A, N, 2, 2)
    raw = 0.7 * case.randn(B, 5)
    F_Y, F_X, gamma = case.unpack(ours.aim(raw), "F_Y", "F_X", "gamma")
    expected = [
        torch.stack(parts) for parts in zip(*(aimed(row, N, A) for row in raw), strict=True)
    ]
    for given, right, name in zip(
        (F_Y, F_X, gamma), expected, ("F_Y", "F_X", "gamma"), strict=True
    ):
        case.equal(given, right, name)


@check(DRAW, weight=2, see="Take a glimpse", single="B")
def reads(student, case):
    """takes a glimpse of the picture and the same of the error"""
    B, H = case.sizes(2)
    A, N = 7, 3
    ours, weights = drawer(case, student, A, N, 2, H)
    x, error, h = case.rand(B, A, A), case.randn(B, A, A), case.randn(B, H)
    expected = torch.stack([looked(weights, x[n], error[n], h[n], N) for n in range(B)])
    case.equal(ours.read(x, error, h), expected, "r")


@check(DRAW, weight=2, see="Paint where you look", single="B")
def writes(student, case):
    """paints the patch where the decoder says"""
    B, H = case.sizes(2)
    A, N = 7, 3
    ours, weights = drawer(case, student, A, N, 2, H)
    h = case.randn(B, H)
    case.equal(ours.write(h), torch.stack([painted(weights, row, N, A) for row in h]), "painted")


@check(DRAW, weight=3, see="A machine that draws", single="B")
def losses(student, case):
    """gives both parts of the loss, as a loop over pictures and glimpses does"""
    B, T, D_Z, H = case.sizes(4)
    A, N = 6, 3
    ours, weights = drawer(case, student, A, N, D_Z, H)
    x, noise = case.rand(B, A, A).round(), case.randn(B, T, D_Z)
    expected = [cost(weights, x[n], noise[n], N) for n in range(B)]
    given = case.unpack(ours(x, noise), *LOSSES)
    for part, right, name in zip(given, zip(*expected, strict=True), LOSSES, strict=True):
        case.equal(part, torch.stack(right), name)


@check(DRAW, weight=2, see="A machine that draws", single="B")
def pictures(student, case):
    """draws from codes alone, and gives the picture after each step"""
    B, T, D_Z, H = case.sizes(4)
    A, N = 6, 3
    ours, weights = drawer(case, student, A, N, D_Z, H)
    z = case.randn(B, T, D_Z)
    canvases = torch.stack([torch.stack(drawn(weights, row, N, A)) for row in z])
    case.equal(ours.generate(z), 1 / (1 + (-canvases).exp()), "pictures")


@check(DRAW, weight=2, see="A machine that draws")
def gradients(student, case):
    """passes the same gradients back to every weight as the loops"""
    D_Z, H = case.sizes(2)
    A, N, B, T = 6, 3, 2, 3
    ours, weights = drawer(case, student, A, N, D_Z, H)
    x, noise, seen = case.rand(B, A, A).round(), case.randn(B, T, D_Z), case.randn(2, B)
    given = case.unpack(ours(x, noise), *LOSSES)
    for part, name in zip(given, LOSSES, strict=True):
        case.shape(part, (B,), name)
        case.trains(part, name)
    (given[0] * seen[0] + given[1] * seen[1]).sum().backward()
    for tensor in weights.values():
        tensor.requires_grad_()
    total = 0
    for n in range(B):
        reconstruction, kl = cost(weights, x[n], noise[n], N)
        total = total + reconstruction * seen[0, n] + kl * seen[1, n]
    found = torch.autograd.grad(total, list(weights.values()))
    parameters = dict(ours.named_parameters())
    for name, gradient in zip(weights, found, strict=True):
        case.gradient(parameters[name], gradient, name)
    case.learns(ours)


@check(DRAW, see="A machine that draws")
def sure_and_wrong(student, case):
    """pays 200 nats for a black pixel where the canvas is 200, and less for a grey one"""
    A, N = 5, 2
    ours, weights = drawer(case, student, A, N, 2, 3)
    weights = {name: 0 * tensor for name, tensor in weights.items()}
    weights["blank"] = torch.tensor(200.0, dtype=torch.float64)
    ours.load_state_dict(weights)
    x = case.rand(4, A, A) ** 2
    reconstruction, _ = case.unpack(ours(x, case.randn(4, 1, 2)), *LOSSES)
    case.equal(reconstruction, 200 * (1 - x).sum(dim=(1, 2)), "reconstruction by a canvas of 200")


@check(DRAW, see="A machine that draws")
def alone(student, case):
    """gives each picture the same losses in a batch and on its own, twice"""
    T, D_Z, H = case.sizes(3)
    A, N = 5, 2
    ours, _ = drawer(case, student, A, N, D_Z, H)
    x, noise = case.rand(3, A, A).round(), case.randn(3, T, D_Z)
    whole = case.unpack(ours(x, noise), *LOSSES)
    for rows in (slice(1, 2), slice(0, 3)):
        given = case.unpack(ours(x[rows], noise[rows]), *LOSSES)
        for part, other, name in zip(given, whole, LOSSES, strict=True):
            case.shape(other, (3,), name)
            case.equal(part, other[rows], f"{name} of pictures {rows.start} to {rows.stop - 1}")


def drawn_code(mu: Tensor, log_sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a code, and take torch's divergence for what it costs."""
    if not mu.shape == log_sigma.shape == noise.shape or mu.dim() != 2:
        raise ValueError("mu, log_sigma and noise should have the same shape, (B, D_Z)")
    code = torch.distributions.Normal(mu, log_sigma.exp())
    prior = torch.distributions.Normal(torch.zeros_like(mu), 1.0)
    kl = torch.distributions.kl_divergence(code, prior).sum(dim=1)
    return mu + code.scale * noise, kl


@check(sample_latent_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "sample_latent", drawn_code)
