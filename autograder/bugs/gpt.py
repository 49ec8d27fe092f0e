"""Known wrong solutions of gpt."""

import math
from collections import Counter
from itertools import pairwise

import torch
from torch.nn import functional as F

from autograder.bugs import bug, equivalent
from course_pkg.attention import causal_mask
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


@bug(
    merge_pair,
    "a token is used twice, as the end of one pair and the start of the next",
    classic=True,
)
def used_twice(tokens, pair, new):
    merged = []
    for n, token in enumerate(tokens):
        if tuple(tokens[n : n + 2]) == tuple(pair):
            merged.append(new)
        elif n == 0 or tuple(tokens[n - 1 : n + 1]) != tuple(pair):
            merged.append(token)
    return merged


@bug(merge_pair, "the second token of the pair stays", classic=True)
def second_stays(tokens, pair, new):
    merged = []
    for n, token in enumerate(tokens):
        merged.append(new if tuple(tokens[n : n + 2]) == tuple(pair) else token)
    return merged


@bug(merge_pair, "merges are made from right to left")
def from_the_right(tokens, pair, new):
    return merge_pair(tokens[::-1], tuple(pair)[::-1], new)[::-1]


@bug(merge_pair, "the pair is taken in either order")
def either_order(tokens, pair, new):
    merged, n = [], 0
    while n < len(tokens):
        if sorted(tokens[n : n + 2]) == sorted(pair):
            merged.append(new)
            n += 2
        else:
            merged.append(tokens[n])
            n += 1
    return merged


@bug(merge_pair, "the last token is lost when it is not part of a pair")
def last_lost(tokens, pair, new):
    merged, n = [], 0
    while n < len(tokens) - 1:
        if (tokens[n], tokens[n + 1]) == tuple(pair):
            merged.append(new)
            n += 2
        else:
            merged.append(tokens[n])
            n += 1
    return merged


@bug(merge_pair, "a pair at the very end is not merged")
def not_at_the_end(tokens, pair, new):
    return merge_pair(tokens[:-1], pair, new) + tokens[-1:]


@bug(merge_pair, "every token of the pair is replaced, neighbour or not")
def every_token(tokens, pair, new):
    return [new if token in pair else token for token in tokens]


def learn(counts, merges, count=None, best=None, apply=merge_pair, first=256, start=list):
    """Learn merges the slow way, with one part exchanged."""
    count = count or pairs_of
    best = best or (lambda pairs: min(pairs, key=lambda pair: (-pairs[pair], pair)))
    spelled, learned = {word: start(word) for word in counts}, []
    while len(learned) < merges:
        pairs = count(spelled, counts)
        if not pairs:
            break
        pair = best(pairs)
        new = first + len(learned)
        spelled = {word: apply(tokens, pair, new) for word, tokens in spelled.items()}
        learned.append(pair)
    return learned


def pairs_of(spelled, counts):
    pairs = Counter()
    for word, tokens in spelled.items():
        for pair in pairwise(tokens):
            pairs[pair] += counts[word]
    return pairs


@bug(byte_pair_merges, "each word counts once, however often it occurs", classic=True)
def words_once(counts, merges):
    return learn(dict.fromkeys(counts, 1), merges)


@bug(byte_pair_merges, "ties go to the largest pair")
def largest(counts, merges):
    return learn(counts, merges, best=lambda pairs: max(pairs, key=lambda p: (pairs[p], p)))


@bug(byte_pair_merges, "ties go to the pair that was seen first")
def seen_first(counts, merges):
    return learn(counts, merges, best=lambda pairs: max(pairs, key=pairs.get))


@bug(byte_pair_merges, "only pairs of bytes are counted, once, never pairs of merged tokens")
def counted_once(counts, merges):
    pairs = pairs_of({word: list(word) for word in counts}, counts)
    return sorted(pairs, key=lambda pair: (-pairs[pair], pair))[:merges]


@bug(byte_pair_merges, "a pair counts once in a word, even when it occurs there several times")
def once_in_a_word(counts, merges):
    def count(spelled, counts):
        pairs = Counter()
        for word, tokens in spelled.items():
            for pair in set(pairwise(tokens)):
                pairs[pair] += counts[word]
        return pairs

    return learn(counts, merges, count)


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


@bug(byte_pair_merges, "the rarest pair is merged")
def rarest(counts, merges):
    return learn(counts, merges, best=lambda pairs: min(pairs, key=lambda p: (pairs[p], p)))


@bug(byte_pair_merges, "new tokens are numbered from 257")
def from_257(counts, merges):
    return learn(counts, merges, first=257)


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


class Varied(BPETokenizer):
    """A tokenizer whose parts the bugs below vary."""

    def cut(self, text):
        return words(text)

    def encode(self, text):
        return [token for word in self.cut(text) for token in self.spell(list(word))]

    def spell(self, tokens):
        while known := [p for p in pairwise(tokens) if p in self.new]:
            first = min(known, key=self.new.get)
            tokens = merge_pair(tokens, first, self.new[first])
        return tokens


@bug(
    BPETokenizer,
    "the longest token that fits is taken, from the left, in place of merging",
    classic=True,
)
class Longest(Varied):
    def encode(self, text):
        numbers = {token: n for n, token in reversed(list(enumerate(self.tokens)))}
        found = []
        for word in words(text):
            while word:
                length = next(n for n in range(len(word), 0, -1) if word[:n] in numbers)
                found.append(numbers[word[:length]])
                word = word[length:]
        return found


@bug(BPETokenizer, "pairs are merged from left to right, not in the order they were learned in")
class LeftToRight(Varied):
    def spell(self, tokens):
        while known := [p for p in pairwise(tokens) if p in self.new]:
            tokens = merge_pair(tokens, known[0], self.new[known[0]])
        return tokens


@bug(BPETokenizer, "what was learned last is merged first")
class LastFirst(Varied):
    def spell(self, tokens):
        while known := [p for p in pairwise(tokens) if p in self.new]:
            last = max(known, key=self.new.get)
            tokens = merge_pair(tokens, last, self.new[last])
        return tokens


@bug(BPETokenizer, "the text is not cut into words, so that tokens reach across their borders")
class NoWords(Varied):
    def cut(self, text):
        return [text]


@bug(BPETokenizer, "words are cut at spaces, and the spaces are lost")
class SpacesLost(Varied):
    def cut(self, text):
        return text.split(b" ")


@bug(BPETokenizer, "each word is merged once only")
class OneMerge(Varied):
    def spell(self, tokens):
        known = [p for p in pairwise(tokens) if p in self.new]
        if known:
            first = min(known, key=self.new.get)
            tokens = merge_pair(tokens, first, self.new[first])
        return tokens


@bug(BPETokenizer, "only pairs of bytes are merged, never merged tokens again")
class BytesOnly(Varied):
    def spell(self, tokens):
        pairs = {pair: new for pair, new in self.new.items() if max(pair) < 256}
        for pair, new in pairs.items():
            tokens = merge_pair(tokens, pair, new)
        return tokens


@bug(BPETokenizer, "the text goes through str, and what is not UTF-8 becomes U+FFFD")
class ThroughText(Varied):
    def encode(self, text):
        return super().encode(text.decode("utf-8", errors="replace").encode())


@bug(
    BPETokenizer,
    "decode gives text in place of bytes",
    told_by="decoded bytes should be bytes",
    classic=True,
)
class DecodesText(BPETokenizer):
    def decode(self, tokens):
        return super().decode(tokens).decode("utf-8", errors="replace")


@bug(BPETokenizer, "decoded tokens are joined with spaces")
class Spaced(BPETokenizer):
    def decode(self, tokens):
        return b" ".join(self.tokens[token] for token in tokens)


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


@bug(BPETokenizer, "words are cut at spaces alone, which stay with the word behind them")
class SpacesAlone(Varied):
    def cut(self, text):
        first, *rest = text.split(b" ")
        return [first, *(b" " + word for word in rest)]


@bug(BPETokenizer, "a new token is looked up by its bytes, which an earlier one may have, too")
class ByBytes(Varied):
    def spell(self, tokens):
        while known := [p for p in pairwise(tokens) if p in self.new]:
            first = min(known, key=self.new.get)
            tokens = merge_pair(tokens, first, self.tokens.index(self.tokens[self.new[first]]))
        return tokens


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


class VariedBlock(GPTBlock):
    """A block whose parts the bugs below vary."""

    def attend(self, X, mask):
        return self.attention(self.norm_1(X), mask=mask, return_weights=True)

    def gelu(self, X):
        return F.gelu(X, approximate="tanh")

    def think(self, X):
        return self.contract(self.gelu(self.expand(self.norm_2(X))))

    def forward(self, X, mask=None):
        Y, A = self.attend(X, mask)
        X = X + Y
        return X + self.think(X), A


@bug(GPTBlock, "norms come after the sums, as in the transformer of 2017")
class PostNorm(VariedBlock):
    def forward(self, X, mask=None):
        Y, A = self.attention(X, mask=mask, return_weights=True)
        X = self.norm_1(X + Y)
        return self.norm_2(X + self.contract(self.gelu(self.expand(X)))), A


@bug(GPTBlock, "GELU is the exact one, with the error function, not GPT-2's with tanh")
class ExactGelu(VariedBlock):
    def gelu(self, X):
        return F.gelu(X)


@bug(GPTBlock, "a ReLU is used instead of GELU")
class Relu(VariedBlock):
    def gelu(self, X):
        return F.relu(X)


@bug(GPTBlock, "the non-linearity is missing")
class Linear(VariedBlock):
    def gelu(self, X):
        return X


@bug(GPTBlock, "the first residual connection is missing")
class NoFirstResidual(VariedBlock):
    def forward(self, X, mask=None):
        Y, A = self.attend(X, mask)
        return Y + self.think(Y), A


@bug(GPTBlock, "the second residual connection is missing")
class NoSecondResidual(VariedBlock):
    def forward(self, X, mask=None):
        Y, A = self.attend(X, mask)
        return self.think(X + Y), A


@bug(GPTBlock, "attention and network read the same input, in parallel")
class Parallel(VariedBlock):
    def forward(self, X, mask=None):
        Y, A = self.attend(X, mask)
        return X + Y + self.think(X), A


@bug(GPTBlock, "the sum is made with the normalised input, not with the input itself", classic=True)
class NormalisedResidual(VariedBlock):
    def forward(self, X, mask=None):
        X = self.norm_1(X)
        Y, A = self.attention(X, mask=mask, return_weights=True)
        X = self.norm_2(X + Y)
        return X + self.contract(self.gelu(self.expand(X))), A


@bug(GPTBlock, "norm_1 and norm_2 are mixed up")
class NormsMixedUp(VariedBlock):
    def forward(self, X, mask=None):
        Y, A = self.attention(self.norm_2(X), mask=mask, return_weights=True)
        X = X + Y
        return X + self.contract(self.gelu(self.expand(self.norm_1(X)))), A


@bug(GPTBlock, "the mask is not passed on")
class NoMask(VariedBlock):
    def attend(self, X, mask):
        return super().attend(X, None)


@bug(GPTBlock, "the keys and values are not normalised")
class RawMemory(VariedBlock):
    def attend(self, X, mask):
        return self.attention(self.norm_1(X), X, mask, return_weights=True)


@bug(GPTBlock, "A is left out of what is returned", told_by="should return (X, A)")
class NoWeights(VariedBlock):
    def forward(self, X, mask=None):
        return super().forward(X, mask)[0]


class VariedGPT(GPT):
    """A GPT whose parts the bugs below vary."""

    def embed(self, tokens):
        return self.token(tokens) + self.position.weight[: tokens.shape[1]]

    def mask(self, T):
        return causal_mask(T)

    def head(self, X):
        return self.norm(X) @ self.token.weight.T

    def through(self, X, mask):
        weights = []
        for block in self.blocks:
            X, A = block(X, mask)
            weights.append(A)
        return X, torch.stack(weights)

    def forward(self, tokens, return_weights=False):
        if tokens.shape[1] > self.context:
            raise ValueError("too long")
        X, A = self.through(self.embed(tokens), self.mask(tokens.shape[1]))
        logits = self.head(X)
        return (logits, A) if return_weights else logits


@bug(GPT, "there is no causal mask: every position sees what it is to predict", classic=True)
class Leaky(VariedGPT):
    def mask(self, T):
        return None


@bug(GPT, "the mask lets each position see one token ahead")
class OneAhead(VariedGPT):
    def mask(self, T):
        return torch.ones(T, T, dtype=torch.bool).tril(1)


@bug(GPT, "the mask is inverted")
class Inverted(VariedGPT):
    def mask(self, T):
        return ~causal_mask(T)


@bug(GPT, "a position may not see itself")
class Blind(VariedGPT):
    def mask(self, T):
        return torch.ones(T, T, dtype=torch.bool).tril(-1)


@bug(GPT, "positions are not added")
class NoPositions(VariedGPT):
    def embed(self, tokens):
        return self.token(tokens)


@bug(GPT, "positions are numbered from 1")
class FromOne(VariedGPT):
    def embed(self, tokens):
        return self.token(tokens) + self.position(torch.arange(1, tokens.shape[1] + 1))


@bug(GPT, "the position's row is looked up by the token")
class PositionByToken(VariedGPT):
    def embed(self, tokens):
        return self.token(tokens) + self.position.weight[tokens % self.context]


@bug(GPT, "the embeddings are multiplied by √D, as in the transformer of 2017")
class Scaled(VariedGPT):
    def embed(self, tokens):
        D = self.token.weight.shape[1]
        return math.sqrt(D) * self.token(tokens) + self.position.weight[: tokens.shape[1]]


@bug(GPT, "the last norm is missing")
class NoNorm(VariedGPT):
    def head(self, X):
        return X @ self.token.weight.T


@bug(GPT, "only the first block is applied")
class OneBlock(VariedGPT):
    def through(self, X, mask):
        X, A = self.blocks[0](X, mask)
        return X, torch.stack([A for _ in self.blocks])


@bug(GPT, "every block reads the embeddings, and only the last one's output counts")
class NotStacked(VariedGPT):
    def through(self, X, mask):
        results = [block(X, mask) for block in self.blocks]
        return results[-1][0], torch.stack([A for _, A in results])


@bug(GPT, "the attention's weights of the last layer come first")
class LastFirst(VariedGPT):
    def through(self, X, mask):
        X, A = super().through(X, mask)
        return X, A.flip(0)


@bug(GPT, "no gradient reaches the positions", told_by="should reach position.weight, none does")
class PositionsDetached(VariedGPT):
    def embed(self, tokens):
        return self.token(tokens) + self.position.weight[: tokens.shape[1]].detach()


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


@bug(GPT, "probabilities are returned in place of logits")
class Probabilities(VariedGPT):
    def head(self, X):
        return super().head(X).softmax(dim=-1)


@bug(GPT, "the embedding is detached where it scores", told_by="yours gives it no gradient")
class Detached(VariedGPT):
    def head(self, X):
        return self.norm(X) @ self.token.weight.detach().T


@bug(GPT, "texts longer than the context are silently cut", told_by="should raise ValueError when ")
class Cut(VariedGPT):
    def forward(self, tokens, return_weights=False):
        return super().forward(tokens[:, -self.context :], return_weights)


def drawn(state, L, std=0.02, residual=("attention.W_O", "contract.weight"), factor=None):
    """Draw weights, with one part exchanged."""
    factor = 1 / math.sqrt(2 * L) if factor is None else factor
    new = {}
    for name, value in state.items():
        if value.dim() == 1:
            new[name] = torch.full_like(value, float("norm" in name and "weight" in name))
        else:
            scale = factor if name.endswith(residual) else 1.0
            new[name] = std * scale * torch.randn_like(value)
    return new


@bug(init_gpt_weights, "residual projections are not scaled")
def unscaled(state, L):
    return drawn(state, L, factor=1.0)


@bug(init_gpt_weights, "residual projections are divided by √L, not √(2L)")
def root_of_L(state, L):
    return drawn(state, L, factor=1 / math.sqrt(L))


@bug(init_gpt_weights, "residual projections are divided by 2L, without the root")
def no_root(state, L):
    return drawn(state, L, factor=1 / (2 * L))


@bug(init_gpt_weights, "attention.W_O is not scaled")
def attention_not_scaled(state, L):
    return drawn(state, L, residual="contract.weight")


@bug(init_gpt_weights, "contract.weight is not scaled")
def network_not_scaled(state, L):
    return drawn(state, L, residual="attention.W_O")


@bug(init_gpt_weights, "every matrix is scaled, not only those that write to the stream")
def all_scaled(state, L):
    return drawn(state, L, residual="")


@bug(init_gpt_weights, "every matrix is scaled except those that write to the stream")
def others_scaled(state, L):
    new = drawn(state, L, factor=1.0)
    residual = "attention.W_O", "contract.weight"
    for name, value in new.items():
        if value.dim() > 1 and not name.endswith(residual):
            new[name] = value / math.sqrt(2 * L)
    return new


@bug(init_gpt_weights, "0.02 is taken for the variance")
def variance(state, L):
    return drawn(state, L, std=math.sqrt(0.02))


@bug(init_gpt_weights, "matrices come from U(-0.02, 0.02)")
def uniform(state, L):
    new = {}
    for name, value in drawn(state, L).items():
        bound = 0.02
        if name.endswith(("attention.W_O", "contract.weight")):
            bound = bound / math.sqrt(2 * L)
        new[name] = value if value.dim() == 1 else (2 * torch.rand_like(value) - 1) * bound
    return new


@bug(
    init_gpt_weights,
    "the norms' weights are 0",
    told_by="norm_1.weight[0] should be 1, yours is 0",
    classic=True,
)
def dead_norms(state, L):
    new = drawn(state, L)
    return {n: 0 * value if value.dim() == 1 else value for n, value in new.items()}


@bug(init_gpt_weights, "biases are 1", told_by="should be 0, yours is 1")
def biases_of_one(state, L):
    new = drawn(state, L)
    return {n: 0 * value + 1 if value.dim() == 1 else value for n, value in new.items()}


@bug(
    init_gpt_weights,
    "biases keep the values that they had",
    told_by=".b_Q[0] should be 0, yours is",
)
def biases_kept(state, L):
    new = drawn(state, L)
    return {n: state[n] if value.dim() == 1 else value for n, value in new.items()}


@bug(
    init_gpt_weights,
    "all matrices of one shape are the same",
    told_by="W_Q should differ from W_K",
)
def same_matrices(state, L):
    new = drawn(state, L)
    known = {}
    for name, value in new.items():
        if value.dim() > 1:
            kind = (tuple(value.shape), name.endswith(("attention.W_O", "contract.weight")))
            new[name] = known.setdefault(kind, value)
    return new


@bug(
    language_model_loss,
    "targets are not shifted: each position has to predict its own token",
    classic=True,
)
def not_shifted(logits, tokens, lengths=None):
    loss = F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    if lengths is None:
        return loss.mean()
    return loss[torch.arange(tokens.shape[1]) < lengths[:, None]].mean()


@bug(
    language_model_loss,
    "targets are shifted the wrong way: each position predicts the token before it",
)
def shifted_back(logits, tokens, lengths=None):
    return language_model_loss(logits.flip(1), tokens.flip(1), lengths)


@bug(language_model_loss, "targets are rolled: the last position has to predict the first token")
def rolled(logits, tokens, lengths=None):
    loss = F.cross_entropy(logits.transpose(1, 2), tokens.roll(-1, 1), reduction="none")
    if lengths is None:
        return loss.mean()
    return loss[torch.arange(1, tokens.shape[1] + 1) <= lengths[:, None]].mean()


def terms(logits, tokens):
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")


def real(tokens, lengths, shift=1):
    if lengths is None:
        return torch.ones(tokens[:, 1:].shape, dtype=torch.bool)
    return torch.arange(shift, tokens.shape[1] - 1 + shift) < lengths[:, None]


@bug(language_model_loss, "padding is counted")
def padding_counted(logits, tokens, lengths=None):
    return terms(logits, tokens).mean()


@bug(language_model_loss, "the first token of the padding is also a target")
def one_too_many(logits, tokens, lengths=None):
    return terms(logits, tokens)[real(tokens, lengths, 0)].mean()


@bug(language_model_loss, "each text counts equally, however short it is", classic=True)
def text_by_text(logits, tokens, lengths=None):
    kept = real(tokens, lengths)
    sums = (terms(logits, tokens) * kept).sum(dim=1)
    return (sums / kept.sum(dim=1).clamp(min=1)).mean()


@bug(language_model_loss, "padding adds nothing to the sum, but the mean counts it")
def divided_by_all(logits, tokens, lengths=None):
    return (terms(logits, tokens) * real(tokens, lengths)).mean()


@bug(language_model_loss, "the loss is summed, not averaged")
def summed(logits, tokens, lengths=None):
    return terms(logits, tokens)[real(tokens, lengths)].sum()


@bug(language_model_loss, "the loss is in bits")
def in_bits(logits, tokens, lengths=None):
    return language_model_loss(logits, tokens, lengths) / math.log(2)


@bug(language_model_loss, "the minus sign is missing")
def no_minus(logits, tokens, lengths=None):
    return -language_model_loss(logits, tokens, lengths)


@bug(language_model_loss, "logits go through a softmax twice")
def softmax_twice(logits, tokens, lengths=None):
    return language_model_loss(logits.softmax(dim=-1), tokens, lengths)


@bug(language_model_loss, "the softmax becomes 0 and its logarithm -∞", told_by="yours is inf")
def log_of_softmax(logits, tokens, lengths=None):
    p = logits[:, :-1].softmax(dim=-1).gather(2, tokens[:, 1:, None])[..., 0]
    return -p.log()[real(tokens, lengths)].mean()


@bug(language_model_loss, "the softmax runs over the positions")
def over_positions(logits, tokens, lengths=None):
    log_p = logits[:, :-1].log_softmax(dim=1)
    loss = -log_p.gather(2, tokens[:, 1:, None])[..., 0]
    return loss[real(tokens, lengths)].mean()


@bug(
    language_model_loss,
    "without lengths, the loss is a plain number, which cannot be trained",
    told_by="loss should be",
)
def plain_number(logits, tokens, lengths=None):
    loss = language_model_loss(logits, tokens, lengths)
    return loss.item() if lengths is None else loss


@bug(perplexity, "every batch counts equally, whatever its number of tokens")
def unweighted(losses, counts):
    return losses.mean().exp().item()


@bug(perplexity, "perplexities are averaged in place of losses", classic=True)
def mean_of_perplexities(losses, counts):
    return ((losses.exp() * counts).sum() / counts.sum()).item()


@bug(perplexity, "the exponential is missing")
def no_exponential(losses, counts):
    return ((losses * counts).sum() / counts.sum()).item()


@bug(perplexity, "2 is raised to a loss that is in nats")
def powers_of_two(losses, counts):
    return 2 ** ((losses * counts).sum() / counts.sum()).item()


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


@bug(bits_per_byte, "nats are not turned into bits")
def nats(loss, tokens, size):
    return loss * tokens / size


@bug(bits_per_byte, "the loss is multiplied by log 2 instead of divided")
def times_log_2(loss, tokens, size):
    return loss * math.log(2) * tokens / size


@bug(bits_per_byte, "tokens and bytes are mixed up")
def upside_down(loss, tokens, size):
    return loss / math.log(2) * size / tokens


@bug(bits_per_byte, "bits are given for each token")
def for_each_token(loss, tokens, size):
    return loss / math.log(2)


@bug(bits_per_byte, "the result is for the whole text, not for each byte")
def whole_text(loss, tokens, size):
    return loss / math.log(2) * tokens


@bug(bits_per_byte, "the loss is divided by log 10")
def digits(loss, tokens, size):
    return loss / math.log(10) * tokens / size


@bug(bits_per_byte, "the logarithm is taken of the loss, which is one already")
def logarithm_of_loss(loss, tokens, size):
    return math.log2(loss) * tokens / size


@bug(bits_per_byte, "the perplexity is used instead of the loss")
def from_perplexity(loss, tokens, size):
    return math.exp(loss) * tokens / size


def demand(temperature, top_k, top_p):
    if temperature < 0 or (top_k is not None and top_k < 1):
        raise ValueError("too small")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError("top_p")


def softened(logits, temperature):
    return ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).softmax(dim=-1)


def sifted(logits, temperature, top_k, top_p, soften=None, k_of=None, nucleus=None, scale=True):
    """Compute probabilities, with one part exchanged."""
    demand(temperature, top_k, top_p)
    if temperature == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits)
    soften = soften or softened
    nucleus = nucleus or (lambda p, top_p: p.cumsum(dim=-1) - p < top_p)
    p, order = soften(logits, temperature).sort(descending=True, stable=True)
    if top_k is not None:
        p[:, (k_of(top_k) if k_of else top_k) :] = 0
    if top_p is not None:
        p = p / p.sum(dim=-1, keepdim=True)
        p = torch.where(nucleus(p, top_p), p, 0)
    if scale:
        p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, order, p)


@bug(token_probabilities, "logits are multiplied by the temperature")
def multiplied(logits, temperature=1.0, top_k=None, top_p=None):
    return sifted(logits, temperature, top_k, top_p, lambda e, T: (e * T).softmax(dim=-1))


@bug(token_probabilities, "the temperature is left out, or divides probabilities, which cancels")
def after_the_softmax(logits, temperature=1.0, top_k=None, top_p=None):
    return sifted(logits, temperature, top_k, top_p, lambda e, T: e.softmax(dim=-1) / T)


@bug(token_probabilities, "the temperature is applied after the tokens have been chosen")
def temperature_last(logits, temperature=1.0, top_k=None, top_p=None):
    demand(temperature, top_k, top_p)
    p = sifted(logits, 1.0 if temperature else 0.0, top_k, top_p)
    if temperature:
        p = p ** (1 / temperature)
        p = p / p.sum(dim=-1, keepdim=True)
    return p


@bug(token_probabilities, "temperature 0 divides by zero", told_by="yours is nan")
def zero_divides(logits, temperature=1.0, top_k=None, top_p=None):
    demand(temperature, top_k, top_p)
    if temperature == 0:
        return torch.softmax(logits / temperature, dim=-1)
    return sifted(logits, temperature, top_k, top_p)


@bug(
    token_probabilities,
    "the logits are divided by a small temperature while they are large: ∞ - ∞ is NaN",
    told_by="yours is nan",
)
def overflows(logits, temperature=1.0, top_k=None, top_p=None):
    return sifted(logits, temperature, top_k, top_p, lambda e, T: (e / T).softmax(dim=-1))


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


@bug(token_probabilities, "top_k is ignored")
def no_top_k(logits, temperature=1.0, top_k=None, top_p=None):
    demand(temperature, top_k, top_p)
    return sifted(logits, temperature, None, top_p)


@bug(token_probabilities, "one more token than top_k is kept")
def one_more(logits, temperature=1.0, top_k=None, top_p=None):
    return sifted(logits, temperature, top_k, top_p, k_of=lambda k: k + 1)


@bug(token_probabilities, "the least probable tokens are kept")
def worst(logits, temperature=1.0, top_k=None, top_p=None):
    demand(temperature, top_k, top_p)
    if temperature == 0 or (top_k is None and top_p is None):
        return sifted(logits, temperature, top_k, top_p)
    p, order = softened(logits, temperature).sort(stable=True)
    if top_k is not None:
        p[:, top_k:] = 0
    if top_p is not None:
        p = p / p.sum(dim=-1, keepdim=True)
        p = torch.where(p.cumsum(dim=-1) - p < top_p, p, 0)
    return torch.zeros_like(p).scatter(-1, order, p / p.sum(dim=-1, keepdim=True))


@bug(token_probabilities, "what is removed gets the logit 0, not the probability 0")
def logit_of_zero(logits, temperature=1.0, top_k=None, top_p=None):
    kept = sifted(logits, temperature, top_k, top_p)
    if temperature == 0 or (top_k is None and top_p is None):
        return kept
    return torch.where(kept > 0, logits / temperature, 0).softmax(dim=-1)


@bug(token_probabilities, "what is kept is not scaled to sum to one")
def not_scaled(logits, temperature=1.0, top_k=None, top_p=None):
    return sifted(logits, temperature, top_k, top_p, scale=False)


@bug(token_probabilities, "top_p is ignored")
def no_top_p(logits, temperature=1.0, top_k=None, top_p=None):
    demand(temperature, top_k, top_p)
    return sifted(logits, temperature, top_k, None)


@bug(token_probabilities, "the token that reaches top_p is left out", classic=True)
def reaching_left_out(logits, temperature=1.0, top_k=None, top_p=None):
    def nucleus(p, top_p):
        return (p.cumsum(dim=-1) <= top_p) | (torch.arange(p.shape[-1]) == 0)

    return sifted(logits, temperature, top_k, top_p, nucleus=nucleus)


@bug(token_probabilities, "each token with a probability below 1 - top_p is removed")
def threshold(logits, temperature=1.0, top_k=None, top_p=None):
    def nucleus(p, top_p):
        return (p >= 1 - top_p) | (torch.arange(p.shape[-1]) == 0)

    return sifted(logits, temperature, top_k, top_p, nucleus=nucleus)


@bug(token_probabilities, "top_p is measured on all tokens, not on those that top_k leaves")
def top_p_of_all(logits, temperature=1.0, top_k=None, top_p=None):
    demand(temperature, top_k, top_p)
    if temperature == 0 or top_k is None or top_p is None:
        return sifted(logits, temperature, top_k, top_p)
    both = sifted(logits, temperature, top_k, None), sifted(logits, temperature, None, top_p)
    p = both[0] * (both[1] > 0)
    return p / p.sum(dim=-1, keepdim=True)


@bug(token_probabilities, "the probabilities stay in sorted order", classic=True)
def still_sorted(logits, temperature=1.0, top_k=None, top_p=None):
    return token_probabilities(logits, temperature, top_k, top_p).sort(descending=True).values


@bug(token_probabilities, "the softmax runs over the texts of the batch")
def over_the_batch(logits, temperature=1.0, top_k=None, top_p=None):
    return sifted(
        logits, temperature, top_k, top_p, lambda e, T: (e / T).softmax(dim=0), scale=True
    )


@bug(
    token_probabilities,
    "the token that reaches top_p is left out, even the first: nothing is kept, and 0/0 is NaN",
    told_by="yours is nan",
    classic=True,
)
def nothing_kept(logits, temperature=1.0, top_k=None, top_p=None):
    return sifted(
        logits, temperature, top_k, top_p, nucleus=lambda p, top_p: p.cumsum(dim=-1) <= top_p
    )


@bug(
    token_probabilities,
    "all tokens that tie with the top_k-th are kept",
    classic=True,
)
def ties_kept(logits, temperature=1.0, top_k=None, top_p=None):
    if top_k is not None and 1 <= top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = torch.where(logits >= least, logits, -math.inf)
        top_k = None
    return sifted(logits, temperature, top_k, top_p)


class VariedWriter(GPT):
    """A Writer whose loop the bugs below vary."""

    def seen(self, tokens, given):
        return tokens[:, -self.context :]

    def last(self, logits):
        return logits[:, -1]

    def draw(self, p, generator):
        return torch.multinomial(p, 1, generator=generator)[:, 0]

    def after(self, drawn, ended, stop):
        drawn = torch.where(ended, stop, drawn)
        return drawn, ended | (drawn == stop)

    def start(self, tokens, stop):
        return torch.zeros(len(tokens), dtype=torch.bool)

    @torch.no_grad()
    def sample(
        self, tokens, count, temperature=1.0, top_k=None, top_p=None, stop=None, generator=None
    ):
        given, ended = tokens.shape[1], self.start(tokens, stop)
        for _ in range(count):
            logits = self.last(self(self.seen(tokens, given)))
            drawn = self.draw(self.sift(logits, temperature, top_k, top_p), generator)
            if stop is not None:
                drawn, ended = self.after(drawn, ended, stop)
            tokens = torch.cat([tokens, drawn[:, None]], dim=1)
            if self.over(ended):
                break
        return tokens

    def sift(self, logits, temperature, top_k, top_p):
        return token_probabilities(logits, temperature, top_k, top_p)

    def over(self, ended):
        return bool(ended.all())


@bug(Writer, "the best token is always taken, whatever the temperature")
class AlwaysBest(VariedWriter):
    def draw(self, p, generator):
        return p.argmax(dim=1)


@bug(Writer, "the first position's logits are used, not the last one's", classic=True)
class FirstPosition(VariedWriter):
    def last(self, logits):
        return logits[:, 0]


@bug(Writer, "the model sees the first tokens of a long text, not the last ones", classic=True)
class SeesTheStart(VariedWriter):
    def seen(self, tokens, given):
        return tokens[:, : self.context]


@bug(Writer, "only the given text is seen, never what has been written")
class NeverGrows(VariedWriter):
    def seen(self, tokens, given):
        return tokens[:, :given]


@bug(Writer, "only the last token is seen")
class Forgetful(VariedWriter):
    def seen(self, tokens, given):
        return tokens[:, -1:]


@bug(Writer, "a text longer than the context is not cut", told_by="do not fit into a context")
class NotCut(VariedWriter):
    def seen(self, tokens, given):
        return tokens


@bug(Writer, "temperature is ignored")
class NoTemperature(VariedWriter):
    def sift(self, logits, temperature, top_k, top_p):
        return super().sift(logits, 1.0 if temperature else 0.0, top_k, top_p)


@bug(Writer, "top_k and top_p are ignored", told_by="which tokens are drawn with top_k 3")
class NothingKept(VariedWriter):
    def sift(self, logits, temperature, top_k, top_p):
        return super().sift(logits, temperature, None, None)


@bug(Writer, "stop is ignored")
class NeverStops(VariedWriter):
    def after(self, drawn, ended, stop):
        return drawn, ended


@bug(Writer, "token 0 as stop is taken for none")
class NoZero(Writer):
    def sample(self, *args, stop=None, **options):
        return super().sample(*args, stop=stop or None, **options)


@bug(
    Writer,
    "without a generator, each call makes one of its own, always with the same seed",
    told_by="A second call should give other texts",
)
class SameSeed(Writer):
    def sample(self, *args, generator=None, **options):
        return super().sample(*args, generator=generator or torch.Generator(), **options)


@bug(Writer, "top_p is ignored", told_by="which tokens are drawn with top_k None and top_p 0.5")
class NoTopP(VariedWriter):
    def sift(self, logits, temperature, top_k, top_p):
        return token_probabilities(logits, temperature, top_k)


@bug(Writer, "all texts end as soon as one of them, or the first, does")
class AllEnd(VariedWriter):
    def over(self, ended):
        return bool(ended.any())


@bug(Writer, "a text that has ended goes on while others are written")
class GoesOn(VariedWriter):
    def after(self, drawn, ended, stop):
        return drawn, ended | (drawn == stop)


@bug(Writer, "the stop token itself is replaced by another", told_by="texts with a stop")
class StopLost(VariedWriter):
    def after(self, drawn, ended, stop):
        ended = ended | (drawn == stop)
        return torch.where(ended, 0 if stop else 1, drawn), ended


@bug(Writer, "a text whose given part holds stop is taken to have ended")
class EndedBefore(VariedWriter):
    def start(self, tokens, stop):
        return (tokens == stop).any(dim=1) if stop is not None else super().start(tokens, stop)


@bug(Writer, "the generator is not used", told_by="texts from the same generator")
class OwnRandomness(VariedWriter):
    def draw(self, p, generator):
        return super().draw(p, None)


@bug(Writer, "only the new tokens are returned")
class OnlyNew(VariedWriter):
    def sample(self, tokens, *args, **kwargs):
        return super().sample(tokens, *args, **kwargs)[:, tokens.shape[1] :]


@bug(Writer, "one token too many is written")
class OneTooMany(VariedWriter):
    def sample(self, tokens, count, *args, **kwargs):
        return super().sample(tokens, count + 1, *args, **kwargs)


def parts(state, change):
    """Convert, and let a function change the name and the value of each weight."""
    changed = [change(name, value) for name, value in load_gpt2(state).items()]
    return {name: value for name, value in changed if name}


@bug(load_gpt2, "no matrix is transposed, though nn.Linear keeps its own the other way round")
def not_turned(state):
    return parts(state, lambda n, v: (n, v.T if n.endswith(("d.weight", "t.weight")) else v))


@bug(load_gpt2, "attention's matrices are transposed like the network's")
def all_turned(state):
    return parts(state, lambda n, v: (n, v.T if ".W_" in n else v))


@bug(load_gpt2, "W_O is transposed", classic=True)
def output_turned(state):
    return parts(state, lambda n, v: (n, v.T if n.endswith("W_O") else v))


@bug(load_gpt2, "c_attn is cut into rows, not columns")
def rows(state):
    state = {name.removeprefix("transformer."): value for name, value in state.items()}

    def change(name, value):
        if ".W_" not in name or name.endswith("W_O"):
            return name, value
        fused = state[f"h.{name.split('.')[1]}.attn.c_attn.weight"]
        return name, fused.reshape(3, len(fused), -1)["QKV".index(name[-1])]

    return parts(state, change)


def renamed(state, names):
    def change(name, value):
        for old, new in names.items():
            if old in name:
                return name.replace(old, new), value
        return name, value

    return parts(state, change)


@bug(load_gpt2, "c_attn is read as K, Q, V")
def keys_first(state):
    return renamed(state, {"_Q": "_K", "_K": "_Q"})


@bug(load_gpt2, "c_attn is read as V, K, Q")
def values_first(state):
    return renamed(state, {"_Q": "_V", "_V": "_Q"})


@bug(load_gpt2, "the two norms of a block are mixed up")
def norms_mixed_up(state):
    return renamed(state, {"norm_1": "norm_2", "norm_2": "norm_1"})


@bug(load_gpt2, "the biases of attention are left out", told_by="b_K is missing")
def no_biases(state):
    return parts(state, lambda n, v: (None if ".b_" in n else n, v))


@bug(load_gpt2, "every block gets the weights of the first")
def first_block(state):
    ours = load_gpt2(state)

    def change(name, value):
        if name.startswith("blocks."):
            value = ours["blocks.0." + name.split(".", 2)[2]]
        return name, value

    return parts(state, change)


@bug(load_gpt2, "blocks are sorted as text, so that 10 comes before 2")
def order_of_text(state):
    ours = load_gpt2(state)
    numbers = sorted({n.split(".")[1] for n in ours if n.startswith("blocks.")})

    def change(name, value):
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            name = f"blocks.{numbers.index(number)}.{rest}"
        return name, value

    return parts(state, change)


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
