"""JupyterLab as `make lab` starts it, on a course in a temporary folder."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS_TO_START = 60
SECONDS_TO_ANSWER = 300  # the formgrader grades meanwhile


@contextlib.contextmanager
def serving(course: Path) -> Iterator[Callable[..., str]]:
    """Run a server for a course; give a function that gets a page, or posts data to it."""
    port = _free_port()
    program = "import sys; from pathlib import Path; from autograder import lab\n"
    program += f"lab.serve(Path({str(course)!r}), {port}, browser=False)"
    log = course / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"HOME": str(course / "home")},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        token = _wait_for_token(course, process, log)
        _wait_for_port(port, process, log)
        yield lambda page, data=None: _get(port, page, token, data)
    finally:
        process.terminate()
        process.wait(timeout=20)


def _free_port() -> int:
    with socket.socket() as candidate:
        candidate.bind(("127.0.0.1", 0))
        return candidate.getsockname()[1]


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
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.1)
    pytest.fail(f"JupyterLab does not listen on port {port}:\n{log.read_text()}")


def _get(port: int, page: str, token: str, data: bytes | None) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{page}", data, headers={"Authorization": f"token {token}"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER) as response:
        return response.read().decode()
