"""Checks tell the same about an object of another process as about the same one in this."""

import gc
import importlib
import pkgutil
import zlib

import pytest
import torch

import autograder.bugs
import course_pkg.checks
import tests.alternatives
from autograder.bugs import BUGS
from autograder.hidden import load_hidden
from course_pkg.checking.guard import Guarded
from course_pkg.checking.registry import CHECKS, Exercise
from course_pkg.checking.runner import run
from tests.alternatives import ALTERNATIVES
from tests.plain_kernel import Notebook

SECONDS = 5.0

for package in (course_pkg.checks, autograder.bugs, tests.alternatives):
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
EXERCISES = list(CHECKS)
for exercise in EXERCISES:
    load_hidden(exercise)


@pytest.fixture(scope="module")
def notebook():
    torch.set_num_threads(1)
    # As grading's template does; otherwise each fork would import it for its first gradient.
    with Notebook("import torch.fx.experimental.symbolic_shapes", seconds=SECONDS) as notebook:
        yield notebook


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: f"{e.module}.{e.name}")
def test_same_reports(exercise: Exercise, notebook: Notebook):
    """One bug and one alternative of each exercise, the same ones in every run."""
    place = zlib.crc32(exercise.name.encode())
    bugs, alternatives = BUGS[exercise], ALTERNATIVES[exercise]
    bug, alternative = place % len(bugs), place % len(alternatives)
    notebook.load(_pick("autograder.bugs", "BUGS", exercise, bug) + ".solution")
    assert not _compare(exercise, bugs[bug].solution, notebook)
    notebook.load(_pick("tests.alternatives", "ALTERNATIVES", exercise, alternative))
    assert _compare(exercise, alternatives[alternative], notebook)
    gc.collect()  # every parameter that lives costs each later request


def _pick(package: str, table: str, exercise: Exercise, number: int) -> str:
    """Write the source that gets an entry of a table under the exercise's name."""
    return (
        "from course_pkg.checking.registry import Exercise\n"
        f"import {package}.{exercise.module}\n"
        f"{exercise.name} = {package}.{table}[{exercise}][{number}]"
    )


def _compare(exercise: Exercise, solution: object, notebook: Notebook) -> bool:
    here = run(exercise, Guarded(solution, exercise.name, SECONDS), hidden=True)
    there = run(exercise, notebook.get(exercise.name), hidden=True)
    assert here.text == there.text
    assert [o.cause for o in here.outcomes] == [o.cause for o in there.outcomes]
    return there.passed
