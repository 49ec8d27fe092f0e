"""Known wrong solutions of mae."""

import math

import torch
from torch.nn import functional as F

from autograder.bugs import bug, equivalent
from course_pkg.mae import (
    MAEDecoder,
    MAEEncoder,
    grid_positions,
    linear_probe,
    mae_loss,
    random_masking,
)
from course_pkg.positions import sinusoidal_positions

# grid_positions


def halves(h, w, D, base):
    """The encodings of rows and of columns, each as (h, w, D/2)."""
    if D % 4:
        raise ValueError(D)
    rows = sinusoidal_positions(h, D // 2, base)[:, None].expand(h, w, -1)
    return rows, sinusoidal_positions(w, D // 2, base).expand(h, w, -1)


@bug(grid_positions, "the column comes first")
def column_first(h, w, D, base=30.0):
    rows, columns = halves(h, w, D, base)
    return torch.cat([columns, rows], dim=2).reshape(h * w, D)


@bug(grid_positions, "the grid is read column by column", classic=True)
def read_down(h, w, D, base=30.0):
    rows, columns = halves(h, w, D, base)
    return torch.cat([rows, columns], dim=2).transpose(0, 1).reshape(h * w, D)


@bug(grid_positions, "the grid is taken for a line of patches")
def line(h, w, D, base=30.0):
    halves(h, w, D, base)
    return sinusoidal_positions(h * w, D, base)


@bug(grid_positions, "only the row is encoded")
def rows_only(h, w, D, base=30.0):
    rows, _ = halves(h, w, D, base)
    return torch.cat([rows, rows], dim=2).reshape(h * w, D)


@bug(grid_positions, "only the column is encoded")
def columns_only(h, w, D, base=30.0):
    _, columns = halves(h, w, D, base)
    return torch.cat([columns, columns], dim=2).reshape(h * w, D)


@bug(grid_positions, "row and column are added, so that (1, 2) and (2, 1) are the same place")
def added(h, w, D, base=30.0):
    halves(h, w, D, base)
    rows = sinusoidal_positions(h, D, base)[:, None]
    return (rows + sinusoidal_positions(w, D, base)).reshape(h * w, D)


@bug(
    grid_positions,
    "the halves are cut from encodings of size D: the fast clocks encode the row",
    classic=True,
)
def cut_out(h, w, D, base=30.0):
    halves(h, w, D, base)
    rows = sinusoidal_positions(h, D, base)[:, None, : D // 2].expand(h, w, -1)
    columns = sinusoidal_positions(w, D, base)[:, D // 2 :].expand(h, w, -1)
    return torch.cat([rows, columns], dim=2).reshape(h * w, D)


@bug(grid_positions, "the base is 10 000, whatever is given")
def slow(h, w, D, base=30.0):
    return grid_positions(h, w, D, 10_000.0)


@bug(grid_positions, "the base is 10 000 unless another is given")
def slow_by_default(h, w, D, base=10_000.0):
    return grid_positions(h, w, D, base)


@bug(grid_positions, "axes of size 1 are dropped", told_by="should have shape (1, 4)")
def squeezed(h, w, D, base=30.0):
    return grid_positions(h, w, D, base).squeeze()


@bug(grid_positions, "the rows are counted from 1")
def from_one(h, w, D, base=30.0):
    rows, columns = halves(h + 1, w + 1, D, base)
    return torch.cat([rows[1:, 1:], columns[1:, 1:]], dim=2).reshape(h * w, D)


@bug(grid_positions, "a D that cannot be divided by 4 is accepted", told_by="raise ValueError when")
def undivided(h, w, D, base=30.0):
    return F.pad(grid_positions(h, w, D // 4 * 4, base), (0, D % 4))


# random_masking


def visible(noise, ratio):
    """How many patches stay; refuses what the reference refuses."""
    n = int(noise.shape[1] * (1 - ratio) + 1e-6)
    if ratio < 0 or n < 1:
        raise ValueError(f"a ratio of {ratio}: {n} of {noise.shape[1]}")
    return n


@bug(random_masking, "the patches with the largest noise are kept")
def largest(noise, ratio=0.75):
    visible(noise, ratio)
    return random_masking(-noise, ratio)


@bug(random_masking, "the masked share is kept, and the visible share masked")
def share_exchanged(noise, ratio=0.75):
    visible(noise, ratio)
    return random_masking(noise, 1 - ratio)


@bug(random_masking, "keep holds each patch's place in the order, not the patches in order")
def ranks_kept(noise, ratio=0.75):
    n = visible(noise, ratio)
    places = noise.argsort(dim=1).argsort(dim=1)
    return places[:, :n], places, places >= n


@bug(random_masking, "restore is the shuffled order itself, not the way back", classic=True)
def not_inverted(noise, ratio=0.75):
    keep, restore, masked = random_masking(noise, ratio)
    return keep, restore.argsort(dim=1), masked


@bug(
    random_masking, "masked is in the shuffled order, not in the order of the patches", classic=True
)
def mask_shuffled(noise, ratio=0.75):
    keep, restore, masked = random_masking(noise, ratio)
    return keep, restore, masked.sort(dim=1).values


@bug(random_masking, "masked marks the visible patches")
def mask_inverted(noise, ratio=0.75):
    keep, restore, masked = random_masking(noise, ratio)
    return keep, restore, ~masked


@bug(random_masking, "all images hide the same patches: only the first image's noise is used")
def same_for_all(noise, ratio=0.75):
    return random_masking(noise[:1].expand_as(noise), ratio)


@bug(random_masking, "the noise is sorted over the batch, not over the patches of an image")
def over_the_batch(noise, ratio=0.75):
    n = visible(noise, ratio)
    order = noise.argsort(dim=0)
    restore = order.argsort(dim=0)
    return order[:, :n], restore, restore >= n


@bug(random_masking, "the first patches are kept, in every image")
def first_patches(noise, ratio=0.75):
    n = visible(noise, ratio)
    order = torch.arange(noise.shape[1]).expand(noise.shape)
    return order[:, :n], order, order >= n


@bug(random_masking, "the visible patches are sorted by their numbers")
def kept_in_order(noise, ratio=0.75):
    keep, restore, masked = random_masking(noise, ratio)
    return keep.sort(dim=1).values, restore, masked


@bug(random_masking, "each patch is masked by a draw of its own", told_by="should have shape")
def coin_flips(noise, ratio=0.75):
    visible(noise, ratio)
    masked = noise < ratio
    order = masked.to(noise).argsort(dim=1, stable=True)
    n = int((~masked).sum(dim=1).max())
    return order[:, :n], order.argsort(dim=1), masked


@bug(random_masking, "the number of visible patches is rounded up", told_by="should have shape")
def rounded_up(noise, ratio=0.75):
    visible(noise, ratio)
    order = noise.argsort(dim=1)
    n = noise.shape[1] - int(noise.shape[1] * ratio)
    restore = order.argsort(dim=1)
    return order[:, :n], restore, restore >= n


def first_of_the_order(noise, n):
    """Keep the first n patches of the shuffled order, whatever n is."""
    order = noise.argsort(dim=1)
    restore = order.argsort(dim=1)
    return order[:, :n], restore, restore >= n


@bug(
    random_masking,
    "rounding errors count: two of twenty are rounded down to one, one of ten to none",
    told_by="keep of 20 patches, ratio 0.9, should have shape (3, 2)",
)
def one_in_ten_lost(noise, ratio=0.75):
    N = noise.shape[1]
    n = int(N * (1 - ratio))
    if ratio < 0 or n < 1:
        raise ValueError(f"a ratio of {ratio} leaves none of {N}")
    return first_of_the_order(noise, n)


@bug(
    random_masking,
    "rounding errors count: seven of 25 masked patches become eight",
    told_by="keep of 25 patches, ratio 0.28, should have shape",
)
def masks_one_more(noise, ratio=0.75):
    visible(noise, ratio)
    N = noise.shape[1]
    return first_of_the_order(noise, N - math.ceil(N * ratio))


@bug(
    random_masking,
    "a ratio above 1 is accepted",
    told_by="should raise ValueError when the ratio is 1.5",
)
def accepts_more_than_all(noise, ratio=0.75):
    n = int(noise.shape[1] * (1 - ratio) + 1e-6)
    if ratio < 0 or n == 0:
        raise ValueError(f"a ratio of {ratio}")
    return first_of_the_order(noise, n)


@bug(random_masking, "masked is found by comparing noise, which fails where patches have the same")
def mask_by_threshold(noise, ratio=0.75):
    keep, restore, _ = random_masking(noise, ratio)
    return keep, restore, noise > noise.gather(1, keep[:, -1:])


@bug(
    random_masking,
    "places are counted by comparing noise, so that patches with the same share one",
    told_by="restore, sorted,",
)
def places_by_counting(noise, ratio=0.75):
    keep, _, masked = random_masking(noise, ratio)
    return keep, (noise[:, None] < noise[:, :, None]).sum(dim=2), masked


@bug(random_masking, "masked holds numbers, not truth values", told_by="hold truth values")
def mask_of_numbers(noise, ratio=0.75):
    keep, restore, masked = random_masking(noise, ratio)
    return keep, restore, masked.to(noise)


@bug(
    random_masking,
    "a ratio that leaves nothing visible is accepted",
    told_by="should raise ValueError when a quarter",
)
def accepts_all(noise, ratio=0.75):
    n = max(0, int(noise.shape[1] * (1 - ratio) + 1e-6))
    order = noise.argsort(dim=1)
    restore = order.argsort(dim=1)
    return order[:, :n], restore, restore >= n


@bug(
    random_masking,
    "a negative ratio is accepted as long as no more than all patches stay",
    told_by="should raise ValueError when the ratio is just below 0",
)
def accepts_just_below(noise, ratio=0.75):
    N = noise.shape[1]
    n = int(N * (1 - ratio) + 1e-6)
    if not 0 < n <= N:
        raise ValueError(f"{n} of {N}")
    return random_masking(noise, max(ratio, 0.0))


@bug(random_masking, "the noise is sorted in place")
def in_place(noise, ratio=0.75):
    kept = random_masking(noise, ratio)
    noise.copy_(noise.sort(dim=1).values)
    return kept


# MAEEncoder


def pick(X, numbers):
    """Take rows of every image by their numbers."""
    return X.gather(1, numbers[:, :, None].expand(-1, -1, X.shape[2]))


class VariedEncoder(MAEEncoder):
    """An MAEEncoder whose steps the bugs below vary."""

    def forward(self, images, keep=None):
        X = self.seen(self.patches(images), keep)
        return self.finish(self.run(torch.cat([self.first(X), X], dim=1)))

    def seen(self, X, keep):
        X = X + self.positions[1:]
        return X if keep is None else pick(X, keep)

    def first(self, X):
        return (self.cls + self.positions[0]).expand(len(X), 1, -1)

    def run(self, X):
        for layer in self.layers:
            X, _ = layer(X)
        return X

    def finish(self, X):
        return self.norm(X)


@bug(
    MAEEncoder,
    "the visible patches get the first positions, whichever patches they are",
    classic=True,
)
class PositionsAfterwards(VariedEncoder):
    def seen(self, X, keep):
        X = X if keep is None else pick(X, keep)
        return X + self.positions[1 : 1 + X.shape[1]]


@bug(MAEEncoder, "the visible patches have no positions")
class NoPositions(VariedEncoder):
    def seen(self, X, keep):
        return X if keep is None else pick(X, keep)


@bug(MAEEncoder, "the positions are one off: patch 0 gets the class token's", classic=True)
class OneOff(VariedEncoder):
    def seen(self, X, keep):
        X = X + self.positions[:-1]
        return X if keep is None else pick(X, keep)

    def first(self, X):
        return (self.cls + self.positions[-1]).expand(len(X), 1, -1)


@bug(MAEEncoder, "the class token has no position")
class FirstWithoutPosition(VariedEncoder):
    def first(self, X):
        return self.cls.expand(len(X), 1, -1)


@bug(MAEEncoder, "the class token comes after the patches")
class ClassLast(VariedEncoder):
    def finish(self, X):
        return torch.cat([self.norm(X)[:, 1:], self.norm(X)[:, :1]], dim=1)


@bug(MAEEncoder, "the class token's vector is dropped")
class ClassDropped(VariedEncoder):
    def finish(self, X):
        return self.norm(X)[:, 1:]


@bug(MAEEncoder, "keep is ignored: all patches are encoded")
class SeesAll(VariedEncoder):
    def seen(self, X, keep):
        return X + self.positions[1:]


@bug(MAEEncoder, "all patches go through the layers, and the visible ones are taken afterwards")
class TakenAfterwards(VariedEncoder):
    def forward(self, images, keep=None):
        X = super().forward(images)
        return X if keep is None else torch.cat([X[:, :1], pick(X[:, 1:], keep)], dim=1)


@bug(MAEEncoder, "the masked patches are set to zero, but encoded", classic=True)
class ZeroedOut(VariedEncoder):
    def seen(self, X, keep):
        if keep is not None:
            X = X * torch.zeros_like(X[:, :, :1]).scatter(1, keep[:, :, None], 1.0)
        return X + self.positions[1:]


@bug(MAEEncoder, "the first n patches are encoded, not those in keep")
class FirstPatches(VariedEncoder):
    def seen(self, X, keep):
        X = X + self.positions[1:]
        return X if keep is None else X[:, : keep.shape[1]]


@bug(MAEEncoder, "every image keeps the patches of the first")
class KeptByFirst(VariedEncoder):
    def seen(self, X, keep):
        return super().seen(X, None if keep is None else keep[:1].expand_as(keep))


@bug(MAEEncoder, "the visible patches come in the order of their numbers")
class KeptInOrder(VariedEncoder):
    def seen(self, X, keep):
        return super().seen(X, None if keep is None else keep.sort(dim=1).values)


@bug(MAEEncoder, "a keep that holds patch 0 alone is taken for None")
class ZeroIsNone(VariedEncoder):
    def seen(self, X, keep):
        return super().seen(X, keep if keep is not None and keep.any() else None)


@bug(MAEEncoder, "the order of keep is ignored when it names all patches")
class AllInOrder(VariedEncoder):
    def seen(self, X, keep):
        return super().seen(X, None if keep is None or keep.shape[1] == X.shape[1] else keep)


@bug(MAEEncoder, "the class token is counted when the patches in keep are taken", classic=True)
class CountsClass(VariedEncoder):
    def forward(self, images, keep=None):
        X = self.seen(self.patches(images), None)
        X = torch.cat([self.first(X), X], dim=1)
        if keep is not None:
            X = torch.cat([X[:, :1], pick(X, keep)], dim=1)
        return self.finish(self.run(X))


@bug(MAEEncoder, "the last norm is left out")
class NotNormed(VariedEncoder):
    def finish(self, X):
        return X


@bug(MAEEncoder, "the first layer is applied again and again")
class SameLayer(VariedEncoder):
    def run(self, X):
        for _ in self.layers:
            X, _ = self.layers[0](X)
        return X


@bug(MAEEncoder, "the last layer is left out")
class LayerLeftOut(VariedEncoder):
    def run(self, X):
        for layer in self.layers[:-1]:
            X, _ = layer(X)
        return X


@bug(MAEEncoder, "the encoder learns nothing", told_by="No gradient goes back")
class WithoutGradient(VariedEncoder):
    def finish(self, X):
        return self.norm(X).detach()


@bug(MAEEncoder, "the class token learns nothing", told_by="No gradient reaches cls")
class FrozenClass(VariedEncoder):
    def first(self, X):
        return (self.cls.detach() + self.positions[0]).expand(len(X), 1, -1)


@bug(
    MAEEncoder,
    "the class token with its position is computed once and kept",
    told_by="MAEEncoder depends on an earlier call",
)
class KeepsItsToken(VariedEncoder):
    kept = None

    def first(self, X):
        if self.kept is None:
            self.kept = self.cls + self.positions[0]
        return self.kept.expand(len(X), 1, -1)


# MAEDecoder


class VariedDecoder(MAEDecoder):
    """An MAEDecoder whose steps the bugs below vary."""

    def forward(self, X, restore):
        X = self.embed(X)
        count = restore.shape[1] + 1 - X.shape[1]
        patches = self.arrange(X[:, 1:], self.tokens(X, count), restore)
        X = self.place(torch.cat([X[:, :1], patches], dim=1))
        return self.finish(self.run(X))

    def tokens(self, X, count):
        return self.mask_token.expand(len(X), count, -1)

    def arrange(self, patches, tokens, restore):
        return pick(torch.cat([patches, tokens], dim=1), restore)

    def place(self, X):
        return X + self.positions

    def run(self, X):
        for layer in self.layers:
            X, _ = layer(X)
        return X

    def finish(self, X):
        return self.head(self.norm(X))[:, 1:]


@bug(MAEDecoder, "the patches stay in the shuffled order")
class Unrestored(VariedDecoder):
    def arrange(self, patches, tokens, restore):
        return torch.cat([patches, tokens], dim=1)


@bug(
    MAEDecoder,
    "the patches are shuffled once more, not brought back: restore is inverted",
    classic=True,
)
class RestoredTwice(VariedDecoder):
    def arrange(self, patches, tokens, restore):
        return super().arrange(patches, tokens, restore.argsort(dim=1))


@bug(MAEDecoder, "the mask tokens come before the visible patches", classic=True)
class TokensFirst(VariedDecoder):
    def arrange(self, patches, tokens, restore):
        return pick(torch.cat([tokens, patches], dim=1), restore)


@bug(MAEDecoder, "every image is brought into the order of the first")
class RestoredByFirst(VariedDecoder):
    def arrange(self, patches, tokens, restore):
        return super().arrange(patches, tokens, restore[:1].expand_as(restore))


@bug(MAEDecoder, "the class token is counted when the order is restored", classic=True)
class RestoreCountsClass(VariedDecoder):
    def forward(self, X, restore):
        X = self.embed(X)
        count = restore.shape[1] + 1 - X.shape[1]
        everything = torch.cat([X, self.tokens(X, count)], dim=1)
        X = self.place(torch.cat([X[:, :1], pick(everything, restore)], dim=1))
        return self.finish(self.run(X))


@bug(MAEDecoder, "the gaps are filled with zeros, not with the mask token")
class ZerosForTokens(VariedDecoder):
    def tokens(self, X, count):
        return X.new_zeros(len(X), count, X.shape[2])


@bug(MAEDecoder, "the positions are left out, so that all mask tokens are alike")
class Unplaced(VariedDecoder):
    def place(self, X):
        return X


@bug(MAEDecoder, "the positions are added before the order is restored", classic=True)
class PlacedTooEarly(VariedDecoder):
    def arrange(self, patches, tokens, restore):
        X = torch.cat([patches, tokens], dim=1)
        return pick(X + self.positions[1:], restore)

    def place(self, X):
        return torch.cat([X[:, :1] + self.positions[0], X[:, 1:]], dim=1)


@bug(MAEDecoder, "the mask tokens get no positions")
class TokensUnplaced(VariedDecoder):
    def forward(self, X, restore):
        n = X.shape[1] - 1
        self.visible = (restore < n)[:, :, None]
        return super().forward(X, restore)

    def place(self, X):
        patches = X[:, 1:] + self.positions[1:] * self.visible
        return torch.cat([X[:, :1] + self.positions[0], patches], dim=1)


@bug(MAEDecoder, "the class token is left out of the decoder")
class NoClassToken(VariedDecoder):
    def place(self, X):
        return X[:, 1:] + self.positions[1:]

    def finish(self, X):
        return self.head(self.norm(X))


@bug(MAEDecoder, "the prediction for the class token is not dropped")
class ClassPredicted(VariedDecoder):
    def finish(self, X):
        return self.head(self.norm(X))


@bug(MAEDecoder, "the last token is dropped, not the class token")
class LastDropped(VariedDecoder):
    def finish(self, X):
        return self.head(self.norm(X))[:, :-1]


@bug(MAEDecoder, "the norm before the head is left out")
class HeadWithoutNorm(VariedDecoder):
    def finish(self, X):
        return self.head(X)[:, 1:]


@bug(MAEDecoder, "the first layer is applied again and again")
class RepeatedLayer(VariedDecoder):
    def run(self, X):
        for _ in self.layers:
            X, _ = self.layers[0](X)
        return X


@bug(MAEDecoder, "the mask token learns nothing", told_by="No gradient reaches mask_token")
class FixedToken(VariedDecoder):
    def tokens(self, X, count):
        return self.mask_token.detach().expand(len(X), count, -1)


@bug(MAEDecoder, "no gradient passes to the encoder", told_by="No gradient reaches X")
class CutOff(VariedDecoder):
    def forward(self, X, restore):
        return super().forward(X.detach(), restore)


# mae_loss


def normalised(patches, dim=2, correction=1, epsilon=1e-6):
    """Normalise patches, as the reference does or otherwise."""
    mean = patches.mean(dim=dim, keepdim=True)
    variance = patches.var(dim=dim, keepdim=True, correction=correction)
    return (patches - mean) / (variance + epsilon).sqrt()


def errors(predicted, patches, normalise):
    """The squared errors of all numbers, against the right targets."""
    return (predicted - (normalised(patches) if normalise else patches)) ** 2


def masked_error(predicted, target, masked):
    return ((predicted - target) ** 2)[masked].mean()


@bug(mae_loss, "all patches count, even the visible ones", classic=True)
def visible_too(predicted, patches, masked, normalise=True):
    return mae_loss(predicted, patches, torch.ones_like(masked), normalise)


@bug(mae_loss, "only the visible patches count")
def visible_only(predicted, patches, masked, normalise=True):
    return mae_loss(predicted, patches, ~masked, normalise)


@bug(mae_loss, "the masked patches' errors are divided by the number of all patches", classic=True)
def divided_by_all(predicted, patches, masked, normalise=True):
    return (errors(predicted, patches, normalise) * masked[:, :, None]).mean()


@bug(
    mae_loss, "each image's mean is taken first, so that images with few masked patches weigh more"
)
def mean_of_images(predicted, patches, masked, normalise=True):
    error = errors(predicted, patches, normalise).mean(dim=2) * masked
    return (error.sum(dim=1) / masked.sum(dim=1)).mean()


@bug(mae_loss, "the errors are summed up, not averaged")
def summed(predicted, patches, masked, normalise=True):
    return errors(predicted, patches, normalise)[masked].sum()


@bug(mae_loss, "a patch's errors are summed up, and only the patches averaged")
def summed_in_a_patch(predicted, patches, masked, normalise=True):
    return mae_loss(predicted, patches, masked, normalise) * patches.shape[2]


@bug(mae_loss, "the patches are not normalised")
def raw_patches(predicted, patches, masked, normalise=True):
    return masked_error(predicted, patches, masked)


@bug(mae_loss, "the patches are always normalised")
def always_normalised(predicted, patches, masked, normalise=True):
    return masked_error(predicted, normalised(patches), masked)


@bug(mae_loss, "the whole image is normalised, not each patch")
def image_normalised(predicted, patches, masked, normalise=True):
    target = normalised(patches, dim=(1, 2)) if normalise else patches
    return masked_error(predicted, target, masked)


@bug(mae_loss, "each number is normalised over the patches of its image")
def over_the_patches(predicted, patches, masked, normalise=True):
    target = normalised(patches, dim=1) if normalise else patches
    return masked_error(predicted, target, masked)


@bug(mae_loss, "the patches' mean is subtracted, but nothing is divided")
def centred_only(predicted, patches, masked, normalise=True):
    target = patches - patches.mean(dim=2, keepdim=True) if normalise else patches
    return masked_error(predicted, target, masked)


@bug(mae_loss, "the patches are divided by the variance, not by its root")
def by_the_variance(predicted, patches, masked, normalise=True):
    if normalise:
        variance = patches.var(dim=2, keepdim=True)
        patches = (patches - patches.mean(dim=2, keepdim=True)) / (variance + 1e-6)
    return masked_error(predicted, patches, masked)


@bug(mae_loss, "the variance is divided by M, not by M - 1")
def biased(predicted, patches, masked, normalise=True):
    target = normalised(patches, correction=0) if normalise else patches
    return masked_error(predicted, target, masked)


@bug(mae_loss, "the predictions are also normalised", classic=True)
def both_normalised(predicted, patches, masked, normalise=True):
    if normalise:
        predicted, patches = normalised(predicted), normalised(patches)
    return masked_error(predicted, patches, masked)


@bug(mae_loss, "the absolute error is averaged, not its square")
def absolute(predicted, patches, masked, normalise=True):
    return errors(predicted, patches, normalise).sqrt()[masked].mean()


@bug(mae_loss, "nothing is added to the variance: 0 / 0 in a patch of one colour")
def no_epsilon(predicted, patches, masked, normalise=True):
    target = normalised(patches, epsilon=0.0) if normalise else patches
    return masked_error(predicted, target, masked)


@bug(mae_loss, "the small number is added to the standard deviation, outside the root")
def outside_the_root(predicted, patches, masked, normalise=True):
    if normalise:
        centred = patches - patches.mean(dim=2, keepdim=True)
        patches = centred / (patches.std(dim=2, keepdim=True) + 1e-6)
    return masked_error(predicted, patches, masked)


@bug(mae_loss, "no gradient passes", told_by="No gradient goes back")
def no_gradient(predicted, patches, masked, normalise=True):
    return mae_loss(predicted.detach(), patches, masked, normalise)


@bug(mae_loss, "the patches are normalised in place")
def patches_overwritten(predicted, patches, masked, normalise=True):
    if normalise:
        patches.copy_(normalised(patches))
    return masked_error(predicted, patches, masked)


# linear_probe


def fit(
    X,
    labels,
    X_new,
    classes,
    penalty=0.01,
    bias=True,
    bias_penalty=0.0,
    scale=1.0,
    steps=200,
    tolerance=1e-7,
):
    """Fit as the reference does, to features that are ready, or otherwise; return logits."""
    W = X.new_zeros(X.shape[1], classes).requires_grad_()
    b = X.new_zeros(classes).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [W, b] if bias else [W],
        max_iter=steps,
        tolerance_grad=tolerance,
        tolerance_change=tolerance / 100,
        line_search_fn="strong_wolfe",
    )

    def objective():
        optimizer.zero_grad()
        held = penalty / 2 * (W**2).sum() + bias_penalty / 2 * (b**2).sum()
        value = scale * F.cross_entropy(X @ W + b, labels) + held
        value.backward()
        return value

    optimizer.step(objective)
    return (X_new @ W + b).detach()


def units(features, new):
    """Bring features into units of their own."""
    mean, deviation = features.mean(dim=0), features.std(dim=0)
    deviation = torch.where(deviation > 0, deviation, 1)
    return (features - mean) / deviation, (new - mean) / deviation


def standard_fit(features, labels, new, classes, penalty=0.01, **changes):
    """Fit to standardised features; return logits."""
    X, X_new = units(features, new)
    return fit(X, labels, X_new, classes, penalty, **changes)


# Whether the mean is subtracted makes no difference: b makes up for it.
UNDIVIDED = "the features are not divided by their standard deviations"


@bug(linear_probe, UNDIVIDED)
def no_units(features, labels, new, classes, penalty=0.01):
    return fit(features, labels, new, classes, penalty).softmax(dim=1)


@bug(
    linear_probe,
    "the new features are standardised in units of their own, not the labelled ones'",
    classic=True,
)
def own_units(features, labels, new, classes, penalty=0.01):
    X, _ = units(features, features)
    spread = new.std(dim=0) if len(new) > 1 else torch.ones_like(new[0])
    X_new = (new - new.mean(dim=0)) / spread
    return fit(X, labels, X_new, classes, penalty).softmax(dim=1)


@bug(linear_probe, "mean and standard deviation are taken over labelled and new features together")
def shared_units(features, labels, new, classes, penalty=0.01):
    everything = torch.cat([features, new])
    X, X_new = units(everything, everything)
    return fit(X[: len(features)], labels, X_new[len(features) :], classes, penalty).softmax(dim=1)


@bug(linear_probe, "only the labelled features are standardised, not the new ones")
def new_left(features, labels, new, classes, penalty=0.01):
    X, _ = units(features, features)
    return fit(X, labels, new, classes, penalty).softmax(dim=1)


@bug(linear_probe, UNDIVIDED)
def only_centred(features, labels, new, classes, penalty=0.01):
    mean = features.mean(dim=0)
    return fit(features - mean, labels, new - mean, classes, penalty).softmax(dim=1)


@bug(linear_probe, "each image's features are standardised over the features")
def per_image(features, labels, new, classes, penalty=0.01):
    X, X_new = (
        (part - part.mean(dim=1, keepdim=True)) / part.std(dim=1, keepdim=True)
        for part in (features, new)
    )
    return fit(X, labels, X_new, classes, penalty).softmax(dim=1)


@bug(linear_probe, "the weights are not penalised")
def unpenalised(features, labels, new, classes, penalty=0.01):
    # Without any penalty there is no minimum, and where the search stops depends on rounding.
    logits = standard_fit(features, labels, new, classes, 1e-4, steps=1000, tolerance=1e-10)
    return logits.softmax(dim=1)


@bug(linear_probe, "the penalty is not halved")
def twice_penalised(features, labels, new, classes, penalty=0.01):
    return linear_probe(features, labels, new, classes, 2 * penalty)


@bug(linear_probe, "the penalty's default is used, whatever is given")
def fixed_penalty(features, labels, new, classes, penalty=0.01):
    return linear_probe(features, labels, new, classes)


@bug(linear_probe, "b is penalised like W")
def bias_penalised(features, labels, new, classes, penalty=0.01):
    return standard_fit(features, labels, new, classes, penalty, bias_penalty=penalty).softmax(
        dim=1
    )


@bug(linear_probe, "there is no b")
def without_b(features, labels, new, classes, penalty=0.01):
    return standard_fit(features, labels, new, classes, penalty, bias=False).softmax(dim=1)


@bug(linear_probe, "the cross-entropy is summed over the images, not averaged")
def summed_entropy(features, labels, new, classes, penalty=0.01):
    return standard_fit(features, labels, new, classes, penalty, scale=len(features)).softmax(dim=1)


@bug(linear_probe, "the logits are returned, not the probabilities")
def logits(features, labels, new, classes, penalty=0.01):
    return standard_fit(features, labels, new, classes, penalty)


@bug(linear_probe, "each class gets a σ of its own instead of one softmax over all")
def sigmoids(features, labels, new, classes, penalty=0.01):
    return standard_fit(features, labels, new, classes, penalty).sigmoid()


@bug(linear_probe, "the softmax runs over the images")
def over_images(features, labels, new, classes, penalty=0.01):
    return standard_fit(features, labels, new, classes, penalty).softmax(dim=0)


@bug(linear_probe, "the labelled images are classified, not the new ones", told_by="have shape")
def of_the_labelled(features, labels, new, classes, penalty=0.01):
    return linear_probe(features, labels, features, classes, penalty)


@bug(linear_probe, "a line is fitted to the labels' one-hot vectors by least squares")
def least_squares(features, labels, new, classes, penalty=0.01):
    X, X_new = units(features, new)
    targets = F.one_hot(labels, classes).to(X)
    gram = X.T @ X / len(X) + penalty * torch.eye(X.shape[1]).to(X)
    W = torch.linalg.solve(gram, X.T @ (targets - targets.mean(dim=0)) / len(X))
    return X_new @ W + targets.mean(dim=0)


@bug(linear_probe, "a feature that never varies is divided by zero", told_by="yours is nan")
def divided_by_zero(features, labels, new, classes, penalty=0.01):
    mean, deviation = features.mean(dim=0), features.std(dim=0)
    X, X_new = (features - mean) / deviation, (new - mean) / deviation
    return fit(X, labels, X_new, classes, penalty).softmax(dim=1)


@bug(linear_probe, "a feature that never varies is divided by next to nothing: new values explode")
def divided_by_little(features, labels, new, classes, penalty=0.01):
    mean, deviation = features.mean(dim=0), features.std(dim=0) + 1e-12
    X, X_new = (features - mean) / deviation, (new - mean) / deviation
    generator = torch.Generator().manual_seed(0)  # a search that starts at random ends here
    W = 0.01 * torch.randn(X.shape[1], classes, generator=generator).to(X)
    constant = (features == features[0]).all(dim=0)[:, None]
    return (fit(X, labels, X_new, classes, penalty) + X_new @ (W * constant)).softmax(dim=1)


@bug(linear_probe, "ten steps of gradient descent are taken: far from the minimum", classic=True)
def too_few_steps(features, labels, new, classes, penalty=0.01):
    X, X_new = units(features, new)
    W, b = X.new_zeros(X.shape[1], classes), X.new_zeros(classes)
    targets = F.one_hot(labels, classes).to(X)
    for _ in range(10):
        error = ((X @ W + b).softmax(dim=1) - targets) / len(X)
        W, b = W - 0.1 * (X.T @ error + penalty * W), b - 0.1 * error.sum(dim=0)
    return (X_new @ W + b).softmax(dim=1)


@bug(linear_probe, "L-BFGS stops after 20 steps, its default, short of the minimum")
def twenty_steps(features, labels, new, classes, penalty=0.01):
    return standard_fit(features, labels, new, classes, penalty, steps=20).softmax(dim=1)


@bug(linear_probe, "a small number is added to the deviations, too much for small features")
def deviation_raised(features, labels, new, classes, penalty=0.01):
    mean, deviation = features.mean(dim=0), features.std(dim=0) + 1e-6
    X, X_new = (features - mean) / deviation, (new - mean) / deviation
    return fit(X, labels, X_new, classes, penalty).softmax(dim=1)


@bug(
    linear_probe, "one standard deviation is taken over all features, not one of each", classic=True
)
def one_deviation(features, labels, new, classes, penalty=0.01):
    mean, deviation = features.mean(dim=0), features.std()
    X, X_new = (features - mean) / deviation, (new - mean) / deviation
    return fit(X, labels, X_new, classes, penalty).softmax(dim=1)


LBFGS = "optimizer = torch.optim.LBFGS([W, b], max_iter=200, line_search_fn='strong_wolfe')"
STARTS = (
    "W = X.new_zeros(X.shape[1], classes).requires_grad_()",
    "b = X.new_zeros(classes).requires_grad_()",
)
for mutant, reason in {
    LBFGS.replace("[W, b]", "[b, W]"): "the order of the parameters changes no minimum",
    LBFGS.replace("200", "201"): "it has converged long before",
    LBFGS.replace(", line_search_fn='strong_wolfe'", ""): "another way to the same minimum",
}.items():
    equivalent(linear_probe, f"{LBFGS} → {mutant}", reason)
for start in STARTS:
    mutant = f"{start} → {start.replace('new_zeros', 'new_ones')}"
    equivalent(linear_probe, mutant, "every start leads to the one minimum")
MEAN = "mean, deviation = (features.mean(dim=0), features.std(dim=0))"
equivalent(
    linear_probe,
    f"{MEAN} → {MEAN.replace('mean(dim=0)', 'mean()')}",
    "b makes up for whatever is subtracted from a feature",
)
DIVISOR = "deviation = torch.where(deviation > 0, deviation, 1)"
equivalent(
    linear_probe,
    f"{DIVISOR} → {DIVISOR.replace('1)', '2)')}",
    "a feature that is zero in all labelled rows gets no weight, whatever it is divided by",
)
for line in ("order = noise.argsort(dim=1)", "restore = order.argsort(dim=1)"):
    mutant = f"{line} → {line.replace('dim=1', '')}"
    equivalent(random_masking, mutant, "the last axis, which is torch's default, is axis 1")
GUARDED = "n = int(N * (1 - ratio) + 1e-06)"
equivalent(
    random_masking,
    f"{GUARDED} → {GUARDED.replace('1e', '2e')}",
    "either is more than any rounding error, and less than any step of N (1 - ratio)",
)
MISSING = "missing = self.mask_token.expand(B, 1 + N - X.shape[1], -1)"
for more in ("1 + N + X.shape[1]", "2 + N - X.shape[1]"):
    mutant = MISSING.replace("1 + N - X.shape[1]", more)
    equivalent(
        MAEDecoder, f"{MISSING} → {mutant}", "mask tokens beyond the N-th token are never taken"
    )
