"""The notebook that `make lab` opens: what this course is, where to start, how far one is."""

from pathlib import Path
from string import Template

import jupytext
import nbformat

from autograder.assignment import ROOT
from autograder.author import front
from autograder.author.facts import Facts, parts
from autograder.handout.exercise import exercises

PATH = ROOT / "autograder" / "classroom" / "welcome.ipynb"  # `make lab` copies it to notebooks/


def files() -> dict[Path, bytes]:
    """Write the notebook from welcome.md beside this file, and from what the masters say."""
    members = [each for part in parts() for each in part.members]
    text = Path(__file__).with_name("welcome.md").read_text(encoding="utf-8")
    filled = Template(text).substitute(
        assignments=len(members),
        exercises=sum(len(exercises(each.assignment.reference)) for each in members),
        fewest=sum(each.hours[0] for each in members),
        most=sum(each.hours[1] for each in members),
        first=_title(members[0]),
        first_path=_path(members[0]),
        check="\n".join(front.shown(front.named_mistake())),
        table=_table(members),
    )
    cells = jupytext.reads(filled, fmt="md").cells
    for number, cell in enumerate(cells):
        cell.id = f"welcome-{number}"
        cell.metadata = nbformat.NotebookNode()
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": python, "language_info": {"name": "python"}}
    nb = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    return {PATH: (nbformat.writes(nb) + "\n").encode()}


def _table(members: list[Facts]) -> str:
    numbers = {each.assignment.topic: each.assignment.name[:2] for each in members}
    lines = ["| assignment | hours | builds on |", "|:--|:--|:--|"]
    for each in members:
        needs = ", ".join(numbers[topic] for topic in each.needs)
        hours = f"{each.hours[0]} to {each.hours[1]}"
        lines.append(f"| [{_title(each)}]({_path(each)}) | {hours} | {needs} |")
    return "\n".join(lines)


def _title(each: Facts) -> str:
    return f"{each.assignment.name[:2]} · {each.title}"


def _path(each: Facts) -> str:
    return f"{each.assignment.name}/{each.assignment.name}.ipynb"
