"""`python -m autograder gradescope`: the archive with which Gradescope grades an assignment.

It holds this assignment's part of the course and two scripts. Gradescope runs setup.sh once, when
it makes an image, and run_autograder for each submission; that calls this module again:

    python -m autograder.classroom.gradescope 02_lstm    # writes /autograder/results/results.json

See https://gradescope-autograders.readthedocs.io/en/latest/specs/ for what it reads.
"""

import argparse
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from string import Template

import nbformat

from autograder.assignment import ROOT, Assignment, CourseError, assignments
from autograder.author.build import check, is_stale
from autograder.classroom.reports.diagnosis import text_of
from autograder.grade.batch import command as batch
from autograder.grade.batch.gradebook import Recorder
from autograder.grade.kernel import sandbox
from autograder.grade.submission.submission import Course
from autograder.handout.wheel import drop_later

STUDENT = "student"  # whoever submitted; Gradescope knows the name
PLACE = Path("/autograder")
_SETUP = """\
#!/usr/bin/env bash
# Gradescope runs this once, as root, when it makes the image.
set -euo pipefail
cd /autograder/source
export PYTHONPATH=$$PWD
# What is already there is used as it is.
if [ ! -x .venv/bin/python ] || ! command -v bwrap > /dev/null; then
  apt-get update
  apt-get install -y --no-install-recommends bubblewrap python3-venv
fi
if [ ! -x .venv/bin/python ]; then
  python3 -m venv /opt/uv
  /opt/uv/bin/pip install uv
  /opt/uv/bin/uv venv --seed --python 3.12 .venv
  .venv/bin/pip install --extra-index-url https://download.pytorch.org/whl/cpu \\
    --editable ".[student,grading]"
fi
.venv/bin/python -m nbgrader generate_assignment $name
"""
_RUN = """\
#!/usr/bin/env bash
# Gradescope runs this for each submission.
set -euo pipefail
cd /autograder/source
export PYTHONPATH=$$PWD OMP_NUM_THREADS=1$switch
exec .venv/bin/python -m autograder.classroom.gradescope $name
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="NN_topic")


def main(arguments: argparse.Namespace) -> int:
    """Make the archive of an assignment, unless something in it is out of date."""
    (assignment,) = assignments([arguments.assignment])
    if stale := check(assignment):
        raise CourseError(is_stale(stale[0], assignment))
    path = ROOT / "autograder" / "course" / f"gradescope_{assignment.name}.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    archive(assignment, path)
    print(path.relative_to(ROOT))
    if sandbox.is_off():
        print(sandbox.WARNING, file=sys.stderr)
        print("The archive will grade without a sandbox on Gradescope too.", file=sys.stderr)
    return 0


def archive(assignment: Assignment, path: Path) -> None:
    """Write the archive; it grades without a sandbox if this is how this process would grade."""
    switch = f" {sandbox.SWITCH}=off" if sandbox.is_off() else ""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path, "w") as files:
        _stage(assignment, Path(folder))
        for file in sorted(Path(folder).rglob("*")):
            if file.is_file():
                files.write(file, file.relative_to(folder), zipfile.ZIP_DEFLATED)
        for name, text in (("setup.sh", _SETUP), ("run_autograder", _RUN)):
            script = zipfile.ZipInfo(name)
            script.external_attr = 0o755 << 16
            files.writestr(script, Template(text).substitute(name=assignment.name, switch=switch))


def _stage(assignment: Assignment, folder: Path) -> None:
    """Copy what grades this assignment: nothing of later ones, and no graders of others."""
    unwanted = shutil.ignore_patterns("__pycache__", "course", "challenges", "assignments")
    shutil.copytree(ROOT / "course_pkg", folder / "course_pkg", ignore=unwanted)
    drop_later(assignment, folder / "course_pkg")
    shutil.copytree(ROOT / "autograder", folder / "autograder", ignore=unwanted)
    shutil.copytree(assignment.solved.parent, folder / "solutions" / assignment.name)
    hidden = f"autograder/assignments/{assignment.topic}/hidden.py"
    data = f"autograder/assignments/{assignment.topic}/data/{assignment.name}.npz"
    for name in ("pyproject.toml", "nbgrader_config.py", hidden, data):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for other in assignments():  # their names say what students have; the texts do not matter
        if other.name <= assignment.name:
            (folder / "solutions" / f"{other.name}.md").touch()


def grade(name: str) -> int:
    """Grade the submission that Gradescope has put in place; write what it shows."""
    course = Course(ROOT)
    target = course.submitted / STUDENT / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(PLACE / "submission", target, symlinks=True)
    parser = argparse.ArgumentParser()
    batch.add_arguments(parser)
    options = [name, "--workers", "1", "--course", str(ROOT)]
    if status := batch.main(parser.parse_args(options)):
        return status  # without results, Gradescope shows staff what was printed
    found = json.dumps(results(course, name), ensure_ascii=False, indent=1)
    (PLACE / "results" / "results.json").write_text(found, encoding="utf-8")
    return 0


def results(course: Course, name: str) -> dict:
    """Collect the scores and what the checks said of each exercise, as Gradescope reads them."""
    cells = course.plan(name).cells.values()
    nb = nbformat.read(course.work / "autograded" / STUDENT / name / f"{name}.ipynb", 4)
    said = {cell.id: text_of(cell).strip() for cell in nb.cells if cell.cell_type == "code"}
    scores, notes = Recorder(course, name).details(STUDENT)
    tests = [
        {
            "name": cell.exercise,
            "score": scores[cell.name],
            "max_score": cell.points,
            "output": said[cell.name],
            "output_format": "text",
            "visibility": "visible",
        }
        for cell in cells
        if cell.is_checked
    ]
    by_hand = [cell.name for cell in cells if cell.points and not cell.is_checked]
    if by_hand:
        notes.append(f"A person grades {', '.join(by_hand)}; these points are not in the score.")
    return {"output": "\n".join(notes), "output_format": "text", "tests": tests}


if __name__ == "__main__":
    sys.exit(grade(sys.argv[1]))
