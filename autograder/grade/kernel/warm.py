"""Kernels that start at once: forked from a warm template, which lives as long as the grader."""

import atexit
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from autograder.assignment import Assignment
from autograder.grade.errors import TemplateEnded
from autograder.grade.kernel import sandbox
from autograder.grade.kernel.sandbox import WORK, Limits
from autograder.grade.kernel.sandbox_files import sandbox_files
from autograder.grade.kernel.warm_imports import imports
from autograder.grade.submission.files import files_of, remove

START_SECONDS = 120.0
# The template mounts one file system when it starts, and then gives up what that takes.
_FOR_TEMPLATE = (
    *("--dir", "/run/sockets", "--dir", "/run/proc"),
    *("--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETFCAP"),
)


class Template:
    """The warm process of an assignment, in a sandbox that holds nothing of any student.

    Args:
        sandbox_files: what students of the assignment have.
        limits: what a kernel may use.
        modules: what it imports, besides what every kernel does.
    Raises:
        TemplateEnded: it does not start.
    """

    def __init__(self, sandbox_files: Path, limits: Limits, modules: list[str]):
        self._limits = limits
        self._lock = threading.Lock()
        self.folder = Path(tempfile.mkdtemp(prefix=f"kernel-{os.getpid()}-", dir="/tmp"))
        ours, theirs = socket.socketpair()
        ours.settimeout(START_SECONDS)
        argv = [sys.executable, "-m", "course_pkg.remote.template", str(theirs.fileno()), *modules]
        with theirs:
            self.process = subprocess.Popen(
                sandbox.command(
                    sandbox.closed(argv),
                    sandbox_files=sandbox_files,
                    sockets=self.folder,
                    limits=limits,
                    user=0,
                    extra=_FOR_TEMPLATE,
                    environment={"MPLBACKEND": "module://matplotlib_inline.backend_inline"},
                ),
                env={"PATH": os.environ.get("PATH", os.defpath)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        atexit.register(self.end)
        assert self.process.stderr is not None  # it is a pipe
        self._errors = self.process.stderr
        self._control = ours
        self._stream = ours.makefile("r")
        try:
            self._answer()
        except TemplateEnded:
            self.end()
            raise

    def start(self, sockets: Path, argv: list[str], files: Path | None) -> "WarmProcess":
        """Fork a kernel.

        Args:
            sockets: its folder of sockets, below this template's.
            argv: the arguments of ipykernel.
            files: a folder with what lies beside the notebook.
        """
        with tempfile.TemporaryDirectory(dir=self.folder) as copies:
            found = files_of(files) if files else {}
            for name, path in found.items():
                Path(copies, name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, Path(copies, name))
            answer = self.ask(
                do="start",
                sockets=str(sockets),
                argv=argv,
                work=WORK,
                disk=self._limits.disk,
                files=copies,
                kept=[p for p in sandbox.prefixes() if p.startswith(("/tmp/", "/home/"))],
            )
        return WarmProcess(self, answer["pid"])

    def ask(self, **request) -> dict:
        """Send a request and return the answer.

        Raises:
            TemplateEnded: the template has ended.
        """
        with self._lock:
            try:
                self._control.sendall(json.dumps(request).encode() + b"\n")
            except OSError as error:
                raise TemplateEnded(f"the template of kernels has ended: {error}") from None
            return self._answer()

    def end(self) -> None:
        """End it, and every kernel with it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        self._errors.close()
        self._stream.close()
        self._control.close()
        remove(self.folder)
        atexit.unregister(self.end)

    def _answer(self) -> dict:
        try:
            line = self._stream.readline()
        except OSError as error:
            line, reason = "", str(error)
        if not line:
            self.process.kill()
            reason = self._errors.read().decode(errors="replace")[-1000:]
            raise TemplateEnded(f"the template of kernels has ended: {reason}")
        return json.loads(line)


class WarmProcess:
    """A forked kernel, with what its provisioner uses of a process."""

    stdin = stdout = stderr = None

    def __init__(self, template: Template, pid: int):
        self._template = template
        self._number = pid
        self.pid = template.process.pid  # what is watched; the kernel is below it
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        if self.returncode is None:
            try:
                self.returncode = self._template.ask(do="status", pid=self._number)["status"]
            except TemplateEnded:
                self.returncode = -9
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Return how it ended."""
        return self.poll()

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(TemplateEnded):
            self._template.ask(do="kill", pid=self._number)


_templates: dict[tuple[Assignment, Limits], Template] = {}


def template(assignment: Assignment, limits: Limits) -> Template:
    """Give the template of an assignment, one for each process of the grader."""
    place = (assignment, limits)
    found = _templates.get(place)
    if found is None or found.process.poll() is not None:
        found = _templates[place] = Template(sandbox_files(assignment), limits, imports(assignment))
    return found


def end_templates() -> None:
    """End the templates of this process."""
    while _templates:
        _templates.popitem()[1].end()
