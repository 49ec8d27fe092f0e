"""Build what is generated: notebooks, and what checks and graders know of their exercises."""

import argparse
import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.apps.api import NbGraderAPI
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import SaveCells
from traitlets.config.loader import PyFileConfigLoader

from autograder.assignment import ROOT, Assignment, CourseError, assignments
from autograder.author import empty_solutions, write_outline
from autograder.author.depends import changes, graders_depend_on
from autograder.author.examination import exercises, of_reference
from autograder.author.execution import claims, execute
from autograder.author.figures import with_small_figures
from autograder.author.fingerprints import files, is_fresh, stale
from autograder.author.notebook import notebook, pictures
from autograder.author.trial import forget_other_code, kept, values_of
from autograder.black_boxes import BLACK_BOXES
from autograder.grade.judging.points import earned, told
from autograder.handout import start
from autograder.hidden import folder
from course_pkg.checking.black_box import closed
from course_pkg.checking.telling import naming
from course_pkg.checking.telling.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignments", nargs="*", metavar="NN_topic", help="default: all")
    parser.add_argument(
        "--execute", action="store_true", help="run solved notebooks even if nothing has changed"
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--check", action="store_true", help="change nothing; fail if a file is out of date"
    )
    either.add_argument(
        "--without-hints", action="store_true", help="leave the hints out of the notebooks"
    )


def main(arguments: argparse.Namespace) -> int:
    """Build assignments, or check that what is committed is what would be built."""
    found = []
    for assignment in assignments(arguments.assignments):
        start = time.perf_counter()
        if arguments.check:
            found += [is_stale(path, assignment) for path in check(assignment)]
        else:
            hints = not arguments.without_hints
            for path in build(assignment, execute=arguments.execute, with_hints=hints):
                print(f"wrote {path.relative_to(ROOT)}")
        print(f"{assignment.name}: {time.perf_counter() - start:.1f} s")
    if not arguments.assignments:
        made = _of_the_course()
        if arguments.check:
            old = [path for path, content in made.items() if not _holds(path, content)]
            found += [
                f"{path.relative_to(ROOT)} is stale: run `python -m autograder build`"
                for path in old
            ]
        else:
            for path in _write(made):
                print(f"wrote {path.relative_to(ROOT)}")
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


def _of_the_course() -> dict[Path, bytes]:
    """What belongs to no assignment: the pictures of README, and the notebook that welcomes."""
    from autograder.author import front, welcome  # they import what most builds do not need

    return front.pictures() | welcome.files()


def build(assignment: Assignment, *, execute: bool = False, with_hints: bool = True) -> list[Path]:
    """Write the files of an assignment that are missing or out of date.

    A solved notebook whose code and whose imports are unchanged keeps its outputs, so that plots,
    and numbers that depend on the machine, change in a commit only when their code does. What its
    checks print is written anew.

    Returns:
        The files that were written.
    """
    written = _write(_closed(assignment)) + _graders(assignment)
    written += _write(write_outline.table(assignment, with_hints=with_hints))
    nb = _unsolved(assignment, with_hints)
    forget_other_code(assignment, nb)
    stored = _read(assignment.solved)
    reason = "as you ask" if execute else _why_run(stored, nb)
    if reason:
        print(f"{assignment.name}: running the solved notebook: {reason} …", flush=True)
        _execute(assignment, nb)
    else:
        _keep_outputs(assignment, stored, nb)
    written += _write(_solved(assignment, nb))
    return written + _write(_released(assignment))


def _unsolved(assignment: Assignment, with_hints: bool) -> NotebookNode:
    """Make the instructor's notebook, without outputs, and note all that these depend on."""
    nb = notebook(assignment, with_hints=with_hints)
    nb.metadata["course"]["outputs_depend_on"] |= values_of(kept(assignment, nb))
    return nb


def _graders(assignment: Assignment) -> list[Path]:
    """Write what graders know of mistakes, if the code that it comes from has changed.

    To run all mistakes takes a minute or two, which a change of a text need not wait for. `check`
    takes nothing for granted, and when it finds one of these files stale, it forgets the last code.
    """
    names = [*(ROOT / "course_pkg" / "checks" / "data").glob(f"{assignment.name}.npz")]
    names += folder(assignment.topic).glob(f"{assignment.name}.*")
    last = _last(assignment)
    code = graders_depend_on(assignment.topic)
    if last.exists() and last.read_text() == _state(code, names):
        return []
    written = []
    for path, entries in files(assignment).items():
        if not is_fresh(path, entries):
            naming.save(path, entries)
            written.append(path)
    written += _write(empty_solutions.table(assignment))
    last.parent.mkdir(parents=True, exist_ok=True)
    last.write_text(_state(code, {*names, *written}))
    return written


def _closed(assignment: Assignment) -> dict[Path, bytes]:
    """The file of the assignment's black box, if it has one."""
    exercises(assignment.topic)
    if (box := BLACK_BOXES.get(assignment.topic)) is None:
        return {}
    path = ROOT / "course_pkg" / "checks" / "data" / f"{assignment.name}.box"
    return {path: closed(box.exercise.name, box.source).encode()}


def _last(assignment: Assignment) -> Path:
    """Where a build notes the code that it has last run mistakes for."""
    return ROOT / "build" / "graders" / f"{assignment.name}.txt"


def _state(code: str, paths: Iterable[Path]) -> str:
    """Name the code that files came from, and what they hold."""
    held = (f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths)
    return "\n".join([code, *sorted(held)])


def check(
    assignment: Assignment, *, with_hints: bool = True, with_mistakes: bool = True
) -> list[Path]:
    """List the files of an assignment that are missing or not what `build` would write.

    Without mistakes, the files stay out of it for which all known mistakes have to run.
    """
    found = stale(assignment) if with_mistakes else []
    tables = empty_solutions.table(assignment) | _closed(assignment)
    tables |= write_outline.table(assignment, with_hints=with_hints)
    found += [path for path, content in tables.items() if not _holds(path, content)]
    if found:
        _last(assignment).unlink(missing_ok=True)
    nb = _unsolved(assignment, with_hints)
    stored = _read(assignment.solved)
    if _why_run(stored, nb):
        return [*found, assignment.solved]
    _keep_outputs(assignment, stored, nb)
    expected = _solved(assignment, nb) | _released(assignment)
    return found + [path for path, content in expected.items() if not _holds(path, content)]


def is_stale(path: Path, assignment: Assignment) -> str:
    """Say which file is out of date and what mends it."""
    return f"{path.relative_to(ROOT)} is stale: run `python -m autograder build {assignment.name}`"


def _read(path: Path) -> NotebookNode | None:
    return nbformat.read(path, as_version=4) if path.exists() else None


def _why_run(stored: NotebookNode | None, nb: NotebookNode) -> str:
    """Say why a solved notebook must run; an empty text means that its outputs can stay."""
    if stored is None:
        return "there is none yet"
    known = stored.metadata.get("course", {}).get("outputs_depend_on", {})
    changed = changes(known, nb.metadata["course"]["outputs_depend_on"])
    return f"{', '.join(changed)} changed" if changed else ""


def _keep_outputs(assignment: Assignment, stored: NotebookNode, nb: NotebookNode) -> None:
    """Give cells the outputs that they had; what checks print is written anew."""
    old = {cell.id: cell for cell in stored.cells if cell.cell_type == "code"}
    reports = {f"check_{e.name}": of_reference(e) for e in exercises(assignment.topic)}
    codes = [cell for cell in nb.cells if cell.cell_type == "code"]
    for count, cell in enumerate(codes, start=1):
        if cell.id in old:
            cell.outputs = old[cell.id].outputs
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = count
        cell.execution_count = count
        report = reports.get(cell.id)
        if report is not None and not any(o.why_not for o in report.outcomes):
            points = earned(cell.metadata["nbgrader"]["points"], report)
            cell.outputs = _printed(report, points, count)


def _printed(report: Report, points: float, count: int) -> list[NotebookNode]:
    """What a graded cell puts out."""
    number = new_output("execute_result", {"text/plain": repr(points)}, execution_count=count)
    return [new_output("stream", name="stdout", text=told(report) + "\n"), number]


def _execute(assignment: Assignment, nb: NotebookNode) -> None:
    try:
        execute(nb)
    except CellExecutionError as error:
        raise CourseError(f"{assignment.master}: a cell fails\n{error}") from None
    if broken := [claim["what"] for claim in claims(nb) if not claim["holds"]]:
        raise CourseError(f"{assignment.master}: these claims do not hold: {'; '.join(broken)}")
    if bare := bounds_of_nothing(nb):
        raise CourseError(
            f"{assignment.master}: these claims compare with a number that is neither a control by "
            f"its name, above={{...}}, nor says why=...: {'; '.join(bare)}"
        )
    with_small_figures(nb)


def bounds_of_nothing(nb: NotebookNode) -> list[str]:
    """List the claims of an executed notebook whose bounds are numbers and nothing else."""
    return [
        claim["what"]
        for claim in claims(nb)
        if claim["margin"] is not None and not {"beside", "why"} & claim.keys()
    ]


def _solved(assignment: Assignment, nb: NotebookNode) -> dict[Path, bytes]:
    """The instructor's files: the notebook and its pictures."""
    folder = assignment.solved.parent
    found = {folder / path.name: path.read_bytes() for path in pictures(assignment)}
    return {assignment.solved: (nbformat.writes(nb) + "\n").encode(), **found}


def _released(assignment: Assignment) -> dict[Path, bytes]:
    """The student's files, which nbgrader's generate_assignment makes from the instructor's.

    Where the course is published, its notebook gets links that open it elsewhere.

    Raises:
        CourseError: nbgrader refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder)
        shutil.copy(ROOT / "nbgrader_config.py", course)
        shutil.copytree(assignment.solved.parent, course / "solutions" / assignment.name)
        config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
        # Making a gradebook takes seconds, and the notebook does not depend on it.
        config.GenerateAssignment.no_database = True
        config.GenerateAssignment.preprocessors = [
            step for step in GenerateAssignment().preprocessors if step is not SaveCells
        ]
        result = NbGraderAPI(config=config).generate_assignment(assignment.name)
        if not result["success"]:
            raise CourseError(f"{assignment.master}: nbgrader refuses\n{result['log']}")
        made = (course / "notebooks" / assignment.name).iterdir()
        found = {assignment.student.parent / path.name: path.read_bytes() for path in made}
    found[assignment.student] = linked(found[assignment.student], assignment)
    return found


def linked(notebook: bytes, assignment: Assignment) -> bytes:
    """Put the links that open a student's notebook elsewhere below its title, if it is public."""
    if not (links := start.links(assignment)):
        return notebook
    nb = nbformat.reads(notebook.decode(), as_version=4)
    title, _, rest = nb.cells[0].source.partition("\n")
    nb.cells[0].source = f"{title}\n\n{links}\n{rest}"
    return (nbformat.writes(nb) + "\n").encode()


def _holds(path: Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content


def _write(contents: dict[Path, bytes]) -> list[Path]:
    """Write the files that do not hold their content already; list them."""
    changed = [path for path, content in contents.items() if not _holds(path, content)]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[path])
    return changed
