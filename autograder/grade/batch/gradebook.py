"""Write verdicts into the gradebook: one process, one student at a time, nbgrader's converter."""

import contextlib
import functools
import glob
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from nbgrader import api
from nbgrader.apps.api import NbGraderAPI
from sqlalchemy import create_engine
from sqlalchemy.exc import SAWarning, SQLAlchemyError
from traitlets.config import PyFileConfigLoader

from autograder.grade.errors import GradingError
from autograder.grade.journal.journal import journal_of
from autograder.grade.journal.plugin import GRADED
from autograder.grade.journal.scores import Scores, read
from autograder.grade.judging.verdict import write
from autograder.grade.submission.files import SET_ASIDE, TIMESTAMP, is_notebook, walk
from autograder.grade.submission.submission import Course, Submission

# What a log or an error has, and what it means.
_SIGNS = {
    "database is locked": "the gradebook is locked by another program: end it, and try again",
    "No space left": "the disk is full",
    "unable to open database": "the gradebook cannot be opened",
    "exists in the database": "the gradebook does not know the assignment: run nbgrader "
    "generate_assignment first",
}


def problem_with_id(student: str) -> str | None:
    """Say why nbgrader cannot work with a student's id; None if it can."""
    if re.search(r"\[.*\]", student):
        return f"the id {student!r} has [ and ], which nbgrader takes for a pattern"
    if "\n" in student:
        return f"the id {student!r} has a line break, at which nbgrader stops reading it"
    if re.search("[\ud800-\udfff]", student):
        return f"the id {student!r} is not written in UTF-8, as the gradebook is"
    return None


def sentence(error: SQLAlchemyError) -> str:
    """Say what is wrong with a gradebook, without the SQL that failed."""
    text = str(getattr(error, "orig", None) or error)
    known = (words for sign, words in _SIGNS.items() if sign in text)
    return next(known, f"the gradebook cannot be used: {text.strip().partition(chr(10))[0]}")


class Recorder:
    """The one writer of a course's gradebook.

    A marker for each student says which submission and which verdict the gradebook holds. It is
    written last: after a kill at any moment, students without one are written again, just the same.

    Args:
        course: the course.
        assignment: the assignment.
        why: the reason that the journal gives for what changes.
    Raises:
        GradingError: the gradebook does not know the assignment.
        sqlalchemy.exc.SQLAlchemyError: the gradebook cannot be read.
    """

    def __init__(self, course: Course, assignment: str, why: str = GRADED):
        os.chdir(course.root)  # nbgrader's directories are relative to it
        config = PyFileConfigLoader("nbgrader_config.py", path=str(course.root)).load_config()
        config.Judge.provisional = True
        config.NoteScores.why = why
        self._api = NbGraderAPI(config=config)
        self._course = course
        self._assignment = assignment
        self._engine = functools.cache(create_engine)
        if glob.escape(str(course.root)) != str(course.root):
            raise GradingError(f"nbgrader finds nothing in {course.root}: its path has one of [*?")
        with self._api.gradebook as gradebook:
            try:
                gradebook.find_assignment(assignment)
            except api.MissingEntry:
                raise GradingError(
                    f"the gradebook does not know {assignment}: run "
                    f"`nbgrader generate_assignment {assignment}` first"
                ) from None

    def graded(self) -> set[str]:
        """List the students who have scores in the gradebook.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the gradebook cannot be read.
        """
        with self._api.gradebook as gradebook:
            found = gradebook.assignment_submissions(self._assignment)
            return {submission.student_id for submission in found}

    def holds(self, submission: Submission, key: str) -> bool:
        """Say whether the gradebook holds this verdict on this submission."""
        try:
            return json.loads(self._marker(submission).read_text()) == _state(submission, key)
        except (OSError, ValueError):
            return False

    def record(self, submission: Submission, key: str | None) -> str | None:
        """Write a student's scores.

        Args:
            submission: the submission.
            key: the verdict's; None when there is none, because nbgrader itself runs the code.
        Returns:
            What went wrong; None if nothing did.
        """
        state = _state(submission, key) if key else None
        self._marker(submission).unlink(missing_ok=True)
        with warnings.catch_warnings(), self._one_engine():
            # nbgrader makes objects that it does not keep; nothing is lost by it.
            warnings.filterwarnings("ignore", "Object of type .* not in session", SAWarning)
            student = glob.escape(submission.student)  # nbgrader takes an id for a pattern
            result = self._api.autograde(self._assignment, student, force=True)
        if not result["success"]:
            return _reason(result)
        if state:
            write(self._marker(submission), json.dumps(state))
        return None

    def scores(self, student: str) -> tuple[float, float, bool]:
        """Look up a student's score, the most there is, and whether a person should look."""
        with self._api.gradebook as gradebook:
            found = gradebook.find_submission(self._assignment, student)
            return found.score, found.max_score, found.needs_manual_grade

    def details(self, student: str) -> tuple[dict[str, float], list[str]]:
        """Look up the checks' score of each cell, and what was noted about the submission."""
        with self._api.gradebook as gradebook:
            name = self._assignment
            found = gradebook.find_submission_notebook(name, name, student)
            scores = {grade.name: grade.auto_score or 0.0 for grade in found.grades}
            notes = {comment.auto_comment for comment in found.comments} - {None, "No response."}
            return scores, sorted(notes)

    def points(self) -> Scores:
        """Look up everybody's scores.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the gradebook cannot be read.
        """
        with self._api.gradebook as gradebook:
            return read(gradebook)

    def notice(self) -> None:
        """Write into the journal what was changed without it.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the gradebook cannot be read.
            OSError: the journal cannot be written.
        """
        with self._api.gradebook as gradebook:
            journal_of(self._course.work).notice(gradebook)

    @contextlib.contextmanager
    def _one_engine(self) -> Iterator[None]:
        """Let nbgrader open the gradebook with an engine that is kept, and its statements with it.

        It opens the gradebook a dozen times for each student, and an engine of SQLAlchemy's
        compiles every statement once. Closing the gradebook closes the connections as before.
        """
        api.create_engine = self._engine
        try:
            yield
        finally:
            api.create_engine = create_engine

    def _marker(self, submission: Submission) -> Path:
        return self._course.work / "graded" / self._assignment / f"{submission.student}.json"


def _state(submission: Submission, key: str) -> dict[str, str]:
    """Hash what the gradebook is written from."""
    verdict = submission.course.store.path(submission.assignment, key)
    names = (TIMESTAMP, SET_ASIDE)
    files = [p for p in walk(submission.folder) if is_notebook(p) or p.name in names]
    paths = {"verdict": verdict} | {str(p.relative_to(submission.folder)): p for p in files}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
        for name, path in paths.items()
    }


def _reason(result: dict) -> str:
    """Find the line of nbgrader's log that says what happened."""
    text = str(result.get("log", "")) + str(result.get("error", ""))
    lines = [line.strip() for line in text.splitlines()]
    for sign, words in _SIGNS.items():
        if sign in text:
            return words
    errors = [line for line in lines if "Error" in line]
    return errors[-1][:300] if errors else "nbgrader could not write the scores"
