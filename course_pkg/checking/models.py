"""Small models that checks hand to student functions, here or in another process."""

import torch
from torch import Tensor


class SmallDecoder(tuple):
    """A decoder of known weights, with `start` and `step` as in 03_seq2seq; no object of students.

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
