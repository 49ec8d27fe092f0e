"""Correct solutions of quantisation by other ways: slice by slice, by tables, by halves."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from autograder.alternatives import alternative
from course_pkg.paged_attention import PagedKVCache
from course_pkg.quantisation import (
    QuantisedKVCache,
    QuantisedLinear,
    QuantisedPagedCache,
    dequantise,
    gptq,
    pack_int4,
    quantise,
    quantise_fault,
    rotate,
    unpack_int4,
)


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


@alternative(quantise_fault)
def tokens_in_float64():
    return ["E", [5 + torch.rand(4, 6, dtype=torch.float64), 4, 1]]


@alternative(quantise_fault)
def alike():
    return "E", (torch.full((2, 3), 0.4), 8, (0, 1))


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


@alternative(gptq)
def by_elimination(W, X, bits=4, damping=0.01):
    """Takes each row out of H⁻¹ once it is rounded, as an optimal brain surgeon does."""
    D_in = len(W)
    if X.shape != (len(X), D_in):
        raise ValueError("features")
    _, scale, _ = quantise(W.detach(), bits, 0, symmetric=True)
    H = 2 * torch.einsum("ni,nj->ij", X.double(), X.double())
    H = H + damping * H.trace() / D_in * torch.eye(D_in)
    inverse, left = H.inverse(), W.detach().double().clone()
    rows = []
    for i in range(D_in):
        rows.append((left[i] / scale[0].double()).round().clamp(1 - 2 ** (bits - 1), None))
        rows[i] = rows[i].clamp(max=2 ** (bits - 1) - 1)
        error = left[i] - rows[i] * scale[0].double()
        left = left - inverse[:, i : i + 1] / inverse[i, i] * error
        inverse = inverse - inverse[:, i : i + 1] * inverse[i] / inverse[i, i]
    return torch.stack(rows).char(), scale


@alternative(gptq)
def column_by_column(W, X, bits=4, damping=0.01):
    """Solves, for each column and each step, for the weights that are left."""
    if X.shape[1] != W.shape[0]:
        raise ValueError("features")
    scale = quantise(W.detach(), bits, (0,), None, True)[1]
    top, W, X = 2 ** (bits - 1) - 1, W.detach().double(), X.double()
    H = X.T @ X
    H = H + damping * H.diag().mean() * torch.eye(len(W))
    Q = torch.zeros(W.shape, dtype=torch.int8)
    for o in range(W.shape[1]):
        w, s = W[:, o], scale[0, o].double()
        moved, wrong = w, torch.zeros(len(w), dtype=torch.float64)
        for i in range(len(w)):
            q = min(max(round(float(moved[0] / s)), -top), top)
            Q[i, o], wrong[i] = q, q * s - w[i]
            rest = H[i + 1 :, i + 1 :]
            moved = w[i + 1 :] - torch.linalg.solve(rest, H[i + 1 :, : i + 1] @ wrong[: i + 1])
    return Q, scale


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
