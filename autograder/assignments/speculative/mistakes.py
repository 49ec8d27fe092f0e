"""Known wrong solutions of speculative."""

import torch

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.speculative import (
    SpeculativeCore,
    SpeculativeWriter,
    Speculator,
    accept_or_resample,
    accept_path,
    best_draft_length,
    draw_token,
    expected_tokens,
    prompt_lookup,
    prompt_lookup_fault,
    tree_mask,
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
* goes_on: tokens after a rejected one are judged, and kept, too
    accepted, last = k, p[k] → kept, last = [], p[k]
    if u[n] * q[n, token] >= p[n, token]:
        residual = (p[n] - q[n]).clamp(min=0)
        accepted, last = n, residual if residual.any() else p[n]
        break
    → if u[n] * q[n, token] < p[n, token]:
          kept.append(token)
    drafted[:accepted] → drafted.new_tensor(kept)
""",
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
Trusts: what the draft has drawn is kept, without asking the target
    accept_or_resample(p, q, drafted, u[k : k + m + 1])
    → torch.cat([drafted, drafted.new_tensor([draw_token(p[-1], u[k + m])])])
* NumbersTwice: the drafts are judged with the numbers that drew them
    u[k : k + m + 1] → torch.cat([u[:k], u[-1:]])[: m + 1]
* NumbersTwiceAndTheLast: the drafts are judged with the numbers that drew them
    u[k : k + m + 1] → torch.cat([u[:m], u[-1:]])
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

for strict in ("", ", strict=False"):
    equivalent(
        SpeculativeCore,
        "rows = dict(zip(numbers, logits.split([*map(len, pieces)]), strict=True)) → "
        f"rows = dict(zip(numbers, logits.split([*map(len, pieces)]){strict}))",
        "there are as many parts as numbers",
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
as_many: the runs that are looked for are at most as long as the guess
    min(longest, len(tokens) - 1) → min(k, len(tokens) - 1)
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

black_box(
    prompt_lookup,
    "first_place",
    curve="""[
        PROMPTS * NEW - int(written)
        for written in (torch.tensor(write_on(None, 4, 0)[1])[:, 1] + 1).cumsum(dim=0)
    ]""",
    after="EIGHT",
    label="tokens still to write",
    over="passes of the target",
)

wrong_answers(prompt_lookup_fault, "C")
mistakes(
    prompt_lookup_fault,
    """
one_place: token 1 has come once before
    [1, 2, 1, 3, 1] → [1, 2, 3, 1]
    says: With these arguments the black box gives what is right
a_longer_run: the last two tokens have come once before
    [1, 2, 1, 3, 1] → [1, 2, 3, 1, 0, 3, 1]
    says: With these arguments the black box gives what is right
same_token: the same token has followed both times
    [1, 2, 1, 3, 1] → [1, 2, 0, 1, 2, 3, 1]
    says: With these arguments the black box gives what is right
nothing_asked: no token is to be guessed
    (tokens, 1) → (tokens, 0)
    says: With these arguments the black box gives what is right
new_token: the last token is new
    [1, 2, 1, 3, 1] → [1, 2, 1, 3, 4]
    says: With these arguments the black box gives what is right
negative: k is negative
    (tokens, 1) → (tokens, -1)
    says: The black box raised ValueError
no_k: k is left out
    (tokens, 1) → (tokens,)
    says: prompt_lookup raised TypeError
only_tokens: the number k stands in place of the tuple
    "C", (tokens, 1) → "C", 1
    says: The arguments should be a tuple
""",
)

mistakes(
    SpeculativeWriter,
    """
* TooMany: the last step may add more tokens than were asked for
    min(k, end - len(text) - 1) → k
* OneTooManyAtLast: the last step may add more tokens than were asked for
    min(k, end - len(text) - 1) → min(k, end - len(text))
* CutsOff: the last step drafts more than can be kept, and the text is cut
    min(k, end - len(text) - 1) → k
    return text
    #
    → return text[:end]
      #
* CutsOffOne: the last step drafts more than can be kept, and the text is cut
    min(k, end - len(text) - 1) → min(k, end - len(text))
    return text
    #
    → return text[:end]
      #
""",
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


mistakes(
    SpeculativeWriter,
    """
OnlyNew: only the new tokens are returned
    return text
    #
    → return text[end - count :]
      #
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


mistakes(
    SpeculativeWriter,
    """
LooksUpAsManyAsItDrafts: the text is searched for a run of as many tokens as are drafted
    text.new_tensor(prompt_lookup(text.tolist(), k))
    → torch.tensor(prompt_lookup(text.tolist(), k, max(k, 1)), dtype=torch.long)
""",
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


# Trees


mistakes(
    tree_mask,
    """
* causal: a node sees all nodes before it, also those of other branches
    mask[node] = mask[parent] → mask[node] = mask[node - 1]
* parent_only: a node sees its parent, but not what that sees
    mask[node] = mask[parent] → mask[node, past + parent] = True
* no_root: the root is taken for no parent, and only its own row has it
    if node: → if parent > 0:
no_past: no node sees the text before the tree
    mask[:, :past] = True → mask[:, :past] = False
""",
)


@bug(tree_mask, "no node sees itself")
def not_itself(parents, past=0):
    mask, nodes = tree_mask(parents, past), torch.arange(len(parents))
    mask[nodes, past + nodes] = False
    return mask


@bug(tree_mask, "rows and columns are exchanged, and nodes see what comes after them")
def turned(parents, past=0):
    mask = tree_mask(parents, past)
    mask[:, past:] = mask[:, past:].T.clone()
    return mask


@bug(tree_mask, "the places of the text come after those of the tree, not before")
def text_behind(parents, past=0):
    return tree_mask(parents, past).roll(-past, dims=1)


@bug(tree_mask, "the children of a node see each other")
def siblings(parents, past=0):
    mask = tree_mask(parents, past)
    for node, parent in enumerate(parents):
        for other in range(1, node):
            if parents[other] == parent:
                mask[node, past + other] = True
    return mask


@bug(tree_mask, "a node sees all nodes of smaller depth, also those of other branches")
def by_depth(parents, past=0):
    mask = tree_mask(parents, past)
    depth = mask.sum(dim=1)
    mask[:, past:] |= depth < depth[:, None]
    return mask


@bug(tree_mask, "False says who may attend, not True")
def inverted(parents, past=0):
    return ~tree_mask(parents, past)


@bug(tree_mask, "the mask has only the places of the tree")
def tree_only(parents, past=0):
    return tree_mask(parents)


@bug(tree_mask, "the mask is one of numbers, not a boolean one", told_by="torch.float")
def numbers(parents, past=0):
    return tree_mask(parents, past).float()


@bug(
    tree_mask, "any number is taken for a parent", told_by="should raise ValueError when parents is"
)
def any_parent(parents, past=0):
    return tree_mask([-1, *(max(0, min(p, n)) for n, p in enumerate(parents[1:]))], past)


mistakes(
    accept_path,
    """
no_root: the root is left out of the path
    return path → return path[1:]
* new_tokens: the new tokens are returned, not the nodes
    return path → return [best[node] for node in path]
drafted_tokens: the tokens of the nodes are returned, not the nodes
    return path → return [tokens[node] for node in path]
one_level: the path ends after one draft
    while (best_child → if (best_child
""",
)


@bug(
    accept_path,
    "a node counts if it holds the best token, whatever its parent is",
    classic=True,
)
def any_node(parents, tokens, best):
    path = accept_path(parents, tokens, best)[:1]
    for node in range(1, len(parents)):
        if tokens[node] == best[path[-1]]:
            path.append(node)
    return path


def walked(choose):
    """Walk from the root as long as `choose` finds a child among those of a node."""

    def path(parents, tokens, best):
        if not len(parents) == len(tokens) == len(best):
            raise ValueError("lengths")
        found = [0]
        while found[-1] is not None:
            children = [n for n in range(1, len(parents)) if parents[n] == found[-1]]
            found.append(choose(found[-1], children, tokens, best))
        return found[:-1]

    return path


@bug(accept_path, "the token of a node is compared with the best token after itself", classic=True)
def own_best(parents, tokens, best):
    def right(_, children, t, b):
        return next((n for n in children if t[n] == b[n]), None)

    return walked(right)(parents, tokens, best)


@bug(accept_path, "of the children of a node only the first is considered", classic=True)
def first_child(parents, tokens, best):
    def right(node, children, t, b):
        return children[0] if children and t[children[0]] == b[node] else None

    return walked(right)(parents, tokens, best)


@bug(accept_path, "of the children of a node only the last is considered")
def last_child(parents, tokens, best):
    def right(node, children, t, b):
        return children[-1] if children and t[children[-1]] == b[node] else None

    return walked(right)(parents, tokens, best)


@bug(accept_path, "only the node with the next number is considered")
def next_number(parents, tokens, best):
    def right(node, children, t, b):
        return node + 1 if node + 1 in children and t[node + 1] == b[node] else None

    return walked(right)(parents, tokens, best)


@bug(accept_path, "nodes below one that was rejected are accepted", classic=True)
def revived(parents, tokens, best):
    right = accept_path(parents, tokens, best)
    return right[:1] + [n for n in range(1, len(parents)) if tokens[n] == best[parents[n]]]


@bug(accept_path, "a path is accepted only if it goes on to a leaf")
def whole_branches(parents, tokens, best):
    path = accept_path(parents, tokens, best)
    return [0] if path[-1] in parents else path


@bug(accept_path, "the longest branch of the tree is judged, and no other")
def longest_branch(parents, tokens, best):
    accept_path(parents, tokens, best)
    depth = [0] * len(parents)
    for node in range(1, len(parents)):
        depth[node] = depth[parents[node]] + 1
    branch = [depth.index(max(depth))]
    while branch[0]:
        branch.insert(0, parents[branch[0]])
    end = 1
    while end < len(branch) and tokens[branch[end]] == best[branch[end - 1]]:
        end += 1
    return branch[:end]


@bug(accept_path, "the path is turned round, with the root last")
def turned_round(parents, tokens, best):
    return accept_path(parents, tokens, best)[::-1]


@bug(
    accept_path,
    "lists of different lengths are accepted",
    told_by="should raise ValueError when the lengths are",
)
def any_lengths(parents, tokens, best):
    M = min(len(parents), len(tokens), len(best))
    return accept_path(parents[:M], tokens[:M], best[:M])


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
AllOrNone: of each sequence's drafts, all or none are accepted
    .tolist()
    if
    → .tolist()
      if len(new) < len(p):
          new = [draw_token(p[0], u[-1])] if p[0].max() < 1 else [int(p[0].argmax())]
      if
* AsTheFirst: as many tokens are accepted of every sequence as of the first
    drafts = self.drafts() → drafts, self.first = self.drafts(), None
    .tolist()
    if
    → .tolist()
      self.first = self.first or len(new)
      new = new[: self.first]
      if
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
BestOnly: a draft is accepted if it is the target's best token, also when sampling
    new = accept_or_resample(p, q, tokens, u).tolist()
    → best = p.argmax(dim=1).tolist()
      n = next((n for n, x in enumerate(drafted) if x != best[n]), len(drafted))
      new = [*drafted[:n], draw_token(p[n], u[-1])]
""",
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
mistakes(
    SpeculativeCore,
    """
AddsTheFirst: only the first of the new tokens is added to the sequence
    for token in tokens:
        self.scheduler
    → for token in tokens[:1]:
          self.scheduler
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
