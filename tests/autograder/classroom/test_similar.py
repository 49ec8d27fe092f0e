"""Similar submissions: disguised copies are found, independent solutions are left alone."""

import ast
import contextlib
import importlib
import inspect
import io
import re
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from autograder.alternatives import ALTERNATIVES
from autograder.assignment import Assignment, CourseError, reference
from autograder.classroom import similar
from autograder.grade.judging.verdict import Step
from autograder.handout.exercise import exercises
from tests import course as toolbox

LSTM = Assignment("02_lstm")
REFERENCE = exercises(reference("lstm"))
importlib.import_module(f"autograder.assignments.{LSTM.topic}.alternatives")
pytestmark = pytest.mark.xdist_group("similar")


class Rename(ast.NodeTransformer):
    """Give every local variable another name."""

    def __init__(self, names: set[str]):
        self.names = names

    def visit_Name(self, node):
        node.id = f"my_{node.id}_value" if node.id in self.names else node.id
        return node


def names(node: ast.AST, context: type) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def disguise(source: str) -> str:
    """Rename variables, swap statements that do not need each other, drop all comments."""
    tree = ast.parse(source)
    for block in [
        node.body for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.For))
    ]:
        for n in range(len(block) - 1):
            first, second = block[n : n + 2]
            pair = [(first, second), (second, first)]
            if all(isinstance(s, (ast.Assign, ast.FunctionDef)) for s in (first, second)) and not (
                any(
                    names(a, ast.Store) & (names(b, ast.Load) | names(b, ast.Store))
                    for a, b in pair
                )
            ):
                block[n : n + 2] = second, first
    return ast.unparse(Rename(names(tree, ast.Store)).visit(tree))


def alternative(number: int) -> dict[str, str]:
    """One of the right solutions that were written independently, for each exercise."""
    found = {}
    for exercise, solutions in ALTERNATIVES.items():
        if exercise.module == "lstm":
            solution = solutions[number % len(solutions)]
            source = inspect.getsource(inspect.unwrap(solution)).split("\n", 1)[1]
            found[exercise.name] = source.replace(solution.__name__, exercise.name, 1)
    return found


WORKS = {
    "ada": REFERENCE,
    "alan": alternative(0),
    "barbara": alternative(1),
    "edsger": {name: disguise(source) for name, source in alternative(0).items()},
    "grace": {},
    # One exercise is copied, into a cell where it was not asked for.
    "john": {"LSTM": "", "extra": disguise(alternative(0)["LSTM"]) + "\n"},
    # Too little to tell.
    "ken": {"init_forget_bias": alternative(0)["init_forget_bias"]},
}
COPIES = {("alan", "edsger"), ("alan", "john"), ("edsger", "john")}


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course in which some have copied; nothing is graded."""
    root = tmp_path_factory.mktemp("course")
    toolbox.least_course(root, LSTM)
    for student, work in WORKS.items():
        nb = nbformat.read(LSTM.student, as_version=4)
        for cell in nb.cells:
            cell.source = work.get(cell.id, cell.source)
        nb.cells.append(new_code_cell(work.get("extra", "") + "print('</pre> & so on')"))
        toolbox.submit(root, student, LSTM, nb)
    return root


@pytest.fixture(scope="module")
def report(course) -> tuple[str, str]:
    """What the command prints, and its page."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert similar.main(Namespace(assignment=LSTM.name, course=course)) == 0
    path = course / toolbox.WORK / f"similar_{LSTM.name}.html"
    return printed.getvalue(), path.read_text(encoding="utf-8")


def test_copies_are_found_and_independent_solutions_are_not(report):
    printed = re.findall(r"^ *(\d+)%  (\w+) and (\w+): ", report[0], re.MULTILINE)
    assert {(left, right) for _, left, right in printed} == COPIES
    shares = [int(share) for share, _, _ in printed]
    assert shares == sorted(shares, reverse=True) and shares[-1] > 75
    assert "7 submissions, 3 pairs with 50% or more in common" in report[0]


def test_the_page_stands_alone_and_marks_both_sides(report):
    page = report[1]
    assert set(re.findall(r'href="(.)', page)) == {"#"}
    assert "src=" not in page and "<script" not in page and "@import" not in page
    assert "&#39;&lt;/pre&gt; &amp; so on&#39;" in page
    assert page.count("<details") == 3 and page.count("<pre>") == page.count("</pre>")
    details = page[page.index("<h2>alan and edsger</h2>") :].partition("</details>")[0]
    left, right = re.findall(r"<h3>LSTM.*?<pre>(.*?)</pre>.*?<pre>(.*?)</pre>", details, re.S)[0]
    for side in (left, right):
        marked = "".join(re.findall(r"<mark>(.*?)</mark>", side, re.S))
        assert "torch.stack" in marked and "Runs each sequence" not in side
    assert "my_h_0_value" in right and "my_h_0_value" not in left


def test_what_is_shown_is_what_was_written(course):
    works = similar._works(similar.Course(course), LSTM.name)
    for pair in similar.pairs(works):
        for work, marks in zip((pair.left, pair.right), pair.marks, strict=True):
            for name, places in marks.items():
                text = work.cells[name]
                assert all(0 <= begin < end <= len(text) for begin, end in places)
                # A misplaced mark would begin or end within a word.
                assert all(re.match(r"\b|\W", text[begin:]) for begin, _ in places)


def test_passages_that_many_share_say_nothing(course):
    work = similar._works(similar.Course(course), LSTM.name)[0]
    same = [similar.Work(f"student {n}", work.cells) for n in range(similar.COMMON + 1)]
    assert similar.pairs(same) == []
    assert len(similar.pairs([similar.Work(w.student, w.cells) for w in same[:3]])) == 3


def test_a_prediction_is_no_code_of_the_students():
    assert written('predict(\n    "Which?",\n    "the first",  # mine\n)', "print(predict)") == (
        "print(predict)"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        '"Which?", (lambda x: x + 1)(1)',
        'f"{[x for x in range(9)]}", "mine"',
        '"Which?", "mine", print(1)',
        '"Which?", "mine", key=print(1)',
        '*["Which?", print(1)]',
    ],
)
def test_code_cannot_hide_in_a_prediction(arguments):
    assert written(f"predict({arguments})") == f"predict({arguments})"


def written(*sources: str) -> str:
    """What is compared of cells that are not the assignment's."""
    submission = SimpleNamespace(steps=lambda: [Step(None, source) for source in sources])
    return similar._cells(submission, SimpleNamespace(cells={}))[similar.OTHER]


def test_docstrings_go_and_nothing_else():
    source = (
        'class A:\n    """One\n    two."""\n\n    @property\n    def b(self): "three"; return 4'
    )
    assert similar._without_docstrings(source) == source.replace('    """One\n    two."""\n', "")
    assert similar._without_docstrings("def broken(:") == "def broken(:"


def test_what_cannot_be_compared_is_a_clear_error(course, tmp_path, capsys):
    with pytest.raises(CourseError, match=r"there is no solutions/99_none.md; there is "):
        similar.main(Namespace(assignment="99_none", course=course))
    with pytest.raises(
        CourseError, match=r"holds no nbgrader_config.py: name the course's folder with --course"
    ):
        similar.main(Namespace(assignment=LSTM.name, course=tmp_path))
    (tmp_path / "nbgrader_config.py").touch()
    assert similar.main(Namespace(assignment=LSTM.name, course=tmp_path)) == 1
    assert "the instructor's notebook cannot be read" in capsys.readouterr().err
    (tmp_path / "solutions").symlink_to(course / "solutions")
    assert similar.main(Namespace(assignment=LSTM.name, course=tmp_path)) == 1
    assert "there are 0 submissions of 02_lstm: collect more" in capsys.readouterr().err
