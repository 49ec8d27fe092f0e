"""Every notebook looks right in JupyterLab: unsolved in the light theme, solved in the dark one."""

import contextlib
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.sign import NotebookNotary
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import TimeoutError, expect

from autograder.assignment import ROOT, Assignment, assignments
from autograder.classroom.reports.formulas import markdown2html
from course_pkg import lstm
from course_pkg.checking.registry import find
from course_pkg.checking.runner import run_here
from course_pkg.checking.telling.report import Report
from tests.browser.fonts import DEJAVU, LIBERATION, FontSet, use
from tests.browser.lab import Lab
from tests.browser.window import SCREENSHOTS, open_window
from tests.server import STUDENT, serving

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser-look")]
REPORTS = "reports.ipynb"
# Each theme with other fonts: the widest that are usual, and, where the machine has them, Arial's.
LIGHT = ("Light", DEJAVU)
DARK = ("Dark", LIBERATION if LIBERATION.is_here else DEJAVU)
CONTRAST = 4.5  # WCAG 2, level AA
SETTLED = 60_000  # milliseconds until a notebook is drawn
AUDIT = (ROOT / "tests" / "browser" / "audit.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with copies of all notebooks, which draws even cells that are out of sight."""
    root = tmp_path_factory.mktemp("look")
    for folder in ("notebooks", "solutions"):
        for assignment in assignments():
            shutil.copytree(ROOT / folder / assignment.name, root / folder / assignment.name)
    jupyter = root / "autograder" / "course" / "jupyter"
    write_reports(root / REPORTS, jupyter / "data")
    without_a_kernel(jupyter / "data")
    settings = jupyter / "config" / "lab" / "user-settings" / "@jupyterlab"
    for name, value in {
        "notebook-extension/tracker": {"windowingMode": "none", "kernelShutdown": True},
        "docmanager-extension/plugin": {"autosave": False},
    }.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(value))
    with pytest.MonkeyPatch.context() as patch:
        # Otherwise the environment's own kernel comes before that which does nothing.
        patch.setenv("JUPYTER_PREFER_ENV_PATH", "no")
        with serving(root, STUDENT) as server:
            yield server


@functools.cache
def of_checks() -> tuple[Report, Report]:
    """What checks find of wrong code, where all fail, so that some are folded, and of right."""

    def lstm_step(x, h, c, W, b):
        return h, c + 1

    exercise = find("lstm_step")
    wrong, right = run_here(exercise, lstm_step), run_here(exercise, lstm.lstm_step)
    assert right.passed and wrong.share == 0 and len(wrong.outcomes) > 1
    return wrong, right


def write_reports(path: Path, data: Path) -> None:
    """Write a notebook, trusted by the server, with what checks show of wrong and right code."""

    wrong, right = of_checks()
    error = {"ename": "CheckFailed", "evalue": wrong.text, "traceback": [wrong.summary]}
    reports = [{"text/plain": r.text, "text/html": r._repr_html_()} for r in (wrong, right)]
    bar = "LSTM 100%|██████████| 300/300 [00:03<00:00, loss 0.123]\n"
    outputs = [
        new_output("display_data", data=reports[0]),
        new_output("error", **error),
        new_output("display_data", data=reports[1]),
        new_output("stream", name="stdout", text=bar),
        new_output("stream", name="stderr", text="UserWarning: this may not be what you want\n"),
    ]
    cells = [new_code_cell("check(lstm_step)", outputs=[output]) for output in outputs]
    python = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nb = new_notebook(cells=cells, metadata={"kernelspec": python})
    data.mkdir(parents=True)
    NotebookNotary(data_dir=str(data)).sign(nb)
    nbformat.write(nb, path)


def without_a_kernel(data: Path) -> None:
    """Let notebooks have something that does nothing in place of a kernel: nothing is run here."""
    nothing = {"argv": ["sleep", "3600"], "display_name": "Python 3", "language": "python"}
    path = data / "kernels" / "python3" / "kernel.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(nothing))


def choose(lab: Lab, theme: str) -> None:
    """Choose a theme in the menu, unless it is chosen."""
    name = f"JupyterLab {theme}"
    body = lab.page.locator("body")
    if body.get_attribute("data-jp-theme-name") != name:
        lab.menu("Settings", "Theme", name)
        expect(body).to_have_attribute("data-jp-theme-name", name)
        expect(lab.page.locator("#jupyterlab-splash")).to_have_count(0)


def expected(path: Path) -> dict:
    """Count what a notebook must show."""
    nb = nbformat.read(path, as_version=4)
    texts = [cell.source for cell in nb.cells if cell.cell_type == "markdown"]
    outputs = [output for cell in nb.cells for output in cell.get("outputs", [])]
    return {
        "texts": len(texts),
        "formulas": sum(markdown2html({}, text).count("<math") for text in texts),
        "figures": sum(text.count("![") for text in texts)
        + sum("image/png" in output.get("data", {}) for output in outputs),
        "outputs": len(outputs),
        "contrast": CONTRAST,
    }


@pytest.fixture(scope="module")
def labs(server, chromium) -> Iterator[Callable[[tuple[str, FontSet]], Lab]]:
    """One JupyterLab for each look, in which one notebook after the other is opened."""
    windows = []

    @functools.cache
    def open(look: tuple[str, FontSet]) -> Lab:
        theme, fonts = look
        windows.append(open_window(chromium, SCREENSHOTS / "test_look", theme))
        lab = Lab(windows[-1], f"{server.address}/lab?token={server.token}&reset")
        choose(lab, theme)
        use(lab.page, fonts)
        # A kernel that starts changes the notebook's metadata: closing it then asks what to do.
        discard = lab.page.locator(".jp-Dialog", has_text="Save your work").get_by_text("Discard")
        lab.page.add_locator_handler(discard, discard.click)
        return lab

    yield open
    for window in windows:
        window.close()


@pytest.fixture
def pictures(request) -> bool:
    """Whether every notebook is drawn, as `make test-browser` does; `make test` spares seconds."""
    return request.config.getoption("markexpr") == "browser"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("folder", "look"), [("notebooks", LIGHT), ("solutions", DARK)], ids=["notebook", "solved"]
)
@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_notebook_looks_right(assignment: Assignment, folder, look, labs, pictures):
    path = Path(folder, assignment.name, f"{assignment.name}.ipynb")
    look_at(path, expected(ROOT / path), labs(look), pictures)


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_reports_of_checks_can_be_read(look, labs, pictures):
    nothing = dict.fromkeys(("texts", "formulas", "figures"), 0)
    parts = nothing | {"outputs": 5, "contrast": CONTRAST}
    lab = labs(look)
    look_at(Path(REPORTS), parts, lab, pictures)
    wrong, _ = of_checks()
    expect(lab.page.locator(".jp-OutputArea")).to_contain_text(
        ["✗ values", wrong.summary, "✓ values", "LSTM 100%", "UserWarning"]
    )


@pytest.mark.skipif(
    not LIBERATION.is_here,
    reason=f"no fonts as wide as Arial's: apt-get install {LIBERATION.package}",
)
def test_fonts_are_those_that_the_look_names(server, window):
    """A page drawn with fonts that Chromium does not find would be drawn with others."""
    page = Lab(window("fonts"), f"{server.address}/lab?token={server.token}&reset").page
    measure = """([font, other]) => {
      const canvas = document.createElement("canvas").getContext("2d");
      canvas.font = `100px ${font}, ${other}`;
      return canvas.measureText("Wide lines").width;
    }"""

    def widths(font: str) -> set[float]:
        return {page.evaluate(measure, [f"'{font}'", other]) for other in ("serif", "monospace")}

    assert len(widths("no such font")) == 2
    for fonts in (DEJAVU, LIBERATION):
        for font in (fonts.text, fonts.code):
            assert len(widths(font)) == 1, font


def look_at(path: Path, parts: dict, lab: Lab, pictures: bool) -> None:
    """Demand that a notebook shows all its parts as they should be."""
    lab.open_alone(path)
    with contextlib.suppress(TimeoutError):  # the next line says what is wrong
        lab.page.wait_for_function(
            f"parts => ({AUDIT})(parts).length === 0", arg=parts, timeout=SETTLED, polling=500
        )
    problems = lab.page.evaluate(AUDIT, parts)
    if problems or pictures:
        lab.window.picture(path.stem, of=".jp-WindowedPanel-outer" if parts["outputs"] else None)
    assert not problems, f"{path}: {problems}"
