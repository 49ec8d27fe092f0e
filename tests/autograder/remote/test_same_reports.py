"""Checks tell the same about an object of another process as about the same one in this."""

import gc
import zlib

import pytest
import torch

from autograder.alternatives import ALTERNATIVES
from autograder.mistakes import BUGS
from course_pkg.checking.registry import Exercise
from tests import across_the_wire as wire
from tests import untested
from tests.plain_kernel import Notebook


@pytest.fixture(scope="module")
def notebook():
    torch.set_num_threads(1)
    with wire.plain_kernel() as notebook:
        yield notebook


@pytest.mark.in_turn
@pytest.mark.parametrize("exercise", wire.EXERCISES, ids=lambda e: f"{e.module}.{e.name}")
def test_same_reports(exercise: Exercise, notebook: Notebook):
    """One bug and one alternative of each exercise, the same ones in every run; the others are
    compared by `make thorough`."""
    place = zlib.crc32(exercise.name.encode())
    bugs, alternatives = BUGS[exercise], ALTERNATIVES[exercise]
    bug, alternative = place % len(bugs), place % len(alternatives)
    wire.load_bug(exercise, bug, notebook)
    here, there = wire.both_reports(exercise, bugs[bug].solution, notebook)
    first, second = wire.told(here, there)
    assert first == second
    if there.why_not:  # no check of a kernel runs without Triton
        pytest.skip(untested.TRITON)
    assert not there.passed
    wire.load_alternative(exercise, alternative, notebook)
    here, there = wire.both_reports(exercise, alternatives[alternative], notebook)
    first, second = wire.told(here, there)
    assert first == second
    assert there.passed
    gc.collect()  # every parameter that lives costs each later request
