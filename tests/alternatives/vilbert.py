"""Other correct solutions of vilbert: loops, torch's own attention, other formulas."""

import torch
from torch import nn
from torch.nn import functional as F

from course_pkg.attention import masked_softmax, merge_heads, split_heads
from course_pkg.vilbert import (
    CoAttentionBlock,
    ViLBERT,
    VisualEmbeddings,
    alignment_loss,
    alignment_score,
    masked_multimodal_loss,
    retrieve,
)
from tests.alternatives import alternative


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
