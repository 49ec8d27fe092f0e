"""The text of an answer, piece by piece as its tokens come."""

import codecs
from collections.abc import Sequence

from course_pkg.gpt import BPETokenizer


class Detokenizer:
    """Turn the tokens of one answer into text that may be sent.

    A character may be spread over tokens, so its bytes wait for the rest of it. What may be the
    beginning of a stop text waits until it is known whether it is one.

    Attributes:
        has_stopped: whether a stop text has come. What follows it is never sent, nor is it itself.

    Args:
        tokenizer: whose tokens they are.
        stops: texts that end the answer.
        least: a stop text must begin after so many tokens.
    """

    def __init__(self, tokenizer: BPETokenizer, stops: Sequence[str] = (), least: int = 0):
        self.tokenizer, self.stops, self.least = tokenizer, stops, least
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.held, self.has_stopped = "", False

    def write(self, tokens: list[int], is_last: bool = False) -> str:
        """Give what may be sent after some more tokens; all of it if they are the last."""
        if self.has_stopped:
            return ""
        early, tokens = tokens[: self.least], tokens[self.least :]
        self.least -= len(early)
        free = self.decoder.decode(self.tokenizer.decode(early))
        self.held += self.decoder.decode(self.tokenizer.decode(tokens), is_last)
        places = [self.held.index(stop) for stop in self.stops if stop in self.held]
        self.has_stopped = bool(places)
        end = min(places) if places else len(self.held) - (0 if is_last else self._suspicious())
        sent, self.held = self.held[:end], self.held[end:]
        return free + sent

    def _suspicious(self) -> int:
        """Count the characters at the end that may be the beginning of a stop text."""
        beginnings = {stop[:n] for stop in self.stops for n in range(1, len(stop))}
        return max((len(each) for each in beginnings if self.held.endswith(each)), default=0)
