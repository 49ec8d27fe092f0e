"""A process to talk to: it answers in time, or is ended."""

import os
import select
import signal
import subprocess
import sys
import time

COMMAND = (sys.executable, "-m", "course_pkg.checking.child")


class Overdue(Exception):
    """The process did not answer in time."""


class Connection:
    """Two descriptors, to read from a process and to write to it, until a deadline.

    Args:
        reader, writer: open descriptors; they may be the same one. They become non-blocking.
    """

    def __init__(self, reader: int, writer: int):
        self._reader = reader
        self._writer = writer
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self.deadline = time.monotonic()

    def read(self, count: int) -> bytes:
        """Read at least one byte and at most `count`; nothing when the process is gone.

        Raises:
            Overdue: nothing came before the deadline.
        """
        self._wait([self._reader], [])
        return os.read(self._reader, count)

    def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            BrokenPipeError: the process is gone.
            Overdue: the process did not read it before the deadline.
        """
        data = memoryview(data)
        while data:
            self._wait([], [self._writer])
            data = data[os.write(self._writer, data) :]

    def end(self, seconds: float = 0.0) -> int | None:
        """End what is at the other side, after giving it some time to end by itself.

        Returns:
            The exit status of a process, or the negative number of the signal that ended it; None
            if it is not known.
        """
        raise NotImplementedError

    def _wait(self, readable: list, writable: list) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0 or not any(select.select(readable, writable, [], left)):
            raise Overdue


class Process(Connection):
    """A child process, connected by pipes.

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
        super().__init__(self._process.stdout.fileno(), self._process.stdin.fileno())

    def end(self, seconds: float = 0.0) -> int:
        """End the process and its group."""
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
