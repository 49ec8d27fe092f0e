"""The references of llama agree with torch, transformers, Meta's layout, loops, and published
counts."""

import math
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaAttention as TheirLlamaAttention
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding, rotate_half
from transformers.models.mistral.modeling_mistral import MistralAttention

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
)
from course_pkg.positions import rope_rotate


def close(given, expected):
    torch.testing.assert_close(given, expected, rtol=1e-10, atol=1e-10)


def drawn(*shape):
    return torch.randn(shape, dtype=torch.float64)


# Norm and network


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 5, 3, 7), (4, 1)])
@pytest.mark.parametrize("eps", [1e-5, 1e-6, 0.3])
def test_the_norm_is_torchs(shape, eps):
    torch.manual_seed(0)
    ours, theirs = RMSNorm(shape[-1], eps).double(), nn.RMSNorm(shape[-1], eps).double()
    state = {"weight": drawn(shape[-1])}
    ours.load_state_dict(state)
    theirs.load_state_dict(state)
    X = (drawn(*shape) + 1).requires_grad_()
    close(ours(X), theirs(X))
    back = drawn(*shape)
    close(torch.autograd.grad(ours(X), X, back), torch.autograd.grad(theirs(X), X, back))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_norm_of_large_numbers_in_half_precision(dtype):
    X = (1000 * drawn(5, 64)).to(dtype)
    given = RMSNorm(64)(X)
    assert given.dtype == dtype
    expected = nn.RMSNorm(64, 1e-5).double()(X.double())
    torch.testing.assert_close(given.double(), expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("D, F", [(6, 10), (12, 5)])
def test_the_network_is_that_of_transformers(D, F):
    torch.manual_seed(0)
    theirs = LlamaMLP(
        LlamaConfig(hidden_size=D, intermediate_size=F, num_attention_heads=1)
    ).double()
    names = ("gate", "up", "down")
    W = {f"W_{x}": getattr(theirs, f"{x}_proj").weight.detach().T for x in names}
    ours, X = GatedFeedForward(D, F).double(), drawn(3, 4, D)
    ours.load_state_dict(W)
    close(ours(X), theirs(X))
    close(swiglu(X, **W), theirs(X))


@pytest.mark.parametrize("D, F", [(4096, 11008), (5120, 13824), (6656, 17920), (8192, 22016)])
def test_widths_are_those_of_published_models(D, F):
    with torch.device("meta"):
        network = GatedFeedForward(D, multiple=256)  # of LLaMA 7B, 13B, 33B and 65B
    assert network.F == F
    assert network.W_down.shape == (F, D)


# Layouts


def by_complex_numbers(X, positions, base=10000.0):
    """Meta's precompute_freqs_cis and apply_rotary_emb, in float64."""
    D_h = X.shape[-1]
    speeds = 1.0 / base ** (torch.arange(0, D_h, 2).double() / D_h)
    angles = torch.outer(positions.double(), speeds)
    turn = torch.polar(torch.ones_like(angles), angles)
    numbers = torch.view_as_complex(X.reshape(*X.shape[:-1], -1, 2))
    return torch.view_as_real(numbers * turn).flatten(-2)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 7), st.integers(1, 6), st.integers(0, 90)
)
def test_pairs_turn_as_in_metas_code(B, H, T, half, start):
    torch.manual_seed(start)
    X, positions = drawn(B, H, T, 2 * half), start + torch.arange(T)
    for base in (10000.0, 5e5):
        close(rope_rotate_pairs(X, positions, base), by_complex_numbers(X, positions, base))
    close(rope_rotate_pairs(X), by_complex_numbers(X, torch.arange(T)))


def test_an_odd_size_cannot_be_paired():
    with pytest.raises(ValueError, match="must come in pairs, got 5"):
        rope_rotate_pairs(drawn(3, 5))


def test_halves_turn_as_in_transformers():
    T, D_h = 9, 6
    X = drawn(2, 3, T, D_h)
    with all_in_float64():
        rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=D_h, num_attention_heads=1))
        cos, sin = rotary(X, torch.arange(T)[None])
    close(rope_rotate(X), X * cos[:, None] + rotate_half(X) * sin[:, None])


def permuted(w, n_heads):
    """What transformers' convert_llama_weights_to_hf.py does with Meta's weights, for W x."""
    dim1, dim2 = w.shape
    return w.view(n_heads, dim1 // n_heads // 2, 2, dim2).transpose(1, 2).reshape(dim1, dim2)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(1, 5))
def test_weights_change_layout_as_in_transformers(D, H, half):
    W = drawn(D, H * 2 * half)
    assert torch.equal(pairs_to_halves(W, H), permuted(W.T.contiguous(), H).T)


@pytest.mark.parametrize("H, G, D_h", [(4, 2, 6), (3, 1, 10), (2, 2, 2)])
def test_both_layouts_have_the_same_scores(H, G, D_h):
    torch.manual_seed(0)
    X, W_Q, W_K = drawn(7, 5), drawn(5, H * D_h), drawn(5, G * D_h)

    def scores(turn, W_Q, W_K):
        Q, K = ((X @ W).unflatten(1, (-1, D_h)).transpose(0, 1) for W in (W_Q, W_K))
        return turn(Q) @ turn(K).repeat_interleave(H // G, dim=0).mT

    expected = scores(rope_rotate_pairs, W_Q, W_K)
    close(scores(rope_rotate, pairs_to_halves(W_Q, H), pairs_to_halves(W_K, G)), expected)


@pytest.mark.parametrize("columns, H", [(10, 3), (9, 3), (3, 1)])
def test_columns_that_are_no_heads_are_refused(columns, H):
    with pytest.raises(ValueError, match=f"{columns} columns are not {H} heads"):
        pairs_to_halves(drawn(4, columns), H)


# Windows


@settings(deadline=None)
@given(
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(1, 15)),
    st.integers(0, 5),
    st.integers(0, 8),
)
def test_windows_are_two_loops(T, window, sinks, past):
    mask = sliding_window_mask(T, window, sinks, past)
    assert mask.shape == (T, past + T) and mask.dtype == torch.bool
    for t in range(T):
        for s in range(past + T):
            n = past + t
            near = window is None or n - window < s
            assert mask[t, s] == (s <= n and (near or s < sinks))


@pytest.mark.parametrize("window, sinks", [(0, 0), (-1, 2), (3, -1), (None, -1)])
def test_what_is_no_window_is_refused(window, sinks):
    with pytest.raises(ValueError, match="must be at least 1, and sinks"):
        sliding_window_mask(5, window, sinks)


# Counts

LLAMA_2_7B = {"V": 32000, "D": 4096, "H": 32, "G": 32, "L": 32, "F": 11008}


LLAMA_3_8B = {"V": 128256, "D": 4096, "H": 32, "G": 8, "L": 32, "F": 14336}


MISTRAL_7B = {"V": 32000, "D": 4096, "H": 32, "G": 8, "L": 32, "F": 14336}


PUBLISHED = [
    (LLAMA_2_7B, LlamaForCausalLM, LlamaConfig, 6_738_415_616),
    (LLAMA_3_8B, LlamaForCausalLM, LlamaConfig, 8_030_261_248),
    (MISTRAL_7B, MistralForCausalLM, MistralConfig, 7_241_732_096),
]


def configured(kind, V, D, H, G, L, F, tied=False, **options):
    """Make a configuration of transformers of the arguments of our Llama."""
    return kind(
        vocab_size=V,
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=G,
        head_dim=D // H,
        num_hidden_layers=L,
        intermediate_size=F,
        tie_word_embeddings=tied,
        rms_norm_eps=1e-5,
        attn_implementation="sdpa",
        **options,
    )


def numbers_of(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("sizes, model, kind, number", PUBLISHED)
def test_counts_are_those_of_published_models(sizes, model, kind, number):
    assert llama_parameters(**sizes)["total"] == number
    with torch.device("meta"):
        assert numbers_of(model(configured(kind, **sizes))) == number


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_counts_are_those_of_our_models(data):
    G = data.draw(st.integers(1, 3))
    H = G * data.draw(st.integers(1, 3))
    D = H * 2 * data.draw(st.integers(1, 3))
    V, L, F = (data.draw(st.integers(1, most)) for most in (40, 3, 20))
    tied = data.draw(st.booleans())
    with torch.device("meta"):
        model = Llama(V, D, H, G, L, F, tied)
    found = llama_parameters(V, D, H, G, L, F, tied)
    assert found["total"] == numbers_of(model)
    assert found["attention"] == sum(numbers_of(block.attention) for block in model.blocks)
    assert found["feed_forward"] == sum(numbers_of(block.feed_forward) for block in model.blocks)


# Loading


@contextmanager
def all_in_float64():
    """Let what transformers computes in float32 be computed in float64."""
    wide = torch.float64
    with (
        patch.object(torch, "float", wide),
        patch.object(torch, "float32", wide),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


def scattered(model):
    """Move all weights away from where they start: norms from one, and matrices from near zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def logits_of(model, tokens):
    """Compute transformers' logits in float64 throughout."""
    with all_in_float64(), torch.no_grad():
        config = model.config
        model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its table in float64
        return model(tokens, use_cache=False).logits


def demand_agreement(model, state, sizes, **options):
    """Demand that our Llama with converted weights gives the logits of a model of transformers."""
    ours = Llama(**sizes, **options).double()
    before = {name: value.clone() for name, value in state.items()}
    ours.load_state_dict(load_llama(state))
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in before)
    tokens = torch.randint(0, sizes["V"], (3, 11))
    with torch.no_grad():
        whole = ours(tokens)
        close(whole, logits_of(model, tokens))
        caches = ours.new_caches(3, 11)
        pieces = [ours(piece, caches) for piece in tokens.split([5, 1, 3, 1, 1], dim=1)]
    close(torch.cat(pieces, dim=1), whole)


SIZES = [
    {"V": 31, "D": 24, "H": 6, "G": 2, "L": 3, "F": 20},
    {"V": 17, "D": 20, "H": 5, "G": 1, "L": 2, "F": 33},
    {"V": 23, "D": 16, "H": 4, "G": 4, "L": 1, "F": 9},
]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_has_the_same_logits(tmp_path, sizes, tied):
    torch.manual_seed(0)
    config = configured(LlamaConfig, **sizes, tied=tied, rope_theta=5e5)
    theirs = scattered(LlamaForCausalLM(config).double())
    theirs.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    assert ("lm_head.weight" in state) != tied
    base = theirs.config.rope_parameters["rope_theta"]
    demand_agreement(theirs, state, sizes, tied=tied, base=base)


def test_a_mistral_has_the_same_logits():
    torch.manual_seed(0)
    theirs = MistralForCausalLM(configured(MistralConfig, **SIZES[0], sliding_window=4))
    theirs = scattered(theirs.double())
    base = theirs.config.rope_parameters["rope_theta"]
    demand_agreement(theirs, theirs.state_dict(), SIZES[0], window=4, base=base)


def test_without_double_precision_the_agreement_is_that_of_float32():
    torch.manual_seed(0)
    theirs = scattered(LlamaForCausalLM(configured(LlamaConfig, **SIZES[0])).double())
    ours = Llama(**SIZES[0]).double()
    ours.load_state_dict(load_llama(theirs.state_dict()))
    tokens = torch.randint(0, 31, (3, 11))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


def test_tables_of_old_files_are_left_out():
    theirs = LlamaForCausalLM(configured(LlamaConfig, **SIZES[0]))
    state = theirs.state_dict()
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2), **state}
    assert (
        load_llama(old).keys() == load_llama(state).keys() == Llama(**SIZES[0]).state_dict().keys()
    )


@pytest.mark.parametrize("options", [{"attention_bias": True}, {"mlp_bias": True}])
def test_biases_are_refused(options):
    theirs = LlamaForCausalLM(configured(LlamaConfig, **SIZES[0], **options))
    with pytest.raises(ValueError, match=r"our Llama has no place for .*bias"):
        load_llama(theirs.state_dict())


# Attention


def turns(T, D_h, base):
    """What transformers' attention wants of its rotary embedding, which computes in float32."""
    speeds = base ** (-torch.arange(0, D_h, 2).double() / D_h)
    angles = torch.outer(torch.arange(T).double(), speeds).repeat(1, 2)[None]
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("window", [None, 1, 4])
def test_attention_is_that_of_llama_and_mistral(seed, window):
    torch.manual_seed(seed)
    H, G = [(6, 2), (6, 6), (4, 1), (6, 3)][seed]
    B, T, D_h, base = 3, 11, 2 * (2 + seed), 10.0 ** (seed + 1)
    Config, Layer = (
        (LlamaConfig, TheirLlamaAttention) if window is None else (MistralConfig, MistralAttention)
    )
    config = Config(
        hidden_size=H * D_h,
        num_attention_heads=H,
        num_key_value_heads=G,
        head_dim=D_h,
        attn_implementation="sdpa",  # eager attention takes softmax in float32
    )
    theirs = Layer(config, layer_idx=0).double()
    ours = LlamaAttention(H * D_h, H, G, base, window).double()
    names = zip("QKVO", "qkvo", strict=True)
    state = {f"W_{x}": getattr(theirs, f"{y}_proj").weight.T for x, y in names}
    ours.load_state_dict(state)
    X = drawn(B, T, H * D_h)
    allowed = torch.ones(T, T).tril().triu(-(window or T) + 1).bool()
    mask = torch.zeros(T, T).double().masked_fill(~allowed, -math.inf)[None, None]
    turned = turns(T, D_h, base)
    expected = theirs(X, position_embeddings=turned, attention_mask=mask)[0]
    close(ours(X), expected)
    cache = ours.new_cache(B, T)
    close(torch.cat([ours(piece, cache) for piece in X.split([5, 1, 1, 3, 1], 1)], 1), expected)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_pieces_give_the_outputs_of_the_whole(data):
    H, G = data.draw(st.sampled_from([(4, 4), (4, 2), (4, 1)]))
    window = data.draw(st.sampled_from([None, 1, 3, 20]))
    sinks = data.draw(st.integers(0, 3))
    torch.manual_seed(0)
    layer = LlamaAttention(24, H, G, 50.0, window, sinks).double()
    X = drawn(2, 9, 24)
    with torch.no_grad():
        expected, cache = layer(X), layer.new_cache(2, 9)
        while cache.length < 9:
            start = cache.length
            end = data.draw(st.integers(start + 1, 9))
            close(layer(X[:, start:end], cache), expected[:, start:end])
            cache.truncate(data.draw(st.integers(min(start + 1, cache.length), cache.length)))


def test_sinks_are_seen_from_everywhere_and_what_left_the_window_is_not():
    torch.manual_seed(0)
    layer = LlamaAttention(12, 3, 1, window=3, sinks=2).double()
    X = drawn(1, 10, 12).requires_grad_()
    layer(X)[:, -1].sum().backward()
    seen = X.grad[0].abs().sum(dim=-1) > 0
    assert seen.tolist() == [n in (0, 1, 7, 8, 9) for n in range(10)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_outputs_have_the_dtype_of_x_whatever_the_cache_has(dtype):
    layer = LlamaAttention(24, 6, 2).double()
    cache = layer.new_cache(2, 5, dtype)
    assert layer(drawn(2, 5, 24), cache).dtype == torch.float64
    assert cache.read()[0].dtype == dtype
    assert layer.new_cache(2, 5).read()[0].dtype == torch.float64


# The block and the model; the whole model is compared with transformers' where weights are loaded


@pytest.mark.parametrize("seed", range(3))
def test_a_block_is_two_steps_of_torch(seed):
    torch.manual_seed(seed)
    block = LlamaBlock(24, 6, 3, 37, window=4, sinks=1).double()
    for norm in (block.norm_1, block.norm_2):
        norm.weight.data = torch.rand(24).double() + 0.5
    X = 3 * drawn(2, 7, 24)
    middle = X + block.attention(F.rms_norm(X, (24,), block.norm_1.weight, 1e-5))
    normal = F.rms_norm(middle, (24,), block.norm_2.weight, 1e-5)
    network = block.feed_forward
    hidden = F.silu(normal @ network.W_gate) * (normal @ network.W_up)
    close(block(X), middle + hidden @ network.W_down)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("window", [None, 5])
def test_a_model_reads_in_any_pieces(tied, window):
    torch.manual_seed(0)
    model = Llama(31, 24, 6, 2, 3, 17, tied, 500.0, window, 1).double()
    tokens = torch.randint(0, 31, (4, 13))
    caches = model.new_caches(4, 13)
    with torch.no_grad():
        whole = model(tokens)
        pieces = [model(piece, caches) for piece in tokens.split([6, 1, 1, 4, 1], dim=1)]
    assert whole.shape == (4, 13, 31)
    close(torch.cat(pieces, dim=1), whole)
    assert [cache.length for cache in caches] == [13, 13, 13]
    assert ("W_head" in model.state_dict()) is not tied
