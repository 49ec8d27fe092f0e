"""Known wrong solutions of gpt."""

import math
from collections import Counter
from itertools import pairwise

import torch
from torch.nn import functional as F

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.data.text import words
from course_pkg.gpt import (
    GPT,
    BPETokenizer,
    GPTBlock,
    Writer,
    bits_per_byte,
    byte_pair_merges,
    init_gpt_weights,
    language_model_loss,
    language_model_loss_fault,
    load_gpt2,
    merge_pair,
    perplexity,
    token_probabilities,
)


@bug(merge_pair, "only the first occurrence is merged")
def only_first(tokens, pair, new):
    for n in range(len(tokens) - 1):
        if (tokens[n], tokens[n + 1]) == tuple(pair):
            return [*tokens[:n], new, *tokens[n + 2 :]]
    return list(tokens)


mistakes(
    merge_pair,
    """
* used_twice: a token is used twice, as the end of one pair and the start of the next
    if used: → if used and (token, following) != (first, second):
* second_stays: the second token of the pair stays
    used = True → used = False
""",
)


@bug(merge_pair, "merges are made from right to left")
def from_the_right(tokens, pair, new):
    return merge_pair(tokens[::-1], tuple(pair)[::-1], new)[::-1]


mistakes(
    merge_pair,
    """
either_order: the pair is taken in either order
    token == first and following == second → {token, following} == {first, second}
last_lost: the last token is lost when it is not part of a pair
    zip_longest( → zip(
""",
)


@bug(merge_pair, "a pair at the very end is not merged")
def not_at_the_end(tokens, pair, new):
    return merge_pair(tokens[:-1], pair, new) + tokens[-1:]


@bug(merge_pair, "every token of the pair is replaced, neighbour or not")
def every_token(tokens, pair, new):
    return [new if token in pair else token for token in tokens]


def learn(counts, merges, count, best=None):
    """Learn merges the slow way, with one part exchanged."""
    best = best or (lambda pairs: min(pairs, key=lambda pair: (-pairs[pair], pair)))
    spelled, learned = {word: list(word) for word in counts}, []
    while len(learned) < merges:
        pairs = count(spelled, counts)
        if not pairs:
            break
        pair = best(pairs)
        new = 256 + len(learned)
        spelled = {word: merge_pair(tokens, pair, new) for word, tokens in spelled.items()}
        learned.append(pair)
    return learned


def pairs_of(spelled, counts):
    pairs = Counter()
    for word, tokens in spelled.items():
        for pair in pairwise(tokens):
            pairs[pair] += counts[word]
    return pairs


changed(
    byte_pair_merges,
    "words_once",
    "each word counts once, however often it occurs",
    ("    spelled =", "    counts = dict.fromkeys(counts, 1)\n    spelled ="),
    classic=True,
)

mistakes(
    byte_pair_merges,
    """
largest: ties go to the largest pair
    min(totals, key=lambda pair: (-totals[pair], pair))
    → max(totals, key=lambda pair: (totals[pair], pair))
""",
)


@bug(byte_pair_merges, "ties go to the pair that was seen first")
def seen_first(counts, merges):
    return learn(counts, merges, pairs_of, best=lambda pairs: max(pairs, key=pairs.get))


@bug(byte_pair_merges, "only pairs of bytes are counted, once, never pairs of merged tokens")
def counted_once(counts, merges):
    pairs = pairs_of({word: list(word) for word in counts}, counts)
    return sorted(pairs, key=lambda pair: (-pairs[pair], pair))[:merges]


changed(
    byte_pair_merges,
    "once_in_a_word",
    "a pair counts once in a word, even when it occurs there several times",
    (
        "pairwise(tokens):\n            totals[pair] += counts",
        "set(pairwise(tokens)):\n            totals[pair] += counts",
    ),
    (
        "pairwise(tokens):\n                    totals",
        "set(pairwise(tokens)):\n                    totals",
    ),
)


@bug(byte_pair_merges, "overlapping pairs are not counted: a a a has one a a")
def no_overlaps(counts, merges):
    def count(spelled, counts):
        pairs = Counter()
        for word, tokens in spelled.items():
            places = {}
            for n, pair in enumerate(pairwise(tokens)):
                if places.get(pair) != n - 1:
                    places[pair] = n
                    pairs[pair] += counts[word]
        return pairs

    return learn(counts, merges, count)


mistakes(
    byte_pair_merges,
    """
rarest: the rarest pair is merged
    (-totals[pair], pair) → (totals[pair], pair)
from_257: new tokens are numbered from 257
    256 + len(learned) → 257 + len(learned)
""",
)


@bug(byte_pair_merges, "the counts of pairs beside a merge are not updated", classic=True)
def stale(counts, merges):
    first = pairs_of({word: list(word) for word in counts}, counts)

    def count(spelled, counts):
        now = pairs_of(spelled, counts)
        return Counter({pair: first.get(pair, n) for pair, n in now.items()})

    return learn(counts, merges, count)


@bug(byte_pair_merges, "one merge too few is learned")
def one_too_few(counts, merges):
    return byte_pair_merges(counts, merges - 1)


@bug(
    byte_pair_merges,
    "it fails when no pair is left",
    told_by="raised ValueError: max() ",
)
def never_out(counts, merges):
    def best(pairs):
        most = max(pairs.values())
        return min(pair for pair in pairs if pairs[pair] == most)

    spelled, learned = {word: list(word) for word in counts}, []
    for new in range(256, 256 + merges):
        learned.append(best(pairs_of(spelled, counts)))
        spelled = {word: merge_pair(each, learned[-1], new) for word, each in spelled.items()}
    return learned


@bug(
    byte_pair_merges,
    "words are decoded to text, which not all bytes are",
    told_by="raised UnicodeDecodeError",
)
def of_text(counts, merges):
    text = {bytes(map(ord, word.decode())): count for word, count in counts.items()}
    return byte_pair_merges(text, merges)


@bug(
    BPETokenizer,
    "the longest token that fits is taken, from the left, in place of merging",
    classic=True,
)
class Longest(BPETokenizer):
    def encode(self, text):
        numbers = {token: n for n, token in reversed(list(enumerate(self.tokens)))}
        found = []
        for word in words(text):
            while word:
                length = next(n for n in range(len(word), 0, -1) if word[:n] in numbers)
                found.append(numbers[word[:length]])
                word = word[length:]
        return found


mistakes(
    BPETokenizer,
    """
LeftToRight: pairs are merged from left to right, not in the order they were learned in
    min(known, key=self.new.get) → known[0]
LastFirst: what was learned last is merged first
    min(known → max(known
NoWords: the text is not cut into words, so that tokens reach across their borders
    in words(text) → in [text]
SpacesLost: words are cut at spaces, and the spaces are lost
    in words(text) → in text.split(b" ")
OneMerge: each word is merged once only
    while known → if known
BytesOnly: only pairs of bytes are merged, never merged tokens again
    if p in self.new] → if p in self.new and max(p) < 256]
ThroughText: the text goes through str, and what is not UTF-8 becomes U+FFFD
    in words(text) → in words(text.decode(errors="replace").encode())
""",
)


@bug(
    BPETokenizer,
    "decode gives text in place of bytes",
    told_by="decoded bytes should be bytes",
    classic=True,
)
class DecodesText(BPETokenizer):
    def decode(self, tokens):
        return super().decode(tokens).decode("utf-8", errors="replace")


mistakes(
    BPETokenizer,
    """
Spaced: decoded tokens are joined with spaces
    b"".join → b" ".join
""",
)


@bug(BPETokenizer, "a special token's name in a text becomes the special token")
class Injected(BPETokenizer):
    def encode(self, text):
        for name, number in self.special.items():
            before, found, after = text.partition(name.encode())
            if found:
                return [*self.encode(before), number, *self.encode(after)]
        return super().encode(text)


@bug(BPETokenizer, "special tokens come before the merged ones", told_by="tokens[256] should be")
class SpecialFirst(BPETokenizer):
    def __init__(self, merges, special=()):
        super().__init__(merges, special)
        if special:
            names = [name.encode() for name in special]
            self.tokens = self.tokens[:256] + names + self.tokens[256 : -len(names)]
            self.special = {name: 256 + n for n, name in enumerate(special)}


changed(
    BPETokenizer,
    "SpacesAlone",
    "words are cut at spaces alone, which stay with the word behind them",
    ("        found = []\n", '        found = []\n        first, *rest = text.split(b" ")\n'),
    ("in words(text)", 'in [first, *(b" " + word for word in rest)]'),
)

mistakes(
    BPETokenizer,
    """
ByBytes: a new token is looked up by its bytes, which an earlier one may have, too
    first, self.new[first]) → first, self.tokens.index(self.tokens[self.new[first]]))
""",
)


changed(
    BPETokenizer,
    "OwnList",
    "a text of one word gets the kept list itself, which changes when its owner changes it",
    (
        "found += self.cache[word]",
        "found = found + self.cache[word] if found else self.cache[word]",
    ),
    told_by="When the list that encode has returned is changed",
)


@bug(BPETokenizer, "the tokens kept for a text's first word grow by those of the whole text")
class Growing(BPETokenizer):
    def encode(self, text):
        found = None
        for word in words(text):
            super().encode(word)  # now they are kept
            if found is None:
                found = self.cache[word]  # the kept list itself, to which the others are added
            else:
                found += self.cache[word]
        return [] if found is None else list(found)


mistakes(
    GPTBlock,
    """
PostNorm: norms come after the sums, as in the transformer of 2017
    self.attention(self.norm_1(X), → self.attention(X,
    X = X + Y
    hidden = functional.gelu(self.expand(self.norm_2(X))
    → X = self.norm_1(X + Y)
      hidden = functional.gelu(self.expand(X)
    X + self.contract(hidden) → self.norm_2(X + self.contract(hidden))
ExactGelu: GELU is the exact one, with the error function, not GPT-2's with tanh
    , approximate="tanh" →
Relu: a ReLU is used instead of GELU
    functional.gelu(self.expand(self.norm_2(X)), approximate="tanh")
    → functional.relu(self.expand(self.norm_2(X)))
Linear: the non-linearity is missing
    functional.gelu(self.expand(self.norm_2(X)), approximate="tanh") → self.expand(self.norm_2(X))
NoFirstResidual: the first residual connection is missing
    X = X + Y → X = Y
NoSecondResidual: the second residual connection is missing
    return X + self → return self
""",
)

changed(
    GPTBlock,
    "Parallel",
    "attention and network read the same input, in parallel",
    ("        X = X + Y\n", ""),
    ("return X + self", "return X + Y + self"),
)

mistakes(
    GPTBlock,
    """
* NormalisedResidual: the sum is made with the normalised input, not with the input itself
    Y, A = self.attention(self.norm_1(X),
    → X = self.norm_1(X)
      Y, A = self.attention(X,
    X = X + Y → X = self.norm_2(X + Y)
    self.expand(self.norm_2(X)) → self.expand(X)
NormalisedBeforeAttention: attention is added to the normalised input, not to the input itself
    Y, A = self.attention(self.norm_1(X),
    → X = self.norm_1(X)
      Y, A = self.attention(X,
NormalisedBeforeNetwork: the network's output is added to the normalised vectors, not to X itself
    X = X + Y → X = self.norm_2(X + Y)
    self.expand(self.norm_2(X)) → self.expand(X)
NormsMixedUp: norm_1 and norm_2 are mixed up
    self.attention(self.norm_1(X) → self.attention(self.norm_2(X)
    self.expand(self.norm_2(X)) → self.expand(self.norm_1(X))
NoMask: the mask is not passed on
    mask=mask, return → return
RawMemory: the keys and values are not normalised
    self.norm_1(X), mask=mask → self.norm_1(X), X, mask=mask
NoWeights: A is left out of what is returned
    self.contract(hidden), A → self.contract(hidden)
    says: should return (X, A)
""",
)

mistakes(
    GPT,
    """
* Leaky: there is no causal mask: every position sees what it is to predict
    causal_mask(T).to(tokens.device) → None
OneAhead: the mask lets each position see one token ahead
    causal_mask(T) → torch.ones(T, T, dtype=torch.bool).tril(1)
Inverted: the mask is inverted
    causal_mask(T) → ~causal_mask(T)
Blind: a position may not see itself
    causal_mask(T) → torch.ones(T, T, dtype=torch.bool).tril(-1)
NoPositions: positions are not added
    ) + self.position.weight[:T] → )
FromOne: positions are numbered from 1
    self.position.weight[:T] → self.position(torch.arange(1, T + 1))
PositionByToken: the position's row is looked up by the token
    weight[:T] → weight[tokens % self.context]
Scaled: the embeddings are multiplied by √D, as in the transformer of 2017
    self.token(tokens) → math.sqrt(self.token.embedding_dim) * self.token(tokens)
NoNorm: the last norm is missing
    self.norm(X) @ → X @
""",
)

changed(
    GPT,
    "OneBlock",
    "only the first block is applied",
    (
        "            X, A = block(X, mask)\n",
        "            if not weights:\n                X, A = block(X, mask)\n",
    ),
)

mistakes(
    GPT,
    """
NotStacked: every block reads the embeddings, and only the last one's output counts
    X, A = block → Z, A = block
    self.norm(X) → self.norm(Z)
LastFirst: the attention's weights of the last layer come first
    torch.stack(weights) → torch.stack(weights[::-1])
PositionsDetached: no gradient reaches the positions
    weight[:T] → weight[:T].detach()
    says: should reach position.weight, none does
""",
)


@bug(
    GPT,
    "the weights of earlier calls are kept and returned again",
    told_by="A of the second call should have shape",
)
class WeightsKept(GPT):
    def forward(self, tokens, return_weights=False):
        logits, A = super().forward(tokens, return_weights=True)
        if not return_weights:
            return logits
        self.kept = [*getattr(self, "kept", []), *A]
        return logits, torch.stack(self.kept)


mistakes(
    GPT,
    """
Probabilities: probabilities are returned in place of logits
    self.norm(X) @ self.token.weight.T → (self.norm(X) @ self.token.weight.T).softmax(dim=-1)
Detached: the embedding is detached where it scores
    self.token.weight.T → self.token.weight.detach().T
    says: yours gives it no gradient
""",
)

changed(
    GPT,
    "Cut",
    "texts longer than the context are silently cut",
    (
        "        T = tokens.shape[1]\n",
        "        tokens = tokens[:, -self.context :]\n        T = tokens.shape[1]\n",
    ),
    told_by="should raise ValueError when ",
)

mistakes(
    init_gpt_weights,
    """
unscaled: residual projections are not scaled
    0.02 / math.sqrt(2 * L) if is_residual else 0.02 → 0.02
root_of_L: residual projections are divided by √L, not √(2L)
    math.sqrt(2 * L) → math.sqrt(L)
no_root: residual projections are divided by 2L, without the root
    math.sqrt(2 * L) → (2 * L)
attention_not_scaled: attention.W_O is not scaled
    ("attention.W_O", "contract.weight") → "contract.weight"
network_not_scaled: contract.weight is not scaled
    ("attention.W_O", "contract.weight") → "attention.W_O"
all_scaled: every matrix is scaled, not only those that write to the stream
    ) if is_residual else 0.02 → )
others_scaled: every matrix is scaled except those that write to the stream
    if is_residual → if not is_residual
variance: 0.02 is taken for the variance
    0.02 / math.sqrt(2 * L) if is_residual else 0.02
    → math.sqrt(0.02 / (2 * L) if is_residual else 0.02)
uniform: matrices come from U(-0.02, 0.02)
    torch.randn_like(value) → (2 * torch.rand_like(value) - 1)
* dead_norms: the norms' weights are 0
    torch.ones_like(value) if is_scale else torch.zeros_like(value) → torch.zeros_like(value)
    says: norm_1.weight[0] should be 1, yours is 0
biases_of_one: biases are 1
    torch.ones_like(value) if is_scale else torch.zeros_like(value) → torch.ones_like(value)
    says: should be 0, yours is 1
biases_kept: biases keep the values that they had
    torch.ones_like(value) if is_scale else torch.zeros_like(value) → value
    says: .b_Q[0] should be 0, yours is
same_matrices: all matrices of one shape are the same
    drawn = {} → drawn, known = {}, {}
    drawn[name] = std * torch.randn_like(value)
    → kind = value.shape, is_residual
      drawn[name] = known.setdefault(kind, std * torch.randn_like(value))
    says: W_Q should differ from W_K
""",
)

changed(
    language_model_loss,
    "not_shifted",
    "targets are not shifted: each position has to predict its own token",
    ("logits[:, :-1].transpose(1, 2), tokens[:, 1:]", "logits.transpose(1, 2), tokens"),
    ("arange(1, ", "arange("),
    classic=True,
)
changed(
    language_model_loss,
    "later_not_shifted",
    "targets are not shifted: each position has to predict its own token",
    ("logits[:, :-1]", "logits[:, 1:]"),
)


@bug(
    language_model_loss,
    "targets are shifted the wrong way: each position predicts the token before it",
)
def shifted_back(logits, tokens, lengths=None):
    return language_model_loss(logits.flip(1), tokens.flip(1), lengths)


mistakes(
    language_model_loss,
    """
rolled: targets are rolled: the last position has to predict the first token
    logits[:, :-1].transpose(1, 2), tokens[:, 1:] → logits.transpose(1, 2), tokens.roll(-1, 1)
    tokens.shape[1], device=tokens.device) < → tokens.shape[1] + 1, device=tokens.device) <=
padding_counted: padding is counted
    surprise[real] → surprise
one_too_many: the first token of the padding is also a target
    arange(1, tokens.shape[1], → arange(tokens.shape[1] - 1,
* text_by_text: each text counts equally, however short it is
    surprise[real].mean() → ((surprise * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)).mean()
divided_by_all: padding adds nothing to the sum, but the mean counts it
    surprise[real].mean() → (surprise * real).mean()
divided_by_tokens: the sum is divided by the number of tokens, the first ones included
    surprise.mean() → surprise.sum() / tokens.numel()
    surprise[real].mean() → surprise[real].sum() / lengths.sum()
summed: the loss is summed, not averaged
    surprise.mean() → surprise.sum()
    surprise[real].mean() → surprise[real].sum()
""",
)


@bug(language_model_loss, "the loss is in bits")
def in_bits(logits, tokens, lengths=None):
    return language_model_loss(logits, tokens, lengths) / math.log(2)


@bug(language_model_loss, "the minus sign is missing")
def no_minus(logits, tokens, lengths=None):
    return -language_model_loss(logits, tokens, lengths)


@bug(language_model_loss, "logits go through a softmax twice")
def softmax_twice(logits, tokens, lengths=None):
    return language_model_loss(logits.softmax(dim=-1), tokens, lengths)


mistakes(
    language_model_loss,
    """
log_of_softmax: the softmax becomes 0 and its logarithm -∞
    functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none"
    )
    → -logits[:, :-1].softmax(dim=-1).gather(2, tokens[:, 1:, None])[..., 0].log()
    says: yours is inf
over_positions: the softmax runs over the positions
    functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none"
    )
    → -logits[:, :-1].log_softmax(dim=1).gather(2, tokens[:, 1:, None])[..., 0]
plain_number: without lengths, the loss is a plain number, which cannot be trained
    surprise.mean() → surprise.mean().item()
    says: loss should be
""",
)


black_box(
    language_model_loss,
    "divided_by_tokens",
    curve='runs["GPT"].losses',
    label="loss, nats for each token",
)

wrong_answers(language_model_loss_fault, "B")
mistakes(
    language_model_loss_fault,
    """
certain: every token is certain
    torch.zeros(1, 2, 2), → torch.tensor([[[1000.0, 0.0], [1000.0, 0.0]]]),
    says: With these arguments the black box gives what is right
one_kind: there is one kind of token
    torch.zeros(1, 2, 2), → torch.zeros(1, 2, 1),
    says: With these arguments the black box gives what is right
long_text: the text is so long that one token more or less does not matter
    torch.zeros(1, 2, 2), torch.zeros(1, 2, → torch.zeros(1, 2000, 2), torch.zeros(1, 2000,
    says: With these arguments the black box gives what is right
no_target: the text has one token
    torch.zeros(1, 2, 2), torch.zeros(1, 2, → torch.zeros(1, 1, 2), torch.zeros(1, 1,
    says: language_model_loss raised RuntimeError
one_text: the logits have no axis for the texts
    torch.zeros(1, 2, 2), → torch.zeros(2, 2),
    says: language_model_loss raised ValueError
no_tokens: the tokens are missing
    "B", (logits, tokens) → "B", (logits,)
    says: language_model_loss raised TypeError
only_logits: the logits stand in place of the tuple
    "B", (logits, tokens) → "B", logits
    says: The arguments should be a tuple
""",
)


@bug(perplexity, "every batch counts equally, whatever its number of tokens")
def unweighted(losses, counts):
    return losses.mean().exp().item()


@bug(perplexity, "perplexities are averaged in place of losses", classic=True)
def mean_of_perplexities(losses, counts):
    return ((losses.exp() * counts).sum() / counts.sum()).item()


mistakes(
    perplexity,
    """
no_exponential: the exponential is missing
    torch.exp( → (
powers_of_two: 2 is raised to a loss that is in nats
    torch.exp → 2 **
""",
)


@bug(perplexity, "losses are added up without their counts")
def counts_ignored(losses, counts):
    return (losses.sum() / counts.sum()).exp().item()


@bug(perplexity, "the sum is divided by the number of batches")
def divided_by_batches(losses, counts):
    return ((losses * counts).sum() / counts.sum() / len(losses)).exp().item()


@bug(perplexity, "the exponent has the wrong sign")
def wrong_sign(losses, counts):
    return (-(losses * counts).sum() / counts.sum()).exp().item()


@bug(perplexity, "the exponential is taken of a loss in bits")
def exponential_of_bits(losses, counts):
    return ((losses * counts).sum() / counts.sum() / math.log(2)).exp().item()


@bug(perplexity, "the result is the plain mean of the batches' perplexities", classic=True)
def plain_mean_of_perplexities(losses, counts):
    return losses.exp().mean().item()


changed(bits_per_byte, "nats", "nats are not turned into bits", (" / math.log(2)", ""))


@bug(bits_per_byte, "the loss is multiplied by log 2 instead of divided")
def times_log_2(loss, tokens, size):
    return loss * math.log(2) * tokens / size


@bug(bits_per_byte, "tokens and bytes are mixed up")
def upside_down(loss, tokens, size):
    return loss / math.log(2) * size / tokens


changed(bits_per_byte, "for_each_token", "bits are given for each token", (" * tokens / size", ""))


@bug(bits_per_byte, "the result is for the whole text, not for each byte")
def whole_text(loss, tokens, size):
    return loss / math.log(2) * tokens


mistakes(
    bits_per_byte,
    """
digits: the loss is divided by log 10
    log(2) → log(10)
""",
)


@bug(bits_per_byte, "the logarithm is taken of the loss, which is one already")
def logarithm_of_loss(loss, tokens, size):
    return math.log2(loss) * tokens / size


@bug(bits_per_byte, "the perplexity is used instead of the loss")
def from_perplexity(loss, tokens, size):
    return math.exp(loss) * tokens / size


mistakes(
    token_probabilities,
    """
multiplied: logits are multiplied by the temperature
    below / max(temperature, torch.finfo(torch.float32).tiny) → below * temperature
after_the_softmax: the temperature is left out, or divides probabilities, which cancels
    below / max(temperature, torch.finfo(torch.float32).tiny) → below
""",
)

changed(
    token_probabilities,
    "temperature_last",
    "the temperature is applied after the tokens have been chosen",
    ("below / max(temperature, torch.finfo(torch.float32).tiny)", "below"),
    (
        "    return p.gather",
        "    p = p ** (1 / temperature)\n"
        "    p = p / p.sum(dim=1, keepdim=True)\n"
        "    return p.gather",
    ),
)

mistakes(
    token_probabilities,
    """
zero_divides: temperature 0 divides by zero
    functional.one_hot(logits.argmax(dim=1), V).to(logits)
    → torch.softmax(logits / temperature, dim=1)
    says: yours is nan
overflows: the logits are divided by a small temperature while they are large: ∞ - ∞ is NaN
    below / max(temperature, torch.finfo(torch.float32).tiny) → logits / temperature
    says: yours is nan
""",
)


@bug(
    token_probabilities,
    "at temperature 0, top_k and top_p are not looked at",
    told_by="should raise ValueError when top_k is 0 at temperature 0",
)
def unseen_at_zero(logits, temperature=1.0, top_k=None, top_p=None):
    if temperature == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits)
    return token_probabilities(logits, temperature, top_k, top_p)


@bug(
    token_probabilities,
    "a top_k above V raises an error",
    told_by="raised RuntimeError: selected index k out of range",
)
def topk_too_large(logits, temperature=1.0, top_k=None, top_p=None):
    if top_k is not None:
        logits.topk(top_k, dim=1)
    return token_probabilities(logits, temperature, top_k, top_p)


changed(
    token_probabilities,
    "no_top_k",
    "top_k is ignored",
    ("    if top_k is not None:\n        p[:, top_k:] = 0\n", ""),
)

mistakes(
    token_probabilities,
    """
one_more: one more token than top_k is kept
    p[:, top_k:] → p[:, top_k + 1 :]
worst: the least probable tokens are kept
    descending=True, stable → stable
""",
)


@bug(token_probabilities, "what is removed gets the logit 0, not the probability 0")
def logit_of_zero(logits, temperature=1.0, top_k=None, top_p=None):
    kept = token_probabilities(logits, temperature, top_k, top_p)
    if temperature == 0:
        return kept
    removed = (kept == 0) & (token_probabilities(logits, temperature) > 0)
    temperature, highest = max(temperature, 1e-38), logits.amax(dim=-1, keepdim=True)
    softened = torch.where(removed, -highest, logits - highest) / temperature
    return softened.softmax(dim=-1)


changed(
    token_probabilities,
    "not_scaled",
    "what is kept is not scaled to sum to one",
    ("    p = p / p.sum(dim=1, keepdim=True)\n    return", "    return"),
)

changed(
    token_probabilities, "no_top_p", "top_p is ignored", ("        p = p * (before < top_p)\n", "")
)

mistakes(
    token_probabilities,
    """
* reaching_left_out: the token that reaches top_p is left out
    (before < top_p) → ((p.cumsum(dim=1) <= top_p) | (before == 0))
threshold: each token with a probability below 1 - top_p is removed
    (before < top_p) → ((p >= 1 - top_p) | (before == 0))
""",
)

changed(
    token_probabilities,
    "top_p_of_all",
    "top_p is measured on all tokens, not on those that top_k leaves",
    ("    if top_k is not None:\n        p[:, top_k:] = 0\n", ""),
    (
        "        p = p * (before < top_p)\n",
        "        p = p * (before < top_p)\n    if top_k is not None:\n        p[:, top_k:] = 0\n",
    ),
)

mistakes(
    token_probabilities,
    """
* still_sorted: the probabilities stay in sorted order
    return p.gather(1, order.argsort(dim=1)) → return p
over_the_batch: the softmax runs over the texts of the batch
    torch.softmax(softened, dim=1) → torch.softmax(logits / temperature, dim=0)
""",
)

changed(
    token_probabilities,
    "nothing_kept",
    "the token that reaches top_p is left out, even the first: nothing is kept, and 0/0 is NaN",
    ("(before < top_p)", "(p.cumsum(dim=1) <= top_p)"),
    told_by="yours is nan",
    classic=True,
)

mistakes(
    token_probabilities,
    """
* ties_kept: all tokens that tie with the top_k-th are kept
    p[:, top_k:] = 0 → p[p < p[:, :top_k][:, -1:]] = 0
""",
)

mistakes(
    Writer,
    """
AlwaysBest: the best token is always taken, whatever the temperature
    torch.multinomial(p, 1, generator=generator)[:, 0] → p.argmax(dim=1)
* FirstPosition: the first position's logits are used, not the last one's
    [:, -1] → [:, 0]
* SeesTheStart: the model sees the first tokens of a long text, not the last ones
    tokens[:, -self.context :] → tokens[:, : self.context]
NeverGrows: only the given text is seen, never what has been written
    ended = torch.zeros → given, ended = tokens.shape[1], torch.zeros
    tokens[:, -self.context :] → tokens[:, :given]
Forgetful: only the last token is seen
    tokens[:, -self.context :] → tokens[:, -1:]
NotCut: a text longer than the context is not cut
    tokens[:, -self.context :] → tokens
    says: do not fit into a context
NoTemperature: temperature is ignored
    (logits, temperature, → (logits, 1.0 if temperature else 0.0,
NothingKept: top_k and top_p are ignored
    (logits, temperature, top_k, top_p) → (logits, temperature)
    says: which tokens are drawn with top_k 3
""",
)

changed(
    Writer,
    "NeverStops",
    "stop is ignored",
    (
        "            if stop is not None:\n"
        "                drawn = torch.where(ended, stop, drawn)\n"
        "                ended = ended | (drawn == stop)\n",
        "",
    ),
)

mistakes(
    Writer,
    """
NoZero: token 0 as stop is taken for none
    if stop is not None: → if stop:
""",
)


@bug(
    Writer,
    "without a generator, each call makes one of its own, always with the same seed",
    told_by="A second call should give other texts",
)
class SameSeed(Writer):
    def sample(self, *args, generator=None, **options):
        return super().sample(*args, generator=generator or torch.Generator(), **options)


mistakes(
    Writer,
    """
NoTopP: top_p is ignored
    temperature, top_k, top_p) → temperature, top_k)
    says: which tokens are drawn with top_k None and top_p 0.5
AllEnd: all texts end as soon as one of them, or the first, does
    ended.all() → ended.any()
""",
)

changed(
    Writer,
    "GoesOn",
    "a text that has ended goes on while others are written",
    ("                drawn = torch.where(ended, stop, drawn)\n", ""),
)

mistakes(
    Writer,
    """
StopLost: the stop token itself is replaced by another
    drawn = torch.where(ended, stop, drawn)
    ended = ended | (drawn == stop)
    → ended = ended | (drawn == stop)
      drawn = torch.where(ended, 0 if stop else 1, drawn)
    says: texts with a stop
EndedBefore: a text whose given part holds stop is taken to have ended
    torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    → (tokens == (-1 if stop is None else stop)).any(dim=1)
OwnRandomness: the generator is not used
    , generator=generator) → )
    says: texts from the same generator
""",
)

changed(
    Writer,
    "OnlyNew",
    "only the new tokens are returned",
    ("ended = torch.zeros", "given, ended = tokens.shape[1], torch.zeros"),
    ("        return tokens", "        return tokens[:, given:]"),
)

mistakes(
    Writer,
    """
OneTooMany: one token too many is written
    range(count) → range(count + 1)
""",
)

mistakes(
    load_gpt2,
    """
not_turned: no matrix is transposed, though nn.Linear keeps its own the other way round
    value.T if is_linear else value → value
all_turned: attention's matrices are transposed like the network's
    _{x}"] = part → _{x}"] = part.t()
    _O"] = value → _O"] = value.t()
* output_turned: W_O is transposed
    _O"] = value → _O"] = value.t()
rows: c_attn is cut into rows, not columns
    value.chunk(3, dim=-1) → value.reshape(3, *value.shape[:-1], -1)
keys_first: c_attn is read as K, Q, V
    "QKV" → "KQV"
values_first: c_attn is read as V, K, Q
    "QKV" → "VKQ"
norms_mixed_up: the two norms of a block are mixed up
    "ln_1": "norm_1", "ln_2": "norm_2" → "ln_1": "norm_2", "ln_2": "norm_1"
""",
)

changed(
    load_gpt2,
    "no_biases",
    "the biases of attention are left out",
    (
        '        if prefix and place == "attn.c_attn":',
        '        if letter == "b" and place.startswith("attn.c_"):\n'
        "            continue\n"
        '        if prefix and place == "attn.c_attn":',
    ),
    told_by="b_K is missing",
)


@bug(load_gpt2, "every block gets the weights of the first")
def first_block(state):
    ours = load_gpt2(state)
    for name in ours:
        if name.startswith("blocks."):
            ours[name] = ours["blocks.0." + name.split(".", 2)[2]]
    return ours


changed(
    load_gpt2,
    "order_of_text",
    "blocks are sorted as text, so that 10 comes before 2",
    (
        "    ours = {}\n",
        '    numbers = sorted({name.split(".")[1] for name in state if name.startswith("h.")})\n'
        "    ours = {}\n",
    ),
    ('f"blocks.{number}."', 'f"blocks.{numbers.index(number)}."'),
)


@bug(load_gpt2, "lm_head is kept as a weight of its own", told_by="lm_head.weight does not belong")
def head_kept(state):
    head = {n: v for n, v in state.items() if n == "lm_head.weight"}
    return load_gpt2(state) | head


@bug(
    load_gpt2,
    "unknown names are silently ignored",
    told_by="should raise ValueError when there is a",
)
def nothing_refused(state):
    known = {n: v for n, v in state.items() if "crossattention" not in n}
    return load_gpt2(known)


@bug(
    load_gpt2,
    "a head that is not the embedding is dropped",
    told_by="should raise ValueError when the head is",
)
def head_dropped(state):
    return load_gpt2({n: v for n, v in state.items() if n != "lm_head.weight"})


@bug(
    load_gpt2,
    "whatever is unknown in attention is dropped like a mask",
    told_by="should raise ValueError when the state has h.0.attn.q_norm.weight",
)
def attention_dropped(state):
    known = {n: v for n, v in state.items() if ".attn." not in n or ".c_" in n}
    return load_gpt2(known)


@bug(load_gpt2, "old files' masks are refused", told_by="raised ValueError: ")
def masks_refused(state):
    if any(name.endswith(("attn.bias", "masked_bias")) for name in state):
        raise ValueError("not a weight")
    return load_gpt2(state)


ON_CPU = "checks run on the CPU, where new tensors are made anyway"
equivalent(
    byte_pair_merges,
    "for tokens, sign in ((old, -1), (spelled[word], 1)): → "
    "for tokens, sign in ((spelled[word], 1), (old, -1)):",
    "a sum does not depend on the order of its terms",
)
equivalent(
    init_gpt_weights,
    "is_residual = name.endswith(('attention.W_O', 'contract.weight')) → "
    "is_residual = name.endswith(('contract.weight', 'attention.W_O'))",
    "either ending will do, whichever is tried first",
)
surprise = (
    "surprise = functional.cross_entropy(logits[:, :-1].transpose({}), tokens[:, 1:], "
    "reduction='none')"
)
equivalent(
    language_model_loss,
    f"{surprise.format('1, 2')} → {surprise.format('2, 1')}",
    "exchanging two axes is symmetric",
)
equivalent(
    language_model_loss,
    "real = torch.arange(1, tokens.shape[1], device=tokens.device) < lengths[:, None] → "
    "real = torch.arange(1, tokens.shape[1]) < lengths[:, None]",
    ON_CPU,
)
equivalent(
    token_probabilities,
    "return p.gather(1, order.argsort(dim=1)) → return p.gather(1, order.argsort())",
    "the last axis is the default, and logits have two",
)
equivalent(
    Writer,
    "ended = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device) → "
    "ended = torch.zeros(len(tokens), dtype=torch.bool)",
    ON_CPU,
)
equivalent(
    Writer,
    "drawn = torch.multinomial(p, 1, generator=generator)[:, 0] → "
    "drawn = torch.multinomial(p, 2, generator=generator)[:, 0]",
    "the first of two draws has the same distribution as a single one",
)
equivalent(
    load_gpt2,
    "if head is not None and (not torch.equal(head, state['wte.weight'])): → "
    "if head is not None and (not torch.equal(state['wte.weight'], head)):",
    "equality is symmetric",
)
split = "for x, part in zip('QKV', value.chunk(3, dim=-1){}):"
for other in ("", ", strict=False"):
    equivalent(
        load_gpt2,
        f"{split.format(', strict=True')} → {split.format(other)}",
        "a published c_attn always has three parts",
    )
equivalent(
    token_probabilities,
    "softened = below / max(temperature, torch.finfo(torch.float32).tiny) → "
    "softened = below / max(torch.finfo(torch.float32).tiny, temperature)",
    "the larger of two has no order",
)
