"""Measure a command and all that it starts: time, processor time, and the most memory."""

import os
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from autograder.grade.kernel.watch import descendants

SECONDS = 3.0  # between looks at the memory: one takes as long as a check


@dataclass(frozen=True)
class Measured:
    """What a command took.

    Args:
        clock: seconds.
        cpu: seconds of processors, with those of all processes that it started.
        memory: bytes, of all processes together, at the worst moment seen; shared pages count once.
    """

    clock: float
    cpu: float
    memory: int


def measure(command: list[str], folder: Path) -> Measured:
    """Run a command in a folder; a control group also counts what was killed.

    Raises:
        OSError: this machine has no control groups (version 2) that this user may make.
        subprocess.CalledProcessError: the command failed.
    """
    group = _groups() / f"course-{os.getpid()}"
    group.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COURSE_DEVICE": "cpu"}
    try:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: (group / "cgroup.procs").write_text("0"),
        )
        memory = _Memory(process.pid)
        memory.start()
        error = process.communicate()[1]
        clock = time.perf_counter() - start
        memory.over.set()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, stderr=error)
        stat = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return Measured(clock, int(stat["usage_usec"]) / 1e6, memory.most)
    finally:
        while (group / "cgroup.procs").read_text():
            time.sleep(0.1)
        group.rmdir()


def _groups() -> Path:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for _, place, kind, *_ in mounts:
        if kind == "cgroup2":
            own = Path("/proc/self/cgroup").read_text().split("0::", 1)[1].split("\n")[0]
            return Path(place) / own.strip("/")
    raise OSError("there are no control groups here")


class _Memory(threading.Thread):
    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.most = 0
        self.over = threading.Event()
        self._pid = pid

    def run(self) -> None:
        while not self.over.wait(SECONDS):
            self.most = max(self.most, sum(map(_share, descendants(self._pid, 1000))))


def _share(pid: int) -> int:
    """The bytes of a process; of pages that it shares, its part."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it has just ended
        pass
    return 0
