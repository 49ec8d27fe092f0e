"""Marks leave as Canvas, Moodle and Gradescope read them, by nbgrader's export command."""

import csv
import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from nbgrader.plugins import CsvExportPlugin
from traitlets.config import Config

from autograder.classroom import marks
from tests import course as toolbox

pytestmark = pytest.mark.xdist_group("export")


@pytest.fixture(scope="module", autouse=True)
def programs():
    """nbgrader calls alembic by name, even where the environment has not been activated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def database(programs, tmp_path_factory) -> str:
    """A gradebook: ada has everything, bob is late, and 7 has not submitted."""
    path = tmp_path_factory.mktemp("course") / "gradebook.db"
    url = f"sqlite:///{path}"
    with Gradebook(url, toolbox.COURSE) as book:
        shutil.copy(path, path.with_name("empty.db"))
        book.add_student(
            "ada", first_name="Ada", last_name="Lovelace", email="ada@example.org", lms_user_id="41"
        )
        book.add_student("bob", first_name="Bob", last_name="O'Hara, Jr.")
        book.add_student("7")
        for name, points in (("01_rnn", 4), ("02_lstm", 3)):
            book.add_assignment(name, course_id=toolbox.COURSE, duedate="2026-01-10 12:00")
            book.add_notebook(name, name)
            book.add_grade_cell("check_step", name, name, max_score=points, cell_type="code")
            book.add_solution_cell("step", name, name)
        hand_in(book, "01_rnn", "ada", 4.0, datetime(2026, 1, 9, 8, 0))
        hand_in(book, "02_lstm", "ada", 2.254, datetime(2026, 1, 9, 8, 0), "Almost:\n see «Gates»")
        late = hand_in(book, "02_lstm", "bob", 1.0, datetime(2026, 1, 10, 13, 1, 5))
        late.notebooks[0].late_submission_penalty = 1.5
        late.notebooks[0].grades[0].needs_manual_grade = True
        book.db.commit()
    return url


def hand_in(book, assignment, student, score, when, comment=None):
    submission = book.add_submission(assignment, student, timestamp=when)
    (notebook,) = submission.notebooks
    notebook.grades[0].auto_score = score
    notebook.grades[0].needs_manual_grade = False
    notebook.comments[0].manual_comment = comment
    book.db.commit()
    return submission


@pytest.fixture
def export(database, tmp_path, monkeypatch):
    """Run an exporter; return the rows that it wrote."""
    monkeypatch.chdir(tmp_path)

    def run(exporter: type, course: str = toolbox.COURSE, **options) -> list[list[str]]:
        plugin = exporter(config=Config({"ExportPlugin": options}))
        with Gradebook(database, course) as book:
            plugin.export(book)
        with open(options.get("to", exporter.default_name), newline="", encoding="utf-8") as file:
            return list(csv.reader(file))

    return run


def test_canvas(export):
    assert export(marks.Canvas) == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "01_rnn", "02_lstm"],
        ["    Points Possible", "", "", "", "", "4.0", "3.0"],
        ["7", "", "", "7", "", "", ""],
        ["Lovelace, Ada", "41", "", "ada", "", "4.0", "2.25"],
        ["O'Hara, Jr., Bob", "", "", "bob", "", "", "0.0"],
    ]


def test_moodle(export):
    person = ["First name", "Last name", "ID number", "Email address"]
    assert export(marks.Moodle, assignment=["02_lstm"], student=["ada", "7"]) == [
        [*person, "02_lstm (Real)", "02_lstm (Feedback)"],
        ["", "", "7", "", "", ""],
        ["Ada", "Lovelace", "ada", "ada@example.org", "2.25", "step: Almost: see «Gates»"],
    ]


def test_gradescope(export):
    rows = export(marks.Gradescope, assignment=["02_lstm"])
    names = ["02_lstm", "02_lstm - Max Points"]
    names += ["02_lstm - Submission Time", "02_lstm - Lateness (H:M:S)"]
    assert rows[0] == ["First Name", "Last Name", "SID", "Email", "Sections", *names]
    assert rows[1] == ["", "", "7", "", "", "", "3.0", "", ""]
    assert rows[2][5:] == ["2.25", "3.0", "2026-01-09 08:00:00 +0000", "00:00:00"]
    assert rows[3][5:] == ["0.0", "3.0", "2026-01-10 13:01:05 +0000", "01:01:05"]


@pytest.mark.parametrize("exporter", [marks.Canvas, marks.Moodle, marks.Gradescope, marks.Table])
def test_no_cell_becomes_a_formula(database, tmp_path, exporter):
    path = tmp_path / "gradebook.db"
    shutil.copy(database.removeprefix("sqlite:///"), path)
    with Gradebook(f"sqlite:///{path}", toolbox.COURSE) as book:
        book.add_student("=1+1", first_name="@SUM(A1)", last_name="-2+3")
        to = str(tmp_path / "marks.csv")
        exporter(config=Config({"ExportPlugin": {"to": to}})).export(book)
    with open(to, newline="", encoding="utf-8") as file:
        cells = {cell for row in csv.reader(file) for cell in row}
    assert {"'=1+1", "4.0"} <= cells
    assert not [cell for cell in cells if cell[:1] in ("=", "@", "-", "+")]


NAMES = [
    '"Bobby',
    'a "b" c',
    "Lovelace, Ada",
    "a\u2028b",
    "a\x85b",
    "a\x0bb",
    "a\x0cb",
    "a\rb",
    "Zoë",
]


@pytest.mark.parametrize("exporter", [marks.Canvas, marks.Moodle, marks.Gradescope, marks.Table])
def test_no_name_breaks_a_row(database, tmp_path, exporter):
    path = tmp_path / "gradebook.db"
    shutil.copy(database.removeprefix("sqlite:///"), path)
    with Gradebook(f"sqlite:///{path}", toolbox.COURSE) as book:
        for number, name in enumerate(NAMES):
            book.add_student(f"s{number}", first_name="F", last_name=name)
        to = str(tmp_path / "marks.csv")
        exporter(config=Config({"ExportPlugin": {"to": to}})).export(book)
    with open(to, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert len({len(row) for row in rows}) == 1
    for number, name in enumerate(NAMES):
        found = [row for row in rows if f"s{number}" in row]
        assert len(found) == (2 if exporter is marks.Table else 1)
        expected = f"{name}, F" if exporter is marks.Canvas else name
        assert all(expected in row for row in found)


@pytest.mark.parametrize("chosen", [{}, {"assignment": ["02_lstm"]}, {"student": ["ada", 7]}])
def test_the_table_has_what_nbgraders_has(database, tmp_path, chosen):
    path, texts = tmp_path / "gradebook.db", []
    shutil.copy(database.removeprefix("sqlite:///"), path)
    with Gradebook(f"sqlite:///{path}", toolbox.COURSE) as book:
        book.find_student("bob").last_name = "O'Hara"  # nbgrader's file breaks at commas
        book.db.commit()
        for exporter in (CsvExportPlugin, marks.Table):
            to = tmp_path / "marks.csv"
            exporter(config=Config({"ExportPlugin": {"to": str(to), **chosen}})).export(book)
            texts.append(to.read_text(encoding="utf-8"))
    assert texts[0] == texts[1]


def test_marks_that_will_change_are_named(export, caplog):
    export(marks.Canvas)
    assert "In 02_lstm these still wait for a person, and their marks will change: bob" in (
        caplog.text
    )


@pytest.mark.parametrize("exporter", [marks.Canvas, marks.Moodle, marks.Gradescope])
def test_a_file_that_exists_stays(export, tmp_path, exporter):
    (tmp_path / "marks.csv").write_text("mine")
    with pytest.raises(SystemExit, match=r"marks.csv exists: remove it, or name another file"):
        export(exporter, to="marks.csv")
    assert (tmp_path / "marks.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assignment": ["99_none"]}, "no assignment 99_none; it has 01_rnn, 02_lstm"),
        ({"student": ["eve"]}, "no student eve; it has 7, ada, bob"),
        ({"course": "latin"}, "no assignment of latin: it is that of sequence_models"),
        ({"to": "missing/marks.csv"}, "missing/marks.csv cannot be written: No such file"),
    ],
)
def test_what_cannot_be_exported_is_a_clear_error(export, tmp_path, options, message):
    with pytest.raises(SystemExit, match=message):
        export(marks.Canvas, **options)
    assert not list(tmp_path.iterdir())


def test_an_empty_gradebook(database):
    with Gradebook(database.replace("gradebook.db", "empty.db"), toolbox.COURSE) as book:
        with pytest.raises(SystemExit, match="no assignment of sequence_models: it is empty"):
            marks.Canvas().export(book)


def test_nbgraders_command_finds_them(database, tmp_path):
    command = [
        sys.executable,
        "-m",
        "nbgrader",
        "export",
        "--exporter=autograder.classroom.marks.Moodle",
    ]
    command += ["--db", database, "--course", toolbox.COURSE, "--assignment=02_lstm"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(tmp_path, "moodle.csv").read_text().startswith("First name,Last name,ID number,")
