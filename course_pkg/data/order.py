"""A task that is about order and nothing else: which symbol stood a few places earlier?"""

import torch
from jaxtyping import Int
from torch import Tensor


def symbol_back(
    B: int, T: int, generator: torch.Generator | int, *, back: int = 3, symbols: int = 8
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Draw sequences of random symbols; the target at each position is the symbol `back` earlier.

    The first `back` positions have no such symbol. Their target is -100, which
    torch.nn.functional.cross_entropy leaves out.

    Example:
        >>> x, y = symbol_back(B=1, T=6, generator=0)
        >>> x.tolist(), y.tolist()
        ([[4, 7, 5, 0, 3, 3]], [[-100, -100, -100, 4, 7, 5]])

    Args:
        B: sequences in the batch.
        T: positions, more than `back`.
        generator: the source of randomness, or a seed for a fresh one.
        back: how far to look back, at least 1.
        symbols: how many different symbols there are, at least 2.
    Returns:
        The symbols and the targets.
    Raises:
        ValueError: B or back is less than 1, T not more than back, or symbols less than 2.
    """
    if B < 1 or back < 1 or T <= back or symbols < 2:
        raise ValueError(
            f"B and back must be at least 1, T more than back and symbols at least 2, "
            f"got {B=}, {back=}, {T=}, {symbols=}"
        )
    if not isinstance(generator, torch.Generator):
        generator = torch.Generator().manual_seed(generator)
    x = torch.randint(0, symbols, (B, T), generator=generator)
    y = torch.full_like(x, -100)
    y[:, back:] = x[:, :-back]
    return x, y
