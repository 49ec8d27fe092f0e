"""The engine: tokens per second for 1, 32 and 256 requests, beside transformers' generate."""

import time
from collections.abc import Callable

import torch

from course_pkg.data import small_llama
from course_pkg.inference.models import shipped
from course_pkg.inference.requests import Sampling
from course_pkg.serving import Engine
from tests.benchmarks.attention import DEVICE, ON_GPU
from tests.gpu.report.plan import SERVE, SMALL_SERVE
from tests.gpu.report.rows import attempt, row

SIZES = SERVE if ON_GPU else SMALL_SERVE
PROMPT, NEW = SIZES.prompt, SIZES.new


def timed(run: Callable[[], object]) -> tuple[float, object]:
    """Time the second of two runs; the first one compiles and warms up."""
    run()
    if ON_GPU:
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = run()
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def main() -> None:
    """Serve greedy requests of one length with both, on the same weights."""
    model = shipped("target").to(DEVICE)
    generator = torch.Generator().manual_seed(0)
    for count in SIZES.requests:
        prompts = torch.randint(256, (count, PROMPT), generator=generator)
        blocks = count * (PROMPT + NEW + 16) // 16 + 1
        tokens = count * NEW

        def ours(prompts=prompts, count=count, blocks=blocks) -> list[list[int]]:
            engine = Engine(model, blocks=blocks, block_size=16, most=count, budget=4096)
            found = engine.generate(prompts.tolist(), Sampling(max_tokens=NEW))
            return [each.tokens[0] for each in found]

        with attempt(f"engine, {count} requests"):
            seconds, own = timed(ours)
            predicted = f"at most {SIZES.rate(count):.0f}"
            row(f"engine, {count} requests", round(tokens / seconds), "tokens/s",
                predicted=predicted)  # fmt: skip
        with attempt(f"transformers' generate, {count} requests"):
            seconds, other = timed(by_transformers(prompts))
            same = sum(a == b for a, b in zip(own, other, strict=True))
            row(f"transformers' generate, {count} requests", round(tokens / seconds), "tokens/s",
                same_texts=f"{same} of {count}")  # fmt: skip


def by_transformers(prompts: torch.Tensor) -> Callable[[], list[list[int]]]:
    """Make a function that continues prompts with transformers' model, from the same files."""
    from transformers import LlamaForCausalLM

    folder = small_llama.FOLDER / "target"
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(DEVICE).eval()
    given = prompts.to(DEVICE)
    settings = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    settings |= {"eos_token_id": None, "pad_token_id": 0}

    def run() -> list[list[int]]:
        with torch.inference_mode():
            out = model.generate(given, attention_mask=torch.ones_like(given), **settings)
        return out[:, PROMPT:].tolist()

    return run


if __name__ == "__main__":
    main()
