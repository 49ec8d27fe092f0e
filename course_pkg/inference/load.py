"""Measure a scheduler under a load, on a clock that counts what a model would cost.

What comes out does not depend on the machine: no model runs, and no second is measured.
"""

from collections import deque
from typing import Any, NamedTuple

from course_pkg.data.requests import Request


class Cost(NamedTuple):
    """What a step takes, in milliseconds, on a GPU that reads and computes at given speeds.

    The defaults are those of a model with 13 billion parameters in float16 on an A100 (312 TFLOP/s,
    of which half is reached; 1.56 TB/s; 25 GB/s to the host): 26 GB of weights, two operations for
    each weight and token, 0.82 MB of keys and values for each token, 80 copies for each block, one
    for the keys and one for the values of each layer.

    Attributes:
        weights: to read all weights once, however many tokens there are.
        token: to compute a token.
        key: to read the keys and values of one position, in all layers.
        slot: to move those of one position to the host or back.
        block: to begin the copies of one block.
    """

    weights: float = 26e9 / 1.56e12 * 1e3
    token: float = 2 * 13e9 / 156e12 * 1e3
    key: float = 0.82e6 / 1.56e12 * 1e3
    slot: float = 0.82e6 / 25e9 * 1e3
    block: float = 80 * 5e-3

    def step(self, tokens: int, keys: int, blocks: int = 0, block_size: int = 0) -> float:
        """Give the time of a step, max(weights, tokens · token) + keys · key + the copies.

        Args:
            tokens: how many are computed; while there are few, reading the weights takes longer.
            keys: how many positions their sequences have, which attention reads.
            blocks: how many blocks are copied to the host or back.
            block_size: slots in a block.
        """
        computed = max(self.weights, tokens * self.token) if tokens else 0.0
        return computed + keys * self.key + blocks * (self.block + block_size * self.slot)


class Served(NamedTuple):
    """When the tokens of one request came, in milliseconds.

    Attributes:
        arrival: when the request came.
        times: when each of its tokens was there.
    """

    arrival: float
    times: list[float]

    @property
    def first(self) -> float:
        """Give the time to the first token."""
        return self.times[0] - self.arrival

    @property
    def gaps(self) -> list[float]:
        """Give the times between one token and the next."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]

    @property
    def normalised(self) -> float:
        """Give the latency for each token: all the time, over the tokens (Kwon et al. 2023, §6)."""
        return (self.times[-1] - self.arrival) / len(self.times)


def serve(
    scheduler: Any,
    load: list[Request],
    cost: Cost | None = None,
    prompts: list[list[int]] | None = None,
    longest: int | None = None,
    computed: list[int] | None = None,
) -> list[Served]:
    """Let a scheduler of serving serve requests that come one after the other.

    Args:
        scheduler: a `Scheduler` of serving, or one of its subclasses, with nothing to do.
        load: the requests; their arrivals are read as milliseconds.
        cost: what steps take.
        prompts: the text of each request, as long as the request says; of its own when None, so
            that nothing is found in the cache.
        longest: how many slots to set aside for each request, by a scheduler that does; as many
            as it will need when None.
        computed: a list to which every step appends how many tokens it computes.
    Returns:
        What became of each request.
    Raises:
        RuntimeError: requests wait, but none can run.
    """
    cost = Cost() if cost is None else cost
    N, S = len(scheduler.manager.allocator.references), scheduler.manager.block_size
    coming, served, now = deque(enumerate(load)), [Served(each.arrival, []) for each in load], 0.0
    while coming or scheduler.running or scheduler.waiting:
        if coming and not scheduler.running and not scheduler.waiting:
            now = max(now, coming[0][1].arrival)
        while coming and coming[0][1].arrival <= now:
            number, request = coming.popleft()
            text = [-1 - number] * request.prompt if prompts is None else prompts[number]
            scheduler.add(number, text, longest or request.prompt + request.output - 1)
        work, copies = scheduler.schedule()
        if not work:
            raise RuntimeError(f"{len(scheduler.waiting)} requests wait, but none can run")
        moved = sum(source >= N or target >= N for source, target in copies)
        tokens = sum(stop - start for _, start, stop in work)
        if computed is not None:
            computed.append(tokens)
        now += cost.step(tokens, sum(stop for _, _, stop in work), moved, S)
        for number, _, stop in work:
            scheduler.advance(number, stop)
            if scheduler.is_computed(number):
                served[number].times.append(now)
                scheduler.append(number, -1 - number)
                if len(served[number].times) == load[number].output:
                    scheduler.remove(number)
    return served
