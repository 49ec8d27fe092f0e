"""Hidden checks of post_training: other texts, other sizes, and parts that must fit together."""

import math

import torch

from course_pkg.checking.black_box import demand_named
from course_pkg.checking.registry import check
from course_pkg.checks.post_training import (
    FORMULAS,
    HEADING,
    answers,
    batch,
    compared,
    demand_kept,
    demand_steps,
    demand_verdicts,
    diverged,
    drawn_texts,
    gained,
    looped,
    policies,
)
from course_pkg.post_training import (
    bradley_terry_loss,
    distil_loss,
    dpo_loss,
    group_advantages_fault,
    grpo_step,
    kl_estimate,
    pass_at_k,
    policy_gradient_loss,
    prompt_loss,
    rejection_sample,
    sequence_log_prob,
    verify,
)


@check(verify, see="A reward that needs no labels")
def real_answers(verify, case):
    """judges answers as a model writes them, cut off in the middle included"""
    asked = [
        (HEADING, "a : array_like\n    Input array.\nindex : int, optional\n    Axis alo", True),
        (HEADING, "a : ndarray, shape (n,)\n    Data.\n\nindex : {0, 1}\n\n\nReturns", True),
        (HEADING, "a : array_like\n    Input array.\ninde", False),
        (HEADING, "x : array_like\n    Input array.\nindex : int", False),
        (HEADING, "a, b : array_like\n    Input array.\nindex : int", False),
        (HEADING, "a : int\nindex : int\n\n\nSee Also\n--------\nnumpy.sum : The sum.\n", True),
    ]
    demand_verdicts(case, verify, asked)


@check(pass_at_k, see="One try, or eight")
def one_and_all(estimate, case):
    """is the share of right samples for k = 1, and whether there is one for k = n"""
    case.equal(estimate(13, 4, 1), 4 / 13, "pass@1")
    case.equal(estimate(13, 4, 13), 1.0, "pass@13 of 13")
    case.equal(estimate(13, 0, 13), 0.0, "pass@13 where none is right")


@check(sequence_log_prob, see="How probable is an answer?")
def whole_row(log_prob, case):
    """takes answers that fill their row, and rows without an answer"""
    logits, tokens, mask = answers(case)
    mask[0] = torch.arange(mask.shape[1]) > 0
    mask[1] = False
    expected = looped(logits, tokens, mask)
    log_p, total = case.unpack(log_prob(logits, tokens, mask), "log_p", "total")
    case.equal(log_p, expected, "log_p")
    case.equal(total, expected.sum(dim=1), "total")


@check(prompt_loss, see="Learn the answer, not the question")
def uniform(loss, case):
    """is log V for a model that knows nothing"""
    logits, tokens, mask = answers(case)
    expected = math.log(logits.shape[2])
    case.equal(loss(0 * logits, tokens, mask), expected, "L of equal scores")


@check(rejection_sample, see="Keep what is right")
def many(keep, case):
    """filters many answers, of which many are the same"""
    prompts = ["pa", "pb", "pc", "pz"] * 3
    asked = [(prompts, drawn_texts(case, 12, 30), most) for most in (1, 4)]
    demand_kept(case, keep, asked)


@check(bradley_terry_loss, see="Which of two is better?")
def equal_scores(loss, case):
    """is log 2 for equal scores, and agrees with a loop for many comparisons"""
    scores = case.randn(40)
    case.equal(loss(scores, scores, 0.25), math.log(2), "L of equal scores")
    others = case.randn(40)
    case.equal(loss(scores, others, 0.07), compared(scores, others, 0.07), "L of 40 comparisons")


@check(dpo_loss, see="Preferences without a reward model")
def shifted(loss, case):
    """does not change where both models find an answer more probable by the same factor"""
    own, other, own_ref, other_ref, shift = (case.randn(9) for _ in range(5))
    expected = compared(0.3 * (own - own_ref), 0.3 * (other - other_ref), 0.0)
    L, _ = case.unpack(loss(own + shift, other, own_ref + shift, other_ref, 0.3), "L", "margin")
    case.equal(L, expected, "L")


@check(policy_gradient_loss, see="Never far in one step")
def far(loss, case):
    """clips ratios that have moved far"""
    log_p, old, mask, A = policies(case, spread=2.0)
    for by in ("token", "sequence"):
        expected, _ = gained(log_p, old, mask, A, 0.2, by)
        case.equal(loss(log_p, old, mask, A, 0.2, by), expected, f"L by {by}")


@check(kl_estimate, see="The price of leaving")
def at_home(estimate, case):
    """is 0 where the policy is the reference"""
    log_p = -5 * case.rand(3, 4)
    for kind in FORMULAS:
        case.equal(estimate(log_p, log_p, kind), torch.zeros(3, 4), kind)


@check(grpo_step, see="A step of GRPO")
def all_at_once(step, case):
    """does all of it in one step"""
    table, tokens, mask, rewards = batch(case)
    reference = looped((table + 0.5 * case.randn(*table.shape))[tokens], tokens, mask)
    settings = {"scale": "mean", "clip": 0.1, "beta": 0.2, "updates": 3, "norm": 0.4}
    program = table, 2.0, tokens, mask, rewards, settings | {"reference": reference}
    demand_steps(case, step, [program], ["of three updates with a price"])


@check(distil_loss, see="Learn from a better model")
def warm(loss, case):
    """agrees with loops at a high temperature, either way round"""
    student, _, mask = answers(case)
    teacher = 3 * case.randn(*student.shape)
    case.equal(loss(student, teacher, mask, 8.0), diverged(teacher, student, mask, 8.0), "L")
    expected = diverged(student, teacher, mask, 8.0)
    case.equal(loss(student, teacher, mask, 8.0, True), expected, "L reversed")


@check(group_advantages_fault, see="One that trains as well")
def named(answer, case):
    """names what is wrong"""
    demand_named(case, answer, "A")
