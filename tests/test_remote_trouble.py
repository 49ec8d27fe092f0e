"""Student code that hangs, ends its process or lies costs its own calls, and nothing else."""

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from autograder.remote import Child, ChildError
from course_pkg.checking.failure import Failure
from course_pkg.checking.raw import WireError

SOURCE = Path(__file__).with_name("student.py").read_text()


@pytest.fixture(scope="module")
def child():
    torch.set_num_threads(1)
    with Child(2.0) as child:
        child.load(SOURCE)
        yield child


def message_of(call, *args, **kwargs) -> str:
    with pytest.raises(Failure) as caught:
        call(*args, **kwargs)
    return caught.value.message


def test_a_gradient_that_fails(child):
    y = child.get("broken_gradient")(torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_cannot_be_read(child):
    assert message_of(child.get("huge")) == (
        "huge gives what cannot be read: more than 256 MB of tensors cannot be sent."
    )
    assert "more than 40 containers within each other" in message_of(child.get("deep"))
    assert message_of(child.get("interrupts")) == "interrupts raised KeyboardInterrupt."
    assert message_of(child.get, "nothing", "step") == "step is not defined."
    assert child.get("scale")(torch.ones(1), 2.0) == 2


def test_prints_and_input_go_nowhere(child, capfd):
    assert child.get("prints")() == "no input"
    assert capfd.readouterr() == ("", "")


def test_cells():
    with Child(1.0) as child:
        child.load("a = 1")
        child.load("def f(): return a + b", fresh=False)
        assert "NameError" in message_of(child.get("f"))
        child.load("b = 2", fresh=False)
        assert child.get("f")() == 3
        assert "The cell is not Python: invalid syntax" in message_of(child.load, "d = = 3")
        raised = message_of(child.load, "c = 1\n1 / 0", fresh=False)
        assert raised == "The cell raised ZeroDivisionError: division by zero\nin line 2: 1 / 0"
        assert child.get("c").kind == "the value 1"
        slow = message_of(child.load, "while True: pass", seconds=0.2)
        assert slow == "The cell ran for more than 0.2 s."


def test_endless_loops():
    with Child(0.2, grace=0.3) as child:
        child.load(SOURCE)
        assert message_of(child.get("loops")) == "loops ran for more than 0.2 s."
        assert child.get("scale")(torch.ones(1), 2.0) == 2
        start = time.monotonic()
        assert message_of(child.get("loops_on")) == "loops_on ran for more than 0.2 s."
        assert time.monotonic() - start < 3
        assert child.get("scale")(torch.ones(1), 2.0) == 2  # in a new child


def test_a_child_that_ends():
    with Child(1.0) as child:
        child.load(SOURCE)
        leave, layer, scale = (
            child.get("leaves_at_once"),
            child.get("Layer")(2, 2),
            child.get("scale"),
        )
        y = layer(torch.ones(1, 2))
        assert message_of(leave, 3) == "leaves_at_once ended its Python process (exit status 3)."
        reason = "an earlier call ended its Python process (exit status 3)."
        assert message_of(layer, torch.ones(1, 2)) == f"Layer cannot run: {reason}"
        assert message_of(y.sum().backward) == f"Layer cannot run: {reason}"
        assert scale(torch.ones(1), 2.0) == 2
        assert "(signal SIGSEGV)" in message_of(child.get("crashes"))
        assert message_of(leave, 0).endswith("(exit status 0).")
        assert message_of(leave, 0).endswith("(exit status 0).")
        assert message_of(scale, 1, 2).startswith("scale cannot run: an earlier call ended its Py")
    assert "it was stopped" not in message_of(scale, 1, 2)


def test_nothing_is_left_running():
    with Child(1.0) as child:
        child.load(SOURCE)
        pids = [child.get("pid")(), child.get("starts_process")()]
        assert all(map(_runs, pids))
    deadline = time.monotonic() + 3
    while any(map(_runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(_runs, pids))
    assert message_of(child.get, "scale") == "scale cannot run: it was stopped."


def test_objects_are_released(child):
    count = child.get("count")
    before = count()
    for _ in range(3):
        layer = child.get("Layer")(3, 3)
        layer(torch.ones(1, 3)).sum().backward()
    del layer
    assert count() == count() <= before + 1


def test_a_child_that_does_not_start():
    with pytest.raises(ChildError, match="exit status 7"):
        Child(command=(sys.executable, "-S", "-c", "raise SystemExit(7)"))


def test_objects_of_another_child(child):
    with Child(1.0) as other:
        other.load(SOURCE)
        with pytest.raises(WireError, match="lives in another child"):
            child.get("echo")(other.get("scale"))


HOSTILE = {
    "garbage": "os.write(1, os.urandom(5000))",
    "huge": "os.write(1, struct.pack('!IQ', 10, 1 << 60))",
    "cut": "os.write(1, struct.pack('!IQ', 10, 10) + b'{}')",
    "silent": "time.sleep(60)",
    "slow": "[(os.write(1, b'\\0'), time.sleep(0.05)) for _ in range(1000)]",
    "empty": "send({})",
    "no object": "send({'value': None})",
    "false object": "send({'value': ['object', 1, '', '', '']})",
    "false leaf": "send({'value': ['leaf', 1]})",
    "false graph": "send({'value': None, 'graph': 1, 'uses': [7], 'outputs': [9]})",
    "many leaves": "send({'leaves': [[n, 0] for n in range(100)]}, bytes(5056))",
    "false random": "send({'random': 0}, b'x' * 5056)",
    "false failure": "send({'failure': [1]})",
    "flood": "[os.write(1, bytes(1 << 16)) for _ in range(10000)]",
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_answers(answer):
    spec = {"dtype": "uint8", "shape": [5056], "requires_grad": False, "leaf": True}
    program = f"""
    import json, os, struct, time
    def send(header, body=b""):
        spec = {spec | {"parameter": False, "grad": None}}
        header = {{"random": None, "leaves": [], "tensors": [spec] if body else []}} | header
        text = json.dumps(header).encode()
        os.write(1, struct.pack("!IQ", len(text), len(body)) + text + body)
    send({{}})
    {answer}
    time.sleep(60)
    """
    command = (sys.executable, "-S", "-c", textwrap.dedent(program))
    with Child(0.2, grace=0.2, command=command) as child:
        start = time.monotonic()
        message = message_of(child.get, "step")
        assert "cannot be read" in message or "ran for more than 0.2 s" in message
        assert time.monotonic() - start < 3


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        if os.path.exists("/proc/self"):
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
