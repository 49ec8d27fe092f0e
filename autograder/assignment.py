"""The assignments of this course: which there are, and where their files lie."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class CourseError(Exception):
    """Something in the course that its user can mend; the message says where and how."""


def course_folder(given: Path) -> Path:
    """Resolve the folder of a course, which commands take as --course.

    Raises:
        CourseError: it is none.
    """
    folder = given.resolve()
    if not (folder / "nbgrader_config.py").exists():
        raise CourseError(f"{folder} holds no nbgrader_config.py: use --course")
    return folder


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
    def solved(self) -> Path:
        return ROOT / "solutions" / self.name / f"{self.name}.ipynb"

    @property
    def student(self) -> Path:
        return ROOT / "notebooks" / self.name / f"{self.name}.ipynb"


def assignments(names: Iterable[str] = ()) -> list[Assignment]:
    """List the assignments, or those of the given names.

    Raises:
        CourseError: a name that no master has.
    """
    found = {path.stem for path in (ROOT / "solutions").glob("[0-9][0-9]_*.md")}
    if unknown := sorted(set(names) - found):
        known = ", ".join(sorted(found)) or "none"
        raise CourseError(f"there is no solutions/{unknown[0]}.md; masters: {known}")
    return [Assignment(name) for name in sorted(set(names) or found)]
