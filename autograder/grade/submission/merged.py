"""Take apart what was merged: a student's own code, and given cells that are not there alone.

A merged cell would run as one, with experiments and checks in it, in the time that a single
solution has.
"""

from dataclasses import replace

from autograder.grade.submission.plan import Plan
from autograder.grade.submission.reading import Submitted
from course_pkg.checking.rules.syntax import is_readable, parse

_Lines = tuple[str, ...]


def parted(submitted: list[Submitted], plan: Plan) -> list[Submitted]:
    """Give the cells of a notebook, the merged ones in parts.

    A given text is recognised as it is. So the cell's own names are those of the first part, unless
    they are names of a given cell.
    """
    if not is_readable(cell.source for cell in submitted if cell.cell_type == "code"):
        return submitted
    fixed = [
        p for p in plan.cells.values() if p.cell_type == "code" and not p.is_written_by_students
    ]
    there = {_lines(cell.source) for cell in submitted}
    given = {_lines(p.released) for p in fixed if _lines(p.source) not in there} - there - {()}
    missing = {lines[0]: [each for each in given if each[0] == lines[0]] for lines in given}
    found = []
    for cell in submitted:
        parts = _parts(cell.source, missing) if cell.cell_type == "code" else []
        if len(parts) < 2 or (parse(cell.source) and not all(map(parse, parts))):
            found.append(cell)  # the given text may stand in a string
            continue
        planned = plan.cells.get(cell.name or cell.id or "")
        if planned is not None and not planned.is_written_by_students:
            cell = replace(cell, name=None, id=None)
        found.append(replace(cell, source=parts[0]))
        found += [Submitted("code", part, None, None) for part in parts[1:]]
    return found


def _parts(source: str, missing: dict[str, list[_Lines]]) -> list[str]:
    """Cut a text above and below each of the missing ones that begins a line there, once each."""
    lines = [line.rstrip() for line in source.split("\n")]
    parts, begin, number, seen = [], 0, 0, set()
    while number < len(lines):
        length = max(
            (
                len(each)
                for each in missing.get(lines[number], ())
                if each not in seen and tuple(lines[number : number + len(each)]) == each
            ),
            default=0,
        )
        if length:
            seen.add(tuple(lines[number : number + length]))
            parts += [lines[begin:number], lines[number : number + length]]
            begin = number + length
        number += max(length, 1)
    parts.append(lines[begin:])
    return [text for part in parts if (text := "\n".join(part).strip("\n"))]


def _lines(text: str) -> _Lines:
    return tuple(line.rstrip() for line in text.strip("\n").split("\n")) if text.strip() else ()
