"""Other correct solutions of linear_attention: loops, other orders of products, float32."""

import math

import torch
from torch import nn
from torch.nn import functional

from autograder.alternatives import alternative
from course_pkg.linear_attention import (
    HybridDecoder,
    TokenMixer,
    chunked_scan,
    chunked_scan_fault,
    delta_rule,
    discretise,
    gated_recurrence,
    linear_attention,
    parallel_scan,
    recurrent_linear_attention,
    rwkv_time_mixing,
    selective_state_space,
    short_convolution,
    state_bytes,
)
from course_pkg.llama import GatedFeedForward, RMSNorm


def phi(X):
    return torch.where(X > 0, X + 1, X.clamp(max=0).exp())


@alternative(linear_attention)
def with_epsilon(Q, K, V, normalised=True):
    Q, K = nn.functional.elu(Q) + 1, nn.functional.elu(K) + 1
    A = torch.einsum("bhtd,bhsd->bhts", Q, K).tril()
    Z = 1 / (torch.einsum("bhtd,bhtd->bht", Q, K.cumsum(2)) + 1e-6)  # as published
    return torch.einsum("bhts,bhsv,bht->bhtv", A, V, Z if normalised else torch.ones_like(Z))


@alternative(linear_attention)
def by_sums(Q, K, V, normalised=True):
    Q, K = phi(Q), phi(K)
    S = torch.einsum("bhti,bhtj->bhtij", K, V).cumsum(2)
    Y = torch.einsum("bhti,bhtij->bhtj", Q, S)
    if normalised:
        Y = Y / torch.einsum("bhti,bhti->bht", Q, K.cumsum(2)).unsqueeze(-1).clamp(min=1e-30)
    return Y


@alternative(linear_attention)
def row_by_row(Q, K, V, normalised=True):
    rows = []
    for t in range(Q.size(2)):
        a = (phi(Q[:, :, t : t + 1]) * phi(K[:, :, : t + 1])).sum(-1)
        if normalised:
            a = a / (a.sum(-1, keepdim=True) + 1e-12)
        rows.append((a.unsqueeze(-1) * V[:, :, : t + 1]).sum(2))
    return torch.stack(rows, 2)


@alternative(linear_attention)
def in_float32(Q, K, V, normalised=True):
    Q, K, V = (1 + functional.elu(Q.float())), (1 + functional.elu(K.float())), V.float()
    mask = torch.ones(Q.shape[2], Q.shape[2]).tril().bool()
    A = torch.where(mask, torch.einsum("bhti,bhsi->bhts", Q, K), 0)
    Y = torch.matmul(A, V)
    total = A.sum(-1).unsqueeze(-1)
    return torch.where(total > 0, Y / total.where(total > 0, 1.0), 0.0) if normalised else Y


@alternative(recurrent_linear_attention)
def with_a_column_of_ones(Q, K, V, state=None, normalised=True):
    Q, K = phi(Q), phi(K)
    V = torch.cat([V, torch.ones_like(V[..., :1])], -1)
    S = torch.einsum("bhti,bhtj->bhtij", K, V).cumsum(2)
    if state is not None:
        S = S + torch.cat([state[0], state[1].unsqueeze(-1)], -1).unsqueeze(2)
    Y = torch.einsum("bhti,bhtij->bhtj", Q, S)
    Y = Y[..., :-1] / (Y[..., -1:] + 1e-6) if normalised else Y[..., :-1]
    return Y, (S[:, :, -1, :, :-1], S[:, :, -1, :, -1])


@alternative(recurrent_linear_attention)
def by_outer_products(Q, K, V, state=None, normalised=True):
    if state is None:
        S, z = 0, 0
    else:
        S, z = (part.clone() for part in state)
    rows = []
    for q, k, v in zip(phi(Q).unbind(2), phi(K).unbind(2), V.unbind(2), strict=True):
        S = S + k.unsqueeze(-1) @ v.unsqueeze(-2)
        z = z + k
        y = torch.einsum("bhij,bhi->bhj", S, q)
        total = torch.einsum("bhi,bhi->bh", z, q)[..., None]
        rows.append(y / torch.where(total == 0, 1, total) if normalised else y)
    return torch.stack(rows, dim=-2), [S, z]


@alternative(delta_rule)
def by_householder(Q, K, V, beta, S=None):
    B, H, T, D = K.shape
    if S is None:
        S = torch.zeros(B, H, D, V.shape[-1], dtype=V.dtype)
    rows = []
    for t in range(T):
        k, b = K[:, :, t], beta[:, :, t, None, None]
        kk = torch.einsum("bhi,bhj->bhij", k, k)
        S = (torch.eye(D, dtype=V.dtype) - b * kk) @ S + b * k[..., None] * V[:, :, t, None, :]
        rows.append(torch.einsum("bhi,bhij->bhj", Q[:, :, t], S))
    return torch.stack(rows, 2), S


@alternative(delta_rule)
def in_parallel(Q, K, V, beta, S=None):
    """The WY form: all differences at once, by a triangular system."""
    T = K.shape[2]
    if S is None:
        S = torch.zeros(*K.shape[:2], K.shape[-1], V.shape[-1], dtype=V.dtype)
    b = beta.unsqueeze(-1)
    lower = torch.eye(T, dtype=V.dtype) + (b * (K @ K.mT)).tril(-1)
    new = torch.linalg.solve_triangular(lower, b * (V - K @ S), upper=False)
    return Q @ S + (Q @ K.mT).tril() @ new, S + K.mT @ new


@alternative(delta_rule)
def in_float32(Q, K, V, beta, S=None):
    Q, K, V, beta = Q.float(), K.float(), V.float(), beta.float()
    S = torch.zeros(*K.shape[:2], K.shape[3], V.shape[3]) if S is None else S.float()
    rows = []
    for t in range(K.shape[2]):
        k = K[:, :, t]
        held = (S * k[..., None]).sum(-2)
        new = (V[:, :, t] - held) * beta[:, :, t, None]
        S = S + k[..., None] * new[..., None, :]
        rows.append((S * Q[:, :, t, :, None]).sum(-2))
    return torch.stack(rows, 2), S


@alternative(gated_recurrence)
def by_diagonal_matrices(Q, K, V, decay, S=None):
    decay = torch.broadcast_to(decay, K.shape)
    rows = []
    for t in range(K.shape[2]):
        new = torch.einsum("bhi,bhj->bhij", K[:, :, t], V[:, :, t])
        S = new if S is None else torch.diag_embed(decay[:, :, t]) @ S + new
        rows.append((Q[:, :, t].unsqueeze(2) @ S).squeeze(2))
    return torch.stack(rows, 2), S


@alternative(gated_recurrence)
def by_scan(Q, K, V, decay, S=None):
    a = decay.expand(K.shape).movedim(2, 1)[..., None]
    b = (K.unsqueeze(-1) * V.unsqueeze(-2)).movedim(2, 1)  # (B, T, H, D, D_V)
    a = a.expand(b.shape)
    if S is not None:
        b = torch.cat([(a[:, 0] * S + b[:, 0]).unsqueeze(1), b[:, 1:]], dim=1)
    states = parallel_scan(a, b)
    return torch.einsum("bhti,bthij->bhtj", Q, states), states[:, -1]


@alternative(gated_recurrence)
def in_float32(Q, K, V, decay, S=None):
    B, H, T, D = K.shape
    decay = (decay.float() * torch.ones(B, H, T, D)).unbind(2)
    S = torch.zeros(B, H, D, V.size(-1)) if S is None else S.float()
    rows = []
    for t in range(T):
        S = S * decay[t].unsqueeze(-1) + K[:, :, t].float()[..., None] * V[:, :, t, None].float()
        rows.append(torch.einsum("bhi,bhij->bhj", Q[:, :, t].float(), S))
    return torch.stack(rows, 2), S


@alternative(discretise)
def by_einsum(delta, A, K, exact=True):
    rate = torch.einsum("btd,dn->btdn", delta, A)
    if not exact:
        return torch.exp(rate), torch.einsum("btd,btn->btdn", delta, K)
    return torch.exp(rate), torch.special.expm1(rate) * K.unsqueeze(2) / A


@alternative(discretise)
def by_the_hyperbolic_sine(delta, A, K, exact=True):
    rate = delta.unsqueeze(-1) * A
    length = 2 * (rate / 2).exp() * torch.sinh(rate.clamp(min=-600) / 2) / A
    length = torch.where(rate < -600, -1 / A, length)
    return rate.exp(), (length if exact else delta.unsqueeze(-1)) * K.unsqueeze(-2)


@alternative(selective_state_space)
def by_scan(X, delta, A, K, Q, skip, h=None):
    a, k = discretise(delta, A, K, exact=False)
    b = k * X.unsqueeze(-1)
    if h is not None:
        b = torch.cat([b[:, :1] + a[:, :1] * h[:, None], b[:, 1:]], dim=1)
    states = parallel_scan(a, b)
    return torch.einsum("btdn,btn->btd", states, Q) + X * skip, states[:, -1]


@alternative(selective_state_space)
def by_loops(X, delta, A, K, Q, skip, h=None):
    (B, T, D), N = X.shape, A.shape[1]
    h = torch.zeros(B, D, N, dtype=X.dtype) if h is None else h
    rows = []
    for t in range(T):
        decay = torch.exp(torch.einsum("bd,dn->bdn", delta[:, t], A))
        h = decay * h + torch.einsum("bd,bn->bdn", delta[:, t] * X[:, t], K[:, t])
        rows.append(torch.einsum("bdn,bn->bd", h, Q[:, t]))
    return torch.stack(rows, 1) + skip * X, h


@alternative(selective_state_space)
def in_float32(X, delta, A, K, Q, skip, h=None):
    given = (part.float() for part in (X, delta, A, K, Q, skip))
    return selective_state_space(*given, None if h is None else h.float())


@alternative(parallel_scan)
def odd_and_even(a, b):
    """Join neighbours, scan the half, and fill in the other half (Blelloch)."""
    T = a.shape[1]
    if T == 1:
        return b
    first_a, first_b = a[:, : T - T % 2 : 2], b[:, : T - T % 2 : 2]
    second_a, second_b = a[:, 1::2], b[:, 1::2]
    odd = parallel_scan_again(first_a * second_a, second_a * first_b + second_b)
    even = b[:, 2::2] + a[:, 2::2] * odd[:, : (T - 1) // 2]
    even = torch.cat([b[:, :1], even], dim=1)
    h = torch.stack([even[:, : odd.shape[1]], odd], dim=2).flatten(1, 2)
    return torch.cat([h, even[:, odd.shape[1] :]], dim=1)


parallel_scan_again = odd_and_even


@alternative(parallel_scan)
def in_halves(a, b):
    def states(a, b):
        """All states, and the products of a from the start."""
        T = a.shape[1]
        if T == 1:
            return a, b
        left_a, left = states(a[:, : T // 2], b[:, : T // 2])
        right_a, right = states(a[:, T // 2 :], b[:, T // 2 :])
        right = right + right_a * left[:, -1:]
        return torch.cat([left_a, right_a * left_a[:, -1:]], 1), torch.cat([left, right], 1)

    return states(a, b)[1]


@alternative(parallel_scan)
def with_padding(a, b):
    for level in range(math.ceil(math.log2(a.shape[1]))):
        step = 2**level
        before_a = torch.cat([torch.ones_like(a[:, :step]), a[:, :-step]], 1)
        before_b = torch.cat([torch.zeros_like(b[:, :step]), b[:, :-step]], 1)
        b = b + a * before_b
        a = a * before_a
    return b


@alternative(chunked_scan)
def by_segments(Q, K, V, log_decay, S=None, chunk=16):
    """The sums between steps by a masked cumulative sum, as Mamba-2's program does."""
    if chunk <= 0:
        raise ValueError("empty chunks")
    if S is None:
        S = torch.zeros(*K.shape[:2], K.size(3), V.size(3), dtype=V.dtype)
    rows = []
    for start in range(0, K.size(2), chunk):
        q, k, v, g = (part[:, :, start : start + chunk] for part in (Q, K, V, log_decay))
        C = g.size(2)
        lower = torch.ones(C, C).tril().bool()
        steps = torch.where(lower.tril(-1), g[..., None], torch.zeros((), dtype=g.dtype))
        segments = steps.cumsum(-2)
        L = torch.where(lower, segments, -torch.inf).exp()
        rows.append(((q @ k.mT) * L) @ v + (q * g.cumsum(-1).exp()[..., None]) @ S)
        S = S * g.sum(-1).exp()[..., None, None] + (k * L[..., -1, :, None]).mT @ v
    return torch.cat(rows, 2), S


@alternative(chunked_scan)
def in_float32(Q, K, V, log_decay, S=None, chunk=16):
    given = (part.float() for part in (Q, K, V, log_decay))
    return chunked_scan(*given, None if S is None else S.float(), chunk)


@alternative(chunked_scan_fault)
def second_chunk_in_float64():
    Q, K, V = torch.randn(3, 2, 3, 7, 4, dtype=torch.float64)
    return ["E", [Q, K, V, -torch.rand(2, 3, 7, dtype=torch.float64) - 0.5, None, 3]]


@alternative(chunked_scan_fault)
def one_step():
    one = torch.ones(1, 1, 1, 1)
    return "E", (one, one, one, -torch.ones(1, 1, 1), 2 * one, 1)


@alternative(rwkv_time_mixing)
def with_a_running_maximum(R, K, V, w, u, state=None):
    """As transformers does: both sums, scaled by the largest exponential so far."""
    if state is None:
        top = bottom = torch.zeros_like(K[:, 0])
        largest = torch.full_like(top, -1e38)
    else:
        top, bottom, largest = state[0], torch.ones_like(state[0]), state[1]
    rows = []
    for t in range(K.shape[1]):
        k, v = K[:, t], V[:, t]
        shift = torch.maximum(largest, u + k)
        old, new = (largest - shift).exp(), (u + k - shift).exp()
        rows.append((old * top + new * v) / (old * bottom + new) * R[:, t].sigmoid())
        shift = torch.maximum(largest - w, k)
        old, new = (largest - w - shift).exp(), (k - shift).exp()
        top, bottom, largest = old * top + new * v, old * bottom + new, shift
    return torch.stack(rows, 1), (top / bottom, largest + bottom.log())


@alternative(rwkv_time_mixing)
def as_attention(R, K, V, w, u, state=None):
    """A softmax for each channel, over the past and the present."""
    T = K.shape[1]
    values, keys = [], []
    if state is not None:
        values, keys = [state[0]], [state[1]]  # as of one step before the first
    values, keys = [*values, *V.unbind(1)], [*keys, *K.unbind(1)]
    past, rows = len(keys) - T, []
    for t in range(past, past + T + 1):
        scores = [k - (t - 1 - s) * w for s, k in enumerate(keys[:t])]
        if t == past + T:
            scores, v = torch.stack(scores), torch.stack(values)
            return torch.stack(rows, 1), (
                (scores.softmax(0) * v).sum(0),
                scores.logsumexp(0),
            )
        A = torch.stack([*scores, u + keys[t]]).softmax(0)
        y = (A * torch.stack(values[: t + 1])).sum(0)
        rows.append(torch.sigmoid(R[:, t - past]) * y)


@alternative(short_convolution)
def by_unfolding(X, taps, past=None):
    W = taps.shape[1]
    if past is None:
        X = functional.pad(X, (0, 0, W - 1, 0))
    else:
        X = torch.cat([past, X], 1)
    return torch.einsum("btdw,dw->btd", X.unfold(1, W, 1), taps), X[:, X.shape[1] - W + 1 :]


@alternative(short_convolution)
def step_by_step(X, taps, past=None):
    W = taps.shape[1]
    seen = [torch.zeros_like(X[:, 0])] * (W - 1) if past is None else list(past.unbind(1))
    rows = []
    for x in X.unbind(1):
        seen = [*seen, x]
        rows.append((torch.stack(seen[-W:], -1) * taps).sum(-1))
    kept = torch.stack(seen[len(seen) - W + 1 :], 1) if W > 1 else X[:, :0]
    return torch.stack(rows, 1), kept


@alternative(short_convolution)
def in_float32(X, taps, past=None):
    return short_convolution(X.float(), taps.float(), None if past is None else past.float())


@alternative(TokenMixer)
class StepByStep(nn.Module):
    """One step after the other, by einsum."""

    def __init__(self, D, H, rule, width=4):
        super().__init__()
        if rule not in {"softmax", "add", "decay", "select", "delta"}:
            raise ValueError(rule)
        self.H, self.rule, self.D = H, rule, D
        self.W_QKV = nn.Parameter(torch.randn(D, 3 * D))
        self.taps = nn.Parameter(torch.randn(3 * D, width))
        if rule in {"select", "delta"}:
            self.W_gate, self.b_gate = (nn.Parameter(torch.randn(*s)) for s in ((D, H), (H,)))
        if rule == "select":
            self.log_a = nn.Parameter(torch.zeros(H))
        self.norm = nn.RMSNorm(D // H, 1e-5)
        self.W_O = nn.Parameter(torch.randn(D, D))

    def attend(self, Q, K, V, memory):
        new = torch.cat((K, V), 3)
        memory = new if memory is None else torch.cat((memory, new), 2)
        D_h, T = Q.shape[3], Q.shape[2]
        K, V = memory[..., :D_h], memory[..., D_h:]
        rows = []
        for t in range(T):
            end = K.shape[2] - T + t + 1
            A = torch.softmax(Q[:, :, t : t + 1] @ K[:, :, :end].mT / D_h**0.5, -1)
            rows.append(A @ V[:, :, :end])
        return torch.cat(rows, 2), memory

    def recur(self, Q, K, V, gate, S):
        if S is None:
            S = torch.zeros(*Q.shape[:2], Q.shape[3], Q.shape[3], dtype=Q.dtype)
        keep, rows = torch.ones(self.H, 1, 1, dtype=Q.dtype), []
        if self.rule == "add":
            Q, K = phi(Q), phi(K)
        elif self.rule == "decay":
            keep = 1 - 0.5 ** torch.arange(5, 5 + self.H, dtype=Q.dtype)[:, None, None]
        for t in range(Q.shape[2]):
            k, v = K[:, :, t], V[:, :, t]
            if self.rule == "delta":
                k = k / k.norm(dim=-1, keepdim=True)
                v = (v - torch.einsum("bhij,bhi->bhj", S, k)) * gate[:, :, t, None].sigmoid()
            elif self.rule == "select":
                delta = functional.softplus(gate[:, :, t, None])
                keep = torch.exp(-self.log_a.exp()[:, None] * delta)[..., None]
                v = v * delta
            S = keep * S + k[..., None] * v[..., None, :]
            rows.append(torch.einsum("bhi,bhij->bhj", Q[:, :, t], S))
        return torch.stack(rows, 2), S

    def forward(self, X, state=None):
        B, T, D = X.shape
        F = X @ self.W_QKV
        F, past = short_convolution(F, self.taps, None if state is None else state[1])
        F = F * torch.sigmoid(F)
        Q, K, V = F.view(B, T, 3, self.H, D // self.H).permute(2, 0, 3, 1, 4)
        memory = None if state is None else state[0]
        if self.rule == "softmax":
            Y, memory = self.attend(Q, K, V, memory)
        else:
            gate = None
            if hasattr(self, "W_gate"):
                gate = (X @ self.W_gate + self.b_gate).transpose(1, 2)
            Y, memory = self.recur(Q, K, V, gate, memory)
        return self.norm(Y).transpose(1, 2).reshape(B, T, D) @ self.W_O, (memory, past)


@alternative(TokenMixer)
class ByTorch(TokenMixer):
    """Torch's attention is forbidden; scores by einsum, and a mask of -∞."""

    def attend(self, Q, K, V, memory):
        both = torch.stack((K, V))
        if memory is not None:
            old = torch.stack(memory.split(K.shape[3], 3))
            both = torch.cat((old, both), 3)
        K, V = both
        T, N = Q.shape[2], K.shape[2]
        E = torch.einsum("bhtd,bhsd->bhts", Q, K) / math.sqrt(Q.shape[3])
        E = E + torch.full((T, N), -torch.inf, dtype=E.dtype).triu(N - T + 1)
        return E.softmax(-1) @ V, torch.cat((K, V), 3)

    def recur(self, Q, K, V, gate, S):
        if self.rule == "delta":
            K = K / torch.sqrt((K**2).sum(-1, keepdim=True))
            return delta_rule(Q, K, V, gate.sigmoid(), S)
        decay = torch.ones((), dtype=Q.dtype)
        if self.rule == "add":
            Q, K = phi(Q), phi(K)
        if self.rule == "decay":
            rates = [1 - 2.0 ** (-5 - h) for h in range(self.H)]
            decay = torch.tensor(rates, dtype=Q.dtype)[:, None, None]
        if self.rule == "select":
            delta = torch.log1p(gate.exp()).unsqueeze(-1)
            decay, K = torch.exp(-delta * self.log_a.exp()[:, None, None]), K * delta
        return gated_recurrence(Q, K, V, decay, S)


@alternative(HybridDecoder)
class OwnLists(nn.Module):
    """The same parameters, made and used one layer at a time."""

    def __init__(self, V, D, H, L, rule="select", every=None):
        super().__init__()
        self.token = nn.Embedding(V, D)
        self.norms, self.mixers, self.networks = (nn.ModuleList() for _ in range(3))
        for n in range(L):
            attends = every is not None and n % every == every - 1
            self.mixers.append(TokenMixer(D, H, "softmax" if attends else rule))
            self.networks.append(GatedFeedForward(D))
            self.norms.extend([RMSNorm(D), RMSNorm(D)])
        self.norm = RMSNorm(D)
        self.W_head = nn.Parameter(torch.randn(D, V))

    def forward(self, tokens, states=None):
        X, states = self.token.weight[tokens], list(states or [None] * len(self.mixers))
        norms = iter(self.norms)
        for n, (mixer, network) in enumerate(zip(self.mixers, self.networks, strict=True)):
            Y, states[n] = mixer(next(norms)(X), states[n])
            X = X + Y
            X = X + network(next(norms)(X))
        return torch.matmul(self.norm(X), self.W_head), tuple(states)


@alternative(HybridDecoder)
class Replaced(HybridDecoder):
    """Recurrent layers first; then some are replaced."""

    def __init__(self, V, D, H, L, rule="select", every=None):
        super().__init__(V, D, H, L, rule)
        for n in range(L):
            if every and (n + 1) % every == 0:
                self.mixers[n] = TokenMixer(D, H, "softmax")


@alternative(state_bytes)
def layer_by_layer(T, D, H, L, every=None, width=4, size=4):
    if D / H != D // H:
        raise ValueError("D / H is not whole")
    state = cache = 0
    for n in range(1, L + 1):
        state += (width - 1) * 3 * D * size
        if every is not None and n % every == 0:
            cache += 2 * D * T * size
        else:
            state += D * (D // H) * size
    return {"cache": cache, "state": state}


@alternative(state_bytes)
def on_the_meta_device(T, D, H, L, every=None, width=4, size=4):
    if D % H != 0:
        raise ValueError("D is not a multiple of H")
    attention = 0 if not every else L // every
    S = torch.empty(L - attention, H, D // H, D // H, device="meta")
    past = torch.empty(L, width - 1, 3 * D, device="meta")
    kept = torch.empty(attention, 2, T, D, device="meta")
    return {"state": (S.numel() + past.numel()) * size, "cache": kept.numel() * size}
