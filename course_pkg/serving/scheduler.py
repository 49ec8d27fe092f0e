"""Which sequences run in the next step of an engine, with how many of their tokens.

Shapes: N blocks of S slots.
"""

import math

from course_pkg.engine.requests import EngineConfig, OutOfBlocks, SchedulerOutput
from course_pkg.engine.sequence import Sequence
from course_pkg.paged_attention import BlockManager


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
        config: how many blocks there are of which size, and how many sequences may run at once.
    """

    def __init__(self, config: EngineConfig):
        self.manager = BlockManager(config.num_blocks, config.block_size)
        self.sequences: dict[int, Sequence] = self.manager.sequences
        self.running: list[int] = []
        self.waiting: list[int] = []
        self.max_num_seqs = config.max_num_seqs
        self.plan = SchedulerOutput([], [])
        self.hits = self.preemptions = self.swaps = 0

    def add(
        self,
        seq_id: int,
        tokens: list[int],
        longest: int = 0,
        forks: int = 0,
        together: bool = False,
    ) -> None:
        """Let a new sequence wait behind all others.

        Args:
            seq_id: its number.
            tokens: its prompt.
            longest: how many slots it will need at most; those of the prompt when that is more.
            forks: how many forks of it will be made.
            together: whether it and its forks may run and wait only together, as one group.
        """
        sequence = self.sequences[seq_id] = Sequence(list(tokens))
        sequence.longest, sequence.forks = max(longest, len(tokens)), forks
        sequence.group = [seq_id] if together else None
        self.waiting.append(seq_id)

    def schedule(self) -> SchedulerOutput:
        """Choose the work of one step and make room for it.

        1. Every running sequence, the first to come first, computes what is not computed yet.
        2. Sequences that wait are admitted, see `admit`.

        Returns:
            The work, and the blocks to copy before it.
        """
        ### BEGIN SOLUTION
        for seq_id in self.running:
            self.extend(seq_id)
        self.admit()
        ### END SOLUTION
        return self.hand_over()

    def extend(self, seq_id: int) -> None:
        """Plan a running sequence's work, and give it the blocks for that; none if it has no work.

        Raises:
            OutOfBlocks: there are too few; then nothing has changed.
        """
        ### BEGIN SOLUTION
        start, count = self.sequences[seq_id].num_computed, self.count(seq_id)
        if count:
            self.plan.copies.extend(self.manager.append_slots(seq_id, count))
            self.plan.work.append((seq_id, start, start + count))
        ### END SOLUTION

    def admit(self) -> None:
        """Let waiting sequences run, in their order, until one has no place.

        There is a place for a group if no more than `max_num_seqs` sequences run then, and if they
        need no more than N blocks together: ⌈longest / S⌉ for each, and for each fork to come. None
        overtakes another.
        """
        ### BEGIN SOLUTION
        S, N = self.manager.block_size, len(self.manager.allocator.references)
        while self.waiting:
            members = self.members(self.waiting[0])
            together = [self.sequences[seq_id] for seq_id in self.running + members]
            reserved = sum(math.ceil(each.longest / S) * (1 + each.forks) for each in together)
            if self.places(self.running + members) > self.max_num_seqs or reserved > N:
                return
            self.enter(members)
        ### END SOLUTION

    def enter(self, members: list[int]) -> None:
        """Let a group run: find what is cached of it, and plan its work."""
        for seq_id in members:
            self.hits += self.allocate(seq_id)
        self.start(members)

    def start(self, members: list[int]) -> None:
        """Move a group that has its tables from those that wait to those that run."""
        for seq_id in members:
            self.waiting.remove(seq_id)
            self.running.append(seq_id)
            self.extend(seq_id)

    def count(self, seq_id: int) -> int:
        """Say how many tokens of a sequence are to be computed in this step."""
        return len(self.sequences[seq_id].tokens) - self.sequences[seq_id].num_computed

    def is_computed(self, seq_id: int) -> bool:
        """Say whether all tokens of a sequence are computed."""
        return self.sequences[seq_id].num_computed == len(self.sequences[seq_id].tokens)

    def places(self, seq_ids: list[int]) -> int:
        """Count some sequences, with the forks of them that are still to come."""
        return sum(1 + self.sequences[seq_id].forks for seq_id in seq_ids)

    def members(self, seq_id: int) -> list[int]:
        """List the group of a sequence in the order of its queue; often that is only itself."""
        group = self.sequences[seq_id].group
        queue = self.running if seq_id in self.running else self.waiting
        return [seq_id] if group is None else [each for each in queue if each in group]

    def allocate(self, seq_id: int) -> int:
        """Give a sequence a table of what is cached of it; how many tokens that is."""
        sequence = self.sequences[seq_id]
        sequence.num_computed = self.manager.allocate(seq_id, sequence.tokens)
        return sequence.num_computed

    def free(self, seq_id: int) -> None:
        """Give the blocks of a sequence back, if it has any: nothing of it is computed then."""
        self.manager.free(seq_id)
        self.sequences[seq_id].num_computed = 0

    def hand_over(self) -> SchedulerOutput:
        """Give out the plan, and begin a new one."""
        plan, self.plan = self.plan, SchedulerOutput([], [])
        return plan

    def advance(self, seq_id: int, stop: int) -> None:
        """Take note that the keys and values of a sequence's tokens are written up to stop."""
        self.sequences[seq_id].num_computed = stop
        self.manager.cache_blocks(seq_id, self.sequences[seq_id].tokens)

    def append(self, seq_id: int, token: int) -> None:
        """Add a token to a sequence, to be computed in a later step."""
        self.sequences[seq_id].tokens.append(token)

    def undo(self, work: list[tuple[int, int, int]]) -> None:
        """Take back what was prepared for work that was not done."""
        for seq_id, _, _ in reversed(work):
            self.cut(seq_id)

    def cut(self, seq_id: int) -> None:
        """Give back the blocks of a sequence beyond what is computed of it, the last one first."""
        sequence, S = self.sequences[seq_id], self.manager.block_size
        table, kept = sequence.block_table, math.ceil(sequence.num_computed / S)
        for block in reversed(table.blocks[kept:]):
            self.manager.allocator.free(block)
        table.blocks, table.length = table.blocks[:kept], sequence.num_computed

    def fork(self, seq_id: int, child: int) -> None:
        """Add a copy of a sequence that goes on from its state, and stands right behind it.

        Raises:
            ValueError: as many as may run at once do.
        """
        parent = self.sequences[seq_id]
        if parent.forks:
            parent.forks -= 1
        elif seq_id in self.running and self.places(self.running) >= self.max_num_seqs:
            raise ValueError(f"{self.max_num_seqs} sequences run already, with forks to come")
        self.manager.fork(seq_id, child)
        self.sequences[child].forks = 0
        if parent.group is not None:
            parent.group.append(child)
        queue = self.running if seq_id in self.running else self.waiting
        queue.insert(queue.index(seq_id) + 1, child)

    def remove(self, seq_id: int) -> None:
        """Let a sequence neither run nor wait any more, and give back its blocks if it has any."""
        queue = self.running if seq_id in self.running else self.waiting
        queue.remove(seq_id)
        self.free(seq_id)
        if (group := self.sequences[seq_id].group) is not None:
            group.remove(seq_id)


class PreemptingScheduler(Scheduler):
    """Set nothing aside: hand out blocks as they are needed, and take them back when they run out.

    All sequences of a group lose their blocks together, and come back together.
    (Kwon et al. 2023, §4.5)

    Args:
        config: as in `Scheduler`; its watermark is how many blocks must be left when a sequence is
            admitted while others run.
    """

    def __init__(self, config: EngineConfig):
        super().__init__(config)
        self.watermark = config.watermark

    def schedule(self) -> SchedulerOutput:
        """Choose the work of one step and make room for it.

        1. Every running sequence, the first to come first, is extended. While blocks run out, the
           last one that runs is preempted, with its group; that may be the one that asks.
        2. If none was preempted, waiting sequences are admitted, see `admit`.

        Returns:
            The work, and the blocks to copy before it.
        """
        ### BEGIN SOLUTION
        before = self.preemptions
        for seq_id in list(self.running):
            while seq_id in self.running:
                try:
                    self.extend(seq_id)
                    break
                except OutOfBlocks:
                    self.preempt(self.running[-1])
        if self.preemptions == before:
            self.admit()
        ### END SOLUTION
        return self.hand_over()

    def preempt(self, seq_id: int) -> None:
        """Take the blocks of a running sequence and its group, who then wait before all others.

        Their order stays the same, and each of them counts as one more in `preemptions`. Work that
        was planned for them in this step is planned no more, and they are computed again later.
        Copies that are planned stay: they are made in their order, and what comes after them may
        depend on them.
        """
        ### BEGIN SOLUTION
        members = self.members(seq_id)
        self.plan.work[:] = [row for row in self.plan.work if row[0] not in members]
        for each in reversed(members):
            self.running.remove(each)
            self.waiting.insert(0, each)
            self.free(each)
        self.preemptions += len(members)
        ### END SOLUTION

    def admit(self) -> None:
        """Let waiting sequences run, in their order, until one has no place.

        There is a place for a group if no more than `max_num_seqs` sequences run then, forks to
        come included, if some of its tokens can be computed in this step, and if it can enter. None
        overtakes another.
        """
        ### BEGIN SOLUTION
        while self.waiting:
            members = self.members(self.waiting[0])
            if self.places(self.running + members) > self.max_num_seqs:
                return
            if not any(map(self.count, members)):
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
        found = sum(map(self.allocate, members))
        need = sum(
            self.sequences[seq_id].block_table.missing(self.count(seq_id)) for seq_id in members
        )
        try:
            self.demand(need)
        except OutOfBlocks:
            for seq_id in reversed(members):
                self.free(seq_id)
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
        config: as in `PreemptingScheduler`; its `max_num_batched_tokens` is the budget: how many
            tokens a step may compute, any if None.
    Raises:
        ValueError: the budget is less than `max_num_seqs`: some who run would never get a token.
    """

    def __init__(self, config: EngineConfig):
        super().__init__(config)
        ### BEGIN SOLUTION
        limit = config.max_num_batched_tokens
        budget = math.inf if limit is None else limit
        if budget < config.max_num_seqs:
            raise ValueError(
                f"a budget of {budget} tokens starves some of {config.max_num_seqs} sequences"
            )
        self.max_num_batched_tokens = budget
        ### END SOLUTION

    def count(self, seq_id: int) -> int:
        """Say how many tokens of a sequence are to be computed in this step.

        Those that are not computed yet, but no more than are left of the budget.
        """
        ### BEGIN SOLUTION
        spent = sum(stop - start for _, start, stop in self.plan.work)
        return min(super().count(seq_id), self.max_num_batched_tokens - spent)
        ### END SOLUTION
