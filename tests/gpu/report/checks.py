"""The checks of all assignments, on the device where students' notebooks would compute."""

import importlib
import time
from pathlib import Path

import course_pkg.checks
from course_pkg.checking.registry import CHECKS
from course_pkg.checking.runner import run_here
from tests.benchmarks.attention import DEVICE, ON_GPU
from tests.gpu.report.rows import attempt, row


def topics() -> list[str]:
    """Name the modules of checks."""
    folder = Path(course_pkg.checks.__file__).parent
    return sorted(path.stem for path in folder.glob("[a-z]*.py"))


def one(topic: str) -> None:
    """Run the checks of one module's references."""
    start = time.perf_counter()
    importlib.import_module(f"course_pkg.checks.{topic}")
    reference = importlib.import_module(f"course_pkg.{topic}")
    failed, count = [], 0
    for exercise in [each for each in CHECKS if each.module == topic]:
        solution = getattr(reference, exercise.name)
        report = run_here(exercise, solution, place=DEVICE if ON_GPU else None)
        count += 1
        if not report.passed:
            failed.append(report.text)
    seconds = round(time.perf_counter() - start, 1)
    detail = {"detail": "\n".join(failed)} if failed else {}
    row(f"checks of {topic}", f"{count - len(failed)} of {count} pass", seconds=seconds, **detail)


def main() -> None:
    """Run the checks of all modules."""
    for topic in topics():
        with attempt(f"checks of {topic}"):
            one(topic)


if __name__ == "__main__":
    main()
