"""Llama: the decoder that today's models are, with windows, experts and low-rank adapters.

Shapes: B sequences, T new positions, N positions in all, M tokens, D features, F hidden features,
L layers, V tokens in the vocabulary; H heads of queries and G heads of keys and values, each of
size D_h = D / H; E experts, of which each token gets k.
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
        experts: how many experts there are in place of the one network, of which each token gets
            two; none when None.
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
        experts: int | None = None,
    ):
        super().__init__()
        self.norm_1 = RMSNorm(D)
        self.attention = LlamaAttention(D, H, G, base, window, sinks)
        self.norm_2 = RMSNorm(D)
        self.feed_forward = GatedFeedForward(D, F)
        if experts is not None:
            self.feed_forward = MixtureOfExperts(D, self.feed_forward.F, experts)

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
        base, window, sinks, experts: as in `LlamaBlock`.
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
        experts: int | None = None,
    ):
        super().__init__()
        self.token = nn.Embedding(V, D)
        nn.init.normal_(self.token.weight, std=0.02)
        self.blocks = nn.ModuleList(
            LlamaBlock(D, H, G, F, base, window, sinks, experts) for _ in range(L)
        )
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
    experts: int | None = None,
    k: int = 2,
) -> dict[str, int]:
    """Count the parameters of a Llama without building it.

    Args:
        V, D, H, G, L, F, tied, experts: as for Llama.
        k: how many experts a token gets, if there are experts.
    Returns:
        How many numbers are learned in its "embedding", its "attention", its "feed_forward" with
        the routers, its "norms" and its "head", 0 if tied; "total", their sum; and "active", how
        many of these act on one token: all but the experts that it does not get.
    """
    expert = 3 * D * F
    router = 0 if experts is None else D * experts
    parts = {
        "embedding": V * D,
        "attention": L * 2 * D * (D + G * (D // H)),
        "feed_forward": L * (expert * (experts or 1) + router),
        "norms": (2 * L + 1) * D,
        "head": 0 if tied else V * D,
    }
    total = sum(parts.values())
    idle = 0 if experts is None else L * expert * (experts - k)
    return parts | {"total": total, "active": total - idle}


def load_llama(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn the weights of a published Llama, Mistral or Mixtral into those of our `Llama`.

    The names are those of Hugging Face's LlamaForCausalLM: model.embed_tokens, model.norm, lm_head
    (not in models that use the embedding twice), and in model.layers.N: input_layernorm,
    self_attn.q_proj, k_proj, v_proj and o_proj, post_attention_layernorm, mlp.gate_proj, up_proj
    and down_proj. The matrices are laid out for W x. In Mixtral a layer has
    block_sparse_moe.gate, the router, and block_sparse_moe.experts.E.w1, w3 and w2, which are gate,
    up and down of expert E. Queries and keys are in the order of halves already. Old files also
    hold tables of frequencies, self_attn.rotary_emb.inv_freq, which are not weights. The base of
    the rotations and how they are scaled stand in config.json: `llama_config.rope_base` reads them.

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
        "block_sparse_moe.gate.weight": "feed_forward.W_router",
        "self_attn.q_proj.weight": "attention.W_Q",
        "self_attn.k_proj.weight": "attention.W_K",
        "self_attn.v_proj.weight": "attention.W_V",
        "self_attn.o_proj.weight": "attention.W_O",
        "mlp.gate_proj.weight": "feed_forward.W_gate",
        "mlp.up_proj.weight": "feed_forward.W_up",
        "mlp.down_proj.weight": "feed_forward.W_down",
    }
    of_expert = {"w1": "W_gate", "w3": "W_up", "w2": "W_down"}
    ours = {}
    stacks = {}  # the experts of each stack, by their numbers
    for name, value in state.items():
        if name.endswith("rotary_emb.inv_freq"):
            continue
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        prefix, part = (f"blocks.{layer[1]}.", name[layer.end() :]) if layer else ("", name)
        place = (inner if layer else outer).get(part)
        expert = re.fullmatch(r"block_sparse_moe\.experts\.(\d+)\.(w[123])\.weight", part)
        matrix = value.T if value.dim() == 2 and place != "token.weight" else value
        if place is not None:
            ours[prefix + place] = matrix
        elif layer and expert:
            stack = f"{prefix}feed_forward.{of_expert[expert[2]]}"
            stacks.setdefault(stack, {})[expert[1]] = matrix
        else:
            raise ValueError(f"our Llama has no place for {name}")
    for stack, values in stacks.items():
        ours[stack] = torch.stack([values[e] for e in sorted(values, key=int)])
    return ours


def route_top_k(
    logits: Float[Tensor, "M E"], k: int
) -> tuple[Float[Tensor, "M k"], Int[Tensor, "M k"]]:
    """Choose k experts for each token, and how much each of them counts.

    weights = softmax of the k largest logits      (Jiang et al. 2024, §2.1)

    Args:
        logits: the router's score of each expert, for each token.
        k: how many experts a token gets.
    Returns:
        The experts' weights, which sum to one for each token, and their numbers, the best first.
    Raises:
        ValueError: k is less than 1 or more than E.
    """
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k must lie in 1 … {logits.shape[1]}, got {k}")
    best, experts = logits.topk(k)  # (M, k) each
    return torch.softmax(best, dim=1), experts


def load_balancing_loss(
    logits: Float[Tensor, "M E"], experts: Int[Tensor, "M k"]
) -> Float[Tensor, ""]:
    """Measure how unequally a router loads its experts, in a way that it can learn from.

    L = E Σ_e f_e P_e,   f_e = how many of the M tokens go to expert e, divided by M,
    P_e = mean over the tokens of softmax(logits)_e      (Fedus et al. 2022, eq. 4 to 6, for k = 1)

    f has no gradient; P has. With equal loads L is k; at most it is E, where one expert has all.

    Args:
        logits: the router's scores of M tokens.
        experts: the experts that each token goes to, all different.
    Returns:
        L.
    """
    M, E = logits.shape
    f = torch.bincount(experts.flatten(), minlength=E).to(logits) / M  # (E,)
    P = torch.softmax(logits, dim=1).mean(dim=0)  # (E,)
    return E * (f * P).sum()


class MixtureOfExperts(nn.Module):
    """E feed-forward networks in place of one, of which each token passes through k.

    Parameters: W_router (D, E), W_gate and W_up (E, D, F), W_down (E, F, D), drawn from
    N(0, 1/rows).

    Args:
        D: size of the vectors.
        F: size of each expert's hidden layer.
        E: how many experts.
        k: how many of them a token gets.
        capacity: how many tokens an expert takes at most in one call; as many as come when None.
    """

    def __init__(self, D: int, F: int, E: int, k: int = 2, capacity: int | None = None):
        super().__init__()
        self.k, self.capacity = k, capacity
        self.W_router = nn.Parameter(torch.randn(D, E) / math.sqrt(D))
        self.W_gate = nn.Parameter(torch.randn(E, D, F) / math.sqrt(D))
        self.W_up = nn.Parameter(torch.randn(E, D, F) / math.sqrt(D))
        self.W_down = nn.Parameter(torch.randn(E, F, D) / math.sqrt(F))

    def forward(self, X: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Send each vector through its experts, and add up what they return.

        weights, experts = route_top_k(X W_router, k);   y = Σ_j weights_j swiglu_{experts_j}(x)
        (Shazeer et al. 2017, §2; Jiang et al. 2024, §2.1)

        With a capacity, an expert takes the tokens that come first, all of the first sequence
        before those of the second, and drops the rest: they get nothing from this expert, and
        their other weights stay as they are      (Fedus et al. 2022, §2.2)

        Args:
            X: the vectors; axes before the last are read as M tokens, in their order.
        Returns:
            The new vectors, in X's dtype. Where all experts dropped a token, its vector is zero.
        """
        ### BEGIN SOLUTION
        tokens = X.reshape(-1, X.shape[-1])  # (M, D)
        weights, experts = route_top_k(tokens @ self.W_router, self.k)  # (M, k) each
        Y = torch.zeros_like(tokens)
        for e in range(len(self.W_gate)):
            rows, slots = torch.where(experts == e)
            rows, slots = rows[: self.capacity], slots[: self.capacity]
            out = swiglu(tokens[rows], self.W_gate[e], self.W_up[e], self.W_down[e])
            Y = Y.index_add(0, rows, weights[rows, slots, None] * out)
        return Y.view_as(X)
        ### END SOLUTION


class LoRA(nn.Module):
    """Adapt a matrix that stays as it is, by adding a product of two thin ones.

    Parameters: A (D_in, r), drawn from N(0, 1/D_in), and B (r, D_out), which starts at zero, both
    of W's dtype. W is a buffer: it is stored, and never trained
    (Hu et al. 2022, §4.1, written for x W)

    Args:
        W: the matrix, for x W; (D_in, D_out). It is copied.
        r: the rank of what is added.
        alpha: how much is added is scaled by alpha / r.
    Raises:
        ValueError: r is less than 1.
    """

    def __init__(self, W: Float[Tensor, "D_in D_out"], r: int, alpha: float):
        super().__init__()
        ### BEGIN SOLUTION
        if r < 1:
            raise ValueError(f"the rank must be at least 1, got {r}")
        D_in, D_out = W.shape
        self.scale = alpha / r
        self.register_buffer("W", W.detach().clone())
        self.A = nn.Parameter(torch.randn(D_in, r).to(W) / math.sqrt(D_in))
        self.B = nn.Parameter(torch.zeros(r, D_out).to(W))
        ### END SOLUTION

    def forward(self, X: Float[Tensor, "... D_in"]) -> Float[Tensor, "... D_out"]:
        """Compute X W + (alpha / r) (X A) B, without a matrix of W's size for what is added.

        Args:
            X: the vectors.
        Returns:
            The new vectors.
        """
        ### BEGIN SOLUTION
        return X @ self.W + self.scale * ((X @ self.A) @ self.B)
        ### END SOLUTION

    def merge(self) -> Float[Tensor, "D_in D_out"]:
        """Add up W + (alpha / r) A B: one matrix, which costs no more than W did.

        Returns:
            A new matrix; W stays as it is.
        """
        ### BEGIN SOLUTION
        return self.W + self.scale * (self.A @ self.B)
        ### END SOLUTION
