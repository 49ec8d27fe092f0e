"""The references of transformer agree with torch, float64, on random shapes of all sizes."""

import copy
import math
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_pkg.attention import causal_mask, padding_mask
from course_pkg.data.translation import BOS, EOS, PAD
from course_pkg.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Transformer,
    count_parameters,
    greedy_translate,
    label_smoothing_loss,
    layer_norm,
    noam_lr,
)

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(params=range(5))
def sizes(request) -> tuple[int, ...]:
    """B, N, M, D_h, H and D_ff, all different; also seeds torch."""
    torch.manual_seed(request.param)
    return tuple(random.Random(request.param).sample(range(2, 12), 6))


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def stir(module: nn.Module) -> nn.Module:
    """Make a module's parameters random, even those that start at zero or one; float64."""
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=1 / math.sqrt(len(parameter)))
    return module


def copied(layer: nn.Module, theirs: nn.Module) -> nn.Module:
    """Copy the weights of one of our layers into one of torch's."""
    attentions = [name for name, _ in layer.named_children() if "attention" in name]
    state = {}
    for ours, name in zip(attentions, ("self_attn", "multihead_attn"), strict=False):
        part = layer.get_submodule(ours)
        state[f"{name}.in_proj_weight"] = torch.cat([part.W_Q.T, part.W_K.T, part.W_V.T])
        state[f"{name}.in_proj_bias"] = torch.cat([part.b_Q, part.b_K, part.b_V])
        state[f"{name}.out_proj.weight"], state[f"{name}.out_proj.bias"] = part.W_O.T, part.b_O
    network = layer.feed_forward
    state |= {"linear1.weight": network.W_1.T, "linear1.bias": network.b_1}
    state |= {"linear2.weight": network.W_2.T, "linear2.bias": network.b_2}
    for n, (gain, bias) in enumerate(zip(layer.gains, layer.biases, strict=True), start=1):
        state |= {f"norm{n}.weight": gain, f"norm{n}.bias": bias}
    theirs = theirs.double()
    theirs.load_state_dict({name: value.detach() for name, value in state.items()})
    return theirs


def test_layer_norm_is_torchs(sizes):
    B, N, D, *_ = sizes
    X, gain, bias = 3 * randn(B, N, D) + 1, randn(D), randn(D)
    for eps in (1e-5, 0.5):
        expected = F.layer_norm(X, (D,), gain, bias, eps)
        torch.testing.assert_close(layer_norm(X, gain, bias, eps), expected, **CLOSE)


def test_feed_forward_is_torchs(sizes):
    B, N, D, D_ff, *_ = sizes
    ours, X = stir(FeedForward(D, D_ff)), randn(B, N, D)
    expected = F.linear(F.relu(F.linear(X, ours.W_1.T, ours.b_1)), ours.W_2.T, ours.b_2)
    torch.testing.assert_close(ours(X), expected, **CLOSE)
    assert FeedForward(D).W_1.shape == (D, 4 * D)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_encoder_layer_is_torchs_with_copied_weights(sizes, pre_norm):
    B, N, _, D_h, H, D_ff = sizes
    D, X = D_h * H, randn(B, N, D_h * H)
    ours = stir(EncoderLayer(D, H, D_ff, pre_norm))
    theirs = nn.TransformerEncoderLayer(
        D, H, D_ff, dropout=0.0, batch_first=True, norm_first=pre_norm
    )
    theirs = copied(ours, theirs)
    lengths = torch.randint(1, N + 1, (B,))
    mask = padding_mask(lengths, N)
    torch.testing.assert_close(ours(X), theirs(X), **CLOSE)
    expected = theirs(X, src_key_padding_mask=~mask[:, 0])
    torch.testing.assert_close(ours(X, mask), expected, **CLOSE)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_decoder_layer_is_torchs_with_copied_weights(sizes, pre_norm):
    B, N, M, D_h, H, D_ff = sizes
    D = D_h * H
    Y, memory = randn(B, M, D), randn(B, N, D)
    ours = stir(DecoderLayer(D, H, D_ff, pre_norm))
    theirs = nn.TransformerDecoderLayer(
        D, H, D_ff, dropout=0.0, batch_first=True, norm_first=pre_norm
    )
    theirs = copied(ours, theirs)
    mask, memory_mask = causal_mask(M), padding_mask(torch.randint(1, N + 1, (B,)), N)
    hidden = ~memory_mask[:, 0]
    expected = theirs(Y, memory, tgt_mask=~mask, memory_key_padding_mask=hidden)
    torch.testing.assert_close(ours(Y, memory, mask, memory_mask), expected, **CLOSE)
    torch.testing.assert_close(ours(Y, memory), theirs(Y, memory), **CLOSE)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_transformer_is_torchs_with_copied_weights(sizes, pre_norm, double):
    B, N, M, D_h, H, D_ff = sizes
    D, V_source, V_target = 2 * D_h * H, 17, 19
    ours = stir(Transformer(V_source, V_target, D, H, 2, D_ff, pre_norm))
    settings = {"dropout": 0.0, "batch_first": True, "norm_first": pre_norm}
    theirs = nn.Transformer(D, H, 2, 2, D_ff, **settings)
    for stack in ("encoder", "decoder"):
        layers = theirs.get_submodule(stack).layers
        for mine, layer in zip(ours.get_submodule(stack), layers, strict=True):
            copied(mine, layer)
    for row, stack in enumerate((theirs.encoder, theirs.decoder)):
        stack.norm = nn.LayerNorm(D) if pre_norm else None
        if pre_norm:
            stack.norm.load_state_dict({"weight": ours.gains[row], "bias": ours.biases[row]})
    lengths = torch.randint(1, N + 1, (B,))
    X, Y = torch.randint(V_source, (B, N)), torch.randint(V_target, (B, M))
    hidden = torch.arange(N) >= lengths[:, None]
    expected = theirs(
        ours.embed(X, ours.source_table),
        ours.embed(Y, ours.target_table),
        tgt_mask=~causal_mask(M),
        src_key_padding_mask=hidden,
        memory_key_padding_mask=hidden,
    )
    torch.testing.assert_close(ours(X, lengths, Y), expected @ ours.output_table.T, **CLOSE)


def test_embeddings_are_scaled_and_know_their_position():
    model, words = Transformer(7, 9, 6, 2, 1), torch.tensor([[3, 3, 5]])
    vectors = model.embed(words, model.source_table) - 6**0.5 * model.source_table[words]
    t = torch.arange(3.0)
    torch.testing.assert_close(vectors[0, :, 0], t.sin())
    torch.testing.assert_close(vectors[0, :, 5], (t / 10000 ** (4 / 6)).cos())


def test_fresh_embeddings_have_unit_variance():
    torch.manual_seed(0)
    model = Transformer(200, 200, 64, 4, 1)
    assert (8 * model.target_table).std().item() == pytest.approx(1, rel=0.03)


def test_one_table_serves_three_times():
    model = Transformer(11, 11, 8, 2, 1, shared=True)
    assert model.source_table is model.target_table is model.output_table
    with pytest.raises(ValueError, match="one table cannot have 11 rows and 12 rows"):
        Transformer(11, 12, 8, 2, 1, shared=True)


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("D_ff", [None, 13])
def test_parameters_are_counted(pre_norm, shared, D_ff):
    arguments = (31, 31 if shared else 37, 12)
    model = Transformer(*arguments, 3, 2, D_ff, pre_norm, shared)
    counts = count_parameters(*arguments, 2, D_ff, pre_norm, shared)
    assert sum(counts.values()) == sum(p.numel() for p in model.parameters())
    networks = (p.numel() for n, p in model.named_parameters() if "feed_forward" in n)
    assert counts["feed_forward"] == sum(networks)


def test_the_base_model_of_the_paper_has_about_65_million_parameters():
    counts = count_parameters(37_000, 37_000, 512, 6, shared=True)
    assert sum(counts.values()) == pytest.approx(65e6, rel=0.05)


def test_learning_rate_is_the_papers():
    rates = [noam_lr(step, 512) for step in range(1, 20_001)]
    assert max(rates) == rates[3999] == pytest.approx(1 / math.sqrt(512 * 4000))
    assert rates[15_999] == pytest.approx(rates[3999] / 2)
    assert rates[99] == pytest.approx(rates[3999] / 40)
    for step, warmup in ((0, 10), (5, 0)):
        with pytest.raises(ValueError, match="must be at least 1"):
            noam_lr(step, 512, warmup)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_is_torchs(sizes, smoothing):
    B, _, M, V, *_ = sizes
    logits, targets = 3 * randn(B, M, V), torch.randint(0, V, (B, M))
    targets[0, 0] = 1
    expected = nn.CrossEntropyLoss(label_smoothing=smoothing, ignore_index=PAD)
    torch.testing.assert_close(
        label_smoothing_loss(logits, targets, smoothing),
        expected(logits.flatten(0, 1), targets.flatten()),
        **CLOSE,
    )


def test_smoothing_must_be_a_share():
    for smoothing in (-0.1, 1):
        with pytest.raises(ValueError, match="smoothing must be at least 0 and less than 1"):
            label_smoothing_loss(torch.zeros(2, 3), torch.ones(2).long(), smoothing)


def test_greedy_translation_is_what_the_model_says_to_its_own_words():
    """Fed its own translation, the model predicts exactly that, position by position."""
    torch.manual_seed(0)
    model = Transformer(23, 29, 16, 4, 2, pre_norm=True).double()
    model.output_table.data[EOS] *= 1.5
    lengths = torch.randint(2, 9, (40,))
    X = torch.randint(4, 23, (40, 8))
    with torch.no_grad():
        Y = greedy_translate(model, X, lengths, 12)
        start = torch.full((40, 1), BOS)
        said = model(X, lengths, torch.cat([start, Y[:, :-1]], dim=1)).argmax(dim=-1)
        alone = greedy_translate(copy.deepcopy(model), X[:1, : lengths[0]], lengths[:1], 12)
    for row, words in zip(Y.tolist(), said.tolist(), strict=True):
        end = row.index(EOS) + 1 if EOS in row else len(row)
        assert row[:end] == words[:end]
        assert set(row[end:]) <= {PAD}
    assert Y[0, : alone.shape[1]].tolist() == alone[0].tolist()
