"""The references of mae agree with transformers and scikit-learn, on random shapes."""

import random

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from transformers import ViTMAEConfig, ViTMAEForPreTraining
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

from course_pkg.mae import (
    MAEDecoder,
    MAEEncoder,
    grid_positions,
    linear_probe,
    mae_loss,
    random_masking,
)
from course_pkg.vit import patchify

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def linear(theirs: dict[str, Tensor], their: str, our: str) -> dict[str, Tensor]:
    """Rename the weight and bias of one part."""
    return {f"{our}.{kind}": theirs[f"{their}.{kind}"] for kind in ("weight", "bias")}


def layer(theirs: dict[str, Tensor], their: str, our: str) -> dict[str, Tensor]:
    """Turn the weights of a transformers layer into those of a ViTLayer."""
    ours = {}
    for x in "QKVO":
        ours[f"{our}.attention.W_{x}"] = theirs[f"{their}.attention.{x.lower()}_proj.weight"].T
        ours[f"{our}.attention.b_{x}"] = theirs[f"{their}.attention.{x.lower()}_proj.bias"]
    names = {"layernorm_before": "norm_1", "layernorm_after": "norm_2"}
    names |= {"mlp.fc1": "expand", "mlp.fc2": "contract"}
    for part, name in names.items():
        ours |= linear(theirs, f"{their}.{part}", f"{our}.{name}")
    return ours


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_mae_is_that_of_transformers(seed, normalise):
    torch.manual_seed(seed)
    B, C, P, side, L, L_dec = random.Random(seed).sample(range(2, 8), 6)
    D, D_dec, H = 12, 8, 4
    config = ViTMAEConfig(
        image_size=side * P,
        patch_size=P,
        num_channels=C,
        hidden_size=D,
        num_attention_heads=H,
        num_hidden_layers=L,
        intermediate_size=4 * D,
        decoder_hidden_size=D_dec,
        decoder_num_attention_heads=H // 2,
        decoder_num_hidden_layers=L_dec,
        decoder_intermediate_size=4 * D_dec,
        layer_norm_eps=1e-6,
        mask_ratio=0.75,
        norm_pix_loss=normalise,
    )
    model = ViTMAEForPreTraining(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 3)
    encoder = MAEEncoder((side * P, side * P), P, C, D, H, L).double()
    decoder = MAEDecoder((side, side), P * P * C, D, D_dec, H // 2, L_dec).double()
    theirs = model.state_dict()
    kernel = theirs["vit.embeddings.patch_embeddings.projection.weight"]  # (D, C, P, P)
    state = {
        "patches.W": kernel.permute(2, 3, 1, 0).flatten(0, 2),
        "patches.b": theirs["vit.embeddings.patch_embeddings.projection.bias"],
        "cls": theirs["vit.embeddings.cls_token"][0, 0],
        "positions": theirs["vit.embeddings.position_embeddings"][0],
    }
    for n in range(L):
        state |= layer(theirs, f"vit.layers.{n}", f"layers.{n}")
    encoder.load_state_dict(state | linear(theirs, "vit.layernorm", "norm"))
    state = {
        "mask_token": theirs["decoder.mask_token"][0, 0],
        "positions": theirs["decoder.decoder_pos_embed"][0],
    }
    for n in range(L_dec):
        state |= layer(theirs, f"decoder.decoder_layers.{n}", f"layers.{n}")
    names = {"decoder_embed": "embed", "decoder_norm": "norm", "decoder_pred": "head"}
    for their, our in names.items():
        state |= linear(theirs, f"decoder.{their}", our)
    decoder.load_state_dict(state)

    images, noise = randn(B, C, side * P, side * P), torch.rand(B, side**2, dtype=torch.float64)
    expected = model(images, noise=noise)
    keep, restore, masked = random_masking(noise)
    predicted = decoder(encoder(images, keep), restore)
    assert torch.equal(restore, expected.ids_restore)
    assert torch.equal(masked, expected.mask.bool())
    torch.testing.assert_close(predicted, expected.logits, **CLOSE)
    loss = mae_loss(predicted, patchify(images, P), masked, normalise)
    torch.testing.assert_close(loss, expected.loss, **CLOSE)


@pytest.mark.parametrize(("h", "w", "D"), [(2, 3, 8), (5, 1, 12)])
def test_grid_positions_are_those_of_transformers(h, w, D):
    theirs = build_2d_sinusoidal_position_embedding(h, w, D)
    halves = theirs.reshape(h * w, 2, 2, D // 4)  # row and column; all sines, then all cosines
    torch.testing.assert_close(grid_positions(h, w, D, 10_000.0), halves.mT.reshape(h * w, D))


def test_grid_positions_refuse_half_a_clock():
    with pytest.raises(ValueError, match="D must be divisible by 4"):
        grid_positions(2, 3, 10)


@pytest.mark.parametrize(("N", "ratio", "visible"), [(49, 0.75, 12), (16, 0.5, 8), (5, 0.0, 5)])
def test_random_masking_hides_that_share_of_every_image(N, ratio, visible):
    noise = torch.rand(7, N, generator=torch.Generator().manual_seed(N))
    keep, restore, masked = random_masking(noise, ratio)
    assert keep.shape == (7, visible)
    assert masked.sum(dim=1).tolist() == [N - visible] * 7
    assert not masked.gather(1, keep).any()
    patches = torch.arange(N).expand(7, N)
    shuffled = torch.cat([keep, patches[masked].reshape(7, -1)], dim=1)
    assert torch.equal(shuffled.gather(1, restore)[~masked], patches[~masked])


def test_every_patch_is_masked_as_often_as_any_other():
    noise = torch.rand(20_000, 16, generator=torch.Generator().manual_seed(0))
    _, _, masked = random_masking(noise)
    share = masked.double().mean(dim=0)  # of 20 000: a standard deviation of 0.003
    assert (share - 0.75).abs().max() < 0.015


def test_random_masking_loses_no_patch_to_rounding():
    for N in range(1, 201):
        for masked in range(N):
            keep, _, _ = random_masking(torch.rand(1, N), masked / N)
            assert keep.shape == (1, N - masked)
    assert random_masking(torch.rand(1, 10), 0.9)[0].shape == (1, 1)
    assert random_masking(torch.rand(1, 100), 0.9)[0].shape == (1, 10)
    assert random_masking(torch.rand(1, 99), 0.9)[0].shape == (1, 9)


@pytest.mark.parametrize("ratio", [1.0, 0.9])
def test_random_masking_refuses_what_leaves_nothing(ratio):
    with pytest.raises(ValueError, match="none of 4 patches visible"):
        random_masking(torch.rand(2, 4), ratio)


@pytest.mark.parametrize("ratio", [-0.5, -0.01])
def test_random_masking_refuses_a_negative_ratio(ratio):
    with pytest.raises(ValueError, match="at least 0"):
        random_masking(torch.rand(2, 49), ratio)


def test_encoder_with_all_patches_in_another_order_gives_the_same_in_that_order():
    torch.manual_seed(0)
    encoder = MAEEncoder((6, 9), 3, 2, 8, 2, 2).double()
    images = randn(4, 2, 6, 9)
    order = torch.stack([torch.randperm(6) for _ in range(4)])
    everything = encoder(images)
    given = encoder(images, order)
    torch.testing.assert_close(given[:, 0], everything[:, 0], **CLOSE)
    expected = everything[torch.arange(4)[:, None], 1 + order]
    torch.testing.assert_close(given[:, 1:], expected, **CLOSE)


@pytest.mark.parametrize("penalty", [1e-3, 0.01, 1.0])
def test_linear_probe_is_scikit_learns(penalty):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 7, generator=generator, dtype=torch.float64) * torch.arange(1, 8)
    features[:, 3] = 2.0  # never varies
    labels = torch.randint(0, 4, (60,), generator=generator)
    new = torch.randn(9, 7, generator=generator, dtype=torch.float64)
    given = linear_probe(features, labels, new, 4, penalty)
    deviation = features.std(dim=0)
    deviation[3] = 1.0
    X, X_new = ((part - features.mean(dim=0)) / deviation for part in (features, new))
    model = LogisticRegression(C=1 / (60 * penalty), tol=1e-10, max_iter=10_000)
    model.fit(X.numpy(), labels.numpy())
    expected = torch.from_numpy(model.predict_proba(X_new.numpy()))
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-4)


def test_linear_probe_in_float32_and_without_gradients_outside():
    generator = torch.Generator().manual_seed(1)
    features, new = torch.randn(40, 5, generator=generator), torch.randn(8, 5, generator=generator)
    labels = torch.arange(40) % 3
    with torch.no_grad():
        given = linear_probe(features, labels, new, 3)
    expected = linear_probe(features.double(), labels, new.double(), 3)
    torch.testing.assert_close(given.double(), expected, rtol=0, atol=1e-4)
    assert not given.requires_grad
