"""LSTM and GRU: recurrent cells with a path along which a gradient can survive.

Shapes: B sequences, T steps, D input features, H hidden features. An LSTM's gates are stacked in
the order i, f, o, g.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def additive_cell_step(
    x: Float[Tensor, "B D"],
    h: Float[Tensor, "B H"],
    c: Float[Tensor, "B H"],
    W: Float[Tensor, "H H+D"],
    b: Float[Tensor, "H"],
) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]]:
    """Take one step of a cell that only ever adds to its memory: an LSTM without gates.

    c_t = c_{t-1} + tanh(W [h_{t-1}; x_t] + b),   h_t = tanh(c_t)

    The identity from c_{t-1} to c_t is the "constant error carousel" (Hochreiter & Schmidhuber
    1997, §3.2), and the residual connection of later networks.

    Args:
        x: the input x_t.
        h: the hidden state h_{t-1}.
        c: the cell state c_{t-1}; it is not changed in place.
        W: the weights; columns 0 to H-1 multiply h, the others x.
        b: the bias.
    Returns:
        h_t and c_t.
    """
    candidate = torch.tanh(torch.cat([h, x], dim=1) @ W.T + b)  # (B, H)
    c = c + candidate
    return torch.tanh(c), c


def lstm_step(
    x: Float[Tensor, "B D"],
    h: Float[Tensor, "B H"],
    c: Float[Tensor, "B H"],
    W: Float[Tensor, "4*H H+D"],
    b: Float[Tensor, "4*H"],
) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]]:
    """Take one step of an LSTM, all four gates from one matrix product.

    [i f o g] = W [h_{t-1}; x_t] + b,   i, f, o through σ and g through tanh
    c_t = f ⊙ c_{t-1} + i ⊙ g,   h_t = o ⊙ tanh(c_t)      (Zaremba et al. 2014, §3.1)

    The forget gate is that of Gers et al. (2000, §3), whose squashing functions are not tanh.

    Args:
        x: the input x_t.
        h: the hidden state h_{t-1}.
        c: the cell state c_{t-1}; it is not changed in place.
        W: the weights, rows in the order i, f, o, g; columns 0 to H-1 multiply h, the others x.
        b: the bias, in the same order.
    Returns:
        h_t and c_t.
    """
    a = torch.cat([h, x], dim=1) @ W.T + b  # (B, 4H)
    i, f, o, g = a.chunk(4, dim=1)  # (B, H) each
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


class LSTM(nn.Module):
    """Run an LSTM over a batch of sequences, which may differ in length.

    Parameters: W (4H, H+D) and b (4H), laid out as in `lstm_step`, drawn from U(-1/√H, 1/√H).

    Args:
        D: input features.
        H: hidden features.
    """

    def __init__(self, D: int, H: int):
        super().__init__()
        bound = 1 / math.sqrt(H)
        self.H = H
        self.W = nn.Parameter(torch.empty(4 * H, H + D).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.empty(4 * H).uniform_(-bound, bound))

    def forward(
        self,
        X: Float[Tensor, "B T D"],
        state: tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]] | None = None,
        lengths: Int[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B T H"], tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]]]:
        """Apply `lstm_step` from t = 1 to T.

        Args:
            X: the inputs, batch first.
            state: (h_0, c_0); zeros when None.
            lengths: how many steps of each sequence count, from 1 to T; all T when None. After its
                last step a sequence keeps its state, and its outputs are zero.
        Returns:
            The outputs h_1 … h_T, and (h, c) after the last step that counts.
        """
        ### BEGIN SOLUTION
        B, T, _ = X.shape
        h, c = state if state is not None else (X.new_zeros(B, self.H), X.new_zeros(B, self.H))
        outputs = []
        for t in range(T):
            h_t, c_t = lstm_step(X[:, t], h, c, self.W, self.b)
            if lengths is None:
                h, c = h_t, c_t
                outputs.append(h)
            else:
                running = (t < lengths)[:, None]  # (B, 1)
                h, c = torch.where(running, h_t, h), torch.where(running, c_t, c)
                outputs.append(torch.where(running, h_t, 0))
        return torch.stack(outputs, dim=1), (h, c)
        ### END SOLUTION


def gru_step(
    x: Float[Tensor, "B D"],
    h: Float[Tensor, "B H"],
    W_x: Float[Tensor, "3*H D"],
    W_h: Float[Tensor, "3*H H"],
    b_x: Float[Tensor, "3*H"],
    b_h: Float[Tensor, "3*H"],
) -> Float[Tensor, "B H"]:
    """Take one step of a GRU, the variant whose reset gate acts after the matrix product.

    With [r_x z_x n_x] = W_x x_t + b_x and [r_h z_h n_h] = W_h h_{t-1} + b_h:
    r = σ(r_x + r_h),   z = σ(z_x + z_h),   n = tanh(n_x + r ⊙ n_h)
    h_t = (1 - z) ⊙ n + z ⊙ h_{t-1}      (Cho et al. 2014, §2.3, as cuDNN and torch compute it)

    Args:
        x: the input x_t.
        h: the hidden state h_{t-1}; it is not changed in place.
        W_x, W_h: the weights for x and for h, rows in the order r, z, n.
        b_x, b_h: the biases, in the same order.
    Returns:
        h_t.
    """
    r_x, z_x, n_x = (x @ W_x.T + b_x).chunk(3, dim=1)  # (B, H) each
    r_h, z_h, n_h = (h @ W_h.T + b_h).chunk(3, dim=1)
    r = torch.sigmoid(r_x + r_h)
    z = torch.sigmoid(z_x + z_h)
    n = torch.tanh(n_x + r * n_h)
    return (1 - z) * n + z * h


def cell_gradient(f: Float[Tensor, "B T H"]) -> Float[Tensor, "B T H"]:
    """Compute how much of each cell state reaches the last one along the cell path.

    ∂c_t/∂c_{t-1} = f_t along the cell path (gates held fixed), so ∂c_T/∂c_t = f_{t+1} ⊙ … ⊙ f_T,
    and ∂c_T/∂c_T = 1: the product of no gates      (Gers et al. 2000, §3)

    Args:
        f: the forget gates f_1 … f_T, values in [0, 1]; zero is a value like any other.
    Returns:
        ∂c_T/∂c_t for t = 1 … T.
    """
    G = torch.ones_like(f)
    for t in range(f.shape[1] - 1, 0, -1):
        G[:, t - 1] = G[:, t] * f[:, t]
    return G


def convert_torch_lstm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn the weights of a torch.nn.LSTM into those of our `LSTM`.

    torch keeps two matrices and two biases, stacked i, f, g, o. Ours are one matrix and one bias,
    stacked i, f, o, g; as both biases are added, their sum does the same.

    Args:
        state: the state dict of a torch.nn.LSTM with one layer and one direction:
            weight_ih_l0 (4H, D), weight_hh_l0 (4H, H) and, unless it was made with bias=False,
            bias_ih_l0 (4H) and bias_hh_l0 (4H).
    Returns:
        A state dict for `LSTM`: W (4H, H+D) and b (4H); b is zero where torch has no bias.
    Raises:
        ValueError: the state holds other weights, of a second layer, direction or projection; the
            message names what is left over.
    """
    names = {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"}
    if extra := sorted(set(state) - names):
        raise ValueError(f"expected one layer and one direction, but the state also has {extra}")
    W = torch.cat([state["weight_hh_l0"], state["weight_ih_l0"]], dim=1)  # (4H, H+D)
    b = W.new_zeros(len(W))
    if "bias_ih_l0" in state:
        b = state["bias_ih_l0"] + state["bias_hh_l0"]
    order = [0, 1, 3, 2]  # i f g o → i f o g
    W = torch.cat([W.chunk(4)[gate] for gate in order])
    b = torch.cat([b.chunk(4)[gate] for gate in order])
    return {"W": W, "b": b}


def init_forget_bias(b: Float[Tensor, "4*H"], value: float = 1.0) -> Float[Tensor, "4*H"]:
    """Set the forget gates' biases, so that a fresh LSTM keeps its memory for a while.

    f = σ(value) when inputs are small: a memory of about 1 / (1 - σ(value)) steps
    (Gers et al. 2000, §3; Jozefowicz et al. 2015).

    Args:
        b: the bias of an LSTM, in the order i, f, o, g; it is not changed in place.
        value: the new bias of every forget gate.
    Returns:
        The new bias, the other gates as before.
    """
    b = b.clone()
    H = len(b) // 4
    b[H : 2 * H] = value
    return b


def chrono_bias(b: Float[Tensor, "4*H"], u: Float[Tensor, "H"], T_max: int) -> Float[Tensor, "4*H"]:
    """Set input and forget biases so that the cells' memories cover every range up to T_max.

    b_f = log(1 + u (T_max - 2)),   b_i = -b_f,   with u from U(0, 1): σ(b_f) = 1 - 1/τ for a time
    constant τ spread evenly between 2 and T_max      (Tallec & Ollivier 2018)

    Args:
        b: the bias of an LSTM, in the order i, f, o, g; it is not changed in place.
        u: one number from [0, 1] for each cell.
        T_max: the longest range to remember, in steps.
    Returns:
        The new bias, o and g as before.
    Raises:
        ValueError: T_max is less than 2.
    """
    if T_max < 2:
        raise ValueError(f"T_max must be at least 2 steps, got {T_max}")
    b = b.clone()
    H = len(b) // 4
    b[H : 2 * H] = torch.log(1 + u * (T_max - 2))
    b[:H] = -b[H : 2 * H]
    return b


def gru_step_fault() -> tuple[str, tuple[Tensor, ...]]:
    """Say what is wrong with the black box of `gru_step`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what `gru_step` does.
    """
    x, h = torch.zeros(1, 1), torch.ones(1, 1)
    W_x, W_h, b_x = torch.zeros(3, 1), torch.zeros(3, 1), torch.zeros(3)
    b_h = torch.tensor([0.0, 0.0, 1.0])  # r and z are 1/2: n is tanh(1/2), or tanh(1) in the box
    return "D", (x, h, W_x, W_h, b_x, b_h)
