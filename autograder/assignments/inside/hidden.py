"""Hidden checks of inside: the properties of the visible ones, seen from another side."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.inside import SIZES, by_hand, draw_weights, encoded, run, texts
from course_pkg.inside import (
    SparseAutoencoder,
    ablate,
    direct_logit_attribution,
    logit_lens_fault,
    patch_activation,
)


@check(direct_logit_attribution, see="The logit is a sum")
def order_of_parts(attribute, case):
    """gives the same when the parts come in another order"""
    N, B, T, D, V = case.sizes(5)
    parts, weight, W_head = case.randn(N, B, T, D), case.randn(D), case.randn(D, V)
    tokens = case.integers(0, V, B, T)
    whole = attribute(parts, weight, W_head, tokens)
    case.shape(whole, (N, B, T), "what each part adds")
    turned = attribute(parts.flip(0), weight, W_head, tokens)
    case.equal(turned.flip(0), whole.detach(), "what each part adds, in another order")
    scaled = attribute(1e3 * parts, weight, W_head, tokens, 0.0)
    exact = attribute(parts, weight, W_head, tokens, 0.0)
    case.shape(exact, (N, B, T), "what each part adds")
    case.equal(scaled, exact.detach(), "what parts a thousand times as large add with ε = 0")


@check(ablate, see="Take a head away")
def whole_layer(ablate, case):
    """without all heads of a layer, gives what the model gives with W_O = 0"""
    (tokens,), weights = texts(case, 1), draw_weights(case)
    name = "blocks.1.attention.W_O"
    expected = by_hand({**weights, name: torch.zeros_like(weights[name])}, tokens)[0]
    everyone = [(1, head) for head in range(SIZES[2])]
    case.equal(run(ablate, weights, tokens, everyone, "zero"), expected, "logits without layer 1")


@check(patch_activation, see="Put a head's output elsewhere")
def back_and_forth(patch, case):
    """leaves no trace of a patch at positions before it"""
    (tokens, other), weights = texts(case, 2), draw_weights(case)
    late = torch.arange(tokens.shape[1])[:, None] >= 4
    given = run(patch, weights, tokens, other, "blocks.0", late)
    case.shape(given, (*tokens.shape, SIZES[0]), "logits")
    case.equal(given[:, :4], by_hand(weights, tokens)[0][:, :4], "logits before the patch")


@check(SparseAutoencoder, see="A dictionary that is larger than the space")
def at_most_k(autoencoders, case):
    """keeps at most k entries of each vector, in any batch that the vector is in"""
    B, D, M = case.sizes(3, low=4)
    X = 3 * case.randn(B, D)
    weights = {"W_dec": case.randn(M, D), "W_enc": case.randn(D, M)}
    weights |= {"b_enc": case.randn(M), "b_dec": case.randn(D)}
    f = encoded(autoencoders, weights, X, D, M, 3)
    case.shape(f, (B, M), "f")
    most = int((f != 0).sum(dim=1).max())
    case.that(most <= 3, f"Entries kept of a vector should be 3 at most, yours are {most}.")
    alone = encoded(autoencoders, weights, X[1:2], D, M, 3)
    case.equal(alone, f[1:2].detach(), "f of one vector alone")


@check(logit_lens_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "C")
