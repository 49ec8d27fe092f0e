"""The engine in nbgrader's own places, which nbgrader_config.py names.

    Autograde.exporter_class            reads submissions that nbgrader cannot read
    Autograde.pre_convert_hook          sets aside what does not belong into a submission
    Autograde.sanitize_preprocessors    Mend, before nbgrader's own
    Autograde.autograde_preprocessors   Judge in place of Execute, and Mark after the scores

So `nbgrader autograde`, the formgrader's button and `python -m autograder grade` do the same.
"""

import glob
import sys
from pathlib import Path

from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook
from nbgrader.api import Gradebook
from nbgrader.converters import BaseConverter
from nbgrader.preprocessors import Execute, NbGraderPreprocessor
from traitlets import Bool, Unicode

from autograder.grade import sandbox
from autograder.grade.files import clean
from autograder.grade.mend import mend
from autograder.grade.reading import Unreadable, read
from autograder.grade.submission import Course, Submission, verdict_of
from autograder.grade.verdict import insert

UNREADABLE = "course_unreadable"  # in nbconvert's resources: why a submission cannot be read
SUBMITTED = "course_submitted"  # what was read from it
NOTES = "course_notes"  # why a person should look at it


class SubmissionExporter(NotebookExporter):
    """Read whatever was submitted; what cannot be read becomes an empty notebook."""

    def __init__(self, *, parent: BaseConverter, **kwargs):
        """Put students whose notebook is missing on nbgrader's list: they too get scores."""
        super().__init__(parent=parent, **kwargs)
        names = parent.coursedir
        for folder in glob.glob(parent._format_source(names.assignment_id, names.student_id)):
            expected = str(Path(folder, f"{Path(folder).name}.ipynb"))
            parent.assignments.setdefault(folder, [expected])

    def from_filename(self, filename: str, resources: dict | None = None, **kwargs):
        """Read a submission, or what this course has made of it."""
        if not getattr(self.parent, "_sanitizing", False):
            return super().from_filename(filename, resources, **kwargs)
        resources = dict(resources or {})
        try:
            resources[SUBMITTED] = read(Path(filename))
        except Unreadable as error:
            resources[SUBMITTED], resources[UNREADABLE] = [], str(error)
        return self.from_notebook_node(new_notebook(), resources, **kwargs)


class _Step(NbGraderPreprocessor):
    """A step of grading that knows where the course is."""

    course = Unicode(
        help="The course's folder, which holds solutions/ and autograder/course/."
    ).tag(config=True)

    def submission(self, resources: dict) -> Submission:
        """Say which submission is being graded."""
        names = resources["nbgrader"]
        return Submission(Course(Path(self.course)), names["assignment"], names["student"])


class Mend(_Step):
    """Replace a submitted notebook by one that has the assignment's cells in their order."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Make the notebook that is graded."""
        plan = self.submission(resources).plan
        nb = mend(resources[SUBMITTED], plan)
        if reason := resources.get(UNREADABLE):
            nb.metadata["course"] = {"unreadable": reason}
            nb.cells.insert(0, new_markdown_cell(f"**Nothing could be graded:** {reason}."))
        return nb, resources


class Judge(Execute, _Step):
    """Take the outputs of the cells from a verdict; in nbgrader's chain it stands for Execute."""

    provisional = Bool(
        False, help="Whether a verdict will do that says only why there is none yet."
    ).tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict, **kwargs):
        """Look up the verdict, or judge the submission now.

        Raises:
            SandboxMissing: this machine has no sandbox.
        """
        submission = self.submission(resources)
        reason = nb.metadata.get("course", {}).get("unreadable")
        resources[NOTES] = {"": f"{reason}." if reason else ""}
        if sandbox.is_off():
            print(sandbox.WARNING, file=sys.stderr)
            return super().preprocess(nb, resources, **kwargs)
        verdict = verdict_of(submission, nb, self.provisional, self.log.info)
        insert(verdict, nb)
        resources[NOTES] |= {k: text for k, text in verdict.notes.items() if text}
        return nb, resources


class Mark(_Step):
    """Tell a person, in the gradebook, which submissions need one, and why."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Flag the scores and write the reason where graders and students read comments.

        What is noted about one cell is in its output already.
        """
        notes = {name: text for name, text in resources.get(NOTES, {}).items() if text}
        if notes:
            names = resources["nbgrader"]
            with Gradebook(names["db_url"]) as gradebook:
                found = gradebook.find_submission_notebook(
                    names["notebook"], names["assignment"], names["student"]
                )
                for grade in found.grades:
                    if "" in notes or grade.name in notes:
                        grade.needs_manual_grade = True
                for comment in found.comments[:1] if "" in notes else []:
                    comment.auto_comment = f"Something went wrong while grading: {notes['']}"
                gradebook.db.commit()
        return nb, resources


def clean_submission(*, assignment: str, student: str, notebooks: list[str]) -> None:
    """Clean the submission whose notebooks are about to be graded (nbgrader's hook)."""
    folder = Path(notebooks[0]).parent
    course = Course(Path(folder.anchor, *folder.parts[1 : folder.parts.index("autograder")]))
    submission = Submission(course, assignment, folder.parent.name)
    known = set(submission.plan.cells)
    clean(folder, assignment, course.aside / folder.parent.name / assignment, known)
    notebooks[:] = [str(folder / f"{assignment}.ipynb")]
