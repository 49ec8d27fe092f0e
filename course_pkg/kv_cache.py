"""KV cache: keep the keys and values of what was read, and make them fewer.

Shapes: B sequences, T new positions, N positions in all, D features, L layers; H heads of queries
and G heads of keys and values, each of size D_h.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.attention import (
    MultiHeadAttention,
    causal_mask,
    masked_softmax,
    merge_heads,
    split_heads,
)
from course_pkg.gpt import GPT, Writer, token_probabilities
from course_pkg.inference.latent_cache import LatentCache
from course_pkg.positions import rope_rotate


class KVCache:
    """Keep the keys and values of all positions that one layer has read.

    Memory for `capacity` positions is taken once, at the start.

    Args:
        B: sequences, all of the same length.
        G: heads of keys and values.
        capacity: how many positions there is room for.
        D_h: size of each head.
        dtype: the type in which the numbers are kept.
        device: where they are kept.

    Attributes:
        length: how many positions are kept.
    """

    def __init__(
        self,
        B: int,
        G: int,
        capacity: int,
        D_h: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        ### BEGIN SOLUTION
        self.K = torch.empty(B, G, capacity, D_h, dtype=dtype, device=device)
        self.V = torch.empty_like(self.K)
        self.length = 0
        ### END SOLUTION

    def append(self, K: Float[Tensor, "B G T D_h"], V: Float[Tensor, "B G T D_h"]) -> None:
        """Add the keys and values of T positions, without their gradients.

        Args:
            K, V: what to add, of any dtype; it is copied.
        Raises:
            ValueError: K or V does not have shape (B, G, T, D_h), or there is no room for T
                more positions; then nothing has changed.
        """
        ### BEGIN SOLUTION
        B, G, capacity, D_h = self.K.shape
        T = K.shape[-2]
        if K.shape != (B, G, T, D_h) or V.shape != (B, G, T, D_h):
            problem = (
                f"K and V should have shape ({B}, {G}, T, {D_h}), "
                f"got {tuple(K.shape)} and {tuple(V.shape)}"
            )
            raise ValueError(problem)
        end = self.length + T
        if end > capacity:
            raise ValueError(f"{end} positions do not fit into a cache for {capacity}")
        self.K[:, :, self.length : end] = K.detach()
        self.V[:, :, self.length : end] = V.detach()
        self.length = end
        ### END SOLUTION

    def read(self) -> tuple[Float[Tensor, "B G N D_h"], Float[Tensor, "B G N D_h"]]:
        """Give the keys and values of all N = length positions, in the cache's dtype.

        They are not copied: what is read is valid until the cache changes.

        Returns:
            K and V.
        """
        ### BEGIN SOLUTION
        return self.K[:, :, : self.length], self.V[:, :, : self.length]
        ### END SOLUTION

    def truncate(self, length: int) -> None:
        """Forget all positions but the first ones.

        Args:
            length: how many to keep.
        Raises:
            ValueError: length is negative, or more than are kept.
        """
        ### BEGIN SOLUTION
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} positions")
        self.length = length
        ### END SOLUTION


class CachedAttention(MultiHeadAttention):
    """Multi-head causal self-attention that need not read a text again to go on with it.

    Parameters: those of `MultiHeadAttention` with D_X = D.

    Args:
        D: size of the vectors.
        H: how many heads; divides D.
        bias: whether the four projections add a bias.

    Attributes:
        G: heads of keys and values; here H.
        D_h: size of each head.
        counts: what has been done since the layer was made, in one sequence and one head:
            "tokens", how many vectors have asked, and "pairs", how many pairs of a query and a key
            have been scored, including those that the mask forbids.
    """

    def __init__(self, D: int, H: int, bias: bool = False):
        super().__init__(D, H, bias=bias)
        self.G, self.D_h = H, D // H
        self.counts = {"tokens": 0, "pairs": 0}

    def new_cache(self, B: int, capacity: int, dtype: torch.dtype | None = None) -> KVCache:
        """Make an empty cache for this layer, in the weights' dtype when dtype is None."""
        dtype = self.W_K.dtype if dtype is None else dtype
        return KVCache(B, self.G, capacity, self.D_h, dtype, self.W_K.device)

    def forward(
        self, X: Float[Tensor, "B T D"], cache: KVCache | None = None
    ) -> Float[Tensor, "B T D"]:
        """Attend from T new positions to themselves and to all positions before them.

        Q, K, V = X W_Q + b_Q, X W_K + b_K, X W_V + b_V cut into heads; K and V are appended to the
        cache, and then all of it is read;   A_h = softmax(Q_h K_hᵀ / √D_h) over the positions up to
        one's own,   Y = [A_1 V_1 … A_H V_H] W_O + b_O

        What is read from a cache has no gradient: to train, pass no cache.

        Args:
            X: the new positions' vectors: a whole text (prefill), or what comes next (decode).
            cache: what was read before; the new positions are added to it. When None, the new
                positions are the whole text.
        Returns:
            Y, the outputs of the new positions, in X's dtype whatever the cache's is.
        Raises:
            ValueError: the cache has no room for them; then nothing has changed, counts included.
        """
        ### BEGIN SOLUTION
        T = X.shape[1]
        Q = split_heads(X @ self.W_Q + self.b_Q, self.H)  # (B, H, T, D_h)
        K = split_heads(X @ self.W_K + self.b_K, self.H)
        V = split_heads(X @ self.W_V + self.b_V, self.H)
        if cache is not None:
            cache.append(K, V)
            K, V = (part.to(Q.dtype) for part in cache.read())  # (B, H, N, D_h)
        N = K.shape[2]
        E = Q @ K.mT / math.sqrt(self.D_h)  # (B, H, T, N)
        A = masked_softmax(E, causal_mask(T, past=N - T).to(E.device))
        self.counts["tokens"] += T
        self.counts["pairs"] += T * N
        return merge_heads(A @ V) @ self.W_O + self.b_O
        ### END SOLUTION


class CachedGPT(GPT):
    """A GPT that goes on with a text where it stopped; its weights are those of a `GPT`.

    Args:
        V, context, D, H, L: as in `GPT`.
        attention: makes the attention of each block from D, H and bias; `CachedAttention` does when
            it is None.
    """

    def __init__(
        self,
        V: int,
        context: int,
        D: int,
        H: int,
        L: int,
        attention: Callable[..., CachedAttention] | None = None,
    ):
        super().__init__(V, context, D, H, L)
        attention = CachedAttention if attention is None else attention
        for block in self.blocks:
            block.attention = attention(D, H, bias=True)

    def new_caches(
        self, B: int, capacity: int | None = None, dtype: torch.dtype | None = None
    ) -> list[KVCache]:
        """Make an empty cache for every layer, with room for a whole context by default."""
        capacity = self.context if capacity is None else capacity
        return [block.attention.new_cache(B, capacity, dtype) for block in self.blocks]

    def forward(
        self, tokens: Int[Tensor, "B T"], caches: list[KVCache] | None = None
    ) -> Float[Tensor, "B T V"]:
        """Score every token of the vocabulary as the next one, after each of the new tokens.

        X = token[tokens] + position[past … past+T-1], through all blocks,
        X ← X + attention(norm_1(X), cache),   X ← X + contract(gelu(expand(norm_2(X)))),
        logits = norm(X) tokenᵀ, as in `GPT`

        Args:
            tokens: the new tokens of every text.
            caches: of each layer, what it has read before; they grow by T positions. When None,
                the new tokens are the whole text.
        Returns:
            The logits of the new tokens.
        Raises:
            ValueError: the texts, with what was read before, are longer than the context.
        """
        ### BEGIN SOLUTION
        past = 0 if caches is None else caches[0].length
        N = past + tokens.shape[1]
        if N > self.context:
            raise ValueError(f"{N} tokens do not fit into a context of {self.context}")
        X = self.token(tokens) + self.position.weight[past:N]  # (B, T, D)
        for number, block in enumerate(self.blocks):
            X = X + block.attention(block.norm_1(X), None if caches is None else caches[number])
            hidden = functional.gelu(block.expand(block.norm_2(X)), approximate="tanh")
            X = X + block.contract(hidden)
        return self.norm(X) @ self.token.weight.T
        ### END SOLUTION


class CachedWriter(CachedGPT, Writer):
    """A GPT that writes and reads every token once; `sample` writes without a cache."""

    @torch.no_grad()
    def generate_with_cache(
        self,
        tokens: Int[Tensor, "B T"],
        count: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "B T+N"]:
        """Continue each text as `Writer.sample` does, with the same draws, but read no token twice.

        The texts are read once (prefill), then every new token by itself (decode). The last token
        that is drawn need not be read.

        Args:
            tokens: the texts, at least one token each; they are not changed.
            count: how many tokens to add at most; with 0 the texts come back as they are.
            temperature, top_k, top_p: as in `token_probabilities`.
            stop: a token that ends a text. After it a text gets nothing but stop, and when every
                text has drawn it, writing ends. A stop token in what was given ends nothing.
            generator: the source of randomness; torch's own when None.
        Returns:
            The texts, each with N ≤ count new tokens.
        Raises:
            ValueError: the texts are empty, or T + count - 1 tokens, which may have to be read,
                are more than the context.
        """
        ### BEGIN SOLUTION
        B, T = tokens.shape
        if T == 0:
            raise ValueError("the texts are empty: there is nothing to continue")
        if T + count - 1 > self.context:
            problem = f"{T} tokens and {count} more do not fit into a context of {self.context}"
            raise ValueError(problem)
        caches = self.new_caches(B, T + count - 1)
        ended = torch.zeros(B, dtype=torch.bool, device=tokens.device)
        unread = tokens
        for _ in range(count):
            logits = self(unread, caches)[:, -1]  # (B, V)
            p = token_probabilities(logits, temperature, top_k, top_p)
            drawn = torch.multinomial(p, 1, generator=generator)[:, 0]
            if stop is not None:
                drawn = torch.where(ended, stop, drawn)
                ended = ended | (drawn == stop)
            unread = drawn[:, None]
            tokens = torch.cat([tokens, unread], dim=1)
            if ended.all():
                break
        return tokens
        ### END SOLUTION


def attention_operations(prompt: int, count: int, cached: bool) -> dict[str, int]:
    """Count what one layer does to continue a text, in one sequence and one head.

    Without a cache the whole text is read for every new token. With one, the prompt is read for the
    first new token, and one token for each of the others. T tokens that are read after N - T others
    score T N pairs, including those that the mask forbids.

    Args:
        prompt: tokens at the start, at least 1.
        count: new tokens, at least 1; the last one is not read.
        cached: whether there is a cache.
    Returns:
        "tokens": how many vectors ask, over all readings; "pairs": how many pairs of a query
        and a key are scored.
    Raises:
        ValueError: prompt or count is less than 1.
    """
    if prompt < 1 or count < 1:
        raise ValueError(f"prompt and count must be at least 1, got {prompt} and {count}")
    last = prompt + count - 1  # the length of the longest text that is read

    def line(n: int) -> int:  # 1 + 2 + … + n
        return n * (n + 1) // 2

    def square(n: int) -> int:  # 1² + 2² + … + n²
        return n * (n + 1) * (2 * n + 1) // 6

    if cached:
        return {"tokens": last, "pairs": prompt**2 + line(last) - line(prompt)}
    return {
        "tokens": line(last) - line(prompt - 1),
        "pairs": square(last) - square(prompt - 1),
    }


def kv_cache_bytes(
    L: int, G: int, D_h: int, N: int, B: int = 1, dtype: torch.dtype = torch.float16
) -> int:
    """Count the bytes that the keys and values of a model take.

    Args:
        L: layers.
        G: heads of keys and values in each layer.
        D_h: size of each head.
        N: positions of each sequence.
        B: sequences.
        dtype: the type in which the numbers are kept.
    Returns:
        The bytes.
    """
    return 2 * L * B * G * N * D_h * dtype.itemsize


class GroupedQueryAttention(CachedAttention):
    """Cached attention in which several heads of queries share one head of keys and values.

    Query head h reads key head h // (H / G). With G = H this is multi-head attention, with
    G = 1 multi-query attention (Shazeer 2019)      (Ainslie et al. 2023)

    Parameters: as in `CachedAttention`, but W_K and W_V are (D, G D_h), and b_K and b_V (G D_h).

    Args:
        D: size of the vectors.
        H: heads of queries; divides D.
        G: heads of keys and values; divides H.
        bias: whether the four projections add a bias.
    Raises:
        ValueError: G does not divide H.
    """

    def __init__(self, D: int, H: int, G: int, bias: bool = False):
        super().__init__(D, H, bias)
        ### BEGIN SOLUTION
        if H % G:
            raise ValueError(f"{H} heads of queries cannot be shared equally among {G}")
        self.G = G
        size = G * self.D_h
        self.W_K = nn.Parameter(torch.randn(D, size) / math.sqrt(D))
        self.W_V = nn.Parameter(torch.randn(D, size) / math.sqrt(D))
        if bias:
            self.b_K = nn.Parameter(torch.zeros(size))
            self.b_V = nn.Parameter(torch.zeros(size))
        ### END SOLUTION

    def forward(
        self, X: Float[Tensor, "B T D"], cache: KVCache | None = None
    ) -> Float[Tensor, "B T D"]:
        """Attend as `CachedAttention` does, H heads of queries to G heads of keys and values.

        A_h = softmax(Q_h K_gᵀ / √D_h) over the positions up to one's own,   g = h // (H / G),
        Y = [A_1 V_g(1) … A_H V_g(H)] W_O + b_O

        Args:
            X: the new positions' vectors.
            cache: what was read before, of G heads; the new positions are added to it. When None,
                the new positions are the whole text.
        Returns:
            Y, the outputs of the new positions, in X's dtype whatever the cache's is.
        """
        ### BEGIN SOLUTION
        T = X.shape[1]
        Q = split_heads(X @ self.W_Q + self.b_Q, self.H)  # (B, H, T, D_h)
        K = split_heads(X @ self.W_K + self.b_K, self.G)  # (B, G, T, D_h)
        V = split_heads(X @ self.W_V + self.b_V, self.G)
        if cache is not None:
            cache.append(K, V)
            K, V = (part.to(Q.dtype) for part in cache.read())  # (B, G, N, D_h)
        N = K.shape[2]
        Q = Q.unflatten(1, (self.G, -1))  # (B, G, H/G, T, D_h)
        E = Q @ K[:, :, None].mT / math.sqrt(self.D_h)  # (B, G, H/G, T, N)
        A = masked_softmax(E, causal_mask(T, past=N - T).to(E.device))
        self.counts["tokens"] += T
        self.counts["pairs"] += T * N
        Y = (A @ V[:, :, None]).flatten(1, 2)  # (B, H, T, D_h)
        return merge_heads(Y) @ self.W_O + self.b_O
        ### END SOLUTION


def mha_to_gqa(state: dict[str, Tensor], H: int, G: int) -> dict[str, Tensor]:
    """Turn the weights of multi-head attention into those of grouped-query attention.

    Each group of H / G neighbouring heads gets the mean of its heads' keys and values: of the
    columns of W_K and W_V, and of the entries of b_K and b_V      (Ainslie et al. 2023, §2.1)

    Args:
        state: the state dict of a layer, or of a model that has such layers; it is not changed.
            Only W_K, W_V, b_K and b_V change, and names that end in ".W_K" and so on.
        H: heads of the attention.
        G: groups.
    Returns:
        A state dict of the same names.
    Raises:
        ValueError: G does not divide H.
    """
    if H % G:
        raise ValueError(f"{H} heads cannot be shared equally among {G} groups")
    converted = {}
    for name, value in state.items():
        if name.rpartition(".")[2] in {"W_K", "W_V", "b_K", "b_V"}:
            heads = value.unflatten(-1, (G, H // G, -1))  # (..., G, H/G, D_h)
            value = heads.mean(dim=-2).flatten(-2)  # (..., G D_h)
        converted[name] = value
    return converted


class LatentAttention(nn.Module):
    """Multi-head latent attention: all heads make their keys and values of one vector for a token.

    Parameters: W_Q (D, H (D_h + D_R)), W_DKV (D, D_c), W_KR (D, D_R), W_UK and W_UV (D_c, H D_h),
    W_O (D, D), drawn from N(0, 1/rows); no biases. norm, torch's `RMSNorm` of D_c.
    Within each head, the first D_h columns of W_Q make q^C, and the other D_R make q^R.
    (DeepSeek-AI 2024, §2.1, with queries that are not compressed; norm: §3.1.2)

    Args:
        D: size of the vectors.
        H: how many heads; divides D.
        D_c: size of the latent vector.
        D_R: features of the rotated part of queries and keys, an even number.
        base: as in `rope_rotate`.
    """

    def __init__(self, D: int, H: int, D_c: int, D_R: int, base: float = 10000.0):
        super().__init__()
        self.H, self.D_h, self.D_c, self.D_R, self.base = H, D // H, D_c, D_R, base
        self.W_Q = nn.Parameter(torch.randn(D, H * (self.D_h + D_R)) / math.sqrt(D))
        self.W_DKV = nn.Parameter(torch.randn(D, D_c) / math.sqrt(D))
        self.W_KR = nn.Parameter(torch.randn(D, D_R) / math.sqrt(D))
        self.W_UK = nn.Parameter(torch.randn(D_c, D) / math.sqrt(D_c))
        self.W_UV = nn.Parameter(torch.randn(D_c, D) / math.sqrt(D_c))
        self.W_O = nn.Parameter(torch.randn(D, D) / math.sqrt(D))
        self.norm = nn.RMSNorm(D_c, eps=1e-5)

    def new_cache(self, B: int, capacity: int, dtype: torch.dtype | None = None) -> LatentCache:
        """Make an empty cache for this layer, in the weights' dtype when dtype is None."""
        dtype = self.W_DKV.dtype if dtype is None else dtype
        return LatentCache(B, capacity, self.D_c + self.D_R, dtype, self.W_DKV.device)

    def prepare(
        self, X: Float[Tensor, "B T D"], cache: LatentCache | None = None
    ) -> tuple[
        Float[Tensor, "B H T D_h"],
        Float[Tensor, "B H T D_R"],
        Float[Tensor, "B N D_c"],
        Float[Tensor, "B N D_R"],
    ]:
        """Make the queries of T new positions, and the latents of all N.

        [q^C, q^R] = x W_Q cut into heads,   c = norm(x W_DKV),   k^R = x W_KR,   and q^R and k^R
        are turned by `rope_rotate` at positions past … past + T - 1. Of each new position [c, k^R]
        is appended to the cache, and then all of it is read.

        Args:
            X: the new positions' vectors.
            cache: what was read before. When None, the new positions are the whole text.
        Returns:
            q^C and q^R, turned, of the new positions; c and k^R, turned, of all, in X's dtype.
        """
        ### BEGIN SOLUTION
        past, T = 0 if cache is None else cache.length, X.shape[1]
        positions = torch.arange(past, past + T, device=X.device)
        Q_C, Q_R = split_heads(X @ self.W_Q, self.H).split([self.D_h, self.D_R], dim=-1)
        K_R = rope_rotate(X @ self.W_KR, positions, self.base)
        C = torch.cat([self.norm(X @ self.W_DKV), K_R], dim=-1)  # (B, T, D_c + D_R)
        if cache is not None:
            cache.append(C)
            C = cache.read().to(X.dtype)  # (B, N, D_c + D_R)
        return Q_C, rope_rotate(Q_R, positions, self.base), C[..., : self.D_c], C[..., self.D_c :]
        ### END SOLUTION

    def forward(
        self, X: Float[Tensor, "B T D"], cache: LatentCache | None = None
    ) -> Float[Tensor, "B T D"]:
        """Attend from T new positions to themselves and to what comes before them.

        K_h = [c W_UK, k^R] and V_h = c W_UV, cut into heads, k^R the same in all of them;
        A_h = softmax([q^C, q^R]_h K_hᵀ / √(D_h + D_R)) over the positions up to one's own, however
        large or small the scores are;
        Y = [A_1 V_1 … A_H V_H] W_O      (DeepSeek-AI 2024, §2.1.2 and §2.1.3)

        Args:
            X: the new positions' vectors.
            cache: what was read before; the new positions are added to it. When None, the new
                positions are the whole text.
        Returns:
            Y, the outputs of the new positions.
        """
        ### BEGIN SOLUTION
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        K_C, V = (split_heads(C @ W, self.H) for W in (self.W_UK, self.W_UV))  # (B, H, N, D_h)
        K = torch.cat([K_C, K_R[:, None].expand(-1, self.H, -1, -1)], dim=-1)
        E = torch.cat([Q_C, Q_R], dim=-1) @ K.mT / math.sqrt(self.D_h + self.D_R)
        T, N = E.shape[2:]
        A = masked_softmax(E, causal_mask(T, past=N - T).to(E.device))
        return merge_heads(A @ V) @ self.W_O
        ### END SOLUTION

    def absorbed(
        self, X: Float[Tensor, "B T D"], cache: LatentCache | None = None
    ) -> Float[Tensor, "B T D"]:
        """Compute what `forward` does, without a key or a value of any head.

        W_UK goes to the other side of the scores, W_UV to the other side of the average:
        q^C_h · (c W_UK,h) = (q^C_h W_UK,hᵀ) · c,   Σ_j a_j (c_j W_UV,h) = (Σ_j a_j c_j) W_UV,h

        Args, Returns: as for `forward`.
        """
        ### BEGIN SOLUTION
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        W_UK, W_UV = (W.unflatten(1, (self.H, -1)) for W in (self.W_UK, self.W_UV))
        Q = torch.einsum("bhtd,chd->bhtc", Q_C, W_UK)  # queries that ask the latents
        E = Q @ C[:, None].mT + Q_R @ K_R[:, None].mT  # (B, H, T, N)
        T, N = E.shape[2:]
        mask = causal_mask(T, past=N - T).to(E.device)
        A = masked_softmax(E / math.sqrt(self.D_h + self.D_R), mask)
        return merge_heads(torch.einsum("bhtc,chd->bhtd", A @ C[:, None], W_UV)) @ self.W_O
        ### END SOLUTION


def mha_to_gqa_fault() -> tuple[str, tuple[dict[str, Tensor], int, int]]:
    """Say what is wrong with the black box of `mha_to_gqa`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what `mha_to_gqa`
        does.
    """
    state = {"W_K": torch.tensor([[0.0, 1.0]])}  # the mean of the two heads is 1/2, the first is 0
    return "A", (state, 2, 1)
