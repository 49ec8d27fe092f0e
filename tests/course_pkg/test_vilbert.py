"""The references of vilbert agree with torch, LXMERT's and ESMFold's code, and with loops."""

import doctest
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, CLIPConfig, CLIPModel, LxmertConfig
from transformers.models.bert.modeling_bert import BertLayer as TheirLayer
from transformers.models.esm import modeling_esmfold
from transformers.models.lxmert import modeling_lxmert

from course_pkg.bert import BertLayer
from course_pkg.data import regions, scenes
from course_pkg.vilbert import (
    CoAttentionBlock,
    RowAttentionWithPairBias,
    TriangleUpdate,
    ViLBERT,
    VisualEmbeddings,
    agent_aware_attention,
    alignment_loss,
    alignment_score,
    clip_loss,
    lay_out_path,
    masked_multimodal_loss,
    path_selection_loss,
    retrieve,
)

SEEDS = range(3)


def shaken(model: nn.Module) -> nn.Module:
    """Move every weight away from where it starts, biases and norms too; float64."""
    for parameter in model.double().parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.eval()


def sizes(count: int) -> list[int]:
    return (2 + torch.randperm(count + 4)[:count]).tolist()


def first(lengths: torch.Tensor, size: int) -> torch.Tensor:
    return torch.arange(size) < lengths[:, None]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


# Co-attention


def torchs(block: CoAttentionBlock, s: str) -> nn.MultiheadAttention:
    """torch's attention with the weights of one stream."""
    ours = getattr(block, f"attention_{s}")
    other, D = ours.W_K.shape
    theirs = nn.MultiheadAttention(D, ours.H, kdim=other, vdim=other, batch_first=True).double()
    theirs.load_state_dict(
        {
            "q_proj_weight": ours.W_Q.T,
            "k_proj_weight": ours.W_K.T,
            "v_proj_weight": ours.W_V.T,
            "in_proj_bias": torch.cat([ours.b_Q, ours.b_K, ours.b_V]),
            "out_proj.weight": ours.W_O.T,
            "out_proj.bias": ours.b_O,
        }
    )
    return theirs


@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_agrees_with_torchs_attention(seed):
    torch.manual_seed(seed)
    B, T, R, H, a, b = sizes(6)
    block = shaken(CoAttentionBlock(H * a, H * b, H))
    t, v = drawn(B, T, H * a), drawn(B, R, H * b)
    words = first(torch.randint(1, T + 1, (B,)), T)
    shown = first(torch.randint(1, R + 1, (B,)), R)
    *given, A_t, A_v = block(t, v, words, shown)
    expected = []
    for s, X, memory, real, A in (("t", t, v, shown, A_t), ("v", v, t, words, A_v)):
        Y, weights = torchs(block, s)(
            X, memory, memory, key_padding_mask=~real, average_attn_weights=False
        )
        torch.testing.assert_close(A, weights)
        X = getattr(block, f"norm_{s}")(X + Y)
        inner = F.gelu(getattr(block, f"expand_{s}")(X))
        expected.append(
            getattr(block, f"last_norm_{s}")(X + getattr(block, f"contract_{s}")(inner))
        )
    torch.testing.assert_close(given, expected)


def copied(block: CoAttentionBlock, s: str, H: int) -> nn.ModuleDict:
    """LXMERT's cross-attention and network with the weights of one stream."""
    ours = getattr(block, f"attention_{s}")
    config = LxmertConfig(
        hidden_size=len(ours.W_Q), num_attention_heads=H, intermediate_size=4 * len(ours.W_Q)
    )
    parts = nn.ModuleDict(
        {
            "look": modeling_lxmert.LxmertCrossAttentionLayer(config),
            "expand": modeling_lxmert.LxmertIntermediate(config),
            "contract": modeling_lxmert.LxmertOutput(config),
        }
    ).double()
    state = {"look.output.dense.weight": ours.W_O.T, "look.output.dense.bias": ours.b_O}
    for name, x in {"query": "Q", "key": "K", "value": "V"}.items():
        state[f"look.att.{name}.weight"] = getattr(ours, f"W_{x}").T
        state[f"look.att.{name}.bias"] = getattr(ours, f"b_{x}")
    names = {
        "look.output.LayerNorm": "norm",
        "expand.dense": "expand",
        "contract.dense": "contract",
        "contract.LayerNorm": "last_norm",
    }
    for theirs, mine in names.items():
        for kind in ("weight", "bias"):
            state[f"{theirs}.{kind}"] = getattr(getattr(block, f"{mine}_{s}"), kind)
    parts.load_state_dict(state)
    return parts.eval()


def additive(real: torch.Tensor) -> torch.Tensor:
    """The mask as transformers adds it to the scores."""
    return torch.zeros(real.shape, dtype=torch.float64).masked_fill(~real, -1e30)[:, None, None]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_agrees_with_lxmerts_where_both_streams_have_one_size(seed):
    torch.manual_seed(seed)
    B, T, R, H, D_h = sizes(5)
    block = shaken(CoAttentionBlock(H * D_h, H * D_h, H))
    t, v = drawn(B, T, H * D_h), drawn(B, R, H * D_h)
    words = first(torch.randint(1, T + 1, (B,)), T)
    shown = first(torch.randint(1, R + 1, (B,)), R)
    given = block(t, v, words, shown)
    for n, (s, X, memory, real) in enumerate((("t", t, v, shown), ("v", v, t, words))):
        theirs = copied(block, s, H)
        X, A = theirs["look"](X, memory, additive(real), output_attentions=True)
        torch.testing.assert_close(given[n], theirs["contract"](theirs["expand"](X), X))
        torch.testing.assert_close(given[2 + n], A)


# The model


def their_layer(layer: BertLayer) -> nn.Module:
    """A layer of transformers' BERT with our weights."""
    D, H = len(layer.norm_1.weight), layer.attention.H
    config = BertConfig(hidden_size=D, num_attention_heads=H, intermediate_size=4 * D)
    config._attn_implementation = "eager"
    theirs = TheirLayer(config).double()
    state = {
        "attention.output.dense.weight": layer.attention.W_O.T,
        "attention.output.dense.bias": layer.attention.b_O,
    }
    for name, x in {"query": "Q", "key": "K", "value": "V"}.items():
        state[f"attention.self.{name}.weight"] = getattr(layer.attention, f"W_{x}").T
        state[f"attention.self.{name}.bias"] = getattr(layer.attention, f"b_{x}")
    names = {
        "attention.output.LayerNorm": layer.norm_1,
        "intermediate.dense": layer.expand,
        "output.dense": layer.contract,
        "output.LayerNorm": layer.norm_2,
    }
    for name, part in names.items():
        state |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
    theirs.load_state_dict(state)
    return theirs.eval()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_model_agrees_with_transformers_layers_put_together(seed):
    torch.manual_seed(seed)
    B, T, R, F_, V, H, D_h = sizes(7)
    D, L = H * D_h, 2
    model = shaken(ViLBERT(V, T + 1, F_, D, D, H, 1, L))
    tokens = torch.randint(0, V, (B, T))
    words = first(torch.randint(1, T + 1, (B,)), T)
    shown = first(torch.randint(1, R + 1, (B,)), R)
    features, corner = drawn(B, R, F_), torch.rand(B, R, 2, dtype=torch.float64) / 2
    boxes = torch.cat([corner, 2 * corner], dim=2)
    t, v, A = model(tokens, words, features, boxes, shown, return_weights=True)

    X, Y = model.text(tokens), model.visual(features, boxes, shown)
    with_img = F.pad(shown, (1, 0), value=True)
    X = their_layer(model.alone[0])(X, additive(words))
    for n in range(L):
        new = []
        for s, own, other, real in (("t", X, Y, with_img), ("v", Y, X, words)):
            theirs = copied(model.blocks[n], s, H)
            own, weights = theirs["look"](own, other, additive(real), output_attentions=True)
            new.append(theirs["contract"](theirs["expand"](own), own))
            if s == "t":
                torch.testing.assert_close(A[n], weights)
        X = their_layer(model.text_layers[n])(new[0], additive(words))
        Y = their_layer(model.visual_layers[n])(new[1], additive(with_img))
    torch.testing.assert_close(t, X)
    torch.testing.assert_close(v, Y)


def test_regions_in_another_order_give_the_same_vectors_in_that_order():
    torch.manual_seed(0)
    model = shaken(ViLBERT(20, 9, 6, 8, 12, 2, 1, 2))
    tokens, words = torch.randint(0, 20, (3, 9)), torch.ones(3, 9, dtype=torch.bool)
    features, boxes = drawn(3, 5, 6), torch.rand(3, 5, 4, dtype=torch.float64)
    shown, order = torch.ones(3, 5, dtype=torch.bool), torch.randperm(5)
    t, v = model(tokens, words, features, boxes, shown)
    same_t, other_v = model(tokens, words, features[:, order], boxes[:, order], shown)
    torch.testing.assert_close(same_t, t)
    torch.testing.assert_close(other_v[:, 1:], v[:, 1:][:, order])


def test_visual_embeddings_of_one_whole_region_say_the_same_as_img():
    torch.manual_seed(0)
    embeddings = shaken(VisualEmbeddings(5, 8))
    boxes = torch.tensor([[[0.0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4]]], dtype=torch.float64)
    v = embeddings(drawn(1, 2, 5), boxes, torch.tensor([[True, False]]))
    torch.testing.assert_close(v[:, 0], v[:, 1])


# Losses and retrieval


@pytest.mark.parametrize("seed", SEEDS)
def test_the_score_is_torchs_bilinear_form_of_the_pooled_vectors(seed):
    torch.manual_seed(seed)
    B, T, R, D, D_t, D_v = sizes(6)
    t, v = drawn(B, T, D_t), drawn(B, R, D_v)
    W_t, b_t, W_v, b_v = drawn(D, D_t), drawn(D), drawn(D, D_v), drawn(D)
    w, b = drawn(D), drawn(1)[0]
    pooled = [F.linear(X[:, 0], W, c).relu() for X, W, c in ((t, W_t, b_t), (v, W_v, b_v))]
    expected = F.bilinear(*pooled, torch.diag(w)[None], b[None])[:, 0]
    torch.testing.assert_close(alignment_score(t, v, W_t, b_t, W_v, b_v, w, b), expected)


def test_the_alignment_loss_is_torchs():
    torch.manual_seed(0)
    scores, match = 5 * drawn(50), torch.rand(50) < 0.3
    expected = F.binary_cross_entropy_with_logits(scores, match.double())
    torch.testing.assert_close(alignment_loss(scores, match), expected)
    wrong = alignment_loss(torch.tensor([1e4, -1e4]), torch.tensor([False, True]))
    assert wrong.item() == pytest.approx(1e4)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_masked_loss_is_torchs_on_what_was_hidden(seed):
    torch.manual_seed(seed)
    B, T, V, R, C = sizes(5)
    match = torch.arange(B) % 2 == 0
    words, targets = drawn(B, T, V), torch.randint(0, V, (B, T))
    targets[:, 1:] = torch.where(torch.rand(B, T - 1) < 0.5, targets[:, 1:], -100)
    logits, chosen = drawn(B, R, C), torch.rand(B, R) < 0.5
    chosen[0, 0] = True
    p = F.one_hot(torch.randint(0, C, (B, R)), C).double()
    p = torch.where(torch.rand(B, R, 1) < 0.5, p, torch.softmax(drawn(B, R, C), dim=-1))
    expected = F.cross_entropy(words[match].flatten(0, 1), targets[match].flatten())
    asked = chosen & match[:, None]
    q = torch.distributions.Categorical(logits=logits[asked])
    expected += torch.distributions.kl_divergence(
        torch.distributions.Categorical(p[asked]), q
    ).mean()
    torch.testing.assert_close(
        masked_multimodal_loss(words, targets, logits, p, chosen, match), expected
    )


def test_recall_is_torchs_topk_where_there_are_no_ties():
    torch.manual_seed(0)
    scores = drawn(40, 40)
    for k in (1, 5, 10, 40):
        best = scores.topk(k, dim=1).indices
        expected = (best == torch.arange(40)[:, None]).any(dim=1).double().mean().item()
        assert retrieve(scores, k) == pytest.approx(expected)
    assert retrieve(torch.zeros(40, 40), 39) == 0
    for k in (0, 41):
        with pytest.raises(ValueError, match="between 1 and 40"):
            retrieve(scores, k)


def transformers_clip() -> tuple[CLIPModel, object]:
    """Transformers' CLIP, tiny and random, and what it says of five pairs."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"vocab_size": 11, "intermediate_size": 9, "max_position_embeddings": 7, **sizes}
    vision = {"image_size": 6, "patch_size": 3, "intermediate_size": 9, **sizes}
    theirs = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=6))
    tokens = torch.randint(0, 11, (5, 7))
    return theirs, shaken(theirs)(tokens, drawn(5, 3, 6, 6), return_loss=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_contrastive_loss_is_that_of_transformers_clip(seed):
    torch.manual_seed(seed)
    theirs, out = transformers_clip()
    pictures, captions = ((0.1 + torch.rand(5, 1)) * x for x in (out.image_embeds, out.text_embeds))
    ours = clip_loss(pictures, captions, theirs.logit_scale)
    torch.testing.assert_close(ours, out.loss)
    assert ours > 0.1


def test_pictures_and_captions_of_different_shapes_are_not_compared():
    for shape in ((4, 5), (3, 6), (1, 5)):
        with pytest.raises(ValueError, match="shapes must agree, got"):
            clip_loss(drawn(3, 5), drawn(*shape), drawn())


# Paths


@pytest.mark.parametrize("seed", SEEDS)
def test_a_path_is_laid_out_as_a_loop_does(seed):
    torch.manual_seed(seed)
    B, P, R, F_ = sizes(4)
    features, boxes = drawn(B, P, R, F_), torch.rand(B, P, R, 4, dtype=torch.float64)
    real = torch.rand(B, P, R) < 0.5
    wide, places, shown = lay_out_path(features, boxes, real)
    for b in range(B):
        for p in range(P):
            for r in range(R):
                top, left, bottom, right = boxes[b, p, r].tolist()
                expected = torch.tensor(
                    [top, (p + left) / P, bottom, (p + right) / P], dtype=torch.float64
                )
                n = p * R + r
                torch.testing.assert_close(places[b, n], expected, rtol=1e-10, atol=1e-10)
                assert torch.equal(wide[b, n], features[b, p, r])
                assert shown[b, n] == real[b, p, r]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_path_selection_loss_is_that_of_a_categorical_distribution(seed):
    torch.manual_seed(seed)
    B, K = sizes(2)
    scores, right = 3 * drawn(B, K), torch.randint(0, K, (B,))
    paths = (torch.rand(B, K) < 0.5).scatter(1, right[:, None], True)
    losses = []
    for row, k, there in zip(scores, right, paths, strict=True):
        choice = torch.distributions.Categorical(logits=row[there])
        losses.append(-choice.log_prob(there[:k].sum()))
    expected = torch.stack(losses).mean()
    given = path_selection_loss(scores, right, paths)
    torch.testing.assert_close(given, expected, rtol=1e-10, atol=1e-10)
    paths[0], right[0] = torch.arange(K) != 0, 0
    with pytest.raises(ValueError, match="must be among the paths"):
        path_selection_loss(scores, right, paths)


# Agents, and pairs of residues

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.mark.parametrize("seed", SEEDS)
def test_agent_aware_attention_agrees_with_a_double_loop(seed):
    torch.manual_seed(seed)
    B, N, D_X, D_Q, D_V = sizes(5)
    X, agents = drawn(B, N, D_X), torch.randint(0, 3, (B, N))
    own, other = (drawn(D_X, D_Q), drawn(D_X, D_Q)), (drawn(D_X, D_Q), drawn(D_X, D_Q))
    W_V, mask = drawn(D_X, D_V), torch.rand(N, N) < 0.7
    Y, A = agent_aware_attention(X, agents, *own, *other, W_V, mask)
    for b in range(B):
        for i in range(N):
            weights = torch.zeros(N, dtype=torch.float64)
            for j in range(N):
                W_Q, W_K = own if agents[b, i] == agents[b, j] else other
                E = (W_Q.T @ X[b, i]) @ (W_K.T @ X[b, j]) / math.sqrt(D_Q)
                weights[j] = math.exp(E) if mask[i, j] else 0
            weights = weights / weights.sum() if mask[i].any() else weights
            torch.testing.assert_close(A[b, i], weights, **CLOSE)
            torch.testing.assert_close(Y[b, i], W_V.T @ X[b].T @ weights, **CLOSE)


def test_agent_aware_attention_is_torchs_where_the_kinds_agree():
    torch.manual_seed(0)
    X, agents = drawn(2, 5, 4), torch.tensor([0, 1, 0, 1, 1])
    W_Q, W_K, W_V = drawn(4, 3), drawn(4, 3), drawn(4, 6)
    Y, _ = agent_aware_attention(X, agents, W_Q, W_K, W_Q, W_K, W_V)
    expected = F.scaled_dot_product_attention(X @ W_Q, X @ W_K, X @ W_V)
    torch.testing.assert_close(Y, expected, **CLOSE)
    with pytest.raises(ValueError, match="5 vectors need as many agents, got 1"):
        agent_aware_attention(X, agents[:1], W_Q, W_K, W_Q, W_K, W_V)


def renamed(model: nn.Module, names: dict[str, str]) -> dict[str, torch.Tensor]:
    """Our weights under the names of another implementation."""
    parts = ((name.split("."), value) for name, value in model.state_dict().items())
    return {f"{names[part]}.{kind}": value for (part, kind), value in parts if part in names}


@pytest.mark.parametrize("outgoing", [True, False])
def test_the_triangle_update_is_esmfolds(outgoing):
    torch.manual_seed(0)
    B, N, D = 2, 5, 7
    ours = shaken(TriangleUpdate(D, D, outgoing))
    config = SimpleNamespace(pairwise_state_dim=D)
    theirs = modeling_esmfold.EsmFoldTriangleMultiplicativeUpdate(config, outgoing).double()
    names = {
        "norm": "layer_norm_in",
        "norm_out": "layer_norm_out",
        "a": "linear_a_p",
        "b": "linear_b_p",
        "gate_a": "linear_a_g",
        "gate_b": "linear_b_g",
        "out": "linear_z",
        "gate": "linear_g",
    }
    theirs.load_state_dict(renamed(ours, names))
    z = drawn(B, N, N, D)
    torch.testing.assert_close(ours(z), theirs(z), **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_triangle_update_agrees_with_a_triple_loop(seed):
    torch.manual_seed(seed)
    B, N, D_z, D = sizes(4)
    for outgoing in (True, False):
        update = shaken(TriangleUpdate(D_z, D, outgoing))
        z = drawn(B, N, N, D_z)
        x = update.norm(z)
        a = update.gate_a(x).sigmoid() * update.a(x)
        b = update.gate_b(x).sigmoid() * update.b(x)
        sums = torch.zeros(B, N, N, D, dtype=torch.float64)
        for i in range(N):
            for j in range(N):
                for k in range(N):
                    left, right = (a[:, i, k], b[:, j, k]) if outgoing else (a[:, k, i], b[:, k, j])
                    sums[:, i, j] = sums[:, i, j] + left * right
        expected = update.gate(x).sigmoid() * update.out(update.norm_out(sums))
        torch.testing.assert_close(update(z), expected, **CLOSE)


def test_the_triangle_update_respects_the_triangles_symmetry():
    torch.manual_seed(0)
    outgoing, incoming = (shaken(TriangleUpdate(3, 4, out)) for out in (True, False))
    z, order = drawn(2, 6, 6, 3), torch.randperm(6)
    update = outgoing(z)
    moved = outgoing(z[:, order][:, :, order])
    torch.testing.assert_close(moved, update[:, order][:, :, order], **CLOSE)
    names = {name: name for name in ("norm", "norm_out", "out", "gate")}
    names |= {"a": "b", "b": "a", "gate_a": "gate_b", "gate_b": "gate_a"}
    incoming.load_state_dict(renamed(outgoing, names))
    turned = incoming(z.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(turned, update, **CLOSE)
    incoming.load_state_dict(outgoing.state_dict())  # with a and b as they were, it is another
    assert not torch.allclose(incoming(z.transpose(1, 2)).transpose(1, 2), update)


def test_row_attention_is_esmfolds_with_the_pairs_for_a_bias():
    torch.manual_seed(0)
    B, S, N, D_m, D_z, H, D_h = 2, 3, 5, 7, 4, 2, 6
    ours = shaken(RowAttentionWithPairBias(D_m, D_z, H * D_h, H))
    theirs = modeling_esmfold.EsmFoldAttention(D_m, D_m, D_m, D_h, H).double()
    names = {
        "query": "linear_q",
        "key": "linear_k",
        "value": "linear_v",
        "gate": "linear_g",
        "out": "linear_o",
    }
    theirs.load_state_dict(renamed(ours, names))
    m, z = drawn(B, S, N, D_m), drawn(B, N, N, D_z)
    bias = ours.pair(ours.norm_z(z)).permute(0, 3, 1, 2)[:, None]
    X = ours.norm_m(m)
    torch.testing.assert_close(ours(m, z)[0], theirs(X, X, biases=[bias]), **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_row_attention_agrees_with_a_loop(seed):
    torch.manual_seed(seed)
    B, S, N, H = (2 + torch.randperm(4)).tolist()
    D_m, D_z, D_h = (6 + torch.randperm(4)[:3]).tolist()
    attention = shaken(RowAttentionWithPairBias(D_m, D_z, H * D_h, H))
    m, z = drawn(B, S, N, D_m), drawn(B, N, N, D_z)
    update, A = attention(m, z)
    for b in range(B):
        bias = attention.pair(attention.norm_z(z[b]))  # (N, N, H)
        for s in range(S):
            x = attention.norm_m(m[b, s])
            q, k, v = (
                f(x).view(N, H, D_h) for f in (attention.query, attention.key, attention.value)
            )
            for i in range(N):
                found = []
                for h in range(H):
                    E = [q[i, h] @ k[j, h] / math.sqrt(D_h) + bias[i, j, h] for j in range(N)]
                    a = torch.stack(E).softmax(0)
                    torch.testing.assert_close(A[b, s, h, i], a, **CLOSE)
                    found.append(a @ v[:, h])
                gate = attention.gate(x[i]).sigmoid()
                expected = attention.out(gate * torch.cat(found))
                torch.testing.assert_close(update[b, s, i], expected, **CLOSE)


# Regions


def test_the_doctest_of_regions_holds():
    results = doctest.testmod(regions)
    assert results.attempted and not results.failed


@pytest.fixture(scope="module")
def some():
    drawn_scenes = scenes.draw(300, generator=3)
    return drawn_scenes, regions.detect(drawn_scenes, generator=4)


def test_the_named_objects_are_among_the_real_regions(some):
    pictures, found = some
    for n, items in enumerate(pictures.objects):
        for item, place in zip(items, found.objects[n].tolist(), strict=True):
            assert found.real[n, place]
            box = found.boxes[n, place] * pictures.images.shape[-1]
            assert box.round().int().tolist() == list(item.region)


def test_false_alarms_keep_away_from_objects_and_their_number_varies(some):
    pictures, found = some
    assert set(found.real.sum(dim=1).tolist()) == {4, 5, 6, 7}
    places = torch.arange(found.real.shape[1])
    for n in range(len(pictures)):
        own = found.boxes[n, found.objects[n]]
        alarms = found.real[n] & ~torch.isin(places, found.objects[n])
        overlaps = regions.overlap(found.boxes[n, alarms][:, None], own[None])
        assert (overlaps <= regions.OVERLAP + 1e-6).all()


def test_objects_stand_at_every_place_of_the_list_alike(some):
    _, found = some
    small = found.real.sum(dim=1) == 4
    counts = torch.bincount(found.objects[small].flatten(), minlength=4)[:4]
    expected = counts.sum().item() / 4
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)


def test_features_are_those_of_the_pixels_and_nothing_else(some):
    pictures, found = some
    assert found.features.shape[2] == regions.FEATURES
    assert (found.features[~found.real] == 0).all() and (found.boxes[~found.real] == 0).all()
    S = pictures.images.shape[-1]
    whole = torch.tensor([[[0.0, 0, 1, 1]]])
    plain = torch.full((1, 3, S, S), 0.5)
    pixels = regions._thumbnails(plain, whole)
    torch.testing.assert_close(pixels, torch.full((1, 1, 36, 3), 0.5))
    ramp = torch.linspace(0, 1, S)[None, None, :, None].expand(1, 3, S, S)
    rows = regions._thumbnails(ramp, whole)[0, 0, :, 0].unflatten(0, (6, 6))
    assert (rows.diff(dim=0) > 0).all() and rows.diff(dim=1).abs().max() < 1e-6


def test_the_detector_names_the_colour_of_nearly_every_object(some):
    pictures, found = some
    torch.testing.assert_close(found.classes.sum(dim=2), torch.ones(found.real.shape))
    right = total = 0
    for n, items in enumerate(pictures.objects):
        for item, place in zip(items, found.objects[n].tolist(), strict=True):
            colours = found.classes[n, place, 1:]
            colour = next(word for word in item.name.split() if word in scenes.COLOURS)
            right += regions.CLASSES[1 + colours.argmax().item()] == colour
            total += 1
    assert right / total > 0.95


def test_overlap_is_intersection_over_union():
    a, b = torch.tensor([0.0, 0, 2, 2]), torch.tensor([1.0, 1, 3, 3])
    assert regions.overlap(a, b).item() == pytest.approx(1 / 7)
    assert regions.overlap(a, a).item() == 1
    assert regions.overlap(a, a + 5).item() == 0


def test_regions_come_from_the_generator_alone():
    pictures = scenes.draw(5, generator=0)
    runs = [regions.detect(pictures, torch.Generator().manual_seed(1)) for _ in range(2)]
    for name in ("features", "boxes", "real", "classes", "objects"):
        assert torch.equal(getattr(runs[0], name), getattr(runs[1], name))
    with pytest.raises(ValueError, match="fewest"):
        regions.detect(pictures, 0, fewest=3, most=2)
