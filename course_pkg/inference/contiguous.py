"""Serving without paging: one unbroken piece of memory for each sequence."""

import math
from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from course_pkg.data.requests import Request


def reservations(
    requests: list[Request], memory: int, size_of: Callable[[Request], int]
) -> Iterator[tuple[list[tuple[int, int, int, int]], int]]:
    """Serve requests in unbroken regions, and tell after each step what memory looks like.

    First come, first served: a request gets the first hole that is long enough, and keeps its
    region until it ends. In each step every running sequence gets one more token.

    Args:
        requests: in the order of their arrival.
        memory: how many slots there are.
        size_of: how many slots to reserve for a request, at least those it will use.
    Yields:
        The regions, as (start, size, now, final), and the size that the next request needs, for
        every step in which a request waits.
    """
    coming, running, step = deque(requests), [], 0
    while coming or running:
        while coming and coming[0].arrival <= step:
            size = size_of(coming[0])
            start = _first_hole(running, memory, size)
            if start is None:
                break
            request = coming.popleft()
            final = request.prompt + request.output
            running.append((start, size, request.prompt, final))
        running = [(start, size, now + 1, final) for start, size, now, final in running]
        if coming and coming[0].arrival <= step:
            yield running, size_of(coming[0])
        running = [region for region in running if region[2] < region[3]]
        step += 1


def paged_reservations(
    requests: list[Request], memory: int, block_size: int
) -> Iterator[tuple[list[tuple[int, int, int, int]], int]]:
    """Serve requests in blocks, and tell after each step what memory looks like.

    As `reservations`, but a sequence gets a block whenever its last one is full. If there is none,
    the latest sequence loses its blocks and starts again later.

    Args:
        requests: in the order of their arrival.
        memory: how many slots there are.
        block_size: slots in a block.
    Yields:
        The blocks as regions (start, size, now, final), and the size of a block, for every step in
        which a request waits.
    """
    coming, step = deque(requests), 0
    free = list(range(memory // block_size))
    running: list[tuple[Request, list[int], int]] = []  # (request, its blocks, its tokens)
    while coming or running:
        work, running = running, []
        while work:
            request, blocks, now = work.pop(0)
            while not free and now == len(blocks) * block_size and work:
                last, given_back, _ = work.pop()
                free += given_back
                coming.appendleft(last)
            if not free and now == len(blocks) * block_size:
                free += blocks
                coming.appendleft(request)
                break
            if now == len(blocks) * block_size:
                blocks.append(free.pop())
            running.append((request, blocks, now + 1))
        while coming and coming[0].arrival <= step:
            needed = math.ceil((coming[0].prompt + 1) / block_size)
            if needed > len(free):
                break
            blocks = [free.pop() for _ in range(needed)]
            running.append((coming[0], blocks, coming.popleft().prompt + 1))
        if coming and coming[0].arrival <= step:
            yield _regions(running, block_size), block_size
        for request, blocks, now in running:
            if now == request.prompt + request.output:
                free += blocks
        running = [entry for entry in running if entry[2] < sum(entry[0][1:])]
        step += 1


def _regions(running, S: int) -> list[tuple[int, int, int, int]]:
    return [
        (block * S, S, min(now - place * S, S), min(sum(request[1:]) - place * S, S))
        for request, blocks, now in running
        for place, block in enumerate(blocks)
    ]


def _first_hole(running, memory: int, size: int) -> int | None:
    end = 0
    for start, taken, _, _ in [*sorted(running), (memory, 0, 0, 0)]:
        if start - end >= size:
            return end
        end = start + taken
    return None


class ContiguousEngine:
    """Serve prompts with a cache that reserves the longest possible sequence for each.

    Args:
        model: as for the paged Engine; see `course_pkg.inference.models`.
        memory: how many slots the cache has.
        longest: how many of them each sequence gets.
        continuous: whether a request takes a place as soon as one is free; otherwise all places
            are filled together, when the last of their sequences has ended (static batching).
    """

    def __init__(self, model, memory: int, longest: int, continuous: bool):
        L, G, D_h = model.shape
        self.model, self.continuous = model, continuous
        shape = L, memory // longest, longest, G, D_h
        self.K = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.V = torch.zeros_like(self.K)
        self.waiting: deque[tuple[int, list[int], int]] = deque()
        self.places: dict[int, tuple[int, list[int], int]] = {}  # (number, tokens, final length)
        self.done: dict[int, list[int]] = {}
        self.batches: list[int] = []  # how many sequences ran in each step

    def generate(self, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
        """Continue prompts with their best tokens, each by its own count."""
        for number, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            self.waiting.append((number, list(prompt), len(prompt) + count))
        while self.waiting or self.places:
            self.step()
        return [self.done[n][len(prompt) :] for n, prompt in enumerate(prompts)]

    @property
    def steps(self) -> int:
        return len(self.batches)

    def step(self) -> None:
        """Add one token to every running sequence; those admitted now read their prompts first."""
        work = [(place, len(tokens) - 1) for place, (_, tokens, _) in self.places.items()]
        if self.continuous or not self.places:
            for place in range(self.K.shape[1]):
                if self.waiting and place not in self.places:
                    self.places[place] = self.waiting.popleft()
                    work.append((place, 0))
        for (place, _), token in zip(work, self._best_tokens(work), strict=True):
            number, tokens, final = self.places[place]
            tokens.append(token)
            if len(tokens) == final:
                self.done[number] = tokens
                del self.places[place]
        self.batches.append(len(work))

    @torch.no_grad()
    def _best_tokens(self, work: list[tuple[int, int]]) -> list[int]:
        """Read the tokens of some places from a position on, and take the best next ones."""
        tokens, positions, places, groups = [], [], [], {}
        for place, start in work:
            new = self.places[place][1][start:]
            rows = range(len(tokens), len(tokens) + len(new))
            groups.setdefault(len(new), []).append((list(rows), place, start + len(new)))
            tokens += new
            positions += range(start, start + len(new))
            places += [place] * len(new)
        where = torch.tensor(places), torch.tensor(positions)
        ready = [tuple(map(torch.tensor, zip(*group, strict=True))) for group in groups.values()]

        def attend(layer: int, Q: Tensor, new_keys: Tensor, new_values: Tensor) -> Tensor:
            self.K[layer][where], self.V[layer][where] = new_keys, new_values
            Y = torch.empty_like(Q)
            for rows, at, lengths in ready:
                whole = len(at) == self.K.shape[1] and bool((at == torch.arange(len(at))).all())
                longest = int(lengths.max())
                keys, values = (
                    X[layer][:, :longest] if whole else X[layer][at, :longest]
                    for X in (self.K, self.V)
                )
                Y[rows] = contiguous_attention(Q[rows], keys, values, lengths)
            return Y

        last = [rows[-1] for group in groups.values() for rows, _, _ in group]
        order = [place for group in groups.values() for _, place, _ in group]
        logits = self.model(torch.tensor(tokens), where[1], attend, torch.tensor(last))
        best = dict(zip(order, logits.argmax(dim=1).tolist(), strict=True))
        return [best[place] for place, _ in work]


def contiguous_attention(Q: Tensor, K: Tensor, V: Tensor, lengths: Tensor) -> Tensor:
    """Attend from the last T of each sequence's positions to keys and values side by side.

    Args:
        Q: (B, T, H, D_h).
        K, V: (B, N, G, D_h).
        lengths: (B,), how many of the N positions each sequence uses.
    Returns:
        The outputs, (B, T, H, D_h).
    """
    T, N = Q.shape[1], K.shape[1]
    last = lengths[:, None] - T + torch.arange(T, device=Q.device)  # (B, T)
    allowed = torch.arange(N, device=Q.device) <= last[:, :, None]  # (B, T, N)
    Q, K, V = (X.transpose(1, 2) for X in (Q, K, V))
    Y = functional.scaled_dot_product_attention(
        Q, K, V, attn_mask=allowed[:, None], scale=1 / math.sqrt(Q.shape[-1]), enable_gqa=True
    )
    return Y.transpose(1, 2)
