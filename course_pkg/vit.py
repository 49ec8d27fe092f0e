"""ViT: cut an image into patches, and let a transformer read them as if they were words.

Shapes: B images of C channels, S_h × S_w pixels; patches of P × P pixels, N of them on a grid of
S_h/P × S_w/P; T tokens, which are the patches and perhaps a class token before them; D features,
H heads, L layers.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.attention import MultiHeadAttention


def patchify(images: Float[Tensor, "B C S_h S_w"], P: int) -> Float[Tensor, "B N P*P*C"]:
    """Cut images into square patches, and write each patch down as one vector.

    The patches come in reading order: row 0 of the grid from left to right, then row 1. Within a
    patch the pixels come in the same order, channels last: the numbers of one pixel are neighbours.
    patches[b, i · S_w/P + j, (p · P + q) · C + c] = images[b, c, i · P + p, j · P + q]
    (Dosovitskiy et al. 2021, §3.1; the order within a patch is that of He et al. 2022)

    Args:
        images: the images.
        P: side of a patch, in pixels.
    Returns:
        The patches, N = S_h/P · S_w/P for each image.
    Raises:
        ValueError: P does not divide both sides of the images.
    """
    B, C, S_h, S_w = images.shape
    if S_h % P or S_w % P:
        raise ValueError(f"{S_h} × {S_w} pixels cannot be cut into patches of {P} × {P}")
    grid = images.reshape(B, C, S_h // P, P, S_w // P, P)
    patches = torch.einsum("bcipjq->bijpqc", grid)
    return patches.reshape(B, S_h // P * (S_w // P), P * P * C)


def unpatchify(
    patches: Float[Tensor, "B N P*P*C"], P: int, size: tuple[int, int]
) -> Float[Tensor, "B C S_h S_w"]:
    """Put images together again from their patches: the inverse of `patchify`.

    Args:
        patches: the patches, in the order of `patchify`.
        P: side of a patch, in pixels.
        size: height S_h and width S_w of the images, in pixels.
    Returns:
        The images.
    Raises:
        ValueError: the patches do not make up images of that size.
    """
    B, N, numbers = patches.shape
    S_h, S_w = size
    if S_h % P or S_w % P or N * P * P != S_h * S_w or numbers % (P * P):
        raise ValueError(f"{N} patches of {numbers} numbers, P = {P}, do not make up {S_h} × {S_w}")
    grid = patches.reshape(B, S_h // P, S_w // P, P, P, numbers // (P * P))
    return torch.einsum("bijpqc->bcipjq", grid).reshape(B, -1, S_h, S_w)


class PatchEmbedding(nn.Module):
    """Turn every patch of an image into a vector of size D, all by the same linear map.

    Parameters: W (P·P·C, D), its rows in the order of `patchify`, drawn from N(0, 1/rows), and b
    (D), which starts at zero.

    Args:
        C: channels of the images.
        P: side of a patch, in pixels.
        D: size of the vectors.
    """

    def __init__(self, C: int, P: int, D: int):
        super().__init__()
        self.P = P
        self.W = nn.Parameter(torch.randn(P * P * C, D) / math.sqrt(P * P * C))
        self.b = nn.Parameter(torch.zeros(D))

    def forward(self, images: Float[Tensor, "B C S_h S_w"]) -> Float[Tensor, "B N D"]:
        """Compute patchify(images) W + b      (Dosovitskiy et al. 2021, eq. 1, without positions).

        Args:
            images: the images; P divides their sides.
        Returns:
            One vector for each patch.
        """
        ### BEGIN SOLUTION
        return patchify(images, self.P) @ self.W + self.b
        ### END SOLUTION

    def kernel(self) -> Float[Tensor, "D C P P"]:
        """Lay W out as the kernel of a convolution that gives the same vectors.

        conv2d(images, kernel, b, stride=P)[b, d, i, j] is number d of patch i · S_w/P + j.

        Returns:
            The kernel, in torch's layout; its gradient goes back to W.
        """
        ### BEGIN SOLUTION
        P, D = self.P, self.W.shape[1]
        return self.W.T.reshape(D, P, P, -1).permute(0, 3, 1, 2)
        ### END SOLUTION


class ViTLayer(nn.Module):
    """One layer of a ViT: attention and a small network, each added to what comes in.

    Args:
        D: size of the vectors.
        H: how many heads; divides D.
    """

    def __init__(self, D: int, H: int):
        super().__init__()
        self.norm_1 = nn.LayerNorm(D, eps=1e-6)
        self.attention = MultiHeadAttention(D, H, bias=True)
        self.norm_2 = nn.LayerNorm(D, eps=1e-6)
        self.expand = nn.Linear(D, 4 * D)
        self.contract = nn.Linear(4 * D, D)

    def forward(
        self, X: Float[Tensor, "B T D"]
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T T"]]:
        """Apply the layer: every token attends to all tokens, and no mask is needed.

        X ← X + attention(norm_1(X)),   X ← X + contract(gelu(expand(norm_2(X)))),
        gelu(x) = x · Φ(x), with Φ the normal distribution's cumulative function
        (Dosovitskiy et al. 2021, eq. 2 and 3)

        Args:
            X: the vectors; they are not changed in place.
        Returns:
            The new vectors, and the attention's weights.
        """
        ### BEGIN SOLUTION
        Y, A = self.attention(self.norm_1(X), return_weights=True)
        X = X + Y
        return X + self.contract(functional.gelu(self.expand(self.norm_2(X)))), A
        ### END SOLUTION


class ViT(nn.Module):
    """Classify images with an encoder of patches.

    Parts: patches (PatchEmbedding); positions (T, D), and cls (D) if the pool is "cls", both drawn
    from N(0, 0.02²); layers, L ViTLayers; norm, a layer norm; head (nn.Linear).

    Args:
        size: height and width of the images, in pixels.
        P: side of a patch, in pixels.
        C: channels of the images.
        D: size of the vectors.
        H: heads of each layer.
        L: layers.
        classes: how many classes there are.
        pool: "cls", to read the class off an extra token that stands before the patches
            (T = 1 + N), or "mean", to read it off the mean of all patches (T = N).
    Raises:
        ValueError: P does not divide the size, or pool is neither.
    """

    def __init__(
        self,
        size: tuple[int, int],
        P: int,
        C: int,
        D: int,
        H: int,
        L: int,
        classes: int,
        pool: str = "cls",
    ):
        super().__init__()
        if size[0] % P or size[1] % P:
            raise ValueError(f"{size[0]} × {size[1]} pixels cannot be cut into {P} × {P}")
        if pool not in ("cls", "mean"):
            raise ValueError(f'pool must be "cls" or "mean", got {pool!r}')
        self.size, self.pool = tuple(size), pool
        T = (size[0] // P) * (size[1] // P) + (pool == "cls")
        self.patches = PatchEmbedding(C, P, D)
        if pool == "cls":
            self.cls = nn.Parameter(0.02 * torch.randn(D))
        self.positions = nn.Parameter(0.02 * torch.randn(T, D))
        self.layers = nn.ModuleList(ViTLayer(D, H) for _ in range(L))
        self.norm = nn.LayerNorm(D, eps=1e-6)
        self.head = nn.Linear(D, classes)

    def embed(self, images: Float[Tensor, "B C S_h S_w"]) -> Float[Tensor, "B T D"]:
        """Turn images into tokens: [cls; patches] + positions, or patches + positions.

        Args:
            images: the images.
        Returns:
            The tokens (Dosovitskiy et al. 2021, eq. 1).
        Raises:
            ValueError: the images are not of the model's size.
        """
        ### BEGIN SOLUTION
        size = tuple(images.shape[2:])
        if size != self.size:
            raise ValueError(f"the model's positions are for {self.size} pixels, not for {size}")
        X = self.patches(images)  # (B, N, D)
        if self.pool == "cls":
            X = torch.cat([self.cls.expand(len(X), 1, -1), X], dim=1)
        return X + self.positions
        ### END SOLUTION

    def forward(
        self, images: Float[Tensor, "B C S_h S_w"], return_weights: bool = False
    ) -> Float[Tensor, "B classes"] | tuple[Float[Tensor, "B classes"], Float[Tensor, "L B H T T"]]:
        """Score the classes: the tokens through all layers and the norm, pooled, through the head.

        X = norm(layers(embed(images))),   logits = head(X_0) or head(mean of all X_t)
        (Dosovitskiy et al. 2021, eq. 4)

        Args:
            images: the images.
            return_weights: whether to return the attention's weights of all layers as well.
        Returns:
            The logits, or (logits, A).
        """
        ### BEGIN SOLUTION
        X = self.embed(images)
        weights = []
        for layer in self.layers:
            X, A = layer(X)
            weights.append(A)
        X = self.norm(X)
        logits = self.head(X[:, 0] if self.pool == "cls" else X.mean(dim=1))
        return (logits, torch.stack(weights)) if return_weights else logits
        ### END SOLUTION


def vit_parameters(
    size: tuple[int, int], P: int, C: int, D: int, L: int, classes: int, pool: str = "cls"
) -> dict[str, int]:
    """Count the parameters of a ViT without building it.

    Args:
        size, P, C, D, L, classes, pool: as for ViT.
    Returns:
        How many numbers are learned in its "patches", its "positions" (with cls, if there is one),
        its "layers", its last "norm" and its "head".
    """
    N = (size[0] // P) * (size[1] // P)
    attention = 4 * (D + 1) * D
    network = (D + 1) * 4 * D + (4 * D + 1) * D
    return {
        "patches": (P * P * C + 1) * D,
        "positions": (N + 2 * (pool == "cls")) * D,
        "layers": L * (2 * 2 * D + attention + network),
        "norm": 2 * D,
        "head": (D + 1) * classes,
    }


def resize_positions(
    positions: Float[Tensor, "T D"], old: tuple[int, int], new: tuple[int, int]
) -> Float[Tensor, "T_new D"]:
    """Stretch the positions of one grid of patches over another, to continue at another resolution.

    The last h · w rows are the old grid's; they are taken as an image of D channels and
    interpolated, bicubically and with the grids' outer edges on each other (align_corners=False).
    The rows before them, such as that of the class token, have no place in the image and stay
    as they are      (Dosovitskiy et al. 2021, §3.2)

    Args:
        positions: the positions.
        old: height h and width w of the grid that they are for, in patches.
        new: height and width of the grid that they are to be for, in patches.
    Returns:
        The new positions.
    Raises:
        ValueError: there are fewer rows than the old grid has patches.
    """
    extra = len(positions) - old[0] * old[1]
    if extra < 0:
        raise ValueError(f"{len(positions)} positions are too few for {old[0]} × {old[1]} patches")
    image = positions[extra:].T.reshape(1, -1, *old)  # (1, D, h, w)
    image = functional.interpolate(image, size=new, mode="bicubic", align_corners=False)
    return torch.cat([positions[:extra], image[0].flatten(1).T])


def attention_rollout(A: Float[Tensor, "L B H T T"]) -> Float[Tensor, "B T T"]:
    """Follow attention through all layers: how much of each token comes from each place below.

    Â_l = ½ (mean of A_l over the heads) + ½ I,   R = Â_L … Â_2 Â_1
    The identity stands for the residual connection      (Abnar & Zuidema 2020, §3)

    Args:
        A: the attention's weights, layer 1 first; every row sums to one.
    Returns:
        R; row t says from which places token t of the last layer is made, and sums to one.
    """
    T = A.shape[-1]
    mixed = (A.mean(dim=2) + torch.eye(T).to(A)) / 2  # (L, B, T, T)
    R = mixed[0]
    for layer in mixed[1:]:
        R = layer @ R
    return R


def resize_positions_fault() -> tuple[
    str, tuple[Float[Tensor, "T D"], tuple[int, int], tuple[int, int]]
]:
    """Say what is wrong with the black box of `resize_positions`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `resize_positions` does.
    """
    positions = torch.tensor([[0.0], [0.0], [1.0], [0.0]])
    return "B", (positions, (1, 4), (1, 8))  # falls below 0 beside the 1; in the box it does not
