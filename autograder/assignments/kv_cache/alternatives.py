"""Other correct solutions of kv_cache: lists of pieces, loops over heads, sums."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg import black_box
from course_pkg.attention import MultiHeadAttention
from course_pkg.gpt import token_probabilities
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


@alternative(KVCache)
class Grows:
    """Joins tensors, and takes memory as it goes."""

    def __init__(self, B, G, capacity, D_h, dtype=torch.float32, device="cpu"):
        self.capacity = capacity
        self.K = torch.zeros(B, G, 0, D_h, dtype=dtype, device=device)
        self.V = torch.zeros(B, G, 0, D_h, dtype=dtype, device=device)

    @property
    def length(self):
        return self.K.size(2)

    def append(self, K, V):
        B, G, _, D_h = self.K.shape
        for part in (K, V):
            if part.dim() != 4 or part.shape[:2] != (B, G) or part.shape[3] != D_h:
                raise ValueError("wrong shape")
        if len(K[0, 0]) != len(V[0, 0]) or self.length + len(K[0, 0]) > self.capacity:
            raise ValueError("wrong length")
        with torch.no_grad():
            self.K = torch.cat((self.K, K.to(self.K)), dim=2)
            self.V = torch.cat((self.V, V.to(self.V)), dim=2)

    def read(self):
        return self.K, self.V

    def truncate(self, length):
        if length not in range(self.length + 1):
            raise ValueError("cannot keep so many")
        self.K, self.V = self.K[:, :, :length], self.V[:, :, :length]


@alternative(KVCache)
class Stacked:
    """Keeps keys and values in one tensor, positions first."""

    def __init__(self, B, G, capacity, D_h, dtype=torch.float32, device="cpu"):
        self.kept = torch.zeros(capacity, 2, B, G, D_h, dtype=dtype, device=device)
        self.length = 0

    def append(self, K, V):
        capacity, _, B, G, D_h = self.kept.shape
        if K.shape != V.shape or K.shape[:2] != (B, G) or K.shape[3:] != (D_h,):
            raise ValueError("wrong shape")
        if self.length + K.shape[2] > capacity:
            raise ValueError("full")
        for t in range(K.shape[2]):
            self.kept[self.length, 0] = K[:, :, t].detach()
            self.kept[self.length, 1] = V[:, :, t].detach()
            self.length += 1

    def read(self):
        K, V = self.kept[: self.length].unbind(1)
        return [K.permute(1, 2, 0, 3), V.permute(1, 2, 0, 3)]

    def truncate(self, length):
        if length < 0 or length > self.length:
            raise ValueError("cannot keep so many")
        self.length = length


@alternative(CachedAttention)
class HeadByHead(CachedAttention):
    """Attends with a loop over heads and an additive mask."""

    def forward(self, X, cache=None):
        T, D_h = X.shape[1], self.D_h
        projected = []
        for x in "QKV":
            W, b = getattr(self, f"W_{x}"), getattr(self, f"b_{x}")
            parts = (X @ W + b).split(D_h, dim=-1)
            projected.append(torch.stack(parts, dim=1))
        Q, K, V = projected
        if cache is not None:
            cache.append(K, V)
            K, V = cache.read()
            K, V = K.to(X.dtype), V.to(X.dtype)
        N = K.shape[-2]
        places = torch.arange(N - T, N)[:, None]
        penalty = torch.zeros(T, N, dtype=X.dtype).masked_fill(torch.arange(N) > places, -math.inf)
        outputs = []
        for h in range(self.H):
            E = torch.einsum("btd,bnd->btn", Q[:, h], K[:, h]) * D_h**-0.5 + penalty
            outputs.append(E.softmax(dim=-1) @ V[:, h])
        self.counts = {
            "tokens": self.counts["tokens"] + T,
            "pairs": self.counts["pairs"] + penalty.numel(),
        }
        return torch.cat(outputs, dim=-1) @ self.W_O + self.b_O


@alternative(CachedAttention)
class Fused(MultiHeadAttention):
    """Lets torch attend, with a mask for the new rows; a module of its own."""

    def __init__(self, D, H, bias=False):
        super().__init__(D, H, bias=bias)
        self.G, self.D_h = H, D // H
        self.counts = {"tokens": 0, "pairs": 0}

    def new_cache(self, B, capacity, dtype=None):
        dtype = self.W_K.dtype if dtype is None else dtype
        return KVCache(B, self.G, capacity, self.D_h, dtype, self.W_K.device)

    def forward(self, X, cache=None):
        B, T, D = X.shape
        Q, K, V = (
            (X @ W + b).view(B, T, self.H, self.D_h).transpose(1, 2)
            for W, b in ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
        )
        if cache is not None:
            cache.append(K, V)
            K, V = (part.type_as(X) for part in cache.read())
        N = K.shape[2]
        mask = torch.ones(N, N, dtype=torch.bool).tril()[N - T :]
        Y = F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)
        self.counts["tokens"] += T
        self.counts["pairs"] += mask.numel()
        return Y.transpose(1, 2).reshape(B, T, D) @ self.W_O + self.b_O


@alternative(CachedGPT)
class LooksUp(CachedGPT):
    """Looks positions up, and scores with functional.linear."""

    def forward(self, tokens, caches=None):
        caches = caches or [None] * len(self.blocks)
        past = caches[0].length if caches[0] is not None else 0
        places = torch.arange(past, past + tokens.shape[1])
        if past + tokens.shape[1] > self.context:
            raise ValueError("too long")
        X = self.token(tokens) + self.position(places)
        for block, cache in zip(self.blocks, caches, strict=True):
            X = X + block.attention(block.norm_1(X), cache=cache)
            X = X + block.contract(nn.GELU("tanh")(block.expand(block.norm_2(X))))
        return F.linear(self.norm(X), self.token.weight)


@alternative(CachedGPT)
class CountsItself(CachedGPT):
    """Asks the last cache how long the text is, and writes GELU out."""

    def forward(self, tokens, caches=None):
        B, T = tokens.shape
        past = caches[-1].length if caches else 0
        if T > self.context - past:
            raise ValueError("too long")
        X = F.embedding(tokens, self.token.weight)
        X = X + self.position.weight.narrow(0, past, T).expand(B, T, -1)
        for n in range(len(self.blocks)):
            block = self.blocks[n]
            X = X + (
                block.attention(block.norm_1(X), caches[n])
                if caches
                else block.attention(block.norm_1(X))
            )
            x = block.expand(block.norm_2(X))
            x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
            X = X + block.contract(x)
        return torch.einsum("btd,vd->btv", self.norm(X), self.token.weight)


@alternative(CachedWriter)
class Preallocates(CachedWriter):
    """Writes into one tensor, and gives each text's rest to the caches by its length."""

    def generate_with_cache(
        self, tokens, count, temperature=1.0, top_k=None, top_p=None, stop=None, generator=None
    ):
        (B, T), total = tokens.shape, tokens.shape[1] + count
        if T < 1 or total - 1 > self.context:
            raise ValueError("empty or too long")
        texts = torch.cat([tokens, tokens.new_zeros(B, count)], dim=1)
        caches, ended, read = self.new_caches(B), torch.zeros(B, dtype=torch.bool), 0
        with torch.inference_mode():
            for n in range(T, total):
                logits = self(texts[:, read:n], caches)[:, -1]
                read = n
                p = token_probabilities(logits, temperature, top_k, top_p)
                texts[:, n] = torch.multinomial(p, 1, generator=generator).squeeze(1)
                if stop is not None:
                    texts[ended, n] = stop
                    ended = ended | (texts[:, n] == stop)
                    if ended.all():
                        return texts[:, : n + 1]
        return texts


@alternative(CachedWriter)
class Collects(CachedWriter):
    """Collects what is drawn in a list."""

    @torch.no_grad()
    def generate_with_cache(
        self, tokens, count, temperature=1.0, top_k=None, top_p=None, stop=None, generator=None
    ):
        if tokens.numel() == 0:
            raise ValueError("empty")
        if tokens.shape[1] + count > self.context + 1:
            raise ValueError("too long")
        if count == 0:
            return tokens
        pieces, caches = [tokens], self.new_caches(len(tokens))
        ended = [False] * len(tokens)
        while len(pieces) <= count and not all(ended):
            p = token_probabilities(self(pieces[-1], caches)[:, -1], temperature, top_k, top_p)
            drawn = torch.multinomial(p, 1, generator=generator)
            for row in range(len(tokens)):
                if ended[row]:
                    drawn[row] = stop
                ended[row] = stop is not None and drawn[row].item() == stop
            pieces.append(drawn)
        return torch.cat(pieces, dim=1)


@alternative(attention_operations)
def summed(prompt, count, cached):
    if min(prompt, count) < 1:
        raise ValueError("too few")
    lengths = range(prompt, prompt + count)
    if not cached:
        return {"tokens": sum(lengths), "pairs": sum(n * n for n in lengths)}
    return {"tokens": lengths[-1], "pairs": prompt * prompt + sum(lengths[1:])}


@alternative(attention_operations)
def by_differences(prompt, count, cached):
    if prompt < 1 or count < 1:
        raise ValueError("too few")
    new, P = count - 1, prompt
    if cached:
        return {"tokens": P + new, "pairs": P**2 + new * P + new * (new + 1) // 2}
    pairs = count * P**2 + P * new * count + new * count * (2 * new + 1) // 6
    return {"tokens": count * P + new * count // 2, "pairs": pairs}


@alternative(kv_cache_bytes)
def by_tensors(L, G, D_h, N, B=1, dtype=torch.float16):
    one = torch.empty(B, G, N, D_h, dtype=dtype, device="meta")
    return L * sum(part.numel() * part.element_size() for part in (one, one))


@alternative(kv_cache_bytes)
def by_bits(L, G, D_h, N, B=1, dtype=torch.float16):
    bits = torch.finfo(dtype).bits if dtype.is_floating_point else torch.iinfo(dtype).bits
    return math.prod([L, G, D_h, N, B, 2, bits // 8])


@alternative(GroupedQueryAttention)
class Repeats(CachedAttention):
    """Repeats keys and values for their queries after reading them."""

    def __init__(self, D, H, G, bias=False):
        super().__init__(D, H, bias)
        if H % G != 0:
            raise ValueError("G does not divide H")
        self.G = G
        for x in "KV":
            setattr(self, f"W_{x}", nn.Parameter(torch.empty(D, G * D // H)))
            nn.init.normal_(getattr(self, f"W_{x}"), std=D**-0.5)
            if bias:
                setattr(self, f"b_{x}", nn.Parameter(torch.zeros(G * D // H)))

    def forward(self, X, cache=None):
        B, T, D = X.shape
        Q = (X @ self.W_Q + self.b_Q).view(B, T, self.H, -1).transpose(1, 2)
        K = (X @ self.W_K + self.b_K).view(B, T, self.G, -1).transpose(1, 2)
        V = (X @ self.W_V + self.b_V).view(B, T, self.G, -1).transpose(1, 2)
        if cache is not None:
            cache.append(K, V)
            K, V = [part.to(X.dtype) for part in cache.read()]
        K, V = (part.repeat_interleave(self.H // self.G, dim=1) for part in (K, V))
        N = K.shape[2]
        allowed = torch.ones(T, N, dtype=torch.bool).tril(N - T)
        E = (Q @ K.mT / self.D_h**0.5).masked_fill(~allowed, -math.inf)
        self.counts["tokens"] += T
        self.counts["pairs"] += T * N
        return (E.softmax(-1) @ V).transpose(1, 2).reshape(B, T, D) @ self.W_O + self.b_O


@alternative(GroupedQueryAttention)
class HeadsInALoop(GroupedQueryAttention):
    """Loops over the heads of queries."""

    def forward(self, X, cache=None):
        T, size = X.shape[1], self.D_h
        K, V = X @ self.W_K + self.b_K, X @ self.W_V + self.b_V
        K, V = (torch.stack(part.split(size, dim=-1), dim=1) for part in (K, V))
        if cache is not None:
            cache.append(K, V)
            K, V = cache.read()
        K, V = K.to(X.dtype), V.to(X.dtype)
        Q, N, outputs = X @ self.W_Q + self.b_Q, K.shape[2], []
        late = torch.arange(N) > torch.arange(N - T, N)[:, None]
        for h, q in enumerate(Q.split(size, dim=-1)):
            g = h * self.G // self.H
            E = (q @ K[:, g].mT / math.sqrt(size)).masked_fill(late, -math.inf)
            outputs.append(torch.softmax(E, dim=-1) @ V[:, g])
        self.counts = {
            name: n + T * (N if name == "pairs" else 1) for name, n in self.counts.items()
        }
        return torch.cat(outputs, dim=-1) @ self.W_O + self.b_O


@alternative(mha_to_gqa)
def by_chunks(state, H, G):
    if H % G:
        raise ValueError("G does not divide H")
    found = dict(state)
    for name, value in state.items():
        if name.split(".")[-1] in {"W_K", "W_V", "b_K", "b_V"}:
            groups = value.chunk(G, dim=-1)
            means = [torch.stack(group.chunk(H // G, dim=-1)).mean(0) for group in groups]
            found[name] = torch.cat(means, dim=-1)
    return found


@alternative(mha_to_gqa)
def by_a_matrix(state, H, G):
    if H // G * G != H:
        raise ValueError("G does not divide H")
    found = {}
    for name, value in state.items():
        *_, kind = name.split(".")
        if kind in ("W_K", "W_V", "b_K", "b_V"):
            D_h = value.shape[-1] // H
            heads = torch.eye(G, dtype=value.dtype).repeat_interleave(H // G, dim=0) * G / H
            value = value @ torch.kron(heads, torch.eye(D_h, dtype=value.dtype))
        found[name] = value.clone()
    return found


@alternative(LatentAttention)
class HeadByHead(LatentAttention):
    """Attends with a loop over heads."""

    def columns(self, W, h):
        return W[:, h * self.D_h : (h + 1) * self.D_h]

    def scored(self, Q, K, q_R, K_R):
        T, N = q_R.shape[1], K_R.shape[1]
        E = (Q @ K.transpose(1, 2) + q_R @ K_R.transpose(1, 2)) * (self.D_h + self.D_R) ** -0.5
        late = torch.arange(N) > torch.arange(N - T, N)[:, None]
        return E.masked_fill(late, -math.inf).softmax(dim=-1)

    def forward(self, X, cache=None):
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        heads = []
        for h in range(self.H):
            K, V = C @ self.columns(self.W_UK, h), C @ self.columns(self.W_UV, h)
            heads.append(self.scored(Q_C[:, h], K, Q_R[:, h], K_R) @ V)
        return torch.cat(heads, dim=-1) @ self.W_O

    def absorbed(self, X, cache=None):
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        Y = 0
        for h in range(self.H):
            Q = Q_C[:, h] @ self.columns(self.W_UK, h).T
            out = self.columns(self.W_UV, h) @ self.W_O[h * self.D_h : (h + 1) * self.D_h]
            Y = Y + self.scored(Q, C, Q_R[:, h], K_R) @ C @ out
        return Y


@alternative(LatentAttention)
class MultipliedBefore(LatentAttention):
    """Multiplies W_Q by W_UK, and W_UV by W_O, before it sees a vector; lets torch attend."""

    def attend(self, Q, K, V):
        T, N = Q.shape[2], K.shape[2]
        mask = torch.ones(N, N, dtype=torch.bool).tril()[N - T :]
        scale = 1 / math.sqrt(self.D_h + self.D_R)
        return F.scaled_dot_product_attention(Q, K, V, attn_mask=mask, scale=scale)

    def forward(self, X, cache=None):
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        K = (C @ self.W_UK).unflatten(2, (self.H, -1)).transpose(1, 2)
        V = (C @ self.W_UV).unflatten(2, (self.H, -1)).transpose(1, 2)
        K = torch.cat([K, K_R.unsqueeze(1).repeat(1, self.H, 1, 1)], dim=-1)
        Y = self.attend(torch.cat([Q_C, Q_R], dim=-1), K, V)
        return Y.transpose(1, 2).flatten(2) @ self.W_O

    def absorbed(self, X, cache=None):
        _, Q_R, C, K_R = self.prepare(X, cache)
        W_Q = self.W_Q.unflatten(1, (self.H, -1))[..., : self.D_h]
        merged = torch.einsum("xhd,chd->xhc", W_Q, self.W_UK.unflatten(1, (self.H, -1)))
        W_UV = self.W_UV.unflatten(1, (self.H, -1))
        out = torch.einsum("chd,hdx->hcx", W_UV, self.W_O.unflatten(0, (self.H, -1)))
        Q = torch.cat([torch.einsum("btx,xhc->bhtc", X, merged), Q_R], dim=-1)
        K = torch.cat([C, K_R], dim=-1)[:, None].expand(-1, self.H, -1, -1)
        Y = self.attend(Q, K, C[:, None].expand(-1, self.H, -1, -1))
        return torch.einsum("bhtc,hcx->btx", Y, out)


@alternative(mha_to_gqa_fault)
def a_whole_layer():
    state = {name: torch.arange(48.0).view(4, 12) ** 2 for name in ("W_Q", "W_K", "W_V")}
    return ["A", [state | {"b_V": torch.arange(12.0)}, 6, 2]]


@alternative(mha_to_gqa_fault)
def found_by_groups():
    box, heads = black_box("mha_to_gqa"), torch.eye(4)
    for G in (4, 2, 1):
        if torch.equal(box({"W_V": heads}, 4, G)["W_V"], heads[:, :: 4 // G]) and G < 4:
            return "A", ({"W_V": heads}, 4, G)
    return "B", ({}, 4, 4)
