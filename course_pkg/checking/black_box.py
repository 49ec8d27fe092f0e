"""Black boxes: wrong solutions that students may call and not read, and the calls that expose them.

A box does what an exercise asks for, with one mistake, which an experiment does not show. Students
say which it is, and give arguments for which its result is wrong.
"""

import base64
import functools
import importlib
import inspect
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from course_pkg import checks
from course_pkg.checking.case import Case
from course_pkg.checking.guard import attempt
from course_pkg.checking.telling.failure import Failure

CALLED: set[str] = set()  # the exercises whose boxes have been called
_FOLDER = Path(checks.__path__[0]) / "data"
_NEAR = 1e-3  # relative to the largest entry: results that are closer show nothing
LETTERS = "ABCDE"


def black_box(exercise: str) -> Callable:
    """Give the black box of an exercise: it is called as the exercise is, and has one mistake.

    Its calls are noted in `CALLED`: who runs it through `check` is not told its mistake.

    Raises:
        LookupError: the exercise has none.
    """
    box = _opened(exercise)

    def noted(*args, **kwargs):
        CALLED.add(exercise)
        return box(*args, **kwargs)

    functools.update_wrapper(noted, box)
    vars(noted).update(__signature__=inspect.signature(box))
    del vars(noted)["__wrapped__"]
    return noted


def _opened(exercise: str) -> Callable:
    for path in sorted(_FOLDER.glob("*.box")):
        name, closed = path.read_text(encoding="ascii").split()
        if name == exercise:
            module = importlib.import_module(f"course_pkg.{path.stem[3:]}")
            namespace = dict(vars(inspect.getmodule(getattr(module, name))))
            exec(zlib.decompress(base64.b85decode(closed)), namespace)
            return namespace[name]
    raise LookupError(f"there is no black box of {exercise!r}")


def closed(exercise: str, source: str) -> str:
    """Pack the source of a black box, so that nobody reads it by chance."""
    return f"{exercise} {base64.b85encode(zlib.compress(source.encode())).decode()}\n"


def demand_exposed(case: Case, answer: Callable, exercise: str, right: Callable) -> None:
    """Demand arguments for which the black box of an exercise gives what is not right.

    Args:
        case: the running check.
        answer: the student's: returns a letter and the arguments.
        exercise: whose black box is meant.
        right: computes what is right, from arguments that the exercise takes.
    Raises:
        Failure: the answer is no such pair, the arguments are none that the exercise takes (the
            oracle or the black box raises), or the black box does what is right with them.
    """
    letter, arguments = case.unpack(answer(), "letter", "arguments")
    case.that(
        letter in (*LETTERS,), f"The letter should be one of A to E, yours is {letter!r:.60}."
    )
    case.that(
        isinstance(arguments, tuple | list),
        f"The arguments should be a tuple, yours are {arguments!r:.60}.",
    )
    expected = _right(exercise, lambda: right(*arguments))
    distance = _distance(_opened(exercise), arguments, expected)
    case.that(
        distance > _NEAR,
        "With these arguments the black box gives what is right"
        + (f" (it is off by {distance:.1g} of the largest entry)" if distance else "")
        + ". Which arguments bring its mistake out?",
    )


def demand_named(case: Case, answer: Callable, letter: str) -> None:
    """Demand that an answer names the mistake of a black box."""
    found, _ = case.unpack(answer(), "letter", "arguments")
    case.that(found == letter, f"{found!r:.60} is not what is wrong with the black box.")


def _right(exercise: str, action: Callable[[], object]) -> object:
    """Do what an exercise should; say of an error that it comes of the arguments, and not where."""
    try:
        return attempt(f"With these arguments {exercise}", action)
    except Failure as failure:
        failure.message = failure.message.partition("\nin course_pkg/")[0]
        raise


def _distance(box: Callable, arguments: Any, expected: object) -> float:
    """How far a box is off, relative to the largest entry of what is right."""
    given = attempt("The black box", lambda: box(*arguments))
    (ours, shape), (theirs, same) = tree_flatten(given), tree_flatten(expected)
    if shape != same:
        return float("inf")
    return max((_apart(*pair) for pair in zip(ours, theirs, strict=True)), default=0.0)


def _apart(given: object, expected: object) -> float:
    if isinstance(given, float) and isinstance(expected, float):
        given, expected = torch.tensor(given), torch.tensor(expected)
    if not isinstance(given, Tensor) or not isinstance(expected, Tensor):
        return 0.0 if given == expected else float("inf")
    if given.shape != expected.shape:
        return float("inf")
    given, expected = given.detach().double(), expected.detach().double()
    if not torch.equal(given.isfinite(), expected.isfinite()):
        return float("inf")
    finite = expected.isfinite()
    largest = max(expected[finite].abs().max().item() if finite.any() else 0.0, 1e-12)
    return ((given - expected)[finite].abs().max().item() / largest) if finite.any() else 0.0
