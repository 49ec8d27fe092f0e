"""Positions: how attention, which treats its input as a set, learns the order of that input.

Shapes: B sequences, T positions, D features; H heads of size D_h. Positions count from 0.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from course_pkg.attention import masked_softmax, merge_heads, split_heads


def linear_positions(T: int, D: int, normalise: bool = False) -> Float[Tensor, "T D"]:
    """Number the positions, with the same number in every feature.

    P[t, j] = t,   or, normalised,   P[t, j] = t / (T - 1), from 0 to 1

    Args:
        T: how many positions; a single one has number 0.
        D: features.
        normalise: whether to divide by the last number.
    Returns:
        The encodings, to add to the vectors at these positions.
    """
    t = torch.arange(T, dtype=torch.get_default_dtype())
    if normalise:
        t = t / max(T - 1, 1)
    return t[:, None].repeat(1, D)


def sinusoidal_positions(T: int, D: int, base: float = 10000.0) -> Float[Tensor, "T D"]:
    """Encode every position by the hands of D/2 clocks, each slower than the last.

    P[t, 2i] = sin(t ω_i),   P[t, 2i+1] = cos(t ω_i),   ω_i = base^(-2i/D),   i = 0 … D/2 - 1
    (Vaswani et al. 2017, §3.5)

    Args:
        T: how many positions.
        D: features, an even number.
        base: how much slower the last clocks are than the first: the wavelengths go from 2π to
            nearly 2π · base.
    Returns:
        The encodings, to add to the vectors at these positions.
    Raises:
        ValueError: D is odd.
    """
    if D % 2:
        raise ValueError(f"D must be even, a sine and a cosine for each frequency, got {D}")
    omega = base ** (-torch.arange(0, D, 2) / D)  # (D/2,)
    angles = torch.arange(T)[:, None] * omega  # (T, D/2)
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


class LearnedPositions(nn.Module):
    """Add to the vector at each position a vector of its own, learned like any other weight.

    Parameter: P (T_max, D), drawn from N(0, 1), as torch.nn.Embedding is
    (Gehring et al. 2017, §3.1; they draw with a standard deviation of 0.1, §3.5).

    Args:
        T_max: the longest sequence.
        D: features.
    """

    def __init__(self, T_max: int, D: int):
        super().__init__()
        ### BEGIN SOLUTION
        self.P = nn.Parameter(torch.randn(T_max, D))
        ### END SOLUTION

    def forward(self, X: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Add row t of the table to the vector at position t.

        Args:
            X: the vectors; they are not changed in place.
        Returns:
            X + P[:T].
        Raises:
            ValueError: T is larger than T_max.
        """
        ### BEGIN SOLUTION
        T, T_max = X.shape[1], len(self.P)
        if T > T_max:
            raise ValueError(f"the table has {T_max} positions, the sequence {T}")
        return X + self.P[:T]
        ### END SOLUTION


def shaw_relative_attention(
    Q: Float[Tensor, "... T D_Q"],
    K: Float[Tensor, "... T D_Q"],
    V: Float[Tensor, "... T D_V"],
    R_K: Float[Tensor, "2*k+1 D_Q"],
    R_V: Float[Tensor, "2*k+1 D_V"],
    mask: Bool[Tensor, "... T T"] | None = None,
) -> tuple[Float[Tensor, "... T D_V"], Float[Tensor, "... T T"]]:
    """Attend with keys and values that also say how far away they are, up to k positions.

    E_ij = Q_i · (K_j + R_K[r_ij]) / √D_Q,   A = softmax(E),   Y_i = Σ_j A_ij (V_j + R_V[r_ij]),
    with r_ij = clip(j - i, -k, k) + k: row 0 stands for "k or more to the left", row k for the
    position itself, row 2k for "k or more to the right"      (Shaw et al. 2018, §3.1 and §3.2)

    Args:
        Q, K, V: queries, keys and values of one sequence; axes before the last two are a batch.
        R_K, R_V: what to add to keys and values, one row for each distance; the whole batch shares
            them.
        mask: what may be attended to, of a shape that broadcasts to E's; everything when None.
    Returns:
        Y, the outputs, and A, the weights; each row of A sums to one, or is all zeros when nothing
        is allowed; gradients are finite then. What is forbidden has weight 0, whatever the size
        of the scores.
    """
    T, D_Q = Q.shape[-2:]
    k = len(R_K) // 2
    t = torch.arange(T, device=Q.device)
    r = (t - t[:, None]).clamp(-k, k) + k  # (T, T)
    E = Q @ K.mT + torch.einsum("...id,ijd->...ij", Q, R_K[r])  # (..., T, T)
    A = masked_softmax(E / math.sqrt(D_Q), mask)
    return A @ V + torch.einsum("...ij,ijd->...id", A, R_V[r]), A


def rope_rotate(
    X: Float[Tensor, "... T D_h"],
    positions: Int[Tensor, "T"] | Float[Tensor, "T"] | None = None,
    base: float = 10000.0,
) -> Float[Tensor, "... T D_h"]:
    """Turn pairs of features by angles that grow with the position.

    Features i and i + D_h/2 are the two coordinates of pair i, which turns by t ω_i at position t:
    x' = x cos(t ω_i) - y sin(t ω_i),   y' = x sin(t ω_i) + y cos(t ω_i),   ω_i = base^(-2i/D_h)
    (Su et al. 2021, §3.2; pairs laid out as in GPT-NeoX and Hugging Face's library, not as in the
    paper and in Meta's Llama, which pair neighbours)

    Args:
        X: queries or keys; axes before the last two are a batch.
        positions: where the T vectors stand, whole numbers or not; 0 … T-1 when None.
        base: how much slower the last pairs turn than the first.
    Returns:
        The turned vectors, with their lengths and their type unchanged.
    Raises:
        ValueError: D_h is odd.
    """
    T, D_h = X.shape[-2:]
    if D_h % 2:
        raise ValueError(f"the features must come in pairs, got {D_h} of them")
    if positions is None:
        positions = torch.arange(T, device=X.device)
    precise = torch.promote_types(X.dtype, torch.float32)  # bfloat16 cannot count beyond 256
    omega = base ** (-torch.arange(0, D_h, 2, dtype=precise, device=X.device) / D_h)  # (D_h/2,)
    angles = positions[:, None] * omega  # (T, D_h/2)
    cos, sin = angles.cos(), angles.sin()
    x, y = X.chunk(2, dim=-1)  # (..., T, D_h/2) each
    return torch.cat([x * cos - y * sin, x * sin + y * cos], dim=-1).to(X.dtype)


class RotaryAttention(nn.Module):
    """Self-attention with several heads whose scores know how far apart two positions are.

    Parameters: W_Q, W_K, W_V and W_O (D, D), drawn from N(0, 1/D). Head h uses columns h D_h to
    (h+1) D_h - 1 of the first three, with D_h = D / H.

    Args:
        D: size of the vectors.
        H: how many heads; divides D.
        base: how much slower the last pairs of features turn than the first.
    """

    def __init__(self, D: int, H: int, base: float = 10000.0):
        super().__init__()
        self.H = H
        self.base = base
        self.W_Q = nn.Parameter(torch.randn(D, D) / math.sqrt(D))
        self.W_K = nn.Parameter(torch.randn(D, D) / math.sqrt(D))
        self.W_V = nn.Parameter(torch.randn(D, D) / math.sqrt(D))
        self.W_O = nn.Parameter(torch.randn(D, D) / math.sqrt(D))

    def forward(
        self,
        X: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "... T T"] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B T D"] | tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T T"]]:
        """Attend from X to X with queries and keys that `rope_rotate` has turned.

        Q = X W_Q,   K = X W_K,   V = X W_V,   cut into heads; Q and K turned, V as it is;
        A_h = softmax(Q_h K_hᵀ / √D_h) over the allowed keys,   Y = [A_1 V_1 … A_H V_H] W_O

        Args:
            X: the vectors, at positions 0 … T-1.
            mask: what may be attended to, boolean, of a shape that broadcasts to (B, T, T) and has
                at least two axes: the same for all heads. Everything when None.
            return_weights: whether to return A as well, the weights of every head.
        Returns:
            Y, or (Y, A). A query that may attend to nothing has zero weights and finite gradients.
            What is forbidden has weight 0, whatever the size of the scores.
        """
        ### BEGIN SOLUTION
        Q, K, V = (split_heads(X @ W, self.H) for W in (self.W_Q, self.W_K, self.W_V))
        Q, K = rope_rotate(Q, base=self.base), rope_rotate(K, base=self.base)  # (B, H, T, D_h)
        E = Q @ K.mT / math.sqrt(Q.shape[-1])  # (B, H, T, T)
        A = masked_softmax(E, None if mask is None else mask.unsqueeze(-3))
        heads = A @ V  # (B, H, T, D_h)
        Y = merge_heads(heads) @ self.W_O
        return (Y, A) if return_weights else Y
        ### END SOLUTION


def interpolate_positions(
    P: Float[Tensor, "*old D"], size: tuple[int, ...]
) -> Float[Tensor, "*new D"]:
    """Stretch or shrink a table of position vectors: a line of them, or a grid.

    Along each axis, from T to T' positions: the middle of new cell t lies in the old table at
    u = (t + ½) T / T' - ½, or at 0 where that is negative. With l = ⌊u⌋ and w = u - l,
    P'[t] = (1 - w) P[l] + w P[min(l + 1, T - 1)]      (after Dosovitskiy et al. 2021, §3.2)

    Args:
        P: the table, its features last: (T, D) for sequences, (rows, columns, D) for images.
        size: the new size of each axis but the last: (T',), or (rows', columns').
    Returns:
        The new table.
    Raises:
        ValueError: size does not name one size for each axis.
    """
    if len(size) != P.dim() - 1:
        raise ValueError(f"a table of shape {tuple(P.shape)} has {P.dim() - 1} axes, got {size}")
    for axis, T_new in enumerate(size):
        T = P.shape[axis]
        t = torch.arange(T_new, dtype=P.dtype, device=P.device)
        u = ((t + 0.5) * T / T_new - 0.5).clamp(min=0)
        left = u.long()
        right = (left + 1).clamp(max=T - 1)
        w = (u - left).view(-1, *[1] * (P.dim() - axis - 1))  # against this axis of P
        P = (1 - w) * P.index_select(axis, left) + w * P.index_select(axis, right)
    return P


def rope_rotate_fault() -> tuple[str, tuple[Tensor]]:
    """Say what is wrong with the black box of `rope_rotate`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what `rope_rotate`
        does.
    """
    X = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # one pair, at positions 0 and 1
    return "A", (X,)  # at 1 it turns to (cos 1, sin 1), and to (cos 1, -sin 1) in the box
