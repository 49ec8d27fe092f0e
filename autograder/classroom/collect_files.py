"""`python -m autograder collect-files`: place submissions that came by hand, as Colab's do."""

import argparse
import os
import shutil
import sys
import tempfile
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

from autograder.assignment import CourseError, course_folder
from autograder.classroom.gradebook import opened
from autograder.grade.batch.gradebook import problem_with_id
from autograder.grade.errors import GradingError
from autograder.grade.submission.files import SECRET, TIMESTAMP, is_notebook
from autograder.grade.submission.stamp import moment
from autograder.grade.submission.submission import Course


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="NN_topic")
    parser.add_argument(
        "folder", type=Path, help="holds STUDENT.ipynb, STUDENT.zip, or a folder STUDENT, for each"
    )
    parser.add_argument(
        "--time",
        type=_time,
        metavar="2026-11-02T23:59+01:00",
        help="when they were handed in; default: when each file was last changed",
    )
    parser.add_argument("--update", action="store_true", help="replace what is there by newer ones")
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")


def _time(text: str) -> datetime:
    """Read a time; argparse puts a ValueError into words. Without an offset it is local."""
    return datetime.fromisoformat(text).astimezone(UTC)


def main(arguments: argparse.Namespace) -> int:
    """Place what can be placed and say what was done; 1 if something was left.

    Raises:
        CourseError: there is no such assignment or folder, or the gradebook cannot be used.
    """
    course = Course(course_folder(arguments.course))
    try:
        course.plan(arguments.assignment)
    except GradingError as error:
        raise CourseError(str(error)) from None
    if not arguments.folder.is_dir():
        raise CourseError(f"{arguments.folder} is no folder: name the one with the students' files")
    with opened(course.root) as gradebook:
        known = {student.id for student in gradebook.students}
    found, left = _by_student(arguments.folder)
    placed = 0
    for student, paths in found.items():
        time = arguments.time or max(map(_changed, paths))
        target = course.submitted / student / arguments.assignment
        if (problem := _problem(student, target, time, arguments.update)) is not None:
            left.append(problem)
            continue
        _place(paths, target, time)
        placed += 1
        stranger = "" if student in known else "; the gradebook does not know this id: is it right?"
        print(f"{student}: handed in {_written(time)}{stranger}")
    for line in left:
        print(f"left: {line}", file=sys.stderr)
    print(f"{placed} placed · {len(left)} left", file=sys.stderr)
    return 1 if left else 0


def _by_student(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Sort a folder's files by student, and say which belong to none."""
    found: dict[str, list[Path]] = {}
    left = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        student = _student(path)
        if student is None:
            left.append(f"{path.name!r} is no notebook, ZIP archive or folder")
        else:
            found.setdefault(student, []).append(path)
    return found, left


def _student(path: Path) -> str | None:
    """Read whose a file is; macOS writes ü as two characters, and gradebooks as one."""
    if path.is_symlink():
        return None
    if path.is_dir():
        name = path.name
    elif is_notebook(path):
        name = path.name[: path.name.casefold().index(".ipynb")]
    elif path.suffix.casefold() == ".zip":
        name = path.stem
    else:
        return None
    return unicodedata.normalize("NFC", name) or None


def _problem(student: str, target: Path, time: datetime, update: bool) -> str | None:
    """Say why a submission is not placed; None if it can be."""
    if problem := problem_with_id(student):
        return f"{problem}: rename the file"
    if not target.exists():
        return None
    if not update:
        return f"{student} has submitted already: --update replaces that, if it is older"
    there = _stamp(target / TIMESTAMP)
    if there is not None and there >= time:
        return f"{student} has submitted at {_written(there)}, not before this"
    return None


def _stamp(path: Path) -> datetime | None:
    """Read the time of a submission; None if there is none that can be read."""
    try:
        return moment(path.read_text(encoding="utf-8").strip())
    except (OSError, ValueError, OverflowError):
        return None


def _place(paths: list[Path], target: Path, time: datetime) -> None:
    """Put a student's files where `nbgrader collect` would: all of them, or none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=".placing-"))
    draft.chmod(0o755)
    for path in paths:
        if path.is_dir():
            shutil.copytree(path, draft, symlinks=True, dirs_exist_ok=True)
        else:
            name = f"{target.name}.ipynb" if is_notebook(path) else path.name
            shutil.copyfile(path, draft / name)
    for name in (TIMESTAMP, SECRET):  # nbgrader's own; a student may have written them
        (draft / name).unlink(missing_ok=True)
    (draft / TIMESTAMP).write_text(_written(time), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    os.replace(draft, target)


def _changed(path: Path) -> datetime:
    """Say when a file was last changed, or any of a folder's."""
    inside = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else []
    newest = max(p.stat().st_mtime for p in inside or [path])
    return datetime.fromtimestamp(newest, UTC)


def _written(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
