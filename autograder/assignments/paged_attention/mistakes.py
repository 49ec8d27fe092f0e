"""Known wrong solutions of paged_attention."""

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import changed, equivalent, mistakes
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

mistakes(
    fragmentation,
    """
reserved_twice: slots that are kept for tokens to come count as internal waste as well
    size - final → size - now
swapped: reserved and internal are mixed up
    found["reserved"] += final - now → found["internal"] += final - now
    found["internal"] += size - final → found["reserved"] += size - final
unsorted_regions: the regions are taken in the order in which they come, not by their start
    *sorted(regions) → *regions
* no_last_hole: the hole behind the last region is forgotten
    [*sorted(regions), (memory, 0, 0, 0)] → sorted(regions)
* no_first_hole: the hole before the first region is forgotten
    end = 0 → end = min((start for start, _, _, _ in regions), default=memory)
too_strict: a hole that is just long enough counts as too short
    hole < need → hole <= need
* one_hole: the holes are judged by their sum, as if they were one
    hole < need → memory - sum(size for _, size, _, _ in regions) < need
all_external: every hole counts as external waste, however long it is
    "external" if hole < need else "free" → "external"
final_as_tokens: a region's slots all count as tokens up to its final length
    found["reserved"] += final - now → found["tokens"] += final - now
""",
)

black_box(
    fragmentation,
    "too_strict",
    curve='[100 - 100 * share["tokens"] for share in used.values()]',
    after="KINDS",
    label="slots in use without a token, %",
    over="ways to reserve, from the simplest",
)

wrong_answers(fragmentation_fault, "B")
mistakes(
    fragmentation_fault,
    """
long_hole: the hole is longer than what is needed
    ([], 4, 4) → ([], 5, 4)
    says: With these arguments the black box gives what is right
short_hole: the hole is shorter than what is needed
    ([], 4, 4) → ([], 3, 4)
    says: With these arguments the black box gives what is right
no_hole: the memory is full
    ([], 4, 4) → ([(0, 4, 2, 3)], 4, 4)
    says: With these arguments the black box gives what is right
two_holes: two holes are together as long as what is needed
    ([], 4, 4) → ([(2, 3, 1, 2)], 7, 4)
    says: With these arguments the black box gives what is right
no_need: nothing says how many slots are needed
    ([], 4, 4) → ([], 4)
    says: fragmentation raised
three_numbers: a region has no final length
    ([], 4, 4) → ([(0, 1, 1)], 4, 3)
    says: fragmentation raised
""",
)

mistakes(
    BlockAllocator,
    """
* FreedByOne: a block is free again as soon as one of its users frees it
    self.references[block] -= 1 → self.references[block] = 0
Leaks: freed blocks are never handed out again
    self.unused.append(block) → pass
BeginsAtZero: a block that was handed out has no user yet
    self.references[block] = 1 → self.references[block] = 0
SharesNothing: share does not count the new user
    self.references[block] += 1 → pass
* DoubleFree: a block that is freed twice is handed out twice
    raise ValueError(f"block {block} is not in use and cannot be freed") → self.unused.append(block)
BareError: an exhausted allocator raises whatever the list of free blocks raises
    if not self.unused: → if False:
    says: OutOfBlocks when no block is free: BlockAllocator.allocate raised IndexError
ReturnsNone: an exhausted allocator returns None
    raise OutOfBlocks(f"all {len(self.references)} blocks are in use") → return None
    says: should raise OutOfBlocks when no block is free, yours returns None
CountsUsers: available subtracts users from blocks: a shared block counts twice
    return len(self.unused) → return len(self.references) - sum(self.references)
FromOne: the blocks are numbered from 1
    [0] * blocks → [0] * (blocks + 1)
    range(blocks) → range(1, blocks + 1)
SharesUnused: a block without users can be shared
    raise ValueError(f"block {block} is not in use and cannot be shared") → pass
FreesEarly: a shared block is free again when half of its users have freed it
    self.references[block] -= 1 → self.references[block] -= 2 if self.references[block] == 2 else 1
FreeEachTime: every free makes a block available again, even one with users left
    self.unused.append(block) → pass
    self.references[block] -= 1 → self.references[block] -= 1; self.unused.append(block)
AlwaysTwo: share makes it two users, however many there are
    self.references[block] += 1 → self.references[block] = 2
CountsDownFirst: a free that is refused has counted down already
    raise ValueError(f"block {block} is not in use and cannot be freed")
    → self.references[block] -= 1
      raise ValueError("refused")
CountsUpFirst: a share that is refused has counted the user already
    raise ValueError(f"block {block} is not in use and cannot be shared")
    → self.references[block] += 1
      raise ValueError("refused")
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

mistakes(
    BlockAllocator,
    """
AllocatesInShare: a block that nobody uses is handed out by share, which should refuse it
    raise ValueError(f"block {block} is not in use and cannot be shared")
    → self.unused.remove(block)
FreeTwice: a block is free when one user is left, and once more when nobody is
    ] == 0:
        self.unused
    → ] <= 1:
          self.unused
FreeWithOneLeft: a block is free when one user is left, and not when nobody is
    ] == 0:
        self.unused
    → ] == 1:
          self.unused
""",
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

mistakes(
    BlockTable,
    """
* RoundsDown: missing counts whole blocks of new positions, and forgets the rest
    math.ceil((self.length + count) / self → max(0, (count - self.waste) // self
    - len(self.blocks) →
    len(blocks) != self.missing(count) → False
ForgetsRest: missing forgets the slots that are left in the last block
    (self.length + count) → count
    - len(self.blocks) →
    len(blocks) != self.missing(count) → False
* OneTooMany: missing asks for a new block when the last one is just filled up
    (self.length + count) → (self.length + count + 1)
    len(blocks) != self.missing(count) → False
Negative: missing goes below zero when the last block has more room than is asked for
    (self.length + count) → (count - self.waste)
    - len(self.blocks) → - (count < self.waste)
    len(blocks) != self.missing(count) → False
Logical: the slots are those of the logical block, not of the physical one
    self.blocks[t // S] * S + t % S for t → t for t
MixedUp: block and offset are mixed up: t % S chooses the block
    self.blocks[t // S] * S + t % S → self.blocks[min(t % S, len(self.blocks) - 1)] * S + t // S
NotTimes: a slot is the block's number plus the offset, without times S
    self.blocks[t // S] * S → self.blocks[t // S]
AllSlots: append returns the slots of all positions, not of the new ones
    self.slots(self.length - count → self.slots(0
* SharedList: a fork and its parent share one list of blocks
    self.blocks = self.blocks + list(blocks) → self.blocks.extend(blocks)
    list(self.blocks), self.length → self.blocks, self.length
ForkOfNothing: a fork forgets its parent's length
    list(self.blocks), self.length → list(self.blocks), 0
* WholeBlock: a table that ends on a border is said to waste a whole block
    return len(self.blocks) * self → return self
    self.block_size - self.length → self.block_size - self.length % self.block_size
Careless: a block too many is accepted
    len(blocks) != self.missing(count) → len(blocks) < self.missing(count)
Unlimited: the slots of positions that are not in use are given
    not 0 <= start <= stop <= self.length → False
    self.blocks[t // S] → self.blocks[t // S % len(self.blocks)]
ToTheEnd: slots are looked up to the end of the last block, in use or not
    stop <= self.length → stop <= len(self.blocks) * self.block_size
KeepsTheList: the table keeps the caller's list of blocks, which then grows
    self.blocks = self.blocks + list(blocks)
    → if self.blocks:
          self.blocks += blocks
      else:
          self.blocks = blocks
AddsFirst: an append that is refused has added its blocks already
    raise ValueError(f"{count} → self.blocks += list(blocks); raise ValueError(f"{count}
Uncounted: append does not count the new positions
    return self.slots(self.length - count, → slots = self.slots(self.length - count,
    count, self.length) → count, self.length); self.length -= count; return slots
OneBlockOff: missing takes off a block where the last one has room, however many slots that are
    (self.length + count) → count
    - len(self.blocks) → - (1 if self.waste else 0)
ForgetsRestAndRefuses: missing forgets the slots that are left in the last block
    (self.length + count) → count
    - len(self.blocks) →
RoundsDownAndRefuses: missing rounds down: no block is asked for that is not filled
    return math.ceil( → return max(0, math.floor(
    - len(self.blocks) → - len(self.blocks))
OneTooManyAndRefuses: missing asks for a new block when the last one is just filled up
    (self.length + count) → (self.length + count + 1)
AllBlocks: missing counts the blocks that the table has already, too
    - len(self.blocks) →
NewPositionsFirst: an append that is refused has added its positions already
    raise ValueError(f"{count} → self.length += count; raise ValueError(f"{count}
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
AnyBlock: slots are given wherever there is a block, without a look at the length
    not 0 <= start <= stop <= self.length → False
StopIncluded: the slot of the position at stop is given as well
    for t in range(start, stop)] → for t in range(start, min(stop + 1, self.length))]
FullFork: a fork counts all slots of its blocks as in use
    list(self.blocks), self.length → list(self.blocks), len(self.blocks) * self.block_size
NoBlocksInFork: a fork has its parent's length but not its blocks
    list(self.blocks), self.length → [], self.length
ForkIsItself: a fork is the table itself
    return table → return self
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

mistakes(
    PagedKVCache,
    """
OffsetFirst: block and offset are mixed up: slot n is taken for block n % S
    S = self.K.shape[3] → N, S = self.K.shape[2:4]; slots = slots % S % N * S + slots // S % S
DividesByBlocks: the number of blocks is taken for their size
    S = self.K.shape[3] → N, S = self.K.shape[2:4]; slots = slots // N * S + slots % N % S
AllLayers: every layer is written, not one
    self.K[layer, :, slots → self.K[:, :, slots
    self.V[layer, :, slots → self.V[:, :, slots
KeysTwice: the keys are stored as values, too
    V.permute(1, 0, 2) → K.permute(1, 0, 2)
OneTensor: K and V are the same tensor, so that values overwrite keys
    torch.zeros_like(self.K) → self.K
* Reshaped: heads and positions are reshaped where they should be transposed
    K.permute(1, 0, 2) → K.reshape(K.shape[1], len(K), -1)
    V.permute(1, 0, 2) → V.reshape(V.shape[1], len(V), -1)
Uncut: gather does not cut what lies behind the length
    X.flatten(1, 2)[:, :length] → X.flatten(1, 2)
Sorted: gather reads the blocks by their number, not in the table's order
    self.K[layer][:, blocks] → self.K[layer][:, sorted(blocks)]
    self.V[layer][:, blocks] → self.V[layer][:, sorted(blocks)]
* CopiesKeys: a copy copies the keys only
    self.V[:, :, target] = self.V[:, :, source] → pass
* CopiesOneLayer: a copy is made in the first layer only
    self.K[:, :, target] = self.K[:, :, source] → self.K[0, :, target] = self.K[0, :, source]
    self.V[:, :, target] = self.V[:, :, source] → self.V[0, :, target] = self.V[0, :, source]
Backwards: a copy goes in the wrong direction
    for source, target in → for target, source in
    says: positions of the block and of its copy at [0, 0, 0, 0]
CopiesAtOnce: copies are made all at once, not one after the other
    in copies: → in [map(list, zip(*copies, strict=True))] if copies else []:
GathersViews: what is gathered from one block is a view, which later writes change
    K, V = ( → blocks = slice(blocks[0], blocks[0] + 1) if len(blocks) == 1 else blocks; K, V = (
""",
)

changed(
    PagedKVCache,
    "GathersSlices",
    "what is gathered from neighbouring blocks is a view, which later writes change",
    (
        "        K, V = (\n",
        "        first, last = blocks[0], blocks[-1] + 1\n"
        "        if blocks == list(range(first, last)):\n"
        "            blocks = slice(first, last)\n"
        "        K, V = (\n",
    ),
)

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
ValuesOnly: a copy copies the values only
    self.K[:, :, target] = self.K[:, :, source] → pass
DefaultValues: keys or values have torch's default dtype, whatever is asked for
    self.V = torch.zeros_like(self.K) → self.V = torch.zeros(self.K.shape, device=device)
DefaultDtype: keys or values have torch's default dtype, whatever is asked for
    dtype=dtype, device=device) → device=device)
Adds: what is written is added to what the slots hold
    slots % S] = K → slots % S] += K
    slots % S] = V → slots % S] += V
MixesKV: write mixes up keys and values
    S = self.K.shape[3] → S, K, V = self.K.shape[3], V, K
FirstLayer: all layers are written to the first one
    self.K[layer, :, slots → self.K[0, :, slots
    self.V[layer, :, slots → self.V[0, :, slots
ReadsFirstLayer: gather reads the first layer, whichever is asked for
    self.K[layer][:, blocks] → self.K[0][:, blocks]
    self.V[layer][:, blocks] → self.V[0][:, blocks]
KeysForValues: gather gives the keys twice
    self.V[layer][:, blocks] → self.K[layer][:, blocks]
ReshapesGathered: what is gathered is reshaped where heads and positions should be swapped
    [:, :length].permute(1, 0, 2) → [:, :length].reshape(length, X.shape[0], -1)
Float32: keys and values are float32 when no dtype is given, not torch's default
    dtype=dtype, → dtype=dtype or torch.float32,
    says: set to float64 for this check, yours is torch.float32
""",
)

mistakes(
    online_softmax_merge,
    """
averaged: the outputs are averaged, whatever their weights
    (w_a[..., None] * Y_a + w_b[..., None] * Y_b) / some[..., None] → (Y_a + Y_b) / 2
    (highest + torch.log(some)).masked_fill(total == 0, -math.inf) → torch.logaddexp(s_a, s_b)
mixed_up: the weights of the two parts are mixed up
    * Y_a + w_b[..., None] * Y_b → * Y_b + w_b[..., None] * Y_a
one_height: the largest s of all queries is subtracted, not that of each
    torch.maximum(s_a, s_b) → torch.maximum(s_a, s_b).max()
    torch.finfo(s_a.dtype).min → -1e300
    total.clamp(min=1) → torch.where(total > 0, total, 1)
    (highest + torch.log(some)).masked_fill(total == 0, -math.inf) → highest + torch.log(total)
summed: the outputs are added without weights
    (w_a[..., None] * Y_a + w_b[..., None] * Y_b) / some[..., None] → Y_a + Y_b
    (highest + torch.log(some)).masked_fill(total == 0, -math.inf) → torch.logaddexp(s_a, s_b)
added_logarithms: s is the sum of s_a and s_b, although they are logarithms
    (highest + torch.log(some)).masked_fill(total == 0, -math.inf) → s_a + s_b
only_the_larger: s is the larger of the two, not the logarithm of the sum
    (highest + torch.log(some)).masked_fill(total == 0, -math.inf) → torch.maximum(s_a, s_b)
not_normalised: the weighted outputs are not divided by the sum of the weights
    / some[..., None] →
linear_weights: the weights are s_a and s_b themselves, not their exponentials
    (w_a[..., None] * Y_a + w_b[..., None] * Y_b) → (s_a[..., None] * Y_a + s_b[..., None] * Y_b)
    / some[..., None] → / (s_a + s_b)[..., None]
* overflows: the exponentials are taken without subtracting the larger one first
    torch.maximum(s_a, s_b).clamp(min=torch.finfo(s_a.dtype).min) → 0
    total.clamp(min=1) → total.clamp(min=1e-300)
    (highest + torch.log(some)).masked_fill(total == 0, -math.inf) → torch.log(total)
    says: yours is nan
* empty_is_nan: two empty parts give NaN: -∞ minus -∞
    .clamp(min=torch.finfo(s_a.dtype).min) →
    says: Y[0, 0] should be 0, yours is nan
sum_itself: s is returned as the sum itself, not as its logarithm
    (total == 0, -math.inf) → (total == 0, -math.inf).exp()
empty_sends_nan: the gradient of a set without keys is NaN
    (highest + torch.log(some)).masked_fill(total == 0, -math.inf) → highest + torch.log(total)
    says: yours is nan
weights_detached: no gradient goes back to s: the weights are detached
    w_a[..., None] * Y_a → w_a[..., None].detach() * Y_a
    w_b[..., None] * Y_b → w_b[..., None].detach() * Y_b
    / some[..., None] → / some[..., None].detach()
""",
)

mistakes(
    paged_attention,
    """
unscaled: the scores are not divided by √D_h
    (Q / math.sqrt(D_h)) → Q
whole_last_block: the slots of the last block that are not in use are not masked
    blocks = tables → n = lengths[long, None, None]; blocks = tables
    at > last[long] → (at > last[long]) & ((at < n) | (at // S > (n - 1) // S))
not_itself: a query does not see its own position
    at > last[long] → at >= last[long]
one_too_many: a query sees one position too many
    at > last[long] → (at > last[long] + 1) | (at >= (lengths[long, None, None] / S).ceil() * S)
not_causal: every query sees all positions of its sequence, those after it as well
    at > last[long] → at >= lengths[long, None, None]
* interleaved_heads: query head h reads key head h % G instead of h // (H / G)
    (B, T, G, H // G, D_h).permute(2, 0, 1, 3, 4) → (B, T, H // G, G, D_h).permute(3, 0, 1, 2, 4)
    permute(1, 2, 0, 3, 4) → permute(1, 2, 3, 0, 4)
first_head: all query heads read the first key head
    X.index_select(1, blocks) → X[:1].expand_as(X).index_select(1, blocks)
no_table: the logical block is read in place of the physical one: no table is used
    tables[long → torch.arange(tables.shape[1]).expand_as(tables)[long
full_blocks_only: a block that is not full is left out
    at > last[long] → (at > last[long]) | (at >= lengths[long, None, None] // S * S)
* counts_from_zero: query t is taken for position t, not for position length - T + t
    lengths[:, None] - T + → 0 * lengths[:, None] +
averaged_steps: what the steps give is averaged instead of merged by their sums
    for first in range(0, math.ceil(int(lengths.max()) / S), at_once):
    → steps = range(0, math.ceil(int(lengths.max()) / S), at_once)
      for first in steps:
    Y[:, long], s[:, long] = online_softmax_merge(Y[:, long], s[:, long], *new)
    → Y[:, long] += new[0] / len(steps)
one_height: the largest score of all queries is subtracted, not that of each
    E.amax(dim=-1).clamp(min=torch.finfo(E.dtype).min) → E.amax().expand(E.shape[:-1])
    total.clamp(min=1) → torch.where(total > 0, total, 1)
no_height: the exponentials are taken without subtracting the largest score first
    E.amax(dim=-1).clamp(min=torch.finfo(E.dtype).min) → torch.zeros_like(E[..., 0])
    total.clamp(min=1) → torch.where(total > 0, total, 1)
one_step: only the first few blocks are read: one step, not as many as needed
    range(0, math.ceil(int(lengths.max()) / S), at_once) → [0]
* masked_by_longest: the mask goes by the longest sequence of the batch
    B, T, H, D_h = Q.shape → B, T, H, D_h = Q.shape; lengths = lengths.max().expand(B)
""",
)

mistakes(
    copy_on_write,
    """
physical: the blocks' own numbers are returned, not their places in the table
    return [n for → return [blocks[n] for
    says: should hold places in a table of 5, yours is
copies_all: blocks that nobody shares are copied, too
    and references[blocks[n]] > 1 →
whole_table: every shared block of the table is copied, not only those written to
    range(start // block_size, math.ceil(stop / block_size)) → range(len(blocks))
first_only: only the first block that is written to is looked at
    math.ceil(stop / block_size) → start // block_size + 1
last_only: only the last block of the table is looked at
    range(start // block_size, math.ceil(stop / block_size)) → [len(blocks) - 1]
stop_included: the block at stop is copied, although nothing is written there
    math.ceil(stop / block_size) → math.ceil((stop + 1) / block_size)
* one_before: the block before start is copied when start lies on a border
    range(start // → range(max(start - 1, 0) //
* users_by_place: users are looked up by the place in the table, not by the block's number
    references[blocks[n]] → references[n]
three_users: a block with exactly two users is not copied
    > 1 → > 2
beyond_the_end: the table is read beyond its end
    n < len(blocks) and →
    says: copy_on_write raised IndexError
""",
)

mistakes(
    prefix_hash,
    """
no_parent: a block is named by its own tokens alone
    {parent} {tokens → {tokens
partial_block: the last block has a name although it is not full
    len(tokens) - block_size + 1 → len(tokens)
by_sum: a block is named by the sum of its tokens
    {parent} {tokens → {parent}/{sum(tokens
    start + block_size]} → start + block_size])}
    hashlib.sha256(content.encode()).hexdigest() → content
by_set: a block is named by its tokens in sorted order
    tokens[start : start + block_size] → sorted(tokens[start : start + block_size])
* no_separator: the tokens are written without anything between them: 1 23 looks like 12 3
    tokens[start : start + block_size] → ''.join(map(str, tokens[start : start + block_size]))
skips_one: a block is named by its parent's parent: one link of the chain is left out
    names = [] → names, above = [], ""
    {parent} {tokens → {above} {tokens
    parent = hashlib → above, parent = parent, hashlib
parent_ignored: every chain begins anew: the parent that is given is not used
    names = [] → names, parent = [], ""
by_place: a block is named by its place and its own tokens
    {parent} {tokens → {start} {tokens
short_names: names are so short that two texts with the same one can be found
    .hexdigest() → .hexdigest()[:8]
    says: A name needs 22 characters
* few_names: there are so few names that different texts share one
    names.append(parent) → names.append(int(parent, 16) % 1000)
last_token: a block is named by its last token and its parent
    {parent} {tokens[start : start + block_size]} → {parent}/{tokens[start + block_size - 1]}
    hashlib.sha256(content.encode()).hexdigest() → content
""",
)

mistakes(
    PrefixCache,
    """
* KeepsName: an evicted block keeps its name, and is found with new content
    del self.places[self.names.pop(block)] → pass
OnlyUnused: blocks that wait with a name are not counted as available
    + len(self.idle) →
* StaysIdle: a block that is found again can still be handed out to others
    self.idle.pop(block, None) → pass
UncountedFind: find does not count the new user
    self.references[block] += 1 → self.references[block] = max(self.references[block], 1)
LastFirst: the block that was freed last is handed out first
    popitem(last=False) → popitem(last=True)
ByNumber: blocks are forgotten by their number, not by how long they are idle
    block, _ = self.idle.popitem(last=False) → block = min(self.idle); del self.idle[block]
ByName: blocks are forgotten in the order in which they were named, not became idle
    block, _ = self.idle.popitem(last=False) → block = next(n for n in self.names if n in self.idle)
    del self.places → del self.idle[block], self.places
NamedFirst: blocks with a name are handed out before those without
    if not self.unused and self.idle: → if self.idle:
    self.unused.append(block) → self.unused.appendleft(block)
ForgetsAtOnce: a block loses its name when it is freed: nothing is remembered
    self.idle[self.unused.pop()] = None → del self.places[self.names.pop(block)]
* TakesOver: a second block of the same content takes over the name of the first
    and name not in self.places: → :
    self.names[block], → self.names.pop(self.places.get(name), None); self.names[block],
""",
)

changed(
    PrefixCache,
    "NamedTwice",
    "a second block of the same content also has the name, and takes it away when it is reused",
    (" and name not in self.places:", ":"),
    (
        "self.names[block], self.places[name] = name, block",
        "self.names[block] = name\n            self.places.setdefault(name, block)",
    ),
)

mistakes(
    PrefixCache,
    """
IdleInUse: a block that still has users counts as idle when one of them frees it
    if self.references[block] == 0 and block → if block
    self.idle[self.unused.pop()] → self.idle[block if self.references[block] else self.unused.pop()]
NoNewName: an evicted block keeps its old name, and gets no new one
    del self.places[self.names.pop(block)] → self.places.pop(self.names[block], None)
Renames: a block that has a name gets another, and is found by both
    block not in self.names and name → name
NamedAvailable: blocks that are in use count as available if they have a name
    + len(self.idle) → + len(self.names)
SharesFound: find shares the block, which share refuses when nobody uses it
    self.idle.pop(block, None) → self.share(block)
    self.references[block] += 1 → self.idle.pop(block, None)
    says: PrefixCache.find raised ValueError
""",
)

changed(
    PrefixCache,
    "IdleAndUnused",
    "a block that becomes idle can be handed out as one without a name, too",
    ("len(self.unused) + len(self.idle)", "self.references.count(0)"),
    (
        "        return super().allocate()",
        "        block = super().allocate()\n"
        "        self.idle.pop(block, None)\n"
        "        return block",
    ),
    ("self.idle[self.unused.pop()]", "self.idle[block]"),
    (
        "            self.idle.pop(block, None)\n            self.references",
        "            self.idle.pop(block, None)\n"
        "            if block in self.unused:\n"
        "                self.unused.remove(block)\n"
        "            self.references",
    ),
)

mistakes(
    PrefixCache,
    """
ZeroIsNone: block 0 is found but gets no user: it is taken for none
    if block is not None: → if block:
ZeroNotFound: block 0 is never found: it is taken for none
    block = self.places.get(name) → block = self.places.get(name) or None
OneUser: find makes it one user, however many there are
    self.references[block] += 1 → self.references[block] = 1
NoUser: find counts no user at all
    self.references[block] += 1 → pass
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
        "        if self.references[block] == 0 and block in self.names:\n"
        "            self.idle[self.unused.pop()] =",
        "        if self.references[block] == 0:\n"
        "            self.unused.pop()\n"
        "        if self.references[block] == 0 and block in self.names:\n"
        "            self.idle[block] =",
    ),
)

mistakes(
    PrefixCache,
    """
TwoNames: a block that has a name gets another, and loses the old one
    block not in self.names and name → name
    self.names[block], → self.places.pop(self.names.get(block), None); self.names[block],
""",
)

mistakes(
    BlockManager,
    """
SortedBlocks: blocks gives the blocks by their number, not in the order of the table
    else table.blocks → else sorted(table.blocks)
    says: that has got the blocks of another one
HalfGrown: blocks are taken before it is clear that there are enough
    len(shared) + table.missing(count) > allocator.available → False
NoCopy: a shared block is written to without a copy
    copy_on_write(table.blocks, start, start + count, self.block_size, users) → []
KeepsUser: the block that was copied keeps the user who left it
    allocator.free(table.blocks[n]) → pass
ToFrom: the copies are not given as (from, to)
    return copies → return [(target, source) for source, target in copies]
UncountedFork: a fork does not count as a user of the blocks
    self.allocator.share(block) → pass
    self.allocator.free(block) → self.allocator.references[block] and self.allocator.free(block)
FullBlocks: a fork shares full blocks only, and begins its last one anew
    for block in self.get_block_table(child):
        self.allocator.share(block)
    → for block in self.get_block_table(child):
          self.allocator.share(block)
      table = self.sequences[child].block_table
      if table is not None and table.length % self.block_size:
          self.allocator.free(table.blocks[-1])
          table.blocks[-1] = self.allocator.allocate()
FirstBlockFirst: the blocks are given back from the first to the last
    in reversed(self.get_block_table(seq_id)): → in self.get_block_table(seq_id):
NamesTooEarly: blocks are named by all tokens, also where none is computed yet
    tokens[len(known) * S : table.length] → tokens
    known[-1] if known else "" → ""
    enumerate(new, start=len(known)) → enumerate(new[: len(table.blocks)])
    sequence.block_hashes = known + new → pass
SearchesOn: the search goes on behind a block that is not found
    break → continue
EmptyTable: the blocks of a prefix are found but not put into the table
    = table, hashes → = BlockTable(self.block_size), hashes
KeepsTable: a sequence that is freed keeps its table, with blocks that others may get
    sequence.block_table, sequence.block_hashes = None, [] → sequence.block_hashes = []
    says: which is freed, should be None
BeginsAnew: a sequence that gets a new table begins anew, with the tokens given
    self.sequences.setdefault(seq_id, → self.sequences[seq_id] = (
KeepsTheLastFound: a last block that is found and left to compute keeps a user: nobody frees it
    tokens[:-1] → tokens
    if block is None: → if block is None or table.length + self.block_size == len(tokens):
SharesFoundToo: a block that is found gets two new users: from find, and from share
    [block]) → [block]); self.allocator.share(block)
CountsBlocks: allocate gives the number of blocks found, not of tokens
    return table.length → return len(table.blocks)
BeginsThere: blocks behind named ones are named as if the text began there
    S, known[-1] if known else "") → S)
NamesFirstBlocks: new names are given to the first blocks of the table, not to those behind
    enumerate(new, start=len(known)) → enumerate(new)
""",
)

changed(
    BlockManager,
    "SharedNames",
    "a fork and its parent share one list of names",
    ("sequence.block_hashes = known + new", "known += new"),
    (
        "        for block in self.get_block_table(child):\n",
        "        self.sequences[child].block_hashes = self.sequences[seq_id].block_hashes\n"
        "        for block in self.get_block_table(child):\n",
    ),
)

mistakes(
    BlockManager,
    """
KeepsNames: a sequence that is allocated again keeps the names of the blocks that it had
    = table, hashes → = table, sequence.block_hashes or hashes
    sequence.block_table, sequence.block_hashes = None, [] → sequence.block_table = None
CopyUncounted: the block for a copy is not counted when it looks whether there are enough
    [allocator.allocate() for _ in range(table.missing(count))] → new
    len(shared) + table.missing(count) → table.missing(count)
    copies = [] → copies, new = [], [allocator.allocate() for _ in range(table.missing(count))]
CopiesAlways: the last block is copied although nobody shares it
    self.block_size, users) → self.block_size, [2] * len(users))
OneTable: a fork and its parent have one table
    for block in self.get_block_table(child):
        self.allocator.share(block)
    → for block in self.get_block_table(child):
          self.allocator.share(block)
      self.sequences[child].block_table = self.sequences[seq_id].block_table
GivesNothingBack: a freed sequence gives nothing back
    self.allocator.free(block) → pass
LastNameLeftOut: the last full block is computed anew even if a token behind it is left
    prefix_hash(tokens[:-1], self.block_size): → prefix_hash(tokens, self.block_size)[:-1]:
""",
)

changed(
    BlockManager,
    "LooksUpAll",
    "blocks behind a gap get a user from allocate, which never frees them",
    (
        "        for name in prefix_hash(tokens[:-1], self.block_size):\n"
        "            block = self.allocator.find(name)\n",
        "        names = prefix_hash(tokens[:-1], self.block_size)\n"
        "        found = [self.allocator.find(name) for name in names]\n"
        "        for name, block in zip(names, found, strict=True):\n",
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
FreesTheCopy: the block of the copy is freed, not the one that it replaces
    allocator.free(table.blocks[n]) → allocator.free(copies[-1][1])
CopyNotUsed: the table keeps the old block, although it was copied
    table.blocks[n] = copies[-1][1] → pass
PlacesToCopy: the copies are given by places in the table, not by blocks
    copies.append((table.blocks[n], → copies.append((n,
NamesBeyond: blocks are named by all tokens, also where none is computed yet
    tokens[len(known) * S : table.length] → tokens[len(known) * S :]
    enumerate(new, start=len(known)) → zip(range(len(known), len(table.blocks)), new)
""",
)

changed(
    BlockManager,
    "SharesFullOnly",
    "a fork is no user of a last block that is not full",
    (
        "        for block in self.get_block_table(child):\n",
        "        table = self.sequences[child].block_table\n"
        "        for block in table.blocks[: table.length // self.block_size] if table else []:\n",
    ),
)

mistakes(
    BlockManager,
    """
WholePromptFound: a prompt that is cached as a whole leaves nothing to compute
    tokens[:-1] → tokens
ForkWithoutUsers: a fork does not count as a user of the blocks
    self.allocator.share(block) → pass
CloseNeedsTable: a sequence without a table cannot be freed
    reversed(self.get_block_table(seq_id)) → reversed(self.sequences[seq_id].block_table.blocks)
ForkNeedsTable: a sequence without a table cannot be forked
    block in self.get_block_table(child): → block in self.sequences[child].block_table.blocks:
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
    "cache_blocks names the blocks again: names are kept to save that work",
)
equivalent(
    BlockManager,
    "sequence.block_hashes = known + new → (left out)",
    "cache_blocks names the blocks again: names are kept to save that work",
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
