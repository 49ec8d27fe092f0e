"""One Chromium for the tests of a module, windows that record requests, a course, and its site."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from autograder.assignment import ROOT, Assignment
from tests import course as toolbox
from tests.browser import fonts
from tests.browser.window import SCREENSHOTS, SECONDS, Window, open_window

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LSTM = Assignment("02_lstm")
MISSING = "no Chromium: apt-get install chromium"
# It should ask nobody anything.
OPTIONS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def chromium(request, tmp_path_factory) -> Iterator[Browser]:
    """The system's Chromium, with a profile of its own and fonts that are not the machine's."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        if request.config.getoption("markexpr") == "browser":  # make test-browser asks for one
            pytest.fail(MISSING)
        # To change a notebook none is needed: `make test` names what it skips (-rs), and
        # .ci/run installs a Chromium first.
        pytest.skip(MISSING)
    expect.set_options(timeout=1000 * SECONDS)
    configuration = fonts.configure(tmp_path_factory.mktemp("fonts") / "fonts.conf")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            chromium_sandbox=os.geteuid() != 0,
            args=OPTIONS,
            env=os.environ | {"FONTCONFIG_FILE": str(configuration)},
        )
        yield browser
        browser.close()


@pytest.fixture
def window(chromium, request) -> Iterator[Callable[..., Window]]:
    """Open windows, each of a user of its own; their screenshots are named by test and user."""
    folder = SCREENSHOTS / request.node.originalname
    opened = []

    def open(user: str, **options) -> Window:
        opened.append(open_window(chromium, folder, user, **options))
        return opened[-1]

    yield open
    for each in opened:
        each.close()


@pytest.fixture
def course(tmp_path) -> Path:
    """A course of one assignment, before its first `make lab`."""
    root = tmp_path / "course"
    root.mkdir()
    shutil.copy(ROOT / "nbgrader_config.py", root)
    for folder in (LSTM.solved.parent, LSTM.student.parent):
        shutil.copytree(folder, root / folder.relative_to(ROOT))
    return root


@pytest.fixture
def home(tmp_path, course) -> Path:
    """What a student has: a folder, and where the exchange is."""
    root = tmp_path / "ada"
    (root / "notebooks").mkdir(parents=True)
    config = (ROOT / "nbgrader_config.py").read_text()
    config += f"c.Exchange.root = {str(course / toolbox.WORK / 'exchange')!r}\n"
    config += "c.CourseDirectory.student_id = 'ada'\n"  # both are one user here
    (root / "nbgrader_config.py").write_text(config)
    return root


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The folder of a site that was made for these tests."""
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "autograder", "site", "--to", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder
