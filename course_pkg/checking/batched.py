"""Calls that belong together: when grading, all of them take one message, not one each.

A check that calls a student's object a hundred times waits a hundred times for another process.
What it does with the object between two comparisons can run beside the object instead.
"""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from torch import Tensor

from course_pkg.checking.telling.failure import Failure

PACKAGE = "course_pkg"  # which the student's process has; it has no hidden checks
SHOWN = 3  # parameters and buffers with another name or shape

_Other = ParamSpec("_Other")
_Result = TypeVar("_Result")
_Function = Callable[Concatenate[object, _Other], _Result]


def together(function: _Function) -> _Function:
    """Let a function of checks run where its first argument lives, a student's object.

    At home that changes nothing. When grading, the other arguments and the result cross as data or
    as other objects of the student's; what the function changes in its arguments does not come
    back. All its calls together have the time of one.

    Args:
        function: a function of a module, which compares nothing: answers stay with the grader.
    Raises:
        ValueError: the function is not in the package, or not at the top of its module.
    """
    module, name = function.__module__, function.__qualname__
    if module.partition(".")[0] != PACKAGE or not name.isidentifier():
        raise ValueError(
            f"{module}.{name} cannot run beside a student's object: that takes a function at the "
            f"top of a module of {PACKAGE}, where the student's process can find it"
        )

    @functools.wraps(function)
    def called(student, *args, **kwargs):
        run = getattr(student, "_together", None)
        if run is None:
            return function(student, *args, **kwargs)
        return run(module, name, (student, *args), kwargs)

    return called


@together
def of_each(call, inputs: list[tuple] | list[dict]) -> list:
    """Call something of a student's with each of several arguments, by position or by name."""
    return [call(**each) if isinstance(each, dict) else call(*each) for each in inputs]


@together
def call_often(call, times: int, *args, **kwargs) -> list:
    """Call something of a student's several times with the same arguments."""
    return [call(*args, **kwargs) for _ in range(times)]


@together
def made(student, weights: dict[str, Tensor], *args, **options):
    """Make a student's module in float64, and give it these weights.

    Raises:
        Failure: the module raised, or its parameters and buffers have other names or shapes.
    """
    module = student(*args, **options).double()
    try:
        module.load_state_dict(weights)
    except Failure as failure:
        shapes = {name: tuple(values.shape) for name, values in module.state_dict().items()}
        message = _other_parameters(shapes, weights) or failure.message
        raise Failure(message, kinds=failure.kinds) from None
    return module


def _other_parameters(given: dict[str, tuple[int, ...]], expected: dict[str, Tensor]) -> str:
    """Say which parameters and buffers are missing, should not be there or have another shape."""
    lines = [
        f"There should be a parameter or buffer called {name}, of shape {tuple(values.shape)}; "
        f"{'yours is missing' if name not in given else f'yours has shape {given[name]}'}."
        for name, values in expected.items()
        if given.get(name) != tuple(values.shape)
    ]
    lines += [
        f"There should be no parameter or buffer called {name}, yours has shape {shape}."
        for name, shape in given.items()
        if name not in expected
    ]
    rest = (
        [f"Names or shapes that differ, beside these: {len(lines) - SHOWN}."]
        if len(lines) > SHOWN
        else []
    )
    return "\n".join(lines[:SHOWN] + rest)
