"""What a serving engine and its users say to each other: requests, results and errors.

Named tuples, so that they cross to another process as data.
"""

from typing import NamedTuple


class OutOfBlocks(Exception):
    """No block of the cache is free; the caller must wait, or make another sequence wait."""


class NeverFits(ValueError):
    """A request needs more than there is, even with all memory to itself."""


class Sampling(NamedTuple):
    """How to continue a prompt.

    Attributes:
        max_tokens: how many tokens to add at most.
        stop: a token that ends a sequence; it is part of the result.
        samples: how many continuations to draw.
        temperature, top_k, top_p: as in `token_probabilities` of gpt; 0 takes the best token.
        seed: sample number k draws with a generator seeded with seed + k.
    """

    max_tokens: int = 16
    stop: int | None = None
    samples: int = 1
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


class Output(NamedTuple):
    """What became of a prompt.

    Attributes:
        tokens: the tokens that each sample added.
        reasons: why each sample ended: "length" or "stop".
    """

    tokens: list[list[int]]
    reasons: list[str]
