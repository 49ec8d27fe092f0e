"""Correct solutions of speculative by other ways: by sums, by search, in two models' turns."""

import bisect
import itertools
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from autograder.alternatives import alternative
from course_pkg.gpt import token_probabilities
from course_pkg.paged_attention import PagedKVCache
from course_pkg.speculative import (
    LatentAttention,
    QuantisedKVCache,
    QuantisedLinear,
    QuantisedPagedCache,
    SpeculativeCore,
    SpeculativeWriter,
    Speculator,
    accept_or_resample,
    best_draft_length,
    dequantise,
    draw_token,
    expected_tokens,
    pack_int4,
    prompt_lookup,
    quantise,
    rotate,
    unpack_int4,
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


@alternative(quantise)
def along_one_axis(X, bits, dims, group=None, symmetric=False):
    """Brings what shares a scale to the end, as one axis, and takes it back."""
    if bits not in range(2, 9):
        raise ValueError("bits")
    dims = [dims] if isinstance(dims, int) else list(dims)
    dims = sorted(axis % X.ndim for axis in dims)
    kept = [axis for axis in range(X.ndim) if axis not in dims]
    order = kept + dims
    moved = X.permute(order)
    rows = moved.flatten(len(kept))
    if group is None:
        parts = rows[..., None, :]
    else:
        if len(dims) != 1 or rows.shape[-1] % group:
            raise ValueError("group")
        parts = (
            rows.view(*rows.shape[:-1], -1, group)
            if rows.is_contiguous()
            else rows.reshape(*rows.shape[:-1], rows.shape[-1] // group, group)
        )
    wide = parts if X.dtype == torch.float64 else parts.float()
    if symmetric:
        top = (1 << (bits - 1)) - 1
        z = torch.zeros_like(wide[..., :1])
        s = torch.maximum(wide.max(-1, True).values, -wide.min(-1, True).values) / top
    else:
        top = (1 << bits) - 1
        z = wide.min(-1, True).values
        s = (wide.max(-1, True).values - z) / top
    s, z = s.to(X.dtype), z.to(X.dtype)
    s[s == 0] = 1
    Q = ((wide - z) / s).round().clamp(max=top)
    Q = Q.type(torch.int8 if symmetric else torch.uint8).reshape(moved.shape)
    back = [order.index(axis) for axis in range(X.ndim)]
    last = [s.shape[-2]] if len(dims) == 1 else [1] * len(dims)
    s, z = (part.reshape(*[X.shape[axis] for axis in kept], *last) for part in (s, z))
    return Q.permute(back), s.permute(back), z.permute(back)


@alternative(quantise)
def group_by_group(X, bits, dims, group=None, symmetric=False):
    """Quantises pieces, and joins them."""
    if bits < 2 or bits > 8:
        raise ValueError("bits")
    if group is not None:
        axis = dims if isinstance(dims, int) else dims[0]
        if (not isinstance(dims, int) and len(dims) > 1) or X.shape[axis] % group:
            raise ValueError("group")
        if X.shape[axis] == 0:
            pieces = [group_by_group(X.sum(axis, keepdim=True), bits, axis, None, symmetric)]
            return tuple(part.narrow(axis, 0, 0) for part in pieces[0])
        pieces = [group_by_group(x, bits, axis, None, symmetric) for x in X.split(group, axis)]
        return tuple(torch.cat(parts, dim=axis) for parts in zip(*pieces, strict=True))
    x = X.double()
    if symmetric:
        top, zero = 2 ** (bits - 1) - 1, torch.zeros_like(x.amax(dims, keepdim=True))
        scale = x.abs().amax(dims, keepdim=True) / top
    else:
        top, zero = 2**bits - 1, x.amin(dims, keepdim=True)
        scale = (x.amax(dims, keepdim=True) - zero) / top
    scale, zero = scale.to(X.dtype), zero.to(X.dtype)
    scale = scale.masked_fill(scale == 0, 1.0)
    Q = torch.clamp(torch.round((x - zero.double()) / scale.double()), max=top)
    return Q.to(torch.int8) if symmetric else Q.to(torch.uint8), scale, zero


@alternative(dequantise)
def by_views(Q, scale, zero):
    """Cuts the axes into groups, and lets scales broadcast."""
    shape = []
    for size, parts in zip(Q.shape, scale.shape, strict=True):
        if parts == 0 and size:
            raise ValueError("no scale")
        if parts and size % parts:
            raise ValueError("unequal groups")
        shape += [parts, size // parts if parts else 0]
    cut = [size for parts in scale.shape for size in (parts, 1)]
    return (Q.reshape(shape) * scale.reshape(cut) + zero.reshape(cut)).reshape(Q.shape)


@alternative(dequantise)
def by_index(Q, scale, zero):
    """Looks up the scale of every place along each axis."""
    if Q.dim() != scale.dim():
        raise ValueError("axes")
    for axis in range(Q.dim()):
        size, parts = Q.shape[axis], scale.shape[axis]
        if size != parts:
            if parts < 1 or size % parts:
                raise ValueError("these are not groups")
            places = torch.arange(size, device=Q.device) * parts // size
            scale, zero = scale.index_select(axis, places), zero.index_select(axis, places)
    return torch.addcmul(zero, Q.to(zero.dtype), scale)


@alternative(pack_int4)
def by_pairs(Q):
    """Cuts the last axis into pairs, and adds."""
    if Q.size(-1) % 2 != 0:
        raise ValueError("odd")
    if Q.numel() and (int(Q.min()) < 0 or int(Q.max()) > 15):
        raise ValueError("not four bits")
    pairs = Q.to(torch.int32).reshape(*Q.shape[:-1], Q.shape[-1] // 2, 2)
    return (pairs * torch.tensor([1, 16], dtype=torch.int32)).sum(-1).to(torch.uint8)


@alternative(pack_int4)
def by_numpy(Q):
    """Packs bits."""
    integers = Q.numpy()
    if integers.shape[-1] & 1 or ((integers >> 4) != 0).any():
        raise ValueError("cannot be packed")
    bits = (integers[..., None] >> np.arange(4)) & 1
    bits = bits.reshape(*integers.shape[:-1], -1, 8) if integers.size else bits[..., :0, 0]
    if not integers.size:
        return torch.zeros(*Q.shape[:-1], Q.shape[-1] // 2, dtype=torch.uint8)
    packed = np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little")
    return torch.from_numpy(packed[..., 0].copy())


@alternative(unpack_int4)
def by_writing(packed):
    """Writes every other place."""
    Q = packed.new_empty(*packed.shape[:-1], 2 * packed.shape[-1])
    Q[..., 1::2] = packed // 16
    Q[..., ::2] = packed % 16
    return Q


@alternative(unpack_int4)
def by_shifts(packed):
    """Shifts each byte by 0 and by 4."""
    shifts = torch.tensor([0, 4], dtype=torch.uint8)
    pairs = packed.unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and(15)
    return pairs.reshape(*packed.shape[:-1], packed.shape[-1] * 2)


@alternative(QuantisedKVCache)
class ListOfGroups:
    """Keeps a list of quantised groups and of values, and counts the bytes of all capacity."""

    def __init__(self, B, G, capacity, D_h, bits=8, group=32, dtype=torch.float16, device="cpu"):
        if bits not in {4, 8}:
            raise ValueError("bits")
        if bits == 4 and D_h % 2 == 1:
            raise ValueError("odd")
        self.sizes, self.capacity, self.bits = (B, G, D_h), capacity, bits
        self.group, self.dtype = group, dtype
        self.groups, self.values = [], []
        self.waiting = torch.zeros(B, G, 0, D_h, dtype=dtype, device=device)

    @property
    def length(self):
        return len(self.values)

    @property
    def bytes(self):
        B, G, D_h = self.sizes
        groups, number = self.capacity // self.group, self.dtype.itemsize
        key_group = self.group * D_h * self.bits // 8 + 2 * D_h * number
        value = D_h * self.bits // 8 + 2 * number
        rest = self.group * D_h * number
        return B * G * (groups * key_group + self.capacity * value + rest)

    def put(self, X, dim):
        Q, scale, zero = quantise(X, self.bits, dim)
        return (pack_int4(Q) if self.bits == 4 else Q), scale, zero

    def get(self, kept):
        Q, scale, zero = kept
        return dequantise(unpack_int4(Q) if self.bits == 4 else Q, scale, zero)

    def append(self, K, V):
        B, G, D_h = self.sizes
        for X in (K, V):
            if X.dim() != 4 or (*X.shape[:2], X.shape[3]) != (B, G, D_h):
                raise ValueError("shape")
        if K.size(2) != V.size(2) or self.length + K.size(2) > self.capacity:
            raise ValueError("length")
        with torch.no_grad():
            for k, v in zip(K.split(1, 2), V.split(1, 2), strict=True) if K.size(2) else ():
                self.values.append(self.put(v.to(self.dtype), 3))
                self.waiting = torch.cat([self.waiting, k.to(self.dtype)], dim=2)
                if self.waiting.size(2) == self.group:
                    self.groups.append(self.put(self.waiting, 2))
                    self.waiting = self.waiting[:, :, :0]

    def read(self):
        B, G, D_h = self.sizes
        none = self.waiting.new_zeros(B, G, 0, D_h)
        K = torch.cat([*map(self.get, self.groups), self.waiting], dim=2)
        return K, torch.cat([none, *map(self.get, self.values)], dim=2)

    def truncate(self, length):
        if length < 0 or length > self.length:
            raise ValueError("length")
        K, full = self.read()[0], length // self.group
        if full < len(self.groups) or length < self.length:
            self.waiting = K[:, :, full * self.group : length].clone()
            del self.groups[full:]
        del self.values[length:]


@alternative(QuantisedKVCache)
class PositionByPosition:
    """Takes memory for numbers of each kind in one tensor, and adds one position at a time."""

    def __init__(self, B, G, capacity, D_h, bits=8, group=32, dtype=torch.float16, device="cpu"):
        if not (bits == 8 or (bits == 4 and D_h % 2 == 0)):
            raise ValueError("bits")
        self.bits, self.group, self.length = bits, group, 0
        groups, size = capacity // group, D_h * bits // 8
        self.integers = torch.zeros(
            B, G, groups * group + capacity, size, dtype=torch.uint8, device=device
        )
        self.of_keys = torch.zeros(2, B, G, groups, D_h, dtype=dtype, device=device)
        self.of_values = torch.zeros(2, B, G, capacity, 1, dtype=dtype, device=device)
        self.rest = torch.zeros(B, G, group, D_h, dtype=dtype, device=device)

    @property
    def bytes(self):
        parts = self.integers, self.of_keys, self.of_values, self.rest
        return sum(part.numel() * part.element_size() for part in parts)

    def append(self, K, V):
        B, G, group, D_h = self.rest.shape
        capacity, groups = self.of_values.shape[3], self.of_keys.shape[3]
        if K.shape != (B, G, K.shape[2], D_h) or V.shape != K.shape:
            raise ValueError("shape")
        if self.length + K.shape[2] > capacity:
            raise ValueError("full")
        for k, v in zip(K.detach().unbind(2), V.detach().unbind(2), strict=True):
            at, within = self.length, self.length % group
            Q, *numbers = quantise(v.to(self.rest.dtype), self.bits, 2)
            self.integers[:, :, groups * group + at] = pack_int4(Q) if self.bits == 4 else Q
            self.of_values[:, :, :, at] = torch.stack(numbers)
            self.rest[:, :, within] = k
            if within == group - 1:
                Q, *numbers = quantise(self.rest, self.bits, 2)
                Q = pack_int4(Q) if self.bits == 4 else Q
                self.integers[:, :, at + 1 - group : at + 1] = Q
                self.of_keys[:, :, :, at // group] = torch.stack(numbers)[..., 0, :]
            self.length += 1

    def read(self):
        full, skipped = self.length // self.group, self.of_keys.shape[3] * self.group
        Q = unpack_int4(self.integers) if self.bits == 4 else self.integers
        keys = Q[:, :, : full * self.group]
        keys = dequantise(keys, *self.of_keys[:, :, :, :full])
        values = Q[:, :, skipped : skipped + self.length]
        values = dequantise(values, *self.of_values[:, :, :, : self.length])
        return torch.cat([keys, self.rest[:, :, : self.length % self.group]], dim=2), values

    def truncate(self, length):
        if length < 0 or length > self.length:
            raise ValueError("length")
        within = length % self.group
        kept = self.read()[0][:, :, length - within : length].clone()
        self.rest[:, :, :within] = kept
        self.length = length


@alternative(QuantisedPagedCache)
class ByStruct(PagedKVCache):
    """Writes scale and zero point as numpy does."""

    def __init__(self, L, blocks, block_size, G, D_h, bits=8, dtype=None, device=None):
        if {4: D_h % 2 == 0, 8: True}.get(bits, False) is False:
            raise ValueError("bits")
        size = D_h // (8 // bits) + 4
        super().__init__(L, blocks, block_size, G, size, torch.uint8, device)
        self.bits, self.dtype = bits, dtype or torch.get_default_dtype()

    def encode(self, X):
        rows = X.detach().half().reshape(-1, X.shape[-1])
        Q, s, z = quantise(rows, self.bits, 1)
        numbers = np.concatenate([s.numpy(), z.numpy()], axis=1).astype("<f2").view(np.uint8)
        Q = pack_int4(Q) if self.bits == 4 else Q
        records = np.concatenate([Q.numpy(), numbers], axis=1)
        return torch.from_numpy(records).reshape(*X.shape[:-1], records.shape[1])

    def decode(self, records):
        rows = records.reshape(-1, records.shape[-1])
        numbers = rows[:, -4:].clone(memory_format=torch.contiguous_format)
        numbers = numbers.view(torch.float16).to(self.dtype)
        Q = rows[:, :-4]
        Q = unpack_int4(Q) if self.bits == 4 else Q
        X = dequantise(Q, numbers[:, :1], numbers[:, 1:])
        return X.reshape(*records.shape[:-1], X.shape[1])

    def write(self, layer, slots, K, V):
        PagedKVCache.write(self, layer, slots, self.encode(K), self.encode(V))

    def gather(self, layer, blocks, length):
        K, V = PagedKVCache.gather(self, layer, blocks, length)
        return self.decode(K), self.decode(V)


@alternative(QuantisedPagedCache)
class SlotBySlot(QuantisedPagedCache):
    """Writes and reads one slot after the other."""

    def write(self, layer, slots, K, V):
        S = self.K.shape[3]
        for slot, k, v in zip(slots.tolist(), K, V, strict=True):
            self.K[layer, :, slot // S, slot % S] = self.encode(k)
            self.V[layer, :, slot // S, slot % S] = self.encode(v)

    def gather(self, layer, blocks, length):
        S = self.K.shape[3]
        places = [(blocks[t // S], t % S) for t in range(length)]
        return tuple(
            torch.stack([self.decode(part[layer, :, block, at]) for block, at in places])
            for part in (self.K, self.V)
        )


@alternative(QuantisedLinear)
class ScaleAfter(nn.Module):
    """Multiplies by the integers first, group by group, and then by the scales."""

    def __init__(self, W, bias=None, group=None):
        super().__init__()
        D_in = W.shape[0]
        group = D_in if group is None else group
        if D_in % group:
            raise ValueError("group")
        Q, scale, _ = quantise(W.detach().contiguous(), 8, 0, group, symmetric=True)
        self.group = group
        self.register_buffer("Q", Q)
        self.register_buffer("scale", scale)
        if bias is not None:
            self.register_buffer("bias", bias.detach().clone())

    def forward(self, X):
        parts = X.split(self.group, dim=-1)
        rows = self.Q.to(X.dtype).split(self.group, dim=0)
        Y = sum((x @ q) * s.to(X.dtype) for x, q, s in zip(parts, rows, self.scale, strict=True))
        return Y + self.bias.to(X.dtype) if hasattr(self, "bias") else Y


@alternative(QuantisedLinear)
class Functional(QuantisedLinear):
    """Lets torch multiply, with the matrix the other way round."""

    def forward(self, X):
        groups, D_out = self.scale.shape
        W = self.Q.T.reshape(D_out, groups, -1) * self.scale.T[:, :, None]
        bias = None if self.bias is None else self.bias.to(X.dtype)
        return functional.linear(X, W.reshape(D_out, -1).to(X.dtype), bias)


@alternative(rotate)
def butterfly(X, start=None):
    """Adds and subtracts in log D rounds, as the fast Walsh-Hadamard transform does."""
    D = X.shape[-1]
    start = torch.ones(1, 1) if start is None else start
    r = len(start)
    if D % r or (D // r) & (D // r - 1) or D == 0:
        raise ValueError("no power of two")
    Y = X.unflatten(-1, (D // r, r)) @ start.to(X.dtype)  # (..., D/r, r)
    size = 1
    while size < D // r:
        pairs = Y.unflatten(-2, (-1, 2, size))
        a, b = pairs[..., 0, :, :], pairs[..., 1, :, :]
        Y = torch.stack([a + b, a - b], dim=-3).flatten(-4, -2)
        size *= 2
    return Y.flatten(-2) / D**0.5


@alternative(rotate)
def by_halves(X, start=None):
    """Rotates the halves, and then adds and subtracts these."""
    D, r = X.shape[-1], 1 if start is None else start.shape[0]
    if r == D:
        return X.clone() if start is None else X @ (start.to(X.dtype) / math.sqrt(D))
    if D < 2 * r or D % 2:
        raise ValueError("size")
    a, b = (by_halves(half, start) for half in X.chunk(2, dim=-1))
    return torch.cat([a + b, a - b], dim=-1) / math.sqrt(2)


@alternative(LatentAttention)
class HeadByHead(LatentAttention):
    """Attends with a loop over heads."""

    def columns(self, W, h):
        return W[:, h * self.D_h : (h + 1) * self.D_h]

    def scored(self, Q, K, q_R, K_R):
        T, N = q_R.shape[1], K_R.shape[1]
        E = (Q @ K.transpose(1, 2) + q_R @ K_R.transpose(1, 2)) * (self.D_h + self.D_R) ** -0.5
        late = torch.arange(N) > torch.arange(N - T, N)[:, None]
        return E.masked_fill(late, -math.inf).softmax(dim=-1)

    def forward(self, X, cache=None):
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        heads = []
        for h in range(self.H):
            K, V = C @ self.columns(self.W_UK, h), C @ self.columns(self.W_UV, h)
            heads.append(self.scored(Q_C[:, h], K, Q_R[:, h], K_R) @ V)
        return torch.cat(heads, dim=-1) @ self.W_O

    def absorbed(self, X, cache=None):
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        Y = 0
        for h in range(self.H):
            Q = Q_C[:, h] @ self.columns(self.W_UK, h).T
            out = self.columns(self.W_UV, h) @ self.W_O[h * self.D_h : (h + 1) * self.D_h]
            Y = Y + self.scored(Q, C, Q_R[:, h], K_R) @ C @ out
        return Y


@alternative(LatentAttention)
class MultipliedBefore(LatentAttention):
    """Multiplies W_Q by W_UK, and W_UV by W_O, before it sees a vector; lets torch attend."""

    def attend(self, Q, K, V):
        T, N = Q.shape[2], K.shape[2]
        mask = torch.ones(N, N, dtype=torch.bool).tril()[N - T :]
        scale = 1 / math.sqrt(self.D_h + self.D_R)
        return functional.scaled_dot_product_attention(Q, K, V, attn_mask=mask, scale=scale)

    def forward(self, X, cache=None):
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        K = (C @ self.W_UK).unflatten(2, (self.H, -1)).transpose(1, 2)
        V = (C @ self.W_UV).unflatten(2, (self.H, -1)).transpose(1, 2)
        K = torch.cat([K, K_R.unsqueeze(1).repeat(1, self.H, 1, 1)], dim=-1)
        Y = self.attend(torch.cat([Q_C, Q_R], dim=-1), K, V)
        return Y.transpose(1, 2).flatten(2) @ self.W_O

    def absorbed(self, X, cache=None):
        _, Q_R, C, K_R = self.prepare(X, cache)
        W_Q = self.W_Q.unflatten(1, (self.H, -1))[..., : self.D_h]
        merged = torch.einsum("xhd,chd->xhc", W_Q, self.W_UK.unflatten(1, (self.H, -1)))
        W_UV = self.W_UV.unflatten(1, (self.H, -1))
        out = torch.einsum("chd,hdx->hcx", W_UV, self.W_O.unflatten(0, (self.H, -1)))
        Q = torch.cat([torch.einsum("btx,xhc->bhtc", X, merged), Q_R], dim=-1)
        K = torch.cat([C, K_R], dim=-1)[:, None].expand(-1, self.H, -1, -1)
        Y = self.attend(Q, K, C[:, None].expand(-1, self.H, -1, -1))
        return torch.einsum("bhtc,hcx->btx", Y, out)
