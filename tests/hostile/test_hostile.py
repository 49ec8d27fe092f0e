"""The suite of attacks and accidents, graded with one command."""

import json
import os
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from tests import course as toolbox
from tests.course import WORK
from tests.hostile.accidents import UNREADABLE
from tests.hostile.attacks import ATTACKS
from tests.hostile.course import (
    ATTACKERS,
    DOUBTED,
    EVERYBODY,
    FAIR,
    FOLDERS,
    HONEST,
    LAZY,
    LSTM,
    NOTEBOOK,
    POINTS,
    SUSPECTS,
    VICTIMS,
    make,
    scores,
)
from tests.hostile.empty_solutions import ALLOWED, FLAGGED, FORBIDDEN, UNREAD
from tests.hostile.forms import ACCIDENTS, DOUBTFUL

pytestmark = [pytest.mark.xdist_group("hostile"), toolbox.needs_sandbox]
SECRET = "canary-5c1f"


class Host(threading.Thread):
    """A server of this machine that nobody in a sandbox may reach."""

    def __init__(self):
        super().__init__(daemon=True)
        self.calls = 0
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind("\0course-canary")
        self.unix.listen()

    def run(self):
        threading.Thread(target=self._count, args=(self.unix,), daemon=True).start()
        self._count(self.tcp)

    def _count(self, listener):
        while True:
            listener.accept()
            self.calls += 1


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The course in which everybody has submitted and the command has run."""
    root = tmp_path_factory.mktemp("hostile")
    canary = root / "canary.txt"
    canary.write_text(SECRET)
    host = Host()
    host.start()
    expected = make(root, canary, host.tcp.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GRADER_SECRET": SECRET}
    done = subprocess.run(
        [sys.executable, "-m", "autograder", "grade", LSTM.name, "--json", "--workers", "1"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    lines = {line["student"]: line for line in map(json.loads, done.stdout.splitlines())}
    return SimpleNamespace(
        root=root, expected=expected, lines=lines, done=done, host=host, canary=canary
    )


def text_of(graded, student: str) -> str:
    path = graded.root / WORK / "autograded" / student / LSTM.name / NOTEBOOK
    return path.read_text(encoding="utf-8")


def words_of(graded, student: str) -> str:
    """What the graded cell of gru_step says, without the ends of its lines."""
    cells = json.loads(text_of(graded, student))["cells"]
    outputs = next(cell for cell in cells if cell.get("id") == "check_gru_step")["outputs"]
    return " ".join("".join(part for o in outputs for part in o.get("text", [])).split())


def is_flagged(graded, student: str) -> bool:
    """Say whether the command, and the cell, ask for a person because of what a solution names."""
    line = graded.lines[student]
    says = "write it yourself; a grader will look at it"
    assert (says in line["reason"]) == (says in words_of(graded, student))
    return line["state"] == "person" and says in line["reason"]


def expect(graded, student: str) -> None:
    found = scores(graded.root, student)
    for exercise, points in graded.expected[student].items():
        if points is None:
            assert 0 < found[exercise] < POINTS[exercise]
        else:
            assert found[exercise] == points, exercise


def test_everybody_has_scores(graded):
    assert set(graded.lines) == set(graded.expected) == set(EVERYBODY)
    assert len(EVERYBODY) == len(set(EVERYBODY)) >= 60
    failed = {s: line["reason"] for s, line in graded.lines.items() if line["state"] == "failed"}
    assert failed == {}
    assert graded.done.returncode == 0, graded.done.stderr


def test_the_honest_submission_has_all_points(graded):
    assert scores(graded.root, HONEST) == POINTS


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_gain_nothing(graded, name):
    expect(graded, ATTACKERS[name])
    text = text_of(graded, ATTACKERS[name])
    assert SECRET not in text
    assert len(text) < 1_000_000
    if name == "the warm template":
        assert "others: []" in text


@pytest.mark.parametrize("name", ACCIDENTS)
def test_accidents_cost_nothing(graded, name):
    expect(graded, VICTIMS[name])


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_unreadable_notebooks_wait_for_a_person(graded, name):
    assert graded.lines[VICTIMS[name]]["needs_person"]
    assert "Nothing could be graded" in text_of(graded, VICTIMS[name])


@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_may_be_lost_waits_for_a_person(graded, name):
    line = graded.lines[VICTIMS[name]]
    assert line["state"] == "person" and line["needs_person"]
    assert DOUBTFUL[name] in line["reason"]
    assert DOUBTFUL[name] in text_of(graded, VICTIMS[name])


@pytest.mark.parametrize("name", FOLDERS)
def test_strange_folders_wait_for_a_person_if_something_may_be_lost(graded, name):
    line = graded.lines[name]
    assert line["needs_person"] == (name in DOUBTED)
    assert DOUBTED.get(name, "") in line["reason"]


def test_what_was_graded_is_said(graded):
    for student, name in {
        "renamed": "Untitled (1).ipynb",
        "archive": "02_lstm.zip/02_lstm/02_lstm.ipynb",
        "copy-and-original": "02_lstm-Copy1.ipynb",
    }.items():
        assert f"**Graded:** {name} was graded." in text_of(graded, student)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_empty_solutions_get_nothing(graded, name):
    expect(graded, LAZY[name])
    if name != "TorchScript":  # an error there begins with the line, and takes all that is shown
        assert "must not be used in this exercise" in words_of(graded, LAZY[name])
    assert is_flagged(graded, LAZY[name]) == (name not in UNREAD)


@pytest.mark.parametrize("name", FLAGGED)
def test_a_person_looks_at_what_only_reading_finds(graded, name):
    expect(graded, SUSPECTS[name])
    assert is_flagged(graded, SUSPECTS[name])
    with toolbox.gradebook(graded.root) as book:
        found = book.find_submission_notebook(LSTM.name, LSTM.name, SUSPECTS[name])
        waiting = [grade.name for grade in found.grades if grade.needs_manual_grade]
    assert waiting == ["check_gru_step"]


@pytest.mark.parametrize("name", ALLOWED)
def test_mentions_are_allowed(graded, name):
    expect(graded, FAIR[name])
    assert not is_flagged(graded, FAIR[name])


@pytest.mark.parametrize("name", FOLDERS)
def test_strange_folders(graded, name):
    expect(graded, name)
    assert SECRET not in text_of(graded, name)


def test_nothing_of_the_host_was_touched(graded):
    assert graded.canary.read_text() == SECRET
    assert graded.host.calls == 0
    assert not list((graded.root / WORK / "verdicts").rglob("x.json"))
    assert "sleep 3600" not in toolbox.command_lines()
