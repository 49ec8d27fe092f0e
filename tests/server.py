"""JupyterLab as `make lab` starts it, on a course in a temporary folder."""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS_TO_START = 60
SECONDS_TO_ANSWER = 300  # the formgrader grades meanwhile
# What `make lab` runs, and what is left of it where a student has only notebooks.
TEACHER = "lab.serve(root, port, browser=False)"
STUDENT = """\
os.chdir(root)
command = lab.server_command(root, port, browser=False)
os.execvpe(command[0], command, lab.server_environment(root))"""


@dataclass(frozen=True)
class Server:
    """A running server."""

    address: str
    token: str

    def __call__(self, page: str, data: bytes | None = None) -> str:
        """Get a page, or post data to it."""
        request = urllib.request.Request(
            f"{self.address}/{page}", data, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER) as response:
            return response.read().decode()


@contextlib.contextmanager
def serving(course: Path, program: str = TEACHER) -> Iterator[Server]:
    """Run a server for a course, or for a student of one."""
    port = free_port()
    given = "import os, sys; from pathlib import Path; from autograder.classroom import lab\n"
    given += f"root, port = Path({str(course)!r}), {port}\n"
    log = course / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", given + program],
            cwd=ROOT,
            env=os.environ | {"HOME": str(course / "home")},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        token = _wait_for_token(course, process, log)
        _wait_for_port(port, process, log)
        yield Server(f"http://127.0.0.1:{port}", token)
    finally:
        process.terminate()
        process.wait(timeout=20)


def free_port() -> int:
    """Find a port on which nobody listens, none that a system would give to a kernel meanwhile."""
    for port in random.SystemRandom().sample(range(10_000, 32_000), 100):
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            return port
    pytest.fail("nobody could listen on any of 100 ports between 10000 and 32000")


def _wait_for_token(course: Path, process: subprocess.Popen, log: Path) -> str:
    """Return the server's token as soon as the server has written it down."""
    runtime = course / "autograder" / "course" / "jupyter" / "runtime"
    description = runtime / f"jpserver-{process.pid}.json"
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if description.exists() and description.read_text().rstrip().endswith("}"):
            return json.loads(description.read_text())["token"]
        time.sleep(0.1)
    pytest.fail(f"JupyterLab has not started:\n{log.read_text()}")


def _wait_for_port(port: int, process: subprocess.Popen, log: Path) -> None:
    """Return as soon as the server listens: it writes its token down before that."""
    wait_until(lambda: socket.create_connection(("127.0.0.1", port), timeout=1), process, log)


def wait_until(attempt: Callable, process: subprocess.Popen, log: Path) -> None:
    """Return as soon as an attempt to connect to a server succeeds."""
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            attempt().close()
            return
        time.sleep(0.1)
    pytest.fail(f"the server does not answer:\n{log.read_text()}")
