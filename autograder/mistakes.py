"""Known wrong solutions, one module an assignment; each must lose points and be named."""

import inspect
import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass

from course_pkg.checking.registry import Exercise


@dataclass(frozen=True)
class Bug:
    """A wrong solution of an exercise.

    Args:
        sentence: completes "Your output equals what you get when …".
        solution: the wrong function or class.
        told_by: where no output can give the mistake away (an exception, nothing returned), the
            words of a check's message that do.
        is_classic: whether the assignment's text warns of it as the classic mistake.
    """

    sentence: str
    solution: Callable
    told_by: str | None
    is_classic: bool = False

    @property
    def name(self) -> str:
        return self.solution.__name__


BUGS: dict[Exercise, list[Bug]] = {}
EQUIVALENT: dict[Exercise, dict[str, str]] = {}
SAMPLED: dict[Exercise, int] = {}


def bug(
    reference: Callable, sentence: str, *, told_by: str | None = None, classic: bool = False
) -> Callable:
    """Register a wrong solution of the exercise that `reference` solves."""

    def register(solution: Callable) -> Callable:
        found = Bug(sentence, solution, told_by, classic)
        BUGS.setdefault(Exercise.of(reference), []).append(found)
        return solution

    return register


def changed(
    reference: Callable,
    name: str,
    sentence: str,
    *changes: tuple[str, str],
    told_by: str | None = None,
    classic: bool = False,
) -> None:
    """Register a reference with some of its text replaced, as a wrong solution of that name.

    Args:
        reference: the solution of the exercise.
        name: the mistake's name.
        sentence: completes "Your output equals what you get when …".
        changes: what the reference says, exactly once, and what the mistake says instead.
        told_by, classic: as in `bug`.
    Raises:
        ValueError: what is to be replaced does not occur exactly once.
    """
    source = original = inspect.getsource(reference)
    for right, wrong in changes:
        if (original.count(right), source.count(right)) != (1, 1):
            place = f"{inspect.getsourcefile(reference)}:{inspect.getsourcelines(reference)[1]}"
            raise ValueError(
                f"the mistake {name}: {right!r} must occur once in {reference.__name__}, and occurs"
                f" {original.count(right)} times: {place}"
            )
        source = source.replace(right, wrong)
    file = f"<bug {name} of {reference.__name__}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = dict(vars(inspect.getmodule(reference)))
    exec(compile(source, file, "exec"), namespace)
    solution = namespace[reference.__name__]
    solution.__name__ = name
    bug(reference, sentence, told_by=told_by, classic=classic)(solution)


def mistakes(reference: Callable, table: str) -> None:
    """Register wrong solutions that are edits of a reference, two lines or so for each.

    A line "name: sentence" begins one, with a star before it if it is a classic one. Below it,
    indented by four, are edits, "right → wrong", and "says: " with words of a check that give it
    away. What is long, or has several lines, stands above its arrow:

        for t in range(T):
            h = step(x[t], h)
        → for t in reversed(range(T)):
              h = step(x[t], h)

    Raises:
        ValueError: as `changed`, or a line is none of these.
    """
    source = inspect.getsource(reference)
    for entry in re.split(r"\n(?=\S)", table.strip()):
        first, *below = entry.splitlines()
        name, colon, sentence = first.removeprefix("* ").partition(": ")
        told_by = [line[10:] for line in below if line.startswith("    says: ")]
        edits = _edits([line for line in below if not line.startswith("    says: ")])
        if not colon or not edits:
            raise ValueError(f"{reference.__name__}: neither a name nor an edit: {entry!r}")
        changed(
            reference,
            name,
            sentence,
            *(_indented(source, *edit) for edit in edits),
            told_by=told_by[0] if told_by else None,
            classic=first.startswith("* "),
        )


def _edits(lines: list[str]) -> list[tuple[str, str]]:
    """Read the edits of a mistake; none if a line has no place in one."""
    edits: list[tuple[list[str], list[str]]] = []
    right: list[str] = []
    for line in lines:
        text, arrow, wrong = line[4:].partition(" →")
        if line.startswith("    →"):
            edits.append((right, [line[6:]]))
            right = []
        elif arrow and not right:
            edits.append(([text], [wrong[1:]]))
        elif line.startswith("      ") and edits and not right:
            edits[-1][1].append(line[6:])
        else:
            right.append(line[4:])
    return [] if right else [("\n".join(old), "\n".join(new)) for old, new in edits]


def _indented(source: str, right: str, wrong: str) -> tuple[str, str]:
    """Indent the lines below the first as the reference indents that one."""
    found = re.search("^ *(?=.*" + re.escape(right.partition("\n")[0]) + ")", source, re.MULTILINE)
    below = "\n" + found[0] if found else "\n"
    return right.replace("\n", below), wrong.replace("\n", below)


def equivalent(reference: Callable, mutant: str, reason: str) -> None:
    """Excuse an automatic mutant, as `score` prints it, because it computes the same."""
    EQUIVALENT.setdefault(Exercise.of(reference), {})[mutant] = reason


def sample_mutants(reference: Callable, every: int) -> None:
    """Try only every so many of the automatic mutants of an exercise whose checks are slow."""
    SAMPLED[Exercise.of(reference)] = every
