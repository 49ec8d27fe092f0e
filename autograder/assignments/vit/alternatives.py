"""Other correct solutions of vit: loops, unfold, convolutions, torch's functions."""

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg import black_box
from course_pkg.attention import MultiHeadAttention
from course_pkg.vit import (
    PatchEmbedding,
    ViT,
    ViTLayer,
    attention_rollout,
    patchify,
    resize_positions,
    resize_positions_fault,
    unpatchify,
    vit_parameters,
)


@alternative(patchify)
def by_unfold(images, P):
    B, C, S_h, S_w = images.shape
    if S_h % P != 0 or S_w % P != 0:
        raise ValueError("P")
    columns = F.unfold(images, P, stride=P)  # channels first
    return columns.reshape(B, C, P * P, -1).permute(0, 3, 2, 1).reshape(B, -1, P * P * C)


@alternative(patchify)
def patch_by_patch(images, P):
    if any(side % P for side in images.shape[-2:]):
        raise ValueError("P")
    rows = []
    for top in range(0, images.shape[2], P):
        for left in range(0, images.shape[3], P):
            patch = images[:, :, top : top + P, left : left + P]
            rows.append(patch.permute(0, 2, 3, 1).flatten(1))
    return torch.stack(rows, dim=1)


@alternative(patchify)
def by_tensor_unfold(images, P):
    if images.size(2) % P or images.size(3) % P:
        raise ValueError("P")
    grid = images.unfold(2, P, P).unfold(3, P, P)  # (B, C, h, w, P, P)
    return grid.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)


@alternative(unpatchify)
def by_fold(patches, P, size):
    B, N, numbers = patches.shape
    S_h, S_w = size
    if numbers % P**2 or S_h % P or S_w % P or N != S_h // P * (S_w // P):
        raise ValueError("sizes")
    columns = patches.reshape(B, N, P * P, -1).permute(0, 3, 2, 1).reshape(B, -1, N)
    return F.fold(columns, (S_h, S_w), P, stride=P)


@alternative(unpatchify)
def row_by_row(patches, P, size):
    h, w = size[0] // P, size[1] // P
    C, rest = divmod(patches.shape[2], P * P)
    if (h * P, w * P) != tuple(size) or rest or h * w != patches.shape[1]:
        raise ValueError("sizes")
    squares = patches.unflatten(2, (P, P, C)).permute(0, 1, 4, 2, 3)  # (B, N, C, P, P)
    rows = [torch.cat(list(squares[:, i * w : (i + 1) * w].unbind(1)), dim=-1) for i in range(h)]
    return torch.cat(rows, dim=-2)


@alternative(PatchEmbedding)
class ByConvolution(nn.Module):
    """Never cuts an image."""

    def __init__(self, C, P, D):
        super().__init__()
        self.C, self.P = C, P
        self.W, self.b = nn.Parameter(torch.zeros(P * P * C, D)), nn.Parameter(torch.zeros(D))

    def kernel(self):
        return self.W.reshape(self.P, self.P, self.C, -1).permute(3, 2, 0, 1).contiguous()

    def forward(self, images):
        grid = F.conv2d(images, self.kernel(), self.b, stride=self.P)
        return grid.flatten(2).transpose(1, 2)


@alternative(PatchEmbedding)
class ByLinear(PatchEmbedding):
    """Multiplies through F.linear, and lays out the kernel channel by channel."""

    def forward(self, images):
        return F.linear(patchify(images, self.P), self.W.t(), self.b)

    def kernel(self):
        P, (rows, D) = self.P, self.W.shape
        kernel = [self.W[c :: rows // P**2].T.reshape(D, P, P) for c in range(rows // P**2)]
        return torch.stack(kernel, dim=1)


@alternative(ViTLayer)
class InTwoHalves(nn.Module):
    """Names its steps, and computes GELU by the error function."""

    def __init__(self, D, H):
        super().__init__()
        self.attention = MultiHeadAttention(D, H, bias=True)
        self.norm_1, self.norm_2 = nn.LayerNorm(D, eps=1e-6), nn.LayerNorm(D, eps=1e-6)
        self.expand, self.contract = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, X):
        normed = self.norm_1(X)
        Y, A = self.attention(normed, normed, return_weights=True)
        middle = X + Y
        a = self.expand(self.norm_2(middle))
        return middle + self.contract(0.5 * a * (1 + torch.erf(a / 2**0.5))), A


@alternative(ViTLayer)
class ByHand(ViTLayer):
    """Normalises by hand, and masks with a mask that allows everything."""

    def forward(self, X):
        T = X.shape[1]
        mask = torch.ones(T, T, dtype=torch.bool)
        Y, A = self.attention(self.normalise(X, self.norm_1), mask=mask, return_weights=True)
        X = X + Y
        hidden = nn.GELU()(self.expand(self.normalise(X, self.norm_2)))
        return self.contract(hidden) + X, A

    def normalise(self, X, norm):
        X = X - X.mean(dim=-1, keepdim=True)
        X = X / (X.var(dim=-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
        return X * norm.weight + norm.bias


@alternative(ViT)
class WrittenIn(ViT):
    """Writes the tokens into a tensor, and reads its pool by a matrix."""

    def embed(self, images):
        B, _, S_h, S_w = images.shape
        if (S_h, S_w) != (self.size[0], self.size[1]):
            raise ValueError("size")
        T, D = self.positions.shape
        X = images.new_zeros(B, T, D)
        if self.pool == "cls":
            X[:, 0] = self.cls
        X[:, int(self.pool == "cls") :] = self.patches(images)
        return X + self.positions[None]

    def forward(self, images, return_weights=False):
        X, A = self.embed(images), []
        for layer in self.layers:
            X, weights = layer(X)
            A += [weights]
        T = X.shape[1]
        share = torch.full((T,), 1 / T).to(X)
        if self.pool == "cls":
            share = F.one_hot(torch.tensor(0), T).to(X)
        logits = self.head(torch.einsum("t,btd->bd", share, self.norm(X)))
        if not return_weights:
            return logits
        return logits, torch.stack(A, dim=0)


@alternative(ViT)
class PlacedFirst(ViT):
    """Adds the positions before the class token comes, and classifies all tokens for the mean."""

    def embed(self, images):
        if images.shape[-2:] != torch.Size(self.size):
            raise ValueError("size")
        if self.pool == "mean":
            return self.patches(images) + self.positions
        first = (self.cls + self.positions[0]).repeat(len(images), 1, 1)
        return torch.cat((first, self.patches(images) + self.positions[1:]), 1)

    def forward(self, images, return_weights=False):
        X = self.embed(images)
        weights = []
        for number in range(len(self.layers)):
            X, A = self.layers[number](X)
            weights.append(A[None])
        every = self.head(self.norm(X))
        logits = every[:, 0] if self.pool == "cls" else every.mean(1)
        return (logits, torch.cat(weights)) if return_weights else logits


@alternative(vit_parameters)
def polynomial(size, P, C, D, L, classes, pool="cls"):
    extra = {"cls": 2, "mean": 0}[pool]
    return {
        "head": classes + classes * D,
        "norm": D + D,
        "layers": L * (12 * D**2 + 13 * D),
        "positions": D * (size[0] * size[1] // P**2 + extra),
        "patches": D + D * C * P**2,
    }


@alternative(vit_parameters)
def by_building(size, P, C, D, L, classes, pool="cls"):
    with torch.device("meta"):  # shapes without numbers: the largest model has 2.5 GB of them
        model = ViT(size, P, C, D, 1, L, classes, pool)
    counts = dict.fromkeys(("patches", "positions", "layers", "norm", "head"), 0)
    for name, parameter in model.named_parameters():
        part = name.partition(".")[0]
        counts["positions" if part == "cls" else part] += parameter.numel()
    return counts


@alternative(resize_positions)
def feature_by_feature(positions, old, new):
    h, w = old
    grid, before = positions[len(positions) - h * w :], positions[: len(positions) - h * w]
    if len(positions) < h * w:
        raise ValueError("too few")
    columns = [
        F.interpolate(column.reshape(1, 1, h, w), size=tuple(new), mode="bicubic").flatten()
        for column in grid.unbind(1)
    ]
    return torch.cat([before, torch.stack(columns, dim=1)])


@alternative(resize_positions)
def permuted(positions, old, new):
    count = old[0] * old[1]
    if positions.shape[0] < count:
        raise ValueError("too few")
    special, grid = positions.split([positions.shape[0] - count, count])
    grid = grid.unflatten(0, tuple(old))[None].permute(0, 3, 1, 2)
    grid = nn.Upsample(size=tuple(new), mode="bicubic", align_corners=False)(grid)
    return torch.vstack([special, grid.permute(0, 2, 3, 1).reshape(-1, positions.shape[1])])


@alternative(resize_positions_fault)
def on_a_grid():
    return ["B", [torch.eye(9), [3, 3], [2, 2]]]


@alternative(resize_positions_fault)
def found_by_range():
    box, image = black_box("resize_positions"), torch.eye(5)[2:3].T
    for width in range(5, 11):
        if width > 5 and box(image, (1, 5), (1, width)).min() >= 0:  # bicubic would overshoot
            return "B", (image, (1, 5), (1, width))
    return "A", (image, (1, 5), (1, 5))


@alternative(attention_rollout)
def from_the_top(A):
    T = A.shape[-1]
    R = torch.eye(T, dtype=A.dtype).expand(A.shape[1], T, T)
    for layer in reversed(A.unbind(0)):
        mean = layer.mean(1)
        R = 0.5 * R + 0.5 * torch.bmm(R, mean)
    return R


@alternative(attention_rollout)
def normalised_rows(A):
    mixed = A.sum(dim=2) + A.shape[2] * torch.eye(A.shape[-1], dtype=A.dtype)
    mixed = mixed / mixed.sum(dim=-1, keepdim=True)
    R = mixed[-1]
    for layer in mixed[:-1].flip(0):
        R = torch.einsum("bij,bjk->bik", R, layer)
    return R
