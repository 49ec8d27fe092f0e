"""From a clone to a first cell that has run: `python -m tests.benchmarks.start`.

A clone of this checkout is made in a temporary folder, its environment is installed, and JupyterLab
is started there; packages come from the caches of this machine, as far as they are in them. Then
the imports of every student's notebook are compared with those of torch and matplotlib alone.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import nbformat

from autograder.assignment import ROOT, assignments
from tests.server import free_port

SECONDS = 300  # until JupyterLab must answer
ALONE = "import torch\nfrom matplotlib import pyplot"


def main() -> None:
    """Print how long each step takes, and what the course adds to an import."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="runs of each import (default: 3)")
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        clone = Path(folder, "course")
        steps = {
            "clone": seconds(["git", "clone", "--quiet", str(ROOT), str(clone)], ROOT),
            "environment": seconds(["make", "env"], clone),
            "JupyterLab answers": start(clone),
        }
    print("| step | seconds |\n|:--|--:|")
    for name, took in steps.items():
        print(f"| {name} | {took:.1f} |")
    print(f"| all | {sum(steps.values()):.1f} |\n")
    import_of(ALONE)  # what it reads is in memory from now on
    print("| imports of | seconds | times torch and matplotlib |\n|:--|--:|--:|")
    for assignment in assignments():
        own, alone = [], []
        for _ in range(times):  # in turns, since a machine may become slower
            own.append(import_of(first_imports(assignment.student)))
            alone.append(import_of(ALONE))
        took, least = statistics.median(own), statistics.median(alone)
        print(f"| {assignment.name} | {took:.2f} | {took / least:.2f} |", flush=True)


def seconds(command: list[str], folder: Path) -> float:
    """Run a command and time it."""
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def start(clone: Path) -> float:
    """Start JupyterLab as a student does, time its first answer, and end it.

    Raises:
        TimeoutError: there is no answer in SECONDS.
    """
    port = free_port()
    began = time.perf_counter()
    environment = {**os.environ, "BROWSER": "true"}  # the program that does nothing
    with subprocess.Popen(
        ["make", "lab", f"PORT={port}"],
        cwd=clone,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    ) as server:
        try:
            while time.perf_counter() - began < SECONDS:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=5).close()
                    return time.perf_counter() - began
                except OSError:
                    time.sleep(0.1)
            raise TimeoutError(f"JupyterLab does not answer within {SECONDS} s")
        finally:
            os.killpg(server.pid, 15)


def first_imports(notebook: Path) -> str:
    """Take the imports of the first cell of a notebook that imports torch."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "code" and re.search(r"^(import|from) torch", cell.source, re.M):
            found = r"^(?:import|from) [^(\n]*(?:\([^)]*\))?"
            return "\n".join(re.findall(found, cell.source, re.M))
    raise ValueError(f"no cell of {notebook} imports torch")


def import_of(code: str) -> float:
    """Time a new interpreter that runs code."""
    return seconds([sys.executable, "-c", code], ROOT)


if __name__ == "__main__":
    main()
