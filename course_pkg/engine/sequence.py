"""What a serving engine knows about one sequence."""

import copy
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch

from course_pkg.engine.requests import SamplingParams


class Table(Protocol):
    """What a sequence needs of its `BlockTable`: that it can be copied."""

    def fork(self) -> Self: ...


@dataclass
class Sequence:
    """One sample of one request, from its arrival to its end.

    Attributes:
        tokens: its prompt and what has been added.
        prompt_length: how many of the tokens are the prompt.
        output: the other tokens, in a new list.
        merit: in a beam search, its log-probability over the power of its output's length.
        block_table: the `BlockTable` of its blocks; None while it has none.
        block_hashes: the names of its full blocks, in their order.
        num_computed: of how many tokens the keys and values are written. Only between the planning
            of a step and its end is its table longer.
        longest: how many slots it will need at most.
        forks: how many forks of it are still to come.
        group: the numbers of the sequences that run and wait only together, shared by them; None
            for one that is on its own.
        sampling: how to continue it.
        generator: the source of its randomness.
        samples: the numbers of all samples of its request; shared by them.
        taken: how many tokens of its output have been handed out.
        log_p: in a beam search, the log-probability of its output.
        reason: why it has ended: "length", "stop" or "abort"; None while it has not.

    Args:
        tokens: the prompt.
    """

    tokens: list[int]
    prompt_length: int = field(init=False)
    block_table: Table | None = None
    block_hashes: list[str] = field(default_factory=list)
    num_computed: int = 0
    longest: int = 0
    forks: int = 0
    group: list[int] | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    generator: torch.Generator | None = None
    samples: list[int] = field(default_factory=list)
    taken: int = 0
    log_p: float = 0.0
    reason: str | None = None

    def __post_init__(self):
        self.prompt_length = len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def merit(self) -> float:
        return self.log_p / max(len(self.output), 1) ** self.sampling.alpha

    def fork(self) -> "Sequence":
        """Copy a sequence: tokens, table and names are the copy's own."""
        child = copy.copy(self)
        child.tokens, child.block_hashes = list(self.tokens), list(self.block_hashes)
        if self.block_table is not None:
            child.block_table = self.block_table.fork()
        return child
