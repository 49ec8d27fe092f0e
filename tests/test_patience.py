"""What waits for others goes on; what computes too long, or waits for nothing, is ended."""

import os
import sys
import time

import psutil
import pytest

from tests.patience import Stopped, run

LOOP = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"
CHILD = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {!r}])\n"


def python(program: str, **options) -> tuple[int, str, float]:
    return run([sys.executable, "-u", "-c", program], dict(os.environ), **options)


def test_a_command_that_ends_by_itself():
    status, text, seconds = python(LOOP.format(0.5) + "print('é'); raise SystemExit(3)", most=60)
    assert (status, text) == (3, "é\n") and 0.3 < seconds < 10


def test_waiting_is_not_computing():
    """A third of the limit is computed, in three times its seconds."""
    started = time.monotonic()
    assert python("import time; time.sleep(3)", most=1)[0] == 0
    assert time.monotonic() - started >= 3


@pytest.mark.parametrize("program", [LOOP.format(60), CHILD.format(LOOP.format(60))])
def test_what_computes_too_long_is_ended_with_all_below_it(program):
    before = set(psutil.Process().children(recursive=True))  # other tests' sandboxes
    with pytest.raises(Stopped, match="it computed for more than 1 s\nbegins"):
        python("print('begins')\n" + program, most=1)
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [each for each in left if each.is_running()]


def test_what_hangs_is_ended():
    with pytest.raises(Stopped, match="it computed next to nothing for 2 s\n"):
        python("import time; time.sleep(600)", most=60, idle=2)
