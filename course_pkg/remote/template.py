"""A warm process from which kernels are forked, each into a sandbox of its own within a sandbox.

It runs in the grader's sandbox, imports what notebooks import, and never runs a student's code. For
each submission it forks; the fork enters new user, process, mount, network and IPC namespaces, gets
empty folders of its own, gives up every privilege, and becomes the kernel.
"""

import ctypes
import gc
import importlib
import json
import os
import random
import shutil
import signal
import socket
import sys

from course_pkg.checking.rules.enforcement import prepare
from course_pkg.remote.plain import do_not_compile
from course_pkg.tools.huge_pages import use_huge_pages

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 4, 24, 38, 36
_NEW_USER, _NEW_PID, _NEW_MOUNTS, _NEW_NET, _NEW_IPC = 1 << 28, 1 << 29, 1 << 17, 1 << 30, 1 << 27
_MS_BIND, _MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 4096, 2, 4, 16384, 1 << 18
_MS_READONLY, _MS_NOEXEC, _MS_REMOUNT = 1, 8, 32
_PROC = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_SYSTEM = ("sys", "sysrq-trigger", "irq", "bus")  # of /proc: not for writing, even by root
_SETFCAP = 31  # the capability without which a fork must not map user 0 to another
_CAPSET = {"x86_64": 126, "aarch64": 91}
# What notebooks import, and what a kernel imports while it starts.
MODULES = """
    random numpy torch matplotlib.pyplot matplotlib_inline.backend_inline ipykernel.kernelapp
    ipykernel.ipkernel ipykernel.debugger IPython.core.completerlib IPython.core.debugger
    IPython.core.logger IPython.core.oinspect IPython.extensions.storemagic numpy.random
    tornado.gen tornado.platform.asyncio sqlite3 faulthandler course_pkg.tools.plot
    course_pkg.tools.train course_pkg.data course_pkg.remote.server
    course_pkg.checking.telling.report
    torch.testing torch.nn.functional jaxtyping torch.fx.experimental.symbolic_shapes
""".split()


def main(descriptor: int, modules: list[str]) -> None:
    """Serve until the grader goes: each line is a request in JSON, and so is each answer."""
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel permits a fork to mount /proc for itself only where an unmasked one is mounted.
    _must(libc.mount(b"proc", b"/run/proc", b"proc", _PROC, None))
    _give_up(libc, _SETFCAP)
    for name in [*MODULES, *modules]:
        importlib.import_module(name)
    do_not_compile()
    prepare()
    gc.collect()
    gc.freeze()
    use_huge_pages()
    _must(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    _must(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))  # nobody inside may look into this process
    control = socket.socket(fileno=descriptor)
    stream = control.makefile("r")
    control.sendall(b"{}\n")
    kernels: dict[int, int | None] = {}
    answer: dict[str, int | None]
    for line in stream:
        request = json.loads(line)
        if request["do"] == "start":
            pid = _start(libc, control, request)
            kernels[pid] = None
            answer = {"pid": pid}
        elif request["do"] == "kill":
            if kernels.get(request["pid"]) is None:
                os.kill(request["pid"], signal.SIGKILL)
            answer = {}
        else:
            answer = {"status": _status(kernels, request["pid"])}
        control.sendall(json.dumps(answer).encode() + b"\n")


def _status(kernels: dict[int, int | None], pid: int) -> int | None:
    """Say how a kernel ended; None while it runs."""
    while True:
        try:
            found, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if found == 0:
            break
        if found in kernels:
            kernels[found] = os.waitstatus_to_exitcode(status)
    return kernels[pid]


def _start(libc: ctypes.CDLL, control: socket.socket, request: dict) -> int:
    """Fork a kernel; return its number as this process sees it."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            control.close()
            os.close(reader)
            _enter(libc, request)
            first = os.fork()
            if first:
                os.write(writer, str(first).encode())
                os._exit(0)
            os.closerange(3, 1024)
            _mount_proc(libc)
            _give_up(libc)
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
            if kernel := os.fork():
                _wait_as_init(kernel)
            os.setsid()
            _become_kernel(request)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(middle, 0)
    if not text:
        raise SystemExit("a kernel could not be forked")
    return int(text)


def _enter(libc: ctypes.CDLL, request: dict) -> None:
    """Enter new namespaces, with folders of their own."""
    uid, gid = os.getuid(), os.getgid()
    _must(libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))  # to write the maps
    _must(libc.unshare(_NEW_USER | _NEW_PID | _NEW_MOUNTS | _NEW_NET | _NEW_IPC))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"1000 {uid} 1"),
        ("gid_map", f"1000 {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    # Within a namespace more, a kernel could mount file systems that nobody counts.
    with open("/run/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
    _must(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
    kept = [(os.open(path, os.O_PATH), path) for path in request["kept"]]
    sockets, size = request["sockets"].encode(), f"mode=0755,size={request['disk']}".encode()
    _must(libc.mount(sockets, b"/run/sockets", None, _MS_BIND, None))
    # What came with a submission never passes through the memory that the next one inherits.
    for folder in (b"/dev/shm", b"/home"):
        _must(libc.mount(b"tmpfs", folder, b"tmpfs", _MS_NOSUID | _MS_NODEV, size))
    shutil.copytree(request["files"], request["work"])
    _must(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", _MS_NOSUID | _MS_NODEV, size))
    os.makedirs(sockets)
    _must(libc.mount(b"/run/sockets", sockets, None, _MS_BIND, None))
    for descriptor, path in kept:
        os.makedirs(path, exist_ok=True)
        source = f"/proc/self/fd/{descriptor}".encode()
        _must(libc.mount(source, path.encode(), None, _MS_BIND | _MS_REC, None))


def _mount_proc(libc: ctypes.CDLL) -> None:
    """Show the processes of the new namespace, and no others."""
    _must(libc.mount(b"proc", b"/proc", b"proc", _PROC, None))
    paths = [f"/proc/{name}".encode() for name in _SYSTEM]
    for path in filter(os.path.exists, paths):
        _must(libc.mount(path, path, None, _MS_BIND | _MS_REC, None))
        flags = _MS_REMOUNT | _MS_BIND | _MS_READONLY | _PROC
        _must(libc.mount(None, path, None, flags, None))
    _must(libc.mount(b"tmpfs", b"/run/proc", b"tmpfs", _MS_READONLY, None))


def _give_up(libc: ctypes.CDLL, kept: int | None = None) -> None:
    """Drop every capability for good, except one that may be kept."""
    _must(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    for capability in set(range(64)) - {kept}:
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # numbers that do not exist fail
    bits = 0 if kept is None else 1 << kept
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _must(libc.syscall(_CAPSET[os.uname().machine], header, (ctypes.c_uint32 * 6)(bits, bits)))


def _wait_as_init(kernel: int) -> None:
    """Be the first process of the namespace: it ends with the kernel, and all others with it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while True:
        found, status = os.wait()
        if found == kernel:
            os._exit(os.waitstatus_to_exitcode(status) & 255)


def _become_kernel(request: dict) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["work"])
    sys.argv = ["ipykernel_launcher"]
    import numpy
    from ipykernel.kernelapp import IPKernelApp
    from matplotlib_inline import backend_inline

    random.seed()
    numpy.random.seed()
    app = IPKernelApp.instance()
    app.initialize(request["argv"])
    backend_inline._enable_matplotlib_integration()
    app.start()
    os._exit(0)


def _must(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
