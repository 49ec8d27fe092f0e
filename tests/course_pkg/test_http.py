"""The server: the official client finds what it expects, and nobody costs anybody else a token."""

import http.client
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import openai
import pytest

from autograder.assignment import ROOT
from course_pkg.data import small_llama
from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.gpt import BPETokenizer
from course_pkg.http import background
from course_pkg.http.__main__ import main
from course_pkg.http.text import Detokenizer
from course_pkg.inference.models import shipped
from course_pkg.serving import Engine

PROMPT = "## numpy.moving_average(a, width, axis=-1)\n\n"


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    return BPETokenizer(small_llama.merges())


@pytest.fixture(scope="module")
def model():
    return shipped("draft").double()  # so that nobody's tokens depend on who else is in the batch


@pytest.fixture
def engine(model) -> Engine:
    return Engine(model, EngineConfig(num_blocks=96, block_size=4, max_num_seqs=24))


@pytest.fixture
def address(engine, tokenizer):
    with background(engine, tokenizer, "draft", queue=70) as address:
        yield address


@pytest.fixture
def client(address) -> openai.OpenAI:
    return openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0)


def alone(model, tokenizer, prompt: str, sampling: SamplingParams) -> str:
    """Say what an engine says to one who is alone."""
    engine = Engine(model, EngineConfig(num_blocks=200, block_size=4))
    (output,) = engine.generate([tokenizer.encode(prompt.encode())], sampling)
    return tokenizer.decode(output.tokens[0]).decode(errors="replace")


def eventually(is_true) -> None:
    """Wait until something is true, for a minute at most."""
    ends = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_completion_is_what_the_engine_says(client, model, tokenizer):
    drawn = SamplingParams(12, temperature=0.8, top_p=0.9, seed=3)
    given = client.completions.create(
        model="draft", prompt=PROMPT, max_tokens=12, temperature=0.8, top_p=0.9, seed=3, n=2
    )
    expected = [alone(model, tokenizer, PROMPT, drawn._replace(seed=seed)) for seed in (3, 4)]
    assert [choice.text for choice in given.choices] == expected
    assert [choice.finish_reason for choice in given.choices] == ["length"] * 2
    asked = len(tokenizer.encode(PROMPT.encode()))
    assert (given.usage.prompt_tokens, given.usage.completion_tokens) == (asked, 24)


def test_prompts_may_be_tokens_and_several(client, tokenizer):
    tokens = tokenizer.encode(PROMPT.encode())
    settings = {"model": "draft", "max_tokens": 5, "temperature": 0}
    texts = [
        [choice.text for choice in client.completions.create(prompt=prompt, **settings).choices]
        for prompt in (PROMPT, tokens, [PROMPT, "a"], [tokens, [97]])
    ]
    assert texts[0] == texts[1] == texts[2][:1] and texts[2] == texts[3] and len(texts[2]) == 2


def test_a_stream_says_the_same_piece_by_piece(client, tokenizer):
    settings = {"model": "draft", "prompt": PROMPT, "max_tokens": 30, "temperature": 0}
    whole = client.completions.create(**settings)
    options = {"include_usage": True}
    pieces = list(client.completions.create(**settings, stream=True, stream_options=options))
    *texts, last = pieces
    assert len(texts) > 15 and last.usage == whole.usage and not last.choices
    assert "".join(piece.choices[0].text for piece in texts) == whole.choices[0].text
    reasons = [piece.choices[0].finish_reason for piece in texts]
    assert reasons == [None] * (len(texts) - 1) + ["length"]


def test_a_chat_is_one_text(client, model, tokenizer):
    messages = [
        {"role": "system", "content": "numpy"},
        {"role": "user", "content": [{"type": "text", "text": "## numpy.mean"}]},
    ]
    settings = {"model": "draft", "messages": messages, "temperature": 0}
    given = client.chat.completions.create(**settings, max_completion_tokens=9)
    expected = alone(model, tokenizer, "numpy\n\n## numpy.mean\n\n", SamplingParams(9))
    assert given.choices[0].message.content == expected
    assert given.choices[0].message.role == "assistant"
    pieces = list(client.chat.completions.create(**settings, max_tokens=9, stream=True))
    assert "".join(piece.choices[0].delta.content for piece in pieces) == expected
    assert [piece.choices[0].delta.role for piece in pieces][:2] == ["assistant", None]


def test_an_answer_ends_before_its_stop_text(client, engine, tokenizer):
    settings = {"model": "draft", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**settings).choices[0].text
    stop = whole[20:23]
    given = client.completions.create(**settings, stop=["\0never", stop])
    assert given.choices[0].text == whole[: whole.index(stop)]
    assert given.choices[0].finish_reason == "stop" and given.usage.completion_tokens < 40
    pieces = client.completions.create(**settings, stop=stop, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == whole[: whole.index(stop)]
    eventually(lambda: engine.scheduler.manager.allocator.available == 96)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_text_are_the_text_up_to_a_stop(tokenizer, seed):
    numbers = random.Random(seed)
    text = "".join(numbers.choice("abé→ 🙂\n") for _ in range(60))
    stops = [text[n : n + numbers.randrange(1, 4)] for n in numbers.sample(range(20, 57), 2)]
    tokens = list(text.encode())  # the first 256 tokens are the bytes
    writer, said = Detokenizer(tokenizer, stops), ""
    while tokens:
        count = numbers.randrange(1, 5)
        said += writer.write(tokens[:count], is_last=count >= len(tokens))
        assert not any(stop in said for stop in stops)
        tokens = tokens[count:]
    assert said == text[: min(text.index(stop) for stop in stops)] and writer.has_stopped
    writer = Detokenizer(tokenizer, ["ab"])
    assert writer.write([97]) == "" and writer.write([99]) == "ac"
    assert writer.write(list("é".encode())[:1]) == "" and writer.write([], True) == "\ufffd"


REFUSED = [
    ({"model": "other"}, 404, "there is no model 'other'"),
    ({"prompt": ""}, 400, "prompt must be a text or tokens"),
    ({"prompt": [[5, 2048]]}, 400, "tokens below 2048"),
    ({"prompt": []}, 400, "prompt must be"),
    ({"max_tokens": 0}, 400, "max_tokens must be at least 1, got 0"),
    ({"max_tokens": 300}, 400, "tokens exceed the context, 256"),
    ({"max_tokens": "many"}, 400, "max_tokens has the wrong type: 'many'"),
    ({"max_tokens": True}, 400, "wrong type"),
    ({"temperature": 3}, 400, "temperature must be from 0 to 2, got 3"),
    ({"top_p": 0}, 400, "top_p must be from"),
    ({"n": 0}, 400, "n must be at least 1"),
    ({"stop": ["a"] * 5}, 400, "up to four"),
    ({"stop": ""}, 400, "not empty"),
    ({"seed": -1}, 400, "seed must be at least 0"),
    ({"echo": True}, 400, "echo is not supported"),
    ({"n": 71}, 400, "71 sequences are more than may ever wait, 70"),
]


@pytest.mark.parametrize("change, status, message", REFUSED, ids=str)
def test_what_cannot_be_served_is_refused(client, engine, change, status, message):
    settings = {"model": "draft", "prompt": "a", "max_tokens": 2} | change
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(**settings)
    assert caught.value.status_code == status
    assert message in caught.value.body["message"]
    assert not engine.requests and not engine.scheduler.waiting


def test_what_is_no_request_is_refused(address):
    host = urlsplit(address).netloc
    for path, body, status in (
        ("/v1/completions", "{", 400),
        ("/v1/completions", "[]", 400),
        ("/v1/chat/completions", '{"model": "draft"}', 400),
        ("/v1/chat/completions", '{"model": "draft", "messages": [{"content": 3}]}', 400),
        ("/v1/nothing", "{}", 404),
    ):
        connection = http.client.HTTPConnection(host)
        connection.request("POST", path, body)
        assert connection.getresponse().status == status


def test_64_clients_some_of_whom_leave(client, engine, model, tokenizer):
    """Each gets exactly what it would get alone, and no block is lost."""
    numbers = random.Random(0)
    words = [numbers.choice(["numpy", "torch", "scipy", "math"]) for _ in range(64)]
    prompts = [f"## {word}.{n % 9}" for n, word in enumerate(words)]
    drawn = [
        SamplingParams(numbers.randrange(3, 25), None, 1, n % 3 / 2, seed=n) for n in range(64)
    ]

    def ask(n: int) -> str | None:
        settings = {"model": "draft", "prompt": prompts[n], "seed": n}
        settings |= {"max_tokens": drawn[n].max_tokens, "temperature": drawn[n].temperature}
        if n % 4 == 1:
            return client.completions.create(**settings).choices[0].text
        with client.completions.create(**settings, stream=True) as stream:
            text = ""
            for piece in stream:
                text += piece.choices[0].text
                if n % 4 == 2:
                    return None  # and leaves
        return text

    with ThreadPoolExecutor(64) as pool:
        texts = list(pool.map(ask, range(64)))
    for n, text in enumerate(texts):
        if text is not None:
            assert text == alone(model, tokenizer, prompts[n], drawn[n])
    assert texts.count(None) == 16
    eventually(lambda: not engine.requests)
    assert engine.scheduler.manager.allocator.available == 96 and not engine.sequences
    assert max(row["in the batch"] for row in engine.history) > 8


@contextmanager
def one_who_waits(address: str, **settings) -> Iterator[None]:
    """Ask for a completion, and leave before there is one."""
    host, body = urlsplit(address), json.dumps({"model": "draft", "prompt": PROMPT} | settings)
    with socket.create_connection((host.hostname, host.port)) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        yield


def test_who_leaves_before_the_answer_frees_the_blocks(address, engine):
    with one_who_waits(address, max_tokens=200):
        eventually(lambda: len(engine.history) > 2)
    eventually(lambda: not engine.requests)
    assert engine.scheduler.manager.allocator.available == 96 and len(engine.history) < 150


def test_a_full_queue_is_told(address, client, engine, monkeypatch):
    monkeypatch.setattr(engine, "step", lambda: time.sleep(0.001))
    with one_who_waits(address, n=70):
        eventually(lambda: len(engine.scheduler.waiting) == 70)
        with pytest.raises(openai.RateLimitError, match="try again later"):
            client.completions.create(model="draft", prompt="a")
    eventually(lambda: not engine.requests)
    assert not engine.scheduler.waiting


def test_an_error_inside_the_model_is_told(client, engine, monkeypatch):
    forward = engine.runner.forward
    monkeypatch.setattr(engine.runner, "forward", lambda batch: 1 / 0)
    for streams in (False, True):
        with pytest.raises(openai.APIError, match="ZeroDivisionError"):
            for _ in client.completions.create(model="draft", prompt="a", stream=streams):
                pass
    monkeypatch.setattr(engine.runner, "forward", forward)
    assert client.completions.create(model="draft", prompt="a", max_tokens=3).choices[0].text
    assert engine.scheduler.manager.allocator.available == 96 and not engine.requests


def test_metrics_are_prometheus_text(client, address):
    client.completions.create(model="draft", prompt=PROMPT, max_tokens=7, n=2)
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    values = dict(re.findall(r"^([a-z_]+(?:\{.*\})?) (\S+)$", text, flags=re.MULTILINE))
    assert values["engine_generated_tokens_total"] == "14.0"
    assert values['engine_sequences_ended_total{reason="length"}'] == "2.0"
    assert values["engine_time_to_first_token_seconds_count"] == "2.0"
    assert values["engine_time_between_tokens_seconds_count"] == "12.0"
    assert values["engine_requests_running"] == values["engine_blocks_in_use"] == "0.0"
    assert {"engine_requests_waiting", "engine_preemptions_total"} <= set(values)


def test_a_port_that_is_taken_is_an_error(engine, tokenizer, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError), background(engine, tokenizer, "draft", port):
            pass
        monkeypatch.setattr(sys, "argv", ["serve", "--model", "draft", "--port", str(port)])
        with pytest.raises(SystemExit, match=f"another port than {port} with --port"):
            main()


def test_the_command_serves_a_notebooks_engine(tokenizer, tmp_path):
    own = tmp_path / "own.ipynb"
    source = [
        "from course_pkg import serving\n",
        "%matplotlib inline\n",
        "print('not run')\n",
        "LETTER = 65\n",
        "class Engine(serving.Engine):\n",
        "    def take(self, number):\n",
        "        return [(sample, LETTER) for sample, _ in super().take(number)]\n",
    ]
    cells = [{"cell_type": "markdown", "source": []}, {"cell_type": "code", "source": source}]
    own.write_text(json.dumps({"cells": cells}))
    command = [sys.executable, "-m", "course_pkg.http", "--model", "draft", "--port", "0"]
    with subprocess.Popen(
        [*command, "--notebook", str(own)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        told = process.stdout.readline()
        address = re.match(r"curl (http://\S+)/v1/completions", told)[1]
        client = openai.OpenAI(base_url=address + "/v1", api_key="none")
        assert [model.id for model in client.models.list()] == ["draft"]
        given = client.completions.create(model="draft", prompt="a", max_tokens=4)
        process.terminate()
    assert given.choices[0].text == "AAAA"
