"""Known wrong solutions of vilbert."""

import math

import torch
from torch.nn import functional as F

from autograder.bugs import bug
from course_pkg.attention import masked_softmax
from course_pkg.vilbert import (
    CoAttentionBlock,
    RowAttentionWithPairBias,
    TriangleUpdate,
    ViLBERT,
    VisualEmbeddings,
    agent_aware_attention,
    alignment_loss,
    alignment_score,
    lay_out_path,
    masked_multimodal_loss,
    path_selection_loss,
    retrieve,
)

# Regions


class VariedVisual(VisualEmbeddings):
    """Visual embeddings whose steps the bugs below vary."""

    def forward(self, features, boxes, regions):
        features = torch.cat([self.mean(features, regions)[:, None], features], dim=1)
        whole = boxes.new_tensor(self.whole()).expand(len(boxes), 1, 4)
        boxes = self.corners(torch.cat([whole, boxes], dim=1))
        places = torch.cat([boxes, self.fifth(boxes)[:, :, None]], dim=2)
        return self.finish(self.content(features), self.place(places))

    def mean(self, features, regions):
        real = regions[:, :, None]
        return (features * real).sum(dim=1) / real.sum(dim=1)

    def whole(self):
        return [0, 0, 1, 1]

    def corners(self, boxes):
        return boxes

    def fifth(self, boxes):
        height, width = (boxes[:, :, 2:] - boxes[:, :, :2]).unbind(dim=2)
        return height * width

    def finish(self, content, place):
        return self.norm(content + place)


@bug(VisualEmbeddings, "the mean for [IMG] counts regions that are not real", classic=True)
class MeanOfAll(VariedVisual):
    def mean(self, features, regions):
        return features.mean(dim=1)


@bug(VisualEmbeddings, "regions that are not real count in the mean as zeros", classic=True)
class MeanWithZeros(VariedVisual):
    def mean(self, features, regions):
        return (features * regions[:, :, None]).mean(dim=1)


@bug(VisualEmbeddings, "the vector of [IMG] is the sum of the regions, not their mean")
class SumForImg(VariedVisual):
    def mean(self, features, regions):
        return (features * regions[:, :, None]).sum(dim=1)


@bug(VisualEmbeddings, "the mask is inverted: [IMG] is the mean of what is not real")
class InvertedMean(VariedVisual):
    def mean(self, features, regions):
        return super().mean(features, regions if regions.all() else ~regions)


@bug(VisualEmbeddings, "[IMG] has zeros for features")
class EmptyImg(VariedVisual):
    def mean(self, features, regions):
        return torch.zeros_like(features[:, 0])


@bug(VisualEmbeddings, "the maximum of every feature is used for [IMG]")
class MaximumForImg(VariedVisual):
    def mean(self, features, regions):
        return features.masked_fill(~regions[:, :, None], -torch.inf).amax(dim=1)


@bug(VisualEmbeddings, "the box of [IMG] is all zeros")
class NoBoxForImg(VariedVisual):
    def whole(self):
        return [0, 0, 0, 0]


@bug(VisualEmbeddings, "the area is height plus width")
class SumForArea(VariedVisual):
    def fifth(self, boxes):
        return (boxes[:, :, 2:] - boxes[:, :, :2]).sum(dim=2)


@bug(VisualEmbeddings, "the area is bottom times right")
class AreaFromOrigin(VariedVisual):
    def fifth(self, boxes):
        return boxes[:, :, 2] * boxes[:, :, 3]


@bug(VisualEmbeddings, "the area is left out: zero for every region")
class NoArea(VariedVisual):
    def fifth(self, boxes):
        return torch.zeros_like(boxes[:, :, 0])


@bug(VisualEmbeddings, "the boxes are read as left, top, right, bottom")
class ColumnsFirst(VariedVisual):
    def corners(self, boxes):
        return boxes[:, :, [1, 0, 3, 2]]


@bug(VisualEmbeddings, "height and width are used instead of bottom and right")
class SizesForCorners(VariedVisual):
    def corners(self, boxes):
        return torch.cat([boxes[:, :, :2], boxes[:, :, 2:] - boxes[:, :, :2]], dim=2)

    def fifth(self, boxes):
        return boxes[:, :, 2] * boxes[:, :, 3]


@bug(VisualEmbeddings, "the place is left out")
class NoPlace(VariedVisual):
    def finish(self, content, place):
        return self.norm(content)


@bug(VisualEmbeddings, "the layer norm is left out")
class NoNorm(VariedVisual):
    def finish(self, content, place):
        return content + place


@bug(VisualEmbeddings, "only the content is normalised, before the sum")
class NormedContent(VariedVisual):
    def finish(self, content, place):
        return self.norm(content) + place


@bug(VisualEmbeddings, "[IMG] comes after the regions")
class ImgLast(VisualEmbeddings):
    def forward(self, features, boxes, regions):
        return super().forward(features, boxes, regions).roll(-1, dims=1)


@bug(VisualEmbeddings, "there is no vector for [IMG]", told_by="v should have shape")
class NoImg(VisualEmbeddings):
    def forward(self, features, boxes, regions):
        return super().forward(features, boxes, regions)[:, 1:]


# Co-attention


class VariedBlock(CoAttentionBlock):
    """A block whose steps the bugs below vary."""

    def forward(self, t, v, words=None, regions=None):
        to_words = None if words is None else words[:, None]
        to_regions = None if regions is None else regions[:, None]
        from_v, A_t = self.words_ask(t, v, to_regions)
        from_t, A_v = self.regions_ask(t, v, to_words)
        t, v = self.first(t, v, from_v, from_t)
        return *self.second(t, v), A_t, A_v

    def words_ask(self, t, v, mask):
        return self.attention_t(t, v, mask, return_weights=True)

    def regions_ask(self, t, v, mask):
        return self.attention_v(v, t, mask, return_weights=True)

    def first(self, t, v, from_v, from_t):
        return self.norm_t(t + from_v), self.norm_v(v + from_t)

    def second(self, t, v):
        return self.last_norm_t(t + self.think_t(t)), self.last_norm_v(v + self.think_v(v))

    def think_t(self, t):
        return self.contract_t(self.act(self.expand_t(t)))

    def think_v(self, v):
        return self.contract_v(self.act(self.expand_v(v)))

    def act(self, X):
        return F.gelu(X)


@bug(CoAttentionBlock, "the regions ask the words after these have been updated", classic=True)
class OneAfterTheOther(VariedBlock):
    def forward(self, t, v, words=None, regions=None):
        new_t, _, A_t, _ = super().forward(t, v, words, regions)
        _, new_v, _, A_v = super().forward(new_t, v, words, regions)
        return new_t, new_v, A_t, A_v


@bug(CoAttentionBlock, "the words ask the regions after these have been updated")
class RegionsFirst(VariedBlock):
    def forward(self, t, v, words=None, regions=None):
        _, new_v, _, A_v = super().forward(t, v, words, regions)
        new_t, _, A_t, _ = super().forward(t, new_v, words, regions)
        return new_t, new_v, A_t, A_v


@bug(CoAttentionBlock, "the regions ask the words as they are after their first norm")
class HalfUpdated(VariedBlock):
    def forward(self, t, v, words=None, regions=None):
        to_words = None if words is None else words[:, None]
        from_v, A_t = self.words_ask(t, v, None if regions is None else regions[:, None])
        t = self.norm_t(t + from_v)
        from_t, A_v = self.regions_ask(t, v, to_words)
        return *self.second(t, self.norm_v(v + from_t)), A_t, A_v


@bug(
    CoAttentionBlock,
    "a stream asks itself: keys and values are its own",
    told_by="CoAttentionBlock raised",
)
class AsksItself(VariedBlock):
    def words_ask(self, t, v, mask):
        return self.attention_t(t, t, return_weights=True)


@bug(
    CoAttentionBlock,
    "the masks are exchanged: each stream gets its own",
    told_by="CoAttentionBlock raised",
    classic=True,
)
class MasksExchanged(VariedBlock):
    def forward(self, t, v, words=None, regions=None):
        return super().forward(t, v, regions, words)


@bug(CoAttentionBlock, "the masks are not passed on")
class NoMasks(VariedBlock):
    def forward(self, t, v, words=None, regions=None):
        return super().forward(t, v)


@bug(CoAttentionBlock, "the words attend to regions that are not real")
class RegionsUnmasked(VariedBlock):
    def words_ask(self, t, v, mask):
        return super().words_ask(t, v, None)


@bug(CoAttentionBlock, "the regions attend to words that are not real")
class WordsUnmasked(VariedBlock):
    def regions_ask(self, t, v, mask):
        return super().regions_ask(t, v, None)


@bug(CoAttentionBlock, "the masks are inverted")
class Inverted(VariedBlock):
    def forward(self, t, v, words=None, regions=None):
        masks = [None if mask is None else ~mask for mask in (words, regions)]
        return super().forward(t, v, *masks)


@bug(CoAttentionBlock, "what attention finds is not added to what came in")
class NoResidual(VariedBlock):
    def first(self, t, v, from_v, from_t):
        return self.norm_t(from_v), self.norm_v(from_t)


@bug(CoAttentionBlock, "the networks' output is not added to what came in")
class NoSecondResidual(VariedBlock):
    def second(self, t, v):
        return self.last_norm_t(self.think_t(t)), self.last_norm_v(self.think_v(v))


@bug(CoAttentionBlock, "the first norms are left out")
class NoFirstNorms(VariedBlock):
    def first(self, t, v, from_v, from_t):
        return t + from_v, v + from_t


@bug(CoAttentionBlock, "the last norms are left out")
class NoLastNorms(VariedBlock):
    def second(self, t, v):
        return t + self.think_t(t), v + self.think_v(v)


@bug(CoAttentionBlock, "the first norms are used twice")
class SameNorms(VariedBlock):
    def second(self, t, v):
        return self.norm_t(t + self.think_t(t)), self.norm_v(v + self.think_v(v))


@bug(CoAttentionBlock, "the networks have ReLU in place of GELU")
class Relu(VariedBlock):
    def act(self, X):
        return F.relu(X)


@bug(CoAttentionBlock, "the networks are left out")
class NoNetworks(VariedBlock):
    def second(self, t, v):
        return self.last_norm_t(t), self.last_norm_v(v)


@bug(CoAttentionBlock, "only the words ask; the regions stay as they were")
class OneWay(VariedBlock):
    def regions_ask(self, t, v, mask):
        _, A = super().regions_ask(t, v, mask)
        return torch.zeros_like(v), A


@bug(CoAttentionBlock, "the visual stream is returned first", told_by="t should have shape")
class VisualFirst(CoAttentionBlock):
    def forward(self, t, v, words=None, regions=None):
        t, v, A_t, A_v = super().forward(t, v, words, regions)
        return v, t, A_v, A_t


@bug(
    CoAttentionBlock,
    "the weights are not returned",
    told_by="should return (t, v, A_t, A_v)",
)
class NoWeights(CoAttentionBlock):
    def forward(self, t, v, words=None, regions=None):
        return super().forward(t, v, words, regions)[:2]


# The model


class VariedModel(ViLBERT):
    """A ViLBERT whose steps the bugs below vary."""

    def forward(self, tokens, words, features, boxes, regions, return_weights=False):
        t, v = self.text(tokens), self.visual(features, boxes, self.shown(regions))
        regions, weights = self.with_img(regions), []
        for layer in self.first_layers():
            t, _ = layer(t, self.own_words(words))
        for n in self.order():
            t, v, A, _ = self.meet(n, t, v, words, regions)
            t, v = self.apart(n, t, v, words, regions)
            weights.append(A)
        return (t, v, self.stack(weights)) if return_weights else (t, v)

    def shown(self, regions):
        return regions

    def with_img(self, regions):
        return F.pad(regions, (1, 0), value=True)

    def own_words(self, words):
        return words[:, None]

    def own_regions(self, regions):
        return regions[:, None]

    def first_layers(self):
        return self.alone

    def order(self):
        return range(len(self.blocks))

    def meet(self, n, t, v, words, regions):
        return self.blocks[n](t, v, words, regions)

    def apart(self, n, t, v, words, regions):
        t, _ = self.text_layers[n](t, self.own_words(words))
        v, _ = self.visual_layers[n](v, self.own_regions(regions))
        return t, v

    def stack(self, weights):
        return torch.stack(weights)


@bug(ViLBERT, "the layers of the text stream alone are left out")
class NotAlone(VariedModel):
    def first_layers(self):
        return []


@bug(ViLBERT, "the layers of the text stream alone come in reverse")
class AloneReversed(VariedModel):
    def first_layers(self):
        return reversed(self.alone)


@bug(ViLBERT, "the blocks come in reverse")
class Reversed(VariedModel):
    def order(self):
        return reversed(range(len(self.blocks)))


@bug(ViLBERT, "the layers after each block are left out")
class NeverApart(VariedModel):
    def apart(self, n, t, v, words, regions):
        return t, v


@bug(ViLBERT, "the layers of each stream come before the block, not after it")
class ApartFirst(VariedModel):
    def meet(self, n, t, v, words, regions):
        return super().meet(n, *super().apart(n, t, v, words, regions), words, regions)

    def apart(self, n, t, v, words, regions):
        return t, v


@bug(ViLBERT, "all blocks come first, and then all other layers")
class BlocksFirst(VariedModel):
    def forward(self, tokens, words, features, boxes, regions, return_weights=False):
        parts = super().forward(tokens, words, features, boxes, regions, True)
        t, v, regions = *parts[:2], self.with_img(regions)
        for n in self.order():
            t, v = super().apart(n, t, v, words, regions)
        return (t, v, parts[2]) if return_weights else (t, v)

    def apart(self, n, t, v, words, regions):
        return t, v


@bug(ViLBERT, "the text layers have no mask, and see words that are not real")
class WordsSeen(VariedModel):
    def own_words(self, words):
        return None


@bug(ViLBERT, "the visual layers have no mask, and see regions that are not real")
class RegionsSeen(VariedModel):
    def own_regions(self, regions):
        return None


@bug(ViLBERT, "the blocks have no masks")
class BlocksUnmasked(VariedModel):
    def meet(self, n, t, v, words, regions):
        return self.blocks[n](t, v)


@bug(ViLBERT, "[IMG] is hidden: the mask has False at its place")
class ImgHidden(VariedModel):
    def with_img(self, regions):
        return F.pad(regions, (1, 0), value=False)


@bug(
    ViLBERT,
    "the mask has its True for [IMG] at the end, so that all are one place off",
    classic=True,
)
class ImgAtTheEnd(VariedModel):
    def with_img(self, regions):
        return F.pad(regions, (0, 1), value=True)


@bug(ViLBERT, "the mean for [IMG] is over all regions, real or not")
class MaskNotShown(VariedModel):
    def shown(self, regions):
        return torch.ones_like(regions)


@bug(ViLBERT, "the mask of the regions lacks [IMG]", told_by="ViLBERT raised", classic=True)
class MaskTooShort(VariedModel):
    def with_img(self, regions):
        return regions


@bug(ViLBERT, "the weights of the last block come first")
class WeightsReversed(VariedModel):
    def stack(self, weights):
        return torch.stack(weights[::-1])


@bug(ViLBERT, "the weights are those of the regions", told_by="A should have shape")
class RegionsWeights(VariedModel):
    def meet(self, n, t, v, words, regions):
        t, v, _, A = super().meet(n, t, v, words, regions)
        return t, v, A, None


@bug(ViLBERT, "only the last block is applied")
class LastBlock(VariedModel):
    def order(self):
        return [len(self.blocks) - 1]

    def stack(self, weights):
        return torch.stack(weights * len(self.blocks))


# The alignment


def scored(t, v, W_t, b_t, W_v, b_v, w, b, act=torch.relu, join=torch.mul):
    return join(act(t @ W_t.T + b_t), act(v @ W_v.T + b_v)) @ w + b


@bug(alignment_score, "the two pooled vectors are added, not multiplied", classic=True)
def added(t, v, *weights):
    return scored(t[:, 0], v[:, 0], *weights, join=torch.add)


@bug(alignment_score, "the relu is left out")
def linear(t, v, *weights):
    return scored(t[:, 0], v[:, 0], *weights, act=lambda X: X)


@bug(alignment_score, "tanh is used instead of relu, as in BERT's pooler")
def with_tanh(t, v, *weights):
    return scored(t[:, 0], v[:, 0], *weights, act=torch.tanh)


@bug(alignment_score, "the last word is used for the caption, not [CLS]")
def last_word(t, v, *weights):
    return scored(t[:, -1], v[:, 0], *weights)


@bug(alignment_score, "the last region is used for the picture, not [IMG]")
def last_region(t, v, *weights):
    return scored(t[:, 0], v[:, -1], *weights)


@bug(alignment_score, "the means over words and regions are used, not [CLS] and [IMG]")
def means(t, v, *weights):
    return scored(t.mean(dim=1), v.mean(dim=1), *weights)


@bug(alignment_score, "w is left out: the products are only summed")
def dot_product(t, v, W_t, b_t, W_v, b_v, w, b):
    return scored(t[:, 0], v[:, 0], W_t, b_t, W_v, b_v, torch.ones_like(w), b)


@bug(alignment_score, "the last bias is left out")
def no_bias(t, v, W_t, b_t, W_v, b_v, w, b):
    return scored(t[:, 0], v[:, 0], W_t, b_t, W_v, b_v, w, 0 * b)


@bug(alignment_score, "the poolers' biases are left out")
def no_pooler_bias(t, v, W_t, b_t, W_v, b_v, w, b):
    return scored(t[:, 0], v[:, 0], W_t, 0 * b_t, W_v, 0 * b_v, w, b)


@bug(alignment_score, "the biases are exchanged")
def biases_exchanged(t, v, W_t, b_t, W_v, b_v, w, b):
    return scored(t[:, 0], v[:, 0], W_t, b_v, W_v, b_t, w, b)


@bug(alignment_score, "σ is applied, though the loss expects logits")
def probabilities(t, v, *weights):
    return torch.sigmoid(scored(t[:, 0], v[:, 0], *weights))


@bug(alignment_score, "every word and region is scored", told_by="scores should have shape")
def all_words(t, v, *weights):
    return scored(t, v[:, :1], *weights)


def entropies(scores, match):
    return F.binary_cross_entropy_with_logits(scores, match.to(scores), reduction="none")


@bug(alignment_loss, "matching pairs and others are exchanged")
def exchanged(scores, match):
    return entropies(scores, ~match).mean()


@bug(alignment_loss, "the losses are summed, not averaged")
def summed(scores, match):
    return entropies(scores, match).sum()


@bug(alignment_loss, "only the pairs that match count")
def matching_alone(scores, match):
    return entropies(scores, match)[match].mean()


@bug(alignment_loss, "only the pairs that don't match count")
def others_alone(scores, match):
    return entropies(scores, match)[~match].mean()


@bug(alignment_loss, "both kinds have a mean of their own, and these are averaged")
def two_means(scores, match):
    return (matching_alone(scores, match) + others_alone(scores, match)) / 2


@bug(alignment_loss, "σ is applied twice")
def sigmoid_twice(scores, match):
    return entropies(torch.sigmoid(scores), match).mean()


@bug(alignment_loss, "the softmax is over the pairs of the batch, as if one of them were right")
def over_the_batch(scores, match):
    return -torch.log_softmax(scores, dim=0)[match].mean()


@bug(alignment_loss, "the squared error of the probabilities is measured")
def squared(scores, match):
    return (torch.sigmoid(scores) - match.to(scores)).square().mean()


@bug(
    alignment_loss,
    "the logarithm is taken of a probability that has become zero",
    told_by="yours is inf",
    classic=True,
)
def unstable(scores, match):
    p = torch.sigmoid(scores)
    return -torch.where(match, p.log(), (1 - p).log()).mean()


@bug(alignment_loss, "the probability is kept from zero by a clamp, which cuts the loss")
def clamped(scores, match):
    p = torch.sigmoid(scores).clamp(1e-7, 1 - 1e-7)
    return F.binary_cross_entropy(p, match.to(scores))


@bug(alignment_loss, "the loss has base 2, not e")
def bits(scores, match):
    return alignment_loss(scores, match) / torch.log(torch.tensor(2.0))


# The masked loss


def word_part(word_logits, word_targets, match, divide=None):
    targets = torch.where(match[:, None], word_targets, -100)
    total = F.cross_entropy(word_logits.transpose(1, 2), targets, reduction="sum")
    return total / (divide or (targets != -100).sum().clamp(min=1))


def divergence(region_logits, p):
    return F.kl_div(torch.log_softmax(region_logits, -1), p, reduction="none").sum(-1)


def region_part(losses, chosen, match, divide=None):
    chosen = chosen & match[:, None]
    return losses[chosen].sum() / (divide or chosen.sum().clamp(min=1))


@bug(masked_multimodal_loss, "pairs that don't match also count")
def all_pairs(words, goals, regions, p, chosen, match):
    return masked_multimodal_loss(words, goals, regions, p, chosen, torch.ones_like(match))


@bug(masked_multimodal_loss, "the words of pairs that don't match also count")
def all_words_count(words, goals, regions, p, chosen, match):
    part = region_part(divergence(regions, p), chosen, match)
    return part + word_part(words, goals, torch.ones_like(match))


@bug(masked_multimodal_loss, "the regions of pairs that don't match also count")
def all_regions_count(words, goals, regions, p, chosen, match):
    part = region_part(divergence(regions, p), chosen, torch.ones_like(match))
    return part + word_part(words, goals, match)


@bug(masked_multimodal_loss, "all regions count, not only the hidden ones")
def unhidden_regions(words, goals, regions, p, chosen, match):
    return masked_multimodal_loss(words, goals, regions, p, torch.ones_like(chosen), match)


@bug(masked_multimodal_loss, "the words' loss is divided by all B·T places")
def words_over_all(words, goals, regions, p, chosen, match):
    part = region_part(divergence(regions, p), chosen, match)
    return part + word_part(words, goals, match, divide=goals.numel())


@bug(masked_multimodal_loss, "the regions' loss is divided by all B·R regions")
def regions_over_all(words, goals, regions, p, chosen, match):
    part = region_part(divergence(regions, p), chosen, match, divide=chosen.numel())
    return part + word_part(words, goals, match)


@bug(
    masked_multimodal_loss,
    "0/0 is replaced where nothing was hidden, its gradient stays NaN",
    told_by="yours is nan (",
)
def replaced_late(words, goals, regions, p, chosen, match):
    hidden = chosen & match[:, None]
    part = (divergence(regions, p) * hidden).sum() / hidden.sum()
    return torch.where(part.isnan(), 0, part) + word_part(words, goals, match)


@bug(masked_multimodal_loss, "the divergence is averaged over the classes, not summed")
def class_mean(words, goals, regions, p, chosen, match):
    part = region_part(divergence(regions, p) / p.shape[-1], chosen, match)
    return part + word_part(words, goals, match)


@bug(masked_multimodal_loss, "the cross-entropy is used for the divergence: Σ p log p is missing")
def cross_entropy_of_regions(words, goals, regions, p, chosen, match):
    losses = -(p * torch.log_softmax(regions, dim=-1)).sum(dim=-1)
    return region_part(losses, chosen, match) + word_part(words, goals, match)


@bug(masked_multimodal_loss, "the divergence is reversed: KL(q ‖ p)")
def turned_round(words, goals, regions, p, chosen, match):
    log_q = torch.log_softmax(regions, dim=-1)
    losses = (log_q.exp() * (log_q - p.clamp(min=1e-12).log())).sum(dim=-1)
    return region_part(losses, chosen, match) + word_part(words, goals, match)


@bug(masked_multimodal_loss, "only the detector's most probable class counts")
def hard_targets(words, goals, regions, p, chosen, match):
    losses = -torch.log_softmax(regions, -1).gather(-1, p.argmax(-1, keepdim=True))[..., 0]
    return region_part(losses, chosen, match) + word_part(words, goals, match)


@bug(masked_multimodal_loss, "the loss of the words is left out")
def no_words(words, goals, regions, p, chosen, match):
    return region_part(divergence(regions, p), chosen, match)


@bug(masked_multimodal_loss, "the loss of the regions is left out")
def no_regions(words, goals, regions, p, chosen, match):
    return word_part(words, goals, match)


@bug(masked_multimodal_loss, "the two losses are averaged, not added")
def averaged(*parts):
    return masked_multimodal_loss(*parts) / 2


@bug(masked_multimodal_loss, "0 log 0 gives NaN", told_by="yours is nan", classic=True)
def not_a_number(words, goals, regions, p, chosen, match):
    losses = (p * (p.log() - torch.log_softmax(regions, dim=-1))).sum(dim=-1)
    return region_part(losses, chosen, match) + word_part(words, goals, match)


@bug(masked_multimodal_loss, "a mean over nothing gives NaN", told_by="yours is nan")
def empty_mean(words, goals, regions, p, chosen, match):
    losses = divergence(regions, p)[chosen & match[:, None]]
    return losses.mean() + word_part(words, goals, match)


# Retrieval


def share(scores, k, before):
    return (before(scores, scores.diagonal()) < k).double().mean().item()


def strict(scores, own):
    """Count the pictures before a caption's own; ties are before it."""
    return (scores >= own[:, None]).sum(dim=1) - 1


def hits(scores, k, before=strict, more=0):
    if not 1 <= k <= len(scores):
        raise ValueError("there are not so many pictures")
    return share(scores, k + more, before)


@bug(retrieve, "the pictures search for captions: columns are ranked, not rows", classic=True)
def columns(scores, k):
    return retrieve(scores.T, k)


@bug(retrieve, "only k - 1 pictures are looked at")
def one_too_few(scores, k):
    return hits(scores, k, more=-1)


@bug(retrieve, "k + 1 pictures are looked at")
def one_too_many(scores, k):
    return hits(scores, k, more=1)


@bug(retrieve, "the lowest scores are taken to be the best")
def lowest(scores, k):
    return hits(scores, k, lambda s, own: (s <= own[:, None]).sum(dim=1) - 1)


@bug(retrieve, "a tie counts for the caption", classic=True)
def kind_to_ties(scores, k):
    return hits(scores, k, lambda s, own: (s > own[:, None]).sum(dim=1))


@bug(
    retrieve,
    "captions are counted, not their share",
    told_by="recall@7 of 7 should be 1, yours is 7",
)
def count(scores, k):
    return retrieve(scores, k) * len(scores)


@bug(retrieve, "the share is divided by k, as precision is")
def precision(scores, k):
    return retrieve(scores, k) / k


@bug(retrieve, "a hit counts 1 / rank, as in the mean reciprocal rank")
def reciprocal(scores, k):
    ranks = (scores >= scores.diagonal()[:, None]).sum(dim=1)
    return torch.where(ranks <= k, 1 / ranks, 0.0).double().mean().item()


@bug(retrieve, "k is not checked", told_by="should raise ValueError when k is 0")
def any_k(scores, k):
    return share(scores, k, strict)


@bug(
    retrieve,
    "k may be larger than N",
    told_by="should raise ValueError when k is 8 and there are 7 pictures",
)
def any_large_k(scores, k):
    if k < 1:
        raise ValueError("k is less than 1")
    return share(scores, k, strict)


# Paths


def strip(features, boxes, regions, across=lambda p, x, P: (p + x) / P):
    P = boxes.shape[1]
    p = torch.arange(P)[:, None]
    top, left, bottom, right = boxes.unbind(dim=3)
    boxes = torch.stack([top, across(p, left, P), bottom, across(p, right, P)], dim=3)
    return features.flatten(1, 2), boxes.flatten(1, 2), regions.flatten(1, 2)


@bug(lay_out_path, "the boxes stay as they were: all views lie on one another", classic=True)
def on_one_another(features, boxes, regions):
    return strip(features, boxes, regions, lambda p, x, P: x)


@bug(lay_out_path, "the boxes are not divided by P, so that they go beyond 1")
def too_wide(features, boxes, regions):
    return strip(features, boxes, regions, lambda p, x, P: p + x)


@bug(lay_out_path, "the boxes are moved, but keep their width")
def as_wide(features, boxes, regions):
    return strip(features, boxes, regions, lambda p, x, P: p / P + x)


@bug(lay_out_path, "the boxes are made narrower, but not moved")
def not_moved(features, boxes, regions):
    return strip(features, boxes, regions, lambda p, x, P: x / P)


@bug(lay_out_path, "the views are counted from 1")
def from_one(features, boxes, regions):
    return strip(features, boxes, regions, lambda p, x, P: (p + 1 + x) / P)


@bug(lay_out_path, "the first view lies on the right")
def from_the_right(features, boxes, regions):
    return strip(features, boxes, regions, lambda p, x, P: (P - 1 - p + x) / P)


@bug(lay_out_path, "the views lie below one another")
def below_one_another(features, boxes, regions):
    order = [1, 0, 3, 2]
    features, boxes, regions = strip(features, boxes[..., order], regions)
    return features, boxes[..., order], regions


@bug(lay_out_path, "the boxes are returned as left, top, right, bottom")
def columns_first(features, boxes, regions):
    features, boxes, regions = strip(features, boxes, regions)
    return features, boxes[..., [1, 0, 3, 2]], regions


@bug(lay_out_path, "only the left edges are moved")
def left_alone(features, boxes, regions):
    _, moved, _ = strip(features, boxes, regions)
    moved[..., 3] = boxes[..., 3].flatten(1, 2) / boxes.shape[1]
    return features.flatten(1, 2), moved, regions.flatten(1, 2)


@bug(lay_out_path, "the first regions of all views come first, then the second ones")
def region_by_region(features, boxes, regions):
    parts = strip(features, boxes, regions)
    shape = regions.shape[1:]
    return tuple(X.unflatten(1, shape).transpose(1, 2).flatten(1, 2) for X in parts)


@bug(lay_out_path, "the features are in another order than the boxes")
def features_apart(features, boxes, regions):
    return features.transpose(1, 2).flatten(1, 2), *strip(features, boxes, regions)[1:]


@bug(lay_out_path, "all regions count as real", told_by="should be False, yours is True")
def all_real(features, boxes, regions):
    return strip(features, boxes, torch.ones_like(regions))


def there_at_all(scores, right, paths):
    paths = torch.ones_like(scores, dtype=torch.bool) if paths is None else paths
    if not paths.gather(1, right[:, None]).all():
        raise ValueError("not there")
    return paths


@bug(path_selection_loss, "every pair is asked for a match of its own", classic=True)
def pair_by_pair(scores, right, paths=None):
    paths = there_at_all(scores, right, paths)
    match = F.one_hot(right, scores.shape[1]).to(scores)
    return F.binary_cross_entropy_with_logits(scores[paths], match[paths])


@bug(path_selection_loss, "candidates that are not there count as well")
def all_candidates(scores, right, paths=None):
    there_at_all(scores, right, paths)
    return F.cross_entropy(scores, right)


@bug(path_selection_loss, "candidates that are not there have a score of 0", classic=True)
def zero_scores(scores, right, paths=None):
    return F.cross_entropy(scores * there_at_all(scores, right, paths), right)


@bug(path_selection_loss, "candidates that are not there have a score of -10 000 in place of -∞")
def low_scores(scores, right, paths=None):
    return F.cross_entropy(scores.masked_fill(~there_at_all(scores, right, paths), -1e4), right)


@bug(path_selection_loss, "the mask is inverted, but for the right path")
def inverted(scores, right, paths=None):
    paths = there_at_all(scores, right, paths)
    if not paths.all():
        paths = (~paths).scatter(1, right[:, None], True)
    return F.cross_entropy(scores.masked_fill(~paths, -torch.inf), right)


@bug(path_selection_loss, "the losses are summed, not averaged")
def summed_losses(scores, right, paths=None):
    return path_selection_loss(scores, right, paths) * len(scores)


@bug(path_selection_loss, "the sum is divided by all B·K pairs")
def over_all_pairs(scores, right, paths=None):
    return path_selection_loss(scores, right, paths) / scores.shape[1]


@bug(path_selection_loss, "the softmax is over the instructions, not over the paths")
def over_instructions(scores, right, paths=None):
    paths = there_at_all(scores, right, paths)
    log_p = torch.log_softmax(scores.masked_fill(~paths, -torch.inf), dim=0)
    return -log_p.gather(1, right[:, None]).mean()


@bug(path_selection_loss, "the probability itself is averaged, without a logarithm")
def probability(scores, right, paths=None):
    paths = there_at_all(scores, right, paths)
    p = torch.softmax(scores.masked_fill(~paths, -torch.inf), dim=1)
    return -p.gather(1, right[:, None]).mean()


@bug(
    path_selection_loss,
    "the logarithm is taken of a probability that has become zero",
    told_by="yours is inf",
)
def log_of_zero(scores, right, paths=None):
    paths = there_at_all(scores, right, paths)
    p = torch.softmax(scores.masked_fill(~paths, -torch.inf), dim=1)
    return -p.gather(1, right[:, None]).log().mean()


@bug(path_selection_loss, "the sign is missing: a good choice is punished")
def wrong_sign(scores, right, paths=None):
    return -path_selection_loss(scores, right, paths)


@bug(
    path_selection_loss,
    "a right path that is not there is accepted",
    told_by="when a right path is not there",
)
def unchecked(scores, right, paths=None):
    if paths is not None:
        scores = scores.masked_fill(~paths.scatter(1, right[:, None], True), -torch.inf)
    return F.cross_entropy(scores, right)


# Agents


def alike(X, agents):
    if agents.shape[-1] != X.shape[-2]:
        raise ValueError("one agent for each vector")
    return agents[..., :, None] == agents[..., None, :]


def both_scores(X, Q_self, K_self, Q_other, K_other):
    scale = math.sqrt(Q_self.shape[1])
    return X @ Q_self @ (X @ K_self).mT / scale, X @ Q_other @ (X @ K_other).mT / scale


def attended(X, E, V, mask):
    A = masked_softmax(E, mask)
    return A @ (X @ V), A


@bug(
    agent_aware_attention,
    "each kind has a softmax of its own, and the two are added",
    classic=True,
)
def two_softmaxes(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    same = alike(X, agents)
    allowed = torch.ones_like(same) if mask is None else mask
    own, others = both_scores(X, Q_self, K_self, Q_other, K_other)
    A = masked_softmax(own, allowed & same) + masked_softmax(others, allowed & ~same)
    return A @ (X @ V), A


@bug(agent_aware_attention, "the two softmaxes, over everything, are mixed by M", classic=True)
def mixed_after_softmax(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    own, others = both_scores(X, Q_self, K_self, Q_other, K_other)
    A = torch.where(alike(X, agents), masked_softmax(own, mask), masked_softmax(others, mask))
    return A @ (X @ V), A


@bug(agent_aware_attention, "the matrices for the agent itself and for others are exchanged")
def kinds_exchanged(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    return agent_aware_attention(X, agents, Q_other, K_other, Q_self, K_self, V, mask)


@bug(agent_aware_attention, "queries and keys are exchanged")
def asked_backwards(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    return agent_aware_attention(X, agents, K_self, Q_self, K_other, Q_other, V, mask)


@bug(agent_aware_attention, "the keys of the two kinds are exchanged")
def keys_exchanged(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    return agent_aware_attention(X, agents, Q_self, K_other, Q_other, K_self, V, mask)


@bug(agent_aware_attention, "all pairs are scored as if they belonged to one agent")
def all_own(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    return agent_aware_attention(X, agents, Q_self, K_self, Q_self, K_self, V, mask)


@bug(agent_aware_attention, "all pairs are scored as if they belonged to different agents")
def all_others(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    return agent_aware_attention(X, agents, Q_other, K_other, Q_other, K_other, V, mask)


@bug(agent_aware_attention, "M is the identity: only a vector itself counts as its own agent")
def itself_alone(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    alike(X, agents)
    own, others = both_scores(X, Q_self, K_self, Q_other, K_other)
    return attended(X, torch.where(torch.eye(X.shape[-2]) > 0, own, others), V, mask)


@bug(agent_aware_attention, "both scores are added for every pair, without M")
def without_m(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    alike(X, agents)
    return attended(X, sum(both_scores(X, Q_self, K_self, Q_other, K_other)), V, mask)


@bug(agent_aware_attention, "the scores between agents are left at zero")
def zeros_between(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    own, _ = both_scores(X, Q_self, K_self, Q_other, K_other)
    return attended(X, own * alike(X, agents), V, mask)


@bug(agent_aware_attention, "other agents are masked out")
def own_alone(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    own, _ = both_scores(X, Q_self, K_self, Q_other, K_other)
    same = alike(X, agents)
    return attended(X, own, V, same if mask is None else same & mask)


@bug(agent_aware_attention, "the scores are not divided by √D_Q")
def unscaled(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    scale = Q_self.shape[1] ** 0.25
    four = [W * scale for W in (Q_self, K_self, Q_other, K_other)]
    return agent_aware_attention(X, agents, *four, V, mask)


@bug(agent_aware_attention, "the scores are divided by √D_X, not √D_Q")
def scaled_by_input(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    scale = (Q_self.shape[1] / Q_self.shape[0]) ** 0.25
    four = [W * scale for W in (Q_self, K_self, Q_other, K_other)]
    return agent_aware_attention(X, agents, *four, V, mask)


@bug(agent_aware_attention, "only the scores between agents are divided by √D_Q")
def half_scaled(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    scale = math.sqrt(Q_self.shape[1])
    return agent_aware_attention(X, agents, Q_self * scale, K_self, Q_other, K_other, V, mask)


@bug(agent_aware_attention, "the softmax is over the queries: columns sum to one")
def over_queries(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    own, others = both_scores(X, Q_self, K_self, Q_other, K_other)
    E = torch.where(alike(X, agents), own, others)
    A = masked_softmax(E.mT, None if mask is None else mask.mT).mT
    return A @ (X @ V), A


@bug(agent_aware_attention, "forbidden scores are set to -1e4, which allowed ones may lie below")
def not_low_enough(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    own, others = (X @ Q_self) @ (X @ K_self).mT, (X @ Q_other) @ (X @ K_other).mT
    E = torch.where(alike(X, agents), own, others) / math.sqrt(Q_self.shape[1])
    mask = E.new_ones(E.shape[-2:]).bool() if mask is None else mask
    A = torch.softmax(E.masked_fill(~mask, -1e4), dim=-1).masked_fill(~mask.any(-1)[..., None], 0)
    return A @ (X @ V), A


@bug(
    agent_aware_attention,
    "a row that may attend to nothing is replaced, its gradient stays NaN",
    told_by="The gradient of X should be finite",
)
def nan_gradients(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    own, others = (X @ Q_self) @ (X @ K_self).mT, (X @ Q_other) @ (X @ K_other).mT
    E = torch.where(alike(X, agents), own, others) / math.sqrt(Q_self.shape[1])
    E = E if mask is None else E + torch.where(mask, 0, -torch.inf)
    A = torch.softmax(E, dim=-1).nan_to_num(0)
    return A @ (X @ V), A


@bug(agent_aware_attention, "the mask is not used")
def mask_unused(X, agents, *weights_and_mask):
    return agent_aware_attention(X, agents, *weights_and_mask[:5])


@bug(agent_aware_attention, "the mask is inverted")
def mask_inverted(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    mask = None if mask is None else ~mask
    return agent_aware_attention(X, agents, Q_self, K_self, Q_other, K_other, V, mask)


@bug(agent_aware_attention, "one agent for all vectors is accepted", told_by="agents has length 1")
def any_agents(X, agents, Q_self, K_self, Q_other, K_other, V, mask=None):
    same = agents[..., :, None] == agents[..., None, :]
    own, others = both_scores(X, Q_self, K_self, Q_other, K_other)
    return attended(X, torch.where(same, own, others), V, mask)


# Triangles


class VariedTriangle(TriangleUpdate):
    """An update whose steps the bugs below vary."""

    def forward(self, z):
        normed = self.first(z)
        a, b = self.sides(normed)
        return self.finish(z, normed, self.last(self.sum(a, b)))

    def first(self, z):
        return self.norm(z)

    def sides(self, z):
        a = torch.sigmoid(self.gate_a(z)) * self.a(z)
        return a, torch.sigmoid(self.gate_b(z)) * self.b(z)

    def sum(self, a, b):
        return torch.einsum("bikd,bjkd->bijd" if self.outgoing else "bkid,bkjd->bijd", a, b)

    def last(self, X):
        return self.norm_out(X)

    def finish(self, z, normed, X):
        return torch.sigmoid(self.gate(normed)) * self.out(X)


@bug(
    TriangleUpdate,
    "the sides are multiplied as matrices, Σ_k a_ik ⊙ b_kj: one goes out, one comes in",
    classic=True,
)
class MatrixProduct(VariedTriangle):
    def sum(self, a, b):
        return torch.einsum("bikd,bkjd->bijd", a, b)


@bug(TriangleUpdate, "the edges are outgoing in either case")
class AlwaysOutgoing(VariedTriangle):
    def sum(self, a, b):
        return torch.einsum("bikd,bjkd->bijd", a, b)


@bug(TriangleUpdate, "outgoing and incoming edges are exchanged")
class Exchanged(VariedTriangle):
    def sum(self, a, b):
        return torch.einsum("bkid,bkjd->bijd" if self.outgoing else "bikd,bjkd->bijd", a, b)


@bug(TriangleUpdate, "a and b are exchanged, so that each sum is that of the pair (j, i)")
class SidesExchanged(VariedTriangle):
    def sum(self, a, b):
        return super().sum(b, a)


@bug(TriangleUpdate, "a is used for both sides")
class OneSide(VariedTriangle):
    def sum(self, a, b):
        return super().sum(a, a)


@bug(TriangleUpdate, "each pair is multiplied with itself, without other residues")
class NoTriangles(VariedTriangle):
    def sum(self, a, b):
        return a * b


@bug(TriangleUpdate, "the third residue is never i or j")
class ThreeDifferent(VariedTriangle):
    def sum(self, a, b):
        N = a.shape[1]
        off = (1 - torch.eye(N)).to(a)[None, :, :, None]
        return super().sum(a * off, b * off)


@bug(TriangleUpdate, "z is not normalised first")
class NoFirstNorm(VariedTriangle):
    def first(self, z):
        return z


@bug(TriangleUpdate, "the sum over triangles is not normalised")
class NoLastNorm(VariedTriangle):
    def last(self, X):
        return X


@bug(TriangleUpdate, "the sides have no gates")
class OpenSides(VariedTriangle):
    def sides(self, z):
        return self.a(z), self.b(z)


@bug(TriangleUpdate, "the sides' gates have no σ")
class LinearGates(VariedTriangle):
    def sides(self, z):
        return self.gate_a(z) * self.a(z), self.gate_b(z) * self.b(z)


@bug(TriangleUpdate, "σ is applied to the sides, not to their gates")
class WrongSigmoid(VariedTriangle):
    def sides(self, z):
        a = self.gate_a(z) * torch.sigmoid(self.a(z))
        return a, self.gate_b(z) * torch.sigmoid(self.b(z))


@bug(TriangleUpdate, "the gates of the two sides are exchanged")
class GatesExchanged(VariedTriangle):
    def sides(self, z):
        a = torch.sigmoid(self.gate_b(z)) * self.a(z)
        return a, torch.sigmoid(self.gate_a(z)) * self.b(z)


@bug(TriangleUpdate, "the last gate is left out")
class NoLastGate(VariedTriangle):
    def finish(self, z, normed, X):
        return self.out(X)


@bug(TriangleUpdate, "the last gate reads z before the norm")
class RawGate(VariedTriangle):
    def finish(self, z, normed, X):
        return super().finish(z, z, X)


@bug(TriangleUpdate, "the last gate of the pair (j, i) is used for (i, j)")
class TurnedGate(VariedTriangle):
    def finish(self, z, normed, X):
        return super().finish(z, normed.transpose(1, 2), X)


@bug(TriangleUpdate, "z is added, though the caller does that", classic=True)
class AddsItself(VariedTriangle):
    def finish(self, z, normed, X):
        return z + super().finish(z, normed, X)


# Row attention


class VariedRows(RowAttentionWithPairBias):
    """A row attention whose steps the bugs below vary."""

    def forward(self, m, z):
        normed, pairs = self.first(m), self.first_pairs(z)
        q, k, v = (self.cut(part(normed)) for part in (self.query, self.key, self.value))
        gate = torch.sigmoid(self.gate(self.gated_by(m, normed)))
        bias = self.pair(pairs).permute(0, 3, 1, 2)[:, None]
        A = self.weigh(q @ k.mT, self.size(q, normed), bias)
        return self.finish(m, gate, A, v), A

    def first(self, m):
        return self.norm_m(m)

    def first_pairs(self, z):
        return self.norm_z(z)

    def cut(self, X):
        return X.unflatten(3, (self.H, -1)).transpose(2, 3)

    def gated_by(self, m, m_hat):
        return m_hat

    def size(self, q, normed):
        return q.shape[-1]

    def weigh(self, E, size, bias):
        return torch.softmax(E / math.sqrt(size) + bias, dim=-1)

    def finish(self, m, gate, A, v):
        return self.out(gate * (A @ v).transpose(2, 3).flatten(3))


@bug(RowAttentionWithPairBias, "the bias is divided by √D_h as well", classic=True)
class BiasScaled(VariedRows):
    def weigh(self, E, size, bias):
        return torch.softmax((E + bias) / math.sqrt(size), dim=-1)


@bug(RowAttentionWithPairBias, "the gates act on the values, before they are mixed", classic=True)
class GatedValues(VariedRows):
    def finish(self, m, gate, A, v):
        return self.out((A @ (self.cut(gate) * v)).transpose(2, 3).flatten(3))


@bug(RowAttentionWithPairBias, "the bias of the pair (j, i) is used for (i, j)")
class BiasTurned(VariedRows):
    def weigh(self, E, size, bias):
        return super().weigh(E, size, bias.mT)


@bug(RowAttentionWithPairBias, "the bias is left out")
class NoBias(VariedRows):
    def weigh(self, E, size, bias):
        return super().weigh(E, size, 0 * bias)


@bug(RowAttentionWithPairBias, "the bias is added after the softmax")
class BiasAfter(VariedRows):
    def weigh(self, E, size, bias):
        return torch.softmax(E / math.sqrt(size), dim=-1) + bias


@bug(RowAttentionWithPairBias, "the scores are multiplied by the bias")
class BiasMultiplies(VariedRows):
    def weigh(self, E, size, bias):
        return torch.softmax(E / math.sqrt(size) * bias, dim=-1)


@bug(RowAttentionWithPairBias, "the heads' biases come in reverse")
class BiasOfOthers(VariedRows):
    def weigh(self, E, size, bias):
        return super().weigh(E, size, bias.flip(2))


@bug(RowAttentionWithPairBias, "all heads share the mean of their biases")
class OneBias(VariedRows):
    def weigh(self, E, size, bias):
        return super().weigh(E, size, bias.mean(dim=2, keepdim=True))


@bug(RowAttentionWithPairBias, "the softmax is over the queries: columns sum to one")
class OverQueries(VariedRows):
    def weigh(self, E, size, bias):
        return torch.softmax(E / math.sqrt(size) + bias, dim=-2)


@bug(RowAttentionWithPairBias, "the products are not divided by √D_h")
class Unscaled(VariedRows):
    def size(self, q, normed):
        return 1


@bug(RowAttentionWithPairBias, "the products are divided by √D, that of all heads together")
class ScaledByAll(VariedRows):
    def size(self, q, normed):
        return self.H * q.shape[-1]


@bug(RowAttentionWithPairBias, "m is not normalised first")
class RawRows(VariedRows):
    def first(self, m):
        return m


@bug(RowAttentionWithPairBias, "z is not normalised first")
class RawPairs(VariedRows):
    def first_pairs(self, z):
        return z


@bug(RowAttentionWithPairBias, "the gate reads m before the norm")
class RawRowGate(VariedRows):
    def gated_by(self, m, normed):
        return m


@bug(RowAttentionWithPairBias, "the gate is left out")
class NoGate(VariedRows):
    def finish(self, m, gate, A, v):
        return super().finish(m, torch.ones_like(gate), A, v)


@bug(RowAttentionWithPairBias, "the heads take every H-th feature, not D_h in a row")
class Interleaved(VariedRows):
    def cut(self, X):
        return X.unflatten(3, (-1, self.H)).movedim(4, 2)


@bug(RowAttentionWithPairBias, "m is added, though the caller does that")
class AddsRows(VariedRows):
    def finish(self, m, gate, A, v):
        return m + super().finish(m, gate, A, v)


@bug(
    RowAttentionWithPairBias,
    "the weights are not returned",
    told_by="should return (update, a)",
)
class WeightsKept(RowAttentionWithPairBias):
    def forward(self, m, z):
        return super().forward(m, z)[0]
