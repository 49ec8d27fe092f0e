"""Known wrong solutions of post_training."""

import math

import torch
from torch.nn import functional

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.post_training import (
    bradley_terry_loss,
    distil_loss,
    dpo_loss,
    group_advantages,
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

mistakes(
    verify,
    """
* any_order: the order of the parameters does not count
    found == wanted → sorted(found) == sorted(wanted)
* repeated: a parameter may be documented twice
    found == wanted → list(dict.fromkeys(found)) == wanted
* beginning: it is enough that the answer begins with the parameters; what it adds does not count
    found == wanted → found[: len(wanted)] == wanted
mentioned: it is enough that all parameters are among the names
    found == wanted → set(wanted) <= set(found)
sets: two sets are compared, so that neither the order nor a repetition counts
    found == wanted → set(found) == set(wanted)
no_more_than: an answer that leaves parameters out is accepted
    found == wanted → found == wanted[: len(found)]
indented: indented lines document parameters too
    names = re.match(r"( → names = re.match(r" *(
searched: a line documents a parameter wherever the name and the colon stand in it
    names = re.match(r"( → names = re.search(r"(
* all_sections: other sections of the answer count as parameters
    or below.startswith("---") → or False
at_the_rule: the list ends at the line "---", one too late: the title above it is read too
    or below.startswith("---") → or line.startswith("---")
own_heading: the next heading does not end the answer
    line.startswith("## ") or → False or
one_name: a line that documents several names counts as none
    (?:, \\w+)*) : → ) :
first_name: of several names in a line only the first counts
    names[1].split(", ") → names[1].split(", ")[:1]
no_space: the space before the colon is optional
    *) : ", line → *) ?: ", line
no_parameters: a heading without parameters is taken to have one with an empty name
    heading[1].split(", ") if heading[1] else [] → heading[1].split(", ")
first_line: only the first line of a prompt is there, so any text counts as its heading
    re.match(r"## [\\w.]+\\((.*)\\)\\n", prompt) → re.search(r"\\((.*)\\)\\n", prompt)
    says: should raise ValueError when the prompt is
""",
)


@bug(verify, "the text of the answer is searched for the names, wherever they stand")
def found_anywhere(prompt, answer):
    wanted = prompt.split("(")[1].split(")")[0].split(", ")
    return all(name in answer for name in wanted)


mistakes(
    pass_at_k,
    """
* biased: the share c / n is taken for the probability: 1 - (1 - c / n)^k
    math.comb(n - c, k) / math.comb(n, k) → (1 - c / n) ** k
all_wrong: it gives the probability that no sample is right
    1 - math.comb(n - c, k) / math.comb(n, k) → math.comb(n - c, k) / math.comb(n, k)
all_right: it gives the probability that all k samples are right
    1 - math.comb(n - c, k) / math.comb(n, k) → math.comb(c, k) / math.comb(n, k)
pass_at_1: it gives pass@1 whatever k is
    1 - math.comb(n - c, k) / math.comb(n, k) → c / n
times_k: the probabilities of the k samples are added up
    1 - math.comb(n - c, k) / math.comb(n, k) → min(1.0, k * c / n)
any_of_all: it says whether any of all n samples is right
    1 - math.comb(n - c, k) / math.comb(n, k) → float(c > 0)
with_order: the order of the k samples counts in the numerator alone
    math.comb(n - c, k) / → math.perm(n - c, k) /
exactly_one: it gives the probability that exactly one of the k samples is right
    1 - math.comb(n - c, k) / math.comb(n, k) → c * math.comb(n - c, k - 1) / math.comb(n, k)
unchecked: c may be more than n, or k more than n
    if not (0 <= c <= n and 1 <= k <= n): → if not (0 <= c and 1 <= k):
    says: should raise ValueError when n = 4, c =
zero_tries: k may be 0
    1 <= k <= n): → 0 <= k <= n):
    says: should raise ValueError when n = 4, c = 2, k = 0
""",
)

changed(
    pass_at_k,
    "logarithms_of_zero",
    "it is computed with logarithms of factorials, which have no value where c > n - k",
    (
        "math.comb(n - c, k) / math.comb(n, k)",
        "math.exp(math.lgamma(n - c + 1) + math.lgamma(n - k + 1) - math.lgamma(n + 1) "
        "- math.lgamma(n - c - k + 1))",
    ),
    told_by="raised ValueError",
)

mistakes(
    sequence_log_prob,
    """
* shifted: the logits at a token's own place are read, which are for the token after it
    logits[:, :-1] → logits[:, 1:]
* not_masked: prompts and padding count as well
    log_p.where(mask[:, 1:], 0) → log_p
mask_of_logits: the mask is read at the place of the logits, one too early
    log_p.where(mask[:, 1:], 0) → log_p.where(mask[:, :-1], 0)
probabilities: probabilities are added up in place of their logarithms
    log_p = scores.gather → log_p = scores.exp().gather
no_softmax: the scores are taken for log-probabilities
    torch.log_softmax(logits[:, :-1], dim=-1) → logits[:, :-1]
* mean: the mean over an answer's tokens is taken in place of their sum
    log_p.sum(dim=1) → log_p.sum(dim=1) / mask.sum(dim=1)
mean_of_row: the sum is divided by the length of the row
    log_p.sum(dim=1) → log_p.mean(dim=1)
sum_of_all: all answers together get one sum
    log_p.sum(dim=1) → log_p.sum().expand(len(log_p))
over_batch: the sum goes over the batch
    log_p.sum(dim=1) → log_p.sum(dim=0)
wrong_end: the zero for the first token stands at the end
    , (1, 0)) → , (0, 1))
over_positions: softmax goes over the positions
    dim=-1)  # → dim=1)  #
cut: the graph is cut before the sum
    log_p, log_p.sum(dim=1) → log_p, log_p.detach().sum(dim=1)
    says: No gradient goes back from total
unchecked: an answer may begin at position 0
    mask[:, 0].any() → False
    says: should raise ValueError when row
first_row: only the first answer is checked for position 0
    mask[:, 0].any() → mask[0, 0]
    says: should raise ValueError when row
""",
)


@bug(sequence_log_prob, "softmax and logarithm are taken one after the other, and underflow")
def underflows(logits, tokens, mask):
    if mask[:, 0].any():
        raise ValueError
    p = torch.softmax(logits[:, :-1], dim=-1).gather(2, tokens[:, 1:, None])[..., 0]
    log_p = functional.pad(p.log().where(mask[:, 1:], 0), (1, 0))
    return log_p, log_p.sum(dim=1)


mistakes(
    prompt_loss,
    """
* by_answer: every answer is averaged by itself, so that short ones count more for each token
    -log_p.sum() / mask.sum() → -(log_p.sum(dim=1) / mask.sum(dim=1)).nan_to_num().mean()
* mean_over_all: the sum is divided by all places, padding and prompts included
    / mask.sum() → / mask.numel()
summed: the sum is not divided
    / mask.sum() → / 1
for_each_answer: the sum is divided by the number of answers
    / mask.sum() → / len(mask)
wrong_sign: the loss has the wrong sign
    return -log_p → return log_p
* prompt_too: the prompt and the padding are learnt too
    (logits, tokens, mask) → (logits, tokens, (torch.arange(tokens.shape[1]) > 0).expand_as(mask))
    / mask.sum() → / (mask.numel() - len(mask))
prompt_counted: the prompt is counted where the sum is divided
    / mask.sum() → / (mask.flip(1).cumsum(dim=1) > 0).sum()
cut: the graph is cut
    -log_p.sum() → -log_p.detach().sum()
    says: No gradient goes back from L
nothing_is_nan: a batch without an answer gives NaN
    if not mask.any(): → if False:
    says: should raise ValueError when the mask is empty
""",
)

mistakes(
    rejection_sample,
    """
* duplicates: the same text is kept twice
    answer not in right and accept → accept
* no_limit: all right answers are kept, so that easy prompts count most
    len(right) < most and answer not → answer not
everything: wrong answers are kept too
    and accept(prompt, answer): → and True:
wrong_ones: the wrong answers are kept
    and accept(prompt, answer): → and not accept(prompt, answer):
one_too_many: one answer more than `most` is kept
    len(right) < most → len(right) <= most
first_prompt: all answers are judged with the first prompt
    accept(prompt, answer) → accept(prompts[0], answer)
swapped: accept gets the answer before the prompt
    accept(prompt, answer) → accept(answer, prompt)
    says: accept(prompt, answer) got
pairs_swapped: the pairs hold the number of the sample first
    kept.append((n, g)) → kept.append((g, n))
in_total: `most` limits how many are kept of all prompts together
    len(right) < most → len(kept) < most
across_prompts: a text that another prompt has been given is not kept again
    answer not in right and → not any(answer == answers[i][j] for i, j in kept) and
last: the last right answers are kept
    enumerate(answers[n]): → reversed([*enumerate(answers[n])]):
unchecked: there may be fewer prompts than lists of answers
    len(prompts) != len(answers) or most < 1 → len(prompts) > len(answers) or most < 1
    says: should raise ValueError when a prompt
nothing_to_keep: most may be 0
    or most < 1: → or most < 0:
    says: should raise ValueError when most is 0
""",
)

mistakes(
    bradley_terry_loss,
    """
* swapped: losers should win: the scores are swapped or, which is the same, ε and 1 - ε
    margin = chosen - rejected → margin = rejected - chosen
summed: the comparisons are added up, not averaged
    * wrong).mean() → * wrong).sum()
* mixture: the logarithm of the mixture is taken: likely for flipped labels, not smoothed ones
    ((1 - noise) * right + noise * wrong) → ((1 - noise) * right.exp() + noise * wrong.exp()).log()
noise_ignored: the noise is left out
    ((1 - noise) * right + noise * wrong) → (right + 0 * noise * wrong)
noise_only_less: the noise makes the right side count less, and the other not at all
    + noise * wrong) → + 0 * wrong)
noise_twice: the noise is taken off one side and added to neither
    (1 - noise) * right → right
no_logarithm: the probability is taken in place of its logarithm
    functional.logsigmoid(margin), → margin.sigmoid(),
    functional.logsigmoid(-margin) → (-margin).sigmoid()
wrong_sign: the sign is lost
    return -((1 → return ((1
hinge: differences that are large enough cost nothing
    functional.logsigmoid(margin), → -(1 - margin).clamp(min=0),
quotient: the quotient of the scores is taken, as if they were strengths
    margin = chosen - rejected → margin = (chosen / rejected).abs().log()
half: a noise of a half, which says nothing, is allowed
    0 <= noise < 0.5 → 0 <= noise <= 0.5
    says: should raise ValueError when noise = 0.5
negative: a negative noise is allowed
    0 <= noise < 0.5 → noise < 0.5
    says: should raise ValueError when noise = -0.1
cut: winners get no gradient
    margin = chosen - rejected → margin = chosen.detach() - rejected
    says: No gradient reaches chosen
""",
)


@bug(bradley_terry_loss, "log σ overflows where the scores are far apart", classic=True)
def overflows(chosen, rejected, noise=0.0):
    if not 0 <= noise < 0.5:
        raise ValueError
    p = torch.sigmoid(chosen - rejected)
    return -((1 - noise) * p.log() + noise * (1 - p).log()).mean()


mistakes(
    dpo_loss,
    """
* no_reference: the reference is left out
    (chosen - chosen_reference.detach()) → chosen
    (rejected - rejected_reference.detach()) → rejected
* swapped: winners and losers are swapped
    bradley_terry_loss(r_chosen, r_rejected) → bradley_terry_loss(r_rejected, r_chosen)
added: the reference is added, not subtracted, or compared with the other answer: both are the same
    (chosen - chosen_reference.detach()) → (chosen + chosen_reference.detach())
    (rejected - rejected_reference.detach()) → (rejected + rejected_reference.detach())
no_beta: β is left out
    r_chosen = beta * → r_chosen =
    r_rejected = beta * → r_rejected =
beta_on_one: β scales only the winner
    r_rejected = beta * → r_rejected =
divided: β divides where it should multiply
    r_chosen = beta * → r_chosen = 1 / beta *
    r_rejected = beta * → r_rejected = 1 / beta *
probabilities: probabilities are compared in place of their logarithms
    (chosen - chosen_reference.detach()) → (chosen.exp() - chosen_reference.detach().exp())
    (rejected - rejected_reference.detach()) → (rejected.exp() - rejected_reference.detach().exp())
margin_reversed: the margins have the wrong sign
    (r_chosen - r_rejected).detach() → (r_rejected - r_chosen).detach()
margin_without_beta: the margins leave out β
    (r_chosen - r_rejected).detach() → ((r_chosen - r_rejected) / beta).detach()
margin_of_policy: the margins leave out the reference
    (r_chosen - r_rejected).detach() → (beta * (chosen - rejected)).detach()
* reference_learns: the reference gets a gradient
    chosen_reference.detach() → chosen_reference
    - rejected_reference.detach() → - rejected_reference
    says: the reference should get no gradient
margin_learns: the margins carry a gradient
    (r_chosen - r_rejected).detach() → (r_chosen - r_rejected)
    says: the margin should carry no gradient
unchecked: β may be 0
    beta <= 0 → beta < 0
    says: should raise ValueError when β = 0.0
""",
)

mistakes(
    group_advantages,
    """
over_batch: rewards are compared over the prompts and not within a group
    rewards.mean(dim=1, keepdim=True) → rewards.mean(dim=0, keepdim=True)
    mean(dim=1, keepdim=True).sqrt() → mean(dim=0, keepdim=True).sqrt()
* whole_batch: all groups are compared with one mean, so that easy prompts look good
    rewards.mean(dim=1, keepdim=True) → rewards.mean()
* one_deviation: one standard deviation is taken for the whole batch
    mean(dim=1, keepdim=True).sqrt() → mean().sqrt()
* one_group: the whole batch is one group, with one mean and one standard deviation
    rewards.mean(dim=1, keepdim=True) → rewards.mean()
    mean(dim=1, keepdim=True).sqrt() → mean().sqrt()
no_eps: ε is left out, so that a group of equal rewards gives 0 / 0
    .sqrt() + eps) → .sqrt())
variance: the variance is taken in place of the standard deviation
    keepdim=True).sqrt() + eps → keepdim=True) + eps
unbiased: the deviation divides by G - 1
    centred.square().mean(dim=1, keepdim=True).sqrt() → rewards.std(dim=1, keepdim=True)
eps_inside: ε stands inside the root
    .sqrt() + eps) → .add(eps).sqrt())
mean_is_std: "mean" divides by the deviation too
    if scale == "mean": → if scale == "median":
    if scale == "std": → if scale in ("mean", "std"):
none_is_mean: "none" takes off the mean
    if scale == "none": → if False:
    if scale == "mean": → if scale in ("none", "mean"):
not_centred: "std" divides, but does not take off the mean
    return centred / ( → return rewards / (
others_only: each answer is compared with the mean of the others alone
    rewards.mean(dim=1, keepdim=True) → (rewards.sum(1, True) - rewards) / (len(rewards.T) - 1)
worse: the signs are swapped
    rewards - rewards.mean → -rewards + rewards.mean
default_mean: "mean" is the scale unless told otherwise
    scale: str = "std" → scale: str = "mean"
unchecked: any other word stands for std
    if scale == "std": → if True:
    says: should raise ValueError when scale 'max'
""",
)

black_box(
    group_advantages,
    "unbiased",
    curve='counted["lines are rewarded"]',
    label="lines for each answer",
    over="rounds, %",
    after="ROUNDS, PROMPTS, RATE",
)

wrong_answers(group_advantages_fault, "A")
mistakes(
    group_advantages_fault,
    """
same_rewards: both answers are equally good, and have no advantage
    [[0.0, 1.0]] → [[1.0, 1.0]]
    says: With these arguments the black box gives what is right
not_scaled: nothing is divided by a deviation
    (rewards,) → (rewards, "mean")
    says: With these arguments the black box gives what is right
large_eps: ε is so large that the deviation does not count
    (rewards,) → (rewards, "std", 1e4)
    says: With these arguments the black box gives what is right
one_axis: the rewards have no axis of prompts
    [[0.0, 1.0]] → [0.0, 1.0]
    says: group_advantages raised ValueError
another_word: the scale is one that there is not
    (rewards,) → (rewards, "max")
    says: group_advantages raised ValueError
lists: the rewards are lists of Python's numbers
    (rewards,) → (rewards.tolist(),)
    says: group_advantages raised AttributeError
""",
)


@bug(group_advantages, "a group of equal rewards is divided by its deviation, zero", classic=True)
def nan_for_equals(rewards, scale="std", eps=1e-4):
    A = group_advantages(rewards, scale, eps)
    equal = rewards.amax(dim=1, keepdim=True) == rewards.amin(dim=1, keepdim=True)
    return A.masked_fill(equal, math.nan) if scale == "std" else A


mistakes(
    policy_gradient_loss,
    """
* wrong_sign: the loss is the gain, which the optimizer would make small
    return -gain → return gain
* ascends_clipped: the larger of both gains is taken, so that nothing bounds a good answer
    torch.minimum → torch.maximum
only_clipped: only the clipped gain counts, so that nothing brings a bad answer back
    torch.minimum(gain, ratio.clamp(1 - clip, 1 + clip) * A) → ratio.clamp(1 - clip, 1 + clip) * A
never_clipped: the ratios are not clipped
    if clip is not None: → if False:
clipped_above: the ratios are clipped only above
    ratio.clamp(1 - clip, 1 + clip) → ratio.clamp(max=1 + clip)
clip_of_log: the bounds are those of the logarithm
    ratio.clamp(1 - clip, 1 + clip) → ratio.clamp(math.exp(-clip), math.exp(clip))
upside_down: the ratio is that of the old policy to the new one
    (log_p - old.detach()) → (old.detach() - log_p)
* by_answer: each answer is averaged by itself, also by token
    gain.where(counted, 0).sum() → (gain.where(counted, 0).sum(dim=1) / counted.sum(dim=1)).mean()
    / counted.sum() → / 1
over_all_places: the sum is divided by all places, padding included
    / counted.sum() → / counted.numel()
for_each_answer: the sum is divided by the number of answers
    / counted.sum() → / len(mask)
* not_by_length: the ratio of a whole sequence is not brought to the power 1 / length
    change.sum(dim=1) / lengths → change.sum(dim=1)
always_by_token: by is ignored
    if by == "token": → if True:
advantage_lost: every answer counts as equally good
    advantages.detach()[:, None] → torch.ones_like(advantages)[:, None]
* old_learns: old gets a gradient, which cancels that of log_p
    (log_p - old.detach()) → (log_p - old)
    says: old should get no gradient
advantages_learn: the advantages get a gradient
    advantages.detach() → advantages
    says: the advantages should get no gradient
unchecked_by: any other word stands for sequence
    elif by == "sequence": → elif True:
    says: should raise ValueError when by is batch
unchecked_empty: an answer may be empty
    (lengths == 0).any() → False
    says: should raise ValueError when an answer is empty
""",
)


@bug(policy_gradient_loss, "the ratio is left out: log π A, which only on the policy is the same")
def reinforce(log_p, old, mask, advantages, clip=None, by="token"):
    return -(log_p * advantages[:, None]).where(mask, 0).sum() / mask.sum()


@bug(policy_gradient_loss, "padding is multiplied by zero, and ∞ · 0 is NaN")
def multiplied(log_p, old, mask, advantages, clip=None, by="token"):
    if by not in ("token", "sequence") or (mask.sum(dim=1) == 0).any():
        raise ValueError
    change = log_p - old.detach()
    if by == "sequence":
        ratio = ((change * mask).sum(dim=1) / mask.sum(dim=1))[:, None].exp()
        counted = torch.ones_like(ratio)
    else:
        ratio, counted = change.exp(), mask
    gain = ratio * advantages.detach()[:, None]
    if clip is not None:
        bounded = ratio.clamp(1 - clip, 1 + clip) * advantages.detach()[:, None]
        gain = torch.minimum(gain, bounded)
    return -(gain * counted).sum() / counted.sum()


mistakes(
    kl_estimate,
    """
* reversed: x has the wrong sign: k3 is then an estimate for samples of the reference
    x = reference - log_p → x = log_p - reference
k1_sign: k1 is x and not -x
    return -x → return x
absolute: k1 is the distance of the logarithms
    return -x → return x.abs()
k2_not_halved: k2 is not halved
    x.square() / 2 → x.square()
k3_without_x: x is left out of k3
    torch.expm1(x) - x → torch.expm1(x)
k3_without_one: 1 is not taken off in k3
    torch.expm1(x) - x → torch.exp(x) - x
k3_negative: k3 has the wrong sign
    torch.expm1(x) - x → x - torch.expm1(x)
default_k1: k1 is taken unless told otherwise
    kind: str = "k3" → kind: str = "k1"
* averaged: the mean of all samples is returned
    x = reference - log_p → x = (reference - log_p).mean()
cut: the graph is cut
    x = reference - log_p → x = (reference - log_p).detach()
    says: No gradient goes back from k
unchecked: any other word gives None
    raise ValueError(f"kind must be k1, k2 or k3, got {kind!r}") → return None
    says: should raise ValueError when kind is 'k4'
weighted: the estimate is weighted by the probabilities, though samples have been drawn with them
    x = reference - log_p → x = (reference - log_p) * log_p.exp()
""",
)

mistakes(
    grpo_step,
    """
* gradients_left: gradients of the batch before are left to add up
    optimizer.zero_grad() → pass
* old_of_each_update: the old policy is computed anew in each update, so that no ratio ever moves
    log_p.detach() if old is None else old → log_p.detach()
* groups_mixed: the rewards are laid out with the groups side by side, and go to other answers
    group_advantages(rewards, scale).flatten() → group_advantages(rewards, scale).T.flatten()
rewards_raw: the rewards themselves are the advantages
    group_advantages(rewards, scale).flatten() → rewards.flatten()
always_std: the scale is ignored
    group_advantages(rewards, scale) → group_advantages(rewards)
one_update: only one update is made
    range(updates) → range(1)
one_too_many: one update too many is made
    range(updates) → range(updates + 1)
not_clipped: the gradient is not clipped, or only after the optimizer has stepped
    nn.utils.clip_grad_norm_(trained, norm) → pass
no_step: the optimizer never steps
    optimizer.step() → pass
* clip_forgotten: the ratios are not clipped
    mask, advantages, clip) → mask, advantages)
price_sign: leaving the reference is rewarded
    loss = loss + beta → loss = loss - beta
price_forgotten: leaving the reference costs nothing
    loss = loss + beta * → loss = loss + 0 *
price_k1: k1 is added, whose gradient is 0 on average
    kl_estimate(log_p, reference, "k3") → kl_estimate(log_p, reference, "k1")
price_k2: k2 is added in place of k3
    kl_estimate(log_p, reference, "k3") → kl_estimate(log_p, reference, "k2")
* price_over_padding: the price is averaged over prompts and padding too
    "k3")[mask].mean() → "k3").mean()
* price_reversed: the arguments of k3 are exchanged
    kl_estimate(log_p, reference, "k3") → kl_estimate(reference, log_p, "k3")
by_sequence: the loss goes by sequence, not by token
    mask, advantages, clip) → mask, advantages, clip, "sequence")
one_group: the advantages compare with the whole batch, not with the group
    group_advantages(rewards, scale).flatten() → group_advantages(rewards.view(1, -1), scale)[0]
price_summed: the price is summed over the tokens
    "k3")[mask].mean() → "k3")[mask].sum()
last_loss: only the loss of the last update is returned
    return losses → return losses[-1:]
unchecked_reference: without a reference, the price is left out
    or (beta and reference is None) → or False
    if beta: → if beta and reference is not None:
    says: should raise ValueError when β is 0.1
""",
)

mistakes(
    distil_loss,
    """
* shifted: the logits at a token's own place are compared, which are for the token after it
    teacher.detach()[:, :-1][places] → teacher.detach()[:, 1:][places]
    student[:, :-1][places] → student[:, 1:][places]
* no_square: the loss is not multiplied by τ², so that a high temperature teaches less
    temperature**2 * divergence → divergence
tau_once: the loss is multiplied by τ, not by τ²
    temperature**2 * divergence → temperature * divergence
no_temperature: the temperature is left out
    teacher.detach()[:, :-1][places] / temperature → teacher.detach()[:, :-1][places]
    student[:, :-1][places] / temperature → student[:, :-1][places]
student_sharp: only the teacher's logits are divided by τ
    student[:, :-1][places] / temperature → student[:, :-1][places]
multiplied: the logits are multiplied by τ
    student[:, :-1][places] / temperature → student[:, :-1][places] * temperature
    teacher.detach()[:, :-1][places] / temperature → teacher.detach()[:, :-1][places] * temperature
* always_reversed: the student's distribution comes first, where the teacher's should
    if reverse: → if not reverse:
never_reversed: the teacher's distribution always comes first
    if reverse: → if False:
cross_entropy: the entropy of the first distribution is not taken off
    * (log_p - log_q)).sum → * -log_q).sum
mean_over_tokens: the vocabulary is averaged over, not summed
    .sum(dim=1) → .mean(dim=1)
summed: the places are added up, not averaged
    * divergence.mean() → * divergence.sum()
* teacher_learns: the teacher gets a gradient
    teacher.detach()[:, → teacher[:,
    says: the teacher should get no gradient
unchecked: the temperature may be 0
    temperature <= 0 or → temperature < 0 or
    says: should raise ValueError when τ = 0.0
nothing: a batch without an answer gives NaN
    or not mask[:, 1:].any() → or False
    says: should raise ValueError when
""",
)


@bug(distil_loss, "all places count, those of prompts and padding too", classic=True)
def everywhere(student, teacher, mask, temperature=1.0, reverse=False):
    every = torch.ones_like(mask)
    if temperature <= 0 or not mask[:, 1:].any():
        raise ValueError
    return distil_loss(student, teacher, every, temperature, reverse)


SAME_SUM = "both are added up in the end, so that the order of the two results does not matter"
equivalent(
    prompt_loss,
    "log_p, _ = sequence_log_prob(logits, tokens, mask) → "
    "_, log_p = sequence_log_prob(logits, tokens, mask)",
    SAME_SUM,
)
equivalent(
    policy_gradient_loss,
    "gain = torch.minimum(gain, ratio.clamp(1 - clip, 1 + clip) * A) → "
    "gain = torch.minimum(ratio.clamp(1 - clip, 1 + clip) * A, gain)",
    "the smaller of two is the smaller of two",
)
equivalent(
    grpo_step,
    "old = log_p.detach() if old is None else old → "
    "old = (lambda same: same)(log_p) if old is None else old",
    "policy_gradient_loss lets no gradient into it",
)
