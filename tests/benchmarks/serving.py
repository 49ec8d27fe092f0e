"""Serve the same requests with the engines and with what people use, on the same weights.

    python -m tests.benchmarks.serving [--count 32] [--rounds 3] [--output FILE]

All choose the best token, so that the texts are the same, which is checked. On a CPU, time is the
processor time of one thread, so that other work on the machine counts little; the best of some
rounds counts, in which all take turns, after one that does not count.
"""

import argparse
import datetime
import functools
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from course_pkg.data import pretrained
from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.inference.models import shipped
from course_pkg.inference.tuned import GatheredAttention, TunedEngine, TunedLlama
from course_pkg.serving import Engine
from course_pkg.tools.threads import one_thread
from tests.benchmarks.attention import DEVICE, ON_GPU

TOGETHER = 32  # requests that `generate` continues at once, padded, where their lengths differ

Requests = list[tuple[list[int], int]]  # each a prompt and how many tokens it wants
Serve = Callable[[Requests], list[list[int]]]


def equal(count: int, prompt: int, new: int, seed: int) -> Requests:
    """Draw requests of one length."""
    draw = random.Random(seed)
    return [([draw.randrange(256) for _ in range(prompt)], new) for _ in range(count)]


def ragged(count: int, prompt: int, new: int, seed: int) -> Requests:
    """Draw requests of any lengths up to those."""
    draw = random.Random(seed)
    whole = equal(count, prompt, new, seed)
    return [(tokens[: draw.randint(4, prompt)], draw.randint(4, new)) for tokens, new in whole]


def shared(count: int, prompt: int, new: int, seed: int) -> Requests:
    """Draw requests that begin with the same three quarters of a prompt."""
    (beginning, _), *whole = equal(count + 1, prompt, new, seed)
    cut = 3 * prompt // 4
    return [(beginning[:cut] + tokens[cut:], new) for tokens, new in whole]


WORKLOADS = {"of one length": equal, "of all lengths": ragged, "with one beginning": shared}


def now() -> float:
    """Read the clock: of a GPU's machine, or of what a processor has done."""
    return time.perf_counter() if ON_GPU else time.process_time()


def by_engine(
    kind: type[Engine],
    model: Any,
    count: int,
    longest: int,
    change: Callable[[Engine], None] | None = None,
) -> Serve:
    """Make a function that serves requests with an engine, of which a part may be exchanged."""
    limits = {"max_num_seqs": count, "max_num_batched_tokens": max(512, 16 * count)}
    engine = kind(model, EngineConfig(count * (longest // 16 + 2), 16, **limits))
    if change is not None:
        change(engine)

    def serve(requests: Requests) -> list[list[int]]:
        each = [SamplingParams(max_tokens=wanted) for _, wanted in requests]
        found = engine.generate([prompt for prompt, _ in requests], each)
        return [output.tokens[0] for output in found]

    return serve


def their_model() -> Any:
    """Load the same weights with transformers."""
    import transformers

    transformers.logging.set_verbosity_error()
    folder = pretrained.FOLDER / "llama" / "target"
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.to(DEVICE).eval()


def by_generate(model: Any) -> Serve:
    """Make a function that serves requests with `generate`, padded on the left where it must be."""

    def together(requests: Requests) -> list[list[int]]:
        longest = max(len(prompt) for prompt, _ in requests)
        padding = [longest - len(prompt) for prompt, _ in requests]
        given = [[0] * n + prompt for n, (prompt, _) in zip(padding, requests, strict=True)]
        mask = [[0] * n + [1] * (longest - n) for n in padding]
        new = max(wanted for _, wanted in requests)
        settings = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
        settings |= {"eos_token_id": None, "pad_token_id": 0}
        settings["attention_mask"] = torch.tensor(mask, device=DEVICE)
        with torch.inference_mode():
            out = model.generate(torch.tensor(given, device=DEVICE), **settings)
        found = out[:, longest:].tolist()
        return [each[:wanted] for each, (_, wanted) in zip(found, requests, strict=True)]

    def serve(requests: Requests) -> list[list[int]]:
        is_equal = len({(len(prompt), wanted) for prompt, wanted in requests}) == 1
        size = len(requests) if is_equal else TOGETHER
        parts = [requests[n : n + size] for n in range(0, len(requests), size)]
        return [tokens for part in parts for tokens in together(part)]

    return serve


def by_generate_batch(model: Any, count: int, longest: int) -> Serve:
    """Make a function that serves requests with transformers' own continuous batching."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    blocks = ContinuousBatchingConfig(
        page_size=16, num_blocks=count * (longest // 16 + 2), max_batch_tokens=max(512, 16 * count)
    )

    def serve(requests: Requests) -> list[list[int]]:
        new = max(wanted for _, wanted in requests)
        settings = GenerationConfig(
            max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        found = model.generate_batch(
            [prompt for prompt, _ in requests],
            generation_config=settings,
            continuous_batching_config=blocks,
            progress_bar=False,
        )
        # It knows one number of new tokens for all; the rest is cut off.
        texts = [list(each.generated_tokens) for each in found.values()]
        return [each[:wanted] for each, (_, wanted) in zip(texts, requests, strict=True)]

    return serve


def measure(
    runs: dict[str, Serve], draw: Callable[[int], Requests], rounds: int
) -> dict[str, tuple[float, int]]:
    """Serve requests with all, in turn; other ones in each round, since engines remember prompts.

    Args:
        runs: what serves.
        draw: draws requests from a seed.
        rounds: how many count.
    Returns:
        For each the tokens per second, and how many texts are not those of the first.
    """
    found: dict[str, tuple[float, int]] = dict.fromkeys(runs, (0.0, 0))
    for number in range(rounds + 1):
        requests, first = draw(number), None
        for name, serve in runs.items():
            start = now()
            texts = serve(requests)
            seconds = now() - start
            first = first or texts
            best, others = found[name]
            others += sum(own != other for own, other in zip(texts, first, strict=True))
            rate = sum(map(len, texts)) / seconds if number else 0.0
            found[name] = max(best, rate), others
    return found


def peers(model: Any, theirs: Any, count: int, longest: int) -> dict[str, Serve]:
    """Make all that serve, for at most so many requests of so many tokens."""
    runs = {
        "transformers' generate": by_generate(theirs),
        "transformers' generate_batch": by_generate_batch(theirs, count, longest),
        "Engine": by_engine(Engine, model, count, longest),
        "TunedEngine": by_engine(TunedEngine, model, count, longest),
    }
    return runs


def steps(model: Any, count: int, longest: int) -> dict[str, Serve]:
    """Make engines with more and more of what is tuned."""

    def larger_products(engine: Engine) -> None:
        engine.runner.model = TunedLlama(model)

    def gathered_keys(engine: Engine) -> None:
        larger_products(engine)
        engine.runner.attention = GatheredAttention()

    changes = {"Engine": None, "and larger products": larger_products}
    if not ON_GPU:
        changes["and gathered keys"] = gathered_keys
    runs = {
        name: by_engine(Engine, model, count, longest, change) for name, change in changes.items()
    }
    last = "and graphs, and tokens chosen at once" if ON_GPU else "and tokens chosen at once"
    return runs | {last: by_engine(TunedEngine, model, count, longest)}


def main() -> None:
    """Measure all workloads, and print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a Markdown file; default: print it")
    given = parser.parse_args()
    where = torch.cuda.get_device_name() if ON_GPU else f"CPU ({platform.machine()}), one thread"
    lines = ["# Serving, measured", ""]
    lines += [
        f"{where}; Python {platform.python_version()}, torch {torch.__version__}; "
        f"{datetime.date.today()}. {given.count} requests at once, prompts of up to {given.prompt} "
        f"tokens, up to {given.new} new ones, the course's target in float32. Made by "
        "`python -m tests.benchmarks.serving`.",
        "",
    ]
    with one_thread():
        model, theirs = shipped("target").to(DEVICE), their_model()
        sizes = given.count, given.prompt + given.new
        tables = {f"Requests {name}": (draw, peers) for name, draw in WORKLOADS.items()}
        tables["What each step of tuning brings"] = ragged, steps
        for title, (draw, make) in tables.items():
            runs = make(model, theirs, *sizes) if make is peers else make(model, *sizes)
            requests = functools.partial(draw, given.count, given.prompt, given.new)
            found = measure(runs, requests, given.rounds)
            first, (base, _) = next(iter(found.items()))
            lines += [f"## {title}", ""]
            lines += [
                f"| | tokens per second | times {first} | other texts |",
                "|---|---:|---:|---:|",
            ]
            for who, (rate, others) in found.items():
                lines.append(f"| {who} | {rate:.0f} | {rate / base:.2f} | {others} |")
            lines.append("")
    text = "\n".join(lines).rstrip() + "\n"
    if given.output:
        given.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
