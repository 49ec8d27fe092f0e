"""Pairs of sentences to translate: made by a grammar, or read from two parallel text files.

Both come as a `Corpus`, so that what is trained on one can be trained on the other. Shapes: B
pairs, N source words (with the end mark), M target words.
"""

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from course_pkg.data import grammar

PAD, BOS, EOS, UNK = range(4)  # padding, begin and end of a sentence, unknown word
MARKS = ("<pad>", "<bos>", "<eos>", "<unk>")
_POOL = 8  # a batch is cut from this many times as many pairs, sorted by length
_WORD = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]")


class DataError(ValueError):
    """Files that do not hold what they should; the message says which, where and what to do."""


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation.

    Attributes:
        source: the words of the sentence.
        target: the words of its translation.
        alignment: for each target word the place of the source word that it translates; None
            where it is unknown, as in real data.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    alignment: tuple[int, ...] | None = None


class Vocabulary:
    """Words and their numbers; the four marks come first.

    Example:
        >>> vocabulary = Vocabulary(["la", "casa"])
        >>> vocabulary.encode(["la", "casa", "roja"])
        [4, 5, 3]
        >>> vocabulary.decode([4, 5, 2, 0])
        ['la', 'casa']

    Args:
        words: the words, each once; their order is that of their numbers.
    """

    def __init__(self, words: Iterable[str]):
        self.words = [*MARKS, *words]
        self._numbers = {word: number for number, word in enumerate(self.words)}
        if len(self._numbers) < len(self.words):
            raise ValueError("every word must occur once, and no mark among them")

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], min_count: int = 1) -> "Vocabulary":
        """Collect the words that occur at least `min_count` times, in alphabetical order."""
        counts = Counter(word for sentence in sentences for word in sentence)
        return cls(sorted(word for word, count in counts.items() if count >= min_count))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Give the numbers of some words; unknown words become UNK."""
        return [self._numbers.get(word, UNK) for word in words]

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Give the words of some numbers, up to the first EOS and without PAD and BOS."""
        words = []
        for number in map(int, numbers):
            if number == EOS:
                break
            if number not in (PAD, BOS):
                words.append(self.words[number])
        return words


class Batch(NamedTuple):
    """Some pairs as numbers, padded with PAD.

    Attributes:
        X: the source sentences, each ending with EOS.
        lengths: how many numbers of each row of X count, EOS included.
        Y: the target sentences, each beginning with BOS and ending with EOS.
    """

    X: Int[Tensor, "B N"]
    lengths: Int[Tensor, "B"]
    Y: Int[Tensor, "B M+2"]


@dataclass(frozen=True)
class Corpus:
    """Pairs to learn from, other pairs to be tested on, and both languages' words.

    Example:
        >>> corpus = english_spanish(train=100, test=10, seed=0)
        >>> X, lengths, Y = corpus.batch(corpus.test[:3])
        >>> X.shape[0], Y[:, 0].tolist()
        (3, [1, 1, 1])
        >>> pair = corpus.test[0]
        >>> corpus.target.decode(Y[0]) == list(pair.target)
        True
    """

    train: list[Pair]
    test: list[Pair]
    source: Vocabulary
    target: Vocabulary

    def batch(self, pairs: Sequence[Pair]) -> Batch:
        """Turn pairs into numbers, in the given order."""
        return _collate([self._encode(pair) for pair in pairs])

    def draw(self, B: int, generator: torch.Generator) -> Batch:
        """Draw B training pairs of similar lengths, so that little of the batch is padding.

        A larger pool is drawn, sorted by length, and a random stretch of it taken. Every pair is
        as likely as any other.
        """
        pool = torch.randint(len(self.train), (B * _POOL,), generator=generator).tolist()
        pool.sort(key=lambda number: len(self._encoded[number][0]))
        start = B * int(torch.randint(_POOL, (1,), generator=generator))
        return _collate([self._encoded[number] for number in pool[start : start + B]])

    @cached_property
    def _encoded(self) -> list[tuple[list[int], list[int]]]:
        return [self._encode(pair) for pair in self.train]

    def _encode(self, pair: Pair) -> tuple[list[int], list[int]]:
        source, target = self.source.encode(pair.source), self.target.encode(pair.target)
        return [*source, EOS], [BOS, *target, EOS]


def english_spanish(train: int = 8000, test: int = 500, seed: int = 0) -> Corpus:
    """Make English sentences of 4 to 30 words, all lengths equally often, and translate them.

    No English sentence occurs twice in the training and testing pairs. Every pair has its
    alignment. A sample, where ↔ links the words that cross:

        the small red houses            las casas rojas pequeñas     small ↔ pequeñas, red ↔ rojas
        Lucy will never see an old hat  Lucía nunca verá un sombrero viejo       hat ↔ sombrero

    Args:
        train, test: how many pairs.
        seed: the same seed gives the same sentences.
    Raises:
        ValueError: train or test is less than 1.
    """
    if train < 1 or test < 1:
        raise ValueError(f"train and test must be at least 1, got {train} and {test}")
    rng, pairs = random.Random(seed), {}
    while len(pairs) < train + test:
        length = rng.randint(grammar.SHORTEST, grammar.LONGEST)
        source, target, alignment = map(tuple, grammar.sentence(rng, length))
        pairs[source] = Pair(source, target, alignment)
    chosen = list(pairs.values())
    return Corpus(
        chosen[:train],
        chosen[train:],
        Vocabulary.of(pair.source for pair in chosen),
        Vocabulary.of(pair.target for pair in chosen),
    )


def read_parallel(
    source: Path | str,
    target: Path | str,
    *,
    test: int = 500,
    seed: int = 0,
    longest: int = 30,
    min_count: int = 2,
) -> Corpus:
    """Read sentences from one text file and their translations from another, line by line.

    Any two UTF-8 files will do, for example `train.en` and `train.de` of Multi30k, unpacked. Text
    is put into lower case and split into words and punctuation. Pairs that are too long or have an
    empty side are left out; where a source sentence occurs twice, the first pair counts.

    Example:
        >>> corpus = read_parallel("train.en", "train.de", test=1000)  # doctest: +SKIP
        >>> corpus.train[0].target  # doctest: +SKIP
        ('zwei', 'junge', 'männer', 'sind', 'im', 'freien', '.')

    Args:
        source, target: the files; line n of one translates line n of the other.
        test: how many pairs to hold out, chosen at random.
        seed: for the choice.
        longest: how many words a sentence may have, in either language.
        min_count: how often a word must occur in the training pairs to get a number of its own.
    Raises:
        DataError: a file is missing or not UTF-8, the files have different numbers of lines, or
            too few pairs are left.
    """
    lines = [_lines(Path(source)), _lines(Path(target))]
    if len(lines[0]) != len(lines[1]):
        raise DataError(
            f"{source} has {len(lines[0])} lines and {target} has {len(lines[1])}; "
            "line n of one must translate line n of the other"
        )
    pairs = {}
    for words in zip(map(_words, lines[0]), map(_words, lines[1]), strict=True):
        if all(1 <= len(side) <= longest for side in words):
            pairs.setdefault(words[0], Pair(*words))
    if len(pairs) <= test or test < 1:
        raise DataError(
            f"{source} and {target} give {len(pairs)} different pairs of at most {longest} words; "
            f"more than test={test} are needed, and test must be at least 1"
        )
    chosen = list(pairs.values())
    random.Random(seed).shuffle(chosen)
    held_out, kept = chosen[:test], chosen[test:]
    return Corpus(
        kept,
        held_out,
        Vocabulary.of((pair.source for pair in kept), min_count),
        Vocabulary.of((pair.target for pair in kept), min_count),
    )


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: not UTF-8; is it compressed or Latin-1?") from None
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _words(line: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(unicodedata.normalize("NFC", line).lower()))


def _collate(encoded: list[tuple[list[int], list[int]]]) -> Batch:
    sources, targets = zip(*encoded, strict=True)
    lengths = torch.tensor([len(source) for source in sources])
    return Batch(_pad(sources), lengths, _pad(targets))


def _pad(rows: Sequence[list[int]]) -> Int[Tensor, "B T"]:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
