"""Texts in languages that nobody has seen before: each seed makes another one."""

import random

_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
_GENDERS = 3


class Language:
    """An invented language: its syllables, its words, and the order in which they stand.

    Nouns have one of three genders, and articles and adjectives agree with them. Each paragraph is
    about two names of its own, which come back in it and nowhere else.

    Example:
        >>> text = Language(0).text(100_000, random.Random(1))

    Args:
        seed: makes the language.
    """

    def __init__(self, seed: int):
        draw = random.Random(seed)
        self._syllables = [c + v for c in draw.sample(_CONSONANTS, 9) for v in _VOWELS]
        draw.shuffle(self._syllables)
        self._nouns, self._verbs, self._adjectives = (
            [self._word(draw, 2, 3) for _ in range(count)] for count in (120, 60, 50)
        )
        self._articles, self._particles = (
            [self._word(draw, 1, 1) for _ in range(count)] for count in (_GENDERS, 6)
        )
        self._endings = draw.sample("dfgkmnrstz", _GENDERS)

    def text(self, size: int, draw: random.Random) -> bytes:
        """Write paragraphs, and cut them after some bytes.

        Args:
            size: how many bytes.
            draw: the source of randomness.
        """
        written = b""
        while len(written) < size:
            names = [self._word(draw, 2, 4).capitalize() for _ in range(2)]
            sentences = [self._sentence(names, draw) for _ in range(draw.randint(4, 8))]
            written += (" ".join(sentences) + "\n\n").encode()
        return written[:size]

    def _word(self, draw: random.Random, shortest: int, longest: int) -> str:
        count = draw.randint(shortest, longest)
        return "".join(_zipf(self._syllables, draw) for _ in range(count))

    def _sentence(self, names: list[str], draw: random.Random) -> str:
        subject = draw.choice(names) if draw.random() < 0.6 else self._phrase(draw)
        parts = [subject, _zipf(self._verbs, draw), self._phrase(draw)]
        if draw.random() < 0.5:
            place = draw.choice(names) if draw.random() < 0.3 else self._phrase(draw)
            parts += [_zipf(self._particles, draw), place]
        text = " ".join(parts)
        return text[0].upper() + text[1:] + "."

    def _phrase(self, draw: random.Random) -> str:
        number = _place(len(self._nouns), draw)
        gender = number % _GENDERS
        words = [self._articles[gender], self._nouns[number]]
        if draw.random() < 0.4:
            words.insert(1, _zipf(self._adjectives, draw) + self._endings[gender])
        return " ".join(words)


def _zipf(words: list[str], draw: random.Random) -> str:
    return words[_place(len(words), draw)]


def _place(count: int, draw: random.Random) -> int:
    """Draw a place in a list: number n with a probability of about 1 / (n + 1)."""
    return int((count + 1) ** draw.random()) - 1
