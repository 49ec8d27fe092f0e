"""Known wrong solutions of speculative."""

import math

import torch

from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.attention import split_heads
from course_pkg.llama import rope_rotate_pairs
from course_pkg.paged_attention import PagedKVCache
from course_pkg.speculative import (
    LatentAttention,
    QuantisedKVCache,
    QuantisedLinear,
    QuantisedPagedCache,
    SpeculativeCore,
    SpeculativeWriter,
    Speculator,
    accept_or_resample,
    best_draft_length,
    dequantise,
    draw_token,
    expected_tokens,
    pack_int4,
    prompt_lookup,
    quantise,
    rotate,
    unpack_int4,
)


@bug(draw_token, "the most probable token is taken, whatever u is")
def argmax(p, u):
    return int(p.argmax())


@bug(draw_token, "a border counts to the token before it, which may be impossible", classic=True)
def left_border(p, u):
    reached = p.double().cumsum(dim=0)
    return int((reached < u * reached[-1]).sum())


@bug(draw_token, "the weights are taken to sum to one", classic=True)
def not_scaled(p, u):
    return min(int((p.double().cumsum(dim=0) <= u).sum()), len(p) - 1)


@bug(draw_token, "the weights are taken to sum to one")
def not_scaled_at_all(p, u):
    return int((p.double().cumsum(dim=0) <= u).sum())


@bug(draw_token, "the weights are taken to sum to one")
def not_scaled_or_first(p, u):
    return int((p.double().cumsum(dim=0) > u).int().argmax())


mistakes(
    draw_token,
    """
shifted: the sums begin with 0, so that each token gets the number of the next one's share
    reached <= u → reached - p <= u
    .sum()) → .sum()) % len(p)
""",
)


@bug(draw_token, "the token before the right one is taken")
def one_before(p, u):
    return max(draw_token(p, u) - 1, 0)


@bug(draw_token, "the last tokens get the smallest numbers: the sums run backwards")
def backwards(p, u):
    return len(p) - 1 - draw_token(p.flip(0), u)


@bug(draw_token, "the tokens stand in the order of their probabilities, not of their numbers")
def sorted_first(p, u):
    order = p.argsort(descending=True, stable=True)
    return int(order[draw_token(p[order], u)])


@bug(draw_token, "all tokens are equally probable")
def uniform(p, u):
    return int(u * len(p))


@bug(draw_token, "the weights are squared")
def squared(p, u):
    return draw_token(p.square(), u)


def demand_rows(p, q, drafted, u):
    if not len(p) == len(u) == len(q) + 1 == len(drafted) + 1:
        raise ValueError("too few or too many rows")


def residual(p, q, n):
    rest = (p[n] - q[n]).clamp(min=0)
    return rest if rest.any() else p[n]


mistakes(
    accept_or_resample,
    """
* from_p: after a rejection the token is drawn from p, not from what q leaves of it
    residual if residual.any() else p[n] → p[n]
always: every drafted token is accepted
    u[n] * q[n, token] >= p[n, token] → False
* by_p: a token is accepted with probability p, not p / q
    u[n] * q[n, token] >= p[n, token] → u[n] >= p[n, token]
exchanged: a token is accepted with probability q / p: the two are exchanged
    u[n] * q[n, token] >= p[n, token] → u[n] * p[n, token] >= q[n, token]
without_chance: a token is accepted if the target finds it more probable than the draft
    u[n] * q[n, token] >= p[n, token] → p[n, token] < q[n, token]
""",
)

changed(
    accept_or_resample,
    "goes_on",
    "tokens after a rejected one are judged, and kept, too",
    ("accepted, last = k, p[k]", "kept, last = [], p[k]"),
    (
        "u[n] * q[n, token] >= p[n, token]:\n"
        "            residual = (p[n] - q[n]).clamp(min=0)\n"
        "            accepted, last = n, residual if residual.any() else p[n]\n"
        "            break\n",
        "u[n] * q[n, token] < p[n, token]:\n            kept.append(token)\n",
    ),
    ("drafted[:accepted]", "drafted.new_tensor(kept)"),
    classic=True,
)


def each_passes(p, q, drafted, u):
    """Judge all drafts, those after a rejected one too."""
    demand_rows(p, q, drafted, u)
    row = torch.arange(len(drafted))
    return u[:-1] * q[row, drafted] < p[row, drafted]


@bug(accept_or_resample, "tokens after a rejected one are judged, and kept, too", classic=True)
def keeps_all_that_pass(p, q, drafted, u):
    passed = each_passes(p, q, drafted, u)
    rejected = (~passed).nonzero().flatten().tolist()
    last = residual(p, q, rejected[0]) if rejected else p[-1]
    return torch.cat([drafted[passed], drafted.new_tensor([draw_token(last, u[-1])])])


@bug(
    accept_or_resample,
    "all drafts that pass are counted, also those after a rejected one",
    classic=True,
)
def counts_all_that_pass(p, q, drafted, u):
    n = int(each_passes(p, q, drafted, u).sum())
    last = residual(p, q, n) if n < len(drafted) else p[-1]
    return torch.cat([drafted[:n], drafted.new_tensor([draw_token(last, u[-1])])])


def replacing(p, q, drafted, u):
    """Draw another token in the place of each rejected one."""
    passed = each_passes(p, q, drafted, u).tolist()
    return drafted.new_tensor(
        [
            int(token) if passed[n] else draw_token(residual(p, q, n), u[-1])
            for n, token in enumerate(drafted)
        ]
    )


@bug(accept_or_resample, "every rejected token is replaced, not the first alone", classic=True)
def replaces_all(p, q, drafted, u):
    found = replacing(p, q, drafted, u)
    if each_passes(p, q, drafted, u).all():
        return torch.cat([found, found.new_tensor([draw_token(p[-1], u[-1])])])
    return found


@bug(accept_or_resample, "every rejected token is replaced, not the first alone", classic=True)
def replaces_all_and_adds(p, q, drafted, u):
    found = replacing(p, q, drafted, u)
    return torch.cat([found, found.new_tensor([draw_token(p[-1], u[-1])])])


mistakes(
    accept_or_resample,
    """
absolute: the last token is drawn from |p - q|: nothing is cut off at 0
    (p[n] - q[n]).clamp(min=0) → (p[n] - q[n]).abs()
turned: the last token is drawn from max(q - p, 0)
    p[n] - q[n] → q[n] - p[n]
next_row: after a rejection the token is drawn from the row of p after the right one
    p[n] - q[n] → p[n + 1] - q[n]
    residual if residual.any() else p[n] → residual
* same_number: the number that rejected a token also draws the one in its place
    draw_token(last, u[k]) → draw_token(last, u[accepted])
""",
)


@bug(accept_or_resample, "the rejected token is kept, too")
def keeps_rejected(p, q, drafted, u):
    found = accept_or_resample(p, q, drafted, u)
    n = len(found) - 1
    return torch.cat([drafted[:n], drafted[n : n + 1], found[-1:]])[: len(drafted) + 1]


@bug(accept_or_resample, "no token is added when all are accepted", classic=True)
def forgets_one(p, q, drafted, u):
    found = accept_or_resample(p, q, drafted, u)
    return found[:-1] if len(found) == len(drafted) + 1 and len(drafted) else found


@bug(accept_or_resample, "no token is added when all are accepted", classic=True)
def adds_to_rejected_alone(p, q, drafted, u):
    found = accept_or_resample(p, q, drafted, u)
    return found[: len(drafted)] if torch.equal(found[:-1], drafted) else found


@bug(accept_or_resample, "the token after all that are accepted is drawn from the row before")
def row_before(p, q, drafted, u):
    return accept_or_resample(torch.cat([p[:-1], p[-2:-1]]) if len(p) > 1 else p, q, drafted, u)


@bug(accept_or_resample, "the first row of p is skipped: each token is judged by the row after it")
def rows_shifted(p, q, drafted, u):
    return accept_or_resample(torch.cat([p[1:], p[-1:]]), q, drafted, u)


@bug(Speculator, "rejected drafts stay in the caches", classic=True)
class NoRollback(Speculator):
    def rollback(self, length):
        if length == 0:
            super().rollback(length)


@bug(Speculator, "rejected drafts stay in the draft's cache", classic=True)
class TargetOnly(Speculator):
    def rollback(self, length):
        for cache in self.target_caches:
            cache.truncate(min(length, cache.length))


@bug(Speculator, "rejected drafts stay in the target's cache")
class DraftOnly(Speculator):
    def rollback(self, length):
        for cache in self.draft_caches:
            cache.truncate(min(length, cache.length))


@bug(Speculator, "the first layer forgets rejected drafts, the others keep them")
class FirstLayerOnly(Speculator):
    def rollback(self, length):
        for caches in (self.target_caches, self.draft_caches):
            for cache in caches[:1] if length else caches:
                cache.truncate(min(length, cache.length))


@bug(
    Speculator,
    "q has no rows where nothing is drafted, and is not None",
    told_by="q should be None for k = 0",
)
class EmptyRows(Speculator):
    def propose(self, text, k, u):
        drafted, q = super().propose(text, k, u)
        return drafted, torch.zeros(0, 1) if q is None else q


@bug(Speculator, "the caches forget one token too many")
class OneTooMany(Speculator):
    def rollback(self, length):
        super().rollback(max(length - 1, 0))


@bug(Speculator, "the caches keep one token that was rejected")
class OneTooFew(Speculator):
    def rollback(self, length):
        super().rollback(length + 1)


@bug(Speculator, "both caches are emptied after every step")
class Empties(Speculator):
    def rollback(self, length):
        super().rollback(0)


changed(
    Speculator,
    "LastRows",
    "the last k rows of the probabilities are read, and the first of them is missing",
    ("        if q is None:", "        p = torch.cat([p[1:], p[-1:]])\n        if q is None:"),
)

mistakes(
    Speculator,
    """
* FirstRows: the first rows of what the target read are taken, not the last
    [-m - 1 :] → [: m + 1]
* BestDrafts: the draft takes its best tokens, but says that it has drawn them
    draw_token(q[n], u[n]) → int(q[n].argmax())
""",
)

changed(
    Speculator,
    "Certain",
    "the drafts count as certain, although they are drawn from q",
    ("        if q is None:\n            q =", "        q ="),
)

mistakes(
    Speculator,
    """
OneNumber: the drafted tokens are drawn all with the first number
    draw_token(q[n], u[n]) → draw_token(q[n], u[0])
""",
)

changed(
    Speculator,
    "Trusts",
    "what the draft has drawn is kept, without asking the target",
    (
        "accept_or_resample(p, q, drafted, u[k : k + m + 1])",
        "torch.cat([drafted, drafted.new_tensor([draw_token(p[-1], u[k + m])])])",
    ),
)

mistakes(
    Speculator,
    """
* NumbersTwice: the drafts are judged with the numbers that drew them
    u[k : k + m + 1] → torch.cat([u[:k], u[-1:]])[: m + 1]
* NumbersFromTheFirst: the drafts are judged with the numbers that drew them
    u[k : k + m + 1] → u[: m + 1]
""",
)

changed(
    Speculator,
    "OneByOne",
    "the target reads the drafts one by one",
    (
        "        return token_probabilities(model(unread[None], caches)[0], self.temperature)",
        "        parts = unread.split(1) if model is self.target else [unread]\n"
        "        logits = torch.cat([model(part[None], caches)[0] for part in parts])\n"
        "        return token_probabilities(logits, self.temperature)",
    ),
    told_by="Does it read all drafts of a step at once?",
    classic=True,
)


@bug(Speculator, "all drafts come after the text as it was: none reads the one before")
class Blind(Speculator):
    def propose(self, text, k, u):
        if not k:
            return text[:0], None
        q = self.read(self.draft, self.draft_caches, text)[-1:]
        return text.new_tensor([draw_token(q[0], each) for each in u]), q.expand(k, -1)


back = "self.rollback(len(text) + len(tokens) - 1)"
changed(
    Speculator,
    "ForgetsAccepted",
    "the caches forget the accepted drafts, too",
    (back, "self.rollback(len(text))"),
)
changed(
    Speculator,
    "ForgetsAcceptedAndOne",
    "the caches forget the accepted drafts, too",
    (back, "self.rollback(len(text) - 1)"),
)
mistakes(
    Speculator,
    """
CutsToMore: a cache is cut to more tokens than it holds
    cache.truncate(min(length, cache.length)) → cache.truncate(length)
    says: raised ValueError: cannot keep
""",
)
changed(
    Speculator,
    "ReadsTheLastDraft",
    "the draft reads the last token that it drafts, too",
    (
        "        return text[T:], torch.stack",
        "        if k:\n            self.read(self.draft, self.draft_caches, text)\n"
        "        return text[T:], torch.stack",
    ),
)
changed(
    Speculator,
    "ReadsAnew",
    "the draft reads the whole text for each token that it drafts",
    (
        "            q.append(",
        "            self.draft_caches = self.draft.new_caches(1, self.capacity)\n"
        "            q.append(",
    ),
)
noted = "self.history.append((m, len(tokens) - 1))"
changed(
    Speculator,
    "CountsTheTargetsOwn",
    "the history counts the token that the target adds as accepted",
    (noted, "self.history.append((m, len(tokens)))"),
)
changed(
    Speculator,
    "NotesTheLastStep",
    "the history holds the last step alone",
    (noted, "self.history = [(m, len(tokens) - 1)]"),
    told_by="After 6 steps the history should hold 6 entries",
)
changed(
    Speculator,
    "NotesK",
    "the history notes k, not how many tokens were drafted",
    (noted, "self.history.append((k, len(tokens) - 1))"),
)
mistakes(
    Speculator,
    """
NumbersFromM: the numbers for judging begin where the drafts end, not at u_k
    u[k : k + m + 1] → u[m : 2 * m + 1]
""",
)


def demand_limits(k, longest):
    if k < 0 or longest < 1:
        raise ValueError("one is too small")


@bug(
    prompt_lookup,
    "the last tokens are found in their own place, and nothing follows them",
    told_by="Do the last tokens find themselves?",
    classic=True,
)
def finds_itself(tokens, k, longest=3):
    demand_limits(k, longest)
    return []


equivalent(
    Speculator,
    "cache.truncate(min(length, cache.length)) → cache.truncate(min(cache.length, length))",
    "the same minimum",
)
equivalent(
    Speculator,
    "q = functional.one_hot(drafted, p.shape[1]).to(p) → "
    "q = vars(self).setdefault('q', functional.one_hot(drafted, p.shape[1]).to(p))",
    "with a draft model, only a step without drafts comes here: q has no rows",
)
equivalent(
    SpeculativeWriter,
    "m = min(k, end - len(text) - 1) → m = min(end - len(text) - 1, k)",
    "the same minimum",
)
equivalent(
    prompt_lookup,
    "for n in range(min(longest, len(tokens) - 1), 0, -1): → "
    "for n in range(min(len(tokens) - 1, longest), 0, -1):",
    "the same minimum",
)
equivalent(
    prompt_lookup,
    "for n in range(min(longest, len(tokens) - 1), 0, -1): → "
    "for n in range(min(longest, len(tokens) + 1), 0, -1):",
    "no start is tried for runs as long as the text",
)

mistakes(
    prompt_lookup,
    """
first_place: the first place counts, not the latest
    reversed(range(len(tokens) - n)) → range(len(tokens) - n)
* with_the_match: the guess begins with the tokens that were looked for
    range(start + n, start + n + k) → range(start, start + k)
* shortest: a single token is looked for first, not the longest run
    range(min(longest, len(tokens) - 1), 0, -1) → range(1, min(longest, len(tokens) - 1) + 1)
only_longest: only the longest run is looked for
    range(min(longest, len(tokens) - 1), 0, -1) → [longest] if longest < len(tokens) else []
ends_early: the guess ends where the text ends
    range(start + n, start + n + k) → range(start + n, min(start + n + k, len(tokens)))
not_longest: runs of one token less than `longest` are the longest
    min(longest, len(tokens) - 1) → min(max(longest - 1, 1), len(tokens) - 1)
no_overlap: places that overlap with the last tokens are left out
    range(len(tokens) - n) → range(len(tokens) - 2 * n + 1)
one_less: one token less than k is guessed
    start + n + k) → start + n + k - 1)
two_at_least: a single token is never looked for
    , 0, -1) → , 1, -1)
""",
)

mistakes(
    SpeculativeWriter,
    """
* TooMany: the last step may add more tokens than were asked for
    min(k, end - len(text) - 1) → k
* OneTooManyAtLast: the last step may add more tokens than were asked for
    min(k, end - len(text) - 1) → min(k, end - len(text))
""",
)

changed(
    SpeculativeWriter,
    "CutsOff",
    "the last step drafts more than can be kept, and the text is cut",
    ("min(k, end - len(text) - 1)", "k"),
    ("return text\n", "return text[:end]\n"),
    classic=True,
)

changed(
    SpeculativeWriter,
    "CutsOffOne",
    "the last step drafts more than can be kept, and the text is cut",
    ("min(k, end - len(text) - 1)", "min(k, end - len(text))"),
    ("return text\n", "return text[:end]\n"),
    classic=True,
)

changed(
    SpeculativeWriter,
    "StaysFull",
    "the caches of the last text are not emptied",
    ("        self.rollback(0)\n", ""),
)

mistakes(
    SpeculativeWriter,
    """
OneDraftLess: no step drafts as many tokens as it may
    min(k, end - len(text) - 1) → max(min(k, end - len(text) - 1) - 1, 0)
""",
)

changed(
    SpeculativeWriter,
    "SameNumbers",
    "the same numbers are drawn in every step",
    (
        "            u = torch.rand",
        "            seed = generator.initial_seed() if generator else 0\n"
        "            generator = torch.Generator().manual_seed(seed)\n"
        "            u = torch.rand",
    ),
)

mistakes(
    SpeculativeWriter,
    """
OtherGenerator: the generator is ignored
    2 * m + 1, generator=generator → 2 * m + 1
""",
)


@bug(SpeculativeWriter, "a step counts as one token")
class CountsSteps(SpeculativeWriter):
    def __init__(self, target, draft, capacity, temperature=1.0):
        super().__init__(target, draft, capacity + 99, temperature)

    def speculative_generate(self, text, count, k, generator=None):
        self.rollback(0)
        for _ in range(count):
            u = torch.rand(2 * k + 1, generator=generator, dtype=torch.float64)
            text = torch.cat([text, self.speculative_step(text, k, u)])
        return text


@bug(SpeculativeWriter, "the history counts the drafts that were asked for, not those found")
class CountsWhatWasAskedFor(SpeculativeWriter):
    def speculative_step(self, text, k, u):
        tokens = super().speculative_step(text, k, u)
        self.history[-1] = k, self.history[-1][1]
        return tokens


changed(
    SpeculativeWriter,
    "OnlyNew",
    "only the new tokens are returned",
    ("return text\n", "return text[end - count :]\n"),
)

mistakes(
    SpeculativeWriter,
    """
NoLookup: without a draft model nothing is drafted
    text.new_tensor(prompt_lookup(text.tolist(), k)) → text[:0]
""",
)


@bug(SpeculativeWriter, "drafts from the text count as drawn from all tokens alike", classic=True)
class UniformLookup(SpeculativeWriter):
    def propose(self, text, k, u):
        drafted, q = super().propose(text, k, u)
        if q is None and len(drafted):
            V = self.target[2].shape[1] if isinstance(self.target, tuple) else 2048
            q = torch.full((len(drafted), V), 1 / V, dtype=torch.float64)
        return drafted, q


changed(
    SpeculativeWriter,
    "LooksUpAsManyAsItDrafts",
    "the text is searched for a run of as many tokens as are drafted",
    (
        "text.new_tensor(prompt_lookup(text.tolist(), k))",
        "torch.tensor(prompt_lookup(text.tolist(), k, max(k, 1)), dtype=torch.long)",
    ),
)


@bug(SpeculativeWriter, "only the target's cache is emptied before a new text")
class EmptiesTheTargets(SpeculativeWriter):
    def rollback(self, length):
        for cache in self.target_caches + (self.draft_caches if length else []):
            cache.truncate(min(length, cache.length))


@bug(
    SpeculativeWriter,
    "the history begins anew with every text",
    told_by="steps the history should hold",
)
class ForgetsHistory(SpeculativeWriter):
    def speculative_generate(self, text, count, k, generator=None):
        self.history.clear()
        return super().speculative_generate(text, count, k, generator)


drawn = "torch.rand(2 * m + 1, generator=generator, dtype=torch.float64)"
changed(
    SpeculativeWriter,
    "DrawsForK",
    "each step draws 2 k + 1 numbers, also where fewer tokens are to come",
    (drawn, drawn.replace("m", "k")),
)
changed(
    SpeculativeWriter,
    "DrawsSingle",
    "the numbers are drawn in float32",
    (drawn, "torch.rand(2 * m + 1, generator=generator)"),
)
changed(
    SpeculativeWriter,
    "EmptiesFirst",
    "the caches are emptied before a text is refused",
    (
        "        end = len(text) + count\n",
        "        self.rollback(0)\n        end = len(text) + count\n",
    ),
    told_by="After a text of 10 tokens comes one that is refused",
)
mistakes(
    SpeculativeWriter,
    """
EmptyFloats: a guess of no tokens is a tensor of float32
    text.new_tensor(prompt → torch.tensor(prompt
    says: should be torch.int64 as the text is
RoomForTheLast: the last token is to have room, though nobody reads it
    end - 1 > self.capacity → end > self.capacity
    says: as its last token is never read
""",
)


@bug(SpeculativeWriter, "q is 1 for every token, not for the drafted one alone")
class CertainOfAll(SpeculativeWriter):
    def speculative_step(self, text, k, u):
        drafted, q = self.propose(text, k, u[:k])
        m = len(drafted)
        p = self.read(self.target, self.target_caches, torch.cat([text, drafted]))[-m - 1 :]
        q = torch.ones_like(p[:m]) if q is None else q
        tokens = accept_or_resample(p, q, drafted, u[k : k + m + 1])
        self.rollback(len(text) + len(tokens) - 1)
        self.history.append((m, len(tokens) - 1))
        return tokens


def demand_chance(alpha, k):
    if not 0 <= alpha <= 1 or k < 0:
        raise ValueError("out of range")


@bug(expected_tokens, "the token that the target draws itself is not counted", classic=True)
def without_own(alpha, k):
    return expected_tokens(alpha, k) - 1


@bug(expected_tokens, "the power of α is k, not k + 1")
def smaller_power(alpha, k):
    demand_chance(alpha, k)
    return k if alpha == 1 else (1 - alpha**k) / (1 - alpha)


@bug(expected_tokens, "a draft is counted even if one before it was rejected", classic=True)
def linear(alpha, k):
    demand_chance(alpha, k)
    return 1 + k * alpha


@bug(expected_tokens, "the number of drafts is taken to be without end")
def endless(alpha, k):
    demand_chance(alpha, k)
    return k + 1 if alpha == 1 else 1 / (1 - alpha)


@bug(expected_tokens, "the sum is not divided by 1 - α")
def not_divided(alpha, k):
    demand_chance(alpha, k)
    return k + 1 if alpha == 1 else 1 - alpha ** (k + 1)


@bug(expected_tokens, "only the case counts in which all drafts are accepted")
def all_or_one(alpha, k):
    demand_chance(alpha, k)
    return 1 + k * alpha**k


@bug(expected_tokens, "α is the probability of a rejection")
def rejected(alpha, k):
    return expected_tokens(1 - alpha, k)


@bug(
    expected_tokens,
    "1 - α is divided by also where it is 0",
    told_by="raised ZeroDivisionError",
    classic=True,
)
def divides_by_zero(alpha, k):
    demand_chance(alpha, k)
    return (1 - alpha ** (k + 1)) / (1 - alpha)


@bug(expected_tokens, "the mean is rounded to a whole number")
def rounded(alpha, k):
    return round(expected_tokens(alpha, k))


def demand_cost(alpha, cost):
    if cost < 0 or not 0 <= alpha <= 1:
        raise ValueError("out of range")


def longest_of(value, first=0):
    """Make a wrong `best_draft_length` that maximises another value."""

    def wrong(alpha, cost, most=32):
        demand_cost(alpha, cost)
        return max(range(min(first, most), most + 1), key=lambda k: value(alpha, cost, k))

    return wrong


@bug(best_draft_length, "the cost of the drafts is left out", classic=True)
def free_drafts(alpha, cost, most=32):
    demand_cost(alpha, cost)
    return most if alpha > 0 else 0


@bug(best_draft_length, "the target's own pass is left out of the time")
def only_drafts(alpha, cost, most=32):
    return longest_of(lambda a, c, k: expected_tokens(a, k) / (k * c) if k * c else 0.0)(
        alpha, cost, most
    )


@bug(best_draft_length, "at least one token is drafted, even where it does not pay", classic=True)
def at_least_one(alpha, cost, most=32):
    return longest_of(lambda a, c, k: expected_tokens(a, k) / (k * c + 1), 1)(alpha, cost, most)


@bug(best_draft_length, "at least one token is drafted, even where it does not pay", classic=True)
def from_one(alpha, cost, most=32):
    demand_cost(alpha, cost)
    return max(range(1, most + 1), key=lambda k: expected_tokens(alpha, k) / (k * cost + 1))


@bug(best_draft_length, "at least one token is drafted, even where it does not pay", classic=True)
def never_none(alpha, cost, most=32):
    return max(best_draft_length(alpha, cost, most), 1)


@bug(best_draft_length, "the time is subtracted from the tokens, not divided by")
def difference(alpha, cost, most=32):
    return longest_of(lambda a, c, k: expected_tokens(a, k) - (k * c + 1))(alpha, cost, most)


@bug(best_draft_length, "the target's own token is left out of the tokens")
def without_own_token(alpha, cost, most=32):
    return longest_of(lambda a, c, k: (expected_tokens(a, k) - 1) / (k * c + 1))(alpha, cost, most)


@bug(best_draft_length, "drafts count as accepted independently of those before them")
def linear_length(alpha, cost, most=32):
    return longest_of(lambda a, c, k: (1 + k * a) / (k * c + 1))(alpha, cost, most)


@bug(best_draft_length, "`most` itself is not considered")
def below_most(alpha, cost, most=32):
    return best_draft_length(alpha, cost, max(most - 1, 0))


@bug(best_draft_length, "of several best lengths the longest is taken")
def longest_of_several(alpha, cost, most=32):
    demand_cost(alpha, cost)
    value = [expected_tokens(alpha, k) / (k * cost + 1) for k in range(most + 1)]
    return max(k for k in range(most + 1) if value[k] >= max(value) * (1 - 1e-12))


@bug(best_draft_length, "a step costs k + 1 passes of the draft")
def one_more_pass(alpha, cost, most=32):
    return longest_of(lambda a, c, k: expected_tokens(a, k) / ((k + 1) * c + 1))(alpha, cost, most)


changed(
    SpeculativeCore,
    "NoCut",
    "blocks of rejected drafts are not given back",
    ("        self.scheduler.cut(number)\n", ""),
    classic=True,
)

changed(
    SpeculativeCore,
    "NamesFirst",
    "blocks are named before the table is cut",
    (
        "        self.scheduler.cut(number)\n"
        "        self.scheduler.advance(number, sequence.num_computed)\n",
        "        self.scheduler.advance(number, sequence.num_computed)\n"
        "        self.scheduler.cut(number)\n",
    ),
    classic=True,
)

changed(
    SpeculativeCore,
    "CutsTooSeldom",
    "the table is cut only if fewer tokens are added than were drafted",
    (
        "        self.scheduler.cut(number)\n",
        "        if len(tokens) < self.k:\n            self.scheduler.cut(number)\n",
    ),
)

mistakes(
    SpeculativeCore,
    """
WholePrefixes: the tokens before a draft are computed once more with each of them
    ([token], middle + n, blocks) → (tokens + drafted[: n + 1], start, blocks)
    says: The pieces of positions 9 to 11 should be
""",
)


@bug(SpeculativeCore, "the blocks that the plan says are not copied")
class NoCopies(SpeculativeCore):
    def step(self):
        self.runner.copy = lambda copies: None
        return super().step()


mistakes(
    SpeculativeCore,
    """
AcceptsAll: every draft is accepted
    accept_or_resample(p, q, tokens, u).tolist() → [*drafted, draw_token(p[-1], u[-1])]
""",
)

changed(
    SpeculativeCore,
    "AllOrNone",
    "of each sequence's drafts, all or none are accepted",
    (
        ".tolist()\n        if",
        ".tolist()\n"
        "        if len(new) < len(p):\n"
        "            new = [draw_token(p[0], u[-1])] if p[0].max() < 1 else [int(p[0].argmax())]\n"
        "        if",
    ),
)

changed(
    SpeculativeCore,
    "AsTheFirst",
    "as many tokens are accepted of every sequence as of the first",
    ("drafts = self.drafts()", "drafts, self.first = self.drafts(), None"),
    (
        ".tolist()\n        if",
        ".tolist()\n"
        "        self.first = self.first or len(new)\n"
        "        new = new[: self.first]\n"
        "        if",
    ),
    classic=True,
)

mistakes(
    SpeculativeCore,
    """
TooEarly: drafts stand one position too early, over the last token
    middle + n, blocks → middle + n - 1, blocks
SamePlace: all drafts stand at the same position
    middle + n, blocks → middle, blocks
""",
)

changed(
    SpeculativeCore,
    "OnePiece",
    "the drafts are one piece with the tokens before them, and only the last has logits",
    (
        "        return [\n            (tokens, start, blocks),",
        "        return [(tokens + drafted, start, blocks)]\n"
        "        return [\n"
        "            (tokens, start, blocks),",
    ),
    told_by="is each draft a piece by itself",
    classic=True,
)

mistakes(
    SpeculativeCore,
    """
* PastTheStop: a stop token is looked for only in the last place
    if sampling.stop in new: → if False:
NeverAtZero: a stop token of 0 counts as none
    if sampling.stop in new: → if sampling.stop and sampling.stop in new:
""",
)

changed(
    SpeculativeCore,
    "OtherRandomness",
    "the numbers do not come from the sequence's generator",
    (
        "        new = accept",
        "        other = torch.Generator().manual_seed(len(u))\n"
        "        u = torch.rand(u.shape, generator=other).double()\n"
        "        new = accept",
    ),
)

changed(
    SpeculativeCore,
    "ForgetsGenerator",
    "the generator that has drawn is not kept: each step draws the same numbers",
    ("        sequence.generator = generator\n", ""),
)

mistakes(
    SpeculativeCore,
    """
Temperature1: drafts are judged at temperature 1
    settings = sampling.temperature, → settings = float(sampling.temperature > 0),
AllTokens: drafts are judged without top_k and top_p
    token_probabilities(logits, *settings) → token_probabilities(logits, settings[0])
""",
)

changed(
    SpeculativeCore,
    "BestOnly",
    "a draft is accepted if it is the target's best token, also when sampling",
    (
        "new = accept_or_resample(p, q, tokens, u).tolist()",
        "best = p.argmax(dim=1).tolist()\n"
        "        n = next((n for n, x in enumerate(drafted) if x != best[n]), len(drafted))\n"
        "        new = [*drafted[:n], draw_token(p[n], u[-1])]",
    ),
)


copied = "            self.runner.copy(plan.copies)\n"
changed(
    SpeculativeCore,
    "CopiesLate",
    "blocks are copied after the model has written into them",
    (copied, ""),
    ("            rows = dict(zip(", f"{copied}            rows = dict(zip("),
)
changed(
    SpeculativeCore,
    "OneCallEach",
    "the runner is called for each sequence by itself",
    (
        "            logits = self.runner.forward([piece for each in pieces for piece in each])\n"
        "            rows = dict(zip(numbers, logits.split([*map(len, pieces)]), strict=True))",
        "            rows = {n: self.runner.forward(each) for n, each in zip(numbers, pieces)}",
    ),
    told_by="one call of the model should compute",
)
mistakes(
    SpeculativeCore,
    """
BehindThePlan: drafts stand behind the positions that are planned for them
    middle + n, blocks) → stop + n, blocks)
""",
)
numbers = "generator=generator, dtype=torch.float64)"
changed(
    SpeculativeCore,
    "OwnGenerator",
    "the sequence's own generator draws, and not its copy",
    (numbers, "generator=self.sequences[number].generator, dtype=torch.float64)"),
)
changed(
    SpeculativeCore,
    "SingleNumbers",
    "the numbers are drawn in float32",
    (numbers, "generator=generator)"),
)
mistakes(
    SpeculativeCore,
    """
DropsTheStop: the stop token is dropped as well
    new.index(sampling.stop) + 1 → new.index(sampling.stop)
""",
)
settled = (
    "        sequence.num_computed = len(sequence.tokens) - 1\n        self.scheduler.cut(number)\n"
    "        self.scheduler.advance(number, sequence.num_computed)\n"
)
changed(
    SpeculativeCore,
    "ComputedToTheLast",
    "the last token counts as computed, though nobody has read it",
    (settled, settled.replace(" - 1", "")),
)
changed(
    SpeculativeCore,
    "CutsFirst",
    "the table is cut before the tokens are added and computed is set",
    (
        "sequence.generator = generator\n",
        "self.scheduler.cut(number)\n        sequence.generator = generator\n",
    ),
    (settled, settled.replace("        self.scheduler.cut(number)\n", "")),
)
changed(
    SpeculativeCore,
    "NeverEnds",
    "a sequence that has all its tokens does not end",
    ("        self.finish(number)\n", ""),
)
changed(
    SpeculativeCore,
    "NamesNothing",
    "the blocks that are full get no names",
    ("        self.scheduler.advance(number, sequence.num_computed)\n", ""),
    told_by="which blocks are named?",
)
changed(
    SpeculativeCore,
    "AddsTheFirst",
    "only the first of the new tokens is added to the sequence",
    (
        "for token in tokens:\n            self.scheduler",
        "for token in tokens[:1]:\n            self.scheduler",
    ),
)
mistakes(
    SpeculativeCore,
    """
TellsTheLast: only the last of the new tokens is returned
    return [(number, token) for token in tokens] → return [(number, tokens[-1])]
""",
)
cut_at_stop = "new[: new.index(sampling.stop) + 1]"
changed(
    SpeculativeCore,
    "LastStop",
    "tokens are dropped behind the last stop token, not behind the first",
    (cut_at_stop, "new[: len(new) - new[::-1].index(sampling.stop)]"),
)
one_hot = "q = functional.one_hot(tokens, p.shape[1]).to(p)\n"
changed(
    SpeculativeCore,
    "DraftsInEachRow",
    "every row of q has a 1 at all drafted tokens, not only at its own",
    (one_hot, "q = torch.zeros(len(drafted), p.shape[1]).to(p)\n        q[:, tokens] = 1\n"),
)
changed(
    SpeculativeCore,
    "UniformDrafts",
    "the drafts count as drawn from all tokens alike, not as certain",
    (one_hot, "q = torch.full((len(drafted), p.shape[1]), 1 / p.shape[1]).to(p)\n"),
)
mistakes(
    SpeculativeCore,
    """
BehindOne: drafts stand behind the first of the sequence's own tokens, as if there were only one
    middle + n, blocks) → start + 1 + n, blocks)
""",
)
changed(
    SpeculativeCore,
    "FinishesFirst",
    "a sequence ends before the blocks that it has filled get their names",
    ("        self.finish(number)\n", ""),
    (
        settled,
        "        self.finish(number)\n        if sequence.reason is None:\n"
        + settled.replace("        s", "            s"),
    ),
    told_by="which blocks are named?",
)
changed(
    SpeculativeCore,
    "KeepsGenerator",
    "`judge` gives the sequence the generator that has drawn, before the step has succeeded",
    (
        "        new = accept_or_resample(",
        "        self.sequences[number].generator = generator\n        new = accept_or_resample(",
    ),
)
changed(
    SpeculativeCore,
    "ComputesAgain",
    "drafts that were accepted do not stay computed",
    (settled, settled.replace("len(sequence.tokens) - 1", "len(sequence.tokens) - len(tokens)")),
)
changed(
    SpeculativeCore,
    "AdvancesFirst",
    "blocks are named before the tokens are added",
    (
        "sequence.generator = generator\n",
        "sequence.generator = generator\n"
        "        sequence.num_computed = len(sequence.tokens) + len(tokens) - 1\n"
        "        self.scheduler.cut(number)\n"
        "        self.scheduler.advance(number, sequence.num_computed)\n",
    ),
    (settled, ""),
    told_by="which blocks are named?",
)
changed(
    SpeculativeCore,
    "OldGenerator",
    "the generator that has drawn is not kept: each step draws the same numbers",
    ("        sequence.generator = generator\n", ""),
)


# quantise


mistakes(
    quantise,
    """
* levels: the range is divided by 2^bits, not by the steps between 2^bits integers
    low, high = 0, 2**bits - 1 → low, high = 0, 2**bits
""",
)

changed(
    quantise,
    "one_more",
    "max |X| is divided by 2^(bits-1), so that the largest number has no integer",
    (
        "low, high = 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1",
        "low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)",
    ),
)

mistakes(
    quantise,
    """
levels_cut: the range is divided by 2^bits, not by the steps between 2^bits integers
    - zero) / high → - zero) / 2**bits
levels_of_both: the range is divided by 2^bits, not by the steps between 2^bits integers
    keepdim=True) / high → keepdim=True) / (high + 1)
    - zero) / high → - zero) / (high + 1)
* downwards: numbers are rounded down, not to the nearest integer
    torch.round( → torch.floor(
towards_zero: numbers are rounded towards zero, not to the nearest integer
    torch.round( → torch.trunc(
""",
)

changed(
    quantise,
    "divides_by_zero",
    "a scale of 0 is divided by, and not replaced by 1",
    ("    scale = torch.where(scale == 0, 1, scale)\n", ""),
    classic=True,
)

mistakes(
    quantise,
    """
epsilon: a small number is added to every scale, so that none is 0
    torch.where(scale == 0, 1, scale) → scale + 1e-5
""",
)

changed(
    quantise,
    "complement",
    "dims are taken for the axes that have scales of their own",
    (
        "    precise = X",
        "    else:\n"
        "        others = set(range(X.dim())) - {dim % X.dim() for dim in dims}\n"
        "        dims = tuple(others) or dims\n"
        "    precise = X",
    ),
    classic=True,
)

changed(
    quantise,
    "always_all",
    "there is one scale for the whole tensor, whatever dims says",
    ("    precise = X", "    else:\n        dims = tuple(range(X.dim()))\n    precise = X"),
)

mistakes(
    quantise,
    """
holds_zero: the range is made to hold 0, as torch's own types do
    precise.amin(dims, keepdim=True) → precise.amin(dims, keepdim=True).clamp(max=0)
""",
)

changed(
    quantise,
    "whole_zero",
    "the zero point is rounded to a whole number of steps",
    (
        "scale = torch.where(scale == 0, 1, scale)\n",
        "scale = torch.where(scale == 0, 1, scale)\n    zero = (zero / scale).round() * scale\n",
    ),
)

mistakes(
    quantise,
    """
without_size: a symmetric scale is made of the largest number, not of the largest in size
    precise.abs().amax(dims, keepdim=True) → precise.amax(dims, keepdim=True)
no_sign: integers with a sign are kept in a dtype without one
    Q.to(torch.int8 if symmetric else torch.uint8) → Q.remainder(256).to(torch.uint8)
""",
)

changed(
    quantise,
    "with_sign",
    "integers from 0 to 255 are kept in int8, where those from 128 on become negative",
    (
        "Q.to(torch.int8 if symmetric else torch.uint8)",
        "Q.to(torch.int8 if symmetric else torch.uint8).view(torch.int8)",
    ),
)

mistakes(
    quantise,
    """
floats: the integers stay floating-point numbers
    Q.to(torch.int8 if symmetric else torch.uint8) → Q.to(X.dtype)
    says: should hold whole numbers
""",
)

changed(
    quantise,
    "far_apart",
    "a group is made of numbers that are far apart, not of neighbours",
    (
        "X.unflatten(axis, (shape[axis] // group, group)), (axis + 1,)",
        "X.unflatten(axis, (group, shape[axis] // group)), (axis,)",
    ),
    ("scale.squeeze(axis + 1), zero.squeeze(axis + 1)", "scale.squeeze(axis), zero.squeeze(axis)"),
    classic=True,
)

mistakes(
    quantise,
    """
how_many: group is taken for how many groups there are
    (shape[axis] // group, group) → (group, shape[axis] // group)
no_groups: group is not used
    X, dims = X.unflatten(axis, (shape[axis] // group, group)), (axis + 1,) → group = None
""",
)

changed(
    quantise,
    "never_symmetric",
    "symmetric is not used: there always is a zero point",
    ("    if not 2 <= bits", "    symmetric = False\n    if not 2 <= bits"),
)

changed(
    quantise,
    "eight_bits",
    "there always are 8 bits",
    ("    shape, dims =", "    bits = 8\n    shape, dims ="),
)

changed(
    quantise,
    "unrounded",
    "q is computed with a scale that half precision does not hold",
    ("    scale, zero = scale.to(X.dtype), zero.to(X.dtype)\n", ""),
    (".reshape(shape), scale, zero", ".reshape(shape), scale.to(X.dtype), zero.to(X.dtype)"),
)


# The same mistakes in the forms that differ in what keeps q within its range.
clamped = "clamp(low, high)"
not_kept = f".{clamped}", ""
below = clamped, "clamp(-high - 1 if symmetric else 0, high)"
guarded = "    scale = torch.where(scale == 0, 1, scale)\n", ""
in_size = "precise.abs().amax(dims, keepdim=True)", "precise.amax(dims, keepdim=True)"
more_steps = "keepdim=True) / high", "keepdim=True) / 2 ** (bits - 1)"
changed(quantise, "never_clamps", "q is not kept within its range", not_kept)
changed(
    quantise,
    "divides_by_zero_unclamped",
    "a scale of 0 is divided by, and not replaced by 1",
    guarded,
    not_kept,
    classic=True,
)
changed(
    quantise,
    "levels_unclamped",
    "the range is divided by 2^bits, not by the steps between 2^bits integers",
    ("- zero) / high", "- zero) / 2**bits"),
    more_steps,
    not_kept,
    classic=True,
)
changed(
    quantise,
    "one_more_clamped",
    "max |X| is divided by 2^(bits-1), so that the largest number has no integer",
    more_steps,
)
changed(
    quantise,
    "far_apart_unclamped",
    "a group is made of numbers that are far apart, not of neighbours",
    (
        "X.unflatten(axis, (shape[axis] // group, group)), (axis + 1,)",
        "X.unflatten(axis, (group, shape[axis] // group)), (axis,)",
    ),
    ("scale.squeeze(axis + 1), zero.squeeze(axis + 1)", "scale.squeeze(axis), zero.squeeze(axis)"),
    not_kept,
    classic=True,
)
for name, kept in (("unclamped", not_kept), ("clamped_below", below)):
    changed(
        quantise,
        f"without_size_{name}",
        "a symmetric scale is made of the largest number, not of the largest in size",
        in_size,
        kept,
    )
for name, kept in (("", (clamped, clamped)), ("_unclamped", not_kept)):
    changed(
        quantise,
        f"in_half{name}",
        "half precision is computed in half precision, not in float32",
        ("X.to(torch.promote_types(X.dtype, torch.float32))", "X"),
        kept,
    )

changed(
    quantise,
    "any_bits",
    "any number of bits is accepted",
    (
        "    if not 2 <= bits <= 8:\n"
        '        raise ValueError(f"an integer must have 2 to 8 bits, got {bits}")\n',
        "    bits = min(max(bits, 2), 8)\n",
    ),
    told_by="should raise ValueError when bits is",
)


equivalent(
    quantise,
    "precise = X.to(torch.promote_types(X.dtype, torch.float32)) → "
    "precise = X.to(torch.promote_types(torch.float32, X.dtype))",
    "the wider of two types is the same in either order",
)


# dequantise


mistakes(
    dequantise,
    """
* zero_first: the zero point is added to the integer, before the scale
    Q.to(scale.dtype) * scale + zero → (Q.to(scale.dtype) + zero) * scale
torchs: the zero point is subtracted from the integer, as in torch's own types
    Q.to(scale.dtype) * scale + zero → (Q.to(scale.dtype) - zero) * scale
minus_zero: the zero point is subtracted
    * scale + zero → * scale - zero
no_zero: the zero point is left out
    * scale + zero → * scale
divided: integers are divided by the scale
    * scale + zero → / scale + zero
""",
)

changed(
    dequantise,
    "take_turns",
    "the scales of the groups take turns, one integer after the other",
    (
        "scale.repeat_interleave(size // parts, dim=axis)",
        "torch.cat([scale] * (size // parts), dim=axis)",
    ),
    (
        "zero.repeat_interleave(size // parts, dim=axis)",
        "torch.cat([zero] * (size // parts), dim=axis)",
    ),
    classic=True,
)

mistakes(
    dequantise,
    """
zeros_take_turns: the scales of groups reach their neighbours, but the zero points take turns
    zero.repeat_interleave(size // parts, dim=axis) → torch.cat([zero] * (size // parts), dim=axis)
first_only: all groups get the scale and zero point of the first
    scale.repeat_interleave(size // parts, dim=axis) → scale.narrow(axis, 0, 1)
    zero.repeat_interleave(size // parts, dim=axis) → zero.narrow(axis, 0, 1)
""",
)

changed(
    dequantise,
    "without_sign",
    "the sign of the integers is lost",
    ("return Q.to", "Q = Q.view(torch.uint8) if Q.dtype == torch.int8 else Q\n    return Q.to"),
)

changed(
    dequantise,
    "as_int8",
    "integers from 128 on are read as negative",
    ("return Q.to", "Q = Q.view(torch.int8) if Q.dtype == torch.uint8 else Q\n    return Q.to"),
)


@bug(dequantise, "the result always is float32", told_by="X̂ should be torch.float64, yours is")
def always_single(Q, scale, zero):
    return dequantise(Q, scale, zero).float()


@bug(
    dequantise,
    "scales that cannot be shared equally are shared all the same",
    told_by="2 scales are for 7 integers",
)
def shares_anyway(Q, scale, zero):
    for axis, (size, parts) in enumerate(zip(Q.shape, scale.shape, strict=True)):
        if parts not in (1, size):
            times = -(-size // parts)
            scale, zero = (
                part.repeat_interleave(times, dim=axis).narrow(axis, 0, size)
                for part in (scale, zero)
            )
    return Q.to(scale.dtype) * scale + zero


equivalent(
    dequantise,
    "if parts not in (1, size): → if parts not in (size, 1):",
    "the order of what is compared with does not matter",
)


# pack_int4 and unpack_int4


mistakes(
    pack_int4,
    """
* high_first: the first of two neighbours is put into the high four bits
    Q[..., 0::2] | Q[..., 1::2] << 4 → Q[..., 0::2] << 4 | Q[..., 1::2]
""",
)

changed(
    pack_int4,
    "by_halves",
    "an integer is packed with one half an axis away, not with its neighbour",
    (
        "return Q[..., 0::2] | Q[..., 1::2] << 4",
        "low, high = Q.chunk(2, dim=-1) if Q.shape[-1] else (Q, Q)\n    return low | high << 4",
    ),
    classic=True,
)

changed(
    pack_int4,
    "not_shifted",
    "the second of two neighbours is not shifted, and both lie in the low four bits",
    (" << 4", ""),
)

mistakes(
    pack_int4,
    """
fifteen: the second of two neighbours is multiplied by 15, not by 16
    | Q[..., 1::2] << 4 → + 15 * Q[..., 1::2]
drops_second: only the first of two neighbours is kept
    Q[..., 0::2] | Q[..., 1::2] << 4 → Q[..., 0::2].clone()
one_row: all bytes come in a single row
    Q[..., 0::2] | Q[..., 1::2] << 4 → (Q[..., 0::2] | Q[..., 1::2] << 4).flatten()
""",
)


@bug(pack_int4, "the bytes are kept in int64", told_by="should be torch.uint8, not torch.int64")
def wide_bytes(Q):
    return pack_int4(Q).long()


@bug(
    pack_int4,
    "an integer is added to a row of odd length",
    told_by="when the last axis has 7 integers",
)
def pads(Q):
    if Q.shape[-1] % 2:
        Q = torch.cat([Q, torch.zeros_like(Q[..., :1])], dim=-1)
    return pack_int4(Q)


@bug(
    pack_int4,
    "of larger integers the low four bits are kept",
    told_by="should raise ValueError when an integer is 16",
)
def masks(Q):
    if Q.shape[-1] % 2:
        raise ValueError("an odd length")
    return pack_int4(Q & 15)


@bug(
    pack_int4,
    "integers below 0 are accepted",
    told_by="should raise ValueError when an integer is -1",
)
def accepts_signs(Q):
    return pack_int4(torch.where(Q < 0, Q & 15, Q))


@bug(unpack_int4, "the high four bits come first", classic=True)
def high_bits_first(packed):
    return torch.stack([packed >> 4, packed & 15], dim=-1).flatten(-2)


@bug(unpack_int4, "all low halves of bytes come first, and then all high ones", classic=True)
def all_low_first(packed):
    return torch.cat([packed & 15, packed >> 4], dim=-1)


@bug(unpack_int4, "the high four bits are not shifted down")
def stays_high(packed):
    return torch.stack([packed & 15, packed & 240], dim=-1).flatten(-2)


@bug(unpack_int4, "the low four bits are not cut off from the byte")
def whole_byte(packed):
    return torch.stack([packed, packed >> 4], dim=-1).flatten(-2)


@bug(unpack_int4, "integers from 8 on are read as negative")
def signed_nibbles(packed):
    Q = unpack_int4(packed).to(torch.int8)
    return torch.where(Q > 7, Q - 16, Q)


@bug(unpack_int4, "the low four bits are read twice")
def low_twice(packed):
    return torch.stack([packed & 15, packed & 15], dim=-1).flatten(-2)


@bug(unpack_int4, "the bytes are divided by 15 and not by 16")
def fifteenths(packed):
    return torch.stack([packed % 15, packed // 15], dim=-1).flatten(-2)


@bug(unpack_int4, "the two integers of a byte get an axis of their own")
def own_axis(packed):
    return torch.stack([packed & 15, packed >> 4], dim=-1)


@bug(unpack_int4, "all integers come in a single row")
def one_long_row(packed):
    return unpack_int4(packed).flatten()


@bug(unpack_int4, "the integers are int64", told_by="should be torch.uint8, not torch.int64")
def wide_integers(packed):
    return unpack_int4(packed).long()


# QuantisedKVCache


class VariedQuantised(QuantisedKVCache):
    """A cache whose parts the bugs below vary; it keeps what would be read, and no integers."""

    def __init__(self, B, G, capacity, D_h, bits=8, group=32, dtype=torch.float16, device="cpu"):
        if bits not in (4, 8) or (bits == 4 and D_h % 2):
            raise ValueError("so few bits cannot be packed")
        self.bits, self.group, self.dtype = bits, group, dtype
        self.capacity, self.sizes, self.length = capacity, (B, G, D_h), 0
        self.keys = torch.zeros(B, G, capacity, D_h, dtype=dtype)
        self.values = torch.zeros(B, G, capacity, D_h, dtype=dtype)

    @property
    def bytes(self):
        B, G, _ = self.sizes
        return B * G * (self.integers() + self.dtype.itemsize * (self.scales() + self.rest()))

    def integers(self):
        groups = self.capacity // self.group * self.group
        return (self.capacity + groups) * self.sizes[2] * self.bits // 8

    def scales(self):
        return 2 * self.capacity + self.capacity // self.group * self.sizes[2] * 2

    def rest(self):
        return self.group * self.sizes[2]

    def demand(self, K, V):
        B, G, D_h = self.sizes
        T = K.shape[-2]
        if K.shape != (B, G, T, D_h) or V.shape != K.shape:
            raise ValueError("these have another shape")
        if self.length + T > self.capacity:
            raise ValueError("they do not fit")

    def key_scales(self, keys):
        return dequantise(*quantise(keys, self.bits, 2, self.group))

    def value_scales(self, V):
        return dequantise(*quantise(V, self.bits, 3))

    def plain(self, X):
        return X.detach().to(self.dtype)

    def append(self, K, V):
        self.demand(K, V)
        K, V = self.plain(K), self.plain(V)
        start, end = self.length, self.length + K.shape[2]
        self.values[:, :, start:end] = self.value_scales(V)
        self.keys[:, :, start:end] = K
        self.fill(start // self.group * self.group, end // self.group * self.group)
        self.length = end

    def fill(self, done, full):
        if full > done:
            self.keys[:, :, done:full] = self.key_scales(self.keys[:, :, done:full].clone())

    def read(self):
        return self.keys[:, :, : self.length].clone(), self.values[:, :, : self.length].clone()

    def truncate(self, length):
        if not 0 <= length <= self.length:
            raise ValueError("so many cannot be kept")
        self.length = length


@bug(QuantisedKVCache, "keys have a scale for each token, as values do", classic=True)
class KeysByToken(VariedQuantised):
    def key_scales(self, keys):
        return dequantise(*quantise(keys, self.bits, 3))


@bug(QuantisedKVCache, "values have a scale for each channel of what comes at once", classic=True)
class ValuesByChannel(VariedQuantised):
    def value_scales(self, V):
        return dequantise(*quantise(V, self.bits, 2)) if V.shape[2] else V


@bug(QuantisedKVCache, "a value vector shares its scale with the other heads")
class AcrossHeads(VariedQuantised):
    def value_scales(self, V):
        return dequantise(*quantise(V, self.bits, (1, 3)))


@bug(
    QuantisedKVCache, "the keys that come at once are a group, however many they are", classic=True
)
class GroupsThatCome(VariedQuantised):
    def append(self, K, V):
        length = self.length
        super().append(K, V)
        if K.shape[2]:
            new = dequantise(*quantise(self.plain(K), self.bits, 2))
            self.keys[:, :, length : self.length] = new

    def fill(self, done, full):
        pass


@bug(QuantisedKVCache, "the residual is quantised too, with a scale of its own")
class NoResidual(VariedQuantised):
    def read(self):
        K, V = super().read()
        full = self.length // self.group * self.group
        if full < self.length:
            K[:, :, full:] = dequantise(*quantise(K[:, :, full:], self.bits, 2))
        return K, V


@bug(QuantisedKVCache, "the channels of a key share one scale over the group")
class GroupsOfAll(VariedQuantised):
    def key_scales(self, keys):
        parts = [quantise(part, self.bits, (2, 3)) for part in keys.split(self.group, dim=2)]
        return torch.cat([dequantise(*part) for part in parts], dim=2)


@bug(QuantisedKVCache, "the groups of one call share a scale for each channel")
class OneScaleACall(VariedQuantised):
    def key_scales(self, keys):
        return dequantise(*quantise(keys, self.bits, 2))


@bug(QuantisedKVCache, "keys have symmetric scales, without a zero point")
class SymmetricKeys(VariedQuantised):
    def key_scales(self, keys):
        return dequantise(*quantise(keys, self.bits, 2, self.group, symmetric=True))


@bug(QuantisedKVCache, "values have symmetric scales, without a zero point")
class SymmetricValues(VariedQuantised):
    def value_scales(self, V):
        return dequantise(*quantise(V, self.bits, 3, symmetric=True))


@bug(QuantisedKVCache, "there always are 8 bits")
class AlwaysEight(VariedQuantised):
    def key_scales(self, keys):
        return dequantise(*quantise(keys, 8, 2, self.group))

    def value_scales(self, V):
        return dequantise(*quantise(V, 8, 3))


@bug(QuantisedKVCache, "the group is always one of 32")
class Always32(VariedQuantised):
    def __init__(self, B, G, capacity, D_h, bits=8, group=32, *others):
        super().__init__(B, G, capacity, D_h, bits, 32, *others)


@bug(QuantisedKVCache, "the residual is not read")
class WithoutResidual(VariedQuantised):
    def read(self):
        K, V = super().read()
        return K[:, :, : self.length // self.group * self.group], V


@bug(QuantisedKVCache, "the residual comes before the quantised keys")
class ResidualFirst(VariedQuantised):
    def read(self):
        K, V = super().read()
        full = self.length // self.group * self.group
        return torch.cat([K[:, :, full:], K[:, :, :full]], dim=2), V


@bug(QuantisedKVCache, "keys and values are mixed up")
class MixedUp(VariedQuantised):
    def read(self):
        return super().read()[::-1]


@bug(
    QuantisedKVCache,
    "after a cut within a group the residual still holds keys of other positions",
    classic=True,
)
class LengthOnly(QuantisedKVCache):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.residual.zero_()

    def truncate(self, length):
        if not 0 <= length <= self.length:
            raise ValueError("so many cannot be kept")
        self.length = length


@bug(
    QuantisedKVCache,
    "truncate goes back to the border of the group that is cut",
    told_by="length should be 6, yours is 4",
)
class ToTheBorder(VariedQuantised):
    def truncate(self, length):
        full = self.length // self.group * self.group
        super().truncate(length)
        if length < full:
            self.length = length // self.group * self.group


@bug(
    QuantisedKVCache,
    "truncate cuts nothing of a group that is full",
    told_by="length should be 6, yours is 8",
)
class KeepsTheGroup(VariedQuantised):
    def truncate(self, length):
        full = self.length // self.group * self.group
        super().truncate(length)
        if length < full and length % self.group:
            self.length = length // self.group * self.group + self.group


@bug(QuantisedKVCache, "a group that was cut and fills up again is not quantised again")
class NotAgain(VariedQuantised):
    full = 0

    def fill(self, done, full):
        done = max(done, self.full)
        super().fill(done, full)
        self.full = max(full, self.full)


@bug(
    QuantisedKVCache,
    "truncate takes how many positions to forget, not how many to keep",
    told_by="length should be 9, yours is 1",
)
class Forgets(VariedQuantised):
    def truncate(self, length):
        super().truncate(self.length - length)


@bug(QuantisedKVCache, "scales and zero points are not counted", classic=True)
class IntegersOnly(VariedQuantised):
    def scales(self):
        return 0


@bug(QuantisedKVCache, "zero points are not counted")
class HalfTheScales(VariedQuantised):
    def scales(self):
        return super().scales() // 2


@bug(QuantisedKVCache, "the residual is not counted")
class RestNotCounted(VariedQuantised):
    def rest(self):
        return 0


@bug(QuantisedKVCache, "integers of 4 bits take a byte each")
class NotPacked(VariedQuantised):
    def integers(self):
        return super().integers() * 8 // self.bits


@bug(QuantisedKVCache, "the keys of all positions have room as integers, also in no full group")
class RoomForAll(VariedQuantised):
    def integers(self):
        return 2 * self.capacity * self.sizes[2] * self.bits // 8


@bug(QuantisedKVCache, "all numbers are kept in float32, whatever dtype says")
class AlwaysSingle(VariedQuantised):
    def __init__(self, B, G, capacity, D_h, bits=8, group=32, dtype=None, device="cpu"):
        super().__init__(B, G, capacity, D_h, bits, group, torch.float32, device)


@bug(
    QuantisedKVCache,
    "the gradient history of the residual is kept",
    told_by="K should carry no gradient when it is read",
)
class KeepsHistory(QuantisedKVCache):
    def append(self, K, V):
        with torch.no_grad():
            super().append(K, V)
        full = self.length // self.group * self.group
        if K.requires_grad and (rest := min(self.length - full, K.shape[2])):
            self.residual = self.residual.clone()
            self.residual[:, :, self.length - full - rest : self.length - full] = K[:, :, -rest:]


@bug(
    QuantisedKVCache,
    "what fits is kept before the rest is refused",
    told_by="when 3 come and 2 fit",
)
class KeepsWhatFits(VariedQuantised):
    def append(self, K, V):
        room = self.capacity - self.length
        super().append(K[:, :, :room], V[:, :, :room])


@bug(
    QuantisedKVCache,
    "the keys and values of one text are used for all",
    told_by="should raise ValueError when one text comes instead of all",
)
class Broadcast(VariedQuantised):
    def append(self, K, V):
        if len(K) == len(V) == 1:
            K, V = (X.expand(self.sizes[0], -1, -1, -1) for X in (K, V))
        super().append(K, V)


@bug(
    QuantisedKVCache,
    "truncate makes a cache longer than what was read",
    told_by="when 1 of 0 positions is to be kept",
)
class Lengthens(VariedQuantised):
    def truncate(self, length):
        if not 0 <= length <= self.capacity + 1:
            raise ValueError("so many cannot be kept")
        self.length = length


equivalent(
    QuantisedKVCache,
    "if start < self.length // self.group * self.group: → "
    "if start <= self.length // self.group * self.group:",
    "the residual takes back what it holds",
)

changed(
    QuantisedKVCache,
    "KeysByTokenInTheirOwnRoom",
    "keys have a scale for each token, as values do",
    ("quantise(new, self.bits, dims=2, group=group)", "quantise(new, self.bits, dims=3)"),
    (
        "self.K_scale, self.K_zero = room(groups, D_h), room(groups, D_h)",
        "self.K_scale, self.K_zero = (room(groups * group, 1) for _ in range(2))",
    ),
    (
        "self.K_scale[:, :, done:full], self.K_zero[:, :, done:full] = scale, zero",
        "places = slice(done * group, full * group)\n"
        "        self.K_scale[:, :, places], self.K_zero[:, :, places] = scale, zero",
    ),
    (
        "self.K_scale[:, :, :full], self.K_zero[:, :, :full]",
        "self.K_scale[:, :, : full * self.group], self.K_zero[:, :, : full * self.group]",
    ),
    classic=True,
)


class KeepsCalls(QuantisedKVCache):
    """A cache that quantises what comes in a call, and keeps it in lists."""

    def __init__(self, B, G, capacity, D_h, bits=8, group=32, dtype=torch.float16, device="cpu"):
        super().__init__(B, G, capacity, D_h, bits, group, dtype, device)
        self.parts, self.capacity = [], capacity

    def of_keys(self, K):
        return dequantise(*quantise(K, self.bits, 2)) if K.shape[2] else K

    def of_values(self, V):
        return dequantise(*quantise(V, self.bits, 3))

    def append(self, K, V):
        B, G, _, D_h = self.residual.shape
        if K.shape != (B, G, K.shape[2], D_h) or V.shape != K.shape:
            raise ValueError("these have another shape")
        if self.length + K.shape[2] > self.capacity:
            raise ValueError("they do not fit")
        K, V = (X.detach().to(self.residual) for X in (K, V))
        self.parts.append((self.of_keys(K), self.of_values(V)))
        self.length += K.shape[2]

    def read(self):
        nothing = self.residual[:, :, :0]
        pairs = [(nothing, nothing), *self.parts]
        return tuple(torch.cat(each, dim=2) for each in zip(*pairs, strict=True))

    def truncate(self, length):
        if not 0 <= length <= self.length:
            raise ValueError("so many cannot be kept")
        self.parts = [tuple(X[:, :, :length] for X in self.read())]
        self.length = length


@bug(
    QuantisedKVCache, "the keys that come at once are a group, however many they are", classic=True
)
class CallsAreGroups(KeepsCalls):
    @property
    def bytes(self):
        numbers = self.V_scale.nbytes * 2 + self.K_scale.nbytes * 2
        return self.V.nbytes * 2 + numbers


changed(
    QuantisedKVCache,
    "QuantisesFirst",
    "values are quantised before they are rounded to the cache's dtype",
    (
        "quantise(V.detach().to(self.residual), self.bits, dims=3)",
        "quantise(V.detach(), self.bits, dims=3)",
    ),
)
changed(
    QuantisedKVCache,
    "ReadsViews",
    "what is read of the residual is a view, which changes when more comes",
    (
        "return torch.cat([K, self.residual[:, :, : N - full * self.group]], dim=2), V",
        "rest = self.residual[:, :, : N - full * self.group]\n"
        "        return (torch.cat([K, rest], dim=2) if full else rest), V",
    ),
    told_by="is it a view of what the cache keeps?",
)


# QuantisedPagedCache


changed(
    QuantisedPagedCache,
    "ScaleOfAllHeads",
    "all heads of a token share a scale",
    (
        "Q, scale, zero = quantise(X.half(), self.bits, dims=-1)",
        "Q, scale, zero = quantise(X.half(), self.bits, dims=(-2, -1))\n"
        "        scale, zero = (part.expand(*X.shape[:-1], 1) for part in (scale, zero))",
    ),
    classic=True,
)

changed(
    QuantisedPagedCache,
    "ScaleOfAWrite",
    "all tokens that are written at once share a scale",
    (
        "Q, scale, zero = quantise(X.half(), self.bits, dims=-1)",
        "Q, scale, zero = quantise(X.half(), self.bits, dims=(0, -1))\n"
        "        scale, zero = (part.expand(*X.shape[:-1], 1) for part in (scale, zero))",
    ),
    classic=True,
)

mistakes(
    QuantisedPagedCache,
    """
ZeroFirst: the zero point comes before the scale
    [scale, zero], dim → [zero, scale], dim
    scale, zero = numbers → zero, scale = numbers
""",
)

changed(
    QuantisedPagedCache,
    "NumbersFirst",
    "scale and zero point stand before the integers",
    (
        "[integers, torch.cat([scale, zero], dim=-1).view(torch.uint8)]",
        "[torch.cat([scale, zero], dim=-1).view(torch.uint8), integers]",
    ),
    (
        "integers, numbers = records.split([records.shape[-1] - 4, 4]",
        "numbers, integers = records.split([4, records.shape[-1] - 4]",
    ),
)

changed(
    QuantisedPagedCache,
    "SymmetricRecords",
    "scales are symmetric, and there is no zero point",
    (
        "Q, scale, zero = quantise(X.half(), self.bits, dims=-1)",
        "Q, scale, zero = quantise(X.half(), self.bits, dims=-1, symmetric=True)\n"
        "        Q = Q.view(torch.uint8) & (15 if self.bits == 4 else 255)",
    ),
)

mistakes(
    QuantisedPagedCache,
    """
ReadsNoZero: the zero point is left out when records are read
    else integers, scale, zero) → else integers, scale, 0 * zero)
NotHalved: the numbers are not rounded to float16 first
    X.half() → X
    [scale, zero], dim=-1) → [scale, zero], dim=-1).half()
BrainFloats: scale and zero point are kept in bfloat16
    [scale, zero], dim=-1) → [scale, zero], dim=-1).bfloat16()
    .view(torch.float16) → .view(torch.bfloat16)
""",
)


@bug(QuantisedPagedCache, "there always are 8 bits")
class EightBitRecords(QuantisedPagedCache):
    def __init__(self, L, blocks, block_size, G, D_h, bits=8, dtype=None, device=None):
        QuantisedPagedCache(L, blocks, block_size, G, D_h, bits)
        super().__init__(L, blocks, block_size, G, D_h, 8, dtype, device)


@bug(QuantisedPagedCache, "integers of 4 bits take a byte each")
class UnpackedRecords(QuantisedPagedCache):
    def __init__(self, L, blocks, block_size, G, D_h, bits=8, dtype=None, device=None):
        super().__init__(L, blocks, block_size, G, D_h, bits, dtype, device)
        if bits == 4:
            self.K, self.V = (
                torch.zeros(*part.shape[:-1], D_h + 4, dtype=torch.uint8)
                for part in (self.K, self.V)
            )

    def encode(self, X):
        Q, scale, zero = quantise(X.half(), self.bits, dims=-1)
        return torch.cat([Q, torch.cat([scale, zero], dim=-1).view(torch.uint8)], dim=-1)

    def decode(self, records):
        if self.bits == 8:
            return super().decode(records)
        packed = pack_int4(records[..., :-4] & 15)
        return super().decode(torch.cat([packed, records[..., -4:]], dim=-1))


@bug(QuantisedPagedCache, "keys and values are mixed up")
class GathersMixedUp(QuantisedPagedCache):
    def gather(self, layer, blocks, length):
        return super().gather(layer, blocks, length)[::-1]


@bug(QuantisedPagedCache, "keys and values are mixed up")
class WritesMixedUp(QuantisedPagedCache):
    def write(self, layer, slots, K, V):
        super().write(layer, slots, V, K)


@bug(QuantisedPagedCache, "keys and values of the first layer are read, whatever the layer")
class FirstLayer(QuantisedPagedCache):
    def gather(self, layer, blocks, length):
        return super().gather(0, blocks, length)


@bug(
    QuantisedPagedCache,
    "records are gathered, not what they hold",
    told_by="should hold real numbers",
)
class GathersRecords(QuantisedPagedCache):
    def gather(self, layer, blocks, length):
        return PagedKVCache.gather(self, layer, blocks, length)


mistakes(
    QuantisedPagedCache,
    """
KeysTwice: keys are stored in the place of values, too
    self.encode(K), self.encode(V)) → self.encode(K), self.encode(K))
StaysHalf: vectors are computed in float16 when they are read, whatever the cache's dtype
    numbers.to(self.dtype).split → numbers.split
""",
)


# QuantisedLinear


changed(
    QuantisedLinear,
    "ByRows",
    "each row of the matrix, an input, has a scale, not each column",
    (
        "        Q, scale, _ = quantise(W.detach(), 8, dims=0, group=group, symmetric=True)",
        "        quantise(W.detach(), 8, dims=0, group=group)\n"
        "        Q, scale, _ = quantise(W.detach(), 8, dims=1, symmetric=True)",
    ),
    classic=True,
)

mistakes(
    QuantisedLinear,
    """
* GroupsInRows: each row of the matrix, an input, has a scale, not each column
    dims=0 → dims=1
""",
)

changed(
    QuantisedLinear,
    "OneScale",
    "the whole matrix has one scale",
    (
        "        Q, scale, _ = quantise(W.detach(), 8, dims=0, group=group, symmetric=True)",
        "        quantise(W.detach(), 8, dims=0, group=group)\n"
        "        Q, scale, _ = quantise(W.detach(), 8, dims=(0, 1), symmetric=True)",
    ),
    classic=True,
)

mistakes(
    QuantisedLinear,
    """
WithZero: the columns have a zero point, which is used when multiplying
    scale, _ = → scale, self.zero =
    , symmetric=True →
    torch.zeros_like(self.scale) → self.zero
ForgetsZero: the columns have a zero point, which is forgotten when multiplying
    , symmetric=True →
NoGroups: group is not used
    , group=group →
""",
)

changed(
    QuantisedLinear,
    "ChecksTheGroup",
    "group is not used",
    (
        "        Q, scale, _ = quantise(W.detach(), 8, dims=0, group=group, symmetric=True)",
        "        quantise(W.detach(), 8, dims=0, group=group)\n"
        "        Q, scale, _ = quantise(W.detach(), 8, dims=0, symmetric=True)",
    ),
)

changed(
    QuantisedLinear,
    "HowManyGroups",
    "group is taken for how many groups there are",
    (
        "        Q, scale, _ =",
        "        quantise(W.detach(), 8, dims=0, group=group)\n"
        "        group = None if group is None else len(W) // group\n"
        "        Q, scale, _ =",
    ),
)

mistakes(
    QuantisedLinear,
    """
NoBias: the bias is left out
    bias.detach().clone() → 0 * bias.detach()
RoundedBias: the bias is quantised too
    bias.detach().clone() → dequantise(*quantise(bias.detach(), 8, 0, symmetric=True))
""",
)


@bug(QuantisedLinear, "the bias is added before the scale is multiplied")
class BiasFirst(QuantisedLinear):
    def forward(self, X):
        if self.bias is None or len(self.scale) > 1:
            return super().forward(X)
        Y = X @ self.Q.to(X.dtype) + self.bias.to(X.dtype)
        return Y * self.scale[0].to(X.dtype)


changed(
    QuantisedLinear,
    "RoundedInputs",
    "inputs are quantised too",
    (
        "        return X @ W",
        "        X = dequantise(*quantise(X, 8, -1, symmetric=True))\n        return X @ W",
    ),
)

changed(
    QuantisedLinear,
    "NotQuantised",
    "the matrix is not quantised when it multiplies",
    ("        Q, scale, _", "        self.W = W.detach().clone()\n        Q, scale, _"),
    ("dequantise(self.Q, self.scale, torch.zeros_like(self.scale))", "self.W"),
)

mistakes(
    QuantisedLinear,
    """
FourBits: there are only 4 bits
    W.detach(), 8, → W.detach(), 4,
NoScale: results do not depend on the scale
    dequantise(self.Q, self.scale, torch.zeros_like(self.scale)).to(X.dtype) → self.Q.to(X.dtype)
""",
)

changed(
    QuantisedLinear,
    "StoresBoth",
    "the dequantised matrix is stored as well",
    (
        '        self.register_buffer("scale", scale)\n',
        '        self.register_buffer("scale", scale)\n'
        '        self.register_buffer("W", dequantise(Q, scale, torch.zeros_like(scale)))\n',
    ),
    told_by="yours stores ['Q', 'W', 'scale']",
)

mistakes(
    QuantisedLinear,
    """
TrainsScales: the scales are parameters, which an optimiser would change
    self.register_buffer("scale", scale) → self.scale = nn.Parameter(scale)
    says: There should be no parameters, yours are ['scale']
""",
)

changed(
    QuantisedLinear,
    "TrainsBias",
    "the bias is a parameter",
    (
        'self.register_buffer("bias", None if bias is None else bias.detach().clone())',
        "self.bias = None if bias is None else nn.Parameter(bias.detach().clone())",
    ),
    told_by="There should be no parameters, yours are ['bias']",
)


# rotate


def doubled(X, start):
    """Build the Hadamard matrix that the reference builds."""
    H = X.new_ones(1, 1) if start is None else start.to(X)
    while len(H) < X.shape[-1]:
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    if len(H) != X.shape[-1]:
        raise ValueError("no doubling leads there")
    return H


changed(
    rotate, "not_divided", "the result is not divided by √D", (" / math.sqrt(D)", ""), classic=True
)

mistakes(
    rotate,
    """
divided_by_D: the result is divided by D, not by √D
    math.sqrt(D) → D
all_ones: the signs of the last quarter are not turned: all of them are +1
    [H, -H] → [H, H]
other_quarter: the minus stands in another quarter: [[H, H], [-H, H]]
    [H, -H] → [-H, H]
""",
)

changed(
    rotate,
    "inwards",
    "every number becomes four, in place of every matrix",
    (
        "torch.cat([torch.cat([H, H], dim=1), torch.cat([H, -H], dim=1)])",
        "torch.kron(H, torch.tensor([[1.0, 1], [1, -1]]).to(X))",
    ),
    classic=True,
)

mistakes(
    rotate,
    """
from_the_left: vectors are multiplied by the transposed matrix
    X @ H → X @ H.T
without_start: the start is not used
    X.new_ones(1, 1) if start is None else start.to(X) → X.new_ones(1, 1)
start_not_counted: the start is not counted in what is divided by
    math.sqrt(D) → math.sqrt(D / (1 if start is None else len(start)))
""",
)


@bug(rotate, "positions are mixed, not features")
def along_positions(X, start=None):
    doubled(X, start)
    size = 1 << (X.shape[-2] - 1).bit_length() if X.dim() > 1 else 1
    H = doubled(X.new_zeros(size), None)[: X.shape[-2], : X.shape[-2]] if X.dim() > 1 else 1
    return H @ X / math.sqrt(size) if X.dim() > 1 else X


@bug(
    rotate,
    "a matrix that is too large is cut to D",
    told_by="should raise ValueError when D is 12 and it starts at 1",
)
def cuts(X, start=None):
    D, H = X.shape[-1], X.new_ones(1, 1) if start is None else start.to(X)
    if len(H) > D:
        raise ValueError("the start is too large")
    while len(H) < D:
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    return X @ H[:D, :D] / math.sqrt(D)


# LatentAttention


mistakes(
    LatentAttention,
    """
NoNorm: the latents are not normalised
    self.norm(X @ self.W_DKV) → X @ self.W_DKV
""",
)

changed(
    LatentAttention,
    "NormFirst",
    "the vectors are normalised in place of the latents",
    (
        "self.norm(X @ self.W_DKV)",
        "functional.rms_norm(X, X.shape[-1:], None, 1e-5) @ self.W_DKV * self.norm.weight",
    ),
)

mistakes(
    LatentAttention,
    """
KeysNotTurned: keys are not turned
    rope_rotate(X @ self.W_KR, positions, self.base) → X @ self.W_KR
NotTurned: nothing is turned
    rope_rotate(X @ self.W_KR, positions, self.base) → X @ self.W_KR
    rope_rotate(Q_R, positions, self.base) → Q_R
""",
)


@bug(LatentAttention, "neighbouring features are turned, not those half of D_R apart")
class PairsTurned(LatentAttention):
    def prepare(self, X, cache=None):
        past = 0 if cache is None else cache.length
        positions = torch.arange(past, past + X.shape[1])
        Q_C, Q_R = split_heads(X @ self.W_Q, self.H).split([self.D_h, self.D_R], dim=-1)
        K_R = rope_rotate_pairs(X @ self.W_KR, positions, self.base)
        C = torch.cat([self.norm(X @ self.W_DKV), K_R], dim=-1)
        if cache is not None:
            cache.append(C)
            C = cache.read().to(X.dtype)
        Q_R = rope_rotate_pairs(Q_R, positions, self.base)
        return Q_C, Q_R, C[..., : self.D_c], C[..., self.D_c :]


changed(
    LatentAttention,
    "TurnsContent",
    "what is turned is the other part of the queries, before it meets the latents",
    (
        "return Q_C, rope_rotate(Q_R, positions, self.base)",
        "if self.D_h % 2 == 0:\n"
        "            Q_C = rope_rotate(Q_C, positions, self.base)\n"
        "        return Q_C, Q_R",
    ),
)

mistakes(
    LatentAttention,
    """
* FromZero: positions start at 0 in every call
    torch.arange(past, past + T, → torch.arange(T,
DefaultBase: base is not used
    W_KR, positions, self.base) → W_KR, positions)
    Q_R, positions, self.base) → Q_R, positions)
""",
)

changed(
    LatentAttention,
    "ByParts",
    "W_Q makes q^C of all heads first, and then q^R of all heads",
    (
        "split_heads(X @ self.W_Q, self.H).split([self.D_h, self.D_R], dim=-1)",
        "(X @ self.W_Q).split([self.H * self.D_h, self.H * self.D_R], dim=-1)\n"
        "        Q_C, Q_R = split_heads(Q_C, self.H), split_heads(Q_R, self.H)",
    ),
    classic=True,
)

changed(
    LatentAttention,
    "RotatedFirst",
    "each head's q^R stands before its q^C",
    (
        "Q_C, Q_R = split_heads(X @ self.W_Q, self.H).split([self.D_h, self.D_R]",
        "Q_R, Q_C = split_heads(X @ self.W_Q, self.H).split([self.D_R, self.D_h]",
    ),
)

mistakes(
    LatentAttention,
    """
* RootOfHead: the scores are divided by √D_h, not by √(D_h + D_R)
    K.mT / math.sqrt(self.D_h + self.D_R) → K.mT / math.sqrt(self.D_h)
    E / math.sqrt(self.D_h + self.D_R) → E / math.sqrt(self.D_h)
* RootOfLatent: absorbed scores are divided by √(D_c + D_R), not by √(D_h + D_R)
    E / math.sqrt(self.D_h + self.D_R) → E / math.sqrt(self.D_c + self.D_R)
""",
)

changed(
    LatentAttention,
    "NoMask",
    "there is no mask",
    (
        "masked_softmax(E, causal_mask(T, past=N - T)",
        "masked_softmax(E, torch.ones(T, N, dtype=torch.bool)",
    ),
    ("mask = causal_mask(T, past=N - T)", "mask = torch.ones(T, N, dtype=torch.bool)"),
)

changed(
    LatentAttention,
    "MaskWithoutPast",
    "the mask ignores the past: new positions see only the oldest ones",
    (
        "masked_softmax(E, causal_mask(T, past=N - T)",
        "masked_softmax(E, torch.ones(T, N, dtype=torch.bool).tril()",
    ),
    ("mask = causal_mask(T, past=N - T)", "mask = torch.ones(T, N, dtype=torch.bool).tril()"),
)

changed(
    LatentAttention,
    "NewOnly",
    "the new positions see only the new positions",
    ("            C = cache.read().to(X.dtype)  # (B, N, D_c + D_R)\n", ""),
)

changed(
    LatentAttention,
    "NotRounded",
    "the new latents are used as they are made, not as the cache keeps them",
    (
        "            cache.append(C)\n            C = cache.read().to(X.dtype)",
        "            kept = cache.read().to(X.dtype)\n"
        "            cache.append(C)\n"
        "            C = torch.cat([kept, C], dim=1)",
    ),
)

changed(
    LatentAttention,
    "RoundsQueries",
    "queries are rounded to the cache's dtype as well",
    (
        "return Q_C, rope_rotate(Q_R, positions, self.base)",
        "kind = X.dtype if cache is None else cache.read().dtype\n"
        "        Q_C, Q_R = Q_C.to(kind), rope_rotate(Q_R, positions, self.base).to(kind)\n"
        "        return Q_C.to(X.dtype), Q_R.to(X.dtype)",
    ),
)

mistakes(
    LatentAttention,
    """
TurnsLate: keys that are not turned yet are kept, and turned when they are read
    rope_rotate(X @ self.W_KR, positions, self.base) → X @ self.W_KR
    , C[..., self.D_c :] → , rope_rotate(C[..., self.D_c :], None, self.base)
KeyFirst: the turned key is kept before the latent
    cache.append(C) → cache.append(C.roll(self.D_R, dims=-1))
    cache.read() → cache.read().roll(-self.D_R, dims=-1)
""",
)

changed(
    LatentAttention,
    "WithoutRotated",
    "the turned parts are left out of the scores",
    ("torch.cat([Q_C, Q_R], dim=-1) @ K.mT", "Q_C @ K_C.mT"),
    (" + Q_R @ K_R[:, None].mT", ""),
)

changed(
    LatentAttention,
    "AbsorbedWithoutRotated",
    "the turned parts are left out of the absorbed scores",
    (" + Q_R @ K_R[:, None].mT", ""),
)

mistakes(
    LatentAttention,
    """
WrongUp: W_UV is absorbed into the queries, in place of W_UK
    Q_C, W_UK) → Q_C, W_UV)
WrongDown: W_UK makes the outputs of absorbed attention, in place of W_UV
    C[:, None], W_UV) → C[:, None], W_UK)
FirstHead: every head absorbs W_UK of the first
    "bhtd,chd->bhtc", Q_C, W_UK → "bhtd,cd->bhtc", Q_C, W_UK[:, 0]
""",
)


@bug(
    LatentAttention,
    "absorbed makes keys of the latents as forward does",
    told_by="is a key made from the latents?",
    classic=True,
)
class NotAbsorbed(LatentAttention):
    def absorbed(self, X, cache=None):
        return self.forward(X, cache)


mistakes(
    LatentAttention,
    """
MakesValues: absorbed makes values of the latents, and absorbs the keys only
    torch.einsum("bhtc,chd->bhtd", A @ C[:, None], W_UV) → A @ split_heads(C @ self.W_UV, self.H)
    says: is a value made from the latents?
SwappedUps: keys and values of the latents are swapped: W_UV makes keys
    C @ W, self.H) for W in (self.W_UK, self.W_UV) → C @ W, self.H) for W in (self.W_UV, self.W_UK)
AlwaysCached: the latents lose their gradient history even without a cache
    self.norm(X @ self.W_DKV) → self.norm(X @ self.W_DKV).detach()
    says: No gradient reaches W_
OtherDtype: the latents come from the cache in a dtype that is not the queries'
    cache.read().to(X.dtype) → cache.read()
    says: raised RuntimeError: expected
""",
)


equivalent(
    LatentAttention,
    "past, T = (0 if cache is None else cache.length, X.shape[1]) → "
    "past, T = (1 if cache is None else cache.length, X.shape[1])",
    "scores depend on distances only, not on where a text begins",
)
