"""Make the instructor's notebook, not yet executed, from a master and course_pkg."""

import ast
import hashlib
import importlib
import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.assignment import Assignment, CourseError, assignments
from autograder.author import calls, collapsible, predictions
from autograder.author.depends import outputs_depend_on
from autograder.author.experiments import mark_experiments
from autograder.author.master import Code, ExerciseFence, Part, Prediction, Question, Text, parts
from autograder.handout import start
from autograder.handout.exercise import exercises
from autograder.hidden import load_hidden
from course_pkg.checking.registry import CHECKS

_TOPIC = re.compile(r"\[\[([a-z][a-z_0-9]*)\]\]")
_BY_HAND = re.compile(r"\bAssignments?\s+\d\d?\b|\b\d\d_[a-z]\w*|(?<=\s)\(\d\d\)")
_MARKER = re.compile(r"^# NBVAL_CHECK_OUTPUT\n", re.MULTILINE)
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^):/]+)\)")


def notebook(assignment: Assignment, *, with_hints: bool = True) -> NotebookNode:
    """Make the notebook of an assignment.

    Its metadata holds hashes of the code that its outputs depend on. The cell that installs
    course_pkg is no part of that: another address, or another version, changes no output.

    Raises:
        CourseError: the master and course_pkg do not fit together.
    """
    written = parts(assignment.master, with_hints=with_hints)
    found = [with_numbers(assignment, part) for part in written]
    sources = _exercises(assignment)
    _demand_same_exercises(assignment, found, sources)
    _demand_headings(assignment, found)
    _demand_claims(assignment, found)
    predictions.demand_outcomes(assignment.master, found)
    cells = [cell for part in found for cell in _cells(assignment, part, sources)]
    mark_experiments(cells)
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "course": {"outputs_depend_on": outputs_depend_on(cells, assignment.topic)},
    }
    first = next((n for n, cell in enumerate(cells) if cell.cell_type == "code"), len(cells))
    cells.insert(first, _installing(assignment))
    return _with_ids(assignment, new_notebook(cells=cells, metadata=metadata))


def _installing(assignment: Assignment) -> NotebookNode:
    text = start.installing(assignment)
    # Folded: a student at home never needs it.
    folded = {"jupyter": {"source_hidden": True}}
    return new_code_cell(text, metadata=_nbgrader(start.INSTALL, locked=True) | folded)


def pictures(assignment: Assignment) -> list[Path]:
    """List the pictures beside the master that its text shows.

    Raises:
        CourseError: there is no such file.
    """
    names = _PICTURE.findall(assignment.master.read_text(encoding="utf-8"))
    found = [assignment.master.parent / name for name in names]
    for path in found:
        if not path.exists():
            raise CourseError(f"{assignment.master}:1: there is no picture {path}")
    return found


def with_numbers(assignment: Assignment, part: Part) -> Part:
    """Replace topics, `[[lstm]]`, by numbers, and put the assignment's own into the title."""
    known = {other.topic: other.name[:2] for other in assignments()}

    def number(match: re.Match) -> str:
        if match[1] not in known:
            line = _line(assignment, match[0])
            alike = ", ".join(get_close_matches(match[1], known, n=3, cutoff=0.4))
            raise CourseError(
                f"{assignment.master}:{line}: there is no assignment {match[0]}; {alike}?"
            )
        return known[match[1]]

    def resolved(text: str) -> str:
        if by_hand := _BY_HAND.search(text):
            line = _line(assignment, by_hand[0])
            raise CourseError(
                f"{assignment.master}:{line}: {by_hand[0]!r} goes by number; write [[topic]]"
            )
        text = re.sub(r"\A# ", f"# {assignment.name[:2]} · ", text)
        return _TOPIC.sub(number, text)

    match part:
        case Text():
            return Text(resolved(part.source))
        case ExerciseFence():
            return replace(part, hints=tuple(map(resolved, part.hints)))
        case Prediction():
            return replace(part, question=resolved(part.question))
        case Question():
            return replace(part, text=resolved(part.text), rubric=resolved(part.rubric))
    return part


def _line(assignment: Assignment, text: str) -> int:
    """The first line of a master that contains a text."""
    lines = assignment.master.read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, 1) if text in line), 1)


def _exercises(assignment: Assignment) -> dict[str, str]:
    try:
        return exercises(assignment.reference)
    except ValueError as error:
        raise CourseError(str(error)) from None


def _demand_same_exercises(
    assignment: Assignment, found: list[Part], sources: dict[str, str]
) -> None:
    place = f"course_pkg.{assignment.topic}"
    placed = {part.name: part.line for part in found if isinstance(part, ExerciseFence)}
    for name, line in placed.items():
        if name not in sources:
            raise CourseError(f"{assignment.master}:{line}: there is no {name!r} in {place}")
    if unused := [name for name in sources if name not in placed]:
        raise CourseError(
            f"{assignment.master}:1: {unused[0]!r} of {place} has no fence; "
            f'add ```python exercise="{unused[0]}" points=…'
        )


def _demand_headings(assignment: Assignment, found: list[Part]) -> None:
    """Every check that refers to a heading must find it; every exercise must have its checks."""
    importlib.import_module(f"course_pkg.checks.{assignment.topic}")
    text = "\n".join(part.source for part in found if isinstance(part, Text))
    headings = set(re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE))
    checked = {e: checks for e, checks in CHECKS.items() if e.module == assignment.topic}
    if checked:
        load_hidden(next(iter(checked)))
    for part in found:
        if isinstance(part, ExerciseFence):
            own = [c for e, cs in checked.items() if e.name == part.name for c in cs.values()]
            if all(check.hidden for check in own):
                raise CourseError(
                    f"{assignment.master}:{part.line}: {part.name} needs checks in "
                    f"course_pkg/checks/{assignment.topic}.py"
                )
            for check in own:
                if check.see and check.see not in headings:
                    raise CourseError(
                        f"{assignment.master}:{part.line}: the check {check.name} of {part.name} "
                        f"refers to the heading {check.see!r}, which is not there"
                    )


def _demand_claims(assignment: Assignment, found: list[Part]) -> None:
    """Experiments claim, after their figures: a claim that does not hold must not hide a figure."""
    codes = [part.source for part in found if isinstance(part, Code)]
    drawing = {"plot", "plt", "pyplot"}
    for source in codes:
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and drawing & _names(node):
                drawing.add(node.name)
    for source in codes:
        lines = source.splitlines()
        claimed = False
        for node in _in_order(ast.parse(source)):
            if isinstance(node, ast.Assert) or _called(node).startswith("assert_"):
                problem = "is no claim; write claim(…), which says what was expected"
            elif claimed and _called(node) in drawing:
                problem = "draws after a claim; draw first"
            else:
                claimed |= _called(node) == "claim"
                continue
            text = lines[node.lineno - 1].strip()
            line = _line(assignment, text)
            raise CourseError(f"{assignment.master}:{line}: {text!r} {problem}")


def _in_order(tree: ast.AST) -> list[ast.AST]:
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.Assert, ast.Call))]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _called(node: ast.AST) -> str:
    """The name of a function that is called: `plot` in plot.curves(…) and in plot(…)."""
    if not isinstance(node, ast.Call):
        return ""
    match node.func:
        case ast.Attribute(ast.Name("plot" | "plt" | "pyplot" as module), _):
            return module
        case ast.Attribute(_, name) | ast.Name(name):
            return name
    return ""


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _cells(assignment: Assignment, part: Part, sources: dict[str, str]) -> Iterator[NotebookNode]:
    match part:
        case Text():
            text = collapsible.with_folded_expectations(part.source)
            yield new_markdown_cell(collapsible.with_folded_warnings(text))
        case Code():
            name = "cell-" + hashlib.sha256(part.source.encode()).hexdigest()[:8]
            yield _code(part.source, _nbgrader(name, locked=True))
        case ExerciseFence():
            points = int(part.points) if part.points.is_integer() else part.points
            if table := calls.needed(assignment.topic, part.name):
                yield new_markdown_cell(table)
            yield new_code_cell(sources[part.name], metadata=_nbgrader(part.name, solution=True))
            if part.hints:
                yield new_markdown_cell(collapsible.hints(part.name, part.hints))
            yield new_code_cell(
                "### BEGIN HIDDEN TESTS\n"
                "from autograder.grade.judging.graded_cell import graded\n\n"
                f"check = graded(points={points})\n"
                "### END HIDDEN TESTS\n"
                f"check({part.name})",
                metadata=_nbgrader(f"check_{part.name}", points=part.points, locked=True),
            )
        case Prediction():
            # Without nbgrader's metadata it is the student's own: neither locked nor graded.
            yield new_code_cell(predictions.cell(part.question))
        case Question():
            rubric = (
                f"<!-- BEGIN MARK SCHEME -->\n**Rubric**\n\n{part.rubric}\n<!-- END MARK SCHEME -->"
            )
            yield new_markdown_cell(
                f"{part.text} *({part.points:g} points)*\n\n{rubric}",
                metadata=_nbgrader(f"question_{part.name}", locked=True),
            )
            yield new_markdown_cell(
                "A good answer is described by the rubric above.",
                metadata=_nbgrader(part.name, points=part.points, solution=True),
            )


def _code(source: str, metadata: dict) -> NotebookNode:
    """A cell; what tells nbval that its output must not change is a tag there, not a comment."""
    alone, found = _MARKER.subn("", source)
    tags = {"tags": ["nbval-check-output"]} if found else {}
    return new_code_cell(alone, metadata=metadata | tags)


def _nbgrader(
    name: str, *, points: float | None = None, solution: bool = False, locked: bool = False
) -> dict:
    metadata = {
        "schema_version": 3,
        "grade_id": name,
        "grade": points is not None,
        "solution": solution,
        "locked": locked,
        "task": False,
    }
    return {"nbgrader": metadata if points is None else {**metadata, "points": points}}


def _with_ids(assignment: Assignment, nb: NotebookNode) -> NotebookNode:
    seen = set()
    for cell in nb.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        kind = "text" if cell.cell_type == "markdown" else "predict"
        cell.id = name or f"{kind}-{hashlib.sha256(cell.source.encode()).hexdigest()[:8]}"
        if cell.id in seen:
            raise CourseError(
                f"{assignment.master}:1: two cells are the same: {cell.source.splitlines()[0]!r}"
            )
        seen.add(cell.id)
    return nb
