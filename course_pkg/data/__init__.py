"""The course's data: seeded and synthetic, made when asked, so that it works offline."""

from course_pkg.data.recall import adding_problem, echo, latch, recall_first

__all__ = ["adding_problem", "echo", "latch", "recall_first"]
