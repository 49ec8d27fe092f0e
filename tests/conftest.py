"""Start the slowest tests first, so that no worker is left with one at the end; share a course.

Notebooks come before browsers, whose threads would slow down what notebooks measure.
"""

import functools
import gc
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import nbgrader.api
import pytest

from autograder.assignment import Assignment, use_this_checkout
from tests import course as toolbox
from tests import proof, untested

pytest_plugins = ("pytester",)
use_this_checkout()
# For each new gradebook nbgrader asks a process that takes a second to start; the answer is one.
nbgrader.api.get_alembic_version = functools.cache(nbgrader.api.get_alembic_version)

SLOW = (
    "test_notebooks.py",
    "test_hostile.py",
    "test_nbgrader.py",
    "test_grading.py",
    "test_batch.py",
    "test_three_hosts.py",
    "test_look.py",
    "test_hub.py",
    "test_site.py",
    "test_day.py",
    "test_class.py",
    "test_scripts.py",
    "test_feedback.py",
    "test_gradescope.py",
    "test_release.py",
    "test_command.py",
    "test_new_exercise.py",
    "test_sandbox.py",
)


def pytest_xdist_auto_num_workers():
    """One worker more than processors: tests wait for kernels, browsers and bounds of time."""
    return 1 + (os.cpu_count() or 1)


def pytest_configure(config):
    is_run_of_all = config.args == config.getini("testpaths") and config.option.dist != "no"
    if is_run_of_all and not hasattr(config, "workerinput"):
        proof.tell_processes()


def pytest_collection_modifyitems(items):
    places = {name: number for number, name in enumerate(SLOW)}
    items[:] = proof.choose(items)
    items.sort(key=lambda item: places.get(item.path.name, len(SLOW)))


def pytest_collection_finish():
    """Spare the garbage collector what all modules have made: half a million objects that stay."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    """Say what this machine could not test, and how to get it."""
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.section("not tested on this machine")
    for line in untested.table(
        (report.nodeid.partition("::")[0], report.longrepr[2]) for report in skipped
    ):
        terminalreporter.line(line)


@pytest.fixture(autouse=True, scope="module")
def collected():
    """Collect what a module's tests have left, after them.

    A task of asyncio whose error nobody has read says so when it is collected; formatting the error
    parses lines, and where that happens inside of another `ast.parse`, Python 3.11 raises.
    """
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def default_look():
    """Undo after each test what it has changed of matplotlib's settings."""
    with plt.rc_context():
        yield


@pytest.fixture(scope="session")
def graded(tmp_path_factory) -> Path:
    """A course of 02_lstm with four graded submissions; tests change copies of it only."""
    lstm = Assignment("02_lstm")
    root = toolbox.new_course(tmp_path_factory.mktemp("graded"), lstm)
    for student in ("perfect", "buggy", "unlucky", "untouched"):
        nb = nbformat.read(lstm.student, as_version=4)
        if student != "untouched":
            toolbox.solve(nb, lstm)
            toolbox.answer(nb)
        if student == "buggy":
            toolbox.spoil(nb, lstm)
        if student == "unlucky":
            cells = {cell.id: cell for cell in nb.cells}
            cells["gru_step"].source = "import os\nos._exit(1)"
            cells["lstm_step"].source = "lstm_step = torch.nn.LSTMCell"
        toolbox.submit(root, student, lstm, nb)
    command = [sys.executable, "-m", "autograder", "grade", lstm.name, "--workers", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=root, env=environment, check=True, timeout=1200)
    return root
