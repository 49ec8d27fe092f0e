"""The engines: tokens per second, beside transformers' generate with the same weights."""

import random
import time
from collections.abc import Callable

import torch

from course_pkg.data import small_llama
from course_pkg.inference.models import shipped
from course_pkg.inference.requests import Sampling
from course_pkg.inference.tuned import TunedEngine
from course_pkg.serving import Engine
from tests.benchmarks.attention import DEVICE, ON_GPU
from tests.gpu.report.plan import SERVE, SMALL_SERVE
from tests.gpu.report.rows import attempt, row

SIZES = SERVE if ON_GPU else SMALL_SERVE
AT_ONCE = 32  # prompts that transformers continues together, padded, where lengths differ

Requests = list[tuple[list[int], int]]  # each a prompt and how many tokens it wants


def equal(count: int, seed: int) -> Requests:
    """Draw requests of one length."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(256) for _ in range(SIZES.prompt)] for _ in range(count)]
    return [(prompt, SIZES.new) for prompt in prompts]


def ragged(count: int, seed: int) -> Requests:
    """Draw requests of any lengths up to those."""
    draw = random.Random(seed)
    whole = equal(count, seed)
    return [(prompt[: draw.randint(4, len(prompt))], draw.randint(4, new)) for prompt, new in whole]


def by_engine(kind: type, model: object, count: int) -> Callable[[Requests], list[list[int]]]:
    """Make a function that serves requests with an engine."""
    blocks = count * ((SIZES.prompt + SIZES.new) // 16 + 1)
    engine = kind(model, blocks=blocks, block_size=16, most=count, budget=4096)

    def run(requests: Requests) -> list[list[int]]:
        each = [Sampling(max_tokens=wanted) for _, wanted in requests]
        found = engine.generate([prompt for prompt, _ in requests], each)
        return [output.tokens[0] for output in found]

    return run


def by_transformers() -> Callable[[Requests], list[list[int]]]:
    """Make a function that serves requests with transformers' model, from the same files."""
    from transformers import LlamaForCausalLM

    folder = small_llama.FOLDER / "target"
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(DEVICE).eval()

    def together(requests: Requests) -> list[list[int]]:
        longest = max(len(prompt) for prompt, _ in requests)
        padding = [longest - len(prompt) for prompt, _ in requests]
        given = [[0] * n + prompt for n, (prompt, _) in zip(padding, requests, strict=True)]
        mask = [[0] * n + [1] * (longest - n) for n in padding]
        new = max(wanted for _, wanted in requests)
        settings = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
        settings |= {"eos_token_id": None, "pad_token_id": 0}
        place = {"device": DEVICE}
        with torch.inference_mode():
            out = model.generate(
                torch.tensor(given, **place), attention_mask=torch.tensor(mask, **place), **settings
            )
        found = out[:, longest:].tolist()
        return [each[:wanted] for each, (_, wanted) in zip(found, requests, strict=True)]

    def run(requests: Requests) -> list[list[int]]:
        is_equal = len({(len(prompt), wanted) for prompt, wanted in requests}) == 1
        size = len(requests) if is_equal else AT_ONCE
        parts = [requests[n : n + size] for n in range(0, len(requests), size)]
        return [tokens for part in parts for tokens in together(part)]

    return run


def main() -> None:
    """Serve the same requests with all, each of which has served others before."""
    model = shipped("target").to(DEVICE)
    theirs = by_transformers()
    kinds = {"requests": equal, "ragged requests": ragged}
    cases = [(name, count) for name in kinds for count in SIZES.requests]
    for name, count in [case for case in cases if case != ("ragged requests", 1)]:
        texts: dict[str, list[list[int]]] = {}
        runs = {"transformers' generate": None, "engine": Engine, "tuned engine": TunedEngine}
        for who, kind in runs.items():
            with attempt(f"{who}, {count} {name}"):
                run = by_engine(kind, model, count) if kind else theirs
                run(kinds[name](count, seed=1))
                start = time.perf_counter()
                texts[who] = run(kinds[name](count, seed=0))
                seconds = time.perf_counter() - start
                first = next(iter(texts.values()))
                same = sum(a == b for a, b in zip(texts[who], first, strict=True))
                tokens = sum(map(len, texts[who]))
                row(f"{who}, {count} {name}", round(tokens / seconds), "tokens/s",
                    same_texts=f"{same} of {count}")  # fmt: skip


if __name__ == "__main__":
    main()
