"""The references of visual_attention agree with torch, closed forms and enumeration, float64."""

import itertools
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from course_pkg.visual_attention import (
    CaptionDecoder,
    doubly_stochastic_penalty,
    grid_features,
    hard_attention,
    reinforce_loss,
    soft_attention,
    update_baseline,
)

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(params=range(5))
def sizes(request) -> tuple[int, int, int, int, int]:
    """B, T, L, D and H, all different; also seeds torch."""
    torch.manual_seed(request.param)
    return tuple(random.Random(request.param).sample(range(2, 12), 5))


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def test_grid_features_are_torchs_patches(sizes):
    B, R, C, D, _ = sizes
    maps = randn(B, D, R, C)
    patches = functional.unfold(maps, kernel_size=1)  # (B, D, L), torch's order of locations
    assert torch.equal(grid_features(maps), patches.transpose(1, 2))


def test_soft_attention_is_torchs(sizes):
    B, _, L, D, H = sizes
    q, keys, a = randn(B, 1, H), randn(B, L, H), randn(B, L, D)
    e = (q @ keys.mT)[:, 0] / H**0.5
    z, p = soft_attention(e, a)
    expected = functional.scaled_dot_product_attention(q, keys, a)[:, 0]
    torch.testing.assert_close(z, expected, **CLOSE)
    torch.testing.assert_close(p.sum(dim=1), torch.ones(B).double(), **CLOSE)


def test_soft_attention_is_the_expectation_of_hard_attention(sizes):
    _, _, L, D, _ = sizes
    e, a, B = randn(1, L), randn(1, L, D), 200_000
    z, _, _ = hard_attention(e.expand(B, L), a.expand(B, L, D))
    expected, _ = soft_attention(e, a)
    error = z.std(dim=0) / B**0.5
    assert ((z.mean(dim=0) - expected[0]).abs() < 5 * error + 1e-9).all()


def test_hard_attention_is_torchs_categorical(sizes):
    B, _, L, D, _ = sizes
    e, a = randn(B, L), randn(B, L, D)
    for sample in (True, False):
        z, p, log_p = hard_attention(e, a, sample=sample)
        categorical = torch.distributions.Categorical(logits=e)
        torch.testing.assert_close(p, categorical.probs, **CLOSE)
        s = (z[:, None] == a).all(dim=2).long().argmax(dim=1)
        assert torch.equal(z, a[torch.arange(B), s])
        torch.testing.assert_close(log_p, categorical.log_prob(s), **CLOSE)
    assert torch.equal(s, e.argmax(dim=1))


def test_the_penalty_is_the_squared_distance_from_ones(sizes):
    B, T, L, _, _ = sizes
    p, lengths = torch.softmax(randn(B, T, L), dim=2), torch.randint(1, T + 1, (B,))
    penalty = doubly_stochastic_penalty(p, torch.arange(T) < lengths[:, None])
    rows = [p[n, :length].sum(dim=0) for n, length in enumerate(lengths)]
    expected = torch.cdist(torch.stack(rows), torch.ones(1, L).double()).square().mean()
    torch.testing.assert_close(penalty, expected, rtol=1e-9, atol=1e-12)


def test_decoder_with_blind_attention_is_torchs_lstm(sizes):
    """With equal scores z is the mean of the locations, and torch's LSTM does the whole caption."""
    B, T, L, D, H = sizes
    decoder = CaptionDecoder(words=13, D=D, H=H).double()
    nn.init.zeros_(decoder.v.weight)
    a, captions = randn(B, L, D), torch.randint(0, 13, (B, T + 1))
    lstm = nn.LSTM(H + D, H, batch_first=True).double()
    lstm.load_state_dict({f"{k}_l0": value for k, value in decoder.lstm.state_dict().items()})
    z = a.mean(dim=1)[:, None].expand(B, T, D)
    h, c = decoder.start(a)
    hidden, _ = lstm(torch.cat([decoder.embedding(captions[:, :-1]), z], 2), (h[None], c[None]))
    scores, p, log_p = decoder(a, captions)
    torch.testing.assert_close(scores, decoder.output(torch.cat([hidden, z], dim=2)), **CLOSE)
    torch.testing.assert_close(p, torch.full((B, T, L), 1 / L, dtype=torch.float64), **CLOSE)
    assert log_p.shape == (B, T) and not log_p.any()


def test_decoder_attends_as_bahdanaus_additive_attention(sizes):
    B, _, L, D, H = sizes
    decoder = CaptionDecoder(words=13, D=D, H=H, A=7).double()
    a, h, c = randn(B, L, D), randn(B, H), randn(B, H)
    _, _, p, _ = decoder.step(torch.zeros(B, dtype=torch.long), (h, c), a)
    e = [
        decoder.v(torch.tanh(decoder.W_a(a[:, location]) + decoder.W_h(h)))[:, 0]
        for location in range(L)
    ]
    torch.testing.assert_close(p, torch.stack(e, dim=1).softmax(dim=1), **CLOSE)


def test_hard_decoder_draws_in_training_and_not_otherwise():
    torch.manual_seed(0)
    decoder = CaptionDecoder(words=13, D=4, H=5, hard=True)
    a, captions = torch.randn(1, 6, 4), torch.randint(0, 13, (1, 8))
    decoder.train()
    assert not torch.equal(decoder(a, captions)[0], decoder(a, captions)[0])
    decoder.eval()
    _, p, log_p = decoder(a, captions)
    assert torch.equal(decoder(a, captions)[0], decoder(a, captions)[0])
    torch.testing.assert_close(log_p, p.amax(dim=2).log())


@pytest.fixture(scope="module")
def enumerated():
    """A tiny hard decoder, and its exact gradient by enumeration of all L ** T looks."""
    torch.manual_seed(0)
    T, L = 3, 3
    decoder = CaptionDecoder(words=5, D=2, H=4, A=3, hard=True).double()
    for parameter in decoder.parameters():
        nn.init.normal_(parameter)
    a, caption = randn(1, L, 2), torch.randint(0, 5, (1, T + 1))
    expected = 0.0
    for looks in itertools.product(range(L), repeat=T):
        state, log_y, log_p = decoder.start(a), 0.0, 0.0
        for t, look in enumerate(looks):
            h, _ = state
            e = decoder.v(torch.tanh(decoder.W_a(a) + decoder.W_h(h)[:, None]))[:, :, 0]
            log_p = log_p + torch.log_softmax(e, dim=1)[0, look]
            z = a[:, look]
            h, _ = state = decoder.lstm(torch.cat([decoder.embedding(caption[:, t]), z], 1), state)
            scores = decoder.output(torch.cat([h, z], dim=1))
            log_y = log_y + torch.log_softmax(scores, dim=1)[0, caption[0, t + 1]]
        expected = expected + log_p.exp() * log_y
    gradients = torch.autograd.grad(expected, list(decoder.parameters()), allow_unused=True)
    return decoder, a, caption, expected.item(), gradients


@pytest.mark.parametrize("baseline", [0.0, -8.0])
def test_reinforce_converges_to_the_exact_gradient(enumerated, baseline):
    """The estimate's error falls as 1/√samples, with any baseline: five standard errors at most."""
    decoder, a, caption, expected, gradients = enumerated
    decoder.train()
    torch.manual_seed(1)
    batches, B = 50, 1000
    mask = torch.ones(B, caption.shape[1] - 1, dtype=torch.bool)
    estimates, rewards = [], []
    for _ in range(batches):
        captions = caption.expand(B, -1)
        scores, _, log_p = decoder(a.expand(B, -1, -1), captions)
        log_y = scores.log_softmax(dim=2).gather(2, captions[:, 1:, None])[:, :, 0]
        loss, R = reinforce_loss(log_y, log_p, mask, baseline)
        parts = torch.autograd.grad(loss, list(decoder.parameters()))
        estimates.append(-torch.cat([part.flatten() for part in parts]))
        rewards.append(R)
    estimates, exact = torch.stack(estimates), torch.cat([g.flatten() for g in gradients])
    standard_error = estimates.std(dim=0) / batches**0.5
    assert ((estimates.mean(dim=0) - exact).abs() <= 5 * standard_error + 1e-12).all()
    assert standard_error.norm() < 0.1 * exact.norm()
    assert torch.cat(rewards).mean().item() == pytest.approx(expected, abs=0.05)


def test_the_baseline_is_a_moving_average():
    rewards = randn(6, 4)
    b = None
    for R in rewards:
        b = update_baseline(b, R, decay=0.8)
    weights = 0.2 * 0.8 ** torch.arange(5, -1, -1).double()
    weights[0] = 0.8**5
    assert weights.sum().item() == pytest.approx(1)
    assert b == pytest.approx((weights * rewards.mean(dim=1)).sum().item())
