"""Hidden checks of paged_attention: borders, stale content, errors that leave traces, forks."""

import math

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks import paged_attention as visible
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


@check(fragmentation, weight=2, see="Where the memory goes")
def just_enough(fragments, case):
    """counts a hole that is just long enough as free, and one shorter as external"""
    regions = [(4, 5, 2, 4), (12, 3, 1, 3), (20, 4, 4, 4)]  # holes of 4, 3, 5 and 6
    visible.compare_scenes(case, fragments, [(regions, 30, need) for need in range(3, 8)])


@check(fragmentation, see="Where the memory goes")
def side_by_side(fragments, case):
    """sees no hole between regions that touch, nor at the ends if they reach them"""
    regions = [(10, 6, 1, 2), (0, 10, 9, 10), (16, 8, 3, 8)]
    shuffled = visible.scene(case, 200, [1, 3, 0, 2, 4])
    visible.compare_scenes(
        case, fragments, [(regions, 24, 1), (regions, 31, 7), (shuffled, 200, 3)]
    )


@check(fragmentation_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "B")


@check(BlockAllocator, see="Hand out blocks")
def again_and_again(allocators, case):
    """never hands out a block that is in use, however long it works"""
    allocator, used, seen, expected = allocators(6), [], [], []
    for action in case.integers(0, 3, 150).tolist():
        if action and len(used) < 6:
            block = visible.number(allocator.allocate(), "block")
            case.that(block not in used, f"Block {block} should not be handed out, it is in use.")
            used.append(block)
        elif used:
            allocator.free(used.pop(len(used) // 2))
        seen.append(visible.number(allocator.available, "available"))
        expected.append(6 - len(used))
    visible.same(case, seen, expected, "available blocks after each step")


@check(BlockAllocator, weight=2, see="Counting the users of a block")
def long_programs(allocators, case):
    """counts users and blocks in eight long programs as a plain model does"""
    settings = [(2 + n % 6,) for n in range(8)]
    drawn = visible.random_programs(
        case, visible.PlainCache, visible.Lending, visible.lending, settings, 40
    )
    visible.compare(allocators, visible.PlainCache, visible.Lending, drawn)


@check(BlockTable, weight=2, see="The page table of a sequence")
def long_programs(tables, case):
    """maps positions to slots in six long programs as a plain model does"""
    settings = [(1 + n % 5,) for n in range(6)]
    drawn = visible.random_programs(
        case, visible.PlainTable, visible.Mapping, visible.mapping, settings, 25
    )
    visible.compare(tables, visible.PlainTable, visible.Mapping, drawn)


@check(PagedKVCache, weight=2, see="Keys and values in blocks")
def overwrites(caches, case):
    """replaces what a slot held, and leaves other slots and layers as they are"""
    cache, blocks, slots, K, V = visible.cache_of(case, caches)
    cache.write(0, slots, K, V)
    cache.write(1, slots, -K, -V)
    cache.write(1, slots[2:5], K[:3], V[:3])
    expected = torch.cat([-K[:2], K[:3], -K[5:]]), torch.cat([-V[:2], V[:3], -V[5:]])
    for layer, pair in ((0, (K, V)), (1, expected)):
        given = case.unpack(cache.gather(layer, blocks, 8), "K", "V")
        case.equal(given[0], pair[0], f"K of layer {layer}")
        case.equal(given[1], pair[1], f"V of layer {layer}")


@check(PagedKVCache, weight=2, see="Keys and values in blocks")
def long_programs(caches, case):
    """holds what was written last in six long programs; what was gathered is a copy"""
    settings = [(1 + n % 3, 3 + n % 3, 1 + n % 4) for n in range(6)]
    drawn = visible.random_programs(
        case, visible.PlainMemory, visible.Storing, visible.storing, settings, 25
    )
    visible.compare(caches, visible.PlainMemory, visible.Storing, drawn)


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
    E_a, V_a, E_b, V_b = visible.merge_inputs(case)
    visible.merged(case, merge, E_a - 900, V_a, E_b - 899, V_b)
    visible.merged(case, merge, E_a - 1e5, V_a, E_b - 1e5, V_b)
    alone = torch.full_like(E_a[..., :1], -(2.0**34))  # of more keys, s would be off by 2e-6
    visible.merged(case, merge, alone, V_a[..., :1, :], alone, V_b[..., :1, :])


@check(online_softmax_merge, see="Two softmaxes make one")
def heights(merge, case):
    """stays exact when one query's scores lie far above another's"""
    E_a, V_a, E_b, V_b = visible.merge_inputs(case)
    shift = -900.0 * torch.arange(E_a.shape[1])[:, None]
    visible.merged(case, merge, E_a + shift, V_a, E_b + shift, V_b)


@check(online_softmax_merge, see="Two softmaxes make one")
def three_parts(merge, case):
    """gives the same in whatever order three parts are merged"""
    E_a, V_a, E_b, V_b = visible.merge_inputs(case)
    E_c, V_c = 2 * E_a.flip(0), V_a.flip(1)
    a, b, c = visible.part(E_a, V_a), visible.part(E_b, V_b), visible.part(E_c, V_c)
    expected = visible.part(torch.cat([E_a, E_b, E_c], dim=-1), torch.cat([V_a, V_b, V_c], dim=-2))
    for first, second, third in ((a, b, c), (c, a, b)):
        half = case.unpack(merge(*first, *second), "Y", "s")
        Y, s = case.unpack(merge(*half, *third), "Y", "s")
        case.equal(Y, expected[0], "Y of three parts")
        case.equal(s, expected[1], "s of three parts")


@check(paged_attention, weight=2, see="A sequence that ends on a border")
def border(attend, case):
    """agrees with torch for sequences that end on a border, one before and one after"""
    inputs = visible.paged_inputs(case, 5, 1, 4, 2, [12, 11, 13, 3, 24])
    case.equal(attend(*inputs), visible.attended(*inputs), "Y")
    longer = visible.paged_inputs(case, 3, 3, 4, 2, [12, 3, 13])
    case.equal(attend(*longer), visible.attended(*longer), "Y of three queries")


@check(paged_attention, see="Attention over blocks")
def stale(attend, case):
    """does not look at slots that are not in use, nor at what pads the tables"""
    Q, K, V, tables, lengths = visible.paged_inputs(case, 3, 2, 2, 1, [10, 2, 16])
    expected = visible.attended(Q, K, V, tables, lengths)
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
    Q, K, V, tables, lengths = visible.paged_inputs(case, 2, 1, 3, 3, [1, 19])
    inputs = 40 * Q, 40 * K, V, tables, lengths
    for at_once in (1, 4):
        case.equal(attend(*inputs, at_once), visible.attended(*inputs), "Y")
    low = torch.full_like(Q, 100), torch.full_like(K, -150), V, tables, lengths
    case.equal(attend(*low), visible.attended(*low), "Y when all scores are -33541")


@check(copy_on_write, see="Fork, and copy only what is written")
def many(copy, case):
    """agrees with a look at every position, for many writes"""
    starts, counts = case.integers(0, 15, 40).tolist(), case.integers(1, 9, 40).tolist()
    programs = [(start, start + count) for start, count in zip(starts, counts, strict=True)]
    visible.compare_copies(case, copy, programs[:20], [1, 0, 1, 2, 1, 3, 2])
    visible.compare_copies(case, copy, programs[20:], [3, 1, 2, 1, 2, 1, 1])


@check(copy_on_write, see="Fork, and copy only what is written")
def alone(copy, case):
    """copies nothing when nobody shares"""
    visible.compare_copies(case, copy, [(0, 15), (4, 8), (14, 20)], [1] * 7)


@check(prefix_hash, see="A name for a prefix")
def many_texts(hashes, case):
    """gives no two different prefixes the same name"""
    rows = case.integers(0, 50_000, 120, 4).tolist()
    names = [row[-1] for row in visible.named(case, hashes, rows, 1)]
    visible.compare_names(case, names, [tuple(row) for row in rows], "120 texts of four tokens")
    texts = [[0, 1], [2**61 - 1, 1], [256, 1], [257, 1], [1, 1]]
    names = [row[0] for row in visible.named(case, hashes, texts, 2)]
    visible.compare_names(case, names, [tuple(text) for text in texts], str(texts)[1:-1])


@check(PrefixCache, weight=2, see="Blocks that are remembered")
def revived(caches, case):
    """does not hand out a block that was found again after it was freed"""
    calls = "free a, free b, free c, find x, allocate d, allocate e, allocate f"
    visible.remembered(caches, (3, f"{visible.ABC}, {calls}, find x, find y, find z"))


@check(PrefixCache, weight=2, see="Found or idle, never both")
def long_programs(caches, case):
    """finds, forgets and hands out in twelve long programs as a plain model does"""
    settings = [(2 + n % 5,) for n in range(12)]
    drawn = visible.random_programs(
        case, visible.PlainCache, visible.Remembering, visible.remembering, settings, 50
    )
    visible.compare(caches, visible.PlainCache, visible.Remembering, drawn)


@check(BlockManager, weight=2, see="Fork, and copy only what is written")
def fork_of_a_fork(managers, case):
    """copies for two of three that share a block, and for none at a border"""
    begins = [*visible.computed("A", [5] * 4)[:2], ("fork", "A", "B"), ("fork", "B", "C")]
    grown = [("append_slots", name, 1, 7) for name in "CAB"]
    border = [("fork", "A", "D"), ("append_slots", "D", 1, 7)]
    border += [("fork", "D", "E"), ("append_slots", "E", 2, 7)]
    visible.managed(
        managers, (12, 3, [*begins, *grown, *border, *(("free", each) for each in "ABCDE")])
    )


@check(BlockManager, weight=2, see="Blocks for every sequence")
def long_programs(managers, case):
    """shares, copies and gives back blocks in ten long programs as a plain model does"""
    settings = [(3 + n % 8, 1 + n % 4) for n in range(10)]
    drawn = visible.random_programs(
        case, visible.PlainManager, visible.Managing, visible.managing, settings, 30
    )
    visible.compare(managers, visible.PlainManager, visible.Managing, drawn)
