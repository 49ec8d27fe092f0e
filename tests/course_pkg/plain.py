"""Generation as plain as can be, one text at a time and without a cache: the oracle of serving."""

import torch
from torch import Tensor

from course_pkg.data.translation import BOS, EOS
from course_pkg.engine.requests import SamplingParams
from course_pkg.gpt import token_probabilities
from course_pkg.inference.models import attend_to_all
from course_pkg.seq2seq import beam_search


class Plain:
    """Continue texts with a model, computing everything anew for every token.

    Args:
        model: a served model, in float64.
    """

    def __init__(self, model):
        self.model = model
        self.known: dict[tuple[int, ...], Tensor] = {}
        self.searches: dict[tuple, list[tuple[list[int], float]]] = {}

    @torch.no_grad()
    def logits(self, tokens: list[int]) -> Tensor:
        """Score the next token after a text."""
        text = tuple(tokens)
        if text not in self.known:
            places = torch.arange(len(text))
            rows = self.model(torch.tensor(text), places, attend_to_all, places[-1:])
            self.known[text] = rows[0]
        return self.known[text]

    def sample(self, prompt: list[int], sampling: SamplingParams, k: int = 0) -> list[int]:
        """Continue a prompt as sample number k of a request must."""
        text, generator = list(prompt), torch.Generator().manual_seed(sampling.seed + k)
        while len(text) < len(prompt) + sampling.max_tokens:
            settings = sampling.temperature, sampling.top_k, sampling.top_p
            p = token_probabilities(self.logits(text)[None], *settings)[0]
            p = torch.where(p < sampling.min_p * p.max(), 0, p)
            if sampling.temperature == 0:
                text.append(int(p.argmax()))
            else:
                text.append(int(torch.multinomial(p, 1, generator=generator)))
            if text[-1] == sampling.stop:
                break
        return text[len(prompt) :]

    def search(self, prompt: list[int], sampling: SamplingParams) -> list[tuple[list[int], float]]:
        """Search with the beams of seq2seq, whose end of a sentence must be the stop token."""
        assert sampling.stop == EOS
        key = tuple(prompt), sampling
        if key not in self.searches:
            h, mask = torch.zeros(1, 1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
            settings = sampling.beams, sampling.max_tokens, sampling.alpha
            self.searches[key] = beam_search(_Decoder(self, prompt), h, mask, *settings)
        return self.searches[key]


class _Decoder:
    """A served model as a decoder of seq2seq: its state is the text so far."""

    def __init__(self, plain: Plain, prompt: list[int]):
        self.plain, self.prompt = plain, prompt

    def start(self, h: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        return torch.tensor([[*self.prompt]] * len(h)), None

    def step(self, y: Tensor, texts: Tensor, memory: None) -> tuple[Tensor, Tensor, None]:
        if texts.shape[1] > len(self.prompt) or not bool((y == BOS).all()) or self.is_begun:
            texts = torch.cat([texts, y[:, None]], dim=1)
        self.is_begun = True
        return torch.stack([self.plain.logits(row) for row in texts.tolist()]), texts, None

    is_begun = False
