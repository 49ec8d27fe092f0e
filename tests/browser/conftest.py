"""One Chromium for the tests of a module, and windows whose requests are recorded."""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser import fonts
from tests.browser.window import SCREENSHOTS, SECONDS, Window, open_window

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
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
