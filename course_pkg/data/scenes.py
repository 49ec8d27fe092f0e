"""Scenes: rendered pictures of two objects, their captions, and where each named object is.

Shapes: N pictures of S × S pixels, captions of T tokens. Everything is drawn from a generator when
asked, a thousand pictures in a fraction of a second; nothing is stored or downloaded.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

PAD, START, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")

COLOURS = {
    "red": (0.90, 0.15, 0.15),
    "green": (0.15, 0.75, 0.25),
    "blue": (0.20, 0.35, 0.95),
    "yellow": (0.95, 0.85, 0.15),
    "purple": (0.65, 0.25, 0.80),
    "white": (0.95, 0.95, 0.95),
}
SHAPES = ("circle", "square", "triangle", "cross")
SIZES = {"": 7, "small": 5}  # pixels; the usual size is not mentioned
RELATIONS = ("above", "left of")

# Pairs that training scenes don't have: every colour and every shape is seen, these pairs are not.
HELD_OUT = (("red", "triangle"), ("green", "cross"), ("blue", "circle"), ("yellow", "square"))

SIDE = 32  # pixels
CELL = 8  # pixels: an aligned object lies inside one cell of a grid of 4 × 4


class Vocabulary:
    """The words that captions are made of, numbered after four special tokens.

    Example:
        >>> vocabulary = Vocabulary(["a", "red", "circle"])
        >>> vocabulary.encode(["a", "red", "dog"])
        [1, 4, 5, 3, 2]
        >>> vocabulary.decode([1, 4, 5, 3, 2, 0])
        ['a', 'red', '<unknown>']

    Args:
        words: the words, each once.
    """

    def __init__(self, words: Iterable[str]):
        self.words = [*SPECIAL, *words]
        self.ids = {word: number for number, word in enumerate(self.words)}
        if len(self.ids) != len(self.words):
            raise ValueError("a vocabulary holds each word once")

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Sequence[str]) -> list[int]:
        """Number the words of a caption, between <start> and <end>."""
        return [START, *(self.ids.get(word, UNKNOWN) for word in words), END]

    def decode(self, tokens: Iterable[int]) -> list[str]:
        """Read a caption's words up to <end>, without <start> and <pad>."""
        words = []
        for token in map(int, tokens):
            if token == END:
                break
            if token not in (PAD, START):
                words.append(self.words[token])
        return words

    def pad(self, captions: Sequence[Sequence[str]]) -> Int[Tensor, "N T"]:
        """Encode captions and fill them up to the longest with <pad>."""
        rows = [torch.tensor(self.encode(words)) for words in captions]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


@dataclass(frozen=True)
class Object:
    """Something in a picture that its caption names.

    Attributes:
        name: its words in the caption: "small red circle".
        region: its box (top, left, bottom, right) in pixels; bottom and right lie outside.
        words: which words of the caption name it; the first word of a caption has number 0.
    """

    name: str
    region: tuple[int, int, int, int]
    words: range


@dataclass(frozen=True)
class Scene:
    """One picture, the words of its caption, and the objects that the caption names, in order."""

    image: Float[Tensor, "3 S S"]
    words: list[str]
    objects: tuple[Object, ...]


@dataclass(frozen=True)
class Scenes:
    """Pictures with captions, ready for training.

    Example:
        >>> scenes = draw(100, generator=0)
        >>> len(scenes), scenes.images.shape, scenes.captions.shape
        (100, torch.Size([100, 3, 32, 32]), torch.Size([100, 12]))
        >>> images, captions = scenes.batch(8, torch.Generator().manual_seed(0))
        >>> scenes[0].words
        ['a', 'small', 'white', 'cross', 'above', 'a', 'green', 'square']

    Attributes:
        images: RGB, values from 0 to 1.
        captions: <start>, the words' numbers, <end>, then <pad>.
        objects: what each caption names, in the caption's order; empty where this is unknown.
        vocabulary: the words by number.
    """

    images: Float[Tensor, "N 3 S S"]
    captions: Int[Tensor, "N T"]
    objects: tuple[tuple[Object, ...], ...]
    vocabulary: Vocabulary

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Scene:
        words = self.vocabulary.decode(self.captions[number])
        return Scene(self.images[number], words, self.objects[number])

    def batch(
        self, B: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "B 3 S S"], Int[Tensor, "B T"]]:
        """Draw B pictures and their captions, with replacement."""
        rows = torch.randint(0, len(self), (B,), generator=generator)
        return self.images[rows], self.captions[rows]

    def named(self, rows: int, columns: int) -> Bool[Tensor, "N T-1 rows*columns"]:
        """Say where to look for each word, on a grid of equal cells laid over the picture.

        Returns:
            For token t + 1 of each caption: the cells whose centre lies in the region of the
            object that the token names. All False where it names none.
        """
        S = self.images.shape[-1]
        y = (torch.arange(rows) + 0.5) * S / rows
        x = (torch.arange(columns) + 0.5) * S / columns
        found = torch.zeros(len(self), self.captions.shape[1] - 1, rows, columns, dtype=torch.bool)
        for number, objects in enumerate(self.objects):
            for item in objects:
                top, left, bottom, right = item.region
                inside = ((top <= y) & (y < bottom))[:, None] & (left <= x) & (x < right)
                found[number, item.words.start : item.words.stop] = inside
        return found.flatten(2)


def draw(
    count: int,
    generator: torch.Generator | int,
    *,
    held_out: bool = False,
    aligned: bool = True,
) -> Scenes:
    """Draw scenes of two objects on a dark background with a little noise.

    The objects stand one above the other or side by side. The caption names the upper one first,
    "above" the other, or the left one first, "left of" the other. A usual object measures 7
    pixels, a "small" one 5.

    Example:
        >>> scenes = draw(2, generator=0)
        >>> " ".join(scenes[0].words)
        'a small white cross above a green square'
        >>> scenes[0].objects[0]
        Object(name='small white cross', region=(16, 2, 21, 7), words=range(1, 4))

    Args:
        count: how many scenes.
        generator: the source of randomness, or a seed for a fresh one.
        held_out: False for scenes without the pairs of colour and shape in HELD_OUT; True for
            scenes in which both objects are such pairs.
        aligned: whether each object lies inside one cell of the grid of 4 × 4, both in the same
            row or column of it; otherwise they lie anywhere, nearly in line: their centres differ
            by less than 4 pixels in one direction and by at least 8 in the other.
    Returns:
        The scenes. Two calls with equal arguments return equal scenes.
    Raises:
        ValueError: count is less than 1.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if not isinstance(generator, torch.Generator):
        generator = torch.Generator().manual_seed(generator)
    kinds = [
        (size, colour, shape)
        for size in SIZES
        for colour in COLOURS
        for shape in SHAPES
        if ((colour, shape) in HELD_OUT) == held_out
    ]
    chosen = torch.randint(0, len(kinds), (count, 2), generator=generator)
    sizes = torch.tensor([SIZES[size] for size, _, _ in kinds])[chosen]  # (N, 2)
    corners = _place(sizes, generator, aligned)
    first = _reading_order(corners + sizes[:, :, None] / 2)
    vertical = _vertical(corners + sizes[:, :, None] / 2)

    captions, objects = [], []
    images = 0.08 + 0.06 * torch.rand(count, 3, SIDE, SIDE, generator=generator)
    for number, order in enumerate(first.tolist()):
        words, named = [], []
        for which in (order, 1 - order):
            size, colour, shape = kinds[chosen[number, which]]
            top, left = corners[number, which].tolist()
            side = SIZES[size]
            name = [word for word in (size, colour, shape) if word]
            if words:
                words += RELATIONS[0 if vertical[number] else 1].split()
            words.append("a")
            place = range(len(words), len(words) + len(name))
            words += name
            region = (top, left, top + side, left + side)
            named.append(Object(" ".join(name), region, place))
            patch = images[number, :, top : top + side, left : left + side]
            patch.lerp_(torch.tensor(COLOURS[colour])[:, None, None], _mask(shape, side))
        captions.append(words)
        objects.append(tuple(named))
    return Scenes(images, VOCABULARY.pad(captions), tuple(objects), VOCABULARY)


VOCABULARY = Vocabulary(["a", "small", *COLOURS, *SHAPES, "above", "left", "of"])


def _place(
    sizes: Int[Tensor, "N 2"], generator: torch.Generator, aligned: bool
) -> Int[Tensor, "N 2 2"]:
    """Draw the upper left corners of objects, until they are in line and at least a cell apart."""
    corners = torch.zeros(len(sizes), 2, 2, dtype=torch.int64)
    todo = torch.arange(len(sizes))
    while len(todo):
        side = sizes[todo][:, :, None]  # (n, 2, 1)
        draws = torch.rand(len(todo), 2, 2, generator=generator)
        if aligned:
            cells = torch.randint(0, SIDE // CELL, (len(todo), 2, 2), generator=generator)
            corners[todo] = CELL * cells + (draws * (CELL - side + 1)).long()
            gap = (cells[:, 0] - cells[:, 1]).abs()
        else:
            corners[todo] = (draws * (SIDE - side + 1)).long()
            centres = corners[todo] + side / 2
            gap = (centres[:, 0] - centres[:, 1]).abs() / CELL
        clear = (gap.amin(dim=1) < 0.5) & (gap.amax(dim=1) >= 1)
        todo = todo[~clear]
    return corners


def _vertical(centres: Float[Tensor, "N 2 2"]) -> Bool[Tensor, "N"]:
    gap = (centres[:, 0] - centres[:, 1]).abs()
    return gap[:, 0] > gap[:, 1]


def _reading_order(centres: Float[Tensor, "N 2 2"]) -> Int[Tensor, "N"]:
    """Which of the two objects a caption names first: the upper, or the left one."""
    axis = (~_vertical(centres)).long()  # 0: compare rows, 1: compare columns
    along = centres.gather(2, axis[:, None, None].expand(-1, 2, 1))[:, :, 0]
    return along.argmin(dim=1)


@functools.cache
def _mask(shape: str, side: int) -> Float[Tensor, "side side"]:
    """How much of each pixel a shape covers, from 0 to 1."""
    fine = 8  # sub-pixels along a side
    points = (torch.arange(side * fine) + 0.5) / (side * fine) * 2 - 1  # -1 … 1
    y, x = torch.meshgrid(points, points, indexing="ij")
    inside = {
        "circle": x**2 + y**2 <= 1,
        "square": torch.ones_like(x, dtype=torch.bool),
        "triangle": 2 * x.abs() <= y + 1,
        "cross": (x.abs() <= 0.3) | (y.abs() <= 0.3),
    }[shape]
    return inside.float().unflatten(0, (side, fine)).unflatten(2, (side, fine)).mean(dim=(1, 3))
