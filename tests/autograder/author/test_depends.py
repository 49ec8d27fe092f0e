"""What the outputs of a notebook depend on: code, not words."""

import ast

import pytest
from nbformat.v4 import new_code_cell

from autograder.assignment import ROOT, Assignment
from autograder.author import depends
from autograder.author.depends import changes, code_alone, outputs_depend_on
from autograder.author.notebook import notebook

CODE = '''"""What it is."""

import torch  # for tensors


class Error(Exception):
    """Nothing else."""


def f(x: Float[Tensor, "B T"], name: str = "B T") -> tuple["A", Float[Tensor, "T"]]:
    """Double x.

    Returns:
        Twice as much.
    """

    text = f"""a

    # {x} b"""  # kept
    # A comment.
    return 2 * x, "# no comment", text
'''
ALONE = '''pass
import torch
class Error(Exception):
    pass
def f(x: Float[Tensor, ""], name: str = "B T") -> tuple["", Float[Tensor, ""]]:
    pass
    text = f"""a

    # {x} b"""
    return 2 * x, "# no comment", text'''


def test_comments_docstrings_shapes_and_blank_lines_are_left_out():
    assert code_alone(CODE) == ALONE
    ast.parse(code_alone(CODE))
    assert code_alone(ALONE) == ALONE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 * x", "3 * x"),
        ('= "B T"', '= "B"'),
        ("# no comment", "# one"),
        ("a\n\n", "a\n"),
        ("Exception", "OSError"),
    ],
)
def test_what_code_does_is_left_in(old, new):
    assert code_alone(CODE.replace(old, new)) != ALONE


def test_all_code_of_the_course_stays_valid():
    for path in (ROOT / "course_pkg").rglob("*.py"):
        ast.parse(code_alone(path.read_text(encoding="utf-8")))


def a_cell(source: str, grade: bool = False):
    return new_code_cell(source, metadata={"nbgrader": {"grade": grade}})


def test_files_that_are_imported_count_and_checks_do_not():
    cells = [a_cell("from course_pkg.gpt import GPT"), a_cell("check(GPT)", grade=True)]
    found = outputs_depend_on(cells)
    assert {depends.CELLS, "course_pkg/gpt.py", "course_pkg/attention.py"} <= found.keys()
    assert not any("check" in name for name in found)
    assert found == outputs_depend_on([cells[0], a_cell("check(all)", grade=True)])
    assert found == outputs_depend_on([a_cell(cells[0].source + "  # the model"), cells[1]])
    used = outputs_depend_on([a_cell(cells[0].source + "\nGPT")])
    assert {depends.CELLS, "course_pkg/gpt.py"} <= {*changes(found, used)}


def test_checks_count_where_a_cell_shows_what_they_print():
    shown = a_cell("from course_pkg import check\ncheck(rnn_step)")
    assert "course_pkg/checks/rnn.py" in outputs_depend_on([shown], "rnn")
    known = notebook(Assignment("01_rnn")).metadata["course"]["outputs_depend_on"]
    assert "course_pkg/checks/rnn.py" in known


def test_data_that_the_code_names_counts():
    found = outputs_depend_on([a_cell("from course_pkg import data\ndata.adding_problem(1, 2, 3)")])
    assert found.keys() == {depends.CELLS, "course_pkg/data/recall.py"}


def test_what_nothing_mentions_decides_nothing():
    used = a_cell("import math\nfrom course_pkg.lstm import lstm_step\ndef f(): return g()\nf()")
    other = a_cell("def h():\n    return lstm_step")
    found = outputs_depend_on([used, a_cell("def g():\n    return 1")])
    assert outputs_depend_on([used, a_cell("def g():\n    return 1"), other]) == found
    assert changes(found, outputs_depend_on([used, a_cell("def g():\n    return 2")])) == [
        depends.CELLS
    ]
    called = outputs_depend_on([used, other, a_cell("h()\ndef g():\n    return 1")])
    assert changes(found, called) == ["course_pkg/lstm.py", depends.CELLS]
    decorated = a_cell("@math.log\ndef h():\n    return lstm_step")
    assert changes(found, outputs_depend_on([used, a_cell("def g():\n    return 1"), decorated]))


def test_the_order_of_statements_counts():
    swapped = [outputs_depend_on([a_cell(code)]) for code in ("a = 1\na += 1", "a += 1\na = 1")]
    assert swapped[0] != swapped[1]


def test_what_has_changed_is_named():
    assert changes({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "3", "d": "4"}) == [
        "b",
        "c",
        "d",
    ]
    known = notebook(Assignment("02_lstm")).metadata["course"]["outputs_depend_on"]
    assert "course_pkg/tools/plot.py" in known and not any("checks" in name for name in known)
