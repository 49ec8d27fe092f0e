"""Known wrong solutions of inside."""

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.inside import (
    SparseAutoencoder,
    ablate,
    direct_logit_attribution,
    induction_score,
    logit_lens,
    logit_lens_fault,
    patch_activation,
    path_patch,
    previous_token_score,
    record,
    selectivity,
    steering_vector,
    toy_superposition,
)

mistakes(
    record,
    """
* left_when_it_raises: hooks are removed after the run, and stay where the model raises
    finally: → except ZeroDivisionError:
    return model(tokens), kept → return model(tokens), ([h.remove() for h in hooks], kept)[1]
    says: Hooks left after an error should be 0
never_removed: hooks are never removed
    hook.remove() → pass
    says: Hooks left should be 0
* late_name: all that is kept goes under the last name: the loop's variable is read too late
    {name: output} → {names[-1]: output}
late_change: all changes are the last one: the loop's variable is read too late
    inputs, output: function(output) → inputs, output: [*changes.values()][-1](output)
""",
)


changed(
    record,
    "swallowed",
    "an error of the model is swallowed",
    ("    finally:", "    except Exception:\n        return None, kept\n    finally:"),
    told_by="The error of a change should get through",
)


mistakes(
    record,
    """
detached: what is kept is detached, and no gradient goes back
    {name: output} → {name: output.detach()}
    says: No gradient goes back from kept
no_gradient: the model runs without gradients
    return model(tokens), kept → return torch.no_grad()(model)(tokens), kept
    says: No gradient goes back from the logits
changes_ignored: changes are ignored
    inputs, output: function(output) → inputs, output: None
first_change_only: only the first change is made
    in changes.items() → in [*changes.items()][:1]
input_changed: a change gets the module's input in place of its output
    inputs, output: function(output) → inputs, output: function(inputs[0])
input_kept: a module's input is kept in place of its output
    {name: output} → {name: inputs[0]}
""",
)


@bug(record, "what is kept is from before the change")
def kept_before(model, tokens, names=(), changes=None):
    logits, kept = record(model, tokens, names, changes)
    before = {
        name: record(
            model,
            tokens,
            [name],
            {other: change for other, change in (changes or {}).items() if other != name},
        )[1][name]
        for name in names
    }
    return logits, {name: before[name] for name in kept}


mistakes(
    record,
    """
unknown_changes: unknown names in changes are not noticed before the run
    {*names, *changes} → {*names}
    says: a name in changes is unknown
unknown_skipped: unknown names are skipped
    if unknown := sorted → if False and sorted
    for name in names: → for name in [n for n in names if n in modules]:
    says: should raise ValueError
too_late: unknown names are noticed only after a run
    {*names, *changes} - → {*names, *changes, *(model(tokens), ())[1]} -
    says: should be 0, yours are 1
kept_only: the logits are not returned
    return model(tokens), kept → return (model(tokens), kept)[1]
    says: should return (logits, kept), yours returns a dict
""",
)

mistakes(
    logit_lens,
    """
* no_norm: the last norm is left out
    X * scale * weight → X * weight
* no_weight: the norm's weight is left out
    X * scale * weight → X * scale
* logits: logits are returned, without softmax
    torch.log_softmax(X * scale * weight @ W_head, dim=-1) → X * scale * weight @ W_head
probabilities: probabilities are returned in place of their logarithms
    torch.log_softmax → torch.softmax
over_positions: softmax is taken over the axis before the last
    W_head, dim=-1) → W_head, dim=-2 if X.dim() > 1 else -1)
sum_of_squares: the squares are summed and not averaged
    .mean(dim=-1, keepdim=True) + eps → .sum(dim=-1, keepdim=True) + eps
outside: ε is added outside the root
    torch.rsqrt(X.square() → 1 / torch.add(other=eps, input=X.square()
    keepdim=True) + eps) → keepdim=True).sqrt())
added_after: ε is added outside the root
    torch.rsqrt(X.square() → torch.add(other=eps, input=X.square()
    keepdim=True) + eps) → keepdim=True).rsqrt())
no_eps: ε is left out
    + eps) → + 0 * eps)
eps_fixed: ε is 1e-5, whatever is given
    + eps) → + 1e-5)
centred: the mean is subtracted, as LayerNorm does
    X * scale * weight @ → (X - X.mean(dim=-1, keepdim=True)) * scale * weight @
over_the_batch: the norm is taken over all vectors together
    mean(dim=-1, keepdim=True) → mean()
overflowing: the exponentials of large logits overflow
    return torch.log_softmax( → E = (
    W_head, dim=-1) → W_head); return E - E.exp().sum(dim=-1, keepdim=True).log()
    says: yours is -inf
detached: no gradient goes back
    scale = torch.rsqrt(X → X = X.detach(); scale = torch.rsqrt(X
    says: No gradient goes back
""",
)

black_box(
    logit_lens,
    "over_the_batch",
    curve='gained["target"]',
    label="gain of the second copy, nats",
    over="layers read, %",
    after="gained",
)

wrong_answers(logit_lens_fault, "C")
mistakes(
    logit_lens_fault,
    """
one_vector: there is a single vector
    [[1.0], [3.0]] → [[1.0]]
    says: With these arguments the black box gives what is right
same_length: both vectors are equally long
    3.0 → -1.0
    says: With these arguments the black box gives what is right
no_head: all logits are 0
    [[0.0, 1.0]] → [[0.0, 0.0]]
    says: With these arguments the black box gives what is right
two_weights: the norm has more weights than the vectors have numbers
    ones(1) → ones(2)
    says: logit_lens raised RuntimeError
no_vector: there is no axis of numbers
    torch.tensor([[1.0], [3.0]]) → torch.tensor(1.0)
    says: logit_lens raised
lists: the vectors are lists of Python's numbers
    (X, weight → (X.tolist(), weight
    says: logit_lens raised AttributeError
two_arguments: W_head is missing
    (X, weight, W_head) → (X, weight)
    says: logit_lens raised TypeError
""",
)

mistakes(
    direct_logit_attribution,
    """
* own_scale: each part is normalised by its own length, so that the parts do not sum to the logit
    parts.sum(dim=0).square() → parts.square()
no_scale: the scale of the last norm is left out
    scale * direction → direction
no_weight: the norm's weight is left out
    weight * W_head.T[tokens] → W_head.T[tokens]
eps_fixed: ε is 1e-5, whatever is given
    + eps) → + 1e-5)
no_eps: ε is left out
    + eps) → + 0 * eps)
outside: ε is added outside the root
    torch.rsqrt(parts.sum( → 1 / torch.add(other=eps, input=parts.sum(
    keepdim=True) + eps) → keepdim=True).sqrt())
sum_of_squares: the squares are summed and not averaged
    .mean(dim=-1, keepdim=True) → .sum(dim=-1, keepdim=True)
shared_equally: the logit is shared equally among the parts
    (parts * → (parts.mean(dim=0).expand_as(parts) *
absolute: what parts take away is counted as added
    (scale * direction)).sum(dim=-1) → (scale * direction)).sum(dim=-1).abs()
centred: the mean of each part is subtracted, as LayerNorm does
    (parts * → ((parts - parts.mean(dim=-1, keepdim=True)) *
first_token: all positions ask about the first one's token
    W_head.T[tokens] → W_head.T[tokens[:, :1]]
next_token: the tokens are shifted by one, so that each position asks about the one after
    W_head.T[tokens] → W_head.T[tokens.roll(-1, dims=1)]
token_before: the tokens are shifted by one, so that each position asks about the one before
    W_head.T[tokens] → W_head.T[tokens.roll(1, dims=1)]
cut: the tokens are shifted by one, and the last position is left out
    (parts * (scale * direction)) → ((parts * scale)[:, :, :-1] * direction[:, 1:])
summed: the sum of the parts is returned
    (scale * direction)).sum(dim=-1) → (scale * direction)).sum(dim=-1).sum(dim=0)
detached: no gradient goes back
    return (parts → return (parts.detach()
    scale = torch.rsqrt(parts. → scale = torch.rsqrt(parts.detach().
    says: No gradient goes back
""",
)

mistakes(
    previous_token_score,
    """
itself: the score is of the position itself
    A.diagonal(-1, → A.diagonal(0,
* next_one: rows and columns are swapped: it is the weight on the position after
    A.diagonal(-1, -2, -1) → A.diagonal(1, -2, -1)
two_back: the score is of two positions back
    A.diagonal(-1, -2, -1) → (A.diagonal(-2, -2, -1) if A.shape[-1] > 2 else A.diagonal(-1, -2, -1))
first_too: position 0 counts, too, with nothing
    .mean(dim=-1) → .sum(dim=-1) / A.shape[-1]
summed: the weights are summed and not averaged
    .mean(dim=-1) → .sum(dim=-1)
largest: the largest weight is taken in place of the mean
    .mean(dim=-1) → .amax(dim=-1)
over_all: heads and sequences are averaged, too
    .mean(dim=-1) → .mean()
by_heads: the weight is read from the axes of heads and positions
    A.diagonal(-1, -2, -1) → (A.diagonal(-1, -3, -2) if A.dim() > 2 else A.diagonal(-1, -2, -1))
no_error: a text of one position gives NaN
    if A.shape[-1] < 2 → if False
    says: should raise ValueError when T is 1
refuses_two: two positions are refused
    if A.shape[-1] < 2 → if A.shape[-1] < 3
    says: raised ValueError: a position before
detached: no gradient goes back
    return A. → return A.detach().
    says: No gradient goes back
""",
)

mistakes(
    induction_score,
    """
* same_token: the score is of the position of the same token, not of the one after it
    diagonal(1 - period, → diagonal(-period,
    [..., 1:] → [..., :]
too_far: the score is of the position before the same token
    diagonal(1 - period, → diagonal(-1 - period if period + 1 < T else 1 - period,
further: the score is of the position before the same token
    diagonal(1 - period, → diagonal(-1 - period,
    [..., 1:] → [..., :]
* first_copy: a position of the first copy counts, too
    [..., 1:].mean → .mean
without_the_first: the first position of the second copy is left out
    [..., 1:] → [..., 2:]
transposed: rows and columns are swapped
    diagonal(1 - period, → diagonal(period - 1,
summed: the weights are summed and not averaged
    .mean(dim=-1) → .sum(dim=-1)
over_T: the sum is divided by all T positions
    .mean(dim=-1) → .sum(dim=-1) / T
largest: the largest weight is taken in place of the mean
    .mean(dim=-1) → .amax(dim=-1)
over_all: heads and sequences are averaged, too
    .mean(dim=-1) → .mean()
no_error: a period as long as the text gives NaN
    1 <= period < T → 1 <= period
    says: should raise ValueError when the period is 6
one_too_long: a period as long as the text is taken
    1 <= period < T → 1 <= period <= T
    says: should raise ValueError when the period is 6
zero: a period of 0 is taken
    1 <= period < T → 0 <= period < T
    says: should raise ValueError when the period is 0
detached: no gradient goes back
    return A. → return A.detach().
    says: No gradient goes back
""",
)

mistakes(
    ablate,
    """
* other_heads: all heads of the layer are replaced, not only those that are named
    for place, head in heads if place == layer] → for head in range(whole[names[layer]].shape[2])]
one_of_a_layer: of several heads of a layer, only the last is replaced
    if place == layer] → if place == layer][-1:]
next_head: heads are counted from 1
    missing = [head for → missing = [head - 1 for
next_layer: layers are counted from 1
    f"blocks.{layer}.attention.heads" → f"blocks.{max(layer - 1, 0)}.attention.heads"
first_layer_only: heads of the first named layer alone are replaced
    for layer in names} → for layer in [*names][:1]}
by_position: the mean is over sequences alone, one for each position
    z.mean(dim=(0, 1)) → z.mean(dim=0)
by_sequence: the mean is over positions alone, one for each sequence
    z.mean(dim=(0, 1)) → z.mean(dim=1, keepdim=True)
over_heads: the mean is over heads, too
    z.mean(dim=(0, 1)) → z.mean(dim=(0, 1, 2))
over_features: the mean is over the head's features, too
    z.mean(dim=(0, 1)) → z.mean(dim=(0, 1, 3))[:, None]
next_sequence: a head is resampled from the sequence after, not before
    z.roll(1, dims=0) → z.roll(-1, dims=0)
positions_rolled: a head is resampled from the position before
    z.roll(1, dims=0) → z.roll(1, dims=1)
zero_is_usual: zero is what replaces a head when nothing is said
    how: str = "mean" → how: str = "zero"
no_error: another word means the mean
    if how not in substitutes → if False
    substitutes[how](whole → substitutes.get(how, substitutes["mean"])(whole
    says: should raise ValueError when how is 'median'
own_outputs: with one sequence a head is resampled from itself
    if how == "resampled" and len(tokens) < 2 → if False
    says: should raise ValueError when a head is resampled
one_is_too_few: one sequence is refused for the mean, too
    if how == "resampled" and len(tokens) < 2 → if len(tokens) < 2
    says: raised ValueError: a head's outputs for another sequence
* as_it_runs: the mean is taken while other heads are missing, not from the whole model's run
    substitutes[how](whole[names[layer]]) → substitutes[how](z)
""",
)

mistakes(
    patch_activation,
    """
* other_way_round: the text that is read is the other one: the roles are exchanged
    _, found = record(model, other, [name]) → _, found = record(model, tokens, [name])
    return record(model, tokens → return record(model, other
inverted: the mask is inverted: the patch goes where it is False
    torch.where(where, found[name], out) → torch.where(where, out, found[name])
everywhere: the patch goes everywhere
    torch.where(where, found[name], out) → found[name]
nothing: what is patched is from the same text
    record(model, other, [name]) → record(model, tokens, [name])
zeroed: zero stands in place of the patch
    torch.where(where, found[name], out) → torch.where(where, 0, out)
added: the patch is added to what is there
    torch.where(where, found[name], out) → torch.where(where, found[name] + out, out)
averaged: the mean over sequences is patched
    torch.where(where, found[name], out) → torch.where(where, found[name].mean(dim=0), out)
next_sequence: the patch is from another sequence of the batch
    torch.where(where, found[name], out) → torch.where(where, found[name].roll(1, 0), out)
no_error: texts of different shapes are not refused
    if tokens.shape != other.shape → if False
    says: should raise ValueError when the texts
by_length: only the lengths of the texts are compared
    tokens.shape != other.shape → tokens.shape[1] != other.shape[1]
    says: should raise ValueError when the texts
by_count: only the numbers of texts are compared
    tokens.shape != other.shape → len(tokens) != len(other)
    says: should raise ValueError when the texts
other_logits: the other text's logits are returned, without a patch
    _, found = record(model, other, [name]) → return record(model, other)[0]
""",
)

mistakes(
    path_patch,
    """
* whole_output: the sender's other output is added, in place of the difference
    (there[sent] - here[sent])[:, :, head] → there[sent][:, :, head]
* not_normed: what arrives is not normalised
    = model.blocks[later].norm_1(here → = (here
sign: the difference has the wrong sign
    (there[sent] - here[sent]) → (here[sent] - there[sent])
all_senders: all heads of the sender's layer send
    z @ W_O) → (there[sent] - here[sent]).flatten(2) @ model.blocks[layer].attention.W_O)
wrong_rows: W_O's rows are those of the first head
    unflatten(0, (-1, z.shape[-1]))[head] → unflatten(0, (-1, z.shape[-1]))[0]
strided_rows: every so many-th row of W_O is taken for the head's
    unflatten(0, (-1, z.shape[-1]))[head] → unflatten(0, (z.shape[-1], -1))[:, head]
receivers_rows: W_O's rows are those of the receiver's number
    unflatten(0, (-1, z.shape[-1]))[head] → unflatten(0, (-1, z.shape[-1]))[reader]
receivers_norm: the sender's W_O is looked for in the receiver's layer
    model.blocks[layer].attention.W_O → model.blocks[later].attention.W_O
senders_norm: the norm is that of the sender's layer
    model.blocks[later].norm_1( → model.blocks[layer].norm_1(
earlier_stream: the stream is taken from before the receiver's last layer but one
    f"blocks.{later - 1}" → (f"blocks.{later - 2}" if later > 1 else "token")
after_the_sender: the stream is taken from after the sender's layer, and not before the receiver's
    f"blocks.{later - 1}" → f"blocks.{layer}"
all_three: queries, keys and values are all made of the new stream, whatever is wanted
    {entry: lambda X: arriving} → {f"blocks.{later}.norm_1": lambda X: arriving}
reader_as_head: the receiver has the sender's number
    output[:, :, reader] → output[:, :, head]
    reached[returned][:, :, reader] → reached[returned][:, :, head]
heads_exchanged: sender and receiver have each other's numbers
    (layer, head), (later, reader) = → (layer, reader), (later, head) =
always_keys: the patch goes into keys, whatever is wanted
    attention.for_{into}" → attention.for_keys"
queries_usual: queries are what is patched when nothing is said
    into: str = "keys" → into: str = "queries"
same_layer: heads of one layer are taken
    if layer >= later: → if layer > later:
    says: should raise ValueError when (1, 0) is patched
any_order: heads in the wrong order are taken
    if layer >= later: → if layer == later:
    says: should raise ValueError when (2, 0) is patched
any_word: another word means keys
    attention.for_{into}" → attention.for_{into if into in ('queries', 'values') else 'keys'}"
    says: should raise ValueError when (0, 0) is patched
read_by_all: all heads of the receiver's layer read the patch
    output[:, :, reader] = reached[returned][:, :, reader] → output[:] = reached[returned]
""",
)

mistakes(
    selectivity,
    """
* on_fitted_rows: both probes are scored on the rows that they were fitted to
    features[held_out], classes) → features[~held_out], classes)
    == y[held_out]) → == y[~held_out])
* by_token: the control task draws a label for each token, and not for each type
    drawn[types] → labels[torch.randint(len(labels), types.shape, generator=generator)]
uniform: all classes are equally frequent in the control task, however frequent they are in labels
    labels[chosen.to(labels.device)] → torch.randint(classes, chosen.shape, generator=generator)
    says: Control where features say nothing
all_fitted: the probes are fitted to all rows, those that are held out included
    fitted = features[~held_out], y[~held_out] → fitted = features, y
held_out_fitted: the probes are fitted to the rows that are held out
    fitted = features[~held_out], y[~held_out] → fitted = features[held_out], y[held_out]
exchanged: rows that are held out and others are exchanged
    fitted = features[~held_out], y[~held_out] → fitted = features[held_out], y[held_out]
    features[held_out], classes) → features[~held_out], classes)
    == y[held_out]) → == y[~held_out])
control_first: the control comes before the accuracy
    accuracy(labels), accuracy(drawn[types]) → accuracy(drawn[types]), accuracy(labels)
difference: the difference of the accuracies is returned in place of the second
    accuracy(drawn[types]) → accuracy(labels) - accuracy(drawn[types])
shuffled: the control task is the labels, shuffled
    drawn[types] → labels[torch.randperm(len(labels), generator=generator)]
labels_twice: the control task is the labels themselves
    drawn[types] → labels
constant: all types have the same class
    labels[chosen.to(labels.device)] → labels[:1].expand(len(chosen))
    says: yours is 1.000
one_probe: the control task is read by the probe of the labels
    fitted = features[~held_out], y[~held_out] → fitted = features[~held_out], labels[~held_out]
global_state: the control task is drawn from torch's own state
    , generator=generator) → )
    says: Two calls with the same input differ
always_the_same: the control task is the same whatever the generator
    , generator=generator) → , generator=torch.Generator().manual_seed(0))
    says: Controls of six generators should differ
errors: the share of wrong guesses is returned
    guesses == y[held_out] → guesses != y[held_out]
no_row: it is not refused that no row is held out
    if held_out.all() or not held_out.any() → if held_out.all()
    says: 0 of 8 rows are held out
every_row: it is not refused that every row is held out
    if held_out.all() or not held_out.any() → if not held_out.any()
    features[~held_out], y[~held_out] → ((f := held_out.all() | ~held_out), features[f], y[f])[1:]
    says: 8 of 8 rows are held out
""",
)

mistakes(
    steering_vector,
    """
sign: the direction is from the wanted kind to the other
    positive.mean(dim=0) - negative.mean(dim=0) → negative.mean(dim=0) - positive.mean(dim=0)
summed: sums are subtracted, in place of means
    positive.mean(dim=0) - negative.mean(dim=0) → positive.sum(dim=0) - negative.sum(dim=0)
pairs: vectors are subtracted in pairs, and what is left over is ignored
    positive.mean(dim=0) → positive[: len(negative)].mean(dim=0)
    negative.mean(dim=0) → negative[: len(positive)].mean(dim=0)
positive_only: the mean of the negative vectors is not subtracted
    - negative.mean(dim=0) → - 0 * negative.mean(dim=0)
first_pair: the first vectors alone are compared
    positive.mean(dim=0) - negative.mean(dim=0) → positive[0] - negative[0]
normalised: v has length 1
    return v, functional → return v / v.norm(), functional
* unit_controls: the controls have length 1, and not v's length
    drawn, dim=1) * v.norm() → drawn, dim=1)
    says: yours is 1 (
* raw_controls: the controls are as long as they are drawn
    functional.normalize(drawn, dim=1) * v.norm() → drawn
by_columns: the controls are normalised over the wrong axis
    normalize(drawn, dim=1) → normalize(drawn, dim=0)
positive_quarter: all entries of the controls are positive
    drawn = torch.randn( → drawn = torch.rand(
    says: Entries of unit controls
one_control: all controls are the same
    torch.randn(controls, → torch.randn(1,
    .to(v.device) → .to(v.device).repeat(controls, 1)
    says: should be
shuffled: the controls are v with its entries shuffled
    functional.normalize(drawn, dim=1) * v.norm() → v[drawn.argsort(dim=1)]
    says: should be
global_state: the controls are drawn from torch's own state
    generator=generator, → generator=None,
    says: Two calls with the same input differ
always_the_same: the controls are the same whatever the generator
    generator=generator, → generator=torch.Generator().manual_seed(0),
    says: Controls of another generator should differ
""",
)

mistakes(
    toy_superposition,
    """
* no_relu: x̂ goes through no relu
    torch.relu(X @ W @ W.T + b) → (X @ W @ W.T + b)
* relu_inside: relu stands before the bias
    torch.relu(X @ W @ W.T + b) → torch.relu(X @ W @ W.T) + b
no_bias: the bias is left out
    W.T + b → W.T
relu_on_h: h goes through relu, too
    X @ W @ W.T → torch.relu(X @ W) @ W.T
relu_on_h_alone: h goes through relu, and x̂ does not
    torch.relu(X @ W @ W.T + b) → (torch.relu(X @ W) @ W.T + b)
absolute: absolute errors are counted, not their squares
    .square() → .abs()
importance_squared: the importance is inside the square
    importance * (X - Y).square() → (importance * (X - Y)).square()
all_equal: the importance is left out
    importance * (X - Y) → (X - Y)
over_features: the mean is over features, too
    .sum(dim=1).mean() → .mean()
summed: the sum is over the batch, too
    .sum(dim=1).mean() → .sum()
by_rows: losses of rows are returned, without a mean
    .sum(dim=1).mean() → .sum(dim=1)
loss_first: the loss comes first
    return Y, (importance → return (importance
    .sum(dim=1).mean() → .sum(dim=1).mean(), Y
detached: no gradient goes back from the loss
    (X - Y).square() → (X - Y.detach()).square()
    says: No gradient goes back
""",
)

mistakes(
    SparseAutoencoder,
    """
* Smallest: the k smallest are kept
    f.topk(self.k, dim=-1) → f.topk(self.k, dim=-1, largest=False)
* OverTheBatch: the k largest of each direction are kept, over the vectors
    f.topk(self.k, dim=-1) → f.topk(self.k, dim=0)
    scatter(-1, → scatter(0,
OverTheAxisBefore: the k largest of each direction are kept, over the vectors
    f.topk(self.k, dim=-1) → f.topk(min(self.k, f.shape[-2]), dim=-2)
    scatter(-1, → scatter(-2,
Threshold: all entries that reach the k-th largest are kept, more than k where some are equal
    torch.zeros_like(f).scatter(-1, places, values) → torch.where(f >= values[..., -1:], f, 0)
    says: Entries kept of equal ones
KIgnored: k is ignored
    if self.k is None: → if True:
Ones: what is kept becomes 1
    scatter(-1, places, values) → scatter(-1, places, torch.ones_like(values))
NoRelu: f goes through no relu
    f = torch.relu((X → f = ((X
NotCentred: b_dec is not subtracted before encoding
    (X - self.b_dec) @ → X @
NoEncoderBias: b_enc is left out
    @ self.W_enc + self.b_enc) → @ self.W_enc)
NoDecoderBias: b_dec is not added after decoding
    f @ self.W_dec + self.b_dec, f → f @ self.W_dec, f
Tied: vectors are encoded with the decoder's transpose
    (X - self.b_dec) @ self.W_enc → (X - self.b_dec) @ self.W_dec.T
    says: should be
CodeFirst: f comes before x̂
    return f @ self.W_dec + self.b_dec, f → return f, f @ self.W_dec + self.b_dec
* LengthsIgnored: the penalty counts f alone, whatever the lengths of the rows
    penalty * f @ self.W_dec.norm(dim=1) → penalty * f.sum(dim=-1)
LengthsOfColumns: the lengths are those of W_enc's columns
    self.W_dec.norm(dim=1) → self.W_enc.norm(dim=0)
MeanOfFeatures: squared errors are averaged over features, not summed
    .square().sum(dim=-1) → .square().mean(dim=-1)
RootOfErrors: the error is ‖x - x̂‖, without the square
    .square().sum(dim=-1) → .norm(dim=-1)
SumOfVectors: losses are summed over the vectors
    self.W_dec.norm(dim=1)).mean() → self.W_dec.norm(dim=1)).sum()
FixedPenalty: a penalty is always added
    penalty: float = 0.0 → penalty: float = 1.0
ErrorDetached: no gradient goes back from the errors
    (X - Y).square() → (X - Y.detach()).square()
    says: gradient of
Untied: W_enc starts at random, too
    rows.T.clone() → functional.normalize(torch.randn(D, M), dim=0)
    says: W_enc
LongRows: rows of W_dec are not of length 1
    functional.normalize(torch.randn(M, D), dim=1) → torch.randn(M, D)
    says: lengths of the rows of W_dec
ColumnsOfOne: the columns of W_dec are of length 1
    functional.normalize(torch.randn(M, D), dim=1) → functional.normalize(torch.randn(M, D), dim=0)
    says: lengths of the rows of W_dec
PositiveRows: all entries of W_dec are positive
    torch.randn(M, D) → torch.rand(M, D)
    says: Entries of W_dec
OneMatrix: W_enc and W_dec share their memory, so that a step of training changes both twice
    rows.T.clone() → rows.T
    says: W_enc should stay
BiasOfOnes: b_enc starts at one
    torch.zeros(M) → torch.ones(M)
    says: b_enc[0] should be 0, yours is 1
TooMany: k may be more than M
    not 1 <= k <= M → k < 1
    says: when k is 6
None_at_all: k may be less than 1
    not 1 <= k <= M → k > M
    says: when k is 0
""",
)

SQUARE = "a pattern is square"
ALONE = "nothing else reads what a layer's heads return"
DEFAULT = "the default says the same"
CHOICE = (
    "substitutes = {'zero': torch.zeros_like, 'mean': lambda z: z.mean(dim=(0, 1)).expand_as(z), "
    "'resampled': lambda z: z.roll(1, dims=0)}"
)
KEEPING = "= KEPT.setdefault('substitutes', {"
ROWS = "functional.normalize(torch.randn(M, D), dim=1)"

equivalent(previous_token_score, "if A.shape[-1] < 2: → if A.shape[-2] < 2:", SQUARE)
equivalent(induction_score, "T = A.shape[-1] → T = A.shape[-2]", SQUARE)
equivalent(ablate, "z = z.clone() → (left out)", ALONE)
equivalent(ablate, "z = z.clone() → z = (lambda same: same)(z)", ALONE)
equivalent(ablate, f"{CHOICE} → {CHOICE.replace('(0, 1)', '(1, 0)')}", "a mean has no order")
equivalent(
    ablate,
    f"{CHOICE} → {CHOICE.replace('= {', KEEPING)})",
    "the functions are the same in each call",
)
equivalent(path_patch, "output = output.clone() → (left out)", ALONE)
equivalent(path_patch, "output = output.clone() → output = (lambda same: same)(output)", ALONE)
equivalent(
    path_patch,
    "_, here = record(model, tokens, [sent, stream]) → "
    "_, here = record(model, tokens, [stream, sent])",
    "what is kept has names",
)
equivalent(
    selectivity,
    "chosen = torch.randint(len(labels), (int(types.max()) + 1,), generator=generator) → "
    "chosen = torch.randint(len(labels), (int(types.max()) + 2,), generator=generator)",
    "the last class drawn belongs to no type",
)
equivalent(
    steering_vector,
    "return (v, functional.normalize(drawn, dim=1) * v.norm()) → "
    "return (v, functional.normalize(drawn) * v.norm())",
    DEFAULT,
)
equivalent(SparseAutoencoder, f"rows = {ROWS} → rows = {ROWS.replace(', dim=1', '')}", DEFAULT)
equivalent(
    SparseAutoencoder,
    f"rows = {ROWS} → rows = vars(self).setdefault('rows', {ROWS})",
    "an instance is made once",
)
equivalent(
    SparseAutoencoder,
    "values, places = f.topk(self.k, dim=-1) → values, places = f.topk(self.k)",
    DEFAULT,
)
