"""FlashAttention forward beside torch's, by length."""

import torch
from torch.nn import functional

from course_pkg.flash_kernels import triton_flash_forward
from tests.benchmarks.attention import DEVICE, ON_GPU, medians
from tests.gpu.report import card
from tests.gpu.report.plan import FLASH, SMALL_FLASH
from tests.gpu.report.rows import attempt, row
from tests.gpu.report.tune import tune

SIZES = FLASH if ON_GPU else SMALL_FLASH
DTYPE = torch.bfloat16 if ON_GPU else torch.float32


def inputs(T: int) -> list[torch.Tensor]:
    """Draw Q, K and V of as many sequences as give all tokens."""
    return list(
        torch.randn(3, SIZES.tokens // T, SIZES.H, T, SIZES.D_h, device=DEVICE, dtype=DTYPE)
    )


def one(T: int) -> None:
    """Measure one length, causal."""
    given = inputs(T)
    runs = {
        "Triton kernel": lambda: triton_flash_forward(*given, True)[0],
        "torch": lambda: functional.scaled_dot_product_attention(*given, is_causal=True),
    }
    torch.testing.assert_close(runs["Triton kernel"](), runs["torch"](), rtol=0, atol=3e-2)
    operations = SIZES.operations(T)
    for name, seconds in medians(runs, 10 if ON_GPU else 1).items():
        row(f"flash forward, {T} tokens: {name}", round(1e3 * seconds, 3), "ms",
            tflops=round(operations / seconds / 1e12, 1),
            predicted=round(1e3 * card.seconds(operations=operations), 3))  # fmt: skip


def main() -> None:
    """Tune, then measure all lengths."""
    given = inputs(SIZES.lengths[0])
    tune("flash", DTYPE, lambda: triton_flash_forward(*given, True))
    for T in SIZES.lengths:
        with attempt(f"flash forward, {T} tokens"):
            one(T)


if __name__ == "__main__":
    main()
