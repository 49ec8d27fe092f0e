"""Pictures of letters of alphabets that nobody has seen before: each seed makes another one."""

import torch
from jaxtyping import Float
from torch import Tensor

from course_pkg.data.images import LabelledImages

CLASSES, SIDE = 10, 8
_POINTS = 5  # of a letter, joined by straight strokes


def invented(per_class: int, generator: torch.Generator | int) -> LabelledImages:
    """Invent ten letters, and write each of them several times by hand.

    A letter is one line through five points. Each time it is written, its points move, and it is
    turned, stretched and shifted a little.

    Example:
        >>> letters = invented(100, 0)
        >>> train, test = letters.split(950, torch.Generator().manual_seed(0))

    Args:
        per_class: how often each letter is written.
        generator: the source of randomness, or a seed for a fresh one.
    Returns:
        Pictures of 8 × 8 pixels, those of a letter one after the other.
    Raises:
        ValueError: per_class is less than 1.
    """
    if per_class < 1:
        raise ValueError(f"each letter must be written at least once, got {per_class}")
    if isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator)
    shapes = 2 * torch.rand(CLASSES, _POINTS, 2, generator=generator) - 1
    labels = torch.arange(CLASSES).repeat_interleave(per_class)
    images = torch.cat([_written(shapes[part], generator) for part in labels.split(500)])
    return LabelledImages(images, labels, tuple("abcdefghij"))


def _written(
    points: Float[Tensor, "N P 2"], generator: torch.Generator
) -> Float[Tensor, "N 1 SIDE SIDE"]:
    """Draw lines through points between -1 and 1, as if by hand."""
    N = len(points)

    def noise(size: float, *shape: int) -> Tensor:
        return size * torch.randn(N, *shape, generator=generator)

    frames = torch.eye(2) + noise(0.2, 2, 2)
    moved = (points + noise(0.12, _POINTS, 2)) @ frames + noise(0.15, 1, 2)
    starts = (SIDE - 1) / 2 + 0.38 * SIDE * moved  # in pixels
    strokes = starts[:, 1:] - starts[:, :-1]  # (N, P-1, 2)
    line = torch.arange(SIDE, dtype=torch.float32)
    pixels = torch.cartesian_prod(line, line)  # (SIDE², 2)
    away = pixels - starts[:, :-1, None]  # (N, P-1, SIDE², 2)
    along = (away * strokes[:, :, None]).sum(-1) / strokes.square().sum(-1, keepdim=True)
    nearest = along.clamp(0, 1)[..., None] * strokes[:, :, None]
    distance = (away - nearest).norm(dim=-1).amin(dim=1)  # (N, SIDE²)
    ink = (1.2 + noise(0.15, 1) - distance).clamp(0, 1)
    return ink.reshape(N, 1, SIDE, SIDE)
