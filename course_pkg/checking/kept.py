"""Does a module's call depend on those before it? Tried on copies, which nothing else sees.

A mask, a table or a state that is kept from the first call is right there and wrong in the second;
what is kept of the weights is wrong once they have changed.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.checking import twice
from course_pkg.checking.failure import Failure

LARGEST = 50_000  # parameters of a module that is tried: more would take long


Attempt = Callable[[Callable[[], object]], object]


class Refusal(str):
    """The name of the exception by which a call refused its inputs; empty if it took too long."""


def copy_of(module: object) -> nn.Module | None:
    """Copy a module; None for anything else, or one that is too large or cannot be copied."""
    if not isinstance(module, nn.Module):
        return None
    if sum(parameter.numel() for parameter in module.parameters()) > LARGEST:
        return None
    try:
        with twice.deepcopy_of_tensors(_copy):
            return copy.deepcopy(module)
    except Exception:
        return None


def demand_nothing(
    name: str, attempt: Attempt, before: nn.Module, after: nn.Module, args: tuple, kwargs: dict
) -> None:
    """Demand that a module does the same with other inputs and weights, before and after a call.

    Args:
        name: what messages call it.
        attempt: does something within the time of a call, or raises Failure.
        before, after: copies of the module from before and after the call; their weights change.
        args, kwargs: what it was called with.
    Raises:
        Failure: it does not.
    """
    _change_weights(before)
    _change_weights(after)
    for change in (_shorter, _reversed):
        other = _map(change, args), _map(change, kwargs)
        first, second = (_result(attempt, copied, *other) for copied in (before, after))
        if not _agree(first, second):
            raise Failure(
                f"{name} depends on an earlier call: with other inputs and weights than at its "
                "first call, it returns something else than if it had not been called before. What "
                "does it keep?",
                what=f"{name} called again",
            )
        if not isinstance(first, Refusal):
            return


def _change_weights(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.mul_(0.5)


def _copy(tensor: Tensor, memo: dict) -> Tensor:
    if id(tensor) not in memo:
        new = tensor.detach().clone()
        memo[id(tensor)] = nn.Parameter(new) if isinstance(tensor, nn.Parameter) else new
    return memo[id(tensor)]


def _result(attempt: Attempt, call: Callable, args: Any, kwargs: Any) -> object:
    def run() -> object:
        result = call(*args, **kwargs)
        return list(result) if isinstance(result, Iterator) else result

    random = torch.get_rng_state()
    try:
        with torch.no_grad():
            return attempt(run)
    except Failure as failure:
        return Refusal("".join(failure.kinds[:1]))
    finally:
        torch.set_rng_state(random)


def _map(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value.detach())
    if isinstance(value, dict):
        return {key: _map(change, item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map(change, item) for item in value)
    return value


def _reversed(tensor: Tensor) -> Tensor:
    """Other inputs of the same sizes; whole numbers stay within their range."""
    turned = tensor.flip(list(range(tensor.dim())))
    return turned / 2 if tensor.is_floating_point() else turned


def _shorter(tensor: Tensor) -> Tensor:
    """Other inputs with one position less."""
    turned = _reversed(tensor)
    return turned[:, 1:] if turned.dim() > 1 and turned.shape[1] > 1 else turned


def _agree(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    if isinstance(a, dict) and isinstance(b, dict):
        return _agree(list(a.values()), list(b.values()))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_agree(*pair) for pair in zip(a, b, strict=True))
    return a == b if isinstance(a, Refusal) or isinstance(b, Refusal) else True
