"""Build what is generated: instructors' and students' notebooks and the fingerprints of bugs."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbgrader.apps.api import NbGraderAPI
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import SaveCells
from traitlets.config.loader import PyFileConfigLoader

from autograder.fingerprints import files, is_fresh
from autograder.master import ROOT, Assignment, MasterError, assignments
from autograder.notebook import notebook
from course_pkg.checking import fingerprints

CELL_SECONDS = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignments", nargs="*", metavar="NN_topic", help="default: all")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if stale")
    parser.add_argument("--execute", action="store_true", help="run solved notebooks in any case")


def main(arguments: argparse.Namespace) -> int:
    """Build assignments, or check that what is committed is what would be built."""
    stale = []
    for assignment in assignments(arguments.assignments):
        start = time.perf_counter()
        if arguments.check:
            stale += [is_stale(path, assignment) for path in check(assignment)]
        else:
            for path in build(assignment, execute=arguments.execute):
                print(f"wrote {path.relative_to(ROOT)}")
        print(f"{assignment.name}: {time.perf_counter() - start:.1f} s")
    for line in stale:
        print(line, file=sys.stderr)
    return 1 if stale else 0


def build(assignment: Assignment, *, execute: bool = False) -> list[Path]:
    """Write the files of an assignment that are missing or stale.

    A solved notebook whose code and whose imports are unchanged keeps its outputs, so that plots,
    and numbers that depend on the machine, change in a commit only when their code does.

    Returns:
        The files that were written.
    """
    written = []
    for path, entries in files(assignment).items():
        if not is_fresh(path, entries):
            fingerprints.save(path, entries)
            written.append(path)
    nb = notebook(assignment)
    stored = _read(assignment.solved)
    if execute or not _same_code(stored, nb):
        _execute(assignment, nb)
    else:
        _keep_outputs(stored, nb)
    written += _write(assignment.solved, nbformat.writes(nb) + "\n")
    return written + _write(assignment.student, _student(assignment))


def check(assignment: Assignment) -> list[Path]:
    """List the files of an assignment that are missing or not what `build` would write."""
    stale = [path for path, entries in files(assignment).items() if not is_fresh(path, entries)]
    nb = notebook(assignment)
    stored = _read(assignment.solved)
    if not _same_code(stored, nb):
        return [*stale, assignment.solved]
    _keep_outputs(stored, nb)
    if assignment.solved.read_text(encoding="utf-8") != nbformat.writes(nb) + "\n":
        stale.append(assignment.solved)
    if not assignment.student.exists() or assignment.student.read_text(
        encoding="utf-8"
    ) != _student(assignment):
        stale.append(assignment.student)
    return stale


def is_stale(path: Path, assignment: Assignment) -> str:
    """Say which file is stale and what mends it."""
    return f"{path.relative_to(ROOT)} is stale: run `python -m autograder build {assignment.name}`"


def _read(path: Path) -> NotebookNode | None:
    return nbformat.read(path, as_version=4) if path.exists() else None


def _same_code(stored: NotebookNode | None, nb: NotebookNode) -> bool:
    return stored is not None and stored.metadata.get("course") == nb.metadata["course"]


def _keep_outputs(stored: NotebookNode, nb: NotebookNode) -> None:
    old = {cell.id: cell for cell in stored.cells if cell.cell_type == "code"}
    for cell in nb.cells:
        if cell.cell_type == "code" and cell.id in old:
            cell.outputs = old[cell.id].outputs
            cell.execution_count = old[cell.id].execution_count


def _execute(assignment: Assignment, nb: NotebookNode) -> None:
    print(f"{assignment.name}: running the solved notebook …", flush=True)
    language = nb.metadata["language_info"]
    environment = {**os.environ, "COURSE_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            nb,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": folder}},
            record_timing=False,
            coalesce_streams=True,
        )
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            raise MasterError(f"{assignment.master}: a cell fails\n{error}") from None
    nb.metadata["language_info"] = language  # without the Python version


def _student(assignment: Assignment) -> str:
    """Make the student's notebook from the solved one with nbgrader's generate_assignment.

    Raises:
        MasterError: nbgrader refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder)
        shutil.copy(ROOT / "nbgrader_config.py", course)
        source = course / "solutions" / assignment.name
        source.mkdir(parents=True)
        shutil.copy(assignment.solved, source)
        config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
        # Making a gradebook takes seconds, and the notebook does not depend on it.
        config.GenerateAssignment.no_database = True
        config.GenerateAssignment.preprocessors = [
            step for step in GenerateAssignment().preprocessors if step is not SaveCells
        ]
        result = NbGraderAPI(config=config).generate_assignment(assignment.name)
        if not result["success"]:
            raise MasterError(f"{assignment.master}: nbgrader refuses\n{result['log']}")
        released = course / "notebooks" / assignment.name / assignment.student.name
        return released.read_text(encoding="utf-8")


def _write(path: Path, text: str) -> list[Path]:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return [path]
