"""Sentences as numbers: a vocabulary with BERT's special words, and batches of packed texts.

A corpus is a list of documents, which are lists of sentences, which are lists of words.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from course_pkg.data import text

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Vocabulary:
    """Number words.

    Args:
        words: the words; the five special ones are put first if they are not among them.

    Attributes:
        words: all words, by their number.
        pad, unk, cls, sep, mask: the numbers of the special words.
    """

    def __init__(self, words: Sequence[str]):
        self.words = [*(word for word in SPECIAL if word not in set(words)), *words]
        self.numbers = {word: number for number, word in enumerate(self.words)}
        self.pad, self.unk, self.cls, self.sep, self.mask = (self.numbers[w] for w in SPECIAL)

    @classmethod
    def of(cls, documents: Iterable[list[list[str]]], size: int | None = None) -> "Vocabulary":
        """Collect the words of a corpus, frequent ones first, at most `size` of them."""
        counts = Counter(w for sentences in documents for words in sentences for w in words)
        return cls(sorted(counts, key=lambda word: (-counts[word], word))[:size])

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, word: str) -> int:
        return self.numbers.get(word, self.unk)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Number the words of a sentence; unknown ones become [UNK]."""
        return [self[word] for word in words]

    @property
    def special(self) -> list[int]:
        """The numbers of the special words."""
        return [self.pad, self.unk, self.cls, self.sep, self.mask]


def pack(
    vocabulary: Vocabulary,
    texts: Sequence[tuple[list[int], list[int] | None]],
    longest: int | None = None,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"], Int[Tensor, "B"]]:
    """Join sentences as BERT reads them, and pad them to the same length.

    [CLS] first [SEP], or [CLS] first [SEP] second [SEP], where the second and its [SEP] are segment
    1 and all else segment 0.

    Example:
        >>> v = Vocabulary(["a", "b", "c"])
        >>> tokens, segments, lengths = pack(v, [([5], [6, 7]), ([5, 6], None)])
        >>> tokens.tolist(), lengths.tolist()
        ([[2, 5, 3, 6, 7, 3], [2, 5, 6, 3, 0, 0]], [6, 4])
        >>> segments.tolist()
        [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]

    Args:
        vocabulary: has the numbers of the special words.
        texts: pairs of sentences as numbers; the second may be None.
        longest: where a text would be longer than this, words are dropped from the end of its
            longer sentence, or of the second if both are equally long.
    Returns:
        The tokens, their segments, and how many of each text are real.
    Raises:
        ValueError: there is no text, or longest leaves no room for the special words.
    """
    if not texts or (longest is not None and longest < 3):
        raise ValueError(f"there are {len(texts)} texts, and longest is {longest}, less than 3")
    rows, kinds = [], []
    for a, b in texts:
        a, b = list(a), None if b is None else list(b)
        while longest is not None and len(a) + (2 if b is None else len(b) + 3) > longest:
            (b if b is not None and len(b) >= len(a) else a).pop()
        tail = [] if b is None else [*b, vocabulary.sep]
        rows.append([vocabulary.cls, *a, vocabulary.sep, *tail])
        kinds.append([0] * (len(a) + 2) + [1] * len(tail))
    T = max(map(len, rows))
    tokens = [row + [vocabulary.pad] * (T - len(row)) for row in rows]
    segments = [row + [0] * (T - len(row)) for row in kinds]
    return torch.tensor(tokens), torch.tensor(segments), torch.tensor([len(row) for row in rows])


def read(path: str | Path, limit: int | None = None) -> list[list[list[str]]]:
    """Read any text as a corpus: paragraphs are documents, and their sentences are lists of words.

    A sentence ends at a full stop, exclamation or question mark followed by white space. Words
    are made of letters and digits, in lower case; other signs stand alone.

    Args:
        path: a UTF-8 file.
        limit: how many bytes of it to read at most.
    Returns:
        The documents that have at least one sentence.
    Raises:
        EncodingError: the file is not UTF-8.
    """
    documents = []
    for paragraph in re.split(r"\n\s*\n", text.read(path, limit)):
        sentences = re.split(r"(?<=[.!?])\s+", paragraph)
        words = [re.findall(r"\w+|[^\w\s]", sentence.lower()) for sentence in sentences]
        if any(words):
            documents.append([sentence for sentence in words if sentence])
    return documents
