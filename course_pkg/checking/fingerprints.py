"""Known wrong outputs, by which a check recognises a mistake and names it.

A file holds numbers only. For each bug and each check that it fails: the observed values, and what
they are values of; for each bug, the sentence that names it. Texts are stored as UTF-8 bytes.
"""

import functools
import inspect
from pathlib import Path

import numpy as np

from course_pkg.checking.failure import Failure
from course_pkg.checking.registry import Check


def cause(check: Check, failure: Failure) -> str | None:
    """Find the known mistake that gives the student's values in this check.

    Returns:
        The sentence that completes "Your output equals what you get when …", or None when no known
        bug, or bugs of different names, give these values.
    """
    if failure.observed is None:
        return None
    observed = failure.observed.to_dense().numpy(force=True)
    known = _load(_file(check)).get((check.exercise.name, check.name), [])
    sentences = {
        sentence
        for sentence, what, values in known
        if what == failure.what
        and values.shape == observed.shape
        and np.allclose(values, observed, rtol=1e-4, atol=1e-6, equal_nan=True)
    }
    return sentences.pop() if len(sentences) == 1 else None


def identifies(observed: np.ndarray) -> bool:
    """Tell whether values are peculiar enough to name a bug by them: zeros come from anywhere."""
    if not np.isfinite(observed).any():
        return False
    fractional = np.isfinite(observed) & (observed != np.round(observed))
    return bool(fractional.any()) or (observed.size >= 6 and len(np.unique(observed)) > 1)


def save(path: Path, entries: list[tuple[str, str, str, str, np.ndarray]]) -> None:
    """Write entries of (exercise, check, sentence, what, observed values)."""
    arrays = {}
    for number, (exercise, check, sentence, what, observed) in enumerate(entries):
        key = f"{exercise}/{check}/{number:03d}"
        arrays[f"{key}/sentence"] = _to_bytes(sentence)
        arrays[f"{key}/what"] = _to_bytes(what)
        arrays[f"{key}/observed"] = observed
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def _file(check: Check) -> Path | None:
    folder = Path(inspect.getfile(check.run)).parent / "data"
    return next(folder.glob(f"[0-9][0-9]_{check.exercise.module}.npz"), None)


@functools.cache
def _load(path: Path | None) -> dict[tuple[str, str], list[tuple[str, str, np.ndarray]]]:
    known = {}
    if path is None:
        return known
    with np.load(path, allow_pickle=False) as arrays:
        for key in sorted(arrays.files):
            exercise, check, number, part = key.split("/")
            if part == "observed":
                base = f"{exercise}/{check}/{number}"
                sentence = _to_text(arrays[f"{base}/sentence"])
                what = _to_text(arrays[f"{base}/what"])
                known.setdefault((exercise, check), []).append((sentence, what, arrays[key]))
    return known


def _to_bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def _to_text(numbers: np.ndarray) -> str:
    return numbers.tobytes().decode()
