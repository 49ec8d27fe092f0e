"""Correct solutions of serving by other ways: in passes, one by one, by sorting."""

import math
from collections import Counter

import torch
from torch.nn import functional

from autograder.alternatives import alternative
from course_pkg.engine.requests import OutOfBlocks, Plan
from course_pkg.paged_attention import BlockTable
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
)


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
        while self.waiting:
            members = self.members(self.waiting[0])
            for number in members:
                sequence = self.sequences[number]
                free -= -(-sequence.longest // S) * (sequence.forks + 1)
                places -= sequence.forks + 1
            if free < 0 or places < 0:
                break
            self.enter(members)


@alternative(Scheduler)
class OneLoop(Scheduler):
    """Goes through those who run and those who wait in one loop."""

    def schedule(self):
        before = list(self.running)
        for number in before + self.waiting:
            if number in before:
                self.extend(number)
            elif number in self.waiting:
                if not self.fits(self.members(number)):
                    break
                self.enter(self.members(number))
        return self.hand_over()

    def fits(self, members):
        numbers, S = self.running + members, self.manager.block_size
        copies = [1 + self.sequences[each].forks for each in numbers]
        blocks = [(self.sequences[each].longest + S - 1) // S for each in numbers]
        slots = sum(a * b for a, b in zip(copies, blocks, strict=True))
        return sum(copies) <= self.most and slots <= len(self.manager.allocator.references)

    def extend(self, number):
        sequence = self.sequences[number]
        if (stop := len(sequence.tokens)) > sequence.computed:
            self.plan = Plan(
                [*self.plan.work, (number, sequence.computed, stop)],
                self.plan.copies + self.manager.grow(number, stop - sequence.computed),
            )


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


@alternative(PreemptingScheduler)
class BySlices(PreemptingScheduler):
    """Moves a group as a whole, and asks for its blocks before it changes anything."""

    def preempt(self, number):
        members = self.members(number)
        kept = [row for row in self.plan.work if row[0] not in members]
        self.plan = Plan(kept, self.plan.copies)
        self.running[:] = [each for each in self.running if each not in members]
        self.waiting[:0] = members
        self.preemptions += len(members)
        for each in members[::-1]:
            self.close(each)

    def enter(self, members):
        before = self.hits
        for each in members:
            self.hits += self.open(each)
        try:
            missing = [
                self.sequences[each].block_table.missing(self.count(each)) for each in members
            ]
            self.demand(sum(missing))
        except OutOfBlocks:
            self.hits = before
            for each in members[::-1]:
                self.close(each)
            raise
        self.start(members)


@alternative(ChunkedScheduler)
class CountsDown(ChunkedScheduler):
    """Takes every token of the plan off the budget, one by one."""

    def count(self, number):
        left, sequence = self.budget, self.sequences[number]
        for _, start, stop in self.plan.work:
            left -= len(range(start, stop))
        wanted = range(sequence.computed, len(sequence.tokens))
        return len(wanted) if left == math.inf else len(wanted[: max(left, 0)])


@alternative(ChunkedScheduler)
class LargeNumber(ChunkedScheduler):
    """Has a large number in place of no budget, and asks what may be left, not what is missing."""

    def __init__(self, blocks, block_size, most=64, watermark=0, budget=None):
        super().__init__(blocks, block_size, most, watermark)
        if budget is not None and most > budget:
            raise ValueError("the budget is too small")
        self.budget = 10**12 if budget is None else budget

    def count(self, number):
        left = self.budget
        for _, start, stop in self.plan.work:
            left -= stop - start
        sequence = self.sequences[number]
        return min(left, len(sequence.tokens) - sequence.computed)


@alternative(ModelRunner)
class PadsAll(ModelRunner):
    """Runs the model once, and attends with the keys of all sequences in one padded batch."""

    def forward(self, batch):
        if not batch:
            return torch.empty(0, 1)
        S, stops = self.cache.K.shape[3], [start + len(new) for new, start, _ in batch]
        counts = torch.tensor([len(new) for new, _, _ in batch])
        owners = torch.arange(len(batch)).repeat_interleave(counts)
        tokens = torch.tensor([token for new, _, _ in batch for token in new])
        spans = [torch.arange(start, start + len(new)) for new, start, _ in batch]
        positions, tables = torch.cat(spans), [blocks for _, _, blocks in batch]
        where = zip(owners.tolist(), positions.tolist(), strict=True)
        slots = torch.tensor([tables[n][t // S] * S + t % S for n, t in where])
        mask = torch.arange(max(stops)) <= positions[:, None]

        def attend(layer, Q, K, V):
            self.cache.write(layer, slots, K, V)
            keys, values = (Q.new_zeros(len(batch), max(stops), *K.shape[1:]) for _ in "KV")
            for n, (blocks, stop) in enumerate(zip(tables, stops, strict=True)):
                keys[n, :stop], values[n, :stop] = self.cache.gather(layer, blocks, stop)
            heads = Q[:, :, None], keys[owners].transpose(1, 2), values[owners].transpose(1, 2)
            mine = mask[:, None, None]
            Y = functional.scaled_dot_product_attention(*heads, mine, enable_gqa=True)
            return Y[:, :, 0]

        with torch.no_grad():
            return self.model(tokens, positions, attend, counts.cumsum(0) - 1)


@alternative(ModelRunner)
class GathersEach(ModelRunner):
    """Runs the model once, and attends for each sequence to what it gathers from the cache."""

    def forward(self, batch):
        if len(batch) == 0:
            return []
        S, spans, slots = self.cache.K.shape[3], [], []
        tokens, positions = [], []
        for new, start, blocks in batch:
            where = torch.arange(start, start + len(new))
            spans.append((slice(len(tokens), len(tokens) + len(new)), blocks, start + len(new)))
            tokens.extend(new)
            positions.append(where)
            slots.append(torch.tensor(blocks)[where // S] * S + where % S)
        slots, positions = torch.cat(slots), torch.cat(positions)

        def attend(layer, Q, K, V):
            self.cache.write(layer, slots, K, V)
            outputs = []
            for span, blocks, stop in spans:
                keys, values = self.cache.gather(layer, blocks, stop)
                T = span.stop - span.start
                mask = torch.ones(T, stop, dtype=torch.bool).tril(stop - T)
                heads = (X.transpose(0, 1)[None] for X in (Q[span], keys, values))
                Y = functional.scaled_dot_product_attention(*heads, mask, enable_gqa=True)
                outputs.append(Y[0].transpose(0, 1))
            return torch.cat(outputs)

        rows = torch.tensor([span.stop - 1 for span, _, _ in spans])
        with torch.inference_mode():
            return self.model(torch.tensor(tokens), positions, attend, rows).clone()


@alternative(EngineCore)
class InTuples(EngineCore):
    """Gives tuples, and looks for requests before it aborts."""

    def step(self):
        return tuple(super().step())

    def abort(self, number):
        if number in self.requests:
            for sample in self.unfinished([number]):
                self.end(sample, "abort")


@alternative(EngineCore)
class StepByStep(EngineCore):
    """Collects what succeeded before it touches a sequence; forks one sample after the other."""

    def step(self):
        plan = self.scheduler.schedule()
        succeeded = []
        try:
            self.runner.copy(plan.copies)
            logits = self.runner.forward([self.piece(*row) for row in plan.work])
            for n, (number, _, stop) in enumerate(plan.work):
                is_done = stop == len(self.sequences[number].tokens)
                succeeded.append((number, stop, self.draw(number, logits[n]) if is_done else None))
        finally:
            if len(succeeded) < len(plan.work):
                self.scheduler.undo(plan.work)
        for number, stop, _ in succeeded:
            self.scheduler.advance(number, stop)
        added = []
        for number, _, draws in succeeded:
            if draws is not None:
                added.extend(self.write(number, draws))
        self.history.append(self.counters(len(plan.work)))
        return added

    def write(self, number, draws):
        (token, generator), *others = draws
        rows = [(self.fork(number), *other) for other in others]
        rows.insert(0, (number, token, generator))
        for each, token, generator in rows:
            self.sequences[each].generator = generator
            self.scheduler.append(each, token)
        for each, _, _ in rows:
            self.finish(each)
        return [row[:2] for row in rows]


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


@alternative(choose_beams)
def in_one_line(log_p, lengths, next_log_p, ended, width, alpha=1.0):
    """Appends a column for beams that have ended, and sorts all scores."""
    V = next_log_p.shape[1]
    nothing = torch.tensor(-math.inf)
    going = torch.where(ended[:, None], nothing, next_log_p) + log_p[:, None]
    total = torch.cat([going, torch.where(ended, log_p, nothing)[:, None]], dim=1)  # (R, V+1)
    score = total / torch.where(ended, lengths, lengths + 1)[:, None] ** alpha
    greedy = int(score[0].argmax())
    order = [greedy] + [n for n in score.flatten().argsort(descending=True).tolist() if n != greedy]
    chosen = [(n // (V + 1), n % (V + 1)) for n in order if total.flatten()[n] > -math.inf]
    return [(r, -1 if v == V else v, float(total[r, v])) for r, v in chosen[:width]]


@alternative(BeamEngine)
class ForksFromTheEnd(BeamEngine):
    """Lets the last beam that is chosen from another be the one that goes on itself."""

    def split(self, number):
        self.sequences[number].forks = 1
        return EngineCore.fork(self, number)


@alternative(BeamEngine)
class InGroups(BeamEngine):
    """Takes the beams one by one: what each of them goes on with, then the new order."""

    def branch(self, beams):
        old = [self.sequences[number] for number in beams]
        V = len(next(row for row in map(self.next_log_p.get, beams) if row is not None))
        rows = [self.next_log_p.pop(n, torch.zeros(V).double()).double() for n in beams]
        chosen = choose_beams(
            torch.tensor([each.log_p for each in old]).double(),
            torch.tensor([len(each.output) for each in old]),
            torch.stack(rows),
            torch.tensor([each.reason is not None for each in old]),
            old[0].sampling.beams,
            old[0].sampling.alpha,
        )
        new, goes_on = [None] * len(chosen), {}
        for row, number in enumerate(beams):
            if all(parent != row for parent, _, _ in chosen):
                self.drop(number)
        for place, (row, _, _) in enumerate(chosen):
            new[place] = self.split(beams[row]) if row in goes_on else beams[row]
            goes_on[row] = True
        for number, (_, token, value) in zip(new, chosen, strict=True):
            if token >= 0:
                self.sequences[number].log_p = value
                self.scheduler.append(number, token)
                self.finish(number)
        beams[:] = new
        self.expect(beams)


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
        except BaseException:
            self.withdraw(numbers)
            raise


@alternative(Engine)
class InQueues(Engine):
    """Streams by what each request has said so far; takes one token after the other."""

    def take(self, number):
        found = []
        for place, sample in enumerate(self.requests[number]):
            sequence = self.sequences[sample]
            while sequence.taken < len(sequence.output):
                found.append((place, sequence.output[sequence.taken]))
                sequence.taken += 1
        return found

    def stream(self, prompts, sampling=None):
        each = sampling if isinstance(sampling, list) else [sampling]
        if any(own is not None and own.beams > 1 for own in each):
            raise ValueError("beams cannot be streamed")
        numbers = self.enlist(prompts, sampling)

        def events():
            try:
                while self.unfinished(numbers) or any(map(self.untaken, numbers)):
                    if self.unfinished(numbers):
                        self.step()
                    for place, number in enumerate(numbers):
                        yield from ((place, *pair) for pair in self.take(number))
            finally:
                self.withdraw(numbers)

        return events()

    def untaken(self, number):
        told = [self.sequences[sample] for sample in self.requests[number]]
        return any(len(each.output) > each.taken for each in told)


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


@alternative(SwapSpace)
class CountsUsers(SwapSpace):
    """Counts the users of each block in a Counter, and takes the highest free one."""

    def __init__(self, blocks, first):
        self.users, self.count, self.first, self.tables = Counter(), blocks, first, {}

    @property
    def available(self):
        return self.count - len(+self.users)

    def out(self, tables):
        wanted = {block for table in tables.values() for block in table}
        free = [n for n in reversed(range(self.count)) if not self.users[n]]
        if len(wanted) > len(free):
            raise OutOfBlocks(f"{len(wanted)} wanted, {len(free)} free")
        here = dict(zip(wanted, free, strict=False))
        for number, table in tables.items():
            self.tables[number] = [here[block] for block in table]
            self.users.update(self.tables[number])
        return [(block, self.first + here[block]) for block in here]

    def back(self, numbers, blocks):
        there, copies = {}, []
        for place, block in zip(self.blocks(numbers), blocks, strict=True):
            there[place] = block
            copies.append((place + self.first, block))
        result = {number: [there[place] for place in self.tables[number]] for number in numbers}
        for number in numbers:
            self.drop(number)
        return result, copies

    def drop(self, number):
        self.users.subtract(self.tables.pop(number))

    def fork(self, number, child):
        self.tables[child] = self.tables[number][:]
        self.users.update(self.tables[child])


@alternative(SwappingScheduler)
class LooksFirst(SwappingScheduler):
    """Counts the host's blocks before it swaps, in place of catching an error."""

    def preempt(self, number):
        members = self.members(number)
        for each in members:
            self.cut(each)
        blocks = {block for each in members for block in self.manager.blocks(each)}
        if len(blocks) <= self.space.available:
            super().preempt(number)
            return
        ChunkedScheduler.preempt(self, number)


@alternative(SwappingScheduler)
class FromTheTables(SwappingScheduler):
    """Copies out after the group has lost its blocks, and shares blocks as it makes the tables."""

    def preempt(self, number):
        members = self.members(number)
        for each in members:
            self.cut(each)
        tables = {each: list(self.manager.blocks(each)) for each in members}
        computed = [self.sequences[each].computed for each in members]
        ChunkedScheduler.preempt(self, number)
        try:
            self.plan.copies.extend(self.space.out(tables))
        except OutOfBlocks:
            return
        for each, count in zip(members, computed, strict=True):
            self.sequences[each].computed = count
            self.swaps += 1

    def enter(self, members):
        if members[0] not in self.space.tables:
            ChunkedScheduler.enter(self, members)
            return
        self.demand(self.needed(members))
        allocator = self.manager.allocator
        blocks = [allocator.allocate() for _ in self.space.blocks(members)]
        tables, copies = self.space.back(members, blocks)
        self.plan.copies.extend(copies)
        users = Counter(block for table in tables.values() for block in table)
        for block, count in users.items():
            for _ in range(count - 1):
                allocator.share(block)
        for each in members:
            sequence = self.sequences[each]
            sequence.block_table = BlockTable(self.manager.block_size)
            sequence.block_table.append(sequence.computed, tables[each])
        self.start(members)
