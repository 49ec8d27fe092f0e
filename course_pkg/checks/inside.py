"""Checks of inside. Oracles: loops over heads, autograd, torch's rms_norm, a planted circuit."""

import functools

import torch
from torch import Tensor
from torch.nn import functional

from course_pkg.checking.batched import made, together
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.guard import here
from course_pkg.checking.registry import check
from course_pkg.inference.opened import OpenLlama
from course_pkg.inference.planted import INDUCTION, PREVIOUS, planted_induction
from course_pkg.inside import (
    SparseAutoencoder,
    ablate,
    direct_logit_attribution,
    induction_score,
    logit_lens,
    logit_lens_fault,
    patch_activation,
    path_patch,
    previous_token_score,
    record,
    selectivity,
    steering_vector,
    toy_superposition,
)
from course_pkg.mae import linear_probe
from course_pkg.positions import rope_rotate

V, D, H, G, L, F = SIZES = 11, 24, 4, 2, 3, 5  # of the small model, whose heads are of size 6
Weights = dict[str, Tensor]


def draw_weights(case: Case) -> Weights:
    """Draw the weights of a small model, all of them about as large as those of a trained one."""
    drawn = {}
    for name, value in OpenLlama(*SIZES).state_dict().items():
        scale = 1.0 if value.dim() == 1 or name == "token.weight" else value.shape[0] ** -0.5
        drawn[name] = scale * case.randn(*value.shape)
    return drawn


def built(weights: Weights) -> OpenLlama:
    """Make the small model."""
    model = OpenLlama(*SIZES).double()
    model.load_state_dict(weights)
    return model


def texts(case: Case, count: int) -> list[Tensor]:
    """Draw texts of B sequences."""
    B, T = case.narrowed([3, 7])
    return [case.integers(0, V, B, T) for _ in range(count)]


def normed(X: Tensor, weight: Tensor) -> Tensor:
    """Normalise as `RMSNorm` does."""
    return functional.rms_norm(X, weight.shape, weight, 1e-5)


def by_hand(
    weights: Weights,
    tokens: Tensor,
    replaced: dict[tuple[int, int], Tensor] | None = None,
    told: tuple[tuple[int, int], str, Tensor] | None = None,
) -> tuple[Tensor, dict[tuple[int, int], Tensor], list[Tensor]]:
    """Run the small model head by head.

    Args:
        weights: its weights.
        tokens: what it reads.
        replaced: what heads return instead.
        told: a head, its "queries", "keys" or "values", and what is added to what they are made of.
    Returns:
        The logits, what every head returns, and the residual stream before each layer and at last.
    """
    X, size, returned, streams = weights["token.weight"][tokens], D // H, {}, []
    later = torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()
    for layer in range(L):
        w = {name[9:]: value for name, value in weights.items() if name[:9] == f"blocks.{layer}."}
        streams.append(X)
        out = torch.zeros_like(X)
        for head in range(H):
            mine = slice(head * size, (head + 1) * size)
            shared = slice(head // (H // G) * size, (head // (H // G) + 1) * size)
            read = dict.fromkeys(("queries", "keys", "values"), normed(X, w["norm_1.weight"]))
            if told is not None and told[0] == (layer, head):
                read[told[1]] = normed(X + told[2], w["norm_1.weight"])
            q = rope_rotate(read["queries"] @ w["attention.W_Q"][:, mine])
            k = rope_rotate(read["keys"] @ w["attention.W_K"][:, shared])
            scores = (q @ k.mT / size**0.5).masked_fill(later, -torch.inf)
            z = scores.softmax(-1) @ (read["values"] @ w["attention.W_V"][:, shared])
            z = (replaced or {}).get((layer, head), z)
            returned[layer, head] = z
            out = out + z @ w["attention.W_O"][mine]
        X = X + out
        Y = normed(X, w["norm_2.weight"])
        gate, up, down = (w[f"feed_forward.W_{part}"] for part in ("gate", "up", "down"))
        X = X + (functional.silu(Y @ gate) * (Y @ up)) @ down
    return normed(X, weights["norm.weight"]) @ weights["W_head"], returned, [*streams, X]


def heads_of(returned: dict[tuple[int, int], Tensor], layer: int) -> Tensor:
    """Put what a layer's heads return into one tensor (B, T, H, D_h)."""
    return torch.stack([returned[layer, head] for head in range(H)], dim=2)


# What stands beside a student's object: models and hooks do not cross to another process.


def hooks_on(model: torch.nn.Module) -> int:
    """Count the hooks of a model."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return sum(len(getattr(each, kind)) for each in model.modules() for kind in kinds)


@together
def run(function, weights: Weights, *args):
    """Call a student's function with the small model."""
    return function(built(weights), *args)


@together
def run_planted(function, V: int, *args):
    """Call a student's function with the circuit that is set by hand."""
    return function(planted_induction(V), *args)


@together
def recorded(record, weights: Weights, tokens: Tensor, names: list[str], factors: dict):
    """Record from the small model, while some outputs are multiplied by numbers."""
    changes = {name: functools.partial(torch.mul, other=by) for name, by in factors.items()}
    return record(built(weights), tokens, names, changes)


@together
def gradients_of(record, weights: Weights, tokens: Tensor, names: list[str]) -> list[Tensor]:
    """Give the gradients of the embedding by the logits and by what is kept, zero if none."""
    model = built(weights)
    logits, kept = record(model, tokens, names)
    weight = model.token.weight
    return [
        torch.autograd.grad(out.square().sum(), weight, retain_graph=True)[0]
        if out.requires_grad
        else torch.zeros_like(weight)
        for out in (logits, *(kept[name] for name in names))
    ]


@together
def left_behind(record, weights: Weights, tokens: Tensor, names: list[str], bad: str) -> tuple:
    """Record, and count hooks; with a change that raises, again; and what the model then gives."""
    model = built(weights)
    record(model, tokens, names, {names[0]: torch.neg})
    after = hooks_on(model)

    def stumble(output: Tensor) -> Tensor:
        raise ArithmeticError("on purpose")

    try:
        record(model, tokens, names, {names[0]: torch.neg, bad: stumble})
        message = "nothing"
    except Exception as error:
        message = str(error)
    later = hooks_on(model)
    return after, later, message, None if later else model(tokens)


@together
def runs_of(record, weights: Weights, tokens: Tensor, names: list[str], changes: list) -> int:
    """Count how often the model runs while a call of record raises."""
    model, runs = built(weights), []
    model.token.register_forward_hook(lambda *call: runs.append(call))
    try:
        record(model, tokens, names, dict.fromkeys(changes, torch.neg))
    except Exception:
        return len(runs)
    return -1


def kept_under(case: Case, kept: object, names: list[str]) -> None:
    """Demand a dict with these names."""
    case.that(isinstance(kept, dict), f"What was kept should be a dict, yours is {type(kept)}.")
    case.that(
        sorted(kept) == sorted(names),
        f"Names kept should be {sorted(names)}, yours are {sorted(map(str, kept))}.",
        next((value for value in kept.values() if isinstance(value, Tensor)), None),
    )


@check(record, weight=2, see="Record, and change", single="B")
def values(record, case):
    """keeps what each of several modules returns, and gives the logits"""
    B, T = case.narrowed([3, 7])
    tokens, weights = case.integers(0, V, B, T), draw_weights(case)
    logits, returned, streams = by_hand(weights, tokens)
    names = ["blocks.0", "blocks.2.attention.heads", "blocks.0.attention.heads", "token"]
    given, kept = case.unpack(recorded(record, weights, tokens, names, {}), "logits", "kept")
    case.equal(given, logits, "logits")
    expected = [streams[1], heads_of(returned, 2), heads_of(returned, 0), streams[0]]
    kept_under(case, kept, names)
    for name, value in zip(names, expected, strict=True):
        case.equal(kept[name], value, f'kept["{name}"]')


@check(record, see="Record, and change")
def changes(record, case):
    """changes what two modules return, and keeps what the rest of the model gets"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    first, last = "blocks.0.attention.heads", "blocks.2"
    _, returned, _ = by_hand(weights, tokens)
    changed = {(0, head): 3 * returned[0, head] for head in range(H)}
    _, returned, streams = by_hand(weights, tokens, changed)
    end = -2 * streams[-1]
    logits = normed(end, weights["norm.weight"]) @ weights["W_head"]
    names, factors = [first, last, "blocks.1"], {first: 3.0, last: -2.0}
    given, kept = case.unpack(recorded(record, weights, tokens, names, factors), "logits", "kept")
    case.equal(given, logits, "logits after two changes")
    kept_under(case, kept, names)
    for name, value in zip(names, (heads_of(returned, 0), end, streams[2]), strict=True):
        case.equal(kept[name], value, f'kept["{name}"] after two changes')


@check(record, see="Record, and change")
def nothing_asked(record, case):
    """gives the logits and an empty dict when no module is named"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    given, kept = case.unpack(run(record, weights, tokens), "logits", "kept")
    case.equal(given, by_hand(weights, tokens)[0], "logits")
    case.that(kept == {}, f"Nothing should be kept, yours is {kept}.")


@check(record, see="Record, and change")
def gradients(record, case):
    """lets gradients go back through the logits and through what was kept"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    leaf = weights["token.weight"].clone().requires_grad_()
    logits, _, streams = by_hand({**weights, "token.weight": leaf}, tokens)
    names = ["blocks.0", "blocks.1"]
    given = gradients_of(record, weights, tokens, names)
    for out, gradient, what in zip(
        (logits, *streams[1:3]),
        given,
        ("the logits", *(f'kept["{n}"]' for n in names)),
        strict=True,
    ):
        (expected,) = torch.autograd.grad(out.square().sum(), leaf, retain_graph=True)
        case.that(
            gradient.any(),
            f"No gradient goes back from {what}: is it detached, or does the model run without "
            "gradients?",
        )
        case.equal(gradient, expected, f"gradient of the embedding by {what}")


@check(record, weight=2, see="Record, and change")
def cleans_up(record, case):
    """leaves no hook behind, also where the model raises an error"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    names = ["blocks.0.attention.heads", "blocks.1"]
    after, later, message, logits = left_behind(record, weights, tokens, names, "blocks.2")
    case.that(after == 0, f"Hooks left should be 0, yours are {after}.")
    case.that(
        "on purpose" in message,
        f'The error of a change should get through: "on purpose", with yours {message!r}.',
    )
    case.that(later == 0, f"Hooks left after an error should be 0, yours are {later}.")
    case.equal(logits, by_hand(weights, tokens)[0], "logits after an error")


@check(record, see="Record, and change")
def unknown_names(record, case):
    """raises ValueError before anything is run when the model has no module of a name"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    for names, factors, where in (
        (["blocks.0", "blocks.9"], {}, "a name in names is unknown"),
        (["blocks.0"], {"blocks.1.heads": 2.0}, "a name in changes is unknown"),
    ):
        case.raises(
            ValueError, functools.partial(recorded, record, weights, tokens, names, factors), where
        )
        runs = runs_of(record, weights, tokens, names, list(factors))
        case.that(runs == 0, f"Runs of the model when {where} should be 0, yours are {runs}.")


@check(logit_lens, weight=2, see="A prediction after every layer", single="B")
def values(lens, case):
    """agrees with torch's rms_norm and log_softmax"""
    B, T, D, V = case.sizes(4)
    X, weight, W_head = 3 * case.randn(B, T, D), case.rand(D) + 0.5, case.randn(D, V)
    expected = (functional.rms_norm(X, (D,), weight, 1e-5) @ W_head).log_softmax(-1)
    given = lens(X.requires_grad_(), weight, W_head)
    case.equal(given, expected, "log p")
    case.trains(given, "log p")


@check(logit_lens, see="A prediction after every layer")
def axes_before(lens, case):
    """takes vectors with any axes before the last, or none"""
    N, B, T, D, V = case.sizes(5)
    weight, W_head = case.randn(D), case.randn(D, V)
    for shape in ((D,), (N, B, T, D)):
        X = case.randn(*shape)
        expected = (functional.rms_norm(X, (D,), weight, 1e-5) @ W_head).log_softmax(-1)
        case.equal(lens(X, weight, W_head), expected, f"log p of {tuple(shape)}")


@check(logit_lens, see="A prediction after every layer")
def small_vectors(lens, case):
    """adds ε inside the root, so that a vector of zeros gives equal probabilities"""
    B, D, V = case.sizes(3)
    X, weight, W_head = 0.1 * case.randn(B, D), case.randn(D), case.randn(D, V)
    expected = (functional.rms_norm(X, (D,), weight, 0.5) @ W_head).log_softmax(-1)
    case.equal(lens(X, weight, W_head, 0.5), expected, "log p with ε = 0.5")
    even = torch.full((B, V), -torch.tensor(V).double().log())
    case.equal(lens(0 * X, weight, W_head), even, "log p of zeros")


@check(logit_lens, see="A prediction after every layer")
def large_logits(lens, case):
    """stays finite where logits are in the thousands"""
    B, D, V = case.sizes(3)
    X, weight, W_head = case.randn(B, D), case.randn(D), 3e3 * case.randn(D, V)
    expected = (functional.rms_norm(X, (D,), weight, 1e-5) @ W_head).log_softmax(-1)
    case.equal(lens(X, weight, W_head), expected, "log p")


def draw_parts(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    N, B, T, D, V = case.sizes(5)
    tokens = case.integers(0, V, B, T)
    return case.randn(N, B, T, D), case.randn(D), case.randn(D, V), tokens


def logits_of(X: Tensor, weight: Tensor, W_head: Tensor, tokens: Tensor, eps: float) -> Tensor:
    logits = functional.rms_norm(X, weight.shape, weight, eps) @ W_head
    return logits.gather(-1, tokens[..., None])[..., 0]


@check(direct_logit_attribution, weight=2, see="The logit is a sum", single="N")
def sums_to_the_logit(attribute, case):
    """gives parts whose sum is the logit"""
    parts, weight, W_head, tokens = draw_parts(case)
    given = attribute(parts, weight, W_head, tokens)
    case.shape(given, tuple(parts.shape[:3]), "what each part adds")
    expected = logits_of(parts.sum(dim=0), weight, W_head, tokens, 1e-5)
    case.equal(given.sum(dim=0), expected, "the sum of the parts")


@check(direct_logit_attribution, weight=2, see="The logit is a sum", single="B")
def values(attribute, case):
    """gives each part what autograd says with the scale held fixed"""
    N, B, T, D, V = case.sizes(5)
    parts, weight, W_head = case.randn(N, B, T, D), case.randn(D), case.randn(D, V)
    tokens = case.integers(0, V, B, T)
    for eps in (1e-5, 2.0):
        X = parts.sum(dim=0)
        scale = torch.rsqrt(X.square().mean(dim=-1, keepdim=True) + eps)
        leaf = parts.clone().requires_grad_()
        logits = (leaf.sum(dim=0) * scale * weight) @ W_head
        logits.gather(-1, tokens[..., None]).sum().backward()
        given = attribute(parts.clone().requires_grad_(), weight, W_head, tokens, eps)
        case.equal(given, (leaf.grad * parts).sum(dim=-1), f"what each part adds with ε = {eps}")
        case.trains(given, "what each part adds")


@check(direct_logit_attribution, see="The logit is a sum")
def a_part_that_is_zero(attribute, case):
    """gives a part of zeros nothing, and two halves of a part half of it each"""
    parts, weight, W_head, tokens = draw_parts(case)
    whole = attribute(parts, weight, W_head, tokens)
    more = torch.cat([parts[:-1], parts[-1:] / 2, parts[-1:] / 2, 0 * parts[:1]])
    given = attribute(more, weight, W_head, tokens)
    expected = torch.cat([whole[:-1], whole[-1:] / 2, whole[-1:] / 2, 0 * whole[:1]])
    case.equal(given, expected, "what each part adds, with one in halves and one of zeros")


def draw_patterns(case: Case, *shape: int) -> Tensor:
    """Draw weights, without a causal mask: rows and columns then hold different ones."""
    return case.randn(*shape, shape[-1]).softmax(dim=-1)


@check(previous_token_score, weight=2, see="Two kinds of heads", single="B")
def values(score, case):
    """agrees with a loop over positions"""
    B, H, T = case.sizes(3)
    A = draw_patterns(case, B, H, T)
    T = A.shape[-1]
    expected = sum(A[:, :, t, t - 1] for t in range(1, T)) / (T - 1)
    given = score(A.requires_grad_())
    case.equal(given, expected, "s")
    case.trains(given, "s")


@check(previous_token_score, see="Two kinds of heads")
def certain(score, case):
    """gives 1 to a head that always looks one back, and 0 to one that looks at itself"""
    T = 5 + int(case.integers(0, 4))
    back, itself = torch.eye(T).roll(1, 0).tril(), torch.eye(T)
    back[0, 0] = 1
    case.equal(score(torch.stack([back, itself]).double()), torch.tensor([1.0, 0.0]), "s")
    case.equal(score(back.double()), 1.0, "s of one matrix")
    case.equal(score(back[:2, :2].double()), 1.0, "s of two positions")


@check(previous_token_score, see="Two kinds of heads")
def one_position(score, case):
    """raises ValueError when there is one position"""
    B, H = case.sizes(2)
    case.raises(ValueError, lambda: score(torch.ones(B, H, 1, 1).double()), "T is 1")


@check(induction_score, weight=2, see="Two kinds of heads", single="B")
def values(score, case):
    """agrees with a loop over positions"""
    B, H, T = case.sizes(3, low=4)
    A = draw_patterns(case, B, H, T)
    for period in (T // 2, T - 1, 2):
        expected = sum(A[:, :, t, t - period + 1] for t in range(period, T)) / (T - period)
        given = score(A.clone().requires_grad_(), period)
        case.equal(given, expected, f"s for a period of {period} in {T}")
        case.trains(given, "s")


@check(induction_score, see="Two kinds of heads")
def planted(score, case):
    """finds the induction head of a circuit that is set by hand, and no other"""
    period = 5 + int(case.integers(0, 4))
    block = torch.randperm(period + 2, generator=case.generator)[:period]
    tokens = block.repeat(2)[None]
    model, found = planted_induction(period + 2), []
    for block in model.blocks:
        block.attention.pattern.register_forward_hook(lambda m, i, out: found.append(out[0]))
    model(tokens)
    # The first token has none before it, so its head looks at itself: one query sees two matches.
    expected = torch.stack(found).double()[:, :, torch.arange(period, 2 * period)]
    expected = expected.gather(-1, torch.arange(1, period + 1).expand(2, 2, -1)[..., None])
    case.equal(score(torch.stack(found).double(), period), expected.mean(dim=(-2, -1)), "s")


@check(induction_score, see="Two kinds of heads")
def period_of_one(score, case):
    """takes a text of one token, in which each position looks at itself"""
    T = 4 + int(case.integers(0, 4))
    A = draw_patterns(case, 2, T)
    expected = A.diagonal(0, -2, -1)[:, 1:].mean(dim=-1)
    case.equal(score(A, 1), expected, "s for a period of 1")


@check(induction_score, see="Two kinds of heads")
def periods(score, case):
    """raises ValueError when the period is less than 1, or as long as the text"""
    A = draw_patterns(case, 2, 6)
    for period in (0, -1, 6, 7):
        case.raises(
            ValueError, functools.partial(score, A, period), f"the period is {period} and T is 6"
        )


HOWS = ("zero", "mean", "resampled")


def substitute(z: Tensor, how: str) -> Tensor:
    if how == "mean":
        return z.mean(dim=(0, 1)).expand_as(z)
    return torch.zeros_like(z) if how == "zero" else torch.stack([z[b - 1] for b in range(len(z))])


@check(ablate, weight=3, see="Take a head away")
def values(ablate, case):
    """agrees with a loop over heads, for heads of several layers"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    _, whole, _ = by_hand(weights, tokens)
    for how in HOWS:
        for heads in ([(1, 2)], [(0, 3), (2, 1), (0, 1), (1, 0)]):
            replaced = {head: substitute(whole[head], how) for head in heads}
            expected = by_hand(weights, tokens, replaced)[0]
            given = run(ablate, weights, tokens, heads, how)
            case.equal(given, expected, f"logits without {heads}, {how}")


@check(ablate, see="Take a head away")
def mean_is_usual(ablate, case):
    """puts the mean in the place of a head when nothing is said, also for one sequence"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    for some in (tokens, tokens[:1]):
        _, whole, _ = by_hand(weights, some)
        expected = by_hand(weights, some, {(1, 1): substitute(whole[1, 1], "mean")})[0]
        case.equal(run(ablate, weights, some, [(1, 1)]), expected, "logits without (1, 1)")


@check(ablate, see="Take a head away")
def two_sequences(ablate, case):
    """exchanges a head's outputs when there are two sequences"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    _, whole, _ = by_hand(weights, tokens[:2])
    expected = by_hand(weights, tokens[:2], {(0, 2): whole[0, 2].flip(0)})[0]
    given = run(ablate, weights, tokens[:2], [(0, 2)], "resampled")
    case.equal(given, expected, "logits without (0, 2)")


@check(ablate, see="Take a head away")
def no_head(ablate, case):
    """gives the model's own logits when there is nothing to take away"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    expected = by_hand(weights, tokens)[0]
    for how in HOWS:
        case.equal(run(ablate, weights, tokens, [], how), expected, f"logits without none, {how}")


@check(ablate, see="Take a head away")
def refuses(ablate, case):
    """raises ValueError for another word, and where no other sequence is there"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    for how in ("median", "Mean"):
        case.raises(
            ValueError,
            functools.partial(run, ablate, weights, tokens, [(1, 1)], how),
            f"how is {how!r}",
        )
    case.raises(
        ValueError,
        lambda: run(ablate, weights, tokens[:1], [(1, 1)], "resampled"),
        "a head is resampled and there is one sequence",
    )


@check(patch_activation, weight=2, see="Put a head's output elsewhere", single="B")
def heads_and_positions(patch, case):
    """patches some heads at some positions"""
    (tokens, other), weights = texts(case, 2), draw_weights(case)
    T = tokens.shape[1]
    _, here, _ = by_hand(weights, tokens)
    _, there, _ = by_hand(weights, other)
    where = case.rand(T, H, 1) < 0.5
    where[0, 0], where[-1, 1] = True, False
    replaced = {
        (1, head): torch.where(where[:, head], there[1, head], here[1, head]) for head in range(H)
    }
    given = run(patch, weights, tokens, other, "blocks.1.attention.heads", where)
    case.equal(given, by_hand(weights, tokens, replaced)[0], "logits")


@check(patch_activation, see="Put a head's output elsewhere")
def whole_stream(patch, case):
    """gives the other text's logits where the last layer is patched, and its own elsewhere"""
    (tokens, other), weights = texts(case, 2), draw_weights(case)
    B, T = tokens.shape
    mine, others = by_hand(weights, tokens)[0], by_hand(weights, other)[0]
    half = torch.arange(T)[:, None] >= T // 2  # (T, 1)
    for where, expected, what in (
        (torch.tensor(True), others, "everywhere"),
        (torch.zeros(B, T, D, dtype=torch.bool), mine, "nowhere"),
        (half, torch.where(half, others, mine), "in its second half"),
    ):
        given = run(patch, weights, tokens, other, f"blocks.{L - 1}", where)
        case.equal(given, expected, f"logits with the last layer patched {what}")


@check(patch_activation, see="Put a head's output elsewhere")
def an_early_place(patch, case):
    """lets later layers read the patch"""
    (tokens, other), weights = texts(case, 2), draw_weights(case)
    where = torch.arange(tokens.shape[1])[:, None] == 1
    mixed = torch.where(where[:, 0], other, tokens)
    given = run(patch, weights, tokens, other, "token", where)
    case.equal(given, by_hand(weights, mixed)[0], "logits with the embedding patched at position 1")


@check(patch_activation, see="Put a head's output elsewhere")
def different_texts(patch, case):
    """raises ValueError when the texts differ in shape"""
    (tokens, other), weights = texts(case, 2), draw_weights(case)
    for shorter in (other[:, :1], other[:1]):  # torch itself would broadcast both
        case.raises(
            ValueError,
            functools.partial(run, patch, weights, tokens, shorter, "token", torch.tensor(True)),
            f"the texts are of {tuple(tokens.shape)} and {tuple(shorter.shape)}",
        )


def path_by_hand(weights: Weights, tokens: Tensor, other: Tensor, sender, receiver, into) -> Tensor:
    """Patch one path in the loop over heads."""
    _, here, _ = by_hand(weights, tokens)
    _, there, _ = by_hand(weights, other)
    (layer, head), size = sender, D // H
    W_O = weights[f"blocks.{layer}.attention.W_O"][head * size : (head + 1) * size]
    difference = (there[sender] - here[sender]) @ W_O
    return by_hand(weights, tokens, told=(receiver, into, difference))[0]


@check(path_patch, weight=3, see="From one head to another", single="B")
def values(patch, case):
    """agrees with a loop over heads, into queries, keys and values"""
    (tokens, other), weights = texts(case, 2), draw_weights(case)
    for sender, receiver in (((0, 2), (1, 1)), ((1, 3), (2, 0)), ((0, 1), (2, 3))):
        for into in ("keys", "queries", "values"):
            expected = path_by_hand(weights, tokens, other, sender, receiver, into)
            given = run(patch, weights, tokens, other, sender, receiver, into)
            case.equal(given, expected, f"logits with {sender} → {receiver} patched into {into}")


@check(path_patch, see="From one head to another")
def keys_are_usual(patch, case):
    """patches into the keys when nothing is said"""
    (tokens, other), weights = texts(case, 2), draw_weights(case)
    expected = path_by_hand(weights, tokens, other, (0, 0), (1, 2), "keys")
    case.equal(run(patch, weights, tokens, other, (0, 0), (1, 2)), expected, "logits")


@check(path_patch, see="From one head to another")
def same_text(patch, case):
    """changes nothing when both texts are the same"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    given = run(patch, weights, tokens, tokens, (0, 1), (2, 2), "values")
    case.equal(given, by_hand(weights, tokens)[0], "logits")


@check(path_patch, see="From one head to another")
def planted(patch, case):
    """breaks a circuit that is set by hand by way of the keys, and not of the queries"""
    period = 5 + int(case.integers(0, 3))
    drawn = [torch.randperm(period, generator=case.generator) for _ in range(2)]
    tokens, other = drawn[0].repeat(2)[None], torch.cat([drawn[1], drawn[0]])[None]
    whole = planted_induction(period)(tokens)
    given = run_planted(patch, period, tokens, other, PREVIOUS, INDUCTION, "queries")
    case.equal(given, whole, "logits patched into queries", atol=1e-4)
    given = run_planted(patch, period, tokens, other, PREVIOUS, INDUCTION, "keys")
    case.shape(given, tuple(whole.shape), "logits patched into keys")
    hits = (given[:, period:-1].argmax(-1) == tokens[:, period + 1 :]).double().mean()
    case.that(
        hits < 0.7,
        f"Right guesses in the second copy should be few when keys are patched, yours are {hits}.",
    )


@check(path_patch, see="From one head to another")
def refuses(patch, case):
    """raises ValueError for heads in the wrong order, and for another word"""
    (tokens, other), weights = texts(case, 2), draw_weights(case)
    for sender, receiver, into in (
        ((1, 0), (1, 2), "keys"),
        ((2, 0), (1, 2), "keys"),
        ((0, 0), (1, 2), "key"),
    ):
        case.raises(
            ValueError,
            functools.partial(run, patch, weights, tokens, other, sender, receiver, into),
            f"{sender} is patched into the {into} of {receiver}",
        )


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_hot(numbers: Tensor, size: int) -> Tensor:
    return functional.one_hot(numbers, size).double()


@check(selectivity, weight=2, see="A probe and its control task")
def accuracy(select, case):
    """scores the probe of the labels on rows that are held out"""
    N, classes = 60, 3
    labels = torch.arange(N) % classes
    features = one_hot(labels, classes) @ case.randn(classes, 5) + 0.9 * case.randn(N, 5)
    held_out = torch.randperm(N, generator=case.generator) < 23
    types = case.integers(0, 7, N)
    fitted = features[~held_out], labels[~held_out]
    guesses = linear_probe(*fitted, features[held_out], classes).argmax(dim=1)
    expected = (guesses == labels[held_out]).double().mean()
    result = select(features, labels, types, held_out, classes, seeded(int(case.integers(0, 999))))
    given, control = case.unpack(result, "accuracy", "control")
    case.equal(given, expected, "accuracy")
    case.shape(control, (), "control")


@check(selectivity, weight=2, see="A probe and its control task")
def types_by_heart(select, case):
    """finds the control task solved where features name the type, and not otherwise"""
    N, types_of = 144, 24
    types = torch.arange(N) % types_of
    held_out = torch.arange(N) >= N // 2
    labels = case.integers(0, 2, N)
    seeds = case.integers(0, 999, 4).tolist()
    named = [
        case.unpack(
            select(5 * one_hot(types, types_of), labels, types, held_out, 2, seeded(seed)),
            "accuracy",
            "control",
        )
        for seed in seeds
    ]
    for given, control in named:
        case.equal(control, 1.0, "control where features name the type, and a type has one class,")
        case.that(given < 0.8, f"Accuracy of random labels should be about 0.5, yours is {given}.")
    unnamed = [
        case.unpack(
            select(one_hot(labels, 2), labels, types, held_out, 2, seeded(seed)),
            "accuracy",
            "control",
        )
        for seed in seeds
    ]
    for given, _ in unnamed:
        case.equal(given, 1.0, "accuracy where features name the label")
    mean = float(sum(float(control) for _, control in unnamed)) / len(seeds)
    case.that(
        0.2 < mean < 0.85,
        "Control where features do not name the type should be about 0.5, over four draws, "
        f"yours is {mean:.3f}.",
    )


@check(selectivity, see="A probe and its control task")
def frequencies(select, case):
    """gives the control task classes as frequent as those of the labels"""
    N = 120
    labels = (torch.arange(N) % 10 == 0).long()
    held_out = torch.randperm(N, generator=case.generator) < N // 2
    found = []
    for seed in case.integers(0, 999, 4).tolist():
        result = select(
            torch.zeros(N, 2).double(), labels, torch.arange(N), held_out, 2, seeded(seed)
        )
        _, control = case.unpack(result, "accuracy", "control")
        case.shape(control, (), "control")
        found.append(float(control))
    mean = sum(found) / len(found)
    case.that(
        mean > 0.75,
        "Control where features say nothing should be about 0.9, the share of the commonest "
        f"label, over four draws, yours is {mean:.3f}.",
    )


@check(selectivity, see="A probe and its control task")
def unseen_types(select, case):
    """scores the control task, too, on rows that are held out"""
    N, types_of = 80, 40
    types = torch.arange(N) % types_of
    held_out = types >= types_of // 2  # none of their types is ever fitted
    labels = case.integers(0, 2, N)
    found = []
    for seed in case.integers(0, 999, 4).tolist():
        result = select(3 * one_hot(types, types_of), labels, types, held_out, 2, seeded(seed))
        _, control = case.unpack(result, "accuracy", "control")
        case.shape(control, (), "control")
        found.append(float(control))
    mean = sum(found) / len(found)
    case.that(
        0.1 < mean < 0.9,
        f"Control of types that were never fitted should be about 0.5, yours is {mean:.3f}.",
    )


@check(selectivity, see="A probe and its control task")
def draws(select, case):
    """draws the control task from the generator alone, and anew for each state of it"""
    N, types_of = 90, 30
    types, labels = torch.arange(N) % types_of, case.integers(0, 2, N)
    features, held_out = case.randn(types_of, 6)[types], torch.arange(N) >= 60

    def controls(before: int, seeds: int) -> Tensor:
        torch.manual_seed(before)
        results = [
            select(features, labels, types, held_out, 2, seeded(seed)) for seed in range(seeds)
        ]
        pairs = [case.unpack(result, "accuracy", "control") for result in results]
        for _, control in pairs:
            case.shape(control, (), "control")
        return torch.stack([control for _, control in pairs])

    first = controls(1, 6)
    case.again(controls(2, 2), first[:2], "control of the second call")
    case.that(
        len(first.unique()) > 1,
        f"Controls of six generators should differ, yours are {first.tolist()}.",
    )


@check(selectivity, see="A probe and its control task")
def needs_both(select, case):
    """raises ValueError when no row is held out, or every one"""
    features, labels, types = case.randn(8, 3), torch.arange(8) % 2, torch.arange(8)
    for held_out in (torch.zeros(8, dtype=torch.bool), torch.ones(8, dtype=torch.bool)):
        case.raises(
            ValueError,
            functools.partial(select, features, labels, types, held_out, 2, seeded(0)),
            f"{int(held_out.sum())} of 8 rows are held out",
        )


@check(steering_vector, weight=2, see="Steer", single={"N": 0, "D": 2, "controls": 3})
def values(steer, case):
    """gives the difference of the means, and controls of its length"""
    N, M, D, K = case.sizes(4)
    positive, negative = case.randn(N, D) + 1, 2 * case.randn(M, D)
    v, controls = case.unpack(steer(positive, negative, K, seeded(3)), "v", "controls")
    expected = positive.mean(dim=0) - negative.mean(dim=0)
    case.equal(v, expected, "v")
    case.shape(controls, (K, D), "controls")
    case.equal(controls.norm(dim=1), expected.norm().expand(K), "lengths of the controls")
    case.that(
        controls.dtype == v.dtype,
        f"The controls' dtype should be that of v, {v.dtype}, yours is {controls.dtype}.",
    )


@check(steering_vector, see="Steer")
def every_direction(steer, case):
    """draws controls from all directions alike"""
    D, K = 3, 6000
    positive, negative = case.randn(4, D) + 2, case.randn(5, D)
    _, controls = case.unpack(steer(positive, negative, K, seeded(1)), "v", "controls")
    case.shape(controls, (K, D), "controls")
    units = controls.double() / (positive.mean(dim=0) - negative.mean(dim=0)).norm()
    for power, expected in ((1, 0.0), (2, 1 / D), (4, 3 / (D * (D + 2)))):
        found = units.pow(power).mean(dim=0)
        case.that(
            (found - expected).abs().max() < 0.02,
            f"Entries of unit controls to the power of {power} should be {expected:.3f} on average"
            f", yours are {[round(x, 3) for x in found.tolist()]}.",
        )
    crossed = (units.T @ units / K).fill_diagonal_(0).abs().max()
    case.that(crossed < 0.02, f"Products of entries should be 0 on average, yours are {crossed}.")


@check(steering_vector, see="Steer")
def draws(steer, case):
    """draws the controls from the generator alone"""
    D, K = 6, 4
    positive, negative = case.randn(3, D), case.randn(5, D)

    def controls(before: int, seed: int) -> Tensor:
        torch.manual_seed(before)
        _, drawn = case.unpack(steer(positive, negative, K, seeded(seed)), "v", "controls")
        case.shape(drawn, (K, D), "controls")
        return drawn

    first = controls(1, 5)
    case.again(controls(2, 5), first, "controls of the second call")
    case.that(
        not torch.allclose(controls(1, 6), first),
        "Controls of another generator should differ, yours are the same.",
    )


def draw_autoencoder(case: Case, D: int, M: int) -> Weights:
    return {
        "W_dec": case.randn(M, D),
        "W_enc": case.randn(D, M),
        "b_enc": case.randn(M),
        "b_dec": case.randn(D),
    }


def code_by_hand(w: Weights, X: Tensor, k: int | None) -> Tensor:
    """Encode vector by vector, with a sort in place of a choice."""
    f = ((X - w["b_dec"]) @ w["W_enc"] + w["b_enc"]).clamp(min=0)
    if k is not None:
        f = torch.where(f >= f.sort(dim=-1).values[..., -k, None], f, 0)
    return f


@together
def encoded(student, weights: Weights, X: Tensor, *sizes) -> Tensor:
    """Encode vectors with known weights."""
    return made(student, weights, *sizes).encode(X)


@check(SparseAutoencoder, weight=3, see="A dictionary that is larger than the space", single="B")
def values(autoencoders, case):
    """encodes and decodes, with ReLU alone and with the k largest"""
    B, T, D, M = case.sizes(4, low=3)
    X, w = 2 * case.randn(B, T, D), draw_autoencoder(case, D, M)
    for k in (None, 2, 1, M):
        f = code_by_hand(w, X, k)
        case.equal(encoded(autoencoders, w, X, D, M, k), f, f"f with k = {k}")
        Y, given = case.unpack(made(autoencoders, w, D, M, k)(X), "x̂", "f")
        case.equal(given, f, f"f with k = {k}")
        case.equal(Y, f @ w["W_dec"] + w["b_dec"], f"x̂ with k = {k}")


@check(SparseAutoencoder, see="A dictionary that is larger than the space")
def equal_entries(autoencoders, case):
    """keeps k of the entries where more than k are equal"""
    B, D, M = case.sizes(3, low=4)
    w = draw_autoencoder(case, D, M) | {"W_enc": torch.zeros(D, M), "b_enc": torch.ones(M)}
    f = encoded(here(autoencoders), w, case.randn(B, D), D, M, 2)
    case.shape(f, (B, M), "f")
    count = (f != 0).sum(dim=1)
    case.that(
        (count == 2).all(),
        f"Entries kept of equal ones with k = 2 should be 2, yours are {count.tolist()}.",
    )


@check(SparseAutoencoder, weight=2, see="A dictionary that is larger than the space")
def losses(autoencoders, case):
    """counts squared errors, and each direction by its length"""
    B, T, D, M = case.sizes(4)
    X, w = case.randn(B, T, D), draw_autoencoder(case, D, M)
    for k, penalty in ((None, 0.0), (None, 0.7), (2, 0.3)):
        f = code_by_hand(w, X, k)
        error = ((X - f @ w["W_dec"] - w["b_dec"]) ** 2).sum(dim=-1)
        lengths = (w["W_dec"] ** 2).sum(dim=1).sqrt()
        expected = (error + penalty * (f * lengths).sum(dim=-1)).mean()
        given = made(autoencoders, w, D, M, k).loss(X, penalty)
        case.equal(given, expected, f"L with k = {k} and a penalty of {penalty}")
    free = made(autoencoders, w, D, M, None).loss(X)
    f = code_by_hand(w, X, None)
    expected = ((X - f @ w["W_dec"] - w["b_dec"]) ** 2).sum(dim=-1).mean()
    case.equal(free, expected, "L without a penalty")


@check(SparseAutoencoder, see="A dictionary that is larger than the space")
def gradients(autoencoders, case):
    """passes the loss's gradients back to all four parameters"""
    B, D, M = case.sizes(3, low=3)
    X, w = 2 * case.randn(B, D), draw_autoencoder(case, D, M)
    for k in (None, 2):
        leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
        f = code_by_hand(leaves, X, k)
        error = ((X - f @ leaves["W_dec"] - leaves["b_dec"]) ** 2).sum(dim=-1)
        loss = (error + 0.5 * f @ (leaves["W_dec"] ** 2).sum(dim=1).sqrt()).mean()
        expected = torch.autograd.grad(loss, [*leaves.values()])
        module = made(autoencoders, w, D, M, k)
        given = module.loss(X, 0.5)
        case.trains(given, "L")
        given.backward()
        parameters = dict(module.named_parameters())
        for name, gradient in zip(leaves, expected, strict=True):
            case.gradient(parameters[name], gradient, name)


@together
def started(student, seed: int, *sizes) -> Weights:
    """Make an autoencoder, and read its parameters."""
    torch.manual_seed(seed)
    return {name: value.detach() for name, value in student(*sizes).named_parameters()}


@check(SparseAutoencoder, see="A dictionary that is larger than the space")
def starts(autoencoders, case):
    """starts with random rows of length 1, the encoder as the decoder's transpose, and zeros"""
    D, M = case.sizes(2)
    w = started(autoencoders, 1, D, M)
    case.that(
        sorted(w) == ["W_dec", "W_enc", "b_dec", "b_enc"],
        f"Parameters should be W_dec, W_enc, b_dec and b_enc, yours are {sorted(w)}.",
    )
    case.shape(w["W_dec"], (M, D), "W_dec")
    case.equal(w["W_dec"].norm(dim=1), torch.ones(M), "lengths of the rows of W_dec")
    case.equal(w["W_enc"], w["W_dec"].T, "W_enc")
    case.equal(w["b_enc"], torch.zeros(M), "b_enc")
    case.equal(w["b_dec"], torch.zeros(D), "b_dec")
    rows = started(autoencoders, 2, 3, 6000)["W_dec"]
    case.shape(rows, (6000, 3), "W_dec")
    for power, expected in ((1, 0.0), (2, 1 / 3), (4, 1 / 5)):
        found = rows.pow(power).mean(dim=0)
        case.that(
            (found - expected).abs().max() < 0.02,
            f"Entries of W_dec to the power of {power} should be {expected:.3f} on average, yours "
            f"are {[round(x, 3) for x in found.tolist()]}.",
        )


@together
def after_a_step(student, *sizes) -> tuple[Tensor, Tensor]:
    """Change W_dec in place, as an optimiser does, and read W_enc before and after."""
    module = student(*sizes)
    before = module.W_enc.detach().clone()
    with torch.no_grad():
        module.W_dec.add_(1)
    return before, module.W_enc.detach().clone()


@check(SparseAutoencoder, see="A dictionary that is larger than the space")
def two_matrices(autoencoders, case):
    """keeps W_enc when a step of training changes W_dec"""
    before, after = after_a_step(autoencoders, 4, 5)
    case.that(
        torch.equal(before, after),
        "W_enc should stay as it is when W_dec changes, yours changes, too.",
    )


@check(SparseAutoencoder, see="A dictionary that is larger than the space")
def refuses(autoencoders, case):
    """raises ValueError when k is less than 1 or more than M"""
    for k in (0, -1, 6):
        case.raises(ValueError, functools.partial(autoencoders, 4, 5, k), f"k is {k} and M is 5")


@check(toy_superposition, weight=2, see="Optional: more features than dimensions", single="B")
def values(toy, case):
    """agrees with a loop over rows and features"""
    B, F, D = case.sizes(3)
    X, W, b, importance = case.rand(B, F), case.randn(F, D), case.randn(F), case.rand(F)
    expected = torch.zeros(B, F).double()
    loss = 0.0
    for n in range(B):
        h = sum(X[n, i] * W[i] for i in range(F))
        for i in range(F):
            expected[n, i] = max(0.0, float(h @ W[i] + b[i]))
            loss += float(importance[i] * (X[n, i] - expected[n, i]) ** 2) / B
    Y, given = case.unpack(toy(X, W, b, importance), "x̂", "L")
    case.equal(Y, expected, "x̂")
    case.equal(given, loss, "L")


@check(toy_superposition, see="Optional: more features than dimensions")
def gradients(toy, case):
    """passes gradients back to W and b"""
    B, F, D = case.sizes(3)
    X, importance = case.rand(B, F), case.rand(F)
    inputs = [case.randn(F, D).requires_grad_(), case.randn(F).requires_grad_()]
    W, b = inputs
    Y = torch.einsum("bf,fd,gd->bg", X, W, W) + b
    loss = (importance * (X - Y.clamp(min=0)) ** 2).mean(dim=0).sum()
    expected = torch.autograd.grad(loss, inputs)
    _, given = case.unpack(toy(X, W, b, importance), "x̂", "L")
    case.trains(given, "L")
    given.backward()
    for name, tensor, gradient in zip("Wb", inputs, expected, strict=True):
        case.gradient(tensor, gradient, name)


@check(toy_superposition, see="Optional: more features than dimensions")
def enough_room(toy, case):
    """costs nothing where every feature has a dimension of its own"""
    B, F = case.sizes(2)
    X = case.rand(B, F)
    Y, loss = case.unpack(
        toy(X, torch.eye(F).double(), torch.zeros(F).double(), case.rand(F)), "x̂", "L"
    )
    case.equal(Y, X, "x̂")
    case.equal(loss, 0.0, "L")


def seen_through(X: Tensor, weight: Tensor, W_head: Tensor, eps: float = 1e-5) -> Tensor:
    """Compute the lens by torch's rms_norm, which demands a weight of the right size."""
    normalised = functional.rms_norm(X, X.shape[-1:], weight, eps)
    return (normalised @ W_head).log_softmax(-1)


@check(logit_lens_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "logit_lens", seen_through)
