"""Checks of mae. Oracles: loops, torch's convolution and pre-LN layer, Newton's method."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from course_pkg.checking.batched import made
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.checking.rules.rules import Rule, forbid
from course_pkg.checks.vit import below, convolved, drawn, image_sizes, layer_shapes, torchs_layer
from course_pkg.mae import (
    MAEDecoder,
    MAEEncoder,
    grid_positions,
    linear_probe,
    mae_loss,
    random_masking,
    random_masking_fault,
)

PROBES = Rule(
    (
        "sklearn.linear_model.LogisticRegression",
        "sklearn.linear_model.LogisticRegressionCV",
        "sklearn.linear_model._logistic._logistic_regression_path",  # what both call
    )
)
forbid(linear_probe, PROBES)


# grid_positions


def place(number: int, half: int, base: float) -> list[float]:
    """Encode one row or column, number by number."""
    angles = [number / base ** (2 * i / half) for i in range(half // 2)]
    return [wave(angle) for angle in angles for wave in (math.sin, math.cos)]


def places(h: int, w: int, D: int, base: float) -> Tensor:
    """Encode a grid, place by place."""
    numbers = [(i, j) for i in range(h) for j in range(w)]
    rows = [place(i, D // 2, base) + place(j, D // 2, base) for i, j in numbers]
    return torch.tensor(rows, dtype=torch.float64)


@check(grid_positions, weight=2, see="Where a patch stands")
def values(positions, case):
    """joins the sines and cosines of the row and those of the column"""
    h, w, quarter = case.sizes(3)
    given = positions(h, w, 4 * quarter, 50.0)
    case.equal(given, places(h, w, 4 * quarter, 50.0), "positions", atol=1e-6)
    given = positions(h, w, 4 * quarter)
    case.equal(given, places(h, w, 4 * quarter, 30.0), "positions without a base", atol=1e-6)


@check(grid_positions, see="Where a patch stands")
def neighbours(positions, case):
    """gives patches in one row the same first half, and in one column the same second half"""
    h, w, quarter = case.sizes(3)
    D = 4 * quarter
    given = positions(h, w, D)
    case.shape(given, (h * w, D), "positions")
    rows, columns = given[:, : D // 2].reshape(h, w, -1), given[:, D // 2 :].reshape(h, w, -1)
    case.equal(rows, rows[:, :1].expand(h, w, -1), "first halves of one row")
    case.equal(columns, columns[:1].expand(h, w, -1), "second halves of one column")


@check(grid_positions, see="Where a patch stands")
def indivisible(positions, case):
    """raises ValueError if D is not divisible by 4"""
    case.raises(ValueError, lambda: positions(3, 2, 6), "D is 6")
    case.raises(ValueError, lambda: positions(3, 2, 9), "D is 9")


@check(grid_positions, see="Where a patch stands")
def slow_clocks(positions, case):
    """slows the clocks down by 30 unless told otherwise, even in a single row or column"""
    case.equal(positions(1, 9, 12), places(1, 9, 12, 30.0), "positions", atol=1e-6)
    case.equal(positions(7, 1, 8), places(7, 1, 8, 30.0), "positions of a column", atol=1e-6)
    case.equal(positions(1, 1, 4), places(1, 1, 4, 30.0), "position of one place", atol=1e-6)


# random_masking


def shuffles(noise: Tensor) -> list[list[int]]:
    """The numbers of each image's patches, the smallest noise first."""
    return [sorted(range(len(row)), key=row.__getitem__) for row in noise.tolist()]


def masks(case: Case, result: object, B: int, N: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split what random_masking returns, and demand the shapes."""
    keep, restore, masked = case.unpack(result, "keep", "restore", "masked")
    case.shape(keep, (B, n), "keep")
    case.shape(restore, (B, N), "restore")
    case.shape(masked, (B, N), "masked")
    return keep, restore, masked


@check(random_masking, weight=2, see="Sort noise to draw without replacement", single="B")
def values(mask, case):
    """keeps the quarter of the patches with the smallest noise, the smallest first"""
    B, quarter = case.sizes(2)
    noise = case.rand(B, 4 * quarter)
    keep, _, _ = masks(case, mask(noise), B, 4 * quarter, quarter)
    case.equal(keep, torch.tensor(shuffles(noise))[:, :quarter], "keep")


@check(random_masking, weight=2, see="And back into order")
def restores(mask, case):
    """says where every patch stands in the shuffled order, including the masked ones"""
    B, half = case.sizes(2, low=3)
    noise = case.rand(B, 2 * half)
    _, restore, _ = masks(case, mask(noise, 0.5), B, 2 * half, half)
    expected = [[row.index(patch) for patch in range(2 * half)] for row in shuffles(noise)]
    case.equal(restore, torch.tensor(expected), "restore")


@check(random_masking, see="Sort noise to draw without replacement")
def masked_are_the_others(mask, case):
    """marks as masked the patches that are not kept, by their own numbers"""
    B, eighth = case.sizes(2)
    noise = case.rand(B, 8 * eighth)
    keep, _, masked = masks(case, mask(noise, 0.625), B, 8 * eighth, 3 * eighth)
    visible = torch.tensor(shuffles(noise))[:, : 3 * eighth].sort(dim=1).values
    case.equal(keep.sort(dim=1).values, visible, "keep, sorted,")
    expected = torch.ones(B, 8 * eighth, dtype=torch.bool).scatter(1, visible, False)
    case.equal(masked, expected, "masked")


@check(random_masking, see="Sort noise to draw without replacement")
def rounding(mask, case):
    """rounds the number of visible patches down, rounding errors apart"""
    for N, ratio, visible in (
        (14, 0.75, 3),
        (10, 0.75, 2),
        (7, 0.75, 1),
        (25, 0.28, 18),  # 25 * 0.28 is more than 7 in floating point
        (20, 0.9, 2),  # and 20 * (1 - 0.9) less than 2
        (10, 0.9, 1),
    ):
        noise, given = case.rand(3, N), f"of {N} patches, ratio {ratio},"
        keep, restore, masked = case.unpack(mask(noise, ratio), "keep", "restore", "masked")
        case.shape(keep, (3, visible), f"keep {given}")
        orders = torch.tensor(shuffles(noise))
        case.equal(keep, orders[:, :visible], f"keep {given}")
        case.equal(restore, orders.argsort(dim=1), f"restore {given}")
        case.shape(masked, (3, N), f"masked {given}")
        counts = torch.full((3,), N - visible)
        case.equal(masked.sum(dim=1), counts, f"number of masked patches in each image {given}")


@check(random_masking, see="Sort noise to draw without replacement")
def refuses(mask, case):
    """raises ValueError if no patch stays visible, or the ratio is negative"""
    B, N = 2, 3
    noise = case.rand(B, N)
    case.raises(ValueError, lambda: mask(noise, 0.75), "a quarter of 3 patches is none")
    case.raises(ValueError, lambda: mask(noise, 1.0), "the ratio is 1")
    case.raises(ValueError, lambda: mask(noise, 1.5), "the ratio is 1.5")
    case.raises(ValueError, lambda: mask(noise, -0.5), "the ratio is negative")
    case.raises(ValueError, lambda: mask(noise, -0.01), "the ratio is just below 0")


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


@check(random_masking, see="Sort noise to draw without replacement")
def nothing_hidden(mask, case):
    """shuffles, but masks nothing, if the ratio is 0"""
    B, N = case.sizes(2, low=5)
    noise = case.rand(B, N)
    keep, restore, masked = masks(case, mask(noise, 0.0), B, N, N)
    orders = torch.tensor(shuffles(noise))
    case.equal(keep, orders, "keep")
    case.equal(restore, orders.argsort(dim=1), "restore")
    case.equal(masked, torch.zeros(B, N, dtype=torch.bool), "masked")


# MAEEncoder


def encoder_shapes(size: tuple[int, int], P: int, C: int, D: int, L: int) -> dict:
    """The weights of an MAEEncoder."""
    shapes = {"patches.W": (P * P * C, D), "patches.b": (D,), "cls": (D,)}
    shapes["positions"] = (1 + size[0] * size[1] // P**2, D)
    for number in range(L):
        shapes |= layer_shapes(D, f"layers.{number}.")
    return shapes | {"norm.weight": (D,), "norm.bias": (D,)}


def encoder_pair(case: Case, encoder) -> tuple:
    """Make a student's encoder with random weights; return it, its settings, weights, images."""
    B, C, P, h, w = image_sizes(case)
    size, D, H, L = (h * P, w * P), 8, 2, 2
    state = drawn(case, encoder_shapes(size, P, C, D, L))
    state["positions"] = 2 * case.randn(1 + h * w, D)
    ours = made(encoder, state, size, P, C, D, H, L)
    return ours, (P, D, H, L), state, case.randn(B, C, *size)


def some(case: Case, B: int, N: int, n: int) -> Tensor:
    """Draw n patches of each image, in no order."""
    return torch.stack([torch.randperm(N, generator=case.generator)[:n] for _ in range(B)])


def run_layers(state: dict[str, Tensor], X: Tensor, H: int) -> Tensor:
    """Send tokens through torch's own layers and the last norm."""
    L = len({name.split(".")[1] for name in state if name.startswith("layers.")})
    for number in range(L):
        X = torchs_layer(below(state, f"layers.{number}."), H)(X)
    return F.layer_norm(X, X.shape[-1:], state["norm.weight"], state["norm.bias"], 1e-6)


def encoded(settings: tuple, state: dict[str, Tensor], images: Tensor, keep: Tensor) -> Tensor:
    """Compute an encoder's vectors, image by image and patch by patch."""
    P, D, H, _ = settings
    kernel = state["patches.W"].reshape(P, P, -1, D).permute(3, 2, 0, 1)
    patches = convolved(images, kernel, state["patches.b"])
    rows = []
    for row, numbers in enumerate(keep.tolist()):
        tokens = [state["cls"] + state["positions"][0]]
        tokens += [patches[row, number] + state["positions"][1 + number] for number in numbers]
        rows.append(torch.stack(tokens))
    return run_layers(state, torch.stack(rows), H)


@check(MAEEncoder, weight=2, see="With nothing masked")
def all_patches(encoder, case):
    """is a ViT with a class token when nothing is masked"""
    ours, settings, state, images = encoder_pair(case, encoder)
    N = len(state["positions"]) - 1
    everything = torch.arange(N).expand(len(images), N)
    case.equal(ours(images), encoded(settings, state, images, everything), "X")


@check(MAEEncoder, weight=3, see="An encoder that never sees the masked patches")
def visible_patches(encoder, case):
    """encodes the patches in keep, in that order, each with its own position"""
    ours, settings, state, images = encoder_pair(case, encoder)
    N = len(state["positions"]) - 1
    keep = some(case, len(images), N, N // 2)
    case.equal(ours(images, keep), encoded(settings, state, images, keep), "X")


@check(MAEEncoder, see="An encoder that never sees the masked patches")
def blind(encoder, case):
    """gives the same whatever the masked patches hold"""
    ours, (P, *_), state, images = encoder_pair(case, encoder)
    N, columns = len(state["positions"]) - 1, images.shape[3] // P
    keep = some(case, len(images), N, N // 2)
    other = images + 10
    for row, numbers in enumerate(keep.tolist()):
        for top, left in ((number // columns * P, number % columns * P) for number in numbers):
            place = row, slice(None), slice(top, top + P), slice(left, left + P)
            other[place] = images[place]
    before, after = ours(images, keep), ours(other, keep)
    case.shape(before, (len(images), 1 + N // 2, len(state["cls"])), "X")
    case.equal(after, before, "X with other masked patches")


@check(MAEEncoder, see="An encoder that never sees the masked patches")
def gradients(encoder, case):
    """learns the class token, and the map of the visible patches"""
    ours, settings, state, images = encoder_pair(case, encoder)
    N = len(state["positions"]) - 1
    keep = some(case, len(images), N, N // 2)
    leaves = {name: state[name].clone().requires_grad_() for name in ("cls", "patches.W")}
    X = encoded(settings, state | leaves, images, keep)
    seen = case.randn(*X.shape)
    expected = dict(zip(leaves, torch.autograd.grad(X, leaves.values(), seen), strict=True))
    given = ours(images, keep)
    case.shape(given, tuple(X.shape), "X")
    case.trains(given, "X")
    given.backward(seen)
    parameters = dict(ours.named_parameters())
    for name, gradient in expected.items():
        case.gradient(parameters[name], gradient, name)
    case.learns(ours)


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


# MAEDecoder


def decoder_shapes(N: int, M: int, D: int, D_dec: int, L: int) -> dict[str, tuple[int, ...]]:
    """The weights of an MAEDecoder."""
    shapes = {"embed.weight": (D_dec, D), "embed.bias": (D_dec,), "mask_token": (D_dec,)}
    shapes["positions"] = (1 + N, D_dec)
    for number in range(L):
        shapes |= layer_shapes(D_dec, f"layers.{number}.")
    shapes |= {"norm.weight": (D_dec,), "norm.bias": (D_dec,)}
    return shapes | {"head.weight": (M, D_dec), "head.bias": (M,)}


def decoder_pair(case: Case, decoder) -> tuple:
    """Make a student's decoder with random weights; return it, its weights, X, keep, restore."""
    B, M, D, h, w = case.sizes(5)
    N, n, D_dec, H, L = h * w, h * w // 2, 4, 2, 2
    state = drawn(case, decoder_shapes(N, M, D, D_dec, L))
    state["positions"] = 2 * case.randn(1 + N, D_dec)
    ours = made(decoder, state, (h, w), M, D, D_dec, H, L)
    order = some(case, B, N, N)
    return ours, state, case.randn(B, 1 + n, D), order[:, :n], order.argsort(dim=1)


def decoded(state: dict[str, Tensor], X: Tensor, keep: Tensor) -> Tensor:
    """Compute a decoder's predictions, patch by patch."""
    X = F.linear(X, state["embed.weight"], state["embed.bias"])
    N = len(state["positions"]) - 1
    rows = []
    for row, numbers in enumerate(keep.tolist()):
        tokens = [X[row, 0]] + [state["mask_token"]] * N
        for place, number in enumerate(numbers):
            tokens[1 + number] = X[row, 1 + place]
        rows.append(torch.stack(tokens) + state["positions"])
    X = run_layers(state, torch.stack(rows), H=2)
    return F.linear(X[:, 1:], state["head.weight"], state["head.bias"])


@check(MAEDecoder, weight=3, see="A decoder that fills the gaps")
def values(decoder, case):
    """puts every vector at its patch's place, mask tokens elsewhere, and agrees with torch"""
    ours, state, X, keep, restore = decoder_pair(case, decoder)
    case.equal(ours(X, restore), decoded(state, X, keep), "patches")


@check(MAEDecoder, see="A decoder that fills the gaps")
def order_of_the_visible(decoder, case):
    """gives the same whatever order the visible patches come in"""
    ours, state, X, keep, restore = decoder_pair(case, decoder)
    n, N = keep.shape[1], restore.shape[1]
    turned = torch.cat([X[:, :1], X[:, 1:].flip(1)], dim=1)
    places = torch.where(restore < n, n - 1 - restore, restore)
    first, second = ours(X, restore), ours(turned, places)
    case.shape(first, (len(X), N, len(state["head.bias"])), "patches")
    case.equal(second, first, "patches predicted from the reverse order")


@check(MAEDecoder, see="A decoder that fills the gaps")
def nothing_masked(decoder, case):
    """needs no mask token when all patches are visible"""
    ours, state, _, _, restore = decoder_pair(case, decoder)
    B, N = restore.shape
    X = case.randn(B, 1 + N, state["embed.weight"].shape[1])
    case.equal(ours(X, restore), decoded(state, X, restore.argsort(dim=1)), "patches")


@check(MAEDecoder, see="A decoder that fills the gaps")
def gradients(decoder, case):
    """learns the mask token, and passes gradients on to the encoder"""
    ours, state, X, keep, restore = decoder_pair(case, decoder)
    leaves = [state["mask_token"].clone().requires_grad_(), X.clone().requires_grad_()]
    patches = decoded(state | {"mask_token": leaves[0]}, leaves[1], keep)
    seen = case.randn(*patches.shape)
    expected = torch.autograd.grad(patches, leaves, seen)
    X.requires_grad_()
    given = ours(X, restore)
    case.shape(given, tuple(patches.shape), "patches")
    case.trains(given, "patches")
    given.backward(seen)
    case.gradient(dict(ours.named_parameters())["mask_token"], expected[0], "mask_token")
    case.gradient(X, expected[1], "X")
    case.learns(ours)


@check(MAEDecoder, see="A decoder that fills the gaps")
def one_visible(decoder, case):
    """predicts an image from a single patch"""
    ours, state, X, keep, _ = decoder_pair(case, decoder)
    N = len(state["positions"]) - 1
    order = torch.cat([keep[:1, :1], (keep[:1, :1] + torch.arange(1, N)) % N], dim=1)
    given = ours(X[:1, :2], order.argsort(dim=1))
    case.equal(given, decoded(state, X[:1, :2], keep[:1, :1]), "patches")


# mae_loss


def loss_inputs(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Draw predictions, patches and which are masked, not as many in every image."""
    B, N, M = case.sizes(3, low=3)
    masked = case.rand(B, N) < 0.6
    masked[0] = torch.arange(N) == 1
    masked[1] = torch.arange(N) != 1
    return case.randn(B, N, M), 3 * case.randn(B, N, M) + 2, masked


def error_by_loop(predicted: Tensor, patches: Tensor, masked: Tensor, normalise: bool) -> Tensor:
    """Average the squared errors of all numbers of the masked patches."""
    errors = []
    for b, i in masked.nonzero().tolist():
        target = patches[b, i]
        if normalise:
            centred = target - target.sum() / len(target)
            target = centred / (centred.square().sum() / (len(target) - 1) + 1e-6) ** 0.5
        errors += [(p - t) ** 2 for p, t in zip(predicted[b, i], target, strict=True)]
    return torch.stack(errors).mean()


@check(mae_loss, weight=3, see="Masked patches only")
def values(loss, case):
    """is the mean squared error of the masked patches, each normalised by itself"""
    predicted, patches, masked = loss_inputs(case)
    expected = error_by_loop(predicted, patches, masked, True)
    case.equal(loss(predicted, patches, masked), expected, "loss")


@check(mae_loss, see="Each patch in its own units")
def plain(loss, case):
    """compares with the patches as they are if normalise is False, and only then"""
    predicted, patches, masked = loss_inputs(case)
    for choice in (False, True):
        expected = error_by_loop(predicted, patches, masked, choice)
        given = loss(predicted, patches, masked, normalise=choice)
        case.equal(given, expected, f"loss with normalise={choice}")


@check(mae_loss, see="Masked patches only")
def visible_do_not_count(loss, case):
    """gives the same whatever is predicted for the visible patches"""
    predicted, patches, masked = loss_inputs(case)
    other = torch.where(masked[:, :, None], predicted, 100)
    before = loss(predicted, patches, masked)
    case.shape(before, (), "loss")
    case.equal(
        loss(other, patches, masked), before, "loss with other predictions of visible patches"
    )


@check(mae_loss, see="Each patch in its own units")
def brightness(loss, case):
    """gives the same when the images become brighter and gain contrast"""
    predicted, patches, masked = loss_inputs(case)
    before = loss(predicted, patches, masked)
    case.shape(before, (), "loss")
    case.equal(
        loss(predicted, 7 * patches + 3, masked), before, "loss of brighter images", rtol=1e-4
    )


@check(mae_loss, see="Each patch in its own units")
def faint_patches(loss, case):
    """adds 10⁻⁶ to the variance, inside the root, which matters where a patch is faint"""
    predicted, patches, masked = loss_inputs(case)
    faint = patches / 2000
    expected = error_by_loop(predicted, faint, masked, True)
    case.equal(loss(predicted, faint, masked), expected, "loss")


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


@check(mae_loss, see="Each patch in its own units")
def empty_patches(loss, case):
    """expects zeros where a patch has one colour only, and stays finite"""
    predicted, patches, masked = loss_inputs(case)
    colours = patches[:, :, :1].expand_as(patches).contiguous()
    expected = F.mse_loss(predicted[masked], torch.zeros_like(predicted[masked]))
    case.equal(loss(predicted, colours.round(), masked), expected, "loss")


# linear_probe


def probe_inputs(case: Case) -> tuple[Tensor, Tensor, Tensor, int]:
    """Draw features of very different sizes, labels, new features, and how many classes."""
    D, classes, count = case.sizes(3, low=3)
    sizes = 10 ** torch.linspace(-0.4, 0.4, D).double()
    labels = torch.arange(6 * classes) % classes
    centres = case.randn(classes, D)
    features = (case.randn(len(labels), D) + centres[labels] + 1) * sizes
    return features, labels, (case.randn(count, D) + 1) * sizes, classes


def fitted(
    features: Tensor, labels: Tensor, new: Tensor, classes: int, penalty: float = 0.01
) -> Tensor:
    """Compute the probabilities by Newton's method."""
    centre, spread = features.mean(dim=0), features.std(dim=0)
    X, X_new = (F.pad((rows - centre) / spread, (0, 1), value=1.0) for rows in (features, new))
    W = torch.zeros(X.shape[1], classes, dtype=torch.float64)  # its last row is b
    held = torch.full_like(W, penalty)
    held[-1] = 0
    for _ in range(20):
        shares = (X @ W).softmax(dim=1)
        slope = X.T @ (shares - F.one_hot(labels, classes)) / len(X) + held * W
        curve = torch.diag_embed(shares) - shares[:, :, None] * shares[:, None, :]
        curve = torch.einsum("ni,nj,nkl->ikjl", X, X, curve).flatten(2).flatten(0, 1) / len(X)
        step = torch.linalg.pinv(curve + held.flatten().diag(), hermitian=True) @ slope.flatten()
        W = W - step.reshape(W.shape)
    return (X_new @ W).softmax(dim=1)


CLOSE = {"rtol": 0, "atol": 2e-3, "rough": True}  # for solutions that descend step by step


@check(linear_probe, weight=3, see="A linear probe")
def values(probe, case):
    """finds the probabilities that Newton's method finds"""
    features, labels, new, classes = probe_inputs(case)
    given = probe(features, labels, new, classes)
    case.equal(given, fitted(features, labels, new, classes), "probabilities", **CLOSE)


@check(linear_probe, see="A linear probe")
def far_enough(probe, case):
    """searches on until the minimum is reached, even with a penalty of 0.001"""
    for number in range(3):
        features, labels, new, classes = probe_inputs(case)
        given = probe(features, labels, new, classes, 1e-3)
        expected = fitted(features, labels, new, classes, 1e-3)
        case.equal(given, expected, f"probabilities of problem {number}", **CLOSE)


@check(linear_probe, see="A linear probe")
def penalised(probe, case):
    """penalises the weights as strongly as it is told, and b not at all"""
    features, labels, new, classes = probe_inputs(case)
    rare = (labels != 0) | (torch.arange(len(labels)) < 2 * classes)  # classes of unequal size
    features, labels = features[rare], labels[rare]
    for penalty in (0.3, 100.0):
        given = probe(features, labels, new, classes, penalty)
        expected = fitted(features, labels, new, classes, penalty)
        case.equal(given, expected, f"probabilities, penalty {penalty:g},", **CLOSE)


@check(linear_probe, see="Features in their own units")
def units(probe, case):
    """gives the same when a feature is measured in other units"""
    features, labels, new, classes = probe_inputs(case)
    factors, offsets = case.rand(features.shape[1]) + 0.5, case.randn(features.shape[1])
    given = probe(features * factors + offsets, labels, new * factors + offsets, classes)
    expected = fitted(features, labels, new, classes)
    case.equal(given, expected, "probabilities in other units", **CLOSE)
    given = probe(1e-6 * features, labels, 1e-6 * new, classes)
    case.equal(given, expected, "probabilities from features of size 10⁻⁶", **CLOSE)


@check(linear_probe, see="Features in their own units")
def one_at_a_time(probe, case):
    """gives a new image the same probabilities whatever the other new images are"""
    features, labels, new, classes = probe_inputs(case)
    expected = fitted(features, labels, new, classes)
    for count in (2, 1):
        given = probe(features, labels, new[:count], classes)
        case.equal(given, expected[:count], f"probabilities of {count} of the images", **CLOSE)


@check(linear_probe, see="Features in their own units")
def constant_feature(probe, case):
    """is not disturbed by a feature that is the same in all labelled images"""
    features, labels, new, classes = probe_inputs(case)
    expected = fitted(features, labels, new, classes)
    features = torch.cat([features, torch.full((len(features), 1), 5.0).double()], dim=1)
    new = torch.cat([new, 5 + case.randn(len(new), 1)], dim=1)
    case.equal(probe(features, labels, new, classes), expected, "probabilities", **CLOSE)


# random_masking_fault


def hidden_patches(noise: Tensor, ratio: float = 0.75) -> tuple[Tensor, Tensor, Tensor]:
    """Choose patches, if noise and ratio are what random_masking takes."""
    _, N = noise.shape
    n = math.floor(round(N * (1 - ratio), 6))
    if ratio < 0 or n < 1:
        raise ValueError(f"a ratio of {ratio:.4g} leaves {n} of {N} patches")
    if any(len(set(row)) < N for row in noise.tolist()):
        raise ValueError("two patches of an image have the same noise")
    orders = torch.tensor(shuffles(noise))
    places = orders.argsort(dim=1)
    return orders[:, :n], places, places >= n


@check(random_masking_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "random_masking", hidden_patches)
