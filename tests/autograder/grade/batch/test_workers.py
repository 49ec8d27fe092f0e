"""Submissions on Dask: a worker that dies takes nobody else's verdict with it."""

import os
import threading

import pytest
from distributed import Client, LocalCluster, Security

from autograder.assignment import Assignment
from autograder.grade.batch import workers
from autograder.grade.batch.cluster import Cluster
from autograder.grade.batch.workers import Task, on_dask
from autograder.grade.errors import EndedWorkers, GradingError
from autograder.grade.judging.verdict import Verdict
from autograder.grade.submission.plan import Plan

pytestmark = pytest.mark.xdist_group("dask")
LSTM = Assignment("02_lstm")


def task(student: str) -> Task:
    return Task(student, LSTM.name, Plan.read(LSTM.solved), [], {}, 0)


def work(task: Task) -> Verdict:
    """Judge, except that one student's submission kills whoever judges it."""
    if task.student == "killer":
        os._exit(1)
    if task.student == "endless":
        with workers._in_time(1.0):
            threading.Event().wait()
    if task.student == "large":
        with workers.bounded_memory(workers.MEMORY):
            bytearray(2 * workers.MEMORY)
    if task.student == "broken":
        raise RuntimeError("no kernel")
    return Verdict([], {"check": 2.0})


def here(tasks: list[Task], cluster: Cluster):
    return on_dask(tasks, LSTM, cluster, print, work)


def test_a_submission_that_kills_workers_costs_only_itself():
    tasks = [
        task(name) for name in ("ada", "killer", "alan", "broken", "large", "endless", "grace")
    ]
    found = {task.student: result for task, result in here(tasks, Cluster(1))}
    assert str(found.pop("killer")).startswith("it ended the grader's process twice")
    assert str(found.pop("endless")) == str(EndedWorkers())
    assert str(found.pop("broken")) == "no kernel"
    assert isinstance(found.pop("large"), MemoryError)
    assert sorted(found) == ["ada", "alan", "grace"]
    assert all(verdict.points == {"check": 2.0} for verdict in found.values())


def test_nobody_else_can_send_work():
    """Dask's messages are pickles: whoever may send them may run anything."""
    with Cluster(1).connect() as client:
        address = client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(OSError):
            Client(address, security=Security.temporary(), timeout=3)
        with pytest.raises(OSError):
            Client(address.replace("tls", "tcp"), timeout=3)


def test_a_running_cluster_and_its_resources():
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "processes": False}
    with LocalCluster(n_workers=1, resources={"GPU": 1}, protocol="tcp", **options) as cluster:
        address = cluster.scheduler_address
        [(_, verdict)] = here([task("ada")], Cluster(1, address, {"GPU": 1}))
        assert verdict.points == {"check": 2.0}
        with Client(address) as client:
            waiting = client.submit(work, task("alan"), resources={"GPU": 2}, pure=False)
            client.gather(client.submit(work, task("ada"), resources={"GPU": 1}, pure=False))
            assert waiting.status == "pending"


def test_a_cluster_that_is_not_there(monkeypatch):
    monkeypatch.setattr("autograder.grade.batch.cluster.CONNECT_SECONDS", 1)
    with pytest.raises(GradingError, match="no Dask scheduler answers"):
        next(here([task("ada")], Cluster(1, "tcp://127.0.0.1:9")))


def test_a_cluster_without_workers_is_told_of_at_once(monkeypatch):
    monkeypatch.setattr(workers, "SILENT", 0.5)
    monkeypatch.setattr(workers, "WITHOUT_WORKERS", 3.0)
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "processes": False}
    said: list[str] = []
    with LocalCluster(n_workers=0, protocol="tcp", **options) as cluster:
        place = Cluster(1, cluster.scheduler_address)
        [(_, verdict)] = on_dask([task("ada")], LSTM, place, said.append, work)
    assert verdict.points == {"check": 2.0}
    assert said == [f"The cluster has no workers. Start some; in 2 s, {workers.ALONE}."]
