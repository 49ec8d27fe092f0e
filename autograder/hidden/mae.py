"""Hidden checks of mae: rounding, gradients, single patches, constant features, errors."""

import torch
from torch.nn import functional as F

from course_pkg.checking.registry import check
from course_pkg.checks.mae import (
    CLOSE,
    decoded,
    decoder_pair,
    encoded,
    encoder_pair,
    fitted,
    loss_inputs,
    masks,
    places,
    probe_inputs,
    shuffles,
    some,
)
from course_pkg.mae import (
    MAEDecoder,
    MAEEncoder,
    grid_positions,
    linear_probe,
    mae_loss,
    random_masking,
)


@check(grid_positions, see="Where a patch stands")
def slow_clocks(positions, case):
    """slows the clocks down by 30 unless told otherwise, even in a single row or column"""
    case.equal(positions(1, 9, 12), places(1, 9, 12, 30.0), "positions", atol=1e-6)
    case.equal(positions(7, 1, 8), places(7, 1, 8, 30.0), "positions of a column", atol=1e-6)
    case.equal(positions(1, 1, 4), places(1, 1, 4, 30.0), "position of one place", atol=1e-6)


@check(random_masking, see="Sort noise to draw without replacement")
def nothing_hidden(mask, case):
    """shuffles and masks nothing if the ratio is 0"""
    B, N = case.sizes(2, low=5)
    noise = case.rand(B, N)
    keep, restore, masked = masks(case, mask(noise, 0.0), B, N, N)
    orders = torch.tensor(shuffles(noise))
    case.equal(keep, orders, "keep")
    case.equal(restore, orders.argsort(dim=1), "restore")
    case.equal(masked, torch.zeros(B, N, dtype=torch.bool), "masked")


@check(random_masking, see="And back into order")
def equal_noise(mask, case):
    """keeps order, restore and masked in agreement even where patches have the same noise"""
    B, quarter = case.sizes(2)
    N = 4 * quarter
    noise = case.integers(0, 2, B, N).double()
    keep, restore, masked = masks(case, mask(noise), B, N, quarter)
    numbers = torch.arange(N).expand(B, N)
    case.equal(restore.sort(dim=1).values, numbers, "restore, sorted,")
    case.equal(restore.gather(1, keep), numbers[:, :quarter], "places of the patches in keep")
    case.equal(masked, restore >= quarter, "masked")


@check(MAEEncoder, see="An encoder that never sees the masked patches")
def one_patch(encoder, case):
    """encodes a single visible patch of a single image, such as patch 0"""
    ours, settings, state, images = encoder_pair(case, encoder)
    for keep in (some(case, 1, len(state["positions"]) - 1, 1), torch.zeros(1, 1).long()):
        expected = encoded(settings, state, images[:1], keep)
        case.equal(ours(images[:1], keep), expected, f"X of patch {keep.item()}")


@check(MAEEncoder, see="An encoder that never sees the masked patches")
def all_in_another_order(encoder, case):
    """keeps to the order of keep even when it names all patches"""
    ours, settings, state, images = encoder_pair(case, encoder)
    N = len(state["positions"]) - 1
    keep = some(case, len(images), N, N)
    case.equal(ours(images, keep), encoded(settings, state, images, keep), "X")


@check(MAEDecoder, see="A decoder that fills the gaps")
def one_visible(decoder, case):
    """predicts an image from a single patch"""
    ours, state, X, keep, _ = decoder_pair(case, decoder)
    N = len(state["positions"]) - 1
    order = torch.cat([keep[:1, :1], (keep[:1, :1] + torch.arange(1, N)) % N], dim=1)
    given = ours(X[:1, :2], order.argsort(dim=1))
    case.equal(given, decoded(state, X[:1, :2], keep[:1, :1]), "patches")


@check(mae_loss, see="Each patch in its own units")
def empty_patches(loss, case):
    """expects zeros where a patch has one colour only, and stays finite"""
    predicted, patches, masked = loss_inputs(case)
    colours = patches[:, :, :1].expand_as(patches).contiguous()
    expected = F.mse_loss(predicted[masked], torch.zeros_like(predicted[masked]))
    case.equal(loss(predicted, colours.round(), masked), expected, "loss")


@check(mae_loss, see="Masked patches only")
def gradients(loss, case):
    """passes gradients to the predictions of masked patches, and to no others"""
    predicted, patches, masked = loss_inputs(case)
    M = patches.shape[-1]
    share = (M - 1) / M  # torch divides the variance by M
    targets = F.layer_norm(patches, (M,), eps=share * 1e-6) * share**0.5
    expected = 2 * (predicted - targets) * masked[:, :, None] / (masked.sum() * M)
    predicted.requires_grad_()
    value = loss(predicted, patches, masked)
    case.shape(value, (), "loss")
    case.trains(value, "loss")
    value.backward()
    case.equal(predicted.grad, expected, "gradient of predicted")


@check(linear_probe, see="Features in their own units")
def constant_feature(probe, case):
    """is not disturbed by a feature that is the same in all labelled images"""
    features, labels, new, classes = probe_inputs(case)
    expected = fitted(features, labels, new, classes)
    features = torch.cat([features, torch.full((len(features), 1), 5.0).double()], dim=1)
    new = torch.cat([new, 5 + case.randn(len(new), 1)], dim=1)
    case.equal(probe(features, labels, new, classes), expected, "probabilities", **CLOSE)


@check(linear_probe, see="A linear probe")
def distributions(probe, case):
    """gives each new image probabilities that sum to one"""
    features, labels, new, classes = probe_inputs(case)
    given = probe(features, labels, new, classes)
    case.shape(given, (len(new), classes), "probabilities")
    case.that(given.min() >= 0, f"probabilities should be at least 0, one is {given.min():.4g}.")
    case.equal(given.sum(dim=1), torch.ones(len(new)), "sums of the probabilities")
