"""A clock for what is computed on a CPU or on a GPU."""

import time

import torch


def computing(place: torch.device) -> float:
    """Read a clock, in seconds: two readings tell how long a device has computed.

    On a CPU it is the processor time of this process, in which other programs do not count. A GPU
    works on while the process goes ahead: it is waited for, and the time is that on the wall.

    Args:
        place: the device that computes.
    """
    if place.type == "cpu":
        return time.process_time()
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    elif place.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
