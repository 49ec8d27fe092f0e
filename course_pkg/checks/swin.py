"""Checks of swin. Oracles: torch's MultiheadAttention and scaled_dot_product_attention with
copied weights, loops over positions and pairs, torch's own count of operations.

A shifted block is checked without rolling: its windows are those of a displaced grid, cut off at
the edges of the map, so that one mask over all pairs of positions says who may attend to whom.
"""

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from course_pkg.checking.batched import made
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
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

State = dict[str, Tensor]
Size = tuple[int, int]


def load(module, state: State):
    """Give a module of torch's these weights, in float64."""
    module = module.double()
    module.load_state_dict(state)
    return module


def places(size: Size) -> list[Size]:
    """List the positions of a map in reading order."""
    return [(row, column) for row in range(size[0]) for column in range(size[1])]


def windows_of(size: Size, M: int) -> Tensor:
    """Number the positions of a map in reading order; list them by window, (N, M·M)."""
    found = []
    for top in range(0, size[0], M):
        for left in range(0, size[1], M):
            found.append([(top + p) * size[1] + left + q for p, q in places((M, M))])
    return torch.tensor(found)


def few_sizes(case: Case, count: int) -> list[int]:
    """Draw 2, 3, 4 … in random order: small, and no two axes can be confused."""
    return case.narrowed((2 + torch.randperm(count, generator=case.generator)).tolist())


def some_maps(case: Case) -> tuple[Tensor, int]:
    """Draw maps of different height and width, and the side of their windows."""
    B, M, down, across, D = few_sizes(case, 5)
    return case.randn(B, M * down, M * across, D), M


def cut(X: Tensor, M: int) -> Tensor:
    """Pick windows out of maps, position by position."""
    return X.flatten(1, 2)[:, windows_of(tuple(X.shape[1:3]), M)]


@check(window_partition, see="Cut the map into windows")
def shape(partition, case):
    """gives h/M · w/M windows of M·M positions"""
    X, M = some_maps(case)
    B, h, w, D = X.shape
    case.shape(partition(X, M), (B, h * w // M**2, M * M, D), "windows")


@check(
    window_partition,
    weight=2,
    see="Cut the map into windows",
    single={"B": 0, "h/M": 2, "w/M": 3},
)
def values(partition, case):
    """agrees with a loop over windows and their positions"""
    X, M = some_maps(case)
    case.equal(partition(X, M), cut(X, M), "windows")


@check(window_partition, see="Cut the map into windows")
def refuses(partition, case):
    """raises ValueError when M does not divide a side"""
    for h, w, when in (
        (9, 6, "a map has 9 rows and M is 6"),
        (6, 9, "a map has 9 columns and M is 6"),
        (9, 4, "a map has 9 rows and 4 columns, 36 positions, and M is 6"),
        (3, 3, "a map has 3 rows and columns and M is 6"),
    ):
        X = case.randn(2, h, w, 3)
        case.raises(ValueError, lambda X=X: partition(X, 6), when)


@check(window_reverse, weight=2, see="Putting it together", single="B")
def values(reverse, case):
    """puts every position of every window back in its place"""
    X, M = some_maps(case)
    size = tuple(X.shape[1:3])
    case.equal(reverse(cut(X, M), M, size), X, "maps")


@check(window_reverse, see="Putting it together")
def other_features(reverse, case):
    """accepts windows with any number of features, such as an attention's weights"""
    X, M = some_maps(case)
    wide = X.repeat_interleave(3, dim=3)
    case.equal(reverse(cut(wide, M), M, tuple(X.shape[1:3])), wide, "maps")


@check(window_reverse, see="Putting it together")
def refuses(reverse, case):
    """raises ValueError for windows that do not make up the map"""
    B, D = few_sizes(case, 2)
    two, six = case.randn(B, 2, 4, D), case.randn(B, 6, 4, D)
    nine = case.randn(B, 4, 9, D)
    case.raises(ValueError, lambda: reverse(six, 2, (4, 8)), "six windows are given for eight")
    case.raises(ValueError, lambda: reverse(nine, 2, (6, 6)), "windows have 9 positions, M is 2")
    case.raises(ValueError, lambda: reverse(six, 2, (3, 8)), "M is 2 and a map has 3 rows")
    case.raises(ValueError, lambda: reverse(six, 2, (8, 3)), "M is 2 and a map has 3 columns")
    case.raises(ValueError, lambda: reverse(two, 2, (3, 4)), "a map of 3 × 4 has two whole windows")
    case.raises(ValueError, lambda: reverse(two, 2, (4, 3)), "a map of 4 × 3 has two whole windows")
    case.raises(ValueError, lambda: reverse(six, 2, (4, 4)), "six windows are given for four")
    one = case.randn(B, 16, 1, D)
    case.raises(ValueError, lambda: reverse(one, 2, (4, 4)), "16 windows of 1 are given, M is 2")


def offsets(M: int) -> Tensor:
    """Number the offset of every pair of a window's positions, pair by pair."""
    return torch.tensor(
        [
            [(p - row + M - 1) * (2 * M - 1) + q - column + M - 1 for row, column in places((M, M))]
            for p, q in places((M, M))
        ]
    )


@check(relative_position_index, see="One bias for each offset")
def same_offset(index, case):
    """gives two pairs the same number if, and only if, their offsets are the same"""
    for M in (3, 4):
        found = index(M)
        case.shape(found, (M * M, M * M), f"index of M = {M}")
        numbers = found.tolist()
        offset_of: dict[int, Size] = {}
        for i, (p, q) in enumerate(places((M, M))):
            for j, (row, column) in enumerate(places((M, M))):
                offset = (p - row, q - column)
                known = offset_of.setdefault(numbers[i][j], offset)
                case.that(
                    known == offset,
                    f"index[{i}, {j}] should be a number for the offset {offset} alone, yours is "
                    f"{numbers[i][j]}, as for the offset {known} (M = {M}).",
                    observed=found,
                )
        case.that(
            len(offset_of) == (2 * M - 1) ** 2,
            f"index should hold {(2 * M - 1) ** 2} different numbers for M = {M}, yours holds "
            f"{len(offset_of)}.",
            observed=found,
        )


@check(relative_position_index, weight=2, see="One bias for each offset")
def values(index, case):
    """agrees with a loop over queries and keys"""
    for M in (2, 5):
        case.equal(index(M), offsets(M), f"index of M = {M}")


def linear_state(case: Case, name: str, D_in: int, D_out: int, bias: bool = True) -> State:
    """Draw the parameters of a linear layer."""
    state = {f"{name}.weight": case.randn(D_out, D_in) / D_in**0.5}
    return state | ({f"{name}.bias": case.randn(D_out) / 2} if bias else {})


def norm_state(case: Case, name: str, D: int) -> State:
    """Draw the parameters of a layer norm; no gain is one and no bias zero."""
    return {f"{name}.weight": 1 + case.randn(D) / 3, f"{name}.bias": case.randn(D) / 3}


def attention_state(case: Case, D: int, H: int, M: int) -> State:
    """Draw the parameters of a WindowAttention."""
    state = linear_state(case, "qkv", D, 3 * D) | linear_state(case, "out", D, D)
    return state | {"bias_table": case.randn((2 * M - 1) ** 2, H)}


def torchs_attention(state: State, H: int) -> nn.MultiheadAttention:
    """Make torch's attention with the same weights; it knows nothing of windows or offsets."""
    D = len(state["out.bias"])
    theirs = {"in_proj_weight": state["qkv.weight"], "in_proj_bias": state["qkv.bias"]}
    theirs |= {f"out_proj.{kind}": state[f"out.{kind}"] for kind in ("weight", "bias")}
    return load(nn.MultiheadAttention(D, H, batch_first=True), theirs)


def attended(state: State, H: int, M: int, windows: Tensor, mask: Tensor | None = None):
    """Compute Y and A by torch's attention: offsets and mask are added to the similarities."""
    B, N, T, D = windows.shape
    added = state["bias_table"][offsets(M)].permute(2, 0, 1).expand(B, N, H, T, T)
    if mask is not None:
        added = added.masked_fill(~mask[:, None], -torch.inf)
    X = windows.reshape(B * N, T, D)
    Y, A = torchs_attention(state, H)(
        X, X, X, attn_mask=added.reshape(-1, T, T), average_attn_weights=False
    )
    return Y.reshape(B, N, T, D), A.reshape(B, N, H, T, T)


def attention_case(case: Case, student) -> tuple:
    """Draw a student's WindowAttention with its state, heads and side, and windows for it."""
    B, N, H, D_h = few_sizes(case, 4)
    M = 3
    state = attention_state(case, H * D_h, H, M)
    ours = made(student, state, H * D_h, H, M)
    return ours, state, H, M, case.randn(B, N, M * M, H * D_h)


def some_mask(case: Case, N: int, T: int) -> Tensor:
    """Draw a mask for N windows; every position may attend to itself."""
    return (case.rand(N, T, T) < 0.5) | torch.eye(T, dtype=torch.bool)


@check(WindowAttention, weight=2, see="Attention inside a window")
def values(attention, case):
    """agrees with torch.nn.MultiheadAttention, the biases added to its scores"""
    ours, state, H, M, windows = attention_case(case, attention)
    case.equal(ours(windows), attended(state, H, M, windows)[0], "Y")


@check(WindowAttention, weight=2, see="Attention inside a window")
def masked(attention, case):
    """agrees with torch.nn.MultiheadAttention when each window has a mask of its own"""
    ours, state, H, M, windows = attention_case(case, attention)
    mask = some_mask(case, windows.shape[1], M * M)
    case.equal(ours(windows, mask), attended(state, H, M, windows, mask)[0], "Y under a mask")


@check(WindowAttention, see="Attention inside a window")
def weights(attention, case):
    """returns the weights of every head as well when asked to"""
    ours, state, H, M, windows = attention_case(case, attention)
    mask = some_mask(case, windows.shape[1], M * M)
    _, A = case.unpack(ours(windows, mask, return_weights=True), "Y", "A")
    case.equal(A, attended(state, H, M, windows, mask)[1], "A")


@check(WindowAttention, see="One bias for each offset")
def bias_alone(attention, case):
    """weighs by the offsets alone when queries and keys are zero"""
    ours, state, H, M, windows = attention_case(case, attention)
    D = windows.shape[3]
    ours(windows)  # with other biases than afterwards
    state["bias_table"] = case.randn(*state["bias_table"].shape)
    for kind in ("weight", "bias"):
        state[f"qkv.{kind}"] = state[f"qkv.{kind}"].clone()
        state[f"qkv.{kind}"][: 2 * D] = 0
    ours.load_state_dict(state)
    _, A = case.unpack(ours(windows, return_weights=True), "Y", "A")
    case.equal(A, attended(state, H, M, windows)[1], "A from the biases alone")


@check(WindowAttention, see="Attention inside a window")
def large_similarities(attention, case):
    """gives forbidden keys no weight, and stays finite, even if similarities are very large"""
    ours, state, H, M, windows = attention_case(case, attention)
    mask = some_mask(case, windows.shape[1], M * M)
    for factor in (100, 1_000_000):  # -1e9 is not enough for the second
        large = factor * windows
        _, A = case.unpack(ours(large, mask, return_weights=True), "Y", "A")
        expected = attended(state, H, M, large, mask)[1]
        case.equal(A, expected, f"A of windows times {factor}", rtol=1e-4)


@check(WindowAttention, see="Attention inside a window")
def gradients(attention, case):
    """passes the same gradients to windows and bias table as torch.nn.MultiheadAttention"""
    ours, state, H, M, windows = attention_case(case, attention)
    mask = some_mask(case, windows.shape[1], M * M)
    windows.requires_grad_()
    state["bias_table"].requires_grad_()
    expected, _ = attended(state, H, M, windows, mask)
    seen = case.randn(*expected.shape)
    wanted = torch.autograd.grad(expected, [windows, state["bias_table"]], seen)
    Y = ours(windows, mask)
    case.shape(Y, tuple(expected.shape), "Y")
    case.trains(Y, "Y")
    Y.backward(seen)
    case.gradient(windows, wanted[0], "windows")
    case.gradient(dict(ours.named_parameters())["bias_table"], wanted[1], "bias_table")
    case.learns(ours)


KINDS = ("global", "windowed")


@functools.cache
def counted(h: int, w: int, D: int, M: int) -> dict[str, int]:
    """Let torch count the multiply-adds of its own attention, of all positions and of windows."""
    counts = {}
    with torch.device("meta"):
        for kind, shape in zip(KINDS, [(1, h * w, D), (h * w // M**2, M**2, D)], strict=True):
            X, projection = torch.empty(shape), nn.Linear(D, D)
            with FlopCounterMode(display=False) as counter:
                Q, K, V = projection(X), projection(X), projection(X)
                projection(torch.bmm(torch.softmax(torch.bmm(Q, K.mT), dim=-1), V))
            counts[kind] = counter.get_total_flops() // 2
    return counts


def compare_costs(case: Case, cost, kind: str) -> None:
    """Demand the student's counts of six different maps."""
    given, expected = [], []
    for _ in range(6):
        M, down, across, D = few_sizes(case, 4)
        numbers = M * down, M * across, D, M
        found = cost(*numbers)
        value = found.get(kind) if isinstance(found, dict) else None
        case.that(
            isinstance(value, (int, float)),
            f'The result should hold a number at ["{kind}"], yours does not.',
        )
        given.append(float(value))
        expected.append(float(counted(*numbers)[kind]))
    case.equal(
        torch.tensor(given, dtype=torch.float64),
        torch.tensor(expected, dtype=torch.float64),
        f"{kind} of 6 maps",
        rtol=1e-9,
    )


@check(window_attention_cost, see="What windows save")
def everywhere(cost, case):
    """counts what torch counts when all positions attend to all"""
    compare_costs(case, cost, "global")


@check(window_attention_cost, see="What windows save")
def in_windows(cost, case):
    """counts what torch counts when positions attend inside windows"""
    compare_costs(case, cost, "windowed")


@check(window_attention_cost, see="What windows save")
def slopes(cost, case):
    """grows with the fourth power of a large map's side globally, with its square in windows"""
    M, D = few_sizes(case, 2)
    small, large = (cost(side, side, D, M) for side in (512 * M, 1024 * M))
    for kind, power in zip(KINDS, (4, 2), strict=True):
        case.that(
            isinstance(small, dict) and isinstance(large, dict) and {*KINDS} <= {*small, *large},
            f"The result should be a dict of {' and '.join(KINDS)}, yours is not.",
        )
        growth = torch.tensor(large[kind] / small[kind]).double()
        case.equal(growth, 2.0**power, f"growth of {kind} with the side", rtol=1e-3)


@functools.cache
def belongs_together(size: Size, M: int, shift: int) -> Tensor:
    """Tell for every pair of a map's positions whether a displaced grid has them in one window."""
    window = [((row - shift) // M, (column - shift) // M) for row, column in places(size)]
    return torch.tensor([[a == b for b in window] for a in window])


def true_mask(size: Size, M: int, shift: int) -> Tensor:
    """Look up the pairs of the rolled map's windows among all pairs of the map."""
    place = torch.arange(size[0] * size[1]).reshape(size)
    rolled = place[(torch.arange(size[0]) + shift) % size[0]]
    rolled = rolled[:, (torch.arange(size[1]) + shift) % size[1]].flatten()
    rows = rolled[windows_of(size, M)]  # (N, M·M): where each position of a window comes from
    return belongs_together(size, M, shift)[rows[:, :, None], rows[:, None, :]]


def mask_case(case: Case) -> tuple[Size, int, int]:
    """Draw a map, windows and a shift that is not half a window."""
    down, across = few_sizes(case, 2)
    return (5 * down, 5 * across), 5, (1, 3, 4)[int(case.integers(0, 3, 1))]


@check(shifted_window_mask, see="Which positions see each other")
def inner_windows(mask, case):
    """forbids nothing in windows that do not touch the last row or column of windows"""
    size, M, shift = mask_case(case)
    down, across = size[0] // M, size[1] // M
    found = mask(size, M, shift)
    case.shape(found, (down * across, M * M, M * M), "mask")
    inner = found.reshape(down, across, M * M, M * M)[:-1, :-1]
    case.equal(inner, torch.ones(inner.shape, dtype=torch.bool), "mask of inner windows")


@check(shifted_window_mask, see="Which positions see each other")
def symmetric(mask, case):
    """lets each position see itself, and every position that sees it"""
    size, M, shift = mask_case(case)
    found = mask(size, M, shift)
    case.shape(found, (size[0] * size[1] // M**2, M * M, M * M), "mask")
    own = found.diagonal(dim1=1, dim2=2)
    case.equal(own, torch.ones(own.shape, dtype=torch.bool), "mask on its diagonal")
    case.equal(found.mT, found, "mask with queries and keys exchanged")


@check(shifted_window_mask, weight=3, see="Which positions see each other")
def values(mask, case):
    """agrees with a displaced grid that is cut off at the edges of the map"""
    size, M, shift = mask_case(case)
    case.equal(mask(size, M, shift), true_mask(size, M, shift), "mask")


@check(shifted_window_mask, see="Which positions see each other")
def refuses(mask, case):
    """raises ValueError for a shift below 0 or above M - 1, and if M does not divide a side"""
    case.raises(ValueError, lambda: mask((8, 12), 4, -1), "shift is -1")
    case.raises(ValueError, lambda: mask((8, 12), 4, 4), "shift is 4 and M is 4")
    case.raises(ValueError, lambda: mask((9, 12), 4, 1), "a map has 9 rows and M is 4")
    case.raises(ValueError, lambda: mask((8, 13), 4, 1), "a map has 13 columns and M is 4")
    case.raises(ValueError, lambda: mask((2, 8), 4, 1), "a map has 2 rows and M is 4")
    case.raises(ValueError, lambda: mask((9, 12), 4, 0), "a map has 9 rows, M is 4 and shift is 0")
    case.equal(mask((8, 12), 4, 3), true_mask((8, 12), 4, 3), "mask for shift 3")


@check(shifted_window_mask, see="Which positions see each other")
def few_windows(mask, case):
    """is right for a map with a single row of windows, or a single window"""
    case.equal(mask((5, 10), 5, 2), true_mask((5, 10), 5, 2), "mask of 1 × 2 windows")
    case.equal(mask((5, 5), 5, 2), true_mask((5, 5), 5, 2), "mask of a single window")


@check(shifted_window_mask, see="Which positions see each other")
def all_shifts(mask, case):
    """is right for every shift, including none"""
    for shift in range(4):
        expected = true_mask((8, 12), 4, shift)
        case.equal(mask((8, 12), 4, shift), expected, f"mask for shift {shift}")


def block_state(case: Case, D: int, H: int, M: int) -> State:
    """Draw the parameters of a SwinBlock."""
    state = {f"attention.{name}": v for name, v in attention_state(case, D, H, M).items()}
    state |= norm_state(case, "norm_1", D) | norm_state(case, "norm_2", D)
    state |= linear_state(case, "expand", D, 4 * D)
    return state | linear_state(case, "contract", 4 * D, D)


def inside(state: State, part: str) -> State:
    """Take the parameters of a part."""
    prefix = f"{part}."
    return {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}


def layer_norm(X: Tensor, state: State, name: str) -> Tensor:
    return F.layer_norm(X, X.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])


def linear(X: Tensor, state: State, name: str) -> Tensor:
    return F.linear(X, state[f"{name}.weight"], state.get(f"{name}.bias"))


@functools.cache
def pair_rows(size: Size, M: int) -> Tensor:
    """Number the bias table's row of every pair of a map's positions; -1 for those far apart."""
    row, column = torch.tensor(places(size)).T
    down, right = row[:, None] - row, column[:, None] - column
    near = (down.abs() < M) & (right.abs() < M)
    return torch.where(near, (down + M - 1) * (2 * M - 1) + right + M - 1, -1)


def block_output(state: State, H: int, M: int, shift: int, X: Tensor) -> Tensor:
    """Apply a block as attention over the whole map, where most pairs are forbidden."""
    B, h, w, D = X.shape
    qkv = linear(layer_norm(X, state, "norm_1").flatten(1, 2), state, "attention.qkv")
    Q, K, V = (part.reshape(B, h * w, H, -1).transpose(1, 2) for part in qkv.chunk(3, dim=2))
    allowed = belongs_together((h, w), M, shift)
    biases = state["attention.bias_table"].T[:, pair_rows((h, w), M)]  # (H, h·w, h·w)
    added = biases.masked_fill(~allowed, -torch.inf)
    Y = F.scaled_dot_product_attention(Q, K, V, attn_mask=added).transpose(1, 2)
    X = X + linear(Y.reshape(B, h, w, D), state, "attention.out")
    middle = F.gelu(linear(layer_norm(X, state, "norm_2"), state, "expand"))
    return X + linear(middle, state, "contract")


def block_case(case: Case, student, shift: int) -> tuple:
    """Draw a student's block with its state, heads and side, and maps of 2 × 3 or more windows."""
    down, across = few_sizes(case, 2)
    B, H, D_h = few_sizes(case, 3)
    M = 3
    state = block_state(case, H * D_h, H, M)
    ours = made(student, state, H * D_h, H, M, shift)
    return ours, state, H, M, 1 + 2 * case.randn(B, M * down, M * across, H * D_h)


@check(SwinBlock, weight=2, see="The block")
def in_place(block, case):
    """without a shift, agrees with torch's attention inside each window"""
    ours, state, H, M, X = block_case(case, block, shift=0)
    case.equal(ours(X), block_output(state, H, M, 0, X), "X")


@check(SwinBlock, weight=3, see="The block")
def shifted(block, case):
    """with a shift, agrees with torch's attention inside the windows of a displaced grid"""
    ours, state, H, M, X = block_case(case, block, shift=1)
    case.equal(ours(X), block_output(state, H, M, 1, X), "X of a shifted block")


@check(SwinBlock, see="The block")
def any_shift(block, case):
    """shifts by any number of positions, not only by half a window"""
    ours, state, H, M, X = block_case(case, block, shift=2)
    case.equal(ours(X), block_output(state, H, M, 2, X), "X shifted by 2")


@check(SwinBlock, see="The block")
def several_maps(block, case):
    """treats each map by its own height and width, whatever maps it has seen before"""
    B, H, D_h = few_sizes(case, 3)
    M = 3
    state = block_state(case, H * D_h, H, M)
    ours = made(block, state, H * D_h, H, M, 1)
    for down, across in ((1, 2), (3, 2), (2, 3), (4, 3)):
        X = case.randn(B, M * down, M * across, H * D_h)
        shift = 0 if down == 1 else 1
        expected = block_output(state, H, M, shift, X)
        case.equal(ours(X), expected, f"X of the next map, of {down} × {across} windows,")


@check(SwinBlock, see="The block")
def refuses(block, case):
    """raises ValueError when M does not divide a side"""
    ours, _, _, _, X = block_case(case, block, shift=1)
    case.raises(ValueError, lambda: ours(X[:, :-1]), "a row of the map is missing")
    case.raises(ValueError, lambda: ours(X[:, :, :-1]), "a column of the map is missing")
    case.raises(ValueError, lambda: ours(X[:, :2, :2]), "the map is smaller than a window")


@check(SwinBlock, see="Which positions see each other")
def edges_apart(block, case):
    """gives the top left corner the same, whatever the bottom right corner holds"""
    ours, _, _, _, X = block_case(case, block, shift=1)
    first = ours(X)
    case.shape(first, tuple(X.shape), "X")
    other = X.clone()
    other[:, -1, -1] += 5
    case.equal(ours(other)[:, 0, 0], first[:, 0, 0], "X at [0, 0]")


@check(SwinBlock, see="A map of one window", single="B")
def one_window(block, case):
    """does not shift a map that is one window high or wide"""
    B, across, H, D_h = few_sizes(case, 4)
    M = 3
    state = block_state(case, H * D_h, H, M)
    ours = made(block, state, H * D_h, H, M, 1)
    for size in ((M, M), (M * across, M), (M, M * across)):
        X = case.randn(B, *size, H * D_h)
        expected = block_output(state, H, M, 0, X)
        case.equal(ours(X), expected, f"X of a map of {size[0]} × {size[1]}")


def merging_state(case: Case, D: int) -> State:
    """Draw the parameters of a PatchMerging."""
    return norm_state(case, "norm", 4 * D) | linear_state(case, "reduction", 4 * D, 2 * D, False)


def merged(state: State, X: Tensor) -> Tensor:
    """Join squares one after the other."""
    B, h, w, _ = X.shape
    rows = []
    for top in range(0, h, 2):
        for left in range(0, w, 2):
            square = [X[:, top + p, left + q] for p, q in ((0, 0), (1, 0), (0, 1), (1, 1))]
            rows.append(linear(layer_norm(torch.hstack(square), state, "norm"), state, "reduction"))
    return torch.stack(rows, dim=1).reshape(B, h // 2, w // 2, -1)


@check(PatchMerging, see="Four positions become one")
def shape(merging, case):
    """halves both sides and doubles the features"""
    B, h, w, D = few_sizes(case, 4)
    ours = made(merging, merging_state(case, D), D)
    case.shape(ours(case.randn(B, 2 * h, 2 * w, D)), (B, h, w, 2 * D), "X")


@check(
    PatchMerging,
    weight=2,
    see="Four positions become one",
    single={"B": 0, "h/2": 1, "w/2": 2},
)
def values(merging, case):
    """agrees with a loop over squares"""
    B, h, w, D = few_sizes(case, 4)
    state, X = merging_state(case, D), 1 + 2 * case.randn(B, 2 * h, 2 * w, D)
    case.equal(made(merging, state, D)(X), merged(state, X), "X")


@check(PatchMerging, see="Four positions become one")
def refuses(merging, case):
    """raises ValueError when a side is odd"""
    B, D = few_sizes(case, 2)
    ours = made(merging, merging_state(case, D), D)
    for h, w, when in (
        (5, 6, "a map has 5 rows"),
        (6, 5, "a map has 5 columns"),
        (5, 4, "a map has 20 positions, 5 × 4"),
        (4, 5, "a map has 20 positions, 4 × 5"),
    ):
        X = case.randn(B, h, w, D)
        case.raises(ValueError, lambda X=X: ours(X), when)


DEPTHS, HEADS = (3, 2, 1), (2, 1, 4)


def swin_state(
    case: Case, C: int, P: int, D: int, M: int, classes: int, depths=DEPTHS, heads=HEADS
) -> State:
    """Draw the parameters of a Swin, of three stages unless told otherwise."""
    state = {"patches.weight": case.randn(D, C, P, P) / P, "patches.bias": case.randn(D)}
    state |= norm_state(case, "patch_norm", D)
    for stage, (depth, H) in enumerate(zip(depths, heads, strict=True)):
        size = D * 2**stage
        for number in range(depth):
            own = block_state(case, size, H, M)
            state |= {f"stages.{stage}.{number}.{name}": v for name, v in own.items()}
        if stage + 1 < len(depths):
            own = merging_state(case, size)
            state |= {f"mergings.{stage}.{name}": v for name, v in own.items()}
    last = D * 2 ** (len(depths) - 1)
    return state | norm_state(case, "norm", last) | linear_state(case, "head", last, classes)


def swin_maps(
    state: State, M: int, images: Tensor, shifted: bool = True, stages: int = len(DEPTHS)
) -> list[Tensor]:
    """Compute the maps of the first stages by the oracles of the parts."""
    kernel = state["patches.weight"]
    X = F.conv2d(images, kernel, state["patches.bias"], stride=kernel.shape[-1])
    X, found = layer_norm(X.permute(0, 2, 3, 1), state, "patch_norm"), []
    for stage, (depth, H) in enumerate(list(zip(DEPTHS, HEADS, strict=True))[:stages]):
        if stage > 0:
            X = merged(inside(state, f"mergings.{stage - 1}"), X)
        for number in range(depth):
            odd = number % 2 == 1 and shifted and min(X.shape[1:3]) > M
            own = inside(state, f"stages.{stage}.{number}")
            X = block_output(own, H, M, M // 2 if odd else 0, X)
        found.append(X)
    return found


def swin_case(case: Case, student, *more) -> tuple:
    """Make a student's Swin with its state, and images whose last map is 1 × 2 windows."""
    B, C, classes = case.narrowed([2, 3, 5])
    P, D, M = 2, 4, 4
    state = swin_state(case, C, P, D, M, classes)
    ours = made(student, state, C, P, D, DEPTHS, HEADS, M, classes, *more)
    return ours, state, M, case.randn(B, C, 4 * P * M, 8 * P * M)


def compare_maps(case: Case, given: object, expected: list[Tensor]) -> None:
    """Demand the maps of the first stages."""
    given = case.unpack(given, *(f"map of stage {n}" for n in range(len(DEPTHS))))
    for number, X in enumerate(expected):
        case.equal(given[number], X, f"map of stage {number}", rtol=1e-4, atol=1e-5)


@check(Swin, weight=2, see="The whole model")
def first_stage(swin, case):
    """agrees with a convolution, a layer norm and three blocks, the second one shifted"""
    ours, state, M, images = swin_case(case, swin)
    compare_maps(case, ours.maps(images), swin_maps(state, M, images, stages=1))


@check(Swin, weight=2, see="The whole model")
def all_stages(swin, case):
    """merges before every stage but the first, and shifts every second block of a stage"""
    ours, state, M, images = swin_case(case, swin)
    compare_maps(case, ours.maps(images), swin_maps(state, M, images))


@check(Swin, weight=2, see="The whole model", single="B")
def logits(swin, case):
    """reads the classes off the mean of the normalised last map"""
    ours, state, M, images = swin_case(case, swin)
    last = layer_norm(swin_maps(state, M, images)[-1], state, "norm")
    expected = linear(last.mean(dim=(1, 2)), state, "head")
    given = ours(images)
    case.equal(given, expected, "logits", rtol=1e-4, atol=1e-5)
    case.trains(given, "logits")


@check(Swin, see="The whole model")
def without_shift(swin, case):
    """shifts no block when told not to"""
    ours, state, M, images = swin_case(case, swin, False)
    expected = swin_maps(state, M, images, shifted=False, stages=2)
    compare_maps(case, ours.maps(images), expected)


@check(Swin, see="The whole model")
def odd_windows(swin, case):
    """rounds half a window's side down, and shifts the fourth block of a stage like the second"""
    C, classes, D = 3, 5, 4
    for M, depth in ((3, 2), (2, 4)):
        state = swin_state(case, C, 1, D, M, classes, (depth,), (2,))
        ours = made(swin, state, C, 1, D, (depth,), (2,), M, classes)
        images = case.randn(2, C, 2 * M, 3 * M)
        X = F.conv2d(images, state["patches.weight"], state["patches.bias"])
        X = layer_norm(X.permute(0, 2, 3, 1), state, "patch_norm")
        for number in range(depth):
            own = inside(state, f"stages.0.{number}")
            X = block_output(own, 2, M, M // 2 * (number % 2), X)
        (given,) = case.unpack(ours.maps(images), "map of stage 0")
        case.equal(given, X, f"map of {depth} blocks, M = {M},", rtol=1e-4, atol=1e-5)


def numbered(M: int) -> Tensor:
    """Number the offsets of a window, if M is the side of one."""
    if not M > 0:
        raise ValueError(f"M must be positive, got {M}")
    return offsets(M)


@check(relative_position_index_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "relative_position_index", numbered)
