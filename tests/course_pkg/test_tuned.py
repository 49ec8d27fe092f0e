"""The tuned engine gives what the engine gives: the same tokens, after as many steps."""

import random

import pytest
import torch

from course_pkg.engine.requests import EngineConfig, NoNumbers, SamplingParams
from course_pkg.gpt import GPT
from course_pkg.inference.models import ServedGPT, ServedLlama
from course_pkg.inference.tuned import GatheredAttention, TunedEngine, TunedLlama
from course_pkg.llama import Llama
from course_pkg.paged_attention import paged_attention
from course_pkg.serving import BeamEngine

V, CONTEXT = 17, 64


def llama() -> ServedLlama:
    torch.manual_seed(1)
    return ServedLlama(Llama(V=V, D=24, H=6, G=2, L=2).double(), CONTEXT)


def gpt() -> ServedGPT:
    torch.manual_seed(2)
    return ServedGPT(GPT(V, CONTEXT, 24, 3, 2).double())


def requests(draw: random.Random) -> tuple[list[list[int]], list[SamplingParams]]:
    """Draw prompts, some of which begin alike, and how to continue them."""
    shared = [draw.randrange(V) for _ in range(20)]
    prompts, each = [], []
    for _ in range(9):
        own = [draw.randrange(V) for _ in range(draw.randint(1, 9))]
        prompts.append(shared[: draw.randrange(20)] + own)
        kind = draw.choice([{}, {}, {"temperature": 0.7, "n": 2}, {"n": 3}, {"beams": 3}])
        settings = {"max_tokens": draw.randint(1, 20), "seed": draw.randrange(99), **kind}
        each.append(SamplingParams(stop=draw.choice([None, 3]), **settings))
    return prompts, each


@pytest.mark.parametrize("make", [llama, gpt])
@pytest.mark.parametrize("seed", range(6))
def test_requests_end_as_with_the_engine_after_the_same_steps(make, seed):
    draw = random.Random(seed)
    prompts, each = requests(draw)
    settings = {
        "num_blocks": draw.choice([36, 40, 60]),
        "block_size": draw.choice([4, 5]),
        "max_num_seqs": draw.choice([4, 7]),
        "max_num_batched_tokens": draw.choice([None, 7, 20]),
        "watermark": draw.choice([0, 2]),
        "num_cpu_blocks": draw.choice([0, 0, 12]),
    }
    model, found = make(), []
    for kind in (BeamEngine, TunedEngine):
        engine = kind(model, EngineConfig(**settings))
        outputs = engine.generate(prompts, each)
        found.append(([(o.tokens, o.reasons) for o in outputs], engine.history))
    assert found[0] == found[1]


def test_logits_that_are_no_numbers_end_one_step_and_change_nothing(monkeypatch):
    engine = TunedEngine(llama(), EngineConfig(num_blocks=20, block_size=4))
    numbers = [engine.add([1, 2, 3], SamplingParams(max_tokens=4)) for _ in range(2)]
    forward = engine.runner.forward

    def broken(batch):
        logits = forward(batch)
        logits[1] = torch.nan
        return logits

    monkeypatch.setattr(engine.runner, "forward", broken)
    with pytest.raises(NoNumbers) as caught:
        engine.step()
    assert caught.value.seq_id == numbers[1]
    assert all(engine.sequences[number].tokens == [1, 2, 3] for number in numbers)
    monkeypatch.undo()
    while engine.unfinished(numbers):
        engine.step()
    tokens = BeamEngine(llama(), EngineConfig(num_blocks=20, block_size=4)).generate(
        [[1, 2, 3]], SamplingParams(max_tokens=4)
    )
    assert [output.tokens for output in engine.collect(numbers)] == [tokens[0].tokens] * 2


def test_the_tuned_model_scores_as_the_model():
    model = llama()
    tokens, positions = torch.randint(V, (7,)), torch.arange(7)
    rows = torch.tensor([2, 6])

    def attend(layer, Q, K, V):
        return Q + layer * K.repeat_interleave(3, dim=1) + V.repeat_interleave(3, dim=1)

    with torch.no_grad():
        given = TunedLlama(model)(tokens, positions, attend, rows)
        torch.testing.assert_close(given, model(tokens, positions, attend, rows))


@pytest.mark.parametrize("T", [1, 3])
def test_gathered_attention_is_paged_attention(T):
    attend = GatheredAttention()
    for B in (4, 2):  # memory is kept from one call to the next
        Q = torch.randn(B, T, 6, 5, dtype=torch.float64)
        K, V = torch.randn(2, 2, 30, 4, 5, dtype=torch.float64)
        tables = torch.randperm(30)[: B * 7].view(B, 7)
        lengths = torch.randint(T, 29, (B,))
        for places in (tables, tables.flip(0)):  # as long, but others
            given = attend(Q, K, V, places, lengths)
            torch.testing.assert_close(given, paged_attention(Q, K, V, places, lengths))
