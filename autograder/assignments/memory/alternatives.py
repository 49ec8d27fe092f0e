"""Other correct solutions of memory: loops, matrices, Fourier, float32."""

import math

import torch
from torch import nn
from torch.nn import functional

from autograder.alternatives import alternative
from course_pkg import black_box
from course_pkg.memory import (
    DRAW,
    NTM,
    content_addressing,
    dnc_allocation,
    dnc_links,
    dnc_usage,
    gaussian_filterbank,
    location_addressing,
    ntm_write,
    sample_latent,
    sample_latent_fault,
)


@alternative(ntm_write)
def by_outer_products(memory, w, erase, add):
    w = w.unsqueeze(2)
    return memory * (1 - w @ erase.unsqueeze(1)) + w @ add.unsqueeze(1)


@alternative(ntm_write)
def as_a_change(memory, w, erase, add):
    return memory + torch.einsum("bn,bnm->bnm", w, add[:, None] - erase[:, None] * memory)


@alternative(ntm_write)
def row_by_row(memory, w, erase, add):
    rows = []
    for i, row in enumerate(memory.unbind(1)):
        own = w[:, i, None]
        rows.append(row * (1 - own * erase) + own * add)
    return torch.stack(rows, dim=1)


@alternative(content_addressing)
def normalised_first(memory, key, beta):
    rows, k = functional.normalize(memory, dim=-1), functional.normalize(key, dim=-1)
    return ((rows @ k.unsqueeze(-1)).squeeze(-1) * beta.unsqueeze(-1)).softmax(-1)


@alternative(content_addressing)
def small_number_in_the_denominator(memory, key, beta):
    product = torch.einsum("bnm,bm->bn", memory, key)
    length = torch.linalg.norm(memory, dim=-1) * torch.linalg.norm(key, dim=-1)[:, None]
    scores = beta[:, None] * product / (length + 1e-8)
    heat = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
    return heat / heat.sum(dim=1, keepdim=True)


@alternative(content_addressing)
def in_float32(memory, key, beta):
    similarity = torch.cosine_similarity(memory.float(), key.float().unsqueeze(1), dim=-1)
    return functional.softmax(similarity * beta.float().unsqueeze(1), dim=-1)


@alternative(location_addressing)
def by_matrix(w_content, w_before, g, s, gamma):
    S, N = s.shape[1], w_content.shape[1]
    if S % 2 != 1:
        raise ValueError(f"S = {S} is even")
    w = torch.lerp(w_before, w_content, g.unsqueeze(1))
    matrix = torch.zeros(len(w), N, N, dtype=w.dtype)  # from row j to row i
    for k in range(S):
        for j in range(N):
            matrix[:, (j + k - S // 2) % N, j] = matrix[:, (j + k - S // 2) % N, j] + s[:, k]
    w = (matrix @ w[:, :, None]).squeeze(2)
    return torch.softmax(gamma[:, None] * torch.log(w.clamp(min=1e-300)), dim=1)


@alternative(location_addressing)
def by_fourier(w_content, w_before, g, s, gamma):
    S, N = s.shape[1], w_content.shape[1]
    if S % 2 == 0:
        raise ValueError("even")
    w = (w_before.T + g * (w_content - w_before).T).T
    wide = torch.roll(functional.pad(s, (0, N - S)), -(S // 2), dims=1)
    w = torch.fft.irfft(torch.fft.rfft(w) * torch.fft.rfft(wide), n=N).clamp(min=0)
    power = (w / w.max(dim=1, keepdim=True).values).pow(gamma.unsqueeze(1))
    return functional.normalize(power, p=1, dim=1)


@alternative(location_addressing)
def by_index(w_content, w_before, g, s, gamma):
    N, half = w_content.shape[1], (s.shape[1] - 1) // 2
    if 2 * half + 1 != s.shape[1]:
        raise ValueError("no middle")
    rows, gate = torch.arange(N), g.float()[:, None]
    w = gate * w_content.float() + (1 - gate) * w_before.float()
    s = s.float()
    w = sum(s[:, half + step, None] * w[:, (rows - step) % N] for step in range(-half, half + 1))
    power = (w / w.amax(1, keepdim=True)) ** gamma.float()[:, None]
    return power / power.sum(1, keepdim=True)


@alternative(NTM)
class FromNothing(nn.Module):
    """Has the same weights, and every method written anew."""

    def __init__(self, D, D_Y, H, N, M):
        super().__init__()
        self.size = N, M
        self.controller = nn.Linear(D + M, H)
        self.write_head, self.read_head = nn.Linear(H, M + 6), nn.Linear(H, M + 6)
        self.erase, self.add = nn.Linear(H, M), nn.Linear(H, M)
        self.output = nn.Linear(H + M, D_Y)

    def start(self, B):
        N, M = self.size
        like = self.output.weight
        focus = torch.eye(N).to(like)[[0] * B]
        return like.new_full((B, N, M), 1e-6), like.new_zeros(B, M), focus, focus

    def address(self, raw, memory, w):
        M = memory.shape[-1]
        similar = functional.cosine_similarity(memory, raw[:, None, :M], dim=-1)
        beta, gate = functional.softplus(raw[:, M, None]), raw[:, M + 1, None].sigmoid()
        w = torch.lerp(w, torch.softmax(beta * similar, -1), gate)
        down, stay, up = raw[:, M + 3 :].softmax(-1).unsqueeze(-1).unbind(1)
        w = down * w.roll(-1, -1) + stay * w + up * w.roll(1, -1)
        log = (1 + functional.softplus(raw[:, M + 2, None])) * w.log()
        return torch.softmax(log, -1)

    def step(self, x, state):
        memory, r, before_write, before_read = state
        h = self.controller(torch.hstack([x, r])).tanh()
        w = self.address(self.write_head(h), memory, before_write)
        erase, add = self.erase(h).sigmoid(), self.add(h).tanh()
        memory = memory + w[:, :, None] * (add[:, None] - erase[:, None] * memory)
        v = self.address(self.read_head(h), memory, before_read)
        r = (v[:, None] @ memory)[:, 0]
        return self.output(torch.hstack([h, r])), (memory, r, w, v)

    def forward(self, X, state=None):
        state = state or self.start(len(X))
        outputs = []
        for t in range(X.shape[1]):
            y, state = self.step(X[:, t], state)
            outputs.append(y[:, None])
        return torch.cat(outputs, dim=1), list(state)


@alternative(NTM)
class SequenceBySequence(NTM):
    """Runs every sequence of a batch on its own."""

    def forward(self, X, state=None):
        if state is None:
            state = self.start(len(X))
        runs = []
        for n in range(len(X)):
            runs.append(NTM.forward(self, X[n : n + 1], tuple(part[n : n + 1] for part in state)))
        outputs = torch.cat([outputs for outputs, _ in runs])
        return outputs, tuple(torch.cat([end[part] for _, end in runs]) for part in range(4))


@alternative(dnc_usage)
def head_by_head(usage, w_write, w_read, free):
    u = 1 - (1 - usage) * (1 - w_write)
    for f, w in zip(free.unbind(1), w_read.unbind(1), strict=True):
        u = u * (1 - f.unsqueeze(-1) * w)
    return u


@alternative(dnc_usage)
def by_einsum(usage, w_write, w_read, free):
    kept = 1 - torch.einsum("br,brn->brn", free, w_read)
    return torch.lerp(usage, torch.ones_like(usage), w_write) * torch.prod(kept, 1)


@alternative(dnc_allocation)
def pair_by_pair(usage):
    less = usage[:, None, :] < usage[:, :, None]
    order = torch.arange(usage.shape[1])
    tied = (usage[:, None, :] == usage[:, :, None]) & (order[None, :] < order[:, None])
    factors = torch.where(less | tied, usage[:, None, :], torch.ones_like(usage)[:, None, :])
    return (1 - usage) * factors.prod(dim=2)


@alternative(dnc_allocation)
def row_by_row(usage):
    rows = []
    for own in usage:
        a, left = torch.zeros_like(own), 1.0
        for place in torch.argsort(own).tolist():
            unit = functional.one_hot(torch.tensor(place), len(own)).to(own)
            a = a + unit * (1 - own[place]) * left
            left = left * own[place]
        rows.append(a)
    return torch.stack(rows)


@alternative(dnc_links)
def pair_by_pair(links, precedence, w_write):
    N = w_write.shape[1]
    rows = []
    for i in range(N):
        row = []
        for j in range(N):
            left = (1 - w_write[:, i] - w_write[:, j]) * links[:, i, j]
            row.append((i != j) * (left + w_write[:, i] * precedence[:, j]))
        rows.append(torch.stack(row, dim=1))
    total = sum(w_write[:, i : i + 1] for i in range(N))
    return torch.stack(rows, dim=1), precedence - total * precedence + w_write


@alternative(dnc_links)
def by_outer_products(links, precedence, w_write):
    here, last = w_write.unsqueeze(2), precedence.unsqueeze(1)
    sums = here + here.transpose(1, 2)
    new = links - sums * links + torch.bmm(here, last)
    new = new - torch.diag_embed(torch.diagonal(new, dim1=1, dim2=2))
    return new, torch.lerp(
        precedence, torch.zeros_like(precedence), w_write.sum(1)[:, None]
    ) + here[..., 0]


@alternative(dnc_links)
def in_float32(links, precedence, w_write):
    links, precedence, w = links.float(), precedence.float(), w_write.float()
    N = w.shape[-1]
    new = links * (1 - w[:, :, None] - w[:, None, :]) + torch.einsum("bi,bj->bij", w, precedence)
    new = new.masked_fill(torch.eye(N, dtype=torch.bool), 0.0)
    return [new, precedence * (1 - w.sum(-1, keepdim=True)) + w]


@alternative(gaussian_filterbank)
def as_in_the_paper(centre, stride, sigma, N, size):
    i = torch.arange(1, N + 1, dtype=centre.dtype)
    mu = centre.unsqueeze(1) + (i - N / 2 - 0.5) * stride.unsqueeze(1)
    a = torch.arange(size, dtype=centre.dtype)
    log = -((a - mu.unsqueeze(2)) ** 2) / (2 * sigma.square()[:, None, None])
    heat = torch.exp(log - log.amax(dim=2, keepdim=True))
    return heat / heat.sum(dim=2, keepdim=True)


@alternative(gaussian_filterbank)
def image_by_image(centre, stride, sigma, N, size):
    banks = []
    for g, delta, width in zip(centre, stride, sigma, strict=True):
        mu = g + delta * (torch.arange(N) + 0.5 - N / 2)
        distance = (torch.arange(size)[None] - mu[:, None]) / width
        banks.append(torch.softmax(-0.5 * distance * distance, dim=-1))
    return torch.stack(banks)


@alternative(gaussian_filterbank)
def by_logarithms(centre, stride, sigma, N, size):
    mu = torch.stack([centre + (i - (N - 1) / 2) * stride for i in range(N)], dim=1)
    log = -(((torch.arange(size) - mu[..., None]) / (math.sqrt(2) * sigma[:, None, None])) ** 2)
    return torch.exp(log - torch.logsumexp(log, dim=2, keepdim=True))


@alternative(sample_latent)
def from_the_variance(mu, log_sigma, noise):
    variance = torch.exp(2 * log_sigma)
    terms = 0.5 * (mu.pow(2) + variance - 1) - log_sigma
    return [torch.addcmul(mu, log_sigma.exp(), noise), terms.flatten(1).sum(1)]


@alternative(sample_latent)
def number_by_number(mu, log_sigma, noise):
    z, kl = [], 0
    for m, s, e in zip(mu.unbind(1), log_sigma.unbind(1), noise.unbind(1), strict=True):
        z.append(m + e * torch.exp(s))
        kl = kl + 0.5 * (m * m + torch.exp(2 * s)) - s - 0.5
    return torch.stack(z, dim=1), kl


@alternative(sample_latent)
def in_float32(mu, log_sigma, noise):
    mu, log_sigma, noise = mu.float(), log_sigma.float(), noise.float()
    kl = torch.einsum("bd->b", mu.square() / 2 + torch.expm1(2 * log_sigma) / 2 - log_sigma)
    return mu + noise * log_sigma.exp(), kl


@alternative(sample_latent_fault)
def of_all_widths():
    mu, log_sigma = torch.full((2, 7), 0.5), torch.linspace(-3, 3, 7).expand(2, 7)
    return ["B", [mu, log_sigma, torch.tensor([[-1.0], [2.0]]).expand(2, 7)]]


@alternative(sample_latent_fault)
def found_by_reading_sigma():
    box, one = black_box("sample_latent"), torch.ones(1, 1)
    for log_sigma in torch.arange(-3.0, 4).view(-1, 1, 1):
        sigma = box(0 * one, log_sigma, one)[0]
        if abs(sigma.exp() - 1 - log_sigma.exp()) < 1e-4:  # softplus: log(1 + exp(log σ))
            return "B", (0 * one, log_sigma, one)
    return "A", (one, one, one)


@alternative(DRAW)
class DrawnFromNothing(nn.Module):
    """Has the same weights, and every method written anew."""

    def __init__(self, A, N, D_Z, H):
        super().__init__()
        self.size = A, N, H
        self.encoder, self.decoder = nn.LSTMCell(2 * N * N + H, H), nn.LSTMCell(D_Z, H)
        self.code, self.patch = nn.Linear(H, 2 * D_Z), nn.Linear(H, N * N)
        self.read_aim, self.write_aim = nn.Linear(H, 5), nn.Linear(H, 5)
        self.blank = nn.Parameter(torch.zeros(()))

    def aim(self, raw):
        A, N, _ = self.size
        centre = (A + 1) * (raw[:, :2] + 1) / 2  # x, y; pixels from 1
        place = torch.arange(N).to(raw) - (N - 1) / 2
        mu = centre[..., None] + place * (A - 1) / (N - 1) * raw[:, 3].exp()[:, None, None]
        pixels = torch.arange(1, A + 1).to(raw)
        heat = -((pixels - mu[..., None]) ** 2) / (2 * raw[:, 2].exp()[:, None, None, None])
        F_X, F_Y = heat.softmax(dim=3).unbind(1)
        return [F_Y, F_X, raw[:, 4].exp()]

    def read(self, x, error, h):
        F_Y, F_X, gamma = self.aim(self.read_aim(h))
        both = torch.einsum("biy,bkyx,bjx->bkij", F_Y, torch.stack([x, error], 1), F_X)
        return (both * gamma[:, None, None, None]).flatten(1)

    def write(self, h):
        F_Y, F_X, gamma = self.aim(self.write_aim(h))
        patch = self.patch(h).unflatten(1, (F_Y.shape[1], F_X.shape[1]))
        return torch.einsum("biy,bij,bjx->byx", F_Y, patch, F_X) * (1 / gamma)[:, None, None]

    def forward(self, x, noise):
        B, T, _ = noise.shape
        A, _, H = self.size
        h = c = h_enc = c_enc = x.new_zeros(B, H)
        canvas, kl = self.blank + x.new_zeros(B, A, A), 0
        for t in range(T):
            r = self.read(x, x - canvas.sigmoid(), h)
            h_enc, c_enc = self.encoder(torch.hstack([r, h]), (h_enc, c_enc))
            mu, log_sigma = self.code(h_enc).tensor_split(2, dim=1)
            kl = kl + (0.5 * (mu**2 + log_sigma.exp() ** 2 - 1) - log_sigma).sum(1)
            h, c = self.decoder(torch.addcmul(mu, log_sigma.exp(), noise[:, t]), (h, c))
            canvas = canvas + self.write(h)
        return [(functional.softplus(canvas) - x * canvas).sum((1, 2)), kl]

    def generate(self, z):
        B, T, _ = z.shape
        H = self.size[2]
        h = c = z.new_zeros(B, H)
        added = []
        for t in range(T):
            h, c = self.decoder(z[:, t], (h, c))
            added.append(self.write(h))
        return torch.sigmoid(self.blank + torch.stack(added, 1).cumsum(1))


@alternative(DRAW)
class PictureByPicture(DRAW):
    """Draws every picture of a batch on its own."""

    def forward(self, x, noise):
        parts = [DRAW.forward(self, x[n : n + 1], noise[n : n + 1]) for n in range(len(x))]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def generate(self, z):
        return torch.cat([DRAW.generate(self, z[n : n + 1]) for n in range(len(z))])
