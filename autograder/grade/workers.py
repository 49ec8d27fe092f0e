"""Judge many submissions at once, on this machine's cores or on a Dask cluster.

Even a single one: what ends or stops the process that judges must not end the grader.
"""

import contextlib
import faulthandler
import functools
import itertools
import logging
import multiprocessing
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autograder.grade.errors import EndedWorkers, GradingError
from autograder.grade.judge import Bounds
from autograder.grade.plan import Plan
from autograder.grade.submission import judge
from autograder.grade.verdict import Step, Verdict
from autograder.grade.warm import end_templates

if TYPE_CHECKING:
    from distributed import Client

AHEAD = 3  # submissions under way for each worker, so that none waits
CONNECT_SECONDS = 30
WITHOUT_WORKERS = 120.0  # seconds after which no worker is expected to come back
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


Result = tuple[Task, Verdict | Exception]


def run(task: Task) -> Verdict:
    """Judge one submission, in whatever process this is called; others there wait."""
    with (
        _one_at_a_time,
        _bounded(LONGEST),
        _small(MEMORY),
        tempfile.TemporaryDirectory() as folder,
    ):
        files = {name: Path(folder, str(n)) for n, name in enumerate(task.files)}
        for path, data in zip(files.values(), task.files.values(), strict=True):
            path.write_bytes(data)
        return judge(task.assignment, task.plan, task.steps, files, task.inputs)


@contextlib.contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """End this process, whatever it does, if the block takes longer."""
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _small(memory: int) -> Iterator[None]:
    """Let what takes more memory in this process raise MemoryError, or torch's RuntimeError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [limit for limit in (soft, hard, memory) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def on_dask(
    tasks: Iterable[Task],
    workers: int,
    scheduler: str | None,
    resources: dict[str, float],
    work: Callable[[Task], Verdict] = run,
) -> Iterator[Result]:
    """Judge submissions on Dask, and give the verdicts as they come.

    A worker that dies loses what was waiting for it. What was lost is therefore tried once more at
    the end, each submission in a process of its own: one that is lost again is the cause, and gets
    an EndedWorkers in place of a verdict.

    Args:
        tasks: the submissions, which are taken as they are needed.
        workers: how many processes on this machine, unless there is a scheduler.
        scheduler: the address of a running cluster; its workers need this repository too.
        resources: what a worker must offer to get a submission, such as GPU=1.
        work: judges one submission.
    Raises:
        GradingError: the cluster cannot be reached.
    """
    with _client(workers, scheduler, resources) as client:
        submit = functools.partial(client.submit, work, pure=False, resources=resources or None)
        lost = []
        for task, result in _results(
            tasks, client, submit, AHEAD * max(workers, len(client.nthreads()))
        ):
            if result is None:
                lost.append(task)
            else:
                yield task, result
        with contextlib.suppress(OSError):
            client.run(end_templates)
    for task in lost:
        yield task, _alone(task, work)


def _alone(task: Task, work: Callable[[Task], Verdict]) -> Verdict | Exception:
    """Judge a submission in a process that nothing else depends on."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_and_end_templates, work, task).result()
        except BrokenProcessPool:
            return EndedWorkers()
        except Exception as error:
            return error


def _and_end_templates(work: Callable[[Task], Verdict], task: Task) -> Verdict:
    try:
        return work(task)
    finally:
        end_templates()


@contextlib.contextmanager
def _client(workers: int, scheduler: str | None, resources: dict[str, float]) -> Iterator["Client"]:
    import dask
    from distributed import Client, LocalCluster, Security

    dask.config.set(
        {
            "distributed.scheduler.allowed-failures": 0,
            "distributed.worker.profile.enabled": False,  # it looks at the stack all the time
        }
    )
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        options = {}
        if scheduler is None:
            # Other users of this machine must not be able to send work to the workers.
            options["security"] = Security.temporary()
            scheduler = stack.enter_context(
                LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address="127.0.0.1:0",
                    memory_limit=None,
                    resources=resources or None,
                    silence_logs=logging.CRITICAL,
                    **options,
                )
            )
        try:
            client = stack.enter_context(Client(scheduler, timeout=CONNECT_SECONDS, **options))
        except OSError as error:
            raise GradingError(f"there is no Dask scheduler at {scheduler}: {error}") from None
        yield client


def _results(
    tasks: Iterable[Task], client: "Client", submit: Callable, ahead: int
) -> Iterator[tuple[Task, Verdict | Exception | None]]:
    """Keep some submissions under way; give each result as it comes, None if it was lost."""
    from distributed import KilledWorker, wait

    rest = iter(tasks)
    futures = {submit(task): task for task in itertools.islice(rest, ahead)}
    seen = time.monotonic()  # when there was a worker
    while futures:
        try:
            done = wait(list(futures), timeout=5, return_when="FIRST_COMPLETED").done
            seen = time.monotonic()
        except TimeoutError:
            if client.nthreads():
                seen = time.monotonic()
            if time.monotonic() - seen < WITHOUT_WORKERS:
                continue
            done = set(futures)
        for future in done:
            task = futures.pop(future)
            for new in itertools.islice(rest, 1):
                futures[submit(new)] = new
            if future.status == "finished":
                yield task, future.result()
            elif future.status == "error" and not isinstance(future.exception(), KilledWorker):
                yield task, future.exception()
            else:
                yield task, None
