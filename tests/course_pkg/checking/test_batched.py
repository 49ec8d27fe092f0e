"""Functions of checks that run beside a student's object; test_proxy runs them from afar."""

import pytest
import torch
from torch import nn

from course_pkg.checking.batched import call_often, made, of_each, together
from course_pkg.checking.guard import Guarded
from course_pkg.checking.telling.failure import Failure


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


def test_what_is_named_otherwise_is_told_by_its_name_and_shape():
    linear = Guarded(nn.Linear, "Linear")
    weights = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    assert made(linear, weights, 3, 2)(torch.ones(1, 3).double()).tolist() == [[4.0, 4.0]]
    with pytest.raises(Failure) as told:
        made(linear, {"weight": torch.ones(3, 2), "b": torch.ones(2)}, 3, 2)
    assert told.value.kinds[0] == "RuntimeError"
    assert told.value.message.splitlines() == [
        "There should be a parameter or buffer called weight, of shape (3, 2); "
        "yours has shape (2, 3).",
        "There should be a parameter or buffer called b, of shape (2,); yours is missing.",
        "There should be no parameter or buffer called bias, yours has shape (2,).",
    ]
    with pytest.raises(Failure, match=r"beside these: 1\.$"):
        made(linear, dict.fromkeys("ab", torch.ones(1)), 3, 2)


def test_what_a_module_refuses_itself_is_told_in_its_words():
    class Refuses(nn.Linear):
        def load_state_dict(self, *args, **kwargs):
            raise OSError("not today")

    weights = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    with pytest.raises(Failure, match="not today"):
        made(Guarded(Refuses, "Refuses"), weights, 3, 2)
