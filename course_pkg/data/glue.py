"""GLUE's tasks, read from the TSV files in which they are published (Wang et al. 2018)."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from course_pkg.data.text import EncodingError

_LONGEST = 1 << 20  # bytes in a line


class FormatError(ValueError):
    """A file that does not hold what its task should; the message says where."""


@dataclass(frozen=True)
class Task:
    """Where a task's files keep sentences and label, by the column names in their first line.

    Attributes:
        first, second: the columns of the sentences; `second` is None for tasks with one sentence.
        label: the column of the label.
        labels: the labels as the files write them; a label's place here is its number.
        header: the columns' names, for files without such a line.
    """

    first: str
    second: str | None
    label: str
    labels: tuple[str, ...]
    header: tuple[str, ...] | None = None


_YES_NO = ("0", "1")
_ENTAILS = ("entailment", "not_entailment")
TASKS = {
    "CoLA": Task("text", None, "label", _YES_NO, ("source", "label", "star", "text")),
    "SST-2": Task("sentence", None, "label", _YES_NO),
    "MRPC": Task("#1 String", "#2 String", "Quality", _YES_NO),
    "QQP": Task("question1", "question2", "is_duplicate", _YES_NO),
    "MNLI": Task(
        "sentence1", "sentence2", "gold_label", ("entailment", "neutral", "contradiction")
    ),
    "QNLI": Task("question", "sentence", "label", _ENTAILS),
    "RTE": Task("sentence1", "sentence2", "label", _ENTAILS),
    "WNLI": Task("sentence1", "sentence2", "label", _YES_NO),
}

Example = tuple[str, str | None, int]


def read(path: str | Path, task: str, limit: int | None = None) -> list[Example]:
    """Read labelled examples of a task, such as train.tsv or dev.tsv.

    Quotes mean nothing in these files: a cell is what stands between two tabs. A row whose label is
    "-", on which MNLI's annotators did not agree, is left out.

    Args:
        path: the file, in UTF-8.
        task: one of TASKS.
        limit: how many examples to read at most; no more of the file is read.
    Returns:
        For each example its first sentence, its second or None, and the number of its label.
    Raises:
        EncodingError: the file is not UTF-8.
        FormatError: a column is missing, a row does not have as many cells as the first line, or a
            label is unknown.
        ValueError: there is no such task, or limit is negative.
    """
    if task not in TASKS:
        raise ValueError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit must not be negative, got {limit}")
    return list(islice(_examples(Path(path), TASKS[task]), limit))


def _examples(path: Path, task: Task):
    lines = _lines(path)
    names = task.header
    if names is None:
        _, first = next(lines, (1, ""))
        names = tuple(first.removeprefix("\ufeff").split("\t"))
    wanted = [name for name in (task.first, task.second, task.label) if name is not None]
    if missing := [name for name in wanted if name not in names]:
        raise FormatError(f"{path} has no column {missing[0]!r}; its columns are {list(names)}")
    places = {name: names.index(name) for name in wanted}
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) != len(names):
            raise FormatError(f"{path}, line {number}: {len(cells)} cells, not {len(names)}")
        label = cells[places[task.label]]
        if label == "-":
            continue
        if label not in task.labels:
            raise FormatError(
                f"{path}, line {number}: the label {label!r} is none of {task.labels}"
            )
        second = None if task.second is None else cells[places[task.second]]
        yield cells[places[task.first]], second, task.labels.index(label)


def _lines(path: Path):
    """Yield the lines that are not empty, with their numbers."""
    offset = number = 0
    with path.open("rb") as file:
        while line := file.readline(_LONGEST):
            number += 1
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                wrong = offset + error.start
                raise EncodingError(path, wrong, line[error.start]) from None
            if len(line) == _LONGEST and not line.endswith(b"\n"):
                raise FormatError(f"{path}, line {number}: longer than {_LONGEST} bytes")
            offset += len(line)
            if text := text.rstrip("\r\n"):
                yield number, text
