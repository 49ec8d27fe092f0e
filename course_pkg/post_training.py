"""After training: a model that continues text becomes one that does as it is asked.

Shapes: B answers, N prompts with G answers each, T tokens of a prompt and its answer, V tokens in
the vocabulary.
"""

import math
import re
from collections.abc import Callable
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional


def verify(prompt: str, answer: str) -> bool:
    """Say whether an answer documents the parameters of a heading: all, in order, once each.

    A prompt begins with its heading, a line such as "## pandas.core.tools.merge(a, index)". Its
    parameters stand between the brackets, joined by ", ".

    A line of the answer documents parameters if it begins with a name, or with names joined by
    ", ", and " : " follows directly. A name consists of letters, digits and underscores. The list
    of parameters ends before a line that begins with "## ", and before a line below which stands
    a line that begins with "---": that is the title of another section.

    Args:
        prompt: the heading, and whatever is below it.
        answer: the text that a model has added to the prompt.
    Returns:
        Whether the names that the answer documents are the parameters of the heading.
    Raises:
        ValueError: the prompt does not begin with such a heading.
    """
    heading = re.match(r"## [\w.]+\((.*)\)\n", prompt)
    if heading is None:
        raise ValueError(f"a prompt begins with a heading, '## module.name(a, b)': {prompt!r:.60}")
    wanted = heading[1].split(", ") if heading[1] else []
    lines, found = answer.split("\n"), []
    for line, below in pairwise([*lines, ""]):
        if line.startswith("## ") or below.startswith("---"):
            break
        names = re.match(r"(\w+(?:, \w+)*) : ", line)
        if names:
            found += names[1].split(", ")
    return found == wanted


def pass_at_k(n: int, c: int, k: int) -> float:
    """Estimate how often at least one of k samples is right, from n samples of which c are.

    pass@k = 1 - C(n - c, k) / C(n, k)      (Chen et al. 2021, eq. 1)

    That is the share of all choices of k from the n samples that hold a right one. Its mean is the
    probability that one of k fresh samples is right.

    Args:
        n: how many samples there are.
        c: how many of them are right.
        k: how many samples a user would look at.
    Returns:
        The estimate, from 0 to 1.
    Raises:
        ValueError: c is not in 0 … n, or k not in 1 … n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"needs 0 <= c <= n and 1 <= k <= n, got n = {n}, c = {c}, k = {k}")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def sequence_log_prob(
    logits: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B"]]:
    """Compute how probable a model finds each token of some answers, and each whole answer.

    log p_t = log softmax(logits_{t-1})[token_t],   log π(answer) = Σ_t log p_t over its tokens

    Args:
        logits: the model's scores; those at position t are for the token at t + 1.
        tokens: prompts, each with its answer and padding after it.
        mask: True for the tokens of the answers, False for prompts and padding.
    Returns:
        log p_t of each token of an answer, 0 for all others; and their sum for each answer.
    Raises:
        ValueError: the mask has the first position of a row, whose token nothing predicts.
    """
    if mask[:, 0].any():
        raise ValueError("an answer cannot begin at position 0: nothing predicts its first token")
    scores = torch.log_softmax(logits[:, :-1], dim=-1)  # (B, T-1, V), of tokens 1 … T-1
    log_p = scores.gather(2, tokens[:, 1:, None])[..., 0]  # (B, T-1)
    log_p = functional.pad(log_p.where(mask[:, 1:], 0), (1, 0))  # (B, T)
    return log_p, log_p.sum(dim=1)


def prompt_loss(
    logits: Float[Tensor, "B T V"], tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Compute the language-model loss of the answers alone.

    L = -Σ log p_t / (how many tokens there are), over all tokens of all answers together

    Args:
        logits, tokens, mask: as in `sequence_log_prob`.
    Returns:
        L, in nats for each token.
    Raises:
        ValueError: there is no token of an answer.
    """
    if not mask.any():
        raise ValueError("the mask leaves no token to learn from")
    log_p, _ = sequence_log_prob(logits, tokens, mask)
    return -log_p.sum() / mask.sum()


def rejection_sample(
    prompts: list[str],
    answers: list[list[str]],
    accept: Callable[[str, str], bool],
    most: int = 1,
) -> list[tuple[int, int]]:
    """Keep the answers that are right, as examples to learn from.

    Of each prompt the first `most` that are accepted are kept, and no text twice: easy prompts
    would otherwise be most of what is learnt from (Yuan et al. 2023).

    Args:
        prompts: N prompts.
        answers: the samples of each.
        accept: says of a prompt and an answer whether the answer is right, as `verify` does.
        most: how many to keep of a prompt, at most.
    Returns:
        (number of the prompt, number of the sample) for each that is kept, in their order.
    Raises:
        ValueError: there are not as many lists of answers as prompts, or most is less than 1.
    """
    if len(prompts) != len(answers) or most < 1:
        raise ValueError(f"{len(prompts)} prompts, {len(answers)} lists of answers, most = {most}")
    kept = []
    for n, prompt in enumerate(prompts):
        right: list[str] = []
        for g, answer in enumerate(answers[n]):
            if len(right) < most and answer not in right and accept(prompt, answer):
                right.append(answer)
                kept.append((n, g))
    return kept


def bradley_terry_loss(
    chosen: Float[Tensor, "B"], rejected: Float[Tensor, "B"], noise: float = 0.0
) -> Float[Tensor, ""]:
    """Compute how improbable the comparisons are, given the scores of what was compared.

    P(chosen wins) = σ(chosen - rejected)      (Bradley & Terry 1952)
    L = mean of -(1 - ε) log σ(chosen - rejected) - ε log σ(rejected - chosen)

    Args:
        chosen: the score of the answer that won, in each of B comparisons.
        rejected: the score of the other.
        noise: ε, the weight with which each comparison counts as its reverse.
    Returns:
        L, finite however far apart the scores are.
    Raises:
        ValueError: the noise is not in [0, 0.5).
    """
    if not 0 <= noise < 0.5:
        raise ValueError(f"the noise must be in [0, 0.5), got {noise}")
    margin = chosen - rejected
    right, wrong = functional.logsigmoid(margin), functional.logsigmoid(-margin)
    return -((1 - noise) * right + noise * wrong).mean()


def dpo_loss(
    chosen: Float[Tensor, "B"],
    rejected: Float[Tensor, "B"],
    chosen_reference: Float[Tensor, "B"],
    rejected_reference: Float[Tensor, "B"],
    beta: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, "B"]]:
    """Compute the loss of direct preference optimisation: Bradley–Terry without a reward model.

    r(answer) = β (log π(answer) - log π_ref(answer)), the reward for which π is the optimum;
    L = `bradley_terry_loss` of r(chosen) and r(rejected)      (Rafailov et al. 2023, eq. 7)

    Args:
        chosen, rejected: log π of whole answers, the winner and the loser of each comparison.
        chosen_reference, rejected_reference: log π_ref of the same answers; they get no gradient.
        beta: β, how much it costs to leave the reference.
    Returns:
        L, and r(chosen) - r(rejected) of each comparison, without a gradient.
    Raises:
        ValueError: β is not positive.
    """
    if beta <= 0:
        raise ValueError(f"beta must be positive, got {beta}")
    r_chosen = beta * (chosen - chosen_reference.detach())
    r_rejected = beta * (rejected - rejected_reference.detach())
    return bradley_terry_loss(r_chosen, r_rejected), (r_chosen - r_rejected).detach()


def group_advantages(
    rewards: Float[Tensor, "N G"], scale: str = "std", eps: float = 1e-4
) -> Float[Tensor, "N G"]:
    """Say how much better each answer is than the others to the same prompt.

    "none": A = R;   "mean": A = R - mean(R) of the group      (Liu et al. 2025: Dr. GRPO);
    "std": A = (R - mean(R)) / (std(R) + ε)      (Shao et al. 2024, §4.1.2)

    Args:
        rewards: R of the G answers to each of N prompts.
        scale: "none", "mean" or "std".
        eps: ε, so that a group of equal rewards gets 0 and not 0 / 0.
    Returns:
        A. The standard deviation divides by G, not by G - 1.
    Raises:
        ValueError: scale is another word.
    """
    if scale == "none":
        return rewards
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    if scale == "mean":
        return centred
    if scale == "std":
        return centred / (centred.square().mean(dim=1, keepdim=True).sqrt() + eps)
    raise ValueError(f"scale must be none, mean or std, got {scale!r}")


def policy_gradient_loss(
    log_p: Float[Tensor, "B T"],
    old: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, "B"],
    clip: float | None = None,
    by: str = "token",
) -> Float[Tensor, ""]:
    """Compute a loss whose gradient makes answers likelier that were better than expected.

    by "token": ρ_t = π(token_t) / π_old(token_t);   L = -mean over all tokens of the batch of
    min(ρ_t A, clip(ρ_t, 1 - c, 1 + c) A)      (Schulman et al. 2017, eq. 7; Yu et al. 2025)

    by "sequence": ρ = (π(answer) / π_old(answer))^(1/length);   L = -mean over the answers of
    min(ρ A, clip(ρ, 1 - c, 1 + c) A)      (Zheng et al. 2025)

    Args:
        log_p: log π of each token, with a gradient.
        old: the same when the answers were sampled. It gets no gradient.
        mask: which tokens count; the others may have any values.
        advantages: A of each answer. They get no gradient.
        clip: c; when None, the ratios are not clipped.
        by: "token" or "sequence".
    Returns:
        L.
    Raises:
        ValueError: by is another word, or an answer has no token.
    """
    lengths = mask.sum(dim=1)
    if (lengths == 0).any():
        raise ValueError("every answer needs a token that counts")
    change = (log_p - old.detach()).where(mask, 0)  # (B, T)
    if by == "token":
        counted = mask
    elif by == "sequence":
        change = (change.sum(dim=1) / lengths)[:, None]  # (B, 1)
        counted = torch.ones_like(change, dtype=torch.bool)
    else:
        raise ValueError(f"by must be token or sequence, got {by!r}")
    ratio, A = change.exp(), advantages.detach()[:, None]
    gain = ratio * A
    if clip is not None:
        gain = torch.minimum(gain, ratio.clamp(1 - clip, 1 + clip) * A)
    return -gain.where(counted, 0).sum() / counted.sum()


def kl_estimate(
    log_p: Float[Tensor, "..."], reference: Float[Tensor, "..."], kind: str = "k3"
) -> Float[Tensor, "..."]:
    """Estimate KL(π ‖ π_ref) at samples of π; the estimate is the mean of what is returned.

    x = log π_ref - log π;   k1 = -x;   k2 = x² / 2;   k3 = eˣ - 1 - x      (Schulman 2020)

    k1 and k3 are unbiased, k2 and k3 are never negative.

    Args:
        log_p: log π of what was drawn from π: tokens, or whole answers.
        reference: log π_ref of the same.
        kind: "k1", "k2" or "k3".
    Returns:
        The estimate at each sample.
    Raises:
        ValueError: kind is another word.
    """
    x = reference - log_p
    if kind == "k1":
        return -x
    if kind == "k2":
        return x.square() / 2
    if kind == "k3":
        return torch.expm1(x) - x
    raise ValueError(f"kind must be k1, k2 or k3, got {kind!r}")


def grpo_step(
    model: Callable[[Int[Tensor, "B T"]], Float[Tensor, "B T V"]],
    optimizer: torch.optim.Optimizer,
    tokens: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    rewards: Float[Tensor, "N G"],
    scale: str = "std",
    clip: float = 0.2,
    beta: float = 0.0,
    reference: Float[Tensor, "B T"] | None = None,
    updates: int = 1,
    norm: float = 1.0,
) -> list[float]:
    """Learn from one batch of answers that the model has just sampled.

    Every update minimises `policy_gradient_loss`, by token, of the advantages of the groups, plus
    β times the mean of k3 over all tokens of the answers      (Shao et al. 2024, eq. 3 and 4, but
    all tokens of the batch count alike, as with Yu et al. 2025)

    The model as it is before the first update has sampled the answers: π_old is its own, computed
    once. Then the gradient of all that the optimizer trains is clipped to `norm`.

    Args:
        model: gives logits for tokens.
        optimizer: trains the parameters of the model.
        tokens, mask: prompts with answers, as in `sequence_log_prob`; B = N · G rows, the answers
            to a prompt one after the other.
        rewards: R of the answers.
        scale: of `group_advantages`.
        clip: of `policy_gradient_loss`.
        beta: β, the weight of the KL penalty.
        reference: log π_ref of each token, as `sequence_log_prob` gives it; needed if β is not 0.
        updates: how often to learn from the batch.
        norm: how long the gradient may be.
    Returns:
        The loss before each update.
    Raises:
        ValueError: there are not as many rewards as rows, or β is not 0 and no reference is given.
    """
    if rewards.numel() != len(tokens) or (beta and reference is None):
        raise ValueError(f"{rewards.numel()} rewards for {len(tokens)} answers, beta = {beta}")
    advantages = group_advantages(rewards, scale).flatten()
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    losses, old = [], None
    for _ in range(updates):
        log_p, _ = sequence_log_prob(model(tokens), tokens, mask)
        old = log_p.detach() if old is None else old
        loss = policy_gradient_loss(log_p, old, mask, advantages, clip)
        if beta:
            loss = loss + beta * kl_estimate(log_p, reference, "k3")[mask].mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


def distil_loss(
    student: Float[Tensor, "B T V"],
    teacher: Float[Tensor, "B T V"],
    mask: Bool[Tensor, "B T"],
    temperature: float = 1.0,
    reverse: bool = False,
) -> Float[Tensor, ""]:
    """Compute how far a student's distributions are from its teacher's, at the answers' tokens.

    p = softmax(teacher / τ), q = softmax(student / τ);   L = τ² mean of KL(p ‖ q) over the places
    that predict a token of an answer      (Hinton et al. 2015, §2)
    reversed: KL(q ‖ p), for answers of the student's own  (Agarwal et al. 2024; Gu et al. 2024)

    Args:
        student, teacher: the logits of both for the same tokens. The teacher gets no gradient.
        mask: True for the tokens of the answers; the token at t is predicted at t - 1.
        temperature: τ.
        reverse: whether the student's distribution comes first.
    Returns:
        L, in nats for each token.
    Raises:
        ValueError: τ is not positive, or there is no token of an answer.
    """
    if temperature <= 0 or not mask[:, 1:].any():
        raise ValueError(f"needs a positive temperature and a token, got {temperature}")
    places = mask[:, 1:]
    log_p = torch.log_softmax(teacher.detach()[:, :-1][places] / temperature, dim=1)
    log_q = torch.log_softmax(student[:, :-1][places] / temperature, dim=1)
    if reverse:
        log_p, log_q = log_q, log_p
    divergence = (log_p.exp() * (log_p - log_q)).sum(dim=1)
    return temperature**2 * divergence.mean()


def group_advantages_fault() -> tuple[str, tuple[Float[Tensor, "N G"]]]:
    """Say what is wrong with the black box of `group_advantages`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `group_advantages` does.
    """
    rewards = torch.tensor([[0.0, 1.0]])  # their deviation is 1/2, and √(1/2) in the box
    return "A", (rewards,)
