"""A stand-in for an object of a notebook that runs in another process.

A Proxy offers what Guarded offers, so that checks run with either. Values cross as data (see
course_pkg.remote.messages); nothing that the other side sends is executed, and whatever it does
wrong, such as to end, to hang or to send garbage, is a Failure of the call that was under way.
"""

import functools
from collections.abc import Callable

from autograder.remote.channel import Channel
from course_pkg.checking.telling.failure import Failure
from course_pkg.remote.messages import WireError

_METHODS = ("method", "builtin_function_or_method")  # types of what belongs to an object


class Proxy:
    """Stand in for an object of another process, as Guarded does for one of this.

    Args:
        again: finds the same object in a new process; None if there is no way.
    Raises (when called or when an attribute is read):
        Failure: as Guarded; and when the call ended the process, or made it hang or send garbage.
    """

    def __init__(
        self,
        channel: Channel,
        number: int,
        name: str,
        kind: str,
        type_name: str,
        again: Callable[[], "Proxy"] | None = None,
    ):
        self._channel = channel
        self._given = number
        self._name = name
        self._again = again
        self.kind = kind
        self.type_name = type_name
        channel.release_with(self, "object", number)

    def __call__(self, *args, **kwargs):
        self._renew()
        return self._channel.call(self._target, self._name, args, kwargs)

    def _iterate(self, *args, **kwargs) -> "Proxy":
        self._renew()
        found = self._channel.call(self._target, self._name, args, kwargs, do="iterate")
        if not isinstance(found, Proxy):
            raise Failure(f"{self._name} gives no iterator that can be read.")
        return found

    def _next(self) -> tuple:
        item = self._channel.ask("next", self._name, target=self._number)
        if not isinstance(item, tuple) or len(item) > 1:
            raise Failure(f"{self._name} gives an item that cannot be read.")
        return item

    def _together(self, module: str, function: str, args: tuple, kwargs: dict) -> object:
        """Let a function of checks, with this among its arguments, run on the other side."""
        self._renew()
        return self._channel.call([module, function], self._name, args, kwargs, do="together")

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        self._renew()
        methods = self._channel.methods
        if (type_name := methods.get((self.type_name, name))) is not None:
            return Method(self, name, type_name)
        found = self._channel.ask("attribute", self._name, target=self._number, attribute=name)
        if isinstance(found, Proxy) and found.type_name in _METHODS:
            methods[self.type_name, name] = found.type_name
        return found

    @staticmethod
    def number_of(value: object, channel: Channel) -> int | None:
        """Look up the number by which the other side of a channel knows a value; None if none.

        Raises:
            Failure: its process has ended, and the object with it.
            WireError: it stands in for an object of another process.
        """
        if not isinstance(value, Proxy):
            return None
        value._renew()
        if value._channel is not channel:
            value._channel.demand(value._name)
            raise WireError(f"{value._name} lives in another process")
        return value._number

    @property
    def _number(self) -> int:
        return self._given

    @property
    def _target(self) -> int | list:
        """What the other side is to call."""
        return self._number

    def _renew(self) -> None:
        if self._channel.ended and self._again is not None:
            new = self._again()
            self._channel, self._given = new._channel, new._number
            self._new = new  # the owner of the number


class Method(Proxy):
    """Stand in for a method that the other side looks up when it is called: one message, not two.

    Args:
        owner: stands in for the object.
        attribute: the name, which was that of a method in an object of the same type.
        type_name: the method's type there.
    """

    def __init__(self, owner: Proxy, attribute: str, type_name: str):
        self._owner = owner
        self._attribute = attribute
        self._channel = owner._channel
        self._name = f"{owner._name}.{attribute}"
        self._again = None
        self.kind, self.type_name = "function", type_name

    @functools.cached_property
    def _found(self) -> Proxy:
        """Stands in for the method by a number of its own, for all but calls."""
        owner = self._owner
        found = self._channel.ask(
            "attribute", owner._name, target=owner._number, attribute=self._attribute
        )
        if not isinstance(found, Proxy):
            raise Failure(f"{self._name} is no longer a method.")
        return found

    @property
    def _number(self) -> int:
        return self._found._number

    @property
    def _target(self) -> int | list:
        return [self._owner._number, self._attribute]
