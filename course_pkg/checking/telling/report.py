"""What the checks of an exercise found, as text for a terminal and as HTML for a notebook."""

import functools
import html
import textwrap
from dataclasses import dataclass

from course_pkg.checking.registry import Check, Exercise
from course_pkg.checking.telling.failure import Failure, NotImplementedYet

WIDTH = 80  # nbgrader's validator cuts lines at 87


class CheckFailed(AssertionError):
    """Some checks of an exercise fail; the text is the report."""

    def __init__(self, report: "Report"):
        super().__init__(report.text)
        self.report = report
        self.is_shown = False  # the notebook shows the report as HTML already

    def _render_traceback_(self) -> list[str]:
        # IPython shows this in place of a stack trace.
        return [self.report.summary] if self.is_shown else self.report.text.splitlines()


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
        self.broken_parts: list[str] = []  # exercises below it that fail, though their parts pass
        self.breach: str | None = None  # what the solution uses although a rule forbids it
        self.carried: str | None = None  # how it has earned points in spite of a wrong part
        self.hint: str | None = None  # where a student who is stuck finds one

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
        """The passed checks' part of the weight of those that ran, from 0 to 1; 0 if none ran.

        Where none that ran has a weight, all count alike: those of a test weigh in grading alone.
        """
        ran = [outcome for outcome in self.outcomes if outcome.why_not is None]
        total = sum(outcome.check.weight for outcome in ran)
        weights = {id(o): o.check.weight if total else 1 for o in ran}
        passed = sum(weights[id(o)] for o in ran if o.failure is None)
        return passed / sum(weights.values()) if ran else 0.0

    @property
    def summary(self) -> str:
        """Say in one line how many checks fail."""
        failed = sum(outcome.failure is not None for outcome in self.outcomes)
        return f"{failed} of {len(self.outcomes)} checks of {self.exercise.name} fail."

    @property
    def is_stub(self) -> bool:
        """Whether all that was found is that something is not implemented yet."""
        failures = [outcome.failure for outcome in self.outcomes if outcome.failure is not None]
        return bool(failures) and all(isinstance(f, NotImplementedYet) for f in failures)

    @property
    def text(self) -> str:
        return "\n".join([self._found, *(_wrap(note, 2) for note in self._notes)])

    @property
    def _notes(self) -> list[str]:
        marked = [f"! {note}" for note in (self.carried, self.breach) if note]
        return [*marked, *([self.hint] if self.hint else [])]

    @property
    def _found(self) -> str:
        if self.why_not:
            text = f"○ {self.exercise.name} is not checked, and not counted: {self.why_not}."
            return _wrap(text, indent=2)
        failures = [outcome.failure for outcome in self.outcomes if outcome.failure is not None]
        if self.is_stub:
            return _wrap(f"✗ {failures[0].message}", indent=2)
        lines: list[str] = []
        explained: set[str] = set()
        for outcome in self.outcomes:
            lines.append(_wrap(self._headline(outcome), indent=2))
            lines += [_wrap("  " + line, indent=2) for line in _lines(outcome, explained)]
        if failures and self.broken_parts:
            lines.append(_wrap(self._begin, indent=2))
        return "\n".join(lines)

    @property
    def _begin(self) -> str:
        return f"It uses your {' and '.join(self.broken_parts)}, whose checks fail: begin there."

    def _headline(self, outcome: Outcome) -> str:
        name = f"{self.exercise.name} · {outcome.check.name}"
        if outcome.why_not:
            return f"○ {name} is not checked, and not counted: {outcome.why_not}."
        mark = "✓" if outcome.failure is None else "✗"
        return f"{mark} {name}: {outcome.check.title}"

    def _repr_html_(self) -> str:
        """What passed, then the first failure in full, then the others, folded."""
        if self.why_not or self.is_stub:
            return f"<div>{html.escape(self.text)}</div>"
        failed = [outcome for outcome in self.outcomes if outcome.failure is not None]
        explained: set[str] = set()
        items = [self._item(outcome) for outcome in self.outcomes if outcome.failure is None]
        items += [self._item(outcome, explained) for outcome in failed[:1]]
        if others := failed[1:]:
            names = ", ".join(html.escape(outcome.check.name) for outcome in others)
            rest = "".join(self._item(outcome, explained) for outcome in others)
            more = "One more check fails" if len(others) == 1 else f"{len(others)} more checks fail"
            items.append(f"<details><summary>{more}: {names}.</summary>{rest}</details>")
        notes = [self._begin] if failed and self.broken_parts else []
        items += [f"<div>{html.escape(note)}</div>" for note in [*notes, *self._notes]]
        return f"<div><code>{html.escape(self.exercise.name)}</code></div>{''.join(items)}"

    def _item(self, outcome: Outcome, explained: set[str] | None = None) -> str:
        if outcome.why_not:
            return f"<div>{html.escape(self._headline(outcome))}</div>"
        mark = coloured("✓" if outcome.failure is None else "✗")
        name, title = html.escape(outcome.check.name), html.escape(outcome.check.title)
        head = f"<div>{mark} <b>{name}</b> {title}</div>"
        lines = [
            _linked(line, outcome.check.see)
            for line in _lines(outcome, set() if explained is None else explained)
        ]
        if not lines:
            return head
        style = "margin: 0 0 0.3em 1.5em; white-space: pre-wrap"
        return f"{head}<pre style='{style}'>{chr(10).join(lines)}</pre>"

    def __repr__(self) -> str:
        return self.text


def coloured(mark: str) -> str:
    """Give a mark its colour in a notebook, ✓ or ✗; any other text stays as it is."""
    colour = {"✓": "success", "✗": "error"}.get(mark)
    if colour is None:
        return mark
    # Nearer to the text's colour than JupyterLab's own, which are too pale on white.
    style = f"color: color-mix(in srgb, var(--jp-{colour}-color1, gray) 75%, currentColor)"
    return f"<span style='{style}'>{mark}</span>"


def _linked(line: str, heading: str | None) -> str:
    """Write a line of a message as HTML; the heading that it refers to is a link in JupyterLab."""
    if heading is None or line != _see(heading):
        return html.escape(line)
    place = html.escape(heading.replace(" ", "-"))
    return html.escape(line).replace(
        html.escape(heading), f"<a href='#{place}'>{html.escape(heading)}</a>"
    )


def _see(heading: str) -> str:
    return f'See "{heading}" above.'


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
        lines.append(_see(outcome.check.see))
    return lines


@functools.lru_cache(maxsize=4096)  # most lines are the same for all students
def _wrap(line: str, indent: int) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)
