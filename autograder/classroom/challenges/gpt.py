"""GPT: learn a language that nobody has seen before, and predict it byte by byte."""

import math
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch
from torch import Tensor

from autograder.classroom.challenges import Challenge, Refused
from course_pkg.data import text
from course_pkg.data.language import Language
from course_pkg.gpt import GPT, init_gpt_weights, language_model_loss
from course_pkg.tools import train

BYTES = 256
CONTEXT = 64  # bytes that the baseline reads
TOLERANCE = 1e-3  # by which a sum may differ from one


@dataclass(frozen=True)
class BitsPerByte(Challenge):
    """Let a student's function learn a hidden language, then ask for one byte after the other.

    Whoever predicts has read all bytes before the one that is asked for, and no other.

    Args:
        size: bytes to learn from.
        stretches: how many stretches of other text are asked for, all at once.
        given, asked: bytes of each stretch that are given, and bytes that are then asked for.
    """

    size: int = 100_000
    stretches: int = 96
    given: int = 128
    asked: int = 64

    measured: ClassVar[str] = "bits per byte"
    less_is_better: ClassVar[bool] = True
    digits: ClassVar[int] = 3
    seconds: ClassVar[float] = 90.0
    baseline_is: ClassVar[str] = "the GPT, with bytes as tokens"

    def measure(self, function, secret):
        language = Language(secret)
        training = language.text(self.size, Random(f"{secret} training"))
        length, bits = self.given + self.asked, 0.0
        hidden = [language.text(length, Random(f"{secret} {n}")) for n in range(self.stretches)]
        rows = torch.tensor([list(stretch) for stretch in hidden])  # none goes on with another
        predict = function(training)
        if not callable(predict):
            raise Refused(f"challenge must return a function, and gave {predict!r:.40}")
        with torch.no_grad():
            for place in range(self.given, length):
                p = _checked(predict(rows[:, :place].clone()), self.stretches)
                p = p.gather(1, rows[:, place, None])
                if not p.all():
                    raise Refused("a byte that came had been given a probability of 0")
                bits -= p.log2().sum().item()
        return bits / (self.stretches * self.asked)

    @staticmethod
    def baseline(training):
        torch.manual_seed(0)
        model = GPT(V=BYTES, context=CONTEXT, D=64, H=4, L=2)
        state = init_gpt_weights(model.state_dict(), L=2)
        scale = math.sqrt(768 / 64)
        model.load_state_dict({n: scale * v if v.dim() == 2 else v for n, v in state.items()})
        tokens = torch.tensor(list(training))
        train.fit(
            model,
            lambda generator: (text.batch(tokens, 8, CONTEXT, generator),),
            lambda model, tokens: language_model_loss(model(tokens), tokens),
            steps=600,
            lr=3e-3,
            clip=1.0,
        )
        # In training nothing follows the last of CONTEXT bytes: its place is never asked.
        return lambda read: torch.softmax(model(read[:, 1 - CONTEXT :])[:, -1], dim=1)


def _checked(p: object, rows: int) -> Tensor:
    """Demand a distribution over bytes for each row, and make its sum exactly one."""
    if not isinstance(p, Tensor) or p.shape != (rows, BYTES) or not p.is_floating_point():
        what = tuple(p.shape) if isinstance(p, Tensor) else type(p).__name__
        raise Refused(f"a prediction must be a tensor of shape ({rows}, {BYTES}), and was {what}")
    p = p.detach().double()
    total = p.sum(dim=1, keepdim=True)
    if not (p >= 0).all() or not ((total - 1).abs() <= TOLERANCE).all():  # NaN is neither
        raise Refused("a prediction had negative probabilities, or they did not sum to one")
    return p / total


CHALLENGE = BitsPerByte()
