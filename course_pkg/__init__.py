"""The companion package of the course: components, checks, data, training and plots."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_pkg.checking import black_box, check, claim, predict, ready
    from course_pkg.checking.telling import progress
    from course_pkg.tools import plot, train

__all__ = ["black_box", "check", "claim", "plot", "predict", "progress", "ready", "train"]
_PLACES = {"plot": "course_pkg.tools.plot", "train": "course_pkg.tools.train"}


def __getattr__(name):
    # Deferred, so that importing one component does not import every check.
    if name in _PLACES:
        return importlib.import_module(_PLACES[name])
    if name in __all__:
        return getattr(importlib.import_module("course_pkg.checking"), name)
    raise AttributeError(f"module 'course_pkg' has no attribute {name!r}")
