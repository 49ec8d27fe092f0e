"""Hidden checks of transformer: gradients, extremes, defaults, settings, errors."""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.checks.transformer import (
    DECODER,
    KINDS,
    compare_counts,
    count_sizes,
    decoder_layer,
    encoder_layer,
    feed_forward_state,
    forbidden,
    greedy_by_hand,
    greedy_case,
    layer_state,
    load,
    smoothing_case,
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
    """gives the bias, and not NaN, for a vector of equal numbers"""
    X, gain, bias = to_normalise(case)
    X = torch.full_like(X, 0.5)
    case.equal(norm(X, gain, bias), bias.expand_as(X), "Y")


@check(layer_norm, see="Layer norm")
def epsilon(norm, case):
    """adds ε to the variance, inside the root"""
    X, gain, bias = to_normalise(case)
    for eps in (0.3, 2.0):
        expected = F.layer_norm(X, gain.shape, gain, bias, eps)
        case.equal(norm(X, gain, bias, eps), expected, f"Y with ε = {eps}")


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
    case.equal(load(network(D), state)(X), two_linears(state)(X), "Y")


@check(FeedForward, see="Each vector for itself")
def gradients(network, case):
    """passes gradients to X as torch's layers do"""
    B, T, D, D_ff = case.sizes(4)
    state, X = feed_forward_state(case, D, D_ff), case.randn(B, T, D).requires_grad_()
    back(case, load(network(D, D_ff), state)(X), two_linears(state)(X), {"X": X})


@check(EncoderLayer, see="Post-LN and pre-LN")
def gradients(layer, case):
    """passes gradients to X as torch's layers do, in both orders"""
    for pre_norm in (False, True):
        ours, theirs, X, mask, H = encoder_layer(case, layer, pre_norm)
        X.requires_grad_()
        expected = theirs(X, forbidden(mask, len(X), H))
        back(case, ours(X, mask), expected, {"X": X})


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


@check(DecoderLayer, see="The decoder's layer")
def identity(layer, case):
    """in pre-LN, returns its input when all parts return zero"""
    B, M, N, H, D_h, D_ff = case.sizes(6, low=3)
    state = layer_state(case, H * D_h, D_ff, DECODER)
    for part in ("self_attention.%s_O", "cross_attention.%s_O", "feed_forward.%s_2"):
        for kind in "Wb":
            state[part % kind] = torch.zeros_like(state[part % kind])
    Y, memory = case.randn(B, M, H * D_h), case.randn(B, N, H * D_h)
    case.equal(load(layer(H * D_h, H, D_ff, True), state)(Y, memory), Y, "Y")


@check(DecoderLayer, see="The decoder's layer")
def alone(layer, case):
    """translates one word of one sentence"""
    H, D_h, D_ff = case.sizes(3, low=3)
    state = layer_state(case, H * D_h, D_ff, DECODER)
    theirs, Y, memory = torchs_layer(state, H, False, DECODER), *case.randn(2, 1, 1, H * D_h)
    case.equal(load(layer(H * D_h, H, D_ff), state)(Y, memory), theirs(Y, memory), "Y")


@check(Transformer, see="The whole model")
def padding(transformer, case):
    """predicts the same, whatever the source's padding holds and however long it is"""
    ours, _, X, lengths, mask, Y = translators(case, transformer, pre_norm=False)
    logits = ours(X, lengths, Y)
    case.that(isinstance(logits, Tensor), "logits should be a tensor, yours is not.")
    other = torch.where(mask, X, case.integers(0, 4, *X.shape))
    other = torch.cat([other, case.integers(0, 4, len(X), 3)], dim=1)
    case.equal(ours(other, lengths, Y), logits.detach(), "logits")


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
    separate = load(transformer(V, V, 2 * H, H, 1, D_ff), state)
    expected = separate(X, lengths, Y)
    case.that(isinstance(expected, Tensor), "logits should be a tensor, yours is not.")
    case.equal(logits, expected.detach(), "logits")
    case.raises(ValueError, lambda: transformer(V, V + 1, 8, 2, 1, shared=True), "tables differ")


@check(Transformer, see="The whole model")
def gradients(transformer, case):
    """passes gradients to every parameter as torch's layers do"""
    for pre_norm in (False, True):
        ours, theirs, X, lengths, mask, Y = translators(case, transformer, pre_norm)
        theirs.state = {name: value.requires_grad_() for name, value in theirs.state.items()}
        expected = theirs.decode(Y, theirs.encode(X, mask), mask)
        seen = case.randn(*expected.shape)
        names = ["source_table", "target_table", "output_table"]
        names += ["gains", "biases"] if pre_norm else []
        wanted = torch.autograd.grad(expected, [theirs.state[name] for name in names], seen)
        logits = ours(X, lengths, Y)
        case.shape(logits, tuple(expected.shape), "logits")
        case.trains(logits, "the logits")
        logits.backward(seen)
        own = dict(ours.named_parameters())
        for name, gradient in zip(names, wanted, strict=True):
            case.that(own[name].grad is not None, f"No gradient reaches {name}.")
            case.equal(own[name].grad, gradient, f"gradient of {name}", rtol=1e-4, atol=1e-4)


@check(count_parameters, see="Where the parameters are")
def settings(count, case):
    """counts pre-LN's two norms, shared tables, and a width of 4 D"""
    models = []
    for _ in range(2):
        V, _, D, layers, D_ff = count_sizes(case)
        models += [(V, V, D, layers, D_ff, p, s) for p in (False, True) for s in (False, True)]
    for kind in KINDS:
        compare_counts(case, count, models, kind)
    compare_counts(case, count, [sizes[:4] for sizes in some_models(case)], "feed_forward")


@check(noam_lr, see="Warm up, then slow down")
def paper(schedule, case):
    """is 7e-4 at most for the paper's base model, and 4000 steps of warm-up are the default"""
    for step in (1, 400, 4000, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        given = schedule(step, 512)
        case.equal(given, torch.tensor(expected).double(), f"rate at step {step}", rtol=1e-9)
    case.equal(schedule(9, 16, 1), torch.tensor(1 / 12).double(), "rate without warm-up")


@check(noam_lr, see="Warm up, then slow down")
def refuses(schedule, case):
    """raises ValueError for step 0 and for a warm-up of 0 steps"""
    case.raises(ValueError, lambda: schedule(0, 8, 5), "step is 0")
    case.raises(ValueError, lambda: schedule(3, 8, 0), "warmup is 0")


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
def other_shapes(loss, case):
    """accepts logits of one sentence, and another word to ignore"""
    logits, targets = smoothing_case(case)
    ignore = int(targets.max())
    expected = torchs_loss(logits[0], targets[0], 0.1)
    case.equal(loss(logits[0], targets[0]), expected, "loss of one sentence")
    expected = torchs_loss(logits, targets, 0.1, ignore)
    case.equal(loss(logits, targets, 0.1, ignore), expected, "loss with another word to ignore")


@check(label_smoothing_loss, see="Do not be too sure")
def refuses(loss, case):
    """raises ValueError when smoothing is negative, or 1 or more"""
    logits, targets = smoothing_case(case)
    case.raises(ValueError, lambda: loss(logits, targets, -0.1), "smoothing is -0.1")
    case.raises(ValueError, lambda: loss(logits, targets, 1.0), "smoothing is 1")


@check(greedy_translate, see="Write word by word")
def one_sentence(translate, case):
    """translates one sentence, and stops after its EOS"""
    model, X, lengths = greedy_case(case, end=2.0)
    X, lengths = X[lengths.argmax(), None], lengths.max()[None]
    expected = greedy_by_hand(model, X, lengths, 40)
    case.that(expected[0, -1] == EOS, "The model of this check should say EOS.")
    case.equal(translate(model, X, lengths, 40), expected, "words")


@check(greedy_translate, see="Write word by word")
def one_word(translate, case):
    """writes one word when no more are allowed"""
    model, X, lengths = greedy_case(case, end=0.0)
    case.equal(translate(model, X, lengths, 1), greedy_by_hand(model, X, lengths, 1), "words")
