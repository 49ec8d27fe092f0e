"""The references of gpt agree with transformers; texts are read, cut and batched as promised."""

import contextlib
import doctest
import http.server
import math
import random
import socket
import threading
import time
import unicodedata
from collections import Counter
from typing import ClassVar

import pytest
import regex
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Tokenizer,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from course_pkg import plot
from course_pkg.data import gpt2, text
from course_pkg.gpt import (
    GPT,
    BPETokenizer,
    Writer,
    bits_per_byte,
    byte_pair_merges,
    init_gpt_weights,
    language_model_loss,
    load_gpt2,
    perplexity,
    token_probabilities,
)

GPT2_WORDS = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)


# Text


def test_examples_in_docstrings():
    assert doctest.testmod(text).failed == 0


def test_topics_repeat_no_paragraph():
    paragraphs = [" ".join(each.split()) for each in text.read().split("\n\n")]
    assert len(paragraphs) == len(set(paragraphs)) > 2000
    assert 300_000 < len(text.read()) < 600_000


def test_a_file_is_read_as_it_is(tmp_path):
    path, content = tmp_path / "a.txt", "Grüße\r\n\n" + "—ß€😀" * 60_000 + "\n"
    path.write_bytes(content.encode())
    assert text.read(path) == content
    assert text.read(str(path), limit=10**9) == content


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 5, 6, 70_000, 131_073])
def test_a_limit_leaves_out_a_character_that_it_cuts(tmp_path, limit):
    path, content = tmp_path / "a.txt", "a€😀" * 40_000
    path.write_bytes(content.encode())
    assert text.read(path, limit) == content.encode()[:limit].decode(errors="ignore")


def test_no_more_is_read_than_asked_for(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a" * 100_000 + b"\xff")
    assert text.read(path, 100_000) == "a" * 100_000
    huge = tmp_path / "huge.txt"
    with huge.open("wb") as file:
        file.truncate(1 << 40)  # sparse: a terabyte that takes no space
    assert text.read(huge, 9) == "\0" * 9


@pytest.mark.parametrize(
    "before, wrong",
    [
        (0, b"\xff"),
        (17, b"\x80"),
        (65_535, b"\xe2\x82x"),
        (65_536, b"\xc0"),
        (130_000, b"\xf0\x9f"),
    ],
)
def test_the_offset_of_a_wrong_byte_is_told(tmp_path, before, wrong):
    path = tmp_path / "a.txt"
    path.write_bytes("é".encode() * (before // 2) + b"a" * (before % 2) + wrong)
    with pytest.raises(text.EncodingError, match=f"byte 0x{wrong[0]:02x} at offset {before}$") as e:
        text.read(path)
    assert e.value.offset == before


def test_limits_and_shares_are_checked(tmp_path):
    with pytest.raises(ValueError, match="limit must not be negative, got -1"):
        text.read(limit=-1)
    with pytest.raises(ValueError, match="share must lie between 0 and 1, got 1"):
        text.split("abc", 1)


def test_split_cuts_at_a_paragraph():
    whole = "".join(f"paragraph {n}\n\n" for n in range(100))
    train, validation = text.split(whole, 0.25)
    assert train + validation == whole and train.endswith("\n\n")
    assert 0.25 <= len(validation) / len(whole) < 0.27
    assert text.split("abcdefghij", 0.3) == ("abcdefg", "hij")


def test_words_are_gpt2s_for_every_character():
    for code in range(0x110000):
        character = chr(code)
        if unicodedata.category(character) in ("Cs", "Cn"):
            continue
        sample = f"a {character} 1{character}!{character}"
        assert [w.encode() for w in GPT2_WORDS.findall(sample)] == text.words(sample.encode())


def test_words_are_gpt2s_in_any_order():
    source = random.Random(0)
    for _ in range(2000):
        sample = "".join(source.choices(" \n\t'stlredmv_-²Ⅷ9éa\x1c\x85\u3000!’", k=30))
        assert [w.encode() for w in GPT2_WORDS.findall(sample)] == text.words(sample.encode())


@given(st.binary())
def test_words_lose_no_byte(content):
    assert b"".join(text.words(content)) == content


def test_batches_are_stretches_of_the_text():
    tokens = torch.arange(50)
    drawn = text.batch(tokens, 400, 7, 0)
    assert torch.equal(drawn, drawn[:, :1] + torch.arange(7))
    assert set(drawn[:, 0].tolist()) == set(range(44))
    assert torch.equal(drawn, text.batch(tokens, 400, 7, torch.Generator().manual_seed(0)))
    assert torch.equal(text.batch(tokens, 2, 50, 0), tokens.expand(2, -1))


def test_stretches_predict_every_token_once():
    tokens = torch.arange(23)
    cut = text.stretches(tokens, 5)
    assert cut[:, 1:].flatten().tolist() == list(range(1, 21))
    assert torch.equal(cut[:, 1:], cut[:, :-1] + 1)


@pytest.mark.parametrize("make", [lambda t: text.batch(t, 2, 9, 0), lambda t: text.stretches(t, 9)])
def test_a_text_that_is_too_short_is_refused(make):
    with pytest.raises(ValueError, match="a text of 8 tokens has no stretch of 9"):
        make(torch.arange(8))


@pytest.mark.parametrize("B, T", [(0, 3), (2, 0)])
def test_sizes_of_batches_are_checked(B, T):
    with pytest.raises(ValueError, match=f"got B={B} and T={T}"):
        text.batch(torch.arange(8), B, T, 0)
    with pytest.raises(ValueError, match="T must be at least 2, got 1"):
        text.stretches(torch.arange(8), 1)


# Tokens


@pytest.fixture(scope="module")
def learned():
    counts = Counter(text.words(text.read(limit=60_000).encode()))
    return byte_pair_merges(counts, 300)


def test_encoding_is_that_of_hugging_faces_bpe(learned):
    ours = BPETokenizer(learned)
    names = [token.decode("latin-1") for token in ours.tokens]
    theirs = Tokenizer(
        models.BPE(
            vocab={name: number for number, name in enumerate(names)},
            merges=[(names[first], names[second]) for first, second in learned],
        )
    )
    sample = text.read(limit=90_000)[60_000:].encode()
    expected = [
        number
        for word in text.words(sample)
        for number in theirs.encode(word.decode("latin-1")).ids
    ]
    assert len(set(names)) == len(names)
    assert ours.encode(sample) == expected


@given(st.binary(max_size=200))
def test_any_bytes_come_back(learned, content):
    tokenizer = BPETokenizer(learned, ("<|end|>",))
    assert tokenizer.decode(tokenizer.encode(content)) == content


# The model


def tiny(L: int = 3, V: int = 61, context: int = 17, D: int = 20, H: int = 4):
    torch.manual_seed(L)
    config = GPT2Config(
        vocab_size=V,
        n_positions=context,
        n_embd=D,
        n_head=H,
        n_layer=L,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    theirs = GPT2LMHeadModel(config).double().eval()
    for parameter in theirs.parameters():  # biases and norms too: fresh ones hide mistakes
        parameter.data += 0.1 * torch.randn_like(parameter)
    ours = Writer(V, context, D, H, L).double()
    ours.load_state_dict(load_gpt2(theirs.state_dict()))
    return ours, theirs


@pytest.mark.parametrize("L", [1, 3, 12])
def test_logits_and_weights_are_those_of_transformers(L):
    ours, theirs = tiny(L)
    tokens = torch.randint(0, 61, (5, 13))
    logits, A = ours(tokens, return_weights=True)
    expected = theirs(tokens, output_attentions=True)
    torch.testing.assert_close(logits, expected.logits, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(A, torch.stack(expected.attentions), rtol=1e-10, atol=1e-10)


def test_loss_is_that_of_transformers():
    ours, theirs = tiny()
    tokens = torch.randint(0, 61, (5, 13))
    lengths = torch.tensor([13, 2, 7, 12, 3])
    labels = torch.where(torch.arange(13) < lengths[:, None], tokens, -100)
    loss = language_model_loss(ours(tokens), tokens)
    torch.testing.assert_close(loss.float(), theirs(tokens, labels=tokens).loss)
    loss = language_model_loss(ours(tokens), tokens, lengths)
    torch.testing.assert_close(loss.float(), theirs(tokens, labels=labels).loss)


def test_greedy_texts_are_those_of_transformers():
    ours, theirs = tiny()
    tokens = torch.randint(1, 61, (4, 5))
    written = theirs.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=9, do_sample=False
    )
    assert torch.equal(ours.sample(tokens, 9, 0.0, stop=0), written)


def test_probabilities_are_those_of_transformers():
    torch.manual_seed(0)
    logits = 2 * torch.randn(50, 23, dtype=torch.float64)
    warpers = TemperatureLogitsWarper(0.8), TopKLogitsWarper(9), TopPLogitsWarper(0.7)
    scores = logits
    for warper in warpers:
        scores = warper(None, scores)
    torch.testing.assert_close(token_probabilities(logits, 0.8, 9, 0.7), scores.softmax(dim=-1))


@pytest.mark.parametrize("temperature", [1e-320, 1e-300, 1e-45, 1e-40, 1e-38, 1e-37, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_no_temperature_is_too_small(dtype, temperature):
    logits = torch.tensor([[1.0, 5.0, 3.0], [-60.0, 9.0, 60.0]], dtype=dtype)
    p = token_probabilities(logits, temperature)
    assert p.dtype == dtype and p.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert token_probabilities(logits, temperature, top_k=2, top_p=0.5).tolist() == p.tolist()


def test_published_weights_give_the_published_logits():
    try:
        theirs = GPT2LMHeadModel.from_pretrained("openai-community/gpt2", local_files_only=True)
    except OSError:
        pytest.skip("GPT-2's weights are not in the cache: hf download openai-community/gpt2")
    ours = GPT(50257, 1024, 768, 12, 12)
    ours.load_state_dict(load_gpt2(theirs.state_dict()))
    tokens = torch.randint(0, 50257, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=0, atol=1e-4)


def test_gpt2_has_124_million_parameters():
    with torch.device("meta"):
        model = GPT(50257, 1024, 768, 12, 12)
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


def test_fresh_weights_are_those_of_transformers():
    ours, theirs = (
        GPT(300, 200, 64, 4, 5),
        GPT2LMHeadModel(
            GPT2Config(vocab_size=300, n_positions=200, n_embd=64, n_head=4, n_layer=5)
        ),
    )
    torch.manual_seed(0)
    drawn = init_gpt_weights(ours.state_dict(), 5)
    for name, expected in load_gpt2(theirs.state_dict()).items():
        given = drawn[name]
        if given.dim() == 1:
            assert torch.equal(given, expected), name
        else:
            assert given.std().item() == pytest.approx(expected.std().item(), rel=0.06), name


def test_measures_of_a_guess():
    losses, counts = torch.full((3,), math.log(50)), torch.tensor([4, 1, 9])
    assert perplexity(losses, counts) == pytest.approx(50)
    assert bits_per_byte(math.log(2) * 3, tokens=10, size=20) == pytest.approx(1.5)


# The published files


@pytest.fixture
def files(tmp_path, monkeypatch, learned):
    """A cache of Hugging Face that holds a small model under GPT-2's name."""
    folder = tmp_path / "hub" / "models--openai-community--gpt2" / "snapshots" / "1a2b"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    letters = {byte: letter for letter, byte in gpt2._letters().items()}
    names = ["".join(letters[byte] for byte in token) for token in BPETokenizer(learned).tokens]
    lines = [f"{names[first]} {names[second]}" for first, second in learned]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(lines) + "\n")
    order = [letter for letter in gpt2._letters()] + names[256:] + ["<|endoftext|>"]
    vocabulary = {name: number for number, name in enumerate(order)}
    _, theirs = tiny(L=2, V=len(vocabulary))
    state = {n.removeprefix("transformer."): v.float() for n, v in theirs.state_dict().items()}
    del state["lm_head.weight"]
    save_file({n: v.contiguous() for n, v in state.items()}, folder / "model.safetensors")
    tokenizer = GPT2Tokenizer(vocab=vocabulary, merges=[tuple(line.split(" ")) for line in lines])
    return folder, theirs.float(), tokenizer


def test_published_files_give_the_tokens_and_logits_of_transformers(files):
    folder, theirs, tokenizer = files
    assert gpt2.find() == folder
    state, merges = gpt2.read(folder)
    ours = GPT(len(state["wte.weight"]), 17, 20, 4, 2)
    ours.load_state_dict(load_gpt2(state))
    sample = "The “naïve” café,\nit's 12² 😀"
    for part in (sample[:16], sample[16:]):
        expected = tokenizer(part)["input_ids"]
        tokens = BPETokenizer(merges).encode(part.encode())[:17]
        assert len(tokens) == len(expected[:17])
        logits, wanted = ours(torch.tensor([tokens])), theirs(torch.tensor([expected[:17]])).logits
        torch.testing.assert_close(logits[..., 256:], wanted[..., 256:], rtol=0, atol=1e-4)
        bytes_ = [*gpt2._letters().values()]
        torch.testing.assert_close(logits[..., bytes_], wanted[..., :256], rtol=0, atol=1e-4)


class Site(http.server.BaseHTTPRequestHandler):
    """Serves some bytes for each file, from where the client asks."""

    content: ClassVar = {
        "/model.safetensors": bytes(range(256)) * 20_000,
        "/merges.txt": b"#version\n",
    }

    def do_GET(self):
        content = self.content[self.path]
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", len(content) - first)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client may have enough
            self.wfile.write(content[first:])

    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site with GPT-2's files, and a machine that has none."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(gpt2, "_SITE", f"http://127.0.0.1:{server.server_port}/")
        yield server
        server.shutdown()


def test_files_are_fetched_piece_by_piece(site):
    assert gpt2.reachable() and gpt2.find() is None
    shares = [gpt2.fetch(seconds=0) for _ in range(10)]
    assert 0 < shares[0] < shares[1] < 1 == shares[-1]
    folder = gpt2.find()
    for name, content in Site.content.items():
        assert (folder / name[1:]).read_bytes() == content
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "merges.txt"}


def test_a_site_that_is_not_there_costs_no_time(site, monkeypatch):
    with socket.socket() as silent:  # it takes connections, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(gpt2, "_SITE", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        start = time.monotonic()
        assert not gpt2.reachable(seconds=0.3)
        assert time.monotonic() - start < 2
    monkeypatch.setattr(gpt2, "_SITE", f"http://127.0.0.1:{site.server_port}/")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not gpt2.reachable()


def test_files_that_are_not_there_are_not_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    assert gpt2.find() is None


def test_heads_are_drawn_by_weight():
    weights = torch.tensor([[[1.0, 0.0], [0.6, 0.4]], [[0.04, 0.96], [0.5, 0.5]]])
    axes = plot.heads(weights, ["a", "b"], title="Both look", names=["first", "second"])
    assert [ax.get_title() for ax in axes] == ["first", "second"]
    lines = axes[0].collections[0]
    places = {tuple(map(tuple, line.tolist())): n for n, line in enumerate(lines.get_segments())}
    assert set(places) == {((0, 0), (1, 0)), ((0, 1), (1, 0)), ((0, 1), (1, 1))}
    red = lines.get_colors()[:, 0]  # blue lines: the less red, the darker
    darker, lighter = (places[(0, 1), (1, key)] for key in (0, 1))
    assert red[darker] < red[lighter]
    assert len(axes[1].collections[0].get_segments()) == 3  # 0.04 has none
    assert [text.get_text() for text in axes[0].texts] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("rows, names", [(["a"], None), (["a", "b"], ["only one"])])
def test_heads_refuse_what_does_not_fit(rows, names):
    with pytest.raises(ValueError, match=r"weights of shape \(2, 2, 2\) do not fit"):
        plot.heads(torch.ones(2, 2, 2), rows, title="", names=names)
