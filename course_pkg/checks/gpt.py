"""Checks of gpt. Oracles: bytes.replace, torch.nn.TransformerEncoderLayer, cross_entropy and
closed forms."""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_pkg.checking.batched import made
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.memo import once
from course_pkg.checking.registry import check
from course_pkg.checking.telling.failure import Failure, describe
from course_pkg.data.text import words
from course_pkg.gpt import (
    GPT,
    BPETokenizer,
    GPTBlock,
    Writer,
    bits_per_byte,
    byte_pair_merges,
    init_gpt_weights,
    language_model_loss,
    language_model_loss_fault,
    load_gpt2,
    merge_pair,
    perplexity,
    token_probabilities,
)

RHYME = (
    b"She sells sea shells on the sea shore; the shells she sells are sea shells, I'm sure.\n"
    b"So if she sells sea shells on the sea shore, then I'm sure she sells sea shore shells.\n"
)
STRANGE = "  Ünïcødé 12²  —\n\n\t…  ".encode() + bytes(range(256)) + b"\xf0\x9f\x98 \xff\xfe"


def same_list(case: Case, given: object, expected: list, what: str) -> None:
    """Demand a list of whole numbers, or of pairs of them."""
    try:
        observed = torch.tensor([[*item] if hasattr(item, "__len__") else item for item in given])
    except (TypeError, ValueError, RuntimeError):
        raise Failure(f"{what} should be a list of numbers, yours is {describe(given)}.") from None
    if len(observed) and (observed.is_floating_point() or observed.is_complex()):
        raise Failure(f"{what} should hold whole numbers, yours holds {observed.dtype}.")
    given, expected = observed.tolist(), torch.tensor(expected).tolist()
    for place, (is_, should) in enumerate(zip(given, expected, strict=False)):
        if is_ != should:
            text = f"{what} at [{place}] should be {should}, yours is {is_}."
            raise Failure(text, what=what, observed=observed)
    if len(given) != len(expected):
        text = f"{what} should be {len(expected)} long, yours is {len(given)} long."
        raise Failure(text, what=what, observed=observed)


@check(merge_pair, weight=2, see="One merge")
def values(merge, case):
    """does what bytes.replace does"""
    for low, high in ((1, 3), (1, 4), (5, 9)):
        tokens = case.integers(low, high, 60).tolist()
        for pair in ((1, 2), (2, 1), (1, 1), (6, 7)):
            expected = list(bytes(tokens).replace(bytes(pair), bytes([200])))
            same_list(case, merge(tokens, pair, 200), expected, "tokens")


@check(merge_pair, see="One merge")
def overlapping(merge, case):
    """uses no token twice, a a a a a becomes X X a; and makes a new list"""
    same_list(case, merge([7, 7, 7, 7, 7, 3, 7, 7, 7], (7, 7), 9), [9, 9, 7, 3, 9, 7], "tokens")
    tokens = [1, 2]
    case.that(
        merge(tokens, (3, 4), 9) is not tokens,
        "A new list should be returned also where nothing merges, yours is the one that was given.",
    )


@once
def learned(counts: dict[bytes, int], merges: int) -> list[tuple[int, int]]:
    """Learn merges the slow way: count everything again after each."""
    texts = {word: word.decode("latin-1") for word in counts}
    found = []
    while len(found) < merges:
        pairs = Counter()
        for word, text in texts.items():
            for pair in pairwise(text):
                pairs[pair] += counts[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        new = chr(256 + len(found))
        texts = {word: text.replace("".join(best), new) for word, text in texts.items()}
        found.append((ord(best[0]), ord(best[1])))
    return found


def random_words(case: Case, count: int, letters: int = 5) -> dict[bytes, int]:
    """Draw words and how often they occur."""
    lengths = case.integers(1, 9, count).tolist()
    drawn = [bytes((97 + case.integers(0, letters, length)).tolist()) for length in lengths]
    times = case.integers(1, 30, count).tolist()
    return dict(zip(drawn, times, strict=True))


@check(byte_pair_merges, see="Which pair next")
def first(merges, case):
    """begins with the pair that occurs most often within words, weighed by their counts"""
    counts = {b"ababab": 1, b"ba": 4, b"cd": 5, b"bc": 2, b" ab": 1, b"xyz": 3}
    same_list(case, merges(counts, 1), [(98, 97)], "merges")  # ba: 2 + 4, before cd: 5


@check(byte_pair_merges, weight=3, see="Which pair next")
def values(merges, case):
    """learns what counting everything again after each merge learns"""
    for number in range(3):
        counts = random_words(case, 30 + 10 * number, letters=4 + number)
        same_list(case, merges(counts, 25), learned(counts, 25), f"merges of text {number}")


@check(byte_pair_merges, see="Which pair next")
def ties(merges, case):
    """takes the smallest of pairs that occur equally often"""
    counts = {b"zy": 3, b"ab": 3, b"ba": 3, b"yz": 3, b"aa": 3, b"mn": 2, b"mm": 2, b"cd": 4}
    expected = [(99, 100), (97, 97), (97, 98), (98, 97), (121, 122), (122, 121)]
    same_list(case, merges(counts, 6), expected, "merges")


@check(byte_pair_merges, see="Which pair next")
def runs_out(merges, case):
    """learns fewer merges when no pair is left"""
    counts = {b"abc": 3, b"d": 9, b"ab": 1, b"yx": 1}
    expected = [(97, 98), (256, 99), (121, 120)]
    same_list(case, merges(counts, 50), expected, "merges")
    same_list(case, merges(counts, 0), [], "merges when none are asked for")


@check(byte_pair_merges, see="Which pair next")
def any_bytes(merges, case):
    """learns from any bytes, also from those that are no letters, or no text"""
    letters = random_words(case, 30, letters=5)
    other = bytes.maketrans(b"abcde", b"\xc3\xa9\xff\x00Z")
    counts = {word.translate(other): count for word, count in letters.items()}
    same_list(case, merges(counts, 12), learned(counts, 12), "merges of any bytes")


@once
def spelled(text: bytes, merges: list[tuple[int, int]]) -> list[int]:
    """Encode the slow way: apply all merges to every word, in the order they were learned in."""
    found = []
    for word in words(text):
        spelling = word.decode("latin-1")
        for number, (first, second) in enumerate(merges):
            spelling = spelling.replace(chr(first) + chr(second), chr(256 + number))
        found += [ord(character) for character in spelling]
    return found


def same_bytes(case: Case, given: object, expected: bytes, what: str) -> None:
    """Demand bytes."""
    if not isinstance(given, bytes):
        raise Failure(f"{what} should be bytes, yours is {describe(given)}.")
    same_list(case, list(given), list(expected), what)


@check(BPETokenizer, weight=3, see="Encode and decode")
def encodes(tokenizer, case):
    """merges in every word the pair learned earliest, until none is left"""
    merges = learned(random_words(case, 60, letters=3), 30)
    drawn = bytes((97 + case.integers(0, 3, 120)).tolist())
    text = b" ".join([drawn[:60], drawn[60:75], drawn[75:90], drawn[90:]])
    same_list(case, tokenizer(merges).encode(text), spelled(text, merges), "tokens")


@check(BPETokenizer, see="Encode and decode")
def sentences(tokenizer, case):
    """encodes a text with the merges that were learned from it"""
    merges = learned(Counter(words(RHYME)), 40)
    for text in (RHYME, RHYME[50:] + b"ashes she seshe  the", b"shesellsseashells" * 2):
        same_list(case, tokenizer(merges).encode(text), spelled(text, merges), "tokens")


@check(BPETokenizer, see="Encode and decode")
def borders(tokenizer, case):
    """never merges across the border between two words"""
    merges = [(97, 32), (97, 98), (257, 32), (32, 97)]
    text = b"a ab a ab ab a"
    same_list(case, tokenizer(merges).encode(text), spelled(text, merges), "tokens")
    merges = [(97, 49), (49, 46), (97, 39), (39, 115)]
    text = b"a1 1.1 a1. a's 1's a.a"
    tokens = tokenizer(merges).encode(text)
    same_list(case, tokens, spelled(text, merges), "tokens of letters, digits and signs")


@check(BPETokenizer, weight=2, see="Encode and decode")
def round_trip(tokenizer, case):
    """decodes what it has encoded to the same bytes, text or not"""
    ours = tokenizer(learned(Counter(words(RHYME)), 40))
    for text in (RHYME, STRANGE, STRANGE[::-1], b"", b"she"):
        tokens = ours.encode(text)
        same_bytes(case, ours.decode(tokens), text, "decoded bytes")
        if isinstance(tokens, list):
            tokens.clear()  # the caller's own
        same_bytes(case, ours.decode(ours.encode(text)), text, "bytes encoded once more")


@check(BPETokenizer, see="Encode and decode")
def vocabulary(tokenizer, case):
    """knows the bytes of every token"""
    merges = learned(Counter(words(RHYME)), 12)
    ours = tokenizer(merges, ("<|end|>", "<|pad|>"))
    expected = [bytes([byte]) for byte in range(256)]
    for first, second in merges:
        expected.append(expected[first] + expected[second])
    expected += [b"<|end|>", b"<|pad|>"]
    tokens = ours.tokens
    case.that(isinstance(tokens, list), f"tokens should be a list, yours is {describe(tokens)}.")
    case.that(
        len(tokens) == len(expected),
        f"tokens should have {len(expected)} entries, yours has {len(tokens)}.",
    )
    for number, (given, wanted) in enumerate(zip(tokens, expected, strict=True)):
        case.that(given == wanted, f"tokens[{number}] should be {wanted}, yours is {given!r:.40}.")


@check(BPETokenizer, see="Tokens that no text contains")
def special(tokenizer, case):
    """gives special tokens the last numbers, and never makes them from text"""
    merges = learned(Counter(words(RHYME)), 12)
    ours = tokenizer(merges, ("<|end|>", "<|pad|>"))
    numbers = ours.special
    case.that(
        numbers == {"<|end|>": 268, "<|pad|>": 269},
        f"special should number the names 268 and 269, yours is {numbers!r:.60}.",
    )
    text = b"the end<|end|> sea"
    same_list(case, ours.encode(text), spelled(text, merges), "tokens of a text with <|end|>")
    same_bytes(case, ours.decode([115, 268, 104, 269]), b"s<|end|>h<|pad|>", "decoded bytes")


@check(BPETokenizer, see="Encode and decode")
def same_bytes_twice(tokenizer, case):
    """tells apart two tokens of the same bytes, which different merges have made"""
    text = b"abc bc abcabc ab"
    for merges in (
        [(97, 98), (98, 99), (97, 257), (256, 99)],
        [(97, 98), (256, 99), (98, 99), (97, 258)],
    ):
        same_list(case, tokenizer(merges).encode(text), spelled(text, merges), "tokens")


@check(BPETokenizer, see="Encode and decode")
def again(tokenizer, case):
    """encodes a text in the same way each time, whatever was encoded before"""
    merges = learned(Counter(words(RHYME)), 30)
    ours, expected = tokenizer(merges), spelled(RHYME, merges)
    ours.encode(RHYME[::-1])
    for _ in range(2):
        same_list(case, ours.encode(RHYME), expected, "tokens")
    word = next(iter(words(RHYME)))
    ours.encode(word).append(0)
    case.that(
        ours.encode(word) == spelled(word, merges),
        "When the list that encode has returned is changed, later calls should not change.",
    )


@check(BPETokenizer, see="Encode and decode")
def two(tokenizer, case):
    """encodes with its own merges, whatever another tokenizer has encoded before"""
    merges = learned(Counter(words(RHYME)), 30)
    for number, own in enumerate((merges, [], merges[:9])):
        tokens = tokenizer(own).encode(RHYME)
        same_list(case, tokens, spelled(RHYME, own), f"tokens of tokenizer {number}")


def block_state(case: Case, D: int) -> dict[str, Tensor]:
    """Draw all weights of a block, none of them as a fresh one has it."""
    state = {f"attention.W_{x}": case.randn(D, D) / D**0.5 for x in "QKVO"}
    state |= {f"attention.b_{x}": case.randn(D) / 2 for x in "QKVO"}
    for name in ("norm_1", "norm_2"):
        state |= {f"{name}.weight": 1 + case.rand(D), f"{name}.bias": case.randn(D) / 2}
    state |= {"expand.weight": case.randn(4 * D, D) / D**0.5, "expand.bias": case.randn(4 * D) / 2}
    state |= {"contract.weight": case.randn(D, 4 * D) / D**0.5, "contract.bias": case.randn(D) / 2}
    return state


def torchs_block(state: dict[str, Tensor], H: int) -> nn.Module:
    """Give torch's own pre-norm layer the weights of a block."""
    D = len(state["norm_1.weight"])
    gelu = partial(F.gelu, approximate="tanh")
    layer = nn.TransformerEncoderLayer(
        D, H, 4 * D, dropout=0.0, activation=gelu, norm_first=True, batch_first=True
    ).double()
    stacked = {"in_proj_weight": "W_", "in_proj_bias": "b_"}
    theirs = {
        f"self_attn.{name}": torch.cat([state[f"attention.{letter}{x}"].T for x in "QKV"])
        if letter == "W_"
        else torch.cat([state[f"attention.{letter}{x}"] for x in "QKV"])
        for name, letter in stacked.items()
    }
    theirs["self_attn.out_proj.weight"] = state["attention.W_O"].T
    theirs["self_attn.out_proj.bias"] = state["attention.b_O"]
    pairs = [("linear1", "expand"), ("linear2", "contract"), ("norm1", "norm_1")]
    for their, our in [*pairs, ("norm2", "norm_2")]:
        theirs |= {f"{their}.{kind}": state[f"{our}.{kind}"] for kind in ("weight", "bias")}
    layer.load_state_dict(theirs)
    return layer


def forbidden(T: int) -> Tensor:
    """What torch calls a causal mask: True where a position may not look."""
    return torch.ones(T, T, dtype=torch.bool).triu(1)


def block_pair(case: Case, block, D: int, H: int) -> tuple:
    """Make a student's block and torch's with the same weights, float64."""
    state = block_state(case, D)
    ours = made(block, state, D, H)
    return ours, torchs_block(state, H)


def vectors(case: Case, result: object, shape: tuple[int, ...], H: int) -> tuple[Tensor, Tensor]:
    """Split what a block returns, and demand the shapes."""
    X, A = case.unpack(result, "X", "A")
    case.shape(X, shape, "X")
    case.shape(A, (shape[0], H, shape[1], shape[1]), "A")
    return X, A


@check(GPTBlock, weight=3, see="One block", single="B")
def values(block, case):
    """agrees with torch.nn.TransformerEncoderLayer, norm first, with the tanh form of GELU"""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, theirs = block_pair(case, block, H * D_h, H)
    X = case.randn(B, T, H * D_h)
    given, _ = vectors(case, ours(X), tuple(X.shape), H)
    case.equal(given, theirs(X), "X")


@check(GPTBlock, see="One block")
def masked(block, case):
    """agrees with torch.nn.TransformerEncoderLayer under a causal mask"""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, theirs = block_pair(case, block, H * D_h, H)
    X = case.randn(B, T, H * D_h)
    given, _ = vectors(case, ours(X, ~forbidden(T)), tuple(X.shape), H)
    case.equal(given, theirs(X, src_mask=forbidden(T)), "X under a mask")


@check(GPTBlock, see="One block")
def weights(block, case):
    """returns the attention's weights, computed from what has been normalised"""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, theirs = block_pair(case, block, H * D_h, H)
    X, mask = case.randn(B, T, H * D_h), forbidden(T)
    normal = theirs.norm1(X)
    options = {"attn_mask": mask, "average_attn_weights": False}
    _, expected = theirs.self_attn(normal, normal, normal, **options)
    _, A = vectors(case, ours(X, ~mask), tuple(X.shape), H)
    case.equal(A, expected, "A")


@check(GPTBlock, see="One block")
def gradients(block, case):
    """passes the same gradient to its input as torch's layer"""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, theirs = block_pair(case, block, H * D_h, H)
    X, seen = case.randn(B, T, H * D_h).requires_grad_(), case.randn(B, T, H * D_h)
    (expected,) = torch.autograd.grad(theirs(X), X, seen)
    given, _ = vectors(case, ours(X), tuple(X.shape), H)
    case.trains(given, "X")
    given.backward(seen)
    case.gradient(X, expected, "X")
    case.learns(ours)


@check(GPTBlock, see="One block")
def large(block, case):
    """agrees with torch's layer where the two forms of GELU differ most"""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, theirs = block_pair(case, block, H * D_h, H)
    X = 30 * case.randn(B, T, H * D_h) + 5
    given, _ = vectors(case, ours(X), tuple(X.shape), H)
    case.equal(given, theirs(X), "X of large vectors")


def gpt_state(case: Case, V: int, context: int, D: int, L: int) -> dict[str, Tensor]:
    """Draw all weights of a GPT."""
    state = {"token.weight": case.randn(V, D) / 2, "position.weight": case.randn(context, D) / 2}
    for number in range(L):
        block = block_state(case, D)
        state |= {f"blocks.{number}.{name}": value for name, value in block.items()}
    return state | {"norm.weight": 1 + case.rand(D), "norm.bias": case.randn(D) / 2}


def torchs_blocks(state: dict[str, Tensor], H: int) -> list[nn.Module]:
    """Give torch's own layers the weights of a GPT's blocks."""
    numbers = {int(name.split(".")[1]) for name in state if name.startswith("blocks.")}
    layers = []
    for number in sorted(numbers):
        prefix = f"blocks.{number}."
        block = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
        layers.append(torchs_block(block, H))
    return layers


def torchs_gpt(state: dict[str, Tensor], H: int) -> Callable[[Tensor], Tensor]:
    """Build a GPT of torch's own layers; it turns tokens into logits."""
    layers = torchs_blocks(state, H)

    def logits(tokens: Tensor) -> Tensor:
        T = tokens.shape[1]
        X = F.embedding(tokens, state["token.weight"]) + state["position.weight"][:T]
        for layer in layers:
            X = layer(X, src_mask=forbidden(T))
        X = F.layer_norm(X, X.shape[-1:], state["norm.weight"], state["norm.bias"])
        return F.linear(X, state["token.weight"])

    return logits


@torch.no_grad()
def torchs_weights(state: dict[str, Tensor], H: int, tokens: Tensor) -> Tensor:
    """Compute the attention's weights of all layers (L, B, H, T, T) with torch's own."""
    T, found = tokens.shape[1], []
    X = F.embedding(tokens, state["token.weight"]) + state["position.weight"][:T]
    for layer in torchs_blocks(state, H):
        normal, options = layer.norm1(X), {"average_attn_weights": False}
        _, A = layer.self_attn(normal, normal, normal, attn_mask=forbidden(T), **options)
        found.append(A)
        X = layer(X, src_mask=forbidden(T))
    return torch.stack(found)


def gpt_pair(case: Case, gpt, V: int, context: int, H: int, D_h: int, L: int) -> tuple:
    """Make a student's GPT with drawn weights, float64, and a function with torch's logits."""
    state = gpt_state(case, V, context, H * D_h, L)
    ours = made(gpt, state, V, context, H * D_h, H, L)
    return ours, torchs_gpt(state, H)


def demand_gradients(case: Case, gpt) -> None:
    """Demand that a GPT's loss reaches both tables as it does through torch's layers."""
    B, T, H, D_h, V = case.sizes(5, low=3)
    state, tokens = gpt_state(case, V, T + 1, H * D_h, 2), case.integers(0, V, B, T)
    ours, seen = made(gpt, state, V, T + 1, H * D_h, H, 2), case.randn(B, T, V)
    tables = {name: state[name].clone() for name in ("token.weight", "position.weight")}
    for table in tables.values():
        table.requires_grad_()
    torchs_gpt(state | tables, H)(tokens).backward(seen)
    logits = ours(tokens)
    case.trains(logits, "the logits")
    logits.backward(seen)
    parameters = dict(ours.named_parameters())
    for name, table in tables.items():
        case.gradient(parameters[name], table.grad, name)
    case.learns(ours)


@check(GPT, weight=3, see="The whole model", single="B")
def values(gpt, case):
    """agrees with a stack of torch's layers"""
    B, T, H, D_h, V = case.sizes(5, low=3)
    ours, theirs = gpt_pair(case, gpt, 2 * V, T + 3, H, D_h, 2)
    tokens = case.integers(0, 2 * V, B, T)
    case.equal(ours(tokens), theirs(tokens), "logits")


@check(GPT, weight=2, see="Nobody looks ahead")
def causal(gpt, case):
    """gives a position the same logits whatever comes after it"""
    B, T, H, D_h, V = case.sizes(5, low=3)
    ours, _ = gpt_pair(case, gpt, 2 * V, T, H, D_h, 2)
    tokens = case.integers(0, 2 * V, B, T)
    logits = ours(tokens)
    case.shape(logits, (B, T, 2 * V), "logits")
    other = tokens.clone()
    other[:, -1] = (tokens[:, -1] + 1) % (2 * V)
    changed = ours(other)
    case.shape(changed, (B, T, 2 * V), "logits")
    case.equal(changed[:, :-1], logits[:, :-1], "logits before a different last token")


@check(GPT, see="The whole model")
def weights(gpt, case):
    """returns the attention's weights of all layers when they are asked for"""
    B, T, H, D_h, V = case.sizes(5, low=3)
    L = 2
    state = gpt_state(case, 2 * V, T, H * D_h, L)
    ours = made(gpt, state, 2 * V, T, H * D_h, H, L)
    tokens = case.integers(0, 2 * V, B, T)
    logits, A = case.unpack(ours(tokens, return_weights=True), "logits", "A")
    case.equal(logits, torchs_gpt(state, H)(tokens), "logits")
    case.shape(A, (L, B, H, T, T), "A")
    case.equal(A.sum(dim=-1), torch.ones(L, B, H, T), "sums of the rows of A")
    case.that(
        not A[..., forbidden(T)].any(),
        "A should be zero where a position looks ahead, yours is not.",
    )
    case.equal(A, torchs_weights(state, H, tokens), "A")


@check(GPT, see="The whole model")
def full(gpt, case):
    """accepts a text as long as its context, and raises ValueError for a longer one"""
    B, T, H, D_h, V = case.sizes(5, low=3)
    ours, theirs = gpt_pair(case, gpt, V, T, H, D_h, 1)
    tokens = case.integers(0, V, B, T + 1)
    case.equal(ours(tokens[:, :T]), theirs(tokens[:, :T]), "logits of a full context")
    case.raises(
        ValueError, lambda: ours(tokens), f"{T + 1} tokens are given and the context is {T}"
    )


@check(GPT, see="The whole model")
def tied(gpt, case):
    """passes gradients to the positions, and to the embedding from both of its uses"""
    B, T, H, D_h, V = case.sizes(5, low=3)
    ours, _ = gpt_pair(case, gpt, V + 2, T, H, D_h, 1)
    tokens = case.integers(0, V, B, T)
    logits = ours(tokens)
    case.trains(logits, "the logits")
    logits.logsumexp(dim=-1).sum().backward()
    gradient = dict(ours.named_parameters())["token.weight"].grad
    case.that(gradient is not None, "A gradient should reach token.weight, none does.")
    case.shape(gradient, (V + 2, H * D_h), "gradient of token.weight")
    case.that(
        bool(gradient[V:].any()), "The output should use token.weight, yours gives it no gradient."
    )
    gradient = dict(ours.named_parameters())["position.weight"].grad
    case.that(gradient is not None, "A gradient should reach position.weight, none does.")
    case.that(bool(gradient.any()), "A gradient should reach position.weight, yours is zero.")
    case.learns(ours)


@check(GPT, see="The whole model")
def again(gpt, case):
    """returns in a second call what belongs to that call alone"""
    B, T, H, D_h, V = case.sizes(5, low=3)
    ours, theirs = gpt_pair(case, gpt, V, T, H, D_h, 2)
    for call in ("first", "second"):
        tokens = case.integers(0, V, B, T)
        logits, A = case.unpack(ours(tokens, return_weights=True), "logits", "A")
        case.equal(logits, theirs(tokens), f"logits of the {call} call")
        case.shape(A, (2, B, H, T, T), f"A of the {call} call")


def fresh(case: Case, init, V: int, context: int, D: int, L: int) -> dict[str, Tensor]:
    """Let a student draw the weights of a GPT, and demand their names and shapes."""
    state = {name: 3 + value for name, value in gpt_state(case, V, context, D, L).items()}
    drawn = init(state, L)
    names = set(drawn) if isinstance(drawn, dict) else None
    case.that(
        names == set(state), "The result should have the names of the state, yours has others."
    )
    for name, value in state.items():
        case.shape(drawn[name], tuple(value.shape), name)
    return drawn


def deviations(
    case: Case, drawn: dict[str, Tensor], names: list[str], expected: float, what: str
) -> None:
    """Demand the standard deviation of weights of one kind, drawn around zero."""
    values = [drawn[name].detach().double() for name in names]
    least = min(value.numel() for value in values)
    found, wanted = (
        torch.stack([value.std() for value in values]),
        torch.full((len(names),), expected),
    )
    case.equal(found, wanted, f"standard deviations of {what}", rtol=5 / math.sqrt(2 * least))
    means = torch.stack([value.mean() for value in values])
    case.equal(means, 0 * wanted, f"means of {what}", atol=5 * expected / math.sqrt(least))


@check(init_gpt_weights, see="A start for deep stacks")
def constants(init, case):
    """sets biases to 0 and the norms' weights to 1"""
    drawn = fresh(case, init, 40, 30, 24, 2)
    for name, value in drawn.items():
        if value.dim() == 1:
            scale = "norm" in name and "weight" in name
            case.equal(value, torch.full(value.shape, float(scale)), name)


@check(init_gpt_weights, weight=2, see="A start for deep stacks")
def matrices(init, case):
    """draws matrices and embeddings from N(0, 0.02²)"""
    L = 3
    drawn = fresh(case, init, 200, 150, 48, L)
    names = ["token", "position", "blocks.0.expand", "blocks.2.expand"]
    names = [f"{name}.weight" for name in names] + [f"blocks.1.attention.W_{x}" for x in "QKV"]
    deviations(case, drawn, names, 0.02, "token, position, expand, W_Q, W_K, W_V")


@check(init_gpt_weights, weight=2, see="A start for deep stacks")
def residual(init, case):
    """draws what is added to the stream √(2L) times smaller"""
    for L in (3, 12):
        drawn = fresh(case, init, 40, 30, 48, L)
        parts = ("attention.W_O", "contract.weight")
        names = [f"blocks.{n}.{part}" for n in range(L) for part in parts]
        deviations(case, drawn, names, 0.02 / math.sqrt(2 * L), "W_O and contract in turn")


@check(init_gpt_weights, see="A start for deep stacks")
def normal(init, case):
    """draws from a normal distribution, anew for each matrix and each call"""
    first, second = (fresh(case, init, 200, 30, 32, 2) for _ in range(2))
    values = first["token.weight"].double().flatten() / 0.02
    tails = (values.abs() > 2).double().mean()
    case.equal(tails, 0.0455, "share beyond two standard deviations", rtol=0.35)
    case.that(
        not torch.equal(first["token.weight"], second["token.weight"]),
        "Two calls should draw different weights, yours draw the same.",
    )
    one, other = (first[f"blocks.0.attention.W_{x}"] for x in "QK")
    case.that(not torch.equal(one, other), "W_Q should differ from W_K, yours is the same.")


@check(init_gpt_weights, see="A start for deep stacks")
def dtype(init, case):
    """keeps the dtype of each weight"""
    drawn = fresh(case, init, 20, 10, 8, 1)
    for name, value in drawn.items():
        case.that(
            value.dtype == torch.float64, f"{name} should stay float64, yours is {value.dtype}."
        )


@check(language_model_loss, weight=2, see="The loss of a language model")
def values(loss, case):
    """is the mean cross-entropy of each next token"""
    B, T, V = case.sizes(3, low=4)
    logits, tokens = 2 * case.randn(B, T, V), case.integers(0, V, B, T)
    terms = [F.cross_entropy(logits[b, :-1], tokens[b, 1:]) for b in range(B)]
    case.equal(loss(logits, tokens), torch.stack(terms).mean(), "loss")


@check(language_model_loss, see="The loss of a language model")
def guessing(loss, case):
    """is log V for a model that knows nothing"""
    B, T, V = case.sizes(3, low=4)
    tokens = case.integers(0, V, B, T)
    case.equal(loss(torch.ones(B, T, V).double(), tokens), math.log(V), "loss of equal logits")


def loss_by_loop(logits: Tensor, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Average the surprise at one token of one text after the other."""
    B, T, _ = logits.shape
    ends = [T] * B if lengths is None else lengths.tolist()
    pairs = [(b, t) for b, end in enumerate(ends) for t in range(end - 1)]
    terms = [-logits[b, t].log_softmax(0)[tokens[b, t + 1]] for b, t in pairs]
    return torch.stack(terms).mean()


@check(language_model_loss, see="The loss of a language model", single="B")
def ragged(loss, case):
    """counts every real token once, and no padding"""
    B, T, V = case.sizes(3, low=4)
    logits, tokens = 2 * case.randn(B, T, V), case.integers(0, V, B, T)
    lengths = case.lengths(B, T) if B > 1 else torch.tensor([T - 1])
    expected = loss_by_loop(logits, tokens, lengths)
    case.equal(loss(logits, tokens, lengths), expected, "loss of padded texts")


@check(language_model_loss, see="The loss of a language model")
def confident(loss, case):
    """stays finite when a wrong token is certain"""
    logits = torch.tensor([[[800.0, 0.0, -800.0], [0.0, 0.0, 0.0]]]).double()
    for token, expected in ((0, 0.0), (1, 800.0), (2, 1600.0)):
        case.equal(loss(logits, torch.tensor([[1, token]])), expected, f"loss of token {token}")


@check(language_model_loss, see="The loss of a language model")
def gradient(loss, case):
    """passes p minus one-hot back, and nothing to the last position or to padding"""
    B, T, V = case.sizes(3, low=4)
    drawn, tokens = case.randn(B, T, V), case.integers(0, V, B, T)
    slope = drawn.softmax(dim=-1) - F.one_hot(tokens.roll(-1, 1), V)
    for lengths in (case.lengths(B, T), None):
        logits = drawn.clone().requires_grad_()
        value = loss(logits, tokens, lengths)
        case.shape(value, (), "loss")
        case.trains(value, "the loss")
        value.backward()
        all_of_them = torch.full((B,), T)
        real = torch.arange(1, T + 1) < (all_of_them if lengths is None else lengths)[:, None]
        case.gradient(logits, slope * real[..., None] / real.sum(), "logits")


@check(perplexity, weight=2, see="Perplexity, and what it hides")
def values(perplexity, case):
    """is the exponential of the mean over tokens, not over batches"""
    (N,) = case.sizes(1, low=4)
    losses, counts = 3 * case.rand(N), case.integers(1, 40, N)
    every = [
        loss for loss, n in zip(losses.tolist(), counts.tolist(), strict=True) for _ in range(n)
    ]
    expected = math.prod(math.exp(loss) ** (1 / len(every)) for loss in every)
    case.equal(perplexity(losses, counts), expected, "perplexity")


@check(perplexity, see="Perplexity, and what it hides")
def guessing(perplexity, case):
    """is V for a model that guesses among V tokens"""
    N, V = case.sizes(2, low=5)
    losses = torch.full((N,), math.log(V), dtype=torch.float64)
    case.equal(perplexity(losses, case.integers(1, 9, N)), float(V), "perplexity of guessing")


@check(bits_per_byte, weight=2, see="Perplexity, and what it hides")
def values(bits, case):
    """divides all bits of a text by its bytes"""
    for loss, tokens, size in ((2.5, 300, 900), (0.7, 55, 71), (5.545, 12, 12)):
        total = sum(math.log2(math.exp(loss)) for _ in range(tokens))
        case.equal(bits(loss, tokens, size), total / size, "bits per byte")


@check(bits_per_byte, see="Perplexity, and what it hides")
def no_compression(bits, case):
    """is 8 for a model that guesses among 256 bytes"""
    case.equal(bits(math.log(256), 77, 77), 8.0, "bits per byte of guessing")


def kept(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Compute the probabilities token by token."""
    rows = []
    for row in logits.tolist():
        total = math.fsum(math.exp(score / temperature) for score in row)
        p = {token: math.exp(score / temperature) / total for token, score in enumerate(row)}
        best = sorted(p, key=lambda token: (-p[token], token))[:top_k]
        share, nucleus = math.fsum(p[token] for token in best), []
        while best and math.fsum(p[token] for token in nucleus) / share < top_p:
            nucleus.append(best.pop(0))
        total = math.fsum(p[token] for token in nucleus)
        rows.append([p[token] / total if token in nucleus else 0.0 for token in range(len(row))])
    return torch.tensor(rows, dtype=torch.float64)


@check(token_probabilities, see="Temperature")
def temperature(probabilities, case):
    """is the softmax of the logits divided by the temperature"""
    B, V = case.sizes(2, low=5)
    logits = case.randn(B, V)
    case.equal(probabilities(logits), kept(logits, 1.0, V, 2.0), "p")
    for T in (0.3, 2.5):
        expected = kept(logits, T, V, 2.0)
        case.equal(probabilities(logits, temperature=T), expected, f"p at temperature {T}")


@check(token_probabilities, see="Temperature")
def greedy(probabilities, case):
    """puts everything on the best token at temperature 0"""
    B, V = case.sizes(2, low=5)
    logits = case.randn(B, V)
    expected = F.one_hot(logits.argmax(dim=1), V).double()
    case.equal(probabilities(logits, temperature=0.0), expected, "p at temperature 0")


@check(token_probabilities, see="Temperature")
def nearly_greedy(probabilities, case):
    """puts everything on the best token at temperature 1e-37, in float32"""
    B, V = case.sizes(2, low=5)
    logits = (100 * case.randn(B, V)).float()
    expected = F.one_hot(logits.argmax(dim=1), V).double()
    case.equal(probabilities(logits, temperature=1e-37), expected, "p at temperature 1e-37")


@check(token_probabilities, see="Temperature")
def refuses(probabilities, case):
    """raises ValueError for a temperature, top_k or top_p out of range, at temperature 0 too"""
    logits = case.randn(2, 5)
    wrong = [{"temperature": -0.5}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}]
    wrong += [{"temperature": 0.0, **options} for options in wrong[1:]]
    for options in wrong:
        *_, (name, value) = options.items()
        when = f"{name} is {value}" + (" at temperature 0" if len(options) > 1 else "")
        case.raises(ValueError, lambda o=options: probabilities(logits, **o), when)


@check(token_probabilities, see="Keep the best tokens only")
def top_k(probabilities, case):
    """keeps the k most probable tokens, in proportion, and no more than k if all are equal"""
    B, V = case.sizes(2, low=6)
    logits = case.randn(B, V)
    for k in (1, 3, V - 1, V, V + 3):
        case.equal(probabilities(logits, top_k=k), kept(logits, 1.0, k, 2.0), f"p with top_k {k}")
    p = probabilities(0 * logits, top_k=4)
    case.shape(p, (B, V), "p of equal tokens")
    case.equal((p > 0).sum(dim=1), torch.full((B,), 4), "number of equal tokens kept with top_k 4")


@check(token_probabilities, weight=2, see="Keep the best tokens only")
def top_p(probabilities, case):
    """keeps the smallest set of tokens that reaches the share p"""
    B, V = case.sizes(2, low=6)
    logits = case.randn(B, V)
    for p in (0.05, 0.5, 0.8):
        case.equal(probabilities(logits, top_p=p), kept(logits, 1.0, V, p), f"p with top_p {p}")


@check(token_probabilities, see="Keep the best tokens only")
def together(probabilities, case):
    """applies temperature, then top_k, then top_p"""
    B, V = case.sizes(2, low=7)
    logits = case.randn(B, V)
    for T, k, p in ((0.7, 4, 0.8), (2.0, 5, 0.6)):
        case.equal(probabilities(logits, T, k, p), kept(logits, T, k, p), "p with all three")


@check(token_probabilities, see="Keep the best tokens only")
def ties(probabilities, case):
    """of equal tokens keeps the first, exactly k of them, and exactly one when greedy"""
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0, 2.0]]).double()
    expected = torch.tensor([[0, 0.5, 0.5, 0, 0, 0]]).double()
    case.equal(probabilities(logits, top_k=2), expected, "p with top_k 2")
    case.equal(probabilities(logits, temperature=0)[0, 1], 1.0, "p of the first best token")
    many = torch.zeros(1, 40).double()  # of few, torch's sort keeps the order by itself
    expected = (torch.arange(40) < 3)[None] / 3
    case.equal(probabilities(many, top_k=3), expected.double(), "p of 40 equal tokens, top_k 3")


@check(token_probabilities, see="Keep the best tokens only")
def exactly(probabilities, case):
    """keeps no further token when the sum reaches top_p exactly"""
    logits = torch.tensor([[0.0, 0.0, -3000.0, 0.0, 0.0]]).double()
    expected = torch.tensor([[0.5, 0.5, 0, 0, 0]]).double()
    case.equal(probabilities(logits, top_p=0.5), expected, "p with top_p 0.5")


@check(token_probabilities, see="Keep the best tokens only")
def everything(probabilities, case):
    """keeps everything when top_p is 1 or top_k exceeds the vocabulary"""
    logits = torch.tensor([[30.0, -8.0, 1.0, 0.5], [0.0, 0.0, 0.0, 0.0]]).double()
    expected = torch.softmax(logits, dim=-1)
    case.equal(probabilities(logits, top_k=9), expected, "p with top_k 9")
    case.equal(probabilities(logits, top_p=1.0), expected, "p with top_p 1")


@check(token_probabilities, see="Keep the best tokens only")
def one_row(probabilities, case):
    """treats each row on its own, even with very large logits, or far below 0 and -∞"""
    (V,) = case.sizes(1, low=6)
    logits = torch.cat([case.randn(1, V), case.randn(1, V) * 500 + 1e4])
    p = probabilities(logits, 1.0, 4, 0.9)
    case.shape(p, (2, V), "p")
    case.equal(p[:1], kept(logits[:1], 1.0, 4, 0.9), "p of the first row")
    case.equal(p.sum(dim=1), torch.ones(2), "sums of p")
    low = torch.cat([case.randn(1, V) - 700, torch.full((1, V), -math.inf)])
    low[1, 2:4] = torch.tensor([60.0, 90.0])
    case.equal(probabilities(low, 1.0, 3), kept(low, 1.0, 3, 1.0), "p of logits near -700 and -∞")
    case.equal(probabilities(low), torch.softmax(low, dim=1), "p of the same, of all tokens")


def writers(case: Case, writer, B: int, T: int, V: int = 11, context: int = 7) -> tuple:
    """Make a student's Writer, torch's logits for it, and texts."""
    ours, theirs = gpt_pair(case, writer, V, context, 2, 3, 1)
    return ours, theirs, case.integers(0, V, B, T)


def continued(theirs, tokens: Tensor, count: int, context: int = 7) -> Tensor:
    """Continue texts with the best token each time."""
    for _ in range(count):
        best = theirs(tokens[:, -context:])[:, -1].argmax(dim=1)
        tokens = torch.cat([tokens, best[:, None]], dim=1)
    return tokens


@check(Writer, weight=2, see="One token after the other")
def greedy(writer, case):
    """adds the best next token at temperature 0"""
    ours, theirs, tokens = writers(case, writer, 5, 3)
    case.equal(ours.sample(tokens, 4, 0.0), continued(theirs, tokens, 4), "texts")


@check(Writer, see="One token after the other")
def beyond(writer, case):
    """continues a text that is longer than the context"""
    ours, theirs, tokens = writers(case, writer, 15, 10)
    case.equal(
        ours.sample(tokens, 4, 0.0), continued(theirs, tokens, 4), "texts longer than the context"
    )


@check(Writer, weight=2, see="One token after the other")
def frequencies(writer, case):
    """draws each token as often as the last position's logits say"""
    ours, theirs, tokens = writers(case, writer, 1, 4)
    p = torch.softmax(theirs(tokens)[:, -1] / 3, dim=1)[0]
    many = ours.sample(tokens.repeat(3000, 1), 1, 3.0)
    case.shape(many, (3000, 5), "texts")
    found = torch.bincount(many[:, -1].long().clamp(0, 10), minlength=11) / 3000
    case.equal(found, p, "frequencies", rtol=0, atol=0.05)


@check(Writer, see="One token after the other")
def options(writer, case):
    """draws only what temperature, top_k and top_p leave"""
    ours, theirs, tokens = writers(case, writer, 1, 4)
    logits, many = theirs(tokens)[:, -1], tokens.repeat(400, 1)
    for T, k, p in ((4.0, 3, None), (4.0, None, 0.5), (2.0, 5, 0.7)):
        allowed = kept(logits, T, k or 11, p or 2.0)[0] > 0
        texts = ours.sample(many, 1, T, k, p)
        case.shape(texts, (400, 5), "texts")
        found = torch.bincount(texts[:, -1].long().clamp(0, 10), minlength=11) > 0
        case.equal(found, allowed, f"which tokens are drawn with top_k {k} and top_p {p}")


@once
def ends(written: Tensor, stop: int) -> dict[int, int]:
    """Tell after how many tokens each row has its first stop; rows without one are left out."""
    first = {row: (tokens == stop).nonzero() for row, tokens in enumerate(written)}
    return {row: int(places[0]) + 1 for row, places in first.items() if len(places)}


def two_that_end(case: Case, writer) -> tuple:
    """Make a Writer, and two texts that end at different times, both after less than 8 tokens.

    After its end the first one would go on with something else than the stop token.
    """
    goes_on = torch.tensor(False)
    while not goes_on:
        ours, theirs, tokens = writers(case, writer, 60, 3)
        written = continued(theirs, tokens, 7)
        found = {stop: ends(written[:, 3:], stop) for stop in range(11)}
        found = {stop: lengths for stop, lengths in found.items() if lengths}
        stop = max(found, key=lambda s: max(found[s].values()) - min(found[s].values()))
        first, last = (pick(found[stop], key=found[stop].get) for pick in (min, max))
        lengths = found[stop][first], found[stop][last]
        goes_on = (written[first, 3 + lengths[0] : 3 + lengths[1]] != stop).any()
    return ours, tokens[[first, last]], written[[first, last]], stop, lengths


@check(Writer, see="When to stop")
def ends_alone(writer, case):
    """ends a text with the stop token once it is drawn"""
    ours, tokens, written, stop, lengths = two_that_end(case, writer)
    expected = written[:1, : 3 + lengths[0]]
    case.equal(ours.sample(tokens[:1], 8, 0.0, stop=stop), expected, "a text with a stop")


@check(Writer, see="When to stop")
def stops(writer, case):
    """writes only stop after a text's end, and finishes when all texts have ended"""
    ours, tokens, written, stop, lengths = two_that_end(case, writer)
    expected = written[:, : 3 + lengths[1]].clone()
    expected[0, 3 + lengths[0] :] = stop
    case.equal(ours.sample(tokens, 8, 0.0, stop=stop), expected, "texts with a stop")


@check(Writer, see="When to stop")
def stop_zero(writer, case):
    """stops at token 0, too, if that is the stop token"""
    ours, tokens, written, stop, lengths = two_that_end(case, writer)
    swapped = torch.arange(11)
    swapped[[0, stop]] = swapped[[stop, 0]]  # the same texts, with two tokens exchanged
    state = {name: value.clone() for name, value in ours.state_dict().items()}
    ours.load_state_dict({**state, "token.weight": state["token.weight"][swapped]})
    expected = swapped[written[:1, : 3 + lengths[0]]]
    given = ours.sample(swapped[tokens[:1]], 8, 0.0, stop=0)
    case.equal(given, expected, "a text with the stop token 0")


@check(Writer, see="One token after the other")
def generator(writer, case):
    """draws from the given generator, and from no other"""
    ours, _, tokens = writers(case, writer, 4, 3)
    texts = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        source = torch.Generator().manual_seed(5)
        texts.append(ours.sample(tokens, 6, 3.0, generator=source))
        case.shape(texts[-1], (4, 9), "texts")
    case.equal(texts[1], texts[0], "texts from the same generator")
    other = ours.sample(tokens, 6, 3.0, generator=torch.Generator().manual_seed(6))
    case.that(
        not torch.equal(other, texts[0]),
        "Another seed should give other texts, yours gives the same.",
    )


@check(Writer, see="One token after the other")
def own_randomness(writer, case):
    """draws from torch's own generator when none is given: anew in every call"""
    ours, _, tokens = writers(case, writer, 4, 3)
    torch.manual_seed(3)
    first, second = (ours.sample(tokens, 6, 3.0) for _ in range(2))
    for texts in (first, second):
        case.shape(texts, (4, 9), "texts")
    case.that(
        not torch.equal(first, second),
        "A second call should give other texts, yours gives the same.",
    )
    torch.manual_seed(3)
    case.equal(ours.sample(tokens, 6, 3.0), first, "texts after the same torch.manual_seed")


@check(Writer, see="When to stop")
def stop_before(writer, case):
    """goes on after a stop token in the given text"""
    is_written = torch.tensor(True)
    while is_written:  # or the text would end with it all the same
        ours, theirs, tokens = writers(case, writer, 5, 3)
        expected = continued(theirs, tokens, 5)
        new = set(expected[:, 3:].flatten().tolist())
        stop = next(token for token in range(11) if token not in new)
        tokens[:, 0] = stop
        expected = continued(theirs, tokens, 2)
        is_written = (expected[:, 3:] == stop).any()
    case.equal(ours.sample(tokens, 2, 0.0, stop=stop), expected, "texts that begin with stop")


@check(Writer, see="One token after the other")
def nothing(writer, case):
    """adds nothing when count is 0, and carries no gradients"""
    ours, _, tokens = writers(case, writer, 4, 3)
    case.equal(ours.sample(tokens, 0), tokens, "texts")
    case.equal(ours.sample(tokens, 2, 0.0)[:, :3], tokens, "the given part of the texts")


def published(case: Case, V: int, context: int, D: int, L: int) -> dict[str, Tensor]:
    """Draw the weights of a GPT-2 under Hugging Face's names."""
    state = {"wte.weight": case.randn(V, D), "wpe.weight": case.randn(context, D)}
    for n in range(L):
        shapes = {
            "ln_1.weight": (D,),
            "ln_1.bias": (D,),
            "attn.c_attn.weight": (D, 3 * D),
            "attn.c_attn.bias": (3 * D,),
            "attn.c_proj.weight": (D, D),
            "attn.c_proj.bias": (D,),
            "ln_2.weight": (D,),
            "ln_2.bias": (D,),
            "mlp.c_fc.weight": (D, 4 * D),
            "mlp.c_fc.bias": (4 * D,),
            "mlp.c_proj.weight": (4 * D, D),
            "mlp.c_proj.bias": (D,),
        }
        state |= {f"h.{n}.{name}": case.randn(*shape) for name, shape in shapes.items()}
    return state | {"ln_f.weight": case.randn(D), "ln_f.bias": case.randn(D)}


def demand_state(case: Case, given: object, theirs: dict[str, Tensor], L: int) -> None:
    """Demand every weight of a published GPT-2 in its place."""
    expected = {"token.weight": theirs["wte.weight"], "position.weight": theirs["wpe.weight"]}
    for n in range(L):
        their, our = f"h.{n}.", f"blocks.{n}."
        for kind, letter in (("weight", "W"), ("bias", "b")):
            D = theirs[f"{their}attn.c_attn.{kind}"].shape[-1] // 3
            for number, x in enumerate("QKV"):
                columns = slice(number * D, (number + 1) * D)
                value = theirs[f"{their}attn.c_attn.{kind}"][..., columns]
                expected[f"{our}attention.{letter}_{x}"] = value
            expected[f"{our}attention.{letter}_O"] = theirs[f"{their}attn.c_proj.{kind}"]
            expected[f"{our}norm_1.{kind}"] = theirs[f"{their}ln_1.{kind}"]
            expected[f"{our}norm_2.{kind}"] = theirs[f"{their}ln_2.{kind}"]
            for part, layer in (("expand", "c_fc"), ("contract", "c_proj")):
                value = theirs[f"{their}mlp.{layer}.{kind}"]
                expected[f"{our}{part}.{kind}"] = value.mT if value.dim() == 2 else value
    expected |= {f"norm.{kind}": theirs[f"ln_f.{kind}"] for kind in ("weight", "bias")}
    names = set(given) if isinstance(given, dict) else set()
    if names != set(expected):
        missing, extra = sorted(set(expected) - names), sorted(map(str, names - set(expected)))
        wrong = f"{missing[0]} is missing" if missing else f"{extra[0]} does not belong"
        raise Failure(f"The names should be those of a GPT, in yours {wrong}.")
    for name, value in expected.items():
        case.equal(given[name], value, name)


@check(load_gpt2, weight=3, see="The published weights")
def values(load, case):
    """puts every weight where it belongs"""
    L, D, V, context = 2, 4, 9, 5
    theirs = published(case, V, context, D, L)
    demand_state(case, load(theirs), theirs, L)


@check(load_gpt2, see="The published weights")
def prefix(load, case):
    """accepts names that begin with "transformer.", and a head that repeats the embedding"""
    theirs = published(case, 9, 3, 4, 1)
    state = {f"transformer.{name}": value for name, value in theirs.items()}
    state["lm_head.weight"] = theirs["wte.weight"].clone()
    demand_state(case, load(state), theirs, 1)


@check(load_gpt2, see="The published weights")
def masks(load, case):
    """leaves out the masks of old files"""
    theirs = published(case, 9, 5, 4, 1)
    old = {**theirs, "h.0.attn.bias": torch.ones(1, 1, 5, 5).tril().bool()}
    old["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    given = load(old)
    names = set(given) if isinstance(given, dict) else set()
    case.that(names == set(load(theirs)), "The masks should be left out, yours keeps them.")


@check(load_gpt2, see="The published weights")
def many(load, case):
    """tells layer 1 from layer 10"""
    theirs = published(case, 3, 4, 2, 11)
    demand_state(case, load(theirs), theirs, 11)


@check(load_gpt2, see="The published weights")
def refuses(load, case):
    """raises ValueError for an unknown name, and for a head that is not the embedding"""
    theirs = published(case, 9, 5, 4, 1)
    other = {**theirs, "h.0.crossattention.c_attn.weight": case.randn(4, 8)}
    case.raises(ValueError, lambda: load(other), "there is a cross-attention")
    head = {**theirs, "lm_head.weight": case.randn(9, 4)}
    case.raises(ValueError, lambda: load(head), "the head is not the embedding")
    table = theirs["wte.weight"].clone()
    table[-1, -1] += 1e-3
    near = {**theirs, "lm_head.weight": table}
    case.raises(ValueError, lambda: load(near), "one number of the head is not the embedding's")
    for name in (
        "h.0.attn.q_norm.weight",
        "score.weight",
        "h.0.mlp.scale",
        "h.0.attn.c_attn.scale",
        "h.0.ln_1.scale",
        "h.0.ln_3.weight",
        "h.0.mlp.c_fc2.weight",
        "lm_head.bias",
        "wte.bias",
        "wpe.bias",
        "h.0.wte.weight",
        "h.0.ln_f.weight",
        "mlp.c_fc.weight",
        "attn.c_attn.weight",
        "attn.c_proj.weight",
        "attn.bias",
    ):
        other = {**theirs, name: case.randn(4)}
        case.raises(ValueError, lambda other=other: load(other), f"the state has {name}")


@check(language_model_loss_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "language_model_loss", loss_by_loop)
