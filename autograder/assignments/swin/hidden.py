"""Hidden checks of swin: gradients, other sides, single windows, numbers of parameters."""

import torch
from torch import Tensor

from course_pkg.checking.batched import made
from course_pkg.checking.black_box import demand_named
from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.checks import swin as visible
from course_pkg.swin import (
    PatchMerging,
    Swin,
    SwinBlock,
    WindowAttention,
    relative_position_index,
    relative_position_index_fault,
    window_attention_cost,
    window_partition,
    window_reverse,
)


def same_gradient(case: Case, given: object, expected: Tensor, X: Tensor, what: str) -> None:
    """Go back from both outputs to X, and compare what arrives there."""
    case.shape(given, tuple(expected.shape), what)
    seen = case.randn(*expected.shape)
    (wanted,) = torch.autograd.grad(expected, X, seen)
    case.trains(given, what)
    given.backward(seen)
    case.gradient(X, wanted, "the input")


@check(window_partition, see="Cut the map into windows")
def gradient(partition, case):
    """passes gradients back to the maps"""
    X, M = visible.some_maps(case)
    X.requires_grad_()
    same_gradient(case, partition(X, M), visible.cut(X, M), X, "windows")


@check(window_partition, see="Cut the map into windows")
def truth_values(partition, case):
    """accepts maps of any dtype, and maps of a single window"""
    X, M = visible.some_maps(case)
    case.equal(partition(X > 0, M), visible.cut(X > 0, M), "windows of truth values")
    single = X[:, :M, :M]
    case.equal(partition(single, M), visible.cut(single, M), "a single window")


@check(window_reverse, see="Putting it together")
def gradient(reverse, case):
    """passes gradients back to the windows"""
    X, M = visible.some_maps(case)
    windows = visible.cut(X, M).requires_grad_()
    place = visible.cut(
        torch.arange(X[0, :, :, 0].numel()).reshape(1, *X.shape[1:3], 1), M
    ).flatten()
    whole = windows.flatten(1, 2)[:, place.argsort()].reshape(X.shape)
    same_gradient(case, reverse(windows, M, tuple(X.shape[1:3])), whole, windows, "maps")


@check(relative_position_index, see="One bias for each offset")
def extremes(index, case):
    """is right for a window of a single position, and for one of 7 × 7"""
    case.equal(index(1), visible.offsets(1), "index of M = 1")
    case.equal(index(7), visible.offsets(7), "index of M = 7")


@check(relative_position_index_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "E")


@check(WindowAttention, see="Attention inside a window")
def windows_apart(attention, case):
    """gives a window the same output, whatever the other windows hold"""
    ours, _, _, _, windows = visible.attention_case(case, attention)
    Y = ours(windows)
    case.shape(Y, tuple(windows.shape), "Y")
    other = torch.cat([windows[:, :1], 5 * case.randn(*windows[:, 1:].shape)], dim=1)
    case.equal(ours(other)[:, 0], Y[:, 0], "Y of window 0")


@check(WindowAttention, see="Attention inside a window")
def single_head(attention, case):
    """agrees with torch.nn.MultiheadAttention for one head and one map of one window"""
    M, D = visible.few_sizes(case, 2)
    state, windows = visible.attention_state(case, D, 1, M), 2 * case.randn(1, 1, M * M, D)
    expected, _ = visible.attended(state, 1, M, windows)
    case.equal(made(attention, state, D, 1, M)(windows), expected, "Y of one window")


@check(window_attention_cost, see="What windows save")
def more_maps(cost, case):
    """counts correctly for other maps too"""
    visible.compare_costs(case, cost, "global")
    visible.compare_costs(case, cost, "windowed")


@check(SwinBlock, see="The block")
def gradient(block, case):
    """passes the same gradient back as torch's attention over the displaced grid"""
    ours, state, H, M, X = visible.block_case(case, block, shift=1)
    X.requires_grad_()
    same_gradient(case, ours(X), visible.block_output(state, H, M, 1, X), X, "X of a shifted block")


@check(PatchMerging, see="Four positions become one")
def gradient(merging, case):
    """passes the same gradient back as a loop over squares"""
    B, h, w, D = visible.few_sizes(case, 4)
    state, X = visible.merging_state(case, D), case.randn(B, 2 * h, 2 * w, D).requires_grad_()
    same_gradient(case, made(merging, state, D)(X), visible.merged(state, X), X, "X")


@check(Swin, see="The whole model")
def gradient(swin, case):
    """passes the same gradient back to the patches' weights as the parts' oracles"""
    ours, state, M, images = visible.swin_case(case, swin)
    state["patches.weight"].requires_grad_()
    expected = visible.swin_maps(state, M, images)[-1]
    *_, last = case.unpack(
        ours.maps(images), *(f"map of stage {n}" for n in range(len(visible.DEPTHS)))
    )
    case.shape(last, tuple(expected.shape), "map of the last stage")
    seen = case.randn(*expected.shape)
    (wanted,) = torch.autograd.grad(expected, state["patches.weight"], seen)
    case.trains(last, "the last map")
    last.backward(seen)
    weight = dict(ours.named_parameters())["patches.weight"]
    case.that(weight.grad is not None, "No gradient reaches the patches: is the graph cut?")
    case.equal(weight.grad, wanted, "gradient of patches.weight", rtol=1e-4, atol=1e-5)


@check(Swin, see="The whole model")
def parameters(swin, case):
    """has as many parameters as its parts, also of four stages, and refuses one without heads"""
    C, classes = visible.few_sizes(case, 2)
    for depths, heads in ((visible.DEPTHS, visible.HEADS), ((1, 1, 1, 1), (1, 2, 4, 8))):
        given = sum(p.numel() for p in swin(C, 2, 4, depths, heads, 4, classes).parameters())
        D, expected = 4, (4 * C + 1) * 4 + 2 * 4
        for number, (depth, H) in enumerate(zip(depths, heads, strict=True)):
            if number:
                expected += 8 * D + 8 * D**2
                D *= 2
            expected += depth * (12 * D**2 + 13 * D + 49 * H)
        expected += 2 * D + (D + 1) * classes
        what = f"number of parameters of {len(depths)} stages"
        case.equal(given, torch.tensor(expected), what)
    few = visible.HEADS[:-1]
    case.raises(
        ValueError, lambda: swin(C, 2, 4, visible.DEPTHS, few, 4, classes), "a stage has no heads"
    )
