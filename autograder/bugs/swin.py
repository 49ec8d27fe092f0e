"""Known wrong solutions of swin."""

import math

import torch
from torch import nn
from torch.nn import functional

from autograder.bugs import bug, changed, equivalent
from course_pkg.attention import masked_softmax
from course_pkg.swin import (
    PatchMerging,
    Swin,
    SwinBlock,
    WindowAttention,
    relative_position_index,
    shifted_window_mask,
    window_attention_cost,
    window_partition,
    window_reverse,
)


def refuse(h, w, M):
    if h % M or w % M:
        raise ValueError(f"{h} × {w} cannot be cut into {M} × {M}")


@bug(window_partition, "rows and columns within each window are exchanged")
def columns_first_inside(X, M):
    B, h, w, D = X.shape
    refuse(h, w, M)
    grid = X.reshape(B, h // M, M, w // M, M, D)
    return grid.permute(0, 1, 3, 4, 2, 5).reshape(B, -1, M * M, D)


@bug(window_partition, "the windows come column by column instead of row by row")
def columns_of_windows(X, M):
    B, h, w, D = X.shape
    refuse(h, w, M)
    grid = X.reshape(B, h // M, M, w // M, M, D)
    return grid.permute(0, 3, 1, 2, 4, 5).reshape(B, -1, M * M, D)


@bug(window_partition, "the map is only reshaped: each window is a piece of a row", classic=True)
def strips(X, M):
    B, h, w, D = X.shape
    refuse(h, w, M)
    return X.reshape(B, -1, M * M, D)


@bug(window_partition, "h and h/M are exchanged, and w and w/M: positions lie a window apart")
def dilated(X, M):
    B, h, w, D = X.shape
    refuse(h, w, M)
    return X.reshape(B, M, h // M, M, w // M, D).permute(0, 2, 4, 1, 3, 5).reshape(B, -1, M * M, D)


@bug(window_partition, "height and width are exchanged when the map is cut")
def sides_exchanged(X, M):
    B, h, w, D = X.shape
    refuse(h, w, M)
    return X.reshape(B, w // M, M, h // M, M, D).transpose(2, 3).reshape(B, -1, M * M, D)


@bug(window_partition, "windows of different images are mixed: the images' axis is moved")
def images_mixed(X, M):
    B, _, _, D = X.shape
    return window_partition(X, M).transpose(0, 1).reshape(B, -1, M * M, D)


@bug(window_partition, "the windows of all images share one axis")
def one_axis(X, M):
    return window_partition(X, M).flatten(0, 1)


@bug(window_partition, "windows are still squares, (B, N, M, M, D), instead of lists of positions")
def squares(X, M):
    return window_partition(X, M).unflatten(2, (M, M))


@bug(window_partition, "the features come before the positions")
def features_first(X, M):
    return window_partition(X, M).mT


@bug(
    window_partition,
    "rows and columns that do not fill a window are dropped without an error",
    told_by="should raise ValueError when a map has 9 rows and M",
)
def dropped(X, M):
    _, h, w, _ = X.shape
    return window_partition(X[:, : h // M * M, : w // M * M], M)


@bug(
    window_partition,
    "only the height is checked",
    told_by="should raise ValueError when a map has 9 columns",
)
def width_unseen(X, M):
    _, _, w, _ = X.shape
    return window_partition(X[:, :, : w // M * M], M)


@bug(
    window_partition,
    "M² must divide the number of positions, but M need not divide each side",
    told_by="should raise ValueError when a map has 9 rows and 4 columns",
)
def area_checked(X, M):
    _, h, w, _ = X.shape
    if h * w % M**2:
        raise ValueError(f"{h} × {w} cannot be cut into {M} × {M}")
    return window_partition(X[:, : h // M * M, : w // M * M], M)


@bug(
    window_partition,
    "axes of size 1 are dropped",
    told_by="should have shape (1,",
)
def squeezed(X, M):
    return window_partition(X, M).squeeze()


def refuse_windows(windows, M, size):
    _, N, T, _ = windows.shape
    refuse(*size, M)
    if T != M * M or N * T != size[0] * size[1]:
        raise ValueError(f"{N} windows of {T} do not make up {size}")


@bug(window_reverse, "the windows are only reshaped: each becomes a piece of a row")
def strips(windows, M, size):
    refuse_windows(windows, M, size)
    return windows.reshape(len(windows), *size, -1)


@bug(window_reverse, "windows are laid out column by column instead of row by row")
def columns_of_windows(windows, M, size):
    refuse_windows(windows, M, size)
    grid = windows.reshape(len(windows), size[1] // M, size[0] // M, M, M, -1)
    return grid.permute(0, 2, 3, 1, 4, 5).reshape(len(windows), *size, -1)


@bug(window_reverse, "rows and columns within each window are exchanged")
def columns_first_inside(windows, M, size):
    return window_reverse(windows.unflatten(2, (M, M)).transpose(2, 3).flatten(2, 3), M, size)


@bug(window_reverse, "height and width are exchanged", classic=True)
def sides_exchanged(windows, M, size):
    refuse_windows(windows, M, size)
    grid = windows.reshape(len(windows), size[1] // M, size[0] // M, M, M, -1)
    return grid.transpose(2, 3).reshape(len(windows), *size, -1)


@bug(window_reverse, "the positions of each window are spread over the map, a window apart")
def dilated(windows, M, size):
    refuse_windows(windows, M, size)
    grid = windows.reshape(len(windows), size[0] // M, size[1] // M, M, M, -1)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(len(windows), *size, -1)


@bug(window_reverse, "the maps are returned as lists of positions, (B, h·w, D)")
def flat(windows, M, size):
    return window_reverse(windows, M, size).flatten(1, 2)


@bug(window_reverse, "the maps are returned transposed, (B, w, h, D)")
def on_the_side(windows, M, size):
    return window_reverse(windows, M, size).transpose(1, 2)


@bug(window_reverse, "windows of different images are mixed")
def images_mixed(windows, M, size):
    B, N, T, D = windows.shape
    return window_reverse(windows.transpose(0, 1).reshape(B, N, T, D), M, size)


@bug(
    window_reverse,
    "too many or too few windows go unnoticed",
    told_by="should raise ValueError when six windows are given for eight",
)
def unnoticed(windows, M, size):
    try:
        return window_reverse(windows, M, size)
    except ValueError:
        return windows.new_zeros(len(windows), *size, windows.shape[3])


@bug(
    window_reverse,
    "sides that M does not divide go unnoticed where the number of whole windows is right",
    told_by="has two whole windows",
)
def whole_windows_counted(windows, M, size):
    h, w = size
    if windows.shape[2] != M * M or windows.shape[1] != (h // M) * (w // M):
        raise ValueError(f"{tuple(windows.shape)} do not make up {size}")
    maps = window_reverse(windows, M, (h // M * M, w // M * M))
    return functional.pad(maps, (0, 0, 0, w % M, 0, h % M))


def offsets(M):
    place = torch.arange(M * M)
    p, q = place // M, place % M
    return p[:, None] - p, q[:, None] - q


@bug(relative_position_index, "the query's place is subtracted from the key's")
def key_minus_query(M):
    return relative_position_index(M).T.contiguous()


@bug(relative_position_index, "rows and columns are exchanged")
def columns_first(M):
    down, right = offsets(M)
    return (right + M - 1) * (2 * M - 1) + down + M - 1


@bug(
    relative_position_index, "the row's offset is multiplied by 2M instead of 2M - 1", classic=True
)
def one_too_many(M):
    down, right = offsets(M)
    return (down + M - 1) * (2 * M) + right + M - 1


@bug(relative_position_index, "the two offsets are added up: different offsets collide")
def added(M):
    down, right = offsets(M)
    return down + right + 2 * (M - 1)


@bug(relative_position_index, "offsets are not raised by M - 1, so that some numbers are negative")
def negative(M):
    down, right = offsets(M)
    return down * (2 * M - 1) + right


@bug(relative_position_index, "only the row's offset is raised by M - 1")
def half_raised(M):
    down, right = offsets(M)
    return (down + M - 1) * (2 * M - 1) + right


@bug(relative_position_index, "offsets are taken without their sign: left and right are the same")
def without_sign(M):
    down, right = offsets(M)
    return down.abs() * (2 * M - 1) + right.abs()


@bug(relative_position_index, "every pair has a number of its own")
def absolute(M):
    return torch.arange(M**4).reshape(M * M, M * M)


@bug(
    relative_position_index,
    "the row's offset is multiplied by M: different offsets collide",
    classic=True,
)
def factor_too_small(M):
    down, right = offsets(M)
    return (down + M - 1) * M + right + M - 1


@bug(relative_position_index, "the result has an axis for each row and column, (M, M, M, M)")
def four_axes(M):
    return relative_position_index(M).reshape(M, M, M, M)


class Varied(WindowAttention):
    """An attention whose steps the bugs below vary."""

    def forward(self, windows, mask=None, return_weights=False):
        Q, K, V = self.split(self.qkv(windows))
        A = self.weigh(self.similar(Q, K, self.bias()), mask)
        Y = self.join(A @ V)
        return (Y, A) if return_weights else Y

    def split(self, qkv):
        return qkv.unflatten(-1, (3, self.H, -1)).permute(3, 0, 1, 4, 2, 5)

    def bias(self):
        return self.bias_table[relative_position_index(self.M)].permute(2, 0, 1)

    def similar(self, Q, K, bias):
        return Q @ K.mT / math.sqrt(Q.shape[-1]) + bias

    def weigh(self, E, mask):
        return masked_softmax(E, None if mask is None else mask[:, None])

    def join(self, heads):
        return self.out(heads.transpose(2, 3).flatten(3))


@bug(WindowAttention, "the biases are left out")
class NoBias(Varied):
    def similar(self, Q, K, bias):
        return super().similar(Q, K, 0)


@bug(WindowAttention, "queries and keys of the bias matrix are exchanged")
class BiasTransposed(Varied):
    def bias(self):
        return super().bias().mT


@bug(
    WindowAttention,
    "the biases of the first call are kept, although the table changes",
    told_by="WindowAttention depends on an earlier call",
)
class BiasKept(Varied):
    def bias(self):
        return self.__dict__.setdefault("kept", super().bias())


@bug(WindowAttention, "every head uses the biases of head 0")
class OneBias(Varied):
    def bias(self):
        return super().bias()[:1]


@bug(WindowAttention, "the biases are also divided by √D_h")
class BiasScaled(Varied):
    def similar(self, Q, K, bias):
        return (Q @ K.mT + bias) / math.sqrt(Q.shape[-1])


@bug(WindowAttention, "the biases are added to the weights, after the softmax")
class BiasLate(Varied):
    def weigh(self, E, mask):
        return super().weigh(E - self.bias(), mask) + self.bias()


@bug(WindowAttention, "the similarities are not divided by √D_h")
class Unscaled(Varied):
    def similar(self, Q, K, bias):
        return Q @ K.mT + bias


@bug(WindowAttention, "the similarities are divided by √D instead of √D_h")
class ScaledByAll(Varied):
    def similar(self, Q, K, bias):
        return Q @ K.mT / math.sqrt(Q.shape[-1] * self.H) + bias


@bug(WindowAttention, "the mask is ignored")
class Unmasked(Varied):
    def weigh(self, E, mask):
        return super().weigh(E, None)


@bug(WindowAttention, "the mask is inverted: True forbids")
class Inverted(Varied):
    def weigh(self, E, mask):
        return super().weigh(E, None if mask is None else ~mask)


@bug(WindowAttention, "the mask is added to the similarities, as 0 and 1")
class MaskAdded(Varied):
    def weigh(self, E, mask):
        return super().weigh(E if mask is None else E + mask[:, None], None)


@bug(WindowAttention, "the mask acts after the softmax, so that weights do not sum to one")
class MaskLate(Varied):
    def weigh(self, E, mask):
        A = super().weigh(E, None)
        return A if mask is None else A * mask[:, None]


@bug(WindowAttention, "all windows use the mask of window 0")
class FirstMask(Varied):
    def weigh(self, E, mask):
        return super().weigh(E, None if mask is None else mask[:1])


@bug(WindowAttention, "the softmax runs over the queries instead of the keys")
class OverQueries(Varied):
    def weigh(self, E, mask):
        return super().weigh(E.mT, None if mask is None else mask.mT).mT


@bug(WindowAttention, "each head has every H-th feature instead of D_h neighbouring ones")
class Interleaved(Varied):
    def split(self, qkv):
        return qkv.unflatten(-1, (3, -1, self.H)).permute(3, 0, 1, 5, 2, 4)

    def join(self, heads):
        return self.out(heads.permute(0, 1, 3, 4, 2).flatten(3))


@bug(
    WindowAttention,
    "the output of qkv is cut by heads first: query, key, value of head 0, …",
    classic=True,
)
class HeadsFirst(Varied):
    def split(self, qkv):
        return qkv.unflatten(-1, (self.H, 3, -1)).permute(4, 0, 1, 3, 2, 5)


@bug(WindowAttention, "queries and keys are exchanged")
class KeysFirst(Varied):
    def split(self, qkv):
        Q, K, V = super().split(qkv)
        return K, Q, V


@bug(WindowAttention, "heads are joined without moving their axis after the positions'")
class JoinedWrongly(Varied):
    def join(self, heads):
        B, N, H, T, D_h = heads.shape
        return self.out(heads.reshape(B, N, T, H * D_h))


@bug(WindowAttention, "the last projection, out, is left out")
class NoOut(Varied):
    def join(self, heads):
        return heads.transpose(2, 3).flatten(3)


@bug(WindowAttention, "forbidden keys get a similarity of -100 instead of no weight")
class MinusHundred(Varied):
    def weigh(self, E, mask):
        return super().weigh(E if mask is None else E.masked_fill(~mask[:, None], -100.0), None)


@bug(
    WindowAttention,
    "large similarities overflow: their exponentials are computed as they are",
    told_by="yours is nan",
)
class Overflows(Varied):
    def weigh(self, E, mask):
        powers = E.exp() if mask is None else E.exp() * mask[:, None]
        return powers / powers.sum(dim=-1, keepdim=True)


@bug(
    WindowAttention,
    "no gradient reaches the bias table",
    told_by="No gradient reaches bias_table",
)
class BiasDetached(Varied):
    def bias(self):
        return super().bias().detach()


WEIGHED = "        A = masked_softmax(E, None if mask is None else mask[:, None])\n"
changed(
    WindowAttention,
    "MinusBillion",
    "forbidden keys get a similarity of -1e9, which allowed ones may lie below",
    (
        WEIGHED,
        "        E = E if mask is None else E.masked_fill(~mask[:, None], -1e9)\n"
        "        A = torch.softmax(E, dim=-1)\n",
    ),
)
changed(
    WindowAttention,
    "BillionLess",
    "-1e9 is added to the similarities of forbidden keys, which may be larger than that",
    (
        WEIGHED,
        "        E = E if mask is None else E - 1e9 * ~mask[:, None]\n"
        "        A = torch.softmax(E, dim=-1)\n",
    ),
)


def cost(h, w, D, M, projections=4, products=2):
    return {
        "global": projections * h * w * D**2 + products * (h * w) ** 2 * D,
        "windowed": projections * h * w * D**2 + products * M**2 * h * w * D,
    }


@bug(window_attention_cost, "three projections are counted: the last one, out, is forgotten")
def without_out(h, w, D, M):
    return cost(h, w, D, M, projections=3)


@bug(window_attention_cost, "one product of queries and keys is counted, but not A V")
def one_product(h, w, D, M):
    return cost(h, w, D, M, products=1)


@bug(window_attention_cost, "the projections are left out")
def no_projections(h, w, D, M):
    return cost(h, w, D, M, projections=0)


@bug(window_attention_cost, "multiplications and additions are counted one by one")
def doubled(h, w, D, M):
    return {kind: 2 * value for kind, value in cost(h, w, D, M).items()}


@bug(window_attention_cost, "a window has M positions instead of M²")
def line_of_a_window(h, w, D, M):
    return cost(h, w, D, M) | {"windowed": 4 * h * w * D**2 + 2 * M * h * w * D}


@bug(window_attention_cost, "the products of a single window are counted", classic=True)
def single_window(h, w, D, M):
    return cost(h, w, D, M) | {"windowed": 4 * h * w * D**2 + 2 * M**4 * D}


@bug(window_attention_cost, "windows attend to each other: M² is multiplied by (h w)²")
def square_again(h, w, D, M):
    return cost(h, w, D, M) | {"windowed": 4 * h * w * D**2 + 2 * M**2 * (h * w) ** 2 * D}


@bug(window_attention_cost, "h w is taken for h², as if every map were square")
def square_maps(h, w, D, M):
    return cost(h, h, D, M)


@bug(window_attention_cost, "the two counts are exchanged")
def exchanged(h, w, D, M):
    both = cost(h, w, D, M)
    return {"global": both["windowed"], "windowed": both["global"]}


@bug(window_attention_cost, "h w is not squared")
def linear(h, w, D, M):
    return cost(h, w, D, M) | {"global": 4 * h * w * D**2 + 2 * h * w * D}


def by_part(part, M):
    part = window_partition(part.long()[None, :, :, None], M)[0, :, :, 0]
    return part[:, :, None] == part[:, None]


def crossed(size, M, shift):
    """Which rows and columns of the rolled map come from the other side."""
    if not 0 <= shift < M:
        raise ValueError(f"shift {shift}")
    return torch.arange(size[0]) >= size[0] - shift, torch.arange(size[1]) >= size[1] - shift


@bug(shifted_window_mask, "the mask is inverted: True forbids")
def inverted(size, M, shift):
    return ~shifted_window_mask(size, M, shift)


@bug(shifted_window_mask, "everything is allowed", told_by="should be False, yours is True")
def all_allowed(size, M, shift):
    return torch.ones_like(shifted_window_mask(size, M, shift))


@bug(shifted_window_mask, "only the rows that come from the top are set apart, not the columns")
def rows_only(size, M, shift):
    down, _ = crossed(size, M, shift)
    return by_part(down[:, None].expand(size), M)


@bug(shifted_window_mask, "only the columns that come from the left are set apart, not the rows")
def columns_only(size, M, shift):
    _, right = crossed(size, M, shift)
    return by_part(right.expand(size), M)


@bug(shifted_window_mask, "top right and bottom left parts have the same number", classic=True)
def two_parts_alike(size, M, shift):
    down, right = crossed(size, M, shift)
    return by_part(down[:, None].long() + right.long(), M)


@bug(shifted_window_mask, "all parts but the largest have the same number", classic=True)
def all_rolled_alike(size, M, shift):
    down, right = crossed(size, M, shift)
    return by_part(down[:, None] | right, M)


@bug(
    shifted_window_mask,
    "only the part that came from the top and from the left has a number of its own",
    classic=True,
)
def corner_alone(size, M, shift):
    down, right = crossed(size, M, shift)
    return by_part(down[:, None] & right, M)


@bug(shifted_window_mask, "the parts meet one position too late")
def one_late(size, M, shift):
    h, w = size
    crossed(size, M, shift)
    down, right = torch.arange(h) > h - shift, torch.arange(w) > w - shift
    return by_part(2 * down[:, None].long() + right, M)


@bug(shifted_window_mask, "the last M - shift rows and columns are set apart, not the last shift")
def complement(size, M, shift):
    h, w = size
    crossed(size, M, shift)
    down, right = torch.arange(h) >= h - (M - shift), torch.arange(w) >= w - (M - shift)
    return by_part(2 * down[:, None].long() + right, M)


@bug(shifted_window_mask, "the first rows and columns are set apart, as if the map were not rolled")
def not_rolled(size, M, shift):
    h, w = size
    crossed(size, M, shift)
    down, right = torch.arange(h) < shift, torch.arange(w) < shift
    return by_part(2 * down[:, None].long() + right, M)


@bug(shifted_window_mask, "height and width are exchanged")
def sides_exchanged(size, M, shift):
    return shifted_window_mask(size[::-1], M, shift)


@bug(
    shifted_window_mask,
    "the mask holds numbers to add, 0 and -100, instead of truth values",
    told_by="should hold truth values",
)
def numbers(size, M, shift):
    return torch.where(shifted_window_mask(size, M, shift), 0.0, -100.0)


@bug(shifted_window_mask, "each window's mask names its parts and does not compare pairs")
def parts_named(size, M, shift):
    down, right = crossed(size, M, shift)
    part = ~(down[:, None] | right)
    return window_partition(part[None, :, :, None], M)[0].expand(-1, -1, M * M)


@bug(
    shifted_window_mask,
    "a shift of a whole window is accepted",
    told_by="should raise ValueError when shift is",
)
def any_shift(size, M, shift):
    return shifted_window_mask(size, M, shift % M)


@bug(shifted_window_mask, "the shift is taken to be half a window, whatever is given")
def always_half(size, M, shift):
    crossed(size, M, shift)
    return shifted_window_mask(size, M, M // 2 if shift else 0)


@bug(
    shifted_window_mask,
    "rows and columns that do not fill a window are dropped without an error",
    told_by="should raise ValueError when a map has 9 rows",
)
def rest_dropped(size, M, shift):
    return shifted_window_mask((size[0] // M * M, size[1] // M * M), M, shift)


@bug(
    shifted_window_mask,
    "only the height is checked",
    told_by="should raise ValueError when a map has 13 columns",
)
def width_unchecked(size, M, shift):
    return shifted_window_mask((size[0], size[1] // M * M), M, shift)


@bug(
    shifted_window_mask,
    "axes of size 1 are dropped",
    told_by="mask of a single window should have shape",
)
def squeezed(size, M, shift):
    return shifted_window_mask(size, M, shift).squeeze()


class Steps(SwinBlock):
    """A block whose steps the bugs below vary."""

    def forward(self, X):
        X = self.add_attention(X)
        return X + self.think(self.norm_2(X))

    def add_attention(self, X):
        return X + self.look(self.norm_1(X))

    def amount(self, X):
        return self.shift if min(X.shape[1:3]) > self.M else 0

    def look(self, X):
        size, shift = tuple(X.shape[1:3]), self.amount(X)
        windows = window_partition(self.forth(X, shift), self.M)
        Y = self.attention(windows, self.mask(size, shift) if shift else None)
        return self.back(window_reverse(Y, self.M, size), shift)

    def forth(self, X, shift):
        return X.roll((-shift, -shift), (1, 2))

    def back(self, X, shift):
        return X.roll((shift, shift), (1, 2))

    def mask(self, size, shift):
        return shifted_window_mask(size, self.M, shift)

    def think(self, X):
        return self.contract(functional.gelu(self.expand(X)))


@bug(SwinBlock, "the block never shifts")
class NeverShifts(Steps):
    def amount(self, X):
        return 0


@bug(SwinBlock, "the map is rolled down and to the right first, and back afterwards")
class RollsTheOtherWay(Steps):
    def forth(self, X, shift):
        return super().forth(X, -shift)

    def back(self, X, shift):
        return super().back(X, -shift)


@bug(SwinBlock, "the map is not rolled back")
class NotBack(Steps):
    def back(self, X, shift):
        return X


@bug(SwinBlock, "the map is rolled in the same direction twice", classic=True)
class RollsOn(Steps):
    def back(self, X, shift):
        return super().back(X, -shift)


@bug(SwinBlock, "the map is rolled in the same direction twice", classic=True)
class RollsOnDownwards(Steps):
    def forth(self, X, shift):
        return super().forth(X, -shift)


@bug(SwinBlock, "only the rows are rolled")
class RowsOnly(Steps):
    def forth(self, X, shift):
        return X.roll(-shift, 1)

    def back(self, X, shift):
        return X.roll(shift, 1)


@bug(SwinBlock, "a shifted block uses no mask: opposite edges of the map see each other")
class NoMask(Steps):
    def mask(self, size, shift):
        return None


@bug(SwinBlock, "the mask is inverted")
class InvertedMask(Steps):
    def mask(self, size, shift):
        return ~super().mask(size, shift)


@bug(SwinBlock, "even a map of one window is shifted")
class AlwaysShifts(Steps):
    def amount(self, X):
        return self.shift


@bug(SwinBlock, "a map is shifted unless both of its sides are one window")
class ShiftsNarrow(Steps):
    def amount(self, X):
        return self.shift if max(X.shape[1:3]) > self.M else 0


@bug(SwinBlock, "a map that is one window wide is shifted, unless it is one window high as well")
class HeightDecides(Steps):
    def amount(self, X):
        return self.shift if X.shape[1] > self.M else 0


@bug(SwinBlock, "a map that is one window high is shifted, unless it is one window wide as well")
class WidthDecides(Steps):
    def amount(self, X):
        return self.shift if X.shape[2] > self.M else 0


@bug(SwinBlock, "the map is shifted by half a window, whatever shift is")
class HalfAWindow(Steps):
    def amount(self, X):
        return self.M // 2 if super().amount(X) else 0


@bug(SwinBlock, "the block no longer shifts once it has seen a map of one window")
class ShiftForgotten(Steps):
    def amount(self, X):
        self.shift = super().amount(X)
        return self.shift


@bug(SwinBlock, "the mask of an earlier map with as many windows is used again")
class MaskKept(Steps):
    def mask(self, size, shift):
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault(size[0] * size[1], super().mask(size, shift))


@bug(
    SwinBlock,
    "maps that M does not divide are filled up with zeros",
    told_by="should raise ValueError when a row of the map is missing",
)
class FilledUp(SwinBlock):
    def forward(self, X):
        _, h, w, _ = X.shape
        return super().forward(functional.pad(X, (0, 0, 0, -w % self.M, 0, -h % self.M)))[:, :h, :w]


@bug(SwinBlock, "what comes in is not added to the attention's output")
class NoFirstShortcut(Steps):
    def add_attention(self, X):
        return self.look(self.norm_1(X))


@bug(SwinBlock, "the sum after the attention is not added to the network's output")
class NoSecondShortcut(Steps):
    def forward(self, X):
        return self.think(self.norm_2(self.add_attention(X)))


@bug(SwinBlock, "the network's output is added to the block's input, before the attention")
class WrongSum(Steps):
    def forward(self, X):
        return X + self.think(self.norm_2(self.add_attention(X)))


@bug(SwinBlock, "the layer norms come after the sums, as in post-LN")
class PostNorm(Steps):
    def forward(self, X):
        X = self.norm_1(X + self.look(X))
        return self.norm_2(X + self.think(X))


@bug(SwinBlock, "norm_1 is left out")
class NoFirstNorm(Steps):
    def add_attention(self, X):
        return X + self.look(X)


@bug(SwinBlock, "norm_2 is left out")
class NoSecondNorm(Steps):
    def forward(self, X):
        X = self.add_attention(X)
        return X + self.think(X)


@bug(SwinBlock, "norm_1 is used twice")
class SameNorm(Steps):
    def forward(self, X):
        X = self.add_attention(X)
        return X + self.think(self.norm_1(X))


@bug(SwinBlock, "the network comes before the attention")
class ThinksFirst(Steps):
    def forward(self, X):
        return self.add_attention(X + self.think(self.norm_2(X)))


@bug(SwinBlock, "ReLU is used instead of GELU")
class Relu(Steps):
    def think(self, X):
        return self.contract(self.expand(X).relu())


@bug(SwinBlock, "GELU is computed by its approximation with tanh")
class ApproximateGelu(Steps):
    def think(self, X):
        return self.contract(functional.gelu(self.expand(X), approximate="tanh"))


@bug(SwinBlock, "the maps are changed in place")
class InPlace(SwinBlock):
    def forward(self, X):
        Y = super().forward(X)
        with torch.no_grad():
            X.copy_(Y)
        return Y


class Corners(PatchMerging):
    """A merging whose steps the bugs below vary."""

    order = ((0, 0), (1, 0), (0, 1), (1, 1))

    def forward(self, X):
        self.refuse(X)
        return self.reduction(self.norm(self.join(X)))

    def refuse(self, X):
        refuse(X.shape[1], X.shape[2], 2)

    def join(self, X):
        return torch.cat([X[:, row::2, column::2] for row, column in self.order], dim=-1)


@bug(
    PatchMerging,
    "the corners come in reading order: top left, top right, bottom left, bottom right",
    classic=True,
)
class AsOneReads(Corners):
    order = ((0, 0), (0, 1), (1, 0), (1, 1))


@bug(PatchMerging, "the corners come clockwise")
class Clockwise(Corners):
    order = ((0, 0), (0, 1), (1, 1), (1, 0))


@bug(PatchMerging, "the corners come counter-clockwise")
class CounterClockwise(Corners):
    order = ((0, 0), (1, 0), (1, 1), (0, 1))


@bug(PatchMerging, "the four numbers of each feature are side by side")
class Interleaved(Corners):
    def join(self, X):
        return super().join(X).unflatten(-1, (4, -1)).mT.flatten(3)


@bug(PatchMerging, "the map is only reshaped: four neighbours in a row become one")
class FourInARow(Corners):
    def join(self, X):
        B, h, w, D = X.shape
        return X.reshape(B, h // 2, w // 2, 4 * D)


@bug(PatchMerging, "the map's quarters are laid on each other, not its neighbours")
class Quarters(Corners):
    def join(self, X):
        halves = [half.chunk(2, dim=2) for half in X.chunk(2, dim=1)]
        return torch.cat([halves[row][column] for row, column in self.order], dim=-1)


@bug(PatchMerging, "the layer norm is left out")
class NoNorm(Corners):
    def forward(self, X):
        self.refuse(X)
        return self.reduction(self.join(X))


@bug(PatchMerging, "the maps are returned as lists of positions")
class Flat(Corners):
    def forward(self, X):
        return super().forward(X).flatten(1, 2)


@bug(
    PatchMerging,
    "odd sides are filled up with zeros instead of refused",
    told_by="should raise ValueError when a map has 5 rows",
)
class Padded(Corners):
    def refuse(self, X):
        pass

    def join(self, X):
        return super().join(functional.pad(X, (0, 0, 0, X.shape[2] % 2, 0, X.shape[1] % 2)))


@bug(
    PatchMerging,
    "only the height is checked",
    told_by="should raise ValueError when a map has 5 columns",
)
class WidthUnseen(Padded):
    def refuse(self, X):
        refuse(X.shape[1], 2, 2)


@bug(
    PatchMerging,
    "4 must divide the number of positions, but 2 need not divide each side",
    told_by="should raise ValueError when a map has 20 positions",
)
class AreaChecked(Padded):
    def refuse(self, X):
        if X.shape[1] * X.shape[2] % 4:
            raise ValueError(f"{X.shape[1]} × {X.shape[2]}")


@bug(PatchMerging, "axes of size 1 are dropped", told_by="should have shape (")
class Squeezed(Corners):
    def forward(self, X):
        return super().forward(X).squeeze(1).squeeze(-2)


class Shifts(Swin):
    """A Swin whose blocks shift by other amounts."""

    def __init__(self, C, P, D, depths, heads, M, classes, shifted=True):
        super().__init__(C, P, D, depths, heads, M, classes, shifted)
        before = 0
        for stage in self.stages:
            for number, block in enumerate(stage):
                block.shift = self.amount(before, number, M, shifted)
            before += len(stage)

    def amount(self, before, number, M, shifted):
        return M // 2 if shifted and number % 2 else 0


@bug(Swin, "no block is shifted")
class NeverShifts(Shifts):
    def amount(self, before, number, M, shifted):
        return 0


@bug(Swin, "all blocks are shifted")
class AlwaysShifts(Shifts):
    def amount(self, before, number, M, shifted):
        return M // 2 * shifted


@bug(Swin, "the first block of each stage is shifted, and the second is not")
class FirstShifts(Shifts):
    def amount(self, before, number, M, shifted):
        return super().amount(before, number + 1, M, shifted)


@bug(Swin, "blocks are counted through all stages, so that a stage can begin with a shift")
class CountedThrough(Shifts):
    def amount(self, before, number, M, shifted):
        return super().amount(before, before + number, M, shifted)


@bug(Swin, "blocks shift by one position instead of half a window")
class ShiftsByOne(Shifts):
    def amount(self, before, number, M, shifted):
        return int(super().amount(before, number, M, shifted) > 0)


@bug(Swin, "half a window is rounded up")
class RoundsUp(Shifts):
    def amount(self, before, number, M, shifted):
        return (M + 1) // 2 if shifted and number % 2 else 0


@bug(Swin, "the second block of a stage is shifted, but none after it")
class SecondAlone(Shifts):
    def amount(self, before, number, M, shifted):
        return M // 2 if shifted and number == 1 else 0


@bug(Swin, "blocks shift even if shifted is False")
class ShiftsAnyway(Shifts):
    def amount(self, before, number, M, shifted):
        return super().amount(before, number, M, True)


@bug(Swin, "a block shifts if shifted is True or its number is odd, not only where both hold")
class ShiftedOrOdd(Shifts):
    def amount(self, before, number, M, shifted):
        return M // 2 if shifted or number % 2 else 0


@bug(Swin, "the layer norm after the patches, patch_norm, is left out")
class NoPatchNorm(Swin):
    def maps(self, images):
        norm, self.patch_norm = self.patch_norm, nn.Identity()
        found = super().maps(images)
        self.patch_norm = norm
        return found


@bug(Swin, "rows and columns of the patches are exchanged")
class OnTheSide(Swin):
    def maps(self, images):
        X = self.patch_norm(self.patches(images).permute(0, 3, 2, 1))
        found = [self.stages[0](X)]
        for merging, stage in zip(self.mergings, self.stages[1:], strict=True):
            found.append(stage(merging(found[-1])))
        return found


@bug(Swin, "each map is taken after its merging")
class AfterMerging(Swin):
    def maps(self, images):
        found = super().maps(images)
        return [*(m(X) for m, X in zip(self.mergings, found, strict=False)), found[-1]]


@bug(Swin, "the maps are returned channels first")
class ChannelsFirst(Swin):
    def maps(self, images):
        return [X.permute(0, 3, 1, 2) for X in super().maps(images)]

    def forward(self, images):
        return self.head(self.norm(super().maps(images)[-1]).mean(dim=(1, 2)))


@bug(Swin, "the last map is already normalised in maps")
class NormedMap(Swin):
    def maps(self, images):
        *first, last = super().maps(images)
        return [*first, self.norm(last)]

    def forward(self, images):
        return self.head(self.maps(images)[-1].mean(dim=(1, 2)))


@bug(Swin, "only the last map is returned", told_by="should return (map of stage 0")
class LastMap(Swin):
    def maps(self, images):
        return super().maps(images)[-1]

    def forward(self, images):
        return self.head(self.norm(self.maps(images)).mean(dim=(1, 2)))


@bug(Swin, "the last layer norm is left out")
class NoNorm(Swin):
    def forward(self, images):
        return self.head(self.maps(images)[-1].mean(dim=(1, 2)))


@bug(Swin, "the mean is taken before the layer norm")
class NormOfMean(Swin):
    def forward(self, images):
        return self.head(self.norm(self.maps(images)[-1].mean(dim=(1, 2))))


@bug(Swin, "the classes are read off the first position alone")
class FirstPosition(Swin):
    def forward(self, images):
        return self.head(self.norm(self.maps(images)[-1])[:, 0, 0])


@bug(Swin, "the mean is taken over rows only")
class MeanOfRows(Swin):
    def forward(self, images):
        return self.head(self.norm(self.maps(images)[-1]).mean(dim=1))


@bug(Swin, "the largest value is taken instead of the mean")
class Largest(Swin):
    def forward(self, images):
        return self.head(self.norm(self.maps(images)[-1]).amax(dim=(1, 2)))


@bug(Swin, "the patches are reshaped to have the channels last, not permuted", classic=True)
class Reshaped(Swin):
    def maps(self, images):
        X = self.patches(images)
        X = self.patch_norm(X.reshape(len(X), *X.shape[2:], -1))
        found = [self.stages[0](X)]
        for merging, stage in zip(self.mergings, self.stages[1:], strict=True):
            found.append(stage(merging(found[-1])))
        return found


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
