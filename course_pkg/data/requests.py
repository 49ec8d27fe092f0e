"""What a server is asked: requests that arrive at random, with texts of all lengths."""

import math
from typing import NamedTuple

import torch


class Request(NamedTuple):
    """One request of a trace.

    Attributes:
        arrival: the step in which it comes.
        prompt: how many tokens it brings.
        output: how many tokens will be added; a server does not know that beforehand.
    """

    arrival: int
    prompt: int
    output: int


def trace(
    count: int,
    generator: torch.Generator | int,
    *,
    prompt: tuple[float, float] = (160, 1.0),
    output: tuple[float, float] = (340, 0.8),
    rate: float = 1.0,
    longest: int = 2048,
) -> list[Request]:
    """Draw requests: log-normal lengths of prompts and outputs, and Poisson arrivals.

    The default means are about those of conversations with a chat model (Kwon et al. 2023, §6.1).
    The waiting times between arrivals are exponential, so that the number of arrivals in a step is
    Poisson distributed. Lengths are rounded, at least 1; an output is cut where prompt and output
    reach `longest`.

    Example:
        >>> trace(2, generator=0)[0].arrival
        0

    Args:
        count: how many requests.
        generator: the source of randomness, or a seed for a fresh one.
        prompt, output: mean of the length in tokens, and standard deviation of its logarithm.
        rate: how many requests arrive in a step, on average.
        longest: the most tokens that prompt and output have together, at least 2.
    Returns:
        The requests in the order of their arrival, the first in step 0.
    Raises:
        ValueError: count is less than 1, longest less than 2, or a mean or the rate not positive.
    """
    if count < 1 or longest < 2 or min(prompt[0], output[0], rate) <= 0:
        raise ValueError(
            "a trace needs a request, room for two tokens, and positive means and rate"
        )
    if not isinstance(generator, torch.Generator):
        generator = torch.Generator().manual_seed(generator)
    waits = torch.empty(count, dtype=torch.float64).exponential_(rate, generator=generator)
    arrivals = (waits.cumsum(0) - waits[0]).floor().int().tolist()
    lengths = []
    for mean, spread in (prompt, output):
        normal = torch.randn(count, generator=generator, dtype=torch.float64)
        drawn = torch.exp(math.log(mean) - spread**2 / 2 + spread * normal)
        lengths.append(drawn.round().int().clamp(min=1).tolist())
    return [
        Request(arrival, min(asked, longest - 1), min(added, longest - min(asked, longest - 1)))
        for arrival, asked, added in zip(arrivals, *lengths, strict=True)
    ]
