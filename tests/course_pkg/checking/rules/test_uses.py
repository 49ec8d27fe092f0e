"""What an exercise forbids is found in the text of a submission; what only mentions it is not."""

import ast
import builtins
import importlib
import inspect
import time
from pathlib import Path

import nbformat
import pytest

from autograder.alternatives import ALTERNATIVES
from autograder.assignment import ROOT, assignments, reference
from autograder.handout.exercise import exercises
from course_pkg.checking.registry import CHECKS, find
from course_pkg.checking.rules.rules import rule_of
from course_pkg.checking.rules.uses import breach
from tests.hostile.empty_solutions import ALLOWED, FLAGGED, FORBIDDEN, UNREAD

for assignment in assignments():
    importlib.import_module(f"course_pkg.checks.{assignment.topic}")
    importlib.import_module(f"autograder.assignments.{assignment.topic}.alternatives")
GRU = find("gru_step")
GIVEN = ["import math\n\nimport torch\nfrom torch import Tensor, nn\n"]
RIGHT = "def gru_step(x, h, W_x, W_h, b_x, b_h):\n    return h\n"


@pytest.mark.parametrize("name", [name for name in FORBIDDEN if name not in UNREAD])
def test_forbidden(name):
    message = breach(GRU, [FORBIDDEN[name]], GIVEN)
    assert message.startswith("gru_step uses torch.") and ", in line " in message


@pytest.mark.parametrize("name", sorted(UNREAD))
def test_some_ways_only_running_tells(name):
    assert breach(GRU, [FORBIDDEN[name]], GIVEN) is None


@pytest.mark.parametrize("name", FLAGGED)
def test_what_only_reading_finds(name):
    assert breach(GRU, [RIGHT + FLAGGED[name]], GIVEN)


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\n\ndef gru_step(*parts):\n    return subprocess.run(parts)",
        "from socket import socketpair\nhere, there = socketpair()\n"
        "def gru_step(x):\n    return here.recv(x)",
        "step = torch._dynamo.optimize()\ngru_step = lambda *parts: step(*parts)",
    ],
)
def test_what_others_may_have_done_unseen(source):
    assert "a grader will look at it" in breach(GRU, [source], GIVEN)


def test_to_compile_is_no_way_round():
    """In grading it gives back what it is given."""
    assert breach(GRU, ["@torch.compile\ndef gru_step(*parts):\n    return parts"], GIVEN) is None


def test_code_that_is_nested_too_deeply_is_for_a_person():
    for depth in (300, 900):
        source = "gru_step = torch" + ".a" * depth + " + torch.gru_cell"
        assert "a grader will look at it" in (breach(GRU, [source], GIVEN) or "")


def test_what_enforces_rules_is_nobodys_business():
    lift = "import course_pkg.remote.server as there\nthere.enforced = None"
    message = breach(GRU, [RIGHT, lift], GIVEN)
    assert message.startswith("The notebook uses course_pkg.remote.server.enforced, in line 2")
    allowed = "from course_pkg import check\nfrom course_pkg.checking import CheckFailed"
    assert breach(GRU, [allowed, RIGHT, "check(gru_step)"], GIVEN) is None


@pytest.mark.parametrize("name", ["gru_step", "init_forget_bias"])
def test_what_knows_the_answers_is_not_asked_for_them(name):
    ask = "from course_pkg.checks import lstm as answers\n\nvalues = answers.values\n"
    ask += f"def {name}(*inputs):\n    return values(inputs)\n"
    message = breach(find(name), [ask], GIVEN)
    assert message.startswith(f"{name} uses course_pkg.checks.lstm")
    allowed = "from course_pkg.checking.runner import run_here\nprint(run_here)\n"
    right = f"def {name}(*inputs):\n    return inputs\n"
    assert breach(find(name), [allowed + right], GIVEN) is None


def test_cells_given_to_students_break_no_rule():
    for assignment in assignments():
        nb = nbformat.read(assignment.solved, as_version=4)
        sources = [cell.source for cell in nb.cells if cell.cell_type == "code"]
        for exercise in CHECKS:
            if exercise.module == assignment.topic:
                assert breach(exercise, sources) is None


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name):
    assert breach(GRU, [ALLOWED[name] + RIGHT], GIVEN) is None


STEP = "def gru_step(x, h, W_x, W_h, b_x, b_h):\n    a = x @ W_x.mT\n    cell = a + h @ W_h.mT\n"
STEP += "    cell = cell.tanh()\n    return cell\n"
INPUTS = "x, h = torch.randn(2, 3), torch.randn(2, 4)\n"
# Below a solution, honest students compare it with torch's.
COMPARISONS = {
    "the cell's own weights": "cell = nn.GRUCell(3, 4)\n"
    "a = gru_step(x, h, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)",
    "names of the parameters": "cell = nn.GRUCell(3, 4)\n"
    "W_x, W_h, b_x, b_h = cell.parameters()\nprint(gru_step(x, h, W_x, W_h, b_x, b_h))",
    "the inputs come from it": "cell = nn.GRUCell(3, 4)\nx, h = x, cell(x, h)",
    "the result has a local's name": "a = nn.GRUCell(3, 4)(x, h)",
    "a function": "def compare():\n    cell = nn.GRUCell(3, 4)\n"
    "    return gru_step(x, h, *cell.parameters())",
    "a function of that name": "def cell(x, h):\n    return nn.GRUCell(3, 4)(x, h)",
    "a loop": "for cell in [nn.GRUCell(3, 4), nn.GRUCell(3, 4)]:\n    print(cell(x, h))",
    "with": "with torch.no_grad() as a:\n    cell = nn.GRUCell(3, 4)\n    W_x = cell.weight_ih",
    "a comprehension": "a = [cell(x, h) for cell in (nn.GRUCell(3, 4),)]",
    "a class": "class Torch:\n    def __init__(self):\n        self.cell = nn.GRUCell(3, 4)\n"
    "cell = Torch().cell",
    "an assertion": "assert torch.allclose(nn.GRUCell(3, 4)(x, h), h) or True",
    "an import": "from torch.nn import GRUCell as cell\na = cell(3, 4)",
    "a lambda": "a = lambda cell: nn.GRUCell(3, 4)(x, cell)",
}


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_comparison_with_torch_is_honest(name, is_first):
    comparison = INPUTS + COMPARISONS[name]
    sources = [comparison, STEP] if is_first else [STEP, comparison]
    assert breach(GRU, sources, GIVEN) is None


def test_what_a_solution_gets_from_the_notebook_counts():
    cell = "cell = nn.GRUCell(3, 4)"
    assert breach(GRU, [cell, "def gru_step(*inputs):\n    return cell(*inputs)"], GIVEN)
    change = "def change():\n    global cell\n    cell = nn.GRUCell(3, 4)\n\nchange()"
    assert breach(GRU, [change, "def gru_step(*inputs):\n    return cell(*inputs)"], GIVEN)
    inner = (
        "def gru_step(*inputs):\n    def step(x):\n        return cell(x)\n    return step(*inputs)"
    )
    assert breach(GRU, [cell, inner], GIVEN)


def test_a_long_chain_of_names_takes_no_time():
    chain = "; ".join(f"a{n} = a{n + 1}" for n in range(4000))
    start = time.process_time()
    assert breach(GRU, [chain, "def gru_step(x):\n    return a0(x)"], GIVEN) is None
    assert time.process_time() - start < 10


def test_a_notebook_that_is_too_long_is_not_read_but_told():
    long = "\n".join(f"a{n} = a{n + 1}[a{n}](-a{n}, *a{n})" for n in range(25_000))
    start = time.process_time()
    length = f"{len(long) + len(RIGHT):,}"
    assert f"has {length} characters of code: a grader" in breach(GRU, [long, RIGHT], GIVEN)
    assert time.process_time() - start < 1


def test_only_the_last_definition_counts():
    assert breach(GRU, [FORBIDDEN["the class"], RIGHT], GIVEN) is None
    assert breach(GRU, [FORBIDDEN["the class"], "old = gru_step", _wrap("old")], GIVEN)


def test_the_line_is_named():
    source = "# first\n\ndef gru_step(*inputs):\n    return nn.GRUCell(3, 4)(*inputs)\n"
    assert breach(GRU, ["x = 1", source], GIVEN) == (
        "gru_step uses torch.nn.GRUCell, in line 4 of its cell, 'return nn.GRUCell(3, 4)(*inputs)':"
        " write it yourself; a grader will look at it."
    )


@pytest.mark.parametrize(
    "source",
    [
        "gru_step = nn.GRUCell",
        "from torch.nn import GRUCell as gru_step",
        "class Step(nn.GRUCell):\n    pass\n\ngru_step = Step(3, 4)",
        "def gru_step(*a): return a\n\ngru_step.cell = nn.GRUCell",
        "%time cell = nn.GRUCell(2, 2)\ncell = nn.GRUCell(2, 2)\ngru_step = lambda x: cell(x)",
    ],
)
def test_other_ways_to_bind_a_name(source):
    assert breach(GRU, [source], GIVEN)


@pytest.mark.parametrize("name", ["torch.ops.aten", "torch._C", "torch.nn.modules", "torch.ops"])
def test_a_name_that_is_only_the_way_to_one(name):
    assert breach(GRU, [f"x = {name}\n{RIGHT[:-9]}return x"], GIVEN) is None


def test_what_is_not_python_breaks_nothing():
    assert breach(GRU, ["def gru_step(:", "(" * 100_000, "%%bash\nls", RIGHT], GIVEN) is None


WITH_RULES = [exercise for exercise in CHECKS if rule_of(exercise).names]


@pytest.mark.parametrize("exercise", WITH_RULES, ids=lambda exercise: exercise.name)
def test_right_solutions_keep_the_rules(exercise):
    modules = reference(exercise.module)
    given = [path.read_text(encoding="utf-8") for path in modules]
    assert breach(exercise, [exercises(modules)[exercise.name]], given) is None
    for solution in ALTERNATIVES[exercise]:
        source = f"{inspect.getsource(solution)}\n{exercise.name} = {solution.__name__}"
        given = [Path(inspect.getsourcefile(solution)).read_text(encoding="utf-8")]
        assert breach(exercise, [source], given) is None


@pytest.mark.parametrize("exercise", WITH_RULES, ids=lambda exercise: exercise.name)
def test_every_name_of_a_rule_is_found(exercise):
    for name in rule_of(exercise).names:
        source = f"import {name.partition('.')[0]}\n{exercise.name} = {name}"
        assert f"uses {name}," in breach(exercise, [source])


def test_attention_must_not_be_torchs():
    attend = find("scaled_dot_attention")
    source = "def scaled_dot_attention(*given):\n    return F.scaled_dot_product_attention(*given)"
    for line in ("import torch.nn.functional as F", "from torch.nn import functional as F"):
        message = breach(attend, [source], [line])
        assert "uses torch.nn.functional.scaled_dot_product_attention" in message
        assert "in line 2 of its cell" in message


def _wrap(name: str) -> str:
    return f"def gru_step(*inputs):\n    return {name}(*inputs)"


def test_a_builtin_is_the_builtin_below_a_star():
    """`from course_pkg.checks.lstm import *` brings no float; what it does bring is found."""
    star = "from course_pkg.checks.lstm import *\n"
    assert breach(GRU, [star + RIGHT.replace("h\n", "h * float(1)\n")], GIVEN) is None
    assert "course_pkg" in breach(GRU, [star + RIGHT.replace("h\n", "lstm_step(x, h)\n")], GIVEN)
    for path in (ROOT / "course_pkg").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and _binds(node)}
        names |= {
            node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        }
        assert not names & set(dir(builtins)) - {"_"}, path


def _binds(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)
