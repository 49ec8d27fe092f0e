"""The references of positions agree with transformers, torch and closed forms, float64."""

import math
import random

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from course_pkg.attention import MultiHeadAttention, causal_mask
from course_pkg.data.order import symbol_back
from course_pkg.positions import (
    LearnedPositions,
    RotaryAttention,
    interpolate_positions,
    linear_positions,
    rope_rotate,
    shaw_relative_attention,
    sinusoidal_positions,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
SINGLE = {"rtol": 1e-5, "atol": 1e-5}  # where angles are computed in float32


@pytest.fixture(params=range(5))
def sizes(request) -> tuple[int, int, int, int]:
    """B, H, T and half of D_h, all different; also seeds torch."""
    torch.manual_seed(request.param)
    return tuple(random.Random(request.param).sample(range(1, 10), 4))


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def llama(D_h: int, H: int, base: float) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=H * D_h,
        num_attention_heads=H,
        num_key_value_heads=H,
        head_dim=D_h,
        rope_parameters={"rope_type": "default", "rope_theta": base},
        attn_implementation="eager",
    )


@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_rope_is_llamas(sizes, base):
    B, H, T, half = sizes
    Q, K = randn(B, H, T, 2 * half).float(), randn(B, H, T, 2 * half).float()
    positions = torch.randint(0, 40, (T,))
    cos, sin = LlamaRotaryEmbedding(llama(2 * half, H, base))(Q, positions[None])
    for given, expected in zip((Q, K), apply_rotary_pos_emb(Q, K, cos, sin), strict=True):
        torch.testing.assert_close(rope_rotate(given, positions, base), expected, **SINGLE)


def test_rotary_attention_is_llamas(sizes):
    B, H, T, half = sizes
    config = llama(2 * half, H, 100.0)
    theirs = LlamaAttention(config, layer_idx=0).eval()
    D = H * 2 * half
    ours = RotaryAttention(D, H, base=100.0)
    with torch.no_grad():
        for name in "QKVO":
            getattr(ours, f"W_{name}").copy_(getattr(theirs, f"{name.lower()}_proj").weight.T)
    X, mask = torch.randn(B, T, D), causal_mask(T)
    bias = torch.zeros(T, T).masked_fill(~mask, -math.inf)[None, None]
    angles = LlamaRotaryEmbedding(config)(X, torch.arange(T)[None])
    expected, weights = theirs(X, angles, bias)
    Y, A = ours(X, mask, return_weights=True)
    torch.testing.assert_close(Y, expected, **SINGLE)
    torch.testing.assert_close(A, weights, **SINGLE)


def test_rotary_attention_at_one_place_is_multi_head_attention(sizes):
    B, H, _, half = sizes
    D = H * 2 * half
    rotary = RotaryAttention(D, H).double()
    plain = MultiHeadAttention(D, H).double()
    plain.load_state_dict(rotary.state_dict())
    X = randn(B, 1, D)
    torch.testing.assert_close(rotary(X), plain(X), **CLOSE)


def test_rotary_scores_depend_on_the_offset_alone(sizes):
    _, _, T, half = sizes
    q, k = randn(2 * half).expand(T, -1), randn(2 * half).expand(T, -1)
    scores = rope_rotate(q) @ rope_rotate(k).T
    for offset in range(-T + 1, T):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), **CLOSE)
    later = rope_rotate(q, torch.arange(T) + 7.5) @ rope_rotate(k, torch.arange(T) + 7.5).T
    torch.testing.assert_close(later, scores, **CLOSE)


def test_sinusoids_are_complex_exponentials_and_steps_are_rotations(sizes):
    _, _, T, half = sizes
    D, k = 2 * half, 3
    P = sinusoidal_positions(T + k, D).double()
    omega = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    hands = torch.exp(1j * torch.arange(T + k)[:, None] * omega)
    torch.testing.assert_close(P[:, 0::2], hands.imag, **SINGLE)
    torch.testing.assert_close(P[:, 1::2], hands.real, **SINGLE)
    blocks = [
        torch.tensor([[math.cos(k * w), math.sin(k * w)], [-math.sin(k * w), math.cos(k * w)]])
        for w in omega.tolist()
    ]
    torch.testing.assert_close(P[:-k] @ torch.block_diag(*blocks).double().T, P[k:], **SINGLE)


@pytest.mark.parametrize("k", [0, 1, 2, 4])
def test_shaw_is_a_double_loop(sizes, k):
    B, H, T, half = sizes
    D_Q, D_V = 2 * half, half + 1
    Q, K, V = randn(B, H, T, D_Q), randn(B, H, T, D_Q), randn(B, H, T, D_V)
    R_K, R_V = randn(2 * k + 1, D_Q), randn(2 * k + 1, D_V)
    mask = causal_mask(T)
    E = torch.full((B, H, T, T), -math.inf, dtype=torch.float64)
    for i in range(T):
        for j in range(i + 1):
            row = R_K[max(j - i, -k) + k]
            E[:, :, i, j] = (Q[:, :, i] * (K[:, :, j] + row)).sum(-1) / D_Q**0.5
    A = E.softmax(-1)
    expected = torch.zeros(B, H, T, D_V, dtype=torch.float64)
    for i in range(T):
        for j in range(i + 1):
            expected[:, :, i] += A[:, :, i, j, None] * (V[:, :, j] + R_V[max(j - i, -k) + k])
    Y, weights = shaw_relative_attention(Q, K, V, R_K, R_V, mask)
    torch.testing.assert_close(weights, A, **CLOSE)
    torch.testing.assert_close(Y, expected, **CLOSE)


def test_shaw_does_not_care_where_a_sequence_begins(sizes):
    B, H, T, half = sizes
    late, D = 3, 2 * half
    Q, K, V = (randn(B, H, late + T, D) for _ in range(3))
    R_K, R_V = randn(5, D), randn(5, D)
    mask = (torch.arange(late + T) >= late).expand(late + T, -1)
    Y, _ = shaw_relative_attention(Q, K, V, R_K, R_V, mask)
    heads = (tensor[:, :, late:] for tensor in (Q, K, V))
    expected, _ = shaw_relative_attention(*heads, R_K, R_V)
    torch.testing.assert_close(Y[:, :, late:], expected, **CLOSE)


@pytest.mark.parametrize("new", [1, 2, 7, 24])
def test_interpolation_is_torchs(sizes, new):
    rows, columns, _, D = sizes
    P = randn(rows, D)
    expected = functional.interpolate(P.T[None], size=new, mode="linear")[0].T
    torch.testing.assert_close(interpolate_positions(P, (new,)), expected, **CLOSE)
    P = randn(rows, columns, D)
    size = (new, columns + 2)
    expected = functional.interpolate(P.permute(2, 0, 1)[None], size=size, mode="bilinear")
    torch.testing.assert_close(
        interpolate_positions(P, size), expected[0].permute(1, 2, 0), **CLOSE
    )


def test_interpolation_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"has 2 axes, got \(6,\)"):
        interpolate_positions(randn(3, 4, 5), (6,))


def test_linear_positions_count():
    assert linear_positions(4, 2).tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert linear_positions(3, 1, normalise=True).tolist() == [[0], [0.5], [1]]
    assert linear_positions(1, 2, normalise=True).tolist() == [[0, 0]]


def test_learned_positions_add_their_first_rows_and_end():
    torch.manual_seed(0)
    learned = LearnedPositions(T_max=5, D=3)
    X = torch.randn(2, 4, 3)
    torch.testing.assert_close(learned(X), X + learned.P[:4])
    with pytest.raises(ValueError, match="the table has 5 positions, the sequence 6"):
        learned(torch.zeros(1, 6, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoidal_positions(3, 5), "D must be even"),
        (lambda: rope_rotate(torch.zeros(3, 5)), "must come in pairs, got 5"),
        (lambda: RotaryAttention(6, 4)(torch.zeros(1, 2, 6)), "cannot be shared equally"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("back", [1, 3])
def test_symbol_back_asks_for_an_earlier_symbol(back):
    x, y = symbol_back(50, 12, 0, back=back, symbols=5)
    assert x.shape == y.shape == (50, 12)
    assert (y[:, :back] == -100).all()
    assert torch.equal(y[:, back:], x[:, :-back])
    assert torch.equal(x.unique(), torch.arange(5))


def test_symbol_back_is_seeded_and_draws_anew_from_a_generator():
    assert torch.equal(symbol_back(4, 9, 1)[0], symbol_back(4, 9, 1)[0])
    assert not torch.equal(symbol_back(4, 9, 1)[0], symbol_back(4, 9, 2)[0])
    generator = torch.Generator().manual_seed(1)
    first = symbol_back(4, 9, generator)[0]
    assert torch.equal(first, symbol_back(4, 9, 1)[0])
    assert not torch.equal(first, symbol_back(4, 9, generator)[0])


def test_symbols_are_evenly_distributed_and_independent():
    x, y = symbol_back(2000, 20, 0)
    counts = torch.bincount(x.flatten(), minlength=8) / x.numel()
    torch.testing.assert_close(counts, torch.full((8,), 1 / 8), rtol=0, atol=0.01)
    agreement = (x[:, 3:] == y[:, 3:]).float().mean().item()
    assert agreement == pytest.approx(1 / 8, abs=0.01)


@pytest.mark.parametrize("options", [{"B": 0}, {"T": 3}, {"back": 0}, {"symbols": 1}])
def test_symbol_back_refuses_what_makes_no_task(options):
    with pytest.raises(ValueError, match="must be at least 1"):
        symbol_back(**{"B": 2, "T": 9, "generator": 0, **options})
