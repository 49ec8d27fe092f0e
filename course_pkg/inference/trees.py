"""A pass of a Llama over a tree of tokens, as engines that draft trees make it."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from course_pkg.attention import masked_softmax
from course_pkg.inference.models import ServedLlama
from course_pkg.llama import Llama


@torch.no_grad()
def read_tree(
    model: Llama,
    before: Int[Tensor, "past"],
    tokens: Int[Tensor, "M"],
    mask: Bool[Tensor, "M past+M"],
) -> Float[Tensor, "M V"]:
    """Score the next token after every node of a tree, in one pass and without a cache.

    A position is the number of places that a token sees before itself: so siblings share one.

    Args:
        model: a Llama without windows.
        before: the text before the tree.
        tokens: one for each node.
        mask: which places of the text and of the tree each node sees, itself included.
    Returns:
        The logits after each node.
    """
    past, M = len(before), len(tokens)
    text = torch.ones(past, past + M, dtype=torch.bool).tril()
    allowed = torch.cat([text, mask.cpu()]).to(tokens.device)

    def attend(layer: int, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        Q, K, V = (X.transpose(0, 1) for X in (Q, K, V))  # (H, past+M, D_h), and G heads of K and V
        Q = Q.unflatten(0, (len(K), -1))  # (G, H/G, past+M, D_h)
        A = masked_softmax(Q @ K[:, None].mT / math.sqrt(Q.shape[-1]), allowed)
        return (A @ V[:, None]).flatten(0, 1).transpose(0, 1)

    rows = torch.arange(past, past + M, device=tokens.device)
    return ServedLlama(model)(torch.cat([before, tokens]), allowed.sum(dim=1) - 1, attend, rows)
