"""Beam search on shared blocks.

Shapes: R beams, V tokens in the vocabulary.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.inference.decoding import demand_numbers
from course_pkg.serving.engine import Engine


def choose_beams(
    log_p: Float[Tensor, "R"],
    next_log_p: Float[Tensor, "R V"],
    ended: Bool[Tensor, "R"],
    width: int,
) -> list[tuple[int, int, float]]:
    """Choose which beams a search keeps, and the token with which each of them goes on.

    The candidates are the beams that have ended, as they are, and every continuation of the others
    by one token. The most probable are kept, as in `beam_search` of seq2seq. (Sutskever et al.
    2014, §3.2)

    Args:
        log_p: the log-probability of each beam.
        next_log_p: the log-probability of each token after each beam; what stands there for a beam
            that has ended does not count.
        ended: which beams have ended.
        width: how many to keep; there may be fewer candidates whose probability is not 0.
    Returns:
        (beam it comes from, token, log-probability) for each beam kept, the most probable first;
        the token is -1 for one that had ended.
    """
    total = log_p[:, None] + next_log_p  # (R, V)
    total[ended] = -math.inf
    total[ended, 0] = log_p[ended]  # what has ended goes on in one way, at no cost
    count = min(width, int((total > -math.inf).sum()))
    best = total.flatten().topk(count).indices.tolist()
    V = next_log_p.shape[1]
    return [
        (place // V, -1 if ended[place // V] else place % V, total.flatten()[place].item())
        for place in best
    ]


class BeamEngine(Engine):
    """Also search with beams, which share the blocks of what they have in common.

    The beams of a request are one group for the scheduler. They branch when all of them are
    computed to their ends; what is there earlier waits. (Kwon et al. 2023, §4.4)

    Attributes:
        next_log_p: for the beams that wait for others, the log-probabilities of their next tokens.

    Args:
        model, config: as in `Engine`.
    """

    searches = True

    def __init__(self, model: Any, config: EngineConfig):
        super().__init__(model, config)
        self.next_log_p: dict[int, Tensor] = {}

    def stream(
        self,
        prompts: list[list[int]],
        sampling: SamplingParams | list[SamplingParams] | None = None,
    ) -> Iterator[tuple[int, int, int]]:
        """Continue prompts as in `Engine`, and hand out every token as soon as there is one.

        Raises:
            ValueError: one of them wants beams, whose tokens change until they have ended.
        """
        each = sampling if isinstance(sampling, list) else [sampling or SamplingParams()]
        if any(one.beams > 1 for one in each):
            raise ValueError("beams change until they have ended, and cannot be streamed")
        return super().stream(prompts, sampling)

    def draw(self, seq_id: int, logits: Float[Tensor, "V"]) -> Any:
        """Draw tokens as in `Engine`; of a beam, give the log-probabilities of all tokens."""
        if self.sequences[seq_id].sampling.beams == 1:
            return super().draw(seq_id, logits)
        demand_numbers(logits, seq_id)
        precise = torch.promote_types(logits.dtype, torch.float32)
        return torch.log_softmax(logits.to(precise), dim=0).cpu()

    def write(self, seq_id: int, draws: Any) -> list[tuple[int, int]]:
        """Add tokens as in `Engine`; let beams branch if they waited for this one only."""
        if self.sequences[seq_id].sampling.beams == 1:
            return super().write(seq_id, draws)
        self.next_log_p[seq_id] = draws
        members = self.scheduler.members(seq_id)
        if all(self.scheduler.is_computed(each) and each in self.next_log_p for each in members):
            self.branch(self.sequences[seq_id].samples)
        return []

    def branch(self, beams: list[int]) -> None:
        """Replace the beams of a request by those that `choose_beams` chooses.

        A beam that is chosen once goes on itself; for every further time it is forked. All forks
        are made before a token is added: each token is forced upon its fork. Beams that are not
        chosen are dropped first, with their blocks. A beam that gets a token gets its `log_p` too,
        and ends if that was its last one, see `finish`. What is in `next_log_p` of them is used up;
        beams that have ended have nothing there.

        Args:
            beams: the numbers of its beams, also of those that have ended; changed, in place, to
                the numbers of the new ones. `split` appends to it meanwhile.
        """
        ### BEGIN SOLUTION
        old = [self.sequences[seq_id] for seq_id in beams]
        ended = torch.tensor([each.reason is not None for each in old])
        rows = [self.next_log_p.pop(seq_id, None) for seq_id in beams]
        unused = torch.zeros_like(next(row for row in rows if row is not None))
        rows = torch.stack([unused if row is None else row for row in rows])
        log_p, sampling = rows.new_tensor([each.log_p for each in old]), old[0].sampling
        chosen = choose_beams(log_p, rows, ended, sampling.beams)
        for row in set(range(len(old))) - {row for row, _, _ in chosen}:
            self.drop(beams[row])
        new: list[int] = []
        for row, _, _ in chosen:
            new.append(self.split(beams[row]) if beams[row] in new else beams[row])
        for seq_id, (row, token, value) in zip(new, chosen, strict=True):
            if not ended[row]:
                self.scheduler.append(seq_id, token)
                self.sequences[seq_id].log_p = value
                self.finish(seq_id)
        beams[:] = new
        ### END SOLUTION
        self.expect(beams)

    def end(self, seq_id: int, reason: str) -> None:
        """Note why a sequence ends, and give its blocks back."""
        super().end(seq_id, reason)
        self.next_log_p.pop(seq_id, None)

    def drop(self, seq_id: int) -> None:
        """Take a beam out of the engine."""
        if self.sequences[seq_id].reason is None:
            self.scheduler.remove(seq_id)
        del self.sequences[seq_id]

    def fork(self, seq_id: int) -> int:
        """Split a sequence in two, as in `Engine`.

        Raises:
            ValueError: it is a beam: the search decides which beams are forked.
        """
        if self.sequences[seq_id].sampling.beams > 1:
            raise ValueError(f"sequence {seq_id} is a beam, which only its search forks")
        return super().fork(seq_id)

    def split(self, seq_id: int) -> int:
        """Fork a beam, for which there is always a place: that of one that was dropped."""
        self.sequences[seq_id].forks += 1
        return super().fork(seq_id)

    def expect(self, beams: list[int]) -> None:
        """Keep the places of beams that have ended: others may branch into them later."""
        going = [seq_id for seq_id in beams if self.sequences[seq_id].reason is None]
        for seq_id in going:
            self.sequences[seq_id].forks = 0
        if going:
            self.sequences[going[0]].forks = self.sequences[going[0]].sampling.beams - len(going)


def choose_beams_fault() -> tuple[
    str, tuple[Float[Tensor, "R"], Float[Tensor, "R V"], Bool[Tensor, "R"], int]
]:
    """Say what is wrong with the black box of `choose_beams`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what `choose_beams`
        does.
    """
    log_p, ended = torch.tensor([-3.0, -1.0]), torch.tensor([False, True])
    next_log_p = torch.tensor([[-0.1, -2.4], [-7.0, -8.0]])
    return "C", (log_p, next_log_p, ended, 2)  # beam 1 keeps its -1; the box adds the -7 to it
