"""The reference of 12_flash_kernels is torch's attention; wrong kernels end with a word."""

import math

import pytest
import torch
from torch.nn import functional

from course_pkg import launch
from course_pkg.checking.failure import Failure, NotImplementedYet
from course_pkg.checking.guard import Guarded
from course_pkg.checking.ready import ready
from course_pkg.flash_kernels import (
    flash_attention_backward,
    flash_attention_forward,
    online_softmax,
    triton_flash_forward,
    triton_paged_decode,
)
from course_pkg.launch import kernel, tl
from course_pkg.paged_attention import paged_attention

needs_triton = pytest.mark.skipif(launch.triton is None, reason="Triton is not installed")
DEVICE = "cpu" if launch.INTERPRETED else "cuda"
SHAPES = [(2, 3, 37, 37, 8), (1, 2, 5, 70, 6), (3, 1, 64, 96, 4), (2, 2, 1, 33, 10)]


def inputs(shape, dtype=torch.float64, device="cpu", seed=0):
    """Draw Q, K, V for B, H, T, N, D_h, large enough for sharp weights."""
    B, H, T, N, D_h = shape
    generator = torch.Generator().manual_seed(seed)
    sizes = ((B, H, T, D_h), (B, H, N, D_h), (B, H, N, D_h))
    return [
        (2 * torch.randn(size, dtype=torch.float64, generator=generator)).to(device, dtype)
        for size in sizes
    ]


def mask_of(T, N, causal):
    mask = torch.ones(T, N, dtype=torch.bool)
    return mask.tril(N - T) if causal else mask


def oracle(Q, K, V, causal):
    """Torch's attention and the log-sums of the scores."""
    mask = mask_of(Q.shape[2], K.shape[2], causal).to(Q.device)
    Y = functional.scaled_dot_product_attention(Q, K, V, attn_mask=mask)
    E = (Q @ K.mT / math.sqrt(Q.shape[3])).masked_fill(~mask, -math.inf)
    return Y, torch.logsumexp(E, dim=-1)


@pytest.mark.parametrize("widths", [[7], [3, 1, 5], [1] * 6])
def test_online_softmax_is_softmax(widths):
    E, V = torch.randn(4, sum(widths)).double() * 30, torch.randn(sum(widths), 3).double()
    E[1, : widths[0]] = -math.inf
    E[2] = -math.inf
    Y, s = online_softmax(list(E.split(widths, dim=1)), list(V.split(widths)))
    torch.testing.assert_close(s, torch.logsumexp(E, dim=1))
    torch.testing.assert_close(Y, torch.softmax(E, dim=1).nan_to_num(0) @ V)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tile", [(32, 32), (16, 8), (5, 7), (128, 3)])
def test_forward_and_backward_are_torchs(shape, causal, tile):
    leaves = [X.requires_grad_() for X in inputs(shape)]
    Y, s = oracle(*leaves, causal)
    dY = torch.randn_like(Y)
    expected = torch.autograd.grad(Y, leaves, dY)
    with torch.no_grad():
        given, sums = flash_attention_forward(*leaves, causal, *tile)
        grads = flash_attention_backward(*leaves, given, sums, dY, causal, *tile)
    torch.testing.assert_close(given, Y.detach())
    torch.testing.assert_close(sums, s.detach())
    for gradient, right in zip(grads, expected, strict=True):
        torch.testing.assert_close(gradient, right)


@needs_triton
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_triton_flash_is_torchs(shape, causal):
    Q, K, V = inputs(shape, torch.float32, DEVICE)
    Y, s = triton_flash_forward(Q, K, V, causal)
    right, sums = oracle(Q.double(), K.double(), V.double(), causal)
    torch.testing.assert_close(Y.double(), right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(s.double(), sums, rtol=1e-5, atol=1e-5)


@needs_triton
@pytest.mark.parametrize("H, G", [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize("S", [4, 3])
def test_triton_paged_decode_is_paged_attention(H, G, S):
    lengths = torch.tensor([1, 2 * S, 4 * S - 1])
    B, D_h, M, blocks = 3, 5, 4, 13
    Q = torch.randn(B, H, D_h)
    K, V = torch.randn(2, G, blocks, S, D_h)
    tables = torch.randperm(blocks)[: B * M].reshape(B, M)
    Y = triton_paged_decode(*(X.to(DEVICE) for X in (Q, K, V, tables, lengths)))
    wide = paged_attention(Q[:, None].double(), K.double(), V.double(), tables, lengths)
    torch.testing.assert_close(Y.cpu().double(), wide[:, 0], rtol=1e-5, atol=1e-5)


def launch_small(run, x):
    """Launch one program that has a tensor, its size, and a tensor of the same size for results."""
    y = torch.empty_like(x)
    run((1,), [x], [y], len(x))
    return y


@kernel(launch_small)
def unmasked(x, y, n):
    i = tl.arange(0, 16)
    tl.store(y + i, tl.load(x + i), mask=i < n)


@kernel(launch_small)
def underneath(x, y, n):
    tl.store(y - 1, 1.0)


@kernel(launch_small)
def misspelt(x, y, n):
    tl.store(y, tl.laod(x))


@kernel(launch_small)
def endless(x, y, n):
    while True:
        tl.store(y, 0.0)


@kernel(launch_small)
def stub(x, y, n):
    raise NotImplementedError()


@needs_triton
@pytest.mark.skipif(not launch.INTERPRETED, reason="a GPU has no fences")
def test_a_load_outside_is_an_error_with_its_line():
    with pytest.raises(launch.KernelError) as caught:
        unmasked(torch.ones(5))
    assert "outside of its tensors" in str(caught.value)
    assert "tl.store(y + i, tl.load(x + i), mask=i < n)" in str(caught.value)


@needs_triton
@pytest.mark.skipif(not launch.INTERPRETED, reason="a GPU has no fences")
def test_far_outside_is_an_error():
    with pytest.raises(launch.KernelError, match="outside of its tensors"):
        underneath(torch.ones(1024))  # whole pages: the fence begins at once


@needs_triton
def test_an_exception_is_an_error_with_its_line():
    with pytest.raises(launch.KernelError, match="laod") as caught:
        misspelt(torch.ones(5, device=DEVICE))
    assert "in line" in str(caught.value)


@needs_triton
@pytest.mark.skipif(not launch.INTERPRETED, reason="nothing stops a kernel on a GPU")
def test_an_endless_kernel_is_stopped():
    with pytest.raises(Failure, match="ran for more than"):
        Guarded(endless, "endless", 0.1)(torch.ones(5))


def test_a_stub_is_not_implemented_yet(capsys):
    with pytest.raises(NotImplementedYet, match=r"stub is not implemented yet\.$"):
        Guarded(stub, "stub")(torch.ones(5))
    assert not ready(stub)
    assert "First implement stub above" in capsys.readouterr().out


def test_without_triton_a_kernel_says_so(monkeypatch):
    monkeypatch.setattr(launch, "triton", None)
    with pytest.raises(launch.KernelError, match="Triton, which is not installed"):
        endless(torch.ones(5))
