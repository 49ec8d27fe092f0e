"""A sandbox begins in a group of its own, where the grader's group was given to it to divide.

The folder of a group stands in for the system's, and a command for systemctl: what is written to
files is looked at. Where the system does divide the group of the tests, its limits are tried.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autograder.grade.kernel import cgroup
from tests import untested

LIMITS = (3 << 30, 40)  # bytes and processes


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """Put a command in its place, which says "yes" and keeps what it was asked."""
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho yes\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return program


@pytest.fixture
def group(tmp_path, monkeypatch, systemctl):
    """Make a delegated group in which this process and another one are."""
    tmp_path = tmp_path / "user@7.service" / "run-5.scope"
    tmp_path.mkdir(parents=True)
    for name, text in {
        "cgroup.controllers": "cpu memory pids",
        "cgroup.procs": f"{os.getpid()}\n12345\n",
        "cgroup.subtree_control": "",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cgroup, "_own", lambda: tmp_path)
    cgroup._divided.cache_clear()
    yield tmp_path
    cgroup._divided.cache_clear()


def start(group) -> list[str]:
    """Let the system's answer to what is switched on come from the file that was written."""
    cgroup._divided()
    control = group / "cgroup.subtree_control"
    control.write_text(control.read_text().replace("+", ""))
    return cgroup.entering(*LIMITS)


def test_a_command_begins_in_a_group_with_limits(group):
    words = start(group)
    done = subprocess.run([*words, "echo", "begun"], capture_output=True, text=True, check=True)
    assert done.stdout == "begun\n"
    (own,) = group.glob("sandbox-*")
    found = {path.name: path.read_text().strip() for path in own.iterdir()}
    assert found == {
        "cgroup.procs": "0",
        "memory.max": str(4 << 30),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "80",
    }


def test_the_graders_move_to_a_group_of_their_own(group):
    start(group)
    assert (group / "cgroup.subtree_control").read_text() == "memory pids"
    assert (group / "graders" / "cgroup.procs").read_text() == "12345"  # the last that was moved


def test_graders_that_have_moved_find_the_group_again(group, monkeypatch):
    monkeypatch.setattr(cgroup, "_own", lambda: group / "graders")
    assert cgroup._divided() == group


def test_only_what_the_group_has_is_limited(group):
    (group / "cgroup.controllers").write_text("cpu pids")
    start(group)
    (own,) = group.glob("sandbox-*")
    assert [path.name for path in own.iterdir()] == ["pids.max"]


def test_groups_of_sandboxes_that_have_ended_are_removed(group):
    (group / "cgroup.controllers").write_text("cpu")
    start(group)
    (group / "sandbox-999999999-7").mkdir()
    (group / "sandbox-1-0").mkdir()  # of a grader that lives
    cgroup.entering(*LIMITS)
    names = sorted(path.name for path in group.glob("sandbox-*"))
    assert len(names) == 2 and "sandbox-1-0" in names


def test_systemd_is_asked_for_the_unit_and_its_manager(group, tmp_path):
    start(group)
    asked = (tmp_path / "asked").read_text()
    assert asked == "--user show --property=Delegate --value -- run-5.scope\n"


def test_a_group_that_was_not_delegated_is_left_alone(group, systemctl):
    systemctl.write_text("#!/bin/sh\necho no\n")
    assert cgroup.entering(*LIMITS) == []
    assert sorted(path.name for path in group.iterdir()) == [
        "cgroup.controllers",
        "cgroup.procs",
        "cgroup.subtree_control",
    ]


def test_without_systemd_no_group_is_divided(group, monkeypatch):
    monkeypatch.setenv("PATH", str(group))
    assert cgroup.entering(*LIMITS) == []


def test_a_group_that_cannot_be_made_keeps_nothing_from_starting(group, monkeypatch):
    start(group)
    monkeypatch.setattr(cgroup, "_numbers", iter([1000, 1000]))
    assert cgroup.entering(*LIMITS) and cgroup.entering(*LIMITS) == []  # it is there already


def _bounds() -> bool:
    """Say whether the system lets the tests bound the memory and processes of a group."""
    divided = cgroup._divided()
    found = (divided / "cgroup.subtree_control").read_text().split() if divided else []
    return {"memory", "pids"} <= set(found)


needs_delegation = pytest.mark.skipif(not _bounds(), reason=untested.DELEGATION)


@needs_delegation
def test_the_system_ends_all_that_take_too_much_together(monkeypatch):
    """None of the processes has much, and nothing of it has a name or belongs to one of them."""
    monkeypatch.setattr(cgroup, "ROOM", 16 << 20)
    code = """
import mmap, os, time
for _ in range(100):
    part = mmap.mmap(-1, 1 << 20)
    part.write(bytes(1 << 20))
    if not os.fork():
        time.sleep(600)
"""
    words = cgroup.entering(48 << 20, 200)
    done = subprocess.run([*words, sys.executable, "-c", code], timeout=300)
    assert done.returncode == -signal.SIGKILL
    group = Path(words[-1]).parent
    assert "oom_group_kill 1" in (group / "memory.events").read_text()
    deadline = time.monotonic() + 60
    while "populated 1" in (group / "cgroup.events").read_text():  # some of it is still ending
        assert time.monotonic() < deadline
        time.sleep(0.1)


@needs_delegation
def test_the_system_bounds_the_number_of_processes():
    code = """
import os, time
for n in range(100):
    try:
        if not os.fork():
            time.sleep(2)
            break
    except BlockingIOError:
        print(n)
        break
"""
    words = cgroup.entering(1 << 30, 10)
    done = subprocess.run([*words, sys.executable, "-c", code], capture_output=True, timeout=300)
    assert int(done.stdout) == 19  # and the one that made them
