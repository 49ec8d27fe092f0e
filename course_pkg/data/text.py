"""Text to learn from: Python's own documentation, or any UTF-8 file; words, parts and batches."""

import codecs
import importlib
import re
import unicodedata
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

_CHUNK = 1 << 16  # bytes read at a time


class EncodingError(ValueError):
    """A file that is not UTF-8; `offset` is the place of its first wrong byte."""

    def __init__(self, path: Path, offset: int, byte: int):
        super().__init__(f"{path} is not UTF-8: byte 0x{byte:02x} at offset {offset}")
        self.offset = offset


def read(path: str | Path | None = None, limit: int | None = None) -> str:
    """Read a text to train on.

    Example:
        >>> len(read(limit=1000))
        1000

    Args:
        path: a UTF-8 file. When None, the documentation that Python's `help()` shows for keywords
            and topics, with repeated paragraphs removed.
        limit: how many bytes to use at most; no more of a file is read. A character that the
            limit would cut is left out.
    Returns:
        The text.
    Raises:
        EncodingError: the file is not UTF-8.
        ValueError: limit is negative.
    """
    if limit is not None and limit < 0:
        raise ValueError(f"limit must not be negative, got {limit}")
    if path is None:
        return _topics().encode()[:limit].decode(errors="ignore")
    path, decoder, parts, done = Path(path), codecs.getincrementaldecoder("utf-8")(), [], 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK if limit is None else min(_CHUNK, limit - done)):
            waiting = len(decoder.getstate()[0])  # the first bytes of a character
            try:
                parts.append(decoder.decode(chunk))
            except UnicodeDecodeError as error:
                offset = done - waiting + error.start
                raise EncodingError(path, offset, error.object[error.start]) from None
            done += len(chunk)
    rest = decoder.getstate()[0]
    if rest and done != limit:
        raise EncodingError(path, done - len(rest), rest[0])
    return "".join(parts)


def split(text: str, share: float = 0.1) -> tuple[str, str]:
    """Cut a text, between paragraphs, into a part for training and its end for validation.

    Args:
        text: the text.
        share: how much of it is for validation, between 0 and 1.
    Returns:
        Both parts; together they are the text. If its first part has no break between paragraphs,
        the text is cut wherever the share says.
    Raises:
        ValueError: share is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"share must lie between 0 and 1, got {share}")
    place = round(len(text) * (1 - share))
    border = text.rfind("\n\n", 0, place)
    place = place if border < 0 else border + 2
    return text[:place], text[place:]


def words(text: bytes) -> list[bytes]:
    """Cut bytes into words as GPT-2 does; a token never reaches across their borders.

    A word is a run of letters, of digits or of other signs, each with the space before it, a
    contraction ('s, 't, 're, 've, 'm, 'll, 'd), or a run of white space. Bytes that are not UTF-8
    count as other signs      (Radford et al. 2019, and the code published with it)

    Example:
        >>> words(b"It's 3 o'clock.")
        [b'It', b"'s", b' 3', b' o', b"'", b'clock', b'.']

    Args:
        text: any bytes.
    Returns:
        The words; together they are the text.
    """
    characters = text.decode(errors="surrogateescape")
    numbers = (c for c in sorted(set(characters)) if unicodedata.category(c) in ("Nl", "No"))
    found = _pattern("".join(numbers)).findall(characters)
    return [word.encode(errors="surrogateescape") for word in found]


def batch(
    tokens: Int[Tensor, "N"], B: int, T: int, generator: torch.Generator | int
) -> Int[Tensor, "B T"]:
    """Draw B stretches of T tokens from anywhere in a text.

    Args:
        tokens: the text, as tokens.
        B: how many stretches.
        T: their length.
        generator: the source of randomness, or a seed for a fresh one.
    Returns:
        The stretches.
    Raises:
        ValueError: B or T is less than 1, or the text is shorter than T.
    """
    _demand(tokens, T, B)
    if isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator)
    starts = torch.randint(0, len(tokens) - T + 1, (B, 1), generator=generator)
    return tokens[starts + torch.arange(T)]


def stretches(tokens: Int[Tensor, "N"], T: int) -> Int[Tensor, "B T"]:
    """Cut a text into stretches of T tokens, each beginning with the last token of the one before.

    So every token but the first is predicted exactly once; up to T - 2 at the end are left out.

    Args:
        tokens: the text, as tokens.
        T: their length, at least 2.
    Returns:
        All stretches.
    Raises:
        ValueError: T is less than 2, or the text is shorter than T.
    """
    if T < 2:
        raise ValueError(f"T must be at least 2, got {T}")
    _demand(tokens, T, 1)
    return tokens.unfold(0, T, T - 1)


def _demand(tokens: Tensor, T: int, B: int) -> None:
    if B < 1 or T < 1:
        raise ValueError(f"B and T must be at least 1, got B={B} and T={T}")
    if len(tokens) < T:
        raise ValueError(f"a text of {len(tokens)} tokens has no stretch of {T}")


@cache
def _topics() -> str:
    topics = importlib.import_module("pydoc_data.topics").topics
    seen, kept = set(), []
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            key = " ".join(paragraph.split())
            if key and key not in seen:
                seen.add(key)
                kept.append(paragraph.strip("\n"))
    return "\n\n".join(kept) + "\n"


@cache
def _pattern(numbers: str) -> re.Pattern:
    # GPT-2 asks Unicode for letters (L), numbers (N) and white space. Python's \w also holds the
    # numbers that \d does not, such as ², and its \s four separators that are no white space.
    letter, number = rf"[^\W\d_{numbers}]", rf"[\d{numbers}]"
    space, sign = r"[^\S\x1c-\x1f]", r"(?:[^\s\w]+|[_\x1c-\x1f]+)"
    return re.compile(
        rf"'(?:[stmd]|re|ve|ll)| ?{letter}+| ?{number}+| ?{sign}+"
        rf"|{space}+(?![\S\x1c-\x1f])|{space}+"
    )
