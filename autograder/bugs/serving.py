"""Known wrong solutions of serving."""

import math

import torch

from autograder.bugs import bug, changed, equivalent, mistakes
from course_pkg.inference.requests import NeverFits, OutOfBlocks, Plan, Sampling
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


@bug(Scheduler, "the batch is fixed: nobody joins before all of it have ended", classic=True)
class Static(Scheduler):
    def admit(self):
        if len(self.running) == 0:
            Scheduler.admit(self)


@bug(Scheduler, "a shorter sequence overtakes one that waits for more memory")
class Overtakes(Scheduler):
    def admit(self):
        Scheduler.admit(self)
        for number in self.waiting[1:]:
            others = [each for each in self.waiting if each != number]
            self.waiting[:] = [number]
            Scheduler.admit(self)
            self.waiting[:] = others if not self.waiting else [others[0], number, *others[1:]]


@bug(Scheduler, "only the blocks of the prompt are set aside, not those of its continuation")
class OnlyPrompts(Scheduler):
    def add(self, number, tokens, longest=0, forks=0, together=False):
        super().add(number, tokens, 0, forks, together)


@bug(Scheduler, "nothing is set aside for the forks that are still to come", classic=True)
class ForgetsForks(Scheduler):
    def admit(self):
        forks = {number: each.forks for number, each in self.sequences.items()}
        for each in self.sequences.values():
            each.forks = 0
        Scheduler.admit(self)
        for number, count in forks.items():
            self.sequences[number].forks = count


@bug(Scheduler, "the forks that are still to come have places, but no blocks", classic=True)
class NoBlocksForForks(Scheduler):
    def admit(self):
        S, free = self.manager.block_size, len(self.manager.allocator.references)
        while self.waiting:
            members = self.members(self.waiting[0])
            together = self.running + members
            reserved = sum(math.ceil(self.sequences[each].longest / S) for each in together)
            if self.places(together) > self.most or reserved > free:
                return
            self.enter(members)


@bug(Scheduler, "the forks that are still to come have blocks, but no places")
class NoPlacesForForks(Scheduler):
    def places(self, numbers):
        return len(numbers)


@bug(Scheduler, "more sequences than allowed are admitted")
class NoLimit(Scheduler):
    def __init__(self, blocks, block_size, most=64):
        super().__init__(blocks, block_size, 64)


@bug(Scheduler, "what has ended still counts for what is set aside")
class CountsEnded(Scheduler):
    def remove(self, number):
        super().remove(number)
        blocks = math.ceil(self.sequences[number].longest / self.manager.block_size)
        for _ in range(min(blocks, self.manager.allocator.available)):
            self.manager.allocator.allocate()


@bug(Scheduler, "all tokens of a sequence are computed in every step, not only the new ones")
class FromTheStart(Scheduler):
    def hand_over(self):
        work, copies = super().hand_over()
        return Plan([(number, 0, stop) for number, _, stop in work], copies)


@bug(Scheduler, "what is planned counts as computed before it is done")
class ComputedAtOnce(Scheduler):
    def extend(self, number):
        super().extend(number)
        self.sequences[number].computed = len(self.sequences[number].tokens)


@bug(Scheduler, "the blocks that must be copied are not part of the plan")
class ForgetsCopies(Scheduler):
    def hand_over(self):
        return Plan(super().hand_over().work, [])


@bug(PreemptingScheduler, "the blocks that must be copied are not part of the plan")
class PreemptsWithoutCopies(PreemptingScheduler):
    def schedule(self):
        return Plan(super().schedule().work, [])


@bug(
    PreemptingScheduler, "the copies that are planned are dropped when a sequence loses its blocks"
)
class DropsCopies(PreemptingScheduler):
    def preempt(self, number):
        super().preempt(number)
        self.plan.copies.clear()


@bug(PreemptingScheduler, "the first to come loses its blocks, not the last")
class FirstLoses(PreemptingScheduler):
    def preempt(self, number):
        super().preempt(self.running[0])


@bug(PreemptingScheduler, "who has lost its blocks waits behind all others", classic=True)
class BackOfTheLine(PreemptingScheduler):
    def preempt(self, number):
        members = self.members(number)
        super().preempt(number)
        del self.waiting[: len(members)]
        self.waiting += members


@bug(PreemptingScheduler, "sequences are admitted in a step in which others lost their blocks")
class AtOnce(PreemptingScheduler):
    def schedule(self):
        self.plan = super().schedule()
        self.admit()
        return self.hand_over()


@bug(PreemptingScheduler, "the watermark is demanded also when nobody runs: it may wait for ever")
class AlwaysSpare(PreemptingScheduler):
    def demand(self, blocks):
        if blocks + self.watermark > self.manager.allocator.available:
            raise OutOfBlocks


@bug(PreemptingScheduler, "the watermark is not left")
class NoWatermark(PreemptingScheduler):
    def demand(self, blocks):
        if blocks > self.manager.allocator.available:
            raise OutOfBlocks


@bug(PreemptingScheduler, "one more block than the watermark must be left")
class OneMoreBlock(PreemptingScheduler):
    def demand(self, blocks):
        if blocks + self.watermark >= self.manager.allocator.available and self.running:
            raise OutOfBlocks
        super().demand(blocks)


@bug(PreemptingScheduler, "of a group, one alone loses its blocks", classic=True)
class OneOfAGroup(PreemptingScheduler):
    def preempt(self, number):
        group = self.sequences[number].group
        self.sequences[number].group = None
        super().preempt(number)
        self.sequences[number].group = group


@bug(PreemptingScheduler, "who loses its blocks counts as computed still")
class StaysComputed(PreemptingScheduler):
    def count(self, number):
        sequence = self.sequences[number]
        found = super().count(number)
        return min(found, 1) if getattr(sequence, "was_preempted", False) else found

    def preempt(self, number):
        for each in self.members(number):
            self.sequences[each].was_preempted = True
        super().preempt(number)


@bug(PreemptingScheduler, "what was found in the cache is not counted")
class NoHits(PreemptingScheduler):
    def schedule(self):
        hits, plan = self.hits, super().schedule()
        self.hits = hits
        return plan


@bug(PreemptingScheduler, "the forks that are still to come have no places")
class NoPlaces(PreemptingScheduler):
    def places(self, numbers):
        return len(numbers)


@bug(
    PreemptingScheduler,
    "blocks are set aside for tokens to come",
    told_by="two need two of four blocks now, and four later",
)
class SetsAside(PreemptingScheduler):
    def enter(self, members):
        longest = [self.sequences[number].longest for number in members]
        self.demand(sum(math.ceil(count / self.manager.block_size) for count in longest))
        super().enter(members)


@bug(PreemptingScheduler, "a group enters when there are blocks for its first sequence")
class RoomForOne(PreemptingScheduler):
    def enter(self, members):
        super().enter(members[:1])
        for number in members[1:]:
            self.hits += self.open(number)
        self.start(members[1:])


@bug(ChunkedScheduler, "every sequence has the whole budget for itself", classic=True)
class BudgetEach(ChunkedScheduler):
    def count(self, number):
        work, self.plan = self.plan, Plan([], self.plan.copies)
        try:
            return super().count(number)
        finally:
            self.plan = work


@bug(ChunkedScheduler, "the budget counts sequences, not tokens")
class BudgetOfSequences(ChunkedScheduler):
    def count(self, number):
        sequence = self.sequences[number]
        missing = len(sequence.tokens) - sequence.computed
        return missing if len(self.plan.work) < self.budget else 0


@bug(ChunkedScheduler, "a prompt that is longer than what is left of the budget waits")
class NoChunks(ChunkedScheduler):
    def count(self, number):
        sequence, found = self.sequences[number], super().count(number)
        whole = found == len(sequence.tokens) - sequence.computed
        return found if whole or not self.plan.work else 0


@bug(ChunkedScheduler, "the last token of the budget is not spent")
class OneUnspent(ChunkedScheduler):
    def count(self, number):
        self.budget -= 1
        try:
            return max(super().count(number), 0)
        finally:
            self.budget += 1


@bug(
    ChunkedScheduler,
    "a budget that starves some who run is accepted",
    told_by="should raise ValueError when the budget is 2 and 3 may run",
)
class Starves(ChunkedScheduler):
    def __init__(self, blocks, block_size, most=64, watermark=0, budget=None):
        super().__init__(blocks, block_size, most, watermark)
        self.budget = math.inf if budget is None else budget


@bug(
    ChunkedScheduler,
    "a budget as large as `most` is refused",
    told_by="ChunkedScheduler raised ValueError",
)
class TooStrict(ChunkedScheduler):
    def __init__(self, blocks, block_size, most=64, watermark=0, budget=None):
        if budget is not None and budget <= most:
            raise ValueError(f"a budget of {budget} tokens starves some of {most} sequences")
        super().__init__(blocks, block_size, most, watermark, budget)


@bug(ChunkedScheduler, "without a budget, a step computes no more than some number of tokens")
class AlwaysSome(ChunkedScheduler):
    def __init__(self, blocks, block_size, most=64, watermark=0, budget=None):
        budget = max(most, 100) if budget is None else budget
        super().__init__(blocks, block_size, most, watermark, budget)


@bug(ChunkedScheduler, "the budget limits only the first chunk of a prompt, not those after it")
class FirstChunk(ChunkedScheduler):
    def count(self, number):
        sequence = self.sequences[number]
        missing = len(sequence.tokens) - sequence.computed
        return missing if sequence.computed else max(super().count(number), 0)


class WithModel:
    """Stand before a model and change what it is asked."""

    def __init__(self, model, change):
        self.model, self.change = model, change
        self.shape, self.context = model.shape, model.context
        self.dtype, self.device = model.dtype, model.device

    def __call__(self, tokens, positions, attend, rows):
        return self.model(*self.change(tokens, positions, attend, rows))


class Asking(ModelRunner):
    """A runner; bugs vary what it asks its model."""

    def forward(self, batch):
        usual = self.model
        self.model = WithModel(usual, lambda *asked: self.change(batch, *asked))
        try:
            return super().forward(batch)
        finally:
            self.model = usual


@bug(ModelRunner, "every step counts the positions of its tokens from 0", classic=True)
class PositionsFromZero(Asking):
    def change(self, batch, tokens, positions, attend, rows):
        counted = [n for new, _, _ in batch for n in range(len(new))]
        return tokens, torch.tensor(counted), attend, rows


@bug(ModelRunner, "the positions are one too large: the token to come is counted already")
class PositionsTooLarge(Asking):
    def change(self, batch, tokens, positions, attend, rows):
        return tokens, (positions + 1).clamp(max=self.model.context - 1), attend, rows


@bug(ModelRunner, "the positions go on from one sequence to the next")
class PositionsInOneRow(Asking):
    def change(self, batch, tokens, positions, attend, rows):
        return tokens, torch.arange(len(tokens)) + positions[0], attend, rows


@bug(
    ModelRunner,
    "the logits are taken after the first token of each sequence, not after the last",
    classic=True,
)
class FirstRow(Asking):
    def change(self, batch, tokens, positions, attend, rows):
        before = [0, *rows[:-1].add(1).tolist()]
        return tokens, positions, attend, torch.tensor(before)


@bug(ModelRunner, "the logits are taken one token after the last of each sequence")
class RowAfter(Asking):
    def change(self, batch, tokens, positions, attend, rows):
        return tokens, positions, attend, (rows + 1).clamp(max=len(tokens) - 1)


@bug(ModelRunner, "keys and values are not written before they are read")
class WritesLate(ModelRunner):
    def forward(self, batch):
        late, write = [], self.cache.write
        self.cache.write = lambda *what: late.append(what)
        try:
            return super().forward(batch)
        finally:
            self.cache.write = write
            for what in late:
                write(*what)


@bug(ModelRunner, "every layer reads the keys and values of the first one")
class FirstLayer(ModelRunner):
    def forward(self, batch):
        write, attention = self.cache.write, self.attention
        K, V = self.cache.K, self.cache.V
        self.attention = lambda Q, _, __, *rest: attention(Q, K[0], V[0], *rest)
        try:
            return super().forward(batch)
        finally:
            self.cache.write, self.attention = write, attention


@bug(
    ModelRunner,
    "gradients are kept, and the cache with them",
    told_by="The logits should have no gradient",
)
class KeepsGradients(Asking):
    def change(self, batch, *asked):
        torch.set_grad_enabled(True)  # until the reference leaves its no_grad
        return asked


@bug(ModelRunner, "sequences see only the tokens of this step, not what is in the cache")
class ForgetsThePast(ModelRunner):
    def forward(self, batch):
        attention = self.attention

        def attend(Q, K, V, tables, lengths):
            return attention(Q, K, V, tables, torch.full_like(lengths, Q.shape[1]))

        self.attention = attend
        try:
            return super().forward(batch)
        finally:
            self.attention = attention


@bug(
    ModelRunner,
    "the model is called for each sequence by itself",
    told_by="should be called once for the five sequences",
)
class OneAtATime(ModelRunner):
    def forward(self, batch):
        forward = super().forward
        return torch.cat([forward([row]) for row in batch]) if batch else forward(batch)


@bug(EngineCore, "blocks are not copied before they are written: the plan's copies are ignored")
class IgnoresCopies(EngineCore):
    def __init__(self, *settings, **named):
        super().__init__(*settings, **named)
        self.runner.copy = lambda copies: None


@bug(EngineCore, "blocks are copied after the model has run, when they are written", classic=True)
class CopiesLate(EngineCore):
    def __init__(self, *settings, **named):
        super().__init__(*settings, **named)
        late, copy, forward = [], self.runner.copy, self.runner.forward

        def run(batch):
            logits = forward(batch)
            copy(late)
            late.clear()
            return logits

        self.runner.copy, self.runner.forward = late.extend, run


@bug(EngineCore, "a chunk of a prompt gives a token although the prompt goes on", classic=True)
class DrawsTooEarly(EngineCore):
    def step(self):
        schedule = self.scheduler.schedule

        def cut():
            plan = schedule()
            for number, _, stop in plan.work:
                self.sequences[number].tokens = self.sequences[number].tokens[:stop]
            return plan

        self.scheduler.schedule = cut
        try:
            return super().step()
        finally:
            self.scheduler.schedule = schedule


@bug(EngineCore, "the stop token is left out of the result")
class WithoutStop(EngineCore):
    def step(self):
        added = super().step()
        return [pair for pair in added if pair[1] != self.sequences[pair[0]].sampling.stop]


@bug(EngineCore, "one token more than count is added")
class OneMore(EngineCore):
    def add(self, prompt, sampling=None):
        number = super().add(prompt, sampling)
        sampling = self.sequences[number].sampling
        self.sequences[number].sampling = Sampling(sampling.max_tokens + 1, *sampling[1:])
        return number


@bug(EngineCore, "all samples of a request draw from one generator")
class OneGenerator(EngineCore):
    def draw(self, number, logits):
        draws = super().draw(number, logits)
        return [(token, draws[0][1]) for token, _ in draws]


@bug(EngineCore, "all samples of a request begin with the same token")
class OneDraw(EngineCore):
    def draw(self, number, logits):
        draws = super().draw(number, logits)
        return [(draws[0][0], generator) for _, generator in draws]


@bug(
    EngineCore,
    "the last token is counted among those that are kept",
    told_by="raised NeverFits: 13 tokens to keep",
)
class TooCareful(EngineCore):
    def validate(self, prompt, sampling):
        longer = [*prompt, 0] if len(prompt) + sampling.max_tokens < 60 and prompt else prompt
        super().validate(longer, sampling)


@bug(
    EngineCore,
    "a request that can never fit waits for ever",
    told_by="should raise NeverFits when 13 slots are needed",
)
class WaitsForEver(EngineCore):
    def validate(self, prompt, sampling):
        cache = self.runner.cache
        self.runner.cache = type("Large", (), {"K": torch.empty(1, 1, 10_000, 16, 1)})
        try:
            super().validate(prompt, sampling)
        finally:
            self.runner.cache = cache


@bug(
    EngineCore,
    "a request waits before its generator is made, and stays when there is none for its seed",
    told_by="after a request was refused: the seed is 2^64",
)
class QueuesFirst(EngineCore):
    def add(self, prompt, sampling=None):
        sampling = Sampling() if sampling is None else sampling
        self.validate(prompt, sampling)
        number, slots = next(self.numbers), len(prompt) + sampling.max_tokens - 1
        forks, together = max(sampling.samples, sampling.beams) - 1, sampling.beams > 1
        self.scheduler.add(number, prompt, slots, forks, together)
        self.requests[number] = []
        self.enter(number, sampling, self.requests[number])
        return number


@bug(
    EngineCore,
    "abort ends again what has ended already",
    told_by="EngineCore.abort raised ValueError",
    classic=True,
)
class AbortsAgain(EngineCore):
    def abort(self, number):
        for sample in self.requests.get(number, []):
            self.end(sample, "abort")


@bug(
    EngineCore,
    "an error inside the model leaves tables longer than what is computed",
    classic=True,
)
class KeepsWhatWasPlanned(EngineCore):
    def __init__(self, *settings, **named):
        super().__init__(*settings, **named)
        self.scheduler.undo = lambda work: None


@bug(
    EngineCore,
    "only the first of a request's samples is asked whether it has ended",
    told_by="three samples of one token each should all have ended",
)
class FirstEnds(EngineCore):
    def write(self, number, draws):
        finish = self.finish
        self.finish = lambda each: finish(each) if each == number else None
        try:
            return super().write(number, draws)
        finally:
            del self.finish


@bug(EngineCore, "abort stops at the first sample that has ended")
class AbortsSome(EngineCore):
    def abort(self, number):
        for sample in self.requests.get(number, []):
            if self.sequences[sample].reason is not None:
                return
            self.end(sample, "abort")


@bug(
    EngineCore,
    "a request is refused that fits when others have ended",
    told_by="raised NeverFits: not now",
)
class OnlyWhatIsFree(EngineCore):
    def validate(self, prompt, sampling):
        super().validate(prompt, sampling)
        slots = len(prompt) + sampling.max_tokens - 1
        allocator, S = self.scheduler.manager.allocator, self.scheduler.manager.block_size
        if math.ceil(slots / S) > allocator.available:
            raise NeverFits("not now")


@bug(choose_beams, "a beam that has ended goes on")
def goes_on(log_p, lengths, next_log_p, ended, width, alpha=1.0):
    return choose_beams(log_p, lengths, next_log_p, torch.zeros_like(ended), width, alpha)


@bug(choose_beams, "beams are judged by log p, whatever their length")
def whatever_length(log_p, lengths, next_log_p, ended, width, alpha=1.0):
    return choose_beams(log_p, lengths, next_log_p, ended, width, 0.0)


@bug(choose_beams, "a continuation is judged by the length before it", classic=True)
def length_before(log_p, lengths, next_log_p, ended, width, alpha=1.0):
    return choose_beams(log_p, lengths - (~ended).long(), next_log_p, ended, width, alpha)


@bug(choose_beams, "a beam that has ended is judged by a length that is one too large")
def ended_one_longer(log_p, lengths, next_log_p, ended, width, alpha=1.0):
    return choose_beams(log_p, lengths + ended, next_log_p, ended, width, alpha)


@bug(choose_beams, "no place is reserved for what greedy decoding writes", classic=True)
def nothing_reserved(log_p, lengths, next_log_p, ended, width, alpha=1.0):
    R, V = next_log_p.shape
    all_of_them = choose_beams(log_p, lengths, next_log_p, ended, R * V, alpha)
    length = (lengths + ~ended).tolist()
    return sorted(all_of_them, key=lambda one: one[2] / length[one[0]] ** alpha)[::-1][:width]


@bug(choose_beams, "what is returned is the score, divided by the length, not log p")
def gives_scores(log_p, lengths, next_log_p, ended, width, alpha=1.0):
    chosen = choose_beams(log_p, lengths, next_log_p, ended, width, alpha)
    length = (lengths + ~ended).tolist()
    return [(row, token, total / length[row] ** alpha) for row, token, total in chosen]


@bug(choose_beams, "the beams so far do not count: only the next token does")
def only_the_next(log_p, lengths, next_log_p, ended, width, alpha=1.0):
    return choose_beams(torch.zeros_like(log_p), lengths, next_log_p, ended, width, alpha)


@bug(choose_beams, "beams that have ended are left out")
def without_ended(log_p, lengths, next_log_p, ended, width, alpha=1.0):
    below = torch.where(ended, -math.inf, log_p)
    return choose_beams(below, lengths, next_log_p, ended, width, alpha)


@bug(choose_beams, "every beam keeps its own best continuation: they do not compete")
def each_its_best(log_p, lengths, next_log_p, ended, width, alpha=1.0):
    chosen = []
    for row in range(len(log_p)):
        one = slice(row, row + 1)
        given = log_p[one], lengths[one], next_log_p[one], ended[one]
        ((_, token, total),) = choose_beams(*given, 1, alpha)
        chosen.append((row, token, total))
    return chosen[:width]


@bug(BeamCore, "beams that are not chosen keep their blocks")
class KeepsDropped(BeamCore):
    def drop(self, number):
        for block in self.scheduler.manager.blocks(number):
            self.scheduler.manager.allocator.share(block)
        super().drop(number)


@bug(
    BeamCore,
    "beams that are not chosen stay among the sequences",
    told_by="beams left in the engine",
)
class KeepsNumbers(BeamCore):
    def drop(self, number):
        if self.sequences[number].reason is None:
            self.scheduler.remove(number)


@bug(BeamCore, "the search is greedy: only the first beam branches")
class OnlyGreedy(BeamCore):
    def branch(self, beams):
        sampling = self.sequences[beams[0]].sampling
        self.sequences[beams[0]].sampling = sampling._replace(beams=1)
        super().branch(beams)
        self.sequences[beams[0]].sampling = sampling


@bug(BeamCore, "the log-probability of a beam is that of its last token")
class LastOnly(BeamCore):
    def draw(self, number, logits):
        drawn = super().draw(number, logits)
        sequence = self.sequences[number]
        if sequence.sampling.beams > 1:
            sequence.log_p = 0.0
        return drawn


@bug(BeamCore, "beams are compared by their logits, not by their log-probabilities", classic=True)
class ByLogits(BeamCore):
    def draw(self, number, logits):
        drawn = super().draw(number, logits)
        return logits if self.sequences[number].sampling.beams > 1 else drawn


@bug(BeamCore, "the stop token ends no beam")
class NeverStops(BeamCore):
    def finish(self, number):
        sampling = self.sequences[number].sampling
        if sampling.beams == 1 or self.sequences[number].tokens[-1] != sampling.stop:
            super().finish(number)
        elif len(self.sequences[number].output) == sampling.max_tokens:
            self.end(number, "length")


@bug(BeamCore, "alpha is not used")
class WithoutAlpha(BeamCore):
    def add(self, prompt, sampling=None):
        number = super().add(prompt, sampling)
        sampling = self.sequences[number].sampling
        self.sequences[number].sampling = sampling._replace(alpha=0.5)
        return number


@bug(BeamCore, "a fork has the log-probability of its parent")
class KeepsLogP(BeamCore):
    def branch(self, beams):
        before, self.parents = {n: self.sequences[n].log_p for n in beams}, {}
        super().branch(beams)
        for child, parent in self.parents.items():
            self.sequences[child].log_p = before[parent]

    def split(self, number):
        child = super().split(number)
        self.parents[child] = number
        return child


@bug(BeamCore, "the beams change their order: the first is no longer the greedy one")
class OtherOrder(BeamCore):
    def branch(self, beams):
        super().branch(beams)
        beams.reverse()


@bug(Engine, "the prompts' outputs come in the opposite order")
class Backwards(Engine):
    def collect(self, numbers):
        return super().collect(numbers[::-1])


@bug(Engine, "prompts before the one that is refused have begun", told_by="running, -1, waiting")
class BeginsSome(Engine):
    def enlist(self, prompts, sampling):
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        return [self.add(*request) for request in zip(prompts, each, strict=True)]


@bug(Engine, "take gives all tokens every time, not only those that are new")
class TakesAll(Engine):
    def take(self, number):
        for each in self.requests[number]:
            self.sequences[each].taken = 0
        return super().take(number)


@bug(Engine, "take gives the last token of each sample only", classic=True)
class TakesLast(Engine):
    def take(self, number):
        found = dict(super().take(number))
        return list(found.items())


@bug(Engine, "only the first sample's tokens are handed out")
class FirstSample(Engine):
    def take(self, number):
        return [pair for pair in super().take(number) if pair[0] == 0]


@bug(Engine, "the tokens of all samples count as those of the first")
class SampleZero(Engine):
    def take(self, number):
        return [(0, token) for _, token in super().take(number)]


@bug(Engine, "a stream hands out the tokens of its own steps only")
class OwnSteps(Engine):
    def stream(self, prompts, sampling=None):
        numbers = self.enlist(prompts, sampling)
        try:
            if any(self.sequences[number].sampling.beams > 1 for number in numbers):
                raise ValueError("beams cannot be streamed")
            while self.unfinished(numbers):
                for number in numbers:
                    self.take(number)
                self.step()
                for place, number in enumerate(numbers):
                    yield from ((place, *pair) for pair in self.take(number))
        finally:
            self.withdraw(numbers)


@bug(
    Engine,
    "a stream ends with the last step, and forgets what the steps of others have added",
    told_by="tokens of a stream whose last steps others have made",
)
class EndsTooSoon(Engine):
    def stream(self, prompts, sampling=None):
        numbers = self.enlist(prompts, sampling)
        try:
            if any(self.sequences[number].sampling.beams > 1 for number in numbers):
                raise ValueError("beams change")
            while self.unfinished(numbers):
                self.step()
                for place, number in enumerate(numbers):
                    yield from ((place, *pair) for pair in self.take(number))
        finally:
            self.withdraw(numbers)


@bug(
    Engine,
    "all tokens are computed before the stream hands out the first",
    told_by="two requests should run or wait, yours are 0",
)
class AllAtOnce(Engine):
    def stream(self, prompts, sampling=None):
        return iter(list(super().stream(prompts, sampling)))


@bug(
    Engine,
    "what nobody listens to any more goes on",
    told_by="free blocks, running, -1, waiting, requests at the end",
)
class GoesOn(Engine):
    def stream(self, prompts, sampling=None):
        events = super().stream(prompts, sampling)
        self.listened = [*getattr(self, "listened", []), events]
        yield next(events)
        yield from events


@bug(Engine, "the stream hands out everything at the end, prompt after prompt")
class AtTheEnd(Engine):
    def stream(self, prompts, sampling=None):
        yield from sorted(super().stream(prompts, sampling), key=lambda event: event[0])


@bug(Engine, "what was begun stays in the engine when the model fails", told_by="generate")
class LeavesRequests(Engine):
    def generate(self, prompts, sampling=None):
        numbers = self.enlist(prompts, sampling)
        while self.unfinished(numbers):
            self.step()
        return self.collect(numbers)


@bug(
    Engine,
    "prompts are continued one after the other",
    told_by="steps for 6 tokens of each prompt",
)
class OneByOne(Engine):
    def generate(self, prompts, sampling=None):
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        generate = super().generate
        return [generate([prompt], [own])[0] for prompt, own in zip(prompts, each, strict=True)]


@bug(
    Engine,
    "what has ended stays in the engine",
    told_by="steps for 6 tokens of each prompt",
)
class KeepsAll(Engine):
    def collect(self, numbers):
        requests = {number: self.requests[number] for number in numbers}
        samples = {each: self.sequences[each] for row in requests.values() for each in row}
        found = super().collect(numbers)
        self.requests |= requests
        self.sequences |= samples
        return found


@bug(SwapSpace, "a block that several sequences use goes out once for each", classic=True)
class OutForEach(SwapSpace):
    def out(self, tables):
        copies = []
        for number, table in tables.items():
            copies += super().out({number: table})
        return copies


@bug(SwapSpace, "every use of a block counts as a block", told_by="raised OutOfBlocks: too few")
class CountsUses(SwapSpace):
    def out(self, tables):
        if sum(map(len, tables.values())) > self.available:
            raise OutOfBlocks("too few")
        return super().out(tables)


@bug(SwapSpace, "blocks on the host are never free again")
class KeepsHost(SwapSpace):
    def drop(self, number):
        del self.tables[number]


@bug(SwapSpace, "the copies are given as (to, from)")
class ToFrom(SwapSpace):
    def out(self, tables):
        return [(target, source) for source, target in super().out(tables)]


@bug(
    SwapSpace,
    "the number of the first host block is not added",
    told_by="different blocks from 100 to 108",
)
class NotAdded(SwapSpace):
    def out(self, tables):
        return [(source, target - self.first) for source, target in super().out(tables)]


@bug(SwapSpace, "some of a group go out although there is no room for all")
class SomeGoOut(SwapSpace):
    def out(self, tables):
        copies = []
        for number, table in tables.items():
            if number not in self.tables:
                rest = {number: table}
                copies += super().out(
                    rest if len(copies) else tables if self._all(tables) else rest
                )
        return copies

    def _all(self, tables):
        return len({block for table in tables.values() for block in table}) <= self.available


@bug(SwapSpace, "a block comes back to each sequence that used it as a block of its own")
class BackForEach(SwapSpace):
    def back(self, numbers, blocks):
        tables, copies = super().back(numbers, blocks)
        for number in numbers[1:]:
            tables[number] = tables[number][::-1]
        return tables, copies


@bug(
    SwapSpace,
    "blocks on the host count as available although they are in use",
    told_by="raised OutOfBlocks: all 6 blocks are in use",
)
class AllAvailable(SwapSpace):
    @property
    def available(self):
        return len(self.allocator.references)


@bug(
    SwapSpace,
    "only the first of several sequences is remembered",
    told_by="SwapSpace.back raised KeyError",
)
class OneRemembered(SwapSpace):
    def out(self, tables):
        copies = super().out(tables)
        for number in list(tables)[1:]:
            del self.tables[number]
        return copies


@bug(SwappingScheduler, "what is swapped out is computed again all the same", classic=True)
class ComputesAgain(SwappingScheduler):
    def preempt(self, number):
        members = self.members(number)
        super().preempt(number)
        for each in members:
            if each in self.space.tables:
                self.space.drop(each)
            self.sequences[each].computed = 0


@bug(SwappingScheduler, "nothing is copied out")
class NoCopiesOut(SwappingScheduler):
    def preempt(self, number):
        before = len(self.plan.copies)
        super().preempt(number)
        del self.plan.copies[before:]


@bug(SwappingScheduler, "nothing is copied back", told_by="(-1: nothing came there)")
class NoCopiesBack(SwappingScheduler):
    def enter(self, members):
        before = len(self.plan.copies)
        super().enter(members)
        self.plan.copies[before:] = [pair for pair in self.plan.copies[before:] if pair[0] < 10]


@bug(SwappingScheduler, "the host's blocks are kept when a sequence ends that is swapped out")
class KeepsOnHost(SwappingScheduler):
    def remove(self, number):
        table = self.space.tables.pop(number, None)
        super().remove(number)
        if table is not None:
            self.space.tables[number] = table


@bug(
    SwappingScheduler,
    "nothing is computed again when the host is full: it is an error",
    told_by="raised RuntimeError: the host is full",
)
class NeverRecomputes(SwappingScheduler):
    def preempt(self, number):
        blocks = {block for each in self.members(number) for block in self.manager.blocks(each)}
        if len(blocks) > self.space.available:
            raise RuntimeError("the host is full")
        super().preempt(number)


@bug(SwappingScheduler, "a group counts as one swap")
class CountsGroups(SwappingScheduler):
    def preempt(self, number):
        swaps = self.swaps
        super().preempt(number)
        self.swaps = swaps + (self.swaps > swaps)


@bug(SwappingScheduler, "the blocks of a table come back in the opposite order")
class BackInReverse(SwappingScheduler):
    def enter(self, members):
        swapped = [each for each in members if each in self.space.tables]
        super().enter(members)
        for each in swapped:
            self.sequences[each].block_table.blocks.reverse()


changed(
    Scheduler,
    "AdmitsFirst",
    "sequences are admitted before those that run are extended",
    (
        "            self.extend(number)\n        self.admit()\n",
        "            self.extend(number)\n",
    ),
    (
        "        for number in self.running:\n",
        "        self.admit()\n        for number in self.running:\n",
    ),
)
changed(
    Scheduler,
    "AdmitsThenExtends",
    "newcomers are planned before those that run already",
    (
        "        for number in self.running:\n"
        "            self.extend(number)\n"
        "        self.admit()\n",
        "        before = list(self.running)\n"
        "        self.admit()\n"
        "        for number in before:\n"
        "            self.extend(number)\n",
    ),
)
changed(
    Scheduler,
    "EmptyWork",
    "work of no token is planned for a sequence of which all is computed",
    ("        if count:\n", "        if True:\n"),
)
changed(
    Scheduler,
    "OneAtATime",
    "no more than one sequence is admitted in a step",
    ("        while self.waiting:\n", "        if self.waiting:\n"),
)
changed(
    Scheduler,
    "PassesOver",
    "one that has no place is passed over, and those behind it are admitted",
    (
        "        while self.waiting:\n            members = self.members(self.waiting[0])",
        "        for first in list(self.waiting):\n            members = self.members(first)",
    ),
    ("reserved > N:\n                return", "reserved > N:\n                continue"),
)
mistakes(
    Scheduler,
    """
AgainstFree: what all of them need is compared with the free blocks, not with all blocks
    reserved > N → reserved > self.manager.allocator.available
""",
)
changed(
    Scheduler,
    "NewAgainstFree",
    "only what the newcomers need is compared with the free blocks",
    (
        "for number in self.running + members]\n            reserved",
        "for number in members]\n            reserved",
    ),
    ("reserved > N", "reserved > self.manager.allocator.available"),
)
changed(
    Scheduler,
    "NewAgainstAll",
    "nothing is set aside for those that run: only the newcomers count",
    (
        "for number in self.running + members]\n            reserved",
        "for number in members]\n            reserved",
    ),
)
mistakes(
    Scheduler,
    """
RoundedDown: the blocks that a sequence needs are rounded down
    math.ceil(each.longest / S) → (each.longest // S)
OneMoreBlock: a sequence that fills its blocks is given one more
    math.ceil(each.longest / S) → (each.longest // S + 1)
""",
)
changed(
    Scheduler,
    "RoundedTogether",
    "the slots of all sequences are added up before they are rounded up to blocks",
    (
        "sum(math.ceil(each.longest / S) * (1 + each.forks) for each in together)",
        "math.ceil(sum(each.longest * (1 + each.forks) for each in together) / S)",
    ),
)
mistakes(
    Scheduler,
    """
OnePlaceLess: one sequence less than allowed may run
    > self.most or → >= self.most or
OneBlockLess: the last block is never set aside
    reserved > N → reserved >= N
TokensForLongest: blocks are set aside for the tokens that a sequence has, not for its longest form
    math.ceil(each.longest / S) → math.ceil(len(each.tokens) / S)
NotTheSequence: blocks are set aside for the forks to come, but not for the sequence itself
    (1 + each.forks) for each → max(1, each.forks) for each
SlotsForBlocks: blocks are compared with the number of slots
    reserved > N → reserved > N * S
PlacesOfNew: more sequences than allowed are admitted
    self.places(self.running + members) > self.most → self.places(members) > self.most
CountForStop: work is given as (number, start, count), not (number, start, stop)
    (number, start, start + count) → (number, start, count)
MembersAlone: the members of a group that waits are admitted one by one
    self.members(self.waiting[0]) → [self.waiting[0]]
""",
)
PLANNED = "            self.plan.work.append((number, start, start + count))\n"
changed(
    Scheduler,
    "NotedFirst",
    "work is planned before its blocks are there, and stays planned when there are none",
    (PLANNED, ""),
    ("        if count:\n", "        if count:\n" + PLANNED),
)
mistakes(
    Scheduler,
    """
CopiesReplaced: the copies of each sequence replace those that are planned for others
    self.plan.copies.extend(self.manager → self.plan.copies[:] = (self.manager
CountsAlone: the forks that are still to come have blocks, but no places
    self.places(self.running + members) → len(self.running + members)
""",
)
changed(
    Scheduler,
    "ListedOnce",
    "who is admitted in this step does not count when the next one is to be admitted",
    (
        "        while self.waiting:\n",
        "        held = list(self.running)\n        while self.waiting:\n",
    ),
    ("for number in self.running + members]\n", "for number in held + members]\n"),
    ("self.places(self.running + members)", "self.places(held + members)"),
)
changed(
    Scheduler,
    "BlocksListedOnce",
    "nothing is set aside for those admitted in this step when the next one is to be admitted",
    (
        "        while self.waiting:\n",
        "        held = list(self.running)\n        while self.waiting:\n",
    ),
    ("for number in self.running + members]\n", "for number in held + members]\n"),
)
mistakes(
    Scheduler,
    """
FromZero: all tokens of a sequence are computed in every step, not only the new ones
    (number, start, start + count) → (number, 0, start + count)
ForksNotDoubled: nothing is set aside for the forks that are still to come
    math.ceil(each.longest / S) * (1 + each.forks) → math.ceil(each.longest / S)
    self.places(self.running + members) > self.most → len(self.running + members) > self.most
OneBlockForForks: one block is set aside for each fork to come, however long it may become
    math.ceil(each.longest / S) * (1 + each.forks) → math.ceil(each.longest / S) + each.forks
""",
)
ROWS = "self.plan.work[:] = [row for row in self.plan.work if row[0] not in members]\n"
changed(
    PreemptingScheduler,
    "SkipsRows",
    "rows are removed from the plan while a loop goes over it, which skips every second one",
    (
        ROWS,
        "for row in self.plan.work:\n"
        "            if row[0] in members:\n"
        "                self.plan.work.remove(row)\n",
    ),
)
changed(
    PreemptingScheduler,
    "AdmitsFirst",
    "sequences are admitted before those that run are extended",
    ("        if self.preemptions == before:\n            self.admit()\n", ""),
    (
        "        for number in list(self.running):",
        "        self.admit()\n        for number in list(self.running):",
    ),
)
changed(
    PreemptingScheduler,
    "AdmitsThenExtends",
    "newcomers are planned before those that run already",
    ("        if self.preemptions == before:\n            self.admit()\n", ""),
    (
        "        for number in list(self.running):",
        "        held = list(self.running)\n        self.admit()\n        for number in held:",
    ),
)
mistakes(
    PreemptingScheduler,
    """
NeverAgain: nobody is admitted any more once a sequence has ever lost its blocks
    if self.preemptions == before: → if self.preemptions == 0:
CountsGroups: a group that loses its blocks counts as one preemption
    self.preemptions += len(members) → self.preemptions += 1
""",
)
changed(
    PreemptingScheduler,
    "GroupTurned",
    "a group waits in the opposite order",
    (
        "for each in reversed(members):\n            self.running",
        "for each in members:\n            self.running",
    ),
)
mistakes(
    PreemptingScheduler,
    """
AppendsEach: who has lost its blocks waits behind all others
    self.waiting.insert(0, each) → self.waiting.append(each)
BehindTheFirst: who has lost its blocks waits behind the first of those that wait
    self.waiting.insert(0, each) → self.waiting.insert(1, each)
""",
)
changed(
    PreemptingScheduler,
    "KeepsBlocks",
    "a sequence that is preempted keeps its blocks",
    ("            self.close(each)\n        self.preemptions", "        self.preemptions"),
)
changed(
    PreemptingScheduler,
    "ForgetsBlocks",
    "a sequence that is preempted keeps its blocks, although nothing of it counts as computed",
    (
        "            self.close(each)\n        self.preemptions",
        "            self.sequences[each].computed = 0\n        self.preemptions",
    ),
)
changed(
    PreemptingScheduler,
    "ClosedByManager",
    "the tokens of a sequence that is preempted still count as computed",
    (
        "            self.close(each)\n        self.preemptions",
        "            self.manager.close(each)\n        self.preemptions",
    ),
)
changed(
    PreemptingScheduler,
    "RowsStay",
    "work of a group stays planned when the group loses its blocks",
    ("        " + ROWS, ""),
)
changed(
    PreemptingScheduler,
    "AllWork",
    "the work of those that keep their blocks is dropped too",
    (ROWS, "self.plan.work.clear()\n"),
)
mistakes(
    PreemptingScheduler,
    """
AskerLoses: the one that asks for blocks loses its own, not the last to come
    self.preempt(self.running[-1]) → self.preempt(number)
""",
)
changed(
    PreemptingScheduler,
    "LongestLoses",
    "the longest loses its blocks, not the last to come",
    (
        "self.preempt(self.running[-1])",
        "self.preempt(max(self.running, key=lambda n: len(self.sequences[n].tokens)))",
    ),
)
changed(
    PreemptingScheduler,
    "NotTriedAgain",
    "the one that asks is not extended after another has lost its blocks",
    (
        "self.preempt(self.running[-1])\n",
        "self.preempt(self.running[-1])\n                    break\n",
    ),
)
changed(
    PreemptingScheduler,
    "StopsThere",
    "the step ends as soon as one has lost its blocks",
    (
        "self.preempt(self.running[-1])\n",
        "self.preempt(self.running[-1])\n                    return self.hand_over()\n",
    ),
)
changed(
    PreemptingScheduler,
    "TriesTwice",
    "only one sequence loses its blocks, although that may not be enough",
    (
        "            while number in self.running:\n"
        "                try:\n"
        "                    self.extend(number)\n"
        "                    break\n"
        "                except OutOfBlocks:\n"
        "                    self.preempt(self.running[-1])\n",
        "            if number in self.running:\n"
        "                try:\n"
        "                    self.extend(number)\n"
        "                except OutOfBlocks:\n"
        "                    self.preempt(self.running[-1])\n"
        "                    if number in self.running:\n"
        "                        self.extend(number)\n",
    ),
    told_by="PreemptingScheduler.schedule raised OutOfBlocks",
)
changed(
    PreemptingScheduler,
    "ExtendsTwice",
    "a sequence is extended again after that has succeeded",
    (
        "                    self.extend(number)\n                    break\n",
        "                    self.extend(number)\n",
    ),
    told_by="ran for more than",
)
mistakes(
    PreemptingScheduler,
    """
ExtendsTheLost: a sequence is still extended when it has lost its blocks itself
    while number in self.running: → while True:
    says: has no attribute
OnePlaceLess: one sequence less than allowed may run
    > self.most or → >= self.most or
""",
)
changed(
    PreemptingScheduler,
    "WithoutWork",
    "one enters of which nothing can be computed in this step",
    (" or not any(map(self.count, members)):", ":"),
)
mistakes(
    PreemptingScheduler,
    """
AllWithWork: a group waits until something of each member can be computed
    not any(map(self.count, members)) → not all(map(self.count, members))
""",
)
changed(
    PreemptingScheduler,
    "PassesOver",
    "one that cannot enter is passed over, and those behind it are admitted",
    (
        "        while self.waiting:\n"
        "            members = self.members(self.waiting[0])\n"
        "            if self.places",
        "        for first in list(self.waiting):\n"
        "            if first not in self.waiting:\n"
        "                continue\n"
        "            members = self.members(first)\n"
        "            if self.places",
    ),
    (
        "except OutOfBlocks:\n                return\n",
        "except OutOfBlocks:\n                continue\n",
    ),
)
changed(
    PreemptingScheduler,
    "OneAtATime",
    "no more than one sequence is admitted in a step",
    ("        while self.waiting:\n", "        if self.waiting:\n"),
)
changed(
    PreemptingScheduler,
    "MembersAlone",
    "the members of a group that waits are admitted one by one",
    (
        "            members = self.members(self.waiting[0])\n            if self.places",
        "            members = [self.waiting[0]]\n            if self.places",
    ),
)
changed(
    PreemptingScheduler,
    "HitsTooEarly",
    "what is found counts as hits also of one that cannot enter",
    (
        "        found = sum(map(self.open, members))\n",
        "        found = sum(map(self.open, members))\n        self.hits += found\n",
    ),
    ("            raise\n        self.hits += found\n", "            raise\n"),
)
changed(
    PreemptingScheduler,
    "HitsOfTheLast",
    "`hits` holds what the last one found, not what all have found",
    ("raise\n        self.hits += found", "raise\n        self.hits = found"),
)
changed(
    PreemptingScheduler,
    "StaysOpen",
    "one that cannot enter keeps the blocks that were found for it",
    (
        "            for number in reversed(members):\n"
        "                self.close(number)\n"
        "            raise\n",
        "            raise\n",
    ),
)
changed(
    PreemptingScheduler,
    "FirstIsClosed",
    "of a group that cannot enter, only the first gives back the blocks that were found",
    (
        "            for number in reversed(members):\n"
        "                self.close(number)\n"
        "            raise\n",
        "            self.close(members[0])\n            raise\n",
    ),
)
changed(
    PreemptingScheduler,
    "NeedsAll",
    "blocks are demanded for all tokens, also for those that were found",
    (
        "self.sequences[number].block_table.missing(self.count(number)) for number",
        "math.ceil(len(self.sequences[number].tokens) / self.manager.block_size) for number",
    ),
)
changed(
    PreemptingScheduler,
    "DemandsTokens",
    "as many blocks are demanded as there are tokens to compute",
    ("self.demand(need)\n", "self.demand(sum(map(self.count, members)))\n"),
)
changed(
    PreemptingScheduler,
    "NoDemand",
    "a group enters without any demand for blocks",
    ("            self.demand(need)\n", "            pass\n"),
)
changed(
    PreemptingScheduler,
    "ForgetsOutput",
    "a sequence that is preempted loses the tokens that it has generated",
    (
        "            self.close(each)\n        self.preemptions",
        "            self.close(each)\n"
        "            del self.sequences[each].tokens[self.sequences[each].prompt_length :]\n"
        "        self.preemptions",
    ),
)
changed(
    PreemptingScheduler,
    "SwallowsIt",
    "`enter` does not raise when the blocks are too few",
    (
        "                self.close(number)\n            raise\n",
        "                self.close(number)\n            return\n",
    ),
    told_by="ran for more than",
)
changed(
    PreemptingScheduler,
    "BreaksOff",
    "who stands behind one that asked for blocks in vain gets no work in this step",
    (
        "        if self.preemptions == before:\n",
        "            if self.preemptions > before:\n"
        "                break\n"
        "        if self.preemptions == before:\n",
    ),
)
changed(
    PreemptingScheduler,
    "ResetForEach",
    "that one has lost its blocks is forgotten as soon as the next one is extended",
    (
        "        for number in list(self.running):\n",
        "        for number in list(self.running):\n            before = self.preemptions\n",
    ),
)
changed(
    PreemptingScheduler,
    "DropsTheirCopies",
    "copies from or into blocks of a sequence that loses them are planned no more",
    (
        "        for each in reversed(members):\n            self.running",
        "        lost = {block for each in members for block in self.manager.blocks(each)}\n"
        "        self.plan.copies[:] = [row for row in self.plan.copies if row[1] not in lost]\n"
        "        for each in reversed(members):\n            self.running",
    ),
)
changed(
    PreemptingScheduler,
    "DropsCopiesFrom",
    "copies from or into blocks of a sequence that loses them are planned no more",
    (
        "        for each in reversed(members):\n            self.running",
        "        lost = {block for each in members for block in self.manager.blocks(each)}\n"
        "        self.plan.copies[:] = [row for row in self.plan.copies if row[0] not in lost]\n"
        "        for each in reversed(members):\n            self.running",
    ),
)
MISSING = "self.sequences[number].block_table.missing(self.count(number))"
changed(
    PreemptingScheduler,
    "DemandsEach",
    "a group enters when there are blocks for each of its members alone",
    (
        "            self.demand(need)\n",
        f"            for number in members:\n                self.demand({MISSING})\n",
    ),
)
mistakes(
    PreemptingScheduler,
    """
PlacesOfNew: more sequences than allowed are admitted
    self.places(self.running + members) > self.most → self.places(members) > self.most
CountsAlone: the forks that are still to come have no places
    self.places(self.running + members) → len(self.running + members)
""",
)
changed(
    PreemptingScheduler,
    "NotMoreThanOne",
    "nobody is preempted for a second time in a step",
    (
        "                except OutOfBlocks:\n",
        "                except OutOfBlocks:\n"
        "                    if self.preemptions > before:\n"
        "                        break\n",
    ),
)
SPENT = "sum(stop - start for _, start, stop in self.plan.work)"
changed(
    ChunkedScheduler,
    "StopsCounted",
    "the budget counts the positions up to which is computed, not the tokens",
    (SPENT, "sum(stop for _, _, stop in self.plan.work)"),
)
changed(
    ChunkedScheduler,
    "RowsCounted",
    "a sequence in the plan costs one token of the budget, however many it computes",
    (SPENT, "len(self.plan.work)"),
)
changed(
    ChunkedScheduler,
    "SingleTokensFree",
    "single tokens do not count against the budget",
    (SPENT, "sum(stop - start for _, start, stop in self.plan.work if stop - start > 1)"),
)
changed(
    ChunkedScheduler,
    "AtLeastOne",
    "every sequence computes a token, also when nothing is left of the budget",
    (
        "return min(super().count(number), self.budget - spent)",
        "return max(1, min(super().count(number), self.budget - spent))",
    ),
)
changed(
    ChunkedScheduler,
    "AllOrNothing",
    "a prompt is computed as a whole or, when the budget is too small for that, not at all",
    (
        "return min(super().count(number), self.budget - spent)",
        "wanted = super().count(number)\n"
        "        return wanted if wanted <= self.budget - spent else 0",
    ),
)
EXTENDED = "        self.plan.copies.extend(copies)\n        for each in members:\n            "
changed(
    SwappingScheduler,
    "ComputedLost",
    "what is swapped out no longer counts as computed",
    (
        "        for each in members:\n"
        "            self.sequences[each].computed = computed[each]\n"
        "        self.swaps",
        "        self.swaps",
    ),
)
changed(
    SwappingScheduler,
    "OutFirst",
    "blocks go out before the copies that were planned earlier, and that fill them",
    (
        EXTENDED + "self.sequences",
        EXTENDED.replace(".extend(copies)", "[:0] = copies") + "self.sequences",
    ),
)
changed(
    SwappingScheduler,
    "OutReplaces",
    "what goes out replaces the copies that are planned already",
    (
        EXTENDED + "self.sequences",
        EXTENDED.replace(".extend(copies)", "[:] = copies") + "self.sequences",
    ),
)
changed(
    SwappingScheduler,
    "BackReplaces",
    "what comes back replaces the copies that are planned already",
    (EXTENDED + "sequence =", EXTENDED.replace(".extend(copies)", "[:] = copies") + "sequence ="),
)
changed(
    SwappingScheduler,
    "NotCopiedBack",
    "what comes back from the host is not copied",
    (EXTENDED + "sequence =", EXTENDED.partition("\n")[2] + "sequence ="),
)
changed(
    SwappingScheduler,
    "OutOneByOne",
    "the members of a group go out one by one, and share nothing on the host",
    (
        "            copies = self.space.out({each: self.manager.blocks(each) "
        "for each in members})\n",
        "            copies = []\n"
        "            for each in members:\n"
        "                copies += self.space.out({each: self.manager.blocks(each)})\n",
    ),
)
changed(
    SwappingScheduler,
    "OnlyOneGoesOut",
    "of a group, only one member goes out to the host",
    ("for each in members})\n        except", "for each in [number]})\n        except"),
)
changed(
    SwappingScheduler,
    "AlwaysShares",
    "`share` counts the first user of a block too, whom `allocate` has counted already",
    (
        "                if block in blocks:\n"
        "                    blocks.remove(block)  # its first user is counted already\n"
        "                else:\n"
        "                    self.manager.allocator.share(block)\n",
        "                self.manager.allocator.share(block)\n",
    ),
)
changed(
    SwappingScheduler,
    "NobodyLoses",
    "nobody loses its blocks when the host is full",
    (
        "        except OutOfBlocks:\n            super().preempt(number)\n            return\n",
        "        except OutOfBlocks:\n            return\n",
    ),
    told_by="ran for more than",
)
changed(
    SwappingScheduler,
    "StaysComputed",
    "what the host had no room for still counts as computed",
    (
        "            super().preempt(number)\n            return\n",
        "            super().preempt(number)\n"
        "            for each in members:\n"
        "                self.sequences[each].computed = computed[each]\n"
        "            return\n",
    ),
)
changed(
    SwappingScheduler,
    "SwapsAnyway",
    "what the host had no room for counts as a swap",
    (
        "            super().preempt(number)\n            return\n",
        "            super().preempt(number)\n"
        "            self.swaps += len(members)\n"
        "            return\n",
    ),
)
changed(
    SwappingScheduler,
    "AskedTooLate",
    "the tables are given to `out` after their blocks were taken away",
    (
        "        try:\n            copies",
        "        super().preempt(number)\n        try:\n            copies",
    ),
    (
        "        except OutOfBlocks:\n"
        "            super().preempt(number)\n"
        "            return\n"
        "        super().preempt(number)\n",
        "        except OutOfBlocks:\n            return\n",
    ),
)
changed(
    SwappingScheduler,
    "WholeBlocks",
    "a table that comes back has as many positions as its blocks have slots",
    (
        "append(sequence.computed, tables[each])",
        "append(len(tables[each]) * self.manager.block_size, tables[each])",
    ),
)
COMPUTED = """        for each in members:
            self.sequences[each].computed = computed[each]
"""
changed(
    SwappingScheduler,
    "OneStaysComputed",
    "of a group that is swapped out, only one member still counts as computed",
    (COMPUTED, "        self.sequences[number].computed = computed[number]\n"),
)
changed(
    SwappingScheduler,
    "FullBlocksOnly",
    "only full blocks go out, and what is in the last one is computed again",
    (
        "computed = {each: self.sequences[each].computed for each in members}\n",
        "S = self.manager.block_size\n"
        "        computed = {each: self.sequences[each].computed // S * S for each in members}\n",
    ),
    (
        "self.manager.blocks(each) for each in members})\n        except",
        "self.manager.blocks(each)[: computed[each] // S] for each in members})\n        except",
    ),
)
changed(
    SwappingScheduler,
    "CountsAsHits",
    "what comes back from the host counts as found in the cache",
    (
        "            sequence = self.sequences[each]\n",
        "            sequence = self.sequences[each]\n            self.hits += sequence.computed\n",
    ),
)
BACK = """            for block in tables[each]:
                if block in blocks:
                    blocks.remove(block)  # its first user is counted already
                else:
                    self.manager.allocator.share(block)
"""
changed(
    SwappingScheduler,
    "SeenByEach",
    "a block that two of a group share has one user when it is back",
    (BACK, ""),
)
changed(
    SwappingScheduler,
    "NoneAfterTheFirst",
    "a block has one user more than it should when it is shared by a group that comes back",
    (
        BACK,
        "            for block in tables[each]:\n"
        "                if sum(block in table for table in tables.values()) > 1:\n"
        "                    self.manager.allocator.share(block)\n",
    ),
)
changed(
    SwappingScheduler,
    "CountsBackToo",
    "what comes back counts as a swap too",
    (
        "        places = self.space.blocks(members)\n",
        "        places = self.space.blocks(members)\n        self.swaps += len(members)\n",
    ),
)
mistakes(
    SwappingScheduler,
    """
CountsBlocks: the blocks that go out are counted as swaps, not the sequences
    self.swaps += len(members) → self.swaps += len(copies)
""",
)
changed(
    SwappingScheduler,
    "EmptyTables",
    "a table that comes back has the tokens of its sequence as positions, not what is computed",
    ("append(sequence.computed, tables[each])", "append(len(sequence.tokens), tables[each])"),
)
changed(
    SwappingScheduler,
    "ComputedAfterwards",
    "what is swapped out no longer counts as computed",
    (
        "        computed = {each: self.sequences[each].computed for each in members}\n",
        "",
    ),
    (
        "        super().preempt(number)\n        self.plan",
        "        super().preempt(number)\n"
        "        computed = {each: self.sequences[each].computed for each in members}\n"
        "        self.plan",
    ),
)
changed(
    SwappingScheduler,
    "OneForAll",
    "a whole group comes back with as many tokens computed as one of its members has",
    (
        "self.sequences[each].computed = computed[each]",
        "self.sequences[each].computed = computed[number]",
    ),
)
changed(
    SwappingScheduler,
    "FirstForAll",
    "a whole group comes back with as many tokens computed as one of its members has",
    (
        "self.sequences[each].computed = computed[each]",
        "self.sequences[each].computed = computed[members[0]]",
    ),
)

mistakes(
    SwapSpace,
    """
KeptPlaces: where a block has gone is remembered from call to call, when it holds something else
    here: dict[int, int] = {} → here = self.__dict__.setdefault('here', {})
""",
)
changed(
    SwapSpace,
    "NeverShares",
    "a block that several use has one user on the host",
    ("                    self.allocator.share(here[block])\n", "                    pass\n"),
)
changed(
    SwapSpace,
    "OthersForgotten",
    "the tables of those that went out earlier are forgotten",
    (
        "        here: dict[int, int] = {}\n",
        "        here: dict[int, int] = {}\n        self.tables = {}\n",
    ),
)
mistakes(
    SwapSpace,
    """
OneBlockLess: the last block on the host is never used
    len(blocks) > self.available → len(blocks) >= self.available
""",
)
changed(
    SwapSpace,
    "NotDropped",
    "sequences that come back keep their blocks on the host",
    (
        "        for number in numbers:\n            self.drop(number)\n        return",
        "        return",
    ),
)
changed(
    SwapSpace,
    "OnlyForgotten",
    "the tables of sequences that come back are forgotten, but their blocks are not freed",
    (
        "            self.drop(number)\n        return",
        "            del self.tables[number]\n        return",
    ),
)
changed(
    SwapSpace,
    "FirstDropped",
    "of several sequences that come back, only the first leaves the host",
    (
        "        for number in numbers:\n            self.drop(number)\n        return",
        "        self.drop(numbers[0])\n        return",
    ),
)
mistakes(
    SwapSpace,
    """
BackTurned: the copies back are given as (to, from)
    [(self.first + place, block) for → [(block, self.first + place) for
BackNotAdded: the number of the first host block is not added to what comes back
    [(self.first + place, block) for → [(place, block) for
""",
)
changed(
    SwapSpace,
    "DroppedFirst",
    "blocks on the host are freed although the number of blocks is wrong",
    (
        "        there = dict(",
        "        own, places = {n: self.tables[n] for n in numbers}, self.blocks(numbers)\n"
        "        for number in numbers:\n"
        "            self.drop(number)\n"
        "        there = dict(",
    ),
    ("zip(self.blocks(numbers), blocks", "zip(places, blocks"),
    ("for place in self.tables[number]] for", "for place in own[number]] for"),
    (
        "in numbers}\n"
        "        for number in numbers:\n"
        "            self.drop(number)\n"
        "        return",
        "in numbers}\n        return",
    ),
)
mistakes(
    SwapSpace,
    """
NotAtOnce: some blocks are taken before it is known that they are too few
    if len(blocks) > self.available: → if False:
""",
)

changed(
    EngineCore,
    "OnlyExceptions",
    "a KeyboardInterrupt, which is no Exception, leaves tables longer than what is computed",
    ("except BaseException:", "except Exception:"),
)
DRAWN = """            drawn = {
                number: self.draw(number, row)
                for (number, _, stop), row in zip(plan.work, logits, strict=True)
                if stop == len(self.sequences[number].tokens)  # no chunk of a longer prompt
            }
"""
ADVANCED = """        for number, _, stop in plan.work:
            self.scheduler.advance(number, stop)
"""
changed(
    EngineCore,
    "AdvancedTooSoon",
    "tokens count as computed before `draw`, which may raise",
    (ADVANCED, ""),
    (DRAWN, ADVANCED.replace("  for", "      for").replace("  self", "      self") + DRAWN),
)
changed(
    EngineCore,
    "DrawsOutside",
    "the plan is not undone when `draw` raises",
    (DRAWN, ""),
    (ADVANCED, DRAWN.replace("\n    ", "\n").removeprefix("    ") + ADVANCED),
)
changed(
    EngineCore,
    "NewGenerators",
    "a sample does not keep the generator that has drawn: it draws its first number again",
    ("            self.sequences[each].generator = generator\n", ""),
)
changed(
    EngineCore,
    "ForksLate",
    "a sequence gets its token before it is forked: its forks have that token too",
    (
        "        samples = [number, *(self.fork(number) for _ in draws[1:])]\n"
        "        for each, (token, generator) in zip(samples, draws, strict=True):\n",
        "        samples = []\n"
        "        for token, generator in draws:\n"
        "            each = self.fork(number) if samples else number\n"
        "            samples.append(each)\n",
    ),
)
changed(
    EngineCore,
    "CopiesOutside",
    "what was planned is not taken back when a copy fails: it is made outside the `try`",
    (
        "        try:\n            self.runner.copy(plan.copies)\n",
        "        self.runner.copy(plan.copies)\n        try:\n",
    ),
)
changed(
    EngineCore,
    "ForkOfAFork",
    "each sample is forked from the one before it, so that the first still expects its forks",
    (
        "        samples = [number, *(self.fork(number) for _ in draws[1:])]\n",
        "        samples = [number]\n"
        "        for _ in draws[1:]:\n"
        "            samples.append(self.fork(samples[-1]))\n",
    ),
)
mistakes(
    EngineCore,
    """
GeneratorsOfTheFirst: the generators of all samples are given to the first one
    self.sequences[each].generator = generator → self.sequences[number].generator = generator
TokensOfTheFirst: the tokens of all samples are added to the first one
    self.scheduler.append(each, token) → self.scheduler.append(number, token)
    says: Requests should end within 300 steps
""",
)
changed(
    EngineCore,
    "TellsTheFirst",
    "a step returns only the first sample's token",
    (
        "return [(each, token) for each, (token, _) in zip(samples, draws, strict=True)]",
        "return [(number, draws[0][0])]",
    ),
)
mistakes(
    EngineCore,
    """
TellsOneNumber: a step returns the tokens of all samples under the number of the first
    return [(each, token) for each, (token, _) in → return [(number, token) for each, (token, _) in
""",
)
changed(
    EngineCore,
    "NeverEnds",
    "a sequence that has all its tokens does not end",
    ("            self.finish(each)\n", ""),
)
changed(
    EngineCore,
    "FinishesFirst",
    "whether a sequence ends is asked before it gets its token",
    ("            self.finish(each)\n", ""),
    (
        "            self.scheduler.append(each, token)\n",
        "            self.finish(each)\n            self.scheduler.append(each, token)\n",
    ),
)
mistakes(
    EngineCore,
    """
AbortForgets: `abort` takes the request out of `requests`, where `collect` looks for it
    self.requests.get(number, []) → self.requests.pop(number, [])
AbortsTheFirst: `abort` ends only the first sample of a request
    self.requests.get(number, []): → self.requests.get(number, [])[:1]:
OtherReason: `abort` gives the reason 'length'
    self.end(sample, "abort") → self.end(sample, "length")
MustBeKnown: `abort` raises for a request that it does not know
    self.requests.get(number, []) → self.requests[number]
    says: EngineCore.abort raised KeyError
""",
)
changed(
    EngineCore,
    "DrawsForChunks",
    "a chunk of a prompt gives a token although the prompt goes on",
    (
        "                if stop == len(self.sequences[number].tokens)"
        "  # no chunk of a longer prompt\n",
        "",
    ),
)
changed(
    EngineCore,
    "NeverAdvances",
    "what is computed never counts as computed",
    (ADVANCED, ""),
)
changed(
    EngineCore,
    "WritesFirst",
    "tokens are added, and samples forked, before what was read counts as computed",
    (ADVANCED, ""),
    (
        "for pair in self.write(number, draws)]\n        ###",
        "for pair in self.write(number, draws)]\n" + ADVANCED + "        ###",
    ),
)
changed(
    EngineCore,
    "NothingUndone",
    "an error inside the model leaves tables longer than what is computed",
    ("            self.scheduler.undo(plan.work)\n            raise\n", "            raise\n"),
)
changed(
    EngineCore,
    "SwallowsErrors",
    "an error inside the model is kept quiet: the step returns nothing",
    (
        "            self.scheduler.undo(plan.work)\n            raise\n",
        "            self.scheduler.undo(plan.work)\n            return []\n",
    ),
    told_by="should raise RuntimeError when the model fails",
)
changed(
    EngineCore,
    "NeverCopies",
    "blocks are not copied before they are written: the plan's copies are ignored",
    ("            self.runner.copy(plan.copies)\n", ""),
)
mistakes(
    EngineCore,
    """
OneBeamMustFit: blocks are demanded for one beam only
    if beams * math.ceil((length - 1) / S) > N: → if math.ceil((length - 1) / S) > N:
    says: two beams need four blocks
RoundedTogether: the slots of all beams are added up before they are rounded up to blocks
    beams * math.ceil((length - 1) / S) → math.ceil(beams * (length - 1) / S)
    says: two beams need four blocks
""",
)
changed(
    EngineCore,
    "OnlyWhenDrawn",
    "the settings are looked at only if the temperature is above 0",
    (
        "        token_probabilities(torch.zeros(1, 2), sampling.temperature, sampling.top_k, "
        "sampling.top_p)\n",
        "        if sampling.temperature > 0:\n"
        "            settings = sampling.temperature, sampling.top_k, sampling.top_p\n"
        "            token_probabilities(torch.zeros(1, 2), *settings)\n",
    ),
    told_by="top_p is 2 and the temperature 0",
)
mistakes(
    EngineCore,
    """
ContextTooShort: a request that just fills the context is refused
    if length > self.runner → if length >= self.runner
    says: exceed the context
""",
)
changed(
    EngineCore,
    "DrawsInOutput",
    "a sequence that is computed again gets a token after each piece of its output, not the last",
    (
        "if stop == len(self.sequences[number].tokens)",
        "if stop >= self.sequences[number].prompt_length",
    ),
)
changed(
    Engine,
    "StreamOnlyExceptions",
    "a stream that is closed is not withdrawn: its end comes as GeneratorExit, no Exception",
    (
        "        finally:\n            self.withdraw(numbers)\n",
        "        except Exception:\n"
        "            self.withdraw(numbers)\n"
        "            raise\n"
        "        self.withdraw(numbers)\n",
    ),
    told_by="free blocks, running, -1, waiting, requests at the end",
)
changed(
    Engine,
    "GenerateOnlyExceptions",
    "a KeyboardInterrupt, which is no Exception, leaves the requests in the engine",
    ("self.step()\n        except BaseException:", "self.step()\n        except Exception:"),
    ("own))\n        except BaseException:", "own))\n        except Exception:"),
    told_by="free blocks, running, -1, waiting, requests: generate",
)
mistakes(
    Engine,
    """
ServesEverybody: `generate` goes on until all requests have ended, those of others too
    while self.unfinished(numbers): → while self.scheduler.running or self.scheduler.waiting:
    says: unfinished ones, which another has added
""",
)
changed(
    Engine,
    "CollectsAll",
    "`generate` takes the requests of others out of the engine too",
    (
        "return self.collect(numbers)\n        ###",
        "return self.collect(list(self.requests))\n        ###",
    ),
    told_by="generate",
)
changed(
    Engine,
    "OneStepMore",
    "a stream makes one more step when all has ended",
    (
        "                if is_going:\n                    self.step()\n",
        "                self.step()\n",
    ),
    told_by="steps that were made, and requests left",
)

equivalent(
    PreemptingScheduler,
    "for number in list(self.running): → for number in (lambda same: same)(self.running):",
    "only the last ones are removed, and the loop has not come to them",
)
equivalent(
    ChunkedScheduler,
    "return min(super().count(number), self.budget - spent) → return min(self.budget - spent, "
    "super().count(number))",
    "the smaller of two has no order",
)
equivalent(
    ModelRunner,
    "return torch.empty(0, 0, device=self.model.device) → return torch.empty(0, 0)",
    "checks run where the default device is the model's",
)
equivalent(
    ModelRunner,
    "tensor = partial(torch.tensor, device=self.model.device) → tensor = partial(torch.tensor)",
    "checks run where the default device is the model's",
)
equivalent(
    ModelRunner,
    "groups: dict[int, list[tuple]] = {} → groups: dict[list[tuple], int] = {}",
    "an annotation",
)
equivalent(
    ModelRunner,
    "return torch.empty(0, 0, device=self.model.device) → "
    "return torch.empty(0, 1, device=self.model.device)",
    "no rows either",
)
equivalent(
    ModelRunner,
    "groups.setdefault(len(new), []).append((list(rows), blocks, stop)) → "
    "groups.setdefault(len(new), []).append(((lambda same: same)(rows), blocks, stop))",
    "rows are only read",
)
equivalent(
    ModelRunner,
    "padded = tensor([blocks + [0] * (longest - len(blocks)) for _, blocks, _ in group]) → "
    "padded = tensor([blocks + [1] * (longest - len(blocks)) for _, blocks, _ in group])",
    "what is beyond the length is not read",
)
equivalent(
    ModelRunner,
    "tensor = partial(torch.tensor, device=self.model.device) → tensor = "
    "vars(self).setdefault('tensor', partial(torch.tensor, device=self.model.device))",
    "it is the same each time",
)
equivalent(
    ModelRunner,
    "return torch.empty(0, 0, device=self.model.device) → "
    "return torch.empty(0, 0, device=self.model.device).squeeze()",
    "no rows either",
)
equivalent(
    EngineCore,
    "token_probabilities(torch.zeros(1, 2), sampling.temperature, sampling.top_k, "
    "sampling.top_p) → token_probabilities(torch.zeros(2, 1), sampling.temperature, "
    "sampling.top_k, sampling.top_p)",
    "any logits show whether the settings are in their ranges",
)
equivalent(
    EngineCore,
    "token_probabilities(torch.zeros(1, 2), sampling.temperature, sampling.top_k, "
    "sampling.top_p) → token_probabilities(torch.ones(1, 2), sampling.temperature, "
    "sampling.top_k, sampling.top_p)",
    "any logits show whether the settings are in their ranges",
)
equivalent(
    EngineCore,
    "token_probabilities(torch.zeros(1, 2), sampling.temperature, sampling.top_k, "
    "sampling.top_p) → token_probabilities(torch.zeros(2, 2), sampling.temperature, "
    "sampling.top_k, sampling.top_p)",
    "any logits show whether the settings are in their ranges",
)
equivalent(
    EngineCore,
    "token_probabilities(torch.zeros(1, 2), sampling.temperature, sampling.top_k, "
    "sampling.top_p) → token_probabilities(torch.zeros(1, 3), sampling.temperature, "
    "sampling.top_k, sampling.top_p)",
    "any logits show whether the settings are in their ranges",
)
equivalent(
    EngineCore,
    "if max(samples, beams) > self.scheduler.most: → if max(beams, samples) > self.scheduler.most:",
    "the larger of two has no order",
)
equivalent(
    EngineCore,
    "drawn = {number: self.draw(number, row) for (number, _, stop), row in zip(plan.work, "
    "logits, strict=True) if stop == len(self.sequences[number].tokens)} → drawn = {number: "
    "self.draw(number, row) for (number, _, stop), row in zip(plan.work, logits) if stop == "
    "len(self.sequences[number].tokens)}",
    "both have the same length",
)
equivalent(
    EngineCore,
    "drawn = {number: self.draw(number, row) for (number, _, stop), row in zip(plan.work, "
    "logits, strict=True) if stop == len(self.sequences[number].tokens)} → drawn = {number: "
    "self.draw(number, row) for (number, _, stop), row in zip(plan.work, logits, "
    "strict=False) if stop == len(self.sequences[number].tokens)}",
    "both have the same length",
)
equivalent(
    EngineCore,
    "for each, (token, generator) in zip(samples, draws, strict=True): → for each, (token, "
    "generator) in zip(samples, draws):",
    "both have the same length",
)
equivalent(
    EngineCore,
    "for each, (token, generator) in zip(samples, draws, strict=True): → for each, (token, "
    "generator) in zip(samples, draws, strict=False):",
    "both have the same length",
)
equivalent(
    EngineCore,
    "return [(each, token) for each, (token, _) in zip(samples, draws, strict=True)] → return "
    "[(each, token) for each, (token, _) in zip(samples, draws)]",
    "both have the same length",
)
equivalent(
    EngineCore,
    "return [(each, token) for each, (token, _) in zip(samples, draws, strict=True)] → return "
    "[(each, token) for each, (token, _) in zip(samples, draws, strict=False)]",
    "both have the same length",
)
equivalent(
    choose_beams,
    "total[ended, 0] = log_p[ended] → total[ended, 1] = log_p[ended]",
    "the token of one that has ended is not given",
)
equivalent(
    choose_beams,
    "count = min(width, int((total > -math.inf).sum())) → count = min(int((total > "
    "-math.inf).sum()), width)",
    "the smaller of two has no order",
)
equivalent(
    BeamCore,
    "unused = torch.zeros_like(next((row for row in rows if row is not None))) → unused = "
    "torch.ones_like(next((row for row in rows if row is not None)))",
    "what stands for one that has ended does not count",
)
equivalent(
    BeamCore,
    "for number, (row, token, value) in zip(new, chosen, strict=True): → for number, (row, "
    "token, value) in zip(new, chosen):",
    "both have the same length",
)
equivalent(
    BeamCore,
    "for number, (row, token, value) in zip(new, chosen, strict=True): → for number, (row, "
    "token, value) in zip(new, chosen, strict=False):",
    "both have the same length",
)
equivalent(
    BeamCore,
    "unused = torch.zeros_like(next((row for row in rows if row is not None))) → unused = "
    "vars(self).setdefault('unused', torch.zeros_like(next((row for row in rows if row is not "
    "None))))",
    "what stands for one that has ended does not count",
)
