"""Tests of eight exercises that tell right solutions from wrong ones, and tools to make them with.

Shapes: B sequences, T positions, D features, H hidden features or heads.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from course_pkg.data.judge import B, D, H, T, rand, randn, refuses
from course_pkg.engine.requests import OutOfBlocks


def assert_near(given: Tensor, expected: Float[Tensor, "..."]) -> None:
    """Fail unless two tensors agree as closely as float32 allows, whatever their type.

    |given - expected| ≤ 10⁻⁵ + 10⁻⁴ |expected|   in every entry

    Args:
        given: what a solution has returned.
        expected: what is right, all of it finite.
    Raises:
        AssertionError: given is no tensor, has another shape, or an entry that differs; NaN and ∞
            always do.
    """
    if not isinstance(given, Tensor) or given.shape != expected.shape:
        raise AssertionError(f"should be of shape {tuple(expected.shape)}, is {given}")
    close = (given - expected).abs() <= 1e-5 + 1e-4 * expected.abs()
    if not close.all():
        raise AssertionError(f"should be {expected}, is {given}")


def check_softmax(softmax: Callable) -> None:
    """Fail unless a function shares weights among allowed keys as `masked_softmax` promises.

    Args:
        softmax: called with scores E (…, N_Q, N_X) and, or not, a mask that broadcasts to them.
    Raises:
        AssertionError: it is wrong: in its values, without a mask or with one, for a query that may
            look nowhere, for scores as large as 10¹⁰, in its gradients, or because E has changed.
    """
    E, mask = randn(B, T, D), randn(T, D) > 0
    mask[0] = False
    given = E.clone().requires_grad_()
    A = softmax(given, mask)
    weights = torch.where(mask, E.exp(), 0)
    assert_near(A, (weights / weights.sum(dim=-1, keepdim=True)).nan_to_num())
    assert torch.equal(given, E)
    (gradient,) = torch.autograd.grad(A.sum(), given)
    assert gradient.isfinite().all()
    assert_near(softmax(E), E.exp() / E.exp().sum(dim=-1, keepdim=True))
    largest = torch.where(mask, E, -math.inf).amax(dim=-1, keepdim=True)
    assert_near(softmax(1e10 * E, mask), (E == largest).double())


def check_causal_mask(make_mask: Callable) -> None:
    """Fail unless a function makes the masks that `causal_mask` promises.

    Args:
        make_mask: called with T and, or not, with how many positions lie in the past.
    Raises:
        AssertionError: it is wrong: in its values, with a past or without, or in their type.
    """
    for past in range(D):
        mask = make_mask(T, past)
        assert mask.dtype == torch.bool
        assert mask.tolist() == [[s <= past + t for s in range(past + T)] for t in range(T)]
    assert torch.equal(make_mask(T), make_mask(T, 0))


def check_lstm_step(step: Callable) -> None:
    """Fail unless a function takes the step that `lstm_step` promises.

    Args:
        step: called with x (B, D), h and c (B, H), W (4H, H+D) and b (4H); returns h_t and c_t.
    Raises:
        AssertionError: it is wrong: in a value, because c has changed, or because no gradient
            reaches an argument.
    """
    x, (h, c), W, b = randn(B, D), randn(2, B, H), randn(4 * H, H + D), randn(4 * H)
    given = [tensor.clone().requires_grad_() for tensor in (x, h, c, W, b)]
    h_t, c_t = step(*given)
    i, f, o, g = (h @ W[:, :H].T + x @ W[:, H:].T + b).chunk(4, dim=1)
    new = f.sigmoid() * c + i.sigmoid() * g.tanh()
    assert_near(c_t, new)
    assert_near(h_t, o.sigmoid() * new.tanh())
    assert torch.equal(given[2], c)
    (h_t + c_t).sum().backward()
    assert all(tensor.grad is not None for tensor in given)


def check_rope(rope: Callable) -> None:
    """Fail unless a function turns pairs of features as `rope_rotate` promises.

    Args:
        rope: called with X (…, T, D_h) and, or not, with positions (T) and a base.
    Raises:
        AssertionError: it is wrong: in a value, with or without positions and another base, because
            it remembers an earlier call, or because an odd D_h is not refused with a ValueError.
    """

    def turned(positions, base):
        angles = positions[:, None] * base ** (-torch.arange(0, H, 2) / H)
        Z = torch.complex(*X.chunk(2, dim=-1)) * torch.exp(1j * angles)
        return torch.cat([Z.real, Z.imag], dim=-1)

    X, t = randn(B, D, T, H), torch.arange(T)
    assert_near(rope(X), turned(t, 10000.0))
    assert_near(rope(X, base=T), turned(t, T))
    assert_near(rope(X, randn(T)), turned(randn(T), 10000.0))
    assert refuses(ValueError, rope, X[..., 1:])


def check_scan(scan: Callable) -> None:
    """Fail unless a function computes the states that `parallel_scan` promises.

    Args:
        scan: called with a and b (B, T, …); returns h_1 … h_T of h_t = a_t ⊙ h_{t-1} + b_t.
    Raises:
        AssertionError: it is wrong: in a value, where some a are 0 too, because b has changed, or
            because no gradient reaches a.
    """
    a, b = randn(2, B, T, D)
    a[0] = a[0].relu()
    a.requires_grad_()
    given = b.clone()
    found = scan(a, given)
    h = 0
    for t in range(T):
        h = a[:, t] * h + b[:, t]
        assert_near(found[:, t], h)
    assert torch.equal(given, b)
    found.sum().backward()


def check_acceptance(accept: Callable) -> None:
    """Fail unless a function accepts and draws tokens as `accept_or_resample` promises.

    Args:
        accept: called with p (k+1, V), q (k, V), drafted (k) and u (k+1); returns the tokens that
            were accepted and the one that was drawn.
    Raises:
        AssertionError: it is wrong: in a token, whether some are rejected or all accepted, or
            because rows that are missing are not refused with a ValueError.
    """
    k, V = B, T
    cases = zip(
        randn(V**k, k + 1, V).softmax(dim=-1),
        randn(V**k, k, V).softmax(dim=-1),
        torch.cartesian_prod(*[torch.arange(V)] * k),
        rand(V**k, k + 1),
        strict=True,
    )
    for p, q, drafted, u in cases:
        ratios = p[:k].gather(1, drafted[:, None]) / q.gather(1, drafted[:, None])
        passed = (u[:k] < ratios[:, 0]).tolist()
        n = [*passed, False].index(False)
        left = (p[n] - q[n]).clamp(min=0) if n < k else p[k]
        token = (left.cumsum(dim=0) <= u[k] * left.sum()).sum()
        assert accept(p, q, drafted, u).tolist() == [*drafted[:n].tolist(), token]
    assert refuses(ValueError, accept, p[:k], q, drafted, u)


def check_kv_cache(make: Callable) -> None:
    """Fail unless a class keeps keys and values as `KVCache` promises.

    Args:
        make: called with B, G, capacity, D_h and a dtype; what it makes has append, read, truncate
            and length.
    Raises:
        AssertionError: it is wrong: in what is read, its type or its length, after appending,
            truncating and appending again, after something was refused, because a ValueError does
            not come, because a gradient is kept, or because two caches share memory.
    """

    def demand(N, K, V):
        assert cache.length == N
        for found, expected in zip(cache.read(), (K, V), strict=True):
            assert found.dtype == torch.float64 and not found.requires_grad
            assert_near(found, expected[:, :, :N])

    K, V = randn(2, B, H, T, D).requires_grad_()
    cache, other = (make(B, H, T, D, torch.float64) for _ in range(2))
    cache.append(K[:, :, :D].float(), V[:, :, :D].float())
    other.append(V, K)
    demand(D, K, V)
    assert refuses(ValueError, cache.append, K, V)
    assert refuses(ValueError, cache.append, K[:1, :, D:], V[:1, :, D:])
    assert refuses(ValueError, cache.append, K[:, :, D:], V[:, :, :1])
    assert refuses(ValueError, cache.truncate, T)
    assert refuses(ValueError, cache.truncate, -1)
    cache.append(K[:, :, D:], V[:, :, D:])
    cache.append(K[:, :, T:], V[:, :, T:])
    cache.truncate(B)
    demand(B, K, V)
    cache.append(V[:, :, B:], K[:, :, B:])
    demand(T, torch.cat([K[:, :, :B], V[:, :, B:]], 2), torch.cat([V[:, :, :B], K[:, :, B:]], 2))


def check_block_allocator(make: Callable) -> None:
    """Fail unless a class hands out blocks as `BlockAllocator` promises.

    Args:
        make: called with the number of blocks; what it makes has allocate, share, free, references
            and available.
    Raises:
        AssertionError: it is wrong: in a block that it hands out, in what it counts, because
            OutOfBlocks or ValueError does not come or leaves a change behind, or because two
            allocators share blocks.
    """

    def demand(users, available):
        assert allocator.references[block] == users and allocator.available == available

    allocator = make(T)
    make(D).allocate()
    blocks = [allocator.allocate() for _ in range(T)]
    assert sorted(blocks) == list(range(T))
    assert refuses(OutOfBlocks, allocator.allocate)
    block = blocks[B]
    allocator.share(block)
    allocator.share(block)
    for users in (3, 2, 1):
        demand(users, 0)
        allocator.free(block)
    assert refuses(ValueError, allocator.free, block)
    assert refuses(ValueError, allocator.share, block)
    demand(0, 1)
    assert allocator.allocate() == block


def finite_differences(
    f: Callable, x: Float[Tensor, "..."], step: float = 1e-6
) -> Float[Tensor, "..."]:
    """Estimate the gradient of a function by changing one entry of its argument at a time.

    ∂f/∂x_n ≈ (f(x + step e_n) - f(x - step e_n)) / (2 step),   e_n: 1 at entry n, else 0

    Args:
        f: gives a number, or a tensor that holds one.
        x: where, of any shape; it is not changed.
        step: how far to go to either side.
    Returns:
        The gradient, in the shape of x.
    Raises:
        ValueError: x is not of float64: in float32 the difference would be rounding.
    """
    if x.dtype != torch.float64:
        raise ValueError(f"x should be of float64, not {x.dtype}")
    gradient = x.new_zeros(x.shape)
    for n in range(x.numel()):
        move = x.new_zeros(x.shape)
        move.view(-1)[n] = step
        gradient.view(-1)[n] = (f(x + move) - f(x - move)) / (2 * step)
    return gradient


def metamorphic(
    f: Callable, inputs: list[Tensor], transform: Callable, relation: Callable
) -> list[int]:
    """Find inputs at which a function breaks a relation between two of its own results.

    relation(f(x), f(transform(x))) should hold for every x: no right result need be known.
    (Chen et al. 1998)

    Args:
        f: the function; it gets copies, and what it changes in them is lost.
        inputs: its arguments.
        transform: gives another argument for one.
        relation: tells whether two results fit together.
    Returns:
        The numbers of the inputs at which the relation does not hold, or f raises an exception.
    """
    broken = []
    for n, x in enumerate(inputs):
        other = transform(x.clone())
        try:
            results = f(x.clone()), f(other)
        except Exception:
            broken.append(n)
            continue
        if not relation(*results):
            broken.append(n)
    return broken


def shrink(fails: Callable, items: list) -> list:
    """Leave out of a list what is not needed for a failure.

    The whole list is left out first, then halves of it, quarters, and so on down to single items,
    until no single item can be left out. A shorter list that fails may exist all the same. (Zeller
    & Hildebrandt 2002; theirs tries the parts by themselves, too)

    Args:
        fails: tells whether a test fails with a list of items.
        items: with these it does; they are not changed.
    Returns:
        Some of the items, in their order. With all of them the test fails, and without any single
        one of them it does not.
    Raises:
        ValueError: the test does not fail with all items.
    """
    if not fails(items):
        raise ValueError("the test does not fail with these items")
    size = len(items)
    while size:
        start, before = 0, len(items)
        while start < len(items):
            fewer = items[:start] + items[start + size :]
            if fails(fewer):
                items = fewer
            else:
                start += size
        if size > 1 or len(items) == before:
            size //= 2
    return items


def diagnose(
    black_box: Callable, candidates: list[Callable], inputs: list[Tensor], calls: int = 10
) -> int:
    """Find out which of several functions a black box is, by few calls of it.

    The candidates may be called as often as one likes. The next input for the black box is one by
    which the most of those that are left differ: where the largest group of equal results is
    smallest.

    Args:
        black_box: does the same as one of the candidates.
        candidates: functions of a tensor, which return a tensor, of NaN too, or raise an exception.
        inputs: what they may be called with; together they tell all candidates apart.
        calls: how often the black box may be called.
    Returns:
        The number of the candidate.
    Raises:
        ValueError: the calls do not suffice.
    """

    def outcome(f: Callable, x: Tensor) -> str:
        try:
            return str(f(x.clone()).tolist())
        except Exception as error:
            return type(error).__name__

    known = [[outcome(f, x) for x in inputs] for f in candidates]
    left = list(range(len(candidates)))
    while len(left) > 1 and calls > 0:
        groups = [[known[c][n] for c in left] for n in range(len(inputs))]
        n = min(range(len(inputs)), key=lambda n: max(map(groups[n].count, groups[n])))
        found = outcome(black_box, inputs[n])
        left = [c for c in left if known[c][n] == found]
        calls -= 1
    if len(left) != 1:
        raise ValueError(f"{len(left)} candidates are left")
    return left[0]
