"""Hidden checks of paged_attention: borders, stale content, errors that leave traces, forks."""

import math

import torch

from course_pkg.checking.failure import Failure
from course_pkg.checking.registry import check
from course_pkg.checks.paged_attention import (
    Lending,
    Managing,
    Mapping,
    PlainCache,
    PlainManager,
    PlainMemory,
    PlainTable,
    Remembering,
    Storing,
    attended,
    cache_of,
    compare,
    compare_copies,
    compare_names,
    compare_scenes,
    filled,
    found_among,
    grown,
    lending,
    lists,
    look_up,
    managing,
    mapping,
    merge_inputs,
    merged,
    named,
    number,
    numbers,
    paged_inputs,
    part,
    random_programs,
    references,
    remembering,
    same,
    scene,
    storing,
    table_of,
)
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


@check(fragmentation, weight=2, see="Where the memory goes")
def just_enough(fragments, case):
    """counts a hole that is just long enough as free, and one shorter as external"""
    regions = [(4, 5, 2, 4), (12, 3, 1, 3), (20, 4, 4, 4)]  # holes of 4, 3, 5 and 6
    compare_scenes(case, fragments, [(regions, 30, need) for need in range(3, 8)])


@check(fragmentation, see="Where the memory goes")
def side_by_side(fragments, case):
    """sees no hole between regions that touch, nor at the ends if they reach them"""
    regions = [(10, 6, 1, 2), (0, 10, 9, 10), (16, 8, 3, 8)]
    shuffled = scene(case, 200, [1, 3, 0, 2, 4])
    compare_scenes(case, fragments, [(regions, 24, 1), (regions, 31, 7), (shuffled, 200, 3)])


@check(BlockAllocator, weight=2, see="Who uses a block")
def errors_leave_no_trace(allocators, case):
    """counts as before after a call that it refused"""
    allocator = allocators(3)
    first, second = allocator.allocate(), allocator.allocate()
    allocator.free(second)
    case.raises(ValueError, lambda: allocator.share(second), "an unused block is shared")
    case.raises(ValueError, lambda: allocator.free(second), "an unused block is freed")
    counts = references(allocator)
    found = [counts[first], counts[second], sum(counts), allocator.available]
    same(case, found, [1, 0, 1, 2], "users of two blocks, of all, and free blocks")
    for _ in range(2):
        allocator.allocate()
    case.raises(OutOfBlocks, allocator.allocate, "all blocks are in use")
    same(case, [allocator.available], [0], "free blocks after there was none to allocate")


@check(BlockAllocator, see="Hand out blocks")
def again_and_again(allocators, case):
    """never hands out a block that is in use, however long it works"""
    allocator, used, seen, expected = allocators(6), [], [], []
    for action in case.integers(0, 3, 150).tolist():
        if action and len(used) < 6:
            block = number(allocator.allocate(), "block")
            case.that(block not in used, f"Block {block} should not be handed out, it is in use.")
            used.append(block)
        elif used:
            allocator.free(used.pop(len(used) // 2))
        seen.append(number(allocator.available, "available"))
        expected.append(6 - len(used))
    same(case, seen, expected, "available blocks after each step")


@check(BlockAllocator, weight=2, see="Who uses a block")
def long_programs(allocators, case):
    """counts users and blocks in eight long programs as a plain model does"""
    settings = [(2 + n % 6,) for n in range(8)]
    drawn = random_programs(case, PlainCache, Lending, lending, settings, 40)
    compare(allocators, PlainCache, Lending, drawn)


@check(BlockTable, weight=2, see="A sequence that ends on a border")
def refuses(tables, case):
    """refuses too many or too few blocks and positions that it does not have"""
    table, *_ = table_of(case, tables, 4, [8])
    case.raises(ValueError, lambda: table.append(1, []), "a block is missing")
    case.raises(ValueError, lambda: table.append(4, [30, 33]), "there is a block too many")
    case.raises(IndexError, lambda: table.slots(6, 9), "position 8 is not in use")
    case.raises(IndexError, lambda: table.slots(-1, 2), "a position is negative")
    case.raises(IndexError, lambda: table.slots(5, 4), "the range ends before it begins")
    same(case, [table.length, table.waste], [8, 0], "length and waste afterwards")


@check(BlockTable, see="The page table of a sequence")
def any_range(tables, case):
    """looks up the slots of any range of positions"""
    table, _, expected, _ = table_of(case, tables, 3, [10])
    for start, stop in ((0, 10), (2, 4), (3, 6), (9, 10), (5, 5), (10, 10)):
        found = numbers(table.slots(start, stop), "slots")
        same(case, found, expected[start:stop], f"slots({start}, {stop})")


@check(BlockTable, see="The page table of a sequence")
def parent_grows_on(tables, case):
    """keeps a fork as it is when the old table grows"""
    table, _, _, order = table_of(case, tables, 4, [4])
    child = table.fork()
    table.append(5, [40, 43])
    found = [*numbers(child.blocks, "blocks"), child.length, child.waste, child.missing(1)]
    same(case, found, [*order, 4, 0, 1], "blocks, length, waste and missing(1) of the fork")
    second = table.fork()
    second.append(4, [46])
    same(case, numbers(child.blocks, "blocks"), order, "blocks of the first fork")
    same(case, numbers(second.blocks, "blocks")[-1:], [46], "last block of the second fork")


@check(BlockTable, weight=2, see="The page table of a sequence")
def long_programs(tables, case):
    """maps positions to slots in six long programs as a plain model does"""
    settings = [(1 + n % 5,) for n in range(6)]
    drawn = random_programs(case, PlainTable, Mapping, mapping, settings, 25)
    compare(tables, PlainTable, Mapping, drawn)


@check(PagedKVCache, weight=2, see="Keys and values in blocks")
def overwrites(caches, case):
    """replaces what a slot held, and leaves other slots and layers as they are"""
    cache, blocks, slots, K, V = cache_of(case, caches)
    cache.write(0, slots, K, V)
    cache.write(1, slots, -K, -V)
    cache.write(1, slots[2:5], K[:3], V[:3])
    expected = torch.cat([-K[:2], K[:3], -K[5:]]), torch.cat([-V[:2], V[:3], -V[5:]])
    for layer, pair in ((0, (K, V)), (1, expected)):
        given = case.unpack(cache.gather(layer, blocks, 8), "K", "V")
        case.equal(given[0], pair[0], f"K of layer {layer}")
        case.equal(given[1], pair[1], f"V of layer {layer}")


@check(PagedKVCache, see="Keys and values in blocks")
def begins_with_zeros(caches, case):
    """holds zeros at first, in the shape and type that it should"""
    cache = caches(2, 5, 3, 4, 6, dtype=torch.float64)
    for name, given in (("K", cache.K), ("V", cache.V)):
        case.equal(given, torch.zeros(2, 4, 5, 3, 6), name)
        case.that(
            given.dtype == torch.float64, f"{name} should be float64, yours is {given.dtype}."
        )


@check(PagedKVCache, see="Keys and values in blocks")
def copies_in_order(caches, case):
    """makes several copies, one after the other, and leaves their sources as they are"""
    cache, blocks, slots, K, V = cache_of(case, caches)
    cache.write(1, slots, K, V)
    one, two, *_ = (n for n in range(6) if n not in blocks)
    cache.copy([])
    cache.copy([(blocks[0], one), (one, two)])
    for block in (blocks[0], one, two):
        keys, values = case.unpack(cache.gather(1, [block], 3), "K", "V")
        case.equal(keys, K[:3], "K of a copy")
        case.equal(values, V[:3], "V of a copy")


@check(PagedKVCache, weight=2, see="Keys and values in blocks")
def long_programs(caches, case):
    """holds what was written last in six long programs; what was gathered is a copy"""
    settings = [(1 + n % 3, 3 + n % 3, 1 + n % 4) for n in range(6)]
    drawn = random_programs(case, PlainMemory, Storing, storing, settings, 25)
    compare(caches, PlainMemory, Storing, drawn)


@check(online_softmax_merge, weight=2, see="A set without keys")
def both_empty(merge, case):
    """gives 0 and -∞ when both sets are empty"""
    Y, s = torch.zeros(3, 4, dtype=torch.float64), torch.full((3,), -math.inf, dtype=torch.float64)
    given = case.unpack(merge(Y, s, Y, s), "Y", "s")
    case.equal(given[0], Y, "Y")
    case.equal(given[1], s, "s")
    s_a, s_b = torch.tensor([[-math.inf, -math.inf, 1.0], [-math.inf, 2.0, 3.0]]).double()
    Y_a, Y_b = (case.randn(3, 4) * (s > -math.inf)[:, None] for s in (s_a, s_b))
    w = torch.softmax(torch.stack([s_a, s_b]), dim=0).nan_to_num()[..., None]
    given = case.unpack(merge(Y_a, s_a, Y_b, s_b), "Y", "s")
    case.equal(given[0], w[0] * Y_a + w[1] * Y_b, "Y where both sets of one query are empty")
    case.equal(given[1], torch.logaddexp(s_a, s_b), "s where both sets of one query are empty")


@check(online_softmax_merge, see="Two softmaxes make one")
def small_scores(merge, case):
    """stays exact when all scores are far below zero"""
    E_a, V_a, E_b, V_b = merge_inputs(case)
    merged(case, merge, E_a - 900, V_a, E_b - 899, V_b)
    merged(case, merge, E_a - 1e5, V_a, E_b - 1e5, V_b)
    alone = torch.full_like(E_a[..., :1], -(2.0**34))  # of more keys, s would be off by 2e-6
    merged(case, merge, alone, V_a[..., :1, :], alone, V_b[..., :1, :])


@check(online_softmax_merge, see="Two softmaxes make one")
def heights(merge, case):
    """stays exact when one query's scores lie far above another's"""
    E_a, V_a, E_b, V_b = merge_inputs(case)
    shift = -900.0 * torch.arange(E_a.shape[1])[:, None]
    merged(case, merge, E_a + shift, V_a, E_b + shift, V_b)


@check(online_softmax_merge, see="Two softmaxes make one")
def three_parts(merge, case):
    """gives the same in whatever order three parts are merged"""
    E_a, V_a, E_b, V_b = merge_inputs(case)
    E_c, V_c = 2 * E_a.flip(0), V_a.flip(1)
    a, b, c = part(E_a, V_a), part(E_b, V_b), part(E_c, V_c)
    expected = part(torch.cat([E_a, E_b, E_c], dim=-1), torch.cat([V_a, V_b, V_c], dim=-2))
    for first, second, third in ((a, b, c), (c, a, b)):
        half = case.unpack(merge(*first, *second), "Y", "s")
        Y, s = case.unpack(merge(*half, *third), "Y", "s")
        case.equal(Y, expected[0], "Y of three parts")
        case.equal(s, expected[1], "s of three parts")


@check(paged_attention, weight=2, see="A sequence that ends on a border")
def border(attend, case):
    """agrees with torch for sequences that end on a border, one before and one after"""
    inputs = paged_inputs(case, 5, 1, 4, 2, [12, 11, 13, 3, 24])
    case.equal(attend(*inputs), attended(*inputs), "Y")
    longer = paged_inputs(case, 3, 3, 4, 2, [12, 3, 13])
    case.equal(attend(*longer), attended(*longer), "Y of three queries")


@check(paged_attention, see="Attention over blocks")
def stale(attend, case):
    """does not look at slots that are not in use, nor at what pads the tables"""
    Q, K, V, tables, lengths = paged_inputs(case, 3, 2, 2, 1, [10, 2, 16])
    expected = attended(Q, K, V, tables, lengths)
    used = torch.zeros(K.shape[1:3], dtype=torch.bool)
    for table, length in zip(tables.tolist(), lengths.tolist(), strict=True):
        for t in range(length):
            used[table[t // 3], t % 3] = True
    K, V = (torch.where(used[:, :, None], X, 1e3) for X in (K, V))
    for row, length in enumerate(lengths.tolist()):
        tables[row, math.ceil(length / 3) :] = (~used).all(dim=1).nonzero()[0, 0]
    case.equal(attend(Q, K, V, tables, lengths), expected, "Y")


@check(paged_attention, see="Two softmaxes make one")
def extreme(attend, case):
    """agrees with torch when scores are far apart, and for a sequence of one"""
    Q, K, V, tables, lengths = paged_inputs(case, 2, 1, 3, 3, [1, 19])
    inputs = 40 * Q, 40 * K, V, tables, lengths
    for at_once in (1, 4):
        case.equal(attend(*inputs, at_once), attended(*inputs), "Y")
    low = torch.full_like(Q, 100), torch.full_like(K, -150), V, tables, lengths
    case.equal(attend(*low), attended(*low), "Y when all scores are -33541")


@check(copy_on_write, see="Fork, and copy only what is written")
def many(copy, case):
    """agrees with a look at every position, for many writes"""
    starts, counts = case.integers(0, 15, 40).tolist(), case.integers(1, 9, 40).tolist()
    programs = [(start, start + count) for start, count in zip(starts, counts, strict=True)]
    compare_copies(case, copy, programs[:20], [1, 0, 1, 2, 1, 3, 2])
    compare_copies(case, copy, programs[20:], [3, 1, 2, 1, 2, 1, 1])


@check(copy_on_write, see="Fork, and copy only what is written")
def alone(copy, case):
    """copies nothing when nobody shares"""
    compare_copies(case, copy, [(0, 15), (4, 8), (14, 20)], [1] * 7)


@check(prefix_hash, see="A name for a prefix")
def many_texts(hashes, case):
    """gives no two different prefixes the same name"""
    rows = case.integers(0, 50_000, 120, 4).tolist()
    names = [row[-1] for row in named(case, hashes, rows, 1)]
    compare_names(case, names, [tuple(row) for row in rows], "120 texts of four tokens")
    texts = [[0, 1], [2**61 - 1, 1], [256, 1], [257, 1], [1, 1]]
    names = [row[0] for row in named(case, hashes, texts, 2)]
    compare_names(case, names, [tuple(text) for text in texts], str(texts)[1:-1])
    ((name,),) = named(case, hashes, [list(range(99))], 99)
    if len(str(name)) < 22:  # 128 bits, with 64 different characters
        said = f"yours has {len(str(name))}: {name!r}"
        raise Failure(f"A name needs 22 characters, or two texts that share one are found; {said}.")


@check(PrefixCache, weight=2, see="Blocks that are remembered")
def revived(caches, case):
    """does not hand out a block that was found again after it was freed"""
    cache, owned = filled(caches, "abc", 3)
    for block in owned:
        cache.free(block)
    found = look_up(cache, "a")
    taken = [number(cache.allocate(), "block") for _ in range(2)]
    same(case, sorted([found, *taken]), sorted(owned), "the three blocks in use, sorted")
    case.raises(OutOfBlocks, cache.allocate, "all blocks are in use")
    same(case, found_among(cache, "abc"), [1, 0, 0], "which of a, b, c are still found")


@check(PrefixCache, weight=2, see="Found or idle, never both")
def new_content(caches, case):
    """does not find a block by the name of what it held before it was handed out anew"""
    cache, owned = filled(caches, "ab", 2)
    for block in owned:
        cache.free(block)
    again = number(cache.allocate(), "block")
    cache.register(again, "c")
    seen = found_among(cache, "abc")
    cache.free(again)
    seen += found_among(cache, "abc")
    what = "which of a, b, c are found while c is in use, and when it is idle"
    same(case, seen, [0, 1, 1, 0, 1, 1], what)
    same(case, [look_up(cache, "c")], [owned[0]], 'find("c")')


@check(PrefixCache, see="Who is forgotten first")
def used_lately(caches, case):
    """counts a block as idle from the last time it was freed"""
    cache, owned = filled(caches, "abcdef", 6)
    for place in (4, 2, 0, 5, 1, 3):
        cache.free(owned[place])
    if (block := look_up(cache, "e")) >= 0:
        cache.free(block)
    taken = {look_up(cache, "x"), cache.allocate(), cache.allocate()}
    case.that(len(taken) == 3, "Two different blocks should be handed out, yours are the same.")
    what = "which of a to f are found: freed in the order e, c, a, f, b, d, and e again"
    same(case, found_among(cache, "abcdef"), [0, 1, 0, 1, 1, 1], what)


@check(PrefixCache, see="Blocks that are remembered")
def one_name_one_block(caches, case):
    """keeps the first block of a name and the first name of a block, and refuses a second free"""
    cache, owned = filled(caches, "ab", 4)
    other = number(cache.allocate(), "block")
    cache.register(other, "a")
    cache.register(owned[1], "x")
    seen = [look_up(cache, name) for name in "abx"]
    cache.free(other)
    users = references(cache)
    seen += [cache.available, *(users[block] for block in (*owned, other))]
    what = "a, b and x when another block is named a and b is also named x; "
    what += "available when the second a is freed; users of three blocks"
    same(case, seen, [*owned, -1, 2, 2, 2, 0], what)
    taken = [number(cache.allocate(), "block") for _ in range(2)]
    seen = found_among(cache, "abx")
    for block in taken:
        cache.free(block)
    what = "which of a, b and x are found when the second block named a is handed out anew"
    same(case, seen, [1, 1, 0], what)
    case.raises(ValueError, lambda: cache.free(other), "a block is freed that nobody uses")
    for _ in range(2):
        cache.free(owned[0])  # now idle
    case.raises(ValueError, lambda: cache.free(owned[0]), "an idle block is freed")
    case.raises(ValueError, lambda: cache.share(owned[0]), "an idle block is shared")
    same(case, [cache.available], [3], "available after the errors")
    cache.share(owned[1])
    another = number(cache.allocate(), "block")
    cache.share(another)
    cache.register(another, "y")
    same(case, [look_up(cache, "y")], [another], "y, the name of a block with two users")


@check(PrefixCache, weight=2, see="Found or idle, never both")
def long_programs(caches, case):
    """finds, forgets and hands out in twelve long programs as a plain model does"""
    settings = [(2 + n % 5,) for n in range(12)]
    drawn = random_programs(case, PlainCache, Remembering, remembering, settings, 50)
    compare(caches, PlainCache, Remembering, drawn)


@check(BlockManager, weight=2, see="Fork, and copy only what is written")
def fork_of_a_fork(managers, case):
    """copies for two of three that share a block, and for none at a border"""
    manager = managers(12, 3)
    manager.open(0, [5] * 4)
    grown(manager, 0, 4)
    manager.fork(0, 1)
    manager.fork(1, 2)
    seen = [len(grown(manager, each, 1)) for each in (2, 0, 1)]
    blocks = lists(manager, 0, 1, 2)
    seen += [len({row[1] for row in blocks}), len({row[0] for row in blocks})]
    manager.fork(0, 3)
    seen.append(len(grown(manager, 3, 1)))  # the sixth position of two blocks of three: a copy
    manager.fork(3, 4)
    seen.append(len(grown(manager, 4, 2)))  # a new block: nothing to copy
    for each in range(5):
        manager.close(each)
    what = "copies for the third, the first, the second; different second and first blocks; "
    what += "copies for a fork within a block and at a border; free blocks when all are closed"
    same(case, [*seen, manager.allocator.available], [1, 1, 0, 3, 1, 1, 0, 12], what)


@check(BlockManager, weight=2, see="Found or idle, never both")
def end_of_the_chain_first(managers, case):
    """forgets the end of a text before its beginning, and stops at the first gap"""
    manager, text = managers(4, 2), list(range(8))
    manager.open(0, text)
    grown(manager, 0, 8)
    manager.commit(0, text)
    manager.close(0)
    manager.open(1, [9] * 3)
    grown(manager, 1, 3)
    manager.close(1)
    seen = [number(manager.open(2, text), "open")]
    manager.close(2)
    manager.open(3, [9] * 6)
    grown(manager, 3, 6)
    users = references(manager.allocator)
    seen += [number(manager.open(4, text), "open"), *sorted(users)]
    what = "tokens found after the end was evicted, after more was, and users of all blocks before"
    same(case, seen, [4, 2, 0, 1, 1, 1], what)


@check(BlockManager, see="Blocks for every sequence")
def names_what_is_written(managers, case):
    """names a block only when it is full and its tokens are computed"""
    manager, text = managers(12, 2), list(range(9))
    manager.open(0, text)
    found = []
    for each, count in enumerate((3, 2, 4), start=1):
        grown(manager, 0, count)
        manager.commit(0, text)
        found.append(number(manager.open(each, text), "open"))
    fork = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    manager.fork(0, 4)
    grown(manager, 4, 1)
    manager.commit(4, [*fork, 50])
    found += [number(manager.open(5, text), "open"), number(manager.open(6, [7, *text]), "open")]
    found.append(number(manager.open(7, [*fork, 50, 1]), "open"))
    what = "tokens found after 3, 5 and 9 are computed, again, of another text, and of a fork's"
    same(case, found, [2, 4, 8, 8, 0, 10], what)


@check(BlockManager, see="All or nothing")
def gap(managers, case):
    """shares nothing beyond a gap, and leaves all blocks as they were"""
    manager, text = managers(7, 2), list(range(9))
    for owner in (0, 1):  # side by side: what both compute is named in the first one's blocks
        manager.open(owner, text)
    for each, count in ((0, 4), (1, 6)):
        grown(manager, each, count)
        manager.commit(each, text)
    manager.close(0)
    manager.open(2, [9] * 9)
    grown(manager, 2, 8)  # evicts the first two blocks; the third is in use
    seen = [number(manager.open(3, text), "open"), len(lists(manager, 3)[0])]
    seen += sorted(references(manager.allocator))
    what = "tokens found behind a gap, blocks of the sequence, users of all blocks"
    same(case, seen, [0, 0, 1, 1, 1, 1, 1, 1, 1], what)
    case.raises(OutOfBlocks, lambda: manager.grow(3, 1), "no block is left")
    same(case, [len(lists(manager, 3)[0])], [0], "blocks after the error")


@check(BlockManager, weight=2, see="Blocks for every sequence")
def long_programs(managers, case):
    """shares, copies and gives back blocks in ten long programs as a plain model does"""
    settings = [(3 + n % 8, 1 + n % 4) for n in range(10)]
    drawn = random_programs(case, PlainManager, Managing, managing, settings, 30)
    compare(managers, PlainManager, Managing, drawn)
