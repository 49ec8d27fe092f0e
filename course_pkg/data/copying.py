"""A task that needs places: repeat what was heard, in the same order."""

import torch
from jaxtyping import Float
from torch import Tensor


def copy_task(
    B: int, L: int, generator: torch.Generator | int, *, bits: int = 8
) -> tuple[Float[Tensor, "B 2*L+1 bits+1"], Float[Tensor, "B L bits"]]:
    """Draw sequences of random bits, to be repeated once they are over.

    For L steps the features 0 to bits-1 are -1 or 1. At the next step the last feature alone is 1:
    now repeat. L silent steps follow, all zero, and at each the target is one row of bits, 0 or 1,
    from the first on. Guessing is right for half of the bits      (Graves et al. 2014, §4.1)

    Example:
        >>> X, Y = copy_task(B=3, L=5, generator=0)
        >>> X.shape, Y.shape
        (torch.Size([3, 11, 9]), torch.Size([3, 5, 8]))
        >>> torch.equal(X[:, :5, :8] > 0, Y == 1)
        True

    Args:
        B: sequences in the batch.
        L: how many rows of bits to copy.
        generator: the source of randomness, or a seed for a fresh one.
        bits: how many bits a row has.
    Returns:
        The sequences, and the targets of their last L steps.
    Raises:
        ValueError: B, L or bits is less than 1.
    """
    if B < 1 or L < 1 or bits < 1:
        raise ValueError(f"B, L and bits must be at least 1, got {B=}, {L=}, {bits=}")
    if not isinstance(generator, torch.Generator):
        generator = torch.Generator().manual_seed(generator)
    Y = torch.randint(0, 2, (B, L, bits), generator=generator).float()
    X = torch.zeros(B, 2 * L + 1, bits + 1)
    X[:, :L, :bits] = 2 * Y - 1
    X[:, L, bits] = 1
    return X, Y
