"""Grading leaves out the cells on which nothing graded depends, and no others."""

import ast
import builtins

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from autograder.assignment import assignments
from autograder.author.experiments import bound, mark_experiments, used


def cell(source: str, solution: bool = False, grade: bool = False):
    nbgrader = {"solution": solution, "grade": grade}
    return new_code_cell(source, metadata={"nbgrader": nbgrader})


def marked(*cells) -> list[str]:
    mark_experiments(list(cells))
    return [c.source for c in cells if c.metadata.get("course", {}).get("experiment")]


def test_what_nothing_depends_on_is_an_experiment():
    experiment = cell("if ready(f):\n    history = train(f)")
    plot = cell("show(history)")
    found = marked(cell("import torch"), cell("def f(): pass", solution=True), experiment, plot)
    assert found == [experiment.source, plot.source]


def test_what_solutions_and_checks_use_is_none_even_by_way_of_others():
    cells = [
        cell("sizes = read()"),
        cell("table = make(sizes)"),
        cell("for name in names():\n    print(name)"),
        cell("def f(x):\n    return table[x]", solution=True),
        cell("text = load()"),
        cell("check(f, text)", grade=True),
    ]
    assert marked(*cells) == ["for name in names():\n    print(name)"]


def test_imports_definitions_and_constants_stay_because_solutions_may_use_them():
    sources = [
        "import math",
        "from math import pi",
        "def g(): pass",
        "class C: pass",
        "D, H = 2, 3",
    ]
    assert marked(*map(cell, sources), cell("print(1)")) == ["print(1)"]


def test_definitions_that_use_an_experiment_belong_to_it():
    helper = "def plot_it(T=LENGTH):\n    return T"
    assert marked(cell("LENGTH = len(load())"), cell(helper)) == ["LENGTH = len(load())", helper]


@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_without_experiments_no_name_is_missing(assignment):
    nb = nbformat.read(assignment.solved, as_version=4)
    codes = [c for c in nb.cells if c.cell_type == "code"]
    kept = [c for c in codes if not c.metadata.get("course", {}).get("experiment")]
    assert len(kept) < len(codes)
    known = set(dir(builtins)) | {name for c in kept for name in bound(c.source)}
    assert {name for c in kept for name in used(c.source)} <= known


def waited_for(tree: ast.Module, lists: dict[str, set[str]]) -> ast.If | None:
    """Find `if ready(…)`, and note the lists of exercises that cells make."""
    for node in tree.body:
        match node:
            case ast.If(ast.Call(ast.Name("ready"))):
                return node
            case ast.Assign([ast.Name(name)], ast.Tuple(items) | ast.List(items)):
                lists[name] = spelled(items, lists)
            case ast.AugAssign(ast.Name(name), _, ast.List(items)):
                lists[name] |= spelled(items, lists)
    return None


def spelled(items: list[ast.expr], lists: dict[str, set[str]]) -> set[str]:
    found = {item.id for item in items if isinstance(item, ast.Name)}
    stars = [item.value for item in items if isinstance(item, ast.Starred)]
    return found.union(*(lists[star.id] for star in stars if isinstance(star, ast.Name)))


@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_an_experiment_waits_for_all_that_it_uses(assignment):
    """Exercises that it names, and those without which earlier cells leave its names unbound."""
    codes = [c for c in nbformat.read(assignment.solved, 4).cells if c.cell_type == "code"]
    cells = [c for c in codes if "nbgrader" in c.metadata]  # the others are predictions
    exercises = {c.id for c in cells if c.metadata.nbgrader["solution"]}
    lists: dict[str, set[str]] = {}
    always: set[str] = set()
    earlier: dict[str, list[set[str]]] = {}  # for a name, what each cell that binds it waits for
    for cell in cells:
        if (gate := waited_for(ast.parse(cell.source), lists)) is None:
            always |= bound(cell.source)
            continue
        inside = ast.unparse(gate)
        waits = spelled(gate.test.args, lists)
        assert used(inside) & exercises <= waits, cell.source
        for name in (used(inside) & set(earlier)) - bound(inside) - always:
            assert any(needed <= waits for needed in earlier[name]), (name, cell.source)
        for name in bound(inside):
            earlier.setdefault(name, []).append(waits)
