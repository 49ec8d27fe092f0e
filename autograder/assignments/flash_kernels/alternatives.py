"""Other correct solutions of flash_kernels: merges, other orders of the loops, exp2."""

import math

import torch

from autograder.alternatives import alternative
from course_pkg import black_box
from course_pkg.flash_kernels import (
    flash_attention_backward,
    flash_attention_backward_fault,
    flash_attention_forward,
    online_softmax,
    triton_flash_forward,
    triton_paged_decode,
)
from course_pkg.paged_attention import online_softmax_merge
from course_pkg.tools.launch import kernel, launch_flash, launch_paged, tl


@alternative(online_softmax)
def by_merging(E, V):
    Y, s = V[0].new_zeros(len(E[0]), V[0].shape[1]), E[0].new_full((len(E[0]),), -math.inf)
    for e, v in zip(E, V, strict=True):
        s_new = torch.logsumexp(e, dim=1)
        A = torch.exp(e - s_new.nan_to_num(neginf=0)[:, None])
        Y, s = online_softmax_merge(Y, s, A @ v, s_new)
    return Y, s


@alternative(online_softmax)
def row_by_row(E, V):
    rows = []
    for r in range(len(E[0])):
        m, z, y = -math.inf, 0.0, torch.zeros_like(V[0][0])
        for e, v in zip(E, V, strict=True):
            for j, score in enumerate(e[r].tolist()):
                if score == -math.inf:
                    continue
                new = max(m, score)
                z = z * math.exp(m - new) + math.exp(score - new)
                y = y * math.exp(m - new) + math.exp(score - new) * v[j]
                m = new
        rows.append((y / z, m + math.log(z)) if z else (y, -math.inf))
    Y, s = zip(*rows, strict=True)
    return torch.stack(Y), torch.tensor(s)


@alternative(flash_attention_forward)
def keys_outside(Q, K, V, causal=False, rows=32, columns=32):
    """The order of the loops of the first paper: keys outside, queries inside."""
    (B, H, T, D_h), N = Q.shape, K.shape[2]
    Y, s = torch.zeros_like(Q), Q.new_full((B, H, T), -math.inf)
    for left in range(0, N, columns):
        k, v = K[:, :, left : left + columns], V[:, :, left : left + columns]
        for top in range(0, T, rows):
            t = slice(top, min(top + rows, T))
            if causal and left > N - T + t.stop - 1:
                continue
            E = torch.einsum("bhtd,bhnd->bhtn", Q[:, :, t], k) * D_h**-0.5
            if causal:
                see = torch.ones(E.shape[2:], dtype=torch.bool).tril(N - T + top - left)
                E = torch.where(see, E, -math.inf)
            s_new = torch.logsumexp(E, dim=-1)
            A = torch.exp(E - s_new.nan_to_num(neginf=0)[..., None])
            Y[:, :, t], s[:, :, t] = online_softmax_merge(Y[:, :, t], s[:, :, t], A @ v, s_new)
    return Y, s


@alternative(flash_attention_forward)
def head_by_head(Q, K, V, causal=False, rows=32, columns=32):
    """`online_softmax` for the tiles of each head."""
    (B, H, T, D_h), N = Q.shape, K.shape[2]
    Y, s = torch.empty_like(Q), Q.new_empty(B, H, T)
    for b in range(B):
        for h in range(H):
            for top in range(0, T, rows):
                q = Q[b, h, top : top + rows]
                last = N - T + torch.arange(top, top + len(q))
                tiles, values = [], []
                for left in range(0, int(last[-1]) + 1 if causal else N, columns):
                    E = q @ K[b, h, left : left + columns].T / D_h**0.5
                    if causal:
                        E[left + torch.arange(E.shape[1]) > last[:, None]] = -math.inf
                    tiles.append(E)
                    values.append(V[b, h, left : left + columns])
                result = online_softmax(tiles, values)
                Y[b, h, top : top + rows], s[b, h, top : top + rows] = result
    return Y, s


@alternative(flash_attention_backward)
def queries_outside(Q, K, V, Y, s, dY, causal=False, rows=32, columns=32):
    T, N, root = Q.shape[2], K.shape[2], Q.shape[3] ** 0.5
    dQ, dK, dV = [], torch.zeros_like(K), torch.zeros_like(V)
    for top in range(0, T, rows):
        t = slice(top, min(top + rows, T))
        q, dq = Q[:, :, t] / root, torch.zeros_like(Q[:, :, t])
        for left in range(0, N - T + t.stop if causal else N, columns):
            n = slice(left, left + columns)
            A = torch.exp(q @ K[:, :, n].mT - s[:, :, t].unsqueeze(-1))
            if causal:
                A = A.tril(N - T + top - left)
            dA = torch.einsum("bhtd,bhnd->bhtn", dY[:, :, t], V[:, :, n])
            dE = A * dA - A * torch.einsum("bhtd,bhtd->bht", dY[:, :, t], Y[:, :, t])[..., None]
            dq += dE @ K[:, :, n] / root
            dK[:, :, n] += dE.mT @ q
            dV[:, :, n] += A.mT @ dY[:, :, t]
        dQ.append(dq)
    return torch.cat(dQ, dim=2), dK, dV


@alternative(flash_attention_backward)
def head_by_head_back(Q, K, V, Y, s, dY, causal=False, rows=32, columns=32):
    """Two passes over the tiles of each head, as FlashAttention-2 has on a GPU."""
    (B, H, T, D_h), N = Q.shape, K.shape[2]
    dQ, dK, dV = torch.zeros_like(Q), torch.zeros_like(K), torch.zeros_like(V)

    def tile(b, h, t, n):
        E = Q[b, h, t] @ K[b, h, n].T / D_h**0.5
        A = torch.exp(E - s[b, h, t, None])
        A = A.tril(N - T + t.start - n.start) if causal else A
        dA = dY[b, h, t] @ V[b, h, n].T
        return A, A * (dA - (dY[b, h, t] * Y[b, h, t]).sum(1, keepdim=True)) / D_h**0.5

    tiles = [
        (slice(top, top + rows), slice(left, left + columns))
        for top in range(0, T, rows)
        for left in range(0, N, columns)
        if not causal or left < N - T + min(top + rows, T)
    ]
    for b in range(B):
        for h in range(H):
            for t, n in tiles:
                dQ[b, h, t] += tile(b, h, t, n)[1] @ K[b, h, n]
            for t, n in tiles[::-1]:
                A, dE = tile(b, h, t, n)
                dV[b, h, n] += A.T @ dY[b, h, t]
                dK[b, h, n] += dE.T @ Q[b, h, t]
    return dQ, dK, dV


@alternative(triton_flash_forward)
@kernel(launch_flash)
def in_powers_of_two(
    Q,
    K,
    V,
    Y,
    s,
    T,
    N,
    scale,
    D_h: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    first = tl.program_id(0) * ROWS
    Q += tl.program_id(1) * T * D_h
    K += tl.program_id(1) * N * D_h
    V += tl.program_id(1) * N * D_h
    t = (first + tl.arange(0, ROWS))[:, None]
    d = tl.arange(0, WIDTH)[None, :]
    q = tl.load(Q + t * D_h + d, mask=(t < T) & (d < D_h), other=0.0)
    m = tl.full((ROWS, 1), float("-inf"), tl.float32)
    z = tl.zeros((ROWS, 1), tl.float32)
    U = tl.zeros((ROWS, WIDTH), tl.float32)
    end = N - T + first + ROWS if CAUSAL else N
    for left in range(0, end, COLUMNS):
        n = left + tl.arange(0, COLUMNS)
        k = tl.load(
            K + n[None, :] * D_h + tl.arange(0, WIDTH)[:, None],
            mask=(n[None, :] < N) & (tl.arange(0, WIDTH)[:, None] < D_h),
            other=0.0,
        )
        v = tl.load(V + n[:, None] * D_h + d, mask=(n[:, None] < N) & (d < D_h), other=0.0)
        E = tl.dot(q, k, input_precision="ieee") * (scale * 1.4426950408889634)
        E = tl.where(n[None, :] < N, E, float("-inf"))
        if CAUSAL:
            E = tl.where(n[None, :] > t + (N - T), float("-inf"), E)
        highest = tl.maximum(m, tl.max(E, axis=1, keep_dims=True))
        P = tl.exp2(E - highest)
        z = z * tl.exp2(m - highest) + tl.sum(P, axis=1, keep_dims=True)
        U = U * tl.exp2(m - highest) + tl.dot(P.to(v.dtype), v, input_precision="ieee")
        m = highest
    tl.store(Y + tl.program_id(1) * T * D_h + t * D_h + d, U / z, mask=(t < T) & (d < D_h))
    tl.store(s + tl.program_id(1) * T + t, (m + tl.log2(z)) / 1.4426950408889634, mask=t < T)


@alternative(triton_flash_forward)
@kernel(launch_flash)
def keys_from_the_end(
    Q,
    K,
    V,
    Y,
    s,
    T,
    N,
    scale,
    D_h: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Hold Y and its log-sum, divided at every tile, as a merge of finished parts does."""
    first = tl.program_id(0) * ROWS
    t = first + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    own = tl.program_id(1) * T + t
    q = tl.load(
        Q + own[:, None] * D_h + d[None, :],
        mask=(t < T)[:, None] & (d < D_h)[None, :],
        other=0.0,
    )
    last = tl.where(t < T, N - T + t, N - 1) if CAUSAL else tl.full((ROWS,), 0, tl.int32) + N - 1
    y = tl.zeros((ROWS, WIDTH), tl.float32)
    total = tl.full((ROWS,), -1e30, tl.float32)
    tiles = tl.cdiv(tl.max(last, axis=0) + 1, COLUMNS)
    for number in range(0, tiles):
        n = (tiles - 1 - number) * COLUMNS + tl.arange(0, COLUMNS)
        rows = (tl.program_id(1) * N + n)[:, None] * D_h + d[None, :]
        exists = (n < N)[:, None] & (d < D_h)[None, :]
        k = tl.load(K + rows, mask=exists, other=0.0)
        v = tl.load(V + rows, mask=exists, other=0.0)
        E = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        E = tl.where(n[None, :] <= last[:, None], E, -1e30)
        highest = tl.max(E, axis=1)
        P = tl.where(n[None, :] <= last[:, None], tl.exp(E - highest[:, None]), 0.0)
        part = tl.where(tl.sum(P, axis=1) == 0, -1e30, highest + tl.log(tl.sum(P, axis=1)))
        above = tl.maximum(total, part)
        both = above + tl.log(tl.exp(total - above) + tl.exp(part - above))
        weights = (P * tl.exp(highest - both)[:, None]).to(v.dtype)
        y = y * tl.exp(total - both)[:, None] + tl.dot(weights, v, input_precision="ieee")
        total = both
    tl.store(Y + own[:, None] * D_h + d[None, :], y, mask=(t < T)[:, None] & (d < D_h)[None, :])
    tl.store(s + own, total, mask=t < T)


@alternative(triton_paged_decode)
@kernel(launch_paged)
def position_after_position(
    Q,
    K,
    V,
    tables,
    lengths,
    Y,
    s,
    N,
    M,
    span,
    scale,
    H: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    D_h: tl.constexpr,
    SHARING: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One head and one position at a time, without a matrix."""
    b = tl.program_id(0)
    g = tl.program_id(1)
    part = tl.program_id(2)
    d = tl.arange(0, WIDTH)
    end = tl.minimum(tl.load(lengths + b), part * span + span)
    for r in range(0, H // G):
        h = g * (H // G) + r
        q = tl.load(Q + (b * H + h) * D_h + d, mask=d < D_h, other=0.0).to(tl.float32)
        m = -1e30
        z = 0.0
        U = tl.zeros((WIDTH,), tl.float32)
        for t in range(part * span, end):
            block = tl.load(tables + b * M + t // S)
            where = ((g * N + block) * S + t % S) * D_h + d
            e = tl.sum(q * tl.load(K + where, mask=d < D_h, other=0.0), axis=0) * scale
            highest = tl.maximum(m, e)
            p = tl.exp(e - highest)
            z = z * tl.exp(m - highest) + p
            U = U * tl.exp(m - highest) + p * tl.load(V + where, mask=d < D_h, other=0.0)
            m = highest
        place = (part * tl.num_programs(0) + b) * H + h
        tl.store(Y + place * D_h + d, U / tl.where(z > 0, z, 1.0), mask=d < D_h)
        tl.store(s + place, tl.where(z > 0, m + tl.log(z), float("-inf")))


@alternative(triton_paged_decode)
@kernel(launch_paged)
def block_after_block(
    Q,
    K,
    V,
    tables,
    lengths,
    Y,
    s,
    N,
    M,
    span,
    scale,
    H: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    D_h: tl.constexpr,
    SHARING: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A tile is a block; what lies before the part in its first block is masked; powers of 2."""
    b = tl.program_id(0)
    g = tl.program_id(1)
    part = tl.program_id(2)
    r = tl.arange(0, SHARING)[:, None]
    d = tl.arange(0, WIDTH)[None, :]
    query = (b * H + g * (H // G) + r) * D_h + d
    exists = (r < H // G) & (d < D_h)
    q = tl.load(Q + query, mask=exists, other=0.0)
    begin = part * span
    end = tl.minimum(tl.load(lengths + b), begin + span)
    slot = tl.arange(0, COLUMNS)  # S at most in the checks
    m = tl.full((SHARING, 1), -1e30, tl.float32)
    z = tl.zeros((SHARING, 1), tl.float32)
    U = tl.zeros((SHARING, WIDTH), tl.float32)
    for place in range(begin // S, tl.cdiv(end, S)):
        t = place * S + slot
        used = (slot < S) & (t >= begin) & (t < end)
        block = tl.load(tables + b * M + place)
        row = (g * N + block) * S + slot[:, None]
        k = tl.load(K + row * D_h + d, mask=used[:, None] & (d < D_h), other=0.0)
        v = tl.load(V + row * D_h + d, mask=used[:, None] & (d < D_h), other=0.0)
        E = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        E = tl.where(used[None, :], E, float("-inf"))
        highest = tl.maximum(m, tl.max(E, axis=1, keep_dims=True))
        P = tl.exp2(E - highest)
        z = z * tl.exp2(m - highest) + tl.sum(P, axis=1, keep_dims=True)
        weights = P.to(v.dtype)
        U = U * tl.exp2(m - highest) + tl.dot(weights, v, input_precision="ieee")
        m = highest
    behind = part * tl.num_programs(0) * H
    tl.store(Y + behind * D_h + query, U / tl.maximum(z, 1e-30), mask=exists)
    row_sums = (m + tl.log2(z)) / 1.4426950408889634
    tl.store(s + behind + b * H + g * (H // G) + r, row_sums, mask=r < H // G)


@alternative(flash_attention_backward_fault)
def causal_and_drawn():
    draw = torch.Generator().manual_seed(0)
    Q, K, V, dY = (torch.randn(2, 3, 5, 6, generator=draw) for _ in range(4))
    Y, s = flash_attention_forward(Q, K, V, True)
    return ["A", [Q, K, V, Y, s, dY, True, 2, 3]]


@alternative(flash_attention_backward_fault)
def found_by_ratios():
    for D_h in (1, 4, 9):
        X = torch.eye(2, D_h)[None, None]
        Y, s = flash_attention_forward(X, X, X)
        arguments = X, X, X, Y, s, X
        box, right = (
            f(*arguments)[0]
            for f in (black_box("flash_attention_backward"), flash_attention_backward)
        )
        if (box - D_h**0.5 * right).abs().max() < 1e-6 and D_h > 1:
            return "A", arguments
    return "B", arguments
