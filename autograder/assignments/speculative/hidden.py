"""Hidden checks of speculative: borders, errors, drafts of changing length, little memory."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.models import SmallDraft, SmallReader
from course_pkg.checking.programs.programs import follow
from course_pkg.checking.registry import check
from course_pkg.checks import speculative as visible
from course_pkg.checks.paged_attention import number, same
from course_pkg.checks.serving import (
    free_blocks,
    listed,
    run,
    serve,
    small_model,
    texts,
)
from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.speculative import (
    SpeculativeCore,
    SpeculativeWriter,
    Speculator,
    accept_or_resample,
    accept_path,
    best_draft_length,
    draw_token,
    expected_tokens,
    prompt_lookup,
    prompt_lookup_fault,
    tree_mask,
)


@check(draw_token, see="A number becomes a token")
def large(draw, case):
    """draws from a large vocabulary, and from every other of the weights of a larger one"""
    p = visible.chances(case, 4000)
    visible.demand_drawn(case, draw, p[::2], [(n + 0.5) / 30 for n in range(30)], "tokens of 2000")


@check(accept_or_resample, weight=2, see="Accept or resample")
def exact_elsewhere(accept, case):
    """is exact for three drafts, without a draft, and for drafts that find most impossible"""
    visible.demand_law(case, accept, 3, 3)
    visible.demand_law(case, accept, 4, 0)
    visible.demand_law(case, accept, 4, 2, zeros=True)


@check(accept_or_resample, see="Accept or resample")
def same_model(accept, case):
    """accepts everything if p and q are the same"""
    inputs = []
    for _ in range(8):
        p = visible.chances(case, 4, 6)
        drafted = [int(row.argmax()) for row in p[:3]]
        inputs.append((p, p[:3], drafted, [0.999999, 0.0, 0.5, float(case.rand(1))]))
    visible.compare_outcomes(case, accept, inputs, "tokens if p and q are the same")


@check(Speculator, see="One step")
def same_model(speculators, case):
    """keeps all drafts if draft and target are the same model"""
    target = visible.reader(case)
    twin = SmallReader((*target[:3], []))
    found = visible.compare_steps(case, speculators, target, twin, 1.0, [3] * 6)
    visible.tell_lengths(*found, "lengths of the two caches after each of six steps")


@check(Speculator, weight=2, see="Forget what is not the text")
def long_programs(speculators, case):
    """stays right over very many steps, also where the text is changed between them"""
    drawn = visible.speculation_programs(case, 6, 12)
    follow(speculators, visible.PlainSpeculator, visible.speculations, visible.Speculating, drawn)


@check(prompt_lookup, see="The text drafts for itself")
def many(look_up, case):
    """guesses right for texts of all lengths, and for other limits"""
    questions = []
    for length in range(16):
        for longest in (1, 2, 5):
            text = case.integers(0, 2, length).tolist()
            questions.append((text, length % 5, longest))
    visible.compare_guesses(
        case, look_up, questions, "guesses for 48 texts of two different tokens"
    )


@check(SpeculativeWriter, see="A whole text")
def without_drafts(writers, case):
    """is the plain writer for k = 0, and drafts more than there are tokens to come"""
    target = visible.reader(case)
    questions, expected = [], []
    for k, count in ((0, 7), (9, 5), (9, 12)):
        for draft in (visible.near(case, target), None):
            text, generator = case.integers(0, 7, 3).tolist(), torch.Generator().manual_seed(k)
            questions.append(((target, draft, 30, 0.9), text, count, k, generator))
            expected.append(visible.by_hand(target, draft, text, count, k, 0.9, seed=k))
    rows = visible.written_anew(writers, questions)
    visible.tell_rows(visible.told(questions), rows, expected, "texts with k = 0 and k = 9")
    labels = torch.randperm(4, generator=case.generator)
    text = labels[[0, 3, 1, 2, 3, 0, 2, 1, 2, 3, 2, 0, 3, 1, 2, 3]]
    for k in (1, 5):  # a run of 3 was seen; of those of 1 and 5, another one was the latest
        found = writers(target, None, 30).propose(text, k, case.rand(k))
        drafted = visible.as_list(case.unpack(found, "drafted", "q")[0], "drafted")
        same(case, drafted, visible.looked_up(text.tolist(), k), f"drafted tokens with k = {k}")


@check(SpeculativeWriter, see="A whole text")
def one_after_the_other(writers, case):
    """draws each of several texts as if its caches were new, whatever the number of drafts"""
    target, rows, expected, scenes = visible.reader(case, V=4), [], [], []
    for draft in (visible.near(case, target), None):
        questions = []
        for length, k in ((10, 2), (35, 5), (60, 1)):
            text = case.integers(0, 4, length).tolist()
            questions.append((text, 20, k, torch.Generator().manual_seed(k)))
            expected.append(visible.by_hand(target, draft, text, 20, k, 0.8, seed=k))
        settings = target, draft, 80, 0.8
        rows += visible.written_in_turn(writers, settings, questions)[0]
        asked = visible.told([(settings, *question) for question in questions], "One writer's ")
        scenes += [f"Text {n + 1} of three. {scene}" for n, scene in enumerate(asked)]
    visible.tell_rows(
        scenes, rows, expected, "three texts of one writer, then three without a draft"
    )


@check(expected_tokens, see="How many tokens a step adds")
def elsewhere(expected, case):
    """is right for other probabilities and lengths, up to drafts of 100 tokens"""
    pairs = [(float(alpha), k) for alpha in case.rand(6) for k in (3, 17, 100)]
    given = torch.tensor([float(expected(*pair)) for pair in pairs]).double()
    sums = [sum(alpha**n for n in range(k + 1)) for alpha, k in pairs]
    case.equal(given, torch.tensor(sums).double(), "tokens for 18 pairs of alpha and k")


@check(best_draft_length, see="How many tokens to draft")
def elsewhere(choose, case):
    """chooses right for free drafts, for dear ones, and for one that is always right"""
    questions = [(0.5, 0.0, 8), (0.99, 0.001, 200), (1, 0.99, 9), (1, 1.01, 9), (0.6, 3.0)]
    questions += [(alpha, 0.05) for alpha in (0.4, 0.5, 0.7, 0.95)]
    visible.compare_lengths(case, choose, questions, "lengths for nine pairs of alpha and cost")


@check(tree_mask, see="A tree of drafts")
def larger(masks, case):
    """is right for larger trees, and counts what each node sees"""
    trees = [(visible.drawn_parents(case, M), past) for M, past in ((30, 1), (17, 20), (2, 0))]
    visible.compare_masks(case, masks, trees, "parents, past =")


@check(accept_path, see="Which path is accepted")
def larger(accept, case):
    """is right for larger trees, and for deep ones"""
    trees = [visible.drawn_tree(case, 40, 6) for _ in range(5)]
    chain = [*range(-1, 24)], [n % 7 for n in range(25)], [(n + 1) % 7 for n in range(25)]
    visible.compare_paths(case, accept, [*trees, chain], "paths of larger trees")


@check(SpeculativeCore, weight=2, see="Several tokens for each of many")
def under_load(engines, case):
    """adds the right tokens with little memory, a small budget, and a host to swap to"""
    model, prompts = small_model(case, calls=900), texts(case, 5, 3, 9, 6)
    whole = visible.known(model, prompts, 14)
    expected = [right[len(text) :] for text, right in zip(prompts, whole, strict=True)]
    for settings in (
        {"num_blocks": 17, "watermark": 2, "k": 3},
        {"num_blocks": 17, "num_cpu_blocks": 12, "k": 2},
        {"num_blocks": 90, "max_num_seqs": 4, "max_num_batched_tokens": 7, "k": 5},
    ):
        named = {name: value for name, value in settings.items() if name != "k"}
        guess = visible.wrong_drafts(prompts, whole, 3)
        config = EngineConfig(**named, block_size=2)
        engine = engines(model, config, k=settings["k"], propose=guess)
        rows = serve(engine, prompts, SamplingParams(14))
        visible.tell_served(prompts, rows, expected, f"tokens with {listed(**settings)}")
        same(case, [free_blocks(engine)], [config.num_blocks], "free blocks at the end")


@check(SpeculativeCore, weight=2, see="What rejected drafts leave behind")
def many_calls(engines, case):
    """has the right tokens, blocks and free blocks after each of very many calls"""
    for config, k in (
        (EngineConfig(60, 1), 4),
        (EngineConfig(14, 2, watermark=1), 3),
        (EngineConfig(30, 4, max_num_seqs=2, max_num_batched_tokens=6), 5),
        (EngineConfig(17, 2, num_cpu_blocks=9), 2),
    ):
        visible.follow_engine(case, engines, config, 40, k)


@check(SpeculativeCore, see="Several tokens for each of many")
def some_draft(engines, case):
    """serves sequences for which nothing is drafted beside others for which much is"""
    model, prompts = small_model(case, V=7, calls=900, L=1), texts(case, 5, 9, V=7)
    whole = visible.known(model, prompts, 12)
    guess = SmallDraft([visible.partly(prompts[0], whole[0], 4, 7), prompts[1]])
    engine = engines(model, EngineConfig(60, 3), k=3, propose=guess)
    how = [SamplingParams(12), SamplingParams(12, temperature=0.8, seed=4)]
    begun = [number(engine.add(*each), "add") for each in zip(prompts, how, strict=True)]
    rows = run(engine, {each: [] for each in begun})
    expected = [whole[0][5:], visible.sampled(model, prompts[1], how[1], lambda text, k: [], 3, 4)]
    visible.tell_served(
        prompts, [rows[each] for each in begun], expected, "tokens of two sequences"
    )


@check(prompt_lookup_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "C")
