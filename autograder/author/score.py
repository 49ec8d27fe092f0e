"""The scoreboard: do the graders catch what is wrong, name it, and accept what is right?"""

import argparse
import contextlib
import importlib
import io
import json
import time
from dataclasses import asdict, dataclass, field

from autograder.assignment import assignments
from autograder.author.mutants import mutants
from autograder.bugs import BUGS, EQUIVALENT
from autograder.hidden import load_hidden
from course_pkg.checking.guard import Guarded
from course_pkg.checking.registry import CHECKS, Exercise
from course_pkg.checking.report import Report
from course_pkg.checking.runner import run

MUTANTS_KILLED = 0.95  # the least share; bugs and alternatives must be at 1
SECONDS = 5.0  # the time limit of one call of a wrong solution


@dataclass
class Row:
    """The figures of one exercise, and in words whatever is not as it must be."""

    exercise: str
    checks: int
    bugs: int = 0
    caught: int = 0
    named: int = 0
    mutants: int = 0
    killed: int = 0
    excused: int = 0
    alternatives: int = 0
    accepted: int = 0
    seconds: float = 0.0
    why_not: str | None = None
    survivors: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignments", nargs="*", metavar="NN_topic", help="default: all")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file as well")


def main(arguments: argparse.Namespace) -> int:
    """Score the graders of the assignments; print a table; return 1 if one is not good enough."""
    topics = [assignment.topic for assignment in assignments(arguments.assignments)]
    rows = [row for topic in topics for row in score(topic)]
    print(table(rows))
    for row in rows:
        if row.why_not:
            print(f"not scored: {row.exercise}: {row.why_not}")
        for name in row.survivors:
            print(f"survives: {row.exercise}: {name}")
    problems = [f"{row.exercise}: {problem}" for row in rows for problem in row.problems]
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)
    if problems:
        print("\nNot good enough:\n" + "\n".join(problems))
    return 1 if problems else 0


def score(topic: str) -> list[Row]:
    """Run every bug, mutant and alternative of an assignment through its graders."""
    for package in ("course_pkg.checks", "autograder.bugs", "tests.alternatives"):
        importlib.import_module(f"{package}.{topic}")
    exercises = [exercise for exercise in CHECKS if exercise.module == topic]
    load_hidden(exercises[0])
    return [score_exercise(exercise) for exercise in exercises]


def score_exercise(exercise: Exercise) -> Row:
    """Score the graders of one exercise."""
    start = time.perf_counter()
    row = Row(exercise.name, checks=len(CHECKS[exercise]))
    _score_reference(exercise, row)
    if row.why_not:
        return row
    _score_bugs(exercise, row)
    _score_mutants(exercise, row)
    _score_alternatives(exercise, row)
    row.seconds = round(time.perf_counter() - start, 2)
    return row


def _score_reference(exercise: Exercise, row: Row) -> None:
    module = importlib.import_module(f"course_pkg.{exercise.module}")
    report = _run(exercise, getattr(module, exercise.name))
    row.why_not = report.why_not
    if not report.passed:
        row.problems.append(f"the reference fails\n{report.text}")


def _score_bugs(exercise: Exercise, row: Row) -> None:
    for bug in BUGS.get(exercise, []):
        row.bugs += 1
        report = _run(exercise, bug.solution)
        row.caught += not report.passed
        causes = {outcome.cause for outcome in report.outcomes if outcome.cause}
        if bug.told_by:
            named = bug.told_by in " ".join(report.text.split()) and not causes
        else:
            named = causes == {bug.sentence}
        row.named += named
        if report.passed:
            row.problems.append(f"bug {bug.name} passes all checks")
        elif not named:
            row.problems.append(f"bug {bug.name} is not named, or not rightly\n{report.text}")


def _score_mutants(exercise: Exercise, row: Row) -> None:
    excuses = dict(EQUIVALENT.get(exercise, {}))
    survivors = []
    for mutant in mutants(exercise):
        row.mutants += 1
        if not _run(exercise, mutant.solution, until_failure=True).passed:
            row.killed += 1
        elif excuses.pop(mutant.name, None):
            row.mutants -= 1
            row.excused += 1
        else:
            survivors.append(mutant.name)
    row.survivors = survivors
    if row.killed < MUTANTS_KILLED * row.mutants:
        row.problems.append(f"only {row.killed} of {row.mutants} mutants are killed")
    row.problems += [f"no surviving mutant needs the excuse: {name}" for name in excuses]


def _score_alternatives(exercise: Exercise, row: Row) -> None:
    from tests.alternatives import ALTERNATIVES

    for solution in ALTERNATIVES.get(exercise, []):
        row.alternatives += 1
        report = _run(exercise, solution)
        row.accepted += report.passed
        if not report.passed:
            row.problems.append(f"alternative {solution.__name__} is rejected\n{report.text}")


def _run(exercise: Exercise, solution: object, until_failure: bool = False) -> Report:
    with contextlib.redirect_stdout(io.StringIO()):
        student = Guarded(solution, exercise.name, SECONDS)
        return run(exercise, student, hidden=True, until_failure=until_failure)


def table(rows: list[Row]) -> str:
    """Lay the figures out in columns."""
    lines = [
        f"{'exercise':26}{'checks':>7}{'bugs':>6}{'caught':>8}{'named':>7}{'mutants':>9}"
        f"{'killed':>8}{'excused':>9}{'alternatives':>14}{'accepted':>10}{'seconds':>9}"
    ]
    for row in rows:
        killed = f"{100 * row.killed / max(row.mutants, 1):.0f} %"
        lines.append(
            f"{row.exercise:26}{row.checks:7}{row.bugs:6}{row.caught:8}{row.named:7}"
            f"{row.mutants:9}{killed:>8}{row.excused:9}{row.alternatives:14}{row.accepted:10}"
            f"{row.seconds:9.1f}"
        )
    return "\n".join(lines)
