"""Checks of paged_attention. Oracles: torch's attention, counting by slots, plain models."""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from course_pkg.checking.batched import of_each, together
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.guard import read_from
from course_pkg.checking.programs.programs import Nonsense, Program, draw_calls, follow, played
from course_pkg.checking.registry import check
from course_pkg.checking.telling.failure import Failure, describe
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

KINDS = ["tokens", "reserved", "internal", "external", "free"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MOST_BLOCKS = 64  # more than any check has


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


def told_by_slot(
    regions: list[tuple[int, int, int, int]], memory: int, need: int
) -> dict[str, int]:
    """Count as `by_slot` does, under the names of the kinds."""
    return dict(zip(KINDS, by_slot(regions, memory, need), strict=True))


def references(allocator) -> list[int]:
    """Read an allocator's reference counts: a list, a tensor or array, or a dict by block."""
    return as_list(allocator.references)


def as_list(found) -> list[int]:
    """Read reference counts."""
    if isinstance(found, Tensor):
        found = found.tolist()
    if isinstance(found, dict):  # it may lack blocks without users
        found = [found.get(block, 0) for block in range(MOST_BLOCKS)]
    return numbers(found, "references")


class PlainCache:
    """What BlockAllocator and PrefixCache do, by looking at all blocks each time."""

    def __init__(self, blocks: int):
        self.references = [0] * blocks
        self.names: dict[int, object] = {}
        self.idle: list[int] = []  # the oldest first

    @property
    def available(self) -> int:
        return self.references.count(0)

    def allocate(self) -> int:
        blocks = [block for block, users in enumerate(self.references) if not users]
        free = [block for block in blocks if block not in self.names]
        if not blocks:
            raise OutOfBlocks("all are in use")
        block = free[0] if free else self.idle.pop(0)
        self.names.pop(block, None)
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        if not self.references[block]:
            raise ValueError("nobody uses it")
        self.references[block] += 1

    def free(self, block: int) -> None:
        if not self.references[block]:
            raise ValueError("nobody uses it")
        self.references[block] -= 1
        if not self.references[block] and block in self.names:
            self.idle.append(block)

    def register(self, block: int, name: object) -> None:
        if name not in self.names.values():
            self.names.setdefault(block, name)

    def find(self, name: object) -> int | None:
        found = [block for block, known in self.names.items() if known == name]
        for block in found:
            self.references[block] += 1
            self.idle = [each for each in self.idle if each != block]
        return found[0] if found else None


class Lending:
    """With {0} blocks"""

    def __init__(self, allocators, blocks: int):
        self.allocator = allocators(blocks)
        self.blocks: dict[str, int] = {}  # by the name that a program gives to what it allocates
        self.users: dict[str, int] = {}
        self.kept: set[str] = set()  # without users, and not handed out since

    def allocate(self, name: str) -> str:
        """allocate {0}"""
        if name in self.blocks:
            raise Nonsense
        block = number(self.allocator.allocate(), "block")
        owners = [each for each in self.blocks if self.blocks[each] == block and self.users[each]]
        self.blocks[name], self.users[name], self.kept = block, 1, set()
        return f"the block of {owners[-1]}, which is in use" if owners else "a block"

    def share(self, name: str) -> None:
        """share {0}"""
        self.allocator.share(self.block(name))
        self.users[name] += 1

    def free(self, name: str) -> None:
        """free {0}"""
        self.allocator.free(self.block(name))
        self.users[name] -= 1
        if not self.users[name]:
            self.kept.add(name)

    def block(self, name: str) -> int:
        """Look up a block that is in use, or was, and is not handed out again."""
        if not self.users.get(name) and name not in self.kept:
            raise Nonsense
        return self.blocks[name]

    def look(self) -> dict[str, object]:
        counts = references(self.allocator)
        seen = {f"users of {n}": counts[self.blocks[n]] for n in self.users if self.users[n]}
        total, available = sum(counts), number(self.allocator.available, "available")
        return {**seen, "the users of all blocks": total, "available": available}


class Remembering(Lending):
    """With {0} blocks"""

    def register(self, name: str, content: str) -> None:
        """name {0} {1!r}"""
        if not self.users.get(name):
            raise Nonsense
        self.allocator.register(self.blocks[name], content)

    def find(self, content: str) -> str:
        """find {0!r}"""
        block = self.allocator.find(content)
        if block is None:
            return "None"
        owners = [name for name in self.blocks if self.blocks[name] == number(block, "find")]
        for name in owners[-1:]:
            self.users[name] += 1
            self.kept.discard(name)
        return owners[-1] if owners else "a block that was never handed out"

    def look(self) -> dict[str, object]:
        idle = self.allocator.idle
        idle = numbers([*idle] if isinstance(idle, (dict, set)) else idle, "idle")
        names = {block: name for name, block in self.blocks.items()}  # the latest
        return {**super().look(), "idle": sorted(str(names.get(block)) for block in idle)}


@together
def play(student, driver: str, programs: list[Program]) -> list:
    """Play programs beside a student's class."""
    drive = DRIVERS[driver]
    return [played(drive(student, *settings), calls) for settings, calls in programs]


def compare(student, oracle: type, driver: type, programs: list[Program]) -> None:
    """Demand that a student's class shows in some programs what the oracle shows."""

    def both(either, programs: list[Program]) -> list:
        return play(either, driver.__name__, programs)

    follow(student, oracle, both, driver, programs)


def written(calls: str) -> list[tuple]:
    """Read calls as "allocate a, share a": a method and its arguments, numbers among them."""
    rows = [call.split() for call in calls.split(",")]
    return [(m, *(int(a) if a.isdigit() else a for a in arguments)) for m, *arguments in rows]


def pick(case: Case, options):
    """Draw one of several."""
    return options[int(case.integers(0, len(options), 1))]


def lending(case: Case, oracle_driver: Lending) -> tuple:
    """Draw a call of an allocator."""
    used = [*oracle_driver.blocks]
    method = pick(case, ["allocate", "allocate", "share", "free", "free"])
    return (method, LETTERS[len(used)] if method == "allocate" else pick(case, used or "a"))


def remembering(case: Case, oracle_driver: Remembering) -> tuple:
    """Draw a call of an allocator that remembers."""
    method = pick(case, ["register", "register", "find", "", "", "", ""])
    if method == "find":
        return (method, pick(case, "wxyz"))
    if method == "register":
        return (method, pick(case, [*oracle_driver.blocks] or "a"), pick(case, "wxyz"))
    return lending(case, oracle_driver)


def random_programs(
    case: Case, oracle: type, driver: type, draw: Callable, settings: list[tuple], count: int
) -> list[Program]:
    """Draw a program of `count` calls for each of the settings."""
    programs = []
    for each in settings:
        ours = driver(oracle, *each)
        programs.append((each, draw_calls(lambda ours=ours: draw(case, ours), ours, count)))
    return programs


@check(BlockAllocator, weight=2, see="Hand out blocks")
def hands_out(allocators, case):
    """hands out every block once, with one user each"""
    allocator = allocators(6)
    given = [number(allocator.allocate(), "block") for _ in range(6)]
    same(case, sorted(given), [0, 1, 2, 3, 4, 5], "the blocks, sorted")
    calls = ", ".join(f"allocate {name}" for name in "abcdef")
    compare(allocators, PlainCache, Lending, [((6,), written(calls))])


@check(BlockAllocator, weight=2, see="Counting the users of a block")
def counts_users(allocators, case):
    """keeps a block until its last user has freed it"""
    calls = "allocate a, allocate b, share a, share a, free a, free b, free a, free a"
    compare(allocators, PlainCache, Lending, [((4,), written(calls))])


@check(BlockAllocator, weight=2, see="Counting the users of a block")
def programs(allocators, case):
    """counts users and blocks in eight random programs as a plain model does"""
    settings = [(2 + n % 4,) for n in range(8)]
    drawn = random_programs(case, PlainCache, Lending, lending, settings, 10)
    compare(allocators, PlainCache, Lending, drawn)


@check(BlockAllocator, see="Hand out blocks")
def exhausted(allocators, case):
    """raises OutOfBlocks when all are in use, and goes on when one is freed"""
    allocator = allocators(3)
    blocks = [allocator.allocate() for _ in range(3)]
    case.raises(OutOfBlocks, allocator.allocate, "no block is free")
    allocator.free(blocks[1])
    same(case, [number(allocator.allocate(), "block")], [blocks[1]], "the only free block")


@check(BlockAllocator, see="Counting the users of a block")
def refuses(allocators, case):
    """raises ValueError when a block is freed twice"""
    allocator = allocators(3)
    block = allocator.allocate()
    allocator.free(block)
    case.raises(ValueError, lambda: allocator.free(block), "a block is freed twice")
    case.raises(ValueError, lambda: allocator.share(block), "a block without users is shared")


@check(BlockAllocator, weight=2, see="Counting the users of a block")
def errors_leave_no_trace(allocators, case):
    """counts as before after a call that it refused"""
    calls = "allocate a, allocate b, free b, share b, free b, allocate c, allocate d, allocate e"
    full = "allocate a, allocate b, share b, allocate c, free b, allocate d, free b, allocate e"
    programs = [((3,), written(f"{calls}, free a")), ((2,), written(f"{full}, allocate f"))]
    compare(allocators, PlainCache, Lending, programs)


class PlainTable:
    """What BlockTable does, with a slot for every position."""

    def __init__(self, block_size: int):
        self.block_size, self.blocks, self.length = block_size, [], 0

    @property
    def waste(self) -> int:
        return len(self.blocks) * self.block_size - self.length

    def missing(self, count: int) -> int:
        return math.ceil((self.length + count) / self.block_size) - len(self.blocks)

    def append(self, count: int, blocks: list[int]) -> list[int]:
        if len(blocks) != self.missing(count):
            raise ValueError("too many or too few blocks")
        self.blocks, self.length = [*self.blocks, *blocks], self.length + count
        return self.slots(self.length - count, self.length)

    def slots(self, start: int, stop: int) -> list[int]:
        if not 0 <= start <= stop <= self.length:
            raise IndexError("not in use")
        S = self.block_size
        return [block * S + n for block in self.blocks for n in range(S)][start:stop]

    def fork(self) -> "PlainTable":
        other = PlainTable(self.block_size)
        other.blocks, other.length = [*self.blocks], self.length
        return other


class Mapping:
    """With blocks of {0}"""

    def __init__(self, tables, block_size: int):
        self.tables = {"A": tables(block_size)}

    def append(self, table: str, count: int, blocks: list[int]) -> list[int]:
        """append {1} to {0} with blocks {2}"""
        return numbers(self.table(table).append(count, blocks), "the slots")

    def slots(self, table: str, start: int, stop: int) -> list[int]:
        """slots({1}, {2}) of {0}"""
        return numbers(self.table(table).slots(start, stop), "the slots")

    def missing(self, table: str, count: int) -> int:
        """missing({1}) of {0}"""
        return number(self.table(table).missing(count), "missing")

    def fork(self, table: str, child: str) -> None:
        """{0} is forked as {1}"""
        if child in self.tables:
            raise Nonsense
        self.tables[child] = self.table(table).fork()

    def table(self, name: str):
        if name not in self.tables:
            raise Nonsense
        return self.tables[name]

    def look(self) -> dict[str, object]:
        seen = {}
        for name, table in self.tables.items():
            seen[f"the blocks of {name}"] = numbers(table.blocks, "blocks")
            seen[f"the length of {name}"] = number(table.length, "length")
            seen[f"the waste of {name}"] = number(table.waste, "waste")
        return seen


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


def appending(S: int, counts: list[int], table: str = "A") -> list[tuple]:
    """Append positions bit by bit, with blocks in no order."""
    ends = [0, *(math.ceil(n / S) for n in itertools.accumulate(counts))]
    blocks = [7 * n % 11 for n in range(ends[-1])]
    parts = [blocks[start:stop] for start, stop in itertools.pairwise(ends)]
    return [("append", table, *each) for each in zip(counts, parts, strict=True)]


@check(BlockTable, weight=2, see="The page table of a sequence")
def appends(tables, case):
    """gives new positions the slots that follow, within a block and across a border"""
    compare(tables, PlainTable, Mapping, [((4,), appending(4, [3, 2, 1, 6, 4, 1]))])


@check(BlockTable, weight=2, see="A sequence that ends on a border")
def missing(tables, case):
    """asks for a block only when the last one is full"""
    asked = [("missing", "A", count) for count in (1, 2, 5, 6, 11)]
    lengths = [[], [3], [5], [8], [10]]
    programs = [((5,), [*appending(5, length), *asked]) for length in lengths]
    compare(tables, PlainTable, Mapping, programs)


@check(BlockTable, see="A sequence that ends on a border")
def waste(tables, case):
    """wastes only what is free in the last block"""
    compare(tables, PlainTable, Mapping, [((4,), appending(4, [n])) for n in range(1, 10)])


def mapping(case: Case, oracle_driver: Mapping) -> tuple:
    """Draw a call of a table."""
    names = [*oracle_driver.tables]
    name = pick(case, names)
    table = oracle_driver.tables[name]
    method = pick(case, ["append", "append", "append", "slots", "missing", "fork"])
    count = int(case.integers(1, 7, 1))
    if method == "append":
        wrong = pick(case, [0] * 8 + [1, -1])
        needed = max(table.missing(count) + wrong, 0)
        return (method, name, count, case.integers(0, 20, needed).tolist())
    if method == "slots":
        return (method, name, *case.integers(0, table.length + 2, 2).tolist())
    return (method, name, LETTERS[len(names)].upper() if method == "fork" else count)


@check(BlockTable, weight=2, see="The page table of a sequence")
def programs(tables, case):
    """maps positions to slots in six random programs, forks included, as a plain model does"""
    settings = [(1 + n % 4,) for n in range(6)]
    drawn = random_programs(case, PlainTable, Mapping, mapping, settings, 8)
    compare(tables, PlainTable, Mapping, drawn)


@check(BlockTable, see="A sequence that ends on a border")
def in_use(tables, case):
    """has no slots for positions that are not in use, even where its last block has room"""
    table, *_ = table_of(case, tables, 4, [5])
    case.raises(IndexError, lambda: table.slots(4, 6), "position 5 of 5 is not in use")


@check(BlockTable, weight=2, see="A sequence that ends on a border")
def refuses(tables, case):
    """refuses too many or too few blocks and positions that it does not have"""
    table, *_ = table_of(case, tables, 4, [8])
    case.raises(ValueError, lambda: table.append(1, []), "a block is missing")
    case.raises(ValueError, lambda: table.append(4, [30, 33]), "there is a block too many")
    same(case, [table.length, table.waste], [8, 0], "length and waste after a refused append")
    case.raises(IndexError, lambda: table.slots(6, 9), "position 8 is not in use")
    case.raises(IndexError, lambda: table.slots(-1, 2), "a position is negative")
    case.raises(IndexError, lambda: table.slots(5, 4), "the range ends before it begins")
    table, *_ = table_of(case, tables, 4, [5])
    case.raises(ValueError, lambda: table.append(2, [30]), "2 positions need no block")
    case.raises(ValueError, lambda: table.append(8, [30]), "8 positions need 2 blocks")
    same(case, [table.length, table.waste], [5, 3], "length and waste after a refused append")


@check(BlockTable, see="The page table of a sequence")
def any_range(tables, case):
    """looks up the slots of any range of positions"""
    ranges = ((0, 10), (2, 4), (3, 6), (9, 10), (5, 5), (10, 10))
    wrong = ((-1, 2), (5, 4), (8, 11), (12, 13))
    calls = [*appending(3, [10]), *(("slots", "A", *each) for each in ranges)]
    refused = [[*appending(3, [10]), ("slots", "A", *each)] for each in wrong]
    programs = [[*calls, ("append", "A", 0, [])], *refused]
    compare(tables, PlainTable, Mapping, [((3,), calls) for calls in programs])


@check(BlockTable, see="The page table of a sequence")
def all_or_nothing(tables, case):
    """changes nothing when it gets too many or too few blocks"""
    appended = [(0, 3, []), (0, 3, [2, 9]), (5, 3, [2]), (5, 4, []), (5, 4, [2, 9]), (8, 1, [])]
    appended += [(8, 0, [2]), (8, 4, [2, 9])]
    programs = [
        ((4,), [*appending(4, [length] * (length > 0)), ("append", "A", count, blocks)])
        for length, count, blocks in appended
    ]
    compare(tables, PlainTable, Mapping, programs)


@together
def then_changed(table, count: int, blocks: list[int]) -> list[int]:
    """Append, change the list that was given, and read the blocks of the table."""
    table.append(count, blocks)
    blocks[0] = 99
    return numbers(table.blocks, "blocks")


@check(BlockTable, see="The page table of a sequence")
def own_list(tables, case):
    """keeps no list of its caller's, who may change it later"""
    table, text = tables(4), "blocks after the caller has changed the list that append was given"
    first = [5, 2, 8, 1, 9, 3]
    same(case, then_changed(table, 22, [*first]), first, text)
    same(case, then_changed(table, 3, [7]), [*first, 7], text)


@check(BlockTable, see="The page table of a sequence")
def fork(tables, case):
    """makes an independent table when it is forked"""
    calls = [*appending(3, [7]), ("fork", "A", "B"), ("append", "B", 4, [20])]
    compare(tables, PlainTable, Mapping, [((3,), [*calls, ("append", "A", 3, [30])])])


@check(BlockTable, see="The page table of a sequence")
def parent_grows_on(tables, case):
    """keeps a fork as it is when the old table grows"""
    grown = [("fork", "A", "B"), ("append", "A", 5, [40, 43]), ("missing", "B", 1)]
    again = [("fork", "A", "C"), ("append", "C", 4, [46])]
    compare(tables, PlainTable, Mapping, [((4,), [*appending(4, [4]), *grown, *again])])


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


@check(PagedKVCache, see="Keys and values in blocks")
def begins_with_zeros(caches, case):
    """holds zeros at first, in the shape and type that it should"""
    cache = caches(2, 5, 3, 4, 6, dtype=torch.float64)
    for name, given in (("K", cache.K), ("V", cache.V)):
        case.equal(given, torch.zeros(2, 4, 5, 3, 6), name)
        case.that(
            given.dtype == torch.float64, f"{name} should be float64, yours is {given.dtype}."
        )
    cache = caches(1, 2, 3, 2, 4)
    for name, given in (("K", cache.K), ("V", cache.V)):
        case.equal(given, torch.zeros(1, 2, 2, 3, 4), name)
        text = f"{name} should have torch's default dtype when none is given, yours is"
        case.that(given.dtype == torch.get_default_dtype(), f"{text} {given.dtype}.")


@check(PagedKVCache, see="Keys and values in blocks")
def default_dtype(caches, case):
    """holds torch's default dtype when none is given, also where that is float64"""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        cache = caches(1, 2, 3, 2, 4)
    finally:
        torch.set_default_dtype(before)
    for name, given in (("K", cache.K), ("V", cache.V)):
        case.shape(given, (1, 2, 2, 3, 4), name)
        text = f"{name} should have torch's default dtype, set to float64 for this check, yours is"
        case.that(given.dtype == torch.float64, f"{text} {given.dtype}.")


@check(PagedKVCache, see="Keys and values in blocks")
def copies_in_order(caches, case):
    """makes several copies one after the other: of a copy, of one block to two, to and fro"""
    calls = [("write", layer, [0, 1, 2, 3, 4, 5], value) for layer, value in enumerate((10, 50))]
    lists = (
        [(0, 1), (1, 2)],
        [(0, 2), (0, 3)],
        [(0, 3), (1, 3)],
        [(0, 1), (1, 0)],
        [(2, 1), (1, 0), (0, 3)],
        [],
    )
    programs = [((2, 4, 2), [*calls, ("copy", list(copies))]) for copies in lists]
    compare(caches, PlainMemory, Storing, programs)


class PlainMemory:
    """What PagedKVCache does, slot by slot."""

    def __init__(self, L: int, blocks: int, S: int, G: int, D_h: int, dtype: torch.dtype):
        self.K, self.V = (torch.zeros(L, G, blocks, S, D_h, dtype=dtype) for _ in "KV")

    def write(self, layer: int, slots: Tensor, K: Tensor, V: Tensor) -> None:
        for place, slot in enumerate(slots.tolist()):
            block, offset = divmod(slot, self.K.shape[3])
            self.K[layer, :, block, offset] = K[place]
            self.V[layer, :, block, offset] = V[place]

    def gather(self, layer: int, blocks: list[int], length: int) -> list[Tensor]:
        slots = [divmod(t, self.K.shape[3]) for t in range(length)]
        places = [(blocks[block], offset) for block, offset in slots]
        rows = [[X[layer, :, block, n] for block, n in places] for X in (self.K, self.V)]
        return [torch.stack(row) for row in rows]

    def copy(self, copies: list[tuple[int, int]]) -> None:
        for source, target in copies:
            for X in (self.K, self.V):
                X[:, :, target] = X[:, :, source].clone()


class Storing:
    """With {0} layers and {1} blocks of {2}"""

    def __init__(self, caches, L: int, blocks: int, S: int):
        self.cache = caches(L, blocks, S, 2, 3, dtype=torch.float64)
        self.shape, self.gathered = (L, blocks, S), []

    def write(self, layer: int, slots: list[int], value: int) -> None:
        """write {2} and so on to slots {1} of layer {0}"""
        K = value + torch.arange(6 * len(slots), dtype=torch.float64).reshape(-1, 2, 3)
        self.cache.write(layer, torch.tensor(slots), K, -K)

    def gather(self, layer: int, blocks: list[int], length: int) -> list:
        """gather {2} positions of blocks {1} from layer {0}"""
        found = Case.unpack(self.cache.gather(layer, blocks, length), "K", "V")
        for name, given in zip("KV", found, strict=True):
            Case("").shape(given, (length, 2, 3), f"{name} of gather")
        self.gathered.append([(X, X.clone()) for X in found])
        return [first_numbers(found[0]), first_numbers(-found[1])]

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """copy {0}"""
        self.cache.copy(copies)

    def look(self) -> dict[str, object]:
        L, N, S = self.shape
        seen = {}
        for name, given, sign in (("K", self.cache.K, 1), ("V", self.cache.V, -1)):
            Case("").shape(given, (L, 2, N, S, 3), name)
            rows = first_numbers(sign * given.permute(0, 2, 3, 1, 4).flatten(0, 2))
            for layer, block in itertools.product(range(L), range(N)):
                start = (layer * N + block) * S
                seen[f"{name} of block {block} in layer {layer}"] = rows[start : start + S]
        changed = [any(not X.equal(old) for X, old in pair) for pair in self.gathered]
        seen["which earlier results of gather have changed"] = [
            n for n, is_ in enumerate(changed) if is_
        ]
        return seen


def first_numbers(rows: Tensor) -> list:
    """Give the first number of each row that counts up from it or holds zeros, "?" for others."""
    first = rows[:, 0, 0]
    counting = torch.arange(6).reshape(2, 3) * (rows != 0).any(-1).any(-1)[:, None, None]
    is_plain = (rows == first[:, None, None] + counting).flatten(1).all(1)
    pairs = zip(first.tolist(), is_plain.tolist(), strict=True)
    return [int(number) if plain else "?" for number, plain in pairs]


def storing(case: Case, oracle_driver: Storing) -> tuple:
    """Draw a call of a cache in blocks."""
    L, N, S = oracle_driver.shape
    method = pick(case, ["write", "write", "gather", "copy"])
    order = torch.randperm(N * S, generator=case.generator).tolist()
    if method == "write":
        slots = order[: int(case.integers(1, 5, 1))]
        return (method, pick(case, range(L)), slots, int(case.integers(1, 100, 1)))
    blocks = torch.randperm(N, generator=case.generator).tolist()
    if method == "copy":
        a, b, c = blocks[:3]
        return (method, [(a, b), *pick(case, [[], [(b, c)], [(a, c)], [(c, b)], [(b, a)]])])
    count = int(case.integers(1, N + 1, 1))
    return (method, pick(case, range(L)), blocks[:count], count * S - pick(case, range(S)))


@check(PagedKVCache, see="Keys and values in blocks")
def gathers_copies(caches, case):
    """copies what it gathers, from one block as from neighbouring ones"""
    first = [("write", layer, list(range(8)), value) for layer, value in enumerate((10, 50))]
    last = [("write", layer, [3, 5], 90) for layer in (0, 1)]
    gathered = [[1], [1, 2], [2, 1], [0, 1, 2, 3]]
    programs = [
        ((2, 4, 2), [*first, ("gather", layer, blocks, 2 * len(blocks)), *last])
        for blocks in gathered
        for layer in (0, 1)
    ]
    compare(caches, PlainMemory, Storing, programs)


@check(PagedKVCache, weight=2, see="Keys and values in blocks")
def programs(caches, case):
    """holds what was written last in six random programs; what was gathered is a copy"""
    settings = [(2, 3, 1 + n % 4) for n in range(6)]
    drawn = random_programs(case, PlainMemory, Storing, storing, settings, 8)
    compare(caches, PlainMemory, Storing, drawn)


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


@check(online_softmax_merge, see="A set without keys")
def gradients(merge, case):
    """sends back the gradients of one softmax over both sets, and 0 to the s of empty ones"""
    s_a, s_b = torch.tensor([[-math.inf, -math.inf, 1, 0.5], [-math.inf, 2, -math.inf, 3]]).double()
    Y_a, Y_b = (case.randn(4, 3) * (s > -math.inf)[:, None] for s in (s_a, s_b))
    leaves = [X.requires_grad_() for X in (Y_a, s_a, Y_b, s_b)]
    Y, s = case.unpack(merge(*leaves), "Y", "s")
    G, g = case.randn(4, 3), case.randn(4)
    case.trains(Y, "Y")
    case.trains(s, "s")
    ((Y * G).sum() + (s * g)[1:].sum()).backward()
    weights = torch.softmax(torch.stack([s_a, s_b]).detach(), dim=0)
    weights[:, 0] = 0
    Y = weights[0][:, None] * Y_a.detach() + weights[1][:, None] * Y_b.detach()
    for name, own, w, X in (("s_a", s_a, weights[0], Y_a), ("s_b", s_b, weights[1], Y_b)):
        case.gradient(own, w * (g + ((X.detach() - Y) * G).sum(-1)), name)
    for name, X, w in (("Y_a", Y_a, weights[0]), ("Y_b", Y_b, weights[1])):
        case.equal(X.grad[1:], w[1:, None] * G[1:], f"gradient of {name}, where a set has keys")


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


@check(paged_attention, see="Two softmaxes make one")
def far_apart(attend, case):
    """subtracts from the scores of each query the largest of its own, however far apart they are"""
    Q, K, V, tables, lengths = paged_inputs(case, 2, 2, 2, 1, [8, 13])
    Q = torch.tensor([-400.0, 400.0])[:, None, None, None] + Q
    inputs = Q, 1 + K / 100, V, tables, lengths
    for at_once in (1, 4):
        what = f"Y where scores are near -894 and near 894, with at_once = {at_once}"
        case.equal(attend(*inputs, at_once), attended(*inputs), what)


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


@check(prefix_hash, see="A name for a prefix")
def long_names(hashes, case):
    """gives names so long that nobody finds two texts with the same one"""
    ((name,),) = named(case, hashes, [list(range(99))], 99)
    if len(str(name)) < 22:  # 128 bits, with 64 different characters
        said = f"yours has {len(str(name))}: {name!r}"
        raise Failure(f"A name needs 22 characters, or two texts that share one are found; {said}.")


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
def filled(caches, names: str, blocks: int) -> tuple:
    """Make a cache whose first blocks have names; all are still in use."""
    cache = caches(blocks)
    owned = [number(cache.allocate(), "block") for _ in names]
    for block, name in [*zip(owned, names, strict=True)][::-1]:  # not in the blocks' order
        cache.register(block, name)
    return cache, owned


def remembered(caches, *programs: tuple[int, str]) -> None:
    """Compare programs of blocks and calls with a plain model."""
    read = [((blocks,), written(calls)) for blocks, calls in programs]
    compare(caches, PlainCache, Remembering, read)


ABC = "allocate a, allocate b, allocate c, register c z, register b y, register a x"


@check(PrefixCache, weight=2, see="Blocks that are remembered")
def remembers(caches, case):
    """finds a named block while it is in use and after it was freed"""
    calls = f"{ABC}, find y, free b, free a, free b, find x, find y, find w"
    remembered(caches, (5, calls), (5, f"{ABC}, share b, find y, find y, free b, free b"))


@check(PrefixCache, see="Found or idle, never both")
def first_stays(caches, case):
    """finds the first of two blocks that were registered under the same name"""
    remembered(caches, (5, f"{ABC}, allocate d, register d y, register a w, find y, find x"))


@check(PrefixCache, weight=2, see="Found or idle, never both")
def new_content(caches, case):
    """does not find a block by the name of what it held before it was handed out anew"""
    named = "allocate a, allocate b, register b y, register a x, free a, free b"
    calls = "allocate c, register c w, find x, find y, find w, free c, free c, find w"
    remembered(caches, (2, f"{named}, {calls}"), (2, f"{named}, allocate c, register c w, find w"))


@check(PrefixCache, see="Blocks that are remembered")
def one_name_one_block(caches, case):
    """keeps the first block of a name and the first name of a block, and refuses a second free"""
    named = "allocate a, allocate b, register b y, register a x, allocate c"
    twice = f"{named}, register c x, register b w, find x, find y, find w, free c"
    anew = f"{twice}, allocate d, allocate e, find x, find y, find w"
    idle = f"{named}, free c, free c, free a, free a, share a, share b"
    another = f"{named}, share c, register c v, find v"
    remembered(caches, *((4, calls) for calls in (anew, idle, another)))


@check(PrefixCache, weight=2, see="Which block is evicted first")
def forgets(caches, case):
    """hands out the block that has been idle for longest, and forgets its name"""
    calls = f"{ABC}, free c, free a, free b, allocate d, find x, find y, find z, allocate e"
    remembered(caches, (3, calls), (3, f"{ABC}, free b, free c, free a, allocate d, find y"))


@check(PrefixCache, see="Which block is evicted first")
def unused_first(caches, case):
    """hands out blocks without a name before it forgets one"""
    ends = "allocate d, allocate e, find x, find y, find z"
    remembered(caches, (5, f"{ABC}, free a, free b, free c, {ends}"))


@check(PrefixCache, see="Which block is evicted first")
def used_lately(caches, case):
    """counts a block as idle from the last time it was freed"""
    named = ", ".join(f"allocate {a}, register {a} {a.upper()}" for a in "abcdef")
    freed = ", ".join(f"free {a}" for a in "ecafbd")
    found = ", ".join(f"find {a.upper()}" for a in "abcdef")
    calls = "find E, free e, find X, allocate g, allocate h"
    remembered(caches, (6, f"{named}, {freed}, {calls}, {found}"))


@check(PrefixCache, see="Blocks that are remembered")
def lists_idle(caches, case):
    """lists the blocks without users that can be found"""
    remembered(caches, (5, f"{ABC}, allocate d, free d, free c, free a, find z, find z"))


@check(PrefixCache, weight=2, see="Found or idle, never both")
def programs(caches, case):
    """finds, forgets and hands out in ten random programs as a plain model does"""
    settings = [(2 + n % 4,) for n in range(10)]
    drawn = random_programs(case, PlainCache, Remembering, remembering, settings, 14)
    compare(caches, PlainCache, Remembering, drawn)


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
    return pairs(manager.append_slots(sequence, count), "the result of append_slots")


def lists(manager, *sequences: int) -> list[list[int]]:
    """Read the blocks of some sequences."""
    return [
        numbers(manager.get_block_table(each), f"blocks of sequence {each}") for each in sequences
    ]


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


class PlainManager:
    """What BlockManager does: a full block is named by all tokens up to its end."""

    def __init__(self, blocks: int, block_size: int):
        self.allocator, self.block_size = PlainCache(blocks), block_size
        self.sequences: dict[int, Sequence] = {}

    def get_block_table(self, sequence: int) -> list[int]:
        table = self.sequences[sequence].block_table
        return table.blocks if table else []

    def allocate(self, sequence: int, tokens: list[int]) -> int:
        table, S = PlainTable(self.block_size), self.block_size
        for end in range(S, len(tokens), S):
            block = self.allocator.find(tuple(tokens[:end]))
            if block is None:
                break
            table.append(S, [block])
        one = self.sequences.setdefault(sequence, Sequence([*tokens]))
        one.block_table, one.num_computed = table, table.length  # as far as its blocks were named
        return table.length

    def append_slots(self, sequence: int, count: int) -> list[tuple[int, int]]:
        table, allocator = self.sequences[sequence].block_table, self.allocator
        is_shared = table.waste > 0 and allocator.references[table.blocks[-1]] > 1
        if table.missing(count) + is_shared > allocator.available:
            raise OutOfBlocks("too few")
        copies = [(table.blocks[-1], allocator.allocate())] if is_shared else []
        for source, target in copies:
            allocator.free(source)
            table.blocks[-1] = target
        table.append(count, [allocator.allocate() for _ in range(table.missing(count))])
        return copies

    def cache_blocks(self, sequence: int, tokens: list[int]) -> None:
        one, S, names = self.sequences[sequence], self.block_size, self.allocator.names
        contents = [tuple(tokens[:end]) for end in range(S, one.block_table.length + 1, S)]
        blocks = one.block_table.blocks[: len(contents)]
        for block, content in list(zip(blocks, contents, strict=True))[: one.num_computed // S]:
            if block not in names and content not in names.values():
                raise Nonsense  # its name was another's at first: it may get it now, or not
        for block, content in zip(blocks, contents, strict=True):
            self.allocator.register(block, content)
        one.num_computed = len(contents) * S

    def fork(self, sequence: int, child: int) -> None:
        self.sequences[child] = self.sequences[sequence].fork()
        for block in self.get_block_table(child):
            self.allocator.share(block)

    def free(self, sequence: int) -> None:
        for block in reversed(self.get_block_table(sequence)):
            self.allocator.free(block)
        self.sequences[sequence].block_table = None


class Managing:
    """With {0} blocks of {1}"""

    def __init__(self, managers, blocks: int, block_size: int):
        self.manager = managers(blocks, block_size)
        self.texts: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}  # of those that have one
        self.lengths: dict[str, int] = {}  # of their tables
        self.letters: dict[int, str] = {}  # of the blocks in tables
        self.count = 0

    def allocate(self, name: str, tokens: list[int]) -> int:
        """allocate({0}, {1})"""
        if name in self.tables or self.texts.get(name, tokens) != tokens:
            raise Nonsense
        found = number(self.manager.allocate(ord(name), tokens), "allocate")
        self.texts[name] = [*tokens]
        return found

    def allocate_again(self, name: str) -> int:
        """allocate({0}) again"""
        if name in self.tables or name not in self.texts:
            raise Nonsense
        return number(self.manager.allocate(ord(name), [*self.texts[name]]), "allocate")

    def append_slots(self, name: str, count: int, token: int) -> list[tuple[str, str]]:
        """append_slots({0}, {1})"""
        self.demand_table(name)
        copies = pairs(self.manager.append_slots(ord(name), count), "the result of append_slots")
        before, text = self.letters, self.texts[name]
        text += [token] * (self.lengths[name] + count - len(text))
        self.look()
        return [(before.get(a, "a free one"), self.letters.get(b, "a free one")) for a, b in copies]

    def cache_blocks(self, name: str) -> None:
        """cache_blocks({0})"""
        self.demand_table(name)
        self.manager.cache_blocks(ord(name), [*self.texts[name]])

    def fork(self, name: str, child: str) -> None:
        """{0} is forked as {1}"""
        if name not in self.texts or child in self.texts:
            raise Nonsense
        self.manager.fork(ord(name), ord(child))
        self.texts[child] = [*self.texts[name]]

    def free(self, name: str) -> None:
        """free({0})"""
        if name not in self.texts:
            raise Nonsense
        self.manager.free(ord(name))

    def demand_table(self, name: str) -> None:
        if name not in self.tables:
            raise Nonsense

    def read(self, manager) -> tuple[list, object, object]:
        """Read what is to be seen of a manager."""
        rows = []
        for name in self.texts:
            find = getattr(manager.sequences, "get", None)
            one = find(ord(name)) if find else None
            if not hasattr(one, "tokens"):
                return [(name, None, None, None, None)], None, None
            table, listed = one.block_table, manager.get_block_table(ord(name))
            of_table = (None, None) if table is None else (table.blocks, table.length)
            rows.append((name, one.tokens, listed, *of_table))
        return rows, manager.allocator.references, manager.allocator.available

    def look(self) -> dict[str, object]:
        rows, found, available = read_from(self.manager, self.read)
        self.tables, self.lengths = {}, {}
        seen: dict[str, object] = {}
        for name, tokens, listed, blocks, length in rows:
            if tokens is None:
                record(self.manager, ord(name))  # says what it is instead
            seen[f"the tokens of {name}"] = numbers(tokens, "tokens")
            listed = numbers(listed, f"blocks of sequence {ord(name)}")
            if blocks is None:
                seen[f"get_block_table({name}), which has no table,"] = listed
                continue
            self.tables[name] = numbers(blocks, "blocks of a table")
            self.lengths[name] = number(length, "length")
            if listed != self.tables[name]:
                raise Failure(
                    f"get_block_table should give {self.tables[name]}, yours gives {listed}."
                )
        self.rename()
        for name, blocks in self.tables.items():
            held = " ".join(self.letters[block] for block in blocks)
            seen[f"the blocks of {name}"] = held
            seen[f"the length of {name}"] = self.lengths[name]
        counts = as_list(found)
        for block, letter in self.letters.items():
            users = [name for name, blocks in self.tables.items() if block in blocks]
            seen[f"the users of block {letter}, held by {' and '.join(users)},"] = counts[block]
        seen["available"] = number(available, "available")
        return seen

    def rename(self) -> None:
        """Name the blocks in tables, in the order in which they came there."""
        blocks = [block for table in self.tables.values() for block in table]
        self.letters = {block: self.letters[block] for block in self.letters if block in blocks}
        for block in blocks:
            if block not in self.letters:
                self.letters[block] = f"{'abcdefghijklmnopqrstuvwxyz'[self.count % 26]}"
                self.count += 1


DRIVERS = {each.__name__: each for each in (Lending, Remembering, Mapping, Storing, Managing)}


def managing(case: Case, oracle_driver: Managing) -> tuple:
    """Draw a call of a manager: many texts begin as another does."""
    names = [*oracle_driver.texts]
    method = pick(
        case,
        [
            "allocate",
            "allocate",
            *["append_slots", "cache_blocks"] * 3,
            "fork",
            "free",
            "allocate_again",
        ],
    )
    new = LETTERS[len(names)].upper()
    if method == "allocate":
        text = pick(case, [[], *oracle_driver.texts.values()])
        text = text[: int(case.integers(0, len(text) + 1, 1))]
        return (method, new, text + case.integers(8, 10, int(case.integers(1, 5, 1))).tolist())
    name = pick(case, names or "A")
    if method == "append_slots":
        return (method, name, int(case.integers(1, 6, 1)), int(case.integers(8, 10, 1)))
    return (method, name, new) if method == "fork" else (method, name)


def managed(managers, *programs: tuple[int, int, list[tuple]]) -> None:
    """Compare programs of blocks, their size and calls with a plain model."""
    read = [((blocks, S), calls) for blocks, S, calls in programs]
    compare(managers, PlainManager, Managing, read)


def computed(name: str, text: list[int], length: int | None = None) -> list[tuple]:
    """Allocate a sequence to the end of its text, of which nothing is found, and cache it."""
    length = len(text) if length is None else length
    return [("allocate", name, text), ("append_slots", name, length, 8), ("cache_blocks", name)]


def demand_no_table(case: Case, holder, sequence: int, when: str) -> None:
    """Demand that a sequence has no table."""
    table = record(holder, sequence).block_table
    what = f"The block_table of sequence {sequence}, which {when}, should be None"
    case.that(table is None, f"{what}, yours is {describe(table)}.")


@check(BlockManager, see="One object for each sequence")
def one_object(managers, case):
    """keeps the table of a sequence in its Sequence, from allocate to free"""
    manager = managers(9, 3)
    manager.allocate(0, list(range(8)))
    same(case, flat(tables(manager, 0)), [0], "length and blocks of the table after allocate")
    grown(manager, 0, 7)
    manager.fork(0, 1)
    grown(manager, 1, 3)
    first, second = lists(manager, 0, 1)
    found = flat(tables(manager, 0, 1))
    same(case, found, [7, *first, 10, *second], "length and blocks of two tables")
    tokens = numbers(record(manager, 1).tokens, "tokens")
    same(case, tokens, list(range(8)), "tokens of the fork")
    manager.free(0)
    demand_no_table(case, manager, 0, "is freed")
    manager.fork(0, 2)
    same(case, lists(manager, 2)[0], [], "blocks of the fork of one without a table")
    manager.free(2)
    seen = [manager.allocator.available, *tables(manager, 1)[0]]
    same(case, seen, [5, 10, *second], "free blocks, and the table of the other sequence")
    manager.free(1)
    demand_no_table(case, manager, 1, "is freed too")
    manager.allocate(1, [4, 4, 5, 4, 5, 4, 4])
    tokens = numbers(record(manager, 1).tokens, "tokens")
    same(case, tokens, list(range(8)), "tokens of a sequence that gets a new table")
    manager = managers(4, 2)
    for each in (0, 1):
        manager.allocate(each, [each] * 4)
        grown(manager, each, 4)
    manager.free(0)
    grown(manager, 1, 4)
    what = "length and blocks of a table that has got the blocks of another one"
    same(case, tables(manager, 1)[0], [8, *lists(manager, 1)[0]], what)


@together
def then_longer(manager, sequence: int, tokens: list[int]) -> list[int]:
    """Open a sequence, add to the list that was given, and read the sequence's tokens."""
    manager.allocate(sequence, tokens)
    tokens.append(99)
    return numbers(record(manager, sequence).tokens, "tokens")


@check(BlockManager, see="Blocks for every sequence")
def own_tokens(managers, case):
    """copies the tokens of a new sequence, to whose list the caller may add"""
    found = then_longer(managers(5, 2), 0, [4, 5, 6, 7, 8, 9])
    what = "tokens of a sequence after the caller has added to the list that allocate was given"
    same(case, found, [4, 5, 6, 7, 8, 9], what)


@check(BlockManager, weight=2, see="Blocks for every sequence")
def finds_prefixes(managers, case):
    """begins a sequence with the blocks of another that begins alike"""
    text = list(range(10, 21))
    others = [[*text[:8], 1, 1], text[:2] + [9] * 8, [*text, 3, 4]]
    opened = [("allocate", name, other) for name, other in zip("BCD", others, strict=True)]
    managed(managers, (12, 3, [*computed("A", text), *opened]))


@check(BlockManager, weight=2, see="A prompt that is cached as a whole")
def leaves_one_token(managers, case):
    """leaves at least one token of a prompt to compute, even if all are cached"""
    texts = [list(range(length)) for length in (3, 6, 7, 8, 9)]
    opened = [[("allocate", name, text) for name in "BC"] for text in texts]
    programs = [(9, 3, [*computed("A", t), *more]) for t, more in zip(texts, opened, strict=True)]
    managed(managers, *programs)


@check(BlockManager, weight=2, see="Blocks for every sequence")
def goes_on_from_a_prefix(managers, case):
    """names the blocks behind a found prefix by the whole text, for all who look for them"""
    text = [5, 5, 6, 6, 7, 7, 8, 8]
    longer = [
        ("allocate", "B", text),
        ("append_slots", "B", 4, 8),
        ("cache_blocks", "B"),
        ("free", "B"),
    ]
    ends = [
        ("allocate", name, [*t, 1]) for name, t in zip("CDE", (text[4:], text, text), strict=True)
    ]
    managed(managers, (9, 2, [*computed("A", text[:4]), *longer, *ends]))


@check(BlockManager, see="Blocks for every sequence")
def names_what_is_written(managers, case):
    """names a block only when it is full and its tokens are computed"""
    text = list(range(9))
    calls = [("allocate", "A", text)]
    for name, count in (("B", 3), ("C", 2), ("D", 4)):
        calls += [("append_slots", "A", count, 8), ("cache_blocks", "A"), ("allocate", name, text)]
    forked = [("fork", "A", "E"), ("append_slots", "E", 1, 50), ("cache_blocks", "E")]
    texts = {"F": text, "G": [7, *text], "H": [*text, 50, 1]}
    opened = [("allocate", name, other) for name, other in texts.items()]
    managed(managers, (12, 2, [*calls, *forked, *opened]))


@check(BlockManager, weight=2, see="Fork, and copy only what is written")
def forks(managers, case):
    """shares all blocks in a fork and copies the last one when either of the two writes"""
    begins = [*computed("A", [6] * 5)[:2], *computed("B", [5] * 6)[:2]]  # A: places are not blocks
    grown = [("fork", "B", "C"), ("append_slots", "C", 1, 7), ("append_slots", "B", 1, 7)]
    managed(managers, (10, 4, [*begins, *grown]))


@check(BlockManager, see="Fork, and copy only what is written")
def names_of_forks(managers, case):
    """keeps the names of a fork apart from those of the other, whoever commits first"""
    begins = [*computed("A", [5] * 4), ("fork", "A", "B")]
    ways = [
        [("append_slots", name, 2, token), ("cache_blocks", name)]
        for name, token in (("A", 7), ("B", 6))
    ]
    found = [("allocate", name, [5] * 4 + [token] * 3) for name, token in (("C", 6), ("D", 7))]
    managed(managers, *[(12, 2, [*begins, *one, *two, *found]) for one, two in (ways, ways[::-1])])


@check(BlockManager, see="All or nothing")
def all_or_nothing(managers, case):
    """changes nothing when blocks run out"""
    forked = [*computed("A", [5] * 5)[:2], ("fork", "A", "B"), ("append_slots", "B", 2, 8)]
    evicted = [*computed("A", [1, 2, 3]), ("free", "A"), ("allocate", "B", [9] * 9)]
    ends = [("append_slots", "B", 9, 8), ("allocate", "C", [1, 2, 3])]
    managed(managers, (4, 2, forked), (2, 2, [*evicted, *ends]))


@check(BlockManager, see="All or nothing")
def gap(managers, case):
    """shares nothing beyond a gap, and leaves all blocks as they were"""
    text = list(range(9))
    calls = [
        ("allocate", "A", text),
        ("allocate", "B", text),
    ]  # what both compute is named in A's blocks
    for name, count in (("A", 4), ("B", 6)):
        calls += [("append_slots", name, count, 8), ("cache_blocks", name)]
    evicted = [("free", "A"), ("allocate", "C", [9] * 9), ("append_slots", "C", 8, 9)]
    managed(
        managers, (7, 2, [*calls, *evicted, ("allocate", "D", text), ("append_slots", "D", 1, 8)])
    )


@check(BlockManager, see="Blocks for every sequence")
def gives_back(managers, case):
    """gives all blocks back when all sequences are freed"""
    calls = [*computed("A", [5] * 5)[:2], ("fork", "A", "B"), ("append_slots", "B", 2, 8)]
    managed(managers, (7, 2, [*calls, ("free", "A"), ("free", "B")]))


@check(BlockManager, see="One object for each sequence")
def comes_back(managers, case):
    """finds and names the blocks of a sequence that was freed and is allocated again"""
    closed, other = [*computed("A", [5, 6, 7, 8, 9]), ("free", "A")], computed("B", [1] * 6)
    again = [
        ("allocate_again", "A"),
        ("append_slots", "A", 5, 8),
        ("cache_blocks", "A"),
        ("allocate", "C", [5, 6, 7, 8, 9]),
    ]
    managed(managers, (6, 2, closed + again), (3, 2, [*closed, *other, ("free", "B"), *again]))


@check(BlockManager, weight=2, see="Found or idle, never both")
def end_of_the_chain_first(managers, case):
    """forgets the end of a text before its beginning, and stops at the first gap"""
    text = list(range(8))
    begins = [*computed("A", text), ("free", "A"), *computed("B", [9] * 3)[:2], ("free", "B")]
    again = [
        ("allocate", "C", text),
        ("free", "C"),
        *computed("D", [9] * 6)[:2],
        ("allocate", "E", text),
    ]
    managed(managers, (4, 2, [*begins, *again]))


@check(BlockManager, weight=2, see="Blocks for every sequence")
def programs(managers, case):
    """shares, copies and gives back blocks in ten random programs as a plain model does"""
    settings = [(3 + n % 4, 1 + n % 3) for n in range(10)]
    drawn = random_programs(case, PlainManager, Managing, managing, settings, 12)
    compare(managers, PlainManager, Managing, drawn)


@check(fragmentation_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "fragmentation", told_by_slot)
