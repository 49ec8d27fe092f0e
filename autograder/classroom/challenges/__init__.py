"""Challenges: open tasks with a number, which is measured outside of the student's process.

A challenge is a module named like its topic. A student writes one function, `challenge`; what it
gets and must return is told in the master's last section, and what is measured here.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from autograder.assignment import Assignment, CourseError, assignments

FUNCTION, NAME = "challenge", "challenge_name"  # what students define


class Refused(Exception):
    """An answer that does not count; the message says why, in one sentence."""


class Challenge(ABC):
    """What is measured, and how.

    Attributes:
        measured: what the value is, in words.
        less_is_better: whether small values win.
        digits: after the point; values that are shown as equal share a place.
        seconds: of processor time for all calls of the student's function together.
        baseline_is: what stands behind the function that everybody has, in words.
    """

    measured: ClassVar[str]
    less_is_better: ClassVar[bool]
    digits: ClassVar[int]
    seconds: ClassVar[float]
    baseline_is: ClassVar[str]

    @abstractmethod
    def measure(self, function: Callable[..., Any], secret: int) -> float:
        """Measure a function.

        Args:
            function: the student's, or a stand-in for it; nothing that it returns is trusted.
            secret: what hidden inputs are drawn from.
        Raises:
            Refused: an answer breaks the rules.
        """

    @staticmethod
    @abstractmethod
    def baseline(*args: Any) -> Any:
        """Answer as the notebook's own experiments would."""


def find(assignment: Assignment) -> Challenge:
    """Find the challenge of an assignment.

    Raises:
        CourseError: it has none.
    """
    topics = {path.stem for path in Path(__file__).parent.glob("[a-z]*.py")}
    if assignment.topic not in topics:
        names = [other.name for other in assignments() if other.topic in topics]
        raise CourseError(f"{assignment.name} has no challenge; there is {', '.join(names)}")
    return importlib.import_module(f"{__name__}.{assignment.topic}").CHALLENGE
