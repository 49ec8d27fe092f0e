"""Read back what a graded cell says: the failed checks, known mistakes, and incidents."""

import functools
import re
from dataclasses import dataclass

from nbformat import NotebookNode

from autograder.hidden import load_hidden
from course_pkg.checking.registry import CHECKS, find
from course_pkg.checking.telling.report import WIDTH

NOTE = "Something went wrong while grading: "  # how autograder.grade.nbgrader begins a comment
# What went wrong beyond a wrong result, and the words by which checks and cells say it.
_INCIDENTS = {
    "time-out": r"ran for (more than|too long)|took more than [\d.]+ s"
    r"|the time for (all calls together|this exercise) is over",
    "forbidden call": r"must not be used in this exercise",
    "forbidden name": r"write it yourself; a grader will look",
    "killed kernel": r"ended its Python process|the kernel does not start"
    r"|it (used|started) more than \d+|it wrote where only",
}
_SEE = re.compile(r'^See "(.+)" above\.$')
_STARTS = ("Your output equals what you get when", 'See "')  # always begin a line of a report


@dataclass(frozen=True)
class Finding:
    """A failed check.

    Args:
        title: the property that does not hold; empty when it is not about one.
        lines: what was expected and what came.
        see: the heading in the notebook that explains it.
    """

    title: str
    lines: list[str]
    see: str | None = None


def text_of(cell: NotebookNode) -> str:
    """The text that a graded cell shows: its report, or why there is none."""
    shown = [o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout"]
    errors = [o for o in cell.outputs if o.output_type == "error"]
    shown += [f"✗ {error.ename}: {error.evalue}" for error in errors]
    return "\n".join(shown)


def findings(exercise: str, text: str) -> list[Finding]:
    """List the failed checks of an exercise, in their order, and what a rule forbids of it.

    Args:
        exercise: its name.
        text: what its graded cell shows.
    """
    found: list[Finding] = []
    for block in re.split(r"^(?=[✓✗!] )", text, flags=re.MULTILINE):
        if not block.startswith(("✗ ", "! ")):
            continue
        title, *lines = _unwrapped(block[2:]) or [""]
        if title.startswith(f"{exercise} · "):
            title = title.removeprefix(f"{exercise} · ")
            known = next((known for known in _titles(exercise) if title.startswith(known)), title)
            lines = [title.removeprefix(known).strip(), *lines]
            title = known
        else:  # no check could run, or it is about what a rule forbids
            title, lines = "", [title, *lines]
        see = next((match[1] for line in lines if (match := _SEE.match(line))), None)
        lines = [line for line in lines if line and not _SEE.match(line)]
        found.append(Finding(title, lines, see))
    return found


@functools.cache
def _titles(name: str) -> list[str]:
    """The names and titles of an exercise's checks, as reports have them."""
    exercise = find(name)
    load_hidden(exercise)
    return [f"{check.name}: {' '.join(check.title.split())}" for check in CHECKS[exercise].values()]


def causes(text: str, sentences: set[str]) -> set[str]:
    """Say which known mistakes a graded cell names.

    Args:
        text: what the cell shows.
        sentences: those that complete "Your output equals what you get when …".
    """
    words = " ".join(text.split())
    return {s for s in sentences if f"Your output equals what you get when {s}." in words}


def incidents(text: str) -> set[str]:
    """Say which incidents a text reports."""
    joined = " ".join(text.split())  # reports are wrapped
    return {kind for kind, words in _INCIDENTS.items() if re.search(words, joined)}


def _unwrapped(block: str) -> list[str]:
    """Undo the wrapping of a report: a line goes on where the next word did not fit."""
    lines: list[str] = []
    length = 0
    for line in block.splitlines():
        words = line.split()
        if not words:
            continue
        joined = " ".join(words)
        if lines and not joined.startswith(_STARTS) and length + 1 + len(words[0]) > WIDTH:
            lines[-1] += f" {joined}"
        else:
            lines.append(joined)
        length = len(line) if length else len(line) + 2  # the first line has lost its ✗
    return lines
