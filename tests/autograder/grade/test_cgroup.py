"""A sandbox begins in a group of its own, where the grader's group was given to it to divide.

The folder of a group stands in for the system's: what is written to its files is looked at.
"""

import os
import subprocess

import pytest

from autograder.grade import cgroup

LIMITS = (3 << 30, 40)  # bytes and processes


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Make a delegated group in which this process and another one are."""
    for name, text in {
        "cgroup.controllers": "cpu memory pids",
        "cgroup.procs": f"{os.getpid()}\n12345\n",
        "cgroup.subtree_control": "",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cgroup, "_own", lambda: tmp_path)
    monkeypatch.setattr(cgroup.os, "getxattr", lambda path, name: b"1", raising=False)
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


def test_a_group_that_was_not_delegated_is_left_alone(group, monkeypatch):
    def none(path, name):
        raise OSError("no such attribute")

    monkeypatch.setattr(cgroup.os, "getxattr", none, raising=False)
    assert cgroup.entering(*LIMITS) == []
    assert sorted(path.name for path in group.iterdir()) == [
        "cgroup.controllers",
        "cgroup.procs",
        "cgroup.subtree_control",
    ]


def test_a_group_that_cannot_be_made_keeps_nothing_from_starting(group, monkeypatch):
    start(group)
    monkeypatch.setattr(cgroup, "_numbers", iter([1000, 1000]))
    assert cgroup.entering(*LIMITS) and cgroup.entering(*LIMITS) == []  # it is there already
