"""More tokens for each pass and fewer bytes for each token: speculation and quantisation.

Shapes: k drafted tokens, T tokens of a text, V tokens in the vocabulary.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.attention import causal_mask, masked_softmax, merge_heads, split_heads
from course_pkg.engine.requests import HISTORY, Plan
from course_pkg.gpt import token_probabilities
from course_pkg.inference.decoding import demand_numbers
from course_pkg.inference.latent_cache import LatentCache
from course_pkg.llama import RMSNorm
from course_pkg.paged_attention import PagedKVCache
from course_pkg.positions import rope_rotate
from course_pkg.serving import EngineCore


def draw_token(p: Float[Tensor, "V"], u: float) -> int:
    """Turn a uniform number into a token: the inverse of the distribution function.

    The token is the first v for which p_0 + … + p_v > u (p_0 + … + p_{V-1}), so that it is v with
    probability p_v / Σ p, and never one whose p is 0.

    Args:
        p: weights of the tokens, none negative and not all 0; they need not sum to one.
        u: a number from [0, 1), as `torch.rand` draws it.
    Returns:
        The token.
    """
    reached = p.double().cumsum(dim=0)
    return int((reached <= u * reached[-1]).sum())


def accept_or_resample(
    p: Float[Tensor, "k+1 V"],
    q: Float[Tensor, "k V"],
    drafted: Int[Tensor, "k"],
    u: Float[Tensor, "k+1"],
) -> Int[Tensor, "n+1"]:
    """Keep drafted tokens as long as they pass, and draw one more, all as the target would.

    Token x = drafted[i] is accepted if u_i < p_i(x) / q_i(x). At the first one that is not, n, the
    last token is drawn from max(p_n - q_n, 0) in proportion; if all k are accepted, from p_k. It is
    drawn with u_k by `draw_token`. What comes out is distributed as if the target had drawn every
    token, whatever q is. (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2)

    Args:
        p: the target's probabilities: row i those of the token after the first i drafted ones.
        q: the draft's, from which the drafted tokens were drawn.
        drafted: the tokens.
        u: uniform numbers from [0, 1): one for each drafted token, and one for the last token.
    Returns:
        The n ≤ k tokens that were accepted, and the one that was drawn.
        Where rounding leaves nothing of max(p_n - q_n, 0), p_n takes its place.
    Raises:
        ValueError: p or u has not one row more than there are drafted tokens, or q not as many.
    """
    k = len(drafted)
    if not len(p) == len(u) == k + 1 == len(q) + 1:
        raise ValueError(f"{k} tokens need {k + 1} rows of p and u, got {len(p)}, {len(u)}")
    accepted, last = k, p[k]
    for n, token in enumerate(drafted.tolist()):
        if u[n] * q[n, token] >= p[n, token]:
            residual = (p[n] - q[n]).clamp(min=0)
            accepted, last = n, residual if residual.any() else p[n]
            break
    return torch.cat([drafted[:accepted], drafted.new_tensor([draw_token(last, u[k])])])


class Speculator:
    """Let a small model draft tokens, and a large one judge several of them in one pass.

    A model is called with tokens (1, M) and its caches, and returns logits (1, M, V);
    `new_caches(1, capacity)` makes its caches, each a `KVCache`: so does `Llama`.

    Attributes:
        target_caches, draft_caches: what the models have read, for each of their layers.
        lengths: how many tokens the caches of the target and of the draft hold.
        history: (how many tokens were drafted, how many of them accepted) for each step.

    Args:
        target: the model whose text it is.
        draft: the model that drafts, of the same vocabulary; None if drafts come from elsewhere.
        capacity: how many tokens there is room for in each cache.
        temperature: as in `token_probabilities`, for both models.
    """

    def __init__(self, target: Any, draft: Any, capacity: int, temperature: float = 1.0):
        self.target, self.draft = target, draft
        self.capacity, self.temperature = capacity, temperature
        self.target_caches = target.new_caches(1, capacity)
        self.draft_caches = [] if draft is None else draft.new_caches(1, capacity)
        self.history: list[tuple[int, int]] = []

    @property
    def lengths(self) -> tuple[int, int]:
        caches = self.target_caches, self.draft_caches
        return tuple(each[0].length if each else 0 for each in caches)

    @torch.no_grad()
    def read(self, model: Any, caches: list, text: Int[Tensor, "T"]) -> Float[Tensor, "M V"]:
        """Read what caches lack of a text, in one pass: the probabilities after each such token."""
        unread = text[caches[0].length :]
        return token_probabilities(model(unread[None], caches)[0], self.temperature)

    def propose(
        self, text: Int[Tensor, "T"], k: int, u: Float[Tensor, "k"]
    ) -> tuple[Int[Tensor, "k"], Float[Tensor, "k V"] | None]:
        """Draft k tokens with the draft model: token i is drawn with u_i by `draw_token`.

        The draft reads what it needs for that and no more: not the last token that it drafts.

        Returns:
            The tokens, and the probabilities that each was drawn from; None for the probabilities
            if there was no choice: then q is 1 at each drafted token.
        """
        ### BEGIN SOLUTION
        T, q = len(text), []
        for n in range(k):
            q.append(self.read(self.draft, self.draft_caches, text)[-1])
            text = torch.cat([text, text.new_tensor([draw_token(q[n], u[n])])])
        return text[T:], torch.stack(q) if q else None
        ### END SOLUTION

    def speculative_step(
        self, text: Int[Tensor, "T"], k: int, u: Float[Tensor, "2k+1"]
    ) -> Int[Tensor, "n+1"]:
        """Add one to k + 1 tokens to a text, with one pass of the target.

        The draft proposes up to k tokens; the target reads what it has not read, the drafted tokens
        included, in one pass; `accept_or_resample` decides. Then the caches forget what is not part
        of the text: they hold at most all of it but its last token, which nobody has read. The
        history gets one more entry. (Leviathan et al. 2023, §2.3)

        Args:
            text: the text so far, of which the caches hold a beginning; at least one token more.
            k: how many tokens to draft.
            u: uniform numbers: the first k for `propose`, the others for `accept_or_resample`;
                with fewer than k drafted tokens, some of the last are not needed.
        Returns:
            The new tokens.
        """
        ### BEGIN SOLUTION
        drafted, q = self.propose(text, k, u[:k])
        m = len(drafted)
        p = self.read(self.target, self.target_caches, torch.cat([text, drafted]))[-m - 1 :]
        if q is None:
            q = functional.one_hot(drafted, p.shape[1]).to(p)
        tokens = accept_or_resample(p, q, drafted, u[k : k + m + 1])
        self.rollback(len(text) + len(tokens) - 1)
        self.history.append((m, len(tokens) - 1))
        return tokens
        ### END SOLUTION

    def rollback(self, length: int) -> None:
        """Let both models forget all but the first tokens; a cache with fewer stays as it is."""
        ### BEGIN SOLUTION
        for cache in self.target_caches + self.draft_caches:
            cache.truncate(min(length, cache.length))
        ### END SOLUTION


def prompt_lookup(tokens: list[int], k: int, longest: int = 3) -> list[int]:
    """Guess the next tokens from the text itself: what followed its last words when they came last.

    For n = longest, longest - 1, …, 1: if the last n tokens occur earlier in the text, the guess is
    what follows them where they do so last. The two occurrences may overlap; where the text ends,
    the guess goes on with what it has guessed. (Saxena 2023)

    Args:
        tokens: the text; it is not changed.
        k: how many tokens to guess.
        longest: how many tokens to compare at most.
    Returns:
        k tokens; none if not even the text's last token occurs earlier.
    Raises:
        ValueError: k is negative, or longest less than 1.
    """
    if k < 0 or longest < 1:
        raise ValueError(f"k is {k} and longest {longest}: one is too small")
    for n in range(min(longest, len(tokens) - 1), 0, -1):
        for start in reversed(range(len(tokens) - n)):
            if tokens[start : start + n] == tokens[-n:]:
                text = list(tokens)
                for place in range(start + n, start + n + k):
                    text.append(text[place])
                return text[len(tokens) :]
    return []


class SpeculativeWriter(Speculator):
    """Write texts with few passes of the target; a draft of None is the text itself.

    Args:
        target, draft, capacity, temperature: as in `Speculator`.
    """

    def propose(
        self, text: Int[Tensor, "T"], k: int, u: Float[Tensor, "k"]
    ) -> tuple[Int[Tensor, "m"], Float[Tensor, "m V"] | None]:
        """Draft as `Speculator` does, or without a draft model by `prompt_lookup`, m ≤ k tokens.

        They have the dtype of the text, also if there are none.
        """
        if self.draft is not None:
            return super().propose(text, k, u)
        ### BEGIN SOLUTION
        return text.new_tensor(prompt_lookup(text.tolist(), k)), None
        ### END SOLUTION

    def speculative_generate(
        self,
        text: Int[Tensor, "T"],
        count: int,
        k: int,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "T+count"]:
        """Continue a text by exactly `count` tokens, distributed as the target's own.

        The caches are emptied first, and the history goes on. No step drafts more than can be kept:
        with c tokens to come, at most m = min(k, c - 1). For each, `torch.rand` draws 2 m + 1
        numbers in float64, however many drafts there are in the end.

        Args:
            text: the text; it is not changed.
            count: how many tokens to add.
            k: how many tokens to draft in a step at most.
            generator: the source of randomness, on the CPU; torch's own when None.
        Returns:
            The longer text.
        Raises:
            ValueError: the text is empty, or the T + count - 1 tokens that may have to be read are
                more than the capacity; then nothing has changed.
        """
        ### BEGIN SOLUTION
        end = len(text) + count
        if not len(text) or end - 1 > self.capacity:
            raise ValueError(f"{end - 1} tokens to read, and room for {self.capacity}")
        self.rollback(0)
        while len(text) < end:
            m = min(k, end - len(text) - 1)
            u = torch.rand(2 * m + 1, generator=generator, dtype=torch.float64)
            text = torch.cat([text, self.speculative_step(text, m, u.to(text.device))])
        return text
        ### END SOLUTION


def expected_tokens(alpha: float, k: int) -> float:
    """Say how many tokens a step adds on average, if each draft is accepted independently.

    1 + α + α² + … + α^k = (1 - α^(k+1)) / (1 - α), and k + 1 for α = 1
    (Leviathan et al. 2023, eq. 1)

    Args:
        alpha: the probability that a drafted token is accepted.
        k: how many tokens are drafted.
    Returns:
        The mean number of tokens, the one that the target draws itself included.
    Raises:
        ValueError: alpha is not in [0, 1], or k is negative.
    """
    if not 0 <= alpha <= 1 or k < 0:
        raise ValueError(f"alpha is {alpha} and k {k}: one is out of its range")
    return k + 1 if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


def best_draft_length(alpha: float, cost: float, most: int = 32) -> int:
    """Choose how many tokens to draft, so that the most tokens come for the time that it takes.

    A step of k drafts takes as long as k · cost + 1 passes of the target: choose the k for which
    expected_tokens(α, k) / (k · cost + 1) is largest. (Leviathan et al. 2023, Theorem 3.8)

    Args:
        alpha: the probability that a drafted token is accepted.
        cost: how long a pass of the draft takes, as a share of one of the target.
        most: the largest k to consider.
    Returns:
        k, from 0, which is not to speculate at all, to most; of several best, the smallest.
    Raises:
        ValueError: alpha is not in [0, 1], or cost is negative.
    """
    if cost < 0:
        raise ValueError(f"cost must not be negative, got {cost}")
    return max(range(most + 1), key=lambda k: expected_tokens(alpha, k) / (k * cost + 1))


class SpeculativeCore(EngineCore):
    """Serve requests as `EngineCore` does, with several tokens for a sequence in one step.

    Attributes:
        drafted, accepted: how many tokens were drafted so far, and how many of them accepted.

    Args:
        settings: as in `EngineCore`.
        k: how many tokens to draft for each sequence at most.
        propose: called with the tokens of a sequence and how many to draft, returns as many or
            fewer: such as `prompt_lookup`.
    """

    def __init__(
        self,
        *settings: Any,
        k: int = 4,
        propose: Callable[[list[int], int], list[int]] = prompt_lookup,
        **named: Any,
    ):
        super().__init__(*settings, **named)
        self.k, self.propose = k, propose
        self.drafted = self.accepted = 0

    def step(self) -> list[tuple[int, int]]:
        """Compute what the scheduler chooses and judge drafts; add one or more tokens to each.

        The blocks of the plan are copied, and one call of the runner computes the `pieces` of all
        sequences. What `EngineCore` says about errors holds here too.

        Returns:
            (number, token) for every token that was added, those of a sequence in their order.
        """
        drafts = self.drafts()
        plan = self.plan(drafts)
        if not plan.work and self.scheduler.waiting:
            raise RuntimeError("sequences wait, but none can run")
        numbers = [number for number, _, _ in plan.work]
        try:
            # rows: by the number of each sequence, the logits (pieces, V) after its pieces.
            ### BEGIN SOLUTION
            self.runner.copy(plan.copies)
            pieces = [self.pieces(*row, drafts.get(row[0], [])) for row in plan.work]
            logits = self.runner.forward([piece for each in pieces for piece in each])
            rows = dict(zip(numbers, logits.split([*map(len, pieces)]), strict=True))
            ### END SOLUTION
            judged = {n: self.judge(n, drafts[n], rows[n]) for n in numbers if n in drafts}
            drawn = {
                number: self.draw(number, rows[number][0])
                for number, _, stop in plan.work
                if stop == len(self.sequences[number].tokens)
            }
        except BaseException:
            self.scheduler.undo(plan.work)
            raise
        added = []
        for number, _, stop in plan.work:
            if number in judged:
                pairs = self.keep(number, *judged[number])
                new = [token for _, token in pairs]
                self.drafted += len(drafts[number])
                self.accepted += sum(map(operator.eq, new, drafts[number]))
            else:
                self.scheduler.advance(number, stop)
                pairs = self.write(number, drawn[number]) if number in drawn else []
            added += pairs
        self.history.append(self.counters(len(plan.work)))
        del self.history[:-HISTORY]
        return added

    def drafts(self) -> dict[int, list[int]]:
        """Propose tokens for the sequences of which all but the last token is computed.

        Drafts take only what is left: no sequence gets any while others wait, none makes another
        lose its blocks or its share of the budget, and none drafts more than it may keep. One with
        a `min_p`, which `judge` does not know, gets none.

        Returns:
            At least one token for each number that gets any.
        """
        scheduler, found = self.scheduler, {}
        if scheduler.waiting:
            return found
        running = [(number, self.sequences[number]) for number in scheduler.running]
        new = {number: len(each.tokens) - each.num_computed for number, each in running}
        room = scheduler.max_num_batched_tokens - sum(new.values())
        blocks = scheduler.manager.allocator.available
        blocks -= sum(each.block_table.missing(new[number]) for number, each in running)
        for number, each in running:
            left = each.prompt_length + each.sampling.max_tokens - len(each.tokens)
            k = min(self.k, left - 1, room)
            is_plain = each.sampling.beams == 1 and not each.sampling.min_p
            if new[number] > 1 or each.forks or not is_plain or k < 1:
                continue
            drafted = self.propose(list(each.tokens), k)[:k]
            missing = each.block_table.missing
            extra = missing(1 + len(drafted)) - missing(1)
            if drafted and extra <= blocks:
                found[number] = drafted
                room, blocks = room - len(drafted), blocks - extra
        return found

    def plan(self, drafts: dict[int, list[int]]) -> Plan:
        """Let the scheduler plan a step as if the drafts were tokens of their sequences."""
        for number, drafted in drafts.items():
            self.sequences[number].tokens += drafted
        try:
            return self.scheduler.schedule()
        finally:
            for number, drafted in drafts.items():
                del self.sequences[number].tokens[-len(drafted) :]

    def pieces(
        self, number: int, start: int, stop: int, drafted: list[int]
    ) -> list[tuple[list[int], int, list[int]]]:
        """Give the model runner what it needs of a sequence, so that it scores after each draft.

        It gives logits after the last token of each piece. So the tokens start … stop-1 of the
        sequence are one piece, and each drafted token, which follow them, is one by itself.

        Args:
            number: the sequence.
            start, stop: the positions that are planned, those of the drafts included.
            drafted: the tokens drafted for it; none if empty.
        Returns:
            (tokens, position of the first, blocks of the sequence) for each piece.
        """
        ### BEGIN SOLUTION
        middle = stop - len(drafted)
        tokens, _, blocks = self.piece(number, start, middle)
        return [
            (tokens, start, blocks),
            *(([token], middle + n, blocks) for n, token in enumerate(drafted)),
        ]
        ### END SOLUTION

    def judge(
        self, number: int, drafted: list[int], logits: Float[Tensor, "k+1 V"]
    ) -> tuple[list[int], torch.Generator]:
        """Decide with `accept_or_resample` which tokens a sequence gets; change nothing.

        The sequence's temperature, top_k and top_p make the target's probabilities; its drafts were
        certain, q = 1. The k + 1 uniform numbers are drawn with `torch.rand` in float64.

        Args:
            number: the sequence.
            drafted: k tokens.
            logits: after the sequence's last token and after each drafted one: k + 1 rows.
        Returns:
            The new tokens, and a generator that has drawn, in place of the sequence's own. A stop
            token (`sampling.stop`, or None) is the last one: what comes after it is dropped.
        """
        if len(logits) != len(drafted) + 1:
            raise ValueError(
                f"{len(drafted)} drafts need {len(drafted) + 1} rows of logits, got {len(logits)}: "
                "is each draft a piece by itself?"
            )
        for row in logits:
            demand_numbers(row, number)
        sampling = self.sequences[number].sampling
        generator = self.sequences[number].generator.clone_state()
        ### BEGIN SOLUTION
        settings = sampling.temperature, sampling.top_k, sampling.top_p
        p, tokens = token_probabilities(logits, *settings).cpu(), torch.tensor(drafted)
        q = functional.one_hot(tokens, p.shape[1]).to(p)
        u = torch.rand(len(p), generator=generator, dtype=torch.float64)
        new = accept_or_resample(p, q, tokens, u).tolist()
        if sampling.stop in new:
            new = new[: new.index(sampling.stop) + 1]
        return new, generator
        ### END SOLUTION

    def keep(
        self, number: int, tokens: list[int], generator: torch.Generator
    ) -> list[tuple[int, int]]:
        """Add tokens to a sequence, and give back the blocks beyond what stays computed.

        What stays computed is all but its last token. The scheduler's `cut` gives back blocks, and
        `advance` names those that are full: by then the table and the tokens must be right. The
        sequence ends if that was its last token, see `finish`.

        Returns:
            (number, token) for each.
        """
        ### BEGIN SOLUTION
        sequence = self.sequences[number]
        sequence.generator = generator
        for token in tokens:
            self.scheduler.append(number, token)
        sequence.num_computed = len(sequence.tokens) - 1
        self.scheduler.cut(number)
        self.scheduler.advance(number, sequence.num_computed)
        self.finish(number)
        ### END SOLUTION
        return [(number, token) for token in tokens]


def quantise(
    X: Float[Tensor, "..."],
    bits: int,
    dims: int | tuple[int, ...],
    group: int | None = None,
    symmetric: bool = False,
) -> tuple[Int[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Replace numbers by small integers, a scale and a zero point.

    with a zero point:   z = min X,   s = (max X - min X) / (2^bits - 1),   q = round((X - z) / s)
    symmetric:           z = 0,       s = max |X| / (2^(bits-1) - 1),        q = round(X / s)

    Minimum and maximum are taken over the numbers that share a scale. Where s would be 0, it is 1:
    all these numbers are z. (Liu et al. 2024 with a zero point)

    Args:
        X: the numbers, finite. If they are in half precision, s and z are rounded to it, and then
            q is computed from them in float32, and kept within its range.
        bits: of an integer, 2 to 8.
        dims: the axis or axes along which numbers share a scale and a zero point. Where X has a
            token in each row and a channel in each column, (0, 1) gives one scale for the whole
            tensor, 0 one for each channel, and 1 one for each token.
        group: how many neighbours along the axis share a scale; then dims names one axis. All of
            them when None.
        symmetric: whether the zero point is 0.
    Returns:
        q in X's shape: uint8 from 0 to 2^bits - 1, or, symmetric, int8 from -(2^(bits-1) - 1) to
        2^(bits-1) - 1. Then s and z in X's dtype; their axes are as long as X's, but those in dims
        have length 1, or as many as there are groups.
    Raises:
        ValueError: bits is not in 2 … 8; group comes with several axes, or does not divide the
            length of its axis.
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"an integer must have 2 to 8 bits, got {bits}")
    shape, dims = X.shape, (dims,) if isinstance(dims, int) else tuple(dims)
    if group is not None:
        axis = dims[0] % X.dim()
        if len(dims) > 1 or shape[axis] % group:
            raise ValueError(f"axes {dims} of {tuple(shape)} cannot be cut into groups of {group}")
        X, dims = X.unflatten(axis, (shape[axis] // group, group)), (axis + 1,)
    precise = X.to(torch.promote_types(X.dtype, torch.float32))
    if symmetric:
        low, high = 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1
        scale = precise.abs().amax(dims, keepdim=True) / high
        zero = torch.zeros_like(scale)
    else:
        low, high = 0, 2**bits - 1
        zero = precise.amin(dims, keepdim=True)
        scale = (precise.amax(dims, keepdim=True) - zero) / high
    scale, zero = scale.to(X.dtype), zero.to(X.dtype)
    scale = torch.where(scale == 0, 1, scale)
    # A scale that X's dtype has rounded down would give the largest number one integer too many.
    Q = torch.round((precise - zero) / scale).clamp(low, high)
    if group is not None:
        scale, zero = scale.squeeze(axis + 1), zero.squeeze(axis + 1)
    return Q.to(torch.int8 if symmetric else torch.uint8).reshape(shape), scale, zero


def dequantise(
    Q: Int[Tensor, "..."], scale: Float[Tensor, "..."], zero: Float[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """Turn the integers of `quantise` back into numbers.

    X̂ = q s + z: no further than s / 2 from X, apart from the rounding of floating-point numbers.

    Args:
        Q: the integers.
        scale, zero: s and z, with as many axes as Q. The length of an axis is that of Q's or 1, or
            it divides that of Q's: then each entry is for a group of neighbours.
    Returns:
        The numbers, in the dtype of s.
    Raises:
        ValueError: the scales cannot be shared equally, or have more or fewer axes than Q.
    """
    for axis, (size, parts) in enumerate(zip(Q.shape, scale.shape, strict=True)):
        if parts not in (1, size):
            if size % parts:
                raise ValueError(f"{size} integers cannot share {parts} scales equally")
            scale = scale.repeat_interleave(size // parts, dim=axis)
            zero = zero.repeat_interleave(size // parts, dim=axis)
    return Q.to(scale.dtype) * scale + zero


def pack_int4(Q: Int[Tensor, "... D"]) -> Int[Tensor, "... D/2"]:
    """Put two integers of four bits into each byte.

    byte_i = q_{2i} + 16 q_{2i+1}: of two neighbours, the first is in the low four bits.

    Args:
        Q: integers from 0 to 15, of any integer dtype.
    Returns:
        The bytes, uint8.
    Raises:
        ValueError: D is odd, or an integer does not lie in 0 … 15.
    """
    if Q.shape[-1] % 2:
        raise ValueError(f"{Q.shape[-1]} integers do not fill bytes of two")
    if ((Q < 0) | (Q > 15)).any():
        raise ValueError("an integer of four bits without a sign lies in 0 … 15")
    Q = Q.to(torch.uint8)
    return Q[..., 0::2] | Q[..., 1::2] << 4


def unpack_int4(packed: Int[Tensor, "... D/2"]) -> Int[Tensor, "... D"]:
    """Take the two integers out of each byte that `pack_int4` has put there.

    q_{2i} = byte_i mod 16,   q_{2i+1} = ⌊byte_i / 16⌋

    Args:
        packed: the bytes, uint8.
    Returns:
        The integers from 0 to 15, uint8.
    """
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


class QuantisedKVCache:
    """Keep the keys and values of one layer in few bits, in the place of a `KVCache`.

    Each value vector has a scale and a zero point. Keys have them for each channel, that is each
    feature of each head, and each group of positions. The keys of the last positions, which do not
    fill a group yet, are the residual: they are kept as they are. (KIVI, Liu et al. 2024, where the
    last values are kept as they are too)

    Args:
        B, G, capacity, D_h: as in `KVCache`.
        bits: of an integer: 8, or 4, two to a byte.
        group: how many positions share the scales of their keys.
        dtype: of scales, zero points and residual, and of what is read.
        device: where all is kept.
    Raises:
        ValueError: bits is neither 8 nor 4, or it is 4 and D_h is odd.

    Attributes:
        length: how many positions are kept.
        bytes: how many bytes there are for `capacity` positions in all tensors together. For each
            sequence and head these are D_h bits / 8 and two numbers of dtype for each value vector;
            D_h bits / 8 for each key vector that can come to lie in a full group, and 2 D_h numbers
            of dtype for each of these ⌊capacity / group⌋ groups; and `group` key vectors of dtype.
    """

    def __init__(
        self,
        B: int,
        G: int,
        capacity: int,
        D_h: int,
        bits: int = 8,
        group: int = 32,
        dtype: torch.dtype = torch.float16,
        device: torch.device | str = "cpu",
    ):
        ### BEGIN SOLUTION
        if bits not in (4, 8) or D_h * bits % 8:
            raise ValueError(f"a cache cannot keep {D_h} features in {bits} bits each")

        def room(positions: int, size: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(B, G, positions, size, dtype=dtype, device=device)

        groups, packed = capacity // group, D_h * bits // 8
        self.K, self.V = (room(n, packed, torch.uint8) for n in (groups * group, capacity))
        self.K_scale, self.K_zero = room(groups, D_h), room(groups, D_h)
        self.V_scale, self.V_zero = room(capacity, 1), room(capacity, 1)
        self.residual = room(group, D_h)
        self.bits, self.group, self.length = bits, group, 0
        ### END SOLUTION

    @property
    def bytes(self) -> int:
        ### BEGIN SOLUTION
        return sum(part.nbytes for part in vars(self).values() if isinstance(part, Tensor))
        ### END SOLUTION

    def append(self, K: Float[Tensor, "B G T D_h"], V: Float[Tensor, "B G T D_h"]) -> None:
        """Add the keys and values of T positions, without their gradients.

        They are first rounded to the cache's dtype. It does not matter in how many calls they come.

        Args:
            K, V: what to add, of any dtype.
        Raises:
            ValueError: K or V does not have shape (B, G, T, D_h), or there is no room for T
                more positions; then nothing has changed.
        """
        ### BEGIN SOLUTION
        (B, G, group, D_h), T = self.residual.shape, K.shape[-2]
        if K.shape != (B, G, T, D_h) or V.shape != K.shape:
            problem = f"K and V should have shape ({B}, {G}, T, {D_h}), got"
            raise ValueError(f"{problem} {tuple(K.shape)} and {tuple(V.shape)}")
        start, end, capacity = self.length, self.length + T, self.V.shape[2]
        if end > capacity:
            raise ValueError(f"{end} positions do not fit into a cache for {capacity}")
        pack = pack_int4 if self.bits == 4 else (lambda Q: Q)
        Q, scale, zero = quantise(V.detach().to(self.residual), self.bits, dims=3)
        self.V[:, :, start:end] = pack(Q)
        self.V_scale[:, :, start:end], self.V_zero[:, :, start:end] = scale, zero
        done, full = start // group, end // group  # how many full groups, before and after
        waiting = self.residual[:, :, : start - done * group]
        keys = torch.cat([waiting, K.detach().to(waiting)], dim=2)
        new, rest = keys.tensor_split([(full - done) * group], dim=2)
        Q, scale, zero = quantise(new, self.bits, dims=2, group=group)
        self.K[:, :, done * group : full * group] = pack(Q)
        self.K_scale[:, :, done:full], self.K_zero[:, :, done:full] = scale, zero
        self.residual[:, :, : rest.shape[2]] = rest
        self.length = end
        ### END SOLUTION

    def read(self) -> tuple[Float[Tensor, "B G N D_h"], Float[Tensor, "B G N D_h"]]:
        """Give the keys and values of all N = length positions, in the cache's dtype.

        Returns:
            K, dequantised and followed by the residual, and V, dequantised: new tensors, which stay
            as they are whatever comes into the cache later.
        """
        ### BEGIN SOLUTION
        N, full = self.length, self.length // self.group
        unpack = unpack_int4 if self.bits == 4 else (lambda packed: packed)
        quantised = unpack(self.K[:, :, : full * self.group])
        K = dequantise(quantised, self.K_scale[:, :, :full], self.K_zero[:, :, :full])
        V = dequantise(unpack(self.V[:, :, :N]), self.V_scale[:, :, :N], self.V_zero[:, :, :N])
        return torch.cat([K, self.residual[:, :, : N - full * self.group]], dim=2), V
        ### END SOLUTION

    def truncate(self, length: int) -> None:
        """Forget all positions but the first ones; what is read of these stays the same.

        Where a full group is cut, its positions that are kept become the residual, as they were
        read: what they were before is lost.

        Args:
            length: how many to keep.
        Raises:
            ValueError: length is negative, or more than are kept.
        """
        ### BEGIN SOLUTION
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} positions")
        start = length // self.group * self.group  # of the residual to come
        if start < self.length // self.group * self.group:
            self.residual[:, :, : length - start] = self.read()[0][:, :, start:length]
        self.length = length
        ### END SOLUTION


class QuantisedPagedCache(PagedKVCache):
    """Keep the keys and values of all sequences and layers in blocks of slots, in few bits.

    Keys and values both have a scale and a zero point for each token. So each slot is a record of
    its own: it does not change when its block is filled further, a block is copied byte by byte,
    and what a sequence finds in a shared block does not depend on who has written it.

    Attributes:
        K, V: the records (L, G, N, S, R), uint8, zeros at first. Each has R = D_h bits / 8 + 4
            bytes: the integers, two to a byte if they have 4 bits; s in float16; z in float16.

    Args:
        L, blocks, block_size, G, D_h: as in `PagedKVCache`.
        bits: of an integer: 8 or 4.
        dtype: of what is gathered; torch's default when None.
        device: of K and V; torch's default when None.
    Raises:
        ValueError: bits is neither 8 nor 4, or it is 4 and D_h is odd.
    """

    def __init__(
        self,
        L: int,
        blocks: int,
        block_size: int,
        G: int,
        D_h: int,
        bits: int = 8,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ):
        ### BEGIN SOLUTION
        if bits not in (4, 8) or D_h * bits % 8:
            raise ValueError(f"a cache cannot keep {D_h} features in {bits} bits each")
        super().__init__(L, blocks, block_size, G, D_h * bits // 8 + 4, torch.uint8, device)
        self.bits, self.dtype = bits, torch.get_default_dtype() if dtype is None else dtype
        ### END SOLUTION

    def encode(self, X: Float[Tensor, "... D_h"]) -> Int[Tensor, "... R"]:
        """Make the records of some vectors, which are first rounded to float16.

        Args:
            X: keys or values.
        Returns:
            The records, uint8.
        """
        ### BEGIN SOLUTION
        Q, scale, zero = quantise(X.half(), self.bits, dims=-1)
        integers = pack_int4(Q) if self.bits == 4 else Q
        return torch.cat([integers, torch.cat([scale, zero], dim=-1).view(torch.uint8)], dim=-1)
        ### END SOLUTION

    def decode(self, records: Int[Tensor, "... R"]) -> Float[Tensor, "... D_h"]:
        """Read the vectors that records hold; one of zeros holds zeros.

        Args:
            records: made by `encode`.
        Returns:
            The vectors, in the cache's dtype.
        """
        ### BEGIN SOLUTION
        integers, numbers = records.split([records.shape[-1] - 4, 4], dim=-1)
        # A copy, because what is read as float16 must begin at an even byte.
        numbers = numbers.clone(memory_format=torch.contiguous_format).view(torch.float16)
        scale, zero = numbers.to(self.dtype).split(1, dim=-1)
        return dequantise(unpack_int4(integers) if self.bits == 4 else integers, scale, zero)
        ### END SOLUTION

    def write(
        self,
        layer: int,
        slots: Int[Tensor, "M"],
        K: Float[Tensor, "M G D_h"],
        V: Float[Tensor, "M G D_h"],
    ) -> None:
        """Store the keys and values of M positions in one layer, as `PagedKVCache` does."""
        ### BEGIN SOLUTION
        super().write(layer, slots, self.encode(K), self.encode(V))
        ### END SOLUTION

    def gather(
        self, layer: int, blocks: list[int], length: int
    ) -> tuple[Float[Tensor, "T G D_h"], Float[Tensor, "T G D_h"]]:
        """Read one sequence's keys and values out of the blocks, as `PagedKVCache` does."""
        ### BEGIN SOLUTION
        K, V = super().gather(layer, blocks, length)
        return self.decode(K), self.decode(V)
        ### END SOLUTION


class QuantisedLinear(nn.Module):
    """Multiply by a matrix that is kept in integers of 8 bits.

    Buffers: Q (D_in, D_out), int8, and scale (groups, D_out): each column, which makes one feature
    of the output, has a symmetric scale of its own, or one for each group of neighbours in it.
    Nothing is trained: the bias is a buffer too.

    Args:
        W: the matrix, for x W; of an `nn.Linear` it is weight.T.
        bias: what is added to the result; nothing when None.
        group: how many neighbours along D_in share a scale; all of them when None.
    Raises:
        ValueError: group does not divide D_in.
    """

    def __init__(
        self,
        W: Float[Tensor, "D_in D_out"],
        bias: Float[Tensor, "D_out"] | None = None,
        group: int | None = None,
    ):
        super().__init__()
        ### BEGIN SOLUTION
        Q, scale, _ = quantise(W.detach(), 8, dims=0, group=group, symmetric=True)
        self.register_buffer("Q", Q)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        ### END SOLUTION

    def forward(self, X: Float[Tensor, "... D_in"]) -> Float[Tensor, "... D_out"]:
        """Compute X Ŵ + bias, with Ŵ the dequantised matrix.

        |y_o - ŷ_o| ≤ Σ_i |x_i| s_io / 2: each entry of the matrix is at most half a step wrong.

        Args:
            X: the vectors.
        Returns:
            The new vectors, in X's dtype.
        """
        ### BEGIN SOLUTION
        W = dequantise(self.Q, self.scale, torch.zeros_like(self.scale)).to(X.dtype)
        return X @ W if self.bias is None else X @ W + self.bias.to(X.dtype)
        ### END SOLUTION


def rotate(
    X: Float[Tensor, "... D"], start: Float[Tensor, "r r"] | None = None
) -> Float[Tensor, "... D"]:
    """Multiply vectors by a Hadamard matrix, divided by √D: it turns them, and spreads outliers.

    H_r = start,   H_{2n} = [[H_n, H_n], [H_n, -H_n]],   Y = X H_D / √D

    D = r 2^m. H_D consists of ±1, and H_D H_Dᵀ / D = I: products of rotated vectors are those of
    the vectors before. (Ashkboos et al. 2024, who rotate the keys and queries of each head after
    RoPE; a rotation before RoPE, which turns pairs of features, would change the scores)

    Args:
        X: the vectors.
        start: a Hadamard matrix of size r; (1), the smallest there is, when None.
    Returns:
        The rotated vectors, in X's dtype.
    Raises:
        ValueError: D is not r times a power of two.
    """
    D = X.shape[-1]
    H = X.new_ones(1, 1) if start is None else start.to(X)
    while len(H) < D:
        H = torch.cat([torch.cat([H, H], dim=1), torch.cat([H, -H], dim=1)])
    if len(H) != D:
        raise ValueError(f"no doubling leads to a Hadamard matrix of size {D}")
    return X @ H / math.sqrt(D)


class LatentAttention(nn.Module):
    """Multi-head latent attention: all heads make their keys and values of one vector for a token.

    Parameters: W_Q (D, H (D_h + D_R)), W_DKV (D, D_c), W_KR (D, D_R), W_UK and W_UV (D_c, H D_h),
    W_O (D, D), drawn from N(0, 1/rows); no biases. norm, an `RMSNorm` of D_c.
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
        self.norm = RMSNorm(D_c)

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
