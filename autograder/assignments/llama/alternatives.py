"""Other correct solutions of llama."""

import math

import torch
from torch import nn
from torch.nn import functional
from torch.nn import functional as F

from autograder.alternatives import alternative
from course_pkg.attention import causal_mask
from course_pkg.llama import (
    GatedFeedForward,
    Llama,
    LlamaAttention,
    LlamaBlock,
    RMSNorm,
    llama_parameters,
    load_llama,
    pairs_to_halves,
    rope_rotate_pairs,
    sliding_window_mask,
    swiglu,
    swiglu_fault,
)


@alternative(RMSNorm)
class ByItsLength(nn.Module):
    """Divides by the length, and multiplies by √D."""

    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))
        self.extra = D * eps

    def forward(self, X):
        wide = X.double()
        length = torch.sqrt(torch.linalg.vector_norm(wide, dim=-1, keepdim=True) ** 2 + self.extra)
        return (math.sqrt(X.shape[-1]) * wide / length * self.weight).to(X.dtype)


@alternative(RMSNorm)
class ByMoments(nn.Module):
    """Takes the mean square from variance and mean, in float32 as published code does."""

    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(D).fill_(1.0)), eps

    def forward(self, X):
        wide = X if X.dtype == torch.float64 else X.float()
        variance, mean = torch.var_mean(wide, dim=-1, correction=0, keepdim=True)
        return (self.weight * (wide * (variance + mean**2 + self.eps) ** -0.5)).type_as(X)


@alternative(RMSNorm)
class OneByOne(nn.Module):
    """Normalises vector by vector."""

    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.register_parameter("weight", nn.Parameter(torch.ones(D)))
        self.small = eps

    def forward(self, X):
        rows = X.reshape(-1, X.shape[-1])
        new = []
        for x in rows.unbind():
            x = x if x.dtype == torch.float64 else x.to(torch.float32)
            new.append(x / (x.dot(x) / len(x) + self.small).sqrt())
        return (torch.stack(new) * self.weight.to(x)).to(X.dtype).reshape(X.shape)


@alternative(swiglu)
def by_sigmoid(X, W_gate, W_up, W_down):
    gate = torch.matmul(X, W_gate)
    return torch.matmul(torch.sigmoid(gate).mul(gate).mul(torch.matmul(X, W_up)), W_down)


@alternative(swiglu)
def by_linear(X, W_gate, W_up, W_down):
    both = functional.linear(X, torch.cat([W_gate, W_up], dim=1).T)
    gate, up = both.chunk(2, dim=-1)
    return functional.linear(nn.SiLU()(gate) * up, W_down.T)


@alternative(swiglu)
def feature_by_feature(X, W_gate, W_up, W_down):
    Y = torch.zeros_like(X)
    for f in range(len(W_down)):
        gate = (X * W_gate[:, f]).sum(-1, keepdim=True)
        Y = Y + gate * gate.sigmoid() * (X * W_up[:, f]).sum(-1, keepdim=True) * W_down[f]
    return Y


@alternative(swiglu_fault)
def large_and_in_float64():
    shapes = (2, 5, 3), (3, 7), (3, 7), (7, 3)
    return "B", [torch.randn(*shape, dtype=torch.float64) for shape in shapes]


@alternative(swiglu_fault)
def negative_gate():
    one = torch.tensor([[1.0]])
    return ["B", (one, -one, 3 * one, one)]


@alternative(GatedFeedForward)
class Counted(nn.Module):
    """Counts multiples until there are enough."""

    def __init__(self, D, F=None, multiple=32):
        super().__init__()
        if F is None:
            F = multiple
            while F < int(8 * D / 3):
                F += multiple
        self.F = F
        for name, shape in {"W_gate": (D, F), "W_up": (D, F), "W_down": (F, D)}.items():
            weight = torch.empty(shape).normal_(std=shape[0] ** -0.5)
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self, X):
        gate = X @ self.W_gate
        return gate.sigmoid() * gate * (X @ self.W_up) @ self.W_down


@alternative(GatedFeedForward)
class NegativeFloor(nn.Module):
    """Rounds up by rounding down what is negative, and keeps F as a property."""

    def __init__(self, D, F=None, multiple=32):
        super().__init__()
        F = -(-(8 * D // 3) // multiple) * multiple if F is None else F
        self.W_down = nn.Parameter(nn.init.normal_(torch.empty(F, D), 0.0, F**-0.5))
        self.W_gate = nn.Parameter(nn.init.normal_(torch.empty(D, F), 0.0, D**-0.5))
        self.W_up = nn.Parameter(nn.init.normal_(torch.empty(D, F), 0.0, D**-0.5))

    @property
    def F(self):
        return self.W_down.size(0)

    def forward(self, X):
        return swiglu(X, W_down=self.W_down, W_up=self.W_up, W_gate=self.W_gate)


@alternative(rope_rotate_pairs)
def complex_numbers(X, positions=None, base=10000.0):
    """Multiplies complex numbers, as Meta's code does."""
    T, D = X.shape[-2:]
    if D % 2:
        raise ValueError("odd")
    places = torch.arange(T) if positions is None else positions
    angles = torch.outer(places.float(), 1.0 / base ** (torch.arange(0, D, 2).float() / D))
    turn = torch.polar(torch.ones_like(angles), angles)
    Z = torch.view_as_complex(X.float().reshape(*X.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(Z * turn).flatten(-2).type_as(X)


@alternative(rope_rotate_pairs)
def in_its_place(X, positions=None, base=10000.0):
    """Writes even and odd features."""
    T, D = X.size(-2), X.size(-1)
    if D % 2 == 1:
        raise ValueError("odd")
    places = torch.arange(T) if positions is None else positions
    t = places.to(torch.float64).unsqueeze(1)
    angle = t * torch.tensor([base ** (-2 * i / D) for i in range(D // 2)], dtype=torch.float64)
    new = torch.empty(X.shape, dtype=torch.float64)
    new[..., 0::2] = X[..., 0::2] * angle.cos() - X[..., 1::2] * angle.sin()
    new[..., 1::2] = X[..., 0::2] * angle.sin() + X[..., 1::2] * angle.cos()
    return new.to(X.dtype)


@alternative(rope_rotate_pairs)
def by_repeating(X, positions=None, base=10000.0):
    """Repeats each angle for both of its neighbours, and exchanges these."""
    T, D = X.shape[-2:]
    if D != D // 2 * 2:
        raise ValueError("odd")
    t = torch.arange(T).double() if positions is None else positions.double()
    angle = torch.einsum("t,d->td", t, base ** -(torch.arange(D) // 2 * 2 / D).double())
    sign = torch.tensor([-1.0, 1.0]).repeat(D // 2)
    across = X[..., torch.arange(D) ^ 1] * sign
    return (X * angle.cos() + across * angle.sin()).to(X.dtype)


@alternative(pairs_to_halves)
def by_index(W, H):
    D_h, rest = divmod(W.shape[1], H)
    if rest or D_h % 2:
        raise ValueError("no heads")
    one = [*range(0, D_h, 2), *range(1, D_h, 2)]
    return W[:, [h * D_h + c for h in range(H) for c in one]]


@alternative(pairs_to_halves)
def as_published(W, H):
    """Permutes the transposed matrix, as the script that converts Meta's files does."""
    columns, rows = W.T.shape
    if columns % H or columns // H % 2:
        raise ValueError("no heads")
    theirs = W.T.reshape(H, columns // H // 2, 2, rows).transpose(1, 2).reshape(columns, rows)
    return theirs.T


@alternative(pairs_to_halves)
def head_by_head(W, H):
    if W.size(1) % H != 0:
        raise ValueError("heads differ")
    heads = W.split(W.size(1) // H, dim=1)
    if heads[0].size(1) % 2 != 0:
        raise ValueError("odd heads")
    return torch.cat([part for head in heads for part in (head[:, ::2], head[:, 1::2])], dim=1)


@alternative(sliding_window_mask)
def in_loops(T, window=None, sinks=0, past=0):
    if sinks < 0 or (window is not None and window <= 0):
        raise ValueError("no such window")
    mask = torch.zeros(T, past + T, dtype=torch.bool)
    for t in range(T):
        n = past + t
        first = 0 if window is None else max(0, n - window + 1)
        mask[t, first : n + 1] = True
        mask[t, : min(sinks, n + 1)] = True
    return mask


@alternative(sliding_window_mask)
def in_triangles(T, window=None, sinks=0, past=0):
    if window is None:
        window = past + T
    if window < 1 or min(sinks, 0):
        raise ValueError("no such window")
    N = past + T
    whole = torch.ones(N, N, dtype=torch.bool)
    near = whole.triu(1 - window)
    near[:, :sinks] = True
    return (near & whole.tril())[past:]


@alternative(sliding_window_mask)
def of_the_causal_mask(T, window=None, sinks=0, past=0):
    if sinks < 0:
        raise ValueError("sinks")
    allowed = causal_mask(T, past)
    if window is None:
        return allowed
    if window < 1:
        raise ValueError("window")
    newest = allowed.flip(1).cumsum(1).flip(1) <= window
    return allowed & (newest | (torch.arange(past + T) < sinks))


@alternative(LlamaAttention)
class LoopsOverHeads(LlamaAttention):
    """Turns complex numbers, loops over the heads of queries, and adds −∞ to what is forbidden."""

    def turn(self, X, past):
        T, half = X.shape[-2], self.D_h // 2
        speeds = torch.pow(self.base, -torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(past, past + T).double()[:, None] * speeds
        wide = X.double()
        pairs = torch.complex(wide[..., :half], wide[..., half:])
        pairs = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([pairs.real, pairs.imag], dim=-1).to(X.dtype)

    def forward(self, X, cache=None):
        T, past = X.shape[1], cache.length if cache else 0
        Q, K, V = (torch.stack((X @ W).split(self.D_h, -1), 1) for W in self.matrices())
        Q, K = self.turn(Q, past), self.turn(K, past)
        if cache is not None:
            cache.append(K, V)
            K, V = (part.to(X) for part in cache.read())
        now, place = torch.arange(past, past + T)[:, None], torch.arange(past + T)
        forbidden = place > now
        if self.window is not None:
            forbidden |= (place <= now - self.window) & (place >= self.sinks)
        penalty = torch.zeros(T, past + T, dtype=X.dtype).masked_fill(forbidden, -math.inf)
        outputs = []
        for h in range(self.H):
            g = h * self.G // self.H
            E = torch.einsum("btd,bnd->btn", Q[:, h], K[:, g]) * self.D_h**-0.5
            outputs.append(torch.softmax(E + penalty, dim=-1) @ V[:, g])
        return torch.cat(outputs, dim=-1) @ self.W_O

    def matrices(self):
        return self.W_Q, self.W_K, self.W_V


@alternative(LlamaAttention)
class Repeated(LlamaAttention):
    """Repeats keys and values for their queries, and leaves out of the cache what no one sees."""

    def forward(self, X, cache=None):
        T, start = X.shape[1], 0
        past = cache.length if cache is not None else 0
        Q = torch.einsum("btd,dhk->bhtk", X, self.W_Q.unflatten(1, (self.H, -1)))
        K = torch.einsum("btd,dgk->bgtk", X, self.W_K.unflatten(1, (self.G, -1)))
        V = torch.einsum("btd,dgk->bgtk", X, self.W_V.unflatten(1, (self.G, -1)))
        wide = torch.promote_types(X.dtype, torch.float32)
        angles = torch.arange(past, past + T).to(wide)[:, None] / self.base ** (
            torch.arange(0, self.D_h, 2).to(wide) / self.D_h
        )
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

        def turn(part):
            first, second = part.chunk(2, dim=-1)
            return (part * cos + torch.cat([-second, first], dim=-1) * sin).to(X.dtype)

        Q, K = turn(Q), turn(K)
        if cache is not None:
            cache.append(K, V)
            K, V = cache.read()
            if self.window is not None and self.sinks == 0:
                start = max(0, past + 1 - self.window)
            K, V = K[:, :, start:].type_as(X), V[:, :, start:].type_as(X)
        K, V = (part.repeat_interleave(self.H // self.G, dim=1) for part in (K, V))
        s = torch.arange(start, past + T)
        distance = torch.arange(past, past + T).unsqueeze(1) - s
        visible = (distance >= 0) & ((distance < (self.window or math.inf)) | (s < self.sinks))
        E = (Q @ K.transpose(2, 3) / self.D_h**0.5).masked_fill(visible.logical_not(), -math.inf)
        heads = E.softmax(dim=3) @ V
        return torch.einsum("bhtk,hkd->btd", heads, self.W_O.unflatten(0, (self.H, -1)))


@alternative(LlamaBlock)
class InPlaceSums(LlamaBlock):
    def forward(self, X, cache=None):
        Y = X.clone()
        Y += self.attention(self.norm_1(X), cache=cache)
        Z = self.feed_forward(self.norm_2(Y))
        return Z + Y


@alternative(LlamaBlock)
class TwoDifferences(LlamaBlock):
    def forward(self, X, cache=None):
        said = self.attention(self.norm_1(X)) if cache is None else None
        if cache is not None:
            said = self.attention(self.norm_1(X), cache)
        made = self.feed_forward(self.norm_2(X + said))
        return torch.stack([X, said, made]).sum(dim=0)


@alternative(Llama)
class Zipped(Llama):
    def forward(self, tokens, caches=None):
        caches = [None] * len(self.blocks) if caches is None else caches
        X = F.embedding(tokens, self.token.weight)
        for block, cache in zip(self.blocks, caches, strict=True):
            X = block(X, cache)
        X = self.norm(X)
        return X @ self.W_head if self.W_head is not None else F.linear(X, self.token.weight)


@alternative(Llama)
class OneHot(Llama):
    """Looks the embedding up by a product, and scores by einsum."""

    def forward(self, tokens, caches=None):
        E = self.token.weight
        X = F.one_hot(tokens, len(E)).to(E) @ E
        for n in range(len(self.blocks)):
            X = self.blocks[n](X, caches[n]) if caches is not None else self.blocks[n](X)
        head = E if self.W_head is None else self.W_head.T
        return torch.einsum("btd,vd->btv", self.norm(X), head)


@alternative(llama_parameters)
def on_no_device(V, D, H, G, L, F, tied=False):
    """Builds a model that has shapes alone, of one layer; the others are like it."""
    with torch.device("meta"):
        model = Llama(V, D, H, G, 1, F, tied)

    def count(part: torch.nn.Module) -> int:
        return sum(weight.numel() for weight in part.parameters())

    (block,) = model.blocks
    found = {
        "embedding": count(model.token),
        "attention": L * count(block.attention),
        "feed_forward": L * count(block.feed_forward),
        "norms": L * (count(block.norm_1) + count(block.norm_2)) + count(model.norm),
        "head": 0 if model.W_head is None else model.W_head.numel(),
    }
    found["total"] = sum(found.values())
    return found


@alternative(llama_parameters)
def layer_by_layer(V, D, H, G, L, F, tied=False):
    D_h = D // H
    found = dict(embedding=D * V, attention=0, feed_forward=0, norms=D, head=0)
    if not tied:
        found["head"] = V * D
    for _ in range(L):
        found["attention"] += D * H * D_h + 2 * D * G * D_h + H * D_h * D
        found["feed_forward"] += 3 * F * D
        found["norms"] += 2 * D
    found["total"] = sum(found[part] for part in tuple(found))
    return found


@alternative(load_llama)
def taking_away(state):
    """Takes weight after weight out of a copy; what is left over has no place."""
    theirs = {name: value for name, value in state.items() if not name.endswith(".inv_freq")}
    ours = {
        "token.weight": theirs.pop("model.embed_tokens.weight"),
        "norm.weight": theirs.pop("model.norm.weight"),
    }
    if "lm_head.weight" in theirs:
        ours["W_head"] = theirs.pop("lm_head.weight").t().contiguous()
    n = 0
    while f"model.layers.{n}.input_layernorm.weight" in theirs:
        old, new = f"model.layers.{n}.", f"blocks.{n}."
        ours[f"{new}norm_1.weight"] = theirs.pop(f"{old}input_layernorm.weight")
        ours[f"{new}norm_2.weight"] = theirs.pop(f"{old}post_attention_layernorm.weight")
        for x in ("q", "k", "v", "o"):
            ours[f"{new}attention.W_{x.upper()}"] = theirs.pop(
                f"{old}self_attn.{x}_proj.weight"
            ).t()
        for x in ("gate", "up", "down"):
            ours[f"{new}feed_forward.W_{x}"] = theirs.pop(f"{old}mlp.{x}_proj.weight").t()
        n += 1
    if theirs:
        raise ValueError(f"no place for {sorted(theirs)}")
    return ours


@alternative(load_llama)
def by_replacing(state):
    """Replaces parts of names, one after the other."""
    table = {
        "model.embed_tokens.": "token.",
        "model.norm.": "norm.",
        "model.layers.": "blocks.",
        "input_layernorm.": "norm_1.",
        "post_attention_layernorm.": "norm_2.",
        "self_attn.": "attention.",
        "mlp.": "feed_forward.",
        "q_proj.weight": "W_Q",
        "k_proj.weight": "W_K",
        "v_proj.weight": "W_V",
        "o_proj.weight": "W_O",
        "gate_proj.weight": "W_gate",
        "up_proj.weight": "W_up",
        "down_proj.weight": "W_down",
        "lm_head.weight": "W_head",
    }
    parts = {"attention.W_Q", "attention.W_K", "attention.W_V", "attention.W_O"}
    parts |= {f"feed_forward.W_{x}" for x in ("gate", "up", "down")}
    parts |= {"norm_1.weight", "norm_2.weight"}
    ours = {}
    for name, value in state.items():
        new = name
        for old, other in table.items():
            if not (old == "mlp." and "_proj" not in name):
                new = new.replace(old, other)
        if new.endswith("inv_freq"):
            continue
        inside = new.removeprefix("blocks.").partition(".")[2]
        if inside in parts and new.startswith("blocks."):
            ours[new] = value.T if "W_" in inside else value
        elif new in ("token.weight", "norm.weight") and name.startswith("model."):
            ours[new] = value
        elif name == "lm_head.weight":
            ours[new] = value.T
        else:
            raise ValueError(name)
    return ours
