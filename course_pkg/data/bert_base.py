"""BERT's published weights and its vocabulary, from Hugging Face's cache; text as word pieces."""

import os
import re
import unicodedata
from functools import cache
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from course_pkg.data.sentences import Vocabulary

NAME = "google-bert/bert-base-uncased"
_FILES = ("model.safetensors", "vocab.txt")
_LONGEST = 100  # characters of a word that is cut into pieces
_CHINESE = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f"
)


def find() -> Path | None:
    """Find the folder with the files of BERT-base, uncased, in Hugging Face's cache.

    Returns:
        The folder, or None when the files are not on this machine: `hf download` with NAME fetches
        them.
    """
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    folders = (
        folder for name in (NAME, NAME.partition("/")[2]) for folder in _snapshots(hub, name)
    )
    return next((f for f in folders if all((f / name).exists() for name in _FILES)), None)


def read(folder: Path) -> tuple[dict[str, Tensor], Vocabulary]:
    """Read weights and vocabulary.

    Args:
        folder: where the files are.
    Returns:
        The state dict, under Hugging Face's names, and the word pieces.
    """
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    return load_file(folder / "model.safetensors"), Vocabulary([p for p in pieces if p])


def wordpieces(vocabulary: Vocabulary, text: str) -> list[int]:
    """Cut a text into word pieces, such as BERT-base uncased was trained on.

    The text becomes lower case and loses its accents, punctuation marks and Chinese characters
    stand alone; then each word is cut into the longest piece that it begins with, and so on. Pieces
    inside a word begin with ##. A word that cannot be cut becomes [UNK]      (Devlin et al. 2019)

    Example:
        >>> vocabulary = Vocabulary(["un", "##aff", "##able", "!"])
        >>> [vocabulary.words[piece] for piece in wordpieces(vocabulary, "Unaffable!")]
        ['un', '##aff', '##able', '!']

    Args:
        vocabulary: the word pieces.
        text: any text.
    Returns:
        The pieces' numbers.
    """
    return [piece for word in _words(text) for piece in _pieces(vocabulary, word)]


def _snapshots(hub: Path, name: str) -> list[Path]:
    return sorted(hub.glob(f"models--{name.replace('/', '--')}/snapshots/*"))


def _words(text: str) -> list[str]:
    clean = "".join(" " if _is_space(c) else c for c in text if _is_space(c) or not _is_control(c))
    clean = re.sub(f"([{_CHINESE}])", r" \1 ", clean)
    plain = unicodedata.normalize("NFD", clean)
    plain = "".join(c for c in plain if unicodedata.category(c) != "Mn").lower()
    return "".join(f" {c} " if _is_mark(c) else c for c in plain).split()


def _pieces(vocabulary: Vocabulary, word: str) -> list[int]:
    pieces, start = [], 0
    while start < len(word) <= _LONGEST:
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((e for e in ends if prefix + word[start:e] in vocabulary.numbers), None)
        if end is None:
            return [vocabulary.unk]
        pieces.append(vocabulary.numbers[prefix + word[start:end]])
        start = end
    return pieces or [vocabulary.unk]


@cache
def _is_space(c: str) -> bool:
    return c in " \t\n\r" or unicodedata.category(c) == "Zs"


@cache
def _is_control(c: str) -> bool:
    return c in "\0\ufffd" or unicodedata.category(c).startswith("C")


@cache
def _is_mark(c: str) -> bool:
    ascii_mark = c.isascii() and c.isprintable() and not c.isalnum() and c != " "
    return ascii_mark or unicodedata.category(c).startswith("P")
