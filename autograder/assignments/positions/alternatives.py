"""Other correct solutions of positions: loops, complex numbers, torch's functional."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg.positions import (
    LearnedPositions,
    RotaryAttention,
    interpolate_positions,
    linear_positions,
    rope_rotate,
    rope_rotate_fault,
    shaw_relative_attention,
    sinusoidal_positions,
)


@alternative(linear_positions)
def outer_product(T, D, normalise=False):
    t = torch.linspace(0, 1 if normalise else T - 1, T, dtype=torch.float64)
    return torch.outer(t, torch.ones(D, dtype=torch.float64))


@alternative(linear_positions)
def cumulative(T, D, normalise=False):
    P = torch.cat([torch.zeros(1, D), torch.ones(T - 1, D)]).cumsum(0)
    return P / P.max() if normalise and T > 1 else P


@alternative(sinusoidal_positions)
def entry_by_entry(T, D, base=10000.0):
    if D % 2 == 1:
        raise ValueError(D)
    P = torch.empty(T, D)
    for t in range(T):
        for i in range(D // 2):
            P[t, 2 * i] = math.sin(t / base ** (2 * i / D))
            P[t, 2 * i + 1] = math.cos(t / base ** (2 * i / D))
    return P


@alternative(sinusoidal_positions)
def slices_and_logarithms(T, D, base=10000.0):
    if D % 2:
        raise ValueError("odd")
    P = torch.zeros(T, D)
    div = torch.exp(torch.arange(0, D, 2).float() * (-math.log(base) / D))
    position = torch.arange(T, dtype=torch.float).unsqueeze(1)
    P[:, 0::2] = torch.sin(position * div)
    P[:, 1::2] = torch.cos(position * div)
    return P


@alternative(LearnedPositions)
class ByIndex(nn.Module):
    def __init__(self, T_max, D):
        super().__init__()
        self.P = nn.Parameter(torch.empty(T_max, D))
        nn.init.normal_(self.P)

    def forward(self, X):
        T = X.size(1)
        if T > self.P.size(0):
            raise ValueError(f"{T} is too long")
        return X + F.embedding(torch.arange(T), self.P).unsqueeze(0)


@alternative(LearnedPositions)
class StepByStep(nn.Module):
    def __init__(self, T_max, D):
        super().__init__()
        self.T_max = T_max
        self.register_parameter("P", nn.Parameter(torch.normal(0.0, 1.0, (T_max, D))))

    def forward(self, X):
        if self.T_max < X.shape[1]:
            raise ValueError("the sequence is longer than the table")
        return torch.stack([x + p for x, p in zip(X.unbind(1), self.P, strict=False)], dim=1)


@alternative(shaw_relative_attention)
def row_by_row(Q, K, V, R_K, R_V, mask=None):
    T, D_Q = Q.shape[-2], Q.shape[-1]
    k = (R_K.shape[0] - 1) // 2
    Y, A = [], []
    for i in range(T):
        rows = torch.tensor([max(-k, min(k, j - i)) + k for j in range(T)])
        e = ((K + R_K[rows]) @ Q[..., i, :, None])[..., 0] / D_Q**0.5
        if mask is None:
            a = e.softmax(-1)
        else:
            allowed = mask[..., i, :]
            a = torch.nan_to_num(e.masked_fill(~allowed, -torch.inf).softmax(-1))
        A.append(a)
        Y.append((a[..., None] * (V + R_V[rows])).sum(-2))
    return torch.stack(Y, dim=-2), torch.stack(A, dim=-2)


@alternative(shaw_relative_attention)
def scores_by_gather(Q, K, V, R_K, R_V, mask=None):
    """Computes Q R_Kᵀ once for every distance, and adds up weights by distance for the values."""
    T, k = Q.shape[-2], len(R_K) // 2
    rows = torch.arange(T)[None, :].sub(torch.arange(T)[:, None]).clip(-k, k).add(k)
    index = rows.expand(*Q.shape[:-1], T)
    E = (Q @ K.transpose(-1, -2) + (Q @ R_K.T).gather(-1, index)) / math.sqrt(Q.size(-1))
    if mask is None:
        A = torch.softmax(E, -1)
    else:
        limits = torch.finfo(E.dtype)
        E = E - E.masked_fill(~mask, limits.min).amax(-1, keepdim=True).detach()
        E = E.masked_fill(~mask, 0).exp() * mask
        A = E / E.sum(-1, keepdim=True).clamp(min=limits.tiny)
    by_distance = Q.new_zeros(*Q.shape[:-1], len(R_V)).scatter_add(-1, index, A)
    return [A @ V + by_distance @ R_V, A]


@alternative(rope_rotate)
def complex_numbers(X, positions=None, base=10000.0):
    T, D = X.shape[-2:]
    if D % 2:
        raise ValueError("odd")
    positions = torch.arange(T) if positions is None else positions
    omega = base ** (-torch.arange(D // 2) * 2 / D)
    turn = torch.exp(1j * positions.float()[:, None] * omega)
    wide = X.float()
    Z = torch.complex(wide[..., : D // 2], wide[..., D // 2 :]) * turn
    return torch.cat((Z.real, Z.imag), -1).to(X.dtype)


@alternative(rope_rotate)
def rotate_half(X, positions=None, base=10000.0):
    T, D = X.shape[-2], X.shape[-1]
    if D % 2 != 0:
        raise ValueError(f"{D} is odd")
    if positions is None:
        positions = torch.arange(T)
    angle = torch.outer(positions.double(), base ** (-torch.arange(0, D, 2).double() / D))
    angle = torch.cat([angle, angle], dim=-1)
    half = torch.cat([-X[..., D // 2 :], X[..., : D // 2]], dim=-1)
    return (X * angle.cos() + half * angle.sin()).to(X.dtype)


@alternative(rope_rotate)
def matrices(X, positions=None, base=10000.0):
    """Builds the whole rotation matrix of every position."""
    T, D = X.shape[-2:]
    if D % 2:
        raise ValueError("D_h")
    positions = range(T) if positions is None else positions.tolist()
    rows = []
    for t, x in zip(positions, X.unbind(-2), strict=True):
        M = torch.zeros(D, D, dtype=torch.float64)
        for i in range(D // 2):
            c, s = math.cos(t * base ** (-2 * i / D)), math.sin(t * base ** (-2 * i / D))
            j = i + D // 2
            M[i, i], M[i, j], M[j, i], M[j, j] = c, -s, s, c
        rows.append(x.double() @ M.T)
    return torch.stack(rows, -2).to(X.dtype)


@alternative(RotaryAttention)
class TorchsAttention(nn.Module):
    def __init__(self, D, H, base=10000.0):
        super().__init__()
        self.heads, self.base = H, base
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            self.register_parameter(name, nn.Parameter(torch.randn(D, D) * D**-0.5))

    def forward(self, X, mask=None, return_weights=False):
        B, T, D = X.shape
        q, k, v = (
            (X @ W).view(B, T, self.heads, -1).permute(0, 2, 1, 3)
            for W in (self.W_Q, self.W_K, self.W_V)
        )
        q, k = rope_rotate(q, None, self.base), rope_rotate(k, None, self.base)
        if mask is not None and mask.dim() == 3:
            mask = mask[:, None]
        y = F.scaled_dot_product_attention(q, k, v, mask)
        y = y.permute(0, 2, 1, 3).reshape(B, T, D) @ self.W_O
        if not return_weights:
            return y
        e = q @ k.transpose(2, 3) / (D // self.heads) ** 0.5
        if mask is None:
            return y, torch.softmax(e, -1)
        return y, torch.softmax(e.masked_fill(~mask, -torch.inf), -1).masked_fill(~mask, 0)


@alternative(RotaryAttention)
class HeadByHead(nn.Module):
    def __init__(self, D, H, base=10000.0):
        super().__init__()
        self.D_h, self.base = D // H, base
        self.W_Q, self.W_K, self.W_V, self.W_O = (
            nn.Parameter(torch.empty(D, D).normal_(std=D**-0.5)) for _ in range(4)
        )

    def forward(self, X, mask=None, return_weights=False):
        Y, weights = 0, []
        for start in range(0, X.shape[-1], self.D_h):
            own = slice(start, start + self.D_h)
            Q, K = X @ self.W_Q[:, own], X @ self.W_K[:, own]
            Q, K = rope_rotate(Q, base=self.base), rope_rotate(K, base=self.base)
            E = Q @ K.mT / math.sqrt(self.D_h)
            A = E.softmax(-1) if mask is None else E.masked_fill(~mask, -1e30).softmax(-1) * mask
            Y = Y + A @ (X @ self.W_V[:, own]) @ self.W_O[own]
            weights.append(A)
        return (Y, torch.stack(weights, 1)) if return_weights else Y


@alternative(interpolate_positions)
def torchs(P, size):
    if P.dim() != len(size) + 1:
        raise ValueError(size)
    mode = {1: "linear", 2: "bilinear"}[len(size)]
    new = F.interpolate(P.movedim(-1, 0).unsqueeze(0), size=tuple(size), mode=mode)
    return new.squeeze(0).movedim(0, -1)


@alternative(interpolate_positions)
def by_matrices(P, size):
    """Multiplies each axis by a matrix of weights, made by a loop."""
    if len(size) + 1 != P.dim():
        raise ValueError("size")
    for axis, new in enumerate(size):
        old = P.shape[axis]
        W = torch.zeros(new, old, dtype=P.dtype)
        for t in range(new):
            u = min(max((t + 0.5) * old / new - 0.5, 0), old - 1)
            for n in range(old):
                W[t, n] = max(0.0, 1 - abs(u - n))
        P = torch.tensordot(W, P, dims=([1], [axis])).movedim(0, axis)
    return P


@alternative(rope_rotate_fault)
def large_and_in_float64():
    return "A", [torch.randn(2, 3, 5, 8, dtype=torch.float64)]


@alternative(rope_rotate_fault)
def at_given_positions():
    return ["A", (torch.ones(1, 4), torch.tensor([2.5]), 100.0)]
