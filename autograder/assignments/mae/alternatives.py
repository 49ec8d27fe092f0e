"""Other correct solutions of mae: loops, scatter, masks, Newton's method."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg import black_box
from course_pkg.mae import (
    MAEDecoder,
    MAEEncoder,
    grid_positions,
    linear_probe,
    mae_loss,
    random_masking,
    random_masking_fault,
)
from course_pkg.positions import sinusoidal_positions


@alternative(grid_positions)
def by_repetition(h, w, D, base=30.0):
    if D % 4 != 0:
        raise ValueError("D")
    rows = sinusoidal_positions(h, D // 2, base).repeat_interleave(w, dim=0)
    return torch.hstack([rows, sinusoidal_positions(w, D // 2, base).repeat(h, 1)])


@alternative(grid_positions)
def place_by_place(h, w, D, base=30.0):
    if D % 4:
        raise ValueError("D")
    grid = torch.empty(h * w, D, dtype=torch.float64)
    for number in range(h * w):
        for half, n in enumerate(divmod(number, w)):
            for i in range(D // 4):
                angle = n * base ** (-4 * i / D)
                start = half * D // 2 + 2 * i
                grid[number, start], grid[number, start + 1] = math.sin(angle), math.cos(angle)
    return grid


@alternative(random_masking)
def by_scatter(noise, ratio=0.75):
    B, N = noise.shape
    n = math.floor(round(N * (1 - ratio), 6))
    if n < 1 or ratio < 0:
        raise ValueError("ratio")
    order = torch.sort(noise, dim=-1).indices
    restore = torch.empty_like(order)
    restore.scatter_(1, order, torch.arange(N).expand(B, N))
    masked = torch.ones(B, N, dtype=torch.bool).scatter(1, order[:, :n], False)
    return order[:, :n], restore, masked


@alternative(random_masking)
def image_by_image(noise, ratio=0.75):
    N = noise.shape[1]
    n = N - math.ceil(N * ratio - 1e-9)
    if ratio < 0 or n < 1:
        raise ValueError("ratio")
    keep, restore, masked = [], [], []
    for row in noise.tolist():
        order = sorted(range(N), key=lambda number, row=row: row[number])
        keep.append(order[:n])
        restore.append([order.index(number) for number in range(N)])
        masked.append([number not in order[:n] for number in range(N)])
    return [torch.tensor(part) for part in (keep, restore, masked)]


@alternative(random_masking_fault)
def two_pictures():
    return ["B", [torch.rand(2, 40).argsort(dim=1), 0.9]]


@alternative(random_masking_fault)
def found_by_counting():
    box = black_box("random_masking")
    for N in (20, 25, 50):
        for hidden in range(1, N - 1):
            noise = torch.arange(N)[None].flip(1)
            if box(noise, hidden / N)[0].shape[1] != N - hidden:
                return "B", (noise, hidden / N)
    return "A", ()


@alternative(MAEEncoder)
class ByIndexing(MAEEncoder):
    """Indexes with two tensors, and treats the class token as patch 0 of N + 1."""

    def forward(self, images, keep=None):
        X = self.patches(images)
        B, N, D = X.shape
        X = torch.cat([self.cls.view(1, 1, D).repeat(B, 1, 1), X], dim=1) + self.positions[None]
        keep = torch.arange(N).expand(B, N) if keep is None else keep
        numbers = torch.cat([torch.zeros(B, 1, dtype=torch.long), keep + 1], dim=1)
        X = X[torch.arange(B)[:, None], numbers]
        for layer in self.layers:
            X = layer(X)[0]
        return self.norm(X)


@alternative(MAEEncoder)
class OneByOne(MAEEncoder):
    """Encodes each image on its own, and cuts only the visible patches' vectors out."""

    def forward(self, images, keep=None):
        rows = []
        for number, image in enumerate(images):
            patches = self.patches(image[None])[0]
            chosen = torch.arange(len(patches)) if keep is None else keep[number]
            tokens = torch.stack([patches[i] + self.positions[i + 1] for i in chosen.tolist()])
            X = torch.vstack([self.cls + self.positions[0], tokens])[None]
            for layer in self.layers:
                X, _ = layer(X)
            rows.append(self.norm(X))
        return torch.cat(rows)


@alternative(MAEDecoder)
class ByWriting(MAEDecoder):
    """Writes the visible vectors into a tensor full of mask tokens."""

    def forward(self, X, restore):
        B, N = restore.shape
        n = X.shape[1] - 1
        keep = restore.argsort(dim=1)[:, :n]
        X = self.embed(X)
        canvas = self.mask_token.repeat(B, N, 1)
        canvas = canvas.scatter(1, keep[..., None].expand(B, n, X.shape[-1]), X[:, 1:])
        X = torch.cat([X[:, 0:1], canvas], dim=1) + self.positions
        for layer in self.layers:
            X, _ = layer(X)
        return self.head(self.norm(X[:, 1:]))


@alternative(MAEDecoder)
class ByWhere(MAEDecoder):
    """Looks every patch up, and takes the mask token where there is none."""

    def forward(self, X, restore):
        n = X.size(1) - 1
        X = self.embed(X)
        there = (restore < n)[..., None]
        found = X[torch.arange(len(X))[:, None], 1 + restore.clamp(max=n - 1)]
        X = torch.cat((X[:, :1], torch.where(there, found, self.mask_token)), 1) + self.positions
        for layer in self.layers:
            X = layer(X)[0]
        return self.head(self.norm(X)).narrow(1, 1, restore.size(1))


@alternative(mae_loss)
def by_weights(predicted, patches, masked, normalise=True):
    if normalise:
        centred = patches - patches.mean(-1, keepdim=True)
        variance = centred.square().sum(-1, keepdim=True) / (patches.shape[-1] - 1)
        patches = centred * torch.rsqrt(variance + 1e-6)
    error = (predicted - patches).square().mean(-1)
    return (error * masked).sum() / masked.sum()


@alternative(mae_loss)
def by_selection(predicted, patches, masked, normalise=True):
    predicted, targets = predicted[masked], patches[masked]
    if normalise:
        variance, mean = torch.var_mean(targets, dim=1, keepdim=True)
        targets = (targets - mean) / torch.sqrt(variance + 1e-6)
    return F.mse_loss(predicted, targets)


@alternative(linear_probe)
def by_newton(features, labels, new, classes, penalty=0.01):
    features, new = features.double(), new.double()
    mean, deviation = features.mean(dim=0), features.std(dim=0)
    deviation[deviation == 0] = 1
    X = torch.cat([(features - mean) / deviation, torch.ones(len(features), 1).to(features)], 1)
    X_new = torch.cat([(new - mean) / deviation, torch.ones(len(new), 1).to(new)], 1)
    D, targets = X.shape[1], F.one_hot(labels, classes).to(X)
    held = torch.ones(D, classes).to(X) * penalty
    held[-1] = 1e-9  # b: next to nothing, so that one solution remains
    W = torch.zeros(D, classes).to(X)
    for _ in range(30):
        P = (X @ W).softmax(dim=1)
        gradient = X.T @ (P - targets) / len(X) + held * W
        S = torch.diag_embed(P) - P[:, :, None] * P[:, None, :]
        H = torch.einsum("ni,nj,nab->iajb", X, X, S).reshape(D * classes, -1) / len(X)
        H = H + torch.diag(held.flatten())
        W = W - torch.linalg.solve(H, gradient.flatten()).reshape(D, classes)
    return (X_new @ W).softmax(dim=1)


@alternative(linear_probe)
def by_adam(features, labels, new, classes, penalty=0.01):
    spread = features.std(0)
    spread = torch.where(spread == 0, torch.ones_like(spread), spread)
    layer = nn.Linear(features.shape[1], classes).to(features)
    nn.init.zeros_(layer.weight)
    X, X_new = (features - features.mean(0)) / spread, (new - features.mean(0)) / spread
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=800)
    for _ in range(800):
        loss = F.cross_entropy(layer(X), labels) + penalty * layer.weight.square().sum() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return F.softmax(layer(X_new), dim=-1)
