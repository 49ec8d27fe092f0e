"""Correct solutions of serving by other ways: in passes, one by one, by sorting."""

import math

import torch
from torch.nn import functional

from course_pkg.inference.requests import OutOfBlocks
from course_pkg.serving import (
    BeamCore,
    ChunkedScheduler,
    Engine,
    EngineCore,
    ModelRunner,
    PreemptingScheduler,
    Scheduler,
    SwappingScheduler,
    SwapSpace,
    choose_beams,
)
from tests.alternatives import alternative


@alternative(Scheduler)
class KeepsAccount(Scheduler):
    """Counts what is set aside by adding and subtracting, not anew each time."""

    def admit(self):
        S, free = self.manager.block_size, len(self.manager.allocator.references)
        places = self.most
        for number in self.running:
            sequence = self.sequences[number]
            free -= -(-sequence.longest // S) * (sequence.forks + 1)
            places -= sequence.forks + 1
        for number in list(self.waiting):
            sequence = self.sequences[number]
            if number not in self.waiting:
                continue
            free -= -(-sequence.longest // S) * (sequence.forks + 1)
            places -= sequence.forks + 1
            if free < 0 or places < 0:
                break
            self.enter([number])


@alternative(PreemptingScheduler)
class CountsFirst(PreemptingScheduler):
    """Looks how many blocks are available before it asks for any."""

    def schedule(self):
        place, lost = 0, False
        while place < len(self.running):
            try:
                self.extend(self.running[place])
                place += 1
            except OutOfBlocks:
                lost = True
                asks = self.running[place]
                self.preempt(self.running[-1])
                if asks not in self.running:
                    place = len(self.running)
        if not lost:
            self.admit()
        return self.hand_over()


@alternative(ChunkedScheduler)
class CountsDown(ChunkedScheduler):
    """Takes every token of the plan off the budget, one by one."""

    def count(self, number):
        left, sequence = self.budget, self.sequences[number]
        for _, start, stop in self.plan.work:
            left -= len(range(start, stop))
        wanted = range(sequence.computed, len(sequence.tokens))
        return len(wanted) if left == math.inf else len(wanted[: max(left, 0)])


@alternative(ModelRunner)
class OneAtATime(ModelRunner):
    """Runs the model on each sequence by itself, on what it gathers from the cache."""

    def forward(self, batch):
        rows, S = [], self.cache.K.shape[3]
        for new, start, blocks in batch:
            stop = start + len(new)
            slots = torch.tensor([blocks[t // S] * S + t % S for t in range(start, stop)])

            def attend(layer, Q, K, V, blocks=blocks, slots=slots, start=start, stop=stop):
                self.cache.write(layer, slots, K, V)
                keys, values = self.cache.gather(layer, blocks, stop)
                heads = (X.transpose(0, 1)[None] for X in (Q, keys, values))
                mask = torch.ones(stop - start, stop, dtype=torch.bool).tril(start)
                Y = functional.scaled_dot_product_attention(*heads, mask, enable_gqa=True)
                return Y[0].transpose(0, 1)

            last = torch.tensor([stop - start - 1])
            with torch.no_grad():
                positions = torch.arange(start, stop)
                rows.append(self.model(torch.tensor(new), positions, attend, last)[0])
        return torch.stack(rows) if rows else torch.empty(0, 1)


@alternative(EngineCore)
class InTuples(EngineCore):
    """Gives tuples, and looks for requests before it aborts."""

    def step(self):
        return tuple(super().step())

    def abort(self, number):
        if number in self.requests:
            for sample in self.unfinished([number]):
                self.end(sample, "abort")


@alternative(choose_beams)
def by_sorting(log_p, lengths, next_log_p, ended, width, alpha=1.0):
    candidates = []
    for row, (so_far, length) in enumerate(zip(log_p.tolist(), lengths.tolist(), strict=True)):
        if ended[row]:
            candidates.append((so_far / length**alpha, row, -1, so_far))
            continue
        for token, more in enumerate(next_log_p[row].tolist()):
            total = so_far + more
            if total > -math.inf:
                candidates.append((total / (length + 1) ** alpha, row, token, total))
    greedy = max(one for one in candidates if one[1] == 0)
    rest = sorted((one for one in candidates if one is not greedy), reverse=True)
    return [one[1:] for one in [greedy, *rest[: width - 1]]]


@alternative(BeamCore)
class ForksFromTheEnd(BeamCore):
    """Lets the last beam that is chosen from another be the one that goes on itself."""

    def split(self, number):
        self.sequences[number].forks = 1
        return super().fork(number)


@alternative(Engine)
class StreamFirst(Engine):
    """Generates by looking at what is unfinished; gives tuples."""

    def generate(self, prompts, sampling=None):
        numbers = self.enlist(prompts, sampling)
        try:
            while True:
                if not self.unfinished(numbers):
                    return tuple(self.collect(numbers))
                list(self.step())
        except Exception:
            self.withdraw(numbers)
            raise


@alternative(SwapSpace)
class SetOfFree(SwapSpace):
    """Keeps a list of free blocks, and looks who uses a block when it may be free."""

    def __init__(self, blocks, first):
        self.free, self.first, self.tables = list(range(blocks)), first, {}

    @property
    def available(self):
        return len(self.free)

    def out(self, tables):
        blocks = sorted({block for table in tables.values() for block in table})
        if len(blocks) > len(self.free):
            raise OutOfBlocks("the host is full")
        here = {block: self.free.pop() for block in blocks}
        self.tables.update({n: [here[block] for block in table] for n, table in tables.items()})
        return [(block, self.first + here[block]) for block in blocks]

    def back(self, numbers, blocks):
        places = self.blocks(numbers)
        if len(places) != len(blocks):
            raise ValueError("one block for each is needed")
        tables = {n: [blocks[places.index(b)] for b in self.tables[n]] for n in numbers}
        copies = [(self.first + a, b) for a, b in zip(places, blocks, strict=True)]
        for number in numbers:
            self.drop(number)
        return tables, copies

    def drop(self, number):
        left = self.tables.pop(number)
        used = {block for table in self.tables.values() for block in table}
        self.free += [block for block in left if block not in used]

    def fork(self, number, child):
        self.tables[child] = list(self.tables[number])


@alternative(SwappingScheduler)
class LooksFirst(SwappingScheduler):
    """Counts the host's blocks before it swaps, in place of catching an error."""

    def preempt(self, number):
        members = self.members(number)
        blocks = {block for each in members for block in self.manager.blocks(each)}
        if len(blocks) <= self.space.available:
            super().preempt(number)
            return
        ChunkedScheduler.preempt(self, number)
