"""Hidden checks of seq2seq: single sentences, single words, counts by hand, a black box."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.seq2seq import (
    annotations,
    bleu_by_hand,
    corpus,
    decoder_pair,
    ends,
    even_sizes,
    forced,
    log_probability,
)
from course_pkg.data.translation import EOS
from course_pkg.seq2seq import (
    Decoder,
    additive_scores_fault,
    bleu,
    teacher_forcing_loss,
)


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


@check(teacher_forcing_loss, see="Teacher forcing")
def one_word(loss, case):
    """is -log p(EOS) for an empty translation"""
    decoder, h, mask, Y, _ = forced(case)
    log_p = log_probability(decoder, h[0], mask[0], [EOS])
    empty = torch.tensor([[Y[0, 0].item(), EOS]])
    case.equal(loss(decoder, h[:1], mask[:1], empty), -log_p.mean(), "loss")


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


@check(additive_scores_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "B")
