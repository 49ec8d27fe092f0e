"""Checks of flash_kernels. Oracles: torch's attention and its gradients, softmax in float64.

Triton kernels get float32 on the CPU, even where there is a GPU: in the interpreter a wrong address
is a failure with its line. They are compared to 1e-5, and run on few programs.
"""

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.guard import here
from course_pkg.checking.registry import check
from course_pkg.checking.rules.rules import ATTENTION, forbid
from course_pkg.flash_kernels import (
    flash_attention_backward,
    flash_attention_backward_fault,
    flash_attention_forward,
    online_softmax,
    triton_flash_forward,
    triton_paged_decode,
)
from course_pkg.tools.launch import SIDE, why_not

for _exercise in (
    flash_attention_forward,
    flash_attention_backward,
    triton_flash_forward,
    triton_paged_decode,
):
    forbid(_exercise, ATTENTION)
check_kernel = functools.partial(check, why_not=why_not)


# online_softmax


def compare_tiles(case: Case, online, E: Tensor, V: Tensor, widths: list[int]) -> None:
    """Compare with the softmax of all scores at once."""
    Y, s = case.unpack(online(list(E.split(widths, dim=1)), list(V.split(widths))), "Y", "s")
    case.equal(Y, F.softmax(E, dim=1).nan_to_num(0) @ V, "Y")
    case.equal(s, torch.logsumexp(E, dim=1), "s")


@check(online_softmax, weight=2, see="Softmax in one pass", single="T")
def values(online, case):
    """gives what softmax gives when it sees all scores at once"""
    T, D = case.narrowed([4, 3])
    compare_tiles(case, online, 2 * case.randn(T, 9), case.randn(9, D), [4, 2, 3])


@check(online_softmax, see="Softmax in one pass")
def any_tiles(online, case):
    """gives the same however the keys are cut: into one tile, or into tiles of one key"""
    E, V = 2 * case.randn(3, 7), case.randn(7, 5)
    compare_tiles(case, online, E, V, [7])
    compare_tiles(case, online, E, V, [1] * 7)


@check(online_softmax, weight=2, see="When a larger score arrives")
def large_scores(online, case):
    """neither overflows nor forgets when scores are large and the largest comes last, or first"""
    E = 700 + 60 * case.rand(3, 8).sort(dim=1).values
    E[1] = E[1].flip(0) - 1500
    compare_tiles(case, online, E, case.randn(8, 4), [3, 1, 4])


@check(online_softmax, weight=2, see="A tile that nobody sees")
def masked(online, case):
    """copes with tiles in which a query may look nowhere; gives 0 and -∞ if all are such"""
    E = 2 * case.randn(5, 8)
    E[0, :3] = -math.inf
    E[1, 3:] = -math.inf
    E[2, 2:7] = -math.inf
    E[3] = -math.inf
    compare_tiles(case, online, E, case.randn(8, 3), [3, 2, 3])


@check(online_softmax, see="A tile that nobody sees")
def far_below_zero(online, case):
    """tells scores that are far below zero from those of keys that may not be seen"""
    E = 2 * case.randn(4, 8) - 30000
    E[0, :3] = -math.inf
    E[1, 3:] = -math.inf
    compare_tiles(case, online, E, case.randn(8, 3), [3, 2, 3])


# The kernels in torch


def far_below(case: Case, B: int, H: int, T: int, N: int, size: int) -> list[Tensor]:
    """Draw Q, K and V for scores around -size² / 2, with D_h = 4; float32 holds them exactly."""
    Q, K = case.integers(-4, 5, B, H, T, 4).double() / 4, case.integers(-4, 5, B, H, N, 4).double()
    Q[..., 0], K[..., 0] = size, -size
    return [Q, K, case.randn(B, H, N, 4)]


def inputs(case: Case, B: int, H: int, T: int, N: int, D_h: int, scale: float = 2) -> list[Tensor]:
    """Draw Q, K and V, for weights that are far from even."""
    sizes = ((B, H, T, D_h), (B, H, N, D_h), (B, H, N, D_h))
    return [scale * case.randn(*size) for size in sizes]


def scores(Q: Tensor, K: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Compute all scores, -∞ where a query may not look, and the mask of where it may."""
    mask = torch.ones(Q.shape[2], K.shape[2], dtype=torch.bool)
    mask = mask.tril(K.shape[2] - Q.shape[2]) if causal else mask
    return (Q @ K.mT / math.sqrt(Q.shape[3])).masked_fill(~mask, -math.inf), mask


def torchs(Q: Tensor, K: Tensor, V: Tensor, causal: bool) -> Tensor:
    """Attend as torch does."""
    _, mask = scores(Q, K, causal)
    return F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)


def compare_forward(case: Case, forward, QKV: list[Tensor], causal: bool, *tile: int) -> None:
    """Compare outputs and log-sums with torch's."""
    Y, s = case.unpack(forward(*QKV, causal, *tile), "Y", "s")
    case.equal(Y, torchs(*QKV, causal), "Y")
    case.equal(s, torch.logsumexp(scores(*QKV[:2], causal)[0], dim=-1), "s")


@check(flash_attention_forward, weight=2, see="Attention tile by tile")
def values(forward, case):
    """gives torch's attention, and the log-sum of every query's scores"""
    QKV = inputs(case, 2, 3, 7, 10, 5)
    compare_forward(case, forward, QKV, False, 3, 4)
    Y, _ = case.unpack(forward(*QKV), "Y", "s")
    case.equal(Y, torchs(*QKV, False), "Y where nothing else is given")


@check(flash_attention_forward, weight=2, see="Tiles that nobody sees")
def causal(forward, case):
    """lets each of the last T positions see itself and what comes before"""
    compare_forward(case, forward, inputs(case, 3, 2, 7, 11, 4), True, 3, 2)


@check(flash_attention_forward, see="Attention tile by tile")
def any_tiles(forward, case):
    """gives the same with tiles of any size"""
    QKV = inputs(case, 1, 2, 6, 9, 3)
    for tile in ((1, 1), (4, 5), (2, 8), (50, 2)):
        compare_forward(case, forward, QKV, False, *tile)
        compare_forward(case, forward, QKV, True, *tile)


@check(flash_attention_forward, weight=2, see="Tiles that nobody sees")
def skips(forward, case):
    """never touches a tile of keys that none of the tile's queries may see"""
    Q, K, V = inputs(case, 2, 1, 12, 12, 3)
    V[:, :, 8:] = math.nan  # the queries 0 to 5, in tiles of 3, see the keys 0 to 5
    Y, _ = case.unpack(forward(Q, K, V, True, 3, 4), "Y", "s")
    right = torchs(Q[:, :, :6], K[:, :, :6], V[:, :, :6], True)
    case.shape(Y, tuple(Q.shape), "Y")
    case.equal(Y[:, :, :6], right, "Y of the first tiles")
    Y, _ = case.unpack(forward(Q, K, V, True, 4, 4), "Y", "s")
    right = torchs(Q[:, :, :8], K[:, :, :8], V[:, :, :8], True)
    case.shape(Y, tuple(Q.shape), "Y")
    case.equal(Y[:, :, :8], right, "Y of tiles that end where the next tile of keys begins")


@check(flash_attention_forward, see="When a larger score arrives")
def large_scores(forward, case):
    """neither overflows nor loses digits when scores are large"""
    compare_forward(case, forward, inputs(case, 2, 1, 5, 8, 3, scale=40), False, 2, 3)
    compare_forward(case, forward, inputs(case, 1, 2, 5, 8, 3, scale=40), True, 2, 3)


@check(flash_attention_forward, see="When a larger score arrives")
def small_scores(forward, case):
    """stays right when all scores are far below zero"""
    for causal in (False, True):
        compare_forward(case, forward, far_below(case, 1, 2, 5, 8, 200), causal, 2, 3)


def compare_backward(case: Case, backward, QKV: list[Tensor], causal: bool, *tile: int) -> None:
    """Compare the gradients with those that autograd finds for torch's attention.

    Without a tile, nothing is said of the mask either.
    """
    leaves = [X.clone().requires_grad_() for X in QKV]
    Y = torchs(*leaves, causal)
    s = torch.logsumexp(scores(*QKV[:2], causal)[0], dim=-1)
    dY = case.randn(*Y.shape)
    expected = torch.autograd.grad(Y, leaves, dY)
    how = (causal, *tile) if tile else ()
    given = backward(*QKV, Y.detach(), s, dY, *how)
    names = ("dV", "dK", "dQ")
    given = case.unpack(given, *names[::-1])[::-1]
    for name, gradient, right in zip(names, given, expected[::-1], strict=True):
        case.equal(gradient, right, name)


@check(flash_attention_backward, weight=2, see="The backward pass without the weights")
def values(backward, case):
    """gives the gradients that autograd finds through torch's attention"""
    compare_backward(case, backward, inputs(case, 2, 3, 7, 10, 5), False, 3, 4)
    compare_backward(case, backward, inputs(case, 1, 2, 4, 6, 3), False)


@check(flash_attention_backward, weight=2, see="The backward pass without the weights")
def causal(backward, case):
    """gives no gradient to what a query cannot see"""
    compare_backward(case, backward, inputs(case, 3, 2, 7, 11, 4), True, 3, 2)


@check(flash_attention_backward, see="The backward pass without the weights")
def any_tiles(backward, case):
    """gives the same with tiles of any size"""
    QKV = inputs(case, 1, 2, 6, 9, 3)
    for tile in ((1, 1), (4, 5), (2, 8), (50, 2)):
        compare_backward(case, backward, QKV, False, *tile)
        compare_backward(case, backward, QKV, True, *tile)


@check(flash_attention_backward, weight=2, see="Tiles that nobody sees")
def skips(backward, case):
    """never touches a tile of keys that none of the tile's queries may see"""
    Q, K, V = inputs(case, 2, 1, 12, 12, 3)
    Y, s = torchs(Q, K, V, True), torch.logsumexp(scores(Q, K, True)[0], dim=-1)
    dY = case.randn(*Y.shape)
    leaf = Q.clone().requires_grad_()
    torchs(leaf, K, V, True).backward(dY)
    V[:, :, 8:] = math.nan  # the queries 0 to 5, in tiles of 3, see the keys 0 to 5
    dQ, _, _ = case.unpack(backward(Q, K, V, Y, s, dY, True, 3, 4), "dQ", "dK", "dV")
    case.shape(dQ, tuple(Q.shape), "dQ")
    case.equal(dQ[:, :, :6], leaf.grad[:, :, :6], "dQ of the first tiles")
    dQ, _, _ = case.unpack(backward(Q, K, V, Y, s, dY, True, 4, 4), "dQ", "dK", "dV")
    case.shape(dQ, tuple(Q.shape), "dQ")
    what = "dQ of tiles that end where the next tile of keys begins"
    case.equal(dQ[:, :, :8], leaf.grad[:, :, :8], what)


@check(flash_attention_backward, see="The backward pass without the weights")
def large_scores(backward, case):
    """stays right when scores are large"""
    compare_backward(case, backward, inputs(case, 2, 1, 5, 8, 3, scale=12), False, 2, 3)


# The kernels in Triton


def narrow(*tensors: Tensor) -> list[Tensor]:
    """Round real numbers to float32, which kernels take."""
    return [X.float() if X.is_floating_point() else X for X in tensors]


def compare_flash(case: Case, flash, QKV: list[Tensor], causal: bool, of: str = "Ys") -> None:
    """Compare a kernel's outputs and log-sums with torch's in float64."""
    QKV = narrow(*QKV)
    Y, s = case.unpack(flash(*QKV, causal), "Y", "s")
    wide = [X.double() for X in QKV]
    if "Y" in of:
        case.equal(Y, torchs(*wide, causal), "Y", atol=1e-5)
    if "s" in of:
        case.equal(s, torch.logsumexp(scores(*wide[:2], causal)[0], dim=-1), "s", atol=1e-5)


@check_kernel(triton_flash_forward, weight=3, see="The same in Triton")
def values(flash, case):
    """gives torch's attention in every head, for sizes that no tile divides"""
    Q, K, V = inputs(case, 1, 2, 3, 30, 5)
    rising = scores(Q, K, False)[0][:, :, 0].argsort(dim=-1)  # every tile has a larger maximum
    K = K.gather(2, rising[..., None].expand_as(K))
    compare_flash(case, flash, [Q, K, V], False, of="Y")


@check_kernel(triton_flash_forward, weight=2, see="Tiles that nobody sees")
def causal(flash, case):
    """lets each of the last T positions see itself and what comes before"""
    compare_flash(case, flash, inputs(case, 1, 1, 17, 20, 3), True, of="Y")


@check_kernel(triton_flash_forward, weight=2, see="Tiles that nobody sees")
def skips(flash, case):
    """never touches a tile of keys that none of the tile's queries may see"""
    Q, K, V = inputs(case, 1, 1, 2 * SIDE, 2 * SIDE, 2)
    right = torchs(*(X[:, :, :SIDE].float().double() for X in (Q, K, V)), True)
    V[:, :, SIDE:] = math.nan
    Y, _ = case.unpack(here(flash)(*narrow(Q, K, V), True), "Y", "s")  # a GPU has other tiles
    case.shape(Y, tuple(Q.shape), "Y")
    case.equal(Y[:, :, :SIDE], right, "Y of the first tile", atol=1e-5)


@check_kernel(triton_flash_forward, see="Softmax in one pass")
def log_sums(flash, case):
    """stores the log-sum of every query's scores, head by head"""
    compare_flash(case, flash, inputs(case, 1, 2, 4, 21, 3), False, of="s")


@check_kernel(triton_flash_forward, see="When a larger score arrives")
def large_scores(flash, case):
    """neither overflows nor loses digits when scores are large"""
    Q, K = (case.integers(-16, 17, 1, 1, N, 4).double() for N in (2, 19))  # exact in float32
    compare_flash(case, flash, [Q, K, case.randn(1, 1, 19, 4)], False)


@check_kernel(triton_flash_forward, see="When a larger score arrives")
def small_scores(flash, case):
    """stays right when all scores are far below zero"""
    compare_flash(case, flash, far_below(case, 1, 1, 2, 19, 20), False)


@check_kernel(triton_flash_forward, weight=2, see="Edges need masks")
def edges(flash, case):
    """stays inside its tensors, with full tiles and with heads wider than a tile is high"""
    compare_flash(case, flash, inputs(case, 1, 1, 16, 17, 18), True)


def paged_inputs(
    case: Case, H: int, G: int, S: int, D_h: int, lengths: list[int], spare: int = 0
) -> list[Tensor]:
    """Draw Q, K, V, tables and lengths; what no length reaches holds large numbers."""
    M = math.ceil(max(lengths) / S) + spare
    blocks = len(lengths) * M + 2
    Q = 2 * case.randn(len(lengths), H, D_h)
    K, V = 50 + case.randn(G, blocks, S, D_h), 50 + case.randn(G, blocks, S, D_h)
    order = torch.randperm(blocks, generator=case.generator)
    tables = order[: len(lengths) * M].reshape(len(lengths), M)
    for table, length in zip(tables, lengths, strict=True):
        slots = torch.tensor([table[t // S] * S + t % S for t in range(length)])
        for X in (K, V):
            X[:, slots // S, slots % S] = 2 * case.randn(G, length, D_h)
    return [Q, K, V, tables, torch.tensor(lengths)]


def compare_paged(case: Case, decode, given: list[Tensor], *parts: int) -> None:
    """Compare with torch's attention over each sequence, copied out of its blocks."""
    Q, K, V, tables, lengths = given
    G, _, S, D_h = K.shape
    rows = []
    for b, length in enumerate(lengths.tolist()):
        blocks = tables[b, : math.ceil(length / S)]
        k, v = (X[:, blocks].reshape(G, -1, D_h)[:, :length].float().double() for X in (K, V))
        q = Q[b].float().double().reshape(G, -1, D_h)  # the heads that share keys and values
        rows.append(F.scaled_dot_product_attention(q, k, v).reshape(-1, D_h))
    Y = decode(*narrow(*given), *parts)
    case.equal(Y, torch.stack(rows), "Y", atol=1e-5)


@check_kernel(triton_paged_decode, weight=3, see="Optional: decode from a paged cache")
def values(decode, case):
    """gives torch's attention over the positions that the table names, in all heads"""
    compare_paged(case, decode, paged_inputs(case, 6, 2, 4, 5, [31]), 1)
    Q, K, V, tables, lengths = paged_inputs(case, 3, 1, 4, 5, [2 * SIDE])
    for order in (tables, tables.flip(1)):  # the largest score comes late in one of them
        compare_paged(case, decode, [Q, K, V, order, lengths], 1)


@check_kernel(triton_paged_decode, weight=2, see="Optional: decode from a paged cache")
def ends(decode, case):
    """reads as far as each sequence is long: one position, a full block, one more than that"""
    compare_paged(case, decode, paged_inputs(case, 2, 1, 4, 3, [5, 4, 1]), 1)


@check_kernel(triton_paged_decode, weight=2, see="Long sequences in parts")
def parts(decode, case):
    """gives the same when a sequence is read in parts, even if one of them is empty"""
    compare_paged(case, decode, paged_inputs(case, 2, 1, 2, 3, [3, 1, 5]), 2)


@check_kernel(triton_paged_decode, weight=2, see="Optional: decode from a paged cache")
def stale(decode, case):
    """reads no table and no slot beyond the sequence's end, whatever is there"""
    given = paged_inputs(case, 2, 1, 3, 5, [6, 2], spare=1)
    while 0 in given[3][0, :2] or given[3][1, 0] == 0:  # block 0 is what a masked load names
        given = paged_inputs(case, 2, 1, 3, 5, [6, 2], spare=1)
    for X in given[1:3]:
        X[X > 25] = math.nan  # what no length reaches
    given[3][0, 2:], given[3][1, 1:] = 1 << 40, -(1 << 40)
    compare_paged(case, decode, given, 1)


@check_kernel(triton_paged_decode, see="When a larger score arrives")
def large_scores(decode, case):
    """neither overflows nor loses digits when the scores of some heads are large"""
    Q, K, V, *rest = paged_inputs(case, 3, 1, 4, 64, [19])
    Q = Q.round() * torch.tensor([10.0, 1.0, 5.0])[:, None]  # with whole K, exact in float32
    compare_paged(case, decode, [Q, (3 * K).round(), V, *rest], 1)


@check_kernel(triton_paged_decode, see="When a larger score arrives")
def small_scores(decode, case):
    """stays right when all scores are far below zero"""
    Q, K, V = far_below(case, 1, 2, 1, 6, 20)
    K, V = (X.reshape(2, 3, 2, 4) for X in (K, V))
    compare_paged(case, decode, [Q[:, :, 0], K, V, torch.tensor([[2, 0, 1]]), torch.tensor([5])], 1)


def gradients(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    Y: Tensor,
    s: Tensor,
    dY: Tensor,
    causal: bool = False,
    rows: int = 32,
    columns: int = 32,
) -> tuple[Tensor, ...]:
    """Let autograd find the gradients, if Y and s are those of the forward pass."""
    if not all(X.dim() == 4 for X in (Q, K, V)) or min(rows, columns) < 1:
        raise ValueError("Q, K and V should be (B, H, T or N, D_h), and tiles have at least 1 row")
    leaves = [X.detach().double().requires_grad_() for X in (Q, K, V)]
    found = torchs(*leaves, causal)
    if s.shape != Y.shape[:3] or not torch.allclose(Y.double(), found, 1e-3, 1e-4):
        raise ValueError("Y and s should be what the forward pass makes of Q, K and V")
    sums = torch.logsumexp(scores(*leaves[:2], causal)[0], dim=-1)
    if not torch.allclose(s.double(), sums, 1e-3, 1e-4):
        raise ValueError("s should be what the forward pass makes of Q, K and V")
    return torch.autograd.grad(found, leaves, dY.double())


@check(flash_attention_backward_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "flash_attention_backward", gradients)
