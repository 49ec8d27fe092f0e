"""A verdict: what grading one submission found, kept under a hash of all it depends on."""

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_output

from autograder.assignment import ROOT, Assignment
from autograder.grade.kernel.sandbox_files import sources_hash
from autograder.grade.submission.plan import Plan

_FORMAT = 3
COURSE = "the course's files"
_PACKAGES = ("torch", "numpy", "ipykernel", "matplotlib", "triton")


@dataclass(frozen=True)
class Step:
    """A code cell of a mended notebook: its planned name if it has one, and its source."""

    name: str | None
    source: str


@dataclass
class Verdict:
    """What grading found.

    Args:
        outputs: the outputs of each code cell.
        points: by graded cell.
        notes: why a person should look, by graded cell; under "" for the whole submission.
        seconds: where the time went.
        is_final: whether judging again would find the same.
        failed: the names of the checks that failed, by exercise.
        carried: by exercise, the parts with whose right solutions it has earned its points.
    """

    outputs: list[list[dict]]
    points: dict[str, float]
    notes: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    is_final: bool = True
    failed: dict[str, list[str]] = field(default_factory=dict)
    carried: dict[str, list[str]] = field(default_factory=dict)


def steps(nb: NotebookNode) -> list[Step]:
    """List the code cells of a mended notebook."""
    return [
        Step(cell.metadata.get("nbgrader", {}).get("grade_id"), cell.source)
        for cell in nb.cells
        if cell.cell_type == "code"
    ]


def key(
    found: list[Step], plan: Plan, assignment: Assignment, files: dict[str, Path], carries: bool
) -> str:
    """Hash what a verdict depends on: submission, assignment, checks, versions, the option."""
    own = [[step.name, step.source if is_students(step, plan) else ""] for step in found]
    digest = hashlib.sha256(json.dumps(own).encode())
    digest.update(json.dumps([sys.version, versions(assignment), carries]).encode())
    digest.update(json.dumps([[p.name, p.source, p.points] for p in plan.cells.values()]).encode())
    for name, path in sorted(files.items()):
        digest.update(os.fsencode(name) + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def is_students(step: Step, plan: Plan) -> bool:
    """Say whether students write a cell, or a student has added it."""
    return step.name not in plan.cells or plan.cells[step.name].is_written_by_students


def trusted_files(assignment: Assignment) -> list[Path]:
    """List the files of the grader that a verdict depends on: all but what comes after it."""
    package = ROOT / "autograder"
    after = {package / "grade" / "late", package / "grade" / "journal"}
    paths = [*package.glob("*.py")]
    for name in ("grade", "handout", "remote"):
        found = sorted((package / name).rglob("*.py"))
        paths += [path for path in found if not after & {*path.parents}]
    own = package / "assignments" / assignment.topic
    names = ("hidden.py", f"data/{assignment.name}.npz", f"data/{assignment.name}.json")
    return paths + [own / name for name in names if (own / name).exists()]


@functools.cache
def versions(assignment: Assignment) -> dict[str, str]:
    """Say, by name, what verdicts depend on besides submissions and the plan."""
    digest = hashlib.sha256(f"{_FORMAT} {sources_hash(assignment)}".encode())
    for path in sorted(trusted_files(assignment)):
        digest.update(path.read_bytes())
    found = {COURSE: digest.hexdigest(), "Python": platform.python_version()}
    return found | {name: _installed(name) for name in _PACKAGES}


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # some systems have no triton
        return "none"


class Store:
    """Verdicts on disk, one file each; a file is there whole or not at all.

    Args:
        folder: where they lie.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def path(self, assignment: str, key: str) -> Path:
        """Say where a verdict lies."""
        return self._folder / assignment / f"{key}.json"

    def load(self, assignment: str, key: str) -> Verdict | None:
        """Look up a verdict; None when there is none, or the file is damaged."""
        try:
            return Verdict(**json.loads(self.path(assignment, key).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def save(self, assignment: str, key: str, verdict: Verdict) -> None:
        """Keep a verdict."""
        write(self.path(assignment, key), json.dumps(asdict(verdict)))


def write(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def insert(verdict: Verdict, nb: NotebookNode) -> None:
    """Write the outputs of a verdict into the notebook that it is about.

    To nbgrader, a graded cell without outputs is right, so one without a verdict gets an error.
    """
    cells = [cell for cell in nb.cells if cell.cell_type == "code"]
    for number, (cell, outputs) in enumerate(zip(cells, verdict.outputs, strict=True), 1):
        cell.outputs = [nbformat.from_dict(output) for output in outputs]
        cell.execution_count = number
        meta = cell.metadata.get("nbgrader", {})
        if meta.get("grade") and meta.get("grade_id") not in verdict.points:
            reason = verdict.notes.get("", "there is no verdict")
            cell.outputs = [
                new_output("error", ename="NotGraded", evalue=reason, traceback=[reason])
            ]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
