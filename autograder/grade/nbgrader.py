"""The engine in nbgrader's own places, which nbgrader_config.py names.

    Autograde.exporter_class            reads submissions that nbgrader cannot read
    Autograde.pre_convert_hook          sets aside what does not belong in a submission
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

from autograder.grade.judging import carry
from autograder.grade.judging.repair import KEY
from autograder.grade.judging.verdict import insert
from autograder.grade.kernel import sandbox
from autograder.grade.late.unchanged import keep_time
from autograder.grade.submission.files import clean
from autograder.grade.submission.submission import Course, Submission, verdict_of

# In nbconvert's resources:
NOTES = "course_notes"  # why a person should look at a submission
FAILED = "course_failed"  # the names of the checks that failed, by exercise
CARRIED = "course_carried"  # the parts that were replaced where errors are carried forward


class SubmissionExporter(NotebookExporter):
    """Accept whatever was submitted, also what nbformat cannot read."""

    def __init__(self, *, parent: BaseConverter, **kwargs):
        """Put students whose notebook is missing on nbgrader's list: they get scores too."""
        super().__init__(parent=parent, **kwargs)
        names = parent.coursedir
        for folder in glob.glob(parent._format_source(names.assignment_id, names.student_id)):
            expected = str(Path(folder, f"{Path(folder).name}.ipynb"))
            parent.assignments.setdefault(folder, [expected])

    def from_filename(self, filename: str, resources: dict | None = None, **kwargs):
        """Read what this course has made of a submission; that itself is read by Mend."""
        if not getattr(self.parent, "_sanitizing", False):
            return super().from_filename(filename, resources, **kwargs)
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
        submission = self.submission(resources)
        found, nb = submission.mended()
        if found.doubts:
            nb.metadata["course"] = {"doubts": "; ".join(found.doubts)}
        what = "Graded" if found.cells else "Nothing could be graded"
        if told := "; ".join([*found.remarks, *found.doubts]):
            nb.cells.insert(0, new_markdown_cell(f"**{what}:** {told}."))
        return nb, resources


class Judge(Execute, _Step):
    """Take the outputs of the cells from a verdict; in nbgrader's chain it replaces Execute."""

    provisional = Bool(
        False, help="Whether a verdict that only says why there is none yet will do."
    ).tag(config=True)
    carries_errors = Bool(
        True, help="Whether what builds on a wrong part is judged with a right one, too."
    ).tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict, **kwargs):
        """Look up the verdict, or judge the submission now.

        Raises:
            SandboxMissing: this machine has no sandbox.
        """
        submission = self.submission(resources)
        reason = nb.metadata.get("course", {}).get("doubts")
        resources[NOTES] = {"": f"{reason}." if reason else ""}
        if sandbox.is_off():
            print(sandbox.WARNING, file=sys.stderr)
            return super().preprocess(nb, resources, **kwargs)
        verdict = verdict_of(submission, nb, self.provisional, self.log.info)
        insert(verdict, nb)
        whole = " ".join(filter(None, (resources[NOTES][""], verdict.notes.get(""))))
        resources[NOTES] |= verdict.notes | {"": whole}
        resources[FAILED] = verdict.failed
        resources[CARRIED] = verdict.carried
        return nb, resources


class Mark(_Step):
    """Tell a person, in the gradebook, which submissions need one, and why."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Flag the scores and write the reason where graders and students read comments.

        What is noted about one cell is in its output already. The notebook says which checks
        failed, for those who look for the submissions that a wrong check has cost points, and
        where errors were carried forward.
        """
        if FAILED in resources:
            nb.metadata["course"] = {KEY: resources[FAILED], carry.KEY: resources[CARRIED]}
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
    clean(folder, assignment, course.aside / folder.parent.name / assignment)
    notebooks[:] = [str(folder / f"{assignment}.ipynb")]
    submission = Submission(course, assignment, folder.parent.name)
    keep_time(submission, submission.mended()[1])
