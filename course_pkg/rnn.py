"""The vanilla RNN, and backpropagation through time by hand.

Shapes: B sequences, T steps, D input features, H hidden features. As in every recurrent cell of the
course, W has its columns for h first, then those for x.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def rnn_step(
    x: Float[Tensor, "B D"],
    h: Float[Tensor, "B H"],
    W: Float[Tensor, "H H+D"],
    b: Float[Tensor, "H"],
) -> Float[Tensor, "B H"]:
    """Take one step of a vanilla RNN.

    h_t = tanh(W [h_{t-1}; x_t] + b)      (Goodfellow et al. 2016, §10.2, eq. 10.8-10.9)

    Elman's network of 1990 has logistic units in place of tanh.

    Args:
        x: the input x_t.
        h: the hidden state h_{t-1}; it is not changed in place.
        W: the weights; columns 0 to H-1 multiply h, the others x.
        b: the bias.
    Returns:
        h_t.
    """
    return torch.tanh(torch.cat([h, x], dim=1) @ W.T + b)  # (B, H)


def rnn_forward(
    X: Float[Tensor, "B T D"],
    W: Float[Tensor, "H H+D"],
    b: Float[Tensor, "H"],
    h_0: Float[Tensor, "B H"] | None = None,
) -> Float[Tensor, "B T H"]:
    """Apply `rnn_step` from t = 1 to T, with the same weights at every step.

    A model with one answer for a whole sequence reads the last output, h_T.

    Args:
        X: the inputs, batch first.
        W, b: the weights and the bias of `rnn_step`.
        h_0: the initial state; zeros when None.
    Returns:
        The outputs h_1 … h_T; gradients flow through all of them.
    """
    h = h_0 if h_0 is not None else X.new_zeros(len(X), len(b))
    outputs = []
    for x in X.unbind(dim=1):
        h = rnn_step(x, h, W, b)
        outputs.append(h)
    return torch.stack(outputs, dim=1)


def rnn_backward(
    grad_outputs: Float[Tensor, "B T H"],
    outputs: Float[Tensor, "B T H"],
    X: Float[Tensor, "B T D"],
    W: Float[Tensor, "H H+D"],
    h_0: Float[Tensor, "B H"] | None = None,
) -> tuple[
    Float[Tensor, "B T D"],
    Float[Tensor, "H H+D"],
    Float[Tensor, "H"],
    Float[Tensor, "B H"],
]:
    """Backpropagate through time: the gradients of L = Σ_t ℓ_t(h_t), without autograd.

    From t = T down to 1, with a_t = W [h_{t-1}; x_t] + b and nothing arriving from beyond T:
    δ_t = ∂L/∂a_t = (∂ℓ_t/∂h_t + what arrives from t+1) ⊙ (1 - h_t²)
    Wᵀ δ_t = [what arrives at h_{t-1}; ∂L/∂x_t]
    ∂L/∂W = Σ_t δ_t [h_{t-1}; x_t]ᵀ,   ∂L/∂b = Σ_t δ_t, both also summed over the sequences
    (Werbos 1990; Goodfellow et al. 2016, §10.2.2)

    Args:
        grad_outputs: ∂ℓ_t/∂h_t, the gradient of each step's own loss by its state.
        outputs: h_1 … h_T, as `rnn_forward` returned them; they are not changed in place.
        X, W, h_0: what `rnn_forward` was given.
    Returns:
        The gradients of L with respect to X, W, b and h_0, in the order of `rnn_forward`.
    """
    B, T, H = outputs.shape
    h_0 = h_0 if h_0 is not None else outputs.new_zeros(B, H)
    grad_X, grad_W, grad_b = torch.zeros_like(X), torch.zeros_like(W), W.new_zeros(H)
    grad_h = torch.zeros_like(h_0)  # what arrives at h_t from step t+1
    for t in reversed(range(T)):
        h_before = outputs[:, t - 1] if t > 0 else h_0
        delta = (grad_outputs[:, t] + grad_h) * (1 - outputs[:, t] ** 2)  # (B, H)
        grad_W += delta.T @ torch.cat([h_before, X[:, t]], dim=1)  # (H, H+D)
        grad_b += delta.sum(dim=0)
        grad_h, grad_X[:, t] = (delta @ W).tensor_split([H], dim=1)
    return grad_X, grad_W, grad_b, grad_h


def truncated_bptt(
    grad_outputs: Float[Tensor, "B T H"],
    X: Float[Tensor, "B T D"],
    W: Float[Tensor, "H H+D"],
    b: Float[Tensor, "H"],
    k: int,
    h_0: Float[Tensor, "B H"] | None = None,
) -> tuple[
    Float[Tensor, "B T D"],
    Float[Tensor, "H H+D"],
    Float[Tensor, "H"],
    Float[Tensor, "B H"],
]:
    """Backpropagate through at most k steps: cut the sequence, and the gradient, into pieces.

    Steps 1 … k are the first piece, k+1 … 2k the second; the last may be shorter. Forward, each
    piece starts from the state in which the one before it ended. Backward, that state is a
    constant: nothing arrives from the next piece. (Williams & Peng 1990)

    Args:
        grad_outputs: ∂ℓ_t/∂h_t, as for `rnn_backward`.
        X, W, b, h_0: as for `rnn_forward`.
        k: how many steps a piece has; a k of T or more cuts nothing.
    Returns:
        The gradients with respect to X, W, b and h_0; those of W and b are sums over the pieces,
        and only the first piece depends on h_0.
    Raises:
        ValueError: k is less than 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1 step, got {k}")
    grad_X, grad_W, grad_b = [], torch.zeros_like(W), torch.zeros_like(b)
    h = h_0
    for start in range(0, X.shape[1], k):
        piece = slice(start, start + k)
        outputs = rnn_forward(X[:, piece], W, b, h)
        gradients = rnn_backward(grad_outputs[:, piece], outputs, X[:, piece], W, h)
        grad_X.append(gradients[0])
        grad_W += gradients[1]
        grad_b += gradients[2]
        if start == 0:
            grad_h_0 = gradients[3]
        h = outputs[:, -1]
    return torch.cat(grad_X, dim=1), grad_W, grad_b, grad_h_0


def gradient_norms(
    grad_last: Float[Tensor, "B H"],
    outputs: Float[Tensor, "B T H"],
    W: Float[Tensor, "H H+D"],
) -> Float[Tensor, "B T"]:
    """Measure how much of the last step's loss reaches every earlier hidden state.

    ∂ℓ_T/∂h_{t-1} = W_hhᵀ ((1 - h_t²) ⊙ ∂ℓ_T/∂h_t), with W_hh the columns of W for h
    (Pascanu et al. 2013, §2)

    Args:
        grad_last: ∂ℓ_T/∂h_T.
        outputs: h_1 … h_T, as `rnn_forward` returned them.
        W: the weights of `rnn_step`.
    Returns:
        ‖∂ℓ_T/∂h_t‖, the Euclidean norm, for every sequence and t = 1 … T.
    """
    H = outputs.shape[2]
    grad_h, norms = grad_last, [grad_last.norm(dim=1)]
    for h in reversed(outputs[:, 1:].unbind(dim=1)):
        grad_h = (grad_h * (1 - h**2)) @ W[:, :H]  # (B, H)
        norms.append(grad_h.norm(dim=1))
    return torch.stack(norms[::-1], dim=1)


def linear_rnn_gradient(W_hh: Float[Tensor, "H H"], T: int) -> Float[Tensor, "H H"]:
    """Compute how the last state of a linear RNN depends on its first one.

    h_t = W_hh h_{t-1} + W_xh x_t + b has ∂h_t/∂h_{t-1} = W_hh, and so ∂h_T/∂h_0 is the T-th power
    of W_hh, whatever the inputs      (Pascanu et al. 2013, §2.1)

    Args:
        W_hh: the weights from hidden state to hidden state; they are not changed in place.
        T: the steps between the two states; zero steps give the identity.
    Returns:
        ∂h_T/∂h_0, with the entries of h_T as rows.
    Raises:
        ValueError: T is negative.
    """
    if T < 0:
        raise ValueError(f"T must be at least 0 steps, got {T}")
    J = torch.eye(len(W_hh)).to(W_hh)
    for _ in range(T):
        J = W_hh @ J
    return J


def clip_grad_norm(
    gradients: list[Float[Tensor, "..."]], max_norm: float
) -> tuple[list[Float[Tensor, "..."]], Float[Tensor, ""]]:
    """Limit the norm of the gradient of all parameters together, without turning it.

    With g all gradients as one long vector: g becomes g · max_norm / ‖g‖ where ‖g‖ > max_norm, and
    stays as it is otherwise      (Pascanu et al. 2013, §3.2, algorithm 1)

    Args:
        gradients: one tensor per parameter, of any shapes; they are not changed in place.
        max_norm: the largest norm that g may have, greater than zero.
    Returns:
        The new gradients, in the same order, and ‖g‖ as it was before.
    Raises:
        ValueError: max_norm is not positive.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive, got {max_norm}")
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    if norm > max_norm:
        gradients = [gradient * (max_norm / norm) for gradient in gradients]
    return gradients, norm


def clip_grad_norm_fault() -> tuple[str, tuple[list[Tensor], float]]:
    """Say what is wrong with the black box of `clip_grad_norm`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `clip_grad_norm` does.
    """
    gradients = [torch.tensor([3.0]), torch.tensor([4.0])]
    return "C", (gradients, 6.0)  # 5 is short enough; the box finds 3 + 4 = 7, and clips
