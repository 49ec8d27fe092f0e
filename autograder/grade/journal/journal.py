"""The journal: a file to which every change of a score is appended, and from which none is taken.

Scores change in nbgrader's pages too, and a killed batch may not have come to write its line. So
what the journal knows is compared with the gradebook before and after each change.
"""

import contextlib
import fcntl
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from nbgrader.api import Gradebook
from nbgrader.utils import get_username

from autograder.grade.journal.scores import BY_CHECKS, BY_HAND, EXTRA, LATE, Place, Scores, read

NAME = "journal.jsonl"
REGRADE = "regrade"
NOBODY = "not known"
GIVEN = "given in the formgrader"
_FOUND = {
    BY_CHECKS: "found later: written by a command that was ended, or without this course's steps",
    BY_HAND: "found later: given by hand",
    EXTRA: "found later: given by hand",
    LATE: "found later: settled as policy.toml says",
}


@dataclass(frozen=True)
class Entry:
    """A change of a score.

    Args:
        when: in UTC, when it was made or found.
        who: the account that made it.
        student: whose score.
        assignment: in which assignment.
        exercise: the exercise or question; "" if it is about the submission.
        kind: who gives these points: "by checks", "by hand", …
        before: the score before; None if there was none.
        after: the score from then on; None if there is none.
        why: the reason.
    """

    when: str
    who: str
    student: str
    assignment: str
    exercise: str
    kind: str
    before: float | None
    after: float | None
    why: str

    @property
    def place(self) -> Place:
        return Place(self.student, self.assignment, self.exercise, self.kind)


class Journal:
    """The journal of a course; several processes may write it.

    Args:
        path: its file.
    """

    def __init__(self, path: Path):
        self._path = path
        self._entries: list[Entry] = []
        self._known: Scores = {}
        self._end = 0  # of what has been read

    def entries(self) -> list[Entry]:
        """Give all changes, the oldest first.

        Raises:
            OSError: the file cannot be read.
        """
        with self._alone():
            return list(self._entries)

    def notice(self, gradebook: Gradebook, student: str | None = None) -> None:
        """Write down what has changed since the journal was written, without knowing who did it.

        Args:
            gradebook: the scores as they are.
            student: whose; None for everybody's.
        Raises:
            OSError: the file cannot be written.
            sqlalchemy.exc.SQLAlchemyError: the gradebook cannot be read.
        """
        with self._alone() as file:
            for place, before, after in self._changes(gradebook, student):
                self._write(file, place, before, after, NOBODY, _FOUND[place.kind])

    def note(
        self,
        gradebook: Gradebook,
        why: str,
        student: str | None = None,
        graded: str | None = None,
        carried: Mapping[str, str] | None = None,
    ) -> None:
        """Write down what has just been changed here; what others change meanwhile is theirs.

        Args:
            gradebook: the scores as they are.
            why: the reason.
            student: whose; None for everybody's.
            graded: the assignment that was graded, if one was; penalties may change in all.
            carried: by exercise of it, with a right what it has earned its points.
        Raises:
            OSError: the file cannot be written.
            sqlalchemy.exc.SQLAlchemyError: the gradebook cannot be read.
        """
        with self._alone() as file:
            for place, before, after in self._changes(gradebook, student):
                if place.kind == LATE or (place.kind == BY_CHECKS and place.assignment == graded):
                    part = (carried or {}).get(place.exercise)
                    also = f"; with a right {part} in place of the student's" if part else ""
                    self._write(file, place, before, after, get_username(), why + also)

    def change(self, place: Place, after: float | None, why: str) -> None:
        """Write down what this account has made of one score; nothing if it is known.

        Raises:
            OSError: the file cannot be written.
        """
        with self._alone() as file:
            before = self._known.get(place)
            if after != before:
                self._write(file, place, before, after, get_username(), why)

    def add(self, place: Place, before: float | None, after: float | None, why: str) -> None:
        """Write down a decision about a submission, also one that changes nothing.

        Raises:
            OSError: the file cannot be written.
        """
        with self._alone() as file:
            self._write(file, place, before, after, get_username(), why)

    def _changes(
        self, gradebook: Gradebook, student: str | None
    ) -> list[tuple[Place, float | None, float | None]]:
        now = read(gradebook, student)
        places = {p for p in self._known if student is None or p.student == student}
        pairs = [(place, self._known.get(place), now.get(place)) for place in places | set(now)]
        return sorted((change for change in pairs if change[1] != change[2]), key=lambda c: c[0])

    def _write(
        self,
        file: IO[str],
        place: Place,
        before: float | None,
        after: float | None,
        who: str,
        why: str,
    ) -> None:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        entry = Entry(when, who, *place, before, after, why)
        file.write(json.dumps(asdict(entry)) + "\n")  # ASCII: a line that is cut can be read
        file.flush()
        self._end = file.tell()
        self._remember(entry)

    def _remember(self, entry: Entry) -> None:
        self._entries.append(entry)
        if entry.kind == REGRADE:
            return
        if entry.after is None:
            self._known.pop(entry.place, None)
        else:
            self._known[entry.place] = entry.after

    @contextlib.contextmanager
    def _alone(self) -> Iterator[IO[str]]:
        """Hold the file, and read what others have written to it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a+", encoding="ascii", errors="replace") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(self._end)
            text = file.read()
            if text and not text.endswith("\n"):  # whoever wrote it was ended
                file.write("\n")
            for line in text.split("\n"):
                with contextlib.suppress(ValueError, TypeError):
                    self._remember(Entry(**json.loads(line)))
            self._end = file.tell()
            yield file  # the lock goes with it


@functools.cache
def journal_of(work: Path) -> Journal:
    """Give the journal in a course's work folder; a process reads each line once."""
    return Journal(work / NAME)
