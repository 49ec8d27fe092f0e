"""Judge many submissions at once, on this machine's cores or on a Dask cluster.

Even a single one: what ends or stops the process that judges must not end the grader.
"""

import contextlib
import faulthandler
import functools
import gc
import itertools
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder.assignment import Assignment
from autograder.bounded import bounded_memory
from autograder.grade.batch.admission import AGAIN, Admission
from autograder.grade.batch.cluster import Cluster
from autograder.grade.errors import EndedWorkers
from autograder.grade.judging.judge import Bounds
from autograder.grade.judging.verdict import Step, Verdict
from autograder.grade.kernel.warm import end_templates
from autograder.grade.submission.plan import Plan
from autograder.grade.submission.submission import judge

AHEAD = 3  # submissions under way for each worker, so that none waits
FETCH = 5.0  # seconds for which a worker is waited for that has a verdict
WITHOUT_WORKERS = 120.0  # seconds after which no worker is expected to come, or to come back
SILENT = 10.0  # seconds without workers after which that is said
ALONE = "this machine judges what is left, one after the other"
LONGEST = 1.5 * Bounds.submission  # seconds after which a judgement is taken to hang, and ended
MEMORY = 4 << 30  # bytes that judging takes at most outside of the sandbox
_one_at_a_time = threading.Lock()  # judging uses torch's random state and signals


@dataclass(frozen=True)
class Task:
    """A submission to be judged, with all that a worker on another machine needs."""

    student: str
    assignment: str
    plan: Plan
    steps: list[Step]
    files: dict[str, bytes]
    inputs: int
    carries: bool = True


Result = tuple[Task, Verdict | Exception]


def run(task: Task) -> Verdict:
    """Judge one submission, in whatever process this is called; others there wait."""
    with bounded(LONGEST), tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, str(n)) for n, name in enumerate(task.files)}
        for path, data in zip(files.values(), task.files.values(), strict=True):
            path.write_bytes(data)
        try:
            return judge(task.assignment, task.plan, task.steps, files, task.inputs, task.carries)
        finally:
            freeze()


@functools.cache
def freeze() -> None:
    """Spare the garbage collector all that is loaded by now: it stays for good."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Work with a submission: one at a time in a process, which has bounds on time and memory."""
    with _one_at_a_time, _in_time(seconds), bounded_memory(MEMORY):
        yield


@contextlib.contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """End this process, whatever it does, if the block takes longer."""
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def on_dask(
    tasks: Iterable[Task],
    assignment: Assignment,
    cluster: Cluster,
    tell: Callable[[str], None],
    work: Callable[[Task], Any] = run,
) -> Iterator[tuple[Task, Any]]:
    """Judge submissions on Dask, and give the verdicts as they come.

    A worker that dies loses what was waiting for it. What was lost is therefore tried once more at
    the end, each submission in a process of its own: one that is lost again is the cause, and gets
    an EndedWorkers in place of a verdict.

    Args:
        tasks: the submissions, which are taken as they are needed.
        assignment: what they were submitted for.
        cluster: where to judge.
        tell: is told of workers that cannot be used.
        work: judges one submission, or does something else with it.
    Raises:
        GradingError: the cluster cannot be reached or used.
    """
    with cluster.connect() as client:
        submit = functools.partial(
            client.submit, work, pure=False, resources=cluster.resources or None
        )
        lost = []
        admission = Admission(client, assignment, tell)
        for task, result in _results(tasks, admission, submit, cluster.workers, tell):
            if result is None:
                lost.append(task)
            else:
                yield task, result
        with contextlib.suppress(OSError):
            client.run(end_templates, workers=sorted(admission.look()))
    for task in lost:
        yield task, _alone(task, work)


def _alone(task: Task, work: Callable[[Task], Any]) -> Any:
    """Judge a submission in a process that nothing else depends on."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_and_end_templates, work, task).result()
        except BrokenProcessPool:
            return EndedWorkers()
        except Exception as error:
            return error


def _and_end_templates(work: Callable[[Task], Any], task: Task) -> Any:
    try:
        return work(task)
    finally:
        end_templates()


def _results(
    tasks: Iterable[Task],
    admission: Admission,
    submit: Callable,
    workers: int,
    tell: Callable[[str], None],
) -> Iterator[tuple[Task, Any]]:
    """Keep some submissions under way; give each result as it comes, None if it was lost.

    A cluster without workers is waited for, and `tell` is told.
    """
    from distributed import Future, KilledWorker, wait

    rest = iter(tasks)
    futures: dict[Future, tuple[Task, set[str]]] = {}  # a submission, and who may judge it
    seen = time.monotonic()  # when there was a worker
    has_told = False
    while True:
        able = admission.look()
        if able:
            seen, has_told = time.monotonic(), False
            room = AHEAD * max(workers, len(able)) - len(futures)
            for task in itertools.islice(rest, max(0, room)):
                futures[submit(task, workers=sorted(able))] = task, able
        elif time.monotonic() - seen > SILENT and not has_told:
            has_told = True
            left = WITHOUT_WORKERS - SILENT
            tell(f"The cluster has no workers. Start some; in {left:.0f} s, {ALONE}.")
        elif time.monotonic() - seen > WITHOUT_WORKERS:
            yield from ((task, None) for task in rest)
        if not futures:
            if able or time.monotonic() - seen > WITHOUT_WORKERS:
                return
            time.sleep(AGAIN)
            continue
        try:
            done = wait(list(futures), timeout=5, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            able = admission.look()
            done = {future for future, (_, judges) in futures.items() if not judges & able}
        for future in done:
            result = None
            if future.status == "finished":
                try:
                    result = future.result(timeout=FETCH)
                except (TimeoutError, CancelledError, KilledWorker):
                    continue  # it has gone with its worker; what now becomes of it will be seen
            elif future.status == "error" and not isinstance(future.exception(), KilledWorker):
                result = future.exception()
            yield futures.pop(future)[0], result
