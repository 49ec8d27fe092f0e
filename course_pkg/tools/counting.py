"""Count what a computation does, where a clock would depend on the machine."""

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def calls(run: Callable[[], object]) -> int:
    """Count the operations of torch that a run calls, one inside another not counted again.

    Example:
        >>> calls(lambda: torch.ones(3) + 1)
        2
    """
    with _Calls() as counter, torch.no_grad():
        run()
    return counter.count
