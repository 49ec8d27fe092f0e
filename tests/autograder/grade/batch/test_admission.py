"""A worker with another version of the course or of a package gets no submission."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from autograder.assignment import ROOT, Assignment
from autograder.grade.batch.cluster import Cluster
from autograder.grade.batch.workers import Task, on_dask
from autograder.grade.errors import GradingError
from autograder.grade.judging.verdict import Verdict, versions
from autograder.grade.submission.plan import Plan
from tests.course import needs_sandbox

pytestmark = pytest.mark.xdist_group("dask")
LSTM = Assignment("02_lstm")
OTHER = {
    "torch": r"torch: .* here, 0\.1\.2 there",
    "course": "the course's files differ",
    "old": r"the course's files differ \(.*No module named 'autograder.grade.batch.admission'.*\)",
}


@pytest.fixture
def scheduler():
    """A cluster without workers."""
    options = {"protocol": "tcp", "dashboard_address": "127.0.0.1:0", "threads_per_worker": 1}
    with LocalCluster(n_workers=0, processes=False, **options) as cluster:
        yield cluster


def other_checkout(kind: str, folder: Path) -> Path:
    """What differs in some way from this checkout, to be found before it."""
    if kind == "torch":
        (folder / "torch-0.1.2.dist-info").mkdir()
        (folder / "torch-0.1.2.dist-info" / "METADATA").write_text("Name: torch\nVersion: 0.1.2\n")
        return folder
    for name in ("autograder", "course_pkg"):
        unused = shutil.ignore_patterns("__pycache__", "course", "weights")
        shutil.copytree(ROOT / name, folder / name, ignore=unused)
    (folder / "solutions").mkdir()
    for path in (ROOT / "solutions").glob("*.md"):
        shutil.copy(path, folder / "solutions")
    shutil.copy(ROOT / "pyproject.toml", folder)
    if kind == "old":
        (folder / "autograder" / "grade" / "batch" / "admission.py").unlink()
    else:
        with open(folder / "autograder" / "grade" / "judging" / "points.py", "a") as file:
            file.write("# another rule\n")
    return folder


def start(address: str, paths: list[Path], **variables: str) -> subprocess.Popen:
    """Start a worker that looks for modules and packages in these folders first."""
    command = [sys.executable, "-m", "dask", "worker", address, "--nthreads", "1", "--no-nanny"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **variables}
    return subprocess.Popen(command, cwd=paths[0], env=environment, stderr=subprocess.DEVNULL)


def task(student: str) -> Task:
    return Task(student, LSTM.name, Plan.read(LSTM.solved), [], {}, 0)


def work(task: Task) -> Verdict:
    return Verdict([], {}, {"process": str(os.getpid())})


@pytest.mark.parametrize("kind", OTHER)
def test_a_worker_that_differs_is_refused_by_name(scheduler, tmp_path, kind):
    address, said = scheduler.scheduler_address, []
    process = start(address, [other_checkout(kind, tmp_path), ROOT])
    try:
        with Client(address) as client:
            client.wait_for_workers(1, timeout=60)
            [name] = client.nthreads()
            refused = f"worker {name} is refused: {OTHER[kind]}; give it the commit"
            with pytest.raises(GradingError, match=refused):
                list(on_dask([task("ada")], LSTM, Cluster(1, address), said.append, work))
            assert said == []  # the error has said it

            scheduler.scale(1)  # one in this process, which agrees
            client.wait_for_workers(2, timeout=60)
        found = list(on_dask(map(task, "abcdefghi"), LSTM, Cluster(4, address), said.append, work))
        assert {verdict.notes["process"] for _, verdict in found} == {str(os.getpid())}
        assert len(found) == 9 and len(said) == 1 and name in said[0]
    finally:
        process.kill()
        process.wait()


def test_a_worker_that_comes_later_is_asked_too(scheduler, tmp_path):
    address, said = scheduler.scheduler_address, []
    scheduler.scale(1)
    processes = []

    def tasks() -> Iterator[Task]:
        yield task("first")
        with Client(address) as client:
            client.wait_for_workers(1, timeout=60)
            processes.append(start(address, [other_checkout("torch", tmp_path), ROOT]))
            client.wait_for_workers(2, timeout=60)
        for student in "abcdefghi":
            yield task(student)

    try:
        found = list(on_dask(tasks(), LSTM, Cluster(1, address), said.append, work))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert {verdict.notes["process"] for _, verdict in found} == {str(os.getpid())}
    assert len(found) == 10


@needs_sandbox
def test_a_worker_without_a_sandbox(scheduler, tmp_path):
    process = start(scheduler.scheduler_address, [ROOT], PATH=str(tmp_path))
    try:
        with pytest.raises(GradingError, match=r"sandbox: works here, bubblewrap .* there"):
            list(on_dask([task("ada")], LSTM, Cluster(1, scheduler.scheduler_address), print, work))
    finally:
        process.kill()
        process.wait()


def test_a_scheduler_that_differs(scheduler, monkeypatch):
    here = versions(LSTM)
    monkeypatch.setattr(
        "autograder.grade.batch.admission.of_worker", lambda _: {**here, "numpy": "0.1.2"}
    )
    with pytest.raises(GradingError, match=r"the scheduler cannot be used: numpy: 0\.1\.2 here, "):
        list(on_dask([task("ada")], LSTM, Cluster(1, scheduler.scheduler_address), print, work))
