"""What is lent for one call of a student's function, in the process that answers for it.

It may be called, and what it makes may be called and looked at, by public names alone. Texts of
exceptions do not leave: in a TypeError, say, there is the name of the function.
"""

import inspect
from typing import Any

import torch
from torch import Tensor

from course_pkg.checking.lending import made
from course_pkg.remote.messages import Decoder, Encoder, WireError


class Loan:
    """Answer questions about what was lent.

    Args:
        places: of what is lent, as `Lent` has them.
    """

    def __init__(self, places: list):
        self._objects: list[Any] = [made(place) for place in places]
        self._classes = tuple(one for one in self._objects if inspect.isclass(one))
        self._leaves: list[Tensor] = []  # tensors that came, from which gradients are asked for
        self._graphs: list[tuple[list[Tensor], list[Tensor]]] = []  # outputs and leaves of calls

    def answer(self, message: Decoder) -> bytes:
        """Answer a question; what goes wrong is part of the answer."""
        try:
            asked = self._back if message.header["lent"] is None else self._ask
            return asked(message)
        except Exception as error:
            kind = type(error)
            return Encoder().message({"problem": [kind.__module__, kind.__qualname__, ""]})

    def _ask(self, message: Decoder) -> bytes:
        header = message.header
        dtype = getattr(torch, header["dtype"])
        torch.set_default_dtype(dtype if dtype.is_floating_point else torch.float32)
        given = [tensor.detach() for tensor in message.tensors]
        before = [tensor.clone() for tensor in given]
        leaves = [message.tensor(number).detach().requires_grad_() for number in header["inputs"]]
        message.tensors = given
        for number, leaf in zip(header["inputs"], leaves, strict=True):
            message.tensors[number] = given[number] = leaf.clone()
        args = message.value(header["args"], self._resolve)
        kwargs = message.value(header["kwargs"], self._resolve)
        result = self._result(self._object(header["lent"]), header["attribute"], args, kwargs)
        self._leaves += leaves
        encoder = Encoder(self._refer)
        value = encoder.value(result)
        outputs = [n for n, tensor in enumerate(encoder.tensors) if tensor.requires_grad]
        if outputs:
            self._graphs.append(([encoder.tensors[n] for n in outputs], [*self._leaves]))
        changed = [
            (number, encoder.tensor(tensor.detach()))
            for number, (tensor, old) in enumerate(zip(given, before, strict=True))
            if not _is_equal(tensor, old)
        ]
        found = {"value": value, "outputs": outputs, "changed": changed}
        return encoder.message({**found, "graph": len(self._graphs) - 1})

    def _back(self, message: Decoder) -> bytes:
        outputs, leaves = self._graphs[message.header["graph"]]
        grads = [message.value(tree) for tree in message.header["grads"]]
        pairs = [pair for pair in zip(outputs, grads, strict=True) if pair[1] is not None]
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            leaves,
            [grad for _, grad in pairs],
            retain_graph=True,
            allow_unused=True,
        )
        encoder = Encoder()
        return encoder.message({"grads": [encoder.value(grad) for grad in found]})

    def _result(self, target: Any, attribute: object, args: tuple, kwargs: dict) -> object:
        if attribute is None:
            return target(*args, **kwargs)
        if not isinstance(attribute, str) or attribute.startswith("_"):
            raise AttributeError
        if not isinstance(target, self._classes):
            raise AttributeError
        found = getattr(target, attribute)
        return found(*args, **kwargs) if attribute in _methods(target) else found

    def _object(self, number: object) -> Any:
        if type(number) is not int or not 0 <= number < len(self._objects):
            raise WireError("nothing of that number is lent")
        return self._objects[number]

    def _resolve(self, tree: list) -> Any:
        kind, number = tree
        if kind != "lent":
            raise WireError("an unknown kind of value")
        return self._object(number)

    def _refer(self, value: object) -> list | None:
        if not isinstance(value, self._classes):
            return None
        self._objects.append(value)
        return ["lent", len(self._objects) - 1, _methods(value)]


def _methods(target: object) -> list[str]:
    found = inspect.getmembers_static(type(target), inspect.isfunction)
    return [name for name, _ in found if not name.startswith("_")]


def _is_equal(a: Tensor, b: Tensor) -> bool:
    same = a.shape == b.shape and a.dtype == b.dtype
    return same and bool(((a == b) | ((a != a) & (b != b))).all())
