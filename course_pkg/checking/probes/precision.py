"""Does a call work in float32 as well? Checks compute in float64, notebooks train in float32."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from course_pkg.checking.telling.failure import Failure

HINT = (
    "Checks compute in float64, notebooks in float32. Has each new tensor the type of the inputs, "
    "as in dtype=X.dtype? Is each constant one that float32 can hold?"
)


def demand_numbers(name: str, single: object, double: object) -> None:
    """Demand that a result in float32 is a number wherever that in float64 is one.

    Args:
        name: what messages call what was called.
        single, double: what it gave for inputs in float32, and for the same in float64.
    Raises:
        Failure: it is not.
    """
    for here, there in zip(_numbers(single), _numbers(double), strict=False):
        if here.shape == there.shape and (there.isfinite() & here.isnan()).any():
            raise Failure(f"{name} gives NaN, with the same in float64 it does not.")


def demand_default(name: str, module: nn.Module) -> None:
    """Demand that a new module has its parameters in torch's default type.

    Raises:
        Failure: one has another type.
    """
    for parameter, value in module.named_parameters():
        if value.is_floating_point() and value.dtype != torch.get_default_dtype():
            raise Failure(
                f"{name} makes {parameter} in {value.dtype}, with which inputs in "
                f"{torch.get_default_dtype()} do not go together: leave dtype out."
            )


def _numbers(result: object) -> Iterator[Tensor]:
    if isinstance(result, Tensor) and result.is_floating_point():
        yield result.detach()
    elif isinstance(result, float):
        yield torch.tensor(result)
    elif isinstance(result, dict):
        yield from _numbers(list(result.values()))
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _numbers(item)
