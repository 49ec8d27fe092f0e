"""Stand-ins for what the grader lends to a student's function for the time of one call.

A call of one, or a look at an attribute, is a question to the grader, whose process computes the
answer. It holds numbers, and the kind of an exception without its text, in which there are names.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_pkg.remote.messages import Decoder, Encoder
from course_pkg.remote.parts import Wire, exception_of

NOTE = "(its text stays with the grader)"


class Loan:
    """What is lent for one call.

    Args:
        wire: where to ask.
    """

    def __init__(self, wire: Wire):
        self.wire = wire
        self.leaves: list[Tensor] = []  # tensors it was given from which gradients are asked for

    def resolve(self, tree: list) -> "Borrowed":
        """Give the stand-in that a message describes."""
        _, number, methods = tree
        return Borrowed(self, number, methods)


class Borrowed:
    """Stand in for a function, a class, one of its instances or a method.

    Args:
        loan: to which it belongs.
        number: by which the grader knows it.
        methods: the names of its methods.
    """

    __slots__ = ("_loan", "_methods", "_number")

    def __init__(self, loan: Loan, number: int, methods: list[str]):
        self._loan = loan
        self._number = number
        self._methods = methods

    def __call__(self, *args, **kwargs):
        return self._ask(None, args, kwargs)

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._methods:
            return lambda *args, **kwargs: self._ask(name, args, kwargs)
        return self._ask(name, (), {})

    def _ask(self, attribute: str | None, args: tuple, kwargs: dict) -> Any:
        loan = self._loan
        encoder = Encoder(_refer)
        header: dict[str, Any] = {"lent": self._number, "attribute": attribute}
        header |= {"args": encoder.value(args), "kwargs": encoder.value(kwargs)}
        is_recorded = torch.is_grad_enabled()
        needed = [n for n, tensor in enumerate(encoder.tensors) if tensor.requires_grad]
        header["inputs"] = needed if is_recorded else []
        header["dtype"] = str(torch.get_default_dtype()).removeprefix("torch.")
        answer = _answer(loan.wire, encoder.message(header))
        loan.leaves += [encoder.tensors[number] for number in header["inputs"]]
        found = answer.header
        if found["outputs"]:
            outputs = [answer.tensors[place] for place in found["outputs"]]
            linked = _Asked.apply(loan.wire, found["graph"], outputs, *loan.leaves)
            for place, output in zip(found["outputs"], linked, strict=True):
                answer.tensors[place] = output
        with torch.no_grad():
            for number, place in found["changed"]:
                encoder.tensors[number].copy_(answer.tensors[place])
        return answer.value(found["value"], loan.resolve)


class _Asked(torch.autograd.Function):
    """The step of autograd that goes back through a call of something lent."""

    @staticmethod
    def forward(ctx, wire: Wire, graph: int, outputs: list[Tensor], *inputs: Tensor):
        ctx.wire, ctx.graph = wire, graph
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor | None):
        encoder = Encoder()
        trees = [encoder.value(grad) for grad in grads]
        message = encoder.message({"lent": None, "graph": ctx.graph, "grads": trees})
        answer = _answer(ctx.wire, message)
        return None, None, None, *[answer.value(tree) for tree in answer.header["grads"]]


def _answer(wire: Wire, message: bytes) -> Decoder:
    answer = wire.ask(message)
    if "problem" in answer.header:
        error = exception_of(*answer.header["problem"])
        error.add_note(NOTE)
        raise error
    return answer


def _refer(value: object) -> list | None:
    return ["lent", value._number] if isinstance(value, Borrowed) else None
