"""Sandboxes hold no oracle: of the checks only what runs beside a student's object, and rules."""

import ast
import importlib
import os
import subprocess
import sys

import pytest

from autograder.assignment import ROOT, assignments
from autograder.grade.kernel.checks_without_oracles import reduced
from autograder.grade.kernel.sandbox_files import sandbox_files
from course_pkg.checking.registry import CHECKS
from course_pkg.checking.rules.rules import NOTHING, rule_of

SOURCES = {path.stem: path.read_text() for path in (ROOT / "course_pkg" / "checks").glob("*.py")}
REDUCED = reduced(SOURCES)
HELPERS = {"as_list", "number", "numbers", "pairs", "flat", "look_up", "lists", "references"}
HELPERS |= {"first_numbers", "next_number", "unguarded", "told"}
HELPERS |= {"built", "hooks_on", "_ends_alike"}  # a model, a count, and what a solution is given
DRIVERS = {"Lending", "Remembering", "Mapping", "Storing", "Managing", "Keeping", "Speculating"}
DRIVERS |= {"Bigrams"}  # a model for a step of training
for assignment in assignments():
    importlib.import_module(f"course_pkg.checks.{assignment.topic}")


def functions(text: str) -> dict[str, ast.FunctionDef]:
    return {f.name: f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)}


def decorators(function: ast.FunctionDef) -> set[str]:
    return {
        node.id
        for d in function.decorator_list
        for node in ast.walk(d)
        if isinstance(node, ast.Name)
    }


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_no_check_and_no_oracle_is_left(name):
    kept, all_of_it = functions(REDUCED[name]), functions(SOURCES[name])
    together = {n for n, f in all_of_it.items() if "together" in decorators(f)}
    assert together <= set(kept)
    assert not [n for n, f in kept.items() if decorators(f) & {"check", "check_kernel", "once"}]
    # What these need besides reads numbers and tables, and compares nothing.
    helpers = set(kept) - together
    assert helpers <= HELPERS
    classes = {c.name for c in ast.parse(REDUCED[name]).body if isinstance(c, ast.ClassDef)}
    assert classes <= DRIVERS
    assert not any("expected" in ast.unparse(function) for function in kept.values())


def test_what_is_left_runs_and_states_the_rules():
    (*_, last) = assignments()
    names = ", ".join(f"course_pkg.checks.{name}" for name in sorted(SOURCES) if name[0] != "_")
    code = f"import {names}\nfrom course_pkg.checking import registry\n"
    code += "from course_pkg.checking.rules import rules\n"
    code += "print(course_pkg.__file__, len(registry.CHECKS))\n"
    code += "print(*sorted(exercise.name for exercise in rules._RULES))"
    site = str(sandbox_files(last) / "site")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": site},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        f"{site}/course_pkg/__init__.py 0",
        " ".join(sorted(exercise.name for exercise in CHECKS if rule_of(exercise) != NOTHING)),
    ], done.stderr


def test_names_of_other_modules_are_followed():
    sources = {
        "a": "from course_pkg.checks.b import helper, oracle\n\n@together\ndef f(x):\n"
        "    oracle = helper(x)\n    return oracle\n\ndef right(x):\n    return oracle(x)\n",
        "b": "from course_pkg.checks.c import K, L\nM = 5\n\ndef helper(x):\n    return K + M\n\n"
        "def oracle(x):\n    return L\n",
        "c": "K, L, M = 1, 2, 3\nN = 4\nforbid(f, N)\n",
    }
    found = reduced(sources)
    assert set(functions(found["a"])) == {"f"} and "import helper\n" in found["a"]
    assert set(functions(found["b"])) == {"helper"} and "import K\n" in found["b"]
    assert "M = 5" in found["b"] and found["c"] == "K, L, M = (1, 2, 3)\nN = 4\nforbid(f, N)\n"
