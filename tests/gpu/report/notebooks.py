"""The solved notebooks on the device, six at a time, in their order."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.benchmarks.attention import ON_GPU
from tests.gpu.report.rows import row

ROOT = Path(__file__).resolve().parents[3]
AT_ONCE = 6 if ON_GPU else 2
LIMIT = 600  # seconds for one


def notebooks() -> list[Path]:
    """List the solved notebooks."""
    return sorted(ROOT.glob("solutions/[0-9]*/[0-9]*.ipynb"))


def one(notebook: Path) -> None:
    """Run one, each cell a test."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-q"]
    command += ["-p", "no:cacheprovider", f"--nbval-cell-timeout={LIMIT}", "--tb=short"]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    try:
        done = subprocess.run(
            [*command, f"--confcutdir={notebook.parent}", str(notebook)],
            env=environment, capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        row(notebook.stem, "ran out of time", detail=str(error.stdout or "")[-3000:])
        return
    seconds = round(time.perf_counter() - start)
    detail = {"detail": (done.stdout + done.stderr)[-6000:]} if done.returncode else {}
    words = "failed" if done.returncode else "passed"
    row(notebook.stem, words, seconds=seconds, **detail)


def main() -> None:
    """Run them all."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, notebooks()))


if __name__ == "__main__":
    main()
