"""Judging one submission: bounds of time, restarts, and what checks see of a notebook's objects."""

import nbformat
import pytest
import torch

from autograder.assignment import ROOT, Assignment
from autograder.grade.judge import Bounds, Judging
from autograder.grade.kernel import Kernel
from autograder.grade.plan import Plan
from autograder.grade.solutions import Solutions
from autograder.grade.verdict import Step
from autograder.handout.exercise import exercises
from course_pkg.checking.failure import Failure
from tests.course import RIGHT_BIAS, needs_sandbox

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


def judge(*sources: str, **bounds):
    """Judge a solved exercise below some cells of a student's own."""
    steps = [Step(None, source) for source in sources] + SOLUTION
    return Judging(LSTM, Plan.read(LSTM.solved), bounds=Bounds(**bounds)).judge(steps)


def text(cell: list[dict]) -> str:
    return "".join(output.get("text", output.get("evalue", "")) for output in cell)


def test_a_cell_that_cannot_be_stopped_costs_only_itself():
    verdict = judge("kept = 1", ENDLESS, "print('kept', kept)", cell=1.0)
    assert "ran for more than" in text(verdict.outputs[1])
    assert text(verdict.outputs[2]) == "kept 1\n"
    assert verdict.points == {"check_init_forget_bias": 2.0}
    assert "A cell did not run to its end" in verdict.notes[""]


def test_cells_have_a_bound_together():
    verdict = judge("import time; time.sleep(2)", "print('late')", cell=1.0, cells=1.0)
    assert "KeyboardInterrupt" in [output.get("ename") for output in verdict.outputs[0]]
    assert "its cells ran for more than 1 s" in text(verdict.outputs[1])
    assert verdict.points == {"check_init_forget_bias": 0.0}


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
    verdict = judge("import time; time.sleep(100)", "print('late')", submission=6.0)
    assert verdict.seconds["all"] < 90
    assert "all together took more than 6 s" in text(verdict.outputs[1])
    assert "The time for this exercise is over" in text(verdict.outputs[-1])
    assert verdict.points == {"check_init_forget_bias": 0.0}


def test_a_kernel_is_restarted_a_few_times_only():
    verdict = judge(*["import os; os._exit(1)"] * 3, restarts=1)
    assert "ended its Python process" in verdict.notes[""]
    assert verdict.points == {"check_init_forget_bias": 0.0}


def test_what_a_solution_names_is_noted_and_costs_nothing():
    right = exercises(ROOT / "course_pkg" / "lstm.py")["gru_step"]
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
        kernel.run("import torch\nmodel = torch.nn.Linear(3, 2)", 60)
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
