"""The same day under JupyterHub: accounts of their own, and a course that graders share."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from autograder.assignment import ROOT, Assignment
from autograder.grade.kernel.watch import descendants
from tests import course as toolbox
from tests.browser.assistant import Assistant
from tests.browser.machine import ACCOUNTS, COURSE, FOLDER, PASSWORD, Machine
from tests.browser.student import Student
from tests.server import free_port, wait_until

LSTM = Assignment("02_lstm")
PROXY = "configurable-http-proxy"
IS_ROOT = sys.platform.startswith("linux") and os.geteuid() == 0
IS_OPEN = all(folder.stat().st_mode & stat.S_IXOTH for folder in (ROOT, *ROOT.parents))
pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser-hub"),
    toolbox.needs_sandbox,
    pytest.mark.skipif(not IS_ROOT, reason="JupyterHub needs root, on Linux: sudo make test"),
    pytest.mark.skipif(
        not IS_OPEN, reason=f"other accounts cannot enter {ROOT}: clone the course elsewhere"
    ),
    pytest.mark.skipif(
        not shutil.which(PROXY), reason=f"no proxy for JupyterHub: npm install -g {PROXY}"
    ),
]
# What a test has to change.
CONFIG = """\
load_subconfig("{folder}/autograder/classroom/deploy/jupyterhub_config.py")
c.JupyterHub.bind_url = "http://127.0.0.1:{public}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy}"
c.JupyterHub.services[0]["url"] = "http://127.0.0.1:{service}"
"""
# A solution that says where it runs.
BODY = """\
b = b.clone()
    b[len(b) // 4 : len(b) // 2] = value
    return b

import os, socket
print("on", socket.gethostname(), "as", os.getuid(), os.listdir("/srv/sequence_models"))"""


@pytest.fixture
def machine(tmp_path) -> Machine:
    """A machine with the course, on which 02_lstm is released as README's table says."""
    machine = Machine(tmp_path, LSTM)
    for command in (
        ["-m", "nbgrader", "generate_assignment", LSTM.name, "--force"],
        ["-m", "autograder", "release", LSTM.name],
    ):
        python = str(FOLDER / ".venv" / "bin" / "python")
        done = subprocess.run(
            machine.command([python, *command], COURSE), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return machine


@pytest.fixture
def hub(machine, tmp_path) -> Iterator[str]:
    """The address of a running JupyterHub."""
    ports = {name: free_port() for name in ("public", "hub", "proxy", "service")}
    place = tmp_path / "srv" / "hub"
    place.mkdir()
    (place / "jupyterhub_config.py").write_text(CONFIG.format(folder=FOLDER, **ports))
    log = tmp_path / "hub.log"
    command = ["sh", "-c", f"cd /srv/hub && exec {FOLDER}/.venv/bin/python -m jupyterhub"]
    with log.open("w") as output:
        process = subprocess.Popen(
            machine.command(command), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://127.0.0.1:{ports['public']}"
        wait_until(lambda: urllib.request.urlopen(f"{address}/hub/health"), process, log)
        yield address
    finally:
        for pid in descendants(process.pid, 1000):  # servers are in sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def log_in(page: Page, hub: str, user: str, then: str) -> None:
    """Log in with the password of the machine."""
    page.goto(f"{hub}/hub/login?next={then}")
    page.fill("#username_input", user)
    page.fill("#password_input", PASSWORD)
    page.click("#login_submit")


def test_a_day_under_jupyterhub(hub, window):
    ours, theirs = window("student"), window("assistant")
    log_in(ours.page, hub, "ada", "/hub/spawn")
    ours.page.wait_for_url(f"{hub}/user/ada/lab*")
    ada = Student(ours, f"{hub}/user/ada/lab?reset")
    ada.fetch(LSTM.name)
    ada.solve("init_forget_bias", BODY)
    ada.save()
    ada.submit(LSTM.name)
    ours.picture("submitted")

    service = f"/services/{COURSE}/lab"
    log_in(theirs.page, hub, "tess", service)
    theirs.page.wait_for_url(f"{hub}{service}*")
    tess = Assistant(theirs, f"{hub}{service}?reset")
    tess.menu("Nbgrader", "Formgrader")
    tess.press(LSTM.name, "collect", "Successfully collected")
    theirs.picture("collected")
    tess.row(LSTM.name).locator("td.num-submissions a").click()
    tess.press("ada", "autograde", "Successfully autograded")
    theirs.picture("autograded")
    assert ACCOUNTS[COURSE] in owners("course_pkg.remote.template")
    tess.go("Manual Grading", LSTM.name, LSTM.name, "Submission #1")
    expect(tess.frame.locator("body")).to_contain_text("on sandbox as 1000 ['.venv']")
    tess.grade("shortcut", 1, "See me.")
    tess.go("Manual Grading", "Manage Assignments")
    tess.press(LSTM.name, "generate-feedback", "Successfully generated feedback")
    tess.press(LSTM.name, "release-feedback", "Successfully released feedback")

    summary = ada.feedback(LSTM.name).locator("#summary")
    expect(summary).to_contain_text("See me.")
    ours.picture("feedback")
    assert not ours.elsewhere | theirs.elsewhere
    ours.page.goto(f"{hub}{service}")
    expect(ours.page.locator("body")).to_contain_text("403")
    ours.picture("refused")


def owners(program: str) -> set[int]:
    """The accounts to which processes with a program's name belong."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            if program in path.read_text(errors="replace"):
                found.add(path.stat().st_uid)
    return found
