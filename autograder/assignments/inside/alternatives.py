"""Other correct solutions of inside."""

import contextlib
import math

import torch
from torch import nn
from torch.nn import functional

from autograder.alternatives import alternative
from course_pkg import black_box
from course_pkg.inside import (
    SparseAutoencoder,
    ablate,
    direct_logit_attribution,
    induction_score,
    logit_lens,
    logit_lens_fault,
    patch_activation,
    path_patch,
    previous_token_score,
    record,
    selectivity,
    steering_vector,
    toy_superposition,
)
from course_pkg.mae import linear_probe


@alternative(record)
def with_a_stack(model, tokens, names=(), changes=None):
    """A stack of exits removes the hooks; one hook changes and keeps."""
    changes, kept = dict(changes or {}), {}
    modules = {}
    for name in [*names, *changes]:
        try:
            modules[name] = model.get_submodule(name)
        except AttributeError:
            raise ValueError(name) from None

    def hook_for(name):
        def hook(module, inputs, output):
            if name in changes:
                output = changes[name](output)
            if name in names:
                kept[name] = output
            return output

        return hook

    with contextlib.ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_hook(hook_for(name)).remove)
        logits = model(tokens)
    return logits, kept


@alternative(record)
def forward_replaced(model, tokens, names=(), changes=None):
    """Each module's forward is replaced for the time of the run."""
    modules, changes, kept = dict(model.named_modules()), changes or {}, {}
    wanted = {*names, *changes}
    if not wanted <= set(modules):
        raise ValueError("unknown")

    def wrap(name, forward):
        def run(*args, **kwargs):
            output = forward(*args, **kwargs)
            if name in changes:
                output = changes[name](output)
            kept[name] = output
            return output

        return run

    try:
        for name in wanted:
            modules[name].forward = wrap(name, modules[name].forward)
        logits = model(tokens)
    finally:
        for name in wanted:
            modules[name].__dict__.pop("forward", None)
    return logits, {name: kept[name] for name in names}


@alternative(logit_lens)
def by_torchs_norm(X, weight, W_head, eps=1e-5):
    return functional.rms_norm(X, (X.shape[-1],), weight, eps).matmul(W_head).log_softmax(-1)


@alternative(logit_lens)
def by_logsumexp(X, weight, W_head, eps=1e-5):
    length = (X.pow(2).sum(-1, keepdim=True) / X.shape[-1] + eps).sqrt()
    logits = (X / length) @ (weight[:, None] * W_head)
    return logits - logits.logsumexp(-1, keepdim=True)


@alternative(direct_logit_attribution)
def part_by_part(parts, weight, W_head, tokens, eps=1e-5):
    X = sum(parts)
    root = (X.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    rows = []
    for part in parts:
        logits = (part / root * weight) @ W_head
        rows.append(logits.gather(2, tokens[:, :, None]).squeeze(2))
    return torch.stack(rows)


@alternative(direct_logit_attribution)
def by_einsum(parts, weight, W_head, tokens, eps=1e-5):
    X = parts.sum(0)
    root = torch.linalg.vector_norm(X, dim=-1).square() / X.shape[-1] + eps
    columns = W_head[:, tokens]  # (D, B, T)
    return torch.einsum("nbtd,d,dbt->nbt", parts, weight, columns) / root.sqrt()


@alternative(previous_token_score)
def position_by_position(A):
    T = A.shape[-1]
    if T < 2:
        raise ValueError("too short")
    return sum(A[..., t, t - 1] for t in range(1, T)) / (T - 1)


@alternative(previous_token_score)
def by_an_index(A):
    T = A.size(-1)
    if T <= 1:
        raise ValueError("too short")
    t = torch.arange(1, T, device=A.device)
    return A[..., t, t - 1].mean(-1)


@alternative(induction_score)
def query_by_query(A, period):
    T = A.shape[-1]
    if period < 1 or period >= T:
        raise ValueError("impossible")
    return torch.stack([A[..., t, t - period + 1] for t in range(period, T)], -1).mean(-1)


@alternative(induction_score)
def by_a_mask(A, period):
    T = A.shape[-1]
    if not 0 < period < T:
        raise ValueError("impossible")
    t = torch.arange(T, device=A.device)
    wanted = (t[:, None] - t + 1 == period) & (t[:, None] >= period)
    return (A * wanted).sum((-2, -1)) / (T - period)


@alternative(ablate)
def one_head_after_another(model, tokens, heads, how="mean"):
    if how not in ("zero", "mean", "resampled"):
        raise ValueError(how)
    if how == "resampled" and tokens.shape[0] == 1:
        raise ValueError("one sequence")
    name = "blocks.{}.attention.heads".format
    whole = record(model, tokens, [name(layer) for layer, _ in heads])[1]

    def change(layer):
        def replaced(z):
            z = z.clone()
            for at, head in heads:
                if at == layer:
                    old = whole[name(layer)][:, :, head]
                    if how == "zero":
                        z[:, :, head] = 0
                    elif how == "mean":
                        z[:, :, head] = old.flatten(0, 1).mean(0)
                    else:
                        z[:, :, head] = torch.cat([old[-1:], old[:-1]])
            return z

        return replaced

    changes = {name(layer): change(layer) for layer, _ in heads}
    return record(model, tokens, [], changes)[0]


@alternative(ablate)
def by_a_sum(model, tokens, heads, how="mean"):
    """What is missing is subtracted, and its substitute added."""
    makers = {
        "zero": lambda z: 0 * z,
        "mean": lambda z: 0 * z + z.mean(0).mean(0),
        "resampled": lambda z: z[[b - 1 for b in range(len(z))]],
    }
    if how not in makers or (how == "resampled" and len(tokens) == 1):
        raise ValueError("impossible")
    changes = {}
    for layer in {layer for layer, _ in heads}:
        name = f"blocks.{layer}.attention.heads"
        z = record(model, tokens, [name])[1][name]
        keep = torch.ones(z.shape[2], 1, dtype=z.dtype, device=z.device)
        keep[[head for at, head in heads if at == layer]] = 0
        new = makers[how](z)
        changes[name] = lambda out, keep=keep, new=new: keep * out + (1 - keep) * new
    return record(model, tokens, (), changes)[0]


@alternative(patch_activation)
def by_an_assignment(model, tokens, other, name, where):
    if tokens.shape != other.shape:
        raise ValueError("shapes")
    patch = record(model, other, [name])[1][name]

    def change(out):
        out = out.clone()
        mask = where.expand(out.shape)
        out[mask] = patch[mask]
        return out

    return record(model, tokens, [], {name: change})[0]


@alternative(patch_activation)
def with_hooks_of_its_own(model, tokens, other, name, where):
    if list(tokens.shape) != list(other.shape):
        raise ValueError("shapes")
    module, found = model.get_submodule(name), []
    hook = module.register_forward_hook(lambda m, i, out: found.append(out))
    model(other)
    hook.remove()
    hook = module.register_forward_hook(lambda m, i, out: torch.where(where, found[0], out))
    logits = model(tokens)
    hook.remove()
    return logits


@alternative(path_patch)
def stream_as_the_sum(model, tokens, other, sender, receiver, into="keys"):
    """The change goes into the block as a whole, and the two other inputs are put back."""
    (a, h), (b, r) = sender, receiver
    if b <= a or into not in {"queries", "keys", "values"}:
        raise ValueError("impossible")
    places = {part: f"blocks.{b}.attention.for_{part}" for part in ("queries", "keys", "values")}
    heads, out = f"blocks.{a}.attention.heads", f"blocks.{b}.attention.heads"
    before = f"blocks.{b - 1}"
    mine = record(model, tokens, [heads, *places.values()])[1]
    theirs = record(model, other, [heads])[1]
    only = torch.zeros_like(mine[heads])
    only[:, :, h] = theirs[heads][:, :, h] - mine[heads][:, :, h]
    step = only.flatten(2) @ model.blocks[a].attention.W_O
    changes = {before: lambda X: X + step}
    for part, place in places.items():
        if part != into:
            changes[place] = lambda X, place=place: mine[place]
    reached = record(model, tokens, [out], changes)[1][out][:, :, r]

    def swap(z):
        z = z.clone()
        z[:, :, r] = reached
        return z

    return record(model, tokens, [], {out: swap})[0]


@alternative(path_patch)
def attention_alone(model, tokens, other, sender, receiver, into="keys"):
    """The receiver's layer is computed apart from the model."""
    if sender[0] >= receiver[0]:
        raise ValueError("order")
    if into not in ("queries", "keys", "values"):
        raise ValueError("into")
    heads = [f"blocks.{layer}.attention.heads" for layer, _ in (sender, receiver)]
    stream = f"blocks.{receiver[0] - 1}"
    mine = record(model, tokens, [heads[0], stream])[1]
    theirs = record(model, other, [heads[0]])[1]
    block = model.blocks[receiver[0]]
    size = mine[heads[0]].shape[-1]
    rows = model.blocks[sender[0]].attention.W_O[sender[1] * size : (sender[1] + 1) * size]
    step = (theirs[heads[0]][:, :, sender[1]] - mine[heads[0]][:, :, sender[1]]) @ rows
    arriving = block.norm_1(mine[stream] + step)
    plain = block.norm_1(mine[stream])
    kept, attention = [], block.attention
    entry = getattr(attention, f"for_{into}")
    hooks = [
        entry.register_forward_hook(lambda m, i, o: arriving),
        attention.heads.register_forward_hook(lambda m, i, o: kept.append(o)),
    ]
    attention(plain)
    for hook in hooks:
        hook.remove()

    def swap(z):
        return torch.cat(
            [z[:, :, : receiver[1]], kept[0][:, :, receiver[1], None], z[:, :, receiver[1] + 1 :]],
            dim=2,
        )

    return record(model, tokens, [], {heads[1]: swap})[0]


@alternative(selectivity)
def type_by_type(features, labels, types, held_out, classes, generator):
    if int(held_out.sum()) in (0, len(held_out)):
        raise ValueError("nothing to fit or to score")
    label_of, control = {}, torch.empty_like(labels)
    for place, each in enumerate(types.tolist()):
        if each not in label_of:
            label_of[each] = labels[int(torch.randint(len(labels), (), generator=generator))]
        control[place] = label_of[each]
    scores = []
    for y in (labels, control):
        fit, score = ~held_out, held_out
        p = linear_probe(features[fit], y[fit], features[score], classes)
        hits = p.argmax(1) == y[score]
        scores.append(hits.to(features.dtype).sum() / len(hits))
    return scores[0], scores[1]


@alternative(selectivity)
def with_indices(features, labels, types, held_out, classes, generator):
    test = held_out.nonzero()[:, 0]
    fit = (~held_out).nonzero()[:, 0]
    if not len(test) or not len(fit):
        raise ValueError("nothing to fit or to score")
    kinds, number = types.unique(return_inverse=True)
    often = labels.bincount(minlength=classes).double().cpu()
    table = torch.multinomial(often, len(kinds), True, generator=generator).to(types.device)
    found = []
    for y in (labels, table[number]):
        guess = linear_probe(features[fit], y[fit], features[test], classes).max(dim=1).indices
        found.append(torch.eq(guess, y[test]).to(features).mean())
    return tuple(found)


@alternative(steering_vector)
def row_by_row(positive, negative, controls, generator):
    v = positive.sum(0) / len(positive) - negative.sum(0) / len(negative)
    rows = []
    for _ in range(controls):
        row = torch.randn(len(v), generator=generator, dtype=torch.float64).to(v)
        rows.append(row / row.norm() * v.norm())
    return v, torch.stack(rows)


@alternative(steering_vector)
def by_a_broadcast(positive, negative, controls, generator):
    v = -negative.mean(0) + positive.mean(0)
    r = torch.empty(controls, v.shape[0], dtype=v.dtype).normal_(generator=generator).to(v.device)
    return v, r * (v.norm() / r.pow(2).sum(-1, keepdim=True).sqrt())


@alternative(toy_superposition)
def with_a_matrix_of_products(X, W, b, importance):
    Y = functional.relu(functional.linear(X, W @ W.T, b))
    return Y, ((X - Y) ** 2 @ importance).sum() / len(X)


@alternative(toy_superposition)
def column_by_column(X, W, b, importance):
    h = X @ W
    columns = [(h @ W[i] + b[i]).clamp(min=0) for i in range(len(W))]
    Y = torch.stack(columns, dim=1)
    loss = sum(importance[i] * (X[:, i] - Y[:, i]).pow(2).mean() for i in range(len(W)))
    return Y, loss


@alternative(SparseAutoencoder)
class OneByOne(nn.Module):
    """Takes the largest that is left, k times."""

    def __init__(self, D, M, k=None):
        super().__init__()
        if k is not None and (k < 1 or k > M):
            raise ValueError("impossible")
        rows = torch.randn(M, D)
        rows /= rows.pow(2).sum(1, keepdim=True).sqrt()
        self.M, self.k = M, k
        self.W_dec, self.W_enc = nn.Parameter(rows), nn.Parameter(rows.clone().T)
        self.b_enc, self.b_dec = nn.Parameter(torch.zeros(M)), nn.Parameter(torch.zeros(D))

    def encode(self, X):
        f = functional.relu(X @ self.W_enc - self.b_dec @ self.W_enc + self.b_enc)
        if self.k is not None and self.k < self.M:
            kept, left = torch.zeros_like(f), f.detach().clone()
            for _ in range(self.k):
                place = left.argmax(dim=-1, keepdim=True)
                kept.scatter_(-1, place, 1)
                left.scatter_(-1, place, -1)
            f = f * kept
        return f

    def forward(self, X):
        f = self.encode(X)
        return torch.matmul(f, self.W_dec) + self.b_dec, f

    def loss(self, X, penalty=0.0):
        Y, f = self.forward(X)
        lengths = torch.sqrt((self.W_dec**2).sum(1))
        return ((Y - X) ** 2).sum(-1).mean() + penalty * (f * lengths).sum(-1).mean()


@alternative(SparseAutoencoder)
class ByRanks(nn.Module):
    """Sorts, and keeps by rank."""

    def __init__(self, D, M, k=None):
        super().__init__()
        if k is not None and k not in range(1, M + 1):
            raise ValueError("impossible")
        self.keep = M if k is None else k
        start = torch.randn(M, D)
        start = start / start.norm(dim=1, keepdim=True)
        self.W_dec = nn.Parameter(start)
        self.W_enc = nn.Parameter(start.T.clone())
        self.b_enc = nn.Parameter(torch.zeros(M))
        self.b_dec = nn.Parameter(torch.zeros(D))

    def encode(self, X):
        a = (X - self.b_dec) @ self.W_enc + self.b_enc
        rank = a.argsort(dim=-1, descending=True).argsort(dim=-1)
        return torch.where(rank < self.keep, a.clamp(min=0), 0)

    def forward(self, X):
        f = self.encode(X)
        return self.b_dec + f @ self.W_dec, f

    def loss(self, X, penalty=0.0):
        Y, f = self(X)
        flat = (X - Y).reshape(-1, X.shape[-1])
        count = math.prod(X.shape[:-1])
        cost = torch.einsum("nm,m->", f.reshape(count, -1), self.W_dec.norm(dim=1))
        return (flat.square().sum() + penalty * cost) / count


@alternative(logit_lens_fault)
def a_batch():
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(2, 3, 4, generator=draw) * torch.arange(1.0, 4)[:, None]
    return ["C", [X, torch.ones(4), torch.randn(4, 5, generator=draw), 1e-4]]


@alternative(logit_lens_fault)
def found_by_company():
    box, x = black_box("logit_lens"), torch.tensor([[1.0, 2.0]])
    head = torch.ones(2), torch.eye(2)
    for other in (x, 2 * x, 9 * x):
        arguments = torch.cat([x, other]), *head
        if (box(*arguments)[0] - box(x, *head)[0]).abs().max() > 0.01:
            return "C", arguments
    return "E", (x, *head)
