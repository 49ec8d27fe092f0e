"""A small vLLM: attention over a cache in blocks, and the engine that fills, shares and frees them.

Shapes: N blocks of S slots; B sequences, T positions, L layers, H query heads that share G key and
value heads of size D_h. Position t of a sequence is in block t // S of its table, at offset t % S.
"""

import hashlib
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from course_pkg.gpt import token_probabilities
from course_pkg.inference.decoding import with_kernel
from course_pkg.inference.requests import NeverFits, OutOfBlocks, Output, Sampling
from course_pkg.inference.sequence import Sequence


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
            blocks: the blocks that the table gets for them, `missing(count)` of them.
        Returns:
            The slots of the new positions.
        Raises:
            ValueError: the number of blocks is wrong.
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
        slots: Int[Tensor, "M"],
        K: Float[Tensor, "M G D_h"],
        V: Float[Tensor, "M G D_h"],
    ) -> None:
        """Store the keys and values of M positions in one layer.

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
    Y = exp(s_a - s) Y_a + exp(s_b - s) Y_b      (Milakov & Gimelshein 2018; Dao et al. 2022, §3.1)

    Args:
        Y_a, Y_b: the outputs, each normalised over its own set.
        s_a, s_b: the logarithms of the sums; of any size, and -∞ for a set without keys, whose
            output is 0.
    Returns:
        Y and s of both sets; 0 and -∞ when both are empty.
    """
    highest = torch.maximum(s_a, s_b).clamp(min=torch.finfo(s_a.dtype).min)  # -∞ - -∞ is NaN
    w_a, w_b = torch.exp(s_a - highest), torch.exp(s_b - highest)
    total = w_a + w_b  # 0 when both are empty, else between 1 and 2
    Y = (w_a[..., None] * Y_a + w_b[..., None] * Y_b) / total.clamp(min=1)[..., None]
    return Y, highest + torch.log(total)


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
        blocks = tables[:, first : first + at_once]
        keys, values = (X.index_select(1, blocks.flatten()).reshape(G, B, -1, D_h) for X in (K, V))
        at = first * S + torch.arange(keys.shape[2], device=Q.device)  # the keys' positions
        E = (rows @ keys.mT).masked_fill(at > last, -math.inf)  # (G, B, T · H/G, n)
        s_new = torch.logsumexp(E, dim=-1)
        A = torch.exp(E - s_new.clamp(min=torch.finfo(E.dtype).min)[..., None])  # no key: zeros
        Y, s = online_softmax_merge(Y, s, A @ values, s_new)
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
        sequences: every `Sequence` by its number. Its `block_table` is a `BlockTable` from `open`
            to `close`, and None before and after.

    Args:
        blocks: N, how many blocks.
        block_size: S, slots in a block.
    """

    def __init__(self, blocks: int, block_size: int):
        self.allocator = PrefixCache(blocks)
        self.block_size = block_size
        self.sequences = {}

    def blocks(self, number: int) -> list[int]:
        """List the blocks of a sequence in the order of its positions; none without a table."""
        table = self.sequences[number].block_table
        return [] if table is None else table.blocks

    def open(self, number: int, tokens: list[int]) -> int:
        """Give a sequence a table of the blocks that hold the beginning of its tokens already.

        At least one token is left to compute, since only computing gives the next one. A number
        that is not among the sequences becomes one, with these tokens.

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
        sequence = self.sequences.setdefault(number, Sequence(list(tokens)))
        sequence.block_table, sequence.block_hashes = table, hashes
        return table.length

    def grow(self, number: int, count: int) -> list[tuple[int, int]]:
        """Append positions that are about to be written, in blocks that nobody else uses.

        Returns:
            The blocks to copy first, as pairs (from, to).
        Raises:
            OutOfBlocks: there are too few; then nothing has changed.
        """
        table, allocator = self.sequences[number].block_table, self.allocator
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

    def commit(self, number: int, tokens: list[int]) -> None:
        """Name the blocks that are full, now that their keys and values are written."""
        sequence, S = self.sequences[number], self.block_size
        table, known = sequence.block_table, sequence.block_hashes
        new = prefix_hash(tokens[len(known) * S : table.length], S, known[-1] if known else "")
        for place, name in enumerate(new, start=len(known)):
            self.allocator.register(table.blocks[place], name)
        sequence.block_hashes = known + new

    def fork(self, number: int, child: int) -> None:
        """Copy a sequence, which may have no table; the copy shares all its blocks."""
        self.sequences[child] = self.sequences[number].fork()
        for block in self.blocks(child):
            self.allocator.share(block)

    def close(self, number: int) -> None:
        """Give the blocks of a sequence back, the last one first; it may have no table.

        A block is only found by way of those before it: the end of a chain must be evicted first.
        """
        for block in reversed(self.blocks(number)):
            self.allocator.free(block)
        sequence = self.sequences[number]
        sequence.block_table, sequence.block_hashes = None, []


class Scheduler:
    """Decide in every step which tokens to compute: continuous batching, first come, first served.

    Attributes:
        manager: the `BlockManager`.
        sequences: every `Sequence` that was added, by its number: the manager's dict. A sequence
            that is removed stays there.
        running, waiting: lists of the numbers of the sequences that have blocks, and of those that
            wait for them; those that came first stand first.
        hits: how many tokens were found in the cache.
        preemptions: how often a sequence lost its blocks.

    Args:
        blocks: N, how many blocks.
        block_size: S, slots in a block.
        most: how many sequences may be admitted to run at once.
        budget: how many tokens a step may compute: a longer prompt is computed in chunks. None for
            any number.
    """

    def __init__(self, blocks: int, block_size: int, most: int = 64, budget: int | None = None):
        self.manager = BlockManager(blocks, block_size)
        self.sequences = self.manager.sequences
        self.running = []
        self.waiting = []
        self.most = most
        self.budget = math.inf if budget is None else budget
        self.hits = self.preemptions = 0

    def add(self, number: int, tokens: list[int]) -> None:
        """Let a new sequence wait behind all others."""
        self.sequences[number] = Sequence(list(tokens))
        self.waiting.append(number)

    def schedule(self) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
        """Choose the work of one step and make room for it.

        1. Running sequences, the first to come first, get slots for the tokens that are not
           computed yet, as far as the budget reaches. If blocks run out, the last running sequence
           loses its blocks and is the first to wait; if that is the one that asks, it gets nothing.
        2. Sequences that wait are admitted in their order, until one does not fit, the budget is
           spent, or enough are running.

        Returns:
            The work, (number, start, stop) for each sequence whose tokens start … stop-1 are to be
            computed, and the blocks to copy before that, as pairs (from, to).
        """
        work = []
        copies = []
        left = self.budget
        for number in list(self.running):
            sequence = self.sequences[number]
            while number in self.running and left > 0:
                start = sequence.block_table.length
                count = min(len(sequence.tokens) - start, left)
                try:
                    copies += self.manager.grow(number, count)
                except OutOfBlocks:
                    self.preempt(self.running[-1])
                    continue
                work.append((number, start, start + count))
                left -= count
                break
        while self.waiting and left > 0 and len(self.running) < self.most:
            number = self.waiting[0]
            tokens = self.sequences[number].tokens
            start = self.manager.open(number, tokens)
            count = min(len(tokens) - start, left)
            try:
                copies += self.manager.grow(number, count)
            except OutOfBlocks:
                self.manager.close(number)
                break
            self.running.append(self.waiting.pop(0))
            self.hits += start
            work.append((number, start, start + count))
            left -= count
        return work, copies

    def computed(self, number: int) -> None:
        """Take note that the keys and values of a sequence's work are written."""
        self.manager.commit(number, self.sequences[number].tokens)

    def append(self, number: int, token: int) -> None:
        """Add a token to a sequence, to be computed in a later step."""
        self.sequences[number].tokens.append(token)

    def preempt(self, number: int) -> None:
        """Take a running sequence's blocks; it waits before all others and is computed again."""
        self.running.remove(number)
        self.waiting.insert(0, number)
        self.manager.close(number)
        self.preemptions += 1

    def fork(self, number: int, child: int) -> None:
        """Add a copy of a sequence that goes on from its state, and stands right behind it."""
        self.manager.fork(number, child)
        queue = self.running if number in self.running else self.waiting
        queue.insert(queue.index(number) + 1, child)

    def remove(self, number: int) -> None:
        """Let a sequence neither run nor wait any more, and give back its blocks if it has any."""
        queue = self.running if number in self.running else self.waiting
        queue.remove(number)
        self.manager.close(number)


class Engine:
    """Serve many prompts at once with one model and a fixed amount of memory.

    Attributes:
        cache: the `PagedKVCache`.
        scheduler: the `Scheduler`.
        sequences: every `Sequence` that was added and not taken away, by its number: the
            scheduler's dict.
        history: the counters after each step.
        attention: `paged_attention`, or on a GPU a kernel, see `course_pkg.inference.decoding`.

    Args:
        model: has `shape` (L, G, D_h), `context`, `dtype` and `device`, and is called with tokens
            (M,), their positions (M,), a function attend and rows (R,): it returns the logits
            (R, V) of those rows. For each layer it calls attend(layer, Q, K, V), with Q (M, H, D_h)
            and K and V (M, G, D_h), and gets the outputs (M, H, D_h).
        blocks: N, how many blocks of the cache.
        block_size: S, slots in a block.
        most: how many sequences may be admitted to run at once.
        budget: how many tokens a step may compute; any number when None.
    """

    def __init__(
        self, model, blocks: int, block_size: int = 16, most: int = 64, budget: int | None = None
    ):
        self.model = model
        self.history = []
        self.numbers = itertools.count()  # of the sequences to come
        self.attention = with_kernel(partial(paged_attention, at_once=16), model.device)
        ### BEGIN SOLUTION
        L, G, D_h = model.shape
        self.cache = PagedKVCache(L, blocks, block_size, G, D_h, model.dtype, model.device)
        self.scheduler = Scheduler(blocks, block_size, most, budget)
        ### END SOLUTION
        self.sequences = self.scheduler.sequences

    def add(self, prompt: list[int], sampling: Sampling | None = None) -> int:
        """Let a prompt wait for its turn.

        Returns:
            The number of its first sample.
        Raises:
            NeverFits: prompt and continuation are longer than the model's context, or need more
                slots than all blocks have; the last token added is never read, and needs none.
            ValueError: the prompt has no token, or there is nothing to add.
        """
        ### BEGIN SOLUTION
        sampling = Sampling() if sampling is None else sampling
        if not prompt or sampling.max_tokens < 1 or sampling.samples < 1:
            raise ValueError("a request needs a token, one to add at least, and a sample")
        length = len(prompt) + sampling.max_tokens
        if length > self.model.context:
            raise NeverFits(f"{length} tokens exceed the model's context, {self.model.context}")
        slots = self.cache.K[0, 0, ..., 0].numel()
        if length - 1 > slots:
            raise NeverFits(f"{length - 1} tokens to keep, but the cache has {slots} slots")
        number = next(self.numbers)
        self.scheduler.add(number, prompt)
        self.enter(number, sampling, [])
        return number
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
        """
        ### BEGIN SOLUTION
        sequence, child = self.sequences[number], next(self.numbers)
        self.scheduler.fork(number, child)
        self.enter(child, sequence.sampling, sequence.samples)
        return child
        ### END SOLUTION

    def abort(self, number: int) -> None:
        """End a sequence at once."""
        self.end(number, "abort")

    def end(self, number: int, reason: str) -> None:
        """Note why a sequence ends, and give its blocks back."""
        self.sequences[number].reason = reason
        self.scheduler.remove(number)

    def step(self) -> list[tuple[int, int]]:
        """Compute what the scheduler chooses, and add a token wherever all others are computed.

        A request that gets its first token is forked into its samples before: they share the blocks
        of the prompt, and each draws from the same logits.

        Returns:
            (number, token) for every token that was added.
        """
        ### BEGIN SOLUTION
        work, copies = self.scheduler.schedule()
        if not work and self.scheduler.waiting:
            raise RuntimeError("sequences wait, but none can run")
        self.cache.copy(copies)
        logits = self.forward(work)
        drawn = []
        for row, (number, _, stop) in enumerate(work):
            self.scheduler.computed(number)
            sequence = self.sequences[number]
            if stop < len(sequence.tokens):  # a chunk of a longer prompt
                continue
            more = sequence.sampling.samples - len(sequence.samples)
            for each in [number, *(self.fork(number) for _ in range(more))]:
                drawn.append((each, self.draw(each, logits[row])))
        for number, token in drawn:
            self.scheduler.append(number, token)
            sequence = self.sequences[number]
            if token == sequence.sampling.stop:
                self.end(number, "stop")
            elif len(sequence.output) == sequence.sampling.max_tokens:
                self.end(number, "length")
        self.history.append(self.counters(len(work)))
        return drawn
        ### END SOLUTION

    def forward(self, work: list[tuple[int, int, int]]) -> Float[Tensor, "R V"]:
        """Run the model on the tokens of a step, all sequences together.

        Args:
            work: (number, start, stop) for each sequence; its tokens start … stop-1 have slots.
        Returns:
            The logits after the last token of each.
        """
        ### BEGIN SOLUTION
        if not work:
            return torch.empty(0)
        tokens = []
        positions = []
        slots = []
        last = []
        groups = {}  # sequences with the same number of new tokens go together
        for number, start, stop in work:
            sequence = self.sequences[number]
            table = sequence.block_table
            rows = list(range(len(tokens), len(tokens) + stop - start))
            groups.setdefault(stop - start, []).append((rows, table.blocks, stop))
            tokens += sequence.tokens[start:stop]
            positions += range(start, stop)
            slots += table.slots(start, stop)
            last.append(rows[-1])
        tensor = partial(torch.tensor, device=self.model.device)
        slots = tensor(slots)
        ready = []
        for group in groups.values():
            longest = max(len(blocks) for _, blocks, _ in group)
            rows = tensor([rows for rows, _, _ in group])
            tables = tensor([blocks + [0] * (longest - len(blocks)) for _, blocks, _ in group])
            ready.append((rows, tables, tensor([stop for _, _, stop in group])))

        def attend(layer: int, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
            self.cache.write(layer, slots, K, V)
            Y = torch.empty_like(Q)
            for rows, tables, lengths in ready:
                K, V = self.cache.K[layer], self.cache.V[layer]
                Y[rows] = self.attention(Q[rows], K, V, tables, lengths)
            return Y

        with torch.no_grad():
            return self.model(tensor(tokens), tensor(positions), attend, tensor(last))
        ### END SOLUTION

    def draw(self, number: int, logits: Float[Tensor, "V"]) -> int:
        """Draw a sequence's next token, or take the best one if its temperature is 0."""
        sampling, generator = self.sequences[number].sampling, self.sequences[number].generator
        p = token_probabilities(logits[None], sampling.temperature, sampling.top_k, sampling.top_p)[
            0
        ]
        if sampling.temperature == 0:
            return int(p.argmax())
        return int(torch.multinomial(p.cpu(), 1, generator=generator))

    def stream(
        self, prompts: list[list[int]], sampling: Sampling | list[Sampling] | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Continue prompts, and hand out every token as soon as there is one.

        If nobody asks for more tokens, what has not ended is aborted.

        Args:
            prompts: tokens, at least one each.
            sampling: how to continue all of them, or each.
        Yields:
            (place of the prompt, number of the sample, token).
        Raises:
            NeverFits, ValueError: one of the prompts is refused, see `add`; then none is begun.
        """
        ### BEGIN SOLUTION
        begun = self.enlist(prompts, sampling)
        owners = {number: place for place, number in enumerate(begun)}
        try:
            for added in self.run(begun):
                for number, token in added:
                    samples = self.sequences[number].samples
                    if samples[0] in owners:
                        yield owners[samples[0]], samples.index(number), token
        finally:
            self.withdraw(begun)
        ### END SOLUTION

    def generate(
        self, prompts: list[list[int]], sampling: Sampling | list[Sampling] | None = None
    ) -> list[Output]:
        """Continue prompts, all at once as far as memory allows.

        Args:
            prompts: tokens, at least one each.
            sampling: how to continue all of them, or each.
        Returns:
            What became of each prompt, in their order.
        Raises:
            NeverFits, ValueError: one of the prompts is refused, see `add`; then none is begun.
        """
        ### BEGIN SOLUTION
        numbers = self.enlist(prompts, sampling)
        for _ in self.run(numbers):
            pass
        return self.collect(numbers)
        ### END SOLUTION

    def enlist(
        self, prompts: list[list[int]], sampling: Sampling | list[Sampling] | None
    ) -> list[int]:
        """Add all prompts, or none if one is refused."""
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        numbers = []
        try:
            for prompt, own in zip(prompts, each, strict=True):
                numbers.append(self.add(prompt, own))
        except ValueError:
            self.withdraw(numbers)
            raise
        return numbers

    def run(self, numbers: list[int]) -> Iterator[list[tuple[int, int]]]:
        """Take steps until some requests have ended, and hand out what each step adds."""
        while self.unfinished(numbers):
            yield self.step()

    def unfinished(self, numbers: list[int]) -> list[int]:
        """List the samples of some requests that have not ended."""
        samples = [sample for number in numbers for sample in self.sequences[number].samples]
        return [sample for sample in samples if self.sequences[sample].reason is None]

    def withdraw(self, numbers: list[int]) -> None:
        """Take requests out of the engine, and abort what of them has not ended."""
        for number in self.unfinished(numbers):
            self.end(number, "abort")
        self.collect(numbers)

    def collect(self, numbers: list[int]) -> list[Output]:
        """Take requests that have ended out of the engine."""
        outputs = []
        for number in numbers:
            done = [self.sequences.pop(sample) for sample in self.sequences[number].samples]
            outputs.append(Output([each.output for each in done], [each.reason for each in done]))
        return outputs

    def counters(self, batch: int) -> dict[str, int]:
        """Count what the engine holds after a step of so many sequences, and all that happened."""
        scheduler, S = self.scheduler, self.cache.K.shape[3]
        filled: dict[int, int] = {}  # the slots in use of every block in use, shared ones once
        for table in (self.sequences[number].block_table for number in scheduler.running):
            for place, block in enumerate(table.blocks):
                filled[block] = max(filled.get(block, 0), min(S, table.length - place * S))
        return {
            "in the batch": batch,
            "waiting": len(scheduler.waiting),
            "blocks in use": len(filled),
            "blocks shared": sum(n > 1 for n in scheduler.manager.allocator.references),
            "slots wasted": len(filled) * S - sum(filled.values()),
            "tokens found": scheduler.hits,
            "preemptions": scheduler.preemptions,
        }
