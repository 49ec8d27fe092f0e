"""The policy in nbgrader's own places, which nbgrader_config.py names.

AssignLatePenalties.plugin_class       LatePolicy, which answers what a late notebook loses
Autograde.autograde_preprocessors      SettleLateness, before AssignLatePenalties
GenerateFeedback.preprocessors         SettleLateness, before GetGrades
"""

from pathlib import Path

from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.plugins import LateSubmissionPlugin
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Unicode

from autograder.grade.late.lateness import sentence
from autograder.grade.late.policy import read
from autograder.grade.late.settle import decide, settle

LATENESS = "course_lateness"  # in nbconvert's resources: what is said to a student who was late
_COURSE = "The course's folder, which holds autograder/course/policy.toml."


class LatePolicy(LateSubmissionPlugin):
    """Answer as policy.toml says; where it says nothing, as nbgrader's own plug-in."""

    course = Unicode(".", help=_COURSE).tag(config=True)

    def late_submission_penalty(
        self, student_id: str, score: float, total_seconds_late: float
    ) -> float | None:
        """Say how many points a notebook loses.

        nbgrader passes no assignment, and slip days depend on the others; so both come from the
        preprocessor that asks, which nbgrader makes the plug-in's parent.

        Raises:
            PolicyError: policy.toml cannot be used.
        """
        policy = read(Path(self.course))
        assignment = self.parent.assignment_id
        if policy is None or assignment not in policy.due:
            return super().late_submission_penalty(student_id, score, total_seconds_late)
        for late in decide(self.parent.gradebook, policy, student_id):
            if late.work.assignment == assignment:
                return score * float(late.share) or None
        return None


class SettleLateness(NbGraderPreprocessor):
    """Settle the student's penalties; nbgrader asks its plug-in only past the gradebook's dates."""

    course = Unicode(".", help=_COURSE).tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Change the gradebook, and leave a sentence for feedback if this notebook is late.

        Raises:
            PolicyError: policy.toml cannot be used.
        """
        policy = read(Path(self.course))
        if policy is not None:
            names = resources["nbgrader"]
            with Gradebook(names["db_url"]) as gradebook:
                found = settle(gradebook, policy, names["student"])
            own = [late for late in found if late.work.assignment == names["assignment"]]
            resources[LATENESS] = sentence(own[0]) if own else ""
        return nb, resources
