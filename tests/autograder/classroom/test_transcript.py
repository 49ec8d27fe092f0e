"""A transcript is checked on another machine; a changed one, or another key's, is refused."""

import os
import shutil
import stat
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from autograder.assignment import CourseError
from autograder.classroom import transcript
from tests import course as toolbox


@pytest.fixture
def course(tmp_path, monkeypatch) -> Path:
    """A course in which ada has two grades, bob waits for a person, and eve has none."""
    # nbgrader calls alembic by name.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    place = tmp_path / "course"
    place.mkdir()
    url = f"sqlite:///{place / 'gradebook.db'}"
    (place / "nbgrader_config.py").write_text(
        f"c = get_config()\nc.CourseDirectory.db_url = {url!r}\n"
        f"c.CourseDirectory.course_id = {toolbox.COURSE!r}\n"
    )
    with Gradebook(url, toolbox.COURSE) as book:
        book.add_student("ada", first_name="Ada\n| 99 |", last_name="Lovelace")
        book.add_student("bob")
        book.add_student("eve")
        for name in ("01_rnn", "02_lstm"):
            book.add_assignment(name, course_id=toolbox.COURSE)
            book.add_notebook(name, name)
            book.add_grade_cell("check_step", name, name, max_score=4, cell_type="code")
        _hand_in(book, "02_lstm", "ada", 2.254)
        _hand_in(book, "01_rnn", "ada", 4.0)
        _hand_in(book, "01_rnn", "bob", 4.0).notebooks[0].grades[0].needs_manual_grade = True
        book.find_submission("02_lstm", "ada").notebooks[0].late_submission_penalty = 1.0
        book.db.commit()
    return place


def _hand_in(book, assignment, student, score):
    submission = book.add_submission(assignment, student, timestamp=datetime(2026, 1, 9))
    submission.notebooks[0].grades[0].auto_score = score
    submission.notebooks[0].grades[0].needs_manual_grade = False
    return submission


def autograder(*arguments: object, folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "autograder", *map(str, arguments)]
    environment = toolbox.environment() | {"PYTHONPATH": str(Path.cwd())}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


def test_a_transcript_is_checked_elsewhere(course, tmp_path):
    made = autograder("transcript", "ada", "--to", tmp_path / "ada.md", folder=course)
    assert made.returncode == 0, made.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(tmp_path / "ada.md", elsewhere)
    shutil.copy(course / transcript.PUBLIC, elsewhere)
    shutil.rmtree(course)
    told = autograder("verify", "ada.md", "--key", "transcript.pub", folder=elsewhere)
    assert told.returncode == 0, told.stderr
    assert "Student: Ada \\| 99 \\| Lovelace (ada)" in told.stdout
    assert "| 01_rnn | 4.00 | 4 |\n| 02_lstm | 1.25 | 4 |\n" in told.stdout
    assert "| **all 2** | **5.25** | **8** |" in told.stdout

    page = (elsewhere / "ada.md").read_text()
    (elsewhere / "ada.md").write_text(page.replace("| 1.25 |", "| 4.00 |"))
    told = autograder("verify", "ada.md", "--key", "transcript.pub", folder=elsewhere)
    assert told.returncode == 1
    assert "the page has been changed, or another key has signed it" in told.stderr


def test_what_was_not_signed_with_the_key_is_refused(tmp_path):
    key, other = (transcript.course_key(tmp_path / name) for name in ("a", "b"))
    page = transcript.signed("a text\nof two lines\n", key)
    assert transcript.verified(page, key.public_key()) == "a text\nof two lines\n"
    assert transcript.verified(page.replace("\n", "\r\n"), key.public_key())
    for changed in (
        page.replace("two", "ten"),
        page.replace("a text", "a  text"),
        f"| 4.00 |\n{page}",
        page.replace("Signature: ", "Signature: A"),
        f"{page}\nand more\n",
        "",
    ):
        with pytest.raises(CourseError):
            transcript.verified(changed, key.public_key())
    with pytest.raises(CourseError, match="another key"):
        transcript.verified(page, other.public_key())


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path):
    first, again = (transcript.course_key(tmp_path).sign(b"") for _ in range(2))
    assert first == again
    assert stat.S_IMODE((tmp_path / transcript.KEY).stat().st_mode) == 0o600
    assert transcript.public_key(tmp_path / transcript.PUBLIC)
    (tmp_path / transcript.KEY).write_text("no key")
    with pytest.raises(CourseError, match=r"transcript\.key cannot be used"):
        transcript.course_key(tmp_path)
    with pytest.raises(CourseError, match="holds no public key"):
        transcript.public_key(tmp_path / transcript.KEY)


@pytest.mark.parametrize(
    ("student", "message"),
    [
        ("bob", "01_rnn of bob still waits for a person"),
        ("eve", "eve has no graded assignment"),
        ("nobody", "the gradebook does not know nobody; it knows ada, bob, eve"),
    ],
)
def test_what_cannot_be_certified_is_said(course, student, message):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", toolbox.COURSE) as book:
        with pytest.raises(CourseError, match=message):
            transcript.page(book, student)


def test_nothing_is_overwritten(course, tmp_path):
    (tmp_path / "ada.md").write_text("mine")
    told = autograder("transcript", "ada", "--to", tmp_path / "ada.md", folder=course)
    assert told.returncode == 1
    assert "exists: remove it, or name another file with --to" in told.stderr
    assert (tmp_path / "ada.md").read_text() == "mine"
