"""Why a report cannot be made; each text says what was found, what was expected, what to do."""

from autograder.grade.errors import GradingError


class ReportError(GradingError):
    """A report cannot be made."""


class UnknownAssignment(ReportError):
    """The course has no assignment of that name."""


class NothingCollected(ReportError):
    """Nobody's work is here."""


class NothingGraded(ReportError):
    """Work is here, but no scores."""


class ForeignGradebook(ReportError):
    """The gradebook is for another course, or another version of the assignment."""
