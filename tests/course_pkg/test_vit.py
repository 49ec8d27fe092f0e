"""The references of vit agree with transformers and torch, on random shapes."""

import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification, ViTMAEConfig, ViTMAEForPreTraining
from transformers import ViTModel as TransformersViT

from course_pkg.vit import (
    PatchEmbedding,
    ViT,
    ViTLayer,
    attention_rollout,
    patchify,
    resize_positions,
    unpatchify,
    vit_parameters,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
PUBLISHED = {  # P, D, H, L; millions with 1000 classes as torchvision lists them; in the paper
    "B/16": (16, 768, 12, 12, 86.567656, 86),
    "L/16": (16, 1024, 16, 24, 304.326632, None),
    "L/32": (32, 1024, 16, 24, 306.535400, 307),
    "H/14": (14, 1280, 16, 32, 632.045800, 632),
}


@pytest.fixture(params=range(5))
def sizes(request) -> tuple[int, int, int, int, int]:
    """B, C, P and the height and width of the grid, all different; also seeds torch."""
    torch.manual_seed(request.param)
    return tuple(random.Random(request.param).sample(range(1, 7), 5))


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def settings(size, P: int, C: int, D: int, H: int, L: int) -> dict:
    """The settings of a ViT as transformers names them."""
    return {
        "image_size": size,
        "patch_size": P,
        "num_channels": C,
        "hidden_size": D,
        "num_attention_heads": H,
        "num_hidden_layers": L,
        "intermediate_size": 4 * D,
        "layer_norm_eps": 1e-6,
    }


def converted(theirs: dict[str, Tensor], L: int) -> dict[str, Tensor]:
    """Turn the state of a ViTForImageClassification into that of our ViT."""
    kernel = theirs["vit.embeddings.patch_embeddings.projection.weight"]  # (D, C, P, P)
    ours = {
        "patches.W": kernel.permute(2, 3, 1, 0).flatten(0, 2),
        "patches.b": theirs["vit.embeddings.patch_embeddings.projection.bias"],
        "cls": theirs["vit.embeddings.cls_token"][0, 0],
        "positions": theirs["vit.embeddings.position_embeddings"][0],
    }
    for n in range(L):
        for x in "QKVO":
            name = f"vit.layers.{n}.attention.{x.lower()}_proj"
            ours[f"layers.{n}.attention.W_{x}"] = theirs[f"{name}.weight"].T
            ours[f"layers.{n}.attention.b_{x}"] = theirs[f"{name}.bias"]
    names = {f"layers.{n}.norm_1": f"vit.layers.{n}.layernorm_before" for n in range(L)}
    names |= {f"layers.{n}.norm_2": f"vit.layers.{n}.layernorm_after" for n in range(L)}
    names |= {f"layers.{n}.expand": f"vit.layers.{n}.mlp.fc1" for n in range(L)}
    names |= {f"layers.{n}.contract": f"vit.layers.{n}.mlp.fc2" for n in range(L)}
    for our, their in {**names, "norm": "vit.layernorm", "head": "classifier"}.items():
        ours |= {f"{our}.{kind}": theirs[f"{their}.{kind}"] for kind in ("weight", "bias")}
    return ours


def pair(
    size: tuple[int, int], P: int, C: int, attention: str = "sdpa"
) -> tuple[ViT, ViTForImageClassification]:
    """Make our ViT and transformers', with the same random weights, float64."""
    D, H, L, classes = 12, 3, 2, 5
    config = ViTConfig(
        **settings(size, P, C, D, H, L), num_labels=classes, attn_implementation=attention
    )
    theirs = ViTForImageClassification(config).double().eval()
    for name, parameter in theirs.named_parameters():
        scale = "layernorm" in name and name.endswith("weight")
        nn.init.normal_(parameter, mean=float(scale), std=0.3)
    ours = ViT(size, P, C, D, H, L, classes).double()
    ours.load_state_dict(converted(theirs.state_dict(), L))
    return ours, theirs


def test_patchify_is_torchs_unfold_with_channels_last(sizes):
    B, C, P, h, w = sizes
    images = randn(B, C, h * P, w * P)
    columns = functional.unfold(images, P, stride=P)  # (B, C·P·P, N), channels first
    expected = columns.reshape(B, C, P * P, h * w).permute(0, 3, 2, 1).flatten(2)
    patches = patchify(images, P)
    assert torch.equal(patches, expected)
    assert torch.equal(unpatchify(patches, P, (h * P, w * P)), images)


def test_patchify_is_vit_maes(sizes):
    B, C, P, h, w = sizes
    images = randn(B, C, h * P, h * P)
    mae = ViTMAEForPreTraining(
        ViTMAEConfig(
            **settings(h * P, P, C, 4, 2, 1),
            decoder_hidden_size=4,
            decoder_num_attention_heads=2,
            decoder_num_hidden_layers=1,
            decoder_intermediate_size=8,
        )
    )
    assert torch.equal(patchify(images, P), mae.patchify(images))
    patches = randn(B, h * w, P * P * C)
    expected = mae.unpatchify(patches, (h * P, w * P))
    assert torch.equal(unpatchify(patches, P, (h * P, w * P)), expected)


@pytest.mark.parametrize("height, width", [(6, 7), (7, 6)])
def test_patchify_refuses_a_rest(height, width):
    with pytest.raises(ValueError, match="cannot be cut into patches of 3 × 3"):
        patchify(randn(2, 1, height, width), 3)


@pytest.mark.parametrize("size", [(6, 9), (7, 6), (6, 7)])
def test_unpatchify_refuses_what_does_not_fit(size):
    with pytest.raises(ValueError, match="4 patches of 18 numbers, P = 3, do not make up"):
        unpatchify(randn(2, 4, 18), 3, size)
    with pytest.raises(ValueError, match="4 patches of 20 numbers, P = 3, do not make up"):
        unpatchify(randn(2, 4, 20), 3, (6, 6))


def test_patch_embedding_is_a_strided_convolution(sizes):
    B, C, P, h, w = sizes
    embedding, images = PatchEmbedding(C, P, 11).double(), randn(B, C, h * P, w * P)
    nn.init.normal_(embedding.b)
    expected = functional.conv2d(images, embedding.kernel(), embedding.b, stride=P)
    torch.testing.assert_close(embedding(images), expected.flatten(2).mT, **CLOSE)


def test_vit_layer_is_torchs_pre_norm_layer(sizes):
    B, T, *_ = sizes
    D, H = 12, 3
    ours = ViTLayer(D, H).double()
    theirs = nn.TransformerEncoderLayer(
        D, H, 4 * D, 0.0, "gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    ).double()
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    attention = ours.attention
    state = {
        "self_attn.in_proj_weight": torch.cat([attention.W_Q.T, attention.W_K.T, attention.W_V.T]),
        "self_attn.in_proj_bias": torch.cat([attention.b_Q, attention.b_K, attention.b_V]),
        "self_attn.out_proj.weight": attention.W_O.T,
        "self_attn.out_proj.bias": attention.b_O,
    }
    pairs = {"norm_1": "norm1", "norm_2": "norm2", "expand": "linear1", "contract": "linear2"}
    for our, their in pairs.items():
        own = getattr(ours, our)
        state |= {f"{their}.weight": own.weight, f"{their}.bias": own.bias}
    theirs.load_state_dict(state)
    X = randn(B, T, D)
    Y, A = ours(X)
    torch.testing.assert_close(Y, theirs(X), **CLOSE)
    torch.testing.assert_close(A.sum(dim=-1), torch.ones(B, H, T).double(), **CLOSE)


def test_vit_is_transformers(sizes):
    B, C, P, h, w = sizes
    ours, theirs = pair((h * P, w * P), P, C)
    images = randn(B, C, h * P, w * P)
    logits = theirs(images).logits
    torch.testing.assert_close(ours(images), logits, **CLOSE)
    torch.testing.assert_close(ours(images, return_weights=True)[0], logits, **CLOSE)


def test_vit_looks_where_transformers_does(sizes):
    B, C, P, h, w = sizes
    ours, theirs = pair((h * P, w * P), P, C, "eager")  # which computes its softmax in float32
    images = randn(B, C, h * P, w * P)
    expected = torch.stack(theirs(images, output_attentions=True).attentions)
    torch.testing.assert_close(ours(images, return_weights=True)[1], expected, rtol=0, atol=1e-6)


def test_vit_with_the_mean_has_no_class_token(sizes):
    B, C, P, h, w = sizes
    with_cls, theirs = pair((h * P, w * P), P, C)
    state = with_cls.state_dict()
    del state["cls"]
    state["positions"] = state["positions"][1:]
    ours = ViT((h * P, w * P), P, C, 12, 3, 2, 5, pool="mean").double()
    ours.load_state_dict(state)
    images = randn(B, C, h * P, w * P)
    X = theirs.vit.embeddings(images)[:, 1:]
    for layer in theirs.vit.layers:
        X = layer(X)
    expected = theirs.classifier(theirs.vit.layernorm(X).mean(dim=1))
    torch.testing.assert_close(ours(images), expected, **CLOSE)


def test_vit_refuses_other_sizes_and_pools():
    vit = ViT((6, 9), 3, 2, 8, 2, 1, 4)
    with pytest.raises(ValueError, match=r"for \(6, 9\) pixels, not for \(9, 6\)"):
        vit(torch.zeros(1, 2, 9, 6))
    with pytest.raises(ValueError, match="7 × 9 pixels cannot be cut into 3 × 3"):
        ViT((7, 9), 3, 2, 8, 2, 1, 4)
    with pytest.raises(ValueError, match="pool must be"):
        ViT((6, 9), 3, 2, 8, 2, 1, 4, pool="max")


def test_vit_without_positions_sees_a_set_of_patches(sizes):
    B, C, P, h, w = sizes
    vit, _ = pair((h * P, w * P), P, C)
    images = randn(B, C, h * P, w * P)
    mixed = patchify(images, P)[:, torch.randperm(h * w)]
    mixed = unpatchify(mixed, P, (h * P, w * P))
    nn.init.zeros_(vit.positions)
    torch.testing.assert_close(vit(mixed), vit(images), **CLOSE)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_vit_parameters_counts_what_the_model_has(sizes, pool):
    B, C, P, h, w = sizes
    size, D, L, classes = (h * P, w * P), 12, B, 7
    model = ViT(size, P, C, D, 3, L, classes, pool)
    counted = vit_parameters(size, P, C, D, L, classes, pool)
    for part, count in counted.items():
        names = {"positions": ("positions", "cls")}.get(part, (f"{part}.",))
        own = [p.numel() for name, p in model.named_parameters() if name.startswith(names)]
        assert sum(own) == count, part
    assert sum(counted.values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name):
    P, D, H, L, listed, in_the_paper = PUBLISHED[name]
    with torch.device("meta"):
        ours = ViT((224, 224), P, 3, D, H, L, 1000)
        theirs = TransformersViT(ViTConfig(**settings(224, P, 3, D, H, L)))
    count = sum(p.numel() for p in ours.parameters())
    assert count == sum(vit_parameters((224, 224), P, 3, D, L, 1000).values())
    assert round(count / 1e6, 6) == listed
    # transformers' ViTModel has a pooler in place of the head: D outputs, as in pretraining.
    counted = sum(vit_parameters((224, 224), P, 3, D, L, classes=D).values())
    assert counted == sum(p.numel() for p in theirs.parameters())
    if in_the_paper is not None:
        assert round(counted / 1e6) == in_the_paper


def test_resize_positions_is_transformers():
    torch.manual_seed(0)
    P, old, new = 4, (3, 3), (5, 7)
    ours, theirs = pair((old[0] * P, old[1] * P), P, 2)
    images = randn(2, 2, new[0] * P, new[1] * P)
    larger = ViT((new[0] * P, new[1] * P), P, 2, 12, 3, 2, 5).double()
    state = ours.state_dict()
    state["positions"] = resize_positions(state["positions"], old, new)
    larger.load_state_dict(state)
    expected = theirs(images, interpolate_pos_encoding=True).logits
    torch.testing.assert_close(larger(images), expected, **CLOSE)


def test_resize_positions_keeps_what_is_no_patch(sizes):
    _, extra, _, h, w = sizes
    positions = randn(extra + h * w, 5)
    assert torch.equal(resize_positions(positions, (h, w), (w, h + 1))[:extra], positions[:extra])
    torch.testing.assert_close(resize_positions(positions, (h, w), (h, w)), positions, **CLOSE)
    with pytest.raises(ValueError, match="positions are too few for"):
        resize_positions(positions, (extra + h, w + 1), (h, w))


def test_resize_positions_is_cubic_convolution(sizes):
    """Keys 1981: four neighbours weigh in; beyond the border the outermost row is repeated."""

    def weight(x: float, a: float = -0.75) -> float:
        x = abs(x)
        if x <= 1:
            return (a + 2) * x**3 - (a + 3) * x**2 + 1
        return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0

    def matrix(new: int, old: int) -> Tensor:
        weights = torch.zeros(new, old).double()
        for row in range(new):
            place = (row + 0.5) * old / new - 0.5
            for n in range(int(place // 1) - 1, int(place // 1) + 3):
                weights[row, min(max(n, 0), old - 1)] += weight(place - n)
        return weights

    D, M, h, w, W = sizes
    positions = randn(h * w, D)
    rows, columns = matrix(M, h), matrix(W, w)
    expected = torch.einsum("ip,jq,pqd->ijd", rows, columns, positions.reshape(h, w, D))
    given = resize_positions(positions, (h, w), (M, W))
    torch.testing.assert_close(given, expected.reshape(M * W, D), **CLOSE)


def test_attention_rollout_is_the_sum_over_all_paths(sizes):
    B, H, L, T, _ = sizes
    A = torch.softmax(randn(L, B, H, T, T), dim=-1)
    R = attention_rollout(A)
    mixed = [A[layer].mean(dim=1) / 2 + torch.eye(T).double() / 2 for layer in range(L)]
    expected = torch.eye(T).double().expand(B, T, T)
    for layer in mixed:
        expected = torch.einsum("bij,bjk->bik", layer, expected)
    torch.testing.assert_close(R, expected, **CLOSE)
    torch.testing.assert_close(R.sum(dim=-1), torch.ones(B, T).double(), **CLOSE)
