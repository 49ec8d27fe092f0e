"""Other correct solutions of transformer: loops, torch's own modules, float32."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
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
    layer_norm_fault,
    noam_lr,
)


@alternative(layer_norm)
def torchs_own(X, gain, bias, eps=1e-5):
    return F.layer_norm(X, [X.shape[-1]], gain, bias, eps)


@alternative(layer_norm)
def by_moments(X, gain, bias, eps=1e-5):
    """The variance as the mean of the squares less the square of the mean."""
    mean = X.mean(-1, True)
    variance = (X * X).mean(-1, True) - mean * mean
    return (X - mean) * (variance.clamp(min=0) + eps).rsqrt() * gain + bias


@alternative(layer_norm)
def with_var(X, gain, bias, eps=1e-5):
    variance, mean = torch.var_mean(X, dim=-1, correction=0, keepdim=True)
    return torch.addcmul(bias, gain, (X - mean) / (variance + eps) ** 0.5)


@alternative(layer_norm_fault)
def large_and_in_float64():
    X = torch.randn(2, 3, 5, dtype=torch.float64)
    return "E", [X, torch.full((5,), 0.5).double(), torch.arange(5).double()]


@alternative(layer_norm_fault)
def no_gain_at_all():
    return ["E", (torch.tensor([1.0, 3.0]), torch.zeros(2), torch.ones(2), 1e-3)]


@alternative(FeedForward)
class WithLinear(FeedForward):
    def forward(self, X):
        return F.linear(F.linear(X, self.W_1.T, self.b_1).clamp(min=0), self.W_2.T, self.b_2)


@alternative(FeedForward)
class NeuronByNeuron(FeedForward):
    """Each neuron in the middle answers to a pattern and adds a vector."""

    def forward(self, X):
        Y = self.b_2.expand_as(X)
        for pattern, bias, answer in zip(self.W_1.T, self.b_1, self.W_2, strict=True):
            Y = Y + F.relu((X * pattern).sum(-1, keepdim=True) + bias) * answer
        return Y


@alternative(EncoderLayer)
class WithMethods(EncoderLayer):
    def normalise(self, X, n):
        return F.layer_norm(X, X.shape[-1:], self.gains[n], self.biases[n])

    def forward(self, X, mask=None):
        if not self.pre_norm:
            Z = self.normalise(self.attention(X, X, mask) + X, 0)
            return self.normalise(self.feed_forward(Z) + Z, 1)
        Z = self.attention(self.normalise(X, 0), None, mask) + X
        return self.feed_forward(self.normalise(Z, 1)) + Z


@alternative(EncoderLayer)
class WithLoop(EncoderLayer):
    def forward(self, X, mask=None):
        for n, part in enumerate([lambda X: self.attention(X, mask=mask), self.feed_forward]):
            if self.pre_norm:
                X = X + part(layer_norm(X, self.gains[n], self.biases[n]))
            else:
                X = layer_norm(X + part(X), self.gains[n], self.biases[n])
        return X


@alternative(DecoderLayer)
class LineByLine(DecoderLayer):
    def forward(self, Y, memory, mask=None, memory_mask=None):
        norms = [lambda Y, n=n: layer_norm(Y, self.gains[n], self.biases[n]) for n in range(3)]
        if self.pre_norm:
            Y = Y + self.self_attention(norms[0](Y), mask=mask)
            Y = Y + self.cross_attention(norms[1](Y), memory, mask=memory_mask)
            return Y + self.feed_forward(norms[2](Y))
        Y = norms[0](Y + self.self_attention(Y, mask=mask))
        Y = norms[1](Y + self.cross_attention(Y, memory, mask=memory_mask))
        return norms[2](Y + self.feed_forward(Y))


@alternative(DecoderLayer)
class SentenceBySentence(DecoderLayer):
    """Has no batch: every sentence goes through on its own."""

    def forward(self, Y, memory, mask=None, memory_mask=None):
        rows = []
        for b in range(len(Y)):
            own = [None if m is None else m[b : b + 1] if m.dim() == 3 and len(m) > 1 else m
                   for m in (mask, memory_mask)]  # fmt: skip
            rows.append(super().forward(Y[b : b + 1], memory[b : b + 1], *own))
        return torch.cat(rows)


@alternative(Transformer)
class WithEmbedding(Transformer):
    """Looks rows up with torch's embedding, and keeps no method but those asked for."""

    def embed(self, words, table):
        T, D = words.shape[1], table.shape[1]
        return F.embedding(words, table).mul(D**0.5).add(sinusoidal_positions(T, D).to(table))

    def encode(self, X, lengths):
        memory, mask = self.embed(X, self.source_table), padding_mask(lengths, X.size(1))
        for layer in self.encoder:
            memory = layer(memory, mask=mask)
        return (self.last(memory, 0), mask)

    def decode(self, Y, memory, memory_mask):
        state, mask = self.embed(Y, self.target_table), causal_mask(Y.size(1))
        for layer in self.decoder:
            state = layer(state, memory, mask=mask, memory_mask=memory_mask)
        return F.linear(self.last(state, 1), self.output_table)

    def forward(self, X, lengths, Y):
        memory, mask = self.encode(X, lengths)
        return self.decode(Y, memory, mask)

    def last(self, X, row):
        return layer_norm(X, self.gains[row], self.biases[row]) if self.pre_norm else X


@alternative(Transformer)
class OneHot(Transformer):
    """Multiplies one-hot vectors with the tables; computes the sinusoids itself."""

    def embed(self, words, table):
        T, D = words.shape[1], table.shape[1]
        t, i = torch.arange(T)[:, None], torch.arange(D)
        angles = t / 10000 ** ((i - i % 2) / D)
        positions = torch.where(i % 2 == 0, angles.sin(), angles.cos()).to(table)
        return math.sqrt(D) * (F.one_hot(words, len(table)).to(table) @ table) + positions

    def decode(self, Y, memory, memory_mask):
        """Predicts every word from a prefix of its own: slow, and surely causal."""
        steps = [super(OneHot, self).decode(Y[:, : t + 1], memory, memory_mask)[:, -1]
                 for t in range(Y.shape[1])]  # fmt: skip
        return torch.stack(steps, dim=1)


@alternative(count_parameters)
def layer_by_layer(
    V_source, V_target, D, layers, D_ff=None, pre_norm=False, shared=False
):  # fmt: skip
    counts = {"tables": 0, "attention": 0, "feed_forward": 0, "norms": 4 * D if pre_norm else 0}
    for V in [V_source] if shared else [V_source, V_target, V_target]:
        counts["tables"] += V * D
    middle = D_ff or 4 * D
    for attentions in [1] * layers + [2] * layers:
        counts["attention"] += attentions * (4 * D * D + 4 * D)
        counts["feed_forward"] += D * middle + middle + middle * D + D
        counts["norms"] += (attentions + 1) * 2 * D
    return counts


@alternative(count_parameters)
def by_building(V_source, V_target, D, layers, D_ff=None, pre_norm=False, shared=False):
    with torch.device("meta"):
        model = Transformer(V_source, V_target, D, 1, layers, D_ff, pre_norm, shared)
    counts = dict.fromkeys(["tables", "attention", "feed_forward", "norms"], 0)
    for name, parameter in model.named_parameters():
        kinds = [kind for kind in ("attention", "feed_forward") if kind in name]
        kind = kinds[0] if kinds else "tables" if "table" in name else "norms"
        counts[kind] += parameter.numel()
    return counts


@alternative(noam_lr)
def two_branches(step, D, warmup=4000):
    if min(step, warmup) < 1:
        raise ValueError("both count from 1")
    if step < warmup:
        return step / (warmup * math.sqrt(D * warmup))
    return 1 / math.sqrt(D * step)


@alternative(noam_lr)
def from_the_peak(step, D, warmup=4000):
    if step <= 0 or warmup <= 0:
        raise ValueError(f"{step}, {warmup}")
    return min(step / warmup, (warmup / step) ** 0.5) / (D * warmup) ** 0.5


@alternative(label_smoothing_loss)
def torchs_cross_entropy(logits, targets, smoothing=0.1, ignore=PAD):
    if smoothing < 0 or smoothing >= 1:
        raise ValueError(smoothing)
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        targets.reshape(-1),
        ignore_index=ignore,
        label_smoothing=smoothing,
    )


@alternative(label_smoothing_loss)
def with_distribution(logits, targets, smoothing=0.1, ignore=PAD):
    if not (smoothing >= 0 and smoothing < 1):
        raise ValueError("smoothing")
    kept = targets.ne(ignore)
    logits, targets = logits[kept].float(), targets[kept]
    q = torch.full_like(logits, smoothing / logits.shape[1])
    q[torch.arange(len(q)), targets] += 1 - smoothing
    return torch.sum(-q * F.log_softmax(logits, 1), dim=1).mean()


@alternative(greedy_translate)
def sentence_by_sentence(model, X, lengths, max_length):
    rows = []
    for b in range(len(X)):
        memory, mask = model.encode(X[b : b + 1], lengths[b : b + 1])
        words = []
        while len(words) < max_length and EOS not in words:
            logits = model.decode(torch.tensor([[BOS, *words]]), memory, mask)
            words.append(logits[0, -1].argmax().item())
        rows.append(torch.tensor(words))
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


@alternative(greedy_translate)
def filled_in(model, X, lengths, max_length):
    """Fills a table of PAD from the left, and cuts off what nobody needed."""
    memory, mask = model.encode(X, lengths)
    Y = torch.full((len(X), max_length + 1), PAD)
    Y[:, 0] = BOS
    running = torch.ones(len(X), dtype=torch.bool)
    for t in range(max_length):
        words = model.decode(Y[:, : t + 1], memory, mask)[:, t].argmax(dim=1)
        Y[running, t + 1] = words[running]
        running &= words != EOS
        if not running.any():
            return Y[:, 1 : t + 2]
    return Y[:, 1:]
