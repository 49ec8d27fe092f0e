"""ViT: learn an alphabet that nobody has seen before from fifty labelled letters."""

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from autograder.classroom.challenges import Challenge, Refused
from course_pkg.data import letters
from course_pkg.tools import train
from course_pkg.vit import ViT


@dataclass(frozen=True)
class FiftyLetters(Challenge):
    """Let a student's function learn hidden alphabets; labels of the letters to name stay here.

    Args:
        alphabets: how many.
        known, unknown: pictures of each of ten letters, with labels and without.
    """

    alphabets: int = 3
    known: int = 5
    unknown: int = 100

    measured: ClassVar[str] = "letters named right, in per cent"
    less_is_better: ClassVar[bool] = False
    digits: ClassVar[int] = 1
    seconds: ClassVar[float] = 90.0
    baseline_is: ClassVar[str] = "the ViT on digits"

    def measure(self, function, secret):
        draw, right, count = Random(secret), 0, self.unknown * letters.CLASSES
        for _ in range(self.alphabets):
            generator = torch.Generator().manual_seed(draw.randrange(2**63))
            written = letters.invented(self.known + self.unknown, generator)
            rows = torch.randperm(self.known + self.unknown, generator=generator)
            rows = rows + torch.arange(letters.CLASSES)[:, None] * len(rows)
            order = torch.randperm(count, generator=generator)
            known = written.subset(rows[:, : self.known].flatten())
            unknown = written.subset(rows[:, self.known :].flatten()[order])
            found = function(known.images, known.labels, unknown.images)
            right += int((_checked(found, count) == unknown.labels).sum())
        return 100 * right / (self.alphabets * count)

    @staticmethod
    def baseline(images, labels, unknown):
        torch.manual_seed(0)
        model = ViT((8, 8), P=2, C=1, D=32, H=4, L=2, classes=10, pool="cls")

        def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
            rows = torch.randint(0, len(images), (32,), generator=generator)
            return images[rows], labels[rows]

        train.fit(
            model,
            batch,
            lambda model, X, y: functional.cross_entropy(model(X), y),
            steps=200,
            lr=lambda step: 0.01 * min(step / 30, 1) * (1 - (step - 1) / 200),
        )
        with torch.no_grad():
            return model(unknown).argmax(dim=1)


def _checked(found: object, count: int) -> Tensor:
    if not isinstance(found, Tensor) or found.shape != (count,) or found.is_floating_point():
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise Refused(f"challenge must return {count} whole numbers in a tensor, and gave {what}")
    return found


CHALLENGE = FiftyLetters()
