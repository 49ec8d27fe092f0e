"""Points given by hand in the formgrader, written into the journal as they are given."""

import contextlib
from pathlib import Path

from nbgrader.api import Grade
from sqlalchemy import event

from autograder.grade.journal.journal import GIVEN, journal_of
from autograder.grade.journal.scores import BY_HAND, DIGITS, EXTRA, Place, exercise_of


def watch(work: Path) -> None:
    """Write down which points this process gives by hand; it is the formgrader's server.

    A journal that cannot be written stops nobody from grading: the change is found later.

    Args:
        work: the course's work folder, autograder/course.
    """

    def note(_mapper, _connection, grade: Grade) -> None:
        submission = grade.notebook.assignment
        place = Place(submission.student_id, submission.name, exercise_of(grade.name), BY_HAND)
        journal = journal_of(work)
        for kind, points in ((BY_HAND, grade.manual_score), (EXTRA, grade.extra_credit)):
            with contextlib.suppress(OSError, ValueError):
                # The page sends text.
                number = None if points is None else round(float(points), DIGITS)
                journal.change(place._replace(kind=kind), number, GIVEN)

    event.listen(Grade, "after_update", note)
