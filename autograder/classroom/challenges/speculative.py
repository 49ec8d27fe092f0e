"""Speculation: drafts from the text itself, whose tokens have other numbers than the target's."""

import functools
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from autograder.classroom.challenges import Challenge, Refused
from course_pkg.data import docstrings, small_llama
from course_pkg.gpt import BPETokenizer
from course_pkg.inference.models import shipped
from course_pkg.speculative import draw_token, prompt_lookup

TEMPERATURE = 0.7
LONGEST = 8  # tokens of a draft
START = 32  # tokens of documentation that a text begins from, and that nobody sees


@dataclass(frozen=True)
class Passes(Challenge):
    """Count the passes in which the target writes hidden texts, with a student's drafts.

    A draft passes as far as it equals the target's own text, so that text is written beforehand.
    The target has written the prompt, too: no part of a text is in the documentation that came
    along with the course. Each text has numbers of its own for its tokens. A copy of the target
    would help only those who find out what the numbers of one text stand for.

    Args:
        texts: how many.
        prompt, new: tokens of each text's prompt, and tokens that are added.
    """

    texts: int = 10
    prompt: int = 156
    new: int = 100

    measured: ClassVar[str] = "passes of the target for 1000 tokens"
    less_is_better: ClassVar[bool] = True
    digits: ClassVar[int] = 0
    seconds: ClassVar[float] = 60.0
    baseline_is: ClassVar[str] = "prompt_lookup"

    def measure(self, function, secret):
        texts, passes = _texts(secret, self.texts, self.prompt + self.new), 0
        for text in texts:
            length = self.prompt
            while length < len(text):
                k = min(LONGEST, len(text) - length - 1)
                draft = _checked(function(text[:length], k), k)
                accepted = 0
                while accepted < len(draft) and draft[accepted] == text[length + accepted]:
                    accepted += 1
                length += accepted + 1  # the target adds one more
                passes += 1
        return 1000 * passes / (self.texts * self.new)

    @staticmethod
    def baseline(tokens, k):
        return prompt_lookup(tokens, k)


def _checked(draft: object, k: int) -> list[int]:
    if not isinstance(draft, list) or not all(type(token) is int for token in draft):
        raise Refused(f"challenge must return a list of numbers, and gave {draft!r:.40}")
    if len(draft) > k:
        raise Refused(f"challenge drafted {len(draft)} tokens, where at most {k} were asked for")
    return draft


@functools.lru_cache(maxsize=1)
@torch.no_grad()
def _texts(secret: int, texts: int, length: int) -> list[list[int]]:
    """Let the target write texts from hidden starts, and give the tokens of each other numbers."""
    target = shipped("target").llama
    pages = docstrings.pages((docstrings.STANDARD,))
    unseen = "".join(page.text for page in pages if page.held_out).encode()
    tokens = BPETokenizer(small_llama.merges()).encode(unseen)
    draws = [Random(f"{secret} {place}") for place in range(texts)]
    starts = [draw.randrange(len(tokens) - START) for draw in draws]
    unread = torch.tensor([tokens[start : start + START] for start in starts])
    caches, written = target.new_caches(texts, START + length), []
    for _ in range(length):
        p = torch.softmax(target(unread, caches)[:, -1] / TEMPERATURE, dim=-1)
        new = [draw_token(row, draw.random()) for row, draw in zip(p, draws, strict=True)]
        written.append(new)
        unread = torch.tensor(new)[:, None]
    found = []
    for text, draw in zip(zip(*written, strict=True), draws, strict=True):
        numbers = list(range(len(target.token.weight)))
        draw.shuffle(numbers)
        found.append([numbers[token] for token in text])
    return found


CHALLENGE = Passes()
