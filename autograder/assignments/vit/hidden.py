"""Hidden checks of vit: gradients, other memory layouts, published models, a black box."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks import vit as visible
from course_pkg.vit import (
    ViT,
    ViTLayer,
    attention_rollout,
    patchify,
    resize_positions_fault,
    unpatchify,
    vit_parameters,
)


@check(patchify, see="Cut an image into patches")
def other_layouts(patch, case):
    """accepts images whose channels or sides lie in memory in another order"""
    B, C, P, h, w = visible.image_sizes(case)
    last = case.randn(B, h * P, w * P, C).permute(0, 3, 1, 2)
    case.equal(patch(last, P), visible.pixel_by_pixel(last, P), "patches")
    turned = case.randn(B, C, w * P, h * P).mT
    case.equal(patch(turned, P), visible.pixel_by_pixel(turned, P), "patches of turned images")


@check(patchify, see="Cut an image into patches")
def extremes(patch, case):
    """is right for patches of one pixel, and for a patch as large as the image"""
    B, C, h, w, S = case.sizes(5)
    images = case.randn(B, C, h, w)
    case.equal(patch(images, 1), visible.pixel_by_pixel(images, 1), "patches of one pixel")
    images = case.randn(B, C, S, S)
    case.equal(patch(images, S), visible.pixel_by_pixel(images, S), "single patches")


@check(unpatchify, see="And back")
def gradient(join, case):
    """sends the gradient of each pixel back to its patch"""
    B, C, P, h, w = visible.image_sizes(case)
    patches = case.randn(B, h * w, P * P * C).requires_grad_()
    seen = case.randn(B, C, h * P, w * P)
    images = join(patches, P, (h * P, w * P))
    case.shape(images, (B, C, h * P, w * P), "images")
    case.trains(images, "images")
    images.backward(seen)
    case.gradient(patches, visible.pixel_by_pixel(seen, P), "patches")


@check(unpatchify, see="And back")
def other_layouts(join, case):
    """accepts patches that lie in memory in another order, and a size that is a list"""
    B, C, P, h, w = visible.image_sizes(case)
    images = case.randn(B, C, h * P, w * P)
    patches = visible.pixel_by_pixel(images, P).transpose(0, 1).contiguous().transpose(0, 1)
    case.equal(join(patches, P, [h * P, w * P]), images, "images")


@check(ViTLayer, see="Norms before, sums after")
def gradients(layer, case):
    """passes the same gradient back to X as torch's layer"""
    B, T, D, H = visible.layer_sizes(case)
    ours, torchs = visible.layer_pair(case, layer, D, H)
    X, seen = (3 * case.randn(B, T, D)).requires_grad_(), case.randn(B, T, D)
    (expected,) = torch.autograd.grad(torchs(X), X, seen)
    Y, _ = visible.layer_results(case, ours(X), X, H)
    case.trains(Y, "X")
    Y.backward(seen)
    case.gradient(X, expected, "X")
    case.learns(ours)


@check(ViTLayer, see="Norms before, sums after")
def order_of_the_tokens(layer, case):
    """gives each token the same output whatever order the tokens come in"""
    B, T, D, H = visible.layer_sizes(case)
    ours, torchs = visible.layer_pair(case, layer, D, H)
    X, order = 3 * case.randn(B, T, D), torch.randperm(T, generator=case.generator)
    Y, _ = visible.layer_results(case, ours(X[:, order]), X, H)
    case.equal(Y, torchs(X)[:, order], "X of tokens in another order")


@check(ViT, see="From tokens to classes")
def one_image(vit, case):
    """classifies an image alone as it does in a batch"""
    ours, settings, state, images = visible.model_pair(case, vit, "cls")
    expected, _ = visible.classified(settings, state, images)
    case.equal(ours(images[1:2]), expected[1:2], "logits of one image")


@check(ViT, see="From tokens to classes")
def weights_do_not_change_the_logits(vit, case):
    """gives the same logits when the weights are returned, with either pool"""
    ours, settings, state, images = visible.model_pair(case, vit, "mean")
    expected_logits, expected = visible.classified(settings, state, images)
    given, A = case.unpack(ours(images, return_weights=True), "logits", "A")
    case.equal(given, expected_logits, "logits")
    case.equal(A, expected, "A")


@check(ViT, see="From tokens to classes")
def norm_is_used(vit, case):
    """normalises the tokens before they are pooled, not after"""
    ours, settings, state, images = visible.model_pair(case, vit, "mean")
    scaled = state | {"norm.bias": 5 + visible.below(state, "norm.")["bias"]}
    ours.load_state_dict(scaled)
    case.equal(ours(images), visible.classified(settings, scaled, images)[0], "logits")


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
    case.equal(rollout(A), visible.followed(A), "R")


@check(attention_rollout, see="Attention through all layers")
def deep(rollout, case):
    """is right for a model of many layers"""
    A = visible.looks_of(case, 12, 2, 3, 5)
    case.equal(rollout(A), visible.followed(A), "R")


@check(resize_positions_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "B")
