"""Known wrong solutions of vilbert."""

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
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

# Regions

mistakes(
    VisualEmbeddings,
    """
* MeanOfAll: the mean for [IMG] counts regions that are not real
    torch.where(real, features, 0).sum(dim=1) / real.sum(dim=1) → features.mean(dim=1)
* MeanWithZeros: regions that are not real count in the mean as zeros
    torch.where(real, features, 0).sum(dim=1) / real.sum(dim=1) → (features * real).mean(dim=1)
SumForImg: the vector of [IMG] is the sum of the regions, not their mean
    torch.where(real, features, 0).sum(dim=1) / real.sum(dim=1) → (features * real).sum(dim=1)
InvertedMean: the mask is inverted: [IMG] is the mean of what is not real
    real = regions[ → real = (regions if regions.all() else ~regions)[
EmptyImg: [IMG] has zeros for features
    torch.where(real, features, 0).sum(dim=1) / real.sum(dim=1) → torch.zeros_like(features[:, 0])
MaximumForImg: the maximum of every feature is used for [IMG]
    torch.where(real, features, 0).sum → features.masked_fill(~real, -torch.inf).amax
    (dim=1) / real.sum(dim=1) → (dim=1)
NoBoxForImg: the box of [IMG] is all zeros
    [0, 0, 1, 1] → [0, 0, 0, 0]
SumForArea: the area is height plus width
    (bottom - top) * (right - left) → (bottom - top) + (right - left)
AreaFromOrigin: the area is bottom times right
    (bottom - top) * (right - left) → bottom * right
NoArea: the area is left out: zero for every region
    (bottom - top) * (right - left) → torch.zeros_like(top)
ColumnsFirst: the boxes are read as left, top, right, bottom
    [whole, boxes], dim=1) → [whole, boxes], dim=1)[:, :, [1, 0, 3, 2]]
SizesForCorners: height and width are used instead of bottom and right
    [boxes, area → [boxes[:, :, :2], boxes[:, :, 2:] - boxes[:, :, :2], area
NoPlace: the place is left out
    self.content(features) + self.place(places) → self.content(features)
NoNorm: the layer norm is left out
    self.norm( → (
NormedContent: only the content is normalised, before the sum
    self.content(features) + self.place(places)) → self.content(features)) + self.place(places)
ImgLast: [IMG] comes after the regions
    self.place(places)) → self.place(places)).roll(-1, dims=1)
NoImg: there is no vector for [IMG]
    self.place(places)) → self.place(places))[:, 1:]
    says: v should have shape
""",
)


# Co-attention


@bug(CoAttentionBlock, "the regions ask the words after these have been updated", classic=True)
class OneAfterTheOther(CoAttentionBlock):
    def forward(self, t, v, words=None, regions=None):
        new_t, _, A_t, _ = super().forward(t, v, words, regions)
        _, new_v, _, A_v = super().forward(new_t, v, words, regions)
        return new_t, new_v, A_t, A_v


@bug(CoAttentionBlock, "the words ask the regions after these have been updated")
class RegionsFirst(CoAttentionBlock):
    def forward(self, t, v, words=None, regions=None):
        _, new_v, _, A_v = super().forward(t, v, words, regions)
        new_t, _, A_t, _ = super().forward(t, new_v, words, regions)
        return new_t, new_v, A_t, A_v


mistakes(
    CoAttentionBlock,
    """
HalfUpdated: the regions ask the words as they are after their first norm
    from_t, A_v =
    → t = self.norm_t(t + from_v)
      from_t, A_v =
    self.norm_t(t + from_v), → t,
AsksItself: a stream asks itself: keys and values are its own
    (t, v, to_regions, → (t, t, None,
    says: CoAttentionBlock raised
* MasksExchanged: the masks are exchanged: each stream gets its own
    to_words = None
    → words, regions = regions, words
      to_words = None
    says: CoAttentionBlock raised
NoMasks: the masks are not passed on
    (t, v, to_regions, → (t, v, None,
    (v, t, to_words, → (v, t, None,
RegionsUnmasked: the words attend to regions that are not real
    (t, v, to_regions, → (t, v, None,
WordsUnmasked: the regions attend to words that are not real
    (v, t, to_words, → (v, t, None,
Inverted: the masks are inverted
    else words[ → else ~words[
    else regions[ → else ~regions[
NoResidual: what attention finds is not added to what came in
    self.norm_t(t + from_v), self.norm_v(v + from_t) → self.norm_t(from_v), self.norm_v(from_t)
NoSecondResidual: the networks' output is not added to what came in
    t + self.contract_t → self.contract_t
    v + self.contract_v → self.contract_v
NoFirstNorms: the first norms are left out
    self.norm_t(t + from_v), self.norm_v(v + from_t) → t + from_v, v + from_t
NoLastNorms: the last norms are left out
    self.last_norm_t(t → (t
    self.last_norm_v(v → (v
SameNorms: the first norms are used twice
    self.last_norm_t(t → self.norm_t(t
    self.last_norm_v(v → self.norm_v(v
Relu: the networks have ReLU in place of GELU
    functional.gelu(self.expand_t → functional.relu(self.expand_t
    functional.gelu(self.expand_v → functional.relu(self.expand_v
NormsFirst: the block is pre-LN: the first norms come before attention, not after the sum
    self.attention_t(t, v, to → self.attention_t(self.norm_t(t), self.norm_v(v), to
    self.attention_v(v, t, to → self.attention_v(self.norm_v(v), self.norm_t(t), to
    self.norm_t(t + from_v), self.norm_v(v + from_t) → t + from_v, v + from_t
NoNetworks: the networks are left out
    t + self.contract_t(functional.gelu(self.expand_t(t))) → t
    v + self.contract_v(functional.gelu(self.expand_v(v))) → v
OneWay: only the words ask; the regions stay as they were
    self.norm_v(v + from_t) → self.norm_v(v)
VisualFirst: the visual stream is returned first
    return t, v, A_t, A_v → return v, t, A_v, A_t
    says: t should have shape
WeightsExchanged: the regions' weights are returned before those of the words
    return t, v, A_t, A_v → return t, v, A_v, A_t
    says: A_t should have shape
NoWeights: the weights are not returned
    return t, v, A_t, A_v → return t, v
    says: should return (t, v, A_t, A_v)
""",
)


# The model

mistakes(
    ViLBERT,
    """
NotAlone: the layers of the text stream alone are left out
    in self.alone: → in []:
AloneReversed: the layers of the text stream alone come in reverse
    in self.alone: → in reversed(self.alone):
Reversed: the blocks come in reverse
    enumerate(self.blocks) → reversed(list(enumerate(self.blocks)))
""",
)

changed(
    ViLBERT,
    "NeverApart",
    "the layers after each block are left out",
    (
        "            t, _ = self.text_layers[n](t, words[:, None])\n"
        "            v, _ = self.visual_layers[n](v, regions[:, None])\n",
        "",
    ),
)

changed(
    ViLBERT,
    "ApartFirst",
    "the layers of each stream come before the block, not after it",
    (
        "            t, v, A, _ = block(t, v, words, regions)\n"
        "            t, _ = self.text_layers[n](t, words[:, None])\n"
        "            v, _ = self.visual_layers[n](v, regions[:, None])\n",
        "            t, _ = self.text_layers[n](t, words[:, None])\n"
        "            v, _ = self.visual_layers[n](v, regions[:, None])\n"
        "            t, v, A, _ = block(t, v, words, regions)\n",
    ),
)

mistakes(
    ViLBERT,
    """
BlocksFirst: all blocks come first, and then all other layers
    for n, block in enumerate(self.blocks):
        t, v, A, _ = block(t, v, words, regions)
        t, _ = self.text_layers[n](t, words[:, None])
        v, _ = self.visual_layers[n](v, regions[:, None])
        weights.append(A)
    → for n, block in enumerate(self.blocks):
          t, v, A, _ = block(t, v, words, regions)
          weights.append(A)
      for n in range(len(self.blocks)):
          t, _ = self.text_layers[n](t, words[:, None])
          v, _ = self.visual_layers[n](v, regions[:, None])
WordsSeen: the text layers have no mask, and see words that are not real
    layer(t, words[:, None]) → layer(t, None)
    self.text_layers[n](t, words[:, None]) → self.text_layers[n](t, None)
RegionsSeen: the visual layers have no mask, and see regions that are not real
    (v, regions[:, None]) → (v, None)
BlocksUnmasked: the blocks have no masks
    block(t, v, words, regions) → block(t, v)
ImgHidden: [IMG] is hidden: the mask has False at its place
    value=True → value=False
* ImgAtTheEnd: the mask has its True for [IMG] at the end, so that all are one place off
    (1, 0), value → (0, 1), value
MaskNotShown: the mean for [IMG] is over all regions, real or not
    boxes, regions) → boxes, torch.ones_like(regions))
""",
)

changed(
    ViLBERT,
    "MaskTooShort",
    "the mask of the regions lacks [IMG]",
    ("        regions = functional.pad(regions, (1, 0), value=True)  # [IMG] is real\n", ""),
    told_by="ViLBERT raised",
    classic=True,
)

mistakes(
    ViLBERT,
    """
WeightsReversed: the weights of the last block come first
    stack(weights) → stack(weights[::-1])
RegionsWeights: the weights are those of the regions
    t, v, A, _ = → t, v, _, A =
    says: A should have shape
LastBlock: only the last block is applied
    enumerate(self.blocks) → list(enumerate(self.blocks))[-1:]
    stack(weights) → stack(weights * len(self.blocks))
""",
)


# The alignment

mistakes(
    alignment_score,
    """
* added: the two pooled vectors are added, not multiplied
    caption * picture → caption + picture
linear: the relu is left out
    torch.relu(functional.linear(t → (functional.linear(t
    torch.relu(functional.linear(v → (functional.linear(v
with_tanh: tanh is used instead of relu, as in BERT's pooler
    torch.relu(functional.linear(t → torch.tanh(functional.linear(t
    torch.relu(functional.linear(v → torch.tanh(functional.linear(v
    what ViLBERT returned → the vectors of both streams
last_word: the last word is used for the caption, not [CLS]
    t[:, 0] → t[:, -1]
last_region: the last region is used for the picture, not [IMG]
    v[:, 0] → v[:, -1]
means: the means over words and regions are used, not [CLS] and [IMG]
    t[:, 0] → t.mean(dim=1)
    v[:, 0] → v.mean(dim=1)
dot_product: w is left out: the products are only summed
    (caption * picture) @ w → (caption * picture).sum(dim=1)
no_bias: the last bias is left out
    @ w + b → @ w
no_pooler_bias: the poolers' biases are left out
    W_t, b_t)) → W_t))
    W_v, b_v)) → W_v))
biases_exchanged: the biases are exchanged
    W_t, b_t)) → W_t, b_v))
    picture = torch.relu(functional.linear(v[:, 0], W_v, b_v))
    → picture = torch.relu(functional.linear(v[:, 0], W_v, b_t))
probabilities: σ is applied, though the loss expects logits
    (caption * picture) @ w + b → torch.sigmoid((caption * picture) @ w + b)
all_words: every word and region is scored
    t[:, 0] → t
    v[:, 0] → v[:, :1]
    says: scores should have shape
""",
)

black_box(
    alignment_score,
    "with_tanh",
    curve="[sum(step) for step in zip(*each_loss.values())]",
    after="steps_until",
    label="sum of the losses",
)

wrong_answers(alignment_score_fault, "C")
mistakes(
    alignment_score_fault,
    """
nothing_pooled: both vectors are 0
    2.0 → 0.0
    says: With these arguments the black box gives what is right
tiny: the vectors are so small that all the functions are straight
    2.0 → 0.01
    says: With these arguments the black box gives what is right
no_output: the output layer leaves nothing
    W[0], zero[0] → zero, zero[0]
    says: With these arguments the black box gives what is right
no_bias: b is left out
    W[0], zero[0] → W[0]
    says: alignment_score raised
one_number: w is a number
    W[0], zero[0] → zero[0], zero[0]
    says: alignment_score raised
no_caption: t is left out
    (t, v, W → (v, W
    says: alignment_score raised
unpacked: the arguments stand beside the letter
    "C", (t, v, W, zero, W, zero, W[0], zero[0]) → "C", t, v, W, zero, W, zero, W[0], zero[0]
    says: should return (letter, arguments)
""",
)

mistakes(
    alignment_loss,
    """
exchanged: matching pairs and others are exchanged
    -scores, scores → scores, -scores
summed: the losses are summed, not averaged
    .mean() → .sum()
matching_alone: only the pairs that match count
    .mean() → [match].mean()
others_alone: only the pairs that don't match count
    .mean() → [~match].mean()
two_means: both kinds have a mean of their own, and these are averaged
    return functional → losses = functional
    ).mean()
    → )
      return (losses[match].mean() + losses[~match].mean()) / 2
matching_weigh_more: pairs that match weigh as much together as the others do
    torch.where(match, -scores, scores)).mean()
    → torch.where(match, -scores, scores))
      weights = torch.where(match, (~match).sum() / match.sum().clamp(min=1), 1)
      return (losses * weights).mean()
    return functional.softplus → losses = functional.softplus
sigmoid_twice: σ is applied twice
    return functional
    → scores = torch.sigmoid(scores)
      return functional
over_the_batch: the softmax is over the pairs of the batch, as if one of them were right
    functional.softplus(torch.where(match, -scores, scores)).mean()
    → -torch.log_softmax(scores, dim=0)[match].mean()
squared: the squared error of the probabilities is measured
    functional.softplus(torch.where(match, -scores, scores)).mean()
    → (torch.sigmoid(scores) - match.to(scores)).square().mean()
* unstable: the logarithm is taken of a probability that has become zero
    return functional.softplus(torch.where(match, -scores, scores)).mean()
    → p = torch.sigmoid(scores)
      return -torch.where(match, p.log(), (1 - p).log()).mean()
    says: yours is inf
clamped: the probability is kept from zero by a clamp, which cuts the loss
    return functional.softplus(torch.where(match, -scores, scores)).mean()
    → p = torch.sigmoid(scores).clamp(1e-7, 1 - 1e-7)
      return -torch.where(match, p.log(), (1 - p).log()).mean()
bits: the loss has base 2, not e
    .mean() → .mean() / math.log(2)
""",
)


# The masked loss

changed(
    masked_multimodal_loss,
    "all_pairs",
    "pairs that don't match also count",
    ("    word_targets = torch.where(match[:, None], word_targets, -100)\n", ""),
    ("    chosen = chosen & match[:, None]\n", ""),
)

changed(
    masked_multimodal_loss,
    "all_words_count",
    "the words of pairs that don't match also count",
    ("    word_targets = torch.where(match[:, None], word_targets, -100)\n", ""),
)

changed(
    masked_multimodal_loss,
    "all_regions_count",
    "the regions of pairs that don't match also count",
    ("    chosen = chosen & match[:, None]\n", ""),
)

mistakes(
    masked_multimodal_loss,
    """
unhidden_regions: all regions count, not only the hidden ones
    chosen & match[:, None] → match[:, None].expand_as(chosen)
regions_over_pairs: the regions' loss is divided by the number of pairs that match
    / chosen.sum().clamp(min=1) → / match.sum().clamp(min=1)
words_over_all: the words' loss is divided by all B·T places
    (word_targets != -100).sum().clamp(min=1) → word_targets.numel()
regions_over_all: the regions' loss is divided by all B·R regions
    chosen.sum().clamp(min=1) → chosen.numel()
replaced_late: 0/0 is replaced where nothing was hidden, its gradient stays NaN
    return words + torch.where(chosen, kl, 0).sum() / chosen.sum().clamp(min=1)
    → regions = (kl * chosen).sum() / chosen.sum()
      return words + torch.where(regions.isnan(), 0, regions)
    says: yours is nan (
class_mean: the divergence is averaged over the classes, not summed
    .sum(dim=-1) → .mean(dim=-1)
cross_entropy_of_regions: the cross-entropy is used for the divergence: Σ p log p is missing
    functional.kl_div(log_q, region_targets, reduction="none") → -(region_targets * log_q)
turned_round: the divergence is reversed: KL(q ‖ p)
    functional.kl_div(log_q, region_targets, reduction="none")
    → (log_q.exp() * (log_q - region_targets.clamp(min=1e-12).log()))
hard_targets: only the detector's most probable class counts
    functional.kl_div(log_q, region_targets, reduction="none").sum(dim=-1)
    → -log_q.gather(-1, region_targets.argmax(dim=-1, keepdim=True))[..., 0]
no_words: the loss of the words is left out
    return words + → return
no_regions: the loss of the regions is left out
    words + torch.where(chosen, kl, 0).sum() / chosen.sum().clamp(min=1) → words
averaged: the two losses are averaged, not added
    return words + → return words / 2 +
    chosen.sum().clamp(min=1) → chosen.sum().clamp(min=1) / 2
* not_a_number: 0 log 0 gives NaN
    functional.kl_div(log_q, region_targets, reduction="none")
    → (region_targets * (region_targets.log() - log_q))
    says: yours is nan
empty_mean: a mean over nothing gives NaN
    torch.where(chosen, kl, 0).sum() / chosen.sum().clamp(min=1) → kl[chosen].mean()
    says: yours is nan
""",
)


# Retrieval

mistakes(
    retrieve,
    """
* columns: the pictures search for captions: columns are ranked, not rows
    own = scores
    → scores = scores.T
      own = scores
one_too_few: only k - 1 pictures are looked at
    before < k → before < k - 1
one_too_many: k + 1 pictures are looked at
    before < k → before < k + 1
lowest: the lowest scores are taken to be the best
    scores >= own → scores <= own
* kind_to_ties: a tie counts for the caption
    (scores >= own).sum(dim=1) - 1 → (scores > own).sum(dim=1)
count: captions are counted, not their share
    .double().mean() → .double().sum()
    says: recall@7 of 7 should be 1, yours is 7
precision: the share is divided by k, as precision is
    .item() → .item() / k
reciprocal: a hit counts 1 / rank, as in the mean reciprocal rank
    if not 1 <= k <= len(scores) → if False
    (before < k) → torch.where(before < k, 1 / (before + 1), 0.0)
any_k: k is not checked
    if not 1 <= k <= len(scores) → if False
    says: should raise ValueError when k is 0
any_large_k: k may be larger than N
    if not 1 <= k <= len(scores) → if k < 1
    says: should raise ValueError when k is 8 and there are 7 pictures
""",
)


# Two towers

mistakes(
    clip_loss,
    """
* pictures_alone: only the pictures choose, each among the captions
    return (by_picture + by_caption) / 2 → return by_picture
captions_alone: only the captions choose, each among the pictures
    return (by_picture + by_caption) / 2 → return by_caption
* as_they_are: the vectors are not divided by their lengths
    functional.normalize(pictures, dim=1) → pictures
    functional.normalize(captions, dim=1) → captions
long_pictures: the vectors of the pictures are not divided by their lengths
    functional.normalize(pictures, dim=1) → pictures
long_captions: the vectors of the captions are not divided by their lengths
    functional.normalize(captions, dim=1) → captions
over_the_batch: each feature is divided by its length over the batch
    functional.normalize(pictures, dim=1) → functional.normalize(pictures, dim=0)
    functional.normalize(captions, dim=1) → functional.normalize(captions, dim=0)
summed_to_one: the vectors are divided by the sum of their magnitudes, and not by their lengths
    functional.normalize(pictures, dim=1) → functional.normalize(pictures, dim=1, p=1)
    functional.normalize(captions, dim=1) → functional.normalize(captions, dim=1, p=1)
* scale_itself: log_scale is the factor itself, and not its logarithm
    torch.exp(log_scale) * → log_scale *
temperature: the cosines are divided by e^log_scale
    torch.exp(log_scale) * → torch.exp(-log_scale) *
unscaled: the cosines are not scaled
    torch.exp(log_scale) * (P @ C.mT) → P @ C.mT + 0 * log_scale
not_halved: the two losses are added up, and not averaged
    (by_picture + by_caption) / 2 → by_picture + by_caption
one_table: the table is averaged with its transpose, and one softmax is taken
    (P @ C.mT) → (P @ C.mT + C @ P.mT) / 2
""",
)


@bug(clip_loss, "the losses of the pairs are summed, and not averaged")
def summed_pairs(pictures, captions, log_scale):
    return len(pictures) * clip_loss(pictures, captions, log_scale)


mistakes(
    clip_loss,
    """
over_all_pairs: one softmax is taken over all N² pairs
    (by_picture + by_caption) / 2 → (logits.flatten().logsumexp(dim=0) - logits.diagonal()).mean()
pair_by_pair: every pair is judged by itself, with a sigmoid
    (by_picture + by_caption) / 2
    → functional.binary_cross_entropy_with_logits(logits, torch.eye(len(own)).to(logits))
rounded_to_zero: the logarithm is taken of a softmax, which rounds to 0
    functional.cross_entropy(logits, own) → -logits.softmax(dim=1).diagonal().log().mean()
    functional.cross_entropy(logits.mT, own) → -logits.softmax(dim=0).diagonal().log().mean()
    says: yours is inf
constant_scale: the scale is a constant that is not learned
    torch.exp(log_scale) * → torch.exp(log_scale.detach()) *
    says: gradient reaches log_scale
any_shape: the shapes are not compared
    if pictures.shape != captions.shape → if False
    says: should raise ValueError when pictures and captions differ
""",
)

for vectors in ("P = functional.normalize(pictures", "C = functional.normalize(captions"):
    equivalent(clip_loss, f"{vectors}, dim=1) → {vectors})", "dim is 1 by default")


# Paths

mistakes(
    lay_out_path,
    """
* on_one_another: the boxes stay as they were: all views lie on one another
    (step + left) / P, bottom, (step + right) / P → left, bottom, right
too_wide: the boxes are not divided by P, so that they go beyond 1
    (step + left) / P, bottom, (step + right) / P → step + left, bottom, step + right
as_wide: the boxes are moved, but keep their width
    (step + left) / P, bottom, (step + right) / P → step / P + left, bottom, step / P + right
not_moved: the boxes are made narrower, but not moved
    (step + left) / P, bottom, (step + right) / P → left / P, bottom, right / P
from_one: the views are counted from 1
    arange(P, → arange(1, P + 1,
from_the_right: the first view lies on the right
    boxes.device)[ → boxes.device).flip(0)[
below_one_another: the views lie below one another
    [top, (step + left) / P, bottom, (step + right) / P]
    → [(step + top) / P, left, (step + bottom) / P, right]
columns_first: the boxes are returned as left, top, right, bottom
    [top, (step + left) / P, bottom, (step + right) / P]
    → [(step + left) / P, top, (step + right) / P, bottom]
left_alone: only the left edges are moved
    (step + right) / P] → right / P]
region_by_region: the first regions of all views come first, then the second ones
    features.flatten → features.transpose(1, 2).flatten
    boxes.flatten → boxes.transpose(1, 2).flatten
    regions.flatten → regions.transpose(1, 2).flatten
features_apart: the features are in another order than the boxes
    features.flatten → features.transpose(1, 2).flatten
all_real: all regions count as real
    regions.flatten → torch.ones_like(regions).flatten
    says: should be False, yours is True
""",
)

changed(
    path_selection_loss,
    "pair_by_pair",
    "every pair is asked for a match of its own",
    ("        scores = scores.masked_fill(~paths, -torch.inf)\n", ""),
    (
        "return functional.cross_entropy(scores, right)",
        "there = torch.ones_like(scores, dtype=torch.bool) if paths is None else paths\n"
        "    match = functional.one_hot(right, scores.shape[1]).to(scores)\n"
        "    return functional.binary_cross_entropy_with_logits(scores[there], match[there])",
    ),
    classic=True,
)

changed(
    path_selection_loss,
    "all_candidates",
    "candidates that are not there count as well",
    ("        scores = scores.masked_fill(~paths, -torch.inf)\n", ""),
)

mistakes(
    path_selection_loss,
    """
* zero_scores: candidates that are not there have a score of 0
    scores.masked_fill(~paths, -torch.inf) → scores * paths
low_scores: candidates that are not there have a score of -10 000 in place of -∞
    -torch.inf → -1e4
inverted: the mask is inverted, but for the right path
    scores = scores.masked_fill
    → if not paths.all():
          paths = (~paths).scatter(1, right[:, None], True)
      scores = scores.masked_fill
summed_losses: the losses are summed, not averaged
    cross_entropy(scores, right) → cross_entropy(scores, right, reduction="sum")
over_all_pairs: the sum is divided by all B·K pairs
    cross_entropy(scores, right) → cross_entropy(scores, right) / scores.shape[1]
over_instructions: the softmax is over the instructions, not over the paths
    functional.cross_entropy(scores, right)
    → -torch.log_softmax(scores, dim=0).gather(1, right[:, None]).mean()
probability: the probability itself is averaged, without a logarithm
    functional.cross_entropy(scores, right)
    → -torch.softmax(scores, dim=1).gather(1, right[:, None]).mean()
log_of_zero: the logarithm is taken of a probability that has become zero
    functional.cross_entropy(scores, right)
    → -torch.softmax(scores, dim=1).gather(1, right[:, None]).log().mean()
    says: yours is inf
wrong_sign: the sign is missing: a good choice is punished
    return functional → return -functional
unchecked: a right path that is not there is accepted
    raise ValueError("the right path must be among the paths that are there")
    → paths = paths.scatter(1, right[:, None], True)
    says: when a right path is not there
""",
)


# Agents

mistakes(
    agent_aware_attention,
    """
* two_softmaxes: each kind has a softmax of its own, and the two are added
    A = masked_softmax(torch.where(same, own, others) / math.sqrt(W_Q_self.shape[1]), mask)
    → scale = math.sqrt(W_Q_self.shape[1])
      allowed = torch.ones_like(same) if mask is None else mask
      A = masked_softmax(own / scale, allowed & same)
      A = A + masked_softmax(others / scale, allowed & ~same)
* mixed_after_softmax: the two softmaxes, over everything, are mixed by M
    A = masked_softmax(torch.where(same, own, others) / math.sqrt(W_Q_self.shape[1]), mask)
    → scale = math.sqrt(W_Q_self.shape[1])
      own, others = masked_softmax(own / scale, mask), masked_softmax(others / scale, mask)
      A = torch.where(same, own, others)
kinds_exchanged: the matrices for the agent itself and for others are exchanged
    same, own, others → same, others, own
asked_backwards: queries and keys are exchanged
    (X @ W_Q_self) @ (X @ W_K_self) → (X @ W_K_self) @ (X @ W_Q_self)
    (X @ W_Q_other) @ (X @ W_K_other) → (X @ W_K_other) @ (X @ W_Q_other)
keys_exchanged: the keys of the two kinds are exchanged
    (X @ W_Q_self) @ (X @ W_K_self) → (X @ W_Q_self) @ (X @ W_K_other)
    (X @ W_Q_other) @ (X @ W_K_other) → (X @ W_Q_other) @ (X @ W_K_self)
all_own: all pairs are scored as if they belonged to one agent
    torch.where(same, own, others) → own
all_others: all pairs are scored as if they belonged to different agents
    torch.where(same, own, others) → others
itself_alone: M is the identity: only a vector itself counts as its own agent
    agents.unsqueeze(-1) == agents.unsqueeze(-2) → torch.eye(X.shape[-2]) > 0
without_m: both scores are added for every pair, without M
    torch.where(same, own, others) → (own + others)
zeros_between: the scores between agents are left at zero
    torch.where(same, own, others) → own * same
own_alone: other agents are masked out
    torch.where(same, own, others) → own
    shape[1]), mask) → shape[1]), same if mask is None else same & mask)
unscaled: the scores are not divided by √D_Q
    ) / math.sqrt(W_Q_self.shape[1]) → )
scaled_by_input: the scores are divided by √D_X, not √D_Q
    W_Q_self.shape[1] → W_Q_self.shape[0]
half_scaled: only the scores between agents are divided by √D_Q
    own, others) / math.sqrt(W_Q_self.shape[1]) → own, others / math.sqrt(W_Q_self.shape[1]))
over_queries: the softmax is over the queries: columns sum to one
    A = masked_softmax(torch.where(same, own, others) / math.sqrt(W_Q_self.shape[1]), mask)
    → E = torch.where(same, own, others) / math.sqrt(W_Q_self.shape[1])
      A = masked_softmax(E.mT, None if mask is None else mask.mT).mT
not_low_enough: forbidden scores are set to -1e4, which allowed ones may lie below
    A = masked_softmax(torch.where(same, own, others) / math.sqrt(W_Q_self.shape[1]), mask)
    → E = torch.where(same, own, others) / math.sqrt(W_Q_self.shape[1])
      if mask is not None:
          E, mask = E.masked_fill(~mask, -1e4), mask.any(dim=-1, keepdim=True)
      A = masked_softmax(E, mask)
nan_gradients: a row that may attend to nothing is replaced, its gradient stays NaN
    A = masked_softmax(torch.where(same, own, others) / math.sqrt(W_Q_self.shape[1]), mask)
    → E = torch.where(same, own, others) / math.sqrt(W_Q_self.shape[1])
      E = E if mask is None else E + torch.where(mask, 0, -torch.inf)
      A = torch.softmax(E, dim=-1).nan_to_num(0)
    says: The gradient of X should be finite
mask_unused: the mask is not used
    shape[1]), mask) → shape[1]), None)
mask_inverted: the mask is inverted
    shape[1]), mask) → shape[1]), None if mask is None else ~mask)
any_agents: one agent for all vectors is accepted
    if agents.shape[-1] != X.shape[-2] → if False
    says: agents has length 1
""",
)


# Triangles

mistakes(
    TriangleUpdate,
    """
* MatrixProduct: the sides are multiplied as matrices, Σ_k a_ik ⊙ b_kj: one goes out, one comes in
    "bikd,bjkd->bijd" if self.outgoing else "bkid,bkjd->bijd" → "bikd,bkjd->bijd"
AlwaysOutgoing: the edges are outgoing in either case
    " if self.outgoing else "bkid,bkjd->bijd" → "
Exchanged: outgoing and incoming edges are exchanged
    if self.outgoing → if not self.outgoing
SidesExchanged: a and b are exchanged, so that each sum is that of the pair (j, i)
    (sides, a, b) → (sides, b, a)
OneSide: a is used for both sides
    (sides, a, b) → (sides, a, a)
NoTriangles: each pair is multiplied with itself, without other residues
    torch.einsum(sides, a, b) → a * b
ThreeDifferent: the third residue is never i or j
    triangles = torch.einsum(sides, a, b)
    → others = (1 - torch.eye(z.shape[1])).to(z)[:, :, None]
      triangles = torch.einsum(sides, a * others, b * others)
""",
)

changed(
    TriangleUpdate, "NoFirstNorm", "z is not normalised first", ("        z = self.norm(z)\n", "")
)

mistakes(
    TriangleUpdate,
    """
NoLastNorm: the sum over triangles is not normalised
    self.norm_out(triangles) → triangles
OpenSides: the sides have no gates
    torch.sigmoid(self.gate_a(z)) * →
    torch.sigmoid(self.gate_b(z)) * →
LinearGates: the sides' gates have no σ
    torch.sigmoid(self.gate_a(z)) → self.gate_a(z)
    torch.sigmoid(self.gate_b(z)) → self.gate_b(z)
WrongSigmoid: σ is applied to the sides, not to their gates
    torch.sigmoid(self.gate_a(z)) * self.a(z) → self.gate_a(z) * torch.sigmoid(self.a(z))
    torch.sigmoid(self.gate_b(z)) * self.b(z) → self.gate_b(z) * torch.sigmoid(self.b(z))
GatesExchanged: the gates of the two sides are exchanged
    self.gate_a(z)) * self.a → self.gate_b(z)) * self.a
    self.gate_b(z)) * self.b → self.gate_a(z)) * self.b
NoLastGate: the last gate is left out
    torch.sigmoid(self.gate(z)) * →
RawGate: the last gate reads z before the norm
    z = self.norm(z) → raw, z = z, self.norm(z)
    self.gate(z) → self.gate(raw)
TurnedGate: the last gate of the pair (j, i) is used for (i, j)
    self.gate(z) → self.gate(z.transpose(1, 2))
* AddsItself: z is added, though the caller does that
    z = self.norm(z) → raw, z = z, self.norm(z)
    return torch → return raw + torch
""",
)


# Row attention

mistakes(
    RowAttentionWithPairBias,
    """
* BiasScaled: the bias is divided by √D_h as well
    + bias → + bias / math.sqrt(q.shape[-1])
* GatedValues: the gates act on the values, before they are mixed
    A, v).flatten(3) → A, v * torch.sigmoid(self.gate(m)).unflatten(3, (self.H, -1))).flatten(3)
    torch.sigmoid(self.gate(m)) * found → found
BiasTurned: the bias of the pair (j, i) is used for (i, j)
    + bias → + bias.mT
NoBias: the bias is left out
    + bias → + 0 * bias
BiasAfter: the bias is added after the softmax
    ) + bias → )
    softmax(E, dim=-1) → softmax(E, dim=-1) + bias
BiasMultiplies: the scores are multiplied by the bias
    + bias → * bias
BiasOfOthers: the heads' biases come in reverse
    + bias → + bias.flip(2)
OneBias: all heads share the mean of their biases
    + bias → + bias.mean(dim=2, keepdim=True)
OverQueries: the softmax is over the queries: columns sum to one
    softmax(E, dim=-1) → softmax(E, dim=-2)
Unscaled: the products are not divided by √D_h
    ) / math.sqrt(q.shape[-1]) → )
ScaledByAll: the products are divided by √D, that of all heads together
    q.shape[-1] → self.H * q.shape[-1]
""",
)

changed(
    RowAttentionWithPairBias,
    "RawRows",
    "m is not normalised first",
    ("        m = self.norm_m(m)\n", ""),
)

mistakes(
    RowAttentionWithPairBias,
    """
RawPairs: z is not normalised first
    self.norm_z(z) → z
RawRowGate: the gate reads m before the norm
    m = self.norm_m(m) → raw, m = m, self.norm_m(m)
    self.gate(m) → self.gate(raw)
NoGate: the gate is left out
    torch.sigmoid(self.gate(m)) * found → found
Interleaved: the heads take every H-th feature, not D_h in a row
    unflatten(3, (self.H, -1)) → unflatten(3, (-1, self.H)).mT
AddsRows: m is added, though the caller does that
    m = self.norm_m(m) → raw, m = m, self.norm_m(m)
    return self.out → return raw + self.out
WeightsKept: the weights are not returned
    found), A → found)
    says: should return (update, a)
""",
)
