"""Run a command that has processor time and no clock, so that others may use the machine too."""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Sequence

import psutil

IDLE = 300.0  # seconds
LEAST = 0.01  # of a processor in these seconds: less is a command that waits for what never comes


class Stopped(Exception):
    """A command was ended; the text says why, and what it had printed."""


def run(
    command: Sequence[str], environment: dict[str, str], most: float, idle: float = IDLE
) -> tuple[int, str, float]:
    """Run a command to its end.

    Args:
        command: the command.
        environment: its variables.
        most: the seconds that it and all below it may compute.
        idle: how long it may do next to nothing.
    Returns:
        Its status, what it printed, and the seconds that it computed.
    Raises:
        Stopped: it was ended before.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = psutil.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        used, marked, since, reason = 0.0, 0.0, time.monotonic(), ""
        try:
            while process.poll() is None and not reason:
                time.sleep(0.2)
                used = max(used, _computed(process))
                if used - marked >= LEAST * idle:
                    marked, since = used, time.monotonic()
                if used > most:
                    reason = f"it computed for more than {most:g} s"
                elif time.monotonic() - since > idle:
                    reason = f"it computed next to nothing for {idle:g} s"
        finally:
            _end(process)
        output.seek(0)
        text = output.read()
    if reason:
        raise Stopped(f"{reason}\n{text[-4000:]}")
    return process.returncode, text, used


def _computed(process: psutil.Process) -> float:
    """Add up what a process and all below it have computed, those that have ended too."""
    seconds = 0.0
    with contextlib.suppress(psutil.Error):
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                seconds += sum(each.cpu_times()[:4])  # its own, and its ended children's
    return seconds


def _end(process: psutil.Popen) -> None:
    """End a process and all below it."""
    with contextlib.suppress(psutil.Error):
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                each.kill()
    process.wait()
