"""A cgroup of its own for each sandbox, where this process may divide the one that it is in.

    systemd-run --user --scope -p Delegate=yes python -m autograder grade 02_lstm

The system then bounds all processes of a sandbox together, at any moment and whoever runs them: it
counts memory that has no name or is shared, and what is taken between two looks of the watch.
(Linux, Control Group v2; systemd, Control Group APIs and Delegation)
"""

import contextlib
import functools
import itertools
import os
import re
import subprocess
from pathlib import Path

ROOM = 1 << 30  # bytes beyond a sandbox's limit, at which the watch ends it and says why
GRADERS = "graders"  # the group of the graders themselves: one that is divided holds no process
_SANDBOX = re.compile(r"sandbox-(\d+)-\d+")
_SWAP = "memory.swap.max"
_ENTER = 'echo 0 > "$0" && exec "$@"'  # 0 stands for the process that writes it
_numbers = itertools.count()


def entering(memory: int, processes: int) -> list[str]:
    """Make a group with limits; give the words before a command that let it begin there.

    No words where this process may not divide its group: then the watch is alone.

    Args:
        memory: bytes of all processes together, at which the watch ends them.
        processes: how many there may be, as the watch counts them.
    """
    divided = _divided()
    if divided is None:
        return []
    try:
        group = _new(divided, memory, processes)
    except OSError:  # there are as many groups as there may be, or systemd has removed this one
        return []
    return ["/bin/sh", "-c", _ENTER, str(group / "cgroup.procs")]


def _new(divided: Path, memory: int, processes: int) -> Path:
    """Make a group with limits.

    Raises:
        OSError: the system does not let this process make it.
    """
    _remove_old(divided)
    group = divided / f"sandbox-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    controllers = (divided / "cgroup.subtree_control").read_text().split()
    values = {
        "memory.max": memory + ROOM,
        _SWAP: 0,
        "memory.oom.group": 1,  # all of it ends, not what happens to be largest
        "pids.max": 2 * processes,
    }
    for name, value in values.items():
        if name.partition(".")[0] in controllers:
            with contextlib.suppress(*[OSError] * (name == _SWAP)):  # not every kernel counts it
                (group / name).write_text(str(value))
    return group


@functools.cache
def _divided() -> Path | None:
    """Divide this process's group, if systemd has delegated it; None otherwise."""
    try:
        own = _own()
        group = own.parent if own.name == GRADERS else own
        if not _is_delegated(group):
            return None
        (group / GRADERS).mkdir(exist_ok=True)
        for process in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                (group / GRADERS / "cgroup.procs").write_text(process)
        known = (group / "cgroup.controllers").read_text().split()
        wanted = " ".join(f"+{name}" for name in ("memory", "pids") if name in known)
        (group / "cgroup.subtree_control").write_text(wanted)
        return group
    except OSError:
        return None


def _is_delegated(group: Path) -> bool:
    """Ask systemd, whose unit has the group's name; a user's manager leaves no mark at a group."""
    whose = ["--user"] * any(name.startswith("user@") for name in group.parts)
    asked = ["systemctl", *whose, "show", "--property=Delegate", "--value", "--", group.name]
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # there is none, or it is silent
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10)
        return done.stdout.strip() == "yes"
    return False


def _own() -> Path:
    """Find the folder of this process's group.

    Raises:
        FileNotFoundError: there is none.
    """
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    roots = [line.split()[4] for line in mounts if " - cgroup2 " in line]
    paths = [line.removeprefix("0::/") for line in groups if line.startswith("0::/")]
    if not (roots and paths):
        raise FileNotFoundError("no cgroup v2")
    return Path(roots[0], paths[0])


def _remove_old(divided: Path) -> None:
    """Remove the groups of sandboxes that have ended, also those of graders that have."""
    for group in divided.iterdir():
        if found := _SANDBOX.fullmatch(group.name):
            is_mine, is_gone = int(found[1]) == os.getpid(), not Path("/proc", found[1]).exists()
            if is_mine or is_gone:
                with contextlib.suppress(OSError):  # some of it still runs
                    group.rmdir()
