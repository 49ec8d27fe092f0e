"""Make what students receive, a bundle without the solutions, and release it."""

import argparse
import shutil
import sys
from pathlib import Path
from string import Template

import nbformat

from autograder.assignment import Assignment, CourseError, assignments, course_folder
from autograder.author.build import check, is_stale
from autograder.grade.late.policy import ASSISTANTS, Policy, read
from autograder.handout.wheel import wheel

BUNDLES = Path("autograder") / "course" / "bundles"
_ENVIRONMENT = """\
# For conda: conda env create -f environment.yml
name: sequence-models
channels:
  - conda-forge
dependencies:
  - python=3.12
  - pip
  - pip:
      - ./$wheel[student]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="NN_topic")
    parser.add_argument("--force", action="store_true", help="replace what is already released")
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")


def main(arguments: argparse.Namespace) -> int:
    """Bundle an assignment and put it into the exchange, unless something is out of date."""
    course = course_folder(arguments.course)
    (assignment,) = assignments([arguments.assignment])
    look(assignment, course, arguments.force)
    # With hints or, as an instructor may have built it, without.
    if (stale := check(assignment)) and check(assignment, with_hints=False):
        raise CourseError(is_stale(stale[0], assignment))
    folder, policy = course / BUNDLES / assignment.name, read(course)
    due = when_due(assignment.name, policy)
    bundle(assignment, folder, due=due, assistants=policy.assistants if policy else ASSISTANTS[0])
    for path in sorted(folder.iterdir()):
        print(path.relative_to(course))
    publish(assignment, course, arguments.force)
    print(f"{assignment.name} is released: students can fetch it")
    return 0


def bundle(
    assignment: Assignment, folder: Path, *, due: str = "", assistants: str = ASSISTANTS[0]
) -> None:
    """Fill a folder with the notebook, the wheel, an environment and pages on how to use them.

    Args:
        assignment: whose.
        folder: it is replaced.
        due: what the page says of due dates.
        assistants: what the class allows them, one of ASSISTANTS; AGENTS.md tells them so.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(assignment.student.parent, folder, ignore=shutil.ignore_patterns(".*"))
    names = {"name": assignment.name, "wheel": wheel(assignment, folder).name, "due": due}
    how_to = Path(__file__).with_name("how_to.md").read_text(encoding="utf-8")
    agents = Path(__file__).with_name("agents") / f"{assistants}.md"
    texts = {
        "environment.yml": _ENVIRONMENT,
        "HOW_TO.md": how_to,
        "AGENTS.md": agents.read_text(encoding="utf-8"),
    }
    for file, text in texts.items():
        (folder / file).write_text(Template(text).substitute(names), encoding="utf-8")
    if assistants == "none":
        _switch_assistants_off(folder / assignment.student.name)


def _switch_assistants_off(notebook: Path) -> None:
    """Have Colab hide its assistant: what its setting "Hide generative AI features" writes."""
    nb = nbformat.read(notebook, as_version=4)
    nb.metadata.setdefault("colab", {})["generative_ai_disabled"] = True
    nbformat.write(nb, notebook)


def when_due(name: str, policy: Policy | None) -> str:
    """Say when an assignment is due and what being late costs; nothing if it has no due date."""
    if policy is None or name not in policy.due:
        return ""
    text = f"It is due on {policy.due[name]:%d %B %Y at %H:%M (%Z)}."
    if policy.grace:
        text += f" What comes up to {policy.grace.total_seconds() / 60:g} minutes later is in time."
    if policy.per_day:
        text += (
            f" Each day that begins after that costs {float(100 * policy.per_day):g}% of the points"
        )
        text += f" earned, up to {float(100 * policy.at_most):g}% of them."
    if policy.slip_days:
        text += f" Over all assignments you have {policy.slip_days} late days that cost nothing."
    return text + " If you were given an extension, your own date counts."


def look(assignment: Assignment, course: Path, force: bool) -> None:
    """Say at once, in print, what grading would need; all else here takes half a minute.

    Raises:
        CourseError: the assignment is already released, or the gradebook cannot be used.
    """
    # They take seconds to import.
    from traitlets.config import PyFileConfigLoader

    from autograder.classroom.gradebook import opened

    config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
    outbound = Path(config.Exchange.root, config.CourseDirectory.course_id, "outbound")
    if (outbound / assignment.name).exists() and not force:
        raise CourseError(f"{assignment.name} is already released: --force replaces it")
    with opened(course) as gradebook:
        known = {each.name for each in gradebook.assignments}
    if assignment.name not in known:
        print(
            f"The gradebook does not know {assignment.name}: before you grade, run "
            f"`nbgrader generate_assignment {assignment.name}`",
            file=sys.stderr,
        )


def publish(assignment: Assignment, course: Path, force: bool) -> None:
    """Put a course's bundle into nbgrader's exchange.

    Raises:
        CourseError: nbgrader refuses.
    """
    # They take seconds to import.
    from nbgrader.apps.api import NbGraderAPI
    from traitlets.config import PyFileConfigLoader

    config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
    config.CourseDirectory.release_directory = str(BUNDLES)
    config.ExchangeReleaseAssignment.force = force
    result = NbGraderAPI(config=config).release_assignment(assignment.name)
    if not result["success"]:
        raise CourseError(f"nbgrader does not release {assignment.name}\n{result['log']}")
