"""Put a submitted notebook in order: named cells as the plan has them, the student's work in them.

Everything but the text of cells comes from the plan. Cells are recognised by nbgrader's name, by
Jupyter's, or by what stands in them; what belongs to no planned cell stays where it was.
"""

import ast
import itertools
import re
from collections.abc import Callable

from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_notebook

from autograder.grade.plan import Plan, Planned
from autograder.grade.reading import Submitted

_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def mend(submitted: list[Submitted], plan: Plan) -> NotebookNode:
    """Make the notebook that is graded.

    Planned cells come in the plan's order, those that are missing with the text that students
    received; an exercise's missing cell stays missing, because its code may be elsewhere. Each
    of the other cells follows the planned cell that it followed.
    """
    claims = _claims(submitted, plan)
    before: list[Submitted] = []
    extras: dict[str, list[Submitted]] = {name: [] for name in plan.cells}
    place = before
    for number, cell in enumerate(submitted):
        if (name := claims.get(number)) is None:
            place.append(cell)
        else:
            place = extras[name]
            if _holds_more(cell, plan.cells[name]):
                place.append(cell)
    texts = {name: submitted[number] for number, name in claims.items()}
    cells = [_extra(cell) for cell in before]
    for name, planned in plan.cells.items():
        if name in texts or not (planned.is_written_by_students and planned.cell_type == "code"):
            cells.append(_planned(planned, texts.get(name)))
        cells += [_extra(cell) for cell in extras[name]]
    cells = _after_definitions(cells, plan)
    for number, new in enumerate(cells):
        new.id = new.metadata.get("nbgrader", {}).get("grade_id") or f"extra-{number}"
    return new_notebook(cells=cells, metadata=_METADATA)


def _after_definitions(cells: list[NotebookNode], plan: Plan) -> list[NotebookNode]:
    """Move graded cells below the cells that define what they check, if those come later."""
    defined = [_defined(cell) for cell in cells]
    moved: dict[int, list[NotebookNode]] = {}
    for number, cell in enumerate(cells):
        planned = plan.cells.get(cell.metadata.get("nbgrader", {}).get("grade_id"))
        if planned is None or not planned.is_checked:
            continue
        places = [n for n, names in enumerate(defined) if planned.exercise in names]
        if places and places[0] > number:
            moved.setdefault(places[0], []).append(cell)
    late = [id(cell) for group in moved.values() for cell in group]
    found = []
    for number, cell in enumerate(cells):
        found += [] if id(cell) in late else [cell]
        found += moved.get(number, [])
    return found


def _claims(submitted: list[Submitted], plan: Plan) -> dict[int, str]:
    """Say which submitted cell is which planned one."""
    claims: dict[int, str] = {}
    _claim(claims, submitted, plan, lambda cell, number: cell.name)
    _claim(claims, submitted, plan, lambda cell, number: cell.id)
    texts = {_squeeze(p.released): p.name for p in plan.cells.values() if _is_fixed(p)}
    texts |= {_squeeze(p.source): p.name for p in plan.cells.values() if _is_fixed(p)}
    _claim(claims, submitted, plan, lambda cell, number: texts.get(_squeeze(cell.source)))
    codes = [
        p.name
        for p in plan.cells.values()
        if p.cell_type == "code" and p.is_written_by_students and p.name not in claims.values()
    ]
    if codes:
        defined = [_defined(cell) for cell in submitted]
        _claim(
            claims,
            submitted,
            plan,
            lambda cell, number: next((name for name in codes if name in defined[number]), None),
        )
    names = list(plan.cells)
    follower = {a: b for a, b in itertools.pairwise(names) if plan.cells[b].cell_type != "code"}
    _claim(
        claims,
        submitted,
        plan,
        lambda cell, number: (
            follower.get(claims.get(number - 1, "")) if cell.cell_type != "code" else None
        ),
    )
    return claims


def _claim(
    claims: dict[int, str],
    submitted: list[Submitted],
    plan: Plan,
    name_of: Callable[[Submitted, int], str | None],
) -> None:
    """Give free names to cells that have none; the last one with the student's own work wins."""
    taken = set(claims.values())
    found: dict[str, list[int]] = {}
    for number, cell in enumerate(submitted):
        name = name_of(cell, number) if number not in claims else None
        if name in plan.cells and name not in taken:
            found.setdefault(name, []).append(number)
    for name, numbers in found.items():
        planned = plan.cells[name]
        own = [n for n in numbers if _squeeze(submitted[n].source) != _squeeze(planned.released)]
        if planned.is_written_by_students:
            claims[(own or numbers)[-1]] = name
        else:
            claims[next((n for n in numbers if n not in own), numbers[0])] = name


def _is_fixed(planned: Planned) -> bool:
    return not planned.is_written_by_students


def _holds_more(cell: Submitted, planned: Planned) -> bool:
    """Say whether a cell whose text is replaced held code of the student's: edits or a merge."""
    if not _is_fixed(planned) or cell.cell_type != "code":
        return False
    return _squeeze(cell.source) not in (_squeeze(planned.released), _squeeze(planned.source), "")


def _planned(planned: Planned, cell: Submitted | None) -> NotebookNode:
    text = planned.source if _is_fixed(planned) else planned.released
    if cell is not None and planned.is_written_by_students:
        text = cell.source
    new = _new(planned.cell_type, text, {"nbgrader": dict(planned.nbgrader)})
    _attach(new, cell)
    return new


def _extra(cell: Submitted) -> NotebookNode:
    new = _new(cell.cell_type, cell.source, {})
    _attach(new, cell)
    return new


def _new(cell_type: str, text: str, metadata: dict) -> NotebookNode:
    """Make a cell; the whole notebook is validated when it is written."""
    cell: dict[str, object] = {"cell_type": cell_type, "metadata": metadata, "source": text}
    if cell_type == "code":
        cell |= {"outputs": [], "execution_count": None}
    return from_dict(cell)


def _attach(new: NotebookNode, cell: Submitted | None) -> None:
    """Keep pictures in an answer."""
    if new.cell_type != "markdown" or cell is None or not cell.attachments:
        return
    new["attachments"] = {
        name: {kind: data for kind, data in bundle.items() if isinstance(data, str)}
        for name, bundle in cell.attachments.items()
        if isinstance(bundle, dict)
    }


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _defined(cell: Submitted | NotebookNode) -> set[str]:
    if cell.cell_type != "code":
        return set()
    try:
        body = ast.parse(cell.source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {n.name for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
