"""Create .venv for the course, or leave it alone when it is up to date.

Only the standard library is imported, and only syntax that old Pythons parse is used, so that
a Python that is too old prints a message instead of a stack trace.
"""

import ast
import hashlib
import importlib.util
import os
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
# Where uv looks for what pip's settings say; what is in the second list changes no package.
UV_NAMES = {
    "cert": "SSL_CERT_FILE",
    "constraint": "UV_CONSTRAINT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
}
OF_NO_MATTER = {"disable-pip-version-check", "no-color", "no-input", "progress-bar", "quiet"}
OF_NO_MATTER |= {"cache-dir", "no-cache-dir", "no-compile", "no-warn-script-location"}
OF_NO_MATTER |= {"break-system-packages", "require-virtualenv", "retries", "root-user-action"}


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


def install(python):
    """Install the packages with uv, which takes a tenth of pip's time, or else with pip."""
    print("Installing the packages, up to a minute if they are new.", flush=True)
    what = ["--constraint", str(ROOT / LOCK), "--editable", f"{ROOT}[{EXTRAS}]"]
    settings = uv_settings(pip_settings(python))
    if settings is not None:
        uv = re.findall(r"^uv==\S+", (ROOT / LOCK).read_text(encoding="utf-8"), re.M)
        command = [python, "-m", "pip", "install", "--quiet", "--no-deps", *uv]
        if subprocess.call(command) == 0:
            # A name that stands in several indexes comes from whichever has it, as with pip.
            settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
            command = [python, "-m", "uv", "pip", "install", "--python", python, *what]
            if subprocess.call(command, env={**settings, **os.environ}) == 0:
                return
    print("Not with uv: pip does it, in one to five minutes.", flush=True)
    status = subprocess.call([python, "-m", "pip", "install", "--no-compile", *what])
    if status != 0:
        raise EnvironmentProblem(
            f"pip could not install the packages; its message is above. The disk has "
            f"{free_gigabytes():.1f} GB free.\nWhen the cause is gone, run the same command again."
        )


def pip_settings(python):
    """Return what pip's files and its variables say, by the names of its options."""
    printed = subprocess.check_output([python, "-m", "pip", "config", "list"])
    lines = [line.partition("=") for line in printed.decode().splitlines()]
    found = [(name.rpartition("."), ast.literal_eval(value)) for name, _, value in lines if value]
    # A variable counts more than a file, and what is said of installing more than what is of all.
    ranks = {"global": 0, "install": 1, ":env:": 2}
    found = [(ranks[where], name, value) for (where, _, name), value in found if where in ranks]
    return {name: value for _, name, value in sorted(found)}


def uv_settings(settings):
    """Return the variables that tell uv what pip's settings say; None if it cannot be told."""
    if set(settings) - set(UV_NAMES) - OF_NO_MATTER:
        return None
    found = {
        UV_NAMES[name]: " ".join(settings[name].split()) for name in settings if name in UV_NAMES
    }
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = found["UV_FIND_LINKS"].replace(" ", ",")
    return found


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

    python = str(folder / "bin" / "python")
    install(python)
    compile_meanwhile(python, folder / "lib")
    (folder / STAMP_NAME).write_text(stamp, encoding="utf-8")
    print(f"{folder.name} is ready after {time.time() - started:.0f} s.")


def compile_meanwhile(python, folder):
    """Compile what was installed, while the user goes on: it takes longer than all the rest.

    pip would do it before it ends, with one processor. Files for another Python are left out in
    silence, and so is a third that the course hardly imports.
    """
    code = "import compileall, os; os.nice(19); compileall.main()"
    command = [python, "-c", code, "-qq", "-j", "0", "-x", r"/(tests|transformers)/", str(folder)]
    nowhere = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
    subprocess.Popen(command, **nowhere)


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
