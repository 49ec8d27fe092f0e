"""Do checks decide the same with random inputs that nobody has tried them on?"""

import importlib
import secrets
from collections.abc import Iterator

from autograder.alternatives import ALTERNATIVES
from autograder.author.examination import examine
from autograder.mistakes import BUGS
from course_pkg.checking.registry import Exercise

RIGHT, WRONG = 10, 3  # times that a right and a wrong solution is tried


def other_inputs(exercise: Exercise) -> Iterator[str]:
    """Yield a sentence for each solution that is judged wrongly with inputs drawn now."""
    module = importlib.import_module(f"course_pkg.{exercise.module}")
    right = [getattr(module, exercise.name), *ALTERNATIVES.get(exercise, [])]
    for number in range(RIGHT):
        inputs = 1 + secrets.randbelow(2**63)
        for solution in right:
            report = examine(exercise, solution, inputs=inputs)
            if not report.passed:
                yield f"{solution.__name__} is rejected with inputs {inputs}\n{report.text}"
        for bug in BUGS.get(exercise, []) if number < WRONG else []:
            if examine(exercise, bug.solution, until_failure=True, inputs=inputs).passed:
                yield f"bug {bug.name} passes all checks with inputs {inputs}"
