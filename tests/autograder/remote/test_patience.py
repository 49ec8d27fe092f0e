"""What has run out of time once is waited for less, and costs nobody else their points."""

import pytest
import torch

from course_pkg.checking.telling.failure import Failure
from tests.plain_kernel import Notebook

SOURCE = """
def loops():
    while True:
        pass

def fails():
    raise ValueError("at once")

def scale(x, by):
    return x * by
"""
GIVEN_UP = "cannot run: earlier calls ran for too long."


def message_of(call) -> str:
    with pytest.raises(Failure) as caught:
        call()
    return caught.value.message


def test_the_second_call_without_end_has_less_time_and_the_third_none():
    with Notebook(SOURCE, 1.0, left=1.0) as notebook:
        loops, scale = notebook.get("loops"), notebook.get("scale")
        assert message_of(loops) == "loops ran for more than 1 s."
        assert scale(torch.ones(1), 2.0) == 2
        assert message_of(loops) == "loops ran for more than 0.1 s."
        assert message_of(loops) == f"loops {GIVEN_UP}"
        assert message_of(lambda: scale(torch.ones(1), 2.0)) == f"scale {GIVEN_UP}"


def test_the_next_exercise_begins_anew():
    with Notebook(SOURCE, 1.0, left=1.0) as notebook:
        loops = notebook.get("loops")
        for _ in range(3):
            message_of(loops)
        notebook.load("")  # what serves one exercise ends with it
        assert notebook.get("scale")(torch.ones(1), 2.0) == 2
        assert message_of(notebook.get("loops")) == "loops ran for more than 0.1 s."
        with pytest.raises(Failure, match=GIVEN_UP):
            notebook.get("loops")


def test_what_fails_at_once_costs_no_patience():
    with Notebook(SOURCE, 1.0, left=1.0) as notebook:
        fails = notebook.get("fails")
        for _ in range(50):
            assert "ValueError: at once" in message_of(fails)
        assert message_of(notebook.get("loops")) == "loops ran for more than 1 s."
