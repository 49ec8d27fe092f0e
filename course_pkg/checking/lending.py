"""Functions and classes of the course's that a student's code may call, and not look into."""

import functools
import importlib
from collections.abc import Callable
from typing import Any


class Lent:
    """A function or class that is lent to a student's code for the time of one call.

    At home a call of it is a call of what it stands for. When grading, that stays with the grader:
    the student's process gets a stand-in that knows a number and no name.

    Args:
        maker: a function at the top of a module, which makes what is lent anew for each loan, so
            that nothing is kept from one loan to the next.
        args: what the maker is called with: numbers and texts.
    """

    def __init__(self, maker: Callable, *args: int | str):
        self.place = [maker.__module__, maker.__qualname__, [*args]]

    @functools.cached_property
    def _made(self) -> Any:
        return made(self.place)

    def __call__(self, *args, **kwargs):
        try:
            return self._made(*args, **kwargs)
        except Exception as error:
            raised = exception(type(error))
            raised.add_note(str(error))
            raise raised from None


def exception(kind: type[Exception], text: str = "") -> Exception:
    """Make an exception of a kind, or a RuntimeError if that kind needs more than a text.

    What is lent raises it without the text, which may name what that is. At home, where students
    have all that is lent, the text goes into a note: a message shows it, and code that looks at
    the exception's own text does the same as when grading.
    """
    try:
        return kind(text)
    except TypeError:
        return RuntimeError(text)


def made(place: list) -> Any:
    """Make what a `Lent` stands for, from its place."""
    module, name, args = place
    return getattr(importlib.import_module(module), name)(*args)
