"""What a trained model has learned, and how to know that it is so.

Shapes: B sequences, T positions, D features, V tokens in the vocabulary, H heads of size D_h; N
things, whatever they are. A head is named by its layer and its number, both counted from 0.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.mae import linear_probe


def record(
    model: nn.Module,
    tokens: Int[Tensor, "B T"],
    names: Sequence[str] = (),
    changes: dict[str, Callable[[Tensor], Tensor]] | None = None,
) -> tuple[Float[Tensor, "B T V"], dict[str, Tensor]]:
    """Run a model, and keep what some of its modules return; or change what they return.

    A change is a function that gets what the module returns and gives what takes its place. What is
    kept of a module is what the rest of the model gets: after its change, if it has one.

    Args:
        model: the model; afterwards it is as before, without hooks, also where it raises an error.
        tokens: what it reads.
        names: which modules' outputs to keep, by the names in `model.named_modules()`.
        changes: what to change, by the same names.
    Returns:
        The logits, and what was kept, by name; gradients go back through both.
    Raises:
        ValueError: the model has no module of such a name, in names or in changes; nothing is run.
    """
    modules, changes = dict(model.named_modules()), changes or {}
    if unknown := sorted({*names, *changes} - set(modules)):
        raise ValueError(f"the model has no module called {', '.join(unknown)}")
    kept, hooks = {}, []

    def change(function: Callable) -> Callable:
        return lambda module, inputs, output: function(output)

    def keep(name: str) -> Callable:
        return lambda module, inputs, output: kept.update({name: output})

    try:
        for name, function in changes.items():
            hooks.append(modules[name].register_forward_hook(change(function)))
        for name in names:
            hooks.append(modules[name].register_forward_hook(keep(name)))
        return model(tokens), kept
    finally:
        for hook in hooks:
            hook.remove()


def logit_lens(
    X: Float[Tensor, "... D"],
    weight: Float[Tensor, "D"],
    W_head: Float[Tensor, "D V"],
    eps: float = 1e-5,
) -> Float[Tensor, "... V"]:
    """Say what a model would predict if its layers ended here.

    y_i = weight_i x_i / √(Σ_j x_j² / D + ε),   log p = log softmax(y W_head)
    (nostalgebraist 2020; the norm is that of `RMSNorm`)

    Args:
        X: vectors of the residual stream, after any layer.
        weight: the weight of the model's last norm.
        W_head: what makes logits of normalised vectors.
        eps: ε of the last norm.
    Returns:
        The logarithms of the next token's probabilities.
    """
    scale = torch.rsqrt(X.square().mean(dim=-1, keepdim=True) + eps)  # (..., 1)
    return torch.log_softmax(X * scale * weight @ W_head, dim=-1)


def direct_logit_attribution(
    parts: Float[Tensor, "N B T D"],
    weight: Float[Tensor, "D"],
    W_head: Float[Tensor, "D V"],
    tokens: Int[Tensor, "B T"],
    eps: float = 1e-5,
) -> Float[Tensor, "N B T"]:
    """Say how much each part of the residual stream adds to a token's logit.

    The last vector is a sum of parts, x = Σ_n x_n: the embedding and what every head and every
    feed-forward network has added. With the scale of the last norm held fixed, so is the logit:
    part n adds  x_n · (weight ⊙ W_head[:, token]) / √(Σ_j x_j² / D + ε)
    (Elhage et al. 2021; the norm is that of `RMSNorm`)

    Args:
        parts: the parts, which sum to the vectors that the last norm gets.
        weight: the weight of the model's last norm.
        W_head: what makes logits of normalised vectors.
        tokens: for each position, the token whose logit is in question.
        eps: ε of the last norm.
    Returns:
        What each part adds; the sum over the N parts is the logit.
    """
    scale = torch.rsqrt(parts.sum(dim=0).square().mean(dim=-1, keepdim=True) + eps)  # (B, T, 1)
    direction = weight * W_head.T[tokens]  # (B, T, D)
    return (parts * (scale * direction)).sum(dim=-1)


def previous_token_score(A: Float[Tensor, "... T T"]) -> Float[Tensor, "..."]:
    """Say how much heads attend to the position just before.

    s = mean over t = 1 … T-1 of A[t, t-1]; position 0 has none before it
    (Olsson et al. 2022)

    Args:
        A: weights, a row for each position that attends; axes before the last two are a batch.
    Returns:
        The scores, from 0 to 1.
    Raises:
        ValueError: T is less than 2.
    """
    if A.shape[-1] < 2:
        raise ValueError(f"a position before needs two of them, got {A.shape[-1]}")
    return A.diagonal(-1, -2, -1).mean(dim=-1)


def induction_score(A: Float[Tensor, "... T T"], period: int) -> Float[Tensor, "..."]:
    """Say how much heads attend to what came next the last time that the present token was there.

    In a text that repeats itself after `period` tokens, t - period had the same token as t:
    s = mean over t = period … T-1 of A[t, t - period + 1]      (Olsson et al. 2022)

    Args:
        A: weights of such a text; axes before the last two are a batch.
        period: after how many positions the text repeats itself.
    Returns:
        The scores, from 0 to 1.
    Raises:
        ValueError: period is less than 1, or no position has one a period before it.
    """
    T = A.shape[-1]
    if not 1 <= period < T:
        raise ValueError(f"a period must lie in 1 … {T - 1}, got {period}")
    return A.diagonal(1 - period, -2, -1)[..., 1:].mean(dim=-1)  # its first query is period - 1


def ablate(
    model: nn.Module,
    tokens: Int[Tensor, "B T"],
    heads: Sequence[tuple[int, int]],
    how: str = "mean",
) -> Float[Tensor, "B T V"]:
    """Run a model without some heads: something else stands in place of what they return.

    The module "blocks.{layer}.attention.heads" returns (B, T, H, D_h). All replacements are taken
    from one run of the whole model, in which no head is missing.

    Args:
        model: a model of `course_pkg.inference.opened`.
        tokens: what it reads.
        heads: layer and number of each head to replace.
        how: "zero"; "mean", of the head's outputs over all sequences and positions; or "resampled",
            the head's outputs for the sequence before, and for the first those for the last.
    Returns:
        The logits.
    Raises:
        ValueError: how is another word, or it is "resampled" and there is only one sequence.
    """
    substitutes = {
        "zero": torch.zeros_like,
        "mean": lambda z: z.mean(dim=(0, 1)).expand_as(z),
        "resampled": lambda z: z.roll(1, dims=0),
    }
    if how not in substitutes:
        raise ValueError(f"how must be one of {', '.join(substitutes)}, got {how!r}")
    if how == "resampled" and len(tokens) < 2:
        raise ValueError("a head's outputs for another sequence need two sequences")
    names = {layer: f"blocks.{layer}.attention.heads" for layer, _ in heads}
    _, whole = record(model, tokens, [*names.values()])

    def replace(layer: int) -> Callable:
        missing = [head for place, head in heads if place == layer]

        def change(z: Tensor) -> Tensor:
            z = z.clone()
            z[:, :, missing] = substitutes[how](whole[names[layer]])[:, :, missing]
            return z

        return change

    return record(model, tokens, changes={names[layer]: replace(layer) for layer in names})[0]


def patch_activation(
    model: nn.Module,
    tokens: Int[Tensor, "B T"],
    other: Int[Tensor, "B T"],
    name: str,
    where: Bool[Tensor, "..."],
) -> Float[Tensor, "B T V"]:
    """Run a model on one text, with a part of what a module has made of another.

    Args:
        model: the model.
        tokens: the text that it reads.
        other: the text that the patch is from.
        name: which module's output is patched, as in `record`.
        where: True where the patch goes; what can be broadcast to the module's output. For one
            that returns (B, T, H, D_h), a mask of (T, H, 1) names positions and heads.
    Returns:
        The logits for tokens.
    Raises:
        ValueError: the two texts differ in shape.
    """
    if tokens.shape != other.shape:
        raise ValueError(f"texts of {tuple(tokens.shape)} and {tuple(other.shape)} do not match")
    _, found = record(model, other, [name])
    return record(model, tokens, changes={name: lambda out: torch.where(where, found[name], out)})[
        0
    ]


def path_patch(
    model: nn.Module,
    tokens: Int[Tensor, "B T"],
    other: Int[Tensor, "B T"],
    sender: tuple[int, int],
    receiver: tuple[int, int],
    into: str = "keys",
) -> Float[Tensor, "B T V"]:
    """Change what one head tells another, along the direct path between them and along no other.

    With z and z' the sender's outputs for tokens and for other, x what comes into the receiver's
    layer for tokens, and W_O the sender's D_h rows of its layer's:

    1. the receiver's queries, keys or values are made of norm_1(x + (z' - z) W_O), the other two of
       norm_1(x), and what the receiver then returns is kept;
    2. the model reads tokens, and the receiver returns that. Later layers see no other change.

    (Wang et al. 2023, §3.1; here, unlike there, the layers between the two keep their values for
    tokens, feed-forward networks included)

    Args:
        model: a model of `course_pkg.inference.opened`; its blocks have norm_1 and attention.
        tokens: the text that it reads.
        other: the text that the sender's other output is from.
        sender: layer and number of the head that sends.
        receiver: layer and number of the head that receives.
        into: "queries", "keys" or "values": the module "for_…" of the receiver's attention.
    Returns:
        The logits for tokens.
    Raises:
        ValueError: the sender's layer is not before the receiver's, or into is another word.
    """
    (layer, head), (later, reader) = sender, receiver
    if layer >= later:
        raise ValueError(f"a head of layer {layer} sends nothing to one of layer {later}")
    sent, stream = f"blocks.{layer}.attention.heads", f"blocks.{later - 1}"
    entry, returned = f"blocks.{later}.attention.for_{into}", f"blocks.{later}.attention.heads"
    _, here = record(model, tokens, [sent, stream])
    _, there = record(model, other, [sent])
    z = (there[sent] - here[sent])[:, :, head]  # (B, T, D_h)
    W_O = model.blocks[layer].attention.W_O.unflatten(0, (-1, z.shape[-1]))[head]  # (D_h, D)
    arriving = model.blocks[later].norm_1(here[stream] + z @ W_O)
    _, reached = record(model, tokens, [returned], {entry: lambda X: arriving})

    def swap(output: Tensor) -> Tensor:
        output = output.clone()
        output[:, :, reader] = reached[returned][:, :, reader]
        return output

    return record(model, tokens, changes={returned: swap})[0]


def selectivity(
    features: Float[Tensor, "N D"],
    labels: Int[Tensor, "N"],
    types: Int[Tensor, "N"],
    held_out: Bool[Tensor, "N"],
    classes: int,
    generator: torch.Generator,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Fit a linear probe to labels, and another to labels that mean nothing.

    In the control task each type of token has a class of its own, drawn once, with replacement,
    from all the labels, so that classes are about as frequent as among these; wherever the type
    occurs, that is its label. A probe can only memorise it. The difference of the two accuracies is
    the probe's selectivity      (Hewitt & Liang 2019)

    Both probes are `linear_probe`, fitted to the rows that are not held out, and both are scored on
    those that are.

    Args:
        features: the vectors to read from, one for each token.
        labels: what is to be read, 0 … classes - 1.
        types: the token's number in the vocabulary.
        held_out: the rows for scoring. A class that none of the others has is never guessed.
        classes: how many classes there are.
        generator: draws the control task; on the CPU.
    Returns:
        The accuracy for labels, and the accuracy for the control task.
    Raises:
        ValueError: no row is held out, or every one.
    """
    if held_out.all() or not held_out.any():
        raise ValueError("some rows must be held out, and some not")
    chosen = torch.randint(len(labels), (int(types.max()) + 1,), generator=generator)
    drawn = labels[chosen.to(labels.device)]  # a class for each type

    def accuracy(y: Int[Tensor, "N"]) -> Float[Tensor, ""]:
        fitted = features[~held_out], y[~held_out]
        guesses = linear_probe(*fitted, features[held_out], classes).argmax(dim=1)
        return (guesses == y[held_out]).to(features.dtype).mean()

    return accuracy(labels), accuracy(drawn[types])


def steering_vector(
    positive: Float[Tensor, "N_1 D"],
    negative: Float[Tensor, "N_2 D"],
    controls: int,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "D"], Float[Tensor, "controls D"]]:
    """Find a direction from one kind of text to another, and random ones to compare it with.

    v = mean of the positive vectors - mean of the negative ones      (Rimsky et al. 2024, for pairs
    of prompts); the controls are drawn uniformly from all vectors of v's length, each for itself

    Args:
        positive: vectors of a layer where the text is of the wanted kind.
        negative: those where it is not.
        controls: how many random directions to draw.
        generator: draws them; on the CPU.
    Returns:
        v, and the controls, one in a row, in v's dtype.
    """
    v = positive.mean(dim=0) - negative.mean(dim=0)
    drawn = torch.randn(controls, len(v), generator=generator, dtype=v.dtype).to(v.device)
    return v, functional.normalize(drawn, dim=1) * v.norm()


class SparseAutoencoder(nn.Module):
    """Write vectors as sums of a few directions out of many.

    Parameters: W_dec (M, D), rows drawn uniformly from all directions, of length 1; W_enc (D, M),
    which starts as W_decᵀ; b_enc (M) and b_dec (D), which start at zero.

    Args:
        D: size of the vectors.
        M: how many directions there are.
        k: how many of them a vector may use; as many as it likes when None.
    Raises:
        ValueError: k is less than 1 or more than M.
    """

    def __init__(self, D: int, M: int, k: int | None = None):
        super().__init__()
        ### BEGIN SOLUTION
        if k is not None and not 1 <= k <= M:
            raise ValueError(f"k must lie in 1 … {M}, got {k}")
        self.k = k
        rows = functional.normalize(torch.randn(M, D), dim=1)
        self.W_dec = nn.Parameter(rows)
        self.W_enc = nn.Parameter(rows.T.clone())
        self.b_enc = nn.Parameter(torch.zeros(M))
        self.b_dec = nn.Parameter(torch.zeros(D))
        ### END SOLUTION

    def encode(self, X: Float[Tensor, "... D"]) -> Float[Tensor, "... M"]:
        """Say how much of each direction a vector has.

        f = relu((x - b_dec) W_enc + b_enc)      (Bricken et al. 2023)
        With k, the k largest of each f are kept, and the others become zero (Gao et al. 2024). Of
        equal entries, any may be kept, but never more than k in all.

        Args:
            X: the vectors.
        Returns:
            f, never negative; with k, at most k of its entries are not zero.
        """
        ### BEGIN SOLUTION
        f = torch.relu((X - self.b_dec) @ self.W_enc + self.b_enc)
        if self.k is None:
            return f
        values, places = f.topk(self.k, dim=-1)
        return torch.zeros_like(f).scatter(-1, places, values)
        ### END SOLUTION

    def forward(
        self, X: Float[Tensor, "... D"]
    ) -> tuple[Float[Tensor, "... D"], Float[Tensor, "... M"]]:
        """Encode vectors, and put them together again.

        x̂ = f W_dec + b_dec      (Bricken et al. 2023)

        Args:
            X: the vectors.
        Returns:
            x̂ and f.
        """
        ### BEGIN SOLUTION
        f = self.encode(X)
        return f @ self.W_dec + self.b_dec, f
        ### END SOLUTION

    def loss(self, X: Float[Tensor, "... D"], penalty: float = 0.0) -> Float[Tensor, ""]:
        """Say how badly vectors are put together, and how many directions that takes.

        L = mean over the vectors of ‖x - x̂‖² + penalty Σ_j f_j ‖row j of W_dec‖
        The factor of ‖row j‖ keeps a small f with a long row from being cheaper (Templeton et al.
        2024; Bricken et al. 2023 kept the rows at length 1 instead).

        Args:
            X: the vectors.
            penalty: what a unit of a direction costs.
        Returns:
            L.
        """
        ### BEGIN SOLUTION
        Y, f = self(X)
        return ((X - Y).square().sum(dim=-1) + penalty * f @ self.W_dec.norm(dim=1)).mean()
        ### END SOLUTION


def toy_superposition(
    X: Float[Tensor, "B F"],
    W: Float[Tensor, "F D"],
    b: Float[Tensor, "F"],
    importance: Float[Tensor, "F"],
) -> tuple[Float[Tensor, "B F"], Float[Tensor, ""]]:
    """Compress F features into D dimensions and restore them, and say what that costs.

    h = x W,   x̂ = relu(h Wᵀ + b),   L = mean over the batch of Σ_i importance_i (x_i - x̂_i)²
    (Elhage et al. 2022; row i of W is the direction of feature i)

    Args:
        X: values of the features.
        W: each feature's direction.
        b: a bias for each feature.
        importance: how much an error in each feature counts.
    Returns:
        x̂ of each row, and L.
    """
    Y = torch.relu(X @ W @ W.T + b)
    return Y, (importance * (X - Y).square()).sum(dim=1).mean()


def logit_lens_fault() -> tuple[
    str, tuple[Float[Tensor, "... D"], Float[Tensor, "D"], Float[Tensor, "D V"]]
]:
    """Say what is wrong with the black box of `logit_lens`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what `logit_lens`
        does.
    """
    X, weight, W_head = torch.tensor([[1.0], [3.0]]), torch.ones(1), torch.tensor([[0.0, 1.0]])
    return "C", (X, weight, W_head)  # both are normalised to 1; to 1/√5 and 3/√5 in the box
