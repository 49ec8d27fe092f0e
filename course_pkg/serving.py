"""An engine that serves many requests at once from a fixed number of blocks.

Shapes: N blocks of S slots, H blocks on the host; M tokens of a step, R sequences, V tokens in the
vocabulary, L layers; G heads of keys and values of size D_h.
"""

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from course_pkg.gpt import token_probabilities
from course_pkg.inference.decoding import demand_numbers, demand_request, with_kernel
from course_pkg.inference.requests import (
    HISTORY,
    NeverFits,
    OutOfBlocks,
    Output,
    Plan,
    Sampling,
)
from course_pkg.inference.sequence import Sequence
from course_pkg.paged_attention import (
    BlockAllocator,
    BlockManager,
    BlockTable,
    PagedKVCache,
    paged_attention,
)


class Scheduler:
    """Decide anew in every step which sequences run: iteration-level scheduling.

    A sequence is admitted when all the blocks that it may ever need can be set aside for it, so
    that blocks never run out. (Yu et al. 2022, §3.1 and Algorithm 1)

    Attributes:
        manager: the `BlockManager`.
        sequences: every `Sequence` that was added, by its number: the manager's dict. A sequence
            that is removed stays there.
        running, waiting: lists of the numbers of the sequences that have blocks, and of those that
            wait for them; those that came first stand first.
        plan: what the next step is to do, as far as it is decided.
        hits: how many tokens were found in the cache.
        preemptions, swaps: how often a sequence lost its blocks, and how often to the host.

    Args:
        blocks: N, how many blocks.
        block_size: S, slots in a block.
        most: how many sequences may run at once, forks to come included.
    """

    def __init__(self, blocks: int, block_size: int, most: int = 64):
        self.manager = BlockManager(blocks, block_size)
        self.sequences: dict[int, Sequence] = self.manager.sequences
        self.running: list[int] = []
        self.waiting: list[int] = []
        self.most = most
        self.plan = Plan([], [])
        self.hits = self.preemptions = self.swaps = 0

    def add(
        self,
        number: int,
        tokens: list[int],
        longest: int = 0,
        forks: int = 0,
        together: bool = False,
    ) -> None:
        """Let a new sequence wait behind all others.

        Args:
            number: its number.
            tokens: its prompt.
            longest: how many slots it will need at most; those of the prompt when that is more.
            forks: how many forks of it will be made.
            together: whether it and its forks may run and wait only together, as one group.
        """
        sequence = self.sequences[number] = Sequence(list(tokens))
        sequence.longest, sequence.forks = max(longest, len(tokens)), forks
        sequence.group = [number] if together else None
        self.waiting.append(number)

    def schedule(self) -> Plan:
        """Choose the work of one step and make room for it.

        1. Every running sequence, the first to come first, computes what is not computed yet.
        2. Sequences that wait are admitted, see `admit`.

        Returns:
            The work, and the blocks to copy before it.
        """
        ### BEGIN SOLUTION
        for number in self.running:
            self.extend(number)
        self.admit()
        ### END SOLUTION
        return self.hand_over()

    def extend(self, number: int) -> None:
        """Plan a running sequence's work, and give it the blocks for that; none if it has no work.

        Raises:
            OutOfBlocks: there are too few; then nothing has changed.
        """
        ### BEGIN SOLUTION
        start, count = self.sequences[number].computed, self.count(number)
        if count:
            self.plan.copies.extend(self.manager.grow(number, count))
            self.plan.work.append((number, start, start + count))
        ### END SOLUTION

    def admit(self) -> None:
        """Let waiting sequences run, in their order, until one has no place.

        There is a place for a group if no more than `most` sequences run then, and if they need no
        more than N blocks together: ⌈longest / S⌉ for each, and for each fork to come. None
        overtakes another.
        """
        ### BEGIN SOLUTION
        S, N = self.manager.block_size, len(self.manager.allocator.references)
        while self.waiting:
            members = self.members(self.waiting[0])
            together = [self.sequences[number] for number in self.running + members]
            reserved = sum(math.ceil(each.longest / S) * (1 + each.forks) for each in together)
            if self.places(self.running + members) > self.most or reserved > N:
                return
            self.enter(members)
        ### END SOLUTION

    def enter(self, members: list[int]) -> None:
        """Let a group run: find what is cached of it, and plan its work."""
        for number in members:
            self.hits += self.open(number)
        self.start(members)

    def start(self, members: list[int]) -> None:
        """Move a group that has its tables from those that wait to those that run."""
        for number in members:
            self.waiting.remove(number)
            self.running.append(number)
            self.extend(number)

    def count(self, number: int) -> int:
        """Say how many tokens of a sequence are to be computed in this step."""
        return len(self.sequences[number].tokens) - self.sequences[number].computed

    def is_computed(self, number: int) -> bool:
        """Say whether all tokens of a sequence are computed."""
        return self.sequences[number].computed == len(self.sequences[number].tokens)

    def places(self, numbers: list[int]) -> int:
        """Count some sequences, with the forks of them that are still to come."""
        return sum(1 + self.sequences[number].forks for number in numbers)

    def members(self, number: int) -> list[int]:
        """List the group of a sequence in the order of its queue; often that is only itself."""
        group = self.sequences[number].group
        queue = self.running if number in self.running else self.waiting
        return [number] if group is None else [each for each in queue if each in group]

    def open(self, number: int) -> int:
        """Give a sequence a table of what is cached of it; how many tokens that is."""
        sequence = self.sequences[number]
        sequence.computed = self.manager.open(number, sequence.tokens)
        return sequence.computed

    def close(self, number: int) -> None:
        """Give the blocks of a sequence back, if it has any: nothing of it is computed then."""
        self.manager.close(number)
        self.sequences[number].computed = 0

    def hand_over(self) -> Plan:
        """Give out the plan, and begin a new one."""
        plan, self.plan = self.plan, Plan([], [])
        return plan

    def advance(self, number: int, stop: int) -> None:
        """Take note that the keys and values of a sequence's tokens are written up to stop."""
        self.sequences[number].computed = stop
        self.manager.commit(number, self.sequences[number].tokens)

    def append(self, number: int, token: int) -> None:
        """Add a token to a sequence, to be computed in a later step."""
        self.sequences[number].tokens.append(token)

    def undo(self, work: list[tuple[int, int, int]]) -> None:
        """Take back what was prepared for work that was not done."""
        for number, _, _ in reversed(work):
            self.cut(number)

    def cut(self, number: int) -> None:
        """Give back the blocks of a sequence beyond what is computed of it, the last one first."""
        sequence, S = self.sequences[number], self.manager.block_size
        table, kept = sequence.block_table, math.ceil(sequence.computed / S)
        for block in reversed(table.blocks[kept:]):
            self.manager.allocator.free(block)
        table.blocks, table.length = table.blocks[:kept], sequence.computed

    def fork(self, number: int, child: int) -> None:
        """Add a copy of a sequence that goes on from its state, and stands right behind it.

        Raises:
            ValueError: as many as may run at once do.
        """
        parent = self.sequences[number]
        if parent.forks:
            parent.forks -= 1
        elif number in self.running and self.places(self.running) >= self.most:
            raise ValueError(f"{self.most} sequences run already, with forks to come")
        self.manager.fork(number, child)
        self.sequences[child].forks = 0
        if parent.group is not None:
            parent.group.append(child)
        queue = self.running if number in self.running else self.waiting
        queue.insert(queue.index(number) + 1, child)

    def remove(self, number: int) -> None:
        """Let a sequence neither run nor wait any more, and give back its blocks if it has any."""
        queue = self.running if number in self.running else self.waiting
        queue.remove(number)
        self.close(number)
        if (group := self.sequences[number].group) is not None:
            group.remove(number)


class PreemptingScheduler(Scheduler):
    """Set nothing aside: hand out blocks as they are needed, and take them back when they run out.

    All sequences of a group lose their blocks together, and come back together.
    (Kwon et al. 2023, §4.5)

    Args:
        blocks, block_size, most: as in `Scheduler`.
        watermark: how many blocks must be left when a sequence is admitted while others run.
    """

    def __init__(self, blocks: int, block_size: int, most: int = 64, watermark: int = 0):
        super().__init__(blocks, block_size, most)
        self.watermark = watermark

    def schedule(self) -> Plan:
        """Choose the work of one step and make room for it.

        1. Every running sequence, the first to come first, is extended. While blocks run out, the
           last one that runs is preempted, with its group; that may be the one that asks.
        2. If none was preempted, waiting sequences are admitted, see `admit`.

        Returns:
            The work, and the blocks to copy before it.
        """
        ### BEGIN SOLUTION
        before = self.preemptions
        for number in list(self.running):
            while number in self.running:
                try:
                    self.extend(number)
                    break
                except OutOfBlocks:
                    self.preempt(self.running[-1])
        if self.preemptions == before:
            self.admit()
        ### END SOLUTION
        return self.hand_over()

    def preempt(self, number: int) -> None:
        """Take the blocks of a running sequence and its group, who then wait before all others.

        Their order stays the same, and each of them counts as one more in `preemptions`. Work that
        was planned for them in this step is planned no more, and they are computed again later.
        Copies that are planned stay: they are made in their order, and what comes after them may
        depend on them.
        """
        ### BEGIN SOLUTION
        members = self.members(number)
        self.plan.work[:] = [row for row in self.plan.work if row[0] not in members]
        for each in reversed(members):
            self.running.remove(each)
            self.waiting.insert(0, each)
            self.close(each)
        self.preemptions += len(members)
        ### END SOLUTION

    def admit(self) -> None:
        """Let waiting sequences run, in their order, until one has no place.

        There is a place for a group if no more than `most` sequences run then, forks to come
        included, if some of its tokens can be computed in this step, and if it can enter. None
        overtakes another.
        """
        ### BEGIN SOLUTION
        while self.waiting:
            members = self.members(self.waiting[0])
            if self.places(self.running + members) > self.most or not any(map(self.count, members)):
                return
            try:
                self.enter(members)
            except OutOfBlocks:
                return
        ### END SOLUTION

    def enter(self, members: list[int]) -> None:
        """Let a group run: find what is cached of it, and plan its work in this step.

        The tokens that are found are added to `hits`, when the group enters.

        Raises:
            OutOfBlocks: there are too few blocks for that work, or fewer than the watermark would
                be left although others run; then nothing has changed.
        """
        ### BEGIN SOLUTION
        found = sum(map(self.open, members))
        need = sum(
            self.sequences[number].block_table.missing(self.count(number)) for number in members
        )
        try:
            self.demand(need)
        except OutOfBlocks:
            for number in reversed(members):
                self.close(number)
            raise
        self.hits += found
        self.start(members)
        ### END SOLUTION

    def demand(self, blocks: int) -> None:
        """Demand blocks for a group that is to run.

        Raises:
            OutOfBlocks: they are not available, or the watermark would not be left.
        """
        spare = self.watermark if self.running else 0
        if blocks + spare > self.manager.allocator.available:
            raise OutOfBlocks(f"{blocks} blocks are needed, and {spare} must be left")


class ChunkedScheduler(PreemptingScheduler):
    """Compute no more tokens in a step than a budget: a longer prompt is computed in chunks.

    What came first is served first, so that who generates goes on in every step while the prompt of
    one that came later is computed. (Agrawal et al. 2023, §4.2; Agrawal et al. 2024, §4.2)

    Args:
        blocks, block_size, most, watermark: as in `PreemptingScheduler`.
        budget: how many tokens a step may compute; any number when None.
    Raises:
        ValueError: the budget is less than `most`: some who run would get no token for ever.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        most: int = 64,
        watermark: int = 0,
        budget: int | None = None,
    ):
        super().__init__(blocks, block_size, most, watermark)
        ### BEGIN SOLUTION
        if budget is not None and budget < most:
            raise ValueError(f"a budget of {budget} tokens starves some of {most} sequences")
        self.budget = math.inf if budget is None else budget
        ### END SOLUTION

    def count(self, number: int) -> int:
        """Say how many tokens of a sequence are to be computed in this step.

        Those that are not computed yet, but no more than are left of the budget.
        """
        ### BEGIN SOLUTION
        spent = sum(stop - start for _, start, stop in self.plan.work)
        return min(super().count(number), self.budget - spent)
        ### END SOLUTION


class ModelRunner:
    """Run a model over sequences of any lengths at once, with their keys and values in blocks.

    Attributes:
        cache: the `PagedKVCache`.
        host: a `PagedKVCache` on the host, for blocks that are swapped out.
        attention: `paged_attention`, or on a GPU a kernel, see `course_pkg.inference.decoding`.
        left: the copies of blocks that are still to be made, because one has failed.

    Args:
        model: has `shape` (L, G, D_h), `context`, `dtype` and `device`, and is called with tokens
            (M,), their positions (M,), a function attend and rows (R,): it returns the logits
            (R, V) of those rows. For each layer it calls attend(layer, Q, K, V), with Q (M, H, D_h)
            and K and V (M, G, D_h), and gets the outputs (M, H, D_h).
        blocks: N, how many blocks of the cache.
        block_size: S, slots in a block.
        host: H, how many blocks on the host.
    """

    def __init__(self, model: Any, blocks: int, block_size: int, host: int = 0):
        L, G, D_h = model.shape
        make = partial(PagedKVCache, L, block_size=block_size, G=G, D_h=D_h, dtype=model.dtype)
        self.model = model
        self.cache = make(blocks=blocks, device=model.device)
        self.host = make(blocks=host, device=torch.device("cpu"))
        self.attention = with_kernel(partial(paged_attention, at_once=16), model.device)
        self.left: list[tuple[int, int]] = []

    def forward(self, batch: list[tuple[list[int], int, list[int]]]) -> Float[Tensor, "R V"]:
        """Compute new tokens of R sequences, all in one call of the model.

        All tokens are rows of the same products, whatever sequence they belong to; only attention
        is done for each sequence by itself: selective batching. No gradients are kept.
        (Yu et al. 2022, §3.2)

        Args:
            batch: (tokens, start, blocks) for each sequence: new tokens, at least one; the position
                of the first; and the blocks of its table, which the new tokens have slots in.
        Returns:
            The logits after the last token of each; no rows for an empty batch. The cache holds the
            keys and values of the new tokens.
        """
        ### BEGIN SOLUTION
        if not batch:
            return torch.empty(0, 0, device=self.model.device)
        tensor = partial(torch.tensor, device=self.model.device)
        S = self.cache.K.shape[3]
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        groups: dict[int, list[tuple]] = {}  # sequences with as many new tokens go together
        for new, start, blocks in batch:
            stop = start + len(new)
            rows = range(len(tokens), len(tokens) + len(new))
            groups.setdefault(len(new), []).append((list(rows), blocks, stop))
            tokens += new
            positions += range(start, stop)
            slots += [blocks[t // S] * S + t % S for t in range(start, stop)]
        ready = []
        for group in groups.values():
            longest = max(len(blocks) for _, blocks, _ in group)
            padded = tensor([blocks + [0] * (longest - len(blocks)) for _, blocks, _ in group])
            where, lengths = tensor([rows for rows, _, _ in group]), [stop for _, _, stop in group]
            ready.append((where, padded, tensor(lengths)))
        written = tensor(slots)

        def attend(layer: int, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
            self.cache.write(layer, written, K, V)
            Y = torch.empty_like(Q)
            for where, tables, lengths in ready:
                keys, values = self.cache.K[layer], self.cache.V[layer]
                Y[where] = self.attention(Q[where], keys, values, tables, lengths)
            return Y

        last = list(itertools.accumulate(len(new) for new, _, _ in batch))
        with torch.no_grad():
            return self.model(tensor(tokens), tensor(positions), attend, tensor(last) - 1)
        ### END SOLUTION

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole blocks, one after the other; those from number N on are on the host.

        Heads stand before blocks in the cache, so a block is 2 · L · G pieces of S · D_h numbers,
        each of which is moved by itself. If a copy fails, it and those after it are left, and the
        next call makes them first: tables name the blocks already that they were to fill.
        """
        self.left += copies
        while self.left:
            (here, n), (there, m) = map(self.place, self.left[0])
            there.K[:, :, m] = here.K[:, :, n]
            there.V[:, :, m] = here.V[:, :, n]
            del self.left[0]

    def place(self, block: int) -> tuple[PagedKVCache, int]:
        """Look up where a block is, and its number there."""
        N = self.cache.K.shape[2]
        return (self.cache, block) if block < N else (self.host, block - N)


class EngineCore:
    """Serve requests, step by step, with one model and a fixed amount of memory.

    Attributes:
        runner: the `ModelRunner`.
        scheduler: a `SwappingScheduler` if there are blocks on the host, else a `ChunkedScheduler`.
        sequences: every `Sequence` of the requests, by its number: the scheduler's dict.
        requests: the numbers of the samples of every request, under the number of the request.
        history: the counters after each of the last steps.

    Args:
        model: see `ModelRunner`.
        blocks: N, how many blocks of the cache.
        block_size: S, slots in a block.
        most: how many sequences may run at once.
        budget: how many tokens a step may compute, at least `most`; any number when None.
        watermark: how many blocks must be left when a sequence is admitted while others run.
        host: H, how many blocks there are on the host to swap to; 0 to compute again instead.
    Raises:
        ValueError: the budget is less than `most`.
    """

    def __init__(
        self,
        model: Any,
        blocks: int,
        block_size: int = 16,
        most: int = 64,
        budget: int | None = None,
        watermark: int = 0,
        host: int = 0,
    ):
        settings = blocks, block_size, most, watermark, budget
        self.runner = ModelRunner(model, blocks, block_size, host)
        self.scheduler = SwappingScheduler(*settings, host) if host else ChunkedScheduler(*settings)
        self.sequences = self.scheduler.sequences
        self.requests: dict[int, list[int]] = {}
        self.numbers = itertools.count()  # of the sequences to come
        self.history: list[dict[str, int]] = []

    def add(self, prompt: list[int], sampling: Sampling | None = None) -> int:
        """Let a request wait for its turn. Of one that is refused, the engine keeps nothing.

        Returns:
            Its number, which is that of its first sample.
        Raises:
            NeverFits: prompt and continuation are longer than the model's context; they need more
                blocks than there are, in each beam; or more sequences than may run at once. The
                last token added is never read, and needs no slot.
            ValueError: the prompt has no token, there is nothing to add, the settings of `sampling`
                are out of their ranges, or it wants beams and samples, or beams and a temperature;
                or torch has no generator for the seed of one of the samples.
        """
        sampling = Sampling() if sampling is None else sampling
        demand_request(prompt, sampling)
        self.validate(prompt, sampling)
        number, slots = next(self.numbers), len(prompt) + sampling.max_tokens - 1
        forks, together = max(sampling.samples, sampling.beams) - 1, sampling.beams > 1
        self.scheduler.add(number, prompt, slots, forks, together)
        self.requests[number] = []
        self.enter(number, sampling, self.requests[number])
        return number

    def validate(self, prompt: list[int], sampling: Sampling) -> None:
        """Refuse a request that cannot be served; see `add`."""
        ### BEGIN SOLUTION
        count, samples, beams = sampling.max_tokens, sampling.samples, sampling.beams
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
        if max(samples, beams) > self.scheduler.most:
            raise NeverFits(f"more samples or beams than the {self.scheduler.most} that may run")
        ### END SOLUTION

    def enter(self, number: int, sampling: Sampling, samples: list[int]) -> None:
        """Make a sequence one more sample of a request, with randomness of its own."""
        sample = self.sequences[number]
        sample.sampling, sample.samples = sampling, samples
        sample.generator = torch.Generator().manual_seed(sampling.seed + len(samples))
        samples.append(number)

    def fork(self, number: int) -> int:
        """Split a sequence that has not ended in two that share all there is so far.

        Returns:
            The number of the new one, which is one more sample of the same request.
        Raises:
            ValueError: as many sequences as may run at once do.
        """
        sequence, child = self.sequences[number], next(self.numbers)
        self.scheduler.fork(number, child)
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
            (number, token) for every token that was added. Tokens of a beam search are not among
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
                number: self.draw(number, row)
                for (number, _, stop), row in zip(plan.work, logits, strict=True)
                if stop == len(self.sequences[number].tokens)  # no chunk of a longer prompt
            }
        except BaseException:
            self.scheduler.undo(plan.work)
            raise
        for number, _, stop in plan.work:
            self.scheduler.advance(number, stop)
        added = [pair for number, draws in drawn.items() for pair in self.write(number, draws)]
        ### END SOLUTION
        self.history.append(self.counters(len(plan.work)))
        del self.history[:-HISTORY]
        return added

    def piece(self, number: int, start: int, stop: int) -> tuple[list[int], int, list[int]]:
        """Give the model runner what it needs of a sequence: new tokens, their start, blocks."""
        blocks = self.scheduler.manager.blocks(number)
        return self.sequences[number].tokens[start:stop], start, blocks

    def draw(self, number: int, logits: Float[Tensor, "V"]) -> Any:
        """Draw a sequence's next token, and the first one of each sample that is still to come.

        Returns:
            (token, generator) for each: a generator that has drawn, in place of the sample's own.
        """
        demand_numbers(logits, number)
        sequence = self.sequences[number]
        sampling, seed = sequence.sampling, sequence.sampling.seed + len(sequence.samples)
        generators = [sequence.generator.clone_state()]
        generators += [torch.Generator().manual_seed(seed + k) for k in range(sequence.forks)]
        if sampling.temperature == 0:
            return [(best, each) for best in [int(logits.argmax())] for each in generators]
        settings = sampling.temperature, sampling.top_k, sampling.top_p
        p = token_probabilities(logits[None], *settings)[0].cpu()
        p = p * (p >= sampling.min_p * p.max())
        return [(int(torch.multinomial(p, 1, generator=each)), each) for each in generators]

    def write(self, number: int, draws: Any) -> list[tuple[int, int]]:
        """Fork a sequence into the samples that are still to come, and add a token to each.

        They share the blocks of the prompt: all forks are made before a token is added. Each
        sample keeps its generator, and ends if that was its last token, see `finish`.

        Args:
            number: the sequence.
            draws: what `draw` returned for it.
        Returns:
            (number, token) for each sample, in their order.
        """
        ### BEGIN SOLUTION
        samples = [number, *(self.fork(number) for _ in draws[1:])]
        for each, (token, generator) in zip(samples, draws, strict=True):
            self.scheduler.append(each, token)
            self.sequences[each].generator = generator
            self.finish(each)
        return [(each, token) for each, (token, _) in zip(samples, draws, strict=True)]
        ### END SOLUTION

    def finish(self, number: int) -> None:
        """End a sequence whose last token is its stop token, or the last that it may add."""
        sequence = self.sequences[number]
        if sequence.tokens[-1] == sequence.sampling.stop:
            self.end(number, "stop")
        elif len(sequence.tokens) == sequence.prompt_length + sequence.sampling.max_tokens:
            self.end(number, "length")

    def end(self, number: int, reason: str) -> None:
        """Note why a sequence ends, and give its blocks back."""
        self.sequences[number].reason = reason
        self.scheduler.remove(number)

    def abort(self, number: int) -> None:
        """End all samples of a request that have not ended.

        A client that leaves cannot know whether its request has just ended: nothing happens then,
        nor if the request is no longer known.
        """
        ### BEGIN SOLUTION
        for sample in self.requests.get(number, []):
            if self.sequences[sample].reason is None:
                self.end(sample, "abort")
        ### END SOLUTION

    def unfinished(self, numbers: list[int]) -> list[int]:
        """List the samples of some requests that have not ended."""
        samples = [sample for number in numbers for sample in self.requests[number]]
        return [sample for sample in samples if self.sequences[sample].reason is None]

    def collect(self, numbers: list[int]) -> list[Output]:
        """Take requests that have ended out of the engine: what became of each."""
        outputs = []
        for number in numbers:
            done = [self.sequences.pop(sample) for sample in self.requests.pop(number)]
            log_p = []
            if done[0].sampling.beams > 1:
                done.sort(key=lambda beam: beam.merit, reverse=True)
                log_p = [each.log_p for each in done]
            outputs.append(Output([x.output for x in done], [x.reason for x in done], log_p))
        return outputs

    def counters(self, batch: int) -> dict[str, int]:
        """Count what the engine holds after a step of so many sequences, and all that happened."""
        scheduler, S = self.scheduler, self.scheduler.manager.block_size
        users = scheduler.manager.allocator.references
        filled: dict[int, int] = {}  # the slots in use of every block in use, shared ones once
        for table in (self.sequences[number].block_table for number in scheduler.running):
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


def choose_beams(
    log_p: Float[Tensor, "R"],
    lengths: Int[Tensor, "R"],
    next_log_p: Float[Tensor, "R V"],
    ended: Bool[Tensor, "R"],
    width: int,
    alpha: float = 1.0,
) -> list[tuple[int, int, float]]:
    """Choose which beams a search keeps, and the token with which each of them goes on.

    The candidates are the beams that have ended, as they are, and every continuation of the others
    by one token. One of T tokens is judged by log p / T^α. One place is reserved for what greedy
    decoding writes: the best candidate of beam 0. The best of the others fill the rest, as in
    `beam_search` of seq2seq. (Sutskever et al. 2014, §3.2; Wu et al. 2016, §7)

    Args:
        log_p: the log-probability of each beam; beam 0 is the greedy one.
        lengths: how many tokens each has added so far.
        next_log_p: the log-probability of each token after each beam; what stands there for a beam
            that has ended does not count.
        ended: which beams have ended.
        width: how many to keep; there may be fewer candidates whose probability is not 0.
        alpha: the power of the length.
    Returns:
        (beam it comes from, token, log-probability) for each beam kept, the greedy one first; the
        token is -1 for one that had ended.
    """
    total = log_p[:, None] + next_log_p  # (R, V)
    total[ended] = -math.inf
    total[ended, 0] = log_p[ended]  # what has ended goes on in one way, at no cost
    score = total / (lengths + ~ended)[:, None] ** alpha
    score[0, score[0].argmax()] = math.inf
    count = min(width, int((total > -math.inf).sum()))
    best = score.flatten().topk(count).indices.tolist()
    V = next_log_p.shape[1]
    return [
        (place // V, -1 if ended[place // V] else place % V, total.flatten()[place].item())
        for place in best
    ]


class BeamCore(EngineCore):
    """Also search with beams, which share the blocks of what they have in common.

    The beams of a request are one group for the scheduler. They branch when all of them are
    computed to their ends; what is there earlier waits. (Kwon et al. 2023, §4.4)

    Attributes:
        next_log_p: for the beams that wait for others, the log-probabilities of their next tokens.

    Args:
        settings: as in `EngineCore`.
    """

    def __init__(self, *settings: Any, **named: Any):
        super().__init__(*settings, **named)
        self.next_log_p: dict[int, Tensor] = {}

    def draw(self, number: int, logits: Float[Tensor, "V"]) -> Any:
        """Draw tokens as in `EngineCore`; of a beam, give the log-probabilities of all tokens."""
        if self.sequences[number].sampling.beams == 1:
            return super().draw(number, logits)
        demand_numbers(logits, number)
        precise = torch.promote_types(logits.dtype, torch.float32)
        return torch.log_softmax(logits.to(precise), dim=0).cpu()

    def write(self, number: int, draws: Any) -> list[tuple[int, int]]:
        """Add tokens as in `EngineCore`; let beams branch if they waited for this one only."""
        if self.sequences[number].sampling.beams == 1:
            return super().write(number, draws)
        self.next_log_p[number] = draws
        members = self.scheduler.members(number)
        if all(self.scheduler.is_computed(each) and each in self.next_log_p for each in members):
            self.branch(self.sequences[number].samples)
        return []

    def branch(self, beams: list[int]) -> None:
        """Replace the beams of a request by those that `choose_beams` chooses.

        A beam that is chosen once goes on itself; for every further time it is forked. All forks
        are made before a token is added: each token is forced upon its fork. Beams that are not
        chosen are dropped first, with their blocks. A beam that gets a token gets its `log_p` too,
        and ends if that was its last one, see `finish`. What is in `next_log_p` of them is used up;
        beams that have ended have nothing there.

        Args:
            beams: the numbers of its beams, the greedy one first, and also those that have ended;
                changed, in place, to the numbers of the new ones. `split` appends to it meanwhile.
        """
        ### BEGIN SOLUTION
        old = [self.sequences[number] for number in beams]
        ended = torch.tensor([each.reason is not None for each in old])
        lengths = torch.tensor([len(each.output) for each in old])
        rows = [self.next_log_p.pop(number, None) for number in beams]
        unused = torch.zeros_like(next(row for row in rows if row is not None))
        rows = torch.stack([unused if row is None else row for row in rows])
        log_p, sampling = rows.new_tensor([each.log_p for each in old]), old[0].sampling
        chosen = choose_beams(log_p, lengths, rows, ended, sampling.beams, sampling.alpha)
        for row in set(range(len(old))) - {row for row, _, _ in chosen}:
            self.drop(beams[row])
        new: list[int] = []
        for row, _, _ in chosen:
            new.append(self.split(beams[row]) if beams[row] in new else beams[row])
        for number, (row, token, value) in zip(new, chosen, strict=True):
            if not ended[row]:
                self.scheduler.append(number, token)
                self.sequences[number].log_p = value
                self.finish(number)
        beams[:] = new
        ### END SOLUTION
        self.expect(beams)

    def end(self, number: int, reason: str) -> None:
        """Note why a sequence ends, and give its blocks back."""
        super().end(number, reason)
        self.next_log_p.pop(number, None)

    def drop(self, number: int) -> None:
        """Take a beam out of the engine."""
        if self.sequences[number].reason is None:
            self.scheduler.remove(number)
        del self.sequences[number]

    def fork(self, number: int) -> int:
        """Split a sequence in two, as in `EngineCore`.

        Raises:
            ValueError: it is a beam: the search decides which beams are forked.
        """
        if self.sequences[number].sampling.beams > 1:
            raise ValueError(f"sequence {number} is a beam, which only its search forks")
        return super().fork(number)

    def split(self, number: int) -> int:
        """Fork a beam, for which there is always a place: that of one that was dropped."""
        self.sequences[number].forks += 1
        return super().fork(number)

    def expect(self, beams: list[int]) -> None:
        """Keep the places of beams that have ended: others may branch into them later."""
        going = [number for number in beams if self.sequences[number].reason is None]
        for number in going:
            self.sequences[number].forks = 0
        if going:
            self.sequences[going[0]].forks = self.sequences[going[0]].sampling.beams - len(going)


class Engine(BeamCore):
    """Serve many prompts at once with one model and a fixed amount of memory.

    Args:
        settings: as in `EngineCore`.
    """

    def take(self, number: int) -> list[tuple[int, int]]:
        """Hand out what has been added to a request since this was asked last.

        It does not matter for whom the steps were made in which the tokens were added.

        Returns:
            (place of the sample in the request, from 0 on, token), the samples one after the other.
        """
        ### BEGIN SOLUTION
        found = []
        for sample, each in enumerate(self.requests[number]):
            sequence = self.sequences[each]
            new = sequence.tokens[sequence.prompt_length + sequence.taken :]
            sequence.taken += len(new)
            found += [(sample, token) for token in new]
        return found
        ### END SOLUTION

    def stream(
        self, prompts: list[list[int]], sampling: Sampling | list[Sampling] | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Continue prompts, and hand out every token as soon as there is one.

        Others may use the engine meanwhile, and stream too. If nobody asks for more tokens, what
        has not ended is aborted.

        Args:
            prompts: tokens, at least one each.
            sampling: how to continue all of them, or each; without beams.
        Yields:
            (place of the prompt, place of the sample in its request, token).
        Raises:
            NeverFits, ValueError: one of the prompts is refused, see `add`, or wants beams, whose
                tokens change until they have ended; then none is begun.
        """
        ### BEGIN SOLUTION
        numbers = self.enlist(prompts, sampling)
        try:
            if any(self.sequences[number].sampling.beams > 1 for number in numbers):
                raise ValueError("beams change until they have ended, and cannot be streamed")
            is_going = True
            while is_going:
                is_going = bool(self.unfinished(numbers))
                if is_going:
                    self.step()
                for place, number in enumerate(numbers):
                    for sample, token in self.take(number):
                        yield place, sample, token
        finally:
            self.withdraw(numbers)
        ### END SOLUTION

    def generate(
        self, prompts: list[list[int]], sampling: Sampling | list[Sampling] | None = None
    ) -> list[Output]:
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
        numbers = self.enlist(prompts, sampling)
        try:
            while self.unfinished(numbers):
                self.step()
        except BaseException:
            self.withdraw(numbers)
            raise
        return self.collect(numbers)
        ### END SOLUTION

    def enlist(
        self, prompts: list[list[int]], sampling: Sampling | list[Sampling] | None
    ) -> list[int]:
        """Add all prompts, or none if one is refused."""
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        numbers: list[int] = []
        try:
            for prompt, own in zip(prompts, each, strict=True):
                numbers.append(self.add(prompt, own))
        except BaseException:
            self.withdraw(numbers)
            raise
        return numbers

    def withdraw(self, numbers: list[int]) -> None:
        """Take requests out of the engine, and abort what of them has not ended."""
        for number in numbers:
            self.abort(number)
        self.collect(numbers)


class SwapSpace:
    """Blocks on the host that hold what sequences had in blocks of the cache.

    What they shared they share here too: a block that several of them use goes out once.
    (Kwon et al. 2023, §4.5)

    Attributes:
        tables: the blocks of each sequence here, by its number; they are numbered from 0.
        available: how many blocks are free.

    Args:
        blocks: H, how many blocks.
        first: N, the number by which others know the first of them.
    """

    def __init__(self, blocks: int, first: int):
        self.allocator = BlockAllocator(blocks)
        self.first = first
        self.tables: dict[int, list[int]] = {}

    @property
    def available(self) -> int:
        return self.allocator.available

    def out(self, tables: dict[int, list[int]]) -> list[tuple[int, int]]:
        """Give sequences that lose their blocks a block here for each different one.

        Args:
            tables: the blocks of the cache that each sequence has, by its number.
        Returns:
            The blocks to copy, as pairs (from, to), with N added to those here.
        Raises:
            OutOfBlocks: there are too few; then nothing has changed.
        """
        ### BEGIN SOLUTION
        blocks = dict.fromkeys(block for table in tables.values() for block in table)
        if len(blocks) > self.available:
            raise OutOfBlocks(f"{len(blocks)} blocks to swap, and {self.available} on the host")
        here: dict[int, int] = {}
        for number, table in tables.items():
            for block in table:
                if block in here:
                    self.allocator.share(here[block])
                else:
                    here[block] = self.allocator.allocate()
            self.tables[number] = [here[block] for block in table]
        return [(block, self.first + place) for block, place in here.items()]
        ### END SOLUTION

    def blocks(self, numbers: list[int]) -> list[int]:
        """List the different blocks that some sequences have here."""
        return list(dict.fromkeys(block for number in numbers for block in self.tables[number]))

    def back(
        self, numbers: list[int], blocks: list[int]
    ) -> tuple[dict[int, list[int]], list[tuple[int, int]]]:
        """Give sequences blocks of the cache for those that they have here, which they leave.

        Args:
            numbers: the sequences.
            blocks: blocks of the cache, one for each of `blocks(numbers)`.
        Returns:
            The blocks of the cache that each sequence has then, by its number, and the blocks to
            copy, as pairs (from, to), with N added to those here.
        Raises:
            ValueError: there are more or fewer blocks; then nothing has changed.
        """
        ### BEGIN SOLUTION
        there = dict(zip(self.blocks(numbers), blocks, strict=True))
        tables = {number: [there[place] for place in self.tables[number]] for number in numbers}
        for number in numbers:
            self.drop(number)
        return tables, [(self.first + place, block) for place, block in there.items()]
        ### END SOLUTION

    def drop(self, number: int) -> None:
        """Free the blocks of a sequence here."""
        for block in self.tables.pop(number):
            self.allocator.free(block)

    def fork(self, number: int, child: int) -> None:
        """Let a copy of a sequence share its blocks here."""
        self.tables[child] = list(self.tables[number])
        for block in self.tables[child]:
            self.allocator.share(block)


class SwappingScheduler(ChunkedScheduler):
    """Copy the blocks of a sequence to the host when it loses them, and back when it runs again.

    Nothing is computed twice. Where the host has too few blocks, what is lost is computed again.
    (Kwon et al. 2023, §4.5 and §7.3)

    Attributes:
        space: the `SwapSpace`.

    Args:
        blocks, block_size, most, watermark, budget: as in `ChunkedScheduler`.
        host: H, how many blocks the host has.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        most: int = 64,
        watermark: int = 0,
        budget: int | None = None,
        host: int = 0,
    ):
        super().__init__(blocks, block_size, most, watermark, budget)
        self.space = SwapSpace(host, blocks)

    def preempt(self, number: int) -> None:
        """Take the blocks of a running sequence and its group, who then wait before all others.

        What is computed of them is copied to the host, if there is room for all of it, and stays
        computed.
        """
        members = self.members(number)
        for each in members:
            self.cut(each)
        ### BEGIN SOLUTION
        computed = {each: self.sequences[each].computed for each in members}
        try:
            copies = self.space.out({each: self.manager.blocks(each) for each in members})
        except OutOfBlocks:
            super().preempt(number)
            return
        super().preempt(number)
        self.plan.copies.extend(copies)
        for each in members:
            self.sequences[each].computed = computed[each]
        self.swaps += len(members)
        ### END SOLUTION

    def enter(self, members: list[int]) -> None:
        """Let a group run: bring back what is on the host, and plan its work in this step.

        A block has one user when it is allocated; `share` counts every further one.

        Raises:
            OutOfBlocks: as in `PreemptingScheduler`.
        """
        if members[0] not in self.space.tables:
            super().enter(members)
            return
        self.demand(self.needed(members))
        ### BEGIN SOLUTION
        places = self.space.blocks(members)
        blocks = [self.manager.allocator.allocate() for _ in places]
        tables, copies = self.space.back(members, blocks)
        self.plan.copies.extend(copies)
        for each in members:
            sequence = self.sequences[each]
            sequence.block_table = BlockTable(self.manager.block_size)
            sequence.block_table.append(sequence.computed, tables[each])
            for block in tables[each]:
                if block in blocks:
                    blocks.remove(block)  # its first user is counted already
                else:
                    self.manager.allocator.share(block)
        ### END SOLUTION
        self.start(members)

    def needed(self, members: list[int]) -> int:
        """Count the blocks of a group that comes back, when its work in this step has its slots.

        Full blocks may be shared; from the first block on that is written, each has its own.
        """
        S, full, own = self.manager.block_size, set(), 0
        for number in members:
            computed, count = self.sequences[number].computed, self.count(number)
            full |= set(self.space.tables[number][: computed // S])
            own += math.ceil((computed + count) / S) - computed // S
        return len(full) + own

    def remove(self, number: int) -> None:
        """Let a sequence neither run nor wait any more, and give back its blocks if it has any."""
        super().remove(number)
        if number in self.space.tables:
            self.space.drop(number)

    def fork(self, number: int, child: int) -> None:
        """Add a copy of a sequence that goes on from its state, and stands right behind it."""
        super().fork(number, child)
        if number in self.space.tables:
            self.space.fork(number, child)
