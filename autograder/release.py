"""Make what students receive, a bundle without what they are to write, and release it."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from string import Template

from autograder.build import check, is_stale
from autograder.exercise import stub
from autograder.master import ROOT, Assignment, MasterError, assignments, course_folder

BUNDLES = Path("autograder") / "course" / "bundles"
_ENVIRONMENT = """\
# For conda: conda env create -f environment.yml
name: sequence-models
channels:
  - conda-forge
dependencies:
  - python=3.12
  - pip
  - pip:
      - ./$wheel[student]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="NN_topic")
    parser.add_argument("--force", action="store_true", help="replace what is released already")
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")


def main(arguments: argparse.Namespace) -> int:
    """Bundle an assignment and put it into the exchange, unless something in it is stale."""
    course = course_folder(arguments.course)
    (assignment,) = assignments([arguments.assignment])
    if stale := check(assignment):
        raise MasterError(is_stale(stale[0], assignment))
    folder = course / BUNDLES / assignment.name
    bundle(assignment, folder)
    for path in sorted(folder.iterdir()):
        print(path.relative_to(course))
    publish(assignment, course, arguments.force)
    print(f"{assignment.name} is released: students can fetch it")
    return 0


def bundle(assignment: Assignment, folder: Path) -> None:
    """Fill a folder with the notebook, the wheel, an environment and a page on how to use them."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(assignment.student.parent, folder, ignore=shutil.ignore_patterns(".*"))
    names = {"name": assignment.name, "wheel": wheel(assignment, folder).name}
    how_to = Path(__file__).with_name("how_to.md").read_text(encoding="utf-8")
    for file, text in (("environment.yml", _ENVIRONMENT), ("HOW_TO.md", how_to)):
        (folder / file).write_text(Template(text).substitute(names), encoding="utf-8")


def publish(assignment: Assignment, course: Path, force: bool) -> None:
    """Put a course's bundle into nbgrader's exchange.

    Raises:
        MasterError: nbgrader refuses, for example because the assignment is released already.
    """
    # They take seconds to import, and the engine needs only the wheel.
    from nbgrader.apps.api import NbGraderAPI
    from traitlets.config import PyFileConfigLoader

    config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
    config.CourseDirectory.release_directory = str(BUNDLES)
    config.ExchangeReleaseAssignment.force = force
    result = NbGraderAPI(config=config).release_assignment(assignment.name)
    if "Destination already exists" in result.get("log", ""):
        raise MasterError(f"{assignment.name} is released already: --force replaces it")
    if not result["success"]:
        raise MasterError(f"nbgrader does not release {assignment.name}\n{result['log']}")


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


def drop_later(assignment: Assignment, package: Path) -> None:
    """Remove from a copy of course_pkg what belongs to later assignments."""
    for other in assignments():
        if other.name > assignment.name:
            module = package / f"{other.topic}.py"
            module.unlink()
            (package / "checks" / module.name).unlink()
            (package / "checks" / "data" / f"{other.name}.npz").unlink()


def _stage(assignment: Assignment, staging: Path) -> None:
    package = staging / "course_pkg"
    shutil.copytree(ROOT / "course_pkg", package, ignore=shutil.ignore_patterns("__pycache__"))
    drop_later(assignment, package)
    own = package / f"{assignment.topic}.py"
    own.write_text(stub(own), encoding="utf-8")
    # A version of its own, so that pip replaces the wheel of an earlier assignment.
    number = int(assignment.name[:2])
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = re.sub(
        r'^version = "(.*)"$', rf'version = "\1+{number}"', project, flags=re.MULTILINE
    )
    # The sandbox is the grader's.
    project = re.sub(r"\n\[project\.entry-points.*?\n(?=\n\[)", "", project, flags=re.DOTALL)
    (staging / "pyproject.toml").write_text(project, encoding="utf-8")
