"""Hostile clients: each gets its answer as JSON, and those beside it and after it get theirs."""

import http.client
import json
import random
import re
import signal
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import openai
import pytest
import torch

from autograder.assignment import ROOT
from course_pkg.data import small_llama
from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.gpt import BPETokenizer
from course_pkg.http import background
from course_pkg.http.__main__ import engine_of, main, try_out
from course_pkg.http.text import Detokenizer
from course_pkg.inference.models import shipped
from course_pkg.serving import Engine

TEXT, CHAT, MODELS = "/v1/completions", "/v1/chat/completions", "/v1/models"
BLOCKS, QUEUE, LENGTH = 96, 70, 12


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    return BPETokenizer(small_llama.merges())


@pytest.fixture(scope="module")
def model():
    return shipped("draft").double()  # so that nobody's tokens depend on who else is in the batch


@pytest.fixture(scope="module")
def engine(model) -> Engine:
    return Engine(model, EngineConfig(BLOCKS, block_size=4, max_num_seqs=24))


@pytest.fixture(scope="module")
def address(engine, tokenizer):
    with background(engine, tokenizer, "draft", queue=QUEUE) as address:
        yield address


@pytest.fixture(scope="module")
def said(model, tokenizer) -> dict[str, str]:
    """Give what an engine says to one who is alone."""
    prompts = ["## numpy.", "## torch."]
    tokens = [tokenizer.encode(prompt.encode()) for prompt in prompts]
    outputs = Engine(model, EngineConfig(BLOCKS, 4)).generate(tokens, SamplingParams(LENGTH))
    texts = [tokenizer.decode(output.tokens[0]).decode(errors="replace") for output in outputs]
    return dict(zip(prompts, texts, strict=True))


def ask(address: str, path: str, body: object = None, method: str = "POST", kind: str = "json"):
    """Send a request; bytes go as they are. The status, the type, and the answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    sent = body if isinstance(body, bytes) or body is None else json.dumps(body)
    connection.request(method, path, sent, {"Content-Type": kind})
    response = connection.getresponse()
    given = response.status, response.headers["Content-Type"], response.read()
    connection.close()
    return given


def completion(**fields: object) -> dict:
    return {"model": "draft", "prompt": "a", "max_tokens": 2} | fields


def chat(*messages: object, **fields: object) -> dict:
    return {"model": "draft", "messages": list(messages), "max_tokens": 2} | fields


def user(content: object, **fields: object) -> dict:
    return {"role": "user", "content": content} | fields


@contextmanager
def others_are_served(address: str, engine: Engine, said: dict[str, str]) -> Iterator[None]:
    """Somebody's stream goes on meanwhile, and somebody else's request is answered afterwards."""
    client = openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0, timeout=60)
    (beside, expected), (after, afterwards) = said.items()
    settings = {"model": "draft", "max_tokens": LENGTH, "temperature": 0}
    stream = client.completions.create(prompt=beside, stream=True, **settings)
    text = next(stream).choices[0].text
    yield
    assert text + "".join(piece.choices[0].text for piece in stream) == expected
    given = client.completions.create(prompt=after, **settings)
    assert given.choices[0].text == afterwards
    ends = time.monotonic() + 30
    while engine.requests or engine.sequences or engine.scheduler.waiting:
        assert time.monotonic() < ends
        time.sleep(0.01)
    assert engine.scheduler.manager.allocator.available == BLOCKS


LETTERS = "".join(random.Random(0).choices(string.ascii_lowercase, k=4000))
DEEP = b"[" * 100_000
SURROGATE = b'{"model": "draft", "max_tokens": 2, %s}'
REFUSED = {
    # seeds
    "seed 2^64": (TEXT, completion(seed=2**64), "seed must lie in"),
    "seed 2^64 - 1, twice": (TEXT, completion(seed=2**64 - 1, n=2), "that of the last sample too"),
    "seed 10^300": (TEXT, completion(seed=10**300), "seed must lie in"),
    "seed -1": (TEXT, completion(seed=-1), "seed must be at least 0"),
    "seed 1.5": (TEXT, completion(seed=1.5), "seed has the wrong type"),
    "seed {}": (CHAT, chat(user("a"), seed={}), "seed has the wrong type"),
    # numbers
    "temperature NaN": (TEXT, completion(temperature=float("nan")), "temperature must be from"),
    "temperature inf": (TEXT, completion(temperature=float("inf")), "temperature must be from"),
    "temperature < 0": (TEXT, completion(temperature=-1e-9), "temperature must be from"),
    "temperature '1'": (TEXT, completion(temperature="1"), "wrong type"),
    "top_p NaN": (TEXT, completion(top_p=float("nan")), "top_p must be from"),
    "top_k -2": (TEXT, completion(top_k=-2), "top_k must be at least -1"),
    "top_k 1.5": (TEXT, completion(top_k=1.5), "top_k has the wrong type"),
    "min_p 2": (TEXT, completion(min_p=2), "min_p must be from 0 to 1"),
    "min_tokens 3 of 2": (TEXT, completion(min_tokens=3), "no more than 2 are added"),
    "max_tokens inf": (TEXT, completion(max_tokens=float("inf")), "wrong type"),
    "max_tokens 10^30": (TEXT, completion(max_tokens=10**30), "exceed the context"),
    "5000 digits": (TEXT, b'{"max_tokens": ' + b"9" * 5000 + b"}", "is not JSON"),
    # what can never fit
    "n 10^6": (TEXT, completion(n=10**6), "1000000 sequences are more than may ever wait, 70"),
    "n 10^30": (CHAT, chat(user("a"), n=10**30), "more than may ever wait"),
    "n 71": (TEXT, completion(n=QUEUE + 1), "more than may ever wait"),
    "n 36 of 2": (TEXT, completion(n=36, prompt=["a", "b"]), "more than may ever wait"),
    "10^5 prompts": (TEXT, completion(prompt=["word " * 9] * 10**5), "more than may ever wait"),
    "10^6 words": (TEXT, completion(prompt="word " * 10**6), "bytes exceed the context"),
    "70 words of 4000": (TEXT, completion(prompt=[LETTERS] * QUEUE), "tokens exceed the context"),
    "3000 letters": (TEXT, completion(prompt="qx" * 1500), "exceed the context"),
    "a long chat": (CHAT, chat(*[user("word " * 10)] * 999), "exceed the context"),
    # texts and tokens
    "no prompt": (TEXT, {"model": "draft"}, "prompt must be"),
    "prompt {}": (TEXT, completion(prompt={}), "prompt must be"),
    "prompt [[]]": (TEXT, completion(prompt=[[]]), "prompt must be"),
    "token 2048": (TEXT, completion(prompt=[1, 2048]), "tokens below 2048"),
    "token 10^30": (TEXT, completion(prompt=[10**30]), "tokens below 2048"),
    "token -1": (TEXT, completion(prompt=[-1]), "tokens below 2048"),
    "token true": (TEXT, completion(prompt=[True]), "tokens below 2048"),
    "half a character": (TEXT, SURROGATE % rb'"prompt": "\ud83d a"', "half of a character"),
    "half, of two": (TEXT, SURROGATE % rb'"prompt": ["a", "\ude00"]', "half of a character"),
    "half, in a stop": (TEXT, completion(stop=["\ud83d"]), "half of a character"),
    "half, in a chat": (CHAT, chat(user("\ud83d")), "half of a character"),
    "half, in a name": (TEXT, completion(**{"\ud83d": 1}), "no field that is known"),
    "stop 5": (TEXT, completion(stop=5), "stop has the wrong type"),
    "stop [5]": (TEXT, completion(stop=[5]), "stop must be"),
    # messages
    "content ['hi']": (CHAT, chat(user(["hi"])), "must have a text as its content"),
    "content 3": (CHAT, chat(user(3)), "must have a text as its content"),
    "content null": (CHAT, chat(user(None, tool_calls=[])), "must have a text as its content"),
    "no content": (CHAT, chat({"role": "user"}), "must have a text as its content"),
    "text 3": (CHAT, chat(user([{"type": "text", "text": 3}])), "must have a text"),
    "no text": (CHAT, chat(user([{"type": "text"}])), "must have a text"),
    "an image": (
        CHAT,
        chat(user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}])),
        "must have a text as its content, or a list of parts",
    ),
    "a call": (CHAT, chat(user("a", tool_calls=[{"id": "a"}])), "messages with tool_calls"),
    "messages 'hi'": (CHAT, chat() | {"messages": "hi"}, "messages has the wrong type"),
    "messages ['hi']": (CHAT, chat("hi"), "must have a text as its content"),
    "no messages": (CHAT, chat(), "at least one message"),
    # what is not done
    "a prompt in a chat": (CHAT, chat(user("a"), prompt="a"), "prompt is no field that is known"),
    "tool_choice": (CHAT, chat(user("a"), tool_choice="required"), "tool_choice is not supported"),
    "tools": (CHAT, chat(user("a"), tools=[{"type": "function"}]), "tools is not supported"),
    "top_logprobs": (CHAT, chat(user("a"), top_logprobs=3), "top_logprobs is not supported"),
    "logprobs true": (CHAT, chat(user("a"), logprobs=True), "logprobs is not supported"),
    "logprobs 0": (TEXT, completion(logprobs=0), "logprobs is not supported"),
    "repetition_penalty": (TEXT, completion(repetition_penalty=1.5), "is not supported"),
    "echo": (TEXT, completion(echo=True), "echo is not supported"),
    "best_of": (TEXT, completion(best_of=3), "best_of is not supported"),
    "logit_bias": (TEXT, completion(logit_bias={"5": 100}), "logit_bias is not supported"),
    "a schema": (TEXT, completion(guided_json={}), "guided_json is no field that is known"),
    "audio": (CHAT, chat(user("a"), modalities=["audio"]), "modalities is not supported"),
    "nonsense": (TEXT, completion(nonsense=0), "nonsense is no field that is known"),
    # what is no JSON object
    "deep": (TEXT, DEEP, "is not JSON, or nested too deeply"),
    "deep, and closed": (CHAT, DEEP + b"]" * 100_000, "nested too deeply"),
    "deep, inside": (TEXT, b'{"prompt": ' + b'{"a":' * 50_000, "nested too deeply"),
    "{nope": (TEXT, b"{nope", "is not JSON"),
    "no UTF-8": (TEXT, b"\xff\xfe{}", "is not JSON"),
    "nothing": (TEXT, b"", "is not JSON"),
    "[]": (TEXT, b"[]", "must be a JSON object"),
    "null": (CHAT, b"null", "must be a JSON object"),
}  # fmt: skip


def demand_error(given: tuple, status: int, message: str) -> None:
    """Demand an error in the form of OpenAI's."""
    code, kind, body = given
    assert (code, kind) == (status, "application/json; charset=UTF-8"), body[:200]
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert message in error["message"] and len(body) < 1000


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_costs_nobody_else_anything(address, engine, said, name):
    path, body, message = REFUSED[name]
    with others_are_served(address, engine, said):
        demand_error(ask(address, path, body), 400, message)


ELSEWHERE = [
    ("GET", "/", 404),
    ("GET", "/nope", 404),
    ("POST", "/v1/embeddings", 404),
    ("POST", "/v1/responses", 404),
    ("POST", "/v1/completions/", 404),
    ("GET", "/v1/models/other", 404),
    ("GET", "/v1/models/%ff", 400),
    ("GET", TEXT, 405),
    ("OPTIONS", TEXT, 405),
    ("DELETE", "/v1/models/draft", 405),
    ("POST", "/metrics", 405),
]


@pytest.mark.parametrize("method, path, status", ELSEWHERE)
def test_there_is_no_page_of_html(address, engine, said, method, path, status):
    with others_are_served(address, engine, said):
        body = completion() if method == "POST" else None
        demand_error(ask(address, path, body, method), status, "")


def test_a_model_is_told_about_itself(address):
    client = openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0)
    (listed,) = client.models.list()
    assert client.models.retrieve("draft") == listed and listed.id == "draft"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4o', but 'draft'"):
        client.models.retrieve("gpt-4o")
    demand_error(ask(address, TEXT, completion(model="x" * 999)), 404, "there is no model 'xxx")


SMALL = [1e-6, 1e-38, 1e-40, 1e-45, 1e-300, 5e-324]


@pytest.mark.parametrize("temperature", SMALL)
def test_a_small_temperature_takes_the_best_token(address, engine, said, temperature):
    prompt, best = next(iter(said.items()))
    with others_are_served(address, engine, said):
        body = completion(prompt=prompt, max_tokens=LENGTH, temperature=temperature)
        _, _, given = ask(address, TEXT, body)
        assert json.loads(given)["choices"][0]["text"] == best


SAME = [
    {"top_k": 1}, {"min_p": 1}, {"top_p": 1e-6}, {"top_k": 1, "n": 3, "ignore_eos": True},
]  # fmt: skip
HARMLESS = [
    {"top_k": -1}, {"top_k": 0}, {"top_k": 10**30}, {"min_p": 0}, {"repetition_penalty": 1.0},
    {"ignore_eos": True}, {"ignore_eos": False}, {"min_tokens": LENGTH}, {"logprobs": None},
    {"logprobs": False}, {"user": "a"}, {"tool_choice": None, "echo": False, "best_of": 1},
    {"nonsense": None}, {"seed": 5, "store": True, "metadata": {"a": "b"}},
]  # fmt: skip


def texts_of(address: str, **fields: object) -> list[str]:
    status, _, body = ask(address, TEXT, completion(max_tokens=LENGTH, **fields))
    assert status == 200, body
    return [choice["text"] for choice in json.loads(body)["choices"]]


@pytest.mark.parametrize("fields", SAME, ids=str)
def test_what_leaves_one_token_takes_the_best_one(address, said, fields):
    prompt, best = next(iter(said.items()))
    given = texts_of(address, prompt=prompt, temperature=1.5, **fields)
    assert given == [best] * len(given)


@pytest.mark.parametrize("fields", HARMLESS, ids=str)
def test_what_changes_nothing_is_accepted(address, fields):
    settings = {"prompt": "## numpy.", "temperature": 0.9, "seed": 5}
    assert texts_of(address, **settings | fields) == texts_of(address, **settings)


def test_min_p_leaves_out_what_is_improbable(address, model, tokenizer):
    tokens, settings = tokenizer.encode(b"## numpy."), {"temperature": 1.5, "seed": 5}
    drawn = SamplingParams(LENGTH, min_p=0.2, **settings)
    (output,) = Engine(model, EngineConfig(BLOCKS, 4)).generate([tokens], drawn)
    expected = tokenizer.decode(output.tokens[0]).decode(errors="replace")
    given = [texts_of(address, prompt=tokens, min_p=p, **settings) for p in (0.2, 0)]
    assert given[0] == [expected] != given[1]


def test_a_stop_text_counts_after_min_tokens(address, model, tokenizer):
    prompt = tokenizer.encode(b"## numpy.")
    (output,) = Engine(model, EngineConfig(BLOCKS, 4)).generate([prompt], SamplingParams(LENGTH))
    stop = tokenizer.decode(output.tokens[0])[:1].decode()
    for least in (0, 1, 9, LENGTH):
        parts = output.tokens[0][:least], output.tokens[0][least:]
        early, late = (tokenizer.decode(part).decode() for part in parts)
        fields = {"prompt": prompt, "temperature": 0, "stop": stop, "min_tokens": least}
        assert texts_of(address, **fields) == [early + late.partition(stop)[0]]
    tokens = list("aébbé".encode())  # the first 256 tokens are the bytes
    writer = Detokenizer(tokenizer, ["b", "é"], least=4)
    assert writer.write(tokens[:2]) + writer.write(tokens[2:4]) == "aéb"
    assert writer.write(tokens[4:]) == "" and writer.has_stopped


def test_json_is_read_whatever_it_is_called(address):
    body = completion(prompt="&".join(["a=%zz"] * 30))
    for kind in ("application/x-www-form-urlencoded", "text/plain", "a"):
        assert ask(address, TEXT, body, kind=kind)[0] == 200
    demand_error(ask(address, TEXT, body, kind="multipart/form-data"), 400, "Bad Request")


def test_a_model_that_fails_for_one_fails_for_one_alone(address, engine, said, monkeypatch):
    draw, no_numbers = engine.draw, torch.full((2048,), float("nan"))

    def draw_for(number: int, row: torch.Tensor):
        is_it = engine.sequences[number].sampling.seed == 666
        return draw(number, no_numbers if is_it else row)

    monkeypatch.setattr(engine, "draw", draw_for)
    with others_are_served(address, engine, said):
        demand_error(ask(address, TEXT, completion(seed=666)), 500, "NoNumbers: the model gives")
        with pytest.raises(openai.APIError, match="NoNumbers"):
            client = openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0)
            list(client.completions.create(**completion(seed=666, stream=True)))


@pytest.mark.parametrize("broken", ["add", "step", "take", "withdraw"])
def test_an_engine_that_is_broken_is_told_to_all_and_mended(
    address, engine, said, monkeypatch, broken
):
    """As that of a notebook may be; nobody waits for ever."""

    def fail(*_):
        raise NotImplementedError("not written yet")

    with monkeypatch.context() as patch:
        patch.setattr(engine, broken, fail)
        if broken == "withdraw":
            patch.setattr(engine, "step", fail)
        given = ask(address, TEXT, completion())
        demand_error(given, 500, "NotImplementedError: not written yet")
    for number in list(engine.requests):
        engine.withdraw([number])
    with others_are_served(address, engine, said):
        pass


def test_a_stream_that_breaks_off_does_not_look_complete(address, engine, said, monkeypatch):
    take = engine.take

    def beyond(number: int) -> list[tuple[int, int]]:
        """Hand out, as the second token of one client, one that is in no vocabulary."""
        found, sequence = take(number), engine.sequences[number]
        is_it = sequence.sampling.seed == 666 and sequence.taken == 2
        return [(0, 10**6) for _ in found] if is_it else found

    monkeypatch.setattr(engine, "take", beyond)
    with others_are_served(address, engine, said):
        with pytest.raises(http.client.IncompleteRead) as caught:
            ask(address, TEXT, completion(prompt="## numpy.", seed=666, stream=True))
        assert b"IndexError" in caught.value.partial and b"[DONE]" not in caught.value.partial


@contextmanager
def served(*options: str) -> Iterator[tuple[subprocess.Popen, str]]:
    command = [sys.executable, "-m", "course_pkg.http", "--model", "draft", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, *options], cwd=ROOT, **pipes) as process:
        yield process, re.match(r"curl (http://\S+)/v1/", process.stdout.readline())[1]


def test_an_interrupt_in_a_stream_is_told_to_all_who_wait():
    with served() as (process, address):
        connections = [http.client.HTTPConnection(urlsplit(address).netloc) for _ in range(2)]
        for connection, streams in zip(connections, (True, False), strict=True):
            body = completion(max_tokens=250, stream=streams)
            connection.request("POST", TEXT, json.dumps(body))
        response = connections[0].getresponse()
        assert response.read1(10).startswith(b"data: {")
        process.send_signal(signal.SIGINT)
        with pytest.raises(http.client.IncompleteRead) as caught:
            response.read()
        assert b"the server closes: the answer is not complete" in caught.value.partial
        assert b"[DONE]" not in caught.value.partial
        response = connections[1].getresponse()
        assert response.status == 503 and b"the server closes" in response.read()
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (0, "closed\n", "")


def notebook_of(folder, *lines: str):
    path, cell = folder / "own.ipynb", {"cell_type": "code", "source": "\n".join(lines)}
    path.write_text(json.dumps({"cells": [cell]}))
    return path


BEGUN = "class Engine(serving.Engine):", "    def step(self):"
FAULTY = [
    ((*BEGUN, "        raise NotImplementedError()"), "yet: Engine.step is not written"),
    ((*BEGUN, "        return 1 / 0"), "its Engine fails at a first request: ZeroDivisionError"),
    (BEGUN, "its definitions fail: IndentationError"),
    (("import no_such_module",), "its definitions fail: ModuleNotFoundError"),
    (("class Motor: pass",), "defines no Engine"),
]


@pytest.mark.parametrize("lines, told", FAULTY)
def test_a_notebook_that_cannot_serve_is_told_in_one_sentence(tmp_path, model, lines, told):
    path = notebook_of(tmp_path, "from course_pkg import serving", *lines)
    with pytest.raises(SystemExit) as caught:
        try_out(engine_of(path), model, path)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_no_notebook_is_told_in_one_sentence(tmp_path):
    for text in ("", "[]", "{}", '{"cells": 3}'):
        path = tmp_path / "own.ipynb"
        path.write_text(text)
        with pytest.raises(SystemExit, match="cannot be read as a notebook"):
            engine_of(path)
    with pytest.raises(SystemExit, match="cannot be read as a notebook"):
        engine_of(tmp_path / "other.ipynb")


def test_the_unsolved_notebook_of_serving_is_told_what_is_missing(monkeypatch):
    notebook = ROOT / "notebooks" / "14_serving" / "14_serving.ipynb"
    monkeypatch.setattr(sys, "argv", ["serve", "--notebook", str(notebook)])
    with pytest.raises(SystemExit) as caught:
        main()
    told = f"{notebook}: its Engine cannot serve yet: ChunkedScheduler.__init__ is not written; "
    assert str(caught.value) == told + "write what it needs, then try again"
