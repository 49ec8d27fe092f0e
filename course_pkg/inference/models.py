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

from course_pkg.data import small_llama
from course_pkg.gpt import GPT
from course_pkg.llama import Llama, load_llama
from course_pkg.positions import rope_rotate


class ServedLlama(nn.Module):
    """The Llama of `course_pkg.llama`, with attention left to the engine.

    Args:
        llama: the model. Its attention must see the whole past, without a window: which keys are
            read is the engine's business.
        context: the longest sequence.
    Raises:
        ValueError: the model has a window.
    """

    def __init__(self, llama: Llama, context: int = 2048):
        super().__init__()
        attention = llama.blocks[0].attention
        if attention.window is not None:
            raise ValueError(f"an engine reads the whole past, got a window of {attention.window}")
        self.llama, self.context = llama, context
        self.shape = len(llama.blocks), attention.G, attention.D_h

    @property
    def dtype(self) -> torch.dtype:
        return self.llama.token.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.llama.token.weight.device

    def forward(
        self,
        tokens: Int[Tensor, "M"],
        positions: Int[Tensor, "M"],
        attend: Callable,
        rows: Int[Tensor, "R"],
    ) -> Float[Tensor, "R V"]:
        """Score the next token after each of some rows."""
        X = self.llama.token(tokens)
        for layer, block in enumerate(self.llama.blocks):
            a, normed = block.attention, block.norm_1(X)
            Q, K, V = ((normed @ W).unflatten(1, (-1, a.D_h)) for W in (a.W_Q, a.W_K, a.W_V))
            Q, K = (
                rope_rotate(Z.transpose(0, 1), positions, a.base).transpose(0, 1) for Z in (Q, K)
            )
            X = X + attend(layer, Q, K, V).flatten(1) @ a.W_O
            X = X + block.feed_forward(block.norm_2(X))
        W_head = self.llama.token.weight.T if self.llama.W_head is None else self.llama.W_head
        return self.llama.norm(X[rows]) @ W_head


def shipped(name: str = "target") -> ServedLlama:
    """Load one of the two models that come with the course, ready to be served.

    Args:
        name: "target" or "draft", see `course_pkg.data.small_llama`.
    """
    state, sizes = small_llama.read(name)
    llama = Llama(**sizes)
    llama.load_state_dict(load_llama(state))
    return ServedLlama(llama, small_llama.CONTEXT)


class ServedGPT(nn.Module):
    """The GPT of `course_pkg.gpt`, with attention left to the engine.

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
