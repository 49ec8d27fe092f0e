"""Hidden checks of seq2seq: gradients, padding, single sentences, limits, narrow beams."""

import math

import torch

from course_pkg.checking.models import SmallDecoder
from course_pkg.checking.registry import check
from course_pkg.checks.seq2seq import (
    annotations,
    attended,
    attention_case,
    bleu_by_hand,
    compare,
    corpus,
    decoder_pair,
    encoder_pair,
    ends,
    even_sizes,
    forced,
    greedy_by_hand,
    greedy_case,
    hypotheses,
    log_probability,
    masked,
    next_log_p,
    one_by_one,
    padded,
    search_by_hand,
    search_case,
    small_decoder,
)
from course_pkg.data.translation import EOS
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


@check(Encoder, see="The encoder")
def padding(encoder, case):
    """gives the same whatever the padding holds"""
    B, N, V, E, H = case.sizes(5, low=3)
    ours, torchs = encoder_pair(case, encoder, V, E, H)
    lengths, _ = masked(case, B, N)
    X = case.integers(0, V, B, N)
    h, _ = case.unpack(ours(X, lengths), "h", "mask")
    case.equal(h, one_by_one(torchs, X, lengths), "h")


@check(Encoder, see="The encoder")
def wider_than_needed(encoder, case):
    """keeps all N columns when no sentence fills them"""
    B, N, V, E, H = case.sizes(5, low=3)
    ours, torchs = encoder_pair(case, encoder, V, E, H)
    lengths, _ = masked(case, B, N)
    X = case.integers(0, V, B, N + 3)
    h, mask = case.unpack(ours(X, lengths), "h", "mask")
    case.equal(h, one_by_one(torchs, X, lengths), "h")
    case.equal(mask, torch.arange(N + 3) < lengths[:, None], "mask")


@check(Decoder, see="A decoder with one context")
def one_sentence(decoder, case):
    """gives a sentence the same c on its own, and goes on from the state that is given"""
    V, E, C, S, B, N = even_sizes(case, 6)
    ours, given = decoder_pair(case, decoder, V, E, C, S)
    h, mask = annotations(case, B, N, C)
    _, memory = case.unpack(ours.start(h, mask), "s_0", "c")
    for what in ("first", "other"):
        y, s = case.integers(0, V, B), case.randn(B, S)
        logits, _, _ = case.unpack(ours.step(y, s, memory), "logits", "s_t", "None")
        case.equal(logits, given.write(y, s, ends(h, mask))[0], f"logits of the {what} state")
    for b in range(B):
        n = int(mask[b].sum())
        _, c = case.unpack(ours.start(h[b : b + 1, :n], mask[b : b + 1, :n]), "s_0", "c")
        case.equal(c, ends(h, mask)[b : b + 1], f"c of sentence {b}")


def shouting(decoder: SmallDecoder) -> SmallDecoder:
    """Make a decoder's logits a thousand times as large."""
    return SmallDecoder([*decoder[:3], 1e3 * decoder[3], 1e3 * decoder[4]])


@check(teacher_forcing_loss, see="Teacher forcing")
def one_word(loss, case):
    """is -log p(EOS) for an empty translation"""
    decoder, h, mask, Y, _ = forced(case)
    log_p = log_probability(decoder, h[0], mask[0], [EOS])
    empty = torch.tensor([[Y[0, 0].item(), EOS]])
    case.equal(loss(decoder, h[:1], mask[:1], empty), -log_p.mean(), "loss")


@check(teacher_forcing_loss, see="Teacher forcing")
def surprised(loss, case):
    """is finite when a true word's probability is too small for a number"""
    decoder, h, mask, Y, rows = forced(case)
    decoder = shouting(decoder)
    log_p = [log_probability(decoder, h[n], mask[n], row) for n, row in enumerate(rows)]
    case.equal(loss(decoder, h, mask, Y), -torch.cat(log_p).mean(), "loss")


@check(greedy_decode, see="Greedy decoding")
def one_sentence(decode, case):
    """translates a sentence on its own as in a batch"""
    decoder, h, mask = greedy_case(case, end=2.0)
    for b in range(3):
        words = greedy_by_hand(decoder, h[b], mask[b], 15)
        given = decode(decoder, h[b : b + 1], mask[b : b + 1], 15)
        case.equal(given, torch.tensor([words]), f"words of sentence {b}")


@check(bleu, see="Measuring a translation")
def brevity_by_hand(score, case):
    """multiplies by exp(1 - r/c) when the translations are too short and not all right"""
    hypotheses, references = corpus(case, keep=0.7)
    case.equal(score(hypotheses, references), bleu_by_hand(hypotheses, references), "BLEU")


@check(bleu, see="Measuring a translation")
def of_a_corpus(score, case):
    """adds up counts over sentences, some without a match of four words, or without words"""
    hypotheses, references = corpus(case, keep=1.1, low=4, change=0.4)
    hypotheses.append(references[0][::-1])
    references.append(references[0])
    case.equal(score(hypotheses, references), bleu_by_hand(hypotheses, references), "BLEU")
    hypotheses += [references[1][:1], []]
    references += [references[1][:2], references[2]]
    expected = bleu_by_hand(hypotheses, references)
    case.equal(score(hypotheses, references), expected, "BLEU with a word and nothing")
    short = [row[:3] for row in references]
    case.equal(score(short, short), 0.0, "BLEU without any four words in a row")


@check(bleu, see="Measuring a translation")
def repeated_word(score, case):
    """counts a repeated word only as often as its reference has it"""
    hypotheses = [["the"] * 7, list("abcdefgh")]
    references = ["the cat is on the mat now".split(), list("abcdefgh")]
    expected = bleu_by_hand(hypotheses, references)
    case.equal(score(hypotheses, references), expected, "BLEU")


@check(bleu, see="Measuring a translation")
def refuses(score, case):
    """raises ValueError when a reference or a translation is missing"""
    hypotheses, references = corpus(case, keep=1.0)
    case.raises(ValueError, lambda: score(hypotheses, references[1:]), "a reference is missing")
    case.raises(ValueError, lambda: score(hypotheses[1:], references), "a translation is missing")
    case.raises(ValueError, lambda: score([], references), "there are references alone")


@check(additive_scores, see="Scores")
def gradients(scores, case):
    """passes the right gradients back to s, keys, W and v"""
    B, N, S, A = case.sizes(4, low=3)
    shapes = {"s": (B, S), "keys": (B, N, A), "W": (A, S), "v": (A,)}
    inputs = [case.randn(*shape).requires_grad_() for shape in shapes.values()]
    s, keys, W, v = inputs
    fits = torch.tanh(torch.einsum("as,bs->ba", W, s).unsqueeze(1) + keys)
    seen = case.randn(B, N)
    expected = torch.autograd.grad(torch.einsum("bna,a->bn", fits, v), inputs, seen)
    e = scores(*inputs)
    case.shape(e, (B, N), "e")
    case.trains(e, "e")
    e.backward(seen)
    for name, tensor, gradient in zip(shapes, inputs, expected, strict=True):
        case.gradient(tensor, gradient, name)


@check(additive_scores, see="Scores")
def one_sentence(scores, case):
    """agrees with a loop for one sentence of one word"""
    S, A = case.sizes(2)
    s, keys, W, v = case.randn(1, S), case.randn(1, 1, A), case.randn(A, S), case.randn(A)
    expected = sum(v[k] * math.tanh(W[k].dot(s[0]) + keys[0, 0, k]) for k in range(A))
    case.equal(scores(s, keys, W, v), expected.reshape(1, 1), "e")


@check(attend, see="From scores to a context")
def large_scores(attend, case):
    """stays finite for very large scores, and gives padding nothing, however low the others"""
    B, N, C = case.sizes(3, low=4)
    _, mask = masked(case, B, N)
    e, h = 1e11 * case.randn(B, N), case.randn(B, N, C)
    best = torch.where(mask, e, -math.inf).argmax(dim=1)
    c, a = case.unpack(attend(e, h, mask), "c", "a")
    case.equal(a, torch.eye(N)[best], "a")
    case.equal(c, h[torch.arange(B), best], "c")


@check(attend, see="From scores to a context")
def gradients(attend, case):
    """passes the right gradients back to e and h"""
    B, N, C = case.sizes(3, low=4)
    e, h, seen = case.randn(B, N), case.randn(B, N, C), case.randn(B, C)
    e, h = e.requires_grad_(), h.requires_grad_()
    p = e.exp()
    context = (p[:, :, None] * h).sum(dim=1) / p.sum(dim=1, keepdim=True)
    expected = torch.autograd.grad(context, [e, h], seen)
    c, _ = case.unpack(attend(e, h, torch.ones(B, N) > 0), "c", "a")
    case.shape(c, (B, C), "c")
    case.trains(c, "c")
    c.backward(seen)
    case.gradient(e, expected[0], "e")
    case.gradient(h, expected[1], "h")


@check(AttentionDecoder, see="The decoder with attention")
def padding(decoder, case):
    """gives the same whatever the padding holds"""
    ours, given, y, s, h, mask = attention_case(case, decoder)
    c, expected_a = attended(given, s, h, mask)
    expected, _ = given.write(y, s, c)
    _, memory = case.unpack(ours.start(h + 100 * ~mask[:, :, None], mask), "s_0", "memory")
    logits, _, a = case.unpack(ours.step(y, s, memory), "logits", "s_t", "a_t")
    case.equal(a, expected_a, "a_t")
    case.equal(logits, expected, "logits")


@check(beam_search, see="Short or probable")
def between(search, case):
    """divides by the length to the power α, even where α is neither 0 nor 1"""
    for alpha, other in ((0.6, 0.8), (0.6, 0.4), (0.3, 0.5), (0.3, 0.1), (1.5, 1.2), (1.5, 2.0)):
        expected = found = None
        while expected == found:  # some decoders give the same with the other power
            decoder, h, mask = search_case(case)
            expected, found = (
                search_by_hand(decoder, h, mask, 3, 7, power) for power in (alpha, other)
            )
        compare(case, search(decoder, h, mask, 3, 7, alpha), expected)


@check(beam_search, see="Beam search")
def improbable(search, case):
    """ranks hypotheses by log p where p itself is too small for a number"""
    least = 0.0
    while least > -800:  # e^-800 is 0 for a computer
        decoder, h, mask = search_case(case, V=7)
        decoder = shouting(decoder)
        expected = search_by_hand(decoder, h, mask, 4, 4, 1.0)
        least = float(log_probability(decoder, h[0], mask[0], expected[1][0]).min())
    compare(case, search(decoder, h, mask, 4, 4), expected)


@check(beam_search, see="Beam search")
def goes_no_further(search, case):
    """returns what it has after max_length words, ended or not"""
    decoder, h, mask = search_case(case, end=-40.0)
    expected = search_by_hand(decoder, h, mask, 3, 5, 1.0)
    compare(case, search(decoder, h, mask, 3, 5), expected)


@check(beam_search, see="Beam search")
def no_more_than_there_are(search, case):
    """returns fewer hypotheses where there are fewer than the width"""
    decoder, h, mask = search_case(case, V=6)
    words, log_p = hypotheses(case, search(decoder, h, mask, 10, 1))
    case.that(
        len(words) <= 6, f"hypotheses should number 6 at most, yours number {len(words)}.", log_p
    )
    expected = next_log_p(decoder, h[0], mask[0], []).sort(descending=True).values
    case.equal(log_p[:4], expected[:4].float(), "log p of hypotheses")


@check(beam_search, see="Beam search")
def padded_sentence(search, case):
    """gives the same for a sentence with padding after it, and for a wide beam"""
    N, C, S = case.sizes(3, low=3)
    decoder = small_decoder(case, 14, C, S, 0.5)
    h, mask = case.randn(1, N + 2, C), torch.arange(N + 2)[None] < N
    expected = search_by_hand(decoder, h, mask, 12, 4, 1.0)
    words, _ = hypotheses(case, search(decoder, h, mask, 12, 4))
    case.equal(padded(words), padded([one for one, _ in expected]), "words of hypotheses")
