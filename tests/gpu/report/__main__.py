"""Run the steps of the report in the order of their worth, each within its time.

What measures time has the GPU to itself. What only passes or fails goes on at once, after that.
"""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.gpu.report import card, plan, rows

ROOT = Path(__file__).resolve().parents[3]
NEEDED = ("triton", "matplotlib", "nbformat", "nbval", "ipykernel", "mlxtend", "transformers")


@dataclass
class Step:
    """A part of the report.

    Attributes:
        name: its module in this folder.
        title: what it finds out.
        minutes: the most that it may take of 12, of another time as much more or less, with nothing
            beside it; None if it goes on beside others, in all the time that is left.
        words: how it ended.
        found: its rows.
    """

    name: str
    title: str
    minutes: float | None
    words: str = "not reached"
    seconds: float = 0.0
    found: list[dict] = field(default_factory=list)


def steps() -> list[Step]:
    """The steps, the most important one first."""
    return [
        Step("decode", "Paged decode", 3),
        Step("flash", "FlashAttention forward", 2),
        Step("engine", "The engine", 2),
        Step("agreement", "Kernels agree with torch", None),
        Step("notebooks", "Solved notebooks", None),
        Step("checks", "Checks on the student's device", None),
    ]


def main() -> int:
    """Run the report; return 1 if something has failed or was not reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", nargs="*", help="names of steps; default: all")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"missing here: {', '.join(missing)}; its steps will fail: see make wheels")
    end = time.monotonic() + 60 * arguments.minutes
    planned = [step for step in steps() if not arguments.only or step.name in arguments.only]
    write(arguments.results, planned)

    def take(step: Step) -> None:
        share = 60 * (step.minutes or 12) * arguments.minutes / 12
        if (left := end - time.monotonic()) > 5:
            run(step, min(share, left), arguments.results)
            write(arguments.results, planned)
            print(f"{step.title}: {step.words}, {step.seconds:.0f} s", flush=True)

    for step in planned:
        if step.minutes is not None:
            take(step)
    with ThreadPoolExecutor() as pool:
        list(pool.map(take, [step for step in planned if step.minutes is None]))
    print(arguments.results / "report.md")
    return 0 if all(step.words == "done" for step in planned) else 1


def run(step: Step, limit: float, folder: Path) -> None:
    """Run a step in a process group of its own, which ends with its time; keep what it printed."""
    log = folder / f"{step.name}.log"
    environment = {**os.environ, "RESULTS": str(folder), "PYTHONUNBUFFERED": "1"}
    start = time.monotonic()
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.gpu.report.{step.name}"],
            cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit)
            step.words = "done" if code == 0 else f"ended with {code}"
        except subprocess.TimeoutExpired:
            step.words = f"ended after its {limit:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    step.seconds = round(time.monotonic() - start, 1)
    text = log.read_text(encoding="utf-8", errors="replace")
    step.found = rows.read(text)
    if step.words == "done" and failures(step.found):
        step.words = "done, with failures"
    if step.words.startswith("ended with"):
        step.found.append({"what": "its last words", "value": "failed", "detail": text[-4000:]})


def failures(found: list[dict]) -> list[dict]:
    """The rows that tell what went wrong."""
    return [row for row in found if "detail" in row and row["value"] != "skipped"]


def write(folder: Path, planned: list[Step]) -> None:
    """Write report.md and report.json, as far as it is known."""
    about = card.machine()
    found = {"machine": dict(about), "steps": [asdict(step) for step in planned]}
    (folder / "report.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    lines = ["# On a GPU", "", *(f"- {name}: {value}" for name, value in about), ""]
    lines += [f"## What an {card.card().name} should take", "", *table(list(plan.predictions()))]
    for step in planned:
        lines += [f"## {step.title}", "", f"{step.words}, {step.seconds:.0f} s", ""]
        lines += table(step.found)
        for row in failures(step.found):
            lines += [f"### {row['what']}", "", "```", row["detail"].strip(), "```", ""]
    (folder / "report.md").write_text("\n".join(lines), encoding="utf-8")


def table(found: list[dict]) -> list[str]:
    """Lay out rows; a column that none of them has is left out."""
    if not found:
        return []
    columns = list(dict.fromkeys(name for row in found for name in row if name != "detail"))
    columns = [name for name in columns if any(row.get(name) not in ("", None) for row in found)]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in columns) + " |" for row in found]
    return [*lines, ""]


if __name__ == "__main__":
    raise SystemExit(main())
