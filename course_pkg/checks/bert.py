"""Checks of bert. Oracles: loops, statistics, torch.nn.TransformerEncoderLayer, closed forms."""

import math
from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_pkg.bert import (
    BertEmbeddings,
    BertLayer,
    BertModel,
    BertPretraining,
    SentenceClassifier,
    best_span,
    load_bert,
    mask_tokens,
    mlm_head,
    next_sentence_pairs,
    nsp_head,
    pretraining_loss,
    pretraining_loss_fault,
    span_head,
    tf_idf,
)
from course_pkg.checking.batched import call_often, made, together
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.memo import once
from course_pkg.checking.registry import check
from course_pkg.checking.telling.failure import Failure, describe

# tf_idf


def draw_counts(case: Case, N: int, V: int) -> Tensor:
    """Draw how often each text has each word: one word is in all texts, no text is empty."""
    counts = (case.integers(0, 4, N, V) * (case.rand(N, V) < 0.4)).double()
    counts[:, 1] = case.integers(1, 4, N).double()
    return counts


def looped(counts: Tensor, training: Tensor) -> Tensor:
    """Compute TF-IDF entry by entry."""
    M, rows = len(training), []
    for text in counts.tolist():
        row = []
        for word, count in enumerate(text):
            df = sum(other[word] > 0 for other in training.tolist())
            row.append(count * (1 + math.log((1 + M) / (1 + df))))
        length = math.sqrt(sum(x * x for x in row))
        rows.append([x / length if length else 0.0 for x in row])
    return torch.tensor(rows, dtype=torch.float64)


@check(tf_idf, weight=2, see="Count, weigh, normalise", single="N")
def values(tf, case):
    """weighs every count as the formula says"""
    N, V = case.sizes(2, low=5)
    counts = draw_counts(case, N, V)
    case.equal(tf(counts), looped(counts, counts), "x")


@check(tf_idf, weight=2, see="Count, weigh, normalise")
def training(tf, case):
    """takes from the training texts how rare each word is"""
    N, M, V = case.sizes(3, low=5)
    counts, before = draw_counts(case, N, V), draw_counts(case, M, V)
    case.equal(tf(counts, before), looped(counts, before), "x")


@check(tf_idf, see="Count, weigh, normalise")
def unit_length(tf, case):
    """gives every text length 1, even a long one"""
    N, V = case.sizes(2, low=5)
    counts = draw_counts(case, N, V)
    counts[0] *= 20
    x = tf(counts)
    case.shape(x, (N, V), "x")
    case.equal(x.square().sum(dim=1), torch.ones(N), "squared lengths")


@check(tf_idf, see="Count, weigh, normalise")
def empty(tf, case):
    """gives zeros for a text without words, and accepts a text of one common word"""
    N, M, V = case.sizes(3, low=5)
    counts, before = draw_counts(case, N, V), draw_counts(case, M, V)
    counts[1:3] = 0
    counts[2, 1] = 1
    case.equal(tf(counts, before), looped(counts, before), "x")


@check(tf_idf, see="Count, weigh, normalise")
def new_words(tf, case):
    """gives a weight to a word that no training text has"""
    N, M, V = case.sizes(3, low=5)
    counts, before = draw_counts(case, N, V), draw_counts(case, M, V)
    before[:, 0] = 0
    counts[:, 0] = 2
    case.equal(tf(counts, before), looped(counts, before), "x")


# mask_tokens

PADDING, MASK, SPECIAL, WORDS = 0, 4, [0, 1, 2, 3, 4], 50


def texts_to_mask(case: Case, B: int, T: int, V: int = WORDS) -> Tensor:
    """Draw texts with special words at both ends, and padding."""
    tokens = case.integers(5, V, B, T)
    tokens[:, 0], tokens[:, -2], tokens[:, -1] = 2, 3, PADDING
    return tokens


def masked(
    case: Case, mask, tokens: Tensor, V: int = WORDS, numbers: tuple = (SPECIAL, MASK), **options
) -> tuple[Tensor, Tensor]:
    """Call a student's mask_tokens, and demand whole numbers of the right shape."""
    options.setdefault("generator", case.generator)
    return demand_masked(case, tokens, mask(tokens, *numbers, V, **options))


def masked_often(case: Case, mask, tokens: Tensor, times: int) -> list[tuple[Tensor, Tensor]]:
    """Call a student's mask_tokens several times."""
    results = call_often(mask, times, tokens, SPECIAL, MASK, WORDS, generator=case.generator)
    return [demand_masked(case, tokens, result) for result in results]


def demand_masked(case: Case, tokens: Tensor, result: object) -> tuple[Tensor, Tensor]:
    """Demand whole numbers of the tokens' shape."""
    inputs, targets = case.unpack(result, "inputs", "targets")
    for name, given in (("inputs", inputs), ("targets", targets)):
        case.shape(given, tuple(tokens.shape), name)
        whole = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
        case.that(whole, f"{name} should hold whole numbers, yours holds {given.dtype}.")
    return inputs, targets


def share(case: Case, part: Tensor, of: Tensor, expected: float, what: str) -> None:
    """Demand that a share lies within five standard deviations of what it should be."""
    total = int(of.sum())
    given = int((part & of).sum()) / max(total, 1)
    room = 5 * math.sqrt(expected * (1 - expected) / max(total, 1))
    case.that(
        abs(given - expected) < room,
        f"{what} should be {expected:.3f} (± {room:.3f} by chance), yours is {given:.3f}.",
    )


@check(mask_tokens, weight=2, see="Hide words and remember which", single="B")
def targets(mask, case):
    """gives the true word where one is chosen, and -100 everywhere else"""
    (B,) = case.narrowed([40])
    tokens = texts_to_mask(case, B, 160)
    inputs, goals = masked(case, mask, tokens)
    chosen = goals != -100
    case.that(chosen.any(), "targets should name some words, yours are all -100.")
    wrong = chosen & (goals != tokens)
    case.that(
        not wrong.any(),
        f"targets should be the words of the text, yours differ at {int(wrong.sum())} places.",
    )
    silent = ~chosen & (inputs != tokens)
    case.that(
        not silent.any(),
        f"inputs should differ from the text only where there is a target, yours differ at "
        f"{int(silent.sum())} other places.",
    )


@check(mask_tokens, weight=2, see="Hide words and remember which")
def special(mask, case):
    """never chooses a special word, nor padding, but any other, whatever the numbers are"""
    tokens = texts_to_mask(case, 300, 6)
    _, goals = masked(case, mask, tokens)
    found = int(((goals != -100) & (tokens < 5)).sum())
    case.that(found == 0, f"No special word should be chosen, yours chooses {found} of them.")
    tokens = case.integers(0, 9, 60, 60)
    for special in ([3, 7], []):
        _, goals = masked(case, mask, tokens, numbers=(special, 5))
        chosen = set(tokens[goals != -100].tolist())
        right = set(range(9)) - set(special)
        case.that(
            chosen == right,
            f"Of the words 0 to 8 all but {special} should be chosen now and then, [MASK] (5) "
            f"among them; yours chooses {sorted(chosen)}.",
        )


@check(mask_tokens, weight=3, see="15 percent, then 80, 10 and 10")
def rates(mask, case):
    """chooses 15 % of the words; 80 % of these become [MASK], 10 % a random word"""
    tokens = texts_to_mask(case, 300, 400)
    inputs, goals = masked(case, mask, tokens)
    chosen = goals != -100
    share(case, chosen, tokens >= 5, 0.15, "The share of words that are chosen")
    share(
        case,
        inputs == MASK,
        chosen,
        0.8 + 0.1 / WORDS,
        "The share of chosen words that become [MASK]",
    )
    kept = 0.1 + 0.1 / WORDS  # a random word may be the same
    share(case, inputs == tokens, chosen, kept, "The share of chosen words that stay as they are")


@check(mask_tokens, see="15 percent, then 80, 10 and 10")
def generator(mask, case):
    """draws from the given generator, and anew in every call"""
    tokens = texts_to_mask(case, 30, 40)
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        source = torch.Generator().manual_seed(5)
        runs.append(masked(case, mask, tokens, generator=source))
    for name, a, b in zip(("inputs", "targets"), *runs, strict=True):
        case.equal(b, a, f"{name} from the same generator")
    _, other = masked(case, mask, tokens, generator=source)
    case.that(
        not torch.equal(other, runs[0][1]),
        "A second call should choose other words, yours chooses the same.",
    )


def chi_square(case, seen: list[int], expected: list[float], what: str) -> None:
    """Demand counts that could come by chance: once in a million a right one fails."""
    statistic = sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))
    k = len(seen) - 1
    # Wilson & Hilferty 1931: the cube root of χ²/k is nearly normal.
    limit = k * (1 - 2 / (9 * k) + 4.75 * math.sqrt(2 / (9 * k))) ** 3
    case.that(
        statistic < limit,
        f"{what} should be spread as stated: χ² below {limit:.1f}, yours gives {statistic:.1f}.",
    )


@check(mask_tokens, see="15 percent, then 80, 10 and 10")
def random_words(mask, case):
    """draws a random word from all V words, all equally often"""
    tokens = texts_to_mask(case, 400, 500)
    inputs, goals = masked(case, mask, tokens)
    changed = (goals != -100) & (inputs != tokens) & (inputs != MASK)
    outside = int((changed & ((inputs < 0) | (inputs >= WORDS))).sum())
    case.that(outside == 0, f"Random words should be below V, yours include {outside} others.")
    counts = torch.bincount(inputs[changed].long(), minlength=WORDS).tolist()
    case.that(sum(counts) > 0, "There should be random words among the inputs, yours include none.")
    ends = {word: counts[word] for word in (0, WORDS - 1)}
    del counts[MASK]
    rare, common = counts[:MASK], counts[MASK:]  # a word is seldom replaced by itself
    weight = 44 / 45
    unit = sum(counts) / (len(rare) + weight * len(common))
    expected = [unit] * len(rare) + [unit * weight] * len(common)
    chi_square(case, rare + common, expected, "The random words")
    for word, count in ends.items():
        case.that(count > 0, f"Word {word} should be among the random words, yours lack it.")
    ones = torch.ones(300, 400, dtype=torch.long)
    inputs, goals = masked(case, mask, ones, V=2, numbers=([], 0))
    what = "With two words, the share of chosen words that stay, half of the random ones too,"
    share(case, inputs == ones, goals != -100, 0.1 + 0.1 / 2, what)


@check(mask_tokens, see="15 percent, then 80, 10 and 10")
def own_randomness(mask, case):
    """draws from torch's own generator when none is given: anew in every call"""
    tokens = texts_to_mask(case, 30, 40)
    torch.manual_seed(3)
    first, second = (masked(case, mask, tokens, generator=None)[1] for _ in range(2))
    case.that(
        not torch.equal(first, second),
        "A call without a generator should choose other words each time, yours chooses the same.",
    )
    torch.manual_seed(3)
    again = masked(case, mask, tokens, generator=None)[1]
    case.equal(again, first, "targets after the same torch.manual_seed")


@check(mask_tokens, see="15 percent, then 80, 10 and 10")
def short(mask, case):
    """leaves a text of one word as it is most of the time"""
    runs = masked_often(case, mask, torch.tensor([[2, 9, 3]]), 80)
    chosen = sum(int((goals != -100).sum()) for _, goals in runs)
    case.that(
        chosen < 35,
        f"Of 80 texts of one word 12 should have a target (at most 34 by chance), yours {chosen}.",
    )


@check(mask_tokens, see="15 percent, then 80, 10 and 10")
def each_on_its_own(mask, case):
    """chooses each word independently: neither the same places or texts nor an exact share"""
    tokens = case.integers(5, WORDS, 300, 300)
    _, goals = masked(case, mask, tokens)
    chosen = (goals != -100).double()
    for axis, name in ((0, "place"), (1, "text")):
        spread = chosen.sum(dim=axis).var().item()
        expected = 300 * 0.15 * 0.85
        case.that(
            0.5 * expected < spread < 1.6 * expected,
            f"The number chosen for each {name} should have the variance {expected:.1f}, yours has "
            f"{spread:.1f}.",
        )
    ends = chosen[:, [0, -1]].sum(dim=0)
    case.that(ends.min() > 0, "The first and the last word should be chosen too, yours never are.")
    runs = masked_often(case, mask, tokens[:1], 30)
    counts = [int((goals != -100).sum()) for _, goals in runs]
    case.that(
        max(counts) - min(counts) > 5,
        f"Of 300 words some 45 should be chosen, sometimes 35 and sometimes 55; yours chooses from "
        f"{min(counts)} to {max(counts)}.",
    )


# next_sentence_pairs


def library(case: Case, lengths: list[int]) -> tuple[list, dict[int, tuple[int, int]]]:
    """Make documents of given lengths; the first word of each sentence says which one it is."""
    documents, places = [], {}
    for d, length in enumerate(lengths):
        documents.append([])
        for s in range(length):
            word = 100 * (d + 1) + s
            places[word] = d, s
            more = case.integers(0, 90, int(case.integers(0, 4, 1))).tolist()
            documents[-1].append([word, *more])
    return documents, places


def drawn_pairs(
    case: Case, draw, documents: list, places: dict, B: int, **options
) -> tuple[list[tuple[tuple[int, int], tuple[int, int]]], list[int]]:
    """Call a student's next_sentence_pairs; find out where the sentences come from."""
    options.setdefault("generator", case.generator)
    places_of, goals = where_from(draw, documents, places, B, options)
    quarters = (places_of[n::4] for n in range(4))
    return [((d, s), (e, t)) for d, s, e, t in zip(*quarters, strict=True)], goals


@together
def where_from(
    draw, documents: list, places: dict, B: int, options: dict
) -> tuple[list[int], list[int]]:
    """Draw pairs: document and place of the first sentence and of the second, for each; targets."""
    pairs, goals = Case.unpack(draw(documents, B, **options), "pairs", "targets")
    if isinstance(goals, Tensor):
        goals = goals.tolist()
    for name, given in (("pairs", pairs), ("targets", goals)):
        if not isinstance(given, (list, tuple)) or len(given) != B:
            raise Failure(f"{name} should be a list of {B}, yours is {describe(given)}.")
    if any(goal not in (0, 1) for goal in goals):
        raise Failure("targets should hold 0 and 1 only, yours hold something else.")
    found: list[int] = []
    for pair in pairs:
        for sentence in Case.unpack(pair, "first", "second"):
            sentence = sentence.tolist() if isinstance(sentence, Tensor) else sentence
            place = places.get(sentence[0]) if isinstance(sentence, (list, tuple)) else None
            if place is None or list(sentence) != documents[place[0]][place[1]]:
                raise Failure(
                    f"Every pair should hold two whole sentences, yours has {sentence!r:.40}."
                )
            found += place
    return found, list(goals)


@together
def wrong_pairs(draw, documents: list, places: dict, B: int, times: int, options: dict) -> list:
    """Draw pairs several times; count each time those whose second sentence does not follow."""
    return [sum(where_from(draw, documents, places, B, options)[1]) for _ in range(times)]


@check(next_sentence_pairs, weight=2, see="Does the second sentence follow")
def followers(draw, case):
    """gives 0 as the target exactly where the second sentence follows the first"""
    documents, places = library(case, [4, 2, 5, 3])
    found, goals = drawn_pairs(case, draw, documents, places, 300)
    for (a, b), goal in zip(found, goals, strict=True):
        follows = b == (a[0], a[1] + 1)
        names = f"sentence {a[1]} of document {a[0]}", f"sentence {b[1]} of document {b[0]}"
        case.that(
            goal == (0 if follows else 1),
            f"The target of {names[0]} and {names[1]} should be {int(not follows)}, yours is "
            f"{goal}.",
        )


@check(next_sentence_pairs, weight=2, see="Does the second sentence follow")
def strangers(draw, case):
    """when the second sentence does not follow, takes it from another document"""
    documents, places = library(case, [5, 4, 6])
    found, goals = drawn_pairs(case, draw, documents, places, 300)
    for (a, b), goal in zip(found, goals, strict=True):
        case.that(
            goal == 0 or a[0] != b[0],
            "A sentence that does not follow should be from another document, yours is from the "
            "same.",
        )


@check(next_sentence_pairs, see="Does the second sentence follow")
def half(draw, case):
    """draws as many pairs of one kind as of the other"""
    documents, places = library(case, [4, 2, 5, 3])
    _, goals = drawn_pairs(case, draw, documents, places, 2000)
    given = sum(goal == 0 for goal in goals) / 2000
    case.that(
        abs(given - 0.5) < 0.056,
        f"The share of pairs that follow should be 0.5 (± 0.056 by chance), yours is {given:.3f}.",
    )


@check(next_sentence_pairs, see="Does the second sentence follow")
def reaches(draw, case):
    """begins with every sentence that has a follower, and takes every sentence of the others"""
    documents, places = library(case, [4, 1, 3])
    found, goals = drawn_pairs(case, draw, documents, places, 1500)
    begin = [(d, s) for d, s in places.values() if (d, s + 1) in places.values()]
    for d, s in begin:
        case.that(
            (d, s) in {a for a, _ in found},
            f"Sentence {s} of document {d}, of {len(documents[d])}, should begin some pairs, in "
            f"yours it begins none.",
        )
    for first in (0, 2):
        seconds = {b for (a, b), goal in zip(found, goals, strict=True) if goal and a[0] == first}
        for d, s in places.values():
            case.that(
                d == first or (d, s) in seconds,
                f"Sentence {s} of document {d} should sometimes come, as a wrong second sentence, "
                f"after document {first}, yours never does.",
            )


@check(next_sentence_pairs, see="Does the second sentence follow")
def generator(draw, case):
    """draws from the given generator, and anew in every call, also without one"""
    documents, places = library(case, [4, 2, 5])
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        source = torch.Generator().manual_seed(7)
        runs.append(drawn_pairs(case, draw, documents, places, 40, generator=source))
    case.that(runs[0] == runs[1], "The same generator should give the same pairs, yours differ.")
    other = drawn_pairs(case, draw, documents, places, 40, generator=source)
    case.that(other != runs[0], "A second call should draw other pairs, yours draws the same.")
    torch.manual_seed(3)
    one, two = (drawn_pairs(case, draw, documents, places, 40, generator=None) for _ in range(2))
    case.that(
        one != two,
        "A call without a generator should draw other pairs each time, yours draws the same.",
    )


@check(next_sentence_pairs, see="Does the second sentence follow")
def coins(draw, case):
    """decides for each pair on its own whether the second sentence follows"""
    documents, places = library(case, [4, 2, 5])
    _, goals = drawn_pairs(case, draw, documents, places, 2000)
    goals = torch.tensor([int(goal) for goal in goals])
    same = int((goals[1:] == goals[:-1]).sum()) / 1999
    case.that(
        abs(same - 0.5) < 0.056,
        f"The share of targets that equal the one before should be 0.5 (± 0.056 by chance), yours "
        f"is {same:.3f}.",
    )
    counts = wrong_pairs(draw, documents, places, 6, 30, {"generator": case.generator})
    case.that(
        len(set(counts)) > 2,
        f"Of 6 pairs not always {counts[0]} should be wrong, yours gives {sorted(set(counts))}.",
    )


@check(next_sentence_pairs, weight=2, see="Does the second sentence follow")
def all_places(draw, case):
    """begins with any sentence that has a follower, all equally often"""
    documents, places = library(case, [4, 2, 1, 5, 3])
    found, _ = drawn_pairs(case, draw, documents, places, 3000)
    firsts = Counter(a for a, _ in found)
    begin = [(d, s) for d, s in places.values() if (d, s + 1) in places.values()]
    odd = sorted(set(firsts) - set(begin))
    case.that(
        not odd, f"The last sentence of a document should begin no pair, yours has {odd[:1]}."
    )
    chi_square(
        case, [firsts[p] for p in begin], [3000 / len(begin)] * len(begin), "The first sentences"
    )


@check(next_sentence_pairs, weight=2, see="Does the second sentence follow")
def all_others(draw, case):
    """takes any sentence of any other document, all documents equally often"""
    documents, places = library(case, [3, 1, 4])
    found, goals = drawn_pairs(case, draw, documents, places, 4000)
    chosen = [(a[0], b) for (a, b), goal in zip(found, goals, strict=True) if goal == 1]
    for document in (0, 2):
        seconds = Counter(b for d, b in chosen if d == document)
        total, others = sum(seconds.values()), [d for d in range(3) if d != document]
        expected = {
            (d, s): total / 2 / len(documents[d]) for d in others for s in range(len(documents[d]))
        }
        odd = sorted(set(seconds) - set(expected))
        case.that(not odd, f"Only other documents should be drawn from, yours draws {odd[:1]}.")
        chi_square(
            case, [seconds[p] for p in expected], list(expected.values()), "The second sentences"
        )


# The model


def drawn_state(case: Case, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Draw weights, none of them as a fresh model has it."""
    state = {}
    for name, shape in shapes.items():
        is_scale = "norm" in name and name.endswith("weight")
        drawn = case.rand(*shape) + 1 if is_scale else case.randn(*shape) / 2
        state[name] = drawn / shape[-1] ** 0.5 if len(shape) == 2 else drawn
    return state


def embedding_shapes(V: int, context: int, D: int, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """The weights of BertEmbeddings."""
    rows = {"token": V, "position": context, "segment": 2}
    shapes = {f"{prefix}{name}.weight": (count, D) for name, count in rows.items()}
    return shapes | {f"{prefix}norm.weight": (D,), f"{prefix}norm.bias": (D,)}


def layer_shapes(D: int, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """The weights of a BertLayer."""
    shapes = {f"attention.W_{x}": (D, D) for x in "QKVO"}
    shapes |= {f"attention.b_{x}": (D,) for x in "QKVO"}
    for name in ("norm_1", "norm_2"):
        shapes |= {f"{name}.weight": (D,), f"{name}.bias": (D,)}
    shapes |= {"expand.weight": (4 * D, D), "expand.bias": (4 * D,)}
    shapes |= {"contract.weight": (D, 4 * D), "contract.bias": (D,)}
    return {prefix + name: shape for name, shape in shapes.items()}


def model_shapes(V: int, context: int, D: int, L: int, prefix: str = "") -> dict:
    """The weights of a BertModel."""
    shapes = embedding_shapes(V, context, D, f"{prefix}embeddings.")
    for number in range(L):
        shapes |= layer_shapes(D, f"{prefix}layers.{number}.")
    return shapes


def linear_shapes(name: str, rows: int, D: int) -> dict[str, tuple[int, ...]]:
    """The weights of an nn.Linear."""
    return {f"{name}.weight": (rows, D), f"{name}.bias": (rows,)}


def pretraining_shapes(V: int, context: int, D: int, L: int) -> dict[str, tuple[int, ...]]:
    """The weights of a BertPretraining."""
    shapes = model_shapes(V, context, D, L, "bert.") | linear_shapes("transform", D, D)
    shapes |= {"norm.weight": (D,), "norm.bias": (D,), "bias": (V,)}
    return shapes | linear_shapes("pooler", D, D) | linear_shapes("next_sentence", 2, D)


def below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}


def normed(state: dict[str, Tensor], X: Tensor) -> Tensor:
    """Apply torch's layer norm."""
    return F.layer_norm(X, X.shape[-1:], state["weight"], state["bias"], 1e-12)


def embedded(state: dict[str, Tensor], tokens: Tensor, segments: Tensor | None) -> Tensor:
    """Compute embeddings by one-hot vectors."""
    kinds = torch.zeros_like(tokens) if segments is None else segments
    parts = {"token": tokens, "segment": kinds, "position": torch.arange(tokens.shape[1])}
    X = sum(
        F.one_hot(numbers, len(state[f"{name}.weight"])).double() @ state[f"{name}.weight"]
        for name, numbers in parts.items()
    )
    return normed(below(state, "norm."), X)


def torchs_layer(state: dict[str, Tensor], H: int) -> nn.Module:
    """Give torch's own layer, norms after the sums, the weights of a BertLayer."""
    D = len(state["norm_1.weight"])
    layer = nn.TransformerEncoderLayer(
        D, H, 4 * D, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
    ).double()
    theirs = {
        "self_attn.in_proj_weight": torch.cat([state[f"attention.W_{x}"].T for x in "QKV"]),
        "self_attn.in_proj_bias": torch.cat([state[f"attention.b_{x}"] for x in "QKV"]),
        "self_attn.out_proj.weight": state["attention.W_O"].T,
        "self_attn.out_proj.bias": state["attention.b_O"],
    }
    pairs = {"linear1": "expand", "linear2": "contract", "norm1": "norm_1", "norm2": "norm_2"}
    for their, our in pairs.items():
        theirs |= {f"{their}.{kind}": state[f"{our}.{kind}"] for kind in ("weight", "bias")}
    layer.load_state_dict(theirs)
    return layer


def encoded(
    state: dict[str, Tensor],
    H: int,
    tokens: Tensor,
    segments: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Compute a BertModel's vectors with torch's own layers."""
    X = embedded(below(state, "embeddings."), tokens, segments)
    hidden = None if lengths is None else torch.arange(tokens.shape[1]) >= lengths[:, None]
    number = 0
    while f"layers.{number}.norm_1.weight" in state:
        layer = torchs_layer(below(state, f"layers.{number}."), H)
        X = layer(X, src_key_padding_mask=hidden)
        number += 1
    return X


def word_scores(state: dict[str, Tensor], X: Tensor) -> Tensor:
    """Compute the scores of all words with torch's own functions."""
    X = F.gelu(F.linear(X, state["transform.weight"], state["transform.bias"]))
    table = state["bert.embeddings.token.weight"]
    return F.linear(normed(below(state, "norm."), X), table, state["bias"])


def class_scores(state: dict[str, Tensor], X: Tensor, last: str) -> Tensor:
    """Compute the scores of classes from the first vectors."""
    pooled = F.linear(X.select(1, 0), state["pooler.weight"], state["pooler.bias"]).tanh()
    return F.linear(pooled, state[f"{last}.weight"], state[f"{last}.bias"])


def batch(case: Case, B: int, T: int, V: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw texts, their segments and their lengths."""
    tokens, lengths = case.integers(0, V, B, T), case.lengths(B, T)
    borders = (case.rand(B, 1) * T).long()
    return tokens, (torch.arange(T) > borders).long(), lengths


@check(BertEmbeddings, weight=2, see="Token, position and segment", single="B")
def values(embeddings, case):
    """adds token, position and segment, and normalises the sum"""
    B, T, V, D = case.sizes(4, low=3)
    state = drawn_state(case, embedding_shapes(V, T + 2, D))
    tokens, segments, _ = batch(case, B, T, V)
    given = made(embeddings, state, V, T + 2, D)(tokens, segments)
    case.equal(given, embedded(state, tokens, segments), "X")


@check(BertEmbeddings, see="Token, position and segment")
def one_sentence(embeddings, case):
    """puts every word into segment 0 when no segments are given"""
    B, T, V, D = case.sizes(4, low=3)
    state = drawn_state(case, embedding_shapes(V, T + 1, D))
    tokens, segments, _ = batch(case, B, T, V)
    ours = made(embeddings, state, V, T + 1, D)
    case.equal(ours(tokens), embedded(state, tokens, None), "X")
    ours(tokens, segments)
    case.equal(ours(tokens), embedded(state, tokens, None), "X after a call with segments")


@check(BertEmbeddings, see="Token, position and segment")
def full_context(embeddings, case):
    """takes a text as long as the context, and raises ValueError for a longer one"""
    B, T, V, D = case.sizes(4, low=3)
    state = drawn_state(case, embedding_shapes(V, T, D))
    tokens, segments, _ = batch(case, B, T + 1, V)
    ours = made(embeddings, state, V, T, D)
    given = ours(tokens[:, :T], segments[:, :T])
    case.equal(given, embedded(state, tokens[:, :T], segments[:, :T]), "X")
    case.raises(ValueError, lambda: ours(tokens, segments), "a text is longer than the context")


def layer_pair(case: Case, layer, D: int, H: int) -> tuple:
    """Make a student's layer and torch's with the same weights."""
    state = drawn_state(case, layer_shapes(D))
    return made(layer, state, D, H), torchs_layer(state, H)


def layer_results(case: Case, result: object, X: Tensor, H: int) -> tuple[Tensor, Tensor]:
    """Split what a layer returns, and demand the shapes."""
    B, T, _ = X.shape
    Y, A = case.unpack(result, "X", "A")
    case.shape(Y, tuple(X.shape), "X")
    case.shape(A, (B, H, T, T), "A")
    return Y, A


@check(BertLayer, weight=3, see="Norms after the sums")
def values(layer, case):
    """agrees with torch.nn.TransformerEncoderLayer, norms after the sums, with GELU"""
    B, T, H, D_h = case.sizes(4, low=2)
    ours, theirs = layer_pair(case, layer, H * D_h, H)
    X = case.randn(B, T, H * D_h)
    given, _ = layer_results(case, ours(X), X, H)
    case.equal(given, theirs(X), "X")


@check(BertLayer, weight=2, see="Norms after the sums")
def mask(layer, case):
    """agrees with torch.nn.TransformerEncoderLayer when padding is forbidden"""
    B, T, H, D_h = case.sizes(4, low=3)
    ours, theirs = layer_pair(case, layer, H * D_h, H)
    X, lengths = case.randn(B, T, H * D_h), case.lengths(B, T)
    hidden = torch.arange(T) >= lengths[:, None]
    given, _ = layer_results(case, ours(X, ~hidden[:, None]), X, H)
    case.equal(given, theirs(X, src_key_padding_mask=hidden), "X with padding")
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    given, _ = layer_results(case, ours(X, causal), X, H)
    case.equal(given, theirs(X, src_mask=~causal), "X under a mask for each word")


@check(BertLayer, see="Norms after the sums")
def weights(layer, case):
    """returns the attention's weights"""
    B, T, H, D_h = case.sizes(4, low=2)
    ours, theirs = layer_pair(case, layer, H * D_h, H)
    X = case.randn(B, T, H * D_h)
    _, expected = theirs.self_attn(X, X, X, average_attn_weights=False)
    _, A = layer_results(case, ours(X), X, H)
    case.equal(A, expected, "A")


@check(BertLayer, see="Norms after the sums")
def gradients(layer, case):
    """passes the same gradients back as torch's layer"""
    B, T, H, D_h = case.sizes(4, low=2)
    ours, theirs = layer_pair(case, layer, H * D_h, H)
    X, seen = case.randn(B, T, H * D_h).requires_grad_(), case.randn(B, T, H * D_h)
    (expected,) = torch.autograd.grad(theirs(X), X, seen)
    Y, _ = layer_results(case, ours(X), X, H)
    case.trains(Y, "X")
    Y.backward(seen)
    case.gradient(X, expected, "X")
    case.learns(ours)


@check(BertLayer, see="Norms after the sums")
def one_word(layer, case):
    """agrees with torch's layer on texts of one word"""
    B, H, D_h = case.sizes(3, low=2)
    ours, theirs = layer_pair(case, layer, H * D_h, H)
    X = case.randn(B, 1, H * D_h)
    given, _ = layer_results(case, ours(X), X, H)
    case.equal(given, theirs(X), "X of one word")


def bert_pair(case: Case, model, B: int, T: int, V: int, H: int, D_h: int, L: int) -> tuple:
    """Make a student's BertModel, its weights and a batch."""
    D = H * D_h
    state = drawn_state(case, model_shapes(V, T + 2, D, L))
    return made(model, state, V, T + 2, D, H, L), state, batch(case, B, T, V)


@check(BertModel, weight=2, see="The encoder", single="B")
def values(model, case):
    """agrees with a stack of torch.nn.TransformerEncoderLayer on texts without padding"""
    B, T, V, H, D_h = case.sizes(5, low=2)
    ours, state, (tokens, segments, _) = bert_pair(case, model, B, T, V, H, D_h, 3)
    case.equal(ours(tokens, segments), encoded(state, H, tokens, segments), "X")


@check(BertModel, weight=2, see="The encoder")
def padding(model, case):
    """agrees with that stack on texts of different lengths"""
    B, T, V, H, D_h = case.sizes(5, low=3)
    ours, state, (tokens, segments, lengths) = bert_pair(case, model, B, T, V, H, D_h, 2)
    expected = encoded(state, H, tokens, segments, lengths)
    case.equal(ours(tokens, segments, lengths), expected, "X with padding")
    short = torch.full((B,), T - 1)
    expected = encoded(state, H, tokens, segments, short)
    case.equal(ours(tokens, segments, short), expected, "X with padding after every text")


@check(BertModel, see="The encoder")
def both_sides(model, case):
    """lets the first word see the last one"""
    B, T, V, H, D_h = case.sizes(5, low=3)
    ours, _, (tokens, segments, _) = bert_pair(case, model, B, T, V, H, D_h, 2)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % V
    results = [ours(each, segments) for each in (tokens, changed)]
    for X in results:
        case.shape(X, (B, T, H * D_h), "X")
    moved = (results[0][:, 0] - results[1][:, 0]).abs().amax().item()
    case.that(
        moved > 1e-6, "The vector of the first word should depend on the last word, yours does not."
    )


@check(BertModel, see="The encoder")
def weights(model, case):
    """returns the weights of all layers, zero where there is padding"""
    B, T, V, H, D_h = case.sizes(5, low=3)
    ours, _, (tokens, segments, lengths) = bert_pair(case, model, B, T, V, H, D_h, 2)
    result = ours(tokens, segments, lengths, return_weights=True)
    _, A = case.unpack(result, "X", "A")
    case.shape(A, (2, B, H, T, T), "A")
    real = (torch.arange(T) < lengths[:, None])[:, None, None]
    case.equal((A * real).sum(dim=-1), torch.ones(2, B, H, T), "sums of A over real words")


@check(BertModel, see="The encoder")
def layers_in_order(model, case):
    """returns the weights of the first layer first"""
    B, T, V, H, D_h = case.sizes(5, low=3)
    ours, state, (tokens, kinds, _) = bert_pair(case, model, B, T, V, H, D_h, 3)
    _, A = case.unpack(ours(tokens, kinds, return_weights=True), "X", "A")
    case.shape(A, (3, B, H, T, T), "A")
    X = embedded(below(state, "embeddings."), tokens, kinds)
    W = [X @ state[f"layers.0.attention.W_{x}"] + state[f"layers.0.attention.b_{x}"] for x in "QK"]
    Q, K = (part.view(B, T, H, D_h).transpose(1, 2) for part in W)
    case.equal(A[0], torch.softmax(Q @ K.mT / math.sqrt(D_h), dim=-1), "A of the first layer")


@check(BertModel, see="The encoder")
def filling(model, case):
    """gives real words the same vectors whatever the padding holds"""
    B, T, V, H, D_h = case.sizes(5, low=3)
    ours, _, (tokens, kinds, lengths) = bert_pair(case, model, B, T, V, H, D_h, 2)
    real = torch.arange(T) < lengths[:, None]
    runs = [ours(torch.where(real, tokens, word), kinds, lengths) for word in (0, V - 1)]
    for X in runs:
        case.shape(X, (B, T, H * D_h), "X")
    case.equal(runs[1][real], runs[0][real], "vectors of real words with other padding")


# The heads


def mlm_weights(case: Case, V: int, D: int) -> list[Tensor]:
    """Draw W, b, gain, shift, token and bias."""
    W, b, gain, shift = case.randn(D, D), case.randn(D), 1 + case.rand(D), case.randn(D)
    return [W / D**0.5, b, gain, shift, case.randn(V, D), case.randn(V)]


def scored(X: Tensor, weights: list[Tensor]) -> Tensor:
    """Compute what mlm_head should."""
    W, b, gain, shift, token, bias = weights
    state = {"transform.weight": W, "transform.bias": b, "norm.weight": gain, "norm.bias": shift}
    return word_scores({**state, "bert.embeddings.token.weight": token, "bias": bias}, X)


@check(mlm_head, weight=3, see="Fill the gap", single="B")
def values(head, case):
    """agrees with nn.Linear, GELU, nn.LayerNorm and a product with the embedding"""
    B, T, V, D = case.sizes(4, low=3)
    X, weights = case.randn(B, T, D), mlm_weights(case, V, D)
    case.equal(head(X, *weights), scored(X, weights), "logits")


@check(mlm_head, see="Fill the gap")
def tied(head, case):
    """sends a gradient to the embedding of every word"""
    B, T, V, D = case.sizes(4, low=3)
    X, weights = case.randn(B, T, D), mlm_weights(case, V, D)
    seen = case.randn(B, T, V)
    token = weights[4].requires_grad_()
    (expected,) = torch.autograd.grad(scored(X, weights), token, seen)
    logits = head(X, *weights)
    case.shape(logits, (B, T, V), "logits")
    case.trains(logits, "logits")
    logits.backward(seen)
    case.gradient(token, expected, "the embedding")


@check(mlm_head, see="Fill the gap")
def chosen_places(head, case):
    """also accepts a list of vectors, and vectors that hardly vary"""
    N, V, D = case.sizes(3, low=4)
    X, weights = case.randn(N, D), mlm_weights(case, V, D)
    weights[0], weights[1] = 1e-3 * weights[0], 0 * weights[1]
    case.equal(head(X, *weights), scored(X, weights), "logits")


def nsp_weights(case: Case, C: int, D: int) -> list[Tensor]:
    """Draw W_P, b_P, W and b."""
    return [case.randn(D, D) / D**0.5, case.randn(D), case.randn(C, D), case.randn(C)]


def classified(X: Tensor, weights: list[Tensor]) -> Tensor:
    """Compute what nsp_head should."""
    names = "pooler.weight", "pooler.bias", "last.weight", "last.bias"
    return class_scores(dict(zip(names, weights, strict=True)), X, "last")


@check(nsp_head, weight=2, see="One vector for the whole text", single="B")
def values(head, case):
    """agrees with nn.Linear, tanh and nn.Linear on the first vector"""
    B, T, D = case.sizes(3, low=3)
    X, weights = case.randn(B, T, D), nsp_weights(case, 2, D)
    case.equal(head(X, *weights), classified(X, weights), "logits")


@check(nsp_head, see="One vector for the whole text")
def first_alone(head, case):
    """gives the same whatever the other vectors are"""
    B, T, D = case.sizes(3, low=3)
    X, weights = case.randn(B, T, D), nsp_weights(case, 2, D)
    other = torch.cat([X[:, :1], case.randn(B, T - 1, D)], dim=1)
    results = [head(each, *weights) for each in (X, other)]
    case.shape(results[0], (B, 2), "logits")
    case.equal(results[1], results[0], "logits with other vectors after the first")


@check(nsp_head, see="One vector for the whole text")
def gradients(head, case):
    """sends a gradient to the first vector alone, and to all weights"""
    B, T, D = case.sizes(3, low=3)
    X, *weights = leaves = [case.randn(B, T, D), *nsp_weights(case, 2, D)]
    for leaf in leaves:
        leaf.requires_grad_()
    seen = case.randn(B, 2)
    expected = torch.autograd.grad(classified(X, weights), leaves, seen)
    logits = head(X, *weights)
    case.shape(logits, (B, 2), "logits")
    case.trains(logits, "logits")
    logits.backward(seen)
    for name, leaf, wanted in zip(("X", "W_P", "b_P", "W", "b"), leaves, expected, strict=True):
        case.gradient(leaf, wanted, name)


def pretraining_pair(case: Case, model, sizes: list[int], L: int = 2) -> tuple:
    """Make a student's BertPretraining, its weights and a batch."""
    B, T, V, H, D_h = sizes
    state = drawn_state(case, pretraining_shapes(V, T + 1, H * D_h, L))
    return made(model, state, V, T + 1, H * D_h, H, L), state, batch(case, B, T, V)


def two_logits(case: Case, result: object, B: int, T: int, V: int) -> tuple[Tensor, Tensor]:
    """Split what a BertPretraining returns, and demand the shapes."""
    words, follows = case.unpack(result, "mlm_logits", "nsp_logits")
    case.shape(words, (B, T, V), "mlm_logits")
    case.shape(follows, (B, 2), "nsp_logits")
    return words, follows


@check(BertPretraining, weight=2, see="Both heads on one encoder", single="B")
def values(model, case):
    """gives the logits of both heads"""
    sizes = case.sizes(5, low=3)
    ours, state, (tokens, segments, lengths) = pretraining_pair(case, model, sizes)
    words, follows = two_logits(case, ours(tokens, segments, lengths), *sizes[:3])
    X = encoded(below(state, "bert."), sizes[3], tokens, segments, lengths)
    case.equal(words, word_scores(state, X), "mlm_logits")
    case.equal(follows, class_scores(state, X, "next_sentence"), "nsp_logits")
    case.trains(follows, "nsp_logits")


@check(BertPretraining, see="Both heads on one encoder")
def one_table(model, case):
    """trains one table for reading and for scoring: absent words get a gradient too"""
    sizes = case.sizes(5, low=3)
    ours, _, (tokens, segments, lengths) = pretraining_pair(case, model, sizes)
    words, _ = two_logits(case, ours(tokens % 2, segments, lengths), *sizes[:3])
    case.trains(words, "mlm_logits")
    words.square().sum().backward()
    table = dict(ours.named_parameters())["bert.embeddings.token.weight"]
    reached = table.grad is not None and bool((table.grad[2:].abs().sum(dim=1) > 0).all())
    case.that(reached, "Every word's row should get a gradient, in yours absent words get none.")


def demand_gradients(case, module, output, prefix: str, of: str) -> None:
    """Demand that a backward pass from `output` reaches all parameters below a prefix."""
    case.trains(output, of)
    output.square().sum().backward()
    for name, parameter in module.named_parameters():
        case.that(
            not name.startswith(prefix) or parameter.grad is not None,
            f"A gradient should go from {of} to {name}, in yours none does.",
        )


@check(BertPretraining, see="Both heads on one encoder")
def trains_encoder(model, case):
    """sends gradients from either head through the whole encoder"""
    sizes = case.sizes(5, low=3)
    for number, name in enumerate(("mlm_logits", "nsp_logits")):
        ours, _, given = pretraining_pair(case, model, sizes)
        output = two_logits(case, ours(*given), *sizes[:3])[number]
        demand_gradients(case, ours, output, "bert.", name)


@check(BertPretraining, see="Both heads on one encoder")
def one_text(model, case):
    """gives the logits of plain texts, without segments and lengths"""
    sizes = case.sizes(5, low=3)
    ours, state, (tokens, _, _) = pretraining_pair(case, model, sizes, L=1)
    words, follows = two_logits(case, ours(tokens), *sizes[:3])
    X = encoded(below(state, "bert."), sizes[3], tokens)
    case.equal(words, word_scores(state, X), "mlm_logits")
    case.equal(follows, class_scores(state, X, "next_sentence"), "nsp_logits")


def losses(case: Case, B: int, T: int, V: int) -> list[Tensor]:
    """Draw logits and targets of both tasks."""
    goals = torch.where(case.rand(B, T) < 0.4, case.integers(0, V, B, T), -100)
    goals[0, 0] = 1
    return [case.randn(B, T, V), goals, case.randn(B, 2), case.integers(0, 2, B)]


def summed(words: Tensor, goals: Tensor, follows: Tensor, kinds: Tensor) -> Tensor:
    """Compute the sum of both losses by torch's own."""
    return F.cross_entropy(words[goals != -100], goals[goals != -100]) + F.cross_entropy(
        follows, kinds
    )


@check(pretraining_loss, weight=3, see="One loss for both")
def values(loss, case):
    """adds the cross-entropies of the chosen words and of the pairs"""
    B, T, V = case.sizes(3, low=4)
    given = losses(case, B, T, V)
    case.equal(loss(*given), summed(*given), "loss")


@check(pretraining_loss, see="One loss for both")
def nothing_chosen(loss, case):
    """is the loss of the pairs alone when no word was chosen"""
    B, T, V = case.sizes(3, low=4)
    words, goals, follows, kinds = losses(case, B, T, V)
    given = loss(words, torch.full_like(goals, -100), follows, kinds)
    case.equal(given, F.cross_entropy(follows, kinds), "loss")


@check(pretraining_loss, see="One loss for both")
def gradients(loss, case):
    """sends gradients to both logits"""
    B, T, V = case.sizes(3, low=4)
    given = losses(case, B, T, V)
    places = [given[0].requires_grad_(), given[2].requires_grad_()]
    expected = torch.autograd.grad(summed(*given), places)
    value = loss(*given)
    case.shape(value, (), "loss")
    case.trains(value, "loss")
    value.backward()
    for name, place, wanted in zip(("mlm_logits", "nsp_logits"), places, expected, strict=True):
        case.gradient(place, wanted, name)


@check(pretraining_loss, see="One loss for both")
def confident(loss, case):
    """stays finite where a wrong word, or a wrong class, is certain"""
    B, T, V = case.sizes(3, low=4)
    words, goals, follows, kinds = losses(case, B, T, V)
    given = [1e4 * words, goals, follows, kinds]
    case.equal(loss(*given), summed(*given), "loss with words that are certain")
    given = [words, goals, 1e4 * follows, kinds]
    case.equal(loss(*given), summed(*given), "loss with classes that are certain")


@check(pretraining_loss, see="One loss for both")
def one_word_chosen(loss, case):
    """counts a single chosen word of a long batch as much as all of them"""
    B, T, V = case.sizes(3, low=4)
    words, goals, follows, kinds = losses(case, B, T, V)
    goals = torch.full_like(goals, -100)
    goals[1, 2] = 3
    expected = F.cross_entropy(words[1:2, 2], goals[1:2, 2]) + F.cross_entropy(follows, kinds)
    case.equal(loss(words, goals, follows, kinds), expected, "loss")


@check(pretraining_loss, see="One loss for both")
def gradients_alone(loss, case):
    """trains the pairs when no word was chosen, and the words then get no gradient, and no NaN"""
    B, T, V = case.sizes(3, low=4)
    words, goals, follows, kinds = losses(case, B, T, V)
    words, follows = words.requires_grad_(), follows.requires_grad_()
    (expected,) = torch.autograd.grad(F.cross_entropy(follows, kinds), follows)
    value = loss(words, torch.full_like(goals, -100), follows, kinds)
    case.shape(value, (), "loss")
    case.trains(value, "loss")
    value.backward()
    case.gradient(follows, expected, "nsp_logits")
    if words.grad is not None:
        case.gradient(words, torch.zeros_like(words), "mlm_logits")


def classifier_shapes(V: int, context: int, D: int, L: int, C: int) -> dict[str, tuple[int, ...]]:
    """The weights of a SentenceClassifier."""
    shapes = model_shapes(V, context, D, L, "bert.") | linear_shapes("pooler", D, D)
    return shapes | linear_shapes("classifier", C, D)


@check(SentenceClassifier, weight=2, see="A new head on an old encoder", single="B")
def values(classifier, case):
    """classifies by the vector of [CLS]"""
    B, T, V, H, D_h, C = case.sizes(6, low=2)
    state = drawn_state(case, classifier_shapes(V, T + 1, H * D_h, 2, C))
    tokens, segments, lengths = batch(case, B, T, V)
    ours = made(classifier, state, V, T + 1, H * D_h, H, 2, C)
    X = encoded(below(state, "bert."), H, tokens, segments, lengths)
    expected = class_scores(state, X, "classifier")
    logits = ours(tokens, segments, lengths)
    case.equal(logits, expected, "logits")
    case.trains(logits, "logits")


@check(SentenceClassifier, weight=2, see="A new head on an old encoder")
def starts(classifier, case):
    """takes over every weight of a pretrained model's encoder and pooler"""
    V, T, H, D_h, C = case.sizes(5, low=2)
    D = H * D_h
    pretrained = drawn_state(case, pretraining_shapes(V, T, D, 2))
    ours = classifier(V, T, D, H, 2, C).double()
    ours.start_from(pretrained)
    state = ours.state_dict()
    for name in classifier_shapes(V, T, D, 2, C):
        if not name.startswith("classifier"):
            case.equal(state.get(name), pretrained[name], f"{name} after start_from")


@check(SentenceClassifier, see="A new head on an old encoder")
def fresh_head(classifier, case):
    """leaves its own output layer as it is, even where the sizes would fit"""
    V, T, H, D_h = case.sizes(4, low=2)
    D = H * D_h
    pretrained = drawn_state(case, pretraining_shapes(V, T, D, 1))
    ours = classifier(V, T, D, H, 1, 2).double()
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    ours.start_from(pretrained)
    after = ours.state_dict()
    for name in ("classifier.weight", "classifier.bias"):
        case.equal(after.get(name), before[name], f"{name} after start_from")


@check(SentenceClassifier, see="A new head on an old encoder")
def trains_all(classifier, case):
    """trains encoder, pooler and classifier, also after start_from"""
    B, T, V, H, D_h, C = case.sizes(6, low=2)
    ours = classifier(V, T, H * D_h, H, 1, C).double()
    ours.start_from(drawn_state(case, pretraining_shapes(V, T, H * D_h, 1)))
    logits = ours(*batch(case, B, T, V))
    case.shape(logits, (B, C), "logits")
    demand_gradients(case, ours, logits, "", "the logits")


@check(SentenceClassifier, see="A new head on an old encoder")
def called_again(classifier, case):
    """classifies the texts of a second call by themselves"""
    B, T, V, H, D_h, C = case.sizes(6, low=2)
    state = drawn_state(case, classifier_shapes(V, T, H * D_h, 1, C))
    ours = made(classifier, state, V, T, H * D_h, H, 1, C)
    for call in ("first", "second"):
        tokens, _, _ = batch(case, B, T, V)
        X = encoded(below(state, "bert."), H, tokens)
        expected = class_scores(state, X, "classifier")
        case.equal(ours(tokens), expected, f"logits of the {call} call")


# Spans


def pointed(X: Tensor, v: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Compute the scores of one of the two vectors token by token."""
    rows = [[sum(x * w for x, w in zip(t, v, strict=True)) for t in text] for text in X]
    scores = torch.stack([torch.stack(row) for row in rows])
    return scores if allowed is None else torch.where(allowed, scores, -math.inf)


def span_inputs(case: Case, B: int, T: int, D: int) -> tuple[list[Tensor], Tensor]:
    """Draw vectors, S, E, and where an answer may be: [CLS] and some others."""
    allowed = case.rand(B, T) < 0.6
    allowed[:, 0], allowed[:, -1] = True, False
    return [case.randn(B, T, D), case.randn(D), case.randn(D)], allowed


@check(span_head, weight=2, see="Point at the answer", single="B")
def values(head, case):
    """multiplies every vector by S and by E"""
    B, T, D = case.sizes(3, low=3)
    (X, S, E), _ = span_inputs(case, B, T, D)
    start, end = case.unpack(head(X, S, E), "start", "end")
    case.equal(start, pointed(X, S), "start")
    case.equal(end, pointed(X, E), "end")


@check(span_head, weight=2, see="Point at the answer")
def allowed(head, case):
    """gives −∞ where no answer may begin or end"""
    B, T, D = case.sizes(3, low=4)
    (X, S, E), places = span_inputs(case, B, T, D)
    scores = case.unpack(head(X, S, E, places), "start", "end")
    for name, score in zip(("start", "end"), scores, strict=True):
        case.shape(score, (B, T), name)
    expected = torch.stack([pointed(X, v, places) for v in (S, E)])
    case.equal(torch.stack(scores), expected, "start and end")


@check(span_head, see="Point at the answer")
def gradients(head, case):
    """sends the same gradients back as sums do, and none from where no answer may be"""
    B, T, D = case.sizes(3, low=4)
    leaves, places = span_inputs(case, B, T, D)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    X, S, E = leaves
    pulls = [case.randn(B, T) * places for _ in range(2)]
    scores = [pointed(X, v, places) for v in (S, E)]
    wanted = torch.autograd.grad(scores, leaves, pulls)
    given = case.unpack(head(X, S, E, places), "start", "end")
    for name, part in zip(("start", "end"), given, strict=True):
        case.shape(part, (B, T), name)
        case.trains(part, name)
    torch.autograd.backward(given, pulls)
    for name, leaf, expected in zip("XSE", leaves, wanted, strict=True):
        case.gradient(leaf, expected, name)


@check(span_head, see="Point at the answer")
def one_token(head, case):
    """scores texts of a single token, which may be forbidden even if it is [CLS]"""
    B, D = case.sizes(2, low=3)
    (X, S, E), _ = span_inputs(case, B, 1, D)
    places = torch.arange(B)[:, None] % 2 == 0
    start, end = case.unpack(head(X, S, E, places), "start", "end")
    case.equal(start, pointed(X, S, places), "start")
    case.equal(end, pointed(X, E, places), "end")


@once
def searched(
    start: Tensor, end: Tensor, longest: int, margin: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Find the best spans by trying all of them."""
    found = []
    for s, e in zip(start.tolist(), end.tolist(), strict=True):
        best, answer = s[0] + e[0] + margin, (0, 0)
        for i in range(1, len(s)):
            for j in range(i, min(i + longest, len(s))):
                if s[i] + e[j] > best:
                    best, answer = s[i] + e[j], (i, j)
        found.append(answer)
    first, last = zip(*found, strict=True)
    return torch.tensor(first), torch.tensor(last)


def span_scores(case: Case, B: int, T: int) -> tuple[Tensor, Tensor]:
    """Draw scores of start and end, higher for [CLS], so that some texts have no answer."""
    starts, ends = case.randn(B, T), case.randn(B, T)
    starts[:, 0] += 1.2
    ends[:, 0] += 1.2
    return starts, ends


def spans(case: Case, result: object, B: int) -> tuple[Tensor, Tensor]:
    """Split what a best_span returns, and demand the shapes."""
    first, last = case.unpack(result, "first", "last")
    case.shape(first, (B,), "first")
    case.shape(last, (B,), "last")
    return first, last


def demand_spans(case: Case, result: object, expected: tuple[Tensor, Tensor]) -> None:
    """Demand that a best_span has found these."""
    first, last = spans(case, result, len(expected[0]))
    case.equal(first, expected[0], "first")
    case.equal(last, expected[1], "last")


@check(best_span, weight=3, see="The best span", single="B")
def values(best, case):
    """finds the best of all spans"""
    (B,) = case.narrowed([40])
    start, end = span_scores(case, B, 9)
    demand_spans(case, best(start, end, 3), searched(start, end, 3))


@check(best_span, weight=2, see="The best span")
def possible(best, case):
    """never ends before it begins, and takes no more than `longest` words"""
    start, end = span_scores(case, 60, 11)
    first, last = spans(case, best(start, end, 4), 60)
    wrong = int((last < first).sum())
    case.that(wrong == 0, f"No span should end before it begins, {wrong} of yours do.", first)
    words = int((last - first + 1).max())
    case.that(words <= 4, f"A span should have at most 4 words, one of yours has {words}.", last)


@check(best_span, see="The best span")
def no_answer(best, case):
    """answers with 0 and 0 where [CLS] scores more than every span"""
    start, end = span_scores(case, 30, 7)
    start[::2, 0] += 9
    demand_spans(case, best(start, end, 7), searched(start, end, 7))


@check(best_span, weight=2, see="The best span")
def margin(best, case):
    """demands that an answer beats no answer by more than the margin, which may be negative"""
    start, end = span_scores(case, 40, 8)
    for margin in (-1.5, 0.8, 2.5):
        given = best(start, end, 3, margin)
        demand_spans(case, given, searched(start, end, 3, margin))


@check(best_span, see="The best span")
def refuses(best, case):
    """raises ValueError when no word may be taken"""
    start, end = span_scores(case, 4, 6)
    case.raises(ValueError, lambda: best(start, end, 0), "longest is 0")


@check(best_span, see="The best span")
def equal_scores(best, case):
    """gives no answer where the best span scores as much as [CLS], or exactly the margin more"""
    start, end = torch.full((2, 12, 6), -8.0, dtype=torch.float64)
    start[:, 0], end[:, 0] = 1.5, 2.5
    rows = torch.arange(12)
    start[rows, 1 + rows % 2] = 2.0 + torch.tensor([0.25, 0.5, 0.0]).double().repeat(4)
    end[rows, 3 + rows % 2] = 2.0
    for margin in (0.0, 0.25):
        given = best(start, end, 4, margin)
        demand_spans(case, given, searched(start, end, 4, margin))


@check(best_span, see="The best span")
def cls_alone(best, case):
    """finds no answer in texts of a single token, [CLS]"""
    start, end = span_scores(case, 5, 1)
    demand_spans(case, best(start, end, 3), searched(start, end, 3))


@check(best_span, see="The best span")
def single_words(best, case):
    """finds answers of one word where no more are allowed"""
    start, end = span_scores(case, 40, 60)
    demand_spans(case, best(start, end, 1), searched(start, end, 1))


@check(best_span, see="The best span")
def not_allowed(best, case):
    """passes over what scores −∞, and gives no answer where nothing else is left"""
    start, end = span_scores(case, 40, 9)
    places = case.rand(40, 9) < 0.6
    places[:, 0], places[::7, 1:] = True, False
    start, end = (scores.masked_fill(~places, -math.inf) for scores in (start, end))
    for margin in (0.0, -1e6):
        given = best(start, end, 3, margin)
        demand_spans(case, given, searched(start, end, 3, margin))


@check(best_span, see="The best span")
def whole_text(best, case):
    """lets an answer be as long as the text, even where `longest` is larger, at all scores"""
    start, end = span_scores(case, 40, 6)
    start[::2, 1] += 4
    end[::2, -1] += 4
    for shift in (0.0, -1e5):
        start = start + shift
        demand_spans(case, best(start, end, 9), searched(start, end, 9))


# The published weights


def published(case: Case, V: int, context: int, D: int, L: int) -> dict[str, Tensor]:
    """Draw weights under the names of BertForPreTraining."""
    linear = lambda name, rows, columns: {  # noqa: E731
        f"{name}.weight": case.randn(rows, columns),
        f"{name}.bias": case.randn(rows),
    }
    norm = lambda name: {  # noqa: E731
        f"{name}.weight": case.randn(D),
        f"{name}.bias": case.randn(D),
    }
    tables = {"word": V, "position": context, "token_type": 2}
    state = {
        f"bert.embeddings.{name}_embeddings.weight": case.randn(rows, D)
        for name, rows in tables.items()
    }
    state |= norm("bert.embeddings.LayerNorm")
    for number in range(L):
        layer = f"bert.encoder.layer.{number}."
        for name in ("query", "key", "value"):
            state |= linear(f"{layer}attention.self.{name}", D, D)
        state |= linear(f"{layer}attention.output.dense", D, D)
        state |= norm(f"{layer}attention.output.LayerNorm")
        state |= linear(f"{layer}intermediate.dense", 4 * D, D)
        state |= linear(f"{layer}output.dense", D, 4 * D) | norm(f"{layer}output.LayerNorm")
    state |= linear("bert.pooler.dense", D, D) | linear("cls.seq_relationship", 2, D)
    state |= linear("cls.predictions.transform.dense", D, D)
    state |= norm("cls.predictions.transform.LayerNorm")
    return state | {"cls.predictions.bias": case.randn(V)}


THEIRS = {
    "bert.embeddings.token": "bert.embeddings.word_embeddings",
    "bert.embeddings.position": "bert.embeddings.position_embeddings",
    "bert.embeddings.segment": "bert.embeddings.token_type_embeddings",
    "bert.embeddings.norm": "bert.embeddings.LayerNorm",
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "pooler": "bert.pooler.dense",
    "next_sentence": "cls.seq_relationship",
    "norm_1": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "norm_2": "output.LayerNorm",
    "Q": "attention.self.query",
    "K": "attention.self.key",
    "V": "attention.self.value",
    "O": "attention.output.dense",
}


def expected_weight(name: str, theirs: dict[str, Tensor]) -> Tensor:
    """Find the published weight that belongs under one of our names."""
    if name == "bias":
        return theirs["cls.predictions.bias"]
    if ".attention." in name:
        letter, x = name.rpartition(".")[2].split("_")
        kind = "weight" if letter == "W" else "bias"
        place = f"bert.encoder.layer.{name.split('.')[2]}.{THEIRS[x]}"
        return theirs[f"{place}.{kind}"].t()
    place, _, kind = name.rpartition(".")
    if place.startswith("bert.layers."):
        number, part = place.split(".")[2:]
        return theirs[f"bert.encoder.layer.{number}.{THEIRS[part]}.{kind}"]
    return theirs[f"{THEIRS[place]}.{kind}"]


def demand_state(case: Case, given: object, theirs: dict[str, Tensor], names: list[str]) -> None:
    """Demand that a converted state has these names and the right weights."""
    if not isinstance(given, dict):
        raise Failure(f"The state should be a dict, yours is {describe(given)}.")
    for name in names:
        case.that(name in given, f"{name} is missing from your state.")
    extra = sorted(map(str, set(given) - set(names)))
    case.that(not extra, f"{(extra or [''])[0]} does not belong in your state.")
    for name in names:
        case.equal(given[name], expected_weight(name, theirs), name)


@check(load_bert, weight=3, see="The published weights")
def values(load, case):
    """puts every weight where it belongs"""
    theirs = published(case, 7, 5, 4, 2)
    demand_state(case, load(theirs), theirs, list(pretraining_shapes(7, 5, 4, 2)))


@check(load_bert, see="The published weights")
def encoder_alone(load, case):
    """accepts a BertModel, whose names lack "bert." and which has no heads"""
    theirs = published(case, 7, 5, 4, 1)
    state = below(theirs, "bert.")
    names = [n for n in pretraining_shapes(7, 5, 4, 1) if n.startswith(("bert.", "pooler."))]
    demand_state(case, load(state), theirs, names)


@check(load_bert, see="The published weights")
def repeated(load, case):
    """leaves out a decoder that repeats the embedding and the bias"""
    theirs = published(case, 7, 5, 4, 1)
    state = {**theirs, "cls.predictions.decoder.bias": theirs["cls.predictions.bias"].clone()}
    table = theirs["bert.embeddings.word_embeddings.weight"]
    state["cls.predictions.decoder.weight"] = table.clone()
    demand_state(case, load(state), theirs, list(pretraining_shapes(7, 5, 4, 1)))


@check(load_bert, see="The published weights")
def old_files(load, case):
    """accepts gamma and beta for a norm's weight and bias, and leaves out position_ids"""
    theirs = published(case, 7, 5, 4, 1)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    state = {}
    for name, value in theirs.items():
        for new, before in old.items():
            name = name.replace(new, before)
        state[name] = value
    state["bert.embeddings.position_ids"] = torch.arange(5)[None]
    demand_state(case, load(state), theirs, list(pretraining_shapes(7, 5, 4, 1)))
    names = [n for n in pretraining_shapes(7, 5, 4, 1) if n.startswith(("bert.", "pooler."))]
    demand_state(case, load(below(state, "bert.")), theirs, names)


@check(load_bert, see="The published weights")
def refuses(load, case):
    """raises ValueError for an unknown name, and for a decoder that is not the embedding"""
    theirs = published(case, 7, 5, 4, 1)
    names = ("bert.encoder.layer.0.crossattention.self.query.weight", "classifier.weight")
    names += ("bert.embeddings.extra.weight", "cls.predictions.extra.weight")
    for name in (*names, "bert.pooler.dense.scale", "bert.encoder.layer.0.output.dense.scale"):
        other = {**theirs, name: case.randn(4, 4)}
        case.raises(ValueError, lambda other=other: load(other), f"the state has {name}")
    for kind, shape in (("weight", (7, 4)), ("bias", (7,))):
        own = {**theirs, f"cls.predictions.decoder.{kind}": case.randn(*shape)}
        case.raises(ValueError, lambda own=own: load(own), f"the decoder's {kind} is its own")
    table = theirs["bert.embeddings.word_embeddings.weight"].clone()
    table[-1, -1] += 1e-3
    near = {**theirs, "cls.predictions.decoder.weight": table}
    case.raises(ValueError, lambda: load(near), "one number of the decoder is not the embedding's")


@check(load_bert, see="The published weights")
def many_layers(load, case):
    """tells layer 1 from layer 10"""
    theirs = published(case, 3, 4, 2, 11)
    demand_state(case, load(theirs), theirs, list(pretraining_shapes(3, 4, 2, 11)))


@check(load_bert, see="The published weights")
def masked_model(load, case):
    """accepts a BertForMaskedLM, which has no pooler and no next-sentence head"""
    theirs = published(case, 7, 5, 4, 1)
    absent = ("bert.pooler", "cls.seq_relationship")
    state = {name: value for name, value in theirs.items() if not name.startswith(absent)}
    ours = pretraining_shapes(7, 5, 4, 1)
    names = [name for name in ours if not name.startswith(("pooler", "next_sentence"))]
    demand_state(case, load(state), theirs, names)


def both(words: Tensor, goals: Tensor, follows: Tensor, kinds: Tensor) -> Tensor:
    """Compute the sum of both losses, if the arguments have the shapes of pretraining_loss."""
    if words.shape[:2] != goals.shape or follows.shape != (len(words), 2):
        raise ValueError("the shapes should be (B, T, V), (B, T), (B, 2) and (B)")
    if (goals != -100).any():
        return summed(words, goals, follows, kinds)
    return F.cross_entropy(follows, kinds)


@check(pretraining_loss_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "pretraining_loss", both)
