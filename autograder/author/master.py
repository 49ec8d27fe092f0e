"""Read a master: the parts of its notebook, in order."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jupytext

from autograder.assignment import CourseError

_QUESTION = re.compile(
    r"^```question(?P<options>[^\n]*)\n(?P<text>.*?)\n---\n(?P<rubric>.*?)\n```$",
    re.MULTILINE | re.DOTALL,
)
_QUESTION_FENCE = re.compile(r"^```question", re.MULTILINE)


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
    """A place for an exercise: its name and its points."""

    name: str
    points: float
    line: int


@dataclass(frozen=True)
class Question:
    """A question that is graded by hand, with a rubric that only graders see."""

    name: str
    points: float
    text: str
    rubric: str
    line: int


Part = Text | Code | ExerciseFence | Question


def parts(path: Path) -> list[Part]:
    """Split a master into prose, code, exercises and questions, in order.

    Raises:
        CourseError: an exercise without points or with code in its fence, a question without name,
            points or rubric, or the same name twice.
    """
    text = path.read_text(encoding="utf-8")
    found = [
        part for cell in jupytext.reads(text, fmt="md").cells for part in _of(cell, path, text)
    ]
    names = set()
    for part in found:
        if isinstance(part, (ExerciseFence, Question)):
            if part.name in names:
                raise CourseError(f"{path}:{part.line}: {part.name!r} occurs twice; rename one")
            names.add(part.name)
    return found


def _of(cell, path: Path, text: str) -> Iterator[Part]:
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
    for match in _QUESTION.finditer(cell.source):
        yield from _prose(cell.source[position : match.start()], path, text)
        options = dict(re.findall(r'(\w+)=("[^"]*"|\S+)', match["options"]))
        name = options.get("name", "").strip('"')
        line = _line(text, rf"^```question{re.escape(match['options'])}$")
        if not name:
            raise CourseError(f'{path}:{line}: a question needs a name: ```question name="…"')
        yield Question(
            name, _points(options, path, line), match["text"].strip(), match["rubric"].strip(), line
        )
        position = match.end()
    yield from _prose(cell.source[position:], path, text)


def _prose(source: str, path: Path, text: str) -> Iterator[Text]:
    if _QUESTION_FENCE.search(source):
        line = _line(
            text, re.escape(source[_QUESTION_FENCE.search(source).start() :].split("\n")[0])
        )
        raise CourseError(f"{path}:{line}: a question needs its rubric below a line with ---")
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
