"""What a check works with: its own random inputs, and comparisons that explain themselves."""

import zlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from course_pkg.checking.telling.failure import (
    Failure,
    NotImplementedYet,
    NotRaised,
    describe,
    kind_of_numbers,
    mismatch,
    plain,
)

_ROUNDING = 8 * torch.finfo(torch.float32).eps


class Case:
    """The inputs and the comparisons of one run of one check.

    Random inputs are float64 and come from a generator of the check's own, so that they are the
    same in every process and never depend on the student's random state.

    Args:
        name: seeds the generator.
        single: the place, among the sizes that are drawn first, of one that is 1.
        strided: whether random numbers lie in memory as after a transpose of their last two axes.
    """

    def __init__(self, name: str, single: int | None = None, strided: bool = False):
        self.generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        self._single = single
        self._strided = strided

    def sizes(self, count: int, low: int = 2) -> list[int]:
        """Draw `count` different sizes from `low` up, so that no two axes can be confused."""
        order = torch.randperm(count + 3, generator=self.generator)[:count]
        return self.narrowed([low + int(size) for size in order])

    def narrowed(self, sizes: list[int]) -> list[int]:
        """Give sizes as they are, but the first time in a run with a single one, that as 1."""
        sizes = [*sizes]
        if self._single is not None:
            sizes[self._single], self._single = 1, None
        return sizes

    def randn(self, *shape: int) -> Tensor:
        """Draw standard normal numbers."""
        return self._laid(torch.randn(shape, generator=self.generator, dtype=torch.float64))

    def rand(self, *shape: int) -> Tensor:
        """Draw uniform numbers from [0, 1)."""
        return self._laid(torch.rand(shape, generator=self.generator, dtype=torch.float64))

    def _laid(self, drawn: Tensor) -> Tensor:
        return drawn.mT.contiguous().mT if self._strided and drawn.dim() > 1 else drawn

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Draw integers from low to high - 1."""
        return self._laid(torch.randint(low, high, shape, generator=self.generator))

    def lengths(self, B: int, T: int) -> Tensor:
        """Draw B lengths from 1 to T, in no particular order; of several, some have 1 and T."""
        if B == 1:
            return self.integers(1, T + 1, 1)
        lengths = torch.cat([torch.tensor([T, 1]), self.integers(1, T + 1, B - 2)])
        return lengths[torch.randperm(B, generator=self.generator)]

    @staticmethod
    def unpack(value: object, *names: str) -> tuple:
        """Split a result that should be a tuple of `names`.

        Raises:
            Failure: it is not a tuple or list of that length.
        """
        if isinstance(value, (tuple, list)) and len(value) == len(names):
            return tuple(value)
        raise Failure(f"should return ({', '.join(names)}), yours returns {describe(value)}.")

    def equal(
        self,
        given: object,
        expected: Tensor | float,
        what: str,
        *,
        rtol: float = 1e-5,
        atol: float | None = None,
        rough: bool = False,
    ) -> None:
        """Demand that the student's value equals the expected one, entry by entry.

        float32 is accepted where float64 is expected; the tolerances leave room for it. Unless
        `atol` is given, it is 1e-7, and for numbers in float32 an eps or eight of the largest that
        is expected: what a sum rounds off is as large as what it adds up, however small the sum.
        `rough` values come from a search, which stops near its aim: known mistakes are recognised
        by their first digits.

        Raises:
            Failure: another type, kind of numbers, shape or value; it gives the first index that
                differs.
        """
        expected = torch.as_tensor(expected).detach().cpu()
        given = self._tensor(given, expected, what)
        kinds = kind_of_numbers(given.dtype), kind_of_numbers(expected.dtype)
        if kinds[0] != kinds[1]:
            raise Failure(
                f"{what} should hold {kinds[1]}, yours holds {kinds[0]} ({given.dtype}).",
                what=what,
                observed=given,
            )
        self.shape(given, tuple(expected.shape), what)
        wide = torch.complex128 if expected.is_complex() else torch.float64
        pair = given.to(wide), expected.to(wide)
        if torch.equal(*pair):  # most results are integers, or the same to the last bit
            return
        if atol is None:
            atol = max(1e-7, _ROUNDING * _largest(expected)) if _is_float32(given) else 1e-7
        close = torch.isclose(*pair, rtol, atol, equal_nan=True)
        if not close.all():
            failure = mismatch(given, expected, ~close, what)
            failure.is_rough = rough
            raise failure

    def gradient(self, of: Tensor, expected: Tensor, what: str) -> None:
        """Demand the gradient that a backward pass has left on a tensor.

        Raises:
            Failure: none arrived, or a wrong one.
        """
        if of.grad is None:
            raise Failure(f"No gradient reaches {what}: is the graph cut, by detach or no_grad?")
        self.equal(of.grad, expected, f"gradient of {what}")

    def finite_gradient(self, of: Tensor, what: str) -> None:
        """Demand that a backward pass has left a gradient on a tensor, without NaN and without ∞.

        Raises:
            Failure: none arrived, or one of its entries is no finite number.
        """
        if of.grad is None:
            raise Failure(f"No gradient reaches {what}: is the graph cut, by detach or no_grad?")
        if not of.grad.isfinite().all():
            raise Failure(
                f"The gradient of {what} should be finite, yours is not: does a root, a logarithm "
                "or a quotient of zero stand in the way back?",
                what=f"gradient of {what}",
                observed=of.grad,
            )

    def learns(self, module) -> None:
        """Demand that a backward pass has left a gradient on every parameter of a module.

        Raises:
            Failure: the graph is cut before one of them.
        """
        for name, parameter in module.named_parameters():
            if parameter.grad is None:
                raise Failure(
                    f"No gradient reaches {name}: is the graph cut, by detach or no_grad?"
                )

    def again(self, given: object, first: Tensor, what: str) -> None:
        """Demand that a second call with the same input has given what the first one gave.

        Raises:
            Failure: it has not.
        """
        try:
            self.equal(given, first, what)
        except Failure as failure:
            failure.message = (
                f"Two calls with the same input differ: {failure.message} "
                "Is a state kept from the last call, or drawn at random?"
            )
            raise

    def trains(self, given: object, what: str) -> None:
        """Demand that gradients go back from a result to what it was computed with.

        Raises:
            Failure: it is no tensor, or the graph ends before it.
        """
        if not (isinstance(given, Tensor) and given.requires_grad):
            raise Failure(f"No gradient goes back from {what}: is it cut by detach or no_grad?")

    def shape(self, given: object, expected: tuple[int, ...], what: str) -> None:
        """Demand a tensor of a shape.

        Raises:
            Failure: it is not a tensor, or has another shape.
        """
        if not isinstance(given, Tensor):
            wanted = describe(torch.empty(expected, device="meta"))
            raise Failure(f"{what} should be {wanted}, yours is {describe(given)}.")
        if given.shape != expected:
            raise Failure(
                f"{what} should have shape {tuple(expected)}, yours has {tuple(given.shape)}.",
                what=what,
                observed=given,
            )

    def that(self, holds: bool | Tensor, message: str, observed: Tensor | None = None) -> None:
        """Demand a condition; `message` says what should be and what is, with numbers.

        Raises:
            Failure: the condition does not hold.
        """
        if not bool(holds):
            raise Failure(message, what=message.split()[0], observed=observed)

    def raises(self, kind: type[Exception], call: Callable[[], object], when: str) -> Failure:
        """Demand that a call raises `kind` (or a class derived from it); return what it raised.

        Raises:
            Failure: it returned, or raised something else.
        """
        try:
            result = call()
        except NotImplementedYet:
            raise
        except Failure as failure:
            if kind.__name__ in failure.kinds:
                return failure
            raise Failure(f"should raise {kind.__name__} when {when}: {failure.message}") from None
        raise NotRaised(
            f"should raise {kind.__name__} when {when}, yours returns {describe(result)}."
        )

    def _tensor(self, given: object, expected: Tensor, what: str) -> Tensor:
        if isinstance(given, (np.ndarray, np.generic)):
            given = torch.as_tensor(given)
        if isinstance(given, (bool, int, float)) and expected.dim() == 0:
            given = torch.tensor(given, dtype=None if isinstance(given, bool) else expected.dtype)
        if not isinstance(given, Tensor):
            hint = " Does it return what it computes?" if given is None else ""
            raise Failure(
                f"{what} should be {describe(expected)}, yours is {describe(given)}.{hint}"
            )
        dense = plain(given)
        if dense is None:
            raise Failure(f"{what} should hold values, yours is on the meta device.")
        return dense


def _is_float32(given: Tensor) -> bool:
    """Tell whether numbers have the precision of float32, also where they were converted later."""
    if given.dtype == torch.float64:
        return torch.equal(given.nan_to_num(), given.float().double().nan_to_num())
    return given.dtype == torch.float32


def _largest(expected: Tensor) -> float:
    """Give the size of the largest number, but for infinite ones; 0 where there is none."""
    return expected.abs().double().nan_to_num(0, 0, 0).amax().item() if expected.numel() else 0.0
