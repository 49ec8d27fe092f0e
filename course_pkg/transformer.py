"""The transformer of Vaswani et al. 2017: its block, its encoder and decoder, and how to train it.

Shapes: B sentences, N source words, M target words, V words of a language; D features, H heads,
D_ff features inside a feed-forward network. Masks are boolean: True = may attend.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from course_pkg.attention import MultiHeadAttention, causal_mask, padding_mask
from course_pkg.data.translation import BOS, EOS, PAD
from course_pkg.positions import sinusoidal_positions


def layer_norm(
    X: Float[Tensor, "... D"],
    gain: Float[Tensor, "D"],
    bias: Float[Tensor, "D"],
    eps: float = 1e-5,
) -> Float[Tensor, "... D"]:
    """Bring every vector to mean 0 and variance 1 over its own features, then stretch and shift.

    μ = 1/D Σ_k x_k,   σ² = 1/D Σ_k (x_k - μ)²,   y = gain ⊙ (x - μ) / √(σ² + ε) + bias

    (Ba et al. 2016). Vectors of other positions or other sentences play no part.

    Args:
        X: the vectors.
        gain, bias: learned, one number for each feature.
        eps: ε, so that a vector of equal numbers is not divided by zero.
    Returns:
        The normalised vectors.
    """
    mean = X.mean(dim=-1, keepdim=True)
    variance = (X - mean).square().mean(dim=-1, keepdim=True)  # (..., 1)
    return gain * (X - mean) / torch.sqrt(variance + eps) + bias


class FeedForward(nn.Module):
    """Transform every vector on its own, by two products with a ReLU between them.

    Parameters: W_1 (D, D_ff) and W_2 (D_ff, D), drawn from N(0, 1/rows); b_1 (D_ff) and b_2 (D),
    which start at zero.

    Args:
        D: size of the vectors.
        D_ff: size in the middle; 4 D when None.
    """

    def __init__(self, D: int, D_ff: int | None = None):
        super().__init__()
        D_ff = 4 * D if D_ff is None else D_ff
        self.W_1 = nn.Parameter(torch.randn(D, D_ff) / math.sqrt(D))
        self.b_1 = nn.Parameter(torch.zeros(D_ff))
        self.W_2 = nn.Parameter(torch.randn(D_ff, D) / math.sqrt(D_ff))
        self.b_2 = nn.Parameter(torch.zeros(D))

    def forward(self, X: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Compute max(0, X W_1 + b_1) W_2 + b_2      (Vaswani et al. 2017, eq. 2).

        Args:
            X: the vectors.
        Returns:
            One vector for each, of the same size.
        """
        ### BEGIN SOLUTION
        return torch.relu(X @ self.W_1 + self.b_1) @ self.W_2 + self.b_2
        ### END SOLUTION


class EncoderLayer(nn.Module):
    """Let the vectors look at each other, then let each think for itself.

    Parts: attention (MultiHeadAttention with biases), feed_forward (FeedForward), and for layer
    norm number n = 0, 1 row n of gains and of biases, both (2, D); they start at one and zero.

    Args:
        D: size of the vectors.
        H: heads.
        D_ff: size in the middle of the feed-forward network; 4 D when None.
        pre_norm: whether to normalise what goes into a part (Xiong et al. 2020, pre-LN), and not
            what comes out of the sum (Vaswani et al. 2017, post-LN).
    """

    def __init__(self, D: int, H: int, D_ff: int | None = None, pre_norm: bool = False):
        super().__init__()
        self.attention = MultiHeadAttention(D, H, bias=True)
        self.feed_forward = FeedForward(D, D_ff)
        self.gains = nn.Parameter(torch.ones(2, D))
        self.biases = nn.Parameter(torch.zeros(2, D))
        self.pre_norm = pre_norm

    def forward(
        self, X: Float[Tensor, "B N D"], mask: Bool[Tensor, "... N N"] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Apply both parts, each with a residual connection and a layer norm.

        post-LN:  X ← LN_0(X + attention(X)),   X ← LN_1(X + feed_forward(X))
        pre-LN:   X ← X + attention(LN_0(X)),   X ← X + feed_forward(LN_1(X))

        Args:
            X: the vectors; they are not changed in place.
            mask: what may be attended to, of a shape that broadcasts to (B, N, N).
        Returns:
            The new vectors.
        """
        ### BEGIN SOLUTION
        if self.pre_norm:
            X = X + self.attention(layer_norm(X, self.gains[0], self.biases[0]), mask=mask)
            return X + self.feed_forward(layer_norm(X, self.gains[1], self.biases[1]))
        X = layer_norm(X + self.attention(X, mask=mask), self.gains[0], self.biases[0])
        return layer_norm(X + self.feed_forward(X), self.gains[1], self.biases[1])
        ### END SOLUTION


class DecoderLayer(nn.Module):
    """Look at what has been written, then at the source, then think.

    Parts: self_attention and cross_attention (MultiHeadAttention with biases), feed_forward
    (FeedForward), and for layer norm number n = 0, 1, 2 row n of gains and of biases, both (3, D).

    Args:
        D: size of the vectors.
        H: heads.
        D_ff: size in the middle of the feed-forward network; 4 D when None.
        pre_norm: whether to normalise what goes into a part, and not what comes out of the sum.
    """

    def __init__(self, D: int, H: int, D_ff: int | None = None, pre_norm: bool = False):
        super().__init__()
        self.self_attention = MultiHeadAttention(D, H, bias=True)
        self.cross_attention = MultiHeadAttention(D, H, bias=True)
        self.feed_forward = FeedForward(D, D_ff)
        self.gains = nn.Parameter(torch.ones(3, D))
        self.biases = nn.Parameter(torch.zeros(3, D))
        self.pre_norm = pre_norm

    def forward(
        self,
        Y: Float[Tensor, "B M D"],
        memory: Float[Tensor, "B N D"],
        mask: Bool[Tensor, "... M M"] | None = None,
        memory_mask: Bool[Tensor, "... M N"] | None = None,
    ) -> Float[Tensor, "B M D"]:
        """Apply the three parts, each with a residual connection and a layer norm.

        post-LN:  Y ← LN_0(Y + self_attention(Y)),   Y ← LN_1(Y + cross_attention(Y, memory)),
                  Y ← LN_2(Y + feed_forward(Y))
        pre-LN:   Y ← Y + self_attention(LN_0(Y)),   Y ← Y + cross_attention(LN_1(Y), memory),
                  Y ← Y + feed_forward(LN_2(Y))

        Args:
            Y: the vectors of the target; they are not changed in place.
            memory: the encoder's output, which is used as it is.
            mask: which positions of the target each one may attend to, usually the causal mask, of
                a shape that broadcasts to (B, M, M).
            memory_mask: which words of the source, of a shape that broadcasts to (B, M, N).
        Returns:
            The new vectors of the target.
        """
        ### BEGIN SOLUTION
        parts = [
            lambda Y: self.self_attention(Y, mask=mask),
            lambda Y: self.cross_attention(Y, memory, memory_mask),
            self.feed_forward,
        ]
        for n, part in enumerate(parts):
            if self.pre_norm:
                Y = Y + part(layer_norm(Y, self.gains[n], self.biases[n]))
            else:
                Y = layer_norm(Y + part(Y), self.gains[n], self.biases[n])
        return Y
        ### END SOLUTION


class Transformer(nn.Module):
    """Translate: an encoder reads the source, a decoder writes the target word by word.

    Parts: source_table (V_source, D), target_table and output_table (V_target, D), drawn from
    N(0, 1/D); encoder and decoder, lists of layers; and in a pre-LN model, whose last sums are not
    normalised yet, row 0 of gains and of biases, both (2, D), for the encoder's output and row 1
    for the decoder's.

    Args:
        V_source, V_target: words of the two languages.
        D: size of all vectors, an even number.
        H: heads.
        layers: layers of the encoder, and as many of the decoder.
        D_ff: size in the middle of the feed-forward networks; 4 D when None.
        pre_norm: whether the layers are pre-LN.
        shared: whether one table serves as all three, for languages with a common vocabulary.
    Raises:
        ValueError: shared, and V_source and V_target differ.
    """

    def __init__(
        self,
        V_source: int,
        V_target: int,
        D: int,
        H: int,
        layers: int,
        D_ff: int | None = None,
        pre_norm: bool = False,
        shared: bool = False,
    ):
        super().__init__()
        if shared and V_source != V_target:
            raise ValueError(f"one table cannot have {V_source} rows and {V_target} rows")
        self.D = D
        self.source_table = nn.Parameter(torch.randn(V_source, D) / math.sqrt(D))
        if shared:
            self.target_table = self.output_table = self.source_table
        else:
            self.target_table = nn.Parameter(torch.randn(V_target, D) / math.sqrt(D))
            self.output_table = nn.Parameter(torch.randn(V_target, D) / math.sqrt(D))
        self.encoder = nn.ModuleList(EncoderLayer(D, H, D_ff, pre_norm) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(D, H, D_ff, pre_norm) for _ in range(layers))
        self.pre_norm = pre_norm
        if pre_norm:
            self.gains = nn.Parameter(torch.ones(2, D))
            self.biases = nn.Parameter(torch.zeros(2, D))

    def embed(
        self, words: Int[Tensor, "B T"], table: Float[Tensor, "V D"]
    ) -> Float[Tensor, "B T D"]:
        """Look words up, and say where they stand: √D · row of the table + sinusoid.

        Args:
            words: the words, as numbers.
            table: one row for each word.
        Returns:
            The vectors (Vaswani et al. 2017, §3.4 and §3.5).
        """
        ### BEGIN SOLUTION
        positions = sinusoidal_positions(words.shape[1], self.D).to(table)
        return math.sqrt(self.D) * table[words] + positions
        ### END SOLUTION

    def encode(
        self, X: Int[Tensor, "B N"], lengths: Int[Tensor, "B"]
    ) -> tuple[Float[Tensor, "B N D"], Bool[Tensor, "B 1 N"]]:
        """Read a batch of sentences.

        Args:
            X: the words, as numbers; what comes after a sentence's end is padding.
            lengths: how many words each sentence has, from 1 to N.
        Returns:
            The memory, one vector for each word, and a mask that forbids the padding.
        """
        ### BEGIN SOLUTION
        mask = padding_mask(lengths, X.shape[1])
        X = self.embed(X, self.source_table)
        for layer in self.encoder:
            X = layer(X, mask)
        if self.pre_norm:
            X = layer_norm(X, self.gains[0], self.biases[0])
        return X, mask
        ### END SOLUTION

    def decode(
        self,
        Y: Int[Tensor, "B M"],
        memory: Float[Tensor, "B N D"],
        memory_mask: Bool[Tensor, "B 1 N"],
    ) -> Float[Tensor, "B M V_target"]:
        """Predict the word that follows each word of the translations.

        Args:
            Y: the words so far, beginning with BOS.
            memory, memory_mask: what `encode` returned.
        Returns:
            The logits, products with the rows of output_table. Those at position t are computed
            from words 0 … t of Y alone.
        """
        ### BEGIN SOLUTION
        mask = causal_mask(Y.shape[1]).to(Y.device)
        Y = self.embed(Y, self.target_table)
        for layer in self.decoder:
            Y = layer(Y, memory, mask, memory_mask)
        if self.pre_norm:
            Y = layer_norm(Y, self.gains[1], self.biases[1])
        return Y @ self.output_table.T
        ### END SOLUTION

    def forward(
        self, X: Int[Tensor, "B N"], lengths: Int[Tensor, "B"], Y: Int[Tensor, "B M"]
    ) -> Float[Tensor, "B M V_target"]:
        """Predict all words of given translations at once (teacher forcing).

        Args:
            X, lengths: the sources, as for `encode`.
            Y: the translations, beginning with BOS.
        Returns:
            The logits of the word after each word of Y.
        """
        ### BEGIN SOLUTION
        return self.decode(Y, *self.encode(X, lengths))
        ### END SOLUTION


def count_parameters(
    V_source: int,
    V_target: int,
    D: int,
    layers: int,
    D_ff: int | None = None,
    pre_norm: bool = False,
    shared: bool = False,
) -> dict[str, int]:
    """Count the parameters of a Transformer without building it.

    Args:
        V_source, V_target, D, layers, D_ff, pre_norm, shared: as for Transformer.
    Returns:
        How many numbers are learned in its "tables", "attention", "feed_forward" and "norms".
    """
    D_ff = 4 * D if D_ff is None else D_ff
    return {
        "tables": V_source * D if shared else (V_source + 2 * V_target) * D,
        "attention": 3 * layers * 4 * (D + 1) * D,
        "feed_forward": 2 * layers * ((D + 1) * D_ff + (D_ff + 1) * D),
        "norms": (5 * layers + 2 * pre_norm) * 2 * D,
    }


def noam_lr(step: int, D: int, warmup: int = 4000) -> float:
    """Compute the learning rate of one training step: up linearly, then down as 1 / √step.

    D^(-1/2) · min(step^(-1/2), step · warmup^(-3/2))      (Vaswani et al. 2017, eq. 3)

    Args:
        step: which step, from 1.
        D: size of the model's vectors.
        warmup: the step at which the rate is highest.
    Returns:
        The learning rate.
    Raises:
        ValueError: step or warmup is less than 1.
    """
    if step < 1 or warmup < 1:
        raise ValueError(f"step and warmup must be at least 1, got {step} and {warmup}")
    return D**-0.5 * min(step**-0.5, step * warmup**-1.5)


def label_smoothing_loss(
    logits: Float[Tensor, "... V"],
    targets: Int[Tensor, "..."],
    smoothing: float = 0.1,
    ignore: int = PAD,
) -> Float[Tensor, ""]:
    """Compute the cross-entropy to targets that leave a little probability to every word.

    q_k = (1 - ε_ls) [k = target] + ε_ls / V,   loss = mean of -Σ_k q_k log p_k
    (Szegedy et al. 2016, §7)

    Args:
        logits: the scores of all V words.
        targets: the right words.
        smoothing: ε_ls, at least 0 and less than 1.
        ignore: the mean is over the places whose target is not this word, at least one.
    Returns:
        The loss, in nats.
    Raises:
        ValueError: smoothing is negative, or 1 or more.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and less than 1, got {smoothing}")
    log_p = torch.log_softmax(logits, dim=-1)  # (..., V)
    right = log_p.gather(-1, targets[..., None])[..., 0]
    losses = -(1 - smoothing) * right - smoothing * log_p.mean(dim=-1)
    return losses[targets != ignore].mean()


def greedy_translate(
    model: Transformer, X: Int[Tensor, "B N"], lengths: Int[Tensor, "B"], max_length: int
) -> Int[Tensor, "B T"]:
    """Translate by taking the most probable word at every step, and reading it with the rest.

    Args:
        model: has `encode` and `decode`, as Transformer has.
        X, lengths: the sources, as for `encode`.
        max_length: how many words to write at most, EOS included.
    Returns:
        The words without BOS; after a sentence's EOS comes PAD. T is the length of the longest
        translation: no step is taken when all sentences have ended.
    """
    memory, mask = model.encode(X, lengths)
    Y = X.new_full((len(X), 1), BOS)
    ended = X.new_zeros(len(X), dtype=torch.bool)
    for _ in range(max_length):
        y = model.decode(Y, memory, mask)[:, -1].argmax(dim=1)
        y = torch.where(ended, PAD, y)
        ended = ended | (y == EOS)
        Y = torch.cat([Y, y[:, None]], dim=1)
        if ended.all():
            break
    return Y[:, 1:]


def layer_norm_fault() -> tuple[str, tuple[Tensor, Tensor, Tensor]]:
    """Say what is wrong with the black box of `layer_norm`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what `layer_norm`
        does.
    """
    X = torch.tensor([[1.0, 3.0]])  # normalised (-1, 1), but for ε
    gain, bias = torch.tensor([2.0, 2.0]), torch.tensor([1.0, 1.0])
    return "E", (X, gain, bias)  # (-1, 3), or (0, 4) in the box: the gain stretches the bias too
