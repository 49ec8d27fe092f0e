"""Checks tell the same about an object in a child as about the same object in this process."""

import gc
import importlib
import pkgutil

import pytest
import torch

import autograder.bugs
import course_pkg.checks
import tests.alternatives
from autograder.bugs import BUGS
from autograder.grading import load_hidden
from autograder.remote import Child
from course_pkg.checking.guard import Guarded
from course_pkg.checking.registry import CHECKS, Exercise
from course_pkg.checking.report import run
from tests.alternatives import ALTERNATIVES

SECONDS = 5.0

for package in (course_pkg.checks, autograder.bugs, tests.alternatives):
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
EXERCISES = list(CHECKS)
for exercise in EXERCISES:
    load_hidden(exercise)


@pytest.fixture(scope="module")
def child():
    torch.set_num_threads(1)
    with Child(SECONDS) as child:
        yield child


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: f"{e.module}.{e.name}")
def test_same_reports(exercise: Exercise, child: Child):
    name = exercise.name
    reference = getattr(importlib.import_module(f"course_pkg.{exercise.module}"), name)
    child.load(f"from course_pkg.{exercise.module} import {name}")
    assert _compare(exercise, reference, child)
    for number, bug in enumerate(BUGS.get(exercise, [])):
        child.load(_pick("autograder.bugs", "BUGS", exercise, number) + ".solution")
        assert not _compare(exercise, bug.solution, child)
    for number, solution in enumerate(ALTERNATIVES.get(exercise, [])):
        child.load(_pick("tests.alternatives", "ALTERNATIVES", exercise, number))
        assert _compare(exercise, solution, child)
    gc.collect()  # every parameter that lives costs each later request


def _pick(package: str, table: str, exercise: Exercise, number: int) -> str:
    """Write the source that gets an entry of a table under the exercise's name."""
    return (
        "from course_pkg.checking.registry import Exercise\n"
        f"import {package}.{exercise.module}\n"
        f"{exercise.name} = {package}.{table}[{exercise}][{number}]"
    )


def _compare(exercise: Exercise, solution: object, child: Child) -> bool:
    here = run(exercise, Guarded(solution, exercise.name, SECONDS), hidden=True)
    there = run(exercise, child.get(exercise.name), hidden=True)
    assert here.text == there.text
    assert [o.cause for o in here.outcomes] == [o.cause for o in there.outcomes]
    return there.passed
