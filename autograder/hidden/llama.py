"""Hidden checks of llama: other sizes, gradients, extremes, and what is kept or changed."""

import itertools

import torch

from course_pkg.checking.registry import check
from course_pkg.checking.together import of_each
from course_pkg.checks.llama import (
    ANGLES,
    LLAMA_2_7B,
    adapted,
    attended,
    counted_loss,
    demand_gradients,
    demand_llama,
    demand_published,
    demand_routes,
    drawn_choices,
    hub_state,
    keys_and_values,
    layered,
    leaves_of,
    llama_block,
    llama_layer,
    llama_model,
    may_see,
    mixed,
    mixture,
    network_pair,
    network_weights,
    norm_pair,
    normed,
    parameters_of,
    ranked,
    reordered,
    scored,
    spun,
    through_gates,
    under,
    weights_of,
)
from course_pkg.llama import (
    GatedFeedForward,
    Llama,
    LlamaAttention,
    LlamaBlock,
    LoRA,
    MixtureOfExperts,
    RMSNorm,
    llama_parameters,
    load_balancing_loss,
    load_llama,
    pairs_to_halves,
    rope_rotate_pairs,
    route_top_k,
    sliding_window_mask,
    swiglu,
)


@check(RMSNorm, see="Normalise without centring")
def gradients(norm, case):
    """passes gradients to X and to the weight as torch does"""
    B, T, D = case.sizes(3, low=4)
    ours, theirs = norm_pair(case, norm, D, 0.2)
    vectors, back = case.randn(B, T, D).requires_grad_(), case.randn(B, T, D)
    wanted = torch.autograd.grad(theirs(vectors), [vectors, theirs.weight], back)
    Y = ours(vectors)
    case.trains(Y, "Y")
    Y.backward(back)
    case.gradient(vectors, wanted[0], "X")
    found = dict(ours.named_parameters())["weight"].grad
    case.that(found is not None, "A gradient should reach weight, none does.")
    case.equal(found, wanted[1], "gradient of weight")
    case.learns(ours)


@check(RMSNorm, see="Normalise without centring")
def any_shape(norm, case):
    """takes a single vector, many axes, and views that are not contiguous"""
    A, B, T, D = case.sizes(4, low=4)
    ours, theirs = norm_pair(case, norm, D, 1e-5)
    for vectors in (case.randn(D), case.randn(A, B, T, D), case.randn(D, T, B).mT.transpose(0, 2)):
        case.equal(ours(vectors), theirs(vectors), f"Y of shape {tuple(vectors.shape)}")


@check(RMSNorm, see="Normalise without centring")
def nothing_there(norm, case):
    """leaves a zero vector zero, next to others"""
    B, D = case.sizes(2, low=4)
    ours, theirs = norm_pair(case, norm, D, 1e-5)
    vectors = case.randn(B, D)
    vectors[1] = 0
    case.equal(ours(vectors), theirs(vectors), "Y with one vector of zeros")


@check(RMSNorm, see="Normalise without centring")
def uneven(norm, case):
    """returns X's dtype even where the weight has another, and is precise in bfloat16"""
    B, D = case.sizes(2, low=6)
    ours, theirs = norm_pair(case, norm, D, 1e-5)
    ours = ours.float()
    for kind in (torch.float16, torch.bfloat16):
        vectors = (0.004 * case.randn(B, D) + 300 * torch.arange(B)[:, None]).to(kind)
        given = ours(vectors)
        case.equal(given, theirs(vectors.double()), f"Y in {kind}", rtol=0.02, atol=0.02)
        case.that(given.dtype == kind, f"Y should be {kind} as X is, yours is {given.dtype}.")


@check(swiglu, see="A gate inside the network")
def gradients(network, case):
    """passes gradients to X and to the matrices"""
    B, D, F = case.sizes(3, low=4)
    inputs = {"X": 2 * case.randn(B, D), **network_weights(case, D, F)}
    inputs = {name: value.requires_grad_() for name, value in inputs.items()}
    back = case.randn(B, D)
    wanted = torch.autograd.grad(through_gates(**inputs), list(inputs.values()), back)
    Y = network(**inputs)
    case.trains(Y, "Y")
    Y.backward(back)
    for (name, leaf), gradient in zip(inputs.items(), wanted, strict=True):
        case.gradient(leaf, gradient, name)


@check(swiglu, see="A gate inside the network")
def any_shape(network, case):
    """takes a single vector, many axes, and views that are not contiguous"""
    A, B, D, F = case.sizes(4, low=4)
    W = {name: value.mT.contiguous().mT for name, value in network_weights(case, D, F).items()}
    for vectors in (case.randn(D), case.randn(A, B, 3, D), case.randn(D, B).mT):
        given = network(vectors, **W)
        case.equal(given, through_gates(vectors, **W), f"Y of shape {tuple(vectors.shape)}")


@check(swiglu, see="A gate inside the network")
def far_from_zero(network, case):
    """stays finite where gates are very large, and so do its gradients"""
    B, D, F = case.sizes(3, low=4)
    W, vectors = network_weights(case, D, F), (4000 * case.randn(B, D)).requires_grad_()
    gates, back = vectors @ W["W_gate"], case.randn(B, D)
    expected = (gates * gates.sigmoid() * (vectors @ W["W_up"])) @ W["W_down"]
    (wanted,) = torch.autograd.grad(expected, vectors, back)
    Y = network(vectors, **W)
    case.equal(Y, expected, "Y of very large vectors")
    case.trains(Y, "Y")
    Y.backward(back)
    case.gradient(vectors, wanted, "very large vectors")


@check(GatedFeedForward, see="How wide, at the same cost")
def published(network, case):
    """is 1536 wide for 512 features and multiples of 256"""
    made = network(512, multiple=256)
    case.equal(torch.tensor(float(made.F)), 1536.0, "F for D = 512 and multiple = 256")
    W_down = dict(made.state_dict()).get("W_down")
    case.shape(W_down, (1536, 512), "W_down")


@check(GatedFeedForward, see="How wide, at the same cost")
def fresh(network, case):
    """draws its weights from N(0, 1/rows)"""
    D, F = 60, 150
    state = network(D, F).state_dict()
    for name, shape in {"W_gate": (D, F), "W_up": (D, F), "W_down": (F, D)}.items():
        case.shape(state.get(name), shape, name)
        value = state[name].double()
        what = f"standard deviation of {name}"
        case.equal(value.std(), shape[0] ** -0.5, what, rtol=0.06)
        case.equal(value.mean(), 0.0, f"mean of {name}", atol=0.008)
        share = (value.abs() < shape[0] ** -0.5).double().mean()
        case.equal(share, 0.683, f"share of {name} within one standard deviation", rtol=0.04)
    case.that(
        not torch.equal(state["W_gate"], state["W_up"]),
        "W_gate and W_up should be drawn one by one, yours are equal.",
    )


@check(GatedFeedForward, see="A gate inside the network")
def gradients(network, case):
    """passes gradients to X and to all of its weights"""
    B, D, F = case.sizes(3, low=4)
    ours, state = network_pair(case, network, D, F)
    inputs = {"X": 2 * case.randn(B, D), **{name: w.clone() for name, w in state.items()}}
    inputs = {name: value.requires_grad_() for name, value in inputs.items()}
    back = case.randn(B, D)
    wanted = torch.autograd.grad(through_gates(**inputs), list(inputs.values()), back)
    Y = ours(inputs["X"])
    case.trains(Y, "Y")
    Y.backward(back)
    case.gradient(inputs["X"], wanted[0], "X")
    parameters = dict(ours.named_parameters())
    for name, gradient in zip(list(inputs)[1:], wanted[1:], strict=True):
        found = parameters[name].grad
        case.that(found is not None, f"A gradient should reach {name}, none does.")
        case.equal(found, gradient, f"gradient of {name}")
    case.learns(ours)


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def between(rotate, case):
    """accepts positions that are not whole numbers, or negative, or far away"""
    T, half = case.sizes(2, low=4)
    vectors = case.randn(T, 2 * half)
    for places in (7 * case.rand(T), -3 - torch.arange(T), 900 + torch.arange(T)):
        what = f"turned X at positions from {float(places[0]):.4g} on"
        case.equal(rotate(vectors, places), spun(vectors, places), what, rtol=1e-3, atol=2e-4)


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def gradients(rotate, case):
    """turns gradients back"""
    T, half = case.sizes(2, low=4)
    X, back = case.randn(T, 2 * half).requires_grad_(), case.randn(T, 2 * half)
    (wanted,) = torch.autograd.grad(spun(X), X, back)
    turned = rotate(X)
    case.shape(turned, tuple(X.shape), "turned X")
    case.trains(turned, "turned X")
    turned.backward(back.to(turned.dtype))
    case.gradient(X, wanted, "X")


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def views(rotate, case):
    """takes heads that were cut out of a product and not copied, and a single pair"""
    B, T, H, half = case.sizes(4, low=4)
    heads = case.randn(B, T, H * 2 * half).unflatten(2, (H, -1)).transpose(1, 2)
    case.equal(rotate(heads), spun(heads), "turned X of cut heads", **ANGLES)
    pair = case.randn(T, 2)
    case.equal(rotate(pair), spun(pair), "turned X of one pair", **ANGLES)


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def offset_only(rotate, case):
    """gives two vectors the same product wherever they stand, if their distance is the same"""
    T, half, apart = case.sizes(3, low=4)
    q, k = case.randn(2 * half), case.randn(2 * half)
    places = torch.arange(T)
    one, other = rotate(q.expand(T, -1), places), rotate(k.expand(T, -1), places + apart)
    case.shape(one, (T, 2 * half), "turned q")
    case.shape(other, (T, 2 * half), "turned k")
    wanted = (q * spun(k[None], torch.tensor([apart]))[0]).sum()
    case.equal((one * other).sum(dim=1), wanted.expand(T), f"q · k at distance {apart}", **ANGLES)


@check(pairs_to_halves, see="Weights that change layout")
def gradients(convert, case):
    """passes gradients back to the columns that they belong to"""
    D, H, half = case.sizes(3, low=4)
    W, back = case.randn(D, H * 2 * half).requires_grad_(), case.randn(D, H * 2 * half)
    (wanted,) = torch.autograd.grad(reordered(W, H), W, back)
    found = convert(W, H)
    case.trains(found, "reordered W")
    found.backward(back)
    case.gradient(W, wanted, "W")


@check(pairs_to_halves, see="Weights that change layout")
def other_sizes(convert, case):
    """takes a single head, heads of one pair, a transposed view, and whole numbers"""
    for D, H, D_h in [(5, 1, 6), (4, 7, 2), (3, 2, 12)]:
        W = case.randn(H * D_h, D).mT
        what = f"reordered W for {H} heads of size {D_h}"
        case.equal(convert(W, H), reordered(W, H), what)
    W = torch.arange(36).view(2, 18)
    case.equal(convert(W, 3), reordered(W, 3), "reordered whole numbers")


@check(sliding_window_mask, see="A window that slides")
def one_position(mask, case):
    """allows the newest position the end of a cache, and the sinks"""
    (past,) = case.sizes(1, low=9)
    for window, sinks in [(None, 0), (1, 0), (4, 0), (4, 3), (1, 1), (None, 2), (30, 2)]:
        what = f"mask of one position for window {window} and {sinks} sinks"
        case.equal(mask(1, window, sinks, past), may_see(1, window, sinks, past), what)
    case.equal(mask(1, 1), torch.ones(1, 1, dtype=torch.bool), "mask of one position alone")


@check(sliding_window_mask, weight=2, see="A window that slides")
def everything(mask, case):
    """agrees with two loops for many sizes"""
    every = (1, 2, 7), (None, 1, 2, 5, 12), (0, 1, 3, 20), (0, 1, 6)
    sizes = list(itertools.product(*every))  # T, window, sinks, past
    for each, given in zip(sizes, of_each(mask, sizes), strict=True):
        case.equal(given, may_see(*each), f"mask({', '.join(map(str, each))})")


@check(LlamaAttention, see="Attention as Llama has it")
def gradient(attention, case):
    """passes gradients back to X and to all weights when there is no cache"""
    B, T, pairs = case.sizes(3, low=3)
    ours, state = llama_layer(case, attention, 2 * pairs, window=3, sinks=1)
    X, seen = case.randn(2, B, T, 12 * pairs)
    leaves = leaves_of(state | {"X": X})
    attended(leaves, 6, 2, leaves["X"], window=3, sinks=1).backward(seen)
    ours(X.requires_grad_()).backward(seen)
    case.gradient(X, leaves.pop("X").grad, "X")
    demand_gradients(case, ours, leaves)
    case.learns(ours)


@check(LlamaAttention, see="Attention as Llama has it")
def groups(attention, case):
    """attends with a single head of keys, and with one for each head of queries"""
    B, T, pairs = case.sizes(3, low=3)
    for H, G in ((4, 1), (3, 3), (1, 1)):
        ours, state = llama_layer(case, attention, 2 * pairs, H, G)
        X = case.randn(B, T, H * 2 * pairs)
        case.equal(ours(X), attended(state, H, G, X), f"Y for H = {H} and G = {G}")


@check(LlamaAttention, see="Attention as Llama has it")
def two_texts(attention, case):
    """keeps apart two texts that are read alternately, each with its own cache"""
    B, T, pairs = case.sizes(3, low=3)
    ours, state = llama_layer(case, attention, 2 * pairs)
    first, second = case.randn(2, B, T, 12 * pairs)
    caches = ours.new_cache(B, 2 * T), ours.new_cache(B, 2 * T)
    ours(first[:, :-1], caches[0])
    ours(second[:, :-2], caches[1])
    ours(second)
    last = ours(first[:, -1:], caches[0])
    case.equal(last, attended(state, 6, 2, first)[:, -1:], "Y of the first of two texts")


@check(LlamaAttention, see="Attention as Llama has it")
def goes_back(attention, case):
    """continues correctly after the cache was truncated, and when it is full changes nothing"""
    B, T, pairs = case.sizes(3, low=3)
    ours, state = llama_layer(case, attention, 2 * pairs)
    X, cache = case.randn(B, T, 12 * pairs), ours.new_cache(B, T)
    ours(X[:, : T - 1], cache)
    case.raises(ValueError, lambda: ours(X[:, :2], cache), "the cache has room for one, two come")
    cache.truncate(T - 2)
    other = torch.cat([X[:, : T - 2], case.randn(B, 2, 12 * pairs)], dim=1)
    case.equal(ours(other[:, -2:], cache), attended(state, 6, 2, other)[:, -2:], "Y after truncate")


@check(LlamaAttention, see="Attention as Llama has it")
def far_away(attention, case):
    """counts positions exactly in bfloat16, which cannot tell 595 from 596"""
    ours, state = llama_layer(case, attention, 8, window=3)
    long = (case.randn(2, 4, 48) / 2).repeat(1, 150, 1).bfloat16()
    ours = ours.bfloat16()
    cache = ours.new_cache(2, 600)
    ours(long[:, :595], cache)
    Y = ours(long[:, 595:], cache)
    case.shape(Y, (2, 5, 48), "Y")
    rounded = {name: value.bfloat16().double() for name, value in state.items()}
    expected = attended(rounded, 6, 2, long[:, 588:].double(), window=3)[:, -5:]
    error = (Y.detach().double() - expected).abs().max().item()
    case.that(error < 0.15, f"Y at position 595 in bfloat16 is off by {error:.1g}, more than 0.15.")


@check(LlamaBlock, see="The block")
def gradient(block, case):
    """passes gradients back to X and to all weights"""
    B, T, pairs = case.sizes(3)
    ours, state = llama_block(case, block, pairs)
    X, seen = case.randn(2, B, T, 12 * pairs)
    leaves = leaves_of(state | {"X": X})
    layered(leaves, 6, 2, leaves["X"]).backward(seen)
    ours(X.requires_grad_()).backward(seen)
    case.gradient(X, leaves.pop("X").grad, "X")
    demand_gradients(case, ours, leaves)
    case.learns(ours)


@check(LlamaBlock, see="The block")
def large(block, case):
    """normalises very large vectors, and very small ones"""
    B, T, pairs = case.sizes(3)
    for size in (1e5, 1e-3):
        ours, state = llama_block(case, block, pairs)
        X = size * case.randn(B, T, 12 * pairs)
        case.equal(ours(X), layered(state, 6, 2, X), f"X of size {size:g}")


@check(LlamaBlock, see="The block")
def two_texts(block, case):
    """keeps apart two texts that are read alternately, each with its own cache"""
    B, T, pairs = case.sizes(3, low=3)
    ours, state = llama_block(case, block, pairs)
    first, second = case.randn(2, B, T, 12 * pairs)
    attention = ours.get_submodule("attention")
    caches = attention.new_cache(B, T), attention.new_cache(B, T)
    ours(first[:, :-1], caches[0])
    ours(second[:, :-2], caches[1])
    last = ours(first[:, -1:], caches[0])
    case.equal(last, layered(state, 6, 2, first)[:, -1:], "X of the first of two texts")


@check(LlamaBlock, see="The block")
def base(block, case):
    """has attention that turns as slowly as base says"""
    B, T, pairs = case.sizes(3)
    ours, state = llama_block(case, block, pairs, (), base=40.0)
    X = case.randn(B, T, 12 * pairs)
    case.equal(ours(X), layered(state, 6, 2, X, base=40.0), "X for base = 40")


@check(Llama, see="The whole model")
def gradient(model, case):
    """passes gradients back to all weights, and both ways to a tied embedding"""
    B, T = case.sizes(2, low=3)
    for tied in (False, True):
        ours, state = llama_model(case, model, tied=tied)
        tokens, leaves = case.integers(0, 13, B, T), leaves_of(state)
        seen = case.randn(B, T, 13)
        scored(leaves, tokens).backward(seen)
        ours(tokens).backward(seen)
        demand_gradients(case, ours, leaves)
        case.learns(ours)


@check(Llama, see="The whole model")
def depth(model, case):
    """passes through one layer, and through four in their order"""
    B, T = case.sizes(2, low=3)
    for L in (1, 4):
        ours, state = llama_model(case, model, L)
        tokens = case.integers(0, 13, B, T)
        case.equal(ours(tokens), scored(state, tokens), f"logits for L = {L}")


@check(Llama, see="The whole model")
def two_texts(model, case):
    """keeps apart two texts that are read alternately, each with its own caches"""
    B, T = case.sizes(2, low=4)
    ours, state = llama_model(case, model)
    first, second = case.integers(0, 13, 2, B, T)
    mine, others = ours.new_caches(B, T), ours.new_caches(B, T)
    ours(first[:, :-2], mine)
    ours(second[:, :-1], others)
    ours(second)
    last = ours(first[:, -2:], mine)
    case.equal(last, scored(state, first)[:, -2:], "logits of the first of two texts")


@check(Llama, see="The whole model")
def window(model, case):
    """agrees with layers made of torch's functions when they see a window only"""
    B, T = case.sizes(2, low=5)
    ours, state = llama_model(case, model, window=3)
    tokens = case.integers(0, 13, B, T)
    case.equal(ours(tokens), scored(state, tokens, window=3), "logits for window = 3")


@check(Llama, see="The whole model")
def own_caches(model, case):
    """keeps in the first cache what the first layer has read, and so on"""
    B, T = case.sizes(2, low=3)
    ours, state = llama_model(case, model, zeros=("attention.W_O", "feed_forward.W_down"))
    layers = [ours.get_submodule(f"blocks.{number}.attention") for number in range(3)]
    tokens, caches = case.integers(0, 13, B, T), [layer.new_cache(B, T) for layer in layers]
    ours(tokens, caches)
    X = state["token.weight"][tokens]  # the blocks add zeros to it
    for number in range(3):
        layer = under(state, f"blocks.{number}.")
        vectors = normed(X, layer["norm_1.weight"])
        expected = keys_and_values(under(layer, "attention."), 2, 4, vectors)
        K, V = case.unpack(caches[number].read(), "K", "V")
        case.equal(K, expected[0], f"K in cache {number}")
        case.equal(V, expected[1], f"V in cache {number}")


@check(llama_parameters, see="Count before you build")
def with_experts(count, case):
    """counts 46 702 792 704 in Mixtral 8×7B, of which 12 879 925 248 are active"""
    mistral = {**LLAMA_2_7B, "G": 8, "F": 14336}
    demand_published(case, count, "Mistral 7B", mistral, "total", 7_241_732_096)
    demand_published(case, count, "Mistral 7B", mistral, "active", 7_241_732_096)
    mixtral = {**mistral, "experts": 8, "k": 2}
    demand_published(case, count, "Mixtral 8×7B", mixtral, "total", 46_702_792_704)
    demand_published(case, count, "Mixtral 8×7B", mixtral, "active", 12_879_925_248)


@check(llama_parameters, see="Count before you build")
def all_active(count, case):
    """counts all as active where a token gets every expert, and only these names"""
    for model in ({"experts": 3, "k": 3}, {"experts": 1, "k": 1}, {"tied": True}, {}):
        sizes = {"V": 9, "D": 8, "H": 4, "G": 2, "L": 2, "F": 11, **model}
        result, wanted = count(**sizes), weights_of(**sizes)
        case.that(isinstance(result, dict), "The result should be a dict, yours is not.")
        for name, number in wanted.items():
            counted = result.get(name)
            case.that(counted == number, f"{name} should be {number}, yours is {counted!r:.30}.")
        more = sorted(map(str, set(result) - set(wanted)))
        case.that(not more, f"There should be no other names, yours has {(more or [''])[0]}.")


@check(load_llama, see="Load what others have trained")
def many(load, case):
    """tells layer 1 from layer 10 and expert 2 from expert 10, both at once"""
    theirs = hub_state(case, V=3, D=2, narrow=2, F=2, L=11, experts=11)
    demand_llama(case, load(theirs), theirs, 11, experts=11)


@check(load_llama, see="Load what others have trained")
def refuses_more(load, case):
    """raises ValueError for names of other models, which only look alike"""
    for name in (
        "model.layers.0.mlp.up_proj.bias",
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.block_sparse_moe.experts.0.w4.weight",
        "model.layers.0.block_sparse_moe.experts.0.w1.bias",
        "block_sparse_moe.experts.0.w1.weight",
        "model.layers.0.lm_head.weight",
        "transformer.wte.weight",
        "lm_head.bias",
        "model.layers.0.input_layernorm.bias",
        "model.norm.bias",
        "model.layers.0.self_attn.v_proj.weight_scale",
        "vision_model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.adapter.mlp.up_proj.weight",
        "model.layers.0.self_attn.rotary_emb.cos_cached",
        "model.layers.0.block_sparse_moe.experts.0.w1.weight_scale",
        "embed_tokens.weight",
    ):
        other = {**hub_state(case, L=1, experts=2), name: case.randn(6)}
        case.raises(ValueError, lambda other=other: load(other), f"the state has {name}")


@check(load_llama, see="Load what others have trained")
def kinds(load, case):
    """keeps the numbers' dtype"""
    theirs = {name: value.half() for name, value in hub_state(case, L=1).items()}
    given = load(theirs)
    demand_llama(case, given, theirs, 1)
    for name, value in given.items():
        kind = value.dtype
        case.that(kind == torch.float16, f"{name} should be torch.float16, yours is {kind}.")


@check(route_top_k, see="Choose the experts")
def gradient(route, case):
    """passes the gradient of softmax back to the chosen logits, and none to the others"""
    M, E, k = case.sizes(3)
    E = E + k + 2
    logits = case.randn(M, E).requires_grad_()
    weights, _ = case.unpack(route(logits, k), "weights", "experts")
    case.trains(weights, "the weights")
    case.shape(weights, (M, k), "weights")
    seen = case.randn(M, k)
    weights.backward(seen)
    p, chosen = ranked(logits.detach(), k)
    flow = p * (seen - (p * seen).sum(dim=1, keepdim=True))
    case.gradient(logits, torch.zeros(M, E).double().scatter(1, chosen, flow), "logits")


@check(route_top_k, see="Choose the experts")
def large(route, case):
    """copes with very large scores, and with very small ones"""
    M, E, k = case.sizes(3)
    E = E + k + 2
    spread = case.randn(M, E)
    for size in (1e4, -1e4):
        demand_routes(case, route, spread + size, k, f"for scores around {size:g}")
    # Not farther: to take the k largest of a softmax over all scores is right, until it underflows.
    demand_routes(case, route, 30 * spread, k, "for scores far apart")


@check(route_top_k, see="Choose the experts")
def edges(route, case):
    """routes a single token, and all tokens to a single expert"""
    demand_routes(case, route, case.randn(1, 6), 3, "of a single token")
    demand_routes(case, route, case.randn(5, 1), 1, "where there is one expert")
    case.raises(ValueError, lambda: route(case.randn(4, 5), -1), "k is -1")
    weights, experts = case.unpack(route(torch.zeros(1, 3), 2), "weights", "experts")
    case.equal(weights, torch.full((1, 2), 0.5), "weights of three equal scores")
    twice = experts.tolist()[0]
    case.that(len(set(twice)) == 2, f"Two experts should be chosen, yours are {twice}.")


@check(load_balancing_loss, see="Keep all of them busy")
def large(loss, case):
    """copes with very large scores"""
    M, E, k = case.sizes(3)
    E = E + k + 1
    logits, experts = case.randn(M, E), drawn_choices(case, M, E, k)
    expected = counted_loss(logits, experts)
    case.equal(loss(logits + 5000, experts), expected, "L for scores around 5000")


@check(load_balancing_loss, see="Keep all of them busy")
def one_token(loss, case):
    """counts one token that goes to all experts, or to one"""
    logits = case.randn(1, 5)
    for k in (5, 1):
        experts = torch.tensor([[3, 0, 4, 1, 2][:k]])
        case.equal(
            loss(logits, experts), counted_loss(logits, experts), f"L of one token and k = {k}"
        )


@check(load_balancing_loss, see="Keep all of them busy")
def any_order(loss, case):
    """does not ask which of a token's experts comes first"""
    M, E, k = case.sizes(3, low=3)
    E = E + k + 1
    logits, experts = 3 * case.randn(M, E), drawn_choices(case, M, E, k)
    other = experts.flip(1)
    case.equal(loss(logits, other), counted_loss(logits, experts), "L in another order")


@check(MixtureOfExperts, see="Experts in place of one network")
def input_gradient(moe, case):
    """passes gradients back to the vectors"""
    B, T, D = case.sizes(3)
    ours, state = mixture(case, moe, D, 5, 2, B + T - 2)
    X, seen = case.randn(2, B, T, D)
    given, expected = X.clone().requires_grad_(), X.clone().requires_grad_()
    mixed(state, expected, 2, B + T - 2).backward(seen)
    ours(given).backward(seen)
    case.gradient(given, expected.grad, "X")
    case.learns(ours)


@check(MixtureOfExperts, see="Experts in place of one network")
def room_for_all(moe, case):
    """drops nothing when there is room for all, and counts anew in each call"""
    B, T, D = case.sizes(3)
    ours, state = mixture(case, moe, D, 4, 2, B * T)
    for text in range(2):
        X = case.randn(B, T, D)
        case.equal(ours(X), mixed(state, X, 2), f"Y of call {text}, with room for all")


@check(MixtureOfExperts, see="Experts in place of one network")
def strided(moe, case):
    """reads tokens in the order of their axes, wherever in memory they lie"""
    B, T, D = case.sizes(3)
    ours, state = mixture(case, moe, D, 4, 2, 3)
    X = case.randn(T, B, D).transpose(0, 1)
    case.equal(ours(X), mixed(state, X, 2, 3), "Y of vectors that do not lie in a row")
    one = case.randn(D)
    case.equal(ours(one), mixed(state, one, 2, 3), "Y of a single vector")


@check(MixtureOfExperts, see="Experts in place of one network")
def no_room(moe, case):
    """drops every token where the capacity is 0"""
    B, T, D = case.sizes(3)
    ours, _ = mixture(case, moe, D, 4, 2, 0)
    case.equal(ours(case.randn(B, T, D)), torch.zeros(B, T, D), "Y, capacity 0,")


@check(MixtureOfExperts, see="Experts in place of one network")
def kinds(moe, case):
    """gives vectors of X's dtype, as the network does whose place it takes"""
    B, T, D = case.sizes(3)
    for room in (None, 2):
        ours, state = mixture(case, moe, D, 4, 4, room)
        rounded = {name: value.bfloat16().double() for name, value in state.items()}
        ours, X = ours.bfloat16(), case.randn(B, T, D).bfloat16()
        Y, what = ours(X), f"Y in bfloat16, capacity {room},"
        kind = torch.bfloat16
        case.shape(Y, (B, T, D), what)
        case.that(Y.dtype == kind, f"{what} should be {kind} as X is, yours is {Y.dtype}.")
        expected = mixed(rounded, X.double(), 4, room)
        case.equal(Y, expected, what, rtol=0.1, atol=0.05 * expected.abs().max().item())


@check(LoRA, see="Adapt a little")
def fresh(lora, case):
    """draws A from N(0, 1/D_in)"""
    D_in, r = 100, 48
    A = lora(case.randn(D_in, 5), r, 1.0).state_dict().get("A")
    case.shape(A, (D_in, r), "A")
    A = A.double()
    case.equal(A.std(), D_in**-0.5, "standard deviation of A", rtol=0.06)
    case.equal(A.mean(), 0.0, "mean of A", atol=5 * (D_in * r * D_in) ** -0.5)
    share = (A.abs() < D_in**-0.5).double().mean()
    case.equal(share, 0.683, "share of A within one standard deviation", rtol=0.06)


@check(LoRA, see="Adapt a little")
def precision(lora, case):
    """has A and B in W's dtype, and a W that needs no gradient even if the given one does"""
    for dtype in (torch.float64, torch.float32):
        W = case.randn(6, 5).to(dtype).requires_grad_()
        ours = lora(W, 2, 1.0)
        for name, value in parameters_of(case, ours).items():
            case.that(
                value.dtype == dtype, f"{name} should be {dtype} as W is, yours is {value.dtype}."
            )
        stored = dict(ours.named_buffers()).get("W")
        case.shape(stored, (6, 5), "the buffer W")
        case.that(not stored.requires_grad, "W should need no gradient, yours does.")


@check(LoRA, see="Adapt a little")
def axes(lora, case):
    """adapts a vector alone, and sequences of them"""
    B, D_in, r, D_out = case.sizes(4)
    ours, W, added = adapted(case, lora, 0.5, D_in, r, D_out)
    for shape in ((D_in,), (B, 2, D_in)):
        X = case.randn(*shape)
        case.equal(ours(X), X @ (W + added), f"Y for X of shape {tuple(X.shape)}")
