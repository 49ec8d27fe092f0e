"""Repeat a student's call on another device, where it must give the same result.

Checks compare on the CPU. Where a notebook uses a GPU, each call is made once more, there, with
copies of all that it uses; code that makes tensors without naming a device fails there.
"""

import contextlib
import copy
import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from unittest.mock import patch

import torch
from torch import Tensor, nn

from course_pkg.checking.telling.failure import Failure, dense, mismatch

HINT = (
    "It works on the CPU. Is each new tensor made on the device of the inputs, as in "
    "device=X.device? Is every tensor that a module keeps a parameter or a buffer?"
)
# Relative and absolute; tight enough to tell tf32, in which GPUs may multiply, from float32.
_TOLERANCES = {torch.float64: (1e-5, 1e-7), torch.float32: (2e-5, 1e-5)}
_OF_TENSOR, _OF_PARAMETER = Tensor.__deepcopy__, nn.Parameter.__deepcopy__
_WIDEST = (3e-2, 3e-2)  # for half precision


def copies(
    place: torch.device | torch.dtype, target: object, args: tuple, kwargs: dict
) -> tuple | None:
    """Copy a call to a device, or what is in float64 to another type.

    Tensors that share memory share it as copies too.

    Returns:
        The function, its positional and its named arguments; None where no tensor has to be moved,
        or something is tied to the CPU: a generator of random numbers, a function, an iterator.
    """
    if any(map(_is_tied, _members((args, kwargs)))):
        return None
    moved, memories = [], {}

    def stays(tensor: Tensor) -> bool:
        if isinstance(place, torch.dtype):
            return tensor.dtype != torch.float64
        return tensor.device.type == place.type or hasattr(tensor, "stays_behind")

    def move(tensor: Tensor, memo: dict) -> Tensor:
        if stays(tensor):
            return (_OF_PARAMETER if isinstance(tensor, nn.Parameter) else _OF_TENSOR)(tensor, memo)
        if tensor.layout == torch.strided:
            key = (tensor.untyped_storage().data_ptr(), tensor.dtype)
            if key not in memories:
                memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
                memories[key] = memory.to(place)
            new = memories[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        else:
            new = tensor.detach().to(place)
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, tensor.requires_grad)
        new.requires_grad_(tensor.requires_grad)
        if tensor.is_leaf and tensor.grad is not None:
            new.grad = tensor.grad.to(place)
        moved.append(new)
        return new

    with deepcopy_of_tensors(move), contextlib.suppress(Exception):  # some cannot be copied
        call = copy.deepcopy((target, args, kwargs))
        return call if moved else None
    return None


def mark_what_stays_behind(module: nn.Module) -> None:
    """Mark the tensors of a new module that `module.to(device)` does not move.

    They are plain attributes, neither parameters nor buffers.
    """
    registered = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def mark(tensor: Tensor, memo: dict) -> Tensor:
        if id(tensor) not in registered:
            vars(tensor)["stays_behind"] = True
        return tensor

    with deepcopy_of_tensors(mark), contextlib.suppress(Exception):
        copy.deepcopy(module)


@contextlib.contextmanager
def deepcopy_of_tensors(function: Callable[[Tensor, dict], Tensor]) -> Iterator[None]:
    """Let `copy.deepcopy` call a function wherever it finds a tensor."""
    in_tensor = patch.object(Tensor, "__deepcopy__", function)
    in_parameter = patch.object(nn.Parameter, "__deepcopy__", function)
    in_module = patch.object(nn.Module, "__deepcopy__", _copy_of_module, create=True)
    with in_tensor, in_parameter, in_module:
        yield


def _copy_of_module(module: nn.Module, memo: dict) -> nn.Module:
    """Copy a module as `copy.deepcopy` would, but not one by one its dozen empty dicts of hooks."""
    new = memo[id(module)] = type(module).__new__(type(module))
    new.__setstate__(
        {
            name: value.copy() if _is_empty(value) else copy.deepcopy(value, memo)
            for name, value in module.__getstate__().items()
        }
    )
    return new


def _is_empty(value: object) -> bool:
    return type(value) in (dict, OrderedDict) and not value


def exact() -> contextlib.AbstractContextManager:
    """Let convolutions on a GPU keep all 24 bits of float32, as those on a CPU do."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


def demand_same(
    there: object, here: object, place: torch.device, random: bool, ordered: bool = True
) -> None:
    """Demand that two results are the same, up to the order of sums.

    Real numbers are compared; whole ones are not, because devices may break a tie differently.

    Args:
        there: what came out on the device.
        here: what came out on the CPU.
        place: the device.
        random: whether numbers were drawn, which differ between devices.
        ordered: whether the numbers of a tensor must be in the same order.
    Raises:
        Failure: they differ, or a tensor of real numbers lies elsewhere.
    """
    if isinstance(here, Tensor) and isinstance(there, Tensor):
        if there.shape != here.shape or there.dtype != here.dtype:
            raise Failure(
                f"On {place} the result is {tuple(there.shape)}, {there.dtype}; "
                f"on the CPU it is {tuple(here.shape)}, {here.dtype}."
            )
        if not (here.is_floating_point() or here.is_complex()) or here.is_meta:
            return
        # A single number mixes with tensors of any device.
        if here.dim() and there.device.type != place.type:
            where = there.device
            raise Failure(
                f"From tensors on {place} the result should be there too, yours is on {where}."
            )
        if not random:
            if not ordered:
                there, here = (each.flatten().sort()[0] for each in (there, here))
            _demand_close(there, here, place)
    elif isinstance(here, dict) and isinstance(there, dict):
        demand_same(list(there.values()), list(here.values()), place, random, ordered)
    elif isinstance(here, (list, tuple)) and isinstance(there, (list, tuple)):
        if len(here) != len(there):
            raise Failure(f"On {place} the result has {len(there)} members, not {len(here)}.")
        for pair in zip(there, here, strict=True):
            demand_same(*pair, place, random, ordered)
    elif isinstance(here, float) and isinstance(there, float) and not random:
        if not (math.isclose(there, here, rel_tol=1e-5, abs_tol=1e-7) or here != here):
            raise Failure(f"On {place} the result is {there:.6g}, on the CPU {here:.6g}.")


def _demand_close(there: Tensor, here: Tensor, place: torch.device) -> None:
    rtol, atol = _TOLERANCES.get(here.dtype.to_real(), _WIDEST)
    there, here = dense(there), dense(here)
    wide = torch.complex128 if here.is_complex() else torch.float64
    close = torch.isclose(there.to(wide), here.to(wide), rtol, atol, equal_nan=True)
    if not close.all():
        raise Failure(f"On {place}: {mismatch(there, here, ~close, 'the result').message}")


def _is_tied(value: object) -> bool:
    return isinstance(value, (torch.Generator, Iterator)) or inspect.isroutine(value)


def _members(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for member in value:
            yield from _members(member)
    else:
        yield value
