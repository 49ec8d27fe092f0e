"""The sandbox, its limits, and what happens where there is none."""

import ast
import contextlib
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from autograder.assignment import ROOT, Assignment, assignments
from autograder.grade.errors import KernelDied, SandboxMissing
from autograder.grade.kernel import sandbox
from autograder.grade.kernel.kernel import Kernel
from autograder.grade.kernel.provisioner import sweep
from autograder.grade.kernel.sandbox import Limits
from autograder.grade.kernel.sandbox_files import sandbox_files
from autograder.grade.kernel.watch import Watch
from tests.course import command_lines, needs_sandbox

LSTM = Assignment("02_lstm")
pytestmark = pytest.mark.xdist_group("sandbox")


def test_a_missing_sandbox_is_an_error_that_helps(monkeypatch):
    monkeypatch.setattr(sandbox, "problem", lambda: "bubblewrap (bwrap) is not installed")
    with pytest.raises(SandboxMissing) as caught:
        sandbox.demand()
    assert "apt-get install bubblewrap" in str(caught.value)
    assert "AUTOGRADER_SANDBOX=off" in str(caught.value)


def test_the_sandbox_is_switched_off_only_in_words(monkeypatch):
    for text, is_off in (("off", True), ("OFF", True), ("", False), ("yes", False)):
        monkeypatch.setenv(sandbox.SWITCH, text)
        assert sandbox.is_off() is is_off


def test_the_kit_is_what_students_have_but_oracles():
    folder = sandbox_files(LSTM)
    checks = folder / "site/course_pkg/checks"
    rules = ast.parse((checks / "lstm.py").read_text()).body
    assert not [part for part in rules if isinstance(part, (ast.FunctionDef, ast.ClassDef))]
    assert "forbid(gru_step" in (checks / "lstm.py").read_text()
    assert not list((checks / "data").glob("*.npz"))
    assert "raise NotImplementedError" in (folder / "site/course_pkg/lstm.py").read_text()
    later = [other.topic for other in assignments() if other.name > LSTM.name]
    assert later and not any((folder / f"site/course_pkg/{name}.py").exists() for name in later)
    assert not (folder / "site/autograder").exists()
    assert sandbox_files(LSTM) == folder


@pytest.fixture
def inside(tmp_path):
    """Run Python in a sandbox and return what it printed."""

    def run(code: str, limits: Limits | None = None) -> str:
        sockets = tmp_path / "s"
        sockets.mkdir(exist_ok=True)
        argv = [sys.executable, "-c", code]
        limits = limits or Limits()
        command = sandbox.command(
            argv, sandbox_files=sandbox_files(LSTM), sockets=sockets, limits=limits
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        return done.stdout + done.stderr

    return run


@needs_sandbox
@pytest.mark.parametrize("parent", ["/tmp", "/home"])
def test_an_environment_may_lie_in_a_folder_that_is_hidden(monkeypatch, tmp_path, parent):
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        Path(folder, "environment").mkdir()
        Path(folder, "environment", "found").touch()
        Path(folder, "secret").touch()
        monkeypatch.setattr(sandbox.sys, "prefix", f"{folder}/environment")
        argv = ["/usr/bin/find", folder, "-type", "f"]
        command = sandbox.command(argv, sandbox_files=sandbox_files(LSTM), sockets=tmp_path)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout == f"{folder}/environment/found\n", done.stderr


@needs_sandbox
def test_only_what_belongs_is_there(inside):
    code = f"""
import os, socket, course_pkg, course_pkg.checks.lstm
print(course_pkg.__file__, os.getcwd(), len(os.listdir("/proc")) < 60)
print(sorted(os.listdir({str(ROOT)!r})), sorted(os.environ))
print([i for _, i in socket.if_nameindex()], os.getuid())
for path in ("/usr/x", "/opt/course/x", "/etc/x", "/x", "/dev/x", {str(ROOT)!r} + "/.venv/x"):
    try: open(path, "w"); print("wrote", path)
    except OSError: pass
for path in ("/tmp/x", "/home/student/x", "/dev/shm/x", "x"):
    open(path, "w").close()
for name in ("autograder", "sacrebleu", "tokenizers", "transformers"):
    try: __import__(name + ".__init__")
    except ImportError: print("no", name)
"""
    text = inside(code)
    assert "/opt/course/course_pkg/__init__.py /home/student/work True" in text, text
    assert "['.venv']" in text
    assert "no autograder\nno sacrebleu\nno tokenizers\nno transformers\n" in text
    assert "['lo'] 1000" in text and "wrote" not in text and "Traceback" not in text
    assert "SSH" not in text and "TOKEN" not in text


@needs_sandbox
def test_limits(inside):
    assert "MemoryError" in inside("b = bytearray(8 << 30)")
    assert "File too large" in inside("open('/tmp/x', 'wb').write(bytes(300 << 20))")
    assert "No space left" in inside(
        "for n in range(9): open(f'/tmp/{n}', 'wb').write(bytes(200 << 20))"
    )
    assert inside("print('begun', flush=True)\nwhile True: pass", Limits(cpu=1)) == "begun\n"


@pytest.mark.parametrize(
    ("code", "limits", "words"),
    [
        (
            "import os, time\nfor _ in range(9):\n  if not os.fork(): break\ntime.sleep(60)",
            Limits(processes=5),
            "more than 5 processes",
        ),
        (
            "import time\nhog = bytearray(300 << 20)\ntime.sleep(60)",
            Limits(memory=200 << 20),
            "more than 200 MB",
        ),
        (
            "import os, time\nopen('x', 'wb').write(bytes(2 << 20))\ntime.sleep(60)",
            Limits(),
            "only the grader's sockets",
        ),
        (
            "import time\nfor n in range(300): open(f'{n}', 'w').close()\ntime.sleep(60)",
            Limits(),
            "only the grader's sockets",
        ),
        (
            "import os, time\nhog = os.memfd_create('')\n"
            "for _ in range(300): os.write(hog, bytes(1 << 20))\ntime.sleep(60)",
            Limits(memory=200 << 20),
            "more than 200 MB",
        ),
        (
            "import mmap, time\nhog = mmap.mmap(-1, 300 << 20)\n"
            "for n in range(300): hog.write(bytes(1 << 20))\ntime.sleep(60)",
            Limits(memory=200 << 20),
            "more than 200 MB",
        ),
    ],
)
@needs_sandbox
def test_the_watch_ends_what_uses_too_much(code, limits, words, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, start_new_session=True)
    watch = Watch(process.pid, tmp_path, limits, lambda: os.killpg(process.pid, signal.SIGKILL))
    watch.start()
    assert process.wait(60) == -signal.SIGKILL
    watch.join(60)
    assert words in watch.reason


@needs_sandbox
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_kernel_runs_cells_and_cuts_output(is_warm):
    with Kernel("02_lstm", is_warm=is_warm) as kernel:
        outputs, why = kernel.run("print('hello'); 1 + 1", 60)
        assert not why and [o.output_type for o in outputs] == ["stream", "execute_result"]
        outputs, _ = kernel.run("for n in range(300): print('x' * 10_000)", 120)
        assert "was cut here" in outputs[-1].text
        assert sum(len(o.text) for o in outputs) < 120_000
        outputs, why = kernel.run("for _ in iter(int, 1): print('x' * 10_000)", 60)
        assert why == "it printed more than 16 MB" and len(outputs) < 10
        outputs, why = kernel.run("print('x' * 30_000_000)", 60)
        assert "was cut here" in outputs[-1].text
        outputs, why = kernel.run("print('next')", 60)
        assert not why and outputs[-1].text == "next\n"
        outputs, why = kernel.run("import time; time.sleep(100)", 1)
        assert why == "it ran for more than 1 s" and outputs[-1].ename == "KeyboardInterrupt"
        loop = "while True:\n try:\n  time.sleep(60)\n except BaseException: pass"
        with pytest.raises(KernelDied, match="could not be interrupted"):
            kernel.run(loop, 1)
        assert not kernel.is_alive


@needs_sandbox
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_kernel_sees_its_own_processes_and_files_only(is_warm):
    see = """
import os
print(sum(name.isdigit() for name in os.listdir("/proc")) <= 2)
places = [p for top in ("/home", "/tmp", "/dev/shm", "/run") for p, _, _ in os.walk(top)]
print([place for place in places if os.path.exists(place + "/left")])
try: open("/proc/sys/kernel/hostname", "w")
except OSError: print("read-only")
for place in places:
    try: open(place + "/left", "w").close()
    except OSError: pass
"""
    for _ in range(2):
        with Kernel("02_lstm", is_warm=is_warm) as kernel:
            outputs, _ = kernel.run(see, 60)
            assert outputs[0].text == "True\n[]\nread-only\n"


@needs_sandbox
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_kernel_makes_no_namespaces_of_its_own(is_warm):
    """Within one it could mount a file system whose memory counts for nobody."""
    with Kernel("02_lstm", is_warm=is_warm) as kernel:
        text = "import ctypes; print(ctypes.CDLL(None).unshare(1 << 28))"
        outputs, _ = kernel.run(text, 60)
        assert outputs[0].text == "-1\n"


def test_a_machine_whose_system_calls_are_not_known_has_no_sandbox(monkeypatch):
    monkeypatch.setattr(sandbox.sys, "platform", "linux")
    monkeypatch.setattr(sandbox, "CALLS", {"abacus": ()})
    problem = sandbox.problem.__wrapped__()
    assert problem == f"its filter of system calls is for abacus, and this is {os.uname().machine}"


@needs_sandbox
@pytest.mark.parametrize("is_warm", [False, True])
def test_keyrings_and_memory_of_no_process_are_closed(is_warm):
    """A key that one student leaves, another one finds; and nobody counts such memory."""
    is_x86 = os.uname().machine == "x86_64"
    join = 250 if is_x86 else 219
    numbers = (248, 249, 250, 29, 64, 68) if is_x86 else (217, 218, 219, 194, 190, 186)
    code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    code += f"print([(libc.syscall(n, 0, -3, 0, 0, 0), ctypes.get_errno()) for n in {numbers}])"
    ctypes.CDLL(None).syscall(join, 1, None)  # as a login does
    with Kernel("02_lstm", is_warm=is_warm) as kernel:
        outputs, _ = kernel.run(code, 60)
        assert outputs[0].text == f"{[(-1, errno.ENOSYS)] * len(numbers)}\n"


@needs_sandbox
def test_a_kernel_that_takes_no_messages_is_ended():
    """Its code can break the sockets; to wait until they take something would be for ever."""
    with Kernel("02_lstm") as kernel:
        for channel in (kernel._client.control_channel, kernel._client.shell_channel):
            channel.socket.disconnect(channel.socket.LAST_ENDPOINT)
        kernel.interrupt()
        with pytest.raises(KernelDied, match="takes no requests"):
            kernel.submit("1")
        assert not kernel.is_alive


@needs_sandbox
def test_a_kernel_that_was_killed_is_used_no_more_however_long_its_end_takes(monkeypatch):
    with Kernel("02_lstm") as kernel:
        request = kernel.submit("1")
        monkeypatch.setattr(type(kernel._provisioner.process), "poll", lambda process: None)
        kernel.kill()
        assert not kernel.is_alive
        for use in (lambda: kernel.run("1", 1), lambda: kernel.settle(request, 1)):
            with pytest.raises(KernelDied, match="ended before"):
                use()


@needs_sandbox
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_kernel_has_no_way_to_the_terminal(is_warm, capfd):
    with Kernel("02_lstm", is_warm=is_warm) as kernel:
        code = "import os\nfor n in range(100):\n  try: os.write(n, b'forged')\n  except OSError: 0"
        with contextlib.suppress(KernelDied):  # it writes to its sockets too
            kernel.run(code, 2)
    assert "forged" not in "".join(capfd.readouterr())


@needs_sandbox
@pytest.mark.parametrize("is_warm", [False, True])
def test_nothing_is_left_of_a_kernel(is_warm):
    kernel = Kernel("02_lstm", is_warm=is_warm)
    folder = kernel.sockets
    kernel.run("import subprocess; subprocess.Popen(['sleep', '3601'], start_new_session=True)", 60)
    kernel.kill()
    time.sleep(0.5)
    assert not folder.exists()
    assert "sleep 3601" not in command_lines()


def test_what_killed_graders_leave_is_swept_but_not_what_is_not_ours():
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    mine, others, used = (
        Path(tempfile.mkdtemp(prefix=f"kernel-{pid}-", dir="/tmp"))
        for pid in (ended.pid, ended.pid, os.getpid())
    )
    try:
        if os.geteuid() == 0:
            os.chown(others, 61_999, 61_999)  # a user whom this machine does not know
        sweep()
        assert not mine.exists() and used.exists()
        assert others.exists() == (os.geteuid() == 0)
    finally:
        for folder in (others, used):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("depth", [10, 1500])
def test_what_a_student_has_left_at_any_depth_is_swept(depth):
    root = tempfile.mkdtemp(prefix="kernel-99999999-")
    place = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    try:
        sweep()
        assert not Path(root).exists()
    finally:
        subprocess.run(["rm", "-rf", root], check=True)


@needs_sandbox
@pytest.mark.parametrize("is_warm", [False, True])
def test_the_bound_on_open_files_stays(is_warm):
    code = (
        "import resource as r\nfor pair in ((3, 3), (0, 1024), (1024, 1024), (1 << 20, 1 << 20)):\n"
    )
    code += "    r.setrlimit(r.RLIMIT_NOFILE, pair)\n"
    code += "    r.prlimit(0, r.RLIMIT_NOFILE, pair)\n"
    code += "r.setrlimit(r.RLIMIT_CORE, (0, 0))\nprint(r.getrlimit(r.RLIMIT_NOFILE))"
    with Kernel("02_lstm", is_warm=is_warm) as kernel:
        outputs, why = kernel.run(code, 30)
        assert outputs[0].text == "(1024, 1024)\n" and not why
