"""A model that computes the tokens of many sequences at once.

Shapes: N blocks of S slots, H blocks on the host; M tokens of a step, R sequences, V tokens in the
vocabulary, L layers; G heads of keys and values of size D_h.
"""

import itertools
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from course_pkg.inference.decoding import with_kernel
from course_pkg.paged_attention import PagedKVCache, paged_attention


class ModelRunner:
    """Run a model over sequences of any lengths at once, with their keys and values in blocks.

    Attributes:
        cache: the `PagedKVCache`.
        cpu_cache: a `PagedKVCache` on the host, for blocks that are swapped out.
        attention: `paged_attention`, or on a GPU a kernel, see `course_pkg.inference.decoding`.
        left: the copies of blocks that are still to be made, because one has failed.

    Args:
        model: has `shape` (L, G, D_h), `context`, `dtype` and `device`, and is called with tokens
            (M,), their positions (M,), a function attend and rows (R,): it returns the logits
            (R, V) of those rows. For each layer it calls attend(layer, Q, K, V), with Q (M, H, D_h)
            and K and V (M, G, D_h), and gets the outputs (M, H, D_h).
        num_blocks: N, how many blocks of the cache.
        block_size: S, slots in a block.
        num_cpu_blocks: H, how many blocks on the host.
    """

    def __init__(self, model: Any, num_blocks: int, block_size: int, num_cpu_blocks: int = 0):
        L, G, D_h = model.shape
        make = partial(PagedKVCache, L, block_size=block_size, G=G, D_h=D_h, dtype=model.dtype)
        self.model = model
        self.cache = make(blocks=num_blocks, device=model.device)
        self.cpu_cache = make(blocks=num_cpu_blocks, device=torch.device("cpu"))
        self.attention = with_kernel(partial(paged_attention, at_once=16), model.device)
        self.left: list[tuple[int, int]] = []

    def forward(self, batch: list[tuple[list[int], int, list[int]]]) -> Float[Tensor, "R V"]:
        """Compute new tokens of R sequences, all in one call of the model.

        All tokens are rows of the same products, whatever sequence they belong to; only attention
        is done for each sequence by itself: selective batching. No gradients are kept.
        (Yu et al. 2022, §3.2)

        Args:
            batch: (tokens, start, blocks) for each sequence: new tokens, at least one; the position
                of the first; and the blocks of its table, which the new tokens have slots in.
        Returns:
            The logits after the last token of each; no rows for an empty batch. The cache holds the
            keys and values of the new tokens.
        """
        ### BEGIN SOLUTION
        if not batch:
            return torch.empty(0, 0, device=self.model.device)
        tensor = partial(torch.tensor, device=self.model.device)
        S = self.cache.K.shape[3]
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        groups: dict[int, list[tuple]] = {}  # sequences with as many new tokens go together
        for new, start, blocks in batch:
            stop = start + len(new)
            rows = range(len(tokens), len(tokens) + len(new))
            groups.setdefault(len(new), []).append((list(rows), blocks, stop))
            tokens += new
            positions += range(start, stop)
            slots += [blocks[t // S] * S + t % S for t in range(start, stop)]
        ready = []
        for group in groups.values():
            longest = max(len(blocks) for _, blocks, _ in group)
            padded = tensor([blocks + [0] * (longest - len(blocks)) for _, blocks, _ in group])
            where, lengths = tensor([rows for rows, _, _ in group]), [stop for _, _, stop in group]
            ready.append((where, padded, tensor(lengths)))
        written = tensor(slots)

        def attend(layer: int, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
            self.cache.write(layer, written, K, V)
            Y = torch.empty_like(Q)
            for where, tables, lengths in ready:
                keys, values = self.cache.K[layer], self.cache.V[layer]
                Y[where] = self.attention(Q[where], keys, values, tables, lengths)
            return Y

        last = list(itertools.accumulate(len(new) for new, _, _ in batch))
        with torch.no_grad():
            return self.model(tensor(tokens), tensor(positions), attend, tensor(last) - 1)
        ### END SOLUTION

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole blocks, one after the other; those from number N on are on the host.

        Heads stand before blocks in the cache, so a block is 2 · L · G pieces of S · D_h numbers,
        each of which is moved by itself. If a copy fails, it and those after it are left, and the
        next call makes them first: tables name the blocks already that they were to fill.
        """
        self.left += copies
        while self.left:
            (here, n), (there, m) = map(self.place, self.left[0])
            there.K[:, :, m] = here.K[:, :, n]
            there.V[:, :, m] = here.V[:, :, n]
            del self.left[0]

    def place(self, block: int) -> tuple[PagedKVCache, int]:
        """Look up where a block is, and its number there."""
        N = self.cache.K.shape[2]
        return (self.cache, block) if block < N else (self.cpu_cache, block - N)
