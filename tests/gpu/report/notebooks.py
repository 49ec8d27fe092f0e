"""The solved notebooks on the device: on a GPU all at once, since each waits for its processor.

What each of them prints is kept while it runs: one that is not at its end when the time is up has
shown how far it came.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.benchmarks.attention import ON_GPU
from tests.gpu.report.rows import row

ROOT = Path(__file__).resolve().parents[3]
AT_ONCE = 32 if ON_GPU else 2
LIMIT = 600  # seconds for one


def notebooks() -> list[Path]:
    """List the solved notebooks."""
    return sorted(ROOT.glob("solutions/[0-9]*/[0-9]*.ipynb"))


def one(notebook: Path) -> None:
    """Run one, each cell a test."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-v"]
    command += ["-p", "no:cacheprovider", f"--nbval-cell-timeout={LIMIT}", "--tb=short"]
    command += [f"--confcutdir={notebook.parent}", str(notebook)]
    log = folder() / f"{notebook.stem}.log"
    with open(log, "w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
    seconds = round(time.perf_counter() - start)
    text = log.read_text(encoding="utf-8", errors="replace").partition("= FAILURES =")[2]
    detail = {"detail": text[:4000] + "\n[…]\n" + text[-2000:]} if done.returncode else {}
    row(notebook.stem, "failed" if detail else "passed", seconds=seconds, **detail)


def folder() -> Path:
    """Make the folder of what notebooks print."""
    made = Path(os.environ.get("RESULTS", ROOT / "build" / "gpu")) / "notebooks"
    made.mkdir(parents=True, exist_ok=True)
    return made


def main() -> None:
    """Run them all."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, notebooks()))


if __name__ == "__main__":
    main()
