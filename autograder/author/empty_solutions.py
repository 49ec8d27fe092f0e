"""Solutions that compute nothing, and the checks that they pass: alone, these earn no points."""

import importlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves, tree_map

from autograder.assignment import Assignment
from autograder.author.examination import examine, exercises
from autograder.hidden import folder, passed, unearned
from course_pkg.checking.registry import CHECKS, Exercise

ARGUMENTS = 4  # of the same shape as a result, that a solution may give back


def table(assignment: Assignment) -> dict[Path, bytes]:
    """Make the file that lists, for each exercise, the checks that are passed without computing.

    Exercises that cannot be checked here keep what the file has.
    """
    found = {}
    for exercise in exercises(assignment.topic):
        if all(check.why_not() for check in CHECKS[exercise].values()):
            found[exercise.name] = sorted(unearned(exercise))
        else:
            found[exercise.name] = sorted(passed_by_hollow(exercise))
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    return {folder(assignment.topic) / f"{assignment.name}.json": text.encode()}


def passed_by_hollow(exercise: Exercise) -> set[str]:
    """Find the checks that a solution passes whose results are empty of content.

    What a class passes whose methods all fail is the merit of its constructor, and not listed.
    """
    names: set[str] = set()
    for solution in hollow(exercise).values():
        report = examine(exercise, solution)
        if not report.passed:  # otherwise nothing of its results could be emptied
            names |= passed(report)
    if exercise.is_class:
        silent = _with_methods(_reference(exercise), _fails(RuntimeError))
        names -= passed(examine(exercise, silent))
    return names


def hollow(exercise: Exercise) -> dict[str, type | Callable]:
    """Make solutions with results of the right kind and shape that hold nothing, or with none."""
    wraps = {
        "zeros": _replaces(_zero),
        "ones": _replaces(_one),
        "NaN": _replaces(_nan),
        "always refuses": _fails(ValueError),
        **{f"argument {number}": _gives_back(number) for number in range(ARGUMENTS)},
    }
    reference = _reference(exercise)
    make = _with_methods if exercise.is_class else lambda function, wrap: wrap(function)
    return {name: make(reference, wrap) for name, wrap in wraps.items()}


def _reference(exercise: Exercise) -> type | Callable:
    return getattr(importlib.import_module(f"course_pkg.{exercise.module}"), exercise.name)


def _with_methods(base: type, wrap: Callable[[Callable], Callable]) -> type:
    """Derive a class from another, with wrapped methods and the same constructor."""
    methods = {
        name: wrap(method)
        for name, method in vars(base).items()
        if inspect.isfunction(method) and name != "__init__"
    }
    return type(base.__name__, (base,), methods)


def _replaces(empty: Callable[[object], object]) -> Callable[[Callable], Callable]:
    """Make a wrapper that empties what a function returns."""

    def wrap(function: Callable) -> Callable:
        return lambda *args, **kwargs: tree_map(empty, function(*args, **kwargs))

    return wrap


def _gives_back(number: int) -> Callable[[Callable], Callable]:
    """Make a wrapper that returns arguments of the right shapes: of several, the one so far on."""

    def wrap(function: Callable) -> Callable:
        def solution(*args, **kwargs):
            given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]

            def argument(value: object) -> object:
                shape = value.shape if isinstance(value, torch.Tensor) else None
                same = [x for x in given if x.shape == shape]
                return same[min(number, len(same) - 1)] if same else _zero(value)

            return tree_map(argument, function(*args, **kwargs))

        return solution

    return wrap


def _fails(error: type[Exception]) -> Callable[[Callable], Callable]:
    """Make a wrapper that raises instead of calling."""

    def wrap(function: Callable) -> Callable:
        def solution(*args, **kwargs):
            raise error()

        return solution

    return wrap


def _zero(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    return type(value)() if isinstance(value, (bool, int, float, str)) else value


def _one(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return torch.ones_like(value)
    return type(value)(1) if isinstance(value, (bool, int, float)) else value


def _nan(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, torch.nan) if value.is_floating_point() else value
    return float("nan") if isinstance(value, float) else value
