"""Which known mistake of an assignment students get as a black box, and the curve that hides it."""

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

from autograder.mistakes import BUGS, Bug, changed
from course_pkg.checking.black_box import LETTERS
from course_pkg.checking.registry import Exercise


@dataclass(frozen=True)
class BlackBox:
    """A known mistake that trains well.

    Args:
        exercise: the exercise that it is a wrong solution of.
        bug: the mistake.
        curve: what to evaluate in the notebook, once it has run, for the losses of a training that
            uses the exercise.
        label: what the losses are.
        over: what they change with.
        after: a name that first stands in the cell after which the losses are there.
    """

    exercise: Exercise
    bug: Bug
    curve: str
    label: str
    over: str
    after: str

    @property
    def source(self) -> str:
        """Its code, under the name of the exercise.

        Raises:
            ValueError: the mistake is no edit of the reference.
        """
        source = inspect.getsource(self.bug.solution)
        if not source.startswith((f"def {self.exercise.name}(", f"class {self.exercise.name}(")):
            raise ValueError(f"the black box {self.bug.name} must be an edit of the reference")
        return source


BLACK_BOXES: dict[str, BlackBox] = {}  # by topic


def black_box(
    reference: Callable,
    mistake: str,
    *,
    curve: str,
    label: str,
    over: str = "training, %",
    after: str | None = None,
) -> None:
    """Make one of the known mistakes of an exercise the black box of its assignment.

    The losses are there after the cell in which the first name of `curve` first stands, unless
    `after` says otherwise.

    Raises:
        ValueError: the exercise has no such mistake.
    """
    exercise = Exercise.of(reference)
    found = [bug for bug in BUGS.get(exercise, []) if bug.name == mistake]
    if not found:
        raise ValueError(f"{exercise.name} has no known mistake {mistake!r}, above this line")
    BLACK_BOXES[exercise.module] = BlackBox(
        exercise, found[0], curve, label, over, after or re.split("[.[]", curve)[0]
    )


def wrong_answers(reference: Callable, letter: str) -> None:
    """Register what is wrong as an answer to every black box: another letter, or another form.

    Args:
        reference: the answer; it ends in `return letter, (…)`, a letter and a tuple.
        letter: the right one.
    """
    for other in LETTERS.replace(letter, ""):
        change, told_by = (f'"{letter}"', f'"{other}"'), f"'{other}' is not what is wrong"
        changed(reference, other, f"the answer is {other}", change, told_by=told_by)
    source = inspect.getsource(reference)
    answer = ast.parse(source).body[0].body[-1].value
    arguments = ast.get_source_segment(source, answer.elts[1])
    no_letter, no_answer = "The letter should be one of A to E", "should return (letter, arguments)"
    no_tuple = "The arguments should be a tuple, yours are 2."
    is_pair = len(answer.elts[1].elts) == 2  # a pair is taken for letter and arguments
    for name, sentence, wrong, told_by in (
        ("sentence", "a sentence stands for its letter", f'"the sentence", {arguments}', no_letter),
        ("bare", "an argument is not in a tuple", f'"{letter}", 2', no_tuple),
        ("result_too", "a result stands beside it", f'"{letter}", {arguments}, 0', no_answer),
        ("only_arguments", "no letter", arguments, no_letter if is_pair else no_answer),
    ):
        change = (f'"{letter}", {arguments}', wrong)
        changed(reference, name, sentence, change, told_by=told_by)


def is_answer(exercise: Exercise) -> bool:
    """Tell whether an exercise asks what is wrong with a black box.

    Any arguments that show it are right, and so are most mutants of the reference's; and which
    letter is right is not told at home.
    """
    box = BLACK_BOXES.get(exercise.module)
    return box is not None and exercise.name == f"{box.exercise.name}_fault"
