"""Paged decode: what share of the card's bandwidth it reaches, beside torch's own ways."""

import itertools

import torch
from torch import Tensor
from torch.nn import functional

from course_pkg.flash_kernels import triton_paged_decode
from tests.benchmarks.attention import DEVICE, ON_GPU, medians
from tests.gpu.report import card
from tests.gpu.report.plan import DECODE, SMALL_DECODE
from tests.gpu.report.rows import attempt, row
from tests.gpu.report.tune import tune

SIZES = DECODE if ON_GPU else SMALL_DECODE
B, H, G, D_h = SIZES.B, SIZES.H, SIZES.G, SIZES.D_h
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
ROUNDS = 20 if ON_GPU else 1


def inputs(T: int, S: int) -> tuple[Tensor, ...]:
    """Draw queries and a cache in which the sequences' blocks lie anywhere."""
    M = T // S
    Q = torch.randn(B, H, D_h, device=DEVICE, dtype=DTYPE)
    K, V = torch.randn(2, G, B * M, S, D_h, device=DEVICE, dtype=DTYPE)
    tables = torch.randperm(B * M, device=DEVICE).view(B, M)
    return Q, K, V, tables, torch.full((B,), T, device=DEVICE)


def by_flex(Q: Tensor, K: Tensor, V: Tensor, tables: Tensor, lengths: Tensor):
    """Make torch's flex_attention read the same cache: a mask says whose each slot is."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    G, N, S, _ = K.shape
    owner = torch.empty(N, dtype=torch.long, device=DEVICE)
    owner[tables.flatten()] = torch.arange(B, device=DEVICE).repeat_interleave(tables.shape[1])
    mask = create_block_mask(
        lambda b, h, q, k: owner[k // S] == b, B, None, 1, N * S, device=DEVICE.type
    )
    attend = torch.compile(flex_attention) if ON_GPU else flex_attention
    keys, values = (X.view(1, G, N * S, -1).expand(B, -1, -1, -1) for X in (K, V))
    return lambda: attend(Q[:, :, None], keys, values, block_mask=mask, enable_gqa=True)


def one(T: int, S: int, copied: float, with_flex: bool = False) -> None:
    """Measure one length and size of blocks: flex_attention, or the kernel and torch's."""
    given = inputs(T, S)
    Q, K, V, tables, _ = given
    gather = [X[:, tables].flatten(2, 3).transpose(0, 1).contiguous() for X in (K, V)]

    def contiguous() -> Tensor:
        return functional.scaled_dot_product_attention(Q[:, :, None], *gather, enable_gqa=True)

    runs = {"paged": lambda: triton_paged_decode(*given), "torch, contiguous": contiguous}
    right = contiguous()[:, :, 0]
    torch.testing.assert_close(runs["paged"](), right, rtol=0, atol=2e-2)
    if with_flex:
        runs = {"flex_attention": by_flex(*given)}
        torch.testing.assert_close(runs["flex_attention"]()[:, :, 0], right, rtol=0, atol=2e-2)
    moved = 2 * K.numel() * K.element_size()
    for name, seconds in medians(runs, ROUNDS).items():
        share = 100 * moved / seconds / copied
        predicted = 1e6 * card.seconds(moved=moved)
        row(f"decode {T} tokens, blocks of {S}: {name}", round(1e6 * seconds, 1), "µs",
            share_of_copy=f"{share:.0f} %", predicted=round(predicted, 1))  # fmt: skip


def main() -> None:
    """Measure a copy, tune, and decode at all lengths."""
    source = torch.empty(2**30 if ON_GPU else 2**20, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    seconds = medians({"": lambda: target.copy_(source)}, ROUNDS)[""]
    copied = 2 * source.numel() / seconds
    row(
        "a copy on the device",
        round(copied / 1e9, 1),
        "GB/s",
        predicted=card.card().bandwidth / 1e9,
    )
    del source, target
    given = inputs(SIZES.lengths[0], 16)
    tune("paged", DTYPE, lambda: triton_paged_decode(*given))
    del given
    for T, S in itertools.product(SIZES.lengths, SIZES.block_sizes):
        with attempt(f"decode {T} tokens, blocks of {S}"):
            one(T, S, copied)
    for S in SIZES.block_sizes:  # last: it takes long to compile
        with attempt(f"flex_attention, blocks of {S}"):
            one(SIZES.lengths[0], S, copied, with_flex=True)


if __name__ == "__main__":
    main()
