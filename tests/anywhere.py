"""Does what is committed depend on the machine? Run everything as if on others, and compare.

    make anywhere                              all of it: an hour or two
    python -m tests.anywhere --only fresh      one part
    PYTHON313=python3.13 make anywhere         with a second Python as well

It writes the table to tests/anywhere.md. A run that was stopped goes on where it was, as long as
nothing has been changed since. Freshness runs with every kind of processor that torch can
imitate here and with 1, 2 and 4 threads, and once with other last bits (`tests.rounding`); the
scoreboard and the notebooks run with three of these. Each run has a locale, a time zone and a hash
seed of its own, and two busy loops beside it.
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import torch

from autograder.assignment import ROOT, assignments

BUILD = ROOT / "build" / "anywhere"
TABLE = ROOT / "tests" / "anywhere.md"
PARTS = ("fresh", "score", "notebooks")
THREADS = (1, 2, 4)
ZONES = ("UTC", "Asia/Kathmandu", "America/St_Johns")
BUSY_LOOPS = 2
COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of what failed in a notebook


@dataclass
class Setting:
    """A machine to imitate, and what differed on it."""

    name: str
    variables: dict[str, str]
    parts: tuple[str, ...]
    python: str = sys.executable
    inside: tuple[str, ...] = ()  # the module that runs the commands, and imitates something
    found: dict[str, str] = field(default_factory=dict)  # what came out of each part, in a word
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main() -> int:
    """Run all settings, write the table, and return 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    chosen = parser.parse_args().only
    results = prepare()
    found = [setting for setting in settings() if set(setting.parts) & set(chosen)]
    with busy():
        for number, setting in enumerate(found, 1):
            print(f"{number} of {len(found)}: {setting.name}", flush=True)
            for part in (part for part in setting.parts if part in chosen):
                try_part(setting, part, results)
                print(f"  {part}: {setting.found[part]}", flush=True)
            for difference in setting.differences:
                print(f"  {difference}", flush=True)
    report = table(found)
    print("\n" + report)
    if set(chosen) == set(PARTS):
        TABLE.write_text(report, encoding="utf-8")
    return 1 if any(setting.differences for setting in found) else 0


def prepare() -> Path:
    """Give the file of what came out so far, and forget results of another state of the course."""
    BUILD.mkdir(parents=True, exist_ok=True)
    results = BUILD / "results.json"
    head, changes = (
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True).stdout
        for command in (["rev-parse", "HEAD"], ["status", "--porcelain"])
    )
    known = json.loads(results.read_text()) if results.exists() else {}
    if changes or not head or known.get("commit") != head:
        results.write_text(json.dumps({"commit": head}))
        (BUILD / "scoreboard.json").unlink(missing_ok=True)
    return results


def try_part(setting: Setting, part: str, results: Path) -> None:
    """Run a part on a machine, unless its result is there already."""
    known = json.loads(results.read_text())
    name = f"{part}, {setting.name}"
    if name not in known:
        start = time.perf_counter()
        found, differences = globals()[part](setting)
        known[name] = [found, differences, time.perf_counter() - start]
        results.write_text(json.dumps(known))
    setting.found[part], differences, seconds = known[name]
    setting.differences += differences
    setting.seconds += seconds


def settings() -> list[Setting]:
    """List the machines: every processor with every number of threads, and another Python."""
    locales = [{"LC_ALL": "C.UTF-8"}, another_locale()]
    processors = {"default": "default", "avx2": "avx2", "this one": ""}
    if platform.machine().lower() not in ("x86_64", "amd64"):
        processors = {"this one": ""}
    found = []
    pairs = itertools.product(processors.items(), THREADS)
    for number, ((processor, capability), threads) in enumerate(pairs):
        variables = {
            "ATEN_CPU_CAPABILITY": capability,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONHASHSEED": str(number),
            "TZ": ZONES[number % len(ZONES)],
            **locales[number % len(locales)],
        }
        # Every processor and every number of threads once, the widest with one thread.
        is_whole = list(processors)[::-1].index(processor) == THREADS.index(threads)
        name = f"{processor}, {threads} threads, {variables['LC_ALL']}, {variables['TZ']}"
        found.append(Setting(name, variables, PARTS if is_whole else PARTS[:1]))
    found.append(
        Setting("another rounding", {"OMP_NUM_THREADS": "1"}, PARTS[:1], inside=("tests.rounding",))
    )
    if other := os.environ.get("PYTHON313"):
        folder = BUILD / "python"
        subprocess.run(
            [other, "autograder/classroom/environment.py", str(folder)], cwd=ROOT, check=True
        )
        variables = {"OMP_NUM_THREADS": "1", **locales[1]}
        python = str(folder / "bin" / "python")
        version = subprocess.check_output([python, "--version"], text=True).strip()
        found.append(Setting(version, variables, PARTS, python))
    return found


def another_locale() -> dict[str, str]:
    """Make a Turkish locale, with decimal commas and two pairs of i; failing that, name C."""
    folder = BUILD / "locale"
    folder.mkdir(parents=True, exist_ok=True)
    name = "tr_TR.UTF-8"
    with contextlib.suppress(FileNotFoundError):
        made = ["localedef", "-i", "tr_TR", "-f", "UTF-8", str(folder / name)]
        if subprocess.run(made, capture_output=True).returncode == 0:
            return {"LC_ALL": name, "LOCPATH": str(folder)}
    return {"LC_ALL": "C"}


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Keep two processors busy with nothing."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_LOOPS)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def fresh(setting: Setting) -> tuple[str, list[str]]:
    """Compare the generated files with what would be built, half of the assignments at a time."""

    def half(number: int) -> list[str]:
        names = [assignment.name for assignment in assignments()[number::2]]
        done = run(setting, "autograder", "build", "--check", *names)
        stale = [line for line in done.stderr.splitlines() if "stale" in line]
        return stale or [done.stderr.strip()[-500:]] * (done.returncode != 0)

    with ThreadPoolExecutor(2) as pool:
        stale = [line for lines in pool.map(half, (0, 1)) for line in lines]
    return f"{len(stale)} stale" if stale else "fresh", stale


def score(setting: Setting) -> tuple[str, list[str]]:
    """Compare the scoreboard with the first one that was made."""
    first = BUILD / "scoreboard.json"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scoreboard.json")
        done = run(setting, "autograder", "score", "--jobs", "2", "--json", str(path))
        rows = json.loads(path.read_text()) if path.exists() else []
    for row in rows:
        del row["seconds"]
    if not first.exists():
        first.write_text(json.dumps(rows))
    expected = {row["exercise"]: row for row in json.loads(first.read_text())}
    other = [row["exercise"] for row in rows if row != expected.get(row["exercise"])]
    differences = [f"another row of the scoreboard: {name}" for name in other]
    if done.returncode:
        differences.append(done.stdout.partition("Not good enough:")[2].strip()[:500])
    return "as elsewhere" if rows and not differences else "differs", differences


def notebooks(setting: Setting) -> tuple[str, list[str]]:
    """Run the solved notebooks, each cell a test: marked outputs as stored, all claims true."""

    def one(assignment) -> list[str]:
        where = str(assignment.solved)
        done = run(setting, "pytest", "--nbval-lax", "-p", "no:cacheprovider", "-rN",
                   "--nbval-cell-timeout=1200", "--tb=short", where)  # fmt: skip
        if done.returncode == 0:
            return []
        shown = COLOURS.sub("", done.stdout)
        claims = re.findall(r"ClaimFailed: (.*)", shown)
        return [f"{assignment.name}: {text}" for text in claims or shown.splitlines()[-1:]]

    with ThreadPoolExecutor(2) as pool:
        failures = list(pool.map(one, assignments()))
    differences = [line for lines in failures for line in dict.fromkeys(lines)]
    return f"{sum(not lines for lines in failures)} of {len(failures)}", differences


def run(setting: Setting, *command: str) -> subprocess.CompletedProcess:
    """Run a module of Python as on the machine of a setting."""
    variables = {**os.environ, "COURSE_DEVICE": "cpu", **setting.variables}
    variables = {name: value for name, value in variables.items() if value}
    return subprocess.run(
        [setting.python, "-m", *setting.inside, *command],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def table(found: list[Setting]) -> str:
    """Lay out what came out on each machine, and below it what differed."""
    lines = [
        "# The same on any machine",
        "",
        f"{processor()}, {os.cpu_count()} processors, {platform.system()}; Python "
        f"{platform.python_version()}, torch {torch.__version__}; {date.today()}. Two busy loops "
        "ran beside it. Made by `make anywhere`.",
        "",
        "| imitated | generated files | scoreboard | notebooks | minutes |",
        "|---|---|---|---|---:|",
    ]
    for setting in found:
        cells = [setting.found.get(part, "") for part in PARTS]
        lines.append(f"| {' | '.join([setting.name, *cells])} | {setting.seconds / 60:.0f} |")
    differences = [f"- {s.name}: {text}" for s in found for text in s.differences]
    return "\n".join([*lines, "", *(differences or ["Nothing differed."])]) + "\n"


def processor() -> str:
    """Name the processor as the system does, with what torch uses of it."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        model = names[0] if names else model
    return f"{model} ({torch.backends.cpu.get_cpu_capability()})"


if __name__ == "__main__":
    sys.exit(main())
