"""Checks of serving. Oracles: plain generation, a search by hand, plans by the rules."""

import contextlib
import functools
import itertools
import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

from course_pkg.checking.batched import together
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.guard import steps
from course_pkg.checking.memo import once
from course_pkg.checking.models import SmallServed
from course_pkg.checking.programs.programs import Nonsense, Program, Step, follow, played
from course_pkg.checking.programs.scheduling import (
    InChunks,
    OnDemand,
    SettingAside,
    Swapping,
    WithHost,
    counts_of,
    counts_of_host,
    play_schedulers,
    play_spaces,
    scene,
    scene_of_space,
    text_of,
    token_of,
    told_of,
    told_of_back,
    told_of_host,
    told_of_out,
)
from course_pkg.checking.registry import check
from course_pkg.checking.telling.failure import Failure, describe
from course_pkg.checks.paged_attention import (
    demand_no_table,
    flat,
    number,
    numbers,
    pairs,
    record,
    same,
    tables,
)
from course_pkg.engine.requests import EngineConfig, NeverFits, OutOfBlocks, SamplingParams
from course_pkg.engine.sequence import Sequence
from course_pkg.inference.models import attend_to_all, generate_uncached
from course_pkg.paged_attention import BlockManager, BlockTable
from course_pkg.serving import (
    BeamEngine,
    ChunkedScheduler,
    Engine,
    EngineCore,
    ModelRunner,
    PreemptingScheduler,
    Scheduler,
    SwappingScheduler,
    SwapSpace,
    choose_beams,
    choose_beams_fault,
)

STEPS = 300  # more than any engine of these checks may take
plain_tokens = once(generate_uncached)


class Driver:
    """Do with a scheduler what an engine does, and note what it chooses.

    Args:
        schedulers: the student's class.
        settings: those of its `EngineConfig`.
    """

    def __init__(self, schedulers, *settings, **named):
        self.scheduler = schedulers(EngineConfig(*settings, **named))
        self.lengths: dict[int, int] = {}
        self.rows: list[tuple[int, ...]] = []
        self.copies: list[tuple[int, ...]] = []
        self.steps = 0

    def add(self, sequence: int, length: int, token: int | None = None, **settings) -> None:
        """Add a sequence whose tokens are all its own, or all the same."""
        text = [100 * sequence + n if token is None else token for n in range(length)]
        self.scheduler.add(sequence, text, **settings)
        self.lengths[sequence] = length

    def fork(self, sequence: int, child: int) -> None:
        """Fork a sequence."""
        self.scheduler.fork(sequence, child)
        self.lengths[child] = self.lengths[sequence]

    def step(self) -> list[tuple[int, ...]]:
        """Take a step: what is computed to its end gets a token."""
        work, self.copies, self.lengths = step_of(self.scheduler, self.lengths, self.steps)
        self.rows += [(self.steps, *row) for row in work]
        self.steps += 1
        return work

    def remove(self, sequence: int) -> None:
        """End a sequence."""
        self.scheduler.remove(sequence)
        del self.lengths[sequence]

    def compare(self, case: Case, expected: list[tuple[int, ...]]) -> None:
        """Compare all work since the beginning."""
        same(case, self.rows, expected, "(step, sequence, start, stop) of all work")

    @property
    def available(self) -> int:
        return available(self.scheduler)


@together
def step_of(scheduler, lengths: dict[int, int], count: int) -> tuple[list, list, dict[int, int]]:
    """Plan a step and do its work: the work, the copies, and the lengths afterwards."""
    result = scheduler.schedule()
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise Failure(
            f"schedule should return a plan of work and copies, yours is {describe(result)}."
        )
    work = pairs(result[0], "the work", 3)
    copies = pairs(result[1], "the copies")
    for sequence, start, stop in work:
        if sequence not in lengths or not 0 <= start < stop <= lengths[sequence]:
            raise Failure(f"{(sequence, start, stop)} is no work that there is in step {count}.")
    for sequence, _, stop in work:
        scheduler.advance(sequence, stop)
        if stop == lengths[sequence]:
            scheduler.append(sequence, 7)
            lengths[sequence] += 1
    return work, copies, lengths


@together
def available(scheduler) -> int:
    """Read how many blocks of the cache are available."""
    return number(scheduler.manager.allocator.available, "available")


@together
def queues(scheduler) -> list[int]:
    """Read who runs, then -1, then who waits."""
    running, waiting = scheduler.running, scheduler.waiting
    return [*numbers(running, "running"), -1, *numbers(waiting, "waiting")]


class ByTheRules:
    """A scheduler as its rules say: it drives itself, and leaves the blocks to a `BlockManager`.

    Args:
        settings: those of the class in question. It sets room aside if there is no watermark.
        forwards: whether the first of a group gives its blocks back first.
    """

    def __init__(self, *settings, forwards: bool = False):
        blocks, self.block_size, self.max_num_seqs, *more = settings
        self.sets_aside, self.forwards = not more, forwards
        self.watermark, budget, self.room = (*more, *(0, None, None)[len(more) :])
        self.max_num_batched_tokens = math.inf if budget is None else budget
        self.manager = BlockManager(blocks, self.block_size)
        self.known = self.manager.sequences
        self.runs: list[int] = []
        self.waits: list[int] = []
        self.host: dict[int, list[int]] = {}  # content goes by numbers of its own there
        self.names = itertools.count()
        self.hits = self.preemptions = self.swaps = 0
        self.stalled: set[int] = set()
        self.done: dict[str, object] = {}

    def stall(self, number: int) -> None:
        self.stalled.add(number)

    def add(self, number: int, length: int, text: int, longest=0, forks=0, together=False) -> None:
        if number in self.known:
            raise Nonsense
        self.done = {}
        sequence = self.known[number] = Sequence(text_of(text, length))
        sequence.longest, sequence.forks = max(longest, length), forks
        sequence.group = [number] if together else None
        self.waits.append(number)

    def queue(self, number: int) -> list[int]:
        if number not in self.runs + self.waits:
            raise Nonsense
        return self.runs if number in self.runs else self.waits

    def fork(self, number: int, child: int) -> None:
        queue, parent = self.queue(number), self.known[number]
        if child in self.known:
            raise Nonsense
        self.done = {}
        if not parent.forks and queue is self.runs and self.places(self.runs) >= self.max_num_seqs:
            raise ValueError("too many run")
        parent.forks = max(parent.forks - 1, 0)
        self.manager.fork(number, child)
        self.known[child].forks = 0
        if parent.group is not None:
            parent.group.append(child)
        queue.insert(queue.index(number) + 1, child)
        if number in self.host:
            self.host[child] = list(self.host[number])

    def remove(self, number: int) -> None:
        self.queue(number).remove(number)
        self.done = {}
        self.lose([number])
        self.host.pop(number, None)
        if self.known[number].group is not None:
            self.known[number].group.remove(number)

    def lose(self, numbers: list[int]) -> None:
        for n in numbers if self.forwards else numbers[::-1]:
            self.manager.free(n)
            self.known[n].num_computed = 0

    def places(self, numbers: list[int]) -> int:
        return sum(1 + self.known[number].forks for number in numbers)

    def mates(self, number: int) -> list[int]:
        group = self.known[number].group
        return [n for n in self.queue(number) if n == number or (group and n in group)]

    def wanted(self, number: int) -> int:
        spent = sum(stop - start for start, stop in self.work.values())
        missing = len(self.known[number].tokens) - self.known[number].num_computed
        return (
            0 if number in self.stalled else int(min(missing, self.max_num_batched_tokens - spent))
        )

    def grows(self, number: int) -> bool:
        count, start = self.wanted(number), self.known[number].num_computed
        if count:
            try:
                self.copies += len(self.manager.append_slots(number, count))
            except OutOfBlocks:
                return False
            self.work[number] = start, start + count
        return True

    def take_away(self, mates: list[int]) -> None:
        lengths = {number: self.known[number].num_computed for number in mates}
        tables = {
            n: self.manager.get_block_table(n)[: math.ceil(lengths[n] / self.block_size)]
            for n in mates
        }
        self.lose(mates)
        self.runs = [number for number in self.runs if number not in mates]
        self.waits = mates + self.waits
        self.work = {number: row for number, row in self.work.items() if number not in mates}
        self.preemptions += len(mates)
        blocks = {block: None for table in tables.values() for block in table}
        if self.room is None or len(blocks) > self.room - self.in_use():
            return
        names = {block: next(self.names) for block in blocks}
        for n in mates:
            self.host[n] = [names[block] for block in tables[n]]
            self.known[n].num_computed = lengths[n]
        self.swaps += len(mates)
        self.out += len(blocks)

    def in_use(self) -> int:
        return len({block for table in self.host.values() for block in table})

    def has_room(self, mates: list[int]) -> bool:
        """Tell whether a group can run, and give it its tables if so."""
        together, S, allocator = self.runs + mates, self.block_size, self.manager.allocator
        if self.places(together) > self.max_num_seqs:
            return False
        if self.sets_aside:
            each = [self.known[number] for number in together]
            needed = sum(-(-one.longest // S) * (1 + one.forks) for one in each)
            if needed <= len(allocator.references):
                self.found(mates)
                return True
            return False
        spare = self.watermark if self.runs else 0
        if mates[0] in self.host:
            return any(map(self.wanted, mates)) and self.comes_back(
                mates, allocator.available - spare
            )
        counts = list(map(self.wanted, mates))  # nothing of them is computed
        if not any(counts):
            return False
        found = self.found(mates)
        needed = sum(self.known[n].block_table.missing(self.wanted(n)) for n in mates)
        if needed > allocator.available - spare:
            self.lose(mates)
            self.hits -= found
            return False
        return True

    def found(self, mates: list[int]) -> int:
        before = self.hits
        for n in mates:
            self.known[n].num_computed = self.manager.allocate(n, self.known[n].tokens)
            self.hits += self.known[n].num_computed
        return self.hits - before

    def comes_back(self, mates: list[int], free: int) -> bool:
        S, full, own = self.block_size, set(), 0
        for n in mates:
            computed = self.known[n].num_computed
            full |= set(self.host[n][: computed // S])
            own += math.ceil((computed + self.wanted(n)) / S) - computed // S
        if len(full) + own > free:
            return False
        there: dict[int, int] = {}
        for n in mates:
            table = self.known[n].block_table = BlockTable(S)
            for name in self.host[n]:
                if name in there:
                    self.manager.allocator.share(there[name])
                else:
                    there[name] = self.manager.allocator.allocate()
            table.append(self.known[n].num_computed, [there[name] for name in self.host.pop(n)])
        self.back += len(there)
        return True

    def plan(self) -> None:
        self.work: dict[int, tuple[int, int]] = {}
        self.copies = self.out = self.back = 0
        before = self.preemptions
        for n in list(self.runs):
            while n in self.runs and not self.grows(n):
                self.take_away(self.mates(self.runs[-1]))
        while self.waits and self.preemptions == before:
            mates = self.mates(self.waits[0])
            if not self.has_room(mates):
                break
            for n in mates:
                self.waits.remove(n)
                self.runs.append(n)
                self.grows(n)
        self.done = told_of([(n, *row) for n, row in self.work.items()], self.copies, [])
        if self.room is not None:
            self.done |= told_of_host(self.out, self.back)

    def step(self) -> None:
        self.pause()
        for n in self.runs:
            if (stop := self.known[n].num_computed) == len(self.known[n].tokens):
                self.known[n].tokens.append(token_of(n, stop))

    def pause(self) -> None:
        self.plan()
        for n, (_, stop) in self.work.items():
            self.known[n].num_computed = stop
            self.manager.cache_blocks(n, self.known[n].tokens)

    def fail(self) -> None:
        self.plan()
        for n in reversed(self.work):
            table, computed = self.known[n].block_table, self.known[n].num_computed
            kept = math.ceil(computed / self.block_size)
            for block in reversed(table.blocks[kept:]):
                self.manager.allocator.free(block)
            table.blocks, table.length = table.blocks[:kept], computed

    def look(self) -> dict:
        counts = counts_of(self.manager.allocator.available, self.hits, self.preemptions)
        if self.room is not None:
            counts |= counts_of_host(self.swaps, self.room - self.in_use())
        return scene((self.runs, self.waits), self.known, self.host, counts | self.done)


def call_of(oracle: ByTheRules, draw: random.Random) -> tuple:
    """Draw the next call of a program: mostly steps; what has grown as far as it may ends."""
    alive, new = oracle.runs + oracle.waits, len(oracle.known)
    S, N = oracle.block_size, len(oracle.manager.allocator.references)
    for n in alive:
        sequence = oracle.known[n]
        if len(sequence.tokens) > sequence.longest:
            return "remove", n
        if sequence.forks and sequence.num_computed and draw.random() < 0.8:
            return "fork", n, new
    chance = draw.random()
    if not alive or (chance < 0.25 and len(oracle.waits) < 3):
        forks = min(draw.choice([0, 0, 1, 2]), oracle.max_num_seqs - 1)
        together = bool(forks) and not oracle.sets_aside
        longest = draw.randint(3, max(3, min(9, N // (1 + forks)) * S))
        length = draw.randint(1, max(1, longest - 2))
        return "add", new, length, draw.choice([1, 2, 10 + new]), longest, forks, together
    if chance < 0.29:
        return "remove", draw.choice(alive)
    if chance < 0.33 and not oracle.sets_aside:
        alone = [n for n in alive if oracle.known[n].group is None]
        return ("fork", draw.choice(alone), new) if alone else ("step",)
    return (draw.choice(["fail", "pause"]),) if chance < 0.4 else ("step",)


def calls_of(settings: tuple, count: int, seed: int) -> list[tuple]:
    """Draw calls of a scheduler that make sense."""
    numbers, oracle = random.Random(seed), ByTheRules(*settings)
    calls: list[tuple] = []
    while len(calls) < count:
        method, *arguments = call_of(oracle, numbers)
        calls.append((method, *arguments))
        with contextlib.suppress(ValueError):
            getattr(oracle, method)(*arguments)
    return calls


@once
def program_of(settings: tuple, count: int, seed: int) -> Program:
    """Draw a program in which it does not matter who of a group gives its blocks back first."""
    while True:
        program = settings, calls_of(settings, count, seed)
        other = functools.partial(ByTheRules, forwards=True)
        if expected_of([program]) == expected_of([program], other):
            return program
        seed += 1


def expected_of(programs: list[Program], oracle: Callable = ByTheRules) -> list[list[Step]]:
    """Play programs by the rules."""
    return [played(oracle(*settings), calls) for settings, calls in programs]


by_the_rules = once(expected_of)


def play(schedulers, programs: list[Program]) -> list[list[Step]]:
    """Play programs with a student's scheduler, or by the rules."""
    is_oracle = schedulers is ByTheRules
    return by_the_rules(programs) if is_oracle else play_schedulers(schedulers, programs)


def follow_rules(schedulers, driver: type, programs: list[Program]) -> None:
    """Demand of a student's scheduler what the rules say, in some programs."""
    follow(schedulers, ByTheRules, play, driver, programs)


def told(queues: list[int]) -> str:
    """Say who runs and who waits."""
    parts = queues[: queues.index(-1)], queues[queues.index(-1) + 1 :]
    runs, waits = (", ".join(map(str, part)) or "nobody" for part in parts)
    return f"running: {runs}; waiting: {waits}"


def same_scenes(seen: list[list[int]], expected: list[list[int]], moments: list[str]) -> None:
    """Compare who runs and who waits at some moments.

    Raises:
        Failure: it differs; the message tells the first moment at which it does.
    """
    for moment, given, wanted in zip(moments, seen, expected, strict=True):
        if given != wanted:
            text = f"{moment} there should be {told(wanted)}; yours has {told(given)}."
            raise Failure(text, what="running, -1, waiting", observed=torch.tensor(flat(seen)))


@check(Scheduler, see="Decide anew in every step")
def one_object(schedulers, case):
    """keeps tokens and table of a sequence in one Sequence, which its manager knows too"""
    driver = Driver(schedulers, 8, 2)
    for sequence in (3, 5):
        driver.add(sequence, 3, longest=8)
    for _ in range(3):
        driver.step()
    scheduler = driver.scheduler
    for holder in (scheduler, scheduler.manager):
        tokens = [numbers(record(holder, each).tokens, "tokens") for each in (3, 5)]
        expected = [300, 301, 302, 7, 7, 7, 500, 501, 502, 7, 7, 7]
        same(case, flat(tokens), expected, "tokens of two sequences after three steps")
        lengths = [tables(holder, each)[0][0] for each in (3, 5)]
        same(case, lengths, [5, 5], "length of their tables")
    driver.remove(3)
    demand_no_table(case, scheduler, 3, "is removed")
    same(case, numbers(record(scheduler, 3).output, "output"), [7, 7, 7], "output of a removed one")


@check(Scheduler, weight=2, see="Decide anew in every step")
def joins_and_leaves(schedulers, case):
    """lets sequences join and leave the batch in any step"""
    driver = Driver(schedulers, 20, 4)
    driver.add(0, 5, longest=9)
    driver.add(1, 3, longest=9)
    driver.step()
    driver.add(2, 9, longest=12)
    driver.step()
    driver.remove(1)
    driver.step()
    expected = [(0, 0, 0, 5), (0, 1, 0, 3), (1, 0, 5, 6), (1, 1, 3, 4), (1, 2, 0, 9)]
    driver.compare(case, [*expected, (2, 0, 6, 7), (2, 2, 9, 10)])


@check(Scheduler, weight=2, see="Decide anew in every step")
def forks(schedulers, case):
    """copies a shared block before a fork or its parent writes to it"""
    driver = Driver(schedulers, 10, 4, 3)
    driver.add(0, 5, longest=8, forks=1)
    driver.add(1, 4, longest=8)
    driver.step()
    driver.fork(0, 7)
    served = [number for number, _, _ in driver.step()]
    seen = [*queues(driver.scheduler), *served, len(driver.copies)]
    what = "running, -1, waiting; who is served, and how many copies, after a fork"
    same(case, seen, [0, 7, 1, -1, 0, 7, 1, 1], what)
    expected = [(0, 0, 0, 5), (0, 1, 0, 4), (1, 0, 5, 6), (1, 7, 5, 6), (1, 1, 4, 5)]
    driver.compare(case, expected)
    for each in (7, 1, 0):
        driver.remove(each)
    same(case, [driver.available, *queues(driver.scheduler)], [10, -1], "free blocks at the end")


@check(Scheduler, see="Decide anew in every step")
def copies_of_all(schedulers, case):
    """plans the copies of all that are extended, also where only a fork goes on"""
    driver = Driver(schedulers, 10, 4, 4)
    for sequence in (0, 1):
        driver.add(sequence, 5, longest=8, forks=1)
    driver.scheduler.schedule()
    for parent, child in ((0, 7), (1, 8)):
        driver.scheduler.advance(parent, 5)
        driver.fork(parent, child)
        driver.scheduler.append(child, 9)
        driver.lengths[child] = 6
    same(case, flat(driver.step()), [7, 5, 6, 8, 5, 6], "work when two forks go on")
    what = "number of copies when two forks go on, each of which shares a block with its parent"
    same(case, [len(driver.copies)], [2], what)


@check(Scheduler, weight=2, see="Room is set aside")
def sets_aside(schedulers, case):
    """admits a sequence only when all blocks that it may ever need can be set aside"""
    driver = Driver(schedulers, 8, 2)
    for sequence, longest in enumerate((5, 9, 2, 1)):
        driver.add(sequence, min(longest, 3), longest=longest)
    driver.step()
    driver.step()
    driver.remove(0)
    driver.step()
    expected = [(0, 0, 0, 3), (0, 1, 0, 3), (1, 0, 3, 4), (1, 1, 3, 4)]
    driver.compare(case, [*expected, (2, 1, 4, 5), (2, 2, 0, 2), (2, 3, 0, 1)])


@check(Scheduler, see="Room is set aside")
def first_come(schedulers, case):
    """lets nobody overtake a sequence that waits for more memory"""
    driver = Driver(schedulers, 6, 2)
    for sequence, length in enumerate((6, 8, 2)):
        driver.add(sequence, length, longest=length + 2 * (sequence == 0))
    driver.step()
    driver.step()
    driver.remove(0)
    driver.step()
    driver.compare(case, [(0, 0, 0, 6), (1, 0, 6, 7), (2, 1, 0, 8), (2, 2, 0, 2)])


def before_and_after_a_fork(schedulers, num_blocks: int, max_num_seqs: int) -> list[list[int]]:
    """List who runs and who waits before and after a fork that was announced."""
    driver = Driver(schedulers, num_blocks, 2, max_num_seqs)
    driver.add(0, 3, longest=6, forks=1)
    for sequence in (1, 2):
        driver.add(sequence, 3, longest=3)
    driver.step()
    before = queues(driver.scheduler)
    driver.fork(0, 7)
    driver.step()
    return [before, queues(driver.scheduler)]


@check(Scheduler, see="Room is set aside")
def whole_blocks(schedulers, case):
    """rounds up what each sequence needs, and each fork, to whole blocks"""
    driver = Driver(schedulers, 6, 2)
    driver.add(0, 3, longest=3, forks=2)
    driver.add(1, 1)
    driver.step()
    seen = [queues(driver.scheduler)]
    for blocks, longest, forks in ((7, 6, 2), (8, 6, 2), (2, 5, 0)):
        driver = Driver(schedulers, blocks, 2)
        driver.add(0, 3, longest=longest, forks=forks)
        driver.add(1, 3, longest=longest)
        driver.step()
        seen.append(queues(driver.scheduler))
    moments = [
        "With 6 blocks of 2, where 0 and two forks of it need 3 slots each,",
        *(f"With {n} blocks of 2, where 0 and two forks of it need 6 slots each," for n in (7, 8)),
        "With 2 blocks of 2, where 0 needs 5 slots,",
    ]
    same_scenes(seen, [[0, -1, 1], *[[-1, 0, 1]] * 3], moments)


ANNOUNCED = [[0, 1, -1, 2], [0, 7, 1, -1, 2]]


@check(Scheduler, see="Room is set aside")
def places_for_forks(schedulers, case):
    """keeps places for the forks that are still to come"""
    seen = before_and_after_a_fork(schedulers, num_blocks=99, max_num_seqs=3)
    driver = Driver(schedulers, 99, 2, 2)
    for sequence in range(3):
        driver.add(sequence, 3)
    driver.step()
    moments = [
        "When three may run, before a fork of 0 to 7,",
        "When three may run, after the fork,",
        "When two may run, and none is to be forked,",
    ]
    same_scenes([*seen, queues(driver.scheduler)], [*ANNOUNCED, [0, 1, -1, 2]], moments)


@check(Scheduler, see="Room is set aside")
def blocks_for_forks(schedulers, case):
    """keeps blocks for the forks that are still to come"""
    seen = before_and_after_a_fork(schedulers, num_blocks=8, max_num_seqs=99)
    moments = [f"With 8 blocks, {when} a fork of 0 to 7," for when in ("before", "after")]
    same_scenes(seen, ANNOUNCED, moments)


@check(Scheduler, see="Decide anew in every step")
def nothing_left(schedulers, case):
    """raises OutOfBlocks for a sequence that finds no block, and ValueError for a fork too many"""
    driver = Driver(schedulers, 4, 2, 1)
    driver.add(0, 6)
    for _ in range(3):
        driver.step()
    scheduler = driver.scheduler
    case.raises(OutOfBlocks, lambda: scheduler.extend(0), "a fifth block is needed, and four exist")
    case.raises(ValueError, lambda: scheduler.fork(0, 5), "one may run, and one does")
    found = [*tables(scheduler, 0)[0][:1], number(record(scheduler, 0).num_computed, "computed")]
    found += [driver.available, len(scheduler.plan.work), *queues(scheduler)]
    what = "length of its table, computed, free blocks, rows of work planned, running, -1, waiting"
    same(case, found, [8, 8, 0, 0, 0, -1], f"After the errors, {what}")


@check(Scheduler, weight=2, see="Decide anew in every step")
def programs(schedulers, case):
    """follows the rules in short programs of calls"""
    follow_rules(schedulers, SettingAside, [program_of((8, 2, 4), 30, n) for n in (9000, 17000)])


@check(Scheduler, see="Room is set aside")
def enters_as_a_group(schedulers, case):
    """admits a group only when all of it has a place"""
    driver = Driver(schedulers, 8, 2)
    driver.add(0, 4)
    driver.add(1, 5, forks=1, together=True)
    driver.fork(1, 7)
    driver.add(2, 5, forks=1, together=True)
    driver.fork(2, 8)
    seen = []
    for each in (0, 1, 7):
        driver.step()
        seen.append(queues(driver.scheduler))
        driver.remove(each)
    expected = [[0, 1, 7, -1, 2, 8], [1, 7, -1, 2, 8], [7, -1, 2, 8]]
    moments = ["With blocks for one pair,", "When 0 has ended,", "With blocks for one of the pair,"]
    same_scenes(seen, expected, moments)


@check(PreemptingScheduler, weight=2, see="When memory runs out in the middle of a batch")
def preempts(schedulers, case):
    """takes blocks from the last to come, who then waits before all others"""
    driver = Driver(schedulers, 4, 2)
    for sequence in range(4):
        driver.add(sequence, 2)
    seen = []
    for _ in range(4):
        driver.step()
        seen.append(queues(driver.scheduler))
    expected = [[0, 1, 2, 3, -1], [0, 1, -1, 2, 3], [0, 1, -1, 2, 3], [0, -1, 1, 2, 3]]
    same_scenes(seen, expected, [f"After step {n} with 4 blocks of 2," for n in range(4)])
    rows = [(0, n, 0, 2) for n in range(4)]
    rows += [(1, 0, 2, 3), (1, 1, 2, 3), (2, 0, 3, 4), (2, 1, 3, 4), (3, 0, 4, 5)]
    driver.compare(case, rows)


@check(PreemptingScheduler, see="When memory runs out in the middle of a batch")
def comes_back(schedulers, case):
    """computes a sequence that lost its blocks again, except for what is still cached"""
    driver = Driver(schedulers, 5, 2)
    driver.add(0, 4)
    driver.add(1, 5)
    driver.step()
    driver.step()
    driver.remove(0)
    driver.step()
    driver.compare(case, [(0, 0, 0, 4), (0, 1, 0, 5), (1, 0, 4, 5), (2, 1, 4, 6)])
    scheduler = driver.scheduler
    counts = [number(scheduler.hits, "hits"), number(scheduler.preemptions, "preemptions")]
    same(case, counts, [4, 1], "hits and preemptions")


@check(PreemptingScheduler, see="When memory runs out in the middle of a batch")
def copies(schedulers, case):
    """plans a copy for all but one of those who share a block, whoever loses blocks behind them"""
    seen = []
    for blocks in (9, 5):
        driver = Driver(schedulers, blocks, 4, 9)
        driver.add(0, 6, forks=2)
        driver.add(1, 4)
        driver.step()
        for child in (7, 8):
            driver.fork(0, child)
        driver.step()
        seen += [*queues(driver.scheduler), len(driver.copies)]
    what = "running, -1, waiting and number of copies when three share a block; with few blocks too"
    same(case, seen, [0, 8, 7, 1, -1, 2, 0, 8, 7, -1, 1, 2], what)


@check(PreemptingScheduler, see="No admission in a step that preempts")
def not_at_once(schedulers, case):
    """admits nobody in a step in which somebody lost blocks"""
    driver = Driver(schedulers, 6, 2, 9)
    driver.add(0, 1)
    driver.add(1, 3, forks=1, together=True)
    driver.step()
    driver.fork(1, 11)
    seen = []
    for _ in range(2):  # two of the same tokens, who would need fewer blocks if they came back
        driver.step()
        seen.append(queues(driver.scheduler))
    moments = [
        "Before blocks run out,",
        "After the step in which 1 and 11, a group, lose their blocks,",
    ]
    same_scenes(seen, [[0, 1, 11, -1], [0, -1, 1, 11]], moments)
    demand_no_table(case, driver.scheduler, 1, "has lost its blocks")
    computed = number(record(driver.scheduler, 1).num_computed, "computed")
    same(case, [computed], [0], "computed of one that has lost its blocks")


@check(PreemptingScheduler, see="No admission in a step that preempts")
def not_at_once_behind(schedulers, case):
    """admits nobody either when those behind the one that asked for blocks find theirs"""
    driver = Driver(schedulers, 8, 2, 9)
    driver.add(0, 4)
    for sequence in (1, 2):  # of the same tokens: 2 finds most of them when it comes back
        driver.add(sequence, 5, token=4)
    seen = []
    for _ in range(2):
        driver.step()
        seen.append(queues(driver.scheduler))
    moments = [
        "When all have come,",
        "When 2 has lost its blocks for 0, and 1 needs no more in this step,",
    ]
    same_scenes(seen, [[0, 1, 2, -1], [0, 1, -1, 2]], moments)
    expected = [(0, 0, 0, 4), (0, 1, 0, 5), (0, 2, 0, 5), (1, 0, 4, 5), (1, 1, 5, 6)]
    driver.compare(case, expected)


@check(PreemptingScheduler, see="A watermark")
def leaves_some(schedulers, case):
    """admits nobody who would leave fewer blocks than the watermark, unless nobody runs"""
    seen = []
    for watermark in (0, 1, 2):
        driver = Driver(schedulers, 7, 2, 64, watermark)
        driver.add(0, 8)
        driver.add(1, 3)
        driver.step()
        seen.append(queues(driver.scheduler))
    alone = Driver(schedulers, 4, 2, 64, 3)
    alone.add(0, 7)
    alone.step()
    expected = [[0, 1, -1], [0, 1, -1], [0, -1, 1], [0, -1]]
    moments = [f"With a watermark of {n} and 3 blocks for 1, which needs 2," for n in range(3)]
    moments.append("With a watermark of 3 and nobody else,")
    same_scenes([*seen, queues(alone.scheduler)], expected, moments)


@check(PreemptingScheduler, weight=2, see="Sequences that belong together")
def as_a_group(schedulers, case):
    """takes the blocks of a group together, and admits it together"""
    driver = Driver(schedulers, 8, 2, 9)
    driver.add(0, 7)
    driver.add(1, 3, forks=2, together=True)
    driver.step()
    for child in (11, 12):
        driver.fork(1, child)
    seen = []
    for _ in range(2):
        driver.step()
        seen.append(queues(driver.scheduler))
    driver.remove(0)
    driver.step()
    seen.append(queues(driver.scheduler))
    expected = [[0, 1, 12, 11, -1], [0, -1, 1, 12, 11], [1, 12, 11, -1]]
    moments = ["After two forks of 1,", "When there are no blocks for the group of 1,"]
    same_scenes(seen, expected, [*moments, "When 0 has ended and the group has blocks again,"])
    count = number(driver.scheduler.preemptions, "preemptions")
    same(case, [count], [3], "preemptions of a group of three")


@check(PreemptingScheduler, see="Sequences that belong together")
def enters_as_a_group(schedulers, case):
    """admits a group only when there are blocks for all of it"""
    driver = Driver(schedulers, 4, 2, 9)
    driver.add(5, 5, token=4)
    driver.add(0, 3, token=4, forks=1, together=True)
    driver.fork(0, 7)
    seen = []
    for ends in (False, False, True):
        if ends:
            driver.remove(5)
        driver.step()
        seen.append(queues(driver.scheduler))
    one = "With blocks for one of the group of 0 and 7,"
    moments = [one, one, "When 5 has ended and there are blocks for both,"]
    same_scenes(seen, [[5, -1, 0, 7], [5, -1, 0, 7], [0, 7, -1]], moments)
    hits = number(driver.scheduler.hits, "hits")
    same(case, [hits], [4], "hits of a group that could not enter at first, and then did")


@check(PreemptingScheduler, see="Sequences that belong together")
def enters_with_the_longest(schedulers, case):
    """admits a group when there are blocks for its longest too"""
    driver = Driver(schedulers, 6, 2, 9)
    driver.add(5, 5)
    driver.add(0, 3, forks=1, together=True)
    driver.fork(0, 7)
    for token in range(4):
        driver.scheduler.append(7, token)
        driver.lengths[7] += 1
    driver.step()
    seen = [queues(driver.scheduler)]
    driver.remove(5)
    driver.step()
    seen.append(queues(driver.scheduler))
    moments = [
        "With 3 blocks for the group of 0, which needs 2, and 7, which needs 4,",
        "With 6 blocks for the group of 0, which needs 2, and 7, which needs 4,",
    ]
    same_scenes(seen, [[5, -1, 0, 7], [0, 7, -1]], moments)


@check(PreemptingScheduler, see="When memory runs out in the middle of a batch")
def nothing_aside(schedulers, case):
    """sets nothing aside for tokens to come"""
    driver = Driver(schedulers, 4, 2, 9)
    for sequence in (0, 1):
        driver.add(sequence, 3, longest=8)
    driver.step()
    moment = "When two need two of four blocks now, and four later,"
    same_scenes([queues(driver.scheduler)], [[0, 1, -1]], [moment])


@check(PreemptingScheduler, see="When memory runs out in the middle of a batch")
def until_enough(schedulers, case):
    """takes blocks from as many as it needs to, when the last one only shares its own"""
    driver = Driver(schedulers, 6, 1, 9)
    driver.add(0, 4)
    driver.add(1, 2, forks=1)
    driver.step()
    driver.fork(1, 11)
    seen = [each for row in driver.step() for each in row]
    seen += [*queues(driver.scheduler), driver.available]
    what = "work, running, -1, waiting and free blocks when two must lose their blocks"
    same(case, seen, [0, 4, 5, 0, -1, 1, 11, 1], what)


@check(PreemptingScheduler, see="A watermark")
def cannot_enter(schedulers, case):
    """raises OutOfBlocks, and changes nothing, for a sequence that cannot enter"""
    driver = Driver(schedulers, 5, 2, 64, 1)
    driver.add(0, 5, token=4)
    driver.add(1, 9, token=4)
    driver.step()
    scheduler = driver.scheduler
    case.raises(OutOfBlocks, lambda: scheduler.enter([1]), "it needs three, and two are left")
    case.raises(OutOfBlocks, lambda: scheduler.demand(2), "one of two must be left")
    found = [*queues(scheduler), driver.available, number(scheduler.hits, "hits")]
    same(case, found, [0, -1, 1, 2, 0], "running, -1, waiting; free blocks, hits")
    demand_no_table(case, scheduler, 1, "could not enter")
    computed = number(record(scheduler, 1).num_computed, "computed")
    same(case, [computed], [0], "computed of one that could not enter")


@check(PreemptingScheduler, see="When memory runs out in the middle of a batch")
def places_for_forks(schedulers, case):
    """admits no more sequences than may run, with the forks that are still to come"""
    driver = Driver(schedulers, 40, 2, 3)
    for sequence in range(3):
        driver.add(sequence, 3, forks=2 * (sequence == 1))
    driver.step()
    seen = queues(driver.scheduler)
    driver.remove(0)
    driver.step()
    seen = [seen, queues(driver.scheduler)]
    driver = Driver(schedulers, 40, 2, 2)
    for sequence in range(3):
        driver.add(sequence, 3)
    driver.step()
    seen.append(queues(driver.scheduler))
    moments = [
        "When three may run, and 1 is to be forked twice,",
        "When three may run, 1 is to be forked twice, and 0 has ended,",
        "When two may run, and none is to be forked,",
    ]
    same_scenes(seen, [[0, -1, 1, 2], [1, -1, 2], [0, 1, -1, 2]], moments)


@check(PreemptingScheduler, weight=2, see="When memory runs out in the middle of a batch")
def programs(schedulers, case):
    """follows the rules in short programs of calls"""
    chosen = [((7, 2, 9, 0), 16000), ((7, 2, 9, 0), 3000), ((10, 1, 4, 2), 14000)]
    programs = [program_of(settings, 30, seed) for settings, seed in chosen]
    rest = 9, 0, False
    pair = [("add", 0, 3, 7, *rest), ("add", 1, 3, 8, 9, 1, True), ("fork", 1, 2), ("stall", 1)]
    alone = [*(("add", n, 3, 7 + n, *rest) for n in (0, 1, 2)), ("stall", 1)]
    programs += [((9, 2, 9, 0), [*calls, ("step",), ("step",)]) for calls in (pair, alone)]
    follow_rules(schedulers, OnDemand, programs)


@check(ChunkedScheduler, weight=2, see="Chunked prefill")
def chunks(schedulers, case):
    """computes a long prompt in chunks, while others go on"""
    driver = Driver(schedulers, 20, 4, 4, 0, 6)
    driver.add(0, 4)
    driver.add(1, 9)
    driver.add(2, 3)
    for _ in range(4):
        driver.step()
    expected = [(0, 0, 0, 4), (0, 1, 0, 2), (1, 0, 4, 5), (1, 1, 2, 7), (2, 0, 5, 6), (2, 1, 7, 9)]
    expected += [(2, 2, 0, 3), (3, 0, 6, 7), (3, 1, 9, 10), (3, 2, 3, 4)]
    driver.compare(case, expected)


@check(ChunkedScheduler, see="Chunked prefill")
def longer_than_the_budget(schedulers, case):
    """computes a prompt that is longer than the budget when it is alone, too"""
    driver = Driver(schedulers, 20, 4, 3, 0, 4)
    driver.add(0, 9)
    for _ in range(3):
        driver.step()
    driver.compare(case, [(0, 0, 0, 4), (1, 0, 4, 8), (2, 0, 8, 9)])


@check(ChunkedScheduler, see="Chunked prefill")
def enters_with_a_chunk(schedulers, case):
    """admits a long prompt when there are blocks for the chunk of this step"""
    driver = Driver(schedulers, 4, 2, 3, 0, 4)
    driver.add(0, 3)
    driver.add(1, 9)
    driver.step()
    driver.compare(case, [(0, 0, 0, 3), (0, 1, 0, 1)])


@check(ChunkedScheduler, see="Chunked prefill")
def refuses(schedulers, case):
    """raises ValueError for a budget that would starve some who run"""
    for max_num_seqs, budget in ((3, 2), (64, 63), (3, 0)):
        case.raises(
            ValueError,
            lambda m=max_num_seqs, b=budget: schedulers(EngineConfig(8, 2, m, 0, b)),
            f"the budget is {budget} and {max_num_seqs} may run",
        )
    for max_num_seqs, budget in ((3, 3), (3, 4), (64, None)):
        driver = Driver(schedulers, 8, 2, max_num_seqs, 0, budget)
        driver.add(0, 3)
        same(
            case,
            flat(driver.step()),
            [0, 0, 3],
            f"work with max_num_seqs {max_num_seqs} and budget {budget}",
        )


@check(ChunkedScheduler, see="Chunked prefill")
def unlimited(schedulers, case):
    """computes prompts of any length at once without a budget"""
    driver = Driver(schedulers, 90, 4)
    driver.add(0, 150)
    driver.add(1, 120)
    for _ in range(2):
        driver.step()
    driver.compare(case, [(0, 0, 0, 150), (0, 1, 0, 120), (1, 0, 150, 151), (1, 1, 120, 121)])


@check(ChunkedScheduler, see="Chunked prefill")
def after_a_failure(schedulers, case):
    """has its whole budget again after a step that has failed and is undone"""
    driver = Driver(schedulers, 20, 4, 3, 0, 4)
    driver.add(0, 3)
    work, _ = case.unpack(driver.scheduler.schedule(), "work", "copies")
    driver.scheduler.undo(work)
    for _ in range(2):
        driver.step()
    driver.compare(case, [(0, 0, 0, 3), (1, 0, 3, 4)])


@check(ChunkedScheduler, see="Chunked prefill")
def programs(schedulers, case):
    """follows the rules in short programs of calls"""
    follow_rules(schedulers, InChunks, [program_of((8, 2, 3, 1, 3), 30, 2000)])


def small_model(case: Case, V: int = 29, calls: int = 200, L: int = 2) -> SmallServed:
    """Draw a model of a few layers with four query heads on two key heads.

    With one layer, keys and values of a token do not depend on those before it: enough to see what
    becomes of drafts, too little to see what becomes of a prefix.
    """
    D, H, G, D_h = 12, 4, 2, 3
    shapes = [(L, D, H, D_h), (L, D, G, D_h), (L, D, G, D_h), (L, H, D_h, D)]
    heads = [case.randn(*shape) / (2 * L) ** 0.5 for shape in shapes]  # attention counts in each
    return SmallServed((case.randn(V, D), case.randn(64, D), *heads, [calls]))


def texts(case: Case, *lengths: int, V: int = 29) -> list[list[int]]:
    """Draw prompts of some lengths."""
    return [case.integers(0, V, length).tolist() for length in lengths]


def plain_logits(model: SmallServed, text: list[int]) -> Tensor:
    """Score the next token after a text, without any cache."""
    places = torch.arange(len(text))
    return model(torch.tensor(text), places, attend_to_all, places[-1:])[0]


def batch_of(case: Case, lengths: list[int], starts: list[int], S: int) -> tuple[list, list]:
    """Draw texts, and the batches that compute them to their starts, and from there on."""
    order = torch.randperm(60, generator=case.generator).tolist()
    both: tuple[list, list] = ([], [])
    for text, start in zip(texts(case, *lengths), starts, strict=True):
        table = [order.pop() for _ in range(math.ceil(len(text) / S))]
        if start:
            both[0].append((text[:start], 0, table[: math.ceil(start / S)]))
        both[1].append((text[start:], start, table))
    return both


def compare_runs(case: Case, runners, lengths: list[int], starts: list[int], S: int) -> None:
    """Compare a batch's logits with those of each whole text by itself."""
    model = small_model(case)
    runner, (before, batch) = runners(model, 60, S), batch_of(case, lengths, starts, S)
    if before:
        runner.forward(before)
    known = {table[0]: text for text, _, table in before}
    whole = [known.get(table[0], []) + text for text, _, table in batch]
    expected = torch.stack([plain_logits(model, text) for text in whole])
    case.equal(runner.forward(batch), expected, "logits after the last token of each")


@check(ModelRunner, weight=2, see="All tokens in one row")
def prompts(runners, case):
    """gives the logits after each of several prompts of any lengths"""
    compare_runs(case, runners, [5, 1, 8, 5, 11], [0] * 5, 4)


@check(ModelRunner, weight=2, see="All tokens in one row")
def single_tokens(runners, case):
    """goes on with one token for each sequence from what is in the cache"""
    for count in (3, 1):
        compare_runs(case, runners, [5, 9, 3][:count], [4, 8, 2][:count], 4)


@check(ModelRunner, weight=2, see="All tokens in one row")
def mixed(runners, case):
    """computes prompts, chunks and single tokens in one batch"""
    compare_runs(case, runners, [7, 12, 4, 9, 6], [6, 5, 0, 8, 2], 3)
    compare_runs(case, runners, [7, 7, 5, 7], [6, 3, 2, 5], 3)


@check(ModelRunner, see="All tokens in one row")
def no_gradients(runners, case):
    """keeps no gradients, also of a model that is being trained"""
    model, prompts = small_model(case), texts(case, 5, 3)
    learning = SmallServed((model[0].clone().requires_grad_(), *model[1:]))
    batch = [(prompt, 0, [2 * place, 2 * place + 1]) for place, prompt in enumerate(prompts)]
    logits = runners(learning, 4, 4).forward(batch)
    case.shape(logits, (2, len(model[0])), "logits")
    what = "The logits should have no gradient: what the model computes for it would be kept."
    case.that(not logits.requires_grad, what)


@check(ModelRunner, see="All tokens in one row")
def one_call(runners, case):
    """calls the model once, whatever is in the batch"""
    runner = runners(small_model(case), 60, 3)
    before, batch = batch_of(case, [7, 12, 4, 9, 6], [6, 5, 0, 8, 2], 3)
    runner.forward(before)
    left = number(runner.model[-1][0], "calls")
    runner.forward(batch)
    calls = left - number(runner.model[-1][0], "calls")
    text = "The model should be called once for the five sequences of a batch"
    case.that(calls == 1, f"{text}, yours calls it {calls} times.")


@check(ModelRunner, see="All tokens in one row")
def nothing_to_do(runners, case):
    """gives no logits for an empty batch"""
    runner = runners(small_model(case, calls=0), 4, 2)
    same(case, [len(runner.forward([]))], [0], "rows of an empty batch")


@together
def run(engine, rows: dict[int, list[int]]) -> dict[int, list[int]]:
    """Take steps until all requests have ended; give the rows with what was added."""
    requests = list(rows)
    for _ in range(STEPS):
        if not engine.unfinished(requests):
            return rows
        for each, token in pairs(engine.step(), "step"):
            rows.setdefault(each, []).append(token)
    raise Failure(f"Requests should end within {STEPS} steps, yours have not.")


@together
def serve(engine, prompts: list[list[int]], sampling: SamplingParams) -> list[list[int]]:
    """Serve prompts of one sample each, step by step."""
    begun = [number(engine.add(prompt, sampling), "add") for prompt in prompts]
    rows = run(engine, {each: [] for each in begun})
    return [rows[each] for each in begun]


def compare_tokens(case: Case, rows: list[list[int]], expected: list[list[int]], what: str) -> None:
    """Compare the tokens added to some prompts; short rows are filled up with -1."""
    width = max(map(len, [*rows, *expected]))
    given, wanted = (
        torch.tensor([row + [-1] * (width - len(row)) for row in each]) for each in (rows, expected)
    )
    different = [n for n in range(min(len(rows), len(expected))) if rows[n] != expected[n]]
    if different:
        found, right = rows[different[0]], expected[different[0]]
        common = min(len(found), len(right))
        if found[:common] == right[:common]:
            text = f"{what} at [{different[0]}] should be {len(right)} in number, yours are "
            text += f"{len(found)}; the first {common} are right." if common else f"{len(found)}."
            raise Failure(text, what=what, observed=given)
    case.equal(given, wanted, what)


def listed(**settings: object) -> str:
    """Write settings as they stand in a call."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


@together
def free_blocks(engine) -> int:
    """Read how many blocks of an engine's cache are available."""
    return available(engine.scheduler)


@check(EngineCore, weight=3, see="One step of the engine")
def plain_generation(engines, case):
    """adds the tokens that plain generation adds to each prompt alone"""
    model, prompts = small_model(case), texts(case, 5, 1, 8, 11, 4)
    expected = [plain_tokens(model, prompt, 6) for prompt in prompts]
    for S, settings in ((4, {}), (1, {}), (4, {"max_num_seqs": 3, "max_num_batched_tokens": 5})):
        rows = serve(engines(model, EngineConfig(80, S, **settings)), prompts, SamplingParams(6))
        compare_tokens(case, rows, expected, f"tokens with {listed(block_size=S, **settings)}")


@check(EngineCore, see="One step of the engine")
def again_in_pieces(engines, case):
    """adds nothing to one that is computed again, prompt and output, until the last piece is"""
    model, prompts = small_model(case), texts(case, 4, 2)
    expected = [plain_tokens(model, prompt, 9) for prompt in prompts]
    engine = engines(model, EngineConfig(7, 2, max_num_seqs=2, max_num_batched_tokens=2))
    rows = serve(engine, prompts, SamplingParams(9))
    compare_tokens(case, rows, expected, "tokens of two, one of which is computed again in pieces")


@check(EngineCore, see="One step of the engine")
def chunks_draw_nothing(engines, case):
    """draws the same samples whether a prompt is computed at once or in chunks"""
    model, (prompt,), found = small_model(case), texts(case, 9), []
    for budget in (None, 4):
        engine = engines(model, EngineConfig(40, 2, 4, max_num_batched_tokens=budget))
        request = engine.add(prompt, SamplingParams(7, n=2, temperature=1.5, seed=5))
        found.append(list(run(engine, {request: []}).values()))
    what = "tokens of two samples of a prompt in chunks of 4, as of one that is computed at once"
    compare_tokens(case, found[1], found[0], what)


@check(EngineCore, weight=2, see="One step of the engine")
def stops(engines, case):
    """ends a sequence with its stop token, and gives its blocks back"""
    model, prompts = small_model(case), texts(case, 5, 3)
    plain = [plain_tokens(model, prompt, 8) for prompt in prompts]
    stop = plain[0][3]
    expected = [plain_tokens(model, prompt, 8, stop) for prompt in prompts]
    engine = engines(model, EngineConfig(12, 4))
    rows = serve(engine, prompts, SamplingParams(8, stop))
    compare_tokens(case, rows, expected, f"tokens with stop = {stop}")
    wanted = ["stop" if row[-1] == stop else "length" for row in expected]
    reasons = [record(engine, each).reason for each in (0, 1)]
    case.that(reasons == wanted, f"The reasons should be {wanted}, yours are {reasons}.")
    same(case, [free_blocks(engine)], [12], "free blocks at the end")


@check(EngineCore, see="One step of the engine")
def ends(engines, case):
    """ends a sequence in the step that adds its last token, or its stop token"""
    model, prompts = small_model(case), texts(case, 4, 6)
    engine = engines(model, EngineConfig(20, 4))
    stop = plain_tokens(model, prompts[1], 1)[0]
    settings = SamplingParams(2), SamplingParams(9, stop)
    begun = [number(engine.add(*each), "add") for each in zip(prompts, settings, strict=True)]
    for count, wanted in (
        (1, "[None, 'stop'], running: 0; waiting: nobody"),
        (2, "['length', 'stop'], running: nobody; waiting: nobody"),
    ):
        engine.step()
        reasons = [record(engine, each).reason for each in begun]
        what = f"Of two with 2 tokens to add and with a stop token, after step {count}, the reasons"
        same_words(f"{reasons}, {told(queues(engine.scheduler))}", wanted, what)


@once
def sampled(model, prompt: list[int], count: int, seed: int) -> list[int]:
    """Draw tokens one by one, each after the whole text so far."""
    generator, text = torch.Generator().manual_seed(seed), list(prompt)
    for _ in range(count):
        p = torch.softmax(plain_logits(model, text), dim=0)
        text.append(int(torch.multinomial(p, 1, generator=generator)))
    return text[len(prompt) :]


@check(EngineCore, weight=2, see="Many samples of one prompt")
def samples(engines, case):
    """draws each sample as if it were alone, from blocks that they share"""
    expected: list[list[int]] = []
    while len({row[0] for row in expected}) < 2:  # some prompts have one likely next token
        model, (prompt,) = small_model(case), texts(case, 6)
        expected = [sampled(model, prompt, 5, seed=3 + k) for k in range(4)]
    engine = engines(model, EngineConfig(12, 4))
    first = number(engine.add(prompt, SamplingParams(5, None, 4, 1.0, seed=3)), "add")
    rows = list(run(engine, {first: []}).values())
    compare_tokens(case, rows, expected, "tokens of four samples")
    outputs = [record(engine, each).output for each in engine.requests[first]]
    compare_tokens(case, outputs, expected, "outputs of the samples in the request's order")
    short = number(engine.add(prompt, SamplingParams(1, None, 3)), "add")
    engine.step()
    reasons = [record(engine, each).reason for each in engine.requests[short]]
    case.that(
        reasons == ["length"] * 3,
        "After a step, three samples of one token each should all have ended by 'length'; the "
        f"reasons are {reasons}.",
    )
    last = number(engine.add(prompt[1:], SamplingParams(3, None, 2)), "add")
    engine.step()
    computed = [number(record(engine, each).num_computed, "computed") for each in (last, last + 1)]
    same(case, computed, [5, 5], "computed of two samples after the step that read the prompt")
    case.that(len(set(map(tuple, rows))) > 1, "Samples should differ, yours are all the same.")


@check(EngineCore, see="Limits and errors")
def refuses(engines, case):
    """raises NeverFits for what no amount of waiting makes fit, ValueError for no request at all"""
    model, (prompt,) = small_model(case), texts(case, 6)
    engine = engines(model, EngineConfig(3, 4, 2))
    rows = serve(engine, [prompt], SamplingParams(7))
    same(case, [len(rows[0])], [7], "tokens added to a prompt of 6 with 12 slots and count 7")
    large = engines(model, EngineConfig(99, 4))
    for one, sampling, why in (
        (engine, SamplingParams(8), "13 slots are needed"),
        (engine, SamplingParams(2, n=3), "three samples are more than may run"),
        (engine, SamplingParams(1, beams=2), "two beams need four blocks"),
        (large, SamplingParams(59), "65 tokens exceed the context"),
        (
            engines(model, EngineConfig(99, 4, 2)),
            SamplingParams(2, beams=3),
            "three beams are more than may run",
        ),
    ):
        case.raises(NeverFits, lambda e=one, s=sampling: e.add(prompt, s), why)
    case.raises(ValueError, lambda: large.add([], SamplingParams(2)), "the prompt is empty")
    drawn = SamplingParams(2, beams=2, temperature=1.0)
    case.raises(ValueError, lambda: large.validate(prompt, drawn), "beams come with a temperature")
    large.validate(prompt, SamplingParams(4, beams=5))
    fit = [engine.add(prompt, SamplingParams(2, n=2)), large.add(prompt, SamplingParams(4, n=5))]
    same(case, [number(each, "add") for each in fit], [1, 0], "numbers of two that just fit")
    engine.step()
    why = "number of one that fits when the others have ended"
    same(case, [number(engine.add(prompt, SamplingParams(7)), "add")], [3], why)


@check(EngineCore, see="Limits and errors")
def keeps_nothing(engines, case):
    """keeps nothing of a request that it refuses, and serves the next one"""
    model, prompts = small_model(case), texts(case, 5, 3)
    expected = [plain_tokens(model, prompts[0], 4)]
    engine = engines(model, EngineConfig(12, 4))
    for sampling, why in (
        (SamplingParams(4, seed=2**64), "the seed is 2^64"),
        (SamplingParams(4, n=2, seed=2**64 - 1), "the seed of the second sample is 2^64"),
        (SamplingParams(4, temperature=math.nan), "the temperature is NaN"),
        (SamplingParams(4, temperature=1.0, top_p=2.0), "top_p is 2"),
    ):
        case.raises(ValueError, lambda s=sampling: engine.add(prompts[1], s), why)
        what = f"running, -1, waiting, after a request was refused: {why}"
        same(case, queues(engine.scheduler), [-1], what)
    rows = serve(engine, prompts[:1], SamplingParams(4))
    compare_tokens(case, rows, expected, "tokens of the next request, which is right")


def same_words(given: str, wanted: str, what: str) -> None:
    """Compare what is told in words."""
    if given != wanted:
        text = f"{what} should be {wanted}, yours are {given}."
        raise Failure(text, what=what, observed=as_bytes(given))


def as_bytes(text: str) -> Tensor:
    """Make numbers of a text, by which a known mistake is recognised."""
    return torch.tensor([*text.encode()])


@together
def requests_of(engine) -> str:
    """Tell which requests an engine knows."""
    found = [f"{n} with {len(samples)} samples" for n, samples in engine.requests.items()]
    return ", ".join(found) or "none at all"


@check(EngineCore, see="A client that leaves")
def aborts(engines, case):
    """ends what has not ended of a request, and does nothing to one that has"""
    model, prompts = small_model(case), texts(case, 3, 4, 5)
    engine = engines(model, EngineConfig(20, 4))
    settings = SamplingParams(2), SamplingParams(9, n=2), SamplingParams(4)
    numbers_of = [engine.add(*request) for request in zip(prompts, settings, strict=True)]
    for _ in range(2):
        engine.step()
    known = requests_of(engine)
    for each in (*numbers_of[:2], numbers_of[1], 999):
        engine.abort(each)
    what = "The requests that an engine keeps for `collect`, after `abort` of two of them,"
    same_words(requests_of(engine), known, what)
    ended = [each for first in numbers_of[:2] for each in engine.requests[first]]
    reasons = [record(engine, each).reason for each in ended]
    what = "The reasons of a request that had ended before abort, and of two samples of another,"
    same_words(str(reasons), "['length', 'abort', 'abort']", what)
    rows = run(engine, {numbers_of[2]: []})
    expected = plain_tokens(model, prompts[2], 4)[2:]
    same(case, rows.pop(numbers_of[2]), expected, "later tokens of the one that stayed")
    same(case, flat(list(rows.values())), [], "later tokens of those that left")
    same(case, [free_blocks(engine)], [20], "free blocks at the end")
    pair = engine.add(prompts[0], SamplingParams(9, n=2))
    engine.step()
    engine.end(pair, "stop")
    engine.abort(pair)
    reasons = [record(engine, each).reason for each in engine.requests[pair]]
    what = "The reasons of two samples, one of which had ended,"
    same_words(str(reasons), "['stop', 'abort']", what)
    engine.abort(engine.add(prompts[0], SamplingParams(9)))
    what = "running, -1, waiting when one has left that waited"
    same(case, queues(engine.scheduler), [-1], what)


@check(EngineCore, weight=2, see="An error inside the model")
def errors_leave_no_trace(engines, case):
    """is as it was when the model has raised"""
    model, prompts = small_model(case, calls=3), texts(case, 4, 7)
    engine = engines(model, EngineConfig(20, 2))
    begun = [engine.add(prompt, SamplingParams(9)) for prompt in prompts]
    for _ in range(3):
        engine.step()
    for _ in range(2):
        case.raises(RuntimeError, engine.step, "the model fails")
        found = flat(
            [[*tables(engine, each)[0][:1], len(record(engine, each).tokens)] for each in begun]
        )
        found += [free_blocks(engine), *queues(engine.scheduler)]
        what = "table's length and number of tokens of each of two, after the error; free blocks; "
        same(case, found, [6, 7, 9, 10, 12, 0, 1, -1], what + "running, -1, waiting")
    for each in begun:
        engine.abort(each)
    same(case, [free_blocks(engine)], [20], "free blocks when both are aborted")


@check(EngineCore, see="Limits and errors")
def refuses_settings(engines, case):
    """raises ValueError for requests that make no sense, and stays usable"""
    model, (prompt,) = small_model(case), texts(case, 3)
    engine = engines(model, EngineConfig(8, 4))
    for text, sampling, why in (
        ([], SamplingParams(4), "the prompt is empty"),
        (prompt, SamplingParams(0), "nothing is to be added"),
        (prompt, SamplingParams(4, None, 0), "samples is 0"),
        (prompt, SamplingParams(4, beams=0), "beams is 0"),
        (prompt, SamplingParams(4, temperature=1.0, top_p=2.0), "top_p is 2"),
        (prompt, SamplingParams(4, top_p=2.0), "top_p is 2 and the temperature 0"),
        (prompt, SamplingParams(4, temperature=1.0, top_k=0), "top_k is 0"),
        (prompt, SamplingParams(4, temperature=-1.0), "the temperature is negative"),
    ):
        case.raises(ValueError, lambda t=text, s=sampling: engine.add(t, s), why)
    for sampling, why in (  # `add` refuses beams in any case
        (SamplingParams(4, beams=2, temperature=1.0), "beams have a temperature"),
        (SamplingParams(4, n=2, beams=2), "there are samples and beams"),
    ):
        case.raises(ValueError, lambda s=sampling: engine.validate(prompt, s), why)
    rows = serve(engine, [prompt], SamplingParams(1))
    same(case, [len(rows[0])], [1], "tokens added when one is wanted")
    same(case, queues(engine.scheduler), [-1], "running, -1, waiting after the errors")
    rows = serve(engine, [prompt], SamplingParams(4))
    compare_tokens(case, rows, [plain_tokens(model, prompt, 4)], "tokens afterwards")
    (fits,) = texts(case, 60)
    rows = serve(engines(model, EngineConfig(16, 4)), [fits], SamplingParams(4))
    same(case, [len(rows[0])], [4], "tokens added when prompt and count fill the context")


@check(EngineCore, weight=2, see="An error inside the model")
def no_numbers(engines, case):
    """is as it was when the model gives no numbers for one of several sequences"""
    model, prompts = small_model(case), texts(case, 4, 7)
    expected = plain_tokens(model, prompts[0], 5)
    model[1][9] = math.nan  # nobody can go on beyond position 9
    engine = engines(model, EngineConfig(20, 2))
    first, second = (engine.add(prompt, SamplingParams(5)) for prompt in prompts)
    rows = {first: [], second: []}
    for _ in range(3):
        for each, token in pairs(engine.step(), "step"):
            rows[each].append(token)
    for _ in range(2):
        case.raises(FloatingPointError, engine.step, "the logits of one sequence are NaN")
        found = [len(record(engine, each).tokens) for each in (first, second)]
        found += [tables(engine, each)[0][0] for each in (first, second)]
        found += [number(record(engine, each).num_computed, "computed") for each in (first, second)]
        found += [free_blocks(engine), *queues(engine.scheduler)]
        what = "tokens of two, lengths of their tables, computed, after the error; free blocks; "
        same(case, found, [7, 10, 6, 9, 6, 9, 12, 0, 1, -1], what + "running, -1, waiting")
    engine.abort(second)
    rows = run(engine, rows)
    same(case, rows[first], expected, "tokens of the other one")
    same(case, [free_blocks(engine)], [20], "free blocks at the end")


@together
def is_interrupted(call, *args) -> bool:
    """Call something of an engine whose model is interrupted; tell whether that passes."""
    try:
        call(*args)
    except KeyboardInterrupt:
        return True
    return False


def interrupted_model(case: Case, calls: int) -> SmallServed:
    """Draw a model that somebody interrupts after some calls."""
    model = small_model(case, calls=calls)
    return SmallServed((*model[:-1], [calls, "interrupt"]))


@check(EngineCore, see="An error inside the model")
def interrupts(engines, case):
    """is as it was when somebody interrupts the model, and lets the KeyboardInterrupt pass"""
    model, prompts = interrupted_model(case, 3), texts(case, 4, 7)
    engine = engines(model, EngineConfig(20, 2))
    begun = [engine.add(prompt, SamplingParams(9)) for prompt in prompts]
    for _ in range(3):
        engine.step()
    passes = is_interrupted(engine.step)
    case.that(passes, "step should let a KeyboardInterrupt pass, yours returns.")
    found = [tables(engine, each)[0][0] for each in begun]
    found += [len(record(engine, each).tokens) for each in begun]
    found += [*queues(engine.scheduler), free_blocks(engine)]
    what = "lengths of two tables and numbers of tokens, after a KeyboardInterrupt; running, -1, "
    same(case, found, [6, 9, 7, 10, 0, 1, -1, 12], what + "waiting; free blocks")


@together
def fails_in(engine, part: str) -> bool:
    """Take a step in which a part of it fails; tell whether the error passes."""
    target, calls = getattr(engine, "_target", engine), []
    owner = target if part == "draw" else target.runner
    usual = getattr(owner, part)

    def fail(*arguments):
        calls.append(part)
        if part == "draw" and len(calls) < 3:
            return usual(*arguments)
        raise ArithmeticError(part)

    setattr(owner, part, fail)
    try:
        target.step()
    except ArithmeticError:
        return True
    finally:
        delattr(owner, part)
    return False


@check(EngineCore, weight=2, see="An error inside the model")
def whatever_fails(engines, case):
    """is as it was, whatever fails in a step: a copy, the model, or what is drawn last"""
    model, prompts = small_model(case), texts(case, 5, 7)
    expected = [sampled(model, prompts[0], 4, seed=3 + k) for k in range(2)]
    expected.append(plain_tokens(model, prompts[1], 4))
    for part, when in (
        ("copy", "a copy fails"),
        ("forward", "the model fails"),
        ("draw", "no token can be drawn for the last of three"),
    ):
        engine = engines(model, EngineConfig(20, 4))
        pair = number(engine.add(prompts[0], SamplingParams(4, None, 2, 1.0, seed=3)), "add")
        other = number(engine.add(prompts[1], SamplingParams(4)), "add")
        rows: dict[int, list[int]] = {}
        for each, token in pairs(engine.step(), "step"):
            rows.setdefault(each, []).append(token)
        samples = [pair, other + 1, other]
        before = told_states(engine, samples)
        case.that(fails_in(engine, part), f"step should raise what is raised when {when}.")
        after = told_states(engine, samples)
        for was, now in zip(before, after, strict=True):
            if was != now:
                text = f"When {when}, the engine should be as it was: {was}; yours has {now}."
                raise Failure(text, what=when, observed=as_bytes("; ".join(after)))
        if part != "copy":  # another copy of the same blocks would be needed first
            for each, more in run(engine, {pair: [], other: []}).items():
                rows.setdefault(each, []).extend(more)
            found = [rows.get(each, []) for each in samples]
            compare_tokens(case, found, expected, f"tokens of three when {when} in the second step")


@together
def told_states(engine, sequences: list[int]) -> list[str]:
    """Tell what an engine has of some sequences, and who runs and waits."""
    found = []
    for name in sequences:
        each = getattr(engine, "_target", engine).sequences[name]
        table = getattr(each.block_table, "length", "no")
        found.append(
            f"{len(each.tokens)} tokens of {name}, {each.num_computed} computed, {table} slots"
        )
    return [*found, told(queues(engine.scheduler))]


def beams_by_hand(rows: list, width: int) -> list[tuple[int, int, float]]:
    """Choose as `choose_beams` does, from (log p, log p of the next, ended), by sorting."""
    candidates = []
    for place, (log_p, following, ended) in enumerate(rows):
        for token, more in enumerate([0.0] if ended else following):
            candidates.append((log_p + more, place, -1 if ended else token))
    best = sorted(candidates, reverse=True)[:width]
    return [(place, token, total) for total, place, token in best if total > -math.inf]


def beam_rows(case: Case, R: int, V: int, ended: list[bool]) -> tuple[list, tuple]:
    """Draw beams, as rows for `beams_by_hand` and as arguments for `choose_beams`."""
    log_p, following = -3 * case.rand(R), torch.log_softmax(2 * case.randn(R, V), dim=1)
    return rows_of(log_p, following, ended), (log_p, following, torch.tensor(ended))


def rows_of(log_p: Tensor, following: Tensor, ended: list[bool]) -> list:
    """Arrange beams for `beams_by_hand`."""
    return list(zip(log_p.tolist(), following.tolist(), ended, strict=True))


def compare_choice(case: Case, choose, rows: list, inputs: tuple, width: int) -> None:
    """Compare the beams that are chosen: the most probable first."""
    chosen = choose(*inputs, width)
    if not isinstance(chosen, (list, tuple)) or any(len(each) != 3 for each in chosen):
        raise Failure(f"should return a list of (beam, token, log p), yours is {chosen!r:.60}.")
    given = [(number(row, "beam"), number(token, "token"), float(p)) for row, token, p in chosen]
    found, wanted = (
        torch.tensor(each, dtype=torch.float64) for each in (given, beams_by_hand(rows, width))
    )
    case.equal(found, wanted, "(beam, token, log p), the most probable first,")


@check(choose_beams, weight=2, see="Which beams go on")
def chooses(choose, case):
    """keeps the most probable continuations of all beams together"""
    for width in (6, 4, 1):
        compare_choice(case, choose, *beam_rows(case, 4, 7, [False] * 4), width)


@check(choose_beams, weight=2, see="Which beams go on")
def keeps_ended(choose, case):
    """lets a beam that has ended compete as it is"""
    ended = [False, True, True, False, True, False]
    for width in (7, 5, 3):
        compare_choice(case, choose, *beam_rows(case, 6, 5, ended), width)


@check(choose_beams, see="Which beams go on")
def drops_ended(choose, case):
    """drops a beam that has ended where others are ahead of it"""
    log_p = torch.tensor([-0.1, -4.0, -0.2]).double()
    following, ended = torch.log_softmax(case.randn(3, 4), dim=1), [False, True, False]
    inputs = log_p, following, torch.tensor(ended)
    compare_choice(case, choose, rows_of(log_p, following, ended), inputs, 3)


@check(choose_beams, see="Which beams go on")
def few_candidates(choose, case):
    """gives fewer beams when there are fewer candidates, and leaves out the impossible"""
    _, inputs = beam_rows(case, 1, 6, [False])
    inputs[1][0, [1, 4]] = -math.inf
    compare_choice(case, choose, rows_of(*inputs[:2], [False]), inputs, 9)
    compare_choice(case, choose, *beam_rows(case, 2, 3, [True, False]), 9)
    rows, inputs = beam_rows(case, 3, 4, [False, True, False])
    inputs[1][1] = math.nan  # it does not count
    compare_choice(case, choose, rows, inputs, 4)


@once
def search_by_hand(
    model: SmallServed, prompt: list[int], sampling: SamplingParams
) -> list[tuple[list[int], float]]:
    """Search with beams without any cache: their tokens and log p, best first."""
    beams = [([], 0.0)]
    for _ in range(sampling.max_tokens):
        ended = [bool(tokens) and tokens[-1] == sampling.stop for tokens, _ in beams]
        if all(ended):
            break
        rows = []
        for (tokens, log_p), has_ended in zip(beams, ended, strict=True):
            following = torch.log_softmax(plain_logits(model, prompt + tokens), dim=0).tolist()
            rows.append((log_p, following, has_ended))
        chosen = beams_by_hand(rows, sampling.beams)
        beams = [
            (beams[row][0] + ([] if token < 0 else [token]), total) for row, token, total in chosen
        ]
    return sorted(beams, key=lambda beam: beam[1] / len(beam[0]) ** sampling.alpha, reverse=True)


def search(case: Case, engine, prompt: list[int], sampling: SamplingParams) -> tuple[list, list]:
    """Search with an engine: the tokens and log p of the beams, best first."""
    tokens, _, log_p = case.unpack(searched(engine, prompt, sampling), "tokens", "reasons", "log_p")
    return [numbers(row, "tokens") for row in tokens], log_p


@together
def searched(engine, prompt: list[int], sampling: SamplingParams):
    """Search with an engine, and collect what it has found."""
    request = number(engine.add(prompt, sampling), "add")
    for _ in range(STEPS):
        if not engine.unfinished([request]):
            (output,) = engine.collect([request])
            return output
        engine.step()
    raise Failure(f"A search should end within {STEPS} steps, yours has not.")


@check(BeamEngine, weight=3, see="Branches share blocks")
def finds(engines, case):
    """finds the beams that a search without a cache finds"""
    for length in (5, 2):
        for beams, alpha in ((3, 1.0), (4, 0.0)):
            sampling = SamplingParams(7, 2, beams=beams, alpha=alpha)
            expected = found = None
            while expected == found:  # for some prompts another α finds the same
                model, (prompt,) = small_model(case, V=7, calls=900), texts(case, length, V=7)
                expected, found = (
                    search_by_hand(model, prompt, sampling._replace(alpha=each))
                    for each in (alpha, 0.5)
                )
            tokens, log_p = search(case, engines(model, EngineConfig(40, 2)), prompt, sampling)
            compare_tokens(case, tokens, [row for row, _ in expected], "tokens of the beams")
            wanted = torch.tensor([value for _, value in expected], dtype=torch.float64)
            case.equal(torch.tensor(log_p, dtype=torch.float64), wanted, "log p of the beams")


@check(BeamEngine, see="Branches share blocks")
def gives_back(engines, case):
    """gives all blocks back: of beams that are dropped, that end, and that are aborted"""
    model, (prompt,) = small_model(case, V=7), texts(case, 5, V=7)
    engine = engines(model, EngineConfig(40, 2))
    search(case, engine, prompt, SamplingParams(7, 2, beams=4))
    free, expected = [free_blocks(engine)], [40]
    request = engine.add(prompt, SamplingParams(9, beams=4))
    for count in range(1, 6):
        engine.step()
        free.append(free_blocks(engine))
        beams = search_by_hand(model, prompt, SamplingParams(count, beams=4))
        kept = [prompt + tokens[:-1] for tokens, _ in beams]
        expected.append(
            40 - len({tuple(row[: n + 2]) for row in kept for n in range(0, len(row), 2)})
        )
    engine.abort(request)
    what = "free blocks after a search, after each step of another one, and when it is aborted"
    same(case, [*free, free_blocks(engine)], [*expected, 40], what)


@check(BeamEngine, see="Branches share blocks")
def nothing_left(engines, case):
    """drops every beam that is not chosen, also one that has ended"""
    sampling, dropped = SamplingParams(7, 2, beams=4), set()
    while not dropped:  # a beam that has ended after some step, and is not among those of the next
        model, (prompt,) = small_model(case, V=7, calls=900), texts(case, 5, V=7)
        steps_of = [sampling._replace(max_tokens=count) for count in range(1, 8)]
        found = [{tuple(row) for row, _ in search_by_hand(model, prompt, s)} for s in steps_of]
        ended = [{row for row in rows if row[-1] == 2} for rows in found]
        dropped = set().union(*(a - b for a, b in itertools.pairwise(ended)))
    engine = engines(model, EngineConfig(40, 2))
    tokens, _ = search(case, engine, prompt, sampling)
    expected = [row for row, _ in search_by_hand(model, prompt, sampling)]
    compare_tokens(case, tokens, expected, "tokens of the beams")
    known = engine.sequences.get
    left = [number for number in range(40) if known(number) is not None]
    same(case, left, [], "beams left in the engine when the search is collected")
    waits = engine.next_log_p.get
    left = [number for number in range(40) if waits(number) is not None]
    same(case, left, [], "beams left in `next_log_p` when the search is collected")


def added(case: Case, outputs: object, samples: int = 1) -> tuple[list, list]:
    """Take tokens and reasons out of what `generate` returns, one row for each sample."""
    if not isinstance(outputs, (list, tuple)):
        raise Failure(f"generate should return a list, yours returns {describe(outputs)}.")
    rows, reasons = [], []
    for output in outputs:
        tokens, why, _ = case.unpack(output, "tokens", "reasons", "log_p")
        if len(tokens) != samples:
            raise Failure(f"There should be {samples} samples, yours are {len(tokens)}.")
        rows += [numbers(row, "tokens") for row in tokens]
        reasons += why
    return rows, reasons


@check(Engine, weight=2, see="The engine")
def generates(engines, case):
    """continues all prompts to their ends, and says why each has ended"""
    model, prompts = small_model(case), texts(case, 5, 1, 8, 11, 4)
    expected = [plain_tokens(model, prompt, 6) for prompt in prompts]
    engine = engines(model, EngineConfig(80, 4))
    rows, reasons = added(case, engine.generate(prompts, SamplingParams(6)))
    compare_tokens(case, rows, expected, "tokens")
    case.that(reasons == ["length"] * 5, f"The reasons should be 'length', yours are {reasons}.")
    seen = [len(engine.history), len(engine.requests)]
    same(case, seen, [6, 0], "steps for 6 tokens of each prompt, and requests left in the engine")


@check(Engine, see="The engine")
def beside_another(engines, case):
    """leaves the requests of others alone, and makes no step for them"""
    model, prompts = small_model(case), texts(case, 5, 3, 4)
    plain = plain_tokens(model, prompts[0], 9)
    sampling = SamplingParams(9, next(token for token in plain if token != plain[0]))
    engine = engines(model, EngineConfig(40, 4))
    other = engine.add(prompts[1], SamplingParams(40))
    rows, reasons = added(
        case, engine.generate([prompts[0], prompts[2]], [sampling, SamplingParams(2)])
    )
    stop = plain.index(sampling.stop) + 1
    expected = [plain[:stop], plain_tokens(model, prompts[2], 2)]
    compare_tokens(case, rows, expected, "tokens beside another request")
    wanted = ["stop", "length"]
    case.that(reasons == wanted, f"The reasons should be {wanted}, yours are {reasons}.")
    seen = [len(engine.history), len(engine.requests), len(engine.unfinished([other]))]
    what = "steps that were made; requests in the engine, unfinished ones, which another has added"
    same(case, seen, [max(stop, 2), 1, 1], what)


@check(Engine, see="Streaming tokens")
def interrupts(engines, case):
    """takes its requests out of the engine when somebody interrupts the model"""
    prompts = texts(case, 6, 5)
    for call in ("generate", "stream"):
        engine = engines(interrupted_model(case, 3), EngineConfig(20, 4))
        passes = is_interrupted(getattr(engine, call), prompts, SamplingParams(9))
        case.that(passes, f"{call} should let a KeyboardInterrupt pass, yours returns.")
        found = [free_blocks(engine), *queues(engine.scheduler), len(engine.requests)]
        same(case, found, [20, -1, 0], f"free blocks, running, -1, waiting, requests: {call}")


@check(Engine, weight=2, see="When memory runs out in the middle of a batch")
def little_memory(engines, case):
    """adds the same tokens when there is not enough memory for all"""
    model, prompts = small_model(case), texts(case, 7, 9, 2, 6)
    expected = [plain_tokens(model, prompt, 7) for prompt in prompts]
    engine = engines(model, EngineConfig(8, 2))
    rows, _ = added(case, engine.generate(prompts, SamplingParams(7)))
    compare_tokens(case, rows, expected, "tokens with 8 blocks of 2")
    same(case, [free_blocks(engine)], [8], "free blocks at the end")


@check(Engine, weight=2, see="Streaming tokens")
def streams(engines, case):
    """hands out every token in the order in which they are made"""
    model, prompts = small_model(case), texts(case, 6, 2, 5)
    expected = [plain_tokens(model, prompt, 4) for prompt in prompts]
    engine = engines(model, EngineConfig(20, 4))
    engine.add([1, 2, 3], SamplingParams(3))
    events = pairs(engine.stream(prompts, SamplingParams(4)), "the stream", 3)
    wanted = [(place, 0, expected[place][n]) for n in range(4) for place in range(3)]
    same(case, events, wanted, "(prompt, sample, token) of the stream")
    found = [len(engine.history), len(engine.requests)]
    same(case, found, [4, 1], "steps that were made, and requests left, one of which is another's")


@check(Engine, weight=2, see="Two streams from one engine")
def takes(engines, case):
    """keeps for each request what is added in steps that were made for another"""
    model, prompts = small_model(case), texts(case, 3, 6)
    first, second = (plain_tokens(model, prompt, 5) for prompt in prompts)
    engine = engines(model, EngineConfig(20, 4))
    begun = engine.add(prompts[0], SamplingParams(5))
    engine.step()
    seen = pairs(engine.take(begun), "take")
    events = pairs(engine.stream(prompts[1:], SamplingParams(5)), "the stream", 3)
    seen += [*pairs(engine.take(begun), "take"), *pairs(engine.take(begun), "take")]
    same(case, [token for _, _, token in events], second, "tokens of the stream")
    same(case, seen, [(0, token) for token in first], "(sample, token) of the other request")


@check(Engine, weight=2, see="Two streams from one engine")
def take_turns(engines, case):
    """gives each of two streams its own tokens, and makes no step that nobody asked for"""
    model, prompts = small_model(case), texts(case, 3, 6)
    expected = [plain_tokens(model, prompt, 5) for prompt in prompts]
    engine, rows = engines(model, EngineConfig(20, 4)), ([], [])
    streams = [steps(engine.stream, [prompt], SamplingParams(5)) for prompt in prompts]
    for turn in range(5):
        for row, stream in zip(rows, streams, strict=True):
            row += pairs(list(itertools.islice(stream, 1)), "the stream", 3)
        if turn == 0:
            left = len(queues(engine.scheduler)) - 1
            message = f"After a token of each, two requests should run or wait, yours are {left}."
            case.that(left == 2, message)
    tokens = [[token for _, _, token in row] for row in rows]
    compare_tokens(case, tokens, expected, "tokens of two streams that are asked in turns")
    kept = steps(engine.stream, prompts[:1], SamplingParams(5))
    seen = [next(kept, (0, 0, -1))]
    for _ in range(4):  # somebody else makes all its other steps
        engine.step()
    seen = pairs([*seen, *itertools.islice(kept, 9)], "the stream", 3)
    what = "tokens of a stream whose last steps others have made"
    compare_tokens(case, [[token for _, _, token in seen]], expected[:1], what)


@check(Engine, see="Two streams from one engine")
def takes_of_samples(engines, case):
    """hands out the new tokens of each of several samples, with its place in the request"""
    model, (prompt,) = small_model(case), texts(case, 5)
    plain = plain_tokens(model, prompt, 3)
    engine = engines(model, EngineConfig(20, 4))
    request, seen = engine.add(prompt, SamplingParams(3, n=3)), []
    for count in (2, 1):
        for _ in range(count):
            engine.step()
        seen += pairs(engine.take(request), "take")
    wanted = [(k, token) for part in (plain[:2], plain[2:]) for k in range(3) for token in part]
    same(case, seen, wanted, "(sample, token) of three samples after two steps and after three")


@check(Engine, weight=2, see="Limits and errors")
def refused_as_a_whole(engines, case):
    """begins none of the prompts if it must refuse one, and stays usable"""
    model, prompts = small_model(case), texts(case, 3, 15)
    engine = engines(model, EngineConfig(4, 4))
    case.raises(
        NeverFits, lambda: engine.generate(prompts, SamplingParams(4)), "the second never fits"
    )
    case.raises(
        ValueError, lambda: engine.generate([[1], []], SamplingParams(4)), "a prompt is empty"
    )
    same(case, queues(engine.scheduler), [-1], "running, -1, waiting after two errors")
    each = [SamplingParams(4), SamplingParams(0)]
    case.raises(ValueError, lambda: engine.stream([[1], [2]], each), "one of two wants no token")
    case.raises(
        NeverFits, lambda: engine.stream(prompts, SamplingParams(4)), "the second never fits"
    )
    own = pairs(
        engine.stream([prompts[0]] * 2, [SamplingParams(1), SamplingParams(2)]), "the stream", 3
    )
    same(case, [place for place, _, _ in own], [0, 1, 1], "prompts of a stream of 1 and 2 tokens")
    same(case, queues(engine.scheduler), [-1], "running, -1, waiting after the errors")
    rows, _ = added(case, engine.generate(prompts[:1], SamplingParams(4)))
    compare_tokens(case, rows, [plain_tokens(model, prompts[0], 4)], "tokens afterwards")


@check(Engine, see="Streaming tokens")
def cleans_up(engines, case):
    """gives all blocks back when the model fails"""
    for call in ("generate", "stream"):
        model, prompts = small_model(case, calls=3), texts(case, 6, 5)
        engine = engines(model, EngineConfig(20, 4))
        case.raises(
            RuntimeError,
            lambda e=engine, c=call, p=prompts: getattr(e, c)(p, SamplingParams(9)),
            "the model fails",
        )
        found = [free_blocks(engine), *queues(engine.scheduler), len(engine.requests)]
        same(case, found, [20, -1, 0], f"free blocks, running, -1, waiting, requests: {call}")


@check(Engine, see="Streaming tokens")
def left_alone(engines, case):
    """aborts what nobody listens to any more, and goes on with the rest"""
    model, prompts = small_model(case), texts(case, 6, 3)
    engine = engines(model, EngineConfig(20, 4))
    kept, left = (steps(engine.stream, [prompt], SamplingParams(5)) for prompt in prompts)
    seen = [next(kept, (0, 0, -1)), next(left, (0, 0, -1)), next(kept, (0, 0, -1))]
    left.close()
    seen = pairs([seen[0], seen[2], *itertools.islice(kept, 9)], "the stream", 3)
    plain = plain_tokens(model, prompts[0], 5)
    compare_tokens(case, [[token for _, _, token in seen]], [plain], "tokens of the other one")
    found = [free_blocks(engine), *queues(engine.scheduler), len(engine.requests)]
    same(case, found, [20, -1, 0], "free blocks, running, -1, waiting, requests at the end")


class PlainSpace:
    """A swap space that notes what every sequence holds, and counts what is different."""

    def __init__(self, blocks: int, first: int):
        self.room, self.turn = blocks, 0
        self.held: dict[int, list[str]] = {}
        self.done: dict[str, object] = {}

    def used(self, numbers: list[int]) -> set[str]:
        return {each for number in numbers for each in self.held[number]}

    def swap_out(self, tables: dict[int, list[int]]) -> None:
        if tables.keys() & self.held.keys():
            raise Nonsense
        self.done = {}
        self.turn += 1
        different = sorted({block for table in tables.values() for block in table})
        if len(different) > self.room - len(self.used(list(self.held))):
            raise Failure("the host is full", kinds=("OutOfBlocks",))
        for each, table in tables.items():
            self.held[each] = [f"{block} of call {self.turn}" for block in table]
        self.done = told_of_out(different)

    def swap_in(self, numbers: list[int], blocks: list[int]) -> None:
        if not set(numbers) <= self.held.keys():
            raise Nonsense
        self.done = {}
        count = len(self.used(numbers))
        if len(blocks) != count:
            raise ValueError("as many as are here")
        gets = {each: self.held.pop(each) for each in sorted(numbers)}
        self.done = told_of_back(count, 0, gets)

    def drop(self, number: int) -> None:
        if number not in self.held:
            raise Nonsense
        self.done = {}
        del self.held[number]

    def fork(self, number: int, child: int) -> None:
        if number not in self.held or child in self.held:
            raise Nonsense
        self.done = {}
        self.held[child] = list(self.held[number])

    def look(self) -> dict:
        free = self.room - len(self.used(list(self.held)))
        return scene_of_space(free, self.held, self.held) | self.done


@once
def spaces_program(blocks: int, count: int, seed: int) -> Program:
    """Draw calls of a swap space that make sense: groups go out, come back, end and fork."""
    draw, oracle = random.Random(seed), PlainSpace(blocks, 50)
    calls: list[tuple] = []
    while len(calls) < count:
        inside, new = sorted(oracle.held), 10 * len(calls)
        kind = (
            draw.choice(["swap_out", "swap_out", "swap_in", "swap_in", "drop", "fork"])
            if inside
            else "swap_out"
        )
        some = draw.sample(inside, draw.randint(1, len(inside))) if inside else []
        if kind == "swap_out":
            shared = draw.sample(range(20), draw.randint(0, 2))
            own = [
                draw.sample(range(20, 40), draw.randint(0, 2)) for _ in range(draw.randint(1, 3))
            ]
            call: tuple = ("swap_out", {new + k: shared + each for k, each in enumerate(own)})
        elif kind == "swap_in":
            wrong = draw.choice([0, 0, 0, 1, -1])
            needed = max(0, len(oracle.used(some)) + wrong)
            call = ("swap_in", some, draw.sample(range(50), needed))
        else:
            call = ("drop", some[0]) if kind == "drop" else ("fork", some[0], new)
        calls.append(call)
        with contextlib.suppress(ValueError, Failure):
            getattr(oracle, call[0])(*call[1:])
    return (blocks, 50), calls


def play_either(spaces, programs: list[Program]) -> list[list[Step]]:
    """Play programs with a student's swap space, or with a plain one."""
    if spaces is not PlainSpace:
        return play_spaces(spaces, programs)
    return [played(PlainSpace(*settings), calls) for settings, calls in programs]


@check(SwapSpace, weight=2, see="A second cache on the host")
def programs(spaces, case):
    """keeps what each sequence has, in short programs of calls"""
    programs = [spaces_program(7, 16, seed) for seed in (1, 2, 3)]
    follow(spaces, PlainSpace, play_either, Swapping, programs)


@check(SwapSpace, weight=2, see="A second cache on the host")
def stay_shared(spaces, case):
    """copies a block that several sequences use only once, out and back"""
    space = spaces(9, 100)
    out = pairs(space.swap_out({4: [7, 8, 9], 2: [7, 8, 3], 5: [1, 12]}), "swap_out")
    sources = sorted(source for source, _ in out)
    same(case, sources, [1, 3, 7, 8, 9, 12], "blocks that go out, sorted")
    case.that(
        len({target for _, target in out}) == 6 and all(100 <= to < 109 for _, to in out),
        f"out should lead to 6 different blocks from 100 to 108, yours is {out!r:.80}.",
    )
    result = case.unpack(space.swap_in([2, 4], [20, 21, 22, 23]), "tables", "copies")
    same(case, [len(pairs(result[1], "copies"))], [4], "copies of what comes back")
    places, content = {to: source for source, to in out}, {}
    for source, target in pairs(result[1], "copies"):
        content[target] = places.get(source, -1)
    found = [content.get(block, -1) for each in (4, 2) for block in result[0][each]]
    same(case, found, [7, 8, 9, 7, 8, 3], "what the blocks of two sequences held that are back")


@check(SwapSpace, see="A second cache on the host")
def all_or_nothing(spaces, case):
    """takes all blocks of a group or, when there are too few, none"""
    space = spaces(6, 10)
    space.swap_out({0: [3, 4]})
    case.raises(OutOfBlocks, lambda: space.swap_out({1: [5, 6], 2: [6, 7, 8, 9]}), "5 are too many")
    seen = [number(space.available, "available")]
    for do in (
        lambda: space.swap_out({3: [5, 6]}),
        lambda: space.drop(3),
        lambda: space.swap_in([0], [1, 2]),
        lambda: space.swap_out({4: [1, 2], 5: [2]}),
        lambda: space.drop(4),
        lambda: space.drop(5),
    ):
        do()
        seen.append(number(space.available, "available"))
    what = "free blocks after an error, and as sequences go out, are dropped and come back"
    same(case, seen, [4, 2, 4, 6, 4, 5, 6], what)


@check(SwapSpace, see="A second cache on the host")
def refuses(spaces, case):
    """raises ValueError for the wrong number of blocks, and changes nothing then"""
    space = spaces(6, 10)
    space.swap_out({0: [3, 4], 1: [4, 5]})
    for blocks in ([1, 2], [1, 2, 3, 4]):
        case.raises(
            ValueError, lambda b=blocks: space.swap_in([0, 1], b), f"3 are here, not {blocks}"
        )
    seen = [number(space.available, "available"), len(space.blocks([0, 1]))]
    same(case, seen, [3, 3], "free blocks, and blocks of the two, after two errors")


@check(SwapSpace, see="A second cache on the host")
def just_fits(spaces, case):
    """has room for a group that fits since it shares blocks, and has it again when that is back"""
    space, seen = spaces(3, 10), []
    for _ in range(2):
        space.swap_out({6: [7, 3], 7: [7, 5]})
        seen.append(number(space.available, "available"))
        space.swap_in([6, 7], [1, 2, 4])
        seen.append(number(space.available, "available"))
    what = "free blocks when a group is out, with three blocks for three different ones, and back"
    same(case, seen, [0, 3, 0, 3], what)


@check(SwappingScheduler, weight=2, see="Swap instead of computing again")
def not_again(schedulers, case):
    """computes nothing again of what was swapped out"""
    driver = Driver(schedulers, 10, 2, 64, 0, None, 12)
    driver.add(0, 8)
    driver.add(1, 11)
    driver.step()
    before = tables(driver.scheduler, 1)[0][1:]
    driver.step()
    out = driver.copies
    case.that(
        len(out) == 6 and all(source < 10 <= target < 22 for source, target in out),
        f"Six blocks should be copied to numbers 10 to 21, yours are {out!r:.80}.",
    )
    enter = driver.scheduler.enter
    case.raises(OutOfBlocks, lambda: enter([1]), "six blocks are to come back, and five are free")
    driver.remove(0)
    driver.step()
    driver.compare(case, [(0, 0, 0, 8), (0, 1, 0, 11), (1, 0, 8, 9), (2, 1, 11, 12)])
    held, content = {to: source for source, to in out}, {}
    for source, target in driver.copies:
        content[target] = held.get(source, -1)
    found = [content.get(block, -1) for block in tables(driver.scheduler, 1)[0][1:]]
    same(case, found, before, "what the blocks of its table held before (-1: nothing came there)")
    same(case, [number(driver.scheduler.space.available, "available")], [12], "free host blocks")


@check(SwappingScheduler, see="Swap instead of computing again")
def host_is_full(schedulers, case):
    """computes again what the host has no room for"""
    driver = Driver(schedulers, 5, 2, 64, 0, None, 2)
    driver.add(0, 4)
    driver.add(1, 5)
    driver.step()
    driver.step()
    driver.remove(0)
    driver.step()
    driver.compare(case, [(0, 0, 0, 4), (0, 1, 0, 5), (1, 0, 4, 5), (2, 1, 4, 6)])
    counts = [number(driver.scheduler.preemptions, "preemptions"), len(driver.copies)]
    same(case, [*counts, number(driver.scheduler.swaps, "swaps")], [1, 0, 0], "counts")


@check(SwappingScheduler, see="Swap instead of computing again")
def group_stays_shared(schedulers, case):
    """brings a group back with the blocks shared that it shared before"""
    driver = Driver(schedulers, 8, 2, 9, 0, None, 8)
    driver.add(0, 7)
    driver.add(1, 3, forks=1, together=True)
    driver.step()
    driver.fork(1, 11)
    for _ in range(3):
        driver.step()
    seen = queues(driver.scheduler)
    driver.remove(0)
    work = driver.step()
    seen += [*queues(driver.scheduler), driver.available]
    first, second = (tables(driver.scheduler, each)[0][1:] for each in (1, 11))
    seen += [len(set(first) & set(second)), *(start for _, start, _ in work)]
    what = "running, -1, waiting without blocks for a group and with; free blocks; blocks shared; "
    expected = [0, -1, 1, 11, 1, 11, -1, 3, 1, 4, 4]
    same(case, seen, expected, what + "where its work begins")
    for each in (1, 11):
        driver.remove(each)
    seen = [driver.available, number(driver.scheduler.swaps, "swaps")]
    same(case, seen, [8, 2], "free blocks at the end, and swaps")


@check(SwappingScheduler, see="Swap instead of computing again")
def after_its_copies(schedulers, case):
    """copies a block to the host after the copy that fills it, each shared one once"""
    driver = Driver(schedulers, 4, 2, 9, 0, None, 3)
    driver.add(0, 1)
    driver.add(1, 3, forks=2, together=True)
    driver.step()
    _, first, second = tables(driver.scheduler, 1)[0]
    for child in (11, 12):
        driver.fork(1, child)
    driver.step()
    held = {first: "a", second: "b"}
    for source, target in driver.copies:
        held[target] = held.get(source, "old")
    kept = "".join(sorted(content for block, content in held.items() if block >= 4))
    message = "The host should hold the first block once and the second and its copy, 'abb'; "
    case.that(kept == "abb", message + f"yours holds {kept!r} (old: what was there before).")
    counts = [driver.scheduler.swaps, driver.scheduler.preemptions]
    same(case, numbers(counts, "counts"), [3, 3], "swaps and preemptions")


@check(SwappingScheduler, see="Swap instead of computing again")
def each_its_own(schedulers, case):
    """goes on with each member of a group where that was, though they are not equally long"""
    driver = Driver(schedulers, 6, 2, 9, 0, None, 8)
    driver.add(0, 5)
    driver.add(1, 2, forks=1, together=True)
    driver.step()
    driver.fork(1, 11)
    driver.scheduler.append(11, 7)
    driver.lengths[11] += 1
    driver.step()
    driver.step()  # the first one takes the last block: three tokens of 1 and four of 11 go out
    driver.remove(0)
    rows = {number: (start, stop) for number, start, stop in driver.step()}
    found = [place for each in (1, 11) for place in rows.get(each, (-1, -1))]
    lengths = [tables(driver.scheduler, each)[0][0] for each in (1, 11)]
    what = "start, stop of the work of 1 and 11, with 3 and 4 tokens on the host; their tables"
    same(case, [*found, *lengths], [3, 4, 4, 5, 4, 5], what)


@check(SwappingScheduler, weight=2, see="Swap instead of computing again")
def programs(schedulers, case):
    """follows the rules in short programs of calls"""
    alone = 7, 2, 9, 0, None, 9
    chosen = [((7, 2, 4, 0, 4, 3), 8000), (alone, 4000), (alone, 7000)]
    follow_rules(schedulers, WithHost, [program_of(each, 30, seed) for each, seed in chosen])


def choose_by_hand(
    log_p: Tensor, next_log_p: Tensor, ended: Tensor, width: int
) -> list[tuple[int, int, float]]:
    """Choose as `beams_by_hand` does, from the arguments of `choose_beams`."""
    return beams_by_hand(rows_of(log_p, next_log_p, ended.tolist()), width)


@check(choose_beams_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "choose_beams", choose_by_hand)
    _, (log_p, next_log_p, ended, _) = answer()
    every = [total for _, _, total in choose_by_hand(log_p, next_log_p, ended, next_log_p.numel())]
    text = "With these arguments two candidates are equally probable: either may come first."
    case.that(len(set(every)) == len(every), text)
