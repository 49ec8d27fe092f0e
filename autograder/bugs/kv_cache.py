"""Known wrong solutions of kv_cache."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from autograder.bugs import bug, changed, equivalent, mistakes
from course_pkg.attention import causal_mask, masked_softmax, merge_heads, split_heads
from course_pkg.gpt import token_probabilities
from course_pkg.kv_cache import (
    CachedAttention,
    CachedGPT,
    CachedWriter,
    GroupedQueryAttention,
    KVCache,
    attention_operations,
    kv_cache_bytes,
    mha_to_gqa,
)


@bug(KVCache, "every append overwrites what is there from the start")
class FromTheStart(KVCache):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.K.zero_()
        self.V.zero_()

    def append(self, K, V):
        length, self.length = self.length, 0
        super().append(K, V)
        self.length = min(length + K.shape[2], self.K.shape[2])


@bug(
    KVCache,
    "the first append keeps the caller's own tensors",
    told_by="yours keeps the caller's own tensors",
)
class KeepsTheCallers(KVCache):
    def append(self, K, V):
        if self.length + K.shape[2] > self.K.shape[2] or K.shape[:2] != self.K.shape[:2]:
            raise ValueError("refused")
        if self.length == 0 and K.dtype == self.K.dtype and K.shape == V.shape:
            self.first, self.length = (K.detach(), V.detach()), K.shape[2]
            return
        first, self.length = self.read(), 0
        super().append(torch.cat([first[0], K], dim=2), torch.cat([first[1], V], dim=2))
        self.first = None

    def read(self):
        if self.length and getattr(self, "first", None):
            return self.first[0][:, :, : self.length], self.first[1][:, :, : self.length]
        return super().read()


@bug(KVCache, "an append that is refused has changed the length already")
class HalfAppended(KVCache):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.K.zero_()
        self.V.zero_()

    def append(self, K, V):
        B, G, capacity, D_h = self.K.shape
        self.length += K.shape[-2]
        if self.length > capacity:
            raise ValueError("full")
        if K.shape != V.shape or K.shape != (B, G, K.shape[-2], D_h):
            raise ValueError("wrong shape")
        start = self.length - K.shape[-2]
        self.K[:, :, start : self.length] = K.detach()
        self.V[:, :, start : self.length] = V.detach()


@bug(KVCache, "only what was appended last is kept")
class OnlyTheLast(KVCache):
    def append(self, K, V):
        self.length = 0
        super().append(K, V)


@bug(KVCache, "what is appended comes before what was there")
class NewestFirst(KVCache):
    def append(self, K, V):
        old = [part.clone() for part in self.read()]
        self.length = 0
        super().append(torch.cat([K, old[0]], dim=2), torch.cat([V, old[1]], dim=2))


@bug(KVCache, "keys and values are mixed up")
class MixedUp(KVCache):
    def read(self):
        K, V = super().read()
        return V, K


@bug(KVCache, "the length grows by one with every append, however many positions come")
class ByOne(KVCache):
    def append(self, K, V):
        length = self.length
        super().append(K, V)
        self.length = length + 1


@bug(KVCache, "the room that is not yet used is also read")
class WholeRoom(KVCache):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.K.zero_()
        self.V.zero_()

    def read(self):
        return self.K, self.V


@bug(KVCache, "truncate keeps the last positions")
class KeepsTheLast(KVCache):
    def truncate(self, length):
        if not 0 <= length <= self.length:
            raise ValueError("cannot keep so many")
        K, V = (part[:, :, self.length - length :].clone() for part in self.read())
        self.length = 0
        self.append(K, V)


@bug(KVCache, "truncate takes how many positions to forget, not how many to keep")
class HowManyToForget(KVCache):
    def truncate(self, length):
        super().truncate(self.length - length)


@bug(KVCache, "append goes on after what was truncated", classic=True)
class BehindTheCut(KVCache):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.end = 0
        self.K.zero_()
        self.V.zero_()

    def append(self, K, V):
        length, self.length = self.length, self.end
        super().append(K, V)
        self.end, self.length = self.length, length + K.shape[2]


@bug(KVCache, "append goes on after what was truncated", classic=True)
class BringsBack(BehindTheCut):
    def append(self, K, V):
        super().append(K, V)
        self.length = self.end


@bug(KVCache, "truncate does not change what is read", classic=True)
class ReadsOn(KVCache):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.readable = 0
        self.K.zero_()
        self.V.zero_()

    def append(self, K, V):
        super().append(K, V)
        self.readable += K.shape[2]

    def read(self):
        return self.K[:, :, : self.readable], self.V[:, :, : self.readable]


@bug(KVCache, "truncate does not change what is read")
class NoTruncate(KVCache):
    def truncate(self, length):
        if not 0 <= length <= self.length:
            raise ValueError("cannot keep so many")


@bug(KVCache, "the gradient history of the numbers is kept", told_by="should carry no gradient")
class KeepsHistory(KVCache):
    def append(self, K, V):
        super().append(K, V)
        old, T = self.length - K.shape[2], K.shape[2]
        self.K = torch.cat([self.K[:, :, :old], K, self.K[:, :, old + T :]], dim=2).to(self.K)
        self.V = torch.cat([self.V[:, :, :old], V, self.V[:, :, old + T :]], dim=2).to(self.V)


@bug(KVCache, "the dtype that was asked for is not used")
class IgnoresDtype(KVCache):
    def __init__(self, B, G, capacity, D_h, dtype=torch.float32, device="cpu"):
        super().__init__(B, G, capacity, D_h, torch.float32, device)


@bug(KVCache, "the dtype that was asked for is not used")
class DtypeOfTheFirst(KVCache):
    def append(self, K, V):
        self.K, self.V = self.K.to(K.dtype), self.V.to(V.dtype)
        super().append(K, V)


@bug(KVCache, "a full cache forgets the oldest positions")
class Sliding(KVCache):
    def append(self, K, V):
        capacity = self.K.shape[2]
        if self.length + K.shape[2] > capacity:
            rest = [part[:, :, K.shape[2] :].clone() for part in self.read()]
            self.length = 0
            super().append(*rest)
        super().append(K, V)


@bug(
    KVCache,
    "the last position that there is room for is refused",
    told_by="positions do not fit into a cache for",
)
class OneTooFew(KVCache):
    def append(self, K, V):
        if self.length + K.shape[2] == self.K.shape[2]:
            raise ValueError("these positions do not fit into a cache for so few")
        super().append(K, V)


@bug(
    KVCache,
    "the keys and values of one text are used for all",
    told_by="should raise ValueError when one text comes instead of all",
    classic=True,
)
class Broadcast(KVCache):
    def append(self, K, V):
        B, G, _, D_h = self.K.shape
        if K.shape[1:] == V.shape[1:] == (G, K.shape[2], D_h):
            K, V = K.expand(B, -1, -1, -1), V.expand(B, -1, -1, -1)
        super().append(K, V)


@bug(
    KVCache,
    "truncate makes a cache longer than what was read",
    classic=True,
)
class Lengthens(KVCache):
    def truncate(self, length):
        if length < 0:
            raise ValueError("negative")
        self.length = length


@bug(
    KVCache,
    "what fits is kept before the rest is refused",
)
class KeepsWhatFits(KVCache):
    def append(self, K, V):
        room = self.K.shape[2] - self.length
        if K.shape[2] > room > 0 and K.shape == V.shape:
            super().append(K[:, :, :room], V[:, :, :room])
            raise ValueError("the rest does not fit")
        super().append(K, V)


class Shared(KVCache):
    """A cache whose tensors belong to the class."""

    kept = None


@bug(KVCache, "all caches share one memory")
class OneForAll(Shared):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        if Shared.kept is None or Shared.kept[0].shape != self.K.shape:
            Shared.kept = self.K, self.V
        if Shared.kept[0].dtype == self.K.dtype:
            self.K, self.V = Shared.kept


changed(
    KVCache,
    "CutsRoom",
    "truncate takes away the room along with what it forgets",
    (
        "        self.length = length",
        "        self.K, self.V = self.K[:, :, :length], self.V[:, :, :length]\n"
        "        self.length = length",
    ),
)

changed(
    KVCache,
    "LengthFirst",
    "an append that is refused has changed the length already",
    ("        end = self.length + T\n", "        start, end = self.length, self.length + T\n"),
    ("        if end > capacity:", "        self.length = end\n        if end > capacity:"),
    ("K[:, :, self.length : end]", "K[:, :, start:end]"),
    ("V[:, :, self.length : end]", "V[:, :, start:end]"),
)

changed(
    KVCache,
    "MakesRoom",
    "a full cache forgets the oldest positions",
    (
        "        if end > capacity:\n"
        '            raise ValueError(f"{end} positions do not fit into a cache for {capacity}")\n',
        "        if end > capacity:\n"
        "            kept = max(capacity - T, 0)\n"
        "            for part in (self.K, self.V):\n"
        "                part[:, :, :kept] = part[:, :, self.length - kept : self.length].clone()\n"
        "            self.length, end = kept, kept + T\n",
    ),
)

mistakes(
    KVCache,
    """
NegativeLength: truncate accepts negative lengths
    if not 0 <= length <= self.length: → if length > self.length:
UpToCapacity: truncate makes a cache longer than what was read
    if not 0 <= length <= self.length: → if not 0 <= length <= self.K.shape[2]:
DefaultValues: values are kept in float32, whatever is asked for
    self.V = torch.empty_like(self.K) → self.V = torch.empty(B, G, capacity, D_h, device=device)
OneSlotLess: the last position that there is room for is refused
    if end > capacity: → if end >= capacity:
""",
)


class Varied(CachedAttention):
    """Attention whose parts the bugs below vary."""

    def project(self, X):
        Q = split_heads(X @ self.W_Q + self.b_Q, self.H)
        K = split_heads(X @ self.W_K + self.b_K, self.G)
        V = split_heads(X @ self.W_V + self.b_V, self.G)
        return Q, K, V

    def extend(self, cache, Q, K, V):
        cache.append(K, V)
        return cache.read()

    def scores(self, Q, K):
        return Q @ K.mT / math.sqrt(self.D_h)

    def mask(self, T, N):
        return causal_mask(T, past=N - T)

    def count(self, T, N):
        self.counts["tokens"] += T
        self.counts["pairs"] += T * N

    def widen(self, K):
        return K

    def forward(self, X, cache=None):
        Q, K, V = self.project(X)
        if cache is not None:
            K, V = (part.to(Q.dtype) for part in self.extend(cache, Q, K, V))
        T, N = X.shape[1], K.shape[2]
        A = masked_softmax(self.scores(Q, self.widen(K)), self.mask(T, N))
        self.count(T, N)
        return merge_heads(A @ self.widen(V)) @ self.W_O + self.b_O


changed(
    CachedAttention,
    "CountsRefused",
    "what is refused is counted",
    ("        T = X.shape[1]\n", '        T = X.shape[1]\n        self.counts["tokens"] += T\n'),
    (
        '        self.counts["tokens"] += T\n        self.counts["pairs"]',
        '        self.counts["pairs"]',
    ),
    told_by="counted after a call that was refused",
)

mistakes(
    KVCache,
    """
OtherLengths: V may have another number of positions than K
    or V.shape != (B, G, T, D_h) → or V.shape != (B, G, V.shape[-2], D_h)
    says: should raise ValueError when there are values of one position
""",
)

changed(
    KVCache,
    "SomethingMustCome",
    "an append of no positions is refused",
    (
        "        if end > capacity:",
        '        if T == 0:\n            raise ValueError("no positions to append")\n'
        "        if end > capacity:",
    ),
    told_by="raised ValueError: no positions to append",
)

mistakes(
    KVCache,
    """
FullIsFull: a full cache refuses an append of no positions
    if end > capacity: → if end > capacity or self.length == capacity:
    says: positions do not fit into a cache for
""",
)


@bug(CachedAttention, "there is no mask: positions that come together see each other", classic=True)
class NoMask(Varied):
    def mask(self, T, N):
        return torch.ones(T, N, dtype=torch.bool)


@bug(
    CachedAttention,
    "the mask ignores the past: new positions see only the oldest ones",
    classic=True,
)
class MaskWithoutPast(Varied):
    def mask(self, T, N):
        return torch.ones(T, N, dtype=torch.bool).tril()


@bug(
    CachedAttention,
    "a mask is kept for each number of new positions, whatever the past is",
)
class MaskByT(Varied):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.masks = {}

    def mask(self, T, N):
        if T == 1:
            return super().mask(T, N)
        kept = self.masks.setdefault(T, super().mask(T, N))
        return F.pad(kept, (0, max(N - kept.shape[1], 0)))[:, :N]


@bug(CachedAttention, "only the first text is masked, and not what comes when there is a past")
class MaskOnlyAtFirst(Varied):
    def mask(self, T, N):
        return causal_mask(T) if T == N else torch.ones(T, N, dtype=torch.bool)


@bug(CachedAttention, "the layer counts the past itself, also what a cache has given back")
class OwnCount(Varied):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.past = 0

    def forward(self, X, cache=None):
        self.past = 0 if cache is None or not cache.length else self.past
        Y = super().forward(X, cache)
        self.past += X.shape[1]
        return Y

    def mask(self, T, N):
        return causal_mask(T, past=self.past)[:, :N]


@bug(
    CachedAttention,
    "there is no mask where there is a cache, not even in the prefill",
    classic=True,
)
class NoMaskWithCache(Varied):
    def mask(self, T, N):
        return causal_mask(T) if self.whole else torch.ones(T, N, dtype=torch.bool)

    def forward(self, X, cache=None):
        self.whole = cache is None
        return super().forward(X, cache)


@bug(CachedAttention, "a position does not see itself")
class Blind(Varied):
    def mask(self, T, N):
        return torch.ones(T, N, dtype=torch.bool).tril(N - T - 1)


@bug(CachedAttention, "the new positions see only the new positions")
class NewOnly(Varied):
    def extend(self, cache, Q, K, V):
        cache.append(K, V)
        return K, V


@bug(CachedAttention, "the new positions are already in the cache and are added to it once more")
class Twice(Varied):
    def extend(self, cache, Q, K, V):
        cache.append(K, V)
        old = cache.read()
        return torch.cat([old[0], K], dim=2), torch.cat([old[1], V], dim=2)


@bug(CachedAttention, "keys and values are mixed up in the cache")
class SwappedInCache(Varied):
    def extend(self, cache, Q, K, V):
        cache.append(V, K)
        return cache.read()


@bug(CachedAttention, "queries are kept in place of keys")
class KeepsQueries(Varied):
    def extend(self, cache, Q, K, V):
        cache.append(Q, V)
        return cache.read()


@bug(CachedAttention, "the scores are divided by √D, not by √D_h")
class WrongRoot(Varied):
    def scores(self, Q, K):
        return Q @ K.mT / math.sqrt(self.H * self.D_h)


@bug(CachedAttention, "the scores are not divided by √D_h")
class NoRoot(Varied):
    def scores(self, Q, K):
        return Q @ K.mT


@bug(CachedAttention, "the biases of keys and values are left out")
class NoBias(Varied):
    def project(self, X):
        Q, _, _ = super().project(X)
        return Q, split_heads(X @ self.W_K, self.G), split_heads(X @ self.W_V, self.G)


@bug(CachedAttention, "only the pairs that the mask allows are counted")
class CountsAllowed(Varied):
    def count(self, T, N):
        self.counts["tokens"] += T
        self.counts["pairs"] += int(causal_mask(T, N - T).sum())


@bug(CachedAttention, "the pairs of all heads are counted")
class CountsHeads(Varied):
    def count(self, T, N):
        super().count(T, self.H * N)


@bug(CachedAttention, "the counts are those of the last call")
class CountsAnew(Varied):
    def count(self, T, N):
        self.counts = {"tokens": T, "pairs": T * N}


@bug(CachedAttention, "all positions are counted as new")
class CountsTheOld(Varied):
    def count(self, T, N):
        super().count(N, N)


@bug(CachedAttention, "queries are rounded to the precision of the cache")
class RoundsQueries(Varied):
    def forward(self, X, cache=None):
        if cache is None:
            return super().forward(X)
        self.rounded = cache.read()[0].dtype
        return super().forward(X, cache)

    def scores(self, Q, K):
        return super().scores(Q.to(getattr(self, "rounded", Q.dtype)).to(Q.dtype), K)


@bug(
    CachedAttention,
    "keys come from the cache in a dtype that is not the queries'",
    told_by="raised RuntimeError: expected",
)
class OtherDtype(Varied):
    def forward(self, X, cache=None):
        Q, K, V = self.project(X)
        if cache is not None:
            K, V = self.extend(cache, Q, K, V)
        T, N = X.shape[1], K.shape[2]
        A = masked_softmax(self.scores(Q, K), self.mask(T, N))
        self.count(T, N)
        return merge_heads(A @ V) @ self.W_O + self.b_O


@bug(
    CachedAttention,
    "keys and values lose their gradient history even without a cache",
    told_by="gradient of W_K",
)
class AlwaysCached(Varied):
    def forward(self, X, cache=None):
        if cache is None:
            cache = self.new_cache(X.shape[0], X.shape[1])
        Y = super().forward(X, cache)
        return Y + 0 * (self.W_K.sum() + self.W_V.sum() + self.b_V.sum())


@bug(CachedAttention, "the layer goes on with the first cache that it was given")
class OneCache(Varied):
    def forward(self, X, cache=None):
        if cache is not None:
            cache = self.own = getattr(self, "own", cache)
        return super().forward(X, cache)


@bug(CachedAttention, "only the last position gets an output", told_by="should have shape")
class LastOnly(Varied):
    def forward(self, X, cache=None):
        return super().forward(X, cache)[:, -1:]


@bug(
    CachedAttention,
    "the cache is read first and extended afterwards: new positions see only the past",
    classic=True,
)
class ReadsFirst(NoMaskWithCache):
    def extend(self, cache, Q, K, V):
        old = cache.read()
        cache.append(K, V)
        return old


mistakes(
    CachedAttention,
    """
PairsOfNew: pairs are counted with the new positions only
    ["pairs"] += T * N → ["pairs"] += T * T
""",
)

changed(
    CachedAttention,
    "CountsWithCache",
    "what is read without a cache is not counted",
    (
        '        self.counts["tokens"] += T\n        self.counts["pairs"] += T * N\n',
        "        if cache is not None:\n"
        '            self.counts["tokens"] += T\n'
        '            self.counts["pairs"] += T * N\n',
    ),
)

changed(
    CachedAttention,
    "LastCache",
    "the layer goes on with the last cache when it is called without one",
    (
        "        T = X.shape[1]\n",
        "        T = X.shape[1]\n"
        "        if cache is None:\n"
        '            cache = getattr(self, "cache", None)\n'
        "        self.cache = cache\n",
    ),
)

changed(
    CachedAttention,
    "ScalesTheCache",
    "the keys in the cache are divided by √D_h, in every call once more",
    (
        "        E = Q @ K.mT / math.sqrt(self.D_h)  # (B, H, T, N)\n",
        "        K /= math.sqrt(self.D_h)\n        E = Q @ K.mT\n",
    ),
)

changed(
    CachedAttention,
    "CountsTexts",
    "the counts are those of all sequences together",
    ('["tokens"] += T\n', '["tokens"] += len(X) * T\n'),
    ('["pairs"] += T * N', '["pairs"] += len(X) * T * N'),
)


class VariedGPT(CachedGPT):
    """A model whose parts the bugs below vary."""

    def places(self, past, T):
        return torch.arange(past, past + T)

    def demand(self, past, T):
        if past + T > self.context:
            raise ValueError("too long")

    def cache(self, caches, number):
        return caches[number]

    def attend(self, block, X, cache):
        return X + block.attention(block.norm_1(X), cache)

    def think(self, block, X):
        return X + block.contract(F.gelu(block.expand(block.norm_2(X)), approximate="tanh"))

    def head(self, X):
        return self.norm(X) @ self.token.weight.T

    def forward(self, tokens, caches=None):
        past = 0 if caches is None else caches[0].length
        T = tokens.shape[1]
        self.demand(past, T)
        X = self.token(tokens) + self.position(self.places(past, T))
        for number, block in enumerate(self.blocks):
            X = self.attend(block, X, None if caches is None else self.cache(caches, number))
            X = self.think(block, X)
        return self.head(X)


@bug(CachedGPT, "the positions start at 0 with every call", classic=True)
class FromZero(VariedGPT):
    def places(self, past, T):
        return torch.arange(T)


@bug(CachedGPT, "the positions of later tokens are one too high")
class OneTooHigh(VariedGPT):
    def places(self, past, T):
        return (torch.arange(past, past + T) + (1 if past else 0)) % self.context


@bug(CachedGPT, "the positions of later tokens are one too low")
class OneTooLow(VariedGPT):
    def places(self, past, T):
        return torch.arange(past, past + T) - (1 if past else 0)


@bug(CachedGPT, "all tokens that come together get the position of the first of them")
class SamePlace(VariedGPT):
    def places(self, past, T):
        return torch.full((T,), past) if past else torch.arange(T)


@bug(CachedGPT, "later tokens get no position")
class NoPlace(VariedGPT):
    def forward(self, tokens, caches=None):
        past = 0 if caches is None else caches[0].length
        if past == 0:
            return super().forward(tokens, caches)
        self.demand(past, tokens.shape[1])
        X = self.token(tokens)
        for number, block in enumerate(self.blocks):
            X = self.think(block, self.attend(block, X, caches[number]))
        return self.head(X)


@bug(CachedGPT, "all layers share the first layer's cache")
class FirstCache(VariedGPT):
    def cache(self, caches, number):
        return caches[0]


@bug(CachedGPT, "the caches are not used")
class NoCaches(VariedGPT):
    def cache(self, caches, number):
        return None


@bug(CachedGPT, "the last norm is missing")
class NoLastNorm(VariedGPT):
    def head(self, X):
        return X @ self.token.weight.T


@bug(CachedGPT, "attention reads what is not normalised")
class NotNormalised(VariedGPT):
    def attend(self, block, X, cache):
        return X + block.attention(X, cache)


@bug(CachedGPT, "attention's residual connection is missing")
class NoResidual(VariedGPT):
    def attend(self, block, X, cache):
        return block.attention(block.norm_1(X), cache)


@bug(CachedGPT, "GELU is the exact one, not GPT-2's with tanh")
class ExactGelu(VariedGPT):
    def think(self, block, X):
        return X + block.contract(F.gelu(block.expand(block.norm_2(X))))


@bug(
    CachedGPT,
    "only the new tokens are compared with the context",
    told_by="should raise ValueError when 2 tokens come after",
)
class OnlyNewCompared(VariedGPT):
    def demand(self, past, T):
        super().demand(0, T)


@bug(
    CachedGPT,
    "positions beyond the context start again at 0",
    told_by="should raise ValueError when 2 tokens come after",
)
class RoundAndRound(VariedGPT):
    def demand(self, past, T):
        pass

    def places(self, past, T):
        return torch.arange(past, past + T) % self.context


@bug(CachedGPT, "only the last token's logits are returned", told_by="should have shape")
class LastLogits(VariedGPT):
    def head(self, X):
        return super().head(X[:, -1:])


class VariedWriter(CachedWriter):
    """A writer whose parts the bugs below vary."""

    def demand(self, T, count):
        if T == 0:
            raise ValueError("the texts are empty")
        if T + count - 1 > self.context:
            raise ValueError("too long")

    def room(self, T, count):
        return T + count - 1

    def start(self, tokens, caches):
        """Read the prompt; return its logits."""
        return self(tokens, caches)

    def follow(self, tokens, drawn, caches):
        """Read what was drawn."""
        return self(drawn[:, None], caches)

    def last(self, logits):
        return logits[:, -1]

    def draw(self, logits, options, generator):
        p = token_probabilities(logits, *options)
        return torch.multinomial(p, 1, generator=generator)[:, 0]

    def finish(self, drawn, ended, stop):
        drawn = torch.where(ended, stop, drawn)
        return drawn, ended | (drawn == stop)

    def over(self, ended):
        return ended.all()

    @torch.no_grad()
    def generate_with_cache(
        self, tokens, count, temperature=1.0, top_k=None, top_p=None, stop=None, generator=None
    ):
        B, T = tokens.shape
        self.demand(T, count)
        options = temperature, top_k, top_p
        caches = self.new_caches(B, self.room(T, count))
        ended, drawn = torch.zeros(B, dtype=torch.bool), None
        for _ in range(count):
            if drawn is None:
                logits = self.start(tokens, caches)
            else:
                logits = self.follow(tokens, drawn, caches)
            drawn = self.draw(self.last(logits), options, generator)
            if stop is not None:
                drawn, ended = self.finish(drawn, ended, stop)
            tokens = torch.cat([tokens, drawn[:, None]], dim=1)
            if self.over(ended):
                break
        return tokens


@bug(CachedWriter, "the whole text is read again for every token, with new caches", classic=True)
class NewCaches(VariedWriter):
    def follow(self, tokens, drawn, caches):
        return self(tokens, self.new_caches(len(tokens)))


@bug(
    CachedWriter,
    "each new token is read with new caches, and sees nothing but itself",
    classic=True,
)
class AloneInNewCaches(VariedWriter):
    def follow(self, tokens, drawn, caches):
        return self(drawn[:, None], self.new_caches(len(tokens)))


@bug(CachedWriter, "the prompt is read token by token")
class TokenByToken(VariedWriter):
    def start(self, tokens, caches):
        for token in tokens.split(1, dim=1):
            logits = self(token, caches)
        return logits


@bug(CachedWriter, "only the last token of the prompt is read")
class LastOfPrompt(VariedWriter):
    def start(self, tokens, caches):
        return self(tokens[:, -1:], caches)


@bug(CachedWriter, "the prompt's last token is read again instead of each drawn token")
class RepeatsPrompt(VariedWriter):
    def start(self, tokens, caches):
        self.prompt = tokens[:, -1]
        return super().start(tokens, caches)

    def follow(self, tokens, drawn, caches):
        return self(self.prompt[:, None], caches)


@bug(CachedWriter, "what was drawn is not read: no token sees the ones written before it")
class ForgetsDrawn(VariedWriter):
    def follow(self, tokens, drawn, caches):
        logits = self(drawn[:, None], caches)
        for one_layer in caches:
            one_layer.truncate(one_layer.length - 1)
        return logits


@bug(CachedWriter, "the first position's logits are used")
class FirstLogits(VariedWriter):
    def last(self, logits):
        return logits[:, 0]


@bug(CachedWriter, "the best token is always taken, whatever the temperature")
class AlwaysGreedy(VariedWriter):
    def draw(self, logits, options, generator):
        return logits.argmax(dim=1)


@bug(CachedWriter, "temperature, top_k and top_p are not used")
class NoOptions(VariedWriter):
    def draw(self, logits, options, generator):
        return torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]


@bug(CachedWriter, "the generator is not used")
class NoGenerator(VariedWriter):
    def draw(self, logits, options, generator):
        return super().draw(logits, options, None)


@bug(CachedWriter, "the prompt is not part of what is returned", told_by="should have shape")
class WithoutPrompt(VariedWriter):
    def generate_with_cache(self, tokens, count, *args, **options):
        return super().generate_with_cache(tokens, count, *args, **options)[:, tokens.shape[1] :]


@bug(CachedWriter, "stop is ignored", told_by="texts with a stop should have shape")
class NoStop(VariedWriter):
    def finish(self, drawn, ended, stop):
        return drawn, ended


@bug(
    CachedWriter,
    "writing ends when the first text does",
    told_by="texts with a stop should have shape",
)
class FirstEnds(VariedWriter):
    def over(self, ended):
        return ended.any()


@bug(CachedWriter, "a text goes on after its stop")
class GoesOn(VariedWriter):
    def finish(self, drawn, ended, stop):
        return drawn, ended | (drawn == stop)


@bug(CachedWriter, "a stop token of 0 counts as none")
class NeverAtZero(VariedWriter):
    def finish(self, drawn, ended, stop):
        return super().finish(drawn, ended, stop) if stop else (drawn, ended)


@bug(CachedWriter, "a stop token at the end of the prompt ends the text")
class EndedBefore(VariedWriter):
    def start(self, tokens, caches):
        self.given = tokens[:, -1]
        return super().start(tokens, caches)

    def finish(self, drawn, ended, stop):
        drawn, ended = super().finish(drawn, ended | (self.given == stop), stop)
        return drawn, ended


@bug(
    CachedWriter,
    "there is no room for the last token that is read",
    told_by="do not fit into a cache for",
)
class TooLittleRoom(VariedWriter):
    def room(self, T, count):
        return T + count - 2


@bug(
    CachedWriter,
    "an empty text fails only when it is read",
    told_by="should raise ValueError when the texts are empty",
)
class EmptyFails(VariedWriter):
    def demand(self, T, count):
        super().demand(max(T, 1), count)


@bug(
    CachedWriter,
    "a text that fills the context with what is written is refused",
    told_by="raised ValueError: too long",
)
class OneTooEarly(VariedWriter):
    def demand(self, T, count):
        super().demand(T, count)
        if T + count > self.context:
            raise ValueError("too long")


@bug(
    CachedWriter,
    "a text that grows beyond the context loses its start",
    told_by="should raise ValueError when 9 tokens are given",
)
class Slides(VariedWriter):
    def demand(self, T, count):
        super().demand(T, 1)

    def follow(self, tokens, drawn, caches):
        if tokens.shape[1] > self.context:
            return self(tokens[:, -self.context :])
        return super().follow(tokens, drawn, caches)


@bug(
    CachedWriter,
    "the whole text is given to the model in every step, along with the caches",
    told_by="do not fit into",
    classic=True,
)
class WholeText(VariedWriter):
    def follow(self, tokens, drawn, caches):
        return self(tokens, caches)


def steps(prompt, count, cached, new=None, pair=None):
    """Count step by step, with one part exchanged."""
    if prompt < 1 or count < 1:
        raise ValueError("too few")
    new = new or (lambda n: n if n == prompt or not cached else 1)
    pair = pair or (lambda read, n: read * n)
    found = {"tokens": 0, "pairs": 0}
    for n in range(prompt, prompt + count):
        found["tokens"] += new(n)
        found["pairs"] += pair(new(n), n)
    return found


@bug(attention_operations, "the last token is also read", classic=True)
def one_more(prompt, count, cached):
    if count < 1:
        raise ValueError("too few")
    return attention_operations(prompt, count + 1, cached)


@bug(
    attention_operations,
    "only pairs that the mask allows are counted, as if the prompt came in steps",
)
def allowed(prompt, count, cached):
    return steps(prompt, count, cached, pair=lambda read, n: sum(range(n - read + 1, n + 1)))


@bug(attention_operations, "a new token is not paired with itself")
def without_itself(prompt, count, cached):
    return steps(prompt, count, cached, pair=lambda read, n: read * n - (read == 1 < n))


@bug(
    attention_operations,
    "only pairs that the mask allows are counted, as if the prompt came in steps",
)
def prompt_in_steps(prompt, count, cached):
    found = attention_operations(prompt, count, cached)
    if cached:
        found["pairs"] = attention_operations(1, prompt + count - 1, True)["pairs"]
    return found


@bug(attention_operations, "with a cache the pairs of the prompt are left out")
def without_prompt(prompt, count, cached):
    found = attention_operations(prompt, count, cached)
    if cached:
        found["pairs"] -= prompt**2
    return found


@bug(attention_operations, "without a cache writing starts with the first token of the prompt")
def from_one(prompt, count, cached):
    found = attention_operations(prompt, count, cached)
    return found if cached else attention_operations(1, prompt + count - 1, False)


@bug(attention_operations, "the counts with and without a cache are mixed up, or the same")
def mixed_up(prompt, count, cached):
    return attention_operations(prompt, count, not cached)


@bug(attention_operations, "the sum of squares is taken for N³/3")
def a_third(prompt, count, cached):
    found = attention_operations(prompt, count, cached)
    if not cached:
        found["pairs"] = ((prompt + count - 1) ** 3 - (prompt - 1) ** 3) // 3
    return found


@bug(attention_operations, "every new token is paired with the longest text")
def longest(prompt, count, cached):
    found = attention_operations(prompt, count, cached)
    last = prompt + count - 1
    if cached:
        found["pairs"] = prompt**2 + (count - 1) * last
    return found


@bug(attention_operations, "the counts with and without a cache are mixed up, or the same")
def read_once(prompt, count, cached):
    found = attention_operations(prompt, count, cached)
    found["tokens"] = prompt + count - 1
    return found


@bug(attention_operations, "with a cache only the new tokens are counted, not the prompt's")
def new_only(prompt, count, cached):
    found = attention_operations(prompt, count, cached)
    if cached:
        found["tokens"] = count - 1
    return found


@bug(
    attention_operations,
    "floating-point numbers are used, which are not exact",
    told_by="should be exactly",
    classic=True,
)
def floating(prompt, count, cached):
    found = attention_operations(prompt, count, cached)
    last = prompt + count - 1
    if not cached:
        cubes = [n * (n + 1) * (2 * n + 1) / 6 for n in (last, prompt - 1)]
        found["pairs"] = int(cubes[0] - cubes[1])
    return found


@bug(attention_operations, "an empty prompt is counted", told_by="when the prompt is empty")
def no_prompt(prompt, count, cached):
    return attention_operations(max(prompt, 1), count, cached)


@bug(kv_cache_bytes, "keys are counted, and values are not", classic=True)
def keys_only(L, G, D_h, N, B=1, dtype=torch.float16):
    return L * B * G * N * D_h * dtype.itemsize


@bug(kv_cache_bytes, "queries are also counted")
def queries_too(L, G, D_h, N, B=1, dtype=torch.float16):
    return 3 * L * B * G * N * D_h * dtype.itemsize


@bug(kv_cache_bytes, "one layer is counted")
def one_layer(L, G, D_h, N, B=1, dtype=torch.float16):
    return kv_cache_bytes(1, G, D_h, N, B, dtype)


@bug(kv_cache_bytes, "one head is counted")
def one_head(L, G, D_h, N, B=1, dtype=torch.float16):
    return kv_cache_bytes(L, 1, D_h, N, B, dtype)


@bug(kv_cache_bytes, "one sequence is counted")
def one_sequence(L, G, D_h, N, B=1, dtype=torch.float16):
    return kv_cache_bytes(L, G, D_h, N, 1, dtype)


@bug(kv_cache_bytes, "every number has two bytes, whatever its dtype")
def two_bytes(L, G, D_h, N, B=1, dtype=torch.float16):
    return kv_cache_bytes(L, G, D_h, N, B)


@bug(kv_cache_bytes, "bits are counted")
def in_bits(L, G, D_h, N, B=1, dtype=torch.float16):
    return 8 * kv_cache_bytes(L, G, D_h, N, B, dtype)


@bug(kv_cache_bytes, "numbers are counted, and not their bytes")
def numbers_only(L, G, D_h, N, B=1, dtype=torch.float16):
    return 2 * L * B * G * N * D_h


@bug(kv_cache_bytes, "the weights of attention are also counted")
def with_weights(L, G, D_h, N, B=1, dtype=torch.float16):
    return kv_cache_bytes(L, G, D_h, N, B, dtype) + L * N * N * dtype.itemsize


@bug(kv_cache_bytes, "the default is float32")
def single_by_default(L, G, D_h, N, B=1, dtype=torch.float32):
    return kv_cache_bytes(L, G, D_h, N, B, dtype)


class VariedGroups(Varied, GroupedQueryAttention):
    """Grouped attention whose parts the bugs below vary."""

    def widen(self, K):
        return K.repeat_interleave(self.H // self.G, dim=1)


@bug(
    GroupedQueryAttention,
    "neighbouring queries get different key heads: h mod G, not h // (H/G)",
    classic=True,
)
class InTurns(VariedGroups):
    def widen(self, K):
        return K.repeat(1, self.H // self.G, 1, 1)


@bug(GroupedQueryAttention, "all queries use the first head of keys and values")
class FirstHead(VariedGroups):
    def widen(self, K):
        return K[:, :1].expand(-1, self.H, -1, -1)


@bug(GroupedQueryAttention, "the scores are divided by √(D/G), not by √D_h")
class RootOfGroups(VariedGroups):
    def scores(self, Q, K):
        return Q @ K.mT / math.sqrt(self.H * self.D_h / self.G)


@bug(GroupedQueryAttention, "the queries of a group are averaged before they are scored")
class AveragedQueries(VariedGroups):
    def project(self, X):
        Q, K, V = super().project(X)
        mean = Q.unflatten(1, (self.G, -1)).mean(dim=2)
        return mean.repeat_interleave(self.H // self.G, dim=1), K, V


@bug(GroupedQueryAttention, "the outputs of the heads are merged in another order")
class OtherOrder(VariedGroups):
    def forward(self, X, cache=None):
        W_O, D_h = self.W_O, self.D_h
        order = torch.arange(self.H).view(self.G, -1).T.flatten()
        rows = (order[:, None] * D_h + torch.arange(D_h)).flatten()
        self._parameters["W_O"] = nn.Parameter(W_O[rows.argsort()])
        try:
            return super().forward(X, cache)
        finally:
            self._parameters["W_O"] = W_O


@bug(GroupedQueryAttention, "the heads of keys are shared in groups, those of values in turn")
class ValuesInTurns(VariedGroups):
    def forward(self, X, cache=None):
        Q, K, V = self.project(X)
        if cache is not None:
            K, V = (part.to(Q.dtype) for part in self.extend(cache, Q, K, V))
        T, N = X.shape[1], K.shape[2]
        A = masked_softmax(self.scores(Q, self.widen(K)), self.mask(T, N))
        self.count(T, N)
        V = V.repeat(1, self.H // self.G, 1, 1)
        return merge_heads(A @ V) @ self.W_O + self.b_O


@bug(GroupedQueryAttention, "there is no mask")
class GroupsWithoutMask(VariedGroups):
    def mask(self, T, N):
        return torch.ones(T, N, dtype=torch.bool)


@bug(GroupedQueryAttention, "the mask ignores the past: new positions see only the oldest ones")
class GroupsWithoutPast(VariedGroups):
    def mask(self, T, N):
        return torch.ones(T, N, dtype=torch.bool).tril()


@bug(GroupedQueryAttention, "the pairs of all heads of queries are counted")
class GroupsCountHeads(VariedGroups):
    def count(self, T, N):
        super().count(T, self.H * N)


@bug(
    GroupedQueryAttention,
    "keys are repeated for all queries before they are cached",
    told_by="raised ValueError: K and V should have shape",
)
class RepeatedInCache(VariedGroups):
    def project(self, X):
        Q, K, V = super().project(X)
        return Q, super().widen(K), super().widen(V)

    def widen(self, K):
        return K


@bug(
    GroupedQueryAttention,
    "W_K and W_V are as large as W_Q",
    told_by="W_K should have shape (30, 15), yours is (30, 30)",
)
class LargeWeights(VariedGroups):
    def __init__(self, D, H, G, bias=False):
        if H % G:
            raise ValueError("G does not divide H")
        CachedAttention.__init__(self, D, H, bias)
        self.G = G


@bug(
    GroupedQueryAttention,
    "b_K and b_V are as large as b_Q",
    told_by="b_K should have shape (15,), yours is (30,)",
)
class LargeBiases(VariedGroups):
    def __init__(self, D, H, G, bias=False):
        super().__init__(D, H, G, bias)
        if bias:
            self.b_K, self.b_V = (nn.Parameter(torch.zeros(D)) for _ in "KV")


@bug(
    GroupedQueryAttention,
    "a number of groups that does not divide the heads is accepted",
    told_by="should raise ValueError when 6 heads are to share 4 groups",
)
class AnyGroups(VariedGroups):
    def __init__(self, D, H, G, bias=False):
        super().__init__(D, H, math.gcd(H, G), bias)


def convert(state, H, G, pool, names=("W_K", "W_V", "b_K", "b_V")):
    """Convert a state dict, with one part exchanged."""
    if H % G:
        raise ValueError("G does not divide H")
    return {
        name: pool(value.unflatten(-1, (H, -1))).flatten(-2)
        if name.rpartition(".")[2] in names
        else value
        for name, value in state.items()
    }


@bug(mha_to_gqa, "the heads of a group are added, not averaged")
def added(state, H, G):
    return convert(state, H, G, lambda X: X.unflatten(-2, (G, -1)).sum(dim=-2))


@bug(mha_to_gqa, "the first head of each group is taken")
def first_head(state, H, G):
    return convert(state, H, G, lambda X: X[..., :: H // G, :])


@bug(mha_to_gqa, "the first G heads are taken")
def first_heads(state, H, G):
    return convert(state, H, G, lambda X: X[..., :G, :])


@bug(mha_to_gqa, "a group has every G-th head, not neighbours", classic=True)
def every_gth(state, H, G):
    return convert(state, H, G, lambda X: X.unflatten(-2, (-1, G)).mean(dim=-3))


@bug(mha_to_gqa, "all heads are averaged, and every group gets the same")
def all_the_same(state, H, G):
    def pool(X):
        return X.mean(dim=-2, keepdim=True).expand(*X.shape[:-2], G, -1)

    return convert(state, H, G, pool)


@bug(mha_to_gqa, "the parts of a head are taken for heads")
def parts_for_heads(state, H, G):
    def pool(X):
        return X.flatten(-2).unflatten(-1, (-1, H)).unflatten(-1, (G, -1)).mean(dim=-1)

    return convert(state, H, G, pool)


@bug(mha_to_gqa, "the biases stay as they are", told_by="b_K should have shape", classic=True)
def no_biases(state, H, G):
    return convert(
        state, H, G, lambda X: X.unflatten(-2, (G, -1)).mean(dim=-2), names=("W_K", "W_V")
    )


@bug(mha_to_gqa, "the values stay as they are", told_by="W_V should have shape")
def no_values(state, H, G):
    return convert(
        state, H, G, lambda X: X.unflatten(-2, (G, -1)).mean(dim=-2), names=("W_K", "b_K")
    )


@bug(mha_to_gqa, "the queries are also averaged", told_by="W_Q should have shape")
def queries_averaged(state, H, G):
    names = [f"{letter}_{x}" for letter in "Wb" for x in "QKV"]
    return convert(state, H, G, lambda X: X.unflatten(-2, (G, -1)).mean(dim=-2), names=names)


@bug(mha_to_gqa, "only the weights that change are returned", told_by="is missing")
def changed_only(state, H, G):
    found = mha_to_gqa(state, H, G)
    return {name: found[name] for name in found if name[-3:] in ("W_K", "W_V", "b_K", "b_V")}


@bug(mha_to_gqa, "the means are written into the weights given", told_by="changes its input")
def in_place(state, H, G):
    found = mha_to_gqa(state, H, G)
    for weight, mean in found.items():
        if mean.shape != state[weight].shape:
            state[weight][..., : mean.shape[-1]] = mean
    return found


@bug(
    mha_to_gqa,
    "a number of groups that does not divide the heads is accepted",
    told_by="should raise ValueError when 6 heads are to share 4 groups",
)
def any_groups(state, H, G):
    return mha_to_gqa(state, H, math.gcd(H, G))


on_the_cpu = "checks compute on the CPU"
tensor = "self.K = torch.empty(B, G, capacity, D_h, dtype=dtype"
equivalent(KVCache, f"{tensor}, device=device) → {tensor})", on_the_cpu)
tensor = "ended = torch.zeros(B, dtype=torch.bool"
equivalent(CachedWriter, f"{tensor}, device=tokens.device) → {tensor})", on_the_cpu)
room = "caches = self.new_caches(B, T + count"
equivalent(CachedWriter, f"{room} - 1) → {room} + 1)", "more room than is needed is no mistake")
pick = "drawn = torch.multinomial(p, {}, generator=generator)[:, 0]"
equivalent(
    CachedWriter,
    f"{pick.format(1)} → {pick.format(2)}",
    "the first of two draws is what a single one gives",
)
