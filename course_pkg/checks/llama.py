"""Checks of llama. Oracles: torch.nn.RMSNorm, scaled_dot_product_attention with enable_gqa, complex
numbers, sums and loops written out, and the counts that were published."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from course_pkg.checking.batched import made, of_each
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.memo import once
from course_pkg.checking.registry import check
from course_pkg.checking.rules.rules import ATTENTION, RMS_NORM, forbid
from course_pkg.checking.telling.failure import Failure, describe
from course_pkg.checks.kv_cache import demand_pieces, in_pieces
from course_pkg.checks.positions import ANGLES, rotated
from course_pkg.llama import (
    GatedFeedForward,
    Llama,
    LlamaAttention,
    LlamaBlock,
    RMSNorm,
    llama_parameters,
    load_llama,
    pairs_to_halves,
    rope_rotate_pairs,
    sliding_window_mask,
    swiglu,
    swiglu_fault,
)

forbid(RMSNorm, RMS_NORM)


def norm_pair(case: Case, norm, D: int, eps: float) -> tuple:
    """Make a student's norm and torch's, with the same drawn weights."""
    state, theirs = {"weight": case.randn(D)}, nn.RMSNorm(D, eps).double()
    theirs.load_state_dict(state)
    return made(norm, state, D, eps), theirs


@check(RMSNorm, see="Normalise without centring")
def length(norm, case):
    """gives every vector a root mean square of one when it is new"""
    B, T, D = case.sizes(3, low=3)
    Y = norm(D).double()(4 * case.randn(B, T, D) + 5)
    case.shape(Y, (B, T, D), "Y")
    mean_squares = Y.square().mean(dim=-1)
    case.equal(mean_squares, torch.ones(B, T), "mean square of Y", rtol=1e-4)


@check(RMSNorm, see="Normalise without centring")
def uncentred(norm, case):
    """keeps every sign, so that equal numbers stay equal to each other, and do not become zero"""
    B, D = case.sizes(2, low=3)
    levels = (1 + 3 * case.rand(B, 1)) * (2 * case.integers(0, 2, B, 1) - 1)
    Y = norm(D).double()(levels.expand(B, D))
    case.equal(Y, levels.sign().expand(B, D), "Y of equal numbers", rtol=1e-3)


@check(RMSNorm, weight=3, see="Normalise without centring", single={"B": 0, "T": 1})
def values(norm, case):
    """agrees with torch.nn.RMSNorm"""
    B, T, D = case.sizes(3, low=3)
    ours, theirs = norm_pair(case, norm, D, 0.1)
    X = case.randn(B, T, D) + 1
    case.equal(ours(X), theirs(X), "Y")


@check(RMSNorm, see="Normalise without centring")
def small(norm, case):
    """adds eps to the mean square, inside the root, as small vectors show"""
    B, D = case.sizes(2, low=3)
    X = 0.02 * case.randn(B, D)
    for eps in (4e-4, 1e-6):
        ours, theirs = norm_pair(case, norm, D, eps)
        case.equal(ours(X), theirs(X), f"Y of small numbers, eps = {eps:g},")


@check(RMSNorm, see="Normalise without centring")
def fresh(norm, case):
    """has one parameter, weight, which starts at one, and an eps of 1e-5 unless told otherwise"""
    B, D = case.sizes(2, low=3)
    ours = norm(D)
    state = ours.state_dict()
    case.that(
        set(state) == {"weight"},
        f"There should be one weight, called weight, yours are {sorted(map(str, state))}.",
    )
    case.equal(state["weight"], torch.ones(D), "weight")
    X = 0.003 * case.randn(B, D)
    case.equal(ours.double()(X), nn.RMSNorm(D, 1e-5).double()(X), "Y by default")


@check(RMSNorm, weight=2, see="Normalise without centring")
def half(norm, case):
    """computes in float32 what float16 does not hold, and returns the dtype that came in"""
    B, D = case.sizes(2, low=5)
    ours, theirs = norm_pair(case, norm, D, 1e-5)
    X = (400 * case.randn(B, D)).half()
    for kind in (torch.float16, torch.float32):
        Y, kind = ours.to(kind)(X), str(kind)
        what = f"Y of large numbers in float16, weight in {kind.removeprefix('torch.')},"
        case.equal(Y, theirs(X.double()), what, rtol=0.005, atol=0.005)
        is_half = Y.dtype == torch.float16
        case.that(is_half, f"{what} should be torch.float16 as X is, yours is {Y.dtype}.")


@check(RMSNorm, see="Normalise without centring")
def gradients(norm, case):
    """passes gradients to X and to the weight as torch does"""
    B, T, D = case.sizes(3, low=4)
    ours, theirs = norm_pair(case, norm, D, 0.2)
    vectors, back = case.randn(B, T, D).requires_grad_(), case.randn(B, T, D)
    wanted = torch.autograd.grad(theirs(vectors), [vectors, theirs.weight], back)
    Y = ours(vectors)
    case.trains(Y, "Y")
    Y.backward(back)
    case.gradient(vectors, wanted[0], "X")
    found = dict(ours.named_parameters())["weight"].grad
    case.that(found is not None, "A gradient should reach weight, none does.")
    case.equal(found, wanted[1], "gradient of weight")
    case.learns(ours)


@check(RMSNorm, see="Normalise without centring")
def any_shape(norm, case):
    """takes a single vector, many axes, and views that are not contiguous"""
    A, B, T, D = case.sizes(4, low=4)
    ours, theirs = norm_pair(case, norm, D, 1e-5)
    for vectors in (case.randn(D), case.randn(A, B, T, D), case.randn(D, T, B).mT.transpose(0, 2)):
        case.equal(ours(vectors), theirs(vectors), f"Y of shape {tuple(vectors.shape)}")


def through_gates(X: Tensor, W_gate: Tensor, W_up: Tensor, W_down: Tensor) -> Tensor:
    """A gated network, with silu written out."""
    logits = X @ W_gate
    opened = logits / (1 + torch.exp(-logits))
    return (opened * (X @ W_up)) @ W_down


def network_weights(case: Case, D: int, F: int) -> dict[str, Tensor]:
    """Draw the three matrices of a gated network."""
    shapes = {"W_gate": (D, F), "W_up": (D, F), "W_down": (F, D)}
    return {name: case.randn(*shape) / shape[0] ** 0.5 for name, shape in shapes.items()}


@check(RMSNorm, see="Normalise without centring")
def precise(norm, case):
    """computes float64 in float64: every feature counts to its last digit"""
    B, D = case.sizes(2, low=5)
    ours, _ = norm_pair(case, norm, D, 1e-5)
    X = case.randn(B, D).float().double()
    more = X.clone()
    more[:, 0] *= 1 + 1e-9  # which is lost in float32
    before, after = ours(X), ours(more)
    for Y in (before, after):
        case.shape(Y, (B, D), "Y of float64")
    case.that(
        (before != after).all(),
        "Y of float64 should change where feature 0 changes by 1e-9 of itself, yours does not: is "
        "it, or the mean square, computed in float32?",
    )


@check(swiglu, weight=3, see="A gate inside the network", single={"B": 0, "D": 2, "F": 3})
def values(network, case):
    """agrees with the formula written out"""
    B, T, D, F = case.sizes(4, low=3)
    W, X = network_weights(case, D, F), 2 * case.randn(B, T, D)
    case.equal(network(X, **W), through_gates(X, **W), "Y")


@check(swiglu, see="A gate inside the network")
def closed(network, case):
    """lets nothing through where the gates are far below zero"""
    B, D, F = case.sizes(3, low=3)
    W, X = network_weights(case, D, F), 1 + case.rand(B, D)
    W["W_gate"] = -40 - case.rand(D, F)
    case.equal(network(X, **W), torch.zeros(B, D), "Y behind closed gates")


@check(swiglu, see="A gate inside the network")
def opened(network, case):
    """multiplies what passes by the gate where that is far above zero"""
    B, D, F = case.sizes(3, low=3)
    W, X = network_weights(case, D, F), 1 + case.rand(B, D)
    W["W_gate"] = 20 + case.rand(D, F)
    expected = torch.einsum("bd,df,be,ef,fg->bg", X, W["W_gate"], X, W["W_up"], W["W_down"])
    case.equal(network(X, **W), expected, "Y behind open gates")


@check(swiglu, see="A gate inside the network")
def proportional(network, case):
    """grows in proportion to W_up and to W_down, but not to W_gate"""
    B, D, F = case.sizes(3, low=3)
    W, X = network_weights(case, D, F), 2 * case.randn(B, D)
    for name in ("W_up", "W_down", "W_gate"):
        more = {**W, name: -3 * W[name]}
        case.equal(network(X, **more), through_gates(X, **more), f"Y with {name} times -3")


@check(swiglu, see="A gate inside the network")
def gradients(network, case):
    """passes gradients to X and to the matrices"""
    B, D, F = case.sizes(3, low=4)
    inputs = {"X": 2 * case.randn(B, D), **network_weights(case, D, F)}
    inputs = {name: value.requires_grad_() for name, value in inputs.items()}
    back = case.randn(B, D)
    wanted = torch.autograd.grad(through_gates(**inputs), list(inputs.values()), back)
    Y = network(**inputs)
    case.trains(Y, "Y")
    Y.backward(back)
    for (name, leaf), gradient in zip(inputs.items(), wanted, strict=True):
        case.gradient(leaf, gradient, name)


@check(swiglu, see="A gate inside the network")
def far_from_zero(network, case):
    """stays finite where gates are very large, and so do its gradients"""
    B, D, F = case.sizes(3, low=4)
    W, vectors = network_weights(case, D, F), (4000 * case.randn(B, D)).requires_grad_()
    gates, back = vectors @ W["W_gate"], case.randn(B, D)
    expected = (gates * gates.sigmoid() * (vectors @ W["W_up"])) @ W["W_down"]
    (wanted,) = torch.autograd.grad(expected, vectors, back)
    Y = network(vectors, **W)
    case.equal(Y, expected, "Y of very large vectors")
    case.trains(Y, "Y")
    Y.backward(back)
    case.gradient(vectors, wanted, "very large vectors")


def network_pair(case: Case, network, D: int, F: int) -> tuple:
    """Make a student's network with drawn weights; return it and the weights."""
    state = network_weights(case, D, F)
    return made(network, state, D, F), state


WIDTHS = [  # D, a multiple, and the F that comes of them
    (24, 32, 64),
    (12, 32, 32),
    (25, 32, 96),
    (64, 48, 192),
    (30, 7, 84),
    (10, 1, 26),
    (7, 6, 18),
    (45, 32, 128),
]


@check(GatedFeedForward, weight=2, see="How wide, at the same cost")
def widths(network, case):
    """has ⌊8/3 D⌋ hidden features, rounded up to a multiple, unless told how many"""
    given = [network(D, multiple=multiple).F for D, multiple, _ in WIDTHS]
    found = [float(F) for F in given]
    places = ", ".join(f"{D} ({multiple})" for D, multiple, _ in WIDTHS)
    expected = torch.tensor([float(F) for *_, F in WIDTHS])
    case.equal(torch.tensor(found), expected, f"F for D (multiple) = {places}", rtol=0, atol=0)
    is_size = all(hasattr(F, "__index__") for F in given)
    case.that(is_size, f"F should be a whole number, an int, yours is {describe(given[0])}.")


@check(GatedFeedForward, see="How wide, at the same cost")
def given_width(network, case):
    """takes F as it is when it is given, and a multiple of 32 by default"""
    found, expected = [], []
    for D, F in [(8, 5), (6, 33), (5, 7), (4, None), (13, None), (40, None)]:
        made = network(D) if F is None else network(D, F)
        found.append(float(made.F))
        expected.append(float(F or {4: 32, 13: 64, 40: 128}[D]))
    what = "F for D (F) = 8 (5), 6 (33), 5 (7), 4, 13, 40"
    case.equal(torch.tensor(found), torch.tensor(expected), what, rtol=0, atol=0)


@check(GatedFeedForward, see="How wide, at the same cost")
def parameters(network, case):
    """has three matrices and nothing else"""
    for D, F in [(24, None), (5, 7)]:
        state = network(D, F).state_dict()
        F = F or 64
        shapes = {"W_gate": (D, F), "W_up": (D, F), "W_down": (F, D)}
        for name, shape in shapes.items():
            case.shape(state.get(name), shape, name)
        names = sorted(map(str, state))
        case.that(len(names) == 3, f"There should be no other weights, yours are {names}.")


@check(GatedFeedForward, weight=2, see="A gate inside the network", single={"B": 0, "D": 2, "F": 3})
def values(network, case):
    """agrees with the formula written out"""
    B, T, D, F = case.sizes(4, low=3)
    ours, state = network_pair(case, network, D, F)
    X = 2 * case.randn(B, T, D)
    case.equal(ours(X), through_gates(X, **state), "Y")


@check(GatedFeedForward, see="How wide, at the same cost")
def fresh(network, case):
    """draws its weights from N(0, 1/rows)"""
    D, F = 60, 150
    state = network(D, F).state_dict()
    for name, shape in {"W_gate": (D, F), "W_up": (D, F), "W_down": (F, D)}.items():
        case.shape(state.get(name), shape, name)
        value = state[name].double()
        what = f"standard deviation of {name}"
        case.equal(value.std(), shape[0] ** -0.5, what, rtol=0.06)
        case.equal(value.mean(), 0.0, f"mean of {name}", atol=0.008)
        share = (value.abs() < shape[0] ** -0.5).double().mean()
        case.equal(share, 0.683, f"share of {name} within one standard deviation", rtol=0.04)
    case.that(
        not torch.equal(state["W_gate"], state["W_up"]),
        "W_gate and W_up should be drawn one by one, yours are equal.",
    )


@check(GatedFeedForward, see="A gate inside the network")
def gradients(network, case):
    """passes gradients to X and to all of its weights"""
    B, D, F = case.sizes(3, low=4)
    ours, state = network_pair(case, network, D, F)
    inputs = {"X": 2 * case.randn(B, D), **{name: w.clone() for name, w in state.items()}}
    inputs = {name: value.requires_grad_() for name, value in inputs.items()}
    back = case.randn(B, D)
    wanted = torch.autograd.grad(through_gates(**inputs), list(inputs.values()), back)
    Y = ours(inputs["X"])
    case.trains(Y, "Y")
    Y.backward(back)
    case.gradient(inputs["X"], wanted[0], "X")
    parameters = dict(ours.named_parameters())
    for name, gradient in zip(list(inputs)[1:], wanted[1:], strict=True):
        found = parameters[name].grad
        case.that(found is not None, f"A gradient should reach {name}, none does.")
        case.equal(found, gradient, f"gradient of {name}")
    case.learns(ours)


def spun(X: Tensor, positions: Tensor | None = None, base: float = 10000.0) -> Tensor:
    """Turn neighbouring features, which are viewed as complex numbers."""
    T, half = X.shape[-2], X.shape[-1] // 2
    positions = torch.arange(T) if positions is None else positions
    speeds = torch.tensor([base ** (-i / half) for i in range(half)], dtype=torch.float64)
    turn = torch.polar(torch.ones(T, half, dtype=torch.float64), positions[:, None] * speeds)
    numbers = torch.view_as_complex(X.double().unflatten(-1, (half, 2)).contiguous())
    return torch.view_as_real(numbers * turn).flatten(-2)


@check(
    rope_rotate_pairs,
    weight=3,
    see="Two layouts of one rotation",
    single={"B": 0, "H": 1, "T": 2},
)
def values(rotate, case):
    """agrees with a product of complex numbers, two neighbours being one of these"""
    B, H, T, half = case.sizes(4, low=3)
    X = case.randn(B, H, T, 2 * half)
    case.equal(rotate(X), spun(X), "turned X", **ANGLES)


@check(rope_rotate_pairs, weight=2, see="Two layouts of one rotation")
def one_pair(rotate, case):
    """turns only features 2i and 2i + 1 where only these are not zero, each pair at its speed"""
    half, t = 4, 2
    found, expected = [], []
    for feature in range(2 * half):
        x = torch.zeros(1, 2 * half, dtype=torch.float64)
        x[0, feature] = 1.0
        turned = rotate(x, torch.tensor([t]))
        case.shape(turned, (1, 2 * half), "turned X")
        found.append(turned[0])
        expected.append(spun(x, torch.tensor([t]))[0])
    what = f"turned X for each unit vector at position {t}"
    case.equal(torch.stack(found), torch.stack(expected), what, **ANGLES)


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def given_positions(rotate, case):
    """turns by the given positions and the given base"""
    B, T, half = case.sizes(3, low=3)
    X, positions = case.randn(B, T, 2 * half), case.integers(0, 30, T)
    case.equal(rotate(X, positions), spun(X, positions), "turned X", **ANGLES)
    turned = rotate(X, positions, base=70.0)
    case.equal(turned, spun(X, positions, 70.0), "turned X with base 70", **ANGLES)


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def lengths(rotate, case):
    """keeps the length of every vector"""
    B, T, half = case.sizes(3, low=3)
    X = case.randn(B, T, 2 * half)
    turned = rotate(X)
    case.shape(turned, tuple(X.shape), "turned X")
    case.equal(turned.norm(dim=-1), X.norm(dim=-1), "length", **ANGLES)


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def half_precision(rotate, case):
    """keeps the type of its input, but computes the angles more precisely"""
    T, half = case.sizes(2, low=3)
    X, positions = case.randn(T, 2 * half).bfloat16(), 300 + torch.arange(T)
    turned = rotate(X, positions)
    case.shape(turned, (T, 2 * half), "turned X")
    case.that(
        turned.dtype == torch.bfloat16,
        f"The result should have the type of X, torch.bfloat16, yours has {turned.dtype}.",
    )
    case.equal(turned, spun(X, positions), "turned X", rtol=0.02, atol=0.03)


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def odd(rotate, case):
    """raises ValueError when D_h is odd"""
    T, half = case.sizes(2, low=3)
    X = case.randn(T, 2 * half + 1)
    case.raises(ValueError, lambda: rotate(X), "D_h is odd")


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def between(rotate, case):
    """accepts positions that are not whole numbers, or negative, or far away"""
    T, half = case.sizes(2, low=4)
    vectors = case.randn(T, 2 * half)
    for places in (7 * case.rand(T), -3 - torch.arange(T), 900 + torch.arange(T)):
        what = f"turned X at positions from {float(places[0]):.4g} on"
        case.equal(rotate(vectors, places), spun(vectors, places), what, rtol=1e-3, atol=2e-4)


@check(rope_rotate_pairs, see="Two layouts of one rotation")
def gradients(rotate, case):
    """turns gradients back"""
    T, half = case.sizes(2, low=4)
    X, back = case.randn(T, 2 * half).requires_grad_(), case.randn(T, 2 * half)
    (wanted,) = torch.autograd.grad(spun(X), X, back)
    turned = rotate(X)
    case.shape(turned, tuple(X.shape), "turned X")
    case.trains(turned, "turned X")
    turned.backward(back.to(turned.dtype))
    case.gradient(X, wanted, "X")


def reordered(W: Tensor, H: int) -> Tensor:
    """Reorder columns one by one."""
    D_h = W.shape[1] // H
    columns = {}
    for h in range(H):
        for i in range(D_h // 2):
            columns[h * D_h + i] = W[:, h * D_h + 2 * i]
            columns[h * D_h + D_h // 2 + i] = W[:, h * D_h + 2 * i + 1]
    return torch.stack([columns[c] for c in range(W.shape[1])], dim=1)


@check(pairs_to_halves, weight=3, see="Weights that change layout", single={"D": 0})
def values(convert, case):
    """puts every column in its place"""
    D, H, half = case.sizes(3, low=3)
    W = case.randn(D, H * 2 * half)
    case.equal(convert(W, H), reordered(W, H), "reordered W")


@check(pairs_to_halves, see="Weights that change layout")
def numbered(convert, case):
    """takes columns 0 to 7 of a single head in the order 0, 2, 4, 6, 1, 3, 5, 7"""
    W = torch.arange(8.0).repeat(3, 1)
    expected = torch.tensor([0.0, 2, 4, 6, 1, 3, 5, 7]).expand(3, 8)
    case.equal(convert(W, 1), expected, "reordered W")


@check(pairs_to_halves, weight=2, see="Weights that change layout")
def same_scores(convert, case):
    """gives the same scores with halves as there were with pairs"""
    T, D, half = case.sizes(3, low=4)
    H, X = 3, case.randn(T, D)
    W_Q, W_K = case.randn(D, H * 2 * half), case.randn(D, H * 2 * half)

    def heads(M: Tensor) -> Tensor:
        return M.unflatten(1, (H, -1)).transpose(0, 1)

    expected = spun(heads(X @ W_Q)) @ spun(heads(X @ W_K)).mT
    new_Q, new_K = convert(W_Q, H), convert(W_K, H)
    case.shape(new_Q, tuple(W_Q.shape), "reordered W_Q")
    case.shape(new_K, tuple(W_K.shape), "reordered W_K")
    found = rotated(heads(X @ new_Q.to(X))) @ rotated(heads(X @ new_K.to(X))).mT
    case.equal(found, expected, "scores", rtol=1e-4, atol=1e-3)


@check(pairs_to_halves, see="Weights that change layout")
def refuses(convert, case):
    """raises ValueError when the columns are not H heads of an even size"""
    for columns, H in [(10, 3), (9, 3), (3, 1), (6, 4), (6, 2)]:
        W = case.randn(4, columns)
        when = f"{columns} columns are to be {H} heads"
        case.raises(ValueError, lambda W=W, H=H: convert(W, H), when)


@check(pairs_to_halves, see="Weights that change layout")
def gradients(convert, case):
    """passes gradients back to the columns that they belong to"""
    D, H, half = case.sizes(3, low=4)
    W, back = case.randn(D, H * 2 * half).requires_grad_(), case.randn(D, H * 2 * half)
    (wanted,) = torch.autograd.grad(reordered(W, H), W, back)
    found = convert(W, H)
    case.trains(found, "reordered W")
    found.backward(back)
    case.gradient(W, wanted, "W")


def may_see(T: int, window: int | None, sinks: int, past: int) -> Tensor:
    """Ask of every two positions whether the one may see the other."""
    rows = []
    for n in range(past, past + T):
        sees = []
        for s in range(past + T):
            is_near = window is None or s > n - window
            sees.append(s <= n and (is_near or s < sinks))
        rows.append(sees)
    return torch.tensor(rows)


@check(sliding_window_mask, see="A window that slides")
def causal(mask, case):
    """allows all that came before where there is no window, or one as long as the text"""
    T, past = case.sizes(2, low=4)
    for window in (None, T + past, 100):
        for before in (0, past):
            expected = may_see(T, None, 0, before)
            what = f"mask for window {window} and past {before}"
            case.equal(mask(T, window=window, past=before), expected, what)


@check(sliding_window_mask, weight=2, see="A window that slides")
def values(mask, case):
    """allows each position itself and window - 1 positions before it"""
    (T,) = case.sizes(1, low=8)
    for window in (3, 1):
        expected = may_see(T, window, 0, 0)
        case.equal(mask(T, window), expected, f"mask for window {window}")


@check(sliding_window_mask, see="A window that slides")
def counts(mask, case):
    """allows every position as many as the window has, or all that there are"""
    T, past, window = case.sizes(3, low=4)
    given = mask(T, window, past=past)
    case.shape(given, (T, past + T), "mask")
    expected = torch.tensor([min(past + t + 1, window) for t in range(T)])
    case.equal(given.sum(dim=1), expected, "allowed positions of each row")


@check(sliding_window_mask, weight=2, see="A window that slides", single="T")
def last_rows(mask, case):
    """with a past, gives the last rows of the mask of the whole sequence"""
    T, past = case.sizes(2, low=5)
    expected = may_see(T, 4, 0, past)
    case.equal(mask(T, 4, past=past), expected, "mask with past")


@check(sliding_window_mask, weight=2, see="A window that slides")
def sinks_too(mask, case):
    """allows the first positions of the text to all that come after them"""
    T, past = case.sizes(2, low=6)
    case.equal(mask(T, 3, 2), may_see(T, 3, 2, 0), "mask with 2 sinks")
    case.equal(mask(T, 3, 2, past), may_see(T, 3, 2, past), "mask with 2 sinks and past")
    case.equal(mask(T, 2, 5), may_see(T, 2, 5, 0), "mask with 5 sinks")


@check(sliding_window_mask, see="A window that slides")
def refuses(mask, case):
    """raises ValueError when the window is less than 1 or sinks is negative"""
    case.raises(ValueError, lambda: mask(5, 0), "the window is 0")
    case.raises(ValueError, lambda: mask(5, -2), "the window is -2")
    case.raises(ValueError, lambda: mask(5, 3, -1), "sinks is -1")
    case.raises(ValueError, lambda: mask(5, None, -1), "there is no window and sinks is -1")


forbid(LlamaAttention, ATTENTION)


def attention_weights(case: Case, D: int, size: int) -> dict[str, Tensor]:
    """Draw the matrices of a layer whose keys and values have `size` features."""
    sizes = {"Q": D, "K": size, "V": size, "O": D}
    return {f"W_{x}": case.randn(D, n) * 2 / D**0.5 for x, n in sizes.items()}


def keys_and_values(
    state: dict[str, Tensor], G: int, D_h: int, X: Tensor, base: float = 10000.0
) -> tuple[Tensor, Tensor]:
    """Compute what a cache should hold after a text: turned keys, and values."""
    K, V = ((X @ state[f"W_{x}"]).view(*X.shape[:2], G, D_h).transpose(1, 2) for x in ("K", "V"))
    return rotated(K, base=base), V


@once
def attended(
    state: dict[str, Tensor],
    H: int,
    G: int,
    X: Tensor,
    base: float = 10000.0,
    window: int | None = None,
    sinks: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Let torch attend over a whole text; dtype, if any, is that of the cache."""
    (B, T, D), D_h = X.shape, X.shape[2] // H
    Q = rotated((X @ state["W_Q"]).view(B, T, H, D_h).transpose(1, 2), base=base)
    K, V = keys_and_values(state, G, D_h, X, base)
    if dtype is not None:
        K, V = K.to(dtype).to(X.dtype), V.to(dtype).to(X.dtype)
    mask = may_see(T, window, sinks, 0)
    Y = functional.scaled_dot_product_attention(Q, K, V, attn_mask=mask, enable_gqa=True)
    return Y.transpose(1, 2).reshape(B, T, D) @ state["W_O"]


def leaves_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy weights, and let gradients reach the copies."""
    return {name: value.clone().requires_grad_() for name, value in state.items()}


def demand_gradients(case: Case, ours, leaves: dict[str, Tensor]) -> None:
    """Demand that all parameters of a module have the gradients of these leaves."""
    found = dict(ours.named_parameters())
    for name, leaf in leaves.items():
        case.gradient(found[name], leaf.grad, name)


def llama_layer(case: Case, attention, D_h: int, H: int = 6, G: int = 2, **options) -> tuple:
    """Make a student's layer with drawn weights, and return it with its state."""
    state = attention_weights(case, H * D_h, G * D_h)
    ours = made(attention, state, H * D_h, H, G, **options)
    return ours, state


def demand_continued(case: Case, attention, lengths: list[int], **options) -> None:
    """Demand that pieces of these lengths get what torch gives them as one text."""
    B, D_h = case.integers(2, 4, 1).item(), 2 * case.integers(2, 5, 1).item()
    ours, state = llama_layer(case, attention, D_h, **options)
    X, cache = case.randn(B, sum(lengths), 6 * D_h), ours.new_cache(B, sum(lengths) + 1)
    given = in_pieces(ours, X, cache, lengths)
    demand_pieces(case, given, attended(state, 6, 2, X, **options), lengths, "Y")


@check(LlamaAttention, weight=2, see="Llama's attention", single={"B": 0, "T": 1})
def values(attention, case):
    """agrees with torch's scaled_dot_product_attention on a whole text"""
    B, T, half = case.sizes(3, low=3)
    ours, state = llama_layer(case, attention, 2 * half)
    X = case.randn(B, T, 12 * half)
    Y = ours(X)
    case.trains(Y, "Y")
    case.equal(Y, attended(state, 6, 2, X), "Y")


@check(LlamaAttention, weight=3, see="Llama's attention")
def prefill_and_decode(attention, case):
    """agrees with torch when a text is read first, then continued position by position"""
    demand_continued(case, attention, [5, 1, 1, 1])


@check(LlamaAttention, see="Llama's attention")
def several_at_once(attention, case):
    """agrees with torch when several positions come at once, again and again"""
    demand_continued(case, attention, [2, 3, 4])


@check(LlamaAttention, see="Llama's attention")
def base(attention, case):
    """turns queries and keys as slowly as base says"""
    T, half = case.sizes(2, low=3)
    for slowness in (7.0, 900.0):
        ours, state = llama_layer(case, attention, 2 * half, base=slowness)
        X = case.randn(2, T, 12 * half)
        what = f"Y for base = {slowness:g}"
        case.equal(ours(X), attended(state, 6, 2, X, base=slowness), what)


@check(LlamaAttention, weight=2, see="Llama's attention")
def window(attention, case):
    """sees only a window of the text, and its first positions if there are sinks"""
    B, half = case.sizes(2)
    for options in ({"window": 3}, {"window": 2, "sinks": 2}, {"window": 1}):
        ours, state = llama_layer(case, attention, 2 * half, **options)
        X = case.randn(B, 9, 12 * half)
        what = "Y for " + " and ".join(f"{name} = {n}" for name, n in options.items())
        case.equal(ours(X), attended(state, 6, 2, X, **options), what)


@check(LlamaAttention, weight=2, see="Llama's attention")
def window_and_cache(attention, case):
    """sees the same window of a text that comes piece by piece"""
    demand_continued(case, attention, [4, 1, 1, 3, 1, 2], window=3, sinks=1)


@check(LlamaAttention, see="Llama's attention")
def distances(attention, case):
    """depends on how far apart positions are, and not on where in the text they stand"""
    B, T, half = case.sizes(3, low=3)
    ours, _ = llama_layer(case, attention, 2 * half, window=T)
    X = case.randn(B, 3 * T, 12 * half)
    late, alone = ours(X), ours(X[:, -T:])
    case.shape(late, tuple(X.shape), "Y")
    case.shape(alone, (B, T, 12 * half), "Y")
    case.equal(late[:, -1], alone[:, -1], f"Y of the last of {3 * T} positions, window {T},")


@check(LlamaAttention, see="Llama's attention")
def kept(attention, case):
    """keeps turned keys of G heads in the cache, and values as they are"""
    B, T, half = case.sizes(3, low=3)
    ours, state = llama_layer(case, attention, 2 * half)
    X, cache = case.randn(B, T + 3, 12 * half), ours.new_cache(B, T + 3)
    in_pieces(ours, X, cache, [T, 1, 2])
    K, V = case.unpack(cache.read(), "K", "V")
    keys, values = keys_and_values(state, 2, 2 * half, X)
    case.equal(K, keys, "K in the cache")
    case.equal(V, values, "V in the cache")


@check(LlamaAttention, see="Llama's attention")
def half(attention, case):
    """computes in full precision with what it reads from a cache in half precision"""
    B, T, pairs = case.sizes(3, low=3)
    ours, state = llama_layer(case, attention, 2 * pairs, window=T)
    X, cache = case.randn(B, T + 2, 12 * pairs), ours.new_cache(B, T + 2, torch.float16)
    lengths = [T, 1, 1]
    found = in_pieces(ours, X, cache, lengths)
    for Y in found:
        case.shape(Y, tuple(Y.shape), "Y")
        case.that(Y.dtype == X.dtype, f"Y should be {X.dtype} as X is, yours is {Y.dtype}.")
    expected = attended(state, 6, 2, X, window=T, dtype=torch.float16)
    demand_pieces(case, found, expected, lengths, "Y, with a cache in half precision,")


@check(LlamaAttention, see="Llama's attention")
def far_apart(attention, case):
    """gives what may not be seen no weight, also beside scores of -1e12"""
    B, T, pairs = case.sizes(3, low=4)
    state = attention_weights(case, 12 * pairs, 4 * pairs)
    state |= {name: 1e6 * state[name] for name in ("W_Q", "W_K")}
    X, what = case.randn(B, T, 12 * pairs), "Y where scores reach from -1e12 to 1e12"
    for options in ({}, {"window": 3, "sinks": 1}):
        ours = made(attention, state, 12 * pairs, 6, 2, **options)
        case.equal(ours(X), attended(state, 6, 2, X, **options), what)


@check(LlamaAttention, see="Llama's attention")
def unequal_groups(attention, case):
    """raises ValueError when G does not divide H"""
    case.raises(ValueError, lambda: attention(24, 6, 4), "6 heads are to share 4 of keys")
    case.raises(ValueError, lambda: attention(24, 2, 4), "2 heads are to share 4 of keys")


@check(LlamaAttention, see="Llama's attention")
def gradient(attention, case):
    """passes gradients back to X and to all weights when there is no cache"""
    B, T, pairs = case.sizes(3, low=3)
    ours, state = llama_layer(case, attention, 2 * pairs, window=3, sinks=1)
    X, seen = case.randn(2, B, T, 12 * pairs)
    leaves = leaves_of(state | {"X": X})
    attended(leaves, 6, 2, leaves["X"], window=3, sinks=1).backward(seen)
    ours(X.requires_grad_()).backward(seen)
    case.gradient(X, leaves.pop("X").grad, "X")
    demand_gradients(case, ours, leaves)
    case.learns(ours)


@check(LlamaAttention, see="Llama's attention")
def goes_back(attention, case):
    """continues correctly after the cache was truncated, and when it is full changes nothing"""
    B, T, pairs = case.sizes(3, low=3)
    ours, state = llama_layer(case, attention, 2 * pairs)
    X, cache = case.randn(B, T, 12 * pairs), ours.new_cache(B, T)
    ours(X[:, : T - 1], cache)
    case.raises(ValueError, lambda: ours(X[:, :2], cache), "the cache has room for one, two come")
    cache.truncate(T - 2)
    other = torch.cat([X[:, : T - 2], case.randn(B, 2, 12 * pairs)], dim=1)
    case.equal(ours(other[:, -2:], cache), attended(state, 6, 2, other)[:, -2:], "Y after truncate")


@check(LlamaAttention, see="Llama's attention")
def far_away(attention, case):
    """counts positions exactly in bfloat16, which cannot tell 595 from 596"""
    ours, state = llama_layer(case, attention, 8, window=3)
    long = (case.randn(2, 4, 48) / 2).repeat(1, 150, 1).bfloat16()
    ours = ours.bfloat16()
    cache = ours.new_cache(2, 600)
    ours(long[:, :595], cache)
    Y = ours(long[:, 595:], cache)
    case.shape(Y, (2, 5, 48), "Y")
    rounded = {name: value.bfloat16().double() for name, value in state.items()}
    expected = attended(rounded, 6, 2, long[:, 588:].double(), window=3)[:, -5:]
    error = (Y.detach().double() - expected).abs().max().item()
    case.that(error < 0.15, f"Y at position 595 in bfloat16 is off by {error:.1g}, more than 0.15.")


def under(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take the weights whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}


def layer_state(case: Case, D: int, size: int, hidden: int, prefix: str = "") -> dict[str, Tensor]:
    """Draw the weights of a LlamaBlock, none of them as a new one has it."""
    parts = {f"attention.{n}": v for n, v in attention_weights(case, D, size).items()}
    parts |= {f"feed_forward.{n}": 2 * v for n, v in network_weights(case, D, hidden).items()}
    parts |= {f"norm_{n}.weight": case.rand(D) + 0.5 for n in (1, 2)}
    return {prefix + name: value for name, value in parts.items()}


def normed(X: Tensor, weight: Tensor) -> Tensor:
    """Let torch normalise vectors as RMSNorm does."""
    return functional.rms_norm(X, weight.shape, weight, 1e-5)


def layered(state: dict[str, Tensor], H: int, G: int, X: Tensor, **options) -> Tensor:
    """Apply a layer of Llama made of torch's functions."""
    attention, network = under(state, "attention."), under(state, "feed_forward.")
    X = X + attended(attention, H, G, normed(X, state["norm_1.weight"]), **options)
    return X + through_gates(normed(X, state["norm_2.weight"]), **network)


def llama_block(case: Case, block, half: int, zeros: tuple = (), **options) -> tuple:
    """Make a student's block with drawn weights, some zero; return it with its state."""
    D_h, hidden = 2 * half, 12 * half + 5
    state = layer_state(case, 6 * D_h, 2 * D_h, hidden)
    state |= {name: torch.zeros_like(state[name]) for name in zeros}
    ours = made(block, state, 6 * D_h, 6, 2, hidden, **options)
    return ours, state


NO_ATTENTION, NO_NETWORK = "attention.W_O", "feed_forward.W_down"


@check(LlamaBlock, weight=3, see="The block", single={"B": 0, "T": 1})
def values(block, case):
    """agrees with torch's rms_norm, scaled_dot_product_attention and silu"""
    B, T, half = case.sizes(3)
    ours, state = llama_block(case, block, half)
    X = 3 * case.randn(B, T, 12 * half)
    Y = ours(X)
    case.trains(Y, "X")
    case.equal(Y, layered(state, 6, 2, X), "X")


@check(LlamaBlock, see="The block")
def passes_through(block, case):
    """changes nothing when attention and network give zeros"""
    B, T, half = case.sizes(3)
    ours, _ = llama_block(case, block, half, (NO_ATTENTION, NO_NETWORK))
    X = 3 * case.randn(B, T, 12 * half)
    case.equal(ours(X), X, "X")


@check(LlamaBlock, see="The block")
def attention_alone(block, case):
    """adds what attention says about the normalised vectors"""
    B, T, half = case.sizes(3)
    ours, state = llama_block(case, block, half, (NO_NETWORK,))
    X = 3 * case.randn(B, T, 12 * half)
    normal = normed(X, state["norm_1.weight"])
    said = attended(under(state, "attention."), 6, 2, normal)
    case.equal(ours(X), X + said, "X, where the network gives zeros,")


@check(LlamaBlock, see="The block")
def network_alone(block, case):
    """adds what the network makes of the normalised vectors"""
    B, T, half = case.sizes(3)
    ours, state = llama_block(case, block, half, (NO_ATTENTION,))
    X = 3 * case.randn(B, T, 12 * half)
    normal = normed(X, state["norm_2.weight"])
    made = through_gates(normal, **under(state, "feed_forward."))
    case.equal(ours(X), X + made, "X, where attention gives zeros,")


@check(LlamaBlock, weight=2, see="The block")
def prefill_and_decode(block, case):
    """gives what the whole text gets when it comes piece by piece, with a cache"""
    B, T, half = case.sizes(3)
    ours, state = llama_block(case, block, half, window=4, sinks=1)
    X, lengths = 3 * case.randn(B, T + 6, 12 * half), [T, 1, 3, 1, 1]
    cache = ours.get_submodule("attention").new_cache(B, T + 6)
    expected = layered(state, 6, 2, X, window=4, sinks=1)
    demand_pieces(case, in_pieces(ours, X, cache, lengths), expected, lengths, "X")


@check(LlamaBlock, see="The block")
def one_by_one(block, case):
    """gives what the whole text gets when every position comes alone, the first one too"""
    B, half = case.sizes(2)
    ours, state = llama_block(case, block, half)
    X, lengths = 3 * case.randn(B, 3, 12 * half), [1, 1, 1]
    cache = ours.get_submodule("attention").new_cache(B, 3)
    given = in_pieces(ours, X, cache, lengths)
    demand_pieces(case, given, layered(state, 6, 2, X), lengths, "X")


@check(LlamaBlock, see="The block")
def gradient(block, case):
    """passes gradients back to X and to all weights"""
    B, T, pairs = case.sizes(3)
    ours, state = llama_block(case, block, pairs)
    X, seen = case.randn(2, B, T, 12 * pairs)
    leaves = leaves_of(state | {"X": X})
    layered(leaves, 6, 2, leaves["X"]).backward(seen)
    ours(X.requires_grad_()).backward(seen)
    case.gradient(X, leaves.pop("X").grad, "X")
    demand_gradients(case, ours, leaves)
    case.learns(ours)


def model_state(
    case: Case, V: int, D: int, size: int, L: int, hidden: int, tied: bool
) -> dict[str, Tensor]:
    """Draw the weights of a Llama."""
    state = {"token.weight": 2 * case.randn(V, D), "norm.weight": case.rand(D) + 0.5}
    for number in range(L):
        state |= layer_state(case, D, size, hidden, f"blocks.{number}.")
    return state if tied else state | {"W_head": case.randn(D, V) * 2 / D**0.5}


@once
def scored(state: dict[str, Tensor], tokens: Tensor, **options) -> Tensor:
    """Compute the logits of a Llama made of torch's functions."""
    X = functional.embedding(tokens, state["token.weight"])
    for number in range(sum(name.endswith("norm_1.weight") for name in state)):
        X = layered(under(state, f"blocks.{number}."), 6, 2, X, **options)
    head = state["W_head"].T if "W_head" in state else state["token.weight"]
    return functional.linear(normed(X, state["norm.weight"]), head)


def llama_model(
    case: Case, model, L: int = 3, tied: bool = False, zeros: tuple = (), **options
) -> tuple:
    """Make a student's model of 13 tokens with drawn weights, and return it with its state."""
    state = model_state(case, 13, 24, 8, L, 17, tied)
    state |= {n: torch.zeros_like(v) for n, v in state.items() if n.endswith(zeros)}
    ours = made(model, state, 13, 24, 6, 2, L, 17, tied, **options)
    return ours, state


@check(Llama, weight=3, see="The whole model", single={"B": 0, "T": 1})
def values(model, case):
    """agrees with layers made of torch's functions"""
    B, T = case.sizes(2, low=3)
    ours, state = llama_model(case, model)
    tokens = case.integers(0, 13, B, T)
    logits = ours(tokens)
    case.trains(logits, "the logits")
    case.equal(logits, scored(state, tokens), "logits")


@check(Llama, see="The whole model")
def tied(model, case):
    """scores the tokens with their embedding if tied"""
    B, T = case.sizes(2, low=3)
    ours, state = llama_model(case, model, tied=True)
    tokens = case.integers(0, 13, B, T)
    case.equal(ours(tokens), scored(state, tokens), "logits of a tied model")


@check(Llama, see="The whole model")
def around_the_blocks(model, case):
    """scores the normalised embedding when all blocks give zeros"""
    B, T = case.sizes(2, low=3)
    ours, state = llama_model(case, model, zeros=(NO_ATTENTION, NO_NETWORK))
    tokens = case.integers(0, 13, B, T)
    normal = normed(state["token.weight"], state["norm.weight"])
    expected = (normal @ state["W_head"])[tokens]
    case.equal(ours(tokens), expected, "logits, where all blocks give zeros,")


@check(Llama, see="The whole model")
def causal(model, case):
    """gives a position the same logits whatever comes after it"""
    B, T = case.sizes(2, low=3)
    ours, _ = llama_model(case, model)
    tokens = case.integers(0, 13, B, T)
    other = tokens.clone()
    other[:, -1] = (tokens[:, -1] + 1) % 13
    before, after = ours(tokens), ours(other)
    case.shape(before, (B, T, 13), "logits")
    case.shape(after, (B, T, 13), "logits")
    case.equal(after[:, :-1], before[:, :-1], "logits before a different last token")


def demand_read_in_pieces(case: Case, model, lengths: list[int], **options) -> None:
    """Demand that pieces of these lengths get the logits that torch gives them as one text."""
    ours, state = llama_model(case, model, **options)
    B, N = case.integers(2, 6, 1).item(), sum(lengths)
    tokens, caches = case.integers(0, 13, B, N), ours.new_caches(B, N + 2)
    given = [ours(piece, caches) for piece in tokens.split(lengths, dim=1)]
    demand_pieces(case, given, scored(state, tokens, **options), lengths, "logits")


@check(Llama, weight=2, see="The whole model")
def prefill_and_decode(model, case):
    """gives the logits of the whole text when it reads it piece by piece, with caches"""
    demand_read_in_pieces(case, model, [4, 1, 1, 1])


@check(Llama, see="The whole model")
def several_at_once(model, case):
    """gives the logits of the whole text when several tokens come at once, in a window"""
    demand_read_in_pieces(case, model, [1, 3, 5, 2], window=4, sinks=2)


@check(Llama, see="The whole model")
def gradient(model, case):
    """passes gradients back to all weights, and both ways to a tied embedding"""
    B, T = case.sizes(2, low=3)
    for tied in (False, True):
        ours, state = llama_model(case, model, tied=tied)
        tokens, leaves = case.integers(0, 13, B, T), leaves_of(state)
        seen = case.randn(B, T, 13)
        scored(leaves, tokens).backward(seen)
        ours(tokens).backward(seen)
        demand_gradients(case, ours, leaves)
        case.learns(ours)


@check(Llama, see="The whole model")
def own_caches(model, case):
    """keeps in the first cache what the first layer has read, and so on"""
    B, T = case.sizes(2, low=3)
    ours, state = llama_model(case, model, zeros=("attention.W_O", "feed_forward.W_down"))
    layers = [ours.get_submodule(f"blocks.{number}.attention") for number in range(3)]
    tokens, caches = case.integers(0, 13, B, T), [layer.new_cache(B, T) for layer in layers]
    ours(tokens, caches)
    X = state["token.weight"][tokens]  # the blocks add zeros to it
    for number in range(3):
        layer = under(state, f"blocks.{number}.")
        vectors = normed(X, layer["norm_1.weight"])
        expected = keys_and_values(under(layer, "attention."), 2, 4, vectors)
        K, V = case.unpack(caches[number].read(), "K", "V")
        case.equal(K, expected[0], f"K in cache {number}")
        case.equal(V, expected[1], f"V in cache {number}")


MODELS = [  # what our Llama is made with
    {"V": 11, "D": 12, "H": 6, "G": 2, "L": 3, "F": 10},
    {"V": 31, "D": 24, "H": 4, "G": 4, "L": 2, "F": 19, "tied": True},
    {"V": 17, "D": 20, "H": 5, "G": 1, "L": 1, "F": 32},
    {"V": 13, "D": 6, "H": 3, "G": 1, "L": 5, "F": 8, "tied": True},
    {"V": 23, "D": 16, "H": 8, "G": 4, "L": 4, "F": 9},
    {"V": 19, "D": 18, "H": 3, "G": 3, "L": 2, "F": 14},
]


def weights_of(
    V: int, D: int, H: int, G: int, L: int, F: int, tied: bool = False
) -> dict[str, int]:
    """Count the parameters of a Llama by the shapes of its weights."""
    size = D // H
    shapes = {
        "embedding": [(V, D)],
        "attention": [(D, H * size), (D, G * size), (D, G * size), (H * size, D)] * L,
        "feed_forward": [(D, F), (D, F), (F, D)] * L,
        "norms": [(1, D), (1, D)] * L + [(1, D)],
        "head": [] if tied else [(D, V)],
    }
    counts = {part: sum(rows * columns for rows, columns in shapes[part]) for part in shapes}
    return counts | {"total": sum(counts.values())}


def demand_count(case: Case, count, name: str) -> None:
    """Demand one of the numbers for all MODELS."""
    found, expected = [], []
    for model, result in zip(MODELS, of_each(count, MODELS), strict=True):
        number = result.get(name) if isinstance(result, dict) else None
        case.that(
            isinstance(number, (int, float)),
            f'The result should be a dict with a number at "{name}", yours is not.',
        )
        found.append(float(number))
        expected.append(float(weights_of(**model)[name]))
    wrong = [m for m, a, b in zip(MODELS, found, expected, strict=True) if a != b] or MODELS[:1]
    what = f"{name} for {', '.join(f'{x} = {value}' for x, value in wrong[0].items())}"
    given = torch.tensor(found, dtype=torch.float64)
    case.equal(given, torch.tensor(expected, dtype=torch.float64), what, rtol=0, atol=0)


@check(llama_parameters, see="Count before you build")
def embedding(count, case):
    """counts the embedding, and the head unless it is tied"""
    demand_count(case, count, "embedding")
    demand_count(case, count, "head")


@check(llama_parameters, see="Count before you build")
def attention(count, case):
    """counts the four matrices of attention, of which two have G heads"""
    demand_count(case, count, "attention")


@check(llama_parameters, see="Count before you build")
def feed_forward(count, case):
    """counts three matrices a layer"""
    demand_count(case, count, "feed_forward")


@check(llama_parameters, see="Count before you build")
def norms(count, case):
    """counts two norms a layer and one at the end"""
    demand_count(case, count, "norms")


@check(llama_parameters, weight=2, see="Count before you build")
def total(count, case):
    """adds up the parts"""
    demand_count(case, count, "total")
    number = count(**MODELS[0])["total"]
    is_whole = hasattr(number, "__index__")
    case.that(is_whole, f"total should be an int, yours is {describe(number)}.")


LLAMA_2_7B = {"V": 32000, "D": 4096, "H": 32, "G": 32, "L": 32, "F": 11008}
LLAMA_3_8B = {"V": 128256, "D": 4096, "H": 32, "G": 8, "L": 32, "F": 14336}


def demand_published(case: Case, count, model: str, sizes: dict, name: str, number: int) -> None:
    """Demand the number that was published for a model."""
    result = count(**sizes)
    given = result.get(name) if isinstance(result, dict) else None
    message = f"{name} of {model} should be {number:,}, yours is {given!r:.30}."
    case.that(given == number, message)


@check(llama_parameters, see="Count before you build")
def published(count, case):
    """counts 6 738 415 616 in Llama 2 7B and 8 030 261 248 in Llama 3 8B"""
    demand_published(case, count, "Llama 2 7B", LLAMA_2_7B, "total", 6_738_415_616)
    demand_published(case, count, "Llama 3 8B", LLAMA_3_8B, "total", 8_030_261_248)


def hub_state(
    case: Case,
    V: int = 7,
    D: int = 6,
    narrow: int = 4,
    F: int = 5,
    L: int = 2,
    tied: bool = False,
) -> dict[str, Tensor]:
    """Draw weights under the names of LlamaForCausalLM.

    `narrow` is how many features all keys have together, and all values.
    """
    state = {"model.embed_tokens.weight": case.randn(V, D), "model.norm.weight": case.randn(D)}
    if not tied:
        state["lm_head.weight"] = case.randn(V, D)
    rows = {"q": D, "k": narrow, "v": narrow, "o": D}
    network = {"gate": (F, D), "up": (F, D), "down": (D, F)}
    for n in range(L):
        layer = f"model.layers.{n}."
        for x, count in rows.items():
            state[f"{layer}self_attn.{x}_proj.weight"] = case.randn(count, D)
        for name in ("input_layernorm", "post_attention_layernorm"):
            state[f"{layer}{name}.weight"] = case.randn(D)
        for name, shape in network.items():
            state[f"{layer}mlp.{name}_proj.weight"] = case.randn(*shape)
    return state


def state_wanted(theirs: dict[str, Tensor], L: int) -> dict[str, Tensor]:
    """Find the published weight that belongs under each of our names."""
    ours = {}
    for n in range(L):
        block, layer = f"blocks.{n}.", f"model.layers.{n}."
        for x in "QKVO":
            given = theirs[f"{layer}self_attn.{x.lower()}_proj.weight"]
            ours[f"{block}attention.W_{x}"] = given.t()
        ours[f"{block}norm_1.weight"] = theirs[f"{layer}input_layernorm.weight"]
        ours[f"{block}norm_2.weight"] = theirs[f"{layer}post_attention_layernorm.weight"]
        for name in ("gate", "up", "down"):
            ours[f"{block}feed_forward.W_{name}"] = theirs[f"{layer}mlp.{name}_proj.weight"].t()
    ours["token.weight"] = theirs["model.embed_tokens.weight"]
    ours["norm.weight"] = theirs["model.norm.weight"]
    if "lm_head.weight" in theirs:
        ours["W_head"] = theirs["lm_head.weight"].t()
    return ours


def demand_llama(case: Case, given: object, theirs: dict[str, Tensor], L: int) -> None:
    """Demand every weight of a published model in its place."""
    expected = state_wanted(theirs, L)
    if not isinstance(given, dict):
        raise Failure(f"The state should be a dict, yours is {describe(given)}.")
    missing = sorted(set(expected) - set(given))
    extra = sorted(map(str, set(given) - set(expected)))
    case.that(not missing, f"{(missing or [''])[0]} is missing from your state.")
    case.that(not extra, f"{(extra or [''])[0]} does not belong in your state.")
    for name, value in expected.items():
        case.equal(given[name], value, name)


@check(load_llama, weight=3, see="Loading published weights")
def values(load, case):
    """puts every weight of a Llama where it belongs"""
    theirs = hub_state(case)
    demand_llama(case, load(theirs), theirs, 2)


@check(load_llama, see="Loading published weights")
def tied(load, case):
    """accepts a model without lm_head, which uses the embedding twice"""
    theirs = hub_state(case, L=1, tied=True)
    demand_llama(case, load(theirs), theirs, 1)


@check(load_llama, see="Loading published weights")
def many_layers(load, case):
    """tells layer 1 from layer 10"""
    theirs = hub_state(case, V=3, D=4, narrow=2, F=3, L=11)
    demand_llama(case, load(theirs), theirs, 11)


@check(load_llama, see="Loading published weights")
def any_order(load, case):
    """does not depend on the order of the names"""
    theirs = hub_state(case)
    turned = dict(reversed(theirs.items()))
    demand_llama(case, load(turned), theirs, 2)


@check(load_llama, see="Loading published weights")
def old_files(load, case):
    """leaves out the tables of frequencies"""
    theirs = hub_state(case, L=1)
    tables = {"model.layers.0.self_attn.rotary_emb.inv_freq": case.rand(3)}
    demand_llama(case, load({**tables, **theirs}), theirs, 1)


@check(load_llama, see="Loading published weights")
def refuses(load, case):
    """raises ValueError for a bias, and for any other name that it does not know"""
    for name, size in [
        ("model.layers.0.self_attn.q_proj.bias", (6,)),
        ("model.layers.0.input_layernorm.bias", (6,)),
        ("model.layers.0.self_attn.q_norm.weight", (3,)),
        ("vision_model.layers.0.self_attn.q_proj.weight", (6, 6)),
        ("score.weight", (2, 6)),
    ]:
        more = {**hub_state(case, L=1), name: case.randn(*size)}
        case.raises(ValueError, lambda more=more: load(more), f"the state has {name}")


@check(load_llama, see="Loading published weights")
def kinds(load, case):
    """keeps the numbers' dtype"""
    theirs = {name: value.half() for name, value in hub_state(case, L=1).items()}
    given = load(theirs)
    demand_llama(case, given, theirs, 1)
    for name, value in given.items():
        kind = value.dtype
        case.that(kind == torch.float16, f"{name} should be torch.float16, yours is {kind}.")


@check(swiglu_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "swiglu", through_gates)
