"""Speculation: drafts from the text itself, for a target that only the grader has."""

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


@dataclass(frozen=True)
class Passes(Challenge):
    """Count the passes in which the target writes hidden texts, with a student's drafts.

    A draft passes as far as it equals the target's own text, so that text is written beforehand.
    Whoever drafts sees other numbers than the target's: with them, a copy of the target that came
    along with the course would say nothing.

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
        texts, passes = _texts(secret, self.texts, self.prompt, self.new), 0
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
def _texts(secret: int, texts: int, prompt: int, new: int) -> list[list[int]]:
    """Let the target continue hidden prompts, and give all tokens other numbers."""
    target = shipped("target").llama
    pages = docstrings.pages((docstrings.STANDARD,))
    unseen = "".join(page.text for page in pages if page.held_out).encode()
    tokenizer = BPETokenizer(small_llama.merges())
    tokens, found = tokenizer.encode(unseen), []
    for place in range(texts):
        draw = Random(f"{secret} {place}")  # what a text tells of its own says nothing of others
        start = draw.randrange(len(tokens) - prompt)
        text = tokens[start : start + prompt]
        caches, unread = target.new_caches(1, prompt + new), text
        for _ in range(new):
            logits = target(torch.tensor([unread]), caches)[0, -1]
            unread = [draw_token(torch.softmax(logits / TEMPERATURE, dim=-1), draw.random())]
            text = text + unread
        found.append(text)
    numbers = list(range(len(target.token.weight)))
    Random(secret).shuffle(numbers)
    return [[numbers[token] for token in text] for text in found]


CHALLENGE = Passes()
