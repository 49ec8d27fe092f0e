"""Known wrong solutions of visual_attention."""

import numpy as np
import torch

from autograder.bugs import bug, equivalent
from course_pkg.visual_attention import (
    CaptionDecoder,
    doubly_stochastic_penalty,
    grid_features,
    hard_attention,
    reinforce_loss,
    soft_attention,
    update_baseline,
)


@bug(grid_features, "the maps are reshaped to (B, L, D) without exchanging axes", classic=True)
def reshaped(maps):
    B, D, R, C = maps.shape
    return maps.reshape(B, R * C, D)


@bug(
    grid_features,
    "the axes are left as they are: (B, D, L)",
    told_by="a should have shape",
)
def not_transposed(maps):
    return maps.flatten(2)


@bug(grid_features, "locations are numbered column by column instead of row by row")
def columns_first(maps):
    return maps.transpose(2, 3).flatten(2).mT


@bug(grid_features, "locations are numbered from the lower right")
def backwards(maps):
    return maps.flatten(2).mT.flip(1)


@bug(grid_features, "rows are numbered from the bottom")
def upside_down(maps):
    return maps.flip(2).flatten(2).mT


@bug(grid_features, "columns are numbered from the right")
def mirrored(maps):
    return maps.flip(3).flatten(2).mT


@bug(grid_features, "the order of the features is reversed")
def features_reversed(maps):
    return maps.flip(1).flatten(2).mT


@bug(
    grid_features,
    "rows are averaged away",
    told_by="a should have shape",
)
def mean_of_rows(maps):
    return maps.mean(dim=2).mT


@bug(
    grid_features,
    "pictures and locations share one axis",
    told_by="a should have shape",
)
def one_axis(maps):
    return maps.permute(0, 2, 3, 1).flatten(0, 2)


def blend(p, a):
    return torch.einsum("bl,bld->bd", p, a)


@bug(soft_attention, "the softmax runs over the batch instead of the locations", classic=True)
def over_the_batch(e, a):
    p = torch.softmax(e, dim=0)
    return blend(p, a), p


@bug(soft_attention, "the scores themselves are the weights, without a softmax")
def no_softmax(e, a):
    return blend(e, a), e


@bug(soft_attention, "the scores go through σ instead of a softmax")
def sigmoids(e, a):
    p = torch.sigmoid(e)
    return blend(p, a), p


@bug(soft_attention, "the weights are divided by the number of locations again")
def mean_instead_of_sum(e, a):
    p = torch.softmax(e, dim=1)
    return (p[:, :, None] * a).mean(dim=1), p


@bug(soft_attention, "the exponentials are not normalised")
def not_normalised(e, a):
    p = torch.exp(e)
    return blend(p, a), p


@bug(soft_attention, "the locations are averaged, whatever the scores")
def plain_mean(e, a):
    return a.mean(dim=1), torch.softmax(e, dim=1)


@bug(soft_attention, "the softmax is taken of -e, so that low scores count most")
def of_minus_e(e, a):
    p = torch.softmax(-e, dim=1)
    return blend(p, a), p


@bug(soft_attention, "only the location with the largest weight is used")
def only_the_best(e, a):
    p = torch.softmax(e, dim=1)
    return a[torch.arange(len(a)), p.argmax(dim=1)], p


@bug(soft_attention, "the softmax is taken twice")
def twice(e, a):
    p = torch.softmax(torch.softmax(e, dim=1), dim=1)
    return blend(p, a), p


@bug(
    soft_attention,
    "the weights are detached, so that the scores cannot learn",
    told_by="No gradient reaches e",
)
def detached(e, a):
    p = torch.softmax(e, dim=1)
    return blend(p.detach(), a), p


@bug(
    soft_attention,
    "the weights that are returned are detached, so that no penalty can train them",
    told_by="No gradient goes back from p:",
)
def detached_weights(e, a):
    z, p = soft_attention(e, a)
    return z, p.detach()


@bug(soft_attention, "the largest score of all pictures is subtracted, not each picture's own")
def one_maximum(e, a):
    p = torch.exp(e - e.max())
    p = p / p.sum(dim=1, keepdim=True)
    return blend(p, a), p


@bug(soft_attention, "the logarithms of the weights are returned instead of the weights")
def logarithms(e, a):
    p = torch.softmax(e, dim=1)
    return blend(p, a), p.log()


@bug(
    soft_attention,
    "exp overflows because the largest score is not subtracted",
    told_by="is nan",
    classic=True,
)
def overflows(e, a):
    p = torch.exp(e) / torch.exp(e).sum(dim=1, keepdim=True)
    return blend(p, a), p


def pick(e, a, s):
    rows = torch.arange(len(e))
    log_p = torch.log_softmax(e, dim=1)
    return a[rows, s], log_p.exp(), log_p[rows, s]


def draw(e, sample):
    p = torch.softmax(e, dim=1).detach()
    return torch.multinomial(p, 1)[:, 0] if sample else p.argmax(dim=1)


@bug(
    hard_attention,
    "the best location is taken even when it should sample",
    told_by="should be drawn in a share of",
)
def always_the_best(e, a, sample=True):
    return pick(e, a, draw(e, False))


@bug(
    hard_attention,
    "a location is drawn even when it should take the best",
    told_by="should be -0.",
)
def always_drawn(e, a, sample=True):
    return pick(e, a, draw(e, True))


@bug(
    hard_attention,
    "numpy draws, with a generator that torch's seed does not reach",
    told_by="does torch draw them?",
)
def drawn_by_numpy(e, a, sample=True):
    p = torch.softmax(e.double(), dim=1).detach().numpy()
    drawn = [np.random.default_rng().choice(len(row), p=row / row.sum()) for row in p]
    return pick(e, a, torch.tensor(drawn) if sample else draw(e, False))


@bug(
    hard_attention,
    "locations are drawn evenly, not by their weights",
    told_by="should be drawn in a share of",
)
def drawn_evenly(e, a, sample=True):
    return pick(e, a, draw(0 * e, sample) if sample else draw(e, False))


@bug(
    hard_attention,
    "z is the blend of soft attention",
    told_by="is those of none",
)
def soft(e, a, sample=True):
    s = draw(e, sample)
    _, p, log_p = pick(e, a, s)
    return blend(p, a), p, log_p


@bug(
    hard_attention,
    "z is the chosen location times its weight",
    told_by="is those of none",
)
def weighted(e, a, sample=True):
    z, p, log_p = pick(e, a, draw(e, sample))
    return z * log_p.exp()[:, None], p, log_p


@bug(hard_attention, "p_s is returned instead of log p_s")
def not_a_logarithm(e, a, sample=True):
    z, p, log_p = pick(e, a, draw(e, sample))
    return z, p, log_p.exp()


@bug(hard_attention, "log p_s is the largest log p, whatever was drawn", told_by="log_p[")
def logarithm_of_the_best(e, a, sample=True):
    z, p, _ = pick(e, a, draw(e, sample))
    return z, p, torch.log_softmax(e, dim=1).amax(dim=1)


@bug(hard_attention, "log p_s is the score of s, before the softmax")
def bare_score(e, a, sample=True):
    s = draw(e, sample)
    z, p, _ = pick(e, a, s)
    return z, p, e[torch.arange(len(e)), s]


@bug(
    hard_attention,
    "log p_s is detached, so that REINFORCE cannot learn",
    told_by="No gradient goes back from log_p",
)
def detached(e, a, sample=True):
    z, p, log_p = pick(e, a, draw(e, sample))
    return z, p, log_p.detach()


@bug(
    hard_attention,
    "the logarithm is taken of weights that have become zero",
    told_by="yours is nan",
    classic=True,
)
def logarithm_of_softmax(e, a, sample=True):
    s = draw(e, sample)
    z, p, _ = pick(e, a, s)
    return z, p, torch.softmax(e, dim=1).log()[torch.arange(len(e)), s]


@bug(
    hard_attention,
    "a small number is added to the weights before the logarithm",
    told_by="log_p[",
)
def shifted(e, a, sample=True):
    s = draw(e, sample)
    z, p, _ = pick(e, a, s)
    return z, p, (p + 1e-3).log()[torch.arange(len(e)), s]


@bug(
    hard_attention,
    "one location is drawn for the whole batch",
    told_by="Pictures should have draws of their own",
)
def one_for_all(e, a, sample=True):
    if not sample:
        return pick(e, a, draw(e, False))
    p = torch.softmax(e, dim=1).detach()
    u = torch.rand(1)
    return pick(e, a, (p.cumsum(dim=1) < u).sum(dim=1).clamp(max=e.shape[1] - 1))


@bug(
    hard_attention,
    "the generator is seeded in every call, so that all draws are the same",
    told_by="sets torch's seed",
)
def seeded(e, a, sample=True):
    torch.manual_seed(0)
    return pick(e, a, draw(e, sample))


@bug(
    hard_attention,
    "z carries a gradient to e: that of soft attention (a straight-through estimate)",
    told_by="gradient of a",
)
def straight_through(e, a, sample=True):
    z, p, log_p = pick(e, a, draw(e, sample))
    z_soft = blend(p, a)
    return z.detach() + z_soft - z_soft.detach(), p, log_p


equivalent(
    hard_attention,
    "pictures = torch.arange(len(s), device=s.device) → pictures = torch.arange(len(s))",
    "indices on the CPU may index tensors on any device; the argument saves a copy",
)


def penalise(looked):
    return (1 - looked).square().sum(dim=1).mean()


@bug(doubly_stochastic_penalty, "the mask is ignored: padding counts as looking", classic=True)
def mask_ignored(p, mask):
    return penalise(p.sum(dim=1))


@bug(doubly_stochastic_penalty, "the mask is inverted: only padding counts")
def mask_inverted(p, mask):
    return penalise((p * ~mask[:, :, None]).sum(dim=1))


@bug(doubly_stochastic_penalty, "the weights are summed over the locations instead of over time")
def over_the_locations(p, mask):
    return penalise((p * mask[:, :, None]).sum(dim=2))


@bug(doubly_stochastic_penalty, "the square is left out")
def no_square(p, mask):
    return (1 - (p * mask[:, :, None]).sum(dim=1)).sum(dim=1).mean()


@bug(doubly_stochastic_penalty, "the absolute value is taken instead of the square")
def absolute(p, mask):
    return (1 - (p * mask[:, :, None]).sum(dim=1)).abs().sum(dim=1).mean()


@bug(doubly_stochastic_penalty, "each word's weight is squared before the sum over time")
def squares_inside(p, mask):
    return ((1 - p).square() * mask[:, :, None]).sum(dim=(1, 2)).mean()


@bug(doubly_stochastic_penalty, "the weights are averaged over time instead of summed")
def mean_over_time(p, mask):
    return penalise((p * mask[:, :, None]).mean(dim=1))


@bug(doubly_stochastic_penalty, "the locations are averaged instead of summed")
def mean_over_locations(p, mask):
    return (1 - (p * mask[:, :, None]).sum(dim=1)).square().mean()


@bug(doubly_stochastic_penalty, "the pictures are summed instead of averaged")
def summed(p, mask):
    return (1 - (p * mask[:, :, None]).sum(dim=1)).square().sum()


@bug(
    doubly_stochastic_penalty,
    "one penalty for each picture is returned",
    told_by="penalty should have shape ()",
)
def one_for_each(p, mask):
    return (1 - (p * mask[:, :, None]).sum(dim=1)).square().sum(dim=1)


@bug(doubly_stochastic_penalty, "every location is to get words / L in sum, not one")
def number_of_words(p, mask):
    looked = (p * mask[:, :, None]).sum(dim=1)
    return (mask.sum(dim=1, keepdim=True) / p.shape[2] - looked).square().sum(dim=1).mean()


@bug(
    doubly_stochastic_penalty,
    "the weights are detached, so that the penalty teaches nothing",
    told_by="No gradient goes back from the penalty",
)
def detached(p, mask):
    return doubly_stochastic_penalty(p.detach(), mask)


class Decoder(CaptionDecoder):
    """The decoder in parts, for bugs to replace."""

    def scores_of_locations(self, a, h):
        return self.v(torch.tanh(self.W_a(a) + self.W_h(h)[:, None]))[:, :, 0]

    def look(self, e, a):
        if self.hard:
            return hard_attention(e, a, sample=self.training)
        z, p = soft_attention(e, a)
        return z, p, torch.zeros_like(e[:, 0])

    def advance(self, word, z, h, c):
        return self.lstm(torch.cat([self.embedding(word), z], dim=1), (h, c))

    def read_out(self, h, z):
        return self.output(torch.cat([h, z], dim=1))

    def step(self, word, state, a):
        h, c = state
        z, p, log_p = self.look(self.scores_of_locations(a, h), a)
        h, c = self.advance(word, z, h, c)
        return self.read_out(h, z), (h, c), p, log_p

    def words_read(self, captions):
        return captions[:, :-1].unbind(dim=1)

    def forward(self, a, captions):
        state, steps = self.start(a), []
        for word in self.words_read(captions):
            scores, state, p, log_p = self.step(word, state, a)
            steps.append((scores, p, log_p))
        return tuple(torch.stack(part, dim=1) for part in zip(*steps, strict=True))


@bug(CaptionDecoder, "the tanh of the attention's hidden layer is left out")
class NoTanh(Decoder):
    def scores_of_locations(self, a, h):
        return self.v(self.W_a(a) + self.W_h(h)[:, None])[:, :, 0]


@bug(CaptionDecoder, "the attention does not see h_{t-1}")
class BlindAttention(Decoder):
    def scores_of_locations(self, a, h):
        return self.v(torch.tanh(self.W_a(a) + self.W_h(0 * h)[:, None]))[:, :, 0]


@bug(CaptionDecoder, "the attention uses c_{t-1} instead of h_{t-1}")
class AsksTheCell(Decoder):
    def step(self, word, state, a):
        h, c = state
        z, p, log_p = self.look(self.scores_of_locations(a, c), a)
        h, c = self.advance(word, z, h, c)
        return self.read_out(h, z), (h, c), p, log_p


@bug(CaptionDecoder, "the attention uses h_t: the LSTM is updated before it looks", classic=True)
class LooksAfterwards(Decoder):
    def step(self, word, state, a):
        h, c = state
        h, c = self.advance(word, self.look(self.scores_of_locations(a, h), a)[0], h, c)
        z, p, log_p = self.look(self.scores_of_locations(a, h), a)
        return self.read_out(h, z), (h, c), p, log_p


@bug(CaptionDecoder, "z comes before the word's embedding in the LSTM's input")
class ContextFirst(Decoder):
    def advance(self, word, z, h, c):
        return self.lstm(torch.cat([z, self.embedding(word)], dim=1), (h, c))


@bug(CaptionDecoder, "z does not enter the LSTM")
class ContextNotRead(Decoder):
    def advance(self, word, z, h, c):
        return self.lstm(torch.cat([self.embedding(word), 0 * z], dim=1), (h, c))


@bug(CaptionDecoder, "the word does not enter the LSTM")
class WordNotRead(Decoder):
    def advance(self, word, z, h, c):
        return self.lstm(torch.cat([0 * self.embedding(word), z], dim=1), (h, c))


@bug(CaptionDecoder, "z comes before h_t in the output layer")
class OutputReversed(Decoder):
    def read_out(self, h, z):
        return self.output(torch.cat([z, h], dim=1))


@bug(CaptionDecoder, "the words are scored from h_{t-1} instead of h_t")
class OldStateReadOut(Decoder):
    def step(self, word, state, a):
        h, c = state
        z, p, log_p = self.look(self.scores_of_locations(a, h), a)
        scores = self.read_out(h, z)
        return scores, self.advance(word, z, h, c), p, log_p


@bug(
    CaptionDecoder,
    "probabilities are returned instead of scores: the softmax belongs to the loss",
    classic=True,
)
class Probabilities(Decoder):
    def read_out(self, h, z):
        return torch.softmax(super().read_out(h, z), dim=1)


@bug(CaptionDecoder, "every step starts from the first state again")
class NothingCarried(Decoder):
    def forward(self, a, captions):
        state = self.start(a)
        steps = [self.step(word, state, a) for word in self.words_read(captions)]
        scores, _, p, log_p = zip(*steps, strict=True)
        return tuple(torch.stack(part, dim=1) for part in (scores, p, log_p))


@bug(CaptionDecoder, "the first state is zero, not that of `start`")
class StartsAtZero(Decoder):
    def start(self, a):
        h, c = super().start(a)
        return 0 * h, 0 * c


@bug(CaptionDecoder, "each step reads the word that it should predict", classic=True)
class ReadsAhead(Decoder):
    def words_read(self, captions):
        return captions[:, 1:].unbind(dim=1)


@bug(
    CaptionDecoder,
    "the last word is read too, and a word after it is predicted",
    told_by="scores should have shape",
)
class OneStepTooMany(Decoder):
    def words_read(self, captions):
        return captions.unbind(dim=1)

    def forward(self, a, captions):
        scores, p, log_p = super().forward(a, captions)
        return scores, p[:, :-1], log_p[:, :-1]


@bug(
    CaptionDecoder,
    "the location is drawn at random in evaluation mode too",
    told_by="should be",
)
class AlwaysDraws(Decoder):
    def look(self, e, a):
        return hard_attention(e, a) if self.hard else super().look(e, a)


@bug(
    CaptionDecoder,
    "the best location is taken in training mode too",
    told_by="In training s should be drawn",
)
class NeverDraws(Decoder):
    def look(self, e, a):
        return hard_attention(e, a, sample=False) if self.hard else super().look(e, a)


@bug(CaptionDecoder, "attention is soft even when it should be hard")
class AlwaysSoft(Decoder):
    def look(self, e, a):
        z, p = soft_attention(e, a)
        log_p = p.amax(dim=1).log() if self.hard else torch.zeros_like(e[:, 0])
        return z, p, log_p


@bug(CaptionDecoder, "the state is detached at every step, so that no gradient passes through time")
class Detached(Decoder):
    def step(self, word, state, a):
        scores, (h, c), p, log_p = super().step(word, state, a)
        return scores, (h.detach(), c.detach()), p, log_p


@bug(
    CaptionDecoder,
    "the weights that are returned are detached, so that no penalty can train them",
    told_by="No gradient goes back from p:",
)
class DetachedWeights(Decoder):
    def step(self, word, state, a):
        scores, state, p, log_p = super().step(word, state, a)
        return scores, state, p.detach(), log_p


@bug(
    CaptionDecoder,
    "`forward` gives zeros for log p even with hard attention",
    told_by="yours is 0 (30 of 30 entries differ)",
)
class NoLogP(Decoder):
    def forward(self, a, captions):
        scores, p, log_p = super().forward(a, captions)
        return scores, p, torch.zeros_like(log_p)


@bug(
    CaptionDecoder,
    "`forward` detaches log p, so that no choice can be learnt",
    told_by="No gradient goes back from log_p:",
)
class DetachedLogP(Decoder):
    def forward(self, a, captions):
        scores, p, log_p = super().forward(a, captions)
        return scores, p, log_p.detach()


@bug(CaptionDecoder, "`forward` adds log p up from step to step")
class LogPSoFar(Decoder):
    def forward(self, a, captions):
        scores, p, log_p = super().forward(a, captions)
        return scores, p, log_p.cumsum(dim=1)


@bug(CaptionDecoder, "`forward` gives log p of the best locations even with soft attention")
class LogPOfSoft(Decoder):
    def forward(self, a, captions):
        scores, p, _ = super().forward(a, captions)
        return scores, p, p.amax(dim=2).log()


@bug(CaptionDecoder, "W_a a is computed for the first pictures, and kept for all others")
class KeptPictures(Decoder):
    def scores_of_locations(self, a, h):
        if not hasattr(self, "kept") or self.kept.shape != a.shape:
            self.kept = a
        return super().scores_of_locations(self.kept, h)


def parts_of_loss(log_y, log_p, mask):
    return (log_y * mask).sum(dim=1), (log_p * mask).sum(dim=1)


@bug(
    reinforce_loss,
    "the reward is not detached, so that log p_t also pushes the words",
    classic=True,
)
def not_detached(log_y, log_p, mask, baseline):
    R, chosen = parts_of_loss(log_y, log_p, mask)
    return -(R + (R - baseline) * chosen).mean(), R.detach()


@bug(reinforce_loss, "the sign is wrong: choices that brought more become rarer", classic=True)
def wrong_sign(log_y, log_p, mask, baseline):
    R, chosen = parts_of_loss(log_y, log_p, mask)
    return -(R - (R.detach() - baseline) * chosen).mean(), R.detach()


@bug(
    reinforce_loss,
    "the whole loss has the wrong sign: it is the objective to maximise",
    classic=True,
)
def objective(log_y, log_p, mask, baseline):
    R, chosen = parts_of_loss(log_y, log_p, mask)
    return (R + (R.detach() - baseline) * chosen).mean(), R.detach()


@bug(reinforce_loss, "the baseline is left out")
def no_baseline(log_y, log_p, mask, baseline):
    return reinforce_loss(log_y, log_p, mask, 0.0)


@bug(reinforce_loss, "the baseline is added instead of subtracted")
def baseline_added(log_y, log_p, mask, baseline):
    return reinforce_loss(log_y, log_p, mask, -baseline)


@bug(reinforce_loss, "the first term is missing, so that the words learn nothing")
def choices_alone(log_y, log_p, mask, baseline):
    R, chosen = parts_of_loss(log_y, log_p, mask)
    return -((R.detach() - baseline) * chosen + 0 * R).mean(), R.detach()


@bug(reinforce_loss, "the second term is missing, so that the choices learn nothing")
def words_alone(log_y, log_p, mask, baseline):
    R, chosen = parts_of_loss(log_y, log_p, mask)
    return -(R + 0 * chosen).mean(), R.detach()


@bug(reinforce_loss, "the mask is ignored: padding counts")
def mask_ignored(log_y, log_p, mask, baseline):
    return reinforce_loss(log_y, log_p, torch.ones_like(mask), baseline)


@bug(reinforce_loss, "the mask is applied to the words, but not to the choices")
def choices_not_masked(log_y, log_p, mask, baseline):
    R, _ = parts_of_loss(log_y, log_p, mask)
    return -(R + (R.detach() - baseline) * log_p.sum(dim=1)).mean(), R.detach()


@bug(reinforce_loss, "each choice gets the reward of its own word instead of the whole caption's")
def own_word_only(log_y, log_p, mask, baseline):
    R, _ = parts_of_loss(log_y, log_p, mask)
    each = (log_y.detach() - baseline) * log_p * mask
    return -(R + each.sum(dim=1)).mean(), R.detach()


@bug(reinforce_loss, "the pictures are summed instead of averaged")
def summed(log_y, log_p, mask, baseline):
    loss, R = reinforce_loss(log_y, log_p, mask, baseline)
    return loss * len(R), R


@bug(reinforce_loss, "words are averaged instead of summed")
def mean_over_words(log_y, log_p, mask, baseline):
    words = mask.sum(dim=1)
    R, chosen = parts_of_loss(log_y, log_p, mask)
    R, chosen = R / words, chosen / words
    return -(R + (R.detach() - baseline) * chosen).mean(), R.detach()


@bug(
    reinforce_loss, "every choice is weighed by the mean reward of the batch, not by its picture's"
)
def mean_reward(log_y, log_p, mask, baseline):
    R, chosen = parts_of_loss(log_y, log_p, mask)
    return -(R + (R.detach().mean() - baseline) * chosen).mean(), R.detach()


@bug(reinforce_loss, "p_t itself is multiplied instead of log p_t")
def probabilities(log_y, log_p, mask, baseline):
    R, _ = parts_of_loss(log_y, log_p, mask)
    chosen = log_p.exp() * mask
    return -(R + (R.detach() - baseline) * chosen.sum(dim=1)).mean(), R.detach()


@bug(
    reinforce_loss,
    "R is returned with its gradient",
    told_by="R should carry no gradient",
)
def reward_with_gradient(log_y, log_p, mask, baseline):
    loss, _ = reinforce_loss(log_y, log_p, mask, baseline)
    return loss, (log_y * mask).sum(dim=1)


@bug(update_baseline, "decay and 1 - decay are exchanged")
def exchanged(baseline, R, decay=0.9):
    return update_baseline(baseline, R, 1 - decay)


@bug(update_baseline, "the old baseline is forgotten: b is the mean of the batch")
def forgets(baseline, R, decay=0.9):
    return R.mean().item()


@bug(update_baseline, "the old baseline is kept as it is: nothing new is added")
def never_learns(baseline, R, decay=0.9):
    return R.mean().item() if baseline is None else baseline


@bug(update_baseline, "the rewards are summed instead of averaged")
def summed(baseline, R, decay=0.9):
    total = R.sum().item()
    return total if baseline is None else decay * baseline + (1 - decay) * total


@bug(update_baseline, "the mean is added without the factor 1 - decay")
def not_weighted(baseline, R, decay=0.9):
    mean = R.mean().item()
    return mean if baseline is None else decay * baseline + mean


@bug(update_baseline, "the first baseline is zero instead of the mean of the batch", told_by="b sh")
def starts_at_zero(baseline, R, decay=0.9):
    return update_baseline(0.0 if baseline is None else baseline, R, decay)


@bug(update_baseline, "the decay is always 0.9, whatever was asked for")
def fixed_decay(baseline, R, decay=0.9):
    return update_baseline(baseline, R)


@bug(update_baseline, "the largest reward is taken instead of the mean")
def largest(baseline, R, decay=0.9):
    best = R.max().item()
    return best if baseline is None else decay * baseline + (1 - decay) * best


@bug(update_baseline, "the sign of the reward is lost")
def absolute(baseline, R, decay=0.9):
    return update_baseline(baseline, R.abs(), decay)


@bug(
    update_baseline,
    "a baseline of zero is treated as none",
    told_by="b after 0 should be",
    classic=True,
)
def zero_is_none(baseline, R, decay=0.9):
    return update_baseline(baseline or None, R, decay)


@bug(
    update_baseline,
    "a tensor with its graph is returned, not a number",
    told_by="b should be a Python number",
    classic=True,
)
def keeps_the_graph(baseline, R, decay=0.9):
    mean = R.mean()
    return mean if baseline is None else decay * baseline + (1 - decay) * mean
