"""Known wrong solutions of swin."""

import torch
from torch.nn import functional

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.swin import (
    PatchMerging,
    Swin,
    SwinBlock,
    WindowAttention,
    relative_position_index,
    relative_position_index_fault,
    shifted_window_mask,
    window_attention_cost,
    window_partition,
    window_reverse,
)

mistakes(
    window_partition,
    """
columns_first_inside: rows and columns within each window are exchanged
    grid.transpose(2, 3) → grid.permute(0, 1, 3, 4, 2, 5)
columns_of_windows: the windows come column by column instead of row by row
    grid.transpose(2, 3) → grid.permute(0, 3, 1, 2, 4, 5)
* strips: the map is only reshaped: each window is a piece of a row
    grid.transpose(2, 3) → X
dilated: h and h/M are exchanged, and w and w/M: positions lie a window apart
    (B, h // M, M, w // M, M, D) → (B, M, h // M, M, w // M, D)
    grid.transpose(2, 3) → grid.permute(0, 2, 4, 1, 3, 5)
sides_exchanged: height and width are exchanged when the map is cut
    (B, h // M, M, w // M, M, D) → (B, w // M, M, h // M, M, D)
images_mixed: windows of different images are mixed: the images' axis is moved
    (B, -1, M * M, D) → (B, -1, M * M, D).transpose(0, 1).reshape(B, -1, M * M, D)
one_axis: the windows of all images share one axis
    (B, -1, M * M, D) → (-1, M * M, D)
squares: windows are still squares, (B, N, M, M, D), instead of lists of positions
    (B, -1, M * M, D) → (B, -1, M, M, D)
features_first: the features come before the positions
    (B, -1, M * M, D) → (B, -1, M * M, D).mT
dropped: rows and columns that do not fill a window are dropped without an error
    h % M or w % M → False
    X.reshape → X[:, : h // M * M, : w // M * M].reshape
    says: should raise ValueError when a map has 9 rows and M
width_unseen: only the height is checked
    h % M or w % M → h % M
    X.reshape → X[:, :, : w // M * M].reshape
    says: should raise ValueError when a map has 9 columns
area_checked: M² must divide the number of positions, but M need not divide each side
    h % M or w % M → h * w % M**2
    X.reshape → X[:, : h // M * M, : w // M * M].reshape
    says: should raise ValueError when a map has 9 rows and 4 columns
squeezed: axes of size 1 are dropped
    (B, -1, M * M, D) → (B, -1, M * M, D).squeeze()
    says: should have shape (1,
""",
)

mistakes(
    window_reverse,
    """
strips: the windows are only reshaped: each becomes a piece of a row
    grid.transpose(2, 3) → windows
columns_of_windows: windows are laid out column by column instead of row by row
    (B, h // M, w // M, M, M, D) → (B, w // M, h // M, M, M, D)
    grid.transpose(2, 3) → grid.permute(0, 2, 3, 1, 4, 5)
columns_first_inside: rows and columns within each window are exchanged
    grid.transpose(2, 3) → grid.permute(0, 1, 4, 2, 3, 5)
* sides_exchanged: height and width are exchanged
    (B, h // M, w // M, M, M, D) → (B, w // M, h // M, M, M, D)
dilated: the positions of each window are spread over the map, a window apart
    grid.transpose(2, 3) → grid.permute(0, 3, 1, 4, 2, 5)
flat: the maps are returned as lists of positions, (B, h·w, D)
    (B, h, w, D) → (B, h * w, D)
on_the_side: the maps are returned transposed, (B, w, h, D)
    (B, h, w, D) → (B, h, w, D).transpose(1, 2)
images_mixed: windows of different images are mixed
    windows.reshape → windows.transpose(0, 1).reshape
unnoticed: too many or too few windows go unnoticed
    raise ValueError(f"{N} windows of {T} positions do not make up a map of {h} × {w}")
    → return windows.new_zeros(B, h, w, D)
    says: should raise ValueError when six windows are given for eight
""",
)

changed(
    window_reverse,
    "whole_windows_counted",
    "sides that M does not divide go unnoticed where the number of whole windows is right",
    ("h % M or w % M or N * T != h * w", "N != (h // M) * (w // M)"),
    ("return grid", "return functional.pad(grid"),
    ("(B, h, w, D)", "(B, h // M * M, w // M * M, D), (0, 0, 0, w % M, 0, h % M))"),
    told_by="has two whole windows",
)

mistakes(
    relative_position_index,
    """
key_minus_query: the query's place is subtracted from the key's
    p[:, None] - p → p - p[:, None]
    q[:, None] - q → q - q[:, None]
columns_first: rows and columns are exchanged
    down * (2 * M - 1) + right → right * (2 * M - 1) + down
* one_too_many: the row's offset is multiplied by 2M instead of 2M - 1
    down * (2 * M - 1) → down * 2 * M
added: the two offsets are added up: different offsets collide
    down * (2 * M - 1) → down
negative: offsets are not raised by M - 1, so that some numbers are negative
    - p + M - 1 → - p
    - q + M - 1 → - q
half_raised: only the row's offset is raised by M - 1
    - q + M - 1 → - q
without_sign: offsets are taken without their sign: left and right are the same
    p[:, None] - p + M - 1 → (p[:, None] - p).abs()
    q[:, None] - q + M - 1 → (q[:, None] - q).abs()
absolute: every pair has a number of its own
    down * (2 * M - 1) + right → torch.arange(M**4).reshape(M * M, M * M)
* factor_too_small: the row's offset is multiplied by M: different offsets collide
    down * (2 * M - 1) → down * M
four_axes: the result has an axis for each row and column, (M, M, M, M)
    down * (2 * M - 1) + right → (down * (2 * M - 1) + right).reshape(M, M, M, M)
""",
)

black_box(
    relative_position_index,
    "key_minus_query",
    curve='trained["shift"][1].losses',
    label="mean squared error",
)

wrong_answers(relative_position_index_fault, "E")
mistakes(
    relative_position_index_fault,
    """
one_position: the window has a single position
    M = 2 → M = 1
    says: With these arguments the black box gives what is right
no_window: the window has no side
    M = 2 → M = 0
    says: relative_position_index raised ValueError
half_a_position: the side is no whole number
    M = 2 → M = 2.5
    says: relative_position_index raised TypeError
two_sides: the window has a height and a width
    (M,) → (M, M)
    says: relative_position_index raised TypeError
""",
)

mistakes(
    WindowAttention,
    """
NoBias: the biases are left out
    + bias →
BiasTransposed: queries and keys of the bias matrix are exchanged
    .permute(2, 0, 1) → .permute(2, 1, 0)
BiasReshaped: the biases are reshaped to (H, T, T), not permuted
    .permute(2, 0, 1) → .reshape(self.H, T, T)
BiasKept: the biases of the first call are kept, although the table changes
    + bias → + vars(self).setdefault("kept", bias)
    says: WindowAttention depends on an earlier call
OneBias: every head uses the biases of head 0
    + bias → + bias[:1]
BiasScaled: the biases are also divided by √D_h
    Q @ K.mT / math.sqrt(D // self.H) + bias → (Q @ K.mT + bias) / math.sqrt(D // self.H)
BiasLate: the biases are added to the weights, after the softmax
    + bias →
    mask[:, None]) → mask[:, None]) + bias
Unscaled: the similarities are not divided by √D_h
    / math.sqrt(D // self.H) →
ScaledByAll: the similarities are divided by √D instead of √D_h
    / math.sqrt(D // self.H) → / math.sqrt(D)
Unmasked: the mask is ignored
    None if mask is None else mask[:, None] → None
Inverted: the mask is inverted: True forbids
    else mask[:, None] → else ~mask[:, None]
MaskAdded: the mask is added to the similarities, as 0 and 1
    (E, None if mask is None else mask[:, None]) → (E if mask is None else E + mask[:, None], None)
MaskLate: the mask acts after the softmax, so that weights do not sum to one
    None if mask is None else mask[:, None]) → None); A = A if mask is None else A * mask[:, None]
FirstMask: all windows use the mask of window 0
    else mask[:, None] → else mask[:1, None]
OverQueries: the softmax runs over the queries instead of the keys
    masked_softmax(E, → masked_softmax(E.mT,
    else mask[:, None]) → else mask[:, None].mT).mT
Interleaved: each head has every H-th feature instead of D_h neighbouring ones
    3, self.H, D // self.H) → 3, D // self.H, self.H)
    qkv.permute(3, 0, 1, 4, 2, 5) → qkv.permute(3, 0, 1, 5, 2, 4)
    (A @ V).transpose(2, 3) → (A @ V).permute(0, 1, 3, 4, 2)
* HeadsFirst: the output of qkv is cut by heads first: query, key, value of head 0, …
    3, self.H, D // self.H) → self.H, 3, D // self.H)
    qkv.permute(3, 0, 1, 4, 2, 5) → qkv.permute(4, 0, 1, 3, 2, 5)
KeysFirst: queries and keys are exchanged
    Q, K, V = → K, Q, V =
JoinedWrongly: heads are joined without moving their axis after the positions'
    (A @ V).transpose(2, 3) → (A @ V)
NoOut: the last projection, out, is left out
    Y = self.out( → Y = (
MinusHundred: forbidden keys get a similarity of -100 instead of no weight
    + bias → + bias; E = E if mask is None else E.masked_fill(~mask[:, None], -100.0)
    None if mask is None else mask[:, None] → None
Overflows: large similarities overflow: their exponentials are computed as they are
    + bias → + bias; E = E.exp() if mask is None else E.exp() * mask[:, None]
    masked_softmax(E, None if mask is None else mask[:, None]) → E / E.sum(dim=-1, keepdim=True)
    says: yours is nan
BiasDetached: no gradient reaches the bias table
    + bias → + bias.detach()
    says: No gradient reaches bias_table
MinusBillion: forbidden keys get a similarity of -1e9, which allowed ones may lie below
    + bias → + bias; E = E if mask is None else E.masked_fill(~mask[:, None], -1e9)
    masked_softmax(E, None if mask is None else mask[:, None]) → torch.softmax(E, dim=-1)
BillionLess: -1e9 is added to the similarities of forbidden keys, which may be larger than that
    + bias → + bias; E = E if mask is None else E - 1e9 * ~mask[:, None]
    masked_softmax(E, None if mask is None else mask[:, None]) → torch.softmax(E, dim=-1)
""",
)

mistakes(
    window_attention_cost,
    """
without_out: three projections are counted: the last one, out, is forgotten
    projections = 4 → projections = 3
one_product: one product of queries and keys is counted, but not A V
    2 * (h * w) ** 2 → (h * w) ** 2
    2 * M**2 → M**2
no_projections: the projections are left out
    projections = 4 → projections = 0
doubled: multiplications and additions are counted one by one
    projections = 4 → projections = 8
    2 * (h * w) ** 2 → 4 * (h * w) ** 2
    2 * M**2 → 4 * M**2
line_of_a_window: a window has M positions instead of M²
    2 * M**2 → 2 * M
* single_window: the products of a single window are counted
    2 * M**2 * h * w → 2 * M**4
square_again: windows attend to each other: M² is multiplied by (h w)²
    2 * M**2 * h * w → 2 * M**2 * (h * w) ** 2
square_maps: h w is taken for h², as if every map were square
    projections = 4 → w = h; projections = 4
exchanged: the two counts are exchanged
    2 * (h * w) ** 2 → 2 * h * w * M**2
    2 * M**2 * h * w → 2 * (h * w) ** 2
linear: h w is not squared
    (h * w) ** 2 → h * w
""",
)

mistakes(
    shifted_window_mask,
    """
inverted: the mask is inverted: True forbids
    == part[:, None, :] → != part[:, None, :]
all_allowed: everything is allowed
    2 * from_top[:, None] + from_left → 0 * from_top[:, None] + 0 * from_left
    says: should be False, yours is True
rows_only: only the rows that come from the top are set apart, not the columns
    + from_left → + 0 * from_left
columns_only: only the columns that come from the left are set apart, not the rows
    2 * from_top → 0 * from_top
* two_parts_alike: top right and bottom left parts have the same number
    2 * from_top → 1 * from_top
* all_rolled_alike: all parts but the largest have the same number
    2 * from_top[:, None] + from_left → from_top[:, None] | from_left
* corner_alone: only the part that came from the top and from the left has a number of its own
    2 * from_top[:, None] + from_left → from_top[:, None] & from_left
one_late: the parts meet one position too late
    >= h - shift → > h - shift
    >= w - shift → > w - shift
complement: the last M - shift rows and columns are set apart, not the last shift
    >= h - shift → >= h - (M - shift)
    >= w - shift → >= w - (M - shift)
not_rolled: the first rows and columns are set apart, as if the map were not rolled
    >= h - shift → < shift
    >= w - shift → < shift
sides_exchanged: height and width are exchanged
    h, w = size → w, h = size
numbers: the mask holds numbers to add, 0 and -100, instead of truth values
    return part → return torch.where(part
    part[:, None, :] → part[:, None, :], 0.0, -100.0)
    says: should hold truth values
parts_named: each window's mask names its parts and does not compare pairs
    part[:, None, :] → 0 * part[:, None, :]
any_shift: a shift of a whole window is accepted
    if not 0 <= shift < M: → if False:
    h, w = size → shift, (h, w) = shift % M, size
    says: should raise ValueError when shift is
always_half: the shift is taken to be half a window, whatever is given
    h, w = size → shift, (h, w) = M // 2 if shift else 0, size
rest_dropped: rows and columns that do not fill a window are dropped without an error
    h, w = size → h, w = size[0] // M * M, size[1] // M * M
    says: should raise ValueError when a map has 9 rows
width_unchecked: only the height is checked
    h, w = size → h, w = size[0], size[1] // M * M
    says: should raise ValueError when a map has 13 columns
squeezed: axes of size 1 are dropped
    return part[:, :, None] == → return torch.eq(part[:, :, None],
    part[:, None, :] → part[:, None, :]).squeeze()
    says: mask of a single window should have shape
""",
)

mistakes(
    SwinBlock,
    """
NeverShifts: the block never shifts
    self.shift if min(h, w) > self.M else 0 → 0
RollsTheOtherWay: the map is rolled down and to the right first, and back afterwards
    (h, w)), (shift, shift) → (h, w)), (-shift, -shift)
    self.norm_1(X), (-shift, -shift) → self.norm_1(X), (shift, shift)
NotBack: the map is not rolled back
    (shift, shift) → (0, 0)
* RollsOn: the map is rolled in the same direction twice
    (shift, shift) → (-shift, -shift)
* RollsOnDownwards: the map is rolled in the same direction twice
    (-shift, -shift) → (shift, shift)
ShortcutRolled: the shortcut is rolled, too, and not rolled back
    X = X + torch.roll( → X = torch.roll(X, (-shift, -shift), dims=(1, 2)) + torch.roll(
RowsOnly: only the rows are rolled
    (-shift, -shift) → (-shift, 0)
    (shift, shift) → (shift, 0)
NoMask: a shifted block uses no mask: opposite edges of the map see each other
    shifted_window_mask((h, w), self.M, shift).to(X.device) if shift else None → None
InvertedMask: the mask is inverted
    mask = shifted → mask = ~shifted
AlwaysShifts: even a map of one window is shifted
    self.shift if min(h, w) > self.M else 0 → self.shift
ShiftsNarrow: a map is shifted unless both of its sides are one window
    min(h, w) → max(h, w)
HeightDecides: a map that is one window wide is shifted, unless it is one window high as well
    min(h, w) → h
WidthDecides: a map that is one window high is shifted, unless it is one window wide as well
    min(h, w) → w
HalfAWindow: the map is shifted by half a window, whatever shift is
    self.shift if min → self.M // 2 if self.shift and min
ShiftForgotten: the block no longer shifts once it has seen a map of one window
    shift = self.shift if → shift = self.shift = self.shift if
MaskKept: the mask of an earlier map with as many windows is used again
    mask = shifted → mask = vars(self).setdefault("kept", {}).setdefault(h * w, shifted
    .to(X.device) → .to(X.device))
""",
)


@bug(
    SwinBlock,
    "maps that M does not divide are filled up with zeros",
    told_by="should raise ValueError when a row of the map is missing",
)
class FilledUp(SwinBlock):
    def forward(self, X):
        _, h, w, _ = X.shape
        return super().forward(functional.pad(X, (0, 0, 0, -w % self.M, 0, -h % self.M)))[:, :h, :w]


mistakes(
    SwinBlock,
    """
NoFirstShortcut: what comes in is not added to the attention's output
    X = X + torch → X = torch
NoSecondShortcut: the sum after the attention is not added to the network's output
    return X + → return
WrongSum: the network's output is added to the block's input, before the attention
    X = X + torch → Z = X + torch
    self.norm_2(X) → self.norm_2(Z)
PostNorm: the layer norms come after the sums, as in post-LN
    self.norm_1(X), (-shift → X, (-shift
    X = X + torch → X = self.norm_1(X + torch
    (shift, shift), dims=(1, 2)) → (shift, shift), dims=(1, 2)))
    self.norm_2(X) → X
    return X + self.contract(wide) → return self.norm_2(X + self.contract(wide))
NoFirstNorm: norm_1 is left out
    self.norm_1(X) → X
NoSecondNorm: norm_2 is left out
    self.norm_2(X) → X
SameNorm: norm_1 is used twice
    self.norm_2(X) → self.norm_1(X)
ThinksFirst: the network comes before the attention
    X.shape → X.shape; X = X + self.contract(functional.gelu(self.expand(self.norm_2(X))))
    return X + self.contract(wide) → return X
Relu: ReLU is used instead of GELU
    functional.gelu( → functional.relu(
ApproximateGelu: GELU is computed by its approximation with tanh
    self.norm_2(X))) → self.norm_2(X)), approximate="tanh")
""",
)


@bug(SwinBlock, "the maps are changed in place")
class InPlace(SwinBlock):
    def forward(self, X):
        Y = super().forward(X)
        with torch.no_grad():
            X.copy_(Y)
        return Y


mistakes(
    PatchMerging,
    """
* AsOneReads: the corners come in reading order: top left, top right, bottom left, bottom right
    for column in (0, 1) for row in (0, 1) → for row in (0, 1) for column in (0, 1)
Clockwise: the corners come clockwise
    for column in (0, 1) for row in (0, 1) → for row, column in ((0, 0), (0, 1), (1, 1), (1, 0))
CounterClockwise: the corners come counter-clockwise
    for column in (0, 1) for row in (0, 1) → for row, column in ((0, 0), (1, 0), (1, 1), (0, 1))
Interleaved: the four numbers of each feature are side by side
    torch.cat(corners, dim=-1) → torch.stack(corners, dim=-1).flatten(3)
FourInARow: the map is only reshaped: four neighbours in a row become one
    torch.cat(corners, dim=-1) → X.reshape(-1, h // 2, w // 2, 4 * X.shape[3])
Quarters: the map's quarters are laid on each other, not its neighbours
    X[:, row::2, column::2] → X.chunk(2, dim=1)[row].chunk(2, dim=2)[column]
NoNorm: the layer norm is left out
    self.norm( → (
Flat: the maps are returned as lists of positions
    torch.cat(corners, dim=-1))) → torch.cat(corners, dim=-1))).flatten(1, 2)
Padded: odd sides are filled up with zeros instead of refused
    h % 2 or w % 2 → False
    X[:, row:: → functional.pad(X, (0, 0, 0, w % 2, 0, h % 2))[:, row::
    says: should raise ValueError when a map has 5 rows
WidthUnseen: only the height is checked
    h % 2 or w % 2 → h % 2
    X[:, row:: → functional.pad(X, (0, 0, 0, w % 2, 0, h % 2))[:, row::
    says: should raise ValueError when a map has 5 columns
AreaChecked: 4 must divide the number of positions, but 2 need not divide each side
    h % 2 or w % 2 → h * w % 4
    X[:, row:: → functional.pad(X, (0, 0, 0, w % 2, 0, h % 2))[:, row::
    says: should raise ValueError when a map has 20 positions
Squeezed: axes of size 1 are dropped
    torch.cat(corners, dim=-1))) → torch.cat(corners, dim=-1))).squeeze(1).squeeze(-2)
    says: should have shape (
""",
)

mistakes(
    Swin,
    """
NeverShifts: no block is shifted
    M // 2 if shifted and block % 2 else 0 → 0
AlwaysShifts: all blocks are shifted
    shifted and block % 2 → shifted
FirstShifts: the first block of each stage is shifted, and the second is not
    block % 2 → (block + 1) % 2
CountedThrough: blocks are counted through all stages, so that a stage can begin with a shift
    block % 2 → (sum(depths[:number]) + block) % 2
ShiftsByOne: blocks shift by one position instead of half a window
    M // 2 if → min(M // 2, 1) if
RoundsUp: half a window is rounded up
    M // 2 if → (M + 1) // 2 if
SecondAlone: the second block of a stage is shifted, but none after it
    block % 2 → block == 1
ShiftsAnyway: blocks shift even if shifted is False
    shifted and block % 2 → block % 2
ShiftedOrOdd: a block shifts if shifted is True or its number is odd, not only where both hold
    shifted and block % 2 → shifted or block % 2
NoPatchNorm: the layer norm after the patches, patch_norm, is left out
    X = self.patch_norm( → X = (
OnTheSide: rows and columns of the patches are exchanged
    permute(0, 2, 3, 1) → permute(0, 3, 2, 1)
AfterMerging: each map is taken after its merging
    return found → return [*(m(X) for m, X in zip(self.mergings, found, strict=False)), found[-1]]
ChannelsFirst: the maps are returned channels first
    return found → return [X.permute(0, 3, 1, 2) for X in found]
    self.maps(images)[-1] → self.maps(images)[-1].permute(0, 2, 3, 1)
NormedMap: the last map is already normalised in maps
    return found → return [*found[:-1], self.norm(found[-1])]
    self.norm(self.maps(images)[-1]) → self.maps(images)[-1]
LastMap: only the last map is returned
    return found → return found[-1]
    self.maps(images)[-1] → self.maps(images)
    says: should return (map of stage 0
NoNorm: the last layer norm is left out
    self.norm(self.maps(images)[-1]) → self.maps(images)[-1]
NormOfMean: the mean is taken before the layer norm
    [-1]).mean(dim=(1, 2)) → [-1].mean(dim=(1, 2)))
FirstPosition: the classes are read off the first position alone
    .mean(dim=(1, 2)) → [:, 0, 0]
MeanOfRows: the mean is taken over rows only
    .mean(dim=(1, 2)) → .mean(dim=1)
Largest: the largest value is taken instead of the mean
    .mean(dim=(1, 2)) → .amax(dim=(1, 2))
* Reshaped: the patches are reshaped to have the channels last, not permuted
    X = self.patch_norm(self.patches(images) → X = self.patches(images); X = self.patch_norm(X
    .permute(0, 2, 3, 1) → .reshape(len(X), *X.shape[2:], -1)
""",
)

equivalent(
    window_partition,
    "grid = X.reshape(B, h // M, M, w // M, M, D) → grid = X.reshape(h // M, B, M, w // M, M, D)",
    "the same numbers in the same order: axes that are not moved are cut and joined again",
)

equivalent(
    window_partition,
    "grid = X.reshape(B, h // M, M, w // M, M, D) → grid = X.reshape(B, h // M, M, w // M, D, M)",
    "the same numbers in the same order: axes that are not moved are cut and joined again",
)

equivalent(
    window_partition,
    "return grid.transpose(2, 3).reshape(B, -1, M * M, D) "
    "→ return grid.transpose(3, 2).reshape(B, -1, M * M, D)",
    "two axes are exchanged, in whichever order they are named",
)

equivalent(
    window_reverse,
    "grid = windows.reshape(B, h // M, w // M, M, M, D) "
    "→ grid = windows.reshape(h // M, B, w // M, M, M, D)",
    "the same numbers in the same order: axes that are not moved are cut and joined again",
)

equivalent(
    window_reverse,
    "grid = windows.reshape(B, h // M, w // M, M, M, D) "
    "→ grid = windows.reshape(B, h // M, w // M, M, D, M)",
    "the same numbers in the same order: axes that are not moved are cut and joined again",
)

equivalent(
    window_reverse,
    "return grid.transpose(2, 3).reshape(B, h, w, D) "
    "→ return grid.transpose(3, 2).reshape(B, h, w, D)",
    "two axes are exchanged, in whichever order they are named",
)

equivalent(
    WindowAttention,
    "Y = self.out((A @ V).transpose(2, 3).reshape(B, N, T, D)) "
    "→ Y = self.out((A @ V).transpose(3, 2).reshape(B, N, T, D))",
    "two axes are exchanged, in whichever order they are named",
)

equivalent(
    shifted_window_mask,
    "part = 2 * from_top[:, None] + from_left → part = 3 * from_top[:, None] + from_left",
    "the four parts have four different numbers",
)

equivalent(
    SwinBlock,
    "shift = self.shift if min(h, w) > self.M else 0 "
    "→ shift = self.shift if min(w, h) > self.M else 0",
    "the smaller of two numbers, in whichever order",
)

equivalent(
    SwinBlock,
    "rolled = torch.roll(self.norm_1(X), (-shift, -shift), dims=(1, 2)) "
    "→ rolled = torch.roll(self.norm_1(X), (-shift, -shift), dims=(2, 1))",
    "both axes are rolled by the same amount",
)

equivalent(
    SwinBlock,
    "X = X + torch.roll(window_reverse(Y, self.M, (h, w)), (shift, shift), dims=(1, 2)) "
    "→ X = X + torch.roll(window_reverse(Y, self.M, (h, w)), (shift, shift), dims=(2, 1))",
    "both axes are rolled by the same amount",
)

equivalent(
    PatchMerging,
    "_, h, w, _ = X.shape → _, w, h, _ = X.shape",
    "height and width are only tested, both for the same thing",
)

equivalent(
    Swin,
    "for number, (depth, H) in enumerate(zip(depths, heads, strict=True)): "
    "→ for number, (depth, H) in enumerate(zip(depths, heads)):",
    "the lengths have been compared before",
)

equivalent(
    Swin,
    "for number, (depth, H) in enumerate(zip(depths, heads, strict=True)): "
    "→ for number, (depth, H) in enumerate(zip(depths, heads, strict=False)):",
    "the lengths have been compared before",
)

equivalent(
    Swin,
    "for merging, stage in zip(self.mergings, self.stages[1:], strict=True): "
    "→ for merging, stage in zip(self.mergings, self.stages[1:]):",
    "the lists are as long as the constructor makes them",
)

equivalent(
    Swin,
    "for merging, stage in zip(self.mergings, self.stages[1:], strict=True): "
    "→ for merging, stage in zip(self.mergings, self.stages[1:], strict=False):",
    "the lists are as long as the constructor makes them",
)

equivalent(
    Swin,
    "return self.head(self.norm(self.maps(images)[-1]).mean(dim=(1, 2))) "
    "→ return self.head(self.norm(self.maps(images)[-1]).mean(dim=(2, 1)))",
    "the mean over two axes, in whichever order",
)
