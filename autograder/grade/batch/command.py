"""`python -m autograder grade`: grade submissions in parallel; if it is ended, nothing is lost."""

import argparse
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from sqlalchemy.exc import SQLAlchemyError
from tqdm import tqdm

from autograder.assignment import Assignment, course_folder
from autograder.grade.batch.cluster import Cluster
from autograder.grade.batch.gradebook import Recorder, problem_with_id, sentence
from autograder.grade.batch.workers import Result, Task, freeze, on_dask
from autograder.grade.errors import EndedWorkers, GradingError
from autograder.grade.journal.plugin import GRADED
from autograder.grade.judging.repair import Repair, all_checks, confirmed
from autograder.grade.judging.verdict import Step, Verdict, steps
from autograder.grade.kernel import sandbox
from autograder.grade.kernel.provisioner import sweep
from autograder.grade.kernel.sandbox_files import sandbox_files
from autograder.grade.late.policy import read as read_policy
from autograder.grade.late.unchanged import keep_time
from autograder.grade.submission.files import clean
from autograder.grade.submission.submission import Course, Submission

# The state of a submission, after the number of those in it.
_COUNTED = {
    "graded": "graded",
    "unchanged": "unchanged",
    "person": "graded, to be checked by a person",
    "failed": "failed",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s NN_topic [student ...] [option ...]"
    parser.add_argument("assignment", metavar="NN_topic")
    parser.add_argument(
        "students", nargs="*", default=[], help="default: everyone who has submitted"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: the cores")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="a Dask cluster, tls://…")
    parser.add_argument(
        "--insecure", action="store_true", help="allow tcp:// to a scheduler on another machine"
    )
    parser.add_argument(
        "--resources", type=_resources, default={}, metavar="GPU=1", help="what a worker must offer"
    )
    parser.add_argument("--force", action="store_true", help="judge again, whatever is known")
    parser.add_argument(
        "--since-check",
        metavar="EXERCISE.CHECK",
        help="after a repair: only those who failed this check, and say first what changes",
    )
    parser.add_argument("--yes", action="store_true", help="with --since-check: do not ask")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, on stdout")
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")


def _resources(text: str) -> dict[str, float]:
    """Read NAME=AMOUNT,NAME=AMOUNT; argparse puts a ValueError into words."""
    pairs = [pair.split("=") for pair in text.split(",")]
    return {name: float(amount) for name, amount in pairs}


def main(arguments: argparse.Namespace) -> int:
    """Grade; 0 if every submission has its scores, 1 if something needs to be done."""
    try:
        return Batch(arguments).run()
    except SQLAlchemyError as error:
        print(f"Grading stops: {sentence(error)}", file=sys.stderr)
        return 1
    except (GradingError, OSError) as error:
        print(f"Grading stops: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Grading was interrupted; the same command goes on from here.", file=sys.stderr)
        return 130


@dataclass(frozen=True)
class _Pending:
    """A submission that has been read: its code cells, the key of their verdict, and doubts."""

    submission: Submission
    steps: list[Step]
    key: str
    doubts: list[str]


class Batch:
    """Everything that one call of the command does.

    Args:
        arguments: what add_arguments makes.
        why: the reason that the journal gives for what changes.
    """

    def __init__(self, arguments: argparse.Namespace, why: str = GRADED):
        self.arguments = arguments
        self.course = Course(course_folder(arguments.course))
        if sandbox.is_off():
            print(sandbox.WARNING, file=sys.stderr)
        else:
            sandbox.demand()
        self.name = arguments.assignment
        self.plan = self.course.plan(self.name)
        read_policy(self.course.root)  # a mistake in it stops here, and not at every student
        self.repair = None
        if arguments.since_check:
            self.repair = Repair(self.course, self.name, arguments.since_check)
            why = f"check repaired: {arguments.since_check}"
        self.recorder = Recorder(self.course, self.name, why)
        self.held: list[tuple[_Pending, Verdict]] = []  # until it is known what they change
        self.workers = self.under_way = 0
        self.counts = {"graded": 0, "unchanged": 0, "person": 0, "failed": 0}
        self.failed: set[str] = set()  # students whose scores were not written

    def run(self) -> int:
        """Grade what has no scores yet, or not the right ones."""
        sweep()
        freeze()
        students = self._students()
        self.recorder.notice()
        graded = self.recorder.graded()
        pending: list[_Pending] = []
        path = self.course.work / f"grade_{self.name}.log"
        # File names need not be UTF-8.
        self.log = open(path, "a", encoding="utf-8", errors="backslashreplace")
        with (
            self.log,
            _alone(self.log, self.name),
            tqdm(total=len(students), disable=None, unit="student") as self.bar,
        ):
            for student in students:
                if problem := problem_with_id(student):
                    self._tell(student, "failed", f"{problem}: rename the student's folder")
                    continue
                try:
                    found = self._prepare(student)
                except Exception as error:  # about one student: the others have their points
                    self._tell(student, "failed", f"the submission cannot be read: {_text(error)}")
                    continue
                if sandbox.is_off():
                    self._record(found, None)
                    continue
                known = (
                    None if self.arguments.force else self.course.store.load(self.name, found.key)
                )
                known = known if known and known.is_final else None
                if known and student in graded and self.recorder.holds(found.submission, found.key):
                    self._tell(student, "unchanged")
                elif known:
                    self._settle(found, known)
                else:
                    pending.append(found)
            by_student = {found.submission.student: found for found in pending}
            for task, result in self._judged(pending):
                self.under_way -= 1
                self._take(by_student[task.student], result)
            is_done = self._write_held()
        told = (f"{n} {_COUNTED[state]}" for state, n in self.counts.items() if n)
        print(" · ".join(told), file=sys.stderr)
        return 0 if is_done and not self.counts["failed"] else 1

    def _students(self) -> list[str]:
        found = sorted(path.parent.name for path in self.course.submitted.glob(f"*/{self.name}"))
        if unknown := set(self.arguments.students) - set(found):
            raise GradingError(f"{min(unknown)} has not submitted {self.name}")
        chosen = self.arguments.students or found
        return chosen if self.repair is None else list(filter(self.repair.concerns, chosen))

    def _prepare(self, student: str) -> _Pending:
        submission = Submission(self.course, self.name, student)
        aside = self.course.aside / student / self.name
        done = clean(submission.folder, self.name, aside)
        notebook, nb = submission.mended()
        kept = keep_time(submission, nb)
        for line in [*done, *notebook.remarks, *([kept] if kept else [])]:
            self._note(student, line)
        found = steps(nb)
        return _Pending(submission, found, submission.key(found), notebook.doubts)

    def _judged(self, pending: list[_Pending]) -> Iterator[Result]:
        if not pending:
            return iter(())
        sandbox_files(Assignment(self.name))  # once, before workers ask for it
        self.workers = max(1, min(self.arguments.workers, len(pending)))
        asked = self.arguments
        cluster = Cluster(self.workers, asked.scheduler, asked.resources, asked.insecure)
        return on_dask(self._tasks(pending), Assignment(self.name), cluster, self._say)

    def _tasks(self, pending: list[_Pending]) -> Iterator[Task]:
        """Read what came with the submissions, but not before they are judged."""
        for found in pending:
            submission = found.submission
            try:
                files = {name: path.read_bytes() for name, path in submission.files.items()}
            except Exception as error:
                self._tell(submission.student, "failed", f"a file cannot be read: {_text(error)}")
                continue
            self.under_way += 1
            self._show()
            course = self.course
            yield Task(
                submission.student,
                self.name,
                self.plan,
                found.steps,
                files,
                course.inputs,
                course.carries,
            )

    def _take(self, pending: _Pending, found: Verdict | Exception) -> None:
        """Keep a verdict; without one, the submission gets no points and waits for a person."""
        submission, key = pending.submission, pending.key
        if isinstance(found, Exception):
            reason = f"it could not be judged: {_text(found)[:200]}"
            if self.repair is not None:
                self._tell(submission.student, "failed", f"{reason}; its points stay")
                return
            empty: list[list[dict]] = [[] for _ in pending.steps]
            # What has ended the grader's processes is not tried again, except with --force.
            is_final = isinstance(found, EndedWorkers)
            failed = all_checks(self.plan)  # one of which may be the cause
            found = Verdict(empty, {}, {"": reason}, is_final=is_final, failed=failed)
        try:
            self.course.store.save(self.name, key, found)
        except Exception as error:
            self._tell(submission.student, "failed", f"the verdict cannot be kept: {_text(error)}")
            return
        self._settle(pending, found)

    def _settle(self, pending: _Pending, found: Verdict) -> None:
        if self.repair is None:
            self._record(pending, found)
        else:
            self.held.append((pending, found))

    def _write_held(self) -> bool:
        """After a repair, say whose points change, and write them if that is wanted."""
        if self.repair is None:
            return True
        verdicts = {pending.submission.student: found for pending, found in self.held}
        lines = self.repair.changes(verdicts, self.recorder.points())
        for line in lines or ["Nobody's points change."]:
            self.bar.write(line, file=sys.stderr)
        if not lines:
            return True
        if not (self.arguments.yes or confirmed(f"Write the points of {len(lines)} exercises?")):
            self.bar.write("Nothing was written; --yes writes it.", file=sys.stderr)
            return False
        for pending, found in self.held:
            self._record(pending, found)
        return True

    def _record(self, pending: _Pending, found: Verdict | None) -> None:
        submission = pending.submission
        try:
            problem = self.recorder.record(submission, pending.key if found else None)
            if problem is None:
                score, most, person = self.recorder.scores(submission.student)
        except Exception as error:
            problem = _text(error)
        if problem:
            self._tell(submission.student, "failed", problem)
            return
        seconds = found.seconds.get("all") if found else None
        fields = {"score": score, "max": most, "needs_person": person, "seconds": seconds}
        notes = "; ".join([*pending.doubts, *(found.notes.values() if found else ())])
        self._tell(submission.student, "person" if notes else "graded", notes, **fields)

    def _tell(self, student: str, state: str, reason: str = "", **fields) -> None:
        self.counts[state] += 1
        self.failed |= {student} if state == "failed" else set()
        fields = {"student": student, "state": state, "reason": reason, **fields}
        self._note(student, json.dumps(fields))
        if self.arguments.json:
            print(json.dumps(fields), flush=True)
        elif reason:
            self._say(f"{_name(student)}: {reason}")
        self.bar.update()
        self._show()

    def _say(self, text: str) -> None:
        self.bar.write(text, file=sys.stderr)

    def _show(self) -> None:
        counts = {"running": min(self.workers, self.under_way), **self.counts}
        self.bar.set_postfix({word: n for word, n in counts.items() if n})

    def _note(self, student: str, text: str) -> None:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        print(when, _name(student), text, file=self.log, flush=True)


def _name(student: str) -> str:
    """A student's id on one line of a terminal, which must not obey it."""
    return student if student.isprintable() else repr(student)


def _text(error: Exception) -> str:
    """An exception in one line; those that say what went wrong in a sentence need no name."""
    if isinstance(error, SQLAlchemyError):
        return sentence(error)
    lines = str(error).splitlines() or [""]
    is_sentence = isinstance(error, (GradingError, OSError))
    return lines[0] if is_sentence and lines[0] else f"{type(error).__name__}: {lines[0]}"


@contextlib.contextmanager
def _alone(log: TextIO, name: str) -> Iterator[None]:
    """Hold the log of an assignment's grading, which one command at a time may do."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise GradingError(f"another command is grading {name}; wait until it has ended") from None
    yield  # the lock goes with the file
