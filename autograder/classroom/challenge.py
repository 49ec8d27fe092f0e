"""`python -m autograder challenge`: measure what students submitted for an open task, and rank it.

The page has places, values and the names that students chose, and is made to be shown. The table
also says who they are, and why an attempt does not count: it is for teaching assistants.
"""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import torch
from tqdm import tqdm

from autograder.assignment import Assignment, CourseError, assignments, course_folder
from autograder.classroom import table
from autograder.classroom.attempt import Attempt, chosen_name, measure, secret_of, takes_part
from autograder.classroom.challenges import FUNCTION, Challenge, find
from autograder.classroom.reports.templates import template
from autograder.grade.batch.cluster import Cluster
from autograder.grade.batch.workers import Task, on_dask
from autograder.grade.errors import EndedWorkers, GradingError
from autograder.grade.judging.verdict import Step, write
from autograder.grade.kernel import sandbox
from autograder.grade.kernel.sandbox_files import sandbox_files
from autograder.grade.submission.files import clean
from autograder.grade.submission.submission import Course, Submission
from course_pkg.tools.threads import one_thread

COLUMNS = ("place", "name", "value", "seconds", "student", "reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="NN_topic")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: the cores")
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")


def main(arguments: argparse.Namespace) -> int:
    """Measure all attempts; write the page and the table, and print the table."""
    (assignment,) = assignments([arguments.assignment])
    challenge = find(assignment)
    course = Course(course_folder(arguments.course))
    try:
        sandbox.demand()
        entries = list(measured(course, assignment, arguments.workers))
    except GradingError as error:
        raise CourseError(f"Nothing was measured: {error}") from None
    rows = ranked(entries, challenge)
    value = baseline(challenge, secret_of(course.inputs, assignment.name))
    place = course.work / f"challenge_{assignment.name}"
    texts = {
        ".html": page(assignment, challenge, rows, f"{value:.{challenge.digits}f}"),
        ".csv": table.as_csv([COLUMNS, *(row.columns for row in rows)]),
    }
    for suffix, text in texts.items():
        write(place.with_suffix(suffix), text)
    print(table.in_columns([COLUMNS, *(row.columns for row in rows)]))
    print(f"{challenge.baseline_is}: {value:.{challenge.digits}f} {challenge.measured}")
    for suffix in texts:
        print(place.with_suffix(suffix).relative_to(course.root))
    return 0


@dataclass(frozen=True)
class Entry:
    """A student's attempt, and the name that the student has chosen."""

    student: str
    name: str | None
    attempt: Attempt


@dataclass(frozen=True)
class Row:
    """A line of the table; the place and the value are empty if the attempt does not count."""

    place: str
    name: str
    value: str
    seconds: str
    student: str
    reason: str

    @property
    def columns(self) -> tuple[str, ...]:
        return self.place, self.name, self.value, self.seconds, self.student, self.reason


def measured(course: Course, assignment: Assignment, workers: int) -> Iterator[Entry]:
    """Measure everybody who has written the function.

    Raises:
        GradingError: nobody has, or no worker can be used.
    """
    plan, found = course.plan(assignment.name), {}
    for folder in sorted(course.submitted.glob(f"*/{assignment.name}")):
        steps = steps_of(Submission(course, assignment.name, folder.parent.name))
        if takes_part(steps, plan):
            found[folder.parent.name] = steps
    if not found:
        raise GradingError(f"no submission of {assignment.name} defines {FUNCTION}")
    sandbox_files(assignment)  # once, before workers ask for it
    tasks = [
        Task(student, assignment.name, plan, steps, {}, course.inputs)
        for student, steps in found.items()
    ]
    cluster = Cluster(max(1, min(workers, len(tasks))))
    results = on_dask(tasks, assignment, cluster, tqdm.write, measure)
    for task, result in tqdm(results, total=len(tasks), disable=None, unit="student"):
        if isinstance(result, EndedWorkers):
            result = Attempt(None, reason="it ended the process that measures, twice")
        elif not isinstance(result, Attempt):
            result = Attempt(None, reason=f"measuring it failed: {result}")
        yield Entry(task.student, chosen_name(task.steps, plan), result)


def steps_of(submission: Submission) -> list[Step]:
    """Read a submission, without following its links."""
    name = submission.assignment
    try:
        clean(submission.folder, name, submission.course.aside / submission.student / name)
        return submission.steps()
    except Exception as error:  # about one student: the others have their places
        print(f"{submission.student}: the submission cannot be read: {error}", file=sys.stderr)
        return []


def baseline(challenge: Challenge, secret: int) -> float:
    """Measure the function that everybody has, on the same hidden inputs."""
    with one_thread(), contextlib.redirect_stdout(io.StringIO()):
        torch.manual_seed(0)
        return challenge.measure(challenge.baseline, secret)


def ranked(entries: list[Entry], challenge: Challenge) -> list[Row]:
    """Give places; equal values share one, and attempts that do not count come last.

    Students without a name of their own are anonymous. A name that is already taken is numbered.
    """
    sign = 1 if challenge.less_is_better else -1

    def order(entry: Entry) -> tuple:
        value = entry.attempt.value
        return (value is None, sign * round(value or 0.0, challenge.digits), entry.student)

    rows: list[Row] = []
    taken = set[str]()
    values = [
        round(entry.attempt.value, challenge.digits)
        for entry in entries
        if entry.attempt.value is not None
    ]
    for entry in sorted(entries, key=order):
        name = next(name for name in _names(entry) if name.casefold() not in taken)
        taken.add(name.casefold())
        place = value = ""
        if entry.attempt.value is not None:
            own = round(entry.attempt.value, challenge.digits)
            place = str(1 + sum(sign * other < sign * own for other in values))
            value = f"{own:.{challenge.digits}f}"
        seconds = f"{entry.attempt.seconds:.1f}"
        rows.append(Row(place, name, value, seconds, entry.student, entry.attempt.reason))
    return rows


def _names(entry: Entry) -> Iterator[str]:
    """Give the names under which a student may be shown, the best one first."""
    if entry.name is None:
        return (f"anonymous {number}" for number in count(1))
    return chain([entry.name], (f"{entry.name} ({number})" for number in count(2)))


def page(assignment: Assignment, challenge: Challenge, rows: list[Row], baseline: str) -> str:
    """Make the page, which needs no other file and names no student."""
    shown = [row for row in rows if row.place]
    return template("challenge.html.j2").render(
        assignment=assignment.name, challenge=challenge, rows=shown, baseline=baseline
    )
