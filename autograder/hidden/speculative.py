"""Hidden checks of speculative: borders, errors, drafts of changing length, little memory."""

import math

import torch
from torch import Tensor

from course_pkg.checking.failure import describe
from course_pkg.checking.models import SmallDraft, SmallReader, SmallServed
from course_pkg.checking.registry import check
from course_pkg.checks.kv_cache import demand_pieces, in_pieces
from course_pkg.checks.paged_attention import number, numbers, record, same, tables
from course_pkg.checks.serving import (
    compare_tokens,
    free_blocks,
    listed,
    plain_tokens,
    run,
    serve,
    small_model,
    texts,
)
from course_pkg.checks.speculative import (
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
    demand_each,
    demand_law,
    demand_quantised,
    demand_restored,
    drawn_integers,
    expected_keys,
    far_from_zero,
    four,
    from_latents,
    hadamard,
    hexadecimal,
    kept_after_a_step,
    kept_in,
    known,
    latent_layer,
    looked_up,
    matrix,
    near,
    outcomes,
    partly,
    read_back,
    reader,
    recorded,
    restored,
    rounded_matrix,
    sampled,
    state_of,
    take_steps,
    unlike,
    vectors,
    written,
    written_anew,
    written_in_turn,
    wrong_drafts,
)
from course_pkg.inference.requests import NeverFits, Sampling
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
def ends(draw, case):
    """finds the first and the last token that are possible"""
    p = torch.tensor([0, 0.3, 0.0, 0.4, 0, 0])
    demand_drawn(case, draw, p, [0.0, 1 - 2**-24, 0.4, 0.5] * 2, "tokens for u at both ends")
    for V in (1, 2):
        only = torch.eye(V, dtype=torch.float64)[-1]
        demand_drawn(case, draw, only, [0.0, 0.999], f"tokens when one of {V} is certain")
    p = torch.tensor([2.0**24, 1, 1])
    what = "tokens where a sum in float32 loses the last two"
    demand_drawn(case, draw, p, [0.5, 1 - 9e-8, 1 - 5e-8], what)


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


@check(accept_or_resample, see="Accept or resample")
def borders(accept, case):
    """rejects what the target finds impossible, and accepts only below p / q"""
    p = torch.tensor([[0, 0.25, 0.25, 0.5], [0.25, 0.125, 0.125, 0.5]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.5, 0, 0]], dtype=torch.float64)
    inputs = [(p, q, [x], [u, last]) for x in (0, 1) for u in (0, 0.5, 0.4375) for last in (0, 0.9)]
    compare_outcomes(case, accept, inputs, "tokens where u is 0 or p / q")


@check(accept_or_resample, see="Accept or resample")
def rounding(accept, case):
    """draws from p where rounding leaves nothing of p - q"""
    p = torch.tensor([[0.5, 0.25, 0.2499999], [0.1, 0.2, 0.7]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    inputs = [(p, q, [2], [1 - 1e-9, u]) for u in (0.2, 0.6, 0.9) * 2]
    given = [first for first, *_ in outcomes(accept, inputs)]
    same(case, given, [0, 1, 2] * 2, "tokens where rounding leaves nothing of p - q")
    p[0], q[0] = torch.tensor([0.5, 0.49998, 0.00002]), torch.tensor([0.5, 0.5, 0])
    inputs = [(p, q, [1], [0.99999, u]) for u in (0.2, 0.6, 0.9)]
    given = [first for first, *_ in outcomes(accept, inputs)]
    same(case, given, [2] * 3, "tokens where p - q leaves 0.00002 of one token")


@check(accept_or_resample, see="Accept or resample")
def refuses(accept, case):
    """raises ValueError for too few or too many rows"""
    p, q, drafted, u = (
        chances(case, 4, 5),
        chances(case, 3, 5),
        torch.tensor([0, 1, 2]),
        case.rand(4),
    )
    for wrong in ((p[:3], q, drafted, u), (p, p, drafted, u), (p, q, drafted, u[:3])):
        case.raises(ValueError, lambda w=wrong: accept(*w), "the sizes do not fit")
    case.raises(ValueError, lambda: accept(p, q, drafted[:2], u), "two tokens come with three rows")
    longer = torch.cat([u, u[:1]])
    case.raises(ValueError, lambda: accept(p, q, drafted, longer), "there is a number u too many")


@check(Speculator, see="One step")
def same_model(speculators, case):
    """keeps all drafts if draft and target are the same model"""
    target = reader(case)
    read, kept = compare_steps(
        case, speculators, target, SmallReader((*target[:3], [])), 1.0, [3] * 6
    )
    same(case, read, kept, "lengths of the two caches after each of six steps")


@check(Speculator, see="Forget what is not the text")
def keeps_what_is_there(speculators, case):
    """forgets down to a length, and not what is shorter already"""
    one, text = speculators(reader(case), reader(case), 60), case.integers(0, 7, 6).tolist()
    take_steps(case, one, text, [4, 4])
    found = []
    for length in (50, 7, 5, 6, 0):
        one.rollback(length)
        found += list(case.unpack(one.lengths, "target", "draft"))
    same(case, found[2:], [7, 7, 5, 5, 5, 5, 0, 0], "lengths after rollback to 7, 5, 6 and 0")


@check(Speculator, see="Where there is no choice")
def nothing_drafted(speculators, case):
    """steps without a draft model when nothing is drafted, and then gives no probabilities"""
    compare_steps(case, speculators, reader(case), None, 0.8, [0] * 4)
    one = speculators(reader(case), reader(case), 20)
    drafted, q = case.unpack(one.propose(case.integers(0, 7, 5), 0, case.rand(0)), "drafted", "q")
    same(case, as_list(drafted, "drafted"), [], "drafted tokens for k = 0")
    case.that(q is None, f"q should be None for k = 0, yours is {describe(q)}.")


@check(prompt_lookup, see="The text drafts for itself")
def many(look_up, case):
    """guesses right for texts of all lengths, and for other limits"""
    questions = []
    for length in range(16):
        for longest in (1, 2, 5):
            text = case.integers(0, 2, length).tolist()
            questions.append((text, length % 5, longest))
    compare_guesses(case, look_up, questions, "guesses for 48 texts of two different tokens")


@check(prompt_lookup, see="The text drafts for itself")
def refuses(look_up, case):
    """raises ValueError for numbers that are too small"""
    for text in ([1, 2, 1], []):
        case.raises(ValueError, lambda t=text: look_up(t, -1), "k is -1")
        case.raises(ValueError, lambda t=text: look_up(t, 2, 0), "longest is 0")


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
    compare_tokens(case, written_anew(writers, questions), expected, "texts with k = 0 and k = 9")
    labels = torch.randperm(4, generator=case.generator)
    text = labels[[0, 3, 1, 2, 3, 0, 2, 1, 2, 3, 2, 0, 3, 1, 2, 3]]
    for k in (1, 5):  # a run of 3 was seen; of those of 1 and 5, another one was the latest
        found = writers(target, None, 30).propose(text, k, case.rand(k))
        drafted = as_list(case.unpack(found, "drafted", "q")[0], "drafted")
        same(case, drafted, looked_up(text.tolist(), k), f"drafted tokens with k = {k}")


@check(SpeculativeWriter, see="A whole text")
def own_randomness(writers, case):
    """draws with torch's own generator when none is given"""
    target, text = reader(case), case.integers(0, 7, 4).tolist()
    draft, rows, expected = near(case, target), [], []
    for seed in (3, 4):
        torch.manual_seed(seed)
        rows.append(written(writers(target, draft, 40), text, 12, 3))
        expected.append(by_hand(target, draft, text, 12, 3, 1.0, seed))
    compare_tokens(case, rows, expected, "texts from torch's own generator")


@check(SpeculativeWriter, see="One step")
def what_was_found(writers, case):
    """notes as drafted what was found in the text, not what was asked for"""
    text, generator = torch.randperm(7, generator=case.generator), torch.Generator().manual_seed(1)
    questions = [(text.tolist(), 14, 3, generator)]
    (row,), history = written_in_turn(writers, (reader(case), None, 40, 1.0), questions)
    expected, at = [], len(text)
    for _, accepted in history:
        expected.append(len(looked_up(row[:at], min(3, len(row) - at - 1))))
        at += accepted + 1
    same(case, [m for m, _ in history], expected, "drafted tokens of each step, without a draft")


@check(SpeculativeWriter, see="A whole text")
def one_after_the_other(writers, case):
    """draws each of several texts as if its caches were new, whatever the number of drafts"""
    target, rows, expected = reader(case, V=4), [], []
    for draft in (near(case, target), None):
        questions = []
        for length, k in ((10, 2), (35, 5), (60, 1)):
            text = case.integers(0, 4, length).tolist()
            questions.append((text, 20, k, torch.Generator().manual_seed(k)))
            expected.append(by_hand(target, draft, text, 20, k, 0.8, seed=k))
        rows += written_in_turn(writers, (target, draft, 80, 0.8), questions)[0]
    compare_tokens(case, rows, expected, "three texts of one writer, then three without a draft")


@check(expected_tokens, see="How many tokens a step adds")
def refuses(expected, case):
    """raises ValueError for what is no probability, and for a negative k"""
    for alpha, k in ((-0.01, 2), (1.01, 2), (0.5, -1), (1.0, -1), (0.0, -1)):
        case.raises(ValueError, lambda a=alpha, n=k: expected(a, n), f"alpha is {alpha} and k {k}")
    given = [float(expected(alpha, k)) for alpha in (0, 1) for k in (0, 1, 3)]
    case.equal(torch.tensor(given), torch.tensor([1.0, 1, 1, 1, 2, 4]), "tokens for alpha 0 and 1")


@check(best_draft_length, see="How many tokens to draft")
def elsewhere(choose, case):
    """chooses right for free drafts, for dear ones, and for one that is always right"""
    questions = [(0.5, 0.0, 8), (0.99, 0.001, 200), (1, 0.99, 9), (1, 1.01, 9), (0.6, 3.0)]
    questions += [(alpha, 0.05) for alpha in (0.4, 0.5, 0.7, 0.95)]
    compare_lengths(case, choose, questions, "lengths for nine pairs of alpha and cost")


@check(best_draft_length, see="How many tokens to draft")
def refuses(choose, case):
    """raises ValueError for a negative cost, and for what is no probability"""
    for alpha, cost in ((0.5, -0.01), (1.2, 0.1), (-0.2, 0.1)):
        case.raises(
            ValueError, lambda a=alpha, c=cost: choose(a, c), f"alpha is {alpha}, cost {cost}"
        )


@check(SpeculativeCore, weight=2, see="Several tokens for each of many")
def under_load(engines, case):
    """adds the right tokens with little memory, a small budget, and a host to swap to"""
    model, prompts = small_model(case, calls=900), texts(case, 5, 3, 9, 6)
    whole = known(model, prompts, 14)
    expected = [right[len(text) :] for text, right in zip(prompts, whole, strict=True)]
    for settings in (
        {"blocks": 17, "watermark": 2, "k": 3},
        {"blocks": 17, "host": 12, "k": 2},
        {"blocks": 90, "most": 4, "budget": 7, "k": 5},
    ):
        named = settings | {"block_size": 2, "propose": wrong_drafts(prompts, whole, 3)}
        engine = engines(model, **named)
        rows = serve(engine, prompts, Sampling(14))
        compare_tokens(case, rows, expected, f"tokens with {listed(**settings)}")
        same(case, [free_blocks(engine)], [settings["blocks"]], "free blocks at the end")


@check(SpeculativeCore, see="Several tokens for each of many")
def errors_leave_no_trace(engines, case):
    """is as it was when the model has raised while it judged drafts"""
    model, prompts = small_model(case, calls=3, L=1), texts(case, 4, 7)
    patient = small_model(case, L=1)
    guess = wrong_drafts(prompts, known(patient, prompts, 20), 2)
    engine = engines(model, 40, 2, k=3, propose=guess)
    begun = [engine.add(prompt, Sampling(20)) for prompt in prompts]
    for _ in range(3):
        engine.step()
    before = []
    for attempt in range(3):
        if attempt:
            case.raises(RuntimeError, engine.step, "the model fails")
        seen = state_of(engine, begun)
        before = before or seen
        same(case, seen, before, "length of the table, tokens, of two; free blocks; drafted")


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
    compare_tokens(case, [rows[each] for each in begun], expected, "tokens of two sequences")


@check(SpeculativeCore, see="Several tokens for each of many")
def limits(engines, case):
    """fills the cache to its last slot, and refuses what never fits"""
    model, (prompt,) = small_model(case, L=1), texts(case, 6)
    (right,) = known(model, [prompt], 7)
    engine = engines(model, 3, 4, 2, k=4, propose=SmallDraft([right]))
    rows = serve(engine, [prompt], Sampling(7))
    compare_tokens(case, rows, [right[6:]], "tokens when all 12 slots are needed")
    case.raises(NeverFits, lambda: engine.add(prompt, Sampling(8)), "13 slots are needed")
    counts = [number(engine.drafted, "drafted"), number(engine.accepted, "accepted")]
    same(case, counts, [4, 4], "drafted and accepted tokens")


@check(SpeculativeCore, see="Several tokens for each of many")
def stops_at_token_0(engines, case):
    """ends a sequence with its stop token, also if that is token 0"""
    stop = None
    while stop is None:  # it must come first among accepted drafts, of which it is not the last
        model, prompts = small_model(case, L=1), texts(case, 5, 3)
        plain = plain_tokens(model, prompts[0], 5)
        stop = next((plain[n] for n in (3, 2, 1) if plain[n] not in plain[:n]), None)
    order = list(range(29))
    order[0], order[stop] = stop, 0
    exchanged = SmallServed((model[0][order], *model[1:]))
    prompts = [[order[x] for x in text] for text in prompts]
    engine = engines(exchanged, 40, 4, k=4, propose=SmallDraft(known(exchanged, prompts, 12)))
    rows = serve(engine, prompts, Sampling(12, 0))
    expected = [plain_tokens(exchanged, prompt, 12, 0) for prompt in prompts]
    compare_tokens(case, rows, expected, "tokens with stop token 0")


@check(SpeculativeCore, see="What rejected drafts leave behind")
def only_the_last(engines, case):
    """gives a block back if of all drafts only the last was rejected"""
    model, prompts = small_model(case, L=1), texts(case, 5)
    engine = engines(model, 40, 1, k=3, propose=wrong_drafts(prompts, known(model, prompts, 24), 4))
    begun = number(engine.add(prompts[0], Sampling(24)), "add")
    found, expected = [], []
    for _ in range(6):
        (length,), (_, blocks, _, free) = kept_after_a_step(engine, [begun])
        found += [blocks, free]
        expected += [length, 40 - length]
    same(case, found, expected, "blocks of a sequence and free blocks, after each of six steps")


@check(SpeculativeCore, see="Several tokens for each of many")
def pieces(engines, case):
    """makes one piece of a sequence's own tokens, and one of each draft"""
    model, (prompt,) = small_model(case, L=1), texts(case, 9)
    engine = engines(model, 40, 4)
    one = number(engine.add(prompt, Sampling(5)), "add")
    engine.step()
    own = numbers(record(engine, one).tokens, "tokens")
    _, *blocks = tables(engine, one)[0]
    for start, drafted in ((9, [3, 4]), (6, [5, 6]), (2, [])):
        stop = 10 + len(drafted)
        rows = []
        for row in engine.pieces(one, start, stop, drafted):
            tokens, first, table = case.unpack(row, "tokens", "start", "blocks")
            first = number(first, "start")
            rows.append((numbers(tokens, "tokens"), first, numbers(table, "blocks")))
        expected = [(own[start:], start, blocks)]
        expected += [([x], 10 + n, blocks) for n, x in enumerate(drafted)]
        text = f"The pieces of positions {start} to {stop - 1} should be {expected}"
        case.that(rows == expected, f"{text}, yours are {rows}.")


# Quantise


@check(quantise, see="Who shares a scale")
def many_axes(quantise, case):
    """shares scales along any axes of four, counted from either end"""
    X = far_from_zero(case, 2, 3, 6, 5).transpose(1, 2)
    questions: list[tuple] = [
        (8, dims, f"with dims = {dims}") for dims in ((0, 2), (1, 2, 3), (1,), (3, 0), (-1, 0))
    ]
    for axis, group in ((-2, 3), (1, 2), (3, 5), (-1, 1)):
        what = f"along axis {axis} in groups of {group}"
        questions.append((8, axis, group, what))
        questions.append((4, axis, group, True, f"{what}, symmetric,"))
    demand_each(case, quantise, X, [*questions, (8, (2,), 3, "with dims = (2,)")])


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


@check(quantise, see="Who shares a scale")
def refuses(quantise, case):
    """raises ValueError for bits that there are not, and for groups that cannot be cut"""
    X = case.randn(4, 6)
    for bits in (1, 0, 9, 16):
        case.raises(ValueError, lambda bits=bits: quantise(X, bits, 0), f"bits is {bits}")
    case.raises(ValueError, lambda: quantise(X, 8, 1, 4), "groups of 4 are to be cut out of 6")
    case.raises(ValueError, lambda: quantise(X, 8, 0, 8), "groups of 8 are to be cut out of 4")
    case.raises(ValueError, lambda: quantise(X, 8, (0, 1), 2), "groups come with two axes")


# Dequantise


@check(dequantise, see="And back")
def blocks(dequantise, case):
    """lets groups along several axes share scales"""
    Q = drawn_integers(case, 4, 6, 2, 9).transpose(0, 1)
    shapes = (3, 2, 1, 3), (6, 1, 2, 1), (2, 4, 2, 9), (1, 1, 1, 1)
    demand_restored(case, dequantise, Q, {f"with scales of shape {s}": s for s in shapes})


@check(dequantise, see="And back")
def other_integers(dequantise, case):
    """takes integers of any dtype, and refuses more scales than integers"""
    Q = case.integers(-99, 1000, 3, 5)
    scale, zero = case.rand(3, 1) + 0.5, case.randn(3, 1)
    for dtype in (torch.int64, torch.int32, torch.int16):
        given = dequantise(Q.to(dtype), scale, zero)
        case.equal(given, Q * scale + zero, f"X̂ of {dtype}")
    more = case.rand(6, 1)
    case.raises(ValueError, lambda: dequantise(Q, more, more), "6 scales are for 3 integers")
    few = case.rand(3, 2)
    case.raises(ValueError, lambda: dequantise(Q, few, few), "2 scales are for 5 integers")


# Pack


@check(pack_int4, see="Two to a byte")
def kinds(pack, case):
    """takes integers of any dtype and layout, and none at all"""
    Q = case.integers(0, 16, 6, 5, 4).transpose(0, 2)
    expected = hexadecimal(Q.reshape(-1, 2).tolist()).view(4, 5, 3)
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
        demand_bytes(case, pack(Q.to(dtype)), expected, f"packed {dtype}")
    nothing = torch.zeros(3, 0, dtype=torch.uint8)
    demand_bytes(case, pack(nothing), nothing, "packed nothing")
    demand_bytes(case, pack(Q[:0].to(torch.uint8)), expected[:0], "packed rows of which are none")


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


@check(QuantisedKVCache, see="Keys by channel, values by token")
def by_default(cache, case):
    """keeps 8 bits, groups of 32 and float16 unless told otherwise"""
    K, V = unlike(case, 1, 2, 35, 6)
    ours = cache(1, 2, 40, 6)
    parts = (K[:, :, :33] / 40, V[:, :, :33]), (K[:, :, 33:] / 40, V[:, :, 33:])
    found = kept_in(case, ours, 35, (1, 2, 6), parts)
    expected = expected_keys(K / 40, 8, 32, torch.float16), restored(V, 8, 3, torch.float16)
    for name, part, wanted in zip("KV", found, expected, strict=True):
        case.equal(part, wanted, f"{name} by default", rtol=2e-3, atol=0.02)
        case.that(part.dtype == torch.float16, f"{name} should be float16, yours is {part.dtype}.")


@check(QuantisedKVCache, see="Keys by channel, values by token")
def half(cache, case):
    """rounds what comes to its dtype first, whatever the dtype is that it comes in"""
    B, G, D_h = 2, 3, 5
    K, V = unlike(case, B, G, 9, D_h)
    ours = cache(B, G, 9, D_h, 8, 4, torch.float32)
    pieces = (K[:, :, :6], V[:, :, :6]), (K[:, :, 6:].half(), V[:, :, 6:].half())
    joined = [torch.cat([a.double(), b.double()], dim=2) for a, b in zip(*pieces, strict=True)]
    found = kept_in(case, ours, 9, (B, G, D_h), pieces)
    case.equal(found[0], expected_keys(joined[0], 8, 4, torch.float32), "K", rtol=1e-4, atol=1e-5)
    case.equal(found[1], restored(joined[1], 8, 3, torch.float32), "V", rtol=1e-4, atol=1e-5)
    case.that(found[0].dtype == torch.float32, f"K should be float32, yours is {found[0].dtype}.")


@check(QuantisedKVCache, see="Keys by channel, values by token")
def shapes(cache, case):
    """raises ValueError for keys or values of another shape, with nothing changed"""
    B, G, D_h = 2, 3, 5
    K, V = unlike(case, B, G, 4, D_h)
    ours = cache(B, G, 16, D_h, 8, 3, torch.float64)
    ours.append(K, V)
    wrong = {
        "one text comes instead of all": (K[:1], V[:1]),
        "one head comes instead of all": (K[:, :1], V[:, :1]),
        "the heads have another size": (K[..., :1], V[..., :1]),
        "there are fewer values than keys": (K, V[:, :, :1]),
        "there are fewer texts of values than of keys": (K, V[:1]),
        "there are fewer texts of keys than of values": (K[:1], V),
        "positions come before heads": (K.transpose(1, 2), V.transpose(1, 2)),
    }
    for when, (keys, values) in wrong.items():
        case.raises(ValueError, lambda k=keys, v=values: ours.append(k, v), when)
        found = kept_in(case, ours, 4, (B, G, D_h))
        case.equal(found[0], expected_keys(K, 8, 3), f"K when {when}")
        case.equal(found[1], restored(V, 8, 3), f"V when {when}")


@check(QuantisedKVCache, see="Cut within a group")
def limits(cache, case):
    """keeps everything or nothing when told to, and raises ValueError for other lengths"""
    B, G, D_h = 2, 3, 5
    K, V = unlike(case, B, G, 8, D_h)
    ours = cache(B, G, 8, D_h, 8, 3, torch.float64)
    case.raises(ValueError, lambda: ours.truncate(1), "1 of 0 positions is to be kept")
    ours.append(K, V)
    for length in (9, -1):
        case.raises(ValueError, lambda n=length: ours.truncate(n), f"{length} of 8 are to be kept")
    for length in (8, 6, 3):
        found = kept_in(case, ours, length, (B, G, D_h), cut=True)
        case.equal(found[0], expected_keys(K, 8, 3)[:, :, :length], f"K cut to {length}")
        case.equal(found[1], restored(V, 8, 3)[:, :, :length], f"V cut to {length}")
    kept_in(case, ours, 0, (B, G, D_h), cut=True)
    found = kept_in(case, ours, 8, (B, G, D_h), [(V, K)])
    case.equal(found[0], expected_keys(V, 8, 3), "K of a second text")


@check(QuantisedKVCache, weight=2, see="Cut within a group")
def rejected(cache, case):
    """survives many cuts, some of them within groups of which more come again"""
    B, G, D_h = 3, 2, 2
    ours = cache(B, G, 20, D_h, 8, 4, torch.float64)
    keys, values, at = torch.zeros(B, G, 0, D_h), torch.zeros(B, G, 0, D_h), 0
    for come, keep in ((7, 5), (4, 6), (2, 3), (1, 4), (9, 11), (5, 10), (10, 9)):
        K, V = unlike(case, B, G, come, D_h)
        full = at // 4 * 4  # groups that were full before stay as they are
        joined = torch.cat([keys[:, :, full:], K], dim=2)
        keys = torch.cat([keys[:, :, :full], expected_keys(joined, 8, 4)], dim=2)
        values = torch.cat([values, restored(V, 8, 3)], dim=2)
        keys, values, at = keys[:, :, :keep], values[:, :, :keep], keep
        found = kept_in(case, ours, keep, (B, G, D_h), [(K, V)], cut=True)
        case.equal(found[0], keys, f"K after {come} came and {keep} were kept")
        case.equal(found[1], values, f"V after {come} came and {keep} were kept")


@check(QuantisedKVCache, see="Keys by channel, values by token")
def nothing_yet(cache, case):
    """is empty at first, stays empty when nothing comes, and shares nothing with another cache"""
    B, G, D_h = 2, 3, 5
    ours, other = (cache(B, G, 6, D_h, 8, 3, torch.float64) for _ in range(2))
    kept_in(case, ours, 0, (B, G, D_h))
    kept_in(case, ours, 0, (B, G, D_h), [unlike(case, B, G, 0, D_h)])
    K, V = unlike(case, B, G, 4, D_h)
    ours.append(K, V)
    other.append(2 * K, 2 * V)
    found = kept_in(case, ours, 4, (B, G, D_h))
    case.equal(found[0], expected_keys(K, 8, 3), "K of the first of two caches")
    case.equal(found[1], restored(V, 8, 3), "V of the first of two caches")


@check(QuantisedKVCache, see="Two to a byte")
def refuses(cache, case):
    """raises ValueError for bits other than 8 and 4, and for an odd D_h with 4"""
    for bits in (2, 3, 5, 6, 16):
        case.raises(ValueError, lambda bits=bits: cache(1, 2, 8, 8, bits), f"bits is {bits}")
    case.raises(ValueError, lambda: cache(1, 2, 8, 7, 4), "bits is 4 and D_h is 7")
    K, V = unlike(case, 1, 2, 5, 7)
    ours = cache(1, 2, 8, 7, 8, 3, torch.float64)
    found = kept_in(case, ours, 5, (1, 2, 7), [(K, V)])
    case.equal(found[1], restored(V, 8, 3), "V of 7 features")


# Paged cache


@check(QuantisedPagedCache, see="Quantised blocks")
def refuses(cache, case):
    """raises ValueError for bits other than 8 and 4, and for an odd D_h with 4"""
    for bits in (2, 3, 5, 6, 16):
        case.raises(ValueError, lambda bits=bits: cache(1, 3, 4, 2, 8, bits), f"bits is {bits}")
    case.raises(ValueError, lambda: cache(1, 3, 4, 2, 7, 4), "bits is 4 and D_h is 7")


@check(QuantisedPagedCache, see="Quantised blocks")
def dtypes(cache, case):
    """gathers in the dtype that was asked for, or in torch's default, and 8 bits by default"""
    K, V = vectors(case, 3, 2, 6), vectors(case, 3, 2, 6)
    for dtype in (torch.float64, torch.float32, None):
        ours = cache(1, 2, 4, 2, 6) if dtype is None else cache(1, 2, 4, 2, 6, 8, dtype)
        ours.write(0, torch.tensor([4, 5, 6]), K.float(), V.float())
        found = case.unpack(ours.gather(0, [1], 3), "K", "V")
        for name, part, X in zip("KV", found, (K, V), strict=True):
            case.equal(part, read_back(X.float(), 8), name, rtol=1e-4, atol=1e-5)
            wanted = torch.float32 if dtype is None else dtype
            case.that(part.dtype == wanted, f"{name} should be {wanted}, yours is {part.dtype}.")


@check(QuantisedPagedCache, see="Quantised blocks")
def overwrites(cache, case):
    """overwrites single slots, in any order, and gradients do not stay"""
    ours = cache(1, 4, 3, 2, 4, 4, torch.float64)
    X = vectors(case, 6, 2, 4)
    slots = torch.tensor([10, 3, 5, 9, 4, 11])
    ours.write(0, slots, X, -X)
    ours.write(0, slots[[2, 0]], 3 * X[:2], X[:2].requires_grad_())
    keys, values = case.unpack(ours.gather(0, [3, 1], 6), "K", "V")
    order = [3, 0, 5, 1, 4, 2]
    K, V = X.detach().clone(), -X.detach()
    K[[2, 0]], V[[2, 0]] = 3 * X.detach()[:2], X.detach()[:2]
    case.equal(keys, read_back(K[order], 4), "K")
    case.equal(values, read_back(V[order], 4), "V")
    case.that(not values.requires_grad, "V should carry no gradient, yours does.")


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
def refuses(linear, case):
    """raises ValueError when group does not divide D_in"""
    W = case.randn(6, 4)
    case.raises(ValueError, lambda: linear(W, None, 4), "groups of 4 are to be cut out of 6")


@check(QuantisedLinear, see="Weights in eight bits")
def stored(linear, case):
    """loads what another has stored, and keeps what was given when that changes"""
    B, D_in, D_out = case.sizes(3, low=3)
    W, b, X = matrix(case, D_in, D_out), case.randn(D_out), case.randn(B, D_in)
    expected = X @ rounded_matrix(W)[0] + b
    given = b.clone()
    ours = linear(W, given)
    given += 1
    learning = linear(W.clone().requires_grad_(), b.clone().requires_grad_())
    for name, buffer in dict(learning.named_buffers()).items():
        case.that(not buffer.requires_grad, f"{name} should need no gradient, yours does.")
    case.equal(ours(X), expected, "Y after the given bias has changed")
    other = linear(matrix(case, D_in, D_out), case.randn(D_out))
    other.load_state_dict(dict(ours.state_dict()))
    case.equal(other(X), expected, "Y of a layer that loads another's state")


@check(QuantisedLinear, see="Weights in eight bits")
def precision(linear, case):
    """gives results in X's dtype, and passes the gradient of X back"""
    B, D_in, D_out = case.sizes(3, low=3)
    W, b = matrix(case, D_in, D_out), case.randn(D_out)
    X, seen = case.randn(B, D_in).requires_grad_(), case.randn(B, D_out)
    ours, rounded = linear(W, b), rounded_matrix(W)[0]
    Y = ours(X)
    case.trains(Y, "Y")
    Y.backward(seen)
    case.gradient(X, seen @ rounded.T, "X")
    for dtype in (torch.float32, torch.float16):
        Y = ours(X.detach().to(dtype))
        what, near = f"Y of {dtype}", 1e-4 if dtype == torch.float32 else 0.02
        case.equal(Y, X.detach() @ rounded + b, what, rtol=near, atol=10 * near)
        case.that(Y.dtype == dtype, f"Y should be {dtype} as X is, yours is {Y.dtype}.")


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
def dtypes(rotate, case):
    """gives results in X's dtype, whatever the start's is, and passes gradients back"""
    X = case.randn(3, 8)
    for kind in (torch.int64, torch.float32, torch.float64):
        given = rotate(X.float(), four().to(kind))
        case.equal(given, X @ hadamard(8, four().double()) / math.sqrt(8), f"rotated X, {kind}")
        case.that(given.dtype == torch.float32, f"It should be float32, yours is {given.dtype}.")
    X, seen = case.randn(3, 8).requires_grad_(), case.randn(3, 8)
    Y = rotate(X)
    case.trains(Y, "rotated X")
    Y.backward(seen)
    case.gradient(X, seen @ hadamard(8).T / math.sqrt(8), "X")


@check(rotate, see="Where to begin")
def impossible(rotate, case):
    """raises ValueError for sizes that are no multiple, and for those that are an odd one"""
    for D, r in ((3, 1), (6, 1), (24, 1), (5, 4), (12, 4), (20, 4)):
        X, begin = case.randn(2, D), None if r == 1 else four()
        call = (lambda X=X: rotate(X)) if begin is None else (lambda X=X: rotate(X, four()))
        case.raises(ValueError, call, f"D is {D} and it starts at {r}")


# Latent attention


@check(LatentAttention, see="What is kept")
def half(attention, case):
    """computes in full precision with what it reads from a cache in half precision"""
    ours, state = latent_layer(case, attention, 4, 5, 2)
    X = case.randn(2, 6, 12)
    expected = from_latents(state, X)
    for way in ("forward", "absorbed"):
        cache = ours.new_cache(2, 6, torch.float16)
        call = ours if way == "forward" else ours.absorbed
        given = in_pieces(call, X, cache, [4, 1, 1])
        for Y in given:
            case.shape(Y, tuple(Y.shape), "Y")
            case.that(Y.dtype == X.dtype, f"Y should be {X.dtype} as X is, yours is {Y.dtype}.")
        joined = torch.cat(given, dim=1)
        case.equal(joined, expected, f"Y by {way}, half kept,", rtol=0.02, atol=0.02)


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


@check(LatentAttention, see="What is kept")
def rounded_once(attention, case):
    """attends to just what a cache in half precision holds, with queries in full precision"""
    ours, _ = latent_layer(case, attention, 4, 5, 2)
    X, names = case.randn(2, 6, 12), ("q_C", "q_R", "c", "k_R")
    cache = ours.new_cache(2, 6, torch.float16)
    for piece in X.split([4, 2], dim=1):
        q, _, c, k = case.unpack(ours.prepare(piece, cache), *names)
        kept = cache.read().double()
        case.equal(c, kept[..., :5], "c, half kept,")
        case.equal(k, kept[..., 5:], "k_R, half kept,")
        case.equal(q, case.unpack(ours.prepare(piece), *names)[0], "q_C, half kept,")
