"""The journal in nbgrader's own places, which nbgrader_config.py names.

Autograde.autograde_preprocessors      NoticeScores before SaveAutoGrades, NoteScores at the end
"""

from pathlib import Path

from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Unicode

from autograder.grade.journal.journal import journal_of
from autograder.grade.judging.carry import carried_in
from autograder.grade.submission.submission import Course

GRADED = "graded"


class NoticeScores(NbGraderPreprocessor):
    """Write down what was changed elsewhere, so that it is not taken for the grading to come."""

    course = Unicode(".", help="The course's folder.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Compare the journal with the gradebook."""
        names = resources["nbgrader"]
        with Gradebook(names["db_url"]) as gradebook:
            journal_of(Course(Path(self.course)).work).notice(gradebook, names["student"])
        return nb, resources


class NoteScores(NbGraderPreprocessor):
    """Write down which scores have changed, penalties of earlier assignments included."""

    course = Unicode(".", help="The course's folder.").tag(config=True)
    why = Unicode(GRADED, help="The reason that the journal gives.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Compare the journal with the gradebook."""
        names = resources["nbgrader"]
        with Gradebook(names["db_url"]) as gradebook:
            journal = journal_of(Course(Path(self.course)).work)
            journal.note(
                gradebook,
                self.why,
                names["student"],
                graded=names["assignment"],
                carried=carried_in(nb),
            )
        return nb, resources
