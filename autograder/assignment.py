"""The assignments of this course: which there are, and where their files lie."""

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def use_this_checkout() -> None:
    """Let processes that this one starts import this checkout, whatever is installed."""
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found = [str(ROOT), *(path for path in others if path not in ("", str(ROOT)))]
    os.environ["PYTHONPATH"] = os.pathsep.join(found)


class CourseError(Exception):
    """Something in the course that its user can mend; the message says where and how."""


def course_folder(given: Path) -> Path:
    """Resolve the folder of a course, which commands take as --course.

    Raises:
        CourseError: it is not the folder of a course.
    """
    folder = given.resolve()
    if not (folder / "nbgrader_config.py").exists():
        raise CourseError(
            f"{folder} holds no nbgrader_config.py: name the course's folder with --course"
        )
    return folder


def commit() -> str:
    """Name the commit of the course's files, marked if they were changed since."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()


@dataclass(frozen=True)
class Assignment:
    """An assignment, known by its master `solutions/NN_topic.md`."""

    name: str

    @property
    def topic(self) -> str:
        return self.name.partition("_")[2]

    @property
    def master(self) -> Path:
        return ROOT / "solutions" / f"{self.name}.md"

    @property
    def reference(self) -> list[Path]:
        """The modules of its reference."""
        return reference(self.topic)

    @property
    def solved(self) -> Path:
        return ROOT / "solutions" / self.name / f"{self.name}.ipynb"

    @property
    def student(self) -> Path:
        return ROOT / "notebooks" / self.name / f"{self.name}.ipynb"


def reference(topic: str, package: Path = ROOT / "course_pkg") -> list[Path]:
    """List the modules of an assignment's reference: one, or those of a package, its __init__ last.

    Args:
        topic: the assignment's.
        package: course_pkg, or a copy of it.
    Raises:
        CourseError: there is none.
    """
    module, folder = package / f"{topic}.py", package / topic
    if module.exists():
        return [module]
    if found := sorted(folder.glob("*.py"), key=lambda path: (path.name == "__init__.py", path)):
        return found
    raise CourseError(f"there is no {module} and no package {folder}")


def assignments(names: Iterable[str] = ()) -> list[Assignment]:
    """List the assignments, or those of the given names.

    Raises:
        CourseError: a name that no master has.
    """
    found = {path.stem for path in (ROOT / "solutions").glob("[0-9][0-9]_*.md")}
    if unknown := sorted(set(names) - found):
        alike = get_close_matches(unknown[0], found, n=3, cutoff=0.4) or sorted(found)[:3]
        raise CourseError(f"there is no solutions/{unknown[0]}.md; there is {', '.join(alike)}")
    return [Assignment(name) for name in sorted(set(names) or found)]
