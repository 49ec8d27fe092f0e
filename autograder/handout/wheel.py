"""Build the wheel of course_pkg that students of an assignment have."""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from autograder.assignment import ROOT, Assignment, CourseError, assignments, reference
from autograder.handout.exercise import stub


def project() -> dict:
    """Read what pyproject.toml says about the course: its version, dependencies and address."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def filename(assignment: Assignment) -> str:
    """Name the wheel that goes with an assignment."""
    return f"course_pkg-{_version(assignment)}-py3-none-any.whl"


def wheel(assignment: Assignment, folder: Path) -> Path:
    """Build the wheel of course_pkg that goes with an assignment.

    It holds the references of earlier assignments, the signatures and docstrings of this one, and
    nothing of later ones.

    Returns:
        The wheel's path in `folder`.
    Raises:
        CourseError: setuptools cannot build it.
    """
    with tempfile.TemporaryDirectory() as staging:
        staging = Path(staging)
        _stage(assignment, staging)
        # What `pip wheel` would ask of pyproject's build-backend, without the time that pip takes.
        program = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"
        command = [sys.executable, "-P", "-c", program, str(folder.resolve())]
        done = subprocess.run(command, cwd=staging, capture_output=True, text=True)
        if done.returncode:
            raise CourseError(f"the wheel cannot be built\n{done.stdout}{done.stderr}")
    return folder / filename(assignment)


def drop_later(assignment: Assignment, package: Path) -> None:
    """Remove from a copy of course_pkg what belongs to later assignments."""
    for other in assignments():
        if other.name > assignment.name:
            for module in reference(other.topic, package):
                module.unlink()
            shutil.rmtree(package / other.topic, ignore_errors=True)
            (package / "checks" / f"{other.topic}.py").unlink()
            (package / "data" / f"{other.topic}.py").unlink(missing_ok=True)
            for path in (package / "checks" / "data").rglob(f"{other.name}.*"):
                path.unlink()
            shutil.rmtree(package / "data" / "weights" / other.topic, ignore_errors=True)


def _version(assignment: Assignment) -> str:
    """A version of its own, so that pip replaces the wheel of an earlier assignment."""
    return f"{project()['version']}+{int(assignment.name[:2])}"


def _stage(assignment: Assignment, staging: Path) -> None:
    package = staging / "course_pkg"
    shutil.copytree(ROOT / "course_pkg", package, ignore=shutil.ignore_patterns("__pycache__"))
    drop_later(assignment, package)
    for own in reference(assignment.topic, package):
        own.write_text(stub(own), encoding="utf-8")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = re.sub(
        r'^version = ".*"$', f'version = "{_version(assignment)}"', text, flags=re.MULTILINE
    )
    # The sandbox is the grader's.
    text = re.sub(r"\n\[project\.entry-points.*?\n(?=\n\[)", "", text, flags=re.DOTALL)
    (staging / "pyproject.toml").write_text(text, encoding="utf-8")
