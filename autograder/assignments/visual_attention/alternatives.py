"""Other correct solutions of visual_attention: loops, one-hots, Gumbel, float32."""

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg import black_box
from course_pkg.visual_attention import (
    CaptionDecoder,
    doubly_stochastic_penalty,
    doubly_stochastic_penalty_fault,
    grid_features,
    hard_attention,
    reinforce_loss,
    soft_attention,
    update_baseline,
)


@alternative(grid_features)
def permuted(maps):
    B, D, R, C = maps.shape
    return maps.permute(0, 2, 3, 1).reshape(B, R * C, D)


@alternative(grid_features)
def location_by_location(maps):
    _, _, R, C = maps.shape
    return torch.stack([maps[:, :, n // C, n % C] for n in range(R * C)], 1)


@alternative(soft_attention)
def by_matrix_product(e, a):
    p = F.softmax(e, -1)
    return torch.bmm(p.unsqueeze(1), a).squeeze(1), p


@alternative(soft_attention)
def by_hand_in_float32(e, a):
    weights = (e - e.max(dim=1, keepdim=True).values).float().exp()
    p = weights / weights.sum(1, keepdim=True)
    return [torch.einsum("bl,bld->bd", p, a.float()), p]


@alternative(soft_attention)
def picture_by_picture(e, a):
    p = torch.stack([torch.softmax(row, 0) for row in e])
    rows = [sum(p[n, k] * a[n, k] for k in range(a.shape[1])) for n in range(len(a))]
    return torch.stack(rows), p


@alternative(hard_attention)
def by_distribution(e, a, sample=True):
    choices = torch.distributions.Categorical(logits=e)
    s = choices.sample() if sample else choices.probs.argmax(-1)
    return a[torch.arange(len(a)), s], choices.probs, choices.log_prob(s)


@alternative(hard_attention)
def by_gumbel_noise(e, a, sample=True):
    noise = -torch.log(
        -torch.log(torch.rand(e.shape, dtype=torch.float64).clamp(1e-300, 1 - 1e-16))
    )
    s = (e.detach() + noise if sample else e.detach()).argmax(dim=1)
    mask = F.one_hot(s, e.shape[1]).to(e.dtype)
    log_p = e - torch.logsumexp(e, dim=1, keepdim=True)
    return torch.einsum("bl,bld->bd", mask, a), log_p.exp(), (log_p * mask).sum(dim=1)


@alternative(hard_attention)
def by_cumulative_sums(e, a, sample=True):
    p = F.softmax(e, dim=1)
    u = torch.rand(len(e), 1, dtype=p.dtype)
    drawn = (p.detach().cumsum(1) < u).sum(1).clamp(max=p.shape[1] - 1)
    s = drawn if sample else p.max(dim=1).indices
    log_p = F.log_softmax(e, dim=1)
    return (
        torch.stack([a[n, k] for n, k in enumerate(s.tolist())]),
        p,
        -F.nll_loss(log_p, s, reduction="none"),
    )


@alternative(doubly_stochastic_penalty)
def by_einsum(p, mask):
    looked = torch.einsum("btl,bt->bl", p, mask.to(p.dtype))
    return F.mse_loss(looked, torch.ones_like(looked)) * p.shape[2]


@alternative(doubly_stochastic_penalty)
def by_selection(p, mask):
    total = 0
    for weights, words in zip(p, mask, strict=True):
        total = total + ((weights[words].sum(dim=0) - 1) ** 2).sum()
    return total / len(p)


@alternative(doubly_stochastic_penalty_fault)
def with_padding():
    p = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))
    return ["C", [p, torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()]]


@alternative(doubly_stochastic_penalty_fault)
def found_by_evenness():
    box = black_box("doubly_stochastic_penalty")
    for T in range(1, 5):  # looks spread evenly over 3 locations cost nothing if T / 3 is wanted
        arguments = torch.full((1, T, 3), 1 / 3), torch.ones(1, T, dtype=torch.bool)
        if T != 3 and abs(box(*arguments)) < 1e-6:
            return "C", arguments
    return "D", ()


@alternative(CaptionDecoder)
class Einsums(nn.Module):
    """Scores by einsum, an LSTM written out, outputs written into tensors made beforehand."""

    def __init__(self, words, D, H, A=32, hard=False):
        super().__init__()
        self.hard, self.words, self.H = hard, words, H
        self.embedding = nn.Embedding(words, H)
        self.first_h, self.first_c = nn.Linear(D, H), nn.Linear(D, H)
        self.W_a, self.W_h = nn.Linear(D, A, bias=False), nn.Linear(H, A)
        self.v = nn.Linear(A, 1, bias=False)
        self.lstm = nn.LSTMCell(H + D, H)
        self.output = nn.Linear(H + D, words)

    def start(self, a):
        return self.first_h(a.mean(1)).tanh(), self.first_c(a.mean(1)).tanh()

    def step(self, word, state, a):
        hidden = torch.einsum("bld,kd->blk", a, self.W_a.weight) + self.W_h(state[0]).unsqueeze(1)
        e = torch.einsum("blk,k->bl", hidden.tanh(), self.v.weight[0])
        if not self.hard:
            z, p = soft_attention(e, a)
            log_p = torch.zeros(len(e))
        else:
            z, p, log_p = hard_attention(e, a, self.training)
        inputs = torch.hstack([F.embedding(word, self.embedding.weight), z])
        gates = F.linear(inputs, self.lstm.weight_ih, self.lstm.bias_ih)
        gates = gates + F.linear(state[0], self.lstm.weight_hh, self.lstm.bias_hh)
        i, f, g, o = gates.split(self.H, dim=1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return self.output(torch.hstack([h, z])), (h, c), p, log_p

    def forward(self, a, captions):
        B, T = captions.shape
        scores = a.new_zeros(B, T - 1, self.words)
        p, log_p = a.new_zeros(B, T - 1, a.shape[1]), a.new_zeros(B, T - 1)
        state = self.start(a)
        for t in range(T - 1):
            scores[:, t], state, p[:, t], log_p[:, t] = self.step(captions[:, t], state, a)
        return scores, p, log_p


@alternative(CaptionDecoder)
class OneMethodMore(CaptionDecoder):
    """Looks all words up before the loop; `forward` and `step` share a method."""

    def look_and_advance(self, x, state, a):
        e = self.v(torch.tanh(self.W_a(a) + self.W_h(state[0])[:, None])).squeeze(2)
        if self.hard:
            z, p, log_p = hard_attention(e, a, sample=self.training)
        else:
            (z, p), log_p = soft_attention(e, a), e.new_zeros(len(e))
        state = self.lstm(torch.cat((x, z), 1), state)
        return self.output(torch.cat((state[0], z), 1)), state, p, log_p

    def step(self, word, state, a):
        return self.look_and_advance(self.embedding(word), state, a)

    def forward(self, a, captions):
        X, state = self.embedding(captions), self.start(a)
        rows = []
        for t in range(captions.size(1) - 1):
            scores, state, p, log_p = self.look_and_advance(X[:, t], state, a)
            rows.append([scores, p, log_p])
        return [torch.stack([row[part] for row in rows], 1) for part in range(3)]


@alternative(reinforce_loss)
def two_terms(log_y, log_p, mask, baseline):
    log_y, log_p = log_y.masked_fill(~mask, 0), log_p.masked_fill(~mask, 0)
    with torch.no_grad():
        R = log_y.sum(1)
    words = -log_y.sum() / len(R)
    choices = -((R - baseline).unsqueeze(1) * log_p).sum() / len(R)
    return words + choices, R


@alternative(reinforce_loss)
def by_loop(log_y, log_p, mask, baseline):
    loss, rewards = 0, []
    for n in range(len(mask)):
        R = log_y[n][mask[n]].sum()
        rewards.append(R.detach())
        loss = loss - R - (R.detach() - baseline) * log_p[n][mask[n]].sum()
    return loss / len(mask), torch.stack(rewards)


@alternative(update_baseline)
def step_towards(baseline, R, decay=0.9):
    mean = float(R.detach().mean())
    if baseline is None:
        return mean
    return baseline + (1 - decay) * (mean - baseline)


@alternative(update_baseline)
def by_list(baseline, R, decay=0.9):
    rewards = R.tolist()
    mean = sum(rewards) / len(rewards)
    b = mean if baseline is None else baseline
    return b * decay + mean * (1 - decay)
