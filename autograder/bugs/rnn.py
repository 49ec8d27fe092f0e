"""Known wrong solutions of rnn."""

import torch

from autograder.bugs import bug, equivalent
from course_pkg.rnn import (
    clip_grad_norm,
    gradient_norms,
    linear_rnn_gradient,
    rnn_backward,
    rnn_forward,
    rnn_step,
    truncated_bptt,
)


@bug(rnn_step, "x comes before h in the product, so each meets the other's weights", classic=True)
def x_first(x, h, W, b):
    return torch.tanh(torch.cat([x, h], dim=1) @ W.T + b)


@bug(rnn_step, "the axis of the batch is squeezed out when there is one sequence")
def squeezed(x, h, W, b):
    return torch.tanh((W @ torch.cat([h, x], dim=1)[:, :, None]).squeeze() + b)


@bug(rnn_step, "tanh is left out")
def linear(x, h, W, b):
    return torch.cat([h, x], dim=1) @ W.T + b


@bug(rnn_step, "σ is used instead of tanh")
def sigmoid(x, h, W, b):
    return torch.sigmoid(torch.cat([h, x], dim=1) @ W.T + b)


@bug(rnn_step, "ReLU is used instead of tanh")
def relu(x, h, W, b):
    return torch.relu(torch.cat([h, x], dim=1) @ W.T + b)


@bug(rnn_step, "the bias is left out")
def no_bias(x, h, W, b):
    return torch.tanh(torch.cat([h, x], dim=1) @ W.T)


@bug(rnn_step, "the bias is added after tanh")
def bias_outside(x, h, W, b):
    return torch.tanh(torch.cat([h, x], dim=1) @ W.T) + b


@bug(rnn_step, "the bias is subtracted")
def bias_subtracted(x, h, W, b):
    return torch.tanh(torch.cat([h, x], dim=1) @ W.T - b)


@bug(rnn_step, "the new state is added to h_{t-1} instead of replacing it")
def residual(x, h, W, b):
    return h + torch.tanh(torch.cat([h, x], dim=1) @ W.T + b)


@bug(rnn_step, "h_{t-1} is left out: the step has no memory")
def no_memory(x, h, W, b):
    return torch.tanh(x @ W[:, h.shape[1] :].T + b)


@bug(rnn_step, "x_t is left out")
def no_input(x, h, W, b):
    return torch.tanh(h @ W[:, : h.shape[1]].T + b)


@bug(rnn_step, "the product with x_t is outside tanh")
def input_outside(x, h, W, b):
    H = h.shape[1]
    return torch.tanh(h @ W[:, :H].T + b) + x @ W[:, H:].T


@bug(rnn_step, "W_hh is used transposed")
def transposed(x, h, W, b):
    H = h.shape[1]
    return torch.tanh(h @ W[:, :H] + x @ W[:, H:].T + b)


@bug(rnn_step, "h is overwritten in place by h_t")
def in_place(x, h, W, b):
    new = rnn_step(x, h, W, b)
    with torch.no_grad():
        h.copy_(new)
    return h


@bug(rnn_step, "no gradient passes through b", told_by="No gradient reaches b:")
def bias_detached(x, h, W, b):
    return rnn_step(x, h, W, b.detach())


def start(X, b, h_0):
    return h_0 if h_0 is not None else X.new_zeros(len(X), len(b))


def states(X, W, b, h_0):
    """h_0 … h_T, one more than the outputs."""
    h = start(X, b, h_0)
    return torch.cat([h[:, None], rnn_forward(X, W, b, h_0)], dim=1)


@bug(rnn_forward, "the loop runs over the batch axis instead of the time axis", classic=True)
def batch_as_time(X, W, b, h_0=None):
    h = X.new_zeros(X.shape[1], len(b))
    return torch.stack([h := rnn_step(x, h, W, b) for x in X])


@bug(rnn_forward, "the outputs are stacked time first, as (T, B, H)")
def time_first(X, W, b, h_0=None):
    return rnn_forward(X, W, b, h_0).transpose(0, 1)


@bug(rnn_forward, "the sequence is read from its end")
def backwards(X, W, b, h_0=None):
    return rnn_forward(X.flip(1), W, b, h_0)


@bug(rnn_forward, "every step starts from h_0 again")
def nothing_carried(X, W, b, h_0=None):
    h = start(X, b, h_0)
    return torch.stack([rnn_step(x, h, W, b) for x in X.unbind(1)], dim=1)


@bug(rnn_forward, "outputs are one step late: h_0 … h_{T-1}")
def late(X, W, b, h_0=None):
    return states(X, W, b, h_0)[:, :-1]


@bug(rnn_forward, "all states h_0 … h_T are returned, one too many")
def one_too_many(X, W, b, h_0=None):
    return states(X, W, b, h_0)


@bug(rnn_forward, "only the last output is returned")
def last_output(X, W, b, h_0=None):
    return rnn_forward(X, W, b, h_0)[:, -1]


@bug(rnn_forward, "the given initial state is ignored")
def state_ignored(X, W, b, h_0=None):
    return rnn_forward(X, W, b)


@bug(rnn_forward, "the first input is fed at every step")
def first_input(X, W, b, h_0=None):
    return rnn_forward(X[:, :1].expand_as(X), W, b, h_0)


@bug(rnn_forward, "every output is the same tensor, overwritten until it holds h_T")
def overwritten(X, W, b, h_0=None):
    outputs = rnn_forward(X, W, b, h_0)
    return outputs[:, -1:].expand_as(outputs)


@bug(rnn_forward, "the state starts from ones instead of zeros")
def from_ones(X, W, b, h_0=None):
    h_0 = torch.ones_like(start(X, b, h_0)) if h_0 is None else h_0
    return rnn_forward(X, W, b, h_0)


last_states = {}


@bug(
    rnn_forward,
    "the initial state is drawn at random",
    told_by="Two calls with the same input differ: outputs of the second call",
)
def random_state(X, W, b, h_0=None):
    return rnn_forward(X, W, b, torch.randn(len(X), len(b)).to(X) if h_0 is None else h_0)


@bug(rnn_forward, "the state of the last call is where the next one starts")
def state_kept(X, W, b, h_0=None):
    if h_0 is None:
        h_0 = last_states.get((X.shape, X.sum().item()))
    outputs = rnn_forward(X, W, b, h_0)
    last_states.clear()
    last_states[X.shape, X.sum().item()] = outputs[:, -1].detach()
    return outputs


@bug(rnn_forward, "the state is detached at every step, so that no gradient passes through time")
def detached(X, W, b, h_0=None):
    h = start(X, b, h_0)
    steps = [h := rnn_step(x, h.detach(), W, b) for x in X.unbind(1)]
    return torch.stack(steps, dim=1)


@bug(rnn_forward, "gradients flow through the last output alone")
def last_output_trains(X, W, b, h_0=None):
    outputs = rnn_forward(X, W, b, h_0)
    return torch.cat([outputs[:, :-1].detach(), outputs[:, -1:]], dim=1)


class Backward:
    """Backpropagation through time, for the bugs below to vary."""

    def __call__(self, grad_outputs, outputs, X, W, h_0=None):
        B, T, H = outputs.shape
        h_0 = h_0 if h_0 is not None else outputs.new_zeros(B, H)
        before = torch.cat([h_0[:, None], outputs[:, :-1]], dim=1)
        grad_X, grad_W, grad_b = torch.zeros_like(X), torch.zeros_like(W), W.new_zeros(H)
        arriving = torch.zeros_like(h_0)
        for t in reversed(range(T)):
            delta = self.delta(grad_outputs[:, t], arriving, outputs[:, t], before[:, t])
            grad_W += self.of_W(delta, before[:, t], outputs[:, t], X[:, t])
            grad_b += self.of_b(delta)
            arriving, grad_X[:, t] = self.further(delta, W, H)
        return grad_X, grad_W, grad_b, self.last(arriving, delta)

    def delta(self, seen, arriving, h, h_before):
        return (seen + arriving) * (1 - h**2)

    def of_W(self, delta, h_before, h, x):
        return delta.T @ torch.cat([h_before, x], dim=1)

    def of_b(self, delta):
        return delta.sum(dim=0)

    def further(self, delta, W, H):
        return delta @ W[:, :H], delta @ W[:, H:]

    def last(self, arriving, delta):
        return arriving


def backward_bug(sentence, **options):
    """Register a function that runs a variant of Backward."""

    def register(variant):
        def solution(grad_outputs, outputs, X, W, h_0=None):
            return variant()(grad_outputs, outputs, X, W, h_0)

        solution.__name__ = variant.__name__
        bug(rnn_backward, sentence, **options)(solution)
        return variant

    return register


@backward_bug("the factor 1 - h_t², the derivative of tanh, is left out")
class NoTanh(Backward):
    def delta(self, seen, arriving, h, h_before):
        return seen + arriving


@backward_bug("the derivative of tanh is taken at h_{t-1} instead of h_t", classic=True)
class EarlierTanh(Backward):
    def delta(self, seen, arriving, h, h_before):
        return (seen + arriving) * (1 - h_before**2)


@backward_bug("tanh is applied to h_t once more before its derivative is taken")
class TanhTwice(Backward):
    def delta(self, seen, arriving, h, h_before):
        return (seen + arriving) * (1 - torch.tanh(h) ** 2)


@backward_bug("the derivative of σ, h (1 - h), is used instead of tanh's")
class SigmoidDerivative(Backward):
    def delta(self, seen, arriving, h, h_before):
        return (seen + arriving) * h * (1 - h)


@backward_bug("the factor 1 - h_t² multiplies the step's own gradient, not what arrives from t+1")
class TanhForOwnAlone(Backward):
    def delta(self, seen, arriving, h, h_before):
        return seen * (1 - h**2) + arriving


@backward_bug("nothing arrives from later steps: each step is on its own")
class NothingArrives(Backward):
    def delta(self, seen, arriving, h, h_before):
        return seen * (1 - h**2)


@backward_bug("what arrives at h_{t-1} is δ_t W_hhᵀ: the matrix is not transposed")
class NotTransposed(Backward):
    def further(self, delta, W, H):
        return delta @ W[:, :H].T, delta @ W[:, H:]


@backward_bug("∂L/∂W pairs δ_t with h_t instead of h_{t-1}", classic=True)
class LaterState(Backward):
    def of_W(self, delta, h_before, h, x):
        return delta.T @ torch.cat([h, x], dim=1)


@backward_bug("the columns of ∂L/∂W are those for x first, then those for h")
class ColumnsExchanged(Backward):
    def of_W(self, delta, h_before, h, x):
        return delta.T @ torch.cat([x, h_before], dim=1)


@backward_bug("∂L/∂W and ∂L/∂b are means over the batch instead of sums")
class BatchMean(Backward):
    def of_W(self, delta, h_before, h, x):
        return super().of_W(delta, h_before, h, x) / len(delta)

    def of_b(self, delta):
        return delta.mean(dim=0)


@backward_bug("the gradient of h_0 is δ_1, without the product with W_hh")
class StoppedShort(Backward):
    def last(self, arriving, delta):
        return delta


@bug(rnn_backward, "∂L/∂W and ∂L/∂b hold the first step's share alone: later ones are overwritten")
def overwritten_share(grad_outputs, outputs, X, W, h_0=None):
    grad_X, _, _, grad_h = rnn_backward(grad_outputs, outputs, X, W, h_0)
    arriving = torch.zeros_like(grad_outputs)
    if outputs.shape[1] > 1:
        rest = rnn_backward(grad_outputs[:, 1:], outputs[:, 1:], X[:, 1:], W, outputs[:, 0])
        arriving[:, 0] = rest[3]
    first = (grad_outputs + arriving)[:, :1], outputs[:, :1], X[:, :1]
    _, grad_W, grad_b, _ = rnn_backward(*first, W, h_0)
    return grad_X, grad_W, grad_b, grad_h


@bug(rnn_backward, "the given initial state is ignored in ∂L/∂W")
def state_ignored(grad_outputs, outputs, X, W, h_0=None):
    return rnn_backward(grad_outputs, outputs, X, W)


@bug(rnn_backward, "the loop over time runs forward, from t = 1 to T")
def forward_in_time(grad_outputs, outputs, X, W, h_0=None):
    B, T, H = outputs.shape
    h_0 = h_0 if h_0 is not None else outputs.new_zeros(B, H)
    before = torch.cat([h_0[:, None], outputs[:, :-1]], dim=1)
    grad_X, grad_W, grad_b = torch.zeros_like(X), torch.zeros_like(W), W.new_zeros(H)
    grad_h = torch.zeros_like(h_0)
    for t in range(T):
        delta = (grad_outputs[:, t] + grad_h) * (1 - outputs[:, t] ** 2)
        grad_W += delta.T @ torch.cat([before[:, t], X[:, t]], dim=1)
        grad_b += delta.sum(dim=0)
        grad_h, grad_X[:, t] = delta @ W[:, :H], delta @ W[:, H:]
    return grad_X, grad_W, grad_b, grad_h


@bug(rnn_backward, "grad_outputs is overwritten with what arrives")
def in_place(grad_outputs, outputs, X, W, h_0=None):
    for t in reversed(range(1, outputs.shape[1])):
        delta = grad_outputs[:, t] * (1 - outputs[:, t] ** 2)
        grad_outputs[:, t - 1] += delta @ W[:, : outputs.shape[2]]
    return rnn_backward(grad_outputs, outputs, X, W, h_0)


@bug(rnn_backward, "at t = 1 the state before the step is h_T instead of h_0", classic=True)
def last_output_first(grad_outputs, outputs, X, W, h_0=None):
    return rnn_backward(grad_outputs, outputs, X, W, outputs[:, -1])


def cut(grad_outputs, X, W, b, k, h_0):
    """What each piece is made of: its gradients of outputs, its outputs, inputs and first state."""
    if k < 1:
        raise ValueError(k)
    all_states = states(X, W, b, h_0)
    for first in range(0, X.shape[1], k):
        piece = slice(first, first + k)
        outputs = all_states[:, 1:][:, piece]
        yield grad_outputs[:, piece], outputs, X[:, piece], W, all_states[:, first]


def joined(pieces):
    """The gradients of all pieces in one."""
    pieces = list(pieces)
    grad_X = torch.cat([piece[0] for piece in pieces], dim=1)
    return grad_X, sum(p[1] for p in pieces), sum(p[2] for p in pieces), pieces[0][3]


@bug(truncated_bptt, "nothing is cut: the gradient goes back through all T steps")
def nothing_cut(grad_outputs, X, W, b, k, h_0=None):
    if k < 1:
        raise ValueError(k)
    return rnn_backward(grad_outputs, rnn_forward(X, W, b, h_0), X, W, h_0)


@bug(truncated_bptt, "every piece starts from a state of zeros", classic=True)
def zero_state(grad_outputs, X, W, b, k, h_0=None):
    if k < 1:
        raise ValueError(k)
    results = []
    for n, (x, seen) in enumerate(zip(X.split(k, 1), grad_outputs.split(k, 1), strict=True)):
        h = None if n else h_0
        results.append(rnn_backward(seen, rnn_forward(x, W, b, h), x, W, h))
    return joined(results)


@bug(truncated_bptt, "every piece starts from h_0 again")
def initial_state_again(grad_outputs, X, W, b, k, h_0=None):
    if k < 1:
        raise ValueError(k)
    pieces = zip(X.split(k, 1), grad_outputs.split(k, 1), strict=True)
    return joined(rnn_backward(g, rnn_forward(x, W, b, h_0), x, W, h_0) for x, g in pieces)


@bug(truncated_bptt, "the gradients of W and b are those of the last piece alone")
def last_piece(grad_outputs, X, W, b, k, h_0=None):
    results = [rnn_backward(*piece) for piece in cut(grad_outputs, X, W, b, k, h_0)]
    grad_X, _, _, grad_h_0 = joined(results)
    return grad_X, *results[-1][1:3], grad_h_0


@bug(truncated_bptt, "the gradients of W and b are means over the pieces instead of sums")
def mean_over_pieces(grad_outputs, X, W, b, k, h_0=None):
    results = [rnn_backward(*piece) for piece in cut(grad_outputs, X, W, b, k, h_0)]
    grad_X, grad_W, grad_b, grad_h_0 = joined(results)
    return grad_X, grad_W / len(results), grad_b / len(results), grad_h_0


@bug(truncated_bptt, "the gradient of h_0 is that of the last piece's first state")
def last_state(grad_outputs, X, W, b, k, h_0=None):
    results = [rnn_backward(*piece) for piece in cut(grad_outputs, X, W, b, k, h_0)]
    return *joined(results)[:3], results[-1][3]


@bug(truncated_bptt, "the pieces are one step too long")
def one_step_more(grad_outputs, X, W, b, k, h_0=None):
    if k < 1:
        raise ValueError(k)
    return truncated_bptt(grad_outputs, X, W, b, k + 1, h_0)


@bug(truncated_bptt, "the backward pass of a piece is not told the state that it starts from")
def state_not_told(grad_outputs, X, W, b, k, h_0=None):
    return joined(rnn_backward(*piece[:4]) for piece in cut(grad_outputs, X, W, b, k, h_0))


@bug(truncated_bptt, "the given initial state is ignored")
def state_ignored(grad_outputs, X, W, b, k, h_0=None):
    return truncated_bptt(grad_outputs, X, W, b, k)


@bug(truncated_bptt, "a piece starts from the first output of the piece before it, not the last")
def first_output_carried(grad_outputs, X, W, b, k, h_0=None):
    if k < 1:
        raise ValueError(k)
    results, h = [], h_0
    for x, seen in zip(X.split(k, 1), grad_outputs.split(k, 1), strict=True):
        outputs = rnn_forward(x, W, b, h)
        results.append(rnn_backward(seen, outputs, x, W, h))
        h = outputs[:, 0]
    return joined(results)


@bug(truncated_bptt, "steps after the last whole piece are dropped")
def remainder_dropped(grad_outputs, X, W, b, k, h_0=None):
    if k < 1:
        raise ValueError(k)
    whole = X.shape[1] // k * k or X.shape[1]
    return truncated_bptt(grad_outputs[:, :whole], X[:, :whole], W, b, k, h_0)


@bug(truncated_bptt, "the steps are spread evenly over the pieces, so that none need be shorter")
def spread_evenly(grad_outputs, X, W, b, k, h_0=None):
    if k < 1:
        raise ValueError(k)
    T = X.shape[1]
    count = -(-T // k)
    return truncated_bptt(grad_outputs, X, W, b, -(-T // count), h_0)


@bug(truncated_bptt, "the gradients of all pieces' first states are added up for h_0")
def first_states_added_up(grad_outputs, X, W, b, k, h_0=None):
    results = [rnn_backward(*piece) for piece in cut(grad_outputs, X, W, b, k, h_0)]
    return *joined(results)[:3], sum(result[3] for result in results)


@bug(truncated_bptt, "a k below 1 is accepted", told_by="should raise ValueError when k is 0")
def no_error(grad_outputs, X, W, b, k, h_0=None):
    return truncated_bptt(grad_outputs, X, W, b, max(k, 1), h_0)


def gradients_at(grad_last, outputs, W, *, tanh=lambda h, before: 1 - h**2, times=None):
    """∂ℓ_T/∂h_t for t = 1 … T, (B, T, H), for the bugs below to vary."""
    times = times or (lambda g, W_hh: g @ W_hh)
    T, H = outputs.shape[1:]
    gradients = [grad_last]
    for t in reversed(range(1, T)):
        bent = gradients[-1] * tanh(outputs[:, t], outputs[:, t - 1])
        gradients.append(times(bent, W[:, :H]))
    return torch.stack(gradients[::-1], dim=1)


@bug(gradient_norms, "the factor 1 - h_t², the derivative of tanh, is left out")
def no_tanh(grad_last, outputs, W):
    return gradients_at(grad_last, outputs, W, tanh=lambda h, before: 1).norm(dim=2)


@bug(gradient_norms, "the derivative of tanh is taken at h_{t-1} instead of h_t")
def earlier_tanh(grad_last, outputs, W):
    return gradients_at(grad_last, outputs, W, tanh=lambda h, before: 1 - before**2).norm(dim=2)


@bug(gradient_norms, "W_hh is not transposed on the way back")
def not_transposed(grad_last, outputs, W):
    return gradients_at(grad_last, outputs, W, times=lambda g, W_hh: g @ W_hh.T).norm(dim=2)


@bug(gradient_norms, "tanh's derivative multiplies after W_hhᵀ instead of before")
def wrong_order(grad_last, outputs, W):
    H = outputs.shape[2]
    gradients = [grad_last]
    for h in reversed(outputs[:, 1:].unbind(dim=1)):
        gradients.append((gradients[-1] @ W[:, :H]) * (1 - h**2))
    return torch.stack(gradients[::-1], dim=1).norm(dim=2)


@bug(gradient_norms, "the columns of W for x are taken for W_hh")
def last_columns(grad_last, outputs, W):
    return gradient_norms(grad_last, outputs, W.roll(outputs.shape[2], dims=1))


@bug(gradient_norms, "the norms run backward in time, from t = T to 1")
def reversed_in_time(grad_last, outputs, W):
    return gradient_norms(grad_last, outputs, W).flip(1)


@bug(gradient_norms, "the norms are squared")
def squared(grad_last, outputs, W):
    return gradient_norms(grad_last, outputs, W) ** 2


@bug(gradient_norms, "the entries' absolute values are added up: that is another norm")
def sum_of_sizes(grad_last, outputs, W):
    return gradients_at(grad_last, outputs, W).abs().sum(dim=2)


@bug(gradient_norms, "the norm is taken over the whole batch instead of each sequence")
def over_the_batch(grad_last, outputs, W):
    together = gradients_at(grad_last, outputs, W).norm(dim=(0, 2))
    return together.expand(len(outputs), -1)


@bug(
    gradient_norms,
    "the norms belong to h_0 … h_{T-1}: one step of the way back too many",
    classic=True,
)
def one_step_further(grad_last, outputs, W):
    H = outputs.shape[2]
    return gradient_norms(
        (grad_last * (1 - outputs[:, -1] ** 2)) @ W[:, :H], late_by_one(outputs), W
    )


def late_by_one(outputs):
    return torch.cat([torch.zeros_like(outputs[:, :1]), outputs[:, :-1]], dim=1)


@bug(gradient_norms, "the gradients of later steps are added on the way: each step has a loss")
def accumulated(grad_last, outputs, W):
    return gradients_at(grad_last, outputs, W, times=lambda g, W_hh: g @ W_hh + grad_last).norm(
        dim=2
    )


@bug(gradient_norms, "the norms are relative to that at t = T")
def relative(grad_last, outputs, W):
    norms = gradient_norms(grad_last, outputs, W)
    return norms / norms[:, -1:]


@bug(
    linear_rnn_gradient,
    "every entry of W_hh is raised to the power T, instead of the matrix",
    classic=True,
)
def entry_by_entry(W_hh, T):
    steps(T)
    return W_hh**T


def steps(T):
    if T < 0:
        raise ValueError(T)
    return range(T)


@bug(linear_rnn_gradient, "the matrix is multiplied by T instead of by itself")
def multiple(W_hh, T):
    steps(T)
    return T * W_hh


@bug(linear_rnn_gradient, "there is one factor too many: T + 1 of them")
def one_too_many(W_hh, T):
    steps(T)
    return linear_rnn_gradient(W_hh, T + 1)


@bug(linear_rnn_gradient, "there is one factor too few: T - 1 of them")
def one_too_few(W_hh, T):
    steps(T)
    return linear_rnn_gradient(W_hh, max(T - 1, 0))


@bug(linear_rnn_gradient, "the result is transposed: it sends gradients back, not changes forward")
def transposed(W_hh, T):
    return linear_rnn_gradient(W_hh, T).T


@bug(linear_rnn_gradient, "J is multiplied by itself at each step, which doubles the power")
def squared_each_step(W_hh, T):
    J = linear_rnn_gradient(W_hh, min(T, 1))
    for _ in range(T - 1):
        J = J @ J
    return J


@bug(linear_rnn_gradient, "W_hh is taken to be symmetric, so that its powers come from eigh")
def symmetric(W_hh, T):
    steps(T)
    values, vectors = torch.linalg.eigh(W_hh)
    return vectors @ torch.diag(values**T) @ vectors.T


@bug(linear_rnn_gradient, "the powers up to T are added up")
def added_up(W_hh, T):
    return sum(
        (linear_rnn_gradient(W_hh, t) for t in range(1, T + 1)), linear_rnn_gradient(W_hh, 0)
    )


@bug(linear_rnn_gradient, "the spectral radius is raised to the power T, times the identity")
def radius_alone(W_hh, T):
    steps(T)
    return torch.linalg.eigvals(W_hh).abs().max() ** T * torch.eye(len(W_hh), dtype=W_hh.dtype)


@bug(linear_rnn_gradient, "tanh is applied after each product")
def with_tanh(W_hh, T):
    J = torch.eye(len(W_hh), dtype=W_hh.dtype)
    for _ in steps(T):
        J = torch.tanh(W_hh @ J)
    return J


@bug(linear_rnn_gradient, "W_hh itself becomes the product, in place")
def in_place(W_hh, T):
    power = linear_rnn_gradient(W_hh, T)
    return W_hh.copy_(power)


@bug(
    linear_rnn_gradient,
    "a negative T gives the inverse",
    told_by="should raise ValueError when T is -1",
)
def inverse(W_hh, T):
    return torch.linalg.matrix_power(W_hh, T)


@bug(linear_rnn_gradient, "zero steps give W_hh instead of the identity")
def one_at_least(W_hh, T):
    steps(T)
    return linear_rnn_gradient(W_hh, max(T, 1))


def positive(max_norm):
    if not max_norm > 0:
        raise ValueError(max_norm)


def total(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients]).norm()


def scaled(gradients, factor):
    return [gradient * factor for gradient in gradients]


@bug(clip_grad_norm, "each parameter's gradient is clipped by its own norm", classic=True)
def one_by_one(gradients, max_norm):
    positive(max_norm)
    clipped = [gradient * min(1, max_norm / max(gradient.norm(), 1e-12)) for gradient in gradients]
    return clipped, total(gradients)


@bug(clip_grad_norm, "every entry is clipped to ±max_norm", classic=True)
def by_value(gradients, max_norm):
    positive(max_norm)
    return [gradient.clamp(-max_norm, max_norm) for gradient in gradients], total(gradients)


@bug(
    clip_grad_norm, "short gradients are made longer: they also get the norm max_norm", classic=True
)
def always(gradients, max_norm):
    positive(max_norm)
    norm = total(gradients)
    return scaled(gradients, max_norm / norm.clamp(min=1e-12)), norm


@bug(clip_grad_norm, "the parameters' norms are added up without squares")
def sum_of_norms(gradients, max_norm):
    positive(max_norm)
    norm = sum(gradient.norm() for gradient in gradients)
    return scaled(gradients, min(1, max_norm / max(norm, 1e-12))), norm


@bug(clip_grad_norm, "the square root is left out of the norm")
def squared(gradients, max_norm):
    positive(max_norm)
    norm = total(gradients) ** 2
    return scaled(gradients, min(1, max_norm / max(norm, 1e-12))), norm


@bug(clip_grad_norm, "the norm is the largest of the parameters' norms")
def longest(gradients, max_norm):
    positive(max_norm)
    norm = max(gradient.norm() for gradient in gradients)
    return scaled(gradients, min(1, max_norm / max(norm, 1e-12))), norm


@bug(clip_grad_norm, "the norm is the mean over all entries: the root of the mean square")
def mean_square(gradients, max_norm):
    positive(max_norm)
    norm = torch.cat([gradient.flatten() for gradient in gradients]).square().mean().sqrt()
    return scaled(gradients, min(1, max_norm / max(norm, 1e-12))), norm


@bug(clip_grad_norm, "a long gradient is divided by its norm, but not multiplied by max_norm")
def to_one(gradients, max_norm):
    positive(max_norm)
    norm = total(gradients)
    return scaled(gradients, 1 / norm if norm > max_norm else 1), norm


@bug(clip_grad_norm, "the factor is upside down: ‖g‖ / max_norm")
def upside_down(gradients, max_norm):
    positive(max_norm)
    norm = total(gradients)
    return scaled(gradients, norm / max_norm if norm > max_norm else 1), norm


@bug(clip_grad_norm, "the returned norm is the one after clipping")
def norm_after(gradients, max_norm):
    clipped, _ = clip_grad_norm(gradients, max_norm)
    return clipped, total(clipped)


@bug(clip_grad_norm, "only the first gradient is clipped")
def first_alone(gradients, max_norm):
    clipped, norm = clip_grad_norm(gradients, max_norm)
    return [clipped[0], *gradients[1:]], norm


@bug(clip_grad_norm, "the gradients are scaled in place")
def in_place(gradients, max_norm):
    clipped, norm = clip_grad_norm(gradients, max_norm)
    for gradient, new in zip(gradients, clipped, strict=True):
        gradient.copy_(new)
    return gradients, norm


@bug(clip_grad_norm, "the square of the norm is compared with max_norm")
def square_compared(gradients, max_norm):
    positive(max_norm)
    norm = total(gradients)
    return scaled(gradients, max_norm / norm if norm**2 > max_norm else 1), norm


@bug(
    clip_grad_norm,
    "each gradient is flattened by view",
    told_by="view size is not compatible with input tensor's size and stride",
)
def by_view(gradients, max_norm):
    positive(max_norm)
    norm = torch.cat([gradient.view(-1) for gradient in gradients]).norm()
    return scaled(gradients, min(1, max_norm / max(norm, 1e-12))), norm


@bug(
    clip_grad_norm,
    "a negative max_norm is accepted",
    told_by="should raise ValueError when max_norm is -1.5",
)
def negative(gradients, max_norm):
    if max_norm == 0:
        raise ValueError(max_norm)
    norm = total(gradients)
    return scaled(gradients, min(1, max_norm / max(norm, 1e-12))), norm


@bug(
    clip_grad_norm,
    "gradients of zero become NaN",
    told_by="gradient 0 at [0, 0] should be 0, yours is nan",
)
def zero_by_zero(gradients, max_norm):
    positive(max_norm)
    norm = total(gradients)
    return scaled([gradient / norm for gradient in gradients], min(max_norm, norm)), norm


@bug(
    clip_grad_norm,
    "a max_norm of zero is accepted",
    told_by="should raise ValueError when max_norm is 0",
)
def no_error(gradients, max_norm):
    norm = total(gradients)
    return scaled(gradients, min(1, max_norm / max(norm, 1e-12))), norm


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
