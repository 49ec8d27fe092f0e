"""Checks of post_training. Oracles: loops in Python's numbers, enumeration, and closed forms."""

import itertools
import math

import torch
from torch import Tensor, nn

from course_pkg.checking.batched import of_each, together
from course_pkg.checking.black_box import demand_exposed
from course_pkg.checking.case import Case
from course_pkg.checking.registry import check
from course_pkg.checking.telling.failure import Failure, describe
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


def as_numbers(values: object) -> Tensor | None:
    """Make a tensor of numbers, or of pairs of them, if that is what they are."""
    try:
        return torch.tensor(values, dtype=torch.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        return None


def demand_each(
    case: Case, given: list, expected: list[bool] | list[float], words: list[str]
) -> None:
    """Demand several values: the first wrong one is told, all of them together are the evidence."""
    for value, right, word in zip(given, expected, words, strict=True):
        try:
            case.equal(value, right, word)
        except Failure as failure:
            failure.observed = as_numbers(given)
            raise


# Verify

HEADING = "## numpy.lib.tools.merge(a, index)\n\nMerge two tables.\n\nParameters\n----------\n"


def demand_verdicts(case: Case, check_answer, asked: list[tuple[str, str, bool]]) -> None:
    """Demand the verdict on each answer."""
    given = of_each(check_answer, [(prompt, answer) for prompt, answer, _ in asked])
    headings = [prompt.split("\n")[0] for prompt, _, _ in asked]
    answers = [answer for _, answer, _ in asked]
    words = [f"verdict on {a!r} below {h!r}" for a, h in zip(answers, headings, strict=True)]
    demand_each(case, given, [expected for _, _, expected in asked], words)


@check(verify, weight=2, see="A reward that needs no labels")
def verdicts(verify, case):
    """accepts the parameters in their order, and nothing missing, added, repeated or swapped"""
    a, index = "a : int\n    The first.\n", "index : str, optional\n    The place.\n"
    right = [a + index, a + "\n" + index, index.join([a, ""]), "Text.\n" + a + index]
    wrong = [index + a, a, index, "", a + index + "b : int\n", a + a + index, a + index + index]
    asked = [(HEADING, answer, True) for answer in right]
    demand_verdicts(case, verify, asked + [(HEADING, answer, False) for answer in wrong])


@check(verify, see="A reward that needs no labels")
def lines(verify, case):
    """reads a line only if it begins with names and ' : ' follows directly"""
    asked = [
        (HEADING, "a : int\n  index : str\n", False),
        (HEADING, "a : int\nindex: str\n", False),
        (HEADING, "a : int\nindex :\n", False),
        (HEADING, "a : int\nindex  : str\n", False),
        (HEADING, "a : int\nindex of b : str\nindex : str\n", True),
        (HEADING, "a : int\n    b : str\nindex : str\n", True),
        (HEADING, "a : index : int\n", False),
        (HEADING, "a : int\n- index : str\n", False),
        (HEADING, "a : int\nindex : ", True),
        (HEADING, "ab : int\nindex : str\n", False),
        (HEADING, "A : int\nindex : str\n", False),
    ]
    demand_verdicts(case, verify, asked)


@check(verify, see="A reward that needs no labels")
def together_in_a_line(verify, case):
    """counts each of several names that share a line"""
    asked = [
        (HEADING, "a, index : int\n    Both.\n", True),
        (HEADING, "index, a : int\n", False),
        (HEADING, "a, index, a : int\n", False),
        (HEADING, "a,index : int\n", False),
        ("## torch.f(x, y, z)\n", "x, y : int\nz : int\n", True),
        ("## torch.f(x, y, z)\n", "x : int\ny, z : int\n", True),
        ("## torch.f(x, y, z)\n", "x, z : int\ny : int\n", False),
    ]
    demand_verdicts(case, verify, asked)


@check(verify, see="A reward that needs no labels")
def sections(verify, case):
    """stops before the title of another section, and before another heading"""
    asked = [
        (HEADING, "a : int\nindex : str\n\nReturns\n-------\nb : int\n", True),
        (HEADING, "a : int\n\nReturns\n-------\nindex : str\n", False),
        (HEADING, "a : int\n\nindex : str\n---\nindex : str\n", False),
        (HEADING, "a : int\nindex : str\n## numpy.f(b)\nb : int\n", True),
        (HEADING, "a : int\n## numpy.f(b)\nindex : str\n", False),
        (HEADING, "a : int\n--\nindex : str\n", True),
        (HEADING, "a : int\n  ---\nindex : str\n", True),
        (HEADING, "---\na : int\nindex : str\n", True),
        (HEADING, "a : int\n##index\nindex : str\n", True),
        (HEADING, "a : int\n ## b\nindex : str\n", True),
    ]
    demand_verdicts(case, verify, asked)


@check(verify, see="A reward that needs no labels")
def headings(verify, case):
    """reads any number of parameters from the heading, none included, and nothing else of it"""
    asked = [
        ("## pandas.core.f(key)\n", "key : str\n", True),
        ("## pandas.core.f()\n", "Nothing.\n", True),
        ("## pandas.core.f()\n", "", True),
        ("## pandas.core.f()\n", "x : int\n", False),
        ("## m.f(x_1, n2)\nMore (y, z).\n", "x_1 : int\nn2 : int\n", True),
        ("## m.f(x)\n\nx : int\n", "", False),
    ]
    demand_verdicts(case, verify, asked)


@check(verify, weight=2, see="A reward that needs no labels")
def composed(verify, case):
    """judges answers that are composed at random"""
    names, asked = ["a", "b", "ab", "x_2", "axis"], []
    for n in range(24):
        count = int(case.integers(1, 4, 1))
        order = torch.randperm(len(names), generator=case.generator).tolist()
        wanted = [names[place] for place in order[:count]]
        written = list(wanted)
        if n % 2:
            place = int(case.integers(0, count, 1))
            written[place] = names[int(case.integers(0, len(names), 1))]
        rows = [f"{name} : int\n    Is {names[n % 5]} : or not.\n" for name in written]
        if n % 3 == 0 and len(written) > 1:
            rows[:2] = [f"{written[0]}, {written[1]} : float\n"]
        ends = ["", "\nNotes\n-----\na : int\n", "## m.g(b)\nb : int\n"]
        prompt = f"## m.f({', '.join(wanted)})\n\nParameters\n---\n"
        asked.append((prompt, "".join(rows) + ends[n % 3], written == wanted))
    demand_verdicts(case, verify, asked)


@check(verify, see="A reward that needs no labels")
def no_heading(verify, case):
    """raises ValueError when the prompt does not begin with a heading"""
    for prompt in ("", "numpy.f(a)\n", "# numpy.f(a)\n", "## numpy.f\n", "Text.\n## m.f(a)\n"):
        case.raises(
            ValueError, lambda p=prompt: verify(p, "a : int\n"), f"the prompt is {prompt!r}"
        )


# pass@k


def chosen_right(n: int, c: int, k: int) -> float:
    """Look at every choice of k of n samples, of which the first c are right."""
    choices = list(itertools.combinations(range(n), k))
    return sum(any(place < c for place in choice) for choice in choices) / len(choices)


@check(pass_at_k, weight=2, see="One try, or eight")
def values(estimate, case):
    """is the share of all choices of k samples that hold a right one"""
    asked = [(n, c, k) for n in (1, 4, 7) for c in range(n + 1) for k in range(1, n + 1)]
    words = ["pass@k for n = {}, c = {}, k = {}".format(*numbers) for numbers in asked]
    demand_each(case, of_each(estimate, asked), [chosen_right(*each) for each in asked], words)


@check(pass_at_k, weight=2, see="One try, or eight")
def unbiased(estimate, case):
    """is 1 - (1 - p)^k on average, where p is the probability of a right sample"""
    n, k, p = 9, 4, 0.2
    given = of_each(estimate, [(n, c, k) for c in range(n + 1)])
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    words = [f"pass@{k} for n = {n}, c = {c}" for c in range(n + 1)]
    demand_each(case, given, [chosen_right(n, c, k) for c in range(n + 1)], words)
    mean = sum(w * float(each) for w, each in zip(weights, given, strict=True))
    case.equal(mean, 1 - (1 - p) ** k, f"mean of pass@{k} for p = {p}")


@check(pass_at_k, see="One try, or eight")
def many(estimate, case):
    """copes with thousands of samples"""
    n, c, k = 4000, 30, 100
    log = math.lgamma(n - c + 1) + math.lgamma(n - k + 1)
    log -= math.lgamma(n + 1) + math.lgamma(n - c - k + 1)
    case.equal(estimate(n, c, k), 1 - math.exp(log), "pass@100 for n = 4000, c = 30")
    case.equal(estimate(n, 3950, k), 1.0, "pass@100 for n = 4000, c = 3950")


@check(pass_at_k, see="One try, or eight")
def impossible(estimate, case):
    """raises ValueError when c is not in 0 … n, or k not in 1 … n"""
    for n, c, k in ((4, 5, 2), (4, -1, 2), (4, 2, 0), (4, 2, 5), (0, 0, 1)):
        case.raises(ValueError, lambda a=(n, c, k): estimate(*a), f"n = {n}, c = {c}, k = {k}")


# Log-probabilities of answers


def answers(case: Case, low: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Draw logits, tokens, and a mask: answers that begin and end anywhere, padding after them."""
    B, T, V = case.sizes(3, low=low)
    T = T + 4
    logits, tokens = 2 * case.randn(B, T, V), case.integers(0, V, B, T)
    start = case.integers(1, T - 2, B)
    stop = start + 1 + (case.rand(B) * (T - start - 1)).long()
    places = torch.arange(T)
    return logits, tokens, (places >= start[:, None]) & (places < stop[:, None])


def looped(logits: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    """Compute the log-probability of each token of the answers, one by one."""
    log_p = torch.zeros(tokens.shape, dtype=torch.float64)
    for b, t in mask.nonzero().tolist():
        row = logits[b, t - 1].tolist()
        largest = max(row)
        total = math.fsum(math.exp(x - largest) for x in row)
        log_p[b, t] = row[int(tokens[b, t])] - largest - math.log(total)
    return log_p


@check(sequence_log_prob, weight=3, see="How probable is an answer?", single={"B": 0})
def values(log_prob, case):
    """agrees with a loop over the tokens of the answers"""
    logits, tokens, mask = answers(case)
    expected = looped(logits, tokens, mask)
    log_p, total = case.unpack(log_prob(logits, tokens, mask), "log_p", "total")
    case.equal(log_p, expected, "log_p")
    case.equal(total, expected.sum(dim=1), "total")


@check(sequence_log_prob, see="How probable is an answer?")
def enumerated(log_prob, case):
    """gives probabilities that sum to one over all answers"""
    V, T = 3, 4
    table = 2 * case.randn(T - 1, V)
    every = torch.tensor(list(itertools.product(range(V), repeat=T - 1)))
    tokens = torch.cat([torch.zeros(len(every), 1, dtype=torch.long), every], dim=1)
    logits = torch.cat([table, case.randn(1, V)]).expand(len(tokens), -1, -1).contiguous()
    mask = (torch.arange(T) > 0).expand(len(tokens), -1).contiguous()
    _, total = case.unpack(log_prob(logits, tokens, mask), "log_p", "total")
    case.shape(total, (len(tokens),), "total")
    case.equal(total.exp().sum(), 1.0, "sum of the probabilities of all answers")
    case.equal(total, looped(logits, tokens, mask).sum(dim=1), "total")


@check(sequence_log_prob, see="How probable is an answer?")
def padding(log_prob, case):
    """gives the same whatever the padding holds, and the prompt's logits say"""
    logits, tokens, mask = answers(case)
    expected = looped(logits, tokens, mask)
    read = torch.zeros_like(mask)
    read[:, :-1] = mask[:, 1:]
    other = torch.where(mask, tokens, (tokens + 1) % logits.shape[2])
    strange = torch.where(read[..., None], logits, 50 + logits.flip(2))
    log_p, total = case.unpack(log_prob(strange, other, mask), "log_p", "total")
    case.equal(log_p, expected, "log_p with other padding")
    case.equal(total, expected.sum(dim=1), "total with other padding")


@check(sequence_log_prob, see="How probable is an answer?")
def gradient(log_prob, case):
    """passes the gradient of log softmax back to the logits before each token"""
    logits, tokens, mask = answers(case)
    logits.requires_grad_()
    log_p, total = case.unpack(log_prob(logits, tokens, mask), "log_p", "total")
    case.trains(total, "total")
    case.trains(log_p, "log_p")
    case.shape(log_p, tuple(tokens.shape), "log_p")
    case.shape(total, (len(tokens),), "total")
    seen, also = case.randn(*tokens.shape), case.randn(len(tokens))
    ((log_p * seen).sum() + (total * also).sum()).backward()
    case.gradient(logits, flow(logits.detach(), tokens, mask, seen + also[:, None]), "logits")


def flow(logits: Tensor, tokens: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """Compute the gradient of Σ weight · log p over the tokens of the answers."""
    found = torch.zeros_like(logits)
    for b, t in mask.nonzero().tolist():
        p = torch.softmax(logits[b, t - 1], dim=0)
        found[b, t - 1] -= weight[b, t] * p
        found[b, t - 1, tokens[b, t]] += weight[b, t]
    return found


@check(sequence_log_prob, see="How probable is an answer?")
def large(log_prob, case):
    """copes with very large scores, and with very improbable tokens"""
    logits, tokens, mask = answers(case)
    for scores in (logits + 2000, 300 * logits):
        expected = looped(scores, tokens, mask)
        log_p, total = case.unpack(log_prob(scores, tokens, mask), "log_p", "total")
        case.equal(log_p, expected, "log_p for large scores")
        case.equal(total, expected.sum(dim=1), "total for large scores")


@check(sequence_log_prob, see="How probable is an answer?")
def first_position(log_prob, case):
    """raises ValueError when an answer begins at position 0, in any row"""
    logits, tokens, mask = answers(case)
    for row in (0, len(mask) - 1):
        wrong = mask.clone()
        wrong[row, 0] = True
        case.raises(
            ValueError, lambda w=wrong: log_prob(logits, tokens, w), f"row {row} begins at 0"
        )


@check(prompt_loss, weight=3, see="Learn the answer, not the question", single={"B": 0})
def values(loss, case):
    """is the mean over all tokens of all answers"""
    logits, tokens, mask = answers(case)
    expected = -looped(logits, tokens, mask).sum() / mask.sum()
    case.equal(loss(logits, tokens, mask), expected, "L")


@check(prompt_loss, see="Learn the answer, not the question")
def long_and_short(loss, case):
    """counts every token alike: a long answer weighs more than a short one"""
    logits, tokens, _ = answers(case)
    logits, tokens = logits[:2], tokens[:2]
    T = tokens.shape[1]
    mask = torch.zeros(2, T, dtype=torch.bool)
    mask[0, 1:], mask[1, 2] = True, True
    expected = -looped(logits, tokens, mask).sum() / T
    case.equal(loss(logits, tokens, mask), expected, "L of a long and a short answer")


@check(prompt_loss, see="Learn the answer, not the question")
def gradient(loss, case):
    """sends its gradient to the places before the answers' tokens, and to no other"""
    logits, tokens, mask = answers(case)
    logits.requires_grad_()
    given = loss(logits, tokens, mask)
    case.trains(given, "L")
    case.shape(given, (), "L")
    given.backward()
    weight = torch.full(tokens.shape, -1 / int(mask.sum()), dtype=torch.float64)
    case.gradient(logits, flow(logits.detach(), tokens, mask, weight), "logits")


@check(prompt_loss, see="Learn the answer, not the question")
def prompts_do_not_count(loss, case):
    """gives the same for another prompt and other padding"""
    logits, tokens, mask = answers(case)
    other = torch.where(mask, tokens, (tokens + 1) % logits.shape[2])
    expected = -looped(logits, tokens, mask).sum() / mask.sum()
    case.equal(loss(logits, other, mask), expected, "L with another prompt")


@check(prompt_loss, see="Learn the answer, not the question")
def nothing(loss, case):
    """raises ValueError when there is no token of an answer"""
    logits, tokens, mask = answers(case)
    case.raises(ValueError, lambda: loss(logits, tokens, mask & False), "the mask is empty")


# Rejection sampling


def _ends_alike(prompt: str, answer: str) -> bool:
    if not prompt.startswith("p"):
        raise TypeError(f"accept(prompt, answer) got {prompt!r} as the prompt, an answer")
    return answer.endswith(prompt[-1])


@together
def kept(keep, programs: list[tuple]) -> list:
    """Filter answers, of which those that end in their prompt's letter are right."""
    found = []
    for prompts, texts, most in programs:
        settings = {} if most is None else {"most": most}
        found.append(keep(prompts, texts, _ends_alike, **settings))
    return found


def filtered(prompts: list[str], texts: list[list[str]], most: int | None) -> list[list[int]]:
    """Look at one answer after the other."""
    found = []
    for n, prompt in enumerate(prompts):
        places = [g for g, x in enumerate(texts[n]) if x[-1:] == prompt[-1]]
        fresh = [g for g in places if texts[n].index(texts[n][g]) == g]
        found += [[n, g] for g in fresh[: 1 if most is None else most]]
    return found


def demand_kept(case: Case, keep, programs: list[tuple]) -> None:
    """Demand which answers are kept."""
    found = [as_pairs(each) for each in kept(keep, programs)]
    for program, pairs in zip(programs, found, strict=True):
        prompts, texts, most = program
        expected = filtered(*program)
        words = f"prompts {prompts}, answers {texts}"
        if len(prompts) > 9:
            words = f"{len(prompts)} prompts with {len(texts[0])} answers each"
        case.that(
            pairs == expected,
            f"kept should be {expected}, yours is {pairs} for {words} and most = {most or 1}; "
            "right answers end with the prompt's last letter.",
            all_pairs(found),
        )


def as_pairs(given: object) -> object:
    """Turn the tuples of a list into lists."""
    return [list(pair) for pair in given] if isinstance(given, (list, tuple)) else given


def all_pairs(found: list) -> Tensor | None:
    """Join what several calls have kept, if it is lists of pairs of numbers."""
    are_lists = all(isinstance(pairs, list) for pairs in found)
    return as_numbers([pair for pairs in found for pair in pairs]) if are_lists else None


def drawn_texts(case: Case, N: int, G: int, words: int = 9) -> list[list[str]]:
    """Draw answers, some of which are the same and some of which are right."""
    letters = "abc"
    rows = case.integers(0, words, N, G).tolist()
    return [[f"{x // 3}{letters[x % 3]}" for x in row] for row in rows]


@check(rejection_sample, weight=2, see="Keep what is right")
def first_right(keep, case):
    """keeps the first right answer of each prompt, if there is one"""
    N, G = case.sizes(2, low=3)
    prompts = [f"p{'abcz'[n % 4]}" for n in range(N)]
    demand_kept(case, keep, [(prompts, drawn_texts(case, N, G), None) for _ in range(4)])


@check(rejection_sample, weight=2, see="Keep what is right")
def several(keep, case):
    """keeps at most so many of each prompt, and no text twice"""
    N, G = case.sizes(2, low=4)
    prompts = [f"p{'abz'[n % 3]}" for n in range(N)]
    small = (["pa"], [["1a", "1b", "1a", "2a", "3a"]], 2)
    drawn = [(prompts, drawn_texts(case, N, G + 5), most) for most in (1, 2, 3, 50)]
    demand_kept(case, keep, [small, *drawn])


@check(rejection_sample, see="Keep what is right")
def same_text_elsewhere(keep, case):
    """keeps a text that another prompt has been given too"""
    asked = [(["pa", "pa", "pb"], [["1a", "1a", "2a"], ["2a", "1a"], ["1a", "1b"]], 2)]
    demand_kept(case, keep, asked)


@check(rejection_sample, see="Keep what is right")
def ragged(keep, case):
    """takes different numbers of answers, none included"""
    asked = [
        (["pa", "pb", "pa"], [[], ["1b"], ["1b", "2a", "3a"]], 2),
        ([], [], 1),
        (["pa"], [["1b", "2b"]], 3),
    ]
    demand_kept(case, keep, asked)


@check(rejection_sample, see="Keep what is right")
def impossible(keep, case):
    """raises ValueError when the lists do not match, or most is less than 1"""
    case.raises(ValueError, lambda: kept(keep, [(["pa", "pb"], [["1a"]], 1)]), "a list is missing")
    case.raises(
        ValueError, lambda: kept(keep, [(["pa"], [["1a"], ["2a"]], 1)]), "a prompt is missing"
    )
    case.raises(ValueError, lambda: kept(keep, [(["pa"], [["1a"]], 0)]), "most is 0")


# Preferences


def compared(chosen: Tensor, rejected: Tensor, noise: float) -> float:
    """Average over comparisons, with Python's numbers."""
    total = []
    for a, b in zip(chosen.tolist(), rejected.tolist(), strict=True):
        right = 1 / (1 + math.exp(b - a))
        total.append(-(1 - noise) * math.log(right) - noise * math.log(1 - right))
    return math.fsum(total) / len(total)


@check(bradley_terry_loss, weight=2, see="Which of two is better?", single={"B": 0})
def values(loss, case):
    """agrees with a loop over the comparisons"""
    (B,) = case.sizes(1)
    chosen, rejected = 2 * case.randn(B), 2 * case.randn(B)
    case.equal(loss(chosen, rejected), compared(chosen, rejected, 0.0), "L")


@check(bradley_terry_loss, weight=2, see="Which of two is better?")
def noisy(loss, case):
    """believes a share of the comparisons to be the wrong way round"""
    (B,) = case.sizes(1)
    chosen, rejected = 2 * case.randn(B), 2 * case.randn(B)
    for noise in (0.1, 0.3, 0.45):
        case.equal(loss(chosen, rejected, noise), compared(chosen, rejected, noise), f"L, {noise}")


@check(bradley_terry_loss, see="Which of two is better?")
def only_differences(loss, case):
    """asks only how far apart the scores are"""
    (B,) = case.sizes(1)
    chosen, rejected, shift = case.randn(B), case.randn(B), 100 * case.randn(B)
    expected = compared(chosen, rejected, 0.0)
    case.equal(loss(chosen + shift, rejected + shift), expected, "L of shifted scores")


@check(bradley_terry_loss, see="Which of two is better?")
def gradient(loss, case):
    """is that of logistic regression: probability minus label"""
    (B,) = case.sizes(1)
    chosen, rejected = case.randn(B).requires_grad_(), case.randn(B).requires_grad_()
    given = loss(chosen, rejected, 0.2)
    case.trains(given, "L")
    case.shape(given, (), "L")
    given.backward()
    p = torch.sigmoid(chosen - rejected).detach()
    case.gradient(chosen, (p - 0.8) / B, "chosen")
    case.gradient(rejected, (0.8 - p) / B, "rejected")


@check(bradley_terry_loss, see="Which of two is better?")
def far_apart(loss, case):
    """stays finite, and keeps its gradient, however far apart the scores are"""
    margins = [-1800.0, -800.0, -30.0, -2.5, 0.7, 3.0, 900.0]
    scores = [(torch.tensor([x / 2]).double(), torch.tensor([-x / 2]).double()) for x in margins]
    words = [f"L for chosen - rejected = {x}" for x in margins]
    expected = [max(-x, 0.0) + math.log1p(math.exp(-abs(x))) for x in margins]
    demand_each(case, of_each(loss, scores), expected, words)
    chosen = torch.tensor([-400.0, -900.0], dtype=torch.float64).requires_grad_()
    rejected = torch.tensor([400.0, 900.0], dtype=torch.float64)
    given = loss(chosen, rejected)
    case.equal(given, 1300.0, "L for scores far apart")
    case.trains(given, "L")
    given.backward()
    case.gradient(chosen, torch.full((2,), -0.5).double(), "chosen")


@check(bradley_terry_loss, see="Which of two is better?")
def impossible(loss, case):
    """raises ValueError when the noise is not in [0, 0.5)"""
    for noise in (-0.1, 0.5, 0.9):
        case.raises(
            ValueError, lambda n=noise: loss(case.randn(3), case.randn(3), n), f"noise = {noise}"
        )


def four(case: Case, B: int) -> list[Tensor]:
    """Draw log-probabilities of whole answers: both models, winners and losers."""
    return [-10 - 3 * case.randn(B).abs() for _ in range(4)]


@check(dpo_loss, weight=2, see="Preferences without a reward model", single={"B": 0})
def values(loss, case):
    """agrees with a loop over the comparisons"""
    (B,) = case.sizes(1)
    for beta in (0.1, 0.7):
        own, other, own_ref, other_ref = four(case, B)
        r_chosen, r_rejected = beta * (own - own_ref), beta * (other - other_ref)
        found = loss(own, other, own_ref, other_ref, beta)
        L, margin = case.unpack(found, "L", "margin")
        case.equal(L, compared(r_chosen, r_rejected, 0.0), f"L for β = {beta}")
        case.equal(margin, r_chosen - r_rejected, f"margin for β = {beta}")


@check(dpo_loss, see="Preferences without a reward model")
def at_first(loss, case):
    """is log 2 where the policy is the reference"""
    (B,) = case.sizes(1)
    own, other, _, _ = four(case, B)
    L, margin = case.unpack(loss(own, other, own, other, 0.3), "L", "margin")
    case.equal(L, math.log(2), "L at the reference")
    case.equal(margin, torch.zeros(B), "margin at the reference")


@check(dpo_loss, weight=2, see="Preferences without a reward model")
def gradient(loss, case):
    """pushes winners up and losers down by β σ(-margin), and leaves the reference alone"""
    (B,) = case.sizes(1)
    parts, beta = [x.requires_grad_() for x in four(case, B)], 0.4
    L, margin = case.unpack(loss(*parts, beta), "L", "margin")
    case.trains(L, "L")
    case.shape(L, (), "L")
    L.backward()
    own, other, own_ref, other_ref = (x.detach() for x in parts)
    push = beta * torch.sigmoid(-beta * (own - own_ref - other + other_ref)) / B
    case.gradient(parts[0], -push, "chosen")
    case.gradient(parts[1], push, "rejected")
    none = all(x.grad is None or not x.grad.any() for x in parts[2:])
    case.that(none, "the reference should get no gradient, yours does: detach it.")
    case.that(not margin.requires_grad, "the margin should carry no gradient, yours does.")


@check(dpo_loss, see="Preferences without a reward model")
def far_apart(loss, case):
    """stays finite for improbable answers"""
    (B,) = case.sizes(1)
    own, other, own_ref, other_ref = four(case, B)
    L, _ = case.unpack(loss(own - 8000, other, own_ref, other_ref, 1.0), "L", "margin")
    expected = (8000 + other - other_ref - own + own_ref).mean()
    case.equal(L, expected, "L for winners that have become improbable")


@check(dpo_loss, see="Preferences without a reward model")
def impossible(loss, case):
    """raises ValueError when β is not positive"""
    for beta in (0.0, -0.1):
        case.raises(ValueError, lambda b=beta: loss(*four(case, 3), b), f"β = {beta}")


# Policy gradients


def advantages_by_hand(rewards: Tensor, scale: str, eps: float = 1e-4) -> Tensor:
    """Compare each answer with its group, in Python's numbers."""
    rows = []
    for row in rewards.tolist():
        mean = 0.0 if scale == "none" else math.fsum(row) / len(row)
        deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in row) / len(row))
        rows.append([(x - mean) / (deviation + eps if scale == "std" else 1.0) for x in row])
    return torch.tensor(rows, dtype=torch.float64)


@check(group_advantages, weight=3, see="Better than the others", single={"N": 0})
def values(advantages, case):
    """agrees with a loop over the groups, for each scale"""
    N, G = case.sizes(2, low=3)
    rewards = case.randn(N, G) + case.randn(N, 1)
    for scale in ("std", "mean", "none"):
        expected = advantages_by_hand(rewards, scale)
        case.equal(advantages(rewards, scale), expected, f"A, scale = {scale}")


@check(group_advantages, see="Better than the others")
def of_rewards(advantages, case):
    """divides by the standard deviation unless told otherwise, and adds ε outside the root"""
    N, G = case.sizes(2, low=3)
    rewards = (case.rand(N, G) < 0.4).double()
    case.equal(advantages(rewards), advantages_by_hand(rewards, "std"), "A")
    for eps in (0.5, 2.0):
        given = advantages(rewards, "std", eps)
        case.equal(given, advantages_by_hand(rewards, "std", eps), f"A for ε = {eps}")


@check(group_advantages, see="Better than the others")
def no_signal(advantages, case):
    """gives 0 where all answers of a group are equally good"""
    N, G = case.sizes(2, low=3)
    rewards = case.randn(N, G)
    rewards[1:] = 1.0
    for scale in ("std", "mean"):
        expected = advantages_by_hand(rewards, scale)
        case.equal(advantages(rewards, scale), expected, f"A of equal rewards below, {scale}")
    for rewards in (torch.zeros(N, G).double(), torch.ones(N, G).double(), case.randn(N, 1)):
        for scale in ("std", "mean"):
            given = advantages(rewards, scale)
            case.equal(given, torch.zeros_like(rewards), f"A of equal rewards, scale = {scale}")


@check(group_advantages, see="Better than the others")
def shifts(advantages, case):
    """does not ask how hard a prompt is: a constant of the group changes nothing"""
    N, G = case.sizes(2, low=3)
    rewards = case.randn(N, G)
    for scale in ("std", "mean"):
        moved = advantages(rewards + 10 * case.randn(N, 1), scale)
        case.equal(moved, advantages_by_hand(rewards, scale), f"A of moved rewards, {scale}")


@check(group_advantages, see="Better than the others")
def impossible(advantages, case):
    """raises ValueError when the scale is another word"""
    for scale in ("max", "", "STD"):
        case.raises(ValueError, lambda s=scale: advantages(case.randn(2, 3), s), f"scale {scale!r}")


def policies(case: Case, spread: float = 0.5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw log-probabilities now and then, the mask of the answers, and their advantages."""
    B, T = case.sizes(2, low=3)
    T = T + 3
    start = case.integers(0, T - 1, B)
    stop = start + 1 + (case.rand(B) * (T - start)).long()
    mask = (torch.arange(T) >= start[:, None]) & (torch.arange(T) < stop[:, None])
    old = -case.rand(B, T) - 1
    return old + spread * case.randn(B, T), old, mask, case.randn(B)


def gained(
    log_p: Tensor, old: Tensor, mask: Tensor, A: Tensor, clip: float | None, by: str
) -> tuple[float, Tensor]:
    """Compute the loss in loops, and its gradient with respect to log_p."""
    flow, total, count = torch.zeros_like(log_p), 0.0, int(mask.sum())
    for b in range(len(mask)):
        places = mask[b].nonzero()[:, 0].tolist()
        groups = [places] if by == "sequence" else [[t] for t in places]
        units = len(mask) if by == "sequence" else count
        for group in groups:
            change = math.fsum(float(log_p[b, t] - old[b, t]) for t in group) / len(group)
            ratio, a = math.exp(change), float(A[b])
            bounded = ratio if clip is None else min(max(ratio, 1 - clip), 1 + clip)
            total -= min(ratio * a, bounded * a) / units
            if ratio * a <= bounded * a:
                flow[b, group] -= a * ratio / units / len(group)
    return total, flow


def demand_policy_loss(
    case: Case, loss, parts: tuple, clip: float | None, by: str, words: str
) -> None:
    """Demand the loss and its gradient."""
    log_p, old, mask, A = parts
    leaf = log_p.clone().requires_grad_()
    settings = {"by": by} | ({} if clip is None else {"clip": clip})
    given = loss(leaf, old, mask, A, **settings)
    expected, flow = gained(log_p, old, mask, A, clip, by)
    case.equal(given, expected, f"L {words}")
    case.trains(given, "L")
    given.backward()
    case.gradient(leaf, flow, f"log_p, {words}")


@check(policy_gradient_loss, weight=2, see="The policy gradient", single={"B": 0})
def by_token(loss, case):
    """agrees with loops over tokens, without clipping and with it"""
    parts = policies(case)
    for clip in (None, 0.2, 0.6):
        demand_policy_loss(case, loss, parts, clip, "token", f"by token, clip = {clip}")


@check(policy_gradient_loss, weight=2, see="One ratio for a sequence", single={"B": 0})
def by_sequence(loss, case):
    """agrees with loops over sequences, without clipping and with it"""
    parts = policies(case)
    for clip in (None, 0.1, 0.4):
        demand_policy_loss(case, loss, parts, clip, "sequence", f"by sequence, clip = {clip}")


@check(policy_gradient_loss, weight=2, see="The policy gradient")
def on_policy(loss, case):
    """has the gradient of REINFORCE where the policy is the one that sampled"""
    _, old, mask, A = policies(case)
    leaf = old.clone().requires_grad_()
    given = loss(leaf, old, mask, A)
    lengths = mask.sum(dim=1)
    case.equal(given, -(A * lengths).sum() / mask.sum(), "L on the policy")
    case.trains(given, "L")
    given.backward()
    case.gradient(leaf, -(A[:, None] * mask) / mask.sum(), "log_p")


@check(policy_gradient_loss, see="Never far in one step")
def clipped(loss, case):
    """has no gradient where an answer has gained enough, and keeps it where it has to go back"""
    _, old, mask, A = policies(case)
    for change in (0.5, -0.5):
        parts = old + change * torch.sign(A)[:, None], old, mask, A
        for by in ("token", "sequence"):
            demand_policy_loss(case, loss, parts, 0.2, by, f"by {by}, moved by {change}")


@check(policy_gradient_loss, see="The policy gradient")
def no_other_gradient(loss, case):
    """sends no gradient to old, nor to the advantages"""
    log_p, old, mask, A = policies(case)
    for by in ("token", "sequence"):
        leaves = [x.clone().requires_grad_() for x in (log_p, old, A)]
        given = loss(leaves[0], leaves[1], mask, leaves[2], by=by)
        case.trains(given, "L")
        given.backward()
        case.gradient(leaves[0], gained(log_p, old, mask, A, None, by)[1], "log_p")
        for name, leaf in (("old", leaves[1]), ("the advantages", leaves[2])):
            none = leaf.grad is None or not leaf.grad.any()
            case.that(none, f"{name} should get no gradient, yours gives it one: detach it.")


@check(policy_gradient_loss, see="The policy gradient")
def padding(loss, case):
    """gives the same whatever stands where the mask is False, large numbers included"""
    log_p, old, mask, A = policies(case)
    mask[0] = True
    for by in ("token", "sequence"):
        strange = torch.where(mask, log_p, 1000.0)
        rows = [slice(b, b + 1) for b in range(len(mask))]
        alone = [(strange[b], old[b], mask[b], A[b], 0.3, by) for b in rows]
        right = [gained(log_p[b], old[b], mask[b], A[b], 0.3, by)[0] for b in rows]
        words = [f"L by {by} of answer {b.start} alone with other padding" for b in rows]
        demand_each(case, of_each(loss, alone), right, words)
        expected, flow = gained(log_p, old, mask, A, 0.3, by)
        strange.requires_grad_()
        given = loss(strange, old, mask, A, 0.3, by)
        case.equal(given, expected, f"L by {by} with other padding")
        case.trains(given, "L")
        given.backward()
        case.gradient(strange, flow, "log_p with other padding")


@check(policy_gradient_loss, see="The policy gradient")
def impossible(loss, case):
    """raises ValueError when by is another word, or an answer has no token"""
    log_p, old, mask, A = policies(case)
    case.raises(ValueError, lambda: loss(log_p, old, mask, A, None, "batch"), "by is batch")
    empty = mask.clone()
    empty[1] = False
    for by in ("token", "sequence"):
        case.raises(
            ValueError, lambda b=by: loss(log_p, old, empty, A, None, b), "an answer is empty"
        )


FORMULAS = {
    "k1": lambda x: -x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: math.exp(x) - 1 - x,
}


@check(kl_estimate, weight=3, see="The price of leaving")
def values(estimate, case):
    """agrees with the three formulas, number by number, in any shape"""
    B, T = case.sizes(2)
    for shape in ((B, T), (B,), ()):
        log_p, reference = -case.rand(*shape) * 3, -case.rand(*shape) * 3
        x = reference - log_p
        for kind, formula in FORMULAS.items():
            expected = torch.tensor([formula(each) for each in x.flatten().tolist()]).double()
            given = estimate(log_p, reference, kind)
            case.equal(given, expected.view(shape), f"{kind} of shape {shape}")


@check(kl_estimate, see="The price of leaving")
def exact(estimate, case):
    """averages to the divergence, k1 and k3 exactly"""
    V = case.sizes(1, low=4)[0]
    log_p, reference = (torch.log_softmax(case.randn(V), dim=0) for _ in range(2))
    p = log_p.exp()
    divergence = (p * (log_p - reference)).sum()
    for kind in ("k1", "k3"):
        given = estimate(log_p, reference, kind)
        case.shape(given, (V,), kind)
        case.equal((p * given).sum(), divergence, f"mean of {kind}")


@check(kl_estimate, see="The price of leaving")
def default(estimate, case):
    """takes k3 unless told otherwise, which is never negative"""
    (B,) = case.sizes(1)
    log_p, reference = -3 * case.rand(B), -3 * case.rand(B)
    x = reference - log_p
    given = estimate(log_p, reference)
    case.equal(given, x.exp() - 1 - x, "k3")
    case.that((given >= 0).all(), "k3 should never be negative.", given)


@check(kl_estimate, see="The price of leaving")
def gradient(estimate, case):
    """has the gradients -x' of the formulas"""
    (B,) = case.sizes(1)
    log_p, reference = -3 * case.rand(B), -3 * case.rand(B)
    x, seen = reference - log_p, case.randn(B)
    slopes = {"k1": torch.ones(B), "k2": -x, "k3": 1 - x.exp()}
    for kind, slope in slopes.items():
        leaf = log_p.clone().requires_grad_()
        given = estimate(leaf, reference, kind)
        case.trains(given, kind)
        case.shape(given, (B,), kind)
        given.backward(seen)
        case.gradient(leaf, seen * slope, f"log_p, {kind}")


@check(kl_estimate, see="The price of leaving")
def impossible(estimate, case):
    """raises ValueError when the kind is another word"""
    log_p, reference = case.randn(3), case.randn(3)
    for kind in ("k4", "", "K1"):
        case.raises(ValueError, lambda k=kind: estimate(log_p, reference, k), f"kind is {kind!r}")


# A step


class Bigrams(nn.Module):
    """A model that scores the next token by the last one alone."""

    def __init__(self, table: Tensor):
        super().__init__()
        self.table = nn.Parameter(table.clone())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


@together
def stepped(step, programs: list[tuple]) -> list[tuple]:
    """Take steps with models of bigrams: the losses, and the table afterwards."""
    found = []
    for table, lr, tokens, mask, rewards, settings in programs:
        model = Bigrams(table)
        model.table.grad = torch.ones_like(table)  # left by whatever came before
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        losses = step(model, optimizer, tokens, mask, rewards, **settings)
        found.append((losses, model.table.detach().clone()))
    return found


def step_by_hand(
    table: Tensor, lr: float, tokens: Tensor, mask: Tensor, rewards: Tensor, settings: dict
) -> tuple[list[float], Tensor]:
    """Take the steps in loops: the gradient comes from `flow`, not from autograd."""
    options = {"scale": "std", "clip": 0.2, "beta": 0.0, "updates": 1, "norm": 1.0} | settings
    A = advantages_by_hand(rewards, options["scale"]).reshape(-1)
    table, old, losses = table.clone(), None, []
    for _ in range(options["updates"]):
        logits = table[tokens]
        log_p = looped(logits, tokens, mask)
        old = log_p if old is None else old
        loss, weight = gained(log_p, old, mask, A, options["clip"], "token")
        if options["beta"]:
            x = (options["reference"] - log_p)[mask]
            loss += options["beta"] * float((x.exp() - 1 - x).mean())
            weight[mask] += options["beta"] * (1 - x.exp()) / len(x)
        slope = torch.zeros_like(table)
        slope.index_add_(0, tokens.flatten(), flow(logits, tokens, mask, weight).flatten(0, 1))
        length = float(slope.norm())
        table = table - lr * slope * min(1.0, options["norm"] / (length + 1e-6))
        losses.append(loss)
    return losses, table


def batch(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw a table of bigrams, and answers to prompts with rewards."""
    V, N, G = case.sizes(3, low=3)
    T = V + 3
    table, tokens = case.randn(V, V), case.integers(0, V, N * G, T)
    start = case.integers(1, T - 2, N).repeat_interleave(G)
    stop = start + 1 + (case.rand(N * G) * (T - start)).long()
    mask = (torch.arange(T) >= start[:, None]) & (torch.arange(T) < stop[:, None])
    return table, tokens, mask, case.randn(N, G)


def demand_steps(case: Case, step, programs: list[tuple], words: list[str]) -> None:
    """Demand the losses and the weights after each program."""
    expected = [step_by_hand(*program) for program in programs]
    for given, right, word in zip(stepped(step, programs), expected, words, strict=True):
        losses, table = given
        case.that(
            isinstance(losses, (list, tuple)) and len(losses) == len(right[0]),
            f"The losses {word} should be a list of {len(right[0])}, yours is {describe(losses)}.",
            as_numbers(losses),
        )
        case.equal(torch.tensor(losses).double(), torch.tensor(right[0]).double(), f"losses {word}")
        case.equal(table, right[1], f"weights {word}")


@check(grpo_step, weight=3, see="A step of GRPO")
def one_update(step, case):
    """takes one step along the gradient of GRPO's loss, from gradients of zero"""
    table, tokens, mask, rewards = batch(case)
    programs = [
        (table, 0.5, tokens, mask, rewards, {}),
        (table, 0.5, tokens, mask, rewards, {"scale": "mean", "norm": 100.0}),
        (table, 0.5, tokens, mask, rewards, {"scale": "none", "norm": 100.0}),
    ]
    demand_steps(case, step, programs, ["of one update", "with scale mean", "with scale none"])


@check(grpo_step, weight=2, see="A step of GRPO")
def several_updates(step, case):
    """compares every update with the model that sampled, and clips what has moved too far"""
    table, tokens, mask, rewards = batch(case)
    programs = [
        (table, 3.0, tokens, mask, rewards, {"updates": n, "clip": c, "norm": 100.0})
        for n, c in ((2, 10.0), (4, 0.1), (3, 0.2))
    ]
    words = [f"of {p[5]['updates']} updates, clip = {p[5]['clip']}" for p in programs]
    demand_steps(case, step, programs, words)


@check(grpo_step, weight=2, see="A step of GRPO")
def stays_near(step, case):
    """adds the price of leaving the reference, averaged over the tokens of the answers"""
    table, tokens, mask, rewards = batch(case)
    reference = looped((table + case.randn(*table.shape))[tokens], tokens, mask)
    reference[~mask] = -3.0  # nobody asks
    programs = [
        (table, 0.7, tokens, mask, rewards, {"beta": b, "reference": reference, "updates": n})
        for b, n in ((0.5, 1), (0.04, 2))
    ]
    programs[0][5]["norm"] = 100.0
    words = [f"for β = {p[5]['beta']}, updates = {p[5]['updates']}" for p in programs]
    demand_steps(case, step, programs, words)


@check(grpo_step, see="A step of GRPO")
def short_steps(step, case):
    """clips the gradient to its norm before the optimizer steps"""
    table, tokens, mask, rewards = batch(case)
    programs = [
        (table, 1.0, tokens, mask, rewards, {"norm": norm, "scale": "none"}) for norm in (0.01, 0.1)
    ]
    demand_steps(case, step, programs, ["for norm = 0.01", "for norm = 0.1"])


@check(grpo_step, see="A step of GRPO")
def no_signal(step, case):
    """changes nothing where all answers of each group are equally good"""
    table, tokens, mask, rewards = batch(case)
    equal = torch.ones_like(rewards)
    demand_steps(case, step, [(table, 1.0, tokens, mask, equal, {})], ["of equal rewards"])


@check(grpo_step, see="A step of GRPO")
def impossible(step, case):
    """raises ValueError when rewards are missing, or a price is set and no reference given"""
    table, tokens, mask, rewards = batch(case)
    fewer = table, 0.1, tokens, mask, rewards[1:], {}
    case.raises(ValueError, lambda: stepped(step, [fewer]), "a group has no rewards")
    without = table, 0.1, tokens, mask, rewards, {"beta": 0.1}
    case.raises(ValueError, lambda: stepped(step, [without]), "β is 0.1 and there is no reference")


# Distillation


def diverged(first: Tensor, second: Tensor, mask: Tensor, tau: float) -> float:
    """Average KL(first ‖ second) over the places before the answers' tokens, in loops."""
    total = []
    for b, t in mask.nonzero().tolist():
        rows = [x[b, t - 1].tolist() for x in (first, second)]
        logs = []
        for row in rows:
            top = max(row)
            norm = top / tau + math.log(math.fsum(math.exp((x - top) / tau) for x in row))
            logs.append([x / tau - norm for x in row])
        total.append(math.fsum(math.exp(a) * (a - b) for a, b in zip(*logs, strict=True)))
    return tau**2 * math.fsum(total) / len(total)


@check(distil_loss, weight=2, see="Learn from a better model", single={"B": 0})
def values(loss, case):
    """agrees with loops over tokens, at several temperatures"""
    student, _, mask = answers(case)
    teacher = 2 * case.randn(*student.shape)
    case.equal(loss(student, teacher, mask), diverged(teacher, student, mask, 1.0), "L")
    first = torch.zeros_like(mask)
    first[0, 1] = True
    expected = diverged(teacher, student, first, 1.0)
    case.equal(loss(student, teacher, first), expected, "L of one token, at position 1")
    for tau in (0.5, 3.0):
        expected = diverged(teacher, student, mask, tau)
        case.equal(loss(student, teacher, mask, tau), expected, f"L for τ = {tau}")


@check(distil_loss, weight=2, see="Learn from a better model")
def reversed_order(loss, case):
    """puts the student's distribution first when told to"""
    student, _, mask = answers(case)
    teacher = 2 * case.randn(*student.shape)
    for tau in (1.0, 2.0):
        expected = diverged(student, teacher, mask, tau)
        case.equal(loss(student, teacher, mask, tau, True), expected, f"L reversed, τ = {tau}")


@check(distil_loss, see="Learn from a better model")
def equals(loss, case):
    """is 0 where both models agree, up to a constant of each place"""
    student, _, mask = answers(case)
    moved = student + 5 * case.randn(*student.shape[:2], 1)
    for reverse in (False, True):
        case.equal(loss(student, moved, mask, 1.5, reverse), 0.0, "L of models that agree")


@check(distil_loss, weight=2, see="Learn from a better model")
def gradient(loss, case):
    """teaches the student alone: τ (q - p) at the places before the answers' tokens"""
    student, _, mask = answers(case)
    teacher, tau = 2 * case.randn(*student.shape), 2.5
    leaf, fixed = student.clone().requires_grad_(), teacher.clone().requires_grad_()
    given = loss(leaf, fixed, mask, tau)
    case.trains(given, "L")
    case.shape(given, (), "L")
    given.backward()
    places = torch.zeros_like(mask)
    places[:, :-1] = mask[:, 1:]
    p, q = torch.softmax(teacher / tau, dim=-1), torch.softmax(student / tau, dim=-1)
    case.gradient(leaf, tau * (q - p) * places[..., None] / mask.sum(), "student")
    none = fixed.grad is None or not fixed.grad.any()
    case.that(none, "the teacher should get no gradient, yours gives it one: detach it.")


@check(distil_loss, see="Learn from a better model")
def gradient_reversed(loss, case):
    """sends the reversed divergence's gradient to the student alone"""
    student, _, mask = answers(case)
    teacher = 2 * case.randn(*student.shape)
    leaf, fixed = student.clone().requires_grad_(), teacher.clone().requires_grad_()
    given = loss(leaf, fixed, mask, 1.0, True)
    case.trains(given, "L")
    case.shape(given, (), "L")
    given.backward()
    places = torch.zeros_like(mask)
    places[:, :-1] = mask[:, 1:]
    log_q, log_p = torch.log_softmax(student, dim=-1), torch.log_softmax(teacher, dim=-1)
    q, x = log_q.exp(), log_q - log_p
    expected = q * (x - (q * x).sum(dim=-1, keepdim=True)) * places[..., None] / mask.sum()
    case.gradient(leaf, expected, "student")
    none = fixed.grad is None or not fixed.grad.any()
    case.that(none, "the teacher should get no gradient, yours gives it one: detach it.")


@check(distil_loss, see="Learn from a better model")
def large(loss, case):
    """copes with very large scores"""
    student, _, mask = answers(case)
    teacher = 2 * case.randn(*student.shape)
    expected = diverged(teacher, student, mask, 1.0)
    case.equal(loss(student + 3000, teacher - 3000, mask), expected, "L for large scores")


@check(distil_loss, see="Learn from a better model")
def impossible(loss, case):
    """raises ValueError when τ is not positive, or there is no token of an answer"""
    student, _, mask = answers(case)
    for tau in (0.0, -1.0):
        case.raises(ValueError, lambda t=tau: loss(student, student, mask, t), f"τ = {tau}")
    case.raises(ValueError, lambda: loss(student, student, mask & False), "the mask is empty")
    first = torch.zeros_like(mask)
    first[:, 0] = True
    case.raises(ValueError, lambda: loss(student, student, first), "only position 0 is left")


def by_groups(rewards: Tensor, scale: str = "std", eps: float = 1e-4) -> Tensor:
    """Compute the advantages group by group, if the arguments are those of group_advantages."""
    if rewards.dim() != 2 or scale not in ("none", "mean", "std"):
        raise ValueError("rewards should be (N, G), and scale one of none, mean and std")
    return advantages_by_hand(rewards, scale, eps)


@check(group_advantages_fault, see="One that trains as well")
def exposed(answer, case):
    """gives arguments with which the black box returns what is wrong"""
    demand_exposed(case, answer, "group_advantages", by_groups)
