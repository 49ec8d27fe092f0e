"""Models that an engine can serve: they leave attention, and so all memory of the past, to it.

A served model has `shape` (L, G, D_h), what a cache must hold for each token; `context`, `dtype`
and `device`. It is called with the tokens of a step, of all sequences one after the other:

    logits = model(tokens, positions, attend, rows)

and calls attend(layer, Q, K, V) once for each layer. Only `attend` knows which token belongs to
which sequence. Shapes: M tokens, R rows that need logits, H query heads, G key heads of size D_h.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.gpt import GPT
from course_pkg.positions import rope_rotate


class LlamaBlock(nn.Module):
    """One layer of Llama: grouped-query attention with rotary positions, and a gated network.

    Args:
        D: size of the vectors.
        H: query heads, of size D / H.
        G: heads of keys and values; divides H.
        hidden: size of the gated network's hidden layer.
    """

    def __init__(self, D: int, H: int, G: int, hidden: int):
        super().__init__()
        self.H, self.G = H, G
        self.norm_1 = nn.RMSNorm(D, eps=1e-6)
        self.query = nn.Linear(D, D, bias=False)
        self.key = nn.Linear(D, D // H * G, bias=False)
        self.value = nn.Linear(D, D // H * G, bias=False)
        self.out = nn.Linear(D, D, bias=False)
        self.norm_2 = nn.RMSNorm(D, eps=1e-6)
        self.gate = nn.Linear(D, hidden, bias=False)
        self.up = nn.Linear(D, hidden, bias=False)
        self.down = nn.Linear(hidden, D, bias=False)

    def forward(
        self, X: Float[Tensor, "M D"], positions: Int[Tensor, "M"], attend: Callable
    ) -> Float[Tensor, "M D"]:
        """Apply the layer; attend gets Q, K and V."""
        normed = self.norm_1(X)
        Q = self.query(normed).unflatten(1, (self.H, -1))  # (M, H, D_h)
        K = self.key(normed).unflatten(1, (self.G, -1))  # (M, G, D_h)
        V = self.value(normed).unflatten(1, (self.G, -1))
        Q, K = (rope_rotate(Z.transpose(0, 1), positions).transpose(0, 1) for Z in (Q, K))
        X = X + self.out(attend(Q, K, V).flatten(1))
        normed = self.norm_2(X)
        return X + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Llama's architecture (Touvron et al. 2023), small and with random weights.

    Args:
        V: tokens in the vocabulary.
        D: size of the vectors.
        H: query heads.
        G: heads of keys and values; divides H.
        L: layers.
        context: the longest sequence.
    """

    def __init__(self, V: int, D: int, H: int, G: int, L: int, context: int = 2048):
        super().__init__()
        self.context = context
        self.shape = L, G, D // H
        self.token = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(LlamaBlock(D, H, G, 3 * D) for _ in range(L))
        self.norm = nn.RMSNorm(D, eps=1e-6)
        self.head = nn.Linear(D, V, bias=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.token.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.token.weight.device

    def forward(
        self,
        tokens: Int[Tensor, "M"],
        positions: Int[Tensor, "M"],
        attend: Callable,
        rows: Int[Tensor, "R"],
    ) -> Float[Tensor, "R V"]:
        """Score the next token after each of some rows."""
        X = self.token(tokens)
        for layer, block in enumerate(self.blocks):
            X = block(X, positions, lambda *heads, layer=layer: attend(layer, *heads))
        return self.head(self.norm(X[rows]))


class ServedGPT(nn.Module):
    """The GPT of Assignment 08, with attention left to the engine.

    Args:
        gpt: the model.
    """

    def __init__(self, gpt: GPT):
        super().__init__()
        self.gpt = gpt
        self.context = gpt.context
        self.H = gpt.blocks[0].attention.H
        self.shape = len(gpt.blocks), self.H, gpt.token.weight.shape[1] // self.H

    @property
    def dtype(self) -> torch.dtype:
        return self.gpt.token.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.gpt.token.weight.device

    def forward(
        self,
        tokens: Int[Tensor, "M"],
        positions: Int[Tensor, "M"],
        attend: Callable,
        rows: Int[Tensor, "R"],
    ) -> Float[Tensor, "R V"]:
        """Score the next token after each of some rows."""
        X = self.gpt.token(tokens) + self.gpt.position(positions)
        for layer, block in enumerate(self.gpt.blocks):
            a, normed = block.attention, block.norm_1(X)
            projections = (a.W_Q, a.b_Q), (a.W_K, a.b_K), (a.W_V, a.b_V)
            heads = [(normed @ W + b).unflatten(1, (self.H, -1)) for W, b in projections]
            X = X + attend(layer, *heads).flatten(1) @ a.W_O + a.b_O
            hidden = functional.gelu(block.expand(block.norm_2(X)), approximate="tanh")
            X = X + block.contract(hidden)
        return self.gpt.norm(X[rows]) @ self.gpt.token.weight.T


def attend_to_all(layer: int, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """Attend within one whole sequence, without any cache."""
    heads = (X.transpose(0, 1)[None] for X in (Q, K, V))
    Y = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    return Y[0].transpose(0, 1)


@torch.no_grad()
def generate_uncached(model, prompt: list[int], count: int, stop: int | None = None) -> list[int]:
    """Continue one prompt with its best tokens, reading all of it anew for each: the plain way.

    Returns:
        The tokens added.
    """
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count and (tokens == prompt or tokens[-1] != stop):
        positions = torch.arange(len(tokens), device=model.device)
        line = torch.tensor(tokens, device=model.device)
        logits = model(line, positions, attend_to_all, positions[-1:])
        tokens.append(int(logits[0].argmax()))
    return tokens[len(prompt) :]
