"""A watch over a sandbox: it ends one that uses more than it may, whoever started it.

Limits of the system hold for single processes, and that on their number does not hold for root.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

from autograder.grade.kernel.sandbox import Limits

_WRITTEN = ("RssAnon:", "RssShmem:")
SECONDS = 0.2
FILES = 100  # that may lie in the folder of sockets


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
        memory = sum(_memory(pid) for pid in pids) + _in_no_folder(pids)
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
    """The memory that a process has written to; the files that it has only read are shared."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return 1024 * sum(int(line.split()[1]) for line in file if line.startswith(_WRITTEN))
    except (OSError, ValueError):
        return 0


def _in_no_folder(pids: list[int]) -> int:
    """The memory of open files without a name, which no folder bounds; each once."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{name}"
                with contextlib.suppress(OSError):
                    if os.readlink(path).startswith("/memfd:"):
                        about = os.stat(path)
                        found[about.st_dev, about.st_ino] = about.st_blocks * 512
    return sum(found.values())


def _size(folder: Path) -> int:
    """The size of a flat folder of a few files; what is not that has any size."""
    try:
        with os.scandir(folder) as entries:
            sizes = [
                1 << 40 if entry.is_dir() else entry.stat(follow_symlinks=False).st_size
                for entry in itertools.islice(entries, FILES + 1)
            ]
            return sum(sizes) if len(sizes) <= FILES else 1 << 40
    except OSError:
        return 0
