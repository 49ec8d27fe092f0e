"""Other correct solutions of gpt: slow counting, torch's layers, loops, numpy."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg.attention import MultiHeadAttention
from course_pkg.data.text import words
from course_pkg.gpt import (
    GPT,
    BPETokenizer,
    GPTBlock,
    Writer,
    bits_per_byte,
    byte_pair_merges,
    init_gpt_weights,
    language_model_loss,
    language_model_loss_fault,
    load_gpt2,
    merge_pair,
    perplexity,
    token_probabilities,
)


@alternative(merge_pair)
def on_a_stack(tokens, pair, new):
    merged = []
    for token in tokens:
        if merged and merged[-1] == pair[0] and token == pair[1]:
            merged[-1] = None  # stands for new, which must not be part of a pair itself
        else:
            merged.append(token)
    return [new if token is None else token for token in merged]


@alternative(merge_pair)
def recursive(tokens, pair, new):
    for n in range(len(tokens) - 1):
        if tokens[n] == pair[0] and tokens[n + 1] == pair[1]:
            return [*tokens[:n], new, *recursive(tokens[n + 2 :], pair, new)]
    return list(tokens)


@alternative(byte_pair_merges)
def count_again(counts, merges):
    spelled = [(list(word), n) for word, n in counts.items()]
    learned = []
    for new in range(256, 256 + merges):
        pairs = Counter()
        for tokens, n in spelled:
            for k in range(len(tokens) - 1):
                pairs[tokens[k], tokens[k + 1]] += n
        if not pairs:
            break
        most = max(pairs.values())
        best = sorted(pair for pair, n in pairs.items() if n == most)[0]
        spelled = [(merge_pair(tokens, best, new), n) for tokens, n in spelled]
        learned.append(best)
    return learned


@alternative(byte_pair_merges)
def differences(counts, merges):
    spelled, pairs, learned = {word: list(word) for word in counts}, Counter(), []
    for word in counts:
        pairs.update({p: 0 for p in pairwise(word)})
        for p in pairwise(word):
            pairs[p] += counts[word]
    while pairs and len(learned) < merges:
        best = sorted(pairs, key=lambda p: (-pairs[p], *p))[0]
        for word, old in spelled.items():
            new = merge_pair(old, best, 256 + len(learned))
            if new != old:
                pairs.subtract(list(pairwise(old)) * counts[word])
                pairs.update(list(pairwise(new)) * counts[word])
                spelled[word] = new
        pairs = Counter({p: n for p, n in pairs.items() if n > 0})
        learned.append(best)
    return [list(pair) for pair in learned]


@alternative(BPETokenizer)
class InOrder:
    """Goes through all merges in order, word by word, without a cache."""

    def __init__(self, merges, special=()):
        self.merges = [tuple(pair) for pair in merges]
        self.tokens = [bytes([n]) for n in range(256)]
        for a, b in self.merges:
            self.tokens.append(self.tokens[a] + self.tokens[b])
        self.special = {}
        for name in special:
            self.special[name] = len(self.tokens)
            self.tokens.append(name.encode())

    def encode(self, text):
        tokens = []
        for word in words(text):
            spelled = [*word]
            for n, pair in enumerate(self.merges):
                spelled = merge_pair(spelled, pair, 256 + n)
            tokens.extend(spelled)
        return tokens

    def decode(self, tokens):
        text = b""
        for token in tokens:
            text += self.tokens[token]
        return text


@alternative(BPETokenizer)
class ByBytes:
    """Merges bytes strings, and looks the tokens up at the end."""

    def __init__(self, merges, special=()):
        self.tokens = [bytes([n]) for n in range(256)]
        self.rank = {}
        for n, (a, b) in enumerate(merges):
            self.rank[a, b] = n
            self.tokens += [self.tokens[a] + self.tokens[b]]
        names = list(special)
        self.special = dict(zip(names, range(len(self.tokens), 999_999), strict=False))
        self.tokens += [name.encode("utf-8") for name in names]
        self.known = {}

    def encode(self, text):
        return [token for word in words(text) for token in self.word(word)]

    def word(self, word):
        if word not in self.known:
            spelled = list(word)
            while len(spelled) > 1:
                ranks = [self.rank.get(p, math.inf) for p in pairwise(spelled)]
                n = ranks.index(min(ranks))
                if ranks[n] == math.inf:
                    break
                spelled[n : n + 2] = [256 + ranks[n]]
            self.known[word] = tuple(spelled)
        return self.known[word]

    def decode(self, tokens):
        return bytes(byte for token in tokens for byte in self.tokens[token])


@alternative(GPTBlock)
class ByHand(nn.Module):
    """Writes GELU out, and uses matrices in place of nn.Linear's call."""

    def __init__(self, D, H):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention = MultiHeadAttention(D, H, bias=True)
        self.expand, self.contract = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, X, mask=None):
        Y, A = self.attention(self.norm_1(X), mask=mask, return_weights=True)
        after = X + Y
        x = self.norm_2(after) @ self.expand.weight.T + self.expand.bias
        x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return after + x @ self.contract.weight.T + self.contract.bias, A


@alternative(GPTBlock)
class TwoCalls(GPTBlock):
    """Computes both branches in methods of their own, with torch's module for GELU."""

    def look(self, X, mask):
        return self.attention(self.norm_1(X), self.norm_1(X), mask, True)

    def think(self, X):
        return self.contract(nn.GELU("tanh")(self.expand(self.norm_2(X))))

    def forward(self, X, mask=None):
        seen, weights = self.look(X, mask)
        X = torch.add(X, seen)
        return [torch.add(X, self.think(X)), weights]


@alternative(GPT)
class EmbeddedTwice(GPT):
    """Looks positions up, and scores with functional.linear."""

    def forward(self, tokens, return_weights=False):
        B, T = tokens.shape
        if self.context < T:
            raise ValueError("too long")
        places = torch.arange(T).expand(B, T)
        x, all_weights = F.embedding(tokens, self.token.weight) + self.position(places), []
        allowed = torch.arange(T)[:, None] >= torch.arange(T)
        for number in range(len(self.blocks)):
            x, weights = self.blocks[number](x, allowed)
            all_weights += [weights]
        logits = F.linear(self.norm(x), self.token.weight)
        if return_weights:
            return logits, torch.stack(tuple(all_weights), dim=0)
        return logits


@alternative(GPT)
class TextByText(GPT):
    """Reads one text after the other, in loops."""

    def forward(self, tokens, return_weights=False):
        if tokens.size(1) > self.context:
            raise ValueError(f"at most {self.context} tokens")
        results = [self.read(text) for text in tokens]
        logits = torch.stack([logits for logits, _ in results])
        weights = torch.stack([weights for _, weights in results], dim=1)
        return (logits, weights) if return_weights else logits

    def read(self, text):
        X = torch.stack(
            [self.token.weight[t] + self.position.weight[n] for n, t in enumerate(text)]
        )
        X, weights = X[None], []
        for block in self.blocks:
            X, A = block(X, torch.ones(len(text), len(text), dtype=torch.bool).tril())
            weights.append(A[0])
        return torch.einsum("td,vd->tv", self.norm(X[0]), self.token.weight), torch.stack(weights)


@alternative(init_gpt_weights)
def in_place_on_copies(state, L):
    new = {name: torch.empty_like(value) for name, value in state.items()}
    for name, value in new.items():
        if name.endswith(("bias", ".b_Q", ".b_K", ".b_V", ".b_O")):
            nn.init.zeros_(value)
        elif "norm" in name:
            nn.init.ones_(value)
        elif "W_O" in name or "contract" in name:
            nn.init.normal_(value, std=0.02 * (2 * L) ** -0.5)
        else:
            nn.init.normal_(value, std=0.02)
    return new


@alternative(init_gpt_weights)
def from_a_distribution(state, L):
    new = {}
    for name, value in state.items():
        kind = name.split(".")[-1]
        if name == "norm.weight" or name.endswith(("norm_1.weight", "norm_2.weight")):
            new[name] = value * 0 + 1
        elif kind == "bias" or kind.startswith("b_"):
            new[name] = value * 0
        else:
            scale = 1 / math.sqrt(2 * L) if kind == "W_O" or "contract" in name else 1
            drawn = torch.distributions.Normal(0.0, 0.02 * scale).sample(value.shape)
            new[name] = drawn.to(value.dtype)
    return new


@alternative(language_model_loss)
def gathered(logits, tokens, lengths=None):
    log_p = logits.log_softmax(dim=-1)[:, :-1]
    loss = -log_p.gather(2, tokens[:, 1:, None])[..., 0]
    if lengths is None:
        lengths = torch.full((len(tokens),), tokens.shape[1])
    mask = (torch.arange(1, tokens.shape[1]) < lengths[:, None]).to(loss)
    return (loss * mask).sum() / mask.sum()


@alternative(language_model_loss)
def ignored(logits, tokens, lengths=None):
    targets = tokens.clone()
    if lengths is not None:
        targets[torch.arange(tokens.shape[1]) >= lengths[:, None]] = -100
    V = logits.shape[-1]
    return F.cross_entropy(logits[:, :-1].reshape(-1, V), targets[:, 1:].reshape(-1))


@alternative(language_model_loss_fault)
def random_with_lengths():
    return "B", [torch.randn(3, 6, 5), torch.randint(0, 5, (3, 6)), torch.tensor([6, 1, 3])]


@alternative(language_model_loss_fault)
def longer_in_float64():
    return ["B", (torch.ones(2, 9, 4, dtype=torch.float64), torch.arange(18).view(2, 9) % 4)]


@alternative(perplexity)
def weighted(losses, counts):
    return math.exp(float(losses @ counts.to(losses)) / int(counts.sum()))


@alternative(perplexity)
def with_numpy(losses, counts):
    return np.exp(np.average(losses.numpy(), weights=counts.numpy()))


@alternative(bits_per_byte)
def by_log2(loss, tokens, size):
    return math.log2(math.e) * loss * (tokens / size)


@alternative(bits_per_byte)
def by_exp2(loss, tokens, size):
    nats = loss * tokens
    return nats / (size * 0.6931471805599453)


def demand(temperature, top_k, top_p):
    if temperature < 0:
        raise ValueError("temperature")
    if top_k is not None and top_k <= 0:
        raise ValueError("top_k")
    if top_p is not None and (top_p <= 0 or top_p > 1):
        raise ValueError("top_p")


@alternative(token_probabilities)
def by_minus_infinity(logits, temperature=1.0, top_k=None, top_p=None):
    demand(temperature, top_k, top_p)
    if temperature == 0:
        best = logits.argmax(dim=1, keepdim=True)
        return torch.zeros_like(logits).scatter(1, best, 1.0)
    logits = (logits - logits.max(dim=1, keepdim=True).values) / temperature
    V, rank = logits.shape[1], logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    if top_k is not None:
        logits = logits.masked_fill(rank >= min(top_k, V), -torch.inf)
    if top_p is not None:
        p = logits.softmax(dim=1)
        ordered = torch.zeros_like(p).scatter(1, rank, p)
        before = torch.cat([torch.zeros_like(p[:, :1]), ordered.cumsum(dim=1)[:, :-1]], dim=1)
        keep = before.gather(1, rank) < top_p
        logits = logits.masked_fill(~keep, -torch.inf)
    return logits.softmax(dim=1)


@alternative(token_probabilities)
def row_by_row(logits, temperature=1.0, top_k=None, top_p=None):
    demand(temperature, top_k, top_p)
    rows = []
    for row in logits:
        V = len(row)
        if not temperature:
            rows.append(torch.eye(V, dtype=row.dtype)[row.argmax()])
            continue
        p = torch.softmax((row - row.max()) / temperature, dim=0).tolist()
        best = sorted(range(V), key=lambda n, p=p: (-p[n], n))[: top_k or V]
        if top_p is not None:
            total, chosen, share = sum(p[n] for n in best), [], 0.0
            for n in best:
                if share >= top_p:
                    break
                chosen.append(n)
                share += p[n] / total
            best = chosen
        total = sum(p[n] for n in best)
        kept = [p[n] / total if n in best else 0.0 for n in range(V)]
        rows.append(torch.tensor(kept, dtype=row.dtype))
    return torch.stack(rows)


@alternative(Writer)
class Lists(GPT):
    """Writes one text after the other, in Python lists; the draws differ, their law does not."""

    @torch.no_grad()
    def sample(
        self, tokens, count, temperature=1.0, top_k=None, top_p=None, stop=None, generator=None
    ):
        texts = []
        for text in tokens.tolist():
            new = []
            while len(new) < count:
                seen = torch.tensor([[*text, *new][-self.context :]])
                p = token_probabilities(self(seen)[:, -1], temperature, top_k, top_p)
                new.append(int(torch.multinomial(p[0], 1, generator=generator)))
                if new[-1] == stop:
                    break
            texts.append((text, new))
        longest = max(len(new) for _, new in texts)
        rows = [text + new + [stop] * (longest - len(new)) for text, new in texts]
        return torch.tensor(rows)


@alternative(Writer)
class Buffer(GPT):
    """Writes into a tensor made beforehand, by inverting the distribution."""

    @torch.no_grad()
    def sample(
        self, tokens, count, temperature=1.0, top_k=None, top_p=None, stop=None, generator=None
    ):
        B, T = tokens.shape
        texts = torch.cat([tokens, torch.zeros(B, count, dtype=tokens.dtype)], dim=1)
        active = torch.ones(B, dtype=torch.bool)
        for end in range(T, T + count):
            logits = self(texts[:, max(0, end - self.context) : end])[:, -1]
            p = token_probabilities(logits, temperature, top_k, top_p)
            u = torch.rand(B, 1, generator=generator, dtype=p.dtype)
            drawn = (p.cumsum(dim=1) <= u).sum(dim=1).clamp(max=p.shape[1] - 1)
            if stop is not None:
                drawn[~active] = stop
                active &= drawn != stop
            texts[:, end] = drawn
            if not active.any():
                return texts[:, : end + 1]
        return texts


@alternative(load_gpt2)
def by_pattern(state):
    import re

    ours, head = {}, None
    for name, value in state.items():
        name = re.sub(r"^transformer\.", "", name)
        if name == "lm_head.weight":
            head = value
            continue
        if re.fullmatch(r"h\.\d+\.attn\.(masked_)?bias", name):
            continue
        name = re.sub(r"^h\.(\d+)\.", r"blocks.\1.", name)
        joined = re.fullmatch(r"(blocks\.\d+\.)attn\.c_(attn|proj)\.(weight|bias)", name)
        if joined:
            letter = {"weight": "W", "bias": "b"}[joined[3]]
            values = value.tensor_split(3, dim=-1) if joined[2] == "attn" else [value]
            for x, part in zip("QKV" if joined[2] == "attn" else "O", values, strict=True):
                ours[f"{joined[1]}attention.{letter}_{x}"] = part.clone()
            continue
        known = r"wte|wpe|ln_f|blocks\.\d+\.(ln_[12]|mlp\.c_(fc|proj))"
        if not re.fullmatch(rf"({known})\.(weight|bias)", name) or name in ("wte.bias", "wpe.bias"):
            raise ValueError(f"unknown weight {name}")
        if "mlp" in name and value.dim() == 2:
            value = value.transpose(0, 1).contiguous()
        for theirs, new in {
            r"^wte\b": "token",
            r"^wpe\b": "position",
            r"\bln_f\b": "norm",
            r"\bln_": "norm_",
            r"\bmlp\.c_fc\b": "expand",
            r"\bmlp\.c_proj\b": "contract",
        }.items():
            name = re.sub(theirs, new, name)
        if not re.match(
            r"(token|position|norm)\.|blocks\.\d+\.(norm_[12]|expand|contract)\.", name
        ):
            raise ValueError(f"unknown weight {name}")
        ours[name] = value
    if head is not None and (head != ours["token.weight"]).any():
        raise ValueError("the head is not tied")
    return ours


@alternative(load_gpt2)
def layer_by_layer(state):
    theirs = {name.split("transformer.")[-1]: value for name, value in state.items()}
    if "lm_head.weight" in theirs:
        if not theirs["lm_head.weight"].equal(theirs["wte.weight"]):
            raise ValueError("lm_head")
        del theirs["lm_head.weight"]
    ours = {"token.weight": theirs.pop("wte.weight"), "position.weight": theirs.pop("wpe.weight")}
    ours |= {f"norm.{kind}": theirs.pop(f"ln_f.{kind}") for kind in ("weight", "bias")}
    n = 0
    while f"h.{n}.ln_1.weight" in theirs:
        to, old = f"blocks.{n}.", f"h.{n}."
        theirs.pop(old + "attn.bias", None)
        theirs.pop(old + "attn.masked_bias", None)
        for kind, letter in {"weight": "W", "bias": "b"}.items():
            fused = theirs.pop(f"{old}attn.c_attn.{kind}")
            D = fused.shape[-1] // 3
            for k, x in enumerate("QKV"):
                ours[f"{to}attention.{letter}_{x}"] = fused[..., k * D : (k + 1) * D]
            ours[f"{to}attention.{letter}_O"] = theirs.pop(f"{old}attn.c_proj.{kind}")
            for k in (1, 2):
                ours[f"{to}norm_{k}.{kind}"] = theirs.pop(f"{old}ln_{k}.{kind}")
            for layer, our in {"c_fc": "expand", "c_proj": "contract"}.items():
                value = theirs.pop(f"{old}mlp.{layer}.{kind}")
                ours[f"{to}{our}.{kind}"] = value.T if kind == "weight" else value
        n += 1
    if theirs:
        raise ValueError(f"no place for {sorted(theirs)}")
    return ours
