"""The references of linear_attention agree with loops, with each other, and with transformers."""

import math
import random
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn import functional as F
from transformers import Mamba2Config, Mamba2Model, MambaConfig, MambaModel, RwkvConfig, RwkvModel
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from course_pkg.attention import merge_heads, split_heads
from course_pkg.linear_attention import (
    HybridDecoder,
    TokenMixer,
    chunked_scan,
    delta_rule,
    discretise,
    gated_recurrence,
    linear_attention,
    parallel_scan,
    recurrent_linear_attention,
    rwkv_time_mixing,
    selective_state_space,
    short_convolution,
    state_bytes,
)
from course_pkg.lstm import LSTM


def close(given, expected, tolerance=1e-10):
    torch.testing.assert_close(given, expected, rtol=tolerance, atol=tolerance)


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


def rand(*shape):
    return torch.rand(shape, dtype=torch.float64)


@pytest.fixture(params=range(5))
def sizes(request):
    """B, H, T, D and D_V, all different; also seeds torch."""
    torch.manual_seed(request.param)
    return tuple(random.Random(request.param).sample(range(2, 9), 5))


def inputs(B, H, T, D, D_V):
    return randn(B, H, T, D), randn(B, H, T, D), randn(B, H, T, D_V)


@contextmanager
def in_double():
    """Let transformers compute in float64 what it computes in float32."""
    with patch.object(torch.Tensor, "float", lambda self: self.double()):
        yield


# Linear attention


@pytest.mark.parametrize("normalised", [True, False])
def test_all_forms_of_linear_attention_are_the_double_loop(sizes, normalised):
    Q, K, V = inputs(*sizes)
    B, H, T, _, D_V = sizes
    expected = torch.zeros(B, H, T, D_V, dtype=torch.float64)
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (Q, K))
    for t in range(T):
        total = torch.zeros(B, H, dtype=torch.float64)
        for s in range(t + 1):
            a = (phi_q[:, :, t] * phi_k[:, :, s]).sum(dim=-1)
            expected[:, :, t] += a[..., None] * V[:, :, s]
            total += a
        if normalised:
            expected[:, :, t] /= total[..., None]
    close(linear_attention(Q, K, V, normalised), expected)
    given, (S, z) = recurrent_linear_attention(Q, K, V, normalised=normalised)
    close(given, expected)
    close(S, torch.einsum("bhti,bhtj->bhij", phi_k, V))
    close(z, phi_k.sum(dim=2))
    if not normalised:
        ones = torch.ones(1, dtype=torch.float64)
        close(gated_recurrence(phi_q, phi_k, V, ones)[0], expected)
        close(chunked_scan(phi_q, phi_k, V, 0 * Q[..., 0], chunk=3)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lower", [50.0, 1000.0])
def test_where_no_features_are_left_nothing_comes_out(dtype, lower):
    Q, K, V = (part.to(dtype) for part in inputs(2, 3, 6, 4, 5))
    K[:, :, :2] -= lower
    Q[:, :, -1] -= lower
    expected = torch.zeros_like(V)
    expected[:, :, 2:-1] = linear_attention(*(part[:, :, 2:-1] for part in (Q, K, V)))
    Q, K, V = (part.requires_grad_() for part in (Q, K, V))
    for Y in (linear_attention(Q, K, V), recurrent_linear_attention(Q, K, V)[0]):
        torch.testing.assert_close(Y, expected)
        gradients = torch.autograd.grad(Y.square().sum(), (Q, K, V))
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_recurrent_forms_go_on_from_their_states(sizes):
    B, H, T, D, D_V = sizes
    T += 3
    Q, K, V = inputs(B, H, T, D, D_V)
    beta, g = rand(B, H, T), -rand(B, H, T)

    def recurrent(start, end, state):
        cut = [part[:, :, start:end] for part in (Q, K, V)]
        return recurrent_linear_attention(*cut, state)

    def delta(start, end, state):
        return delta_rule(*(part[:, :, start:end] for part in (Q, K, V, beta)), state)

    def gated(start, end, state):
        cut = [part[:, :, start:end] for part in (Q, K, V, g.exp()[..., None])]
        return gated_recurrence(*cut, state)

    def chunked(start, end, state):
        cut = [part[:, :, start:end] for part in (Q, K, V, g)]
        return chunked_scan(*cut, state, chunk=2)

    for run in (recurrent, delta, gated, chunked):
        whole, end = run(0, T, None)
        outputs, state = [], None
        for start, stop in ((0, 2), (2, 3), (3, T)):
            Y, state = run(start, stop, state)
            outputs.append(Y)
        close(torch.cat(outputs, dim=2), whole)
        close(state, end)


# The delta rule


def test_delta_rule_is_the_product_of_householder_like_matrices(sizes):
    Q, K, V = inputs(*sizes)
    B, H, T, D, D_V = sizes
    beta = rand(B, H, T)
    Y, S = delta_rule(Q, K, V, beta)
    for b in range(B):
        for h in range(H):
            M = torch.zeros(D, D_V, dtype=torch.float64)
            for t in range(T):
                k, v, share = K[b, h, t], V[b, h, t], beta[b, h, t]
                erase = torch.eye(D, dtype=torch.float64) - share * torch.outer(k, k)
                M = erase @ M + share * torch.outer(k, v)
                close(Y[b, h, t], M.T @ Q[b, h, t])
            close(S[b, h], M)


def test_delta_rule_is_that_of_transformers(sizes):
    B, H, T, D, D_V = sizes
    Q, K, V = inputs(*sizes)
    K, beta, S = F.normalize(K, dim=-1), rand(B, H, T), randn(B, H, D, D_V)
    theirs, end = torch_recurrent_gated_delta_rule(
        *(part.transpose(1, 2) for part in (Q * math.sqrt(D), K, V, 0 * beta, beta)),
        initial_state=S,
        output_final_state=True,
    )
    Y, S = delta_rule(Q, K, V, beta, S)
    close(Y.float(), theirs.transpose(1, 2).float(), 1e-4)
    close(S.float(), end.float(), 1e-4)


def test_delta_rule_replaces_what_addition_piles_up():
    torch.manual_seed(0)
    D, D_V, T = 4, 3, 9
    keys = torch.eye(D, dtype=torch.float64)[torch.randint(0, D, (T,))][None, None]
    V = randn(1, 1, T, D_V)
    Y, _ = delta_rule(keys, keys, V, torch.ones(1, 1, T, dtype=torch.float64))
    close(Y, V)  # what was written last under this key
    piled, _ = gated_recurrence(keys, keys, V, torch.ones(1, dtype=torch.float64))
    assert (piled - V).abs().max() > 0.5


# Gates


def test_gated_recurrence_is_a_weighted_sum_over_the_past(sizes):
    Q, K, V = inputs(*sizes)
    B, H, T, D, _ = sizes
    for shape in ((B, H, T, D), (B, H, T, 1), (H, 1, 1), (D,), (1,)):
        decay = rand(*shape)
        full = decay.expand(B, H, T, D)
        expected = torch.zeros_like(V)
        for t in range(T):
            for s in range(t + 1):
                left = full[:, :, s + 1 : t + 1].prod(dim=2)
                a = (Q[:, :, t] * left * K[:, :, s]).sum(dim=-1, keepdim=True)
                expected[:, :, t] += a * V[:, :, s]
        close(gated_recurrence(Q, K, V, decay)[0], expected)


def test_retention_is_that_of_the_paper(sizes):
    """Sun et al. 2023, eq. 5: (Q Kᵀ ⊙ D) V with D_nm = γ^(n - m)."""
    Q, K, V = inputs(*sizes)
    H, T = sizes[1:3]
    gamma = 1 - 2.0 ** (-5 - torch.arange(H, dtype=torch.float64))
    n = torch.arange(T)
    D = (gamma[:, None, None] ** (n[:, None] - n)).tril()
    expected = (Q @ K.mT * D) @ V
    close(gated_recurrence(Q, K, V, gamma[:, None, None])[0], expected)
    g = gamma.log()[:, None].expand(Q.shape[:3])
    close(chunked_scan(Q, K, V, g, chunk=2)[0], expected)


def test_the_cell_of_an_lstm_is_a_gated_recurrence():
    """Every cell is a head with a state of one number."""
    torch.manual_seed(0)
    B, T, D, H = 3, 7, 4, 5
    lstm, X = LSTM(D, H).double(), randn(B, T, D)
    outputs, (_, c_T) = lstm(X)
    before = torch.cat([torch.zeros(B, 1, H), outputs[:, :-1]], dim=1)
    i, f, o, g = (torch.cat([before, X], dim=2) @ lstm.W.T + lstm.b).chunk(4, dim=2)
    i, f, g = (part.mT[..., None] for part in (i.sigmoid(), f.sigmoid(), g.tanh()))  # (B, H, T, 1)
    c, S = gated_recurrence(torch.ones_like(i), i, g, f)
    close(o.sigmoid() * c[..., 0].mT.tanh(), outputs)
    close(S[..., 0, 0], c_T)


# State spaces


def test_discretisation_is_the_matrix_exponential():
    """Van Loan: exp of [[A, k], [0, 0]] Δ holds Ā and K̄, for the whole diagonal matrix A."""
    torch.manual_seed(0)
    B, T, D, N = 2, 3, 4, 5
    delta, A, K = rand(B, T, D), -rand(D, N) * 3, randn(B, T, N)
    decay, write = discretise(delta, A, K)
    for b in range(B):
        for t in range(T):
            for d in range(D):
                block = torch.zeros(N + 1, N + 1, dtype=torch.float64)
                block[:N, :N], block[:N, N] = A[d].diag(), K[b, t]
                both = torch.matrix_exp(block * delta[b, t, d])
                close(decay[b, t, d], both[:N, :N].diagonal())
                close(write[b, t, d], both[:N, N])


def test_discretisation_of_slow_rates_keeps_its_digits():
    delta, A, K = torch.tensor([[[0.5]]]), torch.tensor([[-1e-7]]), torch.ones(1, 1, 1)
    _, write = discretise(delta, A, K)
    assert write.item() == pytest.approx(0.5, rel=1e-6)
    _, first_order = discretise(delta, torch.tensor([[-3.0]]), K, exact=False)
    assert first_order.item() == 0.5


def test_selective_state_space_is_the_scan_and_the_gated_recurrence(sizes):
    B, _, T, D, N = sizes
    X, delta, A = randn(B, T, D), rand(B, T, D), -rand(D, N) * 2
    K, Q, skip, h = randn(B, T, N), randn(B, T, N), randn(D), randn(B, D, N)
    Y, end = selective_state_space(X, delta, A, K, Q, skip, h)
    a, k = discretise(delta, A, K, exact=False)
    b = k * X[..., None]
    b[:, 0] += a[:, 0] * h
    states = parallel_scan(a, b)
    close((states * Q[:, :, None]).sum(dim=-1) + skip * X, Y)
    close(states[:, -1], end)
    heads = [part.transpose(1, 2) for part in (k, a)]  # every channel is a head
    every = Q[:, None].expand(B, D, T, N)
    V = X.mT[..., None]
    given, S = gated_recurrence(every, heads[0], V, heads[1], h[..., None])
    close(given[..., 0].mT + skip * X, Y)
    close(S[..., 0], end)


@pytest.mark.parametrize("T", [1, 2, 3, 7, 8, 9, 31])
def test_the_scan_is_the_loop_and_torchs(T):
    torch.manual_seed(T)
    a, b = rand(2, T, 3, 5), randn(2, T, 3, 5)
    a[:, T // 2] = 0
    h, states = torch.zeros(2, 3, 5).double(), []
    for t in range(T):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    given = parallel_scan(a, b)
    close(given, torch.stack(states, dim=1))

    def joined(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    _, theirs = associative_scan(joined, (a, b), dim=1, combine_mode="generic")
    close(given, theirs)


def test_the_scan_rounds_as_a_tree_does():
    ones = torch.ones(1, 1024, 1, dtype=torch.bfloat16)
    given = parallel_scan(ones, ones)[0, :, 0].double()
    torch.testing.assert_close(given, torch.arange(1.0, 1025).double(), rtol=0.02, atol=0)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 100])
def test_chunks_of_any_size_give_the_recurrence(sizes, chunk):
    B, H, T, D, D_V = sizes
    T += 4
    Q, K, V = inputs(B, H, T, D, D_V)
    g, S = -2 * rand(B, H, T), randn(B, H, D, D_V)
    expected = gated_recurrence(Q, K, V, g.exp()[..., None], S)
    given = chunked_scan(Q, K, V, g, S, chunk)
    close(given[0], expected[0])
    close(given[1], expected[1])


def test_chunks_survive_decay_that_is_strong():
    torch.manual_seed(0)
    Q, K, V = (part.requires_grad_() for part in inputs(1, 2, 40, 3, 4))
    g = (-100 * rand(1, 2, 40)).requires_grad_()
    Y, S = chunked_scan(Q, K, V, g, chunk=40)
    close(Y, gated_recurrence(Q, K, V, g.exp()[..., None])[0])
    (Y.sum() + S.sum()).backward()
    assert all(part.grad.isfinite().all() for part in (Q, K, V, g))


def test_chunks_are_those_of_mamba_2():
    torch.manual_seed(0)
    B, T, H, P, N, chunk = 2, 11, 3, 5, 7, 4
    X, delta, A = randn(B, T, H, P), rand(B, T, H), -rand(H)
    K, Q = randn(B, T, H, N), randn(B, T, H, N)
    with in_double():
        theirs, end = mamba2_chunk_scan(X, delta, A, K, Q, chunk, return_final_states=True)
    K = K * delta[..., None]
    heads = (part.transpose(1, 2) for part in (Q, K, X, delta * A))
    Y, S = chunked_scan(*heads, chunk=chunk)
    close(Y.transpose(1, 2), theirs)
    close(S.mT, end)


# RWKV


def test_rwkv_is_its_equation(sizes):
    B, _, T, D, _ = sizes
    R, K, V, w, u = randn(B, T, D), 2 * randn(B, T, D), randn(B, T, D), rand(D), randn(D)
    Y, _ = rwkv_time_mixing(R, K, V, w, u)
    for t in range(T):
        top, bottom = (u + K[:, t]).exp() * V[:, t], (u + K[:, t]).exp()
        for s in range(t):
            a = (K[:, s] - (t - 1 - s) * w).exp()
            top, bottom = top + a * V[:, s], bottom + a
        close(Y[:, t], torch.sigmoid(R[:, t]) * top / bottom)
    first, state = rwkv_time_mixing(R[:, :1], K[:, :1], V[:, :1], w, u)
    rest, _ = rwkv_time_mixing(R[:, 1:], K[:, 1:], V[:, 1:], w, u, state)
    close(torch.cat([first, rest], dim=1), Y)


def test_rwkv_is_finite_for_large_keys():
    torch.manual_seed(0)
    R, K, V = randn(2, 6, 3), 1e4 * randn(2, 6, 3), randn(2, 6, 3)
    inputs = [part.requires_grad_() for part in (R, K, V, rand(3), randn(3))]
    Y, _ = rwkv_time_mixing(*inputs)
    assert (Y.abs() <= V.abs().amax()).all()
    Y.sum().backward()
    assert all(part.grad.isfinite().all() for part in inputs)


# Published models, with our recurrence in place of theirs


class OurRwkv(nn.Module):
    """RWKV-4's time mixing with the weights of transformers'."""

    def __init__(self, theirs):
        super().__init__()
        self.theirs = theirs

    def forward(self, X, state=None, use_cache=False):
        its = self.theirs
        before = F.pad(X, (0, 0, 1, -1))

        def mixed(name):
            mix = getattr(its, f"time_mix_{name}")
            return getattr(its, name)(mix * X + (1 - mix) * before)

        projected = mixed("receptance"), mixed("key"), mixed("value")
        Y, _ = rwkv_time_mixing(*projected, its.time_decay.exp(), its.time_first)
        return its.output(Y), state


class OurMamba(nn.Module):
    """Mamba's mixer with the weights of transformers'."""

    def __init__(self, theirs):
        super().__init__()
        self.theirs = theirs

    def forward(self, X, **_):
        its = self.theirs
        X, gate = its.in_proj(X).chunk(2, dim=-1)
        X, _ = short_convolution(X, its.conv1d.weight[:, 0])
        X = F.silu(X + its.conv1d.bias)
        rank, N = its.time_step_rank, its.ssm_state_size
        low, K, Q = its.x_proj(X).split([rank, N, N], dim=-1)
        delta = F.softplus(its.dt_proj(low))
        Y, _ = selective_state_space(X, delta, -its.A_log.exp(), K, Q, its.D)
        return its.out_proj(Y * F.silu(gate))


class OurMamba2(nn.Module):
    """Mamba-2's mixer with the weights of transformers'."""

    def __init__(self, theirs, chunk):
        super().__init__()
        self.theirs, self.chunk = theirs, chunk

    def forward(self, X, **_):
        its = self.theirs
        sizes = [its.intermediate_size, its.conv_dim, its.num_heads]
        gate, X, raw = its.in_proj(X).split(sizes, dim=-1)
        X, _ = short_convolution(X, its.conv1d.weight[:, 0])
        X = F.silu(X + its.conv1d.bias)
        shared = its.n_groups * its.ssm_state_size
        X, K, Q = X.split([its.intermediate_size, shared, shared], dim=-1)
        V = split_heads(X, its.num_heads)
        K, Q = (
            split_heads(part, its.n_groups).repeat_interleave(its.num_heads // its.n_groups, dim=1)
            for part in (K, Q)
        )
        delta = F.softplus(raw + its.dt_bias).mT  # (B, H, T)
        g = -its.A_log.exp()[:, None] * delta
        Y, _ = chunked_scan(Q, delta[..., None] * K, V, g, chunk=self.chunk)
        Y = merge_heads(Y + its.D[:, None, None] * V)
        return its.out_proj(its.norm(Y, gate))


def shaken(model):
    """Draw all parameters of a model anew, around what they are."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.double().eval()


@pytest.mark.parametrize("state_size, rank, expand, width", [(3, 2, 2, 4), (5, 1, 3, 2)])
def test_mamba_is_that_of_transformers(state_size, rank, expand, width):
    config = MambaConfig(
        vocab_size=11,
        hidden_size=6,
        state_size=state_size,
        num_hidden_layers=2,
        expand=expand,
        conv_kernel=width,
        time_step_rank=rank,
    )
    model = shaken(MambaModel(config))
    tokens = torch.randint(0, 11, (3, 9))
    with torch.no_grad(), in_double():
        expected = model(tokens, use_cache=False).last_hidden_state
        for layer in model.layers:
            layer.mixer = OurMamba(layer.mixer)
        close(model(tokens, use_cache=False).last_hidden_state, expected, 1e-6)


@pytest.mark.parametrize("heads, groups, chunk", [(4, 2, 4), (2, 1, 3)])
def test_mamba_2_is_that_of_transformers(heads, groups, chunk):
    config = Mamba2Config(
        vocab_size=11,
        hidden_size=8,
        state_size=5,
        num_hidden_layers=2,
        expand=2,
        num_heads=heads,
        head_dim=16 // heads,
        n_groups=groups,
        chunk_size=chunk,
    )
    model = shaken(Mamba2Model(config))
    tokens = torch.randint(0, 11, (3, 10))
    with torch.no_grad(), in_double():
        expected = model(tokens, use_cache=False).last_hidden_state
        for layer in model.layers:
            layer.mixer = OurMamba2(layer.mixer, chunk + 2)
        close(model(tokens, use_cache=False).last_hidden_state, expected, 1e-6)


@pytest.mark.parametrize("D, inner", [(6, 6), (4, 7)])
def test_rwkv_is_that_of_transformers(D, inner):
    config = RwkvConfig(
        vocab_size=11,
        hidden_size=D,
        attention_hidden_size=inner,
        num_hidden_layers=2,
        context_length=16,
    )
    model = shaken(RwkvModel(config))
    tokens = torch.randint(0, 11, (3, 9))
    with torch.no_grad(), in_double():
        expected = model(tokens, use_cache=False).last_hidden_state
        for block in model.blocks:
            block.attention = OurRwkv(block.attention)
        close(model(tokens, use_cache=False).last_hidden_state, expected, 1e-9)


# Layers and the decoder


@pytest.mark.parametrize("W", [1, 2, 4])
def test_the_convolution_is_torchs(sizes, W):
    B, _, T, D, _ = sizes
    X, taps = randn(B, T, D), randn(D, W)
    Y, past = short_convolution(X, taps)
    expected = F.conv1d(F.pad(X.mT, (W - 1, 0)), taps[:, None], groups=D).mT
    close(Y, expected)
    assert past.shape == (B, W - 1, D)
    outputs, past = [], None
    for t in range(T):
        y, past = short_convolution(X[:, t : t + 1], taps, past)
        outputs.append(y)
    close(torch.cat(outputs, dim=1), expected)


def mixer(rule, D=12, H=3):
    made = TokenMixer(D, H, rule).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.7)
    return made


@pytest.mark.parametrize("rule", TokenMixer.RULES)
def test_mixers_give_the_same_token_by_token(rule):
    torch.manual_seed(0)
    layer, X = mixer(rule), randn(2, 21, 12)
    whole, end = layer(X)
    state, outputs = None, []
    for start, stop in ((0, 1), (1, 2), (2, 19), (19, 20), (20, 21)):
        Y, state = layer(X[:, start:stop], state)
        outputs.append(Y)
    close(torch.cat(outputs, dim=1), whole)
    close(state, end)
    for prefix in (1, 5, 20):
        close(layer(X[:, :prefix])[0], whole[:, :prefix])


def test_the_rule_softmax_is_multi_head_attention():
    torch.manual_seed(0)
    D, H = 12, 3
    layer, X = mixer("softmax", D, H), randn(2, 7, D)
    mixed = F.silu(short_convolution(X @ layer.W_QKV, layer.taps)[0])
    Q, K, V = (split_heads(part, H) for part in mixed.chunk(3, dim=-1))
    Y = F.scaled_dot_product_attention(Q, K, V, is_causal=True)
    expected = merge_heads(F.rms_norm(Y, (4,), layer.norm.weight, 1e-5)) @ layer.W_O
    close(layer(X)[0], expected)


def test_the_hybrid_has_attention_in_one_layer_of_every_few():
    for every, expected in ((None, []), (1, [0, 1, 2, 3, 4, 5]), (3, [2, 5]), (4, [3]), (7, [])):
        net = HybridDecoder(V=5, D=6, H=2, L=6, rule="delta", every=every)
        found = [n for n, layer in enumerate(net.mixers) if layer.rule == "softmax"]
        assert found == expected


@pytest.mark.parametrize("rule", TokenMixer.RULES[1:])
@pytest.mark.parametrize("every", [None, 2])
def test_the_hybrid_gives_the_same_token_by_token(rule, every):
    torch.manual_seed(0)
    net = HybridDecoder(V=7, D=8, H=2, L=3, rule=rule, every=every).double()
    tokens = torch.randint(0, 7, (2, 19))
    whole, end = net(tokens)
    states, outputs = None, []
    for t in range(19):
        logits, states = net(tokens[:, t : t + 1], states)
        outputs.append(logits)
    close(torch.cat(outputs, dim=1), whole)
    for given, expected in zip(states, end, strict=True):
        close(given, expected)


@pytest.mark.parametrize("every", [None, 1, 2, 4])
@pytest.mark.parametrize("T", [1, 3, 10])
def test_bytes_are_those_of_the_states(every, T):
    D, H, L = 12, 3, 5
    net = HybridDecoder(V=7, D=D, H=H, L=L, rule="select", every=every)
    _, states = net(torch.zeros(1, T, dtype=torch.long))
    found = {"state": 0, "cache": 0}
    for layer, (memory, past) in zip(net.mixers, states, strict=True):
        kind = "cache" if layer.rule == "softmax" else "state"
        found[kind] += memory.numel() * memory.element_size()
        found["state"] += past.numel() * past.element_size()
    assert state_bytes(T, D, H, L, every) == found
    halved = state_bytes(T, D, H, L, every, size=2)
    assert halved == {name: number // 2 for name, number in found.items()}


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="at least 1 step, got 0"):
        chunked_scan(*inputs(1, 1, 2, 3, 4), randn(1, 1, 2), chunk=0)
    with pytest.raises(ValueError, match=r"rule must be one of softmax, .*, got 'sum'"):
        TokenMixer(6, 2, "sum")
    with pytest.raises(ValueError, match="7 features cannot be shared equally among 2"):
        state_bytes(3, 7, 2, 1)


def test_gradients_are_those_of_finite_differences():
    torch.manual_seed(0)
    Q, K, V = inputs(1, 2, 4, 3, 2)
    g, beta = -rand(1, 2, 4), rand(1, 2, 4)

    def check(function, *given):
        given = [part.detach().clone().requires_grad_() for part in given]
        assert torch.autograd.gradcheck(function, given, fast_mode=True)

    check(linear_attention, Q, K, V)
    check(lambda *qkv: recurrent_linear_attention(*qkv)[0], Q, K, V)
    check(delta_rule, Q, K, V, beta)
    check(gated_recurrence, Q, K, V, rand(1, 2, 4, 3))
    check(lambda *given: chunked_scan(*given, chunk=3), Q, K, V, g)
    X, delta, A, N = randn(2, 3, 4), rand(2, 3, 4), -rand(4, 5) - 0.1, 5
    check(discretise, delta, A, randn(2, 3, N))
    check(selective_state_space, X, delta, A, randn(2, 3, N), randn(2, 3, N), randn(4))
    check(parallel_scan, rand(2, 5, 3), randn(2, 5, 3))
    check(lambda *given: rwkv_time_mixing(*given)[0], X, X + 1, X - 1, rand(4), randn(4))
    check(short_convolution, X, randn(4, 3))
