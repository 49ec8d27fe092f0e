"""Hidden checks of gpt: edges, single positions, larger texts, proportions."""

import math

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.gpt import (
    STRANGE,
    gpt_pair,
    learned,
    random_words,
    same_list,
)
from course_pkg.gpt import (
    GPT,
    BPETokenizer,
    bits_per_byte,
    byte_pair_merges,
    language_model_loss_fault,
    merge_pair,
    perplexity,
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
def bytes_alone(tokenizer, case):
    """has one token for each byte when there are no merges"""
    same_list(case, tokenizer([]).encode(STRANGE), list(STRANGE), "tokens")


@check(GPT, see="The whole model")
def one_position(gpt, case):
    """agrees with torch for a single token and a single layer"""
    B, H, D_h, V = case.sizes(4, low=3)
    ours, theirs = gpt_pair(case, gpt, V, 6, H, D_h, 1)
    tokens = case.integers(0, V, B, 1)
    case.equal(ours(tokens), theirs(tokens), "logits")


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


@check(language_model_loss_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "B")
