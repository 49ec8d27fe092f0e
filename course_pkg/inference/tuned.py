"""The same engine, faster: what it takes to keep up with programs that people use.

Nothing here changes a token. Each part is one step of tuning and can be left out:

- `TunedLlama`: fewer and larger products, and the angles of all layers computed once in a step.
- `TunedRunner`: on a GPU, a step that only decodes is recorded once as a graph of kernels and then
  replayed, which spares the processor all of their launches.
- `TunedScheduler`: the budget that is left is counted on, not counted anew for each sequence.
- `TunedEngine`: the best tokens of all sequences are found in one go.

Shapes: as in `course_pkg.serving` and `course_pkg.inference.models`.
"""

import math
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.engine.requests import HISTORY, EngineConfig, NoNumbers, SchedulerOutput
from course_pkg.inference.models import ServedLlama
from course_pkg.serving import BeamEngine, ChunkedScheduler, ModelRunner, SwappingScheduler


class TunedLlama(nn.Module):
    """A `ServedLlama` whose layers multiply by two large matrices in place of five.

    Args:
        model: the model. Its weights are copied: later changes of it are not seen.
    """

    @torch.no_grad()
    def __init__(self, model: ServedLlama):
        super().__init__()
        llama = model.llama
        self.context, self.shape = model.context, model.shape
        self.base = llama.blocks[0].attention.base
        self.token, self.norm = llama.token, llama.norm
        self.W_head = llama.token.weight.T if llama.W_head is None else llama.W_head
        self.layers = [
            (
                block.norm_1,
                torch.cat([block.attention.W_Q, block.attention.W_K, block.attention.W_V], 1),
                block.attention.W_O,
                block.norm_2,
                torch.cat([block.feed_forward.W_gate, block.feed_forward.W_up], 1),
                block.feed_forward.W_down,
            )
            for block in llama.blocks
        ]

    @property
    def dtype(self) -> torch.dtype:
        return self.token.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.token.weight.device

    def forward(
        self, tokens: Int[Tensor, "M"], positions: Int[Tensor, "M"], attend: Any,
        rows: Int[Tensor, "R"],
    ) -> Float[Tensor, "R V"]:  # fmt: skip
        """Score the next token after each of some rows."""
        _, G, D_h = self.shape
        cos, sin = self.angles(positions)
        X = self.token(tokens)
        for layer, (norm_1, W_QKV, W_O, norm_2, W_in, W_down) in enumerate(self.layers):
            heads = (_normed(norm_1, X) @ W_QKV).unflatten(1, (-1, D_h))
            turned, V = heads[:, :-G], heads[:, -G:]
            x, y = turned.chunk(2, dim=-1)
            turned = torch.cat([x * cos - y * sin, x * sin + y * cos], dim=-1).to(X.dtype)
            Y = attend(layer, turned[:, :-G], turned[:, -G:], V)
            X = torch.addmm(X, Y.flatten(1), W_O)
            gate, up = (_normed(norm_2, X) @ W_in).chunk(2, dim=-1)
            X = torch.addmm(X, functional.silu(gate) * up, W_down)
        return _normed(self.norm, X[rows]) @ self.W_head

    def angles(self, positions: Int[Tensor, "M"]) -> tuple[Tensor, Tensor]:
        """Compute what `rope_rotate` computes from positions: cos and sin (M, 1, D_h/2)."""
        D_h = self.shape[2]
        precise = torch.promote_types(self.dtype, torch.float32)
        steps = torch.arange(0, D_h, 2, dtype=precise, device=positions.device)
        angles = positions[:, None, None] * self.base ** (-steps / D_h)
        return angles.cos(), angles.sin()


def _normed(norm: nn.Module, X: Float[Tensor, "M D"]) -> Float[Tensor, "M D"]:
    """Apply an `RMSNorm` of llama in one operation."""
    return functional.rms_norm(X, norm.weight.shape, norm.weight, norm.eps)


class GatheredAttention:
    """Do what `paged_attention` does by one call of torch's attention, for CPUs.

    Keys and values are gathered into memory that is kept: to ask the system for as much anew in
    each layer takes longer than to fill it. Tables and lengths that are the same objects as in the
    call before are taken to say the same: those of all layers of a step are.
    """

    def __init__(self):
        self.kept = torch.empty(0), torch.empty(0)
        self.seen: tuple[Any, ...] = (None,) * 4  # tables and lengths, and what is made of them

    def __call__(
        self,
        Q: Float[Tensor, "B T H D_h"],
        K: Float[Tensor, "G N S D_h"],
        V: Float[Tensor, "G N S D_h"],
        tables: Int[Tensor, "B M"],
        lengths: Int[Tensor, "B"],
    ) -> Float[Tensor, "B T H D_h"]:
        """Attend as `paged_attention` does; what the tables name after a sequence's end is read."""
        (B, T, H, D_h), (G, _, S, _), M = Q.shape, K.shape, tables.shape[1]
        rows = Q.unflatten(2, (G, H // G)).transpose(1, 2).flatten(2, 3)  # (B, G, T · H/G, D_h)
        if tables is not self.seen[0] or lengths is not self.seen[1]:
            bias = self.bias(T, M * S, lengths, H // G, Q.dtype)
            self.seen = tables, lengths, tables.flatten(), bias
        _, _, blocks, bias = self.seen
        count = G * B * M * S * D_h
        if self.kept[0].numel() < count or self.kept[0].dtype != K.dtype:
            self.kept = K.new_empty(2 * count), K.new_empty(2 * count)
        places = [X[:count].view(G, B * M, S, D_h) for X in self.kept]
        for X, place in zip((K, V), places, strict=True):
            torch.index_select(X, 1, blocks, out=place)
        keys, values = (place.view(G, B, M * S, D_h).transpose(0, 1) for place in places)
        Y = functional.scaled_dot_product_attention(rows, keys, values, bias)
        return Y.unflatten(2, (T, H // G)).transpose(1, 2).flatten(2, 3)

    def bias(
        self, T: int, N: int, lengths: Int[Tensor, "B"], sharing: int, dtype: torch.dtype
    ) -> Float[Tensor, "B 1 T·sharing N"]:
        """Make what is added to the scores: -∞ for keys that come after a query."""
        last = lengths[:, None] - T + torch.arange(T)  # (B, T): what each may see
        beyond = torch.arange(N) > last.repeat_interleave(sharing, dim=1)[:, None, :, None]
        return torch.zeros(beyond.shape, dtype=dtype).masked_fill(beyond, -math.inf)


class TunedRunner(ModelRunner):
    """A `ModelRunner` with `GatheredAttention` on a CPU, and with graphs on a GPU.

    A graph of kernels is recorded for steps that only decode, of 1, 2, 4, … sequences; missing ones
    are copies of the last, who write the same numbers to the same place.

    Args:
        runner: the one whose place it takes, with its caches.
    """

    def __init__(self, runner: ModelRunner):
        vars(self).update(vars(runner))
        if isinstance(self.model, ServedLlama):
            self.model = TunedLlama(self.model)
        self.graphs: dict[int, tuple] = {}
        # With the kernel, which takes no float64: `paged_attention` asks how long the longest is.
        has_kernel = self.cache.K.is_cuda and not isinstance(self.attention, partial)
        self.replays = has_kernel and self.model.dtype != torch.float64
        if not self.cache.K.is_cuda:
            self.attention = GatheredAttention()

    def forward(self, batch: list[tuple[list[int], int, list[int]]]) -> Float[Tensor, "R V"]:
        """Compute new tokens of R sequences, as in `ModelRunner`."""
        if not self.replays or not batch or any(len(new) > 1 for new, _, _ in batch):
            return super().forward(batch)
        S, size = self.cache.K.shape[3], 1 << (len(batch) - 1).bit_length()
        width = math.ceil(self.model.context / S)
        rows = [
            [token, start, blocks[start // S] * S + start % S, start + 1]
            + blocks
            + [0] * (width - len(blocks))
            for (token,), start, blocks in batch
        ]
        given = torch.tensor(rows + rows[-1:] * (size - len(rows)))
        with torch.no_grad():
            if size not in self.graphs:
                self.graphs[size] = self.record(given.to(self.model.device))
            graph, place, logits = self.graphs[size]
            place.copy_(given)
            graph.replay()
        return logits[: len(batch)]

    def record(self, given: Int[Tensor, "R C"]) -> tuple[Any, Tensor, Float[Tensor, "R V"]]:
        """Record a step, which writes what it writes when it is replayed.

        Args:
            given: tokens, positions, slots, lengths and tables: a row for each sequence.
        Returns:
            The graph, where it reads what it is given, and where it leaves the logits.
        """

        def step() -> Tensor:
            tokens, positions, slots, lengths = given[:, :4].T.contiguous()
            tables = given[:, 4:].contiguous()

            def attend(layer: int, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
                self.cache.write(layer, slots, K, V)
                keys, values = self.cache.K[layer], self.cache.V[layer]
                return self.attention(Q[:, None], keys, values, tables, lengths)[:, 0]

            rows = torch.arange(len(given), device=given.device)
            return self.model(tokens, positions, attend, rows)

        step()  # compiles the kernels
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = step()
        return graph, given, logits


class TunedScheduler(ChunkedScheduler):
    """A `ChunkedScheduler` that is quick where one token more has room in an own block.

    Args:
        scheduler: the one whose place it takes, with what it knows.
    """

    def __init__(self, scheduler: ChunkedScheduler):
        vars(self).update(vars(scheduler))
        self.spent = 0, 0  # rows of the plan that are counted, and their tokens

    def count(self, number: int) -> int:
        """Say how many tokens of a sequence are to be computed in this step."""
        rows, tokens = self.spent
        tokens += sum(stop - start for _, start, stop in self.plan.work[rows:])
        self.spent = len(self.plan.work), tokens
        sequence = self.sequences[number]
        return min(
            len(sequence.tokens) - sequence.num_computed, self.max_num_batched_tokens - tokens
        )

    def preempt(self, number: int) -> None:
        """Take the blocks of a running sequence and its group, and their rows of the plan."""
        super().preempt(number)
        self.spent = 0, 0

    def hand_over(self) -> SchedulerOutput:
        """Give out the plan, and begin a new one."""
        self.spent = 0, 0
        return super().hand_over()

    def extend(self, number: int) -> None:
        """Plan a running sequence's work, and give it the blocks for that; none if it has no work.

        Raises:
            OutOfBlocks: there are too few; then nothing has changed.
        """
        sequence = self.sequences[number]
        start, table = sequence.num_computed, sequence.block_table
        has_room = start % table.block_size and len(sequence.tokens) == start + 1
        if has_room and self.count(number) and self.is_own(table.blocks[-1]):
            table.length = start + 1
            self.plan.work.append((number, start, start + 1))
        else:
            super().extend(number)

    def is_own(self, block: int) -> bool:
        """Say whether one sequence only uses a block."""
        return self.manager.allocator.references[block] == 1

    def advance(self, number: int, stop: int) -> None:
        """Take note that the keys and values of a sequence's tokens are written up to stop."""
        sequence = self.sequences[number]
        sequence.num_computed = stop
        if stop // self.manager.block_size > len(sequence.block_hashes):
            self.manager.cache_blocks(number, sequence.tokens)


class TunedEngine(BeamEngine):
    """A `BeamEngine` with all of this.

    Args:
        model, config: as in `EngineCore`.
    """

    def __init__(self, model: Any, config: EngineConfig):
        super().__init__(model, config)
        self.runner = TunedRunner(self.runner)
        if not isinstance(self.scheduler, SwappingScheduler):
            self.scheduler = TunedScheduler(self.scheduler)

    def step(self) -> list[tuple[int, int]]:
        """Compute what the scheduler chooses, and add a token wherever all others are computed.

        Returns:
            As in `EngineCore`.
        """
        plan = self.scheduler.schedule()
        if not plan.work and self.scheduler.waiting:
            raise RuntimeError("sequences wait, but none can run")
        try:
            self.runner.copy(plan.copies)
            logits = self.runner.forward([self.piece(*row) for row in plan.work])
            drawn = self.draw_all(plan, logits)
        except BaseException:
            self.scheduler.undo(plan.work)
            raise
        for number, _, stop in plan.work:
            self.scheduler.advance(number, stop)
        added = []
        for number, draws in drawn.items():
            if isinstance(draws, int):
                self.scheduler.append(number, draws)
                self.finish(number)
                added.append((number, draws))
            else:
                added += self.write(number, draws)
        self.history.append(self.counters(len(plan.work)))
        del self.history[:-HISTORY]
        return added

    def draw_all(self, plan: SchedulerOutput, logits: Float[Tensor, "R V"]) -> dict[int, Any]:
        """Draw for every sequence whose tokens are all computed.

        Returns:
            For each a token, where that is all that is wanted, or what `draw` returns.
        Raises:
            NoNumbers: as in `draw`.
        """
        drawn: dict[int, Any] = {}
        finite = best = []
        if len(logits):
            finite, best = logits.amax(dim=1).isfinite().tolist(), logits.argmax(dim=1).tolist()
        for row, (number, _, stop) in enumerate(plan.work):
            sequence = self.sequences[number]
            if stop < len(sequence.tokens):
                continue  # a chunk of a longer prompt
            sampling = sequence.sampling
            if sampling.temperature > 0 or sampling.beams > 1 or sequence.forks:
                drawn[number] = self.draw(number, logits[row])
            elif finite[row]:
                drawn[number] = best[row]
            else:
                raise NoNumbers(number)
        return drawn
