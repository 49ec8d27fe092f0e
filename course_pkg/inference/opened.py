"""Models with places to look into: the same numbers as before, under names that take hooks.

An attention layer has five places, each a module that returns what it gets: `for_queries`,
`for_keys` and `for_values` (B, T, D), what each of the three is computed from; `pattern` (B, H, T,
T), the weights; and `heads` (B, T, H, D_h), what each head has gathered before W_O. So
"blocks.5.attention.heads" is the name of what the heads of layer 5 return. Layers and heads are
counted from 0.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_pkg.attention import masked_softmax, split_heads
from course_pkg.data import small_llama
from course_pkg.llama import Llama, LlamaAttention, RMSNorm, load_llama
from course_pkg.positions import rope_rotate


class OpenAttention(LlamaAttention):
    """The attention of `course_pkg.llama` without a cache, and with places to look into."""

    def __init__(self, D: int, H: int, G: int, base: float = 10000.0):
        super().__init__(D, H, G, base)
        self.for_queries, self.for_keys, self.for_values = (nn.Identity() for _ in range(3))
        self.pattern, self.heads = nn.Identity(), nn.Identity()

    def forward(self, X: Float[Tensor, "B T D"], cache: None = None) -> Float[Tensor, "B T D"]:
        """Attend from each position to itself and all before it."""
        Q = rope_rotate(split_heads(self.for_queries(X) @ self.W_Q, self.H), base=self.base)
        K = rope_rotate(split_heads(self.for_keys(X) @ self.W_K, self.G), base=self.base)
        V = split_heads(self.for_values(X) @ self.W_V, self.G)
        K, V = (part.repeat_interleave(self.H // self.G, dim=1) for part in (K, V))
        causal = torch.ones(X.shape[1], X.shape[1], dtype=torch.bool, device=X.device).tril()
        A = self.pattern(masked_softmax(Q @ K.mT / math.sqrt(self.D_h), causal))  # (B, H, T, T)
        return self.heads((A @ V).transpose(1, 2)).flatten(2) @ self.W_O


class OpenLlama(Llama):
    """The model of `course_pkg.llama`, with the same weights, and with places to look into."""

    def __init__(self, V: int, D: int, H: int, G: int, L: int, F: int, tied: bool = False):
        super().__init__(V, D, H, G, L, F, tied)
        for block in self.blocks:
            block.attention = OpenAttention(D, H, G)


class AttentionBlock(nn.Module):
    """One layer of attention, added to what comes in, and no feed-forward network."""

    def __init__(self, D: int, H: int, norm: nn.Module):
        super().__init__()
        self.norm_1, self.attention = norm, OpenAttention(D, H, H)

    def forward(self, X: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return X + self.attention(self.norm_1(X))


class AttentionOnly(nn.Module):
    """A transformer of attention alone, as Elhage et al. (2021) take one apart.

    Args:
        V: tokens in the vocabulary.
        D: size of the vectors.
        H: heads of each layer.
        L: layers.
        normed: whether vectors are normalised before each layer, and at the end.
    """

    def __init__(self, V: int, D: int, H: int, L: int, normed: bool = True):
        super().__init__()

        def norm() -> nn.Module:
            return RMSNorm(D) if normed else nn.Identity()

        self.token = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(AttentionBlock(D, H, norm()) for _ in range(L))
        self.norm = norm()
        self.W_head = nn.Parameter(torch.randn(D, V) / math.sqrt(D))

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Score every token of the vocabulary as the next one."""
        X = self.token(tokens)
        for block in self.blocks:
            X = block(X)
        return self.norm(X) @ self.W_head


def opened(name: str = "target") -> OpenLlama:
    """Load one of the two Llamas that come with the course, with places to look into.

    Args:
        name: "target" or "draft", see `course_pkg.data.small_llama`.
    """
    state, sizes = small_llama.read(name)
    llama = OpenLlama(**sizes)
    llama.load_state_dict(load_llama(state))
    return llama.eval()
