"""`python -m autograder black-box`: train with a mistake as the notebook does, and draw the curve.

The solved notebook runs with the mistake in place of the exercise; at each of SEEDS, what makes the
curve runs with the mistake and without. What comes out is kept with the grader's data of the
assignment, and drawn beside its master.
"""

import argparse
import io
import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from autograder.assignment import ROOT, Assignment, CourseError, assignments
from autograder.author.examination import exercises
from autograder.author.execution import execute
from autograder.author.sabotage import demand_put_in, placed, put_in
from autograder.author.trial import SEED, provenance
from autograder.black_boxes import BLACK_BOXES, BlackBox
from autograder.hidden import folder
from course_pkg.tools import plot

SEEDS = (0, 1)
RIGHT, BOX = "right", "black box"
POINTS = 120  # of a curve that is kept; each is a mean
WIDE = 20  # largest loss over smallest from which on they are drawn on a logarithmic axis
TELL = "import json as _json\nprint(_json.dumps([float(_loss) for _loss in {curve}]))"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignments", nargs="*", metavar="NN_topic", help="default: all")
    parser.add_argument("--draw", action="store_true", help="only draw what has been kept")
    parser.add_argument("--mistake", help="try another known mistake; keep and draw nothing")


def main(arguments: argparse.Namespace) -> int:
    """Run, keep and draw; print how each curve ends, and which claims of the notebook fall."""
    for assignment in assignments(arguments.assignments):
        exercises(assignment.topic)
        if assignment.topic not in BLACK_BOXES:
            continue
        box = BLACK_BOXES[assignment.topic]
        if not arguments.draw:
            name = arguments.mistake or box.bug.name
            found = run(assignment, box, name) | provenance()
            ends = {kind: [c[-1] for c in curves] for kind, curves in found["curves"].items()}
            print(assignment.name, name, ends, f"{found['claims']} claims", flush=True)
            print(*(f"  falls: {what}\n" for what in found["fallen"]), sep="", end="")
            if arguments.mistake:
                continue
            kept(assignment).write_text(json.dumps(found) + "\n", encoding="utf-8")
        picture(assignment).write_text(draw(assignment, box), encoding="utf-8")
        print(f"wrote {picture(assignment).relative_to(ROOT)}")
    return 0


def kept(assignment: Assignment) -> Path:
    """Where the runs of a black box are kept."""
    return folder(assignment.topic) / "black_box.json"


def picture(assignment: Assignment) -> Path:
    """Where its curves are drawn."""
    return assignment.master.parent / f"{assignment.topic}_black_box.svg"


def run(assignment: Assignment, box: BlackBox, name: str) -> dict:
    """Run the notebook with the mistake at seed 0; otherwise only what makes the curve."""
    before = placed(nbformat.read(assignment.solved, as_version=4))
    wrong, nb = _run(assignment, box, name, SEEDS[0])
    holds = {place for place, claim in placed(nb).items() if claim["holds"]}
    curves = {
        RIGHT: [_run(assignment, box, None, seed, whole=False)[0] for seed in SEEDS],
        BOX: [wrong, *(_run(assignment, box, name, seed, whole=False)[0] for seed in SEEDS[1:])],
    }
    fallen = [what for what, number in before if (what, number) not in holds]
    return {"mistake": name, "curves": curves, "claims": len(before), "fallen": fallen}


def _run(
    assignment: Assignment, box: BlackBox, mistake: str | None, seed: int, *, whole: bool = True
) -> tuple[list[float], NotebookNode]:
    """Give the curve, and the notebook that has run: wholly, or to the cell that makes the curve.

    Raises:
        CourseError: no cell makes the curve, or it could not be read, or the mistake not put in.
    """
    nb = nbformat.read(assignment.solved, as_version=4)
    codes = [cell for cell in nb.cells if cell.cell_type == "code"]
    for cell in codes:
        cell.source = SEED.sub(f"seed = {seed}", cell.source)
    after = re.compile(rf"\b{box.after}\b")
    maker = next((cell for cell in codes if after.search(cell.source)), None)
    if maker is None:
        raise CourseError(f"{assignment.master}: no cell mentions {box.after}")
    tell = new_code_cell(TELL.format(curve=box.curve))
    place = nb.cells.index(maker) + 1
    nb.cells.insert(place, tell)
    if not whole:
        del nb.cells[place + 1 :]
    if mistake is not None:
        put_in(nb, assignment, box.exercise.name, mistake)
    execute(nb, allow_errors=True)
    demand_put_in(nb)
    printed = [output.text for output in tell.outputs if output.output_type == "stream"]
    if not printed:
        raise CourseError(f"{assignment.master}: {box.curve} could not be read: {tell.outputs}")
    return _thinned(json.loads(printed[-1].splitlines()[-1])), nb


def _thinned(losses: list[float]) -> list[float]:
    """Replace numbers by the means of as many parts as a picture shows."""
    size = -(-len(losses) // POINTS)
    parts = [losses[first : first + size] for first in range(0, len(losses), size)]
    return [float(f"{sum(part) / len(part):.5g}") for part in parts]


def load(assignment: Assignment) -> dict:
    """Read what is kept."""
    return json.loads(kept(assignment).read_text(encoding="utf-8"))


def draw(assignment: Assignment, box: BlackBox) -> str:
    """Draw what is kept, in SVG: a curve for each seed, with the mistake and without."""
    found = load(assignment)
    plot.style()
    text = io.StringIO()
    with plt.rc_context({"svg.hashsalt": assignment.topic, "svg.fonttype": "none"}):
        figure, ax = plt.subplots(figsize=(6.4, 2.8))
        for style, (kind, curves) in zip(("C0-", "C1--"), found["curves"].items(), strict=True):
            for n, curve in enumerate(curves):
                share = 100 if box.over.endswith("%") else len(curve)
                places = [share * (k + 1) / len(curve) for k in range(len(curve))]
                ax.plot(places, curve, style, linewidth=1.5, label=None if n else kind)
        every = [loss for curves in found["curves"].values() for curve in curves for loss in curve]
        if min(every) > 0 and max(every) > WIDE * min(every):
            ax.set_yscale("log")
        held = found["claims"] - len(found["fallen"])
        ax.set(xlabel=box.over, ylabel=box.label)
        ax.set_title(f"With the black box {held} of the notebook's {found['claims']} claims hold")
        ax.legend()
        ends = [min(curve[-1] for curve in curves) for curves in found["curves"].values()]
        said = (
            f"Curves of the {box.label}, with the right {box.exercise.name} and with the black "
            f"box: they end at {ends[0]:.2g} and {ends[1]:.2g}."
        )
        figure.savefig(text, format="svg", metadata={"Date": None, "Title": said})
        plt.close(figure)
    return re.sub(r' d="[^"]*"', _to_hundredths, text.getvalue())


def _to_hundredths(path: re.Match) -> str:
    """Shorten the numbers of a path, in points: 26 pictures in three places need much room."""
    return re.sub(r"(\.\d\d)\d+", r"\1", path[0])
