"""A kernel without Jupyter and without a sandbox: a process that runs cells, for tests of the wire.

It offers what Solutions uses of a Kernel, so that tests take the path of grading: a cell calls
`serve`, a fork answers over a socket, and the process goes on with the next cell.
"""

import contextlib
import json
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from autograder.grade.errors import KernelDied
from autograder.grade.judging.solutions import Solutions
from autograder.remote.patience import Patience
from autograder.remote.proxy import Proxy

_LOOP = """
import json, linecache, os, sys
answers, nothing = os.fdopen(os.dup(1), "w"), os.open(os.devnull, os.O_RDWR)
cells = os.fdopen(os.dup(0))
for descriptor in (0, 1, 2):
    os.dup2(nothing, descriptor)
namespace = {"__name__": "__main__"}
for number, line in enumerate(cells):
    source, file = json.loads(line), f"<cell {number}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        exec(compile(source, file, "exec"), namespace)
    except BaseException as error:
        said = repr(error)
    else:
        said = None
    print(json.dumps(said), file=answers, flush=True)
"""


class PlainKernel:
    """A process that runs cells one after the other."""

    def __init__(self):
        self.sockets = Path(tempfile.mkdtemp(prefix="plain-", dir="/tmp"))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._sent = 0
        self._said: list[str | None] = []  # what each cell raised

    def run(self, source: str) -> None:
        """Run a cell that must not fail."""
        assert self.settle(request := self.submit(source), 60)
        assert self._said[request] is None, self._said[request]

    def submit(self, source: str) -> int:
        """Send a cell, and return its number."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(source).encode() + b"\n")
            self._process.stdin.flush()
        self._sent += 1
        return self._sent - 1

    def serve(self, address: str) -> int:
        """Fork a process that answers at an address."""
        # The notebook's names, by no name: a variable may be called globals.
        return self.submit(
            "__import__('course_pkg.remote.server', fromlist=['serve'])"
            f".serve({address!r}, (lambda: None).__globals__)"
        )

    def settle(self, request: int, seconds: float) -> bool:
        """Wait until a cell has run; say whether it has."""
        deadline = time.monotonic() + seconds
        while len(self._said) <= request:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return False
            line = self._process.stdout.readline()
            if not line:
                raise KernelDied("it ended its Python process")
            self._said.append(json.loads(line))
        return True

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Interrupt the cell that runs."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        shutil.rmtree(self.sockets, ignore_errors=True)


class Notebook:
    """A notebook in a plain kernel, and the objects that its cells have defined.

    Args:
        source: the first cell.
        seconds: the time limit of a call.
        grace: how much longer it may take before it is ended from outside.
        left: seconds that calls may waste before they have less; by default any number.
    """

    def __init__(
        self, source: str = "", seconds: float = 2.0, grace: float = 3.0, left: float = math.inf
    ):
        self.kernel = PlainKernel()
        self._limits = {"seconds": 3600.0, "patience": Patience(seconds, left), "grace": grace}
        self._solutions: Solutions | None = None
        self._sources: list[str] = []
        self.load(source)

    def __enter__(self) -> "Notebook":
        return self

    def __exit__(self, *exception) -> None:
        self.stop()
        self.kernel.kill()

    def load(self, source: str) -> None:
        """Run a cell; what it defines is there from now on."""
        self.stop()
        self.kernel.run(source)
        self._sources.append(source)
        self._solutions = Solutions(self._living, **self._limits)

    def _living(self) -> PlainKernel:
        """Give the kernel, or a new one in place of one that had to be killed, as grading does."""
        if not self.kernel.is_alive:
            self.kernel.kill()
            self.kernel = PlainKernel()
            for source in self._sources:
                self.kernel.run(source)
        return self.kernel

    def get(self, name: str) -> Proxy:
        """Stand in for an object."""
        return self._solutions.get(name)

    def stop(self) -> None:
        """Let the fork that answers end."""
        if self._solutions is not None:
            self._solutions.__exit__()
