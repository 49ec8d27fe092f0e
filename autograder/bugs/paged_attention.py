"""Known wrong solutions of paged_attention."""

import hashlib
import math
from collections import OrderedDict

import torch

from autograder.bugs import bug, changed, equivalent, mistakes
from course_pkg.inference.requests import OutOfBlocks
from course_pkg.paged_attention import (
    BlockAllocator,
    BlockManager,
    BlockTable,
    PagedKVCache,
    PrefixCache,
    copy_on_write,
    fragmentation,
    online_softmax_merge,
    paged_attention,
    prefix_hash,
)

KINDS = ("tokens", "reserved", "internal", "external", "free")


@bug(fragmentation, "slots that are kept for tokens to come count as internal waste as well")
def reserved_twice(regions, memory, need):
    found = fragmentation(regions, memory, need)
    return {**found, "internal": found["internal"] + found["reserved"]}


@bug(fragmentation, "reserved and internal are mixed up")
def swapped(regions, memory, need):
    found = fragmentation(regions, memory, need)
    return {**found, "internal": found["reserved"], "reserved": found["internal"]}


@bug(fragmentation, "the regions are taken in the order in which they come, not by their start")
def unsorted_regions(regions, memory, need):
    found, end = dict.fromkeys(KINDS, 0), 0
    for start, size, now, final in [*regions, (memory, 0, 0, 0)]:
        found["external" if start - end < need else "free"] += start - end
        found["tokens"] += now
        found["reserved"] += final - now
        found["internal"] += size - final
        end = start + size
    return found


@bug(fragmentation, "the hole behind the last region is forgotten", classic=True)
def no_last_hole(regions, memory, need):
    end = max((start + size for start, size, _, _ in regions), default=0)
    return fragmentation(regions, end, need)


@bug(fragmentation, "the hole before the first region is forgotten", classic=True)
def no_first_hole(regions, memory, need):
    found = fragmentation(regions, memory, need)
    first = min((start for start, _, _, _ in regions), default=memory)
    kind = "external" if first < need else "free"
    return {**found, kind: found[kind] - first}


@bug(fragmentation, "a hole that is just long enough counts as too short")
def too_strict(regions, memory, need):
    return fragmentation(regions, memory, need + 1)


@bug(fragmentation, "the holes are judged by their sum, as if they were one", classic=True)
def one_hole(regions, memory, need):
    found = fragmentation(regions, memory, need)
    hole = found["external"] + found["free"]
    enough = hole >= need
    return {**found, "external": 0 if enough else hole, "free": hole if enough else 0}


@bug(fragmentation, "every hole counts as external waste, however long it is")
def all_external(regions, memory, need):
    return fragmentation(regions, memory, memory + 1)


@bug(fragmentation, "a region's slots all count as tokens up to its final length")
def final_as_tokens(regions, memory, need):
    found = fragmentation(regions, memory, need)
    return {**found, "tokens": found["tokens"] + found["reserved"], "reserved": 0}


@bug(BlockAllocator, "a block is free again as soon as one of its users frees it", classic=True)
class FreedByOne(BlockAllocator):
    def free(self, block):
        if self.references[block] == 0:
            raise ValueError("refused")
        self.references[block] = 0
        self.unused.append(block)


@bug(BlockAllocator, "freed blocks are never handed out again")
class Leaks(BlockAllocator):
    def free(self, block):
        if self.references[block] == 0:
            raise ValueError("refused")
        self.references[block] -= 1


@bug(
    BlockAllocator,
    "a block that was handed out has no user yet",
)
class BeginsAtZero(BlockAllocator):
    def allocate(self):
        block = super().allocate()
        self.references[block] = 0
        return block


@bug(BlockAllocator, "share does not count the new user")
class SharesNothing(BlockAllocator):
    def share(self, block):
        if self.references[block] == 0:
            raise ValueError("refused")


@bug(
    BlockAllocator,
    "a block that is freed twice is handed out twice",
    classic=True,
)
class DoubleFree(BlockAllocator):
    def free(self, block):
        self.references[block] -= 1
        if self.references[block] <= 0:
            self.unused.append(block)


@bug(
    BlockAllocator,
    "an exhausted allocator raises whatever the list of free blocks raises",
    told_by="OutOfBlocks when no block is free: BlockAllocator.allocate raised IndexError",
)
class BareError(BlockAllocator):
    def allocate(self):
        block = self.unused.popleft()
        self.references[block] = 1
        return block


@bug(
    BlockAllocator,
    "an exhausted allocator returns None",
    told_by="should raise OutOfBlocks when no block is free, yours returns None",
)
class ReturnsNone(BlockAllocator):
    def allocate(self):
        return super().allocate() if self.unused else None


@bug(BlockAllocator, "available subtracts users from blocks: a shared block counts twice")
class CountsUsers(BlockAllocator):
    @property
    def available(self):
        return len(self.references) - sum(self.references)


@bug(
    BlockAllocator,
    "the blocks are numbered from 1",
)
class FromOne(BlockAllocator):
    def __init__(self, blocks):
        super().__init__(blocks + 1)
        self.unused.popleft()


@bug(
    BlockAllocator,
    "a block without users can be shared",
)
class SharesUnused(BlockAllocator):
    def share(self, block):
        self.references[block] += 1


@bug(BlockAllocator, "a shared block is free again when half of its users have freed it")
class FreesEarly(BlockAllocator):
    def free(self, block):
        super().free(block)
        if self.references[block] == 1:
            super().free(block)


@bug(BlockAllocator, "every free makes a block available again, even one with users left")
class FreeEachTime(BlockAllocator):
    def free(self, block):
        if self.references[block] == 0:
            raise ValueError("refused")
        self.references[block] -= 1
        self.unused.append(block)


@bug(BlockAllocator, "share makes it two users, however many there are")
class AlwaysTwo(BlockAllocator):
    def share(self, block):
        super().share(block)
        self.references[block] = 2


changed(
    BlockAllocator,
    "CountsDownFirst",
    "a free that is refused has counted down already",
    (
        "        if self.references[block] == 0:\n"
        '            raise ValueError(f"block {block} is not in use and cannot be freed")\n'
        "        self.references[block] -= 1\n",
        "        self.references[block] -= 1\n"
        "        if self.references[block] < 0:\n"
        '            raise ValueError("refused")\n',
    ),
)

changed(
    BlockAllocator,
    "CountsUpFirst",
    "a share that is refused has counted the user already",
    (
        "        if self.references[block] == 0:\n"
        '            raise ValueError(f"block {block} is not in use and cannot be shared")\n'
        "        self.references[block] += 1\n",
        "        self.references[block] += 1\n"
        "        if self.references[block] == 1:\n"
        '            raise ValueError("refused")\n',
    ),
)

mistakes(
    BlockAllocator,
    """
RefusesLast: the last free block is refused
    if not self.unused: → if len(self.unused) <= 1:
""",
)

changed(
    BlockAllocator,
    "OneQueue",
    "all allocators have the same list of free blocks, which belongs to the class",
    (
        "    def __init__(self, blocks: int):\n",
        "    unused = deque()\n\n    def __init__(self, blocks: int):\n",
    ),
    ("self.unused = deque(range(blocks))", "self.unused.extend(range(blocks))"),
)

changed(
    BlockAllocator,
    "AllocatesInShare",
    "a block that nobody uses is handed out by share, which should refuse it",
    (
        'raise ValueError(f"block {block} is not in use and cannot be shared")',
        "self.unused.remove(block)",
    ),
)

changed(
    BlockAllocator,
    "FreeTwice",
    "a block is free when one user is left, and once more when nobody is",
    (
        "        if self.references[block] == 0:\n            self.unused.append(block)",
        "        if self.references[block] <= 1:\n            self.unused.append(block)",
    ),
)

changed(
    BlockAllocator,
    "FreeWithOneLeft",
    "a block is free when one user is left, and not when nobody is",
    (
        "        if self.references[block] == 0:\n            self.unused.append(block)",
        "        if self.references[block] == 1:\n            self.unused.append(block)",
    ),
)

changed(
    BlockAllocator,
    "LastStays",
    "the last user of a block is not counted down when he frees it",
    (
        "        self.references[block] -= 1\n"
        "        if self.references[block] == 0:\n"
        "            self.unused.append(block)",
        "        if self.references[block] == 1:\n"
        "            self.unused.append(block)\n"
        "        else:\n"
        "            self.references[block] -= 1",
    ),
)

mistakes(
    BlockAllocator,
    """
AllAvailable: available stays the number of all blocks, in use or not
    return len(self.unused) → return len(self.references)
UsedAvailable: available counts the blocks that are in use
    return len(self.unused) → return len(self.references) - len(self.unused)
IgnoresFree: a free of a block that nobody uses is ignored, not refused
    raise ValueError(f"block {block} is not in use and cannot be freed") → return
IgnoresShare: a share of a block that nobody uses is ignored, not refused
    raise ValueError(f"block {block} is not in use and cannot be shared") → return
""",
)


class Table(BlockTable):
    """A table whose forks make the same mistake."""

    def fork(self):
        table = type(self)(self.block_size)
        table.blocks, table.length = list(self.blocks), self.length
        return table


@bug(BlockTable, "missing counts whole blocks of new positions, and forgets the rest", classic=True)
class RoundsDown(Table):
    def missing(self, count):
        return max(0, (count - self.waste) // self.block_size)

    def append(self, count, blocks):
        return free_append(self, count, blocks)


def free_append(table, count, blocks):
    table.blocks = table.blocks + list(blocks)
    table.length += count
    return table.slots(table.length - count, table.length)


@bug(BlockTable, "missing forgets the slots that are left in the last block")
class ForgetsRest(Table):
    def missing(self, count):
        return math.ceil(count / self.block_size)

    def append(self, count, blocks):
        return free_append(self, count, blocks)


@bug(BlockTable, "missing asks for a new block when the last one is just filled up", classic=True)
class OneTooMany(Table):
    def missing(self, count):
        needed = (self.length + count) // self.block_size + 1
        return max(0, needed - len(self.blocks))

    def append(self, count, blocks):
        return free_append(self, count, blocks)


@bug(BlockTable, "missing goes below zero when the last block has more room than is asked for")
class Negative(Table):
    def missing(self, count):
        return math.ceil((count - self.waste) / self.block_size) - (count < self.waste)

    def append(self, count, blocks):
        return free_append(self, count, blocks)


@bug(BlockTable, "the slots are those of the logical block, not of the physical one")
class Logical(Table):
    def slots(self, start, stop):
        super().slots(start, stop)
        return list(range(start, stop))


@bug(BlockTable, "block and offset are mixed up: t % S chooses the block")
class MixedUp(Table):
    def slots(self, start, stop):
        super().slots(start, stop)
        S, last = self.block_size, len(self.blocks) - 1
        return [self.blocks[min(t % S, last)] * S + t // S for t in range(start, stop)]


@bug(BlockTable, "a slot is the block's number plus the offset, without times S")
class NotTimes(Table):
    def slots(self, start, stop):
        super().slots(start, stop)
        S = self.block_size
        return [self.blocks[t // S] + t % S for t in range(start, stop)]


@bug(BlockTable, "append returns the slots of all positions, not of the new ones")
class AllSlots(Table):
    def append(self, count, blocks):
        super().append(count, blocks)
        return self.slots(0, self.length)


@bug(BlockTable, "a fork and its parent share one list of blocks", classic=True)
class SharedList(Table):
    def append(self, count, blocks):
        if len(blocks) != self.missing(count):
            raise ValueError("refused")
        self.blocks.extend(blocks)
        self.length += count
        return self.slots(self.length - count, self.length)

    def fork(self):
        table = SharedList(self.block_size)
        table.blocks, table.length = self.blocks, self.length
        return table


@bug(
    BlockTable,
    "a fork forgets its parent's length",
)
class ForkOfNothing(Table):
    def fork(self):
        table = ForkOfNothing(self.block_size)
        table.blocks = list(self.blocks)
        return table


@bug(BlockTable, "a table that ends on a border is said to waste a whole block", classic=True)
class WholeBlock(Table):
    @property
    def waste(self):
        return self.block_size - self.length % self.block_size

    def missing(self, count):
        have = len(self.blocks) * self.block_size - self.length
        return max(0, math.ceil((count - have) / self.block_size))


@bug(
    BlockTable,
    "a block too many is accepted",
)
class Careless(Table):
    def append(self, count, blocks):
        if len(blocks) < self.missing(count):
            raise ValueError("refused")
        return free_append(self, count, blocks)


@bug(
    BlockTable,
    "the slots of positions that are not in use are given",
)
class Unlimited(Table):
    def slots(self, start, stop):
        S = self.block_size
        return [self.blocks[t // S % len(self.blocks)] * S + t % S for t in range(start, stop)]


@bug(
    BlockTable,
    "slots are looked up to the end of the last block, in use or not",
)
class ToTheEnd(Table):
    def slots(self, start, stop):
        used, self.length = self.length, len(self.blocks) * self.block_size
        try:
            return super().slots(start, stop)
        finally:
            self.length = used


@bug(
    BlockTable,
    "the table keeps the caller's list of blocks, which then grows",
)
class KeepsTheList(Table):
    def append(self, count, blocks):
        if len(blocks) != self.missing(count):
            raise ValueError("refused")
        if self.blocks:
            self.blocks += blocks
        else:
            self.blocks = blocks
        self.length += count
        return self.slots(self.length - count, self.length)


@bug(BlockTable, "an append that is refused has added its blocks already")
class AddsFirst(Table):
    def append(self, count, blocks):
        missing = self.missing(count)
        self.blocks = self.blocks + list(blocks)
        if len(blocks) != missing:
            raise ValueError("refused")
        self.length += count
        return self.slots(self.length - count, self.length)


@bug(BlockTable, "append does not count the new positions")
class Uncounted(Table):
    def append(self, count, blocks):
        slots = super().append(count, blocks)
        self.length -= count
        return slots


changed(
    BlockTable,
    "OneBlockOff",
    "missing takes off a block where the last one has room, however many slots that are",
    (
        "return math.ceil((self.length + count) / self.block_size) - len(self.blocks)",
        "return math.ceil(count / self.block_size) - (1 if self.waste else 0)",
    ),
)

changed(
    BlockTable,
    "ForgetsRestAndRefuses",
    "missing forgets the slots that are left in the last block",
    (
        "return math.ceil((self.length + count) / self.block_size) - len(self.blocks)",
        "return math.ceil(count / self.block_size)",
    ),
)

changed(
    BlockTable,
    "RoundsDownAndRefuses",
    "missing rounds down: no block is asked for that is not filled",
    (
        "return math.ceil((self.length + count) / self.block_size) - len(self.blocks)",
        "return max(0, (self.length + count) // self.block_size - len(self.blocks))",
    ),
)

changed(
    BlockTable,
    "OneTooManyAndRefuses",
    "missing asks for a new block when the last one is just filled up",
    (
        "return math.ceil((self.length + count) / self.block_size) - len(self.blocks)",
        "return (self.length + count) // self.block_size + 1 - len(self.blocks)",
    ),
)

changed(
    BlockTable,
    "AllBlocks",
    "missing counts the blocks that the table has already, too",
    (
        "return math.ceil((self.length + count) / self.block_size) - len(self.blocks)",
        "return math.ceil((self.length + count) / self.block_size)",
    ),
)

changed(
    BlockTable,
    "NewPositionsFirst",
    "an append that is refused has added its positions already",
    (
        "        if len(blocks) != self.missing(count):\n"
        '            raise ValueError(f"{count} positions need {self.missing(count)} '
        'blocks, got {blocks}")\n'
        "        self.blocks = self.blocks + list(blocks)\n"
        "        self.length += count\n",
        "        needed = self.missing(count)\n"
        "        self.length += count\n"
        "        if len(blocks) != needed:\n"
        '            raise ValueError("refused")\n'
        "        self.blocks = self.blocks + list(blocks)\n",
    ),
)

mistakes(
    BlockTable,
    """
TakesFewer: a block too few is accepted
    if len(blocks) != self.missing(count): → if len(blocks) > self.missing(count):
TakesAny: append does not look whether it gets as many blocks as are missing
    if len(blocks) != self.missing(count): → if False:
NoEmptyRange: an empty range of positions is refused
    0 <= start <= stop → 0 <= start < stop
BackwardRange: a range that ends before it begins is accepted
    if not 0 <= start <= stop <= self.length → if not (0 <= start and stop <= self.length)
NegativeStart: negative positions are accepted
    if not 0 <= start <= stop <= self.length → if not start <= stop <= self.length
NoLastPosition: a range up to the last position is refused
    stop <= self.length → stop < self.length
""",
)

changed(
    BlockTable,
    "AnyBlock",
    "slots are given wherever there is a block, without a look at the length",
    (
        "        if not 0 <= start <= stop <= self.length:\n"
        '            raise IndexError(f"positions {start} to {stop - 1} are not all '
        'among {self.length}")\n',
        "",
    ),
)

mistakes(
    BlockTable,
    """
StopIncluded: the slot of the position at stop is given as well
    for t in range(start, stop)] → for t in range(start, min(stop + 1, self.length))]
""",
)

changed(
    BlockTable,
    "FullFork",
    "a fork counts all slots of its blocks as in use",
    ("list(self.blocks), self.length\n", "list(self.blocks), len(self.blocks) * self.block_size\n"),
)

changed(
    BlockTable,
    "NoBlocksInFork",
    "a fork has its parent's length but not its blocks",
    ("list(self.blocks), self.length\n", "[], self.length\n"),
)

changed(
    BlockTable,
    "ForkIsItself",
    "a fork is the table itself",
    (
        "        table = BlockTable(self.block_size)\n"
        "        table.blocks, table.length = list(self.blocks), self.length\n"
        "        return table",
        "        return self",
    ),
)

mistakes(
    BlockTable,
    """
OneList: all tables have the same list of blocks
    def __init__(self, block_size: int): → def __init__(self, block_size: int, blocks=[]):
    self.blocks = [] → self.blocks = blocks
    self.blocks = self.blocks + list(blocks) → self.blocks.extend(blocks)
NewBlocksFirst: new blocks come before those that the table has
    self.blocks + list(blocks) → list(blocks) + self.blocks
OnlyNewBlocks: append replaces the blocks that the table has
    self.blocks + list(blocks) → list(blocks) or self.blocks
FirstListKept: the table keeps the list that the caller gave first
    self.blocks + list(blocks) → self.blocks + list(blocks) if self.blocks else blocks
CountsUsed: waste counts the slots of the last block that are in use
    return len(self.blocks) * self.block_size - self.length → return self.length % self.block_size
""",
)


@bug(PagedKVCache, "block and offset are mixed up: slot n is taken for block n % S")
class OffsetFirst(PagedKVCache):
    def write(self, layer, slots, K, V):
        N, S = self.K.shape[2:4]
        super().write(layer, slots % S % N * S + slots // S % S, K, V)


@bug(PagedKVCache, "the number of blocks is taken for their size")
class DividesByBlocks(PagedKVCache):
    def write(self, layer, slots, K, V):
        N, S = self.K.shape[2:4]
        super().write(layer, slots // N * S + slots % N % S, K, V)


@bug(PagedKVCache, "every layer is written, not one")
class AllLayers(PagedKVCache):
    def write(self, layer, slots, K, V):
        for each in range(len(self.K)):
            super().write(each, slots, K, V)


@bug(PagedKVCache, "the keys are stored as values, too")
class KeysTwice(PagedKVCache):
    def write(self, layer, slots, K, V):
        super().write(layer, slots, K, K)


@bug(PagedKVCache, "K and V are the same tensor, so that values overwrite keys")
class OneTensor(PagedKVCache):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.V = self.K


@bug(PagedKVCache, "heads and positions are reshaped where they should be transposed", classic=True)
class Reshaped(PagedKVCache):
    def write(self, layer, slots, K, V):
        K, V = (X.reshape(X.shape[1], X.shape[0], -1).transpose(0, 1) for X in (K, V))
        super().write(layer, slots, K, V)


@bug(PagedKVCache, "gather does not cut what lies behind the length")
class Uncut(PagedKVCache):
    def gather(self, layer, blocks, length):
        return super().gather(layer, blocks, len(blocks) * self.K.shape[3])


@bug(PagedKVCache, "gather reads the blocks by their number, not in the table's order")
class Sorted(PagedKVCache):
    def gather(self, layer, blocks, length):
        return super().gather(layer, sorted(blocks), length)


@bug(PagedKVCache, "a copy copies the keys only", classic=True)
class CopiesKeys(PagedKVCache):
    def copy(self, copies):
        for source, target in copies:
            self.K[:, :, target] = self.K[:, :, source]


@bug(PagedKVCache, "a copy is made in the first layer only", classic=True)
class CopiesOneLayer(PagedKVCache):
    def copy(self, copies):
        for source, target in copies:
            self.K[0, :, target] = self.K[0, :, source]
            self.V[0, :, target] = self.V[0, :, source]


@bug(
    PagedKVCache,
    "a copy goes in the wrong direction",
    told_by="positions of the block and of its copy at [0, 0, 0, 0]",
)
class Backwards(PagedKVCache):
    def copy(self, copies):
        super().copy([(target, source) for source, target in copies])


@bug(PagedKVCache, "copies are made all at once, not one after the other")
class CopiesAtOnce(PagedKVCache):
    def copy(self, copies):
        if copies:
            sources, targets = map(list, zip(*copies, strict=True))
            self.K[:, :, targets] = self.K[:, :, sources]
            self.V[:, :, targets] = self.V[:, :, sources]


@bug(PagedKVCache, "what is gathered from one block is a view, which later writes change")
class GathersViews(PagedKVCache):
    def gather(self, layer, blocks, length):
        if len(blocks) == 1:
            K, V = self.K[layer, :, blocks[0]], self.V[layer, :, blocks[0]]
            return K[:, :length].transpose(0, 1), V[:, :length].transpose(0, 1)
        return super().gather(layer, blocks, length)


@bug(PagedKVCache, "what is gathered from neighbouring blocks is a view, which later writes change")
class GathersSlices(PagedKVCache):
    def gather(self, layer, blocks, length):
        first, last = blocks[0], blocks[-1] + 1
        if blocks != list(range(first, last)):
            return super().gather(layer, blocks, length)
        parts = (X[layer, :, first:last].flatten(1, 2)[:, :length] for X in (self.K, self.V))
        return tuple(X.transpose(0, 1) for X in parts)


mistakes(
    PagedKVCache,
    """
DictOfCopies: a block that is copied to two others reaches only the last of them
    in copies: → in dict(copies).items():
FirstCopy: only the first of several copies is made
    in copies: → in copies[:1]:
LastCopyFirst: the copies are made from the last to the first
    in copies: → in reversed(copies):
ValuesOfOneLayer: values are copied in the first layer only
    self.V[:, :, target] = self.V[:, :, source] → self.V[0, :, target] = self.V[0, :, source]
KeysOfOneLayer: keys are copied in the first layer only
    self.K[:, :, target] = self.K[:, :, source] → self.K[0, :, target] = self.K[0, :, source]
KeysAsValues: a copy puts the keys where the values belong
    self.V[:, :, target] = self.V[:, :, source] → self.V[:, :, target] = self.K[:, :, source]
""",
)

changed(
    PagedKVCache,
    "ValuesOnly",
    "a copy copies the values only",
    ("            self.K[:, :, target] = self.K[:, :, source]\n", ""),
)

mistakes(
    PagedKVCache,
    """
DefaultValues: keys or values have torch's default dtype, whatever is asked for
    self.V = torch.zeros_like(self.K) → self.V = torch.zeros(self.K.shape, device=device)
DefaultDtype: keys or values have torch's default dtype, whatever is asked for
    dtype=dtype, device=device) → device=device)
Adds: what is written is added to what the slots hold
    slots % S] = K → slots % S] += K
    slots % S] = V → slots % S] += V
""",
)

changed(
    PagedKVCache,
    "MixesKV",
    "write mixes up keys and values",
    ("        S = self.K.shape[3]\n", "        S, K, V = self.K.shape[3], V, K\n"),
)

mistakes(
    PagedKVCache,
    """
FirstLayer: all layers are written to the first one
    self.K[layer, :, slots → self.K[0, :, slots
    self.V[layer, :, slots → self.V[0, :, slots
ReadsFirstLayer: gather reads the first layer, whichever is asked for
    self.K[layer][:, blocks] → self.K[0][:, blocks]
    self.V[layer][:, blocks] → self.V[0][:, blocks]
KeysForValues: gather gives the keys twice
    self.V[layer][:, blocks] → self.K[layer][:, blocks]
""",
)

changed(
    PagedKVCache,
    "ReshapesGathered",
    "what is gathered is reshaped where heads and positions should be swapped",
    (
        "X.flatten(1, 2)[:, :length].permute(1, 0, 2)",
        "X.flatten(1, 2)[:, :length].reshape(length, X.shape[0], -1)",
    ),
)

changed(
    PagedKVCache,
    "Float32",
    "keys and values are float32 when no dtype is given, not torch's default",
    (
        "        self.K = torch.zeros(",
        "        dtype = torch.float32 if dtype is None else dtype\n        self.K = torch.zeros(",
    ),
    told_by="set to float64 for this check, yours is torch.float32",
)


@bug(online_softmax_merge, "the outputs are averaged, whatever their weights")
def averaged(Y_a, s_a, Y_b, s_b):
    return (Y_a + Y_b) / 2, torch.logaddexp(s_a, s_b)


@bug(online_softmax_merge, "the weights of the two parts are mixed up")
def mixed_up(Y_a, s_a, Y_b, s_b):
    return online_softmax_merge(Y_b, s_a, Y_a, s_b)


@bug(online_softmax_merge, "the largest s of all queries is subtracted, not that of each")
def one_height(Y_a, s_a, Y_b, s_b):
    top = torch.maximum(s_a, s_b).max().clamp(min=-1e300)
    w_a, w_b = torch.exp(s_a - top), torch.exp(s_b - top)
    total = w_a + w_b
    Y = (w_a[..., None] * Y_a + w_b[..., None] * Y_b) / torch.where(total > 0, total, 1)[..., None]
    return Y, top + torch.log(total)


@bug(online_softmax_merge, "the outputs are added without weights")
def summed(Y_a, s_a, Y_b, s_b):
    return Y_a + Y_b, torch.logaddexp(s_a, s_b)


@bug(online_softmax_merge, "s is the sum of s_a and s_b, although they are logarithms")
def added_logarithms(Y_a, s_a, Y_b, s_b):
    return online_softmax_merge(Y_a, s_a, Y_b, s_b)[0], s_a + s_b


@bug(online_softmax_merge, "s is the larger of the two, not the logarithm of the sum")
def only_the_larger(Y_a, s_a, Y_b, s_b):
    return online_softmax_merge(Y_a, s_a, Y_b, s_b)[0], torch.maximum(s_a, s_b)


@bug(online_softmax_merge, "the weighted outputs are not divided by the sum of the weights")
def not_normalised(Y_a, s_a, Y_b, s_b):
    top = torch.maximum(s_a, s_b).clamp(min=-1e300)
    w_a, w_b = (torch.exp(s - top)[..., None] for s in (s_a, s_b))
    return w_a * Y_a + w_b * Y_b, torch.logaddexp(s_a, s_b)


@bug(online_softmax_merge, "the weights are s_a and s_b themselves, not their exponentials")
def linear_weights(Y_a, s_a, Y_b, s_b):
    total = (s_a + s_b)[..., None]
    return (s_a[..., None] * Y_a + s_b[..., None] * Y_b) / total, torch.logaddexp(s_a, s_b)


@bug(
    online_softmax_merge,
    "the exponentials are taken without subtracting the larger one first",
    told_by="yours is nan",
    classic=True,
)
def overflows(Y_a, s_a, Y_b, s_b):
    w_a, w_b = torch.exp(s_a), torch.exp(s_b)
    total = w_a + w_b
    Y = (w_a[..., None] * Y_a + w_b[..., None] * Y_b) / total.clamp(min=1e-300)[..., None]
    return Y, torch.log(total)


@bug(
    online_softmax_merge,
    "two empty parts give NaN: -∞ minus -∞",
    told_by="Y[0, 0] should be 0, yours is nan",
    classic=True,
)
def empty_is_nan(Y_a, s_a, Y_b, s_b):
    s = torch.logaddexp(s_a, s_b)
    w_a, w_b = (torch.exp(part - s)[..., None] for part in (s_a, s_b))
    return w_a * Y_a + w_b * Y_b, s


@bug(online_softmax_merge, "s is returned as the sum itself, not as its logarithm")
def sum_itself(Y_a, s_a, Y_b, s_b):
    Y, s = online_softmax_merge(Y_a, s_a, Y_b, s_b)
    return Y, s.exp()


@bug(online_softmax_merge, "the gradient of a set without keys is NaN", told_by="yours is nan")
def empty_sends_nan(Y_a, s_a, Y_b, s_b):
    top = torch.maximum(s_a, s_b).clamp(min=torch.finfo(s_a.dtype).min)
    w_a, w_b = torch.exp(s_a - top), torch.exp(s_b - top)
    total = w_a + w_b
    Y = (w_a[..., None] * Y_a + w_b[..., None] * Y_b) / total.clamp(min=1)[..., None]
    return Y, top + torch.log(total)


@bug(online_softmax_merge, "no gradient goes back to s: the weights are detached")
def weights_detached(Y_a, s_a, Y_b, s_b):
    with torch.no_grad():
        top = torch.maximum(s_a, s_b).clamp(min=torch.finfo(s_a.dtype).min)
        w_a, w_b = (torch.exp(s - top) for s in (s_a, s_b))
        some = (w_a + w_b).clamp(min=1)
    Y = ((w_a / some)[..., None] * Y_a) + ((w_b / some)[..., None] * Y_b)
    return Y, online_softmax_merge(Y_a, s_a, Y_b, s_b)[1]


def attention_with(Q, K, V, tables, lengths, **changed):
    """Attention over gathered blocks, with one thing done in another way."""
    B, T, H, D_h = Q.shape
    G, _, S, _ = K.shape
    heads = changed.get("heads", lambda h: h // (H // G))
    shift = changed.get("shift", 0)
    Y = torch.zeros_like(Q)
    for b in range(B):
        length = int(changed.get("lengths", lengths)[b])
        n = changed.get("keys", lambda length: length)(length)
        table = changed.get("tables", tables)[b][: math.ceil(n / S)]
        for t in range(T):
            last = changed.get("position", length - T + t) + shift
            if "all" in changed:
                last = n
            for h in range(H):
                keys, values = (X[heads(h), table].flatten(0, 1)[:n] for X in (K, V))
                E = keys @ Q[b, t, h] / changed.get("scale", math.sqrt(D_h))
                E = E[: max(last + 1, 0)]
                Y[b, t, h] = torch.softmax(E, dim=0) @ values[: len(E)]
    return Y


@bug(paged_attention, "the scores are not divided by √D_h")
def unscaled(Q, K, V, tables, lengths, at_once=4):
    return attention_with(Q, K, V, tables, lengths, scale=1.0)


@bug(paged_attention, "the slots of the last block that are not in use are not masked")
def whole_last_block(Q, K, V, tables, lengths, at_once=4):
    S = K.shape[2]
    ends = (lengths + S - 1) // S * S
    T = Q.shape[1]
    if T == 1:
        return attention_with(Q, K, V, tables, ends)
    return attention_with(Q, K, V, tables, lengths, keys=lambda n: -(-n // S) * S, all=True)


@bug(paged_attention, "a query does not see its own position")
def not_itself(Q, K, V, tables, lengths, at_once=4):
    return attention_with(Q, K, V, tables, lengths, shift=-1)


@bug(paged_attention, "a query sees one position too many")
def one_too_many(Q, K, V, tables, lengths, at_once=4):
    S = K.shape[2]
    return attention_with(
        Q, K, V, tables, lengths, shift=1, keys=lambda n: min(n + 1, -(-n // S) * S)
    )


@bug(paged_attention, "every query sees all positions of its sequence, those after it as well")
def not_causal(Q, K, V, tables, lengths, at_once=4):
    return attention_with(Q, K, V, tables, lengths, all=True)


@bug(paged_attention, "query head h reads key head h % G instead of h // (H / G)", classic=True)
def interleaved_heads(Q, K, V, tables, lengths, at_once=4):
    return attention_with(Q, K, V, tables, lengths, heads=lambda h: h % len(K))


@bug(paged_attention, "all query heads read the first key head")
def first_head(Q, K, V, tables, lengths, at_once=4):
    return attention_with(Q, K, V, tables, lengths, heads=lambda h: 0)


@bug(paged_attention, "the logical block is read in place of the physical one: no table is used")
def no_table(Q, K, V, tables, lengths, at_once=4):
    logical = torch.arange(tables.shape[1]).expand(len(tables), -1)
    return attention_with(Q, K, V, logical, lengths)


@bug(paged_attention, "a block that is not full is left out")
def full_blocks_only(Q, K, V, tables, lengths, at_once=4):
    S = K.shape[2]
    return attention_with(Q, K, V, tables, lengths, keys=lambda n: n // S * S)


@bug(
    paged_attention,
    "query t is taken for position t, not for position length - T + t",
    classic=True,
)
def counts_from_zero(Q, K, V, tables, lengths, at_once=4):
    rows = [
        attention_with(Q[:, t : t + 1], K, V, tables, lengths, position=t)
        for t in range(Q.shape[1])
    ]
    return torch.cat(rows, dim=1)


@bug(paged_attention, "what the steps give is averaged instead of merged by their sums")
def averaged_steps(Q, K, V, tables, lengths, at_once=4):
    S = K.shape[2]
    parts = []
    for first in range(0, tables.shape[1], at_once):
        begin = first * S
        here = (lengths - begin).clamp(min=0, max=at_once * S)
        piece = tables[:, first : first + at_once]
        parts.append(
            torch.stack(
                [
                    attention_with(q[None], K, V, row[None], n[None], all=True)[0]
                    if n > 0
                    else torch.zeros_like(q)
                    for q, row, n in zip(Q, piece, here, strict=True)
                ]
            )
        )
    counts = torch.stack([(lengths > n * at_once * S).sum() * 0 + 1 for n in range(len(parts))])
    return torch.stack(parts).sum(dim=0) / counts.sum()


@bug(paged_attention, "only the first few blocks are read: one step, not as many as needed")
def one_step(Q, K, V, tables, lengths, at_once=4):
    limit = at_once * K.shape[2]
    return attention_with(Q, K, V, tables, lengths, keys=lambda n: min(n, limit))


@bug(paged_attention, "the mask goes by the longest sequence of the batch", classic=True)
def masked_by_longest(Q, K, V, tables, lengths, at_once=4):
    return attention_with(Q, K, V, tables, lengths.max().expand(len(lengths)))


@bug(
    copy_on_write,
    "the blocks' own numbers are returned, not their places in the table",
    told_by="should hold places in a table of 5, yours is",
)
def physical(blocks, start, stop, block_size, references):
    return [blocks[n] for n in copy_on_write(blocks, start, stop, block_size, references)]


@bug(copy_on_write, "blocks that nobody shares are copied, too")
def copies_all(blocks, start, stop, block_size, references):
    return copy_on_write(blocks, start, stop, block_size, [2] * len(references))


@bug(copy_on_write, "every shared block of the table is copied, not only those written to")
def whole_table(blocks, start, stop, block_size, references):
    return copy_on_write(blocks, 0, len(blocks) * block_size, block_size, references)


@bug(copy_on_write, "only the first block that is written to is looked at")
def first_only(blocks, start, stop, block_size, references):
    return copy_on_write(blocks, start, start + 1, block_size, references)


@bug(copy_on_write, "only the last block of the table is looked at")
def last_only(blocks, start, stop, block_size, references):
    last = len(blocks) - 1
    return [last] if references[blocks[last]] > 1 else []


@bug(copy_on_write, "the block at stop is copied, although nothing is written there")
def stop_included(blocks, start, stop, block_size, references):
    return copy_on_write(blocks, start, stop + 1, block_size, references)


@bug(copy_on_write, "the block before start is copied when start lies on a border", classic=True)
def one_before(blocks, start, stop, block_size, references):
    return copy_on_write(blocks, max(start - 1, 0), stop, block_size, references)


@bug(
    copy_on_write,
    "users are looked up by the place in the table, not by the block's number",
    classic=True,
)
def users_by_place(blocks, start, stop, block_size, references):
    touched = range(start // block_size, math.ceil(stop / block_size))
    return [n for n in touched if n < len(blocks) and references[n] > 1]


@bug(copy_on_write, "a block with exactly two users is not copied")
def three_users(blocks, start, stop, block_size, references):
    return copy_on_write(blocks, start, stop, block_size, [n - 1 for n in references])


@bug(
    copy_on_write,
    "the table is read beyond its end",
    told_by="copy_on_write raised IndexError",
)
def beyond_the_end(blocks, start, stop, block_size, references):
    touched = range(start // block_size, math.ceil(stop / block_size))
    return [n for n in touched if references[blocks[n]] > 1]


def blocks_of(tokens, S):
    return [tuple(tokens[n : n + S]) for n in range(0, len(tokens) - S + 1, S)]


@bug(prefix_hash, "a block is named by its own tokens alone")
def no_parent(tokens, block_size, parent=""):
    return [repr(block) for block in blocks_of(tokens, block_size)]


@bug(prefix_hash, "the last block has a name although it is not full")
def partial_block(tokens, block_size, parent=""):
    return prefix_hash(list(tokens) + [-1] * (-len(tokens) % block_size), block_size, parent)


@bug(prefix_hash, "a block is named by the sum of its tokens")
def by_sum(tokens, block_size, parent=""):
    names = []
    for block in blocks_of(tokens, block_size):
        parent = f"{parent}/{sum(block)}"
        names.append(parent)
    return names


@bug(prefix_hash, "a block is named by its tokens in sorted order")
def by_set(tokens, block_size, parent=""):
    names = []
    for block in blocks_of(tokens, block_size):
        parent = f"{parent}/{sorted(block)}"
        names.append(parent)
    return names


@bug(
    prefix_hash,
    "the tokens are written without anything between them: 1 23 looks like 12 3",
    classic=True,
)
def no_separator(tokens, block_size, parent=""):
    names = []
    for block in blocks_of(tokens, block_size):
        parent = f"{parent}/" + "".join(map(str, block))
        names.append(parent)
    return names


@bug(prefix_hash, "a block is named by its parent's parent: one link of the chain is left out")
def skips_one(tokens, block_size, parent=""):
    names, grandparent = [], ""
    for block in blocks_of(tokens, block_size):
        names.append(repr((grandparent, block)))
        grandparent, parent = parent, names[-1]
    return names


@bug(prefix_hash, "every chain begins anew: the parent that is given is not used")
def parent_ignored(tokens, block_size, parent=""):
    return prefix_hash(tokens, block_size)


@bug(prefix_hash, "a block is named by its place and its own tokens")
def by_place(tokens, block_size, parent=""):
    return [repr(pair) for pair in enumerate(blocks_of(tokens, block_size))]


@bug(
    prefix_hash,
    "names are so short that two texts with the same one can be found",
    told_by="A name needs 22 characters",
)
def short_names(tokens, block_size, parent=""):
    names = []
    for block in blocks_of(tokens, block_size):
        parent = hashlib.sha256(repr((parent, block)).encode()).hexdigest()[:8]
        names.append(parent)
    return names


@bug(prefix_hash, "there are so few names that different texts share one", classic=True)
def few_names(tokens, block_size, parent=""):
    names = []
    for name in prefix_hash(tokens, block_size):
        names.append(int(name, 16) % 1000)
    if parent == "":
        return names
    return [f"{parent} {name}" for name in names]


@bug(prefix_hash, "a block is named by its last token and its parent")
def last_token(tokens, block_size, parent=""):
    names = []
    for block in blocks_of(tokens, block_size):
        parent = f"{parent}/{block[-1]}"
        names.append(parent)
    return names


@bug(PrefixCache, "an evicted block keeps its name, and is found with new content", classic=True)
class KeepsName(PrefixCache):
    def allocate(self):
        if not self.unused and self.idle:
            self.unused.append(self.idle.popitem(last=False)[0])
        return BlockAllocator.allocate(self)


@bug(PrefixCache, "blocks that wait with a name are not counted as available")
class OnlyUnused(PrefixCache):
    @property
    def available(self):
        return len(self.unused)


@bug(PrefixCache, "a block that is found again can still be handed out to others", classic=True)
class StaysIdle(PrefixCache):
    def find(self, name):
        block = self.places.get(name)
        if block is not None:
            self.references[block] += 1
        return block


@bug(PrefixCache, "find does not count the new user")
class UncountedFind(PrefixCache):
    def find(self, name):
        block = self.places.get(name)
        if block is not None and self.references[block] == 0:
            self.idle.pop(block)
            self.references[block] = 1
        return block


@bug(PrefixCache, "the block that was freed last is handed out first")
class LastFirst(PrefixCache):
    def allocate(self):
        if not self.unused and self.idle:
            self.idle.move_to_end(next(reversed(self.idle)), last=False)
        return super().allocate()


@bug(PrefixCache, "blocks are forgotten by their number, not by how long they are idle")
class ByNumber(PrefixCache):
    def allocate(self):
        if not self.unused and self.idle:
            self.idle = OrderedDict.fromkeys(sorted(self.idle))
        return super().allocate()


@bug(PrefixCache, "blocks are forgotten in the order in which they were named, not became idle")
class ByName(PrefixCache):
    def allocate(self):
        if not self.unused and self.idle:
            self.idle = OrderedDict.fromkeys(block for block in self.names if block in self.idle)
        return super().allocate()


@bug(PrefixCache, "blocks with a name are handed out before those without")
class NamedFirst(PrefixCache):
    def allocate(self):
        if self.idle:
            block, _ = self.idle.popitem(last=False)
            del self.places[self.names.pop(block)]
            self.unused.appendleft(block)
        return BlockAllocator.allocate(self)


@bug(PrefixCache, "a block loses its name when it is freed: nothing is remembered")
class ForgetsAtOnce(PrefixCache):
    def free(self, block):
        BlockAllocator.free(self, block)
        if self.references[block] == 0 and block in self.names:
            del self.places[self.names.pop(block)]


@bug(
    PrefixCache, "a second block of the same content takes over the name of the first", classic=True
)
class TakesOver(PrefixCache):
    def register(self, block, name):
        if block not in self.names:
            if name in self.places:
                self.names.pop(self.places[name], None)
            self.names[block], self.places[name] = name, block


@bug(
    PrefixCache,
    "a second block of the same content also has the name, and takes it away when it is reused",
)
class NamedTwice(PrefixCache):
    def register(self, block, name):
        if block not in self.names:
            self.names[block] = name
            self.places.setdefault(name, block)


@bug(PrefixCache, "a block that still has users counts as idle when one of them frees it")
class IdleInUse(PrefixCache):
    def free(self, block):
        BlockAllocator.free(self, block)
        if block in self.names:
            if self.references[block] == 0:
                self.unused.remove(block)
            self.idle[block] = None


@bug(PrefixCache, "an evicted block keeps its old name, and gets no new one")
class NoNewName(PrefixCache):
    def allocate(self):
        if not self.unused and self.idle:
            block, _ = self.idle.popitem(last=False)
            self.places.pop(self.names[block], None)
            self.unused.append(block)
        return BlockAllocator.allocate(self)


@bug(PrefixCache, "a block that has a name gets another, and is found by both")
class Renames(PrefixCache):
    def register(self, block, name):
        if name not in self.places:
            self.names[block], self.places[name] = name, block


@bug(PrefixCache, "blocks that are in use count as available if they have a name")
class NamedAvailable(PrefixCache):
    @property
    def available(self):
        return len(self.unused) + len(self.names)


@bug(
    PrefixCache,
    "find shares the block, which share refuses when nobody uses it",
    told_by="PrefixCache.find raised ValueError",
)
class SharesFound(PrefixCache):
    def find(self, name):
        block = self.places.get(name)
        if block is not None:
            self.share(block)
            self.idle.pop(block, None)
        return block


@bug(PrefixCache, "a block that becomes idle can be handed out as one without a name, too")
class IdleAndUnused(PrefixCache):
    @property
    def available(self):
        return self.references.count(0)

    def allocate(self):
        block = super().allocate()
        self.idle.pop(block, None)
        return block

    def free(self, block):
        BlockAllocator.free(self, block)
        if self.references[block] == 0 and block in self.names:
            self.idle[block] = None

    def find(self, name):
        block = super().find(name)
        if block in self.unused:
            self.unused.remove(block)
        return block


mistakes(
    PrefixCache,
    """
ZeroIsNone: block 0 is found but gets no user: it is taken for none
    if block is not None: → if block:
""",
)

changed(
    PrefixCache,
    "ZeroNotFound",
    "block 0 is never found: it is taken for none",
    (
        "        block = self.places.get(name)\n        if block is not None:",
        "        block = self.places.get(name) or None\n        if block is not None:",
    ),
)

mistakes(
    PrefixCache,
    """
OneUser: find makes it one user, however many there are
    self.references[block] += 1 → self.references[block] = 1
""",
)

changed(
    PrefixCache,
    "NoUser",
    "find counts no user at all",
    ("            self.references[block] += 1\n", ""),
)

mistakes(
    PrefixCache,
    """
FoundOnce: a name leads to its block only once
    block = self.places.get(name) → block = self.places.pop(name, None)
StillFound: an evicted block is still found by its old name
    del self.places[self.names.pop(block)] → del self.names[block]
AlwaysIdle: blocks without a name count as idle as well
    and block in self.names: → :
    del self.places[self.names.pop(block)] → self.places.pop(self.names.pop(block, None), None)
""",
)

changed(
    PrefixCache,
    "NamelessLost",
    "freed blocks without a name are never handed out again",
    (
        "            self.idle[self.unused.pop()] = None  # it has just come there, as the last",
        "            self.idle[block] = None",
    ),
    (
        "        if self.references[block] == 0 and block in self.names:",
        "        if self.references[block] == 0:\n"
        "            self.unused.pop()\n"
        "        if self.references[block] == 0 and block in self.names:",
    ),
)

changed(
    PrefixCache,
    "TwoNames",
    "a block that has a name gets another, and loses the old one",
    (
        "        if block not in self.names and name not in self.places:\n",
        "        if name not in self.places:\n"
        "            self.places.pop(self.names.get(block), None)\n",
    ),
)

mistakes(
    PrefixCache,
    """
NewestEvicted: the block that was freed last is handed out first
    popitem(last=False) → popitem()
""",
)


@bug(
    BlockManager,
    "blocks gives the blocks by their number, not in the order of the table",
    told_by="that has got the blocks of another one",
)
class SortedBlocks(BlockManager):
    def blocks(self, number):
        return sorted(super().blocks(number))


@bug(BlockManager, "a prompt that is cached as a whole leaves nothing to compute")
class WholePrompt(BlockManager):
    def open(self, number, tokens):
        return super().open(number, [*tokens, 0])


@bug(BlockManager, "the last full block is computed anew even if a token behind it is left")
class OneBlockLess(BlockManager):
    def open(self, number, tokens):
        return super().open(number, tokens[: -self.block_size] or tokens[:1])


@bug(BlockManager, "blocks are taken before it is clear that there are enough")
class HalfGrown(BlockManager):
    def grow(self, number, count):
        table, copies = self.sequences[number].block_table, []
        S = self.block_size
        users = self.allocator.references
        for n in copy_on_write(table.blocks, table.length, table.length + count, S, users):
            copies.append((table.blocks[n], self.allocator.allocate()))
            self.allocator.free(table.blocks[n])
            table.blocks[n] = copies[-1][1]
        new = [self.allocator.allocate() for _ in range(table.missing(count))]
        table.append(count, new)
        return copies


@bug(BlockManager, "a shared block is written to without a copy")
class NoCopy(BlockManager):
    def grow(self, number, count):
        table = self.sequences[number].block_table
        if table.missing(count) > self.allocator.available:
            raise OutOfBlocks
        table.append(count, [self.allocator.allocate() for _ in range(table.missing(count))])
        return []


@bug(BlockManager, "the block that was copied keeps the user who left it")
class KeepsUser(BlockManager):
    def grow(self, number, count):
        copies = super().grow(number, count)
        for source, _ in copies:
            self.allocator.share(source)
        return copies


@bug(BlockManager, "the copies are not given as (from, to)")
class ToFrom(BlockManager):
    def grow(self, number, count):
        return [(target, source) for source, target in super().grow(number, count)]


@bug(BlockManager, "a fork does not count as a user of the blocks")
class UncountedFork(BlockManager):
    def fork(self, number, child):
        super().fork(number, child)
        for block in self.blocks(child):
            self.allocator.references[block] -= 1

    def close(self, number):
        for block in reversed(self.blocks(number)):
            if self.allocator.references[block]:
                self.allocator.free(block)
        self.sequences[number].block_table = None


@bug(BlockManager, "a fork shares full blocks only, and begins its last one anew")
class FullBlocks(BlockManager):
    def fork(self, number, child):
        super().fork(number, child)
        table = self.sequences[child].block_table
        if table is not None and table.length % self.block_size:
            self.allocator.free(table.blocks[-1])
            table.blocks[-1] = self.allocator.allocate()


@bug(BlockManager, "the blocks are given back from the first to the last")
class FirstBlockFirst(BlockManager):
    def close(self, number):
        for block in self.blocks(number):
            self.allocator.free(block)
        self.sequences[number].block_table = None


@bug(BlockManager, "blocks are named by all tokens, also where none is computed yet")
class NamesTooEarly(BlockManager):
    def commit(self, number, tokens):
        for block, name in zip(
            self.blocks(number), prefix_hash(tokens, self.block_size), strict=False
        ):
            self.allocator.register(block, name)


@bug(BlockManager, "the search goes on behind a block that is not found")
class SearchesOn(BlockManager):
    def open(self, number, tokens):
        table, S = BlockTable(self.block_size), self.block_size
        for name in prefix_hash(tokens[:-1], S):
            block = self.allocator.find(name)
            if block is not None:
                table.append(S, [block])
        super().open(number, tokens[:1])
        sequence = self.sequences[number]
        sequence.block_table = table
        sequence.block_hashes = prefix_hash(tokens, S)[: len(table.blocks)]
        return table.length


@bug(
    BlockManager,
    "the blocks of a prefix are found but not put into the table",
)
class EmptyTable(BlockManager):
    def open(self, number, tokens):
        found = super().open(number, tokens)
        self.sequences[number].block_table = BlockTable(self.block_size)
        return found


@bug(
    BlockManager,
    "a sequence that is closed keeps its table, with blocks that others may get",
    told_by="which is closed, should be None",
)
class KeepsTable(BlockManager):
    def close(self, number):
        table = self.sequences[number].block_table
        super().close(number)
        self.sequences[number].block_table = table


@bug(
    BlockManager,
    "a sequence that gets a new table begins anew, with the tokens given",
)
class BeginsAnew(BlockManager):
    def open(self, number, tokens):
        self.sequences.pop(number, None)
        return super().open(number, tokens)


@bug(BlockManager, "a last block that is found and left to compute keeps a user: nobody frees it")
class KeepsTheLastFound(BlockManager):
    def open(self, number, tokens):
        found = super().open(number, tokens)
        names = prefix_hash(tokens, self.block_size)
        if found + self.block_size == len(tokens):
            self.allocator.find(names[-1])
        return found


@bug(BlockManager, "a block that is found gets two new users: from find, and from share")
class SharesFoundToo(BlockManager):
    def open(self, number, tokens):
        found = super().open(number, tokens)
        for block in self.blocks(number):
            self.allocator.share(block)
        return found


@bug(BlockManager, "open gives the number of blocks found, not of tokens")
class CountsBlocks(BlockManager):
    def open(self, number, tokens):
        return super().open(number, tokens) // self.block_size


@bug(BlockManager, "blocks behind named ones are named as if the text began there")
class BeginsThere(BlockManager):
    def commit(self, number, tokens):
        sequence, S = self.sequences[number], self.block_size
        table, known = sequence.block_table, sequence.block_hashes
        new = prefix_hash(tokens[len(known) * S : table.length], S)
        for place, name in enumerate(new, start=len(known)):
            self.allocator.register(table.blocks[place], name)
        sequence.block_hashes = known + new


@bug(BlockManager, "new names are given to the first blocks of the table, not to those behind")
class NamesFirstBlocks(BlockManager):
    def commit(self, number, tokens):
        sequence, S = self.sequences[number], self.block_size
        table, known = sequence.block_table, sequence.block_hashes
        new = prefix_hash(tokens[len(known) * S : table.length], S, known[-1] if known else "")
        for block, name in zip(table.blocks, new, strict=False):
            self.allocator.register(block, name)
        sequence.block_hashes = known + new


class NamesInPlace(BlockManager):
    def commit(self, number, tokens):
        sequence, S = self.sequences[number], self.block_size
        table, known = sequence.block_table, sequence.block_hashes
        start, parent = len(known), known[-1] if known else ""
        known += prefix_hash(tokens[start * S : table.length], S, parent)
        for block, name in zip(table.blocks[start:], known[start:], strict=False):
            self.allocator.register(block, name)


@bug(BlockManager, "a fork and its parent share one list of names")
class SharedNames(NamesInPlace):
    def fork(self, number, child):
        super().fork(number, child)
        self.sequences[child].block_hashes = self.sequences[number].block_hashes


@bug(BlockManager, "a sequence that opens again keeps the names of the blocks that it had")
class KeepsNames(BlockManager):
    def open(self, number, tokens):
        known = self.sequences[number].block_hashes if number in self.sequences else []
        found = super().open(number, tokens)
        self.sequences[number].block_hashes = known or self.sequences[number].block_hashes
        return found

    def close(self, number):
        known = self.sequences[number].block_hashes
        super().close(number)
        self.sequences[number].block_hashes = known


@bug(BlockManager, "the block for a copy is not counted when it looks whether there are enough")
class CopyUncounted(BlockManager):
    def grow(self, number, count):
        table, allocator, S = self.sequences[number].block_table, self.allocator, self.block_size
        if table.missing(count) > allocator.available:
            raise OutOfBlocks("too few")
        new = [allocator.allocate() for _ in range(table.missing(count))]
        shared = copy_on_write(
            table.blocks, table.length, table.length + count, S, allocator.references
        )
        copies = []
        for n in shared:
            copies.append((table.blocks[n], allocator.allocate()))
            allocator.free(table.blocks[n])
            table.blocks[n] = copies[-1][1]
        table.append(count, new)
        return copies


@bug(BlockManager, "the last block is copied although nobody shares it")
class CopiesAlways(BlockManager):
    def grow(self, number, count):
        table, allocator, S = self.sequences[number].block_table, self.allocator, self.block_size
        partial = table.length % S > 0
        if partial + table.missing(count) > allocator.available:
            raise OutOfBlocks("too few")
        copies = [(table.blocks[-1], allocator.allocate())] if partial else []
        for source, target in copies:
            allocator.free(source)
            table.blocks[-1] = target
        table.append(count, [allocator.allocate() for _ in range(table.missing(count))])
        return copies


@bug(BlockManager, "a fork and its parent have one table")
class OneTable(BlockManager):
    def fork(self, number, child):
        super().fork(number, child)
        self.sequences[child].block_table = self.sequences[number].block_table


@bug(BlockManager, "a closed sequence gives nothing back")
class GivesNothingBack(BlockManager):
    def close(self, number):
        sequence = self.sequences[number]
        sequence.block_table, sequence.block_hashes = None, []


mistakes(
    BlockManager,
    """
LastNameLeftOut: the last full block is computed anew even if a token behind it is left
    prefix_hash(tokens[:-1], self.block_size): → prefix_hash(tokens, self.block_size)[:-1]:
""",
)

changed(
    BlockManager,
    "LooksUpAll",
    "blocks behind a gap get a user from open, who never frees them",
    (
        "        for name in prefix_hash(tokens[:-1], self.block_size):\n"
        "            block = self.allocator.find(name)\n",
        "        names = prefix_hash(tokens[:-1], self.block_size)\n"
        "        found = [self.allocator.find(name) for name in names]\n"
        "        for name, block in zip(names, found, strict=True):\n",
    ),
)

changed(
    BlockManager,
    "NewSequence",
    "a sequence that gets a new table begins anew, with the tokens given",
    (
        "self.sequences.setdefault(number, Sequence(list(tokens)))",
        "self.sequences[number] = Sequence(list(tokens))",
    ),
)

mistakes(
    BlockManager,
    """
CallersTokens: a new sequence keeps the caller's list of tokens
    Sequence(list(tokens)) → Sequence(tokens)
CountsNoCopies: the block for a copy is not counted when it looks whether there are enough
    if len(shared) + table.missing(count) > → if table.missing(count) >
KeepsOneFree: the last free blocks are refused, although they are enough
    > allocator.available: → >= allocator.available:
""",
)

changed(
    BlockManager,
    "FreesTheCopy",
    "the block of the copy is freed, not the one that it replaces",
    (
        "            allocator.free(table.blocks[n])\n"
        "            table.blocks[n] = copies[-1][1]\n",
        "            table.blocks[n] = copies[-1][1]\n"
        "            allocator.free(table.blocks[n])\n",
    ),
)

changed(
    BlockManager,
    "CopyNotUsed",
    "the table keeps the old block, although it was copied",
    ("            table.blocks[n] = copies[-1][1]\n", ""),
)

changed(
    BlockManager,
    "PlacesToCopy",
    "the copies are given by places in the table, not by blocks",
    (
        "copies.append((table.blocks[n], allocator.allocate()))",
        "copies.append((n, allocator.allocate()))",
    ),
)

changed(
    BlockManager,
    "NotFreed",
    "the block that was copied keeps the user who left it",
    ("            allocator.free(table.blocks[n])\n            table", "            table"),
)

changed(
    BlockManager,
    "NamesBeyond",
    "blocks are named by all tokens, also where none is computed yet",
    (
        "prefix_hash(tokens[len(known) * S : table.length], S,",
        "prefix_hash(tokens[len(known) * S :], S,",
    ),
    (
        "        for place, name in enumerate(new, start=len(known)):\n"
        "            self.allocator.register(table.blocks[place], name)\n",
        "        for block, name in zip(table.blocks[len(known) :], new, strict=False):\n"
        "            self.allocator.register(block, name)\n",
    ),
)

changed(
    BlockManager,
    "SharesFullOnly",
    "a fork is no user of a last block that is not full",
    (
        "        for block in self.blocks(child):\n            self.allocator.share",
        "        table = self.sequences[child].block_table\n"
        "        for block in self.blocks(child)[: table.length // self.block_size if "
        "table else 0]:\n"
        "            self.allocator.share",
    ),
)

mistakes(
    BlockManager,
    """
WholePromptFound: a prompt that is cached as a whole leaves nothing to compute
    tokens[:-1] → tokens
""",
)

changed(
    BlockManager,
    "ForkWithoutUsers",
    "a fork does not count as a user of the blocks",
    ("        for block in self.blocks(child):\n            self.allocator.share(block)\n", ""),
)

mistakes(
    BlockManager,
    """
CloseNeedsTable: a sequence without a table cannot be closed
    reversed(self.blocks(number)) → reversed(self.sequences[number].block_table.blocks)
ForkNeedsTable: a sequence without a table cannot be forked
    for block in self.blocks(child): → for block in self.sequences[child].block_table.blocks:
FirstFreedFirst: the blocks are given back from the first to the last
    reversed(self.blocks(number)) → self.blocks(number)
""",
)


equivalent(
    PagedKVCache,
    "self.K = torch.zeros(L, G, blocks, block_size, D_h, dtype=dtype, device=device) → "
    "self.K = torch.zeros(L, G, blocks, block_size, D_h, dtype=dtype)",
    "there is only one device where graders run",
)
equivalent(
    BlockManager,
    "hashes.append(name) → (left out)",
    "commit names the blocks again: names are kept to save that work",
)
equivalent(
    BlockManager,
    "sequence.block_hashes = known + new → (left out)",
    "commit names the blocks again: names are kept to save that work",
)
equivalent(
    BlockTable,
    "self.blocks = self.blocks + list(blocks) → "
    "self.blocks = self.blocks + (lambda same: same)(blocks)",
    "adding a list makes a new one",
)
equivalent(
    BlockTable,
    "table.blocks, table.length = (list(self.blocks), self.length) → "
    "table.blocks, table.length = ((lambda same: same)(self.blocks), self.length)",
    "append makes a new list, so nobody changes the shared one",
)
equivalent(
    paged_attention,
    "Y, s = (torch.zeros_like(rows), rows.new_full(rows.shape[:3], -math.inf)) → "
    "Y, s = (torch.ones_like(rows), rows.new_full(rows.shape[:3], -math.inf))",
    "an output over no keys has no weight, whatever it is",
)
equivalent(
    paged_attention,
    "long = (lengths > first * S).nonzero()[:, 0] → long = (lengths >= first * S).nonzero()[:, 0]",
    "whoever ends just before the next blocks has no key in them, and merging that changes nothing",
)
equivalent(
    paged_attention,
    "long = (lengths > first * S).nonzero()[:, 0] → long = (lengths > first / S).nonzero()[:, 0]",
    "blocks beyond the end are read as well, and masked",
)
