"""A processor that rounds otherwise: the last bits of exponentials, sums and products differ.

    python -m tests.rounding autograder build --check     run a command of Python's as on such a one

Processors and libraries agree on what a single addition gives, and on exact results, but not on
the last bits of a matrix product, a sum or an exponential. Inside `other_rounding()`, sums differ
from what this processor gives by up to two units in the last place and functions by up to one,
always by the same for the same number.
"""

import contextlib
import runpy
import sys
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

_EXACT = {torch.float32: 12, torch.float64: 29}  # a number that ends in so many zeros is exact
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
_UNITS = {
    **dict.fromkeys(["cos", "erf", "exp", "expm1", "gelu", "log", "log1p", "pow"], 1),
    **dict.fromkeys(["rsqrt", "sigmoid", "silu", "sin", "softplus", "tanh"], 1),
    **dict.fromkeys(["_log_softmax", "_softmax", "logsumexp", "native_layer_norm"], 2),
    **dict.fromkeys(["addbmm", "addmm", "addmv", "baddbmm", "bmm", "convolution"], 2),
    **dict.fromkeys(["cumsum", "dot", "mean", "mm", "mv", "std", "sum", "var"], 2),
}


class _OtherRounding(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        units = _UNITS.get(func._schema.name.removeprefix("aten::").removesuffix("_backward"))
        if units is None or func._schema.is_mutable:
            return result
        known = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        return tree_map_only(Tensor, lambda x: _rounded_otherwise(x, known, units), result)


def _rounded_otherwise(values: Tensor, known: list[Tensor], units: int) -> Tensor:
    """Move each number that is not exact, such as one that was only selected, by a few units."""
    if values.dtype not in _EXACT or values.device.type != "cpu":
        return values
    bits = values.contiguous().view(_INTEGERS[values.dtype])
    keeps = (bits & ((1 << _EXACT[values.dtype]) - 1)) == 0
    keeps |= ~values.isfinite() | (values == 0)
    for other in known:
        if other.dtype == values.dtype:
            keeps |= torch.isin(values.contiguous(), other.contiguous())
    moved = bits + (bits * 2654435761 >> 7) % (2 * units + 1) - units
    return torch.where(keeps, values, moved.view(values.dtype))


@contextlib.contextmanager
def other_rounding() -> Iterator[None]:
    """Compute as on a processor that rounds otherwise."""
    with _OtherRounding():
        yield


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    with other_rounding():
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
