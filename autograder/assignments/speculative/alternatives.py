"""Correct solutions of speculative by other ways: by sums, by search, in two models' turns."""

import bisect
import itertools
import math

import torch
from torch.nn import functional

from autograder.alternatives import alternative
from course_pkg.gpt import token_probabilities
from course_pkg.speculative import (
    SpeculativeCore,
    SpeculativeWriter,
    Speculator,
    accept_or_resample,
    accept_path,
    best_draft_length,
    draw_token,
    expected_tokens,
    prompt_lookup,
    prompt_lookup_fault,
    tree_mask,
)


@alternative(draw_token)
def by_bisection(p, u):
    reached = list(itertools.accumulate(p.tolist()))
    return bisect.bisect_right(reached, float(u) * reached[-1])


@alternative(draw_token)
def by_search(p, u):
    reached = torch.cumsum(p.double() / p.double().sum(), dim=0)
    place = torch.searchsorted(reached, torch.as_tensor(u, dtype=torch.float64), right=True)
    return int(place.clamp(max=int(p.nonzero().max())))


@alternative(draw_token)
def by_subtraction(p, u):
    left = float(u) * float(p.double().sum())
    for token, weight in enumerate(p.double().tolist()):
        if left < weight:
            return token
        left -= weight
    return int(p.nonzero().max())


@alternative(accept_or_resample)
def at_once(p, q, drafted, u):
    k = len(drafted)
    if p.shape[0] != k + 1 or q.shape[0] != k or u.shape[0] != k + 1:
        raise ValueError
    x = drafted[:, None]
    passed = u[:k, None] * q.gather(1, x) < p[:k].gather(1, x)
    n = int(passed[:, 0].long().cumprod(0).sum())
    last = p[n] - torch.cat([q, torch.zeros_like(p[:1])])[n]
    last = torch.relu(last)
    last = last if last.sum() > 0 else p[n]
    return torch.cat([drafted[:n], drafted.new_tensor([draw_token(last, u[-1])])])


@alternative(accept_or_resample)
def with_lists(p, q, drafted, u):
    P, Q, X, U = p.tolist(), q.tolist(), drafted.tolist(), u.tolist()
    if len(P) != len(X) + 1 or len(Q) != len(X) or len(U) != len(P):
        raise ValueError
    kept = []
    for a, b, x, number in zip(P, Q, X, U, strict=False):
        ratio = a[x] / b[x] if b[x] else math.inf
        if number < ratio:
            kept.append(x)
            continue
        rest = [max(one - other, 0) for one, other in zip(a, b, strict=True)]
        weights = rest if any(rest) else a
        break
    else:
        weights = P[-1]
    kept.append(by_bisection(torch.tensor(weights, dtype=torch.float64), U[-1]))
    return torch.tensor(kept, device=drafted.device)


@alternative(Speculator)
class DraftsAhead(Speculator):
    """Keeps rows in a tensor made at the start, and cuts each cache at its own place."""

    def propose(self, text, k, u):
        whole, rows = text.tolist(), []
        for number in u.tolist()[:k]:
            row = self.read(self.draft, self.draft_caches, text.new_tensor(whole))[-1]
            rows.append(row[None])
            whole.append(draw_token(row, number))
        return text.new_tensor(whole[len(text) :]), torch.cat(rows) if rows else None

    def speculative_step(self, text, k, u):
        drafted, q = self.propose(text, k, u[:k])
        start = self.target_caches[0].length
        p = self.read(self.target, self.target_caches, torch.cat([text, drafted]))
        p = p[len(text) - 1 - start :]
        rows = torch.zeros(0, p.shape[1], dtype=p.dtype, device=p.device)
        if len(drafted):
            rows = functional.one_hot(drafted, p.shape[1]).to(p) if q is None else q
        new = accept_or_resample(p, rows, drafted, u[k:][: len(drafted) + 1])
        self.history += [(len(drafted), len(new) - 1)]
        self.rollback(len(torch.cat([text, new])) - 1)
        return new

    def rollback(self, length):
        for caches in (self.target_caches, self.draft_caches):
            if caches and caches[0].length > length:
                for cache in caches:
                    cache.truncate(length)


@alternative(Speculator)
class OnlyTheStep(Speculator):
    """Leaves drafting to the reference, and cuts by what was rejected."""

    def speculative_step(self, text, k, u):
        drafted, q = self.propose(text, k, u[:k])
        whole, m = torch.cat([text, drafted]), len(drafted)
        p = self.read(self.target, self.target_caches, whole)[-m - 1 :]
        q = torch.zeros_like(p[:m]).scatter(1, drafted[:, None], 1) if q is None else q
        new = accept_or_resample(p, q, drafted, u[k:][: m + 1])
        rejected = m - (len(new) - 1)
        for cache in self.target_caches:
            cache.truncate(cache.length - rejected)
        for cache in self.draft_caches:
            cache.truncate(min(cache.length, self.target_caches[0].length))
        self.history.append((m, m - rejected))
        return new


@alternative(prompt_lookup)
def by_text(tokens, k, longest=3):
    if k < 0 or longest < 1:
        raise ValueError
    letters = "".join(map(chr, tokens))
    for n in range(longest, 0, -1):
        if n < len(tokens):
            place = letters.rfind(letters[-n:], 0, len(letters) - 1)
            if place >= 0:
                period = letters[place + n :]
                return [ord(period[i % len(period)]) for i in range(k)]
    return []


@alternative(prompt_lookup)
def by_table(tokens, k, longest=3):
    if k < 0 or longest < 1:
        raise ValueError
    found = None
    for n in range(1, min(longest, len(tokens) - 1) + 1):
        follows = {tuple(tokens[t - n : t]): t for t in range(n, len(tokens))}
        found = follows.get(tuple(tokens[len(tokens) - n :]), found)
    guess = []
    while found is not None and len(guess) < k:
        guess.append([*tokens, *guess][found])
        found += 1
    return guess


@alternative(prompt_lookup_fault)
def two_tokens_at_two_places():
    return ["C", [[5, 6, 7, 8, 5, 6, 9, 5, 6], 4, 2]]


@alternative(prompt_lookup_fault)
def into_itself():
    return "C", ([4, 4, 0, 4, 4, 4], 6)


@alternative(SpeculativeWriter)
class CountsDown(SpeculativeWriter):
    """Counts what is left, and empties the caches at once."""

    def propose(self, text, k, u):
        if self.draft is not None:
            return super().propose(text, k, u)
        found = prompt_lookup(text.tolist(), k)
        return torch.tensor(found, dtype=text.dtype, device=text.device), None

    def speculative_generate(self, text, count, k, generator=None):
        if text.numel() == 0 or self.capacity < len(text) + count - 1:
            raise ValueError("no room")
        for cache in self.target_caches + self.draft_caches:
            cache.truncate(0)
        left, parts = count, [text]
        while left:
            m = k if k < left else left - 1
            u = torch.rand(1 + 2 * m, dtype=torch.float64, generator=generator).to(text.device)
            parts.append(self.speculative_step(torch.cat(parts), m, u))
            left -= len(parts[-1])
        return torch.cat(parts)


@alternative(SpeculativeWriter)
class OneHot(SpeculativeWriter):
    """Says itself that what it looks up is certain."""

    def propose(self, text, k, u):
        drafted, q = super().propose(text, k, u)
        if q is None and len(drafted):
            V = self.read(self.target, self.target.new_caches(1, 1), text[:1]).shape[1]
            q = functional.one_hot(drafted, V).double()
        return drafted, q

    def speculative_generate(self, text, count, k, generator=None):
        return self.more(text, text, count, k, generator) if self.check(text, count) else text

    def check(self, text, count):
        if not len(text) or len(text) + count - 1 > self.capacity:
            raise ValueError
        self.rollback(0)
        return count > 0

    def more(self, start, text, count, k, generator):
        left = len(start) + count - len(text)
        if not left:
            return text
        u = torch.rand(2 * min(k, left - 1) + 1, generator=generator, dtype=torch.float64)
        new = self.speculative_step(text, min(k, left - 1), u.to(text.device))
        return self.more(start, torch.cat([text, new]), count, k, generator)


@alternative(expected_tokens)
def as_a_sum(alpha, k):
    if alpha < 0 or alpha > 1 or k < 0:
        raise ValueError
    return math.fsum(alpha**n for n in range(k + 1))


@alternative(expected_tokens)
def by_horner(alpha, k):
    if not 0 <= alpha <= 1 or k < 0:
        raise ValueError
    return 1.0 if k == 0 else 1 + alpha * by_horner(alpha, k - 1)


@alternative(best_draft_length)
def in_a_loop(alpha, cost, most=32):
    if cost < 0 or not 0 <= alpha <= 1:
        raise ValueError
    best, speed, tokens = 0, 1.0, 1.0
    for k in range(1, most + 1):
        tokens += alpha**k
        if tokens / (1 + k * cost) > speed:
            best, speed = k, tokens / (1 + k * cost)
    return best


@alternative(best_draft_length)
def with_tensors(alpha, cost, most=32):
    if cost < 0 or not 0 <= alpha <= 1:
        raise ValueError
    k = torch.arange(most + 1, dtype=torch.float64)
    powers = torch.full((most + 1,), float(alpha), dtype=torch.float64) ** k
    return int((powers.cumsum(0) / (1 + k * cost)).argmax())


@alternative(tree_mask)
def by_powers(parents, past=0):
    """Goes up by one generation with each product of matrices."""
    M = len(parents)
    if parents[0] != -1 or any(not 0 <= parents[n] < n for n in range(1, M)):
        raise ValueError("no tree")
    step = torch.zeros(M, M)
    step[range(1, M), parents[1:]] = 1
    reached = torch.linalg.inv(torch.eye(M) - step) > 0.5
    return torch.cat([torch.ones(M, past).bool(), reached], dim=1)


@alternative(tree_mask)
def by_walking_up(parents, past=0):
    """Walks from each node to the root."""
    rows = []
    for node, parent in enumerate(parents):
        if (node == 0) != (parent == -1) or parent >= node or parent < -1:
            raise ValueError("no tree")
        row = [True] * past + [False] * len(parents)
        while node != -1:
            row[past + node] = True
            node = parents[node]
        rows.append(row)
    return torch.tensor(rows)


@alternative(accept_path)
def by_recursion(parents, tokens, best):
    """Looks for the child of a node, and goes on from there."""
    if len({len(parents), len(tokens), len(best)}) != 1:
        raise ValueError("lengths")

    def below(node):
        for child in range(node + 1, len(parents)):
            if parents[child] == node and tokens[child] == best[node]:
                return [node, *below(child)]
        return [node]

    return below(0)


@alternative(accept_path)
def in_one_pass(parents, tokens, best):
    """Goes through the nodes once, since each comes after its parent."""
    if len(parents) != len(tokens) or len(tokens) != len(best):
        raise ValueError("lengths")
    path = [0]
    for node, parent in enumerate(parents):
        if node and parent == path[-1] and tokens[node] == best[parent]:
            path += [node]
    return path


@alternative(SpeculativeCore)
class WithLoops(SpeculativeCore):
    """Writes out every loop, and cuts the table itself."""

    def pieces(self, number, start, stop, drafted):
        sequence = self.sequences[number]
        blocks = sequence.block_table.blocks
        whole, middle = sequence.tokens + drafted, stop - len(drafted)
        found = [(whole[start:middle], start, blocks)]
        for place in range(middle, stop):
            found.append((whole[place : place + 1], place, blocks))
        return found

    def judge(self, number, drafted, logits):
        sampling = self.sequences[number].sampling
        generator = self.sequences[number].generator.clone_state()
        u = torch.rand(len(drafted) + 1, dtype=torch.float64, generator=generator)
        p = token_probabilities(logits, sampling.temperature, sampling.top_k, sampling.top_p).cpu()
        q = torch.zeros(len(drafted), p.shape[1], dtype=p.dtype)
        for n, token in enumerate(drafted):
            q[n, token] = 1
        new = []
        for token in accept_or_resample(p, q, torch.tensor(drafted), u).tolist():
            new.append(token)
            if token == sampling.stop:
                break
        return new, generator

    def keep(self, number, tokens, generator):
        sequence, manager = self.sequences[number], self.scheduler.manager
        sequence.tokens += tokens
        sequence.generator = generator
        table, length = sequence.block_table, len(sequence.tokens) - 1
        while len(table.blocks) > -(-length // manager.block_size):
            manager.allocator.free(table.blocks.pop())
        table.length = sequence.num_computed = length
        manager.cache_blocks(number, sequence.tokens)
        self.finish(number)
        return [(number, token) for token in tokens]


@alternative(SpeculativeCore)
class AlwaysPieces(SpeculativeCore):
    """Cuts a sequence's own tokens into single ones as well; judges drafts one by one."""

    def pieces(self, number, start, stop, drafted):
        whole = self.sequences[number].tokens + drafted
        blocks, own = self.scheduler.manager.get_block_table(number), stop - len(drafted)
        first = (whole[start:own], start, blocks)
        return [first] + [([whole[t]], t, blocks) for t in range(own, stop)]

    def judge(self, number, drafted, logits):
        sequence = self.sequences[number]
        s, generator = sequence.sampling, sequence.generator.clone_state()
        u = torch.rand(len(logits), generator=generator, dtype=torch.float64)
        rows, new = token_probabilities(logits, s.temperature, s.top_k, s.top_p).cpu(), []
        for n, (row, token) in enumerate(zip(rows, [*drafted, None], strict=True)):
            if token is None or u[n] >= row[token]:
                rest = row.clone()
                if token is not None:
                    rest[token] = 0
                new.append(draw_token(rest, u[-1]))
                break
            new.append(token)
            if token == s.stop:
                break
        return new, generator

    def keep(self, number, tokens, generator):
        sequence = self.sequences[number]
        for token in tokens:
            sequence.tokens.append(token)
        sequence.generator, sequence.num_computed = generator, len(sequence.tokens) - 1
        self.scheduler.cut(number)
        self.scheduler.advance(number, sequence.num_computed)
        self.finish(number)
        return [(number, token) for token in tokens]
