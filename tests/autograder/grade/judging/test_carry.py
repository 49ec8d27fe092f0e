"""Errors carried forward: one mistake costs once, and nothing is had for nothing."""

import json

import nbformat
import pytest

from autograder.assignment import Assignment, assignments
from autograder.grade.judging import judge
from autograder.grade.judging.carry import below, is_borrowed, needed_for, wrong_parts
from autograder.grade.judging.judge import Bounds, Judging
from autograder.grade.judging.verdict import Step, Verdict
from autograder.grade.submission.plan import Plan
from autograder.grade.submission.submission import Course
from autograder.hidden import load_hidden
from autograder.remote.references import Right
from course_pkg.checking.registry import CHECKS, find
from course_pkg.checking.telling.failure import Failure
from course_pkg.checking.telling.report import WIDTH, Outcome, Report
from tests import course as toolbox
from tests.course import needs_sandbox

LSTM = Assignment("02_lstm")
SWAPPED = {"lstm_step": ("i, f, o, g = ", "i, f, g, o = ")}
UNSOLVED = ("", "")
pytestmark = pytest.mark.xdist_group("sandbox")


def judged(name: str, checked: list[str], changes: dict[str, tuple[str, str]], **settings):
    """Judge some exercises of a solved notebook, in which something else stands in some.

    Args:
        name: the assignment.
        checked: the exercises.
        changes: by exercise, what the right solution says and what this one says instead; "" and
            "" for one that is not solved, and "" and a source for another one.
        settings: of judging.
    """
    plan = Plan.read(Assignment(name).solved)
    steps = [
        Step(cell.name, _changed(cell, changes.get(cell.name)))
        for cell in plan.cells.values()
        if cell.cell_type == "code" and not cell.is_experiment
        if cell.exercise is None or cell.exercise in checked
    ]
    return Judging(Assignment(name), plan, **settings).judge(steps)


def _changed(cell, change: tuple[str, str] | None) -> str:
    if change is None:
        return cell.source
    if change == UNSOLVED:
        return cell.released
    right, wrong = change
    assert not right or cell.source.count(right) == 1
    return cell.source.replace(right, wrong) if right else wrong


def lost(name: str, verdict: Verdict) -> set[str]:
    """Name the exercises that have not got all their points."""
    cells = Plan.read(Assignment(name).solved).cells
    return {cells[n].exercise for n, points in verdict.points.items() if points < cells[n].points}


def shown(verdict: Verdict) -> str:
    """What the last cell shows that shows something."""
    return [text for cell in verdict.outputs if (text := "".join(o.get("text", "") for o in cell))][
        -1
    ]


@needs_sandbox
@pytest.mark.parametrize("inputs", [0, 7])
def test_a_swapped_line_costs_the_points_of_its_exercise(inputs):
    both = ["lstm_step", "LSTM"]
    verdict = judged("02_lstm", both, SWAPPED, inputs=inputs)
    alone = judged("02_lstm", ["lstm_step"], SWAPPED, inputs=inputs)
    assert verdict.points == {**alone.points, "check_LSTM": 6.0}
    assert verdict.points["check_lstm_step"] == 0  # what is left passes without computing, too
    assert verdict.carried == {"LSTM": ["lstm_step"]}
    assert list(verdict.failed) == ["lstm_step"] and verdict.notes == {}
    assert " ".join(shown(verdict).split()).endswith(
        "! With a right lstm_step in place of yours, all checks of your LSTM pass: its points are "
        "counted. Begin with lstm_step."
    )
    assert max(map(len, shown(verdict).splitlines())) <= WIDTH


@needs_sandbox
def test_without_the_option_it_costs_what_builds_on_it_too():
    verdict = judged("02_lstm", ["lstm_step", "LSTM"], SWAPPED, carries=False)
    assert verdict.points["check_LSTM"] == 0.0 and verdict.carried == {}
    assert "It uses your lstm_step, whose checks fail: begin there." in shown(verdict)


@needs_sandbox
def test_what_is_not_solved_is_carried_too_and_gives_itself_nothing(monkeypatch):
    asked = []
    monkeypatch.setattr(judge, "Right", lambda *which: asked.append(which) or Right(*which))
    verdict = judged("02_lstm", ["lstm_step", "LSTM"], {"lstm_step": UNSOLVED})
    assert verdict.points == {"check_lstm_step": 0.0, "check_LSTM": 6.0}
    assert asked == [("lstm", ["lstm_step"])]
    asked.clear()
    both = {"lstm_step": UNSOLVED, "LSTM": UNSOLVED}
    assert set(judged("02_lstm", ["lstm_step", "LSTM"], both).points.values()) == {0.0}
    assert not asked  # and an empty submission takes no time


@needs_sandbox
def test_an_own_mistake_costs_its_own_points():
    own = {"LSTM": ("lstm_step(X[:, t], h, c,", "lstm_step(X[:, -1 - t], h, c,")}
    alone = judged("02_lstm", ["lstm_step", "LSTM"], own)
    verdict = judged("02_lstm", ["lstm_step", "LSTM"], {**own, **SWAPPED})
    assert verdict.points["check_LSTM"] == alone.points["check_LSTM"] < 6.0
    assert verdict.failed["LSTM"] == alone.failed["LSTM"]


@needs_sandbox
@pytest.mark.parametrize(
    "name, changes, victims",
    [
        (
            "13_paged_attention",
            {"BlockAllocator": ("self.unused.popleft()", "self.unused[0]")},
            {"PrefixCache": ["BlockAllocator"], "BlockManager": ["BlockAllocator"]},
        ),
        (
            "13_paged_attention",
            {"BlockTable": ("(self.length + count)", "(self.length + count + 1)")},
            {"BlockManager": ["BlockTable"]},
        ),
        (
            "07_transformer",
            {"EncoderLayer": UNSOLVED, "FeedForward": UNSOLVED},
            {"DecoderLayer": ["FeedForward"], "Transformer": ["FeedForward", "EncoderLayer"]},
        ),
    ],
    ids=["a class that others are derived from", "a class", "modules"],
)
def test_classes_are_carried(name, changes, victims):
    verdict = judged(name, [*changes, *victims], changes)
    assert lost(name, verdict) == set(changes)
    assert {part: sorted(parts) for part, parts in verdict.carried.items()} == {
        part: sorted(parts) for part, parts in victims.items()
    }


WRAPPER = """
def recurrent_linear_attention(*args, **kwargs):
    return linear_attention(*args, **kwargs)
"""


@needs_sandbox
def test_no_other_exercise_gives_the_answer_in_its_place():
    """What only the student's solution builds on is not replaced: that would be its answer."""
    names = ["linear_attention", "recurrent_linear_attention"]
    changes = {"linear_attention": UNSOLVED, "recurrent_linear_attention": ("", WRAPPER)}
    verdict = judged("23_linear_attention", names, changes)
    assert set(verdict.points.values()) == {0.0} and verdict.carried == {}


def test_what_a_right_part_passes_in_its_place_is_not_the_students():
    """A class that only derives from a right one passes that much."""
    exercise = find("PreemptingScheduler")
    load_hidden(exercise)

    def report(names: set[str]) -> Report:
        checks = CHECKS[exercise].items()
        found = {name: None if name in names else Failure("It is wrong.") for name, _ in checks}
        return Report(exercise, [Outcome(check, found[name], None) for name, check in checks])

    assert is_borrowed(report({"copies_stay", "enters_as_a_group"}), ["Scheduler"])
    assert not is_borrowed(report({"copies_stay"}), [])
    others = set(CHECKS[exercise]) - {"copies_stay", "enters_as_a_group", "places_for_forks"}
    assert not is_borrowed(report({"copies_stay", *others}), ["Scheduler"])


@needs_sandbox
def test_a_right_answer_that_code_gets_is_no_answer_of_its_own():
    """LSTM keeps the right lstm_step that it is given, where it hopes to find it again."""
    thief = """
class LSTM(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        global lstm_step
        right = lstm_step
        def lstm_step(*args):
            return right(*args)
        __builtins__["stolen"] = right

    def forward(self, X, *rest):
        return X
"""
    changes = {"lstm_step": SWAPPED["lstm_step"], "LSTM": ("", thief)}
    verdict = judged("02_lstm", ["lstm_step", "LSTM", "gru_step"], changes)
    alone = judged("02_lstm", ["lstm_step"], changes)
    assert verdict.points["check_lstm_step"] == alone.points["check_lstm_step"]
    assert verdict.points["check_LSTM"] == 0.0
    assert "gru_step" not in lost("02_lstm", verdict)


@needs_sandbox
@pytest.mark.parametrize(
    "act",
    [
        "lstm_step(*[torch.zeros(2)] * 5)",
        "lstm_step(object(), print, [[]], range(3), None)",
        "while True: lstm_step(*[torch.zeros(1, 1)] * 3, torch.zeros(4, 2), torch.zeros(4))",
        "lstm_step(*[torch.zeros(4000, 4000)] * 5)",
        "(lambda f: f(f))(lambda f: [lstm_step, f(f)])",
        "import os; os._exit(1)",
    ],
    ids=["shapes", "objects", "a flood", "large", "recursion", "the process ends"],
)
def test_hostile_calls_of_a_right_part_cost_their_own_points(act):
    step = ("super().__init__()", f"super().__init__()\n        {act}")
    changes = {"lstm_step": UNSOLVED, "LSTM": step}
    bounds = Bounds(call=1.0, carried=8.0)
    verdict = judged("02_lstm", ["lstm_step", "LSTM", "gru_step"], changes, bounds=bounds)
    assert lost("02_lstm", verdict) == {"lstm_step", "LSTM"}
    assert verdict.points["check_LSTM"] == 0.0
    assert verdict.seconds["carried"] < 60


def test_only_what_the_reference_builds_on_is_replaced():
    step, whole = find("lstm_step"), find("LSTM")
    assert below(whole) == {"lstm_step"} and below(step) == frozenset()
    uses = "class LSTM:\n    def forward(self, x):\n        return helper(x)"
    helper = "def helper(x):\n    return lstm_step(x), gru_step(x)"
    wrong = {"lstm_step", "gru_step"}
    assert wrong_parts(whole, [helper, uses], [], wrong) == ["lstm_step"]
    assert wrong_parts(whole, [uses], [], wrong) == []
    assert wrong_parts(whole, [helper, uses], [], set()) == []
    find("CachedGPT")
    assert needed_for("kv_cache", ["CachedAttention"]) == ["KVCache", "CachedAttention"]


def test_every_reference_builds_on_exercises_of_its_assignment():
    for assignment in assignments():
        for exercise in [e for e in CHECKS if e.module == assignment.topic]:
            assert exercise.name not in below(exercise)


@needs_sandbox
def test_the_journal_the_report_and_feedback_say_so(tmp_path):
    root = toolbox.new_course(tmp_path, LSTM, _two_exercises)
    nb = nbformat.read(root / "solutions" / LSTM.name / f"{LSTM.name}.ipynb", as_version=4)
    for cell in nb.cells:
        cell.source = cell.source.replace(*SWAPPED["lstm_step"])
    toolbox.submit(root, "ada", LSTM, nb)
    toolbox.nbgrader(root, "autograde", LSTM.name)
    found = toolbox.scores(root, "ada", LSTM)
    assert found["LSTM"] == 6.0 and found["lstm_step"] < 5.0
    lines = (Course(root).work / "journal.jsonl").read_text().splitlines()
    why = {entry["exercise"]: entry["why"] for entry in map(json.loads, lines)}
    assert why["LSTM"] == "graded; with a right lstm_step in place of the student's"
    assert why["lstm_step"] == "graded"

    path = root / "nbgrader_config.py"
    path.write_text(path.read_text().replace("carries_errors = True", "carries_errors = False"))
    toolbox.nbgrader(root, "autograde", LSTM.name, "--force")
    assert toolbox.scores(root, "ada", LSTM)["LSTM"] == 0.0


def _two_exercises(nb):
    kept = ("lstm_step", "check_lstm_step", "LSTM", "check_LSTM")
    nb.cells = [c for c in nb.cells if c.id in kept or "course_pkg import" in c.source]
    return nb
