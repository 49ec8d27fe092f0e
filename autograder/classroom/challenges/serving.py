"""Serving: who may enter, so that a server takes few steps and computes little twice."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from autograder.classroom.challenges import Challenge, Refused
from course_pkg.data import requests
from course_pkg.engine.requests import EngineConfig, OutOfBlocks
from course_pkg.inference.load import serve
from course_pkg.serving import PreemptingScheduler

BLOCKS, BLOCK_SIZE = 64, 8
TOKENS = 16  # computed twice are as bad as a step


class Asking(PreemptingScheduler):
    """Ask a rule for each sequence whether it may enter.

    Args:
        rule: the student's function.
    """

    def __init__(self, rule: Callable[..., Any]):
        super().__init__(EngineConfig(BLOCKS, BLOCK_SIZE))
        self._rule = rule
        self._ended: list[int] = []  # the lengths of outputs

    def demand(self, blocks: int) -> None:
        """Demand blocks for a group that is to run.

        Raises:
            OutOfBlocks: they are not available, or the rule says no although others run.
            Refused: the rule says neither yes nor no.
        """
        available = self.manager.allocator.available
        if blocks > available:
            raise OutOfBlocks(f"{blocks} blocks are needed, {available} are available")
        if not self.running:
            return
        lengths = [(s.prompt_length, len(s.tokens)) for s in map(self.sequences.get, self.running)]
        running = [(prompt, length - prompt) for prompt, length in lengths]
        answer = self._rule(blocks, available, running, list(self._ended))
        if not isinstance(answer, bool):
            raise Refused(f"challenge must return True or False, and gave {answer!r:.40}")
        if not answer:
            raise OutOfBlocks("the rule says no")

    def remove(self, number: int) -> None:
        """Note how long an output was, and let its sequence go."""
        sequence = self.sequences[number]
        self._ended.append(len(sequence.tokens) - sequence.prompt_length)
        super().remove(number)


@dataclass(frozen=True)
class Admission(Challenge):
    """Serve hidden loads with a student's rule for admission.

    Args:
        loads: how many, each of its own.
        count: requests of a load.
    """

    loads: int = 5
    count: int = 200

    measured: ClassVar[str] = "steps, with 16 tokens computed twice counted as one more"
    less_is_better: ClassVar[bool] = True
    digits: ClassVar[int] = 1
    seconds: ClassVar[float] = 60.0
    baseline_is: ClassVar[str] = "a watermark of 8"

    def measure(self, function, secret):
        draw, total = Random(secret), 0.0
        for _ in range(self.loads):
            seed = draw.randrange(2**63)
            lengths = {"prompt": (20, 0.6), "output": (42, 0.5), "longest": 256}
            load = requests.trace(self.count, seed, **lengths)
            load = [request._replace(arrival=0) for request in load]
            computed: list[int] = []
            serve(Asking(function), load, computed=computed)
            once = sum(request.prompt + request.output - 1 for request in load)
            total += len(computed) + (sum(computed) - once) / TOKENS
        return total / self.loads

    @staticmethod
    def baseline(blocks, available, running, ended):
        return blocks + 8 <= available


CHALLENGE = Admission()
