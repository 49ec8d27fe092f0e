"""The scores that a gradebook holds, each under a name that a person understands."""

from typing import NamedTuple

from nbgrader import api
from sqlalchemy import select

BY_CHECKS, BY_HAND, EXTRA, LATE = "by checks", "by hand", "extra credit", "late penalty"
DIGITS = 4  # that count: penalties are computed anew each time


class Place(NamedTuple):
    """Which score of whom: its exercise or question, and who gives it; a penalty has no exercise.

    A regrade that changes nothing is noted as one of the whole submission.
    """

    student: str
    assignment: str
    exercise: str
    kind: str


Scores = dict[Place, float]


def read(gradebook: api.Gradebook, student: str | None = None) -> Scores:
    """Read the scores of a student in all assignments, or everybody's; what has none is left out.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the gradebook cannot be read.
    """
    found: Scores = {}
    grade, submission, notebook = api.Grade, api.SubmittedAssignment, api.SubmittedNotebook
    query = (
        select(
            submission.student_id,
            api.Assignment.name,
            api.GradeCell.name,
            grade.auto_score,
            grade.manual_score,
            grade.extra_credit,
        )
        .join(notebook, grade.notebook_id == notebook.id)
        .join(submission, notebook.assignment_id == submission.id)
        .join(api.Assignment, submission.assignment_id == api.Assignment.id)
        .join(api.GradeCell, grade.cell_id == api.GradeCell.id)
    )
    if student is not None:
        query = query.where(submission.student_id == student)
    for who, assignment, cell, *scores in gradebook.db.execute(query):
        for kind, score in zip((BY_CHECKS, BY_HAND, EXTRA), scores, strict=True):
            if score is not None:
                found[Place(who, assignment, exercise_of(cell), kind)] = round(score, DIGITS)
    penalties = (
        select(submission.student_id, api.Assignment.name, notebook.late_submission_penalty)
        .join(submission, notebook.assignment_id == submission.id)
        .join(api.Assignment, submission.assignment_id == api.Assignment.id)
    )
    if student is not None:
        penalties = penalties.where(submission.student_id == student)
    for who, assignment, penalty in gradebook.db.execute(penalties):
        if penalty:
            found[Place(who, assignment, "", LATE)] = round(penalty, DIGITS)
    return found


def counted(scores: Scores, student: str, assignment: str, exercise: str) -> float:
    """Give what an exercise counts: points by hand in place of the checks', and extra credit."""

    def points(kind: str) -> float | None:
        return scores.get(Place(student, assignment, exercise, kind))

    by_hand = points(BY_HAND)
    given = points(BY_CHECKS) if by_hand is None else by_hand
    return (given or 0.0) + (points(EXTRA) or 0.0)


def exercise_of(cell: str) -> str:
    """Name the exercise of a graded cell, or the question, as the builder names cells."""
    return cell.removeprefix("check_")
