"""The references of speculation give the target's distribution: by enumeration, by chi-square, and
at temperature 0 token for token, also against transformers' assisted generation."""

import itertools
import math
import random
from fractions import Fraction

import networkx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from course_pkg.checking.models import SmallDraft
from course_pkg.engine.requests import EngineConfig, SamplingParams
from course_pkg.gpt import token_probabilities
from course_pkg.inference.models import ServedLlama, generate_uncached
from course_pkg.inference.trees import read_tree
from course_pkg.llama import Llama, load_llama
from course_pkg.serving import BeamEngine, Engine
from course_pkg.speculative import (
    SpeculativeCore,
    SpeculativeWriter,
    Speculator,
    accept_or_resample,
    accept_path,
    best_draft_length,
    draw_token,
    expected_tokens,
    prompt_lookup,
    tree_mask,
)


@pytest.fixture(autouse=True, params=range(2))
def rng(request) -> random.Random:
    torch.manual_seed(request.param)
    return random.Random(request.param)


class SpeculativeEngine(SpeculativeCore, BeamEngine):
    """Both."""


def tree(V: int, depth: int, kind: str = "any") -> dict[tuple, Tensor]:
    """Draw the probabilities of the next token after every text of up to `depth` tokens."""
    found = {}
    for n in range(depth + 1):
        for text in itertools.product(range(V), repeat=n):
            p = torch.softmax(2 * torch.randn(V, dtype=torch.float64), dim=0)
            if kind == "zeros":
                p[torch.randperm(V)[: V // 2]] = 0
            if kind == "certain":
                p = torch.nn.functional.one_hot(torch.randint(V, ()), V).double()
            found[text] = p / p.sum()
    return found


def along(table: dict, text: tuple, count: int) -> Tensor:
    """The rows of a tree on the way along a text."""
    rows = [table[text[:n]] for n in range(count)]
    return torch.stack(rows) if rows else torch.empty(0, len(table[()]))


def cells(p: Tensor, q: Tensor, drafted: tuple) -> list[tuple[float, list[float]]]:
    """Cut the cube of uniform numbers into boxes in which one and the same thing must happen.

    Returns:
        The volume of each, and a point in it.
    """
    k, found, before = len(drafted), [], 1.0
    pass_at = [min(1.0, float(p[n, x] / q[n, x])) for n, x in enumerate(drafted)]
    for end in range(k + 1):
        share = before * (1 - pass_at[end]) if end < k else before
        point = [a / 2 for a in pass_at[:end]]
        if end < k:
            before *= pass_at[end]
            point += [(1 + pass_at[end]) / 2] + [0.5] * (k - end - 1)
        if share > 0:
            last = p[k] if end == k else torch.clamp(p[end] - q[end], min=0)
            border = [0.0, *(last / last.sum()).cumsum(0).tolist()]
            for low, high in itertools.pairwise(border):
                if high > low:
                    found.append((share * (high - low), [*point, (low + high) / 2]))
    return found


@pytest.mark.parametrize("kind", ["any", "zeros", "certain", "same"])
@pytest.mark.parametrize(("V", "k"), [(4, 0), (4, 1), (4, 2), (3, 3)])
def test_what_comes_out_has_the_targets_distribution_exactly(V, k, kind):
    target = tree(V, k)
    draft = target if kind == "same" else tree(V, k, kind)
    law: dict[tuple, float] = {}
    for drafted in itertools.product(range(V), repeat=k):
        p, q = along(target, drafted, k + 1), along(draft, drafted, k)
        weight = math.prod(float(q[n, x]) for n, x in enumerate(drafted))
        if weight == 0:
            continue
        for volume, u in cells(p, q, drafted):
            point = torch.tensor(u, dtype=torch.float64)
            given_tokens = torch.tensor(drafted, dtype=torch.long)
            text = tuple(accept_or_resample(p, q, given_tokens, point).tolist())
            law[text] = law.get(text, 0.0) + weight * volume
    joint: dict[tuple, float] = {}
    for text, mass in law.items():  # texts that are shorter go on as the target does
        for rest in itertools.product(range(V), repeat=k + 1 - len(text)):
            whole = text + rest
            later = [float(target[whole[:n]][whole[n]]) for n in range(len(text), k + 1)]
            joint[whole] = joint.get(whole, 0.0) + mass * math.prod(later)
    for whole in itertools.product(range(V), repeat=k + 1):
        expected = math.prod(float(target[whole[:n]][whole[n]]) for n in range(k + 1))
        assert abs(joint.get(whole, 0.0) - expected) < 1e-12


def test_a_uniform_number_becomes_a_token_in_proportion():
    weights = torch.tensor([0, 3, 0, 1, 4, 0])
    drawn = [draw_token(weights / 2, (n + 0.5) / 8) for n in range(8)]
    assert drawn == [1, 1, 1, 3, 4, 4, 4, 4]
    assert [draw_token(weights.double(), n / 8) for n in (0, 3, 4)] == [1, 3, 4]
    assert draw_token(weights, 1 - 2**-24) == 4


def test_rounding_may_leave_nothing_to_draw_from():
    p = torch.tensor([[0.5, 0.25, 0.2499999], [0.1, 0.2, 0.7]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    u = torch.tensor([1 - 1e-9, 0.6], dtype=torch.float64)
    assert accept_or_resample(p, q, torch.tensor([2]), u).tolist() == [1]


def test_sizes_that_do_not_fit_are_refused():
    p, q, drafted, u = torch.rand(3, 5), torch.rand(2, 5), torch.tensor([0, 1]), torch.rand(3)
    accept_or_resample(p, q, drafted, u)
    for wrong in ((p[1:], q, drafted, u), (p, p, drafted, u), (p, q, drafted, u[1:])):
        with pytest.raises(ValueError, match="2 tokens"):
            accept_or_resample(*wrong)


def llama(V: int = 4, L: int = 2, sharpness: float = 3.0) -> Llama:
    """A model that is far from uniform."""
    model = Llama(V, D=12, H=3, G=1, L=L, F=8).double()
    model.W_head.data *= sharpness
    return model


def plain(model: Llama, text: Tensor, count: int) -> Tensor:
    """Read the whole text for each best token."""
    with torch.no_grad():
        for _ in range(count):
            text = torch.cat([text, model(text[None])[0, -1].argmax()[None]])
    return text


def law_of(model: Llama, text: Tensor, count: int, temperature: float) -> dict[tuple, float]:
    """The probability of every continuation."""
    V, found = 4, {}
    with torch.no_grad():
        for more in itertools.product(range(V), repeat=count):
            whole = torch.cat([text, torch.tensor(more)])
            p = token_probabilities(model(whole[None])[0], temperature)
            rows = range(len(text) - 1, len(whole) - 1)
            found[more] = math.prod(float(p[n, whole[n + 1]]) for n in rows)
    return found


def p_value(counts: dict[tuple, int], law: dict[tuple, float]) -> float:
    """How probable counts as odd as these are; rare outcomes are put together."""
    total, rare = sum(counts.values()), []
    observed, expected = [], []
    for key, p in law.items():
        if p * total < 8:
            rare.append(key)
        else:
            observed.append(counts.get(key, 0))
            expected.append(p * total)
    if rare:
        observed.append(sum(counts.get(key, 0) for key in rare))
        expected.append(sum(law[key] for key in rare) * total)
    expected = [each * total / sum(expected) for each in expected]
    return stats.chisquare(observed, expected).pvalue


@pytest.mark.parametrize("k", [1, 3])
def test_chi_square_does_not_tell_the_writer_from_its_target(k):
    target, draft, text = llama(), llama(L=1), torch.tensor([1, 3, 0])
    law, generator = law_of(target, text, 3, 0.8), torch.Generator().manual_seed(k)
    writer, alone = (SpeculativeWriter(m, draft, 20, 0.8) for m in (target, draft))
    counts, wrong = {}, {}
    for _ in range(800):
        new = tuple(writer.speculative_generate(text, 3, k, generator)[3:].tolist())
        counts[new] = counts.get(new, 0) + 1
    for _ in range(300):  # what the draft writes, kept as it is
        new = tuple(alone.propose(text, 3, torch.rand(3, generator=generator))[0].tolist())
        alone.rollback(0)
        wrong[new] = wrong.get(new, 0) + 1
    assert p_value(counts, law) > 1e-4
    assert p_value(wrong, law) < 1e-6


@pytest.mark.parametrize("k", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", ["other", "same", "lookup"])
def test_the_best_tokens_are_those_of_the_plain_writer(rng, kind, k):
    V = 7
    target = llama(V)
    draft = {"other": llama(V, L=1), "same": target, "lookup": None}[kind]
    text = torch.randint(V, (rng.randrange(1, 9),))
    for count in (1, 2, 17):
        writer = SpeculativeWriter(target, draft, len(text) + count - 1, 0.0)
        for _ in range(2):  # a writer may be used again
            found = writer.speculative_generate(text, count, k)
            assert torch.equal(found, plain(target, text, count))
        half = len(writer.history) // 2
        assert sum(accepted + 1 for _, accepted in writer.history[half:]) == count
        if kind == "same":
            assert len(writer.history) == 2 * math.ceil(count / (k + 1))


def test_the_target_reads_every_token_once_and_its_drafts_in_one_pass():
    target, draft, reads = llama(5), llama(5, L=1), {}
    for name, model in (("target", target), ("draft", draft)):
        model.register_forward_pre_hook(
            lambda _, inputs, name=name: reads.setdefault(name, []).append(inputs[0].shape[1])
        )
    text, writer = torch.tensor([2, 0, 1, 4]), Speculator(target, draft, 60)
    for _ in range(9):
        before, known = (
            {**{"target": 0, "draft": 0}, **{n: len(r) for n, r in reads.items()}},
            writer.lengths,
        )
        new = writer.speculative_step(text, 3, torch.rand(7, dtype=torch.float64))
        assert reads["target"][before["target"] :] == [len(text) - known[0] + 3]
        assert reads["draft"][before["draft"] :] == [len(text) - known[1], 1, 1]
        accepted = len(new) - 1
        assert writer.lengths == (len(text) + accepted, len(text) + min(accepted, 2))
        text = torch.cat([text, new])
        with torch.no_grad():  # what the caches hold is what the text is
            for model, caches in ((target, writer.target_caches), (draft, writer.draft_caches)):
                fresh = model.new_caches(1, 60)
                model(text[None, : caches[0].length], fresh)
                for ours, theirs in zip(caches, fresh, strict=True):
                    torch.testing.assert_close(ours.read(), theirs.read(), rtol=1e-10, atol=1e-10)


def theirs(L: int, D: int) -> LlamaForCausalLM:
    sizes = {"hidden_size": D, "intermediate_size": 2 * D, "num_hidden_layers": L}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
    config = LlamaConfig(vocab_size=11, tie_word_embeddings=False, **sizes, **heads, **ends)
    model = LlamaForCausalLM(config).double().eval()
    model.lm_head.weight.data *= 20
    return model


def ours(model: LlamaForCausalLM) -> Llama:
    c = model.config
    sizes = {"H": 4, "G": 2, "L": c.num_hidden_layers, "F": c.intermediate_size}
    found = Llama(11, D=c.hidden_size, **sizes).double()
    found.blocks.apply(lambda m: setattr(m, "eps", c.rms_norm_eps) if hasattr(m, "eps") else None)
    found.norm.eps = c.rms_norm_eps
    found.load_state_dict(load_llama(model.state_dict()))
    return found


@pytest.mark.parametrize("with_model", [True, False])
def test_greedy_texts_are_those_of_assisted_generation(with_model):
    target, draft = theirs(2, 16), theirs(1, 8)
    text = torch.randint(11, (6,))
    how = {"assistant_model": draft} if with_model else {"prompt_lookup_num_tokens": 3}
    expected = target.generate(
        text[None], attention_mask=torch.ones(1, 6), max_new_tokens=25, do_sample=False, **how
    )[0]
    writer = SpeculativeWriter(ours(target), ours(draft) if with_model else None, 40, 0.0)
    assert torch.equal(writer.speculative_generate(text, 25, 3), expected)


def test_a_text_that_cannot_be_written_is_refused():
    writer = SpeculativeWriter(llama(), None, 10)
    for text, count in ((torch.tensor([], dtype=torch.long), 3), (torch.tensor([1, 2]), 10)):
        with pytest.raises(ValueError):
            writer.speculative_generate(text, count, 2)
    assert len(writer.speculative_generate(torch.tensor([1, 2]), 9, 2)) == 11
    assert writer.speculative_generate(torch.tensor([1, 2]), 0, 2).tolist() == [1, 2]


@given(
    st.lists(st.integers(0, 2), min_size=0, max_size=14),
    st.integers(0, 6),
    st.integers(1, 4),
)
@settings(max_examples=300, deadline=None)
def test_what_is_looked_up_did_follow(tokens, k, longest):
    found, text = prompt_lookup(tokens, k, longest), "".join(map(str, tokens))
    for n in range(min(longest, len(text) - 1), 0, -1):
        place = text[:-1].rfind(text[-n:])
        if place >= 0:
            distance = len(text) - n - place  # what is guessed repeats with this period
            whole = tokens + found
            assert len(found) == k
            assert all(whole[t] == whole[t - distance] for t in range(len(tokens), len(whole)))
            return
    assert found == []


def test_look_up_refuses():
    for k, longest in ((-1, 3), (2, 0)):
        with pytest.raises(ValueError):
            prompt_lookup([1, 1], k, longest)


def test_expected_tokens_are_the_sum_of_their_probabilities():
    for alpha in (Fraction(0), Fraction(3, 10), Fraction(9, 10), Fraction(1)):
        for k in range(7):
            total = sum(alpha**n for n in range(k + 1))
            assert expected_tokens(float(alpha), k) == pytest.approx(float(total), rel=1e-12)
    accepted = (torch.rand(40_000, 4) < 0.7).long().cumprod(dim=1).sum(dim=1)
    assert abs(float(accepted.double().mean()) + 1 - expected_tokens(0.7, 4)) < 0.03
    for alpha, k in ((-0.1, 2), (1.1, 2), (0.5, -1)):
        with pytest.raises(ValueError):
            expected_tokens(alpha, k)


def test_the_best_draft_is_none_unless_more_is_accepted_than_it_costs():
    for cost in (0.05, 0.2, 0.5, 0.9):
        for alpha in (cost - 0.01, cost + 0.01):
            assert (best_draft_length(alpha, cost) > 0) == (alpha > cost)
    assert best_draft_length(0.8, 0.05) == 8 and best_draft_length(1, 0.3, 7) == 7
    assert best_draft_length(1, 1) == best_draft_length(0, 0) == 0
    with pytest.raises(ValueError):
        best_draft_length(0.5, -0.1)


def served(engine, prompts: list, sampling: list[SamplingParams]) -> list[list[int]]:
    return [output.tokens for output in engine.generate(prompts, sampling)]


@pytest.fixture
def model() -> ServedLlama:
    return ServedLlama(llama(9)).double()


SETTINGS = [
    {"block_size": 1},
    {"block_size": 3},
    {"block_size": 16, "k": 7},
    {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 6},
    {"block_size": 2, "num_blocks": 24},
    {"block_size": 2, "num_blocks": 24, "num_cpu_blocks": 9},
    {"block_size": 4, "k": 1, "watermark": 2},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", ["lookup", "known", "wrong"])
def test_the_engine_writes_what_it_writes_without_drafts(rng, model, settings, kind):
    prompts = [[rng.randrange(9) for _ in range(rng.randrange(1, 12))] for _ in range(6)]
    how = [SamplingParams(rng.randrange(1, 30), stop=rng.choice([None, 3])) for _ in prompts]
    expected = [
        [generate_uncached(model, prompt, each.max_tokens, each.stop)]
        for prompt, each in zip(prompts, how, strict=True)
    ]
    known = [p + generate_uncached(model, p, 40) for p in prompts]
    if kind == "wrong":  # every fourth guess
        known = [[(x + (n % 4 == 0)) % 9 for n, x in enumerate(text)] for text in known]
        known = [p + text[len(p) :] for p, text in zip(prompts, known, strict=True)]
    named = {"num_blocks": 200} | settings
    drafting = {"k": named.pop("k", 4)}
    if kind != "lookup":
        drafting["propose"] = SmallDraft(known)
    engine, plain_engine = (
        SpeculativeEngine(model, EngineConfig(**named), **drafting),
        Engine(model, EngineConfig(**named)),
    )
    assert served(engine, prompts, how) == expected == served(plain_engine, prompts, how)
    assert engine.scheduler.manager.allocator.available == named["num_blocks"]
    if named["num_blocks"] == 200:  # enough that nobody waits
        assert len(engine.history) <= len(plain_engine.history)
    if kind == "known" and all(each.stop is None for each in how):
        assert engine.accepted == engine.drafted
    # What is cached now is right: the same again, from blocks that speculation wrote.
    longer = [p + e[0] for p, e in zip(prompts, expected, strict=True)]
    again = [[generate_uncached(model, p, 5)] for p in longer]
    assert served(engine, longer, [SamplingParams(5)] * 6) == again
    assert engine.scheduler.hits > 0


def test_samples_have_the_models_distribution():
    model, prompt = ServedLlama(llama(4)).double(), [1, 3, 0]
    law = law_of(model.llama, torch.tensor(prompt), 3, 0.9)
    continuations = [prompt + list(more) for more in itertools.product(range(4), repeat=3)]
    engine, counts = (
        SpeculativeEngine(model, EngineConfig(400, 2), k=2, propose=SmallDraft(continuations)),
        {},
    )
    for seed in range(25):
        sampling = SamplingParams(3, n=40, temperature=0.9, seed=1000 * seed)
        (output,) = engine.generate([prompt], sampling)
        for new in map(tuple, output.tokens):
            counts[new] = counts.get(new, 0) + 1
    assert 0 < engine.accepted < engine.drafted
    assert p_value(counts, law) > 1e-4


@pytest.mark.parametrize("temperature", [1e-38, 1e-40, 1e-320])
def test_the_smallest_temperatures_take_the_best_token(temperature):
    prompt, target = [1, 2, 1, 2, 1], llama(9).float()
    expected = generate_uncached(ServedLlama(target), prompt, 12)
    writer = SpeculativeWriter(target, llama(9).float(), 20, temperature)
    found = writer.speculative_generate(torch.tensor(prompt), 12, 3)
    assert found.tolist() == prompt + expected
    engine = SpeculativeEngine(ServedLlama(target), EngineConfig(60, 2))
    assert served(engine, [prompt], [SamplingParams(12, temperature=temperature)]) == [[expected]]


def test_who_draws_with_min_p_gets_no_drafts(model):
    prompts, how = [[1, 2, 1, 2, 1]], [SamplingParams(12, temperature=1.5, min_p=0.3, seed=3)]
    engine = SpeculativeEngine(model, EngineConfig(60, 2))
    assert served(engine, prompts, how) == served(Engine(model, EngineConfig(60, 2)), prompts, how)
    assert engine.drafted == 0


def test_beams_are_found_as_without_drafts(model):
    prompts, how = [[1, 2, 1, 2, 1], [4, 4, 4]], [SamplingParams(8, beams=3), SamplingParams(12)]
    found = SpeculativeEngine(model, EngineConfig(60, 2)).generate(prompts, how)
    expected = BeamEngine(model, EngineConfig(60, 2)).generate(prompts, how)
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert one.log_p == pytest.approx(other.log_p, rel=1e-10)


def test_an_error_leaves_no_trace(model):
    engine = SpeculativeEngine(model, EngineConfig(60, 2))
    numbers = [
        engine.add([1, 1, 1, 1], SamplingParams(30)),
        engine.add([2, 2, 2], SamplingParams(30)),
    ]
    for _ in range(4):
        engine.step()
    before = [list(engine.sequences[n].tokens) for n in numbers], engine.drafted
    free = engine.scheduler.manager.allocator.available
    forward, engine.runner.forward = engine.runner.forward, None
    for _ in range(2):
        with pytest.raises(TypeError):
            engine.step()
        assert before == ([engine.sequences[n].tokens for n in numbers], engine.drafted)
        assert free == engine.scheduler.manager.allocator.available
    engine.runner.forward = forward
    while engine.unfinished(numbers):
        engine.step()
    expected = [generate_uncached(model, p, 30) for p in ([1, 1, 1, 1], [2, 2, 2])]
    assert [engine.sequences[n].output for n in numbers] == expected


def drawn_tree(rng: random.Random, M: int, V: int) -> tuple[list[int], list[int]]:
    """Draw the parents and tokens of a tree in which siblings hold different tokens."""
    parents, tokens = [-1], [rng.randrange(V)]
    while len(parents) < M:
        node = rng.randrange(len(parents)), rng.randrange(V)
        if node not in list(zip(parents, tokens, strict=True)):
            parents.append(node[0])
            tokens.append(node[1])
    return parents, tokens


@pytest.mark.parametrize("past", [0, 1, 5])
def test_nodes_see_their_ancestors_and_one_pass_is_as_good_as_a_pass_for_each_path(rng, past):
    model = llama(V=7)
    parents, tokens = drawn_tree(rng, 12, 7)
    before, mask = torch.randint(0, 7, (past,)), tree_mask(parents, past)
    graph = networkx.DiGraph([(p, n) for n, p in enumerate(parents) if n])
    logits = read_tree(model, before, torch.tensor(tokens), mask)
    for node in range(12):
        path = sorted({node, *networkx.ancestors(graph, node)})
        seen = torch.zeros(past + 12, dtype=torch.bool)
        seen[[*range(past), *(past + n for n in path)]] = True
        assert torch.equal(mask[node], seen)
        alone = torch.cat([before, torch.tensor([tokens[n] for n in path])])
        with torch.no_grad():
            torch.testing.assert_close(logits[node], model(alone[None])[0, -1])
    for wrong in ([0], [-1, 1], [-1, -1], [-1, 0, 2]):
        with pytest.raises(ValueError, match="parent"):
            tree_mask(wrong)


def test_trees_write_what_the_model_writes_alone(rng):
    model, text = llama(V=3), torch.randint(0, 3, (4,))
    expected, lengths = plain(model, text, 80), []
    while len(text) < 60:
        parents, tokens = drawn_tree(rng, 12, 3)
        tokens[0] = int(text[-1])
        children = list(zip(parents, tokens, strict=True))
        if len(set(children[1:])) < 11:
            continue
        mask = tree_mask(parents, len(text) - 1)
        best = read_tree(model, text[:-1], torch.tensor(tokens), mask).argmax(1).tolist()
        path = accept_path(parents, tokens, best)
        text = torch.cat([text, torch.tensor([best[node] for node in path])])
        lengths.append(len(path))
        assert torch.equal(text, expected[: len(text)])
    assert max(lengths) > 2
    with pytest.raises(ValueError, match="nodes"):
        accept_path(parents, tokens[1:], best)
