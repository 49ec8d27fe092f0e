"""A student's evening: from the site to JupyterLab, stuck, a hint, solved, predicted, submitted."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from autograder.assignment import Assignment
from tests import course as toolbox
from tests.browser.student import Student
from tests.browser.test_day import address, body, changed, release
from tests.server import STUDENT, serving

LSTM = Assignment("02_lstm")
EXERCISE = "additive_cell_step"
TIMES = 3  # failures until a check names a hint
PREDICTION = "all of it, and |c| grows without end"
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser-site"), toolbox.needs_sandbox]


def test_an_evening(course, home, site, window):
    browse(window("reader"), site)
    release(course)
    with serving(home, STUDENT) as student:
        ada = Student(window("student"), address(student))
        ada.fetch(LSTM.name)
        predict(ada)
        unstick(ada)
        experiment(ada)
        measure_progress(ada)
        ada.save()
        ada.submit(LSTM.name)
        ada.window.picture("submitted")
    assert_submitted(course)


def browse(window, site: Path) -> None:
    """Find the assignment on the front page, and read what it takes."""
    page = window.page
    page.goto((site / "index.html").as_uri())
    page.get_by_role("link", name="LSTM and GRU").first.click()
    article = page.locator("article.bd-article")
    expect(article.locator("h1")).to_contain_text("LSTM and GRU")
    expect(article).to_contain_text("four to five hours")
    window.picture("site")


def predict(ada: Student) -> None:
    """Write a prediction down before there is anything to look at."""
    ada.cell("def input_gradients").click()
    ada.menu("Run", "Run All Above Selected Cell")
    cell = ada.page.locator(
        ".jp-CodeCell", has_text="how much of the gradient does the additive cell keep"
    )
    ada.write(cell, '"",', f'"{PREDICTION}",')
    ada.page.keyboard.press("Control+Enter")
    ada.ran(cell)
    expect(cell.locator(".jp-OutputArea-output")).to_have_count(0)


def unstick(ada: Student) -> None:
    """Make a classic mistake, fail three times, unfold the hint that the check names, mend."""
    right, wrong = "c = c + candidate", "c += candidate"
    ada.solve(EXERCISE, changed(body(EXERCISE), right, wrong))
    ada.run(ada.cell(f"def {EXERCISE}"))
    check = ada.cell(f"check({EXERCISE})")
    for _ in range(TIMES):
        output = ada.run(check)
        expect(output).to_contain_text("✗")
    expect(output).to_contain_text(f'Stuck? Unfold "Hint 1 of {EXERCISE}"')
    ada.window.picture("stuck")
    hint = ada.page.locator("details", has_text=f"Hint 1 of {EXERCISE}")
    expect(hint.locator("p").first).to_be_hidden()
    hint.locator("summary").click()
    expect(hint.locator("p").first).to_be_visible()
    ada.window.picture("hint")
    ada.write(ada.cell(f"def {EXERCISE}"), wrong, right)
    ada.run(ada.cell(f"def {EXERCISE}"))
    output = ada.run(check)
    expect(output).not_to_contain_text("✗")
    expect(output).not_to_contain_text("Stuck?")


def experiment(ada: Student) -> None:
    """See the prediction between the figures and what came out."""
    cell = ada.cell("class AdditiveNet")
    cell.click()
    ada.menu("Run", "Run All Above Selected Cell")
    ada.run(cell)
    outputs = cell.locator(".jp-OutputArea-child")
    texts = outputs.all_inner_texts()
    place = next(n for n, text in enumerate(texts) if f"You predicted: {PREDICTION}" in text)
    assert outputs.nth(place - 1).locator("img").count() == 1
    assert "✓" in texts[place + 1]
    assert sum("You predicted" in text for text in texts) == 1
    outputs.nth(place + 1).scroll_into_view_if_needed()
    ada.window.picture("outcome")


def measure_progress(ada: Student) -> None:
    """Ask in a cell of one's own how far one is."""
    ada.cell(f"check({EXERCISE})").locator(".jp-InputPrompt").click()
    for key in ("Escape", "b", "Enter"):
        ada.page.keyboard.press(key)
    ada.page.keyboard.type("import course_pkg; course_pkg.progress()")
    output = ada.run(ada.cell("import course_pkg; course_pkg.progress()"))
    expect(output).to_contain_text(EXERCISE)
    expect(output).to_contain_text("2 of 31")
    ada.window.picture("progress")


def assert_submitted(course: Path) -> None:
    """What was handed in holds the solution and the prediction, and nothing is lost."""
    (folder,) = (course / toolbox.WORK / "exchange").glob(f"*/inbound/ada+{LSTM.name}+*")
    text = (folder / LSTM.student.name).read_text(encoding="utf-8")
    assert PREDICTION in text and "c = c + candidate" in text
