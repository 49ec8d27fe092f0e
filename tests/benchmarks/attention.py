"""Measure the course's code side by side with torch's, and write a table.

    python -m tests.benchmarks.attention [--rounds 20] [--output tests/benchmarks/attention.md]

What is compared takes turns, so other work on the machine affects all equally; the table has the
medians. On a GPU that is the time between two events, with other content put into the fast memory
before; on a CPU, processor time of one thread, on small sizes and without the Triton kernels.
"""

import argparse
import datetime
import functools
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.attention import causal_mask, masked_softmax
from course_pkg.flash_kernels import (
    flash_attention_forward,
    triton_flash_forward,
    triton_paged_decode,
)
from course_pkg.kv_cache import CachedWriter
from course_pkg.lstm import LSTM
from course_pkg.paged_attention import paged_attention
from course_pkg.tools import launch
from course_pkg.tools.threads import one_thread
from course_pkg.tools.train import device

DEVICE = device()
ON_GPU = DEVICE.type == "cuda"
COMPILED = ON_GPU and launch.why_not() is None
DTYPE = torch.float16 if ON_GPU else torch.float32
COPY = 2**30 if ON_GPU else 2**26  # bytes

Runs = dict[str, Callable[[], object]]


def medians(runs: Runs, rounds: int) -> dict[str, float]:
    """Time functions in turn; the first three rounds do not count.

    Returns:
        The median of each, in seconds.
    """
    kept = {name: [] for name in runs}
    for number in range(rounds + 3):
        for name, run in runs.items():
            seconds = _on_gpu(run) if ON_GPU else _on_cpu(run)
            if number >= 3:
                kept[name].append(seconds)
    return {name: statistics.median(times) for name, times in kept.items()}


@functools.cache
def _other_content() -> Tensor:
    # Large enough that the processor has launched what is timed before the GPU has written it.
    return torch.empty(2**30, dtype=torch.uint8, device=DEVICE)


def _on_gpu(run: Callable[[], object]) -> float:
    _other_content().zero_()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def _on_cpu(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(DTYPE)


def attention() -> tuple[str, Runs]:
    """Causal attention: as in 05, tile by tile, the Triton kernel, and torch's."""
    B, H, T, D_h = (4, 16, 4096, 64) if ON_GPU else (1, 4, 512, 64)
    Q, K, V = normal(3, B, H, T, D_h)
    mask = causal_mask(T).to(DEVICE)
    runs = {
        "torch's scaled_dot_product_attention": lambda: functional.scaled_dot_product_attention(
            Q, K, V, is_causal=True
        ),
        "with all weights": lambda: masked_softmax(Q @ K.mT / D_h**0.5, mask) @ V,
        "tile by tile in torch": lambda: flash_attention_forward(Q, K, V, True, 128, 128),
    }
    if COMPILED:
        runs["Triton kernel"] = lambda: triton_flash_forward(Q, K, V, True)
    return f"Causal attention, B {B}, H {H}, T {T}, D_h {D_h}", runs


def paged() -> tuple[str, Runs, int]:
    """Decode one token: paged, gathered first, and torch's on memory that lies together.

    Returns:
        A title, what to time, and the bytes of keys and values that are in use.
    """
    B, H, G, S, D_h, M = (32, 32, 8, 16, 128, 1024) if ON_GPU else (8, 8, 2, 16, 64, 64)
    Q = normal(B, H, D_h)
    K, V = normal(2, G, B * M, S, D_h)
    tables = torch.randperm(B * M, device=DEVICE).view(B, M)
    lengths = torch.full((B,), M * S, device=DEVICE)

    def attend(keys: Tensor, values: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(Q[:, :, None], keys, values, enable_gqa=True)

    def gather(X: Tensor) -> Tensor:
        return X[:, tables].flatten(2, 3).transpose(0, 1)  # (B, G, M · S, D_h)

    together = gather(K).contiguous(), gather(V).contiguous()
    runs = {
        "torch's attention, memory in one piece": lambda: attend(*together),
        "gathered, then torch's attention": lambda: attend(gather(K), gather(V)),
        "paged_attention": lambda: paged_attention(Q[:, None], K, V, tables, lengths, at_once=16),
    }
    if COMPILED:
        runs["Triton kernel"] = lambda: triton_paged_decode(Q, K, V, tables, lengths)
    source = torch.empty(COPY, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    runs["a copy, for comparison"] = lambda: target.copy_(source)
    title = f"Paged decode, B {B}, H {H}, G {G}, D_h {D_h}, {M * S} positions in blocks of {S}"
    return title, runs, 2 * B * M * S * G * D_h * Q.element_size()


def cached() -> tuple[str, Runs]:
    """Write tokens with and without a cache."""
    D, H, L, prompt, count = (512, 8, 8, 512, 256) if ON_GPU else (128, 4, 2, 64, 64)
    model = CachedWriter(256, prompt + count, D, H, L).to(DEVICE).eval()
    tokens = torch.randint(0, 256, (4, prompt), device=DEVICE)
    runs = {
        "without a cache": lambda: model.sample(tokens, count),
        "with a cache": lambda: model.generate_with_cache(tokens, count),
    }
    return f"Writing {count} tokens after {prompt}, D {D}, L {L}, 4 texts", runs


def recurrent() -> tuple[str, Runs]:
    """An LSTM over a batch, forward and back."""
    B, T, D, H = (64, 256, 256, 512) if ON_GPU else (16, 64, 32, 64)
    X = torch.randn(B, T, D, device=DEVICE)
    own, torchs = LSTM(D, H).to(DEVICE), nn.LSTM(D, H, batch_first=True).to(DEVICE)
    runs = {
        "torch.nn.LSTM": lambda: torchs(X)[0].sum().backward(),
        "LSTM": lambda: own(X)[0].sum().backward(),
    }
    return f"LSTM, forward and back, B {B}, T {T}, D {D}, H {H}, float32", runs


def table(title: str, times: dict[str, float], moved: dict[str, int] | None = None) -> list[str]:
    """Lay out medians, their ratio to the first, and how many bytes were moved in a second."""
    lines = [f"## {title}", "", "| | median, ms | times the first |", "|---|---:|---:|"]
    first = next(iter(times.values()))
    for name, seconds in times.items():
        lines.append(f"| {name} | {1e3 * seconds:.3f} | {seconds / first:.2f} |")
    if moved:
        rates = {name: size / times[name] for name, size in moved.items()}
        fastest = rates["a copy, for comparison"]
        lines += ["", "| | GB/s | share of the copy's |", "|---|---:|---:|"]
        for name, rate in rates.items():
            lines.append(f"| {name} | {rate / 1e9:.1f} | {100 * rate / fastest:.0f} % |")
    return [*lines, ""]


def machine() -> list[str]:
    """Say where, when and with which versions this was measured."""
    where = torch.cuda.get_device_name() if ON_GPU else f"CPU ({platform.machine()}), one thread"
    triton = launch.triton.__version__ if launch.triton is not None else "none"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, Triton {triton}"
    left_out = "" if COMPILED else " The Triton kernels are left out: they need a GPU."
    return [
        "# Attention and its relatives, measured",
        "",
        f"{where}; {versions}; {datetime.date.today()}. Numbers are {str(DTYPE)[6:]} unless said "
        f"otherwise.{left_out} Made by `python -m tests.benchmarks.attention`.",
        "",
    ]


def main() -> None:
    """Measure all, and print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path, help="a Markdown file; default: print it")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    lines = machine()
    with one_thread():
        with torch.no_grad():
            title, runs = attention()
            lines += table(title, medians(runs, arguments.rounds))
            title, runs, size = paged()
            moved = dict.fromkeys(runs, size) | {"a copy, for comparison": 2 * COPY}
            lines += table(title, medians(runs, arguments.rounds), moved)
            del runs
        title, runs = cached()
        lines += table(title, medians(runs, max(1, arguments.rounds // 4)))
        title, runs = recurrent()
        lines += table(title, medians(runs, arguments.rounds))
    text = "\n".join(lines).rstrip() + "\n"
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
