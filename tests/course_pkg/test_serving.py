"""The references of serving agree with plain generation and with the beam search of seq2seq."""

import math
import random

import matplotlib.pyplot as plt
import pytest
import torch

from course_pkg.data.translation import EOS
from course_pkg.engine.requests import (
    EngineConfig,
    NeverFits,
    NoNumbers,
    OutOfBlocks,
    SamplingParams,
)
from course_pkg.gpt import GPT
from course_pkg.inference import block_map
from course_pkg.inference.models import (
    ServedGPT,
    ServedLlama,
    attend_to_all,
    generate_uncached,
)
from course_pkg.inference.tuned import TunedEngine
from course_pkg.llama import Llama
from course_pkg.serving import (
    BeamEngine,
    ChunkedScheduler,
    Engine,
    ModelRunner,
    PreemptingScheduler,
    Scheduler,
    SwappingScheduler,
    SwapSpace,
    choose_beams,
)
from course_pkg.speculative import SpeculativeCore
from tests.course_pkg.plain import Plain

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
SMALL_STEPS = {"max_num_seqs": 4, "max_num_batched_tokens": 5}
EIGHT = {"max_num_seqs": 8, "max_num_batched_tokens": 9}


@pytest.fixture(params=range(2))
def rng(request) -> random.Random:
    torch.manual_seed(request.param)
    return random.Random(request.param)


@pytest.fixture(scope="module")
def model(request) -> Llama:
    torch.manual_seed(0)
    dtype = getattr(request, "param", torch.float64)
    return ServedLlama(Llama(V=61, D=24, H=6, G=2, L=2)).to(dtype)


@pytest.fixture(scope="module")
def few_words() -> Llama:
    """A model that says every sixth word or so that a text has ended."""
    torch.manual_seed(5)
    return ServedLlama(Llama(V=7, D=16, H=4, G=2, L=2), context=64).double()


def prompts_of(rng: random.Random, count: int, longest: int = 40, V: int = 61) -> list[list[int]]:
    return [[rng.randrange(V) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


def do(scheduler: Scheduler, token: int = 5) -> list[tuple[int, int, int]]:
    """Take a step without a model: what is computed to its end gets a token."""
    work, _ = scheduler.schedule()
    for number, _, stop in work:
        scheduler.advance(number, stop)
        if scheduler.is_computed(number):
            scheduler.append(number, token)
    return work


def test_what_is_set_aside_never_runs_out():
    scheduler = Scheduler(EngineConfig(num_blocks=6, block_size=2))
    for number in range(4):
        scheduler.add(number, [number] * 3, longest=5)  # three blocks each
    assert do(scheduler) == [(0, 0, 3), (1, 0, 3)]
    assert do(scheduler) == [(0, 3, 4), (1, 3, 4)]
    scheduler.remove(0)
    assert do(scheduler) == [(1, 4, 5), (2, 0, 3)]
    assert scheduler.waiting == [3] and scheduler.manager.allocator.available == 1


def test_forks_to_come_have_their_places_and_blocks():
    for most, blocks in ((3, 99), (99, 8)):
        scheduler = Scheduler(EngineConfig(blocks, block_size=2, max_num_seqs=most))
        scheduler.add(0, [1, 2, 3], longest=6, forks=1)
        for number in (1, 2):
            scheduler.add(number, [number] * 3, longest=3)
        assert [number for number, _, _ in do(scheduler)] == [0, 1]
        scheduler.fork(0, 7)
        assert [number for number, _, _ in do(scheduler)] == [0, 7, 1]


def test_more_forks_than_were_announced_are_refused():
    scheduler = PreemptingScheduler(EngineConfig(9, 2, max_num_seqs=2))
    for number in range(2):
        scheduler.add(number, [number])
    scheduler.schedule()
    with pytest.raises(ValueError, match="2 sequences run already"):
        scheduler.fork(0, 7)


def test_the_last_to_come_is_the_first_to_go():
    scheduler = PreemptingScheduler(EngineConfig(num_blocks=4, block_size=2))
    for number in range(3):
        scheduler.add(number, [number, 7])
    assert [number for number, _, _ in do(scheduler)] == [0, 1, 2]
    assert do(scheduler) == [(0, 2, 3), (1, 2, 3)]
    assert scheduler.running == [0, 1] and scheduler.waiting == [2]
    assert scheduler.sequences[2].num_computed == 0


def test_nobody_is_admitted_in_a_step_that_preempted():
    scheduler = PreemptingScheduler(EngineConfig(num_blocks=5, block_size=1))
    for number, length in enumerate((1, 3, 1)):
        scheduler.add(number, [number] * length)
    assert [number for number, _, _ in do(scheduler)] == [0, 1, 2]
    assert do(scheduler) == [(0, 1, 2)]  # the blocks of 2 for 0, those of 1 for itself in vain
    assert scheduler.running == [0] and scheduler.waiting == [1, 2]
    assert [number for number, _, _ in do(scheduler)] == [0]  # one block is left for four tokens


@pytest.mark.parametrize("watermark", [0, 2])
def test_a_watermark_is_left_while_others_run(watermark):
    scheduler = PreemptingScheduler(EngineConfig(num_blocks=6, block_size=2, watermark=watermark))
    scheduler.add(0, [0] * 8)
    scheduler.add(1, [1] * 3)
    do(scheduler)
    assert scheduler.running == ([0, 1] if watermark == 0 else [0])
    scheduler.remove(0)
    do(scheduler)
    assert scheduler.running == [1]


def test_a_budget_that_starves_is_refused():
    ChunkedScheduler(EngineConfig(8, 2, max_num_seqs=3, max_num_batched_tokens=3))
    with pytest.raises(ValueError, match="a budget of 2 tokens starves some of 3 sequences"):
        ChunkedScheduler(EngineConfig(8, 2, max_num_seqs=3, max_num_batched_tokens=2))


def test_who_generates_goes_on_beside_a_long_prompt():
    scheduler = ChunkedScheduler(EngineConfig(40, 2, max_num_seqs=4, max_num_batched_tokens=6))
    for number, length in enumerate((4, 9, 3)):
        scheduler.add(number, [10 * number + n for n in range(length)])
    expected = [[(0, 0, 4), (1, 0, 2)], [(0, 4, 5), (1, 2, 7)]]
    expected += [[(0, 5, 6), (1, 7, 9), (2, 0, 3)], [(0, 6, 7), (1, 9, 10), (2, 3, 4)]]
    assert [do(scheduler) for _ in range(4)] == expected


@pytest.mark.parametrize("host", [None, 8])
def test_a_group_leaves_and_comes_back_as_a_whole(host):
    settings = {"num_blocks": 8, "block_size": 2, "max_num_seqs": 9}
    scheduler = PreemptingScheduler(EngineConfig(**settings))
    if host:
        scheduler = SwappingScheduler(EngineConfig(**settings, num_cpu_blocks=host))
    scheduler.add(0, [0, 1, 2, 3, 4, 5, 6])
    scheduler.add(1, [7, 8, 9], forks=2, together=True)
    do(scheduler)
    for child in (11, 12):
        scheduler.fork(1, child)
    do(scheduler)
    assert scheduler.running == [0, 1, 12, 11]  # four blocks, and one shared and three own
    assert [number for number, _, _ in do(scheduler)] == [0]
    assert scheduler.running == [0] and scheduler.waiting == [1, 12, 11]
    assert scheduler.preemptions == 3 and scheduler.swaps == (3 if host else 0)
    available = scheduler.manager.allocator.available
    scheduler.remove(0)
    work = do(scheduler)
    assert [number for number, _, _ in work] == [1, 12, 11] and available == 3
    if host:
        assert work == [(number, 4, 5) for number in (1, 12, 11)]
        tables = map(scheduler.manager.get_block_table, (1, 12, 11))
        assert len({block for table in tables for block in table}) == 7
        assert scheduler.space.available == host


def test_swapped_blocks_stay_shared():
    space = SwapSpace(5, first=100)
    copies = space.swap_out({0: [7, 8, 9], 1: [7, 8, 3]})
    assert [source for source, _ in copies] == [7, 8, 9, 3] and space.available == 1
    assert min(target for _, target in copies) >= 100
    with pytest.raises(OutOfBlocks):
        space.swap_out({2: [1, 2]})
    assert space.available == 1 and 2 not in space.tables
    tables, back = space.swap_in([1, 0], [20, 21, 22, 23])
    assert tables == {1: [20, 21, 22], 0: [20, 21, 23]} and space.available == 5
    came_from = dict((target, source) for source, target in copies)
    held = {target: came_from[source] for source, target in back}
    assert [held[block] for block in tables[0]] == [7, 8, 9]
    assert [held[block] for block in tables[1]] == [7, 8, 3]


def test_copies_of_blocks_lead_to_the_host_and_back(model):
    runner = ModelRunner(model, 4, 2, num_cpu_blocks=3)
    runner.cache.K.normal_()
    runner.cache.V.normal_()
    K, V = runner.cache.K[:, :, 1].clone(), runner.cache.V[:, :, 1].clone()
    runner.copy([(1, 6), (0, 1), (6, 3), (3, 2)])
    for block in (2, 3):
        assert torch.equal(runner.cache.K[:, :, block], K)
        assert torch.equal(runner.cache.V[:, :, block], V)
    assert torch.equal(runner.cache.K[:, :, 1], runner.cache.K[:, :, 0])


def test_the_runner_scores_prompts_chunks_and_single_tokens_together(model, rng):
    S, plain, texts = 3, Plain(model), prompts_of(rng, 5, longest=14)
    runner = ModelRunner(model, 40, S)
    blocks = list(range(40))
    rng.shuffle(blocks)
    tables = [[blocks.pop() for _ in range(math.ceil(len(text) / S))] for text in texts]
    cuts = [rng.randrange(len(text)) for text in texts]
    begun = [n for n, cut in enumerate(cuts) if cut]
    runner.forward([(texts[n][: cuts[n]], 0, tables[n]) for n in begun])
    batch = [(text[cut:], cut, table) for text, cut, table in zip(texts, cuts, tables, strict=True)]
    logits = runner.forward(batch)
    expected = torch.stack([plain.logits(text) for text in texts])
    torch.testing.assert_close(logits, expected, **CLOSE)
    assert len(runner.forward([])) == 0


@pytest.mark.parametrize("rng", [0], indirect=True)
@pytest.mark.parametrize(
    ("block_size", "settings"),
    [
        (1, {"max_num_seqs": 6, "max_num_batched_tokens": 6}),
        (3, {}),
        (3, {"num_cpu_blocks": 9, "max_num_seqs": 6, "max_num_batched_tokens": 6, "watermark": 1}),
        (16, {"num_cpu_blocks": 40}),
        (64, {"watermark": 2}),
    ],
    ids=str,
)
def test_the_engine_says_what_plain_generation_says(model, rng, block_size, settings):
    prompts = prompts_of(rng, 6, longest=30)
    prompts.append(prompts[0] + [1, 2, 3])
    blocks = max(64 // block_size, 1)
    engine = Engine(model, EngineConfig(blocks, block_size, **settings))
    outputs = engine.generate(prompts, SamplingParams(max_tokens=14))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.tokens == [generate_uncached(model, prompt, 14)]
        assert output.reasons == ["length"]
    assert engine.scheduler.manager.allocator.available == blocks
    assert not engine.sequences and not engine.requests
    if "num_cpu_blocks" in settings:
        assert engine.scheduler.space.available == settings["num_cpu_blocks"]


@pytest.mark.parametrize("rng", [0], indirect=True)
def test_samples_share_the_prompt_and_repeat(model, rng):
    prompt, plain = prompts_of(rng, 1)[0], Plain(model)
    sampling = SamplingParams(max_tokens=9, n=3, temperature=1.0, top_k=20, top_p=0.9, seed=4)
    expected = [plain.sample(prompt, sampling, k) for k in range(3)]
    few = math.ceil((len(prompt) + 9) / 4) + 1
    for blocks, host in ((60, 0), (few, 0), (few, 20)):
        engine = Engine(model, EngineConfig(blocks, 4, num_cpu_blocks=host))
        assert engine.generate([prompt], sampling)[0].tokens == expected
    probable = sampling._replace(min_p=0.9, top_k=None, top_p=None)
    expected = [plain.sample(prompt, probable, k) for k in range(3)]
    assert Engine(model, EngineConfig(60, 4)).generate([prompt], probable)[0].tokens == expected
    unlimited = probable._replace(min_p=0.0)
    assert expected != [plain.sample(prompt, unlimited, k) for k in range(3)]


@pytest.mark.parametrize("rng", [0], indirect=True)
def test_stop_stream_and_leave(model, rng):
    prompts = prompts_of(rng, 3)
    plain = [generate_uncached(model, prompt, 12) for prompt in prompts]
    stop = plain[1][4]
    outputs = Engine(model, EngineConfig(80, 4)).generate(
        prompts, SamplingParams(max_tokens=12, stop=stop)
    )
    for output, prompt in zip(outputs, prompts, strict=True):
        assert output.tokens == [generate_uncached(model, prompt, 12, stop)]
    engine = Engine(model, EngineConfig(80, 4))
    streamed = [[], [], []]
    for place, sample, token in engine.stream(prompts, SamplingParams(max_tokens=12)):
        assert sample == 0
        streamed[place].append(token)
    assert streamed == plain
    stream = engine.stream(prompts, SamplingParams(max_tokens=12))
    next(stream)
    stream.close()
    assert not engine.sequences and engine.scheduler.manager.allocator.available == 80


def test_two_streams_at_once_each_get_all_their_tokens(model):
    rng = random.Random(0)
    prompts = prompts_of(rng, 6)
    plain = [generate_uncached(model, prompt, 11) for prompt in prompts]
    engine = Engine(model, EngineConfig(40, 4))
    sampling = SamplingParams(max_tokens=11)
    streams = [engine.stream(prompts[n : n + 2], sampling) for n in (0, 2)]
    streamed = [[[], []], [[], []]]
    alive = [0, 1]
    while alive:
        which = rng.choice(alive)
        try:
            for _ in range(rng.randrange(1, 5)):
                place, _, token = next(streams[which])
                streamed[which][place].append(token)
        except StopIteration:
            alive.remove(which)
        if len(streamed[0][0]) == 3 and len(prompts) == 6:  # somebody waits for all of it
            assert engine.generate(prompts[4:], sampling)[0].tokens == [plain[4]]
            prompts.pop()
    assert streamed == [plain[:2], plain[2:4]]
    assert not engine.sequences and engine.scheduler.manager.allocator.available == 40


def test_who_leaves_late_disturbs_nothing(model):
    engine = Engine(model, EngineConfig(40, 4))
    first, second = (
        engine.add([1, 2, 3], SamplingParams(2)),
        engine.add([4, 5], SamplingParams(6, n=2)),
    )
    for _ in range(2):
        engine.step()
    engine.abort(first)
    assert engine.sequences[first].reason == "length"
    engine.abort(second)
    engine.abort(second)
    reasons = [output.reasons for output in engine.collect([first, second])]
    assert reasons == [["length"], ["abort", "abort"]]
    engine.abort(first)  # and is not even known any more
    assert not engine.step() and engine.scheduler.manager.allocator.available == 40


class Failing(ServedLlama):
    """A model that fails when it should, in its first layer or its last."""

    fails: str | None = None

    def forward(self, tokens, positions, attend, rows):
        def attend_or_fail(layer, *heads):
            Y = attend(layer, *heads)
            if (self.fails, layer) in (("first", 0), ("last", 1)):
                raise RuntimeError("out of memory")
            return Y

        logits = super().forward(tokens, positions, attend_or_fail, rows)
        return logits * math.nan if self.fails == "numbers" else logits


@pytest.mark.parametrize("settings", [{}, {"num_cpu_blocks": 20}, SMALL_STEPS], ids=str)
def test_an_error_inside_the_model_leaves_the_engine_as_it_was(settings):
    torch.manual_seed(0)
    model = Failing(Llama(V=61, D=24, H=6, G=2, L=2)).double()
    rng, plain = random.Random(0), Plain(model)
    drawn = SamplingParams(9, n=2, temperature=1.0, seed=7)
    requests = [(prompt, drawn) for prompt in prompts_of(rng, 6, longest=20)]
    requests.append((prompts_of(rng, 1, 5)[0], SamplingParams(5, EOS, beams=3)))
    expected = [[plain.sample(text, drawn, k) for k in range(2)] for text, _ in requests[:-1]]
    found = plain.search(*requests[-1])
    engine = BeamEngine(model, EngineConfig(24, 2, **settings))
    numbers = [engine.add(*request) for request in requests]
    failures = 0
    while engine.unfinished(numbers):
        before = {n: list(each.tokens) for n, each in engine.sequences.items()}
        model.fails = rng.choice([None, "first", "last", "numbers"])
        try:
            engine.step()
        except (RuntimeError, FloatingPointError):
            failures += 1
            assert {n: each.tokens for n, each in engine.sequences.items()} == before
            for number in engine.scheduler.running:
                sequence = engine.sequences[number]
                assert sequence.block_table.length == sequence.num_computed
    *outputs, beams = engine.collect(numbers)
    assert failures > 15
    assert [output.tokens for output in outputs] == expected
    assert beams.tokens == [tokens for tokens, _ in found]
    assert engine.scheduler.manager.allocator.available == 24


@pytest.mark.parametrize(
    ("kind", "temperature"), [(Engine, 1.0), (TunedEngine, 1.0), (SpeculativeCore, 0.0)]
)
def test_copies_that_fail_are_made_in_the_next_step(model, rng, kind, temperature):
    plain, drawn = Plain(model), SamplingParams(9, n=3, temperature=temperature, seed=7)
    prompts, greedy = prompts_of(rng, 6, longest=20), SamplingParams(9)
    engine, failures = kind(model, EngineConfig(24, 2, num_cpu_blocks=20)), 0
    numbers = [engine.add(text, (drawn, greedy)[n % 2]) for n, text in enumerate(prompts)]
    usual = engine.runner.place

    def place(block: int):
        if rng.random() < 0.3:
            raise KeyboardInterrupt
        return usual(block)

    engine.runner.place = place
    while engine.unfinished(numbers):
        try:
            engine.step()
        except KeyboardInterrupt:
            failures += 1
    found = [output.tokens for output in engine.collect(numbers)]
    assert failures > 5 and engine.scheduler.swaps > 0
    for n, text in enumerate(prompts):
        if n % 2:
            assert found[n] == [generate_uncached(model, text, 9)]
        else:
            assert found[n] == [plain.sample(text, drawn, k) for k in range(3)]
    assert engine.scheduler.manager.allocator.available == 24
    assert engine.scheduler.space.available == 20


def test_what_can_never_fit_is_refused_at_once(model):
    engine = BeamEngine(model, EngineConfig(num_blocks=5, block_size=4, max_num_seqs=4))
    assert len(engine.generate([[1] * 13], SamplingParams(max_tokens=8))[0].tokens[0]) == 8
    with pytest.raises(NeverFits, match="21 tokens to keep, but the cache has 20 slots"):
        engine.generate([[1], [1] * 14], SamplingParams(max_tokens=8))
    with pytest.raises(NeverFits, match="24 tokens to keep"):
        engine.add([1], SamplingParams(max_tokens=8, beams=3))
    with pytest.raises(NeverFits, match="more samples or beams than the 4"):
        engine.add([1], SamplingParams(max_tokens=8, n=5))
    assert not engine.sequences and not engine.scheduler.waiting
    with pytest.raises(NeverFits, match="exceed the context"):
        Engine(model, EngineConfig(10_000, 4)).add([1] * 2000, SamplingParams(max_tokens=49))
    for prompt, wrong in [([], {}), ([1], {"max_tokens": 0}), ([1], {"n": 0})]:
        with pytest.raises(ValueError, match="a request needs"):
            engine.add(prompt, SamplingParams(**wrong))
    for wrong in ({"n": 2}, {"temperature": 1.0}):
        with pytest.raises(ValueError, match="neither sampled nor drawn"):
            engine.add([1], SamplingParams(beams=2, **wrong))
    with pytest.raises(ValueError, match="top_p"):
        engine.add([1], SamplingParams(temperature=1.0, top_p=2.0))
    with pytest.raises(ValueError, match="cannot be streamed"):
        engine.stream([[1], [2]], [SamplingParams(3), SamplingParams(3, beams=2)])
    with pytest.raises(ValueError, match="this engine does not search with beams"):
        Engine(model, EngineConfig(5, 4)).generate([[1]], SamplingParams(3, beams=2))
    assert not engine.sequences and not engine.scheduler.waiting


WRONG = [
    *({"seed": seed} for seed in (2**64, -(2**63) - 1, 1.5, "1", None)),
    {"seed": 2**64 - 2, "n": 3},
    *({"temperature": each} for each in (math.nan, math.inf, -1.0, "1", None, 1j)),
    *({"top_p": each, "temperature": 1.0} for each in (math.nan, 0, 2.0, "1")),
    *({"top_k": each, "temperature": 1.0} for each in (0, 2.5, "1")),
    *({"min_p": each} for each in (-0.1, 1.1, math.nan, None)),
    *({"alpha": each, "beams": 2} for each in (math.nan, "1")),
    *({name: each} for name in ("max_tokens", "n", "beams") for each in (0, 1.5, "1", None)),
    *({name: 2**70} for name in ("max_tokens", "n", "beams")),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_of_a_request_that_is_refused_nothing_stays(model, wrong):
    engine = Engine(model, EngineConfig(20, 4))
    right = SamplingParams(5, n=2, temperature=1.0, seed=3)
    expected = Engine(model, EngineConfig(20, 4)).generate([[1, 2]], right)
    with pytest.raises(ValueError):
        engine.add([1, 2, 3], SamplingParams()._replace(**wrong))
    with pytest.raises(ValueError):  # of several, the right ones do not stay either
        engine.generate([[1, 2], [1, 2, 3]], [right, SamplingParams()._replace(**wrong)])
    assert not engine.sequences and not engine.requests and not engine.scheduler.waiting
    assert engine.generate([[1, 2]], right) == expected
    assert engine.scheduler.manager.allocator.available == 20


@pytest.mark.parametrize("prompt", [[], [1.0], ["a"], [None], [-1], "abc", [[1]]], ids=str)
def test_a_prompt_that_is_no_tokens_is_refused(model, prompt):
    engine = Engine(model, EngineConfig(20, 4))
    with pytest.raises(ValueError):
        engine.add(prompt)
    assert not engine.sequences and not engine.requests and not engine.scheduler.waiting


@pytest.mark.parametrize("temperature", [1e-320, 1e-45, 1e-38])
@pytest.mark.parametrize("model", [torch.float64, torch.float32], indirect=True, ids=str)
def test_the_smallest_temperatures_take_the_best_token(model, temperature):
    best = Engine(model, EngineConfig(20, 4)).generate([[1, 2]], SamplingParams(6))
    assert (
        Engine(model, EngineConfig(20, 4)).generate(
            [[1, 2]], SamplingParams(6, temperature=temperature)
        )
        == best
    )


@pytest.mark.parametrize("seed", [-(2**63), 2**64 - 2])
def test_the_last_seeds_are_seeds(model, seed):
    engine = Engine(model, EngineConfig(20, 4))
    (output,) = engine.generate([[1]], SamplingParams(3, n=2, temperature=1.0, seed=seed))
    assert [len(tokens) for tokens in output.tokens] == [3, 3]


INFINITE = math.nan, math.inf, -math.inf, torch.tensor([math.inf] + [0.0] * 60)


@pytest.mark.parametrize("wrong", INFINITE, ids=["nan", "inf", "-inf", "one inf"])
def test_who_gets_no_numbers_is_named(model, monkeypatch, wrong):
    """Also where they are infinite: then there is no best token, nor a probability."""
    engine = Engine(model, EngineConfig(20, 4))
    numbers = [engine.add(prompt, SamplingParams(5, temperature=1.0)) for prompt in ([1], [2], [3])]
    forward = engine.runner.forward

    def broken(batch):
        logits = forward(batch)
        logits[1] = wrong
        return logits

    monkeypatch.setattr(engine.runner, "forward", broken)
    with pytest.raises(NoNumbers, match="no numbers, after sequence 1") as caught:
        engine.step()
    assert caught.value.seq_id == numbers[1] and engine.unfinished(numbers) == numbers


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("settings", [{}, EIGHT, {"num_cpu_blocks": 30}], ids=str)
def test_beams_are_those_of_seq2seq(few_words, alpha, settings):
    rng, plain = random.Random(1), Plain(few_words)
    requests = [
        (prompt, SamplingParams(rng.randrange(1, 9), EOS, beams=width, alpha=alpha))
        for width in (2, 3, 4, 8)
        for prompt in prompts_of(rng, 3, longest=9, V=7)
    ]
    engine = BeamEngine(few_words, EngineConfig(64, 2, **settings))
    outputs = engine.generate(*map(list, zip(*requests, strict=True)))
    for (prompt, sampling), output in zip(requests, outputs, strict=True):
        expected = plain.search(prompt, sampling)
        assert output.tokens == [tokens for tokens, _ in expected]
        assert output.log_p == pytest.approx([log_p for _, log_p in expected])
    assert "max_num_seqs" in settings or engine.scheduler.preemptions > 0
    assert engine.scheduler.manager.allocator.available == 64 and not engine.next_log_p


def test_only_its_search_forks_a_beam(few_words):
    engine = BeamEngine(few_words, EngineConfig(64, 2))
    number = engine.add([1, 3], SamplingParams(4, beams=2))
    engine.step()
    with pytest.raises(ValueError, match="only its search"):
        engine.fork(number)
    assert len(engine.unfinished([number])) == 2


def test_the_most_probable_beams_are_chosen():
    log_p = torch.tensor([-3.0, -1.0, -0.5]).double()
    rows = torch.tensor([[-9.0, -8.0], [-1.0, -1.5], [0.0, 0.0]]).double()
    chosen = choose_beams(log_p, rows, torch.tensor([False, False, True]), 3)
    assert chosen == [(2, -1, -0.5), (1, 0, -2.0), (1, 1, -2.5)]
    first = torch.tensor([[-1.0, -math.inf, -2.0]])
    chosen = choose_beams(torch.zeros(1), first, torch.zeros(1).bool(), 5)
    assert chosen == [(0, 0, -1.0), (0, 2, -2.0)]


def computed_by(engine: Engine) -> list[int]:
    """Note how many tokens an engine computes in each step to come."""
    counts, forward = [], engine.runner.forward

    def noted(batch):
        counts.append(sum(len(tokens) for tokens, _, _ in batch))
        return forward(batch)

    engine.runner.forward = noted
    return counts


def test_what_is_swapped_is_not_computed_again(model):
    rng = random.Random(2)
    prompts = [[rng.randrange(61) for _ in range(12)] for _ in range(4)]
    least = sum(len(prompt) + 13 for prompt in prompts)
    totals = {}
    for host in (0, 5, 40):
        engine = Engine(model, EngineConfig(14, 4, num_cpu_blocks=host))
        counts = computed_by(engine)
        outputs = engine.generate(prompts, SamplingParams(14))
        assert [each.tokens for each in outputs] == [
            [generate_uncached(model, prompt, 14)] for prompt in prompts
        ]
        assert engine.scheduler.preemptions > 0
        totals[host] = sum(counts)
    assert totals[0] > totals[5] >= totals[40] == least


@pytest.mark.parametrize("rng", [0], indirect=True)
def test_the_engine_serves_the_gpt_of_08(rng):
    torch.manual_seed(1)
    gpt = GPT(V=61, context=64, D=24, H=4, L=2).double()
    tokens = torch.randint(61, (1, 20))
    with torch.no_grad():
        given = ServedGPT(gpt)(tokens[0], torch.arange(20), attend_to_all, torch.arange(20))
        torch.testing.assert_close(given, gpt(tokens)[0], **CLOSE)
    prompts = prompts_of(rng, 4)
    outputs = Engine(ServedGPT(gpt), EngineConfig(30, 4)).generate(
        prompts, SamplingParams(max_tokens=8)
    )
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.tokens == [generate_uncached(ServedGPT(gpt), prompt, 8)]


@pytest.fixture
def frames(model) -> list[block_map.Frame]:
    engine = Engine(model, EngineConfig(num_blocks=20, block_size=4))
    engine.add([1] * 10, SamplingParams(max_tokens=3, n=2, temperature=1.0))
    found = [block_map.snapshot(engine, "at first")]
    while engine.scheduler.running or engine.scheduler.waiting:
        engine.step()
        found.append(block_map.snapshot(engine, f"step {len(found)}"))
    return found


def colours_of(frame: block_map.Frame) -> list[tuple]:
    ax = block_map.draw(frame)
    return [patch.get_facecolor() for patch in ax.patches if patch.get_fill()]


def test_a_map_shows_owners_shared_blocks_and_what_is_cached(frames):
    assert len(colours_of(frames[0])) == 20 == colours_of(frames[0]).count((1, 1, 1, 1))
    table, other = frames[1].tables.values()
    assert table == other and len(table) == 3
    assert len(colours_of(frames[1])) == 20 + 2 * 3  # a stripe for each of both in three blocks
    borders = [patch for patch in block_map.draw(frames[1]).patches if not patch.get_fill()]
    assert len(borders) == 3
    assert len(set(frames[2].tables[0]) & set(frames[2].tables[1])) == 2  # copied on write
    last = frames[-1]
    assert not last.tables and len(last.cached) == 4  # two full ones of the prompt, one of each
    assert colours_of(last).count((1, 1, 1, 1)) == 16
    plt.close("all")


def test_where_no_widgets_run_there_is_a_strip(frames, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    block_map.explore(frames, "A title", [0, 1, 3])
    figure = plt.gcf()
    assert figure.get_suptitle() == "A title"
    assert [ax.get_title() for ax in figure.axes[:3]] == ["at first", "step 1", "step 3"]
    plt.close("all")


def test_where_widgets_run_there_is_a_slider(frames, monkeypatch):
    shown = []
    monkeypatch.setenv("JPY_SESSION_NAME", "13_paged_attention.ipynb")
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf().axes[0].get_title()))
    block_map.explore(frames, "A title", [0, 1])
    (box,) = [each for each in shown if not isinstance(each, str)]
    play, slider = box.children[0].children
    assert (slider.min, slider.max, play.max) == (0, len(frames) - 1, len(frames) - 1)
    slider.value = 2
    assert shown[-1] == "A title\nstep 2"
    plt.close("all")
