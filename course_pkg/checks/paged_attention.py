"""Checks of paged_attention. Oracles: torch's attention, counting by slots."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from course_pkg.checking.case import Case
from course_pkg.checking.failure import Failure, describe
from course_pkg.checking.registry import check
from course_pkg.checking.together import of_each, together
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

KINDS = ["tokens", "reserved", "internal", "external", "free"]


def number(value: object, what: str) -> int:
    """Demand a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Failure(f"{what} should be a whole number, yours is {describe(value)}.")
    return value


def numbers(values: object, what: str) -> list[int]:
    """Demand a list of whole numbers."""
    if not isinstance(values, (list, tuple)):
        raise Failure(f"{what} should be a list, yours is {describe(values)}.")
    return [number(value, f"{what}[{place}]") for place, value in enumerate(values)]


def pairs(values: object, what: str, size: int = 2) -> list[tuple[int, ...]]:
    """Demand a list of tuples of whole numbers."""
    if not isinstance(values, (list, tuple)):
        raise Failure(f"{what} should be a list, yours is {describe(values)}.")
    rows = [tuple(numbers(value, f"{what}[{place}]")) for place, value in enumerate(values)]
    if any(len(row) != size for row in rows):
        raise Failure(f"{what} should hold tuples of {size}, yours are {rows!r:.60}.")
    return rows


def flat(rows: list[list[int]]) -> list[int]:
    """Put lists one behind the other."""
    return [value for row in rows for value in row]


def same(case: Case, given: list, expected: list, what: str) -> None:
    """Compare whole numbers, one by one: how many there are, and what they are.

    Short lists are shown as a whole.
    """
    is_short = len(repr(expected)) + len(repr(given)) <= 120
    both = f"{what} should be {expected}, yours is {given}"
    if len(given) != len(expected):
        ends = [*given, "missing"], [*expected, "no more"]
        place = next(n for n, (a, b) in enumerate(zip(*ends, strict=False)) if a != b)
        first = f"{what}: number {place} should be {ends[1][place]}, yours is {ends[0][place]}"
        text = both if is_short else first
        raise Failure(f"{text}.", what=what, observed=torch.tensor(given))
    try:
        case.equal(torch.tensor(given), torch.tensor(expected), what)
    except Failure as failure:
        differ = [n for n, (a, b) in enumerate(zip(given, expected, strict=True)) if a != b]
        if is_short and differ and len(given) > 1:
            failure.message = f"{both}: it differs at [{differ[0]}]."
        raise


def scene(case: Case, memory: int, order: list[int]) -> list[tuple[int, int, int, int]]:
    """Draw regions (start, size, now, final) with holes before, between and after them."""
    regions, start = [], 0
    for _ in order:
        start += int(case.integers(1, 9, 1))
        size = int(case.integers(4, 12, 1))
        final = int(case.integers(3, size, 1))
        regions.append((start, size, int(case.integers(1, final, 1)), final))
        start += size
    assert start < memory
    return [regions[place] for place in order]


def by_slot(regions: list[tuple[int, int, int, int]], memory: int, need: int) -> list[int]:
    """Count the kinds of slots by looking at each one."""
    slots = ["hole"] * memory
    for start, size, now, final in regions:
        for offset in range(size):
            late = "reserved" if offset < final else "internal"
            slots[start + offset] = "tokens" if offset < now else late
    for slot in range(memory):
        if slots[slot] == "hole":
            end = slot
            while end < memory and slots[end] == "hole":
                end += 1
            kind = "external" if end - slot < need else "free"
            slots[slot:end] = [kind] * (end - slot)
    return [slots.count(kind) for kind in KINDS]


def counted(found: object) -> list[int]:
    """Take the five numbers of slots out of what `fragmentation` returns."""
    if not isinstance(found, dict) or sorted(found) != sorted(KINDS):
        names = sorted(map(str, found)) if isinstance(found, dict) else describe(found)
        raise Failure(f"should return a dict of {', '.join(KINDS)}, yours is {names!s:.60}.")
    return [number(found[kind], kind) for kind in KINDS]


def compare_scenes(case: Case, fragments, scenes: list[tuple]) -> None:
    """Compare the counts of some scenes with those of `by_slot`."""
    given = torch.tensor([counted(fragments(*scene)) for scene in scenes])
    expected = torch.tensor([by_slot(*scene) for scene in scenes])
    case.equal(given, expected, f"({', '.join(KINDS)}) by scene")


@check(fragmentation, weight=2, see="Where the memory goes")
def values(fragments, case):
    """counts every slot once, as looking at each of them does"""
    compare_scenes(case, fragments, [(scene(case, 90, [0, 1, 2, 3]), 90, 6) for _ in range(2)])


@check(fragmentation, see="Where the memory goes")
def any_order(fragments, case):
    """does not mind in which order the regions come"""
    scenes = [(scene(case, 90, order), 90, 5) for order in ([2, 0, 3, 1], [3, 1, 2, 0])]
    compare_scenes(case, fragments, scenes)


@check(fragmentation, see="Where the memory goes")
def full_and_empty(fragments, case):
    """has no holes in a full memory, and one in an empty one"""
    full = [(0, 10, 3, 8), (10, 6, 6, 6)]
    compare_scenes(case, fragments, [(full, 16, 4), ([], 16, 4), ([], 3, 4)])


def references(case: Case, allocator) -> list[int]:
    """Read an allocator's reference counts."""
    return numbers(allocator.references, "references")


@check(BlockAllocator, weight=2, see="Hand out blocks")
def hands_out(allocators, case):
    """hands out every block once, with one user each"""
    allocator = allocators(5)
    given = [number(allocator.allocate(), "block") for _ in range(5)]
    same(case, sorted(given), [0, 1, 2, 3, 4], "the blocks, sorted")
    same(
        case, [*references(case, allocator), allocator.available], [1] * 5 + [0], "users, and free"
    )


@check(BlockAllocator, weight=2, see="Who uses a block")
def counts_users(allocators, case):
    """keeps a block until its last user has freed it"""
    allocator = allocators(4)
    first, second = allocator.allocate(), allocator.allocate()
    seen, expected = (
        [],
        [[1, 1, 2], [2, 1, 2], [3, 1, 2], [2, 1, 2], [2, 0, 3], [1, 0, 3], [0, 0, 4]],
    )
    program = [("share", first), ("share", first), ("free", first), ("free", second)]
    for name, block in [("", 0), *program, ("free", first), ("free", first)]:
        if name:
            getattr(allocator, name)(block)
        counts = references(case, allocator)
        seen.append([counts[first], counts[second], number(allocator.available, "available")])
        what = "(users of a, of b, available): allocate a, b; share a, a; free a, b, a, a"
        if len(seen) > 1:
            same(case, seen, expected[: len(seen)], what)


@check(BlockAllocator, see="Hand out blocks")
def exhausted(allocators, case):
    """raises OutOfBlocks when all are in use, and goes on when one is freed"""
    allocator = allocators(3)
    blocks = [allocator.allocate() for _ in range(3)]
    case.raises(OutOfBlocks, allocator.allocate, "no block is free")
    allocator.free(blocks[1])
    same(case, [number(allocator.allocate(), "block")], [blocks[1]], "the only free block")


@check(BlockAllocator, see="Who uses a block")
def refuses(allocators, case):
    """raises ValueError when a block is freed twice"""
    allocator = allocators(3)
    block = allocator.allocate()
    allocator.free(block)
    case.raises(ValueError, lambda: allocator.free(block), "a block is freed twice")
    case.raises(ValueError, lambda: allocator.share(block), "a block without users is shared")


def table_of(case: Case, tables, S: int, counts: list[int]) -> tuple:
    """Fill a table bit by bit with blocks in no order; also give what its slots should be."""
    total = math.ceil(sum(counts) / S)
    order = [3 * n for n in torch.randperm(total, generator=case.generator).tolist()]
    table, length, given = tables(S), 0, []
    for count in counts:
        have, length = math.ceil(length / S), length + count
        slots = table.append(count, order[have : math.ceil(length / S)])
        given += numbers(slots, "the slots")
    expected = [block * S + offset for block in order for offset in range(S)]
    return table, given, expected[: sum(counts)], order


@check(BlockTable, weight=2, see="The page table of a sequence")
def appends(tables, case):
    """gives new positions the slots that follow, within a block and across a border"""
    table, given, expected, order = table_of(case, tables, 4, [3, 2, 1, 6, 4, 1])
    same(case, given, expected, "the slots")
    same(case, numbers(table.blocks, "blocks"), order, "the blocks of the table")
    same(case, [number(table.length, "length")], [17], "length")


@check(BlockTable, weight=2, see="A sequence that ends on a border")
def missing(tables, case):
    """asks for a block only when the last one is full"""
    found, expected = [], []
    for length in (0, 3, 5, 8, 10):
        table, *_ = table_of(case, tables, 5, [length])
        for count in (1, 2, 5, 6, 11):
            found.append(number(table.missing(count), "missing"))
            expected.append(math.ceil((length + count) / 5) - math.ceil(length / 5))
    same(case, found, expected, "missing(1, 2, 5, 6, 11) of lengths 0, 3, 5, 8, 10")


@check(BlockTable, see="A sequence that ends on a border")
def waste(tables, case):
    """wastes only what is free in the last block"""
    given = [number(table_of(case, tables, 4, [n])[0].waste, "waste") for n in range(10)]
    same(case, given, [0, 3, 2, 1, 0, 3, 2, 1, 0, 3], "waste of lengths 0 to 9")


@check(BlockTable, see="A sequence that ends on a border")
def in_use(tables, case):
    """has no slots for positions that are not in use, even where its last block has room"""
    table, *_ = table_of(case, tables, 4, [5])
    case.raises(IndexError, lambda: table.slots(4, 6), "position 5 of 5 is not in use")


@check(BlockTable, see="The page table of a sequence")
def fork(tables, case):
    """makes an independent table when it is forked"""
    table, *_ = table_of(case, tables, 3, [7])
    child = table.fork()
    before = [*numbers(table.blocks, "blocks"), 7]
    same(case, [number(child.length, "length")], [7], "the length of the new table")
    child.append(4, [20])
    same(
        case,
        [*numbers(table.blocks, "blocks"), table.length],
        before,
        "the old table and its length",
    )
    expected = [*before[:3], 20, 11]
    same(
        case,
        [*numbers(child.blocks, "blocks"), child.length],
        expected,
        "the new table and its length",
    )


def cache_of(case: Case, caches) -> tuple:
    """Make a cache, and keys and values of one sequence: its blocks, slots, K and V."""
    L, N, S, G, D_h = 2, 6, 3, 4, 5
    cache = caches(L, N, S, G, D_h, dtype=torch.float64)
    blocks = torch.randperm(N, generator=case.generator)[:3].tolist()
    slots = torch.tensor([block * S + offset for block in blocks for offset in range(S)][:8])
    return cache, blocks, slots, case.randn(8, G, D_h), case.randn(8, G, D_h)


@check(PagedKVCache, weight=2, see="Keys and values in blocks")
def writes(caches, case):
    """puts the key of slot n at K[layer, :, n // S, n % S], and nothing elsewhere"""
    cache, _, slots, K, V = cache_of(case, caches)
    cache.write(1, slots, K, V)
    for name, given, values in (("K", cache.K, K), ("V", cache.V, V)):
        expected = torch.zeros(2, 4, 6, 3, 5, dtype=torch.float64)
        for slot, value in zip(slots.tolist(), values, strict=True):
            expected[1, :, slot // 3, slot % 3] = value
        case.equal(given, expected, name)


@check(PagedKVCache, weight=2, see="Keys and values in blocks")
def gathers(caches, case):
    """gives back what was written, in the order of the positions"""
    cache, blocks, slots, K, V = cache_of(case, caches)
    cache.write(0, slots, K, V)
    keys, values = case.unpack(cache.gather(0, blocks, 8), "K", "V")
    case.equal(keys, K, "K")
    case.equal(values, V, "V")


@check(PagedKVCache, see="Keys and values in blocks")
def copies(caches, case):
    """copies whole blocks, keys and values of every layer"""
    cache, blocks, slots, K, V = cache_of(case, caches)
    for layer in range(2):
        cache.write(layer, slots, K + layer, V - layer)
    target = next(n for n in range(6) if n not in blocks)
    cache.copy([(blocks[1], target)])
    given = [case.unpack(cache.gather(layer, [blocks[1], target], 6), "K", "V") for layer in (0, 1)]
    expected = [(K[3:6] + layer, V[3:6] - layer) for layer in (0, 1)]
    for place, name in enumerate("KV"):
        for layer in (0, 1):
            case.shape(given[layer][place], (6, 4, 5), f"{name} of layer {layer}")
        found = torch.stack([given[layer][place] for layer in (0, 1)])
        wanted = torch.stack([expected[layer][place].repeat(2, 1, 1) for layer in (0, 1)])
        case.equal(found, wanted, f"{name} of both layers, positions of the block and of its copy")


def part(E: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """Attend to one set of keys: the output, and the logarithm of the sum of exponentials."""
    return torch.softmax(E, dim=-1) @ V, torch.logsumexp(E, dim=-1)


def merge_inputs(case: Case, shift: float = 0.0) -> tuple:
    """Draw scores and values of two sets of keys."""
    B, T, D_h, N_a, N_b = case.sizes(5)
    return (
        case.randn(B, T, N_a),
        case.randn(B, N_a, D_h),
        (case.randn(B, T, N_b) + shift),
        case.randn(B, N_b, D_h),
    )


def merged(case: Case, merge, E_a, V_a, E_b, V_b) -> None:
    """Compare the merge of two parts with attention to both sets at once."""
    Y, s = case.unpack(merge(*part(E_a, V_a), *part(E_b, V_b)), "Y", "s")
    expected = part(torch.cat([E_a, E_b], dim=-1), torch.cat([V_a, V_b], dim=-2))
    case.equal(Y, expected[0], "Y")
    case.equal(s, expected[1], "s")


@check(online_softmax_merge, weight=3, see="Two softmaxes make one", single="B")
def values(merge, case):
    """gives what one softmax over both sets of keys gives"""
    merged(case, merge, *merge_inputs(case))


@check(online_softmax_merge, see="Two softmaxes make one")
def large_scores(merge, case):
    """stays finite when scores are a thousand apart"""
    merged(case, merge, *merge_inputs(case, shift=1000.0))


@check(online_softmax_merge, see="A set without keys")
def empty_part(merge, case):
    """changes nothing when one of the sets is empty, also where the other one is"""
    E, V, *_ = merge_inputs(case)
    Y, s = part(E, V)
    Y[:, -1], s[:, -1] = 0, -math.inf
    nothing = torch.zeros_like(Y), torch.full_like(s, -math.inf)
    for first, second in (((Y, s), nothing), (nothing, (Y, s))):
        given = case.unpack(merge(*first, *second), "Y", "s")
        case.equal(given[0], Y, "Y")
        case.equal(given[1], s, "s")


def paged_inputs(case: Case, B: int, T: int, H: int, G: int, lengths: list[int]) -> tuple:
    """Draw queries, and keys and values whose blocks of 3 slots lie in no order."""
    S, D_h = 3, 5
    counts = [math.ceil(length / S) for length in lengths]
    N = sum(counts) + 2
    order = torch.randperm(N, generator=case.generator).tolist()
    tables = [[order.pop() for _ in range(count)] + [0] * (max(counts) - count) for count in counts]
    K, V = case.randn(G, N, S, D_h), case.randn(G, N, S, D_h)
    return case.randn(B, T, H, D_h), K, V, torch.tensor(tables), torch.tensor(lengths)


def attended(Q: Tensor, K: Tensor, V: Tensor, tables: Tensor, lengths: Tensor) -> Tensor:
    """Put every sequence together and give it to torch."""
    rows, T = [], Q.shape[1]
    for q, table, length in zip(Q, tables, lengths.tolist(), strict=True):
        keys, values = (X[:, table].flatten(1, 2)[:, :length] for X in (K, V))
        mask = torch.ones(T, length, dtype=torch.bool).tril(length - T)
        heads = q.transpose(0, 1)[None], keys[None], values[None]
        Y = functional.scaled_dot_product_attention(*heads, mask, enable_gqa=True)
        rows.append(Y[0].transpose(0, 1))
    return torch.stack(rows)


@check(paged_attention, weight=2, see="Attention over blocks")
def decode(attend, case):
    """agrees with torch for one query at the end of each sequence"""
    inputs = paged_inputs(case, 4, 1, 2, 2, [14, 3, 8, 25])
    case.equal(attend(*inputs), attended(*inputs), "Y")


@check(paged_attention, weight=2, see="Several queries at once")
def prefill(attend, case):
    """agrees with torch for several queries, each of which sees what is before it"""
    inputs = paged_inputs(case, 2, 4, 3, 3, [14, 7])
    case.equal(attend(*inputs), attended(*inputs), "Y")


@check(paged_attention, see="Attention over blocks")
def shared_heads(attend, case):
    """lets query heads h read key head h // (H / G)"""
    inputs = paged_inputs(case, 3, 1, 6, 2, [4, 11, 17])
    case.equal(attend(*inputs), attended(*inputs), "Y")


@check(paged_attention, see="Two softmaxes make one")
def any_step(attend, case):
    """gives the same whether blocks are read one by one or all at once"""
    inputs = paged_inputs(case, 2, 2, 2, 1, [20, 9])
    for at_once in (1, 2, 50):
        case.equal(attend(*inputs, at_once), attended(*inputs), f"Y with at_once = {at_once}")


def must_copy(blocks: list[int], start: int, stop: int, S: int, users: list[int]) -> list[int]:
    """Look at every position that is written."""
    touched = {t // S for t in range(start, stop)}
    return sorted(n for n in touched if n < len(blocks) and users[blocks[n]] > 1)


def compare_copies(case: Case, copy, programs: list[tuple[int, int]], users: list[int]) -> None:
    """Compare which blocks are copied before some writes, as a table of marks."""
    blocks, S = [4, 0, 6, 3, 5], 3
    given, expected = torch.zeros(2, len(programs), 7, dtype=torch.int64)
    for row, (start, stop) in enumerate(programs):
        found = numbers(copy(list(blocks), start, stop, S, list(users)), "the result")
        if not all(0 <= n < len(blocks) for n in found) or len(set(found)) < len(found):
            text = f"The result should hold places in a table of 5, yours is {found!r:.60}."
            raise Failure(text)
        given[row, found] = 1
        expected[row, must_copy(blocks, start, stop, S, users)] = 1
    what = f"blocks to copy (1), one row for each of the writes {programs}"
    case.equal(given, expected, what)


@check(copy_on_write, weight=2, see="Fork, and copy only what is written")
def values(copy, case):
    """copies exactly the shared blocks that are written to"""
    users = [1, 0, 1, 2, 3, 2, 1]
    compare_copies(case, copy, [(1, 2), (4, 5), (10, 11), (13, 14), (2, 4), (8, 14)], users)


@check(copy_on_write, see="Fork, and copy only what is written")
def borders(copy, case):
    """leaves a full block alone when writing begins or ends at its border"""
    users = [2, 0, 0, 2, 2, 2, 2]
    compare_copies(case, copy, [(3, 4), (3, 6), (5, 6), (6, 9), (0, 3), (14, 15)], users)


@check(copy_on_write, see="Fork, and copy only what is written")
def beyond_the_end(copy, case):
    """needs no copy of blocks that the table does not have yet"""
    users = [2, 0, 0, 2, 2, 2, 2]
    compare_copies(case, copy, [(15, 16), (13, 17), (15, 22), (14, 16)], users)


def named(case: Case, hashes, texts: list[list[int]], S: int) -> list[list]:
    """Name the blocks of some texts; demand the right number of names."""
    found = []
    for names in of_each(hashes, [(list(text), S) for text in texts]):
        if not isinstance(names, (list, tuple)):
            raise Failure(f"should return a list of names, yours is {describe(names)}.")
        found.append(list(names))
    given = [len(names) for names in found]
    lengths = [len(text) for text in texts]
    same(case, given, [n // S for n in lengths], f"how many names texts of {lengths} tokens have")
    return found


def compare_names(case: Case, names: list, contents: list, what: str) -> None:
    """Demand that two names are equal exactly where the contents are."""
    given = torch.tensor([[int(a == b) for a in names] for b in names])
    expected = torch.tensor([[int(a == b) for a in contents] for b in contents])
    case.equal(given, expected, f"equal names (1) among the blocks of {what}")


@check(prefix_hash, weight=2, see="A name for a prefix")
def whole_prefix(hashes, case):
    """names two blocks alike if and only if all tokens up to their ends are alike"""
    texts = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 9, 5, 6], [7, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]]
    names = [name for row in named(case, hashes, texts, 2) for name in row]
    contents = [tuple(text[:end]) for text in texts for end in (2, 4, 6)]
    compare_names(case, names, contents, str(texts)[1:-1])


@check(prefix_hash, see="A name for a prefix")
def full_blocks(hashes, case):
    """names full blocks only"""
    named(case, hashes, [list(range(n)) for n in range(9)], 3)


@check(prefix_hash, see="A name for a prefix")
def order_counts(hashes, case):
    """tells texts apart that have the same tokens in another order, or the same digits"""
    texts = [[1, 23], [12, 3], [3, 12], [23, 1], [0, 24], [2, 13]]
    names = [row[0] for row in named(case, hashes, texts, 2)]
    compare_names(case, names, [tuple(text) for text in texts], str(texts)[1:-1])


@check(prefix_hash, see="A name for a prefix")
def no_names_twice(hashes, case):
    """gives every block a name of its own in texts that repeat one token, each another one"""
    texts = [[token] * 16 for token in range(20)]
    names = [name for row in named(case, hashes, texts, 2) for name in row]
    contents = [tuple(text[:end]) for text in texts for end in range(2, 17, 2)]
    compare_names(case, names, contents, "20 texts of 16 equal tokens")


@check(prefix_hash, weight=2, see="A name for a prefix")
def goes_on(hashes, case):
    """goes on from the name of the block before"""
    text = [8, 1, 8, 1, 8, 1, 2, 3]
    (whole, other) = named(case, hashes, [text, [0, 0, *text[2:]]], 2)
    names = []
    for chain in (whole, other):
        names += [*chain[1:], *list(hashes(text[2:], 2, chain[0])), *hashes(text[4:], 2, chain[1])]
    contents = []
    for start in ((8, 1), (0, 0)):
        ends = [start + tuple(text[2:end]) for end in (4, 6, 8)]
        contents += [*ends, *ends, *ends[1:]]
    compare_names(case, names, contents, "two texts, some named from the middle on")


def look_up(cache, name: str) -> int:
    """Look a name up: the block, or -1."""
    block = cache.find(name)
    return -1 if block is None else number(block, "find")


@together
def found_among(cache, names: str) -> list[int]:
    """Look names up and free what was found at once: 1 for each that is there."""
    found = []
    for name in names:
        block = look_up(cache, name)
        if block >= 0:
            cache.free(block)
        found.append(int(block >= 0))
    return found


@together
def filled(caches, names: str, blocks: int) -> tuple:
    """Make a cache whose first blocks have names; all are still in use."""
    cache = caches(blocks)
    owned = [number(cache.allocate(), "block") for _ in names]
    for block, name in [*zip(owned, names, strict=True)][::-1]:  # not in the blocks' order
        cache.register(block, name)
    return cache, owned


@check(PrefixCache, weight=2, see="Blocks that are remembered")
def remembers(caches, case):
    """finds a named block while it is in use and after it was freed"""
    cache, owned = filled(caches, "abc", 5)
    seen = []
    program = [("find", "b"), ("free", 1), ("free", 0), ("free", 1), ("find", "a"), ("find", "b")]
    for name, value in [*program, ("find", "x")]:
        found = look_up(cache, value) if name == "find" else cache.free(owned[value])
        users = references(case, cache)
        seen += [
            -1 if found is None else found,
            *(users[block] for block in owned),
            cache.available,
        ]
    a, b, _ = owned
    expected = [b, 1, 2, 1, 2, -1, 1, 1, 1, 2, -1, 0, 1, 1, 3, -1, 0, 0, 1, 4]
    expected += [a, 1, 0, 1, 3, b, 1, 1, 1, 2, -1, 1, 1, 1, 2]
    what = "(found, users of a, b, c, available): find b; free b, a, b; find a, b, x"
    for step in range(1, 7):
        same(case, seen[: 5 * step + 5], expected[: 5 * step + 5], what)


@check(PrefixCache, see="Found or idle, never both")
def first_stays(caches, case):
    """finds the first of two blocks that were registered under the same name"""
    cache, owned = filled(caches, "ab", 4)
    for name in "ba":
        cache.register(number(cache.allocate(), "block"), name)
    found = [look_up(cache, name) for name in "ab"]
    same(case, found, owned, "blocks found under a and b, each registered twice")


@check(PrefixCache, weight=2, see="Who is forgotten first")
def forgets(caches, case):
    """hands out the block that has been idle for longest, and forgets its name"""
    cache, owned = filled(caches, "abcd", 4)
    for place in (2, 0, 3, 1):
        cache.free(owned[place])
    taken = [number(cache.allocate(), "block") for _ in range(2)]
    found = [*taken, *found_among(cache, "abcd")]
    expected = [owned[2], owned[0], 0, 1, 0, 1]
    same(case, found, expected, "two blocks handed out, and which of a, b, c, d are found then")


@check(PrefixCache, see="Who is forgotten first")
def unused_first(caches, case):
    """hands out blocks without a name before it forgets one"""
    cache, owned = filled(caches, "abcd", 7)
    for block in owned:
        cache.free(block)
    taken = [int(number(cache.allocate(), "block") in owned) for _ in range(4)]
    what = "whether four blocks handed out had names, and which of a, b, c, d are found then"
    same(case, [*taken, *found_among(cache, "abcd")], [0, 0, 0, 1, 0, 1, 1, 1], what)


@check(PrefixCache, see="Blocks that are remembered")
def lists_idle(caches, case):
    """lists the blocks without users that can be found"""
    cache, owned = filled(caches, "abc", 5)
    seen = []
    for block in (cache.allocate(), owned[2], owned[0]):
        cache.free(block)
    for _ in range(2):
        idle = cache.idle
        seen.append(sorted(numbers(list(idle) if isinstance(idle, (dict, set)) else idle, "idle")))
        cache.find("c")
    expected = [sorted([owned[0], owned[2]]), [owned[0]]]
    what = "idle blocks, sorted, after c, a and one without a name are freed, and c is found again"
    same(case, flat(seen), flat(expected), what)


@check(PrefixCache, see="Blocks that are remembered")
def exhausted(caches, case):
    """raises OutOfBlocks only when all blocks are in use"""
    cache, owned = filled(caches, "ab", 2)
    case.raises(OutOfBlocks, cache.allocate, "all blocks are in use")
    cache.free(owned[0])
    same(case, [number(cache.allocate(), "block")], [owned[0]], "the only idle block")
    case.raises(OutOfBlocks, cache.allocate, "all blocks are in use again")


def grown(manager, sequence: int, count: int) -> list[tuple[int, ...]]:
    """Grow a sequence; give the pairs of blocks to copy."""
    return pairs(manager.grow(sequence, count), "grow's result")


def lists(manager, *sequences: int) -> list[list[int]]:
    """Read the blocks of some sequences."""
    return [numbers(manager.blocks(each), f"blocks of sequence {each}") for each in sequences]


@together
def record(holder, sequence: int):
    """Look up what a manager or a scheduler knows about a sequence."""
    find = getattr(holder.sequences, "get", None)
    found = find(sequence) if find else None
    if not hasattr(found, "tokens"):
        yours = f"yours has {describe(found)}" if find else f"yours is {describe(holder.sequences)}"
        raise Failure(f"sequences should be a dict with a Sequence under {sequence}, {yours}.")
    return found


@together
def tables(manager, *sequences: int) -> list[list[int]]:
    """Read the blocks of some sequences from their tables, with the length before them."""
    rows = []
    for each in sequences:
        table = record(manager, each).block_table
        if table is None:
            raise Failure(f"block_table of sequence {each} should be a BlockTable, yours is None.")
        blocks = numbers(table.blocks, f"blocks of the table of sequence {each}")
        rows.append([number(table.length, "length"), *blocks])
    return rows


def demand_no_table(case: Case, holder, sequence: int, when: str) -> None:
    """Demand that a sequence has no table."""
    table = record(holder, sequence).block_table
    what = f"The block_table of sequence {sequence}, which {when}, should be None"
    case.that(table is None, f"{what}, yours is {describe(table)}.")


@check(BlockManager, see="One object for each sequence")
def one_object(managers, case):
    """keeps the table of a sequence in its Sequence, from open to close"""
    manager = managers(9, 3)
    manager.open(0, list(range(8)))
    same(case, flat(tables(manager, 0)), [0], "length and blocks of the table after open")
    grown(manager, 0, 7)
    manager.fork(0, 1)
    grown(manager, 1, 3)
    first, second = lists(manager, 0, 1)
    found = flat(tables(manager, 0, 1))
    same(case, found, [7, *first, 10, *second], "length and blocks of two tables")
    tokens = numbers(record(manager, 1).tokens, "tokens")
    same(case, tokens, list(range(8)), "tokens of the fork")
    manager.close(0)
    demand_no_table(case, manager, 0, "is closed")
    manager.fork(0, 2)
    same(case, lists(manager, 2)[0], [], "blocks of the fork of one without a table")
    manager.close(2)
    seen = [manager.allocator.available, *tables(manager, 1)[0]]
    same(case, seen, [5, 10, *second], "free blocks, and the table of the other sequence")
    manager.close(1)
    demand_no_table(case, manager, 1, "is closed too")
    manager.open(1, [4, 4])
    tokens = numbers(record(manager, 1).tokens, "tokens")
    same(case, tokens, list(range(8)), "tokens of a sequence that gets a new table")
    manager = managers(4, 2)
    for each in (0, 1):
        manager.open(each, [each] * 4)
        grown(manager, each, 4)
    manager.close(0)
    grown(manager, 1, 4)
    what = "length and blocks of a table that has got the blocks of another one"
    same(case, tables(manager, 1)[0], [8, *lists(manager, 1)[0]], what)


@check(BlockManager, weight=2, see="Blocks for every sequence")
def finds_prefixes(managers, case):
    """begins a sequence with the blocks of another that begins alike"""
    manager = managers(12, 3)
    text = list(range(10, 21))
    opened = [number(manager.open(0, text), "open")]
    grown(manager, 0, 11)
    manager.commit(0, text)
    for sequence, other in enumerate([[*text[:8], 1, 1], text[:2] + [9] * 8, [*text, 3, 4]], 1):
        opened.append(number(manager.open(sequence, other), "open"))
    same(case, opened, [0, 6, 0, 9], "tokens found for four prompts")
    first, second, fourth = lists(manager, 0, 1, 3)
    users = references(case, manager.allocator)
    same(case, [users[block] for block in first], [3, 3, 2, 1], "users of the first one's blocks")
    same(case, [*second, *fourth], [*first[:2], *first[:3]], "the blocks that are shared")


@check(BlockManager, weight=2, see="A prompt that is cached as a whole")
def leaves_one_token(managers, case):
    """leaves at least one token of a prompt to compute, even if all are cached"""
    opened = []
    for length in (3, 6, 7, 8, 9):
        manager, text = managers(9, 3), list(range(length))
        manager.open(0, text)
        grown(manager, 0, length)
        manager.commit(0, text)
        opened += [number(manager.open(each, text), "open") for each in (1, 2)]
    what = "tokens found of prompts of 3, 6, 7, 8 and 9, twice"
    same(case, opened, [0, 0, 3, 3, 6, 6, 6, 6, 6, 6], what)


@check(BlockManager, weight=2, see="Fork, and copy only what is written")
def forks(managers, case):
    """shares all blocks in a fork and copies the last one when either of the two writes"""
    manager = managers(10, 4)
    manager.open(7, [6] * 5)  # so that places and blocks differ
    grown(manager, 7, 5)
    manager.open(0, [5] * 6)
    grown(manager, 0, 6)
    manager.fork(0, 1)
    first, second = lists(manager, 0, 1)
    same(case, second, first, "the blocks of the fork")
    copied = grown(manager, 1, 1)
    (new,) = lists(manager, 1)
    seen = [len(copied), [(first[1], new[1])] == copied, new[1] != first[1]]
    seen.append(len(grown(manager, 0, 1)))
    users = references(case, manager.allocator)
    seen += [users[block] for block in (*first, new[1])]
    what = "copies; are they (old, new); is the block new; copies for the one that is alone now; "
    what += "users of the first block, the old and the new one; free blocks"
    expected = [1, 1, 1, 0, 2, 1, 1, 5]
    same(case, [*map(int, seen), manager.allocator.available], expected, what)


@check(BlockManager, see="All or nothing")
def all_or_nothing(managers, case):
    """changes nothing when blocks run out"""
    manager = managers(4, 2)
    manager.open(0, [5] * 5)
    grown(manager, 0, 5)
    manager.fork(0, 1)
    before = [*lists(manager, 1)[0], *references(case, manager.allocator)]
    case.raises(OutOfBlocks, lambda: manager.grow(1, 2), "two blocks are needed and one is free")
    after = [*lists(manager, 1)[0], *references(case, manager.allocator)]
    same(case, after, before, "blocks of the sequence, and users of all blocks, after the error")
    manager = managers(2, 2)
    manager.open(0, [1, 2, 3])
    grown(manager, 0, 3)
    manager.commit(0, [1, 2, 3])
    manager.close(0)
    manager.open(1, [9] * 9)
    case.raises(OutOfBlocks, lambda: manager.grow(1, 9), "five blocks are needed of two")
    found = number(manager.open(2, [1, 2, 3]), "open")
    same(case, [found], [2], "tokens found of a prompt that was there before the error")


@check(BlockManager, see="Blocks for every sequence")
def gives_back(managers, case):
    """gives all blocks back when all sequences are closed"""
    manager = managers(7, 2)
    manager.open(0, [5] * 5)
    grown(manager, 0, 5)
    manager.fork(0, 1)
    grown(manager, 1, 2)
    seen = [manager.allocator.available, sum(references(case, manager.allocator))]
    for sequence in (0, 1):
        manager.close(sequence)
        seen += [manager.allocator.available, sum(references(case, manager.allocator))]
    expected = [2, 7, 3, 4, 7, 0]
    same(case, seen, expected, "(free blocks, users of all) before, after one close, after both")
