"""Above an exercise stands what it can call of earlier parts: nobody has to guess it."""

import ast

import nbformat
import pytest

from autograder.assignment import assignments
from autograder.author import calls
from autograder.handout.exercise import exercises
from tests.course import points


def test_a_table_has_calls_shapes_and_what_they_do():
    table = calls.needed("kv_cache", "CachedAttention")
    row = "| `split_heads(X, H)` | X (B, T, D) → (B, H, T, D_h) | Cut the features of every vector"
    assert row in table and "`masked_softmax(E, mask=None)` | E (..., N_Q, N_X), mask" in table
    assert "KVCache" not in table  # an exercise of this assignment
    call = "`MultiHeadAttention(…)(X, memory=None, mask=None, return_weights=False)`"  # of a module
    results = "→ (B, N_Q, D) or (B, N_Q, D), (B, H, N_Q, N_X) |"
    assert f"{call} | X (B, N_Q, D), memory (B, N_X, D_X), mask (..., N_Q, N_X) {results}" in table


def test_methods_are_those_that_are_asked_for_and_errors_are_named():
    table = calls.needed("quantisation", "QuantisedPagedCache")
    assert "`PagedKVCache.gather(layer, blocks, length)`" in table
    assert "`NeverFits` |" in calls.needed("serving", "EngineCore")


def test_an_exercise_that_needs_nothing_has_none():
    assert calls.needed("lstm", "lstm_step") == ""


@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_no_call_is_needed_that_the_notebook_does_not_show(assignment):
    """What a reference takes from the course's other modules is said in the student's notebook."""
    nb = nbformat.read(assignment.student, as_version=4)
    shown = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    elsewhere = {}
    for path in assignment.reference:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("course_pkg."):
                if f"course_pkg.{assignment.topic}" not in str(node.module):
                    elsewhere |= {a.asname or a.name: node.module for a in node.names}
    for name, source in exercises(assignment.reference).items():
        assert name in points(assignment)
        tree = ast.parse(source)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & set(elsewhere)
        missing = [each for each in used if f"`{each}" not in shown]
        assert not missing, f"{name} needs {missing}"
