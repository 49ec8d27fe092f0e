"""A child process that answers in time, or is ended."""

import os
import select
import signal
import subprocess
import sys
import time

COMMAND = (sys.executable, "-m", "course_pkg.checking.child")


class Overdue(Exception):
    """The process did not answer in time."""


class Process:
    """A process to which one writes and from which one reads, until a deadline.

    It leads a process group of its own, which ends with it.

    Args:
        command: what to run.
        stderr: where its stderr goes, as for subprocess; nowhere by default.
    """

    def __init__(self, command: tuple[str, ...] = COMMAND, stderr: int | None = subprocess.DEVNULL):
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,
            start_new_session=True,
        )
        os.set_blocking(self._process.stdin.fileno(), False)
        os.set_blocking(self._process.stdout.fileno(), False)
        self.deadline = time.monotonic()

    def read(self, count: int) -> bytes:
        """Read at least one byte and at most `count`; nothing when the process is gone.

        Raises:
            Overdue: nothing came before the deadline.
        """
        self._wait([self._process.stdout], [])
        return self._process.stdout.read(count) or b""

    def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            BrokenPipeError: the process is gone.
            Overdue: the process did not read it before the deadline.
        """
        data = memoryview(data)
        while data:
            self._wait([], [self._process.stdin])
            data = data[self._process.stdin.write(data) or 0 :]

    def end(self, seconds: float = 0.0) -> int:
        """End the process and its group, after giving it some time to end by itself.

        Returns:
            Its exit status, or the negative number of the signal that ended it.
        """
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # nobody is left; macOS says the latter
            pass
        status = self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        return status

    def _wait(self, readable: list, writable: list) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0 or not any(select.select(readable, writable, [], left)):
            raise Overdue
