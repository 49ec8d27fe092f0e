"""The reference of flash_kernels is torch's attention; wrong kernels end with a clear message."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from autograder.assignment import ROOT
from autograder.author.score import score_exercise
from course_pkg import check, flash_kernels
from course_pkg.checking.guard import Guarded
from course_pkg.checking.notebook.ready import ready
from course_pkg.checking.registry import Exercise
from course_pkg.checking.telling.failure import Failure, NotImplementedYet
from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.flash_kernels import (
    flash_attention_backward,
    flash_attention_forward,
    online_softmax,
    triton_flash_forward,
    triton_paged_decode,
)
from course_pkg.inference.decoding import by_kernel, with_kernel
from course_pkg.inference.models import ServedLlama
from course_pkg.llama import Llama
from course_pkg.paged_attention import paged_attention
from course_pkg.serving import Engine
from course_pkg.tools import launch
from course_pkg.tools.launch import kernel, tl
from tests import untested

needs_triton = pytest.mark.skipif(launch.triton is None, reason=untested.TRITON)
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


def test_online_softmax_has_finite_gradients_where_a_query_sees_nothing():
    E, V = torch.randn(3, 6).double(), torch.randn(6, 2).double()
    E[1], E[2, :3] = -math.inf, -math.inf
    E.requires_grad_()
    Y, s = online_softmax(list(E.split(3, dim=1)), list(V.split(3)))
    (Y.sum() + s[[0, 2]].sum()).backward()
    assert E.grad.isfinite().all() and not E.grad[1].any()


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
    Q, K, V = inputs(shape, torch.float32)
    Y, s = triton_flash_forward(Q, K, V, causal)
    right, sums = oracle(Q.double(), K.double(), V.double(), causal)
    torch.testing.assert_close(Y.double(), right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(s.double(), sums, rtol=1e-5, atol=1e-5)


@needs_triton
def test_parts_are_merged_with_weights_of_their_sums():
    Y, s = torch.randn(3, 2, 5, 12), 4 * torch.randn(3, 2, 5)
    s[2, 1] = -torch.inf  # it begins beyond the sequence's end
    merged = torch.empty(2, 5, 12)
    launch.merge(Y, s, merged)
    torch.testing.assert_close(merged, (torch.softmax(s, dim=0)[..., None] * Y).sum(dim=0))


@pytest.mark.parametrize("H, G, S, parts", [(6, 2, 4, 1), (4, 4, 3, 2), (3, 1, 17, 3)])
def test_triton_paged_decode_is_paged_attention(H, G, S, parts):
    lengths = torch.tensor([1, 2 * S, 4 * S - 1])
    B, D_h, M, blocks = 3, 5, 4, 13
    Q = torch.randn(B, H, D_h)
    K, V = torch.randn(2, G, blocks, S, D_h)
    tables = torch.randperm(blocks)[: B * M].reshape(B, M)
    Y = triton_paged_decode(Q, K, V, tables, lengths, parts)
    wide = paged_attention(Q[:, None].double(), K.double(), V.double(), tables, lengths)
    torch.testing.assert_close(Y.double(), wide[:, 0], rtol=1e-5, atol=1e-5)


@needs_triton
def test_half_precision_is_accumulated_in_float32():
    Q, K, V = inputs((1, 1, 5, 40, 6), torch.float16)
    Y, s = triton_flash_forward(Q, K, V)
    right, sums = oracle(Q.double(), K.double(), V.double(), False)
    assert Y.dtype == torch.float16 and s.dtype == torch.float32
    torch.testing.assert_close(Y.double(), right, rtol=0, atol=1e-3)
    torch.testing.assert_close(s.double(), sums, rtol=1e-5, atol=1e-5)


@needs_triton
def test_other_numbers_are_refused():
    Q = torch.zeros(1, 1, 2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"kernels take torch\.float32.* got torch\.float64"):
        triton_flash_forward(Q, Q, Q)
    with pytest.raises(ValueError, match=r"must have fewer than 2³¹ numbers"):
        triton_flash_forward(
            *[torch.zeros(1, dtype=torch.float32).expand(1, 1, 1 << 16, 1 << 15)] * 3
        )


@needs_triton
def test_the_kernels_and_their_alternatives_compile_for_an_h100(tmp_path):
    command = [sys.executable, "-m", "tests.compile_kernels"]
    environment = {**os.environ, "COURSE_DEVICE": "cpu", "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout)
    assert len(taken) == 8
    assert max(taken.values()) <= 227 * 1024  # what a program may have of an H100's fast memory


@needs_triton
def test_triton_may_have_been_imported_before():
    text = """if True:
        import torch, triton
        from course_pkg.flash_kernels import triton_flash_forward
        print(*triton_flash_forward(*torch.ones(3, 1, 1, 2, 4))[0].shape)
    """
    environment = {**os.environ, "COURSE_DEVICE": "cpu"}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "1 1 2 4\n", done.stderr


@needs_triton
def test_where_kernels_are_compiled_those_of_tensors_on_the_cpu_are_interpreted():
    # As on a GPU: there Triton compiles, and checks give kernels tensors on the CPU.
    text = """if True:
        import sys
        import torch
        torch.cuda.is_available = lambda: True
        from course_pkg.tools import launch
        from tests.course_pkg.test_flash_kernels import inputs, oracle, unmasked
        from course_pkg.flash_kernels import triton_flash_forward
        assert not launch.INTERPRETED
        for shape in ((1, 2, 5, 20, 6), (1, 1, 3, 40, 5)):
            Q, K, V = inputs(shape, torch.float32)
            Y, s = triton_flash_forward(Q, K, V, True)
            right, _ = oracle(Q.double(), K.double(), V.double(), True)
            torch.testing.assert_close(Y.double(), right, rtol=1e-5, atol=1e-5)
        try:
            unmasked(torch.ones(5))
        except launch.KernelError as error:
            print(error)
        assert not launch.triton.knobs.runtime.interpret
    """
    environment = {**os.environ, "COURSE_DEVICE": "auto"}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert "outside its tensors" in done.stdout and "tl.load(x + i)" in done.stdout, done.stderr


@needs_triton
def test_an_engine_decodes_with_the_kernel():
    torch.manual_seed(0)
    model = ServedLlama(Llama(V=16, D=16, H=4, G=2, L=1))
    prompts, given, lengths = [[5, 3, 9], [1] * 6], [], []

    def kernel(*arguments):
        lengths.append(arguments[-1].tolist())
        return triton_paged_decode(*arguments)

    for attention in (by_kernel(kernel, paged_attention), paged_attention):
        engine = Engine(model, EngineConfig(num_blocks=12, block_size=4))
        engine.runner.attention = attention
        given.append([out.tokens for out in engine.generate(prompts, SamplingParams(max_tokens=3))])
    assert given[0] == given[1]
    assert lengths == [[4, 7], [5, 8]]  # each step but the first, which reads the prompts


def test_the_back_end_is_chosen_by_device(monkeypatch):
    assert with_kernel(paged_attention, torch.device("cpu")) is paged_attention
    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(launch, "triton", None)
    assert with_kernel(paged_attention, torch.device("cuda")) is paged_attention
    monkeypatch.setattr(launch, "triton", "there")
    assert with_kernel(paged_attention, torch.device("cuda")) is not paged_attention
    monkeypatch.setattr(flash_kernels, "triton_paged_decode", stub)
    assert with_kernel(paged_attention, torch.device("cuda")) is paged_attention
    monkeypatch.setitem(sys.modules, "course_pkg.flash_kernels", None)
    assert with_kernel(paged_attention, torch.device("cuda")) is paged_attention


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
def test_a_load_outside_is_an_error_with_its_line():
    with pytest.raises(launch.KernelError) as caught:
        unmasked(torch.ones(5))
    assert "outside its tensors" in str(caught.value)
    assert "tl.store(y + i, tl.load(x + i), mask=i < n)" in str(caught.value)


@needs_triton
def test_far_outside_is_an_error():
    with pytest.raises(launch.KernelError, match="outside its tensors"):
        underneath(torch.ones(1024))  # whole pages: the fence begins at once


@needs_triton
def test_an_exception_is_an_error_with_its_line():
    with pytest.raises(launch.KernelError, match="laod") as caught:
        misspelt(torch.ones(5))
    assert "in line" in str(caught.value)


@needs_triton
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


def test_without_triton_nothing_of_it_is_counted(monkeypatch, capsys):
    monkeypatch.setattr(launch, "triton", None)
    check(triton_paged_decode)
    said = " ".join(capsys.readouterr().out.split())
    assert said == "○ triton_paged_decode is not checked, and not counted: Triton is not installed."
    exercise = Exercise.of(triton_paged_decode)
    row = score_exercise(exercise)
    assert (row.why_not, row.bugs, row.problems) == ("Triton is not installed", 0, [])


def test_without_triton_the_notebook_runs_and_fingerprints_are_fresh():
    """In a process in which Triton cannot be imported, as on other systems than Linux."""
    text = """if True:
        import sys
        sys.modules["triton"] = None
        import nbformat
        from autograder.author import fingerprints
        from autograder.assignment import Assignment
        own = Assignment("17_flash_kernels")
        nb = nbformat.read(own.solved, as_version=4)
        cells = [c.source for c in nb.cells if c.cell_type == "code"]
        names = {}
        needed = ("@kernel", "def flash_attention_forward(", "why_not()", "from course_pkg import")
        for cell in cells:
            if any(word in cell for word in needed):
                exec(cell, names)
        files = fingerprints.files(own)
        assert all(fingerprints.is_fresh(*file) for file in files.items())
        assert any("triton_paged_decode" in {e.exercise for e in own} for own in files.values())
    """
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Triton is not installed"
