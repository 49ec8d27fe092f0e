"""Read a master: the parts of its notebook, in order."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jupytext

from autograder.assignment import CourseError

# What jupytext leaves in a cell of text; what stands in such a fence may have fences of ~~~.
_FENCE = re.compile(
    r"^```(?P<kind>question|hint|predict|sabotage)(?P<options>[^\n]*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_OPEN_FENCE = re.compile(r"^```(?:question|hint|predict|sabotage)[^\n]*", re.MULTILINE)


@dataclass(frozen=True)
class Text:
    """Prose."""

    source: str


@dataclass(frozen=True)
class Code:
    """A cell of code that students run but do not write."""

    source: str


@dataclass(frozen=True)
class ExerciseFence:
    """A place for an exercise: its name, its points, and the hints that stand above it."""

    name: str
    points: float
    line: int
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hint:
    """A hint to the exercise below it; `parts` gives it to that exercise."""

    source: str
    line: int


@dataclass(frozen=True)
class Prediction:
    """A question about the outcome of the experiment below it, not graded."""

    question: str
    line: int


@dataclass(frozen=True)
class Sabotage:
    """How the idea is taken out of an experiment, for `python -m autograder sabotage`.

    Args:
        sentence: says what is missing then.
        changes: what the cells say, and what they say instead.
        line: where it stands.
    """

    sentence: str
    changes: tuple[tuple[str, str], ...]
    line: int


@dataclass(frozen=True)
class Question:
    """A question that is graded by hand, with a rubric that only graders see."""

    name: str
    points: float
    text: str
    rubric: str
    line: int


Part = Text | Code | ExerciseFence | Prediction | Question


def parts(path: Path, *, with_hints: bool = True) -> list[Part]:
    """Split a master into prose, code, exercises with hints, predictions and questions, in order.

    Raises:
        CourseError: an exercise without points or with code in its fence, a question without name,
            points or rubric, the same name twice, a hint that is empty or above no exercise, or a
            prediction that is empty.
    """
    text = path.read_text(encoding="utf-8")
    found: list[Part] = []
    hints: list[Hint] = []
    for part in (p for cell in jupytext.reads(text, fmt="md").cells for p in _of(cell, path, text)):
        if isinstance(part, Sabotage):
            continue
        if isinstance(part, Hint):
            hints.append(part)
            continue
        if isinstance(part, ExerciseFence):
            if with_hints:
                part = replace(part, hints=tuple(hint.source for hint in hints))
            hints = []
        _demand_exercise(path, hints)
        found.append(part)
    _demand_exercise(path, hints)
    names = set()
    for part in found:
        if isinstance(part, (ExerciseFence, Question)):
            if part.name in names:
                raise CourseError(f"{path}:{part.line}: {part.name!r} occurs twice; rename one")
            names.add(part.name)
    return found


def sabotages(path: Path) -> list[Sabotage]:
    """List how the ideas of a master's experiments are taken out.

    Raises:
        CourseError: one has no sentence, or no line with an arrow.
    """
    text = path.read_text(encoding="utf-8")
    every = (p for cell in jupytext.reads(text, fmt="md").cells for p in _of(cell, path, text))
    return [part for part in every if isinstance(part, Sabotage)]


def _demand_exercise(path: Path, hints: list[Hint]) -> None:
    if hints:
        raise CourseError(
            f"{path}:{hints[0].line}: a hint stands directly above the fence of its exercise"
        )


def _of(cell, path: Path, text: str) -> Iterator[Part | Hint | Sabotage]:
    if cell.cell_type == "code":
        if unknown := set(cell.metadata) - {"exercise", "points"}:
            option = cell.metadata.get("incorrectly_encoded_metadata", ", ".join(sorted(unknown)))
            line = _line(text, rf"^```python.*{re.escape(option)}")
            raise CourseError(
                f'{path}:{line}: not understood: {option}; write exercise="name" points=4'
            )
        if "exercise" not in cell.metadata:
            yield Code(cell.source)
            return
        name = cell.metadata["exercise"]
        line = _line(text, rf'^```python.*exercise="{re.escape(name)}"')
        if cell.source.strip():
            raise CourseError(
                f"{path}:{line}: the fence of {name!r} must be empty; its code is in course_pkg"
            )
        yield ExerciseFence(name, _points(cell.metadata, path, line), line)
        return
    position = 0
    for match in _FENCE.finditer(cell.source):
        yield from _prose(cell.source[position : match.start()], path, text)
        line = _line(text, "^" + re.escape(match[0]))
        yield _KINDS[match["kind"]](match, path, line)
        position = match.end()
    yield from _prose(cell.source[position:], path, text)


def _hint(match: re.Match, path: Path, line: int) -> Hint:
    body = match["body"].strip("\n")
    if match["options"].strip() or not body.strip() or "```" in body:
        raise CourseError(
            f"{path}:{line}: a hint is text between ```hint and ```; code in it is between ~~~"
        )
    return Hint(body, line)


def _question(match: re.Match, path: Path, line: int) -> Question:
    options = dict(re.findall(r'(\w+)=("[^"]*"|\S+)', match["options"]))
    name = options.get("name", "").strip('"')
    if not name:
        raise CourseError(f'{path}:{line}: a question needs a name: ```question name="…"')
    text, _, rubric = (part.strip() for part in match["body"].partition("\n---\n"))
    if not rubric:
        raise CourseError(f"{path}:{line}: a question needs its rubric below a line with ---")
    return Question(name, _points(options, path, line), text, rubric, line)


def _prediction(match: re.Match, path: Path, line: int) -> Prediction:
    question = " ".join(match["body"].split())
    if match["options"].strip() or not question or re.search(r"```|\\", question):
        raise CourseError(
            f"{path}:{line}: a prediction is a question in plain text between ```predict and ```"
        )
    return Prediction(question, line)


def _sabotage(match: re.Match, path: Path, line: int) -> Sabotage:
    sentence, lines = match["options"].strip(), match["body"].strip("\n").splitlines()
    changes = tuple(tuple(part.strip() for part in each.split("→")) for each in lines)
    if not sentence or not changes or any(len(change) != 2 for change in changes):
        raise CourseError(
            f"{path}:{line}: write ```sabotage what is missing, and lines like steps=400 → steps=0"
        )
    return Sabotage(sentence, changes, line)


_KINDS = {"sabotage": _sabotage, "hint": _hint, "predict": _prediction, "question": _question}


def _prose(source: str, path: Path, text: str) -> Iterator[Text]:
    if match := _OPEN_FENCE.search(source):
        line = _line(text, re.escape(match[0]))
        raise CourseError(f"{path}:{line}: there is no ``` below that closes this fence")
    if source.strip():
        yield Text(source.strip())


def _points(options: dict, path: Path, line: int) -> float:
    try:
        return float(options["points"])
    except (KeyError, ValueError):
        raise CourseError(
            f"{path}:{line}: points are missing: write points=4 in the fence"
        ) from None


def _line(text: str, pattern: str) -> int:
    match = re.search(pattern, text, re.MULTILINE)
    return text.count("\n", 0, match.start()) + 1 if match else 1
