"""Proxies of what a notebook has defined: the kernel serves, the checks stay outside."""

import contextlib
import socket
import time
from collections.abc import Callable

from autograder.grade.errors import KernelDied
from autograder.grade.kernel.kernel import Kernel
from autograder.remote.channel import Channel
from autograder.remote.connection import Connection
from autograder.remote.patience import Patience
from autograder.remote.proxy import Proxy
from autograder.remote.references import Right
from course_pkg.checking.guard import SECONDS
from course_pkg.checking.rules.rules import NOTHING, Rule
from course_pkg.checking.telling.failure import Failure

CONNECT_SECONDS = 20.0
END_SECONDS = 1.0  # for what waits for a fork to take an interrupt; there are other kernels
RESTARTS = 3  # of a fork that student code has ended


class Served(Connection):
    """A connection to a fork of a kernel, which has some seconds to connect."""

    def __init__(self, kernel: Kernel, seconds: float):
        address = str(kernel.sockets / f"serve-{time.monotonic_ns():x}")
        self._kernel = kernel
        self._is_over = False
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(1)
            self._request = kernel.serve(address)
            self._socket = _accept(listener, kernel, self._request, seconds)
        super().__init__(self._socket.fileno(), self._socket.fileno())

    def end(self, seconds: float = 0.0) -> None:
        """Let the fork end, or end it; the kernel goes on, or is killed if it does not."""
        if self._is_over:
            return
        self._is_over = True
        self._socket.close()
        with contextlib.suppress(KernelDied):
            if not self._kernel.settle(self._request, max(seconds, 0.5)):
                self._kernel.interrupt()
                if not self._kernel.settle(self._request, END_SECONDS):
                    self._kernel.kill()


class Solutions:
    """What a notebook has defined, for the checks of one graded cell.

    Args:
        kernel: gives the kernel, and a new one, with the same cells run, when the old one is gone.
        rule: what raises when the student's code calls it.
        seconds: the time that all calls together have.
        patience: gives the time that one call has.
        grace: how much longer it may take before it is ended from outside.
        right: right parts, which take the place of what the notebook has defined by their names.
    """

    def __init__(
        self,
        kernel: Callable[[], Kernel],
        rule: Rule = NOTHING,
        *,
        seconds: float,
        patience: Patience | None = None,
        grace: float = 3.0,
        right: Right | None = None,
    ):
        self._kernel = kernel
        self._rule = rule
        self._patience = patience or Patience(SECONDS)
        self._grace = grace
        self._right = right
        self._until = time.monotonic() + seconds
        self._starts = 0
        self._channel: Channel | None = None
        self.problem = ""  # why there was no fork at the last time

    def __enter__(self) -> "Solutions":
        return self

    def __exit__(self, *exception) -> None:
        if self._channel is not None:
            self._channel.end("it was stopped", 0.5)

    def bound(self, seconds: float) -> None:
        """Let all calls from now on have no more than this time together."""
        self._until = min(self._until, time.monotonic() + seconds)
        if self._channel is not None:
            self._channel.until = self._until

    @property
    def is_over(self) -> bool:
        """Say whether the time for all calls together is over."""
        return time.monotonic() > self._until

    @property
    def was_given_up(self) -> bool:
        """Say whether a call ran out of the shorter time that there is after others did."""
        return self._channel is not None and self._channel.was_given_up

    def get(self, name: str) -> Proxy:
        """Stand in for the object of that name.

        Raises:
            Failure: there is none, or the notebook's code keeps it from being used.
        """
        proxy = self._alive().ask("get", name, object=name)
        if not isinstance(proxy, Proxy):
            raise Failure(f"{name} cannot be read.")
        proxy._again = lambda: self.get(name)
        return proxy

    def _alive(self) -> Channel:
        """Give the fork that answers; when it has ended, another one, some times."""
        if (channel := self._channel) is not None:
            if not channel.ended or channel.was_given_up or self._starts > RESTARTS:
                return channel
        started = time.monotonic()
        if self.is_over:
            raise Failure("The time for this exercise is over.")
        if self.problem and (self._patience.is_over or self._starts > RESTARTS):
            raise Failure(self.problem)
        self._starts += 1
        seconds = self._patience.shortened(CONNECT_SECONDS)
        try:
            connection = Served(self._kernel(), seconds)
        except (KernelDied, OSError) as error:
            self._patience.waste(time.monotonic() - started)
            self.problem = f"The notebook cannot be used: {error}."
            raise Failure(self.problem) from None
        self._channel = Channel(
            connection, self._patience, self._grace, Proxy, self._until, self._right
        )
        offers = [] if self._right is None else self._right.offers
        self._channel.ask("start", "The notebook", rule=self._rule, right=offers)
        return self._channel


def _accept(listener: socket.socket, kernel: Kernel, request: str, seconds: float) -> socket.socket:
    deadline = time.monotonic() + seconds
    listener.settimeout(0.2)
    while time.monotonic() < deadline:
        try:
            return listener.accept()[0]
        except TimeoutError:
            if kernel.settle(request, 0.05):
                raise KernelDied("its code keeps the checks out") from None
    kernel.kill()
    raise KernelDied("its code keeps other processes from being started")
