"""Hidden checks of vilbert: gradients, what padding holds, single words and regions, edges."""

import math

import torch
from torch.nn import functional as F

from course_pkg.checking.registry import check
from course_pkg.checks.vilbert import (
    STREAMS,
    agents_case,
    asked,
    asked_by_agent,
    block_case,
    both_kinds,
    by_agent,
    choice_case,
    chosen,
    co_attended,
    demand_attended,
    demand_streams,
    demand_strip,
    fits,
    found,
    four,
    hidden_parts,
    masked_case,
    masked_sizes,
    model_case,
    path_case,
    real_ones,
    row_by_row,
    row_case,
    score_case,
    seen,
    streams,
    table,
    triangle_case,
    triangle_made,
    triangles,
    understood,
    visual_case,
    with_img,
)
from course_pkg.vilbert import (
    CoAttentionBlock,
    RowAttentionWithPairBias,
    TriangleUpdate,
    ViLBERT,
    VisualEmbeddings,
    agent_aware_attention,
    alignment_loss,
    alignment_score,
    lay_out_path,
    masked_multimodal_loss,
    path_selection_loss,
    retrieve,
)


@check(VisualEmbeddings, see="One vector for the whole picture")
def filling(embeddings, case):
    """gives [IMG] and real regions the same vectors whatever the others hold"""
    B, R, F_, D = case.sizes(4, low=3)
    ours, _, features, boxes = visual_case(case, embeddings, B, R, F_, D)
    regions = real_ones(case.lengths(B, R), R)
    shown = with_img(regions)
    runs = []
    for value in (0.0, 50.0, math.nan):
        runs.append(ours(torch.where(regions[:, :, None], features, value), boxes, regions))
        case.shape(runs[-1], (B, R + 1, D), "v")
    for run, filling in zip(runs[1:], ("50", "NaN"), strict=True):
        case.equal(run[shown], runs[0][shown], f"v with {filling} in regions that are not real")


@check(VisualEmbeddings, see="What is where in a picture")
def one_region(embeddings, case):
    """accepts pictures of one region, whichever regions are not real"""
    B, F_, D = case.sizes(3, low=3)
    ours, state, features, boxes = visual_case(case, embeddings, B, 1, F_, D)
    alone = torch.ones(B, 1, dtype=torch.bool)
    case.equal(ours(features, boxes, alone), seen(state, features, boxes, alone), "v of one region")
    ours, state, features, boxes = visual_case(case, embeddings, B, 3, F_, D)
    regions = torch.tensor([False, True, True]).repeat(B, 1)
    given = ours(features, boxes, regions)
    case.shape(given, (B, 4, D), "v")
    case.equal(
        given[:, 0], seen(state, features, boxes, regions)[:, 0], "v of [IMG] without region 0"
    )


@check(VisualEmbeddings, see="What is where in a picture")
def gradients(embeddings, case):
    """sends gradients to content, to place and back to the features"""
    B, R, F_, D = case.sizes(4, low=3)
    ours, state, features, boxes = visual_case(case, embeddings, B, R, F_, D)
    regions = torch.ones(B, R, dtype=torch.bool)
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    wanted, pull = features.clone().requires_grad_(), case.randn(B, R + 1, D)
    seen(leaves, wanted, boxes, regions).backward(pull)
    features.requires_grad_()
    given = ours(features, boxes, regions)
    case.shape(given, (B, R + 1, D), "v")
    case.trains(given, "v")
    given.backward(pull)
    case.gradient(features, wanted.grad, "the features")
    mine = dict(ours.named_parameters())
    for name in ("content.weight", "place.weight"):
        case.gradient(mine[name], leaves[name].grad, name)
    case.learns(ours)


@check(CoAttentionBlock, see="Each asks, the other answers")
def gradients(block, case):
    """passes the same gradients back to both streams as torch's attention"""
    ours, state, H, t, v, words, regions = block_case(case, block, low=3)
    pulls = [case.randn(*X.shape) for X in (t, v)]
    leaves = [X.clone().requires_grad_() for X in (t, v)]
    expected = co_attended(state, H, *leaves, words, regions)[:2]
    wanted = torch.autograd.grad(expected, leaves, pulls)
    t.requires_grad_(), v.requires_grad_()
    given = four(case, ours(t, v, words, regions), t, v, H)[:2]
    for X, name in zip(given, ("t", "v"), strict=True):
        case.trains(X, name)
    torch.autograd.backward(given, pulls)
    for name, X, gradient in zip(STREAMS, (t, v), wanted, strict=True):
        case.gradient(X, gradient, name)
    case.learns(ours)


@check(CoAttentionBlock, see="Each asks, the other answers")
def one_mask(block, case):
    """accepts a mask for one stream alone"""
    ours, state, H, t, v, words, regions = block_case(case, block, low=3)
    for kind, mask in {"words": words, "regions": regions}.items():
        given = four(case, ours(t, v, **{kind: mask}), t, v, H)
        expected = co_attended(state, H, t, v, **{kind: mask})
        for n, name in ((0, "t"), (1, "v")):
            case.equal(given[n], expected[n], f"{name} with the mask of {kind} alone")


@check(ViLBERT, see="Two streams that meet")
def filling(model, case):
    """gives the same whatever the padding of words and regions holds"""
    ours, _, _, batch = model_case(case, model)
    tokens, words, features, boxes, regions = batch
    runs = []
    for word, value in ((0, 0.0), (2, 30.0)):
        other = torch.where(words, tokens, word), words
        picture = torch.where(regions[:, :, None], features, value), boxes, regions
        runs.append(ours(*other, *picture))
    demand_streams(case, runs[1], runs[0], batch, " with other padding")


@check(ViLBERT, see="Two streams that meet")
def one_block(model, case):
    """agrees with torch's layers with one block, and no layer for the words alone, or three"""
    for L_t in (0, 3):
        ours, state, H, batch = model_case(case, model, L_t=L_t, L=1)
        given = streams(case, ours(*batch), state, batch)
        demand_streams(case, given, understood(state, H, *batch), batch, f" with L_t = {L_t}")


@check(alignment_score, see="One number for a pair")
def gradients(score, case):
    """sends the right gradients to [CLS] and [IMG]"""
    t, v, weights = score_case(case)
    wanted = [X.clone().requires_grad_() for X in (t, v)]
    pull = case.randn(len(t))
    fits(*wanted, weights).backward(pull)
    t.requires_grad_(), v.requires_grad_()
    given = score(t, v, *weights)
    case.shape(given, (len(t),), "scores")
    case.trains(given, "scores")
    given.backward(pull)
    case.gradient(t, wanted[0].grad, "t")
    case.gradient(v, wanted[1].grad, "v")


@check(alignment_loss, see="Does the caption match the picture")
def gradients(loss, case):
    """sends σ(s) minus 1 or 0, over B, to each score"""
    (B,) = case.sizes(1, low=7)
    scores, match = (3 * case.randn(B)).requires_grad_(), both_kinds(case, B)
    value = loss(scores, match)
    case.shape(value, (), "loss")
    case.trains(value, "loss")
    value.backward()
    case.gradient(scores, (torch.sigmoid(scores) - match.double()) / B, "the scores")


@check(alignment_loss, see="Does the caption match the picture")
def one_kind(loss, case):
    """accepts a batch in which all pairs match, or none"""
    (B,) = case.sizes(1, low=4)
    scores = case.randn(B)
    for match in (torch.ones(B, dtype=torch.bool), torch.zeros(B, dtype=torch.bool)):
        case.equal(loss(scores, match), asked(scores, match), "loss of pairs of one kind")


@check(masked_multimodal_loss, see="Hide words and regions")
def nothing_at_all(loss, case):
    """is zero when no pair matches"""
    given = masked_case(case, *masked_sizes(case))
    given[5] = torch.zeros_like(given[5])
    case.equal(loss(*given), 0.0, "loss when no pair matches")


@check(masked_multimodal_loss, see="Hide words and regions")
def regions_alone(loss, case):
    """is the regions' loss alone when no word was hidden"""
    given = masked_case(case, *masked_sizes(case))
    given[1] = torch.full_like(given[1], -100)
    case.equal(loss(*given), hidden_parts(*given), "loss without hidden words")


@check(masked_multimodal_loss, see="Hide words and regions")
def one_of_each(loss, case):
    """counts one hidden word and one hidden region as much as many"""
    given = masked_case(case, *masked_sizes(case))
    given[1] = torch.full_like(given[1], -100)
    given[1][1, 2], given[4] = 3, torch.zeros_like(given[4])
    given[4][2, 0] = True
    case.equal(loss(*given), hidden_parts(*given), "loss of one word and one region")
    given[0], given[2] = 900 * given[0], 900 * given[2]
    case.equal(loss(*given), hidden_parts(*given), "loss of large logits")


@check(masked_multimodal_loss, see="Hide words and regions")
def perfect(loss, case):
    """is zero when the model says exactly what the detector says"""
    given = masked_case(case, *masked_sizes(case))
    given[1] = torch.full_like(given[1], -100)
    given[2] = given[3].log() + 3
    case.equal(loss(*given), 0.0, "loss of regions with q = p")


@check(masked_multimodal_loss, see="Hide words and regions")
def gradients(loss, case):
    """sends right, finite gradients to both logits, even with zeros in the targets"""
    given = masked_case(case, *masked_sizes(case))
    given[3] = F.one_hot(given[3].argmax(dim=-1), given[3].shape[-1]).double()
    given[5] = torch.arange(len(given[5])) % 2 == 0
    wanted = [given[n].clone().requires_grad_() for n in (0, 2)]
    hidden_parts(wanted[0], given[1], wanted[1], *given[3:]).backward()
    given[0].requires_grad_(), given[2].requires_grad_()
    value = loss(*given)
    case.shape(value, (), "loss")
    case.trains(value, "loss")
    value.backward()
    case.gradient(given[0], wanted[0].grad, "word_logits")
    case.gradient(given[2], wanted[1].grad, "region_logits")


@check(retrieve, see="Find the picture")
def edges(recall, case):
    """is 1 for k = N, and raises ValueError for all that are smaller than 1 or larger than N"""
    scores = table(case, 7)
    case.equal(recall(scores, 7), 1.0, "recall@7 of 7")
    case.raises(ValueError, lambda: recall(scores, -1), "k is -1")
    case.raises(ValueError, lambda: recall(scores, 14), "k is 14 and there are 7 pictures")


@check(retrieve, see="Find the picture")
def many(recall, case):
    """agrees with sorting for every k"""
    scores = table(case, 31).round(decimals=1)
    for k in range(1, 31, 4):
        case.equal(recall(scores, k), torch.tensor(found(scores, k)), f"recall@{k} of 31")


@check(lay_out_path, see="Choose among paths")
def gaps(lay_out, case):
    """keeps regions where they are in the list, real or not"""
    features, boxes, regions = path_case(case, case.sizes(4, low=3))
    regions = case.rand(*regions.shape) < 0.5
    given = features, boxes, regions
    demand_strip(case, lay_out(*given), given, " with gaps")


@check(lay_out_path, see="Choose among paths")
def one_region(lay_out, case):
    """accepts views of one region"""
    B, P, F_ = case.sizes(3, low=3)
    given = path_case(case, [B, P, 1, F_])
    demand_strip(case, lay_out(*given), given, " of one region")


@check(path_selection_loss, see="Score, and choose")
def far_out(loss, case):
    """stays finite where scores are large"""
    scores = torch.tensor([[900.0, -800.0, 0.0], [-900.0, 100.0, 700.0]], dtype=torch.float64)
    right, paths = torch.tensor([1, 2]), torch.tensor([[True, True, True], [True, False, True]])
    case.equal(loss(scores, right), 850.0, "loss of large scores")
    case.equal(loss(scores, right, paths), 850.0, "loss of large scores and fewer paths")


@check(path_selection_loss, see="Score, and choose")
def gradients(loss, case):
    """sends the right gradients to the scores, and none to paths that are not there"""
    scores, right, paths = choice_case(case, *case.sizes(2, low=4))
    wanted = scores.clone().requires_grad_()
    chosen(wanted, right, paths).backward()
    value = loss(scores.requires_grad_(), right, paths)
    case.shape(value, (), "loss")
    case.trains(value, "loss")
    value.backward()
    case.gradient(scores, wanted.grad, "scores")


@check(path_selection_loss, see="Score, and choose")
def alone(loss, case):
    """is zero where the right path is the only one"""
    scores, right, paths = choice_case(case, *case.sizes(2, low=4))
    paths = torch.zeros_like(paths).scatter(1, right[:, None], True)
    case.equal(loss(scores, right, paths), 0.0, "loss of one path")


@check(path_selection_loss, see="Score, and choose")
def far_below(loss, case):
    """is the same when all scores are 65 536 lower, and candidates are missing"""
    scores, right, paths = choice_case(case, *case.sizes(2, low=5))
    scores = (16 * scores).round() / 16  # exact in float32, and 65 536 lower too
    expected = chosen(scores, right, paths)
    case.equal(loss(scores - 65536, right, paths), expected, "loss of scores far below 0")
    level = torch.full_like(scores, -(2.0**32))
    case.equal(loss(level, right, paths), chosen(level, right, paths), "loss of scores of -2³²")


@check(agent_aware_attention, see="Whose past is it")
def agents_of_each(attend, case):
    """accepts other agents in each sequence"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    every = torch.stack([agents.roll(n) for n in range(len(X))])
    parts = [asked_by_agent(x, own, weights) for x, own in zip(X, every, strict=True)]
    expected = tuple(torch.stack(part) for part in zip(*parts, strict=True))
    demand_attended(case, attend(X, every, *weights), expected, " of other agents")
    renamed = 1000 * every - 7  # only which are equal matters
    demand_attended(case, attend(X, renamed, *weights), expected, " of agents with other numbers")


@check(agent_aware_attention, see="Whose past is it")
def alone(attend, case):
    """uses one kind of matrices alone when there is one agent, or as many as vectors"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    for numbers, note in (
        (torch.zeros_like(agents), " of one agent"),
        (torch.arange(len(agents)), " of as many agents as vectors"),
    ):
        expected = by_agent(X, numbers, weights)
        demand_attended(case, attend(X, numbers, *weights), expected, note)


@check(agent_aware_attention, see="Whose past is it")
def nothing_allowed(attend, case):
    """gives zeros where the mask allows nothing"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    mask = case.rand(X.shape[1], X.shape[1]) < 0.6
    mask[1] = False
    expected = by_agent(X, agents, weights, mask)
    demand_attended(case, attend(X, agents, *weights, mask), expected, " with an empty row")


@check(agent_aware_attention, see="Whose past is it")
def gradients(attend, case):
    """sends the right gradients to X and to all five matrices"""
    X, agents, weights = agents_case(case, *case.sizes(5, low=3))
    wanted = [part.clone().requires_grad_() for part in (X, *weights)]
    Y, _ = by_agent(wanted[0], agents, wanted[1:])
    pull = case.randn(*Y.shape)
    Y.backward(pull)
    given = [part.requires_grad_() for part in (X, *weights)]
    Y, _ = case.unpack(attend(X, agents, *weights), "Y", "A")
    case.shape(Y, tuple(pull.shape), "Y")
    case.trains(Y, "Y")
    Y.backward(pull)
    names = "X", "W_Q_self", "W_K_self", "W_Q_other", "W_K_other", "W_V"
    for part, right, name in zip(given, wanted, names, strict=True):
        case.gradient(part, right.grad, name)


@check(TriangleUpdate, see="The third side")
def gradients(update, case):
    """sends the right gradients to the pairs and to the parameters"""
    state, z = triangle_case(case, case.sizes(4, low=3))
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    wanted, pull = z.clone().requires_grad_(), case.randn(*z.shape)
    triangles(leaves, wanted).backward(pull)
    ours = triangle_made(update, state)
    given = ours(z.requires_grad_())
    case.shape(given, tuple(z.shape), "update")
    case.trains(given, "update")
    given.backward(pull)
    case.gradient(z, wanted.grad, "z")
    mine = dict(ours.named_parameters())
    for name in ("a.weight", "gate_b.bias", "gate.weight"):
        case.gradient(mine[name], leaves[name].grad, name)
    case.learns(ours)


@check(TriangleUpdate, see="The third side")
def one_residue(update, case):
    """accepts a chain of one residue, and one of two"""
    B, D_z, D = case.sizes(3, low=3)
    for N in (1, 2):
        state, z = triangle_case(case, [B, N, D_z, D])
        case.equal(triangle_made(update, state)(z), triangles(state, z), f"update of N = {N}")


@check(RowAttentionWithPairBias, see="What pairs know steers the rows")
def gradients(attention, case):
    """sends the right gradients to the sequences, to the pairs and to the gate"""
    ours, state, H, m, z = row_case(case, attention, case.sizes(6, low=3))
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    wanted = [X.clone().requires_grad_() for X in (m, z)]
    pull = case.randn(*m.shape)
    row_by_row(leaves, H, *wanted)[0].backward(pull)
    update, _ = case.unpack(ours(m.requires_grad_(), z.requires_grad_()), "update", "a")
    case.shape(update, tuple(m.shape), "update")
    case.trains(update, "update")
    update.backward(pull)
    case.gradient(m, wanted[0].grad, "m")
    case.gradient(z, wanted[1].grad, "z")
    case.gradient(ours.gate.weight, leaves["gate.weight"].grad, "gate.weight")
    case.learns(ours)


@check(RowAttentionWithPairBias, see="What pairs know steers the rows")
def one_of_each(attention, case):
    """accepts one sequence, and chains of one residue"""
    B, S, N, D_m, D_z, size = case.sizes(6, low=3)
    for shape in ([B, 1, N], [B, S, 1]):
        ours, state, H, m, z = row_case(case, attention, [*shape, D_m, D_z, size])
        update, a = case.unpack(ours(m, z), "update", "a")
        note = "one sequence" if shape[1] == 1 else "one residue"
        wanted = row_by_row(state, H, m, z)
        case.equal(update, wanted[0], f"update of {note}")
        case.equal(a, wanted[1], f"a of {note}")
