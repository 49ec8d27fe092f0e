"""Other correct solutions of rnn: loops, einsum, autograd, flat vectors, float32."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg.rnn import (
    clip_grad_norm,
    clip_grad_norm_fault,
    gradient_norms,
    linear_rnn_gradient,
    rnn_backward,
    rnn_forward,
    rnn_step,
    truncated_bptt,
)


@alternative(rnn_step)
def two_products(x, h, W, b):
    H = len(b)
    return (h @ W[:, :H].T + x @ W[:, H:].T + b).tanh()


@alternative(rnn_step)
def sequence_by_sequence(x, h, W, b):
    return torch.stack([torch.tanh(W @ torch.cat([h[n], x[n]]) + b) for n in range(len(x))])


@alternative(rnn_step)
def in_float32(x, h, W, b):
    return F.linear(torch.hstack([h, x]).float(), W.float(), b.float()).tanh()


@alternative(rnn_forward)
def torchs_rnn(X, W, b, h_0=None):
    """With the bias as the weight of one more input, which is always one."""
    B, T, D = X.shape
    H = len(b)
    rnn = nn.RNN(D + 1, H, batch_first=True, bias=False)
    weights = {"weight_hh_l0": W[:, :H], "weight_ih_l0": torch.cat([W[:, H:], b[:, None]], dim=1)}
    inputs = torch.cat([X, X.new_ones(B, T, 1)], dim=2)
    h_0 = X.new_zeros(B, H) if h_0 is None else h_0
    outputs, _ = torch.func.functional_call(rnn, weights, (inputs, h_0[None]))
    return outputs


@alternative(rnn_forward)
def written_into_a_tensor(X, W, b, h_0=None):
    B, T, _ = X.shape
    outputs = torch.zeros(B, T, len(b), dtype=X.dtype)
    h = torch.zeros(B, len(b), dtype=X.dtype) if h_0 is None else h_0
    for t in range(T):
        h = rnn_step(X[:, t], h, W, b)
        outputs[:, t] = h
    return outputs


@alternative(rnn_forward)
def inputs_projected_at_once(X, W, b, h_0=None):
    H = W.shape[0]
    projected = torch.einsum("btd,hd->bth", X, W[:, H:]) + b
    state = X.new_zeros(X.shape[0], H) if h_0 is None else h_0
    outputs = []
    for t in range(X.shape[1]):
        state = torch.tanh(projected[:, t] + state @ W[:, :H].T)
        outputs.append(state[:, None])
    return torch.cat(outputs, 1)


@alternative(rnn_backward)
def summed_at_the_end(grad_outputs, outputs, X, W, h_0=None):
    B, T, H = outputs.shape
    first = torch.zeros(B, 1, H, dtype=X.dtype) if h_0 is None else h_0[:, None]
    inputs = torch.cat([torch.cat([first, outputs[:, :-1]], 1), X], 2)  # (B, T, H+D)
    deltas, arriving = [], 0
    for t in range(T - 1, -1, -1):
        deltas.insert(0, (grad_outputs[:, t] + arriving) * (1 - outputs[:, t].square()))
        arriving = deltas[0] @ W[:, :H]
    deltas = torch.stack(deltas, 1)
    grad_W = torch.einsum("bth,bti->hi", deltas, inputs)
    return [deltas @ W[:, H:], grad_W, deltas.sum((0, 1)), arriving]


@alternative(rnn_backward)
def jacobian_by_jacobian(grad_outputs, outputs, X, W, h_0=None):
    """One sequence at a time, with the Jacobian of every step written out."""
    B, T, H = outputs.shape
    h_0 = torch.zeros(B, H, dtype=X.dtype) if h_0 is None else h_0
    grad_X, grad_h_0 = torch.zeros_like(X), torch.zeros_like(h_0)
    grad_W, grad_b = torch.zeros_like(W), torch.zeros(H, dtype=X.dtype)
    for n in range(B):
        g = torch.zeros(H, dtype=X.dtype)
        for t in range(T - 1, -1, -1):
            bend = torch.diag(1 - outputs[n, t] ** 2)
            total = grad_outputs[n, t] + g
            h_before = h_0[n] if t == 0 else outputs[n, t - 1]
            grad_X[n, t] = (bend @ W[:, H:]).T @ total
            grad_W += torch.outer(bend @ total, torch.cat([h_before, X[n, t]]))
            grad_b += bend @ total
            g = (bend @ W[:, :H]).T @ total
        grad_h_0[n] = g
    return grad_X, grad_W, grad_b, grad_h_0


@alternative(truncated_bptt)
def by_autograd(grad_outputs, X, W, b, k, h_0=None):
    if k <= 0:
        raise ValueError("k")
    with torch.enable_grad():
        leaves = [tensor.detach().clone().requires_grad_() for tensor in (X, W, b)]
        h_0 = torch.zeros(len(X), len(b), dtype=X.dtype) if h_0 is None else h_0
        h_0 = h_0.detach().clone().requires_grad_()
        h, outputs = h_0, []
        for t in range(X.shape[1]):
            h = h.detach() if t and t % k == 0 else h
            h = rnn_step(leaves[0][:, t], h, *leaves[1:])
            outputs.append(h)
        loss = (torch.stack(outputs, 1) * grad_outputs).sum()
        return torch.autograd.grad(loss, [*leaves, h_0])


@alternative(truncated_bptt)
def forward_once(grad_outputs, X, W, b, k, h_0=None):
    if k < 1:
        raise ValueError(f"k is {k}")
    T, H = X.shape[1], len(b)
    outputs = rnn_forward(X, W, b, h_0)
    h_0 = X.new_zeros(len(X), H) if h_0 is None else h_0
    grad_X, grad_W, grad_b = torch.zeros_like(X), torch.zeros_like(W), torch.zeros_like(b)
    grad_h = torch.zeros_like(h_0)
    for t in range(T)[::-1]:
        if (t + 1) % k == 0:
            grad_h = torch.zeros_like(h_0)
        delta = (grad_outputs[:, t] + grad_h) * (1 - outputs[:, t].pow(2))
        before = outputs[:, t - 1] if t else h_0
        grad_W = grad_W + delta.T @ torch.hstack([before, X[:, t]])
        grad_b = grad_b + delta.sum(0)
        grad_h, grad_X[:, t] = delta @ W[:, :H], delta @ W[:, H:]
    return grad_X, grad_W, grad_b, grad_h


@alternative(gradient_norms)
def products_of_jacobians(grad_last, outputs, W):
    B, T, H = outputs.shape
    product = torch.eye(H, dtype=W.dtype).expand(B, H, H)  # ∂h_T/∂h_t
    norms = torch.zeros(B, T, dtype=W.dtype)
    for t in range(T - 1, -1, -1):
        norms[:, t] = torch.einsum("bi,bij->bj", grad_last, product).norm(dim=-1)
        product = product @ (torch.diag_embed(1 - outputs[:, t] ** 2) @ W[:, :H])
    return norms


@alternative(gradient_norms)
def differences_of_backward(grad_last, outputs, W):
    """By rnn_backward, on every end of the sequence: its gradient of the first state."""
    B, T, H = outputs.shape
    X = torch.zeros(B, T, W.shape[1] - H, dtype=W.dtype)
    seen = torch.zeros_like(outputs)
    seen[:, -1] = grad_last
    norms = [grad_last.pow(2).sum(1).sqrt()]
    for t in range(T - 2, -1, -1):
        end = slice(t + 1, None)
        grad_h = rnn_backward(seen[:, end], outputs[:, end], X[:, end], W, outputs[:, t])[3]
        norms.insert(0, grad_h.pow(2).sum(1).sqrt())
    return torch.stack(norms, 1)


@alternative(linear_rnn_gradient)
def library_power(W_hh, T):
    if T < 0:
        raise ValueError("negative")
    return torch.linalg.matrix_power(W_hh, T)


@alternative(linear_rnn_gradient)
def repeated_squaring(W_hh, T):
    if T < 0:
        raise ValueError(T)
    J, square = torch.eye(W_hh.shape[0]).to(W_hh), W_hh
    while T:
        J = J @ square if T % 2 else J
        square, T = square @ square, T // 2
    return J


@alternative(linear_rnn_gradient)
def column_by_column(W_hh, T):
    """Follow each unit vector forward."""
    if T < 0:
        raise ValueError(T)
    columns = []
    for h in torch.eye(len(W_hh), dtype=W_hh.dtype):
        for _ in range(T):
            h = W_hh.mv(h)
        columns.append(h)
    return torch.stack(columns, dim=1)


@alternative(clip_grad_norm)
def one_long_vector(gradients, max_norm):
    if max_norm <= 0:
        raise ValueError("max_norm")
    norm = torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in gradients]))
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    return [g * factor for g in gradients], norm


@alternative(clip_grad_norm)
def plain_python(gradients, max_norm):
    if max_norm <= 0:
        raise ValueError("max_norm")
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
    factor = min(1.0, max_norm / norm) if norm else 1.0
    return tuple(factor * g for g in gradients), norm


@alternative(clip_grad_norm)
def by_torch(gradients, max_norm):
    if not max_norm > 0:
        raise ValueError("max_norm")
    parameters = [nn.Parameter(torch.empty_like(g)) for g in gradients]
    for parameter, g in zip(parameters, gradients, strict=True):
        parameter.grad = g.clone()
    norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    return [parameter.grad for parameter in parameters], norm


@alternative(clip_grad_norm_fault)
def many_and_in_float64():
    shapes = (2, 3), (4,), (), (2, 2, 2)
    return ["C", [[torch.randn(shape, dtype=torch.float64) for shape in shapes], 0.1]]


@alternative(clip_grad_norm_fault)
def both_clipped():
    return "C", ([torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])], 1)
