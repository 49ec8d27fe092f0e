"""The scoreboard: do the graders catch what is wrong, name it, and accept what is right?"""

import argparse
import functools
import importlib
import json
import multiprocessing
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field

from autograder.alternatives import ALTERNATIVES
from autograder.assignment import Assignment, assignments
from autograder.author import record
from autograder.author.build import check, is_stale
from autograder.author.examination import SECONDS, examine, exercises, of_reference, trials
from autograder.author.mutants import mutants
from autograder.author.names import at_home, wrong_names
from autograder.author.other_inputs import other_inputs
from autograder.author.turns import is_due
from autograder.black_boxes import is_answer
from autograder.bounded import bounded_memory
from autograder.mistakes import EQUIVALENT
from course_pkg.checking.registry import CHECKS, Exercise
from course_pkg.checking.telling.report import WIDTH, Report

MUTANTS_KILLED = 0.95  # the smallest share; for bugs and alternatives it is 1
# Seconds for a call of a mutant; many of them are endless. Between these two, it is as long as all
# checks of the reference take together. One that is said to equal the reference has SECONDS.
LEAST_SECONDS, MOST_SECONDS = 0.3, 2.0
BUGS_NEEDED, ALTERNATIVES_NEEDED = 8, 2
MEMORY = 4 << 30  # bytes for the process that scores: some mutants take all that they get


@dataclass
class Row:
    """The figures of one exercise, and in words whatever is not as it should be."""

    exercise: str
    checks: int
    bugs: int = 0
    caught: int = 0
    named: int = 0
    at_home: int = 0
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
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.add_argument("--jobs", type=int, default=1, help="assignments at a time (default: 1)")
    parser.add_argument(
        "--fresh", action="store_true", help="also fail if a generated file is out of date"
    )
    parser.add_argument(
        "--known",
        action="store_true",
        help="take the figures that are kept where no code has changed, but for some each day",
    )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="also try other inputs, and look for wrong names (slow)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Score the graders of the assignments; print a table; return 1 if one is not good enough."""
    found = assignments(arguments.assignments)
    work = functools.partial(
        _score_and_check,
        with_files=arguments.fresh,
        is_thorough=arguments.thorough,
        takes_known=arguments.known,
    )
    if arguments.jobs == 1:
        results = [work(assignment) for assignment in found]
    else:
        # The first ones are the shortest, and the long ones must not come last.
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
            results = list(pool.map(work, reversed(found)))[::-1]
    rows = [row for rows, _ in results for row in rows]
    print(table(rows))
    for row in rows:
        if row.why_not:
            print(f"not scored: {row.exercise}: {row.why_not}")
        for name in row.survivors:
            print(f"survives: {row.exercise}: {name}")
    problems = [f"{row.exercise}: {problem}" for row in rows for problem in row.problems]
    problems += [line for _, stale in results for line in stale]
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)
    if problems:
        print("\nNot good enough:\n" + "\n".join(problems))
    return 1 if problems else 0


def _score_and_check(
    assignment: Assignment, with_files: bool, is_thorough: bool, takes_known: bool
) -> tuple[list[Row], list[str]]:
    """Score an assignment; list its files that are out of date, if that is asked for.

    Figures that are as they should be are kept. Known ones are taken while the code is that of the
    figures, unless the assignment has its turn.
    """
    kept = record.read(assignment)
    is_known = takes_known and kept is not None and not is_due(assignment)
    with bounded_memory(MEMORY):
        rows = [Row(**row) for row in kept] if is_known else score(assignment.topic)
        if not is_known and not any(row.why_not or row.problems for row in rows):
            record.write(assignment, [asdict(row) for row in rows])
        if is_thorough:
            for exercise, row in zip(exercises(assignment.topic), rows, strict=True):
                row.problems += [] if row.why_not else other_inputs(exercise)
                row.problems += [] if row.why_not else wrong_names(exercise)
    found = check(assignment, with_mistakes=not is_known) if with_files else []
    return rows, [is_stale(path, assignment) for path in found]


def score(topic: str) -> list[Row]:
    """Run every bug, mutant and alternative of an assignment through its graders."""
    importlib.import_module(f"autograder.assignments.{topic}.alternatives")
    return [score_exercise(exercise) for exercise in exercises(topic)]


def score_exercise(exercise: Exercise) -> Row:
    """Score the graders of one exercise."""
    start, computed = time.perf_counter(), time.process_time()
    row = Row(exercise.name, checks=len(CHECKS[exercise]))
    _score_reference(exercise, row)
    if row.why_not:
        return row
    patience = min(MOST_SECONDS, max(LEAST_SECONDS, time.process_time() - computed))
    _score_checks(exercise, row)
    _score_bugs(exercise, row)
    if not is_answer(exercise):
        _score_mutants(exercise, row, patience)
    _score_alternatives(exercise, row)
    row.seconds = round(time.perf_counter() - start, 2)
    return row


def _score_reference(exercise: Exercise, row: Row) -> None:
    report = of_reference(exercise)
    row.why_not = report.why_not
    if not report.passed:
        row.problems.append(f"the reference fails\n{_in_full(report)}")


def _in_full(report: Report) -> str:
    """A report, and the traceback of each check that could not cope with what it was given."""
    causes = [o.failure.__cause__ for o in report.outcomes if o.failure is not None]
    lines = [line for cause in causes if cause for line in traceback.format_exception(cause)]
    return "\n".join([report.text, "".join(lines)]).rstrip()


def _score_checks(exercise: Exercise, row: Row) -> None:
    if all(check.hidden for check in CHECKS[exercise].values()):
        row.problems.append(f"no check that students run: course_pkg/checks/{exercise.module}.py")
    untitled = [check.name for check in CHECKS[exercise].values() if not check.title]
    row.problems += [f"the check {name} has no docstring that says what holds" for name in untitled]


def _score_bugs(exercise: Exercise, row: Row) -> None:
    for bug, report in trials(exercise):
        row.bugs += 1
        row.caught += not report.passed
        causes = {outcome.cause for outcome in report.outcomes if outcome.cause}
        said = " ".join(report.text.split())
        if bug.told_by:
            named = bug.told_by in said and not causes
        else:
            named = causes == {bug.sentence} and f"equals what you get when {bug.sentence}." in said
        row.named += named
        names = at_home(report)
        row.at_home += names == {bug.sentence}
        if names - {bug.sentence}:
            row.problems.append(f"bug {bug.name} is told at home {' and '.join(names)!r}")
        if report.passed:
            row.problems.append(f"bug {bug.name} passes all checks")
        elif not named:
            row.problems.append(
                f"bug {bug.name} is not named, or wrongly; if it is new or a check has changed,"
                f" build its assignment first\n{report.text}"
            )
        if not report.passed and not is_answer(exercise) and (places := _only_in_grading(report)):
            row.problems.append(f"bug {bug.name} passes at home, and fails only {places}")
        if any(len(line) > WIDTH for line in report.text.splitlines()):
            row.problems.append(f"bug {bug.name} gets a line wider than {WIDTH}\n{report.text}")
    if row.bugs < BUGS_NEEDED:
        place = f"autograder/assignments/{exercise.module}/mistakes.py"
        row.problems.append(f"{row.bugs} known mistakes: write {BUGS_NEEDED} in {place}")


def _only_in_grading(report: Report) -> str:
    """Name the hidden checks that fail where all visible ones pass: no student could know."""
    failed = [outcome.check for outcome in report.outcomes if outcome.failure is not None]
    if not all(check.hidden for check in failed):
        return ""
    names = " and ".join(check.name for check in failed)
    return f"{names}: what an exercise promises is checked in course_pkg/checks"


def _score_mutants(exercise: Exercise, row: Row, patience: float) -> None:
    excuses = dict(EQUIVALENT.get(exercise, {}))
    survivors = []
    for mutant in mutants(exercise):
        row.mutants += 1
        seconds = SECONDS if mutant.name in excuses else patience
        if not examine(exercise, mutant.solution, until_failure=True, seconds=seconds).passed:
            row.killed += 1
        elif excuses.pop(mutant.name, None):
            row.mutants -= 1
            row.excused += 1
        else:
            survivors.append(mutant.name)
    row.survivors = survivors
    if row.killed < MUTANTS_KILLED * row.mutants:
        row.problems.append(f"only {row.killed} of {row.mutants} mutants are killed")
    row.problems += [f"no surviving mutant needs this excuse: {name}" for name in excuses]


def _score_alternatives(exercise: Exercise, row: Row) -> None:
    for solution in ALTERNATIVES.get(exercise, []):
        row.alternatives += 1
        report = examine(exercise, solution)
        row.accepted += report.passed
        if not report.passed:
            row.problems.append(f"alternative {solution.__name__} is rejected\n{_in_full(report)}")
    if row.alternatives < ALTERNATIVES_NEEDED:
        place = f"autograder/assignments/{exercise.module}/alternatives.py"
        row.problems.append(
            f"{row.alternatives} alternatives: write {ALTERNATIVES_NEEDED} in {place}"
        )


def table(rows: list[Row]) -> str:
    """Lay the figures out in columns."""
    lines = [
        f"{'exercise':26}{'checks':>7}{'bugs':>6}{'caught':>8}{'named':>7}{'at home':>9}"
        f"{'mutants':>9}{'killed':>8}{'excused':>9}{'alternatives':>14}{'accepted':>10}"
        f"{'seconds':>9}"
    ]
    for row in rows:
        killed = f"{100 * row.killed / max(row.mutants, 1):.0f} %"
        lines.append(
            f"{row.exercise:26}{row.checks:7}{row.bugs:6}{row.caught:8}{row.named:7}"
            f"{row.at_home:9}{row.mutants:9}{killed:>8}{row.excused:9}{row.alternatives:14}"
            f"{row.accepted:10}{row.seconds:9.1f}"
        )
    return "\n".join(lines)
