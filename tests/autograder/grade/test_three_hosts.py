"""A batch on three hosts that share no files, over TLS; one loses its network in the middle."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from autograder.assignment import ROOT, Assignment
from tests import certificates, hosts
from tests import course as toolbox
from tests.course import RIGHT_BIAS

LSTM = Assignment("02_lstm")
PORT = 8786
SOLUTIONS = {
    2.0: RIGHT_BIAS,
    1.5: RIGHT_BIAS.replace("value=1.0", "value=2.0"),
    0.0: "def init_forget_bias(b, value=1.0):\n    raise NotImplementedError",
}
SCORES = {f"student-{n}": score for n, score in enumerate([*SOLUTIONS] * 2)}
OWN = ("autograder", "course_pkg", "solutions", "notebooks", "tests")  # folders of this checkout
SHORT = {
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11s",  # Dask takes no less
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s",
    "OMP_NUM_THREADS": "1",
}
HTTP = ("--dashboard-address", "127.0.0.1:0")
BOTH = f"""
from distributed import Client
Client("tls://10.0.0.1:{PORT}").wait_for_workers(2, timeout=120)
"""
pytestmark = [pytest.mark.xdist_group("batch"), toolbox.needs_sandbox, hosts.needs_hosts]


def course(root: Path) -> Path:
    """A course of one exercise in which everyone has submitted."""
    root.mkdir()
    toolbox.new_course(root, LSTM, trim=toolbox.one_exercise)
    released = root / "notebooks" / LSTM.name / f"{LSTM.name}.ipynb"
    for student, score in SCORES.items():
        nb = nbformat.read(released, as_version=4)
        cell = next(c for c in nb.cells if c.id == "init_forget_bias")
        cell.source = f"import time\n\ntime.sleep(2)  # as if it trained\n{SOLUTIONS[score]}"
        toolbox.submit(root, student, LSTM, nb)
    return root


def repository(folder: Path) -> Path:
    """A copy of what a worker needs."""
    unused = shutil.ignore_patterns("__pycache__", "course", "*.ipynb")
    for name in ("autograder", "course_pkg", "solutions"):
        shutil.copytree(ROOT / name, folder / name, ignore=unused)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture
def cluster(tmp_path):
    """Start a scheduler and two workers with Dask's own commands; give hosts and the command's."""
    folders = [tmp_path / f"host-{n}" for n in range(3)]
    pairs = certificates.write(tmp_path)
    for folder in folders:
        folder.mkdir()
        for path in pairs.values():
            shutil.copy(path, folder)

    with hosts.network(3) as network:

        def start(number: int, *command: str, **options) -> subprocess.Popen:
            folder = folders[number]
            own = repository(folder / "repository") if number else ROOT
            hidden = [tmp_path / other.name for other in folders if other != folder]
            if number:
                hidden += [ROOT / name for name in OWN]
            places = {"PYTHONPATH": str(own), "DASK_TEMPORARY_DIRECTORY": str(folder)}
            options["env"] = os.environ | SHORT | places | options.get("env", {})
            command = (sys.executable, *command)
            return network[number].start(command, hidden=hidden, **{"cwd": own} | options)

        def dask(number: int, *command: str) -> None:
            names = ("--tls-ca-file", "--tls-cert", "--tls-key")
            files = [folders[number] / name for name in certificates.NAMES]
            tls = [str(part) for pair in zip(names, files, strict=True) for part in pair]
            with open(folders[number] / "log", "w") as log:
                start(number, "-m", "dask", *command, *tls, *HTTP, stderr=log)

        address = f"{network[0].address}:{PORT}"
        dask(0, "scheduler", "--protocol", "tls", "--host", network[0].address)
        for number in (1, 2):
            dask(number, "worker", f"tls://{address}", "--nthreads", "1", "--memory-limit", "0")
        yield network, folders, start


def test_three_hosts(cluster):
    network, folders, start = cluster
    root = course(folders[0] / "course")
    own = certificates.client({name: folders[0] / name for name in certificates.NAMES})
    assert start(0, "-c", BOTH, env=own).wait(150) == 0

    address = f"tls://{network[0].address}:{PORT}"
    command = ["-m", "autograder", "grade", LSTM.name, "--scheduler", address, "--json"]
    pipe = subprocess.PIPE
    process = start(0, *command, env=own, cwd=root, stdout=pipe, stderr=pipe, text=True)
    first = process.stdout.readline()
    network[2].unplug()
    rest, err = process.communicate(timeout=300)

    assert process.returncode == 0, err
    lines = [json.loads(line) for line in [first, *rest.splitlines()]]
    assert {line["student"]: line["score"] for line in lines} == SCORES, err
    assert f"Remove worker addr: tls://{network[2].address}" in (folders[0] / "log").read_text()
    for folder in folders[1:]:  # each has made its own, from its own repository
        assert len(list((folder / "repository" / "autograder" / "course" / "kits").iterdir())) == 1
