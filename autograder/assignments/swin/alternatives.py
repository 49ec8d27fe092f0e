"""Other correct solutions of swin: loops, unfold, einsum, torch's attention, float32."""

import itertools

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg import black_box
from course_pkg.swin import (
    PatchMerging,
    Swin,
    SwinBlock,
    WindowAttention,
    relative_position_index,
    relative_position_index_fault,
    shifted_window_mask,
    window_attention_cost,
    window_partition,
    window_reverse,
)


def demand(holds):
    if not holds:
        raise ValueError("these sides do not fit")


@alternative(window_partition)
def window_by_window(X, M):
    h, w = X.shape[1:3]
    demand(h % M == 0 and w % M == 0)
    corners = itertools.product(range(0, h, M), range(0, w, M))
    return torch.stack([X[:, i : i + M, j : j + M].flatten(1, 2) for i, j in corners], dim=1)


@alternative(window_partition)
def unfolded(X, M):
    demand(X.shape[1] % M == 0 and X.shape[2] % M == 0)
    return X.unfold(1, M, M).unfold(2, M, M).flatten(1, 2).permute(0, 1, 3, 4, 2).flatten(2, 3)


@alternative(window_reverse)
def pasted(windows, M, size):
    B, N, T, D = windows.shape
    h, w = size
    demand(h % M == 0 and w % M == 0 and T == M**2 and N == (h // M) * (w // M))
    X = torch.zeros(B, h, w, D, dtype=windows.dtype)
    for n in range(N):
        i, j = divmod(n, w // M)
        X[:, i * M : i * M + M, j * M : j * M + M] = windows[:, n].reshape(B, M, M, D)
    return X


@alternative(window_reverse)
def row_by_row(windows, M, size):
    h, w = size
    demand(h % M == 0 and w % M == 0 and windows.shape[1:3] == (h * w // M**2, M * M))
    squares = windows.unflatten(2, (M, M)).unbind(1)
    across = w // M
    rows = [torch.cat(squares[n : n + across], 2) for n in range(0, len(squares), across)]
    return torch.cat(rows, 1)


@alternative(relative_position_index)
def pair_by_pair(M):
    index = torch.empty(M * M, M * M, dtype=torch.int64)
    for i, j in itertools.product(range(M * M), repeat=2):
        down, right = i // M - j // M, i % M - j % M
        index[i, j] = (M - 1 + down) * (2 * M - 1) + M - 1 + right
    return index


@alternative(relative_position_index)
def from_a_grid(M):
    grid = torch.stack(torch.meshgrid(torch.arange(M), torch.arange(M), indexing="ij")).flatten(1)
    offset = (grid[:, :, None] - grid[:, None]) + (M - 1)
    return (offset * torch.tensor([2 * M - 1, 1])[:, None, None]).sum(0).to(torch.int32)


@alternative(relative_position_index_fault)
def published_side():
    return ["E", [7]]


@alternative(relative_position_index_fault)
def found_by_trying():
    box = black_box("relative_position_index")
    side = next(M for M in range(1, 9) if int(box(M)[0, -1]) != 0)
    return "E", (side,)


@alternative(WindowAttention)
class ByTorch(WindowAttention):
    """Leaves scores, softmax and products to torch, unless the weights are asked for."""

    def forward(self, windows, mask=None, return_weights=False):
        Q, K, V = (x.unflatten(-1, (self.H, -1)).transpose(2, 3) for x in self.parts(windows))
        added = self.bias_table.T[:, relative_position_index(self.M)]
        if mask is not None:
            added = torch.where(mask[:, None], added, -torch.inf)
        added = added.expand(*Q.shape[:-1], -1)
        Y = F.scaled_dot_product_attention(Q, K, V, attn_mask=added)
        Y = self.out(Y.transpose(2, 3).flatten(3))
        if not return_weights:
            return Y
        return Y, torch.softmax(Q @ K.mT * Q.shape[-1] ** -0.5 + added, -1)

    def parts(self, windows):
        return self.qkv(windows).chunk(3, -1)


@alternative(WindowAttention)
class HeadByHead(WindowAttention):
    """Computes one head of one window after the other."""

    def forward(self, windows, mask=None, return_weights=False):
        _, N, _, D = windows.shape
        size, index = D // self.H, relative_position_index(self.M)
        outputs, weights = [], []
        for n in range(N):
            heads, own = [], []
            for h in range(self.H):
                rows = [slice(k * D + h * size, k * D + (h + 1) * size) for k in range(3)]
                Q, K, V = (
                    F.linear(windows[:, n], self.qkv.weight[row], self.qkv.bias[row])
                    for row in rows
                )
                E = torch.einsum("btd,bsd->bts", Q, K) / size**0.5 + self.bias_table[index, h]
                if mask is not None:
                    E = E.masked_fill(~mask[n], float("-inf"))
                own.append(E.softmax(-1))
                heads.append(own[-1] @ V)
            outputs.append(self.out(torch.cat(heads, -1)))
            weights.append(torch.stack(own, 1))
        Y, A = torch.stack(outputs, 1), torch.stack(weights, 1)
        return [Y, A] if return_weights else Y


@alternative(window_attention_cost)
def product_by_product(h, w, D, M):
    def one(T):
        return 3 * T * D * D + T * T * D + T * T * D + T * D * D

    return {"windowed": (h // M) * (w // M) * one(M * M), "global": one(h * w)}


@alternative(window_attention_cost)
def factored(h, w, D, M):
    return {
        kind: 2.0 * h * w * D * (2 * D + T) for kind, T in [("global", h * w), ("windowed", M * M)]
    }


@alternative(shifted_window_mask)
def by_slices(size, M, shift):
    """Numbers nine regions, as the authors' code does."""
    demand(0 <= shift < M)
    h, w = size
    region = torch.zeros(1, h, w, 1)
    cuts = [slice(0, -M), slice(-M, -shift), slice(-shift, None)] if shift else [slice(None)]
    for number, (rows, columns) in enumerate(itertools.product(cuts, cuts)):
        region[:, rows, columns] = number
    region = window_partition(region, M)[0, :, :, 0]
    return region.unsqueeze(1) - region.unsqueeze(2) == 0


@alternative(shifted_window_mask)
def by_distance(size, M, shift):
    """Allows pairs that are as far apart on the map as they are in the rolled one."""
    demand(0 <= shift < M)
    pairs = []
    for axis in (0, 1):
        place = torch.arange(size[axis]).view([-1, 1] if axis == 0 else [1, -1]).expand(size)
        pair = []
        for rolled in (False, True):
            now = torch.roll(place, -shift, axis) if rolled else place
            now = window_partition(now[None, ..., None], M).squeeze(0).squeeze(-1)
            pair.append(now[:, None] - now[:, :, None])
        pairs.append(pair[0] == pair[1])
    return pairs[0] & pairs[1]


@alternative(SwinBlock)
class Indexed(SwinBlock):
    """Rolls by an index."""

    def forward(self, X):
        B, h, w, D = X.shape
        s = self.shift * (h > self.M and w > self.M)
        order = (torch.arange(h * w).reshape(h, w)).roll((-s, -s), (0, 1)).flatten()
        Y = self.norm_1(X).flatten(1, 2)[:, order].unflatten(1, (h, w))
        Y = self.attention(window_partition(Y, self.M), shifted_window_mask((h, w), self.M, s))
        Y = window_reverse(Y, self.M, (h, w)).flatten(1, 2)[:, order.argsort()]
        X = X + Y.reshape(B, h, w, D)
        return self.contract(nn.GELU()(self.expand(self.norm_2(X)))).add(X)


@alternative(SwinBlock)
class ImageByImage(SwinBlock):
    """Takes one image after the other, and concatenates instead of rolling."""

    def forward(self, X):
        rows = []
        h, w = X.shape[1:3]
        shift, mask = 0, None
        if self.shift > 0 and h != self.M and w != self.M:
            shift = self.shift
            mask = shifted_window_mask((h, w), self.M, shift)
        for x in X.split(1):
            y = self.turn(self.turn(self.norm_1(x), shift, 1), shift, 2)
            y = window_reverse(self.attention(window_partition(y, self.M), mask), self.M, (h, w))
            y = x + self.turn(self.turn(y, h - shift, 1), w - shift, 2)
            rows.append(y + self.contract(F.gelu(self.expand(self.norm_2(y)))))
        return torch.cat(rows)

    def turn(self, X, count, axis):
        count %= X.shape[axis]
        return torch.cat(
            [X.narrow(axis, count, X.shape[axis] - count), X.narrow(axis, 0, count)], axis
        )


@alternative(PatchMerging)
class BySquares(PatchMerging):
    def forward(self, X):
        B, h, w, D = X.shape
        demand(h % 2 == 0 and w % 2 == 0)
        squares = X.reshape(B, h // 2, 2, w // 2, 2, D).permute(0, 1, 3, 4, 2, 5)
        return self.reduction(self.norm(squares.flatten(3)))


@alternative(PatchMerging)
class ByConvolution(PatchMerging):
    """Gathers the corners by a convolution with kernels of a single one."""

    def forward(self, X):
        D = X.shape[3]
        demand(X.shape[1] % 2 == 0 and X.shape[2] % 2 == 0)
        kernel = torch.zeros(4 * D, D, 2, 2, dtype=X.dtype)
        for corner, (row, column) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
            kernel[torch.arange(D) + corner * D, torch.arange(D), row, column] = 1
        joined = F.conv2d(X.permute(0, 3, 1, 2), kernel, stride=2).permute(0, 2, 3, 1)
        return F.linear(self.norm(joined), self.reduction.weight)


@alternative(Swin)
class Stacked(nn.Module):
    """Builds everything anew, and runs the stages in a list."""

    def __init__(self, C, P, D, depths, heads, M, classes, shifted=True):
        super().__init__()
        demand(len(depths) == len(heads))
        sizes = [D << n for n in range(len(depths))]
        self.patches = nn.Conv2d(C, D, P, P)
        self.patch_norm = nn.LayerNorm(D)
        half = M // 2 if shifted else 0
        self.stages = nn.ModuleList(
            nn.Sequential(*(SwinBlock(size, H, M, (n % 2) * half) for n in range(depth)))
            for size, depth, H in zip(sizes, depths, heads, strict=True)
        )
        self.mergings = nn.ModuleList(map(PatchMerging, sizes[:-1]))
        self.norm, self.head = nn.LayerNorm(sizes[-1]), nn.Linear(sizes[-1], classes)

    def maps(self, images):
        X, found = self.patch_norm(self.patches(images).movedim(1, -1)), []
        for number, stage in enumerate(self.stages):
            X = stage(self.mergings[number - 1](X) if number else X)
            found.append(X)
        return tuple(found)

    def forward(self, images):
        *_, last = self.maps(images)
        return self.head(self.norm(last).flatten(1, 2).mean(1))


@alternative(Swin)
class Patchwise(Swin):
    """Embeds patches by a product, and averages with einsum."""

    def maps(self, images):
        P, W = self.patches.kernel_size[0], self.patches.weight
        cut = images.unfold(2, P, P).unfold(3, P, P)  # (B, C, h, w, P, P)
        X = torch.einsum("bchwpq,dcpq->bhwd", cut, W) + self.patches.bias
        found = [self.stages[0](self.patch_norm(X))]
        for number in range(1, len(self.stages)):
            found.append(self.stages[number](self.mergings[number - 1](found[number - 1])))
        return found

    def forward(self, images):
        last = self.norm(self.maps(images)[-1])
        return self.head(torch.einsum("bhwd->bd", last) / (last.shape[1] * last.shape[2]))
