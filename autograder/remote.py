"""Student code in another process: a Child runs it, a Proxy stands in for one of its objects.

A Proxy offers what Guarded offers, so that checks run with either. Values cross as data (see
course_pkg.checking.wire); nothing that the child sends is executed, and whatever it does wrong, be
it to end, to hang or to send garbage, is a Failure of the call that was under way.
"""

import contextlib
import subprocess
from collections.abc import Callable

from autograder.channel import Channel
from autograder.process import COMMAND, Process
from course_pkg.checking.failure import CheckingError, Failure
from course_pkg.checking.guard import SECONDS
from course_pkg.checking.raw import WireError

START_SECONDS = 60.0
LOAD_SECONDS = 60.0
RESTARTS = 3  # of a child that student code has ended


class Proxy:
    """Stand in for an object in a child, as Guarded does for one in this process.

    Args:
        again: finds the same object in a new child; None if there is no way.
    Raises (when called or when an attribute is read):
        Failure: as Guarded; and when the call ended the child, or made it hang or send garbage.
    """

    def __init__(
        self,
        channel: Channel,
        number: int,
        name: str,
        kind: str,
        type_name: str,
        again: Callable[[], "Proxy"] | None = None,
    ):
        self._channel = channel
        self._number = number
        self._name = name
        self._again = again
        self.kind = kind
        self.type_name = type_name
        channel.release_with(self, "object", number)

    def __call__(self, *args, **kwargs):
        self._renew()
        return self._channel.call(self._number, self._name, args, kwargs)

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        self._renew()
        return self._channel.ask("attribute", self._name, target=self._number, attribute=name)

    @staticmethod
    def number_of(value: object, channel: Channel) -> int | None:
        """Look up by which number a channel's child knows a value; None if it is no proxy.

        Raises:
            WireError: it stands in for an object of another child, or of one that has ended.
        """
        if not isinstance(value, Proxy):
            return None
        value._renew()
        if value._channel is not channel:
            raise WireError(f"{value._name} lives in another child")
        return value._number

    def _renew(self) -> None:
        if self._channel.ended and self._again is not None:
            new = self._again()
            self._channel, self._number = new._channel, new._number
            self._new = new  # the owner of the number


class ChildError(CheckingError):
    """A child does not start, which is not the student's fault."""


class Child:
    """A process that runs one student's code.

    When the code ends it or makes it hang, the next call starts it again from the same sources,
    three times at most: a function that does so must not cost the points of the others.

    Args:
        seconds: the time limit of one call, kept by the child.
        grace: how much longer the child may take before it is ended from outside.
        command: what to run in place of a plain Python, for example the same in a sandbox.
        stderr: where the child's stderr goes, as for subprocess; nowhere by default.
    Raises (from all that needs a child):
        ChildError: it does not start.
    """

    def __init__(
        self,
        seconds: float = SECONDS,
        *,
        grace: float = 3.0,
        command: tuple[str, ...] = COMMAND,
        stderr: int | None = subprocess.DEVNULL,
    ):
        self._seconds = seconds
        self._grace = grace
        self._command = command
        self._stderr = stderr
        self._sources: list[tuple[str, bool, float]] = []
        self._restarts = 0
        self._channel = self._start()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *exception) -> None:
        self.kill()

    def kill(self) -> None:
        """End the process and those that it started; later calls fail."""
        self._restarts = RESTARTS
        self._channel.end("it was stopped")

    def load(self, source: str, *, fresh: bool = True, seconds: float = LOAD_SECONDS) -> None:
        """Run source text as a notebook cell.

        Args:
            source: Python code.
            fresh: whether to start from nothing; else the names of earlier cells are there.
            seconds: the time limit.
        Raises:
            Failure: it raised, ran too long or ended the process. As after a notebook cell that
                fails, what it had defined until then is there.
        """
        if fresh:
            self._sources = []
        channel = self._alive()
        self._sources.append((source, fresh, seconds))
        _load(channel, source, fresh, seconds)

    def get(self, name: str, label: str | None = None) -> Proxy:
        """Stand in for the object of that name.

        Args:
            name: a global name of the loaded code.
            label: what messages call it, if not by its name.
        Raises:
            Failure: there is none.
        """
        proxy = self._get(name, label or name)
        proxy._again = lambda: self._get(name, label or name)
        return proxy

    def seed(self, seed: int) -> None:
        """Seed torch's random numbers in the child; torch.manual_seed in this process does too."""
        self._alive().ask("seed", "seed", seed=seed)

    def _get(self, name: str, label: str) -> Proxy:
        proxy = self._alive().ask("get", label, object=name)
        if not isinstance(proxy, Proxy):
            raise Failure(f"{label} cannot be read.")
        return proxy

    def _start(self) -> Channel:
        process = Process(self._command, self._stderr)
        channel = Channel(process, self._seconds, self._grace, Proxy)
        try:
            channel.ask("start", "The child", START_SECONDS)
        except Failure as failure:
            command = " ".join(self._command)
            raise ChildError(f"{failure.message}\nIt was started by: {command}") from None
        return channel

    def _alive(self) -> Channel:
        if self._channel.ended and self._restarts < RESTARTS:
            self._restarts += 1
            self._channel = self._start()
            for source in self._sources:
                with contextlib.suppress(Failure):  # as it was when it was loaded first
                    _load(self._channel, *source)
        return self._channel


def _load(channel: Channel, source: str, fresh: bool, seconds: float) -> None:
    channel.ask("load", "The cell", seconds, source=source, fresh=fresh)
