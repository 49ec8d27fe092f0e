"""A student's submission of an assignment, and how it comes to its verdict."""

import contextlib
import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from traitlets.config import PyFileConfigLoader

from autograder.assignment import Assignment
from autograder.bounded import OutOfTime, bounded_time
from autograder.grade.errors import KernelDied
from autograder.grade.judging.judge import Judging
from autograder.grade.judging.verdict import Step, Store, Verdict, key, steps
from autograder.grade.submission.choice import choose
from autograder.grade.submission.files import files_of
from autograder.grade.submission.mend import mend
from autograder.grade.submission.plan import Plan
from autograder.grade.submission.reading import Notebook

CONFIG = "nbgrader_config.py"
INPUTS = "inputs"  # the file with the number of a course's random inputs
READING = 60.0  # seconds of the processor's time; reading an honest submission takes .1


@dataclass(frozen=True)
class Course:
    """Where the submissions of a course lie, and what is made of them."""

    root: Path

    @property
    def work(self) -> Path:
        return self.root / "autograder" / "course"

    @property
    def submitted(self) -> Path:
        return self.work / "submitted"

    @property
    def aside(self) -> Path:
        return self.work / "set_aside"

    @functools.cached_property
    def inputs(self) -> int:
        """Which random inputs checks draw for points in this course: a secret, drawn once."""
        path = self.work / INPUTS
        if not path.exists():
            draft = path.with_name(f"{INPUTS}-{os.getpid()}")
            draft.touch(0o600)
            draft.write_text(str(1 + secrets.randbelow(2**63)))
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.link(draft, path)
            draft.unlink()
        return int(path.read_text())

    @property
    def carries(self) -> bool:
        """Whether errors are carried forward, as nbgrader_config.py says."""
        path = self.root / CONFIG
        return _carries(path, path.stat().st_mtime_ns if path.exists() else 0)

    @property
    def store(self) -> Store:
        return Store(self.work / "verdicts")

    def plan(self, assignment: str) -> Plan:
        """Read the plan of an assignment."""
        path = self.root / "solutions" / assignment / f"{assignment}.ipynb"
        return _plan(path, path.stat().st_mtime_ns if path.exists() else 0)


@functools.lru_cache(maxsize=16)
def _carries(path: Path, changed: int) -> bool:
    if not changed:
        return True
    config = PyFileConfigLoader(path.name, path=str(path.parent)).load_config()
    return bool(config.Judge.get("carries_errors", True))


@functools.lru_cache(maxsize=16)
def _plan(path: Path, changed: int) -> Plan:
    return Plan.read(path)


@dataclass(frozen=True)
class Submission:
    """What a student has submitted of an assignment."""

    course: Course
    assignment: str
    student: str

    @property
    def plan(self) -> Plan:
        return self.course.plan(self.assignment)

    @property
    def folder(self) -> Path:
        return self.course.submitted / self.student / self.assignment

    @property
    def files(self) -> dict[str, Path]:
        """The files beside the notebook; the assignment's own win over the student's."""
        return files_of(self.folder, self.course.root / "solutions" / self.assignment)

    def notebook(self) -> Notebook:
        """Read the notebook; one without cells, and the reason, if nothing can be read."""
        return choose(self.folder, self.assignment, self.plan)

    def mended(self) -> tuple[Notebook, NotebookNode]:
        """Read the notebook and mend it; one that takes too long counts as unreadable."""
        try:
            with bounded_time(READING):
                found = self.notebook()
                return found, mend(found.cells, self.plan)
        except OutOfTime:
            found = Notebook([], [f"to read it took more than {READING:g} s"])
            return found, mend(found.cells, self.plan)

    def steps(self) -> list[Step]:
        """The code cells of the mended notebook; none that students wrote if it is unreadable."""
        return steps(self.mended()[1])

    def key(self, found: list[Step]) -> str:
        """The hash under which the verdict on those cells is kept."""
        assignment = Assignment(self.assignment)
        return key(found, self.plan, assignment, self.files, self.course.carries)


def verdict_of(
    submission: Submission,
    nb: NotebookNode,
    provisional: bool = False,
    log: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """Look up the verdict on a mended notebook, or judge it now and keep the verdict.

    Args:
        submission: where the notebook comes from.
        nb: the mended notebook.
        provisional: whether a verdict that only says why there is none yet will do.
        log: is told what is judged.
    """
    found = steps(nb)
    place = submission.key(found)
    store = submission.course.store
    verdict = store.load(submission.assignment, place)
    if verdict is None or not (verdict.is_final or provisional):
        log(f"judging {submission.assignment} of {submission.student}")
        verdict = judge(
            submission.assignment,
            submission.plan,
            found,
            submission.files,
            submission.course.inputs,
            submission.course.carries,
        )
        store.save(submission.assignment, place, verdict)
    return verdict


def judge(
    assignment: str,
    plan: Plan,
    found: list[Step],
    files: dict[str, Path],
    inputs: int,
    carries: bool,
) -> Verdict:
    """Judge code cells; a kernel that does not start is tried once more.

    Args:
        assignment: its name.
        plan: its cells.
        found: the code cells of a mended notebook.
        files: what lies beside the notebook, by relative names.
        inputs: which random inputs the checks draw for points.
        carries: whether errors are carried forward.
    Raises:
        KernelDied: no kernel starts.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files.items():
            copy = Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy, follow_symlinks=False)
        judging = functools.partial(
            Judging, Assignment(assignment), plan, Path(folder), inputs, carries
        )
        with contextlib.suppress(KernelDied):
            return judging().judge(found)
        return judging().judge(found)
