"""Other correct solutions of seq2seq: one sentence at a time, lists, masks, float32."""

import heapq
import math
from collections import Counter

import torch
from torch import nn
from torch.nn import functional

from autograder.alternatives import alternative
from course_pkg import black_box
from course_pkg.data.translation import BOS, EOS, PAD
from course_pkg.seq2seq import (
    AttentionDecoder,
    Decoder,
    Encoder,
    additive_scores,
    additive_scores_fault,
    attend,
    beam_search,
    bleu,
    greedy_decode,
    teacher_forcing_loss,
)


@alternative(Encoder)
class SentenceBySentence(Encoder):
    """Cuts every sentence out of its padding."""

    def forward(self, X, lengths):
        h = torch.zeros(*X.shape, 2 * self.gru.hidden_size, dtype=self.embedding.weight.dtype)
        mask = torch.zeros(X.shape, dtype=torch.bool)
        for row, length in enumerate(lengths):
            words = self.embedding(X[row, :length])
            h[row, :length] = self.gru(words[None])[0][0]
            mask[row, :length] = True
        return h, mask


@alternative(Encoder)
class TwoGRUs(nn.Module):
    """Runs each direction alone; the second reads every sentence reversed within its length."""

    def __init__(self, V, E, H):
        super().__init__()
        self.embedding = nn.Embedding(V, E, padding_idx=PAD)
        self.gru = nn.GRU(E, H, batch_first=True, bidirectional=True)

    def forward(self, X, lengths):
        N = X.shape[1]
        steps = torch.arange(N)
        mask = steps[None] < lengths[:, None]
        back = torch.where(mask, lengths[:, None] - 1 - steps, steps)  # its own inverse
        forward = self.one_way(functional.embedding(X, self.embedding.weight), "")
        reverse = self.one_way(
            functional.embedding(X.gather(1, back), self.embedding.weight), "_reverse"
        )
        reverse = reverse.gather(1, back[:, :, None].expand_as(reverse))
        return torch.cat([forward, reverse], 2) * mask.unsqueeze(2), mask

    def one_way(self, inputs, direction):
        W, R, b, c = (
            getattr(self.gru, f"{name}_l0{direction}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        h, outputs = inputs.new_zeros(len(inputs), R.shape[1]), []
        for x in inputs.unbind(1):
            h = torch.gru_cell(x, h, W, R, b, c)
            outputs.append(h)
        return torch.stack(outputs, 1)


@alternative(Decoder)
class Gathering(Decoder):
    """Finds the last word by gather, and keeps the parts of the product apart."""

    def start(self, h, mask):
        half = h.shape[2] // 2
        last = (mask.long().sum(1, keepdim=True) - 1)[:, :, None].expand(-1, -1, half)
        c = torch.hstack([h[..., :half].gather(1, last).squeeze(1), h[:, 0, half:]])
        return self.first(c).tanh(), c

    def step(self, y, s, memory):
        s = self.gru(torch.hstack([self.embedding.weight[y], memory]), s)
        S = s.shape[1]
        W = self.output.weight
        return s @ W[:, :S].T + memory @ W[:, S:].T + self.output.bias, s, None


@alternative(Decoder)
class RowByRow(Decoder):
    """Treats every sentence on its own."""

    def start(self, h, mask):
        rows = []
        for states, words in zip(h, mask, strict=True):
            forward, backward = states[words].chunk(2, dim=1)
            rows.append(torch.cat([forward[-1], backward[0]]))
        c = torch.stack(rows)
        return torch.tanh(functional.linear(c, self.first.weight, self.first.bias)), c

    def step(self, y, s, memory):
        x = [torch.cat([self.embedding(word), c]) for word, c in zip(y, memory, strict=True)]
        s = torch.stack([self.gru(a, b) for a, b in zip(x, s, strict=True)])
        return (
            torch.stack([self.output(torch.cat(p)) for p in zip(s, memory, strict=True)]),
            s,
            None,
        )


@alternative(teacher_forcing_loss)
def summed_and_divided(decoder, h, mask, Y):
    s, memory = decoder.start(h, mask)
    total = 0
    for given, wanted in zip(Y[:, :-1].unbind(1), Y[:, 1:].unbind(1), strict=True):
        logits, s, _ = decoder.step(given, s, memory)
        log_p = logits.log_softmax(dim=1).gather(1, wanted[:, None])[:, 0]
        total = total - (log_p * (wanted != PAD)).sum()
    return total / (Y[:, 1:] != PAD).sum()


@alternative(teacher_forcing_loss)
def selected(decoder, h, mask, Y):
    s, memory = decoder.start(h, mask)
    logits = []
    for t in range(Y.shape[1] - 1):
        out = decoder.step(Y[:, t], s, memory)
        s = out[1]
        logits.append(out[0])
    words = Y[:, 1:] != PAD
    return functional.nll_loss(torch.stack(logits, 1)[words].log_softmax(-1), Y[:, 1:][words])


@alternative(greedy_decode)
def each_on_its_own(decoder, h, mask, max_length):
    rows = []
    for b in range(len(h)):
        s, memory = decoder.start(h[b : b + 1], mask[b : b + 1])
        words = [BOS]
        while words[-1] != EOS and len(words) <= max_length:
            logits, s, _ = decoder.step(torch.tensor(words[-1:]), s, memory)
            words.append(logits.argmax().item())
        rows.append(torch.tensor(words[1:]))
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


@alternative(greedy_decode)
@torch.no_grad()
def cleaned_up_afterwards(decoder, h, mask, max_length):
    s, memory = decoder.start(h, mask)
    words = torch.full((len(h), 1), BOS)
    for _ in range(max_length):
        logits, s, _ = decoder.step(words[:, -1], s, memory)
        words = torch.cat([words, logits.softmax(1).max(1).indices[:, None]], 1)
        if (words == EOS).any(1).all():
            break
    words = words[:, 1:]
    before = (words == EOS).cumsum(1) - (words == EOS).long()
    return words * (before == 0)


@alternative(bleu)
def with_strings(hypotheses, references):
    assert_equal = len(hypotheses) == len(references)
    if not assert_equal:
        raise ValueError("lengths differ")
    product = 1.0
    for n in (1, 2, 3, 4):
        found, total = 0, 0
        for a, b in zip(hypotheses, references, strict=True):
            left = Counter(" ".join(b[i : i + n]) for i in range(len(b) - n + 1))
            for i in range(len(a) - n + 1):
                gram = " ".join(a[i : i + n])
                total += 1
                if left[gram] > 0:
                    left[gram] -= 1
                    found += 1
        if total == 0:
            return 0.0
        product *= found / total
    c, r = (sum(len(one) for one in side) for side in (hypotheses, references))
    return 100.0 * product**0.25 * (1 if c >= r else math.exp(1 - r / c))


@alternative(bleu)
def with_zip(hypotheses, references):
    matches, totals = [0] * 4, [0] * 4
    for a, b in zip(hypotheses, references, strict=True):
        for n in range(4):
            ours = list(zip(*(a[k:] for k in range(n + 1)), strict=False))
            theirs = Counter(zip(*(b[k:] for k in range(n + 1)), strict=False))
            totals[n] += len(ours)
            matches[n] += sum(min(count, theirs[gram]) for gram, count in Counter(ours).items())
    if min(matches) == 0:
        return 0
    precision = sum(math.log(m) - math.log(t) for m, t in zip(matches, totals, strict=True)) / 4
    short = 1 - sum(map(len, references)) / sum(map(len, hypotheses))
    return torch.tensor(100 * math.exp(precision + min(short, 0.0)), dtype=torch.float64)


@alternative(additive_scores)
def einsum(s, keys, W, v):
    return torch.einsum(
        "bna,a->bn", (torch.einsum("as,bs->ba", W, s).unsqueeze(1) + keys).tanh(), v
    )


@alternative(additive_scores)
def word_by_word(s, keys, W, v):
    state = functional.linear(s, W)
    columns = [(torch.tanh(state + key) * v).sum(-1) for key in keys.unbind(1)]
    return torch.stack(columns, dim=1)


@alternative(additive_scores_fault)
def of_some_shape():
    draw = torch.Generator().manual_seed(3)
    shapes = (2, 3), (2, 4, 5), (5, 3), (5,)
    return ["B", [torch.randn(shape, generator=draw) for shape in shapes]]


@alternative(additive_scores_fault)
def found_by_limits():
    box, one = black_box("additive_scores"), torch.ones(1, 1)
    for size in (3.0, 10.0, 30.0):
        arguments = 0 * one, torch.full((1, 1, 1), -size), one, one[0]
        if -1e-3 < box(*arguments).item() < 1e-3:  # where tanh is -1
            return "B", arguments
    return "E", (one, one[None], one, one[0])


@alternative(attend)
def by_hand(e, h, mask):
    largest = torch.where(mask, e, -math.inf).max(dim=1, keepdim=True).values
    p = torch.where(mask, torch.exp(torch.where(mask, e - largest, 0)), 0)
    a = p / p.sum(dim=1, keepdim=True)
    return (a.unsqueeze(-1) * h).sum(1), a


@alternative(attend)
def sentence_by_sentence(e, h, mask):
    contexts, weights = [], []
    for scores, states, words in zip(e, h, mask, strict=True):
        a = torch.zeros_like(scores)
        a[words] = scores[words].softmax(0)
        weights.append(a)
        contexts.append(a @ states)
    return [torch.stack(contexts), torch.stack(weights)]


@alternative(attend)
def large_negative(e, h, mask):
    a = functional.softmax(e.masked_fill(mask.logical_not(), torch.finfo(e.dtype).min), -1)
    return torch.bmm(a[:, None], h).squeeze(1), a


@alternative(AttentionDecoder)
class KeysEveryTime(AttentionDecoder):
    """Computes the keys at every step, and adds the projected parts one by one."""

    def start(self, h, mask):
        _, backward = h.tensor_split(2, dim=2)
        return self.first(backward[:, 0]).tanh(), {"h": h, "mask": mask}

    def step(self, y, s, memory):
        h, mask = memory["h"], memory["mask"]
        e = additive_scores(s, functional.linear(h, self.U), self.W, self.v)
        c, a = attend(e, h, mask)
        s = self.gru(torch.cat((self.embedding(y), c), -1), s)
        return self.output(torch.cat((s, c), -1)), s, a


@alternative(AttentionDecoder)
class OfItsOwn(AttentionDecoder):
    """Uses no other exercise."""

    def start(self, h, mask):
        C = h.shape[-1]
        away = torch.zeros(mask.shape, dtype=h.dtype).masked_fill(~mask, -1e30)
        return torch.tanh(self.first(h[:, 0, C // 2 :])), [
            h,
            torch.einsum("bnc,ac->bna", h, self.U),
            away,
        ]

    def step(self, y, s, memory):
        h, keys, away = memory
        state = torch.einsum("as,bs->ba", self.W, s)
        a = (torch.tanh(state[:, None] + keys) @ self.v + away).softmax(dim=1)
        c = torch.einsum("bn,bnc->bc", a, h)
        new = self.gru(torch.cat([self.embedding.weight.index_select(0, y), c], 1), s)
        return (
            functional.linear(torch.cat([new, c], 1), self.output.weight, self.output.bias),
            new,
            a,
        )


@alternative(beam_search)
def with_lists(decoder, h, mask, width, max_length, alpha=1.0):
    """Keeps every hypothesis with a state of its own."""
    s, memory = decoder.start(h, mask)
    kept = [([], 0.0, s)]
    for _ in range(max_length):
        candidates = []
        for words, total, state in kept:
            if words and words[-1] == EOS:
                candidates.append((words, total, state))
                continue
            last = torch.tensor([words[-1] if words else BOS])
            logits, new, _ = decoder.step(last, state, memory)
            log_p = logits[0].log_softmax(0).tolist()
            allowed = [word for word in range(len(log_p)) if word not in (PAD, BOS)]
            candidates += [([*words, word], total + log_p[word], new) for word in allowed]
        kept = heapq.nlargest(width, candidates, key=lambda one: one[1])
        if all(words[-1] == EOS for words, _, _ in kept):
            break
    found = [(words, total) for words, total, _ in kept]
    return sorted(found, key=lambda one: one[1] / len(one[0]) ** alpha, reverse=True)


@alternative(beam_search)
@torch.no_grad()
def growing_rows(decoder, h, mask, width, max_length, alpha=1.0):
    """Collects what has ended, and has as many rows as there are hypotheses that go on."""
    s, _ = decoder.start(h, mask)
    words, total, done, going = torch.full((1, 1), BOS), torch.zeros(1).double(), [], [None]
    while going and words.shape[1] <= max_length:
        rows = len(words)
        _, memory = decoder.start(h.repeat(rows, 1, 1), mask.repeat(rows, 1))
        logits, s, _ = decoder.step(words[:, -1], s, memory)
        pool = [(log_p, line, None) for log_p, line in done]
        for row, line in enumerate((total[:, None] + logits.log_softmax(1)).tolist()):
            before = words[row, 1:].tolist()
            pool += [(log_p, [*before, word], row) for word, log_p in enumerate(line)]
        pool = sorted(pool, key=lambda one: one[0], reverse=True)[:width]
        done = [(log_p, line) for log_p, line, _ in pool if line[-1] == EOS]
        going = [one for one in pool if one[1][-1] != EOS]
        if going:
            words = torch.tensor([[BOS, *line] for _, line, _ in going])
            total = torch.tensor([log_p for log_p, _, _ in going]).double()
            s = s[[row for _, _, row in going]]
    found = [(line, log_p) for log_p, line in done] + [(line, log_p) for log_p, line, _ in going]
    return sorted(found, key=lambda one: -one[1] / len(one[0]) ** alpha)
