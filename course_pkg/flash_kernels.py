"""FlashAttention and paged attention as kernels: attention without its matrix of weights.

Shapes: B sequences, H heads of size D_h, T queries, N keys. If causal, the queries are the
last T of the N positions: query t sees the keys up to N - T + t. s is the logarithm of the sum of
exp(e) over the keys that a query sees. In a paged cache, N blocks of S slots, and G heads of keys
and values for H heads of queries, as in paged_attention.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from course_pkg.tools.launch import kernel, launch_flash, launch_paged, tl


def online_softmax(
    E: list[Float[Tensor, "R n"]], V: list[Float[Tensor, "n D"]]
) -> tuple[Float[Tensor, "R D"], Float[Tensor, "R"]]:
    """Average values by softmax weights in one pass over tiles of any widths.

    m' = max(m, max_j e_j),   z' = exp(m - m') z + Σ_j exp(e_j - m'),
    U' = exp(m - m') U + Σ_j exp(e_j - m') V_j,   and at the end Y = U / z,   s = m + log z
    (m and z: Milakov & Gimelshein 2018, algorithm 3; U beside them: Rabe & Staats 2021, §2;
    in tiles: Dao et al. 2022, §3.1)

    Args:
        E: the scores of R queries, a tile of keys at a time; -∞ where a query may not look.
        V: the values of those keys.
    Returns:
        Y and s = log Σ_j exp(e_j) over all tiles; 0 and -∞ for a query that may look nowhere.
    """
    R, D = len(E[0]), V[0].shape[1]
    m, z = E[0].new_full((R,), -math.inf), E[0].new_zeros(R)
    U = V[0].new_zeros(R, D)
    for e, v in zip(E, V, strict=True):
        highest = torch.maximum(m, e.amax(dim=1))
        safe = highest.clamp(min=torch.finfo(e.dtype).min)  # -∞ - -∞ is NaN
        P = torch.exp(e - safe[:, None])  # (R, n)
        shrink = torch.exp(m - safe)
        z = shrink * z + P.sum(dim=1)
        U = shrink[:, None] * U + P @ v
        m = highest
    z = torch.where(z == 0, 1, z)  # the query looks nowhere: U is 0, m is -∞, and they stay so
    return U / z[:, None], m + torch.log(z)


def flash_attention_forward(
    Q: Float[Tensor, "B H T D_h"],
    K: Float[Tensor, "B H N D_h"],
    V: Float[Tensor, "B H N D_h"],
    causal: bool = False,
    rows: int = 32,
    columns: int = 32,
) -> tuple[Float[Tensor, "B H T D_h"], Float[Tensor, "B H T"]]:
    """Attend tile by tile: never hold more than rows × columns scores of a head.

    Y = softmax(Q Kᵀ / √D_h) V, with the running m, z and U of `online_softmax` for each tile of
    queries. Tiles in which no query may see a key are left out. (Dao et al. 2022, algorithm 1, with
    the loops in the order of Dao 2023)

    Args:
        Q, K, V: queries, keys and values; T ≤ N if causal.
        causal: whether a query sees only its own position and what comes before; the rest gets no
            weight, whatever the size of the scores.
        rows: the most queries in a tile.
        columns: the most keys in a tile.
    Returns:
        Y and s, which the backward pass needs.
    """
    B, H, T, D_h = Q.shape
    N = K.shape[2]
    Y, s = torch.empty_like(Q), Q.new_empty(B, H, T)
    for top in range(0, T, rows):
        q = Q[:, :, top : top + rows] / math.sqrt(D_h)
        at = N - T + top + torch.arange(q.shape[2], device=Q.device)  # the queries' positions
        m, z, U = q.new_full(q.shape[:3], -math.inf), q.new_zeros(q.shape[:3]), torch.zeros_like(q)
        end = min(N, N - T + top + rows) if causal else N
        for left in range(0, end, columns):
            k, v = K[:, :, left : left + columns], V[:, :, left : left + columns]
            E = q @ k.mT  # (B, H, rows, columns)
            if causal:
                keys = left + torch.arange(k.shape[2], device=Q.device)
                E = E.masked_fill(keys > at[:, None], -math.inf)
            highest = torch.maximum(m, E.amax(dim=-1))  # finite: every query sees the first key
            P = torch.exp(E - highest[..., None])
            shrink = torch.exp(m - highest)
            z = shrink * z + P.sum(dim=-1)
            U = shrink[..., None] * U + P @ v
            m = highest
        Y[:, :, top : top + rows] = U / z[..., None]
        s[:, :, top : top + rows] = m + torch.log(z)
    return Y, s


def flash_attention_backward(
    Q: Float[Tensor, "B H T D_h"],
    K: Float[Tensor, "B H N D_h"],
    V: Float[Tensor, "B H N D_h"],
    Y: Float[Tensor, "B H T D_h"],
    s: Float[Tensor, "B H T"],
    dY: Float[Tensor, "B H T D_h"],
    causal: bool = False,
    rows: int = 32,
    columns: int = 32,
) -> tuple[Float[Tensor, "B H T D_h"], Float[Tensor, "B H N D_h"], Float[Tensor, "B H N D_h"]]:
    """Go back through attention, computing each tile of the weights a second time.

    A = exp(E - s),   dV = Aᵀ dY,   dA = dY Vᵀ,   dE = A ∘ (dA - rowsum(dY ∘ Y)),
    dQ = dE K / √D_h,   dK = dEᵀ Q / √D_h      (Dao et al. 2022, algorithm 4)

    Tiles in which no query may see a key are left out.

    Args:
        Q, K, V: what the forward pass was given.
        Y, s: what it returned.
        dY: the gradient of the loss with respect to Y.
        causal: as in the forward pass.
        rows, columns: the most queries and keys in a tile.
    Returns:
        dQ, dK and dV.
    """
    T, D_h = Q.shape[2:]
    N = K.shape[2]
    dQ, dK, dV = torch.zeros_like(Q), torch.zeros_like(K), torch.zeros_like(V)
    inner = (dY * Y).sum(dim=-1, keepdim=True)  # (B, H, T, 1)
    for left in range(0, N, columns):
        n = slice(left, left + columns)
        keys = left + torch.arange(K[:, :, n].shape[2], device=Q.device)
        for top in range(0, T, rows):
            t = slice(top, top + rows)
            at = N - T + top + torch.arange(Q[:, :, t].shape[2], device=Q.device)
            if causal and left > at[-1]:  # no query of the tile sees a key of it
                continue
            E = Q[:, :, t] @ K[:, :, n].mT / math.sqrt(D_h)
            if causal:
                E = E.masked_fill(keys > at[:, None], -math.inf)
            A = torch.exp(E - s[:, :, t, None])
            dE = A * (dY[:, :, t] @ V[:, :, n].mT - inner[:, :, t]) / math.sqrt(D_h)
            dV[:, :, n] += A.mT @ dY[:, :, t]
            dK[:, :, n] += dE.mT @ Q[:, :, t]
            dQ[:, :, t] += dE @ K[:, :, n]
    return dQ, dK, dV


@kernel(launch_flash)
def triton_flash_forward(
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
    """Attend from one tile of queries of one head to all keys that they may see, tile by tile.

    Program (i, j) has the queries i · ROWS … of head j, counted through all sequences.

    Args:
        Q, K, V: where queries (B·H, T, D_h), keys and values (B·H, N, D_h) begin, row by row.
        Y, s: where to store the outputs (B·H, T, D_h) and log-sums (B·H, T).
        T, N: how many queries and keys a head has.
        scale: 1 / √D_h.
        D_h: the size of a head.
        WIDTH: a power of 2, at least D_h: a tile can have no other sides.
        ROWS, COLUMNS: queries and keys in a tile.
        CAUSAL: whether a query sees only its own position and what comes before.
    """
    head = tl.program_id(1)
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    places = (head * T + t[:, None]) * D_h + d[None, :]
    inside = (t[:, None] < T) & (d[None, :] < D_h)
    q = tl.load(Q + places, mask=inside, other=0.0)
    m = tl.full((ROWS,), -1e30, tl.float32)  # not -∞: -∞ - -∞ is NaN
    z = tl.zeros((ROWS,), tl.float32)
    U = tl.zeros((ROWS, WIDTH), tl.float32)
    end = N
    if CAUSAL:
        end = tl.minimum(N, N - T + (tl.program_id(0) + 1) * ROWS)
    for left in range(0, end, COLUMNS):
        n = left + tl.arange(0, COLUMNS)
        where = (head * N + n[:, None]) * D_h + d[None, :]
        there = (n[:, None] < N) & (d[None, :] < D_h)
        k = tl.load(K + where, mask=there, other=0.0)
        v = tl.load(V + where, mask=there, other=0.0)
        E = scale * tl.dot(q, tl.trans(k), input_precision="ieee")  # (ROWS, COLUMNS), float32
        seen = n[None, :] < N
        if CAUSAL:
            seen = seen & (n[None, :] <= N - T + t[:, None])
        E = tl.where(seen, E, float("-inf"))
        highest = tl.maximum(m, tl.max(E, axis=1))
        P = tl.exp(E - highest[:, None])
        shrink = tl.exp(m - highest)
        z = shrink * z + tl.sum(P, axis=1)
        U = shrink[:, None] * U + tl.dot(P.to(v.dtype), v, input_precision="ieee")
        m = highest
    tl.store(Y + places, U / z[:, None], mask=inside)
    tl.store(s + head * T + t, m + tl.log(z), mask=t < T)


@kernel(launch_paged)
def triton_paged_decode(
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
    """Attend from the newest token of a sequence to one part of it, through one key head.

    Program (b, g, i) has the query heads g · H/G … of sequence b, which read the same keys and
    values: they are loaded once for all of them. It reads the positions from i · span up to
    (i + 1) · span or the sequence's end. (Kwon et al. 2023, §4.1; Ainslie et al. 2023; the parts:
    Dao et al. 2023)

    Args:
        Q: where the queries (B, H, D_h) begin.
        K, V: where the keys and values (G, N, S, D_h) begin: one layer of a `PagedKVCache`. Slots
            that no sequence has filled may hold anything, NaN too.
        tables: where the block tables (B, M) begin.
        lengths: where the lengths (B,) begin: how many positions each sequence has.
        Y, s: where to store the outputs (parts, B, H, D_h) and log-sums (parts, B, H): 0 and -∞
            for a part that begins beyond the sequence's end.
        N, M: how many blocks there are, and how many places a table has.
        span: how many positions a part has.
        scale: 1 / √D_h.
        H, G: heads of queries, and of keys and values.
        S, D_h: slots in a block, and the size of a head.
        SHARING, WIDTH: powers of 2, at least H/G and D_h: a tile can have no other sides.
        COLUMNS: positions in a tile.
    """
    b, g, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    r = tl.arange(0, SHARING)
    d = tl.arange(0, WIDTH)
    heads = b * H + g * (H // G) + r  # counted through all sequences
    shared = r < H // G
    inside = shared[:, None] & (d[None, :] < D_h)
    q = tl.load(Q + heads[:, None] * D_h + d[None, :], mask=inside, other=0.0)
    m = tl.full((SHARING,), -1e30, tl.float32)
    z = tl.zeros((SHARING,), tl.float32)
    U = tl.zeros((SHARING, WIDTH), tl.float32)
    end = tl.minimum(tl.load(lengths + b), (part + 1) * span)
    for left in range(part * span, end, COLUMNS):
        t = left + tl.arange(0, COLUMNS)
        block = tl.load(tables + b * M + t // S, mask=t < end, other=0)
        where = ((g * N + block) * S + t % S)[:, None] * D_h + d[None, :]
        there = (t[:, None] < end) & (d[None, :] < D_h)
        k = tl.load(K + where, mask=there, other=0.0)
        v = tl.load(V + where, mask=there, other=0.0)
        E = scale * tl.dot(q, tl.trans(k), input_precision="ieee")  # (SHARING, COLUMNS)
        E = tl.where(t[None, :] < end, E, float("-inf"))
        highest = tl.maximum(m, tl.max(E, axis=1))
        P = tl.exp(E - highest[:, None])
        shrink = tl.exp(m - highest)
        z = shrink * z + tl.sum(P, axis=1)
        U = shrink[:, None] * U + tl.dot(P.to(v.dtype), v, input_precision="ieee")
        m = highest
    heads += part * tl.num_programs(0) * H  # counted through all parts
    Y_part = U / tl.where(z == 0, 1, z)[:, None]
    tl.store(Y + heads[:, None] * D_h + d[None, :], Y_part, mask=inside)
    tl.store(s + heads, m + tl.log(z), mask=shared)


def flash_attention_backward_fault() -> tuple[str, tuple[Float[Tensor, "B H T D_h"], ...]]:
    """Say what is wrong with the black box of `flash_attention_backward`, and how to see it.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `flash_attention_backward` does. Y and s are those of the forward pass.
    """
    X = torch.eye(2, 4)[None, None]  # D_h is 4: the box's dQ and dK are twice as large
    Y, s = flash_attention_forward(X, X, X)
    return "A", (X, X, X, Y, s, X)
