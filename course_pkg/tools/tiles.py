"""The sides of tiles and the numbers of warps and stages with which kernels are compiled for a GPU.

They are a table, `tiles.json`. Its "card" is the GPU on which `make gpu-report` has tuned it, or
null for guesses. "programs" is how many programs of a paged kernel each multiprocessor gets.
"""

import functools
import json
from pathlib import Path

import torch

FILE = Path(__file__).with_name("tiles.json")


@functools.cache
def table() -> dict[str, dict[str, int]]:
    """The table, which tuning changes in place."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def key(kernel: str, dtype: torch.dtype) -> str:
    """Name the row of a kernel, "flash" or "paged", for numbers of a type."""
    return f"{kernel}, {dtype.itemsize} bytes"


def tiles(kernel: str, dtype: torch.dtype) -> dict[str, int]:
    """Give the settings of a kernel for numbers of a type."""
    return dict(table()[key(kernel, dtype)])
