"""Functions of checks that run beside a student's object; test_proxy runs them from afar."""

import pytest

from course_pkg.checking.batched import call_often, of_each, together
from course_pkg.checking.guard import Guarded


def test_at_home_they_are_what_they_are():
    for student in (divmod, Guarded(divmod, "divmod")):
        assert of_each(student, [(7, 2), (9, 5)]) == [(3, 1), (1, 4)]
        assert call_often(student, 2, 7, 4) == [(1, 3), (1, 3)]
    assert of_each(sorted, [([2, 1],)]) == [[1, 2]]
    assert of_each(dict, [{"a": 1}, {}]) == [{"a": 1}, {}]
    assert of_each.__name__ == "of_each"


def test_others_cannot_be_found_from_afar():
    def within(student):
        return student()

    with pytest.raises(ValueError, match=r"within cannot run beside a student's object"):
        together(within)
    within.__module__, within.__qualname__ = "autograder.assignments.rnn.hidden", "within"
    with pytest.raises(ValueError, match=r"rnn\.hidden\.within cannot .* module of course_pkg"):
        together(within)
    within.__module__ = "course_pkg.checks.rnn"
    assert together(within)(list) == []
