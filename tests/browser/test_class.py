"""A class as it is: a late student, an extension, a regrade, and a check that was wrong."""

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell
from playwright.sync_api import expect

from autograder.assignment import ROOT, Assignment
from autograder.grade.late.policy import PLACE
from tests import course as toolbox
from tests import server
from tests.browser.assistant import Assistant

LSTM = Assignment("02_lstm")
EXERCISE, CHECK = "init_forget_bias", "init_forget_bias.negative"
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), toolbox.needs_sandbox]
RIGHT, WRONG = "(H,), value, dtype", "(H,), -value, dtype"  # in the check
POLICY = """\
percent_per_day = 10
[due]
02_lstm = 2026-11-02T23:59:00Z
"""
EXTENSION = """\
[extensions.02_lstm]
ada = 2026-11-09T23:59:00Z
"""
REQUEST = "# Regrade request\n\ninit_forget_bias: a negative value is right."


@pytest.fixture
def course(tmp_path, monkeypatch) -> Path:
    """A checkout with one exercise and one question, in which a check is wrong."""
    root = tmp_path / "course"
    root.mkdir()
    toolbox.new_course(root, LSTM, few_cells)
    (root / PLACE).write_text(POLICY, encoding="utf-8")
    unneeded = shutil.ignore_patterns("__pycache__", "course")
    for package in ("autograder", "course_pkg"):
        shutil.copytree(ROOT / package, root / package, ignore=unneeded, dirs_exist_ok=True)
    masters = (ROOT / "solutions").glob("*.md")
    for path in (ROOT / "pyproject.toml", ROOT / "jupyter_server_config.py", *masters):
        shutil.copy(path, root / path.relative_to(ROOT))
    kits = ROOT / toolbox.WORK / "kits"  # the same for both, and slow to make
    kits.mkdir(parents=True, exist_ok=True)
    (root / toolbox.WORK / "kits").symlink_to(kits)
    replace(root, RIGHT, WRONG)
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setattr(server, "ROOT", root)
    return root


def few_cells(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    question = [cell for cell in nb.cells if cell.id == "shortcut"]
    nb = toolbox.one_exercise(nb)
    nb.cells += question
    return nb


def replace(root: Path, old: str, new: str) -> None:
    """Change the check."""
    path = root / "course_pkg" / "checks" / "lstm.py"
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def submit(root: Path, student: str, when: str, *texts: str) -> None:
    """Put work into the exchange, as `nbgrader submit` does, at some time."""
    nb = nbformat.read(root / "notebooks" / LSTM.name / f"{LSTM.name}.ipynb", as_version=4)
    for cell in nb.cells:
        if cell.id == EXERCISE:
            cell.source = toolbox.RIGHT_BIAS
    toolbox.answer(nb)
    nb.cells += map(new_markdown_cell, texts)
    inbound = root / toolbox.WORK / "exchange" / toolbox.COURSE / "inbound"
    folder = inbound / f"{student}+{LSTM.name}+{when}+once"
    folder.mkdir(parents=True)
    nbformat.write(nb, folder / f"{LSTM.name}.ipynb")
    (folder / "timestamp.txt").write_text(when)
    (folder / "submission_secret.txt").write_text(secrets.token_hex(64))


def command(root: Path, *words: str) -> str:
    """Run a command of ours as a TA does in a terminal; return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "autograder", *words],
        cwd=root,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_class(course, window):
    submit(course, "ada", "2026-11-05 11:00:00 UTC")
    submit(course, "alan", "2026-11-01 11:00:00 UTC")
    with server.serving(course) as running:
        ta = Assistant(window("assistant"), f"{running.address}/lab?token={running.token}&reset")
        collect_and_grade(ta)
        extend(course)
        submit(course, "alan", "2026-11-20 11:00:00 UTC", REQUEST)
        regrade(course, ta)
        repair(course)
        look_back(course, ta)


def collect_and_grade(ta: Assistant) -> None:
    """Do so with the Formgrader's buttons, and grade an answer by hand."""
    ta.menu("Nbgrader", "Formgrader")
    ta.press(LSTM.name, "collect", "Successfully collected")
    ta.row(LSTM.name).locator("td.num-submissions a").click()
    for student in ("ada", "alan"):
        ta.press(student, "autograde", "Successfully autograded")
    ta.go("Manual Grading", LSTM.name, LSTM.name, "Submission #1")
    ta.grade("shortcut", 2, "And what is f?")
    ta.window.picture("graded")


def extend(course: Path) -> None:
    """See who is late, and give an extension."""
    (late,) = (line for line in command(course, "policy").splitlines() if line.startswith("ada"))
    assert "3 days charged: 30 %" in late
    (course / PLACE).write_text(POLICY + EXTENSION, encoding="utf-8")
    assert "3 days forgiven by extension" in command(course, "policy")


def regrade(course: Path, ta: Assistant) -> None:
    """Collect a request, see that it is right, mend the check and answer."""
    ta.go("Manual Grading", "Manage Assignments")
    ta.press(LSTM.name, "collect", "Successfully collected")
    assert "alan" in (asked := command(course, "regrade", LSTM.name)), asked
    assert "a negative value is right." in asked and "ada" not in asked
    replace(course, WRONG, RIGHT)
    told = command(course, "regrade", LSTM.name, "alan", "--why", "the check was wrong")
    before, after = points_of("alan", told)
    assert 0 < before < after
    assert "alan" not in command(course, "policy")  # the request has made nobody late


def points_of(student: str, table: str) -> list[float]:
    """What an exercise counted and counts, in the table of a regrade."""
    rows = [line.split() for line in table.splitlines() if line.startswith(f"{student} ")]
    return [float(word) for row in rows if row[1] == EXERCISE for word in row[2:4]]


def repair(course: Path) -> None:
    """Give the others what the check has cost them."""
    told = command(course, "grade", LSTM.name, "--since-check", CHECK, "--yes")
    assert f"ada: {EXERCISE}" in told and "→" in told and "alan" not in told


def look_back(course: Path, ta: Assistant) -> None:
    """Read ada's feedback and the journal."""
    ta.press(LSTM.name, "generate-feedback", "Successfully generated feedback")
    ta.open_alone(toolbox.WORK / "feedback" / "ada" / LSTM.name / f"{LSTM.name}.html")
    page = ta.page.frame_locator(".jp-HTMLViewer iframe")
    expect(page.locator(".summary p.late")).to_contain_text("3 days forgiven by extension")
    expect(page.locator("#summary tbody tr").first).to_contain_text("2 / 2")
    ta.window.picture("feedback")

    table = toolbox.WORK / "journal.csv"
    told = command(course, "journal", LSTM.name, "--to", str(table))
    for why in (
        "graded",
        "policy.toml",
        "given in the formgrader",
        "regrade: the check was wrong",
        f"check repaired: {CHECK}",
    ):
        assert why in told, told
    assert "found later" not in told and "not known" not in told
    ta.open_alone(table)
    ta.window.picture("journal")
    assert not ta.window.elsewhere
