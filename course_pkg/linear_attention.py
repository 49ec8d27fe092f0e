"""Linear attention and its kin: recurrent networks whose state is a matrix of fixed size.

Shapes: B sequences, H heads, T steps, D features of a query or key, D_V of a value; a head's state
S is a matrix of D × D_V. A state space model has D channels, each with a state of N numbers.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.attention import causal_mask, masked_softmax, merge_heads, split_heads
from course_pkg.llama import GatedFeedForward, RMSNorm


def linear_attention(
    Q: Float[Tensor, "B H T D"],
    K: Float[Tensor, "B H T D"],
    V: Float[Tensor, "B H T D_V"],
    normalised: bool = True,
) -> Float[Tensor, "B H T D_V"]:
    """Attend to the past with a kernel in place of the softmax, all steps at once.

    y_t = Σ_{s≤t} a_ts v_s / Σ_{s≤t} a_ts,   a_ts = φ(q_t) · φ(k_s),   φ(x) = elu(x) + 1
    (Katharopoulos et al. 2020, §3.2 and §3.3)

    Args:
        Q, K, V: queries, keys and values, before φ.
        normalised: whether the sum is divided by that of the weights.
    Returns:
        The outputs y_1 … y_T. Where all weights are 0, because the features are too small for the
        dtype, y_t is 0. A small ε, 1e-6 at most, may be added to the sum of the weights.
    """
    Q, K = functional.elu(Q) + 1, functional.elu(K) + 1
    A = (Q @ K.mT).tril()  # (B, H, T, T)
    if normalised:
        total = A.sum(dim=-1, keepdim=True)
        A = A / total.masked_fill(total == 0, 1)
    return A @ V


def recurrent_linear_attention(
    Q: Float[Tensor, "B H T D"],
    K: Float[Tensor, "B H T D"],
    V: Float[Tensor, "B H T D_V"],
    state: tuple[Float[Tensor, "B H D D_V"], Float[Tensor, "B H D"]] | None = None,
    normalised: bool = True,
) -> tuple[Float[Tensor, "B H T D_V"], tuple[Float[Tensor, "B H D D_V"], Float[Tensor, "B H D"]]]:
    """Compute linear attention step by step: a recurrent network with a matrix for its state.

    S_t = S_{t-1} + φ(k_t) v_tᵀ,   z_t = z_{t-1} + φ(k_t),   φ(x) = elu(x) + 1
    y_t = S_tᵀ φ(q_t) / (z_t · φ(q_t))      (Katharopoulos et al. 2020, §3.4)

    Args:
        Q, K, V: queries, keys and values, before φ.
        state: (S_0, z_0), not changed in place; zeros when None.
        normalised: whether to divide by z_t · φ(q_t).
    Returns:
        The outputs y_1 … y_T, and (S_T, z_T), with which the next steps go on. Where z_t · φ(q_t)
        is 0, because the features are too small for the dtype, y_t is 0. A small ε, 1e-6 at most,
        may be added to z_t · φ(q_t).
    """
    Q, K = functional.elu(Q) + 1, functional.elu(K) + 1
    B, H, T, D = K.shape
    S, z = state if state is not None else (K.new_zeros(B, H, D, V.shape[-1]), K.new_zeros(B, H, D))
    outputs = []
    for t in range(T):
        q, k, v = Q[:, :, t], K[:, :, t], V[:, :, t]
        S = S + k[..., :, None] * v[..., None, :]  # (B, H, D, D_V)
        z = z + k
        y = (q[..., None, :] @ S)[..., 0, :]  # (B, H, D_V)
        if normalised:
            total = (q * z).sum(dim=-1, keepdim=True)
            y = y / total.masked_fill(total == 0, 1)
        outputs.append(y)
    return torch.stack(outputs, dim=2), (S, z)


def delta_rule(
    Q: Float[Tensor, "B H T D"],
    K: Float[Tensor, "B H T D"],
    V: Float[Tensor, "B H T D_V"],
    beta: Float[Tensor, "B H T"],
    S: Float[Tensor, "B H D D_V"] | None = None,
) -> tuple[Float[Tensor, "B H T D_V"], Float[Tensor, "B H D D_V"]]:
    """Replace what the memory holds under a key, instead of adding to it.

    S_t = S_{t-1} + β_t k_t (v_t - S_{t-1}ᵀ k_t)ᵀ,   y_t = S_tᵀ q_t
    (Schlag et al. 2021, §4.2; Yang et al. 2024, "DeltaNet")

    Args:
        Q, V: queries and values.
        K: the keys; with keys of length one and β = 1, S_tᵀ k_t = v_t.
        beta: β, how much of what is held is replaced, in [0, 1].
        S: S_0, not changed in place; zeros when None.
    Returns:
        The outputs y_1 … y_T, and S_T.
    """
    if S is None:
        S = K.new_zeros(*K.shape[:2], K.shape[-1], V.shape[-1])
    outputs = []
    for t in range(K.shape[2]):
        k = K[:, :, t, :, None]  # (B, H, D, 1)
        held = k.mT @ S  # (B, H, 1, D_V)
        new = V[:, :, t, None] - held
        S = S + beta[:, :, t, None, None] * k * new
        outputs.append(Q[:, :, t, None] @ S)
    return torch.cat(outputs, dim=2), S


def gated_recurrence(
    Q: Float[Tensor, "B H T D"],
    K: Float[Tensor, "B H T D"],
    V: Float[Tensor, "B H T D_V"],
    decay: Float[Tensor, "..."],
    S: Float[Tensor, "B H D D_V"] | None = None,
) -> tuple[Float[Tensor, "B H T D_V"], Float[Tensor, "B H D D_V"]]:
    """Forget a share of the memory at every step, and add to the rest.

    S_t = diag(γ_t) S_{t-1} + k_t v_tᵀ,   y_t = S_tᵀ q_t

    A constant for each head gives RetNet (Sun et al. 2023, §2.1), a number for each step and head
    Mamba-2 (Dao & Gu 2024, §5.1), one for each row as well GLA (Yang et al. 2024, "Gated Linear
    Attention", §4.1); with D = D_V = 1, k = i and v = g it is the cell of an LSTM, and γ its
    forget gate.

    Args:
        Q, K, V: queries, keys and values.
        decay: γ, what remains of each row of S, in [0, 1]: (B, H, T, D), or any shape that
            broadcasts to it, such as (B, H, T, 1) or (H, 1, 1).
        S: S_0, not changed in place; zeros when None.
    Returns:
        The outputs y_1 … y_T, and S_T.
    """
    decay = decay.expand(K.shape)
    if S is None:
        S = K.new_zeros(*K.shape[:2], K.shape[-1], V.shape[-1])
    outputs = []
    for t in range(K.shape[2]):
        S = decay[:, :, t, :, None] * S + K[:, :, t, :, None] * V[:, :, t, None]
        outputs.append(Q[:, :, t, None] @ S)
    return torch.cat(outputs, dim=2), S


def discretise(
    delta: Float[Tensor, "B T D"],
    A: Float[Tensor, "D N"],
    K: Float[Tensor, "B T N"],
    exact: bool = True,
) -> tuple[Float[Tensor, "B T D N"], Float[Tensor, "B T D N"]]:
    """Turn a differential equation into steps of length Δ, during which the input is held.

    dh/dt = A h + k x   becomes   h_t = Ā_t h_{t-1} + K̄_t x_t,
    Ā = exp(Δ A),   K̄ = (exp(Δ A) - 1) / A · k      (Gu & Dao 2023, eq. 4)

    Mamba's program takes the first order, K̄ = Δ k, instead.

    Args:
        delta: Δ > 0, the length of each step in each channel.
        A: the rates, negative; those of each channel's N numbers, a diagonal. However small Δ A
            is, K̄ is exact.
        K: k, what the input is written with; Mamba calls it B.
        exact: whether K̄ is that of the equation, or of first order.
    Returns:
        Ā and K̄.
    """
    rate = delta[..., None] * A  # (B, T, D, N)
    length = torch.expm1(rate) / A if exact else delta[..., None]
    return rate.exp(), length * K[:, :, None]


def selective_state_space(
    X: Float[Tensor, "B T D"],
    delta: Float[Tensor, "B T D"],
    A: Float[Tensor, "D N"],
    K: Float[Tensor, "B T N"],
    Q: Float[Tensor, "B T N"],
    skip: Float[Tensor, "D"],
    h: Float[Tensor, "B D N"] | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B D N"]]:
    """Run a state space model whose steps, writing and reading depend on the input: Mamba.

    Ā, K̄ = `discretise` of first order
    h_t = Ā_t ⊙ h_{t-1} + K̄_t x_t,   y_t = h_t q_t + skip ⊙ x_t      (Gu & Dao 2023, §3.2, Alg. 2)

    Args:
        X: the inputs, D channels.
        delta: Δ > 0; a long step forgets the state and takes the input, a short one skips it.
        A: the rates, negative.
        K, Q: what is written with and read with, the same for all channels; Mamba's B and C.
        skip: how much of the input passes by the state; Mamba's D.
        h: h_0, not changed in place; zeros when None.
    Returns:
        The outputs y_1 … y_T, and h_T.
    """
    decay, write = discretise(delta, A, K, exact=False)  # (B, T, D, N)
    if h is None:
        h = torch.zeros_like(decay[:, 0])
    outputs = []
    for t in range(X.shape[1]):
        h = decay[:, t] * h + write[:, t] * X[:, t, :, None]
        outputs.append((h @ Q[:, t, :, None])[..., 0] + skip * X[:, t])
    return torch.stack(outputs, dim=1), h


def parallel_scan(
    a: Float[Tensor, "B T *rest"], b: Float[Tensor, "B T *rest"]
) -> Float[Tensor, "B T *rest"]:
    """Compute all states of a linear recurrence in ⌈log₂ T⌉ levels, each parallel over the steps.

    h_t = a_t ⊙ h_{t-1} + b_t,   h_0 = 0

    Two steps are one: (a_1, b_1), then (a_2, b_2), is (a_2 a_1, a_2 b_1 + b_2). This is
    associative, so level j = 0, 1, … joins each entry, of 2^j steps, with the one 2^j before it.
    (Hillis & Steele 1986; Blelloch 1990, §1.4; Martin & Cundy 2018, §2)

    Args:
        a: what remains of the state, 0 included.
        b: what is added, in the shape of a.
    Returns:
        h_1 … h_T. As the sums form a tree, rounding errors grow as log T.
    """
    step = 1
    while step < a.shape[1]:
        joined = a[:, step:] * b[:, :-step] + b[:, step:]
        b = torch.cat([b[:, :step], joined], dim=1)
        a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], dim=1)
        step *= 2
    return b


def chunked_scan(
    Q: Float[Tensor, "B H T D"],
    K: Float[Tensor, "B H T D"],
    V: Float[Tensor, "B H T D_V"],
    log_decay: Float[Tensor, "B H T"],
    S: Float[Tensor, "B H D D_V"] | None = None,
    chunk: int = 16,
) -> tuple[Float[Tensor, "B H T D_V"], Float[Tensor, "B H D D_V"]]:
    """Compute `gated_recurrence` with matrix products inside chunks, and steps between them only.

    With S the state before a chunk and l_t = Σ_{i≤t} log γ_i, summed from the chunk's first step:
    y_t = e^{l_t} Sᵀ q_t + Σ_{s≤t} e^{l_t - l_s} (q_t · k_s) v_s
    S ← e^{l_C} S + Σ_s e^{l_C - l_s} k_s v_sᵀ
    (Dao & Gu 2024, §6; Yang et al. 2024, "Gated Linear Attention", §2.2)

    Only factors of at most one are computed, so that nothing overflows where decay is strong.

    Args:
        Q, K, V: queries, keys and values.
        log_decay: log γ ≤ 0, finite, one number for each step and head.
        S: S_0, not changed in place; zeros when None.
        chunk: C, steps in a chunk; the last one may have fewer.
    Returns:
        The outputs y_1 … y_T, and S_T.
    Raises:
        ValueError: chunk is less than 1.
    """
    if chunk < 1:
        raise ValueError(f"a chunk must have at least 1 step, got {chunk}")
    if S is None:
        S = K.new_zeros(*K.shape[:2], K.shape[-1], V.shape[-1])
    outputs = []
    parts = (part.split(chunk, dim=2) for part in (Q, K, V, log_decay))
    for q, k, v, g in zip(*parts, strict=True):
        total = g.cumsum(dim=-1)  # (B, H, C)
        between = total[..., :, None] - total[..., None, :]  # (B, H, C, C)
        future = torch.ones_like(between, dtype=torch.bool).triu(1)
        weights = between.masked_fill(future, -math.inf).exp()
        outputs.append(total.exp()[..., None] * (q @ S) + (weights * (q @ k.mT)) @ v)
        left = (total[..., -1:] - total).exp()[..., None]  # (B, H, C, 1)
        S = total[..., -1:, None].exp() * S + (left * k).mT @ v
    return torch.cat(outputs, dim=2), S


def short_convolution(
    X: Float[Tensor, "B T D"],
    taps: Float[Tensor, "D W"],
    past: Float[Tensor, "B W-1 D"] | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B W-1 D"]]:
    """Mix each feature with itself a few steps back, so that a key can be of the step before.

    y_t = Σ_j taps_j ⊙ x_{t - (W-1) + j},   j = 0 … W-1      (Gu & Dao 2023, §3.4, fig. 3)

    Args:
        X: the inputs.
        taps: the weights of each feature, the last one for the present step.
        past: the W-1 inputs before the first; zeros when None.
    Returns:
        The outputs y_1 … y_T, and the last W-1 inputs, those of past among them if T < W-1. With
        W = 1 these are none: (B, 0, D).
    """
    (B, T, D), W = X.shape, taps.shape[1]
    if past is None:
        past = X.new_zeros(B, W - 1, D)
    seen = torch.cat([past, X], dim=1)  # (B, W-1+T, D)
    Y = sum(taps[:, j] * seen[:, j : j + T] for j in range(W))
    return Y, seen[:, T:].clone()  # a view would keep all inputs in memory


class TokenMixer(nn.Module):
    """A layer that mixes tokens over time, by one of five rules that differ in what they remember.

    rule       memory                  how
    "softmax"  keys and values         attention over all of them: softmax(q · k / √D_h)
    "add"      S, D_h × D_h numbers    S + φ(k) vᵀ, read with φ(q), φ(x) = elu(x) + 1
    "decay"    S                       γ_h S + k vᵀ,  γ_h = 1 - 2^(-5 - h) in head h = 0 … H-1
    "select"   S                       e^(A Δ) S + Δ k vᵀ,  Δ = softplus(gate),  A = -e^log_a
    "delta"    S                       S + β k' (v - Sᵀ k')ᵀ,  β = σ(gate),  k' = k / ‖k‖

    Parameters: W_QKV (D, 3 D), taps (3 D, width), norm.weight (D_h), W_O (D, D); "select" and
    "delta" also have W_gate (D, H) and b_gate (H), and "select" log_a (H).

    Args:
        D: size of the vectors.
        H: heads; divides D.
        rule: one of the five.
        width: taps of the convolution.
    Raises:
        ValueError: there is no such rule.
    """

    RULES = ("softmax", "add", "decay", "select", "delta")

    def __init__(self, D: int, H: int, rule: str, width: int = 4):
        super().__init__()
        ### BEGIN SOLUTION
        if rule not in self.RULES:
            raise ValueError(f"rule must be one of {', '.join(self.RULES)}, got {rule!r}")
        ### END SOLUTION
        self.H, self.rule = H, rule
        self.W_QKV = nn.Parameter(torch.randn(D, 3 * D) / math.sqrt(D))
        self.taps = nn.Parameter(torch.empty(3 * D, width).uniform_(-1, 1) / math.sqrt(width))
        if rule in ("select", "delta"):
            self.W_gate = nn.Parameter(torch.randn(D, H) / math.sqrt(D))
            start = torch.linspace(-7, -2, H) if rule == "select" else torch.zeros(H)
            self.b_gate = nn.Parameter(start)  # Δ from 0.001 to 0.1: memories of many lengths
        if rule == "select":
            self.log_a = nn.Parameter(torch.zeros(H))
        self.norm = RMSNorm(D // H)
        self.W_O = nn.Parameter(torch.randn(D, D) / math.sqrt(D))

    def attend(
        self,
        Q: Float[Tensor, "B H T D_h"],
        K: Float[Tensor, "B H T D_h"],
        V: Float[Tensor, "B H T D_h"],
        memory: Float[Tensor, "B H past 2*D_h"] | None,
    ) -> tuple[Float[Tensor, "B H T D_h"], Float[Tensor, "B H past+T 2*D_h"]]:
        """Apply the rule "softmax": causal attention to what is kept and to the new steps.

        However large or small the scores are, the weights of a step sum to one, and steps after it
        have none.

        Args:
            Q, K, V: of the T new steps.
            memory: keys and values of the steps before, side by side; none when None.
        Returns:
            The outputs of the new steps, and the memory with them.
        """
        ### BEGIN SOLUTION
        T, D_h = Q.shape[2:]
        new = torch.cat([K, V], dim=-1)
        memory = new if memory is None else torch.cat([memory, new], dim=2)
        K, V = memory.chunk(2, dim=-1)
        mask = causal_mask(T, K.shape[2] - T).to(Q.device)
        return masked_softmax(Q @ K.mT / math.sqrt(D_h), mask) @ V, memory
        ### END SOLUTION

    def recur(
        self,
        Q: Float[Tensor, "B H T D_h"],
        K: Float[Tensor, "B H T D_h"],
        V: Float[Tensor, "B H T D_h"],
        gate: Float[Tensor, "B H T"] | None,
        S: Float[Tensor, "B H D_h D_h"] | None,
    ) -> tuple[Float[Tensor, "B H T D_h"], Float[Tensor, "B H D_h D_h"]]:
        """Apply one of the other four rules.

        Args:
            Q, K, V: of the T new steps.
            gate: what Δ or β is made from; None for "add" and "decay".
            S: the state; zeros when None.
        Returns:
            The outputs of the new steps, and the new state.
        """
        ### BEGIN SOLUTION
        if self.rule == "delta":
            return delta_rule(Q, functional.normalize(K, dim=-1), V, torch.sigmoid(gate), S)
        log_decay = torch.zeros_like(Q[..., 0])  # (B, H, T)
        if self.rule == "add":
            Q, K = functional.elu(Q) + 1, functional.elu(K) + 1
        elif self.rule == "decay":
            heads = torch.arange(self.H, dtype=Q.dtype, device=Q.device)
            log_decay = log_decay + torch.log(1 - 2 ** (-5 - heads))[:, None]
        else:
            delta = functional.softplus(gate)
            log_decay, K = -self.log_a.exp()[:, None] * delta, delta[..., None] * K
        return chunked_scan(Q, K, V, log_decay, S)
        ### END SOLUTION

    def forward(
        self,
        X: Float[Tensor, "B T D"],
        state: tuple[Float[Tensor, "B H ..."], Float[Tensor, "B W-1 3*D"]] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], tuple[Float[Tensor, "B H ..."], Float[Tensor, "B W-1 3*D"]]]:
        """Apply the layer to T new steps.

        [Q K V] = silu(`short_convolution`(X W_QKV)), cut into heads;   gate = X W_gate + b_gate;
        Y by `attend` or `recur`;   the result is norm(Y), heads merged, times W_O

        Args:
            X: the new steps' vectors.
            state: the memory, and the inputs that the convolution has seen last, as this method
                returned them; nothing has been seen when None.
        Returns:
            The new vectors, and the new state.
        """
        ### BEGIN SOLUTION
        memory, past = state if state is not None else (None, None)
        mixed, past = short_convolution(X @ self.W_QKV, self.taps, past)
        Q, K, V = (split_heads(part, self.H) for part in functional.silu(mixed).chunk(3, dim=-1))
        if self.rule == "softmax":
            Y, memory = self.attend(Q, K, V, memory)
        else:
            gated = self.rule in ("select", "delta")
            gate = (X @ self.W_gate + self.b_gate).mT if gated else None  # (B, H, T)
            Y, memory = self.recur(Q, K, V, gate, memory)
        return merge_heads(self.norm(Y)) @ self.W_O, (memory, past)
        ### END SOLUTION


class HybridDecoder(nn.Module):
    """A language model of recurrent layers, with one of attention in every few.

    There are no positions: the recurrent layers and the convolutions know the order
    (Lieber et al. 2024, "Jamba", §2 and §6.5).

    Args:
        V: tokens in the vocabulary.
        D, H: as in `TokenMixer`.
        L: layers.
        rule: that of the recurrent layers.
        every: the last of every so many layers is "softmax"; none is when None.
    """

    def __init__(
        self, V: int, D: int, H: int, L: int, rule: str = "select", every: int | None = None
    ):
        super().__init__()
        ### BEGIN SOLUTION
        rules = ["softmax" if every and n % every == 0 else rule for n in range(1, L + 1)]
        ### END SOLUTION
        self.token = nn.Embedding(V, D)
        nn.init.normal_(self.token.weight, std=0.02)
        self.norms = nn.ModuleList(RMSNorm(D) for _ in range(2 * L))
        self.mixers = nn.ModuleList(TokenMixer(D, H, rule) for rule in rules)
        self.networks = nn.ModuleList(GatedFeedForward(D) for _ in range(L))
        self.norm = RMSNorm(D)
        self.W_head = nn.Parameter(torch.randn(D, V) / math.sqrt(D))

    def forward(
        self, tokens: Int[Tensor, "B T"], states: list | None = None
    ) -> tuple[Float[Tensor, "B T V"], list]:
        """Score every token of the vocabulary as the next one, after each of the new tokens.

        X = token[tokens];   in each layer n = 0 … L-1:   X ← X + mixer_n(norm_2n(X)),
        X ← X + network_n(norm_{2n+1}(X));   logits = norm(X) W_head

        Args:
            tokens: the new tokens of every text.
            states: of each layer, what its mixer returned for the tokens before; none when None.
        Returns:
            The logits of the new tokens, and the new states, one for each layer.
        """
        ### BEGIN SOLUTION
        X = self.token(tokens)  # (B, T, D)
        found = []
        for n, (mixer, network) in enumerate(zip(self.mixers, self.networks, strict=True)):
            Y, state = mixer(self.norms[2 * n](X), None if states is None else states[n])
            X = X + Y
            X = X + network(self.norms[2 * n + 1](X))
            found.append(state)
        return self.norm(X) @ self.W_head, found
        ### END SOLUTION


def state_bytes(
    T: int, D: int, H: int, L: int, every: int | None = None, width: int = 4, size: int = 4
) -> dict[str, int]:
    """Count what a `HybridDecoder` keeps of one text, without running it.

    A recurrent layer keeps H matrices of D_h × D_h, D_h = D / H; a layer of attention keeps a key
    and a value of D numbers for each token; both keep the last width - 1 inputs of the
    convolution, of 3 D numbers each.

    Args:
        T: tokens read.
        D, H, L, every, width: as in `HybridDecoder` and `TokenMixer`.
        size: bytes of a number.
    Returns:
        "state", the bytes that stay the same however long the text is, and "cache", those that
        grow with it.
    Raises:
        ValueError: H does not divide D.
    """
    if D % H:
        raise ValueError(f"{D} features cannot be shared equally among {H} heads")
    attention = L // every if every else 0
    matrices = (L - attention) * H * (D // H) ** 2
    return {
        "state": (matrices + L * (width - 1) * 3 * D) * size,
        "cache": attention * 2 * D * T * size,
    }


def rwkv_time_mixing(
    R: Float[Tensor, "B T D"],
    K: Float[Tensor, "B T D"],
    V: Float[Tensor, "B T D"],
    w: Float[Tensor, "D"],
    u: Float[Tensor, "D"],
    state: tuple[Float[Tensor, "B D"], Float[Tensor, "B D"]] | None = None,
) -> tuple[Float[Tensor, "B T D"], tuple[Float[Tensor, "B D"], Float[Tensor, "B D"]]]:
    """Average the past of each channel, weights by keys that fade: RWKV's time mixing.

    y_t = σ(r_t) ⊙ (Σ_{s<t} α_ts v_s + e^{u + k_t} v_t) / (Σ_{s<t} α_ts + e^{u + k_t}),
    α_ts = e^{k_s - (t - 1 - s) w}      (Peng et al. 2023, §3.1.2 and §3.1.3)

    However large the keys are, the result is finite.

    Args:
        R: receptances, before σ.
        K, V: keys and values.
        w: how fast each channel forgets, positive.
        u: what the key of the present step gets in place of a decay.
        state: of the steps s ≤ 0, the mean of their values, weighed by α_1s, and log Σ_s α_1s;
            not changed in place. Zeros and -∞ when None: there are no such steps.
    Returns:
        The outputs y_1 … y_T, and the state with which step T + 1 begins.
    """
    if state is None:
        mean, log_weight = torch.zeros_like(K[:, 0]), torch.full_like(K[:, 0], -math.inf)
    else:
        mean, log_weight = state
    outputs = []
    for t in range(K.shape[1]):
        k, v = K[:, t], V[:, t]
        now = torch.sigmoid(u + k - log_weight)  # the share of the present step
        outputs.append(torch.sigmoid(R[:, t]) * (mean + now * (v - mean)))
        faded = log_weight - w
        mean = mean + torch.sigmoid(k - faded) * (v - mean)
        log_weight = torch.logaddexp(faded, k)
    return torch.stack(outputs, dim=1), (mean, log_weight)


def chunked_scan_fault() -> tuple[str, tuple[Tensor, ...]]:
    """Say what is wrong with the black box of `chunked_scan`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `chunked_scan` does.
    """
    Q, K, V = torch.ones(1, 1, 2, 1), torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1)
    log_decay = torch.full((1, 1, 2), -math.log(2))  # half of S is left after each step
    S = torch.ones(1, 1, 1, 1)  # it is read as 1/2 and 1/4, in the box as 1 and 1/2
    return "E", (Q, K, V, log_decay, S)
