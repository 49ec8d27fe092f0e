"""What the gradebook, the graded notebooks and the verdicts say of each student of a class."""

import contextlib
import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nbformat.v4 import reads
from nbgrader import api
from sqlalchemy import create_engine, inspect, select
from sqlalchemy.orm import Session
from traitlets.config import PyFileConfigLoader

from autograder.classroom.reports.diagnosis import NOTE, causes, incidents, text_of
from autograder.classroom.reports.errors import (
    ForeignGradebook,
    NothingCollected,
    NothingGraded,
    UnknownAssignment,
)
from autograder.grade.judging.carry import carried_in
from autograder.grade.submission.submission import Course, Submission


@dataclass(frozen=True)
class Item:
    """What earns points: an exercise, which checks grade, or a question, which a person grades."""

    name: str
    cell: str
    points: float
    is_exercise: bool


@dataclass
class Graded:
    """One student's graded submission.

    Args:
        student: the student's id.
        notebook: the gradebook's id of the submitted notebook, part of the formgrader's address.
        submitted: when, in UTC, if that is known.
        scores: by item; None while it has no score, like answers that wait for a grader.
        mistakes: the sentences of the known mistakes, by exercise.
        carried: by exercise, with a right what it has earned its points.
        incidents: what went wrong beyond wrong results, in the words of diagnosis.py.
        reason: what the grader was told about it.
        seconds: what judging took, if the verdict is still there.
    """

    student: str
    notebook: str
    submitted: datetime | None
    scores: dict[str, float | None]
    mistakes: dict[str, set[str]] = field(default_factory=dict)
    carried: dict[str, str] = field(default_factory=dict)
    incidents: set[str] = field(default_factory=set)
    reason: str = ""
    seconds: float | None = None

    @property
    def score(self) -> float:
        return sum(score for score in self.scores.values() if score is not None)


@dataclass
class Classroom:
    """A class and an assignment.

    Args:
        assignment: its name.
        items: what earns points, in the notebook's order.
        graded: the graded submissions, by student.
        collected: who has submitted and has no scores.
        missing: who has not submitted.
    """

    assignment: str
    items: list[Item]
    graded: list[Graded]
    collected: list[str]
    missing: list[str]

    @property
    def exercises(self) -> list[Item]:
        return [item for item in self.items if item.is_exercise]

    @property
    def points(self) -> float:
        return sum(item.points for item in self.items)


def read(root: Path, assignment: str, sentences: dict[str, set[str]]) -> Classroom:
    """Read all that is known about an assignment in a class.

    Args:
        root: the course's folder.
        assignment: the assignment.
        sentences: the known mistakes of each exercise.
    Raises:
        ReportError: there is nothing to report on; the text says what to do.
        sqlalchemy.exc.SQLAlchemyError: the gradebook cannot be read.
    """
    course = Course(root)
    items = _items(course, assignment)
    students, graded = _gradebook(course, assignment, items)
    submitted = {path.parent.name for path in course.submitted.glob(f"*/{assignment}")}
    if not graded and not submitted:
        raise NothingCollected(
            f"nobody's {assignment} is in {course.submitted}, where collected work lies: "
            f"nbgrader collect {assignment}"
        )
    if not graded:
        raise NothingGraded(
            f"of {assignment}, {len(submitted)} submissions are collected and none is graded: "
            f"python -m autograder grade {assignment}"
        )
    seconds = _seconds(course, assignment)
    for found in graded.values():
        _read_notebook(found, course, assignment, items, sentences)
        found.seconds = seconds.get(found.student) or _seconds_of(course, assignment, found.student)
    return Classroom(
        assignment,
        items,
        [graded[student] for student in sorted(graded)],
        sorted(submitted - set(graded)),
        sorted(students - submitted - set(graded)),
    )


def _items(course: Course, assignment: str) -> list[Item]:
    known = sorted(p.stem for p in (course.root / "solutions").glob("*/*.ipynb"))
    if assignment not in known:
        raise UnknownAssignment(
            f"there is no assignment {assignment!r} in {course.root / 'solutions'}, only "
            f"{', '.join(known) or 'none at all'}: give one of these, or use --course"
        )
    return [
        Item(cell.exercise or cell.name, cell.name, cell.points, cell.is_checked)
        for cell in course.plan(assignment).cells.values()
        if cell.nbgrader["grade"]
    ]


def _gradebook(
    course: Course, assignment: str, items: list[Item]
) -> tuple[set[str], dict[str, Graded]]:
    """Read who is in the class, and everybody's scores."""
    config = PyFileConfigLoader("nbgrader_config.py", path=str(course.root)).load_config()
    address, own = config.CourseDirectory.db_url, config.CourseDirectory.course_id
    if address.startswith("sqlite:///") and not Path(address.removeprefix("sqlite:///")).exists():
        return set(), {}  # connecting would make an empty one
    engine = create_engine(address)
    try:
        if not inspect(engine).has_table("submitted_notebook"):
            return set(), {}
        with Session(engine) as session:
            _demand_own(session, assignment, own, items)
            students = set(session.scalars(select(api.Student.id)))
            return students, _scores(session, assignment, items)
    finally:
        engine.dispose()


def _demand_own(session: Session, assignment: str, course_id: str, items: list[Item]) -> None:
    query = select(api.Assignment.course_id).where(api.Assignment.name == assignment)
    found = session.scalars(query).all()
    courses = found or session.scalars(select(api.Course.id)).all()
    if courses and course_id not in courses:
        raise ForeignGradebook(
            f"the gradebook is for the course {courses[0]!r}, but nbgrader_config.py names "
            f"{course_id!r}: set CourseDirectory.db_url or CourseDirectory.course_id there"
        )
    query = (
        select(api.GradeCell.name)
        .join(api.Notebook, api.GradeCell.notebook_id == api.Notebook.id)
        .join(api.Assignment, api.Notebook.assignment_id == api.Assignment.id)
        .where(api.Assignment.name == assignment)
    )
    cells, expected = set(session.scalars(query)), {item.cell for item in items}
    if found and cells != expected:
        raise ForeignGradebook(
            f"{assignment} has other graded cells in the gradebook than in its notebook "
            f"({', '.join(sorted(cells ^ expected))}): generate it again, nbgrader "
            f"generate_assignment {assignment} --force, and grade again"
        )


def _scores(session: Session, assignment: str, items: list[Item]) -> dict[str, Graded]:
    """Read the scores of those students who have at least one graded cell."""
    names = {item.cell: item.name for item in items}
    grade, submission, notebook = api.Grade, api.SubmittedAssignment, api.SubmittedNotebook
    query = (
        select(
            submission.student_id,
            notebook.id,
            submission.timestamp,
            api.GradeCell.name,
            grade.auto_score,
            grade.manual_score,
            grade.score,
        )
        .join(notebook, grade.notebook_id == notebook.id)
        .join(submission, notebook.assignment_id == submission.id)
        .join(api.Assignment, submission.assignment_id == api.Assignment.id)
        .join(api.GradeCell, grade.cell_id == api.GradeCell.id)
        .where(api.Assignment.name == assignment)
    )
    found: dict[str, Graded] = {}
    for student, book, submitted, cell, auto, manual, score in session.execute(query):
        none = dict.fromkeys(names.values())
        graded = found.setdefault(student, Graded(student, book, submitted, none))
        graded.scores[names[cell]] = None if auto is None and manual is None else score
    query = (
        select(submission.student_id, api.Comment.auto_comment)
        .join(notebook, api.Comment.notebook_id == notebook.id)
        .join(submission, notebook.assignment_id == submission.id)
        .join(api.Assignment, submission.assignment_id == api.Assignment.id)
        .where(api.Assignment.name == assignment, api.Comment.auto_comment.startswith(NOTE))
    )
    for student, comment in session.execute(query):
        if student in found:
            found[student].reason = comment.removeprefix(NOTE)
    return {s: g for s, g in found.items() if set(g.scores.values()) != {None}}


def _read_notebook(
    graded: Graded,
    course: Course,
    assignment: str,
    items: list[Item],
    sentences: dict[str, set[str]],
) -> None:
    """Read mistakes and incidents from the notebook that nbgrader has kept with its outputs."""
    folder = course.work / "autograded" / graded.student / assignment
    if graded.reason:
        graded.incidents |= incidents(graded.reason) or {"broken submission"}
    if (course.aside / graded.student / assignment).exists():
        graded.incidents.add("files set aside")
    try:
        nb = reads((folder / f"{assignment}.ipynb").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    graded.carried = carried_in(nb)
    names = {item.cell: item.name for item in items if item.is_exercise}
    for cell in nb.cells:
        name = names.get(cell.metadata.get("nbgrader", {}).get("grade_id"))
        if name:
            text = text_of(cell)
            graded.incidents |= incidents(text)
            if found := causes(text, sentences.get(name, set())):
                graded.mistakes[name] = found
        elif any(o.get("ename") == "CellTimeoutError" for o in cell.get("outputs", [])):
            graded.incidents.add("time-out")


def _seconds(course: Course, assignment: str) -> dict[str, float]:
    """Say what judging took, for those whose scores the grade command has written."""
    places = course.store.path(assignment, "*").parent.glob("*.json")
    verdicts = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in places}
    found = {}
    for marker in (course.work / "graded" / assignment).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):  # no marker, or no verdict
            path = verdicts[json.loads(marker.read_text(encoding="utf-8"))["verdict"]]
            found[marker.stem] = json.loads(path.read_text(encoding="utf-8"))["seconds"]["all"]
    return found


def _seconds_of(course: Course, assignment: str, student: str) -> float | None:
    """Say what judging took where nbgrader's own command has written the scores."""
    try:
        submission = Submission(course, assignment, student)
        verdict = course.store.load(assignment, submission.key(submission.steps()))
    except OSError:
        return None
    return verdict.seconds.get("all") if verdict else None
