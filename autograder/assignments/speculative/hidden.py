"""Hidden checks of speculative: borders, errors, drafts of changing length, little memory."""

import math

import torch
from torch import Tensor

from course_pkg.checking.models import SmallDraft, SmallReader
from course_pkg.checking.programs import follow
from course_pkg.checking.registry import check
from course_pkg.checks.kv_cache import demand_pieces
from course_pkg.checks.paged_attention import number, same
from course_pkg.checks.serving import (
    free_blocks,
    listed,
    run,
    serve,
    small_model,
    texts,
)
from course_pkg.checks.speculative import (
    PlainSpeculator,
    Speculating,
    as_list,
    by_hand,
    by_slices,
    chances,
    compare_guesses,
    compare_lengths,
    compare_outcomes,
    compare_steps,
    demand_bytes,
    demand_drawn,
    demand_law,
    demand_quantised,
    demand_restored,
    drawn_integers,
    far_from_zero,
    follow_cache,
    follow_engine,
    four,
    from_latents,
    hadamard,
    hexadecimal,
    known,
    latent_layer,
    looked_up,
    matrix,
    near,
    partly,
    read_back,
    reader,
    recorded,
    rounded_matrix,
    sampled,
    speculation_programs,
    speculations,
    tell_lengths,
    tell_rows,
    tell_served,
    told,
    vectors,
    written_anew,
    written_in_turn,
    wrong_drafts,
)
from course_pkg.engine.requests import Sampling
from course_pkg.speculative import (
    LatentAttention,
    QuantisedKVCache,
    QuantisedLinear,
    QuantisedPagedCache,
    SpeculativeCore,
    SpeculativeWriter,
    Speculator,
    accept_or_resample,
    best_draft_length,
    dequantise,
    draw_token,
    expected_tokens,
    pack_int4,
    prompt_lookup,
    quantise,
    rotate,
    unpack_int4,
)


@check(draw_token, see="A number becomes a token")
def large(draw, case):
    """draws from a large vocabulary, and from every other of the weights of a larger one"""
    p = chances(case, 4000)
    demand_drawn(case, draw, p[::2], [(n + 0.5) / 30 for n in range(30)], "tokens of 2000")


@check(accept_or_resample, weight=2, see="Accept or resample")
def exact_elsewhere(accept, case):
    """is exact for three drafts, without a draft, and for drafts that find most impossible"""
    demand_law(case, accept, 3, 3)
    demand_law(case, accept, 4, 0)
    demand_law(case, accept, 4, 2, zeros=True)


@check(accept_or_resample, see="Accept or resample")
def same_model(accept, case):
    """accepts everything if p and q are the same"""
    inputs = []
    for _ in range(8):
        p = chances(case, 4, 6)
        drafted = [int(row.argmax()) for row in p[:3]]
        inputs.append((p, p[:3], drafted, [0.999999, 0.0, 0.5, float(case.rand(1))]))
    compare_outcomes(case, accept, inputs, "tokens if p and q are the same")


@check(Speculator, see="One step")
def same_model(speculators, case):
    """keeps all drafts if draft and target are the same model"""
    target = reader(case)
    twin = SmallReader((*target[:3], []))
    found = compare_steps(case, speculators, target, twin, 1.0, [3] * 6)
    tell_lengths(*found, "lengths of the two caches after each of six steps")


@check(Speculator, weight=2, see="Forget what is not the text")
def long_programs(speculators, case):
    """stays right over very many steps, also where the text is changed between them"""
    drawn = speculation_programs(case, 6, 12)
    follow(speculators, PlainSpeculator, speculations, Speculating, drawn)


@check(prompt_lookup, see="The text drafts for itself")
def many(look_up, case):
    """guesses right for texts of all lengths, and for other limits"""
    questions = []
    for length in range(16):
        for longest in (1, 2, 5):
            text = case.integers(0, 2, length).tolist()
            questions.append((text, length % 5, longest))
    compare_guesses(case, look_up, questions, "guesses for 48 texts of two different tokens")


@check(SpeculativeWriter, see="A whole text")
def without_drafts(writers, case):
    """is the plain writer for k = 0, and drafts more than there are tokens to come"""
    target = reader(case)
    questions, expected = [], []
    for k, count in ((0, 7), (9, 5), (9, 12)):
        for draft in (near(case, target), None):
            text, generator = case.integers(0, 7, 3).tolist(), torch.Generator().manual_seed(k)
            questions.append(((target, draft, 30, 0.9), text, count, k, generator))
            expected.append(by_hand(target, draft, text, count, k, 0.9, seed=k))
    rows = written_anew(writers, questions)
    tell_rows(told(questions), rows, expected, "texts with k = 0 and k = 9")
    labels = torch.randperm(4, generator=case.generator)
    text = labels[[0, 3, 1, 2, 3, 0, 2, 1, 2, 3, 2, 0, 3, 1, 2, 3]]
    for k in (1, 5):  # a run of 3 was seen; of those of 1 and 5, another one was the latest
        found = writers(target, None, 30).propose(text, k, case.rand(k))
        drafted = as_list(case.unpack(found, "drafted", "q")[0], "drafted")
        same(case, drafted, looked_up(text.tolist(), k), f"drafted tokens with k = {k}")


@check(SpeculativeWriter, see="A whole text")
def one_after_the_other(writers, case):
    """draws each of several texts as if its caches were new, whatever the number of drafts"""
    target, rows, expected, scenes = reader(case, V=4), [], [], []
    for draft in (near(case, target), None):
        questions = []
        for length, k in ((10, 2), (35, 5), (60, 1)):
            text = case.integers(0, 4, length).tolist()
            questions.append((text, 20, k, torch.Generator().manual_seed(k)))
            expected.append(by_hand(target, draft, text, 20, k, 0.8, seed=k))
        settings = target, draft, 80, 0.8
        rows += written_in_turn(writers, settings, questions)[0]
        asked = told([(settings, *question) for question in questions], "One writer's ")
        scenes += [f"Text {n + 1} of three. {scene}" for n, scene in enumerate(asked)]
    tell_rows(scenes, rows, expected, "three texts of one writer, then three without a draft")


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
    compare_lengths(case, choose, questions, "lengths for nine pairs of alpha and cost")


@check(SpeculativeCore, weight=2, see="Several tokens for each of many")
def under_load(engines, case):
    """adds the right tokens with little memory, a small budget, and a host to swap to"""
    model, prompts = small_model(case, calls=900), texts(case, 5, 3, 9, 6)
    whole = known(model, prompts, 14)
    expected = [right[len(text) :] for text, right in zip(prompts, whole, strict=True)]
    for settings in (
        {"blocks": 17, "watermark": 2, "k": 3},
        {"blocks": 17, "host": 12, "k": 2},
        {"blocks": 90, "max_num_seqs": 4, "max_num_batched_tokens": 7, "k": 5},
    ):
        named = settings | {"block_size": 2, "propose": wrong_drafts(prompts, whole, 3)}
        engine = engines(model, **named)
        rows = serve(engine, prompts, Sampling(14))
        tell_served(prompts, rows, expected, f"tokens with {listed(**settings)}")
        same(case, [free_blocks(engine)], [settings["blocks"]], "free blocks at the end")


@check(SpeculativeCore, weight=2, see="What rejected drafts leave behind")
def many_calls(engines, case):
    """has the right tokens, blocks and free blocks after each of very many calls"""
    for S, blocks, settings in (
        (1, 60, {"k": 4}),
        (2, 14, {"k": 3, "watermark": 1}),
        (4, 30, {"k": 5, "max_num_seqs": 2, "max_num_batched_tokens": 6}),
        (2, 17, {"k": 2, "host": 9}),
    ):
        follow_engine(case, engines, S, blocks, 40, **settings)


@check(SpeculativeCore, see="Several tokens for each of many")
def some_draft(engines, case):
    """serves sequences for which nothing is drafted beside others for which much is"""
    model, prompts = small_model(case, V=7, calls=900, L=1), texts(case, 5, 9, V=7)
    whole = known(model, prompts, 12)
    guess = SmallDraft([partly(prompts[0], whole[0], 4, 7), prompts[1]])
    engine = engines(model, 60, 3, k=3, propose=guess)
    how = [Sampling(12), Sampling(12, temperature=0.8, seed=4)]
    begun = [number(engine.add(*each), "add") for each in zip(prompts, how, strict=True)]
    rows = run(engine, {each: [] for each in begun})
    expected = [whole[0][5:], sampled(model, prompts[1], how[1], lambda text, k: [], 3, 4)]
    tell_served(prompts, [rows[each] for each in begun], expected, "tokens of two sequences")


# Quantise


@check(quantise, see="Nothing to divide by")
def sizes_of_numbers(quantise, case):
    """works with numbers of any size, and with a single one"""
    for factor in (1e-30, 1e-3, 1e25):
        X = far_from_zero(case, 4, 7) * factor
        Q, scale, zero = case.unpack(quantise(X, 8, 1), "Q", "scale", "zero")
        expected = by_slices(X, 8, (1,))
        case.equal(Q, expected[0], f"Q of numbers around {factor:g}")
        case.shape(scale, (4, 1), "scale")
        case.shape(zero, (4, 1), "zero point")
        case.equal(scale / factor, expected[1] / factor, "scale, divided by their size,")
        case.equal(zero / factor, expected[2] / factor, "zero point, divided by their size,")
    X = far_from_zero(case, 5, 1)
    for options in ({}, {"symmetric": True}):
        expected = by_slices(X, 8, (1,), **options)
        demand_quantised(case, quantise(X, 8, 1, **options), expected, "of single numbers")


# Dequantise


@check(dequantise, see="And back")
def blocks(dequantise, case):
    """lets groups along several axes share scales"""
    Q = drawn_integers(case, 4, 6, 2, 9).transpose(0, 1)
    shapes = (3, 2, 1, 3), (6, 1, 2, 1), (2, 4, 2, 9), (1, 1, 1, 1)
    demand_restored(case, dequantise, Q, {f"with scales of shape {s}": s for s in shapes})


# Pack


@check(pack_int4, see="Two to a byte")
def signs(pack, case):
    """raises ValueError for a sign in any place, and for a vector of odd length"""
    for place in range(4):
        for dtype in (torch.int8, torch.int64):
            Q = case.integers(0, 16, 4).to(dtype)
            Q[place] = -3
            case.raises(ValueError, lambda Q=Q: pack(Q), f"integer {place} is -3")
    case.raises(ValueError, lambda: pack(torch.tensor([3])), "there is one integer")


@check(unpack_int4, see="Two to a byte")
def layouts(unpack, case):
    """takes bytes of any layout, and none at all"""
    digits = case.integers(0, 16, 4, 3, 5, 2)
    packed = hexadecimal(digits.view(-1, 2).tolist()).view(4, 3, 5)
    expected = digits.to(torch.uint8).transpose(0, 1).flatten(2)
    demand_bytes(case, unpack(packed.transpose(0, 1)), expected, "unpacked, transposed bytes")
    one = unpack(packed[0, 0])
    demand_bytes(case, one, digits[0, 0].flatten().to(torch.uint8), "an unpacked vector of bytes")
    nothing = torch.zeros(3, 0, dtype=torch.uint8)
    demand_bytes(case, unpack(nothing), nothing, "unpacked nothing")


# Cache


@check(QuantisedKVCache, weight=2, see="Cut within a group")
def rejected(cache, case):
    """survives many cuts, some of them within groups of which more come again"""
    for bits, group in ((8, 4), (4, 3), (8, 1), (8, 2)):
        follow_cache(case, cache, bits, group, 25)


# Paged cache


@check(QuantisedPagedCache, see="Quantised blocks")
def axes(cache, case):
    """encodes and decodes vectors with any axes before the last"""
    ours = cache(1, 2, 3, 2, 6, 8, torch.float64)
    X = vectors(case, 2, 5, 3, 6).transpose(0, 2)
    records = recorded(X.reshape(-1, 6), 8).view(3, 5, 2, 10)
    demand_bytes(case, ours.encode(X), records, "records")
    turned = records.transpose(0, 1)
    case.equal(ours.decode(turned), read_back(X.transpose(0, 1), 8), "decoded records")
    ours, x = cache(1, 2, 3, 1, 2, 4, torch.float64), vectors(case, 1, 1, 2)
    ours.write(0, torch.tensor([3]), x, -x)
    keys, values = case.unpack(ours.gather(0, [1], 1), "K", "V")
    case.equal(keys, read_back(x, 4), "K of a single vector of two features")
    case.equal(values, read_back(-x, 4), "V of a single vector of two features")


# Linear


@check(QuantisedLinear, see="Weights in eight bits")
def axes(linear, case):
    """multiplies a vector alone, and a matrix with a column of zeros"""
    W = matrix(case, 5, 4)
    W[:, 2] = 0.0
    ours = linear(W.T.contiguous().T)
    for shape in ((5,), (2, 3, 5)):
        X = case.randn(*shape)
        case.equal(ours(X), X @ rounded_matrix(W)[0], f"Y for X of shape {tuple(X.shape)}")


# Rotate


def twelve() -> Tensor:
    """Make a Hadamard matrix of size 12, from the squares modulo 11 (Paley 1933)."""
    signs = [0] + [1 if n in {m * m % 11 for m in range(1, 11)} else -1 for n in range(1, 11)]
    H = torch.eye(12)
    H[0, 1:], H[1:, 0] = 1, -1
    H[1:, 1:] += torch.tensor([[signs[(j - i) % 11] for j in range(11)] for i in range(11)])
    return H


@check(rotate, see="Turn the outliers away")
def sizes(rotate, case):
    """leaves a single feature alone, and works with a vector, a start alone, and many axes"""
    x = case.randn(3, 1)
    case.equal(rotate(x), x, "rotated X of one feature")
    x = case.randn(16)
    case.equal(rotate(x), x @ hadamard(16) / 4, "a rotated vector")
    X = case.randn(2, 3, 8, 5).transpose(2, 3)
    case.equal(rotate(X), X @ hadamard(8) / math.sqrt(8), "rotated X")
    X = case.randn(5, 4)
    case.equal(rotate(X, four()), X @ four().double() / 2, "rotated X, D being the start's")
    X, begin = case.randn(5, 24), twelve()
    case.equal(rotate(X, begin), X @ hadamard(24, begin) / math.sqrt(24), "rotated X, 24 = 12 · 2")


@check(rotate, see="Where to begin")
def impossible(rotate, case):
    """raises ValueError for sizes that are no multiple, and for those that are an odd one"""
    for D, r in ((3, 1), (6, 1), (24, 1), (5, 4), (12, 4), (20, 4)):
        X, begin = case.randn(2, D), None if r == 1 else four()
        call = (lambda X=X: rotate(X)) if begin is None else (lambda X=X: rotate(X, four()))
        case.raises(ValueError, call, f"D is {D} and it starts at {r}")


# Latent attention


@check(LatentAttention, see="What is kept")
def mixed(attention, case):
    """goes on in either way with what the other has kept"""
    ours, state = latent_layer(case, attention, 4, 7, 3)
    X = case.randn(3, 8, 12)
    expected, cache = from_latents(state, X), ours.new_cache(3, 9)
    given = [ours(X[:, :5], cache), ours.absorbed(X[:, 5:6], cache), ours(X[:, 6:], cache)]
    demand_pieces(case, given, expected, [5, 1, 2], "Y, by turns,")
    cache.truncate(4)
    case.equal(ours.absorbed(X[:, 4:6], cache), expected[:, 4:6], "Y after truncate")


@check(LatentAttention, see="Never make a key")
def more_latents(attention, case):
    """works with a latent vector that is larger than a head, or than all heads together"""
    for D_c in (1, 3, 20):
        ours, state = latent_layer(case, attention, 5, D_c, 1)
        X = case.randn(2, 4, 15)
        expected = from_latents(state, X)
        case.equal(ours(X), expected, f"Y for D_c = {D_c}")
        case.equal(ours.absorbed(X), expected, f"Y, absorbed, for D_c = {D_c}")
