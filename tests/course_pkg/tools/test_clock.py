"""The clock of what is computed: the process's own on a CPU, the wall's on a GPU, waited for."""

import time

import pytest
import torch

from course_pkg.tools.clock import computing


def test_on_a_cpu_waiting_does_not_count():
    start, wall = computing(torch.device("cpu")), time.perf_counter()
    time.sleep(0.2)
    assert computing(torch.device("cpu")) - start < 0.1 < time.perf_counter() - wall


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_gpu_is_waited_for_before_the_clock_is_read(name, monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda place: done.append("cuda"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: done.append("mps"))
    before = time.perf_counter()
    assert computing(torch.device(name)) >= before
    assert done == [name]
