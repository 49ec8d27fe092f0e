"""The image and the devcontainer name what there is; building them is for .github/workflows."""

import json
import re

import yaml

from autograder.assignment import ROOT

FOLDER = ROOT / ".devcontainer"
TEXT = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]


def instructions(name: str) -> list[str]:
    """The arguments of all instructions of a kind."""
    return re.findall(rf"^{name} +(.*)$", TEXT, re.MULTILINE)


def test_the_image_has_the_python_and_the_packages_of_environment_yml():
    (version,) = [line.partition("=")[2] for line in CONDA if str(line).startswith("python=")]
    assert instructions("FROM") == [f"python:{version}-slim"]
    (lines,) = [entry["pip"] for entry in CONDA if isinstance(entry, dict)]
    wanted = " ".join(lines).replace("-e ", "--editable ")
    assert f'INSTALL="{wanted}"' in instructions("ARG")


def test_the_image_states_no_version_of_a_package():
    assert "==" not in TEXT
    assert instructions("COPY") == ["--chown=jovyan:jovyan . ."]  # so nothing else must exist


def test_what_runs_is_not_root_and_owns_what_is_installed():
    assert instructions("USER") == ["jovyan"]
    commands = instructions("RUN")
    (user,) = [command for command in commands if command.startswith("useradd")]
    assert "--uid 1000" in user and "/opt/course /opt/venv" in user
    assert TEXT.index("USER jovyan") < TEXT.index("pip install")
    # A volume over the home folder of a JupyterHub hides what lies there.
    assert instructions("WORKDIR") == ["/opt/course"] and "/home" not in " ".join(commands)


def test_no_submission_and_no_rubbish_gets_into_the_image():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert ".git" in ignored
    for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split():
        name = line.rstrip("/")
        assert (name if "/" in name else f"**/{name}") in ignored


def test_the_devcontainer_is_built_from_the_dockerfile():
    found = json.loads((FOLDER / "devcontainer.json").read_text(encoding="utf-8"))
    assert (FOLDER / found["build"]["dockerfile"]).is_file()
    assert (FOLDER / found["build"]["context"]).resolve() == ROOT
    assert found["remoteUser"] == instructions("USER")[-1]
    python = found["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert python.removesuffix("/bin/python") in instructions("ENV")[0]


def test_the_workflow_builds_it_when_it_changes():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "image.yml").read_text())
    for event in ("push", "pull_request"):
        assert f"{FOLDER.name}/**" in workflow[True][event]["paths"]  # `on` is True in YAML
    script = "\n".join(step.get("run", "") for step in workflow["jobs"]["build"]["steps"])
    assert script.count(f"docker build --file {FOLDER.name}/Dockerfile") == 2
