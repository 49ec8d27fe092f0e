"""Other correct solutions of bert: loops, Python's random numbers, torch's modules."""

import math
import random

import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg import black_box
from course_pkg.attention import MultiHeadAttention
from course_pkg.bert import (
    BertEmbeddings,
    BertLayer,
    BertModel,
    BertPretraining,
    SentenceClassifier,
    best_span,
    load_bert,
    mask_tokens,
    mlm_head,
    next_sentence_pairs,
    nsp_head,
    pretraining_loss,
    pretraining_loss_fault,
    span_head,
    tf_idf,
)


@alternative(tf_idf)
def word_by_word(counts, training=None):
    training = counts if training is None else training
    x = counts.clone().double()
    for v in range(counts.shape[1]):
        df = int((training[:, v] != 0).sum())
        x[:, v] *= math.log((len(training) + 1) / (df + 1)) + 1
    return F.normalize(x, dim=1)


@alternative(tf_idf)
def in_float32(counts, training=None):
    seen = (counts if training is None else training).float().clamp(max=1)
    idf = 1 + torch.log1p(torch.tensor(float(len(seen)))) - torch.log1p(seen.sum(dim=0))
    x = counts.float() @ torch.diag(idf)
    return x / torch.sqrt((x**2).sum(-1, keepdim=True)).clamp_min(1e-20)


@alternative(mask_tokens)
def one_number_for_all(tokens, special, mask, V, generator=None):
    """Decides everything with one number for each place."""
    u = torch.rand(tokens.shape, generator=generator)
    ordinary = torch.ones_like(tokens, dtype=torch.bool)
    for word in special:
        ordinary &= tokens != word
    inputs, targets = tokens.clone(), torch.full_like(tokens, -100)
    chosen = ordinary & (u < 0.15)
    targets[chosen] = tokens[chosen]
    inputs[chosen & (u < 0.12)] = mask
    drawn = chosen & (u >= 0.12) & (u < 0.135)
    inputs[drawn] = torch.randint(0, V, (int(drawn.sum()),), generator=generator)
    return inputs, targets


@alternative(mask_tokens)
def by_bernoulli(tokens, special, mask, V, generator=None):
    chance = torch.full(tokens.shape, 0.15)
    chance[torch.isin(tokens, torch.as_tensor(special))] = 0.0
    chosen = torch.bernoulli(chance, generator=generator).bool()
    targets = tokens.clone()
    targets[~chosen] = -100
    inputs = tokens.clone()
    hide = torch.bernoulli(torch.full(tokens.shape, 0.8), generator=generator).bool() & chosen
    inputs[hide] = mask
    half = torch.bernoulli(torch.full(tokens.shape, 0.5), generator=generator).bool()
    swap = half & chosen & ~hide
    inputs[swap] = torch.randint(V, tokens.shape, generator=generator)[swap]
    return inputs, targets


def python_source(generator):
    """Seed Python's random numbers by torch's."""
    return random.Random(int(torch.randint(1 << 40, (), generator=generator)))


@alternative(next_sentence_pairs)
def with_python(documents, B, generator=None):
    source, pairs, targets = python_source(generator), [], []
    while len(pairs) < B:
        # Rejection: a sentence is as likely as any other, and the last ones are drawn again.
        d = source.choices(range(len(documents)), [len(text) for text in documents])[0]
        s = source.randrange(len(documents[d]))
        if s + 1 == len(documents[d]):
            continue
        if source.random() < 0.5:
            pairs.append((documents[d][s], documents[d][s + 1]))
            targets.append(0)
        else:
            others = [text for number, text in enumerate(documents) if number != d]
            pairs.append((documents[d][s], source.choice(source.choice(others))))
            targets.append(1)
    return pairs, targets


@alternative(next_sentence_pairs)
def all_at_once(documents, B, generator=None):
    places = [(d, s) for d, text in enumerate(documents) for s in range(len(text) - 1)]
    chosen = torch.randint(len(places), (B,), generator=generator).tolist()
    kinds = (torch.rand(B, generator=generator) < 0.5).long()
    unit = torch.rand(B, 2, dtype=torch.float64, generator=generator).tolist()
    pairs = []
    for place, kind, (u, v) in zip(chosen, kinds.tolist(), unit, strict=True):
        d, s = places[place]
        other = int(u * (len(documents) - 1))
        other += other >= d
        second = documents[d][s + 1] if kind == 0 else None
        if second is None:
            second = documents[other][int(v * len(documents[other]))]
        pairs.append([documents[d][s], list(second)])
    return pairs, kinds


@alternative(BertEmbeddings)
class ByLookup(nn.Module):
    """Keeps no module but the tables, and normalises by hand."""

    def __init__(self, V, context, D):
        super().__init__()
        self.token, self.position = nn.Embedding(V, D), nn.Embedding(context, D)
        self.segment, self.norm = nn.Embedding(2, D), nn.LayerNorm(D, eps=1e-12)

    def forward(self, tokens, segments=None):
        B, T = tokens.shape
        if T > len(self.position.weight):
            raise ValueError("too long")
        if segments is None:
            segments = tokens.new_zeros(B, T)
        places = torch.arange(T, device=tokens.device).expand(B, T)
        X = self.position(places) + self.segment(segments) + self.token(tokens)
        X = X - X.mean(-1, keepdim=True)
        X = X / torch.sqrt((X**2).mean(-1, keepdim=True) + 1e-12)
        return X * self.norm.weight + self.norm.bias


@alternative(BertEmbeddings)
class TextByText(BertEmbeddings):
    """Embeds one text after the other."""

    def forward(self, tokens, segments=None):
        if tokens.shape[-1] > self.position.weight.shape[0]:
            raise ValueError(f"at most {self.position.weight.shape[0]} words")
        rows = []
        for n, text in enumerate(tokens):
            kinds = torch.zeros(len(text), dtype=torch.long) if segments is None else segments[n]
            row = self.token.weight[text] + self.segment.weight[kinds]
            rows.append(self.norm(row + self.position.weight[: len(text)]))
        return torch.stack(rows)


@alternative(BertLayer)
class WithErf(BertLayer):
    """Writes GELU by the error function."""

    def forward(self, X, mask=None):
        Y, A = self.attention(X, X, mask, return_weights=True)
        X = self.norm_1(Y + X)
        Z = self.expand(X)
        Z = 0.5 * Z * (1 + torch.erf(Z / math.sqrt(2)))
        return self.norm_2(self.contract(Z) + X), A


@alternative(BertLayer)
class WithModules(nn.Module):
    """Keeps the activation as a module, and multiplies with the matrices itself."""

    def __init__(self, D, H):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(D, eps=1e-12), nn.LayerNorm(D, eps=1e-12)
        self.attention = MultiHeadAttention(D, H, bias=True)
        self.expand, self.contract = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.act = nn.GELU()

    def forward(self, X, mask=None):
        Y, A = self.attention(X, mask=mask, return_weights=True)
        X = self.norm_1(X + Y)
        hidden = self.act(X @ self.expand.weight.mT + self.expand.bias)
        return self.norm_2(X + hidden @ self.contract.weight.mT + self.contract.bias), A


@alternative(BertModel)
class SquareMask(BertModel):
    """Makes a mask for every pair of positions."""

    def forward(self, tokens, segments=None, lengths=None, return_weights=False):
        B, T = tokens.shape
        if lengths is None:
            lengths = torch.full((B,), T)
        mask = (torch.arange(T) < lengths[:, None])[:, None, :].expand(B, T, T)
        X, weights = self.embeddings(tokens, segments), ()
        for layer in self.layers:
            X, A = layer(X, mask)
            weights += (A,)
        return (X, torch.stack(weights, dim=0)) if return_weights else X


@alternative(BertModel)
class Recursive(BertModel):
    """Applies one layer and leaves the others to itself."""

    def forward(self, tokens, segments=None, lengths=None, return_weights=False):
        mask = None
        if lengths is not None:
            mask = (torch.arange(tokens.shape[1])[None, None] - lengths[:, None, None]) < 0
        X, weights = self.apply_from(0, self.embeddings(tokens, segments), mask)
        return (X, torch.cat(weights)) if return_weights else X

    def apply_from(self, number, X, mask):
        if number == len(self.layers):
            return X, []
        X, A = self.layers[number](X, mask)
        X, later = self.apply_from(number + 1, X, mask)
        return X, [A[None], *later]


@alternative(mlm_head)
def with_einsum(X, W, b, gain, shift, token, bias):
    hidden = torch.einsum("...i,oi->...o", X, W) + b
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    variance, mean = torch.var_mean(hidden, dim=-1, keepdim=True, correction=0)
    hidden = (hidden - mean) * torch.rsqrt(variance + 1e-12) * gain + shift
    return torch.einsum("...d,vd->...v", hidden, token) + bias


@alternative(mlm_head)
def by_torch(X, W, b, gain, shift, token, bias):
    hidden = nn.GELU()(X @ W.mT + b)
    return F.linear(F.layer_norm(hidden, (hidden.shape[-1],), gain, shift, 1e-12), token, bias)


@alternative(nsp_head)
def products(X, W_P, b_P, W, b):
    first = X.unbind(dim=1)[0]
    return (first @ W_P.mT + b_P).tanh() @ W.mT + b


@alternative(nsp_head)
def class_by_class(X, W_P, b_P, W, b):
    y = 2 * torch.sigmoid(2 * F.linear(X[:, 0, :], W_P, b_P)) - 1
    return torch.stack([(y * w).sum(dim=1) + c for w, c in zip(W, b, strict=True)], dim=1)


@alternative(BertPretraining)
class ByModules(BertPretraining):
    """Uses its modules in place of the two functions."""

    def forward(self, tokens, segments=None, lengths=None):
        X = self.bert(tokens, segments=segments, lengths=lengths)
        hidden = self.norm(F.gelu(self.transform(X)))
        words = F.linear(hidden, self.bert.embeddings.token.weight, self.bias)
        return words, self.next_sentence(self.pooler(X[:, 0]).tanh())


@alternative(BertPretraining)
class ByName(BertPretraining):
    """Passes every weight by its name."""

    def forward(self, tokens, segments=None, lengths=None):
        X, p = self.bert(tokens, segments, lengths), dict(self.named_parameters())
        names = "transform.weight", "transform.bias", "norm.weight", "norm.bias"
        words = mlm_head(X, *(p[n] for n in names), p["bert.embeddings.token.weight"], p["bias"])
        names = "pooler.weight", "pooler.bias", "next_sentence.weight", "next_sentence.bias"
        return [words, nsp_head(X, *(p[n] for n in names))]


@alternative(pretraining_loss)
def selected(words, goals, follows, kinds):
    pairs = F.nll_loss(follows.log_softmax(dim=-1), kinds)
    chosen = goals >= 0
    if not chosen.any():
        return pairs
    return pairs + F.cross_entropy(words[chosen], goals[chosen])


@alternative(pretraining_loss)
def by_hand(words, goals, follows, kinds):
    surprise = torch.logsumexp(words, -1) - words.gather(-1, goals.clamp(min=0)[..., None])[..., 0]
    count = max(int((goals != -100).sum()), 1)
    loss = (surprise * (goals != -100)).sum() / count
    rows = torch.arange(len(kinds))
    return loss - torch.log_softmax(follows, dim=1)[rows, kinds].mean()


@alternative(pretraining_loss_fault)
def any_numbers():
    draw = torch.Generator().manual_seed(1)
    words, follows = torch.randn(3, 4, 5, generator=draw), torch.randn(3, 2, generator=draw)
    targets = torch.full((3, 4), -100)
    targets[0], targets[1, 2], targets[2, 1:3] = 1, 4, 2
    return ["D", [words, targets, follows, torch.tensor([1, 1, 0])]]


@alternative(pretraining_loss_fault)
def found_by_leaving_out():
    words, follows, kinds = torch.zeros(2, 3, 4), torch.zeros(2, 2), torch.zeros(2).long()
    words[0, :, 0] = 3.0
    for chosen in range(1, 4):
        targets = torch.zeros(2, 3).long()
        targets[0, chosen:] = -100
        arguments = words, targets, follows, kinds
        if abs(black_box("pretraining_loss")(*arguments) - pretraining_loss(*arguments)) > 0.01:
            return "D", arguments
    return "A", arguments


@alternative(SentenceClassifier)
class PartByPart(nn.Module):
    """Loads encoder and pooler one after the other."""

    def __init__(self, V, context, D, H, L, C):
        super().__init__()
        self.bert = BertModel(V, context, D, H, L)
        self.pooler, self.classifier = nn.Linear(D, D), nn.Linear(D, C)

    def forward(self, tokens, segments=None, lengths=None):
        first = self.bert(tokens, segments, lengths)[:, 0]
        return self.classifier(torch.tanh(self.pooler(first)))

    def start_from(self, state):
        for name in ("bert", "pooler"):
            part = {n[len(name) + 1 :]: v for n, v in state.items() if n.startswith(name + ".")}
            getattr(self, name).load_state_dict(part)


@alternative(SentenceClassifier)
class NotStrict(SentenceClassifier):
    """Loads what fits and ignores the rest."""

    def start_from(self, state):
        wanted = {name for name in self.state_dict() if not name.startswith("classifier")}
        known = {name: value for name, value in state.items() if name in wanted}
        self.load_state_dict(known, strict=False)


@alternative(span_head)
def by_one_matrix(X, S, E, allowed=None):
    scores = F.linear(X, torch.stack([S, E]))  # (B, T, 2), as in published code
    if allowed is not None:
        scores = torch.where(allowed[..., None], scores, torch.tensor(-math.inf))
    return scores.unbind(dim=-1)


@alternative(span_head)
def added_mask(X, S, E, allowed=None):
    start, end = torch.einsum("btd,d->bt", X, S), (X * E).sum(dim=2)
    if allowed is not None:
        mask = torch.zeros_like(start)
        mask[~allowed] = float("-inf")
        start, end = start + mask, end + mask
    return [start, end]


@alternative(best_span)
def span_by_span(start, end, longest, margin=0.0):
    """Tries every span of every text."""
    if longest <= 0:
        raise ValueError("longest")
    B, T = start.shape
    found = torch.zeros(2, B, dtype=torch.int32)
    for b in range(B):
        best = start[b, 0] + end[b, 0] + margin
        for i in range(1, T):
            for j in range(i, min(T, i + longest)):
                if start[b, i] + end[b, j] > best:
                    best = start[b, i] + end[b, j]
                    found[:, b] = torch.tensor([i, j])
    return found[0], found[1]


@alternative(best_span)
def length_by_length(start, end, longest, margin=0.0):
    """Shifts the ends against the starts, one length after the other."""
    if longest < 1:
        raise ValueError("longest")
    best = start[:, 0] + end[:, 0] + margin
    first, last = torch.zeros(2, len(start), dtype=torch.long)
    for more in range(min(longest, start.shape[1] - 1)):
        scores = start[:, 1 : start.shape[1] - more] + end[:, 1 + more :]
        value, place = scores.max(dim=1)
        better = value > best
        best = torch.where(better, value, best)
        first = torch.where(better, place + 1, first)
        last = torch.where(better, place + 1 + more, last)
    return first, last


@alternative(load_bert)
def layer_by_layer(state):
    theirs = {name.removeprefix("bert."): value for name, value in state.items()}
    theirs = {
        name.replace(".gamma", ".weight").replace(".beta", ".bias"): value
        for name, value in theirs.items()
    }
    theirs.pop("embeddings.position_ids", None)
    decoder = theirs.pop("cls.predictions.decoder.weight", None)
    if decoder is not None and (decoder != theirs["embeddings.word_embeddings.weight"]).any():
        raise ValueError("decoder")
    decoder = theirs.pop("cls.predictions.decoder.bias", None)
    if decoder is not None and (decoder != theirs["cls.predictions.bias"]).any():
        raise ValueError("decoder bias")
    ours = {}

    def take(our, their, turn=False):
        for kind in ("weight", "bias"):
            value = theirs.pop(f"{their}.{kind}", None)
            if value is not None:
                name = f"{our}_{kind}" if turn else f"{our}.{kind}"
                ours[name] = value.transpose(0, 1) if turn and kind == "weight" else value

    n = 0
    while f"encoder.layer.{n}.output.dense.weight" in theirs:
        to, old = f"bert.layers.{n}.", f"encoder.layer.{n}."
        names = {"Q": "self.query", "K": "self.key", "V": "self.value", "O": "output.dense"}
        for x, name in names.items():
            take(f"{to}attention.{x}", f"{old}attention.{name}", turn=True)
        take(f"{to}norm_1", f"{old}attention.output.LayerNorm")
        take(f"{to}norm_2", f"{old}output.LayerNorm")
        take(f"{to}expand", f"{old}intermediate.dense")
        take(f"{to}contract", f"{old}output.dense")
        n += 1
    for name in list(ours):
        place, _, kind = name.rpartition("_")
        if kind in ("weight", "bias"):
            front, _, x = place.rpartition(".")
            ours[f"{front}.{'W' if kind == 'weight' else 'b'}_{x}"] = ours.pop(name)
    take("bert.embeddings.token", "embeddings.word_embeddings")
    take("bert.embeddings.position", "embeddings.position_embeddings")
    take("bert.embeddings.segment", "embeddings.token_type_embeddings")
    take("bert.embeddings.norm", "embeddings.LayerNorm")
    take("pooler", "pooler.dense")
    take("transform", "cls.predictions.transform.dense")
    take("norm", "cls.predictions.transform.LayerNorm")
    take("next_sentence", "cls.seq_relationship")
    if "cls.predictions.bias" in theirs:
        ours["bias"] = theirs.pop("cls.predictions.bias")
    if theirs:
        raise ValueError(f"no place for {sorted(theirs)}")
    return ours


@alternative(load_bert)
def by_replacing(state):
    ours, twins = {}, {}
    table = [
        ("LayerNorm.gamma", "LayerNorm.weight"),
        ("LayerNorm.beta", "LayerNorm.bias"),
        ("encoder.layer.", "layers."),
        ("embeddings.word_embeddings", "embeddings.token"),
        ("embeddings.position_embeddings", "embeddings.position"),
        ("embeddings.token_type_embeddings", "embeddings.segment"),
        ("embeddings.LayerNorm", "embeddings.norm"),
        ("attention.output.LayerNorm", "norm_1"),
        ("attention.output.dense.weight", "attention.W_O"),
        ("attention.output.dense.bias", "attention.b_O"),
        ("attention.self.query.weight", "attention.W_Q"),
        ("attention.self.query.bias", "attention.b_Q"),
        ("attention.self.key.weight", "attention.W_K"),
        ("attention.self.key.bias", "attention.b_K"),
        ("attention.self.value.weight", "attention.W_V"),
        ("attention.self.value.bias", "attention.b_V"),
        ("intermediate.dense", "expand"),
        ("output.dense", "contract"),
        ("output.LayerNorm", "norm_2"),
        ("cls.predictions.transform.dense", "transform"),
        ("cls.predictions.transform.LayerNorm", "norm"),
        ("cls.seq_relationship", "next_sentence"),
    ]
    for name, value in state.items():
        if name.endswith("position_ids"):
            continue
        if name.startswith("cls.predictions.decoder."):
            twins[name] = value
            continue
        new = name.removeprefix("bert.")
        if new == "cls.predictions.bias":
            ours["bias"] = value
            continue
        for old, changed in table:
            new = new.replace(old, changed)
        known = new.startswith(("pooler.", "transform.", "norm.", "next_sentence."))
        tables = [f"embeddings.{part}." for part in ("token", "position", "segment", "norm")]
        known |= new.startswith((*tables, "layers."))
        known &= name.endswith((".weight", ".bias", ".gamma", ".beta"))
        if "cross" in new or not known:
            raise ValueError(name)
        new = new.replace("pooler.dense", "pooler")
        if new.startswith(("embeddings.", "layers.")):
            new = "bert." + new
        ours[new] = value.mT if ".W_" in new else value
    for name, value in twins.items():
        twin = ours["bias" if name.endswith("bias") else "bert.embeddings.token.weight"]
        if not torch.equal(value, twin):
            raise ValueError(name)
    return ours
