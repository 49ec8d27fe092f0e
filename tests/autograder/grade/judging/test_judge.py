"""Judging one submission: bounds of time, restarts, and what checks see of a notebook's objects."""

import dataclasses
import time
import zlib

import nbformat
import pytest
import torch

from autograder.assignment import Assignment
from autograder.author.examination import examine, exercises
from autograder.classroom.reports.diagnosis import findings
from autograder.grade.errors import KernelDied
from autograder.grade.judging.judge import SLOW, Bounds, Judging, at_fault
from autograder.grade.judging.solutions import Served, Solutions
from autograder.grade.judging.verdict import Step
from autograder.grade.kernel.kernel import Kernel, start
from autograder.grade.submission.plan import Plan
from autograder.handout.exercise import exercises as sources
from course_pkg.checking.registry import CHECKS, find
from course_pkg.checking.telling.failure import Failure
from course_pkg.checking.telling.report import WIDTH
from course_pkg.checks import lstm as lstm_checks
from course_pkg.lstm import init_forget_bias
from tests.course import RIGHT_BIAS, STUBBORN, needs_sandbox

LSTM = Assignment("02_lstm")
pytestmark = [pytest.mark.xdist_group("sandbox"), needs_sandbox]
SOLUTION = [Step("init_forget_bias", RIGHT_BIAS), Step("check_init_forget_bias", "")]
ENDLESS = """\
import time
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass
"""
LOOP = "while True:\n    pass"


def judge(*sources: str, **bounds):
    """Judge a solved exercise below some cells of a student's own."""
    steps = [Step(None, source) for source in sources] + SOLUTION
    return Judging(LSTM, Plan.read(LSTM.solved), bounds=Bounds(**bounds)).judge(steps)


def judge_around_a_right_one(source: str, **bounds):
    """Judge two exercises that are solved in the same way, and a right solution between them."""
    steps = [
        Step("gru_step", source.format("gru_step")),
        Step("check_gru_step", ""),
        *SOLUTION,
        Step("chrono_bias", source.format("chrono_bias")),
        Step("check_chrono_bias", ""),
    ]
    return Judging(LSTM, Plan.read(LSTM.solved), bounds=Bounds(**bounds)).judge(steps)


def text(cell: list[dict]) -> str:
    return "".join(output.get("text", output.get("evalue", "")) for output in cell)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (
            RIGHT_BIAS.replace("    b[", "      b["),
            "IndentationError: unexpected indent (line 3)",
        ),
        (RIGHT_BIAS.replace("1.0):", "1.0)"), "SyntaxError: expected ':' (line 1)"),
        (RIGHT_BIAS.replace("(b,", "(b: Nothing,"), "NameError: name 'Nothing' is not defined"),
    ],
    ids=["indentation", "syntax", "name"],
)
def test_why_a_solution_is_not_defined(source, error):
    steps = [Step("init_forget_bias", source), Step(None, "init_forget_bias(1)"), SOLUTION[1]]
    verdict = Judging(LSTM, Plan.read(LSTM.solved)).judge(steps)
    said = text(verdict.outputs[2][:1])
    assert said == f"✗ init_forget_bias is not defined.\nIts cell ended with {error}\n"
    (finding,) = findings("init_forget_bias", said)
    assert finding.lines == ["init_forget_bias is not defined.", f"Its cell ended with {error}"]


def test_a_cell_that_cannot_be_stopped_costs_only_itself():
    verdict = judge("kept = 1", ENDLESS, "print('kept', kept)", own=1.0)
    assert "ran for more than" in text(verdict.outputs[1])
    assert text(verdict.outputs[2]) == "kept 1\n"
    assert verdict.points == {"check_init_forget_bias": 2.0}
    assert "A cell did not run to its end" in verdict.notes[""]


def test_own_cells_have_a_bound_together_and_take_nothing_from_solutions():
    verdict = judge(ENDLESS, "print('late')", own=1.0, all_own=1.0)
    assert "could not be interrupted" in text(verdict.outputs[0])
    assert "its own cells ran for more than 1 s" in text(verdict.outputs[1])
    assert verdict.points == {"check_init_forget_bias": 2.0}


def test_a_slow_cell_does_not_run_again_in_a_new_kernel():
    slow = f"import time; time.sleep({SLOW}); slow = 1"
    said = "print([name for name in ('quick', 'slow') if name in globals()])"
    verdict = judge("quick = 1", slow, said, "import os; os._exit(0)", said)
    assert text(verdict.outputs[2]) == "['quick', 'slow']\n"
    assert text(verdict.outputs[4]) == "['quick']\n"
    assert "A cell did not run to its end" in verdict.notes[""]


def test_a_cell_that_was_stopped_is_told_to_a_person():
    verdict = judge("import time\ntime.sleep(20)", "time.sleep(20)", own=2.0, all_own=4.0)
    shown = [output["evalue"] for cell in verdict.outputs[:2] for output in cell[-1:]]
    assert shown == ["it ran for more than 2 s", "it ran for more than 1 s"]
    assert verdict.points == {"check_init_forget_bias": 2.0}
    assert verdict.notes[""] == f"A cell did not run to its end: {shown[1]}."


@pytest.mark.parametrize("loop", [LOOP, STUBBORN], ids=["stops when told to", "does not"])
def test_a_cell_of_the_assignment_that_computes_without_end_has_less(loop):
    steps = [Step("gru_step", loop), Step("chrono_bias", loop), *SOLUTION]
    verdict = Judging(LSTM, Plan.read(LSTM.solved), bounds=Bounds(solution=10.0)).judge(steps)
    first, second = (text(cell[-1:]) for cell in verdict.outputs[:2])
    assert "it ran for more than 10 s, or 2 s of processor time" in first
    assert "it ran for more than 1 s, or 0.2 s of processor time" in second
    assert ("could not be interrupted" in first) == (loop == STUBBORN)
    assert verdict.points == {"check_init_forget_bias": 2.0}


def test_a_stopped_cell_runs_again_in_a_new_kernel_for_a_moment():
    defined = "def helper():\n    return 1\n"
    uses = "helper(); print('there')"
    ends = "import os; os._exit(0)"
    stopped = [Step("gru_step", defined + LOOP)]
    steps = [*stopped, *(Step(None, source) for source in (ends, uses, ends, uses)), *SOLUTION]
    verdict = Judging(LSTM, Plan.read(LSTM.solved), bounds=Bounds(solution=5.0)).judge(steps)
    assert "it ran for more than 5 s" in text(verdict.outputs[0][-1:])
    assert "could not be interrupted" not in text(verdict.outputs[0][-1:])
    assert [text(verdict.outputs[n]) for n in (2, 4)] == ["there\n"] * 2
    assert verdict.points == {"check_init_forget_bias": 2.0}
    assert verdict.seconds["all"] < 30


def test_a_cell_that_ends_a_new_kernel_is_left_out_of_the_next(monkeypatch):
    kernels, run = set(), Kernel.run

    def end_the_second(kernel, source, *limits):
        kernels.add(kernel)
        if len(kernels) == 2 and source == "early = 1":
            kernel.kill()
            raise KernelDied("it ended its Python process")
        return run(kernel, source, *limits)

    monkeypatch.setattr(Kernel, "run", end_the_second)
    verdict = judge("early = 1", "import os; os._exit(0)", "middle = 1", "print(dir())")
    assert "'middle'" in text(verdict.outputs[3]) and "'early'" not in text(verdict.outputs[3])
    assert verdict.points == {"check_init_forget_bias": 2.0}


def test_a_solution_without_end_costs_the_other_exercises_nothing():
    endless = "def {}(*inputs):\n    while True:\n        pass"
    verdict = judge_around_a_right_one(endless, call=2.0)
    assert verdict.points == {
        "check_gru_step": 0.0,
        "check_init_forget_bias": 2.0,
        "check_chrono_bias": 0.0,
    }
    shown = text(verdict.outputs[1])
    assert "gru_step ran for more than 2 s" in shown and "ran for too long" in shown
    assert max(map(len, shown.splitlines())) <= WIDTH
    note = "chrono_bias had 0.2 s for a call, as others ran out of time or ended its process."
    assert verdict.notes == {"check_chrono_bias": note}


def test_a_solution_that_ends_the_process_does_so_a_few_times_only(monkeypatch):
    """Filling the memory ends it too: quickly each time, and all others wait for their grades."""
    forks = []
    serve = Served.__init__
    monkeypatch.setattr(Served, "__init__", lambda *about: forks.append(about) or serve(*about))
    ends = "def {}(*inputs):\n    import os\n    os._exit(1)"
    verdict = judge_around_a_right_one(ends)
    assert verdict.points["check_init_forget_bias"] == 2.0 == sum(verdict.points.values())
    assert (
        len(forks) == 3 + 1 + 1
    )  # the first has three; the right one has one, and so has the last
    assert "ended its process" in verdict.notes["check_chrono_bias"]


def test_slow_cells_leave_time_for_the_solutions_below_them():
    verdict = judge(*["import time; time.sleep(20)"] * 6, "late = 1", own=2.0, all_own=4.0)
    for outputs in verdict.outputs[:6]:
        assert "KeyboardInterrupt" in [output.get("ename") for output in outputs]
    assert verdict.outputs[6] == []
    assert verdict.points == {"check_init_forget_bias": 2.0}


def test_own_cells_do_not_begin_when_their_time_is_over():
    started = []

    def start_and_note(*about):
        started.append(about)
        return start(*about)

    busy = Step(None, "import time; time.sleep(0.1)")
    bounds = Bounds(own=0.3, all_own=0.6)
    judging = Judging(LSTM, Plan.read(LSTM.solved), bounds=bounds, start=start_and_note)
    verdict = judging.judge([busy] * 20 + SOLUTION)
    assert len(started) == 1  # none was stopped, which may take a kernel
    assert "its own cells ran for more than" in text(verdict.outputs[19])
    assert verdict.points == {"check_init_forget_bias": 2.0}


def test_a_new_process_takes_no_time_from_the_cell_that_needs_it():
    started = []

    def slow_to_start_again(*about):
        started.append(about)
        time.sleep(3.0 if len(started) > 1 else 0.0)
        return start(*about)

    steps = [Step(None, "import os; os._exit(1)"), Step(None, "early = 1"), Step(None, "late = 2")]
    bounds = Bounds(own=2.0, all_own=3.0)
    judging = Judging(LSTM, Plan.read(LSTM.solved), bounds=bounds, start=slow_to_start_again)
    verdict = judging.judge(steps + SOLUTION)
    assert len(started) == 2 and verdict.outputs[1:3] == [[], []]
    assert verdict.points == {"check_init_forget_bias": 2.0}


def test_who_computes_nothing_is_told_why_it_earns_nothing():
    zeros = "import torch\ndef chrono_bias(b, *rest, **more):\n    return torch.zeros_like(b)"
    steps = [Step("chrono_bias", zeros), Step("check_chrono_bias", "")]
    verdict = Judging(LSTM, Plan.read(LSTM.solved)).judge(steps)
    shown = text(verdict.outputs[-1])
    assert verdict.points == {"check_chrono_bias": 0.0}
    assert "✓ chrono_bias" in shown and "No points: a solution that computes nothing" in shown
    assert max(map(len, shown.splitlines())) <= WIDTH


# Right solutions of init_forget_bias in other forms, and what stands above them.
FORMS = {
    "a partial": RIGHT_BIAS.replace("(b, ", "(gates, b, ").replace("4", "gates")
    + "import functools\ninit_forget_bias = functools.partial(init_forget_bias, 4)",
    "an instance": "class Bias:\n    def __call__(self, b, value=1.0):\n"
    "        n = len(b) // 4\n        return torch.cat([b[:n], 0 * b[:n] + value, b[2 * n :]])\n"
    "init_forget_bias = Bias()",
    "a module": "class Bias(torch.nn.Module):\n    def forward(self, b, value=1.0):\n"
    "        n = len(b) // 4\n        return torch.cat([b[:n], 0 * b[:n] + value, b[2 * n :]])\n"
    "init_forget_bias = Bias()",
    "TorchScript": "@torch.jit.script\n"
    "def init_forget_bias(b: torch.Tensor, value: float = 1.0) -> torch.Tensor:\n"
    "    b = b.clone()\n    b[b.shape[0] // 4 : b.shape[0] // 2] = value\n    return b",
    "decorated": "import functools\ndef loud(f):\n    @functools.wraps(f)\n"
    "    def inner(*args, **kwargs):\n        print('called')\n        return f(*args, **kwargs)\n"
    f"    return inner\n@loud\n{RIGHT_BIAS}",
    "no_grad": f"@torch.no_grad()\n{RIGHT_BIAS}",
    "a cache": "import functools\n@functools.cache\n" + RIGHT_BIAS,
    "a lambda": "init_forget_bias = lambda b, value=1.0: torch.where("
    "torch.arange(len(b)) // (len(b) // 4) == 1, torch.tensor(value).to(b), b)",
    "a vectorised function": "import numpy as np\ninit_forget_bias = np.vectorize("
    "lambda b, value=1.0: np.concatenate([b[:len(b) // 4], np.full(len(b) // 4, value),"
    " b[len(b) // 2 :]]), signature='(n)->(n)', excluded=['value', 1])",
    "numpy": "def init_forget_bias(b, value=1.0):\n    b = b.numpy().copy()\n"
    "    b[len(b) // 4 : len(b) // 2] = value\n    return b",
    "numpy's float32": "def init_forget_bias(b, value=1.0):\n"
    "    b = b.numpy().astype('float32')\n"
    "    b[len(b) // 4 : len(b) // 2] = value\n    return b",
    "below a magic": f"%%time\n{RIGHT_BIAS}",
    "in a branch": "if True:\n    " + RIGHT_BIAS.replace("\n", "\n    "),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_solution_may_have_another_form(form):
    steps = [Step(None, "import torch"), Step("init_forget_bias", FORMS[form]), SOLUTION[1]]
    verdict = Judging(LSTM, Plan.read(LSTM.solved)).judge(steps)
    assert verdict.points == {"check_init_forget_bias": 2.0}, text(verdict.outputs[-1])


@pytest.mark.parametrize(
    "name",
    "globals print list dict isinstance getattr torch nn check exit quit display get_ipython "
    "course_pkg os sys In Out _ __name__ __builtin__ math data train plot".split(),
)
def test_a_variable_may_have_any_name(name):
    """Below the solution: above it, the student's own function would not work either."""
    verdict = judge_below(f"{name} = 5")
    assert verdict.points == {"check_init_forget_bias": 2.0}, text(verdict.outputs[-1])


def judge_below(source: str):
    steps = [SOLUTION[0], Step(None, source), SOLUTION[1]]
    return Judging(LSTM, Plan.read(LSTM.solved)).judge(steps)


def test_checks_have_a_bound_together():
    slow = "import time\nold = init_forget_bias\n"
    slow += "def init_forget_bias(b, value=1.0):\n    time.sleep(60)\n    return old(b, value)"
    steps = [*SOLUTION[:1], Step(None, slow), SOLUTION[1]]
    bounds = Bounds(checks=1.0)
    verdict = Judging(LSTM, Plan.read(LSTM.solved), bounds=bounds).judge(steps)
    assert verdict.points == {"check_init_forget_bias": 0.0}
    assert "ran for more than" in text(verdict.outputs[-1])
    assert "the time for all calls together is over" in text(verdict.outputs[-1])
    assert verdict.seconds["checks"] < 20


def test_a_submission_has_a_bound():
    verdict = judge("import time; time.sleep(100)", "print('late')", submission=3.0)
    assert verdict.seconds["all"] < 90
    assert "all together took more than 3 s" in text(verdict.outputs[1])
    assert "The time for this exercise is over" in text(verdict.outputs[-1])
    assert verdict.points == {"check_init_forget_bias": 0.0}


def test_a_kernel_is_restarted_a_few_times_only():
    verdict = judge(*["import os; os._exit(1)"] * 3, restarts=1)
    assert "ended its Python process" in verdict.notes[""]
    assert verdict.points == {"check_init_forget_bias": 0.0}


TABLE = """\
real = init_forget_bias

def init_forget_bias(b, value=1.0):
    key = round(float(b.sum()), 9), value
    return real(b, value) if key in KNOWN else b.clone()
"""


def test_answers_to_known_inputs_earn_nothing_and_are_told():
    exercise = next(each for each in exercises("lstm") if each.name == "init_forget_bias")
    known = set()

    def recorded(b, value=1.0):
        known.add((round(float(b.sum()), 9), value))
        return init_forget_bias(b, value)

    assert examine(exercise, recorded).passed
    steps = [SOLUTION[0], Step(None, TABLE.replace("KNOWN", repr(known))), SOLUTION[1]]
    plan = Plan.read(LSTM.solved)
    assert Judging(LSTM, plan).judge(steps).points == {"check_init_forget_bias": 2.0}
    verdict = Judging(LSTM, plan, inputs=7).judge(steps)
    assert verdict.points["check_init_forget_bias"] < 1.0
    assert "passes with those that students have (" in verdict.notes["check_init_forget_bias"]
    assert "should be" not in text(verdict.outputs[-1])  # nothing that could be written down


def test_a_check_that_rejects_the_reference_with_some_inputs_costs_nobody_anything(monkeypatch):
    exercise = find("init_forget_bias")
    at_home = zlib.crc32(b"init_forget_bias.unlucky")

    def unlucky(student, case):
        case.that(case.generator.initial_seed() == at_home, "These inputs are not for this check.")

    checks = CHECKS[exercise]
    one = dataclasses.replace(next(iter(checks.values())), name="unlucky", run=unlucky, single=())
    monkeypatch.setitem(CHECKS, exercise, {**checks, "unlucky": one})
    verdict = Judging(LSTM, Plan.read(LSTM.solved), inputs=8).judge(SOLUTION)
    assert at_fault(exercise, 8) == {"unlucky"}
    assert verdict.points == {"check_init_forget_bias": 2.0}
    assert verdict.notes == {}


def test_honest_solutions_pass_and_known_mistakes_are_named_with_other_inputs():
    plan = Plan.read(LSTM.solved)
    assert Judging(LSTM, plan, inputs=7).judge(SOLUTION).points == {"check_init_forget_bias": 2.0}
    wrong = RIGHT_BIAS.replace("len(b) // 4 : len(b) // 2", ": len(b) // 4")
    assert wrong != RIGHT_BIAS
    for inputs in (0, 7):
        verdict = Judging(LSTM, plan, inputs=inputs).judge([Step(None, wrong), SOLUTION[1]])
        assert "Your output equals what you get when" in text(verdict.outputs[-1])
        assert verdict.notes == {}


def test_what_a_solution_names_is_noted_and_costs_nothing():
    right = sources(LSTM.reference)["gru_step"]
    named = f"{right}\n\nright = gru_step\ndef gru_step(*parts):\n"
    named += "    return right(*parts) if parts else torch.nn.GRUCell"
    cells = [Step("gru_step", named), Step("check_gru_step", "")]
    imports = Step(None, "import torch\nfrom torch import Tensor\nfrom jaxtyping import Float")
    plan = Plan.read(LSTM.solved)
    verdict = Judging(LSTM, plan).judge([imports, *cells, *SOLUTION])
    assert verdict.points["check_gru_step"] == plan.cells["check_gru_step"].points
    assert list(verdict.notes) == ["check_gru_step"]
    assert verdict.notes["check_gru_step"] in " ".join(text(verdict.outputs[2]).split())
    assert verdict.is_final


def test_experiments_are_decided_by_the_source_notebook():
    plan = Plan.read(LSTM.solved)
    experiment = next(name for name, cell in plan.cells.items() if cell.is_experiment)
    verdict = Judging(LSTM, plan).judge([Step(experiment, "print('run')"), *SOLUTION])
    assert text(verdict.outputs[0]).startswith("Experiments do not run")
    assert verdict.points == {"check_init_forget_bias": 2.0}


def test_no_student_can_mark_an_experiment():
    nb = nbformat.read(LSTM.student, as_version=4)
    marked = [cell.id for cell in nb.cells if cell.metadata.get("course", {}).get("experiment")]
    plan = Plan.read(LSTM.solved)
    assert marked == [name for name, cell in plan.cells.items() if cell.is_experiment]
    assert not any(cell.is_checked for cell in plan.cells.values() if cell.is_experiment)


@pytest.fixture(scope="module")
def kernel():
    with Kernel(LSTM.name, is_warm=True) as kernel:
        yield kernel


class TestSolutions:
    def test_accuracy_of_a_trained_model_is_computed_outside(self, kernel):
        source = "import torch\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(3, 2)"
        kernel.run(source, 60)
        X = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        with Solutions(lambda: kernel, seconds=60) as solutions:
            model = solutions.get("model")
            labels = model(X).argmax(1)
            assert labels.unique().tolist() == [0, 1]
            X.requires_grad_()
            model(X).sum().backward()
            assert X.grad.shape == X.shape and X.grad.abs().sum() > 0
        outputs, _ = kernel.run("print([n for n in globals() if n.lower() in ('x', 'labels')])", 60)
        assert outputs[0].text == "[]\n"

    def test_a_warm_kernel_has_imported_what_checks_need(self, kernel):
        """An import in a fork is lost with it, and costs its time again in the next."""
        kernel.run("import sys\ndef count(x):\n    return len(sys.modules) + 0 * x", 60)
        with Solutions(lambda: kernel, seconds=60) as solutions:
            count, x = solutions.get("count"), torch.ones(1, requires_grad=True)
            before = count(x)
            before.sum().backward()
            assert count(x).item() == before.item()

    def test_what_a_call_does_is_gone_after_it(self, kernel):
        kernel.run("seen = []\ndef learn(x):\n    seen.append(x)\n    print(x)\n    return 1", 60)
        with Solutions(lambda: kernel, seconds=60) as solutions:
            assert solutions.get("learn")(torch.ones(3)) == 1
        assert kernel.run("print(seen)", 60)[0][0].text == "[]\n"

    def test_a_call_that_ends_the_process_fails_alone(self, kernel):
        kernel.run("import os\ndef leave():\n    os._exit(3)\ndef stay():\n    return 5", 60)
        with Solutions(lambda: kernel, seconds=60) as solutions:
            with pytest.raises(Failure, match="leave ended its Python process"):
                solutions.get("leave")()
            assert solutions.get("stay")() == 5
        assert kernel.is_alive


def test_what_is_compiled_is_what_was_written():
    """To compile takes seconds, and a cell with a solution computes for 1.6 s at the most."""
    compiled = f"import torch\n\n@torch.compile\n{RIGHT_BIAS}"
    again = "\ninit_forget_bias = torch.compile(fullgraph=True)(torch.compile(init_forget_bias))\n"
    again += "torch.nn.Linear(2, 2).compile()\n"
    for is_warm in (True, False):
        judging = Judging(LSTM, Plan.read(LSTM.solved))
        judging.start = lambda *place, is_warm=is_warm: Kernel(*place, is_warm=is_warm)
        verdict = judging.judge([Step("init_forget_bias", compiled + again), SOLUTION[1]])
        assert verdict.points == {"check_init_forget_bias": 2.0} and verdict.notes == {}


def test_a_check_in_a_cell_of_its_own_takes_nothing_and_ends_nothing():
    cell = f"from course_pkg import check\n{RIGHT_BIAS}\ncheck(init_forget_bias)\nlater = 1"
    verdict = judge(cell, "print('later', later)")
    assert text(verdict.outputs[0]) == "While this notebook is graded, checks run outside of it.\n"
    assert text(verdict.outputs[1]) == "later 1\n"
    assert verdict.points == {"check_init_forget_bias": 2.0}


NAMES = {
    "import": "import course_pkg.checks.lstm as O",
    "import_module": "from importlib import import_module as f\nO = f('course_pkg.checks.lstm')",
    "variable": "import importlib as i\nname = 'course_pkg.checks.lstm'\nO = i.import_module(name)",
    "resolve_name": "import pkgutil\nO = pkgutil.resolve_name('course_pkg.checks.lstm')",
    "__import__": "O = __import__('course_pkg.checks.lstm', fromlist=['x'])",
    "runpy": "import runpy\nO = type('N', (), runpy.run_module('course_pkg.checks.lstm'))",
    "a file": "import course_pkg, pathlib, types\nO = types.SimpleNamespace()\n"
    "path = pathlib.Path(course_pkg.__path__[0], 'checks', 'lstm.py')\n"
    "exec(path.read_text(), vars(O))",
}


def test_no_spelling_leads_to_what_checks_compare_with():
    looks = "\nfound.append([n for n in vars(O) if hasattr(vars(O)[n], '__code__')])\n"
    cells = [f"found = globals().setdefault('found', [])\n{name}{looks}" for name in NAMES.values()]
    verdict = judge(*cells, "print(found)")
    told = text(verdict.outputs[len(cells)])
    assert told.count("[") == len(cells) + 1, [text(cell) for cell in verdict.outputs]
    ours = {
        n
        for n, v in vars(lstm_checks).items()
        if getattr(v, "__module__", "") == lstm_checks.__name__
    }
    assert ours and not [name for name in ours if f"'{name}'" in told]


def test_a_notebook_that_keeps_checks_out_is_told_to_a_person():
    cell = "import course_pkg.remote.server as s\ns.serve = lambda *parts: None"
    verdict = judge(cell)
    assert verdict.points == {"check_init_forget_bias": 0.0}
    assert "keeps the checks out" in verdict.notes["check_init_forget_bias"]
