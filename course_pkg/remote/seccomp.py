"""Run a command without the kernel's keyrings and without System V's shared memory.

No namespace separates keyrings: a session's passes to all that the session starts, so to every
sandbox, which could read the grader's keys in it and leave some of its own for the next one. And
memory that belongs to no process, as System V's segments, queues and semaphores do, nobody counts.

The bound on open files stays as it is: with fewer, no fork of a kernel can answer checks. Calls
that would change it do nothing, and succeed, as cells that raise it should go on.

    python seccomp.py COMMAND [ARGUMENT ...]
"""

import ctypes
import errno
import os
import struct
import sys
from typing import NamedTuple

_PR_SET_NO_NEW_PRIVS, _MODE_FILTER, _FLAG_SPEC_ALLOW = 38, 1, 4
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # of the kernel's packet filters
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # where a filter finds them
_ALLOW, _REFUSE, _DO_NOTHING = 0x7FFF0000, 0x00050000 | errno.ENOSYS, 0x00050000
_OTHER_ABI = 0x40000000  # the same calls by other numbers begin here
_OPEN_FILES = 7  # the number of that bound


class Calls(NamedTuple):
    """The numbers of system calls on a kind of machine.

    Args:
        architecture: the number of the machine.
        set_filter: seccomp.
        refused: add_key, request_key, keyctl; shmget, semget, msgget.
        set_bound: setrlimit, which takes the number of a bound first.
        change_bound: prlimit64, which takes it second, and then where the new one is, if any.
    """

    architecture: int
    set_filter: int
    refused: tuple[int, ...]
    set_bound: int
    change_bound: int


CALLS = {
    "x86_64": Calls(0xC000003E, 317, (248, 249, 250, 29, 64, 68), 160, 302),
    "aarch64": Calls(0xC00000B7, 277, (217, 218, 219, 194, 190, 186), 164, 261),
}


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


class _Step(NamedTuple):
    """A step of a filter; one that tests goes on at the step of a name, or below.

    Args:
        kind: what it does.
        value: what it does it with.
        where: the name of the step to go on at if the test holds.
        otherwise: the same if it does not.
        name: its own.
    """

    kind: int
    value: int
    where: str = ""
    otherwise: str = ""
    name: str = ""


def _filter(calls: Calls) -> bytes:
    """Write the filter of system calls."""
    steps = [
        _Step(_LOAD, _ARCHITECTURE),
        _Step(_EQUAL, calls.architecture, otherwise="refuse"),
        _Step(_LOAD, _NUMBER),
        _Step(_AT_LEAST, _OTHER_ABI, "refuse"),
        *(_Step(_EQUAL, number, "refuse") for number in calls.refused),
        _Step(_EQUAL, calls.set_bound, "set bound"),
        _Step(_EQUAL, calls.change_bound, otherwise="allow"),
        _Step(_LOAD, _argument(1)),
        _Step(_EQUAL, _OPEN_FILES, otherwise="allow"),
        _Step(_LOAD, _argument(2)),
        _Step(_EQUAL, 0, otherwise="do nothing"),
        _Step(_LOAD, _argument(2) + 4),
        _Step(_EQUAL, 0, "allow", "do nothing"),
        _Step(_LOAD, _argument(0), name="set bound"),
        _Step(_EQUAL, _OPEN_FILES, "do nothing", "allow"),
        _Step(_RETURN, _ALLOW, name="allow"),
        _Step(_RETURN, _REFUSE, name="refuse"),
        _Step(_RETURN, _DO_NOTHING, name="do nothing"),
    ]
    places = {step.name: place for place, step in enumerate(steps)}
    code = b""
    for place, step in enumerate(steps):
        holds, fails = (
            places[name] - place - 1 if name else 0 for name in (step.where, step.otherwise)
        )
        code += struct.pack("HBBI", step.kind, holds, fails, step.value)
    return code


def _argument(number: int) -> int:
    """Say where a filter finds the lower half of an argument; these machines put it first."""
    return _ARGUMENTS + 8 * number


def refuse_calls() -> None:
    """Refuse this process, and what it starts, such calls.

    Raises:
        OSError: the kernel sets no filter.
        KeyError: the calls of this kind of machine are not known.
    """
    calls = CALLS[os.uname().machine]
    code = _filter(calls)
    libc = ctypes.CDLL(None, use_errno=True)
    program = ctypes.byref(_Program(len(code) // 8, code))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(
        calls.set_filter, _MODE_FILTER, _FLAG_SPEC_ALLOW, program
    ):
        raise OSError(ctypes.get_errno(), "the kernel sets no filter of system calls")


if __name__ == "__main__":
    refuse_calls()
    os.execvp(sys.argv[1], sys.argv[1:])
