"""Which checks may wait for the next ones, and what a process keeps of the checks before."""

import pytest

from autograder.assignment import Assignment
from autograder.grade.judging.judge import Judging
from autograder.grade.judging.solutions import Served
from autograder.grade.judging.verdict import Step
from autograder.grade.judging.waiting import can_wait
from autograder.grade.submission.plan import Plan
from tests.course import RIGHT_BIAS, needs_sandbox

LSTM = Assignment("02_lstm")
PLAN = Plan.read(LSTM.solved)
FIRST, SECOND = "check_gru_step", "check_init_forget_bias"
ABOVE = """\
calls = 0

def gru_step(x):
    return helper(x) + vars(x)["w"]
"""


def waits(source: str, name: str | None = "init_forget_bias") -> bool:
    """Say whether a check waits while a cell runs that comes between it and the next check."""
    given = next(cell for cell in PLAN.cells.values() if "import torch\n" in cell.source)
    above = [Step(given.name, ""), Step(None, ABOVE)]
    steps = [*above, Step(FIRST, ""), Step(name, source), Step(SECOND, "")]
    assert can_wait(steps, PLAN) <= {FIRST}  # nothing comes after the last one
    return bool(can_wait(steps, PLAN))


@pytest.mark.parametrize(
    "source",
    [
        "",
        "'''Only text.'''",
        "def init_forget_bias(b=1, *, c=None):\n    return torch.zeros(b)",
        "async def later(b: nn.Module = None):\n    return b",
        "@functools.lru_cache(4)\ndef init_forget_bias(b):\n    return b",
        "class Layer(nn.Module):\n    '''Text.'''\n    size = 3\n    D: int = 2\n\n"
        "    @property\n    def width(self):\n        return self.size",
        "class Empty(nn.Module):\n    pass",
        "class Layer(gru_step):\n    def f(self, x: gru_step = None) -> gru_step:\n        pass",
        "import torch\nfrom torch import nn\nSIZE, ROWS = 3, [1, -2]",
        "def init_forget_bias(b):\n    x, helper_2 = b, torch\n    return x.eval()",
        "predict('How many?', 'none')",
        "predict('How many?', prediction='none')",
    ],
)
def test_a_check_waits_while_cells_only_define_something_new(source):
    assert waits(source)
    assert waits(source, None)


@pytest.mark.parametrize(
    "source",
    [
        "print(1)",
        "x.y = 3",
        "x[0] = 3",
        "x = y",
        "x += 1",
        "SIZE = len('abc')",
        "del gru_step",
        "import os",
        "pairs = {[1, 2], [3, 4]}",
        "table = {[0]: 1}",
        "predict('x', {[1]})",
        f"y = {'9' * 400} + 1j",
        "y = set()",
        "class Layer:\n    before = calls",
        "class Layer:\n    a, c = calls",
        "def init_forget_bias(b, before=calls):\n    return b",
        "def init_forget_bias(b=calls + 1):\n    return b",
        "def init_forget_bias(b: calls[3]):\n    return b",
        "class Layer(metaclass=calls):\n    pass",
        "class Layer(nn.Module):\n    def __init_subclass__(cls):\n        pass",
        "@(lambda f: f)\ndef init_forget_bias(b):\n    return b",
        "@nn.modules.module.register_module_forward_hook\ndef init_forget_bias(b):\n    return b",
        "def init_forget_bias(b):\n    return globals()['gru' + '_step']",
        "def init_forget_bias(b):\n    return eval('gru_' + 'step')",
        "from __main__ import gru_step as other",
        "def init_forget_bias(b):\n    import __main__ as m\n    return m.gru_step(b)",
        "import torch as nn",
        "from torch import *",
        "%cd /tmp",
        "x = 1\n!rm -r data",
        "%%bash\nrm -r data",
        "x = 1 +",
        "if True:\n    x = 1",
        "def init_forget_bias(b=list()):\n    return b",
        "def init_forget_bias(*, b=(c := 1)):\n    return b",
        "def init_forget_bias(b: print(1)):\n    return b",
        "def init_forget_bias(b) -> print(1):\n    return b",
        "class Layer(nn.Module, size=len('a')):\n    pass",
        "class Layer(type('Base', (), {})):\n    pass",
        "class Layer:\n    print(1)",
        "class Layer:\n    size = len('abc')",
        "class Layer:\n    gru_step.size = 3",
        "class Layer:\n    gru_step.size: int = 3",
        "class Layer:\n    for n in range(3):\n        pass",
        "class Layer:\n    def f(self, x=print(1)):\n        pass",
        "class Layer:\n    class Inner:\n        print(1)",
        "@gru_step\ndef init_forget_bias(b):\n    return b",
        "@torch.compile(gru_step)\nclass Layer:\n    pass",
        "def gru_step(x):\n    return x",
        "def helper(x):\n    return x",
        "w = 3",
        "nn = None",
        "predict('How many?', str(gru_step))",
        "predict = 3",
        "predict('How many?', 'none')\n\ndef predict(*texts):\n    gru_step.size = 3",
    ],
)
def test_a_check_does_not_wait_for_what_may_change_what_it_finds(source):
    assert not waits(source)
    assert not waits(source, None)


def test_experiments_do_not_count_as_they_do_not_run():
    (experiment, *_) = (cell.name for cell in PLAN.cells.values() if cell.is_experiment)
    assert waits("print(1)", experiment)


def test_what_comes_after_a_cell_that_nobody_can_read_does_not_wait():
    steps = [Step(None, "x = 1 +"), Step(FIRST, ""), Step(SECOND, "")]
    assert not can_wait(steps, PLAN)
    assert can_wait(steps[1:], PLAN) == {FIRST}


@pytest.fixture
def forks(monkeypatch) -> list:
    """Collect the processes that answer checks."""
    found: list[Served] = []
    serve = Served.__init__
    monkeypatch.setattr(Served, "__init__", lambda *about: found.append(about[0]) or serve(*about))
    return found


RIGHT_CHRONO = """\
def chrono_bias(b, u, T_max):
    if T_max < 2:
        raise ValueError("T_max is too small")
    b = b.clone()
    H = len(b) // 4
    b[H : 2 * H] = (1 + u * (T_max - 2)).log()
    b[:H] = -b[H : 2 * H]
    return b
"""


def judged(*between: str, first: str = RIGHT_BIAS):
    """Judge two solved exercises with a student's own cells between them."""
    steps = [
        Step("init_forget_bias", first),
        Step("check_init_forget_bias", ""),
        *(Step(None, source) for source in between),
        Step("chrono_bias", RIGHT_CHRONO),
        Step("check_chrono_bias", ""),
    ]
    return Judging(LSTM, PLAN).judge(steps)


@pytest.mark.xdist_group("sandbox")
@needs_sandbox
class TestOneProcess:
    def test_checks_that_pass_share_it(self, forks):
        verdict = judged()
        assert verdict.points == {"check_init_forget_bias": 2.0, "check_chrono_bias": 3.0}
        assert len(forks) == 1
        first, second = (verdict.outputs[place][0]["text"] for place in (1, 3))
        assert "init_forget_bias" in first and "chrono_bias" in second

    def test_a_cell_that_does_something_comes_between_two(self, forks):
        assert sum(judged("print(1)").points.values()) == 5.0
        assert len(forks) == 2

    def test_what_fails_shares_it_with_nothing_after_it(self, forks):
        leaves = "def init_forget_bias(*inputs):\n    global b\n    b = 3"
        verdict = judged(first=leaves)
        assert verdict.points["check_chrono_bias"] == 3.0
        assert len(forks) == 2

    def test_a_name_that_comes_later_is_missed_as_it_would_be_in_order(self):
        wrong = RIGHT_BIAS.replace("def init_forget_bias", "def right") + (
            "\ndef init_forget_bias(*inputs):\n    return later(*inputs)\n"
        )
        verdict = judged("def later(*inputs):\n    return right(*inputs)", first=wrong)
        assert verdict.points == {"check_init_forget_bias": 0.0, "check_chrono_bias": 3.0}
        assert "name 'later' is not defined" in verdict.outputs[1][0]["text"]
