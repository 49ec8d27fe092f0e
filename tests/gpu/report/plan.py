"""What is measured, in which sizes, and how long a card should take for it.

The estimates count what has to be moved or computed, and divide by the card's figures: no program
can be faster, and a good one takes less than twice as long.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.gpu.report import card


@dataclass(frozen=True)
class Decode:
    """One token for each of B sequences, H query heads to G of keys and values, in bfloat16."""

    B: int = 32
    H: int = 32
    G: int = 4
    D_h: int = 128
    lengths: tuple[int, ...] = (4096, 8192, 16384, 32768)
    block_sizes: tuple[int, ...] = (16, 32)

    def moved(self, T: int) -> int:
        """The bytes of keys and values that a step reads."""
        return 2 * 2 * self.B * self.G * T * self.D_h


@dataclass(frozen=True)
class Flash:
    """Causal attention in sequences that have `tokens` tokens together, in bfloat16."""

    H: int = 16
    D_h: int = 128
    tokens: int = 16384
    lengths: tuple[int, ...] = (2048, 4096, 8192, 16384)

    def operations(self, T: int) -> float:
        """The operations of the half of all scores that a causal mask leaves."""
        return 4 * self.tokens * self.H * T * self.D_h / 2


@dataclass(frozen=True)
class Serve:
    """Requests of one length, greedy, by the shipped target in float32."""

    requests: tuple[int, ...] = (1, 32, 256)
    prompt: int = 64
    new: int = 128
    parameters: int = 3_800_000

    def rate(self, count: int) -> float:
        """The most tokens per second, if a step does nothing but read the weights."""
        return count / card.seconds(moved=4 * self.parameters)


DECODE, SMALL_DECODE = Decode(), Decode(B=2, H=8, G=1, D_h=16, lengths=(32, 64))
FLASH, SMALL_FLASH = Flash(), Flash(H=2, D_h=16, tokens=128, lengths=(64, 128))
SERVE, SMALL_SERVE = Serve(), Serve(requests=(1, 4), prompt=8, new=8)


def predictions() -> Iterator[dict]:
    """List what a card should take for all that is measured on one."""
    for T in DECODE.lengths:
        moved = DECODE.moved(T)
        yield {
            "what": f"decode, B {DECODE.B}, {T} tokens",
            "counted": f"{moved / 1e9:.2f} GB",
            "predicted": f"{1e6 * card.seconds(moved=moved):.0f} µs",
        }
    for T in FLASH.lengths:
        operations = FLASH.operations(T)
        yield {
            "what": f"flash forward, {FLASH.tokens // T} × {T} tokens",
            "counted": f"{operations / 1e12:.2f} TFLOP",
            "predicted": f"{1e3 * card.seconds(operations=operations):.2f} ms",
        }
    for count in SERVE.requests:
        yield {
            "what": f"engine, {count} requests",
            "counted": f"{4 * SERVE.parameters / 1e6:.0f} MB for each step",
            "predicted": f"at most {SERVE.rate(count):.0f} tokens/s",
        }
