"""Hidden checks of lstm: gradients, single sequences and steps, padding, errors."""

import torch
from torch import nn

from course_pkg.checking.registry import check
from course_pkg.checks.lstm import (
    both,
    gru_inputs,
    lstm_pair,
    packed,
    run_lstm,
    step_inputs,
    to_torch,
    torch_weights,
)
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


@check(additive_cell_step, see="A cell that only adds")
def gradient_of_the_cell_path(step, case):
    """has ∂c_t/∂c_{t-1} = 1, the identity"""
    B, D, H = case.sizes(3)
    x, h, c, W, b = step_inputs(case, B, D, H, 1)
    c.requires_grad_()
    _, c_t = both(case, step(x, h, c, W, b), B, H)
    case.trains(c_t, "c_t")
    c_t.sum().backward()
    case.gradient(c, torch.ones(B, H), "c")


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


@check(LSTM, see="The LSTM over a sequence")
def gradients(lstm, case):
    """passes the same gradients to X, W and b as torch.nn.LSTM"""
    B, T, D, H = case.sizes(4)
    ours, torchs = lstm_pair(case, lstm, D, H)
    X, seen = case.randn(B, T, D).requires_grad_(), case.randn(B, T, H)
    (expected,) = torch.autograd.grad(torchs(X)[0], X, seen, retain_graph=True)
    torchs(X.detach())[0].backward(seen)
    outputs, _, _ = run_lstm(case, ours, X)
    case.trains(outputs, "outputs")
    outputs.backward(seen)
    case.gradient(X, expected, "X")
    parameters = dict(ours.named_parameters())
    grad_W = torch.cat([torchs.weight_hh_l0.grad, torchs.weight_ih_l0.grad], dim=1)
    for name, gradient in (("b", torchs.bias_hh_l0.grad), ("W", grad_W)):
        i, f, g, o = gradient.chunk(4)
        case.gradient(parameters[name], torch.cat([i, f, o, g]), name)
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
        case.equal(given, expected, f"{name} of the second call")


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


@check(cell_gradient, see="How much of the memory is left")
def closed_gate(gradient, case):
    """is zero before a closed gate, and right everywhere else"""
    B, T, H = case.sizes(3, low=4)
    f = case.rand(B, T, H)
    f[:, T // 2] = 0
    expected = torch.stack([f[:, t + 1 :].prod(dim=1) for t in range(T)], dim=1)
    case.equal(gradient(f), expected, "∂c_T/∂c_t")


@check(cell_gradient, see="How much of the memory is left")
def one_step(gradient, case):
    """is one for a sequence of one step"""
    B, H = case.sizes(2)
    case.equal(gradient(case.rand(B, 1, H)), torch.ones(B, 1, H), "∂c_T/∂c_t")


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


@check(init_forget_bias, see="Start with the gate open")
def negative(init, case):
    """accepts any value, even a negative one or zero"""
    (H,) = case.sizes(1, low=3)
    b = case.randn(4 * H)
    for value in (-3.25, 0.0):
        expected = torch.cat([b[:H], torch.full((H,), value, dtype=b.dtype), b[2 * H :]])
        case.equal(init(b, value=value), expected, f"b for a value of {value:g}")


@check(chrono_bias, see="Give each cell its own memory span")
def extremes(chrono, case):
    """spans the time constants from 2 to T_max"""
    (H,) = case.sizes(1, low=3)
    u = torch.linspace(0, 1, H, dtype=torch.float64)
    new = chrono(case.randn(4 * H), u, 17)
    case.shape(new, (4 * H,), "b")
    tau = 1 / (1 - torch.sigmoid(new[H : 2 * H]))
    case.equal(tau, torch.linspace(2, 17, H), "τ")


@check(chrono_bias, see="Give each cell its own memory span")
def shortest(chrono, case):
    """gives zero biases for T_max = 2 and refuses a smaller one"""
    (H,) = case.sizes(1, low=3)
    new = chrono(case.randn(4 * H), case.rand(H), 2)
    case.shape(new, (4 * H,), "b")
    case.equal(new[: 2 * H], torch.zeros(2 * H), "b of i and f")
    b, u = case.randn(4 * H), case.rand(H)
    case.raises(ValueError, lambda: chrono(b, u, 1), "T_max is 1")
