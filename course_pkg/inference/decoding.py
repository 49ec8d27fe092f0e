"""Around a step of the engine: its attention, and what a request and a model must give for it."""

import math
from collections.abc import Callable
from numbers import Integral, Real

import torch
from jaxtyping import Float, Int
from torch import Tensor

from course_pkg.checking.notebook.ready import is_stub
from course_pkg.engine.requests import NoNumbers, SamplingParams


def by_kernel(kernel: Callable, attention: Callable) -> Callable:
    """Make a function like `paged_attention` that leaves to a kernel what the kernel can do.

    Args:
        kernel: like `triton_paged_decode`.
        attention: like `paged_attention`; it does the rest: steps of several new tokens for each
            sequence, and float64.
    """

    def attend(
        Q: Float[Tensor, "B T H D_h"],
        K: Float[Tensor, "G N S D_h"],
        V: Float[Tensor, "G N S D_h"],
        tables: Int[Tensor, "B M"],
        lengths: Int[Tensor, "B"],
    ) -> Float[Tensor, "B T H D_h"]:
        if Q.shape[1] > 1 or Q.dtype == torch.float64:
            return attention(Q, K, V, tables, lengths)
        return kernel(Q[:, 0], K, V, tables, lengths)[:, None]

    return attend


def with_kernel(attention: Callable, device: torch.device) -> Callable:
    """Let `triton_paged_decode` decode on a GPU, if it is there and Triton is installed.

    Returns:
        The function for a cache on that device; `attention` itself where no kernel can run.
    """
    if device.type != "cuda":
        return attention
    try:
        from course_pkg.flash_kernels import triton_paged_decode
        from course_pkg.tools.launch import INTERPRETED, why_not
    except ModuleNotFoundError:  # students of earlier assignments have no kernels yet
        return attention
    if INTERPRETED or why_not() or is_stub(triton_paged_decode):
        return attention
    return by_kernel(triton_paged_decode, attention)


def demand_numbers(logits: Float[Tensor, "V"], number: int) -> None:
    """Demand that a model has given numbers after a sequence.

    Raises:
        NoNumbers: nothing can be drawn or chosen: one is NaN or ∞, or all are -∞.
    """
    if not logits.amax().isfinite():  # amax is NaN if one is
        raise NoNumbers(number)


def demand_request(prompt: list[int], sampling: SamplingParams) -> None:
    """Demand of a request that no step can fail because of what it says.

    Whether it makes sense, and fits, is asked by `EngineCore.validate`.

    Raises:
        ValueError: a token, a count or a seed is no whole number, another setting no finite one, or
            torch has no generator for the seed of a sample.
    """
    if not all(isinstance(token, Integral) and token >= 0 for token in prompt):
        raise ValueError("a prompt must be a list of tokens: whole numbers from 0 up")
    for name in ("max_tokens", "n", "seed", "beams", "top_k"):
        value = getattr(sampling, name)
        if not isinstance(value, Integral) and (name, value) != ("top_k", None):
            raise ValueError(f"{name} must be a whole number, got {value!r:.60}")
    for name in ("temperature", "top_p", "alpha", "min_p"):
        value = getattr(sampling, name)
        is_finite = isinstance(value, Real) and math.isfinite(value)
        if not is_finite and (name, value) != ("top_p", None):
            raise ValueError(f"{name} must be a finite number, got {value!r:.60}")
    if not 0 <= sampling.min_p <= 1:
        raise ValueError(f"min_p must lie in [0, 1], got {sampling.min_p}")
    if not -(2**63) <= sampling.seed <= 2**64 - max(sampling.n, 1):
        raise ValueError("seed must lie in [-2^63, 2^64), and that of the last sample too")
