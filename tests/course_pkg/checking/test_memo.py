"""Oracles that answer once: the same answers, and nothing shared with who asks."""

import torch

from course_pkg.checking import memo as module
from course_pkg.checking.memo import once


def counted():
    asked = []

    @once
    def oracle(X, factor, rows=(), draw=None, do=None):
        """Scale numbers."""
        asked.append(factor)
        rows[0].append(7) if rows else None
        return X * factor, [factor]

    return oracle, asked


def test_the_same_question_is_answered_once():
    oracle, asked = counted()
    X = torch.randn(3, 2, dtype=torch.float64)
    first, again = oracle(X, 2), oracle(X.clone(), 2)
    assert asked == [2] and torch.equal(first[0], again[0]) and again[1] == [2]
    for other in (X.float(), X[:, :1], X + 1e-12, X.T):
        torch.testing.assert_close(oracle(other, 2)[0], 2 * other)
    assert torch.equal(oracle(X, 3)[0], 3 * X) and torch.equal(oracle(X, factor=3)[0], 3 * X)
    assert asked == [2, 2, 2, 2, 2, 3, 3]
    assert oracle.__doc__ == "Scale numbers." and oracle.__name__ == "oracle"


def test_answers_and_arguments_are_copies():
    oracle, asked = counted()
    X, rows = torch.ones(2), ([1],)
    for _ in range(2):
        answer, factors = oracle(X, 5, rows)
        answer.zero_()
        factors.clear()
    assert oracle(X, 5, rows)[0].tolist() == [5, 5] and asked == [5] and rows == ([1],)


def test_what_contents_do_not_tell_is_asked_anew():
    oracle, asked = counted()
    leaf = torch.ones(2, requires_grad=True)
    for _ in range(2):
        oracle(torch.ones(2), 1, draw=torch.Generator())
        oracle(torch.ones(2), 2, do=lambda: None)
        oracle(leaf, 3)[0].sum().backward()
    assert asked == [1, 2, 3] * 2 and leaf.grad.tolist() == [6, 6]


def test_old_answers_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "MOST", 2)
    oracle, asked = counted()
    for factor in (1, 2, 3, 3, 2, 1):
        oracle(torch.ones(1), factor)
    assert asked == [1, 2, 3, 1]
