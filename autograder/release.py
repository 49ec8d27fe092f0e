"""Make what students receive: the notebook, and a wheel without what they are to write."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from autograder.build import check, is_stale
from autograder.exercise import stub
from autograder.master import ROOT, Assignment, MasterError, assignments

BUNDLES = ROOT / "autograder" / "course" / "bundles"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="NN_topic")


def main(arguments: argparse.Namespace) -> int:
    """Bundle an assignment, unless something in it is stale."""
    (assignment,) = assignments([arguments.assignment])
    if stale := check(assignment):
        raise MasterError(is_stale(stale[0], assignment))
    folder = BUNDLES / assignment.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(assignment.student.parent, folder, ignore=shutil.ignore_patterns(".*"))
    wheel(assignment, folder)
    for path in sorted(folder.iterdir()):
        print(path.relative_to(ROOT))
    return 0


def wheel(assignment: Assignment, folder: Path) -> Path:
    """Build the wheel of course_pkg that goes with an assignment.

    It holds the references of earlier assignments; of this one signatures and docstrings; of later
    ones nothing.

    Returns:
        The wheel's path in `folder`.
    Raises:
        MasterError: pip cannot build it.
    """
    with tempfile.TemporaryDirectory() as staging:
        staging = Path(staging)
        _stage(assignment, staging)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        command += ["--no-build-isolation", "--wheel-dir", str(folder), str(staging)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise MasterError(f"the wheel cannot be built\n{done.stdout}{done.stderr}")
    return next(folder.glob("*.whl"))


def _stage(assignment: Assignment, staging: Path) -> None:
    package = staging / "course_pkg"
    shutil.copytree(ROOT / "course_pkg", package, ignore=shutil.ignore_patterns("__pycache__"))
    for other in assignments():
        module = package / f"{other.topic}.py"
        if other.name == assignment.name:
            module.write_text(stub(module), encoding="utf-8")
        elif other.name > assignment.name:
            module.unlink()
            (package / "checks" / module.name).unlink()
            (package / "checks" / "data" / f"{other.name}.npz").unlink()
    # A version of its own, so that pip replaces the wheel of an earlier assignment.
    number = int(assignment.name[:2])
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = re.sub(
        r'^version = "(.*)"$', rf'version = "\1+{number}"', project, flags=re.MULTILINE
    )
    (staging / "pyproject.toml").write_text(project, encoding="utf-8")
