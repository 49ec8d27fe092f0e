"""The registry of checks: `@check(exercise)` makes a function a property of that exercise."""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from course_pkg.checking.notebook.outline import outline


@dataclass(frozen=True)
class Check:
    """One named property of one exercise."""

    exercise: "Exercise"
    name: str
    title: str
    weight: float
    see: str | None
    hidden: bool
    run: Callable
    why_not: Callable[[], str | None]
    single: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Exercise:
    """A function or class that students write; `reference` may be a stub on their machines."""

    module: str
    name: str
    is_class: bool

    @classmethod
    def of(cls, reference: Callable) -> "Exercise":
        module = reference.__module__.split(".")[1]  # course_pkg.topic, or course_pkg.topic.part
        return cls(module, reference.__name__, inspect.isclass(reference))


CHECKS: dict[Exercise, dict[str, Check]] = {}


def check(
    reference: Callable,
    weight: float = 1,
    see: str | None = None,
    why_not: Callable[[], str | None] = lambda: None,
    single: str | Mapping[str, int] = "",
) -> Callable:
    """Register a function `(student, case)` as a check of the exercise that `reference` solves.

    The function's name is the check's, its docstring the property in words. Checks defined outside
    course_pkg.checks are hidden: they run in grading only.

    Args:
        reference: the function or class in course_pkg.
        weight: the share of the exercise's points, relative to its other checks.
        see: the heading in the notebook that explains the property.
        why_not: says why the check cannot run on this machine; None when it can.
        single: the axes for each of which the check runs once more with a size of 1, and their
            places among the sizes that it draws first; a name alone is the first of them. A
            `squeeze` too many passes wherever no size is 1. Such a check also runs once more with
            inputs that are not contiguous, where a `view` fails.
    Raises:
        ValueError: an exercise of another module has the same name, and `check(f)` knows no more of
            f; or the exercise has another check of that name.
    """
    exercise = Exercise.of(reference)
    if others := [other for other in CHECKS if other.name == exercise.name and other != exercise]:
        both = f"{others[0].module} and {exercise.module}"
        raise ValueError(f"two exercises are called {exercise.name}, in {both}: rename one")
    places = single if isinstance(single, Mapping) else {single: 0} if single else {}

    def register(run: Callable) -> Callable:
        own = CHECKS.setdefault(exercise, {})
        if run.__name__ in own and _place(own[run.__name__].run) != _place(run):
            both = f"{_place(own[run.__name__].run)} and {_place(run)}"
            raise ValueError(
                f"{exercise.name} has two checks called {run.__name__}, in {both}: rename one"
            )
        own[run.__name__] = Check(
            exercise=exercise,
            name=run.__name__,
            title=inspect.getdoc(run) or "",
            weight=weight,
            see=see,
            hidden=not run.__module__.startswith("course_pkg.checks."),
            run=run,
            why_not=why_not,
            single=tuple(places.items()),
        )
        return run

    return register


def _place(run: Callable) -> str:
    """Where a check is written."""
    return f"{run.__module__}:{run.__code__.co_firstlineno}"


def find(name: str) -> Exercise:
    """Look up an exercise by the name of its function or class.

    What the last build has written says which module of checks is likely to have it.

    Raises:
        LookupError: no exercise has that name.
    """
    from course_pkg import checks

    modules = [module.name for module in pkgutil.iter_modules(checks.__path__)]
    for module in sorted(modules, key=lambda topic: name not in outline(topic)):
        importlib.import_module(f"course_pkg.checks.{module}")
        for exercise in CHECKS:
            if exercise.name == name:
                return exercise
    known = [exercise.name for exercise in CHECKS]
    alike = difflib.get_close_matches(name, known, n=3) or ["none with a similar name"]
    raise LookupError(f"no exercise is called {name!r}; there is {', '.join(alike)}")
