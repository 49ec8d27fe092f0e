"""The references of post_training agree with enumeration, scikit-learn and closed forms."""

import itertools
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional as F

from course_pkg.data.headings import HELD_OUT, NAMES, headings
from course_pkg.post_training import (
    bradley_terry_loss,
    distil_loss,
    dpo_loss,
    group_advantages,
    grpo_step,
    kl_estimate,
    pass_at_k,
    policy_gradient_loss,
    prompt_loss,
    rejection_sample,
    sequence_log_prob,
    verify,
)
from course_pkg.visual_attention import reinforce_loss

TOKENS, STEPS = 4, 3
EVERY = torch.tensor([(0, *each) for each in itertools.product(range(TOKENS), repeat=STEPS)])
ANSWER = torch.tensor([False, True, True, True]).expand(len(EVERY), -1)


class Free(nn.Module):
    """A policy that is any distribution over all answers: a row of scores after each beginning."""

    def __init__(self, seed: int):
        super().__init__()
        drawn = torch.randn(85, TOKENS, generator=torch.Generator().manual_seed(seed))
        self.table = nn.Parameter(drawn.double())

    def forward(self, tokens: Tensor) -> Tensor:
        place, rows = torch.zeros_like(tokens[:, 0]), [self.table[0].expand(len(tokens), -1)]
        for start, t in ((1, 1), (5, 2), (21, 3)):
            place = TOKENS * place + tokens[:, t]
            rows.append(self.table[start + place])
        return torch.stack(rows, dim=1)


def log_probs(policy: Free) -> Tensor:
    return sequence_log_prob(policy(EVERY), EVERY, ANSWER)[1]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def close(given, expected, atol: float = 1e-9) -> None:
    torch.testing.assert_close(given, expected, rtol=1e-7, atol=atol, check_dtype=False)


# Rewards and what they are counted with


names = st.lists(st.sampled_from(["a", "b", "ab", "x_1", "n"]), min_size=1, max_size=3)


@given(names.filter(lambda x: len(set(x)) == len(x)), names, st.booleans())
def test_an_answer_is_right_if_it_documents_the_parameters(wanted, written, cut):
    prompt = f"## m.sub.f({', '.join(wanted)})\n\nText.\n\nParameters\n---\n"
    answer = "".join(f"{name} : int\n    Is b : here.\n" for name in written)
    assert verify(prompt, answer + "\nReturns\n-------\nb : int\n" * cut) == (wanted == written)


def test_every_heading_can_be_answered():
    for held_out, own in ((False, NAMES), (True, HELD_OUT)):
        for prompt in headings(50, seed=3, held_out=held_out):
            first, second = re.match(r"## [\w.]+\((\w+), (\w+)\)\n", prompt).groups()
            assert {first, second} <= set(own)
            assert verify(prompt, f"{first} : int\n{second} : int\n")
            assert not verify(prompt, f"{second} : int\n{first} : int\n")
    assert headings(5, seed=1) == headings(5, seed=1) != headings(5, seed=2)
    assert not set(NAMES) & set(HELD_OUT)


@pytest.mark.parametrize(("n", "p"), [(3, 0.5), (8, 0.1), (6, 0.9)])
def test_pass_at_k_is_unbiased(n, p):
    for k in range(1, n + 1):
        weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
        mean = sum(w * pass_at_k(n, c, k) for c, w in enumerate(weights))
        assert mean == pytest.approx(1 - (1 - p) ** k)


@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=7), max_size=5), st.integers(1, 4))
def test_what_is_kept_is_right_different_and_not_too_much(texts, most):
    prompts = [str(n) for n in range(len(texts))]
    kept = rejection_sample(prompts, texts, lambda prompt, x: x < "c", most)
    for n, row in enumerate(texts):
        own = [row[g] for m, g in kept if m == n]
        right = list(dict.fromkeys(x for x in row if x < "c"))
        assert own == right[:most]


# Log-probabilities


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(2, 7), st.integers(2, 6), st.integers(0, 99))
def test_log_probabilities_are_those_of_cross_entropy(B, T, V, seed):
    torch.manual_seed(seed)
    logits, tokens = 3 * drawn(B, T, V), torch.randint(V, (B, T))
    mask = torch.rand(B, T) < 0.6
    mask[:, 0], mask[0, 1] = False, True
    log_p, total = sequence_log_prob(logits, tokens, mask)
    each = F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")
    close(log_p[:, 1:], -each * mask[:, 1:])
    close(total, log_p.sum(dim=1))
    close(prompt_loss(logits, tokens, mask), each[mask[:, 1:]].mean())


def test_all_answers_together_have_probability_one():
    close(log_probs(Free(0)).exp().sum(), torch.tensor(1.0))


# Preferences


def test_bradley_terry_is_logistic_regression():
    torch.manual_seed(0)
    X, true = drawn(400, 3), torch.tensor([1.0, -2.0, 0.5]).double()
    differences = X[:200] - X[200:]
    wins = torch.rand(200) < torch.sigmoid(differences @ true)
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    settings = {"tolerance_grad": 1e-12, "tolerance_change": 1e-15}
    optimizer = torch.optim.LBFGS([w], max_iter=200, line_search_fn="strong_wolfe", **settings)

    def closure():
        optimizer.zero_grad()
        sign = torch.where(wins, 1.0, -1.0)
        r = (sign[:, None] * differences) @ w
        loss = bradley_terry_loss(r, torch.zeros_like(r)) + w.square().sum() / (2 * 200)
        loss.backward()
        return loss

    optimizer.step(closure)
    theirs = LogisticRegression(fit_intercept=False, tol=1e-12, solver="newton-cholesky").fit(
        differences, wins
    )
    close(w.detach(), torch.from_numpy(theirs.coef_[0]), atol=1e-5)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_gradients_of_preferences(noise):
    torch.manual_seed(0)
    own, other = drawn(5).requires_grad_(), drawn(5).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: bradley_terry_loss(a, b, noise), (own, other))
    fixed = drawn(5), drawn(5)
    assert torch.autograd.gradcheck(lambda a, b: dpo_loss(a, b, *fixed, 0.3)[0], (own, other))


@pytest.mark.parametrize("seed", range(3))
def test_the_closed_form_is_where_dpo_has_no_gradient(seed):
    """π* ∝ π_ref exp(r / β): with all pairs, weighed by how often each wins, DPO's loss is flat."""
    beta, r = 0.7, torch.randn(64, generator=torch.Generator().manual_seed(seed)).double()
    with torch.no_grad():
        start = log_probs(Free(seed))
    scores = (start + r / beta).requires_grad_()
    own = torch.log_softmax(scores, dim=0)
    a, b = (x.flatten() for x in torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij"))
    weight = torch.sigmoid(r[a] - r[b])
    losses = [
        dpo_loss(own[i : i + 1], own[j : j + 1], start[i : i + 1], start[j : j + 1], beta)[0]
        for i, j in zip(a[::13].tolist(), b[::13].tolist(), strict=True)
    ]
    back = [
        dpo_loss(own[j : j + 1], own[i : i + 1], start[j : j + 1], start[i : i + 1], beta)[0]
        for i, j in zip(a[::13].tolist(), b[::13].tolist(), strict=True)
    ]
    w = weight[::13]
    loss = (w * torch.stack(losses) + (1 - w) * torch.stack(back)).sum()
    (slope,) = torch.autograd.grad(loss, scores)
    close(slope, torch.zeros(64))


# Policy gradients


@pytest.mark.parametrize("seed", range(3))
def test_the_mean_of_the_policy_gradient_is_exact(seed):
    policy = Free(seed)
    rewards = torch.randn(64, generator=torch.Generator().manual_seed(seed)).double()
    (exact,) = torch.autograd.grad((log_probs(policy).exp() * rewards).sum(), policy.table)
    log_p, total = sequence_log_prob(policy(EVERY), EVERY, ANSWER)
    p = total.detach().exp()
    for baseline in (0.0, 1.7):
        A = 64 * p * (rewards - baseline)  # the mean over all answers is then that over samples
        loss = policy_gradient_loss(log_p, log_p.detach(), ANSWER, A)
        (slope,) = torch.autograd.grad(loss, policy.table, retain_graph=True)
        close(-STEPS * slope, exact)


def test_for_one_token_it_is_the_reinforce_of_visual_attention():
    torch.manual_seed(0)
    log_p, rewards = drawn(7, 1).requires_grad_(), drawn(7)
    mask = torch.ones(7, 1, dtype=torch.bool)
    ours = policy_gradient_loss(log_p, log_p.detach(), mask, rewards - 0.4)
    theirs, _ = reinforce_loss(rewards[:, None], log_p, mask, 0.4)
    slopes = [torch.autograd.grad(loss, log_p)[0] for loss in (ours, theirs)]
    close(*slopes)


@pytest.mark.parametrize("by", ["token", "sequence"])
@pytest.mark.parametrize("clip", [None, 0.2])
def test_gradients_of_the_policy_loss(by, clip):
    torch.manual_seed(1)
    log_p, old, A = drawn(3, 5).requires_grad_(), drawn(3, 5), drawn(3)
    mask = torch.arange(5) < torch.tensor([[2], [5], [1]])
    assert torch.autograd.gradcheck(
        lambda x: policy_gradient_loss(x, old, mask, A, clip, by), log_p
    )


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 50))
def test_advantages_have_mean_zero(N, G, seed):
    torch.manual_seed(seed)
    R = drawn(N, G)
    for scale in ("mean", "std"):
        close(group_advantages(R, scale).mean(dim=1), torch.zeros(N))
    assert torch.equal(group_advantages(R, "none"), R)


@pytest.mark.parametrize("seed", range(3))
def test_estimates_of_the_divergence(seed):
    """Means and gradients of k1, k2 and k3, exactly: all answers are counted."""
    policy = Free(seed)
    with torch.no_grad():
        start = log_probs(Free(seed + 50))
    own = log_probs(policy)
    p = own.detach().exp()
    forward, back = (own.exp() * (own - start)).sum(), (start.exp() * (start - own)).sum()
    slope = {}
    for kind in ("k1", "k2", "k3"):
        mean = (p * kl_estimate(own, start, kind)).sum()
        slope[kind] = torch.autograd.grad(mean, policy.table, retain_graph=True)[0]
        if kind != "k2":
            close(mean.detach(), forward.detach())
    close(slope["k1"], torch.zeros(85, TOKENS))
    close(slope["k2"], torch.autograd.grad(forward, policy.table, retain_graph=True)[0])
    close(slope["k3"], torch.autograd.grad(back, policy.table)[0])
    assert (kl_estimate(own, start) >= 0).all()


def test_steps_of_grpo_make_good_answers_likely():
    policy = Free(0)
    rewards = (EVERY[:, 1:].sum(dim=1) == 6).double()  # ten of the 64 answers
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(0)
    before = float((log_probs(policy).detach().exp() * rewards).sum())
    for _ in range(60):
        rows = torch.multinomial(log_probs(policy).exp().detach(), 32, True, generator=generator)
        R = rewards[rows].view(4, 8)
        losses = grpo_step(policy, optimizer, EVERY[rows], ANSWER[rows], R, updates=2)
        assert len(losses) == 2
    assert float((log_probs(policy).detach().exp() * rewards).sum()) > max(0.8, 2 * before)


def test_a_price_keeps_the_policy_near():
    far = {}
    for beta in (0.0, 1.0):
        policy, R = Free(0), torch.tensor([[1.0, 0.0, 0.0, 1.0]]).double()
        rows = torch.tensor([3, 17, 40, 9])
        reference, _ = sequence_log_prob(policy(EVERY[rows]), EVERY[rows], ANSWER[rows])
        start, optimizer = log_probs(policy).detach(), torch.optim.SGD(policy.parameters(), lr=1.0)
        settings = {"beta": beta, "reference": reference.detach(), "updates": 20, "clip": 9.0}
        grpo_step(policy, optimizer, EVERY[rows], ANSWER[rows], R, **settings)
        own = log_probs(policy).detach()
        far[beta] = float((own.exp() * (own - start)).sum())
    assert far[1.0] < far[0.0]


# Distillation


@pytest.mark.parametrize("reverse", [False, True])
def test_distillation_is_torchs_divergence(reverse):
    torch.manual_seed(0)
    student, teacher = drawn(3, 5, 7).requires_grad_(), drawn(3, 5, 7)
    mask = torch.rand(3, 5) < 0.5
    mask[0, 1] = True
    rows, places = mask[:, 1:].nonzero(as_tuple=True)
    logs = [F.log_softmax(x[rows, places] / 2.5, dim=-1) for x in (teacher, student)]
    first, second = logs[::-1] if reverse else logs
    theirs = 2.5**2 * F.kl_div(second, first, reduction="batchmean", log_target=True)
    close(distil_loss(student, teacher, mask, 2.5, reverse), theirs)
    assert torch.autograd.gradcheck(lambda x: distil_loss(x, teacher, mask, 2.5, reverse), student)


@pytest.mark.parametrize(
    "call",
    [
        lambda: verify("no heading", ""),
        lambda: pass_at_k(3, 4, 1),
        lambda: sequence_log_prob(drawn(1, 2, 3), torch.zeros(1, 2).long(), torch.ones(1, 2) > 0),
        lambda: prompt_loss(drawn(1, 2, 3), torch.zeros(1, 2).long(), torch.zeros(1, 2) > 0),
        lambda: rejection_sample(["a"], [], lambda prompt, x: True),
        lambda: bradley_terry_loss(drawn(2), drawn(2), 0.5),
        lambda: dpo_loss(drawn(2), drawn(2), drawn(2), drawn(2), 0.0),
        lambda: group_advantages(drawn(2, 2), "max"),
        lambda: kl_estimate(drawn(2), drawn(2), "k4"),
        lambda: distil_loss(drawn(1, 2, 3), drawn(1, 2, 3), torch.zeros(1, 2) > 0),
    ],
)
def test_what_makes_no_sense_is_refused(call):
    with pytest.raises(ValueError):
        call()
