"""Our step in nbgrader's exchange, which nbgrader_config.py names: release_feedback."""

import os
import shutil
from pathlib import Path

from nbgrader.exchange.default import ExchangeReleaseFeedback
from nbgrader.utils import notebook_hash

from autograder.grade.submission.files import SECRET


class ReleaseFeedback(ExchangeReleaseFeedback):
    """Release the feedback of all who can fetch it, and name the others.

    Students fetch feedback by the secret of their submission. What came in by hand has none;
    nbgrader's own step ends there, and those after it get nothing.
    """

    def copy_files(self):
        """Copy each page under the name that only its student can compute."""
        excluded = self.coursedir.student_id_exclude.split(",")
        by_hand: list[str] = []
        folders = self._folders()
        if not folders:
            name = self.coursedir.assignment_id
            self.log.warning("No feedback is written: run nbgrader generate_feedback %s", name)
        for folder in folders:
            student = folder.parent.name
            if student in excluded:
                continue
            try:
                secret = (folder / SECRET).read_text()
            except FileNotFoundError:
                secret = ""
            if not secret.strip():
                by_hand.append(student)
                continue
            for page in sorted(folder.glob("*.html")):
                name = notebook_hash(secret=secret, notebook_id=page.stem)
                draft = Path(self.dest_path, f"{name}-tmp.html")
                shutil.copy(page, draft)
                os.replace(draft, draft.with_name(f"{name}.html"))
            self.log.info("Feedback of %s is released", student)
        if by_hand:
            self.log.warning(
                "%s: submitted by hand, so feedback cannot be fetched. Hand back %s",
                ", ".join(by_hand),
                self.coursedir.format_path(
                    self.coursedir.feedback_directory, "STUDENT", self.coursedir.assignment_id
                ),
            )

    def _folders(self) -> list[Path]:
        """List the folders that hold feedback: one student's, or everybody's."""
        chosen, assignment = self.coursedir.student_id, self.coursedir.assignment_id
        root = Path(self.coursedir.root, self.coursedir.feedback_directory)
        students = sorted(root.glob("*")) if chosen in ("", "*") else [root / chosen]
        return [s / assignment for s in students if any((s / assignment).glob("*.html"))]
