"""Packages import downward only, and no two of them each other."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from autograder.assignment import ROOT
from tests.course import WORK

# A package may import those below it here and no others. What students have comes first; the
# references and the given parts of inference are one level, because the engine is built on both.
LEVELS = {
    "course_pkg.tools": (),
    "course_pkg.data": ("engine",),
    "course_pkg.checking": ("tools", "checks", "engine"),  # `find` imports the checks it looks for
    "course_pkg.remote": ("tools", "checking"),
    "course_pkg.engine": (),
    "course_pkg": ("tools", "data", "checking", "engine"),
    "course_pkg.checks": ("", "tools", "data", "checking", "engine"),
    "autograder.hidden": (),
    "autograder.mistakes": (),
    "autograder.alternatives": (),
    "autograder.assignments": ("hidden", "mistakes", "alternatives"),
    "autograder.handout": (),
    "autograder.remote": (),
    "autograder.grade": ("handout", "hidden", "remote"),
    "autograder.author": ("handout", "hidden", "mistakes", "alternatives", "grade"),
    "autograder.classroom": ("handout", "hidden", "mistakes", "remote", "grade", "author"),
}
ALIASES = {"course_pkg.inference": "course_pkg"}


def modules() -> dict[str, Path]:
    """Name the modules of both packages; a package is named like its __init__."""
    paths = [p for top in ("course_pkg", "autograder") for p in (ROOT / top).rglob("*.py")]
    names = {}
    for path in paths:
        if ROOT / WORK in path.parents:  # what grading has made here is no part of the course
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = modules()


def imported(module: str, *, at_once: bool = False) -> Iterator[str]:
    """List the modules of this course that a module imports, or imports as soon as it is.

    What it imports for its annotations alone counts as imported at once.
    """
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in top_level(tree) if at_once else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """List a module's statements, and those under a condition at its top."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If):
            yield from (*node.body, *node.orelse)


def level(module: str) -> str | None:
    """The package of LEVELS to which a module belongs; None for the few modules at the top."""
    package = ".".join(module.split(".")[:2])
    package = ALIASES.get(package, package)
    if package in LEVELS:
        return package
    return "course_pkg" if module.startswith("course_pkg.") else None


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downward(module):
    own = level(module)
    if own is None:  # autograder.__main__, autograder.assignment, course_pkg itself
        return
    top = own.partition(".")[0]
    for other in imported(module):
        place = level(other) if other in MODULES else None
        if other.startswith("autograder"):
            assert top == "autograder", f"{module} imports {other}: students have no autograder"
        if place is not None and place != own and place.startswith(top):
            allowed = [f"{top}.{name}".rstrip(".") for name in LEVELS[own]]
            assert place in allowed, f"{module} imports {other}"


def test_no_module_imports_itself_by_way_of_others():
    graph = {m: {n for n in imported(m, at_once=True) if n in MODULES} - {m} for m in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle
