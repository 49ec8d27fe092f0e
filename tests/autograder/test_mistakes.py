"""A mistake is written as an edit of the reference."""

import inspect
import linecache

import pytest

from autograder.mistakes import BUGS, mistakes
from course_pkg.checking.registry import Exercise


def running_sums(x):
    """Sum what has come so far."""
    total, sums = 0, []
    for value in x:
        total = total + value
        sums.append(total)
    return sums


@pytest.fixture
def written(monkeypatch):
    """Register what a table says, and give the mistakes."""
    exercise = Exercise("tests", "running_sums", is_class=False)
    monkeypatch.setattr(Exercise, "of", lambda reference: exercise)
    monkeypatch.setitem(BUGS, exercise, [])

    def write(table):
        mistakes(running_sums, table)
        return BUGS[exercise]

    return write


def test_an_edit_is_one_line_or_several(written):
    found = written(
        """
late: the sum is kept before the value is added
    total = total + value
    sums.append(total)
    → sums.append(total)
      total = total + value
* negative: negative values are left out
    total = total + value
    → if value > 0:
          total = total + value
from_one: the sum starts at one
    total, sums = 0 → total, sums = 1
nothing: nothing is returned
    return sums →
    says: should return
"""
    )
    assert [bug.name for bug in found] == ["late", "negative", "from_one", "nothing"]
    assert [bug.is_classic for bug in found] == [False, True, False, False]
    assert [bug.told_by for bug in found] == [None, None, None, "should return"]
    assert found[0].sentence == "the sum is kept before the value is added"
    outputs = [bug.solution([3, -1, 2]) for bug in found]
    assert outputs == [[0, 3, 2], [3, 3, 5], [4, 3, 5], None]


def test_a_mistake_may_have_several_edits(written):
    (found,) = written(
        """
products: the values are multiplied
    total, sums = 0 → total, sums = 1
    total = total + value
    → total = total * value
"""
    )
    assert found.solution([3, -1, 2]) == [3, -3, -6]
    file = inspect.getsourcefile(found.solution)
    assert "total * value" in "".join(linecache.getlines(file))  # a traceback shows it


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("late: the sum is kept too early\n    sums.append(total)", "neither a name nor an edit"),
        ("late: the sum is kept too early", "neither a name nor an edit"),
        ("late\n    sums → total", "neither a name nor an edit"),
        ("sum: there is another\n    total → sums", "'total' must occur once"),
        ("sum: there is another\n    mean → sums", "occurs 0 times"),
    ],
)
def test_what_is_no_edit_is_refused(written, table, message):
    with pytest.raises(ValueError, match=message):
        written(table)
