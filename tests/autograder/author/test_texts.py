"""Each exercise has its hints, and each notebook ends with an open task."""

import re

import pytest

from autograder.assignment import assignments
from autograder.author.master import ExerciseFence, Text, parts

pytestmark = pytest.mark.parametrize(
    "assignment", assignments(), ids=lambda assignment: assignment.name
)


def test_each_exercise_has_two_or_three_hints_and_the_first_one_asks(assignment):
    for part in parts(assignment.master):
        if isinstance(part, ExerciseFence):
            assert len(part.hints) in (2, 3), part.name
            assert "?" in part.hints[0], part.name


def test_an_open_task_stands_between_the_questions_and_further_reading(assignment):
    last = parts(assignment.master)[-1]
    assert isinstance(last, Text)
    assert re.fullmatch(r"## Go further\n\n.+\n\n## Further reading\n\n.+", last.source, re.DOTALL)
