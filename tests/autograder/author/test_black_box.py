"""Black boxes: they train as well, one letter is right, and only arguments that show it count."""

import re

import pytest
import torch

from autograder.assignment import Assignment, assignments
from autograder.author import black_box as runs
from autograder.author.depends import code_alone
from autograder.author.examination import examine, exercises
from autograder.black_boxes import BLACK_BOXES, black_box
from course_pkg import black_box as opened
from course_pkg.checking.registry import Exercise
from course_pkg.checking.runner import run_here
from course_pkg.lstm import gru_step, gru_step_fault

for _assignment in assignments():
    exercises(_assignment.topic)
BOXED = [assignment for assignment in assignments() if assignment.topic in BLACK_BOXES]
HEADING = "## One that trains as well\n"


@pytest.mark.parametrize("assignment", BOXED, ids=lambda assignment: assignment.name)
def test_no_curve_shows_it(assignment):
    kept = runs.load(assignment)
    assert kept["mistake"] == BLACK_BOXES[assignment.topic].bug.name
    text = " ".join(assignment.master.read_text(encoding="utf-8").split())
    right, wrong = kept["curves"][runs.RIGHT], kept["curves"][runs.BOX]
    assert len(right) == len(wrong) == len(runs.SEEDS)
    for ours, theirs in zip(right, wrong, strict=True):
        assert (ours == theirs) == ("as with yours, to the last digit" in text)
        assert (ours[0] - theirs[-1]) / (ours[0] - ours[-1]) > 0.9
    if "no claim in this notebook notices" in text:
        assert kept["fallen"] == []
    assert ("Only one claim falls" in text) <= (len(kept["fallen"]) == 1)
    assert len(kept["fallen"]) <= 0.1 * kept["claims"]


@pytest.mark.parametrize("assignment", BOXED, ids=lambda assignment: assignment.name)
def test_the_notebook_shows_the_curves_and_five_sentences(assignment):
    text = assignment.master.read_text(encoding="utf-8")
    assert text.count(HEADING) == 1
    section = text.partition(HEADING)[2].partition("\n## ")[0]
    box = BLACK_BOXES[assignment.topic]
    assert f"]({runs.picture(assignment).name})" in section
    assert f'`black_box("{box.exercise.name}")`' in section
    assert f'exercise="{box.exercise.name}_fault" points=2' in section
    assert re.findall(r"^- \*\*([A-Z])\*\*: ", section, re.MULTILINE) == list("ABCDE")
    drawn = runs.picture(assignment).read_text(encoding="utf-8")
    assert drawn == runs.draw(assignment, box)


@pytest.mark.parametrize("assignment", BOXED, ids=lambda assignment: assignment.name)
def test_a_box_needs_no_other_exercise(assignment):
    """On a student's machine those are stubs."""
    box = BLACK_BOXES[assignment.topic]
    others = {exercise.name for exercise in exercises(assignment.topic)} - {box.exercise.name}
    assert not others & set(re.findall(r"\w+", code_alone(box.source)))
    assert opened(box.exercise.name).__name__ == box.exercise.name


def test_there_is_no_such_box():
    with pytest.raises(LookupError, match="no black box of 'gru'"):
        opened("gru")
    with pytest.raises(ValueError, match="gru_step has no known mistake 'none'"):
        black_box(gru_step, "none", curve="x", label="x")
    assert Assignment("02_lstm") in BOXED


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "should return (letter, arguments)"),
        (("F", ()), "The letter should be one of A to E, yours is 'F'."),
        (("D", 3), "The arguments should be a tuple, yours are 3."),
        (("D", (1, 2)), "gru_step raised TypeError"),
        (("D", (torch.zeros(2, 3),) * 6), "gru_step raised RuntimeError"),
        (
            ("D", [torch.zeros(*s) for s in ((1, 1), (1, 1), (3, 1), (3, 1), (3,), (3,))]),
            "With these arguments the black box gives what is right",
        ),
        (("A", gru_step_fault()[1]), "'A' is not what is wrong with the black box."),
    ],
)
def test_what_is_wrong_with_an_answer_is_told(answer, said):
    report = examine(Exercise.of(gru_step_fault), lambda: answer)
    assert said in " ".join(report.text.split()) and not report.passed


@pytest.mark.parametrize("assignment", BOXED, ids=lambda assignment: assignment.name)
def test_a_check_does_not_tell_what_is_wrong_with_a_box(assignment):
    box = BLACK_BOXES[assignment.topic]
    report = run_here(box.exercise, opened(box.exercise.name))
    assert not report.passed and not any(outcome.cause for outcome in report.outcomes)
    assert box.bug.sentence not in " ".join(report.text.split())
