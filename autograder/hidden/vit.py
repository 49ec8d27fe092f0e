"""Hidden checks of vit: gradients, odd sizes, other memory layouts, published models."""

import torch
from torch import Tensor

from course_pkg.checking.registry import check
from course_pkg.checks.vit import (
    below,
    classified,
    convolved,
    embedding_pair,
    followed,
    image_sizes,
    layer_pair,
    layer_results,
    layer_sizes,
    looks_of,
    model_pair,
    pixel_by_pixel,
    resized,
)
from course_pkg.vit import (
    PatchEmbedding,
    ViT,
    ViTLayer,
    attention_rollout,
    patchify,
    resize_positions,
    unpatchify,
    vit_parameters,
)


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


@check(patchify, see="Cut an image into patches")
def other_layouts(patch, case):
    """accepts images whose channels or sides lie in memory in another order"""
    B, C, P, h, w = image_sizes(case)
    last = case.randn(B, h * P, w * P, C).permute(0, 3, 1, 2)
    case.equal(patch(last, P), pixel_by_pixel(last, P), "patches")
    turned = case.randn(B, C, w * P, h * P).mT
    case.equal(patch(turned, P), pixel_by_pixel(turned, P), "patches of turned images")


@check(patchify, see="Cut an image into patches")
def extremes(patch, case):
    """is right for patches of one pixel, and for a patch as large as the image"""
    B, C, h, w, S = case.sizes(5)
    images = case.randn(B, C, h, w)
    case.equal(patch(images, 1), pixel_by_pixel(images, 1), "patches of one pixel")
    images = case.randn(B, C, S, S)
    case.equal(patch(images, S), pixel_by_pixel(images, S), "single patches")


@check(unpatchify, see="And back")
def gradient(join, case):
    """sends the gradient of each pixel back to its patch"""
    B, C, P, h, w = image_sizes(case)
    patches = case.randn(B, h * w, P * P * C).requires_grad_()
    seen = case.randn(B, C, h * P, w * P)
    images = join(patches, P, (h * P, w * P))
    case.shape(images, (B, C, h * P, w * P), "images")
    case.trains(images, "images")
    images.backward(seen)
    case.gradient(patches, pixel_by_pixel(seen, P), "patches")


@check(unpatchify, see="And back")
def other_layouts(join, case):
    """accepts patches that lie in memory in another order, and a size that is a list"""
    B, C, P, h, w = image_sizes(case)
    images = case.randn(B, C, h * P, w * P)
    patches = pixel_by_pixel(images, P).transpose(0, 1).contiguous().transpose(0, 1)
    case.equal(join(patches, P, [h * P, w * P]), images, "images")


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


@check(ViTLayer, see="Norms before, sums after")
def gradients(layer, case):
    """passes the same gradient back to X as torch's layer"""
    B, T, D, H = layer_sizes(case)
    ours, torchs = layer_pair(case, layer, D, H)
    X, seen = (3 * case.randn(B, T, D)).requires_grad_(), case.randn(B, T, D)
    (expected,) = torch.autograd.grad(torchs(X), X, seen)
    Y, _ = layer_results(case, ours(X), X, H)
    case.trains(Y, "X")
    Y.backward(seen)
    case.gradient(X, expected, "X")
    case.learns(ours)


@check(ViTLayer, see="Norms before, sums after")
def order_of_the_tokens(layer, case):
    """gives each token the same output whatever order the tokens come in"""
    B, T, D, H = layer_sizes(case)
    ours, torchs = layer_pair(case, layer, D, H)
    X, order = 3 * case.randn(B, T, D), torch.randperm(T, generator=case.generator)
    Y, _ = layer_results(case, ours(X[:, order]), X, H)
    case.equal(Y, torchs(X)[:, order], "X of tokens in another order")


@check(ViT, see="From tokens to classes")
def one_image(vit, case):
    """classifies an image alone as it does in a batch"""
    ours, settings, state, images = model_pair(case, vit, "cls")
    expected, _ = classified(settings, state, images)
    case.equal(ours(images[1:2]), expected[1:2], "logits of one image")


@check(ViT, see="From tokens to classes")
def weights_do_not_change_the_logits(vit, case):
    """gives the same logits when the weights are returned, with either pool"""
    ours, settings, state, images = model_pair(case, vit, "mean")
    expected_logits, expected = classified(settings, state, images)
    given, A = case.unpack(ours(images, return_weights=True), "logits", "A")
    case.equal(given, expected_logits, "logits")
    case.equal(A, expected, "A")


@check(ViT, see="From tokens to classes")
def norm_is_used(vit, case):
    """normalises the tokens before they are pooled, not after"""
    ours, settings, state, images = model_pair(case, vit, "mean")
    scaled = state | {"norm.bias": 5 + below(state, "norm.")["bias"]}
    ours.load_state_dict(scaled)
    case.equal(ours(images), classified(settings, scaled, images)[0], "logits")


@check(vit_parameters, see="Count before you build")
def published(count, case):
    """gives the sizes of the published models with 1000 classes"""
    for name, P, D, L, millions in (
        ("ViT-B/16", 16, 768, 12, 86.567656),
        ("ViT-L/32", 32, 1024, 24, 306.535400),
        ("ViT-H/14", 14, 1280, 32, 632.045800),
    ):
        counts = count((224, 224), P, 3, D, L, 1000)
        case.that(isinstance(counts, dict), "The result should be a dict, yours is not.")
        total = torch.tensor(sum(counts.values()) / 1e6, dtype=torch.float64)
        expected = torch.tensor(millions, dtype=torch.float64)
        case.equal(total, expected, f"parameters of {name} in millions", rtol=1e-9)


def stretched(case, resize, extra: int, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Demand the right positions for one change of grids; return those given."""
    positions = case.randn(extra + old[0] * old[1], 5)
    given = resize(positions, old, new)
    case.equal(given, resized(positions, old, new), f"positions from {old} to {new}")
    return given


@check(resize_positions, see="Positions for another grid")
def fewer_patches(resize, case):
    """interpolates without smoothing when the new grid is smaller"""
    h, w = case.sizes(2, low=4)
    stretched(case, resize, 1, (2 * h, 2 * w), (h, w))


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


@check(attention_rollout, see="Half of it goes straight on")
def nothing_but_oneself(rollout, case):
    """is the identity if every token attends to itself alone"""
    L, B, H, T = case.sizes(4)
    A = torch.eye(T).double().expand(L, B, H, T, T)
    case.equal(rollout(A), torch.eye(T).double().expand(B, T, T), "R")


@check(attention_rollout, see="Attention through all layers")
def order_of_the_layers(rollout, case):
    """applies layer 1 to the input, and the last layer to what the others give"""
    B, H, T = case.sizes(3, low=3)
    A = torch.eye(T).double().repeat(3, B, H, 1, 1)
    A[0] = torch.eye(T).double().roll(1, dims=1)  # every token looks at the next one
    A[2] = torch.nn.functional.one_hot(torch.zeros(T).long(), T).double()  # all look at token 0
    case.equal(rollout(A), followed(A), "R")


@check(attention_rollout, see="Attention through all layers")
def deep(rollout, case):
    """is right for a model of many layers"""
    A = looks_of(case, 12, 2, 3, 5)
    case.equal(rollout(A), followed(A), "R")
