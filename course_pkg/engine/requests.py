"""What a serving engine and its users say to each other: requests, results and errors.

Named tuples, so that they cross to another process as data.
"""

from typing import NamedTuple

HISTORY = 100_000  # steps of which an engine keeps the counters


class OutOfBlocks(Exception):
    """No block of the cache is free; the caller must wait, or make another sequence wait."""


class NeverFits(ValueError):
    """A request needs more than there is, even with all memory to itself."""


class NoNumbers(FloatingPointError):
    """The model gives no numbers after one sequence; the others can go on without it.

    Args:
        seq_id: of the sequence.
    """

    def __init__(self, seq_id: int):
        super().__init__(f"the model gives logits that are no numbers, after sequence {seq_id}")
        self.seq_id = seq_id


class EngineConfig(NamedTuple):
    """The memory of an engine, and how it divides its steps.

    Attributes:
        num_blocks: N, how many blocks of the cache.
        block_size: S, slots in a block.
        max_num_seqs: how many sequences may run at once, forks to come included.
        watermark: how many blocks must be left when a sequence is admitted while others run.
        max_num_batched_tokens: the budget, how many tokens a step may compute: at least
            `max_num_seqs`; any number when None.
        num_cpu_blocks: H, how many blocks there are on the host to swap to; 0 to compute again
            instead.
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 64
    watermark: int = 0
    max_num_batched_tokens: int | None = None
    num_cpu_blocks: int = 0


class SchedulerOutput(NamedTuple):
    """What a step is to do.

    Attributes:
        work: (seq_id, start, stop) for each sequence whose tokens start … stop-1 are to be
            computed.
        copies: the blocks to copy before that, as pairs (from, to), one after the other. Blocks of
            the cache are numbered from 0 to N-1, those on the host from N on.
    """

    work: list[tuple[int, int, int]]
    copies: list[tuple[int, int]]


class SamplingParams(NamedTuple):
    """How to continue a prompt.

    Attributes:
        max_tokens: how many tokens to add at most.
        stop: a token that ends a sequence; it is part of the result.
        n: how many continuations, or samples, to draw.
        temperature, top_k, top_p: as in `token_probabilities` of gpt; 0 takes the best token.
        seed: sample number k draws with a generator seeded with seed + k.
        beams: more than 1 for a beam search of that width, in place of sampling.
        alpha: a beam search judges a continuation of T tokens by log p / T^alpha.
        min_p: what top_k and top_p leave is drawn only if it is at least this share as probable as
            the best token.
    """

    max_tokens: int = 16
    stop: int | None = None
    n: int = 1
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    beams: int = 1
    alpha: float = 1.0
    min_p: float = 0.0


class RequestOutput(NamedTuple):
    """What became of a prompt.

    Attributes:
        tokens: the tokens that each sample added; of a beam search, the best continuation first.
        reasons: why each sample ended: "length", "stop" or "abort".
        log_p: of a beam search, the log-probability of each continuation; otherwise empty.
    """

    tokens: list[list[int]]
    reasons: list[str | None]
    log_p: list[float]
