"""Many networks of which each token uses a few, and small changes to a trained one.

Shapes: B sequences, T positions, M tokens, D features, F hidden features; E experts, of which each
token gets k; r, the rank of an adapter.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_pkg.llama import swiglu


def route_top_k(
    logits: Float[Tensor, "M E"], k: int
) -> tuple[Float[Tensor, "M k"], Int[Tensor, "M k"]]:
    """Choose k experts for each token, and how much each of them counts.

    weights = softmax of the k largest logits      (Jiang et al. 2024, §2.1)

    Args:
        logits: the router's score of each expert, for each token.
        k: how many experts a token gets.
    Returns:
        The experts' weights, which sum to one for each token, and their numbers, the best first.
    Raises:
        ValueError: k is less than 1 or more than E.
    """
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k must lie in 1 … {logits.shape[1]}, got {k}")
    best, experts = logits.topk(k)  # (M, k) each
    return torch.softmax(best, dim=1), experts


def load_balancing_loss(
    logits: Float[Tensor, "M E"], experts: Int[Tensor, "M k"]
) -> Float[Tensor, ""]:
    """Measure how unequally a router loads its experts, in a way that it can learn from.

    L = E Σ_e f_e P_e,   f_e = how many of the M tokens go to expert e, divided by M,
    P_e = mean over the tokens of softmax(logits)_e      (Fedus et al. 2022, eq. 4 to 6, for k = 1)

    f has no gradient; P has. With equal loads L is k; at most it is E, where one expert has all.

    Args:
        logits: the router's scores of M tokens.
        experts: the experts that each token goes to, all different.
    Returns:
        L.
    """
    M, E = logits.shape
    f = torch.bincount(experts.flatten(), minlength=E).to(logits) / M  # (E,)
    P = torch.softmax(logits, dim=1).mean(dim=0)  # (E,)
    return E * (f * P).sum()


def balance_by_bias(
    logits: Float[Tensor, "M E"], bias: Float[Tensor, "E"], k: int, gamma: float
) -> tuple[Float[Tensor, "M k"], Int[Tensor, "M k"], Float[Tensor, "E"]]:
    """Choose experts by score plus bias, and move each bias against its expert's load.

    experts = the k largest of logits + bias;   weights = softmax of the *logits* of these k;
    bias_e ← bias_e - γ where more than M k / E tokens go to expert e, + γ where fewer do
    (DeepSeek-AI 2024, §2.1.2; Wang et al. 2024, algorithm 1; there the scores are sigmoids)

    An expert with exactly its share of the tokens keeps its bias.

    Args:
        logits: the router's score of each expert, for each token.
        bias: what is added to each expert's scores when experts are chosen; it is not changed.
        k: how many experts a token gets.
        gamma: γ, how far a bias moves.
    Returns:
        The experts' weights, which sum to one for each token; their numbers, the one with the
        largest sum of score and bias first; and the new bias.
    Raises:
        ValueError: k is less than 1 or more than E.
    """
    M, E = logits.shape
    if not 1 <= k <= E:
        raise ValueError(f"k must lie in 1 … {E}, got {k}")
    experts = (logits + bias).topk(k).indices  # (M, k)
    weights = torch.softmax(logits.gather(1, experts), dim=1)  # (M, k)
    load = torch.bincount(experts.flatten(), minlength=E)  # (E,)
    return weights, experts, bias - gamma * torch.sign(E * load - M * k)


class MixtureOfExperts(nn.Module):
    """E feed-forward networks in place of one, of which each token passes through k.

    Parameters: W_router (D, E), W_gate and W_up (E, D, F), W_down (E, F, D), drawn from
    N(0, 1/rows).

    Args:
        D: size of the vectors.
        F: size of each expert's hidden layer.
        E: how many experts.
        k: how many of them a token gets.
        capacity: how many tokens an expert takes at most in one call; as many as come when None.
    """

    def __init__(self, D: int, F: int, E: int, k: int = 2, capacity: int | None = None):
        super().__init__()
        self.k, self.capacity = k, capacity
        self.W_router = nn.Parameter(torch.randn(D, E) / math.sqrt(D))
        self.W_gate = nn.Parameter(torch.randn(E, D, F) / math.sqrt(D))
        self.W_up = nn.Parameter(torch.randn(E, D, F) / math.sqrt(D))
        self.W_down = nn.Parameter(torch.randn(E, F, D) / math.sqrt(F))

    def forward(self, X: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Send each vector through its experts, and add up what they return.

        weights, experts = route_top_k(X W_router, k);   y = Σ_j weights_j swiglu_{experts_j}(x)
        (Shazeer et al. 2017, §2; Jiang et al. 2024, §2.1)

        With a capacity, an expert takes the tokens that come first, all of the first sequence
        before those of the second, and drops the rest: they get nothing from this expert, and
        their other weights stay as they are      (Fedus et al. 2022, §2.2)

        Args:
            X: the vectors; axes before the last are read as M tokens, in their order.
        Returns:
            The new vectors, in X's dtype. Where all experts dropped a token, its vector is zero.
        """
        ### BEGIN SOLUTION
        tokens = X.reshape(-1, X.shape[-1])  # (M, D)
        weights, experts = route_top_k(tokens @ self.W_router, self.k)  # (M, k) each
        Y = torch.zeros_like(tokens)
        for e in range(len(self.W_gate)):
            rows, slots = torch.where(experts == e)
            rows, slots = rows[: self.capacity], slots[: self.capacity]
            out = swiglu(tokens[rows], self.W_gate[e], self.W_up[e], self.W_down[e])
            Y = Y.index_add(0, rows, weights[rows, slots, None] * out)
        return Y.view_as(X)
        ### END SOLUTION


class LoRA(nn.Module):
    """Adapt a matrix that stays as it is, by adding a product of two thin ones.

    Parameters: A (D_in, r), drawn from N(0, 1/D_in), and B (r, D_out), which starts at zero, both
    of W's dtype. W is a buffer: it is stored, and never trained
    (Hu et al. 2022, §4.1, written for x W)

    Args:
        W: the matrix, for x W; (D_in, D_out). It is copied.
        r: the rank of what is added.
        alpha: how much is added is scaled by alpha / r.
    Raises:
        ValueError: r is less than 1.
    """

    def __init__(self, W: Float[Tensor, "D_in D_out"], r: int, alpha: float):
        super().__init__()
        ### BEGIN SOLUTION
        if r < 1:
            raise ValueError(f"the rank must be at least 1, got {r}")
        D_in, D_out = W.shape
        self.scale = alpha / r
        self.register_buffer("W", W.detach().clone())
        self.A = nn.Parameter(torch.randn(D_in, r).to(W) / math.sqrt(D_in))
        self.B = nn.Parameter(torch.zeros(r, D_out).to(W))
        ### END SOLUTION

    def forward(self, X: Float[Tensor, "... D_in"]) -> Float[Tensor, "... D_out"]:
        """Compute X W + (alpha / r) (X A) B, without a matrix of W's size for what is added.

        Args:
            X: the vectors.
        Returns:
            The new vectors.
        """
        ### BEGIN SOLUTION
        return X @ self.W + self.scale * ((X @ self.A) @ self.B)
        ### END SOLUTION

    def merge(self) -> Float[Tensor, "D_in D_out"]:
        """Add up W + (alpha / r) A B: one matrix, which costs no more than W did.

        Returns:
            A new matrix; W stays as it is.
        """
        ### BEGIN SOLUTION
        return self.W + self.scale * (self.A @ self.B)
        ### END SOLUTION


def lora_parameters(D: int, H: int, G: int, L: int, F: int, r: int) -> dict[str, int]:
    """Count the parameters that LoRA trains in a Llama, if all matrices of its blocks get adapters.

    An adapter of a matrix of D_in × D_out has r (D_in + D_out)      (Hu et al. 2022, §4.1)

    Args:
        D, H, G, L, F: as for `Llama`.
        r: the rank of every adapter.
    Returns:
        How many parameters are trained in its "attention", which has W_Q, W_K, W_V and W_O, and in
        its "feed_forward", which has W_gate, W_up and W_down; and "total", their sum.
    Raises:
        ValueError: r is less than 1.
    """
    if r < 1:
        raise ValueError(f"the rank must be at least 1, got {r}")
    parts = {
        "attention": L * r * 2 * (D + D + D + G * (D // H)),
        "feed_forward": L * r * 3 * (D + F),
    }
    return parts | {"total": sum(parts.values())}


def load_balancing_loss_fault() -> tuple[str, tuple[Tensor, Tensor]]:
    """Say what is wrong with the black box of `load_balancing_loss`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `load_balancing_loss` does.
    """
    logits, experts = torch.zeros(1, 3), torch.tensor([[0, 1]])  # P is 1/3 for each
    return "D", (logits, experts)  # f is 1, 1, 0: L is 3 (1/3 + 1/3) = 2, or 1 in the box
