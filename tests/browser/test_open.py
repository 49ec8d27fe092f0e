"""A notebook that is only looked at."""

import shutil

import pytest
from playwright.sync_api import expect

from tests.browser.student import Student
from tests.server import STUDENT, serving

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
MILLISECONDS = 2000  # for what JupyterLab writes into a notebook after its kernel has answered


def test_a_notebook_is_not_unsaved_when_it_is_opened(course, home, window):
    page = "notebooks/02_lstm/02_lstm.ipynb"
    shutil.copytree((course / page).parent, (home / page).parent)
    with serving(home, STUDENT) as server:
        address = f"{server.address}/lab/tree/{page}?token={server.token}&reset"
        ada = Student(window("student"), address)
        expect(ada.page.locator("#jp-main-statusbar")).to_contain_text("(ipykernel) | Idle")
        ada.page.wait_for_timeout(MILLISECONDS)
        expect(ada.page.locator(".lm-TabBar-tab.jp-mod-dirty")).to_have_count(0, timeout=1)
