"""Known wrong outputs, by which a check recognises a mistake and names it.

A file holds numbers only. For each bug and each check that it fails: the observed values, what they
are values of, and the sentence that names the bug. Texts are stored as UTF-8 bytes.
"""

import functools
import inspect
from pathlib import Path
from typing import NamedTuple

import numpy as np

from course_pkg.checking.failure import Failure
from course_pkg.checking.registry import Check

# How closely two computations of the same numbers agree on any processor: relative to each number,
# and relative to the largest. float32 has 7 digits, and sums lose one or two of them.
_FLOAT32 = 1e-4, 1e-5
_FLOAT64 = 1e-6, 1e-10
_NOISE = 1e-12


class Entry(NamedTuple):
    """What a known bug gives where it first differs from the right result.

    `observed` is stored in half the space; `dtype` is the type in which it was computed.
    """

    exercise: str
    check: str
    sentence: str
    what: str
    dtype: str
    observed: np.ndarray


def entry(check: Check, sentence: str, failure: Failure) -> Entry | None:
    """Make an entry of what a check has observed; None if it has observed nothing."""
    if failure.observed is None:
        return None
    observed = failure.observed.numpy()
    names = check.exercise.name, check.name, sentence, failure.what
    return Entry(*names, str(observed.dtype), _compact(observed))


def same(a: Entry, b: Entry) -> bool:
    """Tell whether two entries hold the same values, up to the rounding of their computation.

    The coarser of both precisions counts: float32 results depend on the processor in the sixth
    digit of the largest number, and solutions may compute in float32 what a bug does in float64.
    """
    x, y = a.observed, b.observed
    if x.shape != y.shape or x.dtype.kind != y.dtype.kind:
        return False
    if x.dtype.kind not in "fc":
        return bool((x == y).all())
    rtol, share = _FLOAT32 if {a.dtype, b.dtype} & {"float32", "complex64"} else _FLOAT64
    largest = np.abs(x[np.isfinite(x)], dtype=np.float64).max(initial=0.0)
    return np.allclose(x, y, rtol=rtol, atol=share * largest, equal_nan=True)


def cause(check: Check, failure: Failure) -> str | None:
    """Find the known mistake that gives the student's values in this check.

    Returns:
        The sentence that completes "Your output equals what you get when …", or None when no known
        bug, or bugs of different names, give these values.
    """
    found = entry(check, "", failure)
    if found is None:
        return None
    sentences = {
        known.sentence
        for known in _known(_file(check))
        if (known.exercise, known.check, known.what) == (found.exercise, found.check, found.what)
        and same(known, found)
    }
    return sentences.pop() if len(sentences) == 1 else None


def identifies(observed: np.ndarray) -> bool:
    """Tell whether values are distinctive enough to name a bug by them.

    Zeros come from anywhere, and what would be zero but for rounding is different noise on each
    processor.
    """
    values = np.where(np.abs(observed) <= _NOISE, 0, observed)
    finite = values[np.isfinite(values)]
    is_fractional = bool((finite % 1 != 0).any()) if finite.dtype.kind == "f" else False
    return is_fractional or (values.size >= 6 and len(np.unique(values)) > 1)


def save(path: Path, entries: list[Entry]) -> None:
    """Write entries to a file."""
    arrays = {}
    for number, entry in enumerate(entries):
        *texts, observed = entry
        arrays[f"{number:04d}/observed"] = observed
        arrays[f"{number:04d}/texts"] = np.frombuffer("\n".join(texts).encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, allow_pickle=False, **arrays)


def load(path: Path) -> list[Entry]:
    """Read the entries of a file."""
    with np.load(path, allow_pickle=False) as arrays:
        numbers = sorted({key.partition("/")[0] for key in arrays.files})
        entries = []
        for number in numbers:
            texts = arrays[f"{number}/texts"].tobytes().decode()
            exercise, check, sentence, what, dtype = texts.split("\n")
            observed = arrays[f"{number}/observed"]
            entries.append(Entry(exercise, check, sentence, what, dtype, observed))
        return entries


def _compact(observed: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # ∞ in both entries, then
        return observed.astype(np.float32) if observed.dtype == np.float64 else observed


def _file(check: Check) -> Path | None:
    folder = Path(inspect.getfile(check.run)).parent / "data"
    return next(folder.glob(f"[0-9][0-9]_{check.exercise.module}.npz"), None)


@functools.cache
def _known(path: Path | None) -> list[Entry]:
    return load(path) if path else []
