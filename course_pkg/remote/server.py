"""The server beside a notebook: checks from outside call what the notebook's cells have defined.

It answers in a fork of the kernel's process: what a call changes in memory, prints or breaks is
gone with the fork, and later cells find everything as they left it. Guarded does here what it does
in a notebook: it limits time, notices inputs changed in place and puts exceptions into words.
"""

import contextlib
import importlib
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_pkg.checking.guard import Guarded, attempt, limits
from course_pkg.checking.rules.enforcement import enforced
from course_pkg.checking.rules.rules import Rule
from course_pkg.checking.telling.failure import (
    CheckingError,
    Failure,
    NotImplementedYet,
    describe,
    odd,
)
from course_pkg.remote.borrowed import Loan
from course_pkg.remote.leaves import Leaves, equal
from course_pkg.remote.messages import LABEL, MESSAGE, Decoder, Encoder, WireError, read
from course_pkg.remote.parts import Offer, Wire, put_in_place


def serve(address: str, namespace: dict) -> None:
    """Answer requests about a namespace until the other side has no more.

    Args:
        address: the unix socket to connect to.
        namespace: the names that requests may ask for.
    """
    with warnings.catch_warnings(action="ignore"):  # the threads of the kernel are not needed
        child = os.fork()
    if child == 0:
        try:
            _answer(address, namespace)
        finally:
            os._exit(0)
    try:
        os.waitpid(child, 0)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(address: str, namespace: dict) -> None:
    os.setsid()  # an interrupt is for the notebook
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    torch.set_num_threads(1)
    with limits(), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        stream = connection.makefile("rb")
        server = Server(namespace, Wire(stream, connection.sendall))
        while (request := read(stream)) is not None:
            connection.sendall(server.answer(request))


@dataclass
class Graph:
    """The history of one call's outputs, kept for as long as the parent may go back through it."""

    name: str
    outputs: list[Tensor]
    leaves: list[Tensor]


class Server:
    """What requests do, and the objects that they refer to by number.

    Args:
        namespace: the names that requests may ask for.
        wire: where right parts, and what is lent, are asked for.
    """

    def __init__(self, namespace: dict, wire: Wire):
        self.namespace = namespace
        self.wire = wire
        self.count = 0
        self.objects: dict[int, Guarded] = {}
        self.graphs: dict[int, Graph] = {}
        self.leaves = Leaves(weak=True)
        self.loan = Loan(wire)  # what the present call may borrow
        self.seconds = 0.0  # that a call has
        self.random: Tensor | None = None  # the random state that the parent knows
        self._rule = contextlib.ExitStack()  # what is in force of the present exercise's
        self.arguments: list[Tensor] = []  # the leaves among the arguments of the current call
        self.results: list[Tensor] = []  # and those in its result, which may live no longer than it

    def answer(self, request: Decoder) -> bytes:
        """Do what a request asks; whatever goes wrong is part of the answer."""
        try:
            encoder = Encoder(self._refer)
            return self._finish(self._do(request, encoder), encoder)
        except Failure as failure:
            return self._failed(failure)
        except WireError as error:
            name = request.header["name"]
            return self._failed(Failure(f"{name} gives a result that cannot be read: {error}."))
        except BaseException as error:  # what Guarded lets pass: it must not end the server
            traceback.print_exc()
            name = request.header["name"]
            return self._failed(Failure(f"{name} raised {type(error).__name__}."))
        finally:
            self.arguments, self.results = [], []

    def _do(self, request: Decoder, encoder: Encoder) -> dict:
        header, self.seconds = request.header, request.header["seconds"]
        self.leaves.update(request, header["leaves"], new=False)
        if header["random"] is not None:
            self.random = request.tensor(header["random"])
            torch.set_rng_state(self.random)
        commands = {
            "get": self._get,
            "call": self._call,
            "iterate": self._call,
            "together": self._call,
            "next": self._next,
            "attribute": self._attribute,
            "backward": self._backward,
            "start": self._start,
        }
        torch.set_default_dtype(getattr(torch, header["dtype"]))
        try:
            with torch.set_grad_enabled(header["grad"]):
                return commands[header["do"]](request, encoder)
        finally:  # not earlier: a parameter of what is released may be an argument
            for kind, number in header["released"]:
                (self.objects if kind == "object" else self.graphs).pop(number, None)

    def _failed(self, failure: Failure) -> bytes:
        encoder = Encoder()
        return self._finish({"failure": _failure(failure, encoder)}, encoder)

    def _finish(self, answer: dict, encoder: Encoder) -> bytes:
        random = torch.get_rng_state()
        answer["random"] = None
        if self.random is None or not torch.equal(random, self.random):
            answer["random"], self.random = encoder.tensor(random), random
        answer["leaves"] = self.leaves.changes(encoder)
        return encoder.message(answer)

    def _start(self, request: Decoder, encoder: Encoder) -> dict:
        """Begin to answer for an exercise: from now on, what its rule forbids raises."""
        names, operators = request.header["rule"]
        self._rule.close()
        self._rule.enter_context(enforced(Rule(tuple(names), operators)))
        offers = [Offer(*offer) for offer in request.header["right"]]
        put_in_place(self.namespace, offers, self.wire)
        return {}

    def _get(self, request: Decoder, encoder: Encoder) -> dict:
        name, label = request.header["object"], request.header["name"]
        if name not in self.namespace:
            raise Failure(f"{label} is not defined.")
        found = Guarded(self.namespace[name], label, request.header["seconds"])
        return {"value": encoder.value(found)}

    def _call(self, request: Decoder, encoder: Encoder) -> dict:
        header = request.header
        leaves = [request.tensors[number].requires_grad_() for number in header["inputs"]]
        self.arguments = [*leaves]
        self.loan = Loan(self.wire)
        grads = [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
        for number, leaf in zip(header["inputs"], leaves, strict=True):
            if not request.specs[number]["leaf"]:
                with torch.enable_grad():
                    request.tensors[number] = leaf.clone()
        args = request.value(header["args"], self._resolve)
        kwargs = request.value(header["kwargs"], self._resolve)
        result = self._callable(header)(*args, **kwargs)
        answer = {
            "value": encoder.value(result),
            "generators": [encoder.tensor(g.get_state()) for g in request.generators],
            "grads": _changed_grads(header["inputs"], leaves, grads, encoder),
        }
        return answer | self._graph(header["name"], leaves, encoder)

    def _next(self, request: Decoder, encoder: Encoder) -> dict:
        return {"value": encoder.value(self._target(request.header)._next())}

    def _callable(self, header: dict) -> Callable:
        if header["do"] == "together":
            module, function = header["target"]
            return _together(getattr(importlib.import_module(module), function))
        target = self._target(header)
        return target._iterate if header["do"] == "iterate" else target

    def _target(self, header: dict) -> Guarded:
        """Give the object or method that a request is about, with the time that it has."""
        target = header["target"]
        number, *attribute = target if isinstance(target, list) else [target]
        found = self._resolve(["object", number])
        for name in attribute:
            found = getattr(found, name)
            if not isinstance(found, Guarded):
                raise Failure(f"{header['name']} is {describe(found)}, and no longer a method.")
        return found

    def _graph(self, name: str, arguments: list[Tensor], encoder: Encoder) -> dict:
        """Keep the history of what the call returns, and say what it reaches back to."""
        places = [n for n, tensor in enumerate(encoder.tensors) if tensor.requires_grad]
        if not places:
            return {"graph": None}
        outputs = [encoder.tensors[place] for place in places]
        known = {id(leaf) for leaf in arguments}
        own = [leaf for leaf in _history(outputs) if id(leaf) not in known]
        self.count += 1
        self.graphs[self.count] = Graph(name, outputs, arguments + own)
        uses = [self.leaves.number(leaf) or self.leaves.add(leaf) for leaf in own]
        return {"graph": self.count, "outputs": places, "uses": uses}

    def _attribute(self, request: Decoder, encoder: Encoder) -> dict:
        value = getattr(self._target(request.header), request.header["attribute"])
        tree = encoder.value(value)
        return {"value": tree, **self._graph(request.header["name"], [], encoder)}

    def _backward(self, request: Decoder, encoder: Encoder) -> dict:
        graph = self.graphs[request.header["target"]]
        grads = [request.value(tree) for tree in request.header["grads"]]
        pairs = zip(graph.outputs, grads, strict=True)
        outputs, arrived = zip(*[pair for pair in pairs if pair[1] is not None], strict=True)

        def go_back():
            try:
                return torch.autograd.grad(
                    outputs, graph.leaves, arrived, retain_graph=True, allow_unused=True
                )
            except RuntimeError as error:
                return error

        results = attempt(graph.name, go_back, request.header["seconds"])
        if isinstance(results, RuntimeError):  # in one process, backward() would raise it
            return {"grads": None, "error": str(results)[:MESSAGE]}
        return {"grads": [encoder.value(result) for result in results]}

    def _refer(self, value: object) -> list | None:
        if isinstance(value, Guarded):
            self.count += 1
            self.objects[self.count] = value
            labels = (value._name, value.kind, value.type_name)
            return ["object", self.count, *(label[:LABEL] or "object" for label in labels)]
        if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
            if not any(value is leaf for leaf in self.arguments):
                self.results.append(value)
                return ["leaf", self.leaves.number(value) or self.leaves.add(value)]
        return None

    def _resolve(self, tree: list) -> Any:
        kind, number = tree[:2]
        if kind == "leaf":
            return self.leaves.tensor(number)
        if kind == "lent":
            return self.loan.resolve(tree)
        self.objects[number]._seconds = self.seconds
        return self.objects[number]


def _together(function: Callable) -> Callable:
    """Let a function of checks fail as it would beside the other checks."""

    def called(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (Failure, CheckingError):
            raise
        except Exception as error:
            raise odd(error) from None

    return called


def _history(outputs: list[Tensor]) -> list[Tensor]:
    """Find the leaves that require a gradient and from which the outputs were computed."""
    seen, leaves = set(), []
    stack = [output.grad_fn for output in outputs]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            # torch declares only what all nodes have; those of leaves also have a variable.
            leaves.append(node.variable)  # type: ignore[attr-defined]
        stack += [earlier for earlier, _ in node.next_functions]
    return leaves


def _changed_grads(numbers, leaves, before, encoder: Encoder) -> list[tuple[int, object]]:
    """Encode the gradients that a call has changed on its arguments: clipping does that."""
    return [
        (number, encoder.value(None if leaf.grad is None else leaf.grad.detach()))
        for number, leaf, grad in zip(numbers, leaves, before, strict=True)
        if not equal(leaf.grad, grad)
    ]


def _failure(failure: Failure, encoder: Encoder) -> dict:
    observed = None
    if isinstance(failure.observed, Tensor):
        try:
            observed = encoder.value(failure.observed.detach())
        except WireError:
            observed = None
    return {
        "message": failure.message[:MESSAGE],
        "what": failure.what,
        "observed": observed,
        "kinds": [kind[:LABEL] for kind in failure.kinds],
        "not_implemented": isinstance(failure, NotImplementedYet),
    }
