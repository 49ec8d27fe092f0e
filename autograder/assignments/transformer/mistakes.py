"""Known wrong solutions of transformer."""

import torch

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
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

mistakes(
    layer_norm,
    """
* unbiased: the variance is divided by D - 1 instead of D
    (X - mean).square().mean( → X.var(
* outside: ε is added to the standard deviation, outside the root
    torch.sqrt(variance + eps) → (torch.sqrt(variance) + eps)
no_eps: ε is not added to the variance
    variance + eps → variance
root_mean_square: the mean is not subtracted: that is RMS norm
    mean = X.mean(dim=-1, keepdim=True) → mean = 0
over_positions: mean and variance are taken over the positions
    mean = X.mean(dim=-1
    → axis = -min(X.dim(), 2)
      mean = X.mean(dim=axis
    square().mean(dim=-1 → square().mean(dim=axis
over_batch: mean and variance are taken over the batch: that is batch norm
    mean = X.mean(dim=-1
    → axes = tuple(range(max(X.dim() - 1, 1)))
      mean = X.mean(dim=axes
    square().mean(dim=-1 → square().mean(dim=axes
over_both: mean and variance are taken over positions and features together
    mean = X.mean(dim=-1
    → axes = tuple(range(min(1, X.dim() - 1), X.dim()))
      mean = X.mean(dim=axes
    square().mean(dim=-1 → square().mean(dim=axes
no_root: X is divided by its variance instead of its standard deviation
    torch.sqrt(variance + eps) → (variance + eps)
no_gain: the gain is left out
    gain * (X → (X
no_bias: the bias is left out
    eps) + bias → eps)
bias_first: the bias is added before the gain multiplies
    gain * (X - mean) / torch.sqrt(variance + eps) + bias
    → gain * ((X - mean) / torch.sqrt(variance + eps) + bias)
root_squared: the deviation is a root, squared again: its gradient is NaN for equal numbers
    variance + eps → torch.sqrt(variance) ** 2 + eps
    says: yours is nan (
detached: no gradient passes through mean and variance
    mean = X.mean(dim=-1, keepdim=True) → mean = X.mean(dim=-1, keepdim=True).detach()
    square().mean(dim=-1, keepdim=True) → square().mean(dim=-1, keepdim=True).detach()
in_place: X is changed in place
    return gain * (X - mean)
    → X.data.sub_(mean)
      return gain * X
""",
)

black_box(
    layer_norm,
    "bias_first",
    curve='results["transformer"].losses',
    label="loss in nats per word",
)

wrong_answers(layer_norm_fault, "E")
mistakes(
    layer_norm_fault,
    """
plain_norm: the gain is 1 and the bias 0, as at the start of training
    torch.tensor([2.0, 2.0]), torch.tensor([1.0, 1.0])
    → torch.ones(2), torch.zeros(2)
    says: With these arguments the black box gives what is right
no_bias: the bias is 0
    torch.tensor([1.0, 1.0]) → torch.zeros(2)
    says: With these arguments the black box gives what is right
no_gain: the gain is 1
    torch.tensor([2.0, 2.0]) → torch.ones(2)
    says: With these arguments the black box gives what is right
bias_elsewhere: the bias is 0 in every feature whose gain is not 1
    torch.tensor([2.0, 2.0]), torch.tensor([1.0, 1.0])
    → torch.tensor([2.0, 1.0]), torch.tensor([0.0, 1.0])
    says: With these arguments the black box gives what is right
three_features: the gain has three features, X has two
    torch.tensor([2.0, 2.0]) → torch.tensor([2.0, 2.0, 2.0])
    says: layer_norm raised RuntimeError
two_arguments: the bias is left out
    (X, gain, bias) → (X, gain)
    says: layer_norm raised TypeError
""",
)

mistakes(
    FeedForward,
    """
* Linear: there is no ReLU: two products then equal one
    torch.relu( → (
* ReluLast: the ReLU comes at the end instead of in the middle
    torch.relu(X @ self.W_1 + self.b_1) @ self.W_2 + self.b_2
    → torch.relu((X @ self.W_1 + self.b_1) @ self.W_2 + self.b_2)
ReluTwice: there is a second ReLU at the end
    return torch → return torch.relu(torch
    @ self.W_2 + self.b_2 → @ self.W_2 + self.b_2)
NoFirstBias: b_1 is left out
    @ self.W_1 + self.b_1 → @ self.W_1
NoSecondBias: b_2 is left out
    @ self.W_2 + self.b_2 → @ self.W_2 + 0 * self.b_2
BiasAfterRelu: b_1 is added after the ReLU
    torch.relu(X @ self.W_1 + self.b_1) → (torch.relu(X @ self.W_1) + self.b_1)
Gelu: a GELU is used instead of a ReLU
    torch.relu → nn.functional.gelu
Tanh: a tanh is used instead of a ReLU
    torch.relu → torch.tanh
Residual: the input is added to the output, which is the layer's job
    return torch → return X + torch
MeanOfPositions: all positions get the output of their mean
    return torch
    → X = X.mean(dim=-2, keepdim=True).expand_as(X)
      return torch
""",
)

mistakes(
    EncoderLayer,
    """
NoResidual: the residual connections are left out
    X = X + self.attention → X = self.attention
    return X + self → return self
    X + self.attention(X, → self.attention(X,
    X + self.feed_forward(X) → self.feed_forward(X)
AlwaysPost: the layer is post-LN, whatever pre_norm says
    if self.pre_norm → if False
AlwaysPre: the layer is pre-LN, whatever pre_norm says
    if self.pre_norm → if True
Swapped: post-LN and pre-LN are mixed up
    if self.pre_norm → if not self.pre_norm
* NormedResidual: in pre-LN the sum is made with the normalised vectors, not with the input
    X = X + self.attention(layer_norm(X, self.gains[0], self.biases[0]), mask=mask)
    → X = layer_norm(X, self.gains[0], self.biases[0])
      X = X + self.attention(X, mask=mask)
    return X + self.feed_forward(layer_norm(X, self.gains[1], self.biases[1]))
    → X = layer_norm(X, self.gains[1], self.biases[1])
      return X + self.feed_forward(X)
NormedBeforeAttention: in pre-LN attention is added to the normalised vectors, not to the input
    X = X + self.attention(layer_norm(X, self.gains[0], self.biases[0]), mask=mask)
    → X = layer_norm(X, self.gains[0], self.biases[0])
      X = X + self.attention(X, mask=mask)
NormedBeforeNetwork: in pre-LN the network's part is added to the normalised vectors, not to X
    return X + self.feed_forward(layer_norm(X, self.gains[1], self.biases[1]))
    → X = layer_norm(X, self.gains[1], self.biases[1])
      return X + self.feed_forward(X)
* NormedPart: in post-LN the part is normalised instead of the sum
    layer_norm(X + self.attention(X, → X + layer_norm(self.attention(X,
    layer_norm(X + self.feed_forward(X), → X + layer_norm(self.feed_forward(X),
OneNorm: all norms use row 0 of gains and biases
    self.gains[1], self.biases[1])) → self.gains[0], self.biases[0]))
    self.feed_forward(X), self.gains[1], self.biases[1])
    → self.feed_forward(X), self.gains[0], self.biases[0])
PlainNorm: gains and biases are not used
    if self.pre_norm
    → layer_norm = lambda X, *_: nn.functional.layer_norm(X, X.shape[-1:])
      if self.pre_norm
NoNorm: there is no layer norm
    if self.pre_norm
    → layer_norm = lambda X, *_: X
      if self.pre_norm
""",
)

mistakes(
    DecoderLayer,
    """
NoResidual: the residual connections are left out
    Y = Y + part → Y = part
    (Y + part → (part
AlwaysPost: the layer is post-LN, whatever pre_norm says
    if self.pre_norm → if False
AlwaysPre: the layer is pre-LN, whatever pre_norm says
    if self.pre_norm → if True
Swapped: post-LN and pre-LN are mixed up
    if self.pre_norm → if not self.pre_norm
NormedResidual: in pre-LN the sum is made with the normalised vectors, not with the input
    Y = Y + part(layer_norm(Y, self.gains[n], self.biases[n]))
    → Y = layer_norm(Y, self.gains[n], self.biases[n])
      Y = Y + part(Y)
NormedPart: in post-LN the part is normalised instead of the sum
    layer_norm(Y + part(Y), → Y + layer_norm(part(Y),
OneNorm: all norms use row 0 of gains and biases
    enumerate(parts) → zip([0, 0, 0], parts)
PlainNorm: gains and biases are not used
    for n, part
    → layer_norm = lambda Y, *_: nn.functional.layer_norm(Y, Y.shape[-1:])
      for n, part
NoNorm: there is no layer norm
    for n, part
    → layer_norm = lambda Y, *_: Y
      for n, part
""",
)

changed(
    FeedForward,
    "ThreeAxes",
    "X must have three axes",
    ("return torch", "B, T, D = X.shape\n        return torch"),
    told_by="not enough values to unpack",
)

changed(
    EncoderLayer,
    "Unmasked",
    "the mask is not used",
    ("if self.pre_norm", "mask = None\n        if self.pre_norm"),
)

changed(
    EncoderLayer,
    "Inverted",
    "the mask is inverted: here True = may attend",
    ("if self.pre_norm", "mask = None if mask is None else ~mask\n        if self.pre_norm"),
)


@bug(EncoderLayer, "the feed-forward network comes before attention")
class ThinksFirst(EncoderLayer):
    def forward(self, X, mask=None):
        for n, part in enumerate([self.feed_forward, lambda X: self.attention(X, mask=mask)]):
            if self.pre_norm:
                X = X + part(layer_norm(X, self.gains[n], self.biases[n]))
            else:
                X = layer_norm(X + part(X), self.gains[n], self.biases[n])
        return X


mistakes(
    EncoderLayer,
    """
NoFeedForward: the feed-forward network is left out
    return X + self.feed_forward(layer_norm(X, self.gains[1], self.biases[1])) → return X
    return layer_norm(X + self.feed_forward(X), self.gains[1], self.biases[1]) → return X
Parallel: both parts read the layer's input, side by side
    X = X + self.attention → attended = self.attention
    return X + self → return X + attended + self
    X + self.attention(X, mask=mask) → X + self.attention(X, mask=mask) + self.feed_forward(X)
    return layer_norm(X + self.feed_forward(X), → return layer_norm(X,
""",
)


@bug(EncoderLayer, "X is changed in place")
class InPlace(EncoderLayer):
    def forward(self, X, mask=None):
        Y = super().forward(X, mask)
        with torch.no_grad():
            X.copy_(Y)
        return Y


mistakes(
    DecoderLayer,
    """
TargetUnmasked: the target's mask is not used
    (Y, mask=mask) → (Y)
SourceUnmasked: the source's mask is not used
    (Y, memory, memory_mask) → (Y, memory)
CrossFirst: cross-attention comes before self-attention
    enumerate(parts) → enumerate([parts[1], parts[0], parts[2]])
NeverLooks: cross-attention looks at the target again instead of the source
    (Y, memory, memory_mask) → (Y)
NoCross: cross-attention is left out
    enumerate(parts) → [(0, parts[0]), (2, parts[2])]
PartsSwapped: self_attention and cross_attention are mixed up
    self.self_attention(Y, mask → self.cross_attention(Y, mask
    self.cross_attention(Y, memory → self.self_attention(Y, memory
* MemoryNormed: the memory is also normalised
    parts = [
    → memory = layer_norm(memory, self.gains[1], self.biases[1])
      parts = [
MemoryNormedBefore: the memory is also normalised
    parts = [
    → memory = layer_norm(memory, self.gains[1], self.biases[1]) if self.pre_norm else memory
      parts = [
MemoryDetached: no gradient passes to the encoder
    (Y, memory, memory_mask) → (Y, memory.detach(), memory_mask)
    says: No gradient reaches memory
* MasksSwapped: the two masks are swapped
    mask=mask → mask=memory_mask
    (Y, memory, memory_mask) → (Y, memory, mask)
    says: raised RuntimeError: 
AlwaysCausal: a mask is made causal, whatever it allows
    parts = [
    → mask = None if mask is None else mask & causal_mask(Y.shape[1])
      parts = [
""",
)

mistakes(
    Transformer,
    """
NotScaled: the embeddings are not multiplied by √D
    math.sqrt(self.D) * table → table
ScaledByD: the embeddings are multiplied by D instead of √D
    math.sqrt(self.D) * table → self.D * table
Divided: the embeddings are divided by √D instead of multiplied
    math.sqrt(self.D) * table → 1 / math.sqrt(self.D) * table
NoPositions: no positions are added
    table[words] + positions → table[words]
* PositionsScaled: the positions are multiplied by √D together with the embeddings
    table[words] + positions → (table[words] + positions)
FromOne: positions count from 1
    words.shape[1], self.D).to(table) → words.shape[1] + 1, self.D).to(table)[1:]
OnePosition: all positions of a sentence get the encoding of one position
    words.shape[1], self.D → 1, self.D
* NoCausalMask: the decoder has no causal mask
    layer(Y, memory, mask, → layer(Y, memory, None,
CausalInverted: the causal mask is inverted: here True = may attend
    mask = causal → mask = ~causal
* DecoderSeesPadding: the decoder does not mask the source's padding
    layer(Y, memory, mask, memory_mask) → layer(Y, memory, mask)
EncoderSeesPadding: the encoder does not mask the padding
    layer(X, mask) → layer(X)
EncoderCausal: the encoder also has a causal mask
    layer(X, mask) → layer(X, mask & causal_mask(X.shape[1]))
""",
)

changed(
    Transformer,
    "EncoderNotNormed",
    "in pre-LN the last norm of the encoder is missing",
    (
        "        if self.pre_norm:\n            X = layer_norm(X, self.gains[0], self.biases[0])\n",
        "",
    ),
)

changed(
    Transformer,
    "DecoderNotNormed",
    "in pre-LN the last norm of the decoder is missing",
    (
        "        if self.pre_norm:\n            Y = layer_norm(Y, self.gains[1], self.biases[1])\n",
        "",
    ),
)

mistakes(
    Transformer,
    """
LayersNotStacked: only the last layer's output counts: every layer reads the embeddings
    in self.decoder: → in self.decoder[-1:]:
WrongTable: the target's words are looked up in output_table
    self.embed(Y, self.target_table) → self.embed(Y, self.output_table)
TiedAnyway: the logits are products with target_table instead of output_table
    Y @ self.output_table → Y @ self.target_table
DividedLogits: the logits are divided by √D
    return Y @ self.output_table.T → return Y @ self.output_table.T / math.sqrt(self.D)
Probabilities: probabilities are returned instead of logits
    Y @ self.output_table.T → (Y @ self.output_table.T).softmax(dim=-1)
""",
)

mistakes(
    count_parameters,
    """
* attention_without_biases: the biases of the attentions are left out
    4 * (D + 1) * D → 4 * D * D
* networks_without_biases: the biases of the feed-forward networks are left out
    (D + 1) * D_ff + (D_ff + 1) * D → D * D_ff + D_ff * D
one_attention_each: both attentions of a decoder layer are counted as one
    3 * layers → 2 * layers
no_output_projection: W_O is left out: three projections are counted instead of four
    layers * 4 → layers * 3
two_norms: a decoder layer is given two norms instead of three
    5 * layers → 4 * layers
gains_only: a norm is given a gain, but no bias
    pre_norm) * 2 * D → pre_norm) * D
no_last_norms: the last two norms of pre-LN are left out
    layers + 2 * pre_norm → layers
two_tables: output_table is left out
    2 * V_target → V_target
not_shared: a shared table is counted three times
    V_source * D if shared else →
""",
)

mistakes(
    Transformer,
    """
PositionsFloat: the positions stay float32
    .to(table) →
    says: as the table is, yours torch.float32
Trimmed: the memory is as wide as the longest sentence, not as the batch
    mask = padding
    → X = X[:, : int(lengths.max())]
      mask = padding
    says: mask of a batch wider than its sentences should have shape
""",
)

mistakes(
    count_parameters,
    """
encoder_only: only the encoder's feed-forward networks are counted
    2 * layers * ( → layers * (
""",
)

mistakes(
    noam_lr,
    """
largest: the maximum of the two is taken, not the minimum
    min(step** → max(step**
no_size: the factor D^(-1/2) is left out
    D**-0.5 * →
falls_faster: it falls as 1/step instead of 1/√step
    step**-0.5 → warmup**0.5 / step
stays: it never falls after step warmup
    return D
    → step = min(step, warmup)
      return D
no_warmup: there is no warm-up
    min(step**-0.5, step * warmup**-1.5) → step**-0.5
* from_zero: steps count from 0
    if step < 1
    → step += 1
      if step < 1
wrong_power: warmup is raised to -1/2 instead of -3/2
    warmup**-1.5 → warmup**-0.5
by_size: it is divided by D instead of √D
    D**-0.5 → D**-1
accepts_zero: step 0 is accepted
    if step < 1
    → step = max(step, 1)
      if step < 1
    says: should raise ValueError when step is 0
""",
)

mistakes(
    label_smoothing_loss,
    """
unsmoothed: the smoothing is not used
    if not 0
    → smoothing = 0
      if not 0
padding_counts: padding counts as a word to predict
    losses[targets != ignore] → losses
* divided_by_all: padding adds nothing, but the sum is divided by the number of all places
    losses[targets != ignore] → (losses * (targets != ignore))
* among_others: ε is shared among the V - 1 other words instead of all V
    smoothing * log_p.mean(dim=-1) → smoothing / (log_p.shape[-1] - 1) * (log_p.sum(dim=-1) - right)
not_shared_out: every word gets ε instead of ε / V
    log_p.mean → log_p.sum
too_much: the right word gets the whole 1, and ε / V is added to that
    -(1 - smoothing) * right → -right
mixed_up: 1 - ε and ε are mixed up
    -(1 - smoothing) * right - smoothing * → -smoothing * right - (1 - smoothing) *
summed: the losses are added up instead of averaged
    ignore].mean() → ignore].sum()
wrong_sign: the sign is wrong: it rises as the model gets better
    return losses → return -losses
no_logarithm: probabilities are used instead of their logarithms
    log_softmax(logits → log_softmax(logits.softmax(dim=-1)
sentence_by_sentence: each sentence has a mean of its own, and these are averaged
    return losses[targets != ignore].mean()
    → rows = targets.reshape(-1, targets.shape[-1]), losses.reshape(-1, targets.shape[-1])
      means = [own[y != ignore].mean() for y, own in zip(*rows) if (y != ignore).any()]
      return torch.stack(means).mean()
""",
)

mistakes(
    greedy_translate,
    """
* last_word: the decoder reads the last word alone, not all words so far
    decode(Y, → decode(Y[:, -1:],
first_position: the first position's logits are read instead of the last one's
    [:, -1] → [:, 0]
""",
)

changed(
    greedy_translate,
    "after_the_end",
    "writing goes on after EOS",
    ("        y = torch.where(ended, PAD, y)\n", ""),
    classic=True,
)

mistakes(
    greedy_translate,
    """
end_again: EOS is written again and again after a sentence's end, not PAD
    torch.where(ended, PAD, y) → torch.where(ended, EOS, y)
never_stops: max_length words are always written
    if ended.all() → if False
starts_with_end: the decoder begins with EOS instead of BOS
    1), BOS) → 1), EOS)
starts_with_padding: the decoder begins with PAD instead of BOS
    1), BOS) → 1), PAD)
with_start: BOS is also returned
    return Y[:, 1:] → return Y
stops_with_first: it stops as soon as one sentence has ended
    ended.all() → ended.any()
one_too_few: BOS counts as one of the max_length words
    range(max_length) → range(max(max_length - 1, 1))
one_too_many: one more word than max_length is written where no EOS comes
    range(max_length) → range(max_length + 1)
padding_read: the source's padding is not masked
    (X, lengths) → (X, torch.full_like(lengths, X.shape[1]))
sampled: words are drawn at random instead of taking the most probable one
    argmax(dim=1) → softmax(dim=1).multinomial(1)[:, 0]
""",
)


equivalent(
    noam_lr,
    "return D ** (-0.5) * min(step ** (-0.5), step * warmup ** (-1.5)) → "
    "return D ** (-0.5) * min(step * warmup ** (-1.5), step ** (-0.5))",
    "the lesser of two numbers is the same in either order",
)

changed(
    greedy_translate,
    "encodes_every_step",
    "the source is encoded again at every step",
    ("    memory, mask = model.encode(X, lengths)\n", ""),
    ("(Y, memory, mask)", "(Y, *model.encode(X, lengths))"),
)
