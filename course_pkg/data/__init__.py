"""The course's data: seeded and synthetic, made when asked, so that it works offline."""

from course_pkg.data.memory import adding_problem, recall_first
from course_pkg.data.order import symbol_back

__all__ = ["adding_problem", "recall_first", "symbol_back"]
