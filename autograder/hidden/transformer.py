"""Hidden checks of transformer: gradients, extremes, defaults, settings, errors."""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_pkg.checking.case import Case
from course_pkg.checking.models import SmallTranslator
from course_pkg.checking.registry import check
from course_pkg.checking.together import made
from course_pkg.checks.transformer import (
    DECODER,
    KINDS,
    compare_counts,
    decoder_layer,
    encoder_layer,
    feed_forward_state,
    forbidden,
    greedy_by_hand,
    greedy_case,
    layer_state,
    smoothing_case,
    some_mask,
    some_models,
    to_normalise,
    torchs_layer,
    torchs_loss,
    translators,
    two_linears,
)
from course_pkg.data.translation import EOS
from course_pkg.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Transformer,
    count_parameters,
    greedy_translate,
    label_smoothing_loss,
    layer_norm,
    noam_lr,
)


def back(case: Case, given: Tensor, expected: Tensor, inputs: dict[str, Tensor]) -> None:
    """Go back from the student's output, and compare the gradients with those of `expected`."""
    seen = case.randn(*expected.shape)
    case.shape(given, tuple(expected.shape), "output")
    gradients = torch.autograd.grad(expected, list(inputs.values()), seen)
    case.trains(given, "the output")
    given.backward(seen)
    for (name, tensor), gradient in zip(inputs.items(), gradients, strict=True):
        case.gradient(tensor, gradient, name)


@check(layer_norm, see="Layer norm")
def gradients(norm, case):
    """passes gradients to X, gain and bias as torch's layer_norm does"""
    X, gain, bias = (value.requires_grad_() for value in to_normalise(case))
    expected = F.layer_norm(X, gain.shape, gain, bias)
    back(case, norm(X, gain, bias), expected, {"X": X, "gain": gain, "bias": bias})


@check(layer_norm, see="Layer norm")
def constant(norm, case):
    """gives the bias for a vector of equal numbers, and a gradient, not NaN"""
    X, gain, bias = to_normalise(case)
    X = torch.full_like(X, 0.5).requires_grad_()
    Y = norm(X, gain, bias)
    case.equal(Y, bias.expand_as(X), "Y")
    back(case, Y, F.layer_norm(X, gain.shape, gain, bias), {"X": X})


@check(layer_norm, see="Layer norm")
def axes(norm, case):
    """accepts one vector, and a batch of two axes"""
    X, gain, bias = to_normalise(case)
    expected = F.layer_norm(X, gain.shape, gain, bias)
    case.equal(norm(X[0, 0], gain, bias), expected[0, 0], "Y of one vector")
    case.equal(norm(X[None], gain, bias), expected[None], "Y of a batch with two axes")


@check(FeedForward, see="Each vector for itself")
def default_size(network, case):
    """is 4 D wide in the middle unless told otherwise"""
    B, T, D = case.sizes(3)
    state, X = feed_forward_state(case, D, 4 * D), case.randn(B, T, D)
    case.equal(made(network, state, D)(X), two_linears(state)(X), "Y")


@check(FeedForward, see="Each vector for itself")
def axes(network, case):
    """accepts one vector, and a batch of two axes"""
    B, T, D, D_ff = case.sizes(4)
    state, X = feed_forward_state(case, D, D_ff), case.randn(B, T, D)
    ours, expected = made(network, state, D, D_ff), two_linears(state)(X)
    case.equal(ours(X[0, 0]), expected[0, 0], "Y of one vector")
    case.equal(ours(X[None]), expected[None], "Y of a batch with two axes")


@check(FeedForward, see="Each vector for itself")
def gradients(network, case):
    """passes gradients to X as torch's layers do"""
    B, T, D, D_ff = case.sizes(4)
    state, X = feed_forward_state(case, D, D_ff), case.randn(B, T, D).requires_grad_()
    ours = made(network, state, D, D_ff)
    back(case, ours(X), two_linears(state)(X), {"X": X})
    case.learns(ours)


@check(EncoderLayer, see="Post-LN and pre-LN")
def gradients(layer, case):
    """passes gradients to X as torch's layers do, in both orders"""
    for pre_norm in (False, True):
        ours, theirs, X, mask, H = encoder_layer(case, layer, pre_norm)
        X.requires_grad_()
        expected = theirs(X, forbidden(mask, len(X), H))
        back(case, ours(X, mask), expected, {"X": X})
        case.learns(ours)


@check(EncoderLayer, see="Post-LN and pre-LN")
def padding(layer, case):
    """gives the words of a sentence the same output, however much padding follows them"""
    for pre_norm in (False, True):
        ours, _, X, _, _ = encoder_layer(case, layer, pre_norm)
        N = X.shape[1]
        longer = torch.cat([X, 3 * case.randn(len(X), 2, X.shape[2])], dim=1)
        mask = (torch.arange(N + 2) < N).expand(len(X), 1, N + 2)
        first = ours(X)
        case.shape(first, tuple(X.shape), "X")
        case.equal(ours(longer, mask)[:, :N], first, "X of the words")


@check(EncoderLayer, see="Post-LN and pre-LN")
def one_mask(layer, case):
    """accepts one mask for all sentences"""
    ours, theirs, X, mask, H = encoder_layer(case, layer, False)
    expected = theirs(X, forbidden(mask[0], len(X), H))
    case.equal(ours(X, mask[0]), expected, "X under one mask")


@check(DecoderLayer, see="The decoder's layer")
def gradients(layer, case):
    """passes gradients to target and memory as torch's layers do, in both orders"""
    for pre_norm in (False, True):
        ours, theirs, Y, memory, mask, allowed, H = decoder_layer(case, layer, pre_norm)
        Y, memory = Y.requires_grad_(), memory.requires_grad_()
        hidden = forbidden(allowed, len(Y), H)
        expected = theirs(Y, memory, tgt_mask=~mask, memory_mask=hidden)
        back(case, ours(Y, memory, mask, allowed), expected, {"memory": memory, "Y": Y})
        case.learns(ours)


@check(DecoderLayer, see="The decoder's layer")
def any_masks(layer, case):
    """uses the masks as they are, even one that is not causal, and where M = N"""
    B, N, H, D_h, D_ff = case.sizes(5, low=3)
    state = layer_state(case, H * D_h, D_ff, DECODER)
    ours, theirs = made(layer, state, H * D_h, H, D_ff), torchs_layer(state, H, False, DECODER)
    Y, memory = case.randn(2, B, N, H * D_h)
    mask, allowed = (some_mask(case, B, N, N) for _ in range(2))
    hidden = {"tgt_mask": forbidden(mask, B, H), "memory_mask": forbidden(allowed, B, H)}
    case.equal(ours(Y, memory, mask, allowed), theirs(Y, memory, **hidden), "Y")


@check(DecoderLayer, see="The decoder's layer")
def identity(layer, case):
    """in pre-LN, returns its input when all parts return zero"""
    B, M, N, H, D_h, D_ff = case.sizes(6, low=3)
    state = layer_state(case, H * D_h, D_ff, DECODER)
    for part in ("self_attention.%s_O", "cross_attention.%s_O", "feed_forward.%s_2"):
        for kind in "Wb":
            state[part % kind] = torch.zeros_like(state[part % kind])
    Y, memory = case.randn(B, M, H * D_h), case.randn(B, N, H * D_h)
    case.equal(made(layer, state, H * D_h, H, D_ff, True)(Y, memory), Y, "Y")


@check(DecoderLayer, see="The decoder's layer")
def alone(layer, case):
    """translates one word of one sentence"""
    H, D_h, D_ff = case.sizes(3, low=3)
    state = layer_state(case, H * D_h, D_ff, DECODER)
    theirs, Y, memory = torchs_layer(state, H, False, DECODER), *case.randn(2, 1, 1, H * D_h)
    case.equal(made(layer, state, H * D_h, H, D_ff)(Y, memory), theirs(Y, memory), "Y")


@check(Transformer, see="The whole model")
def padding(transformer, case):
    """predicts the same, whatever the source's padding holds and however long it is"""
    ours, theirs, X, lengths, mask, Y = translators(case, transformer, pre_norm=False)
    logits = ours(X, lengths, Y)
    case.that(isinstance(logits, Tensor), "logits should be a tensor, yours is not.")
    other = torch.where(mask, X, case.integers(0, 4, *X.shape))
    other = torch.cat([other, case.integers(0, 4, len(X), 3)], dim=1)
    case.equal(ours(other, lengths, Y), logits.detach(), "logits")
    memory, given = case.unpack(ours.encode(other, lengths), "memory", "mask")
    case.equal(given, F.pad(mask, (0, 3))[:, None], "mask of a batch wider than its sentences")
    D = theirs.state["source_table"].shape[1]
    case.shape(memory, (*other.shape, D), "memory of a batch wider than its sentences")


@check(Transformer, see="Words become vectors")
def kind(transformer, case):
    """gives vectors of the table's type"""
    B, T, H, V = case.sizes(4)
    ours = transformer(V, V, 2 * H, H, 1)
    words, table = case.integers(0, V, B, T), case.randn(V, 2 * H)
    for dtype in (torch.float64, torch.float16):
        X = ours.embed(words, table.to(dtype))
        case.shape(X, (B, T, 2 * H), "vectors")
        case.that(X.dtype == dtype, f"vectors should be {dtype} as the table is, yours {X.dtype}.")


@check(Transformer, see="One table or three")
def shared(transformer, case):
    """uses one table three times when told to, and learns it once"""
    B, N, M, H, V, D_ff = case.sizes(6, low=4)
    ours = transformer(V, V, 2 * H, H, 1, D_ff, False, True).double()
    tables = ("source_table", "target_table", "output_table")
    names = [name for name, _ in ours.named_parameters() if name in tables]
    case.equal(len(names), torch.tensor(1), "number of tables")
    X, Y = case.integers(0, V, B, N), case.integers(0, V, B, M)
    lengths = torch.full((B,), N)
    state = {name: value.clone() for name, value in ours.state_dict().items()}
    logits = ours(X, lengths, Y)
    separate = made(transformer, state, V, V, 2 * H, H, 1, D_ff)
    expected = separate(X, lengths, Y)
    case.that(isinstance(expected, Tensor), "logits should be a tensor, yours is not.")
    case.equal(logits, expected.detach(), "logits")
    case.raises(ValueError, lambda: transformer(V, V + 1, 8, 2, 1, shared=True), "tables differ")


@check(count_parameters, see="Where the parameters are")
def default_width(count, case):
    """counts a width of 4 D unless told otherwise"""
    models = [sizes[:4] for sizes in some_models(case)]
    for kind in KINDS:
        compare_counts(case, count, models, kind)


@check(noam_lr, see="Warm up, then slow down")
def paper(schedule, case):
    """is 7e-4 at most for the paper's base model, and 4000 steps of warm-up are the default"""
    for step in (1, 400, 4000, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        given = schedule(step, 512)
        case.equal(given, torch.tensor(expected).double(), f"rate at step {step}", rtol=1e-9)
    case.equal(schedule(9, 16, 1), torch.tensor(1 / 12).double(), "rate without warm-up")


@check(label_smoothing_loss, see="Do not be too sure")
def gradient(loss, case):
    """passes gradients to the logits as torch's cross_entropy does"""
    logits, targets = smoothing_case(case)
    logits.requires_grad_()
    back(case, loss(logits, targets, 0.3), torchs_loss(logits, targets, 0.3), {"logits": logits})


@check(label_smoothing_loss, see="Do not be too sure")
def loud(loss, case):
    """is finite, not NaN, for logits in the thousands"""
    logits, targets = smoothing_case(case)
    case.equal(loss(1e4 * logits, targets), torchs_loss(1e4 * logits, targets, 0.1), "loss")


@check(label_smoothing_loss, see="Do not be too sure")
def one_sentence(loss, case):
    """accepts logits of one sentence"""
    logits, targets = smoothing_case(case)
    expected = torchs_loss(logits[0], targets[0], 0.1)
    case.equal(loss(logits[0], targets[0]), expected, "loss of one sentence")


@check(greedy_translate, see="Write word by word")
def one_sentence(translate, case):
    """translates one sentence, and stops after its EOS"""
    expected = torch.empty(1, 0)
    while not (expected == EOS).any():  # some models never say it
        model, X, lengths = greedy_case(case, end=2.0)
        X, lengths = X[lengths.argmax(), None], lengths.max()[None]
        expected = greedy_by_hand(model, X, lengths, 40)
    case.equal(translate(model, X, lengths, 40), expected, "words")


@check(greedy_translate, see="Write word by word")
def encodes_once(translate, case):
    """encodes a source once, not at every step: here each call gives another memory"""
    model, X, lengths = greedy_case(case, end=-50.0)
    model = SmallTranslator([*model, torch.tensor(3.0)])
    for one in range(4):  # the words of a single one may happen to be the same
        written = []
        for write in (translate, greedy_by_hand):
            torch.manual_seed(3)
            written.append(write(model, X[one, None], lengths[one, None], 8))
        case.equal(written[0], written[1], "words of a source that is encoded once")


@check(greedy_translate, see="Write word by word")
def one_word(translate, case):
    """writes one word when no more are allowed"""
    model, X, lengths = greedy_case(case, end=0.0)
    case.equal(translate(model, X, lengths, 1), greedy_by_hand(model, X, lengths, 1), "words")
