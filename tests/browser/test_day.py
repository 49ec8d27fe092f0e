"""The day of a student and of a teaching assistant, as README tells it, on two servers."""

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from autograder.assignment import ROOT, Assignment, reference
from autograder.handout.exercise import exercises
from tests import course as toolbox
from tests.browser.assistant import Assistant
from tests.browser.student import Student
from tests.server import STUDENT, Server, serving
from tests.submissions import lstm as mistakes

LSTM = Assignment("02_lstm")
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), toolbox.needs_sandbox]


README = (ROOT / "README.md").read_text(encoding="utf-8")
# The student's work: one mistake to be mended, one that stays, and an answer.
RIGHT, TORCH_ORDER = "i, f, o, g = a.chunk(4, dim=1)", "i, f, g, o = a.chunk(4, dim=1)"
SWAPPED = mistakes.CHANGES["gru_step"]
ANSWER = "The shortcut is $c_{t-1}$ with $f = 1$."
DIAGNOSIS = "Your output equals what you get when z and 1 - z are mixed up."
COMMENT = "Good. And what is $F$?"


def test_a_day(course, home, window):
    with serving(course) as teacher, serving(home, STUDENT) as student:
        release(course)
        ada = Student(window("student"), address(student))
        work(ada)
        ta = Assistant(window("assistant"), address(teacher))
        mark(ta)
        read(ada)


def address(server: Server) -> str:
    return f"{server.address}/lab?token={server.token}&reset"


def release(course: Path) -> None:
    """Do what README's table says for releasing."""
    command = [sys.executable, "-m", "autograder", "release", LSTM.name, "--force"]
    done = subprocess.run([*command, "--course", str(course)], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def body(exercise: str) -> str:
    """What a student writes for an exercise, as it stands in the reference."""
    source = exercises(reference("lstm"))[exercise]
    written = source.partition("### BEGIN SOLUTION\n")[2].partition("    ### END SOLUTION")[0]
    return written.strip()


def changed(text: str, right: str, wrong: str) -> str:
    assert text.count(right) == 1
    return text.replace(right, wrong)


def readme_message() -> str:
    """What a check says of a mistake in README's section for students."""
    lines = README.splitlines()
    start = next(n for n, line in enumerate(lines) if "✗ lstm_step" in line)
    end = next(n for n, line in enumerate(lines) if "✓ lstm_step" in line)
    return " ".join(line.strip() for line in lines[start + 1 : end])


def work(ada: Student) -> None:
    """Fetch the assignment, write, run, mend, validate, submit."""
    ada.fetch(LSTM.name)
    ada.window.picture("fetched")
    ada.solve("additive_cell_step", body("additive_cell_step"))
    ada.solve("lstm_step", changed(body("lstm_step"), RIGHT, TORCH_ORDER))
    ada.cell("check(lstm_step)").click()
    ada.menu("Run", "Run All Above Selected Cell")
    output = ada.run(ada.cell("check(lstm_step)"))
    expect(output).to_contain_text("✓ remembers")
    expect(output).to_contain_text("✗ values agrees with torch.nn.LSTMCell")
    expect(output).to_contain_text(readme_message())
    failed, passed = (output.text_content().count(mark) for mark in "✗✓")
    summary = f"{failed} of {failed + passed} checks of lstm_step fail."
    expect(ada.cell("check(lstm_step)")).to_contain_text(summary)
    ada.window.picture("mistake")

    ada.write(ada.cell("def lstm_step"), TORCH_ORDER, RIGHT)
    ada.run(ada.cell("def lstm_step"))
    output = ada.run(ada.cell("check(lstm_step)"))
    expect(output).to_contain_text("✓ values agrees with torch.nn.LSTMCell")
    expect(output).not_to_contain_text("✗")
    ada.window.picture("mended")

    ada.solve("gru_step", changed(body("gru_step"), *SWAPPED))
    ada.answer(2, ANSWER)
    dialog = ada.validate()
    expect(dialog).to_contain_text("✗ gru_step · values")
    expect(dialog).not_to_contain_text("✗ lstm_step")
    ada.window.picture("validated")
    ada.close_dialog()
    ada.submit(LSTM.name)
    ada.window.picture("submitted")


def mark(ta: Assistant) -> None:
    """Collect, grade automatically and by hand, generate and release feedback."""
    ta.menu("Nbgrader", "Formgrader")
    ta.press(LSTM.name, "collect", "Successfully collected")
    ta.window.picture("collected")
    ta.row(LSTM.name).locator("td.num-submissions a").click()
    expect(ta.row("ada")).to_contain_text("needs autograding")
    ta.press("ada", "autograde", "Successfully autograded")
    expect(ta.row("ada")).to_contain_text("needs manual grading")
    ta.window.picture("autograded")

    ta.go("Manual Grading", LSTM.name, LSTM.name)
    ta.window.picture("submissions")
    ta.go("Submission #1")
    notebook = ta.frame.locator("body")
    report = notebook.locator(".output_area", has_text="✗ gru_step · values")
    report.scroll_into_view_if_needed()
    expect(report).to_contain_text(DIAGNOSIS)
    ta.window.picture("diagnosis")
    expect(notebook).to_contain_text("Rubric")
    ta.grade("shortcut", 2, COMMENT)
    assert_formulas(notebook)
    ta.window.picture("graded")

    ta.go("Manual Grading", "Manage Assignments")
    ta.press(LSTM.name, "generate-feedback", "Successfully generated feedback")
    ta.press(LSTM.name, "release-feedback", "Successfully released feedback")
    assert not ta.window.elsewhere


def read(ada: Student) -> None:
    """Fetch the feedback, and read points, diagnosis and comment."""
    page = ada.feedback(LSTM.name)
    ada.window.picture("feedback")
    expect(page.locator("h3").first).to_have_text(f"{LSTM.name}: 9 of 40 points")
    rows = page.locator("#summary tbody tr")
    expect(rows.filter(has_text="gru_step").first).to_contain_text(DIAGNOSIS)
    answer = rows.filter(has_text="shortcut").first
    expect(answer).to_contain_text("2 / 3")
    expect(answer).to_contain_text("Good. And what is")
    assert_formulas(answer)
    assert_formulas(page.locator("body"))
    assert not ada.window.elsewhere


def assert_formulas(part: Locator) -> None:
    """Demand that formulas are there and take up room."""
    wide = "all => all.map(one => one.getBoundingClientRect().width > 0)"
    drawn = part.locator("math").evaluate_all(wide)
    assert drawn and all(drawn)
