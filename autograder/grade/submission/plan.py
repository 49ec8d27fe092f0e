"""What an assignment's notebook consists of, as its instructor's notebook says."""

import ast
import copy
import re
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.preprocessors import ClearHiddenTests, ClearMarkScheme, ClearSolutions

from autograder.grade.errors import GradingError


@dataclass(frozen=True)
class Planned:
    """A cell that the instructor has named.

    Args:
        name: its grade_id.
        cell_type: code or markdown.
        source: its text in the instructor's notebook.
        released: its text as students receive it.
        nbgrader: nbgrader's metadata.
        exercise: what a graded code cell checks.
        is_experiment: whether nothing that is graded depends on it.
    """

    name: str
    cell_type: str
    source: str
    released: str
    nbgrader: dict = field(hash=False)
    exercise: str | None = None
    is_experiment: bool = False

    @property
    def is_written_by_students(self) -> bool:
        return bool(self.nbgrader["solution"])

    @property
    def is_checked(self) -> bool:
        """Whether checks decide its points."""
        return self.exercise is not None

    @property
    def points(self) -> float:
        return float(self.nbgrader.get("points", 0))


class Plan:
    """The named cells of an assignment, in order."""

    def __init__(self, source: NotebookNode):
        released = _release(source)
        self.cells: dict[str, Planned] = {}
        for cell, student in zip(source.cells, released.cells, strict=True):
            if meta := cell.metadata.get("nbgrader"):
                self.cells[meta["grade_id"]] = Planned(
                    name=meta["grade_id"],
                    cell_type=cell.cell_type,
                    source=cell.source,
                    released=student.source,
                    nbgrader=dict(meta),
                    exercise=_exercise(cell),
                    is_experiment=bool(cell.metadata.get("course", {}).get("experiment")),
                )

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Read the instructor's notebook.

        Raises:
            GradingError: it is not there.
        """
        try:
            return cls(nbformat.read(path, as_version=4))
        except OSError as error:
            raise GradingError(f"the instructor's notebook cannot be read: {error}") from None

    @property
    def exercises(self) -> list[str]:
        return [cell.exercise for cell in self.cells.values() if cell.exercise]


def _release(source: NotebookNode) -> NotebookNode:
    nb = copy.deepcopy(source)
    for step in (ClearSolutions(), ClearHiddenTests(), ClearMarkScheme(enforce_metadata=False)):
        nb, _ = step.preprocess(nb, {})
    for cell in nb.cells:
        cell.source = re.sub(r"\n+$", "", cell.source)
    return nb


def _exercise(cell: NotebookNode) -> str | None:
    """Name what a graded code cell checks.

    Raises:
        GradingError: it is not of the form that the builder gives it.
    """
    if not (cell.metadata.nbgrader["grade"] and cell.cell_type == "code"):
        return None
    match ast.parse(cell.source).body[-1:]:
        case [ast.Expr(ast.Call(func=ast.Name("check"), args=[ast.Name(name)], keywords=[]))]:
            return name
    name = cell.metadata.nbgrader["grade_id"]
    raise GradingError(f"the graded cell {name} should end in check(EXERCISE), and does not")
