"""`make quick`: test what has changed since the last commit, or since a revision, and no more.

Tests are in folders that mirror the packages: a module's tests are those of its name, or, if there
are none, all of its folder. A change of an assignment runs its scoreboard too. Tests that take
minutes run only if they themselves have changed.
"""

import re
import subprocess
import sys
from pathlib import Path

from autograder.assignment import ROOT, assignments
from tests.conftest import SLOW


def changed(since: str) -> list[Path]:
    """List the files that differ from a revision, new ones included."""
    commands = ["git diff --name-only", since], ["git ls-files --others --exclude-standard"]
    found = set()
    for command, *more in commands:
        done = subprocess.run(
            [*command.split(), *more], cwd=ROOT, capture_output=True, text=True, check=True
        )
        found |= set(done.stdout.splitlines())
    return [Path(name) for name in sorted(found)]


def topics(files: list[Path]) -> list[str]:
    """Name the assignments whose reference, checks, mistakes, alternatives or master changed."""
    names = {re.sub(r"^\d\d_", "", file.stem) for file in files} | {
        file.parts[2] for file in files if file.parts[:2] == ("autograder", "assignments")
    }
    return [a.name for a in assignments() if a.topic in names]


def modules(files: list[Path]) -> list[str]:
    """Name the test files and folders that belong to changed files."""
    found = set()
    for file in files:
        if file.parts[0] == "tests" and file.name.startswith("test_"):
            found.add(file)
        elif file.parts[0] in ("course_pkg", "autograder") and file.suffix == ".py":
            own = Path("tests", *file.parts[:-1], f"test_{file.name}")
            found |= {own} if (ROOT / own).exists() else _beside(own)
    return sorted(str(file) for file in found if (ROOT / file).exists())


def _beside(file: Path) -> set[Path]:
    """The tests of a folder, without the slow ones."""
    beside = (ROOT / file.parent).glob("test_*.py")
    return {path.relative_to(ROOT) for path in beside if path.name not in SLOW}


def main() -> int:
    """Check style, then run what the change touches; return the first exit status that is not 0."""
    files = changed(*sys.argv[1:2] or ["HEAD"])
    commands = [["ruff", "check"], ["ruff", "format", "--check"]]
    if names := topics(files):
        commands.append(["autograder", "score", "--fresh", *names])
    commands.append(["pytest", "-n", "auto", "tests/test_layout.py", *modules(files)])
    for command in commands:
        print("==", *command, flush=True)
        if status := subprocess.call([sys.executable, "-m", *command], cwd=ROOT):
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
