"""The sandbox of a submission: the bubblewrap command around its kernel.

Inside there are the system and the environment, read-only; the students' wheel of course_pkg; a
copy of the submission's files without notebooks; private /tmp, /dev/shm and home of bounded size;
and one folder of sockets. There is no network, no other process, and nothing of the instructor's.
"""

import functools
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autograder.assignment import ROOT
from autograder.grade.errors import SandboxMissing
from autograder.grade.kernel import cgroup
from course_pkg.remote.seccomp import CALLS

SWITCH = "AUTOGRADER_SANDBOX"
HOME = "/home/student"
WORK = f"{HOME}/work"
COURSE = "/opt/course"
# The tests compare with them; students do not have them, and some would be an exercise's solution.
_TESTS_ONLY = ("sacrebleu", "tokenizers", "transformers")
_SYSTEM = ("sys", "sysrq-trigger", "irq", "bus")  # of /proc: root could write there
_NAMESPACES = ("user", "pid", "ipc", "net", "uts")
_HELP = f"""\
Grading runs students' code in bubblewrap, and {{problem}}.
Debian and Ubuntu: sudo apt-get install bubblewrap   Fedora: sudo dnf install bubblewrap
Containers and hardened systems must also allow unprivileged user namespaces.
macOS and Windows: grade in a Linux machine, virtual or not (WSL will do).
To grade without a sandbox, only your own code or code that you trust: {SWITCH}=off"""
WARNING = f"""\
!! {SWITCH}=off: students' code runs as you, with all that you may read and write. !!"""


@dataclass(frozen=True)
class Limits:
    """What a sandbox may use.

    Args:
        memory: bytes of all its processes together, and of each one's data.
        address_space: bytes of one process's address space; torch maps much that it never uses.
        processes: processes and threads.
        cpu: seconds of one process.
        file: bytes of one file.
        disk: bytes of /tmp, of the home and of /dev/shm each.
        socket_folder: bytes of files in the folder that the sandbox shares with the grader.
    """

    memory: int = 4 << 30
    address_space: int = 24 << 30
    processes: int = 256
    cpu: int = 900
    file: int = 256 << 20
    disk: int = 512 << 20
    socket_folder: int = 1 << 20


def is_off() -> bool:
    """Say whether the user has chosen to grade without a sandbox."""
    return os.environ.get(SWITCH, "").lower() in ("off", "0", "no")


def demand() -> None:
    """Make sure that the sandbox works here.

    Raises:
        SandboxMissing: it does not; the text has the command that installs it.
    """
    if found := problem():
        raise SandboxMissing(_HELP.format(problem=found))


@functools.cache
def problem() -> str | None:
    """Say what keeps the sandbox from working on this machine; None if it works."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap needs Linux"
    if (machine := os.uname().machine) not in CALLS:
        return f"its filter of system calls is for {' and '.join(CALLS)}, and this is {machine}"
    try:
        done = subprocess.run(
            ["bwrap", "--unshare-all", *_system(), "--proc", "/proc", "/usr/bin/true"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except FileNotFoundError:
        return "bubblewrap (bwrap) is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    return f"bubblewrap is not permitted here: {done.stderr.strip()}" if done.returncode else None


def command(
    argv: list[str],
    *,
    sandbox_files: Path,
    sockets: Path,
    files: Path | None = None,
    limits: Limits = Limits(),
    user: int = 1000,
    extra: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> list[str]:
    """Make the command that runs another one in the sandbox, in a cgroup of its own if possible.

    Args:
        argv: the command to run.
        sandbox_files: what students of the assignment have (see grade.kernel.sandbox_files).
        sockets: the folder that is shared with the grader, at the same path inside.
        files: a folder whose files appear beside the notebook.
        limits: what it may use.
        user: the number of the user inside.
        extra: further options of bubblewrap.
        environment: variables besides those of every sandbox.
    """
    options = ["bwrap", *(f"--unshare-{name}" for name in _NAMESPACES), "--unshare-cgroup-try"]
    options += ["--die-with-parent", "--new-session", "--hostname", "sandbox"]
    if user and "--disable-userns" in _help():  # a template makes one for each kernel
        options += ["--disable-userns"]
    options += ["--uid", str(user), "--gid", str(user), "--clearenv"]
    options += [*_system(), "--proc", "/proc", "--dev", "/dev"]
    for name in _SYSTEM:
        options += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    for folder in ("/tmp", "/home", "/dev/shm"):
        options += [*_size(limits.disk), "--tmpfs", folder]
    options += _environment()  # it may lie in a folder that was just hidden
    options += ["--dir", WORK, "--chdir", WORK, "--dir", f"{HOME}/.matplotlib"]
    options += ["--ro-bind", str(sandbox_files / "site"), COURSE]
    for file in (sandbox_files / "etc").iterdir():
        options += ["--ro-bind", str(file), f"/etc/{file.name}"]
    for file in (sandbox_files / "matplotlib").iterdir():
        options += ["--ro-bind", str(file), f"{HOME}/.matplotlib/{file.name}"]
    options += [part for mask in _covers(sandbox_files / "empty") for part in mask]
    if files is not None:
        for path in sorted(files.rglob("*")):
            if path.is_file() and not path.is_symlink():
                options += ["--ro-bind", str(path), f"{WORK}/{path.relative_to(files)}"]
    options += ["--bind", str(sockets), str(sockets)]
    options += [*extra, "--remount-ro", "/dev", "--remount-ro", "/"]
    for name, value in (variables() | (environment or {})).items():
        options += ["--setenv", name, value]
    entering = cgroup.entering(limits.memory, limits.processes)
    return [*entering, *options, "--", *_limited(limits), *argv]


def closed(argv: list[str]) -> list[str]:
    """Make the command that runs another one, inside, without some calls (see remote.seccomp)."""
    # -I, so that no file beside a notebook is imported.
    return [sys.executable, "-I", f"{COURSE}/course_pkg/remote/seccomp.py", *argv]


def variables() -> dict[str, str]:
    """The environment variables of every sandbox."""
    return {
        "PATH": f"{sys.prefix}/bin:/usr/bin:/bin",
        "HOME": HOME,
        "USER": "student",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TMPDIR": "/tmp",
        "IPYTHONDIR": "/tmp/ipython",
        "MPLCONFIGDIR": f"{HOME}/.matplotlib",
        "PYTHONPATH": COURSE,
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "COURSE_DEVICE": "cpu",
        "NBGRADER_EXECUTION": "autograde",
        "COURSE_CHECKS": "outside",  # the sandbox has none
        "JPY_PARENT_PID": "1",  # the parent has this number inside, and lives
    }


def _system() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.exists():
            yield from ("--ro-bind", str(path), str(path))
    for name in ("ld.so.cache", "localtime", "alternatives"):
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")


def prefixes() -> list[str]:
    """List the folders of Python and its packages, the outer ones first; /usr is there anyway."""
    found = sorted({sys.base_prefix, sys.prefix})
    return [prefix for prefix in found if not Path(prefix).is_relative_to("/usr")]


def _environment() -> Iterator[str]:
    """Python and its packages, where they are outside."""
    for prefix in prefixes():
        yield from ("--ro-bind", prefix, prefix)


def _covers(empty: Path) -> Iterator[tuple[str, str, str] | tuple[str, str]]:
    """Cover what students lack: packages, and the way to the checkout of an editable install."""
    site = Path(sysconfig.get_path("purelib"))
    for path in sorted(site.iterdir()):
        name = path.name.replace("-", "_").lower()
        if name.startswith(("course_pkg", *_TESTS_ONLY)) and path.is_dir():
            yield ("--tmpfs", str(path))
            yield ("--remount-ro", str(path))
        elif "course_pkg" in name or _names_checkout(path):
            yield ("--ro-bind", str(empty), str(path))


def _names_checkout(path: Path) -> bool:
    return path.suffix in (".pth", ".egg-link") and str(ROOT) in path.read_text(errors="replace")


def _size(count: int) -> list[str]:
    return ["--size", str(count)] if "--size" in _help() else []


@functools.cache
def _help() -> str:
    return subprocess.run(["bwrap", "--help"], capture_output=True, text=True).stdout


def _limited(limits: Limits) -> list[str]:
    """Bounds that the processes of the sandbox inherit and cannot raise."""
    return [
        "/usr/bin/prlimit",
        f"--as={limits.address_space}",
        f"--data={limits.memory}",
        f"--nproc={limits.processes}",
        f"--cpu={limits.cpu}",
        f"--fsize={limits.file}",
        "--nofile=1024",
        "--core=0",
        "--",
    ]
