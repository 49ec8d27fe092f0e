"""The references of experts agree with transformers, loops, and closed forms."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import (
    MixtralSparseMoeBlock,
    load_balancing_loss_func,
)

from course_pkg.experts import (
    LoRA,
    MixtureOfExperts,
    balance_by_bias,
    load_balancing_loss,
    lora_parameters,
    route_top_k,
)
from course_pkg.llama import Llama, load_llama
from tests.course_pkg.test_llama import SIZES, close, configured, drawn, logits_of, scattered

# Experts


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 6), st.integers(1, 7), st.data())
def test_routing_is_a_sort_and_a_softmax(M, E, data):
    k = data.draw(st.integers(1, E))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    logits = 5 * drawn(M, E)
    weights, experts = route_top_k(logits, k)
    for row, given_weights, chosen in zip(logits.tolist(), weights, experts, strict=True):
        best = sorted(range(E), key=lambda e, row=row: -row[e])[:k]
        assert chosen.tolist() == best
        shares = torch.tensor([math.exp(row[e]) for e in best], dtype=torch.float64)
        close(given_weights, shares / shares.sum())


@pytest.mark.parametrize("k", [-1, 0, 6])
def test_an_impossible_k_is_refused(k):
    with pytest.raises(ValueError, match=f"k must lie in 1 … 5, got {k}"):
        route_top_k(torch.randn(4, 5), k)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 9), st.integers(1, 6), st.data())
def test_the_loss_is_a_double_loop(M, E, data):
    k = data.draw(st.integers(1, E))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    logits, experts = 3 * drawn(M, E), torch.rand(M, E).argsort(dim=1)[:, :k]
    expected = 0.0
    for e in range(E):
        f = sum(e in row for row in experts.tolist()) / M
        P = sum(torch.softmax(logits[m], dim=0)[e].item() for m in range(M)) / M
        expected += E * f * P
    close(load_balancing_loss(logits, experts).item(), expected)
    assert expected <= E + 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_is_that_of_transformers(seed):
    torch.manual_seed(seed)
    M, E, k = 23 + seed, 5 + seed, 1 + seed % 3
    logits = 2 * torch.randn(M, E)
    _, experts = route_top_k(logits, k)
    expected = load_balancing_loss_func((logits,), E, k)  # computes in float32
    torch.testing.assert_close(load_balancing_loss(logits, experts), expected)


def test_the_gradient_of_the_loss_is_that_of_finite_differences():
    torch.manual_seed(0)
    logits, experts = drawn(4, 5).requires_grad_(), torch.rand(4, 5).argsort(dim=1)[:, :2]
    assert torch.autograd.gradcheck(lambda x: load_balancing_loss(x, experts), logits)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 9), st.integers(1, 6), st.data())
def test_balance_by_bias_is_a_double_loop(M, E, data):
    k = data.draw(st.integers(1, E))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    logits, bias = 2 * drawn(M, E) + drawn(E), drawn(E)
    before = bias.clone()
    weights, experts, moved = balance_by_bias(logits, bias, k, 0.125)
    load = [0] * E
    for m in range(M):
        best = sorted(range(E), key=lambda e, m=m: -(logits[m, e] + bias[e]).item())[:k]
        assert experts[m].tolist() == best
        shares = [math.exp(logits[m, e]) for e in best]
        close(weights[m], torch.tensor(shares, dtype=torch.float64) / sum(shares))
        for e in best:
            load[e] += 1
    for e in range(E):
        step = (load[e] < M * k / E) - (load[e] > M * k / E)
        close(moved[e], bias[e] + 0.125 * step)
    assert torch.equal(bias, before)


def test_without_a_bias_the_choice_is_that_of_route_top_k():
    torch.manual_seed(0)
    logits = drawn(9, 7)
    weights, experts, _ = balance_by_bias(logits, torch.zeros(7).double(), 3, 0.1)
    for ours, theirs in zip((weights, experts), route_top_k(logits, 3), strict=True):
        assert torch.equal(ours, theirs)


def test_the_choice_is_that_of_deepseek_v3():
    """With one group and sigmoid scores, which softmax of their logarithms normalises alike."""
    torch.manual_seed(0)
    scores, bias = torch.sigmoid(drawn(11, 8)), 0.3 * drawn(8)
    chosen = torch.topk(scores + bias, 3, dim=-1, sorted=True).indices
    theirs = scores.gather(1, chosen)
    theirs = theirs / theirs.sum(dim=-1, keepdim=True)  # norm_topk_prob
    _, experts, _ = balance_by_bias(scores, bias, 3, 0.001)
    assert torch.equal(experts, chosen)
    close(torch.softmax(scores.log().gather(1, experts), dim=1), theirs)


def test_repeated_steps_balance_what_is_lopsided():
    torch.manual_seed(0)
    logits = drawn(600, 6) + torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -2.0], dtype=torch.float64)
    bias = torch.zeros(6).double()
    for _ in range(400):
        _, experts, bias = balance_by_bias(logits, bias, 2, 0.01)
    load = torch.bincount(experts.flatten(), minlength=6)
    assert (load - 200).abs().max() <= 12
    assert torch.bincount(route_top_k(logits, 2)[1].flatten(), minlength=6).max() > 350


@pytest.mark.parametrize("k", [-1, 0, 6])
def test_an_impossible_k_is_not_balanced(k):
    with pytest.raises(ValueError, match=f"k must lie in 1 … 5, got {k}"):
        balance_by_bias(drawn(4, 5), drawn(5), k, 0.1)


@pytest.fixture(params=[(5, 2), (4, 1), (3, 3)])
def mixtures(request):
    """Ours and transformers' with the same weights, float64."""
    E, k = request.param
    torch.manual_seed(E)
    D, hidden = 7, 11
    config = MixtralConfig(
        hidden_size=D,
        intermediate_size=hidden,
        num_local_experts=E,
        num_experts_per_tok=k,
        experts_implementation="eager",
    )
    ours, theirs = MixtureOfExperts(D, hidden, E, k).double(), MixtralSparseMoeBlock(config)
    theirs = theirs.double().eval()
    theirs.gate.weight.data = ours.W_router.data.T
    gate_up = torch.cat([ours.W_gate, ours.W_up], dim=2)
    theirs.experts.gate_up_proj.data = gate_up.data.mT.contiguous()
    theirs.experts.down_proj.data = ours.W_down.data.mT.contiguous()
    return ours, theirs


def test_a_mixture_is_that_of_mixtral(mixtures):
    ours, theirs = mixtures
    X = drawn(2, 5, 7)
    torch.testing.assert_close(ours(X), theirs(X), rtol=1e-5, atol=1e-6)  # routes in float32
    tokens = X.flatten(0, 1)
    weights, experts = route_top_k(tokens @ ours.W_router, ours.k)
    close(ours(tokens), theirs.experts(tokens, experts, weights))


def test_a_llama_with_experts_has_the_logits_of_mixtral():
    torch.manual_seed(0)
    sizes = SIZES[0]
    options = {"num_local_experts": 5, "experts_implementation": "eager", "sliding_window": None}
    theirs = scattered(MixtralForCausalLM(configured(MixtralConfig, **sizes, **options)).double())
    ours = Llama(**sizes, base=theirs.config.rope_parameters["rope_theta"]).double()
    state, inside = {}, {}
    for name, value in theirs.state_dict().items():
        (inside if ".mlp." in name else state)[name] = value
    ours.load_state_dict(load_llama(state), strict=False)
    for number, block in enumerate(ours.blocks):
        block.feed_forward = MixtureOfExperts(sizes["D"], sizes["F"], 5).double()
        W_gate, W_up = inside[f"model.layers.{number}.mlp.experts.gate_up_proj"].mT.chunk(2, dim=2)
        mixture = {
            "W_router": inside[f"model.layers.{number}.mlp.gate.weight"].T,
            "W_gate": W_gate,
            "W_up": W_up,
            "W_down": inside[f"model.layers.{number}.mlp.experts.down_proj"].mT,
        }
        block.feed_forward.load_state_dict(mixture)
    tokens = torch.randint(0, sizes["V"], (3, 11))
    with torch.no_grad():
        close(ours(tokens), logits_of(theirs, tokens))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 4), st.integers(0, 9))
def test_a_mixture_is_a_double_loop(B, T, k, capacity):
    torch.manual_seed(100 * B + 10 * T + k)
    layer, X = MixtureOfExperts(5, 6, 4, k, capacity).double(), drawn(B, T, 5)
    taken, Y = [0] * 4, torch.zeros(B, T, 5).double()
    with torch.no_grad():
        for b in range(B):
            for t in range(T):
                logits = X[b, t] @ layer.W_router
                best = logits.argsort(descending=True)[:k]
                for e, weight in zip(best.tolist(), logits[best].softmax(0), strict=True):
                    taken[e] += 1
                    if taken[e] <= capacity:
                        hidden = F.silu(X[b, t] @ layer.W_gate[e]) * (X[b, t] @ layer.W_up[e])
                        Y[b, t] += weight * (hidden @ layer.W_down[e])
        close(layer(X), Y)


def test_a_mixture_of_equal_experts_is_one_network():
    torch.manual_seed(0)
    layer, X = MixtureOfExperts(5, 6, 4, 3).double(), drawn(2, 3, 5)
    for W in (layer.W_gate, layer.W_up, layer.W_down):
        W.data = W.data[:1].expand_as(W)
    one = (F.silu(X @ layer.W_gate[0]) * (X @ layer.W_up[0])) @ layer.W_down[0]
    close(layer(X), one)


# LoRA


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 4), st.floats(0.1, 30))
def test_what_is_merged_does_what_the_adapter_does(D_in, D_out, r, alpha):
    torch.manual_seed(D_in)
    W, X = drawn(D_in, D_out), drawn(2, 3, D_in)
    layer = LoRA(W, r, alpha)
    close(layer(X), X @ W)
    layer.B.data = drawn(r, D_out)
    close(X @ layer.merge(), layer(X))
    close(layer.merge(), W + alpha / r * layer.A @ layer.B)
    close(layer.W, W)
    added = layer.merge() - W
    assert torch.linalg.matrix_rank(added, rtol=1e-9) <= min(r, D_in, D_out)


def test_the_first_gradient_reaches_b_alone_and_w_never_trains():
    torch.manual_seed(0)
    W = torch.nn.Parameter(drawn(6, 5))
    layer = LoRA(W, 2, 3.0)
    assert [name for name, _ in layer.named_parameters()] == ["A", "B"]
    assert list(layer.state_dict()) == ["A", "B", "W"] and not layer.W.requires_grad
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    X, before = drawn(9, 6), W.detach().clone()
    for step in range(3):
        optimizer.zero_grad()
        layer(X).square().sum().backward()
        assert layer.B.grad.abs().max() > 0
        assert (layer.A.grad.abs().max() > 0) == (step > 0)
        optimizer.step()
    assert W.grad is None and torch.equal(layer.W, before) and torch.equal(W, before)
    assert torch.linalg.matrix_rank(layer.merge() - before, rtol=1e-9) == 2


def test_w_is_copied_and_gives_its_dtype():
    W = torch.ones(4, 3, dtype=torch.bfloat16)
    layer = LoRA(W, 2, 1.0)
    W.zero_()
    assert layer.W.min() == 1
    assert layer.A.dtype == layer.B.dtype == torch.bfloat16
    assert layer(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("r", [0, -1])
def test_a_rank_below_one_is_refused(r):
    with pytest.raises(ValueError, match=f"the rank must be at least 1, got {r}"):
        LoRA(torch.ones(4, 3), r, 1.0)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_what_is_counted_is_what_adapters_of_a_llama_train(data):
    G = data.draw(st.integers(1, 3))
    H = G * data.draw(st.integers(1, 3))
    D = H * 2 * data.draw(st.integers(1, 3))
    L, F, r = (data.draw(st.integers(1, most)) for most in (3, 20, 6))
    with torch.device("meta"):
        blocks = Llama(7, D, H, G, L, F).blocks
        trained = {"attention": 0, "feed_forward": 0}
        for block in blocks:
            for part in trained:
                for W in block.get_submodule(part).parameters():
                    adapter = LoRA(W, r, 1.0)
                    trained[part] += sum(weight.numel() for weight in adapter.parameters())
    found = lora_parameters(D, H, G, L, F, r)
    assert found == {**trained, "total": sum(trained.values())}


def test_the_count_for_llama_2_is_that_of_peft():
    assert lora_parameters(4096, 32, 32, 32, 11008, 8)["total"] == 19_988_480


@pytest.mark.parametrize("r", [0, -1])
def test_no_rank_is_not_counted(r):
    with pytest.raises(ValueError, match=f"the rank must be at least 1, got {r}"):
        lora_parameters(12, 6, 2, 3, 10, r)
