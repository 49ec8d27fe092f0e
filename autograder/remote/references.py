"""The grader's side of questions: about what, how often, and how long an answer may take."""

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
from course_pkg.checking.lending import Lent
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


class _Answering:
    """Questions of a student's process to the process that answers."""

    def __init__(self):
        self._left = QUESTIONS
        self._process: _Process | None = None

    def _answer(self, question: Decoder) -> bytes:
        """Give the answer to a question.

        Raises:
            WireError: it is too large, one too many, or takes too long.
        """
        if sum(map(len, question.parts)) > BYTES:
            raise WireError("no question that the grader answers")
        if self._left <= 0:
            raise WireError(f"more than {QUESTIONS} questions to the grader")
        self._left -= 1
        with self._in_time(SECONDS) as process:
            process.write(packed(*question.parts))
            return _next(process)

    def _tell(self, setting: dict) -> None:
        """Say what is asked about from now on."""
        with self._in_time(START_SECONDS) as process:
            process.write(Encoder().message(setting))
            _next(process)

    @contextlib.contextmanager
    def _in_time(self, seconds: float):
        if self._process is None:
            while _processes and not _processes[-1].is_alive:
                _processes.pop().end()
            if not _processes:
                _processes.append(_Process())
            self._process = _processes[-1]
        process = self._process
        process.deadline = time.monotonic() + seconds
        try:
            yield process
        except BaseException as error:  # the next answer would be to this question
            process.end()
            self._process, self._left = None, 0
            if isinstance(error, (Overdue, OSError, WireError)):
                raise WireError("a question to the grader has no answer") from None
            raise


class Right(_Answering):
    """Right parts for the checks of one exercise.

    Args:
        topic: the assignment's.
        names: the exercises that may be asked for.
    """

    def __init__(self, topic: str, names: list[str]):
        super().__init__()
        module = importlib.import_module(f"course_pkg.{topic}")
        self.offers: list[Offer] = [offer(module, name) for name in names]
        self._setting = {"topic": topic, "names": names}

    def answer(self, question: Decoder) -> bytes:
        """Give the answer to a question.

        Raises:
            WireError: it is about no right part, too large, one too many, or takes too long.
        """
        if "topic" in question.header or "lend" in question.header:
            raise WireError("no question that right parts answer")
        if self._process is None and self._left:
            self._tell(self._setting)
        return self._answer(question)


class Lender(_Answering):
    """What is lent to a student's code: it stays in the process that answers."""

    def lend(self, lent: list[Lent]) -> None:
        """Lend these from now on, each made anew, and nothing else.

        Raises:
            WireError: an earlier question has ended the process.
        """
        if self._left <= 0:
            raise WireError(f"more than {QUESTIONS} questions to the grader, or one without end")
        self._tell({"lend": [one.place for one in lent]})

    def answer(self, question: Decoder) -> bytes:
        """Give the answer to a question.

        Raises:
            WireError: it is about nothing that is lent, too large, one too many, or takes too long.
        """
        if "topic" in question.header or "lend" in question.header:
            raise WireError("no question about what is lent")
        return self._answer(question)


def _next(process: _Process) -> bytes:
    found = read_bytes(process)
    if found is None:
        raise WireError("it has ended")
    return packed(*found)
