"""Checks of transformer. Oracles: torch's layer_norm, Linear, TransformerEncoderLayer and
TransformerDecoderLayer with copied weights, cross_entropy, loops over words, closed forms."""

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_pkg.checking.batched import made, of_each
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.models import SmallTranslator
from course_pkg.checking.registry import check
from course_pkg.checking.rules.rules import TRANSFORMER, forbid
from course_pkg.data.translation import BOS, EOS, PAD
from course_pkg.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Transformer,
    count_parameters,
    greedy_translate,
    label_smoothing_loss,
    layer_norm,
    layer_norm_fault,
    noam_lr,
)

for _exercise in (EncoderLayer, DecoderLayer, Transformer):
    forbid(_exercise, TRANSFORMER)
State = dict[str, Tensor]


def to_normalise(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Draw vectors of different means and spreads, gains and biases."""
    B, T, D = case.sizes(3, low=4)
    X = (1 + case.rand(B, T, 1)) * case.randn(B, T, D) + case.randn(B, T, 1)
    return X, case.randn(D), case.randn(D)


@check(layer_norm, see="Layer norm")
def standard(norm, case):
    """gives every vector mean 0 and variance 1 when gain is 1 and bias 0"""
    X, _, _ = to_normalise(case)
    D = X.shape[2]
    Y = norm(1e3 * X, torch.ones(D).double(), torch.zeros(D).double())
    case.shape(Y, tuple(X.shape), "Y")
    case.equal(Y.mean(dim=2), torch.zeros(X.shape[:2]), "mean of each vector", atol=1e-5)
    variance = Y.var(dim=2, unbiased=False)
    case.equal(variance, torch.ones(X.shape[:2]), "variance of each vector")


@check(layer_norm, see="Layer norm")
def alone(norm, case):
    """gives a vector the same result, whatever stands at the other positions"""
    X, gain, bias = to_normalise(case)
    other = torch.cat([X[:, :1], 5 * case.randn(*X[:, 1:].shape)], dim=1)
    Y = norm(X, gain, bias)
    case.shape(Y, tuple(X.shape), "Y")
    case.equal(norm(other, gain, bias)[:, 0], Y[:, 0], "Y at position 0")


@check(layer_norm, weight=2, see="Layer norm")
def values(norm, case):
    """agrees with torch's layer_norm"""
    X, gain, bias = to_normalise(case)
    case.equal(norm(X, gain, bias), F.layer_norm(X, gain.shape, gain, bias), "Y")


@check(layer_norm, see="Layer norm")
def epsilon(norm, case):
    """adds ε to the variance, inside the root"""
    X, gain, bias = to_normalise(case)
    for eps in (0.3, 2.0):
        expected = F.layer_norm(X, gain.shape, gain, bias, eps)
        case.equal(norm(X, gain, bias, eps), expected, f"Y with ε = {eps}")


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


def load(module, state: State):
    """Give a module of torch's these weights, in float64."""
    module = module.double()
    module.load_state_dict(state)
    return module


def feed_forward_state(case: Case, D: int, D_ff: int) -> State:
    """Draw the parameters of a FeedForward."""
    return {
        "W_1": case.randn(D, D_ff) / D**0.5,
        "b_1": case.randn(D_ff) / 2,
        "W_2": case.randn(D_ff, D) / D_ff**0.5,
        "b_2": case.randn(D) / 2,
    }


def two_linears(state: State) -> nn.Sequential:
    """Make torch's feed-forward network with the same weights."""
    D, D_ff = state["W_1"].shape
    network = nn.Sequential(nn.Linear(D, D_ff), nn.ReLU(), nn.Linear(D_ff, D))
    names = {"0.weight": state["W_1"].T, "0.bias": state["b_1"]}
    return load(network, names | {"2.weight": state["W_2"].T, "2.bias": state["b_2"]})


def torchs_layer_norm(X: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Let torch normalise over the last axis."""
    return F.layer_norm(X, X.shape[-1:], gain, bias, eps)


@check(FeedForward, weight=2, see="Each vector for itself", single="B")
def values(network, case):
    """agrees with two of torch's Linear layers and a ReLU between them"""
    B, T, D, D_ff = case.sizes(4)
    state, X = feed_forward_state(case, D, D_ff), case.randn(B, T, D)
    case.equal(made(network, state, D, D_ff)(X), two_linears(state)(X), "Y")


@check(FeedForward, see="Each vector for itself")
def alone(network, case):
    """gives a vector the same result, whatever stands at the other positions"""
    B, T, D, D_ff = case.sizes(4)
    ours, X = made(network, feed_forward_state(case, D, D_ff), D, D_ff), case.randn(B, T, D)
    Y = ours(X)
    case.shape(Y, (B, T, D), "Y")
    other = torch.cat([X[:, :1], 3 * case.randn(B, T - 1, D)], dim=1)
    case.equal(ours(other)[:, 0], Y[:, 0], "Y at position 0")


@check(FeedForward, see="Each vector for itself")
def axes(network, case):
    """accepts one vector, and a batch of two axes"""
    B, T, D, D_ff = case.sizes(4)
    state, X = feed_forward_state(case, D, D_ff), case.randn(B, T, D)
    ours, expected = made(network, state, D, D_ff), two_linears(state)(X)
    case.equal(ours(X[0, 0]), expected[0, 0], "Y of one vector")
    case.equal(ours(X[None]), expected[None], "Y of a batch with two axes")


@check(FeedForward, see="Each vector for itself")
def default_size(network, case):
    """is 4 D wide in the middle unless told otherwise"""
    B, T, D = case.sizes(3)
    state, X = feed_forward_state(case, D, 4 * D), case.randn(B, T, D)
    case.equal(made(network, state, D)(X), two_linears(state)(X), "Y")


def layer_state(case: Case, D: int, D_ff: int, attentions: tuple[str, ...]) -> State:
    """Draw the parameters of a layer with these attentions; nothing is zero, no gain is one."""
    state = {}
    for name in attentions:
        for projection in "QKVO":
            state[f"{name}.W_{projection}"] = case.randn(D, D) / D**0.5
            state[f"{name}.b_{projection}"] = case.randn(D) / 2
    parts = feed_forward_state(case, D, D_ff).items()
    state |= {f"feed_forward.{name}": value for name, value in parts}
    state["gains"] = 1 + case.randn(len(attentions) + 1, D) / 3
    state["biases"] = case.randn(len(attentions) + 1, D) / 3
    return state


ENCODER, DECODER = ("attention",), ("self_attention", "cross_attention")


def torchs_state(state: State, attentions: tuple[str, ...]) -> State:
    """Translate a layer's parameters into torch's names and layout."""
    found = {}
    for ours, theirs in zip(attentions, ("self_attn", "multihead_attn"), strict=False):
        W, b = ({p: state[f"{ours}.{kind}_{p}"] for p in "QKVO"} for kind in "Wb")
        found[f"{theirs}.in_proj_weight"] = torch.cat([W[p].T for p in "QKV"])
        found[f"{theirs}.in_proj_bias"] = torch.cat([b[p] for p in "QKV"])
        found[f"{theirs}.out_proj.weight"] = W["O"].T
        found[f"{theirs}.out_proj.bias"] = b["O"]
    for n in (1, 2):
        found[f"linear{n}.weight"] = state[f"feed_forward.W_{n}"].T
        found[f"linear{n}.bias"] = state[f"feed_forward.b_{n}"]
    for n in range(len(attentions) + 1):
        found[f"norm{n + 1}.weight"], found[f"norm{n + 1}.bias"] = (
            state["gains"][n],
            state["biases"][n],
        )
    return found


def torchs_layer(state: State, H: int, pre_norm: bool, attentions: tuple[str, ...]) -> nn.Module:
    """Make torch's encoder or decoder layer with the same weights, float64."""
    build = nn.TransformerEncoderLayer if attentions == ENCODER else nn.TransformerDecoderLayer
    D, D_ff = state["feed_forward.W_1"].shape
    theirs = build(D, H, D_ff, dropout=0.0, batch_first=True, norm_first=pre_norm)
    return load(theirs, torchs_state(state, attentions))


def forbidden(mask: Tensor, B: int, H: int) -> Tensor:
    """Turn a mask of ours, True = may attend, into one of torch's for every head."""
    return ~mask.expand(B, *mask.shape[-2:]).repeat_interleave(H, dim=0)


def some_mask(case: Case, B: int, N_Q: int, N_X: int) -> Tensor:
    """Draw a mask (B, N_Q, N_X) that allows each query at least one key."""
    mask = case.rand(B, N_Q, N_X) < 0.5
    return mask.scatter(-1, case.integers(0, N_X, B, N_Q, 1), True)


def encoder_layer(case: Case, student, pre_norm: bool) -> tuple:
    """Make a student's encoder layer and torch's with the same weights, and vectors and a mask."""
    B, N, H, D_h, D_ff = case.sizes(5, low=3)
    state = layer_state(case, H * D_h, D_ff, ENCODER)
    ours = made(student, state, H * D_h, H, D_ff, pre_norm)
    X = 1 + 2 * case.randn(B, N, H * D_h)
    return ours, torchs_layer(state, H, pre_norm, ENCODER), X, some_mask(case, B, N, N), H


def compare_encoder_layer(case: Case, student, pre_norm: bool) -> None:
    ours, theirs, X, mask, H = encoder_layer(case, student, pre_norm)
    case.equal(ours(X), theirs(X), "X without a mask")
    case.equal(ours(X, mask), theirs(X, forbidden(mask, len(X), H)), "X under a mask")


@check(EncoderLayer, weight=3, see="Post-LN and pre-LN")
def post_norm(layer, case):
    """agrees with torch.nn.TransformerEncoderLayer"""
    compare_encoder_layer(case, layer, pre_norm=False)


@check(EncoderLayer, weight=3, see="Post-LN and pre-LN")
def pre_norm(layer, case):
    """agrees with torch.nn.TransformerEncoderLayer(norm_first=True)"""
    compare_encoder_layer(case, layer, pre_norm=True)


@check(EncoderLayer, see="Post-LN and pre-LN", single="B")
def switch(layer, case):
    """is post-LN or pre-LN as pre_norm says, with the same weights"""
    B, N, H, D_h, D_ff = case.sizes(5, low=3)
    state, X = layer_state(case, H * D_h, D_ff, ENCODER), case.randn(B, N, H * D_h)
    given, expected = [], []
    for pre_norm in (False, True):
        given.append(made(layer, state, H * D_h, H, D_ff, pre_norm)(X.clone()))
        case.shape(given[-1], tuple(X.shape), "X")
        expected.append(torchs_layer(state, H, pre_norm, ENCODER)(X))
    case.equal(torch.stack(given), torch.stack(expected), "X of post-LN and of pre-LN")


@check(EncoderLayer, see="The residual connection")
def identity(layer, case):
    """in pre-LN, returns its input when both parts return zero"""
    B, N, H, D_h, D_ff = case.sizes(5, low=3)
    state = layer_state(case, H * D_h, D_ff, ENCODER)
    for name in ("attention.W_O", "attention.b_O", "feed_forward.W_2", "feed_forward.b_2"):
        state[name] = torch.zeros_like(state[name])
    X = case.randn(B, N, H * D_h)
    case.equal(made(layer, state, H * D_h, H, D_ff, True)(X), X, "X")


@check(EncoderLayer, see="Post-LN and pre-LN")
def one_mask(layer, case):
    """accepts one mask for all sentences"""
    ours, theirs, X, mask, H = encoder_layer(case, layer, False)
    expected = theirs(X, forbidden(mask[0], len(X), H))
    case.equal(ours(X, mask[0]), expected, "X under one mask")


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


def decoder_layer(case: Case, student, pre_norm: bool) -> tuple:
    """Make a student's decoder layer and torch's with the same weights; target, memory, masks."""
    B, M, N, H, D_h, D_ff = case.sizes(6, low=3)
    state = layer_state(case, H * D_h, D_ff, DECODER)
    ours = made(student, state, H * D_h, H, D_ff, pre_norm)
    Y, memory = 1 + 2 * case.randn(B, M, H * D_h), 1 + 2 * case.randn(B, N, H * D_h)
    masks = torch.ones(M, M, dtype=torch.bool).tril(), some_mask(case, B, M, N)
    return ours, torchs_layer(state, H, pre_norm, DECODER), Y, memory, *masks, H


def compare_decoder_layer(case: Case, student, pre_norm: bool) -> None:
    ours, theirs, Y, memory, mask, memory_mask, H = decoder_layer(case, student, pre_norm)
    expected = theirs(Y, memory, tgt_mask=~mask, memory_mask=forbidden(memory_mask, len(Y), H))
    case.equal(ours(Y, memory, mask, memory_mask), expected, "Y under masks")
    case.equal(ours(Y, memory), theirs(Y, memory), "Y without masks")


@check(DecoderLayer, weight=3, see="The decoder's layer")
def post_norm(layer, case):
    """agrees with torch.nn.TransformerDecoderLayer"""
    compare_decoder_layer(case, layer, pre_norm=False)


@check(DecoderLayer, weight=3, see="The decoder's layer")
def pre_norm(layer, case):
    """agrees with torch.nn.TransformerDecoderLayer(norm_first=True)"""
    compare_decoder_layer(case, layer, pre_norm=True)


@check(DecoderLayer, see="The decoder's layer")
def switch(layer, case):
    """is post-LN or pre-LN as pre_norm says, with the same weights"""
    B, M, N, H, D_h, D_ff = case.sizes(6, low=3)
    state = layer_state(case, H * D_h, D_ff, DECODER)
    Y, memory = case.randn(B, M, H * D_h), case.randn(B, N, H * D_h)
    given, expected = [], []
    for pre_norm in (False, True):
        given.append(made(layer, state, H * D_h, H, D_ff, pre_norm)(Y.clone(), memory))
        case.shape(given[-1], tuple(Y.shape), "Y")
        expected.append(torchs_layer(state, H, pre_norm, DECODER)(Y, memory))
    case.equal(torch.stack(given), torch.stack(expected), "Y of post-LN and of pre-LN")


@check(DecoderLayer, see="The decoder's layer")
def no_peeking(layer, case):
    """under a causal mask, gives a position the same output whatever comes after it"""
    ours, _, Y, memory, mask, _, _ = decoder_layer(case, layer, pre_norm=False)
    first = ours(Y, memory, mask)
    case.shape(first, tuple(Y.shape), "Y")
    other = torch.cat([Y[:, :-1], 5 * case.randn(*Y[:, -1:].shape)], dim=1)
    case.equal(ours(other, memory, mask)[:, :-1], first[:, :-1], "Y before the last position")


@check(DecoderLayer, see="The decoder's layer")
def masked_source(layer, case):
    """gives the same output whatever a forbidden word of the source holds"""
    ours, _, Y, memory, mask, _, _ = decoder_layer(case, layer, pre_norm=True)
    allowed = (torch.arange(memory.shape[1]) < memory.shape[1] - 1)[None, None]
    first = ours(Y, memory, mask, allowed)
    case.shape(first, tuple(Y.shape), "Y")
    other = torch.cat([memory[:, :-1], 5 * case.randn(*memory[:, -1:].shape)], dim=1)
    case.equal(ours(Y, other, mask, allowed), first, "Y with another padding word")


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
def alone(layer, case):
    """translates one word of one sentence"""
    H, D_h, D_ff = case.sizes(3, low=3)
    state = layer_state(case, H * D_h, D_ff, DECODER)
    theirs, Y, memory = torchs_layer(state, H, False, DECODER), *case.randn(2, 1, 1, H * D_h)
    case.equal(made(layer, state, H * D_h, H, D_ff)(Y, memory), theirs(Y, memory), "Y")


LAYERS = 2


def model_state(case: Case, V_source: int, V_target: int, D: int, D_ff: int, pre_norm: bool):
    """Draw the parameters of a Transformer."""
    state = {
        "source_table": case.randn(V_source, D) / D**0.5,
        "target_table": case.randn(V_target, D) / D**0.5,
        "output_table": case.randn(V_target, D) / D**0.5,
    }
    for stack, attentions in [("encoder", ENCODER), ("decoder", DECODER)]:
        for number in range(LAYERS):
            layer = layer_state(case, D, D_ff, attentions)
            state |= {f"{stack}.{number}.{name}": value for name, value in layer.items()}
    if pre_norm:
        state |= {"gains": 1 + case.randn(2, D) / 3, "biases": case.randn(2, D) / 3}
    return state


def sinusoids(T: int, D: int) -> Tensor:
    """Compute the encodings of positions one number after the other."""
    rows = []
    for t in range(T):
        angles = [t / 10000 ** (2 * i / D) for i in range(D // 2)]
        rows.append([f(angle) for angle in angles for f in (math.sin, math.cos)])
    return torch.tensor(rows, dtype=torch.float64)


class Torchs:
    """The same model from torch's layers, with our weights.

    Args:
        state: the weights.
        H: heads.
        pre_norm: whether the layers are pre-LN.
    """

    def __init__(self, state: State, H: int, pre_norm: bool):
        self.state = state
        self.pre_norm = pre_norm
        self.stacks = {}
        for stack, attentions in [("encoder", ENCODER), ("decoder", DECODER)]:
            self.stacks[stack] = []
            for number in range(LAYERS):
                prefix = f"{stack}.{number}."
                own = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
                self.stacks[stack].append(torchs_layer(own, H, pre_norm, attentions))

    def embed(self, words: Tensor, table: str) -> Tensor:
        rows = self.state[table]
        return rows.shape[1] ** 0.5 * rows[words] + sinusoids(words.shape[1], rows.shape[1])

    def final(self, X: Tensor, row: int) -> Tensor:
        if not self.pre_norm:
            return X
        gain, bias = self.state["gains"][row], self.state["biases"][row]
        return F.layer_norm(X, gain.shape, gain, bias)

    def encode(self, X: Tensor, mask: Tensor) -> Tensor:
        """Encode; mask (B, N) is True where a word is."""
        X = self.embed(X, "source_table")
        for layer in self.stacks["encoder"]:
            X = layer(X, src_key_padding_mask=~mask)
        return self.final(X, 0)

    def decode(self, Y: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        later = torch.ones(Y.shape[1], Y.shape[1], dtype=torch.bool).triu(1)
        Y = self.embed(Y, "target_table")
        for layer in self.stacks["decoder"]:
            Y = layer(Y, memory, tgt_mask=later, memory_key_padding_mask=~mask)
        return self.final(Y, 1) @ self.state["output_table"].T


def translators(case: Case, student, pre_norm: bool) -> tuple:
    """Make a student's Transformer and torch's with the same weights; sentences, lengths, mask."""
    B, N, M, H, V_source, V_target, D_ff = case.sizes(7, low=4)
    D = 2 * H
    state = model_state(case, V_source, V_target, D, D_ff, pre_norm)
    ours = made(student, state, V_source, V_target, D, H, LAYERS, D_ff, pre_norm)
    lengths = case.lengths(B, N)
    mask = torch.arange(N) < lengths[:, None]
    X = case.integers(0, V_source, B, N) * mask
    Y = case.integers(0, V_target, B, M)
    return ours, Torchs(state, H, pre_norm), X, lengths, mask, Y


@check(Transformer, see="Words become vectors")
def embed(transformer, case):
    """multiplies the table's rows by √D and adds sinusoids"""
    ours, theirs, X, _, _, _ = translators(case, transformer, pre_norm=False)
    table = theirs.state["source_table"]
    expected = theirs.embed(X, "source_table")
    case.equal(ours.embed(X, table), expected, "vectors", rtol=1e-4, atol=1e-5)


def compare_encoders(case: Case, student, pre_norm: bool) -> None:
    ours, theirs, X, lengths, mask, _ = translators(case, student, pre_norm)
    memory, given = case.unpack(ours.encode(X, lengths), "memory", "mask")
    case.equal(given, mask[:, None], "mask")
    expected = theirs.encode(X, mask)
    case.shape(memory, tuple(expected.shape), "memory")
    case.equal(memory[mask], expected[mask], "memory of words", rtol=1e-4, atol=1e-5)


@check(Transformer, weight=2, see="The whole model")
def encode(transformer, case):
    """agrees with torch's encoder layers, and masks the padding"""
    compare_encoders(case, transformer, pre_norm=False)


@check(Transformer, weight=2, see="The whole model")
def encode_pre_norm(transformer, case):
    """in pre-LN, agrees with torch's encoder layers and a last layer norm"""
    compare_encoders(case, transformer, pre_norm=True)


def compare_decoders(case: Case, student, pre_norm: bool) -> None:
    ours, theirs, X, _, mask, Y = translators(case, student, pre_norm)
    memory = case.randn(*X.shape, theirs.state["source_table"].shape[1])
    logits = ours.decode(Y, memory, mask[:, None])
    case.equal(logits, theirs.decode(Y, memory, mask), "logits", rtol=1e-4, atol=1e-5)


@check(Transformer, weight=2, see="The whole model")
def decode(transformer, case):
    """agrees with torch's decoder layers under a causal mask"""
    compare_decoders(case, transformer, pre_norm=False)


@check(Transformer, weight=2, see="The whole model")
def decode_pre_norm(transformer, case):
    """in pre-LN, agrees with torch's decoder layers and a last layer norm"""
    compare_decoders(case, transformer, pre_norm=True)


@check(Transformer, see="The whole model", single="B")
def no_peeking(transformer, case):
    """predicts each word from the words before it alone"""
    ours, _, X, lengths, _, Y = translators(case, transformer, pre_norm=True)
    logits = ours(X, lengths, Y)
    case.that(
        isinstance(logits, Tensor) and logits.shape[:2] == Y.shape,
        f"logits should be a tensor of shape {(*Y.shape, 'V_target')}, yours is not.",
    )
    other = torch.cat([Y[:, :-1], (Y[:, -1:] + 1) % logits.shape[2]], dim=1)
    given = ours(X, lengths, other)[:, :-1]
    case.equal(given, logits[:, :-1].detach(), "logits before the last word")


@check(Transformer, weight=2, see="The whole model")
def forward(transformer, case):
    """gives the logits of all positions of the translations at once"""
    ours, theirs, X, lengths, mask, Y = translators(case, transformer, pre_norm=False)
    expected = theirs.decode(Y, theirs.encode(X, mask), mask)
    case.equal(ours(X, lengths, Y), expected, "logits", rtol=1e-4, atol=1e-5)


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
        case.learns(ours)


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


KINDS = ("tables", "attention", "feed_forward", "norms")


@functools.cache
def torchs_counts(
    V_source: int,
    V_target: int,
    D: int,
    layers: int,
    D_ff: int | None = None,
    pre_norm: bool = False,
    shared: bool = False,
) -> dict[str, int]:
    """Count the parameters of torch's own modules, which are made without memory."""
    D_ff = 4 * D if D_ff is None else D_ff
    with torch.device("meta"):
        stacks = nn.ModuleDict(
            {
                "encoder": nn.ModuleList(
                    nn.TransformerEncoderLayer(D, 1, D_ff) for _ in range(layers)
                ),
                "decoder": nn.ModuleList(
                    nn.TransformerDecoderLayer(D, 1, D_ff) for _ in range(layers)
                ),
                "norms": nn.ModuleList(nn.LayerNorm(D) for _ in range(2 * pre_norm)),
            }
        )
        sizes = [V_source] if shared else [V_source, V_target, V_target]
        tables = nn.ModuleList(nn.Embedding(V, D) for V in sizes)
    counts = dict.fromkeys(KINDS, 0) | {"tables": sum(p.numel() for p in tables.parameters())}
    for name, parameter in stacks.named_parameters():
        kind = "attention" if "attn" in name else "feed_forward" if "linear" in name else "norms"
        counts[kind] += parameter.numel()
    return counts


def compare_counts(case: Case, count, models: list[tuple], kind: str) -> None:
    """Demand one of the student's counts for each of some models."""
    given = []
    for found in of_each(count, models):
        value = found.get(kind) if isinstance(found, dict) else None
        case.that(
            isinstance(value, (int, float)),
            f'The result should hold a number at ["{kind}"], yours does not.',
        )
        given.append(float(value))
    expected = torch.tensor([float(torchs_counts(*sizes)[kind]) for sizes in models]).double()
    given = torch.tensor(given, dtype=torch.float64)
    case.equal(given, expected, f"{kind} of {len(models)} models", rtol=1e-9)


def count_sizes(case: Case) -> tuple[int, ...]:
    """Draw V_source, V_target, D, layers and D_ff."""
    V_source, V_target, D, layers, D_ff = case.sizes(5, low=3)
    return 10 * V_source, 10 * V_target, 2 * D, layers, D_ff


def some_models(case: Case) -> list[tuple]:
    """Draw the sizes of six models; the counts of a single one could be right by chance."""
    return [count_sizes(case) for _ in range(6)]


@check(count_parameters, see="Where the parameters are")
def tables(count, case):
    """counts three tables"""
    compare_counts(case, count, some_models(case), "tables")


@check(count_parameters, weight=2, see="Where the parameters are")
def attention(count, case):
    """counts four projections with biases in each of three attentions"""
    compare_counts(case, count, some_models(case), "attention")


@check(count_parameters, weight=2, see="Where the parameters are")
def feed_forward(count, case):
    """counts two products with biases in each of two layers"""
    compare_counts(case, count, some_models(case), "feed_forward")


@check(count_parameters, see="Where the parameters are")
def norms(count, case):
    """counts a gain and a bias for each of five layer norms"""
    compare_counts(case, count, some_models(case), "norms")


@check(count_parameters, see="Where the parameters are")
def settings(count, case):
    """counts pre-LN's two norms, and one table when it is shared"""
    models = []
    for layers in (2, 3):
        V, _, D, _, D_ff = count_sizes(case)
        models += [(V, V, D, layers, D_ff, p, s) for p in (False, True) for s in (False, True)]
    for kind in KINDS:
        compare_counts(case, count, models, kind)


@check(count_parameters, see="Where the parameters are")
def default_width(count, case):
    """counts a width of 4 D unless told otherwise"""
    models = [sizes[:4] for sizes in some_models(case)]
    for kind in KINDS:
        compare_counts(case, count, models, kind)


def rates(case: Case, schedule, steps: list[int], D: int, warmup: int) -> Tensor:
    """Ask for the learning rates of some steps."""
    given = of_each(schedule, [(step, D, warmup) for step in steps])
    for rate in given:
        case.equal(rate, torch.as_tensor(rate).real.double(), "learning rate")
    return torch.tensor([float(rate) for rate in given], dtype=torch.float64)


@check(noam_lr, see="Warm up, then slow down")
def shape(schedule, case):
    """rises linearly up to step `warmup`, and has halved by four times that step"""
    D, warmup = case.sizes(2, low=5)
    steps = [1, 2, 3, warmup, 4 * warmup, 16 * warmup]
    given = rates(case, schedule, steps, D, warmup)
    expected = torch.tensor([1 / warmup, 2 / warmup, 3 / warmup, 1, 1 / 2, 1 / 4]).double()
    case.equal(given / given[3], expected, "learning rates, relative to the highest,")


@check(noam_lr, see="Warm up, then slow down")
def peak(schedule, case):
    """is highest at step `warmup`, with 1 / √(D · warmup)"""
    D, warmup = case.sizes(2, low=5)
    given = rates(case, schedule, list(range(1, 3 * warmup)), D, warmup)
    case.equal(given.max(), 1 / math.sqrt(D * warmup), "highest learning rate")
    case.equal(int(given.argmax()) + 1, torch.tensor(warmup), "step of the highest rate")


@check(noam_lr, see="Warm up, then slow down")
def refuses(schedule, case):
    """raises ValueError for step 0 and for a warm-up of 0 steps"""
    case.raises(ValueError, lambda: schedule(0, 8, 5), "step is 0")
    case.raises(ValueError, lambda: schedule(3, 8, 0), "warmup is 0")


@check(noam_lr, see="Warm up, then slow down")
def paper(schedule, case):
    """is 7e-4 at most for the paper's base model, and 4000 steps of warm-up are the default"""
    for step in (1, 400, 4000, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        given = schedule(step, 512)
        case.equal(given, torch.tensor(expected).double(), f"rate at step {step}", rtol=1e-9)
    case.equal(schedule(9, 16, 1), torch.tensor(1 / 12).double(), "rate without warm-up")


def smoothing_case(case: Case) -> tuple[Tensor, Tensor]:
    """Draw logits of B × M words out of V, and targets, some of which are PAD."""
    B, M, V = case.sizes(3, low=5)
    targets = case.integers(1, V, B, M)
    targets[case.rand(B, M) < 0.3] = PAD
    return 2 * case.randn(B, M, V), targets


def torchs_loss(logits: Tensor, targets: Tensor, smoothing: float, ignore: int = PAD) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=ignore, label_smoothing=smoothing
    )


@check(label_smoothing_loss, see="Do not be too sure")
def without(loss, case):
    """is the mean of -log p over all words that are not padding when ε = 0"""
    logits, targets = smoothing_case(case)
    log_p = torch.stack([logits[b, m].log_softmax(0) for b, m in (targets != PAD).nonzero()])
    expected = -log_p[torch.arange(len(log_p)), targets[targets != PAD]].mean()
    case.equal(loss(logits, targets, 0.0), expected, "loss")


@check(label_smoothing_loss, see="Do not be too sure")
def padding(loss, case):
    """gives the same when padding is added"""
    logits, targets = smoothing_case(case)
    B, V = len(logits), logits.shape[-1]
    longer = torch.cat([logits, case.randn(B, 4, V)], dim=1)
    padded = torch.cat([targets, torch.full((B, 4), PAD)], dim=1)
    case.equal(loss(longer, padded, 0.2), torchs_loss(logits, targets, 0.2), "loss")


@check(label_smoothing_loss, weight=2, see="Do not be too sure")
def values(loss, case):
    """agrees with torch's cross_entropy(label_smoothing=…)"""
    logits, targets = smoothing_case(case)
    case.equal(loss(logits, targets), torchs_loss(logits, targets, 0.1), "loss with ε = 0.1")
    case.equal(loss(logits, targets, 0.6), torchs_loss(logits, targets, 0.6), "loss with ε = 0.6")


@check(label_smoothing_loss, see="Do not be too sure")
def another(loss, case):
    """leaves out the word to ignore, where that is another than PAD"""
    logits, targets = smoothing_case(case)
    ignore = int(targets.max())
    expected = torchs_loss(logits, targets, 0.1, ignore)
    case.equal(loss(logits, targets, 0.1, ignore), expected, "loss with another word to ignore")


@check(label_smoothing_loss, see="Do not be too sure")
def refuses(loss, case):
    """raises ValueError when smoothing is negative, or 1 or more"""
    logits, targets = smoothing_case(case)
    case.raises(ValueError, lambda: loss(logits, targets, -0.1), "smoothing is -0.1")
    case.raises(ValueError, lambda: loss(logits, targets, 1.0), "smoothing is 1")


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


def small_translator(case: Case, V: int, C: int, end: float) -> SmallTranslator:
    """Draw a model that never says PAD or BOS; the higher `end`, the sooner it says EOS."""
    b = case.randn(V)
    b[EOS] += end
    b[PAD] = b[BOS] = -50
    tables = [case.randn(rows, C) for rows in (V + 2, V, V)]
    return SmallTranslator([*tables, 2 * case.randn(C, V) / C**0.5, b])


def greedy_case(case: Case, end: float) -> tuple[SmallTranslator, Tensor, Tensor]:
    """Draw a model, and sentences of different lengths to translate."""
    N, C, V = case.sizes(3, low=8)
    lengths = case.lengths(9, N)
    X = case.integers(4, V + 2, 9, N) * (torch.arange(N) < lengths[:, None])
    return small_translator(case, V, C, end), X, lengths


def greedy_by_hand(model: SmallTranslator, X: Tensor, lengths: Tensor, most: int) -> Tensor:
    """Translate sentence by sentence; put PAD behind the shorter translations."""
    rows = []
    for row, length in zip(X, lengths.tolist(), strict=True):
        memory, mask = model.encode(row[None, :length], torch.tensor([length]))
        words = [BOS]
        while len(words) <= most and words[-1] != EOS:
            logits = model.decode(torch.tensor([words]), memory, mask)
            words.append(int(logits[0, -1].argmax()))
        rows.append(words[1:])
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


@check(greedy_translate, weight=3, see="Write word by word")
def values(translate, case):
    """takes the most probable word after all words so far, and PAD after EOS"""
    expected = torch.empty(0)
    while not (expected == PAD).any():  # some models end all sentences at once, or none
        model, X, lengths = greedy_case(case, end=1.0)
        expected = greedy_by_hand(model, X, lengths, 12)
    case.equal(translate(model, X, lengths, 12), expected, "words")


@check(greedy_translate, see="Write word by word")
def stops(translate, case):
    """takes no further step when every sentence has ended"""
    expected = torch.empty(9, 50)
    while expected.shape[1] == 50:  # some models never say EOS
        model, X, lengths = greedy_case(case, end=3.0)
        expected = greedy_by_hand(model, X, lengths, 50)
    model = SmallTranslator([*model, torch.tensor(0.0), expected.shape[1]])
    case.shape(translate(model, X, lengths, 50), tuple(expected.shape), "words")


@check(greedy_translate, see="Write word by word")
def goes_no_further(translate, case):
    """writes max_length words where no EOS comes"""
    model, X, lengths = greedy_case(case, end=-50.0)
    case.equal(translate(model, X, lengths, 5), greedy_by_hand(model, X, lengths, 5), "words")


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


@check(layer_norm_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "layer_norm", torchs_layer_norm)
