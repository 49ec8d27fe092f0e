"""Tasks that need a memory: what matters comes some steps before the answer is due.

Shapes: B sequences, T steps. Every call draws a new batch; there is no data set to run out of.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def adding_problem(
    B: int, T: int, generator: torch.Generator | int
) -> tuple[Float[Tensor, "B T 2"], Float[Tensor, "B"]]:
    """Draw sequences of numbers, two of them marked; the target is the sum of the marked ones.

    Feature 0 is a number from U(0, 1); feature 1 is 1 at two steps, the marks, and 0 elsewhere.
    One mark lies in the first half, the other in the second. Always answering 1, the mean, costs
    the target's variance: 2 · 1/12 = 1/6 ≈ .167   (after Hochreiter & Schmidhuber 1997, §5.4)

    Example:
        >>> X, y = adding_problem(B=3, T=8, generator=0)
        >>> X.shape, y.shape
        (torch.Size([3, 8, 2]), torch.Size([3]))
        >>> torch.equal((X[:, :, 0] * X[:, :, 1]).sum(dim=1), y)
        True

    Args:
        B: sequences in the batch.
        T: steps, at least 2.
        generator: the source of randomness, or a seed for a fresh one.
    Returns:
        The sequences and their targets.
    Raises:
        ValueError: B is less than 1 or T less than 2.
    """
    _at_least(B=(B, 1), T=(T, 2))
    generator = _generator(generator)
    numbers = torch.rand(B, T, generator=generator)
    first = torch.randint(0, T // 2, (B, 1), generator=generator)
    second = torch.randint(T // 2, T, (B, 1), generator=generator)
    marks = torch.zeros(B, T).scatter_(1, torch.cat([first, second], dim=1), 1.0)
    return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(dim=1)


def recall_first(
    B: int, T: int, generator: torch.Generator | int, *, keys: int = 8, distractors: int = 8
) -> tuple[Float[Tensor, "B T K"], Int[Tensor, "B"]]:
    """Draw sequences that begin with a key, followed by T-1 distractors; the target is the key.

    Keys and distractors are different symbols, one-hot vectors of size K = keys + distractors.
    The delay is deliberately noise: during blank input the state of a plain RNN can stay where it
    is, so blanks would be a weaker test of memory.

    Example:
        >>> X, y = recall_first(B=3, T=5, generator=0)
        >>> X.shape
        torch.Size([3, 5, 16])
        >>> torch.equal(X[:, 0].argmax(dim=1), y)
        True

    Args:
        B: sequences in the batch.
        T: steps, the key's included.
        generator: the source of randomness, or a seed for a fresh one.
        keys: how many symbols there are to recall, at least 2; chance is one in that many.
        distractors: how many other symbols there are.
    Returns:
        The sequences and the numbers of their keys.
    Raises:
        ValueError: B, T or distractors is less than 1, or keys less than 2.
    """
    _at_least(B=(B, 1), T=(T, 1), keys=(keys, 2), distractors=(distractors, 1))
    generator = _generator(generator)
    symbols = torch.randint(keys, keys + distractors, (B, T), generator=generator)
    symbols[:, 0] = torch.randint(0, keys, (B,), generator=generator)
    return functional.one_hot(symbols, keys + distractors).float(), symbols[:, 0].clone()


def echo(
    B: int, T: int, delay: int, generator: torch.Generator | int
) -> tuple[Float[Tensor, "B T 1"], Float[Tensor, "B T-delay"]]:
    """Draw sequences of -1 and 1; the target at every step is the input `delay` steps earlier.

    The first `delay` steps have no target. Always answering 0, the mean, costs the target's
    variance, 1.

    Example:
        >>> X, y = echo(B=3, T=8, delay=2, generator=0)
        >>> X.shape, y.shape
        (torch.Size([3, 8, 1]), torch.Size([3, 6]))
        >>> torch.equal(X[:, :6, 0], y)
        True

    Args:
        B: sequences in the batch.
        T: steps, more than `delay`.
        delay: how many steps lie between an input and its echo.
        generator: the source of randomness, or a seed for a fresh one.
    Returns:
        The sequences, and the targets of the steps delay + 1 … T.
    Raises:
        ValueError: B is less than 1, delay less than 0, or T less than delay + 1.
    """
    _at_least(B=(B, 1), delay=(delay, 0), T=(T, delay + 1))
    bits = 2.0 * torch.randint(0, 2, (B, T), generator=_generator(generator)) - 1
    return bits[:, :, None], bits[:, : T - delay].clone()


def latch(
    B: int, T: int, generator: torch.Generator | int, *, noise: float = 0.2
) -> tuple[Float[Tensor, "B T 1"], Float[Tensor, "B 1"]]:
    """Draw sequences whose first step carries -1 or 1 on top of noise; the target is that bit.

    After the first step there is only noise. The answer is due at the last step, so that a network
    has to hold one bit for T-1 steps. Always answering 0, the mean, costs the target's variance, 1
    (after Bengio et al. 1994).

    Example:
        >>> X, y = latch(B=3, T=8, generator=0)
        >>> X.shape, y.shape
        (torch.Size([3, 8, 1]), torch.Size([3, 1]))

    Args:
        B: sequences in the batch.
        T: steps, the first one included.
        generator: the source of randomness, or a seed for a fresh one.
        noise: the standard deviation of the noise.
    Returns:
        The sequences, and the target of their last step.
    Raises:
        ValueError: B or T is less than 1, or noise is negative.
    """
    _at_least(B=(B, 1), T=(T, 1), noise=(noise, 0))
    generator = _generator(generator)
    X = noise * torch.randn(B, T, 1, generator=generator)
    bits = 2.0 * torch.randint(0, 2, (B, 1), generator=generator) - 1
    X[:, 0] += bits
    return X, bits


def _generator(source: torch.Generator | int) -> torch.Generator:
    if isinstance(source, torch.Generator):
        return source
    return torch.Generator().manual_seed(source)


def _at_least(**sizes: tuple[float, float]) -> None:
    for name, (size, minimum) in sizes.items():
        if size < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {size}")
