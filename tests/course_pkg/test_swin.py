"""The references of swin agree with transformers' SwinModel, loops and published numbers."""

import itertools
import random

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import SwinConfig, SwinForImageClassification
from transformers.models.swin import modeling_swin

from course_pkg.attention import MultiHeadAttention
from course_pkg.swin import (
    PatchMerging,
    Swin,
    SwinBlock,
    WindowAttention,
    relative_position_index,
    shifted_window_mask,
    window_attention_cost,
    window_partition,
    window_reverse,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(params=range(5))
def sizes(request) -> tuple[int, int, int, int, int, int]:
    """B, M, windows down, windows across, heads and features of a head; also seeds torch."""
    torch.manual_seed(request.param)
    draw = random.Random(request.param)
    down, across = draw.sample(range(2, 5), 2)
    return draw.randint(1, 3), draw.choice([2, 3, 4, 5]), down, across, draw.randint(1, 3), 4


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def config(M: int, D: int, H: int, **settings) -> SwinConfig:
    return SwinConfig(
        window_size=M,
        embed_dim=D,
        attn_implementation="eager",
        drop_path_rate=0.0,
        **{"num_heads": [H], "depths": [2], **settings},
    )


@pytest.fixture
def float64_softmax(monkeypatch):
    """transformers computes the softmax in float32; let it be as exact as the rest."""
    softmax = nn.functional.softmax

    def exact(X, dim, dtype=None):
        return softmax(X, dim=dim)

    monkeypatch.setattr(modeling_swin.nn.functional, "softmax", exact)


def attention_state(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Translate the state of transformers' SwinAttention into ours."""
    state = {"bias_table": theirs["relative_position_bias.relative_position_bias_table"]}
    for kind in ("weight", "bias"):
        state[f"qkv.{kind}"] = torch.cat([theirs[f"{name}_proj.{kind}"] for name in "qkv"])
        state[f"out.{kind}"] = theirs[f"o_proj.{kind}"]
    return state


def inside(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }


def block_state(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Translate the state of transformers' SwinLayer into ours."""
    attention = attention_state(inside(theirs, "attention."))
    state = {f"attention.{name}": value for name, value in attention.items()}
    names = {"norm_1": "layernorm_before", "norm_2": "layernorm_after"}
    names |= {"expand": "mlp.fc1", "contract": "mlp.fc2"}
    for ours, name in names.items():
        state |= {f"{ours}.{kind}": theirs[f"{name}.{kind}"] for kind in ("weight", "bias")}
    return state


def model_state(theirs: dict[str, torch.Tensor], depths: list[int]) -> dict[str, torch.Tensor]:
    """Translate the state of transformers' SwinForImageClassification into ours."""
    state = {}
    names = {"patches": "swin.embeddings.patch_embeddings.projection"}
    names |= {"patch_norm": "swin.embeddings.norm", "norm": "swin.layernorm", "head": "classifier"}
    for ours, name in names.items():
        state |= {f"{ours}.{kind}": theirs[f"{name}.{kind}"] for kind in ("weight", "bias")}
    for stage, depth in enumerate(depths):
        prefix = f"swin.encoder.layers.{stage}."
        for block in range(depth):
            own = block_state(inside(theirs, f"{prefix}blocks.{block}."))
            state |= {f"stages.{stage}.{block}.{name}": value for name, value in own.items()}
        merging = inside(theirs, f"{prefix}downsample.")
        state |= {f"mergings.{stage}.{name}": value for name, value in merging.items()}
    return state


def randomise(module: nn.Module) -> nn.Module:
    """Give every parameter other values than zeros, ones and tiny numbers."""
    module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    return module


def test_windows_are_transformers_windows(sizes):
    B, M, down, across, H, D_h = sizes
    X = randn(B, M * down, M * across, H * D_h)
    windows = window_partition(X, M)
    expected = modeling_swin.window_partition(X, M)
    torch.testing.assert_close(windows.flatten(0, 1), expected.flatten(1, 2), rtol=0, atol=0)
    size = X.shape[1], X.shape[2]
    assert torch.equal(window_reverse(windows, M, size), X)


def test_windows_hold_what_the_equation_says(sizes):
    B, M, down, across, _, D = sizes
    X = randn(B, M * down, M * across, D)
    windows = window_partition(X, M)
    for i, j, p, q in itertools.product(range(down), range(across), range(M), range(M)):
        given = windows[:, i * across + j, p * M + q]
        assert torch.equal(given, X[:, i * M + p, j * M + q])


@pytest.mark.parametrize("size", [(6, 8), (8, 6), (7, 9)])
def test_maps_that_cannot_be_cut(size):
    with pytest.raises(ValueError, match=f"a map of {size[0]} × {size[1]} cannot be cut"):
        window_partition(randn(1, *size, 2), 4)
    with pytest.raises(ValueError, match="do not make up a map"):
        window_reverse(randn(1, 3, 16, 2), 4, size)


def test_windows_that_make_up_no_such_map():
    with pytest.raises(ValueError, match="5 windows of 16 positions do not make up a map of 8 × 8"):
        window_reverse(randn(1, 5, 16, 2), 4, (8, 8))
    with pytest.raises(ValueError, match="4 windows of 9 positions"):
        window_reverse(randn(1, 4, 9, 2), 4, (8, 8))


@pytest.mark.parametrize("M", range(1, 8))
def test_relative_position_index_is_transformers(M):
    theirs = modeling_swin.SwinRelativePositionBias(1, (M, M))
    index = relative_position_index(M)
    assert torch.equal(index.flatten(), theirs.relative_position_index)
    assert set(index.flatten().tolist()) == set(range((2 * M - 1) ** 2))


def test_window_attention_is_transformers(sizes, float64_softmax):
    B, M, down, across, H, D_h = sizes
    D, N = H * D_h, down * across
    theirs = randomise(modeling_swin.SwinAttention(config(M, D, H), D, H, M))
    ours = WindowAttention(D, H, M).double()
    ours.load_state_dict(attention_state(theirs.state_dict()))
    windows = randn(B, N, M * M, D)
    mask = torch.rand(N, M * M, M * M) < 0.5
    mask |= torch.eye(M * M, dtype=torch.bool)
    added = torch.zeros(mask.shape).double().masked_fill(~mask, -torch.inf)
    for given, expected in (
        (ours(windows, return_weights=True), theirs(windows.flatten(0, 1))),
        (ours(windows, mask, True), theirs(windows.flatten(0, 1), added)),
    ):
        for mine, their in zip(given, expected, strict=True):
            torch.testing.assert_close(mine.flatten(0, 1), their, **CLOSE)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_mask_is_transformers(sizes, shift):
    _, M, down, across, _, _ = sizes
    shift = min(shift, M - 1)
    layer = modeling_swin.SwinLayer(config(M, 4, 1), 4, (M * down, M * across), 1, 0.0, shift)
    theirs = layer.get_attn_mask(M * down, M * across, torch.float64, torch.device("cpu"))
    ours = shifted_window_mask((M * down, M * across), M, shift)
    assert ours.dtype == torch.bool and ours.shape == (down * across, M * M, M * M)
    assert torch.equal(ours, theirs == 0) if shift else ours.all()


@pytest.mark.parametrize("shift", [-1, 4, 5])
def test_mask_refuses_a_shift_of_a_window_or_more(shift):
    with pytest.raises(ValueError, match=f"shift must lie between 0 and 3, got {shift}"):
        shifted_window_mask((8, 8), 4, shift)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_block_is_transformers(sizes, shift, float64_softmax):
    B, M, down, across, H, D_h = sizes
    D, size, shift = H * D_h, (M * down, M * across), min(shift, M - 1)
    theirs = randomise(modeling_swin.SwinLayer(config(M, D, H), D, size, H, 0.0, shift))
    ours = SwinBlock(D, H, M, shift).double()
    ours.load_state_dict(block_state(theirs.state_dict()))
    X = randn(B, *size, D)
    expected, _ = theirs(X.flatten(1, 2), size)
    # transformers adds -100 where we forbid: with these weights exp(-100) is not quite nothing
    torch.testing.assert_close(ours(X).flatten(1, 2), expected, rtol=1e-8, atol=1e-8)


def test_a_map_of_one_window_is_not_shifted(sizes):
    B, M, _, across, H, D_h = sizes
    plain, shifted = (SwinBlock(H * D_h, H, M, shift).double() for shift in (0, M // 2))
    shifted.load_state_dict(plain.state_dict())
    for size in ((M, M), (M, M * across), (M * across, M)):
        X = randn(B, *size, H * D_h)
        assert torch.equal(plain(X), shifted(X))


def test_merging_is_transformers(sizes):
    B, _, h, w, H, D_h = sizes
    D = H * D_h
    theirs = randomise(modeling_swin.SwinPatchMerging(D))
    ours = PatchMerging(D).double()
    ours.load_state_dict(theirs.state_dict())
    X = randn(B, 2 * h, 2 * w, D)
    expected = theirs(X.flatten(1, 2), (2 * h, 2 * w))
    torch.testing.assert_close(ours(X).flatten(1, 2), expected, **CLOSE)


@pytest.mark.parametrize("size", [(3, 4), (4, 3)])
def test_merging_refuses_odd_sides(size):
    with pytest.raises(ValueError, match=f"{size[0]} × {size[1]} cannot be cut into squares"):
        PatchMerging(2)(torch.randn(1, *size, 2))


@pytest.mark.parametrize("side, depths", [(96, [2, 2, 2]), (48, [2, 3]), (24, [4])])
def test_swin_is_transformers_model(side, depths, float64_softmax):
    torch.manual_seed(side)
    M, D, heads = 3, 6, [1, 2, 3][: len(depths)]
    settings = {"image_size": side, "patch_size": 4, "num_channels": 3, "num_labels": 5}
    theirs = SwinForImageClassification(config(M, D, 1, depths=depths, num_heads=heads, **settings))
    randomise(theirs)
    ours = Swin(3, 4, D, tuple(depths), tuple(heads), M, 5).double()
    ours.load_state_dict(model_state(theirs.state_dict(), depths))
    images = randn(2, 3, side, side)
    expected = theirs(images, output_hidden_states=True)
    maps = ours.maps(images)
    last = ours.norm(maps[-1]).flatten(1, 2)
    torch.testing.assert_close(last, theirs.swin(images).last_hidden_state, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(ours(images), expected.logits, rtol=1e-7, atol=1e-7)
    theirs_maps = expected.reshaped_hidden_states[1:]  # after the merging, where there is one
    for X, merging, their in zip(maps, ours.mergings, theirs_maps, strict=False):
        torch.testing.assert_close(merging(X).permute(0, 3, 1, 2), their, rtol=1e-7, atol=1e-7)


def test_swin_takes_maps_that_are_not_square():
    model = Swin(3, 4, 8, (2, 2), (1, 2), 3, 5)
    maps = model.maps(torch.randn(2, 3, 24, 72))
    assert [tuple(X.shape) for X in maps] == [(2, 6, 18, 8), (2, 3, 9, 16)]


def test_without_shift_no_block_is_shifted():
    for shifted in (True, False):
        model = Swin(3, 4, 8, (2, 3), (1, 2), 5, 5, shifted)
        shifts = [[block.shift for block in stage] for stage in model.stages]
        assert shifts == ([[0, 2], [0, 2, 0]] if shifted else [[0, 0], [0, 0, 0]])


def test_swin_refuses_stages_without_heads():
    with pytest.raises(ValueError, match="depths are given for 2 stages, heads for 3"):
        Swin(3, 4, 8, (2, 2), (1, 2, 4), 7, 10)


@pytest.mark.parametrize(
    "D, depths, parameters, giga",
    [
        (96, (2, 2, 6, 2), 28.3, 4.5),
        (96, (2, 2, 18, 2), 49.6, 8.7),
        (128, (2, 2, 18, 2), 87.8, 15.4),
    ],
    ids=["tiny", "small", "base"],
)
def test_published_sizes(D, depths, parameters, giga):
    """Liu et al. 2021, table 1: 29, 50 and 88 M parameters, 4.5, 8.7 and 15.4 G."""
    with torch.device("meta"):
        model = Swin(3, 4, D, depths, tuple(D // 32 * 2**n for n in range(4)), 7, 1000)
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 224, 224))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert round(count / 1e6, 1) == parameters
    assert counter.get_total_flops() / 2e9 == pytest.approx(giga, rel=0.04)


def test_swin_tiny_has_as_many_parameters_as_transformers():
    with torch.device("meta"):
        theirs = SwinForImageClassification(SwinConfig(num_labels=1000))
        ours = Swin(3, 4, 96, (2, 2, 6, 2), (3, 6, 12, 24), 7, 1000)
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert counts == [28_288_354] * 2


def test_cost_is_what_torch_counts(sizes):
    _, M, down, across, H, D_h = sizes
    h, w, D = M * down, M * across, H * D_h
    cost = window_attention_cost(h, w, D, M)
    X = torch.randn(1, h, w, D)
    with FlopCounterMode(display=False) as counter:
        WindowAttention(D, H, M)(window_partition(X, M))
    assert counter.get_total_flops() == 2 * cost["windowed"]
    with FlopCounterMode(display=False) as counter:
        MultiHeadAttention(D, H, bias=True)(X.flatten(1, 2))
    assert counter.get_total_flops() == 2 * cost["global"]
