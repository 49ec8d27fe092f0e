"""Known wrong solutions of linear_attention."""

import torch

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.linear_attention import (
    HybridDecoder,
    TokenMixer,
    chunked_scan,
    chunked_scan_fault,
    delta_rule,
    discretise,
    gated_recurrence,
    linear_attention,
    parallel_scan,
    recurrent_linear_attention,
    rwkv_time_mixing,
    selective_state_space,
    short_convolution,
    state_bytes,
)

mistakes(
    linear_attention,
    """
no_features: φ is left out
    functional.elu(Q) + 1, functional.elu(K) + 1 → Q, K
elu_alone: φ is the elu alone, without + 1
    functional.elu(Q) + 1, functional.elu(K) + 1 → functional.elu(Q), functional.elu(K)
exponential: φ is the exponential function
    functional.elu(Q) + 1, functional.elu(K) + 1 → Q.exp(), K.exp()
relu: φ is relu(x) + 1
    functional.elu(Q) + 1, functional.elu(K) + 1 → Q.relu() + 1, K.relu() + 1
keys_alone: φ is applied to the keys alone, not to the queries
    functional.elu(Q) + 1 → Q
values_too: φ is applied to the values too
    A @ V → A @ (functional.elu(V) + 1)
* not_causal: every step attends to all steps, those after it too
    .tril() →
* future_in_the_sum: the sum below the line runs over all steps, those after it too
    .tril() →
    A @ V → A.tril() @ V
not_itself: a step does not attend to itself
    .tril() → .tril(-1)
    total.masked_fill(total == 0, 1) → total
with_softmax: a softmax normalises the weights
    A / total.masked_fill(total == 0, 1) → masked_softmax(A, causal_mask(Q.shape[2]))
over_queries: the weights of each key sum to one, not those of each query
    dim=-1 → dim=-2
always: it is always normalised
    if normalised → if True
reversed_choice: normalised is read the wrong way round
    if normalised → if not normalised
never: it is never normalised
    if normalised → if False
by_steps: the sum is divided by the number of steps
    total.masked_fill(total == 0, 1) → torch.arange(1, Q.shape[2] + 1)[:, None]
divides_by_zero: where all weights are 0, their sum divides: 0/0 is NaN
    total.masked_fill(total == 0, 1) → total
    says: is nan
large_epsilon: more than 1e-6 is added to the sum of the weights
    total.masked_fill(total == 0, 1) → (total + 1e-3)
""",
)

mistakes(
    recurrent_linear_attention,
    """
* reads_first: a step is read before it is written
    S = S + k[ → old_S, old_z, S = S, z, S + k[
    @ S) → @ old_S)
    q * z → q * old_z
    total.masked_fill(total == 0, 1) → total
* reads_matrix_first: S is read before the step is written, and z after it
    S = S + k[ → old, S = S, S + k[
    @ S) → @ old)
no_features: φ is left out
    functional.elu(Q) + 1, functional.elu(K) + 1 → Q, K
keys_alone: φ is left out of the queries
    functional.elu(Q) + 1 → Q
* starts_again: the given state is not used: it starts from zeros
    if state is not None → if False
z_starts_again: z starts from zeros, whatever the given state says
    S, z = state → S, z = (state[0], 0 * state[1])
last_alone: S holds the last step alone: nothing is added up
    S = S + k[ → S = k[
last_key: z holds the last key alone: nothing is added up
    z = z + k → z = k
adds_queries: z adds up the queries, not the keys
    z = z + k → z = z + q
sum_of_z: the output is divided by the sum of z, without φ(q)
    (q * z) → z
divides_by_zero: where all features are 0, z · φ(q) divides: 0/0 is NaN
    total.masked_fill(total == 0, 1) → total
    says: is nan
always: it is always normalised
    if normalised → if True
reversed_choice: normalised is read the wrong way round
    if normalised → if not normalised
never: it is never normalised
    if normalised → if False
one_behind: the state is that before the last step
    S = S + k[ → before, S = (S, z), S + k[
    dim=2), (S, z) → dim=2), before
transposed: S is transposed: D_V × D
    dim=2), (S, z) → dim=2), (S.mT, z)
    says: S should have shape
in_place: the given state is changed in place
    return torch → S = S if state is None else state[0].data.copy_(S); return torch
    dim=2), (S, z) → dim=2), (S, z if state is None else state[1].data.copy_(z))
detached: the state is detached: no gradient passes from step to step
    S = S + k[ → S = S.detach() + k[
""",
)

mistakes(
    delta_rule,
    """
* only_adds: the new value is added to what is held, and nothing is erased
    - held →
wrong_sign: what is held is added to the value instead of subtracted from it
    - held → + held
no_beta: β is left out
    beta[:, :, t, None, None] * k → k
erases_all: β multiplies the value alone: all that is held is erased
    beta[:, :, t, None, None] * k → k
    V[:, :, t, None] → beta[:, :, t, None, None] * V[:, :, t, None]
writes_all: β multiplies what is held alone: all of the value is written
    beta[:, :, t, None, None] * k → k
    - held → - beta[:, :, t, None, None] * held
fades: the whole memory fades by 1 - β, whatever the key
    - held →
    S = S + beta → S = (1 - beta[:, :, t, None, None]) * S + beta
* reads_with_query: what is held is read with the query, not with the key
    k.mT @ S → Q[:, :, t, None] @ S
reads_first: a step is read before it is written
    S = S + beta → old, S = S, S + beta
    t, None] @ S → t, None] @ old
unit_keys: the keys are made unit vectors, which they need not be
    K[:, :, t, :, None] → functional.normalize(K[:, :, t], dim=-1)[..., None]
sigmoid_again: β goes through σ once more
    beta[:, :, t, None, None] → torch.sigmoid(beta)[:, :, t, None, None]
starts_again: the given state is not used: it starts from zeros
    if S is None → if True
in_place: the given state is changed in place
    outputs = [] → outputs, given = [], S
    dim=2), S → dim=2), (given.data.copy_(S), S)[1]
detached: what is held is detached: no gradient passes through it
    - held → - held.detach()
""",
)

mistakes(
    gated_recurrence,
    """
* new_decays: what is written decays at once: γ multiplies the new too
    * S + K[:, :, t, :, None] * V[:, :, t, None] → * (S + K[:, :, t, :, None] * V[:, :, t, None])
moving_mean: 1 - γ of the new is written, as a mean would
    * S + K → * S + (1 - decay[:, :, t, :, None]) * K
* forgets: γ is what is forgotten, not what remains
    decay.expand → (1 - decay).expand
other_mean: γ is what is forgotten, and γ of the new is written, as a mean would
    decay.expand → (1 - decay).expand
    * S + K → * S + (1 - decay[:, :, t, :, None]) * K
never_decays: nothing decays
    decay[:, :, t, :, None] * S → S
through_sigmoid: γ goes through σ
    decay.expand → decay.sigmoid().expand
taken_for_logarithm: γ is taken for the logarithm of a decay
    decay.expand → decay.exp().expand
rows_alike: all rows of a head decay alike, by the mean of their γ
    decay.expand → decay.mean(dim=-1, keepdim=True).expand
first_gate: γ of the first step is used at all steps
    decay[:, :, t → decay[:, :, 0
next_gate: γ of the next step is used at each step
    decay.expand(K.shape) → decay.expand(K.shape).roll(-1, dims=2)
first_state_stays: the given state does not decay at the first step
    decay[:, :, t, :, None] * S → (decay[:, :, t, :, None] if t else 1) * S
reads_first: a step is read before it is written
    S = decay → old, S = S, decay
    t, None] @ S → t, None] @ old
starts_again: the given state is not used: it starts from zeros
    if S is None → if True
nothing_remains: what is written is not added to what remains: it replaces it
    decay[:, :, t, :, None] * S → 0 * S
in_place: the given state is changed in place
    outputs = [] → outputs, given = [], S
    dim=2), S → dim=2), (given.data.copy_(S), S)[1]
detached: no gradient passes to the decay
    decay.expand → decay.detach().expand
    says: No gradient reaches decay:
""",
)

mistakes(
    discretise,
    """
* always_first_order: K̄ is of first order, Δ k, where the exact one is asked for
    if exact → if False
reversed_choice: exact is read the wrong way round
    if exact → if not exact
always_exact: K̄ is exact where first order is asked for
    if exact → if True
* loses_digits: one is subtracted from the exponential, which loses all digits
    torch.expm1(rate) → (rate.exp() - 1)
    says: exp(Δ A) rounds to 1
first_order_below: K̄ is of first order where Δ A is small, but not small enough
    torch.expm1(rate) / A → torch.where(rate.abs() < 1e-2, delta[..., None], rate.expm1() / A)
linear_decay: Ā is of first order: 1 + Δ A
    rate.exp() → 1 + rate
no_delta: Ā is exp(A): Δ is left out
    rate.exp() → A.exp().expand_as(rate)
grows: the sign of A is reversed in Ā
    rate.exp() → (-rate).exp()
not_divided: K̄ is not divided by A
    (rate) / A → (rate)
divided_twice: K̄ is divided by Δ A instead of A
    (rate) / A → (rate) / rate
no_key: k is left out of K̄
    K[:, :, None] → torch.ones_like(K)[:, :, None]
decays_at_once: K̄ is multiplied by Ā, as if the input came at the step's beginning
    length * K → rate.exp() * length * K
bilinear: the bilinear rule gives Ā: (1 + Δ A / 2) / (1 - Δ A / 2)
    rate.exp() → (1 + rate / 2) / (1 - rate / 2)
both_first_order: Ā is of first order where K̄ is
    rate.exp() → rate.exp() if exact else 1 + rate
detached: no gradient passes to A
    rate = → A = A.detach(); rate =
    says: No gradient reaches A:
""",
)

mistakes(
    selective_state_space,
    """
exact_write: K̄ is the exact one, not that of first order
    exact=False → exact=True
* no_delta: Δ is left out of what is written: K̄ = k
    write[:, t] → K[:, t, None]
no_skip: the input does not pass by the state: skip is left out
    + skip * X → + 0 * skip * X
bare_skip: skip is added as it is, not times the input
    skip * X[:, t] → skip
reads_first: the state is read before the step is written
    h = decay[:, t] → old, h = h, decay[:, t]
    h @ Q → old @ Q
starts_again: the given state is not used: it starts from zeros
    if h is None → if True
never_decays: nothing decays: Ā is one
    (delta, A, K → (delta, 0 * A, K
exchanged: what is written with and read with are exchanged
    (delta, A, K → (delta, A, Q
    h @ Q → h @ K
* not_selective: Δ of the first step is used at all steps: nothing is selected
    (delta, A → (delta[:, :1].expand_as(delta), A
last_length: Δ of the last step is used at all steps: nothing is selected
    (delta, A → (delta[:, -1:].expand_as(delta), A
mean_length: all steps have the same length, the mean: nothing is selected
    (delta, A → (delta.mean(dim=1, keepdim=True).expand_as(delta), A
same_length: all channels take steps of the same length, the mean
    (delta, A → (delta.mean(dim=2, keepdim=True).expand_as(delta), A
constant_decay: Δ does not enter the decay: Ā = exp(A)
    decay[:, t] * h → A.exp() * h
unweighted: the numbers of the state are added up without being weighed by q
    (h @ Q[:, t, :, None])[..., 0] → h.sum(dim=-1)
new_decays: what is written decays at once: Ā multiplies the new too
    + write[:, t] → + decay[:, t] * write[:, t]
detached: no gradient passes to Δ
    (delta, A → (delta.detach(), A
    says: No gradient reaches delta:
""",
)

mistakes(
    parallel_scan,
    """
* wrong_order: the two entries are joined in the wrong order: a_1 b_2 + b_1
    a[:, step:] * b[:, :-step] + b[:, step:] → a[:, :-step] * b[:, step:] + b[:, :-step]
earlier_a: the later b is multiplied by a_1, where a_2 should multiply the earlier one
    a[:, step:] * b → a[:, :-step] * b
* same_a: the a are not multiplied from level to level
    a[:, step:] * a[:, :-step] → a[:, step:]
joins_a_first: the a are joined before the b, which then meet the new ones
    a[:, step:] * b → a[:, step:] * a[:, :-step] * b
grows_by_one: the distance grows by one from level to level, where it should double
    step *= 2 → step += 1
too_few: one level too few is computed
    while step → while 2 * step
first_lost: the first entries of each level are left at zero
    [b[:, :step], joined] → [0 * b[:, :step], joined]
""",
)


@bug(
    parallel_scan,
    "one step is taken after the other, and rounding errors grow with T",
    classic=True,
)
def one_by_one(a, b):
    h, states = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, dim=1)


mistakes(
    parallel_scan,
    """
* by_division: it divides by the product of all a, which may be zero
    step = 1 → return a.cumprod(dim=1) * (b / a.cumprod(dim=1)).cumsum(dim=1)
plain_sum: the a are left out: what is added is summed
    a[:, step:] * b → b
exclusive: the states are those before each step: h_0 … h_{T-1}
    return b → return torch.cat([torch.zeros_like(b[:, :1]), b[:, :-1]], dim=1)
backwards: it runs from the last step to the first
    step = 1 → step, a, b = 1, a.flip(1), b.flip(1)
    return b → return b.flip(1)
new_decays: a_t multiplies what is added too: h_t = a_t (h_{t-1} + b_t)
    step = 1 → step, b = 1, a * b
late_a: a of the step before is used
    step = 1 → step, a = 1, a.roll(1, dims=1)
detached: no gradient passes to a
    step = 1 → step, a = 1, a.detach()
    says: No gradient reaches a:
""",
)

mistakes(
    chunked_scan,
    """
* overflows: e^l_t is divided by e^l_s, which overflow where decay is strong
    total[..., :, None] - total → total.exp()[..., :, None] * (-total).exp()
    between.masked_fill(future, -math.inf).exp() → between.tril()
* masked_late: the steps to come are masked after the exponential, so that gradients are NaN
    between.masked_fill(future, -math.inf).exp() → between.exp().tril()
    says: yours is nan
no_state: every chunk begins with an empty state
    total.exp()[..., None] → 0
step_by_step: every step is taken by itself, as `gated_recurrence` does
    outputs = [] → return gated_recurrence(Q, K, V, log_decay.exp()[..., None], S)
    says: Is a matrix product taken inside each chunk?
* old_stays: the state before a chunk does not decay inside it, where it is read
    total.exp()[..., None] → 1
end_stays: the state does not decay from chunk to chunk
    total[..., -1:, None].exp() * S → S
writes_stay: what a chunk writes does not decay until its end
    left * k → k
one_too_few: the old state decays one step too little where it is read
    total.exp()[..., None] → functional.pad(total[..., :-1], (1, 0)).exp()[..., None]
    `gated_recurrence` → a recurrence whose state decays
not_itself: a step does not see what it writes itself
    triu(1) → triu()
not_causal: inside a chunk, steps see those after them
    between.masked_fill(future, -math.inf).exp() → between.exp()
constant_inside: inside a chunk, nothing decays
    between.masked_fill → (0 * between).masked_fill
taken_for_decay: log γ is taken for γ: its exponential is summed
    g.cumsum → g.exp().cumsum
not_summed: log γ is not summed over the steps
    g.cumsum(dim=-1) → g
starts_again: the given state is not used: it starts from zeros
    if S is None → if True
rest_dropped: the steps after the last whole chunk are dropped
    outputs, dim=2) → outputs, dim=2)[:, :, : max(K.shape[2] // chunk * chunk, 1)]
    says: Y should have shape
one_chunk: the whole text is one chunk
    split(chunk → split(max(chunk, K.shape[2])
    says: Is `chunk` used
not_refused: a chunk without steps is not refused
    chunk < 1 → (chunk := max(chunk, 1)) < 1
    says: should raise ValueError
""",
)

black_box(
    chunked_scan,
    "one_too_few",
    curve='copying["select, then attention"].losses',
    label="loss",
)

wrong_answers(chunked_scan_fault, "E")
mistakes(
    chunked_scan_fault,
    """
no_state: no state is given, and one chunk holds all steps
    (Q, K, V, log_decay, S) → (Q, K, V, log_decay)
    says: With these arguments the black box gives what is right
empty_state: the state is empty
    S = torch.ones(1, 1, 1, 1) → S = torch.zeros(1, 1, 1, 1)
    says: With these arguments the black box gives what is right
never_decays: nothing decays
    -math.log(2) → 0.0
    says: With these arguments the black box gives what is right
not_asked: the queries are 0
    torch.ones(1, 1, 2, 1) → torch.zeros(1, 1, 2, 1)
    says: With these arguments the black box gives what is right
no_steps: a chunk has no steps
    log_decay, S) → log_decay, S, 0)
    says: chunked_scan raised
decays_left_out: the decays are left out
    V, log_decay, S) → V, S)
    says: chunked_scan raised
unpacked: the arguments stand beside the letter
    "E", (Q, K, V, log_decay, S) → "E", Q, K, V, log_decay, S
    says: should return (letter, arguments)
""",
)

mistakes(
    rwkv_time_mixing,
    """
* overflows: the exponentials are summed as they are, and overflow
    torch.sigmoid(u + k - log_weight) → (u + k).exp() / (log_weight.exp() + (u + k).exp())
    torch.sigmoid(k - faded) → k.exp() / (faded.exp() + k.exp())
    torch.logaddexp(faded, k) → (faded.exp() + k.exp()).log()
    says: e^1000 is too large
* sum_overflows: the exponentials are summed as they are, and overflow
    torch.logaddexp(faded, k) → (faded.exp() + k.exp()).log()
one_maximum: the largest key of the whole sequence is subtracted: earlier steps become 0/0
    outputs = [] → outputs, bottom = [], (log_weight - K.amax(dim=1)).exp(); top = bottom * mean
    k, v = K[:, t] → k, v = K[:, t] - K.amax(dim=1)
    mean + now * (v - mean) → (top + (u + k).exp() * v) / (bottom + (u + k).exp())
    faded = log_weight - w → top, faded = (-w).exp() * top + k.exp() * v, log_weight - w
    log_weight = torch.log → bottom = (-w).exp() * bottom + k.exp(); log_weight = torch.log
    (mean, log_weight) → (top / bottom, bottom.log() + K.amax(dim=1))
    says: yours is nan
sums_as_state: the state is the two sums, not the mean and the logarithm of the weights
    torch.full_like(K[:, 0], -math.inf) → torch.zeros_like(K[:, 0])
    mean + now * (v - mean) → (mean + (u + k).exp() * v) / (log_weight + (u + k).exp())
    mean + torch.sigmoid(k - faded) * (v - mean) → (-w).exp() * mean + k.exp() * v
    torch.logaddexp(faded, k) → (-w).exp() * log_weight + k.exp()
not_divided: the sum of the values is not divided by that of the weights
    outputs = [] → outputs, top = [], log_weight.exp() * mean
    mean + now * (v - mean) → top + (u + k).exp() * v
    faded = log_weight - w → top, faded = (-w).exp() * top + k.exp() * v, log_weight - w
no_bonus: u is left out
    (u + k - → (0 * u + k -
* bonus_stays: u enters the state too, not the present step alone
    faded = log_weight - w → faded, k = log_weight - w, k + u
* bonus_stays_in_sums: u enters the state too, not the present step alone
    torch.sigmoid(u + k - log_weight) → (u + k).exp() / (log_weight.exp() + (u + k).exp())
    faded = log_weight - w → faded, k = log_weight - w, k + u
    torch.sigmoid(k - faded) → k.exp() / (faded.exp() + k.exp())
    torch.logaddexp(faded, k) → (faded.exp() + k.exp()).log()
* decays_early: the past has decayed once more where it is read: by (t - s) w
    (u + k - log_weight) → (u + k - (log_weight - w))
* decays_early_in_sums: the past has decayed once more where it is read: by (t - s) w
    torch.sigmoid(u + k - log_weight) → (u + k).exp() / ((log_weight - w).exp() + (u + k).exp())
    torch.sigmoid(k - faded) → k.exp() / (faded.exp() + k.exp())
    torch.logaddexp(faded, k) → (faded.exp() + k.exp()).log()
* new_decays: the past has decayed once more where it is read: by (t - s) w
    faded = log_weight - w → faded = log_weight
    torch.logaddexp(faded, k) → torch.logaddexp(faded, k) - w
never_decays: nothing decays: w is left out
    log_weight - w → log_weight - 0 * w
grows: the past grows by w at every step instead of fading
    log_weight - w → log_weight + w
taken_for_logarithm: w is taken for its own logarithm: e^w is subtracted
    log_weight - w → log_weight - w.exp()
multiplied: w multiplies log Σ α instead of being subtracted from it
    log_weight - w → log_weight * w
no_receptance: the receptance is left out
    torch.sigmoid(R[:, t]) → 1
raw_receptance: the receptance does not go through σ
    torch.sigmoid(R[:, t]) → R[:, t]
not_itself: the present step is left out of its own mean
    now = torch.sigmoid(u + k - log_weight) → now = torch.zeros_like(k)
starts_again: the given state is not used: it starts anew
    if state is None → if True
detached: no gradient passes to the keys
    k, v = K[:, t] → k, v = K[:, t].detach()
    says: No gradient reaches K:
""",
)

mistakes(
    short_convolution,
    """
* reversed_taps: the taps are in reverse order: the first is for the present
    taps[:, j] → taps[:, W - 1 - j]
* looks_ahead: it looks ahead: the zeros stand after the inputs
    seen[:, j → functional.pad(X, (0, 0, 0, W - 1))[:, j
* looks_ahead_at_first: it looks ahead: the zeros stand after the inputs
    taps.shape[1] → taps.shape[1]; ahead = 0 if past is not None else W - 1
    seen[:, j → seen.roll(-ahead, dims=1)[:, j
* past_behind: it looks ahead: the past stands after the inputs
    [past, X] → [X, past]
no_past: the given past is not used: zeros take its place
    if past is None → if True
same_taps: the taps of the first feature are used for all
    taps[:, j] → taps[0, j]
mean: the mean over the taps is taken
    taps[:, j] → taps[:, j] / W
activated: the outputs go through silu, which is the layer's work
    return Y → return functional.silu(Y)
late: it is one step late: the present input is not used
    taps.shape[1] → taps.shape[1]; first = 0 * X[:, :1] if past is None else past[:, -1:]
    seen[:, j → torch.cat([past, first, X[:, :-1]], dim=1)[:, j
repeated: the first input is repeated before it, where zeros should stand
    X.new_zeros(B, W - 1, D) → X[:, :1].expand(-1, W - 1, -1)
first_lost: the first W-1 outputs are zero, as if they had no past
    return Y → return Y * (torch.arange(T) >= W - 1)[:, None]
keeps_outputs: what is kept are outputs, not inputs
    seen[:, T:].clone() → torch.cat([past, Y], dim=1)[:, T:]
keeps_the_first: what is kept are the first inputs, not the last
    seen[:, T:] → seen[:, : W - 1]
keeps_one_more: W inputs are kept, one too many
    seen[:, T:].clone() → functional.pad(seen[:, T:], (0, 0, 1, 0))
    says: past should have shape
* keeps_too_few: the past is forgotten where there are few new inputs
    seen[:, T:] → X[:, max(T - W + 1, 0) :]
    says: past should have shape
* keeps_zeros: where few inputs are new, zeros are kept in place of those before them
    seen[:, T:].clone() → functional.pad(X, (0, 0, W - 1, 0))[:, T:]
detached: no gradient passes to the taps
    taps[:, j] → taps[:, j].detach()
    says: No gradient reaches taps:
""",
)

mistakes(
    TokenMixer,
    """
Unscaled: the scores of attention are not divided by √D_h
    / math.sqrt(D_h) →
ScaledByAll: the scores of attention are divided by √D, not by √D_h
    math.sqrt(D_h) → math.sqrt(self.H * D_h)
NotCausal: attention sees the steps after its own
    causal_mask(T, K.shape[2] - T) → torch.ones(T, K.shape[2]).bool()
* MaskWithoutPast: the mask counts new steps from 0, though the memory is before them
    causal_mask(T, K.shape[2] - T) → torch.ones(T, K.shape[2]).tril().bool()
ForgetfulAttention: keys and values of before are not kept
    new if memory is None → new if True
    says: memory should have shape
AddWithoutFeatures: the rule add has no φ
    functional.elu(Q) + 1, functional.elu(K) + 1 → Q, K
OneDecay: all heads decay alike, with γ = 1 - 2^-5
    -5 - heads → -5 - 0 * heads
DecayFromOne: the heads are counted from 1 in γ = 1 - 2^(-5 - h)
    -5 - heads → -6 - heads
DecayExchanged: γ is 2^(-5 - h): what remains and what is forgotten are exchanged
    torch.log(1 - 2 ** → torch.log(2 **
* KeyWithoutDelta: Δ does not multiply the key in the rule select
    delta[..., None] * K → K
SigmoidDelta: Δ goes through σ, not softplus
    functional.softplus(gate) → torch.sigmoid(gate)
RateWithoutExp: log_a is taken for the rate: its exponential is left out
    self.log_a.exp() → self.log_a
* LongKeys: the keys of the rule delta do not have length one
    functional.normalize(K, dim=-1) → K
RawBeta: β does not go through σ
    torch.sigmoid(gate) → gate
NoBias: b_gate is left out
    + self.b_gate →
NoSilu: the features do not go through silu
    functional.silu(mixed) → mixed
SiluFirst: silu comes before the convolution
    X @ self.W_QKV, self.taps, past → F := X @ self.W_QKV, self.taps, before := past
    functional.silu(mixed) → short_convolution(functional.silu(F), self.taps, before)[0]
NoConvolution: the features are not convolved
    functional.silu(mixed) → functional.silu(X @ self.W_QKV)
NoPast: the convolution starts from zeros, whatever the state says
    functional.silu(mixed) → functional.silu(short_convolution(X @ self.W_QKV, self.taps)[0])
NoNorm: the outputs are not normalised
    self.norm(Y) → Y * self.norm.weight
NoOutput: W_O is left out
    @ self.W_O →
* NormOverAll: the norm is taken over all heads together, not in each
    self.norm(Y) → Y * (Y.square().mean((1, 3), True) + 1e-5).rsqrt() * self.norm.weight
NoMemory: the memory starts from zeros, whatever the state says
    torch.sigmoid(gate), S → torch.sigmoid(gate), None
    log_decay, S → log_decay, None
AnyRule: a rule that does not exist is not refused
    if rule not in self.RULES → if False
    says: should raise ValueError
NoState: the state is not returned
    , (memory, past) →
    says: should return (Y, state)
Overflows: large scores overflow: their exponentials are computed as they are
    masked_softmax(Q → (A := (Q
    , mask) @ → ).exp() * mask) / A.sum(dim=-1, keepdim=True) @
    says: Y of queries and keys times 100 at [0, 0, 0, 0]
MinusBillion: the steps after its own get a score of -1e9, which others may lie below
    masked_softmax(Q → torch.softmax((Q
    , mask) @ → ).masked_fill(~mask, -1e9), dim=-1) @
BillionLess: -1e9 is added to the scores of the steps after its own, which may be larger than that
    masked_softmax(Q → torch.softmax(Q
    , mask) @ → - 1e9 * ~mask, dim=-1) @
""",
)

mistakes(
    HybridDecoder,
    """
* FirstAttends: the first of every few layers attends, not the last
    n % every → (n - 1) % every
    says: the layers of attention should be
NoneAttends: no layer attends
    if every and → if False and
    says: the layers of attention should be
OthersAttend: all layers attend but one in every few
    n % every == 0 → n % every != 0
    says: the layers of attention should be
FirstFewAttend: the first L // every layers attend
    n % every == 0 → n <= L // every
    says: the layers of attention should be
MixerWithoutNorm: the mixer's input is not normalised
    self.norms[2 * n](X) → X
NetworkWithoutNorm: the network's input is not normalised
    self.norms[2 * n + 1](X) → X
NoResidual: the mixer's output replaces its input, which is not added
    X = X + Y → X = Y
NoSecondResidual: the network's output replaces its input, which is not added
    X = X + network → X = network
SideBySide: the network sees what the mixer sees, not what it gives
    X = X + Y →
    X = X + network → X = X + Y + network
* NormAfter: norms come after the mixer and the network, not before
    mixer(self.norms[2 * n](X) → mixer(X
    X = X + Y → X = self.norms[2 * n](X + Y)
    X + network(self.norms[2 * n + 1](X)) → self.norms[2 * n + 1](X + network(X))
* NormOfOutputs: what the mixer and the network give is normalised, not what they get
    mixer(self.norms[2 * n](X) → mixer(X
    X = X + Y → X = X + self.norms[2 * n](Y)
    network(self.norms[2 * n + 1](X)) → self.norms[2 * n + 1](network(X))
SameNorm: both halves of a layer have the same norm
    2 * n + 1 → 2 * n
NormsApart: the norms of mixers come first in the list, then those of networks
    [2 * n] → [n]
    2 * n + 1 → len(self.mixers) + n
NoLastNorm: the last norm is left out
    self.norm(X) → X
NoStates: the states of before are not used
    None if states is None else states[n] → None
LastState: only the state of the last layer is returned
    self.W_head, found → self.W_head, found[-1:]
    says: should return (state of layer 0
OnlyLogits: only the logits are returned
    self.W_head, found → self.W_head
    says: should return (logits, states)
""",
)

mistakes(
    state_bytes,
    """
all_cache: all layers keep keys and values, the recurrent ones too
    attention * 2 * D → L * 2 * D
* keys_alone: keys alone are counted, and not values
    attention * 2 * D → attention * D
* one_head: the matrix has D × D numbers, as if there were one head
    H * (D // H) ** 2 → D**2
large_heads: each head's matrix has D × D numbers, not D_h × D_h
    (D // H) ** 2 → D**2
first_head: the matrix of one head is counted, not those of all
    H * (D // H) ** 2 → (D // H) ** 2
matrices_everywhere: layers of attention keep a matrix too
    (L - attention) → L
no_inputs: the inputs of the convolution are left out
    + L * (width - 1) * 3 * D →
one_input_more: as many inputs are kept as there are taps, one too many
    (width - 1) → width
narrow_inputs: the convolution's inputs have D numbers, not 3 D
    3 * D → D
inputs_of_recurrent: only recurrent layers keep inputs of the convolution
    L * (width → (L - attention) * (width
rounded_up: the layers of attention are rounded up: ⌈L / every⌉
    L // every → -(-L // every)
four_bytes: numbers have four bytes, whatever size says
    3 * D) * size → 3 * D) * 4
    T * size → T * 4
numbers: numbers are counted, not bytes
    3 * D) * size → 3 * D)
    T * size → T
not_refused: heads of unequal size are not refused
    if D % H → if False
    says: should raise ValueError
""",
)

changed(
    state_bytes,
    "one_number",
    "the two numbers are added up",
    ("return {", "return sum({"),
    ("* size,\n    }", "* size,\n    }.values())"),
    told_by="The result should be a dict",
)

axes = "an axis of size 1 stands in the same place"
equivalent(
    recurrent_linear_attention,
    "S = S + k[..., :, None] * v[..., None, :] → S = S + k[:, ..., None] * v[..., None, :]",
    "k[:, ..., None] is k[..., :, None]",
)
equivalent(
    delta_rule,
    "new = V[:, :, t, None] - held → new = V[:, :, None, t] - held",
    axes,
)
equivalent(
    delta_rule,
    "S = S + beta[:, :, t, None, None] * k * new → S = S + beta[:, :, None, t, None] * k * new",
    axes,
)
equivalent(
    delta_rule,
    "outputs.append(Q[:, :, t, None] @ S) → outputs.append(Q[:, :, None, t] @ S)",
    axes,
)
write = "S = decay[:, :, t, :, None] * S + K[:, :, t, :, None] * V[:, :, "
equivalent(gated_recurrence, f"{write}t, None] → {write}None, t]", axes)
equivalent(
    gated_recurrence,
    "outputs.append(Q[:, :, t, None] @ S) → outputs.append(Q[:, :, None, t] @ S)",
    axes,
)
equivalent(
    parallel_scan,
    "while step < a.shape[1]: → while step <= a.shape[1]:",
    "with step = T, the level joins nothing",
)
for strict in ("", ", strict=False"):
    equivalent(
        chunked_scan,
        f"for q, k, v, g in zip(*parts, strict=True): → for q, k, v, g in zip(*parts{strict}):",
        "all four have as many chunks",
    )
equivalent(
    chunked_scan,
    "between = total[..., :, None] - total[..., None, :] → "
    "between = total[:, ..., None] - total[..., None, :]",
    "total[:, ..., None] is total[..., :, None]",
)
equivalent(
    chunked_scan,
    "S = total[..., -1:, None].exp() * S + (left * k).mT @ v → "
    "S = total[..., None, -1:].exp() * S + (left * k).mT @ v",
    axes,
)
start = "mean, log_weight = (torch.{}_like(K[:, 0]), torch.full_like(K[:, 0], -math.inf))"
equivalent(
    rwkv_time_mixing,
    f"{start.format('zeros')} → {start.format('ones')}",
    "without steps before, the mean of their values has no weight",
)
equivalent(
    rwkv_time_mixing,
    "log_weight = torch.logaddexp(faded, k) → log_weight = torch.logaddexp(k, faded)",
    "the sum is the same either way",
)
heads = "torch.arange(self.H, dtype=Q.dtype, device=Q.device)"
equivalent(
    TokenMixer,
    f"heads = {heads} → heads = torch.arange(self.H, dtype=Q.dtype)",
    "checks run on a CPU, which is torch's default device",
)
equivalent(
    TokenMixer,
    f"heads = {heads} → heads = vars(self).setdefault('heads', {heads})",
    "a layer has the same heads in all calls",
)
equivalent(
    TokenMixer,
    "gated = self.rule in ('select', 'delta') → gated = self.rule in ('delta', 'select')",
    "the order does not count",
)
layers = "for n, (mixer, network) in enumerate(zip(self.mixers, self.networks{})):"
for strict in ("", ", strict=False"):
    equivalent(
        HybridDecoder,
        f"{layers.format(', strict=True')} → {layers.format(strict)}",
        "there are as many mixers as networks",
    )
rules = "['softmax' if every and n % every == 0 else rule for n in range(1, L + 1)]"
equivalent(
    HybridDecoder,
    f"rules = {rules} → rules = vars(self).setdefault('rules', {rules})",
    "a constructor is called once",
)
equivalent(
    short_convolution,
    "return (Y, seen[:, T:].clone()) → return (Y, (lambda same: same)(seen[:, T:]))",
    "the same values; only more memory stays in use",
)
equivalent(
    linear_attention,
    "A = A / total.masked_fill(total == 0, 1) → A = A / total.masked_fill(total == 0, 2)",
    "weights that are all 0 stay 0, whatever they are divided by",
)
equivalent(
    recurrent_linear_attention,
    "y = y / total.masked_fill(total == 0, 1) → y = y / total.masked_fill(total == 0, 2)",
    "0 stays 0, whatever it is divided by",
)
