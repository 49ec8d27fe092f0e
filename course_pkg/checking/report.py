"""What the checks of an exercise found, as text for a terminal and as HTML for a notebook."""

import html
import textwrap
from dataclasses import dataclass

from course_pkg.checking.failure import Failure, NotImplementedYet
from course_pkg.checking.registry import Check, Exercise

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
        self.breach: str | None = None  # what the solution uses although a rule forbids it

    @property
    def passed(self) -> bool:
        """Whether no check has failed; see `why_not` for checks that could not run."""
        return all(outcome.failure is None for outcome in self.outcomes)

    @property
    def why_not(self) -> str | None:
        """Why no check could run; None when one could."""
        reasons = [outcome.why_not for outcome in self.outcomes if outcome.why_not]
        is_all = len(reasons) == len(self.outcomes)
        return "; ".join(dict.fromkeys(reasons)) if reasons and is_all else None

    @property
    def share(self) -> float:
        """The passed checks' part of the weight of those that ran, from 0 to 1; 0 if none ran."""
        ran = [outcome for outcome in self.outcomes if outcome.why_not is None]
        total = sum(outcome.check.weight for outcome in ran)
        return sum(o.check.weight for o in ran if o.failure is None) / total if ran else 0.0

    @property
    def text(self) -> str:
        return "\n".join([self._found, *([_wrap(f"! {self.breach}", 2)] if self.breach else [])])

    @property
    def _found(self) -> str:
        if self.why_not:
            text = f"○ {self.exercise.name} is not checked, and not counted: {self.why_not}."
            return _wrap(text, indent=2)
        failures = [outcome.failure for outcome in self.outcomes if outcome.failure is not None]
        if failures and all(isinstance(failure, NotImplementedYet) for failure in failures):
            return _wrap(f"✗ {failures[0].message}", indent=2)
        lines: list[str] = []
        explained: set[str] = set()
        for outcome in self.outcomes:
            lines.append(_wrap(self._headline(outcome), indent=2))
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
        breach = f"<div>! {html.escape(self.breach)}</div>" if self.breach else ""
        return f"<div><code>{html.escape(self.exercise.name)}</code></div>{items}{breach}"

    def __repr__(self) -> str:
        return self.text


def _lines(outcome: Outcome, explained: set[str]) -> list[str]:
    """The message of a failed check; a cause and a heading are given once in a report."""
    if outcome.failure is None:
        return []
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
