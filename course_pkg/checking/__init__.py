"""The machinery of checks: define them, run them, and say what is wrong and why."""

from course_pkg.checking.claim import claim
from course_pkg.checking.prediction import predict
from course_pkg.checking.progress import progress
from course_pkg.checking.ready import ready
from course_pkg.checking.report import CheckFailed
from course_pkg.checking.runner import check

__all__ = ["CheckFailed", "check", "claim", "predict", "progress", "ready"]
