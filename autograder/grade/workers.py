"""Judge many submissions at once, on this machine's cores or on a Dask cluster.

Also a single one: what ends or stops the process that judges must not end the grader.
"""

import contextlib
import faulthandler
import functools
import itertools
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
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
LONGEST = 1.5 * Bounds.submission  # seconds after which a judgement hangs, and its process ends
_one_at_a_time = threading.Lock()  # judging uses torch's random state and signals


@dataclass(frozen=True)
class Task:
    """A submission to be judged, with all that a worker on another machine needs."""

    student: str
    assignment: str
    plan: Plan
    steps: list[Step]
    files: dict[str, bytes]


Result = tuple[Task, Verdict | Exception]


def run(task: Task) -> Verdict:
    """Judge one submission, in whatever process this is called; others there wait."""
    with _one_at_a_time, _bounded(LONGEST), tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, str(n)) for n, name in enumerate(task.files)}
        for path, data in zip(files.values(), task.files.values(), strict=True):
            path.write_bytes(data)
        return judge(task.assignment, task.plan, task.steps, files)


@contextlib.contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """End this process, whatever it does, if the block takes longer."""
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def on_dask(
    tasks: Iterable[Task],
    workers: int,
    scheduler: str | None,
    resources: dict[str, float],
    work: Callable[[Task], Verdict] = run,
) -> Iterator[Result]:
    """Judge submissions on Dask, and give the verdicts as they come.

    A worker that dies takes along what was waiting at it. What was lost is therefore tried once
    more in the end, one submission at a time: one that is lost again is the cause, and gets an
    EndedWorkers in place of a verdict.

    Args:
        tasks: the submissions, which are taken as they are needed.
        workers: how many processes on this machine, unless there is a scheduler.
        scheduler: the address of a running cluster; its workers need this repository too.
        resources: what a worker must offer to get a submission, such as GPU=1.
        work: judges one submission.
    Raises:
        GradingError: the cluster cannot be reached.
    """
    from distributed import KilledWorker

    with _client(workers, scheduler, resources) as client:
        submit = functools.partial(client.submit, work, pure=False, resources=resources or None)
        lost = []
        for task, result in _results(tasks, submit, AHEAD * max(workers, len(client.nthreads()))):
            if isinstance(result, KilledWorker):
                lost.append(task)
            else:
                yield task, result
        for task in lost:
            for _, result in _results([task], submit, 1):
                yield task, EndedWorkers() if isinstance(result, KilledWorker) else result
        with contextlib.suppress(OSError):
            client.run(end_templates)


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


def _results(tasks: Iterable[Task], submit: Callable, ahead: int) -> Iterator[Result]:
    """Keep some submissions under way, and give each result as it comes."""
    from distributed import as_completed

    rest = iter(tasks)
    futures = {submit(task): task for task in itertools.islice(rest, ahead)}
    running = as_completed(list(futures))
    for future in running:
        for task in itertools.islice(rest, 1):
            futures[new := submit(task)] = task
            running.add(new)
        error = future.exception()
        yield futures.pop(future), future.result() if error is None else error
