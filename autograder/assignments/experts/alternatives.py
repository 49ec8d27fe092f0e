"""Other correct solutions of experts."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg.experts import (
    LoRA,
    MixtureOfExperts,
    balance_by_bias,
    load_balancing_loss,
    load_balancing_loss_fault,
    lora_parameters,
    route_top_k,
)


@alternative(route_top_k)
def renormalised(logits, k):
    if k < 1 or k > logits.size(-1):
        raise ValueError("impossible")
    logs = torch.log_softmax(logits, dim=-1)
    order = logs.argsort(dim=-1, descending=True)[..., :k]
    best = logs.gather(-1, order)
    return (best - best.logsumexp(dim=-1, keepdim=True)).exp(), order


@alternative(route_top_k)
def largest_of_all_shares(logits, k):
    """As Hugging Face's Mixtral does it."""
    if k < 1 or k > logits.size(-1):
        raise ValueError("impossible")
    weights, experts = torch.softmax(logits, dim=-1).topk(k, dim=-1)
    return weights / weights.sum(dim=-1, keepdim=True), experts


@alternative(route_top_k)
def masked(logits, k):
    if k not in range(1, logits.shape[1] + 1):
        raise ValueError("impossible")
    experts = torch.topk(logits, k).indices
    left_out = torch.ones_like(logits, dtype=torch.bool).scatter(1, experts, False)
    weights = logits.masked_fill(left_out, -math.inf).softmax(dim=1)
    return weights.gather(1, experts), experts


@alternative(route_top_k)
def one_after_the_other(logits, k):
    if not 0 < k <= len(logits[0]):
        raise ValueError("impossible")
    rest, chosen = logits.detach().clone(), []
    for _ in range(k):
        chosen.append(rest.argmax(dim=1))
        rest.scatter_(1, chosen[-1][:, None], -math.inf)
    experts = torch.stack(chosen, dim=1)
    best = torch.take_along_dim(logits, experts, dim=1)
    scaled = (best - best[:, :1]).exp()
    return scaled / scaled.sum(1, keepdim=True), experts


@alternative(load_balancing_loss)
def by_one_hot(logits, experts):
    f = F.one_hot(experts, logits.shape[1]).sum(dim=1).to(logits.dtype).mean(dim=0)
    P = logits.softmax(dim=1).mean(dim=0)
    return f @ P * len(P)


@alternative(load_balancing_loss)
def by_gathering(logits, experts):
    """Adds up the mean probabilities of all choices."""
    M, E = logits.shape
    P = torch.log_softmax(logits, dim=-1).exp().sum(dim=0) / M
    return P[experts].sum() * E / M


@alternative(load_balancing_loss)
def by_scattering(logits, experts):
    M, E = logits.shape
    f = torch.zeros(E, dtype=logits.dtype)
    f.scatter_add_(0, experts.reshape(-1), torch.full((experts.numel(),), 1 / M).to(logits))
    return E * torch.einsum("e,me->", f, logits.softmax(dim=-1)) / M


@alternative(load_balancing_loss_fault)
def drawn_in_float64():
    return ["D", [torch.randn(4, 5, dtype=torch.float64), torch.tensor([[1, 4, 0]] * 4)]]


@alternative(load_balancing_loss_fault)
def equal_loads():
    return "D", (torch.zeros(2, 4), torch.tensor([[0, 1], [2, 3]]))


@alternative(balance_by_bias)
def by_routing(logits, bias, k, gamma):
    """Lets route_top_k choose, and compares loads with the share."""
    _, experts = route_top_k(logits + bias, k)
    weights = (logits - logits.logsumexp(1, keepdim=True)).gather(1, experts).softmax(dim=-1)
    load = F.one_hot(experts, logits.shape[1]).sum(dim=(0, 1))
    share = experts.numel() / logits.shape[1]
    up, down = (load < share - 1e-9).to(bias), (load > share + 1e-9).to(bias)
    return weights, experts, bias + gamma * (up - down)


@alternative(balance_by_bias)
def hidden_scores(logits, bias, k, gamma):
    """Sorts, and hides the scores of what is not chosen."""
    E = logits.size(1)
    if k < 1 or k > E:
        raise ValueError("impossible")
    experts = torch.argsort(logits + bias, dim=1, descending=True)[:, :k]
    is_chosen = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, experts, True)
    weights = logits.masked_fill(~is_chosen, -math.inf).softmax(dim=1).gather(1, experts)
    new = bias.detach().clone()
    for e in range(E):
        excess = E * int(is_chosen[:, e].sum()) - k * len(logits)
        if excess:
            new[e] -= math.copysign(gamma, excess)
    return weights, experts, new


@alternative(balance_by_bias)
def token_by_token(logits, bias, k, gamma):
    if not 0 < k <= len(bias):
        raise ValueError("impossible")
    chosen, weights, load = [], [], torch.zeros(len(bias))
    for row in logits:
        best = (row + bias).sort(descending=True).indices[:k]
        part = torch.exp(row[best] - row[best].detach().max())
        chosen.append(best)
        weights.append(part / part.sum())
        load[best] += 1
    excess = load * len(bias) - k * len(logits)
    return torch.stack(weights), torch.stack(chosen), bias.sub(excess.sign(), alpha=gamma)


@alternative(MixtureOfExperts)
class TokenByToken(MixtureOfExperts):
    def forward(self, X):
        taken, rows = [0] * self.W_router.shape[1], []
        for x in X.reshape(-1, X.shape[-1]):
            best, experts = (x @ self.W_router).topk(self.k)
            y = torch.zeros_like(x)
            for weight, e in zip(best.softmax(0), experts.tolist(), strict=True):
                taken[e] += 1
                if self.capacity is not None and taken[e] > self.capacity:
                    continue
                hidden = F.silu(x @ self.W_gate[e]) * (x @ self.W_up[e])
                y = y + weight * (hidden @ self.W_down[e])
            rows.append(y)
        return torch.stack(rows).reshape(X.shape)


@alternative(MixtureOfExperts)
class AllExperts(MixtureOfExperts):
    """Passes every token through all experts, with weights that are mostly zero."""

    def forward(self, X):
        tokens = X.reshape(-1, X.shape[-1])
        weights, experts = route_top_k(tokens @ self.W_router, self.k)
        E = self.W_router.shape[1]
        share = torch.zeros(len(tokens), E, dtype=X.dtype).scatter(1, experts, weights)
        if self.capacity is not None:
            goes = F.one_hot(experts, E).sum(dim=1)
            share = share * (goes.cumsum(dim=0) <= self.capacity)
        gates = F.silu(torch.einsum("md,edf->mef", tokens, self.W_gate))
        hidden = gates * torch.einsum("md,edf->mef", tokens, self.W_up)
        return torch.einsum("me,mef,efd->md", share, hidden, self.W_down).view(X.shape)


@alternative(MixtureOfExperts)
class OnlyTheBusy(MixtureOfExperts):
    """Writes into one tensor, expert by expert, and leaves idle ones out."""

    def forward(self, X):
        tokens = X.contiguous().view(-1, X.shape[-1])
        weights, experts = route_top_k(tokens @ self.W_router, self.k)
        Y = torch.zeros(tokens.shape, dtype=X.dtype)
        for e in experts.unique().tolist():
            hit = (experts == e).nonzero()
            if self.capacity is not None:
                hit = hit[: self.capacity]
            x = tokens[hit[:, 0]]
            out = (F.silu(x @ self.W_gate[e]) * (x @ self.W_up[e])) @ self.W_down[e]
            Y.index_add_(0, hit[:, 0], out * weights[hit[:, 0], hit[:, 1]].unsqueeze(1))
        return Y.reshape(X.shape)


@alternative(LoRA)
class ScaledA(LoRA):
    """Scales X A, and draws in W's dtype."""

    def __init__(self, W, r, alpha):
        nn.Module.__init__(self)
        if r <= 0:
            raise ValueError("r")
        self.r, self.alpha = r, alpha
        self.register_buffer("W", torch.empty_like(W).copy_(W).detach())
        self.A = nn.Parameter(torch.empty(W.shape[0], r, dtype=W.dtype))
        self.B = nn.Parameter(torch.zeros(r, W.shape[1], dtype=W.dtype))
        nn.init.normal_(self.A, std=W.shape[0] ** -0.5)

    def forward(self, X):
        return F.linear(X, self.W.T) + F.linear(X @ self.A * (self.alpha / self.r), self.B.T)

    def merge(self):
        return torch.addmm(self.W, self.A, self.B, alpha=self.alpha / self.r)


@alternative(LoRA)
class SummedRanks(nn.Module):
    """Adds up r outer products; a module of its own."""

    def __init__(self, W, r, alpha):
        super().__init__()
        if r < 1:
            raise ValueError("the rank must be positive")
        self.W = nn.Buffer(W.detach().clone())
        self.A = nn.Parameter(torch.randn(len(W), r, dtype=W.dtype) / math.sqrt(len(W)))
        self.B = nn.Parameter(W.new_zeros(r, W.shape[1]))
        self.alpha = alpha

    def forward(self, X):
        Y = X @ self.W
        for a, b in zip(self.A.T, self.B, strict=True):
            Y = Y + (X @ a)[..., None] * b * (self.alpha / len(self.B))
        return Y

    def merge(self):
        products = torch.einsum("ir,ro->rio", self.A, self.B)
        return self.W + products.sum(dim=0) * self.alpha / len(self.B)


@alternative(lora_parameters)
def by_adapters(D, H, G, L, F, r):
    """Makes the adapters of one layer without numbers, and counts what they train."""
    with torch.device("meta"):
        narrow = G * (D // H)
        shapes = {
            "attention": [(D, D), (D, narrow), (D, narrow), (D, D)],
            "feed_forward": [(D, F), (D, F), (F, D)],
        }
        adapters = {
            part: [LoRA(torch.empty(*shape), r, 1.0) for shape in own]
            for part, own in shapes.items()
        }
    found = {
        part: L * sum(weight.numel() for adapter in own for weight in adapter.parameters())
        for part, own in adapters.items()
    }
    return {**found, "total": sum(found.values())}


@alternative(lora_parameters)
def layer_by_layer(D, H, G, L, F, r):
    if r <= 0:
        raise ValueError("no rank")
    found = dict(attention=0, feed_forward=0)
    for _ in range(L):
        for columns in (D, G * D // H, G * D // H, D):
            found["attention"] += D * r + r * columns
        for _ in range(3):
            found["feed_forward"] += (F + D) * r
    found["total"] = found["attention"] + found["feed_forward"]
    return found
