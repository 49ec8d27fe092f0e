"""Known wrong solutions of rnn."""

import torch

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.rnn import (
    clip_grad_norm,
    clip_grad_norm_fault,
    gradient_norms,
    linear_rnn_gradient,
    rnn_backward,
    rnn_forward,
    rnn_step,
    truncated_bptt,
)

mistakes(
    rnn_step,
    """
* x_first: x comes before h in the product, so each meets the other's weights
    [h, x] → [x, h]
squeezed: the axis of the batch is squeezed out when there is one sequence
    W.T + b) → W.T + b).squeeze()
linear: tanh is left out
    torch.tanh(torch → (torch
sigmoid: σ is used instead of tanh
    torch.tanh → torch.sigmoid
relu: ReLU is used instead of tanh
    torch.tanh → torch.relu
no_bias: the bias is left out
    W.T + b → W.T
bias_outside: the bias is added after tanh
    W.T + b) → W.T) + b
bias_subtracted: the bias is subtracted
    W.T + b → W.T - b
residual: the new state is added to h_{t-1} instead of replacing it
    return torch → return h + torch
no_memory: h_{t-1} is left out: the step has no memory
    torch.cat([h, x], dim=1) @ W.T → x @ W[:, h.shape[1] :].T
no_input: x_t is left out
    torch.cat([h, x], dim=1) @ W.T → h @ W[:, : h.shape[1]].T
input_outside: the product with x_t is outside tanh
    torch.cat([h, x], dim=1) @ W.T + b) → h @ W[:, : h.shape[1]].T + b) + x @ W[:, h.shape[1] :].T
transposed: W_hh is used transposed
    torch.cat([h, x], dim=1) @ W.T → h @ W[:, : h.shape[1]] + x @ W[:, h.shape[1] :].T
in_place: h is overwritten in place by h_t
    return torch.tanh( → h.data = torch.tanh(
    )  # (B, H)
    → )  
      return h
bias_detached: no gradient passes through b
    W.T + b → W.T + b.detach()
    says: No gradient reaches b:
""",
)

mistakes(
    rnn_forward,
    """
* batch_as_time: the loop runs over the batch axis instead of the time axis
    h_0 if h_0 is not None else X.new_zeros(len(X), → X.new_zeros(X.shape[1],
    X.unbind(dim=1) → X
    (outputs, dim=1) → (outputs)
batch_walked: the loop runs over the batch axis instead of the time axis
    X.unbind(dim=1) → X
time_first: the outputs are stacked time first, as (T, B, H)
    (outputs, dim=1) → (outputs)
backwards: the sequence is read from its end
    X.unbind → X.flip(1).unbind
nothing_carried: every step starts from h_0 again
    h = rnn_step(x, h, W, b)
    outputs.append(h)
    → outputs.append(rnn_step(x, h, W, b))
late: outputs are one step late: h_0 … h_{T-1}
    h = rnn_step(x, h, W, b)
    outputs.append(h)
    → outputs.append(h)
      h = rnn_step(x, h, W, b)
one_too_many: all states h_0 … h_T are returned, one too many
    outputs = [] → outputs = [h]
last_output: only the last output is returned
    torch.stack(outputs, dim=1) → outputs[-1]
state_ignored: the given initial state is ignored
    h_0 if h_0 is not None else X → X
first_input: the first input is fed at every step
    rnn_step(x, h → rnn_step(X[:, 0], h
overwritten: every output is the same tensor, overwritten until it holds h_T
    torch.stack(outputs, → torch.stack([h] * len(outputs),
from_ones: the state starts from ones instead of zeros
    new_zeros → new_ones
""",
)


last_states = {}

mistakes(
    rnn_forward,
    """
random_state: the initial state is drawn at random
    X.new_zeros(len(X), len(b)) → torch.randn(len(X), len(b)).to(X)
    says: Two calls with the same input differ: outputs of the second call
""",
)


@bug(rnn_forward, "the state of the last call is where the next one starts")
def state_kept(X, W, b, h_0=None):
    if h_0 is None:
        h_0 = last_states.get((X.shape, X.sum().item()))
    outputs = rnn_forward(X, W, b, h_0)
    last_states.clear()
    last_states[X.shape, X.sum().item()] = outputs[:, -1].detach()
    return outputs


mistakes(
    rnn_forward,
    """
detached: the state is detached at every step, so that no gradient passes through time
    rnn_step(x, h, W → rnn_step(x, h.detach(), W
last_output_trains: gradients flow through the last output alone
    torch.stack(outputs, → torch.stack([*(each.detach() for each in outputs[:-1]), h],
""",
)

mistakes(
    rnn_backward,
    """
NoTanh: the factor 1 - h_t², the derivative of tanh, is left out
    ) * (1 - outputs[:, t] ** 2) → )
* EarlierTanh: the derivative of tanh is taken at h_{t-1} instead of h_t
    1 - outputs[:, t] ** 2 → 1 - h_before**2
TanhTwice: tanh is applied to h_t once more before its derivative is taken
    1 - outputs[:, t] ** 2 → 1 - torch.tanh(outputs[:, t]) ** 2
SigmoidDerivative: the derivative of σ, h (1 - h), is used instead of tanh's
    (1 - outputs[:, t] ** 2) → outputs[:, t] * (1 - outputs[:, t])
TanhForOwnAlone: the factor 1 - h_t² multiplies the step's own gradient, not what arrives from t+1
    (grad_outputs[:, t] + grad_h) * (1 - outputs[:, t] ** 2)
    → grad_outputs[:, t] * (1 - outputs[:, t] ** 2) + grad_h
NothingArrives: nothing arrives from later steps: each step is on its own
    grad_outputs[:, t] + grad_h → grad_outputs[:, t]
NotTransposed: what arrives at h_{t-1} is δ_t W_hhᵀ: the matrix is not transposed
    (delta @ W).tensor_split([H], dim=1) → delta @ W[:, :H].T, delta @ W[:, H:]
* LaterState: ∂L/∂W pairs δ_t with h_t instead of h_{t-1}
    [h_before, X[:, t]] → [outputs[:, t], X[:, t]]
ColumnsExchanged: the columns of ∂L/∂W are those for x first, then those for h
    [h_before, X[:, t]] → [X[:, t], h_before]
BatchMean: ∂L/∂W and ∂L/∂b are means over the batch instead of sums
    += delta.T @ → += delta.T / B @
    delta.sum → delta.mean
StoppedShort: the gradient of h_0 is δ_1, without the product with W_hh
    return grad_X, grad_W, grad_b, grad_h → return grad_X, grad_W, grad_b, delta
overwritten_share: ∂L/∂W and ∂L/∂b hold the first step's share alone: later ones are overwritten
    grad_W += → grad_W =
    grad_b += → grad_b =
state_ignored: the given initial state is ignored in ∂L/∂W
    h_0 = h_0 if h_0 is not None else outputs → h_0 = outputs
forward_in_time: the loop over time runs forward, from t = 1 to T
    reversed(range(T)) → range(T)
in_place: grad_outputs is overwritten with what arrives
    delta = (grad_outputs[:, t] + grad_h) *
    → grad_outputs[:, t] += grad_h
      delta = grad_outputs[:, t] *
* last_output_first: at t = 1 the state before the step is h_T instead of h_0
    ] if t > 0 else h_0 → ]
""",
)

changed(
    truncated_bptt,
    "nothing_cut",
    "nothing is cut: the gradient goes back through all T steps",
    ("    h = h_0\n", "    h, k = h_0, X.shape[1]\n"),
)

mistakes(
    truncated_bptt,
    """
* zero_state: every piece starts from a state of zeros
    h = outputs[:, -1] → h = None
""",
)

changed(
    truncated_bptt,
    "initial_state_again",
    "every piece starts from h_0 again",
    ("        h = outputs[:, -1]\n", ""),
)

mistakes(
    truncated_bptt,
    """
last_piece: the gradients of W and b are those of the last piece alone
    grad_W += → grad_W =
    grad_b += → grad_b =
mean_over_pieces: the gradients of W and b are means over the pieces instead of sums
    dim=1), grad_W, grad_b, → dim=1), grad_W / len(grad_X), grad_b / len(grad_X),
last_state: the gradient of h_0 is that of the last piece's first state
    if start == 0: → if True:
""",
)

changed(
    truncated_bptt,
    "one_step_more",
    "the pieces are one step too long",
    ("    h = h_0\n", "    h, k = h_0, k + 1\n"),
)

mistakes(
    truncated_bptt,
    """
state_not_told: the backward pass of a piece is not told the state that it starts from
    X[:, piece], W, h) → X[:, piece], W)
""",
)

changed(
    truncated_bptt,
    "state_ignored",
    "the given initial state is ignored",
    ("    h = h_0\n", "    h = None\n"),
)

mistakes(
    truncated_bptt,
    """
first_output_carried: a piece starts from the first output of the piece before it, not the last
    outputs[:, -1] → outputs[:, 0]
""",
)

changed(
    truncated_bptt,
    "remainder_dropped",
    "steps after the last whole piece are dropped",
    ("    h = h_0\n", "    h, X = h_0, X[:, : X.shape[1] // k * k or None]\n"),
)

changed(
    truncated_bptt,
    "spread_evenly",
    "the steps are spread evenly over the pieces, so that none need be shorter",
    ("    h = h_0\n", "    h, T = h_0, X.shape[1]\n    k = -(-T // -(-T // k))\n"),
)

changed(
    truncated_bptt,
    "first_states_added_up",
    "the gradients of all pieces' first states are added up for h_0",
    (
        "if start == 0:\n            grad_h_0 = gradients[3]",
        "grad_h_0 = gradients[3] + (grad_h_0 if start else 0)",
    ),
)


@bug(truncated_bptt, "each step's gradient goes back k steps, through pieces that overlap")
def pieces_overlap(grad_outputs, X, W, b, k, h_0=None):
    if k < 1:
        raise ValueError("no piece has less than one step")
    h_0 = X.new_zeros(len(X), len(b)) if h_0 is None else h_0
    outputs = rnn_forward(X, W, b, h_0)
    grads = torch.zeros_like(X), torch.zeros_like(W), torch.zeros_like(b), torch.zeros_like(h_0)
    for t in range(X.shape[1]):
        first = max(0, t - k + 1)
        piece = slice(first, t + 1)
        own = torch.zeros_like(outputs[:, piece])
        own[:, -1] = grad_outputs[:, t]
        before = outputs[:, first - 1] if first else h_0
        new = rnn_backward(own, outputs[:, piece], X[:, piece], W, before)
        for total, share in zip((grads[0][:, piece], *grads[1:3]), new, strict=False):
            total += share
        if first == 0:
            grads[3].add_(new[3])
    return grads


mistakes(
    truncated_bptt,
    """
no_error: a k below 1 is accepted
    raise ValueError(f"k must be at least 1 step, got {k}") → k = 1
    says: should raise ValueError when k is 0
""",
)

mistakes(
    rnn_backward,
    """
last_twice: the last step's own gradient counts twice: it also arrives from beyond T
    grad_h = torch.zeros_like(h_0) → grad_h = grad_outputs[:, -1]
""",
)

mistakes(
    gradient_norms,
    """
of_the_jacobian: the norms are those of ∂h_T/∂h_t, whatever the gradient of the loss
    grad_h, norms = grad_last, [grad_last.norm(dim=1)]
    → grad_h = torch.eye(H).to(W).expand(len(outputs), H, H)
      norms = [grad_h.norm(dim=(1, 2))]
    (grad_h * (1 - h**2)) → (grad_h * (1 - h[:, None] ** 2))
    norms.append(grad_h.norm(dim=1)) → norms.append(grad_h.norm(dim=(1, 2)))
no_tanh: the factor 1 - h_t², the derivative of tanh, is left out
    (grad_h * (1 - h**2)) @ → grad_h @
earlier_tanh: the derivative of tanh is taken at h_{t-1} instead of h_t
    outputs[:, 1:] → outputs[:, :-1]
not_transposed: W_hh is not transposed on the way back
    W[:, :H] → W[:, :H].T
wrong_order: tanh's derivative multiplies after W_hhᵀ instead of before
    (grad_h * (1 - h**2)) @ W[:, :H] → (grad_h @ W[:, :H]) * (1 - h**2)
last_columns: the columns of W for x are taken for W_hh
    W[:, :H] → W[:, -H:]
reversed_in_time: the norms run backward in time, from t = T to 1
    norms[::-1] → norms
squared: the norms are squared
    norms[::-1], dim=1) → norms[::-1], dim=1) ** 2
sum_of_sizes: the entries' absolute values are added up: that is another norm
    grad_last.norm(dim=1) → grad_last.abs().sum(dim=1)
    grad_h.norm(dim=1) → grad_h.abs().sum(dim=1)
over_the_batch: the norm is taken over the whole batch instead of each sequence
    norms[::-1], dim=1) → norms[::-1], dim=1).norm(dim=0).expand(len(outputs), -1)
* one_step_further: the norms belong to h_0 … h_{T-1}: one step of the way back too many
    [grad_last.norm(dim=1)] → []
    outputs[:, 1:] → outputs
accumulated: the gradients of later steps are added on the way: each step has a loss
    @ W[:, :H] → @ W[:, :H] + grad_last
relative: the norms are relative to that at t = T
    norms[::-1], dim=1) → norms[::-1], dim=1) / norms[0][:, None]
""",
)

mistakes(
    linear_rnn_gradient,
    """
* entry_by_entry: every entry of W_hh is raised to the power T, instead of the matrix
    return J → return W_hh**T
multiple: the matrix is multiplied by T instead of by itself
    return J → return T * W_hh
one_too_many: there is one factor too many: T + 1 of them
    range(T) → range(T + 1)
one_too_few: there is one factor too few: T - 1 of them
    range(T) → range(T - 1)
transposed: the result is transposed: it sends gradients back, not changes forward
    return J → return J.T
squared_each_step: J is multiplied by itself at each step, which doubles the power
    J = torch → J = W_hh if T else torch
    range(T) → range(T - 1)
    W_hh @ J → J @ J
symmetric: W_hh is taken to be symmetric, so that its powers come from eigh
    return J
    → values, vectors = torch.linalg.eigh(W_hh)
      return vectors @ torch.diag(values**T) @ vectors.T
added_up: the powers up to T are added up
    if T < 0 → if False
    W_hh @ J → W_hh @ J + torch.eye(len(W_hh)).to(W_hh)
radius_alone: the spectral radius is raised to the power T, times the identity
    W_hh @ J → torch.linalg.eigvals(W_hh).abs().max() * J
with_tanh: tanh is applied after each product
    W_hh @ J → torch.tanh(W_hh @ J)
in_place: W_hh itself becomes the product, in place
    return J → return W_hh.copy_(J)
inverse: a negative T gives the inverse
    raise ValueError(f"T must be at least 0 steps, got {T}")
    → return torch.linalg.matrix_power(W_hh, T)
    says: should raise ValueError when T is -1
one_at_least: zero steps give W_hh instead of the identity
    return J → return J if T else W_hh
""",
)

mistakes(
    clip_grad_norm,
    """
* one_by_one: each parameter's gradient is clipped by its own norm
    max_norm / norm) → min(1, max_norm / gradient.norm()))
* by_value: every entry is clipped to ±max_norm
    gradient * (max_norm / norm) → gradient.clamp(-max_norm, max_norm)
* always: short gradients are made longer: they also get the norm max_norm
    if norm > max_norm → if norm > 0
always_and_nan: short gradients are made longer: they also get the norm max_norm
    if norm > max_norm → if True
sum_of_norms: the parameters' norms are added up without squares
    gradients]).norm() → gradients]).sum()
squared: the square root is left out of the norm
    gradients]).norm() → gradients]).norm() ** 2
longest: the norm is the largest of the parameters' norms
    gradients]).norm() → gradients]).max()
mean_square: the norm is the mean over all entries: the root of the mean square
    torch.stack([gradient.norm() for gradient in gradients]).norm()
    → torch.cat([gradient.flatten() for gradient in gradients]).square().mean().sqrt()
to_one: a long gradient is divided by its norm, but not multiplied by max_norm
    max_norm / norm) → 1 / norm)
upside_down: the factor is upside down: ‖g‖ / max_norm
    max_norm / norm) → norm / max_norm)
norm_after: the returned norm is the one after clipping
    return gradients, norm → return gradients, norm.clamp(max=max_norm)
first_alone: only the first gradient is clipped
    gradient * (max_norm / norm) for gradient in gradients
    → gradients[0] * (max_norm / norm), *gradients[1:]
in_place: the gradients are scaled in place
    gradient * (max_norm / norm) → gradient.mul_(max_norm / norm)
square_compared: the square of the norm is compared with max_norm
    if norm > → if norm**2 >
by_view: each gradient is flattened by view
    gradient.norm() → gradient.view(-1).norm()
    says: view size is not compatible with input tensor's size and stride
negative: a negative max_norm is accepted
    if not max_norm > 0 → if max_norm == 0
    says: should raise ValueError when max_norm is -1.5
zero_by_zero: gradients of zero become NaN
    if norm > max_norm → if True
    (max_norm / norm) → (min(max_norm, norm) / norm)
    says: gradient 0 at [0, 0] should be 0, yours is nan
no_error: a max_norm of zero is accepted
    if not max_norm > 0 → if max_norm < 0
    says: should raise ValueError when max_norm is 0
""",
)

black_box(clip_grad_norm, "sum_of_norms", curve='tame["losses"]', label="mean squared error")

wrong_answers(clip_grad_norm_fault, "C")
mistakes(
    clip_grad_norm_fault,
    """
one_parameter: there is one gradient
    torch.tensor([3.0]), torch.tensor([4.0]) → torch.tensor([3.0, 4.0])
    says: With these arguments the black box gives what is right
other_is_zero: one of the two gradients is zero
    [4.0] → [0.0]
    says: With these arguments the black box gives what is right
both_zero: both gradients are zero
    torch.tensor([3.0]), torch.tensor([4.0]) → torch.tensor([0.0]), torch.tensor([0.0])
    says: With these arguments the black box gives what is right
one_to_clip: there is one gradient, and it is clipped
    torch.tensor([3.0]), torch.tensor([4.0]) → torch.tensor([3.0, 6.0])
    says: With these arguments the black box gives what is right
no_limit: max_norm is zero
    6.0 → 0.0
    says: clip_grad_norm raised ValueError
one_tensor: the gradients are one tensor, not a list
    [torch.tensor([3.0]), torch.tensor([4.0])] → torch.tensor([3.0, 4.0])
    says: clip_grad_norm raised TypeError
whole_numbers: the gradients hold whole numbers
    3.0 → 3
    4.0 → 4
    says: clip_grad_norm raised RuntimeError
no_max_norm: max_norm is left out
    (gradients, 6.0) → (gradients,)
    says: clip_grad_norm raised TypeError
""",
)


zeros = "grad_X, grad_W, grad_b = (torch.{}_like(X), torch.zeros_like(W), W.new_zeros(H))"
equivalent(
    rnn_backward,
    f"{zeros.format('zeros')} → {zeros.format('ones')}",
    "every entry of grad_X is overwritten",
)
equivalent(
    clip_grad_norm,
    "if norm > max_norm: → if norm >= max_norm:",
    "where both are equal, the factor is one",
)
for statement in ("if k < 1:", "raise ValueError(f'k must be at least 1 step, got {k}')"):
    equivalent(
        truncated_bptt,
        f"{statement} → (left out)",
        "range and torch.cat refuse such pieces with a ValueError of their own",
    )
