"""Submissions that came by hand lie afterwards where nbgrader's would."""

import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autograder import __main__ as cli
from autograder.assignment import ROOT
from autograder.classroom.gradebook import opened
from tests.course import WORK

NAME = "02_lstm"
CAME = datetime(2026, 11, 2, 22, 58, 59, tzinfo=UTC)
pytestmark = pytest.mark.xdist_group("exchange")


@pytest.fixture
def course(tmp_path) -> Path:
    """A course whose gradebook knows two students."""
    root = tmp_path / "course"
    root.mkdir()
    shutil.copy(ROOT / "nbgrader_config.py", root)
    shutil.copytree(ROOT / "solutions" / NAME, root / "solutions" / NAME)
    (root / WORK).mkdir(parents=True)
    with opened(root) as book:
        book.add_student("ada")
        book.add_student("Zoë")
    return root


@pytest.fixture
def came(tmp_path) -> Path:
    folder = tmp_path / "came"
    folder.mkdir()
    return folder


def write(path: Path, text: str = "{}", when: datetime = CAME) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (when.timestamp(), when.timestamp()))
    return path


@pytest.fixture
def collect(course, came, monkeypatch, capsys):
    def run(*options: str) -> tuple[int, str, str]:
        words = ["autograder", "collect-files", NAME, str(came), "--course", str(course), *options]
        monkeypatch.setattr(sys, "argv", words)
        return cli.main(), *capsys.readouterr()

    return run


def submitted(course: Path, student: str) -> dict[str, str]:
    folder = course / WORK / "submitted" / student / NAME
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_notebooks_archives_and_folders_are_placed(course, came, collect):
    write(came / "ada.ipynb", "ada's")
    write(came / "Zoe\u0308.ZIP", "an archive")  # as macOS writes it
    write(came / "alan" / "work.ipynb", "alan's")
    write(came / "alan" / "timestamp.txt", "1999-01-01 00:00:00 UTC")
    write(came / "alan" / "submission_secret.txt", "somebody's")
    write(came / "o'brien, “ó”.ipynb.txt", "o'brien's")
    write(came / ".DS_Store", "nothing")
    status, out, err = collect()
    assert status == 0 and err == "4 placed · 0 left\n"
    stamp = {"timestamp.txt": "2026-11-02 22:58:59 UTC"}
    assert submitted(course, "ada") == {f"{NAME}.ipynb": "ada's"} | stamp
    assert submitted(course, "Zoë") == {"Zoe\u0308.ZIP": "an archive"} | stamp
    assert submitted(course, "alan") == {"work.ipynb": "alan's"} | stamp
    assert submitted(course, "o'brien, “ó”") == {f"{NAME}.ipynb": "o'brien's"} | stamp
    unknown = "; the gradebook does not know this id: is it right?"
    assert sorted(out.splitlines()) == sorted(
        [
            "Zoë: handed in 2026-11-02 22:58:59 UTC",
            "ada: handed in 2026-11-02 22:58:59 UTC",
            f"alan: handed in 2026-11-02 22:58:59 UTC{unknown}",
            f"o'brien, “ó”: handed in 2026-11-02 22:58:59 UTC{unknown}",
        ]
    )


def test_what_cannot_be_placed_is_named(course, came, collect):
    write(came / "ada.pdf")
    write(came / "[lab] 3.ipynb")
    write(came / "two\nlines.ipynb")
    os.symlink("/etc/hostname", came / "alan.ipynb")
    write(came / "ada.ipynb")
    status, _, err = collect()
    assert status == 1 and sorted(err.splitlines()) == sorted(
        [
            "left: 'ada.pdf' is no notebook, ZIP archive or folder",
            "left: 'alan.ipynb' is no notebook, ZIP archive or folder",
            "left: the id '[lab] 3' has [ and ], which nbgrader takes for a pattern: "
            "rename the file",
            r"left: the id 'two\nlines' has a line break, at which nbgrader stops reading it: "
            "rename the file",
            "1 placed · 4 left",
        ]
    )
    assert [p.name for p in (course / WORK / "submitted").iterdir()] == ["ada"]


def test_what_is_there_is_replaced_by_what_is_newer_if_that_is_wanted(course, came, collect):
    write(came / "ada.ipynb", "first")
    assert collect()[0] == 0
    later = datetime(2026, 11, 3, tzinfo=UTC)
    write(came / "ada.ipynb", "second", later)
    status, _, err = collect()
    assert status == 1 and "ada has submitted already: --update replaces that" in err
    assert collect("--update")[0] == 0
    assert submitted(course, "ada") == {
        f"{NAME}.ipynb": "second",
        "timestamp.txt": "2026-11-03 00:00:00 UTC",
    }
    write(came / "ada.ipynb", "third", CAME)
    status, _, err = collect("--update")
    assert status == 1 and "ada has submitted at 2026-11-03 00:00:00 UTC, not before this" in err
    assert submitted(course, "ada")[f"{NAME}.ipynb"] == "second"


def test_the_time_can_be_given(course, came, collect):
    write(came / "ada.ipynb")
    assert collect("--time", "2026-10-25T02:30+01:00")[0] == 0
    assert submitted(course, "ada")["timestamp.txt"] == "2026-10-25 01:30:00 UTC"


def test_what_does_not_exist_is_said(course, came, collect, monkeypatch, capsys):
    came.rmdir()
    status, _, err = collect()
    assert status == 1 and err.strip().endswith(
        "is no folder: name the one with the students' files"
    )
    words = ["autograder", "collect-files", "02_lsmt", str(came), "--course", str(course)]
    monkeypatch.setattr(sys, "argv", words)
    assert cli.main() == 1 and "02_lsmt" in capsys.readouterr().err
