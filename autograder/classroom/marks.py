"""Marks as files that Canvas, Moodle and Gradescope read, by nbgrader's own command.

    nbgrader export --exporter=autograder.classroom.marks.Canvas --to canvas.csv

The gradebook's student id becomes Canvas's SIS Login ID, Moodle's ID number and Gradescope's SID;
its lms_user_id is Canvas's ID. Students who have not submitted have no mark, rather than a zero.
Penalties for being late are settled first, as policy.toml says.
"""

from collections.abc import Iterator
from pathlib import Path

from nbgrader.api import Assignment, Gradebook, MissingEntry, Student, SubmittedAssignment
from nbgrader.plugins import ExportPlugin
from traitlets import Unicode

from autograder.assignment import CourseError
from autograder.classroom.table import as_csv, write
from autograder.grade.late.lateness import sentence
from autograder.grade.late.policy import PolicyError, read
from autograder.grade.late.settle import settle

Row = list[str | float]


class Table(ExportPlugin):
    """The table of nbgrader's own exporter, whose file breaks at commas and quotes in names."""

    columns = ("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name")
    columns += ("email", "raw_score", "late_submission_penalty", "score", "max_score")
    course = Unicode(".", help="The course's folder.").tag(config=True)

    def export(self, gradebook: Gradebook) -> None:
        """Settle penalties, then write the file, `--to` or grades.csv, also over an older one.

        Raises:
            SystemExit: policy.toml cannot be used, or the file cannot be written.
        """
        _settle(gradebook, self.course)
        text = as_csv([self.columns, *self.rows(gradebook)])
        path = Path(self.to or "grades.csv")
        try:
            path.write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            raise SystemExit(f"{path} cannot be written: {error.strerror}") from None

    def rows(self, gradebook: Gradebook) -> Iterator[tuple]:
        """Give a row for each assignment and student; who has not submitted has zeros."""
        chosen = [str(name) for name in self.student]  # nbgrader reads 123 as a number
        students = [s for s in gradebook.students if not chosen or s.id in chosen]
        for assignment in gradebook.assignments:
            if self.assignment and assignment.name not in map(str, self.assignment):
                continue
            for student in students:
                found = submission_of(gradebook, assignment, student)
                raw, penalty = _scores(found) if found else (0.0, 0.0)
                yield (
                    assignment.name,
                    assignment.duedate,
                    found.timestamp if found else None,
                    student.id,
                    student.last_name,
                    student.first_name,
                    student.email,
                    raw,
                    penalty,
                    max(0.0, raw - penalty),
                    assignment.max_score,
                )


class Export(ExportPlugin):
    """Write one row for each student; subclasses say what is in it."""

    default_name: str
    course = Unicode(".", help="The course's folder.").tag(config=True)
    lateness: dict[tuple[str, str], str]  # what is said to a student who was late

    def export(self, gradebook: Gradebook) -> None:
        """Write the file, `--to` or one named after the system, unless it already exists.

        Raises:
            SystemExit: the file exists, the gradebook lacks what was asked for, or policy.toml
                cannot be used.
        """
        self.lateness = _settle(gradebook, self.course)
        assignments = _assignments(gradebook, self.assignment)
        students = _students(gradebook, self.student)
        rows = list(self.rows(gradebook, assignments, students))
        name = self.to or self.default_name
        try:
            write(Path(name), rows)
        except CourseError as error:
            raise SystemExit(str(error)) from None
        self.log.info("Wrote the marks of %d students to %s", len(students), name)
        for assignment in assignments:
            if waiting := _waiting(gradebook, assignment, students):
                self.log.warning(
                    "In %s these still wait for a person, and their marks will change: %s",
                    assignment.name,
                    ", ".join(waiting),
                )

    def rows(
        self, gradebook: Gradebook, assignments: list[Assignment], students: list[Student]
    ) -> Iterator[Row]:
        """Give the lines of the file."""
        raise NotImplementedError


class Canvas(Export):
    """Canvas: Grades → Import. A column updates the assignment of its name, or makes one."""

    default_name = "canvas.csv"

    def rows(self, gradebook, assignments, students):
        columns = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
        yield [*columns, *(assignment.name for assignment in assignments)]
        yield ["    Points Possible", *[""] * 4, *(a.max_score for a in assignments)]
        for student in students:
            names = (student.last_name, student.first_name)
            name = ", ".join(filter(None, names)) or student.id
            marks = [_mark(submission_of(gradebook, a, student)) for a in assignments]
            yield [name, student.lms_user_id or "", "", student.id, "", *marks]


class Moodle(Export):
    """Moodle: Grades → Import → CSV file. Map each column of marks, and its comments' column."""

    default_name = "moodle.csv"

    def rows(self, gradebook, assignments, students):
        names = [name for a in assignments for name in (f"{a.name} (Real)", f"{a.name} (Feedback)")]
        yield ["First name", "Last name", "ID number", "Email address", *names]
        for student in students:
            row = [student.first_name or "", student.last_name or "", student.id]
            row.append(student.email or "")
            for assignment in assignments:
                found = submission_of(gradebook, assignment, student)
                late = self.lateness.get((student.id, assignment.name), "")
                row += [_mark(found), "; ".join(filter(None, (late, _comments(found))))]
            yield row


class Gradescope(Export):
    """Gradescope: the columns of its grades file; the first five are those of its roster."""

    default_name = "gradescope.csv"

    def rows(self, gradebook, assignments, students):
        columns = ("", " - Max Points", " - Submission Time", " - Lateness (H:M:S)")
        names = [assignment.name + column for assignment in assignments for column in columns]
        yield ["First Name", "Last Name", "SID", "Email", "Sections", *names]
        for student in students:
            row = [student.first_name or "", student.last_name or "", student.id]
            row += [student.email or "", ""]
            for assignment in assignments:
                found = submission_of(gradebook, assignment, student)
                row += [_mark(found), assignment.max_score, *_when(found)]
            yield row


def _settle(gradebook: Gradebook, course: str) -> dict[tuple[str, str], str]:
    """Settle penalties as policy.toml says; give a sentence by late student and assignment."""
    try:
        policy = read(Path(course))
    except PolicyError as error:
        raise SystemExit(str(error)) from None
    found = settle(gradebook, policy) if policy else []
    return {(late.work.student, late.work.assignment): sentence(late) for late in found}


def _assignments(gradebook: Gradebook, names: list[str]) -> list[Assignment]:
    """Find the assignments of those names, or all of this course."""
    course, everything = gradebook.course_id, gradebook.assignments
    found = {a.name: a for a in everything if a.course_id == course}
    if not found:
        others = sorted({a.course_id for a in everything})
        what = f"that of {', '.join(others)}" if others else "empty"
        raise SystemExit(f"the gradebook has no assignment of {course}: it is {what}")
    return _chosen(found, names, "assignment")


def _students(gradebook: Gradebook, names: list[str]) -> list[Student]:
    found = {student.id: student for student in gradebook.students}
    if not found:
        raise SystemExit("the gradebook has no students")
    return _chosen(found, names, "student")


def _chosen(found: dict, names: list[str], kind: str) -> list:
    names = [str(name) for name in names]  # nbgrader reads 123 as a number
    if unknown := sorted(set(names) - set(found)):
        raise SystemExit(
            f"the gradebook has no {kind} {unknown[0]}; it has {', '.join(sorted(found))}"
        )
    return [found[name] for name in sorted(names or found)]


def submission_of(
    gradebook: Gradebook, assignment: Assignment, student: Student
) -> SubmittedAssignment | None:
    """Find what a student has submitted; None if there is nothing."""
    try:
        return gradebook.find_submission(assignment.name, student.id)
    except MissingEntry:
        return None


def _waiting(gradebook: Gradebook, assignment: Assignment, students: list[Student]) -> list[str]:
    found = ((student.id, submission_of(gradebook, assignment, student)) for student in students)
    return [name for name, submission in found if submission and submission.needs_manual_grade]


def _mark(submission: SubmittedAssignment | None) -> str | float:
    return "" if submission is None else mark(submission)


def mark(submission: SubmittedAssignment) -> float:
    """The score less the penalty for being late, as nbgrader's own exporter gives it."""
    score, penalty = _scores(submission)
    return round(max(0.0, score - penalty), 2)


def _scores(submission: SubmittedAssignment) -> tuple[float, float]:
    """The score, and the penalty for being late."""
    return submission.score, submission.late_submission_penalty or 0.0


def _comments(submission: SubmittedAssignment | None) -> str:
    """What graders, and the autograder, wrote below the cells, on one line."""
    if submission is None:
        return ""
    found = [
        f"{comment.name}: {' '.join(comment.comment.split())}"
        for notebook in submission.notebooks
        for comment in notebook.comments
        if comment.comment
    ]
    return "; ".join(found)


def _when(submission: SubmittedAssignment | None) -> tuple[str, str]:
    """When it came, in UTC, and how late that was."""
    if submission is None or submission.timestamp is None:
        return "", ""
    late = int(submission.total_seconds_late)
    hours, rest = divmod(late, 3600)
    lateness = f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
    return f"{submission.timestamp:%Y-%m-%d %H:%M:%S} +0000", lateness
