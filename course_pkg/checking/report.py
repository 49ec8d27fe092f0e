"""Run the checks of an exercise and tell the student what they found."""

import contextlib
import html
import inspect
import sys
import textwrap
from dataclasses import dataclass

import torch

from course_pkg.checking import fingerprints
from course_pkg.checking.case import Case
from course_pkg.checking.failure import CheckingError, Failure, NotImplementedYet, describe
from course_pkg.checking.guard import Guarded
from course_pkg.checking.registry import CHECKS, Check, Exercise, find
from course_pkg.threads import one_thread
from course_pkg.train import device

WIDTH = 80  # nbgrader's validator cuts lines at 87


class CheckFailed(AssertionError):
    """Some checks of an exercise fail; the text is the report."""

    def __init__(self, report: "Report"):
        super().__init__(report.text)
        self.report = report

    def _render_traceback_(self) -> list[str]:
        # IPython shows this in place of a stack trace.
        return self.report.text.splitlines()


@dataclass
class Outcome:
    """What one check found: nothing when it passed, else the failure and, if known, its cause.

    A check that could not run has neither failed nor passed: `why_not` says why.
    """

    check: Check
    failure: Failure | None
    cause: str | None
    why_not: str | None = None


class Report:
    """The outcomes of an exercise's checks, as text for a terminal and as HTML for a notebook."""

    def __init__(self, exercise: Exercise, outcomes: list[Outcome]):
        self.exercise = exercise
        self.outcomes = outcomes
        self.broken_parts: list[str] = []  # exercises that the solution uses and that fail

    @property
    def passed(self) -> bool:
        """Whether no check has failed; see `why_not` for checks that could not run."""
        return all(outcome.failure is None for outcome in self.outcomes)

    @property
    def why_not(self) -> str | None:
        """Why no check could run; None when one could."""
        reasons = [outcome.why_not for outcome in self.outcomes]
        return "; ".join(dict.fromkeys(reasons)) if reasons and all(reasons) else None

    @property
    def share(self) -> float:
        """The passed checks' part of the weight of those that ran, from 0 to 1; 0 if none ran."""
        ran = [outcome for outcome in self.outcomes if outcome.why_not is None]
        total = sum(outcome.check.weight for outcome in ran)
        return sum(o.check.weight for o in ran if o.failure is None) / total if ran else 0.0

    @property
    def text(self) -> str:
        if self.why_not:
            text = f"○ {self.exercise.name} is not checked, and not counted: {self.why_not}."
            return _wrap(text, indent=2)
        failures = [outcome.failure for outcome in self.outcomes if outcome.failure is not None]
        if failures and all(isinstance(failure, NotImplementedYet) for failure in failures):
            return _wrap(f"✗ {failures[0].message}", indent=2)
        lines, explained = [], set()
        for outcome in self.outcomes:
            lines.append(_wrap(self._headline(outcome), indent=2))
            if outcome.failure is not None:
                lines += [_wrap("  " + line, indent=2) for line in _lines(outcome, explained)]
        if failures and self.broken_parts:
            names = " and ".join(self.broken_parts)
            lines.append(_wrap(f"It uses your {names}, whose checks fail: begin there.", indent=2))
        return "\n".join(lines)

    def _headline(self, outcome: Outcome) -> str:
        name = f"{self.exercise.name} · {outcome.check.name}"
        if outcome.why_not:
            return f"○ {name} is not checked, and not counted: {outcome.why_not}."
        mark = "✓" if outcome.failure is None else "✗"
        return f"{mark} {name}: {outcome.check.title}"

    def _repr_html_(self) -> str:
        if self.why_not:
            return f"<div>{html.escape(self.text)}</div>"
        # Nearer to the text's colour than JupyterLab's green, which is too pale on white.
        green = "color-mix(in srgb, var(--jp-success-color1, green) 75%, currentColor)"
        items = "".join(
            f"<div><span style='color: {green}'>✓</span> "
            f"<b>{html.escape(outcome.check.name)}</b> {html.escape(outcome.check.title)}</div>"
            if outcome.why_not is None
            else f"<div>{html.escape(self._headline(outcome))}</div>"
            for outcome in self.outcomes
        )
        return f"<div><code>{html.escape(self.exercise.name)}</code></div>{items}"

    def __repr__(self) -> str:
        return self.text


def check(solution: object) -> None:
    """Check a solution to the exercise of the same name and show what holds and what does not.

    Args:
        solution: the student's function or class.
    Raises:
        CheckFailed: a property does not hold; the text says which, and why if that is known.
        LookupError: no exercise has the solution's name.
        TypeError: the solution has no name, as an instance of a class has none.
    """
    if not hasattr(solution, "__name__"):
        raise TypeError(f"check takes a function or a class itself, got {describe(solution)}")
    exercise = find(solution.__name__)
    place = device()
    report = run_here(exercise, solution, place=place if place.type == "cuda" else None)
    if not report.passed:
        raise CheckFailed(report) from None
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
        shell.display_pub.publish({"text/plain": report.text, "text/html": report._repr_html_()})
    else:
        print(report.text)


def run_here(
    exercise: Exercise,
    solution: object,
    *,
    hidden: bool = False,
    place: torch.device | None = None,
) -> Report:
    """Run all checks of a solution in this process; look into other exercises that it uses.

    A wrong step makes the loop around it wrong as well: the report of the loop then says so.

    Args:
        exercise: the exercise.
        solution: the student's function or class.
        hidden: whether to run the hidden checks too (those that are imported).
        place: a device besides the CPU on which it must work.
    """
    report = run(exercise, Guarded(solution, exercise.name, place=place), hidden=hidden)
    if not report.passed:
        parts = _exercises_used(exercise, solution)
        report.broken_parts = [
            part.name
            for part, own in parts.items()
            if not run(part, Guarded(own, part.name, place=place), until_failure=True).passed
        ]
    return report


def _exercises_used(exercise: Exercise, solution: object) -> dict[Exercise, object]:
    """Find the exercises of the same assignment that a solution's code names, or builds on."""
    is_class = inspect.isclass(solution)
    members = [inspect.unwrap(m) for m in (vars(solution).values() if is_class else [solution])]
    bases = [base.__name__ for base in solution.__mro__] if is_class else []
    known = {other.name: other for other in CHECKS if other.module == exercise.module}
    return {
        known[name]: function.__globals__[name]
        for function in members
        if inspect.isfunction(function)
        for name in (*bases, *function.__code__.co_names)
        if name in known and name in function.__globals__ and name != exercise.name
    }


def run(
    exercise: Exercise, student: Guarded, *, hidden: bool = False, until_failure: bool = False
) -> Report:
    """Run all checks of an exercise; never raises because of the student's code.

    Args:
        exercise: the exercise.
        student: the function or class, guarded, or a proxy of one that lives in another process.
        hidden: whether to run the hidden checks too (those that are imported).
        until_failure: whether to stop after the first check that fails.
    """
    outcomes = []
    # Warnings of student code go to stdout: a graded cell that writes to stderr scores nothing.
    # Oracles and students may draw random numbers; the notebook's random state stays as it is.
    with contextlib.redirect_stderr(sys.stdout), one_thread(), torch.random.fork_rng(devices=[]):
        for check in CHECKS[exercise].values():
            if check.hidden and not hidden:
                continue
            if why_not := check.why_not():
                outcomes.append(Outcome(check, None, None, why_not))
                continue
            failure = _failure(check, student)
            cause = fingerprints.cause(check, failure) if failure is not None else None
            outcomes.append(Outcome(check, failure, cause))
            if failure is not None and until_failure:
                break
    return Report(exercise, outcomes)


def _failure(check: Check, student) -> Failure | None:
    torch.manual_seed(0)
    try:
        _demand_kind(check.exercise, student)
        check.run(student, Case(f"{check.exercise.name}.{check.name}"))
    except Failure as failure:
        return failure
    except CheckingError:
        raise
    except Exception as error:  # the reference passes, so it is the student's result that is odd
        return Failure(f"The result cannot be checked: {type(error).__name__}: {error}")
    return None


def _demand_kind(exercise: Exercise, student: Guarded) -> None:
    wanted = "class" if exercise.is_class else "function"
    if student.kind != wanted:
        raise Failure(f"{exercise.name} should be a {wanted}, yours is {student.kind}.")


def _lines(outcome: Outcome, explained: set[str]) -> list[str]:
    """The message of a failed check; a cause and a heading are given once in a report."""
    lines = outcome.failure.message.splitlines()
    if outcome.cause and outcome.cause not in explained:
        explained.add(outcome.cause)
        lines.append(f"Your output equals what you get when {outcome.cause}.")
    if outcome.check.see and outcome.check.see not in explained:
        explained.add(outcome.check.see)
        lines.append(f'See "{outcome.check.see}" above.')
    return lines


def _wrap(line: str, indent: int) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)
