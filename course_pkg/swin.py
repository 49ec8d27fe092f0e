"""Swin: attention inside small windows that shift from block to block, on maps that shrink.

Shapes: B images of C channels; maps of h × w positions with D features each (the paper's C);
windows of M × M positions, T = M·M, of which a map has N = h/M · w/M; H heads. Masks are boolean:
True = may attend.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.attention import masked_softmax


def window_partition(X: Float[Tensor, "B h w D"], M: int) -> Float[Tensor, "B N M*M D"]:
    """Cut maps into square windows that do not overlap.

    The windows come in reading order: the top row from left to right, then the next row. In
    a window the positions come in the same order.
    windows[b, i · w/M + j, p · M + q] = X[b, i · M + p, j · M + q]      (Liu et al. 2021, §3.2)

    Args:
        X: the maps.
        M: side of a window, in positions.
    Returns:
        The windows, N = h/M · w/M for each map.
    Raises:
        ValueError: M does not divide both sides of the maps.
    """
    B, h, w, D = X.shape
    if h % M or w % M:
        raise ValueError(f"a map of {h} × {w} cannot be cut into windows of {M} × {M}")
    grid = X.reshape(B, h // M, M, w // M, M, D)
    return grid.transpose(2, 3).reshape(B, -1, M * M, D)  # (B, h/M, w/M, M, M, D) before


def window_reverse(
    windows: Float[Tensor, "B N M*M D"], M: int, size: tuple[int, int]
) -> Float[Tensor, "B h w D"]:
    """Put maps together again from their windows: the inverse of `window_partition`.

    Args:
        windows: the windows, in the order of `window_partition`.
        M: side of a window, in positions.
        size: height h and width w of the maps.
    Returns:
        The maps.
    Raises:
        ValueError: the windows do not make up maps of that size.
    """
    B, N, T, D = windows.shape
    h, w = size
    if T != M * M or h % M or w % M or N * T != h * w:
        raise ValueError(f"{N} windows of {T} positions do not make up a map of {h} × {w}")
    grid = windows.reshape(B, h // M, w // M, M, M, D)
    return grid.transpose(2, 3).reshape(B, h, w, D)


def relative_position_index(M: int) -> Int[Tensor, "M*M M*M"]:
    """Number the offsets between the positions of a window, the same number for the same offset.

    A query at row p, column q and a key at row p', column q' of a window have the number
    (p - p' + M - 1) (2M - 1) + (q - q' + M - 1), from 0 to (2M - 1)² - 1.
    It is the row of the bias table that serves the pair      (Liu et al. 2021, §3.2)

    Args:
        M: side of the window.
    Returns:
        One number for each pair, rows for queries and columns for keys, in the order of
        `window_partition`.
    """
    place = torch.arange(M * M)
    p, q = place // M, place % M
    down = p[:, None] - p + M - 1  # (M·M, M·M), from 0 to 2M - 2
    right = q[:, None] - q + M - 1
    return down * (2 * M - 1) + right


class WindowAttention(nn.Module):
    """Attend inside windows, with a learned bias for each offset between query and key.

    Parts: qkv (nn.Linear, D to 3D), which gives a position's query, then its key, then its value;
    bias_table ((2M-1)², H), drawn from N(0, 0.02²); out (nn.Linear, D to D). Head number n has
    features n D_h to (n+1) D_h - 1 of each query, key and value, with D_h = D / H.

    Args:
        D: size of the vectors.
        H: how many heads; divides D.
        M: side of the windows.
    """

    def __init__(self, D: int, H: int, M: int):
        super().__init__()
        self.H, self.M = H, M
        self.qkv = nn.Linear(D, 3 * D)
        self.bias_table = nn.Parameter(0.02 * torch.randn((2 * M - 1) ** 2, H))
        self.out = nn.Linear(D, D)

    def forward(
        self,
        windows: Float[Tensor, "B N T D"],
        mask: Bool[Tensor, "N T T"] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B N T D"] | tuple[Float[Tensor, "B N T D"], Float[Tensor, "B N H T T"]]:
        """Attend from every position to the positions of its own window.

        A_n = softmax(Q_n K_nᵀ / √D_h + β_n) over the allowed keys,   Y = out([A_1 V_1 … A_H V_H]),
        where β_n is (T, T), looked up in column n of the bias table by `relative_position_index`
        (Liu et al. 2021, eq. 4, whose B is our β)

        Args:
            windows: the windows of `window_partition`, T = M·M.
            mask: for each window of a map, what may be attended to; everything when None. The
                rest has weight 0, whatever the size of the scores: to add -100, as the published
                code does, is not enough.
            return_weights: whether to return A as well, the weights of every head.
        Returns:
            Y, or (Y, A).
        """
        ### BEGIN SOLUTION
        B, N, T, D = windows.shape
        qkv = self.qkv(windows).reshape(B, N, T, 3, self.H, D // self.H)
        Q, K, V = qkv.permute(3, 0, 1, 4, 2, 5)  # (B, N, H, T, D_h) each
        bias = self.bias_table[relative_position_index(self.M)].permute(2, 0, 1)  # (H, T, T)
        E = Q @ K.mT / math.sqrt(D // self.H) + bias  # (B, N, H, T, T)
        A = masked_softmax(E, None if mask is None else mask[:, None])
        Y = self.out((A @ V).transpose(2, 3).reshape(B, N, T, D))
        return (Y, A) if return_weights else Y
        ### END SOLUTION


def window_attention_cost(h: int, w: int, D: int, M: int) -> dict[str, int]:
    """Count the multiply-adds of attention on one map, to all positions and inside windows.

    global:    4 h w D² + 2 (h w)² D
    windowed:  4 h w D² + 2 M² h w D      (Liu et al. 2021, eq. 1 and 2, whose C is our D)

    Args:
        h, w: height and width of the map.
        D: features of a position, of its query, its key and its value.
        M: side of a window; divides h and w.
    Returns:
        The multiply-adds of all matrix products, "global" and "windowed".
    """
    projections = 4 * h * w * D**2
    return {
        "global": projections + 2 * (h * w) ** 2 * D,
        "windowed": projections + 2 * M**2 * h * w * D,
    }


def shifted_window_mask(size: tuple[int, int], M: int, shift: int) -> Bool[Tensor, "N M*M M*M"]:
    """Allow the pairs of a window that are neighbours on the map too, not only after rolling it.

    The map has been rolled up and to the left by `shift`: its first rows are now its last, its
    first columns are now its last. A window that holds both old last and old first rows (or
    columns) is made of parts that do not belong together      (Liu et al. 2021, §3.2 and figure 4)

    Args:
        size: height h and width w of the map.
        M: side of a window, in positions.
        shift: how far the map has been rolled, from 0 to M - 1.
    Returns:
        For each window of the rolled map, in the order of `window_partition`: which query (row) may
        attend to which key (column). True = may attend.
    Raises:
        ValueError: shift is negative, or M or more; or M does not divide h and w.
    """
    if not 0 <= shift < M:
        raise ValueError(f"shift must lie between 0 and {M - 1}, got {shift}")
    h, w = size
    from_top = torch.arange(h) >= h - shift  # rows that were the map's first
    from_left = torch.arange(w) >= w - shift
    part = 2 * from_top[:, None] + from_left  # (h, w), four parts: 0, 1, 2, 3
    part = window_partition(part[None, :, :, None], M)[0, :, :, 0]  # (N, M·M)
    return part[:, :, None] == part[:, None, :]


class SwinBlock(nn.Module):
    """Attention inside windows, perhaps shifted, and a small network, each added to what comes in.

    Args:
        D: size of the vectors.
        H: how many heads; divides D.
        M: side of the windows.
        shift: how far the windows are displaced, down and to the right, from 0 to M - 1.
    """

    def __init__(self, D: int, H: int, M: int, shift: int = 0):
        super().__init__()
        self.M, self.shift = M, shift
        self.norm_1 = nn.LayerNorm(D)
        self.attention = WindowAttention(D, H, M)
        self.norm_2 = nn.LayerNorm(D)
        self.expand = nn.Linear(D, 4 * D)
        self.contract = nn.Linear(4 * D, D)

    def forward(self, X: Float[Tensor, "B h w D"]) -> Float[Tensor, "B h w D"]:
        """Apply the block: both parts are pre-LN.

        X ← X + back(attention(windows(norm_1(X)))),   X ← X + contract(gelu(expand(norm_2(X)))),
        gelu(x) = x · Φ(x), with Φ the normal distribution's cumulative function.
        `windows` rolls the map up and to the left by shift, and cuts it; `back` joins the windows,
        and rolls the map back      (Liu et al. 2021, eq. 3)

        A map that is only one window high or wide is not shifted: its windows see all of that side.

        Args:
            X: the maps; M divides their sides. They are not changed in place.
        Returns:
            The new maps.
        Raises:
            ValueError: M does not divide both sides of the maps.
        """
        ### BEGIN SOLUTION
        _, h, w, _ = X.shape
        shift = self.shift if min(h, w) > self.M else 0
        mask = shifted_window_mask((h, w), self.M, shift).to(X.device) if shift else None
        rolled = torch.roll(self.norm_1(X), (-shift, -shift), dims=(1, 2))
        Y = self.attention(window_partition(rolled, self.M), mask)
        X = X + torch.roll(window_reverse(Y, self.M, (h, w)), (shift, shift), dims=(1, 2))
        wide = functional.gelu(self.expand(self.norm_2(X)))
        return X + self.contract(wide)
        ### END SOLUTION


class PatchMerging(nn.Module):
    """Halve the sides of a map: join the four positions of every 2 × 2 square into one.

    Parts: norm, a layer norm of 4D features; reduction (nn.Linear, 4D to 2D, without a bias).

    Args:
        D: size of the vectors that come in; those that go out have size 2D.
    """

    def __init__(self, D: int):
        super().__init__()
        self.norm = nn.LayerNorm(4 * D)
        self.reduction = nn.Linear(4 * D, 2 * D, bias=False)

    def forward(self, X: Float[Tensor, "B h w D"]) -> Float[Tensor, "B h/2 w/2 2*D"]:
        """Compute reduction(norm([top left; bottom left; top right; bottom right])).

        Args:
            X: the maps.
        Returns:
            Maps of half the height and half the width      (Liu et al. 2021, §3.1).
        Raises:
            ValueError: a side of the maps is odd.
        """
        ### BEGIN SOLUTION
        _, h, w, _ = X.shape
        if h % 2 or w % 2:
            raise ValueError(f"a map of {h} × {w} cannot be cut into squares of 2 × 2")
        corners = [X[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.norm(torch.cat(corners, dim=-1)))
        ### END SOLUTION


class Swin(nn.Module):
    """Classify images with a hierarchy: stages of blocks, each on maps of half the previous side.

    Stage number n = 0, 1, … has depths[n] blocks with 2ⁿ D features and heads[n] heads; every
    second block of a stage, beginning with its second, is shifted by M // 2.

    Parts: patches (nn.Conv2d with kernel and stride P); patch_norm, a layer norm; stages
    (nn.ModuleList of one nn.Sequential of SwinBlocks for each stage); mergings (nn.ModuleList of
    one PatchMerging for each stage but the last); norm, a layer norm; head (nn.Linear).

    Args:
        C: channels of the images.
        P: side of a patch, in pixels.
        D: features in the first stage.
        depths: how many blocks each stage has.
        heads: how many heads the blocks of each stage have.
        M: side of the windows, in all stages.
        classes: how many classes there are.
        shifted: whether windows shift; if not, no block does.
    Raises:
        ValueError: depths and heads differ in length.
    """

    def __init__(
        self,
        C: int,
        P: int,
        D: int,
        depths: tuple[int, ...],
        heads: tuple[int, ...],
        M: int,
        classes: int,
        shifted: bool = True,
    ):
        super().__init__()
        if len(depths) != len(heads):
            raise ValueError(f"depths are given for {len(depths)} stages, heads for {len(heads)}")
        self.patches = nn.Conv2d(C, D, kernel_size=P, stride=P)
        self.patch_norm = nn.LayerNorm(D)
        self.stages, self.mergings = nn.ModuleList(), nn.ModuleList()
        last = D * 2 ** (len(depths) - 1)
        self.norm = nn.LayerNorm(last)
        self.head = nn.Linear(last, classes)
        ### BEGIN SOLUTION
        for number, (depth, H) in enumerate(zip(depths, heads, strict=True)):
            if number > 0:
                self.mergings.append(PatchMerging(D))
                D = 2 * D
            shifts = [M // 2 if shifted and block % 2 else 0 for block in range(depth)]
            self.stages.append(nn.Sequential(*[SwinBlock(D, H, M, shift) for shift in shifts]))
        ### END SOLUTION

    def maps(self, images: Float[Tensor, "B C S_h S_w"]) -> list[Float[Tensor, "B h w D_n"]]:
        """Compute the map of every stage: what a detector or a segmenter would build upon.

        Args:
            images: the images. P divides their sides; M divides those of every stage's map.
        Returns:
            The output of each stage's last block; the next stage begins with its merging.
        """
        ### BEGIN SOLUTION
        X = self.patch_norm(self.patches(images).permute(0, 2, 3, 1))  # (B, h, w, D)
        found = [self.stages[0](X)]
        for merging, stage in zip(self.mergings, self.stages[1:], strict=True):
            found.append(stage(merging(found[-1])))
        return found
        ### END SOLUTION

    def forward(self, images: Float[Tensor, "B C S_h S_w"]) -> Float[Tensor, "B classes"]:
        """Score the classes: head(mean over all positions of norm(last map)).

        Args:
            images: the images, as for `maps`.
        Returns:
            The logits      (Liu et al. 2021, §3.1).
        """
        ### BEGIN SOLUTION
        return self.head(self.norm(self.maps(images)[-1]).mean(dim=(1, 2)))
        ### END SOLUTION


def relative_position_index_fault() -> tuple[str, tuple[int]]:
    """Say what is wrong with the black box of `relative_position_index`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `relative_position_index` does.
    """
    M = 2  # query 0 with key 3, one row and one column on: number 0, or 8 in the box
    return "E", (M,)
