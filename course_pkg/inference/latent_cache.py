"""A cache of one vector for each token, for layers that make keys and values of it."""

import torch
from jaxtyping import Float
from torch import Tensor


class LatentCache:
    """Keep one vector of every position that a layer has read: a `KVCache` without heads.

    Args:
        B: sequences, all of the same length.
        capacity: how many positions there is room for.
        D: size of the vectors.
        dtype: the type in which the numbers are kept.
        device: where they are kept.

    Attributes:
        length: how many positions are kept.
        bytes: how many bytes there are for `capacity` positions.
    """

    def __init__(
        self,
        B: int,
        capacity: int,
        D: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        self.C = torch.empty(B, capacity, D, dtype=dtype, device=device)
        self.length = 0

    @property
    def bytes(self) -> int:
        return self.C.nbytes

    def append(self, C: Float[Tensor, "B T D"]) -> None:
        """Add the vectors of T positions, without their gradients.

        Raises:
            ValueError: C does not have shape (B, T, D), or there is no room for T more positions;
                then nothing has changed.
        """
        B, capacity, D = self.C.shape
        end = self.length + C.shape[-2]
        if C.shape != (B, C.shape[-2], D):
            raise ValueError(f"C should have shape ({B}, T, {D}), got {tuple(C.shape)}")
        if end > capacity:
            raise ValueError(f"{end} positions do not fit into a cache for {capacity}")
        self.C[:, self.length : end] = C.detach()
        self.length = end

    def read(self) -> Float[Tensor, "B N D"]:
        """Give the vectors of all N = length positions, in the cache's dtype, without a copy."""
        return self.C[:, : self.length]

    def truncate(self, length: int) -> None:
        """Forget all positions but the first ones.

        Raises:
            ValueError: length is negative, or more than are kept.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} positions")
        self.length = length
