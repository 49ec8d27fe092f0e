"""Bring the gradebook in line with the policy: due dates, extensions, penalties."""

from datetime import UTC, datetime

from nbgrader.api import Assignment, Gradebook, SubmittedAssignment
from sqlalchemy.orm import undefer

from autograder.grade.late.lateness import Late, Work, assess
from autograder.grade.late.policy import Policy
from autograder.grade.submission.stamp import YEARS


def decide(gradebook: Gradebook, policy: Policy, student: str | None = None) -> list[Late]:
    """Say who is late and what it costs, and change nothing.

    Args:
        gradebook: what was submitted when, and the points.
        policy: the teacher's rules.
        student: whose submissions; None for everybody's.
    Returns:
        The late submissions, by student and due date.
    """
    works: dict[str, list[Work]] = {}
    for found in _submissions(gradebook, policy, student):
        if _has_time(found):
            submitted = found.timestamp.replace(tzinfo=UTC)  # the gradebook's dates are in UTC
            work = Work(found.student_id, found.name, submitted, found.score)
            works.setdefault(work.student, []).append(work)
    return [late for name in sorted(works) for late in assess(policy, works[name])]


def settle(gradebook: Gradebook, policy: Policy, student: str | None = None) -> list[Late]:
    """Write due dates, extensions and penalties into the gradebook.

    Of one student all assignments are settled: a later one may take slip days from an earlier one.

    Args:
        gradebook: is changed.
        policy: the teacher's rules.
        student: whose submissions; None for everybody's.
    Returns:
        The late submissions, by student and due date.
    """
    named = Assignment.name.in_(policy.due)
    for assignment in gradebook.db.query(Assignment).filter(named):
        assignment.duedate = _utc(policy.due[assignment.name])
    found = decide(gradebook, policy, student)
    shares = {(late.work.student, late.work.assignment): float(late.share) for late in found}
    for submission in _submissions(gradebook, policy, student):
        name, who = submission.name, submission.student_id
        extension = _utc(policy.due_for(name, who)) - _utc(policy.due[name])
        submission.extension = extension or None
        share = shares.get((who, name), 0.0)
        for notebook in submission.notebooks:
            notebook.late_submission_penalty = notebook.score * share or None
    gradebook.db.commit()
    return found


def untimed(gradebook: Gradebook, policy: Policy) -> list[tuple[str, str]]:
    """List the students and assignments of submissions without a time, which count as in time."""
    found = _submissions(gradebook, policy, None)
    return [(each.student_id, each.name) for each in found if not _has_time(each)]


def _has_time(submission: SubmittedAssignment) -> bool:
    return submission.timestamp is not None and submission.timestamp.year in YEARS


def _submissions(
    gradebook: Gradebook, policy: Policy, student: str | None
) -> list[SubmittedAssignment]:
    """The submissions of assignments that have a due date in the policy."""
    query = (
        gradebook.db.query(SubmittedAssignment)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .filter(Assignment.name.in_(policy.due))
        .order_by(SubmittedAssignment.student_id, Assignment.name)
        .options(undefer(SubmittedAssignment.score))
    )
    if student is not None:
        query = query.filter(SubmittedAssignment.student_id == student)
    return query.all()


def _utc(moment: datetime) -> datetime:
    """Write a moment as the gradebook does: in UTC, and without saying so."""
    return moment.astimezone(UTC).replace(tzinfo=None)
