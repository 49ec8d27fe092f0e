"""Gradescope's archive, run as Gradescope runs it: in a tree that has nothing else of the course.

Two things stand in for Gradescope's Docker image. bubblewrap's binds make /autograder and hide the
checkout. And the tests' own environment is linked as /autograder/source/.venv, so that setup.sh
finds it, and bubblewrap, in place: the commands that install them are not run here.
"""

import json
import shutil
import subprocess
import sys
import zipfile
from argparse import Namespace
from pathlib import Path

import nbformat
import pytest

from autograder.assignment import Assignment, CourseError, assignments
from autograder.classroom import gradescope
from autograder.grade.kernel import sandbox
from tests import course as toolbox

LSTM = Assignment("02_lstm")
POINTS = toolbox.points(LSTM)
pytestmark = [pytest.mark.xdist_group("gradescope"), toolbox.needs_sandbox]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """The archive."""
    found = tmp_path_factory.mktemp("archive") / "autograder.zip"
    gradescope.archive(LSTM, found)
    return found


@pytest.fixture(scope="module")
def tree(path, tmp_path_factory) -> Path:
    """What becomes /autograder, after setup.sh."""
    root = tmp_path_factory.mktemp("autograder")
    for name in ("source", "submission", "results"):
        (root / name).mkdir()
    with zipfile.ZipFile(path) as files:
        files.extractall(root / "source")
    (root / "source" / ".venv").symlink_to(sys.prefix)
    Path(shutil.copy(root / "source" / "run_autograder", root)).chmod(0o755)
    done = inside(root, "bash /autograder/source/setup.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def inside(tree: Path, command: str) -> subprocess.CompletedProcess:
    """Run a command where /autograder is the tree and the checkout is not."""
    options = ["bwrap", *sandbox._system(), "--dev-bind", "/dev", "/dev"]
    options += ["--dev-bind", "/proc", "/proc", "--tmpfs", "/tmp", "--ro-bind", "/etc", "/etc"]
    for prefix in sandbox.prefixes():
        options += ["--ro-bind", prefix, prefix]
    options += ["--bind", str(tree), "/autograder", "--chdir", "/autograder", "--clearenv"]
    options += ["--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp"]
    return subprocess.run([*options, "bash", "-c", command], capture_output=True, text=True)


def results(tree: Path, submitted: dict[str, bytes]) -> dict:
    """Submit files; return what run_autograder writes."""
    for name, content in submitted.items():
        (tree / "submission" / name).write_bytes(content)
    done = inside(tree, "/autograder/run_autograder")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((tree / "results" / "results.json").read_text())


def test_the_archive_has_the_scripts_at_its_root(path):
    with zipfile.ZipFile(path) as files:
        modes = {info.filename: info.external_attr >> 16 for info in files.infolist()}
    assert modes["setup.sh"] & 0o111 and modes["run_autograder"] & 0o111


def test_the_archive_has_the_graders_of_one_assignment(path):
    with zipfile.ZipFile(path) as files:
        names = {Path(name) for name in files.namelist()}
    # Not the facts of models (lstm, gpt), and not the machinery, which has a judge of its own.
    names = {p for p in names if p.parent.name not in ("weights", "judging")}
    for other in assignments():
        own = {p for p in names if p.stem in (other.topic, other.name) and p.suffix != ".md"}
        graders = {p for p in own if p.parts[0] != "course_pkg"}
        assert bool(graders) == (other == LSTM)
        assert bool(own) == (other.name <= LSTM.name)
    assert not any(p.name == "mistakes.py" and "assignments" in p.parts for p in names)
    assert not any(p.name == "gradebook.db" for p in names)


def test_a_submission_gets_its_scores_and_diagnoses(tree):
    nb = nbformat.read(LSTM.student, as_version=4)
    toolbox.solve(nb, LSTM)
    expected = toolbox.spoil(nb, LSTM)
    found = results(tree, {f"{LSTM.name}.ipynb": nbformat.writes(nb).encode()})

    tests = {test["name"]: test for test in found["tests"]}
    assert {name: test["score"] for name, test in tests.items()} == pytest.approx(expected)
    assert {name: test["max_score"] for name, test in tests.items()} == POINTS
    assert {test["visibility"] for test in tests.values()} == {"visible"}
    said = " ".join(tests["gru_step"]["output"].split())
    assert "z and 1 - z are mixed up" in said
    assert tests["lstm_step"]["output"].startswith("✓ lstm_step · ")
    assert "A person grades " in found["output"] and "score" not in found


def test_when_grading_stops_there_are_no_results(tmp_path, monkeypatch, capsys):
    """Gradescope then says that the autograder failed, and shows staff what it printed."""
    for name in ("submission", "results", "course"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(gradescope, "PLACE", tmp_path)
    monkeypatch.setattr(gradescope, "ROOT", tmp_path / "course")
    (tmp_path / "course" / "nbgrader_config.py").touch()
    monkeypatch.setattr(sandbox, "problem", lambda: "bubblewrap is not permitted here")
    assert gradescope.grade(LSTM.name) == 1
    assert "bubblewrap is not permitted here" in capsys.readouterr().err
    assert not list((tmp_path / "results").iterdir())


def test_the_opt_out_is_built_in_and_loud(tmp_path, path, monkeypatch, capsys):
    monkeypatch.setattr(gradescope, "check", lambda assignment: [])
    monkeypatch.setattr(gradescope, "ROOT", tmp_path)
    monkeypatch.setattr(gradescope, "_stage", lambda assignment, folder: None)
    monkeypatch.setenv(sandbox.SWITCH, "off")
    assert gradescope.main(Namespace(assignment=LSTM.name)) == 0
    printed = capsys.readouterr()
    assert "!! AUTOGRADER_SANDBOX=off" in printed.err
    made = tmp_path / printed.out.strip()
    for archive, is_off in ((made, True), (path, False)):
        with zipfile.ZipFile(archive) as files:
            script = files.read("run_autograder").decode()
        assert ("AUTOGRADER_SANDBOX=off" in script) == is_off


def test_unknown_and_stale_assignments_are_clear_errors(monkeypatch):
    with pytest.raises(CourseError, match=r"there is no solutions/99_none.md"):
        gradescope.main(Namespace(assignment="99_none"))
    monkeypatch.setattr(gradescope, "check", lambda assignment: [assignment.student])
    with pytest.raises(CourseError, match=r"02_lstm.ipynb is stale: run"):
        gradescope.main(Namespace(assignment=LSTM.name))
