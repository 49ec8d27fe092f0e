"""Hidden checks of transformer: gradients, the identity, single sentences."""

import torch
from torch.nn import functional as F

from course_pkg.checking.batched import made
from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks import transformer as visible
from course_pkg.data.translation import EOS
from course_pkg.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    greedy_translate,
    label_smoothing_loss,
    layer_norm,
    layer_norm_fault,
)


@check(layer_norm, see="Layer norm")
def gradients(norm, case):
    """passes gradients to X, gain and bias as torch's layer_norm does"""
    X, gain, bias = (value.requires_grad_() for value in visible.to_normalise(case))
    expected = F.layer_norm(X, gain.shape, gain, bias)
    visible.back(case, norm(X, gain, bias), expected, {"X": X, "gain": gain, "bias": bias})


@check(layer_norm_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "E")


@check(FeedForward, see="Each vector for itself")
def gradients(network, case):
    """passes gradients to X as torch's layers do"""
    B, T, D, D_ff = case.sizes(4)
    state, X = visible.feed_forward_state(case, D, D_ff), case.randn(B, T, D).requires_grad_()
    ours = made(network, state, D, D_ff)
    visible.back(case, ours(X), visible.two_linears(state)(X), {"X": X})
    case.learns(ours)


@check(EncoderLayer, see="Post-LN and pre-LN")
def gradients(layer, case):
    """passes gradients to X as torch's layers do, in both orders"""
    for pre_norm in (False, True):
        ours, theirs, X, mask, H = visible.encoder_layer(case, layer, pre_norm)
        X.requires_grad_()
        expected = theirs(X, visible.forbidden(mask, len(X), H))
        visible.back(case, ours(X, mask), expected, {"X": X})
        case.learns(ours)


@check(DecoderLayer, see="The decoder's layer")
def identity(layer, case):
    """in pre-LN, returns its input when all parts return zero"""
    B, M, N, H, D_h, D_ff = case.sizes(6, low=3)
    state = visible.layer_state(case, H * D_h, D_ff, visible.DECODER)
    for part in ("self_attention.%s_O", "cross_attention.%s_O", "feed_forward.%s_2"):
        for kind in "Wb":
            state[part % kind] = torch.zeros_like(state[part % kind])
    Y, memory = case.randn(B, M, H * D_h), case.randn(B, N, H * D_h)
    case.equal(made(layer, state, H * D_h, H, D_ff, True)(Y, memory), Y, "Y")


@check(label_smoothing_loss, see="Do not be too sure")
def gradient(loss, case):
    """passes gradients to the logits as torch's cross_entropy does"""
    logits, targets = visible.smoothing_case(case)
    logits.requires_grad_()
    visible.back(
        case,
        loss(logits, targets, 0.3),
        visible.torchs_loss(logits, targets, 0.3),
        {"logits": logits},
    )


@check(greedy_translate, see="Write word by word")
def one_sentence(translate, case):
    """translates one sentence, and stops after its EOS"""
    expected = torch.empty(1, 0)
    while not (expected == EOS).any():  # some models never say it
        model, X, lengths = visible.greedy_case(case, end=2.0)
        X, lengths = X[lengths.argmax(), None], lengths.max()[None]
        expected = visible.greedy_by_hand(model, X, lengths, 40)
    case.equal(translate(model, X, lengths, 40), expected, "words")
