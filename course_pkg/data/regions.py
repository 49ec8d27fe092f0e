"""Regions: boxes in the pictures of scenes, what is in them, and what a simple detector sees.

Shapes: N pictures with up to R regions each. Everything is computed from the pixels; neither labels
nor captions go in. Only the boxes of the objects are known, as a detector would find them.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from course_pkg.data.scenes import COLOURS, SIZES, Scenes

CLASSES = ("background", *COLOURS)
FEATURES = 39  # mean colour, and how far each pixel of a 6 × 6 thumbnail stands out
OVERLAP = 0.2  # the most that a false alarm may overlap an object (IoU)

_BACKGROUND = 0.11  # the mean brightness of the noise behind the objects
_GRID = 6


@dataclass(frozen=True)
class Regions:
    """What a detector finds in pictures; the regions of a picture stand in random order.

    Attributes:
        features: three numbers for the colour and 36 for the shape, most from -1 to 1.
        boxes: top, left, bottom and right, as shares of the picture's height and width.
        real: which regions are real; the others fill up the batch, and are zero.
        classes: how the detector divides each region's pixels among CLASSES; rows sum to one.
        objects: which regions hold the objects that the caption names, in the caption's order.
    """

    features: Float[Tensor, "N R F"]
    boxes: Float[Tensor, "N R 4"]
    real: Bool[Tensor, "N R"]
    classes: Float[Tensor, "N R C"]
    objects: Int[Tensor, "N 2"]


def detect(
    scenes: Scenes, generator: torch.Generator | int, *, fewest: int = 2, most: int = 5
) -> Regions:
    """Find the two objects of every scene, and raise some false alarms.

    A false alarm is a box of an object's size anywhere else; it may overlap an object a little.

    Example:
        >>> from course_pkg.data import scenes
        >>> regions = detect(scenes.draw(3, generator=0), generator=0)
        >>> regions.features.shape, regions.boxes.shape, regions.classes.shape
        (torch.Size([3, 7, 39]), torch.Size([3, 7, 4]), torch.Size([3, 7, 7]))
        >>> regions.real.sum(dim=1).tolist()
        [5, 7, 7]

    Args:
        scenes: pictures of two objects each.
        generator: the source of randomness, or a seed for a fresh one.
        fewest, most: how many false alarms each picture has.
    Returns:
        The regions. Two calls with equal arguments return equal regions.
    Raises:
        ValueError: fewest is negative or more than most.
    """
    if not 0 <= fewest <= most:
        raise ValueError(f"fewest must be from 0 to most, got fewest={fewest} and most={most}")
    if not isinstance(generator, torch.Generator):
        generator = torch.Generator().manual_seed(generator)
    named = torch.tensor([[item.region for item in items] for items in scenes.objects])  # (N, 2, 4)
    boxes = torch.cat([named, _false_alarms(named, most, scenes.images.shape[-1], generator)], 1)
    count = 2 + torch.randint(fewest, most + 1, (len(scenes), 1), generator=generator)
    real = torch.arange(2 + most) < count
    keys = torch.rand(real.shape, generator=generator).masked_fill(~real, 2)
    order = keys.argsort(dim=1)  # the real ones first, in random order
    boxes = boxes.gather(1, order[:, :, None].expand_as(boxes)) / scenes.images.shape[-1]
    pixels = _thumbnails(scenes.images, boxes)
    return Regions(
        features=_features(pixels) * real[:, :, None],
        boxes=boxes * real[:, :, None],
        real=real,
        classes=_classes(pixels),
        objects=order.argsort(dim=1)[:, :2],
    )


def overlap(a: Float[Tensor, "... 4"], b: Float[Tensor, "... 4"]) -> Float[Tensor, "..."]:
    """Measure how much boxes overlap: the intersection's area over the union's (IoU)."""
    inner = torch.cat([torch.maximum(a, b)[..., :2], torch.minimum(a, b)[..., 2:]], dim=-1)
    intersection, *areas = (_sides(box).prod(dim=-1) for box in (inner, a, b))
    return intersection / (sum(areas) - intersection)


def _sides(box: Float[Tensor, "... 4"]) -> Float[Tensor, "... 2"]:
    return (box[..., 2:] - box[..., :2]).clamp(min=0)


def _false_alarms(
    named: Int[Tensor, "N 2 4"], count: int, S: int, generator: torch.Generator
) -> Int[Tensor, "N count 4"]:
    """Draw boxes away from the objects; where one overlaps too far, draw again."""
    boxes = named.new_zeros(len(named), count, 4)
    todo = torch.ones(len(named), count, dtype=torch.bool)
    sides = torch.tensor(list(SIZES.values()))
    while todo.any():
        n = int(todo.sum())
        side = sides[torch.randint(len(sides), (n, 1), generator=generator)]
        corner = (torch.rand(n, 2, generator=generator) * (S - side + 1)).long()
        boxes[todo] = torch.cat([corner, corner + side], dim=1)
        todo = (overlap(boxes[:, :, None], named[:, None]) > OVERLAP).any(dim=2)
    return boxes


def _thumbnails(
    images: Float[Tensor, "N 3 S S"], boxes: Float[Tensor, "N R 4"]
) -> Float[Tensor, "N R P 3"]:
    """Resize the pixels in every box to one size; list them row by row."""
    steps = (torch.arange(_GRID) + 0.5) / _GRID
    top, left, bottom, right = boxes[..., None].unbind(dim=2)  # (N, R, 1)
    y, x = top + (bottom - top) * steps, left + (right - left) * steps  # (N, R, G)
    y, x = torch.broadcast_tensors(y[..., :, None], x[..., None, :])
    places = 2 * torch.stack([x, y], dim=-1).flatten(2, 3) - 1  # (N, R, P, 2), from -1 to 1
    found = functional.grid_sample(images, places, padding_mode="border", align_corners=False)
    return found.movedim(1, -1)  # (N, 3, R, P) → (N, R, P, 3)


def _features(pixels: Float[Tensor, "N R P 3"]) -> Float[Tensor, "N R F"]:
    """Measure colour and shape: the mean colour of what stands out, and where it stands out."""
    out = (pixels.amax(dim=-1) - _BACKGROUND).clamp(min=0)  # (N, R, P)
    weights = (out + 1e-3) / (out + 1e-3).sum(dim=-1, keepdim=True)
    colour = torch.einsum("nrp,nrpc->nrc", weights, pixels)
    return torch.cat([4 * colour - 2, 2 * out - 1], dim=-1)


def _classes(pixels: Float[Tensor, "N R P 3"]) -> Float[Tensor, "N R C"]:
    """Give every pixel to the nearest colour, and count."""
    palette = torch.tensor([(_BACKGROUND,) * 3, *COLOURS.values()])
    nearest = torch.cdist(pixels.flatten(0, 2), palette).argmin(dim=-1)
    return functional.one_hot(nearest, len(palette)).float().unflatten(0, pixels.shape[:3]).mean(2)
