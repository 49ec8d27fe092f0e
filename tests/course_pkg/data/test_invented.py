"""Languages and letters that are invented: the same from the same seed, others from another."""

import random
import re
import zlib

import pytest
import torch

from course_pkg.data.language import Language
from course_pkg.data.letters import invented


def test_a_seed_makes_a_language_and_a_generator_its_texts():
    text = Language(3).text(5000, random.Random(4))
    assert len(text) == 5000
    assert text == Language(3).text(5000, random.Random(4))
    other = Language(3).text(5000, random.Random(5))
    foreign = Language(6).text(5000, random.Random(5))
    assert other != text

    def new(added: bytes) -> int:
        return len(zlib.compress(text + added, 9)) - len(zlib.compress(text, 9))

    assert new(other) < 0.95 * new(foreign)  # one has words and endings that are known already


def test_names_come_back_in_their_paragraph_and_nowhere_else():
    paragraphs = Language(0).text(20_000, random.Random(1)).decode().split("\n\n")[:-1]
    names = [re.findall(r"(?<=[a-z] )[A-Z]\w+", each) for each in paragraphs]
    once = {name for each in names for name in each}
    assert len(once) > 20
    shared = [name for name in once if sum(name in each for each in paragraphs) > 1]
    assert len(shared) < 0.2 * len(once)
    assert sum(each.count(name) > 1 for each in paragraphs for name in once if name in each) > 20


def test_letters_are_pictures_of_ten_shapes():
    letters = invented(20, 0)
    assert letters.images.shape == (200, 1, 8, 8)
    assert letters.images.min() == 0 and letters.images.max() <= 1
    assert letters.labels.bincount().tolist() == [20] * 10
    assert torch.equal(letters.images, invented(20, 0).images)
    assert not torch.equal(letters.images, invented(20, 1).images)
    means = torch.stack([part.mean(dim=0).flatten() for part in letters.images.split(20)])
    named = torch.cdist(letters.images.flatten(1), means).argmin(dim=1)
    assert (named == letters.labels).float().mean() > 0.5
    with pytest.raises(ValueError, match="at least once"):
        invented(0, 0)
