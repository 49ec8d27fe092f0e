"""A watch over a sandbox: it ends one that uses more than it may, whoever started it.

Limits of the system hold for single processes, and that on their number does not hold for root.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from autograder.grade.sandbox import Limits

_PAGE = os.sysconf("SC_PAGE_SIZE")
SECONDS = 0.2


class Watch(threading.Thread):
    """Look after all processes below one, a few times a second, until it ends.

    Args:
        pid: the process.
        sockets: the folder that the sandbox shares with the grader.
        limits: what it may use.
        kill: ends the sandbox.
    """

    def __init__(self, pid: int, sockets: Path, limits: Limits, kill: Callable[[], None]):
        super().__init__(daemon=True)
        self.reason: str | None = None  # why the sandbox was ended
        self._pid = pid
        self._sockets = sockets
        self._limits = limits
        self._kill = kill
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(SECONDS):
            self.reason = self._breach()
            if self.reason:
                self._kill()
                return

    def stop(self) -> None:
        """Let the watch end."""
        self._over.set()

    def _breach(self) -> str | None:
        pids = descendants(self._pid, self._limits.processes + 1)
        if len(pids) > self._limits.processes:
            return f"it started more than {self._limits.processes} processes"
        memory = sum(_memory(pid) for pid in pids)
        if memory > self._limits.memory:
            return f"it used more than {self._limits.memory >> 20} MB of memory"
        if _size(self._sockets) > self._limits.socket_folder:
            return "it wrote where only the grader's sockets belong"
        return None


def descendants(pid: int, most: int) -> list[int]:
    """List a process and those below it, up to a number."""
    found: list[int] = []
    todo = [pid]
    while todo and len(found) <= most:
        found.append(todo.pop())
        try:
            for task in os.listdir(f"/proc/{found[-1]}/task"):
                with open(f"/proc/{found[-1]}/task/{task}/children") as file:
                    todo += map(int, file.read().split())
        except OSError:  # it has just ended
            continue
    return found


def _memory(pid: int) -> int:
    """The pages that are a process's own; files in memory have bounds of their own."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE


def _size(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(
                entry.stat(follow_symlinks=False).st_size if not entry.is_dir() else 1 << 40
                for _, entry in zip(range(1000), entries, strict=False)
            )
    except OSError:
        return 0
