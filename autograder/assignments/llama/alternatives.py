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
    LoRA,
    MixtureOfExperts,
    RMSNorm,
    llama_parameters,
    load_balancing_loss,
    load_llama,
    pairs_to_halves,
    rope_rotate_pairs,
    route_top_k,
    sliding_window_mask,
    swiglu,
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
def on_no_device(V, D, H, G, L, F, tied=False, experts=None, k=2):
    """Builds a model that has shapes alone, of one layer; the others are like it."""
    with torch.device("meta"):
        model = Llama(V, D, H, G, 1, F, tied, experts=experts)

    def count(part: torch.nn.Module) -> int:
        return sum(weight.numel() for weight in part.parameters())

    (block,) = model.blocks
    one = count(block.feed_forward)
    found = {
        "embedding": count(model.token),
        "attention": L * count(block.attention),
        "feed_forward": L * one,
        "norms": L * (count(block.norm_1) + count(block.norm_2)) + count(model.norm),
        "head": 0 if model.W_head is None else model.W_head.numel(),
    }
    found["total"] = found["active"] = sum(found.values())
    if experts is not None:
        found["active"] -= L * (one - D * experts) * (experts - k) // experts
    return found


@alternative(llama_parameters)
def layer_by_layer(V, D, H, G, L, F, tied=False, experts=None, k=2):
    D_h = D // H
    found = dict(embedding=D * V, attention=0, feed_forward=0, norms=D, head=0)
    if not tied:
        found["head"] = V * D
    active = found["embedding"] + found["head"]
    for _ in range(L):
        attention = D * H * D_h + 2 * D * G * D_h + H * D_h * D
        network, router, used = 3 * F * D, 0, 1
        if experts:
            router, used = experts * D, k
        found["attention"] += attention
        found["feed_forward"] += network * (experts or 1) + router
        found["norms"] += 2 * D
        active += attention + network * used + router
    found["total"] = sum(found[part] for part in tuple(found))
    found["active"] = active + found["norms"]
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
        sparse, own = f"{old}block_sparse_moe.", f"{new}feed_forward.W_"
        names = {"gate": "w1", "up": "w3", "down": "w2"}
        if f"{sparse}gate.weight" in theirs:
            router = theirs.pop(f"{sparse}gate.weight")
            ours[f"{own}router"] = router.t()
            for name, w in names.items():
                found = [theirs.pop(f"{sparse}experts.{e}.{w}.weight") for e in range(len(router))]
                ours[own + name] = torch.stack(found).mT
        else:
            for name in names:
                ours[own + name] = theirs.pop(f"{old}mlp.{name}_proj.weight").t()
        n += 1
    if theirs:
        raise ValueError(f"no place for {sorted(theirs)}")
    return ours


@alternative(load_llama)
def by_replacing(state):
    """Replaces parts of names, and puts experts into a tensor that is made for the first."""
    table = {
        "model.embed_tokens.": "token.",
        "model.norm.": "norm.",
        "model.layers.": "blocks.",
        "input_layernorm.": "norm_1.",
        "post_attention_layernorm.": "norm_2.",
        "self_attn.": "attention.",
        "block_sparse_moe.": "feed_forward.",
        "feed_forward.gate.weight": "feed_forward.W_router",
        "mlp.": "feed_forward.",
        "q_proj.weight": "W_Q",
        "k_proj.weight": "W_K",
        "v_proj.weight": "W_V",
        "o_proj.weight": "W_O",
        "gate_proj.weight": "W_gate",
        "up_proj.weight": "W_up",
        "down_proj.weight": "W_down",
        "w1.weight": "W_gate",
        "w3.weight": "W_up",
        "w2.weight": "W_down",
        "lm_head.weight": "W_head",
    }
    parts = {"attention.W_Q", "attention.W_K", "attention.W_V", "attention.W_O"}
    parts |= {f"feed_forward.W_{x}" for x in ("gate", "up", "down", "router")}
    parts |= {"norm_1.weight", "norm_2.weight"}
    E = 1 + max(
        [int(n.split(".experts.")[1].split(".")[0]) for n in state if ".experts." in n] or [-1]
    )
    ours = {}
    for name, value in state.items():
        new = name
        for old, other in table.items():
            if not (old == "mlp." and "_proj" not in name):
                new = new.replace(old, other)
        if new.endswith("inv_freq"):
            continue
        block, _, inside = new.removeprefix("blocks.").partition(".")
        if new.startswith("blocks.") and ".experts." in inside:
            _, _, e, kind = inside.split(".", 3)
            place = f"blocks.{block}.feed_forward.{kind}"
            if f"feed_forward.{kind}" not in parts or not name.endswith("weight"):
                raise ValueError(name)
            rows = ours.setdefault(place, value.new_empty(E, *value.T.shape))
            rows[int(e)] = value.T
        elif inside in parts and new.startswith("blocks."):
            ours[new] = value.T if "W_" in inside else value
        elif new in ("token.weight", "norm.weight") and name.startswith("model."):
            ours[new] = value
        elif name == "lm_head.weight":
            ours[new] = value.T
        else:
            raise ValueError(name)
    return ours


@alternative(route_top_k)
def renormalised(logits, k):
    if k < 1 or k > logits.size(-1):
        raise ValueError("impossible")
    logs = torch.log_softmax(logits, dim=-1)
    order = logs.argsort(dim=-1, descending=True)[..., :k]
    best = logs.gather(-1, order)
    return (best - best.logsumexp(dim=-1, keepdim=True)).exp(), order


@alternative(route_top_k)
def largest_of_all_shares(logits, k):
    """As Hugging Face's Mixtral does it."""
    if k < 1 or k > logits.size(-1):
        raise ValueError("impossible")
    weights, experts = torch.softmax(logits, dim=-1).topk(k, dim=-1)
    return weights / weights.sum(dim=-1, keepdim=True), experts


@alternative(route_top_k)
def masked(logits, k):
    if k not in range(1, logits.shape[1] + 1):
        raise ValueError("impossible")
    experts = torch.topk(logits, k).indices
    left_out = torch.ones_like(logits, dtype=torch.bool).scatter(1, experts, False)
    weights = logits.masked_fill(left_out, -math.inf).softmax(dim=1)
    return weights.gather(1, experts), experts


@alternative(route_top_k)
def one_after_the_other(logits, k):
    if not 0 < k <= len(logits[0]):
        raise ValueError("impossible")
    rest, chosen = logits.detach().clone(), []
    for _ in range(k):
        chosen.append(rest.argmax(dim=1))
        rest.scatter_(1, chosen[-1][:, None], -math.inf)
    experts = torch.stack(chosen, dim=1)
    best = torch.take_along_dim(logits, experts, dim=1)
    scaled = (best - best[:, :1]).exp()
    return scaled / scaled.sum(1, keepdim=True), experts


@alternative(load_balancing_loss)
def by_one_hot(logits, experts):
    f = F.one_hot(experts, logits.shape[1]).sum(dim=1).to(logits.dtype).mean(dim=0)
    P = logits.softmax(dim=1).mean(dim=0)
    return f @ P * len(P)


@alternative(load_balancing_loss)
def by_gathering(logits, experts):
    """Adds up the mean probabilities of all choices."""
    M, E = logits.shape
    P = torch.log_softmax(logits, dim=-1).exp().sum(dim=0) / M
    return P[experts].sum() * E / M


@alternative(load_balancing_loss)
def by_scattering(logits, experts):
    M, E = logits.shape
    f = torch.zeros(E, dtype=logits.dtype)
    f.scatter_add_(0, experts.reshape(-1), torch.full((experts.numel(),), 1 / M).to(logits))
    return E * torch.einsum("e,me->", f, logits.softmax(dim=-1)) / M


@alternative(MixtureOfExperts)
class TokenByToken(MixtureOfExperts):
    def forward(self, X):
        taken, rows = [0] * self.W_router.shape[1], []
        for x in X.reshape(-1, X.shape[-1]):
            best, experts = (x @ self.W_router).topk(self.k)
            y = torch.zeros_like(x)
            for weight, e in zip(best.softmax(0), experts.tolist(), strict=True):
                taken[e] += 1
                if self.capacity is not None and taken[e] > self.capacity:
                    continue
                hidden = F.silu(x @ self.W_gate[e]) * (x @ self.W_up[e])
                y = y + weight * (hidden @ self.W_down[e])
            rows.append(y)
        return torch.stack(rows).reshape(X.shape)


@alternative(MixtureOfExperts)
class AllExperts(MixtureOfExperts):
    """Passes every token through all experts, with weights that are mostly zero."""

    def forward(self, X):
        tokens = X.reshape(-1, X.shape[-1])
        weights, experts = route_top_k(tokens @ self.W_router, self.k)
        E = self.W_router.shape[1]
        share = torch.zeros(len(tokens), E, dtype=X.dtype).scatter(1, experts, weights)
        if self.capacity is not None:
            goes = F.one_hot(experts, E).sum(dim=1)
            share = share * (goes.cumsum(dim=0) <= self.capacity)
        gates = F.silu(torch.einsum("md,edf->mef", tokens, self.W_gate))
        hidden = gates * torch.einsum("md,edf->mef", tokens, self.W_up)
        return torch.einsum("me,mef,efd->md", share, hidden, self.W_down).view(X.shape)


@alternative(MixtureOfExperts)
class OnlyTheBusy(MixtureOfExperts):
    """Writes into one tensor, expert by expert, and leaves idle ones out."""

    def forward(self, X):
        tokens = X.contiguous().view(-1, X.shape[-1])
        weights, experts = route_top_k(tokens @ self.W_router, self.k)
        Y = torch.zeros(tokens.shape, dtype=X.dtype)
        for e in experts.unique().tolist():
            hit = (experts == e).nonzero()
            if self.capacity is not None:
                hit = hit[: self.capacity]
            x = tokens[hit[:, 0]]
            out = (F.silu(x @ self.W_gate[e]) * (x @ self.W_up[e])) @ self.W_down[e]
            Y.index_add_(0, hit[:, 0], out * weights[hit[:, 0], hit[:, 1]].unsqueeze(1))
        return Y.reshape(X.shape)


@alternative(LoRA)
class ScaledA(LoRA):
    """Scales X A, and draws in W's dtype."""

    def __init__(self, W, r, alpha):
        nn.Module.__init__(self)
        if r <= 0:
            raise ValueError("r")
        self.r, self.alpha = r, alpha
        self.register_buffer("W", torch.empty_like(W).copy_(W).detach())
        self.A = nn.Parameter(torch.empty(W.shape[0], r, dtype=W.dtype))
        self.B = nn.Parameter(torch.zeros(r, W.shape[1], dtype=W.dtype))
        nn.init.normal_(self.A, std=W.shape[0] ** -0.5)

    def forward(self, X):
        return F.linear(X, self.W.T) + F.linear(X @ self.A * (self.alpha / self.r), self.B.T)

    def merge(self):
        return torch.addmm(self.W, self.A, self.B, alpha=self.alpha / self.r)


@alternative(LoRA)
class SummedRanks(nn.Module):
    """Adds up r outer products; a module of its own."""

    def __init__(self, W, r, alpha):
        super().__init__()
        if r < 1:
            raise ValueError("the rank must be positive")
        self.W = nn.Buffer(W.detach().clone())
        self.A = nn.Parameter(torch.randn(len(W), r, dtype=W.dtype) / math.sqrt(len(W)))
        self.B = nn.Parameter(W.new_zeros(r, W.shape[1]))
        self.alpha = alpha

    def forward(self, X):
        Y = X @ self.W
        for a, b in zip(self.A.T, self.B, strict=True):
            Y = Y + (X @ a)[..., None] * b * (self.alpha / len(self.B))
        return Y

    def merge(self):
        products = torch.einsum("ir,ro->rio", self.A, self.B)
        return self.W + products.sum(dim=0) * self.alpha / len(self.B)
