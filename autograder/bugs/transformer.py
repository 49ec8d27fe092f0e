"""Known wrong solutions of transformer."""

import math

import torch
from torch.nn import functional as F

from autograder.bugs import bug, equivalent
from course_pkg.attention import causal_mask, padding_mask
from course_pkg.data.translation import BOS, EOS, PAD
from course_pkg.positions import sinusoidal_positions
from course_pkg.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Transformer,
    count_parameters,
    greedy_translate,
    label_smoothing_loss,
    layer_norm,
    noam_lr,
)


def standardise(X, eps=1e-5, dim=-1):
    mean = X.mean(dim, keepdim=True)
    return (X - mean) / torch.sqrt(X.var(dim, keepdim=True, unbiased=False) + eps)


@bug(layer_norm, "the variance is divided by D - 1 instead of D", classic=True)
def unbiased(X, gain, bias, eps=1e-5):
    centred = X - X.mean(-1, keepdim=True)
    return gain * centred / torch.sqrt(X.var(-1, keepdim=True) + eps) + bias


@bug(layer_norm, "ε is added to the standard deviation, outside the root", classic=True)
def outside(X, gain, bias, eps=1e-5):
    deviation = X.var(-1, keepdim=True, unbiased=False).sqrt()
    return gain * (X - X.mean(-1, keepdim=True)) / (deviation + eps) + bias


@bug(layer_norm, "ε is not added to the variance")
def no_eps(X, gain, bias, eps=1e-5):
    return gain * standardise(X, 0.0) + bias


@bug(layer_norm, "the mean is not subtracted: that is RMS norm")
def root_mean_square(X, gain, bias, eps=1e-5):
    return gain * X / torch.sqrt(X.square().mean(-1, keepdim=True) + eps) + bias


@bug(layer_norm, "mean and variance are taken over the positions")
def over_positions(X, gain, bias, eps=1e-5):
    return gain * standardise(X, eps, -2 if X.dim() > 1 else -1) + bias


@bug(layer_norm, "mean and variance are taken over the batch: that is batch norm")
def over_batch(X, gain, bias, eps=1e-5):
    return gain * standardise(X, eps, tuple(range(max(X.dim() - 1, 1)))) + bias


@bug(layer_norm, "mean and variance are taken over positions and features together")
def over_both(X, gain, bias, eps=1e-5):
    return gain * standardise(X, eps, tuple(range(min(1, X.dim() - 1), X.dim()))) + bias


@bug(layer_norm, "X is divided by its variance instead of its standard deviation")
def no_root(X, gain, bias, eps=1e-5):
    variance = X.var(-1, keepdim=True, unbiased=False)
    return gain * (X - X.mean(-1, keepdim=True)) / (variance + eps) + bias


@bug(layer_norm, "the gain is left out")
def no_gain(X, gain, bias, eps=1e-5):
    return standardise(X, eps) + bias


@bug(layer_norm, "the bias is left out")
def no_bias(X, gain, bias, eps=1e-5):
    return gain * standardise(X, eps)


@bug(layer_norm, "the bias is added before the gain multiplies")
def bias_first(X, gain, bias, eps=1e-5):
    return gain * (standardise(X, eps) + bias)


@bug(
    layer_norm,
    "the deviation is a root, squared again: its gradient is NaN for equal numbers",
    told_by="yours is nan (",
)
def root_squared(X, gain, bias, eps=1e-5):
    centred = X - X.mean(-1, keepdim=True)
    deviation = centred.square().mean(-1, keepdim=True).sqrt()
    return gain * centred / torch.sqrt(deviation**2 + eps) + bias


@bug(layer_norm, "no gradient passes through mean and variance")
def detached(X, gain, bias, eps=1e-5):
    mean = X.mean(-1, keepdim=True).detach()
    variance = X.var(-1, keepdim=True, unbiased=False).detach()
    return gain * (X - mean) / torch.sqrt(variance + eps) + bias


@bug(layer_norm, "X is changed in place")
def in_place(X, gain, bias, eps=1e-5):
    with torch.no_grad():
        X -= X.mean(-1, keepdim=True)
    return gain * standardise(X, eps) + bias


@bug(FeedForward, "there is no ReLU: two products then equal one", classic=True)
class Linear(FeedForward):
    def forward(self, X):
        return (X @ self.W_1 + self.b_1) @ self.W_2 + self.b_2


@bug(FeedForward, "the ReLU comes at the end instead of in the middle", classic=True)
class ReluLast(FeedForward):
    def forward(self, X):
        return torch.relu((X @ self.W_1 + self.b_1) @ self.W_2 + self.b_2)


@bug(FeedForward, "there is a second ReLU at the end")
class ReluTwice(FeedForward):
    def forward(self, X):
        return torch.relu(super().forward(X))


@bug(FeedForward, "b_1 is left out")
class NoFirstBias(FeedForward):
    def forward(self, X):
        return torch.relu(X @ self.W_1) @ self.W_2 + self.b_2


@bug(FeedForward, "b_2 is left out")
class NoSecondBias(FeedForward):
    def forward(self, X):
        return super().forward(X) - self.b_2


@bug(FeedForward, "b_1 is added after the ReLU")
class BiasAfterRelu(FeedForward):
    def forward(self, X):
        return (torch.relu(X @ self.W_1) + self.b_1) @ self.W_2 + self.b_2


@bug(FeedForward, "a GELU is used instead of a ReLU")
class Gelu(FeedForward):
    def forward(self, X):
        return F.gelu(X @ self.W_1 + self.b_1) @ self.W_2 + self.b_2


@bug(FeedForward, "a tanh is used instead of a ReLU")
class Tanh(FeedForward):
    def forward(self, X):
        return torch.tanh(X @ self.W_1 + self.b_1) @ self.W_2 + self.b_2


@bug(FeedForward, "the input is added to the output, which is the layer's job")
class Residual(FeedForward):
    def forward(self, X):
        return X + super().forward(X)


@bug(FeedForward, "all positions get the output of their mean")
class MeanOfPositions(FeedForward):
    def forward(self, X):
        return super().forward(X.mean(dim=-2, keepdim=True).expand_as(X))


class Varied:
    """What the bugs of both layers below change: the parts, and how they are joined."""

    def norm(self, X, n):
        return layer_norm(X, self.gains[n], self.biases[n])

    def join(self, X, part, n):
        if self.pre_norm:
            return X + part(self.norm(X, n))
        return self.norm(X + part(X), n)


class Encoding(Varied, EncoderLayer):
    def forward(self, X, mask=None):
        X = self.join(X, lambda X: self.attention(X, mask=mask), 0)
        return self.join(X, self.feed_forward, 1)


class Decoding(Varied, DecoderLayer):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        Y = self.join(Y, lambda Y: self.self_attention(Y, mask=mask), 0)
        Y = self.join(Y, lambda Y: self.cross_attention(Y, memory, memory_mask), 1)
        return self.join(Y, self.feed_forward, 2)


class NoResidual:
    def join(self, X, part, n):
        return part(self.norm(X, n)) if self.pre_norm else self.norm(part(X), n)


class AlwaysPost:
    def join(self, X, part, n):
        return self.norm(X + part(X), n)


class AlwaysPre:
    def join(self, X, part, n):
        return X + part(self.norm(X, n))


class Swapped:
    def join(self, X, part, n):
        return self.norm(X + part(X), n) if self.pre_norm else X + part(self.norm(X, n))


class NormedResidual:
    def join(self, X, part, n):
        if self.pre_norm:
            X = self.norm(X, n)
            return X + part(X)
        return self.norm(X + part(X), n)


class NormedPart:
    def join(self, X, part, n):
        if self.pre_norm:
            return X + part(self.norm(X, n))
        return X + self.norm(part(X), n)


class OneNorm:
    def norm(self, X, n):
        return layer_norm(X, self.gains[0], self.biases[0])


class PlainNorm:
    def norm(self, X, n):
        return standardise(X)


class NoNorm:
    def norm(self, X, n):
        return X


BOTH = {
    "the residual connections are left out": NoResidual,
    "the layer is post-LN, whatever pre_norm says": AlwaysPost,
    "the layer is pre-LN, whatever pre_norm says": AlwaysPre,
    "post-LN and pre-LN are mixed up": Swapped,
    "in pre-LN the sum is made with the normalised vectors, not with the input": NormedResidual,
    "in post-LN the part is normalised instead of the sum": NormedPart,
    "all norms use row 0 of gains and biases": OneNorm,
    "gains and biases are not used": PlainNorm,
    "there is no layer norm": NoNorm,
}
for sentence, change in BOTH.items():
    for reference, base in ((EncoderLayer, Encoding), (DecoderLayer, Decoding)):
        is_classic = reference is EncoderLayer and change in (NormedResidual, NormedPart)
        bug(reference, sentence, classic=is_classic)(type(change.__name__, (change, base), {}))


@bug(FeedForward, "X must have three axes", told_by="not enough values to unpack")
class ThreeAxes(FeedForward):
    def forward(self, X):
        B, T, D = X.shape
        return super().forward(X.reshape(B * T, D)).reshape(B, T, D)


@bug(EncoderLayer, "the mask is not used")
class Unmasked(EncoderLayer):
    def forward(self, X, mask=None):
        return super().forward(X)


@bug(EncoderLayer, "the mask is inverted: here True = may attend")
class Inverted(EncoderLayer):
    def forward(self, X, mask=None):
        return super().forward(X, None if mask is None else ~mask)


@bug(EncoderLayer, "the feed-forward network comes before attention")
class ThinksFirst(Encoding):
    def forward(self, X, mask=None):
        X = self.join(X, self.feed_forward, 0)
        return self.join(X, lambda X: self.attention(X, mask=mask), 1)


@bug(EncoderLayer, "the feed-forward network is left out")
class NoFeedForward(Encoding):
    def forward(self, X, mask=None):
        return self.join(X, lambda X: self.attention(X, mask=mask), 0)


@bug(EncoderLayer, "both parts read the layer's input, side by side")
class Parallel(Encoding):
    def forward(self, X, mask=None):
        if not self.pre_norm:
            X = self.norm(X + self.attention(X, mask=mask) + self.feed_forward(X), 0)
            return self.norm(X, 1)
        first, second = self.norm(X, 0), self.norm(X, 1)
        return X + self.attention(first, mask=mask) + self.feed_forward(second)


@bug(EncoderLayer, "X is changed in place")
class InPlace(EncoderLayer):
    def forward(self, X, mask=None):
        Y = super().forward(X, mask)
        with torch.no_grad():
            X.copy_(Y)
        return Y


@bug(DecoderLayer, "the target's mask is not used")
class TargetUnmasked(DecoderLayer):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        return super().forward(Y, memory, memory_mask=memory_mask)


@bug(DecoderLayer, "the source's mask is not used")
class SourceUnmasked(DecoderLayer):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        return super().forward(Y, memory, mask, None)


@bug(DecoderLayer, "cross-attention comes before self-attention")
class CrossFirst(Decoding):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        Y = self.join(Y, lambda Y: self.cross_attention(Y, memory, memory_mask), 0)
        Y = self.join(Y, lambda Y: self.self_attention(Y, mask=mask), 1)
        return self.join(Y, self.feed_forward, 2)


@bug(DecoderLayer, "cross-attention looks at the target again instead of the source")
class NeverLooks(Decoding):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        Y = self.join(Y, lambda Y: self.self_attention(Y, mask=mask), 0)
        Y = self.join(Y, lambda Y: self.cross_attention(Y), 1)
        return self.join(Y, self.feed_forward, 2)


@bug(DecoderLayer, "cross-attention is left out")
class NoCross(Decoding):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        Y = self.join(Y, lambda Y: self.self_attention(Y, mask=mask), 0)
        return self.join(Y, self.feed_forward, 2)


@bug(DecoderLayer, "self_attention and cross_attention are mixed up")
class PartsSwapped(Decoding):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        Y = self.join(Y, lambda Y: self.cross_attention(Y, mask=mask), 0)
        Y = self.join(Y, lambda Y: self.self_attention(Y, memory, memory_mask), 1)
        return self.join(Y, self.feed_forward, 2)


@bug(DecoderLayer, "the memory is also normalised", classic=True)
class MemoryNormed(DecoderLayer):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        memory = layer_norm(memory, self.gains[1], self.biases[1])
        return super().forward(Y, memory, mask, memory_mask)


@bug(DecoderLayer, "no gradient passes to the encoder", told_by="No gradient reaches memory")
class MemoryDetached(DecoderLayer):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        return super().forward(Y, memory.detach(), mask, memory_mask)


@bug(
    DecoderLayer,
    "the two masks are swapped",
    told_by="raised RuntimeError: ",
    classic=True,
)
class MasksSwapped(DecoderLayer):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        return super().forward(Y, memory, memory_mask, mask)


@bug(DecoderLayer, "a mask is made causal, whatever it allows")
class AlwaysCausal(DecoderLayer):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        mask = None if mask is None else mask & causal_mask(Y.shape[1])
        return super().forward(Y, memory, mask, memory_mask)


@bug(Transformer, "the embeddings are not multiplied by √D")
class NotScaled(Transformer):
    def embed(self, words, table):
        return super().embed(words, table) + (1 - math.sqrt(self.D)) * table[words]


@bug(Transformer, "the embeddings are multiplied by D instead of √D")
class ScaledByD(Transformer):
    def embed(self, words, table):
        return super().embed(words, table) + (self.D - math.sqrt(self.D)) * table[words]


@bug(Transformer, "the embeddings are divided by √D instead of multiplied")
class Divided(Transformer):
    def embed(self, words, table):
        scale = 1 / math.sqrt(self.D) - math.sqrt(self.D)
        return super().embed(words, table) + scale * table[words]


@bug(Transformer, "no positions are added")
class NoPositions(Transformer):
    def embed(self, words, table):
        return math.sqrt(self.D) * table[words]


@bug(Transformer, "the positions are multiplied by √D together with the embeddings", classic=True)
class PositionsScaled(Transformer):
    def embed(self, words, table):
        positions = sinusoidal_positions(words.shape[1], self.D).to(table)
        return math.sqrt(self.D) * (table[words] + positions)


@bug(Transformer, "positions count from 1")
class FromOne(Transformer):
    def embed(self, words, table):
        positions = sinusoidal_positions(words.shape[1] + 1, self.D).to(table)[1:]
        return math.sqrt(self.D) * table[words] + positions


@bug(Transformer, "all positions of a sentence get the encoding of one position")
class OnePosition(Transformer):
    def embed(self, words, table):
        return math.sqrt(self.D) * table[words] + sinusoidal_positions(1, self.D).to(table)


@bug(Transformer, "the decoder has no causal mask", classic=True)
class NoCausalMask(Transformer):
    def decode(self, Y, memory, memory_mask):
        Y = self.embed(Y, self.target_table)
        for layer in self.decoder:
            Y = layer(Y, memory, None, memory_mask)
        return self.to_words(Y)

    def to_words(self, Y):
        if self.pre_norm:
            Y = layer_norm(Y, self.gains[1], self.biases[1])
        return Y @ self.output_table.T


@bug(Transformer, "the causal mask is inverted: here True = may attend")
class CausalInverted(NoCausalMask):
    def decode(self, Y, memory, memory_mask):
        mask = ~causal_mask(Y.shape[1])
        Y = self.embed(Y, self.target_table)
        for layer in self.decoder:
            Y = layer(Y, memory, mask, memory_mask)
        return self.to_words(Y)


@bug(Transformer, "the decoder does not mask the source's padding", classic=True)
class DecoderSeesPadding(Transformer):
    def decode(self, Y, memory, memory_mask):
        return super().decode(Y, memory, torch.ones_like(memory_mask))


@bug(Transformer, "the encoder does not mask the padding")
class EncoderSeesPadding(Transformer):
    def encode(self, X, lengths):
        everything = torch.full_like(lengths, X.shape[1])
        memory, _ = super().encode(X, everything)
        return memory, padding_mask(lengths, X.shape[1])


@bug(Transformer, "the encoder also has a causal mask")
class EncoderCausal(Transformer):
    def encode(self, X, lengths):
        mask = padding_mask(lengths, X.shape[1])
        X = self.embed(X, self.source_table)
        for layer in self.encoder:
            X = layer(X, mask & causal_mask(X.shape[1]))
        if self.pre_norm:
            X = layer_norm(X, self.gains[0], self.biases[0])
        return X, mask


@bug(Transformer, "in pre-LN the last norm of the encoder is missing")
class EncoderNotNormed(Transformer):
    def encode(self, X, lengths):
        mask = padding_mask(lengths, X.shape[1])
        X = self.embed(X, self.source_table)
        for layer in self.encoder:
            X = layer(X, mask)
        return X, mask


@bug(Transformer, "in pre-LN the last norm of the decoder is missing")
class DecoderNotNormed(NoCausalMask):
    def decode(self, Y, memory, memory_mask):
        mask = causal_mask(Y.shape[1])
        Y = self.embed(Y, self.target_table)
        for layer in self.decoder:
            Y = layer(Y, memory, mask, memory_mask)
        return Y @ self.output_table.T


@bug(Transformer, "only the last layer's output counts: every layer reads the embeddings")
class LayersNotStacked(NoCausalMask):
    def decode(self, Y, memory, memory_mask):
        mask = causal_mask(Y.shape[1])
        Y = self.embed(Y, self.target_table)
        return self.to_words(self.decoder[-1](Y, memory, mask, memory_mask))


@bug(Transformer, "the target's words are looked up in output_table")
class WrongTable(Transformer):
    def embed(self, words, table):
        return super().embed(words, self.output_table if table is self.target_table else table)


@bug(Transformer, "the logits are products with target_table instead of output_table")
class TiedAnyway(Transformer):
    def decode(self, Y, memory, memory_mask):
        own, self.output_table = self.output_table, self.target_table
        try:
            return super().decode(Y, memory, memory_mask)
        finally:
            self.output_table = own


@bug(Transformer, "probabilities are returned instead of logits")
class Probabilities(Transformer):
    def decode(self, Y, memory, memory_mask):
        return super().decode(Y, memory, memory_mask).softmax(dim=-1)


def counts(V_source, V_target, D, layers, D_ff, pre_norm, shared, **changes):
    right = count_parameters(V_source, V_target, D, layers, D_ff, pre_norm, shared)
    return right | changes


@bug(count_parameters, "the biases of the attentions are left out", classic=True)
def attention_without_biases(V_s, V_t, D, layers, D_ff=None, pre_norm=False, shared=False):
    return counts(V_s, V_t, D, layers, D_ff, pre_norm, shared, attention=12 * layers * D**2)


@bug(count_parameters, "the biases of the feed-forward networks are left out", classic=True)
def networks_without_biases(V_s, V_t, D, layers, D_ff=None, pre_norm=False, shared=False):
    products = 4 * layers * D * (D_ff or 4 * D)
    return counts(V_s, V_t, D, layers, D_ff, pre_norm, shared, feed_forward=products)


@bug(count_parameters, "both attentions of a decoder layer are counted as one")
def one_attention_each(V_s, V_t, D, layers, D_ff=None, pre_norm=False, shared=False):
    two = 2 * layers * 4 * (D + 1) * D
    return counts(V_s, V_t, D, layers, D_ff, pre_norm, shared, attention=two)


@bug(count_parameters, "W_O is left out: three projections are counted instead of four")
def no_output_projection(V_s, V_t, D, layers, D_ff=None, pre_norm=False, shared=False):
    three = 3 * layers * 3 * (D + 1) * D
    return counts(V_s, V_t, D, layers, D_ff, pre_norm, shared, attention=three)


@bug(count_parameters, "a decoder layer is given two norms instead of three")
def two_norms(V_s, V_t, D, layers, D_ff=None, pre_norm=False, shared=False):
    norms = (4 * layers + 2 * pre_norm) * 2 * D
    return counts(V_s, V_t, D, layers, D_ff, pre_norm, shared, norms=norms)


@bug(count_parameters, "a norm is given a gain, but no bias")
def gains_only(V_s, V_t, D, layers, D_ff=None, pre_norm=False, shared=False):
    norms = (5 * layers + 2 * pre_norm) * D
    return counts(V_s, V_t, D, layers, D_ff, pre_norm, shared, norms=norms)


@bug(count_parameters, "the last two norms of pre-LN are left out")
def no_last_norms(V_s, V_t, D, layers, D_ff=None, pre_norm=False, shared=False):
    return counts(V_s, V_t, D, layers, D_ff, pre_norm, shared, norms=10 * layers * D)


@bug(count_parameters, "output_table is left out")
def two_tables(V_s, V_t, D, layers, D_ff=None, pre_norm=False, shared=False):
    tables = (V_s if shared else V_s + V_t) * D
    return counts(V_s, V_t, D, layers, D_ff, pre_norm, shared, tables=tables)


@bug(count_parameters, "a shared table is counted three times")
def not_shared(V_s, V_t, D, layers, D_ff=None, pre_norm=False, shared=False):
    return count_parameters(V_s, V_t, D, layers, D_ff, pre_norm)


@bug(Transformer, "the positions stay float32", told_by="as the table is, yours torch.float32")
class PositionsFloat(Transformer):
    def embed(self, words, table):
        return math.sqrt(self.D) * table[words] + sinusoidal_positions(words.shape[1], self.D)


@bug(
    Transformer,
    "the memory is as wide as the longest sentence, not as the batch",
    told_by="mask of a batch wider than its sentences should have shape",
)
class Trimmed(Transformer):
    def encode(self, X, lengths):
        return super().encode(X[:, : int(lengths.max())], lengths)


@bug(count_parameters, "only the encoder's feed-forward networks are counted")
def encoder_only(V_s, V_t, D, layers, D_ff=None, pre_norm=False, shared=False):
    right = count_parameters(V_s, V_t, D, layers, D_ff, pre_norm, shared)
    return right | {"feed_forward": right["feed_forward"] // 2}


@bug(noam_lr, "the maximum of the two is taken, not the minimum")
def largest(step, D, warmup=4000):
    noam_lr(step, D=D, warmup=warmup)
    return D**-0.5 * max(step**-0.5, step * warmup**-1.5)


@bug(noam_lr, "the factor D^(-1/2) is left out")
def no_size(step, D, warmup=4000):
    return noam_lr(step, D, warmup) * D**0.5


@bug(noam_lr, "it falls as 1/step instead of 1/√step")
def falls_faster(step, D, warmup=4000):
    noam_lr(step, D=D, warmup=warmup)
    return D**-0.5 * min(warmup**0.5 / step, step * warmup**-1.5)


@bug(noam_lr, "it never falls after step warmup")
def stays(step, D, warmup=4000):
    return noam_lr(min(step, warmup), D, warmup)


@bug(noam_lr, "there is no warm-up")
def no_warmup(step, D, warmup=4000):
    noam_lr(step, D=D, warmup=warmup)
    return (D * step) ** -0.5


@bug(noam_lr, "steps count from 0", classic=True)
def from_zero(step, D, warmup=4000):
    return noam_lr(step + 1, D, warmup)


@bug(noam_lr, "warmup is raised to -1/2 instead of -3/2")
def wrong_power(step, D, warmup=4000):
    noam_lr(step, D=D, warmup=warmup)
    return D**-0.5 * min(step**-0.5, step * warmup**-0.5)


@bug(noam_lr, "it is divided by D instead of √D")
def by_size(step, D, warmup=4000):
    return noam_lr(step, D, warmup) * D**-0.5


@bug(
    noam_lr,
    "step 0 is accepted",
    told_by="should raise ValueError when step is 0",
)
def accepts_zero(step, D, warmup=4000):
    return noam_lr(max(step, 1), D, warmup)


def smoothed(logits, targets, smoothing, ignore, off=None):
    """The loss of every place, with the probability of the other words open to mistakes."""
    if not 0 <= smoothing < 1:
        raise ValueError(smoothing)
    V = logits.shape[-1]
    off = smoothing / V if off is None else off
    q = off + (1 - smoothing) * F.one_hot(targets, V).to(logits)
    return -(q * logits.log_softmax(-1)).sum(-1), targets != ignore


@bug(label_smoothing_loss, "the smoothing is not used")
def unsmoothed(logits, targets, smoothing=0.1, ignore=PAD):
    losses, kept = smoothed(logits, targets, 0 * smoothing, ignore)
    return losses[kept].mean()


@bug(label_smoothing_loss, "padding counts as a word to predict")
def padding_counts(logits, targets, smoothing=0.1, ignore=PAD):
    losses, _ = smoothed(logits, targets, smoothing, ignore)
    return losses.mean()


@bug(
    label_smoothing_loss,
    "padding adds nothing, but the sum is divided by the number of all places",
    classic=True,
)
def divided_by_all(logits, targets, smoothing=0.1, ignore=PAD):
    losses, kept = smoothed(logits, targets, smoothing, ignore)
    return (losses * kept).mean()


@bug(label_smoothing_loss, "ε is shared among the V - 1 other words instead of all V", classic=True)
def among_others(logits, targets, smoothing=0.1, ignore=PAD):
    V = logits.shape[-1]
    off = smoothing / (V - 1)
    losses, kept = smoothed(logits, targets, smoothing, ignore, off)
    right = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    return (losses + off * right)[kept].mean()


@bug(label_smoothing_loss, "every word gets ε instead of ε / V")
def not_shared_out(logits, targets, smoothing=0.1, ignore=PAD):
    losses, kept = smoothed(logits, targets, smoothing, ignore, smoothing)
    return losses[kept].mean()


@bug(label_smoothing_loss, "the right word gets the whole 1, and ε / V is added to that")
def too_much(logits, targets, smoothing=0.1, ignore=PAD):
    losses, kept = smoothed(logits, targets, smoothing, ignore)
    right = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    return (losses - smoothing * right)[kept].mean()


@bug(label_smoothing_loss, "1 - ε and ε are mixed up")
def mixed_up(logits, targets, smoothing=0.1, ignore=PAD):
    if not 0 <= smoothing < 1:
        raise ValueError(smoothing)
    losses, kept = smoothed(logits, targets, 0.0, ignore)
    every = -logits.log_softmax(-1).mean(-1)
    return (smoothing * losses + (1 - smoothing) * every)[kept].mean()


@bug(label_smoothing_loss, "the losses are added up instead of averaged")
def summed(logits, targets, smoothing=0.1, ignore=PAD):
    losses, kept = smoothed(logits, targets, smoothing, ignore)
    return losses[kept].sum()


@bug(label_smoothing_loss, "the sign is wrong: it rises as the model gets better")
def wrong_sign(logits, targets, smoothing=0.1, ignore=PAD):
    return -label_smoothing_loss(logits, targets, smoothing, ignore)


@bug(label_smoothing_loss, "probabilities are used instead of their logarithms")
def no_logarithm(logits, targets, smoothing=0.1, ignore=PAD):
    losses, kept = smoothed(logits.softmax(-1), targets, smoothing, ignore)
    return losses[kept].mean()


def generate(model, X, lengths, max_length, *, read=None, start=BOS, keep=True, stop=True, pick=-1):
    """Greedy translation with its details open to mistakes."""
    memory, mask = model.encode(X, lengths)
    Y = torch.full((len(X), 1), start)
    ended = torch.zeros(len(X), dtype=torch.bool)
    while Y.shape[1] <= max_length and not (stop and ended.all()):
        seen = Y if read is None else read(Y)
        y = model.decode(seen, memory, mask)[:, pick].argmax(-1)
        y = torch.where(ended, PAD, y) if keep else y
        ended = ended | (y == EOS)
        Y = torch.cat([Y, y[:, None]], dim=1)
    return Y[:, 1:]


@bug(greedy_translate, "the decoder reads the last word alone, not all words so far", classic=True)
def last_word(model, X, lengths, max_length):
    return generate(model, X, lengths, max_length, read=lambda Y: Y[:, -1:])


@bug(greedy_translate, "the first position's logits are read instead of the last one's")
def first_position(model, X, lengths, max_length):
    return generate(model, X, lengths, max_length, pick=0)


@bug(greedy_translate, "writing goes on after EOS", classic=True)
def after_the_end(model, X, lengths, max_length):
    return generate(model, X, lengths, max_length, keep=False)


@bug(greedy_translate, "max_length words are always written")
def never_stops(model, X, lengths, max_length):
    return generate(model, X, lengths, max_length, stop=False)


@bug(greedy_translate, "the decoder begins with EOS instead of BOS")
def starts_with_end(model, X, lengths, max_length):
    return generate(model, X, lengths, max_length, start=EOS)


@bug(greedy_translate, "the decoder begins with PAD instead of BOS")
def starts_with_padding(model, X, lengths, max_length):
    return generate(model, X, lengths, max_length, start=PAD)


@bug(greedy_translate, "BOS is also returned")
def with_start(model, X, lengths, max_length):
    Y = greedy_translate(model, X, lengths, max_length)
    return torch.cat([torch.full((len(X), 1), BOS), Y], dim=1)


@bug(greedy_translate, "it stops as soon as one sentence has ended")
def stops_with_first(model, X, lengths, max_length):
    Y = greedy_translate(model, X, lengths, max_length)
    first = [(row == EOS).nonzero()[0].item() for row in Y if (row == EOS).any()]
    return Y[:, : min(first, default=max_length) + 1]


@bug(greedy_translate, "BOS counts as one of the max_length words")
def one_too_few(model, X, lengths, max_length):
    return greedy_translate(model, X, lengths, max_length)[:, : max(max_length - 1, 1)]


@bug(greedy_translate, "one more word than max_length is written where no EOS comes")
def one_too_many(model, X, lengths, max_length):
    return generate(model, X, lengths, max_length + 1)


@bug(greedy_translate, "the source's padding is not masked")
def padding_read(model, X, lengths, max_length):
    return greedy_translate(model, X, torch.full_like(lengths, X.shape[1]), max_length)


@bug(greedy_translate, "words are drawn at random instead of taking the most probable one")
def sampled(model, X, lengths, max_length):
    memory, mask = model.encode(X, lengths)
    Y = torch.full((len(X), 1), BOS)
    ended = torch.zeros(len(X), dtype=torch.bool)
    while Y.shape[1] <= max_length and not ended.all():
        p = model.decode(Y, memory, mask)[:, -1].softmax(-1)
        y = torch.where(ended, PAD, torch.multinomial(p, 1)[:, 0])
        ended = ended | (y == EOS)
        Y = torch.cat([Y, y[:, None]], dim=1)
    return Y[:, 1:]


equivalent(
    noam_lr,
    "return D ** (-0.5) * min(step ** (-0.5), step * warmup ** (-1.5)) → "
    "return D ** (-0.5) * min(step * warmup ** (-1.5), step ** (-0.5))",
    "the lesser of two numbers is the same in either order",
)


@bug(greedy_translate, "the source is encoded again at every step")
def encodes_every_step(model, X, lengths, max_length):
    Y, ended = X.new_full((len(X), 1), BOS), X.new_zeros(len(X), dtype=torch.bool)
    for _ in range(max_length):
        y = model.decode(Y, *model.encode(X, lengths))[:, -1].argmax(dim=1)
        y = torch.where(ended, PAD, y)
        Y, ended = torch.cat([Y, y[:, None]], dim=1), ended | (y == EOS)
        if ended.all():
            break
    return Y[:, 1:]
