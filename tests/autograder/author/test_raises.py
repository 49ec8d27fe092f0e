"""Every error that the docstring of an exercise promises is asked for by a check.

By `case.raises`, in a program in which the oracle raises it, or, of a test, by a wrong solution.
"""

import importlib
import inspect
import re
from collections import Counter

import pytest

from autograder.assignment import assignments
from autograder.author.examination import examine, exercises
from course_pkg.checking.case import Case
from course_pkg.checking.programs import programs
from course_pkg.checking.registry import Exercise
from course_pkg.checks import judge

EXERCISES = [exercise for each in assignments() for exercise in exercises(each.topic)]
ENTRY = re.compile(r"    (\w+): ")


def promised(text: str | None) -> list[str]:
    """List the exceptions in the "Raises" section of a docstring, one for each line."""
    found, is_inside = [], False
    for line in inspect.cleandoc(text or "").splitlines():
        if line and not line.startswith(" "):
            is_inside = line.startswith("Raises")
        elif is_inside and (entry := ENTRY.match(line)):
            found.append(entry[1])
    return found


def reference_of(exercise: Exercise):
    return getattr(importlib.import_module(f"course_pkg.{exercise.module}"), exercise.name)


def docstrings(reference) -> list[str | None]:
    members = vars(reference).values() if inspect.isclass(reference) else []
    return [reference.__doc__, *(m.__doc__ for m in members if inspect.isfunction(m))]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_each_promised_error_is_asked_for(monkeypatch, exercise):
    reference = reference_of(exercise)
    wanted = Counter(kind for text in docstrings(reference) for kind in promised(text))
    if not wanted:
        return
    asked = set()
    raises = Case.raises

    def noted(case, kind, call, when):
        asked.add((kind.__name__, when))
        return raises(case, kind, call, when)

    difference = programs._difference

    def noted_in_program(given, expected):
        for result in (step.result for step in expected):
            if isinstance(result, dict) and "raised" in result:
                asked.add((result["raised"][0], re.sub(r"\d+", "n", result["message"])))
        return difference(given, expected)

    is_alarm = judge.is_alarm

    def noted_alarm(verdict):
        if is_alarm(verdict):
            asked.add(("AssertionError", "a solution is wrong"))
        return is_alarm(verdict)

    monkeypatch.setattr(Case, "raises", noted)
    monkeypatch.setattr(judge, "is_alarm", noted_alarm)
    monkeypatch.setattr(programs, "_difference", noted_in_program)
    assert examine(exercise, reference).passed
    missing = wanted - Counter(kind for kind, _ in asked)
    assert not missing, "a line of Raises that no check asks for"


def test_promises_are_found():
    text = """Do it.

    Args:
        x: a number
            ValueError: this is none.
    Raises (when called):
        ValueError: x is 0, or
            too large.
        KeyError: x is 1.
    Returns:
        OSError: nor is this.
    """
    assert promised(text) == ["ValueError", "KeyError"]
    assert len(EXERCISES) > 100
