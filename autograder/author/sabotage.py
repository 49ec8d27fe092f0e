"""Run experiments with their idea taken out, and say which claims hold all the same.

A claim about learning that holds where nothing learns claims nothing. Every solved notebook runs
once with optimisers that do nothing, once for each ```sabotage fence of its master, and once with
each classic mistake in place of its exercise. A claim that names its control must fall in one of
these.
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from autograder.assignment import Assignment, CourseError, assignments
from autograder.author.examination import exercises
from autograder.author.execution import claims, execute
from autograder.author.master import sabotages
from autograder.mistakes import BUGS

IDLE = """import torch as _torch

def _none(self, closure=None):
    return None if closure is None else closure()

for _kind in vars(_torch.optim).values():
    if isinstance(_kind, type) and issubclass(_kind, _torch.optim.Optimizer):
        _kind.step = _none
"""
MISTAKEN = """import autograder.assignments.{topic}.mistakes as _registers
from autograder.mistakes import BUGS as _bugs

_mistakes = next(_found for _exercise, _found in _bugs.items() if _exercise.name == {exercise!r})
{exercise} = next(_each.solution for _each in _mistakes if _each.name == {name!r})
"""
PUT_IN = "put-in"  # the id of a cell that takes something out
Place = tuple[str, int]  # what a claim says, and the how manieth claim it is that says so


@dataclass
class Variant:
    """A notebook without something.

    Args:
        sentence: what is missing.
        nb: the notebook.
        holds: for each claim that was reached, whether it holds.
    """

    sentence: str
    nb: NotebookNode = field(repr=False)
    holds: dict[Place, bool] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignments", nargs="*", metavar="NN_topic", help="default: all")
    parser.add_argument("--mistakes", action="store_true", help="also with each classic mistake")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default: 2)")
    parser.add_argument("--json", metavar="FILE", help="also write what holds to a file")


def main(arguments: argparse.Namespace) -> int:
    """Run the notebooks; print tables; return 1 if a claim with a control holds in all of them."""
    found, unbeaten = {}, []
    for assignment in assignments(arguments.assignments):
        every = list(variants(assignment, arguments.mistakes))
        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(run, every))
        solved = placed(nbformat.read(assignment.solved, as_version=4))
        said = {place: "beside" in claim for place, claim in solved.items()}
        print("\n".join(table(assignment, every, list(said))), flush=True)
        found[assignment.name] = {
            each.sentence: [[what, holds] for (what, _), holds in each.holds.items()]
            for each in every
        }
        unbeaten += [
            f"{assignment.name}: {place[0]}"
            for place, has_control in said.items()
            if has_control and all(each.holds.get(place, False) for each in every)
        ]
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    for line in unbeaten:
        print(f"holds whatever is missing: {line}")
    return 1 if unbeaten else 0


def variants(assignment: Assignment, with_mistakes: bool = False) -> Iterator[Variant]:
    """Make all that an assignment's notebook is run without.

    Raises:
        CourseError: a fence names what no cell, or more than one place, says.
    """
    solved = nbformat.read(assignment.solved, as_version=4)
    idle = Variant("nothing is learned", solved)
    idle.nb.cells.insert(0, new_code_cell(IDLE, id=PUT_IN))
    yield idle
    for each in sabotages(assignment.master):
        nb = nbformat.read(assignment.solved, as_version=4)
        for right, wrong in each.changes:
            cells = [cell for cell in nb.cells if cell.cell_type == "code" and right in cell.source]
            if len(cells) != 1 or cells[0].source.count(right) != 1:
                count = sum(cell.source.count(right) for cell in cells)
                raise CourseError(
                    f"{assignment.master}:{each.line}: {right!r} stands {count} times in the "
                    "notebook's code; it must be once"
                )
            cells[0].source = cells[0].source.replace(right, wrong)
        yield Variant(each.sentence, nb)
    if with_mistakes:
        for exercise in exercises(assignment.topic):
            for bug in BUGS.get(exercise, []):
                if bug.is_classic:
                    nb = nbformat.read(assignment.solved, as_version=4)
                    put_in(nb, assignment, exercise.name, bug.name)
                    yield Variant(f"{exercise.name}: {bug.sentence}", nb)


def put_in(nb: NotebookNode, assignment: Assignment, exercise: str, mistake: str) -> None:
    """Put a known mistake in place of an exercise's solution in a notebook."""
    place = next(n for n, cell in enumerate(nb.cells) if cell.id == exercise)
    names = {"topic": assignment.topic, "exercise": exercise, "name": mistake}
    nb.cells.insert(place + 1, new_code_cell(MISTAKEN.format(**names), id=PUT_IN))


def run(variant: Variant) -> None:
    """Run a notebook to its end, whatever fails on the way, and note which claims hold.

    Raises:
        CourseError: what was put in is not there: the notebook has run as it is.
    """
    execute(variant.nb, allow_errors=True)
    demand_put_in(variant.nb)
    variant.holds = {place: claim["holds"] for place, claim in placed(variant.nb).items()}


def demand_put_in(nb: NotebookNode) -> None:
    """Demand that cells which were put into a notebook have run without an error.

    Raises:
        CourseError: one has not.
    """
    for cell in nb.cells:
        for output in cell.get("outputs", []) if cell.id == PUT_IN else []:
            if output.output_type == "error":
                raise CourseError(f"what was put in could not run: {output.ename}: {output.evalue}")


def placed(nb: NotebookNode) -> dict[Place, dict]:
    """Find the claims of a notebook that has run, wherever it stopped."""
    found: dict[Place, dict] = {}
    for claim in claims(nb):
        count = sum(what == claim["what"] for what, _ in found)
        found[claim["what"], count] = claim
    return found


def table(assignment: Assignment, every: list[Variant], said: list[Place]) -> Iterator[str]:
    """Lay out which claims hold: + for one that holds, - for one that falls, . for not reached."""
    yield f"\n{assignment.name}"
    for number, each in enumerate(every):
        held = sum(each.holds.values())
        yield f"  {'abcdefghijklmnopqrstuvwxyz'[number % 26]} {each.sentence}: {held} hold"
    marks = {True: "+", False: "-", None: "."}
    for place in said:
        row = "".join(marks[each.holds.get(place)] for each in every)
        yield f"  {row}  {place[0]}"
