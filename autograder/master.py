"""Read the masters: which assignments there are, and the parts of each one's notebook."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jupytext

ROOT = Path(__file__).resolve().parent.parent
_QUESTION = re.compile(
    r"^```question(?P<options>[^\n]*)\n(?P<text>.*?)\n---\n(?P<rubric>.*?)\n```$",
    re.MULTILINE | re.DOTALL,
)
_QUESTION_FENCE = re.compile(r"^```question", re.MULTILINE)


class MasterError(Exception):
    """A master that cannot be built; the message has file, line and what to do."""


def course_folder(given: Path) -> Path:
    """Resolve the folder of a course, which commands take as --course.

    Raises:
        MasterError: it is none.
    """
    folder = given.resolve()
    if not (folder / "nbgrader_config.py").exists():
        raise MasterError(f"{folder} holds no nbgrader_config.py: use --course")
    return folder


@dataclass(frozen=True)
class Assignment:
    """An assignment, known by its master `solutions/NN_topic.md`."""

    name: str

    @property
    def topic(self) -> str:
        return self.name.partition("_")[2]

    @property
    def master(self) -> Path:
        return ROOT / "solutions" / f"{self.name}.md"

    @property
    def solved(self) -> Path:
        return ROOT / "solutions" / self.name / f"{self.name}.ipynb"

    @property
    def student(self) -> Path:
        return ROOT / "notebooks" / self.name / f"{self.name}.ipynb"


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


def assignments(names: Iterable[str] = ()) -> list[Assignment]:
    """List the assignments, or those of the given names.

    Raises:
        MasterError: a name that no master has.
    """
    found = {path.stem for path in (ROOT / "solutions").glob("[0-9][0-9]_*.md")}
    if unknown := sorted(set(names) - found):
        known = ", ".join(sorted(found)) or "none"
        raise MasterError(f"there is no solutions/{unknown[0]}.md; masters: {known}")
    return [Assignment(name) for name in sorted(set(names) or found)]


def parts(path: Path) -> list[Part]:
    """Split a master into prose, code, exercises and questions, in order.

    Raises:
        MasterError: an exercise without points or with code in its fence, a question without name,
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
                raise MasterError(f"{path}:{part.line}: {part.name!r} is there twice; rename one")
            names.add(part.name)
    return found


def _of(cell, path: Path, text: str) -> Iterator[Part]:
    if cell.cell_type == "code":
        if unknown := set(cell.metadata) - {"exercise", "points"}:
            option = cell.metadata.get("incorrectly_encoded_metadata", ", ".join(sorted(unknown)))
            line = _line(text, rf"^```python.*{re.escape(option)}")
            raise MasterError(
                f'{path}:{line}: not understood: {option}; write exercise="name" points=4'
            )
        if "exercise" not in cell.metadata:
            yield Code(cell.source)
            return
        name = cell.metadata["exercise"]
        line = _line(text, rf'^```python.*exercise="{re.escape(name)}"')
        if cell.source.strip():
            raise MasterError(
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
            raise MasterError(f'{path}:{line}: a question needs a name: ```question name="…"')
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
        raise MasterError(f"{path}:{line}: a question needs its rubric below a line with ---")
    if source.strip():
        yield Text(source.strip())


def _points(options: dict, path: Path, line: int) -> float:
    try:
        return float(options["points"])
    except (KeyError, ValueError):
        raise MasterError(
            f"{path}:{line}: points are missing: write points=4 in the fence"
        ) from None


def _line(text: str, pattern: str) -> int:
    match = re.search(pattern, text, re.MULTILINE)
    return text.count("\n", 0, match.start()) + 1 if match else 1
