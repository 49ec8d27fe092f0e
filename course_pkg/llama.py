"""Llama: the decoder that today's models are, and windows that slide over a text.

Shapes: B sequences, T new positions, N positions in all, D features, F hidden features, L layers, V
tokens in the vocabulary; H heads of queries and G heads of keys and values, each of size
D_h = D / H.
"""

import math
import re

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.attention import masked_softmax, merge_heads, split_heads
from course_pkg.kv_cache import KVCache
from course_pkg.positions import rope_rotate


class RMSNorm(nn.Module):
    """Scale every vector to a root mean square of one, and then each feature by a weight.

    Parameters: weight (D), which starts at one.

    Args:
        D: size of the vectors.
        eps: added to the mean square, inside the root.
    """

    def __init__(self, D: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, X: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Normalise each vector by itself, without centring it.

        y_i = weight_i x_i / √(Σ_j x_j² / D + ε)      (Zhang & Sennrich 2019, eq. 4)

        Args:
            X: the vectors; axes before the last are a batch. In half precision the mean square is
                computed in float32: a square of 300 is more than float16 holds. What is float64
                stays so.
        Returns:
            The new vectors, in X's dtype.
        """
        ### BEGIN SOLUTION
        precise = X.to(torch.promote_types(X.dtype, torch.float32))
        scale = torch.rsqrt(precise.square().mean(dim=-1, keepdim=True) + self.eps)  # (..., 1)
        return (precise * scale).to(X.dtype) * self.weight.to(X.dtype)
        ### END SOLUTION


def swiglu(
    X: Float[Tensor, "... D"],
    W_gate: Float[Tensor, "D F"],
    W_up: Float[Tensor, "D F"],
    W_down: Float[Tensor, "F D"],
) -> Float[Tensor, "... D"]:
    """Apply a gated network to each vector: one product decides how much of another passes.

    Y = (silu(X W_gate) ⊙ X W_up) W_down,   silu(x) = x σ(x)      (Shazeer 2020, eq. 6)

    Args:
        X: the vectors.
        W_gate: makes the gates.
        W_up: makes what passes through them.
        W_down: leads back to D features.
    Returns:
        Y, one vector for each of X.
    """
    return (functional.silu(X @ W_gate) * (X @ W_up)) @ W_down


class GatedFeedForward(nn.Module):
    """The gated network of a Llama block, as wide as costs what a plain one of 4 D does.

    Two matrices of D × 4 D are as many numbers as three of D × 8/3 D. Without F, the hidden layer
    has ⌊8/3 D⌋ features, rounded up to a multiple      (Touvron et al. 2023, §2.2)

    Parameters: W_gate and W_up (D, F), W_down (F, D), drawn from N(0, 1/rows).

    Args:
        D: size of the vectors.
        F: size of the hidden layer; from D when None.
        multiple: what F is a multiple of when it comes from D; 256 in Llama 2 7B.

    Attributes:
        F: size of the hidden layer.
    """

    def __init__(self, D: int, F: int | None = None, multiple: int = 32):
        super().__init__()
        ### BEGIN SOLUTION
        if F is None:
            F = math.ceil(8 * D // 3 / multiple) * multiple
        self.F = F
        self.W_gate = nn.Parameter(torch.randn(D, F) / math.sqrt(D))
        self.W_up = nn.Parameter(torch.randn(D, F) / math.sqrt(D))
        self.W_down = nn.Parameter(torch.randn(F, D) / math.sqrt(F))
        ### END SOLUTION

    def forward(self, X: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Apply `swiglu` to each vector.

        Args:
            X: the vectors.
        Returns:
            The new vectors.
        """
        ### BEGIN SOLUTION
        return swiglu(X, self.W_gate, self.W_up, self.W_down)
        ### END SOLUTION


def rope_rotate_pairs(
    X: Float[Tensor, "... T D_h"],
    positions: Int[Tensor, "T"] | Float[Tensor, "T"] | None = None,
    base: float = 10000.0,
) -> Float[Tensor, "... T D_h"]:
    """Turn neighbouring features by angles that grow with the position: RoPE in Meta's layout.

    Features 2i and 2i + 1 are the two coordinates of pair i, which turns by t ω_i at position t:
    x' = x cos(t ω_i) - y sin(t ω_i),   y' = x sin(t ω_i) + y cos(t ω_i),   ω_i = base^(-2i/D_h)
    (Su et al. 2021, §3.2; `rope_rotate` pairs features i and i + D_h/2)

    Args:
        X: queries or keys; axes before the last two are a batch.
        positions: where the T vectors stand, whole numbers or not; 0 … T-1 when None.
        base: how much slower the last pairs turn than the first.
    Returns:
        The turned vectors, with their lengths and their type unchanged.
    Raises:
        ValueError: D_h is odd.
    """
    halves = torch.cat([X[..., 0::2], X[..., 1::2]], dim=-1)
    turned = rope_rotate(halves, positions, base)  # which refuses an odd D_h
    return torch.stack(turned.chunk(2, dim=-1), dim=-1).flatten(-2)


def pairs_to_halves(W: Float[Tensor, "D HD_h"], H: int) -> Float[Tensor, "D HD_h"]:
    """Reorder the columns of W_Q or W_K, so that weights made for pairs work with halves.

    Within each head, columns 0, 2, 4, … come first and then columns 1, 3, 5, …: what stood at 2i
    and 2i + 1 stands at i and i + D_h/2. Queries and keys in the same new order have the same
    products, so that `rope_rotate` gives the scores that `rope_rotate_pairs` gave before.

    Args:
        W: the matrix, for x W; it is not changed.
        H: heads that the columns belong to: H for W_Q, G for W_K.
    Returns:
        The reordered matrix.
    Raises:
        ValueError: the columns cannot be shared equally among H heads of an even size.
    """
    if W.shape[1] % (2 * H):
        raise ValueError(f"{W.shape[1]} columns are not {H} heads of equal and even size")
    return W.unflatten(1, (H, -1, 2)).mT.flatten(1)  # (D, H, D_h/2, 2), its last two exchanged


def sliding_window_mask(
    T: int, window: int | None = None, sinks: int = 0, past: int = 0
) -> Bool[Tensor, "T past+T"]:
    """Allow each position itself, the ones just before it, and the first ones of the text.

    mask[t, s] = s ≤ n and (n - s < window or s < sinks),   n = past + t
    (Jiang et al. 2023, §2; sinks: Xiao et al. 2024, §3.2)

    Args:
        T: how many positions ask; they are the last of the sequence.
        window: how many positions each may see, itself included; all before it when None.
        sinks: how many first positions of the text all may see.
        past: how many positions before them can be seen but do not ask, such as those of a cache.
    Returns:
        The mask, boolean, True = may attend.
    Raises:
        ValueError: window is less than 1, or sinks is negative.
    """
    if (window is not None and window < 1) or sinks < 0:
        raise ValueError(f"window {window} must be at least 1, and sinks {sinks} at least 0")
    n, s = torch.arange(past, past + T)[:, None], torch.arange(past + T)
    allowed = s <= n
    if window is not None:
        allowed &= (n - s < window) | (s < sinks)
    return allowed


class LlamaAttention(nn.Module):
    """Grouped-query attention with rotary positions, a cache, and a window if one is wanted.

    Parameters: W_Q (D, D), W_K and W_V (D, G D_h), W_O (D, D), drawn from N(0, 1/D); no biases.
    Query head h reads key head h // (H / G).

    Args:
        D: size of the vectors.
        H: heads of queries; divides D.
        G: heads of keys and values; divides H.
        base: how much slower the last pairs of features turn than the first.
        window: how many positions each may see, itself included; all before it when None.
        sinks: how many first positions of the text all may see.
    Raises:
        ValueError: G does not divide H.
    """

    def __init__(
        self,
        D: int,
        H: int,
        G: int,
        base: float = 10000.0,
        window: int | None = None,
        sinks: int = 0,
    ):
        super().__init__()
        ### BEGIN SOLUTION
        if H % G:
            raise ValueError(f"{H} heads of queries cannot be shared equally among {G}")
        ### END SOLUTION
        self.H, self.G, self.D_h = H, G, D // H
        self.base, self.window, self.sinks = base, window, sinks
        self.W_Q = nn.Parameter(torch.randn(D, D) / math.sqrt(D))
        self.W_K = nn.Parameter(torch.randn(D, G * self.D_h) / math.sqrt(D))
        self.W_V = nn.Parameter(torch.randn(D, G * self.D_h) / math.sqrt(D))
        self.W_O = nn.Parameter(torch.randn(D, D) / math.sqrt(D))

    def new_cache(self, B: int, capacity: int, dtype: torch.dtype | None = None) -> KVCache:
        """Make an empty cache for this layer, in the weights' dtype when dtype is None."""
        dtype = self.W_K.dtype if dtype is None else dtype
        return KVCache(B, self.G, capacity, self.D_h, dtype, self.W_K.device)

    def forward(
        self, X: Float[Tensor, "B T D"], cache: KVCache | None = None
    ) -> Float[Tensor, "B T D"]:
        """Attend from T new positions to themselves and to what they may see before them.

        Q, K, V = X W_Q, X W_K, X W_V cut into heads;   Q and K are turned by `rope_rotate` at
        positions past … past + T - 1;   K, turned, and V are appended to the cache, and then all of
        it is read;   A_h = softmax(Q_h K_gᵀ / √D_h) over what `sliding_window_mask` allows,
        however large or small the scores are;   g = h // (H / G);
        Y = [A_0 V_g(0) … A_{H-1} V_g(H-1)] W_O
        (Touvron et al. 2023, §2.2; groups: Ainslie et al. 2023)

        Args:
            X: the new positions' vectors.
            cache: what was read before, of G heads; the new positions are added to it. When None,
                the new positions are the whole text.
        Returns:
            Y, the outputs of the new positions, in X's dtype whatever the cache's is.
        """
        ### BEGIN SOLUTION
        T = X.shape[1]
        past = 0 if cache is None else cache.length
        positions = torch.arange(past, past + T, device=X.device)
        Q = rope_rotate(split_heads(X @ self.W_Q, self.H), positions, self.base)  # (B, H, T, D_h)
        K = rope_rotate(split_heads(X @ self.W_K, self.G), positions, self.base)  # (B, G, T, D_h)
        V = split_heads(X @ self.W_V, self.G)
        if cache is not None:
            cache.append(K, V)
            K, V = (part.to(Q.dtype) for part in cache.read())  # (B, G, N, D_h)
        mask = sliding_window_mask(T, self.window, self.sinks, past).to(X.device)
        Q = Q.unflatten(1, (self.G, -1))  # (B, G, H/G, T, D_h)
        A = masked_softmax(Q @ K[:, :, None].mT / math.sqrt(self.D_h), mask)
        heads = (A @ V[:, :, None]).flatten(1, 2)  # (B, H, T, D_h)
        return merge_heads(heads) @ self.W_O
        ### END SOLUTION


class LlamaBlock(nn.Module):
    """One layer of Llama: attention and a gated network, each added to what comes in.

    Args:
        D, H, G: as in `LlamaAttention`.
        F: size of the hidden layer, as in `GatedFeedForward`.
        base, window, sinks: as in `LlamaAttention`.
    """

    def __init__(
        self,
        D: int,
        H: int,
        G: int,
        F: int | None = None,
        base: float = 10000.0,
        window: int | None = None,
        sinks: int = 0,
    ):
        super().__init__()
        self.norm_1 = RMSNorm(D)
        self.attention = LlamaAttention(D, H, G, base, window, sinks)
        self.norm_2 = RMSNorm(D)
        self.feed_forward = GatedFeedForward(D, F)

    def forward(
        self, X: Float[Tensor, "B T D"], cache: KVCache | None = None
    ) -> Float[Tensor, "B T D"]:
        """Apply the layer.

        X ← X + attention(norm_1(X), cache),   X ← X + feed_forward(norm_2(X))
        (Touvron et al. 2023, §2.2)

        Args:
            X: the new positions' vectors.
            cache: what the attention has read before; it grows by T positions.
        Returns:
            The new vectors.
        """
        ### BEGIN SOLUTION
        X = X + self.attention(self.norm_1(X), cache)
        return X + self.feed_forward(self.norm_2(X))
        ### END SOLUTION


class Llama(nn.Module):
    """Llama: predict every next token of a text from the tokens before it.

    Args:
        V: tokens in the vocabulary.
        D, H, G, F: as in `LlamaBlock`.
        L: layers.
        tied: whether the embedding is used again to score the tokens, as in GPT-2.
        base, window, sinks: as in `LlamaBlock`.
    """

    def __init__(
        self,
        V: int,
        D: int,
        H: int,
        G: int,
        L: int,
        F: int | None = None,
        tied: bool = False,
        base: float = 10000.0,
        window: int | None = None,
        sinks: int = 0,
    ):
        super().__init__()
        self.token = nn.Embedding(V, D)
        nn.init.normal_(self.token.weight, std=0.02)
        self.blocks = nn.ModuleList(LlamaBlock(D, H, G, F, base, window, sinks) for _ in range(L))
        self.norm = RMSNorm(D)
        self.W_head = None if tied else nn.Parameter(torch.randn(D, V) / math.sqrt(D))

    def new_caches(self, B: int, capacity: int, dtype: torch.dtype | None = None) -> list[KVCache]:
        """Make an empty cache for every layer."""
        return [block.attention.new_cache(B, capacity, dtype) for block in self.blocks]

    def forward(
        self, tokens: Int[Tensor, "B T"], caches: list[KVCache] | None = None
    ) -> Float[Tensor, "B T V"]:
        """Score every token of the vocabulary as the next one, after each of the new tokens.

        X = token[tokens], through all blocks;   logits = norm(X) W_head, or norm(X) tokenᵀ if tied
        (Touvron et al. 2023, §2.2)

        Args:
            tokens: the new tokens of every text.
            caches: of each layer, what it has read before; they grow by T positions. When None,
                the new tokens are the whole text.
        Returns:
            The logits of the new tokens.
        """
        ### BEGIN SOLUTION
        X = self.token(tokens)  # (B, T, D)
        for number, block in enumerate(self.blocks):
            X = block(X, None if caches is None else caches[number])
        W_head = self.token.weight.T if self.W_head is None else self.W_head
        return self.norm(X) @ W_head
        ### END SOLUTION


def llama_parameters(
    V: int,
    D: int,
    H: int,
    G: int,
    L: int,
    F: int,
    tied: bool = False,
) -> dict[str, int]:
    """Count the parameters of a Llama without building it.

    Args:
        V, D, H, G, L, F, tied: as for Llama.
    Returns:
        How many parameters its "embedding", its "attention", its "feed_forward", its "norms" and
        its "head" have, which is 0 if tied; and "total", their sum.
    """
    parts = {
        "embedding": V * D,
        "attention": L * 2 * D * (D + G * (D // H)),
        "feed_forward": L * 3 * D * F,
        "norms": (2 * L + 1) * D,
        "head": 0 if tied else V * D,
    }
    return parts | {"total": sum(parts.values())}


def load_llama(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn the weights of a published Llama or Mistral into those of our `Llama`.

    The names are those of Hugging Face's LlamaForCausalLM: model.embed_tokens, model.norm, lm_head
    (not in models that use the embedding twice), and in model.layers.N: input_layernorm,
    self_attn.q_proj, k_proj, v_proj and o_proj, post_attention_layernorm, mlp.gate_proj, up_proj
    and down_proj. The matrices are laid out for W x. Queries and keys are in the order of halves
    already. Old files also hold tables of frequencies, self_attn.rotary_emb.inv_freq, which are not
    weights. The base of the rotations and how they are scaled stand in config.json:
    `llama_config.rope_base` reads them.

    Args:
        state: the state dict; it is not changed.
    Returns:
        A state dict for `Llama`.
    Raises:
        ValueError: the state holds a name that our Llama has no place for, such as a bias.
    """
    outer = {
        "model.embed_tokens.weight": "token.weight",
        "model.norm.weight": "norm.weight",
        "lm_head.weight": "W_head",
    }
    inner = {
        "input_layernorm.weight": "norm_1.weight",
        "post_attention_layernorm.weight": "norm_2.weight",
        "self_attn.q_proj.weight": "attention.W_Q",
        "self_attn.k_proj.weight": "attention.W_K",
        "self_attn.v_proj.weight": "attention.W_V",
        "self_attn.o_proj.weight": "attention.W_O",
        "mlp.gate_proj.weight": "feed_forward.W_gate",
        "mlp.up_proj.weight": "feed_forward.W_up",
        "mlp.down_proj.weight": "feed_forward.W_down",
    }
    ours = {}
    for name, value in state.items():
        if name.endswith("rotary_emb.inv_freq"):
            continue
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        prefix, part = (f"blocks.{layer[1]}.", name[layer.end() :]) if layer else ("", name)
        place = (inner if layer else outer).get(part)
        if place is None:
            raise ValueError(f"our Llama has no place for {name}")
        transposed = value.dim() == 2 and place != "token.weight"
        ours[prefix + place] = value.T if transposed else value
    return ours


def swiglu_fault() -> tuple[str, tuple[Tensor, ...]]:
    """Say what is wrong with the black box of `swiglu`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what `swiglu` does.
    """
    X, W_gate, W_up, W_down = torch.ones(4, 1, 1)  # Y is σ(1) = 0.73, or Φ(1) = 0.84 in the box
    return "B", (X, W_gate, W_up, W_down)
