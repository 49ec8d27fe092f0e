"""Run whole notebooks with other correct solutions: nothing below a check may need more than it.

    python -m tests.alternative_notebooks [NN_topic …]     make thorough does it for all

A student whose checks all pass must not meet an error in an experiment, because its code reads an
attribute that no check demands, for example. Experiments train for a few steps only. Errors that
the reference's run has as well, since a model has learnt nothing, do not count; a cell in which
slow loops take too long is left, and with it what needs its names.
"""

import importlib
import sys
from collections.abc import Callable, Iterator

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from autograder.alternatives import ALTERNATIVES
from autograder.assignment import Assignment, assignments, use_this_checkout
from autograder.author.examination import exercises

SECONDS = 60  # that a cell may take
SHORT = """
from course_pkg.tools import train as _train

_fit, _progress = _train.fit, _train.progress
_train.fit = lambda *a, steps, **k: _fit(*a, steps=min(steps, 3), **k)
_train.progress = lambda steps, *a: _progress(min(steps, 3), *a)
"""


def main() -> int:
    """Run the notebooks of the assignments named, or of all; return 1 if one has new errors."""
    failed = False
    for assignment in assignments(sys.argv[1:]):
        usual = dict(errors(assignment, {}))
        for number in range(most(assignment)):
            found = dict(errors(assignment, chosen(assignment, number)))
            new = {cell: error for cell, error in found.items() if cell not in usual}
            print(f"{assignment.name}, alternatives {number + 1}: {len(new)} errors", flush=True)
            for cell, error in new.items():
                print(f"  {cell}: {error}", flush=True)
            failed |= bool(new)
    return int(failed)


def most(assignment: Assignment) -> int:
    """Count the alternatives of the exercise that has most of them."""
    return max(len(alternatives(assignment.topic, e.name)) for e in exercises(assignment.topic))


def alternatives(topic: str, name: str) -> list[Callable]:
    """List the other solutions of an exercise."""
    importlib.import_module(f"autograder.assignments.{topic}.alternatives")
    return next(found for e, found in ALTERNATIVES.items() if (e.module, e.name) == (topic, name))


def taken(topic: str, name: str, number: int) -> Callable:
    """Give the alternative of that number, or the last one, under the exercise's name."""
    found = alternatives(topic, name)
    solution = found[min(number, len(found) - 1)]
    solution.__name__ = name
    return solution


def chosen(assignment: Assignment, number: int) -> dict[str, str]:
    """Write the cell that takes, for each exercise, the alternative of that number."""
    return {
        exercise.name: "from tests.alternative_notebooks import taken\n"
        f"{exercise.name} = taken({assignment.topic!r}, {exercise.name!r}, {number})"
        for exercise in exercises(assignment.topic)
    }


def errors(assignment: Assignment, solutions: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Run a solved notebook with other solutions; give the cells that fail, and how."""
    nb = nbformat.read(assignment.solved, as_version=4)
    codes = [cell for cell in nb.cells if cell.cell_type == "code"]
    for cell in codes:
        cell.source = solutions.get(cell.id, cell.source)
    nb.cells.insert(0, nbformat.v4.new_code_cell(SHORT))
    run(nb)
    left = ""  # the text of cells that took too long
    for cell in codes:
        for output in cell.outputs:
            if output.output_type != "error":
                continue
            if output.ename == "KeyboardInterrupt":
                print(f"  {cell.id} was left after {SECONDS} s", flush=True)
                left += cell.source
            elif not (output.ename == "NameError" and output.evalue.split("'")[1] in left):
                yield cell.id, f"{output.ename}: {output.evalue[:300]}"


def run(nb: NotebookNode) -> None:
    use_this_checkout()
    NotebookClient(
        nb,
        timeout=SECONDS,
        interrupt_on_timeout=True,
        allow_errors=True,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
    ).execute()


if __name__ == "__main__":
    sys.exit(main())
