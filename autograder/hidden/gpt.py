"""Hidden checks of gpt: edges, gradients, randomness, errors."""

import math
from collections import Counter

import torch
from torch.nn import functional as F

from course_pkg.checking.registry import check
from course_pkg.checks.gpt import (
    RHYME,
    STRANGE,
    block_pair,
    continued,
    fresh,
    gpt_pair,
    kept,
    learned,
    published,
    random_words,
    same_list,
    spelled,
    vectors,
    writers,
)
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
    load_gpt2,
    merge_pair,
    perplexity,
    token_probabilities,
)


@check(merge_pair, see="One merge")
def ends(merge, case):
    """merges at both ends, copes with short lists and takes numbers as numbers"""
    same_list(case, merge([1, 2, 5, 300, 4, 1, 2], (1, 2), 999), [999, 5, 300, 4, 999], "tokens")
    same_list(case, merge([2, 1], (1, 2), 999), [2, 1], "merge of two tokens")
    same_list(case, merge([1], (1, 2), 999), [1], "merge of one token")
    same_list(case, merge([], (1, 2), 999), [], "merge of no tokens")
    same_list(case, merge([11, 2, 3], (1, 2), 999), [11, 2, 3], "tokens beside 11")
    tokens = [int("700"), 701, 700, 701]  # two that are equal and not the same object
    same_list(case, merge(tokens, (700, 701), 702), [702, 702], "tokens above 256")
    tokens = merge([1, 2, 2, 1, 2], (1, 2), 1)
    same_list(case, tokens, [1, 2, 1], "tokens where the new one is the pair's first")
    same_list(case, merge([5], (5, 0), 999), [5], "merge of one token, of a pair with 0")


@check(byte_pair_merges, see="Which pair next")
def repeats(merges, case):
    """counts overlapping pairs, and merges within repeats from the left"""
    counts = {b"aaaaaaa": 3, b"baaab": 2, b"bb": 19, b"aab": 4}
    same_list(case, merges(counts, 9), learned(counts, 9), "merges")


@check(byte_pair_merges, see="Which pair next")
def larger(merges, case):
    """is right, and fast enough, for a longer text"""
    counts = random_words(case, 500, letters=20)
    same_list(case, merges(counts, 60), learned(counts, 60), "merges")


@check(BPETokenizer, see="Encode and decode")
def again(tokenizer, case):
    """encodes a text in the same way each time, whatever was encoded before"""
    merges = learned(Counter(words(RHYME)), 30)
    ours, expected = tokenizer(merges), spelled(RHYME, merges)
    ours.encode(RHYME[::-1])
    for _ in range(2):
        same_list(case, ours.encode(RHYME), expected, "tokens")


@check(BPETokenizer, see="Encode and decode")
def two(tokenizer, case):
    """encodes with its own merges, whatever another tokenizer has encoded before"""
    merges = learned(Counter(words(RHYME)), 30)
    for number, own in enumerate((merges, [], merges[:9])):
        tokens = tokenizer(own).encode(RHYME)
        same_list(case, tokens, spelled(RHYME, own), f"tokens of tokenizer {number}")


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
def bytes_alone(tokenizer, case):
    """has one token for each byte when there are no merges"""
    same_list(case, tokenizer([]).encode(STRANGE), list(STRANGE), "tokens")


@check(GPTBlock, see="One block")
def large(block, case):
    """agrees with torch's layer where the two forms of GELU differ most"""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, theirs = block_pair(case, block, H * D_h, H)
    X = 30 * case.randn(B, T, H * D_h) + 5
    given, _ = vectors(case, ours(X), tuple(X.shape), H)
    case.equal(given, theirs(X), "X of large vectors")


@check(GPT, see="The whole model")
def one_position(gpt, case):
    """agrees with torch for a single token and a single layer"""
    B, H, D_h, V = case.sizes(4, low=3)
    ours, theirs = gpt_pair(case, gpt, V, 6, H, D_h, 1)
    tokens = case.integers(0, V, B, 1)
    case.equal(ours(tokens), theirs(tokens), "logits")


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


@check(language_model_loss, see="The loss of a language model")
def confident(loss, case):
    """stays finite when a wrong token is certain"""
    logits = torch.tensor([[[800.0, 0.0, -800.0], [0.0, 0.0, 0.0]]]).double()
    for token, expected in ((0, 0.0), (1, 800.0), (2, 1600.0)):
        case.equal(loss(logits, torch.tensor([[1, token]])), expected, f"loss of token {token}")


@check(perplexity, see="Perplexity, and what it hides")
def whole_numbers(perplexity, case):
    """accepts a single batch, and counts that are whole numbers"""
    one = torch.tensor([1.5], dtype=torch.float64)
    case.equal(perplexity(one, torch.tensor([7])), math.exp(1.5), "perplexity of one batch")
    case.equal(perplexity(one, torch.tensor([70_000])), math.exp(1.5), "that of a large batch")


@check(bits_per_byte, see="Perplexity, and what it hides")
def proportions(bits, case):
    """halves when the same loss is spread over half as many tokens, or twice as many bytes"""
    case.equal(
        bits(2.0, 50, 300),
        0.5 * 2.0 / math.log(2) * 100 / 300,
        "bits per byte with half the tokens",
    )
    case.equal(
        bits(2.0, 100, 600),
        0.5 * 2.0 / math.log(2) * 100 / 300,
        "bits per byte with twice the bytes",
    )
    expected = 6.0 / math.log(2) * 90 / 60
    case.equal(bits(6.0, 90, 60), expected, "bits per byte of a model worse than guessing")


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
