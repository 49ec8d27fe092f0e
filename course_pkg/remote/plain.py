"""Functions as they are written: in grading, `torch.compile` gives back what it is given.

To compile takes many times as long as a solution may compute, and changes no result that counts.
"""

from collections.abc import Callable
from typing import Any

import torch


def do_not_compile() -> None:
    """Let torch.compile do nothing in this process."""
    torch.compile = _compile


def _compile(model: Callable | None = None, **options: Any) -> Callable:
    """Give back a function or a module; without one, a decorator that does so."""
    return (lambda given: given) if model is None else model
