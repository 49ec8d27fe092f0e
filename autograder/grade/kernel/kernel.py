"""A kernel that runs the cells of one submission, with bounds on time and on what it prints."""

import contextlib
import functools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import zmq
from jupyter_client import KernelManager
from nbformat import NotebookNode
from nbformat.v4 import new_output, output_from_msg

from autograder.grade.errors import KernelDied, TemplateEnded
from autograder.grade.kernel import sandbox
from autograder.grade.kernel.clock import Meter
from autograder.grade.kernel.provisioner import NAME, SandboxKernels, SandboxProvisioner
from autograder.grade.submission.reading import whole
from course_pkg.remote.offer import REPLY, REQUEST

TEXT = 100_000  # characters that a cell's outputs may have
PICTURES = 4 << 20  # characters of encoded pictures
OUTPUTS = 200  # outputs of a cell
LINES = 200  # of a traceback
MESSAGE = 16 << 20  # bytes of one message, which takes many times as much when it is read
START_SECONDS = 60.0
UNREADABLE, TOO_LONG = "unreadable", "too long"  # stand for the type of such a message
RECONNECT = 5  # milliseconds
SEND_SECONDS = 1.0  # for a kernel to take a message
GRACE = 3.0  # for a cell to end after an interrupt: one that prints may take a second,
SHORTEST = 0.3  # and at least, when patience is over: a busy machine is late
FLOOD = 16 << 20  # characters after which a cell that prints is stopped
# quit() in a cell would end the kernel; the cells below it still count. And what is printed comes
# every .01 s, not .2: a fast loop prints 200 MB in .2 s, which take seconds to send.
FIRST_CELL = """
get_ipython().ask_exit = lambda: None
__import__("course_pkg.remote.offer", fromlist=["offer"]).offer(get_ipython())
__import__("ipykernel.iostream").iostream.OutStream.flush_interval = 0.01
"""


class Outputs:
    """The outputs of a cell, cut as they come.

    Attributes:
        found: what is kept of them.
        size: how many characters came, kept or not.
    """

    def __init__(self):
        self.found: list[NotebookNode] = []
        self.size = 0
        self._left = {"text": TEXT, "pictures": PICTURES}
        self._is_cut = self._says_so = False
        self._clear = False

    def add(self, message: dict) -> None:
        """Take what a message on iopub brings; ignore a malformed one."""
        if message["msg_type"] == TOO_LONG:
            self.size += message["content"]["size"]
            self._is_cut = True
        elif message["msg_type"] == "clear_output":
            self._clear = True
            if not message["content"].get("wait"):
                self._clear_now()
        elif message["msg_type"] in ("stream", "display_data", "execute_result", "error"):
            if self._clear:
                self._clear_now()
            with contextlib.suppress(Exception):  # what the kernel sends is the student's
                self.size += _size(message["content"])
                _shorten(message["content"])
                self._append(output_from_msg(message))
        if self._is_cut and not self._says_so:
            self._says_so = True
            text = "\nThe output of this cell was cut here: it is too long.\n"
            self.found.append(new_output("stream", name="stdout", text=text))

    def _clear_now(self) -> None:
        self.found, self._clear = [], False

    def _append(self, output: NotebookNode) -> None:
        if self._is_cut:
            return
        if output.output_type == "stream":
            output.text = self._take("text", output.text)
            last = self.found[-1] if self.found else None
            if last is not None and last.output_type == "stream" and last.name == output.name:
                last.text += output.text
                return
        elif output.output_type == "error":
            output.ename = whole(output.ename[:200])
            output.evalue = self._take("text", output.evalue)
            output.traceback = [self._take("text", line) for line in output.traceback]
        else:
            for kind, value in list(output.data.items()):
                purse = "pictures" if kind.startswith("image/") else "text"
                if len(value) > self._left[purse]:
                    self._take(purse, value)
                    return
                self._left[purse] -= len(value)
        self.found.append(output)
        if len(self.found) > OUTPUTS:
            self._is_cut = True

    def _take(self, purse: str, text: str) -> str:
        if len(text) <= self._left[purse]:
            self._left[purse] -= len(text)
            return whole(text)
        taken, self._left[purse] = text[: self._left[purse]], 0
        self._is_cut = True
        return whole(taken)


def _size(content: dict) -> int:
    """Count the characters that an output brings."""
    texts = [content.get("text", ""), *content.get("data", {}).values()]
    return sum(len(text) for text in texts if isinstance(text, str))


def _shorten(content: dict) -> None:
    """Leave out what no output of a cell needs, before anything looks at it closely.

    Of a text that is too long one character more than is kept stays: the output is cut there.
    """
    if isinstance(content.get("text"), str):
        content["text"] = content["text"][: TEXT + 1]
    if "data" in content:
        found = [(k, v[: PICTURES + 1]) for k, v in content["data"].items() if isinstance(v, str)]
        content["data"] = {whole(k): whole(v) for k, v in found}
    if "traceback" in content:
        content["traceback"] = content["traceback"][:LINES]
    content["metadata"] = {}


def ran_for(seconds: float, processor: float = math.inf) -> str:
    """Say that a cell took more than it may."""
    its_processor = f", or {round(processor, 1):g} s of processor time" * (processor < math.inf)
    return f"it ran for more than {round(seconds, 1):g} s{its_processor}"


def start(assignment: str, files: Path | None = None) -> "Kernel":
    """Start a kernel, warm where this machine permits namespaces within namespaces."""
    try:
        return Kernel(assignment, files, is_warm=_warm_works(assignment))
    except TemplateEnded:  # the next kernel makes a new one
        return Kernel(assignment, files)


@functools.cache
def _warm_works(assignment: str) -> bool:
    """Try once for each assignment; a cold kernel is as safe, and slower."""
    sandbox.demand()
    try:
        with Kernel(assignment, is_warm=True) as kernel:
            return not kernel.run("1 + 1", START_SECONDS)[1]
    except (TemplateEnded, KernelDied):
        return False


class Kernel:
    """The kernel of one submission, in a sandbox of its own.

    Args:
        assignment: its name.
        files: a folder with the files that came with the notebook.
        is_warm: whether to fork it from a warm process.
    Raises:
        SandboxMissing: this machine cannot run one.
        KernelDied: it does not start.
    """

    def __init__(self, assignment: str, files: Path | None = None, is_warm: bool = False):
        specs = SandboxKernels(assignment, files, is_warm)
        self._manager = KernelManager(
            kernel_name=NAME, kernel_spec_manager=specs, transport="ipc", shutdown_wait_time=0
        )
        self._manager.start_kernel()
        provisioner = self._manager.provisioner
        assert isinstance(provisioner, SandboxProvisioner) and provisioner.sockets is not None
        self._provisioner = provisioner
        self._is_killed = False
        self.sockets = provisioner.sockets  # a folder that the sandbox and the grader share
        self._client = self._manager.client()
        # The kernel opens its sockets .1 s from now; 0MQ would look again .1 s after each try.
        self._client.context.setsockopt(zmq.RECONNECT_IVL, RECONNECT)
        try:
            self._client.start_channels(hb=False)
            # Sockets that the student's code has broken take nothing, and sending would wait.
            for channel in (self._client.shell_channel, self._client.control_channel):
                channel.socket.setsockopt(zmq.SNDTIMEO, int(1000 * SEND_SECONDS))
            self._wait_for_welcome()
            self.settle(self.submit(FIRST_CELL), START_SECONDS)
        except BaseException as error:
            reason = self.reason or str(error)
            self.kill()
            if isinstance(error, KernelDied):
                raise KernelDied(f"the kernel does not start: {reason}") from None
            raise

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *exception) -> None:
        self.kill()

    def end_process(self) -> None:
        """End the sandbox, from whatever thread; whoever talks to the kernel will notice."""
        self._provisioner.kill_now()

    @property
    def pid(self) -> int:
        """The process below which all runs that its code starts."""
        assert self._provisioner.process is not None  # it has been started
        return self._provisioner.process.pid

    @property
    def reason(self) -> str | None:
        """Why the watch has ended the kernel, if it has."""
        watch = self._provisioner.watch
        return watch.reason if watch else None

    @property
    def is_alive(self) -> bool:
        """Say whether it still runs; one that was killed does not, however long its end takes."""
        return self._runs() and not self._is_killed

    def run(
        self,
        source: str,
        seconds: float,
        processor: float = math.inf,
        grace: float = GRACE,
    ) -> tuple[list[NotebookNode], str]:
        """Run a cell.

        Args:
            source: its source.
            seconds: the time that it has.
            processor: how much of its processors' time it may use in it.
            grace: seconds that it has to end once it has been interrupted.
        Returns:
            The outputs, and why it was stopped; empty if it ran to its end.
        Raises:
            KernelDied: it ended the kernel, or did not stop when told to.
        """
        outputs = Outputs()
        request = self.submit(source, store_history=True)
        if self.settle(request, seconds, outputs, processor, FLOOD):
            return outputs.found, ""
        why = ran_for(seconds, processor)
        if outputs.size > FLOOD:
            why = f"it printed more than {FLOOD >> 20} MB"
        self.interrupt()
        if not self.settle(request, grace, outputs):
            self.kill()
            raise KernelDied(f"{why}, and could not be interrupted")
        return outputs.found, why

    def submit(self, source: str, *, store_history: bool = False) -> str:
        """Send a cell to the kernel, and return the number of the request.

        Raises:
            KernelDied: it takes no requests.
        """
        with self._sending():
            return self._client.execute(
                source,
                silent=not store_history,
                store_history=store_history,
                allow_stdin=False,
                stop_on_error=False,
            )

    def serve(self, address: str) -> str:
        """Let the kernel fork a process that answers at an address; return the request's number.

        Args:
            address: a unix socket, which listens.
        Raises:
            KernelDied: it takes no requests.
        """
        message = self._client.session.msg(REQUEST, {"address": address})
        with self._sending():
            self._client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def settle(
        self,
        request: str,
        seconds: float,
        outputs: Outputs | None = None,
        processor: float = math.inf,
        most: float = math.inf,
    ) -> bool:
        """Wait until a request is done, and collect its outputs.

        Args:
            request: its number.
            seconds: how long to wait.
            outputs: takes its outputs.
            processor: how much of its processors' time it may use meanwhile.
            most: how many characters its outputs may have.
        Returns:
            Whether it is done within these bounds.
        Raises:
            KernelDied: the kernel has ended.
        """
        self._demand_alive()
        deadline = time.monotonic() + seconds
        shell, iopub = self._client.shell_channel.socket, self._client.iopub_channel.socket
        poller = zmq.Poller()
        poller.register(shell, zmq.POLLIN)
        poller.register(iopub, zmq.POLLIN)
        replied = idle = False
        meter = Meter(self.pid, processor)
        while not (replied and idle):
            left = deadline - time.monotonic()
            is_flood = outputs is not None and outputs.size > most
            if left <= 0 or meter.is_over or is_flood:
                return replied  # a flood has cost the message that says "idle"
            ready = dict(poller.poll(int(min(left, 0.2) * 1000)))
            if not ready and not self.is_alive:
                raise KernelDied(self.reason or "it ended its Python process")
            if iopub in ready and (message := self._receive(iopub, request)):
                if message["msg_type"] == "status":
                    idle = idle or message["content"].get("execution_state") == "idle"
                elif outputs is not None:
                    outputs.add(message)
            if shell in ready and (message := self._receive(shell, request)):
                if message["msg_type"] in (UNREADABLE, TOO_LONG):  # the reply to anything
                    self.kill()
                    raise KernelDied("its replies cannot be read")
                if message["msg_type"] in ("execute_reply", REPLY) and not replied:
                    replied = True
                    deadline = min(deadline, time.monotonic() + 2.0)
        return True

    def interrupt(self) -> None:
        """Interrupt what the kernel is doing, as Jupyter's stop button does."""
        message = self._client.session.msg("interrupt_request", content={})
        with contextlib.suppress(zmq.Again):  # then it does not end in time, and is killed
            self._client.control_channel.send(message)

    def kill(self) -> None:
        """End the kernel and all that it has started."""
        self._is_killed = True
        with contextlib.suppress(Exception):
            self._client.stop_channels()
        self._provisioner.kill_now()
        self._wait_for_end()
        with contextlib.suppress(Exception):
            self._manager.cleanup_resources()
        self._manager.context.destroy(linger=0)

    def _runs(self) -> bool:
        process = self._provisioner.process
        return process is not None and process.poll() is None

    @contextlib.contextmanager
    def _sending(self) -> Iterator[None]:
        """Send a request in the block; a kernel that does not take it is of no use."""
        self._demand_alive()
        try:
            yield
        except zmq.Again:
            self.kill()
            raise KernelDied("it takes no requests") from None

    def _demand_alive(self) -> None:
        if self._is_killed:
            raise KernelDied(self.reason or "it was ended before")

    def _wait_for_end(self) -> None:
        """Wait a moment for a kernel that was killed, more closely than its manager does."""
        deadline = time.monotonic() + 1.0
        while self._runs() and time.monotonic() < deadline:
            time.sleep(0.002)

    def _wait_for_welcome(self) -> None:
        """Wait until what the kernel publishes arrives here: before that, it would be lost."""
        deadline = time.monotonic() + START_SECONDS
        while not self._client.iopub_channel.socket.poll(200):  # it says "iopub_welcome" first
            if not self.is_alive:
                raise KernelDied("it ended its Python process")
            if time.monotonic() > deadline:
                raise KernelDied(f"it does not answer within {START_SECONDS:g} s")

    def _receive(self, socket: zmq.Socket, request: str) -> dict | None:
        """Read one message, unless it is too long; None if it belongs to another request."""
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            if (size := sum(map(len, frames))) > MESSAGE:
                return {"msg_type": TOO_LONG, "content": {"size": size}}
            _, parts = self._client.session.feed_identities([frame.bytes for frame in frames])
            # After the signature and before buffers, as jupyter_client.session sends them; dates,
            # which it looks for in every message, are not needed.
            header, parent, _, content = map(json.loads, parts[1:5])
            if parent.get("msg_id") != request:
                return None
            if isinstance(header["msg_type"], str) and isinstance(content, dict):
                return {"header": header, "msg_type": header["msg_type"], "content": content}
        except zmq.Again:
            return None
        except Exception:  # whatever the sandbox sends must not end the grader
            pass
        return {"msg_type": UNREADABLE, "content": {}}
