"""What the template of kernels imports, so that no kernel of the assignment has to."""

import ast
import functools
from collections.abc import Iterator

from autograder.assignment import Assignment
from autograder.grade.submission.plan import Plan

_OPTIMISER, _OF_OPTIMISERS = "torch.optim.", "torch._dynamo"  # the first one made imports that


@functools.cache
def imports(assignment: Assignment) -> list[str]:
    """List what the cells of an assignment import that grading runs, and its module of checks.

    The checks say what their exercises forbid, which the template looks up. On a worker that has
    the course's code without its notebooks, that module is all: kernels then import the rest.
    """
    cells = Plan.read(assignment.solved).cells.values() if assignment.solved.exists() else ()
    sources = [
        cell.source
        for cell in cells
        if cell.cell_type == "code" and not cell.is_checked and not cell.is_experiment
    ]
    found = {f"course_pkg.checks.{assignment.topic}"}.union(*map(_imported, sources))
    if any(_OPTIMISER in source for source in sources):
        found.add(_OF_OPTIMISERS)
    return sorted(found)


def _imported(source: str) -> Iterator[str]:
    """Name what a cell imports whenever it runs: not within a condition."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
