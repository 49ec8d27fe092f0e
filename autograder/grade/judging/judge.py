"""Judge one submission: its cells run in the sandbox, the checks of its exercises outside."""

import functools
import importlib
import itertools
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill, shorten

from nbformat import from_dict
from nbformat.v4 import new_output

from autograder.assignment import Assignment
from autograder.grade.errors import KernelDied
from autograder.grade.judging.carry import Carried, is_borrowed, merged, needed_for, wrong_parts
from autograder.grade.judging.points import earned, told
from autograder.grade.judging.solutions import Solutions
from autograder.grade.judging.verdict import Step, Verdict, is_students
from autograder.grade.kernel.kernel import GRACE, SHORTEST, Kernel, start
from autograder.grade.submission.plan import Plan, Planned
from autograder.grade.submission.reading import whole
from autograder.hidden import load_hidden
from autograder.remote.patience import Patience
from autograder.remote.references import Right
from course_pkg.checking.guard import SECONDS, Guarded
from course_pkg.checking.registry import CHECKS, Exercise, find
from course_pkg.checking.rules import syntax
from course_pkg.checking.rules.rules import rule_of
from course_pkg.checking.rules.uses import breach
from course_pkg.checking.runner import run
from course_pkg.checking.telling.failure import Failure
from course_pkg.checking.telling.report import WIDTH, Report
from course_pkg.checking.telling.roots import roots

# Of the seconds of a cell of the assignment. A right one computes for .5 s at the most, and for
# some 4 s if it imports torch in a kernel that is not warm; one with a solution, for milliseconds.
PROCESSOR = 1 / 5
AGAIN = 2.0  # seconds, in a new kernel, for a cell that did not run to its end in the old one
SHARE = 0.5  # of the time left for a student's own cells that a single one may take
LEAST = 0.02  # seconds; with less, none of these begins: to be stopped takes longer
EXPLAINING = 15.0  # seconds for finding out why checks fail, which takes most exercises .1
SLOW = 2.0  # seconds; a student's own cell that took longer does not run again in a new kernel
ONLY_AT_HOME = "It holds with the inputs that you have, but fails with others."
EXPERIMENT = "Experiments do not run while the notebook is validated or graded.\n"


@dataclass(frozen=True)
class Bounds:
    """Seconds of wall-clock time.

    Args:
        cell: for a cell of the assignment to run; with a fifth of it as its processor's time, so
            that one that computes without end is stopped early.
        solution: for such a cell with a solution, which only defines something (see Patience).
        own: for a cell that a student has added.
        all_own: for all of these together.
        call: for a call of a solution, of its processor's time (see guard.attempt).
        checks: for the checks of an exercise.
        carried: for these once more, with right parts in place of wrong ones.
        submission: for everything.
        restarts: how often a kernel that has ended is started again, for each exercise.
    """

    cell: float = 60.0
    solution: float = 8.0
    own: float = 5.0
    all_own: float = 10.0
    call: float = SECONDS
    checks: float = 60.0
    carried: float = 60.0
    submission: float = 300.0
    restarts: int = 3


@dataclass
class Judging:
    """One submission while it is judged.

    Args:
        assignment: what it submits.
        plan: the cells of the assignment.
        files: a folder with the files that came with the notebook.
        inputs: which random inputs the checks draw for points; what students see at home is 0.
        carries: whether errors are carried forward (see carry.py).
        bounds: of its time.
    """

    assignment: Assignment
    plan: Plan
    files: Path | None = None
    inputs: int = 0
    carries: bool = True
    bounds: Bounds = Bounds()
    start: Callable[[str, Path | None], Kernel] = start
    notes: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _kernel: Kernel | None = None
    _done: list[tuple[Step, float]] = field(default_factory=list)  # and what it has in a new kernel
    _starts: int = 0
    _is_final: bool = True
    _end: float = 0.0  # of everything
    _ran: float = 0.0  # seconds that a student's own cells took
    _errors: list[tuple[str, str]] = field(default_factory=list)  # sources, and how they ended
    _wrong: set[str] = field(default_factory=set)  # exercises that fail by themselves
    _carried: dict[str, list[str]] = field(default_factory=dict)  # and which parts were replaced

    def __post_init__(self):
        self._cells = Patience(self.bounds.cell)
        self._solutions = Patience(self.bounds.solution)
        self._own_cells = Patience(self.bounds.own, left=math.inf)  # all_own bounds them
        self._calls = Patience(self.bounds.call)
        self._calls_again = Patience(self.bounds.call)  # with right parts: others lose none by it

    def judge(self, steps: list[Step]) -> Verdict:
        """Run the cells and the checks.

        Raises:
            SandboxMissing: this machine has no sandbox.
            KernelDied: not even an empty kernel runs.
        """
        started = time.monotonic()
        self._end = started + self.bounds.submission
        points: dict[str, float] = {}
        outputs: list[list] = []
        failed: dict[str, list[str]] = {}
        try:
            self._timed("start", self.kernel)
            for step in steps:
                planned = self.plan.cells[step.name] if step.name in self.plan.cells else None
                if planned is not None and planned.is_checked:
                    report, text = self._timed("checks", self._check, planned, steps)
                    points[planned.name] = _points(planned, report)
                    failed |= _failed(planned, report)
                    outputs.append(_graded(text, points[planned.name]))
                elif planned is not None and planned.is_experiment:
                    outputs.append([new_output("stream", name="stdout", text=EXPERIMENT)])
                elif planned is None or planned.is_written_by_students:
                    outputs.append(self._timed("cells", self._run, step))
                else:
                    given = Step(step.name, planned.source)
                    outputs.append(self._timed("setup", self._run, given))
        finally:
            if self._kernel is not None:
                self._timed("end", self._kernel.kill)
        self.seconds["all"] = time.monotonic() - started
        return Verdict(
            [[dict(output) for output in cell] for cell in outputs],
            points,
            self.notes,
            {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            self._is_final,
            failed,
            self._carried,
        )

    def kernel(self) -> Kernel:
        """Give the kernel; when it is gone, a new one in which the same cells have run.

        Raises:
            KernelDied: it was gone too often.
        """
        while self._kernel is None or not self._kernel.is_alive:
            if self._kernel is not None:
                self._kernel.kill()  # its sockets too: they would keep this process from ending
            if self._starts > self.bounds.restarts:
                raise KernelDied("it ended its Python process too often")
            self._starts += 1
            self._kernel = self.start(self.assignment.name, self.files)
            self._run_again(self._kernel)
        return self._kernel

    def _run_again(self, kernel: Kernel) -> None:
        """Run in a new kernel what ran in the old one; a cell that ends it too is left out then."""
        for step, most in [*self._done]:
            try:
                # One that has ended when told to will do so again, on a busy machine a little late.
                self._run_in(kernel, step, min(self._patience(step).seconds, most), GRACE)
            except KernelDied:
                self._done.remove((step, most))
                return

    def _run(self, step: Step) -> list:
        """Run a cell; one that ends the kernel is left out from then on."""
        if not step.source.strip():
            return []
        started = time.monotonic()
        seconds = self._left(step)
        try:
            if started > self._end:
                raise KernelDied(f"all together took more than {self.bounds.submission:g} s")
            if not self._is_planned(step) and seconds < LEAST:
                raise KernelDied(f"its own cells ran for more than {self.bounds.all_own:g} s")
            kernel = self.kernel()
            started = time.monotonic()  # a new process is not this cell's doing
            grace = max(SHORTEST, self._patience(step).shortened(GRACE))
            outputs, why = self._run_in(kernel, step, seconds, grace)
        except KernelDied as error:
            took = time.monotonic() - started
            self._patience(step).waste(max(seconds, 0.0))
            self._charge(step, took)
            self.notes[""] = f"A cell did not run to its end: {error}."
            return [_error("KernelDied", str(error))]
        took = time.monotonic() - started
        self._charge(step, min(took, seconds) if why else took)  # a busy machine stops it late
        if self._is_planned(step) or took < SLOW:
            self._done.append((step, AGAIN if why else math.inf))
        if why:
            self._patience(step).waste(seconds)
            self.notes[""] = f"A cell did not run to its end: {why}."
            outputs.append(_error("CellTimeoutError", why))
        self._errors += [(step.source, words) for words in map(_ended, outputs) if words]
        return outputs

    def _run_in(self, kernel: Kernel, step: Step, seconds: float, grace: float) -> tuple[list, str]:
        return kernel.run(step.source, seconds, self._processor(step, seconds), grace)

    def _charge(self, step: Step, seconds: float) -> None:
        """Count the time of a student's own cell."""
        if not self._is_planned(step):
            self._ran += seconds

    def _left(self, step: Step) -> float:
        """Give the seconds that a cell has: a student's own ones leave time for each other."""
        left = min(self._patience(step).seconds, self._end - time.monotonic())
        if self._is_planned(step):
            return left
        return min(left, SHARE * (self.bounds.all_own - self._ran))

    def _processor(self, step: Step, seconds: float) -> float:
        """Give the processor's time that a cell has; a student's own ones have little anyway."""
        return PROCESSOR * seconds if self._is_planned(step) else math.inf

    def _patience(self, step: Step) -> Patience:
        planned = self.plan.cells.get(step.name or "")
        if planned is None:
            return self._own_cells
        return self._solutions if planned.is_written_by_students else self._cells

    def _is_planned(self, step: Step) -> bool:
        return step.name in self.plan.cells

    def _check(self, planned: Planned, steps: list[Step]) -> tuple[Report | None, str]:
        """Run all checks of an exercise; give the report, if there is one, and its text."""
        assert planned.exercise is not None  # is_checked means that
        exercise = find(planned.exercise)
        load_hidden(exercise)
        sources = [step.source for step in steps if is_students(step, self.plan)]
        given = [
            p.source for p in self.plan.cells.values() if p.cell_type == "code" and _is_given(p)
        ]
        if found := breach(exercise, sources, given):
            self._note(planned, found)
        self._starts = 0  # what ends the kernel in one exercise costs the others nothing
        seconds = min(self.bounds.checks, self._end - time.monotonic())
        had_less = self._calls.is_over
        rule = rule_of(exercise)
        with Solutions(self.kernel, rule, seconds=seconds, patience=self._calls) as solutions:
            try:
                proxy = solutions.get(exercise.name)
            except Failure as failure:
                self._wrong.add(exercise.name)
                self._note(planned, solutions.problem)
                return None, f"✗ {failure.message}{self._why_undefined(exercise.name)}"
            report = run(exercise, proxy, hidden=True, inputs=self.inputs)
            if self.inputs and not (report.passed or report.is_stub):
                solutions.bound(EXPLAINING)
                at_home = run(exercise, proxy, hidden=True)
                self._suspect(planned, _explain(report, at_home, self.inputs))
            if not_run := [outcome.why_not for outcome in report.outcomes if outcome.why_not]:
                problem = f"Checks could not run on this machine and are not counted: {not_run[0]}."
                self._note(planned, f"{problem} Grade again on one where they can.")
                self._is_final = False
            if had_less and solutions.was_given_up:
                limit = f"{self._calls.seconds:g} s for a call"
                why = "others ran out of time or ended its process"
                self._note(planned, f"{exercise.name} had {limit}, as {why}.")
            if not report.passed and not report.is_stub:
                report.broken_parts = self._broken(exercise, sources, solutions)
        carried = self._timed("carried", self._carry, planned, report, sources, given)
        if carried is not None:
            report = carried.report
            report.carried = carried.sentence
            self._carried[exercise.name] = carried.parts
        if not report.passed:
            self._wrong.add(exercise.name)
        report.breach = found
        text = told(report)
        if not report.passed and _is_solved_below(planned, steps, self.plan):
            again = f"{exercise.name} is defined again below its check: look at both."
            self._note(planned, again)
            text += f"\n! {again}"
        return report, text

    def _carry(
        self, planned: Planned, report: Report, sources: list[str], given: list[str]
    ) -> Carried | None:
        """Judge what fails once more with right parts; None if that gives nothing more.

        It is judged in a fork of its own, and nothing that happens there counts but a better
        report of this exercise.
        """
        exercise = report.exercise
        seconds = min(self.bounds.carried, self._end - time.monotonic())
        is_open = report.is_stub and not any(
            syntax.bindings(source).get(exercise.name) for source in sources
        )
        if report.passed or is_open or not self.carries or seconds <= 0:
            return None
        parts = wrong_parts(exercise, sources, given, self._wrong)
        if not parts:
            return None
        right = Right(exercise.module, needed_for(exercise.module, parts))
        with Solutions(
            self.kernel,
            rule_of(exercise),
            seconds=seconds,
            patience=self._calls_again,
            right=right,
        ) as solutions:
            try:
                proxy = solutions.get(exercise.name)
            except Failure:
                return None
            again, suspect = run(exercise, proxy, hidden=True, inputs=self.inputs), []
            if self.inputs and not again.passed:
                solutions.bound(EXPLAINING)
                suspect = _explain(again, run(exercise, proxy, hidden=True), self.inputs)
        again = merged(report, again)
        if again is report or is_borrowed(again, parts):
            return None
        self._suspect(planned, suspect)
        return Carried(again, parts)

    def _suspect(self, planned: Planned, names: list[str]) -> None:
        """Tell a person of checks that only pass with the inputs that students have."""
        if names:
            self._note(
                planned,
                f"{planned.exercise} fails with the inputs of this course but passes with those "
                f"that students have ({', '.join(names)}): read the solution.",
            )

    def _why_undefined(self, name: str) -> str:
        """Say how the first cell ended that speaks of an exercise, if that was an error."""
        spoken = re.compile(rf"\b{name}\b")
        error = next((words for source, words in self._errors if spoken.search(source)), None)
        return "" if error is None else f"\n{fill(f'Its cell ended with {error}', WIDTH)}"

    def _note(self, planned: Planned, text: str) -> None:
        """Tell a person something about an exercise, if there is anything to tell."""
        if text:
            self.notes[planned.name] = f"{self.notes.get(planned.name, '')} {text}".strip()

    def _broken(self, exercise: Exercise, sources: list[str], solutions: Solutions) -> list[str]:
        """Name the exercises that a solution uses, at any depth, and whose checks fail."""

        def parts(one: Exercise) -> list[Exercise]:
            used = syntax.names_in(one.name, sources)
            return [o for o in CHECKS if o.module == one.module and o.name in used and o != one]

        def fails(one: Exercise) -> bool:
            try:
                passed = run(one, solutions.get(one.name), until_failure=True).passed
            except Failure:
                return False
            return not passed and not solutions.is_over

        return roots(exercise, parts, fails)

    def _timed(self, kind: str, action, *args):
        start = time.monotonic()
        try:
            return action(*args)
        finally:
            self.seconds[kind] = self.seconds.get(kind, 0.0) + time.monotonic() - start


def _explain(report: Report, at_home: Report, inputs: int) -> list[str]:
    """Take what failed checks say from a run with the inputs that students have at home.

    There, known mistakes have names. A check that rejects the reference, too, is at fault: what it
    says at home counts.

    Returns:
        The checks that fail here and pass there, which a person should be told: answers for those
        inputs may have been written down.
    """
    known = {outcome.check: outcome for outcome in at_home.outcomes}
    suspect = []
    for number, outcome in enumerate(report.outcomes):
        if outcome.failure is None:
            continue
        name, fails_at_home = outcome.check.name, known[outcome.check].failure is not None
        if fails_at_home or name in at_fault(outcome.check.exercise, inputs):
            report.outcomes[number] = known[outcome.check]
        else:
            outcome.failure = Failure(ONLY_AT_HOME)  # no values: they would become known
            suspect.append(name)
    return suspect


@functools.cache
def at_fault(exercise: Exercise, inputs: int) -> frozenset[str]:
    """Name the checks of an exercise that reject its reference with some random inputs.

    There should be none, and `make thorough` looks for them. But no search finds all, a course's
    inputs are its own, and nobody should lose points by them.
    """
    reference = getattr(importlib.import_module(f"course_pkg.{exercise.module}"), exercise.name)
    report = run(exercise, Guarded(reference, exercise.name), hidden=True, inputs=inputs)
    return frozenset(outcome.check.name for outcome in report.outcomes if outcome.failure)


def _is_solved_below(planned: Planned, steps: list[Step], plan: Plan) -> bool:
    """Say whether a student defines an exercise below its check too, more than as a stub."""
    own = [step for step in steps if is_students(step, plan)]
    if not syntax.is_readable(step.source for step in own):
        return False
    below = itertools.dropwhile(lambda step: step.name != planned.name, steps)
    return any(
        is_students(step, plan) and syntax.bindings(step.source).get(planned.exercise or "")
        for step in below
    )


def _is_given(planned: Planned) -> bool:
    return not (planned.is_written_by_students or planned.is_checked)


def _points(planned: Planned, report: Report | None) -> float:
    return 0.0 if report is None else earned(planned.points, report)


def _failed(planned: Planned, report: Report | None) -> dict[str, list[str]]:
    """Name the checks of an exercise that failed: all, if there was nothing to check."""
    assert planned.exercise is not None  # it has been checked
    exercise = find(planned.exercise)
    if report is None:
        return {exercise.name: list(CHECKS[exercise])}
    names = [outcome.check.name for outcome in report.outcomes if outcome.failure is not None]
    return {exercise.name: names} if names else {}


def _graded(text: str, points: float) -> list:
    """What the graded cell would have shown in the notebook."""
    printed = {"output_type": "stream", "name": "stdout", "text": whole(text) + "\n"}
    shown = {"data": {"text/plain": repr(points)}, "metadata": {}, "execution_count": 1}
    # Not by new_output, which validates each: the notebook is validated as a whole.
    return [from_dict(printed), from_dict({"output_type": "execute_result", **shown})]


def _ended(output: Mapping) -> str | None:
    """Say which error an output is, if it is one; the file of a cell has a name without meaning."""
    if output["output_type"] != "error":
        return None
    text = re.sub(r"\([^()]*, line (\d+)\)$", r"(line \1)", output["evalue"])
    return shorten(f"{output['ename']}: {text}", 200)


def _error(name: str, text: str):
    return new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"])
