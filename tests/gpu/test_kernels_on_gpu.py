"""Kernels, gradients and rotations are those of torch in float64, in every precision.

On a GPU they are compiled. On a CPU they are interpreted, which knows no bfloat16, on small sizes.
"""

import pytest
import torch
from torch.nn import functional

from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.flash_kernels import (
    flash_attention_backward,
    triton_flash_forward,
    triton_paged_decode,
)
from course_pkg.inference.decoding import with_kernel
from course_pkg.inference.models import ServedLlama
from course_pkg.inference.tuned import TunedEngine
from course_pkg.llama import Llama
from course_pkg.paged_attention import paged_attention
from course_pkg.positions import rope_rotate
from course_pkg.serving import Engine
from course_pkg.tools import launch
from course_pkg.tools.tiles import tiles
from tests.gpu import needs_gpu, place

pytestmark = [
    *needs_gpu,
    pytest.mark.skipif(launch.triton is None, reason="Triton is not installed"),
]
# bfloat16 has 8 bits of precision: an output just below 2 is rounded by up to 0.004.
PRECISIONS = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
EACH_PRECISION = pytest.mark.parametrize("dtype, tolerance", PRECISIONS.items(), ids=str)
SIZES = [(2, 3, 37, 37, 8), (1, 2, 200, 333, 80), (2, 4, 1024, 1024, 64),
         (1, 2, 1, 777, 128), (3, 2, 128, 512, 128)]  # fmt: skip


@pytest.fixture
def where(request) -> torch.device:
    """The device; the interpreter is spared what only a GPU can do in a moment."""
    values = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if place().type != "cuda":
        if values.get("dtype") == torch.bfloat16:
            pytest.skip("Triton's interpreter multiplies bfloat16 wrongly: use a GPU")
        if values.get("T", 0) * values.get("N", 0) > 40_000:
            pytest.skip("this takes minutes in Triton's interpreter: use a GPU")
    return place()


def normal(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(place(), dtype)


def oracle(Q, K, V, causal):
    """Torch's attention and the log-sums of the scores."""
    mask = torch.ones(Q.shape[2], K.shape[2], dtype=torch.bool, device=Q.device)
    mask = mask.tril(K.shape[2] - Q.shape[2]) if causal else mask
    E = (Q @ K.mT / Q.shape[3] ** 0.5).masked_fill(~mask, -torch.inf)
    return functional.scaled_dot_product_attention(Q, K, V, mask), torch.logsumexp(E, dim=-1)


@EACH_PRECISION
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("B, H, T, N, D_h", SIZES)
def test_flash_is_torchs(where, B, H, T, N, D_h, causal, dtype, tolerance):
    Q, K, V = (normal(B, H, n, D_h, dtype=dtype, seed=n + i) for i, n in enumerate((T, N, N)))
    Y, s = triton_flash_forward(Q, K, V, causal)
    right, sums = oracle(Q.double(), K.double(), V.double(), causal)
    assert Y.dtype == dtype and s.dtype == torch.float32
    torch.testing.assert_close(Y.double(), right, rtol=0, atol=tolerance)
    torch.testing.assert_close(s.double(), sums, rtol=1e-5, atol=1e-5)


@EACH_PRECISION
def test_flash_never_touches_tiles_that_no_query_may_see(where, dtype, tolerance):
    sides = tiles("flash", dtype) if where.type == "cuda" else {}
    side = max(sides.get(name, launch.SIDE) for name in ("ROWS", "COLUMNS"))
    Q, K, V = (normal(1, 2, 2 * side, 8, dtype=dtype, seed=i) for i in range(3))
    V[:, :, side:] = torch.nan
    Y = triton_flash_forward(Q, K, V, causal=True)[0][:, :, :side]
    right, _ = oracle(*(x[:, :, :side].double() for x in (Q, K, V)), True)
    torch.testing.assert_close(Y.double(), right, rtol=0, atol=tolerance)


@EACH_PRECISION
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_through_the_kernels_outputs_are_torchs(where, causal, dtype, tolerance):
    Q, K, V, dY = (normal(2, 3, 65, 16, dtype=dtype, seed=i) for i in range(4))
    Y, s = triton_flash_forward(Q, K, V, causal)
    given = flash_attention_backward(*(x.float() for x in (Q, K, V, Y, s, dY)), causal)
    wide = [x.double().requires_grad_() for x in (Q, K, V)]
    wanted = torch.autograd.grad(oracle(*wide, causal)[0], wide, dY.double())
    for gradient, right in zip(given, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), right, rtol=0, atol=8 * tolerance)


@EACH_PRECISION
@pytest.mark.parametrize("parts", [None, 1, 7])
@pytest.mark.parametrize("H, G, S, D_h", [(32, 8, 16, 128), (6, 2, 5, 40), (4, 4, 16, 64)])
def test_paged_decode_is_paged_attention(where, H, G, S, D_h, parts, dtype, tolerance):
    M = 64 if where.type == "cuda" else 9  # blocks of a table
    lengths = torch.tensor([1, M * S, (M // 2) * S + 1, 3])
    tables = torch.randperm(300, generator=torch.Generator().manual_seed(1))[: 4 * M].view(4, M)
    Q = normal(4, H, D_h, dtype=dtype)
    K, V = normal(2, G, 300, S, D_h, dtype=dtype, seed=2)
    given = [K, V, tables.to(where), lengths.to(where)]
    Y = triton_paged_decode(Q, *given, parts)
    wide = paged_attention(Q[:, None].double(), K.double(), V.double(), *given[2:])[:, 0]
    assert Y.dtype == dtype
    torch.testing.assert_close(Y.double(), wide, rtol=0, atol=tolerance)


@EACH_PRECISION
def test_rotations_are_those_of_float64(where, dtype, tolerance):
    X, positions = normal(3, 70, 16, dtype=dtype), torch.arange(5, 75, device=where)
    given = rope_rotate(X, positions)
    assert given.device.type == where.type
    right = rope_rotate(X.double(), positions)
    torch.testing.assert_close(given.double(), right, rtol=0, atol=4 * tolerance)


def test_a_cache_of_more_than_2_to_the_31_numbers_is_addressed(where):
    if where.type != "cuda":
        pytest.skip("this takes 22 GB: use a GPU")
    G, N, S, D_h = 1, 1 << 21, 16, 80  # 2.7 billion numbers in each of K and V
    K = torch.zeros(G, N, S, D_h, dtype=torch.float16, device=where)
    K[:, -1] = 1
    tables, lengths = torch.tensor([[N - 1]], device=where), torch.tensor([S], device=where)
    Y = triton_paged_decode(normal(1, 1, D_h, dtype=torch.float16), K, K, tables, lengths)
    torch.testing.assert_close(Y, torch.ones_like(Y))


def test_the_engine_decodes_with_the_kernel(where):
    torch.manual_seed(0)
    model = ServedLlama(Llama(V=64, D=64, H=4, G=2, L=2), context=128).to(where)
    prompts = [[5, 3, 9], [1] * 40, [7, 8] * 9]
    given = []
    for attention in (None, paged_attention):
        engine = Engine(model, EngineConfig(num_blocks=40, block_size=4))
        if attention:
            engine.runner.attention = attention
        else:
            chosen = getattr(engine.runner.attention, "func", engine.runner.attention)
            assert (chosen is not paged_attention) is (where.type == "cuda")
        given.append(
            [out.tokens for out in engine.generate(prompts, SamplingParams(max_tokens=30))]
        )
    assert given[0] == given[1]


def test_the_tuned_engine_gives_the_engines_tokens(where):
    torch.manual_seed(0)
    model = ServedLlama(Llama(V=64, D=64, H=4, G=2, L=2), context=128).to(where)
    prompts, given = [[5, 3, 9], [1] * 40, [7, 8] * 9], []
    for kind in (Engine, TunedEngine):
        engine = kind(model, EngineConfig(num_blocks=40, block_size=4))
        for count in (3, 2):  # the second time with what the first has recorded
            found = engine.generate(prompts[:count], SamplingParams(max_tokens=30))
            given.append([output.tokens for output in found])
    assert given[:2] == given[2:]


def test_the_kernel_is_chosen_on_a_gpu(where):
    chosen = with_kernel(paged_attention, where) is not paged_attention
    assert chosen is (where.type == "cuda")
