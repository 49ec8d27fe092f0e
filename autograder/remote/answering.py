"""Right parts: a process of the grader's computes what stand-ins in a sandbox ask for.

It runs no student code, and keeps nothing between two questions. But what students' code asks is
theirs: so this process has bounds of memory, and is ended from outside when it takes too long.
"""

import contextlib
import importlib
import inspect
import io
import resource
import socket
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from autograder.remote.loan import Loan
from course_pkg.remote.messages import MESSAGE, Decoder, Encoder, WireError, read
from course_pkg.remote.parts import Offer, attributes, set_attributes

MEMORY = 1 << 30  # bytes


def offer(module: ModuleType, name: str) -> Offer:
    """Describe a right part: what of it a stand-in must have."""
    reference = getattr(module, name)
    if not inspect.isclass(reference):
        return Offer(name, "function", [], [])
    own = [kind for kind in reference.__mro__ if kind.__module__.startswith("course_pkg.")]
    members = {name: member for kind in own[::-1] for name, member in vars(kind).items()}
    public = {name: member for name, member in members.items() if not name.startswith("_")}
    return Offer(
        name,
        "module" if issubclass(reference, nn.Module) else "class",
        [name for name, member in public.items() if inspect.isfunction(member)],
        [name for name, member in public.items() if isinstance(member, property)],
    )


def main(descriptor: int) -> None:
    """Answer until the grader goes.

    A message with a topic says whose parts may be asked for, and one with "lend" what is lent from
    now on.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, hard))
    torch.set_num_threads(1)
    connection = socket.socket(fileno=descriptor)
    stream = connection.makefile("rb")
    references: dict[str, Any] = {}
    offers: dict[str, Offer] = {}
    loan = Loan([])
    while (message := read(stream)) is not None:
        if "topic" in message.header:
            module = importlib.import_module(f"course_pkg.{message.header['topic']}")
            references = {name: getattr(module, name) for name in message.header["names"]}
            offers = {name: offer(module, name) for name in references}
            connection.sendall(Encoder().message({}))
        elif "lend" in message.header:
            loan = Loan(message.header["lend"])
            connection.sendall(Encoder().message({}))
        elif "lent" in message.header:
            connection.sendall(loan.answer(message))
        else:
            connection.sendall(_answered(message, references, offers))


def _answered(message: Decoder, references: dict, offers: dict[str, Offer]) -> bytes:
    """Answer a question; what goes wrong is part of the answer."""
    try:
        if "back" not in message.header:
            return _Call(message, references, offers).answer()
        call = read(io.BytesIO(message.value(message.header["back"])))
        if call is None:
            raise WireError("no call to go back through")
        grads = [message.value(tree) for tree in message.header["grads"]]
        return _Call(call, references, offers).back(grads)
    except Exception as error:
        kind = type(error)
        return Encoder().message(
            {"problem": [kind.__module__, kind.__qualname__, str(error)[:MESSAGE]]}
        )


class _Call:
    """A call of a right part, from all that its answer depends on."""

    def __init__(self, message: Decoder, references: dict, offers: dict[str, Offer]):
        header = message.header
        self._message = message
        self._references = references
        self._name, self._method = header["question"], header["method"]
        if self._name not in references:
            raise WireError(f"{self._name} is not among the right parts")
        known = offers[self._name]
        self._is_property = self._method in known.properties
        if self._method not in (None, "", *known.methods, *known.properties):
            raise WireError(f"{self._name} has no method {self._method!r:.40}")
        self._is_recorded = header["grad"] is True
        dtype = getattr(torch, header["dtype"])
        torch.set_default_dtype(dtype if dtype.is_floating_point else torch.float32)
        torch.set_rng_state(message.tensor(header["random"]))
        self._leaves = [message.tensor(number).requires_grad_() for number in header["inputs"]]
        for number, leaf in zip(header["inputs"], self._leaves, strict=True):
            message.tensors[number] = leaf.clone()
        self._before = [tensor.detach().clone() for tensor in message.tensors]
        self._objects = [self._empty(name) for name, _ in header["states"]]
        self._given = len(self._objects)
        for one, (_, tree) in zip(self._objects, header["states"], strict=True):
            vars(one).update(message.value(tree, self._resolve))
        self._module: nn.Module | None = None
        self._contents = [dict(vars(one)) for one in self._objects]
        self._random = torch.get_rng_state()

    def answer(self) -> bytes:
        """Make the call, and say what it gives and what it changes."""
        message = self._message
        with torch.set_grad_enabled(self._is_recorded):
            result = self._run()
        encoder = self._encoder = Encoder(self._refer)
        value = encoder.value(result)
        outputs = [n for n, tensor in enumerate(encoder.tensors) if _has_history(tensor)]
        states: list = []
        for number, one in enumerate(self._objects):  # which may become more meanwhile
            old = self._contents[number] if number < self._given else {}
            same = [name for name, item in vars(one).items() if old.get(name, self) is item]
            states.append([encoder.value(vars(one)), same])
        changed = [
            (number, encoder.tensor(tensor.detach()))
            for number, (tensor, old) in enumerate(zip(message.tensors, self._before, strict=True))
            if number not in message.header["inputs"] and not _is_equal(tensor, old)
        ]
        random = torch.get_rng_state()
        own = {} if self._module is None else attributes(self._module)
        return encoder.message(
            {
                "value": value,
                "outputs": outputs,
                "states": states,
                "new": [type(one).__name__ for one in self._objects[self._given :]],
                "changed": changed,
                "attributes": encoder.value(own),
                "generators": [encoder.tensor(g.get_state()) for g in message.generators],
                "random": None if torch.equal(random, self._random) else encoder.tensor(random),
            }
        )

    def back(self, grads: list[Tensor | None]) -> bytes:
        """Make the call again, and give the gradients of its inputs."""
        with torch.enable_grad():
            result = self._run()
        encoder = Encoder(self._refer)
        encoder.value(result)
        outputs = list(filter(_has_history, encoder.tensors))
        pairs = [pair for pair in zip(outputs, grads, strict=True) if pair[1] is not None]
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            self._leaves,
            [grad for _, grad in pairs],
            allow_unused=True,
        )
        encoder = Encoder()
        return encoder.message({"grads": [encoder.value(grad) for grad in found]})

    def _run(self) -> Any:
        message, header = self._message, self._message.header
        args = message.value(header["args"], self._resolve)
        kwargs = message.value(header["kwargs"], self._resolve)
        reference = self._references[self._name]
        if self._method == "":
            made = reference(*args, **kwargs)
            if isinstance(made, nn.Module):
                return {**_describe(made), "attributes": attributes(made)}
            return dict(vars(made))
        if header["module"] is not None:
            made_args, made_kwargs, own, state = message.value(header["module"])
            with torch.random.fork_rng(devices=[]):
                module = self._module = reference(*made_args, **made_kwargs)
            set_attributes(module, own)
            call = _Method(module, self._method, self._is_property)
            tensors = {f"module.{name}": tensor for name, tensor in state.items()}
            return torch.func.functional_call(call, tensors, args, kwargs)
        if self._method is None:
            return reference(*args, **kwargs)
        target = getattr(self._resolve(header["self"]), self._method)
        return target if self._is_property else target(*args, **kwargs)

    def _empty(self, name: str) -> Any:
        kind = self._references[name]
        return kind.__new__(kind)

    def _resolve(self, tree: list) -> Any:
        kind, number = tree
        if kind != "part":
            raise WireError(f"an unknown kind of value: {tree!r:.40}")
        return self._objects[number]

    def _refer(self, value: object) -> list | None:
        if isinstance(value, Tensor):
            for number, tensor in enumerate(self._message.tensors):
                if tensor is value:
                    return ["given", number]
            return None
        if isinstance(value, nn.Module) or type(value) not in self._references.values():
            return None
        for number, one in enumerate(self._objects):
            if one is value:
                return ["part", number]
        self._objects.append(value)
        return ["part", len(self._objects) - 1]


class _Method(nn.Module):
    """A method of a module, as a module whose call it is."""

    def __init__(self, module: nn.Module, method: str, is_property: bool):
        super().__init__()
        self.module = module
        self._method = method
        self._is_property = is_property

    def forward(self, *args, **kwargs):
        found = getattr(self.module, self._method)
        return found if self._is_property else found(*args, **kwargs)


def _describe(module: nn.Module) -> dict:
    """Describe what a module consists of, as a stand-in has it too."""
    return {
        "parameters": dict(module.named_parameters(recurse=False)),
        "buffers": dict(module.named_buffers(recurse=False)),
        "children": {name: _describe(child) for name, child in module.named_children()},
    }


def _has_history(tensor: Tensor) -> bool:
    return tensor.requires_grad and not tensor.is_leaf


def _is_equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main(int(sys.argv[1]))
