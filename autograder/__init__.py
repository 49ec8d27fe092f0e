"""What instructors have: builder, hidden checks, known bugs, scoreboard and grading."""

from autograder.grading import grade

__all__ = ["grade"]
