"""Checks of vit. Oracles: loops, torch's convolution and pre-LN layer, Keys's cubic kernel."""

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_pkg.checking.batched import made, of_each
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.checking.rules.rules import TRANSFORMER, forbid
from course_pkg.vit import (
    PatchEmbedding,
    ViT,
    ViTLayer,
    attention_rollout,
    patchify,
    resize_positions,
    resize_positions_fault,
    unpatchify,
    vit_parameters,
)

forbid(ViTLayer, TRANSFORMER)


# patchify and unpatchify


def image_sizes(case: Case) -> tuple[int, int, int, int, int]:
    """Draw B, C, P and the grid's height and width, all different; P is 2 or 3."""
    P = int(case.integers(2, 4, 1))
    others = [size for size in range(2, 7) if size != P]
    B, C, h, w = (others[place] for place in torch.randperm(4, generator=case.generator))
    B, C, P, h, w = case.narrowed([B, C, P, h, w])
    return B, C, P, h, w


def pixel_by_pixel(images: Tensor, P: int) -> Tensor:
    """Cut images into patches, one number at a time."""
    rows = []
    for image in images:
        for top in range(0, image.shape[1], P):
            for left in range(0, image.shape[2], P):
                pixels = [(top + p, left + q) for p in range(P) for q in range(P)]
                rows.append(torch.stack([image[:, y, x] for y, x in pixels]).flatten())
    return torch.stack(rows).reshape(len(images), -1, P * P * images.shape[1])


@check(patchify, weight=3, see="Cut an image into patches")
def values(patch, case):
    """puts every pixel where a loop over rows, columns and channels puts it"""
    B, C, P, h, w = image_sizes(case)
    images = case.randn(B, C, h * P, w * P)
    case.equal(patch(images, P), pixel_by_pixel(images, P), "patches")


@check(patchify, see="Cut an image into patches")
def order_of_the_patches(patch, case):
    """reads the grid row by row: patch n of h × w stands in row n // w"""
    _, C, P, h, w = image_sizes(case)
    numbers = torch.arange(float(h * w)).double() + 0.5
    images = torch.kron(numbers.reshape(1, 1, h, w), torch.ones(1, C, P, P).double())
    expected = numbers[None, :, None].expand(1, h * w, P * P * C)
    case.equal(patch(images, P), expected, "patches")


@check(patchify, see="Cut an image into patches")
def order_within_a_patch(patch, case):
    """reads a patch row by row, and gives all channels of one pixel before the next"""
    _, C, P, _, _ = image_sizes(case)
    image = torch.arange(float(C * P * P)).double().reshape(P, P, C) + 0.5
    expected = image.flatten()[None, None]
    case.equal(patch(image.permute(2, 0, 1)[None], P), expected, "patches")


@check(patchify, see="Cut an image into patches")
def refuses_a_rest(patch, case):
    """raises ValueError if P does not divide the height or the width"""
    B, C, P, h, w = image_sizes(case)
    tall, wide = case.randn(B, C, h * P + 1, w * P), case.randn(B, C, h * P, w * P + 1)
    case.raises(ValueError, lambda: patch(tall, P), "P does not divide the height")
    case.raises(ValueError, lambda: patch(wide, P), "P does not divide the width")


@check(patchify, see="Cut an image into patches")
def gradient(patch, case):
    """sends the gradient of each number back to its pixel"""
    B, C, P, h, w = image_sizes(case)
    images = case.randn(B, C, h * P, w * P).requires_grad_()
    seen = case.randn(B, h * w, P * P * C)
    (expected,) = torch.autograd.grad(pixel_by_pixel(images, P), images, seen)
    patches = patch(images, P)
    case.shape(patches, (B, h * w, P * P * C), "patches")
    case.trains(patches, "patches")
    patches.backward(seen)
    case.gradient(images, expected, "images")


@check(unpatchify, weight=3, see="And back")
def inverse(join, case):
    """gives back the images that a loop has cut up"""
    B, C, P, h, w = image_sizes(case)
    images = case.randn(B, C, h * P, w * P)
    given = join(pixel_by_pixel(images, P), P, (h * P, w * P))
    case.equal(given, images, "images")


@check(unpatchify, see="And back")
def order_of_the_patches(join, case):
    """fills the grid row by row, in wide images and in tall ones"""
    _, C, P, h, w = image_sizes(case)
    numbers = torch.arange(float(h * w)).double() + 0.5
    patches = numbers[None, :, None].expand(1, h * w, P * P * C)
    for name, grid in (("wide images", (min(h, w), max(h, w))), ("tall images", (w * h, 1))):
        expected = torch.kron(numbers.reshape(1, 1, *grid), torch.ones(1, C, P, P).double())
        case.equal(join(patches, P, (grid[0] * P, grid[1] * P)), expected, name)


@check(unpatchify, see="And back")
def refuses_what_does_not_fit(join, case):
    """raises ValueError if the patches do not fill images of that size"""
    B, C, P, h, w = image_sizes(case)
    patches = case.randn(B, h * w, P * P * C)
    for rows, columns in ((h + 1, w), (h, w + 1)):
        size = rows * P, columns * P
        case.raises(
            ValueError,
            lambda size=size: join(patches, P, size),
            f"{h * w} patches are given for a grid of {rows} × {columns}",
        )
    twice = torch.cat([patches, patches], dim=1)
    case.raises(
        ValueError,
        lambda: join(twice, P, (h * P, w * P)),
        f"{2 * h * w} patches are given for a grid of {h} × {w}",
    )


@check(unpatchify, see="And back")
def refuses_rests(join, case):
    """raises ValueError if P does not divide the sides, or P² the numbers of a patch"""
    B, C = case.sizes(2)
    for size, N in (((3, 4), 3), ((4, 3), 3), ((5, 4), 4), ((4, 5), 4)):  # 4 where rests are cut
        patches = case.randn(B, N, 4 * C)
        case.raises(
            ValueError,
            lambda patches=patches, size=size: join(patches, 2, size),
            f"patches of 2 × 2 are given for {size[0]} × {size[1]} pixels",
        )
    odd = case.randn(B, 4, 4 * C + 1)
    case.raises(
        ValueError,
        lambda: join(odd, 2, (4, 4)),
        f"a patch of 2 × 2 pixels has {4 * C + 1} numbers",
    )


# PatchEmbedding


def embedding_pair(case: Case, embedding, C: int, P: int, D: int) -> tuple:
    """Make a student's embedding with random weights; return them as a kernel and b, too."""
    kernel, b = case.randn(D, C, P, P), case.randn(D)
    ours = made(embedding, {"W": kernel.permute(2, 3, 1, 0).flatten(0, 2), "b": b}, C, P, D)
    return ours, kernel, b


def convolved(images: Tensor, kernel: Tensor, b: Tensor) -> Tensor:
    """Compute the vectors of all patches with torch's convolution."""
    return F.conv2d(images, kernel, b, stride=kernel.shape[-1]).flatten(2).mT


@check(PatchEmbedding, weight=3, see="One linear map for all patches")
def values(embedding, case):
    """agrees with torch's convolution of stride P"""
    B, C, P, h, w = image_sizes(case)
    ours, kernel, b = embedding_pair(case, embedding, C, P, 11)
    images = case.randn(B, C, h * P, w * P)
    case.equal(ours(images), convolved(images, kernel, b), "X")


@check(PatchEmbedding, weight=2, see="The same as a convolution", single={"C": 1})
def kernel(embedding, case):
    """lays W out as the kernel of that convolution"""
    _, C, P, D, _ = image_sizes(case)
    ours, expected, _ = embedding_pair(case, embedding, C, P, D)
    case.equal(ours.kernel(), expected, "kernel")


@check(PatchEmbedding, see="One linear map for all patches")
def gradients(embedding, case):
    """passes the same gradients to W and b as a convolution"""
    B, C, P, h, w = image_sizes(case)
    ours, weights, shift = embedding_pair(case, embedding, C, P, 7)
    images, seen = case.randn(B, C, h * P, w * P), case.randn(B, h * w, 7)
    weights.requires_grad_()
    shift.requires_grad_()
    convolved(images, weights, shift).backward(seen)
    X = ours(images)
    case.shape(X, (B, h * w, 7), "X")
    case.trains(X, "X")
    X.backward(seen)
    parameters = dict(ours.named_parameters())
    case.gradient(parameters["W"], weights.grad.permute(2, 3, 1, 0).flatten(0, 2), "W")
    case.gradient(parameters["b"], shift.grad, "b")
    case.learns(ours)


@check(PatchEmbedding, see="The same as a convolution")
def kernel_gradient(embedding, case):
    """sends a gradient from the kernel back to W"""
    _, C, P, D, _ = image_sizes(case)
    ours, weights, _ = embedding_pair(case, embedding, C, P, D)
    kernel, seen = ours.kernel(), case.randn(*weights.shape)
    case.shape(kernel, tuple(weights.shape), "kernel")
    case.trains(kernel, "the kernel")
    kernel.backward(seen)
    W = dict(ours.named_parameters())["W"]
    case.gradient(W, seen.permute(2, 3, 1, 0).flatten(0, 2), "W")


@check(PatchEmbedding, see="One linear map for all patches")
def several_sizes(embedding, case):
    """embeds images of any size with the same weights"""
    B, C, P, h, w = image_sizes(case)
    ours, weights, shift = embedding_pair(case, embedding, C, P, 9)
    for grid in ((h, w), (w, h), (1, 1)):
        images = case.randn(B, C, grid[0] * P, grid[1] * P)
        what = f"X of {grid[0]} × {grid[1]} patches"
        case.equal(ours(images), convolved(images, weights, shift), what)
    case.equal(ours(images[:1]), convolved(images[:1], weights, shift), "X of a single patch")


# ViTLayer


def drawn(case: Case, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Draw weights, none of them as a fresh model has it."""
    state = {}
    for name, shape in shapes.items():
        is_scale = "norm" in name and name.endswith("weight")
        numbers = case.rand(*shape) + 1 if is_scale else case.randn(*shape) / 2
        state[name] = numbers / shape[-1] ** 0.5 if len(shape) == 2 else numbers
    return state


def layer_shapes(D: int, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """The weights of a ViTLayer."""
    shapes = {f"attention.W_{x}": (D, D) for x in "QKVO"}
    shapes |= {f"attention.b_{x}": (D,) for x in "QKVO"}
    for name in ("norm_1", "norm_2"):
        shapes |= {f"{name}.weight": (D,), f"{name}.bias": (D,)}
    shapes |= {"expand.weight": (4 * D, D), "expand.bias": (4 * D,)}
    shapes |= {"contract.weight": (D, 4 * D), "contract.bias": (D,)}
    return {prefix + name: shape for name, shape in shapes.items()}


def below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}


def torchs_layer(state: dict[str, Tensor], H: int) -> nn.TransformerEncoderLayer:
    """Give torch's own layer, norms before the parts, the weights of a ViTLayer."""
    D = len(state["norm_1.weight"])
    layer = nn.TransformerEncoderLayer(
        D, H, 4 * D, 0.0, "gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    ).double()
    theirs = {
        "self_attn.in_proj_weight": torch.cat([state[f"attention.W_{x}"].T for x in "QKV"]),
        "self_attn.in_proj_bias": torch.cat([state[f"attention.b_{x}"] for x in "QKV"]),
        "self_attn.out_proj.weight": state["attention.W_O"].T,
        "self_attn.out_proj.bias": state["attention.b_O"],
    }
    pairs = {"linear1": "expand", "linear2": "contract", "norm1": "norm_1", "norm2": "norm_2"}
    for their, our in pairs.items():
        theirs |= {f"{their}.{kind}": state[f"{our}.{kind}"] for kind in ("weight", "bias")}
    layer.load_state_dict(theirs)
    return layer


def looks(layer: nn.TransformerEncoderLayer, X: Tensor) -> Tensor:
    """Compute the attention's weights in torch's layer, (B, H, T, T)."""
    X = layer.norm1(X)
    return layer.self_attn(X, X, X, average_attn_weights=False)[1]


def layer_pair(case: Case, layer, D: int, H: int) -> tuple:
    """Make a student's layer and torch's with the same weights."""
    state = drawn(case, layer_shapes(D))
    ours = made(layer, state, D, H)
    return ours, torchs_layer(state, H)


def layer_results(case: Case, result: object, X: Tensor, H: int) -> tuple[Tensor, Tensor]:
    """Split what a layer returns, and demand the shapes."""
    B, T, _ = X.shape
    Y, A = case.unpack(result, "X", "A")
    case.shape(Y, tuple(X.shape), "X")
    case.shape(A, (B, H, T, T), "A")
    return Y, A


def layer_sizes(case: Case) -> tuple[int, int, int, int]:
    """Draw B, T, D and H; H divides D."""
    B, T, H, part = case.sizes(4)
    return B, T, H * part, H


@check(ViTLayer, weight=3, see="Norms before, sums after", single="B")
def values(layer, case):
    """agrees with torch.nn.TransformerEncoderLayer whose norms come first"""
    B, T, D, H = layer_sizes(case)
    ours, torchs = layer_pair(case, layer, D, H)
    X = 3 * case.randn(B, T, D)
    Y, _ = layer_results(case, ours(X), X, H)
    case.equal(Y, torchs(X), "X")


@check(ViTLayer, see="Norms before, sums after", single={"H": 2})
def weights(layer, case):
    """returns the weights of every head, computed from the normalised tokens"""
    B, T, D, H = layer_sizes(case)
    ours, torchs = layer_pair(case, layer, D, H)
    X = 3 * case.randn(B, T, D)
    _, A = layer_results(case, ours(X), X, H)
    case.equal(A, looks(torchs, X), "A")


@check(ViTLayer, see="Norms before, sums after")
def passes_through(layer, case):
    """changes nothing when attention and network give zeros"""
    B, T, D, H = layer_sizes(case)
    state = drawn(case, layer_shapes(D))
    for name in ("attention.W_O", "attention.b_O", "contract.weight", "contract.bias"):
        state[name] = torch.zeros_like(state[name])
    ours = made(layer, state, D, H)
    X = 3 * case.randn(B, T, D)
    Y, _ = layer_results(case, ours(X), X, H)
    case.equal(Y, X, "X")


# ViT


def model_settings(case: Case, pool: str) -> tuple:
    """Draw the arguments of a ViT: size, P, C, D, H, L, classes and pool."""
    _, C, P, h, w = image_sizes(case)
    H, L, classes = case.sizes(3)
    return (h * P, w * P), P, C, 3 * H, H, 2 + L % 2, classes, pool


def model_shapes(size, P: int, C: int, D: int, H: int, L: int, classes: int, pool: str) -> dict:
    """The weights of a ViT."""
    extra = int(pool == "cls")
    T = size[0] * size[1] // P**2 + extra
    shapes = {"patches.W": (P * P * C, D), "patches.b": (D,), "positions": (T, D)}
    if extra:
        shapes["cls"] = (D,)
    for number in range(L):
        shapes |= layer_shapes(D, f"layers.{number}.")
    shapes |= {"norm.weight": (D,), "norm.bias": (D,)}
    return shapes | {"head.weight": (classes, D), "head.bias": (classes,)}


def model_pair(case: Case, vit, pool: str, B: int = 3) -> tuple:
    """Make a student's ViT with random weights; return it, its settings, weights, and images."""
    settings = model_settings(case, pool)
    state = drawn(case, model_shapes(*settings))
    state["positions"] = 2 * case.randn(*state["positions"].shape)
    ours = made(vit, state, *settings)
    size, _, C, *_ = settings
    return ours, settings, state, case.randn(B, C, *size)


def embedded(settings: tuple, state: dict[str, Tensor], images: Tensor) -> Tensor:
    """Compute a ViT's tokens with torch's convolution."""
    _, P, C, D, *_, pool = settings
    kernel = state["patches.W"].reshape(P, P, C, D).permute(3, 2, 0, 1)
    X = convolved(images, kernel, state["patches.b"])
    if pool == "cls":
        X = torch.cat([state["cls"].repeat(len(images), 1, 1), X], dim=1)
    return X + state["positions"]


def classified(settings: tuple, state: dict[str, Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
    """Compute a ViT's logits and weights with torch's own layers."""
    H, L, pool = settings[4], settings[5], settings[7]
    X, A = embedded(settings, state, images), []
    for number in range(L):
        layer = torchs_layer(below(state, f"layers.{number}."), H)
        A.append(looks(layer, X))
        X = layer(X)
    X = F.layer_norm(X, X.shape[-1:], state["norm.weight"], state["norm.bias"], 1e-6)
    pooled = X.select(1, 0) if pool == "cls" else X.sum(dim=1) / X.shape[1]
    return F.linear(pooled, state["head.weight"], state["head.bias"]), torch.stack(A)


@check(ViT, weight=2, see="A token for the class, and a place for each")
def embed(vit, case):
    """puts cls before the patches and adds the positions to all"""
    ours, settings, state, images = model_pair(case, vit, "cls")
    case.equal(ours.embed(images), embedded(settings, state, images), "tokens")


@check(ViT, see="Or no class token at all")
def embed_mean(vit, case):
    """has no class token if the pool is the mean"""
    ours, settings, state, images = model_pair(case, vit, "mean")
    case.equal(ours.embed(images), embedded(settings, state, images), "tokens")


@check(ViT, weight=3, see="From tokens to classes")
def values(vit, case):
    """agrees with torch's layers, the class read off the first token"""
    ours, settings, state, images = model_pair(case, vit, "cls")
    case.equal(ours(images), classified(settings, state, images)[0], "logits")


@check(ViT, weight=2, see="Or no class token at all")
def values_mean(vit, case):
    """agrees with torch's layers, the class read off the mean of all tokens"""
    ours, settings, state, images = model_pair(case, vit, "mean")
    case.equal(ours(images), classified(settings, state, images)[0], "logits")


@check(ViT, see="From tokens to classes")
def weights(vit, case):
    """returns the weights of all layers as well, when asked"""
    ours, settings, state, images = model_pair(case, vit, "cls")
    logits, A = case.unpack(ours(images, return_weights=True), "logits", "A")
    expected_logits, expected = classified(settings, state, images)
    case.equal(logits, expected_logits, "logits")
    case.equal(A, expected, "A")
    _, A = case.unpack(ours(images[:1], return_weights=True), "logits", "A")
    case.equal(A, expected[:, :1], "A of one image")


@check(ViT, see="A token for the class, and a place for each")
def refuses_other_sizes(vit, case):
    """raises ValueError for images of another size, even if they have as many patches"""
    ours, settings, _, images = model_pair(case, vit, "cls")
    case.raises(ValueError, lambda: ours(images.mT), "height and width are exchanged")
    P = settings[1]
    case.raises(ValueError, lambda: ours(images[:, :, P:]), "images are not high enough")
    case.raises(ValueError, lambda: ours(images[..., P:]), "images are not wide enough")
    large = images.repeat(1, 1, 2, 2)
    case.raises(ValueError, lambda: ours(large), "images are twice as high and twice as wide")


@check(ViT, see="A token for the class, and a place for each")
def gradients(vit, case):
    """passes gradients to the class token and to the positions"""
    ours, settings, state, images = model_pair(case, vit, "cls")
    for name in ("cls", "positions"):
        state[name].requires_grad_()
    expected = classified(settings, state, images)[0]
    seen = case.randn(*expected.shape)
    expected.backward(seen)
    logits = ours(images)
    case.shape(logits, tuple(expected.shape), "logits")
    case.trains(logits, "logits")
    logits.backward(seen)
    parameters = dict(ours.named_parameters())
    for name in ("cls", "positions"):
        case.gradient(parameters[name], state[name].grad, name)
    case.learns(ours)


# vit_parameters

PARTS = ("patches", "positions", "layers", "norm", "head")


def some_models(case: Case) -> list[tuple]:
    """Draw the arguments of twelve models; the counts of a single one could be right by chance."""
    models = [model_settings(case, pool) for pool in ("cls", "mean") for _ in range(6)]
    return [(size, P, C, D, L, classes, pool) for size, P, C, D, _, L, classes, pool in models]


@functools.cache
def torchs_count(part: str, size, P: int, C: int, D: int, L: int, classes: int, pool: str) -> int:
    """Count the numbers of a part made of torch's modules, which need no memory for them."""
    T = math.prod(side // P for side in size)
    tokens = 1 + 1 + T if pool == "cls" else T  # cls, its place, and those of the patches
    kind, arguments, times = {
        "patches": (nn.Conv2d, (C, D, P), 1),
        "positions": (nn.Embedding, (tokens, D), 1),
        "layers": (nn.TransformerEncoderLayer, (D, 1, 4 * D), L),
        "norm": (nn.LayerNorm, (D,), 1),
        "head": (nn.Linear, (D, classes), 1),
    }[part]
    with torch.device("meta"):
        return times * sum(parameter.numel() for parameter in kind(*arguments).parameters())


def compare_counts(case: Case, count, models: list[tuple], part: str) -> None:
    """Compare one part's count, for several models at once."""
    given, expected = [], []
    for settings, counts in zip(models, of_each(count, models), strict=True):
        keys = sorted(counts) if isinstance(counts, dict) else counts
        case.that(
            keys == sorted(PARTS), f"The keys should be {', '.join(PARTS)}, yours are {keys}."
        )
        number = counts[part]
        whole = isinstance(number, int) and not isinstance(number, bool)
        case.that(whole, f'"{part}" should be a whole number, yours is {number!r:.40}.')
        given.append(number)
        expected.append(torchs_count(part, *settings))
    case.equal(torch.tensor(given), torch.tensor(expected), f'"{part}" of {len(models)} models')


@check(vit_parameters, see="Count before you build")
def patches(count, case):
    """counts W and b of the patch embedding"""
    compare_counts(case, count, some_models(case), "patches")


@check(vit_parameters, weight=2, see="Count before you build")
def positions(count, case):
    """counts a position for each token, and the class token itself"""
    compare_counts(case, count, some_models(case), "positions")


@check(vit_parameters, weight=2, see="Count before you build")
def layers(count, case):
    """counts two norms, four projections and two linear maps in each layer"""
    compare_counts(case, count, some_models(case), "layers")


@check(vit_parameters, see="Count before you build")
def head(count, case):
    """counts the last norm and, separately, the last linear map"""
    models = some_models(case)
    compare_counts(case, count, models, "norm")
    compare_counts(case, count, models, "head")


# resize_positions


def cubic(x: float) -> float:
    """Weigh a neighbour at distance x, as torch does (Keys 1981, with a = -0.75)."""
    x, a = abs(x), -0.75
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def stretch(new: int, old: int) -> Tensor:
    """Make the matrix that interpolates `old` values at `new` places, its border repeated."""
    matrix = torch.zeros(new, old, dtype=torch.float64)
    for row in range(new):
        place = (row + 0.5) * old / new - 0.5
        for neighbour in range(math.floor(place) - 1, math.floor(place) + 3):
            matrix[row, min(max(neighbour, 0), old - 1)] += cubic(place - neighbour)
    return matrix


def resized(positions: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Interpolate positions with one matrix for the rows and one for the columns."""
    extra = len(positions) - math.prod(old)
    grid = positions[extra:].reshape(*old, -1)
    grid = torch.einsum("ip,jq,pqd->ijd", stretch(new[0], old[0]), stretch(new[1], old[1]), grid)
    return torch.cat([positions[:extra], grid.flatten(0, 1)])


@check(resize_positions, weight=3, see="Positions for another grid", single={"D": 4})
def values(resize, case):
    """agrees with bicubic interpolation by hand, except in the class token's row"""
    h, w, new_h, new_w, D = case.sizes(5, low=3)
    positions, new = case.randn(1 + h * w, D), (new_h, new_w)
    case.equal(resize(positions, (h, w), new), resized(positions, (h, w), new), "positions")


@check(resize_positions, see="Positions for another grid")
def class_token(resize, case):
    """leaves the class token's row as it is, and lets it leak into no other row"""
    h, w, D = case.sizes(3, low=3)
    positions = case.randn(1 + h * w, D)
    new = h + 2, w + 3
    given = resize(positions, (h, w), new)
    case.shape(given, (1 + math.prod(new), D), "positions")
    case.equal(given[0], positions[0], "row of the class token")
    other = torch.cat([positions[:1] + 1e3, positions[1:]])
    case.equal(resize(other, (h, w), new)[1:], given[1:], "rows of the patches")


@check(resize_positions, see="Positions for another grid")
def without_a_class_token(resize, case):
    """accepts positions of a model without a class token"""
    h, w, D = case.sizes(3, low=3)
    positions, new = case.randn(h * w, D), (2 * h, w + 1)
    case.equal(resize(positions, (h, w), new), resized(positions, (h, w), new), "positions")


@check(resize_positions, see="Positions for another grid")
def same_grid(resize, case):
    """changes nothing if the grid stays the same, but not if it only has as many patches"""
    h, w, D = case.sizes(3, low=3)
    positions = case.randn(1 + h * w, D)
    case.equal(resize(positions, (h, w), (h, w)), positions, "positions")
    turned = resized(positions, (h, w), (w, h))
    case.equal(resize(positions, (h, w), (w, h)), turned, "positions of a grid on its side")


@check(resize_positions, see="Positions for another grid")
def refuses_too_few(resize, case):
    """raises ValueError if there are fewer rows than patches"""
    h, w, D = case.sizes(3, low=3)
    positions = case.randn(h * w - 1, D)
    case.raises(
        ValueError,
        lambda: resize(positions, (h, w), (w, h)),
        f"{h * w - 1} positions are given for {h} × {w} patches",
    )


@check(resize_positions, see="Positions for another grid")
def gradient(resize, case):
    """lets a gradient through, and computes in the precision of its input"""
    h, w, D = case.sizes(3, low=3)
    positions, new = case.randn(1 + h * w, D).requires_grad_(), (h + 1, w + 2)
    seen = case.randn(1 + new[0] * new[1], D)
    (expected,) = torch.autograd.grad(resized(positions, (h, w), new), positions, seen)
    given = resize(positions, (h, w), new)
    case.shape(given, tuple(seen.shape), "positions")
    case.that(
        given.dtype == torch.float64, f"The result should stay float64, yours is {given.dtype}."
    )
    case.trains(given, "the result")
    given.backward(seen)
    case.gradient(positions, expected, "positions")


def stretched(case, resize, extra: int, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Demand the right positions for one change of grids; return those given."""
    positions = case.randn(extra + old[0] * old[1], 5)
    given = resize(positions, old, new)
    case.equal(given, resized(positions, old, new), f"positions from {old} to {new}")
    return given


@check(resize_positions, see="Positions for another grid")
def rounded_quotients(resize, case):
    """gives 15 rows for 13, although 13 · (15 / 13) is less than 15 in floating point"""
    h, w = case.sizes(2, low=3)
    stretched(case, resize, 1, (13, w), (15, h))
    stretched(case, resize, 0, (h, 13), (w, 15))


@check(resize_positions, see="Positions for another grid")
def two_special_rows(resize, case):
    """keeps every row before the grid's, whether one, two or three"""
    h, w = case.sizes(2, low=3)
    for extra in (2, 3):
        stretched(case, resize, extra, (h, w), (w + 1, h))


@check(resize_positions, see="Positions for another grid")
def fewer_patches(resize, case):
    """interpolates without smoothing when the new grid is smaller"""
    h, w = case.sizes(2, low=4)
    stretched(case, resize, 1, (2 * h, 2 * w), (h, w))


# attention_rollout


def looks_of(case: Case, L: int, B: int, H: int, T: int) -> Tensor:
    """Draw the weights of all layers."""
    return torch.softmax(2 * case.randn(L, B, H, T, T), dim=-1)


def followed(A: Tensor) -> Tensor:
    """Compute the rollout by sending one token's share after the other down the layers."""
    L, B, H, T, _ = A.shape
    R = torch.zeros(B, T, T, dtype=A.dtype)
    for token in range(T):
        share = torch.zeros(B, T, dtype=A.dtype)
        share[:, token] = 1
        for layer in reversed(range(L)):
            sent = torch.einsum("bt,bhts->bs", share, A[layer]) / H
            share = (share + sent) / 2
        R[:, token] = share
    return R


@check(attention_rollout, weight=3, see="Attention through all layers", single={"B": 1})
def values(rollout, case):
    """agrees with following each token from the last layer down to the first"""
    L, B, H, T = case.sizes(4)
    A = looks_of(case, L, B, H, T)
    case.equal(rollout(A), followed(A), "R")


@check(attention_rollout, see="Attention through all layers")
def rows_sum_to_one(rollout, case):
    """gives rows that sum to one"""
    L, B, H, T = case.sizes(4)
    R = rollout(looks_of(case, L, B, H, T))
    case.shape(R, (B, T, T), "R")
    case.equal(R.sum(dim=-1), torch.ones(B, T), "row sums")


@check(attention_rollout, see="Half of it goes straight on", single={"H": 1})
def one_layer(rollout, case):
    """is half the mean of the heads and half the identity if there is one layer"""
    B, H, T = case.sizes(3)
    A = looks_of(case, 1, B, H, T)
    expected = sum(A[0].unbind(1)) / (2 * H) + torch.diag(torch.full((T,), 0.5)).double()
    case.equal(rollout(A), expected, "R")


def of_two_grids(positions: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Interpolate positions, if they and the grids are what resize_positions takes."""
    sides = [*old, *new]
    if len(sides) != 4 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ValueError(f"grids have a height and a width, whole numbers; yours: {old}, {new}")
    if positions.dim() != 2 or len(positions) < math.prod(old):
        raise ValueError(f"positions should be (T, D) with T at least {math.prod(old)}")
    return resized(positions.double(), old, new)


@check(resize_positions_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "resize_positions", of_two_grids)
