"""Choose the sides of tiles and the numbers of warps by trying; keep the best of each kernel."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import torch

from course_pkg.tools import tiles
from tests.benchmarks.attention import ON_GPU, medians
from tests.gpu.report.rows import attempt, row

CHOICES = {
    "flash": (
        {"ROWS": 64, "COLUMNS": 32, "num_warps": 4, "num_stages": 4},
        {"ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 2},
        {"ROWS": 64, "COLUMNS": 128, "num_warps": 4, "num_stages": 2},
        {"ROWS": 128, "COLUMNS": 32, "num_warps": 8, "num_stages": 3},
        {"ROWS": 128, "COLUMNS": 64, "num_warps": 8, "num_stages": 3},
        {"ROWS": 128, "COLUMNS": 128, "num_warps": 8, "num_stages": 3},
    ),
    # Loads whose addresses are loaded first are one tile ahead with 3 stages, two with 5.
    "paged": (
        {"COLUMNS": 64, "num_warps": 4, "num_stages": 5, "programs": 2},
        {"COLUMNS": 128, "num_warps": 4, "num_stages": 3, "programs": 2},
        {"COLUMNS": 128, "num_warps": 8, "num_stages": 5, "programs": 2},
        {"COLUMNS": 64, "num_warps": 4, "num_stages": 5, "programs": 1},
        {"COLUMNS": 128, "num_warps": 4, "num_stages": 5, "programs": 1},
        {"COLUMNS": 64, "num_warps": 4, "num_stages": 5, "programs": 4},
        {"COLUMNS": 32, "num_warps": 4, "num_stages": 5, "programs": 4},
        {"COLUMNS": 128, "num_warps": 4, "num_stages": 3, "programs": 4},
        {"COLUMNS": 64, "num_warps": 4, "num_stages": 3, "programs": 8},
    ),
}


def tune(kernel: str, dtype: torch.dtype, run: Callable[[], object]) -> None:
    """Try all choices for a kernel, keep the fastest for the rest of this process, and store it.

    Without a GPU there is nothing to choose.

    Args:
        kernel: "flash" or "paged".
        dtype: the type of the numbers that `run` gives it.
        run: calls the kernel.
    """
    if not ON_GPU:
        return
    table, name = tiles.table(), tiles.key(kernel, dtype)
    took = {}
    for choice in (table[name], *CHOICES[kernel]):
        table[name] = choice
        with attempt(f"tune {name}: {choice}"):
            run()  # compiles
            took[json.dumps(choice)] = medians({"": run}, rounds=10)[""]
            row(f"tune {name}: {choice}", 1e3 * took[json.dumps(choice)], "ms")
    if not took:
        return
    best = min(took, key=took.__getitem__)
    table[name] = json.loads(best)
    table["card"] = torch.cuda.get_device_name()
    row(f"tune {name}: kept", best)
    if folder := os.environ.get("RESULTS"):
        _store(Path(folder) / "tiles.json")


def _store(path: Path) -> None:
    """Write the table, with what other steps have tuned; it takes the place of tiles.FILE."""
    known = json.loads(path.read_text()) if path.exists() else {}
    found = tiles.table()
    tuned = {name for name in found if found[name] != json.loads(tiles.FILE.read_text())[name]}
    merged = {**found, **{name: value for name, value in known.items() if name not in tuned}}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in merged.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
