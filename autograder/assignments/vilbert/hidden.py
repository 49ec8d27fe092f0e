"""Hidden checks of vilbert: gradients, single words, regions and residues, edges."""

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks import vilbert as visible
from course_pkg.vilbert import (
    CoAttentionBlock,
    RowAttentionWithPairBias,
    TriangleUpdate,
    ViLBERT,
    VisualEmbeddings,
    agent_aware_attention,
    alignment_loss,
    alignment_score,
    alignment_score_fault,
    clip_loss,
    lay_out_path,
    masked_multimodal_loss,
    path_selection_loss,
    retrieve,
)


@check(VisualEmbeddings, see="What is where in a picture")
def gradients(embeddings, case):
    """sends gradients to content, to place and back to the features"""
    B, R, F_, D = case.sizes(4, low=3)
    ours, state, features, boxes = visible.visual_case(case, embeddings, B, R, F_, D)
    regions = torch.ones(B, R, dtype=torch.bool)
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    wanted, pull = features.clone().requires_grad_(), case.randn(B, R + 1, D)
    visible.seen(leaves, wanted, boxes, regions).backward(pull)
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
    ours, state, H, t, v, words, regions = visible.block_case(case, block, low=3)
    pulls = [case.randn(*X.shape) for X in (t, v)]
    leaves = [X.clone().requires_grad_() for X in (t, v)]
    expected = visible.co_attended(state, H, *leaves, words, regions)[:2]
    wanted = torch.autograd.grad(expected, leaves, pulls)
    t.requires_grad_(), v.requires_grad_()
    given = visible.four(case, ours(t, v, words, regions), t, v, H)[:2]
    for X, name in zip(given, ("t", "v"), strict=True):
        case.trains(X, name)
    torch.autograd.backward(given, pulls)
    for name, X, gradient in zip(visible.STREAMS, (t, v), wanted, strict=True):
        case.gradient(X, gradient, name)
    case.learns(ours)


@check(ViLBERT, see="Two streams that meet")
def one_block(model, case):
    """agrees with torch's layers with one block, and no layer for the words alone, or three"""
    for L_t in (0, 3):
        ours, state, H, batch = visible.model_case(case, model, L_t=L_t, L=1)
        given = visible.streams(case, ours(*batch), state, batch)
        visible.demand_streams(
            case, given, visible.understood(state, H, *batch), batch, f" with L_t = {L_t}"
        )


@check(alignment_score, see="One number for a pair")
def gradients(score, case):
    """sends the right gradients to [CLS] and [IMG]"""
    t, v, weights = visible.score_case(case)
    wanted = [X.clone().requires_grad_() for X in (t, v)]
    pull = case.randn(len(t))
    visible.fits(*wanted, weights).backward(pull)
    t.requires_grad_(), v.requires_grad_()
    given = score(t, v, *weights)
    case.shape(given, (len(t),), "scores")
    case.trains(given, "scores")
    given.backward(pull)
    case.gradient(t, wanted[0].grad, "t")
    case.gradient(v, wanted[1].grad, "v")


@check(alignment_score_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "C")


@check(alignment_loss, see="Does the caption match the picture")
def gradients(loss, case):
    """sends σ(s) minus 1 or 0, over B, to each score"""
    (B,) = case.sizes(1, low=7)
    scores, match = (3 * case.randn(B)).requires_grad_(), visible.both_kinds(case, B)
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
        case.equal(loss(scores, match), visible.asked(scores, match), "loss of pairs of one kind")


@check(masked_multimodal_loss, see="Hide words and regions")
def perfect(loss, case):
    """is zero when the model says exactly what the detector says"""
    given = visible.masked_case(case, *visible.masked_sizes(case))
    given[1] = torch.full_like(given[1], -100)
    given[2] = given[3].log() + 3
    case.equal(loss(*given), 0.0, "loss of regions with q = p")


@check(retrieve, see="Find the picture")
def many(recall, case):
    """agrees with sorting for every k"""
    scores = visible.table(case, 31).round(decimals=1)
    for k in range(1, 31, 4):
        case.equal(recall(scores, k), torch.tensor(visible.found(scores, k)), f"recall@{k} of 31")


@check(clip_loss, see="Two towers")
def more_pairs_than_features(loss, case):
    """agrees with the loop where pairs outnumber features, at a scale near that of CLIP"""
    pictures, captions, _ = visible.tower_case(case, 13, 2)
    given = pictures, captions, torch.tensor(3.2, dtype=torch.float64)
    case.equal(loss(*given), visible.contrasted(*given), "loss of 13 pairs")


@check(clip_loss, see="Two towers")
def short_ones(loss, case):
    """compares directions, even of short vectors"""
    pictures, captions, scale = visible.tower_case(case, *case.sizes(2, low=3))
    given = pictures / 512, 512 * captions, scale
    case.equal(loss(*given), visible.contrasted(*given), "loss of short and long vectors")


@check(lay_out_path, see="Choose among paths")
def gaps(lay_out, case):
    """keeps regions where they are in the list, real or not"""
    features, boxes, regions = visible.path_case(case, case.sizes(4, low=3))
    regions = case.rand(*regions.shape) < 0.5
    given = features, boxes, regions
    visible.demand_strip(case, lay_out(*given), given, " with gaps")


@check(lay_out_path, see="Choose among paths")
def one_region(lay_out, case):
    """accepts views of one region"""
    B, P, F_ = case.sizes(3, low=3)
    given = visible.path_case(case, [B, P, 1, F_])
    visible.demand_strip(case, lay_out(*given), given, " of one region")


@check(path_selection_loss, see="Score, and choose")
def alone(loss, case):
    """is zero where the right path is the only one"""
    scores, right, paths = visible.choice_case(case, *case.sizes(2, low=4))
    paths = torch.zeros_like(paths).scatter(1, right[:, None], True)
    case.equal(loss(scores, right, paths), 0.0, "loss of one path")


@check(masked_multimodal_loss, see="Hide words and regions")
def regions_alone(loss, case):
    """is the regions' loss alone when no word was hidden"""
    given = visible.masked_case(case, *visible.masked_sizes(case))
    given[1] = torch.full_like(given[1], -100)
    case.equal(loss(*given), visible.hidden_parts(*given), "loss without hidden words")


@check(agent_aware_attention, see="Whose past is it")
def alone(attend, case):
    """uses one kind of matrices alone when there is one agent, or as many as vectors"""
    X, agents, weights = visible.agents_case(case, *case.sizes(5, low=3))
    for numbers, note in (
        (torch.zeros_like(agents), " of one agent"),
        (torch.arange(agents.shape[1]).expand_as(agents), " of as many agents as vectors"),
    ):
        expected = visible.by_agent(X, numbers, weights)
        visible.demand_attended(case, attend(X, numbers, *weights), expected, note)


@check(agent_aware_attention, see="Whose past is it")
def gradients(attend, case):
    """sends the right gradients to X and to all five matrices"""
    X, agents, weights = visible.agents_case(case, *case.sizes(5, low=3))
    wanted = [part.clone().requires_grad_() for part in (X, *weights)]
    Y, _ = visible.by_agent(wanted[0], agents, wanted[1:])
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
    state, z = visible.triangle_case(case, case.sizes(4, low=3))
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    wanted, pull = z.clone().requires_grad_(), case.randn(*z.shape)
    visible.triangles(leaves, wanted).backward(pull)
    ours = visible.triangle_made(update, state)
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
        state, z = visible.triangle_case(case, [B, N, D_z, D])
        case.equal(
            visible.triangle_made(update, state)(z),
            visible.triangles(state, z),
            f"update of N = {N}",
        )


@check(RowAttentionWithPairBias, see="What pairs know steers the rows")
def gradients(attention, case):
    """sends the right gradients to the sequences, to the pairs and to the gate"""
    ours, state, H, m, z = visible.row_case(case, attention, case.sizes(6, low=3))
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    wanted = [X.clone().requires_grad_() for X in (m, z)]
    pull = case.randn(*m.shape)
    visible.row_by_row(leaves, H, *wanted)[0].backward(pull)
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
        ours, state, H, m, z = visible.row_case(case, attention, [*shape, D_m, D_z, size])
        update, a = case.unpack(ours(m, z), "update", "a")
        note = "one sequence" if shape[1] == 1 else "one residue"
        wanted = visible.row_by_row(state, H, m, z)
        case.equal(update, wanted[0], f"update of {note}")
        case.equal(a, wanted[1], f"a of {note}")
