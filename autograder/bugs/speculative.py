"""Known wrong solutions of speculative."""

import math

import torch
from torch import nn
from torch.nn import functional

from autograder.bugs import bug, changed, equivalent
from course_pkg.attention import causal_mask, masked_softmax, merge_heads, split_heads
from course_pkg.gpt import token_probabilities
from course_pkg.llama import rope_rotate_pairs
from course_pkg.paged_attention import PagedKVCache
from course_pkg.positions import rope_rotate
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


@bug(
    draw_token, "the sums begin with 0, so that each token gets the number of the next one's share"
)
def shifted(p, u):
    reached = p.double().cumsum(dim=0)
    return int((reached - p <= u * reached[-1]).sum()) % len(p)


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


def accepting(accepts, last, go_on=False):
    """Make a wrong `accept_or_resample`.

    Args:
        accepts: from p, q, u of a token and its number, says whether it is accepted.
        last: from p, q and the number n of the rejected token, gives the weights of the last one.
    """

    def wrong(p, q, drafted, u):
        demand_rows(p, q, drafted, u)
        k, kept = len(drafted), []
        for n, token in enumerate(drafted.tolist()):
            if accepts(p[n, token], q[n, token], u[n]):
                kept.append(token)
            elif not go_on:
                return drafted.new_tensor([*kept, draw_token(last(p, q, n), u[k])])
        return drafted.new_tensor([*kept, draw_token(p[k], u[k])])

    return wrong


def passes(p, q, u):
    return u * q < p


def residual(p, q, n):
    rest = (p[n] - q[n]).clamp(min=0)
    return rest if rest.any() else p[n]


@bug(
    accept_or_resample,
    "after a rejection the token is drawn from p, not from what q leaves of it",
    classic=True,
)
def from_p(p, q, drafted, u):
    return accepting(passes, lambda p, q, n: p[n])(p, q, drafted, u)


@bug(accept_or_resample, "every drafted token is accepted")
def always(p, q, drafted, u):
    return accepting(lambda p, q, u: True, residual)(p, q, drafted, u)


@bug(accept_or_resample, "a token is accepted with probability p, not p / q", classic=True)
def by_p(p, q, drafted, u):
    return accepting(lambda p, q, u: u < p, residual)(p, q, drafted, u)


@bug(accept_or_resample, "a token is accepted with probability q / p: the two are exchanged")
def exchanged(p, q, drafted, u):
    return accepting(lambda p, q, u: u * p < q, residual)(p, q, drafted, u)


@bug(accept_or_resample, "a token is accepted if the target finds it more probable than the draft")
def without_chance(p, q, drafted, u):
    return accepting(lambda p, q, u: p >= q, residual)(p, q, drafted, u)


@bug(accept_or_resample, "tokens after a rejected one are judged, and kept, too", classic=True)
def goes_on(p, q, drafted, u):
    return accepting(passes, residual, go_on=True)(p, q, drafted, u)


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


@bug(accept_or_resample, "the last token is drawn from |p - q|: nothing is cut off at 0")
def absolute(p, q, drafted, u):
    return accepting(passes, lambda p, q, n: (p[n] - q[n]).abs())(p, q, drafted, u)


@bug(accept_or_resample, "the last token is drawn from max(q - p, 0)")
def turned(p, q, drafted, u):
    def last(p, q, n):
        rest = (q[n] - p[n]).clamp(min=0)
        return rest if rest.any() else p[n]

    return accepting(passes, last)(p, q, drafted, u)


@bug(
    accept_or_resample, "after a rejection the token is drawn from the row of p after the right one"
)
def next_row(p, q, drafted, u):
    return accepting(passes, lambda p, q, n: (p[n + 1] - q[n]).clamp(min=0))(p, q, drafted, u)


@bug(
    accept_or_resample,
    "the number that rejected a token also draws the one in its place",
    classic=True,
)
def same_number(p, q, drafted, u):
    demand_rows(p, q, drafted, u)
    k = len(drafted)
    for n, token in enumerate(drafted.tolist()):
        if u[n] * q[n, token] >= p[n, token]:
            return torch.cat(
                [drafted[:n], drafted.new_tensor([draw_token(residual(p, q, n), u[n])])]
            )
    return torch.cat([drafted, drafted.new_tensor([draw_token(p[k], u[k])])])


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


class Drafting(Speculator):
    """A `Speculator` of which parts can be made wrong."""

    def judge(self, p, q, drafted, u):
        return accept_or_resample(p, q, drafted, u)

    def rows(self, p, m):
        return p[-m - 1 :]

    def speculative_step(self, text, k, u):
        drafted, q = self.propose(text, k, u[:k])
        m = len(drafted)
        p = self.rows(self.read(self.target, self.target_caches, torch.cat([text, drafted])), m)
        if q is None:
            q = functional.one_hot(drafted, p.shape[1]).to(p)
        tokens = self.judge(p, q, drafted, u[k : k + m + 1])
        self.rollback(len(text) + len(tokens) - 1)
        self.history.append((m, len(tokens) - 1))
        return tokens


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


@bug(Speculator, "the last k rows of the probabilities are read, and the first of them is missing")
class LastRows(Drafting):
    def rows(self, p, m):
        return torch.cat([p[-m:], p[-1:]]) if m else p[-1:]


@bug(Speculator, "the first rows of what the target read are taken, not the last", classic=True)
class FirstRows(Drafting):
    def rows(self, p, m):
        return p[: m + 1]


@bug(Speculator, "the draft takes its best tokens, but says that it has drawn them", classic=True)
class BestDrafts(Speculator):
    def propose(self, text, k, u):
        drafted, q = [], []
        for _ in range(k):
            q.append(self.read(self.draft, self.draft_caches, text)[-1])
            drafted.append(int(q[-1].argmax()))
            text = torch.cat([text, text.new_tensor(drafted[-1:])])
        return text.new_tensor(drafted), torch.stack(q) if q else None


@bug(Speculator, "the drafts count as certain, although they are drawn from q")
class Certain(Drafting):
    def judge(self, p, q, drafted, u):
        return accept_or_resample(p, functional.one_hot(drafted, p.shape[1]).to(p), drafted, u)


@bug(Speculator, "the drafted tokens are drawn all with the first number")
class OneNumber(Speculator):
    def propose(self, text, k, u):
        return super().propose(text, k, u[:1].expand(k) if k else u)


@bug(Speculator, "what the draft has drawn is kept, without asking the target")
class Trusts(Drafting):
    def judge(self, p, q, drafted, u):
        return torch.cat([drafted, drafted.new_tensor([draw_token(p[-1], u[-1])])])


@bug(Speculator, "the drafts are judged with the numbers that drew them", classic=True)
class NumbersTwice(Speculator):
    def speculative_step(self, text, k, u):
        return super().speculative_step(text, k, torch.cat([u[:k], u[:k], u[-1:]]))


@bug(Speculator, "the drafts are judged with the numbers that drew them", classic=True)
class NumbersFromTheFirst(Speculator):
    def speculative_step(self, text, k, u):
        return super().speculative_step(text, k, torch.cat([u[:k], u[: k + 1]]))


@bug(
    Speculator,
    "the target reads the drafts one by one",
    told_by="Does it read all drafts of a step at once?",
    classic=True,
)
class OneByOne(Drafting):
    def read(self, model, caches, text):
        if model is not self.target or not isinstance(self.draft_caches, list):
            return super().read(model, caches, text)
        start = caches[0].length
        rows = [
            super(OneByOne, self).read(model, caches, text[: n + 1])
            for n in range(start, len(text))
        ]
        return torch.cat(rows)


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
changed(
    Speculator,
    "CutsToMore",
    "a cache is cut to more tokens than it holds",
    ("cache.truncate(min(length, cache.length))", "cache.truncate(length)"),
    told_by="raised ValueError: cannot keep",
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
changed(
    Speculator,
    "NumbersFromM",
    "the numbers for judging begin where the drafts end, not at u_k",
    ("u[k : k + m + 1]", "u[m : 2 * m + 1]"),
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


@bug(prompt_lookup, "the first place counts, not the latest")
def first_place(tokens, k, longest=3):
    return looking(tokens, k, longest, places=lambda starts: starts)


def looking(tokens, k, longest=3, places=reversed, lengths=None, ends=None, skip=None):
    """Look up as the reference does, with parts that can be made wrong."""
    demand_limits(k, longest)
    most = min(longest, len(tokens) - 1)
    for n in range(most, 0, -1) if lengths is None else lengths(most):
        for start in places(range(len(tokens) - n if ends is None else ends(len(tokens), n))):
            if tokens[start : start + n] == tokens[-n:]:
                text, begin = list(tokens), start + (n if skip is None else skip(n))
                for place in range(begin, begin + k):
                    text.append(text[place])
                return text[len(tokens) :]
    return []


@bug(prompt_lookup, "the guess begins with the tokens that were looked for", classic=True)
def with_the_match(tokens, k, longest=3):
    return looking(tokens, k, longest, skip=lambda n: 0)


@bug(prompt_lookup, "a single token is looked for first, not the longest run", classic=True)
def shortest(tokens, k, longest=3):
    return looking(tokens, k, longest, lengths=lambda most: range(1, most + 1))


@bug(prompt_lookup, "only the longest run is looked for")
def only_longest(tokens, k, longest=3):
    return looking(tokens, k, longest, lengths=lambda most: [longest] if longest <= most else [])


@bug(prompt_lookup, "the guess ends where the text ends")
def ends_early(tokens, k, longest=3):
    demand_limits(k, longest)
    for n in range(min(longest, len(tokens) - 1), 0, -1):
        for start in reversed(range(len(tokens) - n)):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + k]
    return []


@bug(prompt_lookup, "runs of one token less than `longest` are the longest")
def not_longest(tokens, k, longest=3):
    demand_limits(k, longest)
    return looking(tokens, k, max(longest - 1, 1))


@bug(prompt_lookup, "places that overlap with the last tokens are left out")
def no_overlap(tokens, k, longest=3):
    return looking(tokens, k, longest, ends=lambda T, n: max(T - 2 * n + 1, 0))


@bug(prompt_lookup, "one token less than k is guessed")
def one_less(tokens, k, longest=3):
    demand_limits(k, longest)
    return looking(tokens, max(k - 1, 0), longest)


@bug(prompt_lookup, "a single token is never looked for")
def two_at_least(tokens, k, longest=3):
    return looking(tokens, k, longest, lengths=lambda most: range(most, 1, -1))


class Writing(SpeculativeWriter):
    """A `SpeculativeWriter` of which parts can be made wrong."""

    def limit(self, k, left):
        return min(k, left - 1)

    def numbers(self, count, generator):
        return torch.rand(count, generator=generator, dtype=torch.float64)

    def begin(self):
        self.rollback(0)

    def speculative_generate(self, text, count, k, generator=None):
        end = len(text) + count
        if not len(text) or end - 1 > self.capacity:
            raise ValueError
        self.begin()
        while len(text) < end:
            m = self.limit(k, end - len(text))
            text = torch.cat(
                [text, self.speculative_step(text, m, self.numbers(2 * m + 1, generator))]
            )
        return text


@bug(SpeculativeWriter, "the last step may add more tokens than were asked for", classic=True)
class TooMany(Writing):
    def limit(self, k, left):
        return k


@bug(SpeculativeWriter, "the last step may add more tokens than were asked for", classic=True)
class OneTooManyAtLast(Writing):
    def limit(self, k, left):
        return min(k, left)


@bug(
    SpeculativeWriter,
    "the last step drafts more than can be kept, and the text is cut",
    classic=True,
)
class CutsOff(TooMany):
    def speculative_generate(self, text, count, k, generator=None):
        return super().speculative_generate(text, count, k, generator)[: len(text) + count]


@bug(
    SpeculativeWriter,
    "the last step drafts more than can be kept, and the text is cut",
    classic=True,
)
class CutsOffOne(OneTooManyAtLast):
    def speculative_generate(self, text, count, k, generator=None):
        return super().speculative_generate(text, count, k, generator)[: len(text) + count]


@bug(SpeculativeWriter, "the caches of the last text are not emptied")
class StaysFull(Writing):
    def begin(self):
        pass


@bug(SpeculativeWriter, "no step drafts as many tokens as it may")
class OneDraftLess(Writing):
    def limit(self, k, left):
        return max(min(k, left - 1) - 1, 0)


@bug(SpeculativeWriter, "the same numbers are drawn in every step")
class SameNumbers(Writing):
    def numbers(self, count, generator):
        generator = torch.Generator().manual_seed(generator.initial_seed() if generator else 0)
        return super().numbers(count, generator)


@bug(SpeculativeWriter, "the generator is ignored")
class OtherGenerator(Writing):
    def numbers(self, count, generator):
        return super().numbers(count, None)


@bug(SpeculativeWriter, "a step counts as one token")
class CountsSteps(Writing):
    def __init__(self, target, draft, capacity, temperature=1.0):
        super().__init__(target, draft, capacity + 99, temperature)

    def speculative_generate(self, text, count, k, generator=None):
        self.rollback(0)
        for _ in range(count):
            text = torch.cat(
                [text, self.speculative_step(text, k, self.numbers(2 * k + 1, generator))]
            )
        return text


@bug(SpeculativeWriter, "the history counts the drafts that were asked for, not those found")
class CountsWhatWasAskedFor(Writing):
    def speculative_step(self, text, k, u):
        tokens = super().speculative_step(text, k, u)
        self.history[-1] = k, self.history[-1][1]
        return tokens


@bug(SpeculativeWriter, "only the new tokens are returned")
class OnlyNew(Writing):
    def speculative_generate(self, text, count, k, generator=None):
        return super().speculative_generate(text, count, k, generator)[len(text) :]


@bug(SpeculativeWriter, "without a draft model nothing is drafted")
class NoLookup(SpeculativeWriter):
    def propose(self, text, k, u):
        return (text[:0], None) if self.draft is None else super().propose(text, k, u)


@bug(SpeculativeWriter, "drafts from the text count as drawn from all tokens alike", classic=True)
class UniformLookup(SpeculativeWriter):
    def propose(self, text, k, u):
        drafted, q = super().propose(text, k, u)
        if q is None and len(drafted):
            V = self.target[2].shape[1] if isinstance(self.target, tuple) else 2048
            q = torch.full((len(drafted), V), 1 / V, dtype=torch.float64)
        return drafted, q


@bug(SpeculativeWriter, "the text is searched for a run of as many tokens as are drafted")
class LooksUpAsManyAsItDrafts(SpeculativeWriter):
    def propose(self, text, k, u):
        if self.draft is not None or k == 0:
            return super().propose(text, k, u)
        return torch.tensor(prompt_lookup(text.tolist(), k, longest=k), dtype=torch.long), None


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
changed(
    SpeculativeWriter,
    "EmptyFloats",
    "a guess of no tokens is a tensor of float32",
    ("text.new_tensor(prompt", "torch.tensor(prompt"),
    told_by="should be torch.int64 as the text is",
)
changed(
    SpeculativeWriter,
    "RoomForTheLast",
    "the last token is to have room, though nobody reads it",
    ("end - 1 > self.capacity", "end > self.capacity"),
    told_by="as its last token is never read",
)


@bug(SpeculativeWriter, "q is 1 for every token, not for the drafted one alone")
class CertainOfAll(Drafting, SpeculativeWriter):
    def judge(self, p, q, drafted, u):
        return accept_or_resample(p, torch.ones_like(q) if self.draft is None else q, drafted, u)


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


class Parts(SpeculativeCore):
    """A `SpeculativeCore` of which parts can be made wrong."""

    def chances(self, number, logits):
        sampling = self.sequences[number].sampling
        settings = sampling.temperature, sampling.top_k, sampling.top_p
        return token_probabilities(logits, *settings)

    def choose(self, p, drafted, u):
        q = functional.one_hot(drafted, p.shape[1]).to(p)
        return accept_or_resample(p, q, drafted, u).tolist()

    def until_stop(self, tokens, stop):
        return tokens[: tokens.index(stop) + 1] if stop in tokens else tokens

    def judge(self, number, drafted, logits):
        sequence = self.sequences[number]
        generator = sequence.generator.clone_state()
        u = torch.rand(len(drafted) + 1, generator=generator, dtype=torch.float64)
        new = self.choose(self.chances(number, logits), torch.tensor(drafted), u)
        return self.until_stop(new, sequence.sampling.stop), generator

    def settle(self, number, length):
        self.sequences[number].computed = length
        self.scheduler.cut(number)
        self.scheduler.advance(number, length)

    def keep(self, number, tokens, generator):
        sequence = self.sequences[number]
        sequence.generator = generator
        for token in tokens:
            self.scheduler.append(number, token)
        self.settle(number, len(sequence.tokens) - 1)
        self.finish(number)
        return [(number, token) for token in tokens]


@bug(SpeculativeCore, "blocks of rejected drafts are not given back", classic=True)
class NoCut(Parts):
    def settle(self, number, length):
        self.scheduler.advance(number, length)


@bug(SpeculativeCore, "blocks are named before the table is cut", classic=True)
class NamesFirst(Parts):
    def settle(self, number, length):
        self.scheduler.advance(number, length)
        self.scheduler.cut(number)


@bug(SpeculativeCore, "the table is cut only if fewer tokens are added than were drafted")
class CutsTooSeldom(Parts):
    def keep(self, number, tokens, generator):
        self.rejected = len(tokens) < self.k
        return super().keep(number, tokens, generator)

    def settle(self, number, length):
        if self.rejected:
            return super().settle(number, length)
        self.sequences[number].computed = length
        return self.scheduler.advance(number, length)


@bug(
    SpeculativeCore,
    "the tokens before a draft are computed once more with each of them",
    told_by="The pieces of positions 9 to 11 should be",
)
class WholePrefixes(SpeculativeCore):
    def pieces(self, number, start, stop, drafted):
        first, *others = super().pieces(number, start, stop, drafted)
        tokens, _, blocks = first
        return [first, *((tokens + drafted[: n + 1], start, blocks) for n in range(len(others)))]


@bug(SpeculativeCore, "the blocks that the plan says are not copied")
class NoCopies(SpeculativeCore):
    def step(self):
        self.runner.copy = lambda copies: None
        return super().step()


@bug(SpeculativeCore, "every draft is accepted")
class AcceptsAll(Parts):
    def choose(self, p, drafted, u):
        return [*drafted.tolist(), draw_token(p[-1], u[-1])]


@bug(SpeculativeCore, "of each sequence's drafts, all or none are accepted")
class AllOrNone(Parts):
    def choose(self, p, drafted, u):
        found = super().choose(p, drafted, u)
        if len(found) == len(p):
            return found
        return [draw_token(p[0], u[-1])] if p[0].max() < 1 else [int(p[0].argmax())]


@bug(SpeculativeCore, "as many tokens are accepted of every sequence as of the first", classic=True)
class AsTheFirst(Parts):
    def step(self):
        self.shortest = None
        return super().step()

    def choose(self, p, drafted, u):
        found = super().choose(p, drafted, u)
        if self.shortest is None:
            self.shortest = len(found)
        return found[: self.shortest]


@bug(SpeculativeCore, "drafts stand one position too early, over the last token")
class TooEarly(SpeculativeCore):
    def pieces(self, number, start, stop, drafted):
        first, *others = super().pieces(number, start, stop, drafted)
        return [first, *((tokens, place - 1, blocks) for tokens, place, blocks in others)]


@bug(SpeculativeCore, "all drafts stand at the same position")
class SamePlace(SpeculativeCore):
    def pieces(self, number, start, stop, drafted):
        first, *others = super().pieces(number, start, stop, drafted)
        return [first, *((tokens, stop - len(drafted), blocks) for tokens, _, blocks in others)]


@bug(
    SpeculativeCore,
    "the drafts are one piece with the tokens before them, and only the last has logits",
    told_by="is each draft a piece by itself",
    classic=True,
)
class OnePiece(SpeculativeCore):
    def pieces(self, number, start, stop, drafted):
        tokens, _, blocks = self.piece(number, start, stop - len(drafted))
        return [(tokens + drafted, start, blocks)]


@bug(SpeculativeCore, "a stop token is looked for only in the last place", classic=True)
class PastTheStop(Parts):
    def until_stop(self, tokens, stop):
        return tokens


@bug(SpeculativeCore, "a stop token of 0 counts as none")
class NeverAtZero(Parts):
    def until_stop(self, tokens, stop):
        return super().until_stop(tokens, stop) if stop else tokens


@bug(SpeculativeCore, "the numbers do not come from the sequence's generator")
class OtherRandomness(Parts):
    def choose(self, p, drafted, u):
        other = torch.Generator().manual_seed(len(u))
        return super().choose(p, drafted, torch.rand(u.shape, generator=other).double())


@bug(SpeculativeCore, "the generator that has drawn is not kept: each step draws the same numbers")
class ForgetsGenerator(Parts):
    def keep(self, number, tokens, generator):
        return super().keep(number, tokens, self.sequences[number].generator)


@bug(SpeculativeCore, "drafts are judged at temperature 1")
class Temperature1(Parts):
    def chances(self, number, logits):
        sampling = self.sequences[number].sampling
        if sampling.temperature == 0:
            return super().chances(number, logits)
        return token_probabilities(logits, 1.0, sampling.top_k, sampling.top_p)


@bug(SpeculativeCore, "drafts are judged without top_k and top_p")
class AllTokens(Parts):
    def chances(self, number, logits):
        return token_probabilities(logits, self.sequences[number].sampling.temperature)


@bug(SpeculativeCore, "a draft is accepted if it is the target's best token, also when sampling")
class BestOnly(Parts):
    def choose(self, p, drafted, u):
        k, best = len(drafted), p.argmax(dim=1).tolist()
        n = next((n for n, x in enumerate(drafted.tolist()) if x != best[n]), k)
        return [*drafted[:n].tolist(), draw_token(p[n], u[k])]


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
changed(
    SpeculativeCore,
    "BehindThePlan",
    "drafts stand behind the positions that are planned for them",
    ("middle + n, blocks)", "stop + n, blocks)"),
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
changed(
    SpeculativeCore,
    "DropsTheStop",
    "the stop token is dropped as well",
    ("new.index(sampling.stop) + 1", "new.index(sampling.stop)"),
)
settled = (
    "        sequence.computed = len(sequence.tokens) - 1\n        self.scheduler.cut(number)\n"
    "        self.scheduler.advance(number, sequence.computed)\n"
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
    ("        self.scheduler.advance(number, sequence.computed)\n", ""),
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
changed(
    SpeculativeCore,
    "TellsTheLast",
    "only the last of the new tokens is returned",
    ("return [(number, token) for token in tokens]", "return [(number, tokens[-1])]"),
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
changed(
    SpeculativeCore,
    "BehindOne",
    "drafts stand behind the first of the sequence's own tokens, as if there were only one",
    ("middle + n, blocks)", "start + 1 + n, blocks)"),
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
        "        sequence.computed = len(sequence.tokens) + len(tokens) - 1\n"
        "        self.scheduler.cut(number)\n"
        "        self.scheduler.advance(number, sequence.computed)\n",
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


def largest(bits, symmetric):
    return 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1


def quantised(
    X,
    bits,
    dims,
    group=None,
    symmetric=False,
    *,
    steps=largest,
    most=None,
    low=lambda X, dims: X.amin(dims, keepdim=True),
    size=lambda X, dims: X.abs().amax(dims, keepdim=True),
    nearest=torch.round,
    guard=lambda scale: torch.where(scale == 0, 1, scale),
    cut=lambda X, axis, group: X.unflatten(axis, (X.shape[axis] // group, group)),
    shared=lambda X, dims: dims,
    zero_of=lambda zero, scale: zero,
    dtype=lambda symmetric: torch.int8 if symmetric else torch.uint8,
    rounded=lambda part, X: part.to(X.dtype),
):
    """Quantise as the reference does, with parts that the bugs below vary."""
    if not 2 <= bits <= 8:
        raise ValueError("so many bits there are not")
    shape, dims = X.shape, (dims,) if isinstance(dims, int) else tuple(dims)
    dims = tuple(dim % X.dim() for dim in dims)
    if group is not None:
        (axis,) = dims
        if shape[axis] % group:
            raise ValueError("these groups cannot be cut")
        X, dims = cut(X, axis, group), (axis + 1,)
    else:
        dims = shared(X, dims)
    wide, top = X.to(torch.promote_types(X.dtype, torch.float32)), steps(bits, symmetric)
    if symmetric:
        scale = size(wide, dims) / top
        zero = torch.zeros_like(scale)
    else:
        zero = low(wide, dims)
        scale = (wide.amax(dims, keepdim=True) - zero) / top
    scale, zero = guard(rounded(scale, X)), rounded(zero, X)
    zero = zero_of(zero, scale)
    highest = top if most is None else most(bits, symmetric)
    lowest = -highest if symmetric else 0
    Q = nearest((wide - zero) / scale).clamp(lowest, max(highest, lowest)).to(dtype(symmetric))
    if group is not None:
        scale, zero = scale.squeeze(axis + 1), zero.squeeze(axis + 1)
    return Q.reshape(shape), scale.to(X.dtype), zero.to(X.dtype)


@bug(
    quantise,
    "the range is divided by 2^bits, not by the steps between 2^bits integers",
    classic=True,
)
def levels(X, bits, dims, group=None, symmetric=False):
    return quantised(
        X, bits, dims, group, symmetric, steps=lambda b, sym: 2 ** (b - 1) - 1 if sym else 2**b
    )


@bug(quantise, "max |X| is divided by 2^(bits-1), so that the largest number has no integer")
def one_more(X, bits, dims, group=None, symmetric=False):
    return quantised(
        X, bits, dims, group, symmetric, steps=lambda b, sym: 2 ** (b - 1) if sym else 2**b - 1
    )


@bug(quantise, "the range is divided by 2^bits, not by the steps between 2^bits integers")
def levels_cut(X, bits, dims, group=None, symmetric=False):
    Q, scale, zero = levels(X, bits, dims, group, symmetric)
    if not symmetric:
        step = dequantise(torch.ones_like(Q), scale, torch.zeros_like(zero))
        least = dequantise(torch.zeros_like(Q), scale, zero)
        Q = torch.round((X - least) / step).clamp(0, 2**bits - 1).to(torch.uint8)
    return Q, scale, zero


@bug(quantise, "the range is divided by 2^bits, not by the steps between 2^bits integers")
def levels_of_both(X, bits, dims, group=None, symmetric=False):
    def steps(bits, symmetric):
        return largest(bits, symmetric) + 1

    return quantised(X, bits, dims, group, symmetric, steps=steps, most=largest)


@bug(quantise, "numbers are rounded down, not to the nearest integer", classic=True)
def downwards(X, bits, dims, group=None, symmetric=False):
    return quantised(X, bits, dims, group, symmetric, nearest=torch.floor)


@bug(quantise, "numbers are rounded towards zero, not to the nearest integer")
def towards_zero(X, bits, dims, group=None, symmetric=False):
    return quantised(X, bits, dims, group, symmetric, nearest=torch.trunc)


@bug(quantise, "a scale of 0 is divided by, and not replaced by 1", classic=True)
def divides_by_zero(X, bits, dims, group=None, symmetric=False):
    return quantised(X, bits, dims, group, symmetric, guard=lambda scale: scale)


@bug(quantise, "a small number is added to every scale, so that none is 0")
def epsilon(X, bits, dims, group=None, symmetric=False):
    return quantised(X, bits, dims, group, symmetric, guard=lambda scale: scale + 1e-5)


def others(X, dims):
    return tuple(axis for axis in range(X.dim()) if axis not in dims) or dims


@bug(quantise, "dims are taken for the axes that have scales of their own", classic=True)
def complement(X, bits, dims, group=None, symmetric=False):
    return quantised(X, bits, dims, group, symmetric, shared=others)


@bug(quantise, "there is one scale for the whole tensor, whatever dims says")
def always_all(X, bits, dims, group=None, symmetric=False):
    def every(X, dims):
        return tuple(range(X.dim()))

    return quantised(X, bits, dims, group, symmetric, shared=every)


@bug(quantise, "the range is made to hold 0, as torch's own types do")
def holds_zero(X, bits, dims, group=None, symmetric=False):
    def low(X, dims):
        return X.amin(dims, keepdim=True).clamp(max=0)

    return quantised(X, bits, dims, group, symmetric, low=low)


@bug(quantise, "the zero point is rounded to a whole number of steps")
def whole_zero(X, bits, dims, group=None, symmetric=False):
    def whole(zero, scale):
        return (zero / scale).round() * scale

    return quantised(X, bits, dims, group, symmetric, zero_of=whole)


@bug(quantise, "a symmetric scale is made of the largest number, not of the largest in size")
def without_size(X, bits, dims, group=None, symmetric=False):
    def size(X, dims):
        return X.amax(dims, keepdim=True)

    return quantised(X, bits, dims, group, symmetric, size=size)


@bug(quantise, "integers with a sign are kept in a dtype without one")
def no_sign(X, bits, dims, group=None, symmetric=False):
    Q, scale, zero = quantised(X, bits, dims, group, symmetric)
    return Q.to(torch.int64).remainder(256).to(torch.uint8), scale, zero


@bug(quantise, "integers from 0 to 255 are kept in int8, where those from 128 on become negative")
def with_sign(X, bits, dims, group=None, symmetric=False):
    Q, scale, zero = quantised(X, bits, dims, group, symmetric)
    return Q.view(torch.int8), scale, zero


@bug(quantise, "the integers stay floating-point numbers", told_by="should hold whole numbers")
def floats(X, bits, dims, group=None, symmetric=False):
    return quantised(X, bits, dims, group, symmetric, dtype=lambda symmetric: X.dtype)


def strided(X, axis, group):
    return X.unflatten(axis, (group, X.shape[axis] // group)).transpose(axis, axis + 1)


@bug(quantise, "a group is made of numbers that are far apart, not of neighbours", classic=True)
def far_apart(X, bits, dims, group=None, symmetric=False):
    Q, scale, zero = quantised(X, bits, dims, group, symmetric, cut=strided)
    if group is not None:
        axis = (dims if isinstance(dims, int) else dims[0]) % X.dim()
        parts = X.shape[axis] // group
        Q = Q.unflatten(axis, (parts, group)).transpose(axis, axis + 1).flatten(axis, axis + 1)
    return Q, scale, zero


@bug(quantise, "group is taken for how many groups there are")
def how_many(X, bits, dims, group=None, symmetric=False):
    def cut(X, axis, group):
        return X.unflatten(axis, (group, X.shape[axis] // group))

    if group is not None and not isinstance(dims, int) and len(dims) > 1:
        raise ValueError("groups come with several axes")
    return quantised(X, bits, dims, group, symmetric, cut=cut)


@bug(quantise, "group is not used")
def no_groups(X, bits, dims, group=None, symmetric=False):
    quantise(X, bits, dims, group, symmetric)
    return quantised(X, bits, dims, None, symmetric)


@bug(quantise, "symmetric is not used: there always is a zero point")
def never_symmetric(X, bits, dims, group=None, symmetric=False):
    return quantised(X, bits, dims, group, False)


@bug(quantise, "there always are 8 bits")
def eight_bits(X, bits, dims, group=None, symmetric=False):
    quantise(X, bits, dims, group, symmetric)
    return quantised(X, 8, dims, group, symmetric)


@bug(quantise, "q is computed with a scale that half precision does not hold")
def unrounded(X, bits, dims, group=None, symmetric=False):
    return quantised(X, bits, dims, group, symmetric, rounded=lambda part, X: part)


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


@bug(
    quantise,
    "any number of bits is accepted",
    told_by="should raise ValueError when bits is",
)
def any_bits(X, bits, dims, group=None, symmetric=False):
    return quantised(X, min(max(bits, 2), 8), dims, group, symmetric)


equivalent(
    quantise,
    "precise = X.to(torch.promote_types(X.dtype, torch.float32)) → "
    "precise = X.to(torch.promote_types(torch.float32, X.dtype))",
    "the wider of two types is the same in either order",
)


# dequantise


def shared_by(scale, shape, spread=torch.Tensor.repeat_interleave):
    """Give each integer its scale."""
    for axis, (size, parts) in enumerate(zip(shape, scale.shape, strict=True)):
        if parts not in (1, size):
            if parts == 0 or size % parts:
                raise ValueError("so many cannot be shared")
            scale = spread(scale, size // parts, dim=axis)
    return scale


@bug(dequantise, "the zero point is added to the integer, before the scale", classic=True)
def zero_first(Q, scale, zero):
    scale, zero = shared_by(scale, Q.shape), shared_by(zero, Q.shape)
    return (Q.to(scale.dtype) + zero) * scale


@bug(dequantise, "the zero point is subtracted from the integer, as in torch's own types")
def torchs(Q, scale, zero):
    scale, zero = shared_by(scale, Q.shape), shared_by(zero, Q.shape)
    return (Q.to(scale.dtype) - zero) * scale


@bug(dequantise, "the zero point is subtracted")
def minus_zero(Q, scale, zero):
    scale, zero = shared_by(scale, Q.shape), shared_by(zero, Q.shape)
    return Q.to(scale.dtype) * scale - zero


@bug(dequantise, "the zero point is left out")
def no_zero(Q, scale, zero):
    return Q.to(scale.dtype) * shared_by(scale, Q.shape)


@bug(dequantise, "integers are divided by the scale")
def divided(Q, scale, zero):
    return Q.to(scale.dtype) / shared_by(scale, Q.shape) + shared_by(zero, Q.shape)


def tiled(scale, times, dim):
    return torch.cat([scale] * times, dim=dim)


@bug(dequantise, "the scales of the groups take turns, one integer after the other", classic=True)
def take_turns(Q, scale, zero):
    scale, zero = (shared_by(part, Q.shape, tiled) for part in (scale, zero))
    return Q.to(scale.dtype) * scale + zero


@bug(dequantise, "the scales of groups reach their neighbours, but the zero points take turns")
def zeros_take_turns(Q, scale, zero):
    scale, zero = shared_by(scale, Q.shape), shared_by(zero, Q.shape, tiled)
    return Q.to(scale.dtype) * scale + zero


@bug(dequantise, "all groups get the scale and zero point of the first")
def first_only(Q, scale, zero):
    for axis, (size, parts) in enumerate(zip(Q.shape, scale.shape, strict=True)):
        if parts not in (1, size):
            shared_by(scale, Q.shape)
            scale, zero = scale.narrow(axis, 0, 1), zero.narrow(axis, 0, 1)
    return Q.to(scale.dtype) * scale + zero


@bug(dequantise, "the sign of the integers is lost")
def without_sign(Q, scale, zero):
    Q = Q.view(torch.uint8) if Q.dtype == torch.int8 else Q
    return Q.to(scale.dtype) * shared_by(scale, Q.shape) + shared_by(zero, Q.shape)


@bug(dequantise, "integers from 128 on are read as negative")
def as_int8(Q, scale, zero):
    Q = Q.view(torch.int8) if Q.dtype == torch.uint8 else Q
    return Q.to(scale.dtype) * shared_by(scale, Q.shape) + shared_by(zero, Q.shape)


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


def demand_pairs(Q):
    if Q.shape[-1] % 2 or ((Q < 0) | (Q > 15)).any():
        raise ValueError("these are no pairs of four bits")
    return Q.to(torch.uint8)


@bug(pack_int4, "the first of two neighbours is put into the high four bits", classic=True)
def high_first(Q):
    Q = demand_pairs(Q)
    return Q[..., 0::2] << 4 | Q[..., 1::2]


@bug(
    pack_int4,
    "an integer is packed with one half an axis away, not with its neighbour",
    classic=True,
)
def by_halves(Q):
    low, high = demand_pairs(Q).chunk(2, dim=-1) if Q.shape[-1] else (demand_pairs(Q),) * 2
    return low | high << 4


@bug(pack_int4, "the second of two neighbours is not shifted, and both lie in the low four bits")
def not_shifted(Q):
    Q = demand_pairs(Q)
    return Q[..., 0::2] | Q[..., 1::2]


@bug(pack_int4, "the second of two neighbours is multiplied by 15, not by 16")
def fifteen(Q):
    Q = demand_pairs(Q)
    return Q[..., 0::2] + 15 * Q[..., 1::2]


@bug(pack_int4, "only the first of two neighbours is kept")
def drops_second(Q):
    return demand_pairs(Q)[..., 0::2].clone()


@bug(pack_int4, "all bytes come in a single row")
def one_row(Q):
    return pack_int4(demand_pairs(Q)).flatten()


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


class VariedPaged(QuantisedPagedCache):
    """A paged cache whose records the bugs below vary."""

    def scales(self, X):
        return quantise(X.half(), self.bits, dims=-1)

    def integers(self, Q):
        return pack_int4(Q) if self.bits == 4 else Q

    def numbers(self, scale, zero):
        return torch.cat([scale, zero], dim=-1)

    def encode(self, X):
        Q, scale, zero = self.scales(X)
        scale, zero = (part.expand(*X.shape[:-1], 1) for part in (scale, zero))
        numbers = self.numbers(scale, zero).contiguous().view(torch.uint8)
        return torch.cat([self.integers(Q), numbers], dim=-1)


@bug(QuantisedPagedCache, "all heads of a token share a scale", classic=True)
class ScaleOfAllHeads(VariedPaged):
    def scales(self, X):
        return quantise(X.half(), self.bits, (-2, -1))


@bug(QuantisedPagedCache, "all tokens that are written at once share a scale", classic=True)
class ScaleOfAWrite(VariedPaged):
    def scales(self, X):
        return quantise(X.half(), self.bits, (0, -1))


@bug(QuantisedPagedCache, "the zero point comes before the scale")
class ZeroFirst(VariedPaged):
    def numbers(self, scale, zero):
        return torch.cat([zero, scale], dim=-1)

    def decode(self, records):
        n = records.shape[-1] - 4
        return super().decode(
            torch.cat([records[..., :n], records[..., n + 2 :], records[..., n : n + 2]], dim=-1)
        )


@bug(QuantisedPagedCache, "scale and zero point stand before the integers")
class NumbersFirst(VariedPaged):
    def encode(self, X):
        return super().encode(X).roll(4, dims=-1)

    def decode(self, records):
        return super().decode(records.roll(-4, dims=-1))


@bug(QuantisedPagedCache, "scales are symmetric, and there is no zero point")
class SymmetricRecords(VariedPaged):
    def scales(self, X):
        Q, scale, zero = quantise(X.half(), self.bits, -1, symmetric=True)
        return (Q.view(torch.uint8) & (15 if self.bits == 4 else 255)), scale, zero


@bug(QuantisedPagedCache, "the zero point is left out when records are read")
class ReadsNoZero(QuantisedPagedCache):
    def decode(self, records):
        records = records.clone()
        records[..., -2:] = 0
        return super().decode(records)


@bug(QuantisedPagedCache, "the numbers are not rounded to float16 first")
class NotHalved(VariedPaged):
    def scales(self, X):
        Q, scale, zero = quantise(X, self.bits, -1)
        return Q, scale.half(), zero.half()


@bug(QuantisedPagedCache, "scale and zero point are kept in bfloat16")
class BrainFloats(VariedPaged):
    def numbers(self, scale, zero):
        return super().numbers(scale, zero).bfloat16()

    def decode(self, records):
        n = records.shape[-1] - 4
        numbers = records[..., n:].contiguous().view(torch.bfloat16).half().view(torch.uint8)
        return super().decode(torch.cat([records[..., :n], numbers], dim=-1))


@bug(QuantisedPagedCache, "there always are 8 bits")
class EightBitRecords(QuantisedPagedCache):
    def __init__(self, L, blocks, block_size, G, D_h, bits=8, dtype=None, device=None):
        QuantisedPagedCache(L, blocks, block_size, G, D_h, bits)
        super().__init__(L, blocks, block_size, G, D_h, 8, dtype, device)


@bug(QuantisedPagedCache, "integers of 4 bits take a byte each")
class UnpackedRecords(VariedPaged):
    def __init__(self, L, blocks, block_size, G, D_h, bits=8, dtype=None, device=None):
        super().__init__(L, blocks, block_size, G, D_h, bits, dtype, device)
        if bits == 4:
            self.K, self.V = (
                torch.zeros(*part.shape[:-1], D_h + 4, dtype=torch.uint8)
                for part in (self.K, self.V)
            )

    def integers(self, Q):
        return Q

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


changed(
    QuantisedPagedCache,
    "KeysTwice",
    "keys are stored in the place of values, too",
    ("self.encode(K), self.encode(V))", "self.encode(K), self.encode(K))"),
)
changed(
    QuantisedPagedCache,
    "StaysHalf",
    "vectors are computed in float16 when they are read, whatever the cache's dtype",
    ("numbers.to(self.dtype).split", "numbers.split"),
)


# QuantisedLinear


class VariedLinear(QuantisedLinear):
    """A layer whose parts the bugs below vary."""

    def __init__(self, W, bias=None, group=None):
        nn.Module.__init__(self)
        Q, scale, zero = self.integers(W.detach(), group)
        self.register_buffer("Q", Q)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if bias is None else self.copy(bias))
        self.zero = zero

    def integers(self, W, group):
        return quantise(W, 8, 0, group, symmetric=True)

    def copy(self, bias):
        return bias.detach().clone()

    def matrix(self):
        return dequantise(self.Q, self.scale, self.zero)

    def multiply(self, X):
        return X @ self.matrix().to(X.dtype)

    def forward(self, X):
        Y = self.multiply(X)
        return Y if self.bias is None else Y + self.bias.to(X.dtype)


@bug(
    QuantisedLinear, "each row of the matrix, an input, has a scale, not each column", classic=True
)
class ByRows(VariedLinear):
    def integers(self, W, group):
        quantise(W, 8, 0, group)
        return quantise(W, 8, 1, symmetric=True)


@bug(
    QuantisedLinear, "each row of the matrix, an input, has a scale, not each column", classic=True
)
class GroupsInRows(VariedLinear):
    def integers(self, W, group):
        return quantise(W, 8, 1, group, symmetric=True)


@bug(QuantisedLinear, "the whole matrix has one scale", classic=True)
class OneScale(VariedLinear):
    def integers(self, W, group):
        quantise(W, 8, 0, group)
        return quantise(W, 8, (0, 1), symmetric=True)


@bug(QuantisedLinear, "the columns have a zero point, which is used when multiplying")
class WithZero(VariedLinear):
    def integers(self, W, group):
        return quantise(W, 8, 0, group)


@bug(QuantisedLinear, "the columns have a zero point, which is forgotten when multiplying")
class ForgetsZero(VariedLinear):
    def integers(self, W, group):
        return quantise(W, 8, 0, group)

    def matrix(self):
        return dequantise(self.Q, self.scale, torch.zeros_like(self.scale))


@bug(QuantisedLinear, "group is not used")
class NoGroups(VariedLinear):
    def integers(self, W, group):
        return quantise(W, 8, 0, symmetric=True)


@bug(QuantisedLinear, "group is not used")
class ChecksTheGroup(VariedLinear):
    def integers(self, W, group):
        quantise(W, 8, 0, group)
        return quantise(W, 8, 0, symmetric=True)


@bug(QuantisedLinear, "group is taken for how many groups there are")
class HowManyGroups(VariedLinear):
    def integers(self, W, group):
        quantise(W, 8, 0, group)
        group = None if group is None else len(W) // group
        return quantise(W, 8, 0, group, symmetric=True)


@bug(QuantisedLinear, "the bias is left out")
class NoBias(VariedLinear):
    def copy(self, bias):
        return 0 * bias.detach()


@bug(QuantisedLinear, "the bias is quantised too")
class RoundedBias(VariedLinear):
    def copy(self, bias):
        return dequantise(*quantise(bias.detach(), 8, 0, symmetric=True))


@bug(QuantisedLinear, "the bias is added before the scale is multiplied")
class BiasFirst(VariedLinear):
    def forward(self, X):
        if self.bias is None or len(self.scale) > 1:
            return super().forward(X)
        Y = X @ self.Q.to(X.dtype) + self.bias.to(X.dtype)
        return Y * self.scale[0].to(X.dtype)


@bug(QuantisedLinear, "inputs are quantised too")
class RoundedInputs(VariedLinear):
    def multiply(self, X):
        return super().multiply(dequantise(*quantise(X, 8, -1, symmetric=True)))


@bug(QuantisedLinear, "the matrix is not quantised when it multiplies")
class NotQuantised(VariedLinear):
    def __init__(self, W, bias=None, group=None):
        super().__init__(W, bias, group)
        self.W = W.detach().clone()

    def matrix(self):
        return self.W


@bug(QuantisedLinear, "there are only 4 bits")
class FourBits(VariedLinear):
    def integers(self, W, group):
        return quantise(W, 4, 0, group, symmetric=True)


@bug(QuantisedLinear, "results do not depend on the scale")
class NoScale(VariedLinear):
    def matrix(self):
        return self.Q.to(self.scale.dtype)


@bug(
    QuantisedLinear,
    "the dequantised matrix is stored as well",
    told_by="yours stores ['Q', 'W', 'scale']",
)
class StoresBoth(VariedLinear):
    def __init__(self, W, bias=None, group=None):
        super().__init__(W, bias, group)
        self.register_buffer("W", super().matrix())


@bug(
    QuantisedLinear,
    "the scales are parameters, which an optimiser would change",
    told_by="There should be no parameters, yours are ['scale']",
)
class TrainsScales(VariedLinear):
    def __init__(self, W, bias=None, group=None):
        super().__init__(W, bias, group)
        scale = self.scale
        del self.scale
        self.scale = nn.Parameter(scale)


@bug(
    QuantisedLinear,
    "the bias is a parameter",
    told_by="There should be no parameters, yours are ['bias']",
)
class TrainsBias(VariedLinear):
    def __init__(self, W, bias=None, group=None):
        super().__init__(W, bias, group)
        if bias is not None:
            del self.bias
            self.bias = nn.Parameter(bias.detach().clone())


# rotate


def doubled(X, start, double=lambda H: torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])):
    """Build the Hadamard matrix that the reference builds, by a rule that may be another."""
    H = X.new_ones(1, 1) if start is None else start.to(X)
    while len(H) < X.shape[-1]:
        H = double(H)
    if len(H) != X.shape[-1]:
        raise ValueError("no doubling leads there")
    return H


@bug(rotate, "the result is not divided by √D", classic=True)
def not_divided(X, start=None):
    return X @ doubled(X, start)


@bug(rotate, "the result is divided by D, not by √D")
def divided_by_D(X, start=None):
    return X @ doubled(X, start) / X.shape[-1]


@bug(rotate, "the signs of the last quarter are not turned: all of them are +1")
def all_ones(X, start=None):
    def plain(H):
        return torch.cat([torch.cat([H, H], 1), torch.cat([H, H], 1)])

    return X @ doubled(X, start, plain) / math.sqrt(X.shape[-1])


@bug(rotate, "the minus stands in another quarter: [[H, H], [-H, H]]")
def other_quarter(X, start=None):
    def other(H):
        return torch.cat([torch.cat([H, H], 1), torch.cat([-H, H], 1)])

    return X @ doubled(X, start, other) / math.sqrt(X.shape[-1])


@bug(rotate, "every number becomes four, in place of every matrix", classic=True)
def inwards(X, start=None):
    two = torch.tensor([[1.0, 1], [1, -1]]).to(X)
    return X @ doubled(X, start, lambda H: torch.kron(H, two)) / math.sqrt(X.shape[-1])


@bug(rotate, "vectors are multiplied by the transposed matrix")
def from_the_left(X, start=None):
    return X @ doubled(X, start).T / math.sqrt(X.shape[-1])


@bug(rotate, "the start is not used")
def without_start(X, start=None):
    return X @ doubled(X, None) / math.sqrt(X.shape[-1])


@bug(rotate, "the start is not counted in what is divided by")
def start_not_counted(X, start=None):
    return X @ doubled(X, start) / math.sqrt(X.shape[-1] / (1 if start is None else len(start)))


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


class VariedLatent(LatentAttention):
    """Latent attention whose parts the bugs below vary."""

    def past(self, cache):
        return 0 if cache is None else cache.length

    def queries(self, X):
        return split_heads(X @ self.W_Q, self.H).split([self.D_h, self.D_R], dim=-1)

    def latent(self, X):
        return self.norm(X @ self.W_DKV)

    def turn(self, Q_R, K_R, positions):
        return rope_rotate(Q_R, positions, self.base), rope_rotate(K_R, positions, self.base)

    def extend(self, cache, C):
        cache.append(C)
        return cache.read()

    def prepare(self, X, cache=None):
        past = self.past(cache)
        Q_C, Q_R = self.queries(X)
        K_R = X @ self.W_KR
        Q_R, K_R = self.turn(Q_R, K_R, torch.arange(past, past + X.shape[1]))
        C = torch.cat([self.latent(X), K_R], dim=-1)
        if cache is not None:
            C = self.extend(cache, C).to(X.dtype)
        return Q_C, Q_R, C[..., : self.D_c], C[..., self.D_c :]

    def weights(self, E):
        T, N = E.shape[2:]
        return masked_softmax(E / self.root(), self.mask(T, N))

    def mask(self, T, N):
        return causal_mask(T, past=N - T)

    def root(self):
        return math.sqrt(self.D_h + self.D_R)

    def keys(self, C):
        return split_heads(C @ self.W_UK, self.H)

    def scores(self, Q_C, Q_R, K_C, K_R):
        return Q_C @ K_C.mT + Q_R @ K_R[:, None].mT

    def forward(self, X, cache=None):
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        V = split_heads(C @ self.W_UV, self.H)
        return merge_heads(self.weights(self.scores(Q_C, Q_R, self.keys(C), K_R)) @ V) @ self.W_O

    def absorb(self, Q_C):
        return torch.einsum("bhtd,chd->bhtc", Q_C, self.W_UK.unflatten(1, (self.H, -1)))

    def expand(self, Y):
        return torch.einsum("bhtc,chd->bhtd", Y, self.W_UV.unflatten(1, (self.H, -1)))

    def absorbed_weights(self, E):
        return self.weights(E)

    def absorbed(self, X, cache=None):
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        E = self.scores(self.absorb(Q_C), Q_R, C[:, None], K_R)
        return merge_heads(self.expand(self.absorbed_weights(E) @ C[:, None])) @ self.W_O


@bug(LatentAttention, "the latents are not normalised")
class NoNorm(VariedLatent):
    def latent(self, X):
        return X @ self.W_DKV


@bug(LatentAttention, "the vectors are normalised in place of the latents")
class NormFirst(VariedLatent):
    def latent(self, X):
        return functional.rms_norm(X, X.shape[-1:], None, 1e-5) @ self.W_DKV * self.norm.weight


@bug(LatentAttention, "keys are not turned")
class KeysNotTurned(VariedLatent):
    def turn(self, Q_R, K_R, positions):
        return rope_rotate(Q_R, positions, self.base), K_R


@bug(LatentAttention, "nothing is turned")
class NotTurned(VariedLatent):
    def turn(self, Q_R, K_R, positions):
        return Q_R, K_R


@bug(LatentAttention, "neighbouring features are turned, not those half of D_R apart")
class PairsTurned(VariedLatent):
    def turn(self, Q_R, K_R, positions):
        return (rope_rotate_pairs(X, positions, self.base) for X in (Q_R, K_R))


@bug(
    LatentAttention, "what is turned is the other part of the queries, before it meets the latents"
)
class TurnsContent(VariedLatent):
    def prepare(self, X, cache=None):
        past = self.past(cache)
        Q_C, _, C, K_R = super().prepare(X, cache)
        if self.D_h % 2 == 0:
            Q_C = rope_rotate(Q_C, torch.arange(past, past + X.shape[1]), self.base)
        return Q_C, split_heads(X @ self.W_Q, self.H)[..., self.D_h :], C, K_R


@bug(LatentAttention, "positions start at 0 in every call", classic=True)
class FromZero(VariedLatent):
    def past(self, cache):
        return 0


@bug(LatentAttention, "base is not used")
class DefaultBase(VariedLatent):
    def turn(self, Q_R, K_R, positions):
        return rope_rotate(Q_R, positions), rope_rotate(K_R, positions)


@bug(LatentAttention, "W_Q makes q^C of all heads first, and then q^R of all heads", classic=True)
class ByParts(VariedLatent):
    def queries(self, X):
        Q = (X @ self.W_Q).split([self.H * self.D_h, self.H * self.D_R], dim=-1)
        return [split_heads(part, self.H) for part in Q]


@bug(LatentAttention, "each head's q^R stands before its q^C")
class RotatedFirst(VariedLatent):
    def queries(self, X):
        Q_R, Q_C = split_heads(X @ self.W_Q, self.H).split([self.D_R, self.D_h], dim=-1)
        return Q_C, Q_R


@bug(LatentAttention, "the scores are divided by √D_h, not by √(D_h + D_R)", classic=True)
class RootOfHead(VariedLatent):
    def root(self):
        return math.sqrt(self.D_h)


@bug(
    LatentAttention,
    "absorbed scores are divided by √(D_c + D_R), not by √(D_h + D_R)",
    classic=True,
)
class RootOfLatent(VariedLatent):
    def absorbed_weights(self, E):
        return self.weights(E * self.root() / math.sqrt(self.D_c + self.D_R))


@bug(LatentAttention, "there is no mask")
class NoMask(VariedLatent):
    def mask(self, T, N):
        return torch.ones(T, N, dtype=torch.bool)


@bug(LatentAttention, "the mask ignores the past: new positions see only the oldest ones")
class MaskWithoutPast(VariedLatent):
    def mask(self, T, N):
        return torch.ones(T, N, dtype=torch.bool).tril()


@bug(LatentAttention, "the new positions see only the new positions")
class NewOnly(VariedLatent):
    def extend(self, cache, C):
        cache.append(C)
        return C


@bug(LatentAttention, "the new latents are used as they are made, not as the cache keeps them")
class NotRounded(VariedLatent):
    def extend(self, cache, C):
        past = cache.read().to(C.dtype)
        cache.append(C)
        return torch.cat([past, C], dim=1)


@bug(LatentAttention, "queries are rounded to the cache's dtype as well")
class RoundsQueries(VariedLatent):
    def prepare(self, X, cache=None):
        Q_C, Q_R, *kept = super().prepare(X, cache)
        dtype = X.dtype if cache is None else cache.read().dtype
        return Q_C.to(dtype).to(X.dtype), Q_R.to(dtype).to(X.dtype), *kept


@bug(LatentAttention, "keys that are not turned yet are kept, and turned when they are read")
class TurnsLate(VariedLatent):
    def prepare(self, X, cache=None):
        if cache is None:
            return super().prepare(X)
        past, T = cache.length, X.shape[1]
        positions = torch.arange(past + T)
        Q_C, Q_R = self.queries(X)
        cache.append(torch.cat([self.latent(X), X @ self.W_KR], dim=-1))
        C = cache.read().to(X.dtype)
        Q_R, K_R = (
            rope_rotate(Q_R, positions[past:], self.base),
            rope_rotate(C[..., self.D_c :], positions, self.base),
        )
        return Q_C, Q_R, C[..., : self.D_c], K_R


@bug(LatentAttention, "the turned key is kept before the latent")
class KeyFirst(VariedLatent):
    def extend(self, cache, C):
        cache.append(C.roll(self.D_R, dims=-1))
        return cache.read().roll(-self.D_R, dims=-1)


@bug(LatentAttention, "the turned parts are left out of the scores")
class WithoutRotated(VariedLatent):
    def scores(self, Q_C, Q_R, K_C, K_R):
        return Q_C @ K_C.mT


@bug(LatentAttention, "the turned parts are left out of the absorbed scores")
class AbsorbedWithoutRotated(VariedLatent):
    def absorbed(self, X, cache=None):
        Q_C, _, C, _ = self.prepare(X, cache)
        A = self.weights(self.absorb(Q_C) @ C[:, None].mT)
        return merge_heads(self.expand(A @ C[:, None])) @ self.W_O


@bug(LatentAttention, "W_UV is absorbed into the queries, in place of W_UK")
class WrongUp(VariedLatent):
    def absorb(self, Q_C):
        return torch.einsum("bhtd,chd->bhtc", Q_C, self.W_UV.unflatten(1, (self.H, -1)))


@bug(LatentAttention, "W_UK makes the outputs of absorbed attention, in place of W_UV")
class WrongDown(VariedLatent):
    def expand(self, Y):
        return torch.einsum("bhtc,chd->bhtd", Y, self.W_UK.unflatten(1, (self.H, -1)))


@bug(LatentAttention, "every head absorbs W_UK of the first")
class FirstHead(VariedLatent):
    def absorb(self, Q_C):
        return torch.einsum("bhtd,cd->bhtc", Q_C, self.W_UK[:, : self.D_h])


@bug(
    LatentAttention,
    "absorbed makes keys of the latents as forward does",
    told_by="is a key made from the latents?",
    classic=True,
)
class NotAbsorbed(VariedLatent):
    def absorbed(self, X, cache=None):
        return self.forward(X, cache)


@bug(
    LatentAttention,
    "absorbed makes values of the latents, and absorbs the keys only",
    told_by="is a value made from the latents?",
)
class MakesValues(VariedLatent):
    def absorbed(self, X, cache=None):
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        A = self.absorbed_weights(self.scores(self.absorb(Q_C), Q_R, C[:, None], K_R))
        return merge_heads(A @ split_heads(C @ self.W_UV, self.H)) @ self.W_O


@bug(LatentAttention, "keys and values of the latents are swapped: W_UV makes keys")
class SwappedUps(VariedLatent):
    def keys(self, C):
        return split_heads(C @ self.W_UV, self.H)

    def forward(self, X, cache=None):
        Q_C, Q_R, C, K_R = self.prepare(X, cache)
        V = split_heads(C @ self.W_UK, self.H)
        return merge_heads(self.weights(self.scores(Q_C, Q_R, self.keys(C), K_R)) @ V) @ self.W_O


@bug(
    LatentAttention,
    "the latents lose their gradient history even without a cache",
    told_by="No gradient reaches W_",
)
class AlwaysCached(VariedLatent):
    def latent(self, X):
        return super().latent(X).detach()


@bug(
    LatentAttention,
    "the latents come from the cache in a dtype that is not the queries'",
    told_by="raised RuntimeError: expected",
)
class OtherDtype(VariedLatent):
    def prepare(self, X, cache=None):
        Q_C, Q_R, C, K_R = super().prepare(X, cache)
        kind = X.dtype if cache is None else cache.read().dtype
        return Q_C, Q_R, C.to(kind), K_R.to(kind)


equivalent(
    LatentAttention,
    "past, T = (0 if cache is None else cache.length, X.shape[1]) → "
    "past, T = (1 if cache is None else cache.length, X.shape[1])",
    "scores depend on distances only, not on where a text begins",
)
