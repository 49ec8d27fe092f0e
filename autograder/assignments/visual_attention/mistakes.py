"""Known wrong solutions of visual_attention."""

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import changed, equivalent, mistakes
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

mistakes(
    grid_features,
    """
* reshaped: the maps are reshaped to (B, L, D) without exchanging axes
    .mT → .reshape(len(maps), -1, maps.shape[1])
not_transposed: the axes are left as they are: (B, D, L)
    .mT →
    says: a should have shape
columns_first: locations are numbered column by column instead of row by row
    maps.flatten → maps.mT.flatten
backwards: locations are numbered from the lower right
    .mT → .mT.flip(1)
upside_down: rows are numbered from the bottom
    maps.flatten → maps.flip(2).flatten
mirrored: columns are numbered from the right
    maps.flatten → maps.flip(3).flatten
features_reversed: the order of the features is reversed
    maps.flatten → maps.flip(1).flatten
mean_of_rows: rows are averaged away
    flatten(2) → mean(dim=2)
    says: a should have shape
one_axis: pictures and locations share one axis
    .mT → .mT.flatten(0, 1)
    says: a should have shape
""",
)

mistakes(
    soft_attention,
    """
* over_the_batch: the softmax runs over the batch instead of the locations
    e, dim=1 → e, dim=0
no_softmax: the scores themselves are the weights, without a softmax
    torch.softmax(e, dim=1) → e
sigmoids: the scores go through σ instead of a softmax
    torch.softmax(e, dim=1) → torch.sigmoid(e)
mean_instead_of_sum: the weights are divided by the number of locations again
    a).sum( → a).mean(
not_normalised: the exponentials are not normalised
    torch.softmax(e, dim=1) → torch.exp(e)
plain_mean: the locations are averaged, whatever the scores
    (p[:, :, None] * a).sum(dim=1) → a.mean(dim=1)
of_minus_e: the softmax is taken of -e, so that low scores count most
    softmax(e, dim → softmax(-e, dim
only_the_best: only the location with the largest weight is used
    (p[:, :, None] * a).sum(dim=1) → a[torch.arange(len(a)), p.argmax(dim=1)]
twice: the softmax is taken twice
    softmax(e, dim=1) → softmax(e, dim=1).softmax(dim=1)
detached: the weights are detached, so that the scores cannot learn
    (p[:, → (p.detach()[:,
    says: No gradient reaches e
detached_weights: the weights that are returned are detached, so that no penalty can train them
    a).sum(dim=1), p → a).sum(dim=1), p.detach()
    says: No gradient goes back from p:
one_maximum: the largest score of all pictures is subtracted, not each picture's own
    torch.softmax(e, dim=1)
    → torch.exp(e - e.max())
      p = p / p.sum(dim=1, keepdim=True)
logarithms: the logarithms of the weights are returned instead of the weights
    a).sum(dim=1), p → a).sum(dim=1), p.log()
* overflows: exp overflows because the largest score is not subtracted
    torch.softmax(e, dim=1) → torch.exp(e) / torch.exp(e).sum(dim=1, keepdim=True)
    says: is nan
""",
)

mistakes(
    hard_attention,
    """
always_the_best: the best location is taken even when it should sample
    if sample: → if False:
    says: should be drawn in a share of
always_drawn: a location is drawn even when it should take the best
    if sample: → if True:
    says: should be -0.
""",
)

changed(
    hard_attention,
    "drawn_by_numpy",
    "numpy draws, with a generator that torch's seed does not reach",
    (
        "s = torch.multinomial(p.detach(), num_samples=1)[:, 0]",
        "import numpy\n"
        "\n"
        "        rows, draw = p.detach().double().numpy(), numpy.random.default_rng().choice\n"
        "        s = torch.tensor([draw(len(row), p=row / row.sum()) for row in rows])",
    ),
    told_by="does torch draw them?",
)

mistakes(
    hard_attention,
    """
drawn_evenly: locations are drawn evenly, not by their weights
    p.detach() → torch.ones_like(p)
    says: should be drawn in a share of
soft: z is the blend of soft attention
    a[pictures, s] → (p[:, :, None] * a).sum(dim=1)
    says: is those of none
weighted: z is the chosen location times its weight
    a[pictures, s] → a[pictures, s] * p[pictures, s][:, None]
    says: is those of none
not_a_logarithm: p_s is returned instead of log p_s
    log_p[pictures, s] → p[pictures, s]
logarithm_of_the_best: log p_s is the largest log p, whatever was drawn
    log_p[pictures, s] → log_p.amax(dim=1)
    says: log_p[
bare_score: log p_s is the score of s, before the softmax
    log_p[pictures, s] → e[pictures, s]
detached: log p_s is detached, so that REINFORCE cannot learn
    log_p[pictures, s] → log_p[pictures, s].detach()
    says: No gradient goes back from log_p
* logarithm_of_softmax: the logarithm is taken of weights that have become zero
    log_p[pictures, s] → torch.softmax(e, dim=1).log()[pictures, s]
    says: yours is nan
shifted: a small number is added to the weights before the logarithm
    log_p[pictures, s] → (p + 1e-3).log()[pictures, s]
    says: log_p[
one_for_all: one location is drawn for the whole batch
    torch.multinomial(p.detach(), num_samples=1)[:, 0]
    → (p.cumsum(dim=1) < torch.rand(1)).sum(dim=1).clamp(max=e.shape[1] - 1)
    says: Pictures should have draws of their own
seeded: the generator is seeded in every call, so that all draws are the same
    log_p = torch
    → torch.manual_seed(0)
      log_p = torch
    says: sets torch's seed
straight_through: z carries a gradient to e: that of soft attention (a straight-through estimate)
    return a[pictures, s]
    → soft = (p[:, :, None] * a).sum(dim=1)
      return a[pictures, s].detach() + soft - soft.detach()
    says: gradient of a
""",
)


equivalent(
    hard_attention,
    "pictures = torch.arange(len(s), device=s.device) → pictures = torch.arange(len(s))",
    "indices on the CPU may index tensors on any device; the argument saves a copy",
)

mistakes(
    doubly_stochastic_penalty,
    """
* mask_ignored: the mask is ignored: padding counts as looking
    (p * mask[:, :, None]) → p
mask_inverted: the mask is inverted: only padding counts
    * mask → * ~mask
over_the_locations: the weights are summed over the locations instead of over time
    None]).sum(dim=1) → None]).sum(dim=2)
no_square: the square is left out
    .square() →
absolute: the absolute value is taken instead of the square
    .square() → .abs()
squares_inside: each word's weight is squared before the sum over time
    (p * mask → ((1 - p).square() * mask
    (1 - looked).square() → looked
mean_over_time: the weights are averaged over time instead of summed
    None]).sum( → None]).mean(
mean_over_locations: the locations are averaged instead of summed
    .sum(dim=1).mean() → .mean()
summed: the pictures are summed instead of averaged
    .sum(dim=1).mean() → .sum()
one_for_each: one penalty for each picture is returned
    .sum(dim=1).mean() → .sum(dim=1)
    says: penalty should have shape ()
number_of_words: every location is to get words / L in sum, not one
    (1 - looked) → (mask.sum(dim=1, keepdim=True) / p.shape[2] - looked)
detached: the weights are detached, so that the penalty teaches nothing
    (p * mask → (p.detach() * mask
    says: No gradient goes back from the penalty
""",
)

black_box(
    doubly_stochastic_penalty,
    "number_of_words",
    curve="penalised.losses",
    label="loss and penalty",
)

wrong_answers(doubly_stochastic_penalty_fault, "C")
mistakes(
    doubly_stochastic_penalty_fault,
    """
one_word: there are as many words as locations
    ones(1, 2, 1), torch.ones(1, 2, d → ones(1, 1, 1), torch.ones(1, 1, d
    says: With these arguments the black box gives what is right
one_counts: one of the two words is padding, so that as many words as locations are left
    torch.ones(1, 2, dtype=torch.bool) → torch.tensor([[True, False]])
    says: With these arguments the black box gives what is right
other_length: the mask is longer than the weights
    torch.ones(1, 2, d → torch.ones(1, 3, d
    says: doubly_stochastic_penalty raised ValueError
mask_of_numbers: the mask holds numbers
    dtype=torch.bool → dtype=torch.float32
    says: doubly_stochastic_penalty raised ValueError
no_locations: the weights have no axis of locations
    ones(1, 2, 1) → ones(1, 2)
    says: doubly_stochastic_penalty raised ValueError
no_mask: the mask is missing
    (p, mask) → (p,)
    says: doubly_stochastic_penalty raised TypeError
""",
)

mistakes(
    CaptionDecoder,
    """
NoTanh: the tanh of the attention's hidden layer is left out
    torch.tanh(self.W_a → (self.W_a
BlindAttention: the attention does not see h_{t-1}
    self.W_h(h) → self.W_h(0 * h)
AsksTheCell: the attention uses c_{t-1} instead of h_{t-1}
    self.W_h(h) → self.W_h(c)
""",
)

changed(
    CaptionDecoder,
    "LooksAfterwards",
    "the attention uses h_t: the LSTM is updated before it looks",
    (
        "        return self.output",
        "        e = self.v(torch.tanh(self.W_a(a) + self.W_h(h)[:, None]))[:, :, 0]\n"
        "        if self.hard:\n"
        "            z, p, log_p = hard_attention(e, a, sample=self.training)\n"
        "        else:\n"
        "            z, p = soft_attention(e, a)\n"
        "        return self.output",
    ),
    classic=True,
)

mistakes(
    CaptionDecoder,
    """
ContextFirst: z comes before the word's embedding in the LSTM's input
    [self.embedding(word), z] → [z, self.embedding(word)]
ContextNotRead: z does not enter the LSTM
    [self.embedding(word), z] → [self.embedding(word), 0 * z]
WordNotRead: the word does not enter the LSTM
    [self.embedding(word), z] → [0 * self.embedding(word), z]
OutputReversed: z comes before h_t in the output layer
    [h, z] → [z, h]
OldStateReadOut: the words are scored from h_{t-1} instead of h_t
    h, c = self.lstm → state = self.lstm
    (h, c), p, → state, p,
* Probabilities: probabilities are returned instead of scores: the softmax belongs to the loss
    [h, z], dim=1)) → [h, z], dim=1)).softmax(dim=1)
NothingCarried: every step starts from the first state again
    scores, state, p, log_p = → scores, _, p, log_p =
StartsAtZero: the first state is zero, not that of `start`
    self.start(a) → tuple(0 * part for part in self.start(a))
* ReadsAhead: each step reads the word that it should predict
    captions[:, :-1] → captions[:, 1:]
OneStepTooMany: the last word is read too, and a word after it is predicted
    captions[:, :-1] → captions
    says: p should have shape
AlwaysDraws: the location is drawn at random in evaluation mode too
    , sample=self.training →
    says: should be
NeverDraws: the best location is taken in training mode too
    sample=self.training → sample=False
    says: In training s should be drawn
AlwaysSoft: attention is soft even when it should be hard
    z, p, log_p = hard_attention(e, a, sample=self.training)
    → z, p = soft_attention(e, a)
      log_p = p.amax(dim=1).log()
Detached: the state is detached at every step, so that no gradient passes through time
    (h, c), p, → (h.detach(), c.detach()), p,
DetachedWeights: the weights that are returned are detached, so that no penalty can train them
    (h, c), p, → (h, c), p.detach(),
    says: No gradient goes back from p:
NoLogP: `forward` gives zeros for log p even with hard attention
    (scores, p, log_p) → (scores, p, torch.zeros_like(log_p))
    says: yours is 0 (30 of 30 entries differ)
DetachedLogP: `forward` detaches log p, so that no choice can be learnt
    (scores, p, log_p) → (scores, p, log_p.detach())
    says: No gradient goes back from log_p:
LogPSoFar: `forward` adds log p up from step to step
    (scores, p, log_p) → (scores, p, log_p + steps[-1][2] if steps else log_p)
LogPOfSoft: `forward` gives log p of the best locations even with soft attention
    (scores, p, log_p) → (scores, p, p.amax(dim=1).log())
KeptPictures: W_a a is computed for the first pictures, and kept for all others
    e = self.v(
    → if not hasattr(self, "kept") or self.kept.shape != a.shape:
          self.kept = a
      e = self.v(
    self.W_a(a) → self.W_a(self.kept)
""",
)

mistakes(
    reinforce_loss,
    """
* not_detached: the reward is not detached, so that log p_t also pushes the words
    (reward - baseline) → (R - baseline)
* wrong_sign: the sign is wrong: choices that brought more become rarer
    -(R + (reward → -(R - (reward
* objective: the whole loss has the wrong sign: it is the objective to maximise
    return -( → return (
no_baseline: the baseline is left out
    (reward - baseline) → reward
baseline_added: the baseline is added instead of subtracted
    (reward - baseline) → (reward + baseline)
choices_alone: the first term is missing, so that the words learn nothing
    -(R + (reward → -(0 * R + (reward
words_alone: the second term is missing, so that the choices learn nothing
    (reward - baseline) * chosen → 0 * chosen
mask_ignored: the mask is ignored: padding counts
    (log_y * mask) → log_y
    (log_p * mask) → log_p
choices_not_masked: the mask is applied to the words, but not to the choices
    (log_p * mask) → log_p
own_word_only: each choice gets the reward of its own word instead of the whole caption's
    (log_p * mask) → ((log_y.detach() - baseline) * log_p * mask)
    (reward - baseline) * chosen → chosen
summed: the pictures are summed instead of averaged
    .mean() → .sum()
mean_over_words: words are averaged instead of summed
    (log_y * mask).sum(dim=1) → (log_y * mask).sum(dim=1) / mask.sum(dim=1)
    (log_p * mask).sum(dim=1) → (log_p * mask).sum(dim=1) / mask.sum(dim=1)
mean_reward: every choice is weighed by the mean reward of the batch, not by its picture's
    (reward - baseline) → (reward.mean() - baseline)
probabilities: p_t itself is multiplied instead of log p_t
    (log_p * mask) → (log_p.exp() * mask)
reward_with_gradient: R is returned with its gradient
    .mean(), reward → .mean(), R
    says: R should carry no gradient
""",
)

mistakes(
    update_baseline,
    """
exchanged: decay and 1 - decay are exchanged
    decay * baseline + (1 - decay) * mean → (1 - decay) * baseline + decay * mean
forgets: the old baseline is forgotten: b is the mean of the batch
    mean if baseline is None else decay * baseline + (1 - decay) * mean → mean
never_learns: the old baseline is kept as it is: nothing new is added
    decay * baseline + (1 - decay) * mean → baseline
summed: the rewards are summed instead of averaged
    R.mean() → R.sum()
not_weighted: the mean is added without the factor 1 - decay
    (1 - decay) * mean → mean
starts_at_zero: the first baseline is zero instead of the mean of the batch
    mean if baseline is None else decay * baseline → decay * (baseline or 0.0)
    says: b sh
fixed_decay: the decay is always 0.9, whatever was asked for
    mean = R
    → decay = 0.9
      mean = R
largest: the largest reward is taken instead of the mean
    R.mean() → R.max()
absolute: the sign of the reward is lost
    R.mean() → R.abs().mean()
* zero_is_none: a baseline of zero is treated as none
    baseline is None → not baseline
    says: b after 0 should be
* keeps_the_graph: a tensor with its graph is returned, not a number
    .item() →
    says: b should be a Python number
""",
)
