"""`python -m autograder regrade`: who asks for it; grading again, and what that changes."""

import argparse
import os
import sys
from pathlib import Path

from nbgrader.api import Gradebook
from sqlalchemy.exc import SQLAlchemyError

from autograder.assignment import CourseError, course_folder
from autograder.classroom.gradebook import opened
from autograder.classroom.journal import score
from autograder.classroom.table import in_columns
from autograder.grade.batch import command
from autograder.grade.batch.gradebook import sentence
from autograder.grade.errors import GradingError
from autograder.grade.journal.journal import REGRADE, journal_of
from autograder.grade.journal.scores import (
    BY_CHECKS,
    BY_HAND,
    Place,
    Scores,
    counted,
    exercise_of,
    read,
)
from autograder.grade.late.policy import read as read_policy
from autograder.grade.late.settle import settle
from autograder.grade.submission.regrade_requests import request
from autograder.grade.submission.submission import Course, Submission


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s NN_topic [student ...] [option ...]"
    parser.add_argument("assignment", metavar="NN_topic")
    parser.add_argument(
        "students", nargs="*", default=[], help="whom to grade again; default: list requests"
    )
    parser.add_argument("--why", default="", metavar="TEXT", help="the reason, for the journal")
    parser.add_argument(
        "--keep-better",
        action="store_true",
        help="where points were given by hand, let the better of these and the checks' count",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: the cores")
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")
    parser.set_defaults(scheduler=None, insecure=False, resources={})
    parser.set_defaults(force=True, since_check=None, json=False)


def main(arguments: argparse.Namespace) -> int:
    """List the requests, or grade again and show what has changed.

    Raises:
        CourseError: the gradebook, the journal or policy.toml cannot be used, or there is no such
            assignment.
    """
    course = Course(course_folder(arguments.course))
    try:
        if not arguments.students:
            return _list(course, arguments.assignment)
        return _regrade(course, arguments)
    except SQLAlchemyError as error:
        raise CourseError(f"Regrading stops: {sentence(error)}") from None
    except (GradingError, OSError) as error:
        raise CourseError(f"Regrading stops: {error}") from None
    except KeyboardInterrupt:
        print("Regrading was interrupted; the same command begins anew.", file=sys.stderr)
        return 130


def _list(course: Course, assignment: str) -> int:
    """Print who asks for what, and when this submission was last graded again."""
    done = {
        entry.student: entry.when.removesuffix("+00:00").replace("T", " ")
        for entry in journal_of(course.work).entries()
        if entry.kind == REGRADE and entry.assignment == assignment
    }
    course.plan(assignment)  # there is such an assignment
    rows = []
    for path in sorted(course.submitted.glob(f"*/{assignment}")):
        student = path.parent.name
        try:
            asked = request(Submission(course, assignment, student).notebook().cells)
        except Exception as error:  # about one student: the others are listed
            asked = f"the submission cannot be read: {error}"
        if asked:
            rows.append((student, done.get(student, ""), asked))
    head = ("student", "regraded (UTC)", "request")
    print(in_columns([head, *rows]) if rows else f"Nobody asks for a regrade of {assignment}.")
    return 0


def _regrade(course: Course, arguments: argparse.Namespace) -> int:
    name, students = arguments.assignment, arguments.students
    why = f"{REGRADE}: {arguments.why}" if arguments.why else REGRADE
    journal = journal_of(course.work)
    with opened(course.root) as gradebook:
        journal.notice(gradebook)
        before = read(gradebook)
    batch = command.Batch(arguments, why)
    status = batch.run()
    students = [student for student in students if student not in batch.failed]
    remarks = []
    with opened(course.root) as gradebook:
        for student in students if arguments.keep_better else []:
            remarks += _keep_better(course, gradebook, Submission(course, name, student), why)
        after = read(gradebook)
    rows = []
    for student in students:
        exercises = [exercise_of(c.name) for c in course.plan(name).cells.values() if c.points]
        rows += [_row(before, after, Place(student, name, e, BY_CHECKS)) for e in exercises]
        sums = [sum(counted(s, student, name, e) for e in exercises) for s in (before, after)]
        rows.append((student, "all", "", "", "", *map(score, sums)))
        journal.add(Place(student, name, "", REGRADE), *sums, why)
    head = ("student", "exercise", "by checks", "now", "by hand", "counted", "counts")
    print("\n".join([in_columns([head, *rows]), *remarks]))
    return status


def _row(before: Scores, after: Scores, place: Place) -> tuple[str, ...]:
    student, assignment, exercise, _ = place
    by_hand = after.get(place._replace(kind=BY_HAND))
    counts = [counted(scores, student, assignment, exercise) for scores in (before, after)]
    points = [before.get(place), after.get(place), by_hand, *counts]
    return (student, exercise, *map(score, points))


def _keep_better(
    course: Course, gradebook: Gradebook, submission: Submission, why: str
) -> list[str]:
    """Take back points given by hand where the checks give more; a person has now decided.

    Not where grading asks for a person, as it does if a solution names what is forbidden: there,
    fewer points than the checks give may be meant.

    Returns:
        What was left as it is, in words.
    """
    name, student = submission.assignment, submission.student
    found = gradebook.find_submission_notebook(name, name, student)
    both = [g for g in found.grades if None not in (g.auto_score, g.manual_score)]
    verdict = course.store.load(name, submission.key(submission.steps()))
    doubted = {} if verdict is None else verdict.notes
    kept = [g for g in both if "" in doubted or g.name in doubted]
    both = [g for g in both if g not in kept]
    worse = [g for g in both if g.auto_score > g.manual_score]
    for grade in both:
        grade.needs_manual_grade = False
    for grade in worse:
        grade.manual_score = None
    gradebook.db.commit()
    journal = journal_of(course.work)
    for grade in worse:
        journal.change(Place(student, name, exercise_of(grade.name), BY_HAND), None, why)
    if policy := read_policy(course.root):
        settle(gradebook, policy, student)
        journal.note(gradebook, why, student)
    return [
        f"{student}: the points by hand stay in {exercise_of(grade.name)}, which waits for a "
        f"person: {doubted.get(grade.name) or doubted['']}"
        for grade in kept
    ]
