"""Experiments wait for the exercises that they need."""

import inspect
import os
from collections.abc import Callable


def ready(*exercises: Callable) -> bool:
    """Say whether an experiment can run: its exercises are written, and this is not for a grade.

    Args:
        exercises: the functions and classes that the experiment uses.
    Returns:
        True when all are implemented. Otherwise prints which are missing and returns False, as it
        does under `nbgrader validate` and `nbgrader autograde`, where no check needs experiments.
    """
    if os.environ.get("NBGRADER_EXECUTION") in ("autograde", "validate"):
        print("Experiments do not run while the notebook is validated or graded.")
        return False
    missing = [exercise.__name__ for exercise in exercises if is_stub(exercise)]
    if missing:
        print(f"First implement {' and '.join(missing)} above, then run this cell again.")
    return not missing


def is_stub(exercise: Callable) -> bool:
    """Tell whether an exercise still raises NotImplementedError somewhere."""
    is_class = inspect.isclass(exercise)
    methods = vars(exercise).values() if is_class else [inspect.unwrap(exercise)]
    return any(
        "NotImplementedError" in method.__code__.co_names
        for method in methods
        if inspect.isfunction(method)
    )
