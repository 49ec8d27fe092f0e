"""The page of an assignment: the student's notebook, with the figures of the solved one."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from autograder.assignment import Assignment, CourseError, assignments
from autograder.handout import start

LONGEST = 8  # lines of code that are shown unfolded, except in exercises
_MENTION = re.compile(r"\bAssignment (\d\d)\b(?![^\[\]]*\]\()")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^):/]+\.svg)\)")
_SVG = "{http://www.w3.org/2000/svg}"


def page(assignment: Assignment, links: str = "") -> NotebookNode:
    """Make the page: what students receive, and what comes out when it is solved.

    Nothing is taken from the solved notebook but outputs, and none of exercises: neither a
    solution, nor a hidden check, nor a rubric can come along.

    Args:
        assignment: whose page it is.
        links: a line below the heading, such as where to open the notebook.
    """
    solved = nbformat.read(assignment.solved, as_version=4)
    outputs = {cell.id: cell.get("outputs", []) for cell in solved.cells}
    cells = []
    for cell in nbformat.read(assignment.student, as_version=4).cells:
        kind = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "markdown":
            if not kind.get("solution"):  # where students answer
                cells.append(new_markdown_cell(_text(assignment, cell.source)))
        elif kind.get("grade_id") == start.INSTALL:
            continue
        elif kind.get("solution") or kind.get("grade"):
            cells.append(new_code_cell(cell.source))
        else:
            cells += _with_outputs(cell.source, outputs.get(cell.id, []))
    if links:  # in place of those that the notebook has itself
        heading, _, rest = cells[0].source.replace(start.links(assignment), "").partition("\n")
        cells[0].source = f"{heading}\n\n{links}\n{rest}"
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    python = {"name": "python3", "display_name": "Python 3", "language": "python"}
    language = {"name": "python", "pygments_lexer": "ipython3"}
    return new_notebook(cells=cells, metadata={"kernelspec": python, "language_info": language})


def figure(assignment: Assignment, title: str) -> tuple[str, str]:
    """Find a figure of the solved notebook by its title, or by how its title begins.

    Returns:
        The picture, a PNG in base 64, and its alternative text.
    Raises:
        CourseError: no figure has this title.
    """
    for cell in nbformat.read(assignment.solved, as_version=4).cells:
        for output in cell.get("outputs", []):
            alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
            if alt.startswith(title):
                return output.data["image/png"], alt
    raise CourseError(f"{assignment.solved}: no figure has a title that begins {title!r}")


def _text(assignment: Assignment, source: str) -> str:
    """Link the assignments that a text mentions; its pictures say themselves what they show."""
    names = {other.name[:2]: other.name for other in assignments()}

    def link(match: re.Match) -> str:
        name = names.get(match[1], assignment.name)
        return match[0] if name == assignment.name else f"[{match[0]}]({name}.ipynb)"

    def describe(match: re.Match) -> str:
        words = description(assignment.master.parent / match[2])
        return f"![{match[1]}. {words}]({match[2]})"

    return _PICTURE.sub(describe, _MENTION.sub(link, source))


def description(picture: Path) -> str:
    """Read how an SVG describes itself.

    Raises:
        CourseError: it does not.
    """
    root = ElementTree.parse(picture).getroot()
    words = root.findtext(f"{_SVG}desc") or root.findtext(f"{_SVG}title")
    if not words:
        raise CourseError(f"{picture} needs a <desc>: what it shows, for those who do not see it")
    return " ".join(words.split())


def _with_outputs(source: str, outputs: list[NotebookNode]) -> Iterator[NotebookNode]:
    """Yield the cell of an experiment, and one without code for each of its pictures.

    The alternative text of a picture is set for its cell: that is where myst-nb looks.
    """
    cell = new_code_cell(source)
    if source.count("\n") >= LONGEST:
        cell.metadata["tags"] = ["hide-input"]
    for output in filter(None, map(_shown, outputs)):
        if "image/png" in output.get("data", {}):
            yield cell
            alt = output.metadata.get("image/png", {}).get("alt", "")
            image = {"mystnb": {"image": {"alt": alt}}}
            # myst-nb leaves out cells without code; this line is not shown.
            cell = new_code_cell("...", metadata={"tags": ["remove-input"], **image})
        cell.outputs.append(output)
    yield cell


def _shown(output: NotebookNode) -> NotebookNode | None:
    """A picture stays, words become text, and everything else is left out."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = {"image/png": data["image/png"]}
        return new_output("display_data", data=picture, metadata=output.metadata)
    if output.output_type == "stream" and output.name == "stdout":
        lines = [line for line in output.text.splitlines() if "█" not in line]  # bars of progress
        return new_output("stream", name="stdout", text="\n".join(lines)) if lines else None
    if "text/plain" in data:
        return new_output("stream", name="stdout", text=data["text/plain"] + "\n")
    return None
