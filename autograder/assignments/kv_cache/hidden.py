"""Hidden checks of kv_cache: edges, precision, gradients, errors, a black box."""

import functools

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks import kv_cache as visible
from course_pkg.checks.gpt import continued, demand_gradients
from course_pkg.kv_cache import (
    CachedAttention,
    CachedGPT,
    CachedWriter,
    GroupedQueryAttention,
    KVCache,
    LatentAttention,
    attention_operations,
    kv_cache_bytes,
    mha_to_gqa,
    mha_to_gqa_fault,
)


@check(KVCache, weight=2, see="Truncating the cache")
def long_programs(cache, case):
    """reads what was appended and not truncated, in six long programs"""
    visible.compare_programs(case, cache, [6 + 2 * n for n in range(6)], 20)


@check(CachedAttention, see="Attention with a cache")
def two_texts(attention, case):
    """keeps apart two texts that are read alternately, each with its own cache"""
    ours, state, B, T, D, H = visible.attention_pair(case, attention)
    first, second = case.randn(B, T, D), case.randn(B, T, D)
    caches = ours.new_cache(B, 2 * T), ours.new_cache(B, 2 * T)
    ours(first[:, :-1], caches[0])
    expected = visible.full_attention(state, H, second[:, :-2])
    case.equal(ours(second[:, :-2], caches[1]), expected, "Y of the second of two texts")
    ours(second)
    given = ours(first[:, -1:], caches[0])
    case.equal(
        given, visible.full_attention(state, H, first)[:, -1:], "Y of the first of two texts"
    )


@check(CachedGPT, see="Count while it runs")
def reads_once(model, case):
    """sends each token through its layers once"""
    ours, _, tokens = visible.model_pair(case, model)
    B, T = tokens.shape
    caches = ours.new_caches(B)
    found, expected, pairs = [], [], (T - 3) ** 2
    for start, end in [(0, T - 3), (T - 3, T - 2), (T - 2, T - 1)]:
        ours(tokens[:, start:end], caches)
        pairs += end if start else 0
        for layer in (0, 1):
            found.append(dict(ours.get_submodule(f"blocks.{layer}.attention").counts))
            expected.append((end, pairs))
    visible.demand_counts(case, found, expected, "counted by layers 0 and 1 in turn")


@check(CachedGPT, see="The whole model")
def whole_context(model, case):
    """reads as many tokens as the context has room for, no more, and two texts in turn"""
    ours, theirs, tokens = visible.model_pair(case, model, L=1)
    B, T = tokens.shape
    caches = ours.new_caches(B)
    case.equal(ours(tokens, caches), theirs(tokens), "logits of a full context")
    long = torch.cat([tokens, tokens[:, :1]], dim=1)
    case.raises(ValueError, lambda: ours(long), f"{T + 1} tokens are given and the context is {T}")
    caches, others = ours.new_caches(B), ours.new_caches(B)
    ours(tokens[:, :2], caches)
    ours(tokens[:, :3].flip(1), others)
    given = ours(tokens[:, 2:3], caches)
    case.equal(given, theirs(tokens[:, :3])[:, 2:], "logits of the first of two texts")


@check(CachedGPT, see="The whole model")
def gradient(model, case):
    """passes gradients back as torch's layers do when there are no caches"""
    demand_gradients(case, model)


@check(CachedWriter, see="Write with a cache")
def edges(writer, case):
    """writes one token after a full context, and none when count is 0"""
    ours, theirs, tokens = visible.writer_pair(case, writer, T=12)
    expected = continued(theirs, tokens, 1, context=12)
    case.equal(ours.generate_with_cache(tokens, 1, 0.0), expected, "texts of a full context")
    case.equal(ours.generate_with_cache(tokens, 0, 0.0), tokens, "texts with nothing new")
    given = ours.generate_with_cache(expected, 0, 0.0)  # 13 tokens, of which 12 would be read
    case.equal(given, expected, "texts of one token more, with nothing new")


@check(CachedWriter, see="Write with a cache")
def twice(writer, case):
    """starts afresh in every call"""
    ours, theirs, tokens = visible.writer_pair(case, writer)
    ours.generate_with_cache(tokens.flip(1), 4, 0.0)
    expected = continued(theirs, tokens, 4, context=12)
    case.equal(ours.generate_with_cache(tokens, 4, 0.0), expected, "texts of a second call")


@check(CachedWriter, see="Write with a cache")
def by_default(writer, case):
    """draws at temperature 1 from torch's own generator, and the same with a stop"""
    ours, theirs, tokens = visible.writer_pair(case, writer)
    state = torch.random.get_rng_state()
    expected = visible.drawn(theirs, tokens, 4)
    torch.random.set_rng_state(state)
    case.equal(ours.generate_with_cache(tokens, 4), expected, "texts drawn by default")
    stop = int(expected[0, 3])
    ended = visible.ends(expected[:, 3:], stop)
    for row, length in ended.items():
        expected[row, 3 + length :] = stop
    longest = max(ended.get(row, 4) for row in range(len(expected)))
    torch.random.set_rng_state(state)
    given = ours.generate_with_cache(tokens, 4, stop=stop)
    case.equal(given, expected[:, : 3 + longest], "texts drawn by default, with a stop")


@functools.cache
def all_pairs(prompt: int, count: int, cached: bool) -> int:
    """Add up the pairs of each reading."""
    lengths = range(prompt, prompt + count)
    return sum(n if cached and n > prompt else n * n for n in lengths)


@check(attention_operations, see="Count on paper")
def exact(operations, case):
    """is exact where floating-point numbers are not"""
    for size in ((1, 400_001, False), (7, 300_000, True), (7, 300_000, False)):
        result, expected = operations(*size), all_pairs(*size)
        visible.demand_numbers(case, result)
        prompt, count, cached = size
        how = "with" if cached else "without"
        case.that(
            result["pairs"] == expected,
            f"pairs {how} a cache for prompt, count = {prompt}, {count} should be exactly "
            f"{expected}, yours is {result['pairs']!r:.30}.",
        )


@check(kv_cache_bytes, see="What it costs")
def default(size, case):
    """counts one sequence in half precision unless told otherwise, in whole bytes"""
    given = size(3, 5, 7, 11)
    case.that(given == 4620, f"The bytes should be 4620, yours are {given}.")
    huge = size(96, 96, 128, 2**40 + 1)
    right = 2 * 96 * 96 * 128 * (2**40 + 1) * 2
    case.that(huge == right, f"The bytes should be {right}, yours are {huge}.")


@check(GroupedQueryAttention, see="Fewer heads of keys and values")
def gradient(attention, case):
    """passes the gradients of all queries of a group back to X, its keys and its values"""
    B, T, D_h = case.sizes(3, low=3)
    ours, state = visible.grouped_pair(case, attention, 6, 3, D_h)
    X, seen = case.randn(B, T, 6 * D_h).requires_grad_(), case.randn(B, T, 6 * D_h)
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    expected = torch.autograd.grad(visible.grouped(leaves, 6, 3, X), [X, *leaves.values()], seen)
    Y = ours(X)
    case.trains(Y, "Y")
    Y.backward(seen)
    case.gradient(X, expected[0], "X")
    wanted = dict(zip(leaves, expected[1:], strict=True))
    parameters = dict(ours.named_parameters())
    for name in ("W_K", "W_V", "b_V"):
        found = parameters[name].grad
        case.that(found is not None, f"A gradient should reach {name}, none does.")
        case.equal(found, wanted[name], f"gradient of {name}")
    case.learns(ours)


@check(GroupedQueryAttention, see="What a cache must not keep")
def half(attention, case):
    """computes in full precision with what it reads from a cache in half precision"""
    B, T, D_h = case.sizes(3, low=3)
    ours, state = visible.grouped_pair(case, attention, 4, 2, D_h)
    X, cache = case.randn(B, T, 4 * D_h), ours.new_cache(B, T, torch.float16)
    given = visible.in_pieces(ours, X, cache, [T - 1, 1])
    case.shape(given[1], (B, 1, 4 * D_h), "Y")
    case.that(
        given[1].dtype == X.dtype, f"Y should be {X.dtype} as X is, yours is {given[1].dtype}."
    )
    expected = visible.grouped(state, 4, 2, X, torch.float16)
    visible.demand_pieces(case, given, expected, [T - 1, 1], "Y, with a cache in half precision,")


@check(mha_to_gqa, see="Converting a trained model")
def without_bias(convert, case):
    """converts layers without biases, and leaves alone names that only look alike"""
    state = {
        name: value for name, value in visible.attention_state(case, 12).items() if name[0] == "W"
    }
    layers = {f"1.{name}": value for name, value in state.items()}
    others = {"LOW_K": case.randn(12, 12), "W_K.scale": case.randn(12)}
    visible.demand_state(
        case, convert(layers | others, 4, 2), visible.pooled(layers, 4, 2) | others
    )


@check(LatentAttention, see="What is kept")
def mixed(attention, case):
    """goes on in either way with what the other has kept"""
    ours, state = visible.latent_layer(case, attention, 4, 7, 3)
    X = case.randn(3, 8, 12)
    expected, cache = visible.from_latents(state, X), ours.new_cache(3, 9)
    given = [ours(X[:, :5], cache), ours.absorbed(X[:, 5:6], cache), ours(X[:, 6:], cache)]
    visible.demand_pieces(case, given, expected, [5, 1, 2], "Y, by turns,")
    cache.truncate(4)
    case.equal(ours.absorbed(X[:, 4:6], cache), expected[:, 4:6], "Y after truncate")


@check(LatentAttention, see="Never make a key")
def more_latents(attention, case):
    """works with a latent vector that is larger than a head, or than all heads together"""
    for D_c in (1, 3, 20):
        ours, state = visible.latent_layer(case, attention, 5, D_c, 1)
        X = case.randn(2, 4, 15)
        expected = visible.from_latents(state, X)
        case.equal(ours(X), expected, f"Y for D_c = {D_c}")
        case.equal(ours.absorbed(X), expected, f"Y, absorbed, for D_c = {D_c}")


@check(mha_to_gqa_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "A")
