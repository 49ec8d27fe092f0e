"""`python -m autograder viva 05_attention ada`: five questions about a student's own code.

Each question changes one line of what the student has submitted, and asks what that would change.
The answers are computed: the changed submission runs in the sandbox, through the same checks.
"""

import argparse
import difflib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from autograder.assignment import CourseError, assignments, course_folder
from autograder.author.mutants import Change, changes
from autograder.classroom.challenge import steps_of
from autograder.classroom.reports.templates import template
from autograder.grade.batch.cluster import Cluster
from autograder.grade.batch.workers import Task, on_dask, run
from autograder.grade.errors import GradingError
from autograder.grade.judging.verdict import Step, write
from autograder.grade.kernel import sandbox
from autograder.grade.kernel.sandbox_files import sandbox_files
from autograder.grade.submission.plan import Planned
from autograder.grade.submission.submission import Course, Submission
from autograder.hidden import load_hidden
from course_pkg.checking.registry import CHECKS, find

QUESTIONS = 5
TRIED = 25  # changes of one student's code that are judged, at most
HARMLESS = 1  # questions whose answer is that no check fails, at most


@dataclass(frozen=True)
class Question:
    """A change of a line, and what comes of it.

    Attributes:
        exercise: whose code is changed.
        line: the number of the line in the student's cell, and its text.
        change: what it would say instead; empty where it would be left out.
        failed: the properties that the changed code no longer has.
        checks: how many were looked at.
    """

    exercise: str
    line: int
    before: str
    change: str
    failed: list[str]
    checks: int


@dataclass(frozen=True)
class Sheet:
    """A student's page; without questions, why there are none."""

    student: str
    questions: list[Question]
    reason: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="NN_topic")
    parser.add_argument("students", nargs="*", metavar="student", help="default: everybody")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: the cores")
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")


def main(arguments: argparse.Namespace) -> int:
    """Write a page with a sheet for each student; print the questions of a single one.

    Raises:
        CourseError: a student has submitted nothing, or nothing can be judged.
    """
    (assignment,) = assignments([arguments.assignment])
    course = Course(course_folder(arguments.course))
    folders = course.submitted.glob(f"*/{assignment.name}")
    handed_in = sorted(folder.parent.name for folder in folders)
    for student in arguments.students:
        if student not in handed_in:
            known = ", ".join(handed_in) or "nobody"
            raise CourseError(f"{student} has not submitted {assignment.name}; {known} has")
    try:
        sandbox.demand()
        students = arguments.students or handed_in
        tasks = [_task(Submission(course, assignment.name, student)) for student in students]
        if not tasks:
            raise GradingError(f"nobody has submitted {assignment.name}")
        sandbox_files(assignment)  # once, before workers ask for it
        cluster = Cluster(max(1, min(arguments.workers, len(tasks))))
        results = on_dask(tasks, assignment, cluster, tqdm.write, sheet)
        sheets = [
            found if isinstance(found, Sheet) else Sheet(task.student, [], str(found))
            for task, found in tqdm(results, total=len(tasks), disable=None, unit="student")
        ]
    except GradingError as error:
        raise CourseError(f"There are no questions: {error}") from None
    sheets.sort(key=lambda each: each.student)
    place = course.work / f"viva_{assignment.name}.html"
    write(place, page(assignment.name, sheets))
    if len(sheets) == 1:
        print(as_text(sheets[0]))
    for each in sheets:
        if each.reason:
            print(f"{each.student}: {each.reason}")
    print(place.relative_to(course.root))
    return 0


def _task(submission: Submission) -> Task:
    """Read a submission; one that cannot be read has no cells."""
    course, name, steps = submission.course, submission.assignment, steps_of(submission)
    files = {path: place.read_bytes() for path, place in submission.files.items()} if steps else {}
    return Task(submission.student, name, submission.plan, steps, files, course.inputs, False)


def sheet(task: Task) -> Sheet:
    """Find questions about what a student has solved.

    The same submission gives the same questions: chance is drawn from the student's name.
    """
    failed = run(task).failed
    solved = {
        name: step
        for step in task.steps
        if (name := _exercise(task, step)) and not failed.get(name)
    }
    chance = random.Random(f"{task.assignment} {task.student}")
    rounds: dict[str, list[Change]] = {}
    for name, step in solved.items():
        found = list(changes(step.source, own_lines(step, task.plan.cells[name])))
        rounds[name] = chance.sample(found, len(found))
    questions: list[Question] = []
    spare: list[Question] = []
    for name, change in _in_turns(rounds, chance):
        if len(questions) == QUESTIONS:
            break
        question = _ask(task, solved[name], change)
        is_used = (question.exercise, question.line) in {(q.exercise, q.line) for q in questions}
        harmless = sum(not q.failed for q in questions)
        everything = len(question.failed) == question.checks
        if is_used or everything or (not question.failed and harmless == HARMLESS):
            spare.append(question)
        else:
            questions.append(question)
    questions += spare[: QUESTIONS - len(questions)]
    reason = "" if questions else "no exercise passes all of its checks, so there is nothing to ask"
    return Sheet(task.student, questions, reason)


def own_lines(step: Step, planned: Planned) -> set[int]:
    """Number the lines of a cell that were not in it when it was released."""
    given, now = planned.released.splitlines(), step.source.splitlines()
    matched = difflib.SequenceMatcher(None, given, now, autojunk=False).get_matching_blocks()
    old = {line for block in matched for line in range(block.b, block.b + block.size)}
    return {number for number in range(1, len(now) + 1) if number - 1 not in old}


def _exercise(task: Task, step: Step) -> str | None:
    """Name the exercise that a cell solves."""
    planned = task.plan.cells.get(step.name or "")
    is_solution = planned is not None and planned.is_written_by_students
    return step.name if is_solution and step.name in task.plan.exercises else None


def _in_turns(
    rounds: dict[str, list[Change]], chance: random.Random
) -> Iterator[tuple[str, Change]]:
    """Take a change of each exercise in turn, beginning with any."""
    names = chance.sample(sorted(rounds), len(rounds))
    tried = 0
    while any(rounds.values()) and tried < TRIED:
        for name in names:
            if rounds[name] and tried < TRIED:
                tried += 1
                yield name, rounds[name].pop()


def _ask(task: Task, step: Step, change: Change) -> Question:
    """Judge a submission in which one line is changed, by the checks of that exercise alone."""
    exercise = _exercise(task, step)
    assert exercise is not None
    planned = task.plan.cells.values()
    others = {cell.name for cell in planned if cell.exercise not in (None, exercise)}
    steps = [
        Step(each.name, change.source) if each is step else each
        for each in task.steps
        if each.name not in others
    ]
    failed = run(replace(task, steps=steps)).failed.get(exercise, [])
    found = find(exercise)
    load_hidden(found)
    checks = CHECKS[found]
    sentences = [f"{name}: {checks[name].title}" if name in checks else name for name in failed]
    before = step.source.splitlines()[change.line - 1].strip()
    return Question(exercise, change.line, before, change.after, sentences, len(checks))


def page(assignment: str, sheets: list[Sheet]) -> str:
    """Make a page, which needs no other file, with a printed page for each student."""
    return template("viva.html.j2").render(assignment=assignment, sheets=sheets)


def as_text(sheet: Sheet) -> str:
    """Lay the questions of one student out for a terminal."""
    lines = []
    for number, question in enumerate(sheet.questions, start=1):
        instead = f"it said\n      {question.change}" if question.change else "it were left out"
        lines += [
            f"{number}. {question.exercise}, line {question.line} of your cell:",
            f"      {question.before}",
            f"   Suppose {instead}",
            "   Would a check fail? Which property is lost, and why?",
        ]
        lost = question.failed or ["no check fails"]
        lines += [f"   → {each}" for each in lost] + [""]
    return "\n".join(lines)
