"""Correct solutions of paged_attention by other ways: sets, stacks, loops, one by one."""

import hashlib
import math
from collections import Counter

import torch
from torch.nn import functional

from autograder.alternatives import alternative
from course_pkg.engine.requests import OutOfBlocks
from course_pkg.engine.sequence import Sequence
from course_pkg.paged_attention import (
    BlockAllocator,
    BlockManager,
    BlockTable,
    PagedKVCache,
    PrefixCache,
    copy_on_write,
    fragmentation,
    fragmentation_fault,
    online_softmax_merge,
    paged_attention,
    prefix_hash,
)


@alternative(fragmentation)
def slot_by_slot(regions, memory, need):
    kinds = [None] * memory
    for start, size, now, final in regions:
        for n in range(size):
            kinds[start + n] = "tokens" if n < now else "reserved" if n < final else "internal"
    slot = 0
    while slot < memory:
        end = slot
        while end < memory and kinds[end] is None:
            end += 1
        kinds[slot:end] = ["free" if end - slot >= need else "external"] * (end - slot)
        slot = end + 1
    return {k: kinds.count(k) for k in ("free", "external", "internal", "reserved", "tokens")}


@alternative(fragmentation)
def by_edges(regions, memory, need):
    starts = [*sorted(start for start, *_ in regions), memory]
    ends = [0, *sorted(start + size for start, size, *_ in regions)]
    holes = [start - end for start, end in zip(starts, ends, strict=True)]
    return {
        "tokens": sum(now for *_, now, _ in regions),
        "reserved": sum(final - now for *_, now, final in regions),
        "internal": sum(size - final for _, size, _, final in regions),
        "external": sum(hole for hole in holes if hole < need),
        "free": sum(hole for hole in holes if hole >= need),
    }


@alternative(fragmentation_fault)
def between_regions():
    return ["B", [[(8, 4, 1, 3), (0, 5, 2, 5)], 14, 3]]


@alternative(fragmentation_fault)
def behind_the_last():
    return "B", ([(0, 6, 6, 6)], 8, 2)


@alternative(BlockAllocator)
class Stack:
    """A stack of free blocks, the highest number first."""

    def __init__(self, blocks):
        self.stack = list(range(blocks))
        self.references = [0 for _ in range(blocks)]

    @property
    def available(self):
        return len(self.stack)

    def allocate(self):
        try:
            block = self.stack.pop()
        except IndexError:
            raise OutOfBlocks("none is left") from None
        self.references[block] += 1
        return block

    def share(self, block):
        if not self.references[block]:
            raise ValueError(block)
        self.references[block] += 1

    def free(self, block):
        if not self.references[block]:
            raise ValueError(block)
        self.references[block] -= 1
        if not self.references[block]:
            self.stack.append(block)


@alternative(BlockAllocator)
class Counting:
    """No list of free blocks at all: whoever has no user is free."""

    def __init__(self, blocks):
        self.references = [0] * blocks

    @property
    def available(self):
        return self.references.count(0)

    def allocate(self):
        if 0 not in self.references:
            raise OutOfBlocks(len(self.references))
        block = self.references.index(0)
        self.references[block] = 1
        return block

    def share(self, block):
        self._in_use(block)
        self.references[block] += 1

    def free(self, block):
        self._in_use(block)
        self.references[block] -= 1

    def _in_use(self, block):
        if self.references[block] < 1:
            raise ValueError(f"{block} is free")


@alternative(BlockAllocator)
class InACounter(BlockAllocator):
    """Counts users in a Counter, which lacks the blocks that nobody uses."""

    def __init__(self, blocks):
        self.references, self.blocks = Counter(), range(blocks)

    @property
    def available(self):
        return len(self.blocks) - len(+self.references)

    def allocate(self):
        for block in self.blocks:
            if not self.references[block]:
                self.references[block] = 1
                return block
        raise OutOfBlocks("all are in use")

    def free(self, block):
        if not self.references[block]:
            raise ValueError(block)
        self.references[block] -= 1
        if not self.references[block]:
            del self.references[block]


@alternative(BlockAllocator)
class InATensor(BlockAllocator):
    def __init__(self, blocks):
        self.references = torch.zeros(blocks, dtype=torch.int64)

    @property
    def available(self):
        return int((self.references == 0).sum())

    def allocate(self):
        if self.references.all():
            raise OutOfBlocks("all are in use")
        block = int(self.references.argmin())
        self.references[block] = 1
        return block

    def free(self, block):
        if self.references[block] == 0:
            raise ValueError(block)
        self.references[block] -= 1


@alternative(BlockTable)
class SlotList:
    """Keeps a slot for every position that its blocks have room for."""

    def __init__(self, block_size):
        self.block_size = block_size
        self.blocks = []
        self.length = 0

    @property
    def waste(self):
        return -self.length % self.block_size

    def missing(self, count):
        total = -(-(self.length + count) // self.block_size)
        return total - len(self.blocks)

    def append(self, count, blocks):
        if self.missing(count) != len(blocks):
            raise ValueError("blocks")
        start = self.length
        self.blocks += blocks
        self.length = start + count
        return self.slots(start, self.length)

    def slots(self, start, stop):
        if start < 0 or stop < start or stop > self.length:
            raise IndexError(stop)
        room = [b * self.block_size + n for b in self.blocks for n in range(self.block_size)]
        return room[start:stop]

    def fork(self):
        other = type(self)(self.block_size)
        other.blocks += self.blocks
        other.length = self.length
        return other


@alternative(BlockTable)
class WithDivmod(BlockTable):
    def missing(self, count):
        blocks = 0
        while len(self.blocks) * self.block_size + blocks * self.block_size < self.length + count:
            blocks += 1
        return blocks

    def slots(self, start, stop):
        if not 0 <= start <= stop <= self.length:
            raise IndexError
        pairs = (divmod(position, self.block_size) for position in range(start, stop))
        return tuple(self.blocks[block] * self.block_size + offset for block, offset in pairs)


@alternative(PagedKVCache)
class SlotBySlot:
    """Writes, reads and copies one slot after the other."""

    def __init__(self, L, blocks, block_size, G, D_h, dtype=None, device=None):
        shape = L, G, blocks, block_size, D_h
        self.K, self.V = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))

    def write(self, layer, slots, K, V):
        for slot, key, value in zip(slots.tolist(), K, V, strict=True):
            block, offset = divmod(slot, self.K.shape[3])
            self.K[layer, :, block, offset] = key
            self.V[layer, :, block, offset] = value

    def gather(self, layer, blocks, length):
        S = self.K.shape[3]
        places = [(blocks[t // S], t % S) for t in range(length)]
        return tuple(
            torch.stack([X[layer, :, block, offset] for block, offset in places])
            for X in (self.K, self.V)
        )

    def copy(self, copies):
        for X in (self.K, self.V):
            for source, target in copies:
                X[:, :, target].copy_(X[:, :, source])


@alternative(PagedKVCache)
class ViewOfSlots(PagedKVCache):
    def write(self, layer, slots, K, V):
        for ours, new in ((self.K, K), (self.V, V)):
            ours[layer].flatten(1, 2).index_copy_(1, slots, new.transpose(0, 1))

    def gather(self, layer, blocks, length):
        index = torch.tensor(blocks)
        K = self.K[layer].index_select(1, index).flatten(1, 2).transpose(0, 1)
        V = self.V[layer].index_select(1, index).flatten(1, 2).transpose(0, 1)
        return [K[:length], V[:length]]


def both_empty(s_a, s_b):
    return (s_a == -math.inf) & (s_b == -math.inf)


@alternative(online_softmax_merge)
def with_logaddexp(Y_a, s_a, Y_b, s_b):
    nothing = both_empty(s_a, s_b)
    s = torch.logaddexp(s_a.masked_fill(nothing, 0), s_b.masked_fill(nothing, 0))
    w, v = (torch.exp(part - s).masked_fill(nothing, 0)[..., None] for part in (s_a, s_b))
    return w * Y_a + v * Y_b, torch.where(nothing, -math.inf, s)


@alternative(online_softmax_merge)
def with_softmax(Y_a, s_a, Y_b, s_b):
    nothing = both_empty(s_a, s_b)[..., None]
    both = torch.stack([s_a, s_b], dim=-1).masked_fill(nothing, 0)
    weights = torch.softmax(both, dim=-1).masked_fill(nothing, 0)
    s = torch.logsumexp(both, dim=-1, keepdim=True).masked_fill(nothing, -math.inf)
    return weights[..., :1] * Y_a + weights[..., 1:] * Y_b, s[..., 0]


@alternative(online_softmax_merge)
def with_sigmoid(Y_a, s_a, Y_b, s_b):
    nothing = both_empty(s_a, s_b)
    s_a, s_b = (torch.where(nothing, 0, s) for s in (s_a, s_b))
    share = torch.sigmoid(s_a - s_b)[..., None]
    s = torch.logaddexp(s_a, s_b).masked_fill(nothing, -math.inf)
    return torch.lerp(Y_b, Y_a, share), s


@alternative(paged_attention)
def gathered(Q, K, V, tables, lengths, at_once=4):
    rows, T = [], Q.shape[1]
    for q, table, length in zip(Q, tables, lengths.tolist(), strict=True):
        keys, values = (X[:, table].flatten(1, 2)[None, :, :length] for X in (K, V))
        mask = torch.arange(length) <= (length - T + torch.arange(T))[:, None]
        heads = q.transpose(0, 1)[None], keys, values
        rows.append(functional.scaled_dot_product_attention(*heads, mask, enable_gqa=True)[0])
    return torch.stack(rows).transpose(1, 2)


@alternative(paged_attention)
def block_by_block(Q, K, V, tables, lengths, at_once=4):
    B, T, H, D_h = Q.shape
    G, _, S, _ = K.shape
    out = torch.empty_like(Q)
    for b in range(B):
        length = int(lengths[b])
        for h in range(H):
            for t in range(T):
                top, total, y = -math.inf, 0.0, torch.zeros(D_h, dtype=Q.dtype)
                for position in range(length - T + t + 1):
                    block, offset = int(tables[b, position // S]), position % S
                    g = h // (H // G)
                    e = float(Q[b, t, h] @ K[g, block, offset]) / math.sqrt(D_h)
                    new = max(top, e)
                    total = total * math.exp(top - new) + math.exp(e - new)
                    y = y * math.exp(top - new) + V[g, block, offset] * math.exp(e - new)
                    top = new
                out[b, t, h] = y / total
    return out


@alternative(copy_on_write)
def position_by_position(blocks, start, stop, block_size, references):
    found = []
    for position in range(start, stop):
        n = position // block_size
        if n < len(blocks) and references[blocks[n]] > 1 and n not in found:
            found.append(n)
    return found


@alternative(copy_on_write)
def by_enumeration(blocks, start, stop, block_size, references):
    return tuple(
        n
        for n, block in enumerate(blocks)
        if references[block] >= 2 and n * block_size < stop and (n + 1) * block_size > start
    )


@alternative(prefix_hash)
def nested_tuples(tokens, block_size, parent=()):
    names = []
    for n in range(len(tokens) // block_size):
        parent = (parent, *tokens[n * block_size : (n + 1) * block_size])
        names.append(parent)
    return names


@alternative(prefix_hash)
def keyed_digests(tokens, block_size, parent=""):
    names = []
    for n in range(len(tokens) // block_size):
        text = f"{parent}:{tokens[n * block_size : (n + 1) * block_size]}".encode()
        parent = int.from_bytes(hashlib.blake2b(text, key=b"course", digest_size=16).digest())
        names.append(parent)
    return names


@alternative(PrefixCache)
class Clocked(BlockAllocator):
    """Remembers for every block when it was freed last."""

    def __init__(self, blocks):
        super().__init__(blocks)
        self.name_of, self.freed, self.clock = {}, {}, 0

    @property
    def available(self):
        return sum(users == 0 for users in self.references)

    @property
    def idle(self):
        return {block for block in self.name_of if self.references[block] == 0}

    def allocate(self):
        idle = [block for block, users in enumerate(self.references) if users == 0]
        if not idle:
            raise OutOfBlocks("all in use")
        block = min(idle, key=lambda each: (each in self.name_of, self.freed.get(each, 0)))
        self.name_of.pop(block, None)
        self.references[block] = 1
        return block

    def free(self, block):
        if self.references[block] == 0:
            raise ValueError(block)
        self.references[block] -= 1
        self.clock += 1
        self.freed[block] = self.clock

    def register(self, block, name):
        if name not in self.name_of.values():
            self.name_of.setdefault(block, name)

    def find(self, name):
        for block, known in self.name_of.items():
            if known == name:
                self.references[block] += 1
                return block
        return None


@alternative(PrefixCache)
class TwoLists(BlockAllocator):
    """Keeps named idle blocks in a list, the oldest first."""

    def __init__(self, blocks):
        super().__init__(blocks)
        self.named, self.idle = [None] * blocks, []

    @property
    def available(self):
        return self.references.count(0)

    def allocate(self):
        if self.available == 0:
            raise OutOfBlocks(f"{len(self.references)} blocks are in use")
        plain = [n for n, c in enumerate(self.references) if c == 0 and self.named[n] is None]
        block = plain[-1] if plain else self.idle.pop(0)
        self.named[block] = None
        self.references[block] = 1
        return block

    def free(self, block):
        if self.references[block] < 1:
            raise ValueError("not in use")
        self.references[block] -= 1
        if self.references[block] == 0 and self.named[block] is not None:
            self.idle.append(block)

    def register(self, block, name):
        if self.named[block] is None and name not in self.named:
            self.named[block] = name

    def find(self, name):
        if name not in self.named:
            return None
        block = self.named.index(name)
        if block in self.idle:
            self.idle.remove(block)
        self.references[block] += 1
        return block


@alternative(BlockManager)
class Plain:
    """Names whole prefixes by their tokens, and looks at every block again in each commit."""

    def __init__(self, blocks, block_size):
        self.allocator, self.S, self.sequences = PrefixCache(blocks), block_size, {}

    def get_block_table(self, seq_id):
        sequence = self.sequences[seq_id]
        return sequence.block_table.blocks if sequence.block_table else []

    def allocate(self, seq_id, tokens):
        found = []
        for end in range(self.S, len(tokens), self.S):
            block = self.allocator.find(tuple(tokens[:end]))
            if block is None:
                break
            found.append(block)
        if seq_id not in self.sequences:
            self.sequences[seq_id] = Sequence([*tokens])
        self.sequences[seq_id].block_table = table = BlockTable(self.S)
        table.append(len(found) * self.S, found)
        return len(found) * self.S

    def append_slots(self, seq_id, count):
        table = self.sequences[seq_id].block_table
        mine, stop = table.blocks, table.length + count
        touched = range(table.length // self.S, len(mine))
        shared = [n for n in touched if self.allocator.references[mine[n]] > 1]
        new = -(-stop // self.S) - len(mine)
        if self.allocator.available < len(shared) + new:
            raise OutOfBlocks
        fresh = [self.allocator.allocate() for _ in range(len(shared) + new)]
        copies = [(mine[n], block) for n, block in zip(shared, fresh, strict=False)]
        for n, (source, target) in zip(shared, copies, strict=True):
            self.allocator.free(source)
            mine[n] = target
        table.blocks, table.length = mine + fresh[len(shared) :], stop
        return copies

    def cache_blocks(self, seq_id, tokens):
        table = self.sequences[seq_id].block_table
        for n in range(table.length // self.S):
            self.allocator.register(table.blocks[n], tuple(tokens[: (n + 1) * self.S]))

    def fork(self, seq_id, child):
        parent, twin = self.sequences[seq_id], Sequence([*self.sequences[seq_id].tokens])
        twin.prompt_length = parent.prompt_length
        self.sequences[child] = twin
        if parent.block_table is not None:
            twin.block_table = BlockTable(self.S)
            twin.block_table.append(parent.block_table.length, parent.block_table.blocks)
        for block in self.get_block_table(child):
            self.allocator.share(block)

    def free(self, seq_id):
        while blocks := self.get_block_table(seq_id):
            self.allocator.free(blocks.pop())
        self.sequences[seq_id].block_table = None


@alternative(BlockManager)
class OneByOne(BlockManager):
    """Grows by one position after the other, when it is clear that there is room."""

    def append_slots(self, seq_id, count):
        table, allocator = self.sequences[seq_id].block_table, self.allocator
        start = table.length
        shared = [
            n
            for n in range(start // self.block_size, len(table.blocks))
            if allocator.references[table.blocks[n]] > 1
        ]
        if len(shared) + table.missing(count) > allocator.available:
            raise OutOfBlocks("too few")
        copies = []
        for n in shared:
            target = allocator.allocate()
            copies.append((table.blocks[n], target))
            allocator.free(table.blocks[n])
            table.blocks = [*table.blocks[:n], target, *table.blocks[n + 1 :]]
        for _ in range(count):
            table.append(1, [allocator.allocate()] if table.missing(1) else [])
        return copies
