"""Known wrong solutions of mae."""

import torch
from torch.nn import functional as F

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.mae import (
    MAEDecoder,
    MAEEncoder,
    grid_positions,
    linear_probe,
    mae_loss,
    random_masking,
    random_masking_fault,
)

# grid_positions

mistakes(
    grid_positions,
    """
column_first: the column comes first
    [rows, columns] → [columns, rows]
* read_down: the grid is read column by column
    dim=2).reshape → dim=2).transpose(0, 1).reshape
line: the grid is taken for a line of patches
    torch.cat([rows, columns], dim=2).reshape(h * w, D) → sinusoidal_positions(h * w, D, base)
rows_only: only the row is encoded
    [rows, columns] → [rows, rows]
columns_only: only the column is encoded
    [rows, columns] → [columns, columns]
added: row and column are added, so that (1, 2) and (2, 1) are the same place
    (h, D // 2, → (h, D,
    (w, D // 2, → (w, D,
    torch.cat([rows, columns], dim=2) → (rows + columns)
* cut_out: the halves are cut from encodings of size D: the fast clocks encode the row
    (h, D // 2, base)[:, None] → (h, D, base)[:, None, : D // 2]
    (w, D // 2, base) → (w, D, base)[:, D // 2 :]
slow: the base is 10 000, whatever is given
    rows = sin
    → base = 10_000.0
      rows = sin
slow_by_default: the base is 10 000 unless another is given
    base: float = 30.0 → base: float = 10_000.0
squeezed: axes of size 1 are dropped
    reshape(h * w, D) → reshape(h * w, D).squeeze()
    says: should have shape (1, 4)
from_one: the rows are counted from 1
    (h, D // 2, base)[:, None] → (h + 1, D // 2, base)[1:, None]
    (w, D // 2, base) → (w + 1, D // 2, base)[1:]
undivided: a D that cannot be divided by 4 is accepted
    raise ValueError(f"D must be divisible by 4, a sine and a cosine for each axis, got {D}")
    → return functional.pad(grid_positions(h, w, D // 4 * 4, base), (0, D % 4))
    says: raise ValueError when
""",
)


# random_masking

mistakes(
    random_masking,
    """
largest: the patches with the largest noise are kept
    noise.argsort → (-noise).argsort
share_exchanged: the masked share is kept, and the visible share masked
    order = noise
    → if (n := int(N * ratio + 1e-6)) < 1:
          raise ValueError(f"a ratio of {ratio} leaves none visible")
      order = noise
ranks_kept: keep holds each patch's place in the order, not the patches in order
    order[:, :n] → restore[:, :n]
* not_inverted: restore is the shuffled order itself, not the way back
    , restore, → , order,
* mask_shuffled: masked is in the shuffled order, not in the order of the patches
    restore >= n → (restore >= n).sort(dim=1).values
mask_inverted: masked marks the visible patches
    restore >= n → restore < n
same_for_all: all images hide the same patches: only the first image's noise is used
    noise.argsort → noise[:1].expand_as(noise).argsort
over_the_batch: the noise is sorted over the batch, not over the patches of an image
    noise.argsort(dim=1) → noise.argsort(dim=0)
    order.argsort(dim=1) → order.argsort(dim=0)
first_patches: the first patches are kept, in every image
    noise.argsort(dim=1) → torch.arange(N).expand(noise.shape)
kept_in_order: the visible patches are sorted by their numbers
    order[:, :n] → order[:, :n].sort(dim=1).values
coin_flips: each patch is masked by a draw of its own
    order = noise.argsort(dim=1)
    → masked = noise < ratio
      n = int((~masked).sum(dim=1).max())
      order = masked.to(noise).argsort(dim=1, stable=True)
    restore >= n → masked
    says: should have shape
rounded_up: the number of visible patches is rounded up
    order = noise
    → n = N - int(N * ratio)
      order = noise
    says: should have shape
one_in_ten_lost: rounding errors count: two of twenty are rounded down to one, one of ten to none
    ratio) + 1e-6) → ratio))
    says: keep of 20 patches, ratio 0.9, should have shape (3, 2)
masks_one_more: rounding errors count: seven of 25 masked patches become eight
    order = noise
    → n = N + int(-N * ratio // 1)  # N - ⌈N · ratio⌉
      order = noise
    says: keep of 25 patches, ratio 0.28, should have shape
accepts_more_than_all: a ratio above 1 is accepted
    if n < 1 → if n == 0
    says: should raise ValueError when the ratio is 1.5
mask_by_threshold: masked is found by comparing noise, which fails where patches have the same
    restore >= n → noise > noise.gather(1, order[:, n - 1 : n])
places_by_counting: places are counted by comparing noise, so that patches with the same share one
    , restore, → , (noise[:, None] < noise[:, :, None]).sum(dim=2),
    says: restore, sorted,
mask_of_numbers: masked holds numbers, not truth values
    restore >= n → (restore >= n).to(noise)
    says: hold truth values
accepts_all: a ratio that leaves nothing visible is accepted
    if n < 1 → if False
    says: should raise ValueError when a quarter
accepts_just_below: a negative ratio is accepted as long as no more than all patches stay
    if ratio < 0 → if n > N
    says: should raise ValueError when the ratio is just below 0
in_place: the noise is sorted in place
    return order
    → noise.copy_(noise.sort(dim=1).values)
      return order
""",
)

black_box(
    random_masking,
    "one_in_ten_lost",
    curve='pretrainings["MAE 1"]',
    label="squared error",
    after="pretrainings",
)

wrong_answers(random_masking_fault, "B")
mistakes(
    random_masking_fault,
    """
exact: half of the patches is exact in floating point
    [None], 0.9 → [None], 0.5
    says: With these arguments the black box gives what is right
rounded_down: a tenth of the patches is no whole number
    20.0 → 25.0
    says: With these arguments the black box gives what is right
ten_patches: the black box lets none of ten patches stay, and raises
    20.0 → 10.0
    says: The black box raised ValueError
nothing_stays: the ratio leaves none of the patches visible
    20.0 → 9.0
    says: a ratio of 0.9 leaves 0 of 9 patches
same_noise: two patches have the same noise
    torch.arange(20.0)[None] → torch.arange(20.0)[None] // 2
    says: two patches of an image have the same noise
one_axis: the noise has no axis of images
    [None] →
    says: With these arguments random_masking raised
no_noise: the arguments are a ratio alone
    (noise, ratio) → (ratio,)
    says: With these arguments random_masking raised
three_arguments: there is an argument too many
    (noise, ratio) → (noise, ratio, ratio)
    says: With these arguments random_masking raised TypeError
worded: the ratio is a word
    (noise, ratio) → (noise, "0.9")
    says: With these arguments random_masking raised TypeError
""",
)


# MAEEncoder

mistakes(
    MAEEncoder,
    """
* PositionsAfterwards: the visible patches get the first positions, whichever patches they are
    (images) + self.positions[1:] → (images)
    cls = (self
    → X = X + self.positions[1 : 1 + X.shape[1]]
      cls = (self
NoPositions: the visible patches have no positions
    (images) + self.positions[1:] → (images)
* OneOff: the positions are one off: patch 0 gets the class token's
    self.positions[1:] → self.positions[:-1]
    self.positions[0] → self.positions[-1]
FirstWithoutPosition: the class token has no position
    (self.cls + self.positions[0]) → self.cls
ClassLast: the class token comes after the patches
    return self.norm(X) → return self.norm(X).roll(-1, dims=1)
ClassDropped: the class token's vector is dropped
    return self.norm(X) → return self.norm(X)[:, 1:]
SeesAll: keep is ignored: all patches are encoded
    if keep is not None → if False
""",
)

changed(
    MAEEncoder,
    "TakenAfterwards",
    "all patches go through the layers, and the visible ones are taken afterwards",
    (
        "        if keep is not None:\n"
        "            X = X.gather(1, keep[:, :, None].expand(-1, -1, X.shape[2]))  # (B, "
        "n, D)\n",
        "",
    ),
    (
        "return self.norm(X)",
        "if keep is not None:\n"
        "            keep = torch.cat([torch.zeros_like(keep[:, :1]), 1 + keep], dim=1)\n"
        "            X = X.gather(1, keep[:, :, None].expand(-1, -1, X.shape[2]))\n"
        "        return self.norm(X)",
    ),
)

mistakes(
    MAEEncoder,
    """
* ZeroedOut: the masked patches are set to zero, but encoded
    (images) + self.positions[1:] → (images)
    X.gather(1, keep[:, :, None].expand(-1, -1, X.shape[2]))
    → X * torch.zeros_like(X[:, :, :1]).scatter(1, keep[:, :, None], 1.0)
    cls = (self
    → X = X + self.positions[1:]
      cls = (self
* ZeroedAndTaken: the masked patches are set to zero, but take part in all layers
    X.gather(1, keep[:, :, None].expand(-1, -1, X.shape[2]))
    → X * torch.zeros_like(X[:, :, :1]).scatter(1, keep[:, :, None], 1.0)
    return self.norm(X)
    → if keep is not None:
          keep = torch.cat([torch.zeros_like(keep[:, :1]), 1 + keep], dim=1)
          X = X.gather(1, keep[:, :, None].expand(-1, -1, X.shape[2]))
      return self.norm(X)
* ZeroedPlacedTaken: the masked patches are set to zero, but take part with their positions
    (images) + self.positions[1:] → (images)
    X.gather(1, keep[:, :, None].expand(-1, -1, X.shape[2]))
    → X * torch.zeros_like(X[:, :, :1]).scatter(1, keep[:, :, None], 1.0)
    cls = (self
    → X = X + self.positions[1:]
      cls = (self
    return self.norm(X)
    → if keep is not None:
          keep = torch.cat([torch.zeros_like(keep[:, :1]), 1 + keep], dim=1)
          X = X.gather(1, keep[:, :, None].expand(-1, -1, X.shape[2]))
      return self.norm(X)
* ZeroedKept: the masked patches are set to zero, positions included, but encoded
    X.gather(1, keep[:, :, None].expand(-1, -1, X.shape[2]))
    → X * torch.zeros_like(X[:, :, :1]).scatter(1, keep[:, :, None], 1.0)
FirstPatches: the first n patches are encoded, not those in keep
    X.gather(1, keep[:, :, None].expand(-1, -1, X.shape[2])) → X[:, : keep.shape[1]]
KeptByFirst: every image keeps the patches of the first
    keep[:, :, None].expand(-1, → keep[:1, :, None].expand(len(X),
KeptInOrder: the visible patches come in the order of their numbers
    keep[:, :, None] → keep.sort(dim=1).values[:, :, None]
ZeroIsNone: a keep that holds patch 0 alone is taken for None
    if keep is not None → if keep is not None and keep.any()
AllInOrder: the order of keep is ignored when it names all patches
    if keep is not None → if keep is not None and keep.shape[1] < X.shape[1]
* CountsClass: the class token is counted when the patches in keep are taken
    X = X.gather
    → X = torch.cat([(self.cls + self.positions[0]).expand(len(X), 1, -1), X], dim=1)
      X = X.gather
NotNormed: the last norm is left out
    return self.norm(X) → return X
SameLayer: the first layer is applied again and again
    X, _ = layer(X) → X, _ = self.layers[0](X)
LayerLeftOut: the last layer is left out
    in self.layers: → in self.layers[:-1]:
WithoutGradient: the encoder learns nothing
    return self.norm(X) → return self.norm(X).detach()
    says: No gradient goes back
FrozenClass: the class token learns nothing
    (self.cls + → (self.cls.detach() +
    says: No gradient reaches cls
KeepsItsToken: the class token with its position is computed once and kept
    cls = (self.cls + self.positions[0]).expand
    → if not hasattr(self, "kept"):
          self.kept = self.cls + self.positions[0]
      cls = self.kept.expand
    says: MAEEncoder depends on an earlier call
""",
)


# MAEDecoder

mistakes(
    MAEDecoder,
    """
Unrestored: the patches stay in the shuffled order
    shuffled.gather(1, restore[:, :, None].expand(-1, -1, X.shape[2])) → shuffled
* RestoredTwice: the patches are shuffled once more, not brought back: restore is inverted
    restore[:, :, None] → restore.argsort(dim=1)[:, :, None]
* TokensFirst: the mask tokens come before the visible patches
    [X[:, 1:], missing] → [missing, X[:, 1:]]
RestoredByFirst: every image is brought into the order of the first
    restore[:, :, None].expand(-1, → restore[:1, :, None].expand(B,
* RestoreCountsClass: the class token is counted when the order is restored
    [X[:, 1:], missing] → [X, missing]
ZerosForTokens: the gaps are filled with zeros, not with the mask token
    self.mask_token.expand → torch.zeros_like(self.mask_token).expand
Unplaced: the positions are left out, so that all mask tokens are alike
    patches], dim=1) + self.positions → patches], dim=1)
* PlacedTooEarly: the positions are added before the order is restored
    missing], dim=1) → missing], dim=1) + self.positions[1:]
    [X[:, :1], patches], dim=1) + self.positions → [X[:, :1] + self.positions[0], patches], dim=1)
PlacedEarlyBare: the positions are added before the order is restored, and none to the class token
    missing], dim=1) → missing], dim=1) + self.positions[1:]
    patches], dim=1) + self.positions → patches], dim=1)
ClassUnplaced: the class token has no position
    torch.cat([X[:, :1], patches], dim=1) + self.positions
    → torch.cat([X[:, :1], patches + self.positions[1:]], dim=1)
TokensUnplaced: the mask tokens get no positions
    X = torch.cat([X[:, :1], patches], dim=1) + self.positions
    → placed = self.positions[1:] * (restore < X.shape[1] - 1)[:, :, None]
      X = torch.cat([X[:, :1] + self.positions[0], patches + placed], dim=1)
NoClassToken: the class token is left out of the decoder
    torch.cat([X[:, :1], patches], dim=1) + self.positions → patches + self.positions[1:]
    (X))[:, 1:] → (X))
ClassPredicted: the prediction for the class token is not dropped
    (X))[:, 1:] → (X))
LastDropped: the last token is dropped, not the class token
    (X))[:, 1:] → (X))[:, :-1]
HeadWithoutNorm: the norm before the head is left out
    self.head(self.norm(X)) → self.head(X)
RepeatedLayer: the first layer is applied again and again
    X, _ = layer(X) → X, _ = self.layers[0](X)
FixedToken: the mask token learns nothing
    self.mask_token.expand → self.mask_token.detach().expand
    says: No gradient reaches mask_token
CutOff: no gradient passes to the encoder
    self.embed(X) → self.embed(X.detach())
    says: No gradient reaches X
""",
)


# mae_loss

mistakes(
    mae_loss,
    """
* visible_too: all patches count, even the visible ones
    error[masked] → error
visible_only: only the visible patches count
    error[masked] → error[~masked]
* divided_by_all: the masked patches' errors are divided by the number of all patches
    error[masked] → (error * masked)
mean_of_images: each image's mean is taken first, so that images with few masked patches weigh more
    error[masked] → ((error * masked).sum(dim=1) / masked.sum(dim=1))
summed: the errors are summed up, not averaged
    ** 2).mean( → ** 2).sum(
    [masked].mean() → [masked].sum()
summed_in_a_patch: a patch's errors are summed up, and only the patches averaged
    ** 2).mean( → ** 2).sum(
raw_patches: the patches are not normalised
    if normalise: → if False:
always_normalised: the patches are always normalised
    if normalise: → if True:
image_normalised: the whole image is normalised, not each patch
    patches.mean(dim=2 → patches.mean(dim=(1, 2)
    patches.var(dim=2 → patches.var(dim=(1, 2)
over_the_patches: each number is normalised over the patches of its image
    patches.mean(dim=2 → patches.mean(dim=1
    patches.var(dim=2 → patches.var(dim=1
centred_only: the patches' mean is subtracted, but nothing is divided
    ) / (variance + 1e-6).sqrt() → )
by_the_variance: the patches are divided by the variance, not by its root
    (variance + 1e-6).sqrt() → (variance + 1e-6)
biased: the variance is divided by M, not by M - 1
    patches.var(dim=2 → patches.var(dim=2, correction=0
* both_normalised: the predictions are also normalised
    patches = (patches
    → own, spread = predicted.mean(dim=2, keepdim=True), predicted.var(dim=2, keepdim=True)
      predicted = (predicted - own) / (spread + 1e-6).sqrt()
      patches = (patches
absolute: the absolute error is averaged, not its square
    ((predicted - patches) ** 2) → (predicted - patches).abs()
no_epsilon: nothing is added to the variance: 0 / 0 in a patch of one colour
    variance + 1e-6 → variance
outside_the_root: the small number is added to the standard deviation, outside the root
    (variance + 1e-6).sqrt() → (variance.sqrt() + 1e-6)
no_gradient: no gradient passes
    predicted - patches → predicted.detach() - patches
    says: No gradient goes back
patches_overwritten: the patches are normalised in place
    patches = (patches - mean) / (variance + 1e-6).sqrt()
    → patches.copy_((patches - mean) / (variance + 1e-6).sqrt())
""",
)


# linear_probe


def units(features, new):
    """Bring features into units of their own."""
    mean, deviation = features.mean(dim=0), features.std(dim=0)
    deviation = torch.where(deviation > 0, deviation, 1)
    return (features - mean) / deviation, (new - mean) / deviation


# Whether the mean is subtracted makes no difference: b makes up for it.
mistakes(
    linear_probe,
    """
no_units: the features are not divided by their standard deviations
    (features - mean) / deviation, (new - mean) / deviation → features, new
* own_units: the new features are standardised in units of their own, not the labelled ones'
    (new - mean) / deviation → (new - new.mean(dim=0)) / new.std(dim=0)
biased: the standard deviations are divided by the number of rows, not by that less one
    features.std(dim=0) → features.std(dim=0, correction=0)
shared_units: mean and standard deviation are taken over labelled and new features together
    mean, deviation = features.mean(dim=0), features.std(dim=0)
    → both = torch.cat([features, new])
      mean, deviation = both.mean(dim=0), both.std(dim=0)
new_left: only the labelled features are standardised, not the new ones
    (new - mean) / deviation → new
only_centred: the features are not divided by their standard deviations
    (features - mean) / deviation, (new - mean) / deviation → features - mean, new - mean
per_image: each image's features are standardised over the features
    (features - mean) / deviation, (new - mean) / deviation
    → (
          (part - part.mean(dim=1, keepdim=True)) / part.std(dim=1, keepdim=True)
          for part in (features, new)
      )
""",
)

# Without any penalty there is no minimum, and where the search stops depends on rounding.
mistakes(
    linear_probe,
    """
unpenalised: the weights are not penalised
    max_iter=200 → max_iter=1000, tolerance_grad=1e-10, tolerance_change=1e-12
    penalty / 2 * (W → 1e-4 / 2 * (W
twice_penalised: the penalty is not halved
    penalty / 2 * (W → penalty * (W
mean_penalised: the mean of W² is penalised, not its sum
    (W**2).sum() → (W**2).mean()
fixed_penalty: the penalty's default is used, whatever is given
    penalty / 2 * (W → 0.01 / 2 * (W
bias_penalised: b is penalised like W
    (W**2).sum() → ((W**2).sum() + (b**2).sum())
without_b: there is no b
    [W, b] → [W]
summed_entropy: the cross-entropy is summed over the images, not averaged
    b, labels) → b, labels, reduction="sum")
logits: the logits are returned, not the probabilities
    .softmax(dim=1) →
sigmoids: each class gets a σ of its own instead of one softmax over all
    .softmax(dim=1) → .sigmoid()
over_images: the softmax runs over the images
    .softmax(dim=1) → .softmax(dim=0)
of_the_labelled: the labelled images are classified, not the new ones
    (X_new @ → (X @
    says: have shape
""",
)


@bug(linear_probe, "a line is fitted to the labels' one-hot vectors by least squares")
def least_squares(features, labels, new, classes, penalty=0.01):
    X, X_new = units(features, new)
    targets = F.one_hot(labels, classes).to(X)
    gram = X.T @ X / len(X) + penalty * torch.eye(X.shape[1]).to(X)
    W = torch.linalg.solve(gram, X.T @ (targets - targets.mean(dim=0)) / len(X))
    return X_new @ W + targets.mean(dim=0)


changed(
    linear_probe,
    "divided_by_zero",
    "a feature that never varies is divided by zero",
    ("    deviation = torch.where(deviation > 0, deviation, 1)\n", ""),
    told_by="yours is nan",
)


@bug(linear_probe, "a feature that never varies is divided by next to nothing: new values explode")
def divided_by_little(features, labels, new, classes, penalty=0.01):
    X_new = (new - features.mean(dim=0)) / (features.std(dim=0) + 1e-12)
    generator = torch.Generator().manual_seed(0)  # a search that starts at random ends here
    W = 0.01 * torch.randn(features.shape[1], classes, generator=generator).to(features)
    constant = (features == features[0]).all(dim=0)[:, None]
    right = linear_probe(features, labels, new, classes, penalty)
    return (right.log() + X_new @ (W * constant)).softmax(dim=1)


@bug(linear_probe, "ten steps of gradient descent are taken: far from the minimum", classic=True)
def too_few_steps(features, labels, new, classes, penalty=0.01):
    X, X_new = units(features, new)
    W, b = X.new_zeros(X.shape[1], classes), X.new_zeros(classes)
    targets = F.one_hot(labels, classes).to(X)
    for _ in range(10):
        error = ((X @ W + b).softmax(dim=1) - targets) / len(X)
        W, b = W - 0.1 * (X.T @ error + penalty * W), b - 0.1 * error.sum(dim=0)
    return (X_new @ W + b).softmax(dim=1)


mistakes(
    linear_probe,
    """
twenty_steps: L-BFGS stops after 20 steps, its default, short of the minimum
    max_iter=200 → max_iter=20
deviation_raised: a small number is added to the deviations, too much for small features
    torch.where(deviation > 0, deviation, 1) → deviation + 1e-6
* one_deviation: one standard deviation is taken over all features, not one of each
    features.std(dim=0) → features.std()
""",
)


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
