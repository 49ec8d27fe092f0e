"""Measure one decoding step of the paged engine beside one of contiguous memory.

    python tests/benchmarks/paged_decode.py

The same prompts, the same batch, float32, one thread; steps of the two alternate, so that other
work on the machine affects both equally. Paged decoding should take at most 1.2 times as long.
"""

import argparse
import random
import statistics
import time

import torch

from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.inference.contiguous import ContiguousEngine
from course_pkg.inference.models import ServedLlama
from course_pkg.llama import Llama
from course_pkg.serving import Engine
from course_pkg.tools.threads import one_thread

LIMIT = 1.2


def measure(batch: int, longest: int, block_size: int, steps: int) -> tuple[float, float]:
    """Time steps of both engines on sequences of random lengths.

    Returns:
        The medians of both, paged and contiguous, in seconds of CPU time.
    """
    torch.manual_seed(0)
    model = ServedLlama(Llama(V=256, D=512, H=8, G=2, L=4), longest)
    numbers = random.Random(0)
    lengths = [numbers.randrange(longest // 4, longest - steps - 2) for _ in range(batch)]
    prompts = [[numbers.randrange(256) for _ in range(length)] for length in lengths]
    paged = Engine(model, EngineConfig(batch * longest // block_size, block_size))
    contiguous = ContiguousEngine(model, batch * longest, longest, continuous=True)
    for number, prompt in enumerate(prompts):
        paged.add(prompt, SamplingParams(max_tokens=steps + 2))
        contiguous.waiting.append((number, list(prompt), len(prompt) + steps + 2))
    times = [], []
    for step in range(steps + 1):
        for engine, kept in zip((paged, contiguous), times, strict=True):
            start = time.process_time()
            engine.step()
            if step > 0:  # the first step reads the prompts
                kept.append(time.process_time() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> int:
    """Print a table; return 1 if paging is too slow."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    worst = 0.0
    print("batch  up to tokens  blocks of  paged ms  contiguous ms  ratio")
    with one_thread():
        for batch, longest in ((8, 256), (16, 256), (16, 512)):
            paged, contiguous = measure(batch, longest, 16, arguments.steps)
            worst = max(worst, paged / contiguous)
            print(
                f"{batch:5}{longest:14}{16:11}{1e3 * paged:10.1f}{1e3 * contiguous:15.1f}"
                f"{paged / contiguous:7.2f}"
            )
    print(f"the largest ratio is {worst:.2f}; it should be at most {LIMIT}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
