"""The server: clients come and go, and one engine serves all of them, step by step."""

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler

from course_pkg.engine.requests import NoNumbers
from course_pkg.gpt import BPETokenizer
from course_pkg.http.metrics import Metrics
from course_pkg.http.protocol import (
    CompletionRequest,
    CompletionResponse,
    Limits,
    Refused,
    no_model,
    parse,
    usage,
)
from course_pkg.http.text import Detokenizer

PATIENCE = 5.0  # seconds that clients who are told that the server closes have to hear it


class News(NamedTuple):
    """What is new of one sequence.

    Attributes:
        place: of the sequence among those that a client has asked for.
        tokens: what has been added.
        reason: why it has ended: "length" or "stop"; None if it has not.
        error: why it has ended without being complete.
    """

    place: int
    tokens: list[int]
    reason: str | None = None
    error: Refused | None = None


class Listener:
    """Who waits for the tokens of a sequence, and when it got the last ones.

    Args:
        place: as in `News`.
        news: where to put them.
        since: when it began to wait.
    """

    def __init__(self, place: int, news: asyncio.Queue, since: float):
        self.place, self.news, self.since, self.is_first = place, news, since, True


class Server:
    """Let clients submit to an engine, and hand out the tokens of every step.

    Whoever touches the engine holds `lock`. Steps are made in a thread of their own: clients can
    come and go meanwhile, and no step waits while requests are read.

    Args:
        engine: an `Engine` of serving.
        tokenizer: of its model.
        name: what clients call the model.
        queue: how many sequences may wait to run.
    """

    def __init__(self, engine: Any, tokenizer: BPETokenizer, name: str, queue: int = 256):
        self.engine, self.tokenizer, self.name, self.queue = engine, tokenizer, name, queue
        self.metrics = Metrics(engine)
        self.listeners: dict[int, Listener] = {}
        self.lock, self.has_work = asyncio.Lock(), asyncio.Event()
        self.stepping = ThreadPoolExecutor(1)
        self.answers = itertools.count()
        self.handlers: set[Any] = set()  # those who serve a client's request

    async def read(self, body: bytes, is_chat: bool) -> CompletionRequest:
        """Understand a request, in another thread: others need not wait for a long one.

        Raises:
            Refused: see `parse`.
        """
        limits = Limits(self.engine.runner.model.context, self.queue)
        given = body, is_chat, self.name, self.tokenizer, limits
        return await asyncio.get_running_loop().run_in_executor(None, parse, *given)

    async def submit(self, wanted: CompletionRequest, news: asyncio.Queue) -> list[int]:
        """Let the samples of a request wait for their turn.

        Returns:
            The numbers of their sequences. What is new of them is put into `news`.
        Raises:
            Refused: they can never be served, or too many wait already.
        """
        loop, numbers = asyncio.get_running_loop(), []
        since = loop.time()
        samples = [
            (prompt, wanted.sampling._replace(seed=wanted.sampling.seed + k))
            for prompt in wanted.prompts
            for k in range(wanted.n)
        ]
        async with self.lock:
            if len(self.engine.scheduler.waiting) + len(samples) > self.queue:
                raise Refused(f"{self.queue} sequences may wait, try again later", status=429)
            try:
                for each in samples:
                    numbers.append(self.engine.add(*each))
            except Exception as error:
                self.engine.withdraw(numbers)
                if not isinstance(error, ValueError):
                    raise
                raise Refused(str(error)) from error
            for place, number in enumerate(numbers):
                self.listeners[number] = Listener(place, news, since)
        self.metrics.asked.inc(sum(map(len, wanted.prompts)))
        self.has_work.set()
        return numbers

    async def leave(self, numbers: list[int], reason: str = "abort") -> None:
        """End what has not ended of some sequences: nobody waits for them any more."""
        async with self.lock:
            for number in numbers:
                if self.listeners.pop(number, None):
                    self.engine.withdraw([number])
                    self.metrics.ended.labels(reason).inc()

    async def run(self) -> None:
        """Make steps as long as somebody waits for tokens; for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self.has_work.wait()
            async with self.lock:
                try:
                    await loop.run_in_executor(self.stepping, self.engine.step)
                    self._hand_out(loop.time())
                except Exception as error:
                    self._fail(error)
                if not self.listeners:
                    self.has_work.clear()

    def _fail(self, error: Exception) -> None:
        """Take those for whom a step has failed out of the engine, and tell them: one, or all."""
        one = error.seq_id if isinstance(error, NoNumbers) else None
        numbers = [one] if one in self.listeners else list(self.listeners)
        told = Refused(f"{type(error).__name__}: {error}", status=500)
        for number in numbers:
            self._tell(self.listeners.pop(number), told)
            self.metrics.ended.labels("error").inc()
        for number in numbers:
            with suppress(Exception):  # an engine that is broken may fail at this too
                self.engine.withdraw([number])

    @staticmethod
    def _tell(listener: Listener, error: Refused) -> None:
        listener.news.put_nowait(News(listener.place, [], error=error))

    async def close(self) -> None:
        """Tell all who wait that the server closes, and let them hear it."""
        closes = Refused("the server closes: the answer is not complete", status=503)
        for listener in self.listeners.values():
            self._tell(listener, closes)
        if self.handlers:
            await asyncio.wait(self.handlers, timeout=PATIENCE)

    def _hand_out(self, now: float) -> None:
        """Hand out the tokens of the last step."""
        for number, listener in list(self.listeners.items()):
            tokens = [token for _, token in self.engine.take(number)]
            if not tokens:
                continue
            reason = self.engine.sequences[number].reason
            listener.news.put_nowait(News(listener.place, tokens, reason))
            measured = self.metrics.first if listener.is_first else self.metrics.gaps
            measured.observe(now - listener.since)
            listener.since, listener.is_first = now, False
            self.metrics.added.inc(len(tokens))
            if reason is not None:
                self.metrics.ended.labels(reason).inc()
                self.engine.collect([number])
                del self.listeners[number]

    def application(self) -> Application:
        """Give the addresses under which clients find all this."""
        routes: list[tuple] = [
            ("/v1/completions", Completions),
            ("/v1/chat/completions", ChatCompletions),
            ("/v1/models(?:/(.+))?", Models),
            ("/metrics", Exported),
        ]
        return Application(
            routes, server=self, default_handler_class=Nothing, log_function=lambda handler: None
        )


class Handler(RequestHandler):
    """Answer a request; also errors are JSON, in the form of OpenAI's."""

    @property
    def server(self) -> Server:
        return self.settings["server"]

    def refuse(self, error: Refused) -> None:
        """Tell why a request is not served."""
        self.set_status(error.status)
        self.finish(error.body)

    def write_error(self, status_code: int, **named: Any) -> None:
        _, error, _ = named.get("exc_info", (None, None, None))
        where = f"{self.request.method} {self.request.path}"
        if isinstance(error, Refused):
            self.refuse(error)
        elif isinstance(error, HTTPError):
            self.refuse(Refused(f"{where}: {self._reason}", status=status_code))
        else:
            self.refuse(Refused(f"{where}: {type(error).__name__}: {error}", status=status_code))

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, Refused):
            super().log_exception(kind, error, trace)


class Nothing(Handler):
    """Say that there is nothing at an address."""

    def prepare(self) -> None:
        raise HTTPError(404)


class Completions(Handler):
    """Continue prompts."""

    is_chat = False

    def prepare(self) -> None:
        self.news: asyncio.Queue[News | None] = asyncio.Queue()

    def on_connection_close(self) -> None:
        self.news.put_nowait(None)

    async def post(self) -> None:
        """Serve one request."""
        server, task = self.server, asyncio.current_task()
        server.handlers.add(task)
        try:
            wanted = await server.read(self.request.body, self.is_chat)
            await self._serve(wanted, await server.submit(wanted, self.news))
        finally:
            server.handlers.discard(task)

    async def _serve(self, wanted: CompletionRequest, numbers: list[int]) -> None:
        """Answer, and leave when that is done or cannot be done."""
        server = self.server
        response = CompletionResponse(
            next(server.answers), server.name, self.is_chat, wanted.streams
        )
        try:
            await self._answer(wanted, response, numbers)
        except StreamClosedError:
            pass  # the client has left in the middle of a piece
        except Refused as error:
            await self._break_off(error)
        except Exception as error:
            await self._break_off(Refused(f"{type(error).__name__}: {error}", status=500))
        finally:
            await server.leave(numbers)

    async def _answer(
        self, wanted: CompletionRequest, response: CompletionResponse, numbers: list[int]
    ) -> None:
        """Write what comes, until all samples have ended or the client has left."""
        detokenizers = [
            Detokenizer(self.server.tokenizer, wanted.stops, wanted.least) for _ in numbers
        ]
        texts, reasons = [""] * len(numbers), dict.fromkeys(range(len(numbers)))
        added, is_first = 0, [True] * len(numbers)
        if wanted.streams:
            self.set_header("Content-Type", "text/event-stream")
        while None in reasons.values():
            if (news := await self.news.get()) is None:
                return
            place, tokens, reason, error = news
            if error is not None:
                raise error
            detokenizer, added = detokenizers[place], added + len(tokens)
            text = detokenizer.write(tokens, is_last=reason is not None)
            if detokenizer.has_stopped:
                reason = "stop"
                await self.server.leave([numbers[place]], reason)
            reasons[place], texts[place] = reason, texts[place] + text
            if wanted.streams and (text or reason):
                choice = response.choice(place, text, reason, is_first[place])
                await self._piece(response.body([choice]))
                is_first[place] = False
        counts = usage(sum(map(len, wanted.prompts)), added)
        if not wanted.streams:
            choices = [response.choice(n, text, reasons[n]) for n, text in enumerate(texts)]
            self.finish(response.body(choices, counts))
            return
        if wanted.wants_usage:
            await self._piece(response.body([], counts))
        self.write("data: [DONE]\n\n")
        self.finish()

    async def _piece(self, body: dict) -> None:
        """Send an event of a stream."""
        self.write(f"data: {json.dumps(body)}\n\n")
        await self.flush()

    async def _break_off(self, error: Refused) -> None:
        """Tell why there is no answer, or end a stream so that it does not look complete."""
        if not self._headers_written:
            self.refuse(error)
            return
        with suppress(StreamClosedError):
            await self._piece(error.body)
        self.detach().close()  # without the last chunk


class ChatCompletions(Completions):
    """Answer messages."""

    is_chat = True


class Models(Handler):
    """Tell which models there are, or about one."""

    def get(self, name: str | None = None) -> None:
        model = {"id": self.server.name, "object": "model", "created": 0, "owned_by": "course"}
        if name not in (None, self.server.name):
            raise no_model(name, self.server.name)
        self.finish({"object": "list", "data": [model]} if name is None else model)


class Exported(Handler):
    """Tell how the engine is doing."""

    async def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        async with self.server.lock:
            self.finish(generate_latest(self.server.metrics.registry))


async def serve(
    engine: Any,
    tokenizer: BPETokenizer,
    name: str,
    port: int,
    queue: int,
    is_open: Any,
    ends: asyncio.Event,
) -> None:
    """Serve clients on this machine until an event is set.

    Args:
        engine, tokenizer, name, queue: see `Server`.
        port: where; any free one when 0.
        is_open: called with the address as soon as clients may come.
        ends: when it is set, all who wait are left.
    """
    server = Server(engine, tokenizer, name, queue)
    listening, sockets = HTTPServer(server.application()), bind_sockets(port, "127.0.0.1")
    listening.add_sockets(sockets)
    steps = asyncio.create_task(server.run())
    is_open(f"http://127.0.0.1:{sockets[0].getsockname()[1]}")
    try:
        await ends.wait()
    finally:  # also when it is cancelled, as by an interrupt
        listening.stop()
        await server.close()
        await listening.close_all_connections()
        await server.leave(list(server.listeners))
        steps.cancel()
        server.stepping.shutdown()


@contextmanager
def background(
    engine: Any, tokenizer: BPETokenizer, name: str, port: int = 0, queue: int = 256
) -> Iterator[str]:
    """Serve clients in a thread of its own, while the block of a with statement runs.

    Example:
        >>> with background(Engine(shipped(), EngineConfig(64)), tokenizer, "target") as address:
        ...     client = openai.OpenAI(base_url=address + "/v1", api_key="none")

    Args:
        engine: an `Engine` of serving, which nobody else touches meanwhile.
        tokenizer: of its model.
        name: what clients call the model.
        port: where; any free one when 0.
        queue: how many sequences may wait to run; who comes then is told to try again later.
    Yields:
        The address, such as http://127.0.0.1:8000.
    """
    opened: list[Any] = []
    is_open = threading.Event()

    async def main() -> None:
        ends = asyncio.Event()

        def note(address: str) -> None:
            opened.extend([address, asyncio.get_running_loop(), ends])
            is_open.set()

        try:
            await serve(engine, tokenizer, name, port, queue, note, ends)
        except OSError as error:
            opened.append(error)
            is_open.set()

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    is_open.wait()
    if isinstance(opened[0], OSError):
        raise opened[0]
    address, loop, ends = opened
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join()
