"""The mistakes that students' tests have not seen: those known of the exercises they are for.

They stay with the grader: a student's process gets a stand-in that knows a number and no name.
"""

import copy
import importlib
import inspect
import types
from collections.abc import Callable
from typing import Any

from autograder.alternatives import ALTERNATIVES
from autograder.mistakes import BUGS
from course_pkg.checking.lending import Lent
from course_pkg.checking.registry import Exercise
from course_pkg.checks.judge import TESTED, name_of, own
from course_pkg.data import judge as solutions

# What a test cannot tell, and why.
_LEFT_OUT = {
    "coarse": "it is right but for bfloat16",
    "one_by_one": "its values are right",
    "KeepsTheCallers": "what is lent gets copies: nobody's own tensors can be kept",
}

_NOT_LENT = {"InACounter": "its counts are a Counter, which crosses to another process as a dict"}

# Mistakes besides those known of the exercises.
_MORE: dict[str, list[tuple]] = {
    "softmax": [
        (
            solutions.shifted_softmax,
            ("(E - highest)", "((E - highest) * (1 if mask is None else 0.5))"),
        ),
        (solutions.shifted_softmax, ("if mask is None", ".tril() if mask is None")),
    ],
    "causal_mask": [(solutions.compared_mask, ("past=0", "past=1"))],
    "lstm_step": [(solutions.lstm_by_gates, ("c_new.tanh(), c_new", "c_new.tanh(), c"))],
    "acceptance": [(solutions.accept_in_a_loop, ("len(p) != k + 1 or", ""))],
    "block_allocator": [
        (
            solutions.StackAllocator,
            ("return len(self.unused)", "return self.references.count(0)"),
            ("self.unused.append(block)", "pass"),
        )
    ],
    "kv_cache": [
        (
            solutions.GrowingCache,
            ("return self.pair[0].shape[2]", "return max(self.pair[0].shape[2], 3)"),
        ),
        (
            solutions.OneTensorCache,
            (
                "part[:, :, self.length : self.length + T] = new.detach()",
                "place = part[:, :, self.length : self.length + T]\n"
                "            place.copy_(torch.where(place == 0, new.detach(), place))",
            ),
        ),
    ],
}


def unseen(reference: Callable) -> list[Lent]:
    """Give mistakes of the exercise that a test is for, without those that it cannot tell."""
    bugs = BUGS[_exercise(*TESTED[reference])]
    kept = [number for number, bug in enumerate(bugs) if bug.name not in _LEFT_OUT]
    name = name_of(reference)
    others = [Lent(another_mistake, name, number) for number in range(len(_MORE.get(name, [])))]
    return [*(Lent(mistake, *TESTED[reference], number) for number in kept), *others]


def more_right_ones(reference: Callable) -> dict[str, Lent]:
    """Give the right solutions of that exercise that students have not seen, by what they do."""
    module, name = TESTED[reference]
    others = ALTERNATIVES[_exercise(module, name)]
    return {
        f"does it in another way ({other.__name__.replace('_', ' ')})": Lent(
            alternative, module, name, number
        )
        for number, other in enumerate(others)
        if other.__name__ not in _NOT_LENT
    }


def mistake(module: str, name: str, number: int) -> Any:
    """Make a mistake anew."""
    return _anew(BUGS[_exercise(module, name)][number].solution)


def another_mistake(name: str, number: int) -> Any:
    """Make one of those that are known here alone."""
    solution, *edits = _MORE[name][number]
    return solutions.edited("is wrong", solution, tuple(edits))


def alternative(module: str, name: str, number: int) -> Any:
    """Give another right solution."""
    return ALTERNATIVES[_exercise(module, name)][number]


def _exercise(module: str, name: str) -> Exercise:
    for kind in ("mistakes", "alternatives"):
        importlib.import_module(f"autograder.assignments.{module}.{kind}")
    return Exercise.of(own(module, name))


def _anew(solution: Any) -> Any:
    """Copy a function or a class without what it has kept in default values and attributes."""
    if inspect.isfunction(solution):
        new = types.FunctionType(
            solution.__code__,
            solution.__globals__,
            solution.__name__,
            copy.deepcopy(solution.__defaults__),
            solution.__closure__,
        )
        new.__kwdefaults__ = copy.deepcopy(solution.__kwdefaults__)
        return new
    members = {
        name: _anew(member) if inspect.isfunction(member) else copy.deepcopy(member)
        for name, member in vars(solution).items()
        if inspect.isfunction(member) or not (name.startswith("__") or callable(member))
    }
    return type(solution.__name__, (solution,), members)
