"""`make env`: what it refuses, what it reuses, and that versions are stated once."""

import ast
import contextlib
import os
import re
import subprocess
import sys
import tomllib
from collections import namedtuple
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from autograder.assignment import ROOT
from autograder.classroom import environment

PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(PYPROJECT)["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with pyproject.toml that the script takes for the repository, and a fake pip."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (tmp_path / "locks").mkdir()
    (tmp_path / environment.LOCK).write_text("torch==2\n", encoding="utf-8")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment.venv, "create", create_nothing)
    monkeypatch.setattr(environment.subprocess, "call", lambda command, env=None: 0)
    monkeypatch.setattr(environment, "pip_settings", lambda python: {})
    monkeypatch.setattr(environment, "compile_meanwhile", lambda python, folder: None)
    return tmp_path


def create_nothing(folder, **options):
    """Stand in for venv.create: make only the file that marks an environment."""
    python = Path(folder) / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()


@pytest.mark.parametrize("version", [(3, 6), (3, 10), (3, 14)])
def test_another_python_is_refused_with_a_message(monkeypatch, capsys, version):
    monkeypatch.setattr(sys, "version_info", (*version, 0))
    assert environment.main() == 1
    message = capsys.readouterr().err
    assert "needs Python 3.11 to 3.13" in message
    assert f"this is Python {version[0]}.{version[1]}" in message
    assert "make env PYTHON=python3.12" in message


def test_the_script_parses_on_old_pythons():
    ast.parse(Path(environment.__file__).read_text(encoding="utf-8"), feature_version=(3, 6))


def test_a_python_without_ensurepip_is_refused(monkeypatch):
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(environment.EnvironmentProblem, match="apt install python3-venv"):
        environment.check_python(PYPROJECT)


def test_a_full_disk_is_refused_before_anything_is_written(checkout, monkeypatch, capsys):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda path: usage(9e9, 8e9, 1e9))
    assert environment.main() == 1
    message = capsys.readouterr().err
    assert "needs 3 GB of free disk" in message
    assert "has 1.0 GB" in message
    assert not (checkout / ".venv").exists()


def test_an_environment_is_built_once_and_reused_in_silence(checkout, capsys):
    assert environment.main() == 0
    assert "Creating .venv" in capsys.readouterr().out
    assert environment.main() == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("file", ["pyproject.toml", environment.LOCK])
def test_a_changed_list_of_packages_updates_the_environment(checkout, capsys, file):
    environment.main()
    (checkout / file).write_text(PYPROJECT + "\n# changed\n", encoding="utf-8")
    capsys.readouterr()
    assert environment.main() == 0
    assert "The packages have changed: updating .venv" in capsys.readouterr().out


def test_an_environment_that_was_moved_is_built_anew(checkout, capsys):
    environment.main()
    stamp = checkout / ".venv" / environment.STAMP_NAME
    stamp.write_text(stamp.read_text().replace(str(checkout), "/elsewhere"))
    capsys.readouterr()
    assert environment.main() == 0
    assert "Creating .venv" in capsys.readouterr().out


@pytest.mark.parametrize("first_time", [True, False])
def test_an_interrupted_build_leaves_no_stamp(checkout, monkeypatch, capsys, first_time):
    if not first_time:
        environment.main()
        (checkout / "pyproject.toml").write_text(PYPROJECT + "\n", encoding="utf-8")

    def interrupt(command, env=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(environment.subprocess, "call", interrupt)
    assert environment.main() == 130
    assert "Run the same command again" in capsys.readouterr().err
    assert environment.read_stamp(checkout / ".venv") == ""


def commands(monkeypatch, *fail):
    """Note the commands that are called, and let those fail that have one of these words."""
    called = []

    def call(command, env=None):
        called.append(([Path(command[0]).name, *command[1:]], env))
        return int(any(word in command for word in fail))

    monkeypatch.setattr(environment.subprocess, "call", call)
    return called


def test_what_neither_uv_nor_pip_can_install_is_reported(checkout, monkeypatch, capsys):
    commands(monkeypatch, "pip")
    assert environment.main() == 1
    assert "pip could not install the packages" in capsys.readouterr().err


def test_uv_installs_what_the_lock_says_with_settings_of_pip(checkout, monkeypatch):
    (checkout / environment.LOCK).write_text("torch==2\nuv==7.1\n", encoding="utf-8")
    settings = {"find-links": "/a\n/b", "extra-index-url": "https://c", "quiet": "1"}
    monkeypatch.setattr(environment, "pip_settings", lambda python: settings)
    called = commands(monkeypatch)
    environment.main()
    (pip, _), (uv, told) = called
    assert pip[3:] == ["install", "--quiet", "--no-deps", "uv==7.1"]
    assert uv[:4] == ["python", "-m", "uv", "pip"] and str(checkout / environment.LOCK) in uv
    assert told["UV_FIND_LINKS"] == "/a,/b" and told["UV_INDEX"] == "https://c"


def test_what_was_installed_is_compiled_meanwhile_but_for_tests(tmp_path, monkeypatch):
    for place in ("one.py", "tests/two.py", "for_another_python.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("print 1\n" if "another" in place else "", encoding="utf-8")
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        environment.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k))
    )
    environment.compile_meanwhile(sys.executable, tmp_path)
    started[0].wait()
    assert [path.name.split(".")[0] for path in tmp_path.rglob("*.pyc")] == ["one"]


@pytest.mark.parametrize("settings", [{}, {"only-binary": ":all:"}])
def test_pip_installs_where_uv_cannot(checkout, monkeypatch, capsys, settings):
    monkeypatch.setattr(environment, "pip_settings", lambda python: settings)
    called = commands(monkeypatch, "uv")
    assert environment.main() == 0
    assert called[-1][0][2:5] == ["pip", "install", "--no-compile"]
    assert "Not with uv" in capsys.readouterr().out
    assert any(command[2] == "uv" for command, _ in called) is not bool(settings)


def test_a_variable_of_pip_counts_more_than_its_file(tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a\ntimeout = 5\n[install]\ntimeout = 6\n"
        "[download]\ntimeout = 7\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://b")
    found = environment.pip_settings(sys.executable)
    assert found["index-url"] == "https://b" and found["timeout"] == "6"


def test_make_says_when_python_is_too_old(tmp_path):
    old = tmp_path / "python3"
    old.write_text(
        f"#!{sys.executable}\n"
        "import runpy, sys\n"
        "sys.version_info = (3, 9, 0)\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
    )
    old.chmod(0o755)
    made = subprocess.run(
        ["make", "env", f"PYTHON={old}"], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode != 0
    assert "this is Python 3.9" in made.stderr


def test_conda_installs_our_package_and_nothing_else():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip_part,) = [entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict)]
    lock, package = pip_part
    assert lock == f"--constraint {environment.LOCK}"
    extras = re.fullmatch(r"-e \.\[([a-z,]+)\]", package).group(1).split(",")
    assert set(extras) == set(EXTRAS)
    assert ",".join(extras) == environment.EXTRAS


def test_conda_installs_a_python_that_the_course_supports():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    entries = [entry for entry in conda["dependencies"] if isinstance(entry, str)]
    assert {entry.partition("=")[0] for entry in entries} == {"python", "pip", "make"}
    (version,) = [entry.partition("=")[2] for entry in entries if entry.startswith("python")]
    assert version in SpecifierSet(PROJECT["requires-python"])


def test_continuous_integration_runs_every_supported_python():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    supported = SpecifierSet(PROJECT["requires-python"])
    assert tested == [f"3.{minor}" for minor in range(30) if f"3.{minor}" in supported]


@pytest.mark.parametrize(
    "name",
    [
        ".ci/run",
        ".devcontainer/Dockerfile",
        ".github/workflows/ci.yml",
        ".github/workflows/image.yml",
        ".github/workflows/wheels.yml",
        "CONTRIBUTING.md",
        "Makefile",
        "README.md",
        "environment.yml",
    ],
)
def test_package_versions_are_stated_in_pyproject_only(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    pinned = [Requirement(line) for group in EXTRAS.values() for line in group]
    pinned += [Requirement(line) for line in PROJECT["dependencies"]]
    for requirement in pinned:
        (version,) = [specifier.version for specifier in requirement.specifier]
        assert not re.search(rf"{requirement.name}\S{{0,3}} ?{re.escape(version)}", text)


def test_one_package_has_one_version():
    pinned = {}
    for line in [*PROJECT["dependencies"], *(line for group in EXTRAS.values() for line in group)]:
        requirement = Requirement(line)
        pinned.setdefault(requirement.name, set()).add(str(requirement.specifier))
    assert all(len(versions) == 1 for versions in pinned.values()), pinned


def test_the_continuous_integration_script_only_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"


@pytest.mark.xdist_group("kept")
def test_workers_keep_groups_together(request):
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@kept")


def locked(name: str) -> dict[str, set[str]]:
    """Read the versions of a lock that this machine's Python would get."""
    found = {}
    for line in (ROOT / "locks" / name).read_text(encoding="utf-8").splitlines():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            versions = {specifier.version for specifier in requirement.specifier}
            found.setdefault(canonicalize_name(requirement.name), set()).update(versions)
    return found


def test_the_lock_has_what_pyproject_states_and_what_is_installed_here():
    lock = locked("everything.txt")
    for line in [*PROJECT["dependencies"], *(line for group in EXTRAS.values() for line in group)]:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            (version,) = [specifier.version for specifier in requirement.specifier]
            assert lock[canonicalize_name(requirement.name)] == {version}, "run make lock"
    for name, versions in lock.items():
        with contextlib.suppress(PackageNotFoundError):  # it is for another system
            assert versions == {Version(version_of(name)).public}, name


def test_wheels_bring_what_a_machine_with_a_gpu_lacks():
    everything, lock = locked("everything.txt"), locked("gpu.txt")
    text = (ROOT / "locks" / "not_on_a_gpu_machine.txt").read_text(encoding="utf-8")
    there = {line for line in text.splitlines() if line and not line.startswith("#")}
    wanted = {Requirement(line).name for line in EXTRAS["notebooks"] + PROJECT["dependencies"]}
    assert wanted - there <= set(lock) and not there & set(lock)
    assert {"nbformat", "jupyter-client", "pyzmq"} <= set(lock)  # what those need
    assert not {n for n in lock if n.startswith(("torch", "nvidia", "triton", "jupyterlab"))}
    assert lock == {name: everything[name] for name in lock}


def test_the_gpu_workflow_runs_make_on_its_runner():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "gpu.yml").read_text())
    job = workflow["jobs"]["test"]
    assert job["runs-on"] == ["self-hosted", "gpu"]
    assert "make test-gpu" in [step.get("run") for step in job["steps"]]
