"""Known wrong solutions of bert."""

import torch
from torch import nn
from torch.nn import functional as F

from autograder.bugs import bug, equivalent
from course_pkg.attention import causal_mask, padding_mask
from course_pkg.bert import (
    BertEmbeddings,
    BertLayer,
    BertModel,
    BertPretraining,
    SentenceClassifier,
    best_span,
    load_bert,
    mask_tokens,
    mlm_head,
    next_sentence_pairs,
    nsp_head,
    pretraining_loss,
    span_head,
    tf_idf,
)

# tf_idf


def weighed(counts, training, idf):
    """Apply idf, a function of M and df, and normalise."""
    training = counts if training is None else training
    x = counts * idf(len(training), (training > 0).sum(dim=0))
    return torch.nan_to_num(x / x.norm(dim=1, keepdim=True))


@bug(tf_idf, "idf is measured on the texts themselves, not on the training texts", classic=True)
def own_idf(counts, training=None):
    return tf_idf(counts)


@bug(tf_idf, "idf counts how often a word occurs, not in how many texts", classic=True)
def total_counts(counts, training=None):
    given = counts if training is None else training
    return weighed(counts, training, lambda M, df: 1 + torch.log((1 + M) / (1 + given.sum(0))))


@bug(tf_idf, "a word that every text has weighs nothing: the 1 after the logarithm is missing")
def no_one(counts, training=None):
    return weighed(counts, training, lambda M, df: torch.log((1 + M) / (1 + df)))


@bug(tf_idf, "the rows are not scaled to length 1")
def not_scaled(counts, training=None):
    training = counts if training is None else training
    df = (training > 0).sum(dim=0)
    return counts * (torch.log((1 + len(training)) / (1 + df)) + 1)


@bug(tf_idf, "the rows are scaled to sum to 1, not to length 1")
def scaled_to_sum(counts, training=None):
    x = tf_idf(counts, training)
    return torch.nan_to_num(x / x.sum(dim=1, keepdim=True))


@bug(tf_idf, "the columns are scaled, not the rows")
def columns(counts, training=None):
    return F.normalize(not_scaled(counts, training), dim=0)


@bug(tf_idf, "the counts are scaled before idf multiplies them")
def scaled_too_early(counts, training=None):
    return not_scaled(F.normalize(counts, dim=1), training if training is not None else counts)


@bug(tf_idf, "idf is log(M / df) + 1, without the 1 added to M and to df")
def not_smoothed(counts, training=None):
    return weighed(counts, training, lambda M, df: 1 + torch.log(M / df.clamp(min=1)))


@bug(tf_idf, "it counts only whether a word occurs, not how often")
def binary(counts, training=None):
    return weighed((counts > 0) * 1.0, training if training is not None else counts, idf_of)


def idf_of(M, df):
    return 1 + torch.log((1 + M) / (1 + df))


@bug(tf_idf, "the weight is divided by idf, so that common words weigh more")
def divided(counts, training=None):
    return weighed(counts, training, lambda M, df: 1 / idf_of(M, df))


@bug(tf_idf, "a text without words gives NaN", told_by="should be 0, yours is nan")
def not_a_number(counts, training=None):
    x = not_scaled(counts, training)
    return x / x.norm(dim=1, keepdim=True)


# mask_tokens


def chosen_places(tokens, special, generator, rate=0.15):
    ordinary = ~torch.isin(tokens, torch.tensor(special))
    return ordinary & (torch.rand(tokens.shape, generator=generator) < rate)


def filled(tokens, chosen, mask, low, V, generator, masked=0.8, kept=0.1):
    """Replace chosen words, random ones by words from `low` to V - 1."""
    fate = torch.rand(tokens.shape, generator=generator)
    words = torch.randint(low, V, tokens.shape, generator=generator)
    inputs = torch.where(chosen & (fate < masked), mask, tokens)
    inputs = torch.where(chosen & (fate >= masked + kept), words, inputs)
    return inputs, torch.where(chosen, tokens, -100)


@bug(mask_tokens, "every chosen word becomes [MASK]", told_by="become [MASK] should be 0.802")
def all_masked(tokens, special, mask, V, generator=None):
    chosen = chosen_places(tokens, special, generator)
    return filled(tokens, chosen, mask, 0, V, generator, masked=1.1)


@bug(mask_tokens, "special words are chosen too", told_by="No special word should be chosen")
def specials_too(tokens, special, mask, V, generator=None):
    chosen = torch.rand(tokens.shape, generator=generator) < 0.15
    return filled(tokens, chosen, mask, 0, V, generator)


@bug(mask_tokens, "padding is chosen too", told_by="No special word should be chosen")
def padding_too(tokens, special, mask, V, generator=None):
    chosen = chosen_places(tokens, special[1:], generator)
    return filled(tokens, chosen, mask, 0, V, generator)


@bug(mask_tokens, "there are targets at all places", told_by="that are chosen should be 0.150")
def all_targets(tokens, special, mask, V, generator=None):
    inputs, _ = mask_tokens(tokens, special, mask, V, generator)
    return inputs, torch.where(torch.isin(tokens, torch.tensor(special)), -100, tokens)


@bug(
    mask_tokens,
    "only places with [MASK] have targets, not chosen words that stay or are replaced",
    told_by="inputs should differ from the text only where there is a target",
    classic=True,
)
def visible_targets(tokens, special, mask, V, generator=None):
    inputs, _ = mask_tokens(tokens, special, mask, V, generator)
    return inputs, torch.where(inputs == mask, tokens, -100)


@bug(mask_tokens, "inputs and targets change places", told_by="targets should be the words")
def exchanged(tokens, special, mask, V, generator=None):
    return mask_tokens(tokens, special, mask, V, generator)[::-1]


@bug(mask_tokens, "the targets are what the input shows", told_by="targets should be the words")
def shown_targets(tokens, special, mask, V, generator=None):
    inputs, targets = mask_tokens(tokens, special, mask, V, generator)
    return inputs, torch.where(targets != -100, inputs, -100)


@bug(
    mask_tokens,
    "85 percent are chosen: the comparison is reversed",
    told_by="that are chosen should be 0.150 (± 0.005 by chance), yours is 0.85",
)
def turned_round(tokens, special, mask, V, generator=None):
    chosen = chosen_places(tokens, special, generator, rate=0.85)
    return filled(tokens, chosen, mask, 0, V, generator)


@bug(
    mask_tokens,
    "random words replace 10 percent of what [MASK] leaves, not of all chosen words",
    told_by="that stay as they are should be",
    classic=True,
)
def chained(tokens, special, mask, V, generator=None):
    chosen = chosen_places(tokens, special, generator)
    return filled(tokens, chosen, mask, 0, V, generator, masked=0.8, kept=0.18)


@bug(
    mask_tokens,
    "the same places are chosen in every text",
    told_by="chosen for each place should have the variance",
)
def same_places(tokens, special, mask, V, generator=None):
    ordinary = ~torch.isin(tokens, torch.tensor(special))
    chosen = ordinary & (torch.rand(tokens.shape[1], generator=generator) < 0.15)
    return filled(tokens, chosen, mask, 0, V, generator)


@bug(
    mask_tokens,
    "random words come from the first words of the vocabulary",
    told_by="The random words should be spread",
)
def first_words(tokens, special, mask, V, generator=None):
    chosen = chosen_places(tokens, special, generator)
    return filled(tokens, chosen, mask, 0, V - 5, generator)


@bug(
    mask_tokens,
    "the generator is not used",
    told_by="from the same generator",
)
def own_randomness(tokens, special, mask, V, generator=None):
    return mask_tokens(tokens, special, mask, V)


@bug(mask_tokens, "the text is changed in place", told_by="changes its input tokens in place")
def in_place(tokens, special, mask, V, generator=None):
    inputs, targets = mask_tokens(tokens, special, mask, V, generator)
    return tokens.copy_(inputs), targets


# next_sentence_pairs


def drawn(documents, B, generator, follower, stranger, chance=0.5, begin=None):
    """Draw pairs; `follower` and `stranger` say which sentence comes second."""

    def draw(size):
        return int(torch.randint(size, (), generator=generator))

    places = begin or [(d, s) for d, text in enumerate(documents) for s in range(len(text) - 1)]
    pairs, targets = [], []
    for _ in range(B):
        d, s = places[draw(len(places))]
        follows = float(torch.rand((), generator=generator)) < chance
        second = follower(d, s) if follows else stranger(d, s, draw)
        pairs.append((documents[d][s], second))
        targets.append(0 if follows else 1)
    return pairs, targets


def next_sentence(documents):
    return lambda d, s: documents[d][s + 1]


def other_document(documents):
    def stranger(d, s, draw):
        other = documents[(d + 1 + draw(len(documents) - 1)) % len(documents)]
        return other[draw(len(other))]

    return stranger


@bug(
    next_sentence_pairs,
    "the second sentence of a wrong pair is from any document, even its own",
    told_by="from another document",
    classic=True,
)
def any_document(documents, B, generator=None):
    def stranger(d, s, draw):
        other = documents[draw(len(documents))]
        choice = draw(len(other))
        while other is documents[d] and choice == s + 1:
            choice = draw(len(other))
        return other[choice]

    return drawn(documents, B, generator, lambda d, s: documents[d][s + 1], stranger)


@bug(
    next_sentence_pairs,
    "0 and 1 are exchanged",
    told_by="The target of sentence",
    classic=True,
)
def exchanged_targets(documents, B, generator=None):
    pairs, targets = next_sentence_pairs(documents, B, generator)
    return pairs, [1 - target for target in targets]


@bug(
    next_sentence_pairs,
    "the second sentence always follows the first",
    told_by="follow should be 0.5 (± 0.056 by chance)",
)
def no_strangers(documents, B, generator=None):
    return drawn(documents, B, generator, lambda d, s: documents[d][s + 1], None, chance=1.1)


@bug(
    next_sentence_pairs,
    "wrong pairs come three times as often",
    told_by="follow should be 0.5 (± 0.056 by chance)",
)
def unbalanced(documents, B, generator=None):
    follower = next_sentence(documents)
    return drawn(documents, B, generator, follower, other_document(documents), chance=0.25)


@bug(
    next_sentence_pairs,
    "the sentences of a pair are in the wrong order: the second comes first",
    told_by="The target of sentence",
)
def backwards(documents, B, generator=None):
    pairs, targets = next_sentence_pairs(documents, B, generator)
    return [(b, a) for a, b in pairs], targets


@bug(
    next_sentence_pairs,
    "the second sentence of a wrong pair is always the first of its document",
    told_by="The second sentences should be spread",
)
def first_sentences(documents, B, generator=None):
    def stranger(d, s, draw):
        return documents[(d + 1 + draw(len(documents) - 1)) % len(documents)][0]

    return drawn(documents, B, generator, lambda d, s: documents[d][s + 1], stranger)


@bug(
    next_sentence_pairs,
    "the second sentence of a wrong pair is from the next document",
    told_by="The second sentences should be spread",
)
def next_document(documents, B, generator=None):
    def stranger(d, s, draw):
        other = documents[(d + 1) % len(documents)]
        return other[draw(len(other))]

    return drawn(documents, B, generator, lambda d, s: documents[d][s + 1], stranger)


@bug(
    next_sentence_pairs,
    "every pair begins with the first sentence of a document",
    told_by="The first sentences should be spread",
)
def openings(documents, B, generator=None):
    begin = [(d, 0) for d, text in enumerate(documents) if len(text) > 1]
    follower = next_sentence(documents)
    return drawn(documents, B, generator, follower, other_document(documents), begin=begin)


@bug(
    next_sentence_pairs,
    "documents are drawn first, so that sentences of short ones are drawn more often",
    told_by="The first sentences should be spread",
)
def documents_first(documents, B, generator=None):
    long = [(d, s) for d, text in enumerate(documents) for s in range(len(text) - 1)]
    begin = [place for place in long for _ in range(60 // (len(documents[place[0]]) - 1))]
    follower = next_sentence(documents)
    return drawn(documents, B, generator, follower, other_document(documents), begin=begin)


@bug(
    next_sentence_pairs,
    "the last sentence of a document also begins a pair",
    told_by="raised IndexError",
)
def too_far(documents, B, generator=None):
    begin = [(d, s) for d, text in enumerate(documents) for s in range(len(text))]
    follower = next_sentence(documents)
    return drawn(documents, B, generator, follower, other_document(documents), begin=begin)


@bug(
    mask_tokens,
    "the last word of the vocabulary is never drawn at random",
    told_by="Word 49 should be among the random words",
)
def below_the_last(tokens, special, mask, V, generator=None):
    inputs, targets = mask_tokens(tokens, special, mask, V, generator)
    last = (targets != -100) & (inputs != tokens) & (inputs == V - 1)
    other = torch.randint(V - 1, tokens.shape, generator=generator)
    return torch.where(last, other, inputs), targets


@bug(
    mask_tokens,
    "at least one word is always chosen",
    told_by="of one word 12 should have a target",
)
def always_one(tokens, special, mask, V, generator=None):
    while True:
        inputs, targets = mask_tokens(tokens, special, mask, V, generator)
        if (targets != -100).any():
            return inputs, targets


@bug(
    mask_tokens,
    "without a generator, each call makes one of its own, always with the same seed",
    told_by="should choose other words each time",
)
def same_seed(tokens, special, mask, V, generator=None):
    return mask_tokens(tokens, special, mask, V, generator or torch.Generator())


@bug(
    next_sentence_pairs,
    "without a generator, each call makes one of its own, always with the same seed",
    told_by="should draw other pairs each time",
)
def same_pairs(documents, B, generator=None):
    return next_sentence_pairs(documents, B, generator or torch.Generator())


@bug(
    next_sentence_pairs,
    "right and wrong pairs take turns",
    told_by="that equal the one before should be 0.5",
)
def in_turn(documents, B, generator=None):
    pairs, targets = [], []
    while len(pairs) < B:
        (pair,), (target,) = next_sentence_pairs(documents, 1, generator)
        if target == len(pairs) % 2:
            pairs.append(pair)
            targets.append(target)
    return pairs, targets


@bug(
    next_sentence_pairs,
    "exactly half of the pairs are wrong, in random order",
    told_by="Of 6 pairs not always 3 should be wrong",
)
def exactly_half(documents, B, generator=None):
    pairs, targets = [], []
    kinds = torch.arange(B)[torch.randperm(B, generator=generator)] % 2
    for kind in kinds.tolist():
        target = None
        while target != kind:
            (pair,), (target,) = next_sentence_pairs(documents, 1, generator)
        pairs.append(pair)
        targets.append(target)
    return pairs, targets


@bug(
    next_sentence_pairs,
    "a sentence whose follower is the last one begins no pair",
    told_by="should begin some pairs, in yours it begins none",
)
def stops_early(documents, B, generator=None):
    begin = [(d, s) for d, text in enumerate(documents) for s in range(len(text) - 2)]
    begin += [(d, 0) for d, text in enumerate(documents) if len(text) == 2]
    follower = next_sentence(documents)
    return drawn(documents, B, generator, follower, other_document(documents), begin=begin)


@bug(next_sentence_pairs, "the generator is not used", told_by="generator should give the same")
def own_pairs(documents, B, generator=None):
    return next_sentence_pairs(documents, B)


# The model


class VariedEmbeddings(BertEmbeddings):
    """Embeddings whose sum the bugs below vary."""

    def forward(self, tokens, segments=None):
        T, context = tokens.shape[1], self.position.num_embeddings
        if T > context:
            raise ValueError(f"{T} > {context}")
        segments = torch.zeros_like(tokens) if segments is None else segments
        return self.finish(self.parts(tokens, segments))

    def parts(self, tokens, segments):
        T = tokens.shape[1]
        return [self.token(tokens), self.position.weight[:T], self.segment(segments)]

    def finish(self, parts):
        return self.norm(sum(parts))


@bug(BertEmbeddings, "the positions are left out")
class NoPositions(VariedEmbeddings):
    def parts(self, tokens, segments):
        return super().parts(tokens, segments)[::2]


@bug(BertEmbeddings, "the segment's vector is left out")
class NoSegments(VariedEmbeddings):
    def parts(self, tokens, segments):
        return super().parts(tokens, segments)[:2]


@bug(BertEmbeddings, "the sum is not normalised")
class NoNorm(VariedEmbeddings):
    def finish(self, parts):
        return sum(parts)


@bug(BertEmbeddings, "only the tokens are normalised, before the sum")
class NormedTokens(VariedEmbeddings):
    def finish(self, parts):
        return self.norm(parts[0]) + parts[1] + parts[2]


@bug(BertEmbeddings, "positions are counted from 1")
class FromOne(VariedEmbeddings):
    def parts(self, tokens, segments):
        token, _, segment = super().parts(tokens, segments)
        places = (torch.arange(tokens.shape[1]) + 1).clamp(max=self.position.num_embeddings - 1)
        return [token, self.position(places), segment]


@bug(BertEmbeddings, "positions are counted from the end of the text")
class FromTheEnd(VariedEmbeddings):
    def parts(self, tokens, segments):
        token, position, segment = super().parts(tokens, segments)
        return [token, position.flip(0), segment]


@bug(BertEmbeddings, "segments 0 and 1 are exchanged")
class OtherSegment(VariedEmbeddings):
    def parts(self, tokens, segments):
        return super().parts(tokens, 1 - segments)


@bug(BertEmbeddings, "the tokens are multiplied by √D")
class Scaled(VariedEmbeddings):
    def finish(self, parts):
        return self.norm(parts[0] * parts[0].shape[-1] ** 0.5 + parts[1] + parts[2])


@bug(BertEmbeddings, "the segment's vector is left out", classic=True)
class MissingSegment(BertEmbeddings):
    def forward(self, tokens, segments=None):
        if segments is not None:
            return super().forward(tokens, segments)
        return self.norm(self.token(tokens) + self.position.weight[: tokens.shape[1]])


@bug(
    BertEmbeddings,
    "a text that is too long is cut",
    told_by="should raise ValueError when a text is longer than the context",
)
class Cut(BertEmbeddings):
    def forward(self, tokens, segments=None):
        context = self.position.num_embeddings
        kept = None if segments is None else segments[:, :context]
        return super().forward(tokens[:, :context], kept)


class VariedLayer(BertLayer):
    """A layer whose steps the bugs below vary."""

    def forward(self, X, mask=None):
        Y, A = self.look(X, mask)
        X = self.norm_1(X + Y)
        return self.norm_2(X + self.think(X)), A

    def look(self, X, mask):
        return self.attention(X, mask=mask, return_weights=True)

    def think(self, X):
        return self.contract(F.gelu(self.expand(X)))


@bug(BertLayer, "the norms come before attention and network, as in GPT-2")
class PreNorm(VariedLayer):
    def forward(self, X, mask=None):
        Y, A = self.look(self.norm_1(X), mask)
        X = X + Y
        return X + self.think(self.norm_2(X)), A


@bug(BertLayer, "GELU has GPT-2's tanh form")
class TanhForm(VariedLayer):
    def think(self, X):
        return self.contract(F.gelu(self.expand(X), approximate="tanh"))


@bug(BertLayer, "the network has ReLU in place of GELU")
class Relu(VariedLayer):
    def think(self, X):
        return self.contract(F.relu(self.expand(X)))


@bug(BertLayer, "the mask is not passed on")
class NoMask(VariedLayer):
    def look(self, X, mask):
        return super().look(X, None)


@bug(BertLayer, "attention is not added to what came in")
class NoResidual(VariedLayer):
    def forward(self, X, mask=None):
        Y, A = self.look(X, mask)
        X = self.norm_1(Y)
        return self.norm_2(X + self.think(X)), A


@bug(BertLayer, "the network is not added to what came in")
class NoSecondResidual(VariedLayer):
    def forward(self, X, mask=None):
        Y, A = self.look(X, mask)
        return self.norm_2(self.think(self.norm_1(X + Y))), A


@bug(BertLayer, "the network's output is added to the layer's input, not to what was normalised")
class OldResidual(VariedLayer):
    def forward(self, X, mask=None):
        Y, A = self.look(X, mask)
        return self.norm_2(X + self.think(self.norm_1(X + Y))), A


@bug(BertLayer, "norm_1 is used twice")
class SameNorm(VariedLayer):
    def forward(self, X, mask=None):
        Y, A = self.look(X, mask)
        X = self.norm_1(X + Y)
        return self.norm_1(X + self.think(X)), A


@bug(BertLayer, "the first norm is left out")
class NoFirstNorm(VariedLayer):
    def forward(self, X, mask=None):
        Y, A = self.look(X, mask)
        return self.norm_2(X + Y + self.think(X + Y)), A


@bug(BertLayer, "attention and network work side by side on the same input")
class Parallel(VariedLayer):
    def forward(self, X, mask=None):
        Y, A = self.look(X, mask)
        return self.norm_2(self.norm_1(X + Y) + self.think(X)), A


@bug(
    BertLayer,
    "the layer is GPT-2's: its norms come first, and its GELU has the tanh form",
    classic=True,
)
class OldLayer(TanhForm):
    def forward(self, X, mask=None):
        return PreNorm.forward(self, X, mask)


class VariedModel(BertModel):
    """An encoder whose steps the bugs below vary."""

    def forward(self, tokens, segments=None, lengths=None, return_weights=False):
        X, weights = self.embeddings(tokens, segments), []
        mask = self.mask(tokens, lengths)
        for layer in self.order():
            X, A = layer(X, mask)
            weights.append(A)
        return (X, self.weights(weights)) if return_weights else X

    def mask(self, tokens, lengths):
        return None if lengths is None else padding_mask(lengths, tokens.shape[1])

    def order(self):
        return self.layers

    def weights(self, weights):
        return torch.stack(weights)


@bug(BertModel, "the padding is not masked", classic=True)
class PaddingSeen(VariedModel):
    def mask(self, tokens, lengths):
        return None


@bug(BertModel, "a causal mask hides what comes after each word")
class Causal(VariedModel):
    def mask(self, tokens, lengths):
        return causal_mask(tokens.shape[1])


@bug(BertModel, "the mask is inverted, so that only padding is attended to")
class Inverted(VariedModel):
    def mask(self, tokens, lengths):
        mask = super().mask(tokens, lengths)
        return None if mask is None else ~mask


@bug(BertModel, "the mask hides one word too many")
class OneTooFew(VariedModel):
    def mask(self, tokens, lengths):
        return None if lengths is None else padding_mask(lengths - 1, tokens.shape[1])


@bug(BertModel, "the mask shows one place of the padding")
class OneTooMany(VariedModel):
    def mask(self, tokens, lengths):
        return None if lengths is None else padding_mask(lengths + 1, tokens.shape[1])


@bug(BertModel, "the segments are not passed on")
class SegmentsLost(BertModel):
    def forward(self, tokens, segments=None, lengths=None, return_weights=False):
        return super().forward(tokens, None, lengths, return_weights)


@bug(BertModel, "the layers are applied in reverse")
class Reversed(VariedModel):
    def order(self):
        return reversed(self.layers)


@bug(BertModel, "only the last layer is applied")
class LastLayer(VariedModel):
    def order(self):
        return self.layers[-1:]


@bug(BertModel, "the last layer is left out")
class LayerMissing(VariedModel):
    def order(self):
        return self.layers[:-1]


@bug(BertModel, "the weights of the last layer come first")
class WeightsReversed(VariedModel):
    def weights(self, weights):
        return torch.stack(weights[::-1])


@bug(
    BertModel,
    "the weights are stacked after the batch's axis",
    told_by="A should have shape",
)
class WeightsBehind(VariedModel):
    def weights(self, weights):
        return torch.stack(weights, dim=1)


# The heads


def scores(X, W, b, gain, shift, token, bias, act=F.gelu, eps=1e-12, norm=True):
    hidden = act(X @ W.T + b)
    if norm:
        hidden = F.layer_norm(hidden, gain.shape, gain, shift, eps)
    return hidden @ token.T + bias


@bug(mlm_head, "the words are scored without the layer and the norm that come before")
def straight(X, W, b, gain, shift, token, bias):
    return X @ token.T + bias


@bug(mlm_head, "GELU is left out")
def linear(*parts):
    return scores(*parts, act=lambda x: x)


@bug(mlm_head, "the layer norm is left out")
def without_norm(*parts):
    return scores(*parts, norm=False)


@bug(mlm_head, "GELU has the tanh form")
def tanh_form(*parts):
    return scores(*parts, act=lambda x: F.gelu(x, approximate="tanh"))


@bug(mlm_head, "tanh is used instead of GELU, as in the other head")
def with_tanh(*parts):
    return scores(*parts, act=torch.tanh)


@bug(mlm_head, "the bias of the words is left out")
def without_bias(X, W, b, gain, shift, token, bias):
    return scores(X, W, b, gain, shift, token, 0 * bias)


@bug(mlm_head, "the bias of the layer is left out")
def without_inner_bias(X, W, b, gain, shift, token, bias):
    return scores(X, W, 0 * b, gain, shift, token, bias)


@bug(mlm_head, "W multiplies from the wrong side: X W and not X Wᵀ")
def turned(X, W, *parts):
    return scores(X, W.T, *parts)


@bug(mlm_head, "gain and shift of the norm are left out")
def bare_norm(X, W, b, gain, shift, token, bias):
    return scores(X, W, b, torch.ones_like(gain), torch.zeros_like(shift), token, bias)


@bug(mlm_head, "the norm comes before the layer")
def norm_first(X, W, b, gain, shift, token, bias):
    X = F.layer_norm(X, gain.shape, gain, shift, 1e-12)
    return F.gelu(X @ W.T + b) @ token.T + bias


@bug(mlm_head, "ε of the norm is 1e-5")
def larger_eps(*parts):
    return scores(*parts, eps=1e-5)


@bug(mlm_head, "no gradient reaches the embedding", told_by="No gradient goes back")
def detached(X, W, b, gain, shift, token, bias):
    return mlm_head(X, W, b, gain, shift, token.detach(), bias)


@bug(
    mlm_head,
    "the head has a table of its own: a copy of the embedding",
    told_by="No gradient reaches the embedding",
    classic=True,
)
def own_table(X, W, b, gain, shift, token, bias):
    return mlm_head(X, W, b, gain, shift, nn.Parameter(token.detach().clone()), bias)


def pooled_by(pool, act=torch.tanh):
    return lambda X, W_P, b_P, W, b: act(pool(X) @ W_P.T + b_P) @ W.T + b


@bug(nsp_head, "the last vector is taken, not the first")
def last_vector(*parts):
    return pooled_by(lambda X: X[:, -1])(*parts)


@bug(
    BertModel,
    "the mask is as wide as the longest text, not as the batch",
    told_by="raised RuntimeError: ",
)
class NarrowMask(BertModel):
    def forward(self, tokens, segments=None, lengths=None, return_weights=False):
        mask = None if lengths is None else padding_mask(lengths, int(lengths.max()))
        X, weights = self.embeddings(tokens, segments), []
        for layer in self.layers:
            X, A = layer(X, mask)
            weights.append(A)
        return (X, torch.stack(weights)) if return_weights else X


@bug(BertModel, "the vectors of what is padding in all texts are cut off", told_by="have shape")
class CutOff(BertModel):
    def forward(self, tokens, segments=None, lengths=None, return_weights=False):
        T = tokens.shape[1] if lengths is None else int(lengths.max())
        segments = None if segments is None else segments[:, :T]
        return super().forward(tokens[:, :T], segments, lengths, return_weights)


@bug(nsp_head, "the mean of all vectors is taken", classic=True)
def mean_vector(*parts):
    return pooled_by(lambda X: X.mean(dim=1))(*parts)


@bug(nsp_head, "the maximum of every feature is taken")
def largest(*parts):
    return pooled_by(lambda X: X.amax(dim=1))(*parts)


@bug(nsp_head, "the tanh is left out")
def no_tanh(*parts):
    return pooled_by(lambda X: X[:, 0], act=lambda x: x)(*parts)


@bug(nsp_head, "GELU is used instead of tanh")
def with_gelu(*parts):
    return pooled_by(lambda X: X[:, 0], act=F.gelu)(*parts)


@bug(nsp_head, "the pooler is left out")
def no_pooler(X, W_P, b_P, W, b):
    return X[:, 0] @ W.T + b


@bug(nsp_head, "the pooler's bias is left out")
def no_pooler_bias(X, W_P, b_P, W, b):
    return nsp_head(X, W_P, 0 * b_P, W, b)


@bug(nsp_head, "the bias of the classes is left out")
def no_class_bias(X, W_P, b_P, W, b):
    return nsp_head(X, W_P, b_P, W, 0 * b)


@bug(nsp_head, "W_P multiplies from the wrong side: x W_P and not x W_Pᵀ")
def pooler_turned(X, W_P, b_P, W, b):
    return nsp_head(X, W_P.T, b_P, W, b)


@bug(nsp_head, "a softmax is applied, though the loss expects logits")
def probabilities(*parts):
    return torch.softmax(nsp_head(*parts), dim=-1)


class VariedPretraining(BertPretraining):
    """Pretraining whose heads the bugs below vary."""

    def forward(self, tokens, segments=None, lengths=None):
        X = self.encode(tokens, segments, lengths)
        return self.words(X), self.follows(X)

    def encode(self, tokens, segments, lengths):
        return self.bert(tokens, segments, lengths)

    def words(self, X):
        hidden = self.norm(F.gelu(self.transform(X)))
        return hidden @ self.table().T + self.bias

    def table(self):
        return self.bert.embeddings.token.weight

    def follows(self, X):
        return self.next_sentence(torch.tanh(self.pooler(X[:, 0])))


@bug(BertPretraining, "the lengths are not passed on")
class LengthsLost(VariedPretraining):
    def encode(self, tokens, segments, lengths):
        return self.bert(tokens, segments)


@bug(BertPretraining, "the segments are not passed on to the encoder")
class SegmentsForgotten(VariedPretraining):
    def encode(self, tokens, segments, lengths):
        return self.bert(tokens, None, lengths)


@bug(
    BertPretraining,
    "segments and lengths are mixed up",
    told_by="BertPretraining raised",
    classic=True,
)
class MixedUp(VariedPretraining):
    def encode(self, tokens, segments, lengths):
        return self.bert(tokens, lengths, segments)


@bug(
    BertPretraining,
    "the embedding is detached, so that only reading trains it",
    told_by="in yours absent words get none",
)
class Detached(VariedPretraining):
    def table(self):
        return super().table().detach()


@bug(BertPretraining, "transform and pooler are exchanged")
class LayersExchanged(VariedPretraining):
    def words(self, X):
        return self.norm(F.gelu(self.pooler(X))) @ self.table().T + self.bias


@bug(BertPretraining, "the encoder's vectors go through the transform before both heads")
class TransformedTwice(VariedPretraining):
    def follows(self, X):
        return super().follows(self.norm(F.gelu(self.transform(X))))


@bug(BertPretraining, "the norm of the embeddings is used in the head")
class WrongNorm(VariedPretraining):
    def words(self, X):
        hidden = self.bert.embeddings.norm(F.gelu(self.transform(X)))
        return hidden @ self.table().T + self.bias


@bug(BertPretraining, "the words are scored without the transform")
class Untransformed(VariedPretraining):
    def words(self, X):
        return X @ self.table().T + self.bias


@bug(BertPretraining, "the heads come in the wrong order", told_by="mlm_logits should have shape")
class HeadsExchanged(BertPretraining):
    def forward(self, tokens, segments=None, lengths=None):
        return super().forward(tokens, segments, lengths)[::-1]


@bug(
    BertPretraining,
    "the table is copied, so that only reading trains it",
    told_by="in yours absent words get none",
    classic=True,
)
class Copied(VariedPretraining):
    def table(self):
        return nn.Parameter(super().table().detach().clone())


# The loss


@bug(pretraining_loss, "the places without a target count in the mean", classic=True)
def mean_over_all(words, goals, follows, kinds):
    total = F.cross_entropy(words.transpose(1, 2), goals, reduction="sum")
    return total / goals.numel() + F.cross_entropy(follows, kinds)


@bug(
    pretraining_loss,
    "0/0 is replaced where no word was chosen, but its gradient stays NaN",
    told_by="yours is nan (",
)
def replaced_late(words, goals, follows, kinds):
    chosen = goals != -100
    log_p = F.log_softmax(words, dim=-1).gather(-1, goals.clamp(min=0)[..., None])[..., 0]
    mean = -(log_p * chosen).sum() / chosen.sum()
    return torch.where(mean.isnan(), 0, mean) + F.cross_entropy(follows, kinds)


@bug(pretraining_loss, "the losses of the words are summed, not averaged")
def word_sum(words, goals, follows, kinds):
    total = F.cross_entropy(words.transpose(1, 2), goals, reduction="sum")
    return total + F.cross_entropy(follows, kinds)


@bug(pretraining_loss, "the mean is taken in each text first, and then over the texts")
def mean_of_means(words, goals, follows, kinds):
    losses = F.cross_entropy(words.transpose(1, 2), goals, reduction="none")
    texts = losses.sum(dim=1) / (goals != -100).sum(dim=1).clamp(min=1)
    return texts.mean() + F.cross_entropy(follows, kinds)


@bug(pretraining_loss, "the loss of the pairs is left out")
def words_alone(words, goals, follows, kinds):
    total = F.cross_entropy(words.transpose(1, 2), goals, reduction="sum")
    return total / (goals != -100).sum().clamp(min=1)


@bug(pretraining_loss, "the loss of the words is left out")
def pairs_alone(words, goals, follows, kinds):
    return F.cross_entropy(follows, kinds)


@bug(pretraining_loss, "the two losses are averaged, not added")
def averaged(words, goals, follows, kinds):
    return pretraining_loss(words, goals, follows, kinds) / 2


@bug(pretraining_loss, "a target of -100 counts as word 0")
def padding_as_word(words, goals, follows, kinds):
    return pretraining_loss(words, goals.clamp(min=0), follows, kinds)


@bug(pretraining_loss, "the classes of the pairs are exchanged")
def classes_exchanged(words, goals, follows, kinds):
    return pretraining_loss(words, goals, follows, 1 - kinds)


@bug(pretraining_loss, "a softmax is applied before the loss, which applies one itself")
def double_softmax(words, goals, follows, kinds):
    return pretraining_loss(words.softmax(-1), goals, follows.softmax(-1), kinds)


@bug(pretraining_loss, "a batch without targets gives NaN", told_by="yours is nan", classic=True)
def not_a_loss(words, goals, follows, kinds):
    return F.cross_entropy(words.transpose(1, 2), goals) + F.cross_entropy(follows, kinds)


# Fine-tuning


class VariedClassifier(SentenceClassifier):
    """A classifier whose steps the bugs below vary."""

    def forward(self, tokens, segments=None, lengths=None):
        X = self.bert(tokens, segments, lengths)
        return self.classifier(torch.tanh(self.pooler(self.pick(X, lengths))))

    def pick(self, X, lengths):
        return X[:, 0]


@bug(SentenceClassifier, "the mean of all vectors is classified")
class Mean(VariedClassifier):
    def pick(self, X, lengths):
        return X.mean(dim=1)


@bug(SentenceClassifier, "the last vector is classified, which may be padding")
class Last(VariedClassifier):
    def pick(self, X, lengths):
        return X[:, -1]


@bug(SentenceClassifier, "the pooler is left out")
class NoPooler(SentenceClassifier):
    def forward(self, tokens, segments=None, lengths=None):
        return self.classifier(self.bert(tokens, segments, lengths)[:, 0])


@bug(SentenceClassifier, "the lengths are not passed on")
class NoLengths(SentenceClassifier):
    def forward(self, tokens, segments=None, lengths=None):
        return super().forward(tokens, segments)


@bug(SentenceClassifier, "the segments are not passed on")
class NoKinds(SentenceClassifier):
    def forward(self, tokens, segments=None, lengths=None):
        return super().forward(tokens, None, lengths)


@bug(SentenceClassifier, "a softmax is applied, though the loss expects logits")
class Probabilities(SentenceClassifier):
    def forward(self, tokens, segments=None, lengths=None):
        return super().forward(tokens, segments, lengths).softmax(dim=-1)


class Starter(SentenceClassifier):
    """A classifier of which `start_from` takes only some weights."""

    def chosen(self, name):
        return True

    def start_from(self, state):
        known = {n: v for n, v in state.items() if n in self.state_dict() and self.chosen(n)}
        self.load_state_dict(known, strict=False)


@bug(
    SentenceClassifier,
    "the names are compared without their prefix, so that nothing is taken over",
    told_by="after start_from",
    classic=True,
)
class NothingTaken(Starter):
    def chosen(self, name):
        return False


@bug(
    SentenceClassifier,
    "the pooler keeps its random weights",
    told_by="pooler.weight after start_from",
)
class FreshPooler(Starter):
    def chosen(self, name):
        return not name.startswith("pooler")


@bug(SentenceClassifier, "only the embeddings are taken over", told_by="after start_from")
class EmbeddingsAlone(Starter):
    def chosen(self, name):
        return "embeddings" in name


@bug(
    SentenceClassifier,
    "the head starts from the weights for next sentences",
    told_by="classifier.weight after start_from",
)
class OldHead(SentenceClassifier):
    def start_from(self, state):
        super().start_from(state)
        if self.classifier.weight.shape == state["next_sentence.weight"].shape:
            self.classifier.load_state_dict(
                {kind: state[f"next_sentence.{kind}"] for kind in ("weight", "bias")}
            )


# Spans


def hidden_at(allowed, *scores, fill=-torch.inf):
    """Fill scores where no answer may be."""
    return tuple(s if allowed is None else torch.where(allowed, s, fill) for s in scores)


@bug(span_head, "S and E are exchanged")
def ends_first(X, S, E, allowed=None):
    return span_head(X, E, S, allowed)


@bug(span_head, "`allowed` is not used: every token may begin and end an answer", classic=True)
def all_allowed(X, S, E, allowed=None):
    return X @ S, X @ E


@bug(span_head, "where no answer may be, the score is 0, not −∞", classic=True)
def zero_scores(X, S, E, allowed=None):
    return hidden_at(allowed, X @ S, X @ E, fill=0.0)


@bug(span_head, "`allowed` is inverted")
def inverted(X, S, E, allowed=None):
    return span_head(X, S, E, None if allowed is None else ~allowed)


@bug(span_head, "only the starts are masked, not the ends")
def starts_masked(X, S, E, allowed=None):
    return *hidden_at(allowed, X @ S), X @ E


@bug(span_head, "a softmax is applied, though the loss expects scores")
def span_probabilities(X, S, E, allowed=None):
    return tuple(scores.softmax(dim=1) for scores in span_head(X, S, E, allowed))


@bug(span_head, "a softmax over the batch is applied, not over the tokens of a text")
def softmax_over_batch(X, S, E, allowed=None):
    return tuple(scores.softmax(dim=0) for scores in span_head(X, S, E, allowed))


@bug(span_head, "the scores are divided by √D, as in attention")
def divided_scores(X, S, E, allowed=None):
    return hidden_at(allowed, *(X @ v / len(v) ** 0.5 for v in (S, E)))


@bug(span_head, "S scores both the starts and the ends")
def one_vector(X, S, E, allowed=None):
    return span_head(X, S, S, allowed)


@bug(span_head, "the scores are cosines: vectors are scaled to length 1 first")
def cosines(X, S, E, allowed=None):
    return span_head(F.normalize(X, dim=-1), F.normalize(S, dim=0), F.normalize(E, dim=0), allowed)


@bug(span_head, "the vectors go through a tanh first, as in the head for whole texts")
def with_tanh_first(X, S, E, allowed=None):
    return span_head(torch.tanh(X), S, E, allowed)


@bug(
    BertPretraining,
    "no gradient goes from the head for pairs to the encoder",
    told_by="A gradient should go from nsp_logits to bert.",
)
class PairsDetached(BertPretraining):
    def forward(self, tokens, segments=None, lengths=None):
        words, _ = super().forward(tokens, segments, lengths)
        X = self.bert(tokens, segments, lengths).detach()
        parts = [*self.pooler.parameters(), *self.next_sentence.parameters()]
        return words, nsp_head(X, *parts)


@bug(pretraining_loss, "the softmax becomes 0 and its logarithm -∞", told_by="yours is inf")
def log_of_zero(words, goals, follows, kinds):
    chosen = goals != -100
    loss = F.nll_loss(follows.softmax(dim=1).log(), kinds)
    if chosen.any():
        loss = loss + F.nll_loss(words[chosen].softmax(dim=1).log(), goals[chosen])
    return loss


@bug(
    SentenceClassifier,
    "the encoder is frozen when it starts from pretrained weights",
    told_by="SentenceClassifier.start_from changes which parameters of self learn",
)
class Frozen(SentenceClassifier):
    def start_from(self, state):
        super().start_from(state)
        self.bert.requires_grad_(False)


@bug(
    SentenceClassifier,
    "no gradient goes back into the encoder",
    told_by="A gradient should go from the logits to bert.",
)
class EncoderCut(SentenceClassifier):
    def forward(self, tokens, segments=None, lengths=None):
        X = self.bert(tokens, segments, lengths).detach()
        return nsp_head(X, *self.pooler.parameters(), *self.classifier.parameters())


@bug(nsp_head, "no gradient reaches the pooler", told_by="No gradient reaches W_P")
def pooler_detached(X, W_P, b_P, W, b):
    return nsp_head(X, W_P.detach(), b_P, W, b)


@bug(span_head, "no gradient reaches the encoder", told_by="No gradient reaches X")
def encoder_detached(X, S, E, allowed=None):
    return span_head(X.detach(), S, E, allowed)


def searched_among(is_span, combine=torch.add, null=lambda s, e: s[:, 0] + e[:, 0]):
    """Make a search: `is_span` says of places i, j and of `longest` which pairs are spans."""

    def search(start, end, longest, margin=0.0):
        if longest < 1:
            raise ValueError("longest")
        T = start.shape[1]
        i, j = torch.meshgrid(torch.arange(T), torch.arange(T), indexing="ij")
        scores = combine(start[:, :, None], end[:, None])
        hidden = ~is_span(i, j, longest).broadcast_to(T, T)
        best, place = scores.masked_fill(hidden, -torch.inf).flatten(1).max(dim=1)
        found = best > null(start, end) + margin
        return torch.where(found, place // T, 0), torch.where(found, place % T, 0)

    return search


def right_spans(i, j, longest):
    return (i > 0) & (i <= j) & (j < i + longest)


@bug(
    best_span,
    "the best start and the best end are chosen separately",
    classic=True,
    told_by="should end before it begins",
)
def separately(start, end, longest, margin=0.0):
    if longest < 1:
        raise ValueError("longest")
    return start.argmax(dim=1), end.argmax(dim=1)


@bug(best_span, "a span may end before it begins", told_by="should end before it begins")
def backwards_too(*scores):
    return searched_among(lambda i, j, n: (i > 0) & (j > 0) & (abs(j - i) < n))(*scores)


@bug(best_span, "an answer may begin at [CLS] and end in the text", classic=True)
def from_cls(*scores):
    return searched_among(lambda i, j, n: (i <= j) & (j < i + n))(*scores)


@bug(best_span, "`longest` is not used", told_by="A span should have at most 4 words")
def any_length(*scores):
    return searched_among(lambda i, j, n: (i > 0) & (i <= j))(*scores)


@bug(best_span, "an answer may have one word more than `longest`", told_by="at most 4 words")
def one_too_long(*scores):
    return searched_among(lambda i, j, n: (i > 0) & (i <= j) & (j <= i + n))(*scores)


@bug(best_span, "an answer has one word less than `longest` at most")
def one_too_short(*scores):
    return searched_among(lambda i, j, n: (i > 0) & (i <= j) & (j < i + max(n - 1, 1)))(*scores)


@bug(best_span, "an answer of a single word is not allowed")
def two_words(*scores):
    return searched_among(lambda i, j, n: (i > 0) & (i < j) & (j < i + n))(*scores)


@bug(best_span, "the last token of a text is never in an answer")
def last_left_out(*scores):
    return searched_among(lambda i, j, n: right_spans(i, j, n) & (j < len(j) - 1))(*scores)


@bug(best_span, "there is always an answer")
def always(start, end, longest, margin=0.0):
    return searched_among(right_spans)(start, end, longest, -torch.inf)


@bug(best_span, "the margin is not used")
def no_margin(start, end, longest, margin=0.0):
    return best_span(start, end, longest)


@bug(best_span, "the margin is subtracted from the score of no answer, not added")
def other_margin(start, end, longest, margin=0.0):
    return best_span(start, end, longest, -margin)


@bug(best_span, "the margin alone decides: an answer's score is not compared with [CLS]")
def margin_alone(*scores):
    return searched_among(right_spans, null=lambda s, e: 0 * s[:, 0])(*scores)


@bug(best_span, "an answer is compared with the start's score of [CLS] alone")
def half_of_cls(*scores):
    return searched_among(right_spans, null=lambda s, e: s[:, 0])(*scores)


@bug(best_span, "start and end are multiplied, not added")
def multiplied(*scores):
    return searched_among(right_spans, combine=torch.mul)(*scores)


@bug(best_span, "the best start is chosen first, and then the best end after it")
def greedy_start(start, end, longest, margin=0.0):
    if longest < 1:
        raise ValueError("longest")
    first, last = [], []
    for s, e in zip(start, end, strict=True):
        i = 1 + int(s[1:].argmax())
        j = i + int(e[i : i + longest].argmax())
        found = s[i] + e[j] > s[0] + e[0] + margin
        first.append(i if found else 0)
        last.append(j if found else 0)
    return torch.tensor(first), torch.tensor(last)


@bug(best_span, "last is the place after the answer")
def after_the_end(*scores):
    first, last = best_span(*scores)
    return first, torch.where(first > 0, last + 1, last)


@bug(best_span, "the places are counted from the first word, not from [CLS]")
def from_first_word(*scores):
    first, last = best_span(*scores)
    return (first - 1).clamp(min=0), (last - 1).clamp(min=0)


@bug(best_span, "an answer that scores as much as no answer is taken")
def ties_taken(start, end, longest, margin=0.0):
    return best_span(start, end, longest, margin - 1e-9)


# The published weights


def parts(state, change):
    """Convert, and let a function change the name and the value of each weight."""
    changed = [change(name, value) for name, value in load_bert(state).items()]
    return {name: value for name, value in changed if name}


def renamed(state, names):
    def change(name, value):
        for old, new in names.items():
            if old in name:
                return name.replace(old, new), value
        return name, value

    return parts(state, change)


@bug(load_bert, "attention's matrices are not transposed, though ours are x W and nn.Linear's x Wᵀ")
def not_turned(state):
    return parts(state, lambda n, v: (n, v.T if ".W_" in n else v))


@bug(load_bert, "W_O is not transposed", classic=True)
def output_not_turned(state):
    return parts(state, lambda n, v: (n, v.T if n.endswith("W_O") else v))


@bug(load_bert, "all matrices of a layer are transposed, even those of nn.Linear")
def all_turned(state):
    return parts(
        state, lambda n, v: (n, v.T if n.endswith(("expand.weight", "contract.weight")) else v)
    )


@bug(load_bert, "pooler and transform are transposed like attention's matrices")
def heads_turned(state):
    return parts(state, lambda n, v: (n, v.T if n in ("pooler.weight", "transform.weight") else v))


@bug(load_bert, "queries and keys are mixed up")
def keys_first(state):
    return renamed(state, {"_Q": "_K", "_K": "_Q"})


@bug(load_bert, "values and keys are mixed up")
def values_first(state):
    return renamed(state, {"_V": "_K", "_K": "_V"})


@bug(load_bert, "the two norms of a layer are mixed up")
def norms_mixed_up(state):
    return renamed(state, {"norm_1": "norm_2", "norm_2": "norm_1"})


@bug(load_bert, "pooler and transform are mixed up")
def heads_mixed_up(state):
    return renamed(state, {"pooler": "transform", "transform": "pooler"})


@bug(load_bert, "the norm of the embeddings and that of the head are mixed up")
def outer_norms(state):
    ours = load_bert(state)
    if "norm.weight" not in ours:
        return ours
    for kind in ("weight", "bias"):
        a, b = f"norm.{kind}", f"bert.embeddings.norm.{kind}"
        ours[a], ours[b] = ours[b], ours[a]
    return ours


@bug(load_bert, "gain and bias of the norms are mixed up")
def gains_and_biases(state):
    def change(name, value):
        place, _, kind = name.rpartition(".")
        if "norm" in place:
            kind = {"weight": "bias", "bias": "weight"}[kind]
        return f"{place}.{kind}" if place else name, value

    return parts(state, change)


@bug(load_bert, "every layer gets the weights of the first")
def first_layer(state):
    ours = load_bert(state)

    def change(name, value):
        if name.startswith("bert.layers."):
            value = ours["bert.layers.0." + name.split(".", 3)[3]]
        return name, value

    return parts(state, change)


@bug(load_bert, "layers are sorted as text, so that 10 comes before 2")
def order_of_text(state):
    numbers = sorted({n.split(".")[2] for n in load_bert(state) if n.startswith("bert.layers.")})

    def change(name, value):
        if name.startswith("bert.layers."):
            _, _, number, rest = name.split(".", 3)
            name = f"bert.layers.{numbers.index(number)}.{rest}"
        return name, value

    return parts(state, change)


@bug(
    load_bert, "the decoder is kept as a weight of its own", told_by="does not belong in your state"
)
def decoder_kept(state):
    kept = {n: v for n, v in state.items() if ".decoder." in n}
    return load_bert(state) | kept


@bug(
    load_bert,
    "unknown names are silently ignored",
    told_by="should raise ValueError when the state has",
)
def nothing_refused(state):
    known = {n: v for n, v in state.items() if "cross" not in n and "classifier" not in n}
    return load_bert(known)


@bug(
    load_bert,
    "a decoder that is not the embedding is dropped",
    told_by="should raise ValueError when the decoder's weight is its own",
)
def decoder_dropped(state):
    return load_bert({n: v for n, v in state.items() if ".decoder." not in n})


@bug(best_span, "it fails for a text of [CLS] alone", told_by="best_span raised IndexError")
def more_than_cls(start, end, longest, margin=0.0):
    start[:, 1:].argmax(dim=1)
    return best_span(start, end, longest, margin)


@bug(
    load_bert,
    "position_ids are left out only where names begin with bert.",
    told_by="raised ValueError: no place for embeddings.position_ids",
)
def ids_of_one_kind(state):
    if "embeddings.position_ids" in state:
        raise ValueError("no place for embeddings.position_ids")
    return load_bert(state)


@bug(
    load_bert,
    "whatever is unknown in the embeddings is dropped like position_ids",
    told_by="should raise ValueError when the state has bert.embeddings.extra.weight",
)
def embeddings_dropped(state):
    return load_bert({n: v for n, v in state.items() if ".extra." not in n})


@bug(load_bert, "a model without a pooler is refused", told_by="load_bert raised KeyError")
def pooler_needed(state):
    if "bert.pooler.dense.weight" not in state and "pooler.dense.weight" not in state:
        raise KeyError("pooler.dense.weight")
    return load_bert(state)


@bug(load_bert, "old files' gamma and beta are refused", told_by="raised ValueError: no place")
def gamma_refused(state):
    if any(name.endswith("gamma") for name in state):
        raise ValueError("no place for gamma")
    return load_bert(state)


@bug(
    load_bert,
    "names that end with neither weight nor bias are left out without a word",
    told_by="the state has bert.pooler.dense.scale",
)
def drops_other_kinds(state):
    ends = ("weight", "bias", "gamma", "beta")
    return load_bert({name: value for name, value in state.items() if name.endswith(ends)})


NEVER = "a draw hits the border once in 16 million times"
equivalent(
    mask_tokens,
    "choice, fate = torch.rand(2, *shape, generator=generator, device=device) → "
    "fate, choice = torch.rand(2, *shape, generator=generator, device=device)",
    "the two are drawn alike, each for itself",
)
equivalent(
    mask_tokens,
    "chosen = ordinary & (choice < 0.15) → chosen = ordinary & (choice <= 0.15)",
    NEVER,
)
equivalent(
    mask_tokens,
    "inputs = torch.where(chosen & (fate < 0.8), mask, tokens) → "
    "inputs = torch.where(chosen & (fate <= 0.8), mask, tokens)",
    NEVER,
)
equivalent(
    mask_tokens,
    "inputs = torch.where(chosen & (fate >= 0.9), drawn, inputs) → "
    "inputs = torch.where(chosen & (fate > 0.9), drawn, inputs)",
    NEVER,
)
equivalent(
    next_sentence_pairs,
    "pairs, targets = ([], []) → targets, pairs = ([], [])",
    "both are empty lists",
)
equivalent(
    best_span,
    "is_span = torch.ones(T, T, dtype=torch.bool, device=start.device).triu().tril(longest - 1) → "
    "is_span = torch.ones(T, T, dtype=torch.bool).triu().tril(longest - 1)",
    "checks run on a CPU, which is torch's default device",
)
equivalent(
    load_bert,
    "if repeated is not None and (not torch.equal(repeated, ours[twin])): → "
    "if repeated is not None and (not torch.equal(ours[twin], repeated)):",
    "equality is symmetric",
)
equivalent(
    BertPretraining,
    "parts = [*self.transform.parameters(), *self.norm.parameters()] → "
    "parts = vars(self).setdefault('parts', "
    "[*self.transform.parameters(), *self.norm.parameters()])",
    "a module has the same parameters at every call",
)
equivalent(
    BertPretraining,
    "parts = [*self.pooler.parameters(), *self.next_sentence.parameters()] → "
    "parts = vars(self).setdefault('parts', "
    "[*self.pooler.parameters(), *self.next_sentence.parameters()])",
    "a module has the same parameters at every call",
)
equivalent(
    SentenceClassifier,
    "own = self.state_dict() → own = vars(self).setdefault('own', self.state_dict())",
    "a state dict refers to the parameters, however old it is",
)
