"""The references of quantisation agree with torch's quantised types, scipy, closed forms, loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard
from torch import nn

from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.inference.models import ServedLlama
from course_pkg.llama import Llama, LlamaAttention
from course_pkg.paged_attention import paged_attention
from course_pkg.quantisation import (
    QuantisedKVCache,
    QuantisedLinear,
    QuantisedPagedCache,
    dequantise,
    gptq,
    pack_int4,
    quantise,
    rotate,
    unpack_int4,
)
from course_pkg.serving import Engine

DOUBLE = {"dtype": torch.float64}


def drawn(*shape):
    return torch.randn(shape, **DOUBLE)


def close(given, expected, tolerance=1e-10):
    torch.testing.assert_close(given, expected, rtol=tolerance, atol=tolerance)


# Numbers


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(2, 8),
    st.booleans(),
    st.data(),
)
def test_no_number_is_further_than_half_a_step(sizes, bits, symmetric, data):
    axes = st.integers(-len(sizes), len(sizes) - 1)
    dims = data.draw(st.one_of(axes, st.sets(st.integers(0, len(sizes) - 1), min_size=1)))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    X = drawn(*sizes) * 10 ** data.draw(st.integers(-9, 9)) + data.draw(st.integers(-3, 3))
    dims = dims if isinstance(dims, int) else tuple(dims)
    Q, s, z = quantise(X, bits, dims, symmetric=symmetric)
    assert Q.shape == X.shape and Q.dtype == (torch.int8 if symmetric else torch.uint8)
    shared = X.amax(dims, keepdim=True)
    assert s.shape == z.shape == shared.shape and (s > 0).all()
    error = (dequantise(Q, s, z) - X).abs()
    assert (error <= s / 2 + 1e-12 * X.abs().max()).all()
    if symmetric:
        assert (Q.long().abs() <= 2 ** (bits - 1) - 1).all() and not z.any()
    else:
        assert ((X.amin(dims, keepdim=True) == z) & (Q.long() < 2**bits)).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_groups_are_slices(bits, symmetric, axis):
    torch.manual_seed(bits)
    X = drawn(6, 12, 9).transpose(0, 1)
    Q, s, z = quantise(X, bits, axis, 3, symmetric)
    pieces = [quantise(part, bits, axis, symmetric=symmetric) for part in X.split(3, dim=axis)]
    for whole, *slices in zip((Q, s, z), *pieces, strict=True):
        assert torch.equal(whole, torch.cat(slices, dim=axis))
    parts = [dequantise(*piece) for piece in pieces]
    assert torch.equal(dequantise(Q, s, z), torch.cat(parts, dim=axis))


@pytest.mark.filterwarnings("ignore:torch.quantize_per")
def test_integers_are_those_of_torch():
    torch.manual_seed(0)
    X = torch.randn(7, 11)
    Q, s, z = quantise(X, 8, 0, symmetric=True)
    kind = {"axis": 1, "dtype": torch.qint8}
    theirs = torch.quantize_per_channel(X, s[0], torch.zeros(11, dtype=torch.int), **kind)
    assert torch.equal(Q, theirs.int_repr())
    close(dequantise(Q, s, z), theirs.dequantize(), 1e-6)
    Q, s, z = quantise(X, 8, 0)
    kind["dtype"] = torch.quint8
    theirs = torch.quantize_per_channel(X - z, s[0], torch.zeros(11, dtype=torch.int), **kind)
    assert torch.equal(Q, theirs.int_repr())
    Q, s, z = quantise(X, 4, (0, 1))
    nothing = torch.zeros(1, dtype=torch.int)
    fake = torch.fake_quantize_per_tensor_affine(X - z, s.view(1), nothing, 0, 15)
    close(dequantise(Q, s, z), fake + z, 1e-6)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("value", [0.0, 3.7, -1e-30, -2.5e20])
def test_equal_numbers_lose_nothing(symmetric, value):
    X = torch.full((3, 4), value, **DOUBLE)
    Q, s, z = quantise(X, 8, 1, symmetric=symmetric)
    assert s.isfinite().all() and z.isfinite().all()
    close(dequantise(Q, s, z) / (value or 1), X / (value or 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_half_precision(dtype, bits, symmetric):
    torch.manual_seed(0)
    X = (3 * torch.randn(50, 64) + 5).to(dtype)
    Q, s, z = quantise(X, bits, 1, symmetric=symmetric)
    assert s.dtype == z.dtype == dequantise(Q, s, z).dtype == dtype
    error = (Q.double() * s.double() + z.double() - X.double()).abs()
    assert (error <= 0.51 * s.double() + 256 * s.double() * torch.finfo(dtype).eps).all()
    assert (Q.double() * s.double() + z.double() - X.double()).abs().mean() < 0.3 * s.double().max()


def test_what_is_refused():
    X = drawn(4, 6)
    for wrong in ((1, 0), (9, 0), (8, 0, 3), (8, (0, 1), 2), (8, -1, 4)):
        with pytest.raises(ValueError):
            quantise(X, *wrong)
    Q, s, z = quantise(X, 8, 0, 2)
    with pytest.raises(ValueError, match="equally"):
        dequantise(torch.cat([Q, Q[:1]]), s, z)


# Bytes


def test_every_byte_goes_round():
    every = torch.arange(256, dtype=torch.uint8).view(4, 8, 8).transpose(0, 2)
    assert torch.equal(pack_int4(unpack_int4(every)), every)
    digits = [[int(f"{byte:02x}"[1], 16), int(f"{byte:02x}"[0], 16)] for byte in range(256)]
    given = unpack_int4(torch.arange(256, dtype=torch.uint8)).view(256, 2)
    assert given.tolist() == digits
    assert torch.equal(unpack_int4(pack_int4(given.flip(0).long())), given.flip(0))


def test_what_does_not_fit_into_four_bits():
    for wrong in ([1, 2, 3], [16, 0], [0, -1], [-1, 300]):
        with pytest.raises(ValueError):
            pack_int4(torch.tensor(wrong))


# Caches


def expected_keys(K, bits, group):
    """Quantise each full group of positions of each channel by itself, with loops."""
    K = K.clone()
    for start in range(0, K.shape[2] // group * group, group):
        part = K[:, :, start : start + group]
        Q, s, z = quantise(part, bits, 2)
        K[:, :, start : start + group] = dequantise(Q, s, z)
    return K


def make(B, G, capacity, D_h, bits, group, dtype=torch.float64):
    return QuantisedKVCache(B, G, capacity, D_h, bits, group, dtype)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([4, 8]),
    st.integers(1, 5),
    st.lists(st.integers(0, 7), max_size=6),
    st.sampled_from([torch.float64, torch.float32, torch.float16]),
)
def test_a_cache_gives_what_quantised_slices_give(bits, group, lengths, dtype):
    torch.manual_seed(0)
    B, G, D_h, N = 2, 3, 6, sum(lengths)
    cache, K, V = make(B, G, N + 2, D_h, bits, group, dtype), *drawn(2, B, G, N, D_h).unbind()
    for k, v in zip(K.split(lengths, dim=2), V.split(lengths, dim=2), strict=True):
        cache.append(k, v)
    assert cache.length == N
    keys, values = cache.read()
    assert keys.dtype == values.dtype == dtype
    close(keys, expected_keys(K.to(dtype), bits, group))
    close(values, dequantise(*quantise(V.to(dtype), bits, 3)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(-6, 6), max_size=12))
def test_cutting_changes_nothing_that_is_kept(group, program):
    torch.manual_seed(0)
    cache = make(1, 2, 40, 4, 4, group)
    for step in program:
        K, V = cache.read()
        K, V = K.clone(), V.clone()
        if step < 0:
            cache.truncate(max(cache.length + step, 0))
            keys, values = cache.read()
            close(keys, K[:, :, : cache.length])
            close(values, V[:, :, : cache.length])
        elif cache.length + step <= 40:
            cache.append(drawn(1, 2, step, 4), drawn(1, 2, step, 4))
            close(cache.read()[1][:, :, : V.shape[2]], V)
            full = V.shape[2] // group * group
            close(cache.read()[0][:, :, :full], K[:, :, :full])


def test_its_bytes_are_those_of_its_tensors():
    for bits, group, capacity, dtype in [(8, 4, 11, torch.half), (4, 3, 12, torch.float32)]:
        B, G, D_h, size = 2, 3, 10, dtype.itemsize
        cache = QuantisedKVCache(B, G, capacity, D_h, bits, group, dtype)
        groups = capacity // group
        values = capacity * (D_h * bits // 8 + 2 * size)
        keys = groups * group * D_h * bits // 8 + (2 * groups + group) * D_h * size
        assert cache.bytes == B * G * (values + keys)
        tensors = [part for part in vars(cache).values() if isinstance(part, torch.Tensor)]
        assert cache.bytes == sum(part.untyped_storage().nbytes() for part in tensors)


def test_a_cache_refuses_what_a_kv_cache_refuses():
    for wrong in ({"bits": 5}, {"bits": 4, "D_h": 7}):
        with pytest.raises(ValueError):
            QuantisedKVCache(**({"B": 1, "G": 1, "capacity": 8, "D_h": 6} | wrong))
    cache, first = make(2, 3, 5, 6, 8, 2), drawn(2, 3, 4, 6)
    cache.append(first.requires_grad_(), first)
    before = [part.clone() for part in cache.read()]
    assert not any(part.requires_grad for part in before)
    for K, V in ((first, first), (first[:1, :, :1], first[:1, :, :1]), (first[:, :, :1],) * 2):
        if K.shape[2] == 1 and len(K) == 2:
            V = V[:, :, :0]
        with pytest.raises(ValueError):
            cache.append(K, V)
    for length in (-1, 5):
        with pytest.raises(ValueError):
            cache.truncate(length)
    for part, expected in zip(cache.read(), before, strict=True):
        assert torch.equal(part, expected)


@torch.no_grad()
def test_a_llama_reads_it_like_a_kv_cache():
    torch.manual_seed(0)
    layer, X = LlamaAttention(24, 4, 2).double(), drawn(2, 13, 24)
    cache, plain = make(2, 2, 13, 6, 8, 4), layer.new_cache(2, 13)
    for piece in X.split([6, 1, 1, 5], dim=1):
        given, expected = layer(piece, cache), layer(piece, plain)
        assert 0 < (given - expected).abs().max() < 0.02


@pytest.mark.parametrize("bits", [4, 8])
def test_paged_records(bits):
    torch.manual_seed(0)
    L, N, S, G, D_h = 2, 6, 4, 3, 10
    cache = QuantisedPagedCache(L, N, S, G, D_h, bits, torch.float64)
    assert cache.K.shape == cache.V.shape == (L, G, N, S, D_h * bits // 8 + 4)
    assert cache.K.dtype == torch.uint8
    assert not any(part.any() for part in cache.gather(0, [0, 1], 8))
    K, V = drawn(2, 7, G, D_h).unbind()
    blocks = [4, 1]
    slots = torch.tensor([blocks[t // S] * S + t % S for t in range(7)])
    for part in torch.arange(7).split([3, 1, 3]):
        cache.write(1, slots[part], K[part], V[part])
    for part, X in zip(cache.gather(1, blocks, 7), (K, V), strict=True):
        Q, s, z = quantise(X.half(), bits, 2)
        close(part, dequantise(Q, s.double(), z.double()))
        assert not torch.equal(part, X)
    cache.copy([(1, 5)])
    assert torch.equal(cache.gather(1, [4, 5], 7)[0], cache.gather(1, [4, 1], 7)[0])
    assert not cache.gather(0, blocks, 7)[0].any()
    for wrong in ((5, 10), (4, 9)):
        with pytest.raises(ValueError):
            QuantisedPagedCache(L, N, S, G, wrong[1], wrong[0])


def test_an_engine_over_quantised_blocks_writes_what_each_request_gets_alone():
    torch.manual_seed(0)
    model = ServedLlama(Llama(V=40, D=24, H=4, G=2, L=2, F=16).double(), context=64)
    prompts = [torch.randint(0, 40, (n,)).tolist() for n in (9, 5, 13)]
    prompts += [prompts[0] + [7], prompts[2]]

    def write(prompts, blocks):
        engine = Engine(model, EngineConfig(blocks, block_size=4))
        cache = engine.runner.cache = QuantisedPagedCache(2, blocks, 4, 2, 6, 8, torch.float64)
        engine.runner.attention = lambda Q, K, V, *rest: paged_attention(
            Q, cache.decode(K), cache.decode(V), *rest
        )
        outputs = engine.generate(prompts, SamplingParams(max_tokens=8))
        assert engine.scheduler.preemptions or blocks > 9
        return [output.tokens for output in outputs]

    alone = [write([prompt], 30)[0] for prompt in prompts]
    assert write(prompts, 30) == write(prompts, 9) == alone


# Weights


@pytest.mark.filterwarnings("ignore:torch.quantize_per")
@pytest.mark.parametrize("group", [None, 3, 1, 12])
def test_a_quantised_matrix_is_within_half_a_step(group):
    torch.manual_seed(0)
    layer, X = nn.Linear(12, 7).double(), drawn(3, 5, 12)
    ours = QuantisedLinear(layer.weight.T, layer.bias, group)
    rows = 1 if group is None else 12 // group
    assert ours.Q.dtype == torch.int8 and ours.scale.shape == (rows, 7)
    assert not list(ours.parameters())
    step = ours.scale.repeat_interleave(12 // rows, dim=0)
    given, expected = ours(X), layer(X)
    assert ((given - expected).abs() <= X.abs() @ step / 2 + 1e-12).all()
    kind = {"axis": 0, "dtype": torch.qint8}
    if group is None:
        no_zero = torch.zeros(7, dtype=torch.int)
        theirs = torch.quantize_per_channel(
            layer.weight.detach().float(), ours.scale[0], no_zero, **kind
        )
        close(given, nn.functional.linear(X, theirs.dequantize().double(), layer.bias), 1e-6)
    assert QuantisedLinear(layer.weight.T)(X.float()).dtype == torch.float32
    again = QuantisedLinear(drawn(12, 7), drawn(7), group)
    again.load_state_dict(ours.state_dict())
    assert all(map(torch.equal, again.buffers(), ours.buffers()))
    close(again(X), given)


def related(N, D_in):
    """Draw inputs whose features go together."""
    return drawn(N, 3) @ drawn(3, D_in) + drawn(N, D_in) / 3


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 5), st.integers(1, 20), st.integers(2, 8), st.integers(0, 9)
)
def test_rows_that_are_left_are_those_of_least_squares(D_in, D_out, N, bits, seed):
    torch.manual_seed(seed)
    W, X = drawn(D_in, D_out), related(N, D_in)
    before = W.clone()
    Q, scale = gptq(W, X, bits, 0.1)
    assert torch.equal(W, before) and Q.dtype == torch.int8
    assert torch.equal(scale, quantise(W, bits, 0, symmetric=True)[1])
    s, top = scale[0].numpy(), 2 ** (bits - 1) - 1
    root = math.sqrt(0.1 * X.square().sum(0).mean())
    A = np.vstack([X.numpy(), root * np.eye(D_in)])
    goal, rest = A @ W.numpy(), W.numpy()
    for i in range(D_in):
        assert (np.clip(np.rint(rest[0] / s), -top, top) == Q[i].numpy()).all()
        goal = goal - np.outer(A[:, i], Q[i].numpy() * s)
        rest = np.linalg.lstsq(A[:, i + 1 :], goal, rcond=None)[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_last_integers_are_the_best_of_all_and_outputs_change_less(seed):
    torch.manual_seed(seed)
    W, X = drawn(2, 6), related(30, 2)
    Q, scale = gptq(W, X, 3, 0.0)
    first = quantise(W, 3, 0, symmetric=True)[0][0]
    assert torch.equal(Q[0], first)  # brute force: of all that go with it, the second is the best
    tried = torch.stack([torch.stack([first, torch.full_like(first, q)]) for q in range(-3, 4)])
    losses = (X @ (tried * scale - W)).square().sum(1)
    assert torch.equal(losses.argmin(0) - 3, Q[1].long())
    W, X = drawn(40, 6), related(90, 40)
    lost = [
        (X @ (q * s - W)).norm() for q, s in (gptq(W, X), quantise(W, 4, 0, symmetric=True)[:2])
    ]
    assert lost[0] < 0.8 * lost[1]
    X = torch.linalg.qr(drawn(50, 40)).Q
    assert torch.equal(gptq(W, X)[0], quantise(W, 4, 0, symmetric=True)[0])
    with pytest.raises(ValueError, match="features"):
        gptq(W, X[:, :-1])


# Rotations


@pytest.mark.parametrize("D", [1, 2, 8, 64])
def test_a_rotation_is_scipys_hadamard_matrix(D):
    X = drawn(3, 5, D)
    close(rotate(X), X @ torch.tensor(hadamard(D)).double() / math.sqrt(D))
    close(rotate(rotate(X)), X)


def test_a_rotation_from_another_start():
    start = torch.tensor(hadamard(4))[torch.tensor([2, 0, 3, 1])]
    X, Y = drawn(2, 6, 16).unbind()
    full = torch.kron(torch.tensor(hadamard(4)), start).double()
    close(rotate(X, start), X @ full / 4)
    close(rotate(X, start) @ rotate(Y, start).T, X @ Y.T)
    outlier = torch.zeros(16, **DOUBLE)
    outlier[3] = 8
    close(rotate(outlier).abs(), torch.full((16,), 2.0, **DOUBLE))
    for D, r in ((12, None), (24, 4), (2, 4), (0, None)):
        with pytest.raises(ValueError):
            rotate(drawn(2, D), None if r is None else torch.tensor(hadamard(r)))
