"""A connection to a process, which answers in time or is ended."""

import os
import select
import time

_AT_ONCE = 1 << 16  # bytes that one read takes, so that most messages come whole


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
        self._rest = b""  # what was read and not asked for
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self.deadline = time.monotonic()

    def read(self, count: int) -> bytes:
        """Read at least one byte and at most `count`; nothing when the process is gone.

        Raises:
            Overdue: nothing came before the deadline.
        """
        if not self._rest:
            self._wait([self._reader], [])
            self._rest = os.read(self._reader, _AT_ONCE)
        found, self._rest = self._rest[:count], self._rest[count:]
        return found

    def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            BrokenPipeError: the process is gone.
            Overdue: the process did not read it before the deadline.
        """
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._writer, rest) :]
            except BlockingIOError:
                self._wait([], [self._writer])

    def end(self, seconds: float = 0.0) -> None:
        """End what is at the other side, after giving it some time to end by itself."""
        raise NotImplementedError

    def _wait(self, readable: list, writable: list) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0 or not any(select.select(readable, writable, [], left)):
            raise Overdue
