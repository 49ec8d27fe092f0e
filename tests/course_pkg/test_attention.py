"""The references of attention agree with torch, float64, on random shapes of different sizes."""

import math
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from course_pkg.attention import (
    MultiHeadAttention,
    SelfAttention,
    attention_cost,
    causal_mask,
    masked_softmax,
    merge_heads,
    padding_mask,
    scaled_dot_attention,
    soft_lookup,
    split_heads,
)

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
attend = F.scaled_dot_product_attention


@pytest.fixture(params=range(5))
def sizes(request) -> tuple[int, ...]:
    """B, N_Q, N_X, D_X, D_Q and D_V, all different; also seeds torch."""
    torch.manual_seed(request.param)
    return tuple(random.Random(request.param).sample(range(2, 14), 6))


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def test_soft_lookup_is_a_posterior_under_gaussians(sizes):
    _, _, N, D, _, _ = sizes
    q, X = randn(D), randn(N, D)
    for temperature in (0.3, 1, 5.0):
        covariance = temperature * torch.eye(D, dtype=torch.float64)
        rows = torch.distributions.MultivariateNormal(X, covariance)
        expected = torch.softmax(rows.log_prob(q), dim=0)
        y, a = soft_lookup(q, X, temperature)
        torch.testing.assert_close(a, expected, **CLOSE)
        torch.testing.assert_close(y, torch.einsum("n,nd->d", expected, X), **CLOSE)


def test_soft_lookup_has_the_covariance_as_its_slope(sizes):
    _, _, N, D, _, _ = sizes
    q, X = randn(D), randn(N, D)
    _, a = soft_lookup(q, X, 2.0)
    slope = torch.autograd.functional.jacobian(lambda q: soft_lookup(q, X, 2.0)[0], q)
    torch.testing.assert_close(slope, torch.cov(X.T, aweights=a, correction=0) / 2, **CLOSE)


@pytest.mark.parametrize("temperature", [0, -0.5])
def test_soft_lookup_refuses_a_temperature_that_is_none(temperature):
    with pytest.raises(ValueError, match=f"temperature must be positive, got {temperature}"):
        soft_lookup(torch.zeros(3), torch.zeros(2, 3), temperature)


def test_scaled_dot_attention_is_torchs(sizes):
    B, N_Q, N_X, H, D_Q, D_V = sizes
    Q, K, V = randn(B, H, N_Q, D_Q), randn(B, H, N_X, D_Q), randn(B, H, N_X, D_V)
    Y, A = scaled_dot_attention(Q, K, V)
    torch.testing.assert_close(Y, attend(Q, K, V), **CLOSE)
    one_hot = torch.eye(N_X, dtype=torch.float64).expand(B, H, N_X, N_X)
    torch.testing.assert_close(A, attend(Q, K, one_hot), **CLOSE)


def test_scaled_dot_attention_refuses_to_broadcast():
    K, V = torch.zeros(2, 3), torch.zeros(2, 4)
    with pytest.raises(ValueError, match="queries have 1 features, keys have 3"):
        scaled_dot_attention(torch.zeros(5, 1), K, V)
    with pytest.raises(ValueError, match="there are 2 keys and 1 values"):
        scaled_dot_attention(torch.zeros(5, 3), K, V[:1])


def test_self_attention_is_torchs_on_projections(sizes):
    B, N, _, D_X, D_Q, D_V = sizes
    X, own = randn(B, N, D_X), SelfAttention(D_X, D_Q, D_V).double()
    expected = attend(X @ own.W_Q, X @ own.W_K, X @ own.W_V)
    torch.testing.assert_close(own(X)[0], expected, **CLOSE)


@pytest.mark.parametrize("build", [SelfAttention, MultiHeadAttention])
def test_fresh_projections_keep_the_variance(build):
    torch.manual_seed(0)
    layer = (
        MultiHeadAttention(256, 4, D_X=64) if build is MultiHeadAttention else build(64, 256, 256)
    )
    for name, W in layer.named_parameters():
        assert (torch.randn(100, len(W)) @ W).std().item() == pytest.approx(1, rel=0.05), name


def test_self_attention_is_permutation_equivariant_to_rounding(sizes):
    B, _, N, _, D_h, H = sizes
    X, order = randn(B, N, H * D_h), torch.randperm(N)
    single = SelfAttention(H * D_h, D_h, H).double()
    multi = MultiHeadAttention(H * D_h, H).double()
    for function in (lambda X: single(X)[0], multi):
        torch.testing.assert_close(function(X[:, order]), function(X)[:, order], **CLOSE)


def test_masks_are_torchs(sizes):
    B, T, past, _, _, _ = sizes
    later = nn.Transformer.generate_square_subsequent_mask(past + T).isinf()
    assert torch.equal(causal_mask(T), ~later[:T, :T])
    assert torch.equal(causal_mask(T, past), ~later[past:])
    lengths = torch.randint(0, T + 1, (B,))
    padded = nn.utils.rnn.pad_sequence([torch.ones(T), *(torch.ones(n) for n in lengths)], True)
    assert torch.equal(padding_mask(lengths, T)[:, 0], padded[1:].bool())
    assert padding_mask(lengths, T).shape == (B, 1, T)


def test_masked_softmax_is_torchs_attention_under_a_mask(sizes):
    B, N_Q, N_X, D, _, _ = sizes
    Q, K, V = randn(B, N_Q, D), randn(B, N_X, D), randn(B, N_X, D)
    mask = torch.rand(B, N_Q, N_X) < 0.4
    mask[0, 0] = False  # torch gives zeros for such a row, too
    A = masked_softmax(Q @ K.mT / math.sqrt(D), mask)
    torch.testing.assert_close(A @ V, attend(Q, K, V, attn_mask=mask), **CLOSE)
    torch.testing.assert_close(A.sum(dim=-1), mask.any(dim=-1).double(), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masked_softmax_has_no_nan_in_any_type(dtype):
    E = torch.full((2, 3), -50.0, dtype=dtype, requires_grad=True)
    mask = torch.tensor([[False, False, False], [True, False, True]])
    A = masked_softmax(E, mask)
    assert A.tolist() == [[0, 0, 0], [0.5, 0, 0.5]]
    A.square().sum().backward()
    assert E.grad.isfinite().all()


def test_heads_are_split_and_merged(sizes):
    B, T, H, D_h, _, _ = sizes
    X = randn(B, T, H * D_h)
    heads = split_heads(X, H)
    assert heads.shape == (B, H, T, D_h)
    torch.testing.assert_close(heads, torch.stack(X.tensor_split(H, dim=2), dim=1))
    assert torch.equal(merge_heads(heads), X)
    with pytest.raises(ValueError, match=f"{H * D_h + 1} features cannot be shared equally"):
        split_heads(randn(B, T, H * D_h + 1), H)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_multi_head_attention_is_torchs(sizes, bias, cross):
    B, N_Q, N_X, D_X, D_h, H = sizes
    D = H * D_h
    ours = MultiHeadAttention(D, H, D_X if cross else None, bias).double()
    theirs = nn.MultiheadAttention(
        D, H, bias=bias, kdim=D_X if cross else D, vdim=D_X if cross else D, batch_first=True
    ).double()
    names = {"out_proj.weight": ours.W_O.T}
    if cross:
        parts = {"q": ours.W_Q, "k": ours.W_K, "v": ours.W_V}
        names |= {f"{part}_proj_weight": W.T for part, W in parts.items()}
    else:
        names["in_proj_weight"] = torch.cat([ours.W_Q.T, ours.W_K.T, ours.W_V.T])
    if bias:
        for b in (ours.b_Q, ours.b_K, ours.b_V, ours.b_O):
            nn.init.normal_(b)
        names["in_proj_bias"] = torch.cat([ours.b_Q, ours.b_K, ours.b_V])
        names["out_proj.bias"] = ours.b_O
    theirs.load_state_dict({name: W.detach() for name, W in names.items()})
    X = randn(B, N_Q, D)
    memory = randn(B, N_X, D_X) if cross else X
    N = memory.shape[1]
    masks = [
        None,
        causal_mask(max(N_Q, N))[:N_Q, :N],
        padding_mask(torch.randint(1, N + 1, (B,)), N),
    ]
    for mask in masks:
        Y, A = ours(X, memory if cross else None, mask, return_weights=True)
        hidden = None
        if mask is not None:
            hidden = ~mask.expand(B, N_Q, N).repeat_interleave(H, dim=0)
        expected_Y, expected_A = theirs(
            X, memory, memory, attn_mask=hidden, average_attn_weights=False
        )
        torch.testing.assert_close(Y, expected_Y, **CLOSE)
        torch.testing.assert_close(A, expected_A, **CLOSE)


def test_a_query_without_keys_gives_the_output_bias():
    layer = MultiHeadAttention(6, 2, bias=True)
    nn.init.normal_(layer.b_O)
    Y = layer(torch.randn(3, 4, 6), mask=padding_mask(torch.tensor([4, 0, 2]), 4))
    torch.testing.assert_close(Y[1], layer.b_O.expand(4, 6))


@pytest.mark.parametrize(("T", "D", "k"), [(7, 5, 3), (5, 8, 5), (2, 3, 7), (20, 6, 9)])
def test_costs_are_what_torch_counts(T, D, k):
    X, W = torch.zeros(T, D), torch.zeros(D, D)
    attention = SelfAttention(D, D, D)
    runs = {
        "rnn": lambda: [row[None] @ W + row[None] @ W for row in X],
        "convolution": lambda: F.conv1d(X.T[None], torch.zeros(D, D, k), padding=k // 2),
        "self-attention": lambda: attention(X),
    }
    costs = attention_cost(T, D, k)
    for name, run in runs.items():
        with FlopCounterMode(display=False) as counter:
            run()
        assert counter.get_total_flops() == 2 * costs[name]["multiply_adds"], name
    _, A = attention(X)
    assert costs["self-attention"]["memory"] == 4 * X.numel() + A.numel()


@pytest.mark.parametrize(("T", "k"), [(2, 3), (6, 3), (6, 5), (7, 5), (8, 5), (30, 9)])
def test_path_length_is_how_far_a_gradient_comes(T, k):
    X = torch.zeros(1, 1, T, requires_grad=True)
    costs = attention_cost(T, 4, k)
    Y, layers = X, 0
    while not layers or torch.autograd.grad(Y[0, 0, -1], X, retain_graph=True)[0][0, 0, 0] == 0:
        Y, layers = F.conv1d(Y, torch.ones(1, 1, k), padding=k // 2), layers + 1
    assert costs["convolution"]["path_length"] == layers
    assert costs["rnn"]["path_length"] == T
    assert costs["self-attention"]["path_length"] == 1


@pytest.mark.parametrize("k", [-1, 1, 2, 4])
def test_cost_refuses_a_convolution_without_middle_or_neighbours(k):
    with pytest.raises(ValueError, match=f"k must be odd and at least 3, got {k}"):
        attention_cost(8, 4, k)
