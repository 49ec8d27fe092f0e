"""Hidden checks of serving: several that lose their blocks, borders, errors, forks of forks."""

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.case import Case
from course_pkg.checking.programs.programs import Program, follow
from course_pkg.checking.programs.scheduling import (
    InChunks,
    OnDemand,
    SettingAside,
    Swapping,
    WithHost,
)
from course_pkg.checking.registry import check
from course_pkg.checks import serving as visible
from course_pkg.checks.paged_attention import (
    flat,
    number,
    numbers,
    pairs,
    record,
    same,
    tables,
)
from course_pkg.engine.requests import EngineConfig, SamplingParams
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


def drawn_programs(case: Case, settings: list[tuple]) -> list[Program]:
    """Draw a long program of calls for each of some settings."""
    seeds = case.integers(0, 1 << 30, len(settings)).tolist()
    return [visible.program_of(each, 60, seed) for each, seed in zip(settings, seeds, strict=True)]


@check(Scheduler, see="Decide anew in every step")
def at_most(schedulers, case):
    """admits no more sequences than it may, and copies the tokens it is given"""
    driver = visible.Driver(schedulers, 40, 2, 2)
    for sequence in range(4):
        driver.add(sequence, 3, longest=5)
    driver.step()
    seen = visible.queues(driver.scheduler)
    driver.remove(2)
    driver.remove(0)
    driver.step()
    seen += [*visible.queues(driver.scheduler), driver.available]
    what = "running, -1, waiting with most = 2, and after two have ended; free blocks"
    same(case, seen, [0, 1, -1, 2, 3, 1, 3, -1, 36], what)


@check(Scheduler, see="Room is set aside")
def forks_have_places(schedulers, case):
    """admits one with forks to come only when all of them have a place"""
    driver = visible.Driver(schedulers, 40, 2, 3)
    driver.add(0, 3)
    driver.add(1, 3, forks=2)
    driver.step()
    what = "running, -1, waiting with two places for one that is to be forked twice"
    same(case, visible.queues(driver.scheduler), [0, -1, 1], what)


@check(Scheduler, see="Decide anew in every step")
def finds_prompts(schedulers, case):
    """starts after what is cached already, and counts it as a hit once"""
    driver = visible.Driver(schedulers, 19, 3)
    driver.add(0, 7, token=4, longest=12)
    driver.step()
    driver.add(1, 9, token=4, longest=12)
    driver.add(2, 12, token=4, longest=15)
    driver.step()
    driver.step()
    expected = [(0, 0, 0, 7), (1, 0, 7, 8), (1, 1, 6, 9), (1, 2, 6, 12), (2, 0, 8, 9)]
    driver.compare(case, [*expected, (2, 1, 9, 10), (2, 2, 12, 13)])
    same(case, [number(driver.scheduler.hits, "hits")], [12], "hits")


@check(Scheduler, see="Decide anew in every step")
def nothing_new(schedulers, case):
    """plans no work for a sequence of which all is computed"""
    driver = visible.Driver(schedulers, 9, 2)
    for sequence in (0, 1):
        driver.add(sequence, 3, longest=5)
    work = driver.scheduler.schedule()[0]
    computed = [number(record(driver.scheduler, each).num_computed, "computed") for each in (0, 1)]
    same(case, computed, [0, 0], "computed of two whose work is planned, but not done")
    for sequence, _, stop in work:
        driver.scheduler.advance(sequence, stop)
    driver.scheduler.append(1, 7)
    driver.lengths[1] = 4
    driver.step()
    driver.compare(case, [(0, 1, 3, 4)])


@check(Scheduler, see="Decide anew in every step")
def long_programs(schedulers, case):
    """follows the rules in long programs of calls"""
    settings = [(12, 1, 5), (9, 2, 6)]
    visible.follow_rules(schedulers, SettingAside, drawn_programs(case, settings))


@check(PreemptingScheduler, see="When memory runs out in the middle of a batch")
def copies_stay(schedulers, case):
    """keeps the copies that are planned when a sequence loses its blocks"""
    driver = visible.Driver(schedulers, 5, 2, 9)
    driver.add(0, 3, forks=1)
    driver.add(1, 4)
    driver.step()
    driver.fork(0, 7)
    seen = [each for row in driver.step() for each in row]
    seen += [*visible.queues(driver.scheduler), len(driver.copies)]
    what = "work, running, -1, waiting and copies when the last one loses its blocks"
    same(case, seen, [0, 3, 4, 7, 3, 4, 0, 7, -1, 1, 1], what)


@check(PreemptingScheduler, see="Sequences that belong together")
def copies_of_a_group(schedulers, case):
    """keeps the copies of a group that loses its blocks after some of them were planned"""
    driver = visible.Driver(schedulers, 4, 2, 9)
    driver.add(0, 1)
    driver.add(1, 3, forks=2, together=True)
    driver.step()
    for child in (11, 12):
        driver.fork(1, child)
    driver.step()
    seen = [*visible.queues(driver.scheduler), len(driver.copies)]
    what = "running, -1, waiting and copies when the second of three finds no block for its copy"
    same(case, seen, [0, -1, 1, 12, 11, 1], what)


@check(PreemptingScheduler, weight=2, see="When memory runs out in the middle of a batch")
def exhaustion_in_the_middle(schedulers, case):
    """lets those who came first go on, and nobody overtake the one that lost its blocks"""
    driver = visible.Driver(schedulers, 7, 2)
    for sequence, length in enumerate((4, 4, 6)):
        driver.add(sequence, length)
    driver.step()
    driver.add(3, 1)
    later = [(1, 0, 4, 5), (1, 1, 4, 5), (2, 0, 5, 6), (2, 1, 5, 6), (3, 0, 6, 7)]
    seen = []
    for _ in range(3):  # in the last one, the one that asks is the last itself
        driver.step()
        seen += visible.queues(driver.scheduler)
    driver.compare(case, [*((0, n, 0, 4 + n // 2 * 2) for n in range(3)), *later])
    expected = [0, 1, -1, 2, 3] * 2 + [0, -1, 1, 2, 3]
    same(case, seen, expected, "running, -1, waiting after three steps")


@check(PreemptingScheduler, weight=2, see="When memory runs out in the middle of a batch")
def several_lose(schedulers, case):
    """takes the blocks of as many as it needs to, who come back in their order"""
    driver = visible.Driver(schedulers, 8, 1)
    driver.add(0, 4)
    for sequence in (1, 2):
        driver.add(sequence, 2)
    driver.step()
    seen = []
    for _ in range(4):
        driver.step()
        seen.append(visible.queues(driver.scheduler))
    driver.remove(0)
    driver.step()
    seen.append(visible.queues(driver.scheduler))
    expected = [[0, 1, -1, 2], [0, -1, 1, 2], [0, -1, 1, 2], [0, -1, 1, 2], [1, 2, -1]]
    same(case, flat(seen), flat(expected), "running, -1, waiting after each of five steps")
    same(case, driver.rows[-2:], [(5, 1, 0, 4), (5, 2, 0, 3)], "the work of the last step")


@check(PreemptingScheduler, see="Sequences that belong together")
def planned_no_more(schedulers, case):
    """drops the work of a group one of which finds no block"""
    driver = visible.Driver(schedulers, 6, 2, 9)
    driver.add(0, 1)
    driver.add(1, 3, forks=1, together=True)
    driver.step()
    driver.fork(1, 11)
    for _ in range(2):
        driver.step()
    rows = [(0, 0, 0, 1), (0, 1, 0, 3), (1, 0, 1, 2), (1, 1, 3, 4), (1, 11, 3, 4)]
    driver.compare(case, [*rows, (2, 0, 2, 3)])
    same(case, visible.queues(driver.scheduler), [0, -1, 1, 11], "running, -1, waiting")
    same(case, [driver.available], [4], "free blocks")


@check(PreemptingScheduler, weight=2, see="When memory runs out in the middle of a batch")
def long_programs(schedulers, case):
    """follows the rules in long programs of calls"""
    settings = [(31, 2, 9, 0), (8, 2, 6, 1)]
    visible.follow_rules(schedulers, OnDemand, drawn_programs(case, settings))


@check(ChunkedScheduler, see="Chunked prefill")
def budget_ends(schedulers, case):
    """spends exactly its budget, and admits nobody when nothing is left"""
    driver = visible.Driver(schedulers, 30, 4, 3, 0, 3)
    for sequence in range(3):
        driver.add(sequence, 2)
    seen = []
    for _ in range(3):
        driver.step()
        seen += visible.queues(driver.scheduler)
    expected = [(0, 0, 0, 2), (0, 1, 0, 1), (1, 0, 2, 3), (1, 1, 1, 2), (1, 2, 0, 1)]
    driver.compare(case, [*expected, (2, 0, 3, 4), (2, 1, 2, 3), (2, 2, 1, 2)])
    same(case, seen, [0, 1, -1, 2, 0, 1, 2, -1, 0, 1, 2, -1], "running, -1, waiting")


@check(ChunkedScheduler, see="Chunked prefill")
def short_prompts(schedulers, case):
    """counts a prompt of one token against the budget as well"""
    driver = visible.Driver(schedulers, 30, 4, 3, 0, 3)
    for sequence, length in enumerate((3, 1, 1)):
        driver.add(sequence, length)
    for _ in range(2):
        driver.step()
    driver.compare(case, [(0, 0, 0, 3), (1, 0, 3, 4), (1, 1, 0, 1), (1, 2, 0, 1)])


@check(ChunkedScheduler, see="When memory runs out in the middle of a batch")
def preempts_too(schedulers, case):
    """takes blocks from the last to come, in the middle of a prompt as well"""
    driver = visible.Driver(schedulers, 4, 2, 3, 0, 5)
    driver.add(0, 4)
    driver.add(1, 4)
    for _ in range(3):
        driver.step()
    expected = [(0, 0, 0, 4), (0, 1, 0, 1), (1, 0, 4, 5), (2, 0, 5, 6)]
    driver.compare(case, expected)
    same(case, visible.queues(driver.scheduler), [0, -1, 1], "running, -1, waiting")


@check(ChunkedScheduler, see="Chunked prefill")
def long_programs(schedulers, case):
    """follows the rules in long programs of calls"""
    settings = [(10, 1, 5, 0, 9), (9, 2, 4, 0, 5)]
    visible.follow_rules(schedulers, InChunks, drawn_programs(case, settings))


@check(ModelRunner, weight=2, see="All tokens in one row")
def borders(runners, case):
    """computes chunks that end on a border of a block, one before and one after"""
    for S in (1, 4):
        visible.compare_runs(case, runners, [8, 9, 7, 12, 4], [4, 8, 3, 5, 0], S)


@check(EngineCore, weight=2, see="One step of the engine")
def joins_late(engines, case):
    """adds the same tokens to a prompt that comes while another is continued"""
    model, prompts = visible.small_model(case), visible.texts(case, 4, 9)
    expected = [visible.plain_tokens(model, prompt, 16) for prompt in prompts]
    engine, rows = engines(model, EngineConfig(20, 4)), {}
    for prompt in prompts:
        rows[number(engine.add(prompt), "add")] = []
        for each, token in pairs(engine.step(), "step"):
            rows[each].append(token)
    rows = visible.run(engine, rows)
    visible.compare_tokens(
        case, list(rows.values()), expected, "tokens of two prompts, one step apart"
    )
    counts = [len(engine.history), len(list(engine.step()))]
    same(case, counts, [17, 0], "steps in history, and tokens of one more")


@check(EngineCore, weight=2, see="Many samples of one prompt")
def forks_of_forks(engines, case):
    """lets forks of forks go on as their parents do, and forgets what is aborted"""
    model, prompts = visible.small_model(case), visible.texts(case, 6, 3)
    expected = visible.plain_tokens(model, prompts[0], 9)
    engine = engines(model, EngineConfig(20, 4))
    first, other = (number(engine.add(prompt, SamplingParams(9)), "add") for prompt in prompts)
    engine.step()
    second = number(engine.fork(first), "fork")
    engine.step()
    third = number(engine.fork(second), "fork")
    engine.abort(other)
    rows = visible.run(engine, {first: []})
    given = [rows[each] for each in (first, second, third)]
    visible.compare_tokens(
        case, given, [expected[2:]] * 3, "tokens of three forks after the second step"
    )
    same(case, rows.get(other, []), [], "tokens of the one that was aborted")
    same(case, [visible.free_blocks(engine)], [20], "free blocks at the end")


@check(EngineCore, see="Many samples of one prompt")
def narrow(engines, case):
    """draws the same samples when there is hardly memory for one of them"""
    model, (prompt,) = visible.small_model(case), visible.texts(case, 5)
    sampling, found = SamplingParams(7, None, 3, 1.5, top_k=9, seed=5), []
    for blocks in (40, 7):
        engine = engines(model, EngineConfig(blocks, 2))
        found.append(list(visible.run(engine, {engine.add(prompt, sampling): []}).values()))
    visible.compare_tokens(
        case, found[1], found[0], "tokens of three samples with 7 blocks, as with 40"
    )
    different = len(set(map(tuple, found[0])))
    case.that(different > 1, "Samples should differ, yours are all the same.")
    prompts = visible.texts(case, 3, 4)
    expected = [visible.plain_tokens(model, prompt, 8) for prompt in prompts]
    engine = engines(model, EngineConfig(6, 2, max_num_seqs=2, max_num_batched_tokens=2))
    rows = visible.serve(engine, prompts, SamplingParams(8))
    visible.compare_tokens(
        case, rows, expected, "tokens of two, one of which is computed again in pieces"
    )


@check(EngineCore, see="A prompt that is cached")
def cached_prompts(engines, case):
    """adds the same tokens to a prompt that it has seen before"""
    model, (prompt,) = visible.small_model(case), visible.texts(case, 8)
    expected = [visible.plain_tokens(model, prompt, 5)]
    engine = engines(model, EngineConfig(12, 4))
    for time in ("first", "second", "third"):
        rows = visible.serve(engine, [prompt], SamplingParams(5))
        visible.compare_tokens(case, rows, expected, f"tokens of the {time} time")
    same(case, [number(engine.scheduler.hits, "hits")], [8], "tokens found in the cache")


@check(choose_beams, see="Which beams go on")
def all_ended(choose, case):
    """keeps beams as they are when all have ended"""
    visible.compare_choice(case, choose, *visible.beam_rows(case, 3, 4, [True] * 3), 3)


@check(BeamEngine, weight=2, see="Branches share blocks")
def beside_others(engines, case):
    """finds the same beams beside other requests and with little memory, and disturbs nobody"""
    model, prompts = visible.small_model(case, V=7, calls=900), visible.texts(case, 4, 6, 5, V=7)
    plain = [visible.plain_tokens(model, prompt, 9) for prompt in prompts[1:]]
    sampling = SamplingParams(7, 2, beams=3)
    expected = [row for row, _ in visible.search_by_hand(model, prompts[0], sampling)]
    for settings in ({}, {"max_num_seqs": 5, "max_num_batched_tokens": 5}):
        engine = engines(model, EngineConfig(16, 2, **settings))
        others = [engine.add(prompt, SamplingParams(9)) for prompt in prompts[1:]]
        tokens, _ = visible.search(case, engine, prompts[0], sampling)
        visible.compare_tokens(case, tokens, expected, f"tokens of the beams with {settings}")
        visible.run(engine, {each: [] for each in others})
        rows = [numbers(record(engine, each).output, "output") for each in others]
        visible.compare_tokens(case, rows, plain, f"tokens of the others with {settings}")
        same(case, [visible.free_blocks(engine)], [16], "free blocks at the end")


@check(BeamEngine, see="Branches share blocks")
def shares(engines, case):
    """keeps what beams have in common once"""
    model, (prompt,) = visible.small_model(case, V=7), visible.texts(case, 9, V=7)
    engine = engines(model, EngineConfig(40, 2))
    request = engine.add(prompt, SamplingParams(2, beams=4))
    engine.step()
    case.raises(ValueError, lambda: engine.fork(request), "a beam is to be forked")
    wanted = SamplingParams(2, beams=2)
    case.raises(ValueError, lambda: engine.stream([[1]], wanted), "a stream wants beams")
    engine.step()
    same(case, [len(engine.requests[request])], [4], "beams after two steps")
    shared = engine.history[0]["blocks shared"], visible.free_blocks(engine)
    same(case, list(shared), [5, 40], "blocks shared after a step, and free at the end")


@check(Engine, see="The engine")
def own_limits(engines, case):
    """gives each prompt its own limits, and the outputs in the prompts' order"""
    model, prompts = visible.small_model(case), visible.texts(case, 4, 7, 3)
    counts = [7, 1, 4]
    sampling = [SamplingParams(count) for count in counts]
    rows, _ = visible.added(case, engines(model, EngineConfig(20, 4)).generate(prompts, sampling))
    pairs_of = zip(prompts, counts, strict=True)
    expected = [visible.plain_tokens(model, prompt, count) for prompt, count in pairs_of]
    visible.compare_tokens(case, rows, expected, f"tokens with counts {counts}")


@check(Engine, see="The engine")
def asked_again(engines, case):
    """continues other prompts when the first ones have ended"""
    model, prompts = visible.small_model(case), visible.texts(case, 5, 3)
    engine = engines(model, EngineConfig(20, 4))
    for time, prompt in zip(("first", "second"), prompts, strict=True):
        rows, _ = visible.added(case, engine.generate([prompt], SamplingParams(4)))
        expected = [visible.plain_tokens(model, prompt, 4)]
        visible.compare_tokens(case, rows, expected, f"tokens of the {time} prompt")


@check(Engine, see="Two streams from one engine")
def takes_samples(engines, case):
    """hands out the tokens of each sample once, in their order"""
    model, (prompt,) = visible.small_model(case), visible.texts(case, 4)
    plain = visible.plain_tokens(model, prompt, 4)
    engine = engines(model, EngineConfig(20, 4))
    request, seen = engine.add(prompt, SamplingParams(4, n=2)), []
    for count in (1, 2, 1):
        for _ in range(count):
            engine.step()
        seen += pairs(engine.take(request), "take")
    parts = plain[:1], plain[1:3], plain[3:]
    wanted = [(k, token) for part in parts for k in (0, 1) for token in part]
    same(case, seen, wanted, "(sample, token) after one, three and four steps")
    sampled = pairs(engine.stream([prompt], SamplingParams(4, n=2)), "the stream", 3)
    same(case, sampled, [(0, k, token) for token in plain for k in (0, 1)], "a stream of two")


@check(SwapSpace, see="A second cache on the host")
def used_again(spaces, case):
    """hands out host blocks again that were given back, and none that is in use"""
    space, inside = spaces(3, 50), {}
    for step, count in enumerate(case.integers(1, 3, 12).tolist()):
        while 3 - sum(inside.values()) < count:
            gone = min(inside)
            space.swap_in([gone], list(range(inside.pop(gone))))
        copies = pairs(space.swap_out({step: [7 * n for n in range(count)]}), "swap_out")
        same(case, [len(copies)], [count], "blocks that go out")
        inside[step] = count
        same(case, [number(space.available, "available")], [3 - sum(inside.values())], "available")
    before = number(space.available, "available"), dict(space.tables)
    too_many = [min(inside)], [1] * 9
    case.raises(ValueError, lambda: space.swap_in(*too_many), "there are too many blocks")
    after = number(space.available, "available"), dict(space.tables)
    case.that(after == before, f"The error should change nothing: {before} became {after}.")


@check(SwapSpace, see="A second cache on the host")
def long_programs(spaces, case):
    """keeps what each sequence has, in long programs of calls"""
    seeds = case.integers(0, 1 << 30, 2).tolist()
    programs = [
        visible.spaces_program(blocks, 40, seed)
        for blocks, seed in zip((6, 20), seeds, strict=True)
    ]
    follow(spaces, visible.PlainSpace, visible.play_either, Swapping, programs)


@check(SwappingScheduler, weight=2, see="Swap instead of computing again")
def leaves_the_host(schedulers, case):
    """frees what a sequence has on the host when it ends there, and keeps forks apart"""
    driver = visible.Driver(schedulers, 5, 2, 64, 0, None, 6)
    driver.add(0, 4)
    driver.add(1, 5)
    for _ in range(2):
        driver.step()
    driver.fork(1, 2)
    seen = []
    for each in (1, 2, 0):
        seen += [number(driver.scheduler.space.available, "available"), driver.available]
        driver.remove(each)
    seen += [number(driver.scheduler.space.available, "available"), driver.available]
    what = "free host blocks and free blocks of the cache, before and after three have ended"
    same(case, seen, [3, 2, 3, 2, 6, 2, 6, 5], what)


@check(SwappingScheduler, weight=2, see="Swap instead of computing again")
def again_and_again(schedulers, case):
    """keeps every key in its place when blocks go out and come back many times"""
    S, driver = 2, visible.Driver(schedulers, 10, 2, 9, 1, 9, 30)
    lengths = case.integers(3, 7, 6).tolist()
    for sequence, length in enumerate(lengths):
        driver.add(sequence, length)
    held: dict[int, list] = {}  # of each block, whose keys are in its slots
    starts, expected, lost = [], [], 0
    done = dict.fromkeys(range(6), 0)
    for _ in range(60):
        if not driver.lengths:
            break
        work = driver.step()
        for source, target in driver.copies:
            held[target] = list(held.get(source, [None] * S))
        for sequence, start, stop in work:
            starts.append(start)
            expected.append(done[sequence])
            done[sequence] = stop
            _, *blocks = tables(driver.scheduler, sequence)[0]
            for t in range(start, stop):
                held.setdefault(blocks[t // S], [None] * S)[t % S] = (sequence, t)
        for sequence, _, stop in work:
            _, *blocks = tables(driver.scheduler, sequence)[0]
            lost += sum(held[blocks[t // S]][t % S] != (sequence, t) for t in range(stop))
        for sequence in [each for each in driver.lengths if done[each] == lengths[each] + 9]:
            driver.remove(sequence)
    same(case, starts, expected, "where the work of each sequence begins, in all steps")
    same(case, [lost], [0], "keys that are not where its table says")
    swaps = number(driver.scheduler.swaps, "swaps")
    case.that(swaps > 2, f"More than 2 sequences should be swapped, yours are {swaps}.")


@check(SwappingScheduler, weight=2, see="Swap instead of computing again")
def long_programs(schedulers, case):
    """follows the rules in long programs of calls"""
    settings = [(8, 2, 3, 1, 3, 30), (9, 2, 9, 0, None, 4)]
    visible.follow_rules(schedulers, WithHost, drawn_programs(case, settings))


@check(choose_beams_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "C")
