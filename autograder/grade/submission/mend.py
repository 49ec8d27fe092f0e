"""Put a submitted notebook in order: named cells as the plan has them, the student's work in them.

Everything but the text of cells comes from the plan. Cells are recognised by nbgrader's name, by
Jupyter's, or by what stands in them; what belongs to no planned cell stays where it was.
"""

import functools
import itertools
import re
from collections.abc import Callable

from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_notebook

from autograder.grade.submission.merged import parted
from autograder.grade.submission.plan import Plan, Planned
from autograder.grade.submission.reading import Submitted, whole
from autograder.handout.start import INSTALL
from course_pkg.checking.rules.syntax import bindings, definition, is_readable

_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

_RESET = re.compile(r"^[ \t]*%reset\b|magic\(\s*['\"]reset\b", re.MULTILINE)  # forgets all names


def mend(submitted: list[Submitted], plan: Plan) -> NotebookNode:
    """Make the notebook that is graded.

    Planned cells come in the plan's order, those that are missing with the text that students
    received; an exercise's missing cell stays missing, because its code may be elsewhere. Each
    of the other cells follows the planned cell that it followed; code above the imports follows
    them, because it may need them, unless it would undo them. Merged cells are taken apart first.
    """
    submitted = parted(submitted, plan)
    claims = recognise(submitted, plan)
    before: list[Submitted] = []
    extras: dict[str, list[Submitted]] = {name: [] for name in plan.cells}
    imports = next((name for name, p in plan.cells.items() if _is_imports(p)), "")
    place = before
    for number, cell in enumerate(submitted):
        if (name := claims.get(number)) is None:
            is_first = place is before or place is extras.get(INSTALL)
            is_above = is_first and imports and _may_need_imports(cell)
            (extras[imports] if is_above else place).append(cell)
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
    cells = _with_solutions(cells, plan)
    for number, new in enumerate(cells):
        new.id = new.metadata.get("nbgrader", {}).get("grade_id") or f"extra-{number}"
    return new_notebook(cells=cells, metadata=_METADATA)


def _with_solutions(cells: list[NotebookNode], plan: Plan) -> list[NotebookNode]:
    """Let each check see the student's solution, wherever that stands.

    Where a check would see a stub, or nothing, it moves behind the solution; a stub that would
    undo the solution moves before it. With too much code to read, all stays where it is.
    """
    cells = list(cells)
    own = [cell for cell in cells if _is_students(cell, plan)]
    if not is_readable(cell.source for cell in own):
        return cells
    bound = {id(cell): bindings(cell.source) for cell in own}
    for cell in list(cells):
        planned = _planned_as(cell, plan)
        if planned is None or planned.exercise is None:
            continue
        check = cells.index(cell)
        kinds = [bound.get(id(c), {}).get(planned.exercise) for c in cells]
        above = [n for n in range(check) if kinds[n] is not None]
        solved = [n for n, kind in enumerate(kinds) if kind]
        below = solved or [n for n, kind in enumerate(kinds) if kind is not None]
        if above and (kinds[above[-1]] or not solved):
            continue
        if early := [n for n in solved if n < check]:
            stubs = [cells[n] for n in above if n > early[-1]]
            moved = set(map(id, stubs))
            rest = [c for c in cells if id(c) not in moved]
            cells = [*rest[: early[-1]], *stubs, *rest[early[-1] :]]
        elif below:  # nothing is above
            cells.insert(below[-1], cells.pop(check))
    return cells


def recognise(submitted: list[Submitted], plan: Plan) -> dict[int, str]:
    """Say which submitted cell is which planned one."""
    claims: dict[int, str] = {}
    _claim(claims, submitted, plan, lambda cell, number: cell.name)
    _claim(claims, submitted, plan, lambda cell, number: cell.id)
    texts = {squeeze(p.released): p.name for p in plan.cells.values() if _is_fixed(p)}
    texts |= {squeeze(p.source): p.name for p in plan.cells.values() if _is_fixed(p)}
    texts |= {squeeze(p.released): p.name for p in plan.cells.values() if p.cell_type == "code"}
    _claim(claims, submitted, plan, lambda cell, number: texts.get(squeeze(cell.source)))
    codes = [
        p.name
        for p in plan.cells.values()
        if p.cell_type == "code" and p.is_written_by_students and p.name not in claims.values()
    ]
    if codes and is_readable(cell.source for cell in submitted if cell.cell_type == "code"):
        _claim(
            claims,
            submitted,
            plan,
            lambda cell, number: next((n for n in codes if _defines(cell, n)), None),
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
        own = [n for n in numbers if squeeze(submitted[n].source) != squeeze(planned.released)]
        if planned.is_written_by_students:
            claims[(own or numbers)[-1]] = name
        else:
            claims[next((n for n in numbers if n not in own), numbers[0])] = name


def _is_imports(planned: Planned) -> bool:
    """Say whether a cell is the first that a notebook needs."""
    return planned.cell_type == "code" and planned.name != INSTALL


def _may_need_imports(cell: Submitted) -> bool:
    return cell.cell_type == "code" and not _RESET.search(cell.source)


def _is_fixed(planned: Planned) -> bool:
    return not planned.is_written_by_students


def _holds_more(cell: Submitted, planned: Planned) -> bool:
    """Say whether a cell whose text is replaced held code of the student's: edits or a merge."""
    if not _is_fixed(planned) or cell.cell_type != "code":
        return False
    return squeeze(cell.source) not in (squeeze(planned.released), squeeze(planned.source), "")


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
        whole(name): {
            whole(kind): whole(data) for kind, data in bundle.items() if isinstance(data, str)
        }
        for name, bundle in cell.attachments.items()
        if isinstance(bundle, dict)
    }


def _planned_as(cell: NotebookNode, plan: Plan) -> Planned | None:
    return plan.cells.get(cell.metadata.get("nbgrader", {}).get("grade_id"))


def _is_students(cell: NotebookNode, plan: Plan) -> bool:
    planned = _planned_as(cell, plan)
    return cell.cell_type == "code" and (planned is None or not _is_fixed(planned))


@functools.lru_cache(maxsize=256)  # the plan's cells for every submission, and its own thrice
def squeeze(text: str) -> str:
    """Give a text without its layout."""
    return re.sub(r"\s+", " ", text).strip()


def _defines(cell: Submitted, name: str) -> bool:
    return cell.cell_type == "code" and definition(name, [cell.source]) is not None
