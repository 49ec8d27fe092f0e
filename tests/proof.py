"""`make prove`: run the slow tests of assignments that have changed, and note the code that passed.

A test that is marked `in_turn` is one of many alike, one for each assignment or exercise, and takes
seconds or minutes. While an assignment is as it was when all of its own passed, they run once in
some days, not each time; so a run of all tests is short, and what has changed is tested at once.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autograder.assignment import ROOT, Assignment, assignments
from autograder.author import record, turns
from course_pkg.checking.registry import Exercise

MARKER = "in_turn"
ONLY = "COURSE_TEST_ONLY"  # the assignments whose tests in turn are run, and no other test
WAITING = "COURSE_TEST_WAITING"  # the assignments that wait, told to the processes of one run
REASON = f"has not changed since it passed, and has its turn soon: {turns.EVERYTHING}=1 make test"


def path(assignment: Assignment) -> Path:
    """The file that says for which code the tests of an assignment have passed."""
    return ROOT / "tests" / "proven" / f"{assignment.name}.txt"


def code(assignment: Assignment) -> str:
    """Hash what the tests in turn of an assignment test: graders, notebooks, buggy submission."""
    buggy = ROOT / "tests" / "submissions" / f"{assignment.topic}.py"
    files = (each.read_bytes() for each in (assignment.solved, assignment.student, buggy))
    parts = [record.code(assignment), *(hashlib.sha256(each).hexdigest() for each in files)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def holds(assignment: Assignment) -> bool:
    """Tell whether an assignment is as it was when its tests passed."""
    note = path(assignment)
    return note.exists() and note.read_text().strip() == code(assignment)


def of(item: pytest.Item) -> Assignment | None:
    """Find the assignment that a test in turn belongs to, by the parameters of the test."""
    if item.get_closest_marker(MARKER) is None:
        return None
    for value in item.callspec.params.values():
        if isinstance(value, Assignment):
            return value
        if isinstance(value, Exercise):
            return next(each for each in assignments() if each.topic == value.module)
    raise ValueError(f"{item.nodeid} is marked {MARKER}: it needs an assignment or an exercise")


def waits(assignment: Assignment) -> bool:
    """Tell whether the tests of an assignment wait for their turn."""
    if WAITING in os.environ:
        return assignment.name in os.environ[WAITING].split()
    return not turns.is_due(assignment) and holds(assignment)


def tell_processes() -> None:
    """Decide once for all processes of a run which assignments wait."""
    if WAITING not in os.environ:
        os.environ[WAITING] = " ".join(each.name for each in assignments() if waits(each))


def choose(items: list[pytest.Item]) -> list[pytest.Item]:
    """Let tests wait for their turn; keep only some where ONLY names assignments."""
    found = [(item, of(item)) for item in items]
    if names := os.environ.get(ONLY, "").split():
        return [item for item, assignment in found if assignment and assignment.name in names]
    waiting = {assignment for _, assignment in found if assignment and waits(assignment)}
    for item, assignment in found:
        if assignment in waiting:
            item.add_marker(pytest.mark.skip(reason=REASON))
    return items


def skipped_in(results: Path) -> int:
    """Count the tests that were skipped, in a file of JUnit's form."""
    return sum(
        int(suite.get("skipped", 0)) for suite in ElementTree.parse(results).iter("testsuite")
    )


def main() -> int:
    """Prove the named assignments, or all that have changed; return 1 if a test does not pass."""
    found = [each for each in assignments(sys.argv[1:]) if sys.argv[1:] or not holds(each)]
    codes = {each: code(each) for each in found}
    names = " ".join(each.name for each in found)
    if not found:
        print("No assignment has changed since its tests passed.")
        return 0
    print(f"Testing {names} …", flush=True)
    command = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "loadgroup", "tests"]
    results = ROOT / "build" / "proof.xml"
    command += ["-m", MARKER, f"--junitxml={results}"]
    if subprocess.run(command, cwd=ROOT, env={**os.environ, ONLY: names}).returncode:
        return 1
    if skipped := skipped_in(results):
        print(f"Nothing is noted: {skipped} tests were skipped, which proves nothing.")
        return 1
    for assignment, proven in codes.items():
        path(assignment).parent.mkdir(exist_ok=True)
        path(assignment).write_text(f"{proven}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
