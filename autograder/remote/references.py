"""The grader's side of right parts: which may be asked for, how often, and how long it may take."""

import atexit
import contextlib
import importlib
import os
import socket
import subprocess
import sys
import time

from autograder.assignment import ROOT
from autograder.remote.answering import offer
from autograder.remote.connection import Connection, Overdue
from course_pkg.remote.messages import Decoder, Encoder, WireError, packed, read_bytes
from course_pkg.remote.parts import Offer

QUESTIONS = 20_000  # that the checks of an exercise may lead to; right solutions ask some hundreds
BYTES = 16 << 20  # of a question
SECONDS = 20.0  # for an answer, on a busy machine too
START_SECONDS = 120.0


class _Process(Connection):
    """The process that answers, one for each grader; it ends when the grader does."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "autograder.remote.answering", str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the grader
            )
        self._socket = ours
        super().__init__(ours.fileno(), ours.fileno())
        atexit.register(self.end)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self, seconds: float = 0.0) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        atexit.unregister(self.end)


_processes: list[_Process] = []


class Right:
    """Right parts for the checks of one exercise.

    Args:
        topic: the assignment's.
        names: the exercises that may be asked for.
    """

    def __init__(self, topic: str, names: list[str]):
        module = importlib.import_module(f"course_pkg.{topic}")
        self.offers: list[Offer] = [offer(module, name) for name in names]
        self._left = QUESTIONS
        self._setting = {"topic": topic, "names": names}
        self._process: _Process | None = None

    def answer(self, question: Decoder) -> bytes:
        """Give the answer to a question.

        Raises:
            WireError: it is too large, one too many, or takes too long.
        """
        size = sum(map(len, question.parts))
        if "topic" in question.header or size > BYTES:
            raise WireError("no question that right parts answer")
        if self._left <= 0:
            raise WireError(f"more than {QUESTIONS} questions to right parts")
        self._left -= 1
        with self._in_time(SECONDS) as process:
            process.write(packed(*question.parts))
            return _next(process)

    @contextlib.contextmanager
    def _in_time(self, seconds: float):
        if self._process is None:
            while _processes and not _processes[-1].is_alive:
                _processes.pop().end()
            if not _processes:
                _processes.append(_Process())
            self._process = _processes[-1]
            with self._in_time(START_SECONDS) as process:
                process.write(Encoder().message(self._setting))
                _next(process)
        process = self._process
        process.deadline = time.monotonic() + seconds
        try:
            yield process
        except BaseException as error:  # the next answer would be to this question
            process.end()
            self._process, self._left = None, 0
            if isinstance(error, (Overdue, OSError, WireError)):
                raise WireError("a question to right parts has no answer") from None
            raise


def _next(process: _Process) -> bytes:
    found = read_bytes(process)
    if found is None:
        raise WireError("it has ended")
    return packed(*found)
