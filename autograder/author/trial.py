"""Run solved notebooks at other seeds, keep what came out, and say which claims hold.

After it, `build` runs the notebook once more, since its claims show what was found.

What a run has found is kept in course_pkg/checks/data/trials, with its seed, commit, date and
processor, for as long as the code that it came from stays the same: a claim shows where a
student's value lies among those.
"""

import argparse
import hashlib
import json
import math
import platform
import re
import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.assignment import Assignment, assignments, commit
from autograder.author.depends import outputs_depend_on
from autograder.author.execution import claims, execute
from course_pkg.checking.notebook import seeds

SEED = re.compile(r"^seed = 0\b", re.MULTILINE)
SEEDS = range(10)
OTHERS = "its runs at other seeds"


@dataclass
class Run:
    """What came out of one notebook at one seed; of which code, when and where."""

    assignment: str
    seed: int
    seconds: float = 0.0
    claims: list[dict] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    code: str = ""
    commit: str = ""
    date: str = ""
    processor: str = ""

    @property
    def held(self) -> bool:
        return not self.errors and all(claim["holds"] for claim in self.claims)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignments", nargs="*", metavar="NN_topic", help="default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="SEED")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default: 2)")
    parser.add_argument("--again", action="store_true", help="run seeds that are kept already, too")


def main(arguments: argparse.Namespace) -> int:
    """Run what is not kept yet; print a table of all that is; return 1 if a claim did not hold."""
    runs = []
    for assignment in assignments(arguments.assignments):
        known = [
            run for run in kept(assignment) if not (arguments.again and run.seed in arguments.seeds)
        ]
        todo = [seed for seed in arguments.seeds if seed not in {run.seed for run in known}]
        # Here, not in threads: Python 3.11 cannot parse where asyncio's garbage is collected.
        code = code_of(nbformat.read(assignment.solved, as_version=4), assignment.topic)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for run in pool.map(lambda seed, a=assignment: run_with(a, seed), todo):
                known = sorted([*known, replace(run, code=code)], key=lambda each: each.seed)
                keep(assignment, known)
                state = "held" if run.held else "NOT HELD"
                print(f"{assignment.name} at seed {run.seed}: {state}, {run.seconds:.0f} s")
                print(*(f"  {problem}\n" for problem in problems(run)), sep="", end="", flush=True)
        runs += known
    print(table(runs))
    return 0 if all(run.held for run in runs) else 1


def kept(assignment: Assignment, nb: NotebookNode | None = None) -> list[Run]:
    """List the runs that came from the code of a notebook, by default the solved one as it is."""
    place = _place(assignment)
    if not place.exists():
        return []
    runs = [Run(**each) for each in json.loads(place.read_text(encoding="utf-8"))]
    nb = nbformat.read(assignment.solved, as_version=4) if nb is None else nb
    now = code_of(nb, assignment.topic)
    return [run for run in runs if run.code == now]


def values_of(runs: list[Run]) -> dict[str, str]:
    """Hash what claims show of runs at other seeds, if there are any, under the name OTHERS."""
    found = {claim["what"]: seeds.band(claim["what"]) for run in runs for claim in run.claims}
    text = json.dumps(_short(found), sort_keys=True)
    return {OTHERS: hashlib.sha256(text.encode()).hexdigest()[:16]} if found else {}


def keep(assignment: Assignment, runs: list[Run]) -> None:
    """Write runs down, in place of those that were kept."""
    tight = {"ensure_ascii": False, "separators": (",", ":")}
    lines = [json.dumps(_short(asdict(run)), **tight) for run in runs]
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    place = _place(assignment)
    place.parent.mkdir(exist_ok=True)
    place.write_text(text, encoding="utf-8")


def _short(value: Any) -> Any:
    """Round all numbers in some data to six digits: nobody reads more of what a run has found."""
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def forget_other_code(assignment: Assignment, nb: NotebookNode) -> None:
    """Drop runs whose code is no longer that of a notebook: no claim may show their values."""
    place = _place(assignment)
    if place.exists():
        runs = kept(assignment, nb)
        if not runs:
            place.unlink()
        elif len(runs) < len(json.loads(place.read_text(encoding="utf-8"))):
            keep(assignment, runs)


def _place(assignment: Assignment) -> Path:
    return seeds.FOLDER / f"{assignment.name}.json"


def code_of(nb: NotebookNode, topic: str) -> str:
    """Hash the code that decides what the experiments of a notebook find."""
    parts = json.dumps(outputs_depend_on(nb.cells, topic), sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def provenance() -> dict[str, str]:
    """Say where and when numbers are made: "commit", "date" and "processor"."""
    date = datetime.now(UTC).date().isoformat()
    return {"commit": commit(), "date": date, "processor": _processor()}


def _processor() -> str:
    """The name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def run_with(assignment: Assignment, seed: int) -> Run:
    """Run a solved notebook with `seed` in place of its own; note the time and place."""
    nb = nbformat.read(assignment.solved, as_version=4)
    return replace(run_notebook(nb, assignment.name, seed), **provenance())


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
    return Run(name, seed, round(time.perf_counter() - start, 1), claims(nb), errors)


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
