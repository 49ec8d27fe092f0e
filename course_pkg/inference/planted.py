"""A circuit that nobody trained: two layers of attention whose weights are set by hand.

Its answers are known, so that methods that look for circuits can be tested on it.
"""

import torch
from torch import Tensor

from course_pkg.inference.opened import AttentionOnly

PREVIOUS, INDUCTION = (0, 0), (1, 1)  # layer and head
SHARPNESS = 60.0  # how much larger the right score is than others, about


def planted_induction(V: int) -> AttentionOnly:
    """Make a model that goes on with a repeated text as it went on before.

    A vector has the features one, token, previous token and copied token, of 1, V, V and V entries.
    Head (0, 0) looks one position back, whatever stands there, and writes the token that it finds
    there as the previous one. Head (1, 1) looks for its own token among the previous ones, and
    copies what stands there. The two others return zero. Only the copied token gives logits.

    Args:
        V: tokens, at least 2.
    """
    model = AttentionOnly(V, 4 * V, H=2, L=2, normed=False)
    for parameter in model.parameters():
        parameter.requires_grad_(False).zero_()
    token, previous, copied = (range(start, start + V) for start in (1, 1 + V, 1 + 2 * V))
    model.token.weight[:, 0] = 1
    _connect(model.token.weight, range(V), token)
    _connect(model.W_head, copied, range(V), 12.0)

    size = 2 * V  # of a head, of which features i and i + V are a pair
    first, second = (block.attention for block in model.blocks)
    angles = first.base ** (-torch.arange(V) / V)  # by which pairs turn in one step
    first.W_Q[0, :size] = SHARPNESS * torch.cat([angles.cos(), -angles.sin()])  # one step behind
    first.W_K[0, :V] = 1
    slots = [*range(1, V), V + 1]  # pair 0 turns at every base
    _connect(first.W_V, token, slots)
    _connect(first.W_O, slots, previous)

    second.base = 1e300  # so slow that nothing turns
    slots = [size + slot for slot in slots]  # of head 1
    _connect(second.W_Q, token, slots, SHARPNESS * size**0.5)
    _connect(second.W_K, previous, slots)
    _connect(second.W_V, token, slots)
    _connect(second.W_O, slots, copied)
    return model


def _connect(matrix: Tensor, rows, columns, strength: float = 1.0) -> None:
    """Let each of the rows lead to one of the columns."""
    matrix[list(rows), list(columns)] = strength
