"""How fast this machine computes, measured with models of torch's own.

A notebook's budget is in seconds of the machine on which it was set. Another machine may be slower,
or busy: then the same work takes longer, and that says nothing about the notebook.
"""

import time

import torch
from torch import nn

# The mean of six measurements, 1.24 to 1.45, on a quiet processor with AVX-512, as budgets were set
# on. One with AVX2 alone took 2.0, and 1.5 (14_serving) to 1.9 times (11_llama) as long for
# notebooks.
REFERENCE = 1.3
STEPS = 100


def seconds() -> float:
    """Train a transformer's layer and a GRU on one thread; give the processor's time for it."""
    _train(2)  # the first steps of a process also load what they need
    started = time.process_time()
    _train(STEPS)
    return time.process_time() - started


def _train(steps: int) -> None:
    models = [nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), nn.GRU(64, 64)]
    X = torch.randn(32, 24, 64)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for model in models:
        optimiser = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            optimiser.zero_grad()
            output = model(X)
            (output if isinstance(output, torch.Tensor) else output[0]).square().mean().backward()
            optimiser.step()
    torch.set_num_threads(threads)


def slowness() -> float:
    """Return how many times as long as where the budgets were set computing takes here, now."""
    return seconds() / REFERENCE
