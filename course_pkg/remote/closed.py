"""Run a command without the kernel's keyrings and without System V's shared memory.

No namespace separates keyrings: a session's passes to all that the session starts, so to every
sandbox, which could read the grader's keys in it and leave some of its own for the next one. And
memory that belongs to no process, as System V's segments, queues and semaphores do, nobody counts.

    python closed.py COMMAND [ARGUMENT ...]
"""

import ctypes
import errno
import os
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _MODE_FILTER, _FLAG_SPEC_ALLOW = 38, 1, 4
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # of the kernel's packet filters
_NUMBER, _ARCHITECTURE = 0, 4  # where a filter finds them
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOSYS
_OTHER_ABI = 0x40000000  # the same calls by other numbers begin here
# By machine: the architecture, the call that sets a filter; add_key, request_key and keyctl; shmget,
# semget and msgget.
CALLS = {
    "x86_64": (0xC000003E, 317, (248, 249, 250, 29, 64, 68)),
    "aarch64": (0xC00000B7, 277, (217, 218, 219, 194, 190, 186)),
}


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def refuse_calls() -> None:
    """Refuse this process, and what it starts, every call about keys, and to make such memory.

    Raises:
        OSError: the kernel sets no filter.
        KeyError: the calls of this kind of machine are not known.
    """
    architecture, set_filter, calls = CALLS[os.uname().machine]
    tests = [(_AT_LEAST, _OTHER_ABI), *((_EQUAL, number) for number in calls)]
    # A step that tests goes on by so many steps if it holds, and by so many if it does not.
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, len(tests) + 2, architecture),
        (_LOAD, 0, 0, _NUMBER),
        *((kind, len(tests) - n, 0, value) for n, (kind, value) in enumerate(tests)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    program = ctypes.byref(_Program(len(steps), code))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(
        set_filter, _MODE_FILTER, _FLAG_SPEC_ALLOW, program
    ):
        raise OSError(ctypes.get_errno(), "the kernel sets no filter of system calls")


if __name__ == "__main__":
    refuse_calls()
    os.execvp(sys.argv[1], sys.argv[1:])
