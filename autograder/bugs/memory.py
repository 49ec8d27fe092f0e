"""Known wrong solutions of memory."""

import torch
from torch.nn import functional

from autograder.bugs import bug, equivalent
from course_pkg.memory import (
    DRAW,
    NTM,
    circular_shift,
    content_addressing,
    dnc_allocation,
    dnc_follow,
    dnc_links,
    dnc_usage,
    draw_kl,
    draw_read,
    draw_write,
    gaussian_filterbank,
    interpolate,
    ntm_read,
    ntm_write,
    reparameterise,
    sharpen,
)

sigmoid, softplus = torch.sigmoid, functional.softplus


@bug(ntm_read, "the mean over the rows is taken: the sum is divided by N")
def mean(memory, w):
    return (memory * w[:, :, None]).mean(dim=1)


@bug(ntm_read, "the row with the largest weight is read alone")
def hard(memory, w):
    return memory[torch.arange(len(w)), w.argmax(dim=1)]


@bug(ntm_read, "the weights go through softmax once more")
def softmax_again(memory, w):
    return torch.einsum("bn,bnm->bm", w.softmax(dim=1), memory)


@bug(ntm_read, "the sum runs over the columns instead of the rows", classic=True)
def over_columns(memory, w):
    return (memory * w[:, :, None]).sum(dim=2)


@bug(ntm_read, "the weights of the first sequence are used for all")
def first_weights(memory, w):
    return torch.einsum("n,bnm->bm", w[0], memory)


@bug(ntm_read, "the memory of the first sequence is read for all")
def first_memory(memory, w):
    return w @ memory[0]


@bug(ntm_read, "the rows are counted from the end")
def from_the_end(memory, w):
    return torch.einsum("bn,bnm->bm", w.flip(1), memory)


@bug(ntm_read, "an axis of size 1 is left")
def axis_left(memory, w):
    return w[:, None] @ memory


@bug(ntm_read, "the weights are left out")
def unweighted(memory, w):
    return memory.sum(dim=1)


@bug(ntm_read, "no gradient passes to the weights", told_by="No gradient reaches w:")
def detached(memory, w):
    return ntm_read(memory, w.detach())


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


@bug(interpolate, "g and 1 - g are mixed up", classic=True)
def mixed_up(w_content, w_before, g):
    return (1 - g[:, None]) * w_content + g[:, None] * w_before


@bug(interpolate, "only the content's weights are multiplied: the old ones are added whole")
def old_kept_whole(w_content, w_before, g):
    return g[:, None] * w_content + w_before


@bug(interpolate, "g multiplies both weights")
def same_gate(w_content, w_before, g):
    return g[:, None] * (w_content + w_before)


@bug(interpolate, "the larger of the two decides: the gate is rounded to 0 or 1")
def rounded(w_content, w_before, g):
    return torch.where(g[:, None] > 0.5, w_content, w_before)


@bug(interpolate, "the gate is left out: the mean of both is taken")
def no_gate(w_content, w_before, g):
    return (w_content + w_before) / 2


@bug(interpolate, "g goes through σ, though it is a gate already")
def sigmoid_again(w_content, w_before, g):
    return interpolate(w_content, w_before, sigmoid(g))


@bug(interpolate, "the first sequence's gate is used for all")
def first_gate(w_content, w_before, g):
    return g[0] * w_content + (1 - g[0]) * w_before


@bug(interpolate, "the weights are multiplied by each other instead of added")
def product(w_content, w_before, g):
    return g[:, None] * w_content * (1 - g[:, None]) * w_before


@bug(interpolate, "the previous weights are ignored")
def content_alone(w_content, w_before, g):
    return g[:, None] * w_content


@bug(interpolate, "no gradient passes to the gate", told_by="No gradient reaches g:")
def detached(w_content, w_before, g):
    return interpolate(w_content, w_before, g.detach())


def odd(s):
    if s.shape[1] % 2 == 0:
        raise ValueError("the number of shifts must be odd")
    return s.shape[1]


@bug(circular_shift, "the shifts go the other way: a positive one towards lower rows", classic=True)
def other_way(w, s):
    S = odd(s)
    return sum(s[:, k : k + 1] * w.roll(S // 2 - k, 1) for k in range(S))


@bug(circular_shift, "the shifts are counted from 0: no shift moves down")
def from_zero(w, s):
    return sum(s[:, k : k + 1] * w.roll(k, 1) for k in range(odd(s)))


@bug(circular_shift, "the shifts are counted from 1")
def from_one(w, s):
    return sum(s[:, k : k + 1] * w.roll(k + 1, 1) for k in range(odd(s)))


@bug(circular_shift, "weight that leaves at an end is lost: the rows form no circle")
def falls_off(w, s):
    S = odd(s)
    wide = functional.pad(w, (S // 2, S // 2))
    N = w.shape[1]
    return sum(s[:, k : k + 1] * wide[:, S - 1 - k : S - 1 - k + N] for k in range(S))


@bug(circular_shift, "the weight of an end stays there instead of going round")
def sticks_at_the_end(w, s):
    S, N = odd(s), w.shape[1]
    rows = torch.arange(N)
    moved = torch.zeros_like(w)
    for k in range(S):
        moved = moved.index_add(1, (rows + k - S // 2).clamp(0, N - 1), s[:, k : k + 1] * w)
    return moved


@bug(circular_shift, "the batch is rolled instead of the rows")
def rolls_the_batch(w, s):
    S = odd(s)
    return sum(s[:, k : k + 1] * w.roll(k - S // 2, 0) for k in range(S))


@bug(
    circular_shift,
    "the tensor is rolled without an axis, so that weight goes to other sequences",
    classic=True,
)
def rolls_across(w, s):
    S = odd(s)
    return sum(s[:, k : k + 1] * w.roll(k - S // 2) for k in range(S))


@bug(circular_shift, "the shifts of the first sequence are used for all")
def first_shifts(w, s):
    S = odd(s)
    return sum(s[0, k] * w.roll(k - S // 2, 1) for k in range(S))


@bug(circular_shift, "only the likeliest shift is made")
def likeliest(w, s):
    S = odd(s)
    steps = s.argmax(dim=1) - S // 2
    return torch.stack([row.roll(int(step)) for row, step in zip(w, steps, strict=True)])


@bug(circular_shift, "the shifts go through softmax once more")
def softmax_again(w, s):
    return circular_shift(w, s.softmax(dim=1))


@bug(
    circular_shift, "every shift is taken to be by one row at most: the first and last move by one"
)
def by_one(w, s):
    middle = odd(s) // 2
    down, up = s[:, :middle].sum(1, keepdim=True), s[:, middle + 1 :].sum(1, keepdim=True)
    return down * w.roll(-1, 1) + s[:, middle : middle + 1] * w + up * w.roll(1, 1)


@bug(
    circular_shift,
    "an even number of shifts is accepted",
    told_by="should raise ValueError when there are four shifts",
)
def even(w, s):
    S = s.shape[1]
    return sum(s[:, k : k + 1] * w.roll(k - S // 2, 1) for k in range(S))


@bug(sharpen, "the powers are not divided by their sum")
def not_normalised(w, gamma):
    return w ** gamma[:, None]


@bug(sharpen, "w is multiplied by γ instead of raised to it")
def multiplied(w, gamma):
    scaled = w * gamma[:, None]
    return scaled / scaled.sum(dim=1, keepdim=True)


@bug(sharpen, "γ w goes through softmax: that sharpens scores, not weights")
def softmax_of_weights(w, gamma):
    return torch.softmax(gamma[:, None] * w, dim=1)


@bug(sharpen, "γ is raised to w")
def wrong_way_round(w, gamma):
    power = gamma[:, None] ** w
    return power / power.sum(dim=1, keepdim=True)


@bug(sharpen, "the sum is taken over the batch, not over the rows")
def over_the_batch(w, gamma):
    power = w ** gamma[:, None]
    return power / power.sum(dim=0, keepdim=True)


@bug(sharpen, "the powers are divided by the largest instead of their sum")
def largest_is_one(w, gamma):
    return (w / w.amax(dim=1, keepdim=True)) ** gamma[:, None]


@bug(sharpen, "the root is taken: 1/γ is the exponent, which blurs")
def blurs(w, gamma):
    return sharpen(w, 1 / gamma)


@bug(sharpen, "1 is added to γ, which is 1 or more already")
def one_more(w, gamma):
    return sharpen(w, 1 + gamma)


@bug(sharpen, "the first sequence's γ is used for all")
def first_gamma(w, gamma):
    return sharpen(w, gamma[:1].expand(len(w)))


@bug(sharpen, "γ is ignored: only the largest weight is kept")
def hard(w, gamma):
    return functional.one_hot(w.argmax(dim=1), w.shape[1]).to(w)


@bug(
    sharpen, "every power becomes zero when γ is large: 0/0", told_by="yours is nan (", classic=True
)
def underflow(w, gamma):
    power = w ** gamma[:, None]
    return power / power.sum(dim=1, keepdim=True)


@bug(
    sharpen,
    "the sum is kept from zero by a small number, but all powers are zero",
    told_by="should be 1, yours is 0 (",
    classic=True,
)
def small_number(w, gamma):
    power = w ** gamma[:, None]
    return power / (power.sum(dim=1, keepdim=True) + 1e-16)


class Machine(NTM):
    """A machine in parts that the bugs below vary."""

    def parts(self, raw):
        key, beta, g, gamma, s = raw.split([self.M, 1, 1, 1, self.SHIFTS], dim=1)
        numbers = softplus(beta[:, 0]), sigmoid(g[:, 0]), 1 + softplus(gamma[:, 0])
        return key, *numbers, torch.softmax(s, dim=1)

    def hidden(self, x, r):
        return torch.tanh(self.controller(torch.cat([x, r], dim=1)))

    def write(self, memory, w, h):
        return ntm_write(memory, w, sigmoid(self.erase(h)), torch.tanh(self.add(h)))

    def answer(self, h, r):
        return self.output(torch.cat([h, r], dim=1))

    def step(self, x, state):
        memory, r, w_write, w_read = state
        h = self.hidden(x, r)
        w_write = self.address(self.write_head(h), memory, w_write)
        memory = self.write(memory, w_write, h)
        w_read = self.address(self.read_head(h), memory, w_read)
        r = ntm_read(memory, w_read)
        return self.answer(h, r), (memory, r, w_write, w_read)


@bug(NTM, "a head's numbers are read in another order: g before β")
class GateFirst(Machine):
    def address(self, raw, memory, w):
        M = self.M
        order = [*range(M), M + 1, M, *range(M + 2, M + 6)]
        return super().address(raw[:, order], memory, w)


@bug(NTM, "s is read before γ")
class ShiftsFirst(Machine):
    def address(self, raw, memory, w):
        M = self.M
        order = [*range(M + 2), M + 5, *range(M + 2, M + 5)]
        return super().address(raw[:, order], memory, w)


@bug(NTM, "γ = softplus, without the 1: it may blur", classic=True)
class BlursTheFocus(Machine):
    def address(self, raw, memory, w):
        key, beta, g, gamma, s = self.parts(raw)
        w = interpolate(content_addressing(memory, key, beta), w, g)
        return sharpen(circular_shift(w, s), gamma - 1)


@bug(NTM, "the head is not sharpened")
class NotSharpened(Machine):
    def address(self, raw, memory, w):
        key, beta, g, _, s = self.parts(raw)
        return circular_shift(interpolate(content_addressing(memory, key, beta), w, g), s)


@bug(NTM, "the head is sharpened before it is shifted")
class SharpenedFirst(Machine):
    def address(self, raw, memory, w):
        key, beta, g, gamma, s = self.parts(raw)
        w = interpolate(content_addressing(memory, key, beta), w, g)
        return circular_shift(sharpen(w, gamma), s)


@bug(NTM, "the head is not shifted")
class NotShifted(Machine):
    def address(self, raw, memory, w):
        key, beta, g, gamma, _ = self.parts(raw)
        return sharpen(interpolate(content_addressing(memory, key, beta), w, g), gamma)


@bug(NTM, "the old weights are shifted before the interpolation")
class ShiftedFirst(Machine):
    def address(self, raw, memory, w):
        key, beta, g, gamma, s = self.parts(raw)
        w = interpolate(content_addressing(memory, key, beta), circular_shift(w, s), g)
        return sharpen(w, gamma)


@bug(NTM, "the head goes by content alone: the previous weights are not used")
class ByContentAlone(Machine):
    def address(self, raw, memory, w):
        key, beta, _, gamma, s = self.parts(raw)
        return sharpen(circular_shift(content_addressing(memory, key, beta), s), gamma)


@bug(NTM, "the content's and the previous weights are exchanged in the interpolation")
class GateTheOtherWay(Machine):
    def address(self, raw, memory, w):
        key, beta, g, gamma, s = self.parts(raw)
        w = interpolate(w, content_addressing(memory, key, beta), g)
        return sharpen(circular_shift(w, s), gamma)


@bug(NTM, "β is used as it comes, without softplus")
class BareBeta(Machine):
    def address(self, raw, memory, w):
        key, _, g, gamma, s = self.parts(raw)
        w = interpolate(content_addressing(memory, key, raw[:, self.M]), w, g)
        return sharpen(circular_shift(w, s), gamma)


@bug(NTM, "the shifts go through σ instead of softmax")
class OpenShifts(Machine):
    def address(self, raw, memory, w):
        key, beta, g, gamma, _ = self.parts(raw)
        w = interpolate(content_addressing(memory, key, beta), w, g)
        s = sigmoid(raw[:, self.M + 3 :])
        return sharpen(circular_shift(w, s / s.sum(dim=1, keepdim=True)), gamma)


@bug(NTM, "it reads before it writes", classic=True)
class ReadsFirst(Machine):
    def step(self, x, state):
        memory, r, w_write, w_read = state
        h = self.hidden(x, r)
        w_read = self.address(self.read_head(h), memory, w_read)
        r = ntm_read(memory, w_read)
        w_write = self.address(self.write_head(h), memory, w_write)
        return self.answer(h, r), (self.write(memory, w_write, h), r, w_write, w_read)


@bug(NTM, "the read head looks for its key in the memory from before the write")
class LooksAtTheOldMemory(Machine):
    def step(self, x, state):
        memory, r, w_write, w_read = state
        h = self.hidden(x, r)
        w_read = self.address(self.read_head(h), memory, w_read)
        w_write = self.address(self.write_head(h), memory, w_write)
        memory = self.write(memory, w_write, h)
        r = ntm_read(memory, w_read)
        return self.answer(h, r), (memory, r, w_write, w_read)


@bug(NTM, "y_t is computed from r_{t-1}, what the previous step read")
class AnswersTooEarly(Machine):
    def step(self, x, state):
        _, new = super().step(x, state)
        return self.answer(self.hidden(x, state[1]), state[1]), new


@bug(NTM, "the controller does not see what was read: r is zero in its input")
class DoesNotSeeWhatItRead(Machine):
    def step(self, x, state):
        memory, r, w_write, w_read = state
        return super().step(x, (memory, 0 * r, w_write, w_read))


@bug(NTM, "r comes before x in the controller's input")
class ReadFirstInTheInput(Machine):
    def hidden(self, x, r):
        return torch.tanh(self.controller(torch.cat([r, x], dim=1)))


@bug(NTM, "the controller has no tanh")
class LinearController(Machine):
    def hidden(self, x, r):
        return self.controller(torch.cat([x, r], dim=1))


@bug(NTM, "e is used as it comes, without σ")
class BareErase(Machine):
    def write(self, memory, w, h):
        return ntm_write(memory, w, self.erase(h), torch.tanh(self.add(h)))


@bug(NTM, "a is used as it comes, without tanh")
class BareAdd(Machine):
    def write(self, memory, w, h):
        return ntm_write(memory, w, sigmoid(self.erase(h)), self.add(h))


@bug(NTM, "both heads go where the write head goes")
class OneHead(Machine):
    def step(self, x, state):
        memory, r, w_write, _ = state
        h = self.hidden(x, r)
        w_write = self.address(self.write_head(h), memory, w_write)
        memory = self.write(memory, w_write, h)
        r = ntm_read(memory, w_write)
        return self.answer(h, r), (memory, r, w_write, w_write)


@bug(NTM, "the two heads' weights are mixed up in the state")
class HeadsMixedUp(Machine):
    def step(self, x, state):
        y, (memory, r, w_write, w_read) = super().step(x, state)
        return y, (memory, r, w_read, w_write)


@bug(NTM, "r comes before h in the output layer's input")
class ReadFirstInTheOutput(Machine):
    def answer(self, h, r):
        return self.output(torch.cat([r, h], dim=1))


@bug(NTM, "every step begins with an empty memory and the heads on row 0")
class NothingCarried(Machine):
    def forward(self, X, state=None):
        found = [self.step(x, self.start(len(X))) for x in X.unbind(dim=1)]
        return torch.stack([y for y, _ in found], dim=1), found[-1][1]


@bug(NTM, "the loop runs over the batch axis instead of the time axis")
class BatchAsTime(Machine):
    def forward(self, X, state=None):
        outputs, state = super().forward(X.transpose(0, 1), state)
        return outputs.transpose(0, 1), state


@bug(NTM, "the given state is ignored")
class StateIgnored(Machine):
    def forward(self, X, state=None):
        return super().forward(X)


@bug(
    NTM,
    "the state of the last call is where the next one starts",
    told_by="NTM depends on an earlier call",
    classic=True,
)
class StateKept(Machine):
    def forward(self, X, state=None):
        kept = getattr(self, "kept", None)
        if state is None and kept is not None and len(kept[0]) == len(X):
            state = kept
        outputs, self.kept = super().forward(X, state)
        return outputs, self.kept


@bug(NTM, "only the last output is returned")
class LastOutput(Machine):
    def forward(self, X, state=None):
        outputs, state = super().forward(X, state)
        return outputs[:, -1], state


@bug(NTM, "the memory is detached between steps", told_by="gradient of X")
class Detached(Machine):
    def step(self, x, state):
        memory, *others = state
        return super().step(x, (memory.detach(), *others))


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


def sorted_weights(usage, descending=False):
    ordered, order = usage.sort(dim=1, descending=descending)
    before = torch.cat([torch.ones_like(usage[:, :1]), ordered[:, :-1].cumprod(dim=1)], dim=1)
    return (1 - ordered) * before, order


@bug(
    dnc_allocation,
    "the weights stay in the order of usage: row 0 gets that of the row used least",
    classic=True,
)
def left_sorted(usage):
    return sorted_weights(usage)[0]


@bug(dnc_allocation, "the order is undone the wrong way: gather in place of scatter", classic=True)
def gathered(usage):
    weights, order = sorted_weights(usage)
    return weights.gather(1, order)


@bug(dnc_allocation, "the rows are sorted from the most used down")
def most_used_first(usage):
    weights, order = sorted_weights(usage, descending=True)
    return torch.zeros_like(usage).scatter(1, order, weights)


@bug(
    dnc_allocation,
    "the product is exp of a sum of logarithms, whose gradient is NaN where a row is free",
)
def by_logarithms(usage):
    ascending, order = usage.sort(dim=1)
    before = functional.pad(ascending.log().cumsum(dim=1)[:, :-1], (1, 0)).exp()
    return torch.zeros_like(usage).scatter(1, order, (1 - ascending) * before)


@bug(dnc_allocation, "a row's own usage is also in the product", classic=True)
def own_usage_too(usage):
    ascending, order = usage.sort(dim=1)
    return torch.zeros_like(usage).scatter(1, order, (1 - ascending) * ascending.cumprod(dim=1))


@bug(dnc_allocation, "the factor 1 - u is left out")
def no_own_factor(usage):
    ascending, order = usage.sort(dim=1)
    before = torch.cat([torch.ones_like(usage[:, :1]), ascending[:, :-1].cumprod(dim=1)], dim=1)
    return torch.zeros_like(usage).scatter(1, order, before)


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


@bug(dnc_allocation, "usages are added up instead of multiplied")
def summed(usage):
    ascending, order = usage.sort(dim=1)
    before = torch.cat([torch.ones_like(usage[:, :1]), ascending[:, :-1].cumsum(dim=1)], dim=1)
    return torch.zeros_like(usage).scatter(1, order, (1 - ascending) * before)


@bug(dnc_allocation, "the sequences of a batch are sorted, not the rows")
def over_the_batch(usage):
    return dnc_allocation(usage.T).T


@bug(dnc_allocation, "no gradient passes to the usage", told_by="No gradient goes back")
def detached(usage):
    return dnc_allocation(usage.detach())


def without_self(links):
    return links * (1 - torch.eye(links.shape[1]).to(links))


def kept_links(links, w):
    return (1 - w[:, :, None] - w[:, None]) * links


def moved_precedence(precedence, w):
    return (1 - w.sum(dim=1, keepdim=True)) * precedence + w


@bug(
    dnc_links,
    "the precedence is updated first: the links get p_t in place of p_{t-1}",
    classic=True,
)
def precedence_first(links, precedence, w):
    precedence = moved_precedence(precedence, w)
    return without_self(kept_links(links, w) + w[:, :, None] * precedence[:, None]), precedence


@bug(dnc_links, "the links run backwards: w(j) p(i) is added in place of w(i) p(j)", classic=True)
def backwards(links, precedence, w):
    new = kept_links(links, w) + w[:, None] * precedence[:, :, None]
    return without_self(new), moved_precedence(precedence, w)


@bug(dnc_links, "the diagonal is not set to zero: a row links to itself")
def links_to_itself(links, precedence, w):
    new = kept_links(links, w) + w[:, :, None] * precedence[:, None]
    return new, moved_precedence(precedence, w)


@bug(dnc_links, "old links are never cut")
def never_cut(links, precedence, w):
    return without_self(links + w[:, :, None] * precedence[:, None]), moved_precedence(
        precedence, w
    )


@bug(dnc_links, "only the links into a row that is written are cut, not those out of it")
def cut_into(links, precedence, w):
    new = (1 - w[:, :, None]) * links + w[:, :, None] * precedence[:, None]
    return without_self(new), moved_precedence(precedence, w)


@bug(dnc_links, "only the links out of a row that is written are cut, not those into it")
def cut_out_of(links, precedence, w):
    new = (1 - w[:, None]) * links + w[:, :, None] * precedence[:, None]
    return without_self(new), moved_precedence(precedence, w)


@bug(dnc_links, "old links are multiplied by (1 - w(i)) (1 - w(j)), not by 1 - w(i) - w(j)")
def cut_by_product(links, precedence, w):
    new = (1 - w[:, :, None]) * (1 - w[:, None]) * links + w[:, :, None] * precedence[:, None]
    return without_self(new), moved_precedence(precedence, w)


@bug(dnc_links, "the links are those of the last write alone: L_{t-1} is not used")
def forgets_the_links(links, precedence, w):
    return without_self(w[:, :, None] * precedence[:, None]), moved_precedence(precedence, w)


@bug(dnc_links, "p fades by 1 - w(i) in each row, not by 1 - Σ w in all of them")
def fades_row_by_row(links, precedence, w):
    return dnc_links(links, precedence, w)[0], (1 - w) * precedence + w


@bug(dnc_links, "p is the last write's weights: what was last stays so if little is written")
def last_write_alone(links, precedence, w):
    return dnc_links(links, precedence, w)[0], w


@bug(dnc_links, "p never fades: w is added to all of it")
def never_fades(links, precedence, w):
    return dnc_links(links, precedence, w)[0], precedence + w


@bug(dnc_links, "the sum of w runs over the batch as well")
def summed_over_the_batch(links, precedence, w):
    return dnc_links(links, precedence, w)[0], (1 - w.sum()) * precedence + w


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


@bug(dnc_follow, "forward and backward are exchanged: L is transposed", classic=True)
def exchanged(links, w):
    return dnc_follow(links, w)[::-1]


@bug(dnc_follow, "both go forward")
def both_forward(links, w):
    return (w @ links.mT,) * 2


@bug(dnc_follow, "both go backward")
def both_backward(links, w):
    return (w @ links,) * 2


@bug(dnc_follow, "the results are made to sum to one")
def normalised(links, w):
    return tuple(part / part.sum(dim=2, keepdim=True) for part in dnc_follow(links, w))


@bug(dnc_follow, "the results go through softmax")
def softmax_again(links, w):
    return tuple(part.softmax(dim=2) for part in dnc_follow(links, w))


@bug(dnc_follow, "each head goes to one row: the likeliest")
def hard(links, w):
    N = links.shape[1]
    return tuple(functional.one_hot(part.argmax(2), N).to(w) for part in dnc_follow(links, w))


@bug(dnc_follow, "every head moves by the first head's weights")
def first_head(links, w):
    return dnc_follow(links, w[:, :1].expand_as(w))


@bug(dnc_follow, "every sequence moves along the first one's links")
def first_links(links, w):
    return dnc_follow(links[:1].expand_as(links), w)


@bug(dnc_follow, "some weight stays: w is added to the result")
def stays(links, w):
    return tuple(w + part for part in dnc_follow(links, w))


@bug(dnc_follow, "it goes back from where it went forward: b = Lᵀ f")
def back_from_forward(links, w):
    forward = w @ links.mT
    return forward, forward @ links


@bug(dnc_follow, "no gradient passes to the links", told_by="No gradient reaches links:")
def detached(links, w):
    return dnc_follow(links.detach(), w)


def filters(mu, sigma, size):
    distance = torch.arange(size).to(mu) - mu[:, :, None]
    return torch.softmax(-((distance / sigma[:, None, None]) ** 2) / 2, dim=2)


def places(centre, stride, offsets):
    return centre[:, None] + offsets.to(centre) * stride[:, None]


@bug(
    gaussian_filterbank,
    "filters counted from 0 go into the paper's formula, which counts from 1",
    classic=True,
)
def counted_from_zero(centre, stride, sigma, N, size):
    return filters(places(centre, stride, torch.arange(N) - N / 2 - 0.5), sigma, size)


@bug(gaussian_filterbank, "N/2 is used for (N - 1)/2: all filters lie half a stride too low")
def half_a_stride(centre, stride, sigma, N, size):
    return filters(places(centre, stride, torch.arange(N) - N / 2), sigma, size)


@bug(gaussian_filterbank, "N // 2 is used for (N - 1)/2, which is wrong when N is even")
def whole_half(centre, stride, sigma, N, size):
    return filters(places(centre, stride, torch.arange(N) - N // 2), sigma, size)


@bug(gaussian_filterbank, "the first filter lies at the centre, the others after it")
def starts_at_the_centre(centre, stride, sigma, N, size):
    return filters(places(centre, stride, torch.arange(N)), sigma, size)


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


@bug(gaussian_filterbank, "the filters are not divided by their sums")
def not_normalised(centre, stride, sigma, N, size):
    mu = places(centre, stride, torch.arange(N) - (N - 1) / 2)
    distance = torch.arange(size).to(mu) - mu[:, :, None]
    return torch.exp(-((distance / sigma[:, None, None]) ** 2) / 2)


@bug(gaussian_filterbank, "filters are divided by √(2π) σ, not by their sums over the pixels")
def density(centre, stride, sigma, N, size):
    return not_normalised(centre, stride, sigma, N, size) / (
        (2 * torch.pi) ** 0.5 * sigma[:, None, None]
    )


@bug(gaussian_filterbank, "each pixel's sum over the filters is one, not each filter's over pixels")
def over_the_filters(centre, stride, sigma, N, size):
    heat = not_normalised(centre, stride, sigma, N, size)
    return heat / heat.sum(dim=1, keepdim=True)


@bug(gaussian_filterbank, "every exp is zero far outside the image: 0/0", classic=True)
def zero_by_zero(centre, stride, sigma, N, size):
    heat = not_normalised(centre, stride, sigma, N, size)
    return heat / heat.sum(dim=2, keepdim=True)


@bug(gaussian_filterbank, "a small number in the denominator makes far filters zero")
def empty_filters(centre, stride, sigma, N, size):
    heat = not_normalised(centre, stride, sigma, N, size)
    return heat / heat.sum(dim=2, keepdim=True).clamp(min=1e-8)


@bug(gaussian_filterbank, "the centre is moved into the image")
def moved_inside(centre, stride, sigma, N, size):
    return gaussian_filterbank(centre.clamp(0, size - 1), stride, sigma, N, size)


@bug(draw_read, "γ is left out")
def no_gamma(image, F_Y, F_X, gamma):
    return F_Y @ image @ F_X.mT


@bug(draw_read, "γ divides instead of multiplying")
def divided(image, F_Y, F_X, gamma):
    return F_Y @ image @ F_X.mT / gamma[:, None, None]


@bug(draw_read, "the glimpse is transposed: rows and columns are exchanged")
def transposed(image, F_Y, F_X, gamma):
    return draw_read(image, F_Y, F_X, gamma).mT


@bug(
    draw_read,
    "the filters of the two axes are exchanged",
    told_by="draw_read raised RuntimeError",
    classic=True,
)
def exchanged(image, F_Y, F_X, gamma):
    return gamma[:, None, None] * (F_X @ image @ F_Y.mT)


@bug(draw_read, "γ multiplies twice, once for each axis")
def twice(image, F_Y, F_X, gamma):
    return draw_read(image, F_Y, F_X, gamma**2)


@bug(draw_read, "the first image's γ is used for all")
def first_gamma(image, F_Y, F_X, gamma):
    return gamma[0] * (F_Y @ image @ F_X.mT)


@bug(draw_read, "only the vertical filters are used", told_by="glimpse should have shape")
def one_axis(image, F_Y, F_X, gamma):
    return gamma[:, None, None] * (F_Y @ image)


@bug(draw_read, "the first image's filters are used for all")
def first_filters(image, F_Y, F_X, gamma):
    return gamma[:, None, None] * (F_Y[0] @ image @ F_X[0].T)


@bug(draw_read, "no gradient passes to the filters", told_by="No gradient reaches F_Y:")
def detached(image, F_Y, F_X, gamma):
    return draw_read(image, F_Y.detach(), F_X.detach(), gamma)


@bug(draw_write, "γ is left out")
def no_gamma(patch, F_Y, F_X, gamma):
    return F_Y.mT @ patch @ F_X


@bug(draw_write, "γ multiplies instead of dividing")
def multiplied(patch, F_Y, F_X, gamma):
    return gamma[:, None, None] * (F_Y.mT @ patch @ F_X)


@bug(draw_write, "the patch is painted transposed")
def transposed(patch, F_Y, F_X, gamma):
    return draw_write(patch.mT, F_Y, F_X, gamma)


@bug(draw_write, "the filters of the two axes are exchanged", told_by="canvas should have shape")
def exchanged(patch, F_Y, F_X, gamma):
    return F_X.mT @ patch @ F_Y / gamma[:, None, None]


@bug(
    draw_write,
    "the filters are not transposed, as in draw_read",
    told_by="draw_write raised RuntimeError",
    classic=True,
)
def as_in_read(patch, F_Y, F_X, gamma):
    return gamma[:, None, None] * (F_Y @ patch @ F_X.mT)


@bug(draw_write, "γ divides twice, once for each axis")
def twice(patch, F_Y, F_X, gamma):
    return draw_write(patch, F_Y, F_X, gamma**2)


@bug(draw_write, "the first image's γ is used for all")
def first_gamma(patch, F_Y, F_X, gamma):
    return F_Y.mT @ patch @ F_X / gamma[0]


@bug(draw_write, "the first image's filters are used for all")
def first_filters(patch, F_Y, F_X, gamma):
    return F_Y[0].T @ patch @ F_X[0] / gamma[:, None, None]


@bug(draw_write, "every pixel is divided by the filters' sum there")
def spread(patch, F_Y, F_X, gamma):
    weight = F_Y.sum(dim=1)[:, :, None] * F_X.sum(dim=1)[:, None]
    return draw_write(patch, F_Y, F_X, gamma) / (weight + 1e-8)


@bug(draw_write, "no gradient passes to the patch", told_by="No gradient reaches patch:")
def detached(patch, F_Y, F_X, gamma):
    return draw_write(patch.detach(), F_Y, F_X, gamma)


@bug(reparameterise, "log σ is taken for log σ²: its half goes into exp", classic=True)
def log_of_the_variance(mu, log_sigma, noise):
    return mu + (log_sigma / 2).exp() * noise


@bug(reparameterise, "the variance multiplies the noise: σ is squared")
def variance(mu, log_sigma, noise):
    return mu + (2 * log_sigma).exp() * noise


@bug(reparameterise, "log σ multiplies the noise, without exp")
def no_exp(mu, log_sigma, noise):
    return mu + log_sigma * noise


@bug(reparameterise, "softplus is used for exp")
def by_softplus(mu, log_sigma, noise):
    return mu + softplus(log_sigma) * noise


@bug(reparameterise, "the noise is not stretched: σ is left out")
def unstretched(mu, log_sigma, noise):
    return mu + noise


@bug(reparameterise, "the noise is left out: z is the mean")
def mean(mu, log_sigma, noise):
    return mu + 0 * log_sigma.exp() * noise


@bug(reparameterise, "μ is left out")
def around_zero(mu, log_sigma, noise):
    return log_sigma.exp() * noise


@bug(reparameterise, "μ is stretched as well: σ multiplies the sum")
def stretches_the_mean(mu, log_sigma, noise):
    return log_sigma.exp() * (mu + noise)


@bug(reparameterise, "the noise is divided by σ")
def divided(mu, log_sigma, noise):
    return mu + noise / log_sigma.exp()


@bug(
    reparameterise,
    "new noise is drawn, and the given one is not used",
    told_by="gradient of log_sigma at [0, 0, 0] should be",
    classic=True,
)
def own_noise(mu, log_sigma, noise):
    own = torch.Generator().manual_seed(0)  # the same each time, for the files of known mistakes
    return mu + log_sigma.exp() * torch.randn(mu.shape, dtype=mu.dtype, generator=own)


@bug(
    reparameterise,
    "σ is detached, so that it cannot learn",
    told_by="No gradient reaches log_sigma:",
)
def detached(mu, log_sigma, noise):
    return mu + log_sigma.exp().detach() * noise


def nats(mu, log_sigma):
    return (mu**2 + (2 * log_sigma).exp() - 2 * log_sigma - 1) / 2


@bug(draw_kl, "the mean over glimpses and numbers is taken instead of the sum", classic=True)
def mean_of_all(mu, log_sigma):
    return nats(mu, log_sigma).mean(dim=(1, 2))


@bug(draw_kl, "the mean over glimpses is taken instead of the sum")
def mean_over_glimpses(mu, log_sigma):
    return nats(mu, log_sigma).sum(dim=2).mean(dim=1)


@bug(draw_kl, "the paper's T/2 is subtracted where T D_Z/2 is right")
def constant_of_one_number(mu, log_sigma):
    D_Z = mu.shape[2]
    return (nats(mu, log_sigma) + (1 - 1 / D_Z) / 2).sum(dim=(1, 2))


@bug(draw_kl, "the 1 is left out: the constant is missing")
def no_constant(mu, log_sigma):
    return (nats(mu, log_sigma) + 0.5).sum(dim=(1, 2))


@bug(draw_kl, "the factor ½ is left out")
def no_half(mu, log_sigma):
    return 2 * nats(mu, log_sigma).sum(dim=(1, 2))


@bug(draw_kl, "σ stands where σ² should")
def width_for_variance(mu, log_sigma):
    return (mu**2 + log_sigma.exp() - 2 * log_sigma - 1).sum(dim=(1, 2)) / 2


@bug(draw_kl, "log σ is subtracted once, not twice: log σ² = 2 log σ")
def once(mu, log_sigma):
    return (mu**2 + (2 * log_sigma).exp() - log_sigma - 1).sum(dim=(1, 2)) / 2


@bug(draw_kl, "log σ is taken for log σ²")
def log_of_the_variance(mu, log_sigma):
    return nats(mu, log_sigma / 2).sum(dim=(1, 2))


@bug(draw_kl, "the sign is wrong")
def negative(mu, log_sigma):
    return -nats(mu, log_sigma).sum(dim=(1, 2))


@bug(draw_kl, "μ is not squared")
def not_squared(mu, log_sigma):
    return nats(mu, log_sigma).sum(dim=(1, 2)) + (mu - mu**2).sum(dim=(1, 2)) / 2


@bug(draw_kl, "the divergence is the other way round: of the prior from the codes")
def other_way_round(mu, log_sigma):
    spread = (-2 * log_sigma).exp()
    return ((mu**2 + 1) * spread + 2 * log_sigma - 1).sum(dim=(1, 2)) / 2


@bug(draw_kl, "only the last glimpse is paid for")
def last_glimpse(mu, log_sigma):
    return nats(mu, log_sigma)[:, -1].sum(dim=1)


@bug(draw_kl, "the glimpses are not summed", told_by="KL should have shape")
def by_glimpse(mu, log_sigma):
    return nats(mu, log_sigma).sum(dim=2)


@bug(draw_kl, "the mean over the batch is taken", told_by="KL should have shape")
def over_the_batch(mu, log_sigma):
    return nats(mu, log_sigma).sum(dim=(1, 2)).mean()


class Drawer(DRAW):
    """A DRAW in parts that the bugs below vary."""

    def error(self, x, canvas):
        return x - sigmoid(canvas)

    def seen(self, r, h):
        return torch.cat([r, h], dim=1)

    def gaussian(self, encoder):
        return self.code(encoder[0]).chunk(2, dim=1)

    def step(self, canvas, decoder, z):
        decoder = self.decoder(z, decoder)
        return canvas + self.write(decoder[0]), decoder

    def cost(self, canvas, x, mu, log_sigma):
        pixels = functional.binary_cross_entropy_with_logits(canvas, x, reduction="none")
        return pixels.sum(dim=(1, 2)), draw_kl(mu, log_sigma)

    def forward(self, x, noise):
        canvas, encoder, decoder = self.start(len(x))
        sent = []
        for epsilon in noise.unbind(dim=1):
            h = decoder[0]
            r = self.read(x, self.error(x, canvas), h)
            encoder = self.encoder(self.seen(r, h), encoder)
            sent.append(self.gaussian(encoder))
            canvas, decoder = self.step(canvas, decoder, reparameterise(*sent[-1], epsilon))
        mu, log_sigma = (torch.stack(parts, dim=1) for parts in zip(*sent, strict=True))
        return self.cost(canvas, x, mu, log_sigma)


@bug(DRAW, "the error is x - c: the canvas is not brought to probabilities", classic=True)
class ErrorOfLogits(Drawer):
    def error(self, x, canvas):
        return x - canvas


@bug(DRAW, "the paper's centre is used though pixels are counted from 0", classic=True)
class PixelsFromOne(Drawer):
    def aim(self, raw):
        step = torch.zeros_like(raw)
        step[:, :2] = 2 / (self.A + 1)
        return super().aim(raw + step)


@bug(DRAW, "the reconstruction is the mean over the pixels instead of the sum", classic=True)
class MeanOverPixels(Drawer):
    def cost(self, canvas, x, mu, log_sigma):
        pixels, kl = super().cost(canvas, x, mu, log_sigma)
        return pixels / x[0].numel(), kl


@bug(DRAW, "g̃_Y is read before g̃_X: the axes are exchanged")
class AxesExchanged(Drawer):
    def aim(self, raw):
        return super().aim(raw[:, [1, 0, 2, 3, 4]])


@bug(DRAW, "the stride is read before σ²")
class StrideFirst(Drawer):
    def aim(self, raw):
        return super().aim(raw[:, [0, 1, 3, 2, 4]])


@bug(DRAW, "σ² is used as σ")
class VarianceAsWidth(Drawer):
    def aim(self, raw):
        return super().aim(raw * raw.new_tensor([1, 1, 2, 1, 1]))


@bug(DRAW, "γ is used as it comes, without exp")
class BareGamma(Drawer):
    def aim(self, raw):
        F_Y, F_X, _ = super().aim(raw)
        return F_Y, F_X, raw[:, 4]


@bug(DRAW, "the stride is δ̃ pixels: (A - 1) / (N - 1) is left out")
class BareStride(Drawer):
    def aim(self, raw):
        whole = (self.A - 1) / (self.N - 1)
        shift = torch.zeros_like(raw)
        shift[:, 3] = torch.tensor(1 / whole).log()
        return super().aim(raw + shift)


@bug(DRAW, "the glimpse of the error comes before that of the picture")
class ErrorFirst(Drawer):
    def read(self, x, error, h):
        return super().read(error, x, h)


@bug(DRAW, "both glimpses are of the picture")
class NoError(Drawer):
    def read(self, x, error, h):
        return super().read(x, x, h)


@bug(DRAW, "reading is aimed by the numbers for writing")
class ReadsWhereItWrites(Drawer):
    def read(self, x, error, h):
        where = self.aim(self.write_aim(h))
        return torch.cat([draw_read(seen, *where).flatten(1) for seen in (x, error)], dim=1)


@bug(DRAW, "writing is aimed by the numbers for reading")
class WritesWhereItReads(Drawer):
    def write(self, h):
        patch = self.patch(h).view(-1, self.N, self.N)
        return draw_write(patch, *self.aim(self.read_aim(h)))


@bug(DRAW, "the patch goes through the logistic function before it is painted")
class SquashedPatch(Drawer):
    def write(self, h):
        patch = sigmoid(self.patch(h)).view(-1, self.N, self.N)
        return draw_write(patch, *self.aim(self.write_aim(h)))


@bug(DRAW, "the canvas is what the last step painted: c_{t-1} is not kept")
class FreshCanvas(Drawer):
    def step(self, canvas, decoder, z):
        decoder = self.decoder(z, decoder)
        return self.write(decoder[0]), decoder

    def generate(self, z):
        canvas, _, decoder = self.start(len(z))
        found = []
        for code in z.unbind(dim=1):
            canvas, decoder = self.step(canvas, decoder, code)
            found.append(sigmoid(canvas))
        return torch.stack(found, dim=1)


@bug(DRAW, "the first canvas is zero: `blank` is not used")
class ZeroCanvas(Drawer):
    def start(self, B):
        canvas, *states = super().start(B)
        return 0 * canvas, *states


@bug(DRAW, "the encoder's input has h before r")
class StateFirst(Drawer):
    def seen(self, r, h):
        return torch.cat([h, r], dim=1)


@bug(DRAW, "the encoder does not see the decoder's state: zeros take its place")
class StateUnseen(Drawer):
    def seen(self, r, h):
        return torch.cat([r, 0 * h], dim=1)


@bug(DRAW, "μ and log σ are exchanged")
class GaussianExchanged(Drawer):
    def gaussian(self, encoder):
        return super().gaussian(encoder)[::-1]


@bug(DRAW, "the code comes from the encoder's cell state instead of its hidden state")
class FromTheCell(Drawer):
    def gaussian(self, encoder):
        return self.code(encoder[1]).chunk(2, dim=1)


@bug(DRAW, "the noise is not used: the codes are the means")
class WithoutNoise(Drawer):
    def forward(self, x, noise):
        return super().forward(x, 0 * noise)


@bug(DRAW, "every step uses the noise of the first")
class SameNoise(Drawer):
    def forward(self, x, noise):
        return super().forward(x, noise[:, :1].expand_as(noise))


@bug(DRAW, "only the last glimpse's code is paid for")
class LastCode(Drawer):
    def cost(self, canvas, x, mu, log_sigma):
        return super().cost(canvas, x, mu[:, -1:], log_sigma[:, -1:])


@bug(DRAW, "the loss is that of probabilities, which is cut off where a pixel is certain")
class CutOff(Drawer):
    def cost(self, canvas, x, mu, log_sigma):
        pixels = functional.binary_cross_entropy(sigmoid(canvas), x, reduction="none")
        return pixels.sum(dim=(1, 2)), draw_kl(mu, log_sigma)


@bug(DRAW, "the loss is averaged over the batch", told_by="reconstruction should have shape")
class BatchMean(Drawer):
    def cost(self, *given):
        return tuple(part.mean() for part in super().cost(*given))


@bug(
    DRAW,
    "the two parts of the loss come as their sum",
    told_by="should return (reconstruction, KL)",
)
class OneSum(Drawer):
    def cost(self, *given):
        return sum(super().cost(*given))


@bug(DRAW, "the pictures are logits, without the logistic function")
class Logits(Drawer):
    def generate(self, z):
        return super().generate(z).logit()


@bug(DRAW, "the decoder forgets its state between the steps of `generate`")
class ForgetfulDecoder(Drawer):
    def generate(self, z):
        canvas, _, first = self.start(len(z))
        found = []
        for code in z.unbind(dim=1):
            canvas = canvas + self.write(self.decoder(code, first)[0])
            found.append(sigmoid(canvas))
        return torch.stack(found, dim=1)


@bug(DRAW, "every step of `generate` uses the first code")
class FirstCode(Drawer):
    def generate(self, z):
        return super().generate(z[:, :1].expand_as(z))


@bug(DRAW, "only the last picture is returned", told_by="pictures should have shape")
class LastPicture(Drawer):
    def generate(self, z):
        return super().generate(z)[:, -1]


@bug(DRAW, "the codes are detached from the encoder", told_by="gradient of code.weight at")
class Detached(Drawer):
    def step(self, canvas, decoder, z):
        return super().step(canvas, decoder, z.detach())


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
    sharpen,
    "power = (w / w.amax(dim=1, keepdim=True).detach()) ** gamma[:, None] → "
    "power = (w / (lambda same: same)(w.amax(dim=1, keepdim=True))) ** gamma[:, None]",
    "the largest weight cancels, and so does its gradient",
)
divergence = "return (mu ** 2 + (2 * log_sigma).exp() - 2 * log_sigma - 1)"
equivalent(
    draw_kl,
    f"{divergence}.sum(dim=(1, 2)) / 2 → {divergence}.sum(dim=(2, 1)) / 2",
    "a sum over two axes has no order",
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
gaussians = "mu, log_sigma = (torch.stack(parts, dim={}) for parts in zip(*codes{}))"
for axis, strict, why in (
    (2, ", strict=True", "the divergence is summed over both axes"),
    (1, "", "every code has two parts"),
    (1, ", strict=False", "every code has two parts"),
):
    original = gaussians.format(1, ", strict=True")
    equivalent(DRAW, f"{original} → {gaussians.format(axis, strict)}", why)
equivalent(
    DRAW,
    "return (pixels.sum(dim=(1, 2)), draw_kl(mu, log_sigma)) → "
    "return (pixels.sum(dim=(2, 1)), draw_kl(mu, log_sigma))",
    "a sum over two axes has no order",
)
