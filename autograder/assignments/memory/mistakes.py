"""Known wrong solutions of memory."""

import torch
from torch.nn import functional

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.memory import (
    DRAW,
    NTM,
    content_addressing,
    dnc_allocation,
    dnc_links,
    dnc_usage,
    gaussian_filterbank,
    location_addressing,
    ntm_write,
    sample_latent,
    sample_latent_fault,
)


def outer(w, row):
    return w[:, :, None] * row[:, None]


@bug(ntm_write, "it adds first and then erases, even what was added", classic=True)
def adds_first(memory, w, erase, add):
    return (memory + outer(w, add)) * (1 - outer(w, erase))


@bug(ntm_write, "each row is multiplied by w e, what to erase, instead of 1 - w e")
def keeps_the_erased(memory, w, erase, add):
    return memory * outer(w, erase) + outer(w, add)


@bug(ntm_write, "every row is erased equally, whatever its weight")
def erases_everywhere(memory, w, erase, add):
    return memory * (1 - erase[:, None]) + outer(w, add)


@bug(ntm_write, "a is added to every row equally, whatever its weight")
def adds_everywhere(memory, w, erase, add):
    return memory * (1 - outer(w, erase)) + add[:, None]


@bug(ntm_write, "nothing is erased")
def never_erases(memory, w, erase, add):
    return memory + outer(w, add)


@bug(ntm_write, "nothing is added")
def never_adds(memory, w, erase, add):
    return memory * (1 - outer(w, erase))


@bug(ntm_write, "the row is erased by its weight alone: e is left out")
def erases_all_columns(memory, w, erase, add):
    return memory * (1 - w[:, :, None]) + outer(w, add)


@bug(ntm_write, "w e is subtracted from the memory, where it should multiply it")
def subtracts(memory, w, erase, add):
    return memory - outer(w, erase) + outer(w, add)


@bug(ntm_write, "e and a are mixed up")
def mixed_up(memory, w, erase, add):
    return memory * (1 - outer(w, add)) + outer(w, erase)


@bug(ntm_write, "(1 - w) e is erased: least where the head is")
def erases_elsewhere(memory, w, erase, add):
    return memory * (1 - outer(1 - w, erase)) + outer(w, add)


@bug(ntm_write, "only what is added is returned, not the memory that it is added to")
def forgets_the_memory(memory, w, erase, add):
    return outer(w, add)


@bug(ntm_write, "the memory is changed in place", classic=True)
def in_place(memory, w, erase, add):
    with torch.no_grad():
        return memory.copy_(ntm_write(memory, w, erase, add))


@bug(ntm_write, "no gradient passes through the memory", told_by="No gradient reaches memory:")
def detached(memory, w, erase, add):
    return ntm_write(memory.detach(), w, erase, add)


def cosine(memory, key):
    return functional.cosine_similarity(memory, key[:, None], dim=2)


@bug(content_addressing, "the dot product is used as it is, not divided by the lengths")
def dot_product(memory, key, beta):
    return torch.softmax(beta[:, None] * (memory @ key[:, :, None])[:, :, 0], dim=1)


@bug(content_addressing, "the dot product is divided by √M instead of the lengths")
def scaled_dot_product(memory, key, beta):
    scores = (memory @ key[:, :, None])[:, :, 0] / memory.shape[2] ** 0.5
    return torch.softmax(beta[:, None] * scores, dim=1)


@bug(content_addressing, "the key is not divided by its length")
def key_not_normalised(memory, key, beta):
    scores = cosine(memory, key) * key.norm(dim=1, keepdim=True)
    return torch.softmax(beta[:, None] * scores, dim=1)


@bug(content_addressing, "the rows are not divided by their lengths")
def rows_not_normalised(memory, key, beta):
    scores = cosine(memory, key) * memory.norm(dim=2)
    return torch.softmax(beta[:, None] * scores, dim=1)


@bug(content_addressing, "β is left out")
def no_beta(memory, key, beta):
    return torch.softmax(cosine(memory, key), dim=1)


@bug(content_addressing, "β multiplies the weights after the softmax")
def beta_outside(memory, key, beta):
    return beta[:, None] * torch.softmax(cosine(memory, key), dim=1)


@bug(content_addressing, "the cosine is divided by β instead of multiplied")
def divided_by_beta(memory, key, beta):
    return torch.softmax(cosine(memory, key) / beta[:, None], dim=1)


@bug(content_addressing, "the softmax runs over the batch, not over the rows")
def over_the_batch(memory, key, beta):
    return torch.softmax(beta[:, None] * cosine(memory, key), dim=0)


@bug(content_addressing, "there is no softmax: the weights are β times the cosine")
def no_softmax(memory, key, beta):
    return beta[:, None] * cosine(memory, key)


@bug(content_addressing, "the weights are β cosine divided by its sum, without exp")
def no_exp(memory, key, beta):
    scores = beta[:, None] * cosine(memory, key)
    return scores / scores.sum(dim=1, keepdim=True)


@bug(content_addressing, "the sign is wrong: rows unlike the key get the large weights")
def most_different(memory, key, beta):
    return torch.softmax(-beta[:, None] * cosine(memory, key), dim=1)


@bug(content_addressing, "similarity is the negative distance, not the cosine")
def by_distance(memory, key, beta):
    return torch.softmax(-beta[:, None] * (memory - key[:, None]).norm(dim=2), dim=1)


@bug(
    content_addressing,
    "the cosine with an empty row is 0/0",
    told_by="yours is nan (",
    classic=True,
)
def empty_row(memory, key, beta):
    product = (memory * key[:, None]).sum(dim=2)
    lengths = memory.norm(dim=2) * key.norm(dim=1, keepdim=True)
    return torch.softmax(beta[:, None] * product / lengths, dim=1)


@bug(content_addressing, "lengths are roots of sums, whose gradient is NaN where a sum is zero")
def roots(memory, key, beta):
    lengths = memory.square().sum(dim=2).sqrt() * key.square().sum(dim=1).sqrt()[:, None]
    similarity = (memory @ key[:, :, None])[:, :, 0] / lengths.clamp(min=1e-8)
    return torch.softmax(beta[:, None] * similarity, dim=1)


@bug(content_addressing, "lengths below 0.01 count as 0.01, so that short rows look unlike any key")
def short_rows(memory, key, beta):
    rows, key = (functional.normalize(part, dim=-1, eps=1e-2) for part in (memory, key))
    return torch.softmax(beta[:, None] * (rows * key[:, None]).sum(dim=2), dim=1)


@bug(
    content_addressing,
    "exp overflows when β is large: ∞/∞",
    told_by="yours is nan (",
    classic=True,
)
def overflow(memory, key, beta):
    heat = torch.exp(beta[:, None] * cosine(memory, key))
    return heat / heat.sum(dim=1, keepdim=True)


mistakes(
    location_addressing,
    """
* mixed_up: g and 1 - g are mixed up
    g[:, None] * w_content + (1 - g[:, None]) → (1 - g[:, None]) * w_content + g[:, None]
old_kept_whole: g multiplies the content's weights alone: the old ones are added whole
    (1 - g[:, None]) * w_before → w_before
rounded: the larger of g and 1 - g decides: the gate is rounded to 0 or 1
    g[:, None] * w_content + (1 - g[:, None]) → (g[:, None] > 0.5) * w_content + (g[:, None] <= 0.5)
no_gate: the gate is left out: the mean of both weights is taken
    g[:, None] * w_content + (1 - g[:, None]) * w_before → (w_content + w_before) / 2
first_gate: the first sequence's gate is used for all
    g[:, None] * w_content + (1 - g[:, None]) → g[0] * w_content + (1 - g[0])
product: the two weights are multiplied by each other instead of added
    w_content + (1 - g[:, None]) → w_content * (1 - g[:, None])
content_alone: the previous weights are ignored
    g[:, None] * w_content + (1 - g[:, None]) * w_before → w_content
* other_way: the shifts go the other way: a positive one towards lower rows
    k - S // 2 → S // 2 - k
from_zero: the shifts are counted from 0: no shift moves down
    k - S // 2 → k
from_one: the shifts are counted from 1
    k - S // 2 → k + 1
falls_off: weight that leaves at an end is lost: the rows form no circle
    w.roll(k - S // 2, dims=1) → functional.pad(w, (k, S - 1 - k))[:, S // 2 : S // 2 + w.shape[1]]
rolls_the_batch: the batch is rolled instead of the rows
    dims=1 → dims=0
* rolls_across: the tensor is rolled without an axis, so that weight goes to other sequences
    , dims=1 →
first_shifts: the shifts of the first sequence are used for all
    "bs,sbn->bn", s → "s,sbn->bn", s[0]
shifts_through_softmax: the shifts go through softmax once more
    "bs,sbn->bn", s → "bs,sbn->bn", s.softmax(dim=1)
by_one: every shift is taken to be by one row at most: the first and last move by one
    k - S // 2 → (k > S // 2) - (k < S // 2)
even: an even number of shifts is accepted
    S % 2 == 0 → False
    says: should raise ValueError when there are four shifts
""",
)

changed(
    location_addressing,
    "sticks_at_the_end",
    "the weight of an end stays there instead of going round",
    ("    moved = [", "    rows = torch.arange(w.shape[1])\n    moved = ["),
    (
        "w.roll(k - S // 2, dims=1)",
        "torch.zeros_like(w).index_add(1, (rows + k - S // 2).clamp(0, len(rows) - 1), w)",
    ),
)

mistakes(
    location_addressing,
    """
likeliest: only the likeliest shift is made
    torch.einsum("bs,sbn->bn", s, torch.stack(moved))
    → torch.stack(moved)[s.argmax(dim=1), torch.arange(len(w))]
""",
)

changed(
    location_addressing,
    "sharpened_first",
    "the weights are sharpened before they are shifted",
    (".detach()) ** gamma[:, None]", ".detach())"),
    ("    moved = [", "    w = (w / w.amax(dim=1, keepdim=True)) ** gamma[:, None]\n    moved = ["),
)


@bug(location_addressing, "the old weights alone are shifted, before the gate")
def shifted_before_the_gate(w_content, w_before, g, s, gamma):
    one, middle = torch.ones_like(g), torch.ones_like(s[:, :1])
    if s.shape[1] % 2 == 0:
        raise ValueError("even")
    w_before = location_addressing(w_before, w_before, one, s, one)
    return location_addressing(w_content, w_before, g, middle, gamma)


@bug(location_addressing, "g goes through σ, though it is a gate already")
def sigmoid_again(w_content, w_before, g, s, gamma):
    return location_addressing(w_content, w_before, torch.sigmoid(g), s, gamma)


@bug(location_addressing, "no gradient passes to the gate", told_by="No gradient reaches g:")
def gate_detached(w_content, w_before, g, s, gamma):
    return location_addressing(w_content, w_before, g.detach(), s, gamma)


mistakes(
    location_addressing,
    """
not_normalised: the powers are not divided by their sum
    (w / w.amax(dim=1, keepdim=True).detach()) → w
    power / power.sum(dim=1, keepdim=True) → power
largest_is_one: the powers are divided by the largest instead of their sum
    power / power.sum(dim=1, keepdim=True) → power
multiplied: the weights are multiplied by γ instead of raised to it, which sharpens nothing
    ** gamma[:, None] → * gamma[:, None]
softmax_of_weights: γ w goes through softmax: that sharpens scores, not weights
    power / power.sum(dim=1, keepdim=True) → torch.softmax(gamma[:, None] * w, dim=1)
wrong_way_round: γ is raised to w
    (w / w.amax(dim=1, keepdim=True).detach()) ** gamma[:, None] → gamma[:, None] ** w
over_the_batch: the sum is taken over the batch, not over the rows
    (w / w.amax(dim=1, keepdim=True).detach()) → w
    power.sum(dim=1 → power.sum(dim=0
blurs: the root is taken: 1/γ is the exponent, which blurs
    ** gamma[:, None] → ** (1 / gamma[:, None])
one_more: 1 is added to γ, which is 1 or more already
    ** gamma[:, None] → ** (1 + gamma[:, None])
first_gamma: the first sequence's γ is used for all
    ** gamma[:, None] → ** gamma[0]
hard: γ is ignored: only the largest weight is kept
    power / power.sum(dim=1, keepdim=True) → functional.one_hot(w.argmax(1), w.shape[1]).to(w)
* underflow: every power becomes zero when γ is large: 0/0
    (w / w.amax(dim=1, keepdim=True).detach()) → w
    says: yours is nan (
* small_number: the sum is kept from zero by a small number, but all powers are zero
    (w / w.amax(dim=1, keepdim=True).detach()) → w
    power.sum(dim=1, keepdim=True) → (power.sum(dim=1, keepdim=True) + 1e-16)
    says: should be 1, yours is 0 (
by_logarithms: w^γ is exp(γ log w), whose gradient is NaN where a weight is zero
    (w / w.amax(dim=1, keepdim=True).detach()) ** gamma[:, None] → (gamma[:, None] * w.log()).exp()
    power / power.sum(dim=1, keepdim=True) → torch.softmax(gamma[:, None] * w.log(), dim=1)
""",
)


mistakes(
    NTM,
    """
GateFirst: a head's numbers are read in another order: g before β
    beta, g, gamma, s = raw → g, beta, gamma, s = raw
ShiftsFirst: s is read before γ
    gamma, s = raw.split([self.M, 1, 1, 1, self.SHIFTS]
    → s, gamma = raw.split([self.M, 1, 1, self.SHIFTS, 1]
* BlursTheFocus: γ = softplus, without the 1: it may blur
    1 + functional.softplus(gamma → functional.softplus(gamma
NotSharpened: the head is not sharpened: γ is 1 whatever the controller says
    1 + functional.softplus(gamma[:, 0]) → torch.ones_like(gamma[:, 0])
ByContentAlone: the head goes by content alone: the previous weights are not used
    (w_content, w, g → (w_content, w_content, g
GateTheOtherWay: the content's and the previous weights are exchanged
    (w_content, w, g → (w, w_content, g
BareBeta: β is used as it comes, without softplus
    functional.softplus(beta[:, 0]) → beta[:, 0]
OpenShifts: the shifts go through σ instead of softmax
    torch.softmax(s, dim=1) → torch.sigmoid(s) / torch.sigmoid(s).sum(dim=1, keepdim=True)
HardRead: the row with the largest weight is read alone
    torch.einsum("bn,bnm->bm", w_read, memory) → memory[torch.arange(len(x)), w_read.argmax(dim=1)]
MeanRow: what is read is the mean over the rows: the sum is divided by N
    torch.einsum("bn,bnm->bm", w_read, memory) → torch.einsum("bn,bnm->bm", w_read, memory) / self.N
* ReadsFirst: it reads before it writes
    memory = ntm_write → new = ntm_write
    (memory, r, w_write, w_read) → (new, r, w_write, w_read)
LooksAtTheOldMemory: the read head looks for its key in the memory from before the write
    memory = ntm_write → new = ntm_write
    w_read, memory) → w_read, new)
    (memory, r, w_write, w_read) → (new, r, w_write, w_read)
AnswersTooEarly: y_t is computed from r_{t-1}, what the previous step read
    r = torch.einsum → before, r = r, torch.einsum
    [h, r] → [h, before]
DoesNotSeeWhatItRead: the controller does not see what was read: r is zero in its input
    [x, r] → [x, 0 * r]
ReadFirstInTheInput: r comes before x in the controller's input
    [x, r] → [r, x]
LinearController: the controller has no tanh
    torch.tanh(self.controller(torch.cat([x, r], dim=1)))
    → self.controller(torch.cat([x, r], dim=1))
BareErase: e is used as it comes, without σ
    torch.sigmoid(self.erase(h)) → self.erase(h)
BareAdd: a is used as it comes, without tanh
    torch.tanh(self.add(h)) → self.add(h)
OneHead: both heads go where the write head goes
    self.address(self.read_head(h), memory, w_read) → w_write
HeadsMixedUp: the two heads' weights are mixed up in the state
    (memory, r, w_write, w_read) → (memory, r, w_read, w_write)
ReadFirstInTheOutput: r comes before h in the output layer's input
    [h, r] → [r, h]
NothingCarried: every step begins with an empty memory and the heads on row 0
    self.step(x, state) → self.step(x, self.start(len(X)))
BatchAsTime: the loop runs over the batch axis instead of the time axis
    self.start(len(X)) → self.start(X.shape[1])
    X.unbind(dim=1) → X.unbind(dim=0)
    torch.stack(outputs, dim=1) → torch.stack(outputs, dim=0)
BatchWalked: the loop runs over the batch axis instead of the time axis
    X.unbind(dim=1) → X
StateIgnored: the given state is ignored
    self.start(len(X)) if state is None else state → self.start(len(X))
""",
)


@bug(
    NTM,
    "the state of the last call is where the next one starts",
    told_by="NTM depends on an earlier call",
    classic=True,
)
class StateKept(NTM):
    def forward(self, X, state=None):
        kept = getattr(self, "kept", None)
        if state is None and kept is not None and len(kept[0]) == len(X):
            state = kept
        outputs, self.kept = super().forward(X, state)
        return outputs, self.kept


mistakes(
    NTM,
    """
LastOutput: only the last output is returned
    torch.stack(outputs, dim=1) → y
Detached: the memory is detached between steps
    w_read = state
    h
    → w_read = state
      memory = memory.detach()
      h
    says: gradient of X
""",
)


@bug(dnc_usage, "what was freed is emptied before the write is counted")
def freed_first(usage, w_write, w_read, free):
    usage = usage * (1 - free[:, :, None] * w_read).prod(dim=1)
    return usage + w_write - usage * w_write


@bug(dnc_usage, "the write is added whole, so that usage can pass one", classic=True)
def sum_passes_one(usage, w_write, w_read, free):
    return (usage + w_write) * (1 - free[:, :, None] * w_read).prod(dim=1)


@bug(dnc_usage, "usage is the larger of what it was and what was written")
def larger(usage, w_write, w_read, free):
    return torch.maximum(usage, w_write) * (1 - free[:, :, None] * w_read).prod(dim=1)


@bug(dnc_usage, "the free gates of the heads are added up instead of multiplied")
def summed(usage, w_write, w_read, free):
    freed = (free[:, :, None] * w_read).sum(dim=1)
    return (usage + w_write - usage * w_write) * (1 - freed)


@bug(dnc_usage, "what is kept is averaged over the heads instead of multiplied")
def averaged(usage, w_write, w_read, free):
    return (usage + w_write - usage * w_write) * (1 - free[:, :, None] * w_read).mean(dim=1)


@bug(dnc_usage, "a row that is read is freed whatever its gate says")
def free_for_all(usage, w_write, w_read, free):
    return dnc_usage(usage, w_write, w_read, torch.ones_like(free))


@bug(dnc_usage, "an open gate keeps: f and 1 - f are mixed up")
def gate_the_other_way(usage, w_write, w_read, free):
    return dnc_usage(usage, w_write, w_read, 1 - free)


@bug(dnc_usage, "the product holds f w instead of 1 - f w")
def product_of_the_freed(usage, w_write, w_read, free):
    return (usage + w_write - usage * w_write) * (free[:, :, None] * w_read).prod(dim=1)


@bug(dnc_usage, "nothing is ever freed")
def never_freed(usage, w_write, w_read, free):
    return usage + w_write - usage * w_write


@bug(dnc_usage, "only the first read head can free")
def first_head(usage, w_write, w_read, free):
    return dnc_usage(usage, w_write, w_read[:, :1], free[:, :1])


@bug(dnc_usage, "what was written is not counted")
def write_ignored(usage, w_write, w_read, free):
    return dnc_usage(usage, 0 * w_write, w_read, free)


@bug(dnc_usage, "the previous usage is forgotten")
def usage_ignored(usage, w_write, w_read, free):
    return dnc_usage(0 * usage, w_write, w_read, free)


@bug(dnc_usage, "ψ is exp of a sum of logarithms, whose gradient is NaN where a row is freed")
def by_logarithms(usage, w_write, w_read, free):
    retained = torch.log(1 - free[:, :, None] * w_read).sum(dim=1).exp()
    return (usage + w_write - usage * w_write) * retained


@bug(dnc_usage, "usage is updated in place")
def in_place(usage, w_write, w_read, free):
    with torch.no_grad():
        usage.copy_(dnc_usage(usage, w_write, w_read, free))
    return usage


mistakes(
    dnc_allocation,
    """
* left_sorted: the weights stay in the order of usage: row 0 gets that of the row used least
    torch.zeros_like(usage).scatter(1, order, (1 - ascending) * before) → (1 - ascending) * before
* gathered: the order is undone the wrong way: gather in place of scatter
    torch.zeros_like(usage).scatter(1, order, (1 - ascending) * before)
    → ((1 - ascending) * before).gather(1, order)
most_used_first: the rows are sorted from the most used down
    usage.sort(dim=1) → usage.sort(dim=1, descending=True)
by_logarithms: the product is exp of a sum of logarithms, whose gradient is NaN where a row is free
    torch.cat([torch.ones_like(usage[:, :1]), ascending[:, :-1].cumprod(dim=1)], dim=1)
    → functional.pad(ascending.log().cumsum(dim=1)[:, :-1], (1, 0)).exp()
* own_usage_too: a row's own usage is also in the product
    torch.cat([torch.ones_like(usage[:, :1]), ascending[:, :-1].cumprod(dim=1)], dim=1)
    → ascending.cumprod(dim=1)
no_own_factor: the factor 1 - u is left out
    (1 - ascending) * before → before
""",
)


@bug(dnc_allocation, "the product over the rows that are used less is left out")
def no_product(usage):
    return 1 - usage


@bug(dnc_allocation, "the weights are made to sum to one")
def normalised(usage):
    a = dnc_allocation(usage)
    return a / a.sum(dim=1, keepdim=True)


@bug(dnc_allocation, "1 - u goes through softmax")
def softmax_of_free(usage):
    return torch.softmax(1 - usage, dim=1)


@bug(dnc_allocation, "all the weight goes to the row used least")
def hard(usage):
    return functional.one_hot(usage.argmin(dim=1), usage.shape[1]).to(usage)


@bug(dnc_allocation, "rows that are used equally all get the weight of the first of them")
def ties_alike(usage):
    less = usage[:, None] < usage[:, :, None]
    return (1 - usage) * torch.where(less, usage[:, None], 1).prod(dim=2)


mistakes(
    dnc_allocation,
    """
summed: usages are added up instead of multiplied
    cumprod → cumsum
""",
)


@bug(dnc_allocation, "the sequences of a batch are sorted, not the rows")
def over_the_batch(usage):
    return dnc_allocation(usage.T).T


@bug(dnc_allocation, "no gradient passes to the usage", told_by="No gradient goes back")
def detached(usage):
    return dnc_allocation(usage.detach())


changed(
    dnc_links,
    "precedence_first",
    "the precedence is updated first: the links get p_t in place of p_{t-1}",
    (
        "    links = (1",
        "    precedence = (1 - w_write.sum(dim=1, keepdim=True)) * precedence + w_write\n"
        "    links = (1",
    ),
    ("others, (1 - w_write.sum(dim=1, keepdim=True)) * precedence + w_write", "others, precedence"),
    classic=True,
)

mistakes(
    dnc_links,
    """
* backwards: the links run backwards: w(j) p(i) is added in place of w(i) p(j)
    into * precedence[:, None] → out_of * precedence[:, :, None]
links_to_itself: the diagonal is not set to zero: a row links to itself
    links * others → links
never_cut: old links are never cut
    (1 - into - out_of) * links → links
cut_into: only the links into a row that is written are cut, not those out of it
    1 - into - out_of → 1 - into
cut_out_of: only the links out of a row that is written are cut, not those into it
    1 - into - out_of → 1 - out_of
cut_by_product: old links are multiplied by (1 - w(i)) (1 - w(j)), not by 1 - w(i) - w(j)
    (1 - into - out_of) → (1 - into) * (1 - out_of)
forgets_the_links: the links are those of the last write alone: L_{t-1} is not used
    (1 - into - out_of) * links + into → into
fades_row_by_row: p fades by 1 - w(i) in each row, not by 1 - Σ w in all of them
    w_write.sum(dim=1, keepdim=True) → w_write
last_write_alone: p is the last write's weights: what was last stays so if little is written
    (1 - w_write.sum(dim=1, keepdim=True)) * precedence + w_write → w_write
never_fades: p never fades: w is added to all of it
    (1 - w_write.sum(dim=1, keepdim=True)) * precedence → precedence
summed_over_the_batch: the sum of w runs over the batch as well
    w_write.sum(dim=1, keepdim=True) → w_write.sum()
""",
)


@bug(dnc_links, "p is made to sum to one")
def normalised(links, precedence, w):
    L, p = dnc_links(links, precedence, w)
    return L, p / p.sum(dim=1, keepdim=True)


@bug(dnc_links, "the precedence comes first in the result", told_by="links should have shape")
def exchanged(links, precedence, w):
    return dnc_links(links, precedence, w)[::-1]


@bug(dnc_links, "the links are changed in place")
def in_place(links, precedence, w):
    with torch.no_grad():
        new, precedence = dnc_links(links, precedence, w)
        return links.copy_(new), precedence


@bug(dnc_links, "no gradient passes to the precedence", told_by="No gradient reaches precedence:")
def detached(links, precedence, w):
    return dnc_links(links, precedence.detach(), w)


mistakes(
    gaussian_filterbank,
    """
* counted_from_zero: filters counted from 0 go into the paper's formula, which counts from 1
    (N - 1) / 2) → N / 2 - 0.5)
half_a_stride: N/2 is used for (N - 1)/2: all filters lie half a stride too low
    (N - 1) / 2) → N / 2)
whole_half: N // 2 is used for (N - 1)/2, which is wrong when N is even
    (N - 1) / 2) → N // 2)
starts_at_the_centre: the first filter lies at the centre, the others after it
    (torch.arange(N).to(centre) - (N - 1) / 2) → torch.arange(N).to(centre)
""",
)


@bug(gaussian_filterbank, "the stride is left out: one pixel lies between filters")
def no_stride(centre, stride, sigma, N, size):
    return gaussian_filterbank(centre, torch.ones_like(stride), sigma, N, size)


@bug(gaussian_filterbank, "pixels are counted from 1")
def pixels_from_one(centre, stride, sigma, N, size):
    return gaussian_filterbank(centre - 1, stride, sigma, N, size)


@bug(gaussian_filterbank, "the filters run from the high end to the low one")
def backwards(centre, stride, sigma, N, size):
    return gaussian_filterbank(centre, -stride, sigma, N, size)


@bug(gaussian_filterbank, "σ is not squared")
def not_squared(centre, stride, sigma, N, size):
    return gaussian_filterbank(centre, stride, sigma.sqrt(), N, size)


@bug(gaussian_filterbank, "the 2 in 2σ² is left out")
def no_two(centre, stride, sigma, N, size):
    return gaussian_filterbank(centre, stride, sigma / 2**0.5, N, size)


@bug(gaussian_filterbank, "σ multiplies the distance instead of dividing it")
def inverse(centre, stride, sigma, N, size):
    return gaussian_filterbank(centre, stride, 1 / sigma, N, size)


mistakes(
    gaussian_filterbank,
    """
not_normalised: the filters are not divided by their sums
    torch.softmax( → torch.exp(
    , dim=2) → )
density: filters are divided by √(2π) σ, not by their sums over the pixels
    return torch.softmax( → heat = torch.exp(
    , dim=2)
    → )
      return heat / ((2 * torch.pi) ** 0.5 * sigma[:, None, None])
over_the_filters: each pixel's sum over the filters is one, not each filter's over pixels
    return torch.softmax( → heat = torch.exp(
    , dim=2)
    → )
      return heat / heat.sum(dim=1, keepdim=True)
* zero_by_zero: every exp is zero far outside the image: 0/0
    return torch.softmax( → heat = torch.exp(
    , dim=2)
    → )
      return heat / heat.sum(dim=2, keepdim=True)
empty_filters: a small number in the denominator makes far filters zero
    return torch.softmax( → heat = torch.exp(
    , dim=2)
    → )
      return heat / heat.sum(dim=2, keepdim=True).clamp(min=1e-8)
""",
)


@bug(gaussian_filterbank, "the centre is moved into the image")
def moved_inside(centre, stride, sigma, N, size):
    return gaussian_filterbank(centre.clamp(0, size - 1), stride, sigma, N, size)


mistakes(
    sample_latent,
    """
* log_of_the_variance: log σ is taken for log σ²: its half goes into exp
    z = mu + log_sigma.exp() → z = mu + (log_sigma / 2).exp()
    (2 * log_sigma).exp() - 2 * log_sigma → log_sigma.exp() - log_sigma
half_for_the_code: σ is taken to be exp(log σ / 2) in z, but not in KL
    z = mu + log_sigma.exp() → z = mu + (log_sigma / 2).exp()
variance: the variance multiplies the noise: σ is squared
    z = mu + log_sigma.exp() → z = mu + (2 * log_sigma).exp()
no_exp: log σ multiplies the noise, without exp
    z = mu + log_sigma.exp() → z = mu + log_sigma
by_softplus: softplus is used for exp
    z = mu + log_sigma.exp() → z = mu + functional.softplus(log_sigma)
unstretched: the noise is not stretched: σ is left out
    log_sigma.exp() * noise → noise
mean: the noise is left out: z is the mean
    z = mu + log_sigma.exp() * noise → z = mu + 0 * log_sigma.exp() * noise
around_zero: μ is left out of z
    z = mu + → z =
stretches_the_mean: μ is stretched as well: σ multiplies the sum
    mu + log_sigma.exp() * noise → log_sigma.exp() * (mu + noise)
divided: the noise is divided by σ
    z = mu + log_sigma.exp() * noise → z = mu + noise * (-log_sigma).exp().clamp(max=1e30)
z_detached: z is detached, so that μ and σ cannot learn from it
    return z, → return z.detach(),
    says: No gradient
* mean_of_the_numbers: KL is the mean over the numbers of a code instead of their sum
    .sum(dim=1) → .mean(dim=1)
constant_of_one_number: the paper's ½ is subtracted for a code, where D_Z/2 is right
    - 1).sum(dim=1) → ).sum(dim=1) - 1
no_constant: the 1 is left out of KL: the constant is missing
    - 1).sum(dim=1) → ).sum(dim=1)
no_half: the factor ½ is left out of KL
    .sum(dim=1) / 2 → .sum(dim=1)
width_for_variance: σ stands in KL where σ² should
    (2 * log_sigma).exp() → log_sigma.exp()
once: log σ is subtracted once, not twice: log σ² = 2 log σ
    - 2 * log_sigma → - log_sigma
negative: KL has the wrong sign
    return z, (mu → return z, -(mu
not_squared: μ is not squared in KL
    (mu**2 + → (mu +
of_the_sample: KL is taken with z in place of μ
    (mu**2 + → (z**2 +
over_the_batch: the mean of KL over the batch is taken
    .sum(dim=1) / 2 → .sum(dim=1).mean() / 2
    says: KL should have shape
by_number: the numbers of a code are not summed in KL
    .sum(dim=1) / 2 → / 2
    says: KL should have shape
* log_of_exp: log σ² is the logarithm of what exp gave, which is zero where σ is very small
    - 2 * log_sigma → - (2 * log_sigma).exp().log()
    says: KL for log σ below -500
""",
)


@bug(sample_latent, "KL comes before z", told_by="z should have shape")
def exchanged(mu, log_sigma, noise):
    return sample_latent(mu, log_sigma, noise)[::-1]


@bug(sample_latent, "the divergence is the other way round: of the prior from the code's Gaussian")
def other_way_round(mu, log_sigma, noise):
    z, _ = sample_latent(mu, log_sigma, noise)
    spread = (-2 * log_sigma).exp()
    return z, ((mu**2 + 1) * spread + 2 * log_sigma - 1).sum(dim=1) / 2


@bug(
    sample_latent,
    "new noise is drawn, and the given one is not used",
    told_by="gradient of log_sigma at [0, 0] should be",
    classic=True,
)
def own_noise(mu, log_sigma, noise):
    own = torch.Generator().manual_seed(0)  # the same each time, for the files of known mistakes
    drawn = torch.randn(mu.shape, dtype=mu.dtype, generator=own)
    return sample_latent(mu, log_sigma, drawn)


mistakes(
    DRAW,
    """
* ErrorOfLogits: the error is x - c: the canvas is not brought to probabilities
    x - torch.sigmoid(canvas) → x - canvas
* PixelsFromOne: the paper's centre is used though pixels are counted from 0
    (g + 1) - 1 → (g + 1)
* MeanOverPixels: the reconstruction is the mean over the pixels instead of the sum
    pixels.sum → pixels.mean
AxesExchanged: g̃_Y is read before g̃_X: the axes are exchanged
    x, y, log_variance → y, x, log_variance
StrideFirst: the stride is read before σ²
    log_variance, log_stride, → log_stride, log_variance,
VarianceAsWidth: σ² is used as σ
    (log_variance / 2).exp() → log_variance.exp()
BareGamma: γ is used as it comes, without exp
    log_gamma.exp() → log_gamma
BareStride: the stride is δ̃ pixels: (A - 1) / (N - 1) is left out
    (self.A - 1) / (self.N - 1) * log_stride → log_stride
ErrorFirst: the glimpse of the error comes before that of the picture
    in (x, error) → in (error, x)
NoError: both glimpses are of the picture
    in (x, error) → in (x, x)
ReadsWithoutGamma: γ is left out in reading
    gamma[:, None, None] * (F_Y → (F_Y
ReadsByDividing: γ divides in reading instead of multiplying
    gamma[:, None, None] * (F_Y → 1 / gamma[:, None, None] * (F_Y
FirstGamma: the first picture's γ is used for all in reading
    gamma[:, None, None] * (F_Y → gamma[0] * (F_Y
* FiltersExchanged: in reading, the filters of the two axes are exchanged
    F_Y @ seen @ F_X.mT → F_X @ seen @ F_Y.mT
TransposedGlimpse: the glimpses are transposed: rows and columns are exchanged
    F_Y @ seen @ F_X.mT → F_X @ seen.mT @ F_Y.mT
Interleaved: the two glimpses are interleaved, pixel by pixel
    torch.stack(glimpses, dim=1) → torch.stack(glimpses, dim=3)
PaintsWithoutGamma: γ is left out in painting
    @ F_X) / gamma[:, None, None] → @ F_X)
PaintsByMultiplying: γ multiplies in painting instead of dividing
    @ F_X) / gamma → @ F_X) * gamma
PaintsTransposed: the patch is painted transposed
    @ patch @ → @ patch.mT @
PaintsAsItReads: in painting, the filters are not transposed, or the wrong one is
    F_Y.mT @ patch @ F_X → F_Y @ patch @ F_X.mT
    says: raised RuntimeError
ReadsWhereItWrites: reading is aimed by the numbers for writing
    self.aim(self.read_aim(h)) → self.aim(self.write_aim(h))
WritesWhereItReads: writing is aimed by the numbers for reading
    self.aim(self.write_aim(h)) → self.aim(self.read_aim(h))
SquashedPatch: the patch goes through the logistic function before it is painted
    self.patch(h) → torch.sigmoid(self.patch(h))
""",
)

changed(
    DRAW,
    "FreshCanvas",
    "the canvas is what the last step painted: c_{t-1} is not kept",
    (
        "canvas = canvas + self.write(decoder[0])\n        pixels",
        "canvas = self.write(decoder[0])\n        pixels",
    ),
    (
        "canvas = canvas + self.write(decoder[0])\n            pictures",
        "canvas = self.write(decoder[0])\n            pictures",
    ),
)

mistakes(
    DRAW,
    """
ZeroCanvas: the first canvas is zero: `blank` is not used
    self.blank.expand( → 0 * self.blank.expand(
StateFirst: the encoder's input has h before r
    [r, h] → [h, r]
StateUnseen: the encoder does not see the decoder's state: zeros take its place
    [r, h] → [r, 0 * h]
GaussianExchanged: μ and log σ are exchanged
    mu, log_sigma = self → log_sigma, mu = self
FromTheCell: the code comes from the encoder's cell state instead of its hidden state
    self.code(encoder[0]) → self.code(encoder[1])
WithoutNoise: the noise is not used: the codes are the means
    log_sigma, epsilon → log_sigma, 0 * epsilon
SameNoise: every step uses the noise of the first
    log_sigma, epsilon → log_sigma, noise[:, 0]
LastCode: only the last glimpse's code is paid for
    kl = kl + nats → kl = nats
MeanOverGlimpses: KL is the mean over the glimpses instead of the sum
    (1, 2)), kl → (1, 2)), kl / noise.shape[1]
CutOff: the loss is that of probabilities, which is cut off where a pixel is certain
    binary_cross_entropy_with_logits(canvas, → binary_cross_entropy(torch.sigmoid(canvas),
BatchMean: the loss is averaged over the batch
    pixels.sum(dim=(1, 2)), kl → pixels.sum(dim=(1, 2)).mean(), kl.mean()
    says: reconstruction should have shape
OneSum: the two parts of the loss come as their sum
    pixels.sum(dim=(1, 2)), kl → pixels.sum(dim=(1, 2)) + kl
    says: should return (reconstruction, KL)
Logits: the pictures are logits, without the logistic function
    pictures.append(torch.sigmoid(canvas)) → pictures.append(canvas)
ForgetfulDecoder: the decoder forgets its state between the steps of `generate`
    _, decoder = self.start(len(z)) → _, first = self.start(len(z))
    self.decoder(code, decoder) → self.decoder(code, first)
FirstCode: every step of `generate` uses the first code
    self.decoder(code, → self.decoder(z[:, 0],
LastPicture: only the last picture is returned
    torch.stack(pictures, dim=1) → pictures[-1]
    says: pictures should have shape
Detached: the codes are detached from the encoder
    self.decoder(z, decoder) → self.decoder(z.detach(), decoder)
    says: gradient of code.weight at
""",
)


similarity = "similarity = functional.cosine_similarity"
equivalent(
    content_addressing,
    f"{similarity}(memory, key[:, None], dim=2) → {similarity}(key[:, None], memory, dim=2)",
    "the cosine is the same either way",
)
equivalent(
    dnc_allocation,
    "ascending, order = usage.sort(dim=1) → ascending, order = usage.sort()",
    "axis 1 is the last, which is sorted by default",
)
scattered = "_like(usage).scatter(1, order, (1 - ascending) * before)"
equivalent(
    dnc_allocation,
    f"return torch.zeros{scattered} → return torch.ones{scattered}",
    "every entry is written",
)
equivalent(
    location_addressing,
    "power = (w / w.amax(dim=1, keepdim=True).detach()) ** gamma[:, None] → "
    "power = (w / (lambda same: same)(w.amax(dim=1, keepdim=True))) ** gamma[:, None]",
    "the largest weight cancels, and so does its gradient",
)
equivalent(
    DRAW,
    "canvas, encoder, decoder = self.start(len(x)) → canvas, decoder, encoder = self.start(len(x))",
    "both states are the same zeros",
)
equivalent(
    DRAW,
    "canvas, _, decoder = self.start(len(z)) → canvas, decoder, _ = self.start(len(z))",
    "both states are the same zeros",
)
equivalent(
    DRAW,
    "return (pixels.sum(dim=(1, 2)), kl) → return (pixels.sum(dim=(2, 1)), kl)",
    "a sum over two axes has no order",
)

black_box(
    sample_latent,
    "by_softplus",
    curve="drawing.losses",
    label="nats for a picture",
    after="drawing = learn_to_draw",
)

wrong_answers(sample_latent_fault, "B")
mistakes(
    sample_latent_fault,
    """
no_noise: there is no noise to stretch
    (zero, zero, one) → (zero, zero, zero)
    says: With these arguments the black box gives what is right
too_wide: with log σ = 30, softplus is 30 and exp is 10¹³, but the noise is nothing
    (zero, zero, one) → (zero, zero + 30, zero)
    says: With these arguments the black box gives what is right
one_axis: the numbers have no axis of codes
    torch.zeros(1, 1), torch.ones(1, 1) → torch.zeros(1), torch.ones(1)
    says: sample_latent raised ValueError
noise_of_another_size: the noise has more numbers than the code
    torch.ones(1, 1) → torch.ones(1, 2)
    says: sample_latent raised ValueError
no_tensors: the arguments are Python's numbers
    (zero, zero, one) → (0.0, 0.0, 1.0)
    says: sample_latent raised AttributeError
two_arguments: the noise is missing
    (zero, zero, one) → (zero, zero)
    says: sample_latent raised TypeError
""",
)
