"""Create .venv for the course, or leave it alone when it is up to date.

Only the standard library is imported, and only syntax that old Pythons parse is used, so that
a Python that is too old prints a message instead of a stack trace.
"""

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = "student,grading,notebooks,site,test"
LOCK = "locks/everything.txt"
GIGABYTES_NEEDED = 3
STAMP_NAME = "course-stamp.txt"


class EnvironmentProblem(Exception):
    """The environment cannot be built; the text says why and what to do."""


def supported_versions(pyproject):
    """Return the lowest supported (major, minor) and the first one that is no longer supported."""
    found = re.search(r'^requires-python = ">=(\d+)\.(\d+),<(\d+)\.(\d+)"$', pyproject, re.M)
    if not found:
        raise EnvironmentProblem(
            'pyproject.toml should have a line requires-python = ">=X.Y,<X.Z" and has none.'
        )
    numbers = tuple(int(group) for group in found.groups())
    return numbers[:2], numbers[2:]


def check_python(pyproject):
    """Raise EnvironmentProblem when this Python cannot run the course."""
    lowest, end = supported_versions(pyproject)
    version = tuple(sys.version_info[:2])
    if not lowest <= version < end:
        needed = f"{lowest[0]}.{lowest[1]} to {end[0]}.{end[1] - 1}"
        raise EnvironmentProblem(
            f"The course needs Python {needed}, and this is Python {version[0]}.{version[1]} "
            f"({sys.executable}).\n"
            f"Install one of those versions and name it, for example: make env "
            f"PYTHON=python{end[0]}.{end[1] - 2}"
        )
    if importlib.util.find_spec("ensurepip") is None:
        raise EnvironmentProblem(
            f"This Python ({sys.executable}) cannot create environments: it lacks ensurepip.\n"
            "On Debian and Ubuntu, install it with: sudo apt install python3-venv"
        )


def free_gigabytes():
    """Return the free space, in gigabytes, on the disk that holds the repository."""
    return shutil.disk_usage(str(ROOT)).free / 1e9


def check_disk():
    """Raise EnvironmentProblem when the packages would not fit."""
    free = free_gigabytes()
    if free < GIGABYTES_NEEDED:
        raise EnvironmentProblem(
            f"The environment needs {GIGABYTES_NEEDED} GB of free disk, and {ROOT} has "
            f"{free:.1f} GB.\nFree some space, or move the repository to a larger disk."
        )


def expected_stamp(packages):
    """Return the text that a finished environment of this Python and these packages holds.

    The folder is part of it, because a moved environment still points to its old place.
    """
    version = ".".join(str(number) for number in sys.version_info[:3])
    content = hashlib.sha256(packages.encode()).hexdigest()
    return f"python {version} in {ROOT}\npackages {content}\n"


def read_stamp(folder):
    """Return the stamp of the environment in folder, empty when it is missing or unfinished."""
    stamp_file = folder / STAMP_NAME
    if stamp_file.exists() and (folder / "bin" / "python").exists():
        return stamp_file.read_text(encoding="utf-8")
    return ""


def build(folder, stamp):
    """Create or update the environment; the stamp comes last, so an interrupted build has none."""
    started = time.time()
    if read_stamp(folder).partition("\n")[0] == stamp.partition("\n")[0]:
        print(f"The packages have changed: updating {folder.name}.")
        (folder / STAMP_NAME).unlink()
    else:
        print(f"Creating {folder.name} with Python {sys.version.split()[0]}.")
        shutil.rmtree(str(folder), ignore_errors=True)
        venv.create(str(folder), symlinks=True, with_pip=True)

    print("Installing the packages, one to five minutes if they are new.", flush=True)
    python = str(folder / "bin" / "python")
    command = [python, "-m", "pip", "install", "--no-compile"]
    command += ["--constraint", str(ROOT / LOCK), "--editable", f"{ROOT}[{EXTRAS}]"]
    status = subprocess.call(command)
    if status != 0:
        raise EnvironmentProblem(
            f"pip could not install the packages; its message is above. The disk has "
            f"{free_gigabytes():.1f} GB free.\nWhen the cause is gone, run the same command again."
        )
    # pip would do this with one processor; files for another Python are left out in silence, and
    # so is a third that the course hardly imports.
    command = [python, "-m", "compileall", "-qq", "-j", "0", "-x", r"/(tests|transformers)/"]
    subprocess.call([*command, str(folder / "lib")])
    (folder / STAMP_NAME).write_text(stamp, encoding="utf-8")
    print(f"{folder.name} is ready after {time.time() - started:.0f} s.")


def main(folder=".venv"):
    """Check, build when needed, and return the exit status."""
    folder = ROOT / folder
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    try:
        check_python(pyproject)
        stamp = expected_stamp(pyproject + (ROOT / LOCK).read_text(encoding="utf-8"))
        if read_stamp(folder) != stamp:
            check_disk()
            build(folder, stamp)
    except EnvironmentProblem as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Run the same command again to finish.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
