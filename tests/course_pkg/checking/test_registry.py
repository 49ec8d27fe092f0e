"""The registry: no check takes another's place, and an exercise is found without looking far."""

import subprocess
import sys

import pytest

from autograder.assignment import ROOT
from course_pkg.checking.registry import CHECKS, check, find
from course_pkg.lstm import lstm_step


def test_a_second_check_of_the_same_name_is_refused():
    exercise = find("lstm_step")
    before = dict(CHECKS[exercise])

    def values(step, case):
        """takes the place of another"""

    with pytest.raises(ValueError, match=r"lstm_step has two checks called values, in .*lstm:\d+"):
        check(lstm_step)(values)
    assert CHECKS[exercise] == before
    check(lstm_step)(before["values"].run)  # its own place, as when a module is loaded again
    assert CHECKS[exercise].keys() == before.keys()
    CHECKS[exercise] = before


def test_an_exercise_is_found_in_its_own_module():
    text = """if True:
        import sys
        from course_pkg.checking.registry import find
        assert find("gru_step").module == "lstm"
        print(*sorted(name for name in sys.modules if name.startswith("course_pkg.checks.")))
    """
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["course_pkg.checks.lstm"], done.stderr


def test_an_exercise_that_was_not_built_is_found_too(monkeypatch):
    monkeypatch.setattr("course_pkg.checking.registry.outline", lambda topic: {})
    assert find("gru_step").module == "lstm"
    with pytest.raises(LookupError, match="no exercise is called 'gru_stop'; there is gru_step"):
        find("gru_stop")
