"""Hidden checks of bert: chi-square tests, rare words, gradients, odd sizes, old files."""

import math
from collections import Counter

import torch
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
    span_head,
    tf_idf,
)
from course_pkg.checking.registry import check
from course_pkg.checks.bert import (
    MASK,
    WORDS,
    batch,
    below,
    bert_pair,
    class_scores,
    classified,
    classifier_shapes,
    demand_spans,
    demand_state,
    draw_counts,
    drawn_pairs,
    drawn_state,
    embedded,
    embedding_shapes,
    encoded,
    layer_pair,
    layer_results,
    library,
    looped,
    losses,
    made,
    masked,
    masked_often,
    mlm_weights,
    nsp_weights,
    pointed,
    pretraining_pair,
    pretraining_shapes,
    published,
    scored,
    searched,
    share,
    span_inputs,
    span_scores,
    summed,
    texts_to_mask,
    two_logits,
    word_scores,
    wrong_pairs,
)


@check(tf_idf, see="Count, weigh, normalise")
def new_words(tf, case):
    """gives a weight to a word that no training text has"""
    N, M, V = case.sizes(3, low=5)
    counts, before = draw_counts(case, N, V), draw_counts(case, M, V)
    before[:, 0] = 0
    counts[:, 0] = 2
    case.equal(tf(counts, before), looped(counts, before), "x")


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


@check(mask_tokens, weight=2, see="15 percent, then 80, 10 and 10")
def together(mask, case):
    """passes a chi-square test on what happens to words"""
    tokens = texts_to_mask(case, 400, 500)
    inputs, goals = masked(case, mask, tokens)
    ordinary = tokens >= 5
    total, same = int(ordinary.sum()), 1 / WORDS
    seen = [
        int((ordinary & (goals == -100)).sum()),
        int((ordinary & (goals != -100) & (inputs == MASK)).sum()),
        int((ordinary & (goals != -100) & (inputs == tokens)).sum()),
    ]
    seen.append(total - sum(seen))
    chances = [0.85, 0.15 * (0.8 + 0.1 * same), 0.15 * (0.1 + 0.1 * same)]
    chances.append(1 - sum(chances))
    chi_square(case, seen, [total * chance for chance in chances], "What happens to words")


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


@check(BertEmbeddings, see="What stands where, in which sentence")
def gradients(embeddings, case):
    """sends a gradient to all three tables"""
    B, T, V, D = case.sizes(4, low=3)
    state = drawn_state(case, embedding_shapes(V, T, D))
    tokens, kinds, _ = batch(case, B, T, V)
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    pull = case.randn(B, T, D)
    embedded(leaves, tokens, kinds).backward(pull)
    ours = made(embeddings, state, V, T, D)
    X = ours(tokens, kinds)
    case.shape(X, (B, T, D), "X")
    case.trains(X, "X")
    X.backward(pull)
    mine = dict(ours.named_parameters())
    for name in ("token", "position", "segment"):
        case.gradient(mine[f"{name}.weight"], leaves[f"{name}.weight"].grad, f"table {name}")
    case.learns(ours)


@check(BertLayer, see="Norms after the sums")
def one_word(layer, case):
    """agrees with torch's layer on texts of one word"""
    B, H, D_h = case.sizes(3, low=2)
    ours, theirs = layer_pair(case, layer, H * D_h, H)
    X = case.randn(B, 1, H * D_h)
    given, _ = layer_results(case, ours(X), X, H)
    case.equal(given, theirs(X), "X of one word")


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


@check(BertModel, see="The encoder")
def plain(model, case):
    """agrees with torch's layers without segments and lengths, back to the embedding"""
    B, T, V, H, D_h = case.sizes(5, low=2)
    ours, state, (tokens, _, _) = bert_pair(case, model, B, T, V, H, D_h, 2)
    leaf = state["embeddings.token.weight"].clone().requires_grad_()
    expected = encoded(state | {"embeddings.token.weight": leaf}, H, tokens)
    X, seen = ours(tokens), case.randn(B, T, H * D_h)
    case.equal(X, expected, "X")
    case.trains(X, "X")
    X.backward(seen)
    expected.backward(seen)
    own = dict(ours.named_parameters())
    case.gradient(own["embeddings.token.weight"], leaf.grad, "embeddings.token.weight")


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


@check(mlm_head, see="Fill the gap")
def gradients(head, case):
    """sends the same gradients back as torch's functions, to all weights"""
    B, T, V, D = case.sizes(4, low=3)
    X, *weights = leaves = [case.randn(B, T, D), *mlm_weights(case, V, D)]
    for leaf in leaves:
        leaf.requires_grad_()
    seen = case.randn(B, T, V)
    expected = torch.autograd.grad(scored(X, weights), leaves, seen)
    logits = head(X, *weights)
    case.shape(logits, (B, T, V), "logits")
    case.trains(logits, "logits")
    logits.backward(seen)
    names = ("X", "W", "b", "gain", "shift", "token", "bias")
    for name, leaf, wanted in zip(names, leaves, expected, strict=True):
        case.gradient(leaf, wanted, name)


@check(mlm_head, see="Fill the gap")
def chosen_places(head, case):
    """also accepts a list of vectors, and vectors that hardly vary"""
    N, V, D = case.sizes(3, low=4)
    X, weights = case.randn(N, D), mlm_weights(case, V, D)
    weights[0], weights[1] = 1e-3 * weights[0], 0 * weights[1]
    case.equal(head(X, *weights), scored(X, weights), "logits")


@check(nsp_head, see="One vector for the whole text")
def classes(head, case):
    """accepts any number of classes, even one, and texts of one token"""
    B, D, C = case.sizes(3, low=3)
    for classes in (C, 1):
        X, weights = case.randn(B, 1, D), nsp_weights(case, classes, D)
        case.equal(head(X, *weights), classified(X, weights), f"logits of {classes} classes")


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


@check(BertPretraining, see="Both heads on one encoder")
def one_text(model, case):
    """gives the logits of plain texts, without segments and lengths"""
    sizes = case.sizes(5, low=3)
    ours, state, (tokens, _, _) = pretraining_pair(case, model, sizes, L=1)
    words, follows = two_logits(case, ours(tokens), *sizes[:3])
    X = encoded(below(state, "bert."), sizes[3], tokens)
    case.equal(words, word_scores(state, X), "mlm_logits")
    case.equal(follows, class_scores(state, X, "next_sentence"), "nsp_logits")


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


@check(SentenceClassifier, see="A new head on an old encoder")
def plain(classifier, case):
    """classifies plain texts, without segments and lengths"""
    B, T, V, H, D_h, C = case.sizes(6, low=2)
    state = drawn_state(case, classifier_shapes(V, T, H * D_h, 1, C))
    tokens, _, _ = batch(case, B, T, V)
    X = encoded(below(state, "bert."), H, tokens)
    logits = made(classifier, state, V, T, H * D_h, H, 1, C)(tokens)
    case.equal(logits, class_scores(state, X, "classifier"), "logits")


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
def single_words(best, case):
    """finds answers of one word where no more are allowed"""
    start, end = span_scores(case, 40, 60)
    demand_spans(case, best(start, end, 1), searched(start, end, 1))


@check(best_span, see="The best span")
def whole_text(best, case):
    """lets an answer be as long as the text, even where `longest` is larger, at all scores"""
    start, end = span_scores(case, 40, 6)
    start[::2, 1] += 4
    end[::2, -1] += 4
    for shift in (0.0, -1e5):
        start = start + shift
        demand_spans(case, best(start, end, 9), searched(start, end, 9))


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
def cls_alone(best, case):
    """finds no answer in texts of a single token, [CLS]"""
    start, end = span_scores(case, 5, 1)
    demand_spans(case, best(start, end, 3), searched(start, end, 3))


@check(load_bert, see="The published weights")
def masked_model(load, case):
    """accepts a BertForMaskedLM, which has no pooler and no next-sentence head"""
    theirs = published(case, 7, 5, 4, 1)
    absent = ("bert.pooler", "cls.seq_relationship")
    state = {name: value for name, value in theirs.items() if not name.startswith(absent)}
    ours = pretraining_shapes(7, 5, 4, 1)
    names = [name for name in ours if not name.startswith(("pooler", "next_sentence"))]
    demand_state(case, load(state), theirs, names)


@check(load_bert, see="The published weights")
def many_layers(load, case):
    """tells layer 1 from layer 10"""
    theirs = published(case, 3, 4, 2, 11)
    demand_state(case, load(theirs), theirs, list(pretraining_shapes(3, 4, 2, 11)))


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
