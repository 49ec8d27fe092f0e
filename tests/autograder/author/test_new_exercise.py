"""From `new-assignment` to an assignment that is built and scored, in a copy of this checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.assignment import ROOT

COPIED = ("autograder", "course_pkg", "tests/submissions")
REFERENCE = '''
"""Doubling."""

from jaxtyping import Float
from torch import Tensor


def double_it(x: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    """Double every number.

    Args:
        x: the numbers.
    Returns:
        2 x.
    """
    return 2 * x


def halve_it(x: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    """Halve every number.

    Args:
        x: the numbers.
    Returns:
        x / 2.
    """
    return x / 2
'''
FACTORS = {"double_it": 2, "halve_it": 0.5}
WRITTEN = {"double_it": "return 2 * x", "halve_it": "return x / 2"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of what authors work on."""
    folder = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__", "course", "*.npz")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    (folder / "solutions").mkdir()
    for path in (*(ROOT / "solutions").glob("*.md"), ROOT / "pyproject.toml"):
        shutil.copy(path, folder / path.relative_to(ROOT))
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    (folder / "tests" / "__init__.py").touch()
    return folder


def run(checkout: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "autograder", *arguments],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )


def test_an_exercise_from_its_stubs_to_its_score(checkout):
    made = run(checkout, "new-assignment", "99_tiny", "double_it")
    assert made.returncode == 0, made.stderr
    assert run(checkout, "new-exercise", "99_tiny", "halve_it").returncode == 0
    assert "solutions/99_tiny.md" in made.stdout
    style = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=checkout)
    assert style.returncode == 0

    scored = run(checkout, "score", "99_tiny")
    assert scored.returncode == 1
    for missing in (
        "double_it: the reference fails",
        "double_it: 0 known mistakes: write 8 in autograder/assignments/tiny/mistakes.py",
        "halve_it: 0 alternatives: write 2 in autograder/assignments/tiny/alternatives.py",
    ):
        assert missing in scored.stdout

    (checkout / "course_pkg" / "tiny.py").write_text(REFERENCE.lstrip(), encoding="utf-8")
    own = checkout / "autograder" / "assignments" / "tiny"
    for path in (checkout / "course_pkg" / "checks" / "tiny.py", own / "hidden.py"):
        text = path.read_text(encoding="utf-8")
        for name, factor in FACTORS.items():
            body = "x = case.randn(*case.sizes(2))\n"
            body += f"    case.equal(student(x), {factor} * x, 'y')"
            head, _, tail = text.partition(f"@check({name}")
            text = head + f"@check({name}" + tail.replace("raise NotImplementedError", body, 1)
        path.write_text(text, encoding="utf-8")
    for name, factor in FACTORS.items():
        wrong = [
            f"Times{k}: the numbers are multiplied by {k}\n    {WRITTEN[name]} → return {k} * x\n"
            for k in range(3, 11)
        ]
        table = [f'mistakes(\n    {name},\n    """\n', *wrong, '""",\n)\n']
        alternatives = [
            f"@alternative({name})\ndef way_{k}(x):\n    return {factor} * {k} * x / {k}\n\n"
            for k in (3, 5)
        ]
        for file, more in (("mistakes.py", table), ("alternatives.py", alternatives)):
            path = own / file
            path.write_text(path.read_text("utf-8") + "\n" + "".join(more), encoding="utf-8")
    unnamed = run(checkout, "score", "99_tiny")
    assert "is not named" in unnamed.stdout and "build its assignment first" in unnamed.stdout

    built = run(checkout, "build", "99_tiny")
    assert built.returncode == 0, built.stderr
    scored = run(checkout, "score", "99_tiny", "--fresh")
    assert scored.returncode == 0, scored.stdout + scored.stderr
    student = (checkout / "notebooks" / "99_tiny" / "99_tiny.ipynb").read_text(encoding="utf-8")
    assert "def halve_it" in student and "x / 2\\n" not in student


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["new-exercise", "02_lst", "peephole"],
            "no solutions/02_lst.md; there is 02_lstm",
        ),
        (["new-exercise", "02_lstm", "lstm_step"], "02_lstm already has an exercise 'lstm_step'"),
        (["new-exercise", "02_lstm", "peep hole"], "has the name of its function or class, not"),
        (["new-assignment", "tiny", "f"], "is called NN_topic, like 02_lstm, not 'tiny'"),
        (["new-assignment", "02_tiny", "f"], "02_lstm already has that number or topic"),
    ],
)
def test_what_cannot_be_made_is_refused(checkout, arguments, words):
    done = run(checkout, *arguments)
    assert done.returncode == 1 and words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_checkout_uses_its_own_modules_and_not_those_of_the_environments(checkout):
    """Two checkouts may share an environment; kernels import what lies beside the command."""
    program = (
        "from autograder.author.execution import execute\n"
        "from nbformat.v4 import new_code_cell, new_notebook\n"
        "cell = new_code_cell('import course_pkg; print(course_pkg.__file__)')\n"
        "nb = new_notebook(cells=[cell])\n"
        "execute(nb)\n"
        "print(nb.cells[0].outputs[0].text)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(checkout / "course_pkg" / "__init__.py"), done.stderr
