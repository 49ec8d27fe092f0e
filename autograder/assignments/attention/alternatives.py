"""Other correct solutions of attention: loops, einsum, torch's own, float32."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg.attention import (
    MultiHeadAttention,
    SelfAttention,
    attention_cost,
    causal_mask,
    masked_softmax,
    merge_heads,
    padding_mask,
    scaled_dot_attention,
    soft_lookup,
    split_heads,
    split_heads_fault,
)


@alternative(soft_lookup)
def with_cdist(q, X, temperature=1.0):
    if not temperature > 0:
        raise ValueError(f"not a temperature: {temperature}")
    e = torch.cdist(q.view(1, -1), X)[0] ** 2
    a = F.softmin(e / (2 * temperature), dim=-1)
    return torch.einsum("i,id->d", a, X), a


@alternative(soft_lookup)
def multiplied_out(q, X, temperature=1.0):
    """‖q - X_i‖² without ‖q‖², which all rows have in common."""
    if temperature <= 0:
        raise ValueError("temperature")
    a = ((X @ q - X.square().sum(1) / 2) / temperature).softmax(0)
    return (a.unsqueeze(1) * X).sum(0), a


@alternative(scaled_dot_attention)
def with_einsum(Q, K, V):
    if Q.size(-1) != K.size(-1) or K.size(-2) != V.size(-2):
        raise ValueError(f"{Q.shape}, {K.shape} and {V.shape} do not fit")
    E = torch.einsum("...id,...jd->...ij", Q, K) * Q.size(-1) ** -0.5
    A = F.softmax(E, dim=-1)
    return torch.einsum("...ij,...jd->...id", A, V), A


@alternative(scaled_dot_attention)
def query_by_query(Q, K, V):
    if Q.shape[-1] != K.shape[-1] or K.shape[-2] != V.shape[-2]:
        raise ValueError("sizes")
    if Q.dim() > 2:
        pairs = [query_by_query(q, k, v) for q, k, v in zip(Q, K, V, strict=True)]
        return tuple(torch.stack(parts) for parts in zip(*pairs, strict=True))
    A = torch.stack([torch.softmax(K @ q / math.sqrt(K.shape[1]), 0) for q in Q])
    return torch.stack([a @ V for a in A]), A


@alternative(scaled_dot_attention)
def by_logarithms(Q, K, V):
    """The scale goes to the queries, in float32; the softmax is written out."""
    if Q.size(-1) != K.size(-1):
        raise ValueError(f"{Q.shape} does not fit {K.shape}")
    if K.size(-2) != V.size(-2):
        raise ValueError(f"{K.shape} does not fit {V.shape}")
    E = (Q / Q.size(-1) ** 0.5).float() @ K.transpose(-2, -1).float()
    A = torch.exp(E - E.logsumexp(dim=-1, keepdim=True))
    return [A @ V.float(), A]


@alternative(SelfAttention)
class OneProduct(SelfAttention):
    def forward(self, X):
        sizes = [self.W_Q.shape[1], self.W_K.shape[1], self.W_V.shape[1]]
        Q, K, V = (X @ torch.cat([self.W_Q, self.W_K, self.W_V], dim=1)).split(sizes, dim=-1)
        A = torch.softmax(torch.einsum("...id,...jd->...ij", Q, K) / sizes[0] ** 0.5, dim=-1)
        return A @ V, A


@alternative(SelfAttention)
class OneBilinearForm(SelfAttention):
    """Uses only the product W_Q W_Kᵀ: X W_Q (X W_K)ᵀ = X (W_Q W_Kᵀ) Xᵀ."""

    def forward(self, X):
        M = self.W_Q @ self.W_K.T / math.sqrt(self.W_Q.shape[1])
        A = F.softmax(X @ M @ X.mT, dim=-1)
        return A @ X @ self.W_V, A


@alternative(causal_mask)
def compared(T, past=0):
    return torch.arange(past + T) <= past + torch.arange(T)[:, None]


@alternative(causal_mask)
def last_rows_of_all(T, past=0):
    return ~torch.triu(torch.ones(past + T, past + T), diagonal=1).bool()[past:]


@alternative(padding_mask)
def written(lengths, T):
    mask = torch.zeros(len(lengths), 1, T, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, :, :length] = True
    return mask


@alternative(padding_mask)
def broadcast(lengths, T):
    return lengths.view(-1, 1, 1) > torch.arange(T)


@alternative(masked_softmax)
def shifted_exponentials(E, mask=None):
    if mask is None:
        mask = torch.ones_like(E, dtype=torch.bool)
    mask = mask.expand_as(E)
    lowest = torch.finfo(E.dtype).min
    highest = torch.where(mask, E, lowest).amax(dim=-1, keepdim=True)
    exponentials = torch.where(mask, torch.where(mask, E - highest, 0).exp(), 0)
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / torch.where(total > 0, total, 1)


@alternative(masked_softmax)
def rows_opened(E, mask=None):
    """Lets empty rows attend to everything, and takes their weights away afterwards."""
    if mask is None:
        return F.softmax(E, -1)
    some = mask.any(dim=-1, keepdim=True)
    E = torch.where(mask | ~some, torch.where(mask, E, 0), float("-inf"))
    return E.softmax(-1) * some


@alternative(split_heads)
def chunks(X, H):
    if X.shape[-1] % H != 0:
        raise ValueError("heads")
    return torch.stack(X.chunk(H, dim=-1), dim=1)


@alternative(split_heads)
def permuted(X, H):
    size, rest = divmod(X.shape[2], H)
    if rest > 0:
        raise ValueError(f"{X.shape[2]} is not a multiple of {H}")
    return X.unflatten(2, (H, size)).permute(0, 2, 1, 3).contiguous()


@alternative(split_heads_fault)
def large_and_in_float64():
    return "C", [torch.randn(2, 5, 12, dtype=torch.float64), 3]


@alternative(split_heads_fault)
def whole_numbers():
    return ["C", (torch.arange(24).view(2, 2, 6), 2)]


@alternative(merge_heads)
def concatenated(X):
    return torch.cat(list(X.unbind(1)), dim=-1)


@alternative(merge_heads)
def viewed(X):
    B, H, T, D_h = X.shape
    return X.permute(0, 2, 1, 3).contiguous().view(B, T, H * D_h)


@alternative(MultiHeadAttention)
class HeadByHead(MultiHeadAttention):
    """Loops over the heads, each with its columns of the matrices, and adds their outputs up."""

    def forward(self, X, memory=None, mask=None, return_weights=False):
        memory = X if memory is None else memory
        Q, K, V = (
            X @ self.W_Q + self.b_Q,
            memory @ self.W_K + self.b_K,
            memory @ self.W_V + self.b_V,
        )
        size, Y, maps = X.shape[-1] // self.H, self.b_O, []
        for h in range(self.H):
            own = slice(h * size, (h + 1) * size)
            A = masked_softmax(Q[..., own] @ K[..., own].mT / size**0.5, mask)
            maps.append(A)
            Y = Y + A @ V[..., own] @ self.W_O[own]
        return (Y, torch.stack(maps, dim=1)) if return_weights else Y


@alternative(MultiHeadAttention)
class Einsums(nn.Module):
    """Never splits: the matrices have an axis of heads, and einsum does the rest."""

    def __init__(self, D, H, D_X=None, bias=False):
        super().__init__()
        self.H = H
        for name, rows in zip("QKVO", (D, D_X or D, D_X or D, D), strict=True):
            weight = nn.init.normal_(torch.empty(rows, D), std=rows**-0.5)
            self.register_parameter(f"W_{name}", nn.Parameter(weight))
            self.register_parameter(f"b_{name}", nn.Parameter(torch.zeros(D)) if bias else None)

    def project(self, X, W, b):
        heads = torch.einsum("btx,xhd->bhtd", X, W.view(len(W), self.H, -1))
        return heads if b is None else heads + b.view(self.H, 1, -1)

    def forward(self, X, memory=None, mask=None, return_weights=False):
        if memory is None:
            memory = X
        Q = self.project(X, self.W_Q, self.b_Q)
        K = self.project(memory, self.W_K, self.b_K)
        V = self.project(memory, self.W_V, self.b_V)
        E = torch.einsum("bhqd,bhkd->bhqk", Q, K) / math.sqrt(Q.shape[3])
        if mask is not None:
            mask = mask[:, None] if mask.dim() == 3 else mask
        A = masked_softmax(E, mask)
        W_O = self.W_O.view(self.H, -1, self.W_O.shape[1])
        Y = torch.einsum("bhqk,bhkd,hdo->bqo", A, V, W_O)
        Y = Y if self.b_O is None else Y + self.b_O
        return (Y, A) if return_weights else Y


@alternative(attention_cost)
def by_loops(T, D, k=3):
    if k not in range(3, 1000, 2):
        raise ValueError(k)
    matrix = D * D
    reach, layers = 0, 0
    while reach < T - 1:
        reach, layers = reach + (k - 1) // 2, layers + 1
    vectors = sum(D for _ in range(T))
    scores = sum(D for _ in range(T) for _ in range(T))
    return {
        "self-attention": {
            "path_length": 1,
            "multiply_adds": 3 * T * matrix + scores + scores,
            "memory": vectors * 4 + T * T,
        },
        "rnn": {"path_length": T, "multiply_adds": T * (matrix + matrix), "memory": vectors},
        "convolution": {"path_length": layers, "multiply_adds": T * k * matrix, "memory": vectors},
    }


@alternative(attention_cost)
def in_floats(T, D, k=3):
    if k % 2 != 1 or k <= 1:
        raise ValueError("the width must be 3, 5, 7, …")
    names = ("multiply_adds", "memory", "path_length")
    rnn = (2.0 * T * D**2, float(T * D), float(T))
    convolution = (float(k * T * D**2), float(T * D), float(-((1 - T) // (k // 2))))
    attention = (T * D * (3.0 * D + 2 * T), T * (4.0 * D + T), 1.0)
    layers = {"rnn": rnn, "convolution": convolution, "self-attention": attention}
    return {layer: dict(zip(names, counts, strict=True)) for layer, counts in layers.items()}
