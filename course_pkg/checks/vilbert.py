"""Checks of vilbert. Oracles: torch.nn.MultiheadAttention, torch's layers and losses, loops."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.memo import once
from course_pkg.checking.registry import check
from course_pkg.checks.bert import (
    below,
    drawn_state,
    embedded,
    embedding_shapes,
    layer_shapes,
    linear_shapes,
    made,
    normed,
    torchs_layer,
)
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

STREAMS = "tv"

# Regions


def real_ones(lengths: Tensor, size: int) -> Tensor:
    """Say which of `size` places are real, in rows of different lengths."""
    return torch.arange(size) < lengths[:, None]


def draw_boxes(case: Case, B: int, R: int) -> Tensor:
    """Draw boxes: top < bottom and left < right, no two alike."""
    low, size = case.rand(B, R, 2) / 2, 0.05 + case.rand(B, R, 2) / 3
    return torch.cat([low, low + size], dim=2)


def norm_shapes(name: str, D: int) -> dict[str, tuple[int, ...]]:
    """The weights of an nn.LayerNorm."""
    return {f"{name}.weight": (D,), f"{name}.bias": (D,)}


def visual_shapes(F_: int, D: int, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """The weights of VisualEmbeddings."""
    shapes = linear_shapes("content", D, F_) | linear_shapes("place", D, 5)
    return {prefix + name: shape for name, shape in (shapes | norm_shapes("norm", D)).items()}


@once
def seen(state: dict[str, Tensor], features: Tensor, boxes: Tensor, regions: Tensor) -> Tensor:
    """Compute visual embeddings picture by picture; zeros where a region is not real."""
    rows = []
    for picture, places, real in zip(features, boxes, regions, strict=True):
        whole = sum(picture[n] for n in range(len(real)) if real[n]) / int(real.sum())
        vectors = []
        contents = [whole, *picture]
        corners = [torch.tensor([0.0, 0.0, 1.0, 1.0]), *places]
        for n, (content, corner) in enumerate(zip(contents, corners, strict=True)):
            top, left, bottom, right = corner.tolist()
            area = (bottom - top) * (right - left)
            place = torch.tensor([top, left, bottom, right, area], dtype=torch.float64)
            vector = F.linear(content, state["content.weight"], state["content.bias"])
            vector = vector + state["place.weight"] @ place + state["place.bias"]
            shown = n == 0 or bool(real[n - 1])
            vectors.append(normed(below(state, "norm."), vector) * shown)
        rows.append(torch.stack(vectors))
    return torch.stack(rows)


def with_img(regions: Tensor) -> Tensor:
    """Put a real vector, that of [IMG], before the regions."""
    return torch.cat([torch.ones(len(regions), 1, dtype=torch.bool), regions], dim=1)


def visual_case(case: Case, embeddings, B: int, R: int, F_: int, D: int) -> tuple:
    """Make a student's VisualEmbeddings, its weights, features and boxes."""
    state = drawn_state(case, visual_shapes(F_, D))
    ours = made(embeddings, state, F_, D)
    return ours, state, case.randn(B, R, F_) + 1, draw_boxes(case, B, R)


@check(VisualEmbeddings, weight=2, see="What is where in a picture", single="B")
def values(embeddings, case):
    """adds content and place of every region, and normalises the sum"""
    B, R, F_, D = case.sizes(4, low=3)
    ours, state, features, boxes = visual_case(case, embeddings, B, R, F_, D)
    regions = torch.ones(B, R, dtype=torch.bool)
    given = ours(features, boxes, regions)
    case.shape(given, (B, R + 1, D), "v")
    case.equal(given[:, 1:], seen(state, features, boxes, regions)[:, 1:], "v of the regions")


@check(VisualEmbeddings, weight=2, see="One vector for the whole picture")
def whole(embeddings, case):
    """begins with [IMG]: the mean of the regions, at the place of the whole picture"""
    B, R, F_, D = case.sizes(4, low=3)
    ours, state, features, boxes = visual_case(case, embeddings, B, R, F_, D)
    regions = torch.ones(B, R, dtype=torch.bool)
    given = ours(features, boxes, regions)
    case.shape(given, (B, R + 1, D), "v")
    case.equal(given[:, 0], seen(state, features, boxes, regions)[:, 0], "v of [IMG]")


@check(VisualEmbeddings, weight=2, see="One vector for the whole picture")
def padding(embeddings, case):
    """leaves regions that are not real out of the mean"""
    B, R, F_, D = case.sizes(4, low=3)
    ours, state, features, boxes = visual_case(case, embeddings, B, R, F_, D)
    regions = real_ones(case.lengths(B, R), R)
    given = ours(features, boxes, regions)
    case.shape(given, (B, R + 1, D), "v")
    expected = seen(state, features, boxes, regions)
    case.equal(given[:, 0], expected[:, 0], "v of [IMG] with padding")
    case.equal(given * with_img(regions)[:, :, None], expected, "v of real regions")


@check(VisualEmbeddings, see="One vector for the whole picture")
def filling(embeddings, case):
    """gives [IMG] and real regions the same vectors whatever the others hold"""
    B, R, F_, D = case.sizes(4, low=3)
    ours, _, features, boxes = visual_case(case, embeddings, B, R, F_, D)
    regions = real_ones(case.lengths(B, R), R)
    shown = with_img(regions)
    runs = []
    for value in (0.0, 50.0, math.nan):
        runs.append(ours(torch.where(regions[:, :, None], features, value), boxes, regions))
        case.shape(runs[-1], (B, R + 1, D), "v")
    for run, filling in zip(runs[1:], ("50", "NaN"), strict=True):
        case.equal(run[shown], runs[0][shown], f"v with {filling} in regions that are not real")


@check(VisualEmbeddings, see="What is where in a picture")
def one_region(embeddings, case):
    """accepts pictures of one region, whichever regions are not real"""
    B, F_, D = case.sizes(3, low=3)
    ours, state, features, boxes = visual_case(case, embeddings, B, 1, F_, D)
    alone = torch.ones(B, 1, dtype=torch.bool)
    case.equal(ours(features, boxes, alone), seen(state, features, boxes, alone), "v of one region")
    ours, state, features, boxes = visual_case(case, embeddings, B, 3, F_, D)
    regions = torch.tensor([False, True, True]).repeat(B, 1)
    given = ours(features, boxes, regions)
    case.shape(given, (B, 4, D), "v")
    case.equal(
        given[:, 0], seen(state, features, boxes, regions)[:, 0], "v of [IMG] without region 0"
    )


# Co-attention


def block_shapes(D_t: int, D_v: int, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """The weights of a CoAttentionBlock."""
    shapes = {}
    for s, D, other in (("t", D_t, D_v), ("v", D_v, D_t)):
        sizes = {"Q": D, "K": other, "V": other, "O": D}
        shapes |= {f"attention_{s}.W_{x}": (rows, D) for x, rows in sizes.items()}
        shapes |= {f"attention_{s}.b_{x}": (D,) for x in sizes}
        shapes |= norm_shapes(f"norm_{s}", D) | norm_shapes(f"last_norm_{s}", D)
        shapes |= linear_shapes(f"expand_{s}", 4 * D, D) | linear_shapes(f"contract_{s}", D, 4 * D)
    return {prefix + name: shape for name, shape in shapes.items()}


def torchs_attention(state: dict[str, Tensor], s: str, H: int) -> nn.Module:
    """Give torch's own attention, keys and values of another size, one stream's weights."""
    W = {x: state[f"attention_{s}.W_{x}"] for x in "QKVO"}
    other, D = W["K"].shape
    attention = nn.MultiheadAttention(D, H, kdim=other, vdim=other, batch_first=True).double()
    attention.load_state_dict(
        {
            "q_proj_weight": W["Q"].T,
            "k_proj_weight": W["K"].T,
            "v_proj_weight": W["V"].T,
            "in_proj_bias": torch.cat([state[f"attention_{s}.b_{x}"] for x in "QKV"]),
            "out_proj.weight": W["O"].T,
            "out_proj.bias": state[f"attention_{s}.b_O"],
        }
    )
    return attention


def co_attended(
    state: dict[str, Tensor],
    H: int,
    t: Tensor,
    v: Tensor,
    words: Tensor | None = None,
    regions: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute a CoAttentionBlock with torch's own attention."""
    results, weights = [], []
    for s, X, memory, real in (("t", t, v, regions), ("v", v, t, words)):
        attention = torchs_attention(state, s, H)
        hidden = None if real is None else ~real
        Y, A = attention(X, memory, memory, key_padding_mask=hidden, average_attn_weights=False)
        X = normed(below(state, f"norm_{s}."), X + Y)
        inner = F.gelu(F.linear(X, state[f"expand_{s}.weight"], state[f"expand_{s}.bias"]))
        Y = F.linear(inner, state[f"contract_{s}.weight"], state[f"contract_{s}.bias"])
        results.append(normed(below(state, f"last_norm_{s}."), X + Y))
        weights.append(A)
    return (*results, *weights)


def block_case(case: Case, block, low: int = 2) -> tuple:
    """Make a student's block, its weights and heads, words and regions, and who is real."""
    B, T, R, a, b = case.sizes(5, low=low)
    H = 3
    state = drawn_state(case, block_shapes(H * a, H * b))
    ours = made(block, state, H * a, H * b, H)
    t, v = case.randn(B, T, H * a), case.randn(B, R, H * b)
    return ours, state, H, t, v, real_ones(case.lengths(B, T), T), real_ones(case.lengths(B, R), R)


def four(case: Case, result: object, t: Tensor, v: Tensor, H: int) -> tuple[Tensor, ...]:
    """Split what a block returns, and demand the shapes."""
    parts = case.unpack(result, "t", "v", "A_t", "A_v")
    (B, T, _), R = t.shape, v.shape[1]
    shapes = tuple(t.shape), tuple(v.shape), (B, H, T, R), (B, H, R, T)
    for part, shape, name in zip(parts, shapes, ("t", "v", "A_t", "A_v"), strict=True):
        case.shape(part, shape, name)
    return parts


@check(CoAttentionBlock, weight=3, see="Each asks, the other answers", single="B")
def values(block, case):
    """agrees with two torch.nn.MultiheadAttention, each taking keys from the other stream"""
    ours, state, H, t, v, _, _ = block_case(case, block)
    given = four(case, ours(t, v), t, v, H)
    expected = co_attended(state, H, t, v)
    for n, name in ((0, "t"), (1, "v")):
        case.equal(given[n], expected[n], name)


@check(CoAttentionBlock, weight=2, see="Each asks, the other answers")
def masks(block, case):
    """agrees with the same two when some words and some regions are not real"""
    ours, state, H, t, v, words, regions = block_case(case, block, low=3)
    given = four(case, ours(t, v, words, regions), t, v, H)
    expected = co_attended(state, H, t, v, words, regions)
    for n, name in ((0, "t"), (1, "v")):
        case.equal(given[n], expected[n], f"{name} with padding")


@check(CoAttentionBlock, see="Each asks, the other answers")
def weights(block, case):
    """returns the weights of both attentions, the words' first"""
    ours, state, H, t, v, words, regions = block_case(case, block, low=3)
    given = four(case, ours(t, v, words, regions), t, v, H)
    expected = co_attended(state, H, t, v, words, regions)
    case.equal(given[2], expected[2], "A_t")
    case.equal(given[3], expected[3], "A_v")


@check(CoAttentionBlock, see="Each asks, the other answers")
def one_mask(block, case):
    """accepts a mask for one stream alone"""
    ours, state, H, t, v, words, regions = block_case(case, block, low=3)
    for kind, mask in {"words": words, "regions": regions}.items():
        given = four(case, ours(t, v, **{kind: mask}), t, v, H)
        expected = co_attended(state, H, t, v, **{kind: mask})
        for n, name in ((0, "t"), (1, "v")):
            case.equal(given[n], expected[n], f"{name} with the mask of {kind} alone")


# The model


def vilbert_shapes(V: int, context: int, F_: int, D_t: int, D_v: int, L_t: int, L: int) -> dict:
    """The weights of a ViLBERT."""
    shapes = embedding_shapes(V, context, D_t, "text.") | visual_shapes(F_, D_v, "visual.")
    for n in range(L_t):
        shapes |= layer_shapes(D_t, f"alone.{n}.")
    for n in range(L):
        shapes |= block_shapes(D_t, D_v, f"blocks.{n}.")
        shapes |= layer_shapes(D_t, f"text_layers.{n}.") | layer_shapes(D_v, f"visual_layers.{n}.")
    return shapes


def understood(
    state: dict[str, Tensor], H: int, tokens, words, features, boxes, regions
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a ViLBERT's vectors and the words' weights with torch's own layers."""

    def layer(name: str, X: Tensor, real: Tensor) -> Tensor:
        return torchs_layer(below(state, f"{name}."), H)(X, src_key_padding_mask=~real)

    t = embedded(below(state, "text."), tokens, None)
    v = seen(below(state, "visual."), features, boxes, regions)
    regions, weights = with_img(regions), []
    for n in range(sum(name.endswith("norm_1.weight") for name in state if "alone" in name)):
        t = layer(f"alone.{n}", t, words)
    for n in range(sum(name.endswith("last_norm_t.weight") for name in state)):
        t, v, A, _ = co_attended(below(state, f"blocks.{n}."), H, t, v, words, regions)
        t, v = layer(f"text_layers.{n}", t, words), layer(f"visual_layers.{n}", v, regions)
        weights.append(A)
    return t, v, torch.stack(weights)


def model_case(case: Case, model, L_t: int = 2, L: int = 2, padded: bool = True) -> tuple:
    """Make a student's ViLBERT, its weights and heads, and a batch."""
    B, T, R, F_, V, a, b = case.sizes(7, low=3)
    H, sizes = 2, (V, T + 1, F_, 2 * a, 2 * b)
    state = drawn_state(case, vilbert_shapes(*sizes, L_t, L))
    ours = made(model, state, *sizes, H, L_t, L)
    words, regions = real_ones(case.lengths(B, T), T), real_ones(case.lengths(B, R), R)
    if not padded:
        words, regions = torch.ones_like(words), torch.ones_like(regions)
    batch = case.integers(0, V, B, T), words, case.randn(B, R, F_), draw_boxes(case, B, R), regions
    return ours, state, H, batch


def streams(case: Case, result: object, state: dict[str, Tensor], batch: tuple) -> tuple:
    """Split what a ViLBERT returns, and demand the shapes."""
    t, v = case.unpack(result, "t", "v")
    (B, T), R = batch[0].shape, batch[2].shape[1]
    case.shape(t, (B, T, len(state["text.norm.weight"])), "t")
    case.shape(v, (B, R + 1, len(state["visual.norm.weight"])), "v")
    return t, v


def demand_streams(case: Case, given: tuple, expected: tuple, batch: tuple, note: str = "") -> None:
    """Demand the right vectors where words and regions are real."""
    real = batch[1], with_img(batch[4])
    for name, mine, right, places in zip(STREAMS, given, expected, real, strict=False):
        shown = places[:, :, None]
        case.equal(mine * shown, right * shown, f"{name}{note}")


@check(ViLBERT, weight=3, see="Two streams that meet")
def values(model, case):
    """agrees with torch's layers on pairs without padding"""
    ours, state, H, batch = model_case(case, model, padded=False)
    given = streams(case, ours(*batch), state, batch)
    demand_streams(case, given, understood(state, H, *batch), batch)


@check(ViLBERT, weight=2, see="Two streams that meet")
def padding(model, case):
    """agrees with torch's layers on captions and pictures of different lengths"""
    ours, state, H, batch = model_case(case, model)
    given = streams(case, ours(*batch), state, batch)
    demand_streams(case, given, understood(state, H, *batch), batch, " with padding")


@check(ViLBERT, see="Two streams that meet")
def weights(model, case):
    """returns the words' weights in every block, the first block's first"""
    ours, state, H, batch = model_case(case, model)
    *both, A = case.unpack(ours(*batch, return_weights=True), "t", "v", "A")
    streams(case, both, state, batch)
    (B, T), R = batch[0].shape, batch[2].shape[1]
    case.shape(A, (2, B, H, T, R + 1), "A")
    expected = understood(state, H, *batch)[2]
    real = batch[1][:, None, :, None]
    case.equal(A * real, expected * real, "A of real words")


@check(ViLBERT, see="Two streams that meet")
def gradients(model, case):
    """sends a gradient from the words to the pixels, and from the regions to the words"""
    ours, state, H, batch = model_case(case, model)
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    t, v, _ = understood(leaves, H, *batch)
    pulls = [case.randn(*X[:, 0].shape) for X in (t, v)]
    torch.autograd.backward([t[:, 0], v[:, 0]], pulls)
    given = streams(case, ours(*batch), state, batch)
    for X, name in zip(given, ("t", "v"), strict=True):
        case.trains(X, name)
    torch.autograd.backward([X[:, 0] for X in given], pulls)
    mine = dict(ours.named_parameters())
    for name in ("visual.content.weight", "text.token.weight"):
        case.gradient(mine[name], leaves[name].grad, name)
    case.learns(ours)


@check(ViLBERT, see="Two streams that meet")
def filling(model, case):
    """gives the same whatever numbers the padding of words and regions holds"""
    ours, _, _, batch = model_case(case, model)
    tokens, words, features, boxes, regions = batch
    runs = []
    for word, value in ((0, 0.0), (2, 30.0)):
        other = torch.where(words, tokens, word), words
        picture = torch.where(regions[:, :, None], features, value), boxes, regions
        runs.append(ours(*other, *picture))
    demand_streams(case, runs[1], runs[0], batch, " with other padding")


# The losses


def score_weights(case: Case, D: int, D_t: int, D_v: int) -> list[Tensor]:
    """Draw W_t, b_t, W_v, b_v, w and b."""
    W_t, W_v = case.randn(D, D_t) / D_t**0.5, case.randn(D, D_v) / D_v**0.5
    return [W_t, case.randn(D), W_v, case.randn(D), case.randn(D), case.randn(1)[0]]


def fits(t: Tensor, v: Tensor, weights: list[Tensor]) -> Tensor:
    """Score pairs one by one."""
    W_t, b_t, W_v, b_v, w, b = weights
    scores = []
    for caption, picture in zip(t, v, strict=True):
        a, c = W_t @ caption[0] + b_t, W_v @ picture[0] + b_v
        scores.append(sum(w[d] * max(a[d], 0) * max(c[d], 0) for d in range(len(w))) + b)
    return torch.stack(scores)


def score_case(case: Case) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Draw the vectors of both streams and the weights."""
    B, T, R, D, D_t, D_v = case.sizes(6, low=3)
    weights = score_weights(case, D + 4, D_t, D_v)
    return case.randn(B, T, D_t), case.randn(B, R, D_v), weights


@check(alignment_score, weight=3, see="One number for a pair", single="B")
def values(score, case):
    """multiplies the pooled vectors of [CLS] and [IMG], feature by feature"""
    t, v, weights = score_case(case)
    case.equal(score(t, v, *weights), fits(t, v, weights), "scores")


@check(alignment_score, see="One number for a pair")
def first_alone(score, case):
    """gives the same whatever the vectors of words and regions are"""
    t, v, weights = score_case(case)
    others = [torch.cat([X[:, :1], case.randn(*X[:, 1:].shape)], dim=1) for X in (t, v)]
    given = score(t, v, *weights)
    case.shape(given, (len(t),), "scores")
    case.equal(score(*others, *weights), given, "scores with other words and regions")


def score_by_loop(t: Tensor, v: Tensor, *weights: Tensor) -> Tensor:
    """Score pairs one by one, with weights of the right shapes."""
    W_t, b_t, W_v, b_v, w, b = weights
    if not (len(W_t),) == (len(W_v),) == b_t.shape == b_v.shape == w.shape or b.shape != ():
        raise ValueError("the weights must have the shapes of the docstring")
    return fits(t, v, [*weights])


def asked(scores: Tensor, match: Tensor) -> Tensor:
    """Compute the alignment loss pair by pair."""
    losses = [
        math.log1p(math.exp(-s)) if yes else math.log1p(math.exp(s))
        for s, yes in zip(scores.tolist(), match.tolist(), strict=True)
    ]
    return torch.tensor(sum(losses) / len(losses), dtype=torch.float64)


def both_kinds(case: Case, B: int) -> Tensor:
    """Draw which pairs match: at least one does, one does not, and not half of them."""
    match = torch.cat([torch.tensor([True, False, False, False]), case.rand(B - 4) < 0.4])
    return match[torch.randperm(B, generator=case.generator)]


@check(alignment_loss, weight=3, see="Does the caption match the picture")
def values(loss, case):
    """is the mean over all pairs, those that match and those that don't"""
    (B,) = case.sizes(1, low=7)
    scores, match = 2 * case.randn(B), both_kinds(case, B)
    case.equal(loss(scores, match), asked(scores, match), "loss")


@check(alignment_loss, see="Does the caption match the picture")
def far_out(loss, case):
    """stays finite where a large score is wrong: the loss is then the score itself"""
    scores = torch.tensor([800.0, -900.0, 700.0, -600.0], dtype=torch.float64)
    match = torch.tensor([False, True, True, False])
    case.equal(loss(scores, match), torch.tensor(1700 / 4), "loss of large scores")


def masked_case(case: Case, B: int, T: int, V: int, R: int, C: int) -> list[Tensor]:
    """Draw logits and targets of words and regions; all pairs match."""
    targets = torch.where(case.rand(B, T) < 0.4, case.integers(0, V, B, T), -100)
    targets[:, 0] = case.integers(0, V, B)
    chosen = case.rand(B, R) < 0.4
    chosen[:, 1] = True
    p = torch.softmax(2 * case.randn(B, R, C), dim=-1)
    match = torch.ones(B, dtype=torch.bool)
    return [case.randn(B, T, V), targets, case.randn(B, R, C), p, chosen, match]


def hidden_parts(
    word_logits: Tensor,
    word_targets: Tensor,
    region_logits: Tensor,
    region_targets: Tensor,
    chosen: Tensor,
    match: Tensor,
) -> Tensor:
    """Add both means, over words and over regions, entry by entry."""
    words, regions = [], []
    for b in range(len(match)):
        if not match[b]:
            continue
        for logits, target in zip(word_logits[b], word_targets[b].tolist(), strict=True):
            if target != -100:
                words.append(logits.logsumexp(0) - logits[target])
        for logits, p, asked_for in zip(
            region_logits[b], region_targets[b], chosen[b], strict=True
        ):
            if asked_for:
                log_q = logits - logits.logsumexp(0)
                terms = [p[c] * (p[c].log() - log_q[c]) for c in range(len(p)) if p[c] > 0]
                regions.append(sum(terms))
    means = [torch.stack(part).mean() for part in (words, regions) if part]
    return sum(means, torch.zeros((), dtype=torch.float64))


def masked_sizes(case: Case) -> list[int]:
    """Draw B, T, V, R and C, no two alike."""
    return case.sizes(5, low=4)


@check(masked_multimodal_loss, weight=3, see="Hide words and regions")
def values(loss, case):
    """adds the mean over hidden words and the mean KL divergence over hidden regions"""
    given = masked_case(case, *masked_sizes(case))
    case.equal(loss(*given), hidden_parts(*given), "loss")


@check(masked_multimodal_loss, weight=2, see="Hide words and regions")
def wrong_pairs(loss, case):
    """leaves pairs that don't match out of both means"""
    given = masked_case(case, *masked_sizes(case))
    given[5] = torch.arange(len(given[5])) % 3 != 1
    case.equal(loss(*given), hidden_parts(*given), "loss of the pairs that match")


@check(masked_multimodal_loss, see="Hide words and regions")
def certain(loss, case):
    """accepts a detector that is certain: classes of probability 0 add nothing"""
    given = masked_case(case, *masked_sizes(case))
    given[3] = torch.where(given[3] > 0.3, given[3], 0)
    given[3][..., 0] += 1 - given[3].sum(dim=-1)
    case.equal(loss(*given), hidden_parts(*given), "loss with zeros in the targets")


@check(masked_multimodal_loss, see="Hide words and regions")
def nothing_chosen(loss, case):
    """is the words' loss alone when no region was hidden"""
    given = masked_case(case, *masked_sizes(case))
    given[4] = torch.zeros_like(given[4])
    case.equal(loss(*given), hidden_parts(*given), "loss without hidden regions")


@check(masked_multimodal_loss, see="Hide words and regions")
def no_hidden_word(loss, case):
    """is the regions' loss alone when no word is hidden"""
    given = masked_case(case, *masked_sizes(case))
    given[1] = torch.full_like(given[1], -100)
    case.equal(loss(*given), hidden_parts(*given), "loss without hidden words")


@check(masked_multimodal_loss, see="Hide words and regions")
def one_of_each(loss, case):
    """counts one hidden word and one hidden region as much as many"""
    given = masked_case(case, *masked_sizes(case))
    given[1] = torch.full_like(given[1], -100)
    given[1][1, 2], given[4] = 3, torch.zeros_like(given[4])
    given[4][2, 0] = True
    case.equal(loss(*given), hidden_parts(*given), "loss of one word and one region")
    given[0], given[2] = 900 * given[0], 900 * given[2]
    case.equal(loss(*given), hidden_parts(*given), "loss of large logits")


@check(masked_multimodal_loss, see="Hide words and regions")
def nothing_at_all(loss, case):
    """is zero when no pair matches"""
    given = masked_case(case, *masked_sizes(case))
    given[5] = torch.zeros_like(given[5])
    case.equal(loss(*given), 0.0, "loss when no pair matches")


@check(masked_multimodal_loss, see="Hide words and regions")
def gradients_of_nothing(loss, case):
    """sends no gradient, and no NaN, to words and regions of which none is hidden"""
    given = masked_case(case, *masked_sizes(case))
    given[0].requires_grad_(), given[2].requires_grad_()
    for place in (1, 4):
        nothing = torch.full_like(given[place], -100 if place == 1 else 0)
        value = loss(*given[:place], nothing, *given[place + 1 :])
        case.shape(value, (), "loss")
        case.trains(value, "loss")
        value.backward()
    words, regions = given[0].clone().detach(), given[2].clone().detach()
    wanted = [words.requires_grad_(), regions.requires_grad_()]
    hidden_parts(wanted[0], given[1], wanted[1], *given[3:]).backward()
    case.gradient(given[0], wanted[0].grad, "word_logits")
    case.gradient(given[2], wanted[1].grad, "region_logits")


@check(masked_multimodal_loss, see="Hide words and regions")
def gradients(loss, case):
    """sends right, finite gradients to both logits, even with zeros in the targets"""
    given = masked_case(case, *masked_sizes(case))
    given[3] = F.one_hot(given[3].argmax(dim=-1), given[3].shape[-1]).double()
    given[5] = torch.arange(len(given[5])) % 2 == 0
    wanted = [given[n].clone().requires_grad_() for n in (0, 2)]
    hidden_parts(wanted[0], given[1], wanted[1], *given[3:]).backward()
    given[0].requires_grad_(), given[2].requires_grad_()
    value = loss(*given)
    case.shape(value, (), "loss")
    case.trains(value, "loss")
    value.backward()
    case.gradient(given[0], wanted[0].grad, "word_logits")
    case.gradient(given[2], wanted[1].grad, "region_logits")


# Retrieval


def table(case: Case, N: int) -> Tensor:
    """Draw scores; a caption's own picture fits a little better than others, most of the time."""
    return case.randn(N, N) + 1.5 * torch.eye(N, dtype=torch.float64)


def found(scores: Tensor, k: int) -> float:
    """Sort every row, the caption's own picture after its equals, and count."""
    hits = 0
    for n, row in enumerate(scores.tolist()):
        order = sorted(range(len(row)), key=lambda m: (-row[m], m == n))
        hits += order.index(n) < k
    return hits / len(scores)


@check(retrieve, weight=3, see="Find the picture")
def values(recall, case):
    """is the share of rows whose own entry is among the k largest"""
    scores = table(case, 23)
    for k in (8, 3, 1):
        case.equal(recall(scores, k), torch.tensor(found(scores, k)), f"recall@{k}")


@check(retrieve, see="Find the picture")
def ties(recall, case):
    """counts a tie against the caption: if all scores are equal, none finds its picture"""
    scores = table(case, 23).round()
    case.equal(recall(scores, 5), torch.tensor(found(scores, 5)), "recall@5 with ties")
    case.equal(recall(torch.ones(9, 9, dtype=torch.float64), 4), 0.0, "recall@4 of equal scores")


@check(retrieve, see="Find the picture")
def impossible(recall, case):
    """raises ValueError when k is 0, or more than there are pictures"""
    scores = table(case, 7)
    case.raises(ValueError, lambda: recall(scores, 0), "k is 0")
    case.raises(ValueError, lambda: recall(scores, 8), "k is 8 and there are 7 pictures")


@check(retrieve, see="Find the picture")
def edges(recall, case):
    """is 1 for k = N, and raises ValueError for all that are smaller than 1 or larger than N"""
    scores = table(case, 7)
    case.equal(recall(scores, 7), 1.0, "recall@7 of 7")
    case.raises(ValueError, lambda: recall(scores, -1), "k is -1")
    case.raises(ValueError, lambda: recall(scores, 14), "k is 14 and there are 7 pictures")


# Two towers


def contrasted(pictures: Tensor, captions: Tensor, log_scale: Tensor) -> Tensor:
    """Compare every picture with every caption, pair by pair."""
    cosines = [
        torch.stack(
            [(x * y).sum() / (x.square().sum() * y.square().sum()).sqrt() for y in captions]
        )
        for x in pictures
    ]
    table = log_scale.exp() * torch.stack(cosines)
    both = table.logsumexp(dim=1) + table.logsumexp(dim=0) - 2 * table.diagonal()
    return both.mean() / 2


def tower_case(case: Case, N: int, D: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw vectors of which those of a pair are a little alike, all of different lengths."""
    pictures = case.randn(N, D)
    captions = 3 * (pictures + case.randn(N, D)) * (0.2 + case.rand(N, 1))
    return pictures, captions, 1 + case.rand()


@check(clip_loss, weight=3, see="Two towers", single="N")
def values(loss, case):
    """agrees with a loop over all pairs of pictures and captions"""
    given = tower_case(case, *case.sizes(2, low=3))
    case.equal(loss(*given), contrasted(*given), "loss")


@check(clip_loss, see="Two towers")
def lengths(loss, case):
    """is the same when the vectors of pictures and captions become longer or shorter"""
    N, D = case.sizes(2, low=3)
    pictures, captions, scale = tower_case(case, N, D)
    expected = contrasted(pictures, captions, scale)
    case.equal(loss(4 * pictures, captions, scale), expected, "loss of longer pictures")
    case.equal(loss(pictures, captions / 4, scale), expected, "loss of shorter captions")


@check(clip_loss, see="Two towers")
def both_ways(loss, case):
    """is the same when pictures and captions are exchanged"""
    pictures, captions, scale = tower_case(case, *case.sizes(2, low=3))
    expected = contrasted(pictures, captions, scale)
    case.equal(loss(captions, pictures, scale), expected, "loss of captions and pictures exchanged")


@check(clip_loss, see="Two towers")
def alike(loss, case):
    """is ln N when all vectors are the same, whatever the scale"""
    N, D = case.sizes(2, low=3)
    same = case.randn(1, D).expand(N, D)
    for scale in (-1.0, 2.5):
        scale = torch.tensor(scale, dtype=torch.float64)
        case.equal(loss(same, same, scale), math.log(N), "loss of equal vectors")


@check(clip_loss, see="Two towers")
def apart(loss, case):
    """is ln(1 + (N - 1) / e^s) when other vectors are at right angles, and s is the scale"""
    (N,) = case.sizes(1, low=4)
    vectors = torch.eye(N, dtype=torch.float64)
    for s in (0.5, 3.0):
        scale = torch.tensor(math.log(s), dtype=torch.float64)
        expected = math.log(1 + (N - 1) * math.exp(-s))
        case.equal(loss(vectors, vectors, scale), expected, f"loss at a scale of {s}")


@check(clip_loss, see="Two towers")
def far_out(loss, case):
    """stays finite where the scale is large"""
    vectors = torch.eye(4, dtype=torch.float64)
    scale = torch.tensor(math.log(2000), dtype=torch.float64)
    case.equal(loss(vectors, vectors.roll(1, 0), scale), 2000.0, "loss where all pairs are wrong")


@check(clip_loss, see="Two towers")
def gradients(loss, case):
    """sends the right gradients to pictures, captions and log_scale"""
    given = tower_case(case, *case.sizes(2, low=3))
    wanted = [part.clone().requires_grad_() for part in given]
    contrasted(*wanted).backward()
    value = loss(*(part.requires_grad_() for part in given))
    case.shape(value, (), "loss")
    case.trains(value, "loss")
    value.backward()
    for part, leaf, name in zip(given, wanted, ("pictures", "captions", "log_scale"), strict=True):
        case.gradient(part, leaf.grad, name)


@check(clip_loss, see="Two towers")
def refused(loss, case):
    """raises ValueError when pictures and captions differ in shape"""
    N, D = case.sizes(2, low=3)
    scale, pictures = case.randn(), case.randn(N, D)
    for shape in ((N + 1, D), (N, D + 1), (1, D)):
        other = case.randn(*shape)
        case.raises(
            ValueError,
            lambda other=other: loss(pictures, other, scale),
            "pictures and captions differ in shape",
        )


# Paths


def path_case(case: Case, sizes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Draw features, boxes and masks of views; in each view one region or more is real."""
    B, P, R, F_ = sizes
    regions = real_ones(case.lengths(B * P, R), R)
    boxes = draw_boxes(case, B * P, R)
    return case.randn(B, P, R, F_), boxes.view(B, P, R, 4), regions.view(B, P, R)


def laid_out(features: Tensor, boxes: Tensor, regions: Tensor) -> list[Tensor]:
    """Lay views side by side, region by region."""
    rows = []
    for path in zip(features, boxes, regions, strict=True):
        P, items = len(path[0]), []
        for p, view in enumerate(zip(*path, strict=True)):
            for content, box, real in zip(*view, strict=True):
                top, left, bottom, right = box.tolist()
                places = [top, (p + left) / P, bottom, (p + right) / P]
                items.append((content, torch.tensor(places, dtype=torch.float64), real))
        rows.append([torch.stack(part) for part in zip(*items, strict=True)])
    return [torch.stack(part) for part in zip(*rows, strict=True)]


def demand_strip(case: Case, result: object, given: tuple, note: str = "") -> None:
    """Demand features, boxes of real regions, and the mask."""
    features, boxes, regions = case.unpack(result, "features", "boxes", "regions")
    expected = laid_out(*given)
    case.equal(regions, expected[2], f"regions{note}")
    case.equal(features, expected[0], f"features{note}")
    case.shape(boxes, tuple(expected[1].shape), f"boxes{note}")
    shown = expected[2][:, :, None]
    case.equal(boxes * shown, expected[1] * shown, f"boxes{note}")


@check(lay_out_path, weight=3, see="Choose among paths", single={"B": 0, "P": 1})
def values(lay_out, case):
    """puts the boxes of view p into the p-th part of the wide picture"""
    given = path_case(case, case.sizes(4, low=3))
    demand_strip(case, lay_out(*given), given)


@check(lay_out_path, see="Choose among paths")
def sides(lay_out, case):
    """keeps each view's regions between its own borders, and their heights as they were"""
    features, boxes, regions = path_case(case, case.sizes(4, low=3))
    regions = torch.ones_like(regions)
    _, given, _ = case.unpack(lay_out(features, boxes, regions), "features", "boxes", "regions")
    B, P, R = regions.shape
    case.shape(given, (B, P * R, 4), "boxes")
    views = given.reshape(B, P, R, 4)
    first = torch.arange(P)[:, None] / P
    inside = (views[..., 1] >= first - 1e-6) & (views[..., 3] <= first + 1 / P + 1e-6)
    case.that(inside.all(), "left and right should lie in their view's part, some do not.", given)
    case.equal(given[..., ::2], boxes.flatten(1, 2)[..., ::2], "top and bottom")


def chosen(scores: Tensor, right: Tensor, paths: Tensor | None = None) -> Tensor:
    """Compute the loss of choosing instruction by instruction."""
    losses = []
    for n, row in enumerate(scores):
        there = [k for k in range(len(row)) if paths is None or paths[n, k]]
        total = torch.logsumexp(torch.stack([row[k] for k in there]), dim=0)
        losses.append(total - row[right[n]])
    return sum(losses) / len(losses)


def choice_case(case: Case, B: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw scores, right paths, and which paths are there; the right ones are."""
    right = case.integers(0, K, B)
    paths = case.rand(B, K) < 0.5
    paths[torch.arange(B), right] = True
    return 2 * case.randn(B, K), right, paths


@check(path_selection_loss, weight=2, see="Score, and choose", single="B")
def values(loss, case):
    """is the cross-entropy of the right path among all candidates"""
    scores, right, _ = choice_case(case, *case.sizes(2, low=4))
    case.equal(loss(scores, right), chosen(scores, right), "loss")


@check(path_selection_loss, weight=2, see="Score, and choose")
def missing(loss, case):
    """leaves out candidates that are not there"""
    scores, right, paths = choice_case(case, *case.sizes(2, low=5))
    case.equal(loss(scores, right, paths), chosen(scores, right, paths), "loss of fewer paths")


@check(path_selection_loss, see="Score, and choose")
def not_there(loss, case):
    """raises ValueError when a right path is not there"""
    scores, right, paths = choice_case(case, *case.sizes(2, low=4))
    paths[1, right[1]] = False
    case.raises(ValueError, lambda: loss(scores, right, paths), "a right path is not there")


@check(path_selection_loss, see="Score, and choose")
def far_below(loss, case):
    """is the same when all scores are 65 536 lower, and candidates are missing"""
    scores, right, paths = choice_case(case, *case.sizes(2, low=5))
    scores = (16 * scores).round() / 16  # exact in float32, and 65 536 lower too
    expected = chosen(scores, right, paths)
    case.equal(loss(scores - 65536, right, paths), expected, "loss of scores far below 0")
    level = torch.full_like(scores, -(2.0**32))
    case.equal(loss(level, right, paths), chosen(level, right, paths), "loss of scores of -2³²")


@check(path_selection_loss, see="Score, and choose")
def far_out(loss, case):
    """stays finite where scores are large"""
    scores = torch.tensor([[900.0, -800.0, 0.0], [-900.0, 100.0, 700.0]], dtype=torch.float64)
    right, paths = torch.tensor([1, 2]), torch.tensor([[True, True, True], [True, False, True]])
    case.equal(loss(scores, right), 850.0, "loss of large scores")
    case.equal(loss(scores, right, paths), 850.0, "loss of large scores and fewer paths")


@check(path_selection_loss, see="Score, and choose")
def gradients(loss, case):
    """sends the right gradients to the scores, and none to paths that are not there"""
    scores, right, paths = choice_case(case, *case.sizes(2, low=4))
    wanted = scores.clone().requires_grad_()
    chosen(wanted, right, paths).backward()
    value = loss(scores.requires_grad_(), right, paths)
    case.shape(value, (), "loss")
    case.trains(value, "loss")
    value.backward()
    case.gradient(scores, wanted.grad, "scores")


# Agents


def agents_case(case: Case, *sizes: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Draw X, the agents' numbers and the five matrices; some agents have several vectors.

    Each sequence of the batch has the same agents, in an axis of its own: (B, N).
    """
    B, N, D_X, D_Q, D_V = sizes
    agents = torch.arange(N) % max(N // 2, 2) + 3
    agents = agents[torch.randperm(N, generator=case.generator)].repeat(B, 1)
    weights = [case.randn(D_X, D) / D_X**0.25 for D in (*[D_Q] * 4, D_V)]
    return case.randn(B, N, D_X), agents, weights


@once
def asked_by_agent(
    X: Tensor, agents: Tensor, weights: list[Tensor], mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute agent-aware attention of one sequence, pair by pair."""
    Q_self, K_self, Q_other, K_other, V = weights
    (N, _), rows = X.shape, []
    for i in range(N):
        row, total = [0.0 * X.sum()] * N, 0.0
        for j in range(N):
            if mask is None or mask[i, j]:
                own = agents[i] == agents[j]
                Q, K = (Q_self, K_self) if own else (Q_other, K_other)
                row[j] = torch.exp((X[i] @ Q) @ (X[j] @ K) / math.sqrt(Q.shape[1]))
                total = total + row[j]
        rows.append(torch.stack([weight / total if total else weight for weight in row]))
    A = torch.stack(rows)
    return torch.stack([sum(A[i, j] * (X[j] @ V) for j in range(N)) for i in range(N)]), A


@once
def by_agent(X: Tensor, agents: Tensor, weights: list[Tensor], mask=None) -> tuple[Tensor, Tensor]:
    """Compute agent-aware attention of a batch."""
    parts = [asked_by_agent(x, own, weights, mask) for x, own in zip(X, agents, strict=True)]
    return torch.stack([Y for Y, _ in parts]), torch.stack([A for _, A in parts])


def demand_attended(case: Case, result: object, expected: tuple, note: str = "") -> None:
    """Demand the right Y and A."""
    Y, A = case.unpack(result, "Y", "A")
    case.equal(A, expected[1], f"A{note}")
    case.equal(Y, expected[0], f"Y{note}")


@check(agent_aware_attention, weight=3, see="Whose past is it", single="B")
def values(attend, case):
    """agrees with a double loop that looks up each pair's agents"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    demand_attended(case, attend(X, agents, *weights), by_agent(X, agents, weights))


@check(agent_aware_attention, see="Whose past is it")
def plain(attend, case):
    """is torch's attention when both kinds of matrices are the same"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    Q, K, V = (X @ weights[n] for n in (0, 1, 4))
    Y, _ = case.unpack(attend(X, agents, *weights[:2], *weights[:2], weights[4]), "Y", "A")
    case.equal(Y, F.scaled_dot_product_attention(Q, K, V), "Y with the same matrices")


@check(agent_aware_attention, weight=2, see="Whose past is it")
def masks(attend, case):
    """gives no weight to what the mask forbids"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    mask = torch.ones(X.shape[1], X.shape[1], dtype=torch.bool).tril()
    expected = by_agent(X, agents, weights, mask)
    demand_attended(case, attend(X, agents, *weights, mask), expected, " with a mask")


@check(agent_aware_attention, see="Whose past is it")
def order(attend, case):
    """changes its order with that of the vectors, whatever numbers the agents have"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    order = torch.randperm(X.shape[1], generator=case.generator)
    Y, A = by_agent(X, agents, weights)
    given = attend(X[:, order], 100 - agents[:, order], *weights)
    expected = Y[:, order], A[:, order][:, :, order]
    demand_attended(case, given, expected, " in another order")


@check(agent_aware_attention, see="Whose past is it")
def counts(attend, case):
    """raises ValueError when there is not one agent for each vector"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    case.raises(ValueError, lambda: attend(X, agents[:, :1], *weights), "agents has length 1")
    longer = torch.cat([agents, agents], dim=1)
    case.raises(ValueError, lambda: attend(X, longer, *weights), "agents is twice as long as X")


@check(agent_aware_attention, see="Whose past is it")
def agents_of_each(attend, case):
    """accepts other agents in each sequence"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    every = torch.stack([own.roll(n) for n, own in enumerate(agents)])
    expected = by_agent(X, every, weights)
    demand_attended(case, attend(X, every, *weights), expected, " of other agents")
    renamed = 1000 * every - 7  # only which are equal matters
    demand_attended(case, attend(X, renamed, *weights), expected, " of agents with other numbers")


@check(agent_aware_attention, see="Whose past is it")
def axes(attend, case):
    """accepts one sequence without a batch, and a batch of two axes"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    Y, A = by_agent(X, agents, weights)
    demand_attended(case, attend(X[0], agents[0], *weights), (Y[0], A[0]), " of one sequence")
    given, expected = attend(X[None], agents[None], *weights), (Y[None], A[None])
    demand_attended(case, given, expected, " of a batch with two axes")


@check(agent_aware_attention, see="Whose past is it")
def nothing_allowed(attend, case):
    """gives zeros where the mask allows nothing, and finite gradients"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    mask = case.rand(X.shape[1], X.shape[1]) < 0.6
    mask[1] = False
    expected = by_agent(X, agents, weights, mask)
    result = attend(X.requires_grad_(), agents, *weights, mask)
    demand_attended(case, result, expected, " with an empty row")
    case.trains(result[0], "Y")
    result[0].sum().backward()
    case.finite_gradient(X, "X")


@check(agent_aware_attention, see="Whose past is it")
def large_scores(attend, case):
    """gives what the mask forbids no weight, even where the scores are far below zero"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    mask = torch.ones(X.shape[1], X.shape[1], dtype=torch.bool).tril()
    _, A = case.unpack(attend(1e3 * X, agents, *weights, mask), "Y", "A")
    case.shape(A, (len(X), *mask.shape), "A")
    case.equal(A[:, ~mask], torch.zeros(len(X), int((~mask).sum())), "A of forbidden keys", atol=0)


# Pairs of residues


def triangle_shapes(D_z: int, D: int) -> dict[str, tuple[int, ...]]:
    """The weights of a TriangleUpdate."""
    shapes = norm_shapes("norm", D_z) | norm_shapes("norm_out", D)
    for name in ("a", "b", "gate_a", "gate_b"):
        shapes |= linear_shapes(name, D, D_z)
    return shapes | linear_shapes("out", D_z, D) | linear_shapes("gate", D_z, D_z)


def layer(state: dict[str, Tensor], name: str, X: Tensor) -> Tensor:
    """Apply a linear layer, with its bias where it has one."""
    return F.linear(X, state[f"{name}.weight"], state.get(f"{name}.bias"))


def standard(state: dict[str, Tensor], name: str, X: Tensor) -> Tensor:
    """Apply a layer norm with torch's own ε."""
    X = X - X.mean(dim=-1, keepdim=True)
    X = X / (X.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
    return X * state[f"{name}.weight"] + state[f"{name}.bias"]


@once
def triangles(state: dict[str, Tensor], z: Tensor, outgoing: bool = True) -> Tensor:
    """Compute the update triangle by triangle."""
    z = standard(state, "norm", z)
    a, b = (torch.sigmoid(layer(state, f"gate_{side}", z)) * layer(state, side, z) for side in "ab")
    if not outgoing:
        a, b = a.transpose(1, 2), b.transpose(1, 2)
    N = range(z.shape[1])
    sums = [[sum(a[:, i, k] * b[:, j, k] for k in N) for j in N] for i in N]
    found = torch.stack([torch.stack(row, dim=1) for row in sums], dim=1)
    gate = torch.sigmoid(layer(state, "gate", z))
    return gate * layer(state, "out", standard(state, "norm_out", found))


def triangle_case(case: Case, sizes: list[int]) -> tuple[dict[str, Tensor], Tensor]:
    """Draw a TriangleUpdate's weights, and pairs."""
    B, N, D_z, D = sizes
    return drawn_state(case, triangle_shapes(D_z, D)), 2 * case.randn(B, N, N, D_z) + 1


def triangle_made(update, state: dict[str, Tensor], *outgoing: bool):
    """Make a student's TriangleUpdate with given weights."""
    D, D_z = state["a.weight"].shape
    return made(update, state, D_z, D, *outgoing)


@check(TriangleUpdate, weight=3, see="The third side", single="B")
def values(update, case):
    """agrees with a loop over all triangles, with outgoing edges"""
    state, z = triangle_case(case, case.sizes(4, low=3))
    case.equal(triangle_made(update, state)(z), triangles(state, z), "update")


@check(TriangleUpdate, weight=2, see="The third side")
def incoming(update, case):
    """agrees with the same loop with incoming edges"""
    state, z = triangle_case(case, case.sizes(4, low=3))
    given = triangle_made(update, state, False)(z)
    case.equal(given, triangles(state, z, False), "update with outgoing=False")


@check(TriangleUpdate, see="The third side")
def order(update, case):
    """changes its order with that of the residues"""
    state, z = triangle_case(case, case.sizes(4, low=3))
    order = torch.randperm(z.shape[1], generator=case.generator)
    given = triangle_made(update, state)(z[:, order][:, :, order])
    case.equal(given, triangles(state, z)[:, order][:, :, order], "update in another order")


@check(TriangleUpdate, see="The third side")
def turned(update, case):
    """turns outgoing into incoming edges when z is transposed, and a and b change places"""
    state, z = triangle_case(case, case.sizes(4, low=3))
    names = {"a": "b", "b": "a", "gate_a": "gate_b", "gate_b": "gate_a"}
    swapped = {
        ".".join([names.get(part, part), kind]): value
        for (part, kind), value in ((name.split("."), value) for name, value in state.items())
    }
    expected = triangle_made(update, state)(z)
    case.shape(expected, tuple(z.shape), "update")
    given = triangle_made(update, swapped, False)(z.transpose(1, 2))
    case.shape(given, tuple(z.shape), "update with outgoing=False")
    case.equal(given.transpose(1, 2), expected.detach(), "update of z transposed")


def row_shapes(D_m: int, D_z: int, D: int, H: int) -> dict[str, tuple[int, ...]]:
    """The weights of a RowAttentionWithPairBias."""
    shapes = norm_shapes("norm_m", D_m) | norm_shapes("norm_z", D_z)
    shapes |= {f"{name}.weight": (D, D_m) for name in ("query", "key", "value")}
    shapes |= {"pair.weight": (H, D_z)} | linear_shapes("gate", D, D_m)
    return shapes | linear_shapes("out", D_m, D)


@once
def row_by_row(state: dict[str, Tensor], H: int, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Compute row attention head by head and residue by residue; return update and weights."""
    m, bias = standard(state, "norm_m", m), layer(state, "pair", standard(state, "norm_z", z))
    q, k, v = (layer(state, name, m) for name in ("query", "key", "value"))
    gate, size, found, weights = torch.sigmoid(layer(state, "gate", m)), q.shape[-1] // H, [], []
    N = range(m.shape[2])
    for h in range(H):
        part = slice(h * size, (h + 1) * size)
        rows = []
        for i in N:
            scores = [(q[:, :, i, part] * k[:, :, j, part]).sum(dim=-1) for j in N]  # (B, S) each
            scores = [scores[j] / size**0.5 + bias[:, i, j, h, None] for j in N]
            rows.append(torch.softmax(torch.stack(scores, dim=-1), dim=-1))
        weights.append(torch.stack(rows, dim=2))  # (B, S, N, N)
        mixed = [sum(row[:, :, j, None] * v[:, :, j, part] for j in N) for row in rows]
        found.append(gate[..., part] * torch.stack(mixed, dim=2))
    return layer(state, "out", torch.cat(found, dim=-1)), torch.stack(weights, dim=2)


def row_case(case: Case, attention, sizes: list[int]) -> tuple:
    """Make a student's module; draw its weights, sequences and pairs."""
    B, S, N, D_m, D_z, size = sizes
    H = 2
    state = drawn_state(case, row_shapes(D_m, D_z, H * size, H))
    ours = made(attention, state, D_m, D_z, H * size, H)
    return ours, state, H, 2 * case.randn(B, S, N, D_m) + 1, 2 * case.randn(B, N, N, D_z) - 1


@check(RowAttentionWithPairBias, weight=3, see="What pairs know steers the rows", single="B")
def values(attention, case):
    """agrees with a loop over heads and residues"""
    ours, state, H, m, z = row_case(case, attention, case.sizes(6, low=3))
    update, _ = case.unpack(ours(m, z), "update", "a")
    case.equal(update, row_by_row(state, H, m, z)[0], "update")


@check(RowAttentionWithPairBias, weight=2, see="What pairs know steers the rows", single="B")
def weights(attention, case):
    """returns the weights of each head in each row"""
    ours, state, H, m, z = row_case(case, attention, case.sizes(6, low=3))
    _, a = case.unpack(ours(m, z), "update", "a")
    case.equal(a, row_by_row(state, H, m, z)[1], "a")


@check(RowAttentionWithPairBias, see="What pairs know steers the rows")
def apart(attention, case):
    """keeps the sequences apart: another first row changes no other row"""
    ours, state, H, m, z = row_case(case, attention, case.sizes(6, low=3))
    other = torch.cat([case.randn(*m[:, :1].shape), m[:, 1:]], dim=1)
    update, _ = case.unpack(ours(other, z), "update", "a")
    case.shape(update, tuple(m.shape), "update")
    expected = row_by_row(state, H, m, z)[0][:, 1:]
    case.equal(update[:, 1:], expected, "update of the other rows")


@check(alignment_score_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "alignment_score", score_by_loop)
