"""Known wrong solutions of seq2seq."""

import math
from collections import Counter

import torch

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.data.translation import BOS, EOS
from course_pkg.seq2seq import (
    AttentionDecoder,
    Decoder,
    Encoder,
    additive_scores,
    additive_scores_fault,
    attend,
    beam_search,
    bleu,
    greedy_decode,
    teacher_forcing_loss,
)


def in_order(X, lengths):
    return torch.arange(X.shape[1]) < lengths[:, None]


mistakes(
    Encoder,
    """
Unpacked: padding is read like any other word: nothing is packed
    nn.utils.rnn.pad_packed_sequence(h, batch_first=True, total_length=N)
    → self.gru(self.embedding(X))
""",
)


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


mistakes(
    Encoder,
    """
BackwardFirst: the backward direction comes first in h
    return h, → return h.roll(h.shape[2] // 2, dims=2),
Added: the two directions are added instead of concatenated
    return h, → return sum(h.chunk(2, dim=2)),
""",
)


@bug(Encoder, "the batch axis is taken for the time axis")
class BatchAsTime(Encoder):
    def forward(self, X, lengths):
        h, _ = self.gru(self.embedding(X).transpose(0, 1))
        mask = in_order(X, lengths)
        return h.transpose(0, 1) * mask[:, :, None], mask


mistakes(
    Encoder,
    """
Sorted: the sentences are sorted by length and never put back
    self.embedding(X), lengths.cpu()
    → self.embedding(X[lengths.argsort(descending=True)]), lengths.sort(descending=True)[0]
InvertedMask: the mask is True where the padding is
    < lengths[:, None] → >= lengths[:, None]
LongMask: the mask goes one word too far
    < lengths[:, None] → <= lengths[:, None]
CutOff: the columns that no sentence fills are cut off
    N = X.shape[1] → N = int(lengths.max())
    says: h should have shape
LastOnly: only the last states are returned
    return h, → return h[:, -1],
    says: h should have shape
Detached: no gradient reaches the embedding
    self.embedding(X) → self.embedding(X).detach()
    says: No gradient reaches the embedding
""",
)

mistakes(
    Decoder,
    """
LastColumn: →h is read in the last column, where short sentences have padding
    h[torch.arange(B), last, : C // 2] → h[:, -1, : C // 2]
LastWord: both halves of c are taken from the last word: ←h_N has read one word only
    h[:, 0, C // 2 :] → h[torch.arange(B), last, C // 2 :]
FirstWord: both halves of c are taken from the first word: →h_1 has read one word only
    h[torch.arange(B), last, : C // 2] → h[:, 0, : C // 2]
MeanOfAll: c is the mean of all h, padding included
    torch.cat([h[torch.arange(B), last, : C // 2], h[:, 0, C // 2 :]], dim=1) → h.mean(dim=1)
MeanOfWords: c is the mean of the words' h, not their ends
    torch.cat([h[torch.arange(B), last, : C // 2], h[:, 0, C // 2 :]], dim=1)
    → (h * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
BackwardFirstInC: the backward half of c comes first
    [h[torch.arange(B), last, : C // 2], h[:, 0, C // 2 :]]
    → [h[:, 0, C // 2 :], h[torch.arange(B), last, : C // 2]]
BeforeTheEnd: →h is read one word before the end
    mask.sum(dim=1) - 1 → mask.sum(dim=1) - 2
LinearStart: s_0 goes through no tanh
    torch.tanh(self.first(c)) → self.first(c)
WrongOrder: s_0 is returned after c
    torch.tanh(self.first(c)), c → c, torch.tanh(self.first(c))
ContextBeforeWord: c comes before the word in the GRU's input
    [self.embedding(y), memory] → [memory, self.embedding(y)]
OldState: the output layer sees s_{t-1} instead of s_t
    s = self.gru( → new = self.gru(
    s, None
    #
    → new, None
      #
ContextBeforeState: c comes before s_t in the output layer's input
    [s, memory] → [memory, s]
Forgetful: the GRU starts from zero at every step
    memory], dim=1), s) → memory], dim=1), torch.zeros_like(s))
Probabilities: probabilities are returned instead of logits
    [s, memory], dim=1)) → [s, memory], dim=1)).softmax(dim=1)
""",
)

changed(
    Decoder,
    "LastColumnOfBoth",
    "c is the last column of h, h[:, -1]: padding, or a ←h_N that has read one word only",
    ("torch.cat([h[torch.arange(B), last, : C // 2], h[:, 0, C // 2 :]], dim=1)", "h[:, -1]"),
    classic=True,
)

mistakes(
    teacher_forcing_loss,
    """
* padding_counts: padding counts as a word to predict
    , ignore_index=PAD →
* not_shifted: the decoder is asked for the word that it was just given
    Y.shape[1] - 1 → Y.shape[1]
    Y[:, 1:] → Y
asked_again: the decoder is asked for the word that it was just given
    Y[:, 1:] → Y[:, :-1]
shifted_twice: the decoder is asked for the word after the next
    torch.stack(logits, dim=1) → torch.stack(logits, dim=1)[:, :-1]
    Y[:, 1:] → Y[:, 2:]
* sees_the_answer: the step is given the word that it has to predict
    Y.shape[1] - 1 → Y.shape[1]
    stack(logits, → stack(logits[1:],
answers_alone: the step is given the word that it has to predict
    range(Y.shape[1] - 1) → range(1, Y.shape[1])
mean_of_means: the mean is taken within each sentence first, then over sentences
    functional.cross_entropy(flat, Y[:, 1:].flatten(), ignore_index=PAD)
    → torch.stack(
          [
              functional.cross_entropy(own, y, ignore_index=PAD)
              for own, y in zip(torch.stack(logits, dim=1), Y[:, 1:])
          ]
      ).mean()
summed: losses are added up instead of averaged
    ignore_index=PAD → ignore_index=PAD, reduction="sum"
divided_by_all: padding costs nothing, but is counted in the mean
    ignore_index=PAD) → ignore_index=PAD, reduction="sum") / Y[:, 1:].numel()
free_running: the decoder is given its own words: that is not teacher forcing
    decoder.step(Y[:, t], → decoder.step(logits[-1].argmax(dim=1) if t else Y[:, 0],
""",
)

changed(
    teacher_forcing_loss,
    "no_end",
    "EOS is not counted",
    (
        "    s, memory =",
        "    if (shorter := Y.masked_fill(Y == EOS, PAD))[:, 1:].any():\n"
        "        Y = shorter\n"
        "    s, memory =",
    ),
)

mistakes(
    teacher_forcing_loss,
    """
state_lost: every step starts from s_0 again
    step_logits, s, _ = → step_logits, _, _ =
no_minus: the loss is log p, without the minus
    return functional → return -functional
two_softmaxes: cross_entropy is given probabilities instead of logits
    cross_entropy(flat, → cross_entropy(flat.softmax(dim=1),
a_number: a number is returned, without a graph
    ignore_index=PAD) → ignore_index=PAD).item()
    says: loss should be a tensor of shape (), yours is the number
log_of_softmax: the logarithm is taken of a softmax, which may be 0
    cross_entropy(flat, → nll_loss(flat.softmax(dim=1).log(),
    says: loss should be
""",
)

mistakes(
    greedy_decode,
    """
starts_with_eos: the first step is given EOS instead of BOS
    BOS, dtype → EOS, dtype
starts_with_pad: the first step is given PAD instead of BOS
    BOS, dtype → PAD, dtype
second_best: the second most probable word is taken
    logits.argmax(dim=1) → logits.topk(2).indices[:, 1]
least_probable: the least probable word is taken
    argmax → argmin
* always_bos: every step is given BOS, not the last word
    decoder.step(y, → decoder.step(torch.full_like(y, BOS),
* state_lost: every step starts from s_0 again
    logits, s, _ = → logits, _, _ =
goes_on: sentences go on after their EOS
    torch.where(ended, PAD, logits.argmax(dim=1)) → logits.argmax(dim=1)
stops_at_the_first: all sentences stop as soon as one has ended
    ended.all() → ended.any()
""",
)

changed(
    greedy_decode,
    "never_stops",
    "max_length steps are taken in any case",
    (
        "    return torch",
        "    words += [torch.full_like(y, PAD)] * (max_length - len(words))\n    return torch",
    ),
    told_by="words should have shape",
)

mistakes(
    greedy_decode,
    """
trimmed: max_length steps are taken, and the columns without a word removed afterwards
    length and not ended.all() → length
    return torch.stack(words, dim=1)
    → words = torch.stack(words, dim=1)
      return words[:, (words != PAD).any(dim=0)]
    says: was taken, after all sentences had ended
with_bos: BOS is part of the result
    stack(words, → stack([torch.full_like(y, BOS), *words],
    says: words should have shape
without_eos: EOS is replaced by PAD
    append(y) → append(y.masked_fill(y == EOS, PAD))
padded_with_eos: EOS is repeated after the end, where PAD belongs
    torch.where(ended, PAD → torch.where(ended, EOS
one_too_many: one word too many is written
    len(words) < → len(words) <=
    says: words should have shape
""",
)


def check_counts(hypotheses, references):
    if len(hypotheses) != len(references):
        raise ValueError("as many references as hypotheses, please")


def grams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


mistakes(
    bleu,
    """
no_brevity: there is no brevity penalty
    min(0, 1 - r / c) + → 0 +
no_limit: long translations are rewarded: exp(1 - r/c) is used even where it is above one
    min(0, 1 - r / c) → 1 - r / c
upside_down: the brevity penalty is exp(c/r - 1) instead of exp(1 - r/c)
    1 - r / c → c / r - 1
plain_ratio: the brevity penalty is c/r instead of exp(1 - r/c)
    math.exp(min(0, 1 - r / c) + → min(1, c / r) * math.exp(
not_clipped: n-grams are not clipped: each one that is in the reference at all counts
    (given & wanted).total() → sum(count for gram, count in given.items() if gram in wanted)
as_sets: each different n-gram counts once only
    (given & wanted).total() → len(given & wanted)
recall: matches are divided by the references' n-grams: that is recall
    given.total() → wanted.total()
five_words: n-grams of five words are also counted
    range(1, 5) → range(1, 6)
    / 4) → / 5)
three_words: n-grams of four words are left out
    range(1, 5) → range(1, 4)
    / 4) → / 3)
without_empty_lengths: lengths of n-grams that no translation has are left out
    if matches == 0
    → if total == 0:
          continue
      if matches == 0
    / 4) → / len(logarithms))
    says: BLEU without any four words in a row
one_word: only single words are counted
    range(1, 5) → range(1, 2)
    / 4) → / 1)
arithmetic: the precisions' arithmetic mean is taken instead of the geometric one
    math.exp(min(0, 1 - r / c) + sum(logarithms) / 4)
    → math.exp(min(0, 1 - r / c)) * sum(map(math.exp, logarithms)) / 4
""",
)


@bug(
    bleu,
    "BLEU is computed for each sentence and averaged, not from the corpus's counts",
    classic=True,
)
def mean_of_sentences(hypotheses, references):
    pairs = zip(hypotheses, references, strict=True)
    return sum(bleu([a], [b]) for a, b in pairs) / len(hypotheses)


mistakes(
    bleu,
    """
a_share: a share between 0 and 1 is returned, not a number from 0 to 100
    return 100 * → return
""",
)

changed(
    bleu,
    "logarithm_of_zero",
    "a precision of zero raises an error",
    ("        if matches == 0:\n            return 0.0\n", ""),
    ("matches / total", "matches / max(1, total)"),
    told_by="bleu raised ValueError",
)

changed(
    bleu,
    "dropped",
    "sentences without a reference are dropped",
    ("    logarithms = []\n", "    hypotheses, logarithms = hypotheses[: len(references)], []\n"),
    told_by="should raise ValueError when a reference is missing",
)

changed(
    bleu,
    "references_dropped",
    "references without a translation are dropped",
    ("    logarithms = []\n", "    references, logarithms = references[: len(hypotheses)], []\n"),
    told_by="should raise ValueError when a translation is missing",
)

changed(
    bleu,
    "silent",
    "0 is returned for no translations, before anybody asks how many there should be",
    ("    logarithms = []\n", "    if not hypotheses:\n        return 0.0\n    logarithms = []\n"),
    told_by="should raise ValueError when there are references alone",
)


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


mistakes(
    bleu,
    """
joined: n-grams are joined to one string each, so that ab, c counts as a, bc
    Counter(tuple( → Counter("".join(
""",
)


equivalent(
    bleu,
    "return 100 * math.exp(min(0, 1 - r / c) + sum(logarithms) / 4) → "
    "return 100 * math.exp(min(1 - r / c, 0) + sum(logarithms) / 4)",
    "the smaller of two numbers does not depend on their order",
)

mistakes(
    additive_scores,
    """
multiplied: s and the keys are multiplied instead of added
    + keys → * keys
linear: there is no tanh
    torch.tanh( → (
sigmoid: σ is used instead of tanh
    torch.tanh( → torch.sigmoid(
relu: ReLU is used instead of tanh
    torch.tanh( → torch.relu(
two_tanhs: tanh is taken of each part before they are added
    torch.tanh((s @ W.T)[:, None] + keys) → (torch.tanh(s @ W.T)[:, None] + torch.tanh(keys))
tanh_of_score: tanh is taken of the score, not of the features
    torch.tanh((s @ W.T)[:, None] + keys) @ v → torch.tanh(((s @ W.T)[:, None] + keys) @ v)
no_state: the state s is left out, so that the scores are the same at every step
    (s @ W.T)[:, None] + keys → keys
subtracted: the state is subtracted from the keys
    (s @ W.T)[:, None] + keys → keys - (s @ W.T)[:, None]
no_v: v is left out: the features are added up as they are
    keys) @ v → keys).sum(dim=2)
already_softmax: the scores already go through a softmax
    return torch → return torch.softmax(torch
    keys) @ v → keys) @ v, dim=1)
scaled: the scores are divided by √A
    keys) @ v → keys) @ v / math.sqrt(len(v))
first_state: every sentence is scored with the first sentence's state
    (s @ W.T) → (s[:1] @ W.T)
detached: no gradient passes through s
    (s @ W.T) → (s.detach() @ W.T)
    says: No gradient reaches s:
""",
)

changed(
    additive_scores,
    "broadcast_in_front",
    "the missing axis of W s goes to the front, where the sentences are, not to the words",
    ("[:, None]", "[None]"),
    told_by="raised RuntimeError: ",
    classic=True,
)

black_box(
    additive_scores, "sigmoid", curve="attention_history.losses", label="loss, nats for each word"
)

wrong_answers(additive_scores_fault, "B")
mistakes(
    additive_scores_fault,
    """
no_v: v is 0, and so is every score
    one[0]) → zero[0])
    says: With these arguments the black box gives what is right
large: the features are so large that tanh and σ are both 1
    (zero, zero[None] → (zero, zero[None] + 100
    says: With these arguments the black box gives what is right
one_axis: the keys have no axis of words
    zero[None] → zero
    says: additive_scores raised ValueError
no_sentences: the state has no axis of sentences
    (zero, zero[None] → (zero[0], zero[None]
    says: additive_scores raised ValueError
sizes_differ: W maps to more features than the keys have
    zero[None], one, → zero[None], one.expand(2, 1),
    says: additive_scores raised ValueError
three_arguments: v is missing
    one, one[0]) → one)
    says: additive_scores raised TypeError
no_tensors: the arguments are Python's numbers
    (zero, zero[None], one, one[0]) → (0.0, 0.0, 1.0, 1.0)
    says: additive_scores raised AttributeError
""",
)

mistakes(
    attend,
    """
not_masked: padding is not masked
    e.masked_fill(~mask, -math.inf) → e
inverted: the words are masked instead of the padding
    ~mask → mask
* zero_scores: masked scores are set to 0 before the softmax, and e⁰ is 1
    -math.inf → 0
* zeroed_after: weights are set to 0 after the softmax, so that they no longer sum to one
    e.masked_fill(~mask, -math.inf), dim=1) → e, dim=1) * mask
""",
)

changed(
    attend,
    "zeroed_and_divided",
    "weights are set to 0 after the softmax and divided by their sum, which may be 0 too",
    (
        "e.masked_fill(~mask, -math.inf), dim=1)",
        "e, dim=1) * mask\n    a = a / a.sum(dim=1, keepdim=True)",
    ),
    told_by="yours is nan",
)

mistakes(
    attend,
    """
over_the_batch: the softmax runs over the batch
    -math.inf), dim=1) → -1e30), dim=0) * mask
no_exponential: the weights are the scores, divided by their sum, without exp
    torch.softmax(e.masked_fill(~mask, -math.inf), dim=1)
    → e * mask / (e * mask).sum(dim=1, keepdim=True)
uniform: every word has the same weight
    softmax(e. → softmax((0 * e).
hard: only the best word has a weight: an argmax, through which no gradient passes
    a = torch.softmax(e.masked_fill(~mask, -math.inf), dim=1)
    → best = e.masked_fill(~mask, -math.inf).argmax(dim=1)
      a = functional.one_hot(best, e.shape[1]).to(h) + 0 * e
sigmoid: each weight goes through σ, so that they do not sum to one
    torch.softmax(e.masked_fill(~mask, -math.inf), dim=1) → torch.sigmoid(e) * mask
sum_of_words: h is added up, and the weights are not used
    torch.einsum("bn,bnc->bc", a, h) → (h * mask[:, :, None]).sum(dim=1)
wrong_order: the weights are returned before the context
    torch.einsum("bn,bnc->bc", a, h), a → a, torch.einsum("bn,bnc->bc", a, h)
overflow: exp is taken of the scores as they are, and overflows
    torch.softmax(e.masked_fill(~mask, -math.inf), dim=1)
    → torch.exp(e) * mask
      a = a / a.sum(dim=1, keepdim=True)
""",
)

mistakes(
    AttentionDecoder,
    """
* ForwardFirst: s_0 is taken from the forward state of the first word: it has read only that
    h.shape[2] // 2 :] → : h.shape[2] // 2]
LastColumnStart: s_0 is taken from the last column, which may be padding
    h[:, 0, → h[:, -1,
ForwardLast: s_0 is taken from the forward state of the last word
    h[:, 0, h.shape[2] // 2 :] → h[torch.arange(len(h)), mask.sum(dim=1) - 1, : h.shape[2] // 2]
LinearStart: s_0 goes through no tanh
    torch.tanh(self.first → (self.first
NoMask: padding gets weights: the mask is not used
    self.U.T, mask → self.U.T, torch.ones_like(mask)
* NewState: the scores are computed from s_t, after the GRU's step
    self.embedding(y), c], dim=1), s)
    → self.embedding(y), c], dim=1), s)
      c, a = attend(additive_scores(s, keys, self.W, self.v), h, mask)
FixedContext: the context is that of s_0 at every step
    self.U.T, mask → self.U.T, mask, s
    mask = memory → mask, first = memory
    additive_scores(s → additive_scores(first
NoProjection: the encoder's states are compared without U
    return s, (h, h @ self.U.T, mask)
    → A, C = self.U.shape
      return s, (h, functional.pad(h, (0, max(0, A - C)))[:, :, :A], mask)
OldState: the output layer sees s_{t-1} instead of s_t
    s = self.gru( → new = self.gru(
    s, a
    #
    → new, a
      #
ContextBeforeWord: the context comes before the word in the GRU's input
    [self.embedding(y), c] → [c, self.embedding(y)]
ScoresReturned: the scores are returned in place of the weights
    c, a = attend(additive_scores(s, keys, self.W, self.v), h, mask)
    → a = additive_scores(s, keys, self.W, self.v)
      c, _ = attend(a, h, mask)
DetachedScores: no gradient passes through the scores
    self.v), h → self.v).detach(), h
    says: gradient of h
OwnMemory: `step` looks at the sentences started last, not at its memory
    return s, (h, h @ self.U.T, mask)
    → self.last = h, h @ self.U.T, mask
      return s, ()
    mask = memory → mask = self.last
KeptKeys: U h is computed for the first sentences, and kept for all others
    return s, (h, h @ self.U.T, mask)
    → if not hasattr(self, "keys") or self.keys.shape[:2] != h.shape[:2]:
          self.keys = h @ self.U.T
      return s, (h, self.keys, mask)
""",
)

mistakes(
    beam_search,
    """
* not_reordered: the states s are not put into the order of the kept hypotheses
    s, ended = s[rows], → ended =
flags_left: which hypotheses have ended is not put into the order of the kept ones
    ended[rows] | → ended |
lengths_left: the lengths are not put into the order of the kept hypotheses
    (length + ~ended)[rows] → length + ~ended
* copies: all rows count in the first step, so that the beam is filled with copies
    log_p[0] = → log_p[:] =
logits_added: logits are added up as if they were log-probabilities
    torch.log_softmax(logits, dim=1) → logits.clone()
probabilities: probabilities are added up instead of their logarithms
    torch.log_softmax → torch.softmax
ended_lost: hypotheses that have ended leave the beam, and are lost
    step_log_p[ended, PAD] = 0.0 → pass
""",
)

changed(
    beam_search,
    "goes_on",
    "hypotheses go on after their EOS",
    (
        "        step_log_p[ended] = -math.inf\n"
        "        step_log_p[ended, PAD] = 0.0  # what has ended goes on in one way, at no cost\n",
        "",
    ),
    ("length + ~ended", "length + 1"),
)

mistakes(
    beam_search,
    """
divided_in_the_search: every step compares log p / T^α: the length counts not only in the end
    log_p, best = (log_p[:, None] + step_log_p).flatten().topk(width)
    → total = log_p[:, None] + step_log_p
      score = total / (length + ~ended)[:, None] ** alpha
      best = score.flatten().topk(width).indices
      log_p = total.flatten()[best]
* not_normalised: hypotheses are returned by their log p, whatever α is
    (log_p / length**alpha) → log_p
eos_not_counted: EOS is left out of the length T
    / length**alpha → / (length - ended.to(length)).clamp(1) ** alpha
log_of_softmax_searched: the logarithm is taken of a softmax, which may be 0
    torch.log_softmax(logits, dim=1) → torch.softmax(logits, dim=1).log()
    says: hypotheses should number at least
always_the_mean: α is taken to be 1, whatever it is
    length**alpha → length
multiplied: the length multiplies the score instead of dividing it
    log_p / length → log_p * length
times_alpha: scores are divided by α times the length, not by its power
    length**alpha → (1 + alpha * (length - 1))
normalised_returned: the score divided by the length is returned as the log-probability
    log_p[k].item() → (log_p[k] / length[k] ** max(alpha, 0.5)).item()
starts_with_eos: the first step is given EOS instead of BOS
    BOS, dtype → EOS, dtype
first_end: the search stops when the first hypothesis has ended
    ended.all() → ended.any()
worst_first: the hypotheses are returned worst first
    descending=True → descending=False
without_eos: the words are returned without their EOS
    1 : 1 + int(length[k]) → 1 : 1 + int(length[k] - ended[k].to(length))
""",
)


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
