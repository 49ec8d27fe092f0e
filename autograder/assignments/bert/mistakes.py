"""Known wrong solutions of bert."""

import torch
from torch.nn import functional as F

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
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
    pretraining_loss_fault,
    span_head,
    tf_idf,
)

# tf_idf


@bug(tf_idf, "idf is measured on the texts themselves, not on the training texts", classic=True)
def own_idf(counts, training=None):
    return tf_idf(counts)


mistakes(
    tf_idf,
    """
* total_counts: idf counts how often a word occurs, not in how many texts
    (training > 0).sum → training.sum
no_one: a word that every text has weighs nothing: the 1 after the logarithm is missing
    / (1 + df)) + 1 → / (1 + df))
not_scaled: the rows are not scaled to length 1
    torch.where(lengths > 0, weighted / lengths, 0) → weighted
scaled_to_sum: the rows are scaled to sum to 1, not to length 1
    weighted.norm(dim=1 → weighted.sum(dim=1
columns: the columns are scaled, not the rows
    weighted.norm(dim=1 → weighted.norm(dim=0
scaled_too_early: the counts are scaled before idf multiplies them
    counts * idf → functional.normalize(counts, dim=1) * idf
    torch.where(lengths > 0, weighted / lengths, 0) → weighted
not_smoothed: idf is log(M / df) + 1, without the 1 added to M and to df
    (1 + len(training)) / (1 + df) → len(training) / df.clamp(min=1)
binary: it counts only whether a word occurs, not how often
    counts * idf → (counts > 0) * idf
divided: the weight is divided by idf, so that common words weigh more
    counts * idf → counts / idf
not_a_number: a text without words gives NaN
    torch.where(lengths > 0, weighted / lengths, 0) → weighted / lengths
    says: should be 0, yours is nan
""",
)


# mask_tokens


mistakes(
    mask_tokens,
    """
all_masked: every chosen word becomes [MASK]
    chosen & (fate < 0.8) → chosen
    fate >= 0.9 → fate >= 1
    says: become [MASK] should be 0.802
specials_too: special words are chosen too
    ordinary & (choice < 0.15) → choice < 0.15
    says: No special word should be chosen
padding_too: padding is chosen too
    new_tensor(special) → new_tensor(special[1:])
    says: No special word should be chosen
all_targets: there are targets at all places
    torch.where(chosen, tokens, -100) → torch.where(ordinary, tokens, -100)
    says: that are chosen should be 0.150
* visible_targets: only places with [MASK] have targets, not chosen words that stay or are replaced
    torch.where(chosen, tokens, -100) → torch.where(inputs == mask, tokens, -100)
    says: inputs should differ from the text only where there is a target
exchanged: inputs and targets change places
    return inputs, torch.where(chosen, tokens, -100)
    → return torch.where(chosen, tokens, -100), inputs
    says: targets should be the words
shown_targets: the targets are what the input shows
    (chosen, tokens, -100) → (chosen, inputs, -100)
    says: targets should be the words
turned_round: 85 percent are chosen: the comparison is reversed
    choice < 0.15 → choice >= 0.15
    says: that are chosen should be 0.150 (± 0.005 by chance), yours is 0.85
* chained: random words replace 10 percent of what [MASK] leaves, not of all chosen words
    fate >= 0.9 → fate >= 0.98
    says: that stay as they are should be
same_places: the same places are chosen in every text
    choice < 0.15 → choice[0] < 0.15
    says: chosen for each place should have the variance
first_words: random words come from the first words of the vocabulary
    randint(V, → randint(V - 5,
    says: The random words should be spread
""",
)


@bug(
    mask_tokens,
    "the generator is not used",
    told_by="from the same generator",
)
def own_randomness(tokens, special, mask, V, generator=None):
    return mask_tokens(tokens, special, mask, V)


@bug(mask_tokens, "the text is changed in place", told_by="changes its argument tokens in place")
def in_place(tokens, special, mask, V, generator=None):
    inputs, targets = mask_tokens(tokens, special, mask, V, generator)
    return tokens.copy_(inputs), targets


# next_sentence_pairs


mistakes(
    next_sentence_pairs,
    """
* any_document: the second sentence of a wrong pair is from any document, even its own
    documents[(document + 1 + draw(len(documents) - 1)) % len(documents)]
    → documents[draw(len(documents))]
    says: from another document
* exchanged_targets: 0 and 1 are exchanged
    targets.append(target) → targets.append(1 - target)
    says: The target of sentence
no_strangers: the second sentence always follows the first
    draw(2) → 0
    says: follow should be 0.5 (± 0.056 by chance)
unbalanced: wrong pairs come three times as often
    draw(2) → min(draw(4), 1)
    says: follow should be 0.5 (± 0.056 by chance)
backwards: the sentences of a pair are in the wrong order: the second comes first
    (documents[document][place], second) → (second, documents[document][place])
    says: The target of sentence
first_sentences: the second sentence of a wrong pair is always the first of its document
    other[draw(len(other))] → other[0]
    says: The second sentences should be spread
next_document: the second sentence of a wrong pair is from the next document
    (document + 1 + draw(len(documents) - 1)) → (document + 1)
    says: The second sentences should be spread
openings: every pair begins with the first sentence of a document
    range(len(sentences) - 1) → range(min(len(sentences) - 1, 1))
    says: The first sentences should be spread
documents_first: documents are drawn first, so that sentences of short ones are drawn more often
    document, place = places[draw(len(places))]
    → long = [d for d, sentences in enumerate(documents) if len(sentences) > 1]
      document = long[draw(len(long))]
      place = draw(len(documents[document]) - 1)
    says: The first sentences should be spread
too_far: the last sentence of a document also begins a pair
    range(len(sentences) - 1) → range(len(sentences))
    says: raised IndexError
""",
)

mistakes(
    mask_tokens,
    """
below_the_last: the last word of the vocabulary is never drawn at random
    randint(V, → randint(V - 1,
    says: Word 49 should be among the random words
""",
)


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


mistakes(
    next_sentence_pairs,
    """
in_turn: right and wrong pairs take turns
    draw(2) → len(pairs) % 2
    says: that equal the one before should be 0.5
exactly_half: exactly half of the pairs are wrong, in random order
    pairs, targets = [], []
    for
    → pairs, targets = [], []
      kinds = (torch.randperm(B, generator=generator) % 2).tolist()
      for
    draw(2) → kinds[len(pairs)]
    says: Of 6 pairs not always 3 should be wrong
stops_early: a sentence whose follower is the last one begins no pair
    range(len(sentences) - 1) → range(max(len(sentences) - 2, min(len(sentences) - 1, 1)))
    says: should begin some pairs, in yours it begins none
""",
)


@bug(next_sentence_pairs, "the generator is not used", told_by="generator should give the same")
def own_pairs(documents, B, generator=None):
    return next_sentence_pairs(documents, B)


# The model


mistakes(
    BertEmbeddings,
    """
NoPositions: the positions are left out
    ) + self.position.weight[:T] → )
NoSegments: the segment's vector is left out
    ] + self.segment(segments) → ]
NoNorm: the sum is not normalised
    return self.norm(X) → return X
NormedTokens: only the tokens are normalised, before the sum
    self.token(tokens) → self.norm(self.token(tokens))
    return self.norm(X) → return X
FromOne: positions are counted from 1
    self.position.weight[:T] → self.position((torch.arange(T) + 1).clamp(max=context - 1))
FromTheEnd: positions are counted from the end of the text
    weight[:T] → weight[:T].flip(0)
OtherSegment: segments 0 and 1 are exchanged
    self.segment(segments) → self.segment(1 - segments)
Scaled: the tokens are multiplied by √D
    self.token(tokens) → self.token(tokens) * self.token.embedding_dim**0.5
""",
)

changed(
    BertEmbeddings,
    "MissingSegment",
    "the segment's vector is left out",
    (
        "            segments = torch.zeros_like(tokens)\n",
        "            return self.norm(self.token(tokens) + self.position.weight[:T])\n",
    ),
    classic=True,
)

mistakes(
    BertEmbeddings,
    """
Cut: a text that is too long is cut
    raise ValueError(f"{T} words do not fit into a context of {context}")
    → tokens, T = tokens[:, :context], context
      segments = None if segments is None else segments[:, :context]
    says: should raise ValueError when a text is longer than the context
""",
)

mistakes(
    BertLayer,
    """
PreNorm: the norms come before attention and network, as in GPT-2
    self.attention(X, → self.attention(self.norm_1(X),
    X = self.norm_1(X + Y) → X = X + Y
    self.norm_2(X + self.contract(functional.gelu(self.expand(X))))
    → X + self.contract(functional.gelu(self.expand(self.norm_2(X))))
TanhForm: GELU has GPT-2's tanh form
    functional.gelu(self.expand(X)) → functional.gelu(self.expand(X), approximate="tanh")
Relu: the network has ReLU in place of GELU
    functional.gelu → functional.relu
NoMask: the mask is not passed on
    mask=mask, return → return
NoResidual: attention is not added to what came in
    self.norm_1(X + Y) → self.norm_1(Y)
NoSecondResidual: the network is not added to what came in
    self.norm_2(X + self → self.norm_2(self
OldResidual: the network's output is added to the layer's input, not to what was normalised
    X = self.norm_1(X + Y) → Z = self.norm_1(X + Y)
    self.expand(X) → self.expand(Z)
SameNorm: norm_1 is used twice
    self.norm_2(X → self.norm_1(X
NoFirstNorm: the first norm is left out
    self.norm_1(X + Y) → X + Y
Parallel: attention and network work side by side on the same input
    X = self.norm_1(X + Y) → Z = self.norm_1(X + Y)
    self.norm_2(X + → self.norm_2(Z +
* OldLayer: the layer is GPT-2's: its norms come first, and its GELU has the tanh form
    self.attention(X, → self.attention(self.norm_1(X),
    X = self.norm_1(X + Y) → X = X + Y
    self.norm_2(X + self.contract(functional.gelu(self.expand(X))))
    → X + self.contract(functional.gelu(self.expand(self.norm_2(X)), approximate="tanh"))
""",
)

mistakes(
    BertModel,
    """
* PaddingSeen: the padding is not masked
    None if lengths is None else padding_mask(lengths, tokens.shape[1]) → None
Causal: a causal mask hides what comes after each word
    None if lengths is None else padding_mask(lengths, tokens.shape[1])
    → torch.ones(2 * tokens.shape[1:], dtype=torch.bool).tril()
Inverted: the mask is inverted, so that only padding is attended to
    padding_mask(lengths, tokens.shape[1]) → ~padding_mask(lengths, tokens.shape[1])
OneTooFew: the mask hides one word too many
    padding_mask(lengths, → padding_mask(lengths - 1,
OneTooMany: the mask shows one place of the padding
    padding_mask(lengths, → padding_mask(lengths + 1,
SegmentsLost: the segments are not passed on
    self.embeddings(tokens, segments) → self.embeddings(tokens)
Reversed: the layers are applied in reverse
    in self.layers: → in reversed(self.layers):
LastLayer: only the last layer is applied
    in self.layers: → in self.layers[-1:]:
LayerMissing: the last layer is left out
    in self.layers: → in self.layers[:-1]:
WeightsReversed: the weights of the last layer come first
    torch.stack(weights) → torch.stack(weights[::-1])
WeightsBehind: the weights are stacked after the batch's axis
    torch.stack(weights) → torch.stack(weights, dim=1)
    says: A should have shape
""",
)


# The heads


@bug(mlm_head, "the words are scored without the layer and the norm that come before")
def straight(X, W, b, gain, shift, token, bias):
    return X @ token.T + bias


mistakes(
    mlm_head,
    """
linear: GELU is left out
    functional.gelu(functional.linear(X, W, b)) → functional.linear(X, W, b)
""",
)

changed(
    mlm_head,
    "without_norm",
    "the layer norm is left out",
    ("    hidden = functional.layer_norm(hidden, gain.shape, gain, shift, eps=1e-12)\n", ""),
)

mistakes(
    mlm_head,
    """
tanh_form: GELU has the tanh form
    X, W, b)) → X, W, b), approximate="tanh")
with_tanh: tanh is used instead of GELU, as in the other head
    functional.gelu( → torch.tanh(
without_bias: the bias of the words is left out
    token.T + bias → token.T
without_inner_bias: the bias of the layer is left out
    (X, W, b) → (X, W)
turned: W multiplies from the wrong side: X W and not X Wᵀ
    (X, W, b) → (X, W.T, b)
bare_norm: gain and shift of the norm are left out
    gain.shape, gain, shift, eps → gain.shape, eps
""",
)


@bug(mlm_head, "the norm comes before the layer")
def norm_first(X, W, b, gain, shift, token, bias):
    X = F.layer_norm(X, gain.shape, gain, shift, 1e-12)
    return F.gelu(X @ W.T + b) @ token.T + bias


mistakes(
    mlm_head,
    """
larger_eps: ε of the norm is 1e-5
    eps=1e-12 → eps=1e-5
""",
)


@bug(mlm_head, "no gradient reaches the embedding", told_by="No gradient goes back")
def detached(X, W, b, gain, shift, token, bias):
    return mlm_head(X, W, b, gain, shift, token.detach(), bias)


mistakes(
    mlm_head,
    """
* own_table: the head has a table of its own: a copy of the embedding
    @ token.T → @ nn.Parameter(token.detach().clone()).T
    says: No gradient reaches the embedding
""",
)

mistakes(
    nsp_head,
    """
last_vector: the last vector is taken, not the first
    X[:, 0] → X[:, -1]
""",
)

changed(
    BertModel,
    "NarrowMask",
    "the mask is as wide as the longest text, not as the batch",
    ("padding_mask(lengths, tokens.shape[1])", "padding_mask(lengths, int(lengths.max()))"),
    told_by="raised RuntimeError: ",
)


@bug(BertModel, "the vectors of what is padding in all texts are cut off", told_by="have shape")
class CutOff(BertModel):
    def forward(self, tokens, segments=None, lengths=None, return_weights=False):
        T = tokens.shape[1] if lengths is None else int(lengths.max())
        segments = None if segments is None else segments[:, :T]
        return super().forward(tokens[:, :T], segments, lengths, return_weights)


mistakes(
    nsp_head,
    """
* mean_vector: the mean of all vectors is taken
    X[:, 0] → X.mean(dim=1)
largest: the maximum of every feature is taken
    X[:, 0] → X.amax(dim=1)
no_tanh: the tanh is left out
    torch.tanh(functional.linear(X[:, 0], W_P, b_P)) → functional.linear(X[:, 0], W_P, b_P)
with_gelu: GELU is used instead of tanh
    torch.tanh → functional.gelu
""",
)


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


mistakes(
    BertPretraining,
    """
LengthsLost: the lengths are not passed on
    self.bert(tokens, segments, lengths) → self.bert(tokens, segments)
SegmentsForgotten: the segments are not passed on to the encoder
    self.bert(tokens, segments, lengths) → self.bert(tokens, None, lengths)
* MixedUp: segments and lengths are mixed up
    self.bert(tokens, segments, lengths) → self.bert(tokens, lengths, segments)
    says: BertPretraining raised
Detached: the embedding is detached, so that only reading trains it
    token.weight, → token.weight.detach(),
    says: in yours absent words get none
LayersExchanged: transform and pooler are exchanged
    *self.transform.parameters(), → *self.pooler.parameters(),
    *self.pooler.parameters(), *self.next → *self.transform.parameters(), *self.next
TransformedTwice: the encoder's vectors go through the transform before both heads
    nsp_head(X, → nsp_head(self.norm(functional.gelu(self.transform(X))),
WrongNorm: the norm of the embeddings is used in the head
    *self.norm.parameters() → *self.bert.embeddings.norm.parameters()
Untransformed: the words are scored without the transform
    mlm_head(X, *parts, self.bert.embeddings.token.weight, self.bias)
    → X @ self.bert.embeddings.token.weight.T + self.bias
HeadsExchanged: the heads come in the wrong order
    return words, nsp_head(X, *parts) → return nsp_head(X, *parts), words
    says: mlm_logits should have shape
* Copied: the table is copied, so that only reading trains it
    self.bert.embeddings.token.weight
    → nn.Parameter(self.bert.embeddings.token.weight.detach().clone())
    says: in yours absent words get none
""",
)


# The loss


mistakes(
    pretraining_loss,
    """
* mean_over_all: the places without a target count in the mean
    (mlm_targets != -100).sum().clamp(min=1) → mlm_targets.numel()
""",
)


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


mistakes(
    pretraining_loss,
    """
word_sum: the losses of the words are summed, not averaged
    words / chosen → words
mean_of_means: the mean is taken in each text first, and then over the texts
    "sum") → "none").sum(dim=1)
    -100).sum() → -100).sum(dim=1)
    words / chosen → (words / chosen).mean()
words_alone: the loss of the pairs is left out
    chosen + functional.cross_entropy(nsp_logits, nsp_targets) → chosen
""",
)


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


mistakes(
    SentenceClassifier,
    """
Mean: the mean of all vectors is classified
    nsp_head(X, → nsp_head(X.mean(dim=1, keepdim=True),
Last: the last vector is classified, which may be padding
    nsp_head(X, → nsp_head(X[:, -1:],
NoPooler: the pooler is left out
    nsp_head(X, *self.pooler.parameters(), *self.classifier.parameters()) → self.classifier(X[:, 0])
NoLengths: the lengths are not passed on
    self.bert(tokens, segments, lengths) → self.bert(tokens, segments)
NoKinds: the segments are not passed on
    self.bert(tokens, segments, lengths) → self.bert(tokens, None, lengths)
Probabilities: a softmax is applied, though the loss expects logits
    *self.classifier.parameters()) → *self.classifier.parameters()).softmax(dim=-1)
* NothingTaken: the names are compared without their prefix, so that nothing is taken over
    if not name.startswith("classifier.") → if f"bert.{name}" in state
    says: after start_from
FreshPooler: the pooler keeps its random weights
    ("classifier.") → (("classifier.", "pooler."))
    says: pooler.weight after start_from
EmbeddingsAlone: only the embeddings are taken over
    if not name.startswith("classifier.") → if "embeddings" in name
    says: after start_from
""",
)


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


@bug(span_head, "S and E are exchanged")
def ends_first(X, S, E, allowed=None):
    return span_head(X, E, S, allowed)


@bug(span_head, "`allowed` is not used: every token may begin and end an answer", classic=True)
def all_allowed(X, S, E, allowed=None):
    return X @ S, X @ E


mistakes(
    span_head,
    """
* zero_scores: where no answer may be, the score is 0, not −∞
    start.masked_fill(~allowed, -torch.inf), end.masked_fill(~allowed, -torch.inf)
    → start.masked_fill(~allowed, 0), end.masked_fill(~allowed, 0)
""",
)


@bug(span_head, "`allowed` is inverted")
def inverted(X, S, E, allowed=None):
    return span_head(X, S, E, None if allowed is None else ~allowed)


mistakes(
    span_head,
    """
starts_masked: only the starts are masked, not the ends
    end.masked_fill(~allowed, -torch.inf) → end
""",
)


@bug(span_head, "a softmax is applied, though the loss expects scores")
def span_probabilities(X, S, E, allowed=None):
    return tuple(scores.softmax(dim=1) for scores in span_head(X, S, E, allowed))


@bug(span_head, "a softmax over the batch is applied, not over the tokens of a text")
def softmax_over_batch(X, S, E, allowed=None):
    return tuple(scores.softmax(dim=0) for scores in span_head(X, S, E, allowed))


mistakes(
    span_head,
    """
divided_scores: the scores are divided by √D, as in attention
    X @ S, X @ E → X @ S / len(S) ** 0.5, X @ E / len(E) ** 0.5
""",
)


@bug(span_head, "S scores both the starts and the ends")
def one_vector(X, S, E, allowed=None):
    return span_head(X, S, S, allowed)


@bug(span_head, "the scores are cosines: vectors are scaled to length 1 first")
def cosines(X, S, E, allowed=None):
    return span_head(F.normalize(X, dim=-1), F.normalize(S, dim=0), F.normalize(E, dim=0), allowed)


@bug(span_head, "the vectors go through a tanh first, as in the head for whole texts")
def with_tanh_first(X, S, E, allowed=None):
    return span_head(torch.tanh(X), S, E, allowed)


mistakes(
    BertPretraining,
    """
PairsDetached: no gradient goes from the head for pairs to the encoder
    nsp_head(X, → nsp_head(X.detach(),
    says: A gradient should go from nsp_logits to bert.
""",
)


@bug(pretraining_loss, "the softmax becomes 0 and its logarithm -∞", told_by="yours is inf")
def log_of_zero(words, goals, follows, kinds):
    chosen = goals != -100
    loss = F.nll_loss(follows.softmax(dim=1).log(), kinds)
    if chosen.any():
        loss = loss + F.nll_loss(words[chosen].softmax(dim=1).log(), goals[chosen])
    return loss


mistakes(
    SentenceClassifier,
    """
Frozen: the encoder is frozen when it starts from pretrained weights
    self.load_state_dict(own)
    → self.load_state_dict(own)
      self.bert.requires_grad_(False)
    says: SentenceClassifier.start_from changes which parameters of self learn
EncoderCut: no gradient goes back into the encoder
    self.bert(tokens, segments, lengths) → self.bert(tokens, segments, lengths).detach()
    says: A gradient should go from the logits to bert.
""",
)


@bug(nsp_head, "no gradient reaches the pooler", told_by="No gradient reaches W_P")
def pooler_detached(X, W_P, b_P, W, b):
    return nsp_head(X, W_P.detach(), b_P, W, b)


@bug(span_head, "no gradient reaches the encoder", told_by="No gradient reaches X")
def encoder_detached(X, S, E, allowed=None):
    return span_head(X.detach(), S, E, allowed)


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


mistakes(
    best_span,
    """
backwards_too: a span may end before it begins
    .triu() → .triu(1 - longest)
    is_span[0] = False → is_span[0] = is_span[:, 0] = False
    says: should end before it begins
""",
)

changed(
    best_span,
    "from_cls",
    "an answer may begin at [CLS] and end in the text",
    ("    is_span[0] = False\n", ""),
    classic=True,
)

mistakes(
    best_span,
    """
any_length: `longest` is not used
    .tril(longest - 1) →
    says: A span should have at most 4 words
one_too_long: an answer may have one word more than `longest`
    tril(longest - 1) → tril(longest)
    says: at most 4 words
one_too_short: an answer has one word less than `longest` at most
    tril(longest - 1) → tril(max(longest - 2, 0))
two_words: an answer of a single word is not allowed
    .triu() → .triu(1)
last_left_out: the last token of a text is never in an answer
    is_span[0] = False → is_span[0] = is_span[:, -1] = False
always: there is always an answer
    start[:, 0] + end[:, 0] + margin → -torch.inf
""",
)


@bug(best_span, "the margin is not used")
def no_margin(start, end, longest, margin=0.0):
    return best_span(start, end, longest)


@bug(best_span, "the margin is subtracted from the score of no answer, not added")
def other_margin(start, end, longest, margin=0.0):
    return best_span(start, end, longest, -margin)


mistakes(
    best_span,
    """
margin_alone: the margin alone decides: an answer's score is not compared with [CLS]
    start[:, 0] + end[:, 0] + margin → margin
half_of_cls: an answer is compared with the start's score of [CLS] alone
    start[:, 0] + end[:, 0] → start[:, 0]
multiplied: start and end are multiplied, not added
    [:, :, None] + end → [:, :, None] * end
""",
)


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


mistakes(
    load_bert,
    """
not_turned: attention's matrices are not transposed, though ours are x W and nn.Linear's x Wᵀ
    value.t() → value
* output_not_turned: W_O is not transposed
    = value.t() → = value if place.endswith("W_O") else value.t()
all_turned: all matrices of a layer are transposed, even those of nn.Linear
    ours[f"{prefix}{in_layers[place]}.{kind}"] = value
    → ours[f"{prefix}{in_layers[place]}.{kind}"] = value.t()
heads_turned: pooler and transform are transposed like attention's matrices
    ours[f"{outside[place]}.{kind}".removeprefix(".")] = value
    → value = value.t() if outside[place] in ("pooler", "transform") else value
      ours[f"{outside[place]}.{kind}".removeprefix(".")] = value
keys_first: queries and keys are mixed up
    "self.query": "Q", "self.key": "K" → "self.query": "K", "self.key": "Q"
values_first: values and keys are mixed up
    "self.key": "K", "self.value": "V" → "self.key": "V", "self.value": "K"
norms_mixed_up: the two norms of a layer are mixed up
    "attention.output.LayerNorm": "norm_1" → "attention.output.LayerNorm": "norm_2"
    "output.LayerNorm": "norm_2" → "output.LayerNorm": "norm_1"
heads_mixed_up: pooler and transform are mixed up
    "pooler.dense": "pooler" → "pooler.dense": "transform"
    transform.dense": "transform" → transform.dense": "pooler"
outer_norms: the norm of the embeddings and that of the head are mixed up
    "embeddings.LayerNorm": "bert.embeddings.norm" → "embeddings.LayerNorm": "norm"
    transform.LayerNorm": "norm" → transform.LayerNorm": "bert.embeddings.norm"
gains_and_biases: gain and bias of the norms are mixed up
    {"gamma": "weight", "beta": "bias"}.get(kind, kind)
    → {"gamma": "bias", "beta": "weight", "weight": "bias", "bias": "weight"}[kind]
""",
)


@bug(load_bert, "every layer gets the weights of the first")
def first_layer(state):
    ours = load_bert(state)
    for name in ours:
        if name.startswith("bert.layers."):
            ours[name] = ours["bert.layers.0." + name.split(".", 3)[3]]
    return ours


changed(
    load_bert,
    "order_of_text",
    "layers are sorted as text, so that 10 comes before 2",
    (
        "    ours = {}\n",
        '    numbers = {name.partition("encoder.layer.")[2].partition(".")[0] for name in state}\n'
        '    ours, numbers = {}, sorted(numbers - {""})\n',
    ),
    ('f"bert.layers.{number}."', 'f"bert.layers.{numbers.index(number)}."'),
)


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

black_box(
    pretraining_loss,
    "mean_of_means",
    curve="curves[0].tolist()",
    label="loss in nats, mean of 25 steps",
    after="pretrained, vocabularies, curves",
)

wrong_answers(pretraining_loss_fault, "D")
mistakes(
    pretraining_loss_fault,
    """
as_many: both texts have one chosen word
    [[0, 0] → [[0, -100]
    says: With these arguments the black box gives what is right
all_alike: all words are equally uncertain
    9.0 → 0.0
    says: With these arguments the black box gives what is right
targets_of_one_text: the targets have no axis of texts
    torch.tensor([[0, 0], [0, -100]]) → torch.tensor([0, 0])
    says: pretraining_loss raised ValueError
one_logit: the pairs have a single logit
    torch.zeros(2, 2), torch → torch.zeros(2, 1), torch
    says: pretraining_loss raised ValueError
third_class: a pair's class is 2
    [0, 1] → [0, 2]
    says: pretraining_loss raised IndexError
no_pairs: the arguments of the pairs are missing
    (words, targets, torch.zeros(2, 2), torch.tensor([0, 1])) → (words, targets)
    says: pretraining_loss raised TypeError
""",
)
