"""What the worst submissions cost the others: `python -m tests.benchmarks.worst`.

Forty solved submissions are graded alone, and again beside ten that take all the time they can
get. The forty must have the same scores, and all fifty should take no more than three times as
long as the forty.
"""

import ast
import copy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from autograder.assignment import Assignment
from autograder.grade.submission.submission import Course, Submission
from tests import course as toolbox
from tests.benchmarks.grading import prepare, report, scores
from tests.benchmarks.measure import measure

LSTM = Assignment("02_lstm")
HONEST = 40
WORKERS = "2"
FULL_DISK = """\
data = bytes(1 << 20)
for n in iter(int, 1):
    try:
        open(f"/tmp/{n}", "wb").write(data)
    except OSError:
        pass
"""
WORST: dict[str, Callable[[NotebookNode], None]] = {}


def worst(change: Callable[[NotebookNode], None]) -> Callable[[NotebookNode], None]:
    """Add a way to take time."""
    WORST[change.__name__.replace("_", "-")] = change
    return change


def solutions(nb: NotebookNode) -> list[NotebookNode]:
    """List the cells with solutions."""
    names = toolbox.points(LSTM)
    return [cell for cell in nb.cells if cell.id in names]


def in_every_function(nb: NotebookNode, line: str) -> None:
    """Let every function and method of all solutions begin with a line."""
    for cell in solutions(nb):
        lines = cell.source.splitlines()
        functions = [n for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.FunctionDef)]
        for first in sorted((f.body[0] for f in functions), key=lambda n: -n.lineno):
            lines.insert(first.lineno - 1, " " * first.col_offset + line)
        cell.source = "\n".join(lines)


def above_solutions(nb: NotebookNode, source: str) -> None:
    """Put code above every solution."""
    for cell in solutions(nb):
        cell.source = source + cell.source


@worst
def loops_above_solutions(nb):
    above_solutions(nb, "while True:\n    pass\n")


@worst
def loops_that_cannot_be_interrupted(nb):
    above_solutions(nb, toolbox.STUBBORN)


@worst
def loops_in_functions(nb):
    in_every_function(nb, "while True: pass")


@worst
def memory_without_end(nb):
    in_every_function(nb, "kept = [torch.ones(1 << 20) for _ in iter(int, 1)]")


@worst
def forks_without_end(nb):
    in_every_function(nb, "import os; [os.fork() for _ in iter(int, 1)]")


@worst
def threads_that_compute(nb):
    work = "import threading\n\ndef work():\n    while True:\n        pass\n\n"
    work += "for _ in range(50):\n    threading.Thread(target=work, daemon=True).start()"
    nb.cells.insert(1, new_code_cell(work))


@worst
def output_without_end(nb):
    above_solutions(nb, "for _ in iter(int, 1):\n    print('x' * 10_000)\n")


@worst
def a_disk_that_fills(nb):
    above_solutions(nb, FULL_DISK)


@worst
def cells_that_are_hard_to_parse(nb):
    long = "\n".join(f"a{n} = a{n + 1}[a{n}](-a{n}, *a{n})" for n in range(25_000))
    for cell in solutions(nb):
        nb.cells.append(new_code_cell(f"if 0:\n  pass\n{long}\n# {cell.id}"))


@worst
def more_cells_than_anybody_needs(nb):
    nb.cells += [new_code_cell(f"a = {n}") for n in range(300_000)]


def main() -> None:
    """Print what the forty take alone, what all fifty take, and where the ten spend theirs."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "course")
        root.mkdir()
        prepare(root, LSTM, HONEST)
        command = [sys.executable, "-m", "autograder", "grade", LSTM.name, "--workers", WORKERS]
        alone = measure(command, root)
        report("alone", HONEST, alone)
        expected = scores(root, LSTM)
        submit_worst(root)
        together = measure([*command, "--force"], root)
        report("with the worst", HONEST + len(WORST), together)
        found = scores(root, LSTM)
        assert {student: found[student] for student in expected} == expected, "scores differ"
        for student in WORST:
            submission = Submission(Course(root), LSTM.name, student)
            verdict = submission.course.store.load(LSTM.name, submission.key(submission.steps()))
            seconds = verdict.seconds if verdict else {}
            print(f"    {student}: {seconds.get('all', 0):.1f} s of", seconds)
        print(f"{together.clock / alone.clock:.1f} times as long")


def submit_worst(root: Path) -> None:
    """Submit one notebook of each kind."""
    solved = nbformat.read(LSTM.student, as_version=4)
    toolbox.solve(solved, LSTM)
    for student, change in WORST.items():
        nb = copy.deepcopy(solved)
        change(nb)
        toolbox.submit(root, student, LSTM, nb)


if __name__ == "__main__":
    main()
