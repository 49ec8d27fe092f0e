"""Attention for the engine of serving: on a GPU, the kernel of flash_kernels decodes."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from course_pkg.checking.ready import is_stub


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


def demand_numbers(logits: Float[Tensor, "V"]) -> None:
    """Demand that a model has given numbers.

    Raises:
        FloatingPointError: there is a NaN among them, of which nothing can be drawn or chosen.
    """
    if logits.isnan().any():
        raise FloatingPointError("the model gives logits that are no numbers")
