"""The references of kv_cache agree with transformers, and with themselves without a cache."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DeepseekV2Config, DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import (
    DeepseekV2Attention,
    DeepseekV2RotaryEmbedding,
)
from transformers.models.llama.modeling_llama import LlamaAttention

from course_pkg.gpt import load_gpt2
from course_pkg.inference.latent_cache import LatentCache
from course_pkg.kv_cache import (
    CachedAttention,
    CachedWriter,
    GroupedQueryAttention,
    KVCache,
    LatentAttention,
    attention_operations,
    kv_cache_bytes,
    mha_to_gqa,
)
from course_pkg.llama import pairs_to_halves


def close(given, expected, tolerance=1e-10):
    torch.testing.assert_close(given, expected, rtol=tolerance, atol=tolerance)


# The cache


programs = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 5)),
        st.tuples(st.just("truncate"), st.integers(-1, 12)),
    ),
    max_size=15,
)


@given(programs)
def test_a_cache_is_a_list_of_positions(program):
    B, G, capacity, D_h = 2, 3, 10, 4
    cache, kept = KVCache(B, G, capacity, D_h, torch.float64), []
    torch.manual_seed(0)
    for action, number in program:
        if action == "truncate" and 0 <= number <= len(kept):
            cache.truncate(number)
            del kept[number:]
        elif action == "truncate":
            with pytest.raises(ValueError, match=f"cannot keep {number} of {len(kept)}"):
                cache.truncate(number)
        else:
            K, V = torch.randn(2, B, G, number, D_h, dtype=torch.float64)
            if len(kept) + number > capacity:
                with pytest.raises(ValueError, match=f"do not fit into a cache for {capacity}"):
                    cache.append(K, V)
            else:
                cache.append(K, V)
                kept += [(K[:, :, t], V[:, :, t]) for t in range(number)]
        K, V = cache.read()
        assert cache.length == K.shape[2] == V.shape[2] == len(kept)
        for t, (key, value) in enumerate(kept):
            assert torch.equal(K[:, :, t], key) and torch.equal(V[:, :, t], value)


def test_what_is_appended_may_change_afterwards():
    cache, K = KVCache(2, 3, 7, 4), torch.ones(2, 3, 5, 4)
    cache.append(K, K)
    K.zero_()
    assert cache.read()[0].min() == 1


@pytest.mark.parametrize("shape", [(3, 5, 4), (1, 3, 5, 4), (2, 3, 5, 1), (2, 5, 3, 4), (5,), (4,)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"K and V should have shape \(2, 3, T, 4\), got"):
        if len(shape) < 2:
            shape = (2, 3, *shape)
        KVCache(2, 3, 7, 4).append(torch.ones(shape), torch.ones(shape))


# Attention


@pytest.mark.parametrize("H, G", [(6, 6), (6, 3), (6, 2), (6, 1)])
def test_grouped_attention_is_that_of_llama(H, G):
    torch.manual_seed(G)
    B, T, D_h = 3, 11, 4
    D = H * D_h
    config = LlamaConfig(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=G,
        head_dim=D_h,
        attn_implementation="sdpa",  # eager attention takes softmax in float32
    )
    theirs = LlamaAttention(config, layer_idx=0).double()
    ours = GroupedQueryAttention(D, H, G).double()
    ours.load_state_dict(
        {
            f"W_{x}": getattr(theirs, f"{name}_proj").weight.T
            for x, name in zip("QKVO", ("q", "k", "v", "o"), strict=True)
        }
    )
    X = torch.randn(B, T, D, dtype=torch.float64)
    unturned = torch.ones(B, T, D_h).double(), torch.zeros(B, T, D_h).double()  # no rotation
    mask = torch.zeros(T, T).double().masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    expected = theirs(X, position_embeddings=unturned, attention_mask=mask[None, None])[0]
    close(ours(X), expected)
    cache = ours.new_cache(B, T)
    close(torch.cat([ours(piece, cache) for piece in X.split([6, 1, 3, 1], dim=1)], 1), expected)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_pieces_give_the_outputs_of_the_whole(data):
    H, G = data.draw(st.sampled_from([(4, 4), (4, 2), (4, 1)]))
    torch.manual_seed(0)
    layer = GroupedQueryAttention(12, H, G, bias=True).double()
    X = torch.randn(2, 9, 12, dtype=torch.float64)
    with torch.no_grad():
        expected, cache = layer(X), layer.new_cache(2, 9)
        while cache.length < 9:
            start = cache.length
            end = data.draw(st.integers(start + 1, 9))
            close(layer(X[:, start:end], cache), expected[:, start:end])
            cache.truncate(data.draw(st.integers(min(start + 1, cache.length), cache.length)))


def test_multi_head_attention_is_grouped_attention_with_as_many_groups():
    torch.manual_seed(0)
    many, same = CachedAttention(12, 4, bias=True), GroupedQueryAttention(12, 4, 4, bias=True)
    same.load_state_dict(many.state_dict())
    X = torch.randn(2, 9, 12)
    torch.testing.assert_close(same(X), many(X))


def test_a_cache_has_the_dtype_of_the_weights_or_another():
    layer = CachedAttention(12, 4).double()
    for dtype, expected in ((None, torch.float64), (torch.bfloat16, torch.bfloat16)):
        cache = layer.new_cache(2, 9, dtype)
        Y = layer(torch.randn(2, 9, 12, dtype=torch.float64), cache)
        assert cache.read()[0].dtype == cache.read()[1].dtype == expected
        assert Y.dtype == torch.float64


# The model


@pytest.fixture
def models():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=61,
        n_positions=30,
        n_embd=20,
        n_head=4,
        n_layer=3,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    theirs = GPT2LMHeadModel(config).double().eval()
    for parameter in theirs.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    ours = CachedWriter(61, 30, 20, 4, 3).double()
    ours.load_state_dict(load_gpt2(theirs.state_dict()))
    return ours, theirs


def test_logits_with_caches_are_those_of_transformers(models):
    ours, theirs = models
    tokens = torch.randint(0, 61, (5, 13))
    caches, past = ours.new_caches(5), DynamicCache(config=theirs.config)
    with torch.no_grad():
        whole = theirs(tokens).logits
        start = 0
        for piece in tokens.split([7, 1, 4, 1], dim=1):
            given, start = ours(piece, caches), start + piece.shape[1]
            close(given, theirs(piece, past_key_values=past, use_cache=True).logits)
            close(given, whole[:, start - piece.shape[1] : start])


def test_greedy_texts_are_those_of_transformers(models):
    ours, theirs = models
    tokens = torch.randint(1, 61, (4, 5))
    written = theirs.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=20, do_sample=False
    )
    assert torch.equal(ours.generate_with_cache(tokens, 20, 0.0, stop=0), written)


@pytest.mark.parametrize("G", [4, 2, 1])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.4}, {"top_k": 5}, {"top_p": 0.6}])
def test_the_same_draws_with_and_without_a_cache(G, options):
    torch.manual_seed(0)
    model = CachedWriter(61, 30, 20, 4, 2, partial(GroupedQueryAttention, G=G)).double()
    tokens = torch.randint(0, 61, (3, 4))
    texts = [
        write(tokens, 27, stop=1, generator=torch.Generator().manual_seed(7), **options)
        for write in (model.sample, model.generate_with_cache)
    ]
    assert torch.equal(*texts)


@pytest.mark.parametrize("temperature", [1e-38, 1e-40, 1e-320])
def test_the_smallest_temperatures_take_the_best_token(temperature):
    torch.manual_seed(0)
    model, tokens = CachedWriter(61, 30, 20, 4, 2), torch.randint(0, 61, (3, 4))
    for write in (model.sample, model.generate_with_cache):
        assert torch.equal(write(tokens, 9, temperature), write(tokens, 9, 0.0))


def test_the_context_is_the_limit():
    model = CachedWriter(61, 10, 20, 4, 1)
    tokens = torch.zeros(2, 10, dtype=torch.long)
    assert model.generate_with_cache(tokens, 1).shape == (2, 11)
    with pytest.raises(ValueError, match="10 tokens and 2 more do not fit into a context of 10"):
        model.generate_with_cache(tokens, 2)
    with pytest.raises(ValueError, match="the texts are empty"):
        model.generate_with_cache(tokens[:, :0], 2)
    assert model.blocks[0].attention.counts == {"tokens": 10, "pairs": 100}


def test_gradients_are_those_of_the_gpt(models):
    ours, theirs = models
    tokens = torch.randint(0, 61, (5, 13))
    ours(tokens).logsumexp(-1).sum().backward()
    theirs(tokens).logits.logsumexp(-1).sum().backward()
    theirs_gradient = theirs.transformer.h[1].attn.c_attn.weight.grad
    layer = ours.blocks[1].attention
    close(torch.cat([layer.W_Q.grad, layer.W_K.grad, layer.W_V.grad], dim=1), theirs_gradient)


# Counts


@given(st.integers(1, 12), st.integers(1, 8), st.booleans())
@settings(deadline=None, max_examples=30)
def test_the_model_counts_what_the_formula_says(prompt, count, cached):
    model = CachedWriter(7, 20, 6, 3, 2)
    write = model.generate_with_cache if cached else model.sample
    write(torch.zeros(2, prompt, dtype=torch.long), count)
    for block in model.blocks:
        assert block.attention.counts == attention_operations(prompt, count, cached)


def test_published_counts():
    assert attention_operations(1, 1000, cached=False)["pairs"] == 333_833_500
    assert attention_operations(1, 1000, cached=True)["pairs"] == 500_500
    assert kv_cache_bytes(32, 32, 128, 2048) == 2**30 == 32 * kv_cache_bytes(32, 1, 128, 2048)


@pytest.mark.parametrize("G", [4, 2, 1])
def test_bytes_are_those_of_the_caches(G):
    model = CachedWriter(7, 20, 12, 4, 3, partial(GroupedQueryAttention, G=G))
    for dtype in (torch.float16, torch.float32):
        caches = model.new_caches(5, 9, dtype)
        model(torch.zeros(5, 9, dtype=torch.long), caches)
        parts = [part for cache in caches for part in cache.read()]
        taken = sum(part.untyped_storage().nbytes() for part in parts)
        assert taken == kv_cache_bytes(3, G, 3, 9, 5, dtype)


# Conversion


def test_heads_that_are_alike_lose_nothing():
    torch.manual_seed(0)
    few = CachedWriter(31, 20, 24, 6, 2, partial(GroupedQueryAttention, G=2)).double()
    many = CachedWriter(31, 20, 24, 6, 2).double()
    state = few.state_dict()
    for name in state:
        if name[-3:] in ("W_K", "W_V", "b_K", "b_V"):
            state[name] = state[name].unflatten(-1, (2, 4)).repeat_interleave(3, -2).flatten(-2)
    many.load_state_dict(state)
    again = CachedWriter(31, 20, 24, 6, 2, partial(GroupedQueryAttention, G=2)).double()
    again.load_state_dict(mha_to_gqa(many.state_dict(), H=6, G=2))
    tokens = torch.randint(0, 31, (3, 20))
    close(many(tokens), few(tokens))
    close(again(tokens), few(tokens))


def test_conversion_leaves_its_input_alone():
    state = CachedWriter(31, 20, 24, 6, 2).state_dict()
    before = {name: value.clone() for name, value in state.items()}
    converted = mha_to_gqa(state, 6, 3)
    assert list(converted) == list(state) == list(before)
    assert all(torch.equal(state[name], before[name]) for name in before)
    with pytest.raises(ValueError, match="6 heads cannot be shared equally among 4 groups"):
        mha_to_gqa(state, 6, 4)


# Latent attention


def latent(D=24, H=3, D_c=10, D_R=4):
    layer = LatentAttention(D, H, D_c, D_R).double()
    layer.norm.weight.data = 1 + torch.randn(D_c, dtype=torch.float64) / 3
    return layer


@torch.no_grad()
def test_absorbed_is_the_same():
    torch.manual_seed(0)
    layer, X = latent(), torch.randn(2, 9, 24, dtype=torch.float64)
    whole = layer(X)
    close(layer.absorbed(X), whole)
    for pieces in ([9], [4, 1, 3, 1], [1] * 9):
        one, other = layer.new_cache(2, 9), layer.new_cache(2, 9)
        given = [layer(piece, one) for piece in X.split(pieces, dim=1)]
        close(torch.cat(given, dim=1), whole)
        given = [layer.absorbed(piece, other) for piece in X.split(pieces, dim=1)]
        close(torch.cat(given, dim=1), whole)
        assert isinstance(one, LatentCache) and torch.equal(one.read(), other.read())
        assert one.read().shape == (2, 9, 14) and one.bytes == 2 * 9 * 14 * 8


def test_gradients_are_the_same():
    torch.manual_seed(0)
    layer, X, back = (
        latent(),
        torch.randn(2, 5, 24, dtype=torch.float64),
        torch.randn(2, 5, 24, dtype=torch.float64),
    )
    given, expected = (
        torch.autograd.grad(Y, list(layer.parameters()), back)
        for Y in (layer.absorbed(X), layer(X))
    )
    for a, b in zip(given, expected, strict=True):
        close(a, b)


@torch.no_grad()
def test_it_is_deepseeks():
    torch.manual_seed(0)
    D, H, D_c, D_R, T = 24, 3, 10, 4, 7
    config = DeepseekV2Config(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=H,
        kv_lora_rank=D_c,
        q_lora_rank=None,
        qk_rope_head_dim=D_R,
        qk_nope_head_dim=D // H,
        v_head_dim=D // H,
        head_dim=D_R,
        attention_bias=False,
    )
    config._attn_implementation = "eager"
    theirs, ours = DeepseekV2Attention(config, 0), LatentAttention(D, H, D_c, D_R)
    ours.norm.eps = theirs.kv_a_layernorm.variance_epsilon
    theirs.kv_a_layernorm.weight.data = 1 + torch.randn(D_c) / 3
    down, up = theirs.kv_a_proj_with_mqa.weight.T, theirs.kv_b_proj.weight.T.unflatten(1, (H, -1))
    queries = theirs.q_proj.weight.T.unflatten(1, (H, -1))  # (D, H, D_h + D_R)
    turned = pairs_to_halves(queries[..., D // H :].flatten(1), H).unflatten(1, (H, -1))
    ours.load_state_dict(
        {
            "W_Q": torch.cat([queries[..., : D // H], turned], dim=-1).flatten(1),
            "W_DKV": down[:, :D_c],
            "W_KR": pairs_to_halves(down[:, D_c:], 1),
            "W_UK": up[..., : D // H].flatten(1),
            "W_UV": up[..., D // H :].flatten(1),
            "W_O": theirs.o_proj.weight.T,
            "norm.weight": theirs.kv_a_layernorm.weight,
        }
    )
    X = torch.randn(2, T, D)
    positions = DeepseekV2RotaryEmbedding(config)(X, torch.arange(T)[None])
    mask = torch.full((T, T), -math.inf).triu(1)[None, None]
    expected = theirs(X, attention_mask=mask, position_embeddings=positions)[0]
    close(ours(X), expected, 1e-5)
    close(ours.absorbed(X), expected, 1e-5)


def test_sizes_and_the_draw_of_its_weights():
    torch.manual_seed(0)
    layer = LatentAttention(128, 4, 48, 16)
    shapes = {name: tuple(value.shape) for name, value in layer.named_parameters()}
    expected = {"W_Q": (128, 192), "W_DKV": (128, 48), "W_KR": (128, 16), "W_UK": (48, 128)}
    expected |= {"W_UV": (48, 128), "W_O": (128, 128), "norm.weight": (48,)}
    assert shapes == expected
    for name, (rows, *_) in expected.items():
        if name != "norm.weight":
            assert math.isclose(layer.get_parameter(name).std().item(), rows**-0.5, rel_tol=0.06)


def test_a_latent_cache_is_a_kv_cache_of_one_head():
    ours, theirs = LatentCache(2, 6, 5), KVCache(2, 1, 6, 5)
    X = torch.randn(2, 6, 5)
    for piece in X.split([1, 3, 2], dim=1):
        ours.append(piece)
        theirs.append(piece[:, None], piece[:, None])
        assert torch.equal(ours.read(), theirs.read()[0][:, 0])
    for cache in (ours, theirs):
        cache.truncate(2)
    assert ours.length == theirs.length == 2
    for wrong in (X, X[:1, :1], X[:, :1, :4]):
        with pytest.raises(ValueError):
            ours.append(wrong)
    for length in (3, -1):
        with pytest.raises(ValueError):
            ours.truncate(length)
