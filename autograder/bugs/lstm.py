"""Known wrong solutions of lstm."""

import torch

from autograder.bugs import bug
from course_pkg.lstm import (
    LSTM,
    additive_cell_step,
    cell_gradient,
    chrono_bias,
    convert_torch_lstm,
    gru_step,
    init_forget_bias,
    lstm_step,
)

sigmoid, tanh = torch.sigmoid, torch.tanh


@bug(additive_cell_step, "x comes before h in the product, so each meets the other's weights")
def x_first(x, h, c, W, b):
    c = c + tanh(torch.cat([x, h], dim=1) @ W.T + b)
    return tanh(c), c


@bug(additive_cell_step, "the candidate goes through no tanh")
def linear_candidate(x, h, c, W, b):
    c = c + torch.cat([h, x], dim=1) @ W.T + b
    return tanh(c), c


@bug(additive_cell_step, "the candidate goes through σ instead of tanh")
def sigmoid_candidate(x, h, c, W, b):
    c = c + sigmoid(torch.cat([h, x], dim=1) @ W.T + b)
    return tanh(c), c


@bug(additive_cell_step, "the cell state is replaced instead of added to")
def replaced(x, h, c, W, b):
    c = tanh(torch.cat([h, x], dim=1) @ W.T + b)
    return tanh(c), c


@bug(additive_cell_step, "the candidate is added to h_{t-1} instead of c_{t-1}")
def added_to_h(x, h, c, W, b):
    c = h + tanh(torch.cat([h, x], dim=1) @ W.T + b)
    return tanh(c), c


@bug(additive_cell_step, "h_t is the cell state itself, without tanh")
def bare_cell(x, h, c, W, b):
    c = c + tanh(torch.cat([h, x], dim=1) @ W.T + b)
    return c, c


@bug(additive_cell_step, "h_t is computed from the cell state before the step")
def old_cell(x, h, c, W, b):
    return tanh(c), c + tanh(torch.cat([h, x], dim=1) @ W.T + b)


@bug(additive_cell_step, "the bias is left out")
def no_bias(x, h, c, W, b):
    c = c + tanh(torch.cat([h, x], dim=1) @ W.T)
    return tanh(c), c


@bug(additive_cell_step, "c_t is returned before h_t")
def returned_in_wrong_order(x, h, c, W, b):
    c = c + tanh(torch.cat([h, x], dim=1) @ W.T + b)
    return c, tanh(c)


@bug(additive_cell_step, "c_t goes through tanh, as h_t does")
def squashed_cell(x, h, c, W, b):
    c = tanh(c + tanh(torch.cat([h, x], dim=1) @ W.T + b))
    return c, c


@bug(additive_cell_step, "no gradient passes through h_{t-1}", told_by="No gradient reaches h:")
def state_detached(x, h, c, W, b):
    return additive_cell_step(x, h.detach(), c, W, b)


@bug(additive_cell_step, "c is updated in place", classic=True)
def in_place(x, h, c, W, b):
    with torch.no_grad():
        c += tanh(torch.cat([h, x], dim=1) @ W.T + b)
    return tanh(c), c


def gates(x, h, W, b):
    return (torch.cat([h, x], dim=1) @ W.T + b).chunk(4, dim=1)


@bug(lstm_step, "the gates are read in torch's order i, f, g, o", classic=True)
def torch_order(x, h, c, W, b):
    i, f, g, o = gates(x, h, W, b)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@bug(lstm_step, "the gates i and f are mixed up", classic=True)
def f_first(x, h, c, W, b):
    f, i, o, g = gates(x, h, W, b)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@bug(lstm_step, "x comes before h in the product, so each meets the other's weights")
def x_first(x, h, c, W, b):
    i, f, o, g = (torch.cat([x, h], dim=1) @ W.T + b).chunk(4, dim=1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@bug(lstm_step, "the bias is left out")
def no_bias(x, h, c, W, b):
    i, f, o, g = gates(x, h, W, 0 * b)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@bug(lstm_step, "g goes through σ instead of tanh")
def sigmoid_candidate(x, h, c, W, b):
    i, f, o, g = gates(x, h, W, b)
    c = sigmoid(f) * c + sigmoid(i) * sigmoid(g)
    return sigmoid(o) * tanh(c), c


@bug(lstm_step, "i, f and o are used without σ")
def open_gates(x, h, c, W, b):
    i, f, o, g = gates(x, h, W, b)
    c = f * c + i * tanh(g)
    return o * tanh(c), c


@bug(lstm_step, "h_t is o ⊙ c_t, without tanh")
def bare_cell(x, h, c, W, b):
    i, f, o, g = gates(x, h, W, b)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * c, c


@bug(lstm_step, "h_t is computed from the cell state before the step")
def old_cell(x, h, c, W, b):
    i, f, o, g = gates(x, h, W, b)
    return sigmoid(o) * tanh(c), sigmoid(f) * c + sigmoid(i) * tanh(g)


@bug(lstm_step, "c_{t-1} is multiplied by 1 - f: f is how much to keep, not to forget")
def forgets_by_f(x, h, c, W, b):
    i, f, o, g = gates(x, h, W, b)
    c = (1 - sigmoid(f)) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@bug(lstm_step, "the forget gate is left out: c_t = c_{t-1} + i ⊙ g")
def never_forgets(x, h, c, W, b):
    i, _, o, g = gates(x, h, W, b)
    c = c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@bug(lstm_step, "c_t is returned before h_t")
def returned_in_wrong_order(x, h, c, W, b):
    return lstm_step(x, h, c, W, b)[::-1]


@bug(lstm_step, "c is updated in place")
def in_place(x, h, c, W, b):
    i, f, o, g = gates(x, h, W, b)
    with torch.no_grad():
        c *= sigmoid(f)
        c += sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@bug(lstm_step, "no gradient passes through W", told_by="No gradient reaches W:")
def weights_detached(x, h, c, W, b):
    return lstm_step(x, h, c, W.detach(), b)


@bug(lstm_step, "no gradient passes through c_{t-1}", told_by="No gradient reaches c:")
def detached(x, h, c, W, b):
    return lstm_step(x, h, c.detach(), W, b)


class Unrolled(LSTM):
    """An LSTM whose loop the bugs below vary."""

    def start(self, X, state):
        return state or (X.new_zeros(len(X), self.H), X.new_zeros(len(X), self.H))

    def forward(self, X, state=None, lengths=None):
        h, c = self.start(X, state)
        outputs = []
        for t in range(X.shape[1]):
            output, h, c = self.advance(X, t, h, c, lengths)
            outputs.append(output)
        return torch.stack(outputs, dim=1), (h, c)

    def advance(self, X, t, h, c, lengths):
        h_t, c_t = lstm_step(X[:, t], h, c, self.W, self.b)
        running = self.running(t, lengths) if lengths is not None else torch.tensor([[True]])
        return self.at_step(running, h_t, c_t, h, c)

    def running(self, t, lengths):
        return (t < lengths)[:, None]

    def at_step(self, running, h_t, c_t, h, c):
        kept = torch.where(running, h_t, h), torch.where(running, c_t, c)
        return torch.where(running, h_t, 0), *kept


@bug(LSTM, "the loop runs over the batch axis instead of the time axis")
class BatchAsTime(LSTM):
    def forward(self, X, state=None, lengths=None):
        outputs, state = super().forward(X.transpose(0, 1), state, lengths)
        return outputs.transpose(0, 1), state


@bug(LSTM, "the sequence is read from its end")
class Backwards(LSTM):
    def forward(self, X, state=None, lengths=None):
        return super().forward(X.flip(1), state, lengths)


@bug(LSTM, "the outputs are the cell states c_t instead of h_t")
class CellOutputs(Unrolled):
    def at_step(self, running, h_t, c_t, h, c):
        _, h, c = super().at_step(running, h_t, c_t, h, c)
        return torch.where(running, c_t, 0), h, c


@bug(LSTM, "every step starts from the initial state again")
class NothingCarried(Unrolled):
    def advance(self, X, t, h, c, lengths):
        return super().advance(X, t, torch.zeros_like(h), torch.zeros_like(c), lengths)


@bug(LSTM, "outputs are one step late: h_0 … h_{T-1}")
class Late(Unrolled):
    def at_step(self, running, h_t, c_t, h, c):
        _, h_new, c_new = super().at_step(running, h_t, c_t, h, c)
        return torch.where(running, h, 0), h_new, c_new


@bug(LSTM, "the given initial state is ignored")
class StateIgnored(LSTM):
    def forward(self, X, state=None, lengths=None):
        return super().forward(X, None, lengths)


@bug(
    LSTM,
    "the state of the last call is where the next one starts",
    told_by="LSTM depends on an earlier call",
)
class StateKept(LSTM):
    def forward(self, X, state=None, lengths=None):
        last = getattr(self, "last", None)
        if state is None and last is not None and len(last[0]) == len(X):
            state = last
        outputs, state = super().forward(X, state, lengths)
        self.last = state
        return outputs, state


@bug(LSTM, "lengths are ignored: padding is read like any other input")
class LengthsIgnored(LSTM):
    def forward(self, X, state=None, lengths=None):
        return super().forward(X, state)


@bug(LSTM, "outputs after a sequence's last step are not zeroed")
class OutputsNotZeroed(Unrolled):
    def at_step(self, running, h_t, c_t, h, c):
        _, h, c = super().at_step(running, h_t, c_t, h, c)
        return h, h, c


@bug(LSTM, "the returned state is the one after step T, padding included", classic=True)
class StateAfterPadding(Unrolled):
    def at_step(self, running, h_t, c_t, h, c):
        return torch.where(running, h_t, 0), h_t, c_t


@bug(LSTM, "the state becomes zero after a sequence's last step")
class StateZeroed(Unrolled):
    def at_step(self, running, h_t, c_t, h, c):
        h, c = torch.where(running, h_t, 0), torch.where(running, c_t, 0)
        return h, h, c


@bug(LSTM, "h is kept after a sequence's last step, but c goes on")
class CellGoesOn(Unrolled):
    def at_step(self, running, h_t, c_t, h, c):
        output, h, _ = super().at_step(running, h_t, c_t, h, c)
        return output, h, c_t


@bug(LSTM, "a sequence stops one step too late")
class OneStepTooMany(Unrolled):
    def running(self, t, lengths):
        return (t <= lengths)[:, None]


@bug(LSTM, "a sequence stops one step too early")
class OneStepTooFew(Unrolled):
    def running(self, t, lengths):
        return (t < lengths - 1)[:, None]


@bug(LSTM, "the state is detached at every step, so that no gradient passes through time")
class Detached(Unrolled):
    def advance(self, X, t, h, c, lengths):
        return super().advance(X, t, h.detach(), c.detach(), lengths)


@bug(
    LSTM,
    "no gradient passes through the given state",
    told_by="No gradient reaches h_0:",
)
class GivenStateDetached(LSTM):
    def forward(self, X, state=None, lengths=None):
        state = state and tuple(part.detach() for part in state)
        return super().forward(X, state, lengths)


@bug(LSTM, "the given state is ignored when lengths are given")
class StateIgnoredWithLengths(LSTM):
    def forward(self, X, state=None, lengths=None):
        return super().forward(X, state if lengths is None else None, lengths)


@bug(LSTM, "no gradient reaches W", told_by="No gradient reaches W:")
class WithoutGradient(Unrolled):
    def advance(self, X, t, h, c, lengths):
        h_t, c_t = lstm_step(X[:, t], h, c, self.W.detach(), self.b)
        running = self.running(t, lengths) if lengths is not None else torch.tensor([[True]])
        return self.at_step(running, h_t, c_t, h, c)


@bug(LSTM, "a single step starts from zeros, whatever the given state")
class SingleStepAfresh(LSTM):
    def forward(self, X, state=None, lengths=None):
        return super().forward(X, state if X.shape[1] > 1 else None, lengths)


@bug(LSTM, "h is read where short sequences have padding, as in the last column", classic=True)
class LastColumn(LSTM):
    def forward(self, X, state=None, lengths=None):
        outputs, (_, c) = super().forward(X, state, lengths)
        return outputs, (outputs[:, -1], c)


def parts(x, h, W_x, W_h, b_x, b_h):
    return *(x @ W_x.T + b_x).chunk(3, dim=1), *(h @ W_h.T + b_h).chunk(3, dim=1)


@bug(gru_step, "z and 1 - z are mixed up", classic=True)
def z_for_the_new(x, h, W_x, W_h, b_x, b_h):
    r_x, z_x, n_x, r_h, z_h, n_h = parts(x, h, W_x, W_h, b_x, b_h)
    r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
    return z * tanh(n_x + r * n_h) + (1 - z) * h


@bug(gru_step, "the gates r and z are mixed up")
def z_first(x, h, W_x, W_h, b_x, b_h):
    z_x, r_x, n_x, z_h, r_h, n_h = parts(x, h, W_x, W_h, b_x, b_h)
    r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
    return (1 - z) * tanh(n_x + r * n_h) + z * h


@bug(gru_step, "r multiplies h before the product: that is the GRU of Cho et al. 2014")
def reset_before(x, h, W_x, W_h, b_x, b_h):
    H = h.shape[1]
    r_x, z_x, n_x, r_h, z_h, _ = parts(x, h, W_x, W_h, b_x, b_h)
    r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
    return (1 - z) * tanh(n_x + (r * h) @ W_h[2 * H :].T + b_h[2 * H :]) + z * h


@bug(gru_step, "the reset gate leaves out the bias of n_h")
def bias_not_reset(x, h, W_x, W_h, b_x, b_h):
    H = h.shape[1]
    r_x, z_x, n_x, r_h, z_h, _ = parts(x, h, W_x, W_h, b_x, b_h)
    r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
    return (1 - z) * tanh(n_x + r * (h @ W_h[2 * H :].T) + b_h[2 * H :]) + z * h


@bug(gru_step, "the reset gate is not used")
def no_reset(x, h, W_x, W_h, b_x, b_h):
    _, z_x, n_x, _, z_h, n_h = parts(x, h, W_x, W_h, b_x, b_h)
    z = sigmoid(z_x + z_h)
    return (1 - z) * tanh(n_x + n_h) + z * h


@bug(gru_step, "the reset gate also multiplies n_x")
def resets_all(x, h, W_x, W_h, b_x, b_h):
    r_x, z_x, n_x, r_h, z_h, n_h = parts(x, h, W_x, W_h, b_x, b_h)
    r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
    return (1 - z) * tanh(r * (n_x + n_h)) + z * h


@bug(gru_step, "n goes through σ instead of tanh")
def sigmoid_candidate(x, h, W_x, W_h, b_x, b_h):
    r_x, z_x, n_x, r_h, z_h, n_h = parts(x, h, W_x, W_h, b_x, b_h)
    r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
    return (1 - z) * sigmoid(n_x + r * n_h) + z * h


@bug(gru_step, "b_h is left out")
def no_hidden_bias(x, h, W_x, W_h, b_x, b_h):
    return gru_step(x, h, W_x, W_h, b_x, 0 * b_h)


@bug(gru_step, "each half of a gate goes through σ before they are added")
def sum_of_sigmoids(x, h, W_x, W_h, b_x, b_h):
    r_x, z_x, n_x, r_h, z_h, n_h = parts(x, h, W_x, W_h, b_x, b_h)
    r, z = sigmoid(r_x) + sigmoid(r_h), sigmoid(z_x) + sigmoid(z_h)
    return (1 - z) * tanh(n_x + r * n_h) + z * h


@bug(gru_step, "no gradient passes through W_h", told_by="No gradient reaches W_h:")
def weights_detached(x, h, W_x, W_h, b_x, b_h):
    return gru_step(x, h, W_x, W_h.detach(), b_x, b_h)


@bug(gru_step, "h is updated in place")
def in_place(x, h, W_x, W_h, b_x, b_h):
    new = gru_step(x, h, W_x, W_h, b_x, b_h)
    with torch.no_grad():
        h.copy_(new)
    return h


def product_after(f):
    """f_{t+1} … f_T for every t, by one reversed cumulative product."""
    later = torch.cat([f[:, 1:], torch.ones_like(f[:, :1])], dim=1)
    return later.flip(1).cumprod(1).flip(1)


@bug(cell_gradient, "f_t itself is part of the product", classic=True)
def own_gate_too(f):
    return f.flip(1).cumprod(1).flip(1)


@bug(cell_gradient, "the product runs from the start: f_1 … f_t")
def from_the_start(f):
    return f.cumprod(1)


@bug(cell_gradient, "f_T is left out")
def without_the_last(f):
    return product_after(torch.cat([f[:, :-1], torch.ones_like(f[:, :1])], dim=1))


@bug(cell_gradient, "the gates are added up instead of multiplied")
def summed(f):
    later = torch.cat([f[:, 1:], torch.ones_like(f[:, :1])], dim=1)
    return later.flip(1).cumsum(1).flip(1)


@bug(cell_gradient, "1 - f is multiplied: what is forgotten instead of what is kept")
def forgotten(f):
    return product_after(1 - f)


@bug(cell_gradient, "each value is a single gate: f_{t+1} without the gates after it")
def one_gate(f):
    return torch.cat([f[:, 1:], torch.ones_like(f[:, :1])], dim=1)


@bug(cell_gradient, "the product runs over the batch axis")
def over_the_batch(f):
    return product_after(f.transpose(0, 1)).transpose(0, 1)


@bug(
    cell_gradient,
    "the whole product is divided by a part of it, 0/0 where a gate is closed",
    classic=True,
)
def divided(f):
    return f.prod(dim=1, keepdim=True) / f.cumprod(1)


@bug(cell_gradient, "only ∂c_T/∂c_1 is returned")
def first_only(f):
    return product_after(f)[:, 0]


@bug(cell_gradient, "f is overwritten")
def in_place(f):
    f.copy_(product_after(f))
    return f


def fused(state, order, biases=("bias_ih_l0", "bias_hh_l0")):
    W = torch.cat([state["weight_hh_l0"], state["weight_ih_l0"]], dim=1)
    b = sum(state.get(name, W.new_zeros(len(W))) for name in biases)
    W = torch.cat([W.chunk(4)[gate] for gate in order])
    return {"W": W, "b": torch.cat([b.chunk(4)[gate] for gate in order])}


def refuse(state):
    if extra := set(state) - {*torch_names, *torch_biases}:
        raise ValueError(f"one layer and one direction only, not {extra}")


@bug(convert_torch_lstm, "the gates of W stay in torch's order i, f, g, o")
def torch_order(state):
    refuse(state)
    return fused(state, [0, 1, 2, 3])


@bug(convert_torch_lstm, "torch's order is taken for f, i, g, o")
def f_first(state):
    refuse(state)
    return fused(state, [1, 0, 3, 2])


@bug(convert_torch_lstm, "torch's order is taken for i, g, f, o")
def rotated(state):
    refuse(state)
    return fused(state, [0, 2, 3, 1])


@bug(convert_torch_lstm, "W is put into our order, but b is not")
def bias_in_torch_order(state):
    refuse(state)
    return {"W": fused(state, [0, 1, 3, 2])["W"], "b": fused(state, [0, 1, 2, 3])["b"]}


@bug(convert_torch_lstm, "only bias_ih is used", classic=True)
def input_bias_only(state):
    refuse(state)
    return fused(state, [0, 1, 3, 2], ["bias_ih_l0"])


@bug(convert_torch_lstm, "only bias_hh is used", classic=True)
def hidden_bias_only(state):
    refuse(state)
    return fused(state, [0, 1, 3, 2], ["bias_hh_l0"])


@bug(convert_torch_lstm, "the columns for x come before those for h")
def x_first(state):
    refuse(state)
    result = fused(state, [0, 1, 3, 2])
    H = state["weight_hh_l0"].shape[1]
    return {**result, "W": torch.cat([result["W"][:, H:], result["W"][:, :H]], dim=1)}


@bug(convert_torch_lstm, "W is transposed")
def transposed(state):
    refuse(state)
    result = fused(state, [0, 1, 3, 2])
    return {**result, "W": result["W"].T}


@bug(convert_torch_lstm, "torch's rows are taken for interleaved gates: i f g o, i f g o, …")
def interleaved(state):
    refuse(state)
    result = fused(state, [0, 1, 2, 3])
    H = len(result["b"]) // 4
    rows = torch.arange(4 * H).view(H, 4)[:, [0, 1, 3, 2]].T.flatten()
    return {"W": result["W"][rows], "b": result["b"][rows]}


@bug(
    convert_torch_lstm,
    "biases are expected even where torch has none",
    told_by="KeyError: 'bias_ih_l0'",
)
def expects_biases(state):
    refuse(state)
    state = {name: state[name] for name in (*torch_names, *torch_biases)}
    return fused(state, [0, 1, 3, 2])


torch_names = ["weight_ih_l0", "weight_hh_l0"]
torch_biases = ["bias_ih_l0", "bias_hh_l0"]


@bug(
    convert_torch_lstm,
    "a second layer is silently dropped",
    told_by="should raise ValueError when there is a second layer",
)
def silent(state):
    return fused(state, [0, 1, 3, 2])


@bug(
    convert_torch_lstm,
    "only the number of weights is looked at",
    told_by="should raise ValueError when there is a second layer, and no bias",
)
def counted(state):
    if len(state) not in (2, 4):
        raise ValueError(f"too many weights: {list(state)}")
    return fused(state, [0, 1, 3, 2])


@bug(
    convert_torch_lstm,
    "a projection is silently dropped",
    told_by="should raise ValueError when there is a projection",
)
def projection_dropped(state):
    for name in state:
        if "_l1" in name or name.endswith("_reverse"):
            raise ValueError(f"one layer and one direction only, not {name}")
    return fused(state, [0, 1, 3, 2])


@bug(
    convert_torch_lstm,
    "the error does not name what is left over",
    told_by="The message should name what is left over",
)
def unnamed(state):
    if set(state) - {*torch_names, *torch_biases}:
        raise ValueError("one layer and one direction only")
    return fused(state, [0, 1, 3, 2])


@bug(init_forget_bias, "the input gates' biases are set instead of the forget gates'", classic=True)
def input_gate(b, value=1.0):
    b = b.clone()
    b[: len(b) // 4] = value
    return b


@bug(
    init_forget_bias, "the output gates' biases are set instead of the forget gates'", classic=True
)
def output_gate(b, value=1.0):
    b = b.clone()
    H = len(b) // 4
    b[2 * H : 3 * H] = value
    return b


@bug(init_forget_bias, "every bias is set, not only the forget gates'")
def every_gate(b, value=1.0):
    return torch.full_like(b, value)


@bug(init_forget_bias, "the value is added to the old bias")
def added(b, value=1.0):
    b = b.clone()
    H = len(b) // 4
    b[H : 2 * H] += value
    return b


@bug(init_forget_bias, "only the first forget gate's bias is set")
def first_only(b, value=1.0):
    b = b.clone()
    b[len(b) // 4] = value
    return b


@bug(init_forget_bias, "one bias too many is set: the first output gate's too")
def one_too_many(b, value=1.0):
    b = b.clone()
    H = len(b) // 4
    b[H : 2 * H + 1] = value
    return b


@bug(init_forget_bias, "the value is ignored and 1 is set")
def always_one(b, value=1.0):
    return init_forget_bias(b)


@bug(init_forget_bias, "a value of 0 is taken for none, and 1 is set")
def zero_is_none(b, value=1.0):
    return init_forget_bias(b, value or 1.0)


@bug(init_forget_bias, "the other biases become zero")
def others_zeroed(b, value=1.0):
    return init_forget_bias(torch.zeros_like(b), value)


@bug(init_forget_bias, "b is changed in place")
def in_place(b, value=1.0):
    H = len(b) // 4
    b[H : 2 * H] = value
    return b


@bug(
    init_forget_bias,
    "nothing is returned",
    told_by="yours is None. Does it return what it computes?",
)
def returns_nothing(b, value=1.0):
    init_forget_bias(b, value)


def chrono(b, forget, input_gate):
    H = len(b) // 4
    return torch.cat([input_gate, forget, b[2 * H :]])


def refuse_range(T_max):
    if T_max < 2:
        raise ValueError("T_max is too small")


@bug(chrono_bias, "the logarithm is left out")
def no_logarithm(b, u, T_max):
    refuse_range(T_max)
    forget = 1 + u * (T_max - 2)
    return chrono(b, forget, -forget)


@bug(chrono_bias, "u is multiplied by T_max - 1, so that τ reaches T_max + 1")
def too_long(b, u, T_max):
    refuse_range(T_max)
    forget = torch.log(1 + u * (T_max - 1))
    return chrono(b, forget, -forget)


@bug(chrono_bias, "the logarithm is taken of u T_max, so that biases of short memories go to -∞")
def no_lower_end(b, u, T_max):
    refuse_range(T_max)
    forget = torch.log(u * T_max)
    return chrono(b, forget, -forget)


@bug(chrono_bias, "b_f itself is spread evenly, instead of the time constants")
def even_biases(b, u, T_max):
    refuse_range(T_max)
    forget = u * torch.log(torch.tensor(T_max - 1.0, dtype=u.dtype))
    return chrono(b, forget, -forget)


@bug(chrono_bias, "every cell gets the same bias, that of the first", classic=True)
def one_for_all(b, u, T_max):
    refuse_range(T_max)
    return chrono_bias(b, u[:1].expand(len(u)), T_max)


@bug(chrono_bias, "b_i is b_f, with the same sign")
def same_sign(b, u, T_max):
    refuse_range(T_max)
    forget = torch.log(1 + u * (T_max - 2))
    return chrono(b, forget, forget)


@bug(chrono_bias, "the input gates' biases are left as they are", classic=True)
def input_gate_left(b, u, T_max):
    forget = chrono_bias(b, u, T_max)
    H = len(u)
    return torch.cat([b[:H], forget[H:]])


@bug(chrono_bias, "the biases of i and f are mixed up")
def swapped(b, u, T_max):
    refuse_range(T_max)
    forget = torch.log(1 + u * (T_max - 2))
    return chrono(b, -forget, forget)


@bug(chrono_bias, "the biases of o and g become zero", told_by="yours is 0 (")
def others_zeroed(b, u, T_max):
    return chrono_bias(torch.zeros_like(b), u, T_max)


@bug(chrono_bias, "b is changed in place")
def in_place(b, u, T_max):
    b.copy_(chrono_bias(b, u, T_max))
    return b


@bug(
    chrono_bias,
    "a T_max below 2 gives NaN instead of an error",
    told_by="should raise ValueError when T_max is 1",
)
def no_error(b, u, T_max):
    forget = torch.log(1 + u * (T_max - 2))
    return chrono(b, forget, -forget)


@bug(
    LSTM,
    "the initial state is drawn at random",
    told_by="Two calls with the same input differ: outputs of the second call",
)
class RandomState(LSTM):
    def forward(self, X, state=None, lengths=None):
        if state is None:
            state = torch.randn(2, len(X), self.H).to(X).unbind()
        return super().forward(X, state, lengths)


@bug(LSTM, "outputs end with the longest sequence, although X goes on")
class EndsWithTheLongest(LSTM):
    def forward(self, X, state=None, lengths=None):
        outputs, state = super().forward(X, state, lengths)
        return (outputs if lengths is None else outputs[:, : int(lengths.max())]), state


@bug(gru_step, "the axis of the batch is squeezed out when there is one sequence")
def squeezed(x, h, W_x, W_h, b_x, b_h):
    return gru_step(x, h, W_x, W_h, b_x, b_h).squeeze()
