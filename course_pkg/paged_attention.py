"""Memory in blocks: attention over a cache in blocks, and the manager that shares and frees them.

Shapes: N blocks of S slots; B sequences, T positions, L layers, H query heads that share G key and
value heads of size D_h. Position t of a sequence is in block t // S of its table, at offset t % S.
"""

import hashlib
import math
from collections import OrderedDict, deque

import torch
from jaxtyping import Float, Int
from torch import Tensor

from course_pkg.engine.requests import OutOfBlocks
from course_pkg.engine.sequence import Sequence


def fragmentation(
    regions: list[tuple[int, int, int, int]], memory: int, need: int
) -> dict[str, int]:
    """Say for every slot of a cache what it is there for, at one moment.

    Args:
        regions: what is allocated, in any order: (start, size, now, final) with the first slot, how
            many slots, how many of them hold tokens now, and how many will when the sequence ends.
        memory: how many slots there are.
        need: how many slots in a row the next allocation needs.
    Returns:
        The number of slots that hold "tokens", that are "reserved" for tokens to come, that are
        never used within a region ("internal"), that lie in holes too short for the next
        allocation ("external"), and that are "free", in holes that are not. The sum is memory.
    """
    found = {"tokens": 0, "reserved": 0, "internal": 0, "external": 0, "free": 0}
    end = 0
    for start, size, now, final in [*sorted(regions), (memory, 0, 0, 0)]:
        hole = start - end
        found["external" if hole < need else "free"] += hole
        found["tokens"] += now
        found["reserved"] += final - now
        found["internal"] += size - final
        end = start + size
    return found


class BlockAllocator:
    """Hand out blocks, and count how many sequences use each.

    Attributes:
        references: for every block, how many sequences use it.
        available: how many blocks can be allocated.

    Args:
        blocks: how many there are, numbered from 0.
    """

    def __init__(self, blocks: int):
        self.references = [0] * blocks
        self.unused = deque(range(blocks))

    @property
    def available(self) -> int:
        return len(self.unused)

    def allocate(self) -> int:
        """Hand out a block that nobody uses; it then has one user.

        Raises:
            OutOfBlocks: there is none.
        """
        if not self.unused:
            raise OutOfBlocks(f"all {len(self.references)} blocks are in use")
        block = self.unused.popleft()
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a user to a block.

        Raises:
            ValueError: nobody uses it.
        """
        if self.references[block] == 0:
            raise ValueError(f"block {block} is not in use and cannot be shared")
        self.references[block] += 1

    def free(self, block: int) -> None:
        """Remove a user from a block; after the last one it can be handed out again.

        Raises:
            ValueError: nobody uses it.
        """
        if self.references[block] == 0:
            raise ValueError(f"block {block} is not in use and cannot be freed")
        self.references[block] -= 1
        if self.references[block] == 0:
            self.unused.append(block)


class BlockTable:
    """Map the positions of one sequence to slots: the page table of a process.

    Slot number n is in block n // S, at offset n % S.

    Attributes:
        blocks: the physical block of each logical one.
        length: how many positions are in use.
        waste: how many slots of the blocks are not in use.

    Args:
        block_size: S, slots in a block.
    """

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.blocks = []
        self.length = 0

    @property
    def waste(self) -> int:
        return len(self.blocks) * self.block_size - self.length

    def missing(self, count: int) -> int:
        """Say how many more blocks it takes before `count` positions can be appended."""
        return math.ceil((self.length + count) / self.block_size) - len(self.blocks)

    def append(self, count: int, blocks: list[int]) -> list[int]:
        """Append positions.

        Args:
            count: how many.
            blocks: the blocks that the table gets for them, `missing(count)` of them; they are
                copied, the list remains the caller's.
        Returns:
            The slots of the new positions.
        Raises:
            ValueError: there are too many or too few blocks; then nothing has changed.
        """
        if len(blocks) != self.missing(count):
            raise ValueError(f"{count} positions need {self.missing(count)} blocks, got {blocks}")
        self.blocks = self.blocks + list(blocks)
        self.length += count
        return self.slots(self.length - count, self.length)

    def slots(self, start: int, stop: int) -> list[int]:
        """Look up the slots of the positions start … stop-1.

        Raises:
            IndexError: they are not all in use.
        """
        if not 0 <= start <= stop <= self.length:
            raise IndexError(f"positions {start} to {stop - 1} are not all among {self.length}")
        S = self.block_size
        return [self.blocks[t // S] * S + t % S for t in range(start, stop)]

    def fork(self) -> "BlockTable":
        """Make an independent table with the same content."""
        table = BlockTable(self.block_size)
        table.blocks, table.length = list(self.blocks), self.length
        return table


class PagedKVCache:
    """The keys and values of all sequences and layers, in blocks.

    Attributes:
        K, V: the keys and values (L, G, N, S, D_h), zeros at first. Heads stand before blocks, so
            that a product over the keys of one head reads memory that lies together.

    Args:
        L: layers.
        blocks: N, how many blocks.
        block_size: S, slots in a block.
        G: heads of keys and values.
        D_h: size of a head.
        dtype: of K and V; torch's default when None.
        device: of K and V; torch's default when None.
    """

    def __init__(
        self,
        L: int,
        blocks: int,
        block_size: int,
        G: int,
        D_h: int,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ):
        # Zeros, not empty: what is masked gets weight 0, but 0 · NaN is NaN.
        self.K = torch.zeros(L, G, blocks, block_size, D_h, dtype=dtype, device=device)
        self.V = torch.zeros_like(self.K)

    def write(
        self,
        layer: int,
        slots: Int[Tensor, "T"],
        K: Float[Tensor, "T G D_h"],
        V: Float[Tensor, "T G D_h"],
    ) -> None:
        """Store the keys and values of T positions in one layer.

        Args:
            layer: which.
            slots: where; slot n is in block n // S, at offset n % S.
            K, V: what.
        """
        S = self.K.shape[3]
        self.K[layer, :, slots // S, slots % S] = K.permute(1, 0, 2)
        self.V[layer, :, slots // S, slots % S] = V.permute(1, 0, 2)

    def gather(
        self, layer: int, blocks: list[int], length: int
    ) -> tuple[Float[Tensor, "T G D_h"], Float[Tensor, "T G D_h"]]:
        """Copy one sequence's keys and values out of the blocks, one position after the other.

        Args:
            layer: which.
            blocks: the sequence's table.
            length: T, how many positions are in use.
        Returns:
            K and V.
        """
        K, V = (
            self.K[layer][:, blocks],
            self.V[layer][:, blocks],
        )  # (G, blocks of the table, S, D_h)
        return tuple(X.flatten(1, 2)[:, :length].permute(1, 0, 2) for X in (K, V))

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole blocks, in every layer: (from, to) for each, one after the other."""
        for source, target in copies:
            self.K[:, :, target] = self.K[:, :, source]
            self.V[:, :, target] = self.V[:, :, source]


def online_softmax_merge(
    Y_a: Float[Tensor, "... D_h"],
    s_a: Float[Tensor, "..."],
    Y_b: Float[Tensor, "... D_h"],
    s_b: Float[Tensor, "..."],
) -> tuple[Float[Tensor, "... D_h"], Float[Tensor, "..."]]:
    """Combine the attention over two sets of keys into the attention over both.

    With s = log Σ_j exp(e_j) over a set:   s = log(exp(s_a) + exp(s_b)),
    Y = exp(s_a - s) Y_a + exp(s_b - s) Y_b
    (s: Milakov & Gimelshein 2018; Y beside it: Rabe & Staats 2021, §2; Dao et al. 2022, §3.1)

    Args:
        Y_a, Y_b: the outputs, each normalised over its own set.
        s_a, s_b: the logarithms of the sums; of any size, and -∞ for a set without keys, whose
            output is 0.
    Returns:
        Y and s of both sets; 0 and -∞ when both are empty. The gradient of an empty set's s is 0.
    """
    highest = torch.maximum(s_a, s_b).clamp(min=torch.finfo(s_a.dtype).min)  # -∞ - -∞ is NaN
    w_a, w_b = torch.exp(s_a - highest), torch.exp(s_b - highest)
    total = w_a + w_b  # 0 when both are empty, else between 1 and 2
    some = total.clamp(min=1)  # log 0 is -∞, but its gradient is NaN
    Y = (w_a[..., None] * Y_a + w_b[..., None] * Y_b) / some[..., None]
    return Y, (highest + torch.log(some)).masked_fill(total == 0, -math.inf)


def paged_attention(
    Q: Float[Tensor, "B T H D_h"],
    K: Float[Tensor, "G N S D_h"],
    V: Float[Tensor, "G N S D_h"],
    tables: Int[Tensor, "B M"],
    lengths: Int[Tensor, "B"],
    at_once: int = 4,
) -> Float[Tensor, "B T H D_h"]:
    """Attend from the last T positions of each sequence to keys and values in blocks.

    Query t of a sequence is position length - T + t, and sees itself and what comes before. Query
    head h reads key and value head h // (H / G). Blocks are read a few at a time, and what they
    give is merged: no sequence is ever put together as a whole. (Kwon et al. 2023, §4.1)

    Args:
        Q: the queries.
        K, V: one layer of a `PagedKVCache`, with the T new positions written.
        tables: the blocks of every sequence in order; after its last one, any numbers of blocks.
        lengths: how many positions each sequence has, at least T.
        at_once: how many blocks of each sequence to read in one step.
    Returns:
        The outputs.
    """
    B, T, H, D_h = Q.shape
    G, _, S, _ = K.shape
    last = lengths[:, None] - T + torch.arange(T, device=Q.device)  # (B, T): what each may see
    last = last.repeat_interleave(H // G, dim=1)[:, :, None]  # (B, T · H/G, 1)
    # The H/G query heads of a key head are rows of one product.
    rows = (Q / math.sqrt(D_h)).reshape(B, T, G, H // G, D_h).permute(2, 0, 1, 3, 4).flatten(2, 3)
    Y, s = torch.zeros_like(rows), rows.new_full(rows.shape[:3], -math.inf)
    for first in range(0, math.ceil(int(lengths.max()) / S), at_once):
        long = (lengths > first * S).nonzero()[:, 0]  # the sequences that have such blocks
        blocks = tables[long, first : first + at_once].flatten()
        keys, values = (X.index_select(1, blocks).reshape(G, len(long), -1, D_h) for X in (K, V))
        at = first * S + torch.arange(keys.shape[2], device=Q.device)  # the keys' positions
        E = (rows[:, long] @ keys.mT).masked_fill(at > last[long], -math.inf)  # (G, B', ·, n)
        highest = E.amax(dim=-1).clamp(min=torch.finfo(E.dtype).min)  # finite, even without a key
        A = torch.exp(E - highest[..., None])
        total = A.sum(dim=-1)  # 0 without a key, else at least 1
        new = A @ values / total.clamp(min=1)[..., None], highest + torch.log(total)
        Y[:, long], s[:, long] = online_softmax_merge(Y[:, long], s[:, long], *new)
    return Y.unflatten(2, (T, H // G)).permute(1, 2, 0, 3, 4).flatten(2, 3)


def copy_on_write(
    blocks: list[int], start: int, stop: int, block_size: int, references: list[int]
) -> list[int]:
    """Find what must be copied before a sequence writes to its positions start … stop-1.

    A block that other sequences use too is theirs as well: whoever writes gets a copy.

    Args:
        blocks: the sequence's table; the last positions may be beyond its end, in blocks to come.
        start, stop: the positions to be written, at least one.
        block_size: S, slots in a block.
        references: for every physical block, how many sequences use it.
    Returns:
        The logical numbers, that is places in `blocks`, of the blocks to copy.
    """
    touched = range(start // block_size, math.ceil(stop / block_size))
    return [n for n in touched if n < len(blocks) and references[blocks[n]] > 1]


def prefix_hash(tokens: list[int], block_size: int, parent: str = "") -> list[str]:
    """Name the content of every full block by its tokens and all that come before them.

    h_j = hash(h_{j-1}, tokens of block j),   h_{-1} = parent

    The keys and values in a block depend on all tokens before it, so that two blocks hold the same
    only if their whole prefixes are the same.

    Args:
        tokens: the tokens from a block's border on.
        block_size: S; a block at the end that is not full has no name.
        parent: the name of the block before; "" at the start of a sequence.
    Returns:
        One name for each full block.
    """
    names = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        content = f"{parent} {tokens[start : start + block_size]}"
        parent = hashlib.sha256(content.encode()).hexdigest()
        names.append(parent)
    return names


class PrefixCache(BlockAllocator):
    """A block allocator that remembers what freed blocks hold, until it needs them.

    A named block that loses its last user stays findable. When no other block is left, the one that
    has been without users for longest is handed out anew, and its name is forgotten.

    Attributes:
        references: for every block, how many sequences use it.
        available: how many blocks can be allocated, those without users but with a name included.
        idle: the blocks without users that have a name, in a list, set or dict.

    Args:
        blocks: how many there are, numbered from 0.
    """

    def __init__(self, blocks: int):
        super().__init__(blocks)
        self.names = {}
        self.places = {}
        self.idle = OrderedDict()  # named, without users, oldest first

    @property
    def available(self) -> int:
        return len(self.unused) + len(self.idle)

    def allocate(self) -> int:
        """Hand out a block that nobody uses; it then has one user, and no name.

        One without a name, if there is one; else that which has been idle for longest.

        Raises:
            OutOfBlocks: all are in use.
        """
        if not self.unused and self.idle:
            block, _ = self.idle.popitem(last=False)
            del self.places[self.names.pop(block)]
            self.unused.append(block)
        return super().allocate()

    def free(self, block: int) -> None:
        """Remove a user from a block; after the last one it can be found or handed out again.

        Raises:
            ValueError: nobody uses it.
        """
        super().free(block)
        if self.references[block] == 0 and block in self.names:
            self.idle[self.unused.pop()] = None  # it has just come there, as the last

    def register(self, block: int, name: str) -> None:
        """Name a block by its content, unless it has a name or another block has this one."""
        if block not in self.names and name not in self.places:
            self.names[block], self.places[name] = name, block

    def find(self, name: str) -> int | None:
        """Look up the block of a name and become a user of it; None when there is none."""
        block = self.places.get(name)
        if block is not None:
            self.idle.pop(block, None)
            self.references[block] += 1
        return block


class BlockManager:
    """Give sequences their blocks: find them, add to them, share them, and take them back.

    Attributes:
        allocator: the `PrefixCache` that the blocks come from.
        sequences: every `Sequence` by its number, `seq_id`. Its `block_table` is a `BlockTable`
            from `allocate` to `free`, and None before and after.

    Args:
        blocks: N, how many blocks.
        block_size: S, slots in a block.
    """

    def __init__(self, blocks: int, block_size: int):
        self.allocator = PrefixCache(blocks)
        self.block_size = block_size
        self.sequences = {}

    def get_block_table(self, seq_id: int) -> list[int]:
        """List the blocks of a sequence in the order of its positions; none without a table."""
        table = self.sequences[seq_id].block_table
        return [] if table is None else table.blocks

    def allocate(self, seq_id: int, tokens: list[int]) -> int:
        """Give a sequence a table of the blocks that hold the beginning of its tokens already.

        At least one token is left to compute, since only computing gives the next one. A number
        that is not among the sequences becomes one, with a copy of these tokens.

        Returns:
            How many tokens need not be computed.
        """
        table, hashes = BlockTable(self.block_size), []
        for name in prefix_hash(tokens[:-1], self.block_size):
            block = self.allocator.find(name)
            if block is None:
                break
            table.append(self.block_size, [block])
            hashes.append(name)
        sequence = self.sequences.setdefault(seq_id, Sequence(list(tokens)))
        sequence.block_table, sequence.block_hashes = table, hashes
        return table.length

    def append_slots(self, seq_id: int, count: int) -> list[tuple[int, int]]:
        """Append positions that are about to be written, in blocks that nobody else uses.

        Returns:
            The blocks to copy first, as pairs (from, to).
        Raises:
            OutOfBlocks: there are too few; then nothing has changed.
        """
        table, allocator = self.sequences[seq_id].block_table, self.allocator
        start, users = table.length, allocator.references
        shared = copy_on_write(table.blocks, start, start + count, self.block_size, users)
        if len(shared) + table.missing(count) > allocator.available:
            raise OutOfBlocks(f"{count} tokens more need more than {allocator.available} blocks")
        copies = []
        for n in shared:
            copies.append((table.blocks[n], allocator.allocate()))
            allocator.free(table.blocks[n])
            table.blocks[n] = copies[-1][1]
        table.append(count, [allocator.allocate() for _ in range(table.missing(count))])
        return copies

    def cache_blocks(self, seq_id: int, tokens: list[int]) -> None:
        """Name the blocks that are full, now that their keys and values are written."""
        sequence, S = self.sequences[seq_id], self.block_size
        table, known = sequence.block_table, sequence.block_hashes
        new = prefix_hash(tokens[len(known) * S : table.length], S, known[-1] if known else "")
        for place, name in enumerate(new, start=len(known)):
            self.allocator.register(table.blocks[place], name)
        sequence.block_hashes = known + new

    def fork(self, seq_id: int, child: int) -> None:
        """Copy a sequence, which may have no table; the copy shares all its blocks."""
        self.sequences[child] = self.sequences[seq_id].fork()
        for block in self.get_block_table(child):
            self.allocator.share(block)

    def free(self, seq_id: int) -> None:
        """Give the blocks of a sequence back, the last one first; it may have no table.

        A block is only found by way of those before it: the end of a chain must be evicted first.
        """
        for block in reversed(self.get_block_table(seq_id)):
            self.allocator.free(block)
        sequence = self.sequences[seq_id]
        sequence.block_table, sequence.block_hashes = None, []


def fragmentation_fault() -> tuple[str, tuple[list[tuple[int, int, int, int]], int, int]]:
    """Say what is wrong with the black box of `fragmentation`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what `fragmentation`
        does.
    """
    return "B", ([], 4, 4)  # one hole of four slots, free for what needs four, but not in the box
