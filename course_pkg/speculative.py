"""Fewer passes: a draft is written cheaply and judged at once.

Shapes: k drafted tokens, T tokens of a text, V tokens in the vocabulary.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from course_pkg.engine.requests import HISTORY, EngineConfig, SchedulerOutput
from course_pkg.gpt import token_probabilities
from course_pkg.inference.decoding import demand_numbers
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
    the guess goes on with what it has guessed. (after Saxena 2023)

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


def tree_mask(parents: list[int], past: int = 0) -> Bool[Tensor, "M past+M"]:
    """Let each node of a tree of drafts see what stands before the tree, its ancestors and itself.

    mask[i, s] = s < past, or node s - past is i, its parent, the parent of that, …

    So a node sees what it would see if its path were the whole text, and a row has past + 1 + depth
    places that are True. (Miao et al. 2024; Cai et al. 2024)

    Args:
        parents: of each node the number of its parent, which is smaller than its own. Node 0 is
            the root, the last token of the text, and has -1.
        past: how many tokens of the text stand before node 0.
    Returns:
        The mask, boolean, True = may attend.
    Raises:
        ValueError: parents[0] is not -1, or the parent of another node is not one before it.
    """
    mask = torch.zeros(len(parents), past + len(parents), dtype=torch.bool)
    mask[:, :past] = True
    for node, parent in enumerate(parents):
        if not (0 <= parent < node if node else parent == -1):
            raise ValueError(f"the parent of node {node} cannot be {parent}")
        if node:
            mask[node] = mask[parent]
        mask[node, past + node] = True
    return mask


def accept_path(parents: list[int], tokens: list[int], best: list[int]) -> list[int]:
    """Follow the target's best tokens through a tree of drafts, as far as the tree has them.

    The path begins at node 0. From node i it goes on to the child of i that holds best[i], and it
    ends where no child does. So the new tokens of the text are `best` at the nodes of the path: the
    drafts that are accepted, and one that the target adds itself. (Miao et al. 2024, Algorithm 2,
    VerifyGreedy)

    Args:
        parents: as in `tree_mask`.
        tokens: the token of each node; no two children of a node hold the same.
        best: the target's best token after each node.
    Returns:
        The nodes of the path, node 0 first.
    Raises:
        ValueError: the three lists have not the same length.
    """
    if not len(parents) == len(tokens) == len(best):
        raise ValueError(f"{len(parents)} nodes have {len(tokens)} tokens, {len(best)} best ones")
    children = {(parents[i], tokens[i]): i for i in range(1, len(parents))}
    path = [0]
    while (best_child := (path[-1], best[path[-1]])) in children:
        path.append(children[best_child])
    return path


class SpeculativeCore(EngineCore):
    """Serve requests as `EngineCore` does, with several tokens for a sequence in one step.

    Attributes:
        drafted, accepted: how many tokens were drafted so far, and how many of them accepted.

    Args:
        model, config: as in `EngineCore`.
        k: how many tokens to draft for each sequence at most.
        propose: called with the tokens of a sequence and how many to draft, returns as many or
            fewer: such as `prompt_lookup`.
    """

    def __init__(
        self,
        model: Any,
        config: EngineConfig,
        k: int = 4,
        propose: Callable[[list[int], int], list[int]] = prompt_lookup,
    ):
        super().__init__(model, config)
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

    def plan(self, drafts: dict[int, list[int]]) -> SchedulerOutput:
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


def prompt_lookup_fault() -> tuple[str, tuple[list[int], int]]:
    """Say what is wrong with the black box of `prompt_lookup`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `prompt_lookup` does.
    """
    tokens = [1, 2, 1, 3, 1]  # token 1 has come twice before
    return "C", (tokens, 1)  # the second time 3 followed; the box guesses 2, which followed first
