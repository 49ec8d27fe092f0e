"""Known wrong solutions of seq2seq."""

import math
from collections import Counter

import torch
from torch import nn
from torch.nn import functional

from autograder.bugs import bug, equivalent
from course_pkg.data.translation import BOS, EOS, PAD
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


def in_order(X, lengths):
    return torch.arange(X.shape[1]) < lengths[:, None]


@bug(Encoder, "padding is read like any other word: nothing is packed")
class Unpacked(Encoder):
    def forward(self, X, lengths):
        return self.gru(self.embedding(X))[0], in_order(X, lengths)


@bug(Encoder, "padding is read as if it were words, and only the outputs are zeroed", classic=True)
class ZeroedOutputs(Encoder):
    def forward(self, X, lengths):
        mask = in_order(X, lengths)
        return self.gru(self.embedding(X))[0] * mask[:, :, None], mask


@bug(Encoder, "padding is embedded as zeros, but the backward GRU still reads it")
class ZeroedInputs(Encoder):
    def forward(self, X, lengths):
        mask = in_order(X, lengths)
        return self.gru(self.embedding(X) * mask[:, :, None])[0] * mask[:, :, None], mask


@bug(Encoder, "the backward direction comes first in h")
class BackwardFirst(Encoder):
    def forward(self, X, lengths):
        h, mask = super().forward(X, lengths)
        forward, backward = h.chunk(2, dim=2)
        return torch.cat([backward, forward], dim=2), mask


@bug(Encoder, "the two directions are added instead of concatenated")
class Added(Encoder):
    def forward(self, X, lengths):
        h, mask = super().forward(X, lengths)
        return sum(h.chunk(2, dim=2)), mask


@bug(Encoder, "the batch axis is taken for the time axis")
class BatchAsTime(Encoder):
    def forward(self, X, lengths):
        h, _ = self.gru(self.embedding(X).transpose(0, 1))
        mask = in_order(X, lengths)
        return h.transpose(0, 1) * mask[:, :, None], mask


@bug(Encoder, "the sentences are sorted by length and never put back")
class Sorted(Encoder):
    def forward(self, X, lengths):
        order = lengths.argsort(descending=True)
        h, _ = super().forward(X[order], lengths[order])
        return h, in_order(X, lengths)


@bug(Encoder, "the mask is True where the padding is")
class InvertedMask(Encoder):
    def forward(self, X, lengths):
        h, mask = super().forward(X, lengths)
        return h, ~mask


@bug(Encoder, "the mask goes one word too far")
class LongMask(Encoder):
    def forward(self, X, lengths):
        h, _ = super().forward(X, lengths)
        return h, torch.arange(X.shape[1]) <= lengths[:, None]


@bug(Encoder, "the columns that no sentence fills are cut off", told_by="h should have shape")
class CutOff(Encoder):
    def forward(self, X, lengths):
        N = int(lengths.max())
        return super().forward(X[:, :N], lengths)


@bug(Encoder, "only the last states are returned", told_by="h should have shape")
class LastOnly(Encoder):
    def forward(self, X, lengths):
        h, mask = super().forward(X, lengths)
        return h[:, -1], mask


@bug(Encoder, "no gradient reaches the embedding", told_by="No gradient reaches the embedding")
class Detached(Encoder):
    def forward(self, X, lengths):
        other = nn.Embedding.from_pretrained(self.embedding.weight.detach())
        packed = nn.utils.rnn.pack_padded_sequence(other(X), lengths, True, False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], True, total_length=X.shape[1])
        return h, in_order(X, lengths)


class Summarising(Decoder):
    """A decoder whose context and start the bugs below vary."""

    def start(self, h, mask):
        c = self.summary(h, mask)
        return torch.tanh(self.first(c)), c

    def ends(self, h, mask):
        forward, backward = h.chunk(2, dim=2)
        rows = torch.arange(len(h))
        last = mask.sum(dim=1) - 1
        return forward, backward, rows, last


@bug(Decoder, "→h is read in the last column, where short sentences have padding")
class LastColumn(Summarising):
    def summary(self, h, mask):
        forward, backward, _, _ = self.ends(h, mask)
        return torch.cat([forward[:, -1], backward[:, 0]], dim=1)


@bug(Decoder, "both halves of c are taken from the last word: ←h_N has read one word only")
class LastWord(Summarising):
    def summary(self, h, mask):
        _, _, rows, last = self.ends(h, mask)
        return h[rows, last]


@bug(Decoder, "both halves of c are taken from the first word: →h_1 has read one word only")
class FirstWord(Summarising):
    def summary(self, h, mask):
        return h[:, 0]


@bug(Decoder, "c is the mean of all h, padding included")
class MeanOfAll(Summarising):
    def summary(self, h, mask):
        return h.mean(dim=1)


@bug(Decoder, "c is the mean of the words' h, not their ends")
class MeanOfWords(Summarising):
    def summary(self, h, mask):
        return (h * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)


@bug(Decoder, "the backward half of c comes first")
class BackwardFirstInC(Summarising):
    def summary(self, h, mask):
        forward, backward, rows, last = self.ends(h, mask)
        return torch.cat([backward[:, 0], forward[rows, last]], dim=1)


@bug(Decoder, "→h is read one word before the end")
class BeforeTheEnd(Summarising):
    def summary(self, h, mask):
        forward, backward, rows, last = self.ends(h, mask)
        return torch.cat([forward[rows, last - 1], backward[:, 0]], dim=1)


@bug(Decoder, "s_0 goes through no tanh")
class LinearStart(Decoder):
    def start(self, h, mask):
        _, c = super().start(h, mask)
        return self.first(c), c


@bug(Decoder, "s_0 is returned after c")
class WrongOrder(Decoder):
    def start(self, h, mask):
        return super().start(h, mask)[::-1]


@bug(Decoder, "c comes before the word in the GRU's input")
class ContextBeforeWord(Decoder):
    def step(self, y, s, memory):
        s = self.gru(torch.cat([memory, self.embedding(y)], dim=1), s)
        return self.output(torch.cat([s, memory], dim=1)), s, None


@bug(Decoder, "the output layer sees s_{t-1} instead of s_t")
class OldState(Decoder):
    def step(self, y, s, memory):
        new = self.gru(torch.cat([self.embedding(y), memory], dim=1), s)
        return self.output(torch.cat([s, memory], dim=1)), new, None


@bug(Decoder, "c comes before s_t in the output layer's input")
class ContextBeforeState(Decoder):
    def step(self, y, s, memory):
        s = self.gru(torch.cat([self.embedding(y), memory], dim=1), s)
        return self.output(torch.cat([memory, s], dim=1)), s, None


@bug(Decoder, "the GRU starts from zero at every step")
class Forgetful(Decoder):
    def step(self, y, s, memory):
        return super().step(y, torch.zeros_like(s), memory)


@bug(Decoder, "probabilities are returned instead of logits")
class Probabilities(Decoder):
    def step(self, y, s, memory):
        logits, s, _ = super().step(y, s, memory)
        return torch.softmax(logits, dim=1), s, None


@bug(
    Decoder,
    "c is the last column of h, h[:, -1]: padding, or a ←h_N that has read one word only",
    classic=True,
)
class LastColumnOfBoth(Summarising):
    def summary(self, h, mask):
        return h[:, -1]


def all_logits(decoder, h, mask, Y):
    s, memory = decoder.start(h, mask)
    logits = []
    for t in range(Y.shape[1]):
        step_logits, s, _ = decoder.step(Y[:, t], s, memory)
        logits.append(step_logits)
    return torch.stack(logits, dim=1)  # (B, M, V)


def loss_of(logits, targets, **settings):
    settings = {"ignore_index": PAD, **settings}
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), **settings)


@bug(teacher_forcing_loss, "padding counts as a word to predict", classic=True)
def padding_counts(decoder, h, mask, Y):
    return loss_of(all_logits(decoder, h, mask, Y)[:, :-1], Y[:, 1:], ignore_index=-100)


@bug(teacher_forcing_loss, "the decoder is asked for the word that it was just given", classic=True)
def not_shifted(decoder, h, mask, Y):
    return loss_of(all_logits(decoder, h, mask, Y), Y)


@bug(teacher_forcing_loss, "the decoder is asked for the word after the next")
def shifted_twice(decoder, h, mask, Y):
    return loss_of(all_logits(decoder, h, mask, Y)[:, :-2], Y[:, 2:])


@bug(teacher_forcing_loss, "the step is given the word that it has to predict", classic=True)
def sees_the_answer(decoder, h, mask, Y):
    return loss_of(all_logits(decoder, h, mask, Y)[:, 1:], Y[:, 1:])


@bug(teacher_forcing_loss, "the mean is taken within each sentence first, then over sentences")
def mean_of_means(decoder, h, mask, Y):
    logits = all_logits(decoder, h, mask, Y)[:, :-1].transpose(1, 2)
    losses = functional.cross_entropy(logits, Y[:, 1:], ignore_index=PAD, reduction="none")
    return (losses.sum(dim=1) / (Y[:, 1:] != PAD).sum(dim=1)).mean()


@bug(teacher_forcing_loss, "losses are added up instead of averaged")
def summed(decoder, h, mask, Y):
    return loss_of(all_logits(decoder, h, mask, Y)[:, :-1], Y[:, 1:], reduction="sum")


@bug(teacher_forcing_loss, "padding costs nothing, but is counted in the mean")
def divided_by_all(decoder, h, mask, Y):
    return summed(decoder, h, mask, Y) / Y[:, 1:].numel()


@bug(teacher_forcing_loss, "the decoder is given its own words: that is not teacher forcing")
def free_running(decoder, h, mask, Y):
    s, memory = decoder.start(h, mask)
    y, logits = Y[:, 0], []
    for _ in range(Y.shape[1] - 1):
        step_logits, s, _ = decoder.step(y, s, memory)
        logits.append(step_logits)
        y = step_logits.argmax(dim=1)
    return loss_of(torch.stack(logits, dim=1), Y[:, 1:])


@bug(teacher_forcing_loss, "EOS is not counted")
def no_end(decoder, h, mask, Y):
    targets = torch.where(Y[:, 1:] == EOS, PAD, Y[:, 1:])
    if not targets.any():
        return teacher_forcing_loss(decoder, h, mask, Y)
    return loss_of(all_logits(decoder, h, mask, Y)[:, :-1], targets)


@bug(teacher_forcing_loss, "every step starts from s_0 again")
def state_lost(decoder, h, mask, Y):
    s, memory = decoder.start(h, mask)
    logits = [decoder.step(y, s, memory)[0] for y in Y[:, :-1].unbind(1)]
    return loss_of(torch.stack(logits, dim=1), Y[:, 1:])


@bug(teacher_forcing_loss, "the loss is log p, without the minus")
def no_minus(decoder, h, mask, Y):
    return -teacher_forcing_loss(decoder, h, mask, Y)


@bug(teacher_forcing_loss, "cross_entropy is given probabilities instead of logits")
def two_softmaxes(decoder, h, mask, Y):
    return loss_of(torch.softmax(all_logits(decoder, h, mask, Y)[:, :-1], dim=2), Y[:, 1:])


@bug(
    teacher_forcing_loss,
    "a number is returned, without a graph",
    told_by="loss should be a tensor of shape (), yours is the number",
)
def a_number(decoder, h, mask, Y):
    return teacher_forcing_loss(decoder, h, mask, Y).item()


@bug(
    teacher_forcing_loss,
    "the logarithm is taken of a softmax, which may be 0",
    told_by="loss should be",
)
def log_of_softmax(decoder, h, mask, Y):
    log_p = torch.softmax(all_logits(decoder, h, mask, Y)[:, :-1], dim=2).log()
    return functional.nll_loss(log_p.flatten(0, 1), Y[:, 1:].flatten(), ignore_index=PAD)


def decode(decoder, h, mask, max_length, first=BOS, choose=None, fed=None, keep=True):
    """A greedy search whose parts the bugs below vary."""
    s, memory = decoder.start(h, mask)
    y = torch.full((len(h),), first)
    ended, words = torch.zeros(len(h), dtype=torch.bool), []
    while len(words) < max_length and not ended.all():
        logits, new, _ = decoder.step(y if fed is None else fed, s, memory)
        s = new if keep else s
        y = torch.where(ended, PAD, (choose or (lambda logits: logits.argmax(dim=1)))(logits))
        ended = ended | (y == EOS)
        words.append(y)
    return torch.stack(words, dim=1)


@bug(greedy_decode, "the first step is given EOS instead of BOS")
def starts_with_eos(decoder, h, mask, max_length):
    return decode(decoder, h, mask, max_length, first=EOS)


@bug(greedy_decode, "the first step is given PAD instead of BOS")
def starts_with_pad(decoder, h, mask, max_length):
    return decode(decoder, h, mask, max_length, first=PAD)


@bug(greedy_decode, "the second most probable word is taken")
def second_best(decoder, h, mask, max_length):
    return decode(decoder, h, mask, max_length, choose=lambda logits: logits.topk(2).indices[:, 1])


@bug(greedy_decode, "the least probable word is taken")
def least_probable(decoder, h, mask, max_length):
    return decode(decoder, h, mask, max_length, choose=lambda logits: logits.argmin(dim=1))


@bug(greedy_decode, "every step is given BOS, not the last word", classic=True)
def always_bos(decoder, h, mask, max_length):
    return decode(decoder, h, mask, max_length, fed=torch.full((len(h),), BOS))


@bug(greedy_decode, "every step starts from s_0 again", classic=True)
def state_lost(decoder, h, mask, max_length):
    return decode(decoder, h, mask, max_length, keep=False)


@bug(greedy_decode, "sentences go on after their EOS")
def goes_on(decoder, h, mask, max_length):
    s, memory = decoder.start(h, mask)
    y, ended, words = torch.full((len(h),), BOS), torch.zeros(len(h), dtype=torch.bool), []
    while len(words) < max_length and not ended.all():
        logits, s, _ = decoder.step(y, s, memory)
        y = logits.argmax(dim=1)
        ended = ended | (y == EOS)
        words.append(y)
    return torch.stack(words, dim=1)


@bug(greedy_decode, "all sentences stop as soon as one has ended")
def stops_at_the_first(decoder, h, mask, max_length):
    words = greedy_decode(decoder, h, mask, max_length)
    ends = (words == EOS).any(dim=0).nonzero()
    return words[:, : int(ends[0]) + 1] if len(ends) else words


@bug(greedy_decode, "max_length steps are taken in any case", told_by="words should have shape")
def never_stops(decoder, h, mask, max_length):
    words = greedy_decode(decoder, h, mask, max_length)
    return functional.pad(words, (0, max_length - words.shape[1]), value=PAD)


@bug(
    greedy_decode,
    "max_length steps are taken, and the columns without a word removed afterwards",
    told_by="was taken, after all sentences had ended",
)
def trimmed(decoder, h, mask, max_length):
    s, memory = decoder.start(h, mask)
    for _ in range(max_length):
        _, s, _ = decoder.step(torch.full((len(h),), BOS), s, memory)
    return greedy_decode(decoder, h, mask, max_length)


@bug(greedy_decode, "BOS is part of the result", told_by="words should have shape")
def with_bos(decoder, h, mask, max_length):
    words = greedy_decode(decoder, h, mask, max_length)
    return functional.pad(words, (1, 0), value=BOS)


@bug(greedy_decode, "EOS is replaced by PAD")
def without_eos(decoder, h, mask, max_length):
    words = greedy_decode(decoder, h, mask, max_length)
    return torch.where(words == EOS, PAD, words)


@bug(greedy_decode, "EOS is repeated after the end, where PAD belongs")
def padded_with_eos(decoder, h, mask, max_length):
    words = greedy_decode(decoder, h, mask, max_length)
    return torch.where(words == PAD, EOS, words)


@bug(greedy_decode, "one word too many is written", told_by="words should have shape")
def one_too_many(decoder, h, mask, max_length):
    return greedy_decode(decoder, h, mask, max_length + 1)


def check_counts(hypotheses, references):
    if len(hypotheses) != len(references):
        raise ValueError("as many references as hypotheses, please")


def grams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def score(hypotheses, references, orders=(1, 2, 3, 4), matches=None, brevity=None, total=None):
    """BLEU with parts that the bugs below vary."""
    check_counts(hypotheses, references)
    precisions = []
    for n in orders:
        pairs = [(grams(a, n), grams(b, n)) for a, b in zip(hypotheses, references, strict=True)]
        found = sum((matches or (lambda a, b: (a & b).total()))(a, b) for a, b in pairs)
        count = sum((total or (lambda a, b: a.total()))(a, b) for a, b in pairs)
        if not found:
            return 0.0
        precisions.append(found / count)
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    penalty = (brevity or (lambda c, r: math.exp(min(0, 1 - r / c))))(c, r)
    return 100 * penalty * math.exp(sum(map(math.log, precisions)) / len(precisions))


@bug(bleu, "there is no brevity penalty")
def no_brevity(hypotheses, references):
    return score(hypotheses, references, brevity=lambda c, r: 1.0)


@bug(bleu, "long translations are rewarded: exp(1 - r/c) is used even where it is above one")
def no_limit(hypotheses, references):
    return score(hypotheses, references, brevity=lambda c, r: math.exp(1 - r / c))


@bug(bleu, "the brevity penalty is exp(c/r - 1) instead of exp(1 - r/c)")
def upside_down(hypotheses, references):
    return score(hypotheses, references, brevity=lambda c, r: math.exp(min(0, c / r - 1)))


@bug(bleu, "the brevity penalty is c/r instead of exp(1 - r/c)")
def plain_ratio(hypotheses, references):
    return score(hypotheses, references, brevity=lambda c, r: min(1, c / r))


@bug(bleu, "n-grams are not clipped: each one that is in the reference at all counts")
def not_clipped(hypotheses, references):
    return score(
        hypotheses, references, matches=lambda a, b: sum(n for gram, n in a.items() if gram in b)
    )


@bug(bleu, "each different n-gram counts once only")
def as_sets(hypotheses, references):
    return score(hypotheses, references, matches=lambda a, b: len(set(a) & set(b)))


@bug(bleu, "matches are divided by the references' n-grams: that is recall")
def recall(hypotheses, references):
    return score(hypotheses, references, total=lambda a, b: b.total())


@bug(bleu, "n-grams of five words are also counted")
def five_words(hypotheses, references):
    return score(hypotheses, references, orders=(1, 2, 3, 4, 5))


@bug(bleu, "n-grams of four words are left out")
def three_words(hypotheses, references):
    return score(hypotheses, references, orders=(1, 2, 3))


@bug(
    bleu,
    "lengths of n-grams that no translation has are left out",
    told_by="BLEU without any four words in a row",
)
def without_empty_lengths(hypotheses, references):
    longest = max(map(len, hypotheses), default=0)
    return score(hypotheses, references, orders=range(1, min(longest, 4) + 1))


@bug(bleu, "only single words are counted")
def one_word(hypotheses, references):
    return score(hypotheses, references, orders=(1,))


@bug(bleu, "the precisions' arithmetic mean is taken instead of the geometric one")
def arithmetic(hypotheses, references):
    check_counts(hypotheses, references)
    if not (whole := score(hypotheses, references)):
        return 0.0
    bare = [score(hypotheses, references, (n,), brevity=lambda c, r: 1.0) for n in range(1, 5)]
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    return min(whole * 9, math.exp(min(0, 1 - r / c)) * sum(bare) / 4)


@bug(
    bleu,
    "BLEU is computed for each sentence and averaged, not from the corpus's counts",
    classic=True,
)
def mean_of_sentences(hypotheses, references):
    check_counts(hypotheses, references)
    pairs = zip(hypotheses, references, strict=True)
    return sum(score([a], [b]) for a, b in pairs) / len(hypotheses)


@bug(bleu, "a share between 0 and 1 is returned, not a number from 0 to 100")
def a_share(hypotheses, references):
    return score(hypotheses, references) / 100


@bug(bleu, "a precision of zero raises an error", told_by="bleu raised ValueError")
def logarithm_of_zero(hypotheses, references):
    check_counts(hypotheses, references)
    logarithms = []
    for n in range(1, 5):
        pairs = zip(hypotheses, references, strict=True)
        both = [(grams(a, n), grams(b, n)) for a, b in pairs]
        found = sum((a & b).total() for a, b in both)
        logarithms.append(math.log(found / max(1, sum(a.total() for a, _ in both))))
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    return 100 * math.exp(min(0, 1 - r / c) + sum(logarithms) / 4)


@bug(
    bleu,
    "sentences without a reference are dropped",
    told_by="should raise ValueError when a reference is missing",
)
def dropped(hypotheses, references):
    count = min(len(hypotheses), len(references))
    return score(hypotheses[:count], references[:count])


@bug(
    bleu,
    "references without a translation are dropped",
    told_by="should raise ValueError when a translation is missing",
)
def references_dropped(hypotheses, references):
    if len(hypotheses) > len(references):
        raise ValueError("a reference is missing")
    return score(hypotheses, references[: len(hypotheses)])


@bug(
    bleu,
    "0 is returned for no translations, before anybody asks how many there should be",
    told_by="should raise ValueError when there are references alone",
)
def silent(hypotheses, references):
    return score(hypotheses, references) if hypotheses else 0.0


@bug(bleu, "an n-gram of the translations counts if any of the references has it")
def pooled(hypotheses, references):
    check_counts(hypotheses, references)
    precisions = []
    for n in range(1, 5):
        a, b = (
            sum((grams(one, n) for one in all_), Counter()) for all_ in (hypotheses, references)
        )
        precisions.append((a & b).total() / max(1, a.total()))
    c, r = sum(map(len, hypotheses)), max(1, sum(map(len, references)))
    return 100 * math.exp(min(0, 1 - r / max(1, c))) * math.prod(precisions) ** 0.25


@bug(bleu, "n-grams are joined to one string each, so that ab, c counts as a, bc")
def joined(hypotheses, references):
    def found(a, b):
        a, b = ({"".join(gram): 0 for gram in side} | count(side) for side in (a, b))
        return sum(min(n, b.get(gram, 0)) for gram, n in a.items())

    def count(side):
        total = Counter()
        for gram, n in side.items():
            total["".join(gram)] += n
        return total

    return score(hypotheses, references, matches=found)


equivalent(
    bleu,
    "return 100 * math.exp(min(0, 1 - r / c) + sum(logarithms) / 4) → "
    "return 100 * math.exp(min(1 - r / c, 0) + sum(logarithms) / 4)",
    "the smaller of two numbers does not depend on their order",
)


@bug(additive_scores, "s and the keys are multiplied instead of added")
def multiplied(s, keys, W, v):
    return torch.tanh((s @ W.T)[:, None] * keys) @ v


@bug(additive_scores, "there is no tanh")
def linear(s, keys, W, v):
    return ((s @ W.T)[:, None] + keys) @ v


@bug(additive_scores, "σ is used instead of tanh")
def sigmoid(s, keys, W, v):
    return torch.sigmoid((s @ W.T)[:, None] + keys) @ v


@bug(additive_scores, "ReLU is used instead of tanh")
def relu(s, keys, W, v):
    return torch.relu((s @ W.T)[:, None] + keys) @ v


@bug(additive_scores, "tanh is taken of each part before they are added")
def two_tanhs(s, keys, W, v):
    return (torch.tanh(s @ W.T)[:, None] + torch.tanh(keys)) @ v


@bug(additive_scores, "tanh is taken of the score, not of the features")
def tanh_of_score(s, keys, W, v):
    return torch.tanh(((s @ W.T)[:, None] + keys) @ v)


@bug(additive_scores, "the state s is left out, so that the scores are the same at every step")
def no_state(s, keys, W, v):
    return torch.tanh(keys) @ v


@bug(additive_scores, "the state is subtracted from the keys")
def subtracted(s, keys, W, v):
    return torch.tanh(keys - (s @ W.T)[:, None]) @ v


@bug(additive_scores, "v is left out: the features are added up as they are")
def no_v(s, keys, W, v):
    return torch.tanh((s @ W.T)[:, None] + keys).sum(dim=2)


@bug(additive_scores, "the scores already go through a softmax")
def already_softmax(s, keys, W, v):
    return torch.softmax(torch.tanh((s @ W.T)[:, None] + keys) @ v, dim=1)


@bug(additive_scores, "the scores are divided by √A")
def scaled(s, keys, W, v):
    return torch.tanh((s @ W.T)[:, None] + keys) @ v / math.sqrt(len(v))


@bug(additive_scores, "every sentence is scored with the first sentence's state")
def first_state(s, keys, W, v):
    return torch.tanh((s[:1] @ W.T)[:, None] + keys) @ v


@bug(additive_scores, "no gradient passes through s", told_by="No gradient reaches s:")
def detached(s, keys, W, v):
    return torch.tanh((s.detach() @ W.T)[:, None] + keys) @ v


@bug(
    additive_scores,
    "the missing axis of W s goes to the front, where the sentences are, not to the words",
    told_by="raised RuntimeError: ",
    classic=True,
)
def broadcast_in_front(s, keys, W, v):
    return torch.tanh((s @ W.T)[None] + keys) @ v


def average(a, h):
    return (a[:, :, None] * h).sum(dim=1), a


@bug(attend, "padding is not masked")
def not_masked(e, h, mask):
    return average(torch.softmax(e, dim=1), h)


@bug(attend, "the words are masked instead of the padding")
def inverted(e, h, mask):
    return average(torch.softmax(e.masked_fill(mask, -math.inf), dim=1), h)


@bug(attend, "masked scores are set to 0 before the softmax, and e⁰ is 1", classic=True)
def zero_scores(e, h, mask):
    return average(torch.softmax(e.masked_fill(~mask, 0), dim=1), h)


@bug(
    attend,
    "weights are set to 0 after the softmax, so that they no longer sum to one",
    classic=True,
)
def zeroed_after(e, h, mask):
    return average(torch.softmax(e, dim=1) * mask, h)


@bug(
    attend,
    "weights are set to 0 after the softmax and divided by their sum, which may be 0 too",
    told_by="yours is nan",
)
def zeroed_and_divided(e, h, mask):
    p = torch.softmax(e, dim=1) * mask
    return average(p / p.sum(dim=1, keepdim=True), h)


@bug(attend, "the softmax runs over the batch")
def over_the_batch(e, h, mask):
    return average(torch.softmax(e.masked_fill(~mask, -1e30), dim=0) * mask, h)


@bug(attend, "the weights are the scores, divided by their sum, without exp")
def no_exponential(e, h, mask):
    e = e * mask
    return average(e / e.sum(dim=1, keepdim=True), h)


@bug(attend, "every word has the same weight")
def uniform(e, h, mask):
    return average(mask / mask.sum(dim=1, keepdim=True) + 0 * e, h)


@bug(attend, "only the best word has a weight: an argmax, through which no gradient passes")
def hard(e, h, mask):
    best = e.masked_fill(~mask, -math.inf).argmax(dim=1)
    return average(functional.one_hot(best, e.shape[1]).to(h) + 0 * e, h)


@bug(attend, "each weight goes through σ, so that they do not sum to one")
def sigmoid(e, h, mask):
    return average(torch.sigmoid(e) * mask, h)


@bug(attend, "h is added up, and the weights are not used")
def sum_of_words(e, h, mask):
    a = torch.softmax(e.masked_fill(~mask, -math.inf), dim=1)
    return (h * mask[:, :, None]).sum(dim=1), a


@bug(attend, "the weights are returned before the context")
def wrong_order(e, h, mask):
    return attend(e, h, mask)[::-1]


@bug(attend, "exp is taken of the scores as they are, and overflows")
def overflow(e, h, mask):
    p = torch.exp(e) * mask
    return average(p / p.sum(dim=1, keepdim=True), h)


class Varied(AttentionDecoder):
    """A decoder with attention whose parts the bugs below vary."""

    def start(self, h, mask):
        return torch.tanh(self.first(self.beginning(h, mask))), (h, h @ self.U.T, mask)

    def beginning(self, h, mask):
        return h[:, 0, h.shape[2] // 2 :]

    def step(self, y, s, memory):
        h, keys, mask = memory
        c, a = attend(additive_scores(s, keys, self.W, self.v), h, mask)
        s = self.gru(torch.cat([self.embedding(y), c], dim=1), s)
        return self.output(torch.cat([s, c], dim=1)), s, a


@bug(
    AttentionDecoder,
    "s_0 is taken from the forward state of the first word: it has read only that",
    classic=True,
)
class ForwardFirst(Varied):
    def beginning(self, h, mask):
        return h[:, 0, : h.shape[2] // 2]


@bug(AttentionDecoder, "s_0 is taken from the last column, which may be padding")
class LastColumnStart(Varied):
    def beginning(self, h, mask):
        return h[:, -1, h.shape[2] // 2 :]


@bug(AttentionDecoder, "s_0 is taken from the forward state of the last word")
class ForwardLast(Varied):
    def beginning(self, h, mask):
        return h[torch.arange(len(h)), mask.sum(dim=1) - 1, : h.shape[2] // 2]


@bug(AttentionDecoder, "s_0 goes through no tanh")
class LinearStart(Varied):
    def start(self, h, mask):
        return self.first(self.beginning(h, mask)), (h, h @ self.U.T, mask)


@bug(AttentionDecoder, "padding gets weights: the mask is not used")
class NoMask(Varied):
    def start(self, h, mask):
        s, (h, keys, mask) = super().start(h, mask)
        return s, (h, keys, torch.ones_like(mask))


@bug(AttentionDecoder, "the scores are computed from s_t, after the GRU's step", classic=True)
class NewState(Varied):
    def step(self, y, s, memory):
        h, keys, mask = memory
        c, _ = attend(additive_scores(s, keys, self.W, self.v), h, mask)
        s = self.gru(torch.cat([self.embedding(y), c], dim=1), s)
        c, a = attend(additive_scores(s, keys, self.W, self.v), h, mask)
        return self.output(torch.cat([s, c], dim=1)), s, a


@bug(AttentionDecoder, "the context is that of s_0 at every step")
class FixedContext(Varied):
    def start(self, h, mask):
        s, (h, keys, mask) = super().start(h, mask)
        return s, (h, keys, mask, s)

    def step(self, y, s, memory):
        h, keys, mask, first = memory
        c, a = attend(additive_scores(first, keys, self.W, self.v), h, mask)
        s = self.gru(torch.cat([self.embedding(y), c], dim=1), s)
        return self.output(torch.cat([s, c], dim=1)), s, a


@bug(AttentionDecoder, "the encoder's states are compared without U")
class NoProjection(Varied):
    def start(self, h, mask):
        A, C = self.U.shape
        keys = functional.pad(h, (0, max(0, A - C)))[:, :, :A]
        return torch.tanh(self.first(self.beginning(h, mask))), (h, keys, mask)


@bug(AttentionDecoder, "the output layer sees s_{t-1} instead of s_t")
class OldState(Varied):
    def step(self, y, s, memory):
        h, keys, mask = memory
        c, a = attend(additive_scores(s, keys, self.W, self.v), h, mask)
        new = self.gru(torch.cat([self.embedding(y), c], dim=1), s)
        return self.output(torch.cat([s, c], dim=1)), new, a


@bug(AttentionDecoder, "the context comes before the word in the GRU's input")
class ContextBeforeWord(Varied):
    def step(self, y, s, memory):
        h, keys, mask = memory
        c, a = attend(additive_scores(s, keys, self.W, self.v), h, mask)
        s = self.gru(torch.cat([c, self.embedding(y)], dim=1), s)
        return self.output(torch.cat([s, c], dim=1)), s, a


@bug(AttentionDecoder, "the scores are returned in place of the weights")
class ScoresReturned(Varied):
    def step(self, y, s, memory):
        _, keys, _ = memory
        logits, new, _ = super().step(y, s, memory)
        return logits, new, additive_scores(s, keys, self.W, self.v)


@bug(
    AttentionDecoder,
    "no gradient passes through the scores",
    told_by="gradient of h",
)
class DetachedScores(Varied):
    def step(self, y, s, memory):
        h, keys, mask = memory
        c, a = attend(additive_scores(s, keys, self.W, self.v).detach(), h, mask)
        s = self.gru(torch.cat([self.embedding(y), c], dim=1), s)
        return self.output(torch.cat([s, c], dim=1)), s, a


@bug(AttentionDecoder, "`step` looks at the sentences started last, not at its memory")
class OwnMemory(Varied):
    def start(self, h, mask):
        s, self.last = super().start(h, mask)
        return s, ()

    def step(self, y, s, memory):
        return super().step(y, s, self.last)


@bug(AttentionDecoder, "U h is computed for the first sentences, and kept for all others")
class KeptKeys(Varied):
    def start(self, h, mask):
        s, (h, keys, mask) = super().start(h, mask)
        if not hasattr(self, "keys") or self.keys.shape != keys.shape:
            self.keys = keys
        return s, (h, self.keys, mask)


def search(
    decoder,
    h,
    mask,
    width,
    max_length,
    alpha=1.0,
    *,
    start=BOS,
    all_start=False,
    reorder=True,
    ends=True,
    normalise=None,
    scores=lambda logits: torch.log_softmax(logits, dim=1),
    returned=lambda log_p, length, alpha: log_p,
    cost=0.0,
    reserved=True,
    is_sorted=True,
):
    """A beam search whose parts the bugs below vary."""
    s, memory = decoder.start(h.expand(width, -1, -1), mask.expand(width, -1))
    words = torch.full((width, 1), start)
    log_p = torch.zeros(width, dtype=h.dtype)
    if not all_start:
        log_p[1:] = -math.inf
    length, ended = torch.zeros_like(log_p), torch.zeros(width, dtype=torch.bool)
    normalise = normalise or (lambda total, length, alpha: total / length**alpha)
    while words.shape[1] <= max_length and not ended.all():
        logits, s, _ = decoder.step(words[:, -1], s, memory)
        more = scores(logits)
        if ends:
            more[ended] = -math.inf
            more[ended, PAD] = cost
            length = length + ~ended
        else:
            length = length + 1
        total = log_p[:, None] + more
        score = normalise(total, length[:, None], alpha)
        if reserved:
            score[0, score[0].argmax()] = math.inf
        best = score.flatten().topk(width).indices
        rows, y = best // logits.shape[1], best % logits.shape[1]
        words = torch.cat([words[rows], y[:, None]], dim=1)
        log_p, length = total.flatten()[best], length[rows]
        s = s[rows] if reorder else s
        ended = ended[rows] | (y == EOS)
    best_first = normalise(log_p, length, alpha).argsort(descending=True).tolist()
    return [
        (words[k, 1 : 1 + int(length[k])].tolist(), returned(log_p[k], length[k], alpha).item())
        for k in (best_first if is_sorted else range(width))
        if log_p[k] > -math.inf
    ]


@bug(beam_search, "the states s are not put into the order of the kept hypotheses", classic=True)
def not_reordered(decoder, h, mask, width, max_length, alpha=1.0):
    return search(decoder, h, mask, width, max_length, alpha, reorder=False)


@bug(
    beam_search,
    "all rows count in the first step, so that the beam is filled with copies",
    classic=True,
)
def copies(decoder, h, mask, width, max_length, alpha=1.0):
    return search(decoder, h, mask, width, max_length, alpha, all_start=True)


@bug(beam_search, "no place is reserved for what greedy decoding writes")
def not_reserved(decoder, h, mask, width, max_length, alpha=1.0):
    return search(decoder, h, mask, width, max_length, alpha, reserved=False)


@bug(beam_search, "logits are added up as if they were log-probabilities")
def logits_added(decoder, h, mask, width, max_length, alpha=1.0):
    return search(decoder, h, mask, width, max_length, alpha, scores=lambda logits: logits + 0)


@bug(beam_search, "probabilities are added up instead of their logarithms")
def probabilities(decoder, h, mask, width, max_length, alpha=1.0):
    return search(
        decoder, h, mask, width, max_length, alpha, scores=lambda logits: logits.softmax(dim=1)
    )


@bug(beam_search, "hypotheses go on after their EOS")
def goes_on(decoder, h, mask, width, max_length, alpha=1.0):
    return search(decoder, h, mask, width, max_length, alpha, ends=False)


@bug(beam_search, "scores are not divided by the length, whatever α is")
def not_normalised(decoder, h, mask, width, max_length, alpha=1.0):
    return search(decoder, h, mask, width, max_length, 0.0)


@bug(
    beam_search,
    "only what is returned is sorted by log p / T^α: the search goes by log p, or the like",
)
def divided_at_the_end(decoder, h, mask, width, max_length, alpha=1.0):
    found = search(decoder, h, mask, width, max_length, 0.0)
    return sorted(found, key=lambda pair: -pair[1] / len(pair[0]) ** alpha)


@bug(beam_search, "EOS is left out of the length T")
def eos_not_counted(decoder, h, mask, width, max_length, alpha=1.0):
    found = search(decoder, h, mask, width, max_length, alpha)
    return sorted(
        found, key=lambda pair: -pair[1] / max(1, len(pair[0]) - (EOS in pair[0])) ** alpha
    )


@bug(
    beam_search,
    "the logarithm is taken of a softmax, which may be 0",
    told_by="hypotheses should number at least",
)
def log_of_softmax_searched(decoder, h, mask, width, max_length, alpha=1.0):
    return search(
        decoder, h, mask, width, max_length, alpha, scores=lambda logits: logits.softmax(1).log()
    )


@bug(beam_search, "the search divides by the length, but what it returns is sorted by log p")
def sorted_by_log_p(decoder, h, mask, width, max_length, alpha=1.0):
    found = beam_search(decoder, h, mask, width, max_length, alpha)
    return sorted(found, key=lambda pair: -pair[1])


@bug(beam_search, "α is taken to be 1, whatever it is")
def always_the_mean(decoder, h, mask, width, max_length, alpha=1.0):
    return search(decoder, h, mask, width, max_length, 1.0)


@bug(beam_search, "the length multiplies the score instead of dividing it")
def multiplied(decoder, h, mask, width, max_length, alpha=1.0):
    return search(
        decoder, h, mask, width, max_length, alpha, normalise=lambda p, n, alpha: p * n**alpha
    )


@bug(beam_search, "scores are divided by α times the length, not by its power")
def times_alpha(decoder, h, mask, width, max_length, alpha=1.0):
    return search(
        decoder,
        h,
        mask,
        width,
        max_length,
        alpha,
        normalise=lambda p, n, alpha: p / (1 + alpha * (n - 1)),
    )


@bug(beam_search, "the score divided by the length is returned as the log-probability")
def normalised_returned(decoder, h, mask, width, max_length, alpha=1.0):
    return search(
        decoder,
        h,
        mask,
        width,
        max_length,
        alpha,
        returned=lambda p, n, alpha: p / n ** max(alpha, 0.5),
    )


@bug(beam_search, "the first step is given EOS instead of BOS")
def starts_with_eos(decoder, h, mask, width, max_length, alpha=1.0):
    return search(decoder, h, mask, width, max_length, alpha, start=EOS)


@bug(beam_search, "the search stops when the first hypothesis has ended")
def first_end(decoder, h, mask, width, max_length, alpha=1.0):
    for length in range(1, max_length + 1):
        found = search(decoder, h, mask, width, length, alpha)
        if any(EOS in words for words, _ in found):
            break
    return found


@bug(beam_search, "the hypotheses are returned worst first")
def worst_first(decoder, h, mask, width, max_length, alpha=1.0):
    return search(decoder, h, mask, width, max_length, alpha)[::-1]


@bug(beam_search, "only the best word of each hypothesis is tried")
def one_word_each(decoder, h, mask, width, max_length, alpha=1.0):
    found = []
    first = decoder.step(torch.tensor([BOS]), *decoder.start(h, mask))
    best = torch.log_softmax(first[0][0], dim=0).topk(min(width, first[0].shape[1]))
    for log_p, word in zip(best.values, best.indices, strict=True):
        (_, s, _), (_, memory) = first, decoder.start(h, mask)
        words, total = [int(word)], float(log_p)
        while words[-1] != EOS and len(words) < max_length:
            logits, s, _ = decoder.step(torch.tensor(words[-1:]), s, memory)
            value, index = torch.log_softmax(logits[0], dim=0).max(dim=0)
            words.append(int(index))
            total += float(value)
        found.append((words, total))
    return sorted(found, key=lambda one: -one[1] / len(one[0]) ** alpha)


@bug(
    beam_search,
    "the hypotheses are not sorted at the end: the greedy one comes first",
    classic=True,
)
def not_sorted(decoder, h, mask, width, max_length, alpha=1.0):
    return search(decoder, h, mask, width, max_length, alpha, is_sorted=False)
