"""The tools of inside, compared with transformers, a circuit set by hand, loops and autograd."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from course_pkg.data import pretrained
from course_pkg.inference.models import shipped
from course_pkg.inference.opened import AttentionOnly, opened
from course_pkg.inference.planted import INDUCTION, PREVIOUS, planted_induction
from course_pkg.inside import (
    SparseAutoencoder,
    ablate,
    direct_logit_attribution,
    induction_score,
    logit_lens,
    patch_activation,
    path_patch,
    previous_token_score,
    record,
    selectivity,
    steering_vector,
    toy_superposition,
)
from tests.course_pkg.test_llama import close, drawn


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, nn.Module]:
    """The course's draft, and the same weights in transformers."""
    folder = pretrained.FOLDER / "llama" / "draft"
    theirs = LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").double().eval()
    return opened("draft").double(), theirs


def text(B: int, T: int, V: int = 2048) -> Tensor:
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(B * T))


def roughly(given: Tensor, expected: Tensor) -> None:
    """Compare with transformers, whose norms compute in float32."""
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)


def heads_name(layer: int) -> str:
    return f"blocks.{layer}.attention.heads"


# The opened models


@pytest.mark.parametrize("name", ["target", "draft"])
def test_an_opened_model_is_the_shipped_one(name):
    tokens = text(2, 7)
    close(opened(name).double()(tokens), shipped(name).llama.double()(tokens))


def test_places_hold_what_transformers_says(pair):
    ours, theirs = pair
    tokens = text(3, 8)
    names = [f"blocks.{layer}.attention.pattern" for layer in range(2)]
    logits, kept = record(ours, tokens, ["token", "blocks.0", *names])
    with torch.no_grad():
        found = theirs(tokens, output_attentions=True, output_hidden_states=True)
    roughly(logits, found.logits)
    for name, pattern in zip(names, found.attentions, strict=True):
        roughly(kept[name], pattern)
    roughly(kept["token"], found.hidden_states[0])
    roughly(kept["blocks.0"], found.hidden_states[1])


def test_what_keys_are_made_of_changes_keys_alone():
    model = AttentionOnly(11, 12, 2, 2).double()
    tokens = text(2, 5, 11)
    name = "blocks.1.attention.pattern"
    _, before = record(model, tokens, [name])
    _, scaled = record(model, tokens, [name], {"blocks.1.attention.for_keys": lambda X: 3 * X})
    close(scaled[name].log() - scaled[name].log()[..., :1], _tripled(before[name]))
    _, values = record(model, tokens, [name], {"blocks.1.attention.for_values": lambda X: 3 * X})
    close(values[name], before[name])


def _tripled(pattern: Tensor) -> Tensor:
    logs = pattern.log()
    relative = 3 * (logs - logs[..., :1])
    return torch.where(relative.isnan(), -math.inf, relative)


# Record


def test_hooks_go_when_the_model_or_a_change_raises():
    model = AttentionOnly(5, 8, 2, 2)
    tokens = text(2, 3, 5)
    expected = model(tokens)

    def fail(output: Tensor) -> Tensor:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        record(model, tokens, ["token"], {"token": torch.neg, "blocks.1": fail})
    with pytest.raises(IndexError):
        record(model, tokens + 5, ["token"], {"blocks.1": torch.neg})
    assert torch.equal(model(tokens), expected)
    assert not any(module._forward_hooks for module in model.modules())


def test_any_module_can_be_recorded():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = drawn(5, 3)
    out, kept = record(model, x, ["1", "0"], {"0": lambda y: y + 1})
    close(kept["0"], model[0](x) + 1)
    close(kept["1"], F.relu(model[0](x) + 1))
    close(out, model[2](kept["1"]))
    with pytest.raises(ValueError, match=r"called 3, head"):
        record(model, x, ["3"], {"head": torch.neg})


# The stream


def test_the_lens_at_the_end_is_the_model(pair):
    ours, _ = pair
    logits, kept = record(ours, text(2, 6), ["blocks.1"])
    given_logs = logit_lens(kept["blocks.1"], ours.norm.weight, ours.token.weight.T)
    close(given_logs, logits.log_softmax(dim=-1))


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(1, 6)))
def test_attribution_is_a_gradient_with_the_scale_held(sizes):
    torch.manual_seed(sum(n * size for n, size in enumerate(sizes)))
    N, B, T, D, V = sizes
    parts, weight, W_head = drawn(N, B, T, D), drawn(D), drawn(D, V)
    tokens = torch.randint(V, (B, T))
    added = direct_logit_attribution(parts, weight, W_head, tokens)
    X = parts.sum(dim=0)
    logits = F.rms_norm(X, (D,), weight, 1e-5) @ W_head
    close(added.sum(dim=0), logits.gather(-1, tokens[..., None])[..., 0])
    scale = (X.square().mean(dim=-1, keepdim=True) + 1e-5).rsqrt()
    leaf = parts.clone().requires_grad_()
    ((leaf.sum(dim=0) * scale * weight) @ W_head).gather(-1, tokens[..., None]).sum().backward()
    close(added, (leaf.grad * parts).sum(dim=-1))


# Patterns


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 9), st.data())
def test_scores_are_means_over_queries(T, data):
    period = data.draw(st.integers(1, T - 1))
    A = drawn(3, 2, T, T).softmax(dim=-1)
    pairs = [A[..., t, t - period + 1] for t in range(period, T)]
    close(induction_score(A, period), torch.stack(pairs).mean(dim=0))
    close(previous_token_score(A), torch.stack([A[..., t, t - 1] for t in range(1, T)]).mean(dim=0))


def planted_text(B: int, period: int, seed: int = 0) -> tuple[Tensor, Tensor, nn.Module]:
    """Two texts, whose second halves are equal; only the first repeats itself."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(period + 3, generator=generator)[:period] for _ in range(B)]
    block = torch.stack(rows)
    tokens, other = torch.cat([block, block], dim=1), torch.cat([block.flip(1), block], dim=1)
    return tokens, other, planted_induction(period + 3).double()


def right(logits: Tensor, tokens: Tensor, period: int) -> float:
    """The share of right guesses in the second copy, from its second token on."""
    hits = logits[:, period + 1 : -1].argmax(dim=-1) == tokens[:, period + 2 :]
    return float(hits.double().mean())


def test_the_planted_circuit_is_found_and_broken():
    period = 9
    tokens, other, model = planted_text(4, period)
    names = [f"blocks.{layer}.attention.pattern" for layer in range(2)]
    logits, kept = record(model, tokens, names)
    assert right(logits, tokens, period) == 1
    A = torch.stack([kept[name] for name in names])
    previous, induction = (
        previous_token_score(A).mean(dim=1),
        induction_score(A, period).mean(dim=1),
    )
    assert previous[PREVIOUS] > 0.99
    assert induction[INDUCTION] > 0.9
    for scores, place in ((previous, PREVIOUS), (induction, INDUCTION)):
        scores[place] = 0
        assert scores.max() < 0.3
    for how in ("zero", "mean", "resampled"):
        assert right(ablate(model, tokens, [(0, 1), (1, 0)], how), tokens, period) == 1
        assert right(ablate(model, tokens, [PREVIOUS], how), tokens, period) < 0.5
        assert right(ablate(model, tokens, [INDUCTION], how), tokens, period) < 0.5
    for into, share in (("queries", 1), ("values", 1)):
        broken = path_patch(model, tokens, other, PREVIOUS, INDUCTION, into)
        assert right(broken, tokens, period) == share
    assert right(path_patch(model, tokens, other, PREVIOUS, INDUCTION), tokens, period) < 0.5
    assert right(path_patch(model, tokens, other, (0, 1), INDUCTION), tokens, period) == 1


def test_patching_the_induction_head_restores_the_planted_circuit():
    period = 9
    tokens, other, model = planted_text(4, period)
    assert right(model(other), tokens, period) < 0.5
    for head, share in ((1, 1.0), (0, 0.5)):
        where = (torch.arange(2) == head)[:, None]
        patched = patch_activation(model, other, tokens, heads_name(1), where)
        assert right(patched, tokens, period) >= share if head else share > 0.4


# Interventions


def test_ablations_are_those_of_transformers(pair):
    ours, theirs = pair
    tokens, size = text(3, 7), 24
    projection = theirs.model.layers[0].self_attn.o_proj
    for how in ("zero", "mean", "resampled"):

        def change(module, inputs, how=how):
            z = inputs[0].clone()
            mine = slice(2 * size, 3 * size)
            new = {"zero": 0, "mean": z.mean(dim=(0, 1)), "resampled": z[[2, 0, 1]]}[how]
            z[..., mine] = new if how == "zero" else new[..., mine]
            return (z,)

        hook = projection.register_forward_pre_hook(change)
        with torch.no_grad():
            expected = theirs(tokens).logits
        hook.remove()
        roughly(ablate(ours, tokens, [(0, 2)], how), expected)


def test_a_later_head_is_replaced_by_what_the_whole_model_gives(pair):
    ours, _ = pair
    tokens = text(2, 6)
    _, kept = record(ours, tokens, [heads_name(0), heads_name(1)])
    mean = kept[heads_name(1)].mean(dim=(0, 1))

    def both(layer: int, head: int, new: Tensor):
        def change(z: Tensor) -> Tensor:
            return torch.cat(
                [z[:, :, :head], new.expand_as(z)[:, :, [head]], z[:, :, head + 1 :]], 2
            )

        return {heads_name(layer): change}

    changes = both(0, 1, kept[heads_name(0)].mean(dim=(0, 1))) | both(1, 3, mean)
    close(ablate(ours, tokens, [(1, 3), (0, 1)]), record(ours, tokens, [], changes)[0])


def test_paths_keep_to_causality(pair):
    ours, _ = pair
    tokens = text(2, 9)
    other = tokens.clone()
    other[:, 5:] = tokens[:, 5:].flip(1) + 1
    for into in ("queries", "keys", "values"):
        logits = path_patch(ours, tokens, other % 2048, (0, 1), (1, 2), into)
        close(logits[:, :5], ours(tokens)[:, :5])
        assert not torch.allclose(logits, ours(tokens))


def test_all_heads_of_a_layer_and_its_network_are_the_stream(pair):
    ours, _ = pair
    tokens = text(2, 6)
    other = (tokens + 7) % 2048
    for name, whole in (("token", True), ("blocks.1", True), (heads_name(1), False)):
        patched = patch_activation(ours, tokens, other, name, torch.tensor(True))
        assert torch.allclose(patched, ours(other)) == whole


# Probes, directions, dictionaries


def test_selectivity_agrees_with_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    torch.manual_seed(0)
    N, D, classes = 300, 6, 3
    labels, types = torch.arange(N) % classes, torch.arange(N) // 2 % 11
    features = drawn(classes, D)[labels] + drawn(11, D)[types] + drawn(N, D)
    held_out = torch.rand(N) < 0.4
    table = labels[torch.randint(N, (11,), generator=torch.Generator().manual_seed(5))]
    given_pair = selectivity(
        features, labels, types, held_out, classes, torch.Generator().manual_seed(5)
    )
    fit, new = features[~held_out], features[held_out]
    mean, deviation = fit.mean(dim=0), fit.std(dim=0)
    for value, y in zip(given_pair, (labels, table[types]), strict=True):
        model = linear_model.LogisticRegression(C=1 / (0.01 * len(fit)), tol=1e-9, max_iter=9999)
        model.fit(((fit - mean) / deviation).numpy(), y[~held_out].numpy())
        guesses = torch.from_numpy(model.predict(((new - mean) / deviation).numpy()))
        close(value, (guesses == y[held_out]).double().mean())


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(2, 7), st.integers(1, 4))
def test_controls_are_as_long_as_the_vector(N, M, D, K):
    positive, negative = drawn(N, D), drawn(M, D)
    v, controls = steering_vector(positive, negative, K, torch.Generator().manual_seed(N))
    close(v, positive.mean(dim=0) - negative.mean(dim=0))
    close(controls.norm(dim=1), v.norm().expand(K))


def test_the_toy_loss_has_the_gradient_of_finite_differences():
    torch.manual_seed(1)
    X, importance = torch.rand(6, 4).double(), torch.rand(4).double()
    W, b = drawn(4, 3).requires_grad_(), drawn(4).requires_grad_()
    assert torch.autograd.gradcheck(lambda W, b: toy_superposition(X, W, b, importance)[1], (W, b))


@pytest.mark.parametrize("k", [None, 2])
def test_an_autoencoder_recovers_a_planted_code(k):
    torch.manual_seed(0)
    directions = F.normalize(torch.randn(20, 12), dim=1)
    code = (torch.rand(4000, 20).argsort(dim=1) < 2) * (0.5 + torch.rand(4000, 20))
    X = code @ directions
    model, untrained = (SparseAutoencoder(12, 20, k) for _ in range(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(800):
        loss = model.loss(X[torch.randint(4000, (256,))], 0.4 if k is None else 0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def found(each: SparseAutoencoder) -> float:
        cosines = directions @ F.normalize(each.W_dec, dim=1).T
        return float((cosines.amax(dim=1) > 0.9).double().mean())

    assert found(model) > 0.7 > 0.3 > found(untrained)
    if k is not None:
        assert int((model.encode(X) > 0).sum(dim=1).max()) <= k
