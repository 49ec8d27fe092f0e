"""Known wrong solutions of experts."""

from torch import nn

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.experts import (
    LoRA,
    MixtureOfExperts,
    balance_by_bias,
    load_balancing_loss,
    load_balancing_loss_fault,
    lora_parameters,
    route_top_k,
)

mistakes(
    route_top_k,
    """
* over_all: softmax is taken over all experts, and the weights do not sum to one
    torch.softmax(best, dim=1) → torch.softmax(logits, dim=1).gather(1, experts)
all_the_same: all chosen experts get the same weight
    softmax(best, → softmax(0 * best,
worst: the worst experts are chosen
    topk(k) → topk(k, largest=False)
first_ones: the first k experts are chosen
    logits.topk(k) → logits[:, :k], torch.arange(k).expand(len(logits), k)
best_last: the best expert comes last
    logits.topk(k) → (part.flip(1) for part in logits.topk(k))
by_number: the experts come in the order of their numbers
    logits.topk(k)  # (M, k) each
    return
    → logits.topk(k)
      experts = experts.sort(dim=1).values
      best = logits.gather(1, experts)
      return
over_tokens: softmax is taken over the tokens
    softmax(best, dim=1) → softmax(best, dim=0)
no_exponential: the logits themselves are divided by their sum
    torch.softmax(best, dim=1) → best / best.sum(dim=1, keepdim=True)
sigmoids: the weights are sigmoids of the logits
    torch.softmax(best, dim=1) → torch.sigmoid(best)
twice: softmax is taken twice
    logits.topk → torch.softmax(logits, dim=1).topk
overflowing: the exponentials of large scores overflow
    torch.softmax(best, dim=1) → best.exp() / best.exp().sum(dim=1, keepdim=True)
    says: yours is nan
other_way_round: the experts come before the weights
    torch.softmax(best, dim=1), experts → experts, torch.softmax(best, dim=1)
    says: should hold whole numbers, yours holds real numbers
no_gradient: the weights pass no gradient back
    logits.topk → logits.detach().topk
    says: No gradient goes back from
more_than_all: k may be more than there are experts
    not 1 <= k <= logits.shape[1] → k < 1
    topk(k) → topk(min(k, logits.shape[1]))
    says: when k is 6 and there are 5 experts
none_at_all: no expert at all is accepted
    not 1 <= k <= logits.shape[1] → k > logits.shape[1]
    topk(k) → topk(max(k, 0))
    says: should raise ValueError when k is 0
""",
)

mistakes(
    load_balancing_loss,
    """
* through_f: the gradient goes through f, made of probabilities, and not through P
    (f * P) → ((f + P - P.detach()) * P.detach())
* squared: P stands in the place of f as well: it is E Σ P²
    (f * P) → (P * P)
""",
)


@bug(load_balancing_loss, "the sum is not multiplied by E", classic=True)
def without_E(logits, experts):
    return load_balancing_loss(logits, experts) / logits.shape[1]


@bug(load_balancing_loss, "f, or P, is not divided by M")
def a_sum_for_a_mean(logits, experts):
    return load_balancing_loss(logits, experts) * len(logits)


@bug(load_balancing_loss, "only each token's first expert is counted")
def first_choice(logits, experts):
    return load_balancing_loss(logits, experts[:, :1])


@bug(load_balancing_loss, "each token is counted for its best expert, whatever experts says")
def best_by_logits(logits, experts):
    return load_balancing_loss(logits, logits.argmax(dim=1, keepdim=True))


mistakes(
    load_balancing_loss,
    """
per_choice: f is divided by all k M choices, and not by M
    .to(logits) / M → .to(logits) / experts.numel()
loads_squared: the loads are squared: it is E Σ f²
    (f * P) → (f * f + 0 * P)
token_by_token: f and P are multiplied for each token, and averaged afterwards
    torch.bincount(experts.flatten(), minlength=E).to(logits) / M
    → nn.functional.one_hot(experts, E).sum(dim=1)
    .mean(dim=0) →
    (f * P).sum() → (f * P).sum(dim=1).mean()
raw_logits: P is a mean of the logits themselves
    torch.softmax(logits, dim=1) → logits
over_the_tokens: softmax is taken over the tokens
    softmax(logits, dim=1) → softmax(logits, dim=0)
softmax_of_the_mean: softmax is taken over the mean of the logits
    torch.softmax(logits, dim=1).mean(dim=0) → torch.softmax(logits.mean(dim=0), dim=0)
chosen_only: softmax for P is taken over each token's chosen experts only
    P = torch.softmax(logits, dim=1).mean(dim=0)
    → own = torch.softmax(logits.gather(1, experts), dim=1)
      P = torch.zeros_like(logits).scatter(1, experts, own).mean(dim=0)
used_ones: experts behind the last one that is used are not counted
    , minlength=E →
    says: raised RuntimeError: The size of tensor
""",
)


black_box(
    load_balancing_loss,
    "per_choice",
    curve="""(
        torch.manual_seed(seed),
        train.fit(
            Sparse().to(device), draw, balanced(0.02), steps=120, lr=4e-3, clip=1.0, seed=seed
        ).losses,
    )[1]""",
    after="EXPERTS",
    label="loss with the term, nats",
)


wrong_answers(load_balancing_loss_fault, "D")
mistakes(
    load_balancing_loss_fault,
    """
one_choice: each token goes to one expert
    [[0, 1]] → [[1]]
    says: With these arguments the black box gives what is right
two_tokens: two tokens go to one expert each
    torch.zeros(1, 3), torch.tensor([[0, 1]]) → torch.zeros(2, 3), torch.tensor([[0], [1]])
    says: With these arguments the black box gives what is right
one_expert: there is one expert
    torch.zeros(1, 3), torch.tensor([[0, 1]]) → torch.zeros(1, 1), torch.tensor([[0]])
    says: With these arguments the black box gives what is right
uneven: the scores differ, but each token goes to one expert
    torch.zeros(1, 3), torch.tensor([[0, 1]]) → torch.arange(3.0)[None], torch.tensor([[2]])
    says: With these arguments the black box gives what is right
no_experts: nothing says where the tokens go
    (logits, experts) → (logits,)
    says: load_balancing_loss raised
with_k: k comes as well
    (logits, experts) → (logits, experts, 2)
    says: load_balancing_loss raised
""",
)


@bug(load_balancing_loss, "the loss passes no gradient back", told_by="No gradient goes back from")
def detached(logits, experts):
    return load_balancing_loss(logits.detach(), experts)


mistakes(
    balance_by_bias,
    """
* biased_weights: the bias counts in the weights as well
    torch.softmax(logits.gather → torch.softmax((logits + bias).gather
* wrong_way: a bias goes up where its expert has more than its share, and down where it has less
    bias - gamma → bias + gamma
* by_excess: a bias moves by γ times the tokens that its expert has more than its share
    torch.sign(E * load - M * k) → (load - M * k / E)
share_of_one: an expert's share is M / E tokens, as if each token had one expert
    E * load - M * k → E * load - M
unbiased_choice: the bias is not used to choose
    (logits + bias).topk → logits.topk
subtracted: the bias is subtracted from the scores
    (logits + bias).topk → (logits - bias).topk
bias_on_shares: the bias is added to a softmax of the scores, and not to the scores
    (logits + bias).topk → (logits.softmax(dim=1) + bias).topk
over_all: softmax is taken over all experts, and the weights do not sum to one
    logits.gather(1, experts), dim=1) → logits, dim=1).gather(1, experts)
over_tokens: softmax is taken over the tokens
    experts), dim=1) → experts), dim=0)
all_the_same: all chosen experts get the same weight
    torch.softmax(logits.gather → torch.softmax(0 * logits.gather
best_last: the best expert comes last
    topk(k).indices → topk(k).indices.flip(1)
from_zero: the bias does not start from what it was
    bias - gamma → -gamma
never_moved: the bias stays as it is
    bias - gamma * torch.sign(E * load - M * k) → bias.clone()
steps_of_one: a bias moves by 1, and not by γ
    - gamma * torch.sign → - torch.sign
never_at_rest: an expert with exactly its share moves up
    torch.sign(E * load - M * k) → (2.0 * (E * load > M * k) - 1)
falling_only: biases go down where there are too many tokens, and never up
    torch.sign(E * load - M * k) → torch.sign(E * load - M * k).clamp(min=0)
first_choices: loads count first choices only
    experts.flatten() → experts[:, 0]
by_score: loads are those of the choice without the bias
    experts.flatten() → logits.topk(k).indices.flatten()
""",
)


@bug(
    balance_by_bias,
    "the bias is changed in the tensor that is given",
    told_by="changes its argument bias in place",
)
def bias_in_place(logits, bias, k, gamma):
    weights, experts, moved = balance_by_bias(logits, bias, k, gamma)
    return weights, experts, bias.copy_(moved)


mistakes(
    balance_by_bias,
    """
last_forgotten: experts at the end that no token goes to are not counted
    minlength=E → minlength=1
    says: raised RuntimeError
any_k: a k of 0 is accepted
    1 <= k <= E → 0 <= k <= E
    says: should raise ValueError when k is 0
""",
)

changed(
    MixtureOfExperts,
    "Equal",
    "all of a token's experts get the weight 1/k",
    ("self.k)  # (M, k) each\n", "self.k)\n        weights = 0 * weights + 1 / self.k\n"),
    classic=True,
)

changed(
    MixtureOfExperts,
    "Renormalised",
    "a token's other weights are made to sum to one after an expert has dropped it",
    (
        "        Y = torch.zeros_like(tokens)\n",
        "        Y, left = torch.zeros_like(tokens), torch.zeros_like(weights[:, 0])\n",
    ),
    (
        "            out = swiglu(",
        "            left = left.index_add(0, rows, weights[rows, slots])\n"
        "            out = swiglu(",
    ),
    ("return Y.view_as(X)", "return (Y / torch.where(left > 0, left, 1)[:, None]).view_as(X)"),
    classic=True,
)

changed(
    MixtureOfExperts,
    "SequenceBySequence",
    "the capacity holds for each sequence by itself",
    (
        "            rows, slots = rows[: self.capacity], slots[: self.capacity]\n",
        "            capacity = len(rows) if self.capacity is None else self.capacity\n"
        "            sequence = rows // (X.shape[-2] if X.dim() > 2 else len(tokens))\n"
        "            taken = (sequence[:, None] == sequence).tril(-1).sum(dim=1) < capacity\n"
        "            rows, slots = rows[taken], slots[taken]\n",
    ),
    classic=True,
)

# The same mistakes, as they are written with less code.
mistakes(
    MixtureOfExperts,
    """
* EqualUnrouted: all of a token's experts get the weight 1/k
    weights[rows, slots, None] * out → out / self.k
* OneByOne: the capacity holds for each sequence by itself
    tokens = X.reshape(-1, X.shape[-1])
    → if X.dim() == 3:
          return torch.stack([self.forward(x) for x in X])
      tokens = X.reshape(-1, X.shape[-1])
* FirstAxis: the capacity holds for each sequence by itself
    tokens = X.reshape(-1, X.shape[-1])
    → if X.dim() > 2:
          return torch.stack([self.forward(x.flatten(0, -2)).view_as(x) for x in X])
      tokens = X.reshape(-1, X.shape[-1])
""",
)

mistakes(
    MixtureOfExperts,
    """
OverAllExperts: the weights come from a softmax over all experts
    self.k)  # (M, k) each
    Y
    → self.k)
      weights = torch.softmax(tokens @ self.W_router, dim=1).gather(1, experts)
      Y
Unweighted: what the experts return is added without weights
    weights[rows, slots, None] * out → out
WeightedInputs: the weights multiply what goes into the experts
    swiglu(tokens[rows], → swiglu(weights[rows, slots, None] * tokens[rows],
    weights[rows, slots, None] * out → out
WeightOfTheBest: every expert counts as much as a token's best one
    weights[rows, slots, None] → weights[rows, :1]
Overwritten: the expert with the highest number wins: what it returns is not added
    Y.index_add(0, rows, → Y.index_put((rows,),
""",
)

changed(
    MixtureOfExperts,
    "NoCapacity",
    "capacity is not used",
    ("            rows, slots = rows[: self.capacity], slots[: self.capacity]\n", ""),
)

mistakes(
    MixtureOfExperts,
    """
ZeroIsNoLimit: a capacity of 0 is no limit
    rows[: self.capacity], slots[: self.capacity]
    → rows[: self.capacity or None], slots[: self.capacity or None]
AddsInFloat32: what the experts return is added up in float32, whatever X is
    Y.view_as(X) → Y.view_as(X).float()
    says: should be torch.bfloat16 as X is, yours is torch.float32
LastOnes: an expert takes the tokens that come last
    rows[: self.capacity], slots[: self.capacity]
    → rows.flip(0)[: self.capacity], slots.flip(0)[: self.capacity]
Heaviest: an expert takes the tokens for which it counts most
    rows, slots = torch.where(experts == e)
    rows
    → rows, slots = torch.where(experts == e)
      order = weights[rows, slots].argsort(descending=True)
      rows, slots = rows[order], slots[order]
      rows
FirstChoices: first choices are served before second ones
    rows, slots = torch.where(experts == e)
    rows
    → rows, slots = torch.where(experts == e)
      order = (slots * len(weights) + rows).argsort()
      rows, slots = rows[order], slots[order]
      rows
""",
)

changed(
    MixtureOfExperts,
    "CountedApart",
    "first and second choices are counted apart",
    (
        "            rows, slots = rows[: self.capacity], slots[: self.capacity]\n",
        "            capacity = len(rows) if self.capacity is None else self.capacity\n"
        "            taken = (slots[:, None] == slots).tril(-1).sum(dim=1) < capacity\n"
        "            rows, slots = rows[taken], slots[taken]\n",
    ),
)

changed(
    MixtureOfExperts,
    "OneMore",
    "an expert takes one token more than its capacity",
    (
        "            rows, slots = rows[: self.capacity], slots[: self.capacity]\n",
        "            limit = None if self.capacity is None else self.capacity + 1\n"
        "            rows, slots = rows[:limit], slots[:limit]\n",
    ),
)

mistakes(
    MixtureOfExperts,
    """
Unchanged: tokens that all experts dropped stay as they are
    return Y.view_as(X)
    → return torch.where((Y == 0).all(dim=1, keepdim=True), tokens, Y).view_as(X)
""",
)


@bug(MixtureOfExperts, "the first position of all sequences comes before the second of any")
class PositionByPosition(MixtureOfExperts):
    def forward(self, X):
        return super().forward(X.transpose(0, -2)).transpose(0, -2) if X.dim() > 1 else X


mistakes(
    MixtureOfExperts,
    """
GateAndUp: W_up makes the gates, and W_gate what passes through them
    self.W_gate[e], self.W_up[e] → self.W_up[e], self.W_gate[e]
FirstExperts: every token passes through the first k experts
    self.k)  # (M, k) each
    Y
    → self.k)
      experts = torch.arange(self.k).expand_as(experts)
      Y
NoRouter: the router gets no gradient
    weights[rows, slots, None] * → weights[rows, slots, None].detach() *
    says: No gradient reaches W_router
""",
)

mistakes(
    LoRA,
    """
* RandomB: B is drawn as A is, and does not start at zero
    torch.zeros(r, D_out).to(W) → torch.zeros(r, D_out).to(W).normal_(std=D_in**-0.5)
* ScaledByAlpha: what is added is scaled by alpha, not by alpha / r
    self.scale = alpha / r → self.scale = alpha
""",
)


# The same with an A that is drawn by other means: it has no part in the mistake.
mistakes(
    LoRA,
    """
* ScaledByAlphaDrawnElse: what is added is scaled by alpha, not by alpha / r
    self.scale = alpha / r → self.scale = alpha
    torch.randn(D_in, r).to(W) / math.sqrt(D_in)
    → torch.empty(D_in, r).to(W).normal_() / math.sqrt(D_in)
* TrainsW: W is a parameter, and trains
    self.register_buffer("W", W.detach().clone()) → self.W = nn.Parameter(W.detach().clone())
    says: should be A, B, yours are A, B, W
* InPlace: merge adds to W in place
    return self.W + self.scale * (
    → self.W += (self.scale * self.A @ self.B).detach()
      return self.W + 0 * (
    says: It has changed W in place.
RootOfRank: what is added is scaled by alpha / √r
    self.scale = alpha / r → self.scale = alpha / math.sqrt(r)
UpsideDown: what is added is scaled by r / alpha
    self.scale = alpha / r → self.scale = r / alpha
Unscaled: what is added is not scaled
    self.scale = alpha / r → self.scale = 1.0
MergesUnscaled: what is merged is not scaled
    self.W + self.scale * (self.A → self.W + (self.A
MergesTheRest: merge gives what is added, without W
    self.W + self.scale * (self.A → self.scale * (self.A
MergesNothing: merge gives W alone
    self.scale * (self.A → 0 * (self.A
WithoutW: X is not multiplied by W, only by what is added
    X @ self.W + self → self
ScalesAll: X W is scaled too
    X @ self.W + self.scale * ((X @ self.A) @ self.B)
    → self.scale * (X @ self.W + (X @ self.A) @ self.B)
NotCopied: W is the given matrix itself and no copy, so that it changes when that does
    W.detach().clone() → W.detach()
""",
)


@bug(LoRA, "merge returns W itself as long as B is zero")
class MergesToItself(LoRA):
    def merge(self):
        return super().merge() if self.B.any() else self.W


@bug(
    LoRA,
    "merge returns what it has computed the first time, though A and B have changed",
    told_by="LoRA.merge depends on an earlier call",
)
class MergesOnce(LoRA):
    def merge(self):
        if not hasattr(self, "merged"):
            self.merged = super().merge()
        return self.merged


mistakes(
    LoRA,
    """
MergesFirst: A and B are multiplied first
    X @ self.W + self.scale * ((X @ self.A) @ self.B) → X @ self.merge()
    says: should be finite where (X A) B is finite
ZeroA: A starts at zero, and B is drawn
    torch.randn(D_in, r).to(W) → 0 * torch.randn(D_in, r).to(W)
    torch.zeros(r, D_out).to(W) → torch.zeros(r, D_out).to(W).normal_(std=r**-0.5)
BothZero: A starts at zero as well: nothing can train
    torch.randn(D_in, r).to(W) / math.sqrt(D_in) → torch.zeros(D_in, r).to(W)
    says: standard deviation of A should
""",
)


@bug(LoRA, "A is drawn from N(0, 1)")
class WideA(LoRA):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        nn.init.normal_(self.A)


mistakes(
    LoRA,
    """
UniformA: A is drawn from a uniform distribution
    torch.randn(D_in, r).to(W) / math.sqrt(D_in)
    → torch.empty(D_in, r).to(W).uniform_(-1, 1) * math.sqrt(3 / D_in)
    says: share of A within one standard
""",
)


@bug(LoRA, "A is drawn from N(0, 1/r)")
class RankWideA(LoRA):
    def __init__(self, W, r, alpha):
        super().__init__(W, r, alpha)
        nn.init.normal_(self.A, std=r**-0.5)


mistakes(
    LoRA,
    """
ForgetsW: W is not a buffer
    self.register_buffer("W", W.detach().clone()) → self.W = W.detach().clone()
    says: There should be a parameter or buffer called W
SinglePrecision: A and B are float32, whatever W is
    torch.randn(D_in, r).to(W) → torch.randn(D_in, r)
    torch.zeros(r, D_out).to(W) → torch.zeros(r, D_out)
    says: as W is, yours is torch.float32
""",
)


@bug(LoRA, "a rank of 0 is accepted", told_by="should raise ValueError when r is 0")
class NoRank(LoRA):
    def __init__(self, W, r, alpha):
        super().__init__(W, max(r, 1), alpha)


add = "Y = Y.index_add(0, rows, weights[{}] * out)"


equivalent(
    MixtureOfExperts,
    f"{add.format('rows, slots, None')} → {add.format('rows, None, slots')}",
    "the same weights in the same column",
)


mistakes(
    lora_parameters,
    """
* all_heads: keys and values are counted as if they had H heads
    2 * (D + D + D + G * (D // H)) → 8 * D
* whole_matrices: the matrices are counted, and not their adapters
    r * 2 * (D + D + D + G * (D // H)) → 2 * D * (D + G * (D // H))
    r * 3 * (D + F) → 3 * D * F
one_thin: an adapter has one of the two thin matrices, A
    r * 2 * (D + D + D + G * (D // H)) → r * 4 * D
    r * 3 * (D + F) → r * (2 * D + F)
square: A and B are counted as D_in × r times r × D_out
    r * 2 * (D + D + D + G * (D // H)) → r * r * 2 * D * (D + G * (D // H))
    r * 3 * (D + F) → r * r * 3 * D * F
two_matrices: the network has two matrices, as a plain one
    r * 3 → r * 2
queries_and_values: attention has adapters of W_Q and W_V only
    r * 2 * (D + D + D + G * (D // H)) → r * (D + D + D + G * (D // H))
no_output: W_O has no adapter
    r * 2 * (D + D + D + G * (D // H)) → r * (D + D + 2 * (D + G * (D // H)))
values_of_all: keys have G heads, but values have H
    r * 2 * (D + D + D + G * (D // H)) → r * (6 * D + D + G * (D // H))
heads_as_features: a head of keys has one feature
    G * (D // H) → G
products: an adapter of D_in × D_out has r · D_in · D_out parameters
    r * 2 * (D + D + D + G * (D // H)) → r * 2 * D * (D + G * (D // H))
    r * 3 * (D + F) → r * 3 * D * F
attention_twice: the total counts attention twice
    sum(parts.values()) → 2 * parts["attention"] + parts["feed_forward"]
""",
)


@bug(lora_parameters, "one layer is counted")
def one_layer(L, **sizes):
    return lora_parameters(L=1, **sizes)


@bug(lora_parameters, "the numbers are floats", told_by="should be an int, yours is")
def as_floats(**sizes):
    return {name: float(number) for name, number in lora_parameters(**sizes).items()}


mistakes(
    lora_parameters,
    """
any_rank: a rank of 0 is accepted
    r < 1 → r < 0
    says: should raise ValueError when r is 0
""",
)
