"""A small model that checks hand to student functions, here or in another process."""

import torch
from torch import Tensor


class SmallTranslator(tuple):
    """A translator of known weights, with `encode` and `decode` as in 07_transformer.

    memory_i = S[x_i],   s_t = tanh(m + E[y_t] + Σ_{k≤t} F[y_k] / √(k+1)),   logits_t = s_t O + b

    with m the mean of the memory over the source's words. It is no object of the students', and a
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
