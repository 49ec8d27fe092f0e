"""Bounds on the memory and the time of this process, for work that may take all that it gets."""

import contextlib
import resource
import signal
import threading
from collections.abc import Iterator

_AGAIN = 1.0  # seconds after which what has caught the first signal gets another


class OutOfTime(Exception):
    """A block took more of the processor's time than it may."""


class _Stop(BaseException):
    """Ends a block; nothing in it catches this."""


@contextlib.contextmanager
def bounded_memory(most: int) -> Iterator[None]:
    """Let what takes more memory raise MemoryError, or torch's RuntimeError, in the block.

    Args:
        most: bytes of this process's data.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextlib.contextmanager
def bounded_time(seconds: float) -> Iterator[None]:
    """Stop the block when this process has computed for so long, also within a regular expression.

    Only the main thread can be stopped; in others, the block has no bound.

    Args:
        seconds: of the processor's time.
    Raises:
        OutOfTime: it took more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise _Stop

    previous = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, max(seconds, 1e-3), _AGAIN)
    try:
        yield
    except _Stop:
        raise OutOfTime(f"it took more than {seconds:g} s of the processor's time") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
