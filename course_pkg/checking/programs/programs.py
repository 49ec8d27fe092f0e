"""Programs: calls of an object, one after the other, and of an oracle beside it.

A class with a state is right when all that can be seen of it is right after every call, whatever
was called before. A program runs beside the student's object, in one message; an oracle makes the
same calls, and the grader compares what both have shown. A program that shows a difference is
shortened, call by call, for as long as it does, and then told in words.
"""

import copy
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from course_pkg.checking.telling.failure import Failure, odd

Program = tuple[tuple, list[tuple]]  # settings, and calls: (method, *arguments)
LONGEST = 60  # characters of a value in a message


class Nonsense(Exception):
    """What an oracle raises, before it changes, at calls that no program makes."""


class Step(NamedTuple):
    """What a call gave, what was to be seen then, and which earlier arguments had changed."""

    result: Any
    seen: Any
    changed: list[str]


def played(driver: Any, calls: list[tuple]) -> list[Step]:
    """Make calls, and look at everything after each.

    Args:
        driver: makes the calls with the objects of one class, and replaces what an implementation
            may choose by names of its own. `look` gives a dict of all that can be seen. Messages
            use its docstrings: the class's is a format of the settings, and each method's of its
            arguments.
        calls: what to call: (method, *arguments).
    Returns:
        The state at first, and a step for each call, up to one after which `look` raises. For what
        raises, a step holds {"raised": the names of the class and its bases, "message": …}.
    """
    steps = [Step(None, _tried(driver.look), [])]
    before: list[tuple] = []
    for method, *arguments in calls:
        if _raised(steps[-1].seen):
            break
        own = copy.deepcopy(arguments)
        before += zip(own, arguments, itertools.repeat(method))
        result = copy.deepcopy(_tried(functools.partial(getattr(driver, method), *own)))
        changed = [f"{old} of {m} is now {new}" for new, old, m in before if new != old]
        steps.append(Step(result, _tried(driver.look), changed))
    return steps


def draw_calls(draw: Callable[[], tuple], driver: Any, count: int) -> list[tuple]:
    """Draw calls until there are `count` that make sense to the driver of an oracle."""
    calls: list[tuple] = []
    while len(calls) < count:
        method, *arguments = draw()
        result = _tried(functools.partial(getattr(driver, method), *copy.deepcopy(arguments)))
        if not _is_nonsense(result):
            calls.append((method, *arguments))
            driver.look()
    return calls


def follow(student: object, oracle: type, play: Callable, driver: type, programs: list[Program]):
    """Demand that a student's object shows what the oracle shows, in each program.

    Args:
        student: the class, guarded.
        oracle: one that does the same in a plain way.
        play: plays programs with either, `@together`: (class, programs) → the steps of each.
        driver: what `play` uses.
        programs: what to play.
    Raises:
        Failure: it shows something else; the message tells the shortest program that does.
    """

    def differences(programs: list[Program]) -> list[tuple | None]:
        expected = play(oracle, programs)
        if any(_is_nonsense(step.result) for steps in expected for step in steps):
            return [None]  # a shorter program, in which nobody can go wrong
        pairs = zip(play(student, programs), expected, strict=True)
        return [_difference(*pair) for pair in pairs]

    found = differences(programs)
    if not any(found):
        return
    marks = json.dumps([each and each[::2] for each in found], default=str)
    mark = hashlib.sha256(marks.encode()).digest()
    _, first = min((each[0], n) for n, each in enumerate(found) if each)
    (settings, calls), text = _shortest(programs[first], found[first], differences)
    told = [_words(getattr(driver, method), arguments) for method, *arguments in calls]
    text = f"{_words(driver, settings)}: {'; '.join(told) or 'nothing is called'}.\n{text}"
    raise Failure(text, what="programs", observed=torch.tensor([*mark], dtype=torch.uint8))


def _words(what: Any, arguments: Sequence) -> str:
    return (what.__doc__ or "").format(*arguments)


def _tried(action: Callable[[], object]) -> object:
    try:
        return action()
    except Failure as failure:
        if not failure.kinds:  # too slow, not implemented, or not of the right kind
            raise
        return {"raised": [*failure.kinds], "message": failure.message}
    except Exception as error:  # an oracle's, or a student's result is odd
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return {"raised": kinds, "message": odd(error).message}


def _raised(shown: Any) -> bool:
    return isinstance(shown, dict) and "raised" in shown


def _is_nonsense(shown: Any) -> bool:
    return _raised(shown) and "Nonsense" in shown["raised"]


def _difference(given: list[Step], expected: list[Step]) -> tuple | None:
    """Find the first step that differs: its place, how in words, and what it showed."""
    for place, (one, other) in enumerate(itertools.zip_longest(given, expected)):
        result, seen, changed = one
        if text := _unlike(Step(result, seen, changed), other):
            shown = [part["raised"][0] if _raised(part) else part for part in (result, seen)]
            return place, text, shown
    return None


def _unlike(given: Step, expected: Step) -> str:
    """Say how two steps differ; nothing if they do not."""
    kind = expected.result["raised"][0] if _raised(expected.result) else None
    if _raised(given.result) and kind not in given.result["raised"]:
        return f"{f'It should raise {kind}. ' if kind else ''}{given.result['message']}"
    if kind and not _raised(given.result):
        return f"It should raise {kind}, yours gives {_short(given.result)}."
    if not kind and given.result != expected.result:
        return f"It should give {_short(expected.result)}, yours gives {_short(given.result)}."
    if given.changed:
        return f"A list that the caller keeps has changed: {given.changed[0]}."
    if _raised(given.seen):
        return given.seen["message"]
    names = [n for n in expected.seen | given.seen if given.seen.get(n) != expected.seen.get(n)]
    pairs = [(n, *(_short(seen.get(n)) for seen in (expected.seen, given.seen))) for n in names[:2]]
    parts = [f"{name} should be {should}, yours is {yours}" for name, should, yours in pairs]
    return f"Then {'; '.join(parts)}." if parts else ""


def _short(value: object) -> str:
    text = "nothing" if value is None or value in ("", []) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"


def _shortest(program: Program, found: Any, differences: Callable) -> tuple[Program, str]:
    """Leave out calls for as long as it still differs: half of them at first, then one by one."""
    settings, calls = program
    calls, size = calls[: found[0]], max(1, found[0] // 2)
    while True:
        end = len(calls)
        while end > 0:
            fewer = calls[: max(0, end - size)] + calls[end:]
            end -= size
            try:
                (shorter,) = differences([(settings, fewer)])
            except Failure:
                continue
            if shorter:
                calls, found = fewer[: shorter[0]], shorter
                end = min(end, len(calls))
        if size == 1:
            return (settings, calls), found[1]
        size //= 2
