"""A pass of a Llama over a tree of tokens, as engines that draft trees make it."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from course_pkg.attention import masked_softmax, merge_heads, split_heads
from course_pkg.llama import Llama
from course_pkg.positions import rope_rotate


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
    past = len(before)
    text = torch.ones(past, past + len(tokens), dtype=torch.bool).tril()
    allowed = torch.cat([text, mask.cpu()]).to(tokens.device)
    positions = allowed.sum(dim=1) - 1
    X = model.token(torch.cat([before, tokens]))[None]  # (1, past+M, D)
    for block in model.blocks:
        layer, vectors = block.attention, block.norm_1(X)
        Q = rope_rotate(split_heads(vectors @ layer.W_Q, layer.H), positions, layer.base)
        K = rope_rotate(split_heads(vectors @ layer.W_K, layer.G), positions, layer.base)
        V = split_heads(vectors @ layer.W_V, layer.G)
        Q = Q.unflatten(1, (layer.G, -1))  # (1, G, H/G, past+M, D_h)
        A = masked_softmax(Q @ K[:, :, None].mT / math.sqrt(layer.D_h), allowed)
        X = X + merge_heads((A @ V[:, :, None]).flatten(1, 2)) @ layer.W_O
        X = X + block.feed_forward(block.norm_2(X))
    W_head = model.token.weight.T if model.W_head is None else model.W_head
    return (model.norm(X) @ W_head)[0, past:]
