"""`make wheels`: the wheels with which a machine without a network runs `make test-gpu`.

That machine has torch already. The list is what the GPU tests and the notebooks need besides, with
what that needs in turn, in the versions of this environment.
"""

import argparse
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from autograder.assignment import ROOT

FOLDER = ROOT / "wheels"
EXTRA = "notebooks"
_THERE = "torch"


def requirements() -> list[str]:
    """List the wheels, each as name==version.

    Raises:
        LookupError: this environment lacks a package that is needed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    todo = [Requirement(r) for r in project["dependencies"]]
    todo += [Requirement(r) for r in project["optional-dependencies"][EXTRA]]
    found: dict[str, str] = {}
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        if name in found or name == _THERE or not _applies(wanted):
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            raise LookupError(f"{name} is not installed here: run `make env` first") from None
        found[name] = f"{name}=={package.version}"
        todo += [Requirement(r) for r in package.requires or []]
    return sorted(found.values())


def _applies(wanted: Requirement) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": ""})


def main() -> int:
    """Download the wheels."""
    parser = argparse.ArgumentParser(
        prog="python -m autograder.classroom.wheels", description=__doc__
    )
    parser.add_argument("--list", action="store_true", help="print the list, download nothing")
    parser.add_argument("--dest", type=Path, default=FOLDER, help="the folder (wheels)")
    arguments, options = parser.parse_known_args()
    wanted = requirements()
    if arguments.list:
        print("\n".join(wanted))
        return 0
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    return subprocess.call([*command, "--dest", str(arguments.dest), *options, *wanted])


if __name__ == "__main__":
    sys.exit(main())
