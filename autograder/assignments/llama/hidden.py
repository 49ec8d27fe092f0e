"""Hidden checks of llama: other sizes, gradients, extremes, and what is kept or changed."""

import itertools

import torch

from course_pkg.checking.batched import of_each
from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks import llama as visible
from course_pkg.llama import (
    GatedFeedForward,
    Llama,
    LlamaAttention,
    LlamaBlock,
    RMSNorm,
    llama_parameters,
    load_llama,
    pairs_to_halves,
    rope_rotate_pairs,
    sliding_window_mask,
    swiglu,
    swiglu_fault,
)


@check(RMSNorm, see="Normalise without centring")
def nothing_there(norm, case):
    """leaves a zero vector zero, next to others"""
    B, D = case.sizes(2, low=4)
    ours, theirs = visible.norm_pair(case, norm, D, 1e-5)
    vectors = case.randn(B, D)
    vectors[1] = 0
    case.equal(ours(vectors), theirs(vectors), "Y with one vector of zeros")


@check(RMSNorm, see="Normalise without centring")
def uneven(norm, case):
    """returns X's dtype even where the weight has another, and is precise in bfloat16"""
    B, D = case.sizes(2, low=6)
    ours, theirs = visible.norm_pair(case, norm, D, 1e-5)
    ours = ours.float()
    for kind in (torch.float16, torch.bfloat16):
        vectors = (0.004 * case.randn(B, D) + 300 * torch.arange(B)[:, None]).to(kind)
        given = ours(vectors)
        case.equal(given, theirs(vectors.double()), f"Y in {kind}", rtol=0.02, atol=0.02)
        case.that(given.dtype == kind, f"Y should be {kind} as X is, yours is {given.dtype}.")


@check(swiglu, see="A gate inside the network")
def any_shape(network, case):
    """takes a single vector, many axes, and views that are not contiguous"""
    A, B, D, F = case.sizes(4, low=4)
    W = {
        name: value.mT.contiguous().mT
        for name, value in visible.network_weights(case, D, F).items()
    }
    for vectors in (case.randn(D), case.randn(A, B, 3, D), case.randn(D, B).mT):
        given = network(vectors, **W)
        case.equal(given, visible.through_gates(vectors, **W), f"Y of shape {tuple(vectors.shape)}")


@check(swiglu_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "B")


@check(GatedFeedForward, see="How wide, at the same cost")
def published(network, case):
    """is 1536 wide for 512 features and multiples of 256"""
    made = network(512, multiple=256)
    case.equal(torch.tensor(float(made.F)), 1536.0, "F for D = 512 and multiple = 256")
    W_down = dict(made.state_dict()).get("W_down")
    case.shape(W_down, (1536, 512), "W_down")


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def views(rotate, case):
    """takes heads that were cut out of a product and not copied, and a single pair"""
    B, T, H, half = case.sizes(4, low=4)
    heads = case.randn(B, T, H * 2 * half).unflatten(2, (H, -1)).transpose(1, 2)
    case.equal(rotate(heads), visible.spun(heads), "turned X of cut heads", **visible.ANGLES)
    pair = case.randn(T, 2)
    case.equal(rotate(pair), visible.spun(pair), "turned X of one pair", **visible.ANGLES)


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def offset_only(rotate, case):
    """gives two vectors the same product wherever they stand, if their distance is the same"""
    T, half, apart = case.sizes(3, low=4)
    q, k = case.randn(2 * half), case.randn(2 * half)
    places = torch.arange(T)
    one, other = rotate(q.expand(T, -1), places), rotate(k.expand(T, -1), places + apart)
    case.shape(one, (T, 2 * half), "turned q")
    case.shape(other, (T, 2 * half), "turned k")
    wanted = (q * visible.spun(k[None], torch.tensor([apart]))[0]).sum()
    case.equal(
        (one * other).sum(dim=1), wanted.expand(T), f"q · k at distance {apart}", **visible.ANGLES
    )


@check(pairs_to_halves, see="Weights that change layout")
def other_sizes(convert, case):
    """takes a single head, heads of one pair, a transposed view, and whole numbers"""
    for D, H, D_h in [(5, 1, 6), (4, 7, 2), (3, 2, 12)]:
        W = case.randn(H * D_h, D).mT
        what = f"reordered W for {H} heads of size {D_h}"
        case.equal(convert(W, H), visible.reordered(W, H), what)
    W = torch.arange(36).view(2, 18)
    case.equal(convert(W, 3), visible.reordered(W, 3), "reordered whole numbers")


@check(sliding_window_mask, see="A window that slides")
def one_position(mask, case):
    """allows the newest position the end of a cache, and the sinks"""
    (past,) = case.sizes(1, low=9)
    for window, sinks in [(None, 0), (1, 0), (4, 0), (4, 3), (1, 1), (None, 2), (30, 2)]:
        what = f"mask of one position for window {window} and {sinks} sinks"
        case.equal(mask(1, window, sinks, past), visible.may_see(1, window, sinks, past), what)
    case.equal(mask(1, 1), torch.ones(1, 1, dtype=torch.bool), "mask of one position alone")


@check(sliding_window_mask, weight=2, see="A window that slides")
def everything(mask, case):
    """agrees with two loops for many sizes"""
    every = (1, 2, 7), (None, 1, 2, 5, 12), (0, 1, 3, 20), (0, 1, 6)
    sizes = list(itertools.product(*every))  # T, window, sinks, past
    for each, given in zip(sizes, of_each(mask, sizes), strict=True):
        case.equal(given, visible.may_see(*each), f"mask({', '.join(map(str, each))})")


@check(LlamaAttention, see="Llama's attention")
def groups(attention, case):
    """attends with a single head of keys, and with one for each head of queries"""
    B, T, pairs = case.sizes(3, low=3)
    for H, G in ((4, 1), (3, 3), (1, 1)):
        ours, state = visible.llama_layer(case, attention, 2 * pairs, H, G)
        X = case.randn(B, T, H * 2 * pairs)
        case.equal(ours(X), visible.attended(state, H, G, X), f"Y for H = {H} and G = {G}")


@check(LlamaAttention, see="Llama's attention")
def two_texts(attention, case):
    """keeps apart two texts that are read alternately, each with its own cache"""
    B, T, pairs = case.sizes(3, low=3)
    ours, state = visible.llama_layer(case, attention, 2 * pairs)
    first, second = case.randn(2, B, T, 12 * pairs)
    caches = ours.new_cache(B, 2 * T), ours.new_cache(B, 2 * T)
    ours(first[:, :-1], caches[0])
    ours(second[:, :-2], caches[1])
    ours(second)
    last = ours(first[:, -1:], caches[0])
    case.equal(last, visible.attended(state, 6, 2, first)[:, -1:], "Y of the first of two texts")


@check(LlamaBlock, see="The block")
def large(block, case):
    """normalises very large vectors, and very small ones"""
    B, T, pairs = case.sizes(3)
    for size in (1e5, 1e-3):
        ours, state = visible.llama_block(case, block, pairs)
        X = size * case.randn(B, T, 12 * pairs)
        case.equal(ours(X), visible.layered(state, 6, 2, X), f"X of size {size:g}")


@check(LlamaBlock, see="The block")
def two_texts(block, case):
    """keeps apart two texts that are read alternately, each with its own cache"""
    B, T, pairs = case.sizes(3, low=3)
    ours, state = visible.llama_block(case, block, pairs)
    first, second = case.randn(2, B, T, 12 * pairs)
    attention = ours.get_submodule("attention")
    caches = attention.new_cache(B, T), attention.new_cache(B, T)
    ours(first[:, :-1], caches[0])
    ours(second[:, :-2], caches[1])
    last = ours(first[:, -1:], caches[0])
    case.equal(last, visible.layered(state, 6, 2, first)[:, -1:], "X of the first of two texts")


@check(LlamaBlock, see="The block")
def base(block, case):
    """has attention that turns as slowly as base says"""
    B, T, pairs = case.sizes(3)
    ours, state = visible.llama_block(case, block, pairs, (), base=40.0)
    X = case.randn(B, T, 12 * pairs)
    case.equal(ours(X), visible.layered(state, 6, 2, X, base=40.0), "X for base = 40")


@check(Llama, see="The whole model")
def depth(model, case):
    """passes through one layer, and through four in their order"""
    B, T = case.sizes(2, low=3)
    for L in (1, 4):
        ours, state = visible.llama_model(case, model, L)
        tokens = case.integers(0, 13, B, T)
        case.equal(ours(tokens), visible.scored(state, tokens), f"logits for L = {L}")


@check(Llama, see="The whole model")
def two_texts(model, case):
    """keeps apart two texts that are read alternately, each with its own caches"""
    B, T = case.sizes(2, low=4)
    ours, state = visible.llama_model(case, model)
    first, second = case.integers(0, 13, 2, B, T)
    mine, others = ours.new_caches(B, T), ours.new_caches(B, T)
    ours(first[:, :-2], mine)
    ours(second[:, :-1], others)
    ours(second)
    last = ours(first[:, -2:], mine)
    case.equal(last, visible.scored(state, first)[:, -2:], "logits of the first of two texts")


@check(Llama, see="The whole model")
def window(model, case):
    """agrees with layers made of torch's functions when they see a window only"""
    B, T = case.sizes(2, low=5)
    ours, state = visible.llama_model(case, model, window=3)
    tokens = case.integers(0, 13, B, T)
    case.equal(ours(tokens), visible.scored(state, tokens, window=3), "logits for window = 3")


@check(llama_parameters, see="Count before you build")
def mistral(count, case):
    """counts 7 241 732 096 in Mistral 7B"""
    sizes = {**visible.LLAMA_2_7B, "G": 8, "F": 14336}
    visible.demand_published(case, count, "Mistral 7B", sizes, "total", 7_241_732_096)


@check(llama_parameters, see="Count before you build")
def names(count, case):
    """gives ints under these names, and under no others"""
    for model in ({"tied": True}, {}):
        sizes = {"V": 9, "D": 8, "H": 4, "G": 2, "L": 2, "F": 11, **model}
        result, wanted = count(**sizes), visible.weights_of(**sizes)
        case.that(isinstance(result, dict), "The result should be a dict, yours is not.")
        for name, number in wanted.items():
            counted = result.get(name)
            case.that(counted == number, f"{name} should be {number}, yours is {counted!r:.30}.")
        more = sorted(map(str, set(result) - set(wanted)))
        case.that(not more, f"There should be no other names, yours has {(more or [''])[0]}.")


@check(load_llama, see="Loading published weights")
def many(load, case):
    """tells layers 1 and 2 from layers 10 to 12, in any order"""
    theirs = visible.hub_state(case, V=3, D=2, narrow=2, F=2, L=13)
    visible.demand_llama(case, load(dict(reversed(theirs.items()))), theirs, 13)


@check(load_llama, see="Loading published weights")
def refuses_more(load, case):
    """raises ValueError for names of other models, which only look alike"""
    for name in (
        "model.layers.0.mlp.up_proj.bias",
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.block_sparse_moe.experts.0.w1.weight",
        "model.layers.0.lm_head.weight",
        "transformer.wte.weight",
        "lm_head.bias",
        "model.layers.0.input_layernorm.bias",
        "model.norm.bias",
        "model.layers.0.self_attn.v_proj.weight_scale",
        "vision_model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.adapter.mlp.up_proj.weight",
        "model.layers.0.self_attn.rotary_emb.cos_cached",
        "embed_tokens.weight",
    ):
        other = {**visible.hub_state(case, L=1), name: case.randn(6)}
        case.raises(ValueError, lambda other=other: load(other), f"the state has {name}")
