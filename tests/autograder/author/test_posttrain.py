"""The command that trains the target on its own answers does in each of its ways what it says."""

import json

import pytest
import torch

from autograder.author import posttrain
from course_pkg.data.headings import headings
from course_pkg.inference.models import shipped
from course_pkg.inference.rollouts import (
    ADAPTERS,
    RANK,
    Rollouts,
    adapt,
    adapters,
    judged,
    load_adapters,
    sample,
    tokenizer,
    without_adapters,
)
from course_pkg.post_training import sequence_log_prob, verify

PROMPTS = ["## numpy.f(a, index)\n\nParameters\n----------\n"]
TEXTS = [["a : int\nindex : str\n", "a : str\nindex : int\n"] + ["b : int\na : str\n"] * 6]
TOKENS = torch.arange(24)[None]


@pytest.fixture(autouse=True)
def eight(monkeypatch):
    monkeypatch.setattr(posttrain, "G", 8)


def laid_out() -> Rollouts:
    rows = [tokenizer().encode((PROMPTS[0] + text).encode()) for text in TEXTS[0]]
    prompt = len(tokenizer().encode(PROMPTS[0].encode()))
    tokens = torch.zeros(8, max(map(len, rows)), dtype=torch.long)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for n, row in enumerate(rows):
        tokens[n, : len(row)], mask[n, prompt : len(row)] = torch.tensor(row), True
    return Rollouts(TEXTS, tokens, mask, 0)


def totals(model, rollouts):
    with torch.no_grad():
        return sequence_log_prob(model.llama(rollouts.tokens), rollouts.tokens, rollouts.mask)[1]


@pytest.mark.parametrize("way", ["grpo", "cloning", "dpo", "grpo, KL"])
def test_right_answers_become_likelier_than_wrong_ones(way):
    torch.manual_seed(0)
    model, rollouts = shipped("target"), laid_out()
    optimizer = torch.optim.Adam(adapt(model), lr=5e-3)
    before = totals(model, rollouts)
    posttrain.WAYS[way](model, optimizer, PROMPTS, rollouts)
    gain = totals(model, rollouts) - before
    assert gain[:2].mean() > gain[2:].mean()


def test_shuffled_rewards_go_to_any_answer():
    model, rollouts = shipped("target"), laid_out()
    optimizer = torch.optim.Adam(adapt(model), lr=5e-3)
    before = totals(model, rollouts)
    dealer, first = torch.Generator(), torch.tensor([[1.0] + [0.0] * 7])
    seed = next(n for n in range(99) if posttrain.shuffled(first, dealer.manual_seed(n))[0, 1])
    reinforce, dealer = posttrain.WAYS["grpo, shuffled"], dealer.manual_seed(seed)
    reinforce(model, optimizer, PROMPTS, rollouts, dealer=dealer)
    gain = totals(model, rollouts) - before
    assert gain[1] == gain.max() > gain[0]


def test_shuffling_keeps_the_rewards_and_no_dealer_keeps_their_places():
    rewards = torch.arange(24.0).view(3, 8)
    dealt = posttrain.shuffled(rewards, torch.Generator().manual_seed(0))
    assert torch.equal(dealt.flatten().sort().values, rewards.flatten())
    assert not torch.equal(dealt, rewards)
    assert posttrain.shuffled(rewards, None) is rewards


def test_lines_are_counted_whatever_they_say():
    assert posttrain.documenting_lines("", "a : int\nb : c\n  d : e\n: f\ng: h\n") == 2


def test_adapters_begin_as_the_model_and_can_be_left_out():
    base, model = shipped("target"), shipped("target")
    trained = adapt(model)
    assert {x.shape[0] for x in trained} >= {RANK} and len(trained) == len(adapters(model)) == 84
    with torch.no_grad():
        expected = base.llama(TOKENS)
        torch.testing.assert_close(model.llama(TOKENS), expected)
        for name in ("grpo", "lines"):
            load_adapters(model, name)
            assert not torch.allclose(model.llama(TOKENS), expected)
            with without_adapters(model):
                torch.testing.assert_close(model.llama(TOKENS), expected)


def test_answers_are_laid_out_for_training():
    model = shipped("draft")
    adapt(model)
    prompts = headings(2, seed=0)
    found = sample(model, prompts, G=3, seed=5, longest=6)
    assert found.texts == sample(model, prompts, G=3, seed=5, longest=6).texts
    assert found.texts != sample(model, prompts, G=3, seed=6, longest=6).texts
    cold = sample(model, prompts, G=3, seed=5, longest=6, temperature=0).texts
    assert all(len({*each}) == 1 for each in cold)
    for row in range(6):
        answer = found.tokens[row][found.mask[row]].tolist()
        text = tokenizer().decode(answer).decode(errors="replace")
        assert text == found.texts[row // 3][row % 3] and len(answer) == 6
        start = int(found.mask[row].int().argmax())
        given = tokenizer().decode(found.tokens[row, :start].tolist()).decode()
        assert given == prompts[row // 3]
    read = [len(tokenizer().encode(prompt.encode())) for prompt in prompts]
    assert sum(read) + 6 * 5 - 16 * sum(x // 16 for x in read) <= found.computed
    assert found.computed <= sum(read) + 6 * 5
    assert judged(prompts, found.texts, verify).shape == (2, 3)


def test_the_stored_runs_are_those_of_the_command():
    facts = json.loads((ADAPTERS / "runs.json").read_text())
    assert (facts["N"], facts["G"]) == (posttrain.N, posttrain.G)
    assert {run["way"] for run in facts["runs"]} == {*posttrain.WAYS}
    base = facts["base"]
    for run in facts["runs"]:
        assert run["commit"] and run["processor"] and run["documentation"][0] and not run["kl"][0]
        assert len(run["rewards"]) == posttrain.ROUNDS and run["steps"] == [0, 6, 12]
        assert {len(counts) for counts in run["right"]} == {posttrain.TESTS}
    cooled = [base["cooled"], *(x["cooled"] for x in facts["runs"] if x["way"] == "grpo")]
    assert len(cooled) == 1 + len(posttrain.SEEDS) and len(base["of many"]) == posttrain.TESTS
    for each in cooled:
        assert [*each] == [str(T) for T in posttrain.TEMPERATURES]
        assert {len(counts) for counts in each.values()} == {posttrain.TESTS}
