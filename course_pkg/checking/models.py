"""Small models that checks hand to student functions, here or in another process."""

from collections.abc import Callable

import torch
from torch import Tensor


class SmallDecoder(tuple):
    """A decoder of known weights, with `start` and `step` as in seq2seq; not a student's object.

    s_0 = tanh(m P),   s_t = tanh(s_{t-1} R + E_y + m P),   logits = s_t O + b

    with m the mean of the source words' h. It is a tuple, so that it crosses to a child as data.

    Args:
        weights: P (C, S), R (S, S), E (V, S), O (S, V) and b (V).
    """

    def start(self, h: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return s_0 and m P."""
        share = mask / mask.sum(dim=1, keepdim=True)
        source = torch.einsum("bn,bnc->bc", share.to(h), h) @ self[0]
        return torch.tanh(source), source

    def step(self, y: Tensor, s: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the logits of the next word, the new state, and no weights."""
        _, recurrent, embedding, output, bias = self
        s = torch.tanh(s @ recurrent + embedding[y] + memory)
        return s @ output + bias, s, None


class SmallServed(tuple):
    """A language model of known weights, as an engine of serving serves it.

    X = E[tokens] + P[positions],   X ← X + attend(X W_Q, X W_K, X W_V) W_O in every layer,
    logits = 4 X Eᵀ / ‖X‖

    Args:
        weights: E (V, D), P (context, D), W_Q (L, D, H, D_h), W_K and W_V (L, D, G, D_h),
            W_O (L, H, D_h, D), and a list of one number: how often it may be called, so that an
            engine that never ends fails soon. It is a tuple, so that it crosses to a child as data.
    """

    @property
    def shape(self) -> tuple[int, int, int]:
        L, _, G, D_h = self[3].shape
        return L, G, D_h

    @property
    def context(self) -> int:
        return len(self[1])

    @property
    def dtype(self) -> torch.dtype:
        return self[0].dtype

    @property
    def device(self) -> torch.device:
        return self[0].device

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Callable, rows: Tensor) -> Tensor:
        """Return the logits of some rows; `attend` gets layer, Q, K and V of all tokens."""
        embedding, places, W_Q, W_K, W_V, W_O, calls = self
        calls[0] -= 1
        if calls[0] < 0:
            raise RuntimeError("the model was called too often: does the engine ever finish?")
        X = embedding[tokens] + places[positions]
        for layer in range(len(W_Q)):
            heads = [torch.einsum("nd,dhe->nhe", X, W[layer]) for W in (W_Q, W_K, W_V)]
            X = X + torch.einsum("nhe,hed->nd", attend(layer, *heads), W_O[layer])
        X = X[rows]
        return 4 * (X / X.norm(dim=1, keepdim=True)) @ embedding.T


class SmallTranslator(tuple):
    """A translator of known weights, with `encode` and `decode` as in transformer.

    memory_i = S[x_i],   s_t = tanh(m + E[y_t] + Σ_{k≤t} F[y_k] / √(k+1)),   logits_t = s_t O + b

    with m the mean of the memory over the source's words. It is not a student's object, and a
    tuple, so that it crosses to a child as data.

    Args:
        weights: S (V_source, C), E and F (V, C), O (C, V) and b (V).
    """

    def encode(self, X: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the memory and a mask (B, 1, N)."""
        return self[0][X], (torch.arange(X.shape[1], device=X.device) < lengths[:, None])[:, None]

    def decode(self, Y: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """Return the logits of the word after each word of Y."""
        _, last, earlier, output, bias = self
        share = memory_mask / memory_mask.sum(dim=2, keepdim=True)  # (B, 1, N)
        root = torch.arange(1, Y.shape[1] + 1).to(memory).sqrt()[:, None]
        s = share.to(memory) @ memory + last[Y] + (earlier[Y] / root).cumsum(dim=1)
        return torch.tanh(s) @ output + bias
