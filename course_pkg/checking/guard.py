"""A guard around a student's object: whatever goes wrong in it becomes a Failure."""

import contextlib
import inspect
import itertools
import signal
import sysconfig
import threading
import traceback
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_pkg.checking.probes import devices, precision, state
from course_pkg.checking.rules import enforcement
from course_pkg.checking.rules.enforcement import enforced
from course_pkg.checking.rules.rules import NOTHING, Rule
from course_pkg.checking.telling.failure import Failure, NotImplementedYet, TooLong, describe

SECONDS = 5.0  # for one call of a student's function; right ones take .1 s at the most
CLOCK_FACTOR = 4  # times its own time that a call may take, as others use the processor too
# Times that time on a GPU. A small operation takes up to ten times as long there: the 13 000 of
# linear_probe's reference a second, if the 2 000 that wait for the GPU need not wait for others.
ELSEWHERE = 4
TRIALS = 3  # calls in which there may be something to try: copying for nothing takes long
DEEPEST = 40  # levels of nested containers in a result
LONGEST_TEXT = 400  # characters of an exception's message
_SCALARS = (bool, int, float, complex, str, bytes)
_NUMBERS_AND_TEXTS = {*_SCALARS, type(None)}  # a list of a million of these is soon looked through
_PLAIN = (*_SCALARS, Tensor, np.ndarray, np.generic, torch.dtype)
_UNKNOWN = object()
_CONTAINERS = {dict, list, tuple, set, deque, OrderedDict}  # whose methods change nothing else
_PACKAGE = str(Path(__file__).parents[1])
_LAUNCH = str(Path(__file__).parents[1] / "tools" / "launch.py")  # runs kernels
_REMOTE = str(Path(__file__).parents[1] / "remote")  # where right parts are asked for
_LENDING = str(Path(__file__).parent / "lending.py")  # calls what is lent to a solution
_NOT_STUDENT = (
    *(sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")),
    *(__file__, enforcement.__file__, _LAUNCH, _REMOTE, _LENDING),
)


class TooSlow(BaseException):
    """A call has run out of time; not an Exception, so that student code does not swallow it."""


def steps(call: Any, *args, **kwargs) -> Iterator:
    """Call something guarded, and take one item of its result after the other.

    In between, the student's code does not run: a plain call gives a whole iterator as a list.
    Items hold data; when grading, gradients do not go back through them.

    Raises:
        Failure: as `Guarded`, at the step that goes wrong.
    """
    iterator = call._iterate(*args, **kwargs)
    try:
        while item := iterator._next():
            yield item[0]
    finally:
        del iterator  # nobody listens any more; Python 3.12.3 would keep it after close()


def here(call: Any) -> Any:
    """Make calls of something guarded in memory only: none is repeated on another device.

    For what depends on more than the inputs, such as the sides of a kernel's tiles.
    """
    return call._with(_place=None) if isinstance(call, Guarded) else call


def in_any_order(call: Any) -> Any:
    """Take as the same on another device what has the same numbers in another order.

    For equal inputs of which nothing says which comes first: devices sort them differently.
    """
    return call._with(_is_ordered=False) if isinstance(call, Guarded) else call


def read_from(holder: Any, read: Callable[[Any], Any]) -> Any:
    """Look at many things of something guarded with one guard around all of it.

    Args:
        holder: what is guarded; an oracle is none, and is read as it is.
        read: gets what it guards, and gives what it has read there, in lists and tuples.
    Raises:
        Failure: as `Guarded`.
    """
    if not isinstance(holder, Guarded):
        return read(holder)
    return holder._attempt(lambda: _from_numpy(read(holder._target)))


class Guarded:
    """Stand in for a student's function, class, instance or method, with the same calls.

    Results that are tensors, numbers, strings and containers of them come back as they are; other
    objects come back guarded.

    Args:
        target: the student's object.
        name: what messages call it.
        seconds: the time limit of a call.
        place: a device, if any, on which each call is repeated and must give the same result.
        rule: what raises while the student's code runs.
    Raises (when called or when an attribute is read):
        Failure: the student's code raised, ran too long, changed an input in place, or lacks the
            attribute.
    """

    def __init__(
        self,
        target: Any,
        name: str,
        seconds: float = SECONDS,
        place: torch.device | None = None,
        rule: Rule = NOTHING,
    ):
        self._target = target
        self._name = name
        self._seconds = seconds
        self._place = place
        # How often something was called with which arguments, up to now; TRIALS if it was tried.
        self._tried: Counter[tuple] = Counter()
        self._made: tuple = ()  # with which options an instance was made
        self._rule = rule
        self._is_ordered = True  # whether another device must give the numbers in the same order

    @property
    def type_name(self) -> str:
        return type(self._target).__name__

    @property
    def kind(self) -> str:
        """ "class", "function" for whatever else can be called, or what it is."""
        if inspect.isclass(self._target):
            return "class"
        # A functools.partial and an instance with __call__ do what a function does.
        return "function" if callable(self._target) else describe(self._target)

    def __call__(self, *args, **kwargs):
        args, kwargs = _unwrap(args), _unwrap(kwargs)
        if inspect.isbuiltin(self._target) and type(self._target.__self__) in _CONTAINERS:
            result = self._attempt(lambda: _materialise(self._target(*args, **kwargs)))
            return self._wrap(result, self._name.partition(".")[0])
        named = _named(self._target, args, kwargs)
        inputs = [(name, tensor) for name, value in named.items() for tensor in _tensors(value)]
        copies = [tensor.detach().clone() for _, tensor in inputs]
        needed = [tensor.requires_grad for _, tensor in inputs]
        contents = {name: _contents(value) for name, value in named.items()}
        place = self._place
        twin = None if place is None else devices.copies(place, self._target, args, kwargs)
        way = (self._name, *self._made, *named)
        is_tried = self._tried[way] < TRIALS and not state.is_inherited(self._target)
        is_tried = is_tried and _is_plain([args, kwargs]) and not inspect.isbuiltin(self._target)
        before = state.copy_of(self._target) if is_tried else None
        single = devices.copies(torch.float32, self._target, args, kwargs) if is_tried else None
        random = torch.get_rng_state()
        with _settings_kept(self._name):
            result = self._attempt(lambda: _materialise(self._target(*args, **kwargs)))
        for (name, tensor), copy, has_gradient in zip(inputs, copies, needed, strict=True):
            if not _same(tensor, copy):
                raise self._changed(name, tensor.clone())
            if tensor.requires_grad != has_gradient:
                raise Failure(f"{self._name} changes requires_grad of its input {name}.")
        for name, value in named.items():
            if _contents(value) != contents[name]:
                if isinstance(value, nn.Module):
                    raise self._switched(name, _contents(value)[0] != contents[name][0])
                raise self._changed(name)
        if is_tried:
            self._tried[way] += 1 if before is None and single is None else TRIALS
        if before is not None:
            draws = not torch.equal(random, torch.get_rng_state())
            first = state.FirstCall(before, self._target, args, kwargs, result, draws)
            state.demand_nothing(self._name, self._attempt, first)
        if single is not None:
            self._repeat_in_float32(single, result, random)
        if place is not None and twin is not None:
            self._repeat(place, twin, result, random)
        if inspect.isclass(self._target) and isinstance(result, nn.Module):
            if all(tensor.dtype != torch.float64 for _, tensor in inputs):
                precision.demand_default(self._name, result)
            if place is not None:
                devices.mark_what_stays_behind(result)
        found = self._wrap(result, self._name.partition(".")[0])
        if isinstance(found, Guarded) and inspect.isclass(self._target):
            found._made = tuple(map(_option, named.values()))
        return found

    def _iterate(self, *args, **kwargs) -> "Guarded":
        """Call it, and guard an iterator over the result."""
        args, kwargs = _unwrap(args), _unwrap(kwargs)
        iterator = self._attempt(lambda: iter(self._target(*args, **kwargs)))
        return Guarded(iterator, self._name, self._seconds, None, self._rule)

    def _next(self) -> tuple:
        """Take the next item of a guarded iterator: a tuple of one, or of none at the end."""
        items = self._attempt(lambda: tuple(itertools.islice(self._target, 1)))
        return tuple(self._wrap(_from_numpy(item), self._name) for item in items)

    def _changed(self, name: str, observed: Tensor | None = None) -> Failure:
        return Failure(
            f"{self._name} changes its argument {name} in place; the caller still needs it.",
            what=f"{name} after the call",
            observed=observed,
        )

    def _switched(self, name: str, is_mode: bool) -> Failure:
        if is_mode:
            return Failure(
                f"{self._name} leaves {name} in another mode: if it calls train or eval, it should "
                "go back at its end."
            )
        return Failure(f"{self._name} changes which parameters of {name} learn (requires_grad).")

    def _repeat(self, place: torch.device, twin: tuple, result: object, random: Tensor) -> None:
        """Make a call on the other device as well, beginning from the same random state.

        Where it takes too long, that says more of who else uses the device than of the call, which
        has ended on the CPU. So it is let off, and later ones are not made there.
        """
        drawn = not torch.equal(random, torch.get_rng_state())
        seconds = ELSEWHERE * self._seconds
        gpus = [place] if place.type == "cuda" else []
        try:
            with devices.exact():
                again = self._once_more(f"On {place}, {self._name}", twin, random, gpus, seconds)
            devices.demand_same(again, result, place, drawn, self._is_ordered)
        except TooLong:
            self._place = None
        except Failure as failure:
            raise Failure(f"{failure.message}\n{devices.HINT}", kinds=failure.kinds) from None

    def _repeat_in_float32(self, copies: tuple, result: object, random: Tensor) -> None:
        """Make a call in float32 as well, beginning from the same random state."""
        name = f"In float32, {self._name}"
        try:
            again = self._once_more(name, copies, random, [], self._seconds)
            precision.demand_numbers(name, again, result)
        except Failure as failure:
            raise Failure(f"{failure.message}\n{precision.HINT}", kinds=failure.kinds) from None

    def _once_more(
        self, name: str, copies: tuple, random: Tensor, gpus: list, seconds: float
    ) -> object:
        """Make a call with copies of all that it uses, from a random state that is given."""
        target, args, kwargs = copies

        def call():
            result = _materialise(target(*args, **kwargs))
            if gpus:
                torch.cuda.synchronize()  # what goes wrong there is noticed late
            return result

        with torch.random.fork_rng(gpus), enforced(self._rule):
            torch.set_rng_state(random)
            return attempt(name, call, seconds)

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        value = _stored(self._target, name)
        if value is not _UNKNOWN:
            return self._wrap(value, f"{self._name}.{name}")
        found, value = self._attempt(lambda: _attribute(self._target, name))
        if not found:
            raise Failure(f"{self._name} has no attribute or method {name!r}.")
        return self._wrap(value, f"{self._name}.{name}")

    def _wrap(self, value: object, name: str):
        if _is_plain(value):
            return value
        guarded = Guarded(value, name, self._seconds, self._place, self._rule)
        guarded._tried, guarded._made = self._tried, self._made
        return guarded

    def _with(self, **settings) -> "Guarded":
        """Guard the same in another way."""
        other = Guarded(self._target, self._name)
        vars(other).update(vars(self), **settings)
        return other

    def _attempt(self, action: Callable[[], object]):
        with enforced(self._rule):
            return attempt(self._name, action, self._seconds)


def attempt(name: str, action: Callable[[], object], seconds: float = SECONDS):
    """Do something that runs student code, and put into words what goes wrong.

    Args:
        name: what messages call the student's object.
        action: what to do.
        seconds: the time limit.
    Raises:
        Failure: the student's code raised or ran too long.
    """
    try:
        return _within(seconds, action)
    except TooSlow:
        raise TooLong(f"{name} ran for more than {seconds:g} s.") from None
    except (Exception, SystemExit) as error:
        if isinstance(error, NotImplementedError) and not error.args:  # the stub's
            raise NotImplementedYet(_not_implemented(name, error)) from None
        kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        text = f"{name} raised {kinds[0]}: {_text(error)}{_line_of_student(error, name)}"
        raise Failure(text, kinds=kinds) from None


def _stored(target: object, name: str) -> object:
    """Read what an object has or can do, where that runs no code of its own; else _UNKNOWN."""
    kind = type(target)
    if kind in _CONTAINERS:
        return getattr(target, name, _UNKNOWN)
    if kind.__getattribute__ is not object.__getattribute__ or hasattr(kind, "__slots__"):
        return _UNKNOWN
    for each in kind.__mro__:
        if name in each.__dict__:
            found = each.__dict__[name]
            is_method = type(found) is types.FunctionType and name not in target.__dict__
            return types.MethodType(found, target) if is_method else _UNKNOWN
    return target.__dict__.get(name, _UNKNOWN)


def _attribute(target: object, name: str) -> tuple[bool, object]:
    return (True, getattr(target, name)) if hasattr(target, name) else (False, None)


def _text(error: BaseException) -> str:
    try:
        text = " ".join(filter(None, [str(error), *getattr(error, "__notes__", ())]))
    except Exception:
        return "(its message raised an exception too)"
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " …"


def _not_implemented(name: str, error: NotImplementedError) -> str:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    missing = frame.f_code.co_qualname.rpartition("<locals>.")[2]
    stub, _, method = missing.partition(".")
    if stub == name.partition(".")[0]:
        is_asked = missing == name or method in ("", "__init__", "forward", "__call__")
        return f"{name} is not implemented yet{'' if is_asked else f', because {missing} is not'}."
    return f"{name} is not implemented yet, because {stub} is not."


def _within(seconds: float, action: Callable[[], object]) -> object:
    """Do something, and raise TooSlow in it after a time (where there are interval timers).

    The process's own time counts, so a right solution is no slower on a busy machine. One that
    sleeps or waits is stopped too, after CLOCK_FACTOR times as long.
    """
    if not _has_timers():
        return action()
    with contextlib.nullcontext() if _handlers_are_set else limits():
        # Again each second, in case code catches it.
        signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
        signal.setitimer(signal.ITIMER_REAL, CLOCK_FACTOR * seconds, 1.0)
        try:
            return _inside(action)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)


_handlers_are_set = False


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Set the handlers of signals that stop slow calls once for all calls in the block."""
    global _handlers_are_set
    if _handlers_are_set or not _has_timers():
        yield
        return
    previous = {number: signal.signal(number, _stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    _handlers_are_set = True
    try:
        yield
    finally:
        _handlers_are_set = False
        for number, handler in previous.items():
            signal.signal(number, handler)


def _has_timers() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return hasattr(signal, "setitimer") and in_main_thread


def _inside(action: Callable[[], object]) -> object:
    return action()


def _stop(signum, frame):
    while frame is not None:  # never out of it, where nothing catches the exception
        if frame.f_code is _inside.__code__:
            raise TooSlow
        frame = frame.f_back


def _line_of_student(error: BaseException, name: str) -> str:
    """Show the student's last line, and where the course's package gave up if that was later.

    Lines are counted in each cell: so it says in which function, if that is not the one called.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_STUDENT) and not frame.filename.startswith("<frozen")
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    text = ""
    if own and own[-1].line:
        function = _function_of(own[-1], error)
        of = "" if function == name or function[0] == "<" else f" of {function}"
        text += f"\nin line {own[-1].lineno}{of}: {own[-1].line.strip()}"
    if frames and frames[-1] not in own and frames[-1].line:
        path = Path(frames[-1].filename).relative_to(Path(_PACKAGE).parent).as_posix()
        text += f"\nin {path}, line {frames[-1].lineno}: {frames[-1].line.strip()}"
    return text


def _function_of(last: traceback.FrameSummary, error: BaseException) -> str:
    """Name the function at the top of a cell, or the method, in which a line is."""
    places = [
        frame.f_code.co_qualname
        for frame, number in traceback.walk_tb(error.__traceback__)
        if (frame.f_code.co_filename, number) == (last.filename, last.lineno)
    ]
    return places[-1].partition(".<locals>")[0]


@contextlib.contextmanager
def _settings_kept(name: str) -> Iterator[None]:
    """Set torch's own settings back, and demand that they need not be."""
    grad, dtype, seed = torch.is_grad_enabled(), torch.get_default_dtype(), torch.initial_seed()
    try:
        yield
    finally:
        found = torch.is_grad_enabled(), torch.get_default_dtype(), torch.initial_seed()
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
    if found[0] != grad:
        raise Failure(
            f"{name} leaves gradients switched {'on' if found[0] else 'off'} for everything after "
            "it: use `with torch.no_grad():` in place of `torch.set_grad_enabled`."
        )
    if found[1] != dtype:
        raise Failure(f"{name} changes torch's default dtype for everything after it.")
    if found[2] != seed:
        raise Failure(
            f"{name} sets torch's seed: everything after it draws the same numbers again and "
            "again. Use a generator of your own: `torch.randn(3, generator=generator)`, after "
            "`generator = torch.Generator().manual_seed(0)`."
        )


def _named(target, args, kwargs) -> dict[str, object]:
    """Give the arguments of a call the names that they have in the signature.

    The module to which a method belongs is one too.
    """
    try:
        named = state.signature_of(target).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # no signature, or the call does not fit it and will say so
        named = {**{f"number {i + 1}": value for i, value in enumerate(args)}, **kwargs}
    if inspect.ismethod(target) and isinstance(target.__self__, nn.Module):
        if not state.is_inherited(target):
            named = {"self": target.__self__, **named}
    return named


def _option(value: object) -> object:
    """Tell one option from another, and zero from other numbers, but not one size from another."""
    if isinstance(value, (bool, str)):
        return value
    return value == 0 if isinstance(value, (int, float)) else type(value)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _contents(value: object) -> Any:
    """Copy what an argument contains, down to the objects that have no content to compare."""
    if isinstance(value, dict):
        return {key: _contents(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [_contents(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return set(value)
    if isinstance(value, nn.Module):
        needed = [parameter.requires_grad for parameter in value.parameters()]
        return [part.training for part in value.modules()], needed
    return value if isinstance(value, _SCALARS) else id(value)


def _unwrap(value):
    """Replace Guarded objects among the arguments by what they guard.

    A list or dict that holds none stays the caller's own: whether it is kept can then be seen.
    """
    if isinstance(value, Guarded):
        return value._target
    if type(value) in (list, tuple):
        items = list(map(_unwrap, value))
        is_own = all(new is old for new, old in zip(items, value, strict=True))
        return value if is_own else type(value)(items)
    if type(value) is dict:
        named = {key: _unwrap(item) for key, item in value.items()}
        return value if all(named[key] is value[key] for key in value) else named
    return value


def _materialise(value: object) -> object:
    return _from_numpy(list(value) if isinstance(value, Iterator) else value)


def _from_numpy(value: object, depth: int = 0) -> object:
    """Give numpy's arrays as tensors and its numbers as Python's: checks know only those."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        with contextlib.suppress(TypeError):  # strings, say
            return torch.from_numpy(np.array(value))  # a copy: torch lacks negative strides
    if not isinstance(value, (list, tuple)) or type(value) not in (list, tuple):
        return value
    if depth <= DEEPEST and not _has_numbers_and_texts(value):
        items = [_from_numpy(item, depth + 1) for item in value]
        if any(new is not old for new, old in zip(items, value, strict=True)):
            return items if isinstance(value, list) else tuple(items)
    return value


def _is_plain(value: object, depth: int = 0) -> bool:
    if depth > DEEPEST:
        raise Failure(f"The result nests containers more than {DEEPEST} deep.")
    if value is None or isinstance(value, _PLAIN):
        return True
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, (list, tuple, set, range)) and (
        _has_numbers_and_texts(value) or all(_is_plain(item, depth + 1) for item in value)
    )


def _has_numbers_and_texts(value: Iterable) -> bool:
    return set(map(type, value)) <= _NUMBERS_AND_TEXTS


def _same(a: Tensor, b: Tensor) -> bool:
    a = a.detach()
    if torch.equal(a, b):
        return True
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
