"""An engine that serves many requests at once from a fixed number of blocks.

Shapes: N blocks of S slots, H blocks on the host; V tokens in the vocabulary.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from course_pkg.engine.requests import (
    HISTORY,
    EngineConfig,
    NeverFits,
    RequestOutput,
    SamplingParams,
)
from course_pkg.gpt import token_probabilities
from course_pkg.inference.decoding import demand_numbers, demand_request
from course_pkg.serving.runner import ModelRunner
from course_pkg.serving.scheduler import ChunkedScheduler
from course_pkg.serving.swapping import SwappingScheduler


class EngineCore:
    """Serve requests, step by step, with one model and a fixed amount of memory.

    Attributes:
        runner: the `ModelRunner`.
        scheduler: a `SwappingScheduler` if there are blocks on the host, else a `ChunkedScheduler`.
        sequences: every `Sequence` of the requests, by its number: the scheduler's dict.
        requests: the numbers of the samples of every request, under the number of the request.
        history: the counters after each of the last steps.
        searches: whether it searches with beams; only a `BeamEngine` does.

    Args:
        model: see `ModelRunner`.
        config: the memory of the engine, and how it divides its steps.
    Raises:
        ValueError: the budget is less than `max_num_seqs`.
    """

    searches = False

    def __init__(self, model: Any, config: EngineConfig):
        num_cpu_blocks = config.num_cpu_blocks
        self.runner = ModelRunner(model, config.num_blocks, config.block_size, num_cpu_blocks)
        self.scheduler = (SwappingScheduler if num_cpu_blocks else ChunkedScheduler)(config)
        self.sequences = self.scheduler.sequences
        self.requests: dict[int, list[int]] = {}
        self.counter = itertools.count()  # of the sequences to come
        self.history: list[dict[str, int]] = []

    def add(self, prompt: list[int], sampling: SamplingParams | None = None) -> int:
        """Let a request wait for its turn. Of one that is refused, the engine keeps nothing.

        Returns:
            Its number, which is that of its first sample.
        Raises:
            NeverFits: prompt and continuation are longer than the model's context; they need more
                blocks than there are, in each beam; or more sequences than may run at once. The
                last token added is never read, and needs no slot.
            ValueError: the prompt has no token, there is nothing to add, the settings of `sampling`
                are out of their ranges, or it wants beams and samples, or beams and a temperature;
                or torch has no generator for the seed of one of the samples; or it wants beams of
                an engine that does not search.
        """
        sampling = SamplingParams() if sampling is None else sampling
        demand_request(prompt, sampling)
        self.validate(prompt, sampling)
        if sampling.beams > 1 and not self.searches:
            raise ValueError("this engine does not search with beams; a BeamEngine does")
        seq_id, slots = next(self.counter), len(prompt) + sampling.max_tokens - 1
        forks, together = max(sampling.n, sampling.beams) - 1, sampling.beams > 1
        self.scheduler.add(seq_id, prompt, slots, forks, together)
        self.requests[seq_id] = []
        self.enter(seq_id, sampling, self.requests[seq_id])
        return seq_id

    def validate(self, prompt: list[int], sampling: SamplingParams) -> None:
        """Refuse a request that cannot be served; see `add`."""
        ### BEGIN SOLUTION
        count, samples, beams = sampling.max_tokens, sampling.n, sampling.beams
        if not prompt or count < 1 or samples < 1 or beams < 1:
            raise ValueError("a request needs a token, one to add at least, and a sample")
        if beams > 1 and (samples > 1 or sampling.temperature > 0):
            raise ValueError("beams are neither sampled nor drawn: set no samples, no temperature")
        token_probabilities(torch.zeros(1, 2), sampling.temperature, sampling.top_k, sampling.top_p)
        length = len(prompt) + count
        if length > self.runner.model.context:
            raise NeverFits(f"{length} tokens exceed the context, {self.runner.model.context}")
        N, S = self.runner.cache.K.shape[2:4]
        if beams * math.ceil((length - 1) / S) > N:
            raise NeverFits(
                f"{beams * (length - 1)} tokens to keep, but the cache has {N * S} slots"
            )
        if max(samples, beams) > self.scheduler.max_num_seqs:
            raise NeverFits(
                f"more samples or beams than the {self.scheduler.max_num_seqs} that may run"
            )
        ### END SOLUTION

    def enter(self, seq_id: int, sampling: SamplingParams, samples: list[int]) -> None:
        """Make a sequence one more sample of a request, with randomness of its own."""
        sample = self.sequences[seq_id]
        sample.sampling, sample.samples = sampling, samples
        sample.generator = torch.Generator().manual_seed(sampling.seed + len(samples))
        samples.append(seq_id)

    def fork(self, seq_id: int) -> int:
        """Split a sequence that has not ended in two that share all there is so far.

        Returns:
            The number of the new one, which is one more sample of the same request.
        Raises:
            ValueError: as many sequences as may run at once do.
        """
        sequence, child = self.sequences[seq_id], next(self.counter)
        self.scheduler.fork(seq_id, child)
        self.enter(child, sequence.sampling, sequence.samples)
        return child

    def step(self) -> list[tuple[int, int]]:
        """Compute what the scheduler chooses, and add a token wherever all others are computed.

        If the model raises, even a KeyboardInterrupt, or gives what are no numbers, the engine is
        as it was, except that blocks may have changed hands: no token is added or lost, no
        generator has drawn, and the next step tries again. If a copy fails, what was planned is
        taken back as well, and the runner makes the copies that are left before those of the next
        step.

        Returns:
            (seq_id, token) for every token that was added. Tokens of a beam search are not among
            them: beams change until they have ended.
        """
        plan = self.scheduler.schedule()
        if not plan.work and self.scheduler.waiting:
            raise RuntimeError("sequences wait, but none can run")
        ### BEGIN SOLUTION
        try:
            self.runner.copy(plan.copies)
            logits = self.runner.forward([self.piece(*row) for row in plan.work])
            drawn = {
                seq_id: self.draw(seq_id, row)
                for (seq_id, _, stop), row in zip(plan.work, logits, strict=True)
                if stop == len(self.sequences[seq_id].tokens)  # no chunk of a longer prompt
            }
        except BaseException:
            self.scheduler.undo(plan.work)
            raise
        for seq_id, _, stop in plan.work:
            self.scheduler.advance(seq_id, stop)
        added = [pair for seq_id, draws in drawn.items() for pair in self.write(seq_id, draws)]
        ### END SOLUTION
        self.history.append(self.counters(len(plan.work)))
        del self.history[:-HISTORY]
        return added

    def piece(self, seq_id: int, start: int, stop: int) -> tuple[list[int], int, list[int]]:
        """Give the model runner what it needs of a sequence: new tokens, their start, blocks."""
        blocks = self.scheduler.manager.get_block_table(seq_id)
        return self.sequences[seq_id].tokens[start:stop], start, blocks

    def draw(self, seq_id: int, logits: Float[Tensor, "V"]) -> Any:
        """Draw a sequence's next token, and the first one of each sample that is still to come.

        Returns:
            (token, generator) for each: a generator that has drawn, in place of the sample's own.
        """
        demand_numbers(logits, seq_id)
        sequence = self.sequences[seq_id]
        sampling, seed = sequence.sampling, sequence.sampling.seed + len(sequence.samples)
        generators = [sequence.generator.clone_state()]
        generators += [torch.Generator().manual_seed(seed + k) for k in range(sequence.forks)]
        if sampling.temperature == 0:
            return [(best, each) for best in [int(logits.argmax())] for each in generators]
        settings = sampling.temperature, sampling.top_k, sampling.top_p
        p = token_probabilities(logits[None], *settings)[0].cpu()
        p = p * (p >= sampling.min_p * p.max())
        return [(int(torch.multinomial(p, 1, generator=each)), each) for each in generators]

    def write(self, seq_id: int, draws: Any) -> list[tuple[int, int]]:
        """Fork a sequence into the samples that are still to come, and add a token to each.

        They share the blocks of the prompt: all forks are made before a token is added. Each
        sample keeps its generator, and ends if that was its last token, see `finish`.

        Args:
            seq_id: the sequence.
            draws: what `draw` returned for it.
        Returns:
            (seq_id, token) for each sample, in their order.
        """
        ### BEGIN SOLUTION
        samples = [seq_id, *(self.fork(seq_id) for _ in draws[1:])]
        for each, (token, generator) in zip(samples, draws, strict=True):
            self.scheduler.append(each, token)
            self.sequences[each].generator = generator
            self.finish(each)
        return [(each, token) for each, (token, _) in zip(samples, draws, strict=True)]
        ### END SOLUTION

    def finish(self, seq_id: int) -> None:
        """End a sequence whose last token is its stop token, or the last that it may add."""
        sequence = self.sequences[seq_id]
        if sequence.tokens[-1] == sequence.sampling.stop:
            self.end(seq_id, "stop")
        elif len(sequence.tokens) == sequence.prompt_length + sequence.sampling.max_tokens:
            self.end(seq_id, "length")

    def end(self, seq_id: int, reason: str) -> None:
        """Note why a sequence ends, and give its blocks back."""
        self.sequences[seq_id].reason = reason
        self.scheduler.remove(seq_id)

    def abort(self, request_id: int) -> None:
        """End all samples of a request that have not ended.

        A client that leaves cannot know whether its request has just ended: nothing happens then,
        nor if the request is no longer known.
        """
        ### BEGIN SOLUTION
        for sample in self.requests.get(request_id, []):
            if self.sequences[sample].reason is None:
                self.end(sample, "abort")
        ### END SOLUTION

    def unfinished(self, request_ids: list[int]) -> list[int]:
        """List the samples of some requests that have not ended."""
        samples = [sample for request_id in request_ids for sample in self.requests[request_id]]
        return [sample for sample in samples if self.sequences[sample].reason is None]

    def collect(self, request_ids: list[int]) -> list[RequestOutput]:
        """Take requests that have ended out of the engine: what became of each."""
        outputs = []
        for request_id in request_ids:
            done = [self.sequences.pop(sample) for sample in self.requests.pop(request_id)]
            log_p = []
            if done[0].sampling.beams > 1:
                done.sort(key=lambda beam: beam.merit, reverse=True)
                log_p = [each.log_p for each in done]
            outputs.append(RequestOutput([x.output for x in done], [x.reason for x in done], log_p))
        return outputs

    def counters(self, batch: int) -> dict[str, int]:
        """Count what the engine holds after a step of so many sequences, and all that happened."""
        scheduler, S = self.scheduler, self.scheduler.manager.block_size
        users = scheduler.manager.allocator.references
        filled: dict[int, int] = {}  # the slots in use of every block in use, shared ones once
        for table in (self.sequences[seq_id].block_table for seq_id in scheduler.running):
            full, used = divmod(table.length, S)
            filled |= dict.fromkeys(table.blocks[:full], S)
            for block in table.blocks[full:]:
                filled[block], used = max(filled.get(block, 0), used), 0
        return {
            "in the batch": batch,
            "waiting": len(scheduler.waiting),
            "blocks in use": len(filled),
            "blocks shared": len(users) - users.count(0) - users.count(1),
            "slots wasted": len(filled) * S - sum(filled.values()),
            "tokens found": scheduler.hits,
            "preemptions": scheduler.preemptions,
            "swaps": scheduler.swaps,
        }


class Engine(EngineCore):
    """Serve many prompts at once with one model and a fixed amount of memory.

    Args:
        model, config: as in `EngineCore`.
    """

    def take(self, request_id: int) -> list[tuple[int, int]]:
        """Hand out what has been added to a request since this was asked last.

        It does not matter for whom the steps were made in which the tokens were added.

        Returns:
            (place of the sample in the request, from 0 on, token), the samples one after the other.
        """
        ### BEGIN SOLUTION
        found = []
        for sample, each in enumerate(self.requests[request_id]):
            sequence = self.sequences[each]
            new = sequence.tokens[sequence.prompt_length + sequence.taken :]
            sequence.taken += len(new)
            found += [(sample, token) for token in new]
        return found
        ### END SOLUTION

    def stream(
        self,
        prompts: list[list[int]],
        sampling: SamplingParams | list[SamplingParams] | None = None,
    ) -> Iterator[tuple[int, int, int]]:
        """Continue prompts, and hand out every token as soon as there is one.

        Others may use the engine meanwhile, and stream too. If nobody asks for more tokens, what
        has not ended is aborted.

        Args:
            prompts: tokens, at least one each.
            sampling: how to continue all of them, or each.
        Yields:
            (place of the prompt, place of the sample in its request, token).
        Raises:
            NeverFits, ValueError: one of the prompts is refused, see `add`; then none is begun.
        """
        ### BEGIN SOLUTION
        request_ids = self.enlist(prompts, sampling)
        try:
            is_going = True
            while is_going:
                is_going = bool(self.unfinished(request_ids))
                if is_going:
                    self.step()
                for place, request_id in enumerate(request_ids):
                    for sample, token in self.take(request_id):
                        yield place, sample, token
        finally:
            self.withdraw(request_ids)
        ### END SOLUTION

    def generate(
        self,
        prompts: list[list[int]],
        sampling: SamplingParams | list[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts, all at once as far as memory allows.

        Args:
            prompts: tokens, at least one each.
            sampling: how to continue all of them, or each.
        Returns:
            What became of each prompt, in their order. The engine keeps nothing of them, also when
            a step raises, be it a KeyboardInterrupt.
        Raises:
            NeverFits, ValueError: one of the prompts is refused, see `add`; then none is begun.
        """
        ### BEGIN SOLUTION
        request_ids = self.enlist(prompts, sampling)
        try:
            while self.unfinished(request_ids):
                self.step()
        except BaseException:
            self.withdraw(request_ids)
            raise
        return self.collect(request_ids)
        ### END SOLUTION

    def enlist(
        self, prompts: list[list[int]], sampling: SamplingParams | list[SamplingParams] | None
    ) -> list[int]:
        """Add all prompts, or none if one is refused."""
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        request_ids: list[int] = []
        try:
            for prompt, own in zip(prompts, each, strict=True):
                request_ids.append(self.add(prompt, own))
        except BaseException:
            self.withdraw(request_ids)
            raise
        return request_ids

    def withdraw(self, request_ids: list[int]) -> None:
        """Take requests out of the engine, and abort what of them has not ended."""
        for request_id in request_ids:
            self.abort(request_id)
        self.collect(request_ids)
