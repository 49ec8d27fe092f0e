"""Blocks on the host, for sequences that lose those of the cache.

Shapes: N blocks of S slots in the cache, H on the host.
"""

import math

from course_pkg.engine.requests import EngineConfig, OutOfBlocks
from course_pkg.paged_attention import BlockAllocator, BlockTable
from course_pkg.serving.scheduler import ChunkedScheduler


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

    def swap_out(self, tables: dict[int, list[int]]) -> list[tuple[int, int]]:
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
        for seq_id, table in tables.items():
            for block in table:
                if block in here:
                    self.allocator.share(here[block])
                else:
                    here[block] = self.allocator.allocate()
            self.tables[seq_id] = [here[block] for block in table]
        return [(block, self.first + place) for block, place in here.items()]
        ### END SOLUTION

    def blocks(self, seq_ids: list[int]) -> list[int]:
        """List the different blocks that some sequences have here."""
        return list(dict.fromkeys(block for seq_id in seq_ids for block in self.tables[seq_id]))

    def swap_in(
        self, seq_ids: list[int], blocks: list[int]
    ) -> tuple[dict[int, list[int]], list[tuple[int, int]]]:
        """Give sequences blocks of the cache for those that they have here, which they leave.

        Args:
            seq_ids: the sequences.
            blocks: blocks of the cache, one for each of `blocks(seq_ids)`.
        Returns:
            The blocks of the cache that each sequence has then, by its number, and the blocks to
            copy, as pairs (from, to), with N added to those here.
        Raises:
            ValueError: there are more or fewer blocks; then nothing has changed.
        """
        ### BEGIN SOLUTION
        there = dict(zip(self.blocks(seq_ids), blocks, strict=True))
        tables = {seq_id: [there[place] for place in self.tables[seq_id]] for seq_id in seq_ids}
        for seq_id in seq_ids:
            self.drop(seq_id)
        return tables, [(self.first + place, block) for place, block in there.items()]
        ### END SOLUTION

    def drop(self, seq_id: int) -> None:
        """Free the blocks of a sequence here."""
        for block in self.tables.pop(seq_id):
            self.allocator.free(block)

    def fork(self, seq_id: int, child: int) -> None:
        """Let a copy of a sequence share its blocks here."""
        self.tables[child] = list(self.tables[seq_id])
        for block in self.tables[child]:
            self.allocator.share(block)


class SwappingScheduler(ChunkedScheduler):
    """Copy the blocks of a sequence to the host when it loses them, and back when it runs again.

    Nothing is computed twice. Where the host has too few blocks, what is lost is computed again.
    (Kwon et al. 2023, §4.5 and §7.3)

    Attributes:
        space: the `SwapSpace`.

    Args:
        config: as in `ChunkedScheduler`; its `num_cpu_blocks` is H, how many blocks the host has.
    """

    def __init__(self, config: EngineConfig):
        super().__init__(config)
        self.space = SwapSpace(config.num_cpu_blocks, config.num_blocks)

    def preempt(self, seq_id: int) -> None:
        """Take the blocks of a running sequence and its group, who then wait before all others.

        What is computed of them is copied to the host, if there is room for all of it, and stays
        computed.
        """
        members = self.members(seq_id)
        for each in members:
            self.cut(each)
        ### BEGIN SOLUTION
        computed = {each: self.sequences[each].num_computed for each in members}
        tables = {each: self.manager.get_block_table(each) for each in members}
        try:
            copies = self.space.swap_out(tables)
        except OutOfBlocks:
            super().preempt(seq_id)
            return
        super().preempt(seq_id)
        self.plan.copies.extend(copies)
        for each in members:
            self.sequences[each].num_computed = computed[each]
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
        tables, copies = self.space.swap_in(members, blocks)
        self.plan.copies.extend(copies)
        for each in members:
            sequence = self.sequences[each]
            sequence.block_table = BlockTable(self.manager.block_size)
            sequence.block_table.append(sequence.num_computed, tables[each])
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
        for seq_id in members:
            computed, count = self.sequences[seq_id].num_computed, self.count(seq_id)
            full |= set(self.space.tables[seq_id][: computed // S])
            own += math.ceil((computed + count) / S) - computed // S
        return len(full) + own

    def remove(self, seq_id: int) -> None:
        """Let a sequence neither run nor wait any more, and give back its blocks if it has any."""
        super().remove(seq_id)
        if seq_id in self.space.tables:
            self.space.drop(seq_id)

    def fork(self, seq_id: int, child: int) -> None:
        """Add a copy of a sequence that goes on from its state, and stands right behind it."""
        super().fork(seq_id, child)
        if seq_id in self.space.tables:
            self.space.fork(seq_id, child)
