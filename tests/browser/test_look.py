"""Every notebook looks right in JupyterLab: unsolved and solved, in light and in dark."""

import contextlib
import json
import shutil
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import TimeoutError, expect

from autograder.master import ROOT, Assignment, assignments
from autograder.reports.formulas import markdown2html
from tests.browser.lab import Lab
from tests.server import STUDENT, serving

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser-look")]
THEMES = ("Light", "Dark")
CONTRAST = 4.5  # WCAG 2, level AA
SETTLED = 60_000  # milliseconds until a notebook is drawn
AUDIT = (ROOT / "tests" / "browser" / "audit.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with copies of all notebooks, which draws cells that are out of sight, too."""
    root = tmp_path_factory.mktemp("look")
    for folder in ("notebooks", "solutions"):
        for assignment in assignments():
            shutil.copytree(ROOT / folder / assignment.name, root / folder / assignment.name)
    settings = root / "autograder/course/jupyter/config/lab/user-settings/@jupyterlab"
    for name, value in {
        "notebook-extension/tracker": {"windowingMode": "none"},
        "docmanager-extension/plugin": {"autosave": False},
    }.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(value))
    with serving(root, STUDENT) as server:
        yield server


def choose(lab: Lab, theme: str) -> None:
    """Choose a theme in the menu, unless it is chosen."""
    name = f"JupyterLab {theme}"
    body = lab.page.locator("body")
    if body.get_attribute("data-jp-theme-name") != name:
        lab.menu("Settings", "Theme", name)
        expect(body).to_have_attribute("data-jp-theme-name", name)


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


@pytest.mark.parametrize("folder", ["notebooks", "solutions"])
@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_notebook_looks_right(assignment: Assignment, folder, server, window):
    path = Path(folder, assignment.name, f"{assignment.name}.ipynb")
    lab = Lab(window(path.stem), f"{server.address}/lab/tree/{path}?token={server.token}&reset")
    parts = expected(ROOT / path)
    for theme in THEMES:
        choose(lab, theme)
        with contextlib.suppress(TimeoutError):  # the next line says what is wrong
            lab.page.wait_for_function(
                f"parts => ({AUDIT})(parts).length === 0", arg=parts, timeout=SETTLED, polling=500
            )
        problems = lab.page.evaluate(AUDIT, parts)
        lab.window.picture(f"{folder}_{theme}")
        assert not problems, f"{path}, {theme}: {problems}"
