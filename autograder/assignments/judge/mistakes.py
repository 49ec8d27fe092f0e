"""Known wrong solutions of judge: tests that let mistakes pass, or reject what is right."""

from collections.abc import Callable

import torch

from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.checks.judge import TESTED, name_of
from course_pkg.data.judge import WRONG, B, D, H, T, rand, randn
from course_pkg.judge import (
    assert_near,
    check_acceptance,
    check_block_allocator,
    check_causal_mask,
    check_kv_cache,
    check_lstm_step,
    check_rope,
    check_scan,
    check_softmax,
    diagnose,
    finite_differences,
    metamorphic,
    shrink,
)

REJECTS = "rejects a right solution"


def add_common_mistakes(reference: Callable) -> None:
    """Register what can go wrong in a test of anything."""
    first = f"✗ {reference.__name__} · {WRONG[name_of(reference)][0].name}"

    @bug(reference, "a failure is caught and forgotten", told_by=first)
    def swallows(f):
        try:
            reference(f)
        except Exception as error:
            print(error)

    @bug(
        reference,
        "a wrong solution is told by False and not by an exception",
        told_by="It returns the value True",
    )
    def gives_truth(f):
        try:
            reference(f)
        except Exception:
            return False
        return True

    @bug(reference, "whatever comes is rejected", told_by=REJECTS)
    def rejects_all(f):
        reference(f)
        raise AssertionError("it must be wrong")

    @bug(reference, "a test that should pass is expected to fail", told_by=REJECTS)
    def turned_around(f):
        try:
            reference(f)
        except Exception:
            return
        raise AssertionError("it should have failed")


for reference in TESTED:
    add_common_mistakes(reference)

mistakes(
    assert_near,
    """
* bit_by_bit: numbers must be the same to the last bit
    <= 1e-5 + 1e-4 * expected.abs() → <= 0
    says: ✗ assert_near · agrees
too_wide: the tolerance is a hundred times as wide
    1e-4 * → 1e-2 *
    says: ✗ assert_near · differs
absolute: what a number may differ by does not grow with the number
    1e-5 + 1e-4 * expected.abs() → 1e-5
    says: ✗ assert_near · agrees
relative: nothing may differ where 0 is expected
    1e-5 + 1e-4 → 1e-4
    says: ✗ assert_near · agrees
on_average: most entries must be near, and not all
    not close.all() → close.double().mean() < 0.6
    says: ✗ assert_near · differs
one_sided: only entries that are too large are found
    (given - expected).abs() → (given - expected)
    says: ✗ assert_near · differs
broadcasts: shapes need only broadcast
    given.shape != expected.shape → False
    says: ✗ assert_near · shapes
nan_passes: NaN differs from nothing
    .abs() <= 1e-5 + → .abs().nan_to_num(0) <= 1e-5 +
    says: ✗ assert_near · numbers
same_type: the numbers must be of the same type
    given.shape != expected.shape → (given.shape, given.dtype) != (expected.shape, expected.dtype)
    says: ✗ assert_near · agrees
gives_truth: it returns False where it should raise an exception
    raise AssertionError(f"should be {expected}, is {given}") → return False
    says: ✗ assert_near · differs
""",
)

mistakes(
    check_softmax,
    """
* small_scores: large scores are never tried
    1e10 * E, mask → E, mask
    (E == largest).double() → (weights / weights.sum(dim=-1, keepdim=True)).nan_to_num()
    says: ✗ check_softmax · overflow
never_empty: every query may look somewhere
    mask[0] = False → mask[0] = True
    says: ✗ check_softmax · empty_row
looks_away: whether the scores have changed is not looked at
    assert torch.equal(given, E) → pass
    says: ✗ check_softmax · in_place
compares_exactly: results must be the same to the last bit
    assert_near(A, (weights → assert torch.equal(A, (weights
    says: rejects a right solution
""",
)


@bug(check_softmax, "the shape alone is looked at", told_by="✗ check_softmax · wrong_axis")
def shape_of_softmax(softmax):
    E = randn(B, T, D)
    assert softmax(E, E > 0).shape == E.shape


@bug(check_softmax, "every row should sum to one, also one of nothing", told_by=REJECTS)
def rows_sum_to_one(softmax):
    check_softmax(softmax)
    E, mask = randn(B, T, D), randn(T, D) > 0
    mask[0] = False
    assert_near(softmax(E, mask).sum(dim=-1), torch.ones(B, T))


@bug(check_softmax, "no mask is ever given", told_by="✗ check_softmax · forbidden_counts")
def never_masks(softmax):
    E = randn(B, T, D)
    given = E.clone()
    assert_near(softmax(given), E.softmax(dim=-1))
    assert torch.equal(given, E)
    assert softmax(1e10 * E).isfinite().all()


mistakes(
    check_causal_mask,
    """
* no_past: no past is ever given
    range(D) → range(1)
    says: ✗ check_causal_mask · no_past
any_type: the type is not looked at
    assert mask.dtype == torch.bool → pass
    says: ✗ check_causal_mask · numbers
""",
)


@bug(
    check_causal_mask,
    "a single position is tried",
    told_by="✗ check_causal_mask · transposed",
)
def one_position(causal_mask):
    assert torch.equal(causal_mask(1), torch.ones(1, 1, dtype=torch.bool))


@bug(
    check_causal_mask,
    "it is counted how many may be seen, and not which",
    told_by="✗ check_causal_mask · transposed",
)
def counts(causal_mask):
    mask = causal_mask(T)
    assert mask.dtype == torch.bool and mask.sum() == T * (T + 1) // 2


@bug(check_causal_mask, "the past should not be seen", told_by=REJECTS)
def without_past(causal_mask):
    check_causal_mask(causal_mask)
    assert torch.equal(causal_mask(T, D), causal_mask(T))


mistakes(
    check_lstm_step,
    """
from_nothing: the states are zero
    (h, c), W, b = randn(B, D), randn(2, B, H) → (h, c), W, b = randn(B, D), 0 * randn(2, B, H)
    says: ✗ check_lstm_step · forgets
* batch_of_one: a single sequence is tried
    randn(B, D), randn(2, B, H) → randn(1, D), randn(2, 1, H)
    says: ✗ check_lstm_step · first_sequence
looks_away: whether c has changed is not looked at
    assert torch.equal(given[2], c) → pass
    says: ✗ check_lstm_step · in_place
cell_alone: only the new cell state is compared
    assert_near(h_t, o.sigmoid() * new.tanh()) → pass
    says: ✗ check_lstm_step · old_cell
""",
)


@bug(
    check_lstm_step,
    "the new states are compared with the changed ones",
    told_by="✗ check_lstm_step · in_place",
)
def compares_with_what_changed(step):
    x, (h, c), W, b = randn(B, D), randn(2, B, H), randn(4 * H, H + D), randn(4 * H)
    given = [tensor.requires_grad_() for tensor in (x, h, c, W, b)]
    i, f, o, g = (h @ W[:, :H].T + x @ W[:, H:].T + b).chunk(4, dim=1)
    new = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h_t, c_t = step(*given)
    assert_near(c_t, new)
    assert_near(h_t, o.sigmoid() * new.tanh())
    assert torch.equal(given[2], c)


mistakes(
    check_rope,
    """
one_base: no other base is tried
    assert_near(rope(X, base=T), turned(t, T)) → pass
    says: ✗ check_rope · ignores_base
no_positions: no positions are ever given
    assert_near(rope(X, randn(T)), turned(randn(T), 10000.0)) → pass
    says: ✗ check_rope · ignores_positions
even_alone: an odd number of features is not tried
    assert refuses(ValueError, rope, X[..., 1:]) → pass
    says: ✗ check_rope · odd
""",
)


@bug(check_rope, "lengths alone are looked at", told_by="✗ check_rope · neighbours")
def lengths_are_kept(rope):
    X = randn(B, D, T, H)
    assert_near(rope(X).norm(dim=-1), X.norm(dim=-1))


@bug(
    check_rope,
    "it is called once",
    told_by="✗ check_rope · keeps_angles",
    classic=True,
)
def calls_once(rope):
    X, t = randn(B, D, T, H), randn(T)
    angles = t[:, None] * T ** (-torch.arange(0, H, 2) / H)
    Z = torch.complex(*X.chunk(2, dim=-1)) * torch.exp(1j * angles)
    assert_near(rope(X, t, T), torch.cat([Z.real, Z.imag], dim=-1))


mistakes(
    check_scan,
    """
one_step: a single step is tried
    randn(2, B, T, D) → randn(2, B, 1, D)
    range(T) → range(1)
    says: ✗ check_scan · plain_sum
* never_zero: no a is zero
    a[0] = a[0].relu() → pass
    says: ✗ check_scan · by_division
looks_away: whether b has changed is not looked at
    assert torch.equal(given, b) → pass
    says: ✗ check_scan · in_place
forgets_nothing: all a are one
    a[0] = a[0].relu() → a = torch.ones_like(a)
    says: ✗ check_scan · by_division
""",
)


@bug(check_scan, "it is told that rounding must be the same", told_by="rejects a right solution")
def same_rounding(scan):
    check_scan(scan)
    a, b = randn(2, B, T, D)
    states = [b[:, 0]]
    for t in range(1, T):
        states.append(a[:, t] * states[-1] + b[:, t])
    assert torch.equal(scan(a, b), torch.stack(states, dim=1))


mistakes(
    check_acceptance,
    """
* one_token: a single token is drafted
    k, V = B, T → k, V = 1, T
    says: ✗ check_acceptance · goes_on
never_rejected: all drafted tokens are accepted
    rand(V**k, k + 1) → 0 * rand(V**k, k + 1)
    says: ✗ check_acceptance · always
same_numbers: all numbers u are the same
    rand(V**k, k + 1), → rand(V**k, 1).expand(-1, k + 1),
    says: ✗ check_acceptance · same_number
""",
)


@bug(
    check_acceptance,
    "how many tokens come is looked at, and not which",
    told_by="✗ check_acceptance · from_p",
)
def counts_tokens(accept):
    p, q, u = randn(20, D + 1, T).softmax(-1), randn(20, D, T).softmax(-1), rand(20, D + 1)
    for n in range(20):
        drafted = torch.arange(D)
        passed = (u[n, :D] < p[n, :D].diagonal() / q[n].diagonal()).tolist()
        assert len(accept(p[n], q[n], drafted, u[n])) == [*passed, False].index(False) + 1


@bug(check_acceptance, "the last token is not looked at", told_by="✗ check_acceptance · always")
def last_is_left(accept):
    p, q, u = randn(20, D + 1, T).softmax(-1), randn(20, D, T).softmax(-1), rand(20, D + 1)
    for n in range(20):
        found = accept(p[n], q[n], torch.arange(D), u[n]).tolist()[:-1]
        assert found == list(range(D))[: len(found)]


mistakes(
    check_kv_cache,
    """
same_values: the values are the keys
    K, V = randn(2, B, H, T, D).requires_grad_() → K = V = randn(B, H, T, D).requires_grad_()
    says: ✗ check_kv_cache · mixed_up
* one_cache: a single cache is in use
    other.append(V, K) → pass
    says: ✗ check_kv_cache · one_for_all
never_full: nothing is appended to a full cache
    assert refuses(ValueError, cache.append, K, V) → pass
    says: ✗ check_kv_cache · half_appended
""",
)

changed(
    check_kv_cache,
    "never_truncates",
    "nothing is appended after a cut",
    ("    cache.append(V[:, :, B:], K[:, :, B:])\n", "    return\n"),
    told_by="✗ check_kv_cache · behind_the_cut",
)


@bug(
    check_kv_cache,
    "lengths alone are looked at",
    told_by="✗ check_kv_cache · from_the_start",
)
def lengths_of_cache(make):
    cache = make(B, H, T, D)
    cache.append(randn(B, H, D, D), randn(B, H, D, D))
    cache.append(randn(B, H, B, D), randn(B, H, B, D))
    assert cache.length == T and cache.read()[0].shape == (B, H, T, D)


mistakes(
    check_block_allocator,
    """
* freed_once: a free block is not freed again
    assert refuses(ValueError, allocator.free, block) → pass
    says: ✗ check_block_allocator · double_free
one_allocator: a single allocator is in use
    make(D).allocate() → pass
    says: ✗ check_block_allocator · one_list
""",
)


@bug(
    check_block_allocator,
    "no block is shared",
    told_by="✗ check_block_allocator · freed_by_one",
)
def never_shares(make):
    allocator = make(T)
    block = allocator.allocate()
    allocator.free(block)
    assert allocator.available == T


@bug(
    check_block_allocator,
    "not all blocks are handed out",
    told_by="✗ check_block_allocator · last_refused",
)
def stops_early(make):
    allocator = make(T)
    blocks = [allocator.allocate() for _ in range(D)]
    assert len(set(blocks)) == D and allocator.available == T - D


@bug(check_block_allocator, "blocks should come in the order of their numbers", told_by="rejects a")
def in_order(make):
    check_block_allocator(make)
    allocator = make(T)
    assert [allocator.allocate() for _ in range(T)] == list(range(T))


mistakes(
    finite_differences,
    """
* forward: it goes to one side alone
    f(x - move)) / (2 * step) → f(x)) / step
one_step_wide: it divides by the step, although it goes two
    (2 * step) → step
own_step: the step is always 10⁻⁶
    = step → = 1e-6
    (2 * step) → 2e-6
turned: the sides are exchanged
    f(x + move) - f(x - move) → f(x - move) - f(x + move)
all_at_once: all entries are moved at once
    move.view(-1)[n] = step → move += step
no_limit: float32 is accepted
    if x.dtype != torch.float64 → if False
    says: should raise ValueError when x is of float32
in_place: x is changed in place
    move = x.new_zeros(x.shape) → move = x
    move.view(-1)[n] = step → move.view(-1)[n] += step
    says: changes its argument x in place
strided: an x that is not contiguous has no flat view
    gradient = x.new_zeros(x.shape) → gradient = torch.zeros_like(x)
    says: view size is not compatible
flat: the gradient comes flat
    return gradient → return gradient.flatten()
    says: should have shape
""",
)

mistakes(
    metamorphic,
    """
those_that_hold: it gives the inputs at which the relation holds
    if not relation(*results): → if relation(*results):
    says: ✗ metamorphic · broken_relation
turned: the results come to the relation in the wrong order
    f(x.clone()), f(other) → f(other), f(x.clone())
    says: ✗ metamorphic · broken_relation
not_transformed: both results are those of the same argument
    other = transform(x.clone()) → other = x.clone()
    says: ✗ metamorphic · broken_relation
turned_results: what f gives is transformed, and not its argument
    f(x.clone()), f(other) → f(x.clone()), transform(f(x.clone()))
* own_copies: the function gets the argument itself
    f(x.clone()), f(other) → f(x), f(other)
    says: ✗ metamorphic · copies
own_transform: the transformation gets the argument itself
    transform(x.clone()) → transform(x)
    says: ✗ metamorphic · copies
""",
)

changed(
    metamorphic,
    "exceptions_hold",
    "an exception is passed over",
    ("            broken.append(n)\n            continue", "            continue"),
    told_by="✗ metamorphic · exceptions",
)

changed(
    metamorphic,
    "exceptions_end",
    "an exception of the function ends the search",
    ("            broken.append(n)\n            continue", "            raise"),
    told_by="✗ metamorphic · exceptions",
)

changed(
    metamorphic,
    "gives_inputs",
    "it gives the inputs themselves, and not their numbers",
    (
        "        if not relation(*results):\n            broken.append(n)",
        "        if not relation(*results):\n            broken.append(x)",
    ),
    told_by="✗ metamorphic · broken_relation",
)

changed(
    metamorphic,
    "first_alone",
    "it stops at the first one",
    (
        "        if not relation(*results):\n            broken.append(n)",
        "        if not relation(*results):\n            return [0]",
    ),
    told_by="✗ metamorphic · broken_relation",
)

mistakes(
    shrink,
    """
* one_pass: it stops when single items have been tried once
    if size > 1 or len(items) == before: → if True:
    says: ✗ shrink · no_single
pairs_left: it stops before single items
    while size: → while size > 1:
    says: ✗ shrink · smallest
one_by_one: it tries single items alone
    size = len(items) → size = 1
    says: calls fails more than 60 times
turned: it keeps what does not fail
    if fails(fewer): → if not fails(fewer):
    says: ✗ shrink · smallest
no_error: items with which nothing fails are accepted
    if not fails(items): → if False:
    says: should raise ValueError when the test does not fail
from_the_start: it leaves out items at the start alone
    start += size → start = len(items)
    says: ✗ shrink · smallest
sorted_items: the items come back in another order
    return items → return sorted(items)
    says: ✗ shrink · smallest
""",
)

changed(
    shrink,
    "in_place",
    "the items are left out of the caller's own list",
    ("                items = fewer\n", "                items[:] = fewer\n"),
    told_by="changes its argument items in place",
)

mistakes(
    diagnose,
    """
first_input: the black box is asked the first input first, whatever it tells
    key=lambda n: max(map(groups[n].count, groups[n])) → key=lambda n: len(set(groups[n])) < 2
    says: yours makes more
worst_input: it asks what tells the least
    n = min(range → n = max(range
    says: ✗ diagnose · names_it
* own_arguments: the functions get the arguments themselves
    f(x.clone()) → f(x)
    says: ✗ diagnose · names_it
no_exceptions: an exception of a candidate ends the search
    except Exception as error → except ArithmeticError as error
    says: ✗ diagnose · names_it
guesses: it guesses where several are left
    if len(left) != 1: → if not left:
    says: should raise ValueError when
asks_on: it asks on when a single candidate is left
    len(left) > 1 and calls > 0 → calls > 0
    says: ✗ diagnose · calls_left
gives_function: it gives the candidate, and not its number
    return left[0] → return candidates[left[0]]
    says: ✗ diagnose · names_it
never_narrows: it asks each time as if all were left
    [c for c in left if known → [c for c, _ in enumerate(candidates) if known
    says: ✗ diagnose · names_it
""",
)

BOTH_WAYS = "it is the same from both sides"
for reference, function, pairs in (
    (
        check_softmax,
        "assert_near",
        [
            ("A", "(weights / weights.sum(dim=-1, keepdim=True)).nan_to_num()"),
            ("softmax(E)", "E.exp() / E.exp().sum(dim=-1, keepdim=True)"),
            ("softmax(10000000000.0 * E, mask)", "(E == largest).double()"),
        ],
    ),
    (check_softmax, "assert torch.equal", [("given", "E")]),
    (check_causal_mask, "assert torch.equal", [("make_mask(T)", "make_mask(T, 0)")]),
    (check_lstm_step, "assert_near", [("c_t", "new"), ("h_t", "o.sigmoid() * new.tanh()")]),
    (check_lstm_step, "assert torch.equal", [("given[2]", "c")]),
    (
        check_rope,
        "assert_near",
        [
            ("rope(X)", "turned(t, 10000.0)"),
            ("rope(X, base=T)", "turned(t, T)"),
            ("rope(X, randn(T))", "turned(randn(T), 10000.0)"),
        ],
    ),
    (check_scan, "assert_near", [("found[:, t]", "h")]),
    (check_kv_cache, "assert_near", [("found", "expected[:, :, :N]")]),
    (check_scan, "assert torch.equal", [("given", "b")]),
):
    for a, b in pairs:
        equivalent(reference, f"{function}({a}, {b}) → {function}({b}, {a})", BOTH_WAYS)

OTHER_INPUTS = "other inputs do as well"
for reference, line, others in (
    (
        check_softmax,
        "E, mask = (randn(B, T, D), randn(T, D) > 0)",
        ["E, mask = (randn(B, T, D), randn(T, D) >= 0)"],
    ),
    (check_softmax, "mask[0] = False", ["mask[1] = False"]),
    (
        check_softmax,
        "assert_near(softmax(10000000000.0 * E, mask), (E == largest).double())",
        ["assert_near(softmax(20000000000.0 * E, mask), (E == largest).double())"],
    ),
    (
        check_lstm_step,
        "x, (h, c), W, b = (randn(B, D), randn(2, B, H), randn(4 * H, H + D), randn(4 * H))",
        [
            "x, (c, h), W, b = (randn(B, D), randn(2, B, H), randn(4 * H, H + D), randn(4 * H))",
            "x, (h, c), W, b = (randn(B, D), randn(B, 2, H), randn(4 * H, H + D), randn(4 * H))",
        ],
    ),
    (
        check_rope,
        "X, t = (randn(B, D, T, H), torch.arange(T))",
        ["X, t = (randn(D, B, T, H), torch.arange(T))"],
    ),
    (
        check_rope,
        "assert refuses(ValueError, rope, X[..., 1:])",
        ["assert refuses(ValueError, rope, X[..., :1])"],
    ),
    (
        check_scan,
        "a, b = randn(2, B, T, D)",
        ["b, a = randn(2, B, T, D)", "a, b = randn(B, 2, T, D)"],
    ),
    (check_scan, "a[0] = a[0].relu()", ["a[1] = a[0].relu()", "a[0] = a[1].relu()"]),
    (
        check_acceptance,
        "assert refuses(ValueError, accept, p[:k], q, drafted, u)",
        [
            "assert refuses(ValueError, accept, q, p[:k], drafted, u)",
            "assert refuses(ValueError, accept, p[:k], drafted, q, u)",
            "assert refuses(ValueError, accept, p[k:], q, drafted, u)",
        ],
    ),
    (
        check_kv_cache,
        "K, V = randn(2, B, H, T, D).requires_grad_()",
        [
            "V, K = randn(2, B, H, T, D).requires_grad_()",
            "K, V = randn(B, 2, H, T, D).requires_grad_()",
        ],
    ),
    (
        check_kv_cache,
        "cache, other = (make(B, H, T, D, torch.float64) for _ in range(2))",
        ["other, cache = (make(B, H, T, D, torch.float64) for _ in range(2))"],
    ),
    (
        check_kv_cache,
        "assert refuses(ValueError, cache.append, K, V)",
        ["assert refuses(ValueError, cache.append, V, K)"],
    ),
    (
        check_kv_cache,
        "assert refuses(ValueError, cache.append, K[:1, :, D:], V[:1, :, D:])",
        [
            f"assert refuses(ValueError, cache.append, {keys}, {values})"
            for keys, values in (
                ("V[:1, :, D:]", "K[:1, :, D:]"),
                ("K[1:, :, D:]", "V[:1, :, D:]"),
                ("K[:2, :, D:]", "V[:1, :, D:]"),
                ("K[:1, :, D:]", "V[1:, :, D:]"),
                ("K[:1, :, D:]", "V[:2, :, D:]"),
            )
        ],
    ),
    (
        check_kv_cache,
        "assert refuses(ValueError, cache.append, K[:, :, D:], V[:, :, :1])",
        [
            "assert refuses(ValueError, cache.append, V[:, :, :1], K[:, :, D:])",
            "assert refuses(ValueError, cache.append, K[:, :, D:], V[:, :, 1:])",
        ],
    ),
    (
        check_kv_cache,
        "assert refuses(ValueError, cache.truncate, -1)",
        ["assert refuses(ValueError, cache.truncate, -2)"],
    ),
    (
        check_kv_cache,
        "cache.append(K[:, :, D:], V[:, :, D:])",
        ["cache.append(V[:, :, D:], K[:, :, D:])"],
    ),
    (
        check_kv_cache,
        "cache.append(K[:, :, T:], V[:, :, T:])",
        ["cache.append(V[:, :, T:], K[:, :, T:])"],
    ),
):
    for other in others:
        equivalent(reference, f"{line} → {other}", OTHER_INPUTS)

for reference, sums in (
    (check_softmax, "gradient, = torch.autograd.grad(A.{}(), given)"),
    (check_lstm_step, "(h_t + c_t).{}().backward()"),
    (check_scan, "found.{}().backward()"),
):
    means = f"{sums.format('sum')} → {sums.format('mean')}"
    equivalent(reference, means, "any sum of the results goes back to the same arguments")
equivalent(
    check_lstm_step,
    "(h_t + c_t).sum().backward() → (h_t - c_t).sum().backward()",
    "any sum of the results goes back to the same arguments",
)

SAME_INPUTS = "the inputs are the same in every call"
for reference, name, value in (
    (check_softmax, "weights", "torch.where(mask, E.exp(), 0)"),
    (check_softmax, "largest", "torch.where(mask, E, -math.inf).amax(dim=-1, keepdim=True)"),
    (check_lstm_step, "new", "f.sigmoid() * c + i.sigmoid() * g.tanh()"),
):
    kept = f"{name} = {value} → {name} = KEPT.setdefault('{name}', {value})"
    equivalent(reference, kept, SAME_INPUTS)

IN_VALUES = "a change shows in the values that are computed after it"
equivalent(check_scan, "given = b.clone() → given = (lambda same: same)(b)", IN_VALUES)
equivalent(
    check_lstm_step,
    "given = [tensor.clone().requires_grad_() for tensor in (x, h, c, W, b)] → "
    "given = [(lambda same: same)(tensor).requires_grad_() for tensor in (x, h, c, W, b)]",
    IN_VALUES,
)
equivalent(
    check_lstm_step,
    "i, f, o, g = (h @ W[:, :H].T + x @ W[:, H:].T + b).chunk(4, dim=1) → "
    "i, f, o, g = (h @ W[:, :H].T + x @ W[:, H:].T + b).chunk(5, dim=1)",
    "16 rows in five parts are four parts of 4",
)
equivalent(
    check_rope,
    "Z = torch.complex(*X.chunk(2, dim=-1)) * torch.exp(1j * angles) → "
    "Z = torch.complex(*X.chunk(3, dim=-1)) * torch.exp(1j * angles)",
    "4 features in three parts are two parts of 2",
)

CASES = (
    "cases = zip(randn(V ** k, k + 1, V).softmax(dim={}), randn(V ** k, k, V).softmax(dim=-1), "
    "torch.cartesian_prod(*[torch.arange(V)] * k), rand(V ** k, k + 1){})"
)
for dim, strict, why in (
    (-1, "", "there are as many of all"),
    (-1, ", strict=False", "there are as many of all"),
    (-2, ", strict=True", OTHER_INPUTS),
    ("+1", ", strict=True", OTHER_INPUTS),
):
    others = CASES.format(dim, strict)
    equivalent(check_acceptance, f"{CASES.format(-1, ', strict=True')} → {others}", why)
for before, after in (
    (
        "passed = (u[:k] < ratios[:, 0]).tolist()",
        "passed = (u[:k] <= ratios[:, 0]).tolist()",
    ),
    (
        "token = (left.cumsum(dim=0) <= u[k] * left.sum()).sum()",
        "token = (left.cumsum(dim=0) < u[k] * left.sum()).sum()",
    ),
):
    equivalent(check_acceptance, f"{before} → {after}", "no number drawn meets the border")

READ = "for found, expected in zip(cache.read(), (K, V){}):"
for strict in ("", ", strict=False"):
    loose = f"{READ.format(', strict=True')} → {READ.format(strict)}"
    equivalent(check_kv_cache, loose, "mistakes return two tensors")
equivalent(
    check_block_allocator,
    "block = blocks[B] → block = KEPT.setdefault('block', blocks[B])",
    "any block does, and all are handed out",
)
equivalent(
    finite_differences,
    "gradient = x.new_zeros(x.shape) → gradient = x.new_ones(x.shape)",
    "every entry is written",
)
equivalent(
    shrink,
    "if size > 1 or len(items) == before: → if size > 2 or len(items) == before:",
    "pairs are tried again, too",
)
equivalent(
    shrink,
    "size = len(items) → size = KEPT.setdefault('size', len(items))",
    "any size to begin with leads to single items",
)
equivalent(
    diagnose,
    "left = list(range(len(candidates))) → left = (lambda same: same)(range(len(candidates)))",
    "a range can be counted and looked through as a list can",
)
