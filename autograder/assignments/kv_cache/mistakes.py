"""Known wrong solutions of kv_cache."""

import torch

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.attention import split_heads
from course_pkg.kv_cache import (
    CachedAttention,
    CachedGPT,
    CachedWriter,
    GroupedQueryAttention,
    KVCache,
    LatentAttention,
    attention_operations,
    kv_cache_bytes,
    mha_to_gqa,
    mha_to_gqa_fault,
)
from course_pkg.positions import rope_rotate

mistakes(
    KVCache,
    """
FromTheStart: every append overwrites what is there from the start
    torch.empty(B → torch.zeros(B
    empty_like → zeros_like
    K[:, :, self.length : end] → K[:, :, :T]
    V[:, :, self.length : end] → V[:, :, :T]
""",
)


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
        vars(self).pop("first", None)

    def read(self):
        if self.length and hasattr(self, "first"):
            return self.first[0][:, :, : self.length], self.first[1][:, :, : self.length]
        return super().read()


mistakes(
    KVCache,
    """
HalfAppended: an append that is refused has changed the length already
    torch.empty(B → torch.zeros(B
    empty_like → zeros_like
    T = K.shape[-2] → self.length += (T := K.shape[-2])
    end = self.length + T → end = self.length
    K[:, :, self.length : end] → K[:, :, end - T : end]
    V[:, :, self.length : end] → V[:, :, end - T : end]
OnlyTheLast: only what was appended last is kept
    K[:, :, self.length : end] → K[:, :, :T]
    V[:, :, self.length : end] → V[:, :, :T]
    self.length = end → self.length = T
NewestFirst: what is appended comes before what was there
    K[:, :, self.length : end] = K → K[:, :, :end] = torch.cat([K, self.read()[0]], 2)
    V[:, :, self.length : end] = V → V[:, :, :end] = torch.cat([V, self.read()[1]], 2)
MixedUp: keys and values are mixed up
    self.K[:, :, : self.length], self.V → self.V[:, :, : self.length], self.K
ByOne: the length grows by one with every append, however many positions come
    self.length = end → self.length += 1
WholeRoom: the room that is not yet used is also read
    torch.empty(B → torch.zeros(B
    empty_like → zeros_like
    self.K[:, :, : self.length], self.V[:, :, : self.length] → self.K, self.V
""",
)


@bug(KVCache, "truncate keeps the last positions")
class KeepsTheLast(KVCache):
    def truncate(self, length):
        forgotten = self.length - length
        super().truncate(length)
        self.K, self.V = self.K.roll(-forgotten, 2), self.V.roll(-forgotten, 2)


mistakes(
    KVCache,
    """
HowManyToForget: truncate takes how many positions to forget, not how many to keep
    0 <= length <= → 0 <= (length := self.length - length) <=
* BehindTheCut: append goes on after what was truncated
    self.length = 0 → self.length = self.end = 0
    end = self.length + T → end = self.end + T
    K[:, :, self.length : end] → K[:, :, self.end : end]
    V[:, :, self.length : end] → V[:, :, self.end : end]
    self.length = end → self.length, self.end = self.length + T, end
* BringsBack: append goes on after what was truncated
    self.length = 0 → self.length = self.end = 0
    end = self.length + T → end = self.end + T
    K[:, :, self.length : end] → K[:, :, self.end : end]
    V[:, :, self.length : end] → V[:, :, self.end : end]
    self.length = end → self.length = self.end = end
* ReadsOn: truncate does not change what is read
    torch.empty(B → torch.zeros(B
    empty_like → zeros_like
    self.length = 0 → self.length = self.readable = 0
    self.length = end → self.length, self.readable = end, self.readable + T
    : self.length], self.V[:, :, : self.length] → : self.readable], self.V[:, :, : self.readable]
NoTruncate: truncate does not change what is read
    self.length = length →
KeepsHistory: the gradient history of the numbers is kept
    K.detach() → K
    V.detach() → V
    says: should carry no gradient
IgnoresDtype: the dtype that was asked for is not used
    dtype=dtype → dtype=torch.float32
DtypeOfTheFirst: the dtype that was asked for is not used
    T = K.shape[-2] → T, self.K, self.V = K.shape[-2], self.K.to(K.dtype), self.V.to(V.dtype)
""",
)


@bug(KVCache, "a full cache forgets the oldest positions")
class Sliding(KVCache):
    def append(self, K, V):
        capacity = self.K.shape[2]
        if self.length + K.shape[2] > capacity:
            rest = [part[:, :, K.shape[2] :].clone() for part in self.read()]
            self.length = 0
            super().append(*rest)
        super().append(K, V)


mistakes(
    KVCache,
    """
* Broadcast: the keys and values of one text are used for all
    K.shape != (B, G → K.shape[1:] != (G
    V.shape != (B, G → V.shape[1:] != (G
    says: should raise ValueError when one text comes instead of all
* Lengthens: truncate makes a cache longer than what was read
    not 0 <= length <= self.length → length < 0
""",
)


@bug(KVCache, "what fits is kept before the rest is refused")
class KeepsWhatFits(KVCache):
    def append(self, K, V):
        room = self.K.shape[2] - self.length
        if K.shape[2] > room > 0 and K.shape == V.shape:
            super().append(K[:, :, :room], V[:, :, :room])
            raise ValueError("the rest does not fit")
        super().append(K, V)


mistakes(
    KVCache,
    """
OneForAll: all caches share one memory
    = "cpu" → = "cpu", one={}
    torch.empty_like(self.K) → one.setdefault((dtype, B, G, capacity, D_h), self.K.clone())
    self.length = 0 → self.K = one.setdefault((B, G, capacity, D_h, dtype), self.K); self.length = 0
CutsRoom: truncate takes away the room along with what it forgets
    self.length = length → self.length = length; self.K, self.V = self.read()
LengthFirst: an append that is refused has changed the length already
    end = self.length + T → self.length = end = self.length + T
    K[:, :, self.length : end] → K[:, :, end - T : end]
    V[:, :, self.length : end] → V[:, :, end - T : end]
""",
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
    not 0 <= length <= self.length → length > self.length
UpToCapacity: truncate makes a cache longer than what was read
    0 <= length <= self.length → 0 <= length <= self.K.shape[2]
DefaultValues: values are kept in float32, whatever is asked for
    self.V = torch.empty_like(self.K) → self.V = torch.empty(B, G, capacity, D_h, device=device)
OneSlotLess: the last position that there is room for is refused
    if end > capacity → if end >= capacity
OtherLengths: V may have another number of positions than K
    V.shape != (B, G, T, D_h) → V.shape != (B, G, V.shape[-2], D_h)
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
    if end > capacity → if end > capacity or self.length == capacity
    says: positions do not fit into a cache for
""",
)

mistakes(
    CachedAttention,
    """
CountsRefused: what is refused is counted
    self.counts["tokens"] += T →
    T = X.shape[1] → T = X.shape[1]; self.counts["tokens"] += T
    says: counted after a call that was refused
* NoMask: there is no mask: positions that come together see each other
    masked_softmax(E, causal_mask(T, past=N - T).to(E.device)) → E.softmax(dim=-1)
* MaskWithoutPast: the mask ignores the past: new positions see only the oldest ones
    causal_mask(T, past=N - T) → torch.ones(T, N).tril().bool()
MaskByT: a mask is kept for each number of new positions, whatever the past is
    "pairs": 0} → "pairs": 0}; self.masks = {}
    N = K.shape[2] → N = K.shape[2]; mask = self.masks.setdefault(T, causal_mask(T, past=N - T))
    E, causal_mask(T, past=N - T) → E, functional.pad(mask, (0, N - mask.shape[1]), value=T == 1)
MaskOnlyAtFirst: only the first text is masked, and not what comes when there is a past
    causal_mask(T, past=N - T) → (causal_mask(T) if T == N else torch.ones(T, N).bool())
OwnCount: the layer counts the past itself, also what a cache has given back
    "pairs": 0} → "pairs": 0}; self.past = 0
    T = X.shape[1] → T = X.shape[1]; self.past *= cache is not None and cache.length > 0
    causal_mask(T, past=N - T) → causal_mask(T, past=self.past)[:, :N]
    += T * N → += T * N; self.past += T
* NoMaskWithCache: there is no mask where there is a cache, not even in the prefill
    causal_mask(T, past=N - T) → (causal_mask(T) if cache is None else torch.ones(T, N).bool())
Blind: a position does not see itself
    causal_mask(T, past=N - T) → torch.ones(T, N).tril(N - T - 1).bool()
NewOnly: the new positions see only the new positions
    K, V = (part.to(Q.dtype) for part in cache.read()) →
Twice: the new positions are already in the cache and are added to it once more
    part.to(Q.dtype) for → torch.cat(part, dim=2).to(Q.dtype) for
    in cache.read() → in zip(cache.read(), (K, V))
SwappedInCache: keys and values are mixed up in the cache
    cache.append(K, V) → cache.append(V, K)
KeepsQueries: queries are kept in place of keys
    cache.append(K, V) → cache.append(Q, V)
WrongRoot: the scores are divided by √D, not by √D_h
    math.sqrt(self.D_h) → math.sqrt(self.H * self.D_h)
NoRoot: the scores are not divided by √D_h
    / math.sqrt(self.D_h) →
NoBias: the biases of keys and values are left out
    self.W_K + self.b_K → self.W_K
    self.W_V + self.b_V → self.W_V
CountsAllowed: only the pairs that the mask allows are counted
    += T * N → += int(causal_mask(T, past=N - T).sum())
CountsHeads: the pairs of all heads are counted
    += T * N → += self.H * T * N
CountsAnew: the counts are those of the last call
    ["tokens"] += T → ["tokens"] = T
    += T * N → = T * N
CountsTheOld: all positions are counted as new
    ["tokens"] += T → ["tokens"] += N
    += T * N → += N * N
RoundsQueries: queries are rounded to the precision of the cache
    E = Q @ → E = (Q if cache is None else Q.to(cache.read()[0].dtype).to(Q.dtype)) @
OtherDtype: keys come from the cache in a dtype that is not the queries'
    (part.to(Q.dtype) for part in cache.read()) → cache.read()
    says: raised RuntimeError: expected
AlwaysCached: keys and values lose their gradient history even without a cache
    T = X.shape[1] → T = X.shape[1]; cache = cache or self.new_cache(len(X), T)
    + self.b_O → + self.b_O + 0 * (self.W_K.sum() + self.W_V.sum() + self.b_V.sum())
    says: gradient of W_K
OneCache: the layer goes on with the first cache that it was given
    cache is not None → cache is not None and (cache := vars(self).setdefault("own", cache))
LastOnly: only the last position gets an output
    merge_heads(A @ V) → merge_heads(A[:, :, -1:] @ V)
    says: should have shape
* ReadsFirst: the cache is read first and extended afterwards: new positions see only the past
    cache.append(K, V) → old = cache.read(); cache.append(K, V)
    in cache.read() → in old
    causal_mask(T, past=N - T) → (causal_mask(T) if cache is None else torch.ones(T, N).bool())
* ReadsBefore: the cache is read first and extended afterwards: new positions see only the past
    cache.append(K, V) → new = K, V
    in cache.read()) → in cache.read()); cache.append(*new)
PairsOfNew: pairs are counted with the new positions only
    += T * N → += T * T
CountsWithCache: what is read without a cache is not counted
    ["tokens"] += T → ["tokens"] += T if cache else 0
    += T * N → += T * N if cache else 0
LastCache: the layer goes on with the last cache when it is called without one
    T = X.shape[1] → T = X.shape[1]; cache = self.cache = cache or getattr(self, "cache", None)
ScalesTheCache: the keys in the cache are divided by √D_h, in every call once more
    E = Q @ K.mT / math.sqrt(self.D_h) → K /= math.sqrt(self.D_h); E = Q @ K.mT
CountsTexts: the counts are those of all sequences together
    ["tokens"] += T → ["tokens"] += len(X) * T
    += T * N → += len(X) * T * N
""",
)

mistakes(
    CachedGPT,
    """
* FromZero: the positions start at 0 with every call
    weight[past:N] → weight[: N - past]
OneTooHigh: the positions of later tokens are one too high
    position.weight[past:N] → position((torch.arange(past, N) + (past > 0)) % self.context)
OneTooLow: the positions of later tokens are one too low
    position.weight[past:N] → position(torch.arange(past, N) - int(past > 0))
SamePlace: all tokens that come together get the position of the first of them
    weight[past:N] → weight[past : past + 1 if past else N]
NoPlace: later tokens get no position
    self.position.weight[past:N] → (0 if past else self.position.weight[:N])
FirstCache: all layers share the first layer's cache
    caches[number] → caches[0]
NoCaches: the caches are not used
    None if caches is None else caches[number] → None
NoLastNorm: the last norm is missing
    self.norm(X) @ → X @
NotNormalised: attention reads what is not normalised
    block.norm_1(X) → X
NoResidual: attention's residual connection is missing
    X + block.attention → block.attention
ExactGelu: GELU is the exact one, not GPT-2's with tanh
    , approximate="tanh" →
OnlyNewCompared: only the new tokens are compared with the context
    if N > self.context → if N - past > self.context
    position.weight[past:N] → position(torch.arange(past, N))
    says: should raise ValueError when 2 tokens come after
RoundAndRound: positions beyond the context start again at 0
    if N > self.context → if False
    position.weight[past:N] → position(torch.arange(past, N) % self.context)
    says: should raise ValueError when 2 tokens come after
LastLogits: only the last token's logits are returned
    self.norm(X) @ → self.norm(X[:, -1:]) @
    says: should have shape
""",
)

mistakes(
    CachedWriter,
    """
* NewCaches: the whole text is read again for every token, with new caches
    unread = drawn[:, None] → unread, caches = drawn[:, None], self.new_caches(B)
    tokens = torch.cat → tokens = unread = torch.cat
* AloneInNewCaches: each new token is read with new caches, and sees nothing but itself
    unread = drawn[:, None] → unread, caches = drawn[:, None], self.new_caches(B)
TokenByToken: the prompt is read token by token
    unread = tokens → [self(t[:, None], caches) for t in tokens.T[:-1]]; unread = tokens[:, -1:]
LastOfPrompt: only the last token of the prompt is read
    unread = tokens → unread = tokens[:, -1:]
RepeatsPrompt: the prompt's last token is read again instead of each drawn token
    dim=1) → dim=1); unread = tokens[:, T - 1 : T]
ForgetsDrawn: what was drawn is not read: no token sees the ones written before it
    dim=1) → dim=1); [cache.truncate(T) for cache in caches]
FirstLogits: the first position's logits are used
    caches)[:, -1] → caches)[:, 0]
AlwaysGreedy: the best token is always taken, whatever the temperature
    torch.multinomial(p, 1, generator=generator)[:, 0] → logits.argmax(dim=1)
NoOptions: temperature, top_k and top_p are not used
    token_probabilities(logits, temperature, top_k, top_p) → logits.softmax(dim=1)
NoGenerator: the generator is not used
    generator=generator → generator=None
WithoutPrompt: the prompt is not part of what is returned
    return tokens → return tokens[:, T:]
    says: should have shape
NoStop: stop is ignored
    if stop is not None → if False
    says: texts with a stop should have shape
FirstEnds: writing ends when the first text does
    ended.all() → ended.any()
    says: texts with a stop should have shape
GoesOn: a text goes on after its stop
    torch.where(ended, stop, drawn) → drawn
NeverAtZero: a stop token of 0 counts as none
    if stop is not None → if stop
EndedBefore: a stop token at the end of the prompt ends the text
    torch.where(ended, → torch.where(ended | (tokens[:, T - 1] == stop),
TooLittleRoom: there is no room for the last token that is read
    (B, T + count - 1) → (B, T + count - 2)
    says: do not fit into a cache for
EmptyFails: an empty text fails only when it is read
    if T == 0 → if False
    says: should raise ValueError when the texts are empty
OneTooEarly: a text that fills the context with what is written is refused
    T + count - 1 > self.context → T + count > self.context
    raise ValueError(problem) → raise ValueError("too long")
    says: Of 9 tokens and 2 new ones 10 are read, and the context is 10.
Slides: a text that grows beyond the context loses its start
    T + count - 1 > self.context → T > self.context
    self(unread, → self(unread if tokens.shape[1] <= self.context else tokens[:, -self.context :],
    caches)[ → caches if tokens.shape[1] <= self.context else None)[
    says: should raise ValueError when 9 tokens are given
* WholeText: the whole text is given to the model in every step, along with the caches
    tokens = torch.cat → tokens = unread = torch.cat
    says: Does each step read only what has not been read yet?
* WholeTextRoomy: the whole text is given to the model in every step, along with the caches
    (B, T + count - 1) → (B, 1000)
    tokens = torch.cat → tokens = unread = torch.cat
    says: Does each step read only what has not been read yet?
""",
)

mistakes(
    attention_operations,
    """
* one_more: the last token is also read
    prompt + count - 1 → prompt + count
allowed: only pairs that the mask allows are counted, as if the prompt came in steps
    prompt**2 + line(last) - line(prompt) → line(last)
    square(last) - square(prompt - 1) → sum(line(n) for n in range(prompt, last + 1))
without_itself: a new token is not paired with itself
    line(prompt)} → line(prompt) - (count - 1)}
prompt_in_steps: only pairs that the mask allows are counted, as if the prompt came in steps
    prompt**2 + line(last) - line(prompt) → line(last)
without_prompt: with a cache the pairs of the prompt are left out
    prompt**2 + →
from_one: without a cache writing starts with the first token of the prompt
    - line(prompt - 1) →
    - square(prompt - 1) →
mixed_up: the counts with and without a cache are mixed up, or the same
    if cached → if not cached
a_third: the sum of squares is taken for N³/3
    square(last) - square(prompt - 1) → (last**3 - (prompt - 1) ** 3) // 3
longest: every new token is paired with the longest text
    line(last) - line(prompt)} → (count - 1) * last}
read_once: the counts with and without a cache are mixed up, or the same
    line(last) - line(prompt - 1) → last
new_only: with a cache only the new tokens are counted, not the prompt's
    "tokens": last → "tokens": count - 1
* floating: floating-point numbers are used, which are not exact
    (2 * n + 1) // 6 → (2 * n + 1) / 6
    square(last) - square(prompt - 1) → int(square(last) - square(prompt - 1))
    says: should be exactly
no_prompt: an empty prompt is counted
    prompt < 1 or count < 1 → count < 1
    says: when the prompt is empty
""",
)

mistakes(
    kv_cache_bytes,
    """
* keys_only: keys are counted, and values are not
    2 * L → L
queries_too: queries are also counted
    2 * L → 3 * L
one_layer: one layer is counted
    2 * L → 2
one_head: one head is counted
    B * G → B
one_sequence: one sequence is counted
    B * G → G
two_bytes: every number has two bytes, whatever its dtype
    dtype.itemsize → 2
in_bits: bits are counted
    2 * L → 8 * 2 * L
numbers_only: numbers are counted, and not their bytes
    * dtype.itemsize →
with_weights: the weights of attention are also counted
    dtype.itemsize → dtype.itemsize + L * N * N * dtype.itemsize
single_by_default: the default is float32
    torch.float16 → torch.float32
""",
)

mistakes(
    GroupedQueryAttention,
    """
* InTurns: neighbouring queries get different key heads: h mod G, not h // (H/G)
    (self.G, -1) → (-1, self.G)
    K[:, :, None] → K[:, None]
    V[:, :, None] → V[:, None]
FirstHead: all queries use the first head of keys and values
    K[:, :, None] → K[:, :1, None]
    V[:, :, None] → V[:, :1, None]
RootOfGroups: the scores are divided by √(D/G), not by √D_h
    math.sqrt(self.D_h) → math.sqrt(self.H * self.D_h / self.G)
AveragedQueries: the queries of a group are averaged before they are scored
    (self.G, -1)) → (self.G, -1)).mean(2, keepdim=True).expand(-1, -1, self.H // self.G, -1, -1)
OtherOrder: the outputs of the heads are merged in another order
    flatten(1, 2) → transpose(1, 2).flatten(1, 2)
ValuesInTurns: the heads of keys are shared in groups, those of values in turn
    A @ V[:, :, None] → A.flatten(1, 2).unflatten(1, (-1, self.G)) @ V[:, None]
GroupsWithoutMask: there is no mask
    masked_softmax(E, causal_mask(T, past=N - T).to(E.device)) → E.softmax(dim=-1)
GroupsWithoutPast: the mask ignores the past: new positions see only the oldest ones
    causal_mask(T, past=N - T) → torch.ones(T, N).tril().bool()
GroupsCountHeads: the pairs of all heads of queries are counted
    += T * N → += self.H * T * N
* RepeatedInCache: keys are repeated for all queries before they are cached
    self.b_K, self.G) → self.b_K, self.G).repeat_interleave(self.H // self.G, dim=1)
    self.b_V, self.G) → self.b_V, self.G).repeat_interleave(self.H // self.G, dim=1)
    (self.G, -1) → (self.H, -1)
    says: Do K and V still have G heads when they are appended?
DrawnByColumns: W_K and W_V are divided by the root of their columns, not of their rows
    self.W_K = nn.Parameter(torch.randn(D, size) / math.sqrt(D))
    → self.W_K = nn.Parameter(torch.randn(D, size) / math.sqrt(size))
    self.W_V = nn.Parameter(torch.randn(D, size) / math.sqrt(D))
    → self.W_V = nn.Parameter(torch.randn(D, size) / math.sqrt(size))
    says: standard deviation of W_K should be 0.1021
LargeWeights: W_K and W_V are as large as W_Q
    size = G * self.D_h → size = D
    says: W_K should have shape (30, 15), yours is (30, 30)
LargeBiases: b_K and b_V are as large as b_Q
    self.b_K = nn.Parameter(torch.zeros(size)) → self.b_K = nn.Parameter(torch.zeros(D))
    self.b_V = nn.Parameter(torch.zeros(size)) → self.b_V = nn.Parameter(torch.zeros(D))
    says: b_K should have shape (15,), yours is (30,)
AnyGroups: a number of groups that does not divide the heads is accepted
    H % G → H % (G := math.gcd(H, G))
    says: should raise ValueError when 6 heads are to share 4 groups
""",
)

mistakes(
    mha_to_gqa,
    """
added: the heads of a group are added, not averaged
    mean(dim=-2) → sum(dim=-2)
first_head: the first head of each group is taken
    heads.mean(dim=-2) → heads[..., 0, :]
first_heads: the first G heads are taken
    heads.mean(dim=-2) → heads.flatten(-3, -2)[..., :G, :]
* every_gth: a group has every G-th head, not neighbours
    (G, H // G, -1) → (H // G, G, -1)
    mean(dim=-2) → mean(dim=-3)
all_the_same: all heads are averaged, and every group gets the same
    heads.mean(dim=-2).flatten(-2) → torch.cat([heads.mean(dim=(-3, -2))] * G, dim=-1)
parts_for_heads: the parts of a head are taken for heads
    (G, H // G, -1) → (-1, G, H // G)
    mean(dim=-2) → mean(dim=-1)
* no_biases: the biases stay as they are
    , "b_K", "b_V"} → }
    says: b_K should have shape
no_values: the values stay as they are
    {"W_K", "W_V", "b_K", "b_V"} → {"W_K", "b_K"}
    says: W_V should have shape
queries_averaged: the queries are also averaged
    {"W_K" → {"W_Q", "b_Q", "W_K"
    says: W_Q should have shape
by_ending: names that end in the same letters without a dot before them are converted, too
    name.rpartition(".")[2] in {"W_K", "W_V", "b_K", "b_V"}
    → name.endswith(("W_K", "W_V", "b_K", "b_V"))
    says: skipW_K should have shape (12, 12), yours has (12, 6)
changed_only: only the weights that change are returned
    return converted → return {name: X for name, X in converted.items() if X is not state[name]}
    says: is missing
in_place: the means are written into the weights given
    converted[name] = value → converted[name] = state[name][..., : value.shape[-1]].copy_(value)
    says: changes its argument
any_groups: a number of groups that does not divide the heads is accepted
    H % G → H % (G := math.gcd(H, G))
    says: should raise ValueError when 6 heads are to share 4 groups
""",
)

black_box(
    mha_to_gqa,
    "first_head",
    curve="""losses + (lambda one: (
        one.load_state_dict(mha_to_gqa(state, HEADS, 1)),
        learn(one, UPTRAINING, 2e-3, "G = 1", seed + 1),
    )[-1])(with_groups(1))""",
    label="loss, nats for each token",
    over="training and uptraining, %",
    after="UPTRAINING",
)

wrong_answers(mha_to_gqa_fault, "A")
mistakes(
    mha_to_gqa_fault,
    """
equal_heads: both heads have the same keys
    [[0.0, 1.0]] → [[1.0, 1.0]]
    says: With these arguments the black box gives what is right
as_many_groups: there are as many groups as heads
    (state, 2, 1) → (state, 2, 2)
    says: With these arguments the black box gives what is right
queries: the state holds queries alone, which stay as they are
    {"W_K" → {"W_Q"
    says: With these arguments the black box gives what is right
three_groups: two heads cannot be shared among three groups
    (state, 2, 1) → (state, 2, 3)
    says: mha_to_gqa raised ValueError
half_a_head: the columns cannot be shared among the heads
    [[0.0, 1.0]] → [[0.0, 1.0, 2.0]]
    says: mha_to_gqa raised ValueError
no_names: a tensor is given in place of a state dict
    (state, 2, 1) → (state["W_K"], 2, 1)
    says: mha_to_gqa raised AttributeError
no_groups: G is missing
    (state, 2, 1) → (state, 2)
    says: mha_to_gqa raised TypeError
""",
)

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


mistakes(
    LatentAttention,
    """
NoNorm: the latents are not normalised
    self.norm(X @ self.W_DKV) → X @ self.W_DKV
NormFirst: the vectors are normalised in place of the latents
    self.norm(X @ self.W_DKV)
    → functional.rms_norm(X, X.shape[-1:], None, 1e-5) @ self.W_DKV * self.norm.weight
KeysNotTurned: keys are not turned
    rope_rotate(X @ self.W_KR, positions, self.base) → X @ self.W_KR
QueriesNotTurned: queries are not turned
    return Q_C, rope_rotate(Q_R, positions, self.base) → return Q_C, Q_R
NormLate: latents are kept as they are, and normalised when they are read
    self.norm(X @ self.W_DKV) → X @ self.W_DKV
    C[..., : self.D_c], C[..., self.D_c :] → self.norm(C[..., : self.D_c]), C[..., self.D_c :]
NotTurned: nothing is turned
    rope_rotate(X @ self.W_KR, positions, self.base) → X @ self.W_KR
    rope_rotate(Q_R, positions, self.base) → Q_R
""",
)


def rotate_pairs(X, positions, base):
    """Turn features 2i and 2i + 1 together, in place of i and i + D/2."""
    Y = rope_rotate(torch.cat([X[..., 0::2], X[..., 1::2]], dim=-1), positions, base)
    return Y.unflatten(-1, (2, -1)).mT.flatten(-2)


@bug(LatentAttention, "neighbouring features are turned, not those half of D_R apart")
class PairsTurned(LatentAttention):
    def prepare(self, X, cache=None):
        past = 0 if cache is None else cache.length
        positions = torch.arange(past, past + X.shape[1])
        Q_C, Q_R = split_heads(X @ self.W_Q, self.H).split([self.D_h, self.D_R], dim=-1)
        K_R = rotate_pairs(X @ self.W_KR, positions, self.base)
        C = torch.cat([self.norm(X @ self.W_DKV), K_R], dim=-1)
        if cache is not None:
            cache.append(C)
            C = cache.read().to(X.dtype)
        Q_R = rotate_pairs(Q_R, positions, self.base)
        return Q_C, Q_R, C[..., : self.D_c], C[..., self.D_c :]


mistakes(
    LatentAttention,
    """
TurnsContent: what is turned is the other part of the queries, before it meets the latents
    return Q_C, rope_rotate(Q_R, positions, self.base)
    → if self.D_h % 2 == 0:
          Q_C = rope_rotate(Q_C, positions, self.base)
      return Q_C, Q_R
* FromZero: positions start at 0 in every call
    torch.arange(past, past + T, → torch.arange(T,
DefaultBase: base is not used
    W_KR, positions, self.base) → W_KR, positions)
    Q_R, positions, self.base) → Q_R, positions)
* ByParts: W_Q makes q^C of all heads first, and then q^R of all heads
    split_heads(X @ self.W_Q, self.H).split([self.D_h, self.D_R], dim=-1)
    → (X @ self.W_Q).split([self.H * self.D_h, self.H * self.D_R], dim=-1)
      Q_C, Q_R = split_heads(Q_C, self.H), split_heads(Q_R, self.H)
RotatedFirst: each head's q^R stands before its q^C
    Q_C, Q_R = split_heads(X @ self.W_Q, self.H).split([self.D_h, self.D_R]
    → Q_R, Q_C = split_heads(X @ self.W_Q, self.H).split([self.D_R, self.D_h]
* RootOfHead: the scores are divided by √D_h, not by √(D_h + D_R)
    K.mT / math.sqrt(self.D_h + self.D_R) → K.mT / math.sqrt(self.D_h)
    E / math.sqrt(self.D_h + self.D_R) → E / math.sqrt(self.D_h)
* RootOfLatent: absorbed scores are divided by √(D_c + D_R), not by √(D_h + D_R)
    E / math.sqrt(self.D_h + self.D_R) → E / math.sqrt(self.D_c + self.D_R)
NoMask: there is no mask
    masked_softmax(E, causal_mask(T, past=N - T)
    → masked_softmax(E, torch.ones(T, N, dtype=torch.bool)
    mask = causal_mask(T, past=N - T) → mask = torch.ones(T, N, dtype=torch.bool)
LargeMask: what may not be seen has a score of -1e9, and others may have less
    masked_softmax(E, causal_mask(T, past=N - T).to(E.device))
    → E.masked_fill(~causal_mask(T, past=N - T), -1e9).softmax(dim=-1)
    masked_softmax(E / math.sqrt(self.D_h + self.D_R), mask)
    → (E / math.sqrt(self.D_h + self.D_R)).masked_fill(~mask, -1e9).softmax(dim=-1)
MaskWithoutPast: the mask ignores the past: new positions see only the oldest ones
    masked_softmax(E, causal_mask(T, past=N - T)
    → masked_softmax(E, torch.ones(T, N, dtype=torch.bool).tril()
    mask = causal_mask(T, past=N - T) → mask = torch.ones(T, N, dtype=torch.bool).tril()
""",
)

changed(
    LatentAttention,
    "NewOnly",
    "the new positions see only the new positions",
    ("            C = cache.read().to(X.dtype)  # (B, N, D_c + D_R)\n", ""),
)

changed(
    LatentAttention,
    "NotRounded",
    "the new latents are used as they are made, not as the cache keeps them",
    (
        "            cache.append(C)\n            C = cache.read().to(X.dtype)",
        "            kept = cache.read().to(X.dtype)\n"
        "            cache.append(C)\n"
        "            C = torch.cat([kept, C], dim=1)",
    ),
)

mistakes(
    LatentAttention,
    """
RoundsQueries: queries are rounded to the cache's dtype as well
    return Q_C, rope_rotate(Q_R, positions, self.base)
    → kind = X.dtype if cache is None else cache.read().dtype
      Q_C, Q_R = Q_C.to(kind), rope_rotate(Q_R, positions, self.base).to(kind)
      return Q_C.to(X.dtype), Q_R.to(X.dtype)
TurnsLate: keys that are not turned yet are kept, and turned when they are read
    rope_rotate(X @ self.W_KR, positions, self.base) → X @ self.W_KR
    , C[..., self.D_c :] → , rope_rotate(C[..., self.D_c :], None, self.base)
KeyFirst: the turned key is kept before the latent
    cache.append(C) → cache.append(C.roll(self.D_R, dims=-1))
    cache.read() → cache.read().roll(-self.D_R, dims=-1)
WithoutRotated: the turned parts are left out of the scores
    torch.cat([Q_C, Q_R], dim=-1) @ K.mT → Q_C @ K_C.mT
    mT + Q_R @ K_R[:, None].mT → mT
AbsorbedWithoutRotated: the turned parts are left out of the absorbed scores
    mT + Q_R @ K_R[:, None].mT → mT
WrongUp: W_UV is absorbed into the queries, in place of W_UK
    Q_C, W_UK) → Q_C, W_UV)
WrongDown: W_UK makes the outputs of absorbed attention, in place of W_UV
    C[:, None], W_UV) → C[:, None], W_UK)
FirstHead: every head absorbs W_UK of the first
    "bhtd,chd->bhtc", Q_C, W_UK → "bhtd,cd->bhtc", Q_C, W_UK[:, 0]
""",
)


@bug(
    LatentAttention,
    "absorbed makes keys of the latents as forward does",
    told_by="is a key made from the latents?",
    classic=True,
)
class NotAbsorbed(LatentAttention):
    def absorbed(self, X, cache=None):
        return self.forward(X, cache)


mistakes(
    LatentAttention,
    """
MakesValues: absorbed makes values of the latents, and absorbs the keys only
    torch.einsum("bhtc,chd->bhtd", A @ C[:, None], W_UV) → A @ split_heads(C @ self.W_UV, self.H)
    says: is a value made from the latents?
SwappedUps: keys and values of the latents are swapped: W_UV makes keys
    C @ W, self.H) for W in (self.W_UK, self.W_UV) → C @ W, self.H) for W in (self.W_UV, self.W_UK)
AlwaysCached: the latents lose their gradient history even without a cache
    self.norm(X @ self.W_DKV) → self.norm(X @ self.W_DKV).detach()
    says: No gradient reaches W_
OtherDtype: the latents come from the cache in a dtype that is not the queries'
    cache.read().to(X.dtype) → cache.read()
    says: raised RuntimeError: expected
""",
)


equivalent(
    LatentAttention,
    "past, T = (0 if cache is None else cache.length, X.shape[1]) → "
    "past, T = (1 if cache is None else cache.length, X.shape[1])",
    "scores depend on distances only, not on where a text begins",
)
