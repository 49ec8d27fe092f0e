"""Random programs of an engine against plain generation, whatever happens to it."""

import math
import random

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from autograder.assignments.serving import mistakes as _registers_bugs  # noqa: F401
from autograder.author.examination import examine
from autograder.mistakes import BUGS
from course_pkg.checking.guard import Guarded
from course_pkg.checking.registry import Exercise
from course_pkg.checks.serving import (
    ByTheRules,
    PlainSpace,
    play,
    play_either,
    program_of,
    spaces_program,
)
from course_pkg.data.translation import EOS
from course_pkg.engine.requests import EngineConfig, NeverFits, SamplingParams, SchedulerOutput
from course_pkg.inference.models import ServedLlama
from course_pkg.llama import Llama
from course_pkg.serving import (
    BeamEngine,
    ChunkedScheduler,
    Engine,
    PreemptingScheduler,
    Scheduler,
    SwappingScheduler,
    SwapSpace,
)
from course_pkg.tools.threads import one_thread
from tests.course_pkg.plain import Plain
from tests.course_pkg.test_paged_programs import blocks_are_in_order, programs, tables_of

torch.manual_seed(0)
MODEL = ServedLlama(Llama(V=7, D=16, H=4, G=2, L=2), context=64).double()
PLAIN = Plain(MODEL)
BITS = st.integers(0, 1)


class Broken(RuntimeError):
    """What the model raises when a program wants it to."""


class Serving(RuleBasedStateMachine):
    """Requests come, branch, end, leave, lose their blocks, and meet errors inside the model.

    Greedy requests may be forked; samples draw as if they were alone; beams are those of seq2seq.
    """

    def __init__(self):
        super().__init__()
        self.engine = None
        self.prompts: dict[int, list[int]] = {}
        self.checked: dict[int, int] = {}  # how many tokens of a sequence were found right
        self.streams: list[tuple] = []
        self.fails = False
        self.is_calm = True  # no step failed, and nobody forked what had been planned for

    @precondition(lambda self: self.engine is None)
    @rule(
        shape=st.sampled_from([(18, 1), (10, 2), (6, 3), (4, 5)]),
        limits=st.sampled_from([(64, None), (4, None), (4, 4), (6, 9)]),
        watermark=st.integers(0, 2),
        host=st.sampled_from([0, 3, 30]),
    )
    def begin(self, shape, limits, watermark, host):
        most, budget = limits
        self.engine = BeamEngine(MODEL, EngineConfig(*shape, most, watermark, budget, host))
        cache, users = self.engine.runner.cache, self.scheduler.manager.allocator.references
        write, forward, schedule = cache.write, self.engine.runner.forward, self.scheduler.schedule
        S = shape[1]

        def checked_schedule():
            running, before = list(self.scheduler.running), self.scheduler.preemptions
            self.work, copies = schedule()
            served = {number for number, _, _ in self.work}
            for number in self.scheduler.running:
                is_alone = self.sequences[number].group is None
                assert number in served or not is_alone or not self.is_calm, "starved"
            assert sum(stop - start for _, start, stop in self.work) <= (budget or math.inf)
            if self.scheduler.preemptions > before:
                assert set(self.scheduler.running) <= set(running), "admitted while blocks ran out"
            places = self.scheduler.places(self.scheduler.running)
            assert places <= limits[0], "more run than may"
            return SchedulerOutput(self.work, copies)

        def checked_write(layer, slots, K, V):
            assert len(set(slots.tolist())) == len(slots), "two tokens in one slot"
            assert all(users[slot // S] == 1 for slot in slots.tolist()), "written while shared"
            write(layer, slots, K, V)

        def checked_forward(batch):
            logits = forward(batch)
            for (number, _, stop), row in zip(self.work, logits, strict=True):
                expected = PLAIN.logits(self.sequences[number].tokens[:stop])
                torch.testing.assert_close(row, expected, rtol=1e-10, atol=1e-10)
            if self.fails:
                raise Broken
            return logits

        self.scheduler.schedule = checked_schedule
        cache.write, self.engine.runner.forward = checked_write, checked_forward

    @property
    def scheduler(self):
        return self.engine.scheduler

    @property
    def sequences(self):
        return self.engine.sequences

    def alive(self) -> list[int]:
        return sorted(n for n, each in self.sequences.items() if each.reason is None)

    def submit(self, prompt: list[int], sampling: SamplingParams) -> None:
        S, slots = self.scheduler.manager.block_size, len(prompt) + sampling.max_tokens - 1
        fits = sampling.beams * math.ceil(slots / S) <= self.engine.runner.cache.K.shape[2]
        fits &= max(sampling.n, sampling.beams) <= self.scheduler.max_num_seqs
        try:
            number = self.engine.add(prompt, sampling)
        except NeverFits:
            assert not fits
            return
        assert fits
        self.prompts[number] = prompt

    @precondition(lambda self: self.engine is not None)
    @rule(
        prompt=st.lists(BITS, min_size=1, max_size=12),
        count=st.integers(1, 8),
        samples=st.integers(1, 3),
        temperature=st.sampled_from([0.0, 0.0, 1.0]),
    )
    def add(self, prompt, count, samples, temperature):
        self.submit(prompt, SamplingParams(count, None, samples, temperature, seed=sum(prompt)))

    @precondition(lambda self: self.engine is not None)
    @rule(
        prompt=st.lists(BITS, min_size=1, max_size=5),
        count=st.integers(1, 6),
        beams=st.integers(2, 4),
        alpha=st.sampled_from([0.0, 1.0]),
    )
    def search(self, prompt, count, beams, alpha):
        self.submit(prompt, SamplingParams(count, EOS, beams=beams, alpha=alpha))

    @precondition(lambda self: self.engine is not None)
    @rule(times=st.integers(1, 4), fails=st.sampled_from([False, False, True]))
    def step(self, times, fails):
        for _ in range(times):
            self.take_step(fails)
            fails = False

    def take_step(self, fails: bool = False) -> None:
        before = {n: list(each.tokens) for n, each in self.sequences.items()}
        self.fails = fails
        try:
            self.engine.step()
        except Broken:
            self.is_calm = False
            assert {n: each.tokens for n, each in self.sequences.items()} == before
        self.fails = False

    @precondition(lambda self: self.engine is not None)
    @rule(data=st.data())
    def fork(self, data):
        greedy = [
            n
            for n in self.alive()
            if self.sequences[n].group is None and not self.sequences[n].sampling.temperature
        ]
        if greedy:
            self.is_calm = False
            try:
                self.engine.fork(data.draw(st.sampled_from(greedy)))
            except ValueError:
                assert self.scheduler.places(self.scheduler.running) >= self.scheduler.max_num_seqs

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def abort(self, data):
        number = data.draw(st.sampled_from([*self.prompts, 10_000]))
        reasons = {n: each.reason for n, each in self.sequences.items()}
        ended = [n for n in self.engine.requests.get(number, []) if reasons[n] is not None]
        self.engine.abort(number)
        assert not number < 10_000 or not self.engine.unfinished([number])
        assert all(self.sequences[n].reason == reasons[n] for n in ended)

    @precondition(lambda self: self.engine is not None and self.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data):
        self.scheduler.preempt(data.draw(st.sampled_from(self.scheduler.running)))

    @precondition(lambda self: self.engine is not None and len(self.streams) < 3)
    @rule(prompt=st.lists(BITS, min_size=1, max_size=6), samples=st.integers(1, 2))
    def listen(self, prompt, samples):
        sampling = SamplingParams(5, None, samples, temperature=1.0, seed=len(prompt))
        S, blocks = self.scheduler.manager.block_size, self.engine.runner.cache.K.shape[2]
        if math.ceil((len(prompt) + 4) / S) <= blocks:
            expected = [PLAIN.sample(prompt, sampling, k) for k in range(samples)]
            heard = [[] for _ in range(samples)]
            self.streams.append((self.engine.stream([prompt], sampling), heard, expected))

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), count=st.integers(1, 4))
    def hear(self, data, count):
        place = data.draw(st.integers(0, len(self.streams) - 1))
        stream, heard, expected = self.streams[place]
        for _ in range(count):
            try:
                _, sample, token = next(stream)
            except StopIteration:
                assert heard == expected
                del self.streams[place]
                return
            heard[sample].append(token)
            assert heard[sample] == expected[sample][: len(heard[sample])]

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def leave(self, data):
        stream, *_ = self.streams.pop(data.draw(st.integers(0, len(self.streams) - 1)))
        stream.close()

    @invariant()
    def nothing_is_lost(self):
        if self.engine is None:
            return
        scheduler, S = self.scheduler, self.scheduler.manager.block_size
        blocks_are_in_order(scheduler.manager)
        assert sorted(tables_of(scheduler.manager)) == sorted(scheduler.running)
        assert sorted([*scheduler.running, *scheduler.waiting]) == self.alive()
        swapped = scheduler.space.tables if self.engine.runner.cpu_cache.K.shape[2] else {}
        assert set(swapped) <= set(scheduler.waiting)
        for number in scheduler.waiting:
            computed = self.sequences[number].num_computed
            assert len(swapped.get(number, [])) == math.ceil(computed / S)
        for number, table in tables_of(scheduler.manager).items():
            assert table.length == self.sequences[number].num_computed
        if swapped:
            held = [block for table in swapped.values() for block in table]
            users = scheduler.space.allocator.references
            assert users == [held.count(n) for n in range(len(users))]
        for samples in self.engine.requests.values():
            states = {number in scheduler.running for number in samples if number in self.alive()}
            group = self.sequences[samples[0]].group
            assert group is None or len(states) < 2, "a group was torn apart"
        self.all_tokens_are_right()

    def all_tokens_are_right(self) -> None:
        for first, samples in self.engine.requests.items():
            if first not in self.prompts:  # of a stream, which listens itself
                continue
            prompt, sampling = self.prompts[first], self.sequences[samples[0]].sampling
            everyone = [self.sequences[number] for number in samples]
            if sampling.beams > 1:
                if all(each.reason in ("stop", "length") for each in everyone):
                    best = sorted(everyone, key=lambda each: each.merit, reverse=True)
                    expected = [tokens for tokens, _ in PLAIN.search(prompt, sampling)]
                    assert [each.output for each in best] == expected
                continue
            for k, (number, each) in enumerate(zip(samples, everyone, strict=True)):
                if self.checked.get(number) != len(each.tokens):
                    expected = PLAIN.sample(prompt, sampling, k if sampling.temperature else 0)
                    assert each.tokens == [*prompt, *expected[: len(each.output)]]
                    self.checked[number] = len(each.tokens)

    def teardown(self):
        if self.engine is None:
            return
        for stream, heard, expected in self.streams[::2]:
            for _, sample, token in stream:
                heard[sample].append(token)
            assert heard == expected
        for stream, *_ in self.streams[1::2]:
            stream.close()
        for _ in range(2000):
            if not self.alive():
                break
            self.take_step()
            self.nothing_is_lost()
        allocator = self.scheduler.manager.allocator
        assert not self.alive() and allocator.available == len(allocator.references)
        if self.engine.runner.cpu_cache.K.shape[2]:
            space = self.scheduler.space
            assert not space.tables and space.available == len(space.allocator.references)
        for sequence in self.sequences.values():
            if sequence.reason == "length":
                assert len(sequence.output) == sequence.sampling.max_tokens
        outputs = self.engine.collect(list(self.engine.requests))
        assert len(outputs) <= len(self.prompts) and not self.sequences
        assert not self.engine.next_log_p


TestServing = programs(Serving, 500, 20)


def test_where_blocks_lie_changes_no_bit():
    prompts = [[1, 2, 3, 4, 5, 6, 0, 1], [2, 2], [1, 2, 3, 4, 5]]
    seen = []
    with one_thread():
        for shuffle in (None, 1, 2):
            engine = Engine(MODEL, EngineConfig(num_blocks=20, block_size=4))
            if shuffle is not None:
                random.Random(shuffle).shuffle(engine.scheduler.manager.allocator.unused)
            forward, logits = engine.runner.forward, []
            engine.runner.forward = lambda batch, f=forward, kept=logits: (
                kept.append(f(batch)) or kept[-1]
            )
            engine.generate(prompts, SamplingParams(max_tokens=6, n=2))
            seen.append(torch.cat(logits))
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[0], seen[2])


SETTINGS = [
    (Scheduler, (8, 2, 4)),
    (Scheduler, (12, 1, 5)),
    (PreemptingScheduler, (7, 2, 9, 0)),
    (PreemptingScheduler, (10, 1, 4, 2)),
    (PreemptingScheduler, (31, 2, 9, 0)),
    (ChunkedScheduler, (8, 2, 3, 1, 3)),
    (ChunkedScheduler, (10, 1, 5, 0, 9)),
    (SwappingScheduler, (7, 2, 9, 0, None, 9)),
    (SwappingScheduler, (8, 2, 3, 1, 3, 30)),
    (SwappingScheduler, (9, 2, 9, 0, None, 4)),
]


def shown(steps: list) -> list[tuple]:
    """Leave out what errors say, but for their kind."""
    raised = [isinstance(step.result, dict) and step.result.get("raised") for step in steps]
    kinds = [each and each[0] for each in raised]
    return [(kind or step.result, step.seen) for kind, step in zip(kinds, steps, strict=True)]


@pytest.mark.parametrize(("schedulers", "settings"), SETTINGS)
def test_schedulers_follow_the_rules(schedulers, settings):
    programs = [program_of(settings, 60, seed) for seed in range(8)]
    given = play(Guarded(schedulers, schedulers.__name__), programs)
    for one, other in zip(given, play(ByTheRules, programs), strict=True):
        assert shown(one) == shown(other)


def test_swap_spaces_keep_what_plain_ones_keep():
    programs = [spaces_program(blocks, 40, seed) for blocks in (6, 20) for seed in range(20)]
    given = play_either(Guarded(SwapSpace, "SwapSpace"), programs)
    for one, other in zip(given, play_either(PlainSpace, programs), strict=True):
        assert shown(one) == shown(other)


CAUGHT = {
    Scheduler: ["AdmitsFirst", "EmptyWork", "MembersAlone"],
    PreemptingScheduler: [
        "SkipsRows",
        "AdmitsFirst",
        "NeverAgain",
        "FirstIsClosed",
        "HitsOfTheLast",
    ],
    SwappingScheduler: ["OutFirst", "BackReplaces", "StaysComputed"],
    SwapSpace: ["KeptPlaces", "OthersForgotten", "DroppedFirst"],
}


@pytest.mark.parametrize("reference", CAUGHT)
def test_mistakes_of_state_are_caught_at_home(reference):
    exercise = Exercise.of(reference)
    bugs = {bug.name: bug.solution for bug in BUGS[exercise]}
    for name in CAUGHT[reference]:
        outcomes = examine(exercise, bugs[name]).outcomes
        assert any(each.failure for each in outcomes if not each.check.hidden), name
