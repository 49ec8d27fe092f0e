"""Known wrong solutions of lstm."""

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import changed, mistakes
from course_pkg.lstm import (
    LSTM,
    additive_cell_step,
    cell_gradient,
    chrono_bias,
    convert_torch_lstm,
    gru_step,
    gru_step_fault,
    init_forget_bias,
    lstm_step,
)

mistakes(
    additive_cell_step,
    """
x_first: x comes before h in the product, so each meets the other's weights
    [h, x] → [x, h]
linear_candidate: the candidate goes through no tanh
    candidate = torch.tanh( → candidate = (
sigmoid_candidate: the candidate goes through σ instead of tanh
    = torch.tanh( → = torch.sigmoid(
replaced: the cell state is replaced instead of added to
    c = c + candidate → c = candidate
added_to_h: the candidate is added to h_{t-1} instead of c_{t-1}
    c = c + → c = h +
bare_cell: h_t is the cell state itself, without tanh
    return torch.tanh(c) → return c
old_cell: h_t is computed from the cell state before the step
    c = c + candidate
    return torch.tanh(c), c
    → return torch.tanh(c), c + candidate
no_bias: the bias is left out
    W.T + b → W.T
returned_in_wrong_order: c_t is returned before h_t
    torch.tanh(c), c → c, torch.tanh(c)
squashed_cell: c_t goes through tanh, as h_t does
    c = c + candidate → c = torch.tanh(c + candidate)
    torch.tanh(c), c → c, c
state_detached: no gradient passes through h_{t-1}
    [h, x] → [h.detach(), x]
    says: No gradient reaches h:
* in_place: c is updated in place
    c = c + candidate → c.data += candidate
""",
)

mistakes(
    lstm_step,
    """
* torch_order: the gates are read in torch's order i, f, g, o
    i, f, o, g = a → i, f, g, o = a
* f_first: the gates i and f are mixed up
    i, f, o, g = a → f, i, o, g = a
x_first: x comes before h in the product, so each meets the other's weights
    [h, x] → [x, h]
no_bias: the bias is left out
    W.T + b → W.T
sigmoid_candidate: g goes through σ instead of tanh
    torch.tanh(g) → torch.sigmoid(g)
open_gates: i, f and o are used without σ
    torch.sigmoid(f) → f
    torch.sigmoid(i) → i
    torch.sigmoid(o) → o
bare_cell: h_t is o ⊙ c_t, without tanh
    * torch.tanh(c) → * c
old_cell: h_t is computed from the cell state before the step
    c = torch.sigmoid(f) → new = torch.sigmoid(f)
    torch.tanh(c), c → torch.tanh(c), new
forgets_by_f: c_{t-1} is multiplied by 1 - f: f is how much to keep, not to forget
    torch.sigmoid(f) → (1 - torch.sigmoid(f))
never_forgets: the forget gate is left out: c_t = c_{t-1} + i ⊙ g
    torch.sigmoid(f) * c → c
returned_in_wrong_order: c_t is returned before h_t
    return torch.sigmoid(o) * torch.tanh(c), c → return c, torch.sigmoid(o) * torch.tanh(c)
in_place: c is updated in place
    c = torch.sigmoid(f) → c.data = torch.sigmoid(f)
weights_detached: no gradient passes through W
    W.T → W.detach().T
    says: No gradient reaches W:
detached: no gradient passes through c_{t-1}
    torch.sigmoid(f) * c → torch.sigmoid(f) * c.detach()
    says: No gradient reaches c:
""",
)

mistakes(
    LSTM,
    """
BatchAsTime: the loop runs over the batch axis instead of the time axis
    B, T, _ = X.shape
    → X = X.transpose(0, 1)
      B, T, _ = X.shape
    torch.stack(outputs, dim=1) → torch.stack(outputs, dim=0)
BatchWalked: the loop runs over the batch axis instead of the time axis
    for t in range(T): → for t in range(B):
    X[:, t] → X[t]
Backwards: the sequence is read from its end
    X[:, t] → X[:, T - 1 - t]
CellOutputs: the outputs are the cell states c_t instead of h_t
    outputs.append(h) → outputs.append(c)
    where(running, h_t, 0) → where(running, c_t, 0)
NothingCarried: every step starts from the initial state again
    t], h, c, → t], 0 * h, 0 * c,
    h_t, h) → h_t, 0)
    c_t, c) → c_t, 0)
Late: outputs are one step late: h_0 … h_{T-1}
    h, c = h_t, c_t
    outputs.append(h)
    → outputs.append(h)
      h, c = h_t, c_t
    h, c = torch.where(running, h_t, h) → late, h, c = h, torch.where(running, h_t, h)
    torch.where(running, h_t, 0) → torch.where(running, late, 0)
StateIgnored: the given initial state is ignored
    if state is not None → if False
StateKept: the state of the last call is where the next one starts
    B, T, _ = X.shape
    → B, T, _ = X.shape
      state = state or getattr(self, "last", None)
    return torch.stack
    → self.last = h, c
      return torch.stack
    says: LSTM depends on an earlier call
LengthsIgnored: lengths are ignored: padding is read like any other input
    if lengths is None: → if True:
OutputsNotZeroed: outputs after a sequence's last step are not zeroed
    torch.where(running, h_t, 0) → h
* StateAfterPadding: the returned state is the one after step T, padding included
    torch.where(running, h_t, h) → h_t
    torch.where(running, c_t, c) → c_t
StateZeroed: the state becomes zero after a sequence's last step
    running, h_t, h) → running, h_t, 0)
    running, c_t, c) → running, c_t, 0)
CellGoesOn: h is kept after a sequence's last step, but c goes on
    torch.where(running, c_t, c) → c_t
OneStepTooMany: a sequence stops one step too late
    t < lengths → t <= lengths
OneStepTooFew: a sequence stops one step too early
    t < lengths → t < lengths - 1
Detached: the state is detached at every step, so that no gradient passes through time
    t], h, c, → t], h.detach(), c.detach(),
    h_t, h) → h_t, h.detach())
    c_t, c) → c_t, c.detach())
GivenStateDetached: no gradient passes through the given state
    h, c = state if → h, c = (state[0].detach(), state[1].detach()) if
    says: No gradient reaches h_0:
StateIgnoredWithLengths: the given state is ignored when lengths are given
    state is not None → state is not None and lengths is None
WithoutGradient: no gradient reaches W
    self.W, self.b) → self.W.detach(), self.b)
    says: No gradient reaches W:
SingleStepAfresh: a single step starts from zeros, whatever the given state
    state is not None → state is not None and T > 1
* LastColumn: h is read where short sequences have padding, as in the last column
    dim=1), (h, c) → dim=1), (outputs[-1], c)
""",
)

mistakes(
    gru_step,
    """
* z_for_the_new: z and 1 - z are mixed up
    (1 - z) * n + z * h → z * n + (1 - z) * h
z_first: the gates r and z are mixed up
    r_x, z_x, n_x → z_x, r_x, n_x
    r_h, z_h, n_h → z_h, r_h, n_h
reset_before: r multiplies h before the product: that is the GRU of Cho et al. 2014
    r * n_h) → ((r * h) @ W_h.T + b_h).chunk(3, dim=1)[2])
bias_not_reset: the reset gate leaves out the bias of n_h
    r * n_h) → r * (n_h - b_h.chunk(3)[2]) + b_h.chunk(3)[2])
no_reset: the reset gate is not used
    r * n_h → n_h
resets_all: the reset gate also multiplies n_x
    n_x + r * n_h → r * (n_x + n_h)
sigmoid_candidate: n goes through σ instead of tanh
    n = torch.tanh( → n = torch.sigmoid(
no_hidden_bias: b_h is left out
    W_h.T + b_h → W_h.T
sum_of_sigmoids: each half of a gate goes through σ before they are added
    torch.sigmoid(r_x + r_h) → torch.sigmoid(r_x) + torch.sigmoid(r_h)
    torch.sigmoid(z_x + z_h) → torch.sigmoid(z_x) + torch.sigmoid(z_h)
weights_detached: no gradient passes through W_h
    W_h.T → W_h.detach().T
    says: No gradient reaches W_h:
in_place: h is updated in place
    return (1 - z) * n + z * h → return h.data.copy_((1 - z) * n + z * h)
""",
)

black_box(gru_step, "bias_not_reset", curve="gru_adding.losses", label="mean squared error")

wrong_answers(gru_step_fault, "D")
mistakes(
    gru_step_fault,
    """
no_bias: all biases are 0
    0.0, 0.0, 1.0 → 0.0, 0.0, 0.0
    says: With these arguments the black box gives what is right
other_bias: only the gates have a bias
    0.0, 0.0, 1.0 → 1.0, 1.0, 0.0
    says: With these arguments the black box gives what is right
open_gate: the reset gate is open
    0.0, 0.0, 1.0 → 50.0, 0.0, 1.0
    says: With these arguments the black box gives what is right
nothing_new: the update gate keeps all of h
    0.0, 0.0, 1.0 → 0.0, 50.0, 1.0
    says: With these arguments the black box gives what is right
five_arguments: b_h is left out
    b_x, b_h) → b_x)
    says: gru_step raised
""",
)

mistakes(
    cell_gradient,
    """
* own_gate_too: f_t itself is part of the product
    return G → return G * f
from_the_start: the product runs from the start: f_1 … f_t
    return G → return f.cumprod(1)
without_the_last: f_T is left out
    f.shape[1] - 1, 0 → f.shape[1] - 2, 0
summed: the gates are added up instead of multiplied
    G[:, t] * f[:, t] → G[:, t] + f[:, t]
forgotten: 1 - f is multiplied: what is forgotten instead of what is kept
    * f[:, t] → * (1 - f[:, t])
one_gate: each value is a single gate: f_{t+1} without the gates after it
    G[:, t] * f → f
over_the_batch: the product runs over the batch axis
    G = torch.ones_like(f)
    → f = f.transpose(0, 1)
      G = torch.ones_like(f)
    return G → return G.transpose(0, 1)
* divided: the whole product is divided by a part of it, 0/0 where a gate is closed
    return G → return f.prod(dim=1, keepdim=True) / f.cumprod(1)
first_only: only ∂c_T/∂c_1 is returned
    return G → return G[:, 0]
in_place: f is overwritten
    return G → return f.copy_(G)
""",
)

mistakes(
    convert_torch_lstm,
    """
torch_order: the gates of W stay in torch's order i, f, g, o
    [0, 1, 3, 2] → [0, 1, 2, 3]
f_first: torch's order is taken for f, i, g, o
    [0, 1, 3, 2] → [1, 0, 3, 2]
rotated: torch's order is taken for i, g, f, o
    [0, 1, 3, 2] → [0, 2, 3, 1]
""",
)

changed(
    convert_torch_lstm,
    "bias_in_torch_order",
    "W is put into our order, but b is not",
    ("    b = torch.cat([b.chunk(4)[gate] for gate in order])\n", ""),
)

mistakes(
    convert_torch_lstm,
    """
* input_bias_only: only bias_ih is used
    ] + state["bias_hh_l0"] → ]
* hidden_bias_only: only bias_hh is used
    state["bias_ih_l0"] + state → state
x_first: the columns for x come before those for h
    ["weight_hh_l0"], state["weight_ih_l0"]] → ["weight_ih_l0"], state["weight_hh_l0"]]
transposed: W is transposed
    "W": W, → "W": W.T,
interleaved: torch's rows are taken for interleaved gates: i f g o, i f g o, …
    W.chunk(4)[gate] → W[gate::4]
    b.chunk(4)[gate] → b[gate::4]
expects_biases: biases are expected even where torch has none
    if "bias_ih_l0" in state: → if True:
    says: KeyError: 'bias_ih_l0'
silent: a second layer is silently dropped
    if extra := sorted(set(state) - names) → if False
    says: should raise ValueError when there is a second layer
counted: only the number of weights is looked at
    if extra := sorted(set(state) - names) → if len(state) not in (2, 4) and (extra := list(state))
    says: should raise ValueError when there is a second layer, and no bias
projection_dropped: a projection is silently dropped
    sorted(set(state) - names) → sorted(n for n in state if "_l1" in n or n.endswith("_reverse"))
    says: should raise ValueError when there is a projection
unnamed: the error does not name what is left over
    , but the state also has {extra} →
    says: The message should name what is left over
""",
)

mistakes(
    init_forget_bias,
    """
* input_gate: the input gates' biases are set instead of the forget gates'
    b[H : 2 * H] → b[:H]
* output_gate: the output gates' biases are set instead of the forget gates'
    b[H : 2 * H] → b[2 * H : 3 * H]
every_gate: every bias is set, not only the forget gates'
    b[H : 2 * H] → b[:]
added: the value is added to the old bias
    ] = value → ] += value
first_only: only the first forget gate's bias is set
    b[H : 2 * H] → b[H]
one_too_many: one bias too many is set: the first output gate's too
    2 * H] → 2 * H + 1]
always_one: the value is ignored and 1 is set
    ] = value → ] = 1
zero_is_none: a value of 0 is taken for none, and 1 is set
    ] = value → ] = value or 1
others_zeroed: the other biases become zero
    b = b.clone() → b = torch.zeros_like(b)
""",
)

changed(init_forget_bias, "in_place", "b is changed in place", ("    b = b.clone()\n", ""))

mistakes(
    init_forget_bias,
    """
returns_nothing: nothing is returned
    return b → return None
    says: yours is None. Does it return what it computes?
""",
)

mistakes(
    chrono_bias,
    """
no_logarithm: the logarithm is left out
    torch.log( → (
too_long: u is multiplied by T_max - 1, so that τ reaches T_max + 1
    u * (T_max - 2) → u * (T_max - 1)
no_lower_end: the logarithm is taken of u T_max, so that biases of short memories go to -∞
    log(1 + u * (T_max - 2)) → log(u * T_max)
even_biases: b_f itself is spread evenly, instead of the time constants
    torch.log(1 + u * (T_max - 2)) → u * math.log(T_max - 1)
* one_for_all: every cell gets the same bias, that of the first
    1 + u * → 1 + u[0] *
same_sign: b_i is b_f, with the same sign
    -b[H → b[H
""",
)

changed(
    chrono_bias,
    "input_gate_left",
    "the input gates' biases are left as they are",
    ("    b[:H] = -b[H : 2 * H]\n", ""),
    classic=True,
)

mistakes(
    chrono_bias,
    """
swapped: the biases of i and f are mixed up
    b[H : 2 * H] = torch → b[H : 2 * H] = -torch
others_zeroed: the biases of o and g become zero
    b = b.clone() → b = torch.zeros_like(b)
    says: yours is 0 (
""",
)

changed(chrono_bias, "in_place", "b is changed in place", ("    b = b.clone()\n", ""))

mistakes(
    chrono_bias,
    """
no_error: a T_max below 2 gives NaN instead of an error
    if T_max < 2 → if False
    says: should raise ValueError when T_max is 1
""",
)

mistakes(
    LSTM,
    """
RandomState: the initial state is drawn at random
    (X.new_zeros(B, self.H), X.new_zeros(B, self.H)) → torch.randn(2, B, self.H).to(X).unbind()
    says: Two calls with the same input differ: outputs of the second call
EndsWithTheLongest: outputs end with the longest sequence, although X goes on
    torch.stack(outputs, dim=1)
    → torch.stack(outputs, dim=1)[:, : lengths if lengths is None else lengths.max()]
""",
)

mistakes(
    gru_step,
    """
squeezed: the axis of the batch is squeezed out when there is one sequence
    (1 - z) * n + z * h → ((1 - z) * n + z * h).squeeze()
""",
)
