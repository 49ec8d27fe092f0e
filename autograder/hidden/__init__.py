"""What only the grader runs: a module of hidden checks and rules for each assignment."""

import importlib
from collections.abc import Callable

from course_pkg.checking.registry import Exercise

# Torch's own attention, by all of its names.
ATTENTION = (
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.scaled_dot_product_attention",
    "torch.nn.MultiheadAttention",
    "torch.nn.functional.multi_head_attention_forward",
)
_RULES: dict[Exercise, tuple[str, ...]] = {}


def load_hidden(exercise: Exercise) -> None:
    """Import the hidden checks and the rules of an exercise's assignment."""
    importlib.import_module(f"autograder.hidden.{exercise.module}")


def forbid(reference: Callable, *names: str) -> None:
    """Forbid functions and classes in the solutions of an exercise.

    Args:
        reference: the function or class in course_pkg.
        names: full names, such as torch.nn.LSTM.
    """
    _RULES[Exercise.of(reference)] = names


def forbidden(exercise: Exercise) -> tuple[str, ...]:
    """List the names that solutions of an exercise must not use."""
    return _RULES.get(exercise, ())
