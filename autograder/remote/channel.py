"""Requests to one child process, and what their answers mean for autograd in this one."""

import contextlib
import math
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from autograder.remote.connection import Connection, Overdue
from autograder.remote.patience import Patience
from autograder.remote.references import Lender
from course_pkg.checking.guard import CLOCK_FACTOR
from course_pkg.checking.lending import Lent
from course_pkg.checking.telling.failure import Failure, NotImplementedYet
from course_pkg.remote.leaves import Leaves
from course_pkg.remote.messages import LABEL, MESSAGE, Decoder, Encoder, WireError, read

if TYPE_CHECKING:
    from autograder.remote.references import Right

_MALFORMED = (
    WireError,
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)


class StandIn(Protocol):
    """What a channel needs of its `Proxy`."""

    def __init__(self, channel: "Channel", number: int, name: str, kind: str, type_name: str): ...

    @staticmethod
    def number_of(value: object, channel: "Channel") -> int | None: ...


class Channel:
    """A conversation with one child, which ends for good when the child does anything wrong.

    Args:
        process: the child.
        patience: gives the time limit of one call, kept by the child (see guard.attempt).
        grace: how much longer the child may take before it is ended from outside.
        proxy: makes the stand-in for an object, from this channel and the object's number, name,
            kind and type.
        until: when all calls must be over, by time.monotonic.
        right: answers what the child asks while it is called; by default it must not ask.
    """

    def __init__(
        self,
        process: Connection,
        patience: Patience,
        grace: float,
        proxy: "type[StandIn]",
        until: float = math.inf,
        right: "Right | None" = None,
    ):
        self.ended: str | None = None  # why
        self.was_given_up = False  # another child would be as slow
        self._was_left = False  # the child ended, by itself or for what it used
        self._process = process
        self._patience = patience
        self._grace = grace
        self._proxy = proxy
        self.until = until
        self._right = right
        self._lender = Lender()
        self._lent: list[Lent] = []  # for the present call
        self.methods: dict[tuple[str, str], str] = {}  # types of those met, by object and name
        self._leaves = Leaves()
        self._released: list[tuple[str, int]] = []
        self._random: Tensor | None = None  # the random state that the child knows

    def ask(self, do: str, name: str, **fields) -> object:
        """Send a request; return the value that the answer holds, if it holds one.

        Args:
            do: what the child should do.
            name: what messages call the object.
            fields: what else the child needs to know.
        Raises:
            Failure: the student's code is wrong, or the child did not answer as it should.
        """
        encoder = Encoder(self._refer)
        answer = self._request({"do": do, "name": name, **fields}, encoder)
        with self._reading(name):
            return self._value(answer, encoder, [], name)

    def call(
        self, target: int | list, name: str, args: tuple, kwargs: dict, do: str = "call"
    ) -> object:
        """Call an object of the child; autograd goes on through the call.

        Args:
            target: the object's number, or an object's and the name of its method; or a module
                and the name of its function, if that is to run there.
            name: what messages call it.
            do: "call", "iterate" for an iterator over the result, or "together" for a function.
        Raises:
            Failure: as `ask`.
            WireError: an argument cannot be sent.
        """
        self.demand(name)  # otherwise what a newer process has made would seem to be at fault
        self._lent = []
        encoder = Encoder(self._refer)
        trees = {"args": encoder.value(args), "kwargs": encoder.value(kwargs)}
        inputs = [n for n, tensor in enumerate(encoder.tensors) if tensor.requires_grad]
        header = {"do": do, "name": name, "target": target, "inputs": inputs, **trees}
        if self._lent:
            self._lend(name)
        answer = self._request(header, encoder)
        with self._reading(name):
            for generator, number in zip(
                encoder.generators, answer.header["generators"], strict=True
            ):
                generator.set_state(answer.tensor(number))
            for number, tree in answer.header["grads"]:
                if number in inputs and encoder.tensors[number].is_leaf:
                    encoder.tensors[number].grad = answer.value(tree)
            return self._value(answer, encoder, inputs, name)

    def backward(self, graph: "Graph", grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """Go back through a call.

        Args:
            graph: the call.
            grads: the gradients of its outputs; None for those that nothing depends on.
        Returns:
            The gradients of its inputs; None for those that it does not depend on.
        Raises:
            Failure: as `ask`.
            RuntimeError: autograd finds a gradient that cannot be computed.
        """
        encoder = Encoder()
        trees = [encoder.value(grad) for grad in grads]
        header = {"do": "backward", "name": graph.name, "target": graph.number, "grads": trees}
        answer = self._request(header, encoder)
        if isinstance(answer.header.get("error"), str):
            raise RuntimeError(answer.header["error"][:MESSAGE])
        with self._reading(graph.name):
            results = [answer.value(tree) for tree in answer.header["grads"]]
            for result, shape in zip(results, graph.shapes, strict=True):
                if result is not None and result.shape != shape:
                    raise WireError("a gradient of another shape than its tensor's")
            return results

    def release_with(self, owner: object, kind: str, number: int) -> None:
        """Let the child forget an object or a graph when its owner here is gone."""
        weakref.finalize(owner, self._released.append, (kind, number)).atexit = False

    def demand(self, name: str) -> None:
        """Demand that the child has not ended.

        Raises:
            Failure: it has.
        """
        if self.ended:
            raise Failure(f"{name} cannot run: {self.ended}.")

    def end(self, reason: str, seconds: float = 0.0) -> None:
        """End the child; calls from now on fail with the reason."""
        self.ended = self.ended or reason
        self._process.end(seconds)

    def _lend(self, name: str) -> None:
        try:
            self._lender.lend(self._lent)
        except WireError as error:
            raise Failure(f"{name} cannot run: {error}.") from None

    def _request(self, header: dict, encoder: Encoder) -> Decoder:
        name = header["name"]
        self.demand(name)
        started = time.monotonic()
        left = round(self.until - started, 1)
        if left <= 0:
            raise Failure(f"{name} cannot run: the time for all calls together is over.")
        seconds = min(self._patience.seconds, left)
        is_last = self._patience.is_over
        try:
            return self._exchange(header, encoder, seconds)
        except Failure as failure:
            if self._lent and "Exception" in failure.kinds:  # it has judged what it was lent
                raise
            wasted = time.monotonic() - started
            if self._was_left:  # filling the memory takes little time, and all the others wait
                wasted = max(wasted, self._patience.usual / 2)
            self._patience.waste(wasted)
            if is_last and wasted >= seconds:
                self.was_given_up = True
                self.end("earlier calls ran for too long")
            raise

    def _exchange(self, header: dict, encoder: Encoder, seconds: float) -> Decoder:
        name = header["name"]
        random = torch.get_rng_state()
        known = self._random is not None and torch.equal(random, self._random)
        released = [self._released.pop() for _ in range(len(self._released))]
        header = {
            **header,
            "seconds": seconds,
            "grad": torch.is_grad_enabled(),
            "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "released": released,
            "random": None if known else encoder.tensor(random),
            "leaves": self._leaves.changes(encoder),
        }
        message = encoder.message(header)
        with self._reading(name, seconds):
            self._process.deadline = time.monotonic() + CLOCK_FACTOR * seconds + self._grace
            self._process.write(message)
            answer = read(self._process)
            while answer is not None and {"question", "lent"} & answer.header.keys():
                asked = self._lender if "lent" in answer.header else self._right
                if asked is None or (asked is self._lender and not self._lent):
                    raise WireError("a question in place of an answer")
                self._process.write(asked.answer(answer))
                answer = read(self._process)
            if answer is None:
                raise EOFError
            self._leaves.update(answer, answer.header["leaves"], new=True)
            self._random = random
            if answer.header["random"] is not None:
                torch.set_rng_state(answer.tensor(answer.header["random"]))
                self._random = torch.get_rng_state()
            if "failure" in answer.header:
                raise _failure(answer, answer.header["failure"])
            return answer

    @contextlib.contextmanager
    def _reading(self, name: str, seconds: float = 0.0) -> Iterator[None]:
        """Turn whatever the child does wrong into a Failure, and end it."""
        try:
            yield
        except Overdue:
            text = f"ran for more than {seconds:g} s"
            self.end(f"an earlier call {text}")
            raise Failure(f"{name} {text}.") from None
        except (EOFError, OSError):
            text = "ended its Python process"
            self._was_left = True
            self.end(f"an earlier call {text}", 1.0)
            raise Failure(f"{name} {text}.") from None
        except _MALFORMED as error:
            self.end("an earlier call gave a result that cannot be read")
            raise Failure(f"{name} gives a result that cannot be read: {error!s:.200}.") from None
        except Failure:
            raise
        except BaseException:  # such as Ctrl-C: the next answer would be to this question
            self.end("it was interrupted")
            raise

    def _value(self, answer: Decoder, encoder: Encoder, inputs: list[int], name: str) -> object:
        """Rebuild the value of an answer; its tensors continue the graph of the inputs."""
        header = answer.header
        if header.get("graph") is not None:
            leaves = [self._leaves.tensor(number) for number in header["uses"]]
            tensors = [encoder.tensors[number] for number in inputs] + leaves
            graph = Graph(self, header["graph"], name, [tensor.shape for tensor in tensors])
            outputs = [answer.tensor(place).detach() for place in header["outputs"]]
            with torch.enable_grad():
                outputs = _Call.apply(graph, outputs, *tensors)
            for place, output in zip(header["outputs"], outputs, strict=True):
                answer.tensors[place] = output
        return answer.value(header.get("value"), self._resolve)

    def _refer(self, value: object) -> list | None:
        if isinstance(value, Tensor) and (number := self._leaves.number(value)) is not None:
            return ["leaf", number]
        if isinstance(value, Lent):
            self._lent.append(value)
            return ["lent", len(self._lent) - 1, []]
        number = self._proxy.number_of(value, self)
        return None if number is None else ["object", number]

    def _resolve(self, tree: list) -> object:
        match tree:
            case ["leaf", number]:
                return self._leaves.tensor(number)
            case ["object", int(number), str(name), str(kind), str(type_name)]:
                if all(0 < len(text) <= LABEL for text in (name, kind, type_name)):
                    return self._proxy(self, number, name, kind, type_name)
        raise WireError(f"an unknown kind of value: {tree!r:.40}")


class Graph:
    """A call whose history the child keeps for as long as this lives."""

    def __init__(self, channel: Channel, number: int, name: str, shapes: list[torch.Size]):
        self.channel = channel
        self.number = number
        self.name = name
        self.shapes = shapes
        channel.release_with(self, "graph", number)


class _Call(torch.autograd.Function):
    """The step of autograd that goes back through a call in the child."""

    @staticmethod
    def forward(ctx, graph: Graph, outputs: list[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.graph = graph
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor | None):
        if all(grad is None for grad in grads):
            return None, None, *[None] * len(ctx.graph.shapes)
        return None, None, *ctx.graph.channel.backward(ctx.graph, grads)


def _failure(answer: Decoder, fields: dict) -> Failure:
    message, what, kinds = fields["message"], fields["what"], fields["kinds"]
    if not all(isinstance(text, str) for text in (message, what, *kinds)):
        raise WireError("a malformed failure")
    observed = answer.value(fields["observed"])
    if not (observed is None or isinstance(observed, Tensor)):
        raise WireError("a malformed failure")
    kind = NotImplementedYet if fields["not_implemented"] is True else Failure
    return kind(message[:MESSAGE], what=what, observed=observed, kinds=tuple(kinds))
