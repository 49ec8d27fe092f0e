"""Plain nbgrader against this course's grading: `python -m tests.benchmarks.grading`.

The same submissions, in turn, on the same machine; the grades must be the same. Time on the clock
depends on what else the machine does, processor time much less.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import nbformat

from autograder.assignment import Assignment, assignments
from autograder.grade.batch.cluster import Cluster
from autograder.grade.batch.workers import Task, on_dask
from autograder.grade.judging.verdict import Verdict
from autograder.grade.submission.submission import Course
from tests import course as toolbox
from tests.benchmarks.measure import Measured, measure


def main() -> None:
    """Print one line for each way, for each assignment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("assignments", nargs="*", metavar="NN_topic", help="default: all")
    parser.add_argument("--students", type=int, default=40)
    parser.add_argument("--plain-students", type=int, help="fewer for the slow way; default: all")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--trivial", type=int, default=0, help="schedule this many and stop")
    arguments = parser.parse_args()
    for assignment in assignments(arguments.assignments):
        if arguments.trivial:
            schedule(assignment, arguments.trivial, max(arguments.workers))
        else:
            compare(assignment, arguments)


def compare(assignment: Assignment, arguments: argparse.Namespace) -> None:
    """Grade the same submissions in each way; the grades must be the same."""
    print(assignment.name)
    plain = arguments.students if arguments.plain_students is None else arguments.plain_students
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder, "template")
        template.mkdir()
        prepare(template, assignment, arguments.students)
        expected = {}
        if plain:
            root = shutil.copytree(template, Path(folder, "plain"))
            for path in sorted((root / toolbox.WORK / "submitted").iterdir())[plain:]:
                shutil.rmtree(path)
            make_plain(root)
            command = [sys.executable, "-m", "nbgrader", "autograde", assignment.name]
            report("plain nbgrader", plain, measure(command, root))
            expected = scores(root, assignment)
        for workers in arguments.workers:
            root = shutil.copytree(template, Path(folder, f"ours-{workers}"))
            command = [sys.executable, "-m", "autograder", "grade", assignment.name]
            taken = measure([*command, "--workers", str(workers)], root)
            report(f"ours, workers: {workers}", arguments.students, taken)
            print("    where the time of the verdicts goes:", shares(root, assignment))
            found = scores(root, assignment)
            assert {s: found[s] for s in expected} == expected, "the grades differ"


def prepare(root: Path, assignment: Assignment, students: int) -> None:
    """Make a course in which students have solved everything, or all but one or two exercises."""
    toolbox.new_course(root, assignment)
    exercises = list(toolbox.points(assignment))
    for number in range(students):
        nb = nbformat.read(assignment.student, as_version=4)
        toolbox.solve(nb, assignment, exercises[: len(exercises) - number % 3])
        own = f"# by student {number}\nassert {number} + 1 > 0"
        nb.cells.append(nbformat.v4.new_code_cell(own))
        toolbox.submit(root, f"student-{number:03}", assignment, nb)


def make_plain(root: Path) -> None:
    """Take the engine out of a course's configuration."""
    with open(root / "nbgrader_config.py", "a", encoding="utf-8") as file:
        file.write('\nc.pop("Autograde")\n')


def report(name: str, students: int, taken: Measured) -> None:
    """Print a line of the table."""
    print(
        f"{name:16} {students:4} submissions  {taken.clock / students:6.2f} s and "
        f"{taken.cpu / students:6.2f} CPU-s each, {taken.memory / 1e6:5.0f} MB at the most",
        flush=True,
    )


def scores(root: Path, assignment: Assignment) -> dict[str, dict]:
    """Look up everybody's scores."""
    with toolbox.gradebook(root) as book:
        students = [s.student_id for s in book.assignment_submissions(assignment.name)]
    return {student: toolbox.scores(root, student, assignment) for student in students}


def shares(root: Path, assignment: Assignment) -> str:
    """Say which parts of the time of all verdicts go where."""
    course, total = Course(root), {}
    for path in (course.work / "verdicts" / assignment.name).glob("*.json"):
        for kind, seconds in course.store.load(assignment.name, path.stem).seconds.items():
            total[kind] = total.get(kind, 0.0) + seconds
    whole = total.pop("all")
    return ", ".join(f"{kind} {seconds / whole:.0%}" for kind, seconds in total.items())


def schedule(assignment: Assignment, count: int, workers: int) -> None:
    """Measure what scheduling alone costs, with submissions that take no time."""
    plan = Course(assignment.solved.parents[2]).plan(assignment.name)
    tasks = (Task(f"student-{n}", assignment.name, plan, [], {}, 0) for n in range(count))
    start = time.perf_counter()
    found = sum(1 for _ in on_dask(tasks, assignment, Cluster(workers), print, nothing))
    assert found == count
    taken = time.perf_counter() - start
    each = f"{1e3 * taken / count:.2f} ms each"
    print(f"{count} trivial submissions, workers: {workers}: {taken:.1f} s, {each}")


def nothing(task: Task) -> Verdict:
    """Judge without doing anything."""
    return Verdict([], {})


if __name__ == "__main__":
    main()
