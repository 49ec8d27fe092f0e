"""A guard around a student's object: whatever goes wrong in it becomes a Failure."""

import contextlib
import inspect
import signal
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_pkg.checking import enforcement, twice
from course_pkg.checking.enforcement import enforced
from course_pkg.checking.failure import Failure, NotImplementedYet, describe
from course_pkg.checking.rules import NOTHING, Rule

SECONDS = 10.0  # for one call of a student's function
PATIENCE = 4  # how much longer than its own time a call may take, as others use the processor too
DEEPEST = 40  # containers within each other in a result
LONGEST_TEXT = 400  # characters of an exception's message
_PLAIN = (bool, int, float, complex, str, bytes, Tensor, np.ndarray, np.generic, torch.dtype)
_LAUNCH = str(Path(__file__).parents[1] / "tools" / "launch.py")  # runs kernels
_NOT_STUDENT = (
    *(sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")),
    *(__file__, enforcement.__file__, _LAUNCH),
)


class TooSlow(BaseException):
    """The time of a call is over; not an Exception, so that student code does not swallow it."""


class Guarded:
    """Stand in for a student's function, class, instance or method, with the same calls.

    Results that are tensors, numbers, strings and containers of them come back as they are; other
    objects come back guarded.

    Args:
        target: the student's object.
        name: what messages call it.
        seconds: the time limit of a call.
        place: a device on which each call is made once more, if any, to give the same.
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
        self._rule = rule

    @property
    def type_name(self) -> str:
        return type(self._target).__name__

    @property
    def kind(self) -> str:
        """ "function", "class", or what else it is."""
        if inspect.isclass(self._target):
            return "class"
        if inspect.isroutine(self._target):
            return "function"
        return describe(self._target)

    def __call__(self, *args, **kwargs):
        inputs = list(_named_tensors(self._target, args, kwargs))
        copies = [tensor.detach().clone() for _, tensor in inputs]
        args, kwargs = _unwrap(args), _unwrap(kwargs)
        place = self._place
        twin = None if place is None else twice.copies(place, self._target, args, kwargs)
        random = torch.get_rng_state()
        result = self._attempt(lambda: _materialise(self._target(*args, **kwargs)))
        for (name, tensor), copy in zip(inputs, copies, strict=True):
            if not _same(tensor, copy):
                raise Failure(
                    f"{self._name} changes its input {name} in place; the caller still needs it.",
                    what=f"{name} after the call",
                    observed=tensor.clone(),
                )
        if place is not None and twin is not None:
            self._repeat(place, twin, result, random)
        if place is not None and inspect.isclass(self._target) and isinstance(result, nn.Module):
            twice.mark_what_stays_behind(result)
        return self._wrap(result, self._name.partition(".")[0])

    def _repeat(self, place: torch.device, twin: tuple, result: object, random: Tensor) -> None:
        """Make a call on the other device as well, beginning from the same random state."""
        target, args, kwargs = twin
        on_gpu = place.type == "cuda"
        drawn = not torch.equal(random, torch.get_rng_state())

        def call():
            result = _materialise(target(*args, **kwargs))
            if on_gpu:
                torch.cuda.synchronize()  # what goes wrong there is noticed late
            return result

        try:
            forked = torch.random.fork_rng([place] if on_gpu else [])
            with forked, twice.exact(), enforced(self._rule):
                torch.set_rng_state(random)
                again = attempt(f"On {place}, {self._name}", call, self._seconds)
            twice.demand_same(again, result, place, drawn)
        except Failure as failure:
            raise Failure(f"{failure.message}\n{twice.HINT}", kinds=failure.kinds) from None

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        found, value = self._attempt(lambda: _attribute(self._target, name))
        if not found:
            raise Failure(f"{self._name} has no attribute or method {name!r}.")
        return self._wrap(value, f"{self._name}.{name}")

    def _wrap(self, value: object, name: str):
        if _is_plain(value):
            return value
        return Guarded(value, name, self._seconds, self._place, self._rule)

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
        with deadline(seconds):
            return action()
    except TooSlow:
        raise Failure(f"{name} ran for more than {seconds:g} s.") from None
    except (Exception, SystemExit) as error:
        if isinstance(error, NotImplementedError) and not error.args:  # the stub's
            raise NotImplementedYet(_not_implemented(name, error)) from None
        kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        text = f"{name} raised {kinds[0]}: {_text(error)}{_line_of_student(error)}"
        raise Failure(text, kinds=kinds) from None


def _attribute(target: object, name: str) -> tuple[bool, object]:
    return (True, getattr(target, name)) if hasattr(target, name) else (False, None)


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        return "(its message raised an exception too)"
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " …"


def _not_implemented(name: str, error: NotImplementedError) -> str:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    stub = frame.f_code.co_qualname.rpartition("<locals>.")[2].partition(".")[0]
    because = "" if stub == name.partition(".")[0] else f", because {stub} is not"
    return f"{name} is not implemented yet{because}."


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise TooSlow in the block after a time (where the platform has interval timers).

    It is the process's own time: on a busy machine a right solution is no slower. One that sleeps
    or waits is stopped too, after PATIENCE times as long.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not (hasattr(signal, "setitimer") and in_main_thread):
        yield
        return

    def stop(signum, frame):
        raise TooSlow

    timers = {
        signal.ITIMER_PROF: (signal.SIGPROF, seconds),
        signal.ITIMER_REAL: (signal.SIGALRM, PATIENCE * seconds),
    }
    previous = {number: signal.signal(number, stop) for number, _ in timers.values()}
    for timer, (_, after) in timers.items():
        signal.setitimer(timer, after, 1.0)  # again each second, should code catch it
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _line_of_student(error: BaseException) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_STUDENT) and not frame.filename.startswith("<frozen")
    ]
    if not frames or not frames[-1].line:
        return ""
    return f"\nin line {frames[-1].lineno}: {frames[-1].line.strip()}"


def _named_tensors(target, args, kwargs) -> Iterator[tuple[str, Tensor]]:
    names: Iterable[tuple[str, object]]
    try:
        names = inspect.signature(target).bind(*args, **kwargs).arguments.items()
    except (
        TypeError,
        ValueError,
    ):  # no signature, or one that does not fit: the call will say so
        names = [*((f"number {i + 1}", value) for i, value in enumerate(args)), *kwargs.items()]
    for name, value in names:
        for tensor in _tensors(value):
            yield name, tensor


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _unwrap(value):
    """Replace Guarded objects among the arguments by what they guard."""
    if isinstance(value, Guarded):
        return value._target
    if type(value) in (list, tuple):
        return type(value)(map(_unwrap, value))
    if type(value) is dict:
        return {key: _unwrap(item) for key, item in value.items()}
    return value


def _materialise(value: object) -> object:
    return list(value) if isinstance(value, Iterator) else value


def _is_plain(value: object, depth: int = 0) -> bool:
    if depth > DEEPEST:
        raise Failure(f"The result holds more than {DEEPEST} containers within each other.")
    if value is None or isinstance(value, _PLAIN):
        return True
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, (list, tuple, set, range)) and all(
        _is_plain(item, depth + 1) for item in value
    )


def _same(a: Tensor, b: Tensor) -> bool:
    a = a.detach()
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
