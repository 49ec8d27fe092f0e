"""Small models that checks hand to student functions, here or in another process."""

from collections.abc import Callable

import torch
from torch import Tensor


class SmallDecoder(tuple):
    """A decoder of known weights, with `start` and `step` as in seq2seq; not a student's object.

    s_0 = tanh(m P),   s_t = tanh(s_{t-1} R + E_y + m P),   logits = s_t O + b

    with m the mean of the source words' h. It is a tuple, so that it crosses to a child as data.

    Args:
        weights: P (C, S), R (S, S), E (V, S), O (S, V) and b (V); after them, if wanted, how many
            steps may follow one another. Its states then count them, in one more column.
    """

    def start(self, h: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return s_0 and m P."""
        share = mask / mask.sum(dim=1, keepdim=True)
        source = torch.einsum("bn,bnc->bc", share.to(h), h) @ self[0]
        s = torch.tanh(source)
        return (torch.cat([s, s.new_zeros(len(s), 1)], dim=1) if self[5:] else s), source

    def step(self, y: Tensor, s: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the logits of the next word, the new state, and no weights."""
        _, recurrent, embedding, output, bias, *most = self
        s, count = s.split([len(recurrent), s.shape[1] - len(recurrent)], dim=1)
        if most and (count >= most[0]).any():
            raise RuntimeError(f"step {most[0] + 1} was taken, after all sentences had ended")
        s = torch.tanh(s @ recurrent + embedding[y] + memory)
        return s @ output + bias, torch.cat([s, count + 1], dim=1), None


class SmallCache:
    """What a `SmallReader` has read: like a `KVCache`, a length that can be cut.

    Args:
        capacity: how many tokens there is room for.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.kept: Tensor | None = None  # (B, N, C)

    @property
    def length(self) -> int:
        return 0 if self.kept is None else self.kept.shape[1]

    def append(self, new: Tensor) -> Tensor:
        """Add vectors, and give all there are."""
        kept = new if self.kept is None else torch.cat([self.kept, new], dim=1)
        if kept.shape[1] > self.capacity:
            raise ValueError(f"{kept.shape[1]} tokens do not fit into a cache for {self.capacity}")
        self.kept = kept
        return kept

    def truncate(self, length: int) -> None:
        """Forget all vectors but the first ones."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} positions")
        if self.kept is not None:
            self.kept = self.kept[:, :length]


class SmallReader(tuple):
    """A language model of known weights that goes on where it stopped, called as a `Llama` is.

    logits_t = tanh(E[y_t] + Σ_{s≤t} F[y_s] / √(s+1)) O

    It has two caches, each for half of the vectors F. It notes how many tokens it reads in each
    pass. It is a tuple, so that it crosses to a child as data.

    Args:
        weights: E and F (V, C), O (C, V), and a list to which every pass appends its number of
            tokens.
    """

    LONGEST = 400  # passes: a writer that never ends fails soon

    def new_caches(self, B: int, capacity: int, dtype: torch.dtype | None = None) -> list:
        """Make its empty caches."""
        return [SmallCache(capacity), SmallCache(capacity)]

    def __call__(self, tokens: Tensor, caches: list | None = None) -> Tensor:
        """Return the logits (B, T, V) after each of the new tokens (B, T)."""
        last, earlier, output, passes = self
        passes.append(tokens.shape[1])
        if len(passes) > self.LONGEST:
            raise RuntimeError("the model was called too often: does the writer ever finish?")
        caches = self.new_caches(1, 1 << 30) if caches is None else caches
        past, T = caches[0].length, tokens.shape[1]
        root = torch.arange(past + 1, past + T + 1).to(earlier).sqrt()[:, None]
        halves = (earlier[tokens] / root).chunk(2, dim=2)
        seen = [cache.append(half) for cache, half in zip(caches, halves, strict=True)]
        total = torch.cat([each.cumsum(dim=1)[:, -T:] for each in seen], dim=2)
        return torch.tanh(last[tokens] + total) @ output


class SmallDraft(tuple):
    """Propose what some known texts go on with; a tuple, so that it crosses to a child as data.

    Args:
        texts: lists of tokens. The one that begins most like the tokens in question is followed.
    """

    def __call__(self, tokens: list[int], k: int) -> list[int]:
        """Return up to k tokens."""

        def agrees(text: list[int]) -> int:
            return next(
                (n for n, (a, b) in enumerate(zip(text, tokens, strict=False)) if a != b),
                len(tokens),
            )

        return max(self, key=agrees)[len(tokens) : len(tokens) + k]


class SmallServed(tuple):
    """A language model of known weights, as an engine of serving serves it.

    X = E[tokens] + P[positions],   X ← X + attend(X W_Q, X W_K, X W_V) W_O in every layer,
    logits = 4 X Eᵀ / ‖X‖

    Args:
        weights: E (V, D), P (context, D), W_Q (L, D, H, D_h), W_K and W_V (L, D, G, D_h),
            W_O (L, H, D_h, D), and a list of one number: how often it may be called, so that an
            engine that never ends fails soon. With anything after that number, whoever waits for it
            interrupts it then. It is a tuple, so that it crosses to a child as data.
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
        if calls[0] < 0 and calls[1:]:
            raise KeyboardInterrupt
        if calls[0] < 0:
            raise RuntimeError("the model was called too often: does the engine ever finish?")
        X = embedding[tokens] + places[positions]
        for layer in range(len(W_Q)):
            heads = [(X @ W[layer].flatten(1)).unflatten(1, W.shape[2:]) for W in (W_Q, W_K, W_V)]
            X = X + attend(layer, *heads).flatten(1) @ W_O[layer].flatten(0, 1)
        X = X[rows]
        return 4 * (X / X.norm(dim=1, keepdim=True)) @ embedding.T


class SmallTranslator(tuple):
    """A translator of known weights, with `encode` and `decode` as in transformer.

    memory_i = S[x_i],   s_t = tanh(m + E[y_t] + Σ_{k≤t} F[y_k] / √(k+1)),   logits_t = s_t O + b

    with m the mean of the memory over the source's words. It is not a student's object, and a
    tuple, so that it crosses to a child as data.

    Args:
        weights: S (V_source, C), E and F (V, C), O (C, V) and b (V); after them, if wanted, by how
            much each call of `encode` moves the memory at random, and how many words it scores.
    """

    def encode(self, X: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the memory and a mask (B, 1, N)."""
        moved = self[5] * torch.randn(()).to(X.device) if self[5:] else 0
        mask = torch.arange(X.shape[1], device=X.device) < lengths[:, None]
        return self[0][X] + moved, mask[:, None]

    def decode(self, Y: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """Return the logits of the word after each word of Y."""
        _, last, earlier, output, bias, *options = self
        if options[1:] and Y.shape[1] > options[1]:
            raise RuntimeError(f"word {Y.shape[1]} was asked for, after all sentences had ended")
        share = memory_mask / memory_mask.sum(dim=2, keepdim=True)  # (B, 1, N)
        root = torch.arange(1, Y.shape[1] + 1).to(memory).sqrt()[:, None]
        s = share.to(memory) @ memory + last[Y] + (earlier[Y] / root).cumsum(dim=1)
        return torch.tanh(s) @ output + bias
