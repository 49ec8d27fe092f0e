"""The references of seq2seq agree with torch, sacrebleu, loops and exhaustive search."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import corpus_bleu
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from autograder.assignments.seq2seq.hidden import bleu_by_hand
from course_pkg.checking.case import Case
from course_pkg.checking.models import SmallDecoder
from course_pkg.checks.seq2seq import greedy_by_hand, greedy_case, small_decoder
from course_pkg.data.translation import BOS, EOS, PAD
from course_pkg.remote.messages import Decoder as WireDecoder
from course_pkg.remote.messages import Encoder as WireEncoder
from course_pkg.seq2seq import (
    AttentionDecoder,
    Decoder,
    Encoder,
    additive_scores,
    attend,
    beam_search,
    bleu,
    greedy_decode,
    teacher_forcing_loss,
)

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(params=range(5))
def sizes(request) -> list[int]:
    """Six sizes, all different; also seeds torch."""
    torch.manual_seed(request.param)
    return random.Random(request.param).sample(range(2, 14), 6)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def ragged(B: int, N: int, C: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random states, zero at padding, with their mask and lengths."""
    lengths = torch.randint(1, N + 1, (B,))
    mask = torch.arange(N) < lengths[:, None]
    return randn(B, N, C) * mask[:, :, None], mask, lengths


def test_encoder_is_torchs_gru_without_padding(sizes):
    B, N, V, E, H, _ = sizes
    encoder = Encoder(V, E, H).double()
    gru = nn.GRU(E, H, bidirectional=True).double()
    gru.load_state_dict(encoder.gru.state_dict())
    X, lengths = torch.randint(0, V, (B, N)), torch.randint(1, N + 1, (B,))
    h, mask = encoder(X, lengths)
    assert h.shape == (B, N, 2 * H)
    for row, length in enumerate(lengths.tolist()):
        expected, _ = gru(encoder.embedding(X[row, :length]))
        torch.testing.assert_close(h[row, :length], expected, **CLOSE)
        assert not h[row, length:].any()
        assert mask[row].tolist() == [i < length for i in range(N)]


def test_decoder_is_torchs_gru_with_a_constant_context(sizes):
    B, N, V, E, H, S = sizes
    decoder = Decoder(V, E, 2 * H, S).double()
    h, mask, lengths = ragged(B, N, 2 * H)
    Y = torch.randint(0, V, (B, 7))
    gru = nn.GRU(E + 2 * H, S, batch_first=True).double()
    gru.load_state_dict({f"{k}_l0": v for k, v in decoder.gru.state_dict().items()})
    c = torch.cat([h[torch.arange(B), lengths - 1, :H], h[:, 0, H:]], dim=1)
    first = torch.tanh(functional.linear(c, decoder.first.weight, decoder.first.bias))
    inputs = torch.cat([decoder.embedding(Y), c[:, None].expand(B, 7, 2 * H)], dim=2)
    states, _ = gru(inputs, first[None])
    s, memory = decoder.start(h, mask)
    torch.testing.assert_close(s, first, **CLOSE)
    for t in range(7):
        logits, s, weights = decoder.step(Y[:, t], s, memory)
        torch.testing.assert_close(s, states[:, t], **CLOSE)
        expected = decoder.output(torch.cat([states[:, t], c], dim=1))
        torch.testing.assert_close(logits, expected, **CLOSE)
        assert weights is None


def test_scores_and_attend_are_loops(sizes):
    B, N, C, S, A, _ = sizes
    s, U, W, v = randn(B, S), randn(A, C), randn(A, S), randn(A)
    h, mask, lengths = ragged(B, N, C)
    e = additive_scores(s, h @ U.T, W, v)
    c, a = attend(e, h, mask)
    for b, i in itertools.product(range(B), range(N)):
        fits = [
            math.tanh(float(W[k] @ s[b]) + float(U[k] @ h[b, i])) * float(v[k]) for k in range(A)
        ]
        assert float(e[b, i]) == pytest.approx(sum(fits))
    for b, n in enumerate(lengths.tolist()):
        p = torch.softmax(e[b, :n], dim=0)
        torch.testing.assert_close(a[b], functional.pad(p, (0, N - n)), **CLOSE)
        torch.testing.assert_close(c[b], p @ h[b, :n], **CLOSE)


def test_attention_decoder_with_equal_scores_sees_the_mean(sizes):
    B, N, V, E, H, S = sizes
    decoder = AttentionDecoder(V, E, 2 * H, S, 5).double()
    decoder.v.data.zero_()
    h, mask, _ = ragged(B, N, 2 * H)
    s, memory = decoder.start(h, mask)
    torch.testing.assert_close(s, torch.tanh(decoder.first(h[:, 0, H:])), **CLOSE)
    y = torch.randint(0, V, (B,))
    logits, s_new, a = decoder.step(y, s, memory)
    mean = h.sum(dim=1) / mask.sum(dim=1, keepdim=True)
    expected = decoder.gru(torch.cat([decoder.embedding(y), mean], dim=1), s)
    torch.testing.assert_close(a, mask / mask.sum(dim=1, keepdim=True).double(), **CLOSE)
    torch.testing.assert_close(s_new, expected, **CLOSE)
    torch.testing.assert_close(logits, decoder.output(torch.cat([expected, mean], 1)), **CLOSE)


def test_attention_decoder_with_sharp_scores_sees_one_word():
    torch.manual_seed(0)
    decoder = AttentionDecoder(9, 3, 4, 5, 4).double()
    decoder.U.data.copy_(torch.eye(4))
    decoder.W.data.zero_()
    decoder.v.data.copy_(torch.tensor([500.0, 0, 0, 0]))
    h = randn(2, 6, 4)
    s, memory = decoder.start(h, torch.ones(2, 6, dtype=torch.bool))
    _, _, a = decoder.step(torch.tensor([BOS, BOS]), s, memory)
    assert a.argmax(dim=1).tolist() == h[:, :, 0].argmax(dim=1).tolist()
    assert a.max() > 0.99


@pytest.mark.parametrize("build", [Decoder, lambda *sizes: AttentionDecoder(*sizes, 7)])
def test_loss_is_torchs_cross_entropy_of_each_sentence(sizes, build):
    B, N, V, E, H, S = sizes
    V += 4
    decoder = build(V, E, 2 * H, S).double()
    h, mask, lengths = ragged(B, N, 2 * H)
    rows = [[*torch.randint(4, V, (k % 4,)).tolist(), EOS] for k in range(B)]
    Y = torch.tensor([[BOS, *row, *[PAD] * (5 - len(row))] for row in rows])
    total = words = 0
    for b, row in enumerate(rows):
        n = int(lengths[b])
        s, memory = decoder.start(h[b : b + 1, :n], mask[b : b + 1, :n])
        for given_word, wanted in zip([BOS, *row], row, strict=False):
            logits, s, _ = decoder.step(torch.tensor([given_word]), s, memory)
            total += functional.cross_entropy(logits, torch.tensor([wanted]))
            words += 1
    torch.testing.assert_close(teacher_forcing_loss(decoder, h, mask, Y), total / words, **CLOSE)


@pytest.mark.parametrize("build", [Decoder, lambda *sizes: AttentionDecoder(*sizes, 7)])
def test_gradients_are_those_of_finite_differences(build):
    torch.manual_seed(1)
    decoder = build(6, 2, 4, 3).double()
    h, mask, _ = ragged(2, 3, 4)
    Y = torch.tensor([[BOS, 4, 5, EOS], [BOS, 4, EOS, PAD]])
    assert torch.autograd.gradcheck(
        lambda h: teacher_forcing_loss(decoder, h, mask, Y), h.requires_grad_()
    )


words_of = st.lists(st.sampled_from("abcde"), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(words_of, words_of), min_size=1, max_size=6))
def test_bleu_is_sacrebleus(pairs):
    hypotheses, references = [list(side) for side in zip(*pairs, strict=True)]
    score = corpus_bleu(
        [" ".join(words) for words in hypotheses],
        [[" ".join(words) for words in references]],
        tokenize="none",
        smooth_method="none",
        force=True,
    ).score
    assert bleu(hypotheses, references) == pytest.approx(score, abs=1e-9)


def test_bleu_of_long_corpora_is_sacrebleus_and_the_checks_own():
    rng = random.Random(0)
    for length in (5, 20, 60):
        references = [[rng.choice("abcd") for _ in range(length)] for _ in range(20)]
        hypotheses = [[rng.choice([w, w, w, "a"]) for w in words[1:]] for words in references]
        score = corpus_bleu(
            [" ".join(words) for words in hypotheses],
            [[" ".join(words) for words in references]],
            tokenize="none",
            smooth_method="none",
            force=True,
        ).score
        assert 0 < score < 100
        assert bleu(hypotheses, references) == pytest.approx(score)
        assert bleu_by_hand(hypotheses, references) == pytest.approx(score)


def test_bleu_refuses_a_missing_reference():
    with pytest.raises(ValueError):
        bleu([["a"], ["b"]], [["a"]])


@torch.no_grad()
def log_p_of(decoder, h, mask, words) -> float:
    s, memory = decoder.start(h, mask)
    total = 0.0
    for given_word, wanted in zip([BOS, *words], words, strict=False):
        logits, s, _ = decoder.step(torch.tensor([given_word]), s, memory)
        total += float(torch.log_softmax(logits, dim=1)[0, wanted])
    return total


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_beam_search_with_room_for_all_is_exhaustive(alpha, seed):
    torch.manual_seed(seed)
    V, longest = 4, 4
    decoder = AttentionDecoder(V, 3, 4, 3, 2).double()
    decoder.output.weight.data *= 4
    h, mask = randn(1, 3, 4), torch.ones(1, 3, dtype=torch.bool)
    others = [word for word in range(V) if word != EOS]
    shorter = (itertools.product(others, repeat=n) for n in range(longest))
    everything = [[*start, EOS] for starts in shorter for start in starts]
    everything += map(list, itertools.product(others, repeat=longest))
    scores = {tuple(words): log_p_of(decoder, h, mask, words) for words in everything}
    assert sum(map(math.exp, scores.values())) == pytest.approx(1)
    best = sorted(scores, key=lambda words: -scores[words] / len(words) ** alpha)
    with torch.no_grad():
        found = beam_search(decoder, h, mask, len(everything), longest, alpha)
    assert [tuple(words) for words, _ in found] == best
    for words, log_p in found:
        assert log_p == pytest.approx(scores[tuple(words)])


@pytest.mark.parametrize("seed", range(5))
def test_beam_of_one_is_greedy(seed):
    torch.manual_seed(seed)
    decoder = Decoder(9, 3, 4, 6).double()
    decoder.output.weight.data *= 5
    h, mask = randn(1, 5, 4), torch.ones(1, 5, dtype=torch.bool)
    with torch.no_grad():
        ((words, _),) = beam_search(decoder, h, mask, 1, 8)
        assert greedy_decode(decoder, h, mask, 8).tolist() == [words]


def test_a_wider_beam_finds_what_greedy_search_misses():
    case = Case("a garden path")
    better = 0
    for _ in range(40):
        decoder = small_decoder(case, 7, 3, 4)
        h, mask = case.randn(1, 2, 3), torch.ones(1, 2, dtype=torch.bool)
        words = greedy_by_hand(decoder, h[0], mask[0], 6)
        found = beam_search(decoder, h, mask, 20, 6, alpha=0.0)
        assert found[0][1] >= log_p_of(decoder, h, mask, words) - 1e-9
        better += found[0][0] != words
    assert better > 5


def test_beam_search_is_that_of_transformers():
    torch.manual_seed(3)
    V, width, longest = 7, 4, 5
    config = GPT2Config(
        vocab_size=V, n_positions=8, n_embd=12, n_layer=1, n_head=2, initializer_range=1.0
    )
    model = GPT2LMHeadModel(config).double().eval()

    class Reader:
        """A language model as a decoder: its state is the text so far, the first token too."""

        def start(self, h, mask):
            return torch.zeros(len(h), 0, dtype=torch.long), None

        def step(self, y, texts, memory):
            texts = torch.cat([texts, y[:, None]], dim=1)
            return model(texts).logits[:, -1].index_fill(1, unending, -math.inf), texts, None

    unending = torch.tensor([EOS, PAD])  # all hypotheses get the same length: neither ends early
    h, mask = torch.zeros(1, 1, 1).double(), torch.ones(1, 1, dtype=torch.bool)
    with torch.no_grad():
        found = beam_search(Reader(), h, mask, width, longest)
    theirs = model.generate(
        torch.tensor([[BOS]]),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=longest,
        do_sample=False,
        suppress_tokens=unending.tolist(),
        eos_token_id=EOS,
        pad_token_id=PAD,
        renormalize_logits=True,
        output_scores=True,
        return_dict_in_generate=True,
    )
    assert theirs.sequences[:, 1:].tolist() == [words for words, _ in found]
    means = [log_p / longest for _, log_p in found]
    assert theirs.sequences_scores.tolist() == pytest.approx(means)


def test_greedy_stops_where_the_check_needs_it():
    decoder, h, mask = greedy_case(Case("greedy_decode.stops"), end=2.0)
    rows = [greedy_by_hand(decoder, *one, 30) for one in zip(h, mask, strict=True)]
    assert 1 < max(map(len, rows)) < 30
    decoder, h, mask = greedy_case(Case("greedy_decode.values"), end=0.5)
    lengths = {len(greedy_by_hand(decoder, *one, 12)) for one in zip(h, mask, strict=True)}
    assert len(lengths) > 2


def test_a_small_decoder_crosses_to_another_process_as_itself():
    decoder = small_decoder(Case("crossing"), 7, 3, 4)
    encoder = WireEncoder()
    message = encoder.message({"value": encoder.value(decoder)})
    size = int.from_bytes(message[:4], "big")
    request = WireDecoder(message[12 : 12 + size], bytearray(message[12 + size :]))
    copy = request.value(request.header["value"])
    assert type(copy) is SmallDecoder
    h, mask = randn(2, 3, 3), torch.ones(2, 3, dtype=torch.bool)
    s, memory = copy.start(h, mask)
    expected = decoder.step(torch.tensor([4, 5]), *decoder.start(h, mask))
    assert torch.equal(copy.step(torch.tensor([4, 5]), s, memory)[0], expected[0])
