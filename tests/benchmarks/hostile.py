"""The hostile suite against plain nbgrader: `python -m tests.benchmarks.hostile`.

Each submission is graded alone, by `nbgrader autograde` as it comes, in a copy of the course; the
whole of nbgrader runs in bubblewrap, so that nothing worse happens than a wrong score. Network and
other students are out of reach there, and so these attacks count as held off.
"""

import argparse
import collections
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from nbgrader.api import MissingEntry
from sqlalchemy.exc import SQLAlchemyError

from autograder.assignment import ROOT
from autograder.grade.kernel.sandbox import Limits
from autograder.grade.kernel.watch import Watch
from tests.benchmarks.grading import make_plain
from tests.course import WORK
from tests.hostile.course import HONEST, LSTM, POINTS, make, scores

SECONDS = 120
KINDS = ("attack", "accident", "empty", "suspect", "fair")


def main() -> None:
    """Print what each submission gets, and how many of each kind get what they should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["honest", "folder", *KINDS], help="a part")
    kinds = parser.parse_args().kinds
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "course")
        root.mkdir()
        expected = make(root, Path(folder, "canary"), 9)
        make_plain(root)
        counts = {kind: collections.Counter() for kind in kinds}
        for student, should in expected.items():
            if (kind := kind_of(student)) in counts:
                found = grade(root, student)
                outcome = compare(found, should)
                counts[kind][outcome] += 1
                print(f"{student}: {outcome}: {found}", flush=True)
        for kind, outcomes in counts.items():
            print(f"{kind}, {outcomes.total()} submissions:", dict(outcomes))


def kind_of(student: str) -> str:
    """Say which part of the suite a submission belongs to."""
    if student == HONEST:
        return "honest"
    return next((kind for kind in KINDS if student.startswith(f"{kind}-")), "folder")


def compare(found: dict | None, should: dict) -> str:
    """Put into words how scores differ from what they should be."""
    if found is None:
        return "no score"
    part = [name for name, points in should.items() if points is None]
    high = POINTS | should | {name: POINTS[name] - 1e-9 for name in part}
    low = should | dict.fromkeys(part, 1e-9)
    if any(found[name] is not None and found[name] > high[name] for name in should):
        return "too many points"
    if None in found.values():
        return "no score"
    few = any(found[name] < low[name] for name in should)
    return "too few points" if few else "as it should be"


def grade(root: Path, student: str) -> dict[str, float | None] | None:
    """Grade one submission in a copy of the course."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "course")
        shutil.copytree(root, copy, symlinks=True, ignore=_others(student))
        command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
        command += ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        command += ["--bind", str(copy), str(root), "--chdir", str(root), "--"]
        command += ["prlimit", "--as=17179869184", "--fsize=41943040", "--"]
        command += [sys.executable, "-m", "nbgrader", "autograde", LSTM.name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COURSE_DEVICE": "cpu"}
        environment |= {"PYTHONPATH": str(ROOT), "IPYTHONDIR": "/tmp/ipython"}
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

        def kill() -> None:
            os.killpg(process.pid, signal.SIGKILL)

        watch = Watch(process.pid, Path(folder, "none"), Limits(), kill)
        watch.start()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            kill()
            process.wait()
        watch.stop()
        try:
            return scores(copy, student)
        except (MissingEntry, SQLAlchemyError):
            return None


def _others(student: str):
    """Leave out the submissions of others, and devices, which cannot be copied."""

    def ignored(folder: str, names: list[str]) -> list[str]:
        if Path(folder).parts[-3:] == (*WORK.parts, "submitted"):
            return [name for name in names if name != student]
        return [name for name in names if name == "pipe"]

    return ignored


if __name__ == "__main__":
    main()
