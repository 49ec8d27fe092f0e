"""Known wrong solutions of vilbert."""

import torch
from torch.nn import functional as F

from autograder.bugs import bug
from course_pkg.vilbert import (
    CoAttentionBlock,
    ViLBERT,
    VisualEmbeddings,
    alignment_loss,
    alignment_score,
    masked_multimodal_loss,
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


def hits(scores, k, before):
    return (before(scores, scores.diagonal()) < k).double().mean().item()


@bug(retrieve, "the pictures search for captions: columns are ranked, not rows", classic=True)
def columns(scores, k):
    return retrieve(scores.T, k)


@bug(retrieve, "only k - 1 pictures are looked at")
def one_too_few(scores, k):
    return hits(scores, k - 1, lambda s, own: (s >= own[:, None]).sum(dim=1) - 1)


@bug(retrieve, "k + 1 pictures are looked at")
def one_too_many(scores, k):
    return hits(scores, k + 1, lambda s, own: (s >= own[:, None]).sum(dim=1) - 1)


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
    return hits(scores, k, lambda s, own: (s >= own[:, None]).sum(dim=1) - 1)
