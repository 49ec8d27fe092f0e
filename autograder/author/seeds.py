"""Run solved notebooks with other seeds and say which claims hold, and by how much."""

import argparse
import json
import math
import re
import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

import nbformat
from nbformat import NotebookNode

from autograder.assignment import Assignment, assignments
from autograder.author.execution import claims, execute

SEED = re.compile(r"^seed = 0\b", re.MULTILINE)


@dataclass
class Run:
    """What came out of one notebook at one seed."""

    assignment: str
    seed: int
    seconds: float = 0.0
    claims: list[dict] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        return not self.errors and all(claim["holds"] for claim in self.claims)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignments", nargs="*", metavar="NN_topic", help="default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5), metavar="SEED")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default: 2)")
    parser.add_argument("--json", metavar="FILE", help="also write every value to a file")


def main(arguments: argparse.Namespace) -> int:
    """Run the notebooks; print a table; return 1 if a claim did not hold."""
    todo = [(a, seed) for a in assignments(arguments.assignments) for seed in arguments.seeds]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = []
        for run in pool.map(lambda pair: run_with(*pair), todo):
            runs.append(run)
            state = "held" if run.held else "NOT HELD"
            print(f"{run.assignment} at seed {run.seed}: {state}, {run.seconds:.0f} s", flush=True)
            for problem in problems(run):
                print(f"  {problem}", flush=True)
    print(table(runs))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([asdict(run) for run in runs], file, indent=1)
    return 0 if all(run.held for run in runs) else 1


def run_with(assignment: Assignment, seed: int) -> Run:
    """Run a solved notebook with `seed` in place of its own."""
    nb = nbformat.read(assignment.solved, as_version=4)
    return run_notebook(nb, assignment.name, seed)


def run_notebook(nb: NotebookNode, name: str, seed: int) -> Run:
    """Run a notebook to its end, whatever fails on the way; note its claims and errors.

    Raises:
        ValueError: no cell sets the seed.
    """
    codes = [cell for cell in nb.cells if cell.cell_type == "code"]
    if not any(SEED.search(cell.source) for cell in codes):
        raise ValueError(f"no cell of {name} has a line seed = 0")
    for cell in codes:
        cell.source = SEED.sub(f"seed = {seed}", cell.source)
    start = time.perf_counter()
    execute(nb, allow_errors=True)
    outputs = [output for cell in codes for output in cell.outputs]
    errors = [
        f"{output.ename}: {output.evalue.partition(chr(10))[0]}"
        for output in outputs
        if output.output_type == "error"
    ]
    return Run(name, seed, time.perf_counter() - start, claims(nb), errors)


def problems(run: Run) -> list[str]:
    """Say which claims did not hold, and which cells ended with an error."""
    return [
        f"✗ {claim['what']}: {claim['value']}" for claim in run.claims if not claim["holds"]
    ] + run.errors


def table(runs: Iterable[Run]) -> str:
    """Lay out, for each claim with bounds, how far it stays inside over all seeds.

    The last column is the mean distance from the bound in standard deviations over the seeds: if it
    is below three, another seed may well cross the bound.
    """
    margins: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for number, claim in enumerate(run.claims):
            if claim["margin"] is not None:
                place = (run.assignment, f"{number + 1:3} {claim['what']}")
                margins.setdefault(place, []).append(float(claim["margin"]))
    lines = [f"\n{'assignment':22} {'claim':60}{'least':>10}{'mean':>10}{'sd':>10}{'mean/sd':>9}"]
    for (name, what), found in margins.items():
        mean, spread = statistics.mean(found), statistics.pstdev(found)
        share = mean / spread if spread else math.inf
        figures = f"{min(found):10.3g}{mean:10.3g}{spread:10.2g}{share:9.1f}"
        mark = " <" if share < 3 or min(found) <= 0 else ""
        lines.append(f"{name:22} {what[:59]:60}{figures}{mark}")
    return "\n".join(lines)
