"""Run every bug and every alternative in another process: do checks tell the same about it there?

    python -m tests.across_the_wire              all of it: some 10 minutes on two processors
    python -m tests.across_the_wire rnn lstm     these topics

`make thorough` does it. The tests compare one bug and one alternative of each exercise.
"""

import gc
import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import torch

from autograder.alternatives import ALTERNATIVES
from autograder.assignment import assignments
from autograder.hidden import load_hidden
from autograder.mistakes import BUGS
from course_pkg.checking.guard import Guarded
from course_pkg.checking.registry import CHECKS, Exercise
from course_pkg.checking.runner import run
from course_pkg.checking.telling.report import Report
from course_pkg.remote.borrowed import NOTE
from tests.plain_kernel import Notebook

SECONDS = 5.0
ONE_SIDED = "passes in one only"

for topic in (assignment.topic for assignment in assignments()):
    importlib.import_module(f"course_pkg.checks.{topic}")
    importlib.import_module(f"autograder.assignments.{topic}.mistakes")
    importlib.import_module(f"autograder.assignments.{topic}.alternatives")
EXERCISES = list(CHECKS)
for exercise in EXERCISES:
    load_hidden(exercise)


def main() -> int:
    """Print what differs; return 1 if a solution passes in one process only."""
    torch.set_num_threads(1)
    topics = sys.argv[1:] or list(dict.fromkeys(exercise.module for exercise in EXERCISES))
    one_sided = 0
    with ProcessPoolExecutor(2) as pool:
        for topic, found in zip(topics, pool.map(survey, topics), strict=True):
            print(f"{topic}: {len(found)} differ", *found, sep="\n  ", flush=True)
            one_sided += sum(text.startswith(ONE_SIDED) for text in found)
    return 1 if one_sided else 0


def survey(topic: str) -> list[str]:
    """Say which solutions of a topic's exercises have another report in another process.

    What a solution shares with a caller, such as a matrix that it returns as it came, can only be
    seen in one process. Other checks must find such a bug, too.
    """
    found = []
    with plain_kernel() as notebook:
        for exercise in (exercise for exercise in EXERCISES if exercise.module == topic):
            for solution, name in solutions(exercise, notebook):
                here, there = both_reports(exercise, solution, notebook)
                first, second = told(here, there)
                if first != second:
                    kind = "other words" if here.passed == there.passed else ONE_SIDED
                    found.append(f"{kind}: {exercise.name}, {name}\n{here.text}\n{there.text}")
            gc.collect()  # every parameter that lives costs each later request
    return found


def plain_kernel() -> Notebook:
    """Start the other process with what grading's template has imported for gradients."""
    return Notebook("import torch.fx.experimental.symbolic_shapes", seconds=SECONDS)


def solutions(exercise: Exercise, notebook: Notebook) -> Iterator[tuple[object, str]]:
    """Give each bug and alternative, and what it is called, while the other process has it."""
    for number, bug in enumerate(BUGS[exercise]):
        load_bug(exercise, number, notebook)
        yield bug.solution, bug.sentence
    for number, alternative in enumerate(ALTERNATIVES[exercise]):
        load_alternative(exercise, number, notebook)
        yield alternative, f"alternative {alternative.__name__}"


def load_bug(exercise: Exercise, number: int, notebook: Notebook) -> None:
    """Give the other process a bug under the exercise's name."""
    notebook.load(_pick("mistakes", "BUGS", exercise, number) + ".solution")


def load_alternative(exercise: Exercise, number: int, notebook: Notebook) -> None:
    """Give the other process an alternative under the exercise's name."""
    notebook.load(_pick("alternatives", "ALTERNATIVES", exercise, number))


def _pick(module: str, table: str, exercise: Exercise, number: int) -> str:
    """Write the source that gets an entry of a table under the exercise's name."""
    return (
        "from course_pkg.checking.registry import Exercise\n"
        f"import autograder.assignments.{exercise.module}.{module}\n"
        f"{exercise.name} = autograder.{module}.{table}[{exercise}][{number}]"
    )


def both_reports(exercise: Exercise, solution: object, notebook: Notebook) -> tuple[Report, Report]:
    """Run all checks on a solution in this process, and on its double in the other."""
    here = run(exercise, Guarded(solution, exercise.name, SECONDS), hidden=True)
    there = run(exercise, notebook.get(exercise.name), hidden=True)
    return here, there


def told(here: Report, there: Report) -> list[tuple]:
    """Give what each of the two reports says, to be compared.

    What is lent raises an error whose text stays with the grader: both lose the text of such a one.
    """
    lines = [report.text.splitlines() for report in (here, there)]
    for place, line in enumerate(lines[1][: len(lines[0])]):
        kind, withheld, _ = line.partition(": ") if line.endswith(NOTE) else (line, "", "")
        if withheld and lines[0][place].startswith(f"{kind}: "):
            lines[0][place] = lines[1][place] = kind
    causes = ([outcome.cause for outcome in report.outcomes] for report in (here, there))
    return [*zip(lines, causes, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
