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

    A line "name: sentence" begins one, with a star before it if it is a classic one. Each indented
    line is an edit, "right → wrong", or "says: " and the words of a check that give it away.

    Raises:
        ValueError: as `changed`, or a line is none of these.
    """
    for entry in re.split(r"\n(?=\S)", table.strip("\n")):
        first, *below = entry.splitlines()
        name, colon, sentence = first.removeprefix("* ").partition(": ")
        words = [line.strip() for line in below]
        edits = [tuple(line.partition("→")[::2]) for line in words if not line.startswith("says: ")]
        told_by = [line.removeprefix("says: ") for line in words if line.startswith("says: ")]
        if not colon or not edits or not all("→" in line for line in words if line[:6] != "says: "):
            raise ValueError(f"{reference.__name__}: neither a name nor an edit: {entry!r}")
        changed(
            reference,
            name,
            sentence,
            *((right.strip(), wrong.strip()) for right, wrong in edits),
            told_by=told_by[0] if told_by else None,
            classic=first.startswith("* "),
        )


def equivalent(reference: Callable, mutant: str, reason: str) -> None:
    """Excuse an automatic mutant, as `score` prints it, because it computes the same."""
    EQUIVALENT.setdefault(Exercise.of(reference), {})[mutant] = reason


def sample_mutants(reference: Callable, every: int) -> None:
    """Try only every so many of the automatic mutants of an exercise whose checks are slow."""
    SAMPLED[Exercise.of(reference)] = every
