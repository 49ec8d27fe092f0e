"""In every assignment a perfect, an empty and a buggy submission get exactly what they should.

02_lstm is graded in test_nbgrader, in a whole cycle of nbgrader's commands.
"""

import nbformat
import pytest

from autograder.assignment import assignments
from tests import course


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "assignment",
    [assignment for assignment in assignments() if assignment.topic != "lstm"],
    ids=lambda assignment: assignment.name,
)
def test_scores(assignment, tmp_path):
    root = course.new_course(tmp_path, assignment)
    empty = nbformat.read(assignment.student, as_version=4)
    course.submit(root, "empty", assignment, empty)
    perfect = nbformat.read(assignment.student, as_version=4)
    course.solve(perfect, assignment)
    course.answer(perfect)
    course.submit(root, "perfect", assignment, perfect)
    expected = course.spoil(perfect, assignment)
    course.submit(root, "buggy", assignment, perfect)

    course.nbgrader(root, "autograde", assignment.name)

    others = dict.fromkeys(course.questions(assignment)) | course.without_checks(assignment)
    full = {**course.points(assignment), **others}
    assert course.scores(root, "perfect", assignment) == full
    assert course.scores(root, "empty", assignment) == dict.fromkeys(full, 0)
    assert course.scores(root, "buggy", assignment) == pytest.approx({**expected, **others})
