"""Hidden checks of bert: chi-square tests, gradients, plain texts, a black box."""

import torch

from course_pkg.bert import (
    BertEmbeddings,
    BertModel,
    SentenceClassifier,
    mask_tokens,
    mlm_head,
    nsp_head,
    pretraining_loss_fault,
)
from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks import bert as visible


@check(mask_tokens, weight=2, see="15 percent, then 80, 10 and 10")
def together(mask, case):
    """passes a chi-square test on what happens to words"""
    tokens = visible.texts_to_mask(case, 400, 500)
    inputs, goals = visible.masked(case, mask, tokens)
    ordinary = tokens >= 5
    total, same = int(ordinary.sum()), 1 / visible.WORDS
    seen = [
        int((ordinary & (goals == -100)).sum()),
        int((ordinary & (goals != -100) & (inputs == visible.MASK)).sum()),
        int((ordinary & (goals != -100) & (inputs == tokens)).sum()),
    ]
    seen.append(total - sum(seen))
    chances = [0.85, 0.15 * (0.8 + 0.1 * same), 0.15 * (0.1 + 0.1 * same)]
    chances.append(1 - sum(chances))
    visible.chi_square(case, seen, [total * chance for chance in chances], "What happens to words")


@check(BertEmbeddings, see="Token, position and segment")
def gradients(embeddings, case):
    """sends a gradient to all three tables"""
    B, T, V, D = case.sizes(4, low=3)
    state = visible.drawn_state(case, visible.embedding_shapes(V, T, D))
    tokens, kinds, _ = visible.batch(case, B, T, V)
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    pull = case.randn(B, T, D)
    visible.embedded(leaves, tokens, kinds).backward(pull)
    ours = visible.made(embeddings, state, V, T, D)
    X = ours(tokens, kinds)
    case.shape(X, (B, T, D), "X")
    case.trains(X, "X")
    X.backward(pull)
    mine = dict(ours.named_parameters())
    for name in ("token", "position", "segment"):
        case.gradient(mine[f"{name}.weight"], leaves[f"{name}.weight"].grad, f"table {name}")
    case.learns(ours)


@check(BertModel, see="The encoder")
def plain(model, case):
    """agrees with torch's layers without segments and lengths, back to the embedding"""
    B, T, V, H, D_h = case.sizes(5, low=2)
    ours, state, (tokens, _, _) = visible.bert_pair(case, model, B, T, V, H, D_h, 2)
    leaf = state["embeddings.token.weight"].clone().requires_grad_()
    expected = visible.encoded(state | {"embeddings.token.weight": leaf}, H, tokens)
    X, seen = ours(tokens), case.randn(B, T, H * D_h)
    case.equal(X, expected, "X")
    case.trains(X, "X")
    X.backward(seen)
    expected.backward(seen)
    own = dict(ours.named_parameters())
    case.gradient(own["embeddings.token.weight"], leaf.grad, "embeddings.token.weight")


@check(mlm_head, see="Fill the gap")
def gradients(head, case):
    """sends the same gradients back as torch's functions, to all weights"""
    B, T, V, D = case.sizes(4, low=3)
    X, *weights = leaves = [case.randn(B, T, D), *visible.mlm_weights(case, V, D)]
    for leaf in leaves:
        leaf.requires_grad_()
    seen = case.randn(B, T, V)
    expected = torch.autograd.grad(visible.scored(X, weights), leaves, seen)
    logits = head(X, *weights)
    case.shape(logits, (B, T, V), "logits")
    case.trains(logits, "logits")
    logits.backward(seen)
    names = ("X", "W", "b", "gain", "shift", "token", "bias")
    for name, leaf, wanted in zip(names, leaves, expected, strict=True):
        case.gradient(leaf, wanted, name)


@check(nsp_head, see="One vector for the whole text")
def classes(head, case):
    """accepts any number of classes, even one, and texts of one token"""
    B, D, C = case.sizes(3, low=3)
    for classes in (C, 1):
        X, weights = case.randn(B, 1, D), visible.nsp_weights(case, classes, D)
        case.equal(
            head(X, *weights), visible.classified(X, weights), f"logits of {classes} classes"
        )


@check(SentenceClassifier, see="A new head on an old encoder")
def plain(classifier, case):
    """classifies plain texts, without segments and lengths"""
    B, T, V, H, D_h, C = case.sizes(6, low=2)
    state = visible.drawn_state(case, visible.classifier_shapes(V, T, H * D_h, 1, C))
    tokens, _, _ = visible.batch(case, B, T, V)
    X = visible.encoded(visible.below(state, "bert."), H, tokens)
    logits = visible.made(classifier, state, V, T, H * D_h, H, 1, C)(tokens)
    case.equal(logits, visible.class_scores(state, X, "classifier"), "logits")


@check(pretraining_loss_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "D")
