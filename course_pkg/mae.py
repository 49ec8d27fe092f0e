"""Masked autoencoders: hide most of an image, and learn by painting it in.

Shapes: B images of C channels, S_h × S_w pixels, cut into N patches of P × P pixels and M = P·P·C
numbers each; n of the patches are visible; D features in the encoder, D_dec in the decoder; H
heads, L layers.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.positions import sinusoidal_positions
from course_pkg.vit import PatchEmbedding, ViTLayer


def grid_positions(h: int, w: int, D: int, base: float = 30.0) -> Float[Tensor, "h*w D"]:
    """Encode the places of a grid: half of the numbers give the row, half the column.

    row i · w + j = [sinusoidal_positions of i; sinusoidal_positions of j], D/2 numbers each
    (He et al. 2022 place patches in this way, with a base of 10 000)

    Args:
        h, w: how many rows and columns the grid has.
        D: size of the encodings, divisible by 4.
        base: how much slower the slowest clocks are than the fastest.
    Returns:
        The encodings, row 0 of the grid from left to right first.
    Raises:
        ValueError: D is not divisible by 4.
    """
    if D % 4:
        raise ValueError(f"D must be divisible by 4, a sine and a cosine for each axis, got {D}")
    rows = sinusoidal_positions(h, D // 2, base)[:, None].expand(h, w, -1)  # (h, w, D/2)
    columns = sinusoidal_positions(w, D // 2, base).expand(h, w, -1)  # (h, w, D/2)
    return torch.cat([rows, columns], dim=2).reshape(h * w, D)


def random_masking(
    noise: Float[Tensor, "B N"], ratio: float = 0.75
) -> tuple[Int[Tensor, "B n"], Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Choose which patches of each image stay visible, each image on its own.

    The patches of an image are shuffled by sorting its noise; the first n = ⌊N (1 - ratio)⌋ of
    that order stay, the others are masked      (He et al. 2022, §3). Rounding errors do not count:
    with a ratio of 0.9, one of ten patches stays.

    Args:
        noise: a random number for each patch; those with the smallest stay visible.
        ratio: the share of the patches that are masked.
    Returns:
        keep: the numbers of the visible patches, the smallest noise first.
        restore: where each patch stands in the shuffled order, so that if `shuffled` holds the
            patches in that order, shuffled[b, restore[b, i]] is patch i.
        masked: whether patch i is masked.
    Raises:
        ValueError: no patch stays visible, or the ratio is negative.
    """
    N = noise.shape[1]
    n = int(N * (1 - ratio) + 1e-6)  # 10 * (1 - 0.9) is 0.9999999999999998
    if ratio < 0:
        raise ValueError(f"the ratio must be at least 0, got {ratio}")
    if n < 1:
        raise ValueError(f"a ratio of {ratio} leaves none of {N} patches visible")
    order = noise.argsort(dim=1)  # (B, N): the patch at each place of the shuffled order
    restore = order.argsort(dim=1)  # (B, N): the place of each patch
    return order[:, :n], restore, restore >= n


class MAEEncoder(nn.Module):
    """A ViT that sees only some of an image's patches.

    Parts: patches (PatchEmbedding); cls (D), drawn from N(0, 0.02²); layers, L ViTLayers;
    norm, a layer norm. The positions (1 + N, D) are not learned: zeros for cls, then twice
    `grid_positions`.

    Args:
        size: height and width of the images, in pixels.
        P: side of a patch, in pixels; divides both.
        C: channels of the images.
        D: size of the vectors.
        H: heads of each layer.
        L: layers.
    """

    def __init__(self, size: tuple[int, int], P: int, C: int, D: int, H: int, L: int):
        super().__init__()
        positions = 2 * grid_positions(size[0] // P, size[1] // P, D)
        self.patches = PatchEmbedding(C, P, D)
        self.cls = nn.Parameter(0.02 * torch.randn(D))
        self.register_buffer("positions", torch.cat([torch.zeros(1, D), positions]))
        self.layers = nn.ModuleList(ViTLayer(D, H) for _ in range(L))
        self.norm = nn.LayerNorm(D, eps=1e-6)

    def forward(
        self, images: Float[Tensor, "B C S_h S_w"], keep: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B 1+n D"]:
        """Encode the visible patches: the masked ones never enter the layers.

        X = [cls; the patches in keep], each plus its own position; norm(layers(X))
        (He et al. 2022, §3)

        Args:
            images: the images.
            keep: the numbers of each image's visible patches, in the order in which they are to
                come; all patches, from 0 on, when None.
        Returns:
            The vector of cls, then one for each visible patch.
        """
        ### BEGIN SOLUTION
        X = self.patches(images) + self.positions[1:]  # (B, N, D)
        if keep is not None:
            X = X.gather(1, keep[:, :, None].expand(-1, -1, X.shape[2]))  # (B, n, D)
        cls = (self.cls + self.positions[0]).expand(len(X), 1, -1)  # (B, 1, D)
        X = torch.cat([cls, X], dim=1)
        for layer in self.layers:
            X, _ = layer(X)
        return self.norm(X)
        ### END SOLUTION


class MAEDecoder(nn.Module):
    """A small ViT that predicts every patch from the vectors of the visible ones.

    Parts: embed (nn.Linear, D to D_dec); mask_token (D_dec), drawn from N(0, 0.02²); layers, L
    ViTLayers; norm, a layer norm; head (nn.Linear, D_dec to M). The positions (1 + N, D_dec)
    are not learned: zeros for cls, then twice `grid_positions`.

    Args:
        grid: how many rows and columns of patches an image has, N in all.
        M: how many numbers a patch has.
        D: size of the encoder's vectors.
        D_dec: size of the decoder's own vectors.
        H: heads of each layer.
        L: layers.
    """

    def __init__(self, grid: tuple[int, int], M: int, D: int, D_dec: int, H: int, L: int):
        super().__init__()
        positions = 2 * grid_positions(*grid, D_dec)
        self.embed = nn.Linear(D, D_dec)
        self.mask_token = nn.Parameter(0.02 * torch.randn(D_dec))
        self.register_buffer("positions", torch.cat([torch.zeros(1, D_dec), positions]))
        self.layers = nn.ModuleList(ViTLayer(D_dec, H) for _ in range(L))
        self.norm = nn.LayerNorm(D_dec, eps=1e-6)
        self.head = nn.Linear(D_dec, M)

    def forward(
        self, X: Float[Tensor, "B 1+n D"], restore: Int[Tensor, "B N"]
    ) -> Float[Tensor, "B N M"]:
        """Fill the gaps with mask tokens, bring the patches into their order, and predict.

        The embedded patches, then N - n mask tokens, are the shuffled order; `restore` brings it
        back. Then [cls; patches] + positions, layers, norm and head, and cls is dropped
        (He et al. 2022, §3)

        Args:
            X: what MAEEncoder returns for the visible patches.
            restore: where each patch stands in the shuffled order, as `random_masking` gives it.
        Returns:
            What each patch is predicted to hold, the visible ones too.
        """
        ### BEGIN SOLUTION
        X = self.embed(X)  # (B, 1 + n, D_dec)
        B, N = restore.shape
        missing = self.mask_token.expand(B, 1 + N - X.shape[1], -1)  # (B, N - n, D_dec)
        shuffled = torch.cat([X[:, 1:], missing], dim=1)  # (B, N, D_dec)
        patches = shuffled.gather(1, restore[:, :, None].expand(-1, -1, X.shape[2]))
        X = torch.cat([X[:, :1], patches], dim=1) + self.positions
        for layer in self.layers:
            X, _ = layer(X)
        return self.head(self.norm(X))[:, 1:]
        ### END SOLUTION


def mae_loss(
    predicted: Float[Tensor, "B N M"],
    patches: Float[Tensor, "B N M"],
    masked: Bool[Tensor, "B N"],
    normalise: bool = True,
) -> Float[Tensor, ""]:
    """Compute the mean squared error on the masked patches, and on no other.

    The target of a patch is its numbers minus their mean, divided by √(variance + 10⁻⁶), where the
    variance is divided by M - 1; or its numbers as they are      (He et al. 2022, §3)

    Args:
        predicted: what the decoder predicts.
        patches: the patches of the images, as `patchify` gives them.
        masked: whether a patch was masked.
        normalise: whether each patch is normalised before it is compared.
    Returns:
        The mean over all numbers of all masked patches.
    """
    if normalise:
        mean, variance = patches.mean(dim=2, keepdim=True), patches.var(dim=2, keepdim=True)
        patches = (patches - mean) / (variance + 1e-6).sqrt()
    error = ((predicted - patches) ** 2).mean(dim=2)  # (B, N)
    return error[masked].mean()


def linear_probe(
    features: Float[Tensor, "labelled D"],
    labels: Int[Tensor, "labelled"],
    new: Float[Tensor, "new D"],
    classes: int,
    penalty: float = 0.01,
) -> Float[Tensor, "new classes"]:
    """Classify by a linear map of frozen features, fitted to a few labelled ones.

    x̂ = (x - mean) / deviation, with mean and standard deviation of each of the D features over
    the labelled rows (divided by their number less one; a feature that never varies is divided by
    1). Then W, b minimise  mean of -log softmax(x̂ W + b)[label] + penalty / 2 · ‖W‖²,  a convex
    problem with one solution, found by L-BFGS from W = 0

    Args:
        features: what the frozen encoder says of the labelled images.
        labels: the numbers of their classes; every class occurs.
        new: what it says of the images to classify.
        classes: how many classes there are.
        penalty: how strongly large weights are held back; b is free.
    Returns:
        softmax(x̂ W + b) of the new rows: the classes' probabilities.
    """
    mean, deviation = features.mean(dim=0), features.std(dim=0)
    deviation = torch.where(deviation > 0, deviation, 1)
    X, X_new = (features - mean) / deviation, (new - mean) / deviation
    W = X.new_zeros(X.shape[1], classes).requires_grad_()
    b = X.new_zeros(classes).requires_grad_()
    optimizer = torch.optim.LBFGS([W, b], max_iter=200, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(X @ W + b, labels) + penalty / 2 * (W**2).sum()
        loss.backward()
        return loss

    optimizer.step(objective)
    return (X_new @ W + b).softmax(dim=1).detach()


def random_masking_fault() -> tuple[str, tuple[Float[Tensor, "B N"], float]]:
    """Say what is wrong with the black box of `random_masking`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `random_masking` does. No two patches of an image have the same noise.
    """
    noise, ratio = torch.arange(20.0)[None], 0.9  # 20 (1 - 0.9) is 1.9999999999999996: one stays
    return "B", (noise, ratio)
