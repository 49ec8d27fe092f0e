"""Oracles that take long and are asked the same for every student: they answer once."""

import functools
import hashlib
import io
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from course_pkg.remote.messages import Encoder, WireError, read

MOST = 5000  # answers that are kept of one oracle

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


def once(oracle: Callable[_Arguments, _Answer]) -> Callable[_Arguments, _Answer]:
    """Keep the answers of an oracle, by the contents of its arguments.

    Checks draw the same inputs for every student. Each answer is a copy, and the oracle gets copies
    too: what it changes in its arguments does not come back.

    Args:
        oracle: a function of data, which draws no random numbers of torch's own generator. With a
            generator, with tensors that require gradients or with functions, nothing is kept.
    """
    known: dict[bytes, bytes] = {}

    @functools.wraps(oracle)
    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        question = _question(args, kwargs)
        if question is None:
            return oracle(*args, **kwargs)
        key = hashlib.blake2b(question, digest_size=16).digest()
        if key not in known:
            if len(known) >= MOST:
                del known[next(iter(known))]  # the oldest one
            copied, named = _read(question)
            known[key] = _written(Encoder(), oracle(*copied, **named))
        return _read(known[key])

    return called


def _question(args: tuple, kwargs: dict) -> bytes | None:
    """Write the arguments down; None if what they are does not say what the answer is."""
    encoder = Encoder()
    try:
        question = _written(encoder, (args, kwargs))
    except WireError:
        return None
    has_history = any(tensor.requires_grad for tensor in encoder.tensors)
    return None if encoder.generators or has_history else question


def _written(encoder: Encoder, value: object) -> bytes:
    tree = encoder.value(value)
    return encoder.message({"value": tree})


def _read(data: bytes) -> Any:
    message = read(io.BytesIO(data))
    assert message is not None  # only an empty stream has none
    return message.value(message.header["value"])
