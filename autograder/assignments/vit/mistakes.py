"""Known wrong solutions of vit."""

import torch

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
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

# patchify and unpatchify

mistakes(
    patchify,
    """
* channels_first: the channels come first in a patch: all red pixels, then all green ones
    bijpqc → bijcpq
* reshaped: the image is only reshaped: a patch holds pixels that follow one another in memory
    patches.reshape(B → images.reshape(B
* reshaped_with_channels_last: the channels are put last, but then the image is only reshaped
    patches.reshape(B → images.permute(0, 2, 3, 1).reshape(B
* columns_of_patches: the patches are read column by column
    bijpqc → bjipqc
* columns_of_pixels: the pixels of a patch are read column by column
    bijpqc → bijqpc
* transposed: height and width are exchanged, for patches and for pixels
    bijpqc → bjiqpc
strided: pixels P apart are put together, not neighbours
    S_h // P, P, S_w // P, P) → P, S_h // P, P, S_w // P)
    "bcipjq-> → "bcpiqj->
on_a_grid: one axis is left for rows of patches and one for columns: shape (B, h, w, P·P·C)
    S_h // P * (S_w // P) → S_h // P, S_w // P
rest_cut_off: pixels beyond the last whole patch are cut off
    raise ValueError(f"{S_h} × {S_w} pixels cannot be cut into patches of {P} × {P}")
    → return patchify(images[:, :, : S_h // P * P, : S_w // P * P], P)
    says: raise ValueError when P does not divide the height
rest_padded: sides that P does not divide are padded
    raise ValueError(f"{S_h} × {S_w} pixels cannot be cut into patches of {P} × {P}")
    → return patchify(functional.pad(images, (0, -S_w % P, 0, -S_h % P)), P)
    says: raise ValueError when P does not divide the height
rest_unchecked: sides that P does not divide raise RuntimeError
    if S_h % P or S_w % P → if False
    says: raised RuntimeError
cut_off: no gradient comes back
    patches.reshape(B → patches.detach().reshape(B
    says: No gradient goes back
""",
)

mistakes(
    unpatchify,
    """
channels_first: the channels are taken to come first in a patch
    P, P, numbers // (P * P)) → numbers // (P * P), P, P)
    bijpqc → bijcpq
reshaped: the patches are only reshaped
    torch.einsum("bijpqc->bcipjq", grid) → patches
columns_of_patches: the patches are taken to come column by column
    S_h // P, S_w // P, P, P → S_w // P, S_h // P, P, P
    bijpqc → bjipqc
columns_of_pixels: the pixels of a patch are taken to come column by column
    bijpqc → bijqpc
transposed: height and width are exchanged, for patches and for pixels
    S_h // P, S_w // P, P, P → S_w // P, S_h // P, P, P
    bijpqc → bjiqpc
grid_turned: the height of the grid is used as its width, and its width as its height
    S_h // P, S_w // P, P, P → S_w // P, S_h // P, P, P
strided: neighbours within a patch are put P pixels apart
    bcipjq → bcpiqj
square: the grid is taken to be square
    S_h // P, S_w // P, P, P → int(N**0.5), int(N**0.5), P, P
    says: raised RuntimeError
channels_last: the channels also come last in the images
    reshape(B, -1, S_h, S_w) → reshape(B, -1, S_h, S_w).permute(0, 2, 3, 1)
unchecked: nothing is refused
    if S_h % P or S_w % P or N * P * P != S_h * S_w or numbers % (P * P): → if False:
    says: should raise ValueError when
multiples_fit: only the numbers are counted: they must be a multiple of the pixels
    N * P * P != S_h * S_w or numbers % (P * P): → N * numbers % (S_h * S_w):
    P, P, numbers // (P * P)) → P, P, -1)
    says: should raise ValueError when
patches_counted: only the number of patches is compared
    if S_h % P or S_w % P or N * P * P != S_h * S_w or numbers % (P * P):
    → if N * P * P != S_h * S_w:
    says: should raise ValueError when
rest_cut: what P leaves over at the sides is cut
    S_h, S_w = size → S_h, S_w = size[0] // P * P, size[1] // P * P
    says: should raise ValueError when
* same_way: the axes are permuted as in patchify, not the inverse way
    torch.einsum("bijpqc->bcipjq", grid) → grid.permute(0, 2, 4, 3, 5, 1)
""",
)


# PatchEmbedding

mistakes(
    PatchEmbedding,
    """
NoBias: the bias is left out
    @ self.W + self.b → @ self.W
ChannelsFirst: the channels come first in a patch, as in a convolution's kernel
    patchify(images, self.P) → functional.unfold(images, self.P, stride=self.P).mT
Mixed: the vectors are those of single pixels' channels, not of patches
    patchify(images, self.P) → images.permute(0, 2, 3, 1).reshape(len(images), -1, len(self.W))
Columns: the patches are read column by column
    return patchify(images, self.P)
    → grid = patchify(images, self.P).unflatten(1, (images.shape[2] // self.P, -1))
      return grid.transpose(1, 2).flatten(1, 2)
Turned: the pixels of a patch are read column by column
    return patchify(images, self.P)
    → pixels = patchify(images, self.P).unflatten(2, (self.P, self.P, -1))
      return pixels.transpose(2, 3).flatten(2)
OnAGrid: the vectors are left on their grid, with D first: shape (B, D, h, w)
    patchify(images, self.P) @ self.W + self.b
    → functional.conv2d(images, self.kernel(), self.b, stride=self.P)
Overlapping: the patches overlap: the convolution has stride 1
    patchify(images, self.P) @ self.W + self.b
    → functional.conv2d(images, self.kernel(), self.b).flatten(2).mT
Relu: a non-linearity follows the linear map
    patchify(images, self.P) @ self.W + self.b
    → torch.relu(patchify(images, self.P) @ self.W + self.b)
KernelChannelsFirst: the kernel's channels are taken to come first in W
    reshape(D, P, P, -1).permute(0, 3, 1, 2) → reshape(D, -1, P, P)
KernelTurned: rows and columns of the kernel are exchanged
    permute(0, 3, 1, 2) → permute(0, 3, 2, 1)
KernelChannelsLast: the kernel's channels are left at its end
    .permute(0, 3, 1, 2) →
KernelNotTurned: W is reshaped before it is transposed, so that D and the pixels are mixed
    self.W.T.reshape → self.W.reshape
KernelFlipped: the kernel is upside down, as for a true convolution
    permute(0, 3, 1, 2) → permute(0, 3, 1, 2).flip(2, 3)
Detached: no gradient reaches W
    patchify(images, self.P) @ self.W + self.b
    → (patchify(images, self.P) @ self.W + self.b).detach()
    says: No gradient goes back
* KernelReshaped: W is only reshaped, to (D, C, P, P), and no axis is moved
    self.W.T.reshape(D, P, P, -1).permute(0, 3, 1, 2) → self.W.reshape(D, -1, P, P)
CutKernel: the kernel is cut off from W
    permute(0, 3, 1, 2) → permute(0, 3, 1, 2).detach()
    says: No gradient goes back from the kernel
""",
)


# ViTLayer

mistakes(
    ViTLayer,
    """
* PostNorm: the norms follow the sums, as in BERT
    self.norm_1(X), → X,
    X = X + Y → X = self.norm_1(X + Y)
    X + self.contract(functional.gelu(self.expand(self.norm_2(X))))
    → self.norm_2(X + self.contract(functional.gelu(self.expand(X))))
* NormedResidual: attention is added to the normalised tokens
    Y, A = self.attention(self.norm_1(X),
    → X = self.norm_1(X)
      Y, A = self.attention(X,
* NormedSecondResidual: the network is added to the normalised tokens
    X = X + Y → X = self.norm_2(X + Y)
    self.expand(self.norm_2(X)) → self.expand(X)
TanhForm: GELU has GPT-2's tanh form
    self.expand(self.norm_2(X))) → self.expand(self.norm_2(X)), approximate="tanh")
ReluLayer: the network has ReLU in place of GELU
    functional.gelu → functional.relu
Causal: a causal mask hides the patches that come later
    return_weights=True → mask=torch.ones(X.shape[1], X.shape[1]).tril().bool(), return_weights=True
NoResidual: attention is not added to what came in
    X = X + Y → X = Y
NoSecondResidual: the network is not added to what came in
    return X + self → return self
""",
)

changed(
    ViTLayer,
    "OldResidual",
    "the network's output is added to the layer's input, without what attention gave",
    ("        X = X + Y\n", ""),
    ("self.norm_2(X)", "self.norm_2(X + Y)"),
)

mistakes(
    ViTLayer,
    """
SameNorm: norm_1 is used twice
    self.norm_2(X) → self.norm_1(X)
NoFirstNorm: the first norm is left out
    self.norm_1(X), → X,
NoSecondNorm: the second norm is left out
    self.norm_2(X) → X
""",
)

changed(
    ViTLayer,
    "Parallel",
    "attention and network work side by side on the same input",
    ("        X = X + Y\n", ""),
    ("return X + self", "return X + Y + self"),
)

mistakes(
    ViTLayer,
    """
MeanOfHeads: the weights are averaged over the heads
    (X)))), A → (X)))), A.mean(dim=1)
    says: A should have shape
NoWeights: the weights are not returned
    (X)))), A → (X))))
    says: should return (X, A)
""",
)


# ViT

mistakes(
    ViT,
    """
NoPositions: the positions are left out
    return X + self.positions → return X
* ClassLast: the class token comes after the patches
    [self.cls.expand(len(X), 1, -1), X] → [X, self.cls.expand(len(X), 1, -1)]
* ClassWithoutPosition: the class token gets no position, and each patch that of the patch before it
    X = torch.cat([self.cls.expand(len(X), 1, -1), X]
    → return torch.cat([self.cls.expand(len(X), 1, -1), X + self.positions[:-1]]
* ClassUnplaced: the class token gets no position
    X = torch.cat([self.cls.expand(len(X), 1, -1), X]
    → return torch.cat([self.cls.expand(len(X), 1, -1), X + self.positions[1:]]
ZeroClass: the class token is zero instead of the learned one
    self.cls.expand → torch.zeros_like(self.cls).expand
Multiplied: the positions multiply the tokens
    return X + self.positions → return X * self.positions
LastToken: the class is read off the last token
    X[:, 0] if → X[:, -1] if
* AlwaysMean: the class is read off the mean, class token included, although the pool is cls
    X[:, 0] if self.pool == "cls" else X → X
AlwaysFirst: the class is read off the first patch, although the pool is the mean
    X[:, 0] if self.pool == "cls" else X.mean(dim=1) → X[:, 0]
PoolsExchanged: the two pools are exchanged
    X[:, 0] if self.pool == → X[:, 0] if self.pool !=
FirstPatchMissing: the mean leaves the first patch out
    X.mean(dim=1) → X[:, 1:].mean(dim=1)
SumOfPatches: the tokens are summed up, not averaged
    X.mean(dim=1) → X.sum(dim=1)
MeanOfFeatures: the mean is taken over the features, not over the patches
    X.mean(dim=1) → X.mean(dim=2)
    says: raised RuntimeErr
""",
)

changed(ViT, "NoLastNorm", "the last norm is left out", ("        X = self.norm(X)\n", ""))

changed(
    ViT,
    "NormOfTheMean",
    "the mean is normalised, not the tokens",
    ("        X = self.norm(X)\n", ""),
    ("self.head(X[:, 0] if", "self.head(self.norm(X[:, 0] if"),
    ("X.mean(dim=1))", "X.mean(dim=1)))"),
)

mistakes(
    ViT,
    """
Reversed: the layers are applied in reverse
    in self.layers: → in reversed(self.layers):
OneLayer: the first layer is applied again and again
    in self.layers: → in [self.layers[0]] * len(self.layers):
LayerMissing: the last layer is left out
    in self.layers: → in self.layers[:-1]:
WeightsReversed: the weights of the last layer come first
    stack(weights) → stack(weights[::-1])
WeightsBehind: the batch's axis comes before the layers'
    stack(weights) → stack(weights, dim=1)
Probabilities: a softmax follows the head
    X.mean(dim=1)) → X.mean(dim=1)).softmax(dim=-1)
SizeUnchecked: the size is not checked, only the number of patches
    if size != self.size → if math.prod(size) != math.prod(self.size)
    says: raise ValueError when height and width are exchanged
HeightOnly: only the height of the images is compared
    if size != self.size → if size[0] != self.size[0]
    says: raise ValueError when images are
""",
)


@bug(
    ViT,
    "positions are stretched for larger images",
    told_by="raise ValueError when images are twice",
)
class StretchesByItself(ViT):
    def embed(self, images):
        size, P = images.shape[2:], self.patches.P
        if size[0] <= self.size[0] or size[1] <= self.size[1]:
            return super().embed(images)
        X = self.patches(images)
        if self.pool == "cls":
            X = torch.cat([self.cls.expand(len(X), 1, -1), X], dim=1)
        old, new = ((side[0] // P, side[1] // P) for side in (self.size, size))
        return X + resize_positions(self.positions, old, new)


mistakes(
    ViT,
    """
* PositionsCut: a small image gets the first positions
    if size != self.size → if False
    return X + self.positions → return X + self.positions[: X.shape[1]]
    says: raise ValueError when
FixedClass: the class token learns nothing
    self.cls.expand → self.cls.detach().expand
    says: No gradient reaches cls
""",
)


# vit_parameters

mistakes(
    vit_parameters,
    """
* patches_without_bias: the bias of the patch embedding is left out
    (P * P * C + 1) * D → P * P * C * D
thin_patches: a patch is given P numbers for each channel instead of P²
    P * P * C + 1 → P * C + 1
grey_patches: the channels are left out of the patches
    P * P * C + 1 → P * P + 1
embedding_per_patch: every place in the image has a patch embedding of its own
    (P * P * C + 1) * D → N * (P * P * C + 1) * D
* unplaced_cls: the class token's position is left out
    2 * (pool == → (pool ==
always_cls: a class token is counted although the pool is the mean
    2 * (pool == "cls") → 2
never_cls: neither the class token nor its position is counted
    (N + 2 * (pool == "cls")) * D → N * D
square_image: the image is taken to be as wide as it is high
    size[1] // P → size[0] // P
pixel_positions: every pixel has a position
    (N + 2 → (size[0] * size[1] + 2
no_output_projection: W_O is left out: three projections are counted instead of four
    attention = 4 → attention = 3
* attention_without_biases: the biases of the attentions, or the norms, are left out: either is 4 D
    attention = 4 * (D + 1) * D → attention = 4 * D * D
* network_without_biases: the biases of the networks are left out
    (D + 1) * 4 * D + (4 * D + 1) * D → 8 * D * D
one_norm: a layer is given one norm instead of two
    2 * 2 * D → 2 * D
one_layer: one layer is counted instead of L
    L * (2 → (2
* norm_without_bias: the last norm is given a weight, but no bias
    "norm": 2 * D → "norm": D
* head_without_bias: the bias of the head is left out
    (D + 1) * classes → D * classes
""",
)

changed(
    vit_parameters,
    "total",
    "the sum is returned",
    ("return {", "counts = {"),
    ("classes,\n    }", "classes,\n    }\n    return sum(counts.values())"),
    told_by="The keys should be",
)


# resize_positions

mistakes(
    resize_positions,
    """
bilinear: the interpolation is bilinear
    bicubic" → bilinear"
nearest: every new patch gets the position of the nearest old one
    mode="bicubic", align_corners=False → mode="nearest"
corners: the centres of the corner patches lie on each other: align_corners=True
    "bicubic", align_corners=False → "bicubic", align_corners=True
smoothed: the grid is smoothed before it is made smaller: antialias=True
    "bicubic", align_corners=False → "bicubic", align_corners=False, antialias=True
by_quotients: the new grid is given as quotients of the sides, which rounding makes too small
    size=new → scale_factor=(new[0] / old[0], new[1] / old[1])
    says: positions from (13,
as_many_patches: nothing changes when the new grid has as many patches as the old one
    extra = len
    → if old[0] * old[1] == new[0] * new[1]:
          return positions.clone()
      extra = len
* old_turned: height and width of the old grid are exchanged
    *old) → *old[::-1])
* new_turned: height and width of the new grid are exchanged
    size=new → size=new[::-1]
* reshaped: the features are not brought before the grid: positions are only reshaped
    positions[extra:].T.reshape → positions[extra:].reshape
* not_turned_back: the result is reshaped without bringing the features last again
    image[0].flatten(1).T → image.reshape(-1, positions.shape[1])
as_a_line: the list of positions is stretched as a line, not as a grid
    .T.reshape(1, -1, *old) → .T[None, :, None]
    size=new → size=(1, new[0] * new[1])
cls_last: the class token's row is taken off the end, not off the beginning
    image = positions
    → positions = positions.roll(extra, dims=0)
      image = positions
cls_lost: the class token's row is lost
    torch.cat([positions[:extra], image[0].flatten(1).T]) → image[0].flatten(1).T
always_one: a class token is always expected
    image = positions
    → extra = 1
      image = positions
    says: raised RuntimeError
scaled: the positions are scaled by the ratio of the numbers of patches
    image[0].flatten(1).T → image[0].flatten(1).T * (old[0] * old[1] / (new[0] * new[1]))
unnoticed: too few rows are not noticed
    raise ValueError(f"{len(positions)} positions are too few for {old[0]} × {old[1]} patches")
    → positions, extra = functional.pad(positions, (0, 0, 0, -extra)), 0
    says: should raise ValueError when
detached: no gradient passes
    flatten(1).T]) → flatten(1).T]).detach()
    says: No gradient goes back
* cls_stretched: the class token's row is stretched along with the grid
    positions[extra:].T.reshape(1, -1, *old) → positions.T[None, :, None]
    size=new → size=(1, extra + new[0] * new[1])
    torch.cat([positions[:extra], image[0].flatten(1).T]) → image[0].flatten(1).T
""",
)


equivalent(
    resize_positions,
    "image = functional.interpolate(image, size=new, mode='bicubic', align_corners=False) → "
    "image = functional.interpolate(image, size=new, mode='bicubic')",
    "align_corners=False is what torch does unless told otherwise",
)

black_box(
    resize_positions,
    "bilinear",
    curve="""(lambda vit: (
        vit.load_state_dict(starts["stretched positions"]),
        train.fit(
            vit.to(device),
            lambda generator: full.batch(32, generator),
            lambda model, X, y: functional.cross_entropy(model(X), y),
            steps=60,
            lr=lambda step: 0.003 * min(step / 30, 1) * (1 - (step - 1) / 60),
            seed=seed,
        ).losses,
    )[-1])(mnist_vit(28, seed))""",
    after="stretched = resize_positions",
    label="loss after the grid has grown",
)

wrong_answers(resize_positions_fault, "B")
mistakes(
    resize_positions_fault,
    """
same_grid: the grid keeps its size
    (1, 8) → (1, 4)
    says: With these arguments the black box gives what is right
all_alike: all positions are the same
    [0.0], [0.0], [1.0], [0.0] → [1.0], [1.0], [1.0], [1.0]
    says: With these arguments the black box gives what is right
too_few: there are fewer positions than the old grid has patches
    (1, 4), → (1, 5),
    says: resize_positions raised ValueError
one_number: the new grid is given by the number of its patches
    (1, 8) → 8
    says: resize_positions raised TypeError
half_a_patch: the new grid's width is no whole number
    (1, 8) → (1, 7.5)
    says: resize_positions raised ValueError
one_axis: a position is a single number, without an axis of features
    [[0.0], [0.0], [1.0], [0.0]] → [0.0, 0.0, 1.0, 0.0]
    says: resize_positions raised ValueError
""",
)


# attention_rollout

mistakes(
    attention_rollout,
    """
no_residual: the residual connection is left out
    (A.mean(dim=2) + torch.eye(T).to(A)) / 2 → A.mean(dim=2)
* not_normalised: the identity is added, but the rows are not scaled to sum to one again
    to(A)) / 2 → to(A))
normalised_late: the rows are scaled to sum to one only at the end
    torch.eye(T).to(A)) / 2 → 2 * torch.eye(T).to(A))
    return R → return R / R.sum(dim=-1, keepdim=True)
* reverse: the layers are multiplied in reverse: the first one stands on the left
    layer @ R → R @ layer
* entry_by_entry: the layers are multiplied entry by entry, not as matrices
    layer @ R → layer * R
averaged: the layers are averaged, not multiplied
    return R → return mixed.mean(dim=0)
raw_average: the layers are averaged, and the residual connection is left out
    return R → return A.mean(dim=(0, 2))
last_layer: only the last layer's weights are returned
    return R → return A[-1].mean(dim=1)
last_layer_mixed: only the last layer is looked at
    return R → return mixed[-1]
first_missing: the first layer is left out
    R = mixed[0] → R = torch.eye(T).to(A).expand_as(mixed[0])
strongest: the strongest head is taken, not the mean of all
    A.mean( → A.amax(
summed: the heads are summed up, not averaged
    A.mean( → A.sum(
one_head: the first head only is followed
    A.mean(dim=2) → A[:, :, 0]
columns: the matrices are transposed: columns, not rows, are followed
    return R → return R.mT
mean_of_images: the mean is over the images, not over the heads
    A.mean(dim=2) → A.mean(dim=1)
""",
)


equivalent(
    attention_rollout,
    "T = A.shape[-1] → T = A.shape[-2]",
    "there are as many queries as keys",
)
