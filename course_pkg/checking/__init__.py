"""The machinery of checks: define them, run them, and say what is wrong and why."""

from course_pkg.checking.black_box import black_box
from course_pkg.checking.notebook.claim import claim
from course_pkg.checking.notebook.prediction import predict
from course_pkg.checking.notebook.ready import ready
from course_pkg.checking.runner import check
from course_pkg.checking.telling.progress import progress
from course_pkg.checking.telling.report import CheckFailed

__all__ = ["CheckFailed", "black_box", "check", "claim", "predict", "progress", "ready"]
