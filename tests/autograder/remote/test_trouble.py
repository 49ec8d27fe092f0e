"""Student code that hangs, ends its process or lies costs its own calls, and nothing else."""

import os
import textwrap
import time
from pathlib import Path

import pytest
import torch

from autograder.grade.judging.solutions import RESTARTS
from autograder.remote.proxy import Proxy
from course_pkg.checking.guard import steps
from course_pkg.checking.telling.failure import Failure
from course_pkg.remote.messages import WireError
from tests.plain_kernel import Notebook

SOON = 20.0  # seconds within which a call is over, on a busy machine too; what hangs takes 60
SOURCE = Path(__file__).with_name("student.py").read_text()


@pytest.fixture(scope="module")
def notebook():
    torch.set_num_threads(1)
    with Notebook(SOURCE) as notebook:
        yield notebook


def message_of(call, *args, **kwargs) -> str:
    with pytest.raises(Failure) as caught:
        call(*args, **kwargs)
    return caught.value.message


def test_a_gradient_that_fails(notebook):
    y = notebook.get("broken_gradient")(torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_cannot_be_read(notebook):
    assert message_of(notebook.get("huge")) == (
        "huge gives a result that cannot be read: more than 256 MB of tensors cannot be sent."
    )
    assert "nests containers more than 40 deep" in message_of(notebook.get("deep"))
    assert message_of(notebook.get("interrupts")) == "interrupts raised KeyboardInterrupt."
    assert message_of(notebook.get, "nothing") == "nothing is not defined."
    assert notebook.get("scale")(torch.ones(1), 2.0) == 2


def test_prints_and_input_go_nowhere(notebook, capfd):
    assert notebook.get("prints")() == "no input"
    assert capfd.readouterr() == ("", "")


def test_endless_loops():
    with Notebook(SOURCE, 0.2, grace=0.3) as notebook:
        assert message_of(notebook.get("loops")) == "loops ran for more than 0.2 s."
        assert notebook.get("scale")(torch.ones(1), 2.0) == 2
        start = time.monotonic()
        assert message_of(notebook.get("loops_on")) == "loops_on ran for more than 0.2 s."
        assert time.monotonic() - start < SOON
        assert notebook.get("scale")(torch.ones(1), 2.0) == 2  # in a new fork


def test_an_endless_step():
    with Notebook(SOURCE, 0.2, grace=0.3) as notebook:
        items = steps(notebook.get("stalls"))
        assert next(items) == 1
        assert message_of(next, items) == "stalls ran for more than 0.2 s."


@pytest.mark.parametrize("answer", [None, 5, [], (1, 2), {"a": 1}])
def test_a_false_iterator(answer):
    class Liar:
        ended = None

        def call(self, *request, do):
            return answer

        def ask(self, *request, **fields):
            return answer

        def release_with(self, *owner):
            pass

    student = Proxy(Liar(), 1, "f", "function", "function")
    assert message_of(list, steps(student)) == "f gives no iterator that can be read."
    assert message_of(student._next) == "f gives an item that cannot be read."


def test_a_fork_that_ends():
    with Notebook(SOURCE, 1.0) as notebook:
        leave, layer, scale = map(notebook.get, ("leaves_at_once", "Layer", "scale"))
        layer = layer(2, 2)
        y = layer(torch.ones(1, 2))
        assert message_of(leave, 3) == "leaves_at_once ended its Python process."
        reason = "an earlier call ended its Python process."
        assert message_of(layer, torch.ones(1, 2)) == f"Layer cannot run: {reason}"
        assert message_of(y.sum().backward) == f"Layer cannot run: {reason}"
        assert scale(torch.ones(1), 2.0) == 2
        assert message_of(notebook.get("crashes")) == "crashes ended its Python process."
        for _ in range(RESTARTS - 1):
            assert message_of(leave, 0) == "leaves_at_once ended its Python process."
        assert message_of(scale, 1, 2) == f"scale cannot run: {reason}"


def test_nothing_is_left_running():
    with Notebook(SOURCE, 1.0) as notebook:
        pids = [notebook.get("pid")(), notebook.get("starts_process")()]
        assert all(map(_runs, pids))
    deadline = time.monotonic() + 3
    while any(map(_runs, pids[:1])) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(pids[0])


def test_objects_are_released(notebook):
    count = notebook.get("count")
    before = count()
    for _ in range(3):
        layer = notebook.get("Layer")(3, 3)
        layer(torch.ones(1, 3)).sum().backward()
    del layer
    count()  # after this call, what was released is gone
    assert count() == count() <= before + 1


def test_objects_of_another_process(notebook):
    with Notebook(SOURCE) as other:
        with pytest.raises(WireError, match="lives in another process"):
            notebook.get("echo")(other.get("scale"))


def test_objects_of_a_process_that_has_ended():
    """A check may go on after a call that has ended the process, with what was made before."""
    with Notebook(SOURCE) as notebook:
        echo, ends = notebook.get("echo"), notebook.get("leaves_at_once")
        before = notebook.get("Layer")(2, 3)
        message_of(ends, 0)
        lost = "Layer cannot run: an earlier call ended its Python process."
        assert message_of(echo, before) == lost  # echo is in a new process
        after = notebook.get("Layer")(2, 3)
        assert message_of(before, after) == lost
        assert isinstance(echo(after), Proxy)


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
    spec = {"dtype": "uint8", "shape": [5056], "order": [0], "requires_grad": False, "leaf": True}
    instead = f"""
    import json, struct, sys, time, types

    def serve(address, namespace):
        import os as system, socket
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        def write(descriptor, data):
            connection.sendall(data)
        os = types.SimpleNamespace(write=write, urandom=system.urandom)
        def send(header, body=b""):
            spec = {spec | {"parameter": False, "grad": None}}
            header = {{"random": None, "leaves": [], "tensors": [spec] if body else []}} | header
            text = json.dumps(header).encode()
            os.write(1, struct.pack("!IQ", len(text), len(body)) + text + body)
        send({{}})
        {answer}
        time.sleep(60)

    sys.modules["course_pkg.remote.server"] = types.SimpleNamespace(serve=serve)
    """
    with Notebook(textwrap.dedent(instead), 0.2, grace=0.2) as notebook:
        start = time.monotonic()
        message = message_of(notebook.get, "step")
        assert "cannot be read" in message or "ran for more than 0.2 s" in message
        assert time.monotonic() - start < SOON


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
