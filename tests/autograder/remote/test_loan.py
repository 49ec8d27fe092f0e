"""What is lent across the wire does what it does at home, and tells nothing of itself."""

import pytest
import torch

from autograder.assignments.judge import bank
from course_pkg import judge
from course_pkg.checking.case import Case
from course_pkg.checking.lending import Lent
from course_pkg.checking.telling.failure import Failure
from course_pkg.checks.judge import TESTED, own, right_ones, verdicts, wrong_ones
from course_pkg.data.judge import right, wrong
from course_pkg.remote.borrowed import NOTE
from tests.plain_kernel import Notebook

SOURCE = """
import torch

from course_pkg.data.judge import refuses
from course_pkg.judge import *

met = []
kept = []


def gradient(f, a, b):
    a = a.clone().requires_grad_()
    f(a, b).square().sum().backward()
    return a.grad


def changes(f, E):
    f(E)
    return E


def program(make):
    pool, other = make(4), make(2)
    blocks = [pool.allocate() for _ in range(3)]
    pool.share(blocks[0])
    is_refused = refuses(ValueError, pool.free, ({0, 1, 2, 3} - {*blocks}).pop())
    return sorted(pool.references), pool.available, other.available, is_refused


def history(make, K):
    cache = make(2, 3, 4, 5, torch.float64)
    K = K.clone().requires_grad_()
    cache.append(K, K)
    found = cache.read()[0]
    if found.requires_grad:
        found.sum().backward()
    return found.requires_grad, K.grad


def twice(f, X):
    return f(X), f(X, base=2.0)


def text(f):
    try:
        f()
    except TypeError as error:
        return str(error)


def notes(f):
    try:
        f()
    except TypeError as error:
        return error.__notes__


def private(f):
    names = ("__name__", "__code__", "__globals__", "_made", "place", "unused")
    return [name for name in names if hasattr(f, name)]


def sets(make):
    pool = make(3)
    pool.available = 7


def keeps(f):
    kept.append(f)
    return [str(g(2).tolist()) for g in kept]


def meets(f):
    met.append(str(f(3, 1).tolist()))


def order(f):
    return met
"""


@pytest.fixture(scope="module")
def notebook():
    torch.set_num_threads(1)
    with Notebook(SOURCE) as notebook:
        yield notebook


def test_gradients_go_back(notebook):
    a, b = torch.randn(2, 2, 5, 3, dtype=torch.float64)
    found = notebook.get("gradient")(Lent(right, "scan", 1), a.clone(), b)
    a.requires_grad_()
    right("scan", 1)(a, b).square().sum().backward()
    torch.testing.assert_close(found, a.grad)


def test_changes_of_arguments_arrive(notebook):
    E = torch.randn(2, 3)
    given = E.clone()
    in_place = Lent(wrong, "softmax", 4)
    with pytest.raises(Failure, match="changes its argument E in place"):
        notebook.get("changes")(in_place, given)
    assert torch.equal(notebook.get("changes")(Lent(right, "softmax", 0), E), E)


def test_objects_are_kept_and_called(notebook):
    for lent in right_ones(judge.check_block_allocator).values():
        assert notebook.get("program")(lent) == ([0, 1, 1, 2], 1, 2, True)
    one_list = Lent(wrong, "block_allocator", 3)
    for _ in range(2):  # nothing is left of the first loan
        assert notebook.get("program")(one_list) == ([0, 1, 1, 2], 3, 3, True)


def test_a_history_that_an_object_keeps(notebook):
    K = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    assert notebook.get("history")(Lent(right, "kv_cache", 0), K) == (False, None)
    bugs = bank.BUGS[bank._exercise("kv_cache", "KVCache")]
    number = [bug.name for bug in bugs].index("KeepsHistory")
    is_kept, gradient = notebook.get("history")(
        Lent(bank.mistake, "kv_cache", "KVCache", number), K
    )
    assert is_kept and torch.equal(gradient, torch.ones_like(K))


def test_each_loan_is_made_anew(notebook):
    X = torch.randn(2, 3, 4, dtype=torch.float64)
    keeps_angles = Lent(wrong, "rope", 3)
    for _ in range(2):
        first, second = notebook.get("twice")(keeps_angles, X)
        assert torch.equal(first, second)
        torch.testing.assert_close(first, right("rope", 0)(X))


def test_it_tells_nothing(notebook):
    assert notebook.get("text")(Lent(own, "attention", "masked_softmax")) == ""
    for lent in (Lent(own, "attention", "masked_softmax"), Lent(wrong, "softmax", 0)):
        assert notebook.get("notes")(lent) == [NOTE]
    assert notebook.get("private")(Lent(own, "attention", "masked_softmax")) == []
    assert notebook.get("private")(Lent(own, "paged_attention", "BlockAllocator")) == []
    with pytest.raises(Failure, match="AttributeError"):
        notebook.get("sets")(Lent(own, "paged_attention", "BlockAllocator"))


def test_what_is_kept_of_a_loan_is_part_of_the_next(notebook):
    right_one, transposed = Lent(right, "causal_mask", 0), Lent(wrong, "causal_mask", 2)
    assert len(set(notebook.get("keeps")(right_one))) == 1
    assert len(set(notebook.get("keeps")(transposed))) == 1


def test_solutions_come_in_an_order_that_the_course_decides(notebook):
    reference = judge.check_causal_mask
    orders = []
    for inputs in ("", ".1", ".2", ".3"):
        test = notebook.get("meets")
        verdicts(test, Case(f"order{inputs}"), right_ones(reference), wrong_ones(reference))
        orders.append(tuple(notebook.get("order")(Lent(right, "causal_mask", 0))))
        notebook.load("met.clear()")
    assert len(set(orders)) > 1
    assert all(len(order) == 7 for order in orders)


@pytest.mark.parametrize("reference", TESTED, ids=lambda reference: reference.__name__)
def test_verdicts_are_the_same_in_both_processes(notebook, reference):
    rights = {**right_ones(reference), **bank.more_right_ones(reference)}
    wrongs = {str(n): lent for n, lent in enumerate(bank.unseen(reference))}
    there = verdicts(notebook.get(reference.__name__), Case("x"), rights, wrongs)
    assert all(there.values()) and len(there) >= 10
    for what, lent in rights.items():
        assert reference(lent) is None, what
    assert not any(is_silent(reference, lent) for lent in wrongs.values())


def is_silent(test, solution) -> bool:
    try:
        test(solution)
    except Exception:
        return False
    return True
