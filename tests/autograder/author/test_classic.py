"""What a text warns of as the classic mistake is a known bug of the exercise below it."""

import re

import pytest

from autograder.assignment import Assignment, assignments
from autograder.author.examination import exercises
from autograder.author.master import ExerciseFence, Text, parts
from autograder.mistakes import BUGS

WARNING = re.compile(r"\*\*The classic (mistakes?)\b")


def warnings(assignment: Assignment) -> dict[str, int]:
    """Count, for each exercise, the mistakes that the text above it warns of."""
    found, waiting = {}, 0
    for part in parts(assignment.master):
        if isinstance(part, Text):
            waiting += sum(2 if word == "mistakes" else 1 for word in WARNING.findall(part.source))
        elif isinstance(part, ExerciseFence):
            found[part.name], waiting = waiting, 0
    assert waiting == 0, "a warning below the last exercise"
    return found


@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_each_classic_mistake_is_a_known_bug(assignment):
    known = {
        exercise.name: sum(bug.is_classic for bug in BUGS.get(exercise, []))
        for exercise in exercises(assignment.topic)
    }
    missing = {n: count for n, count in warnings(assignment).items() if known.get(n, 0) < count}
    assert missing == {}, "mark what the text warns of: @bug(…, classic=True)"
