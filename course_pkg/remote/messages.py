"""Values as bytes: the format in which checks talk to student code in another process.

A message is a JSON header and the raw bytes of its tensors. Reading one cannot execute anything:
the header holds only data, tensors only numbers, and every length is checked before it is used.
"""

import functools
import itertools
import json
import math
import operator
import struct
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from course_pkg.checking.models import (
    SmallDecoder,
    SmallDraft,
    SmallReader,
    SmallServed,
    SmallTranslator,
)
from course_pkg.checking.telling.failure import CheckingError

HEADER_BYTES = 4 << 20
BODY_BYTES = 256 << 20
DEPTH = 40  # of nested containers
LONGEST_RANGE = 1 << 20
MESSAGE = 4000  # characters of a failure
LABEL = 200  # characters of an object's name, kind and type
_NAME = 100  # characters of a type's name
_FIELDS = 100  # of a named tuple
_INT_BITS = 1 << 16
_LONG = 64  # bits from which an integer is sent as text
_CHUNK = 1 << 20
_LENGTHS = struct.Struct("!IQ")  # of the header and of the body
_PLAIN = {bool, float, int, str, type(None)}  # what JSON holds as it is
_CONTAINERS = {"list": list, "tuple": tuple, "dict": dict, "set": set, "deque": deque}
_SUBCLASSES = {
    "OrderedDict": OrderedDict,
    "Size": torch.Size,
    "SmallDecoder": SmallDecoder,
    "SmallDraft": SmallDraft,
    "SmallReader": SmallReader,
    "SmallServed": SmallServed,
    "SmallTranslator": SmallTranslator,
}
_DIMENSIONS = 32
_SIZE = 1 << 40  # entries
_NUMBERS = "uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64"
_DTYPES = {
    name: getattr(torch, name)
    for name in f"bool {_NUMBERS} complex64 complex128 float8_e4m3fn float8_e5m2".split()
}

# As what the bytes of other kinds are read.
_NOT_IN_NUMPY = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


class WireError(CheckingError):
    """A value cannot be sent, or the bytes received are not a message."""


class Encoder:
    """Turn values into one message.

    Tensors are numbered in the order in which they come; one that comes twice is sent once.

    Args:
        refer: gives the tree of an object that crosses as a reference, and None for all others.
    """

    def __init__(self, refer: Callable[[object], list | None] = lambda value: None):
        self.tensors: list[Tensor] = []
        self.generators: list[torch.Generator] = []
        self._refer = refer
        self._numbers: dict[int, int] = {}
        self._specs: list[dict] = []
        self._parts: list[bytes] = []
        self._size = 0

    def tensor(self, tensor: Tensor) -> int:
        """Add a tensor, and its gradient if it is a leaf that has one; return its number.

        Raises:
            WireError: it is too large, or of a kind whose numbers cannot be sent.
        """
        if id(tensor) in self._numbers:
            return self._numbers[id(tensor)]
        spec = _spec(tensor)
        self._size += tensor.numel() * tensor.element_size()
        if self._size > BODY_BYTES:
            raise WireError(f"more than {BODY_BYTES >> 20} MB of tensors cannot be sent")
        number = self._numbers[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        self._specs.append(spec)
        self._parts.append(_to_bytes(tensor, spec["order"]))
        if tensor.is_leaf and tensor.grad is not None:
            spec["grad"] = self.tensor(tensor.grad.detach())
        return number

    def value(self, value: object, depth: int = 0):
        """Describe a value as a JSON tree that Decoder.value turns back into it.

        Raises:
            WireError: it is of a kind that cannot be sent, too large or too deeply nested.
        """
        if depth > DEPTH:
            raise WireError(f"containers nested more than {DEPTH} deep cannot be sent")
        if isinstance(value, (list, tuple, dict, set, deque)):
            return self._container(value, depth)
        tree = self._refer(value)
        return self._scalar(value) if tree is None else tree

    def message(self, header: dict) -> bytes:
        """Finish: the bytes of a message with this header, whose values are trees.

        Raises:
            WireError: the header is too large.
        """
        text = json.dumps({**header, "tensors": self._specs}).encode()
        if len(text) > HEADER_BYTES:
            raise WireError(f"more than {HEADER_BYTES >> 20} MB of text and lists cannot be sent")
        return packed(text, *self._parts)

    def _container(self, value, depth: int) -> list:
        name = type(value).__name__
        if type(value) is _CONTAINERS.get(name):  # most are
            kind = name
        else:
            kind = next(kind for kind, base in _CONTAINERS.items() if isinstance(value, base))
        items = [item for pair in value.items() for item in pair] if kind == "dict" else value
        trees = [item if _is_plain(item) else self.value(item, depth + 1) for item in items]
        if kind == name:
            return [kind, name, [], trees]
        if not _is_name(name):
            raise WireError(f"a {kind} whose type is called {name[:_NAME]!r} cannot be sent")
        fields = [field for field in getattr(value, "_fields", ()) if isinstance(field, str)]
        return [kind, name, fields if kind == "tuple" else [], trees]

    def _scalar(self, value):
        match value:
            case Tensor():
                return ["tensor", self.tensor(value)]
            case np.ndarray() | np.generic() if not isinstance(value, (str, bytes)):
                kind = "array" if isinstance(value, np.ndarray) else "scalar"
                try:
                    return [kind, self.tensor(torch.from_numpy(np.array(value, order="C")))]
                except (TypeError, ValueError):
                    raise WireError(f"numpy's {value.dtype} cannot be sent") from None
            case None | bool():
                return value
            case int():
                return _int_tree(int(value))
            case float():
                return float(value)
            case str():
                return str(value)
            case complex():
                return ["complex", value.real, value.imag]
            case bytes():
                raw_bytes = np.frombuffer(bytearray(value), np.uint8)
                return ["bytes", self.tensor(torch.from_numpy(raw_bytes))]
            case range():
                return ["range", *map(_int_tree, (value.start, value.stop, value.step))]
            case torch.dtype():
                return ["dtype", str(value).removeprefix("torch.")]
            case torch.device(type="cpu"):
                return ["device"]
            case torch.Generator():
                self.generators.append(value)
                return ["generator", self.tensor(value.get_state())]
        raise WireError(f"an object of type {type(value).__name__} cannot be sent")


class Decoder:
    """Read the values of one message.

    Tensors that are not leaves come without their history: the reader of the message links them.

    Args:
        header: the JSON text.
        body: the bytes of the tensors, one after the other.
    Raises:
        WireError: the message is malformed.
    """

    def __init__(self, header: bytearray, body: bytearray):
        self.parts = header, body  # as they came, to be passed on
        try:
            self.header = json.loads(header.decode())
        except (ValueError, RecursionError):
            raise WireError("the header is not JSON") from None
        if not isinstance(self.header, dict) or not isinstance(self.header.get("tensors"), list):
            raise WireError("the header does not list its tensors")
        self.generators: list[torch.Generator] = []
        self.specs = [_checked(spec) for spec in self.header["tensors"]]
        sizes = [_bytes_of(spec) for spec in self.specs]
        if sum(sizes) != len(body):
            raise WireError(f"the tensors should have {sum(sizes)} bytes, {len(body)} came")
        starts = itertools.accumulate(sizes, initial=0)
        self.tensors = [
            _to_tensor(spec, body[start : start + size])
            for spec, start, size in zip(self.specs, starts, sizes, strict=False)
        ]
        for spec, tensor in zip(self.specs, self.tensors, strict=True):
            if spec["grad"] is not None:
                self._set_grad(tensor, self.tensor(spec["grad"]))

    def tensor(self, number: object) -> Tensor:
        """Look up a tensor by its number.

        Raises:
            WireError: there is none.
        """
        if type(number) is not int or not 0 <= number < len(self.tensors):
            raise WireError(f"there is no tensor {number!r:.20}")
        return self.tensors[number]

    def value(self, tree, resolve: Callable[[list], object] | None = None, depth: int = 0):
        """Rebuild the value that Encoder.value described.

        Args:
            resolve: gives the object that a tree of an unknown kind refers to.
        Raises:
            WireError: the tree is malformed.
        """
        if type(tree) in _PLAIN:
            return tree
        if depth > DEPTH:
            raise WireError(f"containers nested more than {DEPTH} deep")
        kind = tree[0] if isinstance(tree, list) and tree else None
        try:
            if kind in _CONTAINERS:
                _, name, fields, items = tree
                if not isinstance(fields, list) or not isinstance(items, list):
                    raise TypeError("a container without its items")
                values = [
                    item if type(item) in _PLAIN else self.value(item, resolve, depth + 1)
                    for item in items
                ]
                make = _container_type(kind, name, tuple(fields))
                if kind == "dict":
                    return make(zip(values[::2], values[1::2], strict=True))
                return make(values)
            if kind in _SCALARS:
                return _SCALARS[kind](self, *tree[1:])
        except (TypeError, ValueError, RuntimeError, OverflowError, AttributeError) as error:
            raise WireError(f"a malformed value: {error!s:.100}") from None
        if resolve is None or kind is None:
            raise WireError(f"an unknown kind of value: {tree!r:.40}")
        return resolve(tree)

    def _generator(self, number):
        generator = torch.Generator()
        generator.set_state(self.tensor(number))
        self.generators.append(generator)
        return generator

    def _set_grad(self, tensor: Tensor, grad: Tensor) -> None:
        if grad.shape != tensor.shape or grad.dtype != tensor.dtype or grad.requires_grad:
            raise WireError("a gradient does not fit its tensor")
        tensor.grad = grad


class Source(Protocol):
    """What messages come from: a file, or a connection."""

    def read(self, count: int, /) -> bytes: ...


def read(stream: Source) -> Decoder | None:
    """Read one message.

    Returns:
        The message, or None when the stream ends before it begins.
    Raises:
        WireError: what comes is not a message.
    """
    found = read_bytes(stream)
    return None if found is None else Decoder(*found)


def read_bytes(stream: Source) -> tuple[bytearray, bytearray] | None:
    """Read the header and the body of one message, and do not look into them; else as `read`."""
    lengths = _exactly(stream, _LENGTHS.size, or_nothing=True)
    if not lengths:
        return None
    header, body = _LENGTHS.unpack(lengths)
    if header > HEADER_BYTES or body > BODY_BYTES:
        raise WireError(f"a message of {header} + {body} bytes is too large")
    return _exactly(stream, header), _exactly(stream, body)


def packed(header: bytes | bytearray, *body: bytes | bytearray) -> bytes:
    """Put the header and the parts of the body of a message together, as they are sent."""
    return b"".join([_LENGTHS.pack(len(header), sum(map(len, body))), header, *body])


def _dtype(name: str) -> torch.dtype:
    """Look up a dtype by its name.

    Raises:
        WireError: there is none of that name.
    """
    if name not in _DTYPES:
        raise WireError(f"there is no dtype {name!r:.40}")
    return _DTYPES[name]


def _spec(tensor: Tensor) -> dict:
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
        "order": _order(tensor),
        "requires_grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "parameter": isinstance(tensor, nn.Parameter),
        "grad": None,
    }


def _order(tensor: Tensor) -> list[int]:
    """Give the order of the axes in which the numbers of a tensor lie in memory.

    A transposed tensor arrives as one, so that `view` fails there if it fails here.
    """
    order = list(range(tensor.ndim))
    if tensor.layout == torch.strided and not tensor.is_contiguous():
        by_stride = sorted(order, key=tensor.stride, reverse=True)
        order = by_stride if tensor.permute(by_stride).is_contiguous() else order
    return order


def _to_bytes(tensor: Tensor, order: list[int]) -> bytes:
    """Give the numbers of a tensor in the order of these axes, the last one fastest."""
    dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    if tensor.dtype in _NOT_IN_NUMPY:
        dense = dense.view(_NOT_IN_NUMPY[tensor.dtype])
    return dense.permute(order).numpy(force=True).tobytes()


def _checked(spec: object) -> dict:
    """Validate the description of a tensor, so that the rest can trust it."""
    match spec:
        case {
            "dtype": str(dtype),
            "shape": list(shape),
            "order": list(order),
            "requires_grad": bool(requires_grad),
            "leaf": bool(),
            "parameter": bool(),
            "grad": None | int(),
        } if isinstance(spec, dict) and dtype in _DTYPES:
            sizes_fit = all(type(size) is int and 0 <= size < _SIZE for size in shape)
            if len(shape) > _DIMENSIONS or not sizes_fit:
                raise WireError("a tensor's shape is malformed")
            if {*map(type, order)} - {int} or sorted(order) != list(range(len(shape))):
                raise WireError("the order of a tensor's axes is malformed")
            if math.prod(size for size in shape if size) >= _SIZE:
                raise WireError("a tensor is too large")
            kind = _DTYPES[dtype]
            if requires_grad and not (kind.is_floating_point or kind.is_complex):
                raise WireError(f"a tensor of {dtype} cannot require a gradient")
            return spec
    raise WireError(f"not a tensor: {spec!r:.60}")


def _bytes_of(spec: dict) -> int:
    """Say how many bytes the tensor of a checked description has."""
    return math.prod(spec["shape"]) * _DTYPES[spec["dtype"]].itemsize


def _to_tensor(spec: dict, data: bytearray) -> Tensor:
    """Make a tensor of the described kind; one that is not a leaf comes without its history."""
    dtype = _DTYPES[spec["dtype"]]
    # A byte that is neither 0 nor 1 is no truth value, and undefined behaviour if taken for one.
    read_as = torch.uint8 if dtype == torch.bool else dtype
    tensor = torch.frombuffer(data, dtype=read_as) if data else torch.empty(0, dtype=read_as)
    if dtype == torch.bool:
        tensor = tensor != 0
    order = spec["order"]
    tensor = tensor.reshape([spec["shape"][axis] for axis in order])
    if order != sorted(order):
        tensor = tensor.permute([order.index(axis) for axis in range(len(order))])
    requires_grad = spec["requires_grad"] and spec["leaf"]
    if spec["parameter"]:
        return nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def _exactly(stream: Source, count: int, or_nothing: bool = False) -> bytearray:
    data = bytearray()  # grows with what comes: an announced length alone costs no memory
    while len(data) < count:
        part = stream.read(min(count - len(data), _CHUNK))
        if not part:
            if or_nothing and not data:
                break
            raise WireError(f"the message ends after {len(data)} of {count} bytes")
        data += part
    return data


@functools.lru_cache(maxsize=256)
def _container_type(kind: str, name: str, fields: tuple[str, ...]) -> Callable:
    """Find or make the type of a container; give what makes one from its items."""
    base = _CONTAINERS[kind]
    if name == kind:
        return base
    if name in _SUBCLASSES and issubclass(_SUBCLASSES[name], base):
        return _SUBCLASSES[name]
    are_names = all(_is_name(field) for field in fields) and len(fields) <= _FIELDS
    if not _is_name(name) or not are_names or (fields and kind != "tuple"):
        raise WireError("a type's name is malformed")
    if not fields:
        return type(name, (base,), {})
    named = namedtuple(name, fields)  # type: ignore[misc]  # its name comes with the message
    return lambda items: named(*items)


def _range(start: int, stop: int, step: int) -> range:
    found = range(start, stop, step)
    if found and (found[-1] - found[0]) // step >= LONGEST_RANGE:
        raise WireError(f"{found} is too long")
    return found


def _is_name(name: str) -> bool:
    return len(name) <= _NAME and name.isidentifier()


def _is_plain(value: object) -> bool:
    """Tell whether a value is its own tree, which long lists are spared a call for."""
    return type(value) in _PLAIN and (type(value) is not int or value.bit_length() < _LONG)


def _int_tree(value: int):
    if value.bit_length() < _LONG:
        return value
    if value.bit_length() > _INT_BITS:
        raise WireError(f"an integer of {value.bit_length()} bits cannot be sent")
    return ["int", hex(value)]


def _int(tree) -> int:
    if isinstance(tree, list):
        _, text = tree
        if len(text) > _INT_BITS // 4 + 3:
            raise WireError("an integer is too large")
        return int(text, 16)
    return operator.index(tree)


_SCALARS: dict[str, Callable] = {
    "tensor": lambda decoder, number: decoder.tensor(number),
    "array": lambda decoder, number: decoder.tensor(number).numpy(force=True),
    "scalar": lambda decoder, number: decoder.tensor(number).numpy(force=True)[()],
    "int": lambda decoder, text: _int(["int", text]),
    "complex": lambda decoder, real, imaginary: complex(real, imaginary),
    "bytes": lambda decoder, number: decoder.tensor(number).numpy(force=True).tobytes(),
    "range": lambda decoder, *ends: _range(*map(_int, ends)),
    "dtype": lambda decoder, name: _dtype(name),
    "device": lambda decoder: torch.device("cpu"),
    "generator": lambda decoder, number: decoder._generator(number),
}
