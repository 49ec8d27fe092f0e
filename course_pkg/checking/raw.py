"""Tensors as raw bytes, each with a description that is checked before it is believed."""

import math

import torch
from torch import Tensor, nn

from course_pkg.checking.failure import CheckingError

_DIMENSIONS = 32
_SIZE = 1 << 40  # entries
_NUMBERS = "uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64"
_DTYPES = {
    name: getattr(torch, name)
    for name in f"bool {_NUMBERS} complex64 complex128 float8_e4m3fn float8_e5m2".split()
}


class WireError(CheckingError):
    """A value cannot be sent, or bytes that came are not a message."""


def dtype(name: str) -> torch.dtype:
    """Look up a type of numbers by its name.

    Raises:
        WireError: there is none of that name.
    """
    if name not in _DTYPES:
        raise WireError(f"there is no type of numbers {name!r:.40}")
    return _DTYPES[name]


def describe(tensor: Tensor) -> dict:
    """Describe a tensor, without its numbers and its gradient.

    Raises:
        WireError: it is of a kind whose numbers cannot be sent.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES or tensor.is_meta or tensor.is_nested:
        raise WireError(f"a tensor of {tensor.dtype} on {tensor.device} cannot be sent")
    return {
        "dtype": name,
        "shape": list(tensor.shape),
        "requires_grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "parameter": isinstance(tensor, nn.Parameter),
        "grad": None,
    }


def to_bytes(tensor: Tensor) -> bytes:
    """Give the numbers of a tensor, row by row."""
    dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    # A copy, because torch calls a single entry contiguous whatever its stride, and view does not.
    dense = dense.cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()


def checked(spec: object) -> dict:
    """Validate the description of a tensor, so that the rest can trust it."""
    match spec:
        case {
            "dtype": str(dtype),
            "shape": list(shape),
            "requires_grad": bool(requires_grad),
            "leaf": bool(),
            "parameter": bool(),
            "grad": None | int(),
        } if dtype in _DTYPES:
            sizes_fit = all(type(size) is int and 0 <= size < _SIZE for size in shape)
            if len(shape) > _DIMENSIONS or not sizes_fit:
                raise WireError("a tensor's shape is not one")
            if math.prod(size for size in shape if size) >= _SIZE:
                raise WireError("a tensor is too large")
            kind = _DTYPES[dtype]
            if requires_grad and not (kind.is_floating_point or kind.is_complex):
                raise WireError(f"a tensor of {dtype} cannot require a gradient")
            return spec
    raise WireError(f"not a tensor: {spec!r:.60}")


def bytes_of(spec: dict) -> int:
    """Say how many bytes the tensor of a checked description has."""
    return math.prod(spec["shape"]) * _DTYPES[spec["dtype"]].itemsize


def to_tensor(spec: dict, data: bytearray) -> Tensor:
    """Make a tensor of the described kind; one that is no leaf comes without its history."""
    raw = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    dtype = _DTYPES[spec["dtype"]]
    # A byte that is neither 0 nor 1 is no truth value, and undefined behaviour if taken for one.
    tensor = raw != 0 if dtype == torch.bool else raw.view(dtype)
    tensor = tensor.reshape(spec["shape"])
    requires_grad = spec["requires_grad"] and spec["leaf"]
    if spec["parameter"]:
        return nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)
