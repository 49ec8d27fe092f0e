"""The processor time of a sandbox, counted outside, a few times a second.

Nothing that runs inside can stop the clock. What a process uses between the last look and its end
is known from its parent, unless the parent ignores SIGCHLD: then it is missing.
"""

import threading
from collections.abc import Callable

from autograder.grade.sandbox import Limits
from autograder.grade.watch import descendants

SECONDS = 0.1  # between two looks
_OWN, _CHILDREN, _START = slice(11, 13), slice(13, 15), 19  # fields of /proc/PID/stat behind ")"
_TICK = 100  # in a second, on every Linux (see time(7), "USER_HZ")


class Clock(threading.Thread):
    """Count what all processes below one use, until they have used more than they may.

    Args:
        pid: the process.
        seconds: how much they may use together, from now on.
        stop: ends them.
    """

    def __init__(self, pid: int, seconds: float, stop: Callable[[], None]):
        super().__init__(daemon=True)
        self.used = 0.0
        self._pid = pid
        self._seconds = seconds
        self._stop = stop
        self._over = threading.Event()
        self._own, self._alive = self._look()
        self._first_own, self._first_alive = sum(self._own.values()), self._alive

    @property
    def is_over(self) -> bool:
        """Say whether they have used more than they may."""
        return self.used > self._seconds

    def __enter__(self) -> "Clock":
        self.start()
        return self

    def __exit__(self, *exception) -> None:
        self._over.set()
        self.join()
        self._count()

    def run(self) -> None:
        while not self._over.wait(SECONDS):
            self._count()
            if self.is_over:
                self._stop()
                return

    def _count(self) -> None:
        """Count in two ways: a process that has ended may be missing in either."""
        own, alive = self._look()
        for process, seconds in own.items():
            self._own[process] = max(seconds, self._own.get(process, 0.0))
        seen = sum(self._own.values()) - self._first_own
        self.used = max(self.used, seen, alive - self._first_alive)

    def _look(self) -> tuple[dict[tuple[int, str], float], float]:
        """Give the time of each process, and that of all with their children that have ended."""
        own, alive = {}, 0.0
        for pid in descendants(self._pid, Limits().processes + 1):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            own[pid, fields[_START]] = seconds = sum(map(int, fields[_OWN])) / _TICK
            alive += seconds + sum(map(int, fields[_CHILDREN])) / _TICK
        return own, alive
