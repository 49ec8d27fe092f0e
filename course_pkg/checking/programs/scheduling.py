"""Scenes of a scheduler: what it does in programs of calls, told in words.

It is driven as an engine would do it, without a model. A memory beside it holds for every slot
whose key was written there: a sequence that reads the key of another one is seen at once.
"""

from typing import Any

from course_pkg.checking.batched import together
from course_pkg.checking.programs.programs import Program, Step, played
from course_pkg.checking.telling.failure import Failure
from course_pkg.engine.requests import EngineConfig

Row = tuple[int, int, int]


def text_of(number: int, length: int) -> list[int]:
    """Give the beginning of a text; no token is in two texts."""
    return [1000 * number + place for place in range(length)]


def token_of(number: int, place: int) -> int:
    """Give the token that a sequence gets at a place, which is in no text."""
    return -1000 * (number + 1) - place


def counts_of(free: int, hits: int, preemptions: int) -> dict[str, Any]:
    """Name the counters of a scheduler."""
    return {
        "the number of free blocks": free,
        "the number of tokens found in the cache": hits,
        "the number of preemptions": preemptions,
    }


def counts_of_host(swaps: int, free: int) -> dict[str, Any]:
    """Name the counters of a scheduler that swaps."""
    return {"the number of swaps": swaps, "the number of free blocks on the host": free}


def told_of(work: list[Row], copies: int, wrong: list[tuple[int, int]]) -> dict[str, Any]:
    """Name what a step has done."""
    return {
        "the work": ", ".join(f"{n}: {start}…{stop - 1}" for n, start, stop in work),
        "the number of blocks copied": copies,
        "(sequence, position) of keys that are not where a table says": wrong,
    }


def told_of_host(out: int, back: int) -> dict[str, Any]:
    """Name what a step has moved."""
    return {"the numbers of blocks that go out and come back": [out, back]}


def scene(
    queues: tuple[list[int], list[int]],
    sequences: dict[int, Any],
    host: dict[int, list[int]],
    counts: dict[str, Any],
) -> dict[str, Any]:
    """Say who runs, who waits and whose blocks are whose, without any number of a block."""
    running, waiting = queues
    seen = {"who runs": [*running], "who waits": [*waiting], **counts}
    alive = {number: sequences[number] for number in sorted([*running, *waiting])}
    tables = {n: each.block_table for n, each in alive.items()}
    here = {n: table.blocks for n, table in tables.items() if table is not None}
    for number, each in alive.items():
        table = tables[number]
        seen[f"the tokens of {number} that are computed"] = each.num_computed
        seen[f"the slots of {number}"] = None if table is None else table.length
        for where, blocks in (("", here), (" on the host", host)):
            users = users_of(blocks, number)
            seen[f"the users of each block of {number}{where}"] = users
    return seen


def users_of(blocks: dict[int, list[int]], number: int) -> list[str]:
    """List for each block of a sequence who has it."""
    found = [[n for n in blocks if block in blocks[n]] for block in blocks.get(number, [])]
    return [" and ".join(map(str, sorted(each))) for each in found]


class Scheduling:
    """Drive a scheduler, whose settings stand first."""

    def __init__(self, schedulers: Any, *settings: Any):
        self.guarded = schedulers(EngineConfig(*settings))
        self.scheduler = self.guarded._target  # many small calls: each has one guard
        self.blocks, self.block_size = settings[:2]
        self.has_host = len(settings) > 5
        self.held: dict[tuple[int, int], tuple] = {}  # in each slot: the text up to its token
        self.done: dict[str, Any] = {}

    def stall(self, number: int) -> None:
        """nothing of {0} can be computed for now"""
        count = self.scheduler.count
        self.scheduler.count = lambda each: 0 if each == number else count(each)

    def add(self, number: int, length: int, text: int, *asked: Any) -> None:
        """{0} comes: {1} tokens of text {2}, {3} slots at most, {4} forks, a group: {5}"""
        self.done = {}
        self.call(self.scheduler.add, number, text_of(text, length), *asked)

    def fork(self, number: int, child: int) -> None:
        """{0} is forked, to {1}"""
        self.done = {}
        self.call(self.scheduler.fork, number, child)

    def remove(self, number: int) -> None:
        """{0} ends"""
        self.done = {}
        self.call(self.scheduler.remove, number)

    def step(self) -> None:
        """a step"""
        self.pause()
        self.call(self.append)

    def pause(self) -> None:
        """a step after which nobody gets a token"""
        self.call(self.advance, self.plan())

    def advance(self, work: list[Row]) -> None:
        for number, _, stop in work:
            self.scheduler.advance(number, stop)

    def append(self) -> None:
        """Let everybody whose tokens are all computed get one more."""
        for number in list(self.scheduler.running):
            tokens = self.sequence(number).tokens
            if self.sequence(number).num_computed == len(tokens):
                self.scheduler.append(number, token_of(number, len(tokens)))

    def fail(self) -> None:
        """a step that fails and is undone"""
        self.call(self.scheduler.undo, self.plan())

    def plan(self) -> list[Row]:
        """Let it plan a step, make the copies, and write and read the keys."""
        self.done = {}
        work, copies = self.call(self.scheduler.schedule)
        S = self.block_size
        for source, target in copies:
            for n in range(S):
                self.held[target, n] = self.held.get((source, n), ())
        rows = [(number, start, stop) for number, start, stop in work]
        for number, start, stop in rows:
            for t in range(start, stop):
                self.held[self.slot(number, t)] = self.prefix(number, t)
        wrong = [
            (number, t)
            for number, _, stop in rows
            for t in range(stop)
            if self.held.get(self.slot(number, t)) != self.prefix(number, t)
        ]
        kinds = [(source >= self.blocks) + 2 * (target >= self.blocks) for source, target in copies]
        self.done = told_of(rows, kinds.count(0), wrong)
        if self.has_host:
            self.done |= told_of_host(kinds.count(2), kinds.count(1))
        return rows

    def call(self, method: Any, *arguments: Any) -> Any:
        """Call a method of the student's scheduler."""
        return self.guarded._attempt(lambda: method(*arguments))

    def sequence(self, number: int) -> Any:
        """Look up what is known of a sequence."""
        return self.scheduler.sequences[number]

    def slot(self, number: int, t: int) -> tuple[int, int]:
        """Look up where the key of a position is."""
        table = self.sequence(number).block_table
        if table is None or t >= table.length:
            text = f"The plan has position {t} of {number}, for which its table has no slot."
            raise Failure(text, kinds=("LookupError",))
        return table.blocks[t // self.block_size], t % self.block_size

    def prefix(self, number: int, t: int) -> tuple[int, ...]:
        """Give the tokens that the key of a position depends on."""
        return tuple(self.sequence(number).tokens[: t + 1])

    def look(self) -> dict[str, Any]:
        """Describe the scene after a call."""
        return self.call(self.scene)

    def scene(self) -> dict[str, Any]:
        scheduler = self.scheduler
        queues = scheduler.running, scheduler.waiting
        free = scheduler.manager.allocator.available
        counts, host = counts_of(free, scheduler.hits, scheduler.preemptions), {}
        if self.has_host:
            host = scheduler.space.tables
            counts |= counts_of_host(scheduler.swaps, scheduler.space.available)
        return scene(queues, scheduler.sequences, host, counts | self.done)


class SettingAside(Scheduling):
    """With {0} blocks of {1} slots, and at most {2} who run"""


class OnDemand(Scheduling):
    """With {0} blocks of {1} slots, at most {2} who run, and a watermark of {3}"""


class InChunks(Scheduling):
    """With {0} blocks of {1} slots, at most {2} who run, a watermark of {3}, and a budget of {4}"""


class WithHost(Scheduling):
    """With {0} blocks of {1}, {2} who run, a watermark of {3}, a budget of {4}, {5} host blocks"""


@together
def play_schedulers(schedulers: Any, programs: list[Program]) -> list[list[Step]]:
    """Play programs with a scheduler."""
    return [played(Scheduling(schedulers, *settings), calls) for settings, calls in programs]


def told_of_out(blocks: list[int]) -> dict[str, Any]:
    """Name what goes out to the host."""
    return {"the blocks that go out": blocks}


def told_of_back(come: int, go: int, gets: dict[int, list]) -> dict[str, Any]:
    """Name what comes back from the host, and how much is copied to it by mistake."""
    found = {f"what {number} gets back": kept for number, kept in gets.items()}
    return {"the number of copies from the host": come, "of copies to the host": go, **found}


def scene_of_space(free: int, tables: dict[int, list], held: dict[int, list]) -> dict[str, Any]:
    """Say what is on the host, and whose it is."""
    seen: dict[str, Any] = {"the number of free blocks": free}
    for number in sorted(tables):
        seen[f"what {number} has on the host"] = list(held[number])
        seen[f"the users of each block of {number}"] = users_of(tables, number)
    return seen


class Swapping:
    """With {0} blocks on the host, known as {1} and so on"""

    def __init__(self, spaces: Any, blocks: int, first: int):
        self.guarded = spaces(blocks, first)
        self.space = self.guarded._target  # many small calls: each has one guard
        self.first = first
        self.held: dict[int, str] = {}  # what each block holds, here and in the cache
        self.turn = 0
        self.done: dict[str, Any] = {}

    def swap_out(self, tables: dict[int, list[int]]) -> None:
        """swap_out({0})"""
        self.done, self.turn = {}, self.turn + 1
        copies = self.guarded._attempt(lambda: self.space.swap_out(tables))
        for source, target in copies:
            self.held[target] = f"{source} of call {self.turn}"
        self.done = told_of_out(sorted(source for source, _ in copies))

    def swap_in(self, numbers: list[int], blocks: list[int]) -> None:
        """swap_in({0}, {1})"""
        self.done = {}
        tables, copies = self.guarded._attempt(lambda: self.space.swap_in(numbers, blocks))
        held = {target: self.held.get(source) for source, target in copies}
        gets = {number: [held.get(block) for block in tables[number]] for number in sorted(tables)}
        come = sum(source >= self.first for source, _ in copies)
        self.done = told_of_back(come, sum(target >= self.first for _, target in copies), gets)

    def drop(self, number: int) -> None:
        """drop({0})"""
        self.done = {}
        self.guarded._attempt(lambda: self.space.drop(number))

    def fork(self, number: int, child: int) -> None:
        """fork({0}, {1})"""
        self.done = {}
        self.guarded._attempt(lambda: self.space.fork(number, child))

    def look(self) -> dict[str, Any]:
        """Describe what is on the host after a call."""
        return self.guarded._attempt(self.scene)

    def scene(self) -> dict[str, Any]:
        tables = dict(self.space.tables)
        held = {n: [self.held.get(self.first + block) for block in tables[n]] for n in tables}
        return scene_of_space(self.space.available, tables, held) | self.done


@together
def play_spaces(spaces: Any, programs: list[Program]) -> list[list[Step]]:
    """Play programs with swap spaces."""
    return [played(Swapping(spaces, *settings), calls) for settings, calls in programs]
