"""Attention: from a lookup table to many heads, one change at a time.

Shapes: N_Q queries look up in N_X vectors. D_X, D_Q and D_V are the sizes of inputs, keys and
values; B sequences, T positions, H heads of size D_h. Masks are boolean: True = may attend.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


def soft_lookup(
    q: Float[Tensor, "D"], X: Float[Tensor, "N_X D"], temperature: float = 1.0
) -> tuple[Float[Tensor, "D"], Float[Tensor, "N_X"]]:
    """Look a query up in a table: blend its rows, the nearer ones with more weight.

    e_i = -‖q - X_i‖² / (2τ),   a = softmax(e),   y = Σ_i a_i X_i      (Nadaraya 1964; Watson 1964)

    Args:
        q: the query.
        X: the table; each row is a key and a value at once.
        temperature: τ. Near 0 only the nearest row counts; the larger τ, the more even the blend.
    Returns:
        y, the weighted average of the rows, and a, its weights; a sums to one. Gradients are
        finite, also where the query is one of the rows.
    Raises:
        ValueError: temperature is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    e = -(X - q).square().sum(dim=1) / (2 * temperature)  # (N_X,)
    a = torch.softmax(e, dim=0)
    return a @ X, a


def scaled_dot_attention(
    Q: Float[Tensor, "... N_Q D_Q"],
    K: Float[Tensor, "... N_X D_Q"],
    V: Float[Tensor, "... N_X D_V"],
) -> tuple[Float[Tensor, "... N_Q D_V"], Float[Tensor, "... N_Q N_X"]]:
    """Look many queries up at once, each on its own: compare them with keys, and blend values.

    E = Q Kᵀ / √D_Q,   A = softmax(E) over the keys' axis,   Y = A V   (Vaswani et al. 2017, eq. 1)

    Args:
        Q: the queries. Axes before the last two are a batch; each member has its own table.
        K: the keys, one for each row of the table.
        V: the values, one for each key.
    Returns:
        Y, one weighted average for each query, and A, their weights; each row of A sums to one.
    Raises:
        ValueError: queries and keys differ in size, or there is not one value for each key.
    """
    if Q.shape[-1] != K.shape[-1]:
        raise ValueError(f"queries have {Q.shape[-1]} features, keys have {K.shape[-1]}")
    if K.shape[-2] != V.shape[-2]:
        raise ValueError(f"there are {K.shape[-2]} keys and {V.shape[-2]} values")
    E = Q @ K.mT / math.sqrt(Q.shape[-1])  # (..., N_Q, N_X)
    A = torch.softmax(E, dim=-1)
    return A @ V, A


class SelfAttention(nn.Module):
    """Let every vector ask, be found and answer by three projections of its own.

    Parameters: W_Q, W_K (D_X, D_Q) and W_V (D_X, D_V), drawn from N(0, 1/D_X).

    Args:
        D_X: size of the input vectors.
        D_Q: size of queries and keys.
        D_V: size of values.
    """

    def __init__(self, D_X: int, D_Q: int, D_V: int):
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(D_X, D_Q) / math.sqrt(D_X))
        self.W_K = nn.Parameter(torch.randn(D_X, D_Q) / math.sqrt(D_X))
        self.W_V = nn.Parameter(torch.randn(D_X, D_V) / math.sqrt(D_X))

    def forward(
        self, X: Float[Tensor, "... N_X D_X"]
    ) -> tuple[Float[Tensor, "... N_X D_V"], Float[Tensor, "... N_X N_X"]]:
        """Attend from every vector to every vector.

        Q = X W_Q,   K = X W_K,   V = X W_V,   A = softmax(Q Kᵀ / √D_Q),   Y = A V

        Args:
            X: the vectors. Axes before the last two are a batch.
        Returns:
            Y, one output for each vector, and A, the weights; each row of A sums to one.
        """
        ### BEGIN SOLUTION
        Q = X @ self.W_Q  # (..., N_X, D_Q)
        K = X @ self.W_K  # (..., N_X, D_Q)
        V = X @ self.W_V  # (..., N_X, D_V)
        E = Q @ K.mT / math.sqrt(Q.shape[-1])  # (..., N_X, N_X)
        A = torch.softmax(E, dim=-1)
        return A @ V, A
        ### END SOLUTION


def causal_mask(T: int, past: int = 0) -> Bool[Tensor, "T past+T"]:
    """Allow each position itself and what comes before it.

    mask[t, s] = s ≤ past + t      (Vaswani et al. 2017, §3.2.3)

    Args:
        T: how many positions ask; they are the last of the sequence.
        past: how many positions before them can be seen but do not ask, such as those of a cache.
    Returns:
        The mask, boolean, True = may attend.
    """
    return torch.ones(T, past + T, dtype=torch.bool).tril(past)


def padding_mask(lengths: Int[Tensor, "B"], T: int) -> Bool[Tensor, "B 1 T"]:
    """Allow the real positions of each sequence and forbid its padding.

    mask[b, 0, s] = s < length of sequence b

    The axis of size one stands for the queries: `padding_mask(lengths, T) & causal_mask(T)` is a
    mask of shape (B, T, T).

    Args:
        lengths: how many positions of each sequence are real, on any device.
        T: how many positions there are with padding.
    Returns:
        The mask, boolean, True = may attend, on the device of lengths.
    """
    return (torch.arange(T, device=lengths.device) < lengths[:, None])[:, None]


def masked_softmax(
    E: Float[Tensor, "... N_Q N_X"], mask: Bool[Tensor, "... N_Q N_X"] | None = None
) -> Float[Tensor, "... N_Q N_X"]:
    """Share each query's weights among the keys that it may attend to.

    A_ij = exp(E_ij) / Σ_k exp(E_ik) over the allowed k, and exactly 0 where j is forbidden

    This holds for allowed similarities of any finite size: they may lie below -10⁹, or whatever
    large negative number one would like to put in the place of -∞.

    Args:
        E: the similarities; forbidden ones may be anything, ∞ and NaN too, and are not changed.
        mask: what is allowed, of a shape that broadcasts to E's; everything when None.
    Returns:
        The weights. A row sums to one, or is all zeros when no key is allowed; then its gradient
        is zero as well.
    """
    if mask is None:
        return torch.softmax(E, dim=-1)
    # The least finite number instead of -∞: a row without an allowed key must not compute 0/0.
    E = E.masked_fill(~mask, torch.finfo(E.dtype).min)
    return torch.softmax(E, dim=-1).masked_fill(~mask, 0)


def split_heads(X: Float[Tensor, "B T D"], H: int) -> Float[Tensor, "B H T D_h"]:
    """Cut the features of every vector into equal parts, one for each head.

    Head h has features h D_h to (h+1) D_h - 1, with D_h = D / H.

    Args:
        X: the vectors.
        H: how many heads.
    Returns:
        The parts; the heads' axis stands before the positions'.
    Raises:
        ValueError: H does not divide D.
    """
    B, T, D = X.shape
    if D % H:
        raise ValueError(f"{D} features cannot be shared equally among {H} heads")
    return X.reshape(B, T, H, D // H).transpose(1, 2)


def merge_heads(X: Float[Tensor, "B H T D_h"]) -> Float[Tensor, "B T H*D_h"]:
    """Join the parts of every vector again: the inverse of `split_heads`.

    Args:
        X: the parts, heads before positions.
    Returns:
        The vectors, the parts of head 0 first.
    """
    return X.transpose(1, 2).flatten(2)


class MultiHeadAttention(nn.Module):
    """Attend with several heads at once, each to what matters to it.

    Parameters: W_Q (D, D), W_K and W_V (D_X, D), W_O (D, D), drawn from N(0, 1/rows); with
    bias=True also b_Q, b_K, b_V and b_O (D), which start at zero and are added after each product.
    Head h uses columns h D_h to (h+1) D_h - 1 of W_Q, W_K and W_V, with D_h = D / H.

    Args:
        D: size of the vectors that ask, and of the outputs.
        H: how many heads; divides D.
        D_X: size of the vectors attended to; D when None.
        bias: whether the four projections add a bias.
    """

    def __init__(self, D: int, H: int, D_X: int | None = None, bias: bool = False):
        super().__init__()
        D_X = D if D_X is None else D_X
        self.H = H
        self.W_Q = nn.Parameter(torch.randn(D, D) / math.sqrt(D))
        self.W_K = nn.Parameter(torch.randn(D_X, D) / math.sqrt(D_X))
        self.W_V = nn.Parameter(torch.randn(D_X, D) / math.sqrt(D_X))
        self.W_O = nn.Parameter(torch.randn(D, D) / math.sqrt(D))
        self.b_Q = nn.Parameter(torch.zeros(D)) if bias else 0.0  # 0.0 adds nothing
        self.b_K = nn.Parameter(torch.zeros(D)) if bias else 0.0
        self.b_V = nn.Parameter(torch.zeros(D)) if bias else 0.0
        self.b_O = nn.Parameter(torch.zeros(D)) if bias else 0.0

    def forward(
        self,
        X: Float[Tensor, "B N_Q D"],
        memory: Float[Tensor, "B N_X D_X"] | None = None,
        mask: Bool[Tensor, "... N_Q N_X"] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B N_Q D"] | tuple[Float[Tensor, "B N_Q D"], Float[Tensor, "B H N_Q N_X"]]:
        """Attend from X to memory, or to X itself.

        A_h = softmax(Q_h K_hᵀ / √D_h) over the allowed keys,   Y = [A_1 V_1 … A_H V_H] W_O + b_O,
        with Q = X W_Q + b_Q, K = memory W_K + b_K, V = memory W_V + b_V cut into heads
        (Vaswani et al. 2017, §3.2.2)

        Args:
            X: the vectors that ask.
            memory: the vectors attended to (cross-attention); X when None (self-attention).
            mask: what may be attended to, boolean, of a shape that broadcasts to (B, N_Q, N_X)
                and has at least two axes: the same for all heads. Everything when None.
            return_weights: whether to return A as well, the weights of every head.
        Returns:
            Y, or (Y, A). A query that may attend to nothing has zero weights and finite gradients.
            What is forbidden has weight 0, whatever the size of the scores.
        """
        ### BEGIN SOLUTION
        if memory is None:
            memory = X
        Q = split_heads(X @ self.W_Q + self.b_Q, self.H)  # (B, H, N_Q, D_h)
        K = split_heads(memory @ self.W_K + self.b_K, self.H)  # (B, H, N_X, D_h)
        V = split_heads(memory @ self.W_V + self.b_V, self.H)  # (B, H, N_X, D_h)
        E = Q @ K.mT / math.sqrt(Q.shape[-1])  # (B, H, N_Q, N_X)
        A = masked_softmax(E, None if mask is None else mask.unsqueeze(-3))
        Y = merge_heads(A @ V) @ self.W_O + self.b_O
        return (Y, A) if return_weights else Y
        ### END SOLUTION


def attention_cost(T: int, D: int, k: int = 3) -> dict[str, dict[str, int]]:
    """Count what three layers cost on one sequence of T vectors; all vectors have size D.

    rnn:             h_t = tanh(W_x x_t + W_h h_{t-1})
    convolution:     y_t = Σ_j W_j x_{t+j},   j = -(k-1)/2 … (k-1)/2, zeros beyond the ends
    self-attention:  Q, K, V = X W_Q, X W_K, X W_V,   A = softmax(Q Kᵀ / √D),   Y = A V

    (compare Vaswani et al. 2017, table 1 and §4: there without projections and constants, and the
    path of a convolution is that of dilated kernels, O(log_k T); ours are contiguous)

    Args:
        T: positions, at least 2.
        D: features; every matrix is D × D.
        k: width of the convolution, odd, at least 3.
    Returns:
        For "rnn", "convolution" and "self-attention" a dict of three counts:
        "multiply_adds" of all matrix products, including those with padding; "memory", the entries
        of all named results: h_1 … h_T, or Y, or Q, K, V, A and Y; and "path_length", how many
        applications of the layer (of its step, for the RNN) take a signal from x_1 to output T.
    Raises:
        ValueError: k is even or less than 3.
    """
    if k < 3 or k % 2 == 0:
        raise ValueError(f"k must be odd and at least 3, got {k}")
    return {
        "rnn": {"multiply_adds": 2 * T * D**2, "memory": T * D, "path_length": T},
        "convolution": {
            "multiply_adds": k * T * D**2,
            "memory": T * D,
            "path_length": math.ceil((T - 1) / (k // 2)),
        },
        "self-attention": {
            "multiply_adds": 3 * T * D**2 + 2 * T**2 * D,
            "memory": 4 * T * D + T**2,
            "path_length": 1,
        },
    }


def split_heads_fault() -> tuple[str, tuple[Tensor, int]]:
    """Say what is wrong with the black box of `split_heads`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what `split_heads`
        does.
    """
    X = torch.tensor([[[0.0, 1.0, 2.0, 3.0]]])  # heads (0, 1) and (2, 3); the box: (0, 2), (1, 3)
    return "C", (X, 2)
