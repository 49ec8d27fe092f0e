"""Run the checks of an exercise: here, or through a stand-in for what another process holds."""

import contextlib
import inspect
import os
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Protocol

import torch

from course_pkg.checking.black_box import CALLED
from course_pkg.checking.case import Case
from course_pkg.checking.guard import Guarded, limits
from course_pkg.checking.registry import CHECKS, Check, Exercise, find
from course_pkg.checking.rules.rules import rule_of
from course_pkg.checking.rules.uses import breach
from course_pkg.checking.telling import naming
from course_pkg.checking.telling.failure import CheckingError, Failure, describe, odd
from course_pkg.checking.telling.report import CheckFailed, Outcome, Report
from course_pkg.checking.telling.roots import roots
from course_pkg.checking.telling.session import remember
from course_pkg.tools.threads import one_thread
from course_pkg.tools.train import device

_TOLD = torch.full((8,), 173, dtype=torch.uint8)  # the bytes of a seed that nobody chooses


class Student(Protocol):
    """A student's function or class as checks use it: Guarded, or a Proxy from another process."""

    @property
    def kind(self) -> str: ...

    def __call__(self, *args, **kwargs): ...


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
    if os.environ.get("COURSE_CHECKS") == "outside":
        print("While this notebook is graded, checks run outside of it.")
        return
    exercise = find(solution.__name__)
    place = device()
    report = run_here(exercise, solution, place=place if place.type == "cuda" else None)
    found = remember(report)
    failed = None if report.passed else CheckFailed(report)
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    # Who validates a notebook reads the error alone.
    is_folded = not report.is_stub and "NBGRADER_EXECUTION" not in os.environ
    if shell is not None and (report.passed or is_folded):
        page = {"text/plain": report.text, "text/html": report._repr_html_()}
        shell.display_pub.publish(page, metadata={"check": found})
        if failed is not None:
            failed.is_shown = True
    elif failed is None:
        print(report.text)
    if failed is not None:
        raise failed from None


def run_here(
    exercise: Exercise,
    solution: object,
    *,
    hidden: bool = False,
    place: torch.device | None = None,
) -> Report:
    """Run all checks of a solution in this process; look into other exercises that it uses.

    A wrong step makes the loop around it wrong as well, and whatever uses the loop: their reports
    then name the step.

    Args:
        exercise: the exercise.
        solution: the student's function or class.
        hidden: whether to run the hidden checks too (those that are imported).
        place: a device besides the CPU on which it must work.
    """
    guarded = Guarded(solution, exercise.name, place=place, rule=rule_of(exercise))
    report = run(exercise, guarded, hidden=hidden)
    report.breach = breach(exercise, _sources(solution))
    if not report.passed and not report.is_stub:
        own = {exercise: solution}

        def parts(one: Exercise) -> dict[Exercise, object]:
            found = _exercises_used(one, own[one])
            own.update(found)
            return found

        def fails(one: Exercise) -> bool:
            part = Guarded(own[one], one.name, place=place)
            return not run(one, part, until_failure=True).passed

        report.broken_parts = roots(exercise, parts, fails)
    return report


def _sources(solution: object) -> list[str]:
    """List the cells that have run, each once, or the text of the file that a solution is in."""
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
        latest_first = dict.fromkeys(reversed(shell.history_manager.input_hist_raw))
        return list(latest_first)[::-1]
    module = inspect.getmodule(solution)
    try:
        return [] if module is None else [inspect.getsource(module)]
    except (OSError, TypeError):  # it has no file
        return []


def _exercises_used(exercise: Exercise, solution: object) -> dict[Exercise, object]:
    """Find the exercises of the same assignment that a solution's code names, or builds on."""
    if inspect.isclass(solution):
        members = list(vars(solution).values())
        bases = [base.__name__ for base in solution.__mro__]
    else:
        members, bases = [solution], []
    known = {other.name: other for other in CHECKS if other.module == exercise.module}
    return {
        known[name]: function.__globals__[name]
        for function in map(inspect.unwrap, members)
        if inspect.isfunction(function)
        for name in (*bases, *_names(function.__code__))
        if name in known and name in function.__globals__ and name != exercise.name
    }


def _names(code: CodeType) -> Iterator[str]:
    """The names that code uses, comprehensions and functions in it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def run(
    exercise: Exercise,
    student: Student,
    *,
    hidden: bool = False,
    until_failure: bool = False,
    inputs: int = 0,
) -> Report:
    """Run all checks of an exercise; never raises because of the student's code.

    Of a solution that calls the exercise's black box no cause is named: to find it is an exercise.

    Args:
        exercise: the exercise.
        student: the function or class, guarded, or a proxy of one that lives in another process.
        hidden: whether to run the hidden checks too (those that are imported).
        until_failure: whether to stop after the first check that fails; no cause is named then.
        inputs: which random inputs the checks draw; causes are known for those of number 0 only.
    """
    CALLED.clear()
    results: dict[Check, Failure | None] = {}
    not_run: dict[Check, str] = {}
    # Warnings of student code go to stdout: a graded cell that writes to stderr scores nothing.
    # Oracles and students may draw random numbers; the notebook's random state stays as it is.
    with (
        contextlib.redirect_stderr(sys.stdout),
        one_thread(),
        torch.random.fork_rng(devices=[]),
        limits(),
    ):
        for check in CHECKS[exercise].values():
            if check.hidden and not hidden:
                continue
            if why_not := check.why_not():
                not_run[check] = why_not
                continue
            results[check] = _failure(check, student, inputs)
            if results[check] is not None and until_failure:
                break
    is_silent = until_failure or inputs or exercise.name in CALLED
    causes = {} if is_silent else naming.causes(results)
    return Report(
        exercise,
        [
            Outcome(check, results.get(check), causes.get(check), not_run.get(check))
            for check in CHECKS[exercise].values()
            if check in results or check in not_run
        ],
    )


def _failure(check: Check, student: Student, inputs: int) -> Failure | None:
    _seed(inputs)
    where = ""
    try:
        _demand_kind(check.exercise, student)
        name = f"{check.exercise.name}.{check.name}" + (f".{inputs}" if inputs else "")
        check.run(student, Case(name))
        for axis, place in check.single:
            where = f"With {axis} = 1: "
            check.run(student, Case(name, single=place))
        if check.single:
            where = "With inputs that are not contiguous: "
            check.run(student, Case(name, strided=True))
    except Failure as failure:
        failure.message = where + failure.message
        failure.__context__ = None  # this and the traceback hold all that the check has made
        return failure.with_traceback(None)
    except CheckingError:
        raise
    except Exception as error:  # the reference passes, so it is the student's result that is odd
        strange = odd(error)
        strange.message = where + strange.message
        strange.__cause__ = error
        return strange
    return None


def _seed(number: int) -> None:
    """Seed what draws with a number, and let torch believe that it was another.

    The numbers drawn are those of torch.manual_seed(number), which looks for all devices and takes
    a ms. But torch.initial_seed() tells none that a student would choose: so a solution that sets
    the seed is noticed even where it sets this one.
    """
    generator = torch.default_generator
    generator.manual_seed(number)
    state = generator.get_state()
    state[:8] = _TOLD  # where it keeps the seed; what it draws next follows from the rest
    generator.set_state(state)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def _demand_kind(exercise: Exercise, student: Student) -> None:
    wanted = "class" if exercise.is_class else "function"
    if student.kind != wanted:
        raise Failure(f"{exercise.name} should be a {wanted}, yours is {student.kind}.")
