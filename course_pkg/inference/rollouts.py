"""Around a step of training on a model's own answers: adapters, sampling, and what is measured.

Shapes: N prompts with G answers each, B = N · G rows of T tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from course_pkg.data import pretrained, small_llama
from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.experts import LoRA
from course_pkg.gpt import BPETokenizer
from course_pkg.inference.models import ServedLlama
from course_pkg.serving import Engine

ADAPTERS = pretrained.FOLDER / "post_training"
RANK, LONGEST = 2, 32  # of the adapters; tokens of an answer, at most


class Merged(nn.Module):
    """Give what LoRA makes of a matrix in its place, or the matrix itself while `off`."""

    def __init__(self, W: Tensor, r: int):
        super().__init__()
        self.lora, self.off = LoRA(W, r, alpha=2 * r), False

    def forward(self, W: Tensor) -> Tensor:
        return W if self.off else self.lora.merge()


def adapt(model: ServedLlama, r: int = RANK) -> list[nn.Parameter]:
    """Freeze a model, and add LoRA of rank r to all matrices of its blocks.

    Returns:
        The parameters to train.
    """
    for value in model.parameters():
        value.requires_grad_(False)
    for block in model.llama.blocks:
        for part in (block.attention, block.feed_forward):
            for name, W in list(part.named_parameters()):
                parametrize.register_parametrization(part, name, Merged(W, r))
    return [value for value in model.parameters() if value.requires_grad]


def adapters(model: ServedLlama) -> dict[str, Tensor]:
    """Name the trained tensors of an adapted model; they share its memory."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def load_adapters(model: ServedLlama, name: str) -> None:
    """Give an adapted model the adapters that come with the course under a name."""
    stored, own = load_file(ADAPTERS / f"{name}.safetensors"), adapters(model)
    with torch.no_grad():
        for key, value in stored.items():
            own[key].copy_(value)


@contextmanager
def without_adapters(model: ServedLlama) -> Iterator[None]:
    """Make an adapted model what it was, for as long as this lasts: the reference is free."""
    added = [part for part in model.modules() if isinstance(part, Merged)]
    for part in added:
        part.off = True
    try:
        yield
    finally:
        for part in added:
            part.off = False


@cache
def tokenizer() -> BPETokenizer:
    """Give the tokenizer of the course's models."""
    return BPETokenizer(small_llama.merges())


class Rollouts(NamedTuple):
    """Answers that a model has given, and what they cost.

    Attributes:
        texts: the G answers to each of N prompts.
        tokens: prompts with answers, one below the other, and 0 where a row has ended.
        mask: where the tokens of answers are.
        computed: how many tokens the model has read for them.
    """

    texts: list[list[str]]
    tokens: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    computed: int


def sample(
    model: ServedLlama,
    prompts: list[str],
    G: int,
    seed: int,
    longest: int = LONGEST,
    temperature: float = 1.0,
) -> Rollouts:
    """Draw G answers to each prompt with an engine of serving.

    The answers to a prompt share its blocks. The engine is a new one: the blocks of an old one hold
    keys and values of the weights as they were, and would be found again.

    Args:
        model: what answers.
        prompts: N texts.
        G: how many answers to each.
        seed: of the draws; the same one gives the same answers.
        longest: how many tokens an answer has at most.
        temperature: T; each token is drawn from softmax(logits / T). 0 takes the best token.
    Returns:
        The answers as texts, and as rows of tokens with a mask.
    """
    read = [tokenizer().encode(prompt.encode()) for prompt in prompts]
    settings = [
        SamplingParams(longest, n=G, temperature=temperature, seed=(seed * 1009 + n) * 1000)
        for n in range(len(prompts))
    ]
    blocks = sum(len(each) // 16 + 1 + G * (longest // 16 + 2) for each in read)
    engine = Engine(model, EngineConfig(blocks, max_num_seqs=G * len(prompts)))
    with parametrize.cached():  # of each adapted matrix the sum is computed once
        outputs = engine.generate(read, settings)
    answers = [output.tokens for output in outputs]
    rows = [(a, b) for a, each in zip(read, answers, strict=True) for b in each]
    tokens = torch.zeros(len(rows), max(len(a) + len(b) for a, b in rows), dtype=torch.long)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for row, (a, b) in enumerate(rows):
        tokens[row, : len(a) + len(b)] = torch.tensor(a + b)
        mask[row, len(a) : len(a) + len(b)] = True
    computed = sum(map(len, read)) - engine.scheduler.hits + sum(len(b) - 1 for _, b in rows)
    texts = [[tokenizer().decode(b).decode(errors="replace") for b in each] for each in answers]
    return Rollouts(texts, tokens, mask, computed)


def judged(
    prompts: list[str], texts: list[list[str]], reward: Callable[[str, str], float]
) -> Float[Tensor, "N G"]:
    """Give each answer its reward."""
    rows = zip(prompts, texts, strict=True)
    return torch.tensor([[float(reward(prompt, x)) for x in each] for prompt, each in rows])
