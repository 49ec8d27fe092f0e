"""Right parts in place of a student's own: what is called here, the grader computes.

Where an exercise is judged once more with right parts, their names stand for these stand-ins. A
call of one is a question to the grader that holds all that the answer depends on: the arguments,
the state of the object and torch's random state. Nothing is kept there between two questions, so a
stand-in can be copied, derived from and trained like what it stands for.
"""

import builtins
import contextlib
import importlib
import os
import signal
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from course_pkg.checking.lending import exception
from course_pkg.remote.messages import Decoder, Encoder, Source, read

_TIMERS = (signal.SIGALRM, signal.SIGPROF, signal.SIGINT)


class Offer(NamedTuple):
    """A right part: its name, "function", "class" or "module", its public methods, properties."""

    name: str
    kind: str
    methods: list[str]
    properties: list[str]


class Wire:
    """The connection over which questions go.

    Args:
        source: where answers come from.
        send: sends a message.
    """

    def __init__(self, source: Source, send: Callable[[bytes], None]):
        self._source = source
        self._send = send

    def ask(self, message: bytes) -> Decoder:
        """Send a question and wait for its answer; timers go off after it, never in between."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _TIMERS)
        try:
            self._send(message)
            answer = read(self._source)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if answer is None:
            os._exit(1)
        return answer


class Part:
    """What instances of all stand-ins for classes are."""

    part: ClassVar[str]  # the exercise
    _names: tuple[str, ...] = ()  # of what belongs to the right part's state
    _made: tuple[tuple, dict] = ((), {})


def put_in_place(namespace: dict, offers: list[Offer], wire: Wire) -> None:
    """Let names of a notebook stand for right parts, also where they are another name's value.

    Classes that are derived from a replaced one are derived from its stand-in.

    Args:
        namespace: the notebook's names.
        offers: the right parts.
        wire: where they are asked for.
    """
    kinds: dict[str, type] = {}
    for offer in offers:
        new: Any = None
        if offer.kind == "function":
            new = _function(offer, wire, kinds)
        else:
            new = kinds[offer.name] = _class(offer, wire, kinds)
        old = namespace.get(offer.name)
        for name, value in list(namespace.items()):
            if old is not None and value is old:
                namespace[name] = new
            elif isinstance(old, type) and isinstance(value, type) and old in value.__bases__:
                bases = (new if base is old else base for base in value.__bases__)
                with contextlib.suppress(TypeError):  # of another layout: it stays as it is
                    value.__bases__ = tuple(bases)
        namespace[offer.name] = new


def _function(offer: Offer, wire: Wire, kinds: dict[str, type]) -> Callable:
    def part(*args, **kwargs):
        return _Question(wire, kinds, offer.name, None, None, args, kwargs).ask()

    part.__name__ = part.__qualname__ = offer.name
    return part


def _class(offer: Offer, wire: Wire, kinds: dict[str, type]) -> type:
    is_module = offer.kind == "module"

    def make(self, *args, **kwargs):
        if is_module:
            nn.Module.__init__(self)
        state = _Question(wire, kinds, offer.name, "", None, args, kwargs).ask()
        self._made = (args, kwargs)
        if is_module:
            _build(self, state)
            set_attributes(self, state["attributes"])
            self._names = tuple(_tensors(self))
        else:
            _update(self, state, [])

    def caller(name: str) -> Callable:
        def method(self, *args, **kwargs):
            return _Question(wire, kinds, offer.name, name, self, args, kwargs).ask()

        method.__name__ = name
        return method

    members: dict[str, Any] = {name: caller(name) for name in offer.methods}
    members |= {name: property(caller(name)) for name in offer.properties}
    bases = (Part, nn.Module) if is_module else (Part,)
    return type(offer.name, bases, {**members, "part": offer.name, "__init__": make})


class _Question:
    """A call of a right part.

    Args:
        wire: where to ask.
        kinds: the stand-ins for classes, by name.
        name: the part.
        method: of an object, "" to make one; None for a function.
        owner: the object.
        args, kwargs: the arguments.
    """

    def __init__(
        self,
        wire: Wire,
        kinds: dict[str, type],
        name: str,
        method: str | None,
        owner: Any,
        args: tuple,
        kwargs: dict,
    ):
        self._wire = wire
        self._kinds = kinds
        self._name = name
        self._parts: list[Part] = []  # that it is about
        self._states: list = []
        self._encoder = encoder = Encoder(self._refer)
        header: dict[str, Any] = {"question": name, "method": method, "module": None, "self": None}
        if isinstance(owner, nn.Module):
            found = _tensors(owner)
            assert isinstance(owner, Part)  # it is both
            part: Part = owner
            state = {name: found[name] for name in part._names if name in found}
            own = [*part._made, attributes(owner), state]
            header["module"] = encoder.value(own)
        elif owner is not None:
            header["self"] = self._refer(owner)
        header |= {"args": encoder.value(args), "kwargs": encoder.value(kwargs)}
        self._owner = owner
        is_recorded = torch.is_grad_enabled()
        needed = [n for n, tensor in enumerate(encoder.tensors) if tensor.requires_grad]
        self._inputs = needed if is_recorded else []
        header |= {
            "states": self._states,
            "inputs": self._inputs,
            "grad": is_recorded,
            "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "random": encoder.tensor(torch.get_rng_state()),
        }
        self._message = encoder.message(header)

    def ask(self) -> Any:
        """Give the answer; what the call has changed is changed here, too."""
        answer = self._answer(self._message)
        header = answer.header
        if header["outputs"]:
            inputs = [self._encoder.tensors[number] for number in self._inputs]
            outputs = [answer.tensors[place] for place in header["outputs"]]
            for place, output in zip(
                header["outputs"], _Asked.apply(self, outputs, *inputs), strict=True
            ):
                answer.tensors[place] = output
        with torch.no_grad():
            for number, place in header["changed"]:
                self._encoder.tensors[number].copy_(answer.tensors[place])
        for generator, place in zip(self._encoder.generators, header["generators"], strict=True):
            generator.set_state(answer.tensor(place))
        if header["random"] is not None:
            torch.set_rng_state(answer.tensor(header["random"]))
        for name in header["new"]:
            self._parts.append(object.__new__(self._kinds[name]))
        if isinstance(self._owner, nn.Module):
            set_attributes(self._owner, answer.value(header["attributes"]))
        for part, (tree, same) in zip(self._parts, header["states"], strict=True):
            _update(part, answer.value(tree, self._resolve), same)
        return answer.value(header["value"], self._resolve)

    def back(self, grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """Give the gradients of the inputs: the call is made once more, and gone back through."""
        encoder = Encoder()
        trees = [encoder.value(grad) for grad in grads]
        call = encoder.value(self._message)
        answer = self._answer(
            encoder.message({"question": self._name, "back": call, "grads": trees})
        )
        return [answer.value(tree) for tree in answer.header["grads"]]

    def _answer(self, message: bytes) -> Decoder:
        answer = self._wire.ask(message)
        if "problem" in answer.header:
            raise exception_of(*answer.header["problem"])
        return answer

    def _refer(self, value: object) -> list | None:
        if not isinstance(value, Part) or isinstance(value, nn.Module):
            return None
        for number, part in enumerate(self._parts):
            if part is value:
                return ["part", number]
        number = len(self._parts)
        self._parts.append(value)
        self._states.append(None)
        state = {name: vars(value)[name] for name in value._names if name in vars(value)}
        self._states[number] = [value.part, self._encoder.value(state)]
        return ["part", number]

    def _resolve(self, tree: list) -> Any:
        kind, number = tree
        return self._encoder.tensors[number] if kind == "given" else self._parts[number]


class _Asked(torch.autograd.Function):
    """The step of autograd that goes back through a call of a right part."""

    @staticmethod
    def forward(ctx, question: _Question, outputs: list[Tensor], *inputs: Tensor):
        ctx.question = question
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor | None):
        return None, None, *ctx.question.back(grads)


def attributes(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Give what a module and its parts hold besides tensors and modules: settings, modes, counts.

    Returns:
        The values by name, for each of them by its path.
    """
    return {
        path: {k: v for k, v in vars(part).items() if k[0] != "_" and _is_data(v)}
        for path, part in module.named_modules()
    }


def set_attributes(module: nn.Module, values: dict[str, dict[str, Any]]) -> None:
    """Set what `attributes` gave, where a module has such a part."""
    for path, part in module.named_modules():
        for name, value in values.get(path, {}).items():
            setattr(part, name, value)


def _is_data(value: object) -> bool:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set)):
        return all(map(_is_data, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Name the parameters and buffers of a module."""
    parameters = module.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(remove_duplicate=False))}


def _build(module: nn.Module, tree: dict) -> None:
    """Give a module the parameters, buffers and children of another one."""
    for name, parameter in tree["parameters"].items():
        module.register_parameter(name, parameter)
    for name, buffer in tree["buffers"].items():
        module.register_buffer(name, buffer)
    for name, child in tree["children"].items():
        module.add_module(name, nn.Module())
        _build(getattr(module, name), child)


def _update(part: Part, state: dict, same: list[str]) -> None:
    """Change the state of an object; the containers named stay the same ones, as they did there."""
    own = vars(part)
    for name, value in state.items():
        old = own.get(name)
        if name in same and isinstance(old, (dict, set)):
            old.clear()
            old.update(value)
        elif name in same and isinstance(old, (list, deque)):
            old.clear()
            old.extend(value)
        else:
            own[name] = value
    part._names = tuple(dict.fromkeys([*part._names, *state]))


def exception_of(module: str, name: str, text: str) -> Exception:
    """Make the exception that a right part raised; RuntimeError if it is none of the course's."""
    place = builtins if module == "builtins" else importlib.import_module(module)
    kind = getattr(place, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return exception(kind, text)
    return RuntimeError(text)
