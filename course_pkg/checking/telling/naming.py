"""Known mistakes, and when a check may say that the student has made one of them.

A file holds what each known mistake gives in each check that it fails: the observed values, what
they are values of, and the sentence that names it. It holds numbers only, texts as UTF-8 bytes.
A name is given when all evidence agrees: the mistake fails every check that fails, with the same
values, and no check that passes. A wrong name would send a student the wrong way.
"""

import functools
import inspect
import itertools
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from course_pkg.checking.registry import Check
from course_pkg.checking.telling.failure import Failure, NotRaised

# How closely two computations of the same numbers agree on any processor: relative to each number,
# and relative to the largest. float32 has 7 digits, and sums lose one or two of them; bfloat16 has
# 3. What is float64 may have been computed from float32 numbers, such as the angles of RoPE.
_FLOAT16 = 1e-2, 1e-3
_FLOAT32 = 1e-4, 1e-5
_FLOAT64 = 1e-6, 1e-6
_NOISE = 1e-12


class Entry(NamedTuple):
    """What a known mistake gives in a check that it fails, where it first differs.

    Attributes:
        exercise, check: their names.
        mistake: its number among those of the exercise.
        sentence: completes "Your output equals what you get when …".
        what: what was observed.
        kinds: the names of the exception that was raised instead, and of its bases.
        dtype: of the values when they were computed, as far as they show it; empty when there are
            none.
        observed: the values, in half the space.
    """

    exercise: str
    mistake: int
    check: str
    sentence: str
    what: str
    kinds: str
    dtype: str
    observed: np.ndarray


def entry(check: Check, failure: Failure, mistake: int = 0, sentence: str = "") -> Entry:
    """Make an entry of what a check has observed."""
    names = check.exercise.name, mistake, check.name, sentence, failure.what
    kinds = " ".join(failure.kinds)
    if failure.observed is None:
        return Entry(*names, kinds, "", np.empty(0))
    observed = failure.observed.numpy()
    dtype = "float16" if failure.is_rough else _precision(observed)
    return Entry(*names, kinds, dtype, _compact(observed))


def _precision(observed: np.ndarray) -> str:
    """Name the type in which values were computed: shorter ones may have been converted afterwards.

    A module that is drawn in float32 and then made float64, as checks do it, holds float32 numbers;
    what a known mistake leaves of these differs between processors in the seventh digit.
    """
    if observed.dtype == np.float32 and _is_short(observed):
        return "float16"
    narrow = {"float64": np.float32, "complex128": np.complex64}.get(str(observed.dtype))
    if narrow is None:
        return str(observed.dtype)
    with np.errstate(over="ignore"):
        is_narrow = np.array_equal(observed, observed.astype(narrow), equal_nan=True)
    return np.dtype(narrow if is_narrow else observed.dtype).name


def _is_short(observed: np.ndarray) -> bool:
    """Tell whether float32 numbers came with 16 bits each, bfloat16 or float16: none needs more."""
    bits = np.ascontiguousarray(observed).view(np.uint32)
    with np.errstate(over="ignore", invalid="ignore"):
        is_whole = bool((observed % 1 == 0).all())
        is_float16 = np.array_equal(observed, observed.astype(np.float16), equal_nan=True)
    return observed.size >= 6 and not is_whole and (is_float16 or not (bits & 0xFFFF).any())


def same(a: Entry, b: Entry) -> bool:
    """Tell whether two entries hold the same values, up to the rounding of their computation.

    The coarsest precision counts: float32 results depend on the processor in the sixth
    digit of the largest number, and solutions may compute in float32 what a bug does in float64.
    """
    x, y = a.observed, b.observed
    if (a.what, a.kinds, bool(a.dtype)) != (b.what, b.kinds, bool(b.dtype)):
        return False
    if x.shape != y.shape or x.dtype.kind != y.dtype.kind:
        return False
    if x.dtype.kind not in "fc":
        return bool((x == y).all())
    dtypes = {a.dtype, b.dtype}
    rtol, share = _FLOAT32 if dtypes & {"float32", "complex64"} else _FLOAT64
    if "float16" in dtypes:
        rtol, share = _FLOAT16
    largest = np.abs(x[np.isfinite(x)], dtype=np.float64).max(initial=0.0)
    return np.allclose(x, y, rtol=rtol, atol=share * largest, equal_nan=True)


def causes(results: dict[Check, Failure | None]) -> dict[Check, str]:
    """Find the known mistake, or the two, that explain all that the checks of an exercise found.

    An error that the solution should raise, and does not, needs no explanation: the message gives
    it. Everything else must be explained.

    Args:
        results: what each check that ran has found; None for those that passed.
    Returns:
        For the failed checks, the sentence that completes "Your output equals what you get when …";
        nothing when no known mistake explains all of it, or several that have different names do.
    """
    failures = {check.name: failure for check, failure in results.items() if failure is not None}
    unexplained = {n for n, failure in failures.items() if not isinstance(failure, NotRaised)}
    if not unexplained:
        return {}
    ran = {check.name: check for check in results}
    found = {n: entry(ran[n], failure) for n, failure in failures.items()}
    fitting = [
        entries
        for entries in _mistakes(results)
        if all(n in found and same(entries[n], found[n]) for n in entries)
    ]
    for count in (1, 2):
        explaining = [
            group
            for group in itertools.combinations(fitting, count)
            if unexplained <= set().union(*group) and all(_is_peculiar(m, group) for m in group)
        ]
        names = {frozenset(_sentence(mistake) for mistake in group) for group in explaining}
        if names:
            group = explaining[0] if len(names) == 1 else ()
            return {ran[n]: _sentence(m) for m in group for n in m}
    return {}


def _mistakes(results: Iterable[Check]) -> list[dict[str, Entry]]:
    """List the known mistakes of an exercise: for each its entries, of those checks that ran."""
    checks = {check.name: check for check in results}
    exercise = next(iter(checks.values())).exercise.name
    found: dict[int, dict[str, Entry]] = {}
    for path in sorted({path for check in checks.values() if (path := _file(check))}):
        for known in _known(path).get(exercise, []):
            if known.check in checks:
                found.setdefault(known.mistake, {})[known.check] = known
    return list(found.values())


def _sentence(mistake: dict[str, Entry]) -> str:
    return next(iter(mistake.values())).sentence


def _is_peculiar(mistake: dict[str, Entry], group: tuple[dict[str, Entry], ...]) -> bool:
    """Tell whether a mistake has given itself away, in a check that no other of the group fails."""
    others = set().union(*(other for other in group if other is not mistake))
    return any(n not in others and identifies(e.observed) for n, e in mistake.items())


def identifies(observed: np.ndarray) -> bool:
    """Tell whether values are distinctive enough to name a bug by them.

    Zeros, ones and other small whole numbers come from anywhere.
    """
    finite = observed[np.isfinite(observed)]
    is_fractional = bool((finite % 1 != 0).any()) if finite.dtype.kind == "f" else False
    return is_fractional or (observed.size >= 6 and len(np.unique(observed)) > 1)


def save(path: Path, entries: list[Entry]) -> None:
    """Write entries to a file: the facts of all, and the values of each type in one array.

    An array for each entry would take as much room for its header as for its values. An array has
    the first bytes of all values, then the second ones: like beside like is compressed best.
    """
    facts: list[list] = []
    values: dict[str, list[np.ndarray]] = {}
    for *texts, observed in entries:
        facts.append([*texts, observed.dtype.name, list(observed.shape)])
        values.setdefault(observed.dtype.name, []).append(observed.ravel())
    arrays = {name: _bytes(np.concatenate(parts)) for name, parts in sorted(values.items())}
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, allow_pickle=False, **arrays)


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.view(np.uint8).reshape(len(values), values.itemsize).T)


def load(path: Path) -> list[Entry]:
    """Read the entries of a file."""
    with np.load(path, allow_pickle=False) as arrays:
        facts = json.loads(arrays["facts"].tobytes())
        names = set(arrays.files) - {"facts"}
        values = {name: np.ascontiguousarray(arrays[name].T).view(name)[:, 0] for name in names}
    entries = []
    for *texts, name, shape in facts:
        observed, values[name] = np.split(values[name], [math.prod(shape)])
        entries.append(Entry._make([*texts, observed.reshape(shape)]))
    return entries


def _compact(observed: np.ndarray) -> np.ndarray:
    """Halve the space of the values; what should be zero but for rounding becomes zero."""
    if observed.dtype != np.float64:
        return observed
    with np.errstate(over="ignore"):  # ∞ in both entries, then
        return np.where(np.abs(observed) <= _NOISE, 0, observed).astype(np.float32)


def _file(check: Check) -> Path | None:
    folder = Path(inspect.getfile(check.run)).parent / "data"
    return next(folder.glob(f"[0-9][0-9]_{check.exercise.module}.npz"), None)


@functools.cache
def _known(path: Path) -> dict[str, list[Entry]]:
    """Read a file, once; its entries by exercise."""
    found: dict[str, list[Entry]] = {}
    for known in load(path):
        found.setdefault(known.exercise, []).append(known)
    return found
