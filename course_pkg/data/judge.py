"""Right and wrong solutions of eight exercises, to try tests on.

Right ones are written in other ways than the course's own. A wrong one is a right one with a line
changed; each is made anew, so that it begins without what an earlier one has kept.
"""

import inspect
import linecache
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_pkg.engine.requests import OutOfBlocks

B, D, H, T = 2, 3, 4, 5  # all different, so that no two axes can be confused


def randn(*shape: int) -> Tensor:
    """Draw standard normal numbers, float64: two calls with the same shape give the same ones."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def rand(*shape: int) -> Tensor:
    """Draw uniform numbers from [0, 1), float64: two calls with the same shape give the same."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def refuses(kind: type[Exception], call: Callable, *args) -> bool:
    """Tell whether a call raises an exception of a kind."""
    try:
        call(*args)
    except kind:
        return True
    return False


def shifted_softmax(E, mask=None):
    allowed = torch.ones_like(E, dtype=torch.bool) if mask is None else mask.expand(E.shape)
    highest = E.masked_fill(~allowed, -math.inf).amax(dim=-1, keepdim=True)
    highest = highest.masked_fill(highest.isinf(), 0)
    parts = (E - highest).masked_fill(~allowed, -math.inf).exp()
    total = parts.sum(dim=-1, keepdim=True)
    return parts / total.masked_fill(total == 0, 1)


def softmax_by_rows(E, mask=None):
    mask = torch.ones_like(E, dtype=torch.bool) if mask is None else mask.expand(E.shape)
    rows = []
    for row, allowed in zip(E.flatten(0, -2), mask.flatten(0, -2), strict=True):
        weights = torch.zeros_like(row)
        if allowed.any():
            weights[allowed] = row[allowed].softmax(dim=0)
        rows.append(weights)
    return torch.stack(rows).view_as(E)


def softmax_in_float32(E, mask=None):
    return shifted_softmax(E.float(), mask)


def lstm_by_gates(x, h, c, W, b):
    joined = torch.hstack([h, x])
    gates = zip(W.chunk(4), b.chunk(4), strict=True)
    i, f, o, g = (joined @ weights.T + bias for weights, bias in gates)
    c_new = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return o.sigmoid() * c_new.tanh(), c_new


def torchs_lstm(x, h, c, W, b):
    H = h.shape[1]
    i, f, o, g = torch.arange(4 * H).chunk(4)
    rows = torch.cat([i, f, g, o])
    W, b = W[rows], b[rows]
    return torch.lstm_cell(x, (h, c), W[:, H:], W[:, :H], b, torch.zeros_like(b))


def lstm_in_float32(x, h, c, W, b):
    return lstm_by_gates(x.float(), h.float(), c.float(), W.float(), b.float())


def compared_mask(T, past=0):
    return torch.arange(past + T) <= past + torch.arange(T)[:, None]


def mask_by_rows(T, past=0):
    rows = [[True] * (past + t + 1) + [False] * (T - t - 1) for t in range(T)]
    return torch.tensor(rows, dtype=torch.bool)


def turned_halves(X, positions=None, base=10000.0):
    T, D_h = X.shape[-2:]
    if D_h % 2 == 1:
        raise ValueError(f"{D_h} features")
    t = torch.arange(T) if positions is None else positions
    angles = t.double()[:, None] * base ** (-torch.arange(0, D_h, 2).double() / D_h)
    x, y = X[..., : D_h // 2], X[..., D_h // 2 :]
    turned = [x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos()]
    return torch.cat(turned, dim=-1).to(X.dtype)


def rope_by_matrices(X, positions=None, base=10000.0):
    T, D_h = X.shape[-2:]
    if D_h % 2:
        raise ValueError(f"{D_h} features")
    rows = []
    positions = range(T) if positions is None else positions.tolist()
    for t, x in zip(positions, X.unbind(-2), strict=True):
        turn = torch.zeros(D_h, D_h, dtype=torch.float64)
        for i in range(D_h // 2):
            angle, j = t * base ** (-2 * i / D_h), i + D_h // 2
            turn[i, i] = turn[j, j] = math.cos(angle)
            turn[j, i], turn[i, j] = math.sin(angle), -math.sin(angle)
        rows.append(x.double() @ turn.T)
    return torch.stack(rows, dim=-2).to(X.dtype)


class OneTensorCache:
    def __init__(self, B, G, capacity, D_h, dtype=torch.float32, device="cpu"):
        self.kept = torch.zeros(2, B, G, capacity, D_h, dtype=dtype, device=device)
        self.length = 0

    def append(self, K, V):
        _, B, G, capacity, D_h = self.kept.shape
        T = K.shape[-2]
        if not K.shape == V.shape == (B, G, T, D_h):
            raise ValueError("another shape")
        if self.length + T > capacity:
            raise ValueError("no room")
        for part, new in zip(self.kept, (K, V), strict=True):
            part[:, :, self.length : self.length + T] = new.detach()
        self.length += T

    def read(self):
        K, V = self.kept[:, :, :, : self.length]
        return K, V

    def truncate(self, length):
        if length < 0 or length > self.length:
            raise ValueError("more than there is")
        self.length = length


class GrowingCache:
    def __init__(self, B, G, capacity, D_h, dtype=torch.float32, device="cpu"):
        self.capacity = capacity
        self.pair = [torch.empty(B, G, 0, D_h, dtype=dtype, device=device) for _ in range(2)]

    @property
    def length(self):
        return self.pair[0].shape[2]

    def append(self, K, V):
        pair = []
        for part, new in zip(self.pair, (K, V), strict=True):
            if new.dim() != 4 or new.shape[:2] != part.shape[:2] or new.shape[3] != part.shape[3]:
                raise ValueError("another shape")
            pair.append(torch.cat([part, new.detach().to(part)], dim=2))
        if pair[0].shape != pair[1].shape or pair[0].shape[2] > self.capacity:
            raise ValueError("no room, or not as many values as keys")
        self.pair = pair

    def read(self):
        return list(self.pair)

    def truncate(self, length):
        if not 0 <= length <= self.length:
            raise ValueError("more than there is")
        self.pair = [part[:, :, :length] for part in self.pair]


class StackAllocator:
    unused: Any = ()

    def __init__(self, blocks):
        self.references = [0] * blocks
        self.unused = [*range(blocks)]

    @property
    def available(self):
        return len(self.unused)

    def allocate(self):
        if not self.unused:
            raise OutOfBlocks("none is left")
        block = self.unused.pop()
        self.references[block] = 1
        return block

    def share(self, block):
        if self.references[block] == 0:
            raise ValueError("nobody has it")
        self.references[block] += 1

    def free(self, block):
        if self.references[block] == 0:
            raise ValueError("nobody had it")
        self.references[block] -= 1
        if self.references[block] == 0:
            self.unused.append(block)


class CountingAllocator:
    def __init__(self, blocks):
        self.references = [0] * blocks

    @property
    def available(self):
        return self.references.count(0)

    def allocate(self):
        if 0 not in self.references:
            raise OutOfBlocks("none is left")
        block = self.references.index(0)
        self.references[block] = 1
        return block

    def share(self, block, users=1):
        if self.references[block] == 0:
            raise ValueError("nobody has it")
        self.references[block] += users

    def free(self, block):
        self.share(block, -1)


def accept_in_a_loop(p, q, drafted, u):
    k = len(drafted)
    if len(p) != k + 1 or len(u) != k + 1 or len(q) != k:
        raise ValueError("rows are missing")
    kept, left = [], p[k]
    for n, token in enumerate(drafted.tolist()):
        if u[n] * q[n, token] < p[n, token]:
            kept.append(token)
            continue
        left = (p[n] - q[n]).clamp(min=0)
        left = left if left.sum() > 0 else p[n]
        break
    return drafted.new_tensor([*kept, _drawn(left, u[k])])


def accept_at_once(p, q, drafted, u):
    k = len(drafted)
    if p.shape[0] != k + 1 or u.shape[0] != k + 1 or q.shape[0] != k:
        raise ValueError("rows are missing")
    places = torch.arange(k)
    passes = u[:k] * q[places, drafted] < p[places, drafted]
    n = int(passes.long().cumprod(dim=0).sum())
    left = torch.relu(p[n] - torch.cat([q, 0 * p[:1]])[n])
    left = left if left.any() else p[n]
    return torch.cat([drafted[:n], drafted.new_tensor([_drawn(left, u[k])])])


def _drawn(p: Tensor, u: Tensor) -> int:
    reached = p.double().cumsum(dim=0)
    return int(torch.searchsorted(reached, u.double() * reached[-1], right=True))


def scan_step_by_step(a, b):
    state, states = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        state = a[:, t] * state + b[:, t]
        states.append(state)
    return torch.stack(states, dim=1)


def scan_in_levels(a, b):
    step = 1
    while step < a.shape[1]:
        before = torch.cat([torch.zeros_like(b[:, :step]), b[:, :-step]], dim=1)
        b = a * before + b
        a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], dim=1)
        step *= 2
    return b


def scan_in_float32(a, b):
    return scan_step_by_step(a.float(), b.float())


# How right solutions work, by the exercise and what messages say of them.
RIGHT: dict[str, dict[str, Callable]] = {
    "softmax": {
        "subtracts the largest score of each row": shifted_softmax,
        "goes through the rows in a loop": softmax_by_rows,
        "computes in float32": softmax_in_float32,
    },
    "lstm_step": {
        "multiplies by one gate's weights at a time": lstm_by_gates,
        "is torch's own": torchs_lstm,
        "computes in float32": lstm_in_float32,
    },
    "causal_mask": {
        "compares the numbers of the positions": compared_mask,
        "writes the rows one by one": mask_by_rows,
    },
    "rope": {
        "turns the two halves": turned_halves,
        "multiplies by rotation matrices": rope_by_matrices,
    },
    "kv_cache": {
        "keeps keys and values in one tensor": OneTensorCache,
        "takes memory as it grows, and reads out a list": GrowingCache,
    },
    "block_allocator": {
        "hands out the block that was freed last": StackAllocator,
        "has no list of free blocks": CountingAllocator,
    },
    "acceptance": {
        "goes through the tokens in a loop": accept_in_a_loop,
        "looks at all tokens at once": accept_at_once,
    },
    "scan": {
        "takes one step after the other": scan_step_by_step,
        "joins steps level by level": scan_in_levels,
        "computes in float32": scan_in_float32,
    },
}


class Wrong(NamedTuple):
    """A wrong solution.

    Args:
        name: of the check for it.
        what: what it does, for messages.
        base: the right solution of which it is made.
        edits: what that says once, and what the wrong one says instead.
    """

    name: str
    what: str
    base: Callable
    edits: tuple[tuple[str, str], ...]


def _wrong(base: Callable, name: str, what: str, *edits: tuple[str, str]) -> Wrong:
    return Wrong(name, what, base, edits)


WRONG: dict[str, list[Wrong]] = {
    "softmax": [
        _wrong(
            shifted_softmax,
            "wrong_axis",
            "normalises over the queries",
            ("parts.sum(dim=-1", "parts.sum(dim=-2"),
        ),
        _wrong(
            shifted_softmax,
            "overflow",
            "takes exponentials of the scores as they are, however large",
            ("(E - highest)", "E"),
        ),
        _wrong(
            shifted_softmax,
            "forbidden_counts",
            "also counts forbidden keys in the sum by which it divides",
            ("total = parts.sum(", "total = (E - highest).exp().sum("),
        ),
        _wrong(
            shifted_softmax,
            "empty_row",
            "divides 0 by 0 where a query may look nowhere",
            ("total.masked_fill(total == 0, 1)", "total"),
        ),
        _wrong(
            shifted_softmax,
            "in_place",
            "changes the scores that it is given",
            ("parts = (E - highest)", "E.data -= highest\n    parts = E"),
        ),
    ],
    "lstm_step": [
        _wrong(
            lstm_by_gates,
            "torch_order",
            "reads the gates in torch's order",
            ("i, f, o, g =", "i, f, g, o ="),
        ),
        _wrong(
            lstm_by_gates,
            "old_cell",
            "computes h from the cell state before the step",
            ("c_new.tanh()", "c.tanh()"),
        ),
        _wrong(
            lstm_by_gates,
            "forgets",
            "loses the old cell state",
            ("torch.sigmoid(f) * c", "0 * c"),
        ),
        _wrong(
            lstm_by_gates,
            "first_sequence",
            "takes the first sequence's h for the whole batch",
            ("hstack([h, x])", "hstack([h[:1].expand_as(h), x])"),
        ),
        _wrong(
            lstm_by_gates,
            "in_place",
            "changes the cell state that it is given",
            ("    return o", "    c.data.copy_(c_new)\n    return o"),
        ),
    ],
    "causal_mask": [
        _wrong(
            compared_mask,
            "not_itself",
            "forbids each position itself",
            ("<=", "<"),
        ),
        _wrong(
            compared_mask,
            "no_past",
            "forgets that positions come after a past",
            ("<= past +", "<="),
        ),
        _wrong(
            compared_mask,
            "transposed",
            "lets positions see what comes after them",
            ("<=", ">="),
        ),
        _wrong(
            compared_mask,
            "numbers",
            "holds zeros and ones in place of truth values",
            ("return torch.arange(past + T)", "return 1.0 * (torch.arange(past + T)"),
            ("[:, None]", "[:, None])"),
        ),
    ],
    "rope": [
        _wrong(
            turned_halves,
            "neighbours",
            "pairs neighbouring features",
            ("x, y = X[..., : D_h // 2], X[..., D_h // 2 :]", "x, y = X[..., ::2], X[..., 1::2]"),
            ("torch.cat(turned, dim=-1)", "torch.stack(turned, dim=-1).flatten(-2)"),
        ),
        _wrong(
            turned_halves,
            "ignores_positions",
            "takes positions 0, 1, 2, … whatever is given",
            ("if positions is None else positions", ""),
        ),
        _wrong(
            turned_halves,
            "ignores_base",
            "turns by a base of 10000 whatever is given",
            ("* base **", "* 10000.0 **"),
        ),
        _wrong(
            turned_halves,
            "keeps_angles",
            "keeps the angles of its first call for later ones",
            ("base=10000.0)", "base=10000.0, kept={})"),
            ("angles = t", "angles = kept.setdefault((T, D_h), t"),
            ("double() / D_h)", "double() / D_h))"),
        ),
        _wrong(
            turned_halves,
            "odd",
            "accepts an odd number of features",
            ("D_h % 2 == 1", "D_h % 2 == 2"),
            (": D_h // 2], X[..., D_h // 2 :]", ": (D_h + 1) // 2], X[..., D_h // 2 :]"),
        ),
    ],
    "kv_cache": [
        _wrong(
            OneTensorCache,
            "from_the_start",
            "writes what is appended over what was there",
            ("part[:, :, self.length : self.length + T]", "part[:, :, :T]"),
        ),
        _wrong(
            OneTensorCache,
            "behind_the_cut",
            "goes on after what was cut off, once it has been truncated",
            ("        self.length = length\n", "        self.length, self.cut = length, True\n"),
            (
                "part[:, :, self.length : self.length + T]",
                "part[:, :, self.length + hasattr(self, 'cut') :][:, :, :T]",
            ),
        ),
        _wrong(
            OneTensorCache,
            "half_appended",
            "has grown although it has refused what was appended",
            ('raise ValueError("no room")', 'self.length += T\n            raise ValueError("no")'),
        ),
        _wrong(
            OneTensorCache,
            "one_for_all",
            "shares its memory with all other caches",
            ('device="cpu")', 'device="cpu", one={})'),
            ("self.kept = torch", "self.kept = one.setdefault((B, G, capacity, D_h), torch"),
            ("device=device)", "device=device))"),
        ),
        _wrong(
            OneTensorCache,
            "mixed_up",
            "gives back values as keys and keys as values",
            ("return K, V", "return V, K"),
        ),
    ],
    "block_allocator": [
        _wrong(
            StackAllocator,
            "freed_by_one",
            "takes a block back although others still use it",
            ("references[block] -= 1", "references[block] = 0"),
        ),
        _wrong(
            StackAllocator,
            "leaks",
            "never hands out again what was freed",
            ("self.unused.append(block)", "pass"),
        ),
        _wrong(
            StackAllocator,
            "double_free",
            "takes a block back twice without a word",
            ('raise ValueError("nobody had it")', "return self.unused.append(block)"),
        ),
        _wrong(
            StackAllocator,
            "one_list",
            "has one list of free blocks for all allocators",
            ("unused: Any = ()", "unused: Any = []"),
            ("self.unused = [*range(blocks)]", "self.unused.extend(range(blocks))"),
        ),
        _wrong(
            StackAllocator,
            "last_refused",
            "refuses to hand out the last block",
            ("if not self.unused:", "if len(self.unused) < 2:"),
        ),
    ],
    "acceptance": [
        _wrong(
            accept_in_a_loop,
            "always",
            "accepts every drafted token",
            ("if u[n] * q[n, token] < p[n, token]", "if True"),
        ),
        _wrong(
            accept_in_a_loop,
            "from_p",
            "draws from p after a rejection, and not from what q leaves of it",
            ("left = (p[n] - q[n]).clamp(min=0)", "left = p[n]"),
        ),
        _wrong(
            accept_in_a_loop,
            "none_added",
            "adds no token when all are accepted",
            ("[*kept, _drawn(left, u[k])]", "([*kept, _drawn(left, u[k])])[: max(k, 1)]"),
        ),
        _wrong(
            accept_in_a_loop,
            "same_number",
            "draws with the number that has rejected the token before",
            ("_drawn(left, u[k])", "_drawn(left, u[len(kept)])"),
        ),
        _wrong(
            accept_in_a_loop,
            "goes_on",
            "keeps tokens that come after a rejected one",
            ("        break\n", ""),
        ),
    ],
    "scan": [
        _wrong(
            scan_in_levels,
            "plain_sum",
            "sums what is added, as if nothing were forgotten",
            ("b = a * before + b", "b = before + b"),
        ),
        _wrong(
            scan_in_levels,
            "too_few_levels",
            "computes one level too few",
            ("while step <", "while 2 * step <"),
        ),
        _wrong(
            scan_step_by_step,
            "by_division",
            "divides by the product of all a, also where that is zero",
            (
                "    state, states",
                "    c = a.cumprod(dim=1)\n    return c * (b / c).cumsum(dim=1)\n    state, states",
            ),
        ),
        _wrong(
            scan_step_by_step,
            "late",
            "gives the states before each step in place of those after it",
            (
                "        state = a[:, t] * state + b[:, t]\n        states.append(state)",
                "        states.append(state)\n        state = a[:, t] * state + b[:, t]",
            ),
        ),
        _wrong(
            scan_step_by_step,
            "in_place",
            "changes what is added, which it is given",
            ("return torch.stack(states, dim=1)", "return b.copy_(torch.stack(states, dim=1))"),
        ),
    ],
}


def right(exercise: str, number: int) -> Callable:
    """Give a right solution of an exercise."""
    return [*RIGHT[exercise].values()][number]


def wrong(exercise: str, number: int) -> Callable:
    """Make a wrong solution of an exercise."""
    return edited(*WRONG[exercise][number][1:])


def edited(what: str, solution: Callable, edits: tuple[tuple[str, str], ...]) -> Any:
    """Make a solution anew, with some of its text replaced.

    Raises:
        ValueError: what is to be replaced does not occur once.
    """
    source = inspect.getsource(solution)
    for before, after in edits:
        if source.count(before) != 1:
            raise ValueError(f"{before!r} must occur once in {solution.__name__}")
        source = source.replace(before, after)
    file = f"<{solution.__name__}, but it {what}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = dict(vars(inspect.getmodule(solution)))
    exec(compile(source, file, "exec"), namespace)
    return namespace[solution.__name__]
