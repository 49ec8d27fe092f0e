"""A student's first ten minutes: the welcome, the first notebook, a mistake that has a name."""

import re
import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from playwright.sync_api import expect

from autograder.classroom import lab
from tests import course as toolbox
from tests.browser.student import Student
from tests.browser.test_day import body, changed
from tests.server import STUDENT, serving

EXERCISE = "additive_cell_step"
NAMED = "Your output equals what you get when"
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), toolbox.needs_sandbox]


def test_the_first_minutes(course, home, window):
    shutil.copytree(course / "notebooks" / "02_lstm", home / "notebooks" / "02_lstm")
    lab.welcome(home)
    with serving(home, STUDENT) as student:
        first_page = f"{student.address}/?token={student.token}"
        ada = Student(window("student"), first_page)
        welcome(ada)
        begin(ada)
        unsolved(ada)
        mistaken(ada)
        solved(ada)
    strip(ada.window.folder)


def welcome(ada: Student) -> None:
    """See a page that says where to start, and no launcher."""
    page = ada.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    expect(page.locator("h1").first).to_have_text(re.compile("Sequence models, built by hand"))
    expect(ada.page.locator(".jp-Launcher")).to_have_count(0)
    expect(ada.page.get_by_text("Create Assignment")).to_have_count(0)
    kernel_is_ready(ada)
    output = ada.run(ada.cell("from course_pkg import progress"))
    expect(output).to_contain_text(EXERCISE)  # which comes next
    ada.window.picture("welcome")


def kernel_is_ready(ada: Student) -> None:
    expect(ada.page.locator("#jp-main-statusbar")).to_contain_text("(ipykernel) | Idle")


def begin(ada: Student) -> None:
    """Go from the welcome to a notebook, by its link."""
    ada.page.get_by_role("link", name="02 · LSTM and GRU").first.click()
    page = ada.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    expect(page.locator("h1").first).to_contain_text("LSTM")
    kernel_is_ready(ada)
    title = page.get_by_alt_text("The LSTM cell")
    expect(title).to_have_js_property("complete", True)
    assert title.evaluate("picture => picture.naturalWidth") > 0
    ada.window.picture("notebook")


def unsolved(ada: Student) -> None:
    """Run all up to the first exercise as it is given."""
    ada.cell(f"check({EXERCISE})").click()
    ada.menu("Run", "Run All Above Selected Cell")
    output = ada.run(ada.cell(f"check({EXERCISE})"))
    expect(output).to_contain_text("not implemented yet")
    output.scroll_into_view_if_needed()
    ada.window.picture("unsolved")


def mistaken(ada: Student) -> None:
    """Make a mistake whose name the check knows."""
    right, wrong = "c = c + candidate", "c = candidate"
    ada.solve(EXERCISE, changed(body(EXERCISE), right, wrong))
    ada.run(ada.cell(f"def {EXERCISE}"))
    output = ada.run(ada.cell(f"check({EXERCISE})"))
    expect(output).to_contain_text(NAMED)
    output.scroll_into_view_if_needed()
    ada.window.picture("mistake")


def solved(ada: Student) -> None:
    """Mend it."""
    ada.write(ada.cell(f"def {EXERCISE}"), "c = candidate", "c = c + candidate")
    ada.run(ada.cell(f"def {EXERCISE}"))
    output = ada.run(ada.cell(f"check({EXERCISE})"))
    expect(output).not_to_contain_text("✗")
    output.scroll_into_view_if_needed()
    ada.window.picture("solved")


def strip(folder: Path) -> None:
    """Put the pictures of the first minutes beside each other, as a strip of film."""
    pictures = sorted(folder.glob("student_*.png"))
    figure, axes = plt.subplots(2, 3, figsize=(21, 10), layout="constrained")
    for ax in axes.flat:
        ax.axis("off")
    for ax, path in zip(axes.flat, pictures, strict=False):
        ax.imshow(plt.imread(path))
        ax.set_title(path.stem.rpartition("_")[2])
    figure.savefig(folder / "strip.png", dpi=100)
    plt.close(figure)
