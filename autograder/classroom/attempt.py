"""One student's attempt at a challenge: it runs in the sandbox, and is measured outside."""

import ast
import hashlib
import textwrap
import time
import unicodedata
from dataclasses import dataclass, replace

import torch

from autograder.assignment import Assignment
from autograder.classroom.challenges import FUNCTION, NAME, Challenge, Refused, find
from autograder.grade.batch.workers import Task, bounded
from autograder.grade.errors import KernelDied
from autograder.grade.judging.judge import Bounds
from autograder.grade.judging.solutions import Solutions
from autograder.grade.judging.verdict import Step, is_students
from autograder.grade.kernel.clock import Clock
from autograder.grade.kernel.kernel import Kernel, start
from autograder.grade.submission.plan import Plan
from autograder.remote.patience import Patience
from course_pkg.checking.guard import CLOCK_FACTOR
from course_pkg.checking.rules import syntax
from course_pkg.checking.telling.failure import Failure

LETTERS = 30  # of a name
LONGEST = 200  # characters of a reason
CODE = 100_000  # characters that a student may have written: no room for a trained model
GRACE = 30.0  # seconds that measuring may take on top of what the student's function does


@dataclass(frozen=True)
class Attempt:
    """What became of a student's function.

    Args:
        value: what was measured; None if it does not count.
        seconds: of processor time.
        reason: why it does not count, for the teaching assistants.
    """

    value: float | None
    seconds: float = 0.0
    reason: str = ""


def takes_part(steps: list[Step], plan: Plan) -> bool:
    """Say whether a student has written the function."""
    return any(syntax.bindings(source).get(FUNCTION) for source in _own(steps, plan))


def chosen_name(steps: list[Step], plan: Plan) -> str | None:
    """Read the name that a student has chosen, without running anything.

    Returns:
        The last one; None if there is none, or it is too long or would not be seen.
    """
    found = None
    for source in _own(steps, plan):
        tree = syntax.parse(source)
        for node in tree.body if tree else ():
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id)], value=ast.Constant(str(text)))
                    | ast.AnnAssign(target=ast.Name(id), value=ast.Constant(str(text)))
                ) if id == NAME:
                    found = unicodedata.normalize("NFC", " ".join(text.split()))
    return found if found and _is_seen(found) else None


def _is_seen(name: str) -> bool:
    """Say whether a name is short, has a letter or digit, and nothing that nobody sees."""
    if len(name) > LETTERS or not name.isprintable():
        return False
    shown = unicodedata.normalize("NFKC", name)
    has_filler = any("FILLER" in unicodedata.name(letter, "") for letter in shown)
    return not has_filler and any(letter.isalnum() for letter in shown)


def secret_of(inputs: int, assignment: str) -> int:
    """Derive what a challenge's hidden inputs are drawn from, from a course's own secret."""
    digest = hashlib.sha256(f"{inputs} challenge {assignment}".encode()).digest()
    return int.from_bytes(digest[:8])


def measure(task: Task) -> Attempt:
    """Measure a submission; whatever it does, the outcome is an attempt."""
    challenge = find(Assignment(task.assignment))
    written = sum(map(len, _own(task.steps, task.plan)))
    if written > CODE:
        return Attempt(None, reason=f"its code has {written} characters, more than {CODE}")
    with bounded(2 * Bounds.submission + CLOCK_FACTOR * challenge.seconds + GRACE):
        try:
            with start(task.assignment) as kernel:
                ended = _run_cells(kernel, task)
                found = attempt(kernel, challenge, secret_of(task.inputs, task.assignment))
        except KernelDied as error:
            return Attempt(None, reason=f"its cells did not run: {error}")
    if ended and found.value is None:
        found = replace(found, reason=f"{ended}; {found.reason}")
    return found


def attempt(kernel: Kernel, challenge: Challenge, secret: int) -> Attempt:
    """Measure the function that a kernel's cells have defined."""
    value, reason = None, ""
    torch.manual_seed(0)  # calls begin from this process's random state
    limit = challenge.seconds
    settings = {"seconds": CLOCK_FACTOR * limit + GRACE, "patience": Patience(limit)}
    with Clock(kernel.pid, limit, kernel.end_process) as clock:
        try:
            with Solutions(lambda: _living(kernel), **settings) as solutions:
                value = challenge.measure(solutions.get(FUNCTION), secret)
        except (Failure, Refused) as error:
            reason = textwrap.shorten(str(error), LONGEST)
        except Exception as error:  # an answer for which nothing here is prepared
            reason = f"its answers cannot be used: {type(error).__name__}"
    if clock.reason:
        value, reason = None, clock.reason
    return Attempt(value, round(clock.used, 1), reason)


def _living(kernel: Kernel) -> Kernel:
    """Give the kernel as long as it lives: a new one would know nothing of earlier calls."""
    if not kernel.is_alive:
        raise KernelDied(kernel.reason or "it ended its Python process")
    return kernel


def _run_cells(kernel: Kernel, task: Task) -> str:
    """Run what grading would run: no checks, no experiments of the notebook.

    Returns:
        Which limit has ended cells that the student added; empty if none has.
    Raises:
        KernelDied: a cell ended the kernel.
    """
    left = Bounds.all_own  # for all that the student wrote: no time to train anything beforehand
    ended = ""
    for step in task.steps:
        if not is_students(step, task.plan):
            planned = task.plan.cells[step.name or ""]
            if not (planned.is_checked or planned.is_experiment):
                kernel.run(planned.source, Bounds.cell)
        elif left <= 0:
            ended = (
                f"its own cells took more than {Bounds.all_own:g} s, and later ones were not run"
            )
        else:
            started, limit = time.monotonic(), min(Bounds.own, left)
            _, why = kernel.run(step.source, limit)
            if why:
                ended = f"one of its own cells was stopped: {why}"
            left -= time.monotonic() - started
    return ended


def _own(steps: list[Step], plan: Plan) -> list[str]:
    return [step.source for step in steps if is_students(step, plan)]
