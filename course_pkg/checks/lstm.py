"""Checks of lstm. Oracles: torch.nn.RNNCell, LSTMCell, LSTM, GRUCell, autograd, closed forms."""

import torch
from torch import Tensor, nn

from course_pkg.checking.batched import made
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.checking.rules import rules
from course_pkg.checking.rules.rules import forbid
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

forbid(additive_cell_step, rules.RNN)
forbid(lstm_step, rules.LSTM)
forbid(LSTM, rules.LSTM)
forbid(gru_step, rules.GRU)


def step_inputs(case: Case, B: int, D: int, H: int, gates: int) -> list[Tensor]:
    """Draw x, h, c, W and b for a cell with so many gates."""
    W, b = case.randn(gates * H, H + D) / H**0.5, case.randn(gates * H)
    return [case.randn(B, D), case.randn(B, H), case.randn(B, H), W, b]


def to_torch(cell: nn.Module, W: Tensor, b: Tensor, suffix: str = "") -> nn.Module:
    """Give torch's cell our fused weights: gates i, f, o, g become torch's i, f, g, o."""
    H = W.shape[0] // 4
    rows = torch.cat([torch.arange(2 * H), torch.arange(3 * H, 4 * H), torch.arange(2 * H, 3 * H)])
    state = {
        "weight_hh": W[rows, :H],
        "weight_ih": W[rows, H:],
        "bias_hh": b[rows],
        "bias_ih": torch.zeros_like(b),
    }
    cell.double().load_state_dict({name + suffix: value for name, value in state.items()})
    return cell


def run_lstm(case: Case, lstm, X: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor, Tensor]:
    """Run a student's LSTM and split what it returns into outputs, h and c."""
    outputs, state = case.unpack(lstm(X, *args, **kwargs), "outputs", "(h, c)")
    return outputs, *case.unpack(state, "h", "c")


def lstm_pair(case: Case, student, D: int, H: int) -> tuple:
    """Make a student's LSTM and torch's with the same random weights, float64."""
    W, b = case.randn(4 * H, H + D) / H**0.5, case.randn(4 * H)
    ours = made(student, {"W": W, "b": b}, D, H)
    return ours, to_torch(nn.LSTM(D, H, batch_first=True), W, b, "_l0")


def both(case: Case, result: object, B: int, H: int) -> tuple[Tensor, Tensor]:
    """Split what a step returns into h_t and c_t, and demand their shapes."""
    h_t, c_t = case.unpack(result, "h_t", "c_t")
    case.shape(h_t, (B, H), "h_t")
    case.shape(c_t, (B, H), "c_t")
    return h_t, c_t


@check(additive_cell_step, weight=2, see="A cell that only adds", single="B")
def values(step, case):
    """adds the output of torch.nn.RNNCell to the cell state"""
    B, D, H = case.sizes(3)
    x, h, c, W, b = step_inputs(case, B, D, H, 1)
    W.requires_grad_()
    cell = nn.RNNCell(D, H).double()
    names = ["weight_hh", "weight_ih", "bias_hh", "bias_ih"]
    parts = [W[:, :H], W[:, H:], b, torch.zeros_like(b)]
    cell.load_state_dict(dict(zip(names, parts, strict=True)))
    expected = c + cell(x, h)
    h_t, c_t = both(case, step(x, h, c, W, b), B, H)
    case.equal(c_t, expected, "c_t")
    case.equal(h_t, expected.tanh(), "h_t")
    case.trains(h_t, "h_t")
    case.trains(c_t, "c_t")


@check(additive_cell_step, see="A cell that only adds")
def nothing_to_add(step, case):
    """keeps the cell state when all weights are zero"""
    B, D, H = case.sizes(3)
    x, h, c, W, b = step_inputs(case, B, D, H, 1)
    h_t, c_t = both(case, step(x, h, c, 0 * W, 0 * b), B, H)
    case.equal(h_t, c.tanh(), "h_t")
    case.equal(c_t, c, "c_t")


@check(additive_cell_step, see="A cell that only adds")
def gradients(step, case):
    """passes gradients back to x, h, c, W and b, by way of h_t and c_t"""
    B, D, H = case.sizes(3)
    inputs = [tensor.requires_grad_() for tensor in step_inputs(case, B, D, H, 1)]
    x, h, c, W, b = inputs
    expected_c = c + torch.tanh(h @ W[:, :H].T + x @ W[:, H:].T + b)
    seen = case.randn(B, H), case.randn(B, H)
    expected = torch.autograd.grad([expected_c.tanh(), expected_c], inputs, seen)
    h_t, c_t = both(case, step(*inputs), B, H)
    case.trains(h_t, "h_t")
    case.trains(c_t, "c_t")
    torch.autograd.backward([h_t, c_t], seen)
    for name, tensor, gradient in zip("xhcWb", inputs, expected, strict=True):
        case.gradient(tensor, gradient, name)


@check(lstm_step, weight=3, see="The order of the gates")
def values(step, case):
    """agrees with torch.nn.LSTMCell"""
    B, D, H = case.sizes(3)
    x, h, c, W, b = step_inputs(case, B, D, H, 4)
    expected_h, expected_c = to_torch(nn.LSTMCell(D, H), W, b)(x, (h, c))
    h_t, c_t = both(case, step(x, h, c, W, b), B, H)
    case.equal(c_t, expected_c, "c_t")
    case.equal(h_t, expected_h, "h_t")


@check(lstm_step, see="The LSTM step")
def remembers(step, case):
    """keeps the cell state when f = 1 and i = 0"""
    B, D, H = case.sizes(3)
    x, h, c, W, b = step_inputs(case, B, D, H, 4)
    b = b.index_fill(0, torch.arange(H), -1e3).index_fill(0, torch.arange(H, 2 * H), 1e3)
    _, c_t = both(case, step(x, h, c, W, b), B, H)
    case.equal(c_t, c, "c_t")


@check(lstm_step, see="The LSTM step")
def reveals_nothing(step, case):
    """gives h_t = 0 when o = 0, whatever the cell holds"""
    B, D, H = case.sizes(3)
    x, h, c, W, b = step_inputs(case, B, D, H, 4)
    b = b.index_fill(0, torch.arange(2 * H, 3 * H), -1e3)
    h_t, _ = both(case, step(x, h, c, W, b), B, H)
    case.equal(h_t, torch.zeros(B, H), "h_t")


@check(lstm_step, see="The LSTM step")
def gradients(step, case):
    """passes the same gradients back as torch.nn.LSTMCell"""
    B, D, H = case.sizes(3)
    inputs = [tensor.requires_grad_() for tensor in step_inputs(case, B, D, H, 4)]
    x, h, c, W, b = inputs
    cell = to_torch(nn.LSTMCell(D, H), W, b)
    seen = case.randn(B, H), case.randn(B, H)
    torchs = [*inputs[:3], cell.weight_hh, cell.weight_ih, cell.bias_hh]
    *expected, by_h, by_x, by_b = torch.autograd.grad(cell(x, (h, c)), torchs, seen)
    for gradient in (torch.cat([by_h, by_x], dim=1), by_b):
        by_i, by_f, by_g, by_o = gradient.chunk(4)
        expected.append(torch.cat([by_i, by_f, by_o, by_g]))
    h_t, c_t = both(case, step(*inputs), B, H)
    case.trains(h_t, "h_t")
    case.trains(c_t, "c_t")
    torch.autograd.backward([h_t, c_t], seen)
    for name, tensor, gradient in zip("xhcWb", inputs, expected, strict=True):
        case.gradient(tensor, gradient, name)


@check(lstm_step, see="The order of the gates")
def one_sequence(step, case):
    """agrees with torch.nn.LSTMCell for a batch of one, and for large inputs and cells"""
    D, H = case.sizes(2)
    x, h, c, W, b = step_inputs(case, 1, D, H, 4)
    cell = to_torch(nn.LSTMCell(D, H), W, b)
    for scale, which in ((1, ""), (1e4, " of large x and c")):
        expected_h, expected_c = cell(scale * x, (h, scale * c))
        h_t, c_t = both(case, step(scale * x, h, scale * c, W, b), 1, H)
        case.equal(c_t, expected_c, f"c_t{which}")
        case.equal(h_t, expected_h, f"h_t{which}")


@check(LSTM, weight=3, see="The LSTM over a sequence", single="B")
def values(lstm, case):
    """agrees with torch.nn.LSTM"""
    B, T, D, H = case.sizes(4)
    ours, torchs = lstm_pair(case, lstm, D, H)
    X = case.randn(B, T, D)
    outputs, h, c = run_lstm(case, ours, X)
    expected, (expected_h, expected_c) = torchs(X)
    case.equal(outputs, expected, "outputs")
    case.equal(h, expected_h[0], "h")
    case.equal(c, expected_c[0], "c")
    for name, given in (("outputs", outputs), ("h", h), ("c", c)):
        case.trains(given, name)


@check(LSTM, see="The LSTM over a sequence")
def continues(lstm, case):
    """gives the same when a sequence is cut in two and the state carried over"""
    B, D, H = case.sizes(3, low=3)
    T = B  # a loop over the sequences goes on then, and is known by its values
    ours, torchs = lstm_pair(case, lstm, D, H)
    X = case.randn(B, 2 * T, D)
    _, h, c = run_lstm(case, ours, X[:, :T])
    outputs, h, c = run_lstm(case, ours, X[:, T:], (h, c))
    expected, (expected_h, expected_c) = torchs(X)
    case.equal(outputs, expected[:, T:], "outputs of the second half")
    case.equal(h, expected_h[0], "h")
    case.equal(c, expected_c[0], "c")


def packed(torchs: nn.LSTM, X: Tensor, state, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run torch's LSTM over sequences of different lengths: the outputs, h and c."""
    together = nn.utils.rnn.pack_padded_sequence(X, lengths, True, enforce_sorted=False)
    outputs, (h, c) = torchs(together, state and tuple(part[None] for part in state))
    outputs, _ = nn.utils.rnn.pad_packed_sequence(
        outputs, batch_first=True, total_length=X.shape[1]
    )
    return outputs, h[0], c[0]


@check(LSTM, weight=2, see="When a sequence ends early", single="B")
def ragged(lstm, case):
    """treats sequences of different lengths as torch's packed sequences"""
    B, T, D, H = case.sizes(4, low=3)
    ours, torchs = lstm_pair(case, lstm, D, H)
    X, lengths = case.randn(B, T, D), case.lengths(B, T)
    given = case.randn(B, H), case.randn(B, H)
    for state, start in ((None, ""), (given, " from a given state")):
        expected, expected_h, expected_c = packed(torchs, X, state, lengths)
        outputs, h, c = run_lstm(case, ours, X, state, lengths=lengths)
        case.equal(outputs, expected, f"outputs{start}")
        case.equal(c, expected_c, f"c{start}")
        case.equal(h, expected_h, f"h{start}")


@check(LSTM, see="When a sequence ends early")
def gradients_of_ragged(lstm, case):
    """passes gradients from outputs and state to X and the given state when lengths differ"""
    B, T, D, H = case.sizes(4, low=3)
    ours, torchs = lstm_pair(case, lstm, D, H)
    X, lengths = case.randn(B, T, D), case.lengths(B, T)
    state = case.randn(B, H), case.randn(B, H)
    inputs = [tensor.requires_grad_() for tensor in (X, *state)]
    seen = case.randn(B, T, H), case.randn(B, H), case.randn(B, H)
    gradients = torch.autograd.grad(packed(torchs, X, state, lengths), inputs, seen)
    results = run_lstm(case, ours, X, state, lengths)
    for given, grad, name in zip(results, seen, ("outputs", "h", "c"), strict=True):
        case.shape(given, tuple(grad.shape), name)
        case.trains(given, name)
    torch.autograd.backward(results, seen)
    for name, tensor, gradient in zip(("X", "h_0", "c_0"), inputs, gradients, strict=True):
        case.gradient(tensor, gradient, name)
    case.learns(ours)


@check(LSTM, see="The LSTM over a sequence")
def step_by_step(lstm, case):
    """gives the same when it is fed one step at a time"""
    B, T, D, H = case.sizes(4)
    ours, torchs = lstm_pair(case, lstm, D, H)
    X, state = case.randn(B, T, D), None
    expected, (_, expected_c) = torchs(X)
    for t in range(T):
        outputs, *state = run_lstm(case, ours, X[:, t : t + 1], state and tuple(state))
        case.equal(outputs, expected[:, t : t + 1], f"outputs at t = {t + 1}")
    case.equal(state[1], expected_c[0], "c")


@check(LSTM, see="When a sequence ends early")
def padding(lstm, case):
    """gives the same whatever the padding holds"""
    B, T, D, H = case.sizes(4, low=3)
    ours, _ = lstm_pair(case, lstm, D, H)
    X, lengths = case.randn(B, T, D), case.lengths(B, T)
    padded = (torch.arange(T) >= lengths[:, None])[:, :, None]
    results = [
        run_lstm(case, ours, torch.where(padded, filling, X), lengths=lengths)
        for filling in (0.0, 1e6)
    ]
    for name, given, expected in zip(("outputs", "h", "c"), *results, strict=True):
        case.equal(given, expected, name)


@check(LSTM, see="When a sequence ends early")
def all_end_early(lstm, case):
    """returns an output for every column, even beyond the end of the longest sequence"""
    B, T, D, H = case.sizes(4, low=3)
    ours, torchs = lstm_pair(case, lstm, D, H)
    X = case.randn(B, T, D)
    outputs, h, _ = run_lstm(case, ours, X, lengths=torch.full((B,), T - 1))
    expected, (expected_h, _) = torchs(X[:, :-1])
    case.shape(outputs, (B, T, H), "outputs")
    case.equal(outputs[:, :-1], expected, "outputs before the last column")
    case.equal(outputs[:, -1], torch.zeros(B, H), "outputs of the last column")
    case.equal(h, expected_h[0], "h")


@check(LSTM, see="The LSTM over a sequence")
def starts_afresh(lstm, case):
    """gives the same when called twice"""
    B, T, D, H = case.sizes(4)
    ours, _ = lstm_pair(case, lstm, D, H)
    X = case.randn(B, T, D)
    first = run_lstm(case, ours, X)
    for name, given, expected in zip(
        ("outputs", "h", "c"), run_lstm(case, ours, X), first, strict=True
    ):
        case.again(given, expected, f"{name} of the second call")


def gru_inputs(case: Case, B: int, D: int, H: int) -> list[Tensor]:
    """Draw x, h, W_x, W_h, b_x and b_h for a GRU."""
    W_x, W_h = case.randn(3 * H, D) / D**0.5, case.randn(3 * H, H) / H**0.5
    return [case.randn(B, D), case.randn(B, H), W_x, W_h, case.randn(3 * H), case.randn(3 * H)]


@check(gru_step, weight=3, see="Two GRUs in the literature")
def values(step, case):
    """agrees with torch.nn.GRUCell"""
    B, D, H = case.sizes(3)
    x, h, *weights = gru_inputs(case, B, D, H)
    cell = nn.GRUCell(D, H).double()
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    cell.load_state_dict(dict(zip(names, weights, strict=True)))
    case.equal(step(x, h, *weights), cell(x, h), "h_t")


@check(gru_step, see="The GRU step")
def remembers(step, case):
    """keeps the hidden state when z = 1"""
    B, D, H = case.sizes(3)
    x, h, W_x, W_h, b_x, b_h = gru_inputs(case, B, D, H)
    b_x = b_x.index_fill(0, torch.arange(H, 2 * H), 1e3)
    case.equal(step(x, h, W_x, W_h, b_x, b_h), h, "h_t")


@check(gru_step, see="Two GRUs in the literature")
def forgets(step, case):
    """depends on x_t alone when r = 0 and z = 0"""
    B, D, H = case.sizes(3)
    x, h, W_x, W_h, b_x, b_h = gru_inputs(case, B, D, H)
    b_x = b_x.index_fill(0, torch.arange(2 * H), -1e3)
    expected = torch.tanh(x @ W_x[2 * H :].T + b_x[2 * H :])
    case.equal(step(x, h, W_x, W_h, b_x, b_h), expected, "h_t")


@check(gru_step, see="Two GRUs in the literature")
def one_sequence(step, case):
    """keeps the axis of the batch when there is one sequence, and is finite for large inputs"""
    D, H = case.sizes(2)
    x, h, *weights = gru_inputs(case, 1, D, H)
    cell = nn.GRUCell(D, H).double()
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    cell.load_state_dict(dict(zip(names, weights, strict=True)))
    case.equal(step(x, h, *weights), cell(x, h), "h_t")
    case.equal(step(1e4 * x, h, *weights), cell(1e4 * x, h), "h_t of a large x")


@check(gru_step, see="Two GRUs in the literature")
def gradients(step, case):
    """passes the same gradients back as torch.nn.GRUCell"""
    B, D, H = case.sizes(3)
    x, h, *weights = gru_inputs(case, B, D, H)
    cell = nn.GRUCell(D, H).double()
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    cell.load_state_dict(dict(zip(names, weights, strict=True)))
    seen = case.randn(B, H)
    inputs = [tensor.requires_grad_() for tensor in (x, h, *weights)]
    expected = torch.autograd.grad(cell(x, h), [x, h, *cell.parameters()], seen)
    h_t = step(x, h, *weights)
    case.shape(h_t, (B, H), "h_t")
    case.trains(h_t, "h_t")
    h_t.backward(seen)
    names = ["x", "h", "W_x", "W_h", "b_x", "b_h"]
    for name, tensor, gradient in zip(names, inputs, expected, strict=True):
        case.gradient(tensor, gradient, name)


def torchs_gru_step(x, h, W_x, W_h, b_x, b_h):
    """Take a step with torch's GRU."""
    return torch.gru_cell(x, h, W_x, W_h, b_x, b_h)


@check(cell_gradient, weight=2, see="How much of the memory is left")
def values(gradient, case):
    """agrees with autograd through c_t = f_t ⊙ c_{t-1} + …"""
    B, T, H = case.sizes(3, low=3)
    f = case.rand(B, T, H)
    added = torch.zeros(B, T, H, dtype=torch.float64, requires_grad=True)
    c = torch.zeros(B, H, dtype=torch.float64)
    for t in range(T):
        c = f[:, t] * c + added[:, t]  # so that ∂c_T/∂added_t = ∂c_T/∂c_t
    (expected,) = torch.autograd.grad(c.sum(), added)
    case.equal(gradient(f), expected, "∂c_T/∂c_t")


@check(cell_gradient, see="How much of the memory is left")
def last_is_one(gradient, case):
    """is one at t = T: c_T depends on itself through no gate"""
    B, T, H = case.sizes(3)
    G = gradient(case.rand(B, T, H))
    case.shape(G, (B, T, H), "∂c_T/∂c_t")
    case.equal(G[:, -1], torch.ones(B, H), "∂c_T/∂c_T")


@check(cell_gradient, see="How much of the memory is left")
def first_gate(gradient, case):
    """does not depend on f_1, which may be zero: it acts before c_1"""
    B, T, H = case.sizes(3)
    f = case.rand(B, T, H)
    before = gradient(f)
    case.shape(before, (B, T, H), "∂c_T/∂c_t")
    closed = f.clone()
    closed[:, 0] = 0
    case.equal(gradient(closed), before, "∂c_T/∂c_t when f_1 is zero")


@check(cell_gradient, see="How much of the memory is left")
def open_gates(gradient, case):
    """is one everywhere when every forget gate is open"""
    B, T, H = case.sizes(3)
    case.equal(gradient(torch.ones(B, T, H)), torch.ones(B, T, H), "∂c_T/∂c_t")


@check(cell_gradient, see="How much of the memory is left")
def one_step(gradient, case):
    """is one for a sequence of one step"""
    B, H = case.sizes(2)
    case.equal(gradient(case.rand(B, 1, H)), torch.ones(B, 1, H), "∂c_T/∂c_t")


@check(cell_gradient, see="How much of the memory is left")
def closed_gate(gradient, case):
    """is zero before a closed gate, and right everywhere else"""
    B, T, H = case.sizes(3, low=4)
    f = case.rand(B, T, H)
    f[:, T // 2] = 0
    expected = torch.stack([f[:, t + 1 :].prod(dim=1) for t in range(T)], dim=1)
    case.equal(gradient(f), expected, "∂c_T/∂c_t")


def torch_weights(case: Case, D: int, H: int) -> dict[str, Tensor]:
    """Draw the state dict of a torch.nn.LSTM with one layer."""
    return {
        "weight_ih_l0": case.randn(4 * H, D),
        "weight_hh_l0": case.randn(4 * H, H),
        "bias_ih_l0": case.randn(4 * H),
        "bias_hh_l0": case.randn(4 * H),
    }


def converted(case: Case, result: object) -> tuple[Tensor, Tensor]:
    """Take W and b out of a converted state."""
    names = sorted(result) if isinstance(result, dict) else result
    case.that(names == ["W", "b"], f"The keys should be ['W', 'b'], yours are {names}.")
    return result["W"], result["b"]


@check(convert_torch_lstm, see="Weights from torch")
def keys_and_shapes(convert, case):
    """returns W (4H, H+D) and b (4H)"""
    D, H = case.sizes(2)
    W, b = converted(case, convert(torch_weights(case, D, H)))
    case.shape(W, (4 * H, H + D), "W")
    case.shape(b, (4 * H,), "b")


@check(convert_torch_lstm, weight=3, see="Weights from torch")
def same_gates(convert, case):
    """gives each gate the weights that it has in torch"""
    D, H = case.sizes(2)
    state = torch_weights(case, D, H)
    W, b = converted(case, convert(state))
    case.shape(W, (4 * H, H + D), "W")
    case.shape(b, (4 * H,), "b")
    for gate, ours, torchs in [("i", 0, 0), ("f", 1, 1), ("o", 2, 3), ("g", 3, 2)]:
        mine, theirs = slice(ours * H, (ours + 1) * H), slice(torchs * H, (torchs + 1) * H)
        case.equal(W[mine, :H], state["weight_hh_l0"][theirs], f"W of {gate} for h")
        case.equal(W[mine, H:], state["weight_ih_l0"][theirs], f"W of {gate} for x")
        case.equal(b[mine], (state["bias_ih_l0"] + state["bias_hh_l0"])[theirs], f"b of {gate}")


@check(convert_torch_lstm, see="Weights from torch")
def no_bias(convert, case):
    """gives a zero b where torch has no bias"""
    D, H = case.sizes(2)
    weights = torch_weights(case, D, H)
    state = {name: value for name, value in weights.items() if "weight" in name}
    _, b = converted(case, convert(state))
    case.equal(b, torch.zeros(4 * H), "b")


@check(convert_torch_lstm, see="Weights from torch")
def refuses(convert, case):
    """raises ValueError for a second layer, another direction or a projection, and names one"""
    D, H = case.sizes(2)
    state = torch_weights(case, D, H)
    two = {**state, "weight_ih_l1": case.randn(4 * H, H), "weight_hh_l1": case.randn(4 * H, H)}
    without = {name: value for name, value in two.items() if "weight" in name}
    reverse = {**state, "weight_ih_l0_reverse": case.randn(4 * H, D)}
    projected = {**state, "weight_hr_l0": case.randn(H, H)}
    for other, when in (
        (two, "there is a second layer"),
        (without, "there is a second layer, and no bias"),
        (reverse, "there is a reverse direction"),
        (projected, "there is a projection"),
    ):
        failure = case.raises(ValueError, lambda other=other: convert(other), when)
        extra = sorted(set(other) - set(state))
        case.that(
            any(name in failure.message for name in extra),
            f"The message should name what is left over when {when}, such as {extra[0]}, "
            f"yours is {failure.message!r}.",
        )


@check(init_forget_bias, weight=2, see="Start with the gate open")
def values(init, case):
    """sets the forget gates' biases, which are entries H to 2H - 1"""
    (H,) = case.sizes(1, low=3)
    b = case.randn(4 * H)
    expected = torch.cat([b[:H], torch.full((H,), 2.5, dtype=b.dtype), b[2 * H :]])
    case.equal(init(b, 2.5), expected, "b")


@check(init_forget_bias, see="Start with the gate open")
def default(init, case):
    """sets them to 1 unless told otherwise"""
    (H,) = case.sizes(1, low=3)
    new = init(case.randn(4 * H))
    case.shape(new, (4 * H,), "b")
    case.equal(new[H : 2 * H], torch.ones(H), "b of f")


@check(init_forget_bias, see="Start with the gate open")
def negative(init, case):
    """accepts any value, even a negative one or zero"""
    (H,) = case.sizes(1, low=3)
    b = case.randn(4 * H)
    for value in (-3.25, 0.0):
        expected = torch.cat([b[:H], torch.full((H,), value, dtype=b.dtype), b[2 * H :]])
        case.equal(init(b, value=value), expected, f"b for a value of {value:g}")


@check(chrono_bias, weight=2, see="Give each cell its own memory span")
def values(chrono, case):
    """gives cells the time constants 2 + u (T_max - 2): σ(b_f) = 1 - 1/τ"""
    (H,) = case.sizes(1, low=3)
    b, u = case.randn(4 * H), case.rand(H)
    new = chrono(b, u, 40)
    case.shape(new, (4 * H,), "b")
    case.equal(new[H : 2 * H], torch.logit(1 - 1 / (2 + u * 38)), "b of f")


@check(chrono_bias, see="Give each cell its own memory span")
def input_gate(chrono, case):
    """opens the input gate as far as the forget gate closes: b_i = -b_f"""
    (H,) = case.sizes(1, low=3)
    new = chrono(case.randn(4 * H), case.rand(H), 40)
    case.shape(new, (4 * H,), "b")
    case.equal(new[:H], -new[H : 2 * H], "b of i")


@check(chrono_bias, see="Give each cell its own memory span")
def others(chrono, case):
    """leaves the biases of o and g as they are"""
    (H,) = case.sizes(1, low=3)
    b = case.randn(4 * H)
    new = chrono(b, case.rand(H), 40)
    case.shape(new, (4 * H,), "b")
    case.equal(new[2 * H :], b[2 * H :], "b of o and g")


@check(chrono_bias, see="Give each cell its own memory span")
def shortest(chrono, case):
    """gives zero biases for T_max = 2 and refuses a smaller one"""
    (H,) = case.sizes(1, low=3)
    new = chrono(case.randn(4 * H), case.rand(H), 2)
    case.shape(new, (4 * H,), "b")
    case.equal(new[: 2 * H], torch.zeros(2 * H), "b of i and f")
    b, u = case.randn(4 * H), case.rand(H)
    case.raises(ValueError, lambda: chrono(b, u, 1), "T_max is 1")


@check(gru_step_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "gru_step", torchs_gru_step)
