"""Parameters that exist twice: the student's in the child, and their doubles beside the checks."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from course_pkg.remote.messages import Decoder, Encoder, WireError

BYTES = 256 << 20  # of all parameters of a child together
COUNT = 100_000


@dataclass
class _Leaf:
    refer: Callable[[], Tensor | None]
    key: int
    data: Tensor | None = None  # as the other side knows it
    grad: Tensor | None = None


class Leaves:
    """The leaf tensors of a student's objects, kept equal on both sides.

    Each message carries those whose numbers or gradients changed since the last one, so that an
    optimiser works on either side, and a gradient that arrives on one is seen on the other.

    Args:
        weak: forget a tensor when nothing else holds it, and let the other side forget it too.
    """

    def __init__(self, weak: bool = False):
        self._weak = weak
        self._leaves: dict[int, _Leaf] = {}
        self._numbers: dict[int, int] = {}  # by id()
        self._count = 0

    def number(self, tensor: Tensor) -> int | None:
        """Look up the number of a tensor; None when it is not among the leaves."""
        number = self._numbers.get(id(tensor))
        return number if number is not None and self._leaves[number].refer() is tensor else None

    def tensor(self, number: object) -> Tensor:
        """Look up the tensor of a number.

        Raises:
            WireError: there is none.
        """
        leaf = self._leaves.get(number) if type(number) is int else None
        tensor = None if leaf is None else leaf.refer()
        if tensor is None:
            raise WireError(f"there is no parameter {number!r:.20}")
        return tensor

    def add(self, tensor: Tensor) -> int:
        """Give a tensor the next number."""
        self._count += 1
        self._put(self._count, tensor)
        return self._count

    def changes(self, encoder: Encoder) -> list[tuple[int, int | None]]:
        """Encode what the other side does not know yet, as pairs of a leaf and its new tensor.

        Returns:
            (number of the leaf, number of the tensor in the message), or None for a forgotten leaf.
        """
        changes: list[tuple[int, int | None]] = []
        for number, leaf in list(self._leaves.items()):
            tensor = leaf.refer()
            if tensor is None:
                self._forget(number)
                changes.append((number, None))
            elif not (equal(tensor, leaf.data) and equal(tensor.grad, leaf.grad)):
                changes.append((number, encoder.tensor(tensor)))
                self._remember(leaf, tensor)
        return changes

    def update(self, decoder: Decoder, changes: object, *, new: bool) -> None:
        """Take over what the other side's `changes` encoded.

        Args:
            decoder: the message.
            changes: the pairs.
            new: whether a number not known before is a new leaf.
        Raises:
            WireError: the pairs are malformed, or the leaves too many or too large.
        """
        for pair in changes if isinstance(changes, list) else [None]:
            match pair:
                case [int(number), None]:
                    self._forget(number)
                case [int(number), int(place)] if number in self._leaves:
                    tensor = self._leaves[number].refer()
                    if tensor is not None:
                        _assign(tensor, decoder.tensor(place))
                        self._remember(self._leaves[number], tensor)
                case [int(number), int(place)] if new:
                    tensor = decoder.tensor(place)
                    if not (tensor.requires_grad and tensor.is_leaf):
                        raise WireError("a parameter that requires no gradient")
                    self._put(number, tensor)
                    self._remember(self._leaves[number], tensor)
                case _:
                    raise WireError("malformed parameters")
        size = sum(leaf.data.nbytes for leaf in self._leaves.values() if leaf.data is not None)
        if size > BYTES or len(self._leaves) > COUNT:
            raise WireError(f"more than {BYTES >> 20} MB or {COUNT} of parameters")

    def _put(self, number: int, tensor: Tensor) -> None:
        refer = weakref.ref(tensor) if self._weak else lambda: tensor
        self._leaves[number] = _Leaf(refer, id(tensor))
        self._numbers[id(tensor)] = number

    def _forget(self, number: int) -> None:
        leaf = self._leaves.pop(number, None)
        if leaf is not None and self._numbers.get(leaf.key) == number:
            del self._numbers[leaf.key]

    def _remember(self, leaf: _Leaf, tensor: Tensor) -> None:
        leaf.data = tensor.detach().clone()
        leaf.grad = None if tensor.grad is None else tensor.grad.detach().clone()


def equal(a: Tensor | None, b: Tensor | None) -> bool:
    """Tell whether two tensors hold the same numbers, or are both missing."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def _assign(tensor: Tensor, new: Tensor) -> None:
    # Numbers that did not change are not written: autograd refuses tensors written to since.
    tensor.grad = None
    if tensor.dtype != new.dtype or tensor.shape != new.shape:
        tensor.data = new.data
    elif not equal(tensor, new):
        with torch.no_grad():
            tensor.copy_(new)
    tensor.grad = new.grad
