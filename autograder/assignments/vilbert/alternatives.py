"""Other correct solutions of vilbert: loops, torch's own attention, other formulas."""

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg.attention import masked_softmax, merge_heads, split_heads
from course_pkg.vilbert import (
    CoAttentionBlock,
    RowAttentionWithPairBias,
    TriangleUpdate,
    ViLBERT,
    VisualEmbeddings,
    agent_aware_attention,
    alignment_loss,
    alignment_score,
    alignment_score_fault,
    clip_loss,
    lay_out_path,
    masked_multimodal_loss,
    path_selection_loss,
    retrieve,
)


@alternative(VisualEmbeddings)
class PictureByPicture(VisualEmbeddings):
    """Goes through the pictures one by one."""

    def forward(self, features, boxes, regions):
        rows = []
        for content, box, real in zip(features, boxes, regions, strict=True):
            content = torch.cat([content[real].mean(dim=0, keepdim=True), content])
            box = torch.cat([torch.tensor([[0.0, 0.0, 1.0, 1.0]]).to(box), box])
            area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
            place = torch.column_stack([box, area])
            rows.append(self.norm(self.content(content) + self.place(place)))
        return torch.stack(rows)


@alternative(VisualEmbeddings)
class LinearFirst(VisualEmbeddings):
    """Averages after the linear layer, which is the same; one matrix for content and place."""

    def forward(self, features, boxes, regions):
        share = regions.to(features) / regions.sum(dim=1, keepdim=True)
        features = features.masked_fill(~regions[..., None], 0.0)
        img = torch.einsum("br,brf->bf", share, features).unsqueeze(1)
        whole = torch.zeros_like(boxes[:, :1]) + boxes.new_tensor([0.0, 0.0, 1.0, 1.0])
        corners = torch.cat([whole, boxes], dim=1)
        area = (corners[..., 2:] - corners[..., :2]).prod(dim=-1, keepdim=True)
        W = torch.cat([self.content.weight, self.place.weight], dim=1)
        X = torch.cat([torch.cat([img, features], dim=1), corners, area], dim=-1)
        return self.norm(X @ W.T + self.content.bias + self.place.bias)


def look(attention, X, memory, real):
    """Attend step by step, with the weights of a MultiHeadAttention."""
    Q, K, V = (
        split_heads(source @ W + b, attention.H)
        for source, W, b in (
            (X, attention.W_Q, attention.b_Q),
            (memory, attention.W_K, attention.b_K),
            (memory, attention.W_V, attention.b_V),
        )
    )
    mask = None if real is None else real[:, None, None]
    A = masked_softmax(Q @ K.mT * Q.shape[-1] ** -0.5, mask)
    return merge_heads(A @ V) @ attention.W_O + attention.b_O, A


@alternative(CoAttentionBlock)
class StepByStep(CoAttentionBlock):
    """Attends without MultiHeadAttention's own forward."""

    def forward(self, t, v, words=None, regions=None):
        new, weights = [], []
        for s, X, memory, real in (("t", t, v, regions), ("v", v, t, words)):
            Y, A = look(getattr(self, f"attention_{s}"), X, memory, real)
            X = getattr(self, f"norm_{s}")(X + Y)
            Y = getattr(self, f"contract_{s}")(F.gelu(getattr(self, f"expand_{s}")(X)))
            new.append(getattr(self, f"last_norm_{s}")(Y + X))
            weights.append(A)
        return [*new, *weights]


@alternative(CoAttentionBlock)
class PairByPair(CoAttentionBlock):
    """Cuts what is not real away instead of masking it."""

    def forward(self, t, v, words=None, regions=None):
        B, T, R = len(t), t.shape[1], v.shape[1]
        words = torch.ones(B, T, dtype=torch.bool) if words is None else words
        regions = torch.ones(B, R, dtype=torch.bool) if regions is None else regions
        A_t, A_v = (
            t.new_zeros(B, self.attention_t.H, T, R),
            t.new_zeros(B, self.attention_t.H, R, T),
        )
        from_v, from_t = [], []
        for n in range(B):
            shown, said = v[n : n + 1, regions[n]], t[n : n + 1, words[n]]
            Y, A = self.attention_t(t[n : n + 1], shown, return_weights=True)
            from_v.append(Y)
            A_t[n, :, :, regions[n]] = A[0]
            Y, A = self.attention_v(v[n : n + 1], said, return_weights=True)
            from_t.append(Y)
            A_v[n, :, :, words[n]] = A[0]
        t, v = self.norm_t(t + torch.cat(from_v)), self.norm_v(v + torch.cat(from_t))
        text = nn.Sequential(self.expand_t, nn.GELU(), self.contract_t)
        vision = nn.Sequential(self.expand_v, nn.GELU(), self.contract_v)
        return self.last_norm_t(t + text(t)), self.last_norm_v(v + vision(v)), A_t, A_v


@alternative(ViLBERT)
class ByNumber(ViLBERT):
    """Counts the blocks; makes the mask by concatenation."""

    def forward(self, tokens, words, features, boxes, regions, return_weights=False):
        T, R = words.shape[1], regions.shape[1] + 1
        real = torch.cat([torch.ones_like(regions[:, :1]), regions], dim=1)
        words_mask = words.unsqueeze(1).expand(-1, T, -1)
        regions_mask = real.unsqueeze(1).expand(-1, R, -1)
        v, t = self.visual(features, boxes, regions), self.text(tokens)
        for layer in self.alone:
            t = layer(t, words_mask)[0]
        found = []
        for n in range(len(self.blocks)):
            t, v, *A = self.blocks[n](t, v, words, real)
            v = self.visual_layers[n](v, regions_mask)[0]
            t = self.text_layers[n](t, words_mask)[0]
            found += A[:1]
        if return_weights:
            return t, v, torch.cat([A[None] for A in found])
        return t, v


@alternative(ViLBERT)
class WithoutPadding(ViLBERT):
    """Reads every pair on its own, without its padding."""

    def forward(self, tokens, words, features, boxes, regions, return_weights=False):
        (B, T), R = tokens.shape, regions.shape[1] + 1
        H, dtype = self.blocks[0].attention_t.H, features.dtype
        t = torch.zeros(B, T, self.text.norm.normalized_shape[0], dtype=dtype)
        v = torch.zeros(B, R, self.visual.norm.normalized_shape[0], dtype=dtype)
        A = torch.zeros(len(self.blocks), B, H, T, R, dtype=dtype)
        for n in range(B):
            M = int(words[n].sum())  # in the checks and the notebook, padding comes last
            K = int(regions[n].sum())
            x = self.text(tokens[n : n + 1, :M])
            y = self.visual(features[n : n + 1, :K], boxes[n : n + 1, :K], regions[n : n + 1, :K])
            for layer in self.alone:
                x, _ = layer(x)
            for k, block in enumerate(self.blocks):
                x, y, weights, _ = block(x, y)
                A[k, n, :, :M, : K + 1] = weights[0]
                x, y = self.text_layers[k](x)[0], self.visual_layers[k](y)[0]
            t[n, :M], v[n, : K + 1] = x[0], y[0]
        return (t, v, A) if return_weights else (t, v)


@alternative(alignment_score)
def weighted_dot(t, v, W_t, b_t, W_v, b_v, w, b):
    caption = (t[:, 0] @ W_t.T + b_t).clamp(min=0)
    picture = (v[:, 0] @ W_v.T + b_v).clamp(min=0)
    return torch.einsum("bd,bd,d->b", caption, picture, w) + b


@alternative(alignment_score)
def one_by_one(t, v, W_t, b_t, W_v, b_v, w, b):
    scores = []
    for caption, picture in zip(t.select(1, 0), v.select(1, 0), strict=True):
        joint = F.relu(torch.addmv(b_t, W_t, caption)) * F.relu(torch.addmv(b_v, W_v, picture))
        scores.append(torch.dot(w, joint) + b)
    return torch.stack(scores)


@alternative(alignment_score_fault)
def random_in_float64():
    sizes = (4, 3, 5), (4, 2, 6), (7, 5), (7,), (7, 6), (7,), (7,), ()
    return ["C", [3 * torch.randn(size, dtype=torch.float64) for size in sizes]]


@alternative(alignment_score_fault)
def both_negative():
    t, W, zero = torch.full((1, 1, 1), -1.0), torch.ones(1, 1), torch.zeros(1)
    return "C", (t, t, W, zero, W, zero, W[0], zero[0] + 1)


@alternative(alignment_loss)
def with_logits(scores, match):
    return F.binary_cross_entropy_with_logits(scores, match.to(scores.dtype))


@alternative(alignment_loss)
def by_logsigmoid(scores, match):
    signs = 2 * match.to(scores.dtype) - 1
    return -F.logsigmoid(signs * scores).sum() / len(scores)


@alternative(masked_multimodal_loss)
def picked(word_logits, word_targets, region_logits, region_targets, chosen, match):
    asked = (word_targets >= 0) & match.unsqueeze(1)
    loss = torch.zeros((), dtype=word_logits.dtype)
    if asked.any():
        loss = loss + F.cross_entropy(word_logits[asked], word_targets[asked])
    asked = chosen & match.unsqueeze(1)
    if asked.any():
        log_q = region_logits[asked].log_softmax(dim=1)
        loss = loss + F.kl_div(log_q, region_targets[asked], reduction="batchmean")
    return loss


@alternative(masked_multimodal_loss)
def by_formula(word_logits, word_targets, region_logits, region_targets, chosen, match):
    log_p = word_logits - word_logits.logsumexp(dim=-1, keepdim=True)
    losses = -log_p.gather(-1, word_targets.clamp(min=0)[..., None])[..., 0]
    asked = ((word_targets != -100) & match[:, None]).to(losses)
    words = (losses * asked).sum() / max(float(asked.sum()), 1.0)
    log_q = region_logits - region_logits.logsumexp(dim=-1, keepdim=True)
    divergence = (torch.xlogy(region_targets, region_targets) - region_targets * log_q).sum(dim=-1)
    asked = (chosen & match[:, None]).to(losses)
    return words + (divergence * asked).sum() / max(float(asked.sum()), 1.0)


@alternative(retrieve)
def by_sorting(scores, k):
    N = len(scores)
    if k < 1 or k > N:
        raise ValueError("k must lie between 1 and the number of pictures")
    lowered = scores.double() - 1e-9 * torch.eye(N)  # the caption's own comes after its equals
    best = lowered.argsort(dim=1, descending=True)[:, :k]
    return float((best == torch.arange(N)[:, None]).any(dim=1).sum()) / N


@alternative(retrieve)
def by_counting(scores, k):
    if not 0 < k < len(scores) + 1:
        raise ValueError("k")
    hits = [
        sum(bool(other >= row[n]) for m, other in enumerate(row) if m != n) < k
        for n, row in enumerate(scores)
    ]
    return torch.tensor(hits).double().mean()


@alternative(clip_loss)
def by_logarithms(pictures, captions, log_scale):
    if pictures.size() != captions.size():
        raise ValueError("shapes")
    cosines = F.cosine_similarity(pictures[:, None], captions[None], dim=2)
    table = cosines * log_scale.exp()
    both = [table.log_softmax(dim=axis).diagonal() for axis in (0, 1)]
    return -torch.cat(both).mean()


@alternative(clip_loss)
def picture_by_picture(pictures, captions, log_scale):
    N = len(pictures)
    if N != len(captions) or pictures.shape[1] != captions.shape[1]:
        raise ValueError("as many pictures as captions, please")
    pictures = pictures / pictures.norm(dim=1, keepdim=True)
    captions = captions / captions.norm(dim=1, keepdim=True)
    total = 0
    for n in range(N):
        mine, yours = captions @ pictures[n], pictures @ captions[n]
        for choice in (mine, yours):
            choice = torch.exp(log_scale) * choice
            total = total + torch.logsumexp(choice, dim=0) - choice[n]
    return total / (2 * N)


@alternative(lay_out_path)
def view_by_view(features, boxes, regions):
    P, strips = boxes.shape[1], []
    for p in range(P):
        scale, shift = (
            boxes.new_tensor([1, 1 / P, 1, 1 / P]),
            boxes.new_tensor([0, p / P, 0, p / P]),
        )
        strips.append(boxes[:, p] * scale + shift)
    return (
        torch.cat(features.unbind(1), dim=1),
        torch.cat(strips, dim=1),
        torch.cat(regions.unbind(1), dim=1),
    )


@alternative(lay_out_path)
def changed_copy(features, boxes, regions):
    B, P, R, _ = boxes.shape
    strip = boxes.clone()
    strip[..., 1::2] += torch.arange(P).to(boxes).view(P, 1, 1)
    strip[..., 1::2] /= P
    strip = strip.masked_fill(~regions[..., None], 0)
    return [features.reshape(B, P * R, -1), strip.reshape(B, P * R, 4), regions.reshape(B, P * R)]


@alternative(path_selection_loss)
def by_log_softmax(scores, right, paths=None):
    if paths is not None:
        if not all(bool(row[k]) for row, k in zip(paths, right, strict=True)):
            raise ValueError("the right path is missing")
        scores = torch.where(paths, scores, float("-inf"))
    return -scores.log_softmax(dim=1)[torch.arange(len(right)), right].mean()


@alternative(path_selection_loss)
def one_by_one_path(scores, right, paths=None):
    losses = []
    for n in range(len(scores)):
        there = torch.ones_like(scores[n], dtype=torch.bool) if paths is None else paths[n]
        if not there[right[n]]:
            raise ValueError(f"instruction {n} has no right path")
        losses.append(scores[n][there].logsumexp(0) - scores[n, right[n]])
    return torch.stack(losses).mean()


@alternative(agent_aware_attention)
def by_products(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    if agents.size(-1) != X.size(-2):
        raise ValueError("agents")
    M = (agents.unsqueeze(-1) == agents.unsqueeze(-2)).to(X)
    E = M * ((X @ Q_self) @ (X @ K_self).mT) + (1 - M) * ((X @ Q_other) @ (X @ K_other).mT)
    A = masked_softmax(E * Q_self.shape[1] ** -0.5, mask)
    return A @ X @ V, A


@alternative(agent_aware_attention)
def vector_by_vector(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    N = X.shape[-2]
    if agents.shape[-1] != N:
        raise ValueError("one agent for each vector")
    mask = torch.ones(N, N, dtype=torch.bool) if mask is None else mask
    rows = []
    for i in range(N):
        own = (X @ K_self) @ (X[..., i, :] @ Q_self).unsqueeze(-1)
        others = (X @ K_other) @ (X[..., i, :] @ Q_other).unsqueeze(-1)
        same = agents == agents[..., i : i + 1]
        row = torch.where(same, own[..., 0], others[..., 0]) / Q_self.shape[1] ** 0.5
        rows.append(masked_softmax(row, mask[..., i, :]))
    A = torch.stack(rows, dim=-2)
    return [A @ (X @ V), A]


@alternative(agent_aware_attention)
def sequence_by_sequence(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    """Goes through the batch, whose axes X and agents share."""
    *batch, N, D_X = X.shape
    if agents.shape[-1] != N:
        raise ValueError("one agent for each vector")
    mask = torch.ones(N, N, dtype=torch.bool) if mask is None else mask
    masks = mask.expand(*batch, N, N).reshape(-1, N, N)
    parts = []
    for x, own, allowed in zip(X.reshape(-1, N, D_X), agents.reshape(-1, N), masks, strict=True):
        E_self, E_other = (x @ Q_self) @ (x @ K_self).T, (x @ Q_other) @ (x @ K_other).T
        E = torch.where(own[:, None] == own, E_self, E_other) / Q_self.shape[1] ** 0.5
        parts.append(masked_softmax(E, allowed))
    A = torch.stack(parts).view(*batch, N, N)
    return A @ (X @ V), A


@alternative(TriangleUpdate)
class ByMatrixProducts(TriangleUpdate):
    """Multiplies matrices, one for each feature."""

    def forward(self, z):
        z = self.norm(z)
        a = (self.gate_a(z).sigmoid() * self.a(z)).permute(0, 3, 1, 2)  # (B, D, N, N)
        b = (self.gate_b(z).sigmoid() * self.b(z)).permute(0, 3, 1, 2)
        sums = (a @ b.mT if self.outgoing else a.mT @ b).permute(0, 2, 3, 1)
        return self.out(self.norm_out(sums)) * self.gate(z).sigmoid()


@alternative(TriangleUpdate)
class ResidueByResidue(TriangleUpdate):
    """Adds up one third residue after the other."""

    def forward(self, z):
        z, total = self.norm(z), 0
        for k in range(z.shape[1]):
            edges = z[:, :, k] if self.outgoing else z[:, k]  # (B, N, D_z)
            a = torch.sigmoid(self.gate_a(edges)) * self.a(edges)
            b = torch.sigmoid(self.gate_b(edges)) * self.b(edges)
            total = total + a[:, :, None] * b[:, None]
        return torch.sigmoid(self.gate(z)) * self.out(self.norm_out(total))


@alternative(RowAttentionWithPairBias)
class ByEinsum(RowAttentionWithPairBias):
    """Leaves the heads where they are."""

    def forward(self, m, z):
        m, bias = self.norm_m(m), self.pair(self.norm_z(z))
        q, k, v, g = (
            part(m).unflatten(-1, (self.H, -1))
            for part in (self.query, self.key, self.value, self.gate)
        )
        E = torch.einsum("bsihd,bsjhd->bshij", q, k) * q.shape[-1] ** -0.5
        A = (E + torch.einsum("bijh->bhij", bias).unsqueeze(1)).softmax(-1)
        found = torch.einsum("bshij,bsjhd->bsihd", A, v) * torch.sigmoid(g)
        return self.out(found.flatten(3)), A


@alternative(RowAttentionWithPairBias)
class HeadByHead(RowAttentionWithPairBias):
    """Goes through sequences and heads one by one."""

    def forward(self, m, z):
        m, bias = self.norm_m(m), self.pair(self.norm_z(z))
        size, updates, weights = self.query.weight.shape[0] // self.H, [], []
        for s in range(m.shape[1]):
            row, found, maps = m[:, s], [], []
            for h in range(self.H):
                part = slice(h * size, (h + 1) * size)
                q, k, v = (f(row)[..., part] for f in (self.query, self.key, self.value))
                E = torch.baddbmm(bias[..., h], q, k.mT, alpha=size**-0.5)
                maps.append(F.softmax(E, dim=2))
                found.append(maps[-1] @ v)
            updates.append(self.out(F.sigmoid(self.gate(row)) * torch.cat(found, dim=-1)))
            weights.append(torch.stack(maps, dim=1))
        return torch.stack(updates, dim=1), torch.stack(weights, dim=1)
