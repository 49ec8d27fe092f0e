"""How a failed property is told: short lines with index, expected value and given value."""

import torch
from torch import Tensor


class Failure(Exception):
    """A property of an exercise that does not hold.

    Args:
        message: what was expected and what came, in words for the student.
        what: the name of the quantity that is wrong, such as "h_t".
        observed: the student's value of it; known bugs are recognised by it.
        kinds: where student code raised, the names of the exception's class and its bases.

    Attributes:
        is_rough: whether another computation of the same gives other digits after the first few.
    """

    def __init__(
        self,
        message: str,
        *,
        what: str = "",
        observed: Tensor | None = None,
        kinds: tuple[str, ...] = (),
    ):
        super().__init__(message)
        self.message = message
        self.what = what
        self.observed = None if observed is None else plain(observed)
        self.kinds = kinds
        self.is_rough = False


class CheckingError(Exception):
    """Checking itself cannot go on, through no fault of the student's."""


class NotRaised(Failure):
    """A call that should raise an exception returned."""


class TooLong(Failure):
    """A call was stopped before it had ended."""


class NotImplementedYet(Failure):
    """The exercise, or one that it calls, is still the stub."""


def odd(error: Exception) -> Failure:
    """Say that a check met a result that it cannot look at: the reference's are not so."""
    return Failure(f"The result cannot be checked: {type(error).__name__}: {error}")


def plain(values: Tensor) -> Tensor | None:
    """Bring values into a dense tensor; None when there are none (on the meta device)."""
    return None if values.is_meta else dense(values)


def dense(values: Tensor) -> Tensor:
    """Bring values of any device, layout and precision into a dense tensor in memory."""
    values = values.detach().cpu().to_dense().resolve_conj().resolve_neg()
    is_short = values.is_floating_point() and values.element_size() < 4
    return values.float() if is_short else values  # NumPy lacks some of the short ones


def describe(value: object) -> str:
    """Name a value's type, and its shape if it has one: "a tensor of shape (3, 5)"."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (bool, int, float)):
        return f"the number {value:.6g}" if isinstance(value, float) else f"the value {value!r:.40}"
    if isinstance(value, str):
        return f"the string {value!r:.40}"
    name = str(getattr(value, "type_name", type(value).__name__))
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def numbers(expected: float, given: float) -> tuple[str, str]:
    """Print two different numbers with just enough digits to tell them apart, at least four."""
    for digits in (4, 6, 9, 12, 17):
        texts = f"{expected:.{digits}g}", f"{given:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def mismatch(given: Tensor, expected: Tensor, wrong: Tensor, what: str) -> Failure:
    """Report the first entry of `given` that is marked in `wrong`."""
    index = tuple(wrong.nonzero()[0].tolist())
    place = what
    if index:
        place += f"{' at ' if ' ' in what else ''}[{', '.join(map(str, index))}]"
    if given.is_floating_point() or expected.is_floating_point():
        should, is_ = numbers(expected[index].item(), given[index].item())
    else:
        should, is_ = str(expected[index].item()), str(given[index].item())
    count = int(wrong.sum())
    more = f" ({count} of {wrong.numel()} entries differ)" if wrong.numel() > 1 else ""
    return Failure(f"{place} should be {should}, yours is {is_}{more}.", what=what, observed=given)


def kind_of_numbers(dtype: torch.dtype) -> str:
    """Name what a dtype can hold: truth values, whole, real or complex numbers."""
    if dtype == torch.bool:
        return "truth values"
    if dtype.is_complex:
        return "complex numbers"
    return "real numbers" if dtype.is_floating_point else "whole numbers"
