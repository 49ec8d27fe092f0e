"""A kernel provisioner that starts kernels in the sandbox, over sockets in a private folder."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.provisioning import LocalProvisioner

from autograder.assignment import Assignment
from autograder.grade.kernel import sandbox
from autograder.grade.kernel.sandbox import Limits
from autograder.grade.kernel.sandbox_files import sandbox_files
from autograder.grade.kernel.warm import Template, WarmProcess, template
from autograder.grade.kernel.watch import Watch
from autograder.grade.submission.files import remove

NAME = "course-sandbox"  # of the provisioner, in pyproject.toml, and of the kernel


class SandboxProvisioner(LocalProvisioner):
    """Run a kernel of an assignment in bubblewrap.

    The kernelspec's configuration names the assignment and a folder with the submission's files.
    The kernel manager must use the transport `ipc`.
    """

    assignment: str
    files: str | None
    # LocalProvisioner declares no type, and mypy infers that of the process which it starts itself.
    process: subprocess.Popen | WarmProcess | None  # type: ignore[assignment]

    def __init__(
        self, assignment: str = "", files: str | None = None, is_warm: bool = False, **kwargs
    ):
        super().__init__(**kwargs)
        self.is_warm = is_warm
        self.assignment = assignment
        self.files = files
        self.limits = Limits()
        self.watch: Watch | None = None
        self.sockets: Path | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Make the folder of sockets and the command.

        Raises:
            SandboxMissing: this machine has no bubblewrap.
        """
        sandbox.demand()
        # A short name: a socket's has 108 bytes at most.
        parent = self._template().folder if self.is_warm else "/tmp"
        folder = Path(tempfile.mkdtemp(prefix=f"kernel-{os.getpid()}-", dir=parent))
        self.sockets = folder
        manager = self.parent
        assert manager is not None  # it calls this
        manager.transport = "ipc"
        manager.ip = str(folder / "zmq")
        manager.connection_file = str(folder / "connection.json")
        kwargs = await super().pre_launch(**kwargs)
        if not self.is_warm:
            kwargs["cmd"] = self._command(kwargs["cmd"], folder)
            kwargs |= dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        # The sandbox clears the environment; bwrap itself needs only this much.
        kwargs["env"] = {"PATH": os.environ.get("PATH", os.defpath)}
        kwargs["cwd"] = "/"
        return kwargs

    def _command(self, argv: list[str], sockets: Path) -> list[str]:
        return sandbox.command(
            sandbox.closed(argv),
            sandbox_files=sandbox_files(Assignment(self.assignment)),
            sockets=sockets,
            files=Path(self.files) if self.files else None,
            limits=self.limits,
        )

    def _template(self) -> Template:
        return template(Assignment(self.assignment), self.limits)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the kernel, and the watch over it."""
        assert self.sockets is not None  # pre_launch has made them
        if self.is_warm:
            folder = Path(self.files) if self.files else None
            arguments = cmd[cmd.index("-f") :]
            self.process = self._template().start(self.sockets, arguments, folder)
            info = self.connection_info
        else:
            info = await super().launch_kernel(cmd, **kwargs)
        assert self.process is not None  # it has just been started
        self.watch = Watch(self.process.pid, self.sockets, self.limits, self.kill_now)
        self.watch.start()
        return info

    def kill_now(self) -> None:
        """End the sandbox and all that runs in it."""
        process = self.process  # the watch and the judge may both come here
        if process is None:
            return
        if self.is_warm:
            process.kill()
        elif process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    async def send_signal(self, signum: int) -> None:
        """Deliver what ends a kernel; the sandbox ends with it."""
        if signum in (signal.SIGKILL, signal.SIGTERM):
            self.kill_now()
        else:
            await super().send_signal(signum)

    async def wait(self) -> int | None:
        """Wait for the end of the sandbox."""
        while self.process is not None and self.process.poll() is None:
            await asyncio.sleep(0.01)
        return await super().wait()

    async def cleanup(self, restart: bool = False) -> None:
        """Remove the folder of sockets."""
        if self.watch is not None:
            self.watch.stop()
        if self.sockets is not None:
            remove(self.sockets)
        await super().cleanup(restart=restart)


class SandboxKernels(KernelSpecManager):
    """Know one kernel: that of a submission.

    Args:
        assignment: the name of the assignment.
        files: a folder with the files that came with the notebook.
        is_warm: whether to fork it from a warm process, rather than start it from nothing.
    """

    def __init__(self, assignment: str, files: Path | None = None, is_warm: bool = False, **kwargs):
        super().__init__(**kwargs)
        self._config = {
            "assignment": assignment,
            "files": str(files) if files else None,
            "is_warm": is_warm,
        }

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Give the kernel, whatever its name."""
        return KernelSpec(
            argv=[
                sys.executable,
                *("-m", "ipykernel_launcher", "-f", "{connection_file}"),
                "--HistoryManager.hist_file=:memory:",
                "--log-level=CRITICAL",
            ],
            display_name="Python 3 (sandbox)",
            language="python",
            interrupt_mode="message",
            metadata={"kernel_provisioner": {"provisioner_name": NAME, "config": self._config}},
        )


def sweep() -> None:
    """Remove the folders of sockets that killed processes have left."""
    for folder in Path("/tmp").glob("kernel-*-*"):
        pid = folder.name.split("-")[1]
        with contextlib.suppress(FileNotFoundError):  # its owner may sweep too
            is_mine = folder.stat().st_uid == os.geteuid()
            if pid.isdecimal() and not Path("/proc", pid).exists() and is_mine:
                remove(folder)
