"""Other correct solutions of lstm: loops, einsum, nn.Linear, masks, float32."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg.lstm import (
    LSTM,
    additive_cell_step,
    cell_gradient,
    chrono_bias,
    convert_torch_lstm,
    gru_step,
    gru_step_fault,
    init_forget_bias,
    lstm_step,
)


@alternative(additive_cell_step)
def two_products(x, h, c, W, b):
    H = h.shape[1]
    c_t = (h @ W[:, :H].T + x @ W[:, H:].T + b).tanh() + c
    return c_t.tanh(), c_t


@alternative(additive_cell_step)
def loop_over_sequences(x, h, c, W, b):
    rows = [c[n] + torch.tanh(W @ torch.cat([h[n], x[n]]) + b) for n in range(len(x))]
    c_t = torch.stack(rows)
    return [torch.tanh(c_t), c_t]


@alternative(lstm_step)
def linear_and_split(x, h, c, W, b):
    i, f, o, g = F.linear(torch.hstack([h, x]), W, b).split(h.shape[1], dim=-1)
    c_t = f.sigmoid().mul(c).addcmul(i.sigmoid(), g.tanh())
    return o.sigmoid() * c_t.tanh(), c_t


@alternative(lstm_step)
def einsum_by_gate(x, h, c, W, b):
    _B, H = h.shape
    a = torch.einsum("gij,bj->gbi", W.view(4, H, -1), torch.cat((h, x), -1)) + b.view(4, 1, H)
    i, f, o = 1 / (1 + torch.exp(-a[:3].clamp(-500, 500)))
    c_t = f * c + i * torch.tanh(a[3])
    return o * torch.tanh(c_t), c_t


@alternative(lstm_step)
def in_float32(x, h, c, W, b):
    i, f, o, g = (torch.cat([h, x], 1).float() @ W.float().T + b.float()).chunk(4, 1)
    c_t = f.sigmoid() * c.float() + i.sigmoid() * g.tanh()
    return o.sigmoid() * c_t.tanh(), c_t


@alternative(LSTM)
class InstanceByInstance(nn.Module):
    """Runs each sequence on its own, without any mask."""

    def __init__(self, D, H):
        super().__init__()
        self.W = nn.Parameter((2 * torch.rand(4 * H, H + D) - 1) / math.sqrt(H))
        self.b = nn.Parameter((2 * torch.rand(4 * H) - 1) / math.sqrt(H))

    def forward(self, X, state=None, lengths=None):
        B, T, _ = X.shape
        H = len(self.b) // 4
        h_0, c_0 = state or (torch.zeros(B, H), torch.zeros(B, H))
        rows, last_h, last_c = [], [], []
        for n in range(B):
            h, c = h_0[n : n + 1].to(X), c_0[n : n + 1].to(X)
            outputs = torch.zeros(T, H, dtype=X.dtype)
            steps = T if lengths is None else int(lengths[n])
            row = []
            for t in range(steps):
                h, c = lstm_step(X[n : n + 1, t], h, c, self.W, self.b)
                row.append(h[0])
            rows.append(torch.cat([torch.stack(row), outputs[steps:]]))
            last_h.append(h[0])
            last_c.append(c[0])
        return torch.stack(rows), (torch.stack(last_h), torch.stack(last_c))


@alternative(LSTM)
class Blended(nn.Module):
    """Multiplies by a 0/1 mask instead of selecting, and writes into a tensor of outputs."""

    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.W = nn.Parameter(torch.empty(4 * H, D + H))
        self.b = nn.Parameter(torch.empty(4 * H))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(H**-0.5), H**-0.5)

    def forward(self, X, state=None, lengths=None):
        B, T, _ = X.shape
        h = c = torch.zeros(B, self.H)
        if state is not None:
            h, c = state
        if lengths is None:
            lengths = torch.full((B,), T)
        outputs = torch.zeros(B, T, self.H, dtype=X.dtype)
        for t, x in enumerate(X.unbind(1)):
            on = (lengths > t).to(X.dtype).unsqueeze(1)
            h_t, c_t = lstm_step(x, h.to(X), c.to(X), self.W, self.b)
            h, c = on * h_t + (1 - on) * h, on * c_t + (1 - on) * c
            outputs[:, t] = on * h_t
        return outputs, (h, c)


@alternative(gru_step)
def interpolation(x, h, W_x, W_h, b_x, b_h):
    r_x, z_x, n_x = F.linear(x, W_x, b_x).tensor_split(3, dim=-1)
    r_h, z_h, n_h = F.linear(h, W_h, b_h).tensor_split(3, dim=-1)
    return torch.lerp(torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h), h, torch.sigmoid(z_x + z_h))


@alternative(gru_step)
def fused_gates(x, h, W_x, W_h, b_x, b_h):
    H = h.shape[1]
    W = torch.cat([W_h[: 2 * H], W_x[: 2 * H]], dim=1)
    a = torch.cat([h, x], dim=1) @ W.T + b_x[: 2 * H] + b_h[: 2 * H]
    r, z = torch.sigmoid(a)[:, :H], torch.sigmoid(a)[:, H:]
    n = torch.tanh(x @ W_x[2 * H :].T + b_x[2 * H :] + r * (h @ W_h[2 * H :].T + b_h[2 * H :]))
    return n + z * (h - n)


@alternative(cell_gradient)
def reversed_cumulative_product(f):
    later = torch.cat([f[:, 1:], torch.ones_like(f[:, :1])], dim=1)
    return later.flip(1).cumprod(1).flip(1)


@alternative(cell_gradient)
def by_autograd(f):
    with torch.enable_grad():
        states = [torch.zeros_like(f[:, 0], requires_grad=True) for _ in range(f.shape[1])]
        c = torch.zeros_like(f[:, 0])
        for t, state in enumerate(states):
            c = f[:, t] * c + state
        return torch.stack(torch.autograd.grad(c.sum(), states), dim=1)


@alternative(cell_gradient)
def entry_by_entry(f):
    B, T, H = f.shape
    return torch.tensor(
        [
            [[math.prod(f[n, t + 1 :, k].tolist()) for k in range(H)] for t in range(T)]
            for n in range(B)
        ],
        dtype=f.dtype,
    )


@alternative(convert_torch_lstm)
def gate_by_gate(state):
    if len(state) not in (2, 4) or any("l1" in name or "reverse" in name for name in state):
        raise ValueError(f"unexpected weights: {list(state)}")
    H = state["weight_hh_l0"].shape[1]
    i, f, g, o = (slice(n * H, (n + 1) * H) for n in range(4))
    W = [torch.hstack((state["weight_hh_l0"][s], state["weight_ih_l0"][s])) for s in (i, f, o, g)]
    zero = torch.zeros(4 * H)
    b = state.get("bias_ih_l0", zero) + state.get("bias_hh_l0", zero)
    return {"b": torch.hstack([b[s] for s in (i, f, o, g)]), "W": torch.vstack(W)}


@alternative(convert_torch_lstm)
def by_index(state):
    known = {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"}
    if not known.issuperset(state):
        raise ValueError(f"only one layer and one direction, not {set(state) - known}")
    rows = torch.arange(len(state["weight_hh_l0"])).view(4, -1)[[0, 1, 3, 2]].flatten()
    W = torch.cat((state["weight_hh_l0"], state["weight_ih_l0"]), -1).index_select(0, rows)
    if "bias_hh_l0" not in state:
        return {"W": W, "b": torch.zeros(len(W))}
    return {"W": W, "b": state["bias_hh_l0"][rows] + state["bias_ih_l0"][rows]}


@alternative(init_forget_bias)
def joined(b, value=1.0):
    i, f, o, g = b.chunk(4)
    return torch.cat([i, torch.full_like(f, value), o, g])


@alternative(init_forget_bias)
def selected(b, value=1.0):
    gate = torch.arange(len(b)) // (len(b) // 4)
    return torch.where(gate == 1, value, b)


@alternative(chrono_bias)
def by_logit(b, u, T_max):
    if T_max <= 1:
        raise ValueError("T_max")
    _i, _f, o, g = b.chunk(4)
    tau = 2 + (T_max - 2) * u
    forget = torch.logit(1 - 1 / tau)
    return torch.cat([-forget, forget, o, g])


@alternative(chrono_bias)
def cell_by_cell(b, u, T_max):
    if T_max < 2:
        raise ValueError(T_max)
    forget = [math.log(1 + float(v) * (T_max - 2)) for v in u]
    others = b[2 * len(u) :].tolist()
    return torch.tensor([-value for value in forget] + forget + others)


@alternative(gru_step_fault)
def large_and_in_float64():
    sizes = (5, 3), (5, 4), (12, 3), (12, 4), (12,), (12,)
    return "D", [torch.randn(*size, dtype=torch.float64) for size in sizes]


@alternative(gru_step_fault)
def closed_gate():
    b_x, b_h = torch.zeros(6), torch.full((6,), 2.0)
    b_x[:2] = -100
    return [
        "D",
        (torch.zeros(1, 3), torch.zeros(1, 2), torch.zeros(6, 3), torch.zeros(6, 2), b_x, b_h),
    ]
