"""The processor time of a sandbox, counted outside, a few times a second.

Nothing that runs inside can stop the clock. What a process uses between the last look and its end
is known from its parent, unless the parent ignores SIGCHLD: then it is missing. So that many short
processes cannot hide, their number is bounded, too.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable

from autograder.grade.kernel.sandbox import Limits
from autograder.grade.kernel.watch import descendants

SECONDS = 0.1  # between two looks
LOOK = 0.5  # seconds between two looks at most, where nothing depends on being exact
STARTS = 100  # processes and threads of a sandbox, those before the clock began among them
_OWN, _CHILDREN, _START = slice(11, 13), slice(13, 15), 19  # fields of /proc/PID/stat behind ")"
_TICK = 100  # in a second, on every Linux (see time(7), "USER_HZ")


class Clock(threading.Thread):
    """Count what all processes below one use and start, until it is more than they may.

    Args:
        pid: the process.
        seconds: how much they may use together, from now on.
        stop: ends them.
    """

    def __init__(self, pid: int, seconds: float, stop: Callable[[], None]):
        super().__init__(daemon=True)
        self.used, self.started = 0.0, 0
        self._pid = pid
        self._seconds = seconds
        self._stop = stop
        self._over = threading.Event()
        self._own, self._alive, self._first_number = self._look()
        self._first_own, self._first_alive = sum(self._own.values()), self._alive

    @property
    def reason(self) -> str:
        """Say what was more than they may; empty if nothing was."""
        if self.used > self._seconds:
            return f"it took more than {self._seconds:g} s of processor time"
        if self.started > STARTS:
            return f"it started more than {STARTS} processes and threads"
        return ""

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
            if self.reason:
                self._stop()
                return

    def _count(self) -> None:
        """Count in two ways: a process that has ended may be missing in either."""
        own, alive, number = self._look()
        self.started = max(self.started, number - self._first_number)
        for process, seconds in own.items():
            self._own[process] = max(seconds, self._own.get(process, 0.0))
        seen = sum(self._own.values()) - self._first_own
        self.used = max(self.used, seen, alive - self._first_alive)

    def _look(self) -> tuple[dict[tuple[int, str], float], float, int]:
        """Give the time of each process, that of all with children that have ended, and the newest.

        The sandbox numbers what is started in it, so the newest's number says how many there were.
        """
        own, alive, newest = {}, 0.0, 0
        for pid in descendants(self._pid, Limits().processes + 1):
            if not (fields := _fields(pid)):
                continue
            own[pid, fields[_START]] = seconds = sum(map(int, fields[_OWN])) / _TICK
            alive += seconds + sum(map(int, fields[_CHILDREN])) / _TICK
            newest = max(newest, _number_inside(pid))
        return own, alive, newest


class Meter:
    """Say when what runs below a process has used its processor time, to about a half more.

    Args:
        pid: the process.
        seconds: how much they may use together, from now on.
    """

    def __init__(self, pid: int, seconds: float = math.inf):
        self._pid = pid
        self._most = seconds if seconds == math.inf else seconds + self._used()
        self._pause = min(LOOK, seconds / 2)
        self._next = time.monotonic() + self._pause

    @property
    def is_over(self) -> bool:
        """Say whether they have used more."""
        if self._most == math.inf or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._pause
        return self._used() > self._most

    def _used(self) -> float:
        """Add up what all of them, and children of theirs that have ended, have used so far."""
        below = map(_fields, descendants(self._pid, Limits().processes + 1))
        times = (fields[_OWN] + fields[_CHILDREN] for fields in below if fields)
        return sum(int(ticks) for four in times for ticks in four) / _TICK


def _fields(pid: int) -> list[str]:
    """Read what the system says about a process; nothing if it has just ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
    return []


def _number_inside(pid: int) -> int:
    """Give the number that a process has in its sandbox; 0 if it has ended, or is in none."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("NSpid:"):
                _, *inside = line.removeprefix("NSpid:").split()
                return int(inside[-1]) if inside else 0
    return 0
