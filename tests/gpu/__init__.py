"""Tests that need a GPU; they import only what `make wheels` brings, and torch."""

import os

import pytest
import torch

# A run that asks for a GPU must say if there is none: then nothing is skipped.
_IS_WANTED = os.environ.get("COURSE_DEVICE") == "cuda"
needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() or _IS_WANTED),
        reason="no GPU: make test-gpu on a machine with one",
    ),
]
