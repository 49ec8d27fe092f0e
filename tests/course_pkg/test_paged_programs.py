"""Eight hundred random programs of allocator and block manager, against plain models."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from course_pkg.engine.requests import OutOfBlocks
from course_pkg.paged_attention import BlockManager, BlockTable, PrefixCache

BLOCKS = 7
COMMON = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
}


class Allocation(RuleBasedStateMachine):
    """PrefixCache against a list of users and the order in which blocks became idle."""

    def __init__(self):
        super().__init__()
        self.cache = PrefixCache(BLOCKS)
        self.users = [0] * BLOCKS
        self.names: dict[int, str] = {}
        self.idle: list[int] = []

    @rule()
    def allocate(self):
        unnamed = [n for n in range(BLOCKS) if not self.users[n] and n not in self.names]
        try:
            block = self.cache.allocate()
        except OutOfBlocks:
            assert not unnamed and not self.idle
            return
        assert block in unnamed if unnamed else block == self.idle.pop(0)
        self.names.pop(block, None)
        self.users[block] = 1

    @precondition(lambda self: any(self.users))
    @rule(data=st.data())
    def free(self, data):
        block = data.draw(st.sampled_from([n for n in range(BLOCKS) if self.users[n]]))
        self.cache.free(block)
        self.users[block] -= 1
        if not self.users[block] and block in self.names:
            self.idle.append(block)

    @precondition(lambda self: any(self.users))
    @rule(data=st.data(), name=st.sampled_from("abcdefghij"))
    def register(self, data, name):
        block = data.draw(st.sampled_from([n for n in range(BLOCKS) if self.users[n]]))
        self.cache.register(block, name)
        if name not in self.names.values():
            self.names.setdefault(block, name)

    @rule(name=st.sampled_from("abcdefghij"))
    def find(self, name):
        block = self.cache.find(name)
        assert block == next((n for n, known in self.names.items() if known == name), None)
        if block is not None:
            self.users[block] += 1
            if block in self.idle:
                self.idle.remove(block)

    @rule(block=st.integers(0, BLOCKS - 1))
    def refuse(self, block):
        if not self.users[block]:
            for call in (self.cache.free, self.cache.share):
                try:
                    call(block)
                except ValueError:
                    continue
                raise AssertionError(f"{call.__name__} of an unused block is not refused")

    @invariant()
    def counts(self):
        assert self.cache.references == self.users
        assert self.cache.available == self.users.count(0)


def tables_of(manager: BlockManager) -> dict[int, BlockTable]:
    """Collect the tables of the sequences that have one."""
    tables = {number: each.block_table for number, each in manager.sequences.items()}
    return {number: table for number, table in tables.items() if table is not None}


def blocks_are_in_order(manager: BlockManager) -> None:
    """Every block has as many users as tables that hold it, and is in one place only."""
    allocator, tables = manager.allocator, tables_of(manager).values()
    held = [block for table in tables for block in table.blocks]
    assert allocator.references == [held.count(n) for n in range(len(allocator.references))]
    places = [*allocator.unused, *allocator.idle, *set(held)]
    assert sorted(places) == list(range(len(allocator.references)))
    assert all(len(set(table.blocks)) == len(table.blocks) for table in tables)
    assert all(0 <= table.waste < manager.block_size for table in tables)


class Management(RuleBasedStateMachine):
    """BlockManager, with a memory in which every slot holds the whole prefix that it stands for.

    Keys and values of a position depend on all tokens up to it. So a slot is right if and only if
    it holds the prefix of each sequence that reads it.
    """

    def __init__(self):
        super().__init__()
        self.manager = BlockManager(BLOCKS, 2)
        self.memory: dict[int, tuple[int, ...]] = {}
        self.texts: dict[int, list[int]] = {}
        self.count = 0

    @rule(text=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def open(self, text):
        found = self.manager.allocate(self.count, text)
        assert found < len(text)
        self.texts[self.count] = text
        self.count += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), count=st.integers(1, 5), token=st.integers(0, 1))
    def write(self, data, count, token):
        number = data.draw(st.sampled_from(sorted(self.texts)))
        text, table = self.texts[number], self.manager.sequences[number].block_table
        start = table.length
        before = list(table.blocks), list(self.manager.allocator.references)
        try:
            copies = self.manager.append_slots(number, count)
        except OutOfBlocks:
            assert (table.blocks, self.manager.allocator.references) == before
            return
        for source, target in copies:
            for offset in range(2):
                self.memory[2 * target + offset] = self.memory.get(2 * source + offset)
        text += [token] * max(0, start + count - len(text))
        for position, slot in enumerate(table.slots(start, start + count), start=start):
            assert self.manager.allocator.references[slot // 2] == 1, "written while shared"
            self.memory[slot] = tuple(text[: position + 1])
        self.manager.cache_blocks(number, text)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data):
        number = data.draw(st.sampled_from(sorted(self.texts)))
        self.manager.fork(number, self.count)
        self.texts[self.count] = list(self.texts[number])
        self.count += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def close(self, data):
        number = data.draw(st.sampled_from(sorted(self.texts)))
        self.manager.free(number)
        del self.texts[number]

    @invariant()
    def every_slot_is_right(self):
        blocks_are_in_order(self.manager)
        for number, table in tables_of(self.manager).items():
            for position, slot in enumerate(table.slots(0, table.length)):
                assert self.memory[slot] == tuple(self.texts[number][: position + 1])


def programs(machine: type, count: int, steps: int):
    case = machine.TestCase
    case.settings = settings(max_examples=count, stateful_step_count=steps, **COMMON)
    return case


TestAllocation = programs(Allocation, 400, 40)
TestManagement = programs(Management, 400, 30)
