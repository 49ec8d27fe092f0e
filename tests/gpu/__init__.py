"""Tests that need a GPU; they import only what `make wheels` brings, and torch.

With COURSE_DEVICE=cpu they are rehearsed on a CPU, on small sizes.
"""

import os

import pytest
import torch

from course_pkg.tools.train import device

# A run that asks for a device must say if there is none: then nothing is skipped.
_IS_WANTED = "COURSE_DEVICE" in os.environ
needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() or _IS_WANTED),
        reason="no GPU: make test-gpu on a machine with one",
    ),
]


def place() -> torch.device:
    """Where these tests compute; asked for only when one of them runs."""
    return device()
