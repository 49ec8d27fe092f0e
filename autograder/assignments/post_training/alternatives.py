"""Other correct solutions of post_training: loops, other formulas, torch's own losses."""

import math

import torch
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg import black_box
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


def _names_of(line):
    """Read a line without regular expressions; None if it documents nothing."""
    before, colon, _ = line.partition(" : ")
    names = before.split(", ")
    fits = all(name and name.replace("_", "a").isalnum() for name in names)
    return names if colon and fits else None


@alternative(verify)
def without_patterns(prompt, answer):
    first, newline, _ = prompt.partition("\n")
    opening = first.find("(")
    if not (first.startswith("## ") and opening > 3 and first.endswith(")") and newline):
        raise ValueError("no heading")
    inside = first[opening + 1 : -1]
    wanted = inside.split(", ") if inside else []
    lines = answer.split("\n")
    stop = len(lines)
    for number in range(len(lines)):
        is_title = number + 1 < len(lines) and lines[number + 1][:3] == "---"
        if lines[number][:3] == "## " or is_title:
            stop = number
            break
    documented = [name for line in lines[:stop] for name in _names_of(line) or []]
    return documented == wanted


@alternative(verify)
def crossed_off(prompt, answer):
    import re

    heading = re.compile(r"## [\w.]+\(([^)]*)\)\n").match(prompt)
    if not heading:
        raise ValueError("no heading")
    left = re.findall(r"\w+", heading.group(1))
    lines = answer.splitlines()
    for place, line in enumerate(lines):
        if re.match("## ", line) or re.match("---", "".join(lines[place + 1 : place + 2])):
            break
        found = re.fullmatch(r"(\w+(?:, \w+)*) : .*", line)
        for name in re.split(", ", found.group(1)) if found else ():
            if not left or left.pop(0) != name:
                return False
    return not left


@alternative(pass_at_k)
def product(n, c, k):
    if c < 0 or c > n or k < 1 or k > n:
        raise ValueError("out of range")
    if n - c < k:
        return 1.0
    left = 1.0
    for i in range(n - c + 1, n + 1):
        left *= 1 - k / i
    return 1 - left


@alternative(pass_at_k)
def in_turn(n, c, k):
    if not 0 <= c <= n or not 0 < k <= n:
        raise ValueError("out of range")
    return torch.tensor(1 - math.prod(max(n - c - i, 0) / (n - i) for i in range(k))).double()


@alternative(sequence_log_prob)
def by_cross_entropy(logits, tokens, mask):
    if bool(mask.select(1, 0).any()):
        raise ValueError("first position")
    B, T, V = logits.shape
    losses = F.cross_entropy(
        logits[:, :-1].reshape(-1, V), tokens[:, 1:].reshape(-1), reduction="none"
    )
    log_p = torch.cat([logits.new_zeros(B, 1), -losses.view(B, T - 1)], dim=1)
    log_p = torch.where(mask, log_p, torch.zeros_like(log_p))
    return log_p, log_p.sum(-1)


@alternative(sequence_log_prob)
def row_by_row(logits, tokens, mask):
    if mask[:, 0].sum() > 0:
        raise ValueError("first position")
    rows = []
    for scores, row, own in zip(logits, tokens, mask, strict=True):
        steps = [scores.new_zeros(())]
        for t in range(1, len(row)):
            step = scores[t - 1, row[t]] - scores[t - 1].logsumexp(0)
            steps.append(step if own[t] else scores.new_zeros(()))
        rows.append(torch.stack(steps))
    log_p = torch.stack(rows)
    return [log_p, torch.einsum("bt->b", log_p)]


@alternative(prompt_loss)
def ignored_labels(logits, tokens, mask):
    if not mask.any():
        raise ValueError("nothing")
    labels = torch.where(mask, tokens, -100)[:, 1:]
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten())


@alternative(prompt_loss)
def chosen_places(logits, tokens, mask):
    rows, places = torch.nonzero(mask, as_tuple=True)
    if len(rows) == 0:
        raise ValueError("nothing")
    scores = logits[rows, places - 1]
    return F.nll_loss(scores.log_softmax(-1), tokens[rows, places])


@alternative(rejection_sample)
def sets(prompts, answers, accept, most=1):
    if most <= 0 or len(answers) != len(prompts):
        raise ValueError("lengths")
    kept = []
    for n in range(len(prompts)):
        seen = set()
        for g in range(len(answers[n])):
            text = answers[n][g]
            if accept(prompts[n], text) and text not in seen:
                seen.add(text)
                if len(seen) <= most:
                    kept += [(n, g)]
    return kept


@alternative(rejection_sample)
def first_places(prompts, answers, accept, most=1):
    if most < 1:
        raise ValueError("most")
    kept = []
    for n, (prompt, samples) in enumerate(zip(prompts, answers, strict=True)):
        places = {text: samples.index(text) for text in samples if accept(prompt, text)}
        kept += [[n, g] for g in sorted(places.values())[:most]]
    return kept


@alternative(bradley_terry_loss)
def softplus(chosen, rejected, noise=0.0):
    if noise < 0 or noise >= 0.5:
        raise ValueError("noise")
    d = rejected - chosen
    return torch.mean((1 - noise) * F.softplus(d) + noise * F.softplus(-d))


@alternative(bradley_terry_loss)
def two_classes(chosen, rejected, noise=0.0):
    if not -1e-12 < noise < 0.5:
        raise ValueError("noise")
    labels = torch.full_like(chosen, 1 - noise)
    return F.binary_cross_entropy_with_logits(chosen - rejected, labels)


@alternative(dpo_loss)
def two_ratios(chosen, rejected, chosen_reference, rejected_reference, beta):
    if not beta > 0:
        raise ValueError("beta")
    policy = chosen - rejected
    reference = (chosen_reference - rejected_reference).detach()
    margin = beta * (policy - reference)
    return F.softplus(-margin).mean(), margin.detach()


@alternative(dpo_loss)
def pair_by_pair(chosen, rejected, chosen_reference, rejected_reference, beta):
    if beta <= 0:
        raise ValueError("beta")
    margins, losses = [], []
    for a, b, c, d in zip(chosen, rejected, chosen_reference, rejected_reference, strict=True):
        margin = beta * ((a - c.data) - (b - d.data))
        margins.append(margin.data)
        losses.append(-F.logsigmoid(margin))
    return torch.stack(losses).mean(), torch.stack(margins)


@alternative(group_advantages)
def by_torch(rewards, scale="std", eps=1e-4):
    if scale == "none":
        return 1.0 * rewards
    mean = rewards.mean(-1, keepdim=True)
    if scale == "mean":
        return rewards - mean
    if scale != "std":
        raise ValueError("scale")
    return (rewards - mean) / (rewards.std(-1, keepdim=True, correction=0) + eps)


@alternative(group_advantages)
def group_by_group(rewards, scale="std", eps=1e-4):
    rows = []
    for row in rewards:
        match scale:
            case "none":
                rows.append(row)
            case "mean":
                rows.append(row - row.mean())
            case "std":
                variance, mean = torch.var_mean(row, correction=0)
                rows.append((row - mean) / (variance.sqrt() + eps))
            case _:
                raise ValueError("scale")
    return torch.stack(rows)


@alternative(policy_gradient_loss)
def answer_by_answer(log_p, old, mask, advantages, clip=None, by="token"):
    if by not in {"token", "sequence"} or not mask.any(dim=1).all():
        raise ValueError("by, or an empty answer")
    gains = []
    for own, before, place, A in zip(log_p, old.data, mask, advantages.data, strict=True):
        change = own[place] - before[place]
        ratio = torch.exp(change.mean()[None] if by == "sequence" else change)
        low, high = (0.0, math.inf) if clip is None else (1 - clip, 1 + clip)
        gains.append(torch.min(ratio * A, ratio.clamp(low, high) * A))
    return -torch.cat(gains).mean()


@alternative(policy_gradient_loss)
def by_sign(log_p, old, mask, advantages, clip=None, by="token"):
    if by != "token" and by != "sequence":
        raise ValueError("by")
    if (~mask).all(dim=1).any():
        raise ValueError("an empty answer")
    A = advantages.detach().unsqueeze(1)
    change = log_p.masked_fill(~mask, 0) - old.detach().masked_fill(~mask, 0)
    weight = mask / mask.sum()
    if by == "sequence":
        change = change.sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        weight = torch.full_like(change, 1 / len(change))
    ratio = change.exp()
    if clip is not None:
        ratio = torch.where(A > 0, ratio.clamp(max=1 + clip), ratio.clamp(min=1 - clip))
    return -(ratio * A * weight).sum()


@alternative(kl_estimate)
def by_ratio(log_p, reference, kind="k3"):
    ratio = torch.exp(reference - log_p)
    if kind not in ("k1", "k2", "k3"):
        raise ValueError("kind")
    log = ratio.log()
    return {"k1": -log, "k2": 0.5 * log**2, "k3": ratio - 1 - log}[kind]


@alternative(kl_estimate)
def by_case(log_p, reference, kind="k3"):
    y = log_p - reference
    match kind:
        case "k1":
            return y
        case "k2":
            return 0.5 * y * y
        case "k3":
            return (-y).exp() - 1 + y
    raise ValueError("kind")


@alternative(grpo_step)
def old_first(
    model, optimizer, tokens, mask, rewards,
    scale="std", clip=0.2, beta=0.0, reference=None, updates=1, norm=1.0,
):  # fmt: skip
    if len(rewards.flatten()) != len(tokens):
        raise ValueError("rewards")
    if beta != 0 and reference is None:
        raise ValueError("reference")
    A = group_advantages(rewards, scale).reshape(-1)
    with torch.no_grad():
        old = sequence_log_prob(model(tokens), tokens, mask)[0]
    found = []
    for _ in range(updates):
        optimizer.zero_grad(set_to_none=False)
        log_p = sequence_log_prob(model(tokens), tokens, mask)[0]
        loss = policy_gradient_loss(log_p, old, mask, A, clip=clip, by="token")
        if beta != 0:
            price = kl_estimate(log_p, reference, "k3").where(mask, 0)
            loss = loss + beta * price.sum() / mask.sum()
        loss.backward()
        for group in optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], norm)
        optimizer.step()
        found.append(float(loss))
    return found


@alternative(grpo_step)
def written_out(
    model, optimizer, tokens, mask, rewards,
    scale="std", clip=0.2, beta=0.0, reference=None, updates=1, norm=1.0,
):  # fmt: skip
    N, G = rewards.shape
    if N * G != tokens.shape[0] or (beta > 0 and reference is None):
        raise ValueError("rewards or reference")
    A = group_advantages(rewards, scale).view(N * G, 1)
    rows, places = mask.nonzero(as_tuple=True)
    old, losses = None, []
    for _ in range(updates):
        scores = model(tokens)[rows, places - 1].log_softmax(-1)
        log_p = scores[torch.arange(len(rows)), tokens[rows, places]]
        old = log_p.detach().clone() if old is None else old
        ratio, a = (log_p - old).exp(), A[rows, 0]
        gain = torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
        loss = -gain.mean()
        if beta > 0:
            x = reference[rows, places] - log_p
            loss = loss + beta * (x.exp() - 1 - x).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], norm)
        optimizer.step()
        losses.append(loss.detach().item())
    return losses


@alternative(distil_loss)
def by_kl_div(student, teacher, mask, temperature=1.0, reverse=False):
    rows, places = mask[:, 1:].nonzero(as_tuple=True)
    if len(rows) == 0 or not temperature > 0:
        raise ValueError("temperature or mask")
    log_p = F.log_softmax(teacher.detach()[rows, places] / temperature, -1)
    log_q = F.log_softmax(student[rows, places] / temperature, -1)
    first, second = (log_q, log_p) if reverse else (log_p, log_q)
    found = F.kl_div(second, first, reduction="batchmean", log_target=True)
    return found * temperature * temperature


@alternative(distil_loss)
def weighted(student, teacher, mask, temperature=1.0, reverse=False):
    own = mask[:, 1:]
    if temperature <= 0 or own.sum() == 0:
        raise ValueError("temperature or mask")
    with torch.no_grad():
        target = (teacher[:, :-1] / temperature).log_softmax(-1)
    given = (student[:, :-1] / temperature).log_softmax(-1)
    if reverse:
        each = torch.sum(given.exp() * (given - target), -1)
    else:
        each = torch.sum(target.exp() * (target - given), -1)
    return temperature**2 * (each * own).sum() / own.sum()


@alternative(group_advantages_fault)
def with_a_dull_group():
    return ["A", [torch.tensor([[0.0, 1, 0, 1], [2, 2, 2, 2], [0, 0, 0, 8]]), "std"]]


@alternative(group_advantages_fault)
def found_by_squares():
    box = black_box("group_advantages")
    for G in (2, 3, 5):
        rewards = torch.arange(G, dtype=torch.float64)[None]
        total = box(rewards, "std", 1e-9).square().sum().item()  # G; G - 1 if it divides by that
        if abs(total - (G - 1)) < 1e-6:
            return "A", (rewards,)
    return "E", (rewards,)
